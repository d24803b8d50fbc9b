//! `AlterConfigs`: what is given replaces all of a topic's own settings. Also what both ways to alter settings share.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig,
};
use duramen_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};

use super::{Operation, Resource, UNDECIDED, answer_after_commit, authorize, deadline_us};
use crate::configs::check_topic;
use crate::controller::image::Topic;
use crate::controller::records::{MetadataRecord, SetTopicConfig};
use crate::controller::{Error, name_problem};
use crate::event::{Action, Now, RequestKey};
use crate::node::Node;
use crate::session::RequestContext;

/// The requests do not say how long they may take; this is Kafka's `request.timeout.ms`.
pub(crate) const TIMEOUT_MS: i32 = 30_000;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: &RequestContext,
    request: &AlterConfigsRequest,
    actions: &mut Vec<Action>,
) {
    let names = |it: &AlterConfigsResource| (it.resource_type, it.resource_name.clone());
    let repeated = repeated(request.resources.iter().map(names));
    let mut response = AlterConfigsResponse::default();
    let mut records = Vec::new();
    for resource in &request.resources {
        let (kind, name) = (resource.resource_type, resource.resource_name.as_str());
        let altered = alter(node, context, (kind, name), &repeated, |_| wanted(&resource.configs));
        response.responses.push(row(resource, altered.as_ref().err()));
        records.extend(altered.unwrap_or_default());
    }
    if request.validate_only {
        records.clear();
    }
    let deadline = deadline_us(now, TIMEOUT_MS);
    answer_after_commit(node, now, key, records, response.into(), deadline, actions);
}

/// What a topic's own settings are to be.
fn wanted(configs: &[AlterableConfig]) -> Result<Settings, Error> {
    check_names(configs.iter().map(|config| config.name.as_str()))?;
    let pair = |config: &AlterableConfig| {
        let value = config.value.clone().ok_or_else(|| needs_value(&config.name))?;
        Ok((config.name.clone(), value))
    };
    configs.iter().map(pair).collect()
}

fn row(resource: &AlterConfigsResource, error: Option<&Error>) -> AlterConfigsResourceResponse {
    AlterConfigsResourceResponse {
        error_code: error.map_or(0, |error| error.code.code()),
        error_message: error.map(|error| error.message.clone()),
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.clone(),
    }
}

/// What is told of topics whose fate was still open when the request's time was over.
pub(crate) fn undecided(request: &AlterConfigsRequest, code: ErrorCode) -> AlterConfigsResponse {
    let error = Error::new(code, UNDECIDED);
    let responses = request.resources.iter().map(|resource| row(resource, Some(&error))).collect();
    AlterConfigsResponse { responses, ..AlterConfigsResponse::default() }
}

pub(crate) fn fail(response: &mut AlterConfigsResponse, code: ErrorCode) {
    for resource in response.responses.iter_mut().filter(|resource| resource.error_code == 0) {
        resource.error_code = code.code();
    }
}

/// A topic's own settings.
pub(super) type Settings = BTreeMap<String, String>;

/// The resources that a request names more than once, by type and name.
pub(super) fn repeated(resources: impl Iterator<Item = (i8, String)>) -> Vec<(i8, String)> {
    let mut times = BTreeMap::new();
    for resource in resources {
        *times.entry(resource).or_insert(0) += 1;
    }
    times.into_iter().filter(|(_, times)| *times > 1).map(|(resource, _)| resource).collect()
}

/// A request names each setting of a resource once.
pub(super) fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut sorted: Vec<_> = names.collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let text = format!("{}: the setting is named twice in the request", pair[0]);
            Err(Error::new(ErrorCode::InvalidRequest, text))
        }
    }
}

pub(super) fn needs_value(name: &str) -> Error {
    Error::new(ErrorCode::InvalidRequest, format!("{name}: a setting needs a value"))
}

/// Decides on a topic's settings: the records that make of its own what `wanted` says.
pub(super) fn alter(
    node: &Node,
    context: &RequestContext,
    (kind, name): (i8, &str),
    repeated: &[(i8, String)],
    wanted: impl FnOnce(&Topic) -> Result<Settings, Error>,
) -> Result<Vec<MetadataRecord>, Error> {
    let resource = if kind == TOPIC { Resource::Topic(name) } else { Resource::Cluster };
    if !authorize(&context.principal, Operation::AlterConfigs, resource) {
        let (code, text) = match kind {
            TOPIC => (ErrorCode::TopicAuthorizationFailed, "not allowed to alter the topic"),
            _ => (ErrorCode::ClusterAuthorizationFailed, "not allowed to alter the cluster"),
        };
        return Err(Error::new(code, text));
    }
    let refuse = |text: String| Err(Error::new(ErrorCode::InvalidRequest, text));
    if repeated.iter().any(|it| it.0 == kind && it.1 == name) {
        return refuse("the resource is named twice in the request".to_owned());
    }
    match kind {
        TOPIC if name.is_empty() => {
            return refuse("there are no settings that all topics share".to_owned());
        }
        TOPIC => {}
        BROKER => return refuse("a broker's settings are changed by a restart only".to_owned()),
        other => return refuse(format!("resources of type {other} have no settings here")),
    }
    if let Some(problem) = name_problem(name) {
        return Err(Error::new(ErrorCode::InvalidTopicException, problem));
    }
    let topic = node.controller.image.topic_named(name).ok_or_else(|| {
        Error::new(ErrorCode::UnknownTopicOrPartition, format!("no topic '{name}'"))
    })?;
    difference(topic, &wanted(topic)?)
}

fn difference(topic: &Topic, wanted: &Settings) -> Result<Vec<MetadataRecord>, Error> {
    let set = |name: &String, value: Option<&String>| {
        let (topic_id, name, value) = (topic.id, name.clone(), value.cloned());
        MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, name, value })
    };
    let mut records = Vec::new();
    for (name, value) in
        wanted.iter().filter(|(name, value)| topic.configs.get(*name) != Some(value))
    {
        check_topic(name, value)
            .map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))?;
        records.push(set(name, Some(value)));
    }
    let gone = topic.configs.keys().filter(|name| !wanted.contains_key(*name));
    records.extend(gone.map(|name| set(name, None)));
    Ok(records)
}
