//! # Room card: client
//!
//! Purpose:    one small Kafka client for the command line, the benchmarks and the tests; it works
//!             against any broker.
//! Owns:       version negotiation, the cached view of the cluster, reconnects, bounded retries. Also the
//!             idempotent [`Appender`], the [`FastAppender`] of one round trip, the [`Fetcher`] with or without
//!             sessions, and the [`Member`] of a classic consumer group.
//! Interface:  [`Client::connect`], [`Client::call_any`], [`Client::leader`], [`Appender`], [`Fetcher`], [`Member`].
//! Invariants: an answer that says "try again" is tried again until [`Options::retry_for`] is over,
//!             never longer; an [`Appender`] sends its batches in order and never gives one up before
//!             those in front of it.
//! Never:      writing in transactions, members of the newer consumer group protocol, printing.
//! Tests:      `tests.rs` against a scripted broker; `tests/cli.rs` of `duramen` against the real one.
//! Start at:   [`Client::leader`].
//!
//! Offsets are Kafka's: the offset of the first record is 0, and an end is one past the last record. A partition is its
//! number in its topic. Timestamps are milliseconds since 1970.

mod acls;
mod admin;
mod appender;
mod assignors;
mod backoff;
mod call;
mod client;
mod cluster;
mod connection;
mod error;
mod fast;
mod fetcher;
mod groups;
mod member;
mod node_id;
mod offsets;
mod options;
mod shares;
#[cfg(test)]
mod tests;
mod tls;
mod transactions;
mod users;

pub use admin::{ListedOffset, NewTopic, OffsetAt};
pub use appender::{Acked, Acknowledgement, Appender, AppenderOptions, Producer};
pub use assignors::Partitions;
pub use call::Call;
pub use client::{Client, Leader};
pub use cluster::{Moving, Nodes, Reassignment};
pub use connection::{Connection, InFlight, Wire};
pub use error::Error;
pub use fast::{FastAppender, FastOptions, LATE_AFTER};
pub use fetcher::{FetchOptions, Fetched, Fetcher};
pub use groups::{Epochs, Group};
pub use member::{Member, MemberOptions, Standing};
pub use node_id::NodeId;
pub use offsets::{ByPartition, Committed};
pub use options::{Login, Options};
pub use shares::ShareStart;
pub use tls::Tls;
pub use transactions::TransactionFilter;
pub use users::User;
