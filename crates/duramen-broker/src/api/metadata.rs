//! `Metadata`: returns brokers, topics and leaders. Creates missing topics if the client and the node allow it.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::metadata::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use duramen_protocol::messages::{MetadataRequest, MetadataResponse};
use duramen_protocol::wire::Uuid;

use super::create_topics::may_create;
use crate::access::{Operation, Resource};
use crate::audit::Deeds;
use crate::controller::image::Topic;
use crate::controller::name_problem;
use crate::core::Parked;
use crate::event::RequestKey;
use crate::internal_topics::is_internal;
use crate::limits::CREATE_PARTITIONS_MAX;
use crate::metadata_records::PlacedReplica;
use crate::node::Node;
use crate::partition::Partition;
use crate::raft::GroupId;
use crate::session::RequestContext;

/// The first version that may ask by id; before, the field is there and of no use, as in Kafka.
const FIRST_BY_ID: i16 = 12;
/// First version whose clients know of listeners that a node lacks.
const FIRST_WITH_LISTENERS: i16 = 6;
/// Longest time that a client waits while its topic is created, in milliseconds. The client then asks again.
const CREATION_MS_MAX: i32 = 5_000;
/// Highest count of missing topics of one request that the node asks the controller to create.
const WANTED_MAX: usize = 100;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: MetadataRequest,
) {
    if let Some(index) = create_missing(node, key, &context, &request) {
        node.core.controller.wait(index, key);
        let parked = Parked::Metadata { request, context, outstanding: 1 };
        node.core.park(key, parked, node.core.now.deadline_us(CREATION_MS_MAX));
    } else {
        let response = answer(node, &context, &request);
        node.reply(key, response);
    }
}

/// Proposes the topics that are asked for and missing. Returns the index to wait for.
fn create_missing(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &MetadataRequest,
) -> Option<u64> {
    if !request.allow_auto_topic_creation || !node.core.options.settings.auto_create_topics_enable {
        return None;
    }
    if node.core.metadata_leader() != Some(node.core.options.facts.broker_id) {
        want_missing(node, context, request);
        return None;
    }
    let mut wait = None;
    let mut records = Vec::new();
    let mut partitions = 0;
    let names = request.topics.iter().flatten().filter_map(|topic| topic.name.as_deref());
    for name in names.filter(|name| !name.is_empty()) {
        if node.core.controller.image.topic_named(name).is_some()
            || !may_see_made(node, context, name)
        {
            continue;
        }
        if let Some(index) = node.core.controller.creating(name) {
            wait = wait.max(Some(index));
            continue;
        }
        let topic = node.core.topic_to_make(name);
        let creation =
            topic.map(|it| node.core.controller.create_topic(&it, &node.core.options.settings));
        if let Some(Ok(creation)) = creation {
            // One request makes no more on the way than it could by asking for it.
            partitions += i64::from(creation.partitions);
            if partitions > CREATE_PARTITIONS_MAX {
                break;
            }
            records.extend(creation.records);
        }
    }
    if records.is_empty() {
        return wait;
    }
    let deeds = Deeds::of(context, &records, &node.core.controller.image);
    if let Ok(index) = node.core.propose(&records) {
        wait = wait.max(Some(index));
        node.audit.note(key, deeds);
    }
    wait
}

/// Asks for missing topics where they can be made. The client asks again by itself.
fn want_missing(node: &mut Node, context: &RequestContext, request: &MetadataRequest) {
    let names = request.topics.iter().flatten().filter_map(|topic| topic.name.as_deref());
    for name in names.filter(|name| name_problem(name).is_none()).take(WANTED_MAX) {
        let is_missing = node.core.controller.image.topic_named(name).is_none();
        if is_missing && may_see_made(node, context, name) {
            node.core.want_topic(name);
        }
    }
}

/// Tells whether a client may see a topic and create it.
fn may_see_made(node: &Node, context: &RequestContext, name: &str) -> bool {
    may_see(node, context, name) && may_create(node, context, name)
}

fn may_see(node: &Node, context: &RequestContext, name: &str) -> bool {
    node.core.access.may(context, Operation::Describe, Resource::Topic(name))
}

