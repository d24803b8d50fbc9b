//! `ListConfigResources`: the resources that have settings, by type.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::list_config_resources::ConfigResource;
use duramen_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};

use crate::access::{Operation, Resource};
use crate::configs::resource_kind::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::node::Node;
use crate::session::RequestContext;

/// Version 0 lists subscriptions to metrics of clients and nothing else.
const FIRST_VERSION_WITH_TYPES: i16 = 1;

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let refused = |code: ErrorCode| ListConfigResourcesResponse {
        error_code: code.code(),
        ..Default::default()
    };
    if !node.core.access.may(context, Operation::DescribeConfigs, Resource::Cluster) {
        return refused(ErrorCode::ClusterAuthorizationFailed);
    }
    let mut kinds = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP].to_vec();
    if request.resource_types.iter().any(|kind| !kinds.contains(kind)) {
        return refused(ErrorCode::UnsupportedVersion);
    }
    if context.version < FIRST_VERSION_WITH_TYPES {
        kinds = vec![CLIENT_METRICS];
    } else if !request.resource_types.is_empty() {
        kinds.retain(|kind| request.resource_types.contains(kind));
    }
    let image = &node.core.controller.image;
    let mut response = ListConfigResourcesResponse::default();
    for resource_type in kinds {
        let row = |resource_name| ConfigResource { resource_name, resource_type };
        let found = &mut response.config_resources;
        match resource_type {
            TOPIC => found.extend(image.topics_by_name().map(|topic| row(topic.name.clone()))),
            BROKER | BROKER_LOGGER => {
                found.extend(image.brokers.keys().map(|id| row(id.to_string())));
            }
            GROUP => found.extend(image.configured_groups().map(|it| row(it.to_owned()))),
            // Client metrics have no settings in this version.
            _ => {}
        }
    }
    response
}
