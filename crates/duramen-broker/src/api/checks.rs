//! Checks that several APIs make of their requests.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;

use crate::access::{Access, Operation, Resource};
use crate::controller::Error;
use crate::controller::image::Image;
use crate::event::RequestKey;
use crate::groups::Caller;
use crate::node::Node;
use crate::session::RequestContext;

/// Returns the names that occur more than once.
pub(super) fn repeated<T: Ord>(names: impl Iterator<Item = T>) -> BTreeSet<T> {
    let (mut once, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in names {
        twice.extend(once.replace(name));
    }
    twice
}

/// Tells whether a request about one group may go to its coordinator.
pub(super) fn admit_to_group(
    node: &Node,
    context: &RequestContext,
    operation: Operation,
    group: &str,
) -> Result<(), ErrorCode> {
    node.core.access.admit(context, operation, Resource::Group(group))?;
    if group.is_empty() { Err(ErrorCode::InvalidGroupId) } else { Ok(()) }
}

/// Returns the topic's id, or the error that forbids to change a group's offset of this partition.
pub(super) fn admit_to_offset(
    access: &Access,
    image: &Image,
    context: &RequestContext,
    topic: &str,
    partition: i32,
) -> Result<Uuid, ErrorCode> {
    access.admit(context, Operation::Read, Resource::Topic(topic))?;
    let known = image.topic_named(topic).filter(|it| it.replicas(partition).is_some());
    known.map(|it| it.id).ok_or(ErrorCode::UnknownTopicOrPartition)
}

/// Tells whether the client may alter the cluster.
pub(super) fn admit_operator(node: &Node, context: &RequestContext) -> Result<(), Error> {
    let admitted = node.core.access.admit(context, Operation::Alter, Resource::Cluster);
    admitted.map_err(|code| Error::new(code, "not allowed to alter the cluster"))
}

/// Makes the caller of a group's coordinator.
pub(super) fn caller(node: &mut Node, key: RequestKey, context: &RequestContext) -> Caller {
    Caller {
        key,
        context: context.clone(),
        client_id: context.client_id.as_deref().unwrap_or_default().to_owned(),
        client_host: context.client_host.to_string(),
        fresh: node.core.fresh_id(),
    }
}

/// Returns the error code that a client of this version understands. From the version `first` on the client learns by
/// its own code that another producer has replaced it.
pub(super) fn told(code: i16, version: i16, first: i16) -> i16 {
    let is_new = version < first && code == ErrorCode::ProducerFenced.code();
    if is_new { ErrorCode::InvalidProducerEpoch.code() } else { code }
}

/// Tells whether a member may ask about its group, and may see the topics that it names.
pub(super) fn admit_member(
    node: &Node,
    context: &RequestContext,
    group: &str,
    topics: Option<&[String]>,
) -> Result<(), ErrorCode> {
    let access = &node.core.access;
    access.admit(context, Operation::Read, Resource::Group(group))?;
    let mut topics = topics.into_iter().flatten();
    topics.try_for_each(|it| access.admit(context, Operation::Describe, Resource::Topic(it)))
}
