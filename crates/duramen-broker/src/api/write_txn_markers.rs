//! `WriteTxnMarkers`: an administrator ends a transaction in a partition where no coordinator will.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::write_txn_markers::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use duramen_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};

use super::results::count_result;
use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;
use crate::partition::{MarkAsker, Marker};
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: WriteTxnMarkersRequest,
) {
    let may = node.core.access.may(context, Operation::Alter, Resource::Cluster)
        || node.core.access.may(context, Operation::ClusterAction, Resource::Cluster);
    let mut response = WriteTxnMarkersResponse::default();
    let mut asked = Vec::new();
    let mut at = 0;
    for marker in request.markers {
        let wanted = Marker {
            producer_id: marker.producer_id,
            epoch: marker.producer_epoch,
            coordinator_epoch: marker.coordinator_epoch,
            commits: marker.transaction_result,
        };
        let mut topics = Vec::with_capacity(marker.topics.len());
        for topic in marker.topics {
            let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
            for partition_index in topic.partition_indexes {
                let code = match node.core.controller.image.topic_named(&topic.name) {
                    _ if !may => ErrorCode::ClusterAuthorizationFailed,
                    None => ErrorCode::UnknownTopicOrPartition,
                    Some(known) => match node.core.serving(known, partition_index) {
                        Err(code) => code,
                        // A producer of version 2 has another epoch after each transaction.
                        Ok(it)
                            if marker.transaction_version >= 2
                                && it.is_in_transaction(wanted.producer_id)
                                && it.producer_epoch(wanted.producer_id) >= Some(wanted.epoch) =>
                        {
                            ErrorCode::InvalidProducerEpoch
                        }
                        Ok(it) => {
                            asked.push((at, it.group.id(), wanted));
                            ErrorCode::None
                        }
                    },
                };
                let error_code = code.code();
                partitions.push(WritableTxnMarkerPartitionResult { partition_index, error_code });
                at += 1;
            }
            topics.push(WritableTxnMarkerTopicResult { name: topic.name, partitions });
        }
        let producer_id = marker.producer_id;
        response.markers.push(WritableTxnMarkerResult { producer_id, topics });
    }
    if asked.is_empty() {
        return node.reply(key, response);
    }
    let outstanding = asked.len();
    assert!(outstanding <= at, "only partitions of the request are marked");
    node.core.park(key, Parked::Markers { response, outstanding }, u64::MAX);
    for (at, replica, marker) in asked {
        let asker = MarkAsker::Request { key, at };
        node.coordinators.mark(&mut node.core, replica, marker, None, asker);
    }
}

/// Records the result of one marker, by its place among all markers of the request.
pub(crate) fn on_marked(node: &mut Node, key: RequestKey, at: usize, code: ErrorCode) {
    let Some(Parked::Markers { response, .. }) = node.core.parked_mut(key) else { return };
    let topics = response.markers.iter_mut().flat_map(|marker| &mut marker.topics);
    let mut partitions = topics.flat_map(|topic| &mut topic.partitions);
    if let Some(partition) = partitions.nth(at) {
        partition.error_code = code.code();
    }
    count_result(node, key);
}
