//! Checks and records that both requests to alter settings share.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;

use super::checks::repeated;
use crate::access::{Operation, Resource};
use crate::configs::resource_kind::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::configs::{
    BROKER_CONFIGS, GROUP_CONFIGS, Kind, QUEUE_ENABLE, Settings, TOPIC_CONFIGS, check_dynamic,
    check_group, check_group_as_one, check_topic, check_topic_as_one, effective, find,
    is_queue_topic,
};
use crate::controller::image::Topic;
use crate::controller::{Error, name_problem};
use crate::metadata_records::{
    ALL_BROKERS, MetadataRecord, SetBrokerConfig, SetGroupConfig, SetTopicConfig,
};
use crate::node::Node;
use crate::session::RequestContext;

pub(super) const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Changes that a client asks for on one resource.
pub(super) struct Asked<'a> {
    pub kind: i8,
    pub name: &'a str,
    /// Flag that removes every setting that the request does not name.
    pub replaces: bool,
    pub changes: Vec<Change<'a>>,
}

/// Change that a client asks for on one setting.
pub(super) struct Change<'a> {
    pub name: &'a str,
    pub operation: i8,
    pub value: Option<&'a str>,
}

/// Returns the resource whose rights count for the settings of this one.
pub(super) fn resource(kind: i8, name: &str) -> Resource<'_> {
    match kind {
        TOPIC => Resource::Topic(name),
        GROUP => Resource::Group(name),
        _ => Resource::Cluster,
    }
}

/// Returns the topic of this name.
pub(super) fn topic_named<'a>(node: &'a Node, name: &str) -> Result<&'a Topic, Error> {
    if let Some(problem) = name_problem(name) {
        return Err(Error::new(ErrorCode::InvalidTopicException, problem));
    }
    let missing = || Error::new(ErrorCode::UnknownTopicOrPartition, format!("no topic '{name}'"));
    node.core.controller.image.topic_named(name).ok_or_else(missing)
}

/// Decides on each resource: returns the records that change its settings as requested.
pub(super) fn decide(
    node: &Node,
    context: &RequestContext,
    asked: &[Asked<'_>],
) -> Vec<Result<Vec<MetadataRecord>, Error>> {
    let twice = repeated(asked.iter().map(|it| (it.kind, it.name)));
    let one = |it: &Asked<'_>| {
        let admitted =
            node.core.access.admit(context, Operation::AlterConfigs, resource(it.kind, it.name));
        admitted.map_err(|code| Error::new(code, "not allowed to alter the settings"))?;
        if twice.contains(&(it.kind, it.name)) {
            return Err(invalid("the resource is named twice in the request"));
        }
        check_names(&it.changes)?;
        let owner = Owner::of(node, it)?;
        owner.records(node, &owner.wanted(node, it)?)
    };
    asked.iter().map(one).collect()
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidRequest, text)
}

/// Checks that a request names each setting of a resource once.
fn check_names(changes: &[Change<'_>]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    match changes.iter().find(|change| !seen.insert(change.name)) {
        None => Ok(()),
        Some(twice) => {
            Err(invalid(format!("{}: the setting is named twice in the request", twice.name)))
        }
    }
}

/// Returns the id that a broker's resource names; `None` stands for all brokers.
pub(super) fn broker_named(node: &Node, name: &str) -> Result<Option<i32>, Error> {
    let own = node.core.options.facts.broker_id;
    match name.parse() {
        _ if name.is_empty() => Ok(None),
        Ok(id) if id == own => Ok(Some(id)),
        _ => Err(invalid(format!("expected the id of this broker, {own}, but got '{name}'"))),
    }
}

/// Returns the id of a broker whose settings the client alters; `None` stands for all brokers. Any node may receive the
/// request.
fn broker_to_alter(node: &Node, name: &str) -> Result<Option<i32>, Error> {
    let is_there = |id: &i32| node.core.controller.image.brokers.contains_key(id);
    match name.parse().ok().filter(is_there) {
        Some(id) => Ok(Some(id)),
        None => broker_named(node, name),
    }
}

