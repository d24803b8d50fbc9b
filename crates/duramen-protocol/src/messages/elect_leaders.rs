//! `ElectLeaders` (key 43): make preferred replicas lead, or any.

use crate::messages::declare::declare;

declare! {
    /// Request of `ElectLeaders`.
    pub struct ElectLeadersRequest: versions 0..=2, flexible 2.. {
        election_type: i8 [1..],
        topic_partitions: Option<Vec<TopicPartitions>> [0.., nullable 0..],
        timeout_ms: i32 [0..] = 60000,
    }

    /// Stands in [`ElectLeadersRequest::topic_partitions`].
    pub struct TopicPartitions {
        topic: String [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `ElectLeaders`.
    pub struct ElectLeadersResponse: versions 0..=2, flexible 2.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [1..],
        replica_election_results: Vec<ReplicaElectionResult> [0..],
    }

    /// Stands in [`ElectLeadersResponse::replica_election_results`].
    pub struct ReplicaElectionResult {
        topic: String [0..],
        partition_result: Vec<PartitionResult> [0..],
    }

    /// Stands in [`ReplicaElectionResult::partition_result`].
    pub struct PartitionResult {
        partition_id: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
