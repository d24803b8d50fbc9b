//! # Room card: planted
//!
//! Purpose:    bugs on purpose: a simulator that does not find them is no simulator.
//! Owns:       the list of planted bugs, and where each one is planted.
//! Interface:  [`Bug`], [`BUGS`]; `scenario::find` runs seeds with one.
//! Invariants: none of them can be in a production build.
//! Never:      bugs that no run could tell from correct behaviour.
//! Tests:      `tests/planted.rs` runs each; `docs/testing.md` says how many seeds each took.
//! Start at:   [`BUGS`].

#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::Bug as Inside;

use crate::disk::Sabotage;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The disk lies.
    Disk(Sabotage),
    /// The code that drives storage lies to it, or about it.
    Driver(DriverBug),
    /// The code between storage and the node loses or invents something.
    Node(NodeBug),
    /// The code between storage and the nodes of a cluster.
    Cluster(NodeBug),
    /// The bug is in storage itself.
    #[cfg(feature = "sabotage")]
    Storage(Inside),
    /// The bug is in the node itself.
    #[cfg(feature = "sabotage")]
    Broker(Inside),
    /// The bug is in the node itself, and only shows in a cluster.
    #[cfg(feature = "sabotage")]
    Peers(Inside),
    /// The bug is in the node itself, and only writers of fast appends see it.
    #[cfg(feature = "sabotage")]
    Writers(Inside),
    /// The bug is in the node itself, and lets clients do what they may not.
    #[cfg(feature = "sabotage")]
    Access(Inside),
}

/// Bugs of the code that drives storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverBug {
    /// A sync is reported before it has run.
    AckBeforeSync,
    /// Syncs of payload are reported without being run; those of the journal are run.
    PayloadSyncSkipped,
    /// Two tickets of one replica are reported in the wrong order.
    PersistedReordered,
    /// A sync that failed is run again, and believed.
    FailedSyncRetried,
}

/// Bugs between storage and the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeBug {
    /// The views' snapshots are lost at restart, and with them the state of producers.
    DedupLost,
    /// The node is told that a write is persisted as soon as it asks for it.
    PersistedEarly,
}

/// Every planted bug outside of storage and node, with its name, and a seed that finds it: it is tried first.
pub const BUGS: &[(&str, Bug, u64)] = &[
    ("no sync", Bug::Disk(Sabotage::FileSyncDropped), 1),
    ("directory sync forgotten", Bug::Disk(Sabotage::DirSyncDropped), 1),
    ("page cache believed at recovery", Bug::Disk(Sabotage::MediumReadFromCache), 35),
    ("failed sync taken for a good one", Bug::Disk(Sabotage::SyncErrorSwallowed), 18),
    ("acknowledged before the sync", Bug::Driver(DriverBug::AckBeforeSync), 1),
    ("payload sync skipped", Bug::Driver(DriverBug::PayloadSyncSkipped), 2),
    ("persisted out of order", Bug::Driver(DriverBug::PersistedReordered), 1),
    ("failed sync tried again", Bug::Driver(DriverBug::FailedSyncRetried), 18),
    ("dedup state lost at restart", Bug::Node(NodeBug::DedupLost), 3),
    ("persisted before anything is written", Bug::Node(NodeBug::PersistedEarly), 1),
];

