//! # Room card: live keys
//!
//! Purpose:    the live records of a coordinator's log: the last one of every key that has a value.
//! Owns:       [`Live`]: their offsets, and their approximate size.
//! Interface:  [`Live::put`], [`Live::remove`], [`Live::first`], [`Live::before`].
//! Invariants: every live key is here once, at the offset of its last durable record. So all records below
//!             [`Live::first`] may go.
//! Never:      values; records that are not durable.
//! Tests:      `groups/coordinator/tests.rs`.
//! Start at:   [`Live`].

use std::collections::BTreeMap;

/// The live keys, by the offset of their last record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Live<K> {
    keys: BTreeMap<i64, (K, usize)>,
    bytes: usize,
}

impl<K> Default for Live<K> {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), bytes: 0 }
    }
}

impl<K> Live<K> {
    /// Records that the record at this offset is the last one of a key, and its approximate size in bytes.
    pub(crate) fn put(&mut self, at: i64, key: K, bytes: usize) {
        debug_assert!(!self.keys.contains_key(&at), "there is one record at {at}");
        self.bytes += bytes;
        self.keys.insert(at, (key, bytes));
    }

    /// Removes the record at this offset, which is no longer live.
    pub(crate) fn remove(&mut self, at: i64) {
        if let Some((_, bytes)) = self.keys.remove(&at) {
            self.bytes -= bytes;
        }
    }

    /// Returns the offset of the first live record.
    pub(crate) fn first(&self) -> Option<i64> {
        self.keys.keys().next().copied()
    }

    /// Returns the count of keys, and the approximate size of their records in bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.keys.len(), self.bytes)
    }

    /// Returns the keys whose last record lies before an offset, oldest first, with the size of each record.
    pub(crate) fn before(&self, end: i64) -> impl Iterator<Item = (&K, usize)> {
        self.keys.range(..end).map(|(_, (key, bytes))| (key, *bytes))
    }
}
