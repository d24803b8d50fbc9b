//! # Room card: holds
//!
//! Purpose:    keep batches of clients beside a follower's log, each producer's in order, until the log has them.
//! Owns:       the batches that this replica holds, by stretch and arrival, and which of them are on its disk.
//! Interface:  [`Holds::judge`], [`Holds::take`], [`Holds::take_own`], [`Holds::on_held`], [`Holds::in_stretch`],
//!             [`Holds::payload_of`], [`Holds::on_committed`], [`Holds::on_change`].
//! Invariants: a hold belongs to one stretch. Behind a producer's hold of a stretch comes its next batch: the batch
//!             before it is in the log, or held in the same stretch. A hold stays until its batch is committed here,
//!             or an Open or Close of a later stretch is.
//! Never:      the log; what a client is told.
//! Tests:      below.
//! Start at:   [`Holds::judge`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::{self, TimestampType};
use duramen_protocol::{BatchHeader, ErrorCode};
use duramen_storage::Descriptor;
use duramen_storage::op::{Hold, HoldId, OpKind, Stretch};
use duramen_storage::sabotage::{self, Bug};

use super::producers::{Producers, Verdict, advance};

/// Sequences of one producer's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequences {
    pub(crate) epoch: i16,
    pub(crate) first: i32,
    pub(crate) last: i32,
}

impl Sequences {
    fn of_header(header: &BatchHeader) -> Self {
        let steps = header.last_offset_delta.unsigned_abs();
        let (epoch, first) = (header.producer_epoch, header.base_sequence);
        Self { epoch, first, last: advance(first, steps) }
    }

    fn of_descriptor(batch: &Descriptor) -> Self {
        let (epoch, first) = (batch.producer_epoch, batch.first_sequence);
        Self { epoch, first, last: advance(first, batch.count - 1) }
    }
}

/// A batch that is held.
#[derive(Debug)]
struct Held {
    producer_id: i64,
    sequences: Sequences,
    crc: u32,
    payload: Bytes,
    is_durable: bool,
}

/// Judgement on a batch that a client asks to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// Hold it.
    Take,
    /// The stretch holds it already: on disk, or soon.
    Held { id: HoldId, is_durable: bool },
    /// The log has it, committed.
    Committed { base_offset: i64 },
    /// Not now: another batch of its producer comes first, or this one differs from that which is held.
    NotNow(ErrorCode),
}

/// All batches that a replica holds.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    all: BTreeMap<HoldId, Held>,
    /// Each producer's holds in the order of their arrival.
    of_producer: BTreeMap<i64, Vec<HoldId>>,
    /// Holds that are let go as soon as storage has them.
    leaving: BTreeSet<HoldId>,
    /// The last hold of the last stretch, gone or not.
    last: Option<HoldId>,
    bytes: usize,
}

impl Holds {
    /// Takes over the holds that a start found.
    pub(crate) fn recover(found: &[Hold]) -> Self {
        let mut holds = Self::default();
        for Hold { id, payload } in found {
            if let Ok(header) = BatchHeader::parse(payload) {
                holds.insert(*id, &header, payload.clone(), true);
            }
        }
        holds
    }

    /// Returns the bytes of all batches.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Judges a batch that is to be held in a stretch, by this replica's log and the holds of the stretch.
    pub(crate) fn judge(
        &self,
        stretch: Stretch,
        header: &BatchHeader,
        producers: &Producers,
    ) -> Holding {
        let (id, sequences) = (header.producer_id, Sequences::of_header(header));
        let all = self.of_producer.get(&id).map_or(&[][..], Vec::as_slice);
        let anywhere = sabotage::is(Bug::GapAcrossStretches) || sabotage::is(Bug::HeldInPlace);
        let here = all.iter().rev().filter(|it| it.stretch == stretch || anywhere);
        let mut newest = None;
        for hold in here {
            let held = &self.all[hold];
            newest.get_or_insert(held.sequences);
            if hold.stretch != stretch && !sabotage::is(Bug::HeldInPlace) {
                continue;
            }
            if held.sequences == sequences && held.crc == header.crc {
                return Holding::Held { id: *hold, is_durable: held.is_durable };
            }
            if held.sequences == sequences {
                return Holding::NotNow(ErrorCode::CorruptMessage);
            }
        }
        let count = header.last_offset_delta.unsigned_abs() + 1;
        let verdict = producers.check(id, sequences.epoch, sequences.first, count);
        if let Verdict::Duplicate { base_offset, uncommitted: None } = verdict {
            return Holding::Committed { base_offset };
        }
        let is_duplicate = matches!(verdict, Verdict::Duplicate { .. });
        let ahead = newest.filter(|it| !producers.has(id, it.epoch, (it.first, it.last)));
        let follows = match ahead {
            None => verdict == Verdict::Append || is_duplicate,
            Some(last) if sequences.epoch == last.epoch => {
                sequences.first == advance(last.last, 1) || is_duplicate
            }
            Some(last) => sequences.epoch > last.epoch && sequences.first == 0,
        };
        match verdict {
            _ if follows || sabotage::is(Bug::HeldWithGap) => Holding::Take,
            Verdict::Refuse(code) => Holding::NotNow(code),
            _ => Holding::NotNow(ErrorCode::OutOfOrderSequenceNumber),
        }
    }

