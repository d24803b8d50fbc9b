//! `CreatePartitions`: adds partitions to topics. The answer comes once the new partitions have leaders.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_partitions::{
    CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use duramen_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse};

use super::checks::repeated;
use super::decisions::{answer_after_commit, why_undecided};
use crate::access::{Operation, Resource};
use crate::configs::is_queue_topic;
use crate::controller::Error;
use crate::event::RequestKey;
use crate::internal_topics;
use crate::metadata_records::MetadataRecord;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &CreatePartitionsRequest,
) {
    let twice = repeated(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut told = BTreeSet::new();
    let mut response = CreatePartitionsResponse::default();
    let mut records = Vec::new();
    for topic in &request.topics {
        // A topic that is named again is answered once.
        if !told.insert(topic.name.as_str()) {
            continue;
        }
        let added = if twice.contains(topic.name.as_str()) {
            let text = "the topic is named twice in the request";
            Err(Error::new(ErrorCode::InvalidRequest, text))
        } else {
            add(node, context, topic, records.len())
        };
        let result = match added {
            Err(error) => refused(topic, error),
            Ok(added) => {
                if !request.validate_only {
                    records.extend(added);
                }
                let name = topic.name.clone();
                CreatePartitionsTopicResult { name, ..Default::default() }
            }
        };
        response.results.push(result);
    }
    answer_after_commit(node, (key, context), &records, response.into(), request.timeout_ms);
}

fn add(
    node: &mut Node,
    context: &RequestContext,
    topic: &CreatePartitionsTopic,
    decided: usize,
) -> Result<Vec<MetadataRecord>, Error> {
    let admitted = node.core.access.admit(context, Operation::Alter, Resource::Topic(&topic.name));
    admitted.map_err(|code| Error::new(code, "not allowed to change the topic"))?;
    if internal_topics::is_coordinated(&topic.name) {
        let text = "its partitions stay as many as they are: what is kept in them would no longer be found";
        return Err(Error::new(ErrorCode::InvalidPartitions, text));
    }
    let known = node.core.controller.image.topic_named(&topic.name);
    if known.is_some_and(|known| is_queue_topic(&known.configs)) {
        let text = "each key of the topic is a queue in the partition of its hash: with more partitions it would be in another";
        return Err(Error::new(ErrorCode::InvalidPartitions, text));
    }
    node.core.controller.add_partitions(topic, decided)
}

fn refused(topic: &CreatePartitionsTopic, error: Error) -> CreatePartitionsTopicResult {
    CreatePartitionsTopicResult {
        name: topic.name.clone(),
        error_code: error.code.code(),
        error_message: Some(error.message),
    }
}

/// Returns the answer about topics that were still undecided when the request timed out.
pub(crate) fn undecided(
    request: &CreatePartitionsRequest,
    code: ErrorCode,
) -> CreatePartitionsResponse {
    let topics =
        request.topics.iter().map(|topic| refused(topic, Error::new(code, why_undecided(code))));
    CreatePartitionsResponse { results: topics.collect(), ..Default::default() }
}
