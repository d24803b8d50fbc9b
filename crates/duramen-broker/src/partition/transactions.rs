//! # Room card: transactions of a partition
//!
//! Purpose:    open and aborted transactions of one log, for `read_committed` consumers.
//! Owns:       [`Transactions`]: first offsets of open transactions; aborted ones; their part of the image. [`Marker`],
//!             the end of one, and its bytes.
//! Interface:  [`Transactions::open`], [`Transactions::end`], [`Transactions::first_open`], [`Transactions::aborted`].
//! Invariants: a function of the committed log alone. No record at or after [`Transactions::first_open`] is stable.
//! Never:      producers' epochs and sequences (see `producers`), why a transaction ended.
//! Tests:      below; `producers.rs`.
//! Start at:   [`Transactions::end`].

use std::collections::{BTreeSet, VecDeque};

use bytes::BytesMut;
use duramen_protocol::records::{BatchBuilder, NewRecord};

/// End of a producer's transaction in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub producer_id: i64,
    pub epoch: i16,
    pub coordinator_epoch: i32,
    pub commits: bool,
}

impl Marker {
    /// Returns the marker's control batch, as Kafka writes it.
    pub(super) fn batch(&self, timestamp: i64) -> BytesMut {
        let key = [0, 0, 0, u8::from(self.commits)];
        let mut value = [0; 6];
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        let (key, value) = (Some(&key[..]), Some(&value[..]));
        let mut batch = BatchBuilder::new().producer(self.producer_id, self.epoch, -1);
        batch = batch.transactional().control();
        let record = NewRecord { timestamp, key, value, ..NewRecord::default() };
        let built = batch.push(&record).and_then(|()| batch.build_mut());
        built.expect("a record of a few bytes")
    }
}

/// An aborted transaction: `read_committed` consumers leave out its records. The layout follows Kafka's transaction
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub producer_id: i64,
    pub first_offset: i64,
    /// Offset of its marker.
    pub last_offset: i64,
    /// The last stable offset once it had ended: any transaction that ends later begins at or after it.
    pub stable: i64,
}

const ABORTED_BYTES: usize = 4 * 8;

/// See the room card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transactions {
    open: BTreeSet<i64>,
    /// In the order of their markers.
    aborted: VecDeque<Aborted>,
}

impl Transactions {
    /// Notes that a transaction begins with the record at this offset.
    pub(crate) fn open(&mut self, first_offset: i64) {
        self.open.insert(first_offset);
    }

    /// Notes that the transaction that began at `first_offset` ends with the marker at `last_offset`.
    pub(crate) fn end(
        &mut self,
        producer_id: i64,
        first_offset: i64,
        last_offset: i64,
        commits: bool,
    ) {
        self.open.remove(&first_offset);
        if !commits {
            let stable = self.first_open().unwrap_or(last_offset + 1);
            debug_assert!(
                self.aborted.back().is_none_or(|before| before.last_offset < last_offset),
                "transactions end in the order of their markers"
            );
            self.aborted.push_back(Aborted { producer_id, first_offset, last_offset, stable });
        }
    }

    /// Tells whether an open transaction begins with the record at this offset.
    pub(crate) fn is_open(&self, first_offset: i64) -> bool {
        self.open.contains(&first_offset)
    }

    /// Returns the first offset of the first open transaction.
    pub(crate) fn first_open(&self) -> Option<i64> {
        self.open.first().copied()
    }

    /// Forgets aborted transactions before this offset: the log begins there now, or compaction left nothing of them.
    pub(crate) fn trim(&mut self, log_start: i64) {
        while self.aborted.front().is_some_and(|it| it.last_offset < log_start) {
            self.aborted.pop_front();
        }
    }

    /// Returns the aborted transactions that have records from `from` up to, not including, `to`, by their first
    /// offsets. Also returns the offset up to which the list is complete, if there are more than `max`.
    pub(crate) fn aborted(&self, from: i64, to: i64, max: usize) -> (Vec<Aborted>, i64) {
        debug_assert!(
            self.aborted.iter().is_sorted_by(|a, b| a.last_offset < b.last_offset),
            "aborted transactions are in the order of their markers"
        );
        let at = self.aborted.partition_point(|it| it.last_offset < from);
        let later = self.aborted.range(at..);
        let mut found = Vec::new();
        let mut end = to;
        for aborted in later.filter(|it| it.first_offset < to) {
            found.push(*aborted);
            if found.len() > max && aborted.stable > from {
                end = end.min(aborted.stable);
            }
            if aborted.stable >= end {
                break;
            }
        }
        assert!(
            end > from || end == to,
            "a reader of a list that ends at {end} gets on from {from}"
        );
        found.retain(|it| it.first_offset < end);
        found.sort_unstable_by_key(|it| it.first_offset);
        (found, end)
    }

