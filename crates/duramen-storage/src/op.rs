//! # Room card: op
//!
//! Purpose:    what the node asks of storage, and what storage tells it, as plain data.
//! Owns:       [`Op`], [`Done`], the recovered state of a replica.
//! Interface:  all of it.
//! Invariants: ops of one replica take effect in the order submitted; `Done::Persisted` tickets of
//!             one replica come back in that order too, whatever order the syncs finish in.
//! Never:      behaviour.
//! Tests:      those of the crate.
//! Start at:   [`Op`].

use bytes::Bytes;

use crate::Descriptor;
use crate::history::History;

/// One placement of one replica on one node: the Raft peer id. Never 0, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

/// What a replica is a replica of. Fixed at its creation.
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
    /// The directory of its files, relative to the data directory.
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
    /// Whether the joint configuration is left by itself.
    pub auto_leave: bool,
    /// The number of the latest move that had a part in it; 0 if the partition was never moved.
    pub move_number: u64,
}

/// What one Raft index holds.
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
    /// What it holds.
    pub content: Content,
}

/// One entry to append, payload beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The entry.
    pub entry: LogEntry,
    /// The whole record batch, final bytes, for [`Content::Batch`]; empty otherwise.
    pub payload: Bytes,
}

/// One thing the node asks of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Whose log it concerns.
    pub replica: ReplicaId,
    /// What to do.
    pub kind: OpKind,
}

/// Where a log begins that another replica could not give from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The entry before the first.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The log's end offset there: a segment begins.
    pub end_offset: i64,
    /// The membership, which may be that of a later index.
    pub conf: ConfState,
    /// The view's image. It may hold what later entries say: its reader must know which.
    pub image: Bytes,
    /// What is kept of the log before the first entry, if it is compacted. Storage has been given it: [`crate::staging`].
    pub given: Option<Given>,
}

/// The part of a compacted log whose entries cannot be had again, as another replica gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// By this it is told from what was given before.
    pub number: u64,
    /// What the other replica has done: all below is as this left it.
    pub compacted: Compacted,
    /// The first offset kept.
    pub log_start: i64,
    /// The term runs of it, oldest first.
    pub runs: Vec<TermRun>,
    /// Its segments, oldest first. What they are to hold is not known before it is there.
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
        /// What it is a replica of.
        identity: Identity,
        /// Its first membership.
        conf: ConfState,
    },
    /// The log begins anew behind an entry: all that the replica had is gone at once, its vote aside. Durable with the
    /// next [`OpKind::Write`].
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
        /// Whether this must be synced now. If not (only `commit` moved), it rides with the next
        /// round, and its ticket comes back with that of the next `must_sync` write.
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
        /// The last entry the image contains.
        index: u64,
        /// The image, opaque to storage; versioned by its writer.
        image: Bytes,
    },
    /// All that the replica's segments have is to rest on the medium soon, the last one's end too: a compaction takes it in.
    Settle,
    /// The replica and its files go away for ever.
    Delete,
}

/// What storage tells the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The op with this ticket, and all the entries and hard state of the replica before it, are
    /// on disk (a commit index that may ride, membership, trims and images may still follow: they
    /// can be had again from the entries).
    Persisted {
        /// Whose.
        replica: ReplicaId,
        /// The ticket of the op.
        ticket: u64,
    },
    /// Storage is about to checkpoint the replica and wants its view's image
    /// ([`OpKind::Image`]) at the newest applied index.
    WantImage {
        /// Whose.
        replica: ReplicaId,
    },
    /// Whether appends must be refused for want of disk space: sent when it changes, and when other figures are true.
    DiskFull(Option<Shortage>),
    /// A segment that was told to be damaged is cut: what is left of it is not known to be.
    Cut {
        /// Whose.
        replica: ReplicaId,
        /// The segment's base offset.
        segment: i64,
    },
    /// What became of a segment that was to be mended.
    Mended {
        /// Whose.
        replica: ReplicaId,
        /// The segment's base offset.
        segment: i64,
        /// Its file was replaced. Else it was not, and may be tried again.
        is_done: bool,
    },
    /// What became of a compaction ([`crate::compaction`]).
    Compacted {
        /// Whose.
        replica: ReplicaId,
        /// The segments that took the place of all below, durable and shown to readers. `None` if nothing has changed: it
        /// may be tried again.
        done: Option<(Compacted, Vec<SegmentMeta>)>,
    },
    /// What became of a [`crate::staging::Stage::Put`].
    Put {
        /// Whose.
        replica: ReplicaId,
        /// [`Given::number`].
        number: u64,
        /// The offset after it. `None` if it is of no use, and all that was put before is gone.
        next: Option<i64>,
    },
    /// All that another replica gave of a compacted log is here, durable, and waits for [`OpKind::Reset`].
    Staged {
        /// Whose.
        replica: ReplicaId,
        /// [`Given::number`].
        number: u64,
        /// As its segments are.
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

/// A run of log entries of one term, for `OffsetForLeaderEpoch` and Raft's `term(index)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// The term.
    pub term: u64,
    /// Its first index.
    pub first_index: u64,
    /// The log's end offset when the term began.
    pub start_offset: i64,
}

/// What the node needs to know of a segment: for retention and rolls.
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

/// How far a log is compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// The entry that decided it; 0 if it never was.
    pub index: u64,
    /// Below this offset one record of each key is left.
    pub below: i64,
    /// Below this one no tombstones are left, and no markers of transactions.
    pub tombstones_below: i64,
}

/// A replica as recovery found it: what Raft and the views start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredReplica {
    /// Who it is.
    pub replica: ReplicaId,
    /// What it is a replica of.
    pub identity: Identity,
    /// Raft's hard state, `commit` clamped to the last index.
    pub hard_state: HardState,
    /// Raft's membership.
    pub conf: ConfState,
    /// The index before the first of `entries`; it is the image's index.
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
    /// What is remembered of entries up to `prev_index`.
    pub history: History,
    /// How far it is compacted.
    pub compacted: Compacted,
    /// The view's image at `prev_index`; empty if there never was one.
    pub image: Bytes,
    /// All segments, oldest first; the last is the active one.
    pub segments: Vec<SegmentMeta>,
    /// Damage found below a durable mark, if any: nothing is cut, and nothing may be appended.
    pub damage: Option<String>,
    /// That is only for want of room on the disk: nothing is gone, and a start that finds room finds it whole.
    pub lacks_room: bool,
}
