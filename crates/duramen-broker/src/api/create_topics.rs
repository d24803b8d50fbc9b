//! `CreateTopics`: creates topics. The answer comes once the topics have leaders.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult,
};
use duramen_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use duramen_protocol::wire::Uuid;

use super::checks::repeated;
use super::decisions::{answer_after_commit, why_undecided};
use crate::access::{Operation, Resource};
use crate::configs::{TOPIC_CONFIGS, effective};
use crate::controller::{Creation, Error};
use crate::event::RequestKey;
use crate::limits::CREATE_PARTITIONS_MAX;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &CreateTopicsRequest,
) {
    let mut response = CreateTopicsResponse::default();
    let mut records = Vec::new();
    let twice = repeated(request.topics.iter().map(|topic| topic.name.as_str()));
    let is_repeated = |topic: &CreatableTopic| twice.contains(topic.name.as_str());
    let alone = request.topics.iter().filter(|topic| !is_repeated(topic));
    let partitions: i64 = alone.map(|topic| partitions_of(node, topic)).sum();
    for topic in each_name(request) {
        let obstacle = if is_repeated(topic) {
            Some((ErrorCode::InvalidRequest, "the topic is named twice in the request".to_owned()))
        } else if partitions > CREATE_PARTITIONS_MAX {
            let text = format!("a request makes at most {CREATE_PARTITIONS_MAX} partitions");
            Some((ErrorCode::PolicyViolation, text))
        } else {
            None
        };
        let result = match create(node, context, topic, obstacle) {
            Err(error) => refused(topic, error),
            Ok(creation) => {
                let result = made(node, context, topic, &creation, request.validate_only);
                if !request.validate_only {
                    records.extend(creation.records);
                }
                result
            }
        };
        response.topics.push(result);
    }
    answer_after_commit(node, (key, context), &records, response.into(), request.timeout_ms);
}

/// Returns the topics to answer: of a name that the request has twice, the first.
fn each_name(request: &CreateTopicsRequest) -> impl Iterator<Item = &CreatableTopic> {
    let mut seen = BTreeSet::new();
    request.topics.iter().filter(move |topic| seen.insert(topic.name.as_str()))
}

fn partitions_of(node: &Node, topic: &CreatableTopic) -> i64 {
    match topic.num_partitions {
        -1 if topic.assignments.is_empty() => i64::from(node.core.options.settings.num_partitions),
        -1 => i64::try_from(topic.assignments.len()).unwrap_or(i64::MAX),
        given => i64::from(given).max(0),
    }
}

fn create(
    node: &mut Node,
    context: &RequestContext,
    topic: &CreatableTopic,
    obstacle: Option<(ErrorCode, String)>,
) -> Result<Creation, Error> {
    if !may_create(node, context, &topic.name) {
        let text = "not allowed to create the topic";
        return Err(Error::new(ErrorCode::TopicAuthorizationFailed, text));
    }
    if let Some((code, text)) = obstacle {
        return Err(Error::new(code, text));
    }
    node.core.controller.create_topic(topic, &node.core.options.settings)
}

/// Tells whether the client may create a topic of this name.
pub(super) fn may_create(node: &Node, context: &RequestContext, name: &str) -> bool {
    node.core.access.may(context, Operation::Create, Resource::Cluster)
        || node.core.access.may(context, Operation::Create, Resource::Topic(name))
}

fn refused(topic: &CreatableTopic, error: Error) -> CreatableTopicResult {
    CreatableTopicResult {
        name: topic.name.clone(),
        error_code: error.code.code(),
        error_message: Some(error.message),
        configs: Some(Vec::new()),
        ..Default::default()
    }
}

/// Returns the answer about topics that were still undecided when the request timed out.
pub(crate) fn undecided(request: &CreateTopicsRequest, code: ErrorCode) -> CreateTopicsResponse {
    let undecided = |topic| refused(topic, Error::new(code, why_undecided(code)));
    let topics = each_name(request).map(undecided);
    CreateTopicsResponse { topics: topics.collect(), ..Default::default() }
}

fn made(
    node: &Node,
    context: &RequestContext,
    topic: &CreatableTopic,
    creation: &Creation,
    validate_only: bool,
) -> CreatableTopicResult {
    let result = CreatableTopicResult {
        name: topic.name.clone(),
        topic_id: if validate_only { Uuid::ZERO } else { creation.topic_id },
        configs: Some(Vec::new()),
        ..Default::default()
    };
    if !node.core.access.is_shown(context, Operation::DescribeConfigs, Resource::Topic(&topic.name))
    {
        let topic_config_error_code = ErrorCode::TopicAuthorizationFailed.code();
        return CreatableTopicResult { topic_config_error_code, ..result };
    }
    let settings = &node.core.options.settings;
    let config = |row: &crate::configs::ConfigKey| {
        let (value, source) = effective(row.name, &creation.configs, settings)?;
        Some(CreatableTopicConfigs {
            name: row.name.to_owned(),
            value: Some(value.to_owned()),
            config_source: source.code(),
            ..Default::default()
        })
    };
    CreatableTopicResult {
        num_partitions: creation.partitions,
        replication_factor: creation.replication_factor,
        configs: Some(TOPIC_CONFIGS.iter().filter_map(config).collect()),
        ..result
    }
}

pub(crate) fn fail(response: &mut CreateTopicsResponse, code: ErrorCode) {
    for topic in response.topics.iter_mut().filter(|topic| topic.error_code == 0) {
        *topic = CreatableTopicResult {
            name: std::mem::take(&mut topic.name),
            error_code: code.code(),
            configs: Some(Vec::new()),
            ..Default::default()
        };
    }
}
