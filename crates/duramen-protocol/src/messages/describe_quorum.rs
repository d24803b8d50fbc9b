//! `DescribeQuorum` (key 55): voters and lag of the metadata log.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DescribeQuorum`.
    pub struct DescribeQuorumRequest: versions 0..=2, flexible 0.. {
        topics: Vec<RequestTopicData> [0..],
    }

    /// Stands in [`DescribeQuorumRequest::topics`].
    pub struct RequestTopicData {
        topic_name: String [0..],
        partitions: Vec<RequestPartitionData> [0..],
    }

    /// Stands in [`RequestTopicData::partitions`].
    pub struct RequestPartitionData {
        partition_index: i32 [0..],
    }

    /// Response of `DescribeQuorum`.
    pub struct DescribeQuorumResponse: versions 0..=2, flexible 0.. {
        error_code: i16 [0..],
        error_message: Option<String> [2.., nullable 2.., ignorable],
        topics: Vec<ResponseTopicData> [0..],
        nodes: Vec<Node> [2..],
    }

    /// Stands in [`DescribeQuorumResponse::topics`].
    pub struct ResponseTopicData {
        topic_name: String [0..],
        partitions: Vec<ResponsePartitionData> [0..],
    }

    /// Stands in [`ResponseTopicData::partitions`].
    pub struct ResponsePartitionData {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [2.., nullable 2.., ignorable],
        leader_id: i32 [0..],
        leader_epoch: i32 [0..],
        high_watermark: i64 [0..],
        current_voters: Vec<ReplicaState> [0..],
        observers: Vec<ReplicaState> [0..],
    }

    /// Stands in [`ResponsePartitionData::current_voters`].
    pub struct ReplicaState {
        replica_id: i32 [0..],
        replica_directory_id: Uuid [2..],
        log_end_offset: i64 [0..],
        last_fetch_timestamp: i64 [1.., ignorable] = -1,
        last_caught_up_timestamp: i64 [1.., ignorable] = -1,
    }

    /// Stands in [`DescribeQuorumResponse::nodes`].
    pub struct Node {
        node_id: i32 [2..],
        listeners: Vec<Listener> [2..],
    }

    /// Stands in [`Node::listeners`].
    pub struct Listener {
        name: String [2..],
        host: String [2..],
        port: u16 [2..],
    }
}
