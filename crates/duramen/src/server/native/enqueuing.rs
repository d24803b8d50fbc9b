//! Appends to queues: to one, to many, and without a wait for the answer before.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use duramen_broker::native::{Answer, Op};
use duramen_protocol::partitioner::partition_of_key;
use futures_util::future::join_all;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use prost::Message;
use tokio::sync::{Semaphore, oneshot};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::calls::Origin;
use super::charging::Account;
use super::identify::passed_on;
use super::messages::{check_many, content, enqueue_many_of, enqueue_of, unhurried};
use super::problems::{Fault, THROTTLED, kind_of};
use super::queues::Queues;
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    EnqueueManyRequest, EnqueueManyResponse, EnqueueRequest, EnqueueResponse, EnqueueResult,
    EnqueueStreamRequest, EnqueueStreamResponse, Position, enqueue_result, enqueue_stream_response,
};

/// Pause of a stream whose client exceeds its quota at the node that leads.
const REST: Duration = Duration::from_secs(1);
/// Most requests of one stream that wait for their answers.
const STREAM_REQUESTS_MAX: usize = 1_024;
/// Most memory of those requests, in KiB. One larger request is carried out alone.
const STREAM_KIB_MAX: u32 = 16 << 10;

pub(super) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

impl Queues {
    pub(crate) async fn enqueue(
        &self,
        origin: &Origin,
        request: EnqueueRequest,
    ) -> Result<EnqueueResponse, Fault> {
        let op = unhurried(content(request.messages.iter()), || enqueue_of(&request, now_ms()));
        let pass = async |mut node: QueuesClient<Channel>, it| node.enqueue(it).await;
        self.carry(origin, op, request, pass, async |_, answer| Ok(enqueued(answer))).await
    }

    /// Appends messages of a stream. If another node has to, they go there after `earlier`: on the way they could
    /// overtake others. A client that exceeds its quota waits, for a refusal would let later messages overtake.
    async fn enqueue_behind(
        &self,
        origin: &Origin,
        request: EnqueueRequest,
        earlier: impl Future<Output = ()>,
    ) -> Result<EnqueueResponse, Fault> {
        let mut op = unhurried(content(request.messages.iter()), || enqueue_of(&request, now_ms()));
        if let Ok(Op::Append(append)) = &mut op {
            append.is_patient = true;
        }
        let pass = async |mut node: QueuesClient<Channel>, it: Request<EnqueueRequest>| {
            earlier.await;
            let again = it.get_ref().clone();
            let mut answer = node.enqueue(it).await;
            while answer.as_ref().is_err_and(|it| kind_of(it) == Some(THROTTLED)) {
                tokio::time::sleep(REST).await;
                answer = node.enqueue(passed_on(origin, again.clone())).await;
            }
            answer
        };
        self.carry(origin, op, request, pass, async |_, answer| Ok(enqueued(answer))).await
    }

    /// Appends messages to many queues, one entry a partition.
    pub(crate) async fn enqueue_many(
        &self,
        origin: &Origin,
        request: EnqueueManyRequest,
    ) -> Result<EnqueueManyResponse, Fault> {
        check_many(&request)?;
        let partitions = self.topics.partitions(&origin.caller, &request.topic).await?;
        let EnqueueManyRequest { topic, messages, timeout_ms } = request;
        let mut results = vec![EnqueueResult::default(); messages.len()];
        let mut parts: BTreeMap<i32, (Vec<usize>, EnqueueManyRequest)> = BTreeMap::new();
        for (place, message) in messages.into_iter().enumerate() {
            let partition = partition_of_key(&message.queue, partitions);
            let (places, part) = parts.entry(partition).or_insert_with(|| {
                let (topic, messages) = (topic.clone(), Vec::new());
                (Vec::new(), EnqueueManyRequest { topic, messages, timeout_ms })
            });
            places.push(place);
            part.messages.push(message);
        }
        let appends = parts
            .into_values()
            .map(async |(places, part)| (places, self.enqueue_part(origin, part).await));
        let mut failed = Vec::new();
        for (places, outcome) in join_all(appends).await {
            match outcome {
                Ok(part) => {
                    for (place, result) in places.into_iter().zip(part.results) {
                        results[place] = result;
                    }
                }
                Err(fault) => {
                    for place in &places {
                        results[*place].result =
                            Some(enqueue_result::Result::Problem(fault.clone().into()));
                    }
                    failed.push((places.len(), fault));
                }
            }
        }
        // A problem that all messages share is the call's.
        let count: usize = failed.iter().map(|(count, _)| count).sum();
        match failed.into_iter().next() {
            Some((_, fault)) if count == results.len() => Err(fault),
            _ => Ok(EnqueueManyResponse { results }),
        }
    }

    /// Appends messages to queues of one partition.
    async fn enqueue_part(
        &self,
        origin: &Origin,
        part: EnqueueManyRequest,
    ) -> Result<EnqueueManyResponse, Fault> {
        let records = part.messages.iter().filter_map(|it| it.message.as_ref());
        let op = unhurried(content(records), || enqueue_many_of(&part, now_ms()));
        let count = part.messages.len();
        let pass = async |mut node: QueuesClient<Channel>, it| node.enqueue_many(it).await;
        let finish = async |_, answer| {
            let (first, ..) = appended(answer);
            let result = |offset| {
                let position = Position { offset, ..first };
                EnqueueResult { result: Some(enqueue_result::Result::Position(position)) }
            };
            Ok(EnqueueManyResponse { results: (first.offset..).take(count).map(result).collect() })
        };
        self.carry(origin, op, part, pass, finish).await
    }

