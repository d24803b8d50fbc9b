//! # Room card: limits
//!
//! Purpose:    every bound of a node that is not a setting.
//! Owns:       the constants, and the proofs that they fit together.
//! Interface:  the constants.
//! Invariants: the `const` assertions below.
//! Never:      anything that an operator should turn.
//! Tests:      the compiler.
//! Start at:   the list.

/// The largest request frame, in bytes; Kafka's `socket.request.max.bytes` default.
pub const FRAME_BYTES_MAX: usize = 100 << 20;
/// Produces of one connection that may wait for their reply; above, the connection is not read.
pub const SESSION_REQUESTS_MAX: usize = 1024;
/// Bytes of requests of one connection that may wait; above, the connection is not read.
pub const SESSION_BYTES_MAX: usize = 128 << 20;
/// What an element of an array of a request takes of memory, about, with what is answered to it.
pub const ELEMENT_BYTES: usize = 256;
/// Bytes that the records of one batch may take when decompressed.
pub const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;
/// Those of one request may take as much together, or so many times its own bytes if that is more.
pub const DECOMPRESSED_RATIO_MAX: usize = 64;
/// A request whose records take more than this when decompressed, and more than
/// [`DECOMPRESSED_RATIO_QUICK`] times its own bytes, is checked where nobody else waits for it.
pub const DECOMPRESSED_BYTES_QUICK: usize = 1 << 20;
/// Real records are seldom compressed more than this.
pub const DECOMPRESSED_RATIO_QUICK: usize = 8;
/// Bytes of record batches that a node holds between their arrival and their sync.
pub const NODE_BYTES_IN_FLIGHT_MAX: u64 = 256 << 20;

/// Segments of a partition above which one ends only where it must, at 2 GiB: storage remembers
/// each in every checkpoint, 76 bytes and more, and a checkpoint has to fit into a round of 4 MiB. A
/// test build makes fewer.
pub(crate) const PARTITION_SEGMENTS: usize = if cfg!(test) { 32 } else { 16 << 10 };

/// How long what has to wait for a transaction to be over is kept; then the client is told to ask again.
pub(crate) const TRANSACTION_WAIT_US: u64 = 1_000_000;
/// After this time a coordinator of transactions tries again to write what it could not.
pub(crate) const TRANSACTION_AGAIN_US: u64 = 500_000;
/// After this time a coordinator of transactions writes that one is over, if nothing that says so was written before.
pub(crate) const TRANSACTION_COMPLETE_US: u64 = 50_000;
/// Time between two looks at what was asked of coordinators and leaders of partitions, and was not answered.
pub(crate) const TRANSACTION_CALL_US: u64 = 50_000;
/// So long after it was sent, it is sent again.
pub(crate) const TRANSACTION_CALL_AGAIN_US: u64 = 250_000;
/// How long batches wait to be let into their transaction, before their producer is told to send them again.
pub(crate) const TRANSACTION_CALL_US_MAX: u64 = 5_000_000;
/// Time between two looks at what was asked of coordinators of share groups' states, and was not answered.
pub(crate) const SHARE_CALL_US: u64 = 50_000;
/// So long after it was sent, it is sent again.
pub(crate) const SHARE_CALL_AGAIN_US: u64 = 250_000;
/// How long a leader is kept waiting for an answer.
pub(crate) const SHARE_CALL_US_MAX: u64 = 10_000_000;
/// Aborted transactions that are told of with one partition of a fetch; where there are more, less is read. A test build tells
/// of fewer.
pub(crate) const FETCH_ABORTED_MAX: usize = if cfg!(test) { 4 } else { 1000 };

/// Entries at or below the applied index that a group keeps in memory.
pub(crate) const GROUP_APPLIED_KEPT: usize = 64;
/// Applied entries above which a group drops down to [`GROUP_APPLIED_KEPT`].
pub(crate) const GROUP_APPLIED_MAX: usize = 128;
/// The highest Raft term: it is the leader epoch, which is an `i32` on the wire.
pub(crate) const TERM_MAX: u64 = i32::MAX as u64;
/// Ticks of an election timeout; the randomized one lies between this and its double.
pub(crate) const ELECTION_TICKS: usize = 10;
/// Ticks between heartbeats.
pub(crate) const HEARTBEAT_TICKS: usize = 2;

