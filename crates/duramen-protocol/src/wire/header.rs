//! The header of a request as data: an error of the decoder carries it.

use smol_str::SmolStr;

/// Header before every request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestHeader {
    /// The API's key; a number because it may be unknown to us.
    pub api_key: i16,
    /// The version of the API.
    pub api_version: i16,
    /// Comes back in the response.
    pub correlation_id: i32,
    /// The client's name for itself.
    pub client_id: Option<SmolStr>,
}