    /// Takes a batch that [`Holds::judge`] lets in. Returns its place, and the op that writes it.
    pub(crate) fn take(
        &mut self,
        stretch: Stretch,
        header: &BatchHeader,
        payload: Bytes,
    ) -> (HoldId, OpKind) {
        // A number stands for one batch alone, also while storage still has to report one that was let go.
        let is_over = self.last.is_some_and(|last| last.stretch > stretch);
        assert!(!is_over, "a stretch that is over takes no hold");
        let last = self.last.filter(|last| last.stretch == stretch);
        let id = HoldId { stretch, number: last.map_or(1, |last| last.number + 1) };
        self.insert(id, header, payload.clone(), false);
        (id, OpKind::Hold(Hold { id, payload }))
    }

    /// Takes a batch of this replica's own log, which it appended in the stretch as its leader, unless it is held there
    /// already. Its index in the log orders it.
    pub(crate) fn take_own(&mut self, id: HoldId, payload: Bytes) -> Option<OpKind> {
        let header = BatchHeader::parse(&payload).ok()?;
        if self.has(id.stretch, header.producer_id, Sequences::of_header(&header)) {
            return None;
        }
        self.insert(id, &header, payload.clone(), false);
        Some(OpKind::Hold(Hold { id, payload }))
    }

    /// Tells whether a batch of the log is held in a stretch.
    pub(crate) fn has_batch(&self, stretch: Stretch, batch: &Descriptor) -> bool {
        self.has(stretch, batch.producer_id, Sequences::of_descriptor(batch))
    }

    fn has(&self, stretch: Stretch, producer_id: i64, sequences: Sequences) -> bool {
        let all = self.of_producer.get(&producer_id).into_iter().flatten();
        all.into_iter().any(|id| id.stretch == stretch && self.all[id].sequences == sequences)
    }

    fn insert(&mut self, id: HoldId, header: &BatchHeader, payload: Bytes, is_durable: bool) {
        self.bytes += payload.len();
        self.last = self.last.max(Some(id));
        let (producer_id, sequences) = (header.producer_id, Sequences::of_header(header));
        let held = Held { producer_id, sequences, crc: header.crc, payload, is_durable };
        let before = self.all.insert(id, held);
        assert!(before.is_none(), "each hold has a number of its own");
        self.of_producer.entry(producer_id).or_default().push(id);
    }

    /// Lets go of all that was committed in the meantime, by the table of producers.
    pub(crate) fn on_image(&mut self, producers: &Producers) -> Option<OpKind> {
        let is_gone = |held: &Held| {
            producers.is_behind(held.producer_id, held.sequences.epoch, held.sequences.last)
        };
        let gone = self.all.iter().filter(|(_, held)| is_gone(held)).map(|(id, _)| *id);
        let gone: Vec<HoldId> = gone.collect();
        self.let_go(&gone)
    }

    /// Notes that a hold is on disk. Returns an op if it is not needed any more.
    pub(crate) fn on_held(&mut self, id: HoldId) -> Option<OpKind> {
        if let Some(held) = self.all.get_mut(&id) {
            held.is_durable = true;
        }
        self.leaving.remove(&id).then(|| OpKind::LetGo(vec![id]))
    }

    /// Tells whether there is no hold of a stretch before the last one that was applied.
    pub(super) fn in_order_before(&self, applied: Option<Stretch>) -> bool {
        let first = self.all.first_key_value().map(|(id, _)| id.stretch);
        applied.is_none_or(|applied| first.is_none_or(|first| first >= applied))
    }

    /// Returns the last hold of the last stretch, gone or not.
    pub(crate) fn last(&self) -> Option<HoldId> {
        self.last
    }

    /// Returns the batches of a stretch, in the order of their arrival.
    pub(crate) fn in_stretch(&self, stretch: Stretch) -> impl Iterator<Item = (HoldId, &Bytes)> {
        let from = HoldId { stretch, number: 0 };
        let to = HoldId { stretch, number: u64::MAX };
        self.all.range(from..=to).map(|(id, held)| (*id, &held.payload))
    }

