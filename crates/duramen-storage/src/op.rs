//! # Room card: op
//!
//! Purpose:    the node's requests to storage, and storage's reports, as plain data.
//! Owns:       [`Op`], [`Done`], the recovered state of a replica.
//! Interface:  the types.
//! Invariants: ops of one replica take effect in the order of their submission. `Done::Persisted` tickets of one
//!             replica come back in the same order, whatever the order in which syncs finish.
//! Never:      behaviour.
//! Tests:      those of the crate.
//! Start at:   [`Op`].

use bytes::Bytes;

pub use crate::entry::{Content, LogEntry, TermRun};
use crate::history::History;

/// One placement of one replica on one node: the Raft peer id. Never 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

/// Topic and partition of a replica. Fixed at its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Topic name; with the partition it names the directory.
    pub topic: String,
    /// The topic's id: two topics of one name have two ids.
    pub topic_id: [u8; 16],
    /// Partition number, from 0.
    pub partition: i32,
}

impl Identity {
    /// Returns the directory of the replica's files, relative to the data directory.
    pub(crate) fn dir(&self) -> String {
        format!("{}-{}", self.topic, self.partition)
    }
}

/// Raft's hard state. `commit` may lag behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The current term.
    pub term: u64,
    /// The peer voted for in `term`; 0 for none.
    pub vote: u64,
    /// The highest index known to be committed.
    pub commit: u64,
}

/// Raft's membership, sorted, with the index of the entry that set it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// The index whose application gave this membership.
    pub applied: u64,
    /// Voters.
    pub voters: Vec<u64>,
    /// Learners.
    pub learners: Vec<u64>,
    /// Voters of the outgoing half of a joint configuration.
    pub voters_outgoing: Vec<u64>,
    /// Learners once the joint configuration is left.
    pub learners_next: Vec<u64>,
    /// True if Raft leaves the joint configuration by itself.
    pub auto_leave: bool,
    /// Number of the latest reassignment that this replica took part in; 0 if the partition was never moved.
    pub move_number: u64,
}

/// One entry to append, payload beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The entry.
    pub entry: LogEntry,
    /// The whole record batch, final bytes, for [`Content::Batch`]; empty otherwise.
    pub payload: Bytes,
}

/// A time in which one set of replicas holds batches for clients; it begins with an Open entry of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stretch {
    /// Term of the entry.
    pub term: u64,
    /// Index of the entry.
    pub index: u64,
}

/// Place of a hold among those of one replica: later stretches come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId {
    /// Stretch in which the batch came.
    pub stretch: Stretch,
    /// Number that orders the holds of the stretch.
    pub number: u64,
}

/// A batch that a replica keeps beside its log, until the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Place among the replica's holds.
    pub id: HoldId,
    /// The whole record batch, as the client sent it.
    pub payload: Bytes,
}

/// One thing the node asks of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Replica whose log the op concerns.
    pub replica: ReplicaId,
    /// Kind of the op.
    pub kind: OpKind,
}

/// Where a log begins that another replica could not give from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The entry before the first.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// End offset of the log at that entry, where a segment begins.
    pub end_offset: i64,
    /// The membership, which may be that of a later index.
    pub conf: ConfState,
    /// Snapshot of the view. The snapshot may hold effects of later entries: its reader must know which.
    pub image: Bytes,
    /// Part of the log before the first entry, if the log is compacted. Storage has received it: [`crate::staging`].
    pub given: Option<Given>,
}

/// The part of a compacted log whose entries cannot be had again, as another replica gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Number that tells this feed from earlier ones.
    pub number: u64,
    /// Last compaction at the other replica: all batches below its offset are as it left them.
    pub compacted: Compacted,
    /// The first offset kept.
    pub log_start: i64,
    /// Term runs of this part, oldest first.
    pub runs: Vec<TermRun>,
    /// Segments, oldest first. Storage learns the content of each only when it arrives.
    pub segments: Vec<SegmentMeta>,
}

/// The kinds of [`Op`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// A new replica, empty: its log starts at index 1, term 1, offset 0. Without voters it is not born yet, and its
    /// log lacks even that: only [`OpKind::Reset`] gives it a beginning. Answered by [`Done::Persisted`] with `ticket`.
    Create {
        /// Comes back in [`Done::Persisted`].
        ticket: u64,
        /// Topic and partition of the replica.
        identity: Identity,
        /// First membership of the replica.
        conf: ConfState,
    },
    /// The log begins anew behind an entry: the replica loses all that it had at once, but not its vote. Durable with
    /// the next [`OpKind::Write`].
    Reset(Box<Beginning>),
    /// One Raft `Ready`: entries to append and hard state to keep. If the first entry's index is
    /// at or below the last stored one, the log is first cut there (a Raft conflict).
    /// Answered by [`Done::Persisted`] with `ticket`.
    Write {
        /// Comes back in [`Done::Persisted`].
        ticket: u64,
        /// Entries, of consecutive indexes.
        appends: Vec<Append>,
        /// New hard state, if it changed.
        hard_state: Option<HardState>,
        /// True if this must be synced now. If not (only `commit` moved), it rides with the next round. Its ticket
        /// then comes back with that of the next `must_sync` write.
        must_sync: bool,
    },
    /// Membership after applying the entry at `conf.applied`.
    Conf {
        /// The new membership.
        conf: ConfState,
    },
    /// A committed Trim was applied: offsets below `log_start` are gone; whole segments below it
    /// are removed.
    Trim {
        /// The first offset kept.
        log_start: i64,
    },
    /// The view's state after applying the entry at `index`: recovery starts from it. Answers
    /// [`Done::WantImage`]; may also come unasked.
    Image {
        /// Index of the last entry that the snapshot contains.
        index: u64,
        /// Snapshot, opaque to storage; versioned by its writer.
        image: Bytes,
    },
    /// A batch to be kept beside the log, through cuts and new beginnings. Answered by [`Done::Held`] once it is on
    /// disk, which may be before the earlier writes of the replica are. All holds of a node take at most an eighth of
    /// the journal at its smallest, since each checkpoint writes those of its replica anew.
    Hold(Hold),
    /// Holds that are not needed any more. Only a hold that was reported, or recovered, may be let go. Nothing is
    /// written for it: a start may find the hold again.
    LetGo(Vec<HoldId>),
    /// A request to sync all of the replica's segments soon, the end of the last one too: a compaction takes them in.
    Settle,
    /// The replica and its files go away for ever.
    Delete,
}

