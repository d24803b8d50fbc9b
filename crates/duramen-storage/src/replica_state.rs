//! # Room card: replica state
//!
//! Purpose:    the journal's state of one replica, as a value.
//! Owns:       the fold of journal records: the same code runs live and in replay.
//! Interface:  [`ReplicaState`] and its transitions.
//! Invariants: `entries` are dense from `prev_index + 1`; segments are in order and contiguous; no cut removes the
//!             entry at the image's index.
//! Never:      I/O.
//! Tests:      below; and every crash in `duramen-sim`.
//! Start at:   [`ReplicaState::append`].

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes};

use crate::Descriptor;
use crate::encoding::{self, ImageSource};
use crate::format::{DELETED, GIVEN, Malformed, count, stem_of_dir};
use crate::history::{self, History, PastEntry};
use crate::manifest::hex;
use crate::op::{
    Beginning, Compacted, ConfState, Content, Given, HardState, Identity, LogEntry,
    RecoveredReplica, ReplicaId, SegmentMeta, TermRun,
};
use crate::sabotage::{self, Bug};

/// A sparse index entry: the batch at `position` ends with `base_offset + offset_delta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) offset_delta: u32,
    pub(crate) position: u32,
}

/// A time index entry: up to `base_offset + offset_delta`, no record is later than `timestamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub(crate) timestamp: i64,
    pub(crate) offset_delta: u32,
}

/// One segment. Index entries live here until a checkpoint writes them to their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentState {
    pub(crate) base_offset: i64,
    pub(crate) first_index: u64,
    pub(crate) size: u64,
    pub(crate) max_timestamp: i64,
    /// Entries already durable in `.index` and `.timeindex`.
    pub(crate) index_flushed: u32,
    pub(crate) times_flushed: u32,
    /// Entries that are not in those files yet.
    pub(crate) index_tail: Vec<IndexEntry>,
    pub(crate) times_tail: Vec<TimeEntry>,
    /// Position and timestamp of the last flushed entries.
    pub(crate) flushed_position: u32,
    pub(crate) flushed_timestamp: i64,
    /// The offset delta at which `max_timestamp` was reached.
    pub(crate) max_timestamp_delta: u32,
    /// The same two values up to the snapshot, where no cut reaches.
    pub(crate) image_max_timestamp: i64,
    pub(crate) image_max_delta: u32,
    /// Index of the entry by which compaction made the segment; 0 if the segment is as it was appended.
    pub(crate) generation: u64,
    /// CRC of the whole index, which lists every batch, of a segment that compaction made.
    pub(crate) index_crc: u32,
}

impl SegmentState {
    pub(crate) fn new(base_offset: i64, first_index: u64) -> Self {
        Self {
            base_offset,
            first_index,
            max_timestamp: -1,
            flushed_timestamp: -1,
            image_max_timestamp: -1,
            ..Self::default()
        }
    }

    /// Tells whether an end offset can be expressed relative to the base offset.
    fn reaches(&self, end_offset: i64) -> bool {
        end_offset - self.base_offset <= i64::from(u32::MAX)
    }

    /// Tells whether the parts of a decoded segment, which ends before `end`, fit each other.
    fn holds_together(&self, end: i64) -> bool {
        let positions = self.index_tail.iter().map(|entry| entry.position);
        let mut at = self.flushed_position;
        let forward = positions.into_iter().all(|next| std::mem::replace(&mut at, next) <= next);
        let is_emptied = self.generation > 0 && self.size == 0;
        let size = (u64::from(at) < self.size || is_emptied) && self.size < 1 << 32;
        (0..end).contains(&self.base_offset) && self.reaches(end) && forward && size
    }

    pub(crate) fn delta(&self, offset: i64) -> u32 {
        u32::try_from(offset - self.base_offset).expect("the leader rolls before deltas overflow")
    }

    fn append(&mut self, batch: &crate::Descriptor, index_interval: u32) {
        let last_delta = self.delta(batch.end_offset() - 1);
        if batch.max_timestamp > self.max_timestamp {
            self.max_timestamp = batch.max_timestamp;
            self.max_timestamp_delta = last_delta;
        }
        let position = u32::try_from(self.size).expect("segments stay below 2 GiB");
        let indexed = self.index_tail.last().map_or(self.flushed_position, |it| it.position);
        if position - indexed > index_interval {
            self.index_tail.push(IndexEntry { offset_delta: last_delta, position });
            self.index_time();
        }
        self.size += u64::from(batch.length);
    }

