//! Followers that lack entries which are no longer in memory: a leader makes the entries again from segments, a piece
//! at a time.
//!
//! The library learns that such entries are temporarily unavailable, and asks again whenever it hears of the follower.
//! The leader reads a follower's next index from its progress, once a turn. The library's context of a fetch is of no
//! use, because it keeps its receiver to itself. One read gives both descriptors and payload. A follower has one read
//! at a time. The next read begins only when all but the last piece is acknowledged, so at most two pieces are on their
//! way.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_storage::Descriptor;
use duramen_storage::op::{Compacted, Content, LogEntry, SegmentMeta};

use super::Group;
use super::exchange::{PayloadRead, ReadFor};
use super::log::{GroupLog, Piece};
use crate::limits::{ELECTION_TICKS, LAG_TICKS};
use duramen_storage::sabotage::{self, Bug};
use raft::{ProgressState, StateRole};

/// Ticks after which a piece that is not acknowledged no longer holds up the next: it was lost, and the next one shows
/// it.
const ACKNOWLEDGED_TICKS: u64 = 10;
/// Ticks until a read that failed is tried again.
const AGAIN_TICKS: u64 = 20;

/// A read that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) ticket: u64,
    /// The first entry that is wanted.
    pub(super) index: u64,
    pub(super) term: u64,
}

/// Progress of one follower.
#[derive(Debug, Default)]
struct Follower {
    asked: Option<Asked>,
    /// The entry after the last piece, and its offset.
    next: Option<(u64, i64)>,
    /// The last entry of the piece before the last.
    before: u64,
    at_tick: u64,
    not_before_tick: u64,
}

/// All followers that are brought up from segments.
#[derive(Debug, Default)]
pub(super) struct CatchingUp {
    followers: BTreeMap<u64, Follower>,
    /// Entries that were made again.
    pub(super) rebuilt: u64,
}

impl CatchingUp {
    /// Forgets all followers, because this replica brings none up any more.
    pub(super) fn clear(&mut self) {
        self.followers.clear();
    }

    /// Forgets a follower that has all entries which are not in memory.
    pub(super) fn forget(&mut self, peer: u64) {
        self.followers.remove(&peer);
    }

    /// Tells whether to read for a follower now, which has acknowledged the log up to `matched`.
    pub(super) fn may_ask(&mut self, peer: u64, matched: u64, ticks: u64) -> bool {
        let follower = self.followers.entry(peer).or_default();
        let is_acknowledged =
            matched >= follower.before || ticks >= follower.at_tick + ACKNOWLEDGED_TICKS;
        follower.asked.is_none() && ticks >= follower.not_before_tick && is_acknowledged
    }

    /// Returns the next entry of a follower, and the offset before the entry.
    pub(super) fn next_of(&self, peer: u64) -> Option<(u64, i64)> {
        self.followers.get(&peer)?.next
    }

    pub(super) fn note_asked(&mut self, peer: u64, asked: Asked, ticks: u64) {
        let follower = self.followers.entry(peer).or_default();
        assert!(follower.asked.is_none(), "a follower has one read at a time");
        assert!(ticks >= follower.not_before_tick, "a read that failed is not repeated at once");
        follower.asked = Some(asked);
        follower.at_tick = ticks;
    }

    /// Takes the read of this ticket, if it is waited for.
    pub(super) fn take_asked(&mut self, peer: u64, ticket: u64) -> Option<Asked> {
        let follower = self.followers.get_mut(&peer)?;
        follower.asked.take_if(|asked| asked.ticket == ticket)
    }

    pub(super) fn note_piece(&mut self, peer: u64, piece: &Piece) {
        assert!(!piece.entries.is_empty(), "a piece has an entry");
        let follower = self.followers.entry(peer).or_default();
        assert!(follower.asked.is_none(), "a piece is the result of the read that was asked for");
        self.rebuilt += piece.entries.len() as u64;
        follower.before = piece.first - 1;
        follower.next = Some((piece.last() + 1, piece.end_offset));
    }

