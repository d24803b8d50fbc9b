//! # Room card: sasl
//!
//! Purpose:    the tokens by which a client shows who it is, for both sides.
//! Owns:       names of mechanisms; the tokens of PLAIN (RFC 4616) and of OAUTHBEARER (RFC 7628, in `sasl/bearer.rs`);
//!             messages and keys of SCRAM (RFC 5802), which are in `sasl/scram.rs`.
//! Interface:  [`Mechanism`], [`plain_token`], [`read_plain`], [`bearer`], [`scram`].
//! Invariants: secrets are compared in constant time; a nonce must be the whole expected one; no chance in here.
//! Never:      requests and responses (`messages`), which users there are.
//! Tests:      below, `sasl/scram.rs`; `compat/security` with other implementations.
//! Start at:   `sasl/scram.rs`.

use std::fmt;

use bytes::Bytes;

pub mod bearer;
mod error;
pub mod scram;

pub use error::SaslError;

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// The password itself (RFC 4616).
    Plain,
    /// Proof of a password that the broker does not keep (RFC 5802, RFC 7677).
    Scram(scram::Hash),
    /// A token that somebody else signed (RFC 7628).
    OAuthBearer,
}

impl Mechanism {
    /// Mechanisms of users with passwords, the better ones first.
    pub const OF_PASSWORDS: [Self; 3] =
        [Self::Scram(scram::Hash::Sha512), Self::Scram(scram::Hash::Sha256), Self::Plain];
    /// All mechanisms.
    pub const ALL: [Self; 4] = [
        Self::Scram(scram::Hash::Sha512),
        Self::Scram(scram::Hash::Sha256),
        Self::Plain,
        Self::OAuthBearer,
    ];

    /// Returns the registered name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(hash) => hash.name(),
            Self::OAuthBearer => "OAUTHBEARER",
        }
    }

    /// Returns the mechanism of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Writes the token of PLAIN.
pub fn plain_token(user: &str, password: &[u8]) -> Bytes {
    [b"\0", user.as_bytes(), b"\0", password].concat().into()
}

/// Reads the token of PLAIN: the user and the password. A client may act for itself alone.
pub fn read_plain(token: &[u8]) -> Result<(&str, &[u8]), SaslError> {
    let mut parts = token.split(|byte| *byte == 0);
    let (Some(authorization), Some(user), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(SaslError::Malformed("the token of PLAIN has not three parts"));
    };
    let user = std::str::from_utf8(user)
        .map_err(|_| SaslError::Malformed("the name of the user is not UTF-8"))?;
    if user.is_empty() || password.is_empty() {
        return Err(SaslError::Malformed("PLAIN wants a user and a password"));
    }
    if !authorization.is_empty() && authorization != user.as_bytes() {
        return Err(SaslError::Refused("a client may not act for another user"));
    }
    Ok((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_plain_names_a_user_and_a_password() {
        assert_eq!(read_plain(&plain_token("ada", b"p w")), Ok(("ada", &b"p w"[..])));
        assert_eq!(read_plain(b"ada\0ada\0x"), Ok(("ada", &b"x"[..])));
        for token in [&b""[..], b"ada", b"\0ada", b"\0ada\0", b"\0\0x", b"\0ada\0x\0", b"\0\xff\0x"]
        {
            assert!(matches!(read_plain(token), Err(SaslError::Malformed(_))), "{token:?}");
        }
        assert!(matches!(read_plain(b"root\0ada\0x"), Err(SaslError::Refused(_))));
    }

    #[test]
    fn mechanisms_have_their_registered_names() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::from_name(mechanism.name()), Some(mechanism));
        }
        assert_eq!(Mechanism::from_name("SCRAM-SHA-1"), None);
        assert_eq!(Mechanism::Scram(scram::Hash::Sha256).to_string(), "SCRAM-SHA-256");
    }
}
