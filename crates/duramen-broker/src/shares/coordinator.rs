//! # Room card: share coordinator
//!
//! Purpose:    the stored state of share groups in one partition of `__share_group_state`.
//! Owns:       [`Coordinator`]: the durable state of each group and partition, the appends under way for it, waiting
//!             requests.
//! Interface:  [`Coordinator::ask`], answered by an [`Output`] now or later; [`Coordinator::apply`] first;
//!             [`Coordinator::on_appended`]; [`Coordinator::topics_kept`] and [`Coordinator::forget_topic`];
//!             [`Coordinator::renew`] and [`Coordinator::live`] to keep the log short.
//! Invariants: durable state changes only by a record that is in the log, one at a time for each key; every answer is
//!             durable; each request gets one answer; a repeated or late request changes nothing that was asked after
//!             it.
//! Never:      clocks, chance, I/O, which topics exist: the caller hands all that in.
//! Tests:      `coordinator/tests.rs`, by scenario and by chance; `node/tests/shares.rs`.
//! Start at:   [`Coordinator::ask`], then `decide`, `apply`.
//!
//! Late requests. A leader names the epoch of the state and its own leader epoch. Both rise. Each leader begins with a
//! read, which raises the leader epoch. The epoch of the state rises whenever a group begins anew or an administrator
//! sets its offsets. Kafka uses the group's epoch there, which begins anew when a group of the same name does. Here the
//! epoch comes from a counter that never goes back, and that has a key of its own. Coordinators of groups name the
//! epoch that they know in their requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, LazyLock};

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::sabotage::{self, Bug};

use super::records::{ShareRecord, Snapshot, Update};
use super::{ShareKey, ShareState, ShareWrite, combined, merged};
use crate::event::{Now, RequestKey};
use crate::internal_topics::told;
use crate::ledger::{self, Ledger, Live, Ticket};

mod inspection;

/// Sender of a request, to whom the answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A client, in a part of its request.
    Request { key: RequestKey, part: usize },
    /// This node.
    Own { nonce: u64 },
    /// Another one.
    Node { broker_id: i32, nonce: u64 },
    /// A topic was deleted.
    Nobody,
}

/// Request for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Begin stored state for the key, unless it has one.
    Begin,
    /// Begin anew at an offset, if the state has this epoch; `None` if the key has no state.
    Reset { of: Option<i32>, start: i64 },
    /// Begin anew, as Kafka's brokers would have it.
    Initialize { epoch: i32, start: i64 },
    /// Read the state. Leaders with an earlier epoch can change nothing any more; -1 is no leader.
    Read { leader_epoch: i32 },
    /// Read the state and change nothing.
    Look,
    /// Keep this.
    Write { leader_epoch: i32, write: ShareWrite },
    /// Keep nothing any more, if this is the epoch of the state or none is named.
    Delete { of: Option<i32> },
}

/// Stored state after the request, if the key has any; or the error.
pub(crate) type Answer = Result<Option<Arc<ShareState>>, ErrorCode>;

/// Effects of requests and appends.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    /// Answer this request. If no record was written for it, first make certain that no other node coordinates by now.
    Answered { asker: Asker, answer: Answer, is_written: bool },
    /// Append these records, then call [`Coordinator::on_appended`].
    Append(Ticket, Vec<ShareRecord>),
}

/// Durable state of a key.
#[derive(Debug)]
struct Kept {
    state: Arc<ShareState>,
    number: i32,
    created_ms: i64,
    written_ms: i64,
    /// Offset of the snapshot, the count of updates after it, and the approximate size of all of these.
    at: i64,
    updates: u32,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Entry {
    kept: Option<Kept>,
    /// Records of it are on their way.
    flying: bool,
    waiting: VecDeque<(Asker, Ask)>,
}

/// Append under way.
#[derive(Debug)]
struct Flight {
    /// Keys of the records.
    keys: Vec<ShareKey>,
    /// Requests that wait for the records.
    askers: Vec<Asker>,
}

/// Decision on a waiting request.
enum Decision {
    Answer(Answer),
    Write(Vec<ShareRecord>),
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    /// After so many updates a snapshot is written.
    updates_max: u32,
    entries: BTreeMap<ShareKey, Entry>,
    ledger: Ledger<ShareKey, ShareRecord, Flight, Output>,
    /// The largest epoch that was taken from the counter and is durable, and where that is.
    counted: Option<(i64, i32)>,
    /// The largest that was taken.
    taken: i32,
}

/// Key of the counter: no group has this name.
static COUNTER: LazyLock<ShareKey> =
    LazyLock::new(|| ShareKey { group: "".into(), topic_id: Uuid::ZERO, partition: 0 });

/// Coming and going.
impl Coordinator {
    /// Builds the coordinator of a log that was not read yet.
    pub(crate) fn new(updates_max: u32) -> Self {
        Self { updates_max, ..Self::default() }
    }