/// Every planted bug inside storage or node, likewise.
#[cfg(feature = "sabotage")]
pub const INSIDE: &[(&str, Bug, u64)] = &[
    ("old journal generation replayed", Bug::Storage(Inside::OldGenerationReplayed), 3),
    ("last round believed unsynced", Bug::Storage(Inside::LastRoundNotRewritten), 2),
    ("segment tail not cut", Bug::Storage(Inside::TailNotCut), 26),
    ("payload not written again", Bug::Storage(Inside::PayloadNotRewritten), 3),
    ("truncate not replayed", Bug::Storage(Inside::TruncateNotReplayed), 1),
    ("hard state not replayed", Bug::Storage(Inside::HardStateNotReplayed), 1),
    ("image dropped", Bug::Storage(Inside::ImageDropped), 5),
    ("synced mark ignored", Bug::Storage(Inside::SyncedMarkIgnored), 314),
    ("payload sync not awaited", Bug::Storage(Inside::PayloadSyncNotAwaited), 9),
    ("deleted topic's directory not renamed", Bug::Storage(Inside::DeletedNotRenamed), 1),
    ("long topic's directory not renamed", Bug::Storage(Inside::LongNamesKept), 27),
    ("a hold is reported before its sync", Bug::Storage(Inside::HeldBeforeSync), 50),
    ("a checkpoint forgets holds", Bug::Storage(Inside::CheckpointForgetsHeld), 2),
    ("holds not replayed", Bug::Storage(Inside::HeldNotReplayed), 1),
    ("a held batch replayed with its own header", Bug::Storage(Inside::HeldHeaderKept), 2),
    ("dedup state not rebuilt", Bug::Broker(Inside::DedupNotRebuilt), 1),
    ("acknowledged before it is persisted", Bug::Broker(Inside::AckedBeforePersisted), 1),
    ("uncommitted records shown", Bug::Broker(Inside::UncommittedShown), 1),
    ("sequence gap accepted", Bug::Broker(Inside::SequenceGapAccepted), 1),
    ("leap of the clock believed", Bug::Broker(Inside::ClockLeapBelieved), 9),
    ("image without producers", Bug::Broker(Inside::ImageWithoutProducers), 3),
    ("deleted replica stays in storage", Bug::Broker(Inside::ReplicaNotDeleted), 1),
    ("repeat answered with another offset", Bug::Broker(Inside::DuplicateOffsetWrong), 1),
    ("fetch session not told of a commit", Bug::Broker(Inside::SessionNotTouched), 1),
    ("full disk ignored", Bug::Broker(Inside::FullDiskIgnored), 23),
    ("trim not stored", Bug::Broker(Inside::TrimNotStored), 3),
    ("compaction leaves the oldest record", Bug::Broker(Inside::OldestStays), 2),
    ("offsets acknowledged before they are stored", Bug::Broker(Inside::CommittedBeforeStored), 2),
    ("the log of groups loaded without its end", Bug::Broker(Inside::LoadEndsEarly), 1),
    ("the log of groups renewed in part", Bug::Broker(Inside::RenewalCutShort), 1),
    ("a guard ignores appends in flight", Bug::Broker(Inside::GuardOfCommitted), 1),
    ("a fence lets in until it is committed", Bug::Broker(Inside::FenceOfCommitted), 33),
    ("an image without fence and pointer", Bug::Broker(Inside::ImageWithoutControls), 9),
    ("a truncation forgets the pointer", Bug::Broker(Inside::PointerLost), 221),
    ("a read of a queue waits for no index", Bug::Broker(Inside::CommittedTakenForIndexed), 45),
    ("a leader forgets which queues its appends are of", Bug::Broker(Inside::FreshForgotten), 29),
    ("a filter of a queue table lacks names", Bug::Broker(Inside::TableFilterHalf), 29),
    ("a read of a queue is registered after the look", Bug::Broker(Inside::WaitsAfterLook), 1469),
    ("a long list of touched queues is cut", Bug::Broker(Inside::TouchedCut), 29),
    ("a new leader waits for no index of earlier terms", Bug::Broker(Inside::FreshFromNothing), 45),
    ("the first attempt of an append is not looked for", Bug::Broker(Inside::RepeatNotSought), 93),
    ("deletions are forgotten at a start", Bug::Broker(Inside::MasksNotLoaded), 285),
    ("consumers see what the index lacks", Bug::Broker(Inside::ShownUnindexed), 121),
    ("a consumer of deleted records gets nothing", Bug::Broker(Inside::MaskedTailBare), 2973),
    ("a deletion is acknowledged before readers know", Bug::Broker(Inside::EditNotAwaited), 93),
    ("a deletion takes another queue's element", Bug::Broker(Inside::EditUnverified), 93),
    ("the fence of a queue is ignored", Bug::Broker(Inside::QueueFenceIgnored), 29),
    ("a replaced element's old content stays", Bug::Broker(Inside::ReplacedStays), 93),
    ("a rewrite is two entries", Bug::Broker(Inside::RewriteInTwo), 2029),
    ("tables keep the names of what was erased", Bug::Broker(Inside::TablesNotRemade), 29),
    ("a message is leased before its time", Bug::Broker(Inside::DelayIgnored), 25),
    ("a message is leased after its end", Bug::Broker(Inside::EndsIgnored), 25),
    ("queues forget whose turn it is", Bug::Broker(Inside::TurnsForgotten), 9),
    ("a former lease is settled", Bug::Broker(Inside::FormerLeaseSettles), 169),
    ("a worker that waits is not told of a time", Bug::Broker(Inside::DelayNotTimed), 41),
    ("a settlement is answered before it is kept", Bug::Broker(Inside::DecidedBeforeKept), 153),
    ("a start forgets what a share group keeps", Bug::Broker(Inside::KeptForgotten), 9),
    ("a share coordinator answers before its write", Bug::Broker(Inside::ShareKeptEarly), 9),
    ("a snapshot of a share group has its start alone", Bug::Broker(Inside::ShareSnapshotBare), 9),
];