    /// Returns the facts that the node needs about the segment.
    pub(crate) fn meta(&self) -> SegmentMeta {
        SegmentMeta {
            base_offset: self.base_offset,
            first_index: self.first_index,
            size: self.size,
            max_timestamp: self.max_timestamp,
        }
    }

    fn index_time(&mut self) {
        let indexed = self.times_tail.last().map_or(self.flushed_timestamp, |it| it.timestamp);
        if self.max_timestamp > indexed {
            self.times_tail.push(TimeEntry {
                timestamp: self.max_timestamp,
                offset_delta: self.max_timestamp_delta,
            });
        }
    }

    /// Drops the first entries of both tails, which are in their files now.
    pub(crate) fn flushed(&mut self, index: usize, times: usize) {
        if let Some(entry) = self.index_tail.drain(..index).next_back() {
            let is_next = entry.position >= self.flushed_position;
            assert!(is_next, "index entries are in order of position");
            self.flushed_position = entry.position;
        }
        if let Some(entry) = self.times_tail.drain(..times).next_back() {
            self.flushed_timestamp = entry.timestamp;
        }
        self.index_flushed += u32::try_from(index).expect("fewer than a segment has bytes");
        self.times_flushed += u32::try_from(times).expect("fewer than a segment has bytes");
    }

    /// Drops what lies at or past `end_offset`; the caller has set `size`.
    fn cut_indexes(&mut self, end_offset: i64) {
        let end = self.delta(end_offset);
        self.index_tail.retain(|entry| entry.offset_delta < end);
        self.times_tail.retain(|entry| entry.offset_delta < end);
    }
}

/// Version of an encoded State.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StateVersion {
    /// Without [`History`].
    One,
    Two,
    /// With the compaction of the log.
    Three,
    /// Like [`Self::Three`], with segments of a feed: an earlier build would remove their files as leftovers.
    Four,
}

/// That a log was compacted: segments that take the place of all below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    pub(crate) compacted: Compacted,
    /// The last entry below, and its term.
    pub(crate) last: (u64, u64),
    pub(crate) segments: Vec<SegmentState>,
}

/// All that is durable of a replica, but for the bytes in its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaState {
    pub(crate) replica: ReplicaId,
    pub(crate) identity: Identity,
    pub(crate) hard_state: HardState,
    pub(crate) conf: ConfState,
    pub(crate) prev_index: u64,
    pub(crate) prev_term: u64,
    pub(crate) prev_end_offset: i64,
    pub(crate) image: ImageSource,
    pub(crate) entries: VecDeque<LogEntry>,
    pub(crate) term_runs: Vec<TermRun>,
    pub(crate) log_start: i64,
    pub(crate) end_offset: i64,
    pub(crate) segments: Vec<SegmentState>,
    /// Payload up to this index was synced in its segments ([`crate::record::Record::Synced`]).
    pub(crate) synced_index: u64,
    /// History of the entries up to the snapshot.
    pub(crate) history: History,
    /// Extent of the log's compaction.
    pub(crate) compacted: Compacted,
}

impl ReplicaState {
    /// Creates an empty replica. Index 1 of term 1 is the (empty) beginning of every group. A replica that does not
    /// know its membership lacks even that. So it always needs a snapshot, and gets its membership from it.
    pub(crate) fn new(replica: ReplicaId, identity: Identity, conf: ConfState) -> Self {
        let begun = u64::from(!conf.voters.is_empty());
        let hard_state = HardState { term: begun, vote: 0, commit: begun };
        let image = ImageSource::Inline(Bytes::new());
        let (index, term, end_offset) = (begun, begun, 0);
        Self::begin(replica, identity, hard_state, (index, term, end_offset), (conf, image))
    }

    fn begin(
        replica: ReplicaId,
        identity: Identity,
        hard_state: HardState,
        (index, term, end_offset): (u64, u64, i64),
        (conf, image): (ConfState, ImageSource),
    ) -> Self {
        Self {
            replica,
            identity,
            hard_state,
            conf,
            prev_index: index,
            prev_term: term,
            prev_end_offset: end_offset,
            image,
            entries: VecDeque::new(),
            term_runs: Vec::new(),
            log_start: end_offset,
            end_offset,
            segments: Vec::new(),
            synced_index: index,
            history: History::new(index, term, end_offset),
            compacted: Compacted::default(),
        }
    }

