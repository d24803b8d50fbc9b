//! `CreateTopics`: creates topics. The answer comes once the topics have leaders.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult,
};
use duramen_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use duramen_protocol::wire::Uuid;

use super::{Operation, Resource, answer_after_commit, authorize, repeated, why_undecided};
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
    for topic in &request.topics {
        let created = if partitions > CREATE_PARTITIONS_MAX && !is_repeated(topic) {
            let text = format!("a request makes at most {CREATE_PARTITIONS_MAX} partitions");
            Err(Error::new(ErrorCode::PolicyViolation, text))
        } else {
            create(node, context, topic, is_repeated(topic))
        };
        let result = match created {
            Err(error) => refused(topic, error),
            Ok(creation) => {
                let result = made(node, topic, &creation, request.validate_only);
                if !request.validate_only {
                    records.extend(creation.records);
                }
                result
            }
        };
        response.topics.push(result);
    }
    let deadline = node.now.deadline_us(request.timeout_ms);
    answer_after_commit(node, key, &records, response.into(), deadline);
}

fn partitions_of(node: &Node, topic: &CreatableTopic) -> i64 {
    match topic.num_partitions {
        -1 if topic.assignments.is_empty() => i64::from(node.options.settings.num_partitions),
        -1 => i64::try_from(topic.assignments.len()).unwrap_or(i64::MAX),
        given => i64::from(given).max(0),
    }
}

fn create(
    node: &mut Node,
    context: &RequestContext,
    topic: &CreatableTopic,
    is_repeated: bool,
) -> Result<Creation, Error> {
    let (principal, name) = (&context.principal, topic.name.as_str());
    if !authorize(principal, Operation::Create, Resource::Cluster)
        && !authorize(principal, Operation::Create, Resource::Topic(name))
    {
        let text = "not allowed to create the topic";
        return Err(Error::new(ErrorCode::TopicAuthorizationFailed, text));
    }
    if is_repeated {
        let text = "the topic is named twice in the request";
        return Err(Error::new(ErrorCode::InvalidRequest, text));
    }
    node.controller.create_topic(topic, &node.options.settings)
}

fn refused(topic: &CreatableTopic, error: Error) -> CreatableTopicResult {
    CreatableTopicResult {
        name: topic.name.clone(),
        error_code: error.code.code(),
        error_message: Some(error.message),
        configs: Some(Vec::new()),
        ..CreatableTopicResult::default()
    }
}

/// Returns the answer about topics that were still undecided when the request timed out.
pub(crate) fn undecided(request: &CreateTopicsRequest, code: ErrorCode) -> CreateTopicsResponse {
    let topics =
        request.topics.iter().map(|topic| refused(topic, Error::new(code, why_undecided(code))));
    CreateTopicsResponse { topics: topics.collect(), ..CreateTopicsResponse::default() }
}

fn made(
    node: &Node,
    topic: &CreatableTopic,
    creation: &Creation,
    validate_only: bool,
) -> CreatableTopicResult {
    let settings = &node.options.settings;
    let config = |row: &crate::configs::ConfigKey| {
        let (value, source) = effective(row.name, &creation.configs, settings)?;
        Some(CreatableTopicConfigs {
            name: row.name.to_owned(),
            value: Some(value.to_owned()),
            config_source: source.code(),
            ..CreatableTopicConfigs::default()
        })
    };
    CreatableTopicResult {
        name: topic.name.clone(),
        topic_id: if validate_only { Uuid::ZERO } else { creation.topic_id },
        num_partitions: creation.partitions,
        replication_factor: creation.replication_factor,
        configs: Some(TOPIC_CONFIGS.iter().filter_map(config).collect()),
        ..CreatableTopicResult::default()
    }
}

pub(crate) fn fail(response: &mut CreateTopicsResponse, code: ErrorCode) {
    for topic in response.topics.iter_mut().filter(|topic| topic.error_code == 0) {
        *topic = CreatableTopicResult {
            name: std::mem::take(&mut topic.name),
            error_code: code.code(),
            configs: Some(Vec::new()),
            ..CreatableTopicResult::default()
        };
    }
}