    /// Returns the aborted transactions that begin before an offset.
    pub(crate) fn aborted_before(
        &self,
        offset: i64,
    ) -> impl Iterator<Item = duramen_storage::compaction::Aborted> {
        let begun = self.aborted.iter().filter(move |it| it.first_offset < offset);
        begun.map(|it| duramen_storage::compaction::Aborted {
            producer_id: it.producer_id,
            first_offset: it.first_offset,
            last_offset: it.last_offset,
        })
    }

    /// Returns the number of remembered aborted transactions.
    #[cfg(test)]
    pub(crate) fn aborted_len(&self) -> usize {
        self.aborted.len()
    }

    /// Returns the aborted transactions in words.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.aborted.iter().map(|it| {
            let Aborted { producer_id, first_offset, last_offset, .. } = it;
            format!("aborted  producer {producer_id}  offsets {first_offset}..{last_offset}")
        })
    }

    /// Writes the aborted transactions for the image: ids, first offsets, markers' offsets and stable offsets. The open
    /// ones are in their producers' part.
    pub(crate) fn write_aborted(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.aborted.len() * ABORTED_BYTES;
        out.reserve(end - out.len());
        for it in &self.aborted {
            for number in [it.producer_id, it.first_offset, it.last_offset, it.stable] {
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        assert_eq!(out.len(), end, "an aborted transaction takes {ABORTED_BYTES} bytes");
    }

    /// Reads [`Self::write_aborted`]: all bytes there are. `None` if they are not in the order of their markers.
    pub(crate) fn read_aborted(&mut self, bytes: &[u8]) -> Option<()> {
        let (all, rest) = bytes.as_chunks::<ABORTED_BYTES>();
        for one in all {
            let (numbers, _) = one.as_chunks::<8>();
            let [producer_id, first_offset, last_offset, stable] =
                [0, 1, 2, 3].map(|at: usize| i64::from_be_bytes(numbers[at]));
            self.aborted.push_back(Aborted { producer_id, first_offset, last_offset, stable });
        }
        let is_sorted = self.aborted.iter().is_sorted_by(|a, b| a.last_offset < b.last_offset);
        (rest.is_empty() && is_sorted).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// The model keeps all transactions and looks at each.
    #[test]
    fn what_a_reader_is_told_is_what_a_scan_of_the_log_finds() {
        for seed in 0..300 {
            let mut chance = Prng::stream(seed, 0);
            let mut index = Transactions::default();
            let mut running: Vec<(i64, i64)> = Vec::new();
            let mut ended: Vec<Aborted> = Vec::new();
            let mut offset = 0;
            for _ in 0..80 {
                let id = i64::try_from(chance.below(6)).expect("small");
                if let Some(at) = running.iter().position(|it| it.0 == id) {
                    if chance.below(2) == 0 {
                        let (id, first_offset) = running.remove(at);
                        let commits = chance.below(2) == 0;
                        index.end(id, first_offset, offset, commits);
                        if !commits {
                            let (producer_id, last_offset, stable) = (id, offset, 0);
                            ended.push(Aborted { producer_id, first_offset, last_offset, stable });
                        }
                    }
                } else {
                    index.open(offset);
                    running.push((id, offset));
                }
                offset += 1;
            }
            assert_eq!(index.first_open(), running.iter().map(|it| it.1).min());
            let stable = index.first_open().unwrap_or(offset);
            let mut copy = Transactions::default();
            let mut bytes = Vec::new();
            index.write_aborted(&mut bytes);
            copy.read_aborted(&bytes).expect("our own");
            for (_, first_offset) in &running {
                copy.open(*first_offset);
            }
            assert_eq!(copy, index);
            for from in 0..stable {
                let max = usize::try_from(chance.below(5)).expect("small");
                let (told, end) = index.aborted(from, stable, max);
                assert!(end > from && end <= stable, "seed {seed}: a reader gets on");
                let mut expected: Vec<_> = ended
                    .iter()
                    .filter(|it| it.last_offset >= from && it.first_offset < end)
                    .map(|it| (it.first_offset, it.producer_id))
                    .collect();
                expected.sort_unstable();
                let told: Vec<_> =
                    told.iter().map(|it| (it.first_offset, it.producer_id)).collect();
                assert_eq!(told, expected, "seed {seed}: from {from} to {end}");
            }
            let start = i64::try_from(chance.below(80)).expect("small");
            index.trim(start);
            let left = ended.iter().filter(|it| it.last_offset >= start).count();
            assert_eq!(index.aborted_len(), left);
        }
    }
}