/// Builds the answer from the present state.
pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &MetadataRequest,
) -> MetadataResponse {
    let image = &node.core.controller.image;
    let broker = |(node_id, broker): (i32, &crate::metadata_records::RegisterBroker)| {
        let endpoint = broker.endpoint(&context.listener)?;
        Some(MetadataResponseBroker {
            node_id,
            host: endpoint.host.clone(),
            port: i32::from(endpoint.port),
            rack: broker.rack.clone(),
        })
    };
    let include = request.include_topic_authorized_operations;
    // In version 0 an empty list means all topics; later, null does and an empty one is none.
    let asked = request.topics.as_ref().filter(|it| context.version > 0 || !it.is_empty());
    let topics = match asked {
        None => {
            let shown = image.topics_by_name().filter(|it| {
                let topic = Resource::Topic(&it.name);
                node.core.access.is_shown(context, Operation::Describe, topic)
            });
            shown.map(|topic| describe(node, context, topic, include)).collect()
        }
        Some(asked) => {
            let mut topics = Vec::with_capacity(asked.len());
            let mut told = BTreeSet::new();
            // The answer describes a topic once, however often the request names it.
            for topic in asked.iter().filter(|it| told.insert((it.topic_id, &it.name))) {
                let by_id_only = topic.name.is_none() || !topic.topic_id.is_zero();
                if by_id_only && context.version < FIRST_BY_ID {
                    topics.push(MetadataResponseTopic {
                        error_code: ErrorCode::InvalidRequest.code(),
                        topic_id: topic.topic_id,
                        ..Default::default()
                    });
                    continue;
                }
                let found = match &topic.name {
                    Some(name) if topic.topic_id.is_zero() => {
                        by_name(node, context, name, request, include)
                    }
                    _ => by_id(node, context, topic.topic_id, include),
                };
                topics.push(found);
            }
            topics
        }
    };
    let is_asked = request.include_cluster_authorized_operations;
    MetadataResponse {
        brokers: node.core.live_brokers().filter_map(broker).collect(),
        cluster_id: Some(Uuid(node.core.options.facts.cluster_id).to_string()),
        controller_id: node.core.metadata_leader().unwrap_or(-1),
        topics,
        cluster_authorized_operations: if is_asked {
            node.core.access.cluster_operations(context)
        } else {
            i32::MIN
        },
        ..Default::default()
    }
}

fn by_name(
    node: &Node,
    context: &RequestContext,
    name: &str,
    request: &MetadataRequest,
    include: bool,
) -> MetadataResponseTopic {
    let refuse = |code: ErrorCode| MetadataResponseTopic {
        error_code: code.code(),
        name: Some(name.to_owned()),
        ..Default::default()
    };
    if !may_see(node, context, name) {
        return refuse(ErrorCode::TopicAuthorizationFailed);
    }
    if let Some(topic) = node.core.controller.image.topic_named(name) {
        return describe(node, context, topic, include);
    }
    let is_wanted =
        request.allow_auto_topic_creation && node.core.options.settings.auto_create_topics_enable;
    if is_wanted && !may_create(node, context, name) {
        let refused = refuse(ErrorCode::TopicAuthorizationFailed);
        MetadataResponseTopic { is_internal: is_internal(name), ..refused }
    } else if name_problem(name).is_some() {
        refuse(ErrorCode::InvalidTopicException)
    } else if is_wanted && node.core.controller.creating(name).is_some() {
        refuse(ErrorCode::LeaderNotAvailable)
    } else if is_wanted && node.core.controller.image.confusable(name).is_some() {
        refuse(ErrorCode::InvalidTopicException)
    } else if is_wanted && !can_replicate(node) {
        refuse(ErrorCode::InvalidReplicationFactor)
    } else {
        refuse(ErrorCode::UnknownTopicOrPartition)
    }
}

fn can_replicate(node: &Node) -> bool {
    let wanted = usize::try_from(node.core.options.settings.default_replication_factor);
    wanted.is_ok_and(|wanted| wanted <= node.core.controller.image.brokers.len())
}

