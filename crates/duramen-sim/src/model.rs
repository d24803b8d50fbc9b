//! # Room card: model
//!
//! Purpose:    the expected state of one replica's log, by the simplest means.
//! Owns:       [`ReplicaModel`]: the submitted ops, and how many of them were reported persisted.
//! Interface:  [`ReplicaModel::submit`], [`ReplicaModel::on_persisted`], [`ReplicaModel::adopt`].
//! Invariants: `base` is the state reported persisted; `tip` is `base` with all of `ops` applied.
//! Never:      files, rounds, syncs: the model does not know how storage works.
//! Tests:      below, and every run.
//! Start at:   [`ReplicaModel::adopt`].

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use duramen_storage::history::PastEntry;
use duramen_storage::op::{
    ConfState, Content, HardState, Identity, LogEntry, RecoveredReplica, ReplicaId, SegmentMeta,
    TermRun,
};

use crate::batch::Records;
pub use crate::model::holds::Holds;

mod holds;

/// One entry as it was submitted.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// The entry.
    pub entry: LogEntry,
    /// Its batch's bytes.
    pub payload: Bytes,
    /// Its records, if it is a batch.
    pub records: Option<Records>,
}

impl ModelEntry {
    /// Returns the entry's first offset, or 0.
    pub fn base_offset(&self) -> i64 {
        match &self.entry.content {
            Content::Batch(batch) => batch.base_offset,
            Content::Internal(_) => 0,
        }
    }

    /// Returns one past the entry's last offset, if it takes any.
    pub fn end_offset(&self) -> Option<i64> {
        match &self.entry.content {
            Content::Batch(batch) => Some(batch.end_offset()),
            Content::Internal(_) => None,
        }
    }
}

/// A replica's state between two ops.
#[derive(Clone, Debug)]
pub struct State {
    /// Raft's hard state.
    pub hard_state: HardState,
    /// Raft's membership.
    pub conf: ConfState,
    /// The first offset kept.
    pub log_start: i64,
    /// Snapshot and its index.
    pub image: (u64, Bytes),
    /// All entries ever kept, from index 2 on.
    pub entries: Vec<Arc<ModelEntry>>,
}

impl State {
    /// Returns the state of a new replica.
    pub fn new(conf: ConfState) -> Self {
        Self {
            hard_state: HardState { term: 1, vote: 0, commit: 1 },
            conf,
            log_start: 0,
            image: (1, Bytes::new()),
            entries: Vec::new(),
        }
    }

    /// Returns the last index.
    pub fn last_index(&self) -> u64 {
        1 + self.entries.len() as u64
    }

    /// Returns the term of the last index.
    pub fn last_term(&self) -> u64 {
        self.entries.last().map_or(1, |entry| entry.entry.term)
    }

    /// Returns the entry at `index`; there is none at 1.
    pub fn at(&self, index: u64) -> Option<&Arc<ModelEntry>> {
        self.entries.get(usize::try_from(index.checked_sub(2)?).ok()?)
    }

    /// Returns the end offset after `index`.
    pub fn end_offset_at(&self, index: u64) -> i64 {
        let upto = usize::try_from(index.saturating_sub(1)).expect("logs here are short");
        self.entries[..upto].iter().rev().find_map(|entry| entry.end_offset()).unwrap_or(0)
    }

    /// Returns the largest index known to be committed. Membership and trims prove commits, even where a crash took
    /// the hard state that recorded them. Raft never replaces such entries.
    pub fn committed(&self) -> u64 {
        let told = self.hard_state.commit.max(self.conf.applied).min(self.last_index());
        (told..=self.last_index())
            .find(|index| self.end_offset_at(*index) >= self.log_start)
            .unwrap_or(told)
    }

    /// Returns one past the last offset.
    pub fn end_offset(&self) -> i64 {
        self.end_offset_at(self.last_index())
    }

    /// Returns all batches, oldest first.
    pub fn batches(&self) -> impl DoubleEndedIterator<Item = &Arc<ModelEntry>> {
        self.entries.iter().filter(|entry| entry.records.is_some())
    }