    pub(super) fn note_failed(&mut self, peer: u64, ticks: u64) {
        let follower = self.followers.entry(peer).or_default();
        follower.not_before_tick = ticks + AGAIN_TICKS;
    }
}

impl Group {
    /// Takes the result of a read from [`Turn::reads`].
    pub(crate) fn on_read(&mut self, read: ReadFor) {
        if self.failed.is_some() {
            return;
        }
        let Some(asked) = self.catching_up.take_asked(read.peer, read.ticket) else {
            return self.shipping.on_read(self.term(), read, self.raw.store());
        };
        let leads = self.raw.raft.state == StateRole::Leader && self.term() == asked.term;
        // A former leader sends nothing, a removed peer receives nothing, and trimmed entries are not there.
        let is_member = self.raw.raft.prs().get(read.peer).is_some();
        if !leads || !is_member || asked.index <= self.raw.store().history.index {
            return;
        }
        match self.raw.store().rebuild(asked.index, &read, asked.term) {
            Ok(piece) => {
                self.catching_up.note_piece(read.peer, &piece);
                self.raw.mut_store().pieces.insert(read.peer, piece);
                self.guarded(|raw| raw.raft.send_append(read.peer));
            }
            Err(why) => {
                let (replica, peer) = (self.id.0, read.peer);
                tracing::warn!(replica, peer, why, "cannot read the entries that a follower lacks");
                self.catching_up.note_failed(peer, self.pace.ticks);
            }
        }
    }

    /// Asks for what followers lack next that is not in memory, and lets go of what they were given.
    pub(super) fn bring_up(&mut self) {
        if self.failed.is_some() || self.raw.raft.state != StateRole::Leader || self.is_alone() {
            self.catching_up.clear();
            self.raw.mut_store().pieces.clear();
            return;
        }
        let progress = self.raw.raft.prs().iter();
        let wants = progress.map(|(id, it)| (*id, it.next_idx, it.matched, it.is_paused()));
        let wants: Vec<_> = wants.filter(|(id, ..)| *id != self.id.0).collect();
        let (ticks, term) = (self.pace.ticks, self.term());
        for (peer, index, matched, is_paused) in wants {
            let log = self.raw.mut_store();
            log.pieces.retain(|of, piece| *of != peer || piece.get(index).is_some());
            if index >= log.first_held() || index <= log.history.index {
                self.catching_up.forget(peer);
                continue;
            }
            let is_at_hand =
                log.pieces.contains_key(&peer) || log.history.internal_at(index).is_some();
            let heard = self.pace.heard.get(&peer);
            let is_there = heard.is_some_and(|at| at + 2 * ELECTION_TICKS as u64 >= ticks);
            let is_busy = is_paused || self.shipping.has_waiting(peer);
            if is_at_hand || !is_there || is_busy || !self.catching_up.may_ask(peer, matched, ticks)
            {
                continue;
            }
            let (from, pass) = log.place_of(index, self.catching_up.next_of(peer));
            let end = log.offset_after(log.first_held() - 1).expect("that is where memory begins");
            assert!(from < end, "entry {index} is a batch between offsets {from} and {end}");
            let ticket = self.shipping.next_ticket();
            let bytes = self.memory.read_bytes;
            self.shipping.reads.push(PayloadRead { peer, from, pass, end, bytes, ticket });
            self.catching_up.note_asked(peer, Asked { ticket, index, term }, ticks);
        }
    }

    /// Prepares for a compaction below an offset, by the entry at `compaction`. The leader gives no entries there to
    /// followers any more.
    pub(crate) fn compact(&mut self, below: i64, compaction: u64) {
        self.raw.mut_store().compact(below, compaction);
    }

