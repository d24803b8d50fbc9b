//! Errors of reading and of writing a message.

use super::RequestHeader;

/// Why bytes could not be read as a message. Malformed bytes close the connection; see each variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes do not follow the layout. Close the connection.
    #[error("malformed at byte {at}: {why}")]
    Malformed {
        /// Position in the frame.
        at: usize,
        /// Reason why the bytes are malformed.
        why: &'static str,
    },
    /// The arrays of the message have more elements, together, than one may bring. Close the connection.
    #[error("its arrays have more than {max} elements")]
    TooManyElements {
        /// Most elements that one message may have.
        max: usize,
    },
    /// A declared message was asked for in a version it does not have.
    #[error("{message} has no version {version}")]
    UnknownVersion {
        /// The message's name.
        message: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// The request's API key is none that Apache Kafka knows. Close the connection.
    #[error("unknown api key {}", header.api_key)]
    UnknownApiKey {
        /// Fields of the header that could be read.
        header: Box<RequestHeader>,
    },
    /// The API exists, but this version of it is not accepted here, or the API is not served at all.
    /// Answer `ApiVersions` in version 0 with error 35 and the list; close the connection for others.
    #[error("api {} version {} is not supported", header.api_key, header.api_version)]
    UnsupportedVersion {
        /// Fields of the header that could be read.
        header: Box<RequestHeader>,
    },
}

/// Why a message could not be written. Always a mistake of the caller, never of the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The message does not exist in this version.
    #[error("{message} has no version {version}")]
    UnknownVersion {
        /// The message's name.
        message: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A field is set that this version cannot carry, and leaving it out would change the meaning.
    #[error("{message}.{field} cannot be expressed in version {version}")]
    Inexpressible {
        /// The struct's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A field is null where this version does not allow null.
    #[error("null is not allowed here in version {version}")]
    Null {
        /// The version asked for.
        version: i16,
    },
    /// A string, array, byte field or frame is longer than its length prefix can say.
    #[error("{what} of {len} is too long")]
    TooLong {
        /// Name of the part that is too long.
        what: &'static str,
        /// Length of that part.
        len: usize,
    },
    /// A hole in a place where its bytes cannot be accounted for (inside a tagged field).
    #[error("external bytes inside a tagged field")]
    MisplacedHole,
}
