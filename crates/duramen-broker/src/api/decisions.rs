//! Answers to requests on which the controller decides.

use duramen_protocol::{ErrorCode, Response};

use crate::audit::Deeds;
use crate::core::{Parked, Signal};
use crate::event::RequestKey;
use crate::metadata_records::MetadataRecord;
use crate::node::Node;
use crate::session::RequestContext;

/// Returns the reason for which the request was not decided here, or not in time.
pub(super) fn why_undecided(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotController => "another node decides now, or cannot be reached; ask again",
        _ => {
            "nothing was heard of it in time: an earlier request about a topic of this one is not decided yet"
        }
    }
}

/// Answers once `records` are committed, and the partitions that they create have leaders. The log says then what the
/// client did.
pub(super) fn answer_after_commit(
    node: &mut Node,
    (key, context): (RequestKey, &RequestContext),
    records: &[MetadataRecord],
    response: Response,
    timeout_ms: i32,
) {
    if records.is_empty() {
        return node.reply(key, response);
    }
    let deeds = Deeds::of(context, records, &node.core.controller.image);
    match node.core.propose(records) {
        Ok(index) => {
            node.core.controller.wait(index, key);
            node.audit.note(key, deeds);
            let response = Box::new(response);
            let parked = Parked::Commit { response, outstanding: 1 };
            node.core.park(key, parked, node.core.now.deadline_us(timeout_ms));
        }
        Err(code) => {
            let response = Box::new(response);
            node.core.signals.push_back(Signal::NotProposed { key, response, code });
        }
    }
}