    /// Notes that the log is compacted: these segments have replaced all below.
    pub(crate) fn note_compacted(&mut self, compacted: Compacted, made: &[SegmentMeta]) {
        self.compact(compacted.below, compacted.index);
        let log = self.raw.mut_store();
        assert!(
            compacted.index > log.compacted.index,
            "compactions end in the order of their entries"
        );
        assert!(
            compacted.below >= log.compacted.below,
            "a compaction takes all in that earlier ones did"
        );
        assert!(
            made.iter().all(|it| it.base_offset < compacted.below),
            "a compaction makes no segment behind its end"
        );
        log.compacted = compacted;
        log.segments.retain(|_, base_offset| *base_offset >= compacted.below);
        log.segments.extend(made.iter().map(|it| (it.first_index, it.base_offset)));
    }

    /// Tells whether every follower that is there has an entry. The leader does not wait for a follower that is away,
    /// nor for one whose log is to begin anew.
    pub(crate) fn is_everywhere(&self, index: u64) -> bool {
        let since = self.pace.ticks.saturating_sub(LAG_TICKS);
        let mut progress = self.raw.raft.prs().iter();
        progress.all(|(id, it)| {
            let is_there = self.pace.heard.get(id).is_some_and(|at| *at >= since);
            let is_to_begin = it.state == ProgressState::Snapshot;
            *id == self.id.0 || !is_there || is_to_begin || it.matched >= index
        })
    }

    /// Trims offsets below: the leader gives entries that lie wholly below to no follower any more.
    pub(crate) fn trim(&mut self, log_start: i64) {
        let applied = self.applied.0;
        self.raw.mut_store().trim(log_start, applied);
    }
}

impl GroupLog {
    /// Makes the entries from `index` on again, from batches that begin at `offset`. Every field must be what it was
    /// when they were appended; whatever does not fit is an error, and nothing is sent.
    pub(super) fn rebuild(
        &self,
        index: u64,
        read: &ReadFor,
        own_term: u64,
    ) -> Result<Piece, String> {
        let mut read_batches = batches(read.batches.clone()?);
        let mut begins_segment = read.begins_segment && !sabotage::is(Bug::SegmentStartNotRestored);
        let mut end_offset = read.from;
        let mut entries = Vec::new();
        let odd = |at: u64, what: &str| Err(format!("entry {at} cannot be made again: {what}"));
        for at in index..self.first_held() {
            let Some(mut term) = self.term_of(at) else { return odd(at, "its term is forgotten") };
            if let Some(past) = self.history.internal_at(at) {
                if past.end_offset != end_offset || past.entry.term != term {
                    return odd(at, "an internal entry is not where it was");
                }
                entries.push((past.entry.clone(), Bytes::new()));
                continue;
            }
            let Some(batch) = read_batches.next() else { break };
            let batch = batch.map_err(|error| error.to_string())?;
            let descriptor = Descriptor::of_batch(batch.bytes(), begins_segment)
                .map_err(|error| error.to_string())?;
            begins_segment = false;
            let epoch = u64::try_from(batch.header().partition_leader_epoch).ok();
            if descriptor.base_offset != end_offset || epoch != Some(term) {
                return odd(at, "a batch of another offset or term is there");
            }
            if sabotage::is(Bug::TermNotRestored) {
                term = own_term;
            }
            end_offset = descriptor.end_offset();
            let entry = LogEntry { index: at, term, content: Content::Batch(descriptor) };
            entries.push((entry, batch.bytes().clone()));
        }
        let meets_memory = index + entries.len() as u64 == self.first_held();
        if entries.is_empty()
            || meets_memory && self.offset_after(self.first_held() - 1) != Some(end_offset)
        {
            return odd(index, "the batches do not lead to what is in memory");
        }
        debug_assert!(
            entries.iter().zip(index..).all(|((entry, _), at)| entry.index == at),
            "a piece has no gap"
        );
        Ok(Piece { first: index, entries, end_offset })
    }

