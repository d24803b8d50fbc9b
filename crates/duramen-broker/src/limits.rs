//! # Room card: limits
//!
//! Purpose:    every bound of a node that no setting changes.
//! Owns:       the constants, and the proofs that they fit together.
//! Interface:  the constants; [`table`].
//! Invariants: the `const` assertions below.
//! Never:      a bound that an operator should change.
//! Tests:      the compiler; `tests/limits.rs` writes `docs/limits.md`.
//! Start at:   the list.

/// Declares constants, and lists them in [`table`].
macro_rules! limits {
    ($($(#[doc = $line:literal])+ $vis:vis const $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[doc = $line])+ $vis const $name: $type = $value;)+

        /// Lists every bound, for `docs/limits.md`.
        pub fn table() -> Vec<Limit> {
            vec![$(Limit {
                name: stringify!($name),
                value: $name.to_string(),
                text: concat!($($line),+),
            }),+]
        }
    };
}

/// One bound, as a document shows it.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Name of the constant.
    pub name: &'static str,
    /// Value, in the unit that the text names.
    pub value: String,
    /// Comment of the constant.
    pub text: &'static str,
}

limits! {
/// Largest request frame, in bytes: the default of Kafka's `socket.request.max.bytes`.
pub const FRAME_BYTES_MAX: usize = 100 << 20;
/// Most Produce and `AppendFast` requests of one connection that wait for their response. At the bound the node stops
/// reading the connection.
pub const SESSION_REQUESTS_MAX: usize = 1024;
/// Most bytes of requests of one connection that wait for their response. At the bound the node stops reading the
/// connection.
pub const SESSION_BYTES_MAX: usize = 128 << 20;
/// Estimated memory of one array element of a request and of its part of the response, in bytes.
pub const ELEMENT_BYTES: usize = 256;
/// Largest size of the decompressed records of one batch, in bytes. The node rejects a batch above it.
pub const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;
/// Largest ratio between all decompressed records of one request and the request itself. A request may always reach
/// [`DECOMPRESSED_BYTES_MAX`]; above both bounds the node rejects its remaining compressed batches.
pub const DECOMPRESSED_RATIO_MAX: usize = 64;
/// Largest size of the decompressed records of a request that the connection's own task validates, in bytes. Above it
/// and [`DECOMPRESSED_RATIO_QUICK`], the node validates the request where no other connection waits for it.
pub const DECOMPRESSED_BYTES_QUICK: usize = 1 << 20;
/// Ratio between decompressed records and request that real records seldom exceed; see [`DECOMPRESSED_BYTES_QUICK`].
pub const DECOMPRESSED_RATIO_QUICK: usize = 8;
/// Most bytes of batches that the node makes anew for one request, in the codecs of their topics. Above it the node
/// rejects the request's remaining batches. The first may have more: `max.message.bytes` bounds it.
pub const RECOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// Largest batch of a fast append, in bytes.
pub const FAST_BATCH_BYTES_MAX: usize = 1 << 20;
/// Most bytes of batches that a replica holds for clients beside its log. Above it a fast append is answered with *not
/// now*.
pub const FAST_HELD_BYTES_MAX: usize = 4 << 20;
/// Most bytes of batches that all replicas of a node hold. Each checkpoint of the journal writes them anew.
pub const FAST_NODE_HELD_BYTES_MAX: usize = 8 << 20;
/// Most bytes of a log that may be uncommitted where its leader counts a fast append.
pub const FAST_UNCOMMITTED_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of held batches in one answer to a new leader; a single batch may be larger.
pub const FAST_LIST_BYTES_MAX: usize = 256 << 10;
/// Ticks after which a new leader asks again for what others hold.
pub const FAST_ASKED_TICKS: u64 = 5;
/// Most positions of one deletion of elements of a queue.
pub const QUEUE_DELETES_MAX: usize = 1_000;
/// Most records of a partition that are deleted and not erased. At the bound further deletions are refused.
pub const QUEUE_MASKS_MAX: u64 = 65_536;
/// Most queues of which one batch says again what a log would lose with its first records.
pub const QUEUES_SAID_AGAIN: usize = 1_000;
/// Longest text that says why a queue was rewritten, in bytes.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Largest fence of a log, in bytes.
pub const FENCE_BYTES_MAX: usize = 64;
/// Longest name of a queue, which is the key of its records, in bytes.
pub const QUEUE_NAME_BYTES_MAX: usize = 512;
/// Most batches that one page of a queue looks at.
pub const QUEUE_PAGE_BATCHES: usize = 256;
/// Most looks for an element of a queue that a node has under way; further looks wait their turn.
pub const QUEUE_LOOKS_MAX: usize = 64;
/// Most reads that wait for an element on one node. Above it a read that would wait is refused with `busy`. A test
/// build uses fewer.
pub const QUEUE_READS_WAITING_MAX: usize = if cfg!(test) { 100 } else { 200_000 };
/// Most bytes of a queue topic's partition behind the index's order under way, or behind an index that cannot go on. An
/// order for more than that may grow by its own size. Above it appends are refused and may be sent again.
pub const INDEX_LAG_BYTES_MAX: u64 = 32 << 20;
/// Largest snapshot pointer of a log, in bytes: its URI, checksum and note together.
pub const POINTER_BYTES_MAX: usize = 1 << 10;
/// Default of `queued.max.request.bytes`: most bytes of requests that a node holds until it answers them.
pub const NODE_BYTES_IN_FLIGHT_MAX: u64 = 256 << 20;

/// Most segments of a partition that `segment.bytes` and `segment.ms` roll. Above it, the node rolls a segment only
/// where the format demands it, at 2 GiB. A checkpoint of a partition takes at least 76 bytes for each segment and has
/// to fit into a journal round of 4 MiB. A test build uses fewer.
pub(crate) const PARTITION_SEGMENTS: usize = if cfg!(test) { 32 } else { 16 << 10 };

/// Longest time a request waits for the previous transaction to complete, before it fails with
/// `CONCURRENT_TRANSACTIONS`, in microseconds.
pub(crate) const TRANSACTION_WAIT_US: u64 = 1_000_000;
/// Delay before a transaction coordinator retries after a failed append to its log, in microseconds.
pub(crate) const TRANSACTION_AGAIN_US: u64 = 500_000;
/// Delay between the last transaction marker and the record that completes the transaction, in microseconds. Most
/// producers begin the next transaction earlier, and the record of that transaction completes the previous one.
pub(crate) const TRANSACTION_COMPLETE_US: u64 = 50_000;
/// Interval between two checks of unanswered requests to transaction coordinators and partition leaders, in
/// microseconds.
pub(crate) const TRANSACTION_CALL_US: u64 = 50_000;
/// Time without an answer after which a node repeats a request to a coordinator or leader, in microseconds.
pub(crate) const TRANSACTION_CALL_AGAIN_US: u64 = 250_000;
/// Longest time a transactional request waits for another coordinator's answer, before it fails with a retriable error,
/// in microseconds. A Produce request then fails with `NOT_ENOUGH_REPLICAS`.
pub(crate) const TRANSACTION_CALL_US_MAX: u64 = 5_000_000;
/// Interval between two checks of unanswered requests to share coordinators, in microseconds.
pub(crate) const SHARE_CALL_US: u64 = 50_000;
/// Time without an answer after which a node repeats a request to a share coordinator, in microseconds.
pub(crate) const SHARE_CALL_AGAIN_US: u64 = 250_000;
/// Longest time a share-partition leader waits for a share coordinator, before its request fails with
/// `COORDINATOR_NOT_AVAILABLE`, in microseconds.
pub(crate) const SHARE_CALL_US_MAX: u64 = 10_000_000;
/// Aborted transactions of one partition in a Fetch response above which the response contains fewer batches. A test
/// build uses fewer.
pub(crate) const FETCH_ABORTED_MAX: usize = if cfg!(test) { 4 } else { 1000 };

/// Applied entries that a group of one voter keeps in memory.
pub(crate) const GROUP_APPLIED_KEPT: usize = 64;
/// Applied entries in memory above which a group of one voter drops all but [`GROUP_APPLIED_KEPT`].
pub(crate) const GROUP_APPLIED_MAX: usize = 128;
/// Highest Raft term. Kafka clients receive the term as leader epoch, which is an `i32` on the wire. At the bound the
/// group fails.
pub(crate) const TERM_MAX: u64 = i32::MAX as u64;
/// Shortest election timeout, in ticks: 500 ms. Raft draws each timeout between this value and its double.
pub(crate) const ELECTION_TICKS: usize = 10;
/// Interval between two Raft heartbeats, in ticks: 100 ms.
pub(crate) const HEARTBEAT_TICKS: usize = 2;

/// Interval between two ticks of groups of several voters, in microseconds.
pub(crate) const TICK_US: u64 = 50_000;
/// Longest lag of an in-sync replica, in ticks: 10 s, the default of Kafka's `replica.lag.time.max.ms`. A follower lags
/// if its leader has not heard it for so long, or if the follower lacks entries committed five to ten seconds ago.
pub(crate) const LAG_TICKS: u64 = 200;
/// Time without another frame to a node after which a node sends an empty one, in ticks: 100 ms. Frames replace the
/// heartbeats of all quiesced groups.
pub(crate) const PEER_BEAT_TICKS: u64 = 2;
/// Interval of periodic checks and repeated requests between nodes, in ticks: 500 ms.
pub(crate) const PEER_QUIET_TICKS: u64 = 10;
/// Time without activity after which a group of several voters is quiesced, in ticks: 2 s. The simulator uses less.
pub const GROUP_QUIET_TICKS: u64 = 40;
/// Time without a word from the leader of the metadata after which a node lets no user in, in microseconds.
pub(crate) const LOGIN_DOUBT_US: u64 = 9_000_000;
/// Time without a frame from a node after which Metadata responses omit the node, in ticks: 3 s.
pub(crate) const PEER_SILENT_TICKS: u64 = 60;
/// Most bytes of batches in flight to one node. At the bound the groups pause their appends to the node.
pub(crate) const PEER_BYTES_IN_FLIGHT_MAX: u64 = 8 << 20;
/// Largest frame between nodes, in bytes: all bytes in flight to a node, one more batch of the largest size, and the
/// rest.
pub const PEER_FRAME_BYTES_MAX: u32 = 160 << 20;
/// Most changes of quiesced groups in one frame; later frames carry the others.
pub(crate) const PEER_SLEEPERS_MAX: usize = if cfg!(test) { 20 } else { 4096 };
/// Time after which a new leader has received a message from every live replica, in ticks: 1 s. The leader then
/// announces the in-sync replicas.
pub(crate) const LEAD_SETTLED_TICKS: u64 = 2 * ELECTION_TICKS as u64;
/// Most partition leaders that one frame announces; later frames carry the others.
pub(crate) const PEER_LEADS_MAX: usize = 1000;
/// Most metadata replicas that a node answers before the metadata names them. At the bound the node forgets all of
/// them.
pub(crate) const ACQUAINTANCES_MAX: usize = 64;
/// Most partitions that one decision of the active controller reassigns; later decisions reassign the others.
pub(crate) const MOVES_BEGUN_MAX: usize = 100;
/// Most appends of a group to one follower that wait for a read of their payload. At the bound the leader drops the
/// next append and treats the follower as unreachable.
pub(crate) const GROUP_UNSENT_MAX: usize = 64;
/// Most concurrent reads of payload for followers on one node; further reads queue.
pub(crate) const PEER_READS_MAX: usize = 4;
/// Most unanswered requests that a node has forwarded to the active controller. At the bound the node answers
/// `NOT_CONTROLLER`.
pub(crate) const FORWARDS_MAX: usize = 256;
/// Most bytes of forwarded requests on the node that forwards, and most bytes of remembered answers on the active
/// controller. Above it the former node answers `NOT_CONTROLLER`, and the active controller ignores new forwarded
/// requests.
pub(crate) const FORWARDS_BYTES_MAX: usize = 16 << 20;
/// Time without an answer after which a node sends a forwarded request again, in ticks: 500 ms.
pub(crate) const FORWARD_AGAIN_TICKS: u64 = 10;
/// Longest time a node sends a forwarded request again, in ticks: 60 s.
pub(crate) const FORWARD_TICKS_MAX: u64 = 1200;
/// Time for which the active controller remembers an answer to a forwarded request, in ticks: 120 s. A copy of the
/// request may arrive after the last repetition.
pub(crate) const FORWARDED_KEPT_TICKS: u64 = 2400;
/// Most forwarded requests that the active controller serves or remembers. At the bound the leader ignores new ones.
pub(crate) const FORWARDED_MAX: usize = 4096;
/// Largest counted lag of a node's disk behind the disks of a majority, in ticks: 2 s. At the bound a leader transfers
/// leadership even to a node with a slow disk.
pub(crate) const DISK_STILL_TICKS: u64 = 4 * ELECTION_TICKS as u64;
/// Time without new leadership for a node after its disk was last slow, in ticks: 5 minutes. The default of
/// `leader.imbalance.check.interval.seconds` is as long.
pub(crate) const SLOW_DISK_TICKS: u64 = 6000;
/// Interval between two attempts of a node with a full disk to transfer its leadership, in ticks: 1 s. The first
/// attempt follows one interval after the first refused append.
pub(crate) const FULL_DISK_TICKS: u64 = 20;
/// Time for which a disk counts as full after it last refused appends, in ticks: 10 s.
pub(crate) const FULL_DISK_ROOM_TICKS: u64 = 200;
/// Most concurrent leadership transfers of a node to preferred replicas.
pub(crate) const MOVES_MAX: usize = 16;
/// Most concurrent leadership transfers of a node that stops, or has a slow or full disk.
pub(crate) const DRAIN_MOVES_MAX: usize = 256;
/// Interval between two requests to a leader to transfer leadership for an `ElectLeaders` request, in ticks: 500 ms.
pub(crate) const ELECTION_ASKED_TICKS: u64 = 10;
/// Most partitions of one `ElectLeaders` request that a node processes at once.
pub(crate) const ELECTIONS_MAX: usize = 256;
/// Longest time an `ElectLeaders` request waits for its elections, before the rest fails, in microseconds.
pub(crate) const ELECTION_WAITS_US: u64 = 5_000_000;
/// Most uncommitted entries of a leader with followers. At the bound the leader refuses appends with
/// `NOT_ENOUGH_REPLICAS`.
pub(crate) const GROUP_UNCOMMITTED_MAX: u64 = 16 << 10;

/// Ticks for which a follower's letters wait for payload that clients send it too.
pub(crate) const FAST_LATE_TICKS: u64 = 2;
/// Most letters of a leader that wait for such payload; Raft sends later ones again.
pub(crate) const FAST_LATE_LETTERS_MAX: usize = 64;
/// Ticks for which a leader sends whole letters to a follower that lacked payload: five seconds.
pub(crate) const FAST_WHOLE_TICKS: u64 = 100;
/// Ticks after which a follower offers its leader what it still holds: one second. The copy for the leader may be lost.
pub(crate) const FAST_OFFERED_TICKS: u64 = 20;
/// Shortest time between the beginnings of two stretches of a partition, in microseconds.
pub(crate) const FAST_OPENED_US: u64 = 1_000_000;
/// Time behind which the next stretch is no hasty one, in microseconds. After some hasty ones so much time has to pass.
pub(crate) const FAST_LASTING_US: u64 = 10_000_000;
/// Hasty stretches in a row after which the next one has to wait.
pub(crate) const FAST_SHORT_MAX: u32 = 3;
/// Time after which a stretch without a fast append ends, in microseconds: 5 minutes.
pub(crate) const FAST_IDLE_US: u64 = 300_000_000;
/// Ticks without a word after which a member gives way to another voter.
pub(crate) const FAST_SILENT_TICKS: u64 = 5;
/// Longest time for which an entry is timed, in microseconds. A member that is slow for so long gives way.
pub(crate) const FAST_TIMED_US: u64 = 1_000_000;
/// Time by which a slow member is later than an outsider, in microseconds. The member also takes twice as long.
pub(crate) const FAST_SLOW_US: u64 = 10_000;
/// Entries that are timed before a member counts as slow. One that is timed for the longest time counts for all.
pub(crate) const FAST_SLOW_ENTRIES: u64 = 8;

/// Longest time a `DescribeFast` request waits for a stretch to be opened, in microseconds.
pub(crate) const FAST_OPEN_US_MAX: u64 = 5_000_000;

/// Latest batches of each producer that a partition remembers to detect duplicates.
pub(crate) const PRODUCER_BATCHES_KEPT: usize = 5;
/// Producers of which a replica remembers that it refused their last batch for a while.
pub(crate) const REFUSED_PRODUCERS_MAX: usize = 1000;
/// Producer ids that one metadata record allocates.
pub(crate) const PRODUCER_ID_BLOCK: i64 = 1000;
/// Trailing zero bits of a cluster's first producer id. The 32 bits above them are the cluster's own. Producer ids stay
/// below 2^53, so that JSON numbers are exact.
pub(crate) const PRODUCER_ID_ZEROES: u32 = 20;
/// Producer ids, from a cluster's first one on, that the cluster takes for its own.
pub(crate) const PRODUCER_IDS_MAX: i64 = 1 << 36;

/// Most partitions of one topic.
pub(crate) const TOPIC_PARTITIONS_MAX: i32 = 20_000;
/// Most partitions of all topics of one `CreateTopics` request, as in Kafka. Above it the request fails with
/// `POLICY_VIOLATION`.
pub(crate) const CREATE_PARTITIONS_MAX: i64 = 10_000;
/// Most partitions in one `DescribeTopicPartitions` response: the default of Kafka's
/// `max.request.partition.size.limit`.
pub(crate) const DESCRIBED_PARTITIONS_MAX: i32 = 2000;
/// Most bytes of segments that one `DescribeReplicas` request reads to compute digests: a fraction of a second.
pub(crate) const DIGEST_BYTES_MAX: u64 = 16 << 20;
/// Number of queues at which a part of a log ends that one `DescribeReplicas` request compares with the queue index:
/// some thousand reads of tables.
pub(crate) const DIGEST_QUEUES_MAX: usize = 1024;
/// Most partitions of a cluster. Above it `CreateTopics` and `CreatePartitions` fail with `INVALID_PARTITIONS`.
pub(crate) const CLUSTER_PARTITIONS_MAX: usize = 100_000;
/// Longest topic name, in bytes.
pub(crate) const TOPIC_NAME_BYTES_MAX: usize = 249;
/// Most rules of access that a cluster has.
pub(crate) const ACLS_MAX: usize = 100_000;
/// Longest name of a resource, a client or a host in a rule of access, in bytes.
pub(crate) const ACL_NAME_BYTES_MAX: usize = 4_096;
/// Longest name of a user, in bytes.
pub(crate) const USER_NAME_BYTES_MAX: usize = 255;
/// Most partitions, or topics, that a periodic sweep processes in one slice.
pub(crate) const SWEEP_SLICE: usize = 256;
/// Shortest interval between two checks for logs to compact, in milliseconds. The bound protects nodes with few
/// partitions from a small `log.cleaner.backoff.ms`.
pub(crate) const CLEANING_MS_MIN: i64 = 100;
/// Most partitions, or offsets of groups, that one part of a census for metrics has.
pub(crate) const CENSUS_SLICE: usize = 128;
/// Most topics that have rows of their own in the metrics of a node. The traffic of all others is in one row.
pub const METRIC_TOPICS_MAX: usize = 1_000;
/// Most replicas of a node whose partitions have rows of their own in its metrics.
pub const METRIC_PARTITIONS_MAX: usize = 2_000;
/// Most groups, and most topics of groups, that have rows of their own in the metrics of their coordinators' node.
pub const METRIC_GROUPS_MAX: usize = 1_000;
/// Most committed offsets that have rows of their own in the metrics of a node: those with the most lag.
pub const METRIC_OFFSETS_MAX: usize = 2_000;
/// Pause between two slices of a sweep, in microseconds.
pub(crate) const SWEEP_PAUSE_US: u64 = 2_000;
/// Largest accepted difference between the wall clock and the monotonic clock, or between the wall clocks of two nodes,
/// in milliseconds. Above it the node suspends retention by time.
pub(crate) const CLOCK_LEAP_MS_MAX: i64 = 10 * 60 * 1000;

/// Most incremental fetch sessions of a node: the default of Kafka's `max.incremental.fetch.session.cache.slots`. At
/// the bound a new session replaces an idle one, or the node answers without a session.
pub(crate) const FETCH_SESSIONS_MAX: usize = 1000;
/// Most partitions in all fetch sessions of a node.
pub(crate) const FETCH_SESSION_PARTITIONS_MAX: usize = 1_000_000;
/// Time without a request after which a new fetch session may replace an old one, in microseconds.
pub(crate) const FETCH_SESSION_IDLE_US: u64 = 120_000_000;

/// Most partitions in all share sessions of a node. At the bound sessions ignore further partitions.
pub(crate) const SHARE_SESSION_PARTITIONS_MAX: usize = 200_000;
/// Bytes of a log that one survey for a share group reads.
pub(crate) const SHARE_SURVEY_BYTES: u32 = 1 << 20;
/// Size of a batch of dead letters at which the node starts another batch, in bytes. One record may be larger.
pub(crate) const BURIAL_BYTES: usize = 256 << 10;
/// Most batches of dead letters that a node prepares and sends at once.
pub(crate) const BURIALS_MAX: usize = 16;
/// Interval between two checks of dead letters that are not committed yet, in microseconds.
pub(crate) const BURIAL_US: u64 = 100_000;
/// Time without an answer, or after a failure, before a node retries a batch of dead letters, in microseconds.
pub(crate) const BURIAL_AGAIN_US: u64 = 2_000_000;
/// Shortest time that a client waits for the commit of `DeleteRecords`, in milliseconds, if it asks for less.
pub(crate) const TRIM_MS_MIN: i32 = 1_000;
/// Pause before a node appends the records of the access log that came meanwhile, in microseconds.
pub(crate) const ACCESS_LOG_US: u64 = 100_000;
/// Time without an answer, or after a failure, before a node retries a batch of the access log, in microseconds.
pub(crate) const ACCESS_LOG_AGAIN_US: u64 = 2_000_000;
/// Most records of a node's access log in a second. A node leaves out the others, and counts them.
pub const ACCESS_LOG_RECORDS_MAX: u64 = 1_000;
/// Size of a batch of the access log at which the node starts another batch, in bytes.
pub(crate) const ACCESS_LOG_BATCH_BYTES: usize = 64 << 10;
/// Bytes of records of the access log that may wait in a node. A node leaves out the others, and counts them.
pub const ACCESS_LOG_WAITING_BYTES_MAX: usize = 1 << 20;
/// Most records of one share partition that wait for their time. Behind them the group looks at no more of the log.
pub const SHARE_DELAYED_MAX: i64 = 100_000;
/// Longest time until a node compares the times of waiting records with the clock again, in microseconds.
pub(crate) const SHARE_CLOCK_US: u64 = 10_000_000;
/// Time until a node reads the state of a share partition that a group's coordinator begins, in microseconds.
pub(crate) const SHARE_BEGIN_US: u64 = 10_000;
/// Time for which a node keeps a share partition that workers used, in microseconds.
pub(crate) const SHARE_LINGER_US: u64 = 60_000_000;
/// Delay before a node retries a failed read for a share group, in microseconds.
pub(crate) const SHARE_AGAIN_US: u64 = 500_000;

/// Smallest log of a coordinator that the node renews, in bytes, unless `segment.bytes` is smaller.
pub(crate) const GROUP_LOG_BYTES_MIN: u64 = 4 << 20;
/// Bytes of live records that one step of a renewal appends again.
pub(crate) const GROUP_LOG_SLICE_BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };
/// Bytes of a coordinator's log that one step of loading reads and applies: about a thousand offset commits, a
/// millisecond.
pub(crate) const GROUP_LOG_READ_BYTES: u32 = if cfg!(test) { 1 << 10 } else { 128 << 10 };

/// Delay before a coordinator loads its log again after a failed read, in microseconds.
pub(crate) const GROUP_LOG_AGAIN_US: u64 = 30_000_000;

/// Longest time a group of the classic protocol waits for a new member that does not send `JoinGroup` again, in
/// microseconds.
pub(crate) const NEW_MEMBER_WAITS_US: u64 = 300_000_000;

/// Longest time `CreateTopics` waits for all founding nodes of a new cluster to register, in microseconds.
pub(crate) const BROKERS_AWAITED_US: u64 = 10_000_000;
/// Longest time requests wait for the groups of a node that has just started to elect leaders, in microseconds.
pub(crate) const OPENING_US_MAX: u64 = 30_000_000;
}

