//! Kafka's UUIDs: sixteen bytes, written for people as 22 characters of URL-safe base64.

use std::fmt;
use std::str::FromStr;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A topic id, directory id or cluster id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The absent id.
    pub const ZERO: Self = Self([0; 16]);

    /// Makes a UUID from a number, most significant byte first.
    pub fn from_u128(value: u128) -> Self {
        Self(value.to_be_bytes())
    }

    /// Returns the UUID as a number, most significant byte first.
    pub fn as_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Tells whether this is the absent id.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 128 bits are 21 characters of six bits and one of two, the latter padded with zeros on the right.
        let bits = self.as_u128();
        let mut text = [0u8; 22];
        for (index, slot) in text.iter_mut().enumerate() {
            let sextet = if index == 21 { bits << 4 } else { bits >> (122 - 6 * index) } & 0x3f;
            *slot = ALPHABET[usize::try_from(sextet).expect("six bits fit")];
        }
        f.write_str(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not the 22-character form of a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a uuid in 22 characters of url-safe base64")]
pub struct UuidParseError;

impl FromStr for Uuid {
    type Err = UuidParseError;

    fn from_str(text: &str) -> Result<Self, UuidParseError> {
        if text.len() != 22 {
            return Err(UuidParseError);
        }
        let mut bits = 0u128;
        for (index, byte) in text.bytes().enumerate() {
            let sextet = ALPHABET.iter().position(|&c| c == byte).ok_or(UuidParseError)? as u128;
            bits = if index == 21 { bits << 2 | sextet >> 4 } else { bits << 6 | sextet };
        }
        let uuid = Self::from_u128(bits);
        // The last character has four unused bits; only one spelling is accepted.
        if uuid.to_string() == text { Ok(uuid) } else { Err(UuidParseError) }
    }
}