    /// Refuses all waiting requests, because another node coordinates now. Their senders ask there.
    pub(crate) fn unload(&mut self) {
        let flights = self.ledger.close().into_iter().flat_map(|it| it.askers);
        let waiting = mem::take(&mut self.entries).into_values().flat_map(|it| it.waiting);
        let askers: Vec<Asker> = flights.chain(waiting.map(|(asker, _)| asker)).collect();
        for asker in askers {
            self.answer(asker, Err(ErrorCode::NotCoordinator), false);
        }
        *self = Self { ledger: mem::take(&mut self.ledger), ..Self::new(self.updates_max) };
    }

    /// Returns the effects of everything since the last call.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        self.ledger.take_outputs()
    }
}

/// Questions.
impl Coordinator {
    /// Takes a request for a key, of a topic that exists.
    pub(crate) fn ask(&mut self, key: &ShareKey, asker: Asker, ask: Ask, now: Now) {
        if *key == *COUNTER {
            return self.answer(asker, Err(ErrorCode::InvalidRequest), false);
        }
        if let Ask::Write { write, .. } = &ask
            && !write.batches.iter().all(|it| it.is_sound() && it.count >= 0)
        {
            return self.answer(asker, Err(ErrorCode::InvalidRequest), false);
        }
        self.entries.entry(key.clone()).or_default().waiting.push_back((asker, ask));
        self.go_on(key, now);
    }

    /// Deletes the stored state of a topic that is gone.
    pub(crate) fn forget_topic(&mut self, topic_id: Uuid, now: Now) {
        let of_it = self.entries.keys().filter(|key| key.topic_id == topic_id);
        for key in of_it.cloned().collect::<Vec<_>>() {
            self.ask(&key, Asker::Nobody, Ask::Delete { of: None }, now);
        }
    }

    /// Returns the topics that have stored state for groups after this one, over about `keys_max` keys. Also returns
    /// the last group that it looked at, if others follow.
    pub(crate) fn topics_kept(
        &self,
        after: Option<&Arc<str>>,
        keys_max: usize,
    ) -> (BTreeSet<Uuid>, Option<Arc<str>>) {
        let (mut topics, mut last) = (BTreeSet::new(), None);
        let from = after.map_or(Unbounded, |group| {
            let (group, topic_id) = (group.clone(), Uuid::from_u128(u128::MAX));
            Excluded(ShareKey { group, topic_id, partition: i32::MAX })
        });
        for (seen, key) in self.entries.range((from, Unbounded)).map(|(key, _)| key).enumerate() {
            if seen >= keys_max && last != Some(&key.group) {
                return (topics, last.cloned());
            }
            topics.insert(key.topic_id);
            last = Some(&key.group);
        }
        (topics, None)
    }

    fn answer(&mut self, asker: Asker, answer: Answer, is_written: bool) {
        self.ledger.push(Output::Answered { asker, answer, is_written });
    }

    /// Decides on all that waits, in its order, until something is to be written.
    fn go_on(&mut self, key: &ShareKey, now: Now) {
        while let Some(entry) = self.entries.get_mut(key).filter(|it| !it.flying) {
            let Some((asker, ask)) = entry.waiting.pop_front() else { break };
            let mut askers = vec![asker];
            let ask = entry.with_more(ask, &mut askers);
            let entry = &self.entries[key];
            let is_early = sabotage::is(Bug::ShareKeptEarly) && matches!(ask, Ask::Write { .. });
            match self.decide(key, entry, ask, now) {
                Decision::Answer(answer) => {
                    for asker in askers {
                        self.answer(asker, answer.clone(), false);
                    }
                }
                Decision::Write(records) => {
                    let is_its = records.iter().any(|it| it.key() == key);
                    assert!(is_its, "a decision on {key} is a record of this key");
                    let epochs = records.iter().filter_map(|it| match it {
                        ShareRecord::Snapshot(_, it) => Some(it.state.state_epoch),
                        _ => None,
                    });
                    self.taken = epochs.fold(self.taken, i32::max);
                    if is_early {
                        let state = entry.kept.as_ref().map(|it| it.state.clone());
                        for asker in mem::take(&mut askers) {
                            self.answer(asker, Ok(state.clone()), true);
                        }
                    }
                    self.append(records, vec![key.clone()], askers);
                }
            }
        }
        if self.entries.get(key).is_some_and(|it| it.kept.is_none() && !it.flying) {
            self.entries.remove(key);
        }
    }

