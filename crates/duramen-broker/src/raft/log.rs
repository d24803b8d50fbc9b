//! Log as the Raft library reads it: descriptors in memory, which the disk follows. Older descriptors are present only
//! while a follower needs them, made again from segments (`catching_up.rs`).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use duramen_storage::descriptor::{self, Descriptor};
use duramen_storage::history::{self, History};
use duramen_storage::op::{
    Compacted, ConfState, Content, Given, HardState, LogEntry, SegmentMeta, TermRun,
};
use duramen_storage::sabotage::{self, Bug};
use raft::eraftpb::{self, Entry, EntryType, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

/// First byte of a Raft entry's data: an encoded [`Descriptor`] follows.
pub(super) const TAG_BATCH: u8 = 1;
/// First byte of a Raft entry's data: an entry of ours follows.
pub(super) const TAG_INTERNAL: u8 = 2;
/// First byte of [`Content::Internal`]; the entry's type and data follow.
const INTERNAL_VERSION: u8 = 1;

/// Entries that were made again, without a gap.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) first: u64,
    pub(super) entries: Vec<(LogEntry, Bytes)>,
    /// The log's end offset at the last of them.
    pub(super) end_offset: i64,
}

impl Piece {
    pub(super) fn get(&self, index: u64) -> Option<&(LogEntry, Bytes)> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }
}

/// One entry and where the log stands after it.
#[derive(Debug)]
struct Held {
    entry: LogEntry,
    end_offset: i64,
    bytes_end: u64,
}

/// The part of a log that is in memory.
#[derive(Debug)]
pub(super) struct GroupLog {
    pub(super) hard_state: HardState,
    pub(super) conf: ConfState,
    pub(super) runs: Vec<TermRun>,
    /// Of entries that are not held.
    pub(super) history: History,
    /// Index and offset at which segments begin.
    pub(super) segments: BTreeMap<u64, i64>,
    /// Extent of the compaction on the disk.
    pub(super) compacted: Compacted,
    /// Entries that are not held, and were made again, by the peer that lacks them.
    pub(super) pieces: BTreeMap<u64, Piece>,
    held: VecDeque<Held>,
    /// The entry before the first held one.
    before: (u64, u64),
    before_offset: i64,
    before_bytes: u64,
}

