//! Problems with tokens.

/// Problem with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaslError {
    /// The bytes are no token of the mechanism.
    #[error("{0}")]
    Malformed(&'static str),
    /// The other side does not know the password, or is not the one that began.
    #[error("{0}")]
    Refused(&'static str),
}