    fn decide(&self, key: &ShareKey, entry: &Entry, ask: Ask, now: Now) -> Decision {
        let kept = entry.kept.as_ref();
        let state = kept.map(|it| &*it.state);
        let known = || Decision::Answer(Ok(kept.map(|it| it.state.clone())));
        let refuse = |code| Decision::Answer(Err(code));
        let epoch = state.map(|it| it.state_epoch);
        match ask {
            Ask::Begin if kept.is_some() => known(),
            Ask::Look => known(),
            Ask::Begin => self.begin(key, kept, None, -1, now),
            Ask::Reset { of, .. } if of != epoch => refuse(ErrorCode::FencedStateEpoch),
            Ask::Reset { start, .. } => self.begin(key, kept, None, start, now),
            Ask::Initialize { epoch: wanted, .. } if wanted != -1 && epoch > Some(wanted) => {
                refuse(ErrorCode::FencedStateEpoch)
            }
            Ask::Initialize { epoch, start } => self.begin(key, kept, Some(epoch), start, now),
            Ask::Delete { of: Some(of) } if epoch.is_some_and(|it| it != of) => {
                refuse(ErrorCode::FencedStateEpoch)
            }
            Ask::Delete { .. } if kept.is_none() => known(),
            Ask::Delete { .. } => Decision::Write(vec![ShareRecord::Gone(key.clone())]),
            Ask::Read { leader_epoch } => {
                let Some(kept) = kept else { return refuse(ErrorCode::InvalidRequest) };
                if kept.state.is_from_before(leader_epoch) {
                    return refuse(ErrorCode::FencedLeaderEpoch);
                }
                if leader_epoch == -1 || leader_epoch == kept.state.leader_epoch {
                    return known();
                }
                let update = Update {
                    number: kept.number,
                    leader_epoch,
                    start: kept.state.start,
                    complete: kept.state.complete,
                    batches: Vec::new(),
                };
                self.update(key, kept, update, now)
            }
            Ask::Write { leader_epoch, write } => {
                let Some(kept) = kept else { return refuse(ErrorCode::InvalidRequest) };
                let is_old = kept.state.is_from_before(leader_epoch);
                if is_old && !sabotage::is(Bug::EarlierLeaderTaken) {
                    return refuse(ErrorCode::FencedLeaderEpoch);
                }
                if write.state_epoch != -1 && epoch > Some(write.state_epoch) {
                    return refuse(ErrorCode::FencedStateEpoch);
                }
                // A leader's writes may come in another order.
                let start = if write.start > kept.state.start { write.start } else { -1 };
                let update = Update {
                    number: kept.number,
                    leader_epoch: kept.state.leader_epoch,
                    start,
                    complete: write.complete,
                    batches: combined(write.batches.iter().copied(), start),
                };
                let after = kept.state.updated(&update);
                let is_said =
                    (after.start, &after.batches) == (kept.state.start, &kept.state.batches);
                // The write is stored already; or it came late, and a later one stored more.
                if is_said { known() } else { self.update(key, kept, update, now) }
            }
        }
    }

    /// Returns a snapshot of a state in which nothing has happened yet.
    fn begin(
        &self,
        key: &ShareKey,
        kept: Option<&Kept>,
        epoch: Option<i32>,
        start: i64,
        now: Now,
    ) -> Decision {
        let of_before = kept.map_or(i32::MIN, |it| it.state.state_epoch);
        let counted = self.taken.max(of_before).checked_add(1);
        let Some(state_epoch) = epoch.or(counted) else {
            return Decision::Answer(Err(ErrorCode::UnknownServerError));
        };
        let state = ShareState {
            state_epoch,
            leader_epoch: kept.map_or(0, |it| it.state.leader_epoch),
            start,
            complete: if start == -1 { -1 } else { 0 },
            batches: Vec::new(),
        };
        let number = kept.map_or(0, |it| it.number.saturating_add(1));
        let mut records = vec![snapshot(key, number, state, now)];
        if epoch.is_none() {
            records.push(counter(state_epoch));
        }
        Decision::Write(records)
    }