impl GroupLog {
    pub(super) fn new(
        hard_state: HardState,
        conf: ConfState,
        history: History,
        (index, term, end_offset): (u64, u64, i64),
    ) -> Self {
        Self {
            hard_state,
            conf,
            runs: Vec::new(),
            history,
            segments: BTreeMap::new(),
            compacted: Compacted::default(),
            pieces: BTreeMap::new(),
            held: VecDeque::new(),
            before: (index, term),
            before_offset: end_offset,
            before_bytes: 0,
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.before.0 + self.held.len() as u64
    }

    pub(super) fn end_offset(&self) -> i64 {
        self.held.back().map_or(self.before_offset, |held| held.end_offset)
    }

    pub(super) fn get(&self, index: u64) -> Option<&LogEntry> {
        let at = usize::try_from(index.checked_sub(self.before.0 + 1)?).ok()?;
        self.held.get(at).map(|held| &held.entry)
    }

    /// Returns the index of the first entry that is in memory, or would be.
    pub(super) fn first_held(&self) -> u64 {
        self.before.0 + 1
    }

    /// Returns the log end offset after the entry at `index`; `None` if that is not in memory.
    pub(super) fn offset_after(&self, index: u64) -> Option<i64> {
        if index == self.before.0 {
            return Some(self.before_offset);
        }
        let at = usize::try_from(index.checked_sub(self.before.0 + 1)?).ok()?;
        self.held.get(at).map(|held| held.end_offset)
    }

    /// Returns the bytes of batches between two offsets; `None` if the first is no longer in memory.
    pub(super) fn bytes_between(&self, offset: i64, end: i64) -> Option<u64> {
        if offset < self.before_offset {
            return None;
        }
        let up_to = |offset: i64| {
            let at = self.held.partition_point(|held| held.end_offset <= offset);
            at.checked_sub(1).map_or(self.before_bytes, |at| self.held[at].bytes_end)
        };
        Some(up_to(end).saturating_sub(up_to(offset)))
    }

    /// Returns the bytes of the batch that holds an offset; `None` if it is no longer in memory.
    pub(super) fn batch_bytes_at(&self, offset: i64) -> Option<u64> {
        if offset < self.before_offset {
            return None;
        }
        let at = self.held.partition_point(|held| held.end_offset <= offset);
        let end = self.held.get(at)?.bytes_end;
        let start = at.checked_sub(1).map_or(self.before_bytes, |at| self.held[at].bytes_end);
        Some(end - start)
    }

    /// Appends the next entry, keeping the term runs.
    pub(super) fn append(&mut self, entry: LogEntry) {
        assert_eq!(entry.index, self.last() + 1, "the log has no gaps");
        let before = self.term_of(self.last());
        assert!(before.is_none_or(|before| before <= entry.term), "terms never fall");
        let start = self.end_offset();
        if self.runs.last().is_none_or(|run| run.term < entry.term) {
            let run = TermRun { term: entry.term, first_index: entry.index, start_offset: start };
            self.runs.push(run);
        }
        let bytes = self.held.back().map_or(self.before_bytes, |held| held.bytes_end);
        let (end_offset, bytes_end) = match &entry.content {
            Content::Batch(batch) => {
                assert_eq!(batch.base_offset, start, "offsets are dense");
                if batch.starts_segment || self.segments.is_empty() {
                    self.segments.insert(entry.index, start);
                }
                assert!(batch.end_offset() > start, "a batch has a record");
                (batch.end_offset(), bytes + u64::from(batch.length))
            }
            Content::Internal(_) => (start, bytes),
        };
        self.held.push_back(Held { entry, end_offset, bytes_end });
    }

    /// Cuts the log before `index`, which a newer leader overwrites. Returns what was cut.
    pub(super) fn cut(&mut self, index: u64) -> Vec<LogEntry> {
        assert!(index > self.before.0, "applied entries are never cut");
        assert!(index > self.hard_state.commit, "committed entries are never cut");
        let keep = usize::try_from(index - self.before.0 - 1).expect("the log is in memory");
        if keep >= self.held.len() {
            return Vec::new();
        }
        while self.runs.last().is_some_and(|run| run.first_index >= index) {
            self.runs.pop();
        }
        self.segments.split_off(&index);
        self.held.drain(keep..).map(|held| held.entry).collect()
    }

    /// Forgets entries at or below `applied` but for the newest `kept`, once there are `most`.
    pub(super) fn forget(&mut self, applied: u64, kept: usize, most: usize) {
        let below = usize::try_from(applied.saturating_sub(self.before.0)).expect("in memory");
        assert!(kept <= most, "the {kept} entries that stay are among the {most} that may");
        assert!(below <= self.held.len(), "applied entries are in the log");
        if below <= most {
            return;
        }
        for held in self.held.drain(..below - kept) {
            self.history.note(&held.entry, held.end_offset);
            self.before = (held.entry.index, held.entry.term);
            self.before_offset = held.end_offset;
            self.before_bytes = held.bytes_end;
        }
        assert!(self.before.0 <= applied, "only applied entries are forgotten");
    }

    /// Drops offsets below `log_start`, with the segments that hold nothing else. Of their entries only those that are
    /// not applied yet stay in memory. The first remaining segment may have begun with a batch that is not committed
    /// yet. Storage has removed the segments before it all the same.
    pub(super) fn trim(&mut self, log_start: i64, applied: u64) {
        assert!(log_start <= self.end_offset(), "a log does not begin after its end");
        assert!(applied <= self.last(), "applied entries are in the log");
        if self.offset_after(applied) == Some(log_start) && log_start == self.end_offset() {
            return self.empty(applied);
        }
        let is_first = |index: u64, base: i64| {
            base <= log_start && (index <= applied || self.offset_after(applied) == Some(base))
        };
        let mut begun = self.segments.iter().rev().map(|(index, base)| (*index, *base));
        let Some((index, offset)) = begun.find(|(index, base)| is_first(*index, *base)) else {
            return;
        };
        if self.segments.first_key_value().is_some_and(|(first, _)| *first == index) {
            return;
        }
        self.segments = self.segments.split_off(&index);
        assert!(!self.segments.is_empty(), "the segment that the log begins with stays");
        let last = applied.min(index - 1);
        if let Some(term) = self.term_of(last) {
            self.history.begin_after(last, term, offset);
        }
        history::forget_runs(&mut self.runs, self.history.index.min(index));
    }

    /// Drops all offsets, and all segments with them.
    fn empty(&mut self, applied: u64) {
        if std::mem::take(&mut self.segments).is_empty() {
            return;
        }
        if let Some(term) = self.term_of(applied) {
            self.history.begin_after(applied, term, self.end_offset());
        }
        history::forget_runs(&mut self.runs, self.history.index);
    }

    /// Forgets the entries that a compaction takes in, since their batches will not be as they were appended. These are
    /// the entries before the segment that begins where the compaction ends. If the Compact entry at `compaction` comes
    /// earlier, only the entries before it are forgotten. Until it is done, the log cannot be given to a replica that
    /// lacks them: see [`Self::can_be_given`].
    pub(super) fn compact(&mut self, below: i64, compaction: u64) {
        let next = self.segments.iter().find(|(_, base)| **base == below);
        let before = match next {
            Some((first, _)) => first - 1,
            None if below == self.end_offset() && !self.segments.is_empty() => u64::MAX,
            None => return, // it was trimmed meanwhile
        };
        let last = before.min(compaction - u64::from(!sabotage::is(Bug::EndTakesEntry)));
        if let Some(term) = self.term_of(last) {
            self.history.begin_after(last, term, below);
        }
    }

    /// Tells whether a replica can begin its log at the first entry that can be had again. Either nothing is kept from
    /// before that entry, or a compaction left a prefix that can be given, too.
    pub(super) fn can_be_given(&self) -> bool {
        self.begins_whole() || self.has_prefix()
    }

    /// Tells whether nothing is kept from before the first entry that can be had again.
    fn begins_whole(&self) -> bool {
        let first = self.segments.first_key_value();
        let (index, base) =
            first.map_or((u64::MAX, self.end_offset()), |(index, at)| (*index, *at));
        index > self.history.index && base == self.history.end_offset
    }

    /// Tells whether the part before the first entry that can be had again is exactly the compacted part.
    fn has_prefix(&self) -> bool {
        let next = self.segments.range(self.history.index + 1..).next();
        self.compacted.index > 0
            && self.compacted.below == self.history.end_offset
            && next.map_or(self.end_offset(), |(_, base)| *base) == self.compacted.below
    }

    /// Returns the prefix: the part kept from before the first entry that can be had again, if there is one.
    pub(super) fn prefix(&self, log_start: i64) -> Option<Given> {
        if self.begins_whole() || !self.has_prefix() {
            return None;
        }
        let index = self.history.index;
        let begun = self.segments.range(..=index);
        let meta = |(&first_index, &base_offset): (&u64, &i64)| SegmentMeta {
            base_offset,
            first_index,
            size: 0,
            max_timestamp: -1,
        };
        Some(Given {
            number: 0,
            compacted: self.compacted,
            log_start,
            runs: self.runs.iter().take_while(|run| run.first_index <= index).copied().collect(),
            segments: begun.map(meta).collect(),
        })
    }

    /// Tells whether the entry at `index` is at hand, and a batch.
    pub(super) fn is_batch(&self, index: u64) -> bool {
        self.at_hand(index).is_some_and(|entry| matches!(entry.content, Content::Batch(_)))
    }

    /// Returns an entry that can be had without a read.
    pub(super) fn at_hand(&self, index: u64) -> Option<&LogEntry> {
        if index > self.before.0 {
            return self.get(index);
        }
        let rebuilt = self.pieces.values().find_map(|piece| piece.get(index));
        let internal = || self.history.internal_at(index).map(|past| &past.entry);
        rebuilt.map(|(entry, _)| entry).or_else(internal)
    }

    /// Returns the payload of a batch that was made again.
    pub(super) fn rebuilt_payload(&self, index: u64, term: u64) -> Option<&Bytes> {
        let (entry, payload) = self.pieces.values().find_map(|piece| piece.get(index))?;
        (entry.term == term).then_some(payload)
    }

    pub(super) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.before.0 {
            return Some(self.before.1);
        }
        if let Some(entry) = self.get(index) {
            return Some(entry.term);
        }
        if index == self.history.index {
            return Some(self.history.term);
        }
        let run = self.runs.partition_point(|run| run.first_index <= index).checked_sub(1)?;
        (index < self.before.0).then(|| self.runs[run].term)
    }
}

