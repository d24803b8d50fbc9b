//! Messages and reads that a group asks its node for, and the results of reads.

use bytes::Bytes;
use raft::eraftpb::Message;

/// Which log a group keeps; the same on all its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupId {
    pub topic_id: [u8; 16],
    pub partition: i32,
}

/// A message for a peer, with the payload of the batches in it, in order.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub message: Message,
    pub payloads: Vec<Bytes>,
    /// True if the message may wait for the next frame, because the peer was told the same before.
    pub can_wait: bool,
}

/// Batches that a peer lacks and that are no longer in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PayloadRead {
    pub peer: u64,
    pub from: i64,
    /// Batches to pass over first.
    pub pass: u64,
    pub end: i64,
    pub bytes: u32,
    pub ticket: u64,
}

/// Result of a read for a follower.
#[derive(Debug)]
pub(crate) struct ReadFor {
    pub peer: u64,
    pub ticket: u64,
    /// The offset that it begins at.
    pub from: i64,
    /// The first batch is the first of its segment.
    pub begins_segment: bool,
    pub batches: Result<Bytes, String>,
}
