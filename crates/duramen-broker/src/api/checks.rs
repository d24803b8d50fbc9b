//! Checks that several APIs make of their requests.

use std::collections::BTreeSet;

use duramen_protocol::ErrorCode;

use crate::access::{Operation, Resource};
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
    if !node.core.access.may(context, operation, Resource::Group(group)) {
        return Err(ErrorCode::GroupAuthorizationFailed);
    }
    if group.is_empty() { Err(ErrorCode::InvalidGroupId) } else { Ok(()) }
}
