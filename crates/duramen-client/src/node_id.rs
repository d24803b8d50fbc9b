//! The id of a broker.

/// The id of a broker in its cluster.
pub type NodeId = i32;