/// Time between two ticks of groups of several voters.
pub(crate) const TICK_US: u64 = 50_000;
/// Ticks after which a follower that was not heard of, or that lacks what was committed then, is not in sync: 10 s,
/// Kafka's `replica.lag.time.max.ms` default.
pub(crate) const LAG_TICKS: u64 = 200;
/// Ticks between two frames to a node to which nothing else is to be said: they stand in for the heartbeats of all groups
/// that sleep.
pub(crate) const PEER_BEAT_TICKS: u64 = 2;
/// Ticks between two times that what is asked of another node again and again is asked.
pub(crate) const PEER_QUIET_TICKS: u64 = 10;
/// Ticks without anything to do after which a group of several voters sleeps: 2 s. The simulator waits less.
pub const GROUP_QUIET_TICKS: u64 = 40;
/// Ticks of silence after which clients are not told of a node any more: 3 s.
pub(crate) const PEER_SILENT_TICKS: u64 = 60;
/// Bytes of batches on their way to one node; above, a group's appends to it wait.
pub(crate) const PEER_BYTES_IN_FLIGHT_MAX: u64 = 8 << 20;
/// One frame between nodes: at most what may be on the way, one more batch that is as large as any, and the rest.
pub const PEER_FRAME_BYTES_MAX: u32 = 160 << 20;
/// Groups in one frame that fell asleep or woke.
pub(crate) const PEER_SLEEPERS_MAX: usize = if cfg!(test) { 20 } else { 4096 };
/// Ticks after which a new leader has heard of every replica that is there: 1 s.
pub(crate) const LEAD_SETTLED_TICKS: u64 = 2 * ELECTION_TICKS as u64;
/// Announcements of leaders in one frame.
pub(crate) const PEER_LEADS_MAX: usize = 1000;
/// Replicas of metadata that a node answers though it does not know them yet.
pub(crate) const ACQUAINTANCES_MAX: usize = 64;
/// Partitions whose replicas are replaced by one decision; the others follow.
pub(crate) const MOVES_BEGUN_MAX: usize = 100;
/// Appends of one group to one peer that wait for payload to be read.
pub(crate) const GROUP_UNSENT_MAX: usize = 64;
/// Reads for followers at once; the others wait.
pub(crate) const PEER_READS_MAX: usize = 4;
/// Requests that a node may have on their way to the one that leads the metadata; above, clients are sent there.
pub(crate) const FORWARDS_MAX: usize = 256;
/// Bytes of them; and of the answers that are kept for nodes that may ask again.
pub(crate) const FORWARDS_BYTES_MAX: usize = 16 << 20;
/// Ticks until a request that is not answered is sent again; and after which it is sent no more.
pub(crate) const FORWARD_AGAIN_TICKS: u64 = 10;
/// See [`FORWARD_AGAIN_TICKS`].
pub(crate) const FORWARD_TICKS_MAX: u64 = 1200;
/// Ticks for which an answer is kept: a request that is sent no more may still come.
pub(crate) const FORWARDED_KEPT_TICKS: u64 = 2400;
/// Requests of other nodes that are being served, or were and are remembered.
pub(crate) const FORWARDED_MAX: usize = 4096;
/// Ticks that a disk can be behind others, as far as they are counted. One that has stood still for so long is left even
/// for one that is slow.
pub(crate) const DISK_STILL_TICKS: u64 = 4 * ELECTION_TICKS as u64;
/// Ticks for which a node that has given up leadership because of its disk is not given any, after the last one in which the
/// disk was slow: 5 minutes, as long as leaders wait by default before they look who should lead.
pub(crate) const SLOW_DISK_TICKS: u64 = 6000;
/// Ticks after which a node whose disk refuses appends hands over what it leads, and between two looks for what it leads all
/// the same: 1 s.
pub(crate) const FULL_DISK_TICKS: u64 = 20;
/// Ticks for which a disk counts as full after it last refused appends: 10 s.
pub(crate) const FULL_DISK_ROOM_TICKS: u64 = 200;
/// Groups that a node hands over to their preferred replicas at once.
pub(crate) const MOVES_MAX: usize = 16;
/// Groups that a node hands over at once when it is about to end, or its disk is slow or full.
pub(crate) const DRAIN_MOVES_MAX: usize = 256;
/// Ticks between two times that a leader is asked to hand over, as an administrator wants it.
pub(crate) const ELECTION_ASKED_TICKS: u64 = 10;
/// Elections of one request that are looked at, and asked for, at once.
pub(crate) const ELECTIONS_MAX: usize = 256;
/// How long an election that an administrator asked for may take.
pub(crate) const ELECTION_WAITS_US: u64 = 5_000_000;
/// Entries that a leader appends without their commit; above, appends are refused.
pub(crate) const GROUP_UNCOMMITTED_MAX: u64 = 16 << 10;

/// What a group of several voters keeps in memory for its followers. The simulator keeps less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Descriptors of applied entries; up to twice as many at times. Older ones are made again from segments.
    pub entries: usize,
    /// Bytes of payload. Older payload is read.
    pub payload_bytes: usize,
    /// Bytes that are read of a log at once for a follower that lacks what is not in memory.
    pub read_bytes: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self { entries: 1024, payload_bytes: 1 << 20, read_bytes: 256 << 10 }
    }
}

/// Batches remembered for each producer.
pub(crate) const PRODUCER_BATCHES_KEPT: usize = 5;
/// Producer ids allocated by one metadata record.
pub(crate) const PRODUCER_ID_BLOCK: i64 = 1000;
/// Bits of zeroes at the end of the first producer id that a cluster gives out; 32 bits above them are the cluster's own. Ids
/// stay below 2^53, so that numbers in JSON are exact.
pub(crate) const PRODUCER_ID_ZEROES: u32 = 20;
/// Producer ids, from a cluster's first one on, that are taken for its own.
pub(crate) const PRODUCER_IDS_MAX: i64 = 1 << 36;

