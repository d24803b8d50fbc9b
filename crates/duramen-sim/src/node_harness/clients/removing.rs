//! An operator who takes a node out, as `duramen cluster remove` does. Its replicas go to other nodes, and then it is
//! unregistered.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsResponse, MetadataResponse, UnregisterBrokerRequest,
    UnregisterBrokerResponse,
};

use super::super::oracle::Place;
use super::answers::expect_one_of;
use super::requests::{self, Asking};
use crate::failure::Failure;
use crate::prng::Prng;
use crate::trace::tell;

/// Error codes of an answer to a client that unregisters a node. `INVALID_REQUEST`: the node still has replicas.
const CODES: [ErrorCode; 5] = [
    ErrorCode::None,
    ErrorCode::InvalidRequest,
    ErrorCode::BrokerIdNotRegistered,
    ErrorCode::RequestTimedOut,
    ErrorCode::NotController,
];
const MOVE_CODES: [ErrorCode; 6] = [
    ErrorCode::None,
    ErrorCode::UnknownTopicOrPartition,
    ErrorCode::NoReassignmentInProgress,
    ErrorCode::InvalidReplicaAssignment,
    ErrorCode::RequestTimedOut,
    ErrorCode::NotController,
];
/// Least number of replicas of a partition, if it had as many before.
const REPLICAS: usize = 3;

/// A question of the operator's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// Request for the place of each replica.
    Look,
    /// A move of a partition, which is judged like any other.
    Move,
    Unregister,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Remover {
    node: i32,
    /// All nodes there are, this one included.
    nodes: i32,
    /// Times that it may do something before it begins.
    patience: u64,
    /// The node was seen to belong to the cluster.
    was_there: bool,
    /// Partitions that have to move, and the nodes that they move to.
    to_move: Vec<(Place, Vec<i32>)>,
    /// True if nothing was on the node at the last look.
    is_bare: bool,
    pub(super) is_done: bool,
}

impl Remover {
    pub(super) fn new(node: i32, nodes: i32, patience: u64) -> Self {
        Self { node, nodes, patience, ..Self::default() }
    }

    /// Returns the node that nothing is to be moved to.
    pub(super) fn avoids(&self) -> Option<i32> {
        (self.patience == 0).then_some(self.node)
    }

    /// Tells whether the remover is in the middle of its work.
    pub(super) fn is_at_it(&self) -> bool {
        self.patience == 0 && !self.is_done
    }

    pub(super) fn choose(&mut self, work: &mut Prng, last_phase: bool) -> Option<Asking<Question>> {
        if !last_phase {
            self.patience = self.patience.saturating_sub(1);
        }
        if !self.is_at_it() || !work.chance(300) {
            return None;
        }
        if let Some((place, brokers)) = self.to_move.pop() {
            return Some((Question::Move, requests::move_to(&place, Some(brokers)), 1));
        }
        if std::mem::take(&mut self.is_bare) {
            let request = UnregisterBrokerRequest { broker_id: self.node };
            return Some((Question::Unregister, request.into(), 0));
        }
        Some((Question::Look, requests::metadata_of_all(), 12))
    }

    /// Takes the place of each replica, as a node tells it that may be behind.
    pub(super) fn on_overview(&mut self, it: &MetadataResponse) {
        self.was_there |= it.brokers.iter().any(|broker| broker.node_id == self.node);
        self.to_move.clear();
        for topic in &it.topics {
            for partition in &topic.partitions {
                let before = &partition.replica_nodes;
                if !before.contains(&self.node) {
                    continue;
                }
                let mut after = before.clone();
                after.retain(|id| *id != self.node);
                let others = (1..=self.nodes).filter(|id| !before.contains(id));
                let missing = before.len().min(REPLICAS).saturating_sub(after.len());
                after.extend(others.take(missing));
                let name = topic.name.clone().unwrap_or_default();
                self.to_move.push(((name, partition.partition_index), after));
            }
        }
        self.is_bare = self.was_there && self.to_move.is_empty();
    }

    pub(super) fn on_unregistered(&mut self, it: &UnregisterBrokerResponse) -> Result<(), Failure> {
        let code = it.error_code;
        tell(|| format!("  unregistered {}: {code} {:?}", self.node, it.error_message));
        expect_one_of(code, &CODES, "UnregisterBroker")?;
        // An earlier request may have been carried out, and its answer lost.
        let is_out = [ErrorCode::None, ErrorCode::BrokerIdNotRegistered];
        self.is_done |= is_out.iter().any(|it| it.code() == code);
        Ok(())
    }
}

/// Judges the answer to a move, whoever asked for it.
pub(super) fn on_moved(response: &AlterPartitionReassignmentsResponse) -> Result<(), Failure> {
    let parts = response.responses.iter().flat_map(|topic| &topic.partitions);
    let mut codes = parts.map(|part| part.error_code).chain([response.error_code]);
    codes.try_for_each(|code| expect_one_of(code, &MOVE_CODES, "a move"))
}