    /// Returns the same replica, with a log that begins somewhere else.
    pub(crate) fn reset(&self, beginning: &Beginning, image: ImageSource) -> Self {
        let Beginning { index, term, end_offset, conf, .. } = beginning;
        // The vote stays: the replica must not vote twice in one term.
        let mut hard_state = self.hard_state;
        hard_state.term = hard_state.term.max(*term);
        hard_state.commit = *index;
        let (id, identity) = (self.replica, self.identity.clone());
        Self::begin(id, identity, hard_state, (*index, *term, *end_offset), (conf.clone(), image))
    }

    /// Takes the fed part of the log, which stays before the new beginning.
    pub(crate) fn take_given(&mut self, given: &Given, segments: Vec<SegmentState>) {
        assert!(self.segments.is_empty(), "only a log that begins anew takes what is given");
        debug_assert!(
            segments.iter().all(|it| it.generation & GIVEN != 0),
            "given segments are known by their generation"
        );
        self.log_start = given.log_start.min(self.end_offset);
        self.term_runs.clone_from(&given.runs);
        self.compacted = given.compacted;
        self.segments = segments;
    }

    /// Returns the directory, relative to the data directory.
    pub(crate) fn dir(&self) -> String {
        self.identity.dir()
    }

    /// Returns the directory's name during its removal. No topic can have that name. No other replica has it either,
    /// though one of the same partition may come and go while a slow disk still removes this one's files.
    pub(crate) fn deleted_dir(&self) -> String {
        let topic_id = hex(&self.identity.topic_id);
        format!("{}.{topic_id}-{}{DELETED}", stem_of_dir(&self.dir()), self.replica.0)
    }

    pub(crate) fn last_index(&self) -> u64 {
        self.prev_index + self.entries.len() as u64
    }

    pub(crate) fn last_term(&self) -> u64 {
        self.entries.back().map_or(self.prev_term, |entry| entry.term)
    }

    /// Tells whether `entry` may follow: it has the next index, and a batch has the next offset.
    pub(crate) fn accepts(&self, entry: &LogEntry) -> bool {
        entry.index == self.last_index() + 1
            && entry.term >= self.last_term()
            && match &entry.content {
                Content::Internal(_) => true,
                Content::Batch(batch) => batch.base_offset == self.end_offset && self.fits(batch),
            }
    }

    /// Tells whether the batch's position and offset delta can be expressed. The leader rolls the segment before they
    /// overflow.
    fn fits(&self, batch: &Descriptor) -> bool {
        match self.segments.last() {
            Some(last) if !batch.starts_segment => {
                last.size < 1 << 31 && last.reaches(batch.end_offset())
            }
            _ => true,
        }
    }

    /// Appends one entry. For a batch, returns `(segment base offset, position)` of its payload.
    pub(crate) fn append(&mut self, entry: LogEntry, index_interval: u32) -> Option<(i64, u64)> {
        assert!(self.accepts(&entry), "entry {} does not follow the log", entry.index);
        if self.term_runs.last().is_none_or(|run| run.term != entry.term) {
            let (term, first_index) = (entry.term, entry.index);
            self.term_runs.push(TermRun { term, first_index, start_offset: self.end_offset });
        }
        let place = if let Content::Batch(batch) = &entry.content {
            if batch.starts_segment || self.segments.is_empty() {
                if let Some(sealed) = self.segments.last_mut() {
                    sealed.index_time();
                }
                self.segments.push(SegmentState::new(batch.base_offset, entry.index));
            }
            let segment = self.segments.last_mut().expect("just made sure of one");
            assert!(segment.base_offset <= batch.base_offset, "a batch goes into the last segment");
            let position = segment.size;
            segment.append(batch, index_interval);
            self.end_offset = batch.end_offset();
            Some((segment.base_offset, position))
        } else {
            None
        };
        self.entries.push_back(entry);
        place
    }

