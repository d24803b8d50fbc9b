//! The leader of a partition, for a client that asked the wrong node. `current_leader` and `node_endpoints` of Produce
//! and Fetch (KIP-951) spare the client a Metadata request.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{
    FetchResponse, ProduceResponse, ShareAcknowledgeResponse, ShareFetchResponse, fetch, produce,
    share_acknowledge, share_fetch,
};
use duramen_protocol::wire::Uuid;

use crate::controller::image::Topic;
use crate::metadata_records::RegisterBroker;
use crate::node::Node;

const PRODUCE_FROM_VERSION: i16 = 10;
const FETCH_FROM_VERSION: i16 = 12;
const FETCH_ENDPOINTS_FROM_VERSION: i16 = 16;

fn topic_of<'a>(node: &'a Node, name: &str, id: Uuid) -> Option<&'a Topic> {
    let image = &node.core.controller.image;
    if id.is_zero() { image.topic_named(name) } else { image.topic(id) }
}

fn brokers<'a>(
    node: &'a Node,
    ids: &'a BTreeSet<i32>,
) -> impl Iterator<Item = (&'a RegisterBroker, &'a str, u16)> {
    let brokers = ids.iter().filter_map(|id| node.core.controller.image.brokers.get(id));
    brokers.filter_map(|broker| {
        let endpoint = broker.endpoints.first()?;
        Some((broker, endpoint.host.as_str(), endpoint.port))
    })
}

/// Adds to a Produce response the leaders of the partitions that this node does not lead.
pub(super) fn tell_producer(node: &Node, response: &mut ProduceResponse, version: i16) {
    if version < PRODUCE_FROM_VERSION {
        return;
    }
    let mut named = BTreeSet::new();
    for topic in &mut response.responses {
        let code = ErrorCode::NotLeaderOrFollower.code();
        for part in topic.partition_responses.iter_mut().filter(|part| part.error_code == code) {
            let found = topic_of(node, &topic.name, topic.topic_id);
            let leader = found.and_then(|topic| node.core.leader_of(topic, part.index));
            let Some((leader_id, leader_epoch)) = leader else { continue };
            part.current_leader = produce::LeaderIdAndEpoch { leader_id, leader_epoch };
            named.insert(leader_id);
        }
    }
    let endpoint = |(broker, host, port): (&RegisterBroker, &str, u16)| produce::NodeEndpoint {
        node_id: broker.broker_id,
        host: host.to_owned(),
        port: i32::from(port),
        rack: broker.rack.clone(),
    };
    response.node_endpoints = brokers(node, &named).map(endpoint).collect();
}

/// Adds to a Fetch response the leaders of the partitions that this node does not lead, or not in the client's leader
/// epoch.
pub(super) fn tell_consumer(node: &Node, response: &mut FetchResponse, version: i16) {
    if version < FETCH_FROM_VERSION {
        return;
    }
    let mut named = BTreeSet::new();
    for topic in &mut response.responses {
        for part in &mut topic.partitions {
            let code = ErrorCode::from_code(part.error_code);
            let is_elsewhere =
                matches!(code, Some(ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch));
            if !is_elsewhere {
                continue;
            }
            let found = topic_of(node, &topic.topic, topic.topic_id);
            let leader = found.and_then(|topic| node.core.leader_of(topic, part.partition_index));
            let Some((leader_id, leader_epoch)) = leader else { continue };
            part.current_leader = fetch::LeaderIdAndEpoch { leader_id, leader_epoch };
            named.insert(leader_id);
        }
    }
    if version < FETCH_ENDPOINTS_FROM_VERSION {
        return;
    }
    let endpoint = |(broker, host, port): (&RegisterBroker, &str, u16)| fetch::NodeEndpoint {
        node_id: broker.broker_id,
        host: host.to_owned(),
        port: i32::from(port),
        rack: broker.rack.clone(),
    };
    response.node_endpoints = brokers(node, &named).map(endpoint).collect();
}

/// Returns the leader of a partition by its topic's id, if the node knows one, and adds it to the named nodes.
fn named(
    node: &Node,
    topic_id: Uuid,
    partition: i32,
    code: i16,
    named: &mut BTreeSet<i32>,
) -> Option<(i32, i32)> {
    if code != ErrorCode::NotLeaderOrFollower.code() {
        return None;
    }
    let topic = node.core.controller.image.topic(topic_id)?;
    let leader = node.core.leader_of(topic, partition)?;
    named.insert(leader.0);
    Some(leader)
}

/// Adds to a `ShareFetch` response the leaders of the partitions that this node does not lead.
pub(super) fn tell_share_consumer(node: &Node, response: &mut ShareFetchResponse) {
    let mut ids = BTreeSet::new();
    for topic in &mut response.responses {
        for part in &mut topic.partitions {
            let index = part.partition_index;
            let codes = [part.error_code, part.acknowledge_error_code];
            for code in codes {
                let leader = named(node, topic.topic_id, index, code, &mut ids);
                let Some((leader_id, leader_epoch)) = leader else { continue };
                part.current_leader = share_fetch::LeaderIdAndEpoch { leader_id, leader_epoch };
            }
        }
    }
    let endpoint = |(broker, host, port): (&RegisterBroker, &str, u16)| share_fetch::NodeEndpoint {
        node_id: broker.broker_id,
        host: host.to_owned(),
        port: i32::from(port),
        rack: broker.rack.clone(),
    };
    response.node_endpoints = brokers(node, &ids).map(endpoint).collect();
}

/// Adds the leaders to a `ShareAcknowledge` response in the same way.
pub(super) fn tell_share_decider(node: &Node, response: &mut ShareAcknowledgeResponse) {
    let mut ids = BTreeSet::new();
    for topic in &mut response.responses {
        for part in &mut topic.partitions {
            let (index, code) = (part.partition_index, part.error_code);
            let leader = named(node, topic.topic_id, index, code, &mut ids);
            let Some((leader_id, leader_epoch)) = leader else { continue };
            part.current_leader = share_acknowledge::LeaderIdAndEpoch { leader_id, leader_epoch };
        }
    }
    let endpoint =
        |(broker, host, port): (&RegisterBroker, &str, u16)| share_acknowledge::NodeEndpoint {
            node_id: broker.broker_id,
            host: host.to_owned(),
            port: i32::from(port),
            rack: broker.rack.clone(),
        };
    response.node_endpoints = brokers(node, &ids).map(endpoint).collect();
}
