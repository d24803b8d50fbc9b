//! Results that requests wait for: each is counted, and the answer leaves after the last one.

use super::leaders;
use crate::core::Parked;
use crate::event::RequestKey;
use crate::node::Node;

/// Counts one of the results that a request waits for, and sends the answer after the last one.
pub(super) fn count_result(node: &mut Node, key: RequestKey) {
    let outstanding = match node.core.parked_mut(key) {
        Some(
            Parked::Produce { outstanding, .. }
            | Parked::Trims { outstanding, .. }
            | Parked::Addition { outstanding, .. }
            | Parked::ShareStates { outstanding, .. }
            | Parked::Markers { outstanding, .. }
            | Parked::DeleteGroups { outstanding, .. },
        ) => outstanding,
        Some(Parked::ShareOffsets(it)) => {
            assert!(
                it.outstanding <= it.places.len(),
                "each partition of a request is asked for once"
            );
            &mut it.outstanding
        }
        _ => return,
    };
    *outstanding -= 1;
    if *outstanding == 0 {
        answer_now(node, key);
    }
}

/// Sends the answer of a waiting request as it is by now.
pub(super) fn answer_now(node: &mut Node, key: RequestKey) {
    match node.unpark(key) {
        Some(Parked::Produce { mut response, version, listener, .. }) => {
            leaders::tell_producer(node, &listener, &mut response, version);
            node.reply(key, response);
        }
        Some(Parked::Trims { response, .. }) => node.reply(key, response),
        Some(Parked::Markers { response, .. }) => node.reply(key, response),
        Some(Parked::DeleteGroups { response, .. }) => node.reply(key, response),
        Some(Parked::ShareOffsets(it)) => node.reply(key, it.response),
        Some(Parked::Addition { response, .. } | Parked::ShareStates { response, .. }) => {
            node.reply_boxed(key, response);
        }
        Some(other) => unreachable!("{other:?} counts no results"),
        None => {}
    }
}