    /// Appends as requests come, and answers in their order. Ends at the first message that is none.
    pub(crate) fn enqueue_stream(
        &self,
        origin: Origin,
        account: Arc<Account>,
        requests: impl Stream<Item = Result<EnqueueStreamRequest, Status>> + Send + 'static,
    ) -> BoxStream<'static, Result<EnqueueStreamResponse, Status>> {
        let room = Arc::new(Semaphore::new(STREAM_KIB_MAX as usize));
        let with_room = move |request: Result<EnqueueStreamRequest, Status>| {
            let (room, account) = (Arc::clone(&room), Arc::clone(&account));
            async move {
                let request = request?;
                let bytes = request.encoded_len() as u64;
                let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).saturating_add(1);
                let room = room.acquire_many_owned(kib.min(STREAM_KIB_MAX)).await;
                let room = room.expect("the semaphore is never closed");
                Ok((request, room, account.hold(bytes)))
            }
        };
        let (queues, mut turns) = (self.clone(), Turns::default());
        let carried_out = move |request: Result<(EnqueueStreamRequest, _, _), Status>| {
            let request = request.map(|(request, room, held)| {
                let EnqueueStreamRequest { call, request } = request;
                let request = request.unwrap_or_default();
                let (earlier, turn) = turns.take(&request);
                (call, request, earlier, (turn, room, held))
            });
            let (queues, origin) = (queues.clone(), origin.clone());
            async move {
                let (call, request, earlier, held) = request?;
                let earlier = async {
                    if let Some(earlier) = earlier {
                        // The earlier request is over when its end is dropped.
                        let _ = earlier.await;
                    }
                };
                let result = match queues.enqueue_behind(&origin, request, earlier).await {
                    Ok(appended) => enqueue_stream_response::Result::Appended(appended),
                    Err(fault) => enqueue_stream_response::Result::Problem(fault.into()),
                };
                drop(held);
                Ok(EnqueueStreamResponse { call, result: Some(result) })
            }
        };
        requests.then(with_room).map(carried_out).buffered(STREAM_REQUESTS_MAX).boxed()
    }
}

/// The latest request of each queue or session in a stream: the next one goes to another node after it.
#[derive(Default)]
struct Turns {
    latest: HashMap<Turn, oneshot::Receiver<()>>,
}

#[derive(PartialEq, Eq, Hash)]
enum Turn {
    /// Topic and name of the queue.
    Queue(String, Bytes),
    /// Id of the session, which counts the messages of all queues.
    Session(i64),
}

impl Turns {
    /// Returns the end of the request before, if there is one, and the end of this one.
    fn take(
        &mut self,
        request: &EnqueueRequest,
    ) -> (Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        if self.latest.len() > 2 * STREAM_REQUESTS_MAX {
            let is_under_way = |end: &mut oneshot::Receiver<()>| {
                matches!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty))
            };
            self.latest.retain(|_, end| is_under_way(end));
        }
        let turn = match &request.session {
            Some(session) => Turn::Session(session.id),
            None => Turn::Queue(request.topic.clone(), request.queue.clone()),
        };
        let (end, is_over) = oneshot::channel();
        (self.latest.insert(turn, is_over), end)
    }
}

fn enqueued(answer: Answer) -> EnqueueResponse {
    let (first, last, duplicate) = appended(answer);
    EnqueueResponse { first: Some(first), last: Some(last), duplicate }
}

fn appended(answer: Answer) -> (Position, Position, bool) {
    match answer {
        Answer::Appended { first, last, is_duplicate } => (first.into(), last.into(), is_duplicate),
        other => unreachable!("{other:?} answers no append"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(queue: &'static str) -> EnqueueRequest {
        EnqueueRequest { queue: Bytes::from_static(queue.as_bytes()), ..EnqueueRequest::default() }
    }

    #[test]
    fn each_request_follows_the_one_before_it_of_its_queue() {
        let mut turns = Turns::default();
        let (none, first) = turns.take(&request("alice"));
        assert!(none.is_none());
        assert!(turns.take(&request("bob")).0.is_none());
        let elsewhere = EnqueueRequest { topic: "other".to_owned(), ..request("alice") };
        assert!(turns.take(&elsewhere).0.is_none(), "it is another queue");
        let (earlier, _second) = turns.take(&request("alice"));
        let mut earlier = earlier.expect("there is one before");
        assert!(earlier.try_recv().is_err_and(|it| it == oneshot::error::TryRecvError::Empty));
        drop(first);
        assert!(earlier.try_recv().is_err_and(|it| it == oneshot::error::TryRecvError::Closed));
    }

    #[test]
    fn a_stream_of_many_queues_remembers_those_under_way_alone() {
        let mut turns = Turns::default();
        let (_, under_way) = turns.take(&request("alice"));
        for number in 0..100_000u32 {
            let queue = Bytes::from(number.to_string());
            turns.take(&EnqueueRequest { queue, ..EnqueueRequest::default() });
        }
        assert!(turns.latest.len() <= 2 * STREAM_REQUESTS_MAX + 1);
        assert!(turns.take(&request("alice")).0.is_some());
        drop(under_way);
    }
}