    /// Cuts the log from `from` on: a Raft conflict, or a tear found by recovery.
    pub(crate) fn truncate(&mut self, from: u64) {
        assert!(from > self.prev_index, "the image is never cut");
        while self.last_index() >= from {
            let entry = self.entries.pop_back().expect("last_index counts the entries");
            if let Content::Batch(batch) = entry.content {
                let segment = self.segments.last_mut().expect("a batch lies in a segment");
                let is_there = segment.base_offset <= batch.base_offset;
                assert!(is_there, "the last batch lies in the last segment");
                segment.size -= u64::from(batch.length);
                if segment.base_offset == batch.base_offset {
                    assert_eq!(segment.size, 0, "a segment begins with its first batch");
                    self.segments.pop();
                } else {
                    segment.cut_indexes(batch.base_offset);
                }
                self.end_offset = batch.base_offset;
            }
        }
        assert!(self.end_offset >= self.prev_end_offset, "a cut ends behind the snapshot");
        self.assert_end();
        self.recompute_max_timestamp();
        self.term_runs.retain(|run| run.first_index < from);
        self.synced_index = self.synced_index.min(self.last_index());
        self.hard_state.commit = self.hard_state.commit.min(self.last_index());
    }

    fn assert_end(&self) {
        let last = self.segments.last();
        assert!(last.is_none_or(|it| it.base_offset < self.end_offset), "a segment has offsets");
    }

    /// Computes, after a cut, the largest timestamp in the rest of the last segment.
    fn recompute_max_timestamp(&mut self) {
        let Some(segment) = self.segments.last_mut() else { return };
        segment.max_timestamp = segment.image_max_timestamp;
        segment.max_timestamp_delta = segment.image_max_delta;
        for entry in &self.entries {
            if let Content::Batch(batch) = &entry.content
                && batch.base_offset >= segment.base_offset
                && batch.max_timestamp > segment.max_timestamp
            {
                segment.max_timestamp = batch.max_timestamp;
                segment.max_timestamp_delta = segment.delta(batch.end_offset() - 1);
            }
        }
    }

    /// Takes the view's snapshot at `index`: entries up to it are no longer needed.
    pub(crate) fn set_image(&mut self, index: u64, image: ImageSource) {
        if index < self.prev_index || index > self.last_index() {
            return; // older than the one we have, or of a suffix that was cut since
        }
        while self.prev_index < index {
            let entry = self.entries.pop_front().expect("index is within the log");
            assert_eq!(entry.index, self.prev_index + 1, "entries are dense behind the snapshot");
            self.prev_index = entry.index;
            self.prev_term = entry.term;
            self.history.note(&entry, self.prev_end_offset);
            let Content::Batch(batch) = entry.content else { continue };
            self.prev_end_offset = batch.end_offset();
            let after = self.segments.partition_point(|it| it.base_offset <= batch.base_offset);
            assert!(after > 0, "a batch lies in a segment");
            let segment = &mut self.segments[after - 1];
            if batch.max_timestamp > segment.image_max_timestamp {
                segment.image_max_timestamp = batch.max_timestamp;
                segment.image_max_delta = segment.delta(batch.end_offset() - 1);
            }
        }
        assert!(self.prev_end_offset <= self.end_offset, "a snapshot ends within the log");
        self.image = image;
        // All entries up to a snapshot's index are committed, even if no record says so.
        self.hard_state.commit = self.hard_state.commit.max(index);
    }

    /// Takes a membership, unless a later one is known already.
    pub(crate) fn set_conf(&mut self, conf: &ConfState) {
        if conf.applied >= self.conf.applied {
            self.conf = conf.clone();
        }
    }

    /// Raises the log's start. [`ReplicaState::remove_dead_segments`] then finds what to remove.
    pub(crate) fn trim(&mut self, log_start: i64) {
        self.log_start = self.log_start.max(log_start.min(self.end_offset));
    }

    /// Takes out the segments that lie wholly below the log's start. The last one stays, and so
    /// does whatever a Raft conflict could still reach.
    pub(crate) fn remove_dead_segments(&mut self) -> Vec<SegmentState> {
        let dead = self
            .segments
            .windows(2)
            .take_while(|pair| {
                pair[1].base_offset <= self.log_start && pair[1].base_offset <= self.prev_end_offset
            })
            .count();
        let dead = self.segments.drain(..dead).collect::<Vec<_>>();
        let first = self.segments.first().map_or(self.end_offset, |first| first.base_offset);
        assert!(first <= self.prev_end_offset, "what a conflict can reach lies in segments");
        if !dead.is_empty() {
            self.forget_removed();
        }
        dead
    }

    /// Tells whether the last segment has no use any more: all offsets are gone, and no Raft conflict could reach it.
    pub(crate) fn is_spent(&self) -> bool {
        self.segments.len() == 1
            && self.log_start >= self.end_offset
            && self.prev_end_offset >= self.end_offset
    }