/// See above: none of them is compiled in.
#[cfg(not(feature = "sabotage"))]
pub const INSIDE: &[(&str, Bug, u64)] = &[];

/// Every planted bug that takes a cluster to be seen, likewise. Most of them are rare.
pub const OF_CLUSTERS: &[(&str, Bug, u64)] =
    &[("votes and entries taken for synced", Bug::Cluster(NodeBug::PersistedEarly), 5)];

/// Such bugs inside storage or node.
#[cfg(feature = "sabotage")]
pub const INSIDE_CLUSTERS: &[(&str, Bug, u64)] = &[
    ("a group sleeps on when its leader's node dies", Bug::Peers(Inside::SleepsOn), 1),
    ("a follower whose node is silent is counted", Bug::Peers(Inside::SilentCounted), 3),
    ("a leader that stepped down sleeps on in the set", Bug::Peers(Inside::StaysInSet), 5),
    ("a leap of one machine's clock believed", Bug::Peers(Inside::ClockLeapBelieved), 2),
    ("stamps follow a clock that leapt back", Bug::Peers(Inside::LeapBackFollowed), 2),
    ("one machine's full disk ignored", Bug::Peers(Inside::FullDiskIgnored), 20),
    ("a replica speaks before its sync", Bug::Peers(Inside::SpokenBeforeSync), 4),
    ("a leader serves too early", Bug::Peers(Inside::ServesTooEarly), 208),
    ("producers of a cut suffix remembered", Bug::Peers(Inside::CutKeepsProducers), 4548),
    ("a follower shows past its commit index", Bug::Peers(Inside::FollowerShowsAll), 2),
    ("internal entries forgotten with the others", Bug::Peers(Inside::PastEntryForgotten), 1),
    ("internal entries of the past not stored", Bug::Peers(Inside::HistoryNotStored), 20),
    ("an entry made again in another term", Bug::Peers(Inside::TermNotRestored), 6),
    ("a replica begins with the voters of now", Bug::Peers(Inside::BornAsPlaced), 681),
    ("an image claims more than it holds", Bug::Peers(Inside::ImageClaimsMore), 2),
    ("a wiped directory votes as its predecessor", Bug::Peers(Inside::WipedVotes), 4),
    ("an entry made again begins no segment", Bug::Peers(Inside::SegmentStartNotRestored), 53),
    ("a node that was behind keeps a deleted topic", Bug::Peers(Inside::SurplusKept), 368),
    ("a node that left goes on voting", Bug::Peers(Inside::LeaverVotes), 2),
    ("members of older generations heard", Bug::Peers(Inside::OldGenerationTaken), 4),
    ("a new coordinator counts generations anew", Bug::Peers(Inside::GenerationForgotten), 2),
    ("a transaction is over once it is decided", Bug::Peers(Inside::CompleteBeforeMarked), 240_938),
    ("who is kept out keeps its epoch", Bug::Peers(Inside::FencedWithoutEpoch), 64_818),
    ("a first batch appended without asking", Bug::Peers(Inside::TransactionUnverified), 3),
    ("what is open is shown", Bug::Peers(Inside::UnstableShown), 3),
    ("readers not told what was aborted", Bug::Peers(Inside::AbortedNotTold), 3),
    ("members of consumers told before it is stored", Bug::Peers(Inside::ToldBeforeStored), 180),
    ("a partition given before it is free", Bug::Peers(Inside::GivenBeforeFreed), 11),
    ("an earlier member epoch heard", Bug::Peers(Inside::EarlierEpochTaken), 102),
    ("a group is upgraded without what members have", Bug::Peers(Inside::UpgradedWithNothing), 52),
    ("a classic member that joins has nothing", Bug::Peers(Inside::ClassicHasNothing), 1482),
    ("a downgraded group counts its generations anew", Bug::Peers(Inside::DowngradedAnew), 42_718),
    ("a decision is answered before it is kept", Bug::Peers(Inside::DecidedBeforeKept), 24_843),
    ("a new leader forgets what is kept", Bug::Peers(Inside::KeptForgotten), 5),
    ("who held a record decides on it", Bug::Peers(Inside::FormerHolderDecides), 5),
    ("another record of a key is done with", Bug::Peers(Inside::WrongOfKeyFinished), 16),
    (
        "a share group's start passes what was given back",
        Bug::Peers(Inside::StartPassesAvailable),
        2403,
    ),
    ("a record is given out again and again", Bug::Peers(Inside::LimitIgnored), 1391),
    ("a share group is given what is open", Bug::Peers(Inside::OpenIsShared), 14),
    ("a share group is given what was aborted", Bug::Peers(Inside::AbortedIsShared), 14),
    ("records are kept for half of their time", Bug::Peers(Inside::RetentionHalved), 47),
    ("a lock ends when somebody else comes", Bug::Peers(Inside::LockEndsEarly), 82),
    ("a log forgets the fences of its queues", Bug::Peers(Inside::FenceNotRestated), 9373),
    ("a rewrite withdraws by offset", Bug::Peers(Inside::CutByOffset), 11_453),
    ("an erasure waits for no index", Bug::Peers(Inside::EraseUnindexed), 13),
    ("an erasure takes what expires later", Bug::Peers(Inside::ExpiredTooSoon), 93),
    ("an erasure takes a queue's last element", Bug::Peers(Inside::ExpiredLastGoes), 29),
    ("an erased log is compacted by its keys", Bug::Peers(Inside::EraseOfSettings), 173),
    ("a merge of queue tables forgets edits", Bug::Peers(Inside::MergeDropsFacts), 200_733),
    ("a batch goes on in what is compacted", Bug::Peers(Inside::EndGoesOn), 19),
    ("a log compacted to its end takes the entry along", Bug::Peers(Inside::EndTakesEntry), 19),
    ("a log begins anew without what is kept of it", Bug::Peers(Inside::GivenForgotten), 12),
];

