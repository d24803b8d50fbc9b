//! # Room card: charging
//!
//! Purpose:    charge the bodies of requests and answers of the native API to the node's budget of memory.
//! Owns:       [`Account`], one a connection; [`Item`], one a body on its way.
//! Interface:  [`charged`], which wraps both bodies of a call; [`Account::hold`], [`Account::evicted`].
//! Invariants: a body is read, or made, only while there is room. A request is charged until it is answered, an answer
//!             and a stream of requests frame by frame until the next one. All bodies of a connection share one charge.
//! Never:      the bound of one body (see `http` and `forwarding`).
//! Tests:      below; `tests/native.rs`; `compat/hostile`.
//! Start at:   [`charged`].

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::future::BoxFuture;
use http_body::{Frame, SizeHint};

use crate::server::budget::{Budget, Charge, OVERDUE};

/// Bytes that the calls of one connection hold.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    charge: Charge,
    bytes: u64,
    next_item: u64,
    /// Bodies whose client has to send or to take more, each with the time since which it has.
    awaited: BTreeMap<u64, Instant>,
}

impl Account {
    /// Returns an account of a connection that holds nothing.
    pub(crate) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let held =
            Held { charge: Charge::new(budget), bytes: 0, next_item: 0, awaited: BTreeMap::new() };
        Arc::new(Self { budget: Arc::clone(budget), held: Mutex::new(held) })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges bytes until the item is dropped: a message of a stream that waits for its answer.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Item {
        let mut item = self.item();
        item.hold(bytes, false);
        item
    }

    fn item(self: &Arc<Self>) -> Item {
        let mut held = self.held();
        held.next_item += 1;
        Item { account: Arc::clone(self), number: held.next_item, bytes: 0, room: None }
    }

    /// Tells whether the connection has to end, so that others can go on: a body has stood still for too long.
    fn must_go(&self) -> bool {
        let held = self.held();
        held.awaited.values().any(|since| since.elapsed() >= OVERDUE) && held.charge.must_go()
    }

    /// Comes when the connection has to end, so that others can go on.
    pub(crate) async fn evicted(self: Arc<Self>) {
        loop {
            self.budget.squeezed().await;
            if self.must_go() {
                return;
            }
        }
    }
}

/// Bytes that one body holds.
pub(crate) struct Item {
    account: Arc<Account>,
    number: u64,
    bytes: u64,
    /// Wait for room, if the body waits for it.
    room: Option<BoxFuture<'static, ()>>,
}

impl Item {
    /// Waits until more may be held.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(room) = &mut self.room {
                ready!(room.as_mut().poll(context));
                self.room = None;
            }
            if self.account.held().charge.has_room(true) {
                return Poll::Ready(());
            }
            self.room = Some(Box::pin(Arc::clone(&self.account.budget).wait()));
        }
    }

    /// Sets the bytes that are held, and whether the client has to do something before they go.
    fn hold(&mut self, bytes: u64, is_awaited: bool) {
        let mut held = self.account.held();
        held.bytes = held.bytes - self.bytes + bytes;
        self.bytes = bytes;
        if is_awaited {
            held.awaited.entry(self.number).or_insert_with(Instant::now);
        } else {
            held.awaited.remove(&self.number);
            held.charge.end_frame();
        }
        let bytes = held.bytes;
        held.charge.set(bytes);
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.hold(0, false);
    }
}

/// A body that is charged.
struct Charged {
    body: Body,
    item: Arc<Mutex<Item>>,
    /// True for a request with one answer: its frames are held until then.
    is_request: bool,
}

impl HttpBody for Charged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, item, is_request } = self.get_mut();
        let mut item = item.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_request {
            // The transport has taken the frame before.
            item.hold(0, false);
        }
        ready!(item.poll_room(context));
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => 0,
        };
        let is_last = !matches!(frame, Some(Ok(_))) || *is_request && body.is_end_stream();
        let held = if *is_request { item.bytes } else { 0 };
        item.hold(held + bytes, !is_last && held + bytes > 0);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn body(account: &Arc<Account>, body: Body, is_request: bool) -> (Body, Arc<Mutex<Item>>) {
    let item = Arc::new(Mutex::new(account.item()));
    let charged = Charged { body, item: Arc::clone(&item), is_request };
    (Body::new(charged), item)
}

/// Ends of the paths whose requests are streams: each message has an answer of its own.
const STREAMS: [&str; 1] = ["/EnqueueStream"];

/// Serves a call whose bodies are charged to its connection.
pub(crate) async fn charged(
    Extension(account): Extension<Arc<Account>>,
    request: Request,
    next: Next,
) -> Response {
    let mut held = None;
    let is_stream = STREAMS.iter().any(|end| request.uri().path().ends_with(end));
    let request = request.map(|inner| {
        let (inner, item) = body(&account, inner, !is_stream);
        held = Some(item);
        inner
    });
    let response = next.run(request).await;
    drop(held);
    response.map(|inner| body(&account, inner, false).0)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_stands_still_ends_when_others_need_its_memory() {
        let budget = Budget::new(1000, Gauge::default());
        let (still, moving) = (Account::new(&budget), Account::new(&budget));
        let (mut one, mut other) = (still.item(), moving.item());
        one.hold(700, true);
        other.hold(300, true);
        let long_ago = Instant::now().checked_sub(OVERDUE).expect("the machine runs for a while");
        still.held().awaited.insert(one.number, long_ago);
        let others_wait = async {
            loop {
                Arc::clone(&budget).wait().await;
            }
        };
        tokio::select! {
            () = Arc::clone(&still).evicted() => {}
            () = others_wait => {}
        }
        assert!(!moving.must_go(), "its body moves");
        drop(one);
        assert_eq!((still.held().bytes, moving.held().bytes), (0, 300));
    }
}
