//! `DescribeConfigs`: the settings of topics and of this node, and where they come from.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use duramen_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};

use super::settings::{broker_named, resource, topic_named};
use crate::access::Operation;
use crate::configs::resource_kind::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::configs::{
    BROKER_CONFIGS, BrokerSettings, ConfigKey, GROUP_CONFIGS, Kind, Settings, Source, TOPIC_CONFIGS,
};
use crate::controller::Error;
use crate::metadata_records::ALL_BROKERS;
use crate::node::Node;
use crate::session::RequestContext;

/// Defaults of the settings of a client metrics subscription.
const CLIENT_METRICS_DEFAULTS: [(&str, &str, Kind); 3] =
    [("interval.ms", "300000", Kind::Int), ("match", "", Kind::List), ("metrics", "", Kind::List)];

type Rows = Vec<DescribeConfigsResourceResult>;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let (synonyms, docs) = (request.include_synonyms, request.include_documentation);
    let one = |resource: DescribeConfigsResource| {
        let described = describe(node, context, &resource);
        let error_code = described.as_ref().map_or_else(|error| error.code.code(), |_| 0);
        // Kafka's message without an error is an empty text in this response.
        let (mut configs, error_message) = match described {
            Ok(rows) => (rows, String::new()),
            Err(error) => (Rows::new(), error.message),
        };
        // No key at all is every key.
        let keys = resource.configuration_keys.unwrap_or_default().into_iter();
        let keys: BTreeSet<String> = keys.collect();
        configs.retain(|row| keys.is_empty() || keys.contains(&row.name));
        for row in &mut configs {
            if !synonyms {
                row.synonyms.clear();
            }
            row.documentation.take_if(|_| !docs);
        }
        DescribeConfigsResult {
            error_code,
            error_message: Some(error_message),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            configs,
        }
    };
    DescribeConfigsResponse {
        results: request.resources.into_iter().map(one).collect(),
        ..Default::default()
    }
}

/// Returns all settings of a resource, in full.
fn describe(
    node: &Node,
    context: &RequestContext,
    asked: &DescribeConfigsResource,
) -> Result<Rows, Error> {
    let kind = asked.resource_type;
    let name = asked.resource_name.as_str();
    let admitted =
        node.core.access.admit(context, Operation::DescribeConfigs, resource(kind, name));
    admitted.map_err(|code| Error::new(code, "not allowed"))?;
    let invalid = |text: String| Err(Error::new(ErrorCode::InvalidRequest, text));
    let settings = &node.core.options.settings;
    match kind {
        TOPIC => {
            let own = &topic_named(node, name)?.configs;
            let row = |key| own_row(key, own, Source::Topic, settings);
            Ok(TOPIC_CONFIGS.iter().map(row).collect())
        }
        BROKER if broker_named(node, name)?.is_some() => {
            Ok(BROKER_CONFIGS.iter().map(|row| broker_row(row, settings)).collect())
        }
        BROKER => {
            let shared = node.core.controller.image.broker_configs(ALL_BROKERS);
            let row = |row: &ConfigKey| Some(shared_row(row, shared.get(row.name)?));
            Ok(BROKER_CONFIGS.iter().filter_map(row).collect())
        }
        // No logger has a level that an operator could set while the node runs.
        BROKER_LOGGER if broker_named(node, name)?.is_some() => Ok(Rows::new()),
        CLIENT_METRICS if !name.is_empty() => {
            let row = |&(name, value, kind)| described(name, value, kind, Source::Default);
            Ok(CLIENT_METRICS_DEFAULTS.iter().map(row).collect())
        }
        GROUP if !name.is_empty() => {
            let own = node.core.controller.image.group_configs(name);
            let row = |key| own_row(key, own, Source::Group, settings);
            Ok(GROUP_CONFIGS.iter().map(row).collect())
        }
        BROKER_LOGGER | CLIENT_METRICS | GROUP => invalid("the resource needs a name".to_owned()),
        other => invalid(format!("there are no resources of type {other}")),
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
        Kind::Password => 9,
    }
}

fn described(name: &str, value: &str, kind: Kind, source: Source) -> DescribeConfigsResourceResult {
    let is_sensitive = kind == Kind::Password;
    DescribeConfigsResourceResult {
        name: name.to_owned(),
        value: (!is_sensitive).then(|| value.to_owned()),
        config_source: source.code(),
        is_sensitive,
        config_type: kind_code(kind),
        ..Default::default()
    }
}

fn row(key: &ConfigKey, value: &str, source: Source) -> DescribeConfigsResourceResult {
    let documentation = Some(key.doc.to_owned());
    DescribeConfigsResourceResult { documentation, ..described(key.name, value, key.kind, source) }
}

fn synonym(name: &str, value: &str, source: Source) -> DescribeConfigsSynonym {
    let (name, value) = (name.to_owned(), Some(value.to_owned()));
    DescribeConfigsSynonym { name, value, source: source.code() }
}

/// Returns the row of a setting that a topic or a group may have of its own, from the source `of`.
fn own_row(
    key: &ConfigKey,
    own: &Settings,
    of: Source,
    settings: &BrokerSettings,
) -> DescribeConfigsResourceResult {
    let own = own.get(key.name).map(|value| (key.name, value.as_str(), of));
    let nodes = settings.values(key.synonym).map(|(value, source)| (key.synonym, value, source));
    let all: Vec<_> = own.into_iter().chain(nodes).collect();
    // The first of them holds.
    let default = (key.name, key.default, Source::Default);
    let (_, value, source) = all.first().copied().unwrap_or(default);
    let synonyms = all.into_iter().map(|(name, value, source)| synonym(name, value, source));
    DescribeConfigsResourceResult { synonyms: synonyms.collect(), ..row(key, value, source) }
}

fn broker_row(key: &ConfigKey, settings: &BrokerSettings) -> DescribeConfigsResourceResult {
    let (value, source) = settings.get(key.name).expect("the row is from the table");
    let all = settings.values(key.name).filter(|_| key.kind != Kind::Password);
    let synonyms = all.map(|(value, source)| synonym(key.name, value, source)).collect();
    let read_only = !key.dynamic;
    DescribeConfigsResourceResult { read_only, synonyms, ..row(key, value, source) }
}

/// Returns the row of a setting of all brokers, of which each may have its own.
fn shared_row(key: &ConfigKey, value: &str) -> DescribeConfigsResourceResult {
    let source = Source::ClusterDynamic;
    let synonyms = vec![synonym(key.name, value, source)];
    DescribeConfigsResourceResult { synonyms, ..row(key, value, source) }
}