/// See above: none of them is compiled in.
#[cfg(not(feature = "sabotage"))]
pub const INSIDE_CLUSTERS: &[(&str, Bug, u64)] = &[];

/// Bugs that only show in a cluster, and may take more time than the gate has. Once the known seed is stale, each may
/// need hundreds of seeds, or a seed that runs to the limit of its time.
#[cfg(feature = "sabotage")]
pub const RARE: &[(&str, Bug, u64)] = &[
    ("a merge of queue tables forgets deletions", Bug::Peers(Inside::MergeDropsMasks), 413_933),
    ("an erasure counts later statements", Bug::Peers(Inside::EraseTooMuch), 45),
    ("a proposal that storage never had is believed", Bug::Peers(Inside::UnstoredForgotten), 68),
    ("a log begins anew without its image", Bug::Peers(Inside::SnapshotWithoutImage), 225_769),
    ("members told what they own too early", Bug::Peers(Inside::AssignedBeforeStored), 149),
    ("a dead letter counts before it is kept", Bug::Peers(Inside::BuriedBeforeKept), 9),
    ("replicas do not take up changed settings", Bug::Peers(Inside::SettingsNotTakenUp), 13),
    ("a coordinator answers though another leads", Bug::Peers(Inside::CoordinatorUnaware), 7293),
];

