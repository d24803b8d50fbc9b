//! `DescribeConfigs`: the settings of topics and of this node, and where they come from.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use duramen_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};

use super::{Operation, Resource, authorize};
use crate::configs::{
    BROKER_CONFIGS, BrokerSettings, ConfigKey, Kind, Source, TOPIC_CONFIGS, effective,
};
use crate::controller::{Error, name_problem};
use crate::node::Node;
use crate::session::RequestContext;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// What else the client wants to see.
#[derive(Clone, Copy)]
struct Detail {
    synonyms: bool,
    docs: bool,
}

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let detail = Detail { synonyms: request.include_synonyms, docs: request.include_documentation };
    let one = |resource: DescribeConfigsResource| {
        let (error, configs) = match describe(node, context, &resource, detail) {
            Ok(configs) => (None, configs),
            Err(error) => (Some(error), Vec::new()),
        };
        DescribeConfigsResult {
            error_code: error.as_ref().map_or(0, |error| error.code.code()),
            error_message: error.map(|error| error.message),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            configs,
        }
    };
    DescribeConfigsResponse {
        results: request.resources.into_iter().map(one).collect(),
        ..DescribeConfigsResponse::default()
    }
}

fn describe(
    node: &Node,
    context: &RequestContext,
    resource: &DescribeConfigsResource,
    detail: Detail,
) -> Result<Vec<DescribeConfigsResourceResult>, Error> {
    let name = resource.resource_name.as_str();
    let settings = &node.options.settings;
    let keys = resource.configuration_keys.as_deref();
    let is_wanted = |row: &&ConfigKey| keys.is_none_or(|keys| keys.iter().any(|it| it == row.name));
    let operation = Operation::DescribeConfigs;
    match resource.resource_type {
        TOPIC => {
            if !authorize(&context.principal, operation, Resource::Topic(name)) {
                return Err(Error::new(ErrorCode::TopicAuthorizationFailed, "not allowed"));
            }
            if let Some(problem) = name_problem(name) {
                return Err(Error::new(ErrorCode::InvalidTopicException, problem));
            }
            let topic = node.controller.image.topic_named(name).ok_or_else(|| {
                Error::new(ErrorCode::UnknownTopicOrPartition, format!("no topic '{name}'"))
            })?;
            let rows = TOPIC_CONFIGS.iter().filter(is_wanted);
            Ok(rows.map(|row| topic_row(row, &topic.configs, settings, detail)).collect())
        }
        BROKER => {
            if !authorize(&context.principal, operation, Resource::Cluster) {
                return Err(Error::new(ErrorCode::ClusterAuthorizationFailed, "not allowed"));
            }
            if name.is_empty() {
                // The settings shared by all brokers: there are none that can be changed yet.
                return Ok(Vec::new());
            }
            if name.parse() != Ok(node.options.facts.broker_id) {
                let own = node.options.facts.broker_id;
                let text = format!("expected the id of this broker, {own}, but got '{name}'");
                return Err(Error::new(ErrorCode::InvalidRequest, text));
            }
            let rows = BROKER_CONFIGS.iter().filter(is_wanted);
            Ok(rows.map(|row| broker_row(row, settings, detail)).collect())
        }
        other => {
            let text = format!("resources of type {other} have no settings here");
            Err(Error::new(ErrorCode::InvalidRequest, text))
        }
    }
}

fn kind_code(kind: Kind) -> i8 {
    match kind {
        Kind::Boolean => 1,
        Kind::String => 2,
        Kind::Int => 3,
        Kind::Long => 5,
        Kind::Double => 6,
        Kind::List => 7,
    }
}

fn row(
    row: &ConfigKey,
    value: &str,
    source: Source,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    DescribeConfigsResourceResult {
        name: row.name.to_owned(),
        value: Some(value.to_owned()),
        config_source: source.code(),
        config_type: kind_code(row.kind),
        documentation: detail.docs.then(|| row.doc.to_owned()),
        ..DescribeConfigsResourceResult::default()
    }
}

fn synonym(name: &str, value: &str, source: Source) -> DescribeConfigsSynonym {
    let (name, value) = (name.to_owned(), Some(value.to_owned()));
    DescribeConfigsSynonym { name, value, source: source.code() }
}

fn topic_row(
    key: &ConfigKey,
    own: &BTreeMap<String, String>,
    settings: &BrokerSettings,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    let found = effective(key.name, own, settings);
    let (value, source) = found.expect("the row is from the table");
    let mut result = row(key, value, source, detail);
    if detail.synonyms {
        let own = own.get(key.name).map(|value| synonym(key.name, value, Source::Topic));
        result.synonyms.extend(own);
        if let Some((value, Source::Broker)) = settings.get(key.synonym) {
            result.synonyms.push(synonym(key.synonym, value, Source::Broker));
        }
        let name = if key.synonym.is_empty() { key.name } else { key.synonym };
        result.synonyms.push(synonym(name, key.default, Source::Default));
    }
    result
}

fn broker_row(
    key: &ConfigKey,
    settings: &BrokerSettings,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    let (value, source) = settings.get(key.name).expect("the row is from the table");
    let mut result = row(key, value, source, detail);
    // Nothing can be changed while the node runs.
    result.read_only = true;
    if detail.synonyms {
        if source == Source::Broker {
            result.synonyms.push(synonym(key.name, value, source));
        }
        result.synonyms.push(synonym(key.name, key.default, Source::Default));
    }
    result
}
