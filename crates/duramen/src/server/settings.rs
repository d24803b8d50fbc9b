//! # Room card: settings
//!
//! Purpose:    what of Kafka's settings concerns sockets and this process, as values.
//! Owns:       what a listener may be (`settings/listeners.rs`), and a port of HTTP (`settings/doors.rs`); how nodes
//!             know each other (`settings/nodes.rs`).
//!             Names, defaults and checks are in the broker's table.
//! Interface:  [`ServerSettings::split`].
//! Invariants: all mistakes are told at once.
//! Never:      a setting that is not in the table.
//! Tests:      below.
//! Start at:   [`ServerSettings::split`].

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use duramen_broker::configs::{AUTHORIZER, BrokerSettings};
use duramen_broker::limits::NODE_BYTES_IN_FLIGHT_MAX;

use super::seats::SeatLimits;
use crate::config::{Config, HostPort, Mistakes};

mod doors;
mod first_users;
mod listeners;
mod nodes;

pub use first_users::FirstUser;
pub use listeners::{ListenerSettings, SaslSettings};
pub use nodes::{NodeMode, NodeSecurity};

/// Settings of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// `node.id` or `broker.id`, if given; else the data directory's, or 1 for a new one.
    pub node_id: Option<i32>,
    /// `listeners`, with `advertised.listeners`; at least one.
    pub listeners: Vec<ListenerSettings>,
    /// The port of the native API, if it is served.
    pub native: Option<ListenerSettings>,
    /// The port of metrics and health, if they are served.
    pub http: Option<ListenerSettings>,
    /// `controller.quorum.voters`: the nodes that form the cluster, with the addresses where they listen for other
    /// nodes. A node that is not among them joins their cluster. Empty for a node that is a cluster of its own.
    pub nodes: BTreeMap<i32, HostPort>,
    /// `node.security`, `node.principals`, and TLS between nodes.
    pub node_security: NodeSecurity,
    /// `max.connections`, `max.connections.per.ip` and its overrides.
    pub seats: SeatLimits,
    /// `max.connection.creation.rate`, in a second.
    pub connection_rate_max: u32,
    /// `connections.max.idle.ms`.
    pub idle_max: Option<Duration>,
    /// `socket.request.max.bytes`.
    pub frame_bytes_max: u32,
    /// `socket.send.buffer.bytes`, if it is not left to the kernel.
    pub send_buffer_bytes: Option<usize>,
    /// `num.network.threads`, unless the machine's cores decide.
    pub network_threads: Option<usize>,
    /// `queued.max.request.bytes`.
    pub in_flight_bytes_max: u64,
    /// `bootstrap.users.file`: users that the cluster gets, if it has none.
    pub first_users: Vec<FirstUser>,
    /// `metrics.kafka.names.enable`.
    pub has_kafka_names: bool,
    /// `log.scrub.interval.ms`, if segments are read again at all.
    pub scrub_interval: Option<Duration>,
}

impl ServerSettings {
    /// Checks the settings of `config`, all of them, and takes out those of this process.
    pub fn split(config: &Config) -> Result<(Self, BrokerSettings), Mistakes> {
        let mut given = config.settings.clone();
        let mut mistakes = Vec::new();
        let listeners = match listeners::text(config) {
            Ok(text) => {
                let listeners = listeners::read(config, &text, &mut mistakes);
                if config.listen.is_some() {
                    given.insert("listeners".to_owned(), text);
                }
                listeners
            }
            Err(problem) => {
                mistakes.push(format!("listeners: {problem}"));
                Vec::new()
            }
        };
        let (native, http) = doors::read(config, &listeners, &mut mistakes);
        // Nobody but an administrator comes by the port of metrics, and does nothing there.
        let for_clients: Vec<_> = listeners.iter().chain(&native).cloned().collect();
        authorize(&for_clients, &mut given);
        let nodes = config.settings.get("controller.quorum.voters");
        let nodes = nodes.map_or(Ok(BTreeMap::new()), |text| nodes_of(text));
        let nodes = nodes.unwrap_or_else(|problem| {
            mistakes.push(format!("controller.quorum.voters: {problem}"));
            BTreeMap::new()
        });
        let is_clustered = config.node_listen.is_some() || nodes.len() > 1;
        let node_security = nodes::read(config, &for_clients, is_clustered, &mut mistakes);
        given.insert("node.security".to_owned(), node_security.mode.name().to_owned());
        let given: Vec<(String, String)> = given.into_iter().collect();
        let broker = BrokerSettings::from_pairs(&given);
        let broker = broker.map_err(|errors| {
            mistakes.extend(errors.iter().map(ToString::to_string));
        });
        let overrides = config.settings.get("max.connections.per.ip.overrides");
        let overrides = overrides.map_or(Ok(HashMap::new()), |text| addresses(text));
        let addresses = overrides.unwrap_or_else(|problem| {
            mistakes.push(format!("max.connections.per.ip.overrides: {problem}"));
            HashMap::new()
        });
        if let Err(problem) =
            super_users(config.settings.get("super.users").map_or("", String::as_str))
        {
            mistakes.push(format!("super.users: {problem}"));
        }
        let users = config.settings.get("bootstrap.users.file").map(String::as_str);
        let users = users.filter(|path| !path.is_empty()).map(first_users::read).transpose();
        let users = users.unwrap_or_else(|problem| {
            mistakes.push(format!("bootstrap.users.file: {problem}"));
            None
        });
        let own = broker.map(|broker| {
            let own = Self::own(&broker, listeners, addresses);
            let first_users = users.unwrap_or_default();
            (Self { native, http, node_security, first_users, ..own }, broker)
        });
        let own = own.and_then(|(own, broker)| match own.among(nodes) {
            Ok(own) => Ok((own, broker)),
            Err(problem) => {
                mistakes.push(format!("controller.quorum.voters: {problem}"));
                Err(())
            }
        });
        match own {
            Ok(own) if mistakes.is_empty() => Ok(own),
            _ => Err(Mistakes(mistakes)),
        }
    }

