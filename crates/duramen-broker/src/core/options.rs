//! Options with which a node is opened.

use std::fmt;

use bytes::Bytes;
use duramen_protocol::sasl::scram::Credential;
use duramen_storage::storage::Facts;

use crate::configs::BrokerSettings;
use crate::controller::Founder;
use crate::limits::Memory;

/// A listener for Kafka's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientListener {
    /// Its name: clients that come by it are sent to listeners of the same name.
    pub name: String,
    /// The host that its clients are told to connect to.
    pub host: String,
    /// The port that its clients are told to connect to.
    pub port: u16,
}

impl fmt::Display for ClientListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, host, port } = self;
        if host.contains(':') {
            write!(f, "{name}://[{host}]:{port}")
        } else {
            write!(f, "{name}://{host}:{port}")
        }
    }
}

/// Options with which a node is opened.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Identity of the node, from the manifest.
    pub facts: Facts,
    /// Listeners for Kafka's clients, at least one.
    pub listeners: Vec<ClientListener>,
    /// Rack of the node, if it is known.
    pub rack: Option<String>,
    /// Its data directory, as clients are told of it.
    pub log_dir: String,
    /// Its configuration.
    pub settings: BrokerSettings,
    /// Seed of all randomness of the node; another one at each start.
    pub seed: u64,
    /// Highest kind of the metadata's records that the node says it knows: [`KINDS`], or 0 of a build before users.
    ///
    /// [`KINDS`]: crate::KINDS
    pub kinds: u32,
    /// Bytes that nobody can guess; others at each start.
    pub secret: [u8; 32],
    /// Users that the cluster gets, if it has none, with a credential of theirs.
    pub first_users: Vec<(String, Credential)>,
    /// Bytes of record batches it may hold before their sync.
    pub bytes_in_flight_max: u64,
    /// The metadata log's batches after its image: [`crate::read_plan::metadata_tail`].
    pub metadata_tail: Vec<Bytes>,
    /// Address at which other nodes reach this one, if they can.
    pub node_address: Option<(String, u16)>,
    /// Address of the native API, if the node serves it, for nodes that pass calls on.
    pub native_address: Option<(String, u16)>,
    /// Founders of the cluster, the same on all nodes. Empty if the node is alone for ever.
    pub founders: Vec<Founder>,
    /// Nodes named at the start. This node speaks to them until it is registered, because all founders may have been
    /// replaced.
    pub introduced: Vec<i32>,
    /// True if the node asks for the place of the directory that is registered under its id. Otherwise that place is
    /// never given away.
    pub replaces: bool,
    /// Limits of the memory that groups keep for followers.
    pub memory: Memory,
    /// Ticks without anything to do after which groups of several voters sleep.
    pub quiet_ticks: u64,
}

impl NodeOptions {
    /// Lets the settings say what is so, where it was not given, or in other words: tools ask.
    pub(crate) fn settle(&mut self) {
        let id = self.facts.broker_id.to_string();
        let advertised: Vec<String> = self.listeners.iter().map(ToString::to_string).collect();
        self.settings.settle("node.id", id.clone());
        self.settings.settle("broker.id", id);
        self.settings.settle("advertised.listeners", advertised.join(","));
        self.settings.settle("queued.max.request.bytes", self.bytes_in_flight_max.to_string());
    }
}
