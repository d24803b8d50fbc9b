//! Waiting a little longer each time, but never past a deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(160);

/// Pauses between attempts: 20 ms, doubling up to 160 ms, until the time given is over. A new leader takes half a
/// second or more, so longer pauses would be most of the time without one.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    deadline: Instant,
}

impl Backoff {
    /// Pauses for at most `total` in sum, from now.
    pub(crate) fn new(total: Duration) -> Self {
        Self { next: FIRST, deadline: Instant::now() + total }
    }

    /// Pauses and returns true, or returns false if the time is over.
    pub(crate) async fn pause(&mut self) -> bool {
        let Some(pause) = self.step() else { return false };
        sleep(pause).await;
        true
    }

    /// Returns the length of the next pause, or `None` if the time is over.
    pub(crate) fn step(&mut self) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let pause = self.next.min(left);
        self.next = (self.next * 2).min(LONGEST);
        (!left.is_zero()).then_some(pause)
    }
}
