//! # Room card: holds
//!
//! Purpose:    know which batches a replica keeps beside its log.
//! Owns:       the batches, by place and by producer.
//! Interface:  [`Holds`].
//! Invariants: a batch that is found differs from the one in question in its header alone.
//! Never:      the journal.
//! Tests:      below.
//! Start at:   [`Holds::record_of`].

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::descriptor::BATCH_HEADER_BYTES;
use crate::op::{Hold, HoldId};

/// Place of the producer's id, its epoch and the first sequence in the header of a batch.
const PRODUCER: Range<usize> = 43..57;

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    all: BTreeMap<HoldId, Bytes>,
    /// The latest hold of each producer and sequence.
    by_producer: BTreeMap<Bytes, HoldId>,
}

impl Holds {
    pub(crate) fn insert(&mut self, Hold { id, payload }: Hold) {
        self.remove(id);
        if let Some(producer) = producer_of(&payload) {
            self.by_producer.insert(producer, id);
        }
        self.all.insert(id, payload);
    }

    pub(crate) fn remove(&mut self, id: HoldId) {
        let producer = self.all.remove(&id).and_then(|payload| producer_of(&payload));
        if let Some(producer) = producer
            && self.by_producer.get(&producer) == Some(&id)
        {
            self.by_producer.remove(&producer);
        }
    }

    /// Returns all holds, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Hold> {
        self.all.iter().map(|(id, payload)| Hold { id: *id, payload: payload.clone() })
    }

    /// Returns the hold that has all of a batch but its header.
    pub(crate) fn record_of(&self, batch: &Bytes) -> Option<HoldId> {
        if self.all.is_empty() {
            return None;
        }
        let id = self.by_producer.get(&producer_of(batch)?)?;
        let held = &self.all[id];
        let is_same = held.get(BATCH_HEADER_BYTES..) == batch.get(BATCH_HEADER_BYTES..);
        is_same.then_some(*id)
    }
}

/// Returns the bytes that name a batch among all. `None` for what is no batch.
fn producer_of(batch: &Bytes) -> Option<Bytes> {
    (batch.len() >= BATCH_HEADER_BYTES).then(|| batch.slice(PRODUCER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Stretch;

    fn batch(first: u8, sequence: u8, value: u8) -> Bytes {
        let mut bytes = vec![first; BATCH_HEADER_BYTES];
        bytes[PRODUCER].fill(sequence);
        bytes.extend([value; 9]);
        bytes.into()
    }

    #[test]
    fn a_batch_is_found_by_its_producer_and_records() {
        let mut holds = Holds::default();
        let id = |number| HoldId { stretch: Stretch { term: 2, index: 3 }, number };
        assert_eq!(holds.record_of(&batch(0, 1, 1)), None);
        holds.insert(Hold { id: id(1), payload: batch(0, 1, 1) });
        holds.insert(Hold { id: id(2), payload: batch(0, 2, 2) });
        assert_eq!(holds.record_of(&batch(9, 1, 1)), Some(id(1)), "another header");
        assert_eq!(holds.record_of(&batch(9, 2, 2)), Some(id(2)));
        assert_eq!(holds.record_of(&batch(0, 2, 1)), None, "other records");
        assert_eq!(holds.record_of(&Bytes::from_static(b"no batch")), None);
        holds.insert(Hold { id: id(3), payload: batch(0, 1, 1) });
        holds.remove(id(1));
        assert_eq!(holds.record_of(&batch(9, 1, 1)), Some(id(3)), "the later one is there");
        holds.insert(Hold { id: id(3), payload: batch(0, 4, 4) });
        assert_eq!(holds.record_of(&batch(9, 1, 1)), None, "another batch took its place");
        holds.remove(id(3));
        assert_eq!(holds.record_of(&batch(9, 4, 4)), None);
        assert_eq!(holds.iter().map(|it| it.id).collect::<Vec<_>>(), [id(2)]);
    }
}
