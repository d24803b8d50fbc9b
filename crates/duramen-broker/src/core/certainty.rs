//! Requests that ask for the latest state, or are refused because of it. Where there are followers, a leader that was
//! cut off or stood still may have a successor unknown to it. So it makes a leadership check before it answers.

use std::collections::BTreeMap;

use duramen_protocol::Request;
use duramen_storage::op::ReplicaId;

use super::Core;
use crate::event::{ConnectionId, RequestKey};
use crate::raft::Doubt;
use crate::session::RequestContext;

#[derive(Debug)]
pub(crate) struct Doubtful {
    pub context: RequestContext,
    pub request: Request,
    /// Replicas whose leadership check is still open.
    pub outstanding: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Certainty {
    pub requests: BTreeMap<RequestKey, Doubtful>,
    pub by_replica: BTreeMap<ReplicaId, Vec<(Doubt, RequestKey)>>,
}

impl Certainty {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl Core {
    /// Starts a leadership check at a replica, if it seems to lead followers.
    pub(crate) fn doubt_that_leads(&mut self, replica: ReplicaId) -> Option<Doubt> {
        let group = self.group(replica)?;
        if group.is_alone() || !group.is_serving() {
            return None;
        }
        if replica == self.controller.group.id() {
            self.is_controller_dirty = true;
            return Some(self.controller.group.doubt());
        }
        let partition = self.partitions.get_mut(&replica)?;
        super::mark(&mut self.dirty, partition);
        Some(partition.group.doubt())
    }

    pub(crate) fn forget_doubts(&mut self, connection: ConnectionId) {
        self.certainty.requests.retain(|key, _| key.0 != connection);
        self.certainty.by_replica.retain(|_, waiting| {
            waiting.retain(|(_, key)| key.0 != connection);
            !waiting.is_empty()
        });
    }
}
