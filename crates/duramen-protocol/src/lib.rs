//! # Room card: protocol
//!
//! Purpose:    bytes ⇄ typed Kafka messages, and the record batch view.
//! Owns:       the wire format of Kafka 4: primitives, messages, headers, API table, error codes, record batches.
//! Interface:  [`decode_request`], [`encode_response`], their mirrors for clients, [`API_TABLE`], [`wire`],
//!             [`message!`], [`BatchHeader`], [`BatchView`].
//! Invariants: decode(encode(m)) = m for every message and version; decoding never panics and allocates at most
//!             [`wire::ALLOCATION_FACTOR`] times its input; a batch is never copied or re-encoded to be stored.
//! Never:      I/O, clocks, chance, partitions, defaults that depend on the node.
//! Tests:      `messages/tests.rs` (every version, against an independent codec), `batch`, `records`; `fuzz/`.
//! Start at:   `api.rs`, then `messages/fetch.rs`.

pub mod api;
pub mod batch;
pub mod compression;
pub mod error_code;
pub mod messages;
pub mod partitioner;
pub mod records;
pub mod request;
pub mod response;
pub mod sasl;
pub mod wire;

pub use api::{API_TABLE, ApiKey};
pub use batch::{BatchHeader, BatchView};
pub use error_code::ErrorCode;
pub use request::{
    REQUEST_ELEMENTS_MAX, Request, RequestHeader, decode_request, decode_request_counted,
    encode_request, encode_request_of,
};
pub use response::{EncodedFrame, Response, decode_response, encode_response};
pub use wire::{DecodeError, EncodeError};
