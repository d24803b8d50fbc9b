//! # Room card: budget
//!
//! Purpose:    bound the memory that requests and answers on their way take, of one connection and of
//!             the node.
//! Owns:       [`Budget`], [`Charge`]: the right to read on, and the choice of whom to close when nothing moves.
//! Interface:  [`Charge::set`], [`Charge::has_room`], [`Budget::wait`], [`Charge::must_go`].
//! Invariants: charged bytes are given back when the charge goes, however the connection ends. A
//!             connection that holds little is read whatever the others hold, up to twice the
//!             budget. One connection at a time may finish its frame though there is no room. So
//!             frames that are each half there never wait for one another.
//! Never:      a reservation of bytes that were only announced.
//! Tests:      below; `compat/hostile`.
//! Start at:   [`Charge::has_room`].

use std::cmp::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Longest time a connection may hold an incomplete frame or an unread answer while others wait for room. After that
/// the node may close it.
pub const OVERDUE: Duration = Duration::from_secs(10);

/// Time between two looks of a waiting connection for overdue ones.
const SQUEEZE_EVERY: Duration = Duration::from_secs(1);

/// The node's budget.
#[derive(Debug)]
pub struct Budget {
    bytes: AtomicU64,
    bytes_max: u64,
    charges: AtomicU64,
    freed: Notify,
    squeeze: Notify,
    squeezed_at: Mutex<Option<Instant>>,
    /// Bytes that overdue connections still have to give up.
    wanted: AtomicI64,
    /// True while a connection finishes a frame though there is no room.
    is_exceeded: AtomicBool,
    gauge: Gauge,
}

/// Bytes of the budget that one connection holds.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
    exceeds: bool,
}

impl Budget {
    /// Returns a budget of so many bytes, shown in `gauge`.
    pub fn new(bytes_max: u64, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicU64::new(0),
            bytes_max,
            charges: AtomicU64::new(0),
            freed: Notify::new(),
            squeeze: Notify::new(),
            squeezed_at: Mutex::new(None),
            wanted: AtomicI64::new(0),
            is_exceeded: AtomicBool::new(false),
            gauge,
        })
    }

    /// Returns the bytes that all connections may hold together. The rest is kept for those that hold little.
    fn shared_max(&self) -> u64 {
        self.bytes_max - self.bytes_max / 4
    }

    /// Returns the bytes that connections never exceed together, except with the rest of a frame.
    fn total_max(&self) -> u64 {
        self.bytes_max.saturating_mul(2)
    }

    /// Returns the bytes that each connection may hold, whatever the others do.
    fn fair_share(&self) -> u64 {
        self.bytes_max / 4 / self.charges.load(Relaxed).max(1)
    }

    /// Returns the bytes that the unanswered requests of one connection may take. Above that, the node does not read
    /// the connection.
    pub fn connection_max(&self) -> u64 {
        self.bytes_max / 4
    }

    /// Waits until there may be room again, or for a second. While anybody waits, those who are
    /// overdue are asked once a second to go.
    pub async fn wait(self: Arc<Self>) {
        // Either way it is time to look again.
        let _ = tokio::time::timeout(SQUEEZE_EVERY, self.freed.notified()).await;
        let mut squeezed_at = self.squeezed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if squeezed_at.is_none_or(|at| at.elapsed() >= SQUEEZE_EVERY) {
            *squeezed_at = Some(Instant::now());
            self.squeeze();
        }
    }

    fn squeeze(&self) {
        let wanted = i64::try_from(self.bytes_max / 4).unwrap_or(i64::MAX);
        self.wanted.store(wanted, Relaxed);
        self.squeeze.notify_waiters();
    }

    /// Comes when there is no room, and who is overdue has to ask whether it [`Charge::must_go`].
    pub fn squeezed(&self) -> Notified<'_> {
        self.squeeze.notified()
    }
}

impl Charge {
    /// Makes a charge of nothing, yet.
    pub fn new(budget: &Arc<Budget>) -> Self {
        budget.charges.fetch_add(1, Relaxed);
        Self { budget: Arc::clone(budget), bytes: 0, exceeds: false }
    }

