//! Reads of queues that go on at their ends, until the client goes.

use std::collections::BTreeSet;

use duramen_broker::native::Problem;
use futures_util::future::try_join_all;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt, select_all, try_unfold};

use super::calls::Origin;
use super::problems::{Fault, THROTTLED};
use super::queues::{ELEMENTS_MAX, PAGE_BYTES, PAGE_BYTES_MAX, Queues};
use super::reading::WAIT_MS_MAX;
use crate::proto::{
    CaughtUp, Cursor, Heartbeat, Position, RetrieveRequest, RetrieveResponse, SubscribeRequest,
    SubscribeResponse, Trimmed, cursor, retrieve_request, subscribe_response,
};

/// Most queues of one subscription.
const CURSORS_MAX: usize = 64;
/// Fewest bytes of a page.
const PAGE_BYTES_MIN: u32 = 16 << 10;

impl Queues {
    /// Reads a queue page by page, and waits for more at its end. A wrong request is refused before the stream begins.
    pub(crate) async fn follow(
        &self,
        origin: &Origin,
        mut request: RetrieveRequest,
    ) -> Result<BoxStream<'static, Result<RetrieveResponse, Fault>>, Fault> {
        request.wait_ms = 0;
        let first = self.retrieve(origin, request.clone()).await?;
        advance(&mut request, &first);
        request.wait_ms = u32::try_from(self.heartbeat.as_millis()).unwrap_or(WAIT_MS_MAX);
        let state = (self.clone(), origin.clone(), request);
        let others = try_unfold(state, async |(queues, origin, mut request)| {
            let page = loop {
                match queues.retrieve(&origin, request.clone()).await {
                    // A stream that exceeds a quota is late.
                    Err(fault) if fault.kind == THROTTLED => {
                        tokio::time::sleep(fault.retry_after().unwrap_or_default()).await;
                    }
                    page => break page?,
                }
            };
            advance(&mut request, &page);
            Ok(Some((page, (queues, origin, request))))
        });
        Ok(stream::once(async { Ok(first) }).chain(others).boxed())
    }

    /// Reads several queues, and tells each event of each.
    pub(crate) async fn subscribe(
        &self,
        origin: &Origin,
        request: SubscribeRequest,
    ) -> Result<BoxStream<'static, Result<SubscribeResponse, Fault>>, Fault> {
        let begun = pages_of(&request)?.into_iter().map(async |first| {
            let (queue, mut is_behind) = (first.queue.clone(), true);
            let mut before = match first.start {
                Some(retrieve_request::Start::After(position)) => Some(position),
                _ => None,
            };
            let pages = self.follow(origin, first).await?;
            let events = pages.map_ok(move |page| {
                let next = page.next.or(before);
                let events = events_of(&queue, page, before, &mut is_behind);
                before = next;
                stream::iter(events.into_iter().map(Ok))
            });
            Ok::<_, Fault>(events.try_flatten().boxed())
        });
        Ok(select_all(try_join_all(begun).await?).boxed())
    }
}

/// Returns the first page of each queue of a subscription.
pub(super) fn pages_of(request: &SubscribeRequest) -> Result<Vec<RetrieveRequest>, Fault> {
    check(request)?;
    let SubscribeRequest { cursors, bytes, .. } = request;
    let all = if *bytes == 0 { PAGE_BYTES } else { *bytes };
    let count = u32::try_from(cursors.len()).expect("they are few");
    let page = |it: &Cursor| RetrieveRequest {
        topic: request.topic.clone(),
        queue: it.queue.clone(),
        start: it.start.map(|start| match start {
            cursor::Start::After(position) => retrieve_request::Start::After(position),
            cursor::Start::End(is_end) => retrieve_request::Start::End(is_end),
        }),
        limit: ELEMENTS_MAX,
        bytes: (all / count).max(PAGE_BYTES_MIN),
        wait_ms: 0,
        filter: request.filter.clone(),
        fields: request.fields.clone(),
        consistency: request.consistency,
        skip_trimmed: request.skip_trimmed,
        skip_failed: request.skip_failed,
    };
    Ok(cursors.iter().map(page).collect())
}

/// Checks what needs no node of a subscription.
fn check(request: &SubscribeRequest) -> Result<(), Fault> {
    let wrong = |field, reason: String| Err(Problem::BadRequest(field, reason).into());
    let names: BTreeSet<&[u8]> = request.cursors.iter().map(|it| &it.queue[..]).collect();
    if names.is_empty() {
        return wrong("cursors", "there are none".to_owned());
    }
    if request.cursors.len() > CURSORS_MAX {
        let reason = format!(
            "there are at most {CURSORS_MAX}: for more, read the topic's partitions with Logs.Read"
        );
        return wrong("cursors", reason);
    }
    if names.len() < request.cursors.len() {
        return wrong("cursors", "a queue is named twice".to_owned());
    }
    if request.bytes > PAGE_BYTES_MAX {
        return wrong("bytes", format!("it is at most {PAGE_BYTES_MAX}"));
    }
    Ok(())
}

/// Lets the next page begin behind this one. A log without a position has nothing: its end is its beginning.
fn advance(request: &mut RetrieveRequest, page: &RetrieveResponse) {
    request.start = page.next.map(retrieve_request::Start::After);
}

/// Returns the events of a page that begins behind `before`. A reader that was behind learns when it has everything.
fn events_of(
    queue: &bytes::Bytes,
    page: RetrieveResponse,
    before: Option<Position>,
    is_behind: &mut bool,
) -> Vec<SubscribeResponse> {
    use subscribe_response::Event;
    let RetrieveResponse { elements, next, more, skipped } = page;
    let event = |event, next| SubscribeResponse { queue: queue.clone(), event: Some(event), next };
    let mut events = Vec::new();
    if skipped {
        // Its elements are still to come.
        events.push(event(Event::Trimmed(Trimmed {}), before));
    }
    let is_silent = elements.is_empty();
    events.extend(elements.into_iter().map(|it| {
        let next = it.position;
        event(Event::Element(it), next)
    }));
    if !more && *is_behind {
        events.push(event(Event::CaughtUp(CaughtUp {}), next));
    } else if is_silent {
        events.push(event(Event::Heartbeat(Heartbeat {}), next));
    }
    *is_behind = more;
    events
}