/// Count of parts above which a debug build no longer checks the invariants of a whole value after each event.
pub(crate) const INSPECTED_MAX: usize = 100;

/// Log that a group of several voters keeps in memory for its followers. The simulator keeps less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Descriptors of applied entries in memory. A group drops older ones when twice as many are there, and reads them
    /// from segments again on demand.
    pub entries: usize,
    /// Bytes of payload in memory. The leader reads older payload from segments.
    pub payload_bytes: usize,
    /// Bytes of a log that one read for a lagging follower returns.
    pub read_bytes: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self { entries: 1024, payload_bytes: 1 << 20, read_bytes: 256 << 10 }
    }
}

const _: () = {
    assert!(SESSION_BYTES_MAX >= FRAME_BYTES_MAX, "one whole request fits a connection");
    assert!(NODE_BYTES_IN_FLIGHT_MAX >= FRAME_BYTES_MAX as u64, "one whole request fits the node");
    assert!(
        PEER_FRAME_BYTES_MAX as u64 >= FRAME_BYTES_MAX as u64 + 2 * PEER_BYTES_IN_FLIGHT_MAX,
        "a node accepts the largest frame"
    );
    assert!(FORWARDED_KEPT_TICKS > FORWARD_TICKS_MAX, "a repeated request is remembered");
    assert!(GROUP_APPLIED_KEPT < GROUP_APPLIED_MAX, "a group above its bound has entries to drop");
    assert!(ELECTION_TICKS > HEARTBEAT_TICKS, "Raft requires it");
    assert!(PRODUCER_ID_BLOCK > 0 && SWEEP_SLICE > 0);
};
