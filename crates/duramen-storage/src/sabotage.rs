//! # Room card: sabotage
//!
//! Purpose:    planted bugs in code that no lying disk can reach, which prove that the simulator finds such bugs.
//! Owns:       the list of bugs in storage and in the node, and the one that this thread has.
//! Interface:  [`Bug`], [`plant`], [`is`].
//! Invariants: without the feature `sabotage`, which only tests have, [`is`] is `false` at compile time. With the
//!             feature, [`is`] is `false` until the simulator plants a bug in this thread.
//! Never:      behaviour: each bug is one line in the code that has it.
//! Tests:      `duramen-sim/tests/planted.rs`.
//! Start at:   [`Bug`].

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Recovery replays what a recycled extent still holds of its last use.
    OldGenerationReplayed,
    /// A bad round in the middle of the journal ends it, like a torn one at its end.
    RotTakenForTear,
    /// A file of the journal that is missing, or short, is taken for one that was never used.
    LostExtentTaken,
    /// Recovery does not look how far the journal had come.
    MarkIgnored,
    /// A directory that no record names is removed, whatever it holds.
    StrangerRemoved,
    /// The journal's last round is not made durable before it is believed.
    LastRoundNotRewritten,
    /// Bytes behind the last descriptor stay in the segment.
    TailNotCut,
    /// Payload that only the journal is sure to have is not written again.
    PayloadNotRewritten,
    /// Replay forgets that the log was cut.
    TruncateNotReplayed,
    /// Replay forgets Raft's hard state.
    HardStateNotReplayed,
    /// Replay forgets snapshots.
    ImageDropped,
    /// Bad payload below the synced mark is cut like a torn tail.
    SyncedMarkIgnored,
    /// A ticket does not wait for the sync of its payload.
    PayloadSyncNotAwaited,
    /// The directory of a deleted replica keeps its name.
    DeletedNotRenamed,
    /// A long topic's name makes names of directories that no file system takes.
    LongNamesKept,
    /// A restart of the node forgets what producers had sent, in snapshot and log alike.
    DedupNotRebuilt,
    /// A produce is answered before its batch is on disk.
    AckedBeforePersisted,
    /// A fetch is told of, and may get, what is not committed.
    UncommittedShown,
    /// A follower shows what it has, rather than what it knows to be committed.
    FollowerShowsAll,
    /// A batch that does not follow its producer's last one is appended.
    SequenceGapAccepted,
    /// Retention believes a wall clock that has leapt.
    ClockLeapBelieved,
    /// Timestamps of a node follow a wall clock that has leapt back.
    LeapBackFollowed,
    /// A partition's snapshot leaves its producers out.
    ImageWithoutProducers,
    /// A deleted topic's replicas stay in storage.
    ReplicaNotDeleted,
    /// A repeated batch is answered with an offset that is not the first append's.
    DuplicateOffsetWrong,
    /// A commit does not touch the fetch sessions that watch the partition.
    SessionNotTouched,
    /// Appends are taken though the disk is full.
    FullDiskIgnored,
    /// A trim is answered, and storage never hears of it.
    TrimNotStored,
    /// A commit of offsets is answered before its record is on disk.
    CommittedBeforeStored,
    /// The coordinator of groups leaves out the end of its log when it loads.
    LoadEndsEarly,
    /// The log of groups is trimmed before all that it says was said again.
    RenewalCutShort,
    /// A replica votes and acknowledges before its disk has what it says.
    SpokenBeforeSync,
    /// A coordinator of transactions executes what an older connection of a producer still brings.
    LateRequestTaken,
    /// A transaction begins before the last one of its producer is marked everywhere.
    BegunBeforeMarked,
    /// A transaction counts as over once its end is decided.
    CompleteBeforeMarked,
    /// A producer whose transaction is aborted for it keeps its epoch.
    FencedWithoutEpoch,
    /// The first batch of a transaction is appended without asking whether it is part of it.
    TransactionUnverified,
    /// A leader believes a coordinator's answer from before a marker after the marker.
    VoidAnswerTaken,
    /// A marker that comes late ends whatever transaction is open.
    LateMarkerTaken,
    /// A reader of committed records is shown what an open transaction wrote.
    UnstableShown,
    /// A reader of committed records is not told which of them were aborted.
    AbortedNotTold,
    /// A partition remembers batches of producers though the log was cut before them.
    CutKeepsProducers,
    /// A request that waits for an entry does not fail when another entry takes its place.
    CutKeepsWaiting,
    /// A leader answers before it has applied an entry of its own term.
    ServesTooEarly,
    /// A block of producer ids is used before it is committed.
    IdsBeforeCommit,
    /// Groups are coordinated until the end of the turn in which another leader was heard of.
    CoordinatorUnaware,
    /// A leader takes proposed entries for part of the log though they were cut before storage got them.
    UnstoredForgotten,
    /// A leader answers what is the latest without making sure that it still leads.
    StaleLeaderAnswers,
    /// A new leader puts its first batch where its own last append was, not where its log ends.
    StaleSegment,
    /// Internal entries are forgotten with the others.
    PastEntryForgotten,
    /// Checkpoints leave out the internal entries of the past.
    HistoryNotStored,
    /// An entry that is made again from its segment is given the leader's term.
    TermNotRestored,
    /// A batch that is made again from its segment does not say that it begins one.
    SegmentStartNotRestored,
    /// A replica that begins anew gets an empty snapshot.
    SnapshotWithoutImage,
    /// A snapshot claims to hold an entry more than it does.
    ImageClaimsMore,
    /// A directory that was wiped is the replica of metadata that its predecessor was.
    WipedVotes,
    /// Entries that a snapshot holds already change it once more.
    ImageAppliedTwice,
    /// A replica that is added votes before it has anything.
    PromotedAtOnce,
    /// A replica begins with the voters that its partition has now, not with those that its group began with.
    BornAsPlaced,
    /// A quiesced group does not wake when its leader's node falls silent.
    SleepsOn,
    /// A leader of a quiesced group counts followers whose nodes do not answer.
    SilentCounted,
    /// A leader that steps down stays among the leaders of quiesced groups.
    StaysInSet,
    /// A node that was taken out goes on voting on the metadata.
    LeaverVotes,
    /// A node whose metadata begins anew keeps replicas that are not placed on it any more.
    SurplusKept,
    /// Members are told what they own before it is stored.
    AssignedBeforeStored,
    /// A coordinator accepts requests of members of older generations.
    OldGenerationTaken,
    /// A coordinator that loads a group begins to count its generations anew.
    GenerationForgotten,
    /// Members of the consumer protocol are told what was decided before it is stored.
    ToldBeforeStored,
    /// A member of the consumer protocol is given what another one has not given up.
    GivenBeforeFreed,
    /// A commit of an earlier member epoch is taken.
    EarlierEpochTaken,
    /// A group that becomes one of the consumer protocol does not know what its members have.
    UpgradedWithNothing,
    /// … nor what they are about to give up.
    GivingUpForgotten,
    /// A classic member that joins a group of the consumer protocol counts as one that has nothing any more.
    ClassicHasNothing,
    /// A group that becomes one of the classic protocol counts its generations anew.
    DowngradedAnew,
    /// A decision of a share group's consumer is answered before it is kept.
    DecidedBeforeKept,
    /// A new leader knows where a share group starts, and nothing of what is kept behind that.
    KeptForgotten,
    /// A former holder of a share group's record acknowledges it, though another member holds it by now.
    FormerHolderDecides,
    /// When a record of a share group is done with, another one of its key counts as that.
    WrongOfKeyFinished,
    /// Where a share group starts passes what was given back.
    StartPassesAvailable,
    /// A share group that reads what is committed is given what an open transaction wrote.
    OpenIsShared,
    /// A record is given out before its time.
    DelayIgnored,
    /// A record whose end has come is given out.
    EndsIgnored,
    /// Workers get the records of the first queue until it has none.
    TurnsForgotten,
    /// A lease that ended is settled.
    FormerLeaseSettles,
    /// Nobody is told when the time of a record has come.
    DelayNotTimed,
    /// A coordinator answers a write of a share group's state before the write is in the log.
    ShareKeptEarly,
    /// A snapshot of a share group's state has the start alone.
    ShareSnapshotBare,
    /// A share group that reads what is committed is given what an aborted transaction wrote.
    AbortedIsShared,
    /// A change of settings is answered before it is kept.
    AlteredBeforeKept,
    /// Replicas that are there already do not take up what their topic's settings are now.
    SettingsNotTakenUp,
    /// Records are kept for half of the time that a topic's setting says.
    RetentionHalved,
    /// A coordinator accepts a share group's write from a leader of an earlier leader epoch.
    EarlierLeaderTaken,
    /// A record of a share group comes again however often it was given out.
    LimitIgnored,
    /// A record counts as a dead letter before its copy is kept.
    BuriedBeforeKept,
    /// A lock of a share group's record ends as soon as somebody else looks for records.
    LockEndsEarly,
    /// A node repairs a damaged segment with unchecked bytes of another node.
    MendUnchecked,
    /// A repaired segment takes its name before it is on disk.
    MendNotSynced,
    /// Compacted segments take the place of others before they are on disk.
    CompactedNotSynced,
    /// Compaction drops tombstones as soon as it meets them.
    TombstonesGoEarly,
    /// Compaction leaves the oldest record of a key.
    OldestStays,
    /// Readers are shown compacted segments before it is durable that they are the log's.
    CompactedShownEarly,
    /// The files of a feed are installed before they are on disk.
    StagedNotSynced,
    /// A replica begins anew without what is kept of the log before.
    GivenForgotten,
    /// A feed goes on with batches that another compaction left.
    GivenMixed,
    /// A batch behind a compaction to the log's end goes on in the last segment.
    EndGoesOn,
    /// A hold is reported before its round is on disk.
    HeldBeforeSync,
    /// A checkpoint frees the rounds with a replica's holds, and does not write them anew.
    CheckpointForgetsHeld,
    /// A log that begins anew loses the holds of the replica.
    ResetForgetsHeld,
    /// Replay passes over holds.
    HeldNotReplayed,
    /// Replay appends a held batch with the header that it was held with.
    HeldHeaderKept,
    /// A member gives a new leader its holds before the leader's term is on its disk.
    SealBeforeSync,
    /// A member gives a new leader its holds and goes on in its own term.
    SealForgotten,
    /// A former leader's entries are cut, and not held.
    CutForgetsHeld,
    /// A batch that is held in an earlier stretch counts as held in a later one.
    HeldInPlace,
    /// A hold goes when its batch is appended, committed or not.
    HeldGoneAtAppend,
    /// Holds of a stretch go when the next Open or Close is appended, committed or not.
    SweptAtAppend,
    /// A follower holds a batch, and not the one before it.
    HeldWithGap,
    /// A follower makes payload that a letter left out from a batch with the same sequences, and does not compare it.
    RebuiltUnchecked,
    /// The batch before one that is held may be held in another stretch.
    GapAcrossStretches,
    /// A new leader serves before it has taken over what was held.
    OpensTooEarly,
    /// A leader counts before its Open is applied, and a follower holds without it.
    NoBarrier,
    /// A leader counts in a stretch after it has proposed the next one.
    OldStretchCounts,
    /// A new leader takes over what it holds itself, member of the stretch or not.
    AskedAnyone,
    /// A new leader appends what was held, though its log has it.
    RecoveredTwice,
    /// A new leader appends what was held in the reversed order.
    RecoveredReversed,
    /// A former leader holds batches in its own stretch.
    ExLeaderHolds,
    /// A leadership check does not wait for what its leader had appended.
    TailForgotten,
    /// A batch that may be held is refused for good while its stretch is open.
    RefusedTooEarly,
    /// Voters change while a stretch is open.
    MembersChangeOpen,
    /// The image of a partition does not name its stretch.
    ImageWithoutStretch,
    /// Producers are forgotten in the stretch in which their batches may be held.
    ForgottenInStretch,
    /// A leader appends batches that others hold in a stretch that is over.
    AdoptedLate,
    /// A log that is compacted to its end begins after the Compact entry, which a replica that is given it then lacks.
    EndTakesEntry,
    /// A guard is judged by what is committed, not by what was appended.
    GuardOfCommitted,
    /// A token is judged by the fence that is committed, not by the one that was proposed since.
    FenceOfCommitted,
    /// A refusal by a guard is told by a leader that may have a successor.
    RefusedUncertain,
    /// A partition's snapshot leaves fence and pointer out.
    ImageWithoutControls,
    /// A truncation without a pointer removes the pointer that an earlier one left.
    PointerLost,
    /// A block of the queue index is believed though its CRC does not fit.
    TableBlockUnchecked,
    /// The filter of a table of the queue index holds only the first half of its names.
    TableFilterHalf,
    /// A merge of tables of the queue index drops each queue's last posting.
    MergeDropsPosting,
    /// A merge of tables of the queue index drops facts.
    MergeDropsFacts,
    /// A table of the queue index takes its name before it is on disk.
    TableNotSynced,
    /// A read of a queue does not wait for the index of what is committed.
    CommittedTakenForIndexed,
    /// A read of a queue is registered after the look at it.
    WaitsAfterLook,
    /// A list of queues that is too long is cut, and does not stand for all of them.
    TouchedCut,
    /// A leader of a queue topic does not note which queues its appends are of.
    FreshForgotten,
    /// A guarded append that is sent again is refused, and its first attempt is not looked for.
    RepeatNotSought,
    /// A new leader of a queue topic does not wait for the index of what is older than its term.
    FreshFromNothing,
    /// The queue index passes a part of the log that cannot be read.
    CursorPassesDamage,
    /// A part of the queue index is forgotten if its table fails to be written.
    FlushLost,
    /// A part of the queue index is written to a disk that is almost full.
    FlushIgnoresRoom,
    /// A table of the queue index that was not finished stays on the disk.
    UnfinishedTableStays,
    /// A table of another version stops the queue index.
    UnknownTableStops,
    /// A log that begins anew keeps its open queue index.
    IndexOutlivesLog,
    /// A table of the queue index claims a range that is too long.
    TableTooFar,
    /// A table of the queue index is kept although the log ends before it.
    TableAboveEndKept,
    /// The term of a table of the queue index is not compared with the log's.
    TableTermUnchecked,
    /// A queue index that is opened does not know what the log took away before its tables ended.
    MasksNotLoaded,
    /// A merge of tables of the queue index drops what they mask.
    MergeDropsMasks,
    /// An index answers with masks that are newer than its facts.
    EditsBeforeMasks,
    /// Readers of a queue topic see what is committed, indexed or not.
    ShownUnindexed,
    /// A new leader of a queue topic shows records before its index has what was acknowledged before.
    LeaderShowsEarly,
    /// A consumer of nothing but deleted records gets no batch to go on behind.
    MaskedTailBare,
    /// A deletion is acknowledged before readers know of it.
    EditNotAwaited,
    /// A leader deletes what a client names, whatever queue it is of.
    EditUnverified,
    /// The old content of a replaced element stays where readers see it.
    ReplacedStays,
    /// A rewrite withdraws by one entry, and appends by another one.
    RewriteInTwo,
    /// A log of queues loses its first records without saying again what they said of fences and trims.
    FenceNotRestated,
    /// A fence of a queue is judged without the queue's own.
    QueueFenceIgnored,
    /// A rewrite withdraws an element before the cut whose content is behind it.
    CutByOffset,
    /// An erasure does not wait for the queue index.
    EraseUnindexed,
    /// An erasure takes records out without a look at their queue.
    EraseUnchecked,
    /// An erasure takes records out that only later statements took away.
    EraseTooMuch,
    /// An erasure takes statements together with what they took away.
    StatementsGoEarly,
    /// An erasure takes records that expire later.
    ExpiredTooSoon,
    /// An erasure takes the last element of a queue, because it has expired.
    ExpiredLastGoes,
    /// A node takes the kind of a log that is to be compacted from what it knows of the topic's settings.
    EraseOfSettings,
    /// Tables keep the names of queues of which nothing is left.
    TablesNotRemade,
    /// A request that waits is answered by the rules of the time when it came.
    ParkedNotJudged,
    /// An incremental fetch is answered without a look at the rules.
    SessionNotJudged,
    /// With one rule of a resource and a client, the others go, too.
    RemovalForgetsOthers,
    /// A node that has lost the leader of the metadata still lets users in.
    DoubtIgnored,
    /// A connection lives on though its user is gone, or has another password.
    RemovedUserStays,
    /// A denial does not count where a rule for a longer name allows.
    LongerNameWins,
    /// A request that another node forwarded is not judged.
    ForwardedNotJudged,
}

#[cfg(feature = "sabotage")]
mod planted {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Tells whether `bug` is planted in this thread.
    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "sabotage")]
pub use planted::{is, plant};

/// Returns false: without the feature there are no bugs.
#[cfg(not(feature = "sabotage"))]
#[inline]
pub const fn is(_: Bug) -> bool {
    false
}
