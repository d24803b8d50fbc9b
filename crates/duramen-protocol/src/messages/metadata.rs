//! `Metadata` (key 3): brokers, topics, partitions and their leaders.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `Metadata`.
    pub struct MetadataRequest: versions 0..=13, flexible 9.. {
        topics: Option<Vec<MetadataRequestTopic>> [0.., nullable 1..] = Some(Vec::new()),
        allow_auto_topic_creation: bool [4..] = true,
        include_cluster_authorized_operations: bool [8..=10],
        include_topic_authorized_operations: bool [8..],
    }

    /// Stands in [`MetadataRequest::topics`].
    pub struct MetadataRequestTopic {
        topic_id: Uuid [10.., ignorable],
        name: Option<String> [0.., nullable 10..] = Some(String::new()),
    }

    /// Response of `Metadata`.
    pub struct MetadataResponse: versions 0..=13, flexible 9.. {
        throttle_time_ms: i32 [3.., ignorable],
        brokers: Vec<MetadataResponseBroker> [0..],
        cluster_id: Option<String> [2.., nullable 2.., ignorable],
        controller_id: i32 [1.., ignorable] = -1,
        topics: Vec<MetadataResponseTopic> [0..],
        cluster_authorized_operations: i32 [8..=10] = i32::MIN,
        error_code: i16 [13.., ignorable],
    }

    /// Stands in [`MetadataResponse::brokers`].
    pub struct MetadataResponseBroker {
        node_id: i32 [0..],
        host: String [0..],
        port: i32 [0..],
        rack: Option<String> [1.., nullable 1.., ignorable],
    }

    /// Stands in [`MetadataResponse::topics`].
    pub struct MetadataResponseTopic {
        error_code: i16 [0..],
        name: Option<String> [0.., nullable 12..] = Some(String::new()),
        topic_id: Uuid [10.., ignorable],
        is_internal: bool [1.., ignorable],
        partitions: Vec<MetadataResponsePartition> [0..],
        topic_authorized_operations: i32 [8..] = i32::MIN,
    }

    /// Stands in [`MetadataResponseTopic::partitions`].
    pub struct MetadataResponsePartition {
        error_code: i16 [0..],
        partition_index: i32 [0..],
        leader_id: i32 [0..],
        leader_epoch: i32 [7.., ignorable] = -1,
        replica_nodes: Vec<i32> [0..],
        isr_nodes: Vec<i32> [0..],
        offline_replicas: Vec<i32> [5.., ignorable],
    }
}
