//! # Room card: producers
//!
//! Purpose:    idempotence: the log has each batch of a producer once, in order, and in its transaction.
//! Owns:       the last batches of every producer, committed and not; its open transaction; the image's bytes.
//! Interface:  [`Producers::check`], [`Producers::propose`], [`Producers::apply`], [`Producers::image`];
//!             [`Producers::is_open`], [`Producers::check_marker`], [`Producers::transactions`].
//! Invariants: a check uses committed and uncommitted state together. The committed state is a function of the log
//!             alone, and ends only by `ExpireProducers`. A producer with an open transaction does not expire.
//! Never:      clocks in replicated state: the time of last use is this node's own.
//! Tests:      below, against a model.
//! Start at:   [`Producers::check`].

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes};
use duramen_protocol::ErrorCode;
use duramen_storage::Descriptor;
use duramen_storage::descriptor::EndMarker;

use super::transactions::Transactions;
use crate::limits::PRODUCER_BATCHES_KEPT;
use duramen_storage::sabotage::{self, Bug};

/// There is no version 5: by that byte an image tells that the log was compacted.
const IMAGE_VERSION: u8 = 6;
/// Version without the ids of producers that may have been forgotten.
const IMAGE_VERSION_WITHOUT_FORGOTTEN: u8 = 4;
/// Version without transactions.
const IMAGE_VERSION_WITHOUT_TRANSACTIONS: u8 = 3;
/// Version without the index of its last entry: that was the index it was stored under.
const IMAGE_VERSION_WITHOUT_INDEX: u8 = 2;
/// Version without that index and without the time of a producer's last batch.
const IMAGE_VERSION_WITHOUT_TIMES: u8 = 1;
/// The versions that can be read.
const READ: [u8; 5] = [
    IMAGE_VERSION_WITHOUT_TIMES,
    IMAGE_VERSION_WITHOUT_INDEX,
    IMAGE_VERSION_WITHOUT_TRANSACTIONS,
    IMAGE_VERSION_WITHOUT_FORGOTTEN,
    IMAGE_VERSION,
];
const IMAGE_PRODUCER_BYTES: usize = 8 + 2 + 1;
const IMAGE_TRANSACTION_BYTES: usize = 8 + 8 + 4;
const IMAGE_BATCH_BYTES: usize = 4 + 4 + 8;

/// One batch of a producer, in brief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    first_sequence: i32,
    last_sequence: i32,
    base_offset: i64,
}

#[derive(Clone, Debug)]
struct Producer {
    epoch: i16,
    /// At most five, of `epoch`, oldest first.
    batches: VecDeque<Sent>,
    /// The largest time in its last batch; -1 after an image of version 1.
    last_timestamp: i64,
    /// Offset of its last batch or marker; -1 if there is none.
    last_offset: i64,
    /// First offset of its open transaction.
    open: Option<i64>,
    /// Coordinator epoch of its last marker; -1 if there is none.
    coordinator_epoch: i32,
    used_us: u64,
}

impl Producer {
    fn new(epoch: i16) -> Self {
        let batches = VecDeque::new();
        let (last_timestamp, last_offset, coordinator_epoch) = (-1, -1, -1);
        let (open, used_us) = (None, 0);
        Self { epoch, batches, last_timestamp, last_offset, open, coordinator_epoch, used_us }
    }
}

/// Last batch of a producer, for administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveProducer {
    pub id: i64,
    pub epoch: i16,
    pub last_sequence: i32,
    pub last_timestamp: i64,
    pub coordinator_epoch: i32,
    /// First offset of its open transaction; -1 if none is.
    pub open: i64,
}

/// Kind of a producer's batch.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// Records with sequences.
    Sent(Sent),
    /// Records of a transaction without sequences: the broker wrote them for it.
    Unnumbered,
    /// The end of its transaction.
    End(EndMarker),
}

/// A batch proposed and not committed.
#[derive(Clone, Copy, Debug)]
struct Proposed {
    index: u64,
    epoch: i16,
    is_transactional: bool,
    part: Part,
}

/// Decision on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Append: the batch is the producer's next.
    Append,
    /// Duplicate of a batch in the log.
    Duplicate {
        /// The first append's offset.
        base_offset: i64,
        /// Index that must be committed first; `None` if it already is.
        uncommitted: Option<u64>,
    },
    /// Refuse the batch.
    Refuse(ErrorCode),
}

/// Effect of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// End of a transaction, or a fence against producers with an older epoch.
    Append,
    /// No effect beyond a batch under way: the marker is done once the entry at this index is committed.
    Waits(u64),
    /// No effect. Nothing is left to end, or a newer epoch of the producer or the coordinator is known.
    Told(ErrorCode),
}

