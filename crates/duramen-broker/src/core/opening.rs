//! # Room card: opening
//!
//! Purpose:    keep requests that come before the groups with this node as their only voter have a leader.
//! Owns:       those requests, and the groups that they wait for.
//! Interface:  [`Core::hold`], [`Core::note_opened`].
//! Invariants: a request waits until the node is registered and leads the groups with no other voter, or the time for
//!             that is over. Then the node executes the waiting requests in their order.
//! Never:      recovery (see `duramen-storage`), elections of groups with several voters.
//! Tests:      `node/tests/restart.rs`.
//! Start at:   [`Core::hold`].

use std::collections::{BTreeSet, VecDeque};

use duramen_storage::op::ReplicaId;

use super::{Core, Signal, Timer};
use crate::event::RequestKey;
use crate::session::{Prepared, RequestContext};

/// While the groups found on disk elect themselves, requests are kept.
#[derive(Debug, Default)]
pub(crate) struct Opening {
    pub held: VecDeque<(RequestKey, RequestContext, Box<Prepared>)>,
    pub awaited: BTreeSet<ReplicaId>,
}

impl Core {
    /// Keeps a request while the node opens; hands it back once the node is open.
    pub(crate) fn hold(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Box<Prepared>,
    ) -> Option<(RequestContext, Box<Prepared>)> {
        let Some(opening) = &mut self.opening else { return Some((context, request)) };
        opening.held.push_back((key, context, request));
        None
    }

    pub(crate) fn note_opened(&mut self, replica: ReplicaId) {
        let Some(opening) = &mut self.opening else { return };
        opening.awaited.remove(&replica);
        if self.is_registered && opening.awaited.is_empty() {
            self.finish_opening();
        }
    }

    pub(crate) fn finish_opening(&mut self) {
        let Some(opening) = self.opening.take() else { return };
        self.timers.retain(|(_, timer)| *timer != Timer::Opened);
        for (key, context, request) in opening.held {
            self.signals.push_back(Signal::Judge { key, context, request });
        }
    }
}