    fn cut(&mut self, from: u64) {
        let keep = usize::try_from(from.saturating_sub(2)).expect("logs here are short");
        self.entries.truncate(keep);
    }

    /// Returns the term runs of the whole log.
    pub fn term_runs(&self) -> Vec<TermRun> {
        let mut runs: Vec<TermRun> = Vec::new();
        let mut end = 0;
        for entry in &self.entries {
            if runs.last().is_none_or(|run| run.term != entry.entry.term) {
                let (term, first_index) = (entry.entry.term, entry.entry.index);
                runs.push(TermRun { term, first_index, start_offset: end });
            }
            end = entry.end_offset().unwrap_or(end);
        }
        runs
    }

    /// Returns all segments there ever were, by the descriptors' flags.
    pub fn segments(&self) -> Vec<SegmentMeta> {
        self.segments_from(0)
    }

    /// Returns the segments of the log from an offset on.
    pub fn segments_from(&self, base_offset: i64) -> Vec<SegmentMeta> {
        let mut segments: Vec<SegmentMeta> = Vec::new();
        for entry in self.batches() {
            let Content::Batch(batch) = &entry.entry.content else { continue };
            if batch.base_offset < base_offset {
                continue;
            }
            if batch.starts_segment || segments.is_empty() {
                segments.push(SegmentMeta {
                    base_offset: batch.base_offset,
                    first_index: entry.entry.index,
                    size: 0,
                    max_timestamp: -1,
                });
            }
            let segment = segments.last_mut().expect("just made sure of one");
            segment.size += u64::from(batch.length);
            segment.max_timestamp = segment.max_timestamp.max(batch.max_timestamp);
        }
        segments
    }
}

/// One op, as the model remembers it.
#[derive(Clone, Debug)]
pub enum ModelOp {
    /// Entries, cutting the log first if they conflict, and hard state.
    Write {
        /// The entries.
        appends: Vec<Arc<ModelEntry>>,
        /// The hard state, if it changed.
        hard_state: Option<HardState>,
    },
    /// Membership.
    Conf(ConfState),
    /// A new log start.
    Trim(i64),
    /// A new snapshot.
    Image(u64, Bytes),
}

impl ModelOp {
    /// Returns the index from which on it cuts the log of `state`, if it does.
    pub fn conflict(&self, last_index: u64) -> Option<u64> {
        match self {
            Self::Write { appends, .. } => {
                appends.first().map(|entry| entry.entry.index).filter(|index| *index <= last_index)
            }
            _ => None,
        }
    }

    /// Applies everything but entries.
    fn apply_rest(&self, state: &mut State) {
        match self {
            Self::Write { hard_state, .. } => {
                state.hard_state = hard_state.unwrap_or(state.hard_state);
            }
            Self::Conf(conf) => state.conf = conf.clone(),
            Self::Trim(log_start) => state.log_start = state.log_start.max(*log_start),
            Self::Image(index, image) => {
                if *index > state.image.0 {
                    state.image = (*index, image.clone());
                }
            }
        }
    }

    fn apply(&self, state: &mut State) {
        if let Self::Write { appends, .. } = self {
            if let Some(from) = self.conflict(state.last_index()) {
                state.cut(from);
            }
            state.entries.extend(appends.iter().cloned());
        }
        self.apply_rest(state);
    }
}

/// Snapshot that was submitted, and the state that recovery must then know besides. Entries up to the snapshot are not
/// applied again, so their changes must not be lost.
#[derive(Clone, Debug)]
struct ModelImage {
    index: u64,
    image: Bytes,
    log_start: i64,
    conf_applied: u64,
}

impl ModelImage {
    fn of(state: &State) -> Self {
        Self {
            index: state.image.0,
            image: state.image.1.clone(),
            log_start: state.log_start,
            conf_applied: state.conf.applied,
        }
    }
}

