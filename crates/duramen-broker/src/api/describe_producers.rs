//! `DescribeProducers`: the producers that write to a partition with sequences.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_producers::{
    PartitionResponse, ProducerState, TopicResponse,
};
use duramen_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse};

use crate::access::{Operation, Resource};
use crate::controller::{Error, name_problem};
use crate::node::Node;
use crate::partition::producers::ActiveProducer;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeProducersRequest,
) -> DescribeProducersResponse {
    // The answer describes a partition once, however often the request names it: many producers many times would be
    // very much.
    let mut told = BTreeSet::new();
    let topics = request.topics.iter().map(|topic| {
        let partition = |&partition_index: &i32| {
            let mut answer = PartitionResponse { partition_index, ..Default::default() };
            match active(node, context, &topic.name, partition_index) {
                Ok(active) => answer.active_producers = active,
                Err(error) => {
                    answer.error_code = error.code.code();
                    answer.error_message = Some(error.message);
                }
            }
            answer
        };
        let asked = topic.partition_indexes.iter();
        let is_first = |index: &&i32| told.insert((topic.name.as_str(), **index));
        TopicResponse {
            name: topic.name.clone(),
            partitions: asked.filter(is_first).map(partition).collect(),
        }
    });
    DescribeProducersResponse { topics: topics.collect(), ..Default::default() }
}

fn active(
    node: &Node,
    context: &RequestContext,
    name: &str,
    index: i32,
) -> Result<Vec<ProducerState>, Error> {
    let admitted = node.core.access.admit(context, Operation::Read, Resource::Topic(name));
    admitted.map_err(|code| Error::new(code, "not allowed to read the topic"))?;
    if let Some(problem) = name_problem(name) {
        return Err(Error::new(ErrorCode::InvalidTopicException, problem));
    }
    let topic =
        node.core.controller.image.topic_named(name).ok_or_else(|| {
            Error::new(ErrorCode::UnknownTopicOrPartition, "there is no such topic")
        })?;
    let partition = node
        .core
        .serving(topic, index)
        .map_err(|code| Error::new(code, "the partition is not served here now"))?;
    let one = |producer: ActiveProducer| ProducerState {
        producer_id: producer.id,
        producer_epoch: i32::from(producer.epoch),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp,
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_start_offset: producer.open,
    };
    Ok(partition.active_producers().map(one).collect())
}