    /// Returns an update with the change, or a snapshot of all after too many updates.
    fn update(&self, key: &ShareKey, kept: &Kept, update: Update, now: Now) -> Decision {
        let (start, leader_epoch) = (kept.state.start, kept.state.leader_epoch);
        let goes_on = update.start == -1 || update.start >= start;
        assert!(goes_on, "the start of {key} never goes back from {start}, to {}", update.start);
        let goes_on = update.leader_epoch >= leader_epoch;
        assert!(goes_on, "{key}: {} is no earlier leader than {leader_epoch}", update.leader_epoch);
        if kept.updates < self.updates_max {
            return Decision::Write(vec![ShareRecord::Update(key.clone(), update)]);
        }
        let number = kept.number.saturating_add(1);
        let mut state = kept.state.updated(&update);
        if sabotage::is(Bug::ShareSnapshotBare) {
            state.batches.clear();
        }
        Decision::Write(vec![snapshot(key, number, state, now)])
    }
}

/// Returns the record of a whole state that is made and written now.
fn snapshot(key: &ShareKey, number: i32, state: ShareState, now: Now) -> ShareRecord {
    let (state, created_ms, written_ms) = (Arc::new(state), now.wall_ms, now.wall_ms);
    ShareRecord::Snapshot(key.clone(), Snapshot { number, state, created_ms, written_ms })
}

/// Returns the record that sets the counter of epochs.
fn counter(epoch: i32) -> ShareRecord {
    let state = ShareState {
        state_epoch: epoch,
        leader_epoch: 0,
        start: -1,
        complete: -1,
        batches: Vec::new(),
    };
    let state = Arc::new(state);
    let snapshot = Snapshot { number: 0, state, created_ms: 0, written_ms: 0 };
    ShareRecord::Snapshot(COUNTER.clone(), snapshot)
}

impl Entry {
    /// Merges a write with the waiting writes of the same leader that follow it.
    fn with_more(&mut self, ask: Ask, askers: &mut Vec<Asker>) -> Ask {
        let Ask::Write { leader_epoch, mut write } = ask else { return ask };
        let is_one = |leader: i32, other: &ShareWrite| {
            (leader, other.state_epoch) == (leader_epoch, write.state_epoch)
        };
        while let Some((_, Ask::Write { leader_epoch: leader, write: other })) =
            self.waiting.front()
            && is_one(*leader, other)
        {
            let Some((asker, Ask::Write { write: other, .. })) = self.waiting.pop_front() else {
                break;
            };
            askers.push(asker);
            write.start = write.start.max(other.start);
            write.complete = other.complete;
            write.batches.extend(other.batches);
        }
        Ask::Write { leader_epoch, write }
    }
}

impl ShareState {
    /// Tells whether a request of this leader epoch comes from an earlier leader, which may change nothing any more.
    fn is_from_before(&self, leader_epoch: i32) -> bool {
        leader_epoch != -1 && self.leader_epoch > leader_epoch
    }

    fn updated(&self, update: &Update) -> Self {
        let start = if update.start == -1 { self.start } else { update.start };
        let leader_epoch =
            if update.leader_epoch == -1 { self.leader_epoch } else { update.leader_epoch };
        let new = combined(update.batches.iter().copied(), start);
        Self {
            state_epoch: self.state_epoch,
            leader_epoch,
            start,
            complete: update.complete,
            batches: merged(&self.batches, &new, start),
        }
    }
}

/// Records.
impl Coordinator {
    fn append(
        &mut self,
        records: Vec<ShareRecord>,
        keys: Vec<ShareKey>,
        askers: Vec<Asker>,
    ) -> Ticket {
        for key in &keys {
            let entry = self.entries.get_mut(key).expect("it is known");
            let before = mem::replace(&mut entry.flying, true);
            assert!(!before, "{key:?} has no other record under way");
        }
        self.ledger.launch(records, Flight { keys, askers }, Output::Append)
    }