    /// Makes the payload of an entry from the batch that is held, as its leader made it: the same records under another
    /// header. `None` if the batch is not held.
    pub(crate) fn payload_of(&self, batch: &Descriptor, term: u64) -> Option<Bytes> {
        let sequences = Sequences::of_descriptor(batch);
        let all = self.of_producer.get(&batch.producer_id)?.iter().rev();
        let held = all.map(|id| &self.all[id]).find(|held| held.sequences == sequences)?;
        let mut bytes = BytesMut::from(&held.payload[..]);
        batch::set_base_offset(&mut bytes, batch.base_offset);
        batch::set_partition_leader_epoch(&mut bytes, i32::try_from(term).ok()?);
        if batch.log_append_time {
            batch::restamp(&mut bytes, TimestampType::LogAppendTime, batch.max_timestamp);
        }
        let bytes = bytes.freeze();
        (batch.matches(&bytes) || sabotage::is(Bug::RebuiltUnchecked)).then_some(bytes)
    }

    /// Lets go of a batch that is committed here.
    pub(crate) fn on_committed(&mut self, batch: &Descriptor) -> Option<OpKind> {
        let all = self.of_producer.get(&batch.producer_id)?;
        let sequences = Sequences::of_descriptor(batch);
        let is_it = |id: &HoldId| self.all[id].sequences == sequences;
        let gone: Vec<HoldId> = all.iter().copied().filter(is_it).collect();
        self.let_go(&gone)
    }

    /// Lets go of all holds of stretches before one: an Open or Close behind them is applied.
    pub(crate) fn on_change(&mut self, stretch: Stretch) -> Option<OpKind> {
        let gone = self.all.range(..HoldId { stretch, number: 0 }).map(|(id, _)| *id);
        let gone: Vec<HoldId> = gone.collect();
        self.let_go(&gone)
    }

