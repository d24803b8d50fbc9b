//! `DescribeReplicas` (key 10000, ours): what a node holds of partitions, digests of it, and faults of queue indexes;
//! the stretches of fast appends that the node has open.

use bytes::Bytes;

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DescribeReplicas`.
    pub struct DescribeReplicasRequest: versions 0..=0, flexible 0.. {
        topics: Vec<DescribeReplicasTopic> [0..],
        bytes_max: i32 [0..],
    }

    /// Stands in [`DescribeReplicasRequest::topics`].
    pub struct DescribeReplicasTopic {
        topic_id: Uuid [0..],
        partitions: Vec<DescribeReplicasPartition> [0..],
    }

    /// Stands in [`DescribeReplicasTopic::partitions`].
    pub struct DescribeReplicasPartition {
        partition_index: i32 [0..],
        from_offset: i64 [0..] = -1,
        to_offset: i64 [0..] = -1,
        queues_end: i64 [0.., tag 0 in 0..] = -1,
        erasure: bool [0.., tag 1 in 0..],
    }

    /// Response of `DescribeReplicas`.
    pub struct DescribeReplicasResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        topics: Vec<DescribedReplicasTopic> [0..],
        wall_ms: i64 [0.., tag 0 in 0..],
        is_clock_alone: bool [0.., tag 1 in 0..],
        disk_free_bytes: i64 [0.., tag 2 in 0..],
        disk_needed_bytes: i64 [0.., tag 3 in 0..],
        stretches: Vec<DescribedStretch> [0.., tag 4 in 0..],
        plain_nodes: Vec<i32> [0.., tag 5 in 0..],
    }

    /// Stands in [`DescribeReplicasResponse::stretches`].
    pub struct DescribedStretch {
        topic_id: Uuid [0..],
        partition_index: i32 [0..],
        stretch_term: i64 [0..] = -1,
        stretch_index: i64 [0..] = -1,
        members: Vec<i32> [0..],
    }

    /// Stands in [`DescribeReplicasResponse::topics`].
    pub struct DescribedReplicasTopic {
        topic_id: Uuid [0..],
        partitions: Vec<DescribedReplica> [0..],
    }

    /// Stands in [`DescribedReplicasTopic::partitions`].
    pub struct DescribedReplica {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        replica_id: i64 [0..] = -1,
        start_offset: i64 [0..] = -1,
        committed_offset: i64 [0..] = -1,
        first_offset: i64 [0..] = -1,
        end_offset: i64 [0..] = -1,
        bytes: i64 [0..],
        digest: Bytes [0..],
        segments: Vec<i64> [0..],
        damaged_offset: i64 [0..] = -1,
        damage: Option<String> [0.., nullable 0..],
        compaction: i64 [0.., tag 0 in 0..],
        compacted_offset: i64 [0.., tag 1 in 0..],
        stable_offset: i64 [0.., tag 2 in 0..] = -1,
        indexed_offset: i64 [0.., tag 3 in 0..] = -1,
        elements: i64 [0.., tag 4 in 0..] = -1,
        queues: i64 [0.., tag 5 in 0..],
        faults: Vec<QueueFault> [0.., tag 6 in 0..],
        shown: Vec<DescribedElement> [0.., tag 7 in 0..],
        hidden_records: i64 [0.., tag 8 in 0..] = -1,
        hidden_since_ms: i64 [0.., tag 9 in 0..] = -1,
        names_are_left: bool [0.., tag 10 in 0..],
        expires_ms: i64 [0.., tag 11 in 0..] = -1,
    }

    /// Stands in [`DescribedReplica::faults`].
    pub struct QueueFault {
        queue: Bytes [0..],
        term: i32 [0..] = -1,
        entry: i64 [0..] = -1,
        offset: i64 [0..] = -1,
        what: String [0..],
    }

    /// Stands in [`DescribedReplica::shown`].
    pub struct DescribedElement {
        queue: Bytes [0..],
        term: i32 [0..] = -1,
        entry: i64 [0..] = -1,
        offset: i64 [0..] = -1,
        version: i64 [0..] = -1,
        digest: Bytes [0..],
    }
}