    /// Takes out the last segment, if it is spent. The next batch begins one, named by its offset.
    pub(crate) fn empty(&mut self) -> Option<SegmentState> {
        let spent = self.is_spent().then(|| self.segments.pop()).flatten()?;
        assert_eq!(self.prev_end_offset, self.end_offset, "no batch lies behind an emptied log");
        self.forget_removed();
        Some(spent)
    }

    /// Forgets the history of removed entries.
    fn forget_removed(&mut self) {
        let first = self.segments.first().map(|first| (first.first_index, first.base_offset));
        let (first_index, offset) = first.unwrap_or((self.prev_index + 1, self.end_offset));
        let before = (first_index - 1).min(self.prev_index);
        let run = self.term_runs.iter().rev().find(|run| run.first_index <= before);
        let term = run.map_or(self.history.term, |run| run.term);
        self.history.begin_after(before, term, offset);
        assert!(self.history.index <= self.prev_index, "the history ends at the snapshot");
        history::forget_runs(&mut self.term_runs, self.history.index.min(first_index));
    }

    /// Returns the last entry that a compaction takes in, and its term. That is the entry before the segment that
    /// begins where the compaction ends, or before the Compact entry, if that came first. Returns `None` if no
    /// segment begins or ends there, or if a Raft conflict could still reach that place.
    pub(crate) fn last_taken(&self, compacted: &Compacted) -> Option<(u64, u64)> {
        assert!(compacted.index > 0, "an entry says that a log is compacted");
        let below = compacted.below;
        let next = self.segments.iter().find(|it| it.base_offset == below);
        let is_place = next.is_some() || below == self.end_offset;
        if !is_place || below > self.prev_end_offset {
            return None;
        }
        let before = next.map_or(u64::MAX, |next| next.first_index - 1);
        let most = compacted.index - u64::from(!sabotage::is(Bug::EndTakesEntry));
        let last = before.min(most).min(self.prev_index);
        let run = self.term_runs.iter().rev().find(|run| run.first_index <= last);
        Some((last, run.map_or(self.history.term, |run| run.term)))
    }

    /// Puts segments that compaction made in the place of all before. Returns false, and changes nothing, if they do
    /// not fit.
    pub(crate) fn replace(&mut self, replacement: &Replacement) -> bool {
        let Replacement { compacted, last, segments } = replacement;
        let first = segments.first().map(|it| it.base_offset);
        let is_same_start =
            first.is_some() && first == self.segments.first().map(|it| it.base_offset);
        if self.last_taken(compacted) != Some(*last) || !is_same_start {
            return false;
        }
        let after = self.segments.partition_point(|it| it.base_offset < compacted.below);
        self.segments.splice(..after, segments.iter().cloned());
        debug_assert!(
            self.segments.is_sorted_by(|a, b| a.base_offset < b.base_offset),
            "segments are in order"
        );
        assert!(compacted.below <= self.prev_end_offset, "no conflict reaches what is replaced");
        self.assert_end();
        self.compacted = *compacted;
        self.history.begin_after(last.0, last.1, compacted.below);
        true
    }

    /// Tells whether a dead segment stays only until there is a snapshot behind it.
    pub(crate) fn removal_waits_for_image(&self) -> bool {
        match &self.segments[..] {
            [] => false,
            [_] => self.log_start >= self.end_offset && !self.is_spent(),
            [_, next, ..] => next.base_offset <= self.log_start,
        }
    }

    /// Tells whether the view may take such a snapshot: all batches of the log are known to be committed.
    pub(crate) fn may_be_imaged(&self) -> bool {
        let is_batch = |entry: &&LogEntry| matches!(entry.content, Content::Batch(_));
        let last = self.entries.iter().rev().find(is_batch);
        last.is_none_or(|last| last.index <= self.hard_state.commit)
    }

    pub(crate) fn recovered(&self, image: Bytes, damage: Option<String>) -> RecoveredReplica {
        let (commit, log) = (self.hard_state.commit, self.prev_index..=self.last_index());
        assert!(log.contains(&commit), "a recovered commit index is one of the log");
        RecoveredReplica {
            replica: self.replica,
            identity: self.identity.clone(),
            hard_state: self.hard_state,
            conf: self.conf.clone(),
            prev_index: self.prev_index,
            prev_term: self.prev_term,
            prev_end_offset: self.prev_end_offset,
            entries: self.entries.iter().cloned().collect(),
            term_runs: self.term_runs.clone(),
            log_start: self.log_start,
            end_offset: self.end_offset,
            history: self.history.clone(),
            image,
            holds: Vec::new(),
            compacted: self.compacted,
            segments: self.segments.iter().map(SegmentState::meta).collect(),
            damage,
            lacks_room: false,
        }
    }

