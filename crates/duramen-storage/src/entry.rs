//! An entry of a replica's log, and a run of entries of one term, as data.

use bytes::Bytes;

use crate::Descriptor;

/// Content of one Raft entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A record batch: it takes `descriptor.count` offsets. Storage keeps the payload in segments.
    Batch(Descriptor),
    /// An entry of Raft's or of ours (no-op, membership change, Trim, …): no offset, not in the
    /// segments. The bytes are opaque to storage.
    Internal(Bytes),
}

/// One entry of a replica's log, without payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Raft index.
    pub index: u64,
    /// Raft term.
    pub term: u64,
    /// Content of the entry.
    pub content: Content,
}

/// A run of log entries of one term, for `OffsetForLeaderEpoch` and Raft's `term(index)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// The term.
    pub term: u64,
    /// First index of the term.
    pub first_index: u64,
    /// End offset of the log when the term began.
    pub start_offset: i64,
}
