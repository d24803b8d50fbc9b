//! First message of a node on a connection to another node, and again after each change. The node tells its identity,
//! its promise or its cluster, and the addresses of nodes that it knows.

use bytes::Bytes;
use duramen_broker::event::NodeAddress;
use duramen_protocol::wire::{Decoder, Encoder, Message, Uuid};
use duramen_storage::storage::Voter;

/// Tells a node of ours from anything else that may connect.
const MAGIC: [u8; 8] = *b"DURANODE";
/// Version of the body; a later build puts new fields in tagged fields, as in frames.
const VERSION: i16 = 0;
/// Elements of both lists of one greeting.
const ELEMENTS_MAX: usize = 2000;

duramen_protocol::message! {
    /// As bytes.
    struct Body: versions 0..=0, flexible 0.. {
        to: i32 [0..],
        broker_id: i32 [0..],
        directory_id: Uuid [0..],
        cluster_id: Uuid [0..],
        voters: Vec<BodyVoter> [0..],
        nodes: Vec<BodyNode> [0..],
    }
    struct BodyNode {
        broker_id: i32 [0..],
        host: String [0..],
        port: u16 [0..],
    }
    #[expect(clippy::struct_field_names, reason = "they are three different ids")]
    struct BodyVoter {
        peer_id: u64 [0..],
        broker_id: i32 [0..],
        directory_id: Uuid [0..],
    }
}

/// Identity of a node, and the durable state of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) broker_id: i32,
    pub(crate) directory_id: [u8; 16],
    /// None before it is a member.
    pub(crate) cluster_id: Option<[u8; 16]>,
    /// Voters with whom the node has promised to form a cluster, or has formed one.
    pub(crate) voters: Vec<Voter>,
}

/// An [`Identity`], told to somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The node that its sender believes to speak to.
    pub(crate) to: i32,
    pub(crate) from: Identity,
    /// Addresses of the nodes that the sender knows, itself among them.
    pub(crate) nodes: Vec<NodeAddress>,
}

impl Greeting {
    pub(crate) fn encode(&self) -> Bytes {
        let voter = |it: &Voter| BodyVoter {
            peer_id: it.peer_id,
            broker_id: it.broker_id,
            directory_id: Uuid(it.directory_id),
        };
        let node = |it: &NodeAddress| BodyNode {
            broker_id: it.broker_id,
            host: it.host.clone(),
            port: it.port,
        };
        let body = Body {
            to: self.to,
            broker_id: self.from.broker_id,
            directory_id: Uuid(self.from.directory_id),
            cluster_id: Uuid(self.from.cluster_id.unwrap_or_default()),
            voters: self.from.voters.iter().map(voter).collect(),
            nodes: self.nodes.iter().map(node).collect(),
        };
        let mut e = Encoder::new();
        e.put(&MAGIC);
        e.i16(VERSION);
        body.encode(&mut e, VERSION).expect("version 0 carries every field");
        e.into_bytes().freeze()
    }

    /// Reads [`Greeting::encode`], or says why not.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self, &'static str> {
        let malformed = "the greeting is malformed";
        let mut d = Decoder::new(bytes).with_elements_max(ELEMENTS_MAX);
        if d.take(MAGIC.len()).ok() != Some(&MAGIC) {
            return Err("whoever connected is no node of Duramen");
        }
        if d.i16().ok() != Some(VERSION) {
            return Err("the greeting has a version that this build does not know");
        }
        let body = Body::decode(&mut d, VERSION).map_err(|_| malformed)?;
        d.finish().map_err(|_| malformed)?;
        let voter = |it: &BodyVoter| Voter {
            peer_id: it.peer_id,
            broker_id: it.broker_id,
            directory_id: it.directory_id.0,
        };
        let from = Identity {
            broker_id: body.broker_id,
            directory_id: body.directory_id.0,
            cluster_id: Some(body.cluster_id.0).filter(|id| *id != [0; 16]),
            voters: body.voters.iter().map(voter).collect(),
        };
        let node =
            |it: BodyNode| NodeAddress { broker_id: it.broker_id, host: it.host, port: it.port };
        Ok(Self { to: body.to, from, nodes: body.nodes.into_iter().map(node).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_read_back_and_nothing_else_does() {
        let voter = Voter { peer_id: 1, broker_id: 7, directory_id: [3; 16] };
        for cluster_id in [None, Some([9; 16])] {
            let from =
                Identity { broker_id: 7, directory_id: [3; 16], cluster_id, voters: vec![voter] };
            let nodes = vec![NodeAddress { broker_id: 7, host: "node-7".to_owned(), port: 19092 }];
            let greeting = Greeting { to: 2, from, nodes };
            let bytes = greeting.encode();
            assert_eq!(Greeting::decode(bytes.clone()), Ok(greeting));
            for len in 0..bytes.len() {
                assert!(Greeting::decode(bytes.slice(..len)).is_err());
            }
            // A tagged field of a later build is passed over.
            let later = [&bytes[..bytes.len() - 1], &[1, 9, 2, 1, 2]].concat();
            assert_eq!(Greeting::decode(later.into()), Greeting::decode(bytes.clone()));
            for at in 0..10 {
                let mut bad = bytes.to_vec();
                bad[at] ^= 1;
                assert!(Greeting::decode(bad.into()).is_err());
            }
        }
    }
}
