//! # Room card: producers
//!
//! Purpose:    idempotence: each batch of a producer lands once, in order.
//! Owns:       the last batches of every producer, committed and not; the image's bytes.
//! Interface:  [`Producers::check`], [`Producers::propose`], [`Producers::apply`], [`Producers::image`].
//! Invariants: a batch is checked against committed and uncommitted state together; the committed
//!             state is a function of the log alone, and ends only by `ExpireProducers`.
//! Never:      clocks in what is replicated: the time of last use is this node's own.
//! Tests:      below, against a model.
//! Start at:   [`Producers::check`].

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_storage::Descriptor;

use crate::limits::PRODUCER_BATCHES_KEPT;
use duramen_storage::sabotage::{self, Bug};

const IMAGE_VERSION: u8 = 3;
/// It did not say up to which index it goes: that was the index it was stored under.
const IMAGE_VERSION_WITHOUT_INDEX: u8 = 2;
/// It had no time of a producer's last batch either.
const IMAGE_VERSION_WITHOUT_TIMES: u8 = 1;
const IMAGE_PRODUCER_BYTES: usize = 8 + 2 + 1;
const IMAGE_BATCH_BYTES: usize = 4 + 4 + 8;

/// One batch of a producer, in brief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    first_sequence: i32,
    last_sequence: i32,
    base_offset: i64,
}

#[derive(Clone, Debug, Default)]
struct Producer {
    epoch: i16,
    /// At most five, of `epoch`, oldest first.
    batches: VecDeque<Sent>,
    /// The largest time in its last batch; -1 if an image of version 1 told of it.
    last_timestamp: i64,
    used_us: u64,
}

/// What a producer did last, as administrators are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveProducer {
    pub id: i64,
    pub epoch: i16,
    pub last_sequence: i32,
    pub last_timestamp: i64,
}

/// A batch proposed and not committed.
#[derive(Clone, Copy, Debug)]
struct Proposed {
    index: u64,
    epoch: i16,
    sent: Sent,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the producer's next.
    Append,
    /// It is in the log already, at this offset; at this index if it is not committed yet.
    Duplicate {
        /// The first append's offset.
        base_offset: i64,
        /// Wait for this index to be committed.
        uncommitted: Option<u64>,
    },
    /// It must not be appended.
    Refuse(ErrorCode),
}

/// All producers of one partition.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    /// What entries up to this index did is in here, though not all of them may have been applied again: a replica that
    /// began anew got the table of its leader.
    as_of: u64,
    committed: BTreeMap<i64, Producer>,
    proposed: BTreeMap<i64, Vec<Proposed>>,
}

/// The sequence number `steps` after `sequence`; after 2^31-1 comes 0.
fn advance(sequence: i32, steps: u32) -> i32 {
    let sum = i64::from(sequence) + i64::from(steps);
    i32::try_from(sum & i64::from(i32::MAX)).expect("31 bits fit")
}

fn sent_of(batch: &Descriptor) -> Sent {
    Sent {
        first_sequence: batch.first_sequence,
        last_sequence: advance(batch.first_sequence, batch.count - 1),
        base_offset: batch.base_offset,
    }
}