/// Partitions of one topic.
pub(crate) const TOPIC_PARTITIONS_MAX: i32 = 20_000;
/// Partitions that one `CreateTopics` may ask for, all its topics together; as in Kafka.
pub(crate) const CREATE_PARTITIONS_MAX: i64 = 10_000;
/// Partitions that one `DescribeTopicPartitions` answers; Kafka's
/// `max.request.partition.size.limit` default.
pub(crate) const DESCRIBED_PARTITIONS_MAX: i32 = 2000;
/// Bytes that one `DescribeReplicas` reads for digests: it takes a fraction of a second.
pub(crate) const DIGEST_BYTES_MAX: u64 = 16 << 20;
/// Partitions of one node.
pub(crate) const NODE_PARTITIONS_MAX: usize = 100_000;
/// Bytes of a topic name.
pub(crate) const TOPIC_NAME_BYTES_MAX: usize = 249;
/// Partitions looked at by one slice of the retention sweep.
pub(crate) const SWEEP_SLICE: usize = 256;
/// Milliseconds between two looks for logs that are to be compacted, at least: a node with few partitions would do nothing else.
pub(crate) const CLEANING_MS_MIN: i64 = 100;
/// Time between two slices of a sweep.
pub(crate) const SWEEP_PAUSE_US: u64 = 2_000;
/// How far wall and monotonic clock may part between two retention checks.
pub(crate) const CLOCK_LEAP_MS_MAX: i64 = 10 * 60 * 1000;

/// Incremental fetch sessions; Kafka's `max.incremental.fetch.session.cache.slots` default.
pub(crate) const FETCH_SESSIONS_MAX: usize = 1000;
/// Partitions in all fetch sessions together.
pub(crate) const FETCH_SESSION_PARTITIONS_MAX: usize = 1_000_000;
/// A fetch session unused for this long may give way to a new one.
pub(crate) const FETCH_SESSION_IDLE_US: u64 = 120_000_000;

/// Partitions in all share sessions together.
pub(crate) const SHARE_SESSION_PARTITIONS_MAX: usize = 200_000;
/// Bytes of a log that are looked at at once for a share group.
pub(crate) const SHARE_SURVEY_BYTES: u32 = 1 << 20;
/// Bytes of records that are made one batch of dead letters; one record may be more.
pub(crate) const BURIAL_BYTES: usize = 256 << 10;
/// Batches of dead letters that a node makes and sends at once.
pub(crate) const BURIALS_MAX: usize = 16;
/// Time between two looks at dead letters that are not kept yet.
pub(crate) const BURIAL_US: u64 = 100_000;
/// After how long they are tried again.
pub(crate) const BURIAL_AGAIN_US: u64 = 2_000_000;
/// After how long what could not be read for a share group is read again.
pub(crate) const SHARE_AGAIN_US: u64 = 500_000;

/// Bytes of a log of groups below which it is left as it is, unless its segments are smaller.
pub(crate) const GROUP_LOG_BYTES_MIN: u64 = 4 << 20;
/// Bytes of it that are said again at once.
pub(crate) const GROUP_LOG_SLICE_BYTES: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };
/// Bytes of it that are read and taken in at once when it is loaded: about a thousand commits, a millisecond.
pub(crate) const GROUP_LOG_READ_BYTES: u32 = if cfg!(test) { 1 << 10 } else { 128 << 10 };

/// After how long it is read anew if it could not be read.
pub(crate) const GROUP_LOG_AGAIN_US: u64 = 30_000_000;

/// How long a consumer that has just joined its group is waited for, unless it joins again.
pub(crate) const NEW_MEMBER_WAITS_US: u64 = 300_000_000;

/// How long a topic is not made because nodes of a cluster that was just started have not registered.
pub(crate) const BROKERS_AWAITED_US: u64 = 10_000_000;
/// How long requests wait for the groups to lead after the node opened.
pub(crate) const OPENING_US_MAX: u64 = 30_000_000;

const _: () = {
    assert!(SESSION_BYTES_MAX >= FRAME_BYTES_MAX, "one whole request fits a connection");
    assert!(NODE_BYTES_IN_FLIGHT_MAX >= FRAME_BYTES_MAX as u64, "one whole request fits the node");
    assert!(
        PEER_FRAME_BYTES_MAX as u64 >= FRAME_BYTES_MAX as u64 + 2 * PEER_BYTES_IN_FLIGHT_MAX,
        "what is sent is taken in"
    );
    assert!(FORWARDED_KEPT_TICKS > FORWARD_TICKS_MAX, "what may be sent again is still known");
    assert!(GROUP_APPLIED_KEPT < GROUP_APPLIED_MAX, "dropping must leave something to drop");
    assert!(ELECTION_TICKS > HEARTBEAT_TICKS, "raft demands it");
    assert!(PRODUCER_ID_BLOCK > 0 && SWEEP_SLICE > 0);
};
