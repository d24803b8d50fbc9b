//! # Room card: live keys
//!
//! Purpose:    which records of the log still say something: the last one of every key that has a value.
//! Owns:       [`Live`]: their offsets, and about how many bytes they take.
//! Interface:  [`Live::put`], [`Live::remove`], [`Live::first`], [`Live::before`].
//! Invariants: every live key is here once, at the offset of its last durable record. So whatever lies below
//!             [`Live::first`] may go.
//! Never:      values; what is not durable.
//! Tests:      `coordinator/tests.rs`.
//! Start at:   [`Live`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::records::Fact;

/// A key of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Group(Arc<str>),
    Offset { group: Arc<str>, topic: Arc<str>, partition: i32 },
    Consumer { group: Arc<str>, fact: Fact },
}

/// The live keys, by the offset of their last record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    keys: BTreeMap<i64, (Key, usize)>,
    bytes: usize,
}

impl Live {
    /// The record at this offset is the last one of a key, and takes about so many bytes.
    pub(crate) fn put(&mut self, at: i64, key: Key, bytes: usize) {
        debug_assert!(self.keys.last_key_value().is_none_or(|(last, _)| *last < at), "{at} is old");
        self.bytes += bytes;
        self.keys.insert(at, (key, bytes));
    }

    /// The record at this offset says nothing any more.
    pub(crate) fn remove(&mut self, at: i64) {
        if let Some((_, bytes)) = self.keys.remove(&at) {
            self.bytes -= bytes;
        }
    }

    /// The first record that still says something.
    pub(crate) fn first(&self) -> Option<i64> {
        self.keys.keys().next().copied()
    }

    /// How many keys there are, and about how many bytes their records take.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.keys.len(), self.bytes)
    }

    /// The keys whose last record lies before an offset, oldest first, and what each takes.
    pub(crate) fn before(&self, end: i64) -> impl Iterator<Item = (&Key, usize)> {
        self.keys.range(..end).map(|(_, (key, bytes))| (key, *bytes))
    }
}
