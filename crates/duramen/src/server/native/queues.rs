//! The operations that read queues, in the messages of the protocol: here, or once at the node that leads the queue's
//! log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen_broker::native::{Answer, Op, Problem, Span};
use duramen_broker::read_plan::{Taken, queue_extent, queue_names, queue_page};
use tonic::Request;
use tonic::transport::Channel;

use super::calls::{Call, Calls, Origin};
use super::forwarding::{Answered, Forwarding, carry};
use super::identify::passed_on;
use super::messages::{element_of, get_queue_of, list_queues_of, retrieve_of};
use super::problems::Fault;
use super::reading::{WAIT_MS_MAX, written};
use super::selecting::{EDIT_HEADERS, Selected, Selection};
use super::topics::Topics;
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    GetElementRequest, GetQueueRequest, ListQueuesRequest, ListQueuesResponse, Position, Queue,
    QueueName, ReadRecord, RetrieveRequest, RetrieveResponse, retrieve_request,
};

/// Elements of a page, if the client names no number, and the most.
const ELEMENTS: u32 = 100;
pub(crate) const ELEMENTS_MAX: u32 = 1_000;
/// Bytes of a page, and the most.
pub(super) const PAGE_BYTES: u32 = 1 << 20;
pub(super) const PAGE_BYTES_MAX: u32 = 16 << 20;
/// Names of a page, which is the most.
const NAMES_MAX: u32 = 1_000;
/// Time after which a page with expressions ends.
const PAGE_TIME: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub calls: Calls,
    pub forwarding: Forwarding,
    pub topics: Topics,
    /// Longest wait of a subscriber for an event of a queue.
    pub heartbeat: Duration,
}

/// Size of a page, and what a reader wants of it.
struct Page {
    limit: usize,
    bytes: usize,
    selection: Option<Selection>,
}

impl Page {
    fn of(request: &RetrieveRequest) -> Result<Arc<Self>, Fault> {
        let mut errors = Vec::new();
        let mut bound = |field, wanted: u32, usual: u32, most: u32| {
            if wanted > most {
                errors.push((field, format!("it is at most {most}")));
            }
            (if wanted == 0 { usual } else { wanted }) as usize
        };
        let limit = bound("limit", request.limit, ELEMENTS, ELEMENTS_MAX);
        let bytes = bound("bytes", request.bytes, PAGE_BYTES, PAGE_BYTES_MAX);
        bound("wait_ms", request.wait_ms, 0, WAIT_MS_MAX);
        if !errors.is_empty() {
            return Err(Fault::bad_request(&errors));
        }
        let selection = Selection::of(request)?;
        Ok(Arc::new(Self { limit, bytes, selection }))
    }
}

impl Queues {
    /// Carries an operation out here, or passes its message on to the node that leads.
    pub(super) fn carry<M, A>(
        &self,
        origin: &Origin,
        op: Result<Op, Problem>,
        message: M,
        pass: impl AsyncFnOnce(QueuesClient<Channel>, Request<M>) -> Answered<A>,
        finish: impl AsyncFnOnce(Call, Answer) -> Result<A, Fault>,
    ) -> impl Future<Output = Result<A, Fault>> {
        let pass =
            async move |to| pass(self.forwarding.queues(to), passed_on(origin, message)).await;
        carry(&self.calls, origin, op, pass, finish)
    }