/// Returns a membership as the library has it.
pub(super) fn conf_to_raft(conf: &ConfState) -> eraftpb::ConfState {
    let mut out = eraftpb::ConfState::default();
    out.voters.clone_from(&conf.voters);
    out.learners.clone_from(&conf.learners);
    out.voters_outgoing.clone_from(&conf.voters_outgoing);
    out.learners_next.clone_from(&conf.learners_next);
    out.auto_leave = conf.auto_leave;
    out
}

/// Collects peers in the order of their ids, each of them once.
pub(super) fn sorted(peers: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut peers: Vec<u64> = peers.collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

/// Returns a membership as we keep it, sorted, with the index of the entry that set it, and the number of the move.
pub(super) fn conf_of(conf: &eraftpb::ConfState, applied: u64, move_number: u64) -> ConfState {
    ConfState {
        applied,
        voters: sorted(conf.voters.iter().copied()),
        learners: sorted(conf.learners.iter().copied()),
        voters_outgoing: sorted(conf.voters_outgoing.iter().copied()),
        learners_next: sorted(conf.learners_next.iter().copied()),
        auto_leave: conf.auto_leave,
        move_number,
    }
}

/// Returns the content of a Raft entry; `None` if this version cannot read it.
pub(super) fn content_of(entry: &Entry) -> Option<Content> {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    };
    match entry.data.first() {
        Some(&TAG_BATCH) if kind == 0 => {
            return Descriptor::decode(&entry.data[1..]).ok().map(Content::Batch);
        }
        Some(&TAG_INTERNAL) | None => {}
        Some(_) if kind == 0 => return None,
        Some(_) => {}
    }
    let mut bytes = Vec::with_capacity(2 + entry.data.len());
    bytes.extend_from_slice(&[INTERNAL_VERSION, kind]);
    bytes.extend_from_slice(&entry.data);
    Some(Content::Internal(bytes.into()))
}