/// See above: none of them is compiled in.
#[cfg(not(feature = "sabotage"))]
pub const RARE: &[(&str, Bug, u64)] = &[];

/// Bugs of fast appends, each with a seed of scenario `fast` that finds it.
#[cfg(feature = "sabotage")]
pub const OF_WRITERS: &[(&str, Bug, u64)] = &[
    ("an Open counts before it is applied", Bug::Writers(Inside::NoBarrier), 3),
    ("a leader serves before it has settled", Bug::Writers(Inside::OpensTooEarly), 19),
    ("settling appends what is there", Bug::Writers(Inside::RecoveredTwice), 55),
    ("settling appends from the end to the beginning", Bug::Writers(Inside::RecoveredReversed), 19),
    ("the end of the log lacks what is complete", Bug::Writers(Inside::TailForgotten), 2),
    ("an image without its stretch", Bug::Writers(Inside::ImageWithoutStretch), 209),
    ("a former leader's end is cut, and not held", Bug::Writers(Inside::CutForgetsHeld), 209),
    ("a batch is held without the one before it", Bug::Writers(Inside::HeldWithGap), 65),
];

/// See above: none of them is compiled in.
#[cfg(not(feature = "sabotage"))]
pub const OF_WRITERS: &[(&str, Bug, u64)] = &[];

/// Bugs of access control, each with a seed of scenario `access` that finds it.
#[cfg(feature = "sabotage")]
pub const OF_ACCESS: &[(&str, Bug, u64)] = &[
    ("a request that waits is not judged again", Bug::Access(Inside::ParkedNotJudged), 2),
    ("an incremental fetch is not judged", Bug::Access(Inside::SessionNotJudged), 2),
    ("with one rule the others go", Bug::Access(Inside::RemovalForgetsOthers), 4),
    ("a node that lost the leader lets users in", Bug::Access(Inside::DoubtIgnored), 2),
    ("a removed user stays", Bug::Access(Inside::RemovedUserStays), 1),
    ("a rule for a longer name beats a denial", Bug::Access(Inside::LongerNameWins), 4),
    ("a forwarded request is not judged", Bug::Access(Inside::ForwardedNotJudged), 1),
];

/// See above: none of them is compiled in.
#[cfg(not(feature = "sabotage"))]
pub const OF_ACCESS: &[(&str, Bug, u64)] = &[];

/// Bugs that 400 seeds of the cluster did not find: see "What is thin" in `docs/testing.md`.
#[cfg(feature = "sabotage")]
pub const MISSED: &[(&str, Bug)] = &[
    ("waits for a cut suffix kept", Bug::Peers(Inside::CutKeepsWaiting)),
    ("a new leader goes on in an old segment", Bug::Peers(Inside::StaleSegment)),
    ("what an image holds is applied once more", Bug::Peers(Inside::ImageAppliedTwice)),
    ("a replica votes before it has anything", Bug::Peers(Inside::PromotedAtOnce)),
    ("an older connection of a producer is still heard", Bug::Peers(Inside::LateRequestTaken)),
    ("a transaction begins before the last one is marked", Bug::Peers(Inside::BegunBeforeMarked)),
    ("what was said before a marker believed after it", Bug::Peers(Inside::VoidAnswerTaken)),
    ("an earlier leader's decisions are kept", Bug::Peers(Inside::EarlierLeaderTaken)),
    ("a late marker ends what is open", Bug::Peers(Inside::LateMarkerTaken)),
    ("what two compactions left is mixed", Bug::Peers(Inside::GivenMixed)),
    ("what classic members are giving up is forgotten", Bug::Peers(Inside::GivingUpForgotten)),
    ("a change of settings is answered before it is kept", Bug::Peers(Inside::AlteredBeforeKept)),
    ("a leader that has a successor refuses a guard", Bug::Peers(Inside::RefusedUncertain)),
    ("a new leader shows what was deleted", Bug::Peers(Inside::LeaderShowsEarly)),
    ("a leader that has a successor answers", Bug::Peers(Inside::StaleLeaderAnswers)),
    ("producer ids handed out before their commit", Bug::Peers(Inside::IdsBeforeCommit)),
];
