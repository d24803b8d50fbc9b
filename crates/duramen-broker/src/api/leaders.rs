//! The leader of a partition, for a client that asked the wrong node. `current_leader` and `node_endpoints` of Produce
//! and Fetch (KIP-951) spare the client a Metadata request.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{
    FetchResponse, ProduceResponse, ShareAcknowledgeResponse, ShareFetchResponse, fetch, produce,
    share_acknowledge, share_fetch,
};
use duramen_protocol::wire::Uuid;

use crate::node::Node;
use crate::session::RequestContext;

const PRODUCE_FROM_VERSION: i16 = 10;
const FETCH_FROM_VERSION: i16 = 12;
const FETCH_ENDPOINTS_FROM_VERSION: i16 = 16;

/// Leaders of partitions, for one response.
struct Leaders<'a> {
    node: &'a Node,
    /// The client's listener.
    listener: &'a str,
    /// Nodes that the response names.
    named: BTreeSet<i32>,
}

impl<'a> Leaders<'a> {
    fn new(node: &'a Node, listener: &'a str) -> Self {
        Self { node, listener, named: BTreeSet::new() }
    }

    /// Returns the leader of a partition and its epoch, if the node knows one. The topic has a name or an id.
    fn of(&mut self, name: &str, id: Uuid, partition: i32) -> Option<(i32, i32)> {
        let image = &self.node.core.controller.image;
        let topic = if id.is_zero() { image.topic_named(name) } else { image.topic(id) };
        let leader = self.node.core.leader_of(topic?, partition)?;
        self.named.insert(leader.0);
        Some(leader)
    }

    /// Returns id, host, port and rack of each named node.
    fn endpoints(&self) -> impl Iterator<Item = (i32, String, i32, Option<String>)> {
        let brokers = &self.node.core.controller.image.brokers;
        self.named.iter().filter_map(|id| {
            let broker = brokers.get(id)?;
            let endpoint = broker.endpoint(self.listener)?;
            let port = i32::from(endpoint.port);
            Some((broker.broker_id, endpoint.host.clone(), port, broker.rack.clone()))
        })
    }
}

fn is_elsewhere(code: i16) -> bool {
    code == ErrorCode::NotLeaderOrFollower.code()
}

/// Adds to a Produce response the leaders of the partitions that this node does not lead.
pub(super) fn tell_producer(
    node: &Node,
    listener: &str,
    response: &mut ProduceResponse,
    version: i16,
) {
    use produce::{LeaderIdAndEpoch, NodeEndpoint};
    if version < PRODUCE_FROM_VERSION {
        return;
    }
    let mut leaders = Leaders::new(node, listener);
    for topic in &mut response.responses {
        let parts = topic.partition_responses.iter_mut();
        for part in parts.filter(|part| is_elsewhere(part.error_code)) {
            let leader = leaders.of(&topic.name, topic.topic_id, part.index);
            let Some((leader_id, leader_epoch)) = leader else { continue };
            part.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
        }
    }
    let endpoint = |(node_id, host, port, rack)| NodeEndpoint { node_id, host, port, rack };
    response.node_endpoints = leaders.endpoints().map(endpoint).collect();
}

/// Adds to a Fetch response the leaders of the partitions that this node does not lead, or not in the client's leader
/// epoch.
pub(super) fn tell_consumer(node: &Node, context: &RequestContext, response: &mut FetchResponse) {
    use fetch::{LeaderIdAndEpoch, NodeEndpoint};
    let version = context.version;
    if version < FETCH_FROM_VERSION {
        return;
    }
    let fenced = ErrorCode::FencedLeaderEpoch.code();
    let mut leaders = Leaders::new(node, &context.listener);
    for topic in &mut response.responses {
        let parts = topic.partitions.iter_mut();
        for part in parts.filter(|it| is_elsewhere(it.error_code) || it.error_code == fenced) {
            let leader = leaders.of(&topic.topic, topic.topic_id, part.partition_index);
            let Some((leader_id, leader_epoch)) = leader else { continue };
            part.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
        }
    }
    if version < FETCH_ENDPOINTS_FROM_VERSION {
        return;
    }
    let endpoint = |(node_id, host, port, rack)| NodeEndpoint { node_id, host, port, rack };
    response.node_endpoints = leaders.endpoints().map(endpoint).collect();
}

/// Adds to a `ShareFetch` response the leaders of the partitions that this node does not lead.
pub(super) fn tell_share_consumer(node: &Node, listener: &str, response: &mut ShareFetchResponse) {
    use share_fetch::{LeaderIdAndEpoch, NodeEndpoint};
    let mut leaders = Leaders::new(node, listener);
    for topic in &mut response.responses {
        for part in &mut topic.partitions {
            if is_elsewhere(part.error_code) || is_elsewhere(part.acknowledge_error_code) {
                let leader = leaders.of("", topic.topic_id, part.partition_index);
                let Some((leader_id, leader_epoch)) = leader else { continue };
                part.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
            }
        }
    }
    let endpoint = |(node_id, host, port, rack)| NodeEndpoint { node_id, host, port, rack };
    response.node_endpoints = leaders.endpoints().map(endpoint).collect();
}

/// Adds the leaders to a `ShareAcknowledge` response in the same way.
pub(super) fn tell_share_decider(
    node: &Node,
    listener: &str,
    response: &mut ShareAcknowledgeResponse,
) {
    use share_acknowledge::{LeaderIdAndEpoch, NodeEndpoint};
    let mut leaders = Leaders::new(node, listener);
    for topic in &mut response.responses {
        for part in topic.partitions.iter_mut().filter(|part| is_elsewhere(part.error_code)) {
            let leader = leaders.of("", topic.topic_id, part.partition_index);
            let Some((leader_id, leader_epoch)) = leader else { continue };
            part.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
        }
    }
    let endpoint = |(node_id, host, port, rack)| NodeEndpoint { node_id, host, port, rack };
    response.node_endpoints = leaders.endpoints().map(endpoint).collect();
}
