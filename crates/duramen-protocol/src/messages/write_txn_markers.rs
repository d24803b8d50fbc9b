//! `WriteTxnMarkers` (key 27): the ends of transactions, into the logs that they wrote to.

use crate::messages::declare::declare;

declare! {
    /// Request of `WriteTxnMarkers`.
    pub struct WriteTxnMarkersRequest: versions 1..=2, flexible 1.. {
        markers: Vec<WritableTxnMarker> [0..],
    }

    /// Stands in [`WriteTxnMarkersRequest::markers`].
    pub struct WritableTxnMarker {
        producer_id: i64 [0..],
        producer_epoch: i16 [0..],
        transaction_result: bool [0..],
        topics: Vec<WritableTxnMarkerTopic> [0..],
        coordinator_epoch: i32 [0..],
        transaction_version: i8 [2.., ignorable],
    }

    /// Stands in [`WritableTxnMarker::topics`].
    pub struct WritableTxnMarkerTopic {
        name: String [0..],
        partition_indexes: Vec<i32> [0..],
    }

    /// Response of `WriteTxnMarkers`.
    pub struct WriteTxnMarkersResponse: versions 1..=2, flexible 1.. {
        markers: Vec<WritableTxnMarkerResult> [0..],
    }

    /// Stands in [`WriteTxnMarkersResponse::markers`].
    pub struct WritableTxnMarkerResult {
        producer_id: i64 [0..],
        topics: Vec<WritableTxnMarkerTopicResult> [0..],
    }

    /// Stands in [`WritableTxnMarkerResult::topics`].
    pub struct WritableTxnMarkerTopicResult {
        name: String [0..],
        partitions: Vec<WritableTxnMarkerPartitionResult> [0..],
    }

    /// Stands in [`WritableTxnMarkerTopicResult::partitions`].
    pub struct WritableTxnMarkerPartitionResult {
        partition_index: i32 [0..],
        error_code: i16 [0..],
    }
}