/// Returns our entry inside [`Content::Internal`]: `Ok(None)` for an entry of Raft's own.
pub(crate) fn internal_of(bytes: &[u8]) -> Result<Option<&[u8]>, ()> {
    match bytes {
        [INTERNAL_VERSION, 0, TAG_INTERNAL, entry @ ..] => Ok(Some(entry)),
        // A change of membership is executed by the group itself.
        [INTERNAL_VERSION, 0] | [INTERNAL_VERSION, 1 | 2, ..] => Ok(None),
        _ => Err(()),
    }
}

/// Returns the data of an entry for a batch, in one allocation, which the library's clones share.
pub(super) fn data_of(batch: &Descriptor) -> Bytes {
    let mut data = [TAG_BATCH; 1 + descriptor::ENCODED_BYTES];
    data[1..].copy_from_slice(&batch.encode());
    Bytes::from_owner(data)
}

/// Returns an entry as the library has it; the data of a batch only if it is sent.
fn to_raft(entry: &LogEntry, is_sent: bool) -> Entry {
    let (kind, data) = match &entry.content {
        Content::Batch(descriptor) if is_sent => (EntryType::EntryNormal, data_of(descriptor)),
        Content::Batch(_) => (EntryType::EntryNormal, Bytes::new()),
        Content::Internal(bytes) => {
            let kind = match bytes.get(1) {
                Some(1) => EntryType::EntryConfChange,
                Some(2) => EntryType::EntryConfChangeV2,
                _ => EntryType::EntryNormal,
            };
            (kind, bytes.slice(bytes.len().min(2)..))
        }
    };
    let mut out = Entry::default();
    out.set_entry_type(kind);
    out.index = entry.index;
    out.term = entry.term;
    out.data = data;
    out
}

impl Storage for GroupLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard_state = eraftpb::HardState::default();
        hard_state.term = self.hard_state.term;
        hard_state.vote = self.hard_state.vote;
        hard_state.commit = self.hard_state.commit.clamp(self.before.0, self.last());
        Ok(RaftState::new(hard_state, conf_to_raft(&self.conf)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.history.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        // Only what a follower lacks may be waited for. Else the library applies the entries or looks for changes of
        // membership, and `Group::apply` takes each batch from this log.
        let is_sent = context.can_async();
        // An entry weighs what its payload weighs, not its descriptor.
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0u64;
        let count = usize::try_from(high.saturating_sub(low)).unwrap_or(usize::MAX);
        let mut entries = Vec::with_capacity(count.min(self.held.len()));
        for index in low..high {
            let Some(entry) = self.at_hand(index) else {
                let is_in_segments = index <= self.before.0;
                if is_in_segments && !entries.is_empty() {
                    break;
                }
                return Err(Error::Store(if is_in_segments && context.can_async() {
                    StorageError::LogTemporarilyUnavailable
                } else {
                    StorageError::Unavailable
                }));
            };
            bytes += match &entry.content {
                Content::Batch(batch) => u64::from(batch.length),
                Content::Internal(bytes) => bytes.len() as u64,
            };
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(to_raft(entry, is_sent));
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let missing =
            if index > self.last() { StorageError::Unavailable } else { StorageError::Compacted };
        self.term_of(index).ok_or(Error::Store(missing))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.history.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if !self.can_be_given() {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.history.index;
        metadata.term = self.history.term;
        metadata.set_conf_state(conf_to_raft(&self.conf));
        Ok(snapshot)
    }
}
