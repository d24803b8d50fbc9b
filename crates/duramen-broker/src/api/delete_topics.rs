//! `DeleteTopics`: deletes topics by name or by id.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::delete_topics::{DeletableTopicResult, DeleteTopicState};
use duramen_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use duramen_protocol::wire::Uuid;

use super::decisions::answer_after_commit;
use crate::access::{Operation, Resource};
use crate::event::RequestKey;
use crate::metadata_records::MetadataRecord;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &DeleteTopicsRequest,
) {
    let asked = topics_of(request);
    let mut response = DeleteTopicsResponse::default();
    let mut records: Vec<MetadataRecord> = Vec::new();
    let mut named = BTreeSet::new();
    for state in asked {
        let mut result = result_of(&state);
        match delete(node, context, &state, &mut result) {
            Ok(_) if !named.insert(result.topic_id) => {
                result.error_code = ErrorCode::InvalidRequest.code();
                result.error_message = Some("the topic is named twice in the request".to_owned());
            }
            Ok(record) => records.push(record),
            Err(code) => result.error_code = code.code(),
        }
        response.responses.push(result);
    }
    answer_after_commit(node, (key, context), &records, response.into(), request.timeout_ms);
}

/// Returns all topics that a request names, in whichever of the two ways.
fn topics_of(request: &DeleteTopicsRequest) -> Vec<DeleteTopicState> {
    let by_name = request.topic_names.iter().cloned();
    let by_name = by_name.map(|name| DeleteTopicState { name: Some(name), topic_id: Uuid::ZERO });
    request.topics.iter().cloned().chain(by_name).collect()
}

fn result_of(state: &DeleteTopicState) -> DeletableTopicResult {
    let DeleteTopicState { name, topic_id } = state.clone();
    DeletableTopicResult { name, topic_id, ..Default::default() }
}

/// Returns the answer about topics that were still undecided when the request timed out.
pub(crate) fn undecided(request: &DeleteTopicsRequest, code: ErrorCode) -> DeleteTopicsResponse {
    let row = |it| DeletableTopicResult { error_code: code.code(), ..result_of(it) };
    let responses = topics_of(request).iter().map(row).collect();
    DeleteTopicsResponse { responses, ..Default::default() }
}

fn delete(
    node: &Node,
    context: &RequestContext,
    state: &DeleteTopicState,
    result: &mut DeletableTopicResult,
) -> Result<MetadataRecord, ErrorCode> {
    // A client that may not see a topic does not learn whether there is one.
    if let Some(name) = &state.name
        && !rights(node, context, name).may_see
    {
        return Err(ErrorCode::TopicAuthorizationFailed);
    }
    let image = &node.core.controller.image;
    let (topic, missing) = match (&state.name, state.topic_id) {
        (Some(name), Uuid::ZERO) => (image.topic_named(name), ErrorCode::UnknownTopicOrPartition),
        (None, id) if !id.is_zero() => (image.topic(id), ErrorCode::UnknownTopicId),
        _ => return Err(ErrorCode::InvalidRequest),
    };
    let topic = topic.ok_or(missing)?;
    let rights = rights(node, context, &topic.name);
    if !rights.may_delete {
        result.name = rights.may_see.then(|| topic.name.clone());
        return Err(ErrorCode::TopicAuthorizationFailed);
    }
    if !node.core.options.settings.delete_topic_enable {
        return Err(ErrorCode::TopicDeletionDisabled);
    }
    result.name = Some(topic.name.clone());
    result.topic_id = topic.id;
    node.core.controller.delete_topic(topic.id).ok_or(missing)
}

/// Rights of a client on a topic.
struct Rights {
    may_see: bool,
    may_delete: bool,
}

fn rights(node: &Node, context: &RequestContext, name: &str) -> Rights {
    let may = |operation, resource| node.core.access.may(context, operation, resource);
    if may(Operation::Delete, Resource::Cluster) {
        return Rights { may_see: true, may_delete: true };
    }
    Rights {
        may_see: may(Operation::Describe, Resource::Topic(name)),
        may_delete: may(Operation::Delete, Resource::Topic(name)),
    }
}