/// One replica, from its creation to its end.
#[derive(Clone, Debug)]
pub struct ReplicaModel {
    /// Id of the replica.
    pub id: ReplicaId,
    /// Log of which it is a replica.
    pub identity: Identity,
    /// State that was reported persisted.
    pub base: State,
    /// Ops submitted since, oldest first.
    pub ops: VecDeque<ModelOp>,
    /// State with all of `ops` applied.
    pub tip: State,
    /// Tickets not reported yet, each with the number of ops it stands for in `ops`; none for a
    /// write that need not be synced.
    tickets: VecDeque<(u64, Option<usize>)>,
    /// Images that recovery may start from: one that is sure, and all submitted since. An image
    /// has no ticket, and may be overtaken.
    images: Vec<ModelImage>,
    /// Its creation was reported persisted, or recovered.
    pub created: bool,
    /// Its deletion was submitted.
    pub deleted: bool,
    /// Batches beside its log.
    pub holds: Holds,
}

impl ReplicaModel {
    /// Returns a replica whose creation was submitted with `ticket`.
    pub fn new(id: ReplicaId, identity: Identity, conf: ConfState, ticket: u64) -> Self {
        let base = State::new(conf);
        Self {
            id,
            identity,
            images: vec![ModelImage::of(&base)],
            tip: base.clone(),
            base,
            ops: VecDeque::new(),
            tickets: VecDeque::from([(ticket, Some(0))]),
            created: false,
            deleted: false,
            holds: Holds::default(),
        }
    }

    /// Notes that an op was submitted.
    pub fn submit(&mut self, op: ModelOp, ticket: Option<(u64, bool)>) {
        op.apply(&mut self.tip);
        if let ModelOp::Image(..) = &op {
            self.images.push(ModelImage::of(&self.tip));
        }
        self.ops.push_back(op);
        if let Some((ticket, must_sync)) = ticket {
            self.tickets.push_back((ticket, must_sync.then_some(self.ops.len())));
        }
    }

    /// Notes that all is at rest: the newest snapshot is sure.
    pub fn rest(&mut self) {
        let newest = self.images.pop();
        self.images.clear();
        self.images.extend(newest);
    }

    /// Tells whether tickets are outstanding.
    pub fn waits(&self) -> bool {
        !self.tickets.is_empty()
    }

    /// Takes a ticket that storage reports: it must be the oldest outstanding. Returns true if it proves that a round
    /// was synced.
    pub fn on_persisted(&mut self, ticket: u64) -> Result<bool, String> {
        let Some((expected, ops)) = self.tickets.pop_front() else {
            return Err(format!("replica {}: ticket {ticket} was never given", self.id.0));
        };
        if ticket != expected {
            return Err(format!("replica {}: ticket {ticket} came, {expected} was due", self.id.0));
        }
        self.created = true;
        let proves = ops.is_some();
        let ops = ops.unwrap_or(0);
        for op in self.ops.drain(..ops) {
            op.apply(&mut self.base);
        }
        for number in self.tickets.iter_mut().filter_map(|(_, number)| number.as_mut()) {
            *number -= ops;
        }
        Ok(proves)
    }

    /// Returns the highest index that no unreported op may take away: entries up to it may be committed and applied.
    pub fn safe_index(&self) -> u64 {
        let mut last = self.base.last_index();
        let mut safe = last;
        for op in &self.ops {
            if let Some(from) = op.conflict(last) {
                safe = safe.min(from - 1);
            }
            if let ModelOp::Write { appends, .. } = op {
                last = appends.last().map_or(last, |entry| entry.entry.index);
            }
        }
        safe
    }

    /// Checks the state found after a crash, and goes on from there. `found` must be the state reported persisted,
    /// with some of the ops submitted after it. These are a prefix of the entries, and hard state, membership, log
    /// start and snapshot as of a point not before that prefix.
    pub fn adopt(&mut self, found: &RecoveredReplica) -> Result<(), String> {
        let fail = |what: String| Err(format!("replica {}: {what}", self.id.0));
        if found.identity != self.identity {
            return fail(format!("it became a replica of {:?}", found.identity));
        }
        if let Some(damage) = &found.damage {
            return fail(format!("damage where there was none: {damage}"));
        }
        let mut closest = (0, String::new());
        let mut log = self.base.clone();
        for at in 0..=self.ops.len() {
            if at > 0 {
                self.ops[at - 1].apply(&mut log);
            }
            let rests = self.rests_from(&log, at);
            for state in partial_logs(&log, self.ops.get(at)) {
                for rest in &rests {
                    let mut state = State { entries: state.entries.clone(), ..rest.clone() };
                    self.overtake(&mut state, found);
                    match compare(state, found, &self.images) {
                        Ok(state) => {
                            self.settle(state);
                            return Ok(());
                        }
                        Err(reason) => closest = closest.max(reason),
                    }
                }
            }
        }
        let pending = self.ops.len();
        fail(format!(
            "it matches no point since the last report ({pending} ops pending): {}",
            closest.1
        ))
    }

