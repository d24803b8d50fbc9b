//! Plain counters and gauges of a node.

use duramen_storage::op::{Compacted, ReplicaId};

use crate::raft::{Group, GroupId};

/// Counters and gauges of a node. The driver measures time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a gauge of its own")]
pub struct Metrics {
    /// Requests that reached the node.
    pub requests: u64,
    /// Operations that rules of access denied.
    pub denials: u64,
    /// Replies that the node gave.
    pub replies: u64,
    /// Record batches it appended.
    pub batches: u64,
    /// Bytes of those batches.
    pub batch_bytes: u64,
    /// Produces that found their batch appended already.
    pub duplicates: u64,
    /// Produces that had to wait for bytes in flight.
    pub stalls: u64,
    /// Fast appends that replicas here took to hold.
    pub fast_held: u64,
    /// Fast appends that leaders here counted in a stretch.
    pub fast_appended: u64,
    /// Fast appends that were not taken: their clients go on without them.
    pub fast_not_taken: u64,
    /// Stretches that leaders here began.
    pub stretches: u64,
    /// Gauge: stretches that are open here.
    pub stretches_open: u64,
    /// Batches that new leaders here took over, since others held them.
    pub taken_over: u64,
    /// Bytes of batches that letters to other nodes left out, because clients send them there too.
    pub left_out: u64,
    /// Gauge: bytes of batches that replicas here hold.
    pub held_bytes: u64,
    /// Gauge: leaders here that do not serve yet, since they have to learn what was held.
    pub partitions_settling: u64,
    /// Trim entries proposed by retention.
    pub retention_trims: u64,
    /// Logs that were compacted.
    pub compactions: u64,
    /// Bytes of batches that compaction removed.
    pub compacted_bytes: u64,
    /// Gauge: requests that wait for something.
    pub parked: u64,
    /// Gauge: bytes of batches between arrival and sync.
    pub bytes_in_flight: u64,
    /// Gauge: replicas here, the metadata group not counted.
    pub partitions: u64,
    /// Gauge: quiesced ones of those replicas, whose group has nothing to do.
    pub partitions_asleep: u64,
    /// Times that a replica here became quiesced.
    pub partitions_slept: u64,
    /// Gauge: nodes that disagree with this one about the quiesced groups that they lead with it.
    pub sleep_disputes: u64,
    /// Gauge: failed ones of those replicas.
    pub partitions_failed: u64,
    /// Gauge: partitions of `__consumer_offsets`, `__transaction_state` and `__share_group_state` whose log this node
    /// leads and cannot read, so that their coordinators do not serve.
    pub coordinators_failed: u64,
    /// Gauge: producers remembered.
    pub producers: u64,
    /// Gauge: incremental fetch sessions.
    pub fetch_sessions: u64,
    /// Gauge: sessions of consumers of share groups.
    pub share_sessions: u64,
    /// Gauge: partitions that share groups use here.
    pub share_partitions: u64,
    /// Gauge: their records that were looked at and that the groups are not done with.
    pub share_records: u64,
    /// Batches of records that share groups have given up and that are not in their dead-letter topics yet.
    pub burials: u64,
    /// Gauge: reads of queues that wait for an element.
    pub queue_reads_waiting: u64,
    /// Gauge: committed records of queue topics that the queue index does not have yet.
    pub queue_index_lag: u64,
    /// Frames from a node of another cluster or another directory.
    pub foreign_frames: u64,
    /// Messages in a frame that are not for a replica here, or not from one that is placed where they come from.
    pub foreign_letters: u64,
    /// Gauge: followers that lack entries which their leader here no longer has in memory.
    pub left_behind: u64,
    /// Times that a replica here handed leadership over on purpose, or tried to.
    pub handovers: u64,
    /// Gauge: segments here that are known to be damaged, and not repaired yet.
    pub segments_damaged: u64,
    /// Segments that were repaired with other replicas' batches.
    pub segments_mended: u64,
    /// Bytes of batches that were put into those segments.
    pub mended_bytes: u64,
    /// Pieces given to other nodes, to repair theirs.
    pub ranges_given: u64,
    /// Pieces of compacted logs' prefixes given to other nodes.
    pub prefixes_given: u64,
    /// Bytes of batches read for throttled replicas of other nodes.
    pub throttled_bytes: u64,
    /// Times that a leap of the wall clock held retention.
    pub clock_holds: u64,
    /// Gauge: true while a leap of the wall clock holds retention.
    pub is_clock_held: bool,
    /// Gauge: the largest difference, in milliseconds, between this node's wall clock and another's when that was heard
    /// last.
    pub clocks_apart_ms: u64,
    /// Gauge: true while so few nodes share this one's time that nothing is removed for its age.
    pub is_clock_alone: bool,
    /// Gauge: true while appends are refused for want of space.
    pub is_disk_full: bool,
    /// Gauge: true if the node gave up leadership because of its disk, and is not given any yet.
    pub has_slow_disk: bool,
    /// Gauge: true while the node still waits for its groups to lead.
    pub is_opening: bool,
    /// Gauge: registered nodes that were not heard lately.
    pub nodes_unheard: u64,
    /// Gauge: partitions that are led here, with replicas that are not in sync.
    pub partitions_under_replicated: u64,
}

