//! # Room card: certainty
//!
//! Purpose:    leadership checks: a leader that was cut off or stood still may have a successor unknown to it.
//! Owns:       what waits for the checks of each replica here.
//! Interface:  [`Core::when_sure`] begins a check; [`Core::settled`] says what goes on after a turn of the replica.
//! Invariants: nothing that waits goes on before the check is done, or the replica leads no more.
//! Never:      which requests need a check (see `turn/routing.rs`), the check itself (see `raft/confirming.rs`).
//! Tests:      `node/tests/leaders.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Core::when_sure`].

use std::collections::BTreeMap;

use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::ReplicaId;

use super::{Core, mark};
use crate::event::RequestKey;
use crate::raft::{Group, Unsure};
use crate::shares::coordinator as shares;
use crate::transactions::coordinator as transactions;

/// Next step after a leadership check.
#[derive(Debug)]
pub(crate) enum Then {
    /// A parked request is served, here or by another node.
    Serve(RequestKey),
    /// A coordinator of transactions answers a client.
    Reply { key: RequestKey, response: Box<Response> },
    /// A coordinator of transactions answers whether partitions are in a transaction.
    Judged(transactions::Asker, ErrorCode),
    /// A coordinator of share groups' states answers.
    ShareState(shares::Asker, shares::Answer),
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Certainty {
    by_replica: BTreeMap<ReplicaId, Unsure<Then>>,
}

impl Core {
    /// Keeps a step until it is certain that a replica leads. Hands the step back if no check is needed, because the
    /// replica has no followers or does not lead.
    pub(crate) fn when_sure(&mut self, replica: ReplicaId, then: Then) -> Option<Then> {
        let Some(group) = self.group(replica) else { return Some(then) };
        if group.is_alone() || !group.is_serving() {
            return Some(then);
        }
        let doubt = if replica == self.controller.group.id() {
            self.is_controller_dirty = true;
            self.controller.group.doubt()
        } else {
            let Some(partition) = self.partitions.get_mut(&replica) else { return Some(then) };
            mark(&mut self.dirty, partition);
            partition.group.doubt()
        };
        self.certainty.by_replica.entry(replica).or_default().push(doubt, then);
        None
    }

    /// Takes the steps that waited for a replica's leadership check, once the check is done or the replica leads no
    /// more; each with whether the replica led for certain.
    pub(crate) fn settled(&mut self, replica: ReplicaId) -> Vec<(bool, Then)> {
        let Some(mut waiting) = self.certainty.by_replica.remove(&replica) else {
            return Vec::new();
        };
        // A replica that is gone leads no more.
        let group = self.group(replica);
        let led = |doubt| group.map_or(Some(false), |group| group.led_at(doubt));
        let settled = waiting.settle(led);
        if !waiting.is_empty() {
            self.certainty.by_replica.insert(replica, waiting);
        }
        settled
    }

    /// Checks that only leaders are checked.
    pub(crate) fn inspect_certainty(&self) {
        debug_assert!(
            self.certainty.by_replica.iter().all(|(replica, waiting)| {
                !waiting.is_empty() && self.group(*replica).is_some_and(Group::is_serving)
            }),
            "a step waits for the check of a replica that leads"
        );
    }
}