    /// Encodes the body of a State record; see `docs/format.md`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        encoding::put_identity(out, &self.identity);
        encoding::put_hard_state(out, self.hard_state);
        encoding::put_conf(out, &self.conf);
        out.put_u64(self.prev_index);
        out.put_u64(self.prev_term);
        out.put_i64(self.prev_end_offset);
        self.image.encode(out);
        encoding::put_count(out, self.entries.len());
        for entry in &self.entries {
            encoding::put_entry(out, entry);
        }
        encoding::put_count(out, self.term_runs.len());
        for run in &self.term_runs {
            out.put_u64(run.term);
            out.put_u64(run.first_index);
            out.put_i64(run.start_offset);
        }
        out.put_i64(self.log_start);
        out.put_i64(self.end_offset);
        out.put_u64(self.synced_index);
        encoding::put_count(out, self.segments.len());
        for segment in &self.segments {
            segment.encode(out);
        }
        self.encode_history(out);
        if self.version() >= StateVersion::Three {
            put_compacted(out, &self.compacted);
            let made = self.segments.iter().filter(|it| it.generation > 0);
            put_made(out, made);
        }
    }

    /// Returns the version in which the State is written.
    pub(crate) fn version(&self) -> StateVersion {
        let is_given = |it: &SegmentState| it.generation & GIVEN != 0;
        match self.compacted == Compacted::default() {
            true => StateVersion::Two,
            false if self.segments.iter().any(is_given) => StateVersion::Four,
            false => StateVersion::Three,
        }
    }

    fn encode_history(&self, out: &mut Vec<u8>) {
        out.put_u64(self.history.index);
        out.put_u64(self.history.term);
        out.put_i64(self.history.end_offset);
        if sabotage::is(Bug::HistoryNotStored) {
            return encoding::put_count(out, 0);
        }
        encoding::put_count(out, self.history.internal().len());
        for PastEntry { entry, end_offset } in self.history.internal() {
            out.put_i64(*end_offset);
            encoding::put_entry(out, entry);
        }
    }

    /// Decodes the history. A State of version 1 has none: entries before its snapshot cannot be had again.
    fn decode_history(
        from: &mut Bytes,
        version: StateVersion,
        image: (u64, u64, i64),
    ) -> Result<History, Malformed> {
        if version == StateVersion::One {
            return Ok(History::new(image.0, image.1, image.2));
        }
        let (index, term) = (from.try_get_u64()?, from.try_get_u64()?);
        let mut history = History::new(index, term, from.try_get_i64()?);
        for _ in 0..count(from, 29)? {
            let end_offset = from.try_get_i64()?;
            history.restore(PastEntry { entry: encoding::get_entry(from)?, end_offset });
        }
        Ok(history)
    }

    pub(crate) fn decode(
        replica: ReplicaId,
        version: StateVersion,
        from: &mut Bytes,
    ) -> Result<Self, Malformed> {
        let identity = encoding::get_identity(from)?;
        let hard_state = encoding::get_hard_state(from)?;
        let conf = encoding::get_conf(from)?;
        let prev_index = from.try_get_u64()?;
        let prev_term = from.try_get_u64()?;
        let prev_end_offset = from.try_get_i64()?;
        let image = ImageSource::decode(from)?;
        let entries = (0..count(from, 17)?)
            .map(|_| encoding::get_entry(from))
            .collect::<Result<VecDeque<_>, _>>()?;
        let mut term_runs = Vec::new();
        for _ in 0..count(from, 24)? {
            let (term, first_index) = (from.try_get_u64()?, from.try_get_u64()?);
            term_runs.push(TermRun { term, first_index, start_offset: from.try_get_i64()? });
        }
        let (log_start, end_offset) = (from.try_get_i64()?, from.try_get_i64()?);
        let synced_index = from.try_get_u64()?;
        let segments = (0..count(from, 76)?)
            .map(|_| SegmentState::decode(from))
            .collect::<Result<Vec<_>, _>>()?;
        let image_end = (prev_index, prev_term, prev_end_offset);
        let history = Self::decode_history(from, version, image_end)?;
        let mut state = Self {
            replica,
            identity,
            hard_state,
            conf,
            prev_index,
            prev_term,
            prev_end_offset,
            image,
            entries,
            term_runs,
            log_start,
            end_offset,
            segments,
            synced_index,
            history,
            compacted: Compacted::default(),
        };
        if version >= StateVersion::Three {
            state.compacted = get_compacted(from)?;
            get_made(from, &mut state.segments)?;
        }
        if !state.holds_together() {
            return Err(Malformed("a State contradicts itself"));
        }
        // A commit index that rode with a round may be older than a snapshot that passed the queue.
        let commit = state.hard_state.commit.clamp(state.prev_index, state.last_index());
        state.hard_state.commit = commit;
        Ok(state)
    }

    /// Tells whether the parts of a decoded State fit each other: later code relies on it.
    fn holds_together(&self) -> bool {
        let mut before = (self.prev_index, self.prev_term, self.prev_end_offset);
        for entry in &self.entries {
            let (index, term, mut offset) = before;
            if let Content::Batch(batch) = &entry.content {
                if batch.base_offset != offset {
                    return false;
                }
                offset = batch.end_offset();
            }
            if Some(entry.index) != index.checked_add(1) || entry.term < term {
                return false;
            }
            before = (entry.index, entry.term, offset);
        }
        let runs = self.term_runs.windows(2);
        let later = |a: &TermRun, b: &TermRun| {
            a.term < b.term && a.first_index < b.first_index && a.start_offset <= b.start_offset
        };
        before.0 < 1 << 62
            && before.2 == self.end_offset
            && (0..=self.end_offset).contains(&self.prev_end_offset)
            && (0..=self.end_offset).contains(&self.log_start)
            && self.synced_index <= before.0
            && self.history.holds_together((self.prev_index, self.prev_term, self.prev_end_offset))
            && runs.into_iter().all(|pair| later(&pair[0], &pair[1]))
            && self.term_runs.iter().all(|run| {
                (0..=self.end_offset).contains(&run.start_offset)
                    && run.first_index <= before.0
                    && run.term <= self.last_term()
            })
            && self.segments_hold_together()
    }

    /// Tells whether segments are in order, and hold the batches of the entries at their ends.
    fn segments_hold_together(&self) -> bool {
        let bases = self.segments.windows(2);
        let in_order = |a: &SegmentState, b: &SegmentState| {
            a.base_offset < b.base_offset && a.first_index < b.first_index
        };
        if !bases.into_iter().all(|pair| in_order(&pair[0], &pair[1])) {
            return false;
        }
        let ends = self.segments.iter().skip(1).map(|next| next.base_offset);
        for (segment, end) in self.segments.iter().zip(ends.chain([self.end_offset])) {
            // Going back from its end, entries take away what they added, and no more.
            let within = segment.base_offset..end;
            let mut left = Some(segment.size);
            for entry in &self.entries {
                if let Content::Batch(batch) = &entry.content
                    && within.contains(&batch.base_offset)
                {
                    left = left.and_then(|left| left.checked_sub(u64::from(batch.length)));
                    let first = batch.base_offset == segment.base_offset;
                    left = left.filter(|_| !first || segment.first_index == entry.index);
                }
            }
            let all = self.prev_end_offset <= segment.base_offset;
            let whole = left.is_some_and(|left| (left == 0) == all) || segment.generation > 0;
            if !whole || !segment.holds_together(end) {
                return false;
            }
        }
        let is_below =
            |it: &SegmentState| it.generation == 0 || it.base_offset < self.compacted.below;
        if !self.segments.iter().all(is_below) || self.compacted.below > self.prev_end_offset {
            return false;
        }
        let first = self.segments.first().map_or(self.end_offset, |first| first.base_offset);
        self.log_start >= first && self.prev_end_offset >= first && self.history.end_offset >= first
    }
}

