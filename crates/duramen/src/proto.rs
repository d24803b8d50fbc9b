//! # Room card: proto
//!
//! Purpose:    messages and services of the native API, as Rust.
//! Owns:       the text of a position. `proto/generate.sh` writes the rest from `proto/duramen/v1/duramen.proto`.
//! Interface:  all of it; [`DESCRIPTORS`] for reflection.
//! Invariants: the code is that of the file; `./test full` writes it anew and compares.
//! Never:      what a message means (see `server/native`).
//! Tests:      `tests/native.rs`.
//! Start at:   `proto/duramen/v1/duramen.proto`.

#![expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    clippy::pedantic,
    missing_docs,
    reason = "the code is generated"
)]

mod position;

include!("proto/duramen.v1.rs");

/// Descriptors of the protocol.
pub const DESCRIPTORS: &[u8] = include_bytes!("proto/duramen.v1.bin");
