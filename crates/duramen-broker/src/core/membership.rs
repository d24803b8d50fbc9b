//! This node's registration, and its reports of the cluster's directories and addresses.

use super::Core;
use crate::event::{Action, Membership, NodeAddress};
use crate::metadata_records::{Endpoint, RegisterBroker};
use duramen_protocol::wire::Uuid;

/// The name of the listener for other nodes, among a node's endpoints.
const NODES: &str = "NODES";

impl Core {
    pub(crate) fn registration_record(&self) -> RegisterBroker {
        let options = &self.options;
        let endpoint = Endpoint {
            listener: options.listener.clone(),
            host: options.host.clone(),
            port: options.port,
        };
        let for_nodes = options.node_address.clone().map(|(host, port)| Endpoint {
            listener: NODES.to_owned(),
            host,
            port,
        });
        RegisterBroker {
            broker_id: options.facts.broker_id,
            directory_id: self.own_directory(),
            incarnation: options.seed,
            endpoints: std::iter::once(endpoint).chain(for_nodes).collect(),
            rack: options.rack.clone(),
        }
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

    /// Says where the other nodes are, as far as they have said so, and which directories they are.
    pub(crate) fn tell_nodes(&mut self) {
        self.tell_members();
        let address = |(&broker_id, broker): (&i32, &RegisterBroker)| {
            let endpoint = broker.endpoints.iter().find(|it| it.listener == NODES)?;
            Some(NodeAddress { broker_id, host: endpoint.host.clone(), port: endpoint.port })
        };
        let brokers = self.controller.image.brokers.iter();
        let nodes: Vec<_> = brokers.filter_map(address).collect();
        if !nodes.is_empty() {
            self.out.push(Action::Nodes(nodes));
        }
    }
}
