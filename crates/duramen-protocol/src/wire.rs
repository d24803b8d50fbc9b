//! # Room card: wire
//!
//! Purpose:    the primitive encodings of the Kafka protocol, and the declared messages built from them.
//! Owns:       [`Decoder`], [`Encoder`], [`Hole`], [`RecordData`], [`Uuid`], the [`Wire`] and [`Message`] traits,
//!             the error types of both directions, and the `message!` macro's run-time side. An error carries the
//!             [`RequestHeader`], so its fields are here.
//! Interface:  `M::decode(&mut Decoder, version)` and `m.encode(&mut Encoder, version)` for every declared message.
//! Invariants: no allocation is sized by a number read from the network before that number has been checked
//!             against the bytes that are left; byte fields are slices of the frame, never copies; decoding a
//!             frame of n bytes allocates at most [`ALLOCATION_FACTOR`] × n bytes.
//! Never:      the table of APIs, the bytes of headers, I/O, anything that depends on the node.
//! Tests:      unit tests here; every message and version in `messages/tests.rs`.
//! Start at:   [`Decoder`], then [`Wire`].

mod decoder;
mod encoder;
mod error;
mod field;
mod header;
mod macros;
mod secret;
mod uuid;

pub use decoder::Decoder;
pub use encoder::{Encoder, Hole, RecordData, varint_len, varlong_len};
pub use error::{DecodeError, EncodeError};
pub use field::{
    ALLOCATION_FACTOR, Ctx, Few, FieldSpec, Message, Nullable, STRING_BYTES_MAX, Versions, Wire,
    read_nullable_struct, write_nullable_struct,
};
pub use header::RequestHeader;
pub use secret::Secret;
pub use uuid::Uuid;

#[cfg(test)]
pub(crate) mod entropy;
#[cfg(test)]
mod tests;
