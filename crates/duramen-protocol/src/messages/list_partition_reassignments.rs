//! `ListPartitionReassignments` (key 46): partitions that are being moved.

use crate::messages::declare::declare;

declare! {
    /// Request of `ListPartitionReassignments`.
    pub struct ListPartitionReassignmentsRequest: versions 0..=0, flexible 0.. {
        timeout_ms: i32 [0..] = 60000,
        topics: Option<Vec<ListPartitionReassignmentsTopics>> [0.., nullable 0..],
    }

    /// Stands in [`ListPartitionReassignmentsRequest::topics`].
    pub struct ListPartitionReassignmentsTopics {
        name: String [0..],
        partition_indexes: Vec<i32> [0..],
    }

    /// Response of `ListPartitionReassignments`.
    pub struct ListPartitionReassignmentsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        topics: Vec<OngoingTopicReassignment> [0..],
    }

    /// Stands in [`ListPartitionReassignmentsResponse::topics`].
    pub struct OngoingTopicReassignment {
        name: String [0..],
        partitions: Vec<OngoingPartitionReassignment> [0..],
    }

    /// Stands in [`OngoingTopicReassignment::partitions`].
    pub struct OngoingPartitionReassignment {
        partition_index: i32 [0..],
        replicas: Vec<i32> [0..],
        adding_replicas: Vec<i32> [0..],
        removing_replicas: Vec<i32> [0..],
    }
}
