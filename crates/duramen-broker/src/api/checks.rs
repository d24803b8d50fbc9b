//! Checks that several APIs make of their requests.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;

use crate::access::{Operation, Resource};
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

/// Makes the caller of a group's coordinator.
pub(super) fn caller(node: &mut Node, key: RequestKey, context: &RequestContext) -> Caller {
    Caller {
        key,
        context: context.clone(),
        client_id: context.client_id.clone().unwrap_or_default(),
        client_host: context.client_host.to_string(),
        fresh: node.core.fresh_id(),
    }
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
