//! `DeleteShareGroupOffsets` (key 92): forget where a share group starts in topics.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DeleteShareGroupOffsets`.
    pub struct DeleteShareGroupOffsetsRequest: versions 0..=0, flexible 0.. {
        group_id: String [0..],
        topics: Vec<DeleteShareGroupOffsetsRequestTopic> [0..],
    }

    /// Stands in [`DeleteShareGroupOffsetsRequest::topics`].
    pub struct DeleteShareGroupOffsetsRequestTopic {
        topic_name: String [0..],
    }

    /// Response of `DeleteShareGroupOffsets`.
    pub struct DeleteShareGroupOffsetsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        responses: Vec<DeleteShareGroupOffsetsResponseTopic> [0..],
    }

    /// Stands in [`DeleteShareGroupOffsetsResponse::responses`].
    pub struct DeleteShareGroupOffsetsResponseTopic {
        topic_name: String [0..],
        topic_id: Uuid [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