/// Readiness of a node to serve, as it sees itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// True while the node still waits for its groups to lead.
    pub is_opening: bool,
    /// True if the node is registered, and has the metadata up to its registration.
    pub is_member: bool,
    /// True if the node knows a leader of the metadata.
    pub knows_leader: bool,
    /// Registered nodes, this one among them.
    pub nodes: u64,
    /// Registered nodes that were not heard lately.
    pub nodes_unheard: u64,
}

/// State of one replica, for a comparison of the cluster's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The topic's id.
    pub topic_id: [u8; 16],
    /// The partition.
    pub partition: i32,
    /// The replica.
    pub replica: ReplicaId,
    /// Its term.
    pub term: u64,
    /// True if the replica leads and serves.
    pub serves: bool,
    /// The peer that leads, if the replica knows one.
    pub leader: Option<u64>,
    /// Voters, as far as the replica knows.
    pub voters: Vec<u64>,
    /// Learners, as far as the replica knows.
    pub learners: Vec<u64>,
    /// True if the replica is quiesced.
    pub is_asleep: bool,
    /// True if the partition is being moved to other nodes.
    pub is_reassigned: bool,
    /// Log start offset.
    pub log_start: i64,
    /// High watermark, as far as the replica knows.
    pub committed: i64,
    /// Reason of the replica's failure, if it has failed.
    pub failure: Option<String>,
    /// Followers that lack entries which their leader cannot give.
    pub left_behind: usize,
    /// Entries that the replica made again from segments, for followers.
    pub rebuilt: u64,
    /// Times that the replica's log began anew.
    pub begun: u64,
    /// Extent of the log's compaction.
    pub compacted: Compacted,
    /// Time by which records had expired that this compaction took by themselves, in milliseconds since 1970; 0 for
    /// none, or if the next compaction is under way.
    pub expired_by_ms: i64,
}

pub(crate) fn standing(id: GroupId, group: &Group, log_start: i64, committed: i64) -> Standing {
    Standing {
        topic_id: id.topic_id,
        partition: id.partition,
        replica: group.id(),
        term: group.term(),
        serves: group.is_serving(),
        leader: group.leader(),
        voters: group.electorate(),
        learners: group.learners(),
        is_asleep: group.is_asleep(),
        is_reassigned: false,
        log_start,
        committed,
        failure: group.failure().map(str::to_owned),
        left_behind: group.left_behind(),
        rebuilt: group.rebuilt(),
        begun: group.begun(),
        compacted: Compacted::default(),
        expired_by_ms: 0,
    }
}