impl SegmentState {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_i64(self.base_offset);
        out.put_u64(self.first_index);
        out.put_u64(self.size);
        out.put_i64(self.max_timestamp);
        out.put_u32(self.index_flushed);
        out.put_u32(self.times_flushed);
        out.put_u32(self.flushed_position);
        out.put_i64(self.flushed_timestamp);
        out.put_u32(self.max_timestamp_delta);
        out.put_i64(self.image_max_timestamp);
        out.put_u32(self.image_max_delta);
        encoding::put_count(out, self.index_tail.len());
        for entry in &self.index_tail {
            out.put_u32(entry.offset_delta);
            out.put_u32(entry.position);
        }
        encoding::put_count(out, self.times_tail.len());
        for entry in &self.times_tail {
            out.put_i64(entry.timestamp);
            out.put_u32(entry.offset_delta);
        }
    }

    fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        let mut segment = Self::new(from.try_get_i64()?, from.try_get_u64()?);
        segment.size = from.try_get_u64()?;
        segment.max_timestamp = from.try_get_i64()?;
        segment.index_flushed = from.try_get_u32()?;
        segment.times_flushed = from.try_get_u32()?;
        segment.flushed_position = from.try_get_u32()?;
        segment.flushed_timestamp = from.try_get_i64()?;
        segment.max_timestamp_delta = from.try_get_u32()?;
        segment.image_max_timestamp = from.try_get_i64()?;
        segment.image_max_delta = from.try_get_u32()?;
        for _ in 0..count(from, 8)? {
            let (offset_delta, position) = (from.try_get_u32()?, from.try_get_u32()?);
            segment.index_tail.push(IndexEntry { offset_delta, position });
        }
        for _ in 0..count(from, 12)? {
            let timestamp = from.try_get_i64()?;
            let offset_delta = from.try_get_u32()?;
            segment.times_tail.push(TimeEntry { timestamp, offset_delta });
        }
        Ok(segment)
    }
}

