//! # Room card: budget
//!
//! Purpose:    bound the bytes of requests in flight, of one connection and of the node.
//! Owns:       [`Budget`], [`Charge`].
//! Interface:  [`Budget`], [`Charge::set`], [`Charge::room`].
//! Invariants: what is charged is given back when the charge goes, however the connection ends.
//!             A reader never waits while it holds nothing, so one request always gets through.
//! Never:      a reservation of bytes that were only announced.
//! Tests:      below.
//! Start at:   [`Charge::room`].

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

/// How long a connection may wait for room while it holds bytes itself. After that it is closed:
/// readers that each hold half a frame could otherwise wait for one another for ever.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// The node's budget.
#[derive(Debug)]
pub struct Budget {
    bytes: AtomicU64,
    bytes_max: u64,
    freed: Notify,
    gauge: Gauge,
}

/// What one connection holds of it.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of so many bytes, shown in `gauge`.
    pub fn new(bytes_max: u64, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), bytes_max, freed: Notify::new(), gauge })
    }

    fn has_room(&self) -> bool {
        self.bytes.load(Relaxed) < self.bytes_max
    }
}

impl Charge {
    /// Nothing, yet.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// What is charged now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets what is charged: the bytes buffered and those of requests without a response.
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
                if before >= budget.bytes_max && before - freed < budget.bytes_max {
                    budget.freed.notify_waiters();
                }
            }
        }
        self.bytes = bytes;
        let now = budget.bytes.load(Relaxed);
        budget.gauge.set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    /// Whether more may be read now.
    pub fn has_room(&self) -> bool {
        self.budget.has_room()
    }

    /// Waits until more may be read. `false` after [`WAIT_MAX`] in vain.
    pub async fn room(&self) -> bool {
        let wait = async {
            loop {
                let freed = self.budget.freed.notified();
                tokio::pin!(freed);
                // Registered before the look, so that no wake-up falls between.
                freed.as_mut().enable();
                if self.budget.has_room() {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(WAIT_MAX, wait).await.is_ok()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_budget_waits_until_something_is_given_back() {
        let budget = Budget::new(100, Gauge::default());
        let mut one = Charge::new(&budget);
        let mut two = Charge::new(&budget);
        one.set(60);
        assert!(two.has_room());
        two.set(60);
        assert!(!one.has_room());
        let waiting = tokio::spawn({
            let three = Charge::new(&budget);
            async move { three.room().await }
        });
        tokio::task::yield_now().await;
        drop(two);
        assert!(waiting.await.unwrap());
        one.set(10);
        assert_eq!((one.bytes(), budget.bytes.load(Relaxed)), (10, 10));
        drop(one);
        assert_eq!(budget.bytes.load(Relaxed), 0);
    }
}
