//! # Room card: peers
//!
//! Purpose:    connections between the nodes of one cluster.
//! Owns:       the listener for nodes, one outgoing connection to each other node, with its queue, the forming of a
//!             cluster, this node's standing.
//! Interface:  [`Peers::start`], [`Peers::form`], [`Links::send`], [`Links::place`].
//! Invariants: nobody waits for a node that is slow, frozen or gone: frames beyond its queue are dropped and counted.
//!             Memory follows the bytes that arrived. Bytes that make no sense end their connection, and nothing else.
//!             A frame is decoded where it was read, not on the node's thread.
//! Never:      the content of frames (see the broker's `node/peers.rs`); passwords: nobody is asked for one yet, so the
//!             listener belongs on a network of its own.
//! Tests:      here, in `peers/`, and `tests/cluster.rs` with real processes.
//! Start at:   [`Peers::start`]; `forming.rs` for how a cluster begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use duramen_broker::event::{Membership, NodeAddress};
use duramen_broker::peer::PeerFrame;
use duramen_protocol::wire::Uuid;
use duramen_storage::Storage;
use duramen_storage::storage::{Facts, Voter};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::disk::RealDisk;
use super::random;
use crate::config::HostPort;

mod arrival;
mod forming;
mod greeting;
mod link;
mod notice;
mod standing;

use arrival::Arrivals;
use forming::{Forming, Step};
use greeting::{Greeting, Identity};
use link::{Dialler, Link};
use notice::Notice;
pub use standing::Standing;

/// Time between two greetings of a node that is no member yet.
const GREET_AGAIN: Duration = Duration::from_millis(500);
/// Time between two log lines that say what the node waits for.
pub(super) const WAITING_SAID_EVERY: Duration = Duration::from_secs(5);
/// Nodes that are dialled at most, and the longest name of one: all of them fit into a greeting.
const NODES_MAX: usize = 100;
const HOST_BYTES_MAX: usize = 255;
/// Greetings that wait to be heard.
const GREETINGS_MAX: usize = 64;

/// Kind of a message between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Greeting = 1,
    Frame = 2,
    /// Goes both ways on a connection.
    Notice = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Greeting, Self::Frame, Self::Notice].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A label of a metric.