/// Resource to which settings belong.
enum Owner<'a> {
    Topic(&'a Topic),
    /// One broker, or all, with its dynamic settings.
    Broker(i32, &'a Settings),
    /// A group, which need not be there.
    Group(&'a str, &'a Settings),
}

impl<'a> Owner<'a> {
    fn of(node: &'a Node, asked: &Asked<'a>) -> Result<Self, Error> {
        let name = asked.name;
        match asked.kind {
            TOPIC if name.is_empty() => Err(invalid("there are no settings that all topics share")),
            TOPIC => topic_named(node, name).map(Self::Topic),
            BROKER => {
                let id = broker_to_alter(node, name)?.unwrap_or(ALL_BROKERS);
                Ok(Self::Broker(id, node.core.controller.image.broker_configs(id)))
            }
            BROKER_LOGGER if !asked.replaces && broker_to_alter(node, name)?.is_some() => {
                let text = "what is logged is changed by a restart only";
                Err(Error::new(ErrorCode::InvalidConfig, text))
            }
            CLIENT_METRICS => Err(invalid("metrics of clients are not collected here")),
            GROUP if !name.is_empty() => {
                Ok(Self::Group(name, node.core.controller.image.group_configs(name)))
            }
            other => Err(invalid(format!("there is no such resource '{name}' of type {other}"))),
        }
    }

    fn own(&self) -> &Settings {
        match self {
            Self::Topic(topic) => &topic.configs,
            Self::Broker(_, own) | Self::Group(_, own) => own,
        }
    }

    /// Returns the resource's own settings after the change.
    fn wanted(&self, node: &Node, asked: &Asked<'_>) -> Result<Settings, Error> {
        let mut wanted = if asked.replaces { Settings::new() } else { self.own().clone() };
        for change in &asked.changes {
            if change.operation == DELETE {
                wanted.remove(change.name);
                continue;
            }
            let value = self.changed(node, change)?;
            wanted.insert(change.name.to_owned(), value);
        }
        Ok(wanted)
    }

    fn changed(&self, node: &Node, change: &Change<'_>) -> Result<String, Error> {
        let name = change.name;
        let value =
            change.value.ok_or_else(|| invalid(format!("{name}: a setting needs a value")))?;
        let table = match self {
            Self::Topic(_) => TOPIC_CONFIGS,
            Self::Broker(..) => BROKER_CONFIGS,
            Self::Group(..) => GROUP_CONFIGS,
        };
        let row = find(table, name);
        match change.operation {
            SET => Ok(row.map_or_else(|| value.to_owned(), |row| row.kept(value))),
            APPEND | SUBTRACT => {
                if row.is_none_or(|row| row.kind != Kind::List) {
                    let text = format!("{name}: words are added to and taken from lists only");
                    return Err(Error::new(ErrorCode::InvalidConfig, text));
                }
                let now = self.list(node, name);
                Ok(if change.operation == APPEND { with(now, value) } else { without(now, value) })
            }
            other => Err(invalid(format!("{name}: there is no operation {other}"))),
        }
    }

    /// Returns the list to which the request adds words, or from which it removes them.
    fn list(&self, node: &'a Node, name: &str) -> &str {
        match self {
            Self::Topic(topic) => {
                let found = effective(name, &topic.configs, &node.core.options.settings);
                found.map_or("", |(value, _)| value)
            }
            Self::Broker(_, own) | Self::Group(_, own) => {
                let default = || find(BROKER_CONFIGS, name).map_or("", |row| row.default);
                own.get(name).map_or_else(default, String::as_str)
            }
        }
    }

    fn check(&self, node: &Node, name: &str, value: &str) -> Result<(), Error> {
        let refuse = |code, text: String| Err(Error::new(code, text));
        match self {
            Self::Topic(_) => check_topic(name, value)
                .or_else(|error| refuse(ErrorCode::InvalidConfig, error.to_string())),
            Self::Group(..) => check_group(name, value, &node.core.options.settings)
                .or_else(|error| refuse(ErrorCode::InvalidConfig, error.to_string())),
            // The setting decides how many replicas must have a topic's records, which must not depend on the leader.
            Self::Broker(0.., _) if name == "min.insync.replicas" => {
                let text =
                    "min.insync.replicas: it is set for all brokers alike, by the empty name";
                refuse(ErrorCode::InvalidConfig, text.to_owned())
            }
            Self::Broker(..) => check_dynamic(name, value)
                .or_else(|error| refuse(ErrorCode::InvalidRequest, error.to_string())),
        }
    }

    fn record(&self, name: &str, value: Option<&String>) -> MetadataRecord {
        let (name, value) = (name.to_owned(), value.cloned());
        match *self {
            Self::Topic(topic) => {
                let topic_id = topic.id;
                MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, name, value })
            }
            Self::Broker(broker_id, _) => {
                MetadataRecord::SetBrokerConfig(SetBrokerConfig { broker_id, name, value })
            }
            Self::Group(group, _) => {
                let group = group.to_owned();
                MetadataRecord::SetGroupConfig(SetGroupConfig { group, name, value })
            }
        }
    }

    fn records(&self, node: &Node, wanted: &Settings) -> Result<Vec<MetadataRecord>, Error> {
        let own = self.own();
        let mut records = Vec::new();
        for (name, value) in wanted.iter().filter(|(name, value)| own.get(*name) != Some(value)) {
            self.check(node, name, value)?;
            records.push(self.record(name, Some(value)));
        }
        if let (Self::Group(..), false) = (self, records.is_empty()) {
            check_group_as_one(wanted, &node.core.options.settings)
                .map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))?;
        }
        let gone = own.keys().filter(|name| !wanted.contains_key(*name));
        records.extend(gone.map(|name| self.record(name, None)));
        if let Self::Topic(_) = self
            && is_queue_topic(own) != is_queue_topic(wanted)
        {
            let text =
                format!("{QUEUE_ENABLE}: it is set when a topic is created, and never changes");
            return Err(Error::new(ErrorCode::InvalidConfig, text));
        }
        if let (Self::Topic(_), false) = (self, records.is_empty()) {
            check_topic_as_one(wanted, &node.core.options.settings)
                .map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))?;
        }
        Ok(records)
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn with(list: &str, added: &str) -> String {
    let mut all: Vec<&str> = words(list).collect();
    // An empty word stays, and the check refuses it where the list must have words.
    for word in added.split(',').map(str::trim) {
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