/// All producers of one partition.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    /// Index up to which the entries' effects are in this table. Not all of the entries may have been applied again,
    /// because a replica that began anew got its leader's table.
    as_of: u64,
    /// One past the highest id of a producer that was forgotten.
    forgotten_below: i64,
    committed: BTreeMap<i64, Producer>,
    proposed: BTreeMap<i64, Vec<Proposed>>,
    transactions: Transactions,
}

/// Returns the sequence number `steps` after `sequence`; after 2^31-1 comes 0.
pub(super) fn advance(sequence: i32, steps: u32) -> i32 {
    let sum = i64::from(sequence) + i64::from(steps);
    i32::try_from(sum & i64::from(i32::MAX)).expect("31 bits fit")
}

fn part_of(batch: &Descriptor) -> Part {
    match batch.marker {
        Some(marker) => Part::End(marker),
        None if batch.first_sequence < 0 => Part::Unnumbered,
        None => Part::Sent(Sent {
            first_sequence: batch.first_sequence,
            last_sequence: advance(batch.first_sequence, batch.count - 1),
            base_offset: batch.base_offset,
        }),
    }
}

impl Producers {
    /// Decides whether a batch of producer `id` may be appended.
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
        let mut recent = self.newest_first(id, epoch);
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

    /// Returns a producer's batches of an epoch, the newest first, each with its index until it is committed.
    fn newest_first(&self, id: i64, epoch: i16) -> impl Iterator<Item = (Sent, Option<u64>)> {
        let proposed = self.proposed.get(&id).map_or(&[][..], Vec::as_slice);
        let newest_first = proposed.iter().rev().take_while(move |it| it.epoch == epoch);
        let newest_first = newest_first.filter_map(|it| match it.part {
            Part::Sent(sent) => Some((sent, Some(it.index))),
            Part::Unnumbered | Part::End(_) => None,
        });
        let committed = self.committed.get(&id).filter(|producer| producer.epoch == epoch);
        let older = committed.into_iter().flat_map(|producer| producer.batches.iter().rev());
        newest_first.chain(older.map(|sent| (*sent, None)))
    }

