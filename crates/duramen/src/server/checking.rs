//! # Room card: checking
//!
//! Purpose:    decode and check a frame on a thread that may take as long as that takes.
//! Owns:       how much is checked at a time: large frames, those that expand to much, those with batches that are made
//!             anew, and passwords.
//! Interface:  [`Checking::on_frame`], [`Checking::on_password`].
//! Invariants: a frame that is small, and whose records do not expand to much, is checked at once. Of
//!             the others a few are checked at a time, whatever clients send: so their memory is
//!             bounded. Their threads serve no other connection, so there is time for the rest.
//! Never:      the checks themselves (`duramen_broker::session`).
//! Tests:      `compat/hostile`.
//! Start at:   [`Checking::on_frame`].

use std::time::{Duration, Instant};

use bytes::Bytes;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::recompression::Target;
use duramen_broker::session::{Heavy, Session, SessionStep};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::block_in_place;

/// A frame above this is decoded and checked where other connections do not wait for it.
pub(crate) const LARGE_FRAME: usize = 256 * 1024;

async fn turn<'a>(turns: &'a Semaphore, waited: &mut Duration) -> Option<SemaphorePermit<'a>> {
    let began = Instant::now();
    let turn = turns.acquire().await.ok();
    *waited += began.elapsed();
    turn
}

/// See the room card.
#[derive(Debug)]
pub struct Checking {
    large: Semaphore,
    heavy: Semaphore,
    anew: Semaphore,
    passwords: Semaphore,
}

impl Checking {
    /// Makes the limits for a machine of so many cores: half of them may be busy with records that expand to much.
    pub fn new(cores: usize) -> Self {
        Self {
            large: Semaphore::new(cores),
            heavy: Semaphore::new((cores / 2).max(1)),
            anew: Semaphore::new(cores),
            passwords: Semaphore::new(cores),
        }
    }

    /// Gives the session a frame. Adds to `waited` the time until it was its turn.
    pub async fn on_frame(
        &self,
        session: &mut Session,
        frame: Bytes,
        waited: &mut Duration,
    ) -> SessionStep {
        let step = if frame.len() > LARGE_FRAME {
            let _turn = turn(&self.large, waited).await;
            block_in_place(|| session.on_frame(frame))
        } else {
            session.on_frame(frame)
        };
        let SessionStep::Heavy(heavy) = step else { return step };
        self.on_heavy(session, heavy, waited).await
    }

    /// Does work that stretches a password, which takes milliseconds: at most one a core at a time.
    pub async fn on_password<T>(&self, check: impl FnOnce() -> T) -> T {
        let _turn = self.passwords.acquire().await.ok();
        block_in_place(check)
    }

    /// Goes on with a frame whose records expand to much, or whose batches are made anew.
    pub async fn on_heavy(
        &self,
        session: &mut Session,
        heavy: Box<Heavy>,
        waited: &mut Duration,
    ) -> SessionStep {
        let mut step = SessionStep::Heavy(heavy);
        while let SessionStep::Heavy(heavy) = step {
            let turns = if heavy.expands() { &self.heavy } else { &self.anew };
            let _turn = turn(turns, waited).await;
            step = block_in_place(|| session.on_heavy(*heavy));
        }
        step
    }

    /// Puts a batch of a call into the codec of its topic.
    pub async fn in_codec(
        &self,
        batch: CheckedBatch,
        target: &Target,
    ) -> Result<CheckedBatch, String> {
        let _turn = self.anew.acquire().await.ok();
        block_in_place(|| batch.in_codec(target))
    }
}