    /// Takes the membership and the log start submitted before a snapshot along with it, past the queue.
    fn overtake(&self, state: &mut State, found: &RecoveredReplica) {
        for op in &self.ops {
            match op {
                ModelOp::Conf(conf) if conf.applied > state.conf.applied && *conf == found.conf => {
                    state.conf = conf.clone();
                }
                ModelOp::Trim(start) if *start > state.log_start && *start == found.log_start => {
                    state.log_start = *start;
                }
                _ => {}
            }
        }
    }

    /// Returns hard state and the like after `at` ops, and after any more of them.
    fn rests_from(&self, log: &State, at: usize) -> Vec<State> {
        let mut rest = State { entries: Vec::new(), ..log.clone() };
        let mut rests = vec![rest.clone()];
        for op in self.ops.iter().skip(at) {
            op.apply_rest(&mut rest);
            rests.push(rest.clone());
        }
        rests
    }

    fn settle(&mut self, state: State) {
        self.images = vec![ModelImage::of(&state)];
        self.tip = state.clone();
        self.base = state;
        self.ops.clear();
        self.tickets.clear();
        self.created = true;
    }

    /// Checks the log after reported damage: its remains must be a prefix of the persisted log.
    pub fn check_damaged(&self, found: &RecoveredReplica) -> Result<(), String> {
        let known = found
            .entries
            .iter()
            .all(|entry| self.tip.at(entry.index).is_some_and(|model| model.entry == *entry));
        if known && found.end_offset <= self.tip.end_offset() {
            Ok(())
        } else {
            Err(format!("replica {}: a damaged log shows entries that never were", self.id.0))
        }
    }
}

/// Returns the logs that `next`, half done, may leave of `log`: itself, cut at the conflict, and with some of the
/// entries appended.
fn partial_logs(log: &State, next: Option<&ModelOp>) -> Vec<State> {
    let mut states = vec![log.clone()];
    if let Some(op @ ModelOp::Write { appends, .. }) = next {
        let mut state = log.clone();
        if let Some(from) = op.conflict(state.last_index()) {
            state.cut(from);
            states.push(state.clone());
        }
        for entry in appends.iter().take(appends.len().saturating_sub(1)) {
            state.entries.push(Arc::clone(entry));
            states.push(state.clone());
        }
    }
    states
}

/// Compared fields, in order.
const RANKS: [&str; 11] = [
    "last index",
    "entry",
    "hard state",
    "commit",
    "term below the last entry's",
    "conf",
    "image",
    "log start and conf before the image",
    "image's end",
    "log start and end",
    "term runs",
];

