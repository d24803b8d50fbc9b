//! Links to all other nodes: the addresses, and the frames on their way there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use duramen_broker::Event;
use duramen_broker::event::{Membership, NodeAddress};
use duramen_broker::peer::PeerFrame;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::greeting::Identity;
use super::link::{Dialler, Link};
use super::notice::Notice;
use super::passing::CallsOfNode;
use super::security::Security;
use super::standing::Standing;
use super::traffic::PeerMetrics;
use crate::config::HostPort;
use crate::server::home::Home;
use crate::server::threads::{Input, ToNode};

/// Nodes that are dialled at most, and the longest name of one: all of them fit into a greeting.
const NODES_MAX: usize = 100;
const HOST_BYTES_MAX: usize = 255;

/// The ways to all other nodes. There is one more whenever a node is heard of.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<LinkTable>);

#[derive(Debug, Default)]
struct LinkTable {
    /// The means to dial; nothing in a node that has no others.
    dialling: Option<Dialling>,
    known: Mutex<BTreeMap<i32, Known>>,
    /// Nodes that were last dialled without TLS.
    plain: Mutex<BTreeSet<i32>>,
    /// The way of calls that other nodes pass on, if this one serves the native API.
    callers: OnceLock<mpsc::Sender<CallsOfNode>>,
}

/// Parts from which each link is made.
#[derive(Debug)]
pub(super) struct Dialling {
    pub(super) own: NodeAddress,
    /// Nodes whose address the operator has configured; that address is never replaced.
    pub(super) listed: BTreeSet<i32>,
    pub(super) identity: watch::Receiver<Identity>,
    pub(super) standing: Arc<Standing>,
    pub(super) metrics: PeerMetrics,
    pub(super) runtime: Handle,
    pub(super) home: Home,
    pub(super) move_home: watch::Sender<Handle>,
    pub(super) security: Arc<Security>,
    pub(super) node: ToNode,
}

/// A node that was heard of.
#[derive(Debug)]
struct Known {
    link: Arc<Link>,
    address: watch::Sender<HostPort>,
}

impl Links {
    /// Dials those that are listed. Nobody else has been heard of yet.
    pub(super) fn new(dialling: Dialling, nodes: BTreeMap<i32, HostPort>) -> Self {
        let table = LinkTable { dialling: Some(dialling), ..LinkTable::default() };
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

    /// Moves the tasks that talk with other nodes to another runtime.
    pub fn go_to(&self, runtime: &Handle) {
        if let Some(dialling) = &self.0.dialling {
            dialling.move_home.send_replace(runtime.clone());
        }
    }

    /// Tells a node of a directory that comes under its id.
    pub(super) fn tell(&self, to: i32, notice: Notice) {
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
    pub(super) fn hear_of(&self, nodes: &[NodeAddress]) {
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
            home: dialling.home.clone(),
            security: Arc::clone(&dialling.security),
            talking: None,
        };
        dialling.runtime.spawn(dialler.run());
        Known { link, address }
    }

    /// Tells the node which nodes it speaks to without TLS.
    pub(super) fn note_tls(&self, broker_id: i32, is_sealed: bool) {
        let Some(dialling) = &self.0.dialling else { return };
        let mut plain = self.0.plain.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = if is_sealed { plain.remove(&broker_id) } else { plain.insert(broker_id) };
        if changes {
            dialling.node.push(Input::Event(Event::Plain(plain.clone())));
        }
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

    /// Returns the way of calls that other nodes pass on.
    pub(super) fn callers(&self) -> &OnceLock<mpsc::Sender<CallsOfNode>> {
        &self.0.callers
    }

    /// Returns the means to dial, and the identity of this node; nothing in a node that has no others.
    pub(super) fn means(&self) -> Option<(Arc<Security>, Identity)> {
        let dialling = self.0.dialling.as_ref()?;
        Some((Arc::clone(&dialling.security), dialling.identity.borrow().clone()))
    }

    /// Returns the address of another node, if it is known.
    pub(crate) fn address_of(&self, broker_id: i32) -> Option<HostPort> {
        self.known().get(&broker_id).map(|known| known.address.borrow().clone())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<i32, Known>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
