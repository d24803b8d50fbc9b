//! This node's registration, and its reports of the cluster's directories and addresses.

use super::{ClientListener, Core};
use crate::event::{Action, Membership, NodeAddress};
use crate::metadata_records::{Endpoint, RegisterBroker};
use crate::native::Place;
use duramen_protocol::wire::Uuid;

/// The name of the listener for other nodes, among a node's endpoints.
pub const NODES: &str = "NODES";
/// The name of the listener for the native API.
pub const NATIVE: &str = "NATIVE";

impl RegisterBroker {
    /// Returns the address that the node serves on a listener, if it has one of that name.
    pub(crate) fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|it| it.listener == listener)
    }
}

impl Core {
    pub(crate) fn registration_record(&self) -> RegisterBroker {
        let options = &self.options;
        let endpoint = |it: &ClientListener| Endpoint {
            listener: it.name.clone(),
            host: it.host.clone(),
            port: it.port,
        };
        let for_clients = options.listeners.iter().map(endpoint);
        let named = |listener: &str, address: &Option<(String, u16)>| {
            let (host, port) = address.clone()?;
            Some(Endpoint { listener: listener.to_owned(), host, port })
        };
        let for_nodes = named(NODES, &options.node_address);
        let native = named(NATIVE, &options.native_address);
        RegisterBroker {
            broker_id: options.facts.broker_id,
            directory_id: self.own_directory(),
            incarnation: options.seed,
            endpoints: for_clients.chain(for_nodes).chain(native).collect(),
            rack: options.rack.clone(),
            kinds: options.kinds,
        }
    }

    /// Returns a node whose build does not know records of this kind, if there is one. It would stop at such a record.
    pub(crate) fn which_lacks(&self, kind: u32) -> Option<i32> {
        let mut staying = self.controller.image.staying();
        staying.find(|(_, broker)| broker.kinds < kind).map(|(id, _)| id)
    }

    /// Reports which directories are the cluster, so that others learn that they are not.
    pub(crate) fn tell_members(&mut self) {
        if !self.is_clustered() {
            return;
        }
        let image = &self.controller.image;
        let staying = image.staying().map(|(id, broker)| (id, broker.directory_id.0));
        let founders = self.peers.founders().iter();
        let founders = founders.map(|it| (it.broker_id, it.directory_id));
        // A founder may not have registered yet. A node's registration is newer than its founding.
        let founders = founders.filter(|(id, directory_id)| {
            let is_retired = image.retired.contains(&Uuid(*directory_id));
            !is_retired && !image.brokers.contains_key(id)
        });
        self.out.push(Action::Members(Membership {
            // A replica that began anew has an image of later entries than it has applied.
            index: self.controller.group.applied().max(image.as_of),
            directories: founders.chain(staying).collect(),
            retired: image.retired.iter().map(|it| it.0).collect(),
            is_registered: self.is_registered,
        }));
    }

    /// Returns the address of a node's native API, if it serves one.
    pub(crate) fn native_place(&self, broker_id: i32) -> Option<Place> {
        let broker = self.controller.image.brokers.get(&broker_id)?;
        broker.endpoint(NATIVE).map(|_| Place(broker_id))
    }

    /// Says where the other nodes are, as far as they have said so, and which directories they are.
    pub(crate) fn tell_nodes(&mut self) {
        self.tell_members();
        let address = |(&broker_id, broker): (&i32, &RegisterBroker)| {
            let endpoint = broker.endpoint(NODES)?;
            Some(NodeAddress { broker_id, host: endpoint.host.clone(), port: endpoint.port })
        };
        let brokers = self.controller.image.brokers.iter();
        let nodes: Vec<_> = brokers.filter_map(address).collect();
        if !nodes.is_empty() {
            self.out.push(Action::Nodes(nodes));
        }
    }
}