/// Compares `found` with `state`: only its commit and its snapshot may lag, and are then put into the returned state.
/// Else returns the difference, and how late in the comparison it came.
fn compare(
    state: State,
    found: &RecoveredReplica,
    images: &[ModelImage],
) -> Result<State, (u32, String)> {
    let last = state.last_index();
    let found_last = found.prev_index + found.entries.len() as u64;
    let differs = |what: &str, model: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
        let rank = RANKS.iter().position(|ranked| *ranked == what).expect("all are ranked");
        let rank = u32::try_from(rank).expect("few");
        Err((rank, format!("{what} {found:?} instead of {model:?}")))
    };
    if found_last != last {
        return differs("last index", &last, &found_last);
    }
    for (entry, index) in found.entries.iter().zip(found.prev_index + 1..) {
        let model = state.at(index).map(|model| &model.entry);
        if model != Some(entry) {
            return differs("entry", &model, &entry);
        }
    }
    let (hard_state, model) = (found.hard_state, state.hard_state);
    if (hard_state.term, hard_state.vote) != (model.term, model.vote) {
        return differs("hard state", &model, &hard_state);
    }
    // Entries that a snapshot contains were committed, whatever became of the record that said so.
    let commit_max = model.commit.min(last).max(found.prev_index);
    if hard_state.commit > commit_max || hard_state.commit < found.prev_index {
        let range = (found.prev_index, commit_max);
        return differs("commit", &range, &hard_state.commit);
    }
    if hard_state.term < state.last_term() {
        return differs("term below the last entry's", &state.last_term(), &hard_state.term);
    }
    if found.conf != state.conf {
        return differs("conf", &state.conf, &found.conf);
    }
    let image = images.iter().find(|image| image.index == found.prev_index);
    let Some(image) = image.filter(|it| it.image == found.image) else {
        let known: Vec<_> = images.iter().map(|it| (it.index, it.image.len())).collect();
        return differs("image", &known, &(found.prev_index, found.image.len()));
    };
    if found.log_start < image.log_start || found.conf.applied < image.conf_applied {
        return differs(
            "log start and conf before the image",
            &(image.log_start, image.conf_applied),
            &(found.log_start, found.conf.applied),
        );
    }
    let image = (image.index, image.image.clone());
    let prev_term = state.at(image.0).map_or(1, |entry| entry.entry.term);
    let prev = (prev_term, state.end_offset_at(image.0));
    if prev != (found.prev_term, found.prev_end_offset) {
        return differs("image's end", &prev, &(found.prev_term, found.prev_end_offset));
    }
    if found.log_start != state.log_start || found.end_offset != state.end_offset() {
        let model = (state.log_start, state.end_offset());
        return differs("log start and end", &model, &(found.log_start, found.end_offset));
    }
    if !state.term_runs().ends_with(&found.term_runs) {
        return differs("term runs", &state.term_runs(), &found.term_runs);
    }
    compare_segments(&state, &found.segments).map_err(|what| (100, what))?;
    compare_history(&state, found).map_err(|what| (100, what))?;
    Ok(State { hard_state, image, ..state })
}

/// Checks the history: with the segments, it must be enough to make every entry again from where they begin.
fn compare_history(state: &State, found: &RecoveredReplica) -> Result<(), String> {
    let history = &found.history;
    let from = found.segments.first().map_or(found.prev_index + 1, |first| first.first_index);
    if history.index >= from {
        return Err(format!("history from {} and segments from {from}", history.index));
    }
    let begin = (
        state.at(history.index).map_or(1, |entry| entry.entry.term),
        state.end_offset_at(history.index),
    );
    if begin != (history.term, history.end_offset) {
        return Err(format!("history {history:?} begins at {begin:?}"));
    }
    if found
        .term_runs
        .first()
        .is_some_and(|run| history.index > 1 && run.first_index > history.index)
    {
        return Err(format!("terms {:?} of history {history:?}", found.term_runs));
    }
    let since = history.index + 1..=found.prev_index;
    let internal = since.filter_map(|index| {
        let entry = &state.at(index)?.entry;
        let end_offset = state.end_offset_at(index);
        let is_internal = matches!(entry.content, Content::Internal(_));
        is_internal.then(|| PastEntry { entry: entry.clone(), end_offset })
    });
    if !internal.eq(history.internal().cloned()) {
        return Err(format!("history {history:?} lacks or invents entries"));
    }
    Ok(())
}

/// Checks that the segments are all those that the descriptors' flags make, except dead ones. The first may lie
/// anywhere up to the log's start, since a cut can leave a log without any segment.
fn compare_segments(state: &State, found: &[SegmentMeta]) -> Result<(), String> {
    let from = match found.first() {
        Some(first) => first.base_offset,
        None => state.end_offset(),
    };
    let all = state.segments_from(from);
    let first = state.batches().next().map_or(0, |batch| batch.base_offset());
    if from > state.log_start.max(first) || all != *found {
        return Err(format!("segments {found:?} instead of {all:?}"));
    }
    Ok(())
}
