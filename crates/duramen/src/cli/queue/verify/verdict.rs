//! Outcome of the check of a partition's queues.

use std::collections::BTreeMap;

use duramen_client::NodeId;
use serde::Serialize;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Ok,
    Faulty,
    NotChecked,
}

/// Outcome of a partition.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    pub(super) partition: i32,
    pub(super) state: State,
    /// First of the offsets that were checked.
    pub(super) start: i64,
    /// One past the last of the offsets that were checked.
    pub(super) end: i64,
    /// Elements that readers are shown.
    pub(super) elements: i64,
    /// Queues with records, deleted or not.
    pub(super) queues: i64,
    /// Bytes of the log that were read, of one replica.
    pub(super) bytes: i64,
    /// Nodes whose replicas were checked.
    pub(super) nodes: Vec<NodeId>,
    /// Nodes that were left out, with the reason.
    pub(super) left_out: BTreeMap<NodeId, String>,
    pub(super) findings: Vec<Finding>,
}

/// Fault of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) node: NodeId,
    pub(super) queue: Option<String>,
    pub(super) position: Option<String>,
    pub(super) what: String,
}

impl Verdict {
    pub(super) fn words(&self) -> String {
        let state = match self.state {
            State::Ok => "ok",
            State::Faulty => "faulty",
            State::NotChecked if self.nodes.is_empty() => "not checked",
            State::NotChecked => "in part",
        };
        let left_out = self.left_out.iter().map(|(id, why)| format!("node {id}: {why}"));
        let left_out: Vec<_> = left_out.collect();
        if left_out.is_empty() { state.into() } else { format!("{state}; {}", left_out.join("; ")) }
    }
}
