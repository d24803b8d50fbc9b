//! `CreatePartitions` (key 37): add partitions to topics.

use crate::messages::declare::declare;

declare! {
    /// Request of `CreatePartitions`.
    pub struct CreatePartitionsRequest: versions 0..=3, flexible 2.. {
        topics: Vec<CreatePartitionsTopic> [0..],
        timeout_ms: i32 [0..],
        validate_only: bool [0..],
    }

    /// Stands in [`CreatePartitionsRequest::topics`].
    pub struct CreatePartitionsTopic {
        name: String [0..],
        count: i32 [0..],
        assignments: Option<Vec<CreatePartitionsAssignment>> [0.., nullable 0..],
    }

    /// Stands in [`CreatePartitionsTopic::assignments`].
    pub struct CreatePartitionsAssignment {
        broker_ids: Vec<i32> [0..],
    }

    /// Response of `CreatePartitions`.
    pub struct CreatePartitionsResponse: versions 0..=3, flexible 2.. {
        throttle_time_ms: i32 [0..],
        results: Vec<CreatePartitionsTopicResult> [0..],
    }

    /// Stands in [`CreatePartitionsResponse::results`].
    pub struct CreatePartitionsTopicResult {
        name: String [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
