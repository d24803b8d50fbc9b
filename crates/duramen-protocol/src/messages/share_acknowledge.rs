//! `ShareAcknowledge` (key 79): acknowledge records that were acquired for a share group.

pub use super::share_fetch::{AcknowledgementBatch, LeaderIdAndEpoch, NodeEndpoint};
use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `ShareAcknowledge`.
    pub struct ShareAcknowledgeRequest: versions 1..=2, flexible 0.. {
        group_id: Option<String> [0.., nullable 0..],
        member_id: Option<String> [0.., nullable 0..],
        share_session_epoch: i32 [0..],
        is_renew_ack: bool [2..],
        topics: Vec<AcknowledgeTopic> [0..],
    }

    /// Stands in [`ShareAcknowledgeRequest::topics`].
    pub struct AcknowledgeTopic {
        topic_id: Uuid [0..],
        partitions: Vec<AcknowledgePartition> [0..],
    }

    /// Stands in [`AcknowledgeTopic::partitions`].
    pub struct AcknowledgePartition {
        partition_index: i32 [0..],
        acknowledgement_batches: Vec<AcknowledgementBatch> [0..],
    }

    /// Response of `ShareAcknowledge`.
    pub struct ShareAcknowledgeResponse: versions 1..=2, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        acquisition_lock_timeout_ms: i32 [2.., ignorable],
        responses: Vec<ShareAcknowledgeTopicResponse> [0..],
        node_endpoints: Vec<NodeEndpoint> [0..],
    }

    /// Stands in [`ShareAcknowledgeResponse::responses`].
    pub struct ShareAcknowledgeTopicResponse {
        topic_id: Uuid [0..],
        partitions: Vec<PartitionData> [0..],
    }

    /// Stands in [`ShareAcknowledgeTopicResponse::partitions`].
    pub struct PartitionData {
        partition_index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        current_leader: LeaderIdAndEpoch [0..],
    }
}
