//! # Room card: broker
//!
//! Purpose:    the node: Kafka's requests, replicated logs, the cluster's metadata, as one value.
//! Owns:       everything that a client may observe.
//! Interface:  [`Node`] with [`Event`] and [`Action`]; [`session::Session`] for a connection; [`access`] for the table
//!             of who is asked what; [`read_plan`] for reads off the node's thread; [`configs`] for settings;
//!             [`describe`] for people; [`groups`] for consumer groups; [`survivor`] for a directory whose cluster
//!             is lost.
//! Invariants: acknowledged is durable; shown is durable; the same events make the same actions.
//! Never:      async, sockets, files, locks, hash maps, clocks, chance that is not seeded, threads.
//! Tests:      `node/tests`, and each room's own; `duramen-sim` runs all of it.
//! Start at:   `turn.rs`, then `api/produce.rs` and `partition.rs`.

pub mod access;
pub mod acls;
mod api;
mod api_versions;
mod audit;
pub mod checked_batch;
pub mod configs;
mod controller;
mod core;
pub mod describe;
pub mod event;
mod fetch_sessions;
pub mod groups;
mod guard;
mod internal_topics;
mod ledger;
pub mod limits;
pub mod login;
mod metadata_records;
pub mod native;
mod node;
mod partition;
pub mod peer;
mod prng;
mod quotas;
mod raft;
pub mod read_plan;
pub mod recompression;
pub mod restoration;
pub mod session;
mod shares;
pub mod survivor;
mod transactions;
mod turn;
mod users;

pub use self::core::{ClientListener, Metrics, NATIVE, NODES, NodeOptions, Readiness, Standing};
pub use controller::{Founder, METADATA_TOPIC, METADATA_TOPIC_ID};
pub use event::{Action, ConnectionId, Event, Now, Reply};
pub use metadata_records::KINDS;
pub use node::{Node, census};