impl Producers {
    /// Whether a batch of producer `id` may be appended.
    pub(crate) fn check(&self, id: i64, epoch: i16, first_sequence: i32, count: u32) -> Verdict {
        let proposed = self.proposed.get(&id).map_or(&[][..], Vec::as_slice);
        let committed = self.committed.get(&id);
        let Some(known) = proposed.last().map(|last| last.epoch).or(committed.map(|p| p.epoch))
        else {
            return match first_sequence {
                0 => Verdict::Append,
                _ => Verdict::Refuse(ErrorCode::UnknownProducerId),
            };
        };
        if epoch < known {
            return Verdict::Refuse(ErrorCode::InvalidProducerEpoch);
        }
        if epoch > known {
            return match first_sequence {
                0 => Verdict::Append,
                _ => Verdict::Refuse(ErrorCode::OutOfOrderSequenceNumber),
            };
        }
        let newest_first = proposed.iter().rev().take_while(|it| it.epoch == epoch);
        let newest_first = newest_first.map(|it| (it.sent, Some(it.index)));
        let committed = committed.filter(|producer| producer.epoch == epoch);
        let older = committed.into_iter().flat_map(|producer| producer.batches.iter().rev());
        let mut recent = newest_first.chain(older.map(|sent| (*sent, None)));
        let wanted = (first_sequence, advance(first_sequence, count - 1));
        let mut last = None;
        for (sent, uncommitted) in recent.by_ref().take(PRODUCER_BATCHES_KEPT) {
            if (sent.first_sequence, sent.last_sequence) == wanted {
                return Verdict::Duplicate { base_offset: sent.base_offset, uncommitted };
            }
            last.get_or_insert(sent.last_sequence);
        }
        match last {
            Some(last) if advance(last, 1) == first_sequence => Verdict::Append,
            None if first_sequence == 0 => Verdict::Append,
            _ if sabotage::is(Bug::SequenceGapAccepted) => Verdict::Append,
            _ => Verdict::Refuse(ErrorCode::OutOfOrderSequenceNumber),
        }
    }

    /// A batch was proposed at `index`.
    pub(crate) fn propose(&mut self, index: u64, batch: &Descriptor) {
        if batch.producer_id >= 0 {
            let proposed = Proposed { index, epoch: batch.producer_epoch, sent: sent_of(batch) };
            self.proposed.entry(batch.producer_id).or_default().push(proposed);
        }
    }

    /// The log was cut before `index`.
    pub(crate) fn cut(&mut self, index: u64) {
        self.proposed.retain(|_, batches| {
            batches.retain(|batch| batch.index < index);
            !batches.is_empty()
        });
    }

    /// The batch at `index` is committed.
    pub(crate) fn apply(&mut self, index: u64, batch: &Descriptor, now_us: u64) {
        if batch.producer_id < 0 {
            return;
        }
        if let Some(proposed) = self.proposed.get_mut(&batch.producer_id) {
            proposed.retain(|batch| batch.index > index);
            if proposed.is_empty() {
                self.proposed.remove(&batch.producer_id);
            }
        }
        if index <= self.as_of && !sabotage::is(Bug::ImageAppliedTwice) {
            return;
        }
        let producer = self.committed.entry(batch.producer_id).or_default();
        if producer.epoch != batch.producer_epoch {
            producer.epoch = batch.producer_epoch;
            producer.batches.clear();
        }
        producer.last_timestamp = batch.max_timestamp;
        producer.used_us = now_us;
        if producer.batches.len() == PRODUCER_BATCHES_KEPT {
            producer.batches.pop_front();
        }
        producer.batches.push_back(sent_of(batch));
    }

    /// An `ExpireProducers` entry is committed.
    pub(crate) fn expire(&mut self, index: u64, before: i64) {
        if index > self.as_of {
            let stays =
                |it: &Producer| it.batches.back().is_some_and(|it| it.base_offset >= before);
            self.committed.retain(|_, producer| stays(producer));
        }
    }

    /// The same as older versions said it.
    pub(crate) fn expire_named(&mut self, index: u64, ids: &[i64]) {
        for id in ids.iter().filter(|_| index > self.as_of) {
            self.committed.remove(id);
        }
    }

    /// The offset before which only batches of producers begin that were last used before `before_us` and have nothing
    /// under way; `None` if there is none. `end` is one past the last committed offset.
    pub(crate) fn unused_before(&self, before_us: u64, end: i64) -> Option<i64> {
        let last = |producer: &Producer| producer.batches.back().map(|sent| sent.base_offset);
        let is_used =
            |id: &i64, it: &Producer| it.used_us >= before_us || self.proposed.contains_key(id);
        let used = self.committed.iter().filter(|(id, producer)| is_used(id, producer));
        let before = used.filter_map(|(_, producer)| last(producer)).min().unwrap_or(end);
        let mut all = self.committed.values().filter_map(last);
        all.any(|offset| offset < before).then_some(before)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.committed.len()
    }

