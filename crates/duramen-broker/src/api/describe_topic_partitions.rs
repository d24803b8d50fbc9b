//! `DescribeTopicPartitions`: topics in the order of their names, page by page.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_topic_partitions::{
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic, RequestCursor,
    ResponseCursor,
};
use duramen_protocol::messages::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};

use super::metadata::partition_of;
use crate::access::{Operation, Resource};
use crate::controller::image::Topic;
use crate::controller::name_problem;
use crate::internal_topics::is_internal;
use crate::limits::DESCRIBED_PARTITIONS_MAX;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let named: BTreeSet<&str> = request.topics.iter().map(|topic| topic.name.as_str()).collect();
    let cursor = request.cursor.as_ref();
    if cursor.is_some_and(|cursor| !is_valid(cursor, &named)) {
        return invalid(request);
    }
    let is_ahead = |name: &str| cursor.is_none_or(|cursor| name >= cursor.topic_name.as_str());
    let is_allowed =
        |name: &str| node.core.access.may(context, Operation::Describe, Resource::Topic(name));
    let image = &node.core.controller.image;
    let mut page = Page::new(request);
    if named.is_empty() {
        for topic in image.topics_by_name() {
            if page.is_over() {
                break;
            }
            let resource = Resource::Topic(&topic.name);
            let is_shown = || node.core.access.is_shown(context, Operation::Describe, resource);
            if is_ahead(&topic.name) && is_shown() {
                page.push(node, context, topic, cursor);
            }
        }
    }
    let mut refused = Vec::new();
    for name in named.into_iter().filter(|name| is_ahead(name)) {
        if !is_allowed(name) {
            refused.push(without_partitions(name, ErrorCode::TopicAuthorizationFailed));
        } else if !page.is_over() {
            match image.topic_named(name) {
                Some(topic) => page.push(node, context, topic, cursor),
                None => page.push_missing(node, context, name),
            }
        }
    }
    page.response.topics.extend(refused);
    page.response
}

/// Tells whether a cursor names one of the requested topics, and a partition.
fn is_valid(cursor: &RequestCursor, named: &BTreeSet<&str>) -> bool {
    let is_named = named.is_empty() || named.contains(cursor.topic_name.as_str());
    is_named && cursor.partition_index >= 0
}

fn invalid(request: &DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse {
    let topics = request.topics.iter().map(|topic| DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::InvalidRequest.code(),
        name: Some(topic.name.clone()),
        ..Default::default()
    });
    DescribeTopicPartitionsResponse { topics: topics.collect(), ..Default::default() }
}

/// Returns the answer about a topic that does not exist, or that the client must not see.
fn without_partitions(name: &str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic {
        error_code: code.code(),
        name: Some(name.to_owned()),
        is_internal: is_internal(name),
        ..Default::default()
    }
}

/// One answer as it fills.
struct Page {
    /// Count of partitions that still fit the page.
    room: usize,
    response: DescribeTopicPartitionsResponse,
}

impl Page {
    fn new(request: &DescribeTopicPartitionsRequest) -> Self {
        let limit = request.response_partition_limit.clamp(1, DESCRIBED_PARTITIONS_MAX);
        Self {
            room: usize::try_from(limit).expect("at least 1"),
            response: DescribeTopicPartitionsResponse::default(),
        }
    }

    /// Tells whether the page is full: its cursor then names the start of the next one.
    fn is_over(&self) -> bool {
        self.response.next_cursor.is_some()
    }

    fn end_before(&mut self, name: &str, partition: usize) {
        let partition_index = i32::try_from(partition).expect("a topic counts them as i32");
        let cursor = ResponseCursor { topic_name: name.to_owned(), partition_index };
        self.response.next_cursor = Some(cursor);
    }

    fn push(
        &mut self,
        node: &Node,
        context: &RequestContext,
        topic: &Topic,
        cursor: Option<&RequestCursor>,
    ) {
        if self.room == 0 {
            return self.end_before(&topic.name, 0);
        }
        let cursor = cursor.filter(|cursor| cursor.topic_name == topic.name);
        let first = cursor.map_or(0, |cursor| cursor.partition_index);
        let skipped = usize::try_from(first).unwrap_or(0);
        let described = (0..).zip(&topic.partitions).skip(skipped).take(self.room);
        let partitions: Vec<_> = described
            .map(|(index, replicas)| {
                let found = partition_of(node, context, topic, index, replicas);
                DescribeTopicPartitionsResponsePartition {
                    error_code: found.error_code,
                    partition_index: found.partition_index,
                    leader_id: found.leader_id,
                    leader_epoch: found.leader_epoch,
                    replica_nodes: found.replica_nodes,
                    isr_nodes: found.isr_nodes,
                    // Only a replica that has all that is committed ever leads.
                    eligible_leader_replicas: Some(Vec::new()),
                    last_known_elr: Some(Vec::new()),
                    offline_replicas: found.offline_replicas,
                }
            })
            .collect();
        let next = skipped + partitions.len();
        self.room -= partitions.len();
        self.response.topics.push(DescribeTopicPartitionsResponseTopic {
            error_code: 0,
            name: Some(topic.name.clone()),
            topic_id: topic.id,
            is_internal: is_internal(&topic.name),
            partitions,
            topic_authorized_operations: node
                .core
                .access
                .operations(context, Resource::Topic(&topic.name)),
        });
        if next < topic.partitions.len() {
            self.end_before(&topic.name, next);
        }
    }

    fn push_missing(&mut self, node: &Node, context: &RequestContext, name: &str) {
        if self.room == 0 {
            return self.end_before(name, 0);
        }
        let code = match name_problem(name) {
            Some(_) => ErrorCode::InvalidTopicException,
            None => ErrorCode::UnknownTopicOrPartition,
        };
        let mut topic = without_partitions(name, code);
        topic.topic_authorized_operations =
            node.core.access.operations(context, Resource::Topic(name));
        self.response.topics.push(topic);
    }
}