    /// Takes the result of an [`Output::Append`]: its records are durable from this offset on, or will never be in the
    /// log. Successes come in the order of the log.
    pub(crate) fn on_appended(&mut self, ticket: Ticket, result: Result<i64, ErrorCode>, now: Now) {
        let Some((records, Flight { keys, askers })) = self.ledger.land(ticket, result) else {
            return;
        };
        if let Ok(base) = result {
            for (record, at) in records.into_iter().zip(base..) {
                self.apply(at, record);
            }
        }
        for key in &keys {
            let entry = self.entries.get_mut(key).expect("what flies is known");
            entry.flying = false;
        }
        if let [key] = &keys[..] {
            let kept = self.entries.get(key).and_then(|it| it.kept.as_ref());
            let answer = match result {
                Ok(_) => Ok(kept.map(|it| it.state.clone())),
                Err(code) => Err(told(code)),
            };
            for asker in askers {
                self.answer(asker, answer.clone(), result.is_ok());
            }
        }
        for key in &keys {
            self.go_on(key, now);
        }
    }

    /// Applies a record that is in the log, and durable. Durable state changes nowhere else.
    pub(crate) fn apply(&mut self, at: i64, record: ShareRecord) {
        let bytes = record.bytes();
        match record {
            ShareRecord::Snapshot(key, it) if key == *COUNTER => {
                let epoch = it.state.state_epoch;
                self.taken = self.taken.max(epoch);
                // Two may have come in another order than they were taken in.
                if self.counted.is_none_or(|(_, counted)| counted <= epoch) {
                    if let Some((before, _)) = self.counted.replace((at, epoch)) {
                        assert!(before < at, "the counter at {at} replaces that at {before}");
                        self.ledger.live.remove(before);
                    }
                    self.ledger.live.put(at, key, bytes);
                }
            }
            ShareRecord::Snapshot(key, it) => {
                self.taken = self.taken.max(it.state.state_epoch);
                let entry = self.entries.entry(key.clone()).or_default();
                let Snapshot { number, state, created_ms, written_ms } = it;
                let kept = Kept { state, number, created_ms, written_ms, at, updates: 0, bytes };
                if let Some(before) = entry.kept.replace(kept) {
                    assert!(before.at < at, "{key} at {at} replaces what is at {}", before.at);
                    self.ledger.live.remove(before.at);
                }
                self.ledger.live.put(at, key, bytes);
            }
            ShareRecord::Update(key, update) => {
                // An update whose snapshot is no longer live: a later snapshot has all of it.
                let entry = self.entries.get_mut(&key);
                let Some(kept) = entry.and_then(|it| it.kept.as_mut()) else { return };
                assert!(kept.at < at, "the update of {key} at {at} follows its snapshot");
                kept.state = Arc::new(kept.state.updated(&update));
                kept.updates += 1;
                kept.bytes += bytes;
                self.ledger.live.remove(kept.at);
                self.ledger.live.put(kept.at, key, kept.bytes);
            }
            ShareRecord::Gone(key) => {
                let Some(entry) = self.entries.get_mut(&key) else { return };
                if let Some(before) = entry.kept.take() {
                    self.ledger.live.remove(before.at);
                }
                if !entry.flying && entry.waiting.is_empty() {
                    self.entries.remove(&key);
                }
            }
        }
    }
}

/// Keeping the log short.
impl Coordinator {
    /// Returns the live records of the log. The log may be trimmed before the first of them.
    pub(crate) fn live(&self) -> &Live<ShareKey> {
        &self.ledger.live
    }

    /// Appends snapshots of the keys whose records lie before an offset, up to about `bytes_max` bytes. Leaves out keys
    /// that have an append under way. Returns the ticket of the append, or none if there is nothing to append.
    pub(crate) fn renew(&mut self, before: i64, bytes_max: usize) -> Option<Ticket> {
        let keys: BTreeSet<&ShareKey> =
            self.ledger.live.before(before).map(|(key, _)| key).collect();
        let current = keys.into_iter().filter_map(|key| {
            if *key == *COUNTER {
                return Some(counter(self.counted.map_or(0, |(_, epoch)| epoch)));
            }
            let kept = self.entries.get(key).filter(|it| !it.flying)?.kept.as_ref()?;
            let snapshot = Snapshot {
                number: kept.number.saturating_add(1),
                state: kept.state.clone(),
                created_ms: kept.created_ms,
                written_ms: kept.written_ms,
            };
            Some(ShareRecord::Snapshot(key.clone(), snapshot))
        });
        let sized = current.map(|record| {
            let bytes = record.bytes();
            (record, bytes)
        });
        let records = ledger::first_bytes(sized, bytes_max);
        if records.is_empty() {
            return None;
        }
        let keys = records.iter().map(ShareRecord::key).filter(|key| **key != *COUNTER);
        let keys = keys.cloned().collect();
        Some(self.append(records, keys, Vec::new()))
    }
}

#[cfg(test)]
mod tests;
