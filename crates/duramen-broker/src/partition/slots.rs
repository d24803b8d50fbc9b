//! Waiters for what a partition proposes, and their results.

use duramen_protocol::ErrorCode;
use duramen_storage::op::ReplicaId;

use crate::event::RequestKey;

/// Waiter for an append or another proposal of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A part of a parked request.
    Request { key: RequestKey, topic: usize, partition: usize },
    /// The coordinator that keeps its state in this partition.
    Coordinator { replica: ReplicaId, ticket: u64 },
    /// Sender of a marker that ends a producer's transaction in this partition.
    Marker { replica: ReplicaId, producer_id: i64, commits: bool, asker: MarkAsker },
    /// Sender of a batch that a node has made.
    Delivery(Sender),
}

/// Node that has made a batch, and the number of the delivery there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// This node.
    Own { nonce: u64 },
    /// Another node.
    Node { broker_id: i32, nonce: u64 },
}

/// Sender of a transaction marker to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkAsker {
    /// This node, on behalf of a coordinator here.
    Own { nonce: u64 },
    /// Another node, on behalf of one there.
    Node { broker_id: i32, nonce: u64 },
    /// An administrator: part of a parked request.
    Request { key: RequestKey, at: usize },
}

/// Result of a [`Slot`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub slot: Slot,
    pub error: ErrorCode,
    /// The first offset of the append, if it was one.
    pub base_offset: i64,
    /// The first offset kept.
    pub log_start: i64,
}

/// Condition of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Nothing.
    None,
    /// This replica's disk.
    Own,
    /// The quorum.
    All,
}

/// A waiter for an entry, and the first offset of its append or -1.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) slot: Slot,
    pub(super) base_offset: i64,
}
