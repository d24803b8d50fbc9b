//! `DeleteTopics` (key 20): delete topics, by name or id.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `DeleteTopics`.
    pub struct DeleteTopicsRequest: versions 1..=6, flexible 4.. {
        topics: Vec<DeleteTopicState> [6..],
        topic_names: Vec<String> [0..=5, ignorable],
        timeout_ms: i32 [0..],
    }

    /// Stands in [`DeleteTopicsRequest::topics`].
    pub struct DeleteTopicState {
        name: Option<String> [6.., nullable 6..],
        topic_id: Uuid [6..],
    }

    /// Response of `DeleteTopics`.
    pub struct DeleteTopicsResponse: versions 1..=6, flexible 4.. {
        throttle_time_ms: i32 [1.., ignorable],
        responses: Vec<DeletableTopicResult> [0..],
    }

    /// Stands in [`DeleteTopicsResponse::responses`].
    pub struct DeletableTopicResult {
        name: Option<String> [0.., nullable 6..] = Some(String::new()),
        topic_id: Uuid [6.., ignorable],
        error_code: i16 [0..],
        error_message: Option<String> [5.., nullable 5.., ignorable],
    }
}