pub(crate) fn put_compacted(out: &mut Vec<u8>, compacted: &Compacted) {
    out.put_u64(compacted.index);
    out.put_i64(compacted.below);
    out.put_i64(compacted.tombstones_below);
}

pub(crate) fn get_compacted(from: &mut Bytes) -> Result<Compacted, Malformed> {
    let (index, below) = (from.try_get_u64()?, from.try_get_i64()?);
    let tombstones_below = from.try_get_i64()?;
    if index == 0 || below <= 0 || !(0..=below).contains(&tombstones_below) {
        return Err(Malformed("a compaction that cannot be"));
    }
    Ok(Compacted { index, below, tombstones_below })
}

/// Writes the facts that only segments made by compaction have.
pub(crate) fn put_made<'a>(out: &mut Vec<u8>, made: impl Iterator<Item = &'a SegmentState>) {
    let made: Vec<_> = made.collect();
    encoding::put_count(out, made.len());
    for segment in made {
        assert!(segment.generation > 0, "compaction made the segment");
        out.put_i64(segment.base_offset);
        out.put_u64(segment.generation);
        out.put_u32(segment.index_crc);
    }
}

/// Reads the facts that [`put_made`] writes.
pub(crate) fn get_made(from: &mut Bytes, segments: &mut [SegmentState]) -> Result<(), Malformed> {
    for _ in 0..count(from, 20)? {
        let base_offset = from.try_get_i64()?;
        let segment = segments.iter_mut().find(|it| it.base_offset == base_offset);
        let segment = segment.ok_or(Malformed("a segment that is none was compacted"))?;
        segment.generation = from.try_get_u64()?;
        segment.index_crc = from.try_get_u32()?;
    }
    Ok(())
}

impl Replacement {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        assert!(!self.segments.is_empty(), "a compaction leaves a segment");
        put_compacted(out, &self.compacted);
        out.put_u64(self.last.0);
        out.put_u64(self.last.1);
        encoding::put_count(out, self.segments.len());
        for segment in &self.segments {
            segment.encode(out);
        }
        put_made(out, self.segments.iter().filter(|it| it.generation > 0));
    }

    pub(crate) fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        let compacted = get_compacted(from)?;
        let last = (from.try_get_u64()?, from.try_get_u64()?);
        let mut segments = (0..count(from, 76)?)
            .map(|_| SegmentState::decode(from))
            .collect::<Result<Vec<_>, _>>()?;
        get_made(from, &mut segments)?;
        let ends = segments.iter().skip(1).map(|it| it.base_offset).chain([compacted.below]);
        let mut each = segments.iter().zip(ends);
        let fits = each.all(|(it, end)| it.holds_together(end));
        if segments.is_empty() || !fits {
            return Err(Malformed("compacted segments contradict each other"));
        }
        Ok(Self { compacted, last, segments })
    }
}
