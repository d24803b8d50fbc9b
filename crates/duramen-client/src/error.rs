//! Errors between a client and its brokers.

use std::io;
use std::time::Duration;

use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::wire::{DecodeError, EncodeError};

use crate::node_id::NodeId;

/// A request that did not get the answer it was sent for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No bootstrap address was given.
    #[error("no broker address was given")]
    NoAddress,
    /// Nobody listens there, or the name is not known.
    #[error("no broker answers at {address}")]
    Unreachable {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The broker has no TLS there, or a certificate that the client does not trust.
    #[error("no TLS handshake with {address}")]
    NoTls {
        /// The broker's address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The machine gives no random bytes.
    #[error("this machine gives no random bytes")]
    NoRandom,
    /// The connection ended before the answer came.
    #[error("the connection to {address} was lost: {reason}")]
    Lost {
        /// The broker's address.
        address: String,
        /// Reason that the connection ended.
        reason: String,
    },
    /// The broker took too long.
    #[error("{address} did not answer {api} within {} s", timeout.as_secs_f32())]
    TimedOut {
        /// The broker's address.
        address: String,
        /// Name of the request.
        api: &'static str,
        /// The limit.
        timeout: Duration,
    },
    /// The broker is too old, too new, or not a broker.
    #[error("{address} does not offer {api} in a version that this client speaks")]
    Unsupported {
        /// The broker's address.
        address: String,
        /// Name of the request.
        api: &'static str,
    },
    /// The cluster's metadata names a leader that it does not list.
    #[error("broker {node} is not among the brokers that the cluster lists")]
    UnknownNode {
        /// Its id.
        node: NodeId,
    },
    /// The broker answered with an error code.
    #[error("{what}: {code}{}", message.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// Subject of the error.
        what: String,
        /// The code.
        code: ErrorCode,
        /// The broker's own words.
        message: Option<String>,
    },
    /// The answer does not follow the protocol.
    #[error("{address} answered {api} with bytes that are not understood")]
    Garbled {
        /// The broker's address.
        address: String,
        /// Name of the request.
        api: &'static str,
        /// Place and kind of the wrong bytes.
        source: DecodeError,
    },
    /// The request cannot be said in a version that the broker speaks.
    #[error("the broker is too old for this {api} request")]
    Inexpressible {
        /// Name of the request.
        api: &'static str,
        /// Error of the encoding.
        source: EncodeError,
    },
}

impl Error {
    /// Returns an answer with an error code. Codes this client does not know become `UNKNOWN_SERVER_ERROR`.
    pub(crate) fn refused(what: impl Into<String>, code: i16, message: Option<String>) -> Self {
        let known = ErrorCode::from_code(code);
        let message = match known {
            Some(_) => message,
            None => Some(format!("error code {code}")),
        };
        Self::Refused {
            what: what.into(),
            code: known.unwrap_or(ErrorCode::UnknownServerError),
            message,
        }
    }

    /// Returns the error for an answer that leaves out what was asked for.
    fn missing(what: String) -> Self {
        let message = Some("the answer leaves it out".into());
        Self::refused(what, ErrorCode::UnknownServerError.code(), message)
    }

    /// Returns the first row of an answer, which has one for each thing that was asked about.
    pub(crate) fn first<T>(
        rows: impl IntoIterator<Item = T>,
        what: impl FnOnce() -> String,
    ) -> Result<T, Self> {
        rows.into_iter().next().ok_or_else(|| Self::missing(what()))
    }

    /// Returns `Ok` if `code` is zero.
    pub fn check(
        what: impl FnOnce() -> String,
        code: i16,
        message: Option<&str>,
    ) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self::refused(what(), code, message.map(Into::into))) }
    }

    /// Returns the broker's error code, if it answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Tells whether the same request may succeed a little later.
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Lost { .. }
            | Self::TimedOut { .. }
            | Self::UnknownNode { .. } => true,
            // A missing topic is retriable for Kafka, because metadata may lag. A caller that waits for one to appear
            // says so; for everyone else it is simply missing.
            Self::Refused { code: ErrorCode::UnknownTopicOrPartition, .. } => false,
            Self::Refused { code, .. } => code.is_retriable(),
            _ => false,
        }
    }
}
