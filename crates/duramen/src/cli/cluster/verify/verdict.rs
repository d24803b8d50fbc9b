//! Outcome of the comparison of a partition's replicas.

use std::collections::BTreeMap;

use duramen_client::NodeId;
use serde::Serialize;

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Identical,
    Differs,
    NotCompared,
}

/// Outcome of a partition.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) state: State,
    /// First of the offsets that are identical.
    pub(super) start: i64,
    /// One past the last of the offsets that are identical.
    pub(super) end: i64,
    pub(super) bytes: i64,
    /// Nodes whose replicas were compared.
    pub(super) nodes: Vec<NodeId>,
    /// Nodes that were left out, with the reason.
    pub(super) left_out: BTreeMap<NodeId, String>,
    pub(super) difference: Option<Difference>,
}

/// First batch that differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    pub(super) from: i64,
    /// One past the batch's last offset.
    pub(super) to: i64,
    pub(super) nodes: Vec<NodeDigest>,
}

/// A node's copy of the batch that differs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct NodeDigest {
    pub(super) node: NodeId,
    pub(super) bytes: i64,
    pub(super) digest: String,
    /// First offsets of segments that begin in this range.
    pub(super) segments: Vec<i64>,
    /// Damage of the replica and its place, whatever other replicas have.
    pub(super) damage: Option<String>,
    /// True if the replica is damaged, or differs from a majority of the same bytes.
    pub(super) odd: bool,
}

impl Verdict {
    pub(super) fn words(&self) -> String {
        let state = match self.state {
            State::Identical => "identical",
            State::Differs => "differs",
            State::NotCompared if self.nodes.len() > 1 => "in part",
            State::NotCompared => "not compared",
        };
        let left_out = self.left_out.iter().map(|(id, why)| format!("node {id}: {why}"));
        let left_out: Vec<_> = left_out.collect();
        if left_out.is_empty() { state.into() } else { format!("{state}; {}", left_out.join("; ")) }
    }
}
