//! `DescribeFast` (key 10001, ours): the stretch that is open in a partition. To its members a client sends batches
//! with `AppendFast`.
//!
//! The leader of a partition answers. Another node answers `NOT_LEADER_OR_FOLLOWER`, and names the leader that it
//! knows. With `open` the leader opens a stretch where none is open, and answers once it is.
//!
//! Other errors are `TOPIC_AUTHORIZATION_FAILED`, `UNKNOWN_TOPIC_ID`, `UNKNOWN_TOPIC_OR_PARTITION`,
//! `INVALID_TOPIC_EXCEPTION` and `KAFKA_STORAGE_ERROR`. With `open`, `POLICY_VIOLATION` means that the topic's
//! `fast.append.enable` is false. `REQUEST_TIMED_OUT` comes after five seconds, and `NOT_ENOUGH_REPLICAS` if too few
//! members can be had. `THROTTLING_QUOTA_EXCEEDED` comes where stretches began too lately, and
//! `REASSIGNMENT_IN_PROGRESS` while replicas move. `UNSUPPORTED_VERSION` comes while a node with a replica runs an
//! earlier build.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DescribeFast`.
    pub struct DescribeFastRequest: versions 0..=0, flexible 0.. {
        open: bool [0..],
        topics: Vec<DescribeFastTopic> [0..],
    }

    /// Stands in [`DescribeFastRequest::topics`].
    pub struct DescribeFastTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }

    /// Response of `DescribeFast`.
    pub struct DescribeFastResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        topics: Vec<DescribedFastTopic> [0..],
    }

    /// Stands in [`DescribeFastResponse::topics`].
    pub struct DescribedFastTopic {
        topic_id: Uuid [0..],
        partitions: Vec<DescribedFast> [0..],
    }

    /// Stands in [`DescribedFastTopic::partitions`]. The stretch is -1, -1 if none is open. Its members are broker ids,
    /// the leader first.
    pub struct DescribedFast {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        stretch_term: i64 [0..] = -1,
        stretch_index: i64 [0..] = -1,
        leader_id: i32 [0..] = -1,
        leader_epoch: i32 [0..] = -1,
        members: Vec<i32> [0..],
    }
}
