//! # Room card: settings
//!
//! Purpose:    the settings of Kafka's that concern sockets and this process, not the log.
//! Owns:       their names, defaults and checks; everything else is the broker's.
//! Interface:  [`ServerSettings::split`].
//! Invariants: a setting belongs to exactly one table, or is known to both and means the same; all
//!             mistakes are told at once.
//! Never:      a setting without Kafka's name.
//! Tests:      below.
//! Start at:   [`ServerSettings::split`].

use std::collections::BTreeMap;
use std::time::Duration;

use duramen_broker::configs::{BROKER_CONFIGS, BrokerSettings};
use duramen_broker::limits::{FRAME_BYTES_MAX, NODE_BYTES_IN_FLIGHT_MAX};

use crate::config::{Config, HostPort, Mistakes, nearest};

/// Settings of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// `node.id`, if given; else the data directory's, or 1 for a new one.
    pub node_id: Option<i32>,
    /// `advertised.listeners`.
    pub advertised: Option<HostPort>,
    /// `max.connections`.
    pub connections_max: usize,
    /// `connections.max.idle.ms`.
    pub idle_max: Option<Duration>,
    /// `socket.request.max.bytes`.
    pub frame_bytes_max: u32,
    /// `queued.max.request.bytes`.
    pub in_flight_bytes_max: u64,
}

/// Names of the settings of this process that the broker's table may not have.
const OWN: [&str; 7] = [
    "node.id",
    "broker.id",
    "advertised.listeners",
    "max.connections",
    "connections.max.idle.ms",
    "socket.request.max.bytes",
    "queued.max.request.bytes",
];

impl ServerSettings {
    /// Sorts the settings of `config` into this process's and the broker's, and checks both.
    pub fn split(config: &Config) -> Result<(Self, BrokerSettings), Mistakes> {
        let mut mistakes = Vec::new();
        let broker_knows = |name: &str| BROKER_CONFIGS.iter().any(|row| row.name == name);
        let broker: Vec<(String, String)> = config
            .settings
            .iter()
            .filter(|(name, _)| !OWN.contains(&name.as_str()) || broker_knows(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let broker = match BrokerSettings::from_pairs(&broker) {
            Ok(broker) => Some(broker),
            Err(errors) => {
                mistakes.extend(errors.iter().map(|error| match nearest(&error.key, OWN) {
                    Some(near) if near != error.key && !broker_knows(&error.key) => {
                        format!("{}: there is no such setting; did you mean {near}?", error.key)
                    }
                    _ => error.to_string(),
                }));
                None
            }
        };
        let own = Self::own(config, &mut mistakes);
        match broker {
            Some(broker) if mistakes.is_empty() => Ok((own, broker)),
            _ => Err(Mistakes(mistakes)),
        }
    }

    fn own(config: &Config, mistakes: &mut Vec<String>) -> Self {
        let given = &config.settings;
        let node_id = number(given, "node.id", 0..=i64::from(i32::MAX), mistakes)
            .or_else(|| number(given, "broker.id", 0..=i64::from(i32::MAX), mistakes));
        let connections = number(given, "max.connections", 0..=i64::from(i32::MAX), mistakes);
        let idle = number(given, "connections.max.idle.ms", -1..=i64::MAX, mistakes);
        let frame = number(
            given,
            "socket.request.max.bytes",
            1024..=i64::try_from(FRAME_BYTES_MAX).unwrap_or(i64::MAX),
            mistakes,
        );
        let queued = number(given, "queued.max.request.bytes", -1..=i64::MAX, mistakes);
        Self {
            node_id: node_id.and_then(|id| i32::try_from(id).ok()),
            advertised: advertised(config, mistakes),
            connections_max: connections
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(usize::MAX),
            // Kafka's default is ten minutes; -1 is never.
            idle_max: u64::try_from(idle.unwrap_or(600_000)).ok().map(Duration::from_millis),
            frame_bytes_max: frame
                .and_then(|bytes| u32::try_from(bytes).ok())
                .unwrap_or_else(|| u32::try_from(FRAME_BYTES_MAX).expect("it is 100 MiB")),
            // Kafka's default, -1, is no limit; ours is never without one.
            in_flight_bytes_max: queued
                .and_then(|bytes| u64::try_from(bytes).ok())
                .filter(|bytes| *bytes > 0)
                .unwrap_or(NODE_BYTES_IN_FLIGHT_MAX),
        }
    }
}

fn number(
    given: &BTreeMap<String, String>,
    name: &str,
    range: std::ops::RangeInclusive<i64>,
    mistakes: &mut Vec<String>,
) -> Option<i64> {
    let text = given.get(name)?;
    match text.trim().parse() {
        Ok(number) if range.contains(&number) => Some(number),
        _ => {
            let (least, most) = range.into_inner();
            mistakes.push(format!("{name}: {text} is not a number between {least} and {most}"));
            None
        }
    }
}

/// `PLAINTEXT://host:port`, or only `host:port`; the flag beats the setting.
fn advertised(config: &Config, mistakes: &mut Vec<String>) -> Option<HostPort> {
    if let Some(address) = &config.advertise {
        return Some(address.clone());
    }
    let text = config.settings.get("advertised.listeners")?.trim();
    let address = text.strip_prefix("PLAINTEXT://").unwrap_or(text);
    let problem = if text.contains(',') {
        "there is one listener, so give one address".to_owned()
    } else if address.contains("://") {
        "only PLAINTEXT is supported yet".to_owned()
    } else {
        match HostPort::parse(address) {
            Ok(address) if address.port == 0 => "port 0 cannot be connected to".to_owned(),
            Ok(address) if address.is_unspecified() => {
                format!("clients cannot connect to {}", address.host)
            }
            Ok(address) => return Some(address),
            Err(problem) => problem,
        }
    };
    mistakes.push(format!("advertised.listeners: {problem}"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServerArgs;

    fn split(settings: &[&str]) -> Result<(ServerSettings, BrokerSettings), Mistakes> {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let args = ServerArgs { settings, ..ServerArgs::default() };
        ServerSettings::split(&Config::load(None, &args, []).unwrap())
    }

    #[test]
    fn settings_go_to_their_tables() {
        let (own, broker) = split(&[
            "node.id=7",
            "num.partitions=3",
            "connections.max.idle.ms=-1",
            "advertised.listeners=PLAINTEXT://example.com:9092",
        ])
        .unwrap();
        assert_eq!(own.node_id, Some(7));
        assert_eq!(own.idle_max, None);
        assert_eq!(own.advertised.unwrap().to_string(), "example.com:9092");
        assert_eq!(own.frame_bytes_max, 104_857_600);
        assert_eq!(broker.num_partitions, 3);
    }

    #[test]
    fn mistakes_of_both_tables_are_told_at_once() {
        let Mistakes(mistakes) = split(&[
            "num.partitons=3",
            "conections.max.idle.ms=5",
            "socket.request.max.bytes=big",
            "advertised.listeners=SSL://a:1",
        ])
        .unwrap_err();
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
        let has = |part: &str| mistakes.iter().any(|mistake| mistake.contains(part));
        assert!(has("did you mean num.partitions?"), "{mistakes:?}");
        assert!(has("did you mean connections.max.idle.ms?"), "{mistakes:?}");
    }
}