    /// Takes the nodes of the cluster. A node that lists itself alone is a cluster of its own.
    fn among(self, nodes: BTreeMap<i32, HostPort>) -> Result<Self, String> {
        if nodes.is_empty() {
            return Ok(self);
        }
        match self.node_id {
            None => Err(
                "node.id must say which of these nodes this one is, or give it a number of its own to join them"
                    .to_owned(),
            ),
            Some(id) if nodes.len() == 1 && nodes.contains_key(&id) => Ok(self),
            Some(_) => Ok(Self { nodes, ..self }),
        }
    }

    fn own(
        settings: &BrokerSettings,
        listeners: Vec<ListenerSettings>,
        addresses: HashMap<IpAddr, usize>,
    ) -> Self {
        // A value that is no number of its type, such as -1, is the setting's "none".
        let number = |name: &str| settings.get(name).and_then(|(value, _)| value.parse().ok());
        let id = |name: &str| number(name).and_then(|id: u64| i32::try_from(id).ok());
        let size = |name: &str| number(name).expect("checked, or a default");
        Self {
            node_id: id("node.id").or_else(|| id("broker.id")),
            listeners,
            native: None,
            http: None,
            nodes: BTreeMap::new(),
            node_security: NodeSecurity::default(),
            first_users: Vec::new(),
            seats: SeatLimits {
                all: usize::try_from(size("max.connections")).unwrap_or(usize::MAX),
                address: usize::try_from(size("max.connections.per.ip")).unwrap_or(usize::MAX),
                addresses,
            },
            connection_rate_max: u32::try_from(size("max.connection.creation.rate"))
                .unwrap_or(u32::MAX),
            idle_max: number("connections.max.idle.ms").map(Duration::from_millis),
            frame_bytes_max: u32::try_from(size("socket.request.max.bytes")).unwrap_or(u32::MAX),
            send_buffer_bytes: number("socket.send.buffer.bytes")
                .and_then(|bytes| usize::try_from(bytes).ok()),
            network_threads: number("num.network.threads")
                .and_then(|threads| usize::try_from(threads).ok()),
            has_kafka_names: settings
                .get("metrics.kafka.names.enable")
                .is_none_or(|(value, _)| value == "true"),
            scrub_interval: number("log.scrub.interval.ms")
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis),
            in_flight_bytes_max: number("queued.max.request.bytes")
                .filter(|bytes| *bytes > 0)
                .unwrap_or(NODE_BYTES_IN_FLIGHT_MAX),
        }
    }
}

/// Has rules of access decide once a listener asks clients who they are, unless a setting says otherwise.
fn authorize(listeners: &[ListenerSettings], given: &mut BTreeMap<String, String>) {
    let name = given.entry("authorizer.class.name".to_owned()).or_default();
    if name.is_empty() && listeners.iter().any(ListenerSettings::knows_clients) {
        AUTHORIZER.clone_into(name);
    }
}

/// Checks `TYPE:NAME` entries with semicolons between.
fn super_users(text: &str) -> Result<(), String> {
    let mut entries = text.split(';').map(str::trim).filter(|entry| !entry.is_empty());
    let is_wrong = |entry: &&str| {
        entry.split_once(':').is_none_or(|(kind, name)| kind.is_empty() || name.is_empty())
    };
    match entries.find(is_wrong) {
        Some(wrong) => Err(format!("\"{wrong}\" is not TYPE:NAME, as User:admin is")),
        None => Ok(()),
    }
}

/// Reads nodes with their address each: `1@10.0.0.1:19092,2@example.com:19092`.
fn nodes_of(text: &str) -> Result<BTreeMap<i32, HostPort>, String> {
    let mut nodes = BTreeMap::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let malformed = || format!("\"{entry}\" is not ID@HOST:PORT");
        let (id, address) = entry.split_once('@').ok_or_else(malformed)?;
        let id: i32 = id.parse().ok().filter(|id| *id >= 0).ok_or_else(malformed)?;
        let address = HostPort::parse(address)?;
        if address.port == 0 || address.is_unspecified() {
            return Err(format!("other nodes cannot connect to {address}"));
        }
        if nodes.values().any(|other| *other == address) || nodes.insert(id, address).is_some() {
            return Err(format!("{entry} is listed twice, or with another node's address"));
        }
    }
    Ok(nodes)
}

