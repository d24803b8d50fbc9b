//! # Room card: peers
//!
//! Purpose:    connections between the nodes of one cluster.
//! Owns:       the listener for nodes, one outgoing connection to each other node, with its queue, the forming of a
//!             cluster, this node's standing.
//! Interface:  [`Peers::start`], [`Peers::form`], [`Links::send`], [`Links::place`], [`Links::go_to`];
//!             [`Links::open_calls`] and [`Links::calls_of_nodes`] for calls that nodes pass on.
//! Invariants: nobody waits for a node that is slow, frozen or gone: frames beyond its queue are dropped and counted.
//!             Memory follows the bytes that arrived. Bytes that make no sense end their connection, and nothing else.
//!             A frame is decoded where it was read: on the node's thread only where that serves clients, too.
//!             With `node.security=tls` nothing is said or heard before both ends know each other (`security.rs`).
//! Never:      the content of frames (see the broker's `turn/frames.rs`).
//! Tests:      here, in `peers/`, and `tests/cluster.rs` with real processes.
//! Start at:   [`Peers::start`]; `forming.rs` for how a cluster begins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use duramen_broker::event::NodeAddress;
use duramen_protocol::wire::Uuid;
use duramen_storage::Storage;
use duramen_storage::storage::{Facts, Voter};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::chance::random;
use super::disk::RealDisk;
use super::home::Home;
use super::threads::Common;
use crate::config::HostPort;

mod arrival;
mod calls;
mod forming;
mod greeting;
mod link;
mod links;
mod message;
mod notice;
mod passing;
mod security;
mod standing;
mod traffic;

use arrival::Arrivals;
use forming::{Forming, Step};
use greeting::{Greeting, Identity};
use links::Dialling;
pub use links::Links;
pub(crate) use passing::CallsOfNode;
pub use security::Security;
pub use standing::Standing;
pub use traffic::PeerMetrics;

/// Time between two log lines that say what the node waits for.
pub(super) const WAITING_SAID_EVERY: Duration = Duration::from_secs(5);
/// Greetings that wait to be heard.
const GREETINGS_MAX: usize = 64;

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
    /// The way in which nodes know each other.
    pub security: Security,
}

impl Peers {
    /// Listens to the other nodes and dials them.
    pub fn start(place: Place, runtime: &Handle, common: &Common) -> Self {
        let Place { socket, address, nodes, facts, voters, replaces, security } = place;
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
        let (move_home, home) = Home::at(runtime.clone());
        let security = Arc::new(security);
        let dialling = Dialling {
            own: NodeAddress { broker_id: facts.broker_id, host, port },
            listed: nodes.keys().copied().collect(),
            identity: identities.clone(),
            standing: Arc::clone(&standing),
            metrics: metrics.clone(),
            runtime: runtime.clone(),
            home: home.clone(),
            move_home,
            security: Arc::clone(&security),
            node: common.node.clone(),
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
            node: common.node.clone(),
            metrics,
            complaints: Arc::default(),
            home,
            security,
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
