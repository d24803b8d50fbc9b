//! # Room card: guard
//!
//! Purpose:    conditions of an append, and positions, which they name.
//! Owns:       [`Guard`], [`Last`], [`Position`] and its text; the headers that are a guard on Kafka's wire.
//! Interface:  the types; [`Guard::of_headers`].
//! Invariants: a guard that cannot be read is refused, never passed over.
//! Never:      the judgement (see `partition/controls.rs` and `api/guarded.rs`).
//! Tests:      below; `node/tests/guards.rs`.
//! Start at:   [`Guard`].

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use duramen_protocol::BatchView;
use duramen_protocol::records::{FENCE_HEADER, IF_LAST_HEADER, Keys, Records};

use crate::limits::{DECOMPRESSED_BYTES_MAX, FENCE_BYTES_MAX};

/// Position of a record. Positions of one log are ordered by offset; term and entry never fall as the offset rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Leader epoch in which the record was appended.
    pub term: i32,
    /// Offset of the first record of its batch; -1 if the batch is not there any more.
    pub entry: i64,
    /// The record's own offset.
    pub offset: i64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, entry, offset } = self;
        write!(f, "{term}.{entry}.{offset}")
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a position is like 7.4711.4713: term, entry and offset".to_owned();
        let mut parts = text.split('.');
        let mut number = || parts.next()?.parse::<i64>().ok();
        let (term, entry, offset) = (number(), number(), number());
        let term = term.and_then(|it| i32::try_from(it).ok());
        match (term, entry, offset, parts.next()) {
            (Some(term @ 0..), Some(entry @ -1..), Some(offset @ 0..), None) => {
                Ok(Self { term, entry, offset })
            }
            _ => Err(wrong()),
        }
    }
}

/// Conditions of an append, judged in the step in which its offset is assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Position that the log must end with; for an append to a queue, that the queue must end with.
    pub last: Option<Last>,
    /// Token that must be the log's fence.
    pub fence: Option<Bytes>,
    /// Key of all records of the batch, whose queue `last` is about; `None` if it is about the log.
    pub queue: Option<Bytes>,
}

/// Expected last position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Nothing was ever appended; the queue has no element.
    Nothing,
    /// This record was appended last.
    At(Position),
}

impl Guard {
    /// Tells whether every append passes the guard.
    pub fn is_open(&self) -> bool {
        self.last.is_none() && self.fence.is_none()
    }

    /// Reads the guard in the headers of a batch's first record. Returns the reason if it is none, or not there.
    pub(crate) fn of_headers(batch: &BatchView, keys: &Keys) -> Result<Self, String> {
        let mut guard = Self::default();
        let Some(last) = keys.guarded.as_slice().last() else { return Ok(guard) };
        if *last > 0 {
            let text = "record {}: duramen-if-last and duramen-fence stand on the first record of a batch; send one \
                        batch a request";
            return Err(text.replace("{}", &last.to_string()));
        }
        if batch.header().attributes.is_transactional() {
            return Err("a batch of a transaction has no guard".to_owned());
        }
        let unreadable = |_| "the records cannot be read".to_owned();
        let records = Records::of(batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
        let mut keys = (&records).into_iter().map(|it| it.map(|it| it.key));
        let first = keys.next().transpose().map_err(unreadable)?.flatten();
        if keys.all(|key| key.is_ok_and(|key| key == first)) {
            guard.queue = first.map(Bytes::copy_from_slice);
        }
        let Some(first) = (&records).into_iter().next() else { return Ok(guard) };
        for header in first.map_err(unreadable)?.headers {
            let value = header.value.unwrap_or_default();
            if header.key == IF_LAST_HEADER {
                let text = str::from_utf8(value).unwrap_or_default();
                let last = match text {
                    "none" => Last::Nothing,
                    _ => Last::At(text.parse().map_err(|reason| {
                        format!("duramen-if-last is `none` or a position: {reason}")
                    })?),
                };
                if guard.last.replace(last).is_some() {
                    return Err("there are two headers duramen-if-last".to_owned());
                }
            } else if header.key == FENCE_HEADER {
                if value.len() > FENCE_BYTES_MAX {
                    return Err(format!("duramen-fence has at most {FENCE_BYTES_MAX} bytes"));
                }
                if guard.fence.replace(Bytes::copy_from_slice(value)).is_some() {
                    return Err("there are two headers duramen-fence".to_owned());
                }
            }
        }
        Ok(guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_their_text_and_nothing_else_is_one() {
        for (term, entry, offset) in [(7, 4711, 4713), (0, 0, 0), (3, -1, i64::MAX)] {
            let position = Position { term, entry, offset };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        let wrong = ["", "1", "1.2", "1.2.3.4", "-1.2.3", "1.2.-3", "a.b.c", "1..3", "1.-2.3"];
        for text in wrong.into_iter().chain(["1.2.9223372036854775808", "2147483648.0.0"]) {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