/// Describes a topic by its id. Ids are no secrets, as in Kafka: a client that may not see the topic learns that the id
/// exists, and not the name.
fn by_id(node: &Node, context: &RequestContext, id: Uuid, include: bool) -> MetadataResponseTopic {
    let code = match node.core.controller.image.topic(id) {
        Some(topic) if may_see(node, context, &topic.name) => {
            return describe(node, context, topic, include);
        }
        Some(_) => ErrorCode::TopicAuthorizationFailed,
        None => ErrorCode::UnknownTopicId,
    };
    MetadataResponseTopic {
        error_code: code.code(),
        name: None,
        topic_id: id,
        ..Default::default()
    }
}

fn describe(
    node: &Node,
    context: &RequestContext,
    topic: &Topic,
    include: bool,
) -> MetadataResponseTopic {
    let partitions = (0..).zip(&topic.partitions);
    let partitions = partitions.map(|(index, replicas)| {
        let mut it = partition_of(node, context, topic, index, replicas);
        if context.version < FIRST_WITH_LISTENERS
            && it.error_code == ErrorCode::ListenerNotFound.code()
        {
            it.error_code = ErrorCode::LeaderNotAvailable.code();
        }
        it
    });
    MetadataResponseTopic {
        error_code: 0,
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: is_internal(&topic.name),
        partitions: partitions.collect(),
        topic_authorized_operations: if include {
            node.core.access.operations(context, Resource::Topic(&topic.name))
        } else {
            i32::MIN
        },
    }
}

/// Returns the candidate of the first election of a partition, while this node has heard of no leader. Apache Kafka's
/// placements name a leader, and clients count on it: rskafka never asks again after one answer without a leader. A
/// client that comes there too early gets an error, as after any election, and tries again.
fn first_leader(
    node: &Node,
    own: Option<&Partition>,
    replicas: &[PlacedReplica],
) -> Option<(i32, i32)> {
    let first = replicas.first()?.broker_id;
    let may_be_first = own.is_none_or(|partition| partition.group.is_before_first_leader());
    (may_be_first && node.core.live_brokers().any(|(id, _)| id == first)).then_some((first, -1))
}

/// Describes a partition's replicas and its leader. A leader without the client's listener is out of its reach.
pub(super) fn partition_of(
    node: &Node,
    context: &RequestContext,
    topic: &Topic,
    partition_index: i32,
    replicas: &[PlacedReplica],
) -> MetadataResponsePartition {
    // While a node's new directory takes the place of another, replicas are in both.
    let mut nodes: Vec<i32> = Vec::with_capacity(replicas.len());
    for replica in replicas {
        if !nodes.contains(&replica.broker_id) {
            nodes.push(replica.broker_id);
        }
    }
    let partition = node
        .core
        .local_replica(topic, partition_index)
        .and_then(|replica| node.core.partitions.get(&replica));
    let led = match node.core.leader_of(topic, partition_index) {
        Some(led) => Some(led).filter(|(id, _)| node.core.may_lead(*id)),
        None => first_leader(node, partition.map(AsRef::as_ref), replicas),
    };
    let own_epoch = partition.map_or(-1, |partition| partition.group.epoch());
    let (leader_id, leader_epoch) = led.unwrap_or((-1, own_epoch));
    let group = GroupId { topic_id: topic.id.0, partition: partition_index };
    let (isr_nodes, offline_replicas) = match led {
        Some((leader, _)) => {
            let unheard = node.core.unheard().filter(|id| nodes.contains(id)).collect();
            (node.core.in_sync(group, leader, replicas), unheard)
        }
        None => (Vec::new(), nodes.clone()),
    };
    let brokers = &node.core.controller.image.brokers;
    let is_reachable = |(id, _): &(i32, i32)| {
        brokers.get(id).is_some_and(|it| it.endpoint(&context.listener).is_some())
    };
    let error = match led {
        Some(led) if is_reachable(&led) => None,
        Some(_) => Some(ErrorCode::ListenerNotFound),
        None => Some(ErrorCode::LeaderNotAvailable),
    };
    MetadataResponsePartition {
        error_code: error.map_or(0, ErrorCode::code),
        partition_index,
        leader_id: if error.is_some() { -1 } else { leader_id },
        leader_epoch,
        isr_nodes,
        offline_replicas,
        replica_nodes: nodes,
    }
}
