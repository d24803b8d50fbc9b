//! `DescribeProducers`: who writes to a partition with sequences.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_producers::{
    PartitionResponse, ProducerState, TopicRequest, TopicResponse,
};
use duramen_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse};

use super::{Operation, Resource, authorize};
use crate::controller::{Error, name_problem};
use crate::node::Node;
use crate::partition::producers::ActiveProducer;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeProducersRequest,
) -> DescribeProducersResponse {
    let topic = |topic: &TopicRequest| {
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
        TopicResponse {
            name: topic.name.clone(),
            partitions: topic.partition_indexes.iter().map(partition).collect(),
        }
    };
    let topics = request.topics.iter().map(topic).collect();
    DescribeProducersResponse { topics, ..DescribeProducersResponse::default() }
}

fn active(
    node: &Node,
    context: &RequestContext,
    name: &str,
    index: i32,
) -> Result<Vec<ProducerState>, Error> {
    if !authorize(&context.principal, Operation::Read, Resource::Topic(name)) {
        let text = "not allowed to read the topic";
        return Err(Error::new(ErrorCode::TopicAuthorizationFailed, text));
    }
    if let Some(problem) = name_problem(name) {
        return Err(Error::new(ErrorCode::InvalidTopicException, problem));
    }
    let topic = node.controller.image.topic_named(name).ok_or_else(|| {
        Error::new(ErrorCode::UnknownTopicOrPartition, format!("no topic '{name}'"))
    })?;
    let partition = node.serving(topic, index).map_err(|code| {
        Error::new(code, format!("partition {index} of '{name}' is not served here now"))
    })?;
    let one = |producer: ActiveProducer| ProducerState {
        producer_id: producer.id,
        producer_epoch: i32::from(producer.epoch),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp,
        // Transactions would say more.
        coordinator_epoch: -1,
        ..ProducerState::default()
    };
    Ok(partition.active_producers().map(one).collect())
}
