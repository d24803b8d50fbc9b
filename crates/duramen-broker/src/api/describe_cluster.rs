//! `DescribeCluster`: the brokers, without topics. Brokers that this node has not heard lately are fenced, in Kafka's
//! word. Tools send this request, so a node without a majority says so, too. Clients learn the brokers from `Metadata`,
//! which then names all.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_cluster::DescribeClusterBroker;
use duramen_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};
use duramen_protocol::wire::Uuid;

use crate::node::Node;
use crate::session::RequestContext;

const BROKERS: i8 = 1;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let cluster_id = Uuid(node.core.options.facts.cluster_id).to_string();
    if request.endpoint_type != BROKERS {
        let (code, text) = match request.endpoint_type {
            2 => (ErrorCode::MismatchedEndpointType, "this is the endpoint of a broker"),
            _ => (ErrorCode::UnsupportedEndpointType, "there is no such type of endpoint"),
        };
        return DescribeClusterResponse {
            error_code: code.code(),
            error_message: Some(text.to_owned()),
            ..Default::default()
        };
    }
    let unheard: BTreeSet<i32> = node.core.unheard().collect();
    let brokers = node.core.controller.image.brokers.iter().filter_map(|(&broker_id, broker)| {
        let endpoint = broker.endpoint(&context.listener)?;
        let is_fenced = unheard.contains(&broker_id);
        if is_fenced && !request.include_fenced_brokers {
            return None;
        }
        Some(DescribeClusterBroker {
            broker_id,
            host: endpoint.host.clone(),
            port: i32::from(endpoint.port),
            rack: broker.rack.clone(),
            is_fenced,
        })
    });
    let is_asked = request.include_cluster_authorized_operations;
    DescribeClusterResponse {
        cluster_id,
        controller_id: node.core.metadata_leader().unwrap_or(-1),
        brokers: brokers.collect(),
        cluster_authorized_operations: if is_asked {
            node.core.access.cluster_operations(context)
        } else {
            i32::MIN
        },
        ..Default::default()
    }
}