    fn let_go(&mut self, gone: &[HoldId]) -> Option<OpKind> {
        let mut durable = Vec::new();
        for id in gone {
            let Some(held) = self.all.remove(id) else { continue };
            self.bytes -= held.payload.len();
            if let Some(all) = self.of_producer.get_mut(&held.producer_id) {
                all.retain(|it| it != id);
                if all.is_empty() {
                    self.of_producer.remove(&held.producer_id);
                }
            }
            if held.is_durable {
                durable.push(*id);
            } else {
                self.leaving.insert(*id);
            }
        }
        (!durable.is_empty()).then_some(OpKind::LetGo(durable))
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::records::{BatchBuilder, NewRecord};

    use super::*;

    const FIRST: Stretch = Stretch { term: 2, index: 5 };
    const SECOND: Stretch = Stretch { term: 2, index: 9 };
    const PRODUCER: i64 = 7;

    fn batch(epoch: i16, sequence: i32, count: i32, value: &str) -> (BatchHeader, Bytes) {
        let mut builder = BatchBuilder::new().producer(PRODUCER, epoch, sequence);
        for _ in 0..count {
            let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
            builder.push(&record).expect("a record");
        }
        let bytes = builder.build().expect("a batch");
        (BatchHeader::parse(&bytes).expect("a header"), bytes)
    }

    fn descriptor(epoch: i16, sequence: i32, count: i32) -> Descriptor {
        Descriptor::of_batch(&batch(epoch, sequence, count, "x").1, false).expect("a batch")
    }

    struct World {
        holds: Holds,
        producers: Producers,
        log: u64,
    }

    impl World {
        fn new() -> Self {
            Self { holds: Holds::default(), producers: Producers::default(), log: 10 }
        }

        fn judge(&self, stretch: Stretch, epoch: i16, sequence: i32) -> Holding {
            self.holds.judge(stretch, &batch(epoch, sequence, 1, "x").0, &self.producers)
        }

        /// Asks to hold a batch. Returns its place if that is done.
        fn hold(&mut self, stretch: Stretch, epoch: i16, sequence: i32) -> Option<HoldId> {
            let (header, payload) = batch(epoch, sequence, 1, "x");
            if self.holds.judge(stretch, &header, &self.producers) != Holding::Take {
                return None;
            }
            Some(self.holds.take(stretch, &header, payload).0)
        }

        fn append(&mut self, epoch: i16, sequence: i32) -> u64 {
            self.log += 1;
            self.producers.propose(self.log, &descriptor(epoch, sequence, 1));
            self.log
        }

        fn commit(&mut self, index: u64, epoch: i16, sequence: i32) -> Option<OpKind> {
            let batch = descriptor(epoch, sequence, 1);
            self.producers.apply(index, &batch, 0);
            self.holds.on_committed(&batch)
        }
    }

    fn is_gap(holding: Holding) -> bool {
        matches!(holding, Holding::NotNow(_))
    }

    #[test]
    fn a_batch_is_held_behind_its_producers_last_one_and_no_other() {
        let mut world = World::new();
        assert!(is_gap(world.judge(FIRST, 0, 1)), "the first one is not here");
        assert!(world.hold(FIRST, 0, 0).is_some());
        assert!(is_gap(world.judge(FIRST, 0, 2)));
        assert!(world.hold(FIRST, 0, 1).is_some());
        assert!(is_gap(world.judge(FIRST, 1, 1)), "an epoch begins with 0");
        assert!(world.hold(FIRST, 1, 0).is_some());
        assert!(is_gap(world.judge(FIRST, 0, 2)), "an earlier epoch is over");
    }

    #[test]
    fn the_batch_before_counts_in_the_log_and_in_the_same_stretch_alone() {
        let mut world = World::new();
        assert!(world.hold(FIRST, 0, 0).is_some());
        assert!(is_gap(world.judge(SECOND, 0, 1)), "it is held in another stretch");
        assert!(world.hold(SECOND, 0, 0).is_some(), "it is held once more");
        let index = world.append(0, 0);
        assert!(world.hold(SECOND, 0, 1).is_some());
        world.producers.cut(index);
        assert!(world.hold(SECOND, 0, 2).is_some(), "the cut took nothing that is held");
        assert!(is_gap(world.judge(FIRST, 0, 2)));
    }

    #[test]
    fn a_batch_of_the_log_is_held_until_it_is_committed() {
        let mut world = World::new();
        let index = world.append(0, 0);
        let hold = world.hold(FIRST, 0, 0).expect("it may be cut from the log");
        let held = Holding::Held { id: hold, is_durable: false };
        assert_eq!(world.judge(FIRST, 0, 0), held);
        assert_eq!(world.holds.on_held(hold), None);
        assert_eq!(world.judge(FIRST, 0, 0), Holding::Held { id: hold, is_durable: true });
        assert_eq!(world.commit(index, 0, 0), Some(OpKind::LetGo(vec![hold])));
        assert_eq!(world.judge(FIRST, 0, 0), Holding::Committed { base_offset: 0 });
        assert_eq!(world.holds.bytes(), 0);
    }

    #[test]
    fn a_number_is_not_given_again_while_its_batch_is_on_its_way_to_the_disk() {
        let mut world = World::new();
        let first = world.hold(FIRST, 0, 0).expect("it is taken");
        let index = world.append(0, 0);
        assert_eq!(world.commit(index, 0, 0), None, "storage does not have it yet");
        let second = world.hold(FIRST, 0, 1).expect("it is taken");
        assert_eq!(world.holds.on_held(first), Some(OpKind::LetGo(vec![first])));
        assert_eq!(world.judge(FIRST, 0, 1), Holding::Held { id: second, is_durable: false });
    }

    #[test]
    fn another_batch_with_the_sequences_of_one_that_is_held_is_not_taken_for_it() {
        let mut world = World::new();
        assert!(world.hold(FIRST, 0, 0).is_some());
        let other = batch(0, 0, 1, "y").0;
        assert!(is_gap(world.holds.judge(FIRST, &other, &world.producers)));
    }

    #[test]
    fn holds_of_earlier_stretches_go_with_a_change_behind_them_and_no_others() {
        let mut world = World::new();
        let first = world.hold(FIRST, 0, 0).expect("it is taken");
        let second = world.hold(SECOND, 0, 0).expect("it is taken");
        world.holds.on_held(second);
        assert_eq!(world.holds.on_change(SECOND), None, "storage does not have it yet");
        assert_eq!(world.holds.on_held(first), Some(OpKind::LetGo(vec![first])));
        let left: Vec<HoldId> = world.holds.in_stretch(SECOND).map(|(id, _)| id).collect();
        assert_eq!((left, world.holds.in_stretch(FIRST).count()), (vec![second], 0));
    }

    #[test]
    fn a_start_finds_holds_in_their_order_and_goes_on_behind_them() {
        let mut world = World::new();
        let holds = [0, 1, 2].map(|sequence| world.hold(FIRST, 0, sequence).expect("it is taken"));
        let found = world.holds.in_stretch(FIRST);
        let found: Vec<Hold> =
            found.map(|(id, payload)| Hold { id, payload: payload.clone() }).collect();
        world.holds = Holds::recover(&found);
        assert_eq!(world.judge(FIRST, 0, 1), Holding::Held { id: holds[1], is_durable: true });
        let next = world.hold(FIRST, 0, 3).expect("it is taken");
        assert_eq!(next.number, holds[2].number + 1);
    }
}