    /// Tells whether a batch that ends with a sequence is committed, or comes before one that is.
    pub(crate) fn is_behind(&self, id: i64, epoch: i16, last_sequence: i32) -> bool {
        let Some(producer) = self.committed.get(&id) else { return false };
        let newest = producer.batches.back().map(|it| it.last_sequence);
        let steps = newest.map(|newest| newest.wrapping_sub(last_sequence) & i32::MAX);
        match producer.epoch.cmp(&epoch) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => steps.is_some_and(|steps| steps < 1 << 30),
            std::cmp::Ordering::Less => false,
        }
    }

    /// Tells whether the log has a producer's batch, committed or not: one of the last of its epoch.
    pub(crate) fn has(&self, id: i64, epoch: i16, (first, last): (i32, i32)) -> bool {
        let mut all = self.newest_first(id, epoch);
        all.any(|(sent, _)| (sent.first_sequence, sent.last_sequence) == (first, last))
    }

    /// Returns the sequence that [`Producers::check`] lets in next; 0 for an unknown producer, and for a new epoch.
    pub(crate) fn next_sequence(&self, id: i64, epoch: i16) -> i32 {
        self.newest_first(id, epoch).next().map_or(0, |(sent, _)| advance(sent.last_sequence, 1))
    }

    /// Returns the base offset of a producer's last batch, if one of its epoch is known.
    pub(super) fn last_offset(&self, id: i64, epoch: i16) -> Option<i64> {
        self.newest_first(id, epoch).next().map(|(sent, _)| sent.base_offset)
    }

    /// Tells whether an unknown producer may have been forgotten, and may go on with its sequence.
    pub(crate) fn may_have_forgotten(&self, id: i64) -> bool {
        id < self.forgotten_below
    }

    /// Returns the highest epoch in which a producer was heard.
    pub(crate) fn epoch_of(&self, id: i64) -> Option<i16> {
        let proposed = self.proposed.get(&id).and_then(|all| all.last()).map(|it| it.epoch);
        proposed.or_else(|| self.committed.get(&id).map(|it| it.epoch))
    }

    /// Tells whether a transaction of a producer is open, as of the last append.
    pub(crate) fn is_open(&self, id: i64) -> bool {
        let proposed = self.proposed.get(&id).into_iter().flatten().rev();
        let mut newest = proposed.filter(|it| it.is_transactional);
        match newest.next() {
            Some(it) => !matches!(it.part, Part::End(_)),
            None => self.committed.get(&id).is_some_and(|it| it.open.is_some()),
        }
    }

    /// Returns the effect that a marker with this epoch of the producer would have.
    pub(crate) fn check_marker(&self, id: i64, epoch: i16, coordinator_epoch: i32) -> Ending {
        let Some(known) = self.epoch_of(id) else { return Ending::Told(ErrorCode::None) };
        let proposed = self.proposed.get(&id).map_or(&[][..], Vec::as_slice);
        let last = proposed.iter().rev().filter_map(|it| match it.part {
            Part::End(marker) => Some(marker.coordinator_epoch),
            Part::Sent(_) | Part::Unnumbered => None,
        });
        let committed = self.committed.get(&id).map(|it| it.coordinator_epoch);
        let last = last.chain(committed).next().unwrap_or(-1);
        if coordinator_epoch < last {
            return Ending::Told(ErrorCode::TransactionCoordinatorFenced);
        }
        if epoch < known {
            return Ending::Told(ErrorCode::InvalidProducerEpoch);
        }
        match proposed.last() {
            // A newer coordinator's marker is remembered, so that an older one's is refused.
            _ if self.is_open(id) || epoch > known || coordinator_epoch > last => Ending::Append,
            Some(last) => Ending::Waits(last.index),
            None => Ending::Told(ErrorCode::None),
        }
    }

    /// Tells whether a producer of this epoch may write.
    pub(crate) fn admits(&self, id: i64, epoch: i16) -> bool {
        self.epoch_of(id).is_none_or(|known| epoch >= known)
    }

    /// Returns the transactions that are committed to the log, open ones and aborted ones.
    pub(crate) fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// Notes that the log begins at this offset now.
    pub(crate) fn trim(&mut self, log_start: i64) {
        self.transactions.trim(log_start);
    }

    /// Notes that a batch was proposed at `index`.
    pub(crate) fn propose(&mut self, index: u64, batch: &Descriptor) {
        if batch.producer_id >= 0 {
            let (epoch, is_transactional) = (batch.producer_epoch, batch.transactional);
            let proposed = Proposed { index, epoch, is_transactional, part: part_of(batch) };
            let before = self.proposed.entry(batch.producer_id).or_default();
            assert!(
                before.last().is_none_or(|last| last.index < index),
                "a producer's batches are proposed in the order of the log"
            );
            before.push(proposed);
        }
    }

    /// Forgets the batches proposed from `index` on, because the log was cut there. Returns the last one of each
    /// producer: its id and epoch, and the sequence behind.
    pub(crate) fn cut(&mut self, index: u64) -> Vec<(i64, i16, i32)> {
        let mut cut = Vec::new();
        self.proposed.retain(|id, batches| {
            let behind = batches.last().filter(|it| it.index >= index).copied();
            if let Some(Proposed { epoch, part: Part::Sent(sent), .. }) = behind {
                cut.push((*id, epoch, advance(sent.last_sequence, 1)));
            }
            batches.retain(|batch| batch.index < index);
            !batches.is_empty()
        });
        cut
    }

    /// Applies the committed batch at `index`.
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
        let epoch = batch.producer_epoch;
        let new = || Producer::new(epoch);
        let producer = self.committed.entry(batch.producer_id).or_insert_with(new);
        if producer.epoch != epoch {
            producer.epoch = epoch;
            producer.batches.clear();
        }
        producer.last_timestamp = batch.max_timestamp;
        producer.last_offset = batch.base_offset;
        producer.used_us = now_us;
        match part_of(batch) {
            Part::Sent(sent) => {
                if producer.batches.len() == PRODUCER_BATCHES_KEPT {
                    producer.batches.pop_front();
                }
                producer.batches.push_back(sent);
            }
            Part::Unnumbered => {}
            Part::End(marker) => {
                producer.coordinator_epoch = marker.coordinator_epoch;
                if let Some(first) = producer.open.take() {
                    let (id, last) = (batch.producer_id, batch.base_offset);
                    self.transactions.end(id, first, last, marker.commits);
                }
                return;
            }
        }
        if batch.transactional && producer.open.is_none() {
            producer.open = Some(batch.base_offset);
            self.transactions.open(batch.base_offset);
        }
    }

    /// Applies a committed `ExpireProducers` entry.
    pub(crate) fn expire(&mut self, index: u64, before: i64) {
        if index > self.as_of {
            let forgotten_below = &mut self.forgotten_below;
            self.committed.retain(|id, it| {
                let stays = it.last_offset >= before || it.open.is_some();
                if !stays {
                    *forgotten_below = id.saturating_add(1).max(*forgotten_below);
                }
                stays
            });
        }
    }

    /// Applies an expiry in the form of older versions.
    pub(crate) fn expire_named(&mut self, index: u64, ids: &[i64]) {
        for id in ids.iter().filter(|_| index > self.as_of) {
            if self.committed.remove(id).is_some() {
                self.forgotten_below = self.forgotten_below.max(id.saturating_add(1));
            }
        }
    }

    /// Returns the offset below which producers may be forgotten. Every producer whose last batch begins below was last
    /// used before `before_us` and has nothing under way. `None` if there is no such producer. `end` is the high
    /// watermark.
    pub(crate) fn unused_before(&self, before_us: u64, end: i64) -> Option<i64> {
        let is_used =
            |id: &i64, it: &Producer| it.used_us >= before_us || self.proposed.contains_key(id);
        // Those with an open transaction stay in any case.
        let all = || self.committed.iter().filter(|(_, it)| it.open.is_none());
        let used = all().filter(|(id, producer)| is_used(id, producer));
        let before = used.map(|(_, producer)| producer.last_offset).min().unwrap_or(end);
        all().any(|(_, it)| it.last_offset < before).then_some(before)
    }

    /// Returns the number of producers.
    pub(crate) fn len(&self) -> usize {
        self.committed.len()
    }

    /// Encodes the committed state after the entry at `applied`. The parts are the version, the last index, the id
    /// below which producers may have been forgotten, and the number of producers. For each producer follow its id,
    /// epoch, time, last offset, open transaction (or -1), coordinator epoch and batches. The aborted transactions come
    /// last.
    pub(crate) fn image(&self, applied: u64) -> Bytes {
        let size = IMAGE_PRODUCER_BYTES + IMAGE_TRANSACTION_BYTES;
        let size = size + 8 + PRODUCER_BATCHES_KEPT * IMAGE_BATCH_BYTES;
        let mut out = Vec::with_capacity(1 + 8 + 8 + 4 + self.committed.len() * size);
        out.put_u8(IMAGE_VERSION);
        out.put_u64(self.as_of.max(applied));
        out.put_i64(self.forgotten_below);
        out.put_u32(u32::try_from(self.committed.len()).expect("an id is of 8 bytes of memory"));
        for (id, producer) in &self.committed {
            out.put_i64(*id);
            out.put_i16(producer.epoch);
            out.put_u8(u8::try_from(producer.batches.len()).expect("at most five"));
            out.put_i64(producer.last_timestamp);
            out.put_i64(producer.last_offset);
            out.put_i64(producer.open.unwrap_or(-1));
            out.put_i32(producer.coordinator_epoch);
            for batch in &producer.batches {
                out.put_i32(batch.first_sequence);
                out.put_i32(batch.last_sequence);
                out.put_i64(batch.base_offset);
            }
        }
        self.transactions.write_aborted(&mut out);
        debug_assert!(Self::from_image(&out, 0).is_some(), "an image can be read again");
        out.into()
    }

    /// Reads [`Producers::image`]; no bytes at all are an empty table. `None` if they cannot be
    /// read by this version.
    pub(crate) fn from_image(image: &[u8], now_us: u64) -> Option<Self> {
        let mut producers = Self::default();
        let Some((&version, mut rest)) = image.split_first() else { return Some(producers) };
        if !READ.contains(&version) {
            return None;
        }
        if version > IMAGE_VERSION_WITHOUT_INDEX {
            producers.as_of = rest.try_get_u64().ok()?;
        }
        if version > IMAGE_VERSION_WITHOUT_FORGOTTEN {
            producers.forgotten_below = rest.try_get_i64().ok()?;
        }
        let mut left = u32::MAX;
        if version > IMAGE_VERSION_WITHOUT_TRANSACTIONS {
            left = rest.try_get_u32().ok()?;
        }
        while left > 0 && !(rest.is_empty() && version <= IMAGE_VERSION_WITHOUT_TRANSACTIONS) {
            left -= 1;
            let id = rest.try_get_i64().ok()?;
            let mut producer = Producer::new(rest.try_get_i16().ok()?);
            let count = rest.try_get_u8().ok()?;
            producer.used_us = now_us;
            if version != IMAGE_VERSION_WITHOUT_TIMES {
                producer.last_timestamp = rest.try_get_i64().ok()?;
            }
            if version > IMAGE_VERSION_WITHOUT_TRANSACTIONS {
                producer.last_offset = rest.try_get_i64().ok()?;
                producer.open = Some(rest.try_get_i64().ok()?).filter(|open| *open >= 0);
                producer.coordinator_epoch = rest.try_get_i32().ok()?;
            }
            for _ in 0..count {
                let first_sequence = rest.try_get_i32().ok()?;
                let last_sequence = rest.try_get_i32().ok()?;
                let base_offset = rest.try_get_i64().ok()?;
                producer.batches.push_back(Sent { first_sequence, last_sequence, base_offset });
                producer.last_offset = producer.last_offset.max(base_offset);
            }
            if let Some(first) = producer.open {
                producers.transactions.open(first);
            }
            producers.committed.insert(id, producer);
        }
        producers.transactions.read_aborted(rest)?;
        Some(producers)
    }

    /// Checks the proposals and the open transactions, once all entries up to `applied` are executed.
    pub(super) fn inspect(&self, applied: u64) {
        debug_assert!(
            self.proposed.values().all(|all| all.first().is_some_and(|it| it.index > applied)),
            "a batch that is applied is not proposed any more"
        );
        debug_assert!(
            self.proposed.values().all(|all| all.is_sorted_by(|a, b| a.index < b.index)),
            "a producer's proposals are in the order of the log"
        );
        debug_assert!(
            self.committed
                .values()
                .filter_map(|it| it.open)
                .all(|first| self.transactions.is_open(first)),
            "the open transaction of a producer holds back stable records"
        );
    }

    /// Returns the last batch of each producer.
    pub(crate) fn active(&self) -> impl Iterator<Item = ActiveProducer> {
        self.committed.iter().map(|(&id, producer)| ActiveProducer {
            id,
            epoch: producer.epoch,
            last_sequence: producer.batches.back().map_or(-1, |sent| sent.last_sequence),
            last_timestamp: producer.last_timestamp,
            coordinator_epoch: producer.coordinator_epoch,
            open: producer.open.unwrap_or(-1),
        })
    }

    /// Returns the committed state in words, a line for each producer and each aborted transaction.
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
            let open = producer.open.map(|first| format!("  transaction open from {first}"));
            let open = open.unwrap_or_default();
            format!("producer {id}  epoch {}{time}{open}{batches}", producer.epoch)
        };
        let forgotten = (self.forgotten_below > 0)
            .then(|| format!("producers below {} may have been forgotten", self.forgotten_below));
        let lines = self.committed.iter().map(line);
        lines.chain(forgotten).chain(self.transactions.lines()).collect()
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
            marker: None,
            log_append_time: false,
        }
    }

    fn active(epoch: i16, last_sequence: i32, last_timestamp: i64) -> ActiveProducer {
        let (coordinator_epoch, open) = (-1, -1);
        ActiveProducer { id: 7, epoch, last_sequence, last_timestamp, coordinator_epoch, open }
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
        assert_eq!((producers.next_sequence(7, 0), producers.next_sequence(7, 1)), (2, 0));
        producers.cut(3);
        assert_eq!(producers.next_sequence(7, 0), 1);
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
        let last = active(1, 8, 1_000);
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
    fn who_may_have_been_forgotten_is_said_by_the_log_and_kept_in_the_image() {
        let mut producers = Producers::default();
        let of = |id, base_offset| Descriptor { producer_id: id, ..batch(0, 0, 1, base_offset) };
        for (index, id, offset) in [(2, 7, 0), (3, 9, 1), (4, 8, 2)] {
            append(&mut producers, index, &of(id, offset));
        }
        assert!(!producers.may_have_forgotten(0), "nobody was");
        producers.expire(5, 1);
        assert!(producers.may_have_forgotten(7) && !producers.may_have_forgotten(8));
        producers.expire(6, 2);
        let image = producers.image(6);
        let mut copy = Producers::from_image(&image, 0).expect("our own version");
        assert!(copy.may_have_forgotten(9) && !copy.may_have_forgotten(10));
        assert_eq!(copy.image(6), image);
        copy.expire_named(7, &[8, 100]);
        assert!(!copy.may_have_forgotten(10), "neither is higher and was known");
        let older = [&[4][..], &image[1..9], &image[17..]].concat();
        let older = Producers::from_image(&older, 0).expect("an older version of ours");
        assert_eq!((older.len(), older.may_have_forgotten(0)), (1, false));
    }

    #[test]
    fn an_image_of_version_1_is_read_and_does_not_know_of_times() {
        let producer = [&7i64.to_be_bytes()[..], &1i16.to_be_bytes(), &[1]].concat();
        let sent = [&3i32.to_be_bytes()[..], &4i32.to_be_bytes(), &9i64.to_be_bytes()].concat();
        let image = [&[1][..], &producer, &sent].concat();
        let producers = Producers::from_image(&image, 0).expect("an older version of ours");
        let last = active(1, 4, -1);
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
