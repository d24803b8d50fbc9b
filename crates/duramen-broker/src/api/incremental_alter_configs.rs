//! `IncrementalAlterConfigs`: single settings of a topic are set, taken back, or get or lose words.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig,
};
use duramen_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};

use super::alter_configs::{Settings, TIMEOUT_MS, alter, check_names, needs_value, repeated};
use super::{UNDECIDED, answer_after_commit, deadline_us};
use crate::configs::{BrokerSettings, Kind, TOPIC_CONFIGS, effective, find};
use crate::controller::Error;
use crate::controller::image::Topic;
use crate::event::{Action, Now, RequestKey};
use crate::node::Node;
use crate::session::RequestContext;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: &RequestContext,
    request: &IncrementalAlterConfigsRequest,
    actions: &mut Vec<Action>,
) {
    let names = |it: &AlterConfigsResource| (it.resource_type, it.resource_name.clone());
    let repeated = repeated(request.resources.iter().map(names));
    let mut response = IncrementalAlterConfigsResponse::default();
    let mut records = Vec::new();
    for resource in &request.resources {
        let (kind, name) = (resource.resource_type, resource.resource_name.as_str());
        let settings = &node.options.settings;
        let wanted = |topic: &Topic| wanted(topic, &resource.configs, settings);
        let altered = alter(node, context, (kind, name), &repeated, wanted);
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
fn wanted(
    topic: &Topic,
    configs: &[AlterableConfig],
    settings: &BrokerSettings,
) -> Result<Settings, Error> {
    check_names(configs.iter().map(|config| config.name.as_str()))?;
    let mut own = topic.configs.clone();
    for config in configs {
        let name = config.name.as_str();
        let operation = config.config_operation;
        if operation == DELETE {
            own.remove(name);
            continue;
        }
        let value = config.value.as_deref().ok_or_else(|| needs_value(name))?;
        let value = match operation {
            SET => value.to_owned(),
            APPEND | SUBTRACT => {
                if !find(TOPIC_CONFIGS, name).is_some_and(|row| row.kind == Kind::List) {
                    let text = format!("{name}: words are added to and taken from lists only");
                    return Err(Error::new(ErrorCode::InvalidConfig, text));
                }
                let now = effective(name, &topic.configs, settings).map_or("", |(value, _)| value);
                if operation == APPEND { with(now, value) } else { without(now, value) }
            }
            other => {
                let text = format!("{name}: there is no operation {other}");
                return Err(Error::new(ErrorCode::InvalidRequest, text));
            }
        };
        own.insert(name.to_owned(), value);
    }
    Ok(own)
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn with(list: &str, added: &str) -> String {
    let mut all: Vec<&str> = words(list).collect();
    for word in words(added) {
        if !all.contains(&word) {
            all.push(word);
        }
    }
    all.join(",")
}

fn without(list: &str, removed: &str) -> String {
    let removed: Vec<&str> = words(removed).collect();
    let left: Vec<&str> = words(list).filter(|word| !removed.contains(word)).collect();
    left.join(",")
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
pub(crate) fn undecided(
    request: &IncrementalAlterConfigsRequest,
    code: ErrorCode,
) -> IncrementalAlterConfigsResponse {
    let error = Error::new(code, UNDECIDED);
    let responses = request.resources.iter().map(|resource| row(resource, Some(&error))).collect();
    IncrementalAlterConfigsResponse { responses, ..IncrementalAlterConfigsResponse::default() }
}

pub(crate) fn fail(response: &mut IncrementalAlterConfigsResponse, code: ErrorCode) {
    for resource in response.responses.iter_mut().filter(|resource| resource.error_code == 0) {
        resource.error_code = code.code();
    }
}