/// Reports of storage to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The op with this ticket, and all earlier entries and hard state of the replica, are on disk. A commit index
    /// that may ride, membership, trims and snapshots may still follow: the entries can restore them.
    Persisted {
        /// Id of the replica.
        replica: ReplicaId,
        /// The ticket of the op.
        ticket: u64,
    },
    /// The batch is on disk, and so are all records of the journal that were submitted before it, of terms and internal
    /// entries among them. Batches of the log before it may not be: only [`Done::Persisted`] speaks of those.
    Held {
        /// Id of the replica.
        replica: ReplicaId,
        /// Place of the hold.
        hold: HoldId,
    },
    /// Storage is about to checkpoint the replica, and asks for its view's snapshot ([`OpKind::Image`]) at the newest
    /// applied index.
    WantImage {
        /// Id of the replica.
        replica: ReplicaId,
    },
    /// Shortage of disk space for which appends must be refused, or `None`. Sent when it changes, and when its
    /// figures change.
    DiskFull(Option<Shortage>),
    /// A segment with reported damage was cut: the damage of the rest is not known.
    Cut {
        /// Id of the replica.
        replica: ReplicaId,
        /// The segment's base offset.
        segment: i64,
    },
    /// Outcome of a repair.
    Mended {
        /// Id of the replica.
        replica: ReplicaId,
        /// The segment's base offset.
        segment: i64,
        /// True if the segment's file was replaced. If false, the repair may be tried again.
        is_done: bool,
    },
    /// Outcome of a compaction ([`crate::compaction`]).
    Compacted {
        /// Id of the replica.
        replica: ReplicaId,
        /// Segments that replaced all below, durable and shown to readers. `None` if nothing has changed: the
        /// compaction may be tried again.
        done: Option<(Compacted, Vec<SegmentMeta>)>,
    },
    /// Outcome of a [`crate::staging::Stage::Put`].
    Put {
        /// Id of the replica.
        replica: ReplicaId,
        /// [`Given::number`].
        number: u64,
        /// Offset after the part. `None` if the part is of no use, and all earlier parts are removed.
        next: Option<i64>,
    },
    /// All that another replica fed of a compacted log is here, durable, and waits for [`OpKind::Reset`].
    Staged {
        /// Id of the replica.
        replica: ReplicaId,
        /// [`Given::number`].
        number: u64,
        /// Segments as they were fed.
        segments: Vec<SegmentMeta>,
    },
}

/// Why appends are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that are free on the data directory's file system.
    pub free_bytes: u64,
    /// Bytes that must be, before appends are taken again.
    pub needed_bytes: u64,
}

/// Facts about a segment that the node needs for retention and rolls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// Offset of its first batch, which names its files.
    pub base_offset: i64,
    /// Raft index of its first batch.
    pub first_index: u64,
    /// Bytes of batches in it.
    pub size: u64,
    /// Largest record timestamp in it; -1 if none.
    pub max_timestamp: i64,
}

/// Extent of a log's compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Index of the Compact entry; 0 if the log was never compacted.
    pub index: u64,
    /// Offset below which one record of each key is left.
    pub below: i64,
    /// Offset below which no tombstones and no transaction markers are left.
    pub tombstones_below: i64,
}

/// A replica as recovery found it: what Raft and the views start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredReplica {
    /// Id of the replica.
    pub replica: ReplicaId,
    /// Topic and partition of the replica.
    pub identity: Identity,
    /// Raft's hard state, `commit` clamped to the last index.
    pub hard_state: HardState,
    /// Raft's membership.
    pub conf: ConfState,
    /// Index before the first of `entries`; the snapshot's index.
    pub prev_index: u64,
    /// The term of `prev_index`.
    pub prev_term: u64,
    /// The end offset at `prev_index`.
    pub prev_end_offset: i64,
    /// All entries after `prev_index`, payload aside.
    pub entries: Vec<LogEntry>,
    /// Term runs of what is kept of the log, oldest first.
    pub term_runs: Vec<TermRun>,
    /// The first offset kept.
    pub log_start: i64,
    /// One past the last offset.
    pub end_offset: i64,
    /// History of the entries up to `prev_index`.
    pub history: History,
    /// Extent of the log's compaction.
    pub compacted: Compacted,
    /// Snapshot of the view at `prev_index`; empty if there never was one.
    pub image: Bytes,
    /// Batches beside the log, in the order of their ids. Some may have been let go before.
    pub holds: Vec<Hold>,
    /// All segments, oldest first; the last is the active one.
    pub segments: Vec<SegmentMeta>,
    /// Damage found below a durable mark, if any: nothing is cut, and nothing may be appended.
    pub damage: Option<String>,
    /// True if the only damage is a lack of room on the disk. Nothing is lost: a start with enough room recovers the
    /// whole log.
    pub lacks_room: bool,
}