    /// Reads a page. An empty one comes once the wait is over.
    pub(crate) async fn retrieve(
        &self,
        origin: &Origin,
        mut request: RetrieveRequest,
    ) -> Result<RetrieveResponse, Fault> {
        let page = Page::of(&request)?;
        // As decoded, the name holds the buffer of the request, of 8 KiB, for as long as the read waits.
        request.queue = Bytes::copy_from_slice(&request.queue);
        let until = Instant::now() + Duration::from_millis(request.wait_ms.into());
        let mut has_skipped = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            request.wait_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            let op = retrieve_of(&request, wait_ms);
            let pass = async |mut node: QueuesClient<Channel>, it| node.retrieve(it).await;
            let after = match request.start {
                Some(retrieve_request::Start::After(position)) => Some(position),
                _ => None,
            };
            let finish =
                async |call: Call, answer| read_page(&call, span_of(answer), page.clone()).await;
            let answer = self.carry(origin, op, request.clone(), pass, finish).await;
            let mut answer = answer.map_err(Fault::of_a_read)?;
            answer.next = answer.next.or(after);
            if answer.next.is_none() {
                // The log has nothing. Its end of later would be another one.
                request.start = None;
            }
            has_skipped |= answer.skipped;
            answer.skipped = has_skipped;
            // A filter lets nothing through, or a transaction is open: the wait goes on behind it.
            if !answer.elements.is_empty() || Instant::now() >= until {
                return Ok(answer);
            }
            request.start = answer.next.map(retrieve_request::Start::After);
        }
    }

    pub(crate) async fn get_element(
        &self,
        origin: &Origin,
        request: GetElementRequest,
    ) -> Result<ReadRecord, Fault> {
        let Some(wanted) = request.position else {
            return Err(Fault::bad_request(&[("position", "it is missing".to_owned())]));
        };
        let page = Page::of(&RetrieveRequest { limit: 1, ..RetrieveRequest::default() })?;
        let op = element_of(&request, wanted);
        let pass = async |mut node: QueuesClient<Channel>, it| node.get_element(it).await;
        let finish = async |call: Call, answer| {
            let page = read_page(&call, span_of(answer), page).await?;
            let is_wanted = |it: &ReadRecord| {
                it.position.is_some_and(|at| (at.term, at.offset) == (wanted.term, wanted.offset))
            };
            let found = page.elements.into_iter().next().filter(is_wanted);
            found.ok_or_else(|| Problem::UnknownElement.into())
        };
        self.carry(origin, op, request, pass, finish).await.map_err(Fault::of_a_read)
    }

    pub(crate) async fn get_queue(
        &self,
        origin: &Origin,
        request: GetQueueRequest,
    ) -> Result<Queue, Fault> {
        let op = get_queue_of(&request);
        let pass = async |mut node: QueuesClient<Channel>, it| node.get_queue(it).await;
        let finish = async |call: Call, answer| {
            let span = span_of(answer);
            let (name, partition) = (span.name.clone(), span.partition);
            let extent = call.read_queues(span, queue_extent::<_, Fault>);
            let extent = extent.await?;
            Ok(Queue {
                name,
                partition,
                first: extent.first.map(Into::into),
                last: extent.last.map(Into::into),
                about_elements: extent.about_elements,
                fence: extent.fence,
                pointer: extent.pointer.map(Into::into),
            })
        };
        self.carry(origin, op, request, pass, finish).await.map_err(Fault::of_a_read)
    }

    /// Lists queues of all partitions, or of one.
    pub(crate) async fn list(
        &self,
        origin: &Origin,
        request: ListQueuesRequest,
    ) -> Result<ListQueuesResponse, Fault> {
        if request.limit > NAMES_MAX {
            let reason = format!("a page has at most {NAMES_MAX} queues");
            return Err(Fault::bad_request(&[("limit", reason)]));
        }
        let limit = if request.limit == 0 { NAMES_MAX } else { request.limit } as usize;
        let partitions = if let Some(partition) = request.partition {
            partition..partition.saturating_add(1)
        } else {
            0..self.topics.partitions(&origin.caller, &request.topic).await?
        };
        let mut queues: Vec<QueueName> = Vec::new();
        let mut more = false;
        for partition in partitions {
            let one = ListQueuesRequest { partition: Some(partition), ..request.clone() };
            let page = self.list_one(origin, one, partition, limit).await?;
            more |= page.more;
            queues.extend(page.queues);
            queues.sort_by(|one, other| one.name.cmp(&other.name));
            more |= queues.len() > limit;
            queues.truncate(limit);
        }
        Ok(ListQueuesResponse { queues, more })
    }

    async fn list_one(
        &self,
        origin: &Origin,
        request: ListQueuesRequest,
        partition: i32,
        limit: usize,
    ) -> Result<ListQueuesResponse, Fault> {
        let op = list_queues_of(&request.topic, partition);
        let (prefix, after) = (request.prefix.clone(), request.after.clone());
        let pass = async |mut node: QueuesClient<Channel>, it| node.list_queues(it).await;
        let finish = async |call: Call, answer| {
            let names = call.read_queues(span_of(answer), move |reader, span| {
                let after = (!after.is_empty()).then_some(&after[..]);
                queue_names::<_, Fault>(reader, span, &prefix, after, limit + 1)
            });
            let mut names = names.await?;
            let more = names.len() > limit;
            names.truncate(limit);
            let names = names.into_iter().map(|it| QueueName {
                name: it.name,
                partition,
                about_elements: it.records,
            });
            Ok(ListQueuesResponse { queues: names.collect(), more })
        };
        self.carry(origin, op, request, pass, finish).await.map_err(Fault::of_a_read)
    }
}

fn span_of(answer: Answer) -> Span {
    match answer {
        Answer::Span(span) => span,
        other => unreachable!("{other:?} is no part of a log"),
    }
}

/// Reads the page of a part of a log.
async fn read_page(call: &Call, span: Span, page: Arc<Page>) -> Result<RetrieveResponse, Fault> {
    let (has_skipped, is_metered) = (span.has_skipped, span.is_metered);
    let ends_at = Instant::now() + PAGE_TIME;
    let (page, bytes) = call
        .read_queues(span, move |reader, span| {
            let (mut elements, mut bytes) = (Vec::new(), 0);
            let end = queue_page(reader, span, |records, record, position| {
                let (at, version): (Position, _) = (position.into(), records.offset(record));
                let selected = match &page.selection {
                    Some(selection) => selection.select(records, record, at)?,
                    None => Selected::Whole,
                };
                let (record, fields, size) = match selected {
                    Selected::Nothing => (None, HashMap::new(), 0),
                    Selected::Whole => {
                        let (mut message, size) = written(records, record, &EDIT_HEADERS);
                        message.key = None;
                        (Some(message), HashMap::new(), size)
                    }
                    Selected::Fields(fields, size) => (None, fields, size),
                };
                if record.is_some() || !fields.is_empty() {
                    let (position, version) = (Some(at), Some(version));
                    elements.push(ReadRecord { position, record, fields, version });
                    bytes += size;
                }
                let is_full = elements.len() >= page.limit || bytes >= page.bytes;
                let is_late = page.selection.is_some() && Instant::now() > ends_at;
                Ok::<_, Fault>(if is_full || is_late { Taken::Last } else { Taken::More })
            })?;
            let (next, more) = (end.next.map(Into::into), end.more);
            let skipped = has_skipped || end.has_skipped;
            Ok((RetrieveResponse { elements, next, more, skipped }, bytes as u64))
        })
        .await?;
    if is_metered {
        call.consumed(bytes);
    }
    Ok(page)
}
