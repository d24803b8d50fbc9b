//! Requests about topics or settings whose creation, change or deletion is being committed: their answers depend on the
//! result. Also requests for topics on nodes that are about to register.

use std::collections::VecDeque;

use duramen_protocol::Request;

use super::{Core, Timer};
use crate::event::{ConnectionId, RequestKey};
use crate::session::RequestContext;

#[derive(Debug)]
pub(crate) struct Deferred {
    pub key: RequestKey,
    pub context: RequestContext,
    pub request: Request,
    pub deadline_us: u64,
}

/// Waiting requests, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub queue: VecDeque<Deferred>,
}

impl Pending {
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

impl Core {
    pub(crate) fn forget_undecided(&mut self, connection: ConnectionId) {
        let timers = &mut self.timers;
        self.pending.queue.retain(|deferred| {
            let stays = deferred.key.0 != connection;
            if !stays {
                timers.remove(&(deferred.deadline_us, Timer::Request(deferred.key)));
            }
            stays
        });
    }
}