    /// The committed state after the entry at `applied`, versioned: version, the index up to which it goes, then for
    /// each producer its id, epoch, time and batches.
    pub(crate) fn image(&self, applied: u64) -> Bytes {
        let size = IMAGE_PRODUCER_BYTES + PRODUCER_BATCHES_KEPT * IMAGE_BATCH_BYTES;
        let mut out = Vec::with_capacity(1 + 8 + self.committed.len() * size);
        out.push(IMAGE_VERSION);
        out.extend_from_slice(&self.as_of.max(applied).to_be_bytes());
        for (id, producer) in &self.committed {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&producer.epoch.to_be_bytes());
            out.push(u8::try_from(producer.batches.len()).expect("at most five"));
            out.extend_from_slice(&producer.last_timestamp.to_be_bytes());
            for batch in &producer.batches {
                out.extend_from_slice(&batch.first_sequence.to_be_bytes());
                out.extend_from_slice(&batch.last_sequence.to_be_bytes());
                out.extend_from_slice(&batch.base_offset.to_be_bytes());
            }
        }
        out.into()
    }

    /// Reads [`Producers::image`]; no bytes at all are an empty table. `None` if they cannot be
    /// read by this version.
    pub(crate) fn from_image(image: &[u8], now_us: u64) -> Option<Self> {
        let mut producers = Self::default();
        let Some((&version, mut rest)) = image.split_first() else { return Some(producers) };
        if !(IMAGE_VERSION_WITHOUT_TIMES..=IMAGE_VERSION).contains(&version) {
            return None;
        }
        if version > IMAGE_VERSION_WITHOUT_INDEX {
            let (as_of, tail) = rest.split_first_chunk::<8>()?;
            rest = tail;
            producers.as_of = u64::from_be_bytes(*as_of);
        }
        while !rest.is_empty() {
            let (head, tail) = rest.split_first_chunk::<IMAGE_PRODUCER_BYTES>()?;
            let (id, head) = head.split_first_chunk::<8>()?;
            let count = usize::from(head[2]);
            rest = tail;
            let epoch = i16::from_be_bytes([head[0], head[1]]);
            let mut last_timestamp = -1;
            if version != IMAGE_VERSION_WITHOUT_TIMES {
                let (time, tail) = rest.split_first_chunk::<8>()?;
                rest = tail;
                last_timestamp = i64::from_be_bytes(*time);
            }
            let batches = VecDeque::new();
            let mut producer = Producer { epoch, batches, last_timestamp, used_us: now_us };
            for _ in 0..count {
                let (batch, tail) = rest.split_first_chunk::<IMAGE_BATCH_BYTES>()?;
                rest = tail;
                let (first_sequence, batch) = batch.split_first_chunk::<4>()?;
                let (last_sequence, base_offset) = batch.split_first_chunk::<4>()?;
                producer.batches.push_back(Sent {
                    first_sequence: i32::from_be_bytes(*first_sequence),
                    last_sequence: i32::from_be_bytes(*last_sequence),
                    base_offset: i64::from_be_bytes(*base_offset.first_chunk::<8>()?),
                });
            }
            producers.committed.insert(i64::from_be_bytes(*id), producer);
        }
        Some(producers)
    }

    /// The last that each producer did.
    pub(crate) fn active(&self) -> impl Iterator<Item = ActiveProducer> {
        self.committed.iter().map(|(&id, producer)| ActiveProducer {
            id,
            epoch: producer.epoch,
            last_sequence: producer.batches.back().map_or(-1, |sent| sent.last_sequence),
            last_timestamp: producer.last_timestamp,
        })
    }

    /// The committed state in words, a line for each producer.
    pub(crate) fn lines(&self) -> Vec<String> {
        let sent = |Sent { first_sequence, last_sequence, base_offset }: &Sent| {
            format!("  sequences {first_sequence}..{last_sequence} at offset {base_offset}")
        };
        let line = |(id, producer): (&i64, &Producer)| {
            let batches: String = producer.batches.iter().map(sent).collect();
            let time = match producer.last_timestamp {
                -1 => String::new(),
                time => format!("  time {time}"),
            };
            format!("producer {id}  epoch {}{time}{batches}", producer.epoch)
        };
        self.committed.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    fn batch(epoch: i16, first_sequence: i32, count: u32, base_offset: i64) -> Descriptor {
        Descriptor {
            base_offset,
            count,
            length: 100,
            batch_crc: 0,
            header_crc: 0,
            producer_id: 7,
            producer_epoch: epoch,
            first_sequence,
            max_timestamp: 1_000,
            starts_segment: false,
            transactional: false,
            control: false,
            log_append_time: false,
        }
    }

    fn append(producers: &mut Producers, index: u64, it: &Descriptor) {
        producers.propose(index, it);
        producers.apply(index, it, 0);
    }

    #[test]
    fn an_unknown_producer_must_start_at_zero() {
        let producers = Producers::default();
        assert_eq!(producers.check(7, 0, 0, 1), Verdict::Append);
        assert_eq!(producers.check(7, 0, 5, 1), Verdict::Refuse(ErrorCode::UnknownProducerId));
    }

    #[test]
    fn a_retry_of_an_uncommitted_batch_waits_for_the_original() {
        let mut producers = Producers::default();
        producers.propose(3, &batch(0, 0, 2, 10));
        let waits = Verdict::Duplicate { base_offset: 10, uncommitted: Some(3) };
        assert_eq!(producers.check(7, 0, 0, 2), waits);
        producers.apply(3, &batch(0, 0, 2, 10), 0);
        let done = Verdict::Duplicate { base_offset: 10, uncommitted: None };
        assert_eq!(producers.check(7, 0, 0, 2), done);
    }

    #[test]
    fn a_cut_log_takes_the_sequences_back() {
        let mut producers = Producers::default();
        append(&mut producers, 2, &batch(0, 0, 1, 0));
        producers.propose(3, &batch(0, 1, 1, 1));
        assert_eq!(producers.check(7, 0, 2, 1), Verdict::Append);
        producers.cut(3);
        assert_eq!(producers.check(7, 0, 1, 1), Verdict::Append);
        let gap = Verdict::Refuse(ErrorCode::OutOfOrderSequenceNumber);
        assert_eq!(producers.check(7, 0, 2, 1), gap);
    }

    #[test]
    fn epochs_only_rise_and_start_at_zero() {
        let mut producers = Producers::default();
        append(&mut producers, 2, &batch(3, 0, 1, 0));
        let stale = Verdict::Refuse(ErrorCode::InvalidProducerEpoch);
        assert_eq!(producers.check(7, 2, 0, 1), stale);
        let gap = Verdict::Refuse(ErrorCode::OutOfOrderSequenceNumber);
        assert_eq!(producers.check(7, 4, 1, 1), gap);
        assert_eq!(producers.check(7, 4, 0, 1), Verdict::Append);
    }

    #[test]
    fn sequences_wrap_after_the_largest_int() {
        let mut producers = Producers::default();
        append(&mut producers, 2, &batch(0, 0, 1, 0));
        let last = producers.committed.get_mut(&7).expect("just added");
        last.batches[0].last_sequence = i32::MAX - 1;
        let wrapping = batch(0, i32::MAX, 3, 1);
        assert_eq!(producers.check(7, 0, i32::MAX, 3), Verdict::Append);
        append(&mut producers, 3, &wrapping);
        assert_eq!(producers.check(7, 0, 2, 1), Verdict::Append);
        let known = Verdict::Duplicate { base_offset: 1, uncommitted: None };
        assert_eq!(producers.check(7, 0, i32::MAX, 3), known);
    }

    #[test]
    fn an_image_restores_the_committed_state() {
        let mut producers = Producers::default();
        for n in 0..9 {
            append(&mut producers, 2 + n, &batch(1, i32::try_from(n).expect("small"), 1, 0));
        }
        let copy = Producers::from_image(&producers.image(0), 5).expect("our own version");
        assert_eq!(copy.image(0), producers.image(0));
        assert_eq!(copy.check(7, 1, 9, 1), Verdict::Append);
        let last = ActiveProducer { id: 7, epoch: 1, last_sequence: 8, last_timestamp: 1_000 };
        assert_eq!(copy.active().collect::<Vec<_>>(), [last]);
        assert!(Producers::from_image(&[9], 0).is_none(), "an unknown version is refused");
        assert!(Producers::from_image(&producers.image(0)[..20], 0).is_none());
    }

    #[test]
    fn what_an_image_holds_already_is_not_applied_once_more() {
        let mut producers = Producers::default();
        let batches: Vec<_> = (0..6).map(|n| batch(1, n, 1, 10 * i64::from(n))).zip(2..).collect();
        for (it, index) in &batches {
            append(&mut producers, *index, it);
        }
        producers.expire(8, 0);
        // A replica gets the table of index 8, and then the entries from 4 on.
        let mut copy = Producers::from_image(&producers.image(8), 0).expect("our own version");
        for (it, index) in &batches[2..] {
            copy.apply(*index, it, 0);
        }
        copy.expire(5, 1_000);
        copy.expire_named(8, &[7]);
        assert_eq!(copy.image(8), producers.image(8));
        copy.apply(9, &batch(1, 6, 1, 60), 0);
        assert_eq!(copy.check(7, 1, 7, 1), Verdict::Append, "what comes after is");
        copy.expire(10, 61);
        assert_eq!(copy.len(), 0);
    }

    #[test]
    fn an_image_of_version_1_is_read_and_does_not_know_of_times() {
        let producer = [&7i64.to_be_bytes()[..], &1i16.to_be_bytes(), &[1]].concat();
        let sent = [&3i32.to_be_bytes()[..], &4i32.to_be_bytes(), &9i64.to_be_bytes()].concat();
        let image = [&[1][..], &producer, &sent].concat();
        let producers = Producers::from_image(&image, 0).expect("an older version of ours");
        let last = ActiveProducer { id: 7, epoch: 1, last_sequence: 4, last_timestamp: -1 };
        assert_eq!(producers.active().collect::<Vec<_>>(), [last]);
        let known = Verdict::Duplicate { base_offset: 9, uncommitted: None };
        assert_eq!(producers.check(7, 1, 3, 2), known);
        let copy = Producers::from_image(&producers.image(0), 0).expect("our own version");
        assert_eq!(copy.active().collect::<Vec<_>>(), [last]);
    }

    /// The model keeps every batch ever sent and answers by looking at all of them.
    #[test]
    fn the_table_agrees_with_a_model_that_remembers_everything() {
        for seed in 0..200 {
            let mut chance = Prng::stream(seed, 0);
            let mut producers = Producers::default();
            let mut sent: Vec<(i16, i32, u32, i64)> = Vec::new();
            let (mut offset, mut index, mut applied) = (0i64, 2u64, 0usize);
            for _ in 0..60 {
                let epoch = sent.last().map_or(0, |it| it.0);
                let epoch = epoch + i16::from(chance.below(12) == 0);
                let same: Vec<_> = sent.iter().filter(|it| it.0 == epoch).copied().collect();
                let next = same.last().map_or(0, |it| advance(it.1, it.2));
                let (sequence, count) = match chance.below(4) {
                    0 if !same.is_empty() => {
                        let at = chance.below(same.len() as u64);
                        let it = same[usize::try_from(at).expect("small")];
                        (it.1, it.2)
                    }
                    1 => (next + 1, 1),
                    _ => (next, u32::try_from(1 + chance.below(3)).expect("small")),
                };
                let recent = same.iter().rev().take(PRODUCER_BATCHES_KEPT);
                let original = recent.clone().find(|it| (it.1, it.2) == (sequence, count));
                let verdict = producers.check(7, epoch, sequence, count);
                match (original, verdict) {
                    (Some(it), Verdict::Duplicate { base_offset, .. }) => {
                        assert_eq!(base_offset, it.3);
                    }
                    (None, Verdict::Append) => {
                        assert_eq!(sequence, next);
                        producers.propose(index, &batch(epoch, sequence, count, offset));
                        sent.push((epoch, sequence, count, offset));
                        offset += i64::from(count);
                        index += 1;
                    }
                    (None, Verdict::Refuse(_)) => assert_ne!(sequence, next),
                    other => panic!("seed {seed}: {other:?}"),
                }
                if chance.below(3) == 0 && applied < sent.len() {
                    let it = sent[applied];
                    producers.apply(2 + applied as u64, &batch(it.0, it.1, it.2, it.3), 0);
                    applied += 1;
                }
            }
        }
    }
}