    /// Returns the start of a read for an entry: an offset, and the number of batches from there that come before the
    /// entry.
    pub(super) fn place_of(&self, index: u64, hint: Option<(u64, i64)>) -> (i64, u64) {
        let history = &self.history;
        assert!(
            (history.index + 1..self.first_held()).contains(&index),
            "only entries that are not in memory are read, and can be had again"
        );
        let mut known = (history.index + 1, history.end_offset);
        let run = self.runs.partition_point(|run| run.first_index <= index).checked_sub(1);
        let run = run.map(|at| (self.runs[at].first_index, self.runs[at].start_offset));
        let segment = self.segments.range(..=index).next_back().map(|(index, at)| (*index, *at));
        let internal = history.internal_before(index);
        let internal = internal.map(|past| (past.entry.index + 1, past.end_offset));
        for place in [run, segment, internal, hint].into_iter().flatten() {
            if (known.0..=index).contains(&place.0) {
                known = place;
            }
        }
        (known.1, index - known.0 - history.internal_count(known.0, index))
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::batch::{self, TimestampType};
    use duramen_protocol::records::{BatchBuilder, NewRecord};
    use duramen_storage::history::History;
    use duramen_storage::op::{ConfState, HardState};

    use super::*;
    use crate::partition::stamp;
    use crate::prng::Prng;

    /// An entry as it was appended, with its payload.
    type Appended = (LogEntry, Bytes);

    fn small(number: u64) -> usize {
        usize::try_from(number).expect("small")
    }

    /// Returns a batch with any attributes, as some leader appended it.
    fn any_batch(chance: &mut Prng, offset: i64, term: u64, begins: bool) -> (Descriptor, Bytes) {
        let mut builder = BatchBuilder::new();
        for _ in 0..=chance.below(4) {
            let value = vec![7; small(chance.below(60))];
            let timestamp = i64::try_from(chance.below(1 << 40)).expect("small");
            let record = NewRecord { timestamp, value: Some(&value), ..NewRecord::default() };
            builder.push(&record).expect("a record");
        }
        let mut bytes = builder.build_mut().expect("a batch");
        // Transactional, control: the records need not make sense.
        let flags = u8::try_from(chance.below(4)).expect("small") << 4;
        bytes[22] |= flags;
        let id = i64::try_from(chance.below(3)).expect("small") - 1;
        bytes[43..51].copy_from_slice(&id.to_be_bytes());
        bytes[51..53]
            .copy_from_slice(&i16::try_from(chance.below(9)).expect("small").to_be_bytes());
        bytes[53..57]
            .copy_from_slice(&i32::try_from(chance.below(99)).expect("small").to_be_bytes());
        let kinds = [TimestampType::CreateTime, TimestampType::LogAppendTime];
        let kind = kinds[small(chance.below(2))];
        batch::restamp(&mut bytes, kind, i64::try_from(chance.below(1 << 40)).expect("small"));
        let bytes = stamp(bytes, offset, i32::try_from(term).expect("small"));
        (Descriptor::of_batch(&bytes, begins).expect("a batch"), bytes)
    }

    /// Returns a log of several terms and segments, with internal entries everywhere.
    fn any_log(chance: &mut Prng) -> (GroupLog, Vec<Appended>) {
        let history = History::new(1, 1, 0);
        let mut log = GroupLog::new(HardState::default(), ConfState::default(), history, (1, 1, 0));
        let (mut term, mut all) = (1, Vec::new());
        for index in 2..2 + 20 + chance.below(60) {
            let is_first_of_term = chance.below(8) == 0 || index == 2;
            term += u64::from(is_first_of_term) * (1 + chance.below(2));
            let (content, payload) = if is_first_of_term || chance.below(6) == 0 {
                let body = vec![1; small(chance.below(5))];
                (Content::Internal([&[1, 0][..], &body].concat().into()), Bytes::new())
            } else {
                let begins = log.end_offset() == 0 || chance.below(7) == 0;
                let (descriptor, bytes) = any_batch(chance, log.end_offset(), term, begins);
                (Content::Batch(descriptor), bytes)
            };
            let entry = LogEntry { index, term, content };
            log.append(entry.clone());
            all.push((entry, payload));
        }
        (log, all)
    }

    /// Returns whole batches of one segment, as storage reads them.
    fn read(all: &[Appended], from: i64, pass: u64, end: i64, bytes_max: usize) -> ReadFor {
        let batches = all.iter().filter_map(|(entry, payload)| match &entry.content {
            Content::Batch(batch) => Some((batch, payload)),
            Content::Internal(_) => None,
        });
        let at_place = batches.skip_while(|(batch, _)| batch.base_offset < from);
        let mut left =
            at_place.skip(small(pass)).take_while(|(batch, _)| batch.end_offset() <= end);
        let (first, payload) = left.next().expect("there is a batch");
        let mut bytes = payload.to_vec();
        for (batch, payload) in left {
            if batch.starts_segment || bytes.len() + payload.len() > bytes_max {
                break;
            }
            bytes.extend_from_slice(payload);
        }
        let (from, begins_segment) = (first.base_offset, first.starts_segment);
        ReadFor { peer: 2, ticket: 1, from, begins_segment, batches: Ok(bytes.into()) }
    }

    #[test]
    fn every_entry_is_made_again_as_it_was_appended() {
        let mut made = 0;
        for seed in 0..300 {
            let mut chance = Prng::stream(seed, 1);
            let (mut log, all) = any_log(&mut chance);
            let applied = 2 + chance.below(all.len() as u64);
            log.forget(applied, 1, 1);
            let (first_held, mut hint) = (log.first_held(), None);
            let end = log.offset_after(first_held - 1).expect("it is where memory begins");
            let mut index = 2;
            while index < first_held {
                // Those that are not batches are there already, and need no read.
                if log.history.internal_at(index).is_some() {
                    assert_eq!(log.at_hand(index), Some(&all[small(index - 2)].0));
                    index += 1;
                    continue;
                }
                let (from, pass) = log.place_of(index, hint);
                let came = read(&all, from, pass, end, small(chance.below(500)));
                let piece = log.rebuild(index, &came, 0).expect("it fits");
                for (made, appended) in piece.entries.iter().zip(&all[small(index - 2)..]) {
                    assert_eq!(made, appended, "seed {seed}");
                }
                made += piece.entries.len();
                index = piece.last() + 1;
                // Sometimes another follower comes to the same place.
                hint = (chance.below(3) > 0).then_some((index, piece.end_offset));
            }
        }
        assert!(made > 5000, "{made} is not much");
    }

    #[test]
    fn what_does_not_fit_is_not_sent() {
        let mut refused = 0;
        for seed in 0..200 {
            let mut chance = Prng::stream(seed, 2);
            let (mut log, all) = any_log(&mut chance);
            log.forget(all.len() as u64, 1, 1);
            let end = log.offset_after(log.first_held() - 1).expect("it is where memory begins");
            let batches = (2..log.first_held()).filter(|at| log.history.internal_at(*at).is_none());
            let batches: Vec<u64> = batches.collect();
            let Some(&index) = batches.first() else { continue };
            // One batch too many was passed over, so that every index after it would stand for another batch.
            let (from, pass) = log.place_of(index, None);
            if batches.len() < 3 {
                continue;
            }
            let came = read(&all, from, pass + 1, end, 1 << 20);
            if let Ok(piece) = log.rebuild(index, &came, 0) {
                // Nothing of it showed the mistake: it is in one term, and ends before what is known.
                let internal = log.history.internal();
                let known = internal.filter(|it| piece.get(it.entry.index).is_some()).count();
                assert_eq!(known, 0, "seed {seed}: an internal entry tells where it is");
            } else {
                refused += 1;
            }
        }
        assert!(refused > 50, "{refused} is not much");
    }

    #[test]
    fn a_trim_lets_go_of_what_lies_below_its_segment() {
        for seed in 0..100 {
            let mut chance = Prng::stream(seed, 3);
            let (mut log, all) = any_log(&mut chance);
            let applied = all.len() as u64;
            log.forget(applied, 1, 1);
            let start =
                i64::try_from(chance.below(log.end_offset().unsigned_abs())).expect("small");
            let expected = log.segments.iter().rev().find(|(_, base)| **base <= start);
            let expected = expected.filter(|(index, _)| **index <= applied).map(|it| *it.0);
            log.trim(start, applied);
            log.trim(start, applied);
            let Some(first) = expected.filter(|first| *first > log.history.index) else { continue };
            let is_first = log.segments.keys().next() == Some(&first);
            assert!(is_first, "seed {seed}: {first} is where the log begins");
            for index in log.history.index..=log.last() {
                let term = if index < 2 { 1 } else { all[small(index - 2)].0.term };
                assert_eq!(log.term_of(index), Some(term), "seed {seed}: term of {index}");
            }
        }
    }

    #[test]
    fn a_trim_lets_go_of_all_below_a_segment_whose_first_batch_is_not_committed() {
        let mut cut = 0;
        for seed in 0..200 {
            let mut chance = Prng::stream(seed, 4);
            let (mut log, all) = any_log(&mut chance);
            let Some((index, base)) = log.segments.iter().next_back().map(|it| (*it.0, *it.1))
            else {
                continue;
            };
            // Some of what is not applied may be no batch.
            let is_batch = |at: &u64| matches!(all[small(at - 2)].0.content, Content::Batch(_));
            let last_batch = (2..index).rev().find(is_batch).unwrap_or(1);
            let applied = last_batch + chance.below(index - last_batch);
            log.forget(applied, 1, 1);
            if applied < 2 || log.segments.len() < 2 {
                continue;
            }
            log.trim(base, applied);
            cut += 1;
            assert_eq!((log.history.index, log.history.end_offset), (applied, base), "seed {seed}");
            assert!(log.can_be_given(), "seed {seed}: whoever begins there has all");
            let rest: Vec<_> = (applied + 1..=log.last()).map(|at| log.get(at).cloned()).collect();
            assert!(rest.iter().all(Option::is_some), "seed {seed}: the rest is in memory");
        }
        assert!(cut > 100, "{cut} is not much");
    }

    #[test]
    fn a_log_that_is_compacted_to_its_end_can_be_given_from_before_the_compact_entry() {
        let mut compacted = 0;
        for seed in 0..200 {
            let mut chance = Prng::stream(seed, 5);
            let (mut log, _) = any_log(&mut chance);
            let (below, compaction) = (log.end_offset(), log.last() + 1);
            let term = log.term_of(log.last()).expect("the last one's");
            let entry = |index| {
                let content = Content::Internal(Bytes::from_static(&[1, 0]));
                LogEntry { index, term, content }
            };
            if below == 0 {
                continue;
            }
            compacted += 1;
            log.append(entry(compaction));
            if chance.below(2) == 0 {
                log.append(entry(compaction + 1));
            }
            let is_after = chance.below(2) == 0;
            if is_after {
                let (batch, _) = any_batch(&mut chance, below, term, true);
                let index = log.last() + 1;
                log.append(LogEntry { index, term, content: Content::Batch(batch) });
            }
            log.compact(below, compaction);
            log.compacted = Compacted { index: compaction, below, tombstones_below: 0 };
            assert_eq!((log.history.index, log.history.end_offset), (compaction - 1, below));
            assert!(log.can_be_given(), "seed {seed}");
            let given = log.prefix(0).expect("all that is before is kept");
            assert_eq!(given.compacted, log.compacted, "seed {seed}");
            assert!(given.segments.iter().all(|it| it.base_offset < below), "seed {seed}");
        }
        assert!(compacted > 100, "{compacted} is not much");
    }
}