    /// Sets what is charged: bytes of a frame that is not whole, what requests without an answer take,
    /// and an answer that is not sent.
    pub fn set(&mut self, bytes: u64) {
        let budget = &*self.budget;
        match bytes.cmp(&self.bytes) {
            Ordering::Equal => return,
            Ordering::Greater => {
                budget.bytes.fetch_add(bytes - self.bytes, Relaxed);
            }
            Ordering::Less => {
                let freed = self.bytes - bytes;
                let before = budget.bytes.fetch_sub(freed, Relaxed);
                let crosses = |bound: u64| before >= bound && before - freed < bound;
                if crosses(budget.shared_max()) || crosses(budget.total_max()) {
                    budget.freed.notify_waiters();
                }
            }
        }
        self.bytes = bytes;
        let now = budget.bytes.load(Relaxed);
        budget.gauge.set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    /// Tells whether the connection may read more now. `has_part` says that it holds a part of a frame.
    pub fn has_room(&mut self, has_part: bool) -> bool {
        let total = self.budget.bytes.load(Relaxed);
        if total < self.budget.shared_max() || self.exceeds {
            return true;
        }
        if self.holds_little() {
            return total < self.budget.total_max();
        }
        self.exceeds = has_part && !self.budget.is_exceeded.swap(true, Relaxed);
        self.exceeds
    }

    fn holds_little(&self) -> bool {
        self.bytes < self.budget.fair_share()
    }

    /// Notes that the frame is whole that was read though there was no room.
    pub fn end_frame(&mut self) {
        if std::mem::take(&mut self.exceeds) {
            self.budget.is_exceeded.store(false, Relaxed);
            self.budget.freed.notify_waiters();
        }
    }

    /// Tells whether the node has to close this overdue connection, so that others can go on.
    pub fn must_go(&self) -> bool {
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        !self.holds_little() && self.budget.wanted.fetch_sub(bytes, Relaxed) > 0
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.end_frame();
        self.set(0);
        self.budget.charges.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Arc<Budget> {
        Budget::new(1000, Gauge::default())
    }

    #[tokio::test]
    async fn what_is_given_back_wakes_those_who_wait() {
        let budget = budget();
        let (mut one, mut two, mut three) =
            (Charge::new(&budget), Charge::new(&budget), Charge::new(&budget));
        one.set(400);
        assert!(two.has_room(true));
        two.set(400);
        three.set(100);
        assert!(three.has_room(true), "it is the one that may exceed");
        assert!(!one.has_room(true));
        let waiting = tokio::spawn(Arc::clone(&budget).wait());
        tokio::task::yield_now().await;
        drop(two);
        waiting.await.unwrap();
        assert!(one.has_room(true));
        drop((one, three));
        assert_eq!(budget.bytes.load(Relaxed), 0);
        assert_eq!(budget.charges.load(Relaxed), 0);
    }

    #[test]
    fn who_holds_little_is_read_whatever_others_hold() {
        let budget = budget();
        let (mut greedy, mut modest) = (Charge::new(&budget), Charge::new(&budget));
        greedy.set(1999);
        assert!(modest.has_room(true));
        modest.set(1000 / 4 / 2);
        greedy.end_frame();
        assert!(greedy.has_room(true), "nobody else exceeds");
        assert!(!modest.has_room(true));
        modest.set(0);
        greedy.set(2000);
        assert!(!modest.has_room(true), "twice the budget is the end for all");
    }

    #[test]
    fn one_at_a_time_may_exceed_and_hands_that_on() {
        let budget = budget();
        let (mut one, mut two) = (Charge::new(&budget), Charge::new(&budget));
        one.set(500);
        two.set(500);
        assert!(!one.has_room(false), "it has nothing to finish");
        assert!(one.has_room(true));
        assert!(!two.has_room(true));
        one.end_frame();
        assert!(two.has_room(true));
        drop(two);
        assert!(!budget.is_exceeded.load(Relaxed));
    }

    #[tokio::test]
    async fn who_is_overdue_goes_until_a_quarter_is_free() {
        let budget = budget();
        let charge = |_| {
            let mut charge = Charge::new(&budget);
            charge.set(100);
            charge
        };
        let charges: Vec<Charge> = (0..10).map(charge).collect();
        let little = Charge::new(&budget);
        let squeezed = budget.squeezed();
        budget.squeeze();
        squeezed.await;
        assert!(!little.must_go());
        let gone = charges.iter().filter(|charge| charge.must_go()).count();
        assert_eq!(gone, 3);
    }
}