/// Addresses with a number of connections each: `10.0.0.1:100,[::1]:5`.
fn addresses(text: &str) -> Result<HashMap<IpAddr, usize>, String> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let entry = |entry: &str| {
        let (address, count) = entry.rsplit_once(':')?;
        let address = address.trim().trim_start_matches('[').trim_end_matches(']');
        let address: IpAddr = address.parse().ok()?;
        Some((address.to_canonical(), count.trim().parse().ok()?))
    };
    entries
        .map(|text| entry(text).ok_or_else(|| format!("\"{text}\" is not ADDRESS:NUMBER")))
        .collect()
}

#[cfg(test)]
mod tests {
    use duramen_broker::limits::FRAME_BYTES_MAX;

    use super::*;
    use crate::config::ServerArgs;

    fn split(settings: &[&str]) -> Result<(ServerSettings, BrokerSettings), Mistakes> {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let args = ServerArgs { settings, ..ServerArgs::default() };
        ServerSettings::split(&Config::load(None, &args, []).unwrap())
    }

    #[test]
    fn settings_become_values() {
        let (own, broker) = split(&[
            "broker.id=7",
            "num.partitions=3",
            "connections.max.idle.ms=-1",
            "queued.max.request.bytes=-1",
            "socket.send.buffer.bytes=-1",
            "max.connections.per.ip=7",
            "max.connections.per.ip.overrides=10.0.0.1:100, [::1]:5,fe80::1:0",
        ])
        .unwrap();
        assert_eq!(own.seats.address, 7);
        let of = |address: &str| own.seats.addresses.get(&address.parse::<IpAddr>().unwrap());
        assert_eq!((of("10.0.0.1"), of("::1"), of("fe80::1")), (Some(&100), Some(&5), Some(&0)));
        assert_eq!(own.node_id, Some(7));
        assert_eq!(own.idle_max, None);
        assert_eq!(u64::from(own.frame_bytes_max), FRAME_BYTES_MAX as u64);
        assert_eq!(own.in_flight_bytes_max, NODE_BYTES_IN_FLIGHT_MAX);
        assert_eq!(own.send_buffer_bytes, None);
        assert_eq!(broker.num_partitions, 3);
    }

    #[test]
    fn nothing_given_is_the_defaults() {
        let (own, _) = split(&[]).unwrap();
        assert_eq!(own.node_id, None);
        assert_eq!(own.listeners.len(), 1);
        assert_eq!(own.seats.all, 2_147_483_647);
        assert_eq!(own.seats.address, 2_147_483_647);
        assert_eq!(own.seats.addresses, HashMap::new());
        assert_eq!(own.connection_rate_max, 2_147_483_647);
        assert_eq!(own.idle_max, Some(Duration::from_secs(600)));
        assert_eq!(own.send_buffer_bytes, Some(102_400));
        assert_eq!(own.in_flight_bytes_max, NODE_BYTES_IN_FLIGHT_MAX);
    }

    #[test]
    fn the_nodes_of_a_cluster_are_listed_with_their_addresses() {
        let listed = "controller.quorum.voters=1@a:7, 2@[::1]:8,3@c:9";
        let (own, _) = split(&["node.id=2", listed]).unwrap();
        let nodes: Vec<_> = own.nodes.iter().map(|(id, at)| format!("{id} {at}")).collect();
        assert_eq!(nodes, ["1 a:7", "2 [::1]:8", "3 c:9"]);
        let (own, _) = split(&["node.id=1", "controller.quorum.voters=1@localhost:9093"]).unwrap();
        assert!(own.nodes.is_empty(), "it is a cluster of its own");
        for (settings, problem) in [
            (&[listed][..], "node.id must say"),
            (&["node.id=1", "controller.quorum.voters=1@a:7,2@a"], "a is not HOST:PORT"),
            (&["node.id=1", "controller.quorum.voters=1@a:7,b:8"], "is not ID@HOST:PORT"),
            (&["node.id=1", "controller.quorum.voters=1@a:7,1@b:8"], "listed twice"),
            (&["node.id=1", "controller.quorum.voters=1@a:7,2@a:7"], "listed twice"),
            (&["node.id=1", "controller.quorum.voters=1@0.0.0.0:7"], "cannot connect"),
        ] {
            let Mistakes(mistakes) = split(settings).unwrap_err();
            assert!(mistakes[0].contains(problem), "{mistakes:?}");
        }
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let Mistakes(mistakes) = split(&[
            "num.partitons=3",
            "conections.max.idle.ms=5",
            "socket.request.max.bytes=big",
            "super.users=User:a;root",
            "advertised.listeners=SSL://a:1",
            "max.connections.per.ip.overrides=example.com:3",
        ])
        .unwrap_err();
        assert_eq!(mistakes.len(), 6, "{mistakes:?}");
        let has = |part: &str| mistakes.iter().any(|mistake| mistake.contains(part));
        assert!(has("did you mean num.partitions?"), "{mistakes:?}");
        assert!(has("did you mean connections.max.idle.ms?"), "{mistakes:?}");
    }
}
