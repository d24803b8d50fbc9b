//! # Room card: native
//!
//! Purpose:    the native API: one port for people and programs, gRPC and HTTP with JSON side by side.
//! Owns:       both surfaces, the problems they tell, the way of a call to the node and from node to node.
//! Interface:  [`listen`].
//! Invariants: both surfaces carry out the same operations (`logs.rs`; `queues.rs`, `enqueuing.rs`, `editing.rs`,
//!             `following.rs`; `leases.rs`; `topics.rs`). The node sees unary calls alone; a stream is a loop of them
//!             in the task of its connection. A call is passed on once at most. Whatever way a call ends, nothing of
//!             it waits in the node.
//! Never:      what an operation does (`duramen_broker`, `api/native.rs`).
//! Tests:      `tests/native.rs` asks a real server; `compat/native`.
//! Start at:   `grpc.rs` or `http.rs`, then `logs.rs` and `calls.rs`.

use std::time::Duration;

mod calls;
mod charging;
mod editing;
mod enqueuing;
mod following;
mod forwarding;
pub mod fuzzing;
mod grpc;
mod http;
mod identify;
mod json;
mod leases;
mod listener;
mod logs;
mod messages;
mod observing;
mod openapi;
mod problems;
mod queues;
mod reading;
mod selecting;
mod topics;

pub(crate) use calls::Calls;
pub(crate) use listener::{Native, guarded, listen, router};

/// Time without an event after which a stream shows that it is there.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
