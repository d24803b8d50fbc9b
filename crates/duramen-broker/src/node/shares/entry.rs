//! A share partition on the node that leads it: the progress of its state, and its users.

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use crate::event::{Now, RequestKey};
use crate::limits::{SHARE_AGAIN_US, SHARE_CLOCK_US};
use crate::shares::ShareState;
use crate::shares::partition::SharePartition;

/// Progress of a share partition.
#[derive(Debug)]
pub(super) enum Stage {
    /// The state is being read. Or there was none yet, and it is read again at this time.
    Reading {
        call: Option<u64>,
        again_us: u64,
        /// True if the call asks the group's coordinator to begin the state, for workers.
        is_beginning: bool,
    },
    /// There is no state yet. The group is to start with the first record since some time, which is being looked for.
    Dating { look: u64, state: Arc<ShareState> },
    /// The start is known.
    Known {
        part: Box<SharePartition>,
        state_epoch: i32,
        /// The write on its way to the coordinator.
        writing: Option<u64>,
        /// True once the start is durable.
        is_ready: bool,
        /// True if records are given out in the order of their keys.
        by_key: bool,
    },
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) replica: ReplicaId,
    pub(super) term: u64,
    pub(super) stage: Stage,
    /// The survey of the log that is under way; and the time of the next try after a survey that failed.
    pub(super) survey: Option<u64>,
    pub(super) survey_again_us: u64,
    /// Members whose sessions have the share partition.
    pub(super) members: BTreeSet<Arc<str>>,
    pub(super) waiting: BTreeSet<RequestKey>,
    /// Time until which the share partition stays for workers, who have no sessions.
    pub(super) linger_us: u64,
    pub(super) timer_us: Option<u64>,
}

impl Entry {
    pub(super) fn known(&mut self) -> Option<&mut SharePartition> {
        match &mut self.stage {
            Stage::Known { part, .. } => Some(part),
            Stage::Reading { .. } | Stage::Dating { .. } => None,
        }
    }

    pub(super) fn is_in_use(&self, now: Now) -> bool {
        !self.members.is_empty() || !self.waiting.is_empty() || self.linger_us > now.mono_us
    }

    pub(super) fn due_us(&self, now: Now) -> u64 {
        let due = match &self.stage {
            Stage::Reading { call: None, again_us, .. } => *again_us,
            Stage::Reading { .. } | Stage::Dating { .. } => u64::MAX,
            Stage::Known { part, .. } => {
                let due_ms = part.deadline_ms().filter(|_| !sabotage::is(Bug::DelayNotTimed));
                let wait_ms = due_ms.map(|at| at.saturating_sub(now.wall_ms));
                let wait_us = wait_ms.map(|ms| match u64::try_from(ms) {
                    Ok(ms @ 1..) => ms.saturating_mul(1_000).min(SHARE_CLOCK_US),
                    // The clock is not believed, or was turned back.
                    _ => SHARE_AGAIN_US,
                });
                let clock_us = wait_us.map_or(u64::MAX, |us| now.mono_us.saturating_add(us));
                part.deadline_us().min(clock_us)
            }
        };
        let due = if self.linger_us > 0 { due.min(self.linger_us) } else { due };
        if self.survey_again_us > 0 { due.min(self.survey_again_us) } else { due }
    }
}