type Labels = Vec<(&'static str, String)>;

/// Traffic to and from other nodes, by node.
#[derive(Clone, Debug, Default)]
pub struct PeerMetrics {
    sent_frames: Family<Labels, Counter>,
    sent_bytes: Family<Labels, Counter>,
    dropped: Family<Labels, Counter>,
    connects: Family<Labels, Counter>,
    received_frames: Family<Labels, Counter>,
    received_bytes: Family<Labels, Counter>,
}

/// The same, of one node.
#[derive(Clone, Debug, Default)]
struct Traffic {
    sent_frames: Counter,
    sent_bytes: Counter,
    dropped: Counter,
    connects: Counter,
    received_frames: Counter,
    received_bytes: Counter,
}

impl PeerMetrics {
    /// Registers the metrics under the names that operators see.
    pub fn register(&self, registry: &mut Registry) {
        let families = [
            ("peer_sent_frames", "Frames that the node sent to another node", &self.sent_frames),
            ("peer_sent_bytes", "Bytes that the node sent to another node", &self.sent_bytes),
            (
                "peer_dropped_frames",
                "Frames for another node that the node dropped: not connected, or too slow",
                &self.dropped,
            ),
            ("peer_connects", "Connections that the node opened to another node", &self.connects),
            ("peer_received_frames", "Frames that another node sent", &self.received_frames),
            ("peer_received_bytes", "Bytes of frames that another node sent", &self.received_bytes),
        ];
        for (name, help, family) in families {
            registry.register(name, help, family.clone());
        }
    }

    fn of(&self, broker_id: i32) -> Traffic {
        let labels = vec![("peer", broker_id.to_string())];
        let of = |family: &Family<Labels, Counter>| family.get_or_create(&labels).clone();
        Traffic {
            sent_frames: of(&self.sent_frames),
            sent_bytes: of(&self.sent_bytes),
            dropped: of(&self.dropped),
            connects: of(&self.connects),
            received_frames: of(&self.received_frames),
            received_bytes: of(&self.received_bytes),
        }
    }
}

/// The ways to all other nodes. There is one more whenever a node is heard of.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<LinkTable>);

#[derive(Debug, Default)]
struct LinkTable {
    /// The means to dial; nothing in a node that has no others.
    dialling: Option<Dialling>,
    known: Mutex<BTreeMap<i32, Known>>,
}

/// Parts from which each link is made.
#[derive(Debug)]
struct Dialling {
    own: NodeAddress,
    /// Nodes whose address the operator has configured; that address is never replaced.
    listed: BTreeSet<i32>,
    identity: watch::Receiver<Identity>,
    standing: Arc<Standing>,
    metrics: PeerMetrics,
    runtime: Handle,
}

/// A node that was heard of.
#[derive(Debug)]
struct Known {
    link: Arc<Link>,
    address: watch::Sender<HostPort>,
}

impl Links {
    /// Dials those that are listed. Nobody else has been heard of yet.
    fn new(dialling: Dialling, nodes: BTreeMap<i32, HostPort>) -> Self {
        let table = LinkTable { dialling: Some(dialling), known: Mutex::default() };
        let links = Self(Arc::new(table));
        let node = |(broker_id, HostPort { host, port })| NodeAddress { broker_id, host, port };
        links.place(&nodes.into_iter().map(node).collect::<Vec<_>>());
        links
    }

    /// Sends a frame, if it can be sent; it may be lost.
    pub fn send(&self, to: i32, frame: PeerFrame) {
        let link = self.known().get(&to).map(|known| Arc::clone(&known.link));
        if let Some(link) = link {
            link.push(frame);
        }
    }

    /// Tells a node of a directory that comes under its id.
    fn tell(&self, to: i32, notice: Notice) {
        if let Some(known) = self.known().get(&to) {
            known.link.tell(notice);
        }
    }

    /// Passes on which directories are the cluster.
    pub fn follow(&self, members: Membership) {
        if let Some(dialling) = &self.0.dialling {
            dialling.standing.follow(members);
        }
    }

    /// Returns the standing of this node in its cluster; `None` for a node that has no others.
    pub fn standing(&self) -> Option<&Arc<Standing>> {
        self.0.dialling.as_ref().map(|dialling| &dialling.standing)
    }

    /// Takes the addresses of nodes from their registrations: a node with a new address is dialled there.
    pub fn place(&self, nodes: &[NodeAddress]) {
        for node in nodes {
            self.learn(node, true);
        }
    }

    /// Takes the addresses of nodes from another node: they count for nodes that are not known.
    fn hear_of(&self, nodes: &[NodeAddress]) {
        for node in nodes {
            self.learn(node, false);
        }
    }

    fn learn(&self, node: &NodeAddress, is_certain: bool) {
        let Some(dialling) = &self.0.dialling else { return };
        let address = HostPort { host: node.host.clone(), port: node.port };
        let is_usable = node.port > 0 && (1..=HOST_BYTES_MAX).contains(&node.host.len());
        if node.broker_id == dialling.own.broker_id || !is_usable {
            return;
        }
        let mut all = self.known();
        if let Some(known) = all.get(&node.broker_id) {
            if is_certain && !dialling.listed.contains(&node.broker_id) {
                known.address.send_if_modified(|before| {
                    let is_elsewhere = *before != address;
                    *before = address;
                    is_elsewhere
                });
            }
        } else if all.len() < NODES_MAX {
            all.insert(node.broker_id, self.dial(dialling, node.broker_id, address));
        }
    }

    fn dial(&self, dialling: &Dialling, broker_id: i32, address: HostPort) -> Known {
        let link = Arc::new(Link::new(dialling.metrics.of(broker_id)));
        let (address, addresses) = watch::channel(address);
        let dialler = Dialler {
            link: Arc::clone(&link),
            broker_id,
            address: addresses,
            identity: dialling.identity.clone(),
            links: self.clone(),
        };
        dialling.runtime.spawn(dialler.run());
        Known { link, address }
    }

    /// Returns the known addresses of nodes, this one among them.
    pub fn nodes(&self) -> Vec<NodeAddress> {
        let known = self.known();
        let others = known.iter().map(|(&broker_id, known)| {
            let HostPort { host, port } = known.address.borrow().clone();
            NodeAddress { broker_id, host, port }
        });
        let own = self.0.dialling.iter().map(|dialling| dialling.own.clone());
        own.chain(others).collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<i32, Known>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The other nodes, from this process.
#[derive(Debug)]
pub struct Peers {
    /// Links to the other nodes.
    pub links: Links,
    forming: Forming,
    identity: watch::Sender<Identity>,
    greetings: mpsc::Receiver<Greeting>,
}

/// A node's own place among those that are listed.
#[derive(Debug)]
pub struct Place {
    /// The listener for nodes.
    pub socket: TcpListener,
    /// Address under which other nodes reach this one.
    pub address: HostPort,
    /// The nodes that the operator has listed, and where they listen for each other. One that is not among them joins.
    pub nodes: BTreeMap<i32, HostPort>,
    /// Identity of this node, as its manifest says.
    pub facts: Facts,
    /// Nodes with which this one has promised to form a cluster, or has formed it.
    pub voters: Vec<Voter>,
    /// The operator asks for the place of the directory that is registered under this node's id.
    pub replaces: bool,
}

impl Peers {
    /// Listens to the other nodes and dials them.
    pub fn start(place: Place, runtime: &Handle, common: &super::Common) -> Self {
        let Place { socket, address, nodes, facts, voters, replaces } = place;
        let identity = Identity {
            broker_id: facts.broker_id,
            directory_id: facts.directory_id,
            cluster_id: Some(facts.cluster_id).filter(|id| *id != [0; 16]),
            voters,
        };
        let metrics = common.metrics.peers.clone();
        let (watched, identities) = watch::channel(identity.clone());
        let (sender, greetings) = mpsc::channel(GREETINGS_MAX);
        let HostPort { host, port } = address;
        let standing = Arc::new(Standing::new(&identity, replaces, Arc::clone(&common.health)));
        let dialling = Dialling {
            own: NodeAddress { broker_id: facts.broker_id, host, port },
            listed: nodes.keys().copied().collect(),
            identity: identities.clone(),
            standing: Arc::clone(&standing),
            metrics: metrics.clone(),
            runtime: runtime.clone(),
        };
        let forming = Forming::new(identity, nodes.keys().copied());
        // Before anybody is heard: what others say of an address counts for those that are not known.
        let links = Links::new(dialling, nodes);
        let arrivals = Arrivals {
            identity: identities,
            links: links.clone(),
            standing,
            here: Arc::default(),
            greetings: sender,
            node: Arc::clone(&common.node),
            metrics,
            complaints: Arc::default(),
        };
        runtime.spawn(arrivals.run(socket));
        Self { links, forming, identity: watched, greetings }
    }

    /// Waits until this node is a member of a cluster: at once, if it has been one.
    pub fn form(
        &mut self,
        storage: &mut Storage<RealDisk>,
        runtime: &Handle,
    ) -> anyhow::Result<([u8; 16], Vec<Voter>)> {
        loop {
            let own = self.forming.own();
            if let Some(cluster_id) = own.cluster_id {
                return Ok((cluster_id, own.voters.clone()));
            }
            match self.forming.next().map_err(anyhow::Error::msg)? {
                Some(step) => self.take(step, storage)?,
                None => self.listen(runtime)?,
            }
        }
    }

    /// Takes a step: first on disk, and only then told to others.
    fn take(&mut self, step: Step, storage: &mut Storage<RealDisk>) -> anyhow::Result<()> {
        let cannot = "cannot write the manifest";
        match step {
            Step::Promise(voters) => {
                storage.join(None, &voters).context(cannot)?;
                tracing::info!("this node has heard all nodes: they can form a cluster");
                self.forming.promised(voters);
            }
            Step::Join(known, founders) => {
                let cluster_id = known.map_or_else(random, Ok)?;
                storage.join(Some(cluster_id), &founders).context(cannot)?;
                tracing::info!(
                    cluster_id = %Uuid(cluster_id),
                    decided = known.is_none(),
                    "this node is a member of a cluster"
                );
                self.forming.joined(cluster_id, founders);
            }
        }
        self.identity.send_replace(self.forming.own().clone());
        Ok(())
    }

    fn listen(&mut self, runtime: &Handle) -> anyhow::Result<()> {
        let heard = async { timeout(WAITING_SAID_EVERY, self.greetings.recv()).await };
        if let Ok(greeting) = runtime.block_on(heard) {
            self.forming.hear(greeting.context("nobody listens to other nodes")?);
        } else {
            tracing::info!("the cluster is not formed yet: {}", self.forming.waits_for());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
