//! # Room card: coordinator
//!
//! Purpose:    all consumer groups that live in one partition of `__consumer_offsets`.
//! Owns:       [`Coordinator`]: memberships and committed offsets, the appends under way for them, and which records of
//!             the log are live.
//! Interface:  a function a request (`coordinator/requests.rs`), answered by an [`Output`] now or later;
//!             [`Coordinator::apply`] and [`Coordinator::loaded`] first; [`Coordinator::on_appended`];
//!             [`Coordinator::on_time`] at [`Coordinator::deadline_us`]; [`Coordinator::expire`] now and then;
//!             [`Coordinator::renew`] and [`Coordinator::live`] to keep the log short.
//! Invariants: durable state changes in `Group::apply` only, by a record that is in the log; each request gets one
//!             answer; no answer shows an offset that is not durable; a fetch sees all commits of its group that came
//!             before it.
//! Never:      clocks, chance, I/O, batches, which topics exist: the caller hands all that in.
//! Tests:      `coordinator/tests.rs`, by scenario and by chance.
//! Start at:   [`Coordinator::offset_commit`], then `append`, [`Coordinator::on_appended`], `Group::apply`.
//!
//! Order. The caller appends in the order of the [`Output::Append`]s, and reports successes in the order of the log. So
//! a decision that knows of all earlier appends, durable or not, still holds where its record lands. A tombstone
//! follows every commit that it removes. A renewal ([`Coordinator::renew`]) never appends a record again whose key has
//! a newer value under way. A value that is decided later lands later.
//!
//! Keeping the log short. The coordinator knows the offset of the last record of every live key. Below the smallest of
//! these offsets no record is live, so the log may be trimmed there at any time. To let that offset rise, a renewal
//! appends the records below some offset again. A consumer that reads the topic from its start finds the last value of
//! every live key.
//!
//! Bounds. The commits of clients bound the state: one slot for each group and partition with an offset, until it
//! expires. The coordinator forgets a group without members, offsets and appends under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use duramen_protocol::messages::delete_groups::DeletableGroupResult;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use duramen_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchResponseGroup};
use duramen_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use duramen_protocol::messages::{
    OffsetCommitResponse, OffsetDeleteResponse, TxnOffsetCommitResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::consumer::{Answer, ConsumerGroup};
use super::membership::{self, Effect, Membership, State};
use super::offsets::{Committed, Offsets};
use super::records::{Fact, FactValue, GroupMetadataValue, GroupRecord, NEVER, OffsetCommitKey};
use super::rules::Rules;
use super::share::ShareGroup;
use crate::event::{Now, RequestKey};
use crate::internal_topics::told;
use crate::ledger::{self, Due, Ledger, Live, Ticket};
use crate::shares::ShareKey;
use crate::shares::coordinator::Ask;

pub(crate) mod census;
mod consumer;
mod inspection;
mod requests;
mod share;

use consumer::Asked;
use share::changes::Changing;
pub(crate) use share::changes::{Wish, refused_wish};

/// A key of the log that may have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Group(Arc<str>),
    Offset {
        group: Arc<str>,
        topic: Arc<str>,
        partition: i32,
    },
    Consumer {
        group: Arc<str>,
        fact: Fact,
    },
    /// Offset that a transaction has yet to commit, which a renewal cannot append again.
    Pending,
}

/// Effects of requests, appends and time.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    /// Answer this request.
    Reply(RequestKey, Box<Response>),
    /// One group's part of the answer to an `OffsetFetch`.
    Fetched { key: RequestKey, part: usize, group: Box<OffsetFetchResponseGroup> },
    /// One group's part of the answer to a `DeleteGroups`.
    Deleted { key: RequestKey, part: usize, result: DeletableGroupResult },
    /// Append these records as one batch, then call [`Coordinator::on_appended`]. With a transactor, the batch is part
    /// of that producer's transaction.
    Append(Ticket, Vec<GroupRecord>, Option<Transactor>),
    /// Ask the coordinator of a share group's stored state, then call [`Coordinator::on_share_answer`].
    AskShares(ShareKey, Ask),
}

/// Producer whose transaction commits offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transactor {
    pub producer_id: i64,
    pub epoch: i16,
}

/// Act that follows once the result of an append is known.
#[derive(Debug)]
enum Then {
    Nothing,
    Commit {
        key: RequestKey,
        answer: OffsetCommitResponse,
        is_transactional: bool,
    },
    DeleteOffsets(RequestKey, OffsetDeleteResponse),
    /// A group was deleted, by a request or because there is nothing left of it.
    DeleteGroup(Option<(RequestKey, usize)>),
    /// The group as a membership of this number wanted it stored.
    Stored {
        life: u64,
        ticket: membership::Ticket,
    },
    /// Decisions of a group of the consumer protocol, and the answers that follow.
    Decided(Vec<Answer>),
    /// The same, and there is more to be appended.
    More(Vec<GroupRecord>, Vec<Answer>),
    /// A group of the consumer protocol has ended, so that this request can go to it as one of the classic protocol.
    Cleared(Box<Asked>),
    /// The intent of an administrator's change of a share group is in the log, and the change follows.
    Declared,
}

/// Append under way.
#[derive(Debug)]
struct Flight {
    /// Group of the records; `None` for a renewal, which has records of many groups.
    group: Option<Arc<str>>,
    then: Then,
    /// Transaction of which the records are part.
    transactor: Option<Transactor>,
    /// Ticket of the last batch, where the records did not fit one batch; the act follows that batch.
    last: Ticket,
    /// Why an earlier batch of the same was not appended.
    spoiled: Option<ErrorCode>,
}

/// Fetch that waits until the results of all earlier appends are known.
#[derive(Debug)]
struct Reader {
    until: Ticket,
    key: RequestKey,
    part: usize,
    request: OffsetFetchRequestGroup,
    /// Flag that the reader wants no offset that an open transaction may change.
    stable: bool,
}

/// A group, a topic and a partition.
type Place = (Arc<str>, Arc<str>, i32);

/// One group.
#[derive(Debug, Default)]
struct Group {
    members: Membership,
    /// Number of this membership. Deleting the group ends a membership, and later results of its appends no longer
    /// count.
    life: u64,
    state: Option<State>,
    /// Wall time at which the group entered its state.
    since_ms: i64,
    /// Its durable record, and the offset of that.
    stored: Option<(i64, Arc<GroupMetadataValue>)>,
    /// Count of its records whose append is under way.
    stored_flying: u32,
    offsets: Offsets,
    flying: BTreeSet<Ticket>,
    readers: Vec<Reader>,
    /// Flag that the group's offsets were deleted. As in Kafka, the empty group stays until the next expiry, or its
    /// next coordinator.
    lingers: bool,
    /// Ticket of the group's deletion while its append is under way. For every later write, the group does not exist.
    is_ending: Option<Ticket>,
    /// Durable facts of a group of the consumer protocol, with the offset of each record.
    facts: BTreeMap<Fact, (i64, FactValue)>,
    /// Count of records of facts whose append is under way.
    facts_flying: u32,
    /// A group of the consumer protocol. While it is there, `members` is empty.
    consumer: Option<Box<ConsumerGroup>>,
    /// A share group.
    share: Option<Box<ShareGroup>>,
    /// Administrator's change of the group that is under way.
    changing: Option<Box<Changing>>,
    /// Partitions for which the group asked to begin stored state and has no answer yet.
    beginning: BTreeSet<(Uuid, i32)>,
    /// Flag that the last decision could not be stored. The next attempt to begin stored state then waits for a
    /// heartbeat, or the group would ask without end.
    has_failed: bool,
    /// Flag that a decision is being appended. Other requests wait until the result of the append is known.
    is_deciding: bool,
    /// Since when.
    deciding_since_us: u64,
    waiting: VecDeque<Asked>,
    /// Where it stands in [`Coordinator::due`].
    due_us: Option<u64>,
}

impl Group {
    fn is_idle(&self) -> bool {
        self.stored.is_none()
            && self.stored_flying == 0
            && self.offsets.is_empty()
            && self.flying.is_empty()
            && self.readers.is_empty()
            && !self.lingers
            && self.members.is_idle()
            && self.facts.is_empty()
            && self.waiting.is_empty()
            && self.changing.is_none()
    }

    /// Returns the time at which the group is due next, if nothing else happens before.
    fn deadline_us(&self) -> Option<u64> {
        if let Some(share) = &self.share {
            return share.deadline_us().filter(|_| !self.is_deciding);
        }
        match &self.consumer {
            // The group learns the time only after its decision is durable.
            Some(_) if self.is_deciding => None,
            Some(consumer) => consumer.deadline_us(),
            None => self.members.deadline_us(),
        }
    }

    /// Notes that an append of a record of the group begins.
    fn launch(&mut self, record: &GroupRecord) {
        match record {
            GroupRecord::Offset { key, .. } => self.offsets.launch(&key.topic, key.partition),
            GroupRecord::Group { .. } => self.stored_flying += 1,
            GroupRecord::Consumer { .. } => self.facts_flying += 1,
        }
    }

    /// Applies a record that is in the log, and durable. Durable state changes nowhere else.
    fn apply(&mut self, live: &mut Live<Key>, at: i64, record: GroupRecord) {
        let bytes = record.bytes();
        let before = match record {
            GroupRecord::Offset { key: OffsetCommitKey { group, topic, partition }, value } => {
                let topic = self.offsets.name(&topic);
                let committed = value.map(|value| Committed { at, value });
                match &committed {
                    Some(_) => {
                        let key = Key::Offset { group, topic: topic.clone(), partition };
                        live.put(at, key, bytes);
                    }
                    None => {
                        for pending in self.offsets.release_all(&topic, partition) {
                            live.remove(pending.at);
                        }
                    }
                }
                self.offsets.put(&topic, partition, committed).map(|before| before.at)
            }
            GroupRecord::Group { group, value } => {
                if value.is_some() {
                    live.put(at, Key::Group(group), bytes);
                }
                let stored = value.map(|value| (at, value));
                mem::replace(&mut self.stored, stored).map(|(before, _)| before)
            }
            GroupRecord::Consumer { group, fact, value } => {
                let before = match value {
                    Some(value) => {
                        live.put(at, Key::Consumer { group, fact: fact.clone() }, bytes);
                        self.facts.insert(fact, (at, value))
                    }
                    None => self.facts.remove(&fact),
                };
                before.map(|(before, _)| before)
            }
        };
        if let Some(before) = before {
            assert!(
                before < at,
                "the record at {at} replaces an earlier one, not that at {before}"
            );
            live.remove(before);
        }
    }

    /// Holds an offset of an open transaction that is in the log, and durable.
    fn hold(&mut self, live: &mut Live<Key>, at: i64, record: GroupRecord, producer_id: i64) {
        let bytes = record.bytes();
        let GroupRecord::Offset { key, value: Some(value) } = record else { return };
        let topic = self.offsets.name(&key.topic);
        live.put(at, Key::Pending, bytes);
        let before = self.offsets.hold(&topic, key.partition, producer_id, Committed { at, value });
        if let Some(before) = before {
            assert!(before.at < at, "{producer_id} holds the later of {} and {at}", before.at);
            live.remove(before.at);
        }
    }

    /// Releases an offset whose transaction has ended.
    fn release(
        &mut self,
        live: &mut Live<Key>,
        key: OffsetCommitKey,
        producer_id: i64,
        commits: bool,
    ) {
        let topic = self.offsets.name(&key.topic);
        let Some(pending) = self.offsets.release(&topic, key.partition, producer_id) else {
            return;
        };
        live.remove(pending.at);
        let slot = self.offsets.slot(&topic, key.partition);
        let newer = slot.and_then(|slot| slot.committed.as_ref());
        if commits && newer.is_none_or(|newer| newer.at < pending.at) {
            let (at, value) = (pending.at, Some(pending.value));
            self.apply(live, at, GroupRecord::Offset { key, value });
        }
    }

    /// Notes that the result of a record of the group is known.
    fn land(&mut self, record: &GroupRecord) {
        match record {
            GroupRecord::Offset { key, .. } => self.offsets.land(&key.topic, key.partition),
            GroupRecord::Group { .. } => self.stored_flying -= 1,
            GroupRecord::Consumer { .. } => self.facts_flying -= 1,
        }
    }
}

/// All groups of one partition of `__consumer_offsets`.
#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    groups: BTreeMap<Arc<str>, Group>,
    ledger: Ledger<Key, GroupRecord, Flight, Output>,
    /// When groups are due at the earliest. A sign of life moves that later, which is noticed only then.
    due: Due,
    /// Groups of the consumer protocol that [`Coordinator::go_on`] has to look at.
    ready: BTreeSet<Arc<str>>,
    /// Offsets that open transactions are to commit, by their producers.
    in_transactions: BTreeMap<i64, BTreeSet<Place>>,
    next_life: u64,
}

/// About as many bytes of records go into one batch, where records can be parted.
const BATCH_BYTES: usize = if cfg!(test) { 512 } else { 256 << 10 };

/// Coming and going.
impl Coordinator {
    /// Knows nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Ends the replay of the log, after which requests may come. Every member gets a new session timeout. A group that
    /// exceeds its present limit begins a rebalance to find out which members stay.
    pub(crate) fn loaded(&mut self, rules: &Rules, now: Now) {
        let names: Vec<Arc<str>> = self.groups.keys().cloned().collect();
        for name in names {
            let group = self.groups.get_mut(&name).expect("it is listed");
            group.since_ms = NEVER;
            if group.has_share_facts() {
                // The group's first request for stored state waits until it next sees the topics.
                group.begin_share(&rules.share, now);
                self.ready.insert(name.clone());
            } else if !group.facts.is_empty() {
                group.begin_consumer(&rules.consumer, now);
            } else if let Some((_, value)) = &group.stored {
                group.since_ms = value.current_state_timestamp;
                group.members = Membership::load(value, now.mono_us);
            }
            group.state = Some(group.members.state());
            group.members.shrink_to(rules.members_max);
            self.settle(&name, now);
        }
    }

    /// Refuses all waiting requests, because another node coordinates the groups now.
    pub(crate) fn unload(&mut self) {
        for flight in self.ledger.close() {
            let group = flight.group.unwrap_or_default();
            self.answer(&group, flight.then, Err(ErrorCode::NotCoordinator));
        }
        for mut group in mem::take(&mut self.groups).into_values() {
            group.members.end(ErrorCode::NotCoordinator);
            for effect in group.members.take_effects() {
                self.tell(effect);
            }
            if let Some(changing) = group.changing {
                self.refuse_change("", *changing, ErrorCode::NotCoordinator);
            }
            for asked in group.waiting {
                self.refuse(asked, ErrorCode::NotCoordinator);
            }
            for reader in group.readers {
                let answer = Self::not_fetched(&reader.request, ErrorCode::NotCoordinator);
                self.push_fetched(reader.key, reader.part, answer);
            }
        }
        let Self { ledger, next_life, .. } = mem::take(self);
        *self = Self { ledger, next_life, ..Self::default() };
    }

    /// Returns the effects of everything since the last call.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        self.ledger.take_outputs()
    }
}

/// Time.
impl Coordinator {
    /// Returns the time at which [`Self::on_time`] is due next, if nothing else happens before.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.due.first_us()
    }

    /// Does everything that is due by now.
    pub(crate) fn on_time(&mut self, now: Now) {
        for name in self.due.by(now.mono_us) {
            let group = self.group_mut(&name);
            if group.consumer.is_some() || group.share.is_some() {
                self.schedule(&name, None);
                self.ready.insert(name);
                continue;
            }
            group.members.on_time(now.mono_us);
            self.settle(&name, now);
        }
    }

    fn schedule(&mut self, name: &Arc<str>, due_us: Option<u64>) {
        if let Some(group) = self.groups.get_mut(name) {
            self.due.set(name, &mut group.due_us, due_us);
        }
    }

    /// Brings a group's deadline forward for a member that sent something, whose deadline may come before the group's.
    fn hasten(&mut self, name: &Arc<str>, id: &str) {
        let Some(group) = self.groups.get(name) else { return };
        let expires_us = match (&group.consumer, &group.share) {
            (Some(consumer), _) => consumer.expires_us(id),
            (None, Some(share)) => share.expires_us(id),
            (None, None) => group.members.expires_us(id),
        };
        // A group that stands nowhere gets the deadline of all its members once its requests are served.
        if let Some(expires_us) = expires_us.filter(|us| group.due_us.is_some_and(|due| *us < due))
        {
            self.schedule(name, Some(expires_us));
        }
    }

    /// Brings a group's effects, state and deadline up to date after a change.
    fn settle(&mut self, name: &Arc<str>, now: Now) {
        let Some(group) = self.groups.get_mut(name) else { return };
        if group.state != Some(group.members.state()) {
            group.state = Some(group.members.state());
            group.since_ms = now.wall_ms;
        }
        let (life, since_ms) = (group.life, group.since_ms);
        for effect in group.members.take_effects() {
            if let Effect::Store(ticket, stored) = effect {
                let value = GroupMetadataValue { current_state_timestamp: since_ms, ..stored };
                let value = Some(Arc::new(value));
                let record = GroupRecord::Group { group: name.clone(), value };
                self.append(Some(name), vec![record], Then::Stored { life, ticket });
            } else {
                self.tell(effect);
            }
        }
        let Some(group) = self.groups.get(name) else { return };
        if group.is_idle() {
            self.forget(name);
        } else {
            let due_us = group.deadline_us();
            self.schedule(name, due_us);
        }
    }

    fn tell(&mut self, effect: Effect) {
        match effect {
            Effect::Joined(key, answer) => self.reply(key, answer),
            Effect::Synced(key, answer) => self.reply(key, answer),
            Effect::Store(..) => {}
        }
    }

    fn reply(&mut self, key: RequestKey, answer: impl Into<Response>) {
        self.ledger.push(Output::Reply(key, Box::new(answer.into())));
    }
}

/// Writing.
impl Coordinator {
    /// Appends records as one batch.
    fn append(&mut self, name: Option<&Arc<str>>, records: Vec<GroupRecord>, then: Then) {
        let ticket = self.ledger.next_ticket();
        self.launch(name, records, then, ticket, None);
    }

    /// Appends offsets of a request that gets this answer, as part of a producer's transaction if there is one.
    fn append_commit(
        &mut self,
        name: &Arc<str>,
        records: Vec<GroupRecord>,
        (key, answer): (RequestKey, OffsetCommitResponse),
        transactor: Option<Transactor>,
    ) {
        let then = Then::Commit { key, answer, is_transactional: transactor.is_some() };
        let ticket = self.ledger.next_ticket();
        self.launch(Some(name), records, then, ticket, transactor);
    }

    /// Appends records in as many batches as they need. The act in `then` follows the last batch, whose ticket this
    /// function returns, and fails if one batch fails.
    fn append_parted(&mut self, name: &Arc<str>, records: Vec<GroupRecord>, then: Then) -> Ticket {
        let mut batches = vec![Vec::new()];
        let mut bytes = 0;
        for record in records {
            bytes += record.bytes();
            if bytes > BATCH_BYTES && batches.last().is_some_and(|batch| !batch.is_empty()) {
                bytes = record.bytes();
                batches.push(Vec::new());
            }
            batches.last_mut().expect("there is one").push(record);
        }
        let last = self.ledger.next_ticket() + batches.len() as u64 - 1;
        let final_batch = batches.pop().unwrap_or_default();
        for batch in batches {
            self.launch(Some(name), batch, Then::Nothing, last, None);
        }
        self.launch(Some(name), final_batch, then, last, None);
        assert_eq!(last + 1, self.ledger.next_ticket(), "the act follows the last batch");
        last
    }

    fn launch(
        &mut self,
        name: Option<&Arc<str>>,
        records: Vec<GroupRecord>,
        then: Then,
        last: Ticket,
        transactor: Option<Transactor>,
    ) {
        let ticket = self.ledger.next_ticket();
        if let Some(name) = name {
            let group = self.group_mut(name);
            debug_assert!(
                records.iter().all(|it| it.group() == name),
                "an append for {name} has records of this group only"
            );
            group.flying.insert(ticket);
            for record in &records {
                group.launch(record);
            }
        } else {
            for record in &records {
                self.group_mut(record.group()).launch(record);
            }
        }
        let flight = Flight { group: name.cloned(), then, transactor, last, spoiled: None };
        let append = |ticket, records| Output::Append(ticket, records, transactor);
        self.ledger.launch(records, flight, append);
    }

    fn group_mut(&mut self, name: &Arc<str>) -> &mut Group {
        if !self.groups.contains_key(name) {
            let life = self.new_life();
            self.groups.insert(name.clone(), Group { life, ..Group::default() });
        }
        self.groups.get_mut(name).expect("it is there now")
    }

    fn group_and_live(&mut self, name: &Arc<str>) -> (&mut Group, &mut Live<Key>) {
        self.group_mut(name);
        (self.groups.get_mut(name).expect("it is there now"), &mut self.ledger.live)
    }

    fn new_life(&mut self) -> u64 {
        self.next_life += 1;
        self.next_life
    }

    /// Takes the result of an [`Output::Append`]: its records are durable from this offset on, or will never be in the
    /// log. Successes come in the order of the log.
    pub(crate) fn on_appended(&mut self, ticket: Ticket, result: Result<i64, ErrorCode>, now: Now) {
        let Some((records, flight)) = self.ledger.land(ticket, result) else { return };
        let Flight { group, then, transactor, last, spoiled } = flight;
        if let (Err(code), Some(flight)) = (result, self.ledger.flight_mut(last)) {
            flight.spoiled.get_or_insert(code);
        }
        let Some(name) = group else {
            for (record, delta) in records.into_iter().zip(0..) {
                let name = record.group().clone();
                self.group_mut(&name).land(&record);
                if let Ok(base) = result {
                    self.apply(base + delta, record);
                }
                self.forget_if_idle(&name);
            }
            return;
        };
        for (record, delta) in records.into_iter().zip(0..) {
            let (group, live) = self.group_and_live(&name);
            group.land(&record);
            match (result, transactor) {
                (Ok(base), None) => group.apply(live, base + delta, record),
                (Ok(base), Some(it)) => self.hold(base + delta, record, it.producer_id),
                (Err(_), _) => {}
            }
        }
        self.group_mut(&name).flying.remove(&ticket);
        let result = result.map(|_| ()).and(spoiled.map_or(Ok(()), Err)).map_err(told);
        // Time passes only for members that the append concerned.
        let is_of_members = !matches!(
            then,
            Then::Nothing | Then::Commit { is_transactional: false, .. } | Then::DeleteOffsets(..)
        );
        self.carry_on(ticket, &name, then, result, now);
        self.answer_readers(&name);
        if is_of_members {
            self.settle(&name, now);
        } else {
            self.forget_if_idle(&name);
        }
    }

    fn carry_on(
        &mut self,
        ticket: Ticket,
        name: &Arc<str>,
        then: Then,
        result: Result<(), ErrorCode>,
        now: Now,
    ) {
        match then {
            Then::Stored { life, ticket } => {
                let group = self.group_mut(name);
                if group.life == life {
                    group.members.on_stored(ticket, result, now.mono_us);
                }
            }
            Then::DeleteGroup(_) => {
                let group = self.group_mut(name);
                if group.is_ending == Some(ticket) {
                    group.is_ending = None;
                    assert!(group.members.is_idle(), "{name} got no member while it was ending");
                    // The group had no member then and got none meanwhile, so it goes back to its stored state.
                    if let (Err(_), Some((_, value))) = (result, &group.stored) {
                        group.since_ms = value.current_state_timestamp;
                        group.members = Membership::load(value, now.mono_us);
                    }
                }
                self.ready.insert(name.clone());
                self.answer(name, then, result);
            }
            Then::More(records, answers) if result.is_ok() => {
                self.append_in_order(name, records, answers);
            }
            Then::Decided(_) | Then::More(..) => {
                self.on_decided(name, result.is_ok(), now);
                self.answer(name, then, result);
            }
            Then::Cleared(asked) if result.is_ok() => {
                self.on_decided(name, true, now);
                self.group_mut(name).waiting.push_front(*asked);
            }
            Then::Cleared(_) => {
                self.on_decided(name, false, now);
                self.answer(name, then, result);
            }
            Then::Declared => self.on_declared(name, result),
            then => self.answer(name, then, result),
        }
    }

    fn answer(&mut self, name: &str, then: Then, result: Result<(), ErrorCode>) {
        let code = result.err().unwrap_or(ErrorCode::None);
        match then {
            Then::Nothing | Then::Stored { .. } | Then::DeleteGroup(None) | Then::Declared => {}
            Then::Commit { key, mut answer, is_transactional } => {
                let partitions = answer.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
                for partition in partitions.filter(|it| it.error_code == ErrorCode::None.code()) {
                    partition.error_code = code.code();
                }
                self.reply_commit(key, answer, is_transactional);
            }
            Then::DeleteOffsets(key, mut answer) => {
                if code != ErrorCode::None {
                    answer = OffsetDeleteResponse {
                        error_code: code.code(),
                        ..OffsetDeleteResponse::default()
                    };
                }
                self.reply(key, answer);
            }
            Then::DeleteGroup(Some((key, part))) => {
                self.push_deleted(key, part, name, code);
            }
            Then::Cleared(asked) => self.refuse(*asked, code),
            Then::Decided(answers) | Then::More(_, answers) => {
                for (key, answer) in answers {
                    let answer =
                        if result.is_ok() { answer } else { consumer::refused(answer, code) };
                    self.reply(key, answer);
                }
            }
        }
    }

    /// Answers a commit, with the response of a `TxnOffsetCommit` if it came by one.
    fn reply_commit(
        &mut self,
        key: RequestKey,
        answer: OffsetCommitResponse,
        is_transactional: bool,
    ) {
        if !is_transactional {
            return self.reply(key, answer);
        }
        let partition = |it: OffsetCommitResponsePartition| TxnOffsetCommitResponsePartition {
            partition_index: it.partition_index,
            error_code: it.error_code,
        };
        let topic = |it: OffsetCommitResponseTopic| TxnOffsetCommitResponseTopic {
            name: it.name,
            partitions: it.partitions.into_iter().map(partition).collect(),
        };
        let topics = answer.topics.into_iter().map(topic).collect();
        self.reply(key, TxnOffsetCommitResponse { topics, ..TxnOffsetCommitResponse::default() });
    }

    fn answer_readers(&mut self, name: &Arc<str>) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let first = group.flying.first().copied();
        let is_ready = |reader: &mut Reader| first.is_none_or(|first| first > reader.until);
        let ready: Vec<Reader> = group.readers.extract_if(.., is_ready).collect();
        for reader in ready {
            let group = self.groups.get(name);
            let answer = Self::fetched(name, group, &reader.request, reader.stable);
            self.push_fetched(reader.key, reader.part, answer);
        }
    }

    fn push_deleted(&mut self, key: RequestKey, part: usize, name: &str, code: ErrorCode) {
        let result = DeletableGroupResult { group_id: name.to_owned(), error_code: code.code() };
        self.ledger.push(Output::Deleted { key, part, result });
    }

    fn push_fetched(&mut self, key: RequestKey, part: usize, group: OffsetFetchResponseGroup) {
        self.ledger.push(Output::Fetched { key, part, group: Box::new(group) });
    }

    /// Applies a record that is in the log, and durable. The caller replays the whole log by it, in the log's order,
    /// before the first request.
    pub(crate) fn apply(&mut self, at: i64, record: GroupRecord) {
        let name = record.group().clone();
        // A tombstone of an unknown key only had to outlast records that were trimmed since.
        if record.has_value() || self.groups.contains_key(&name) {
            let (group, live) = self.group_and_live(&name);
            group.apply(live, at, record);
            self.forget_if_idle(&name);
        }
    }

    /// Holds an offset of an open transaction that is in the log, and durable.
    pub(crate) fn hold(&mut self, at: i64, record: GroupRecord, producer_id: i64) {
        let name = record.group().clone();
        if let GroupRecord::Offset { key, .. } = &record {
            let held = self.in_transactions.entry(producer_id).or_default();
            held.insert((name.clone(), key.topic.clone(), key.partition));
        }
        let (group, live) = self.group_and_live(&name);
        group.hold(live, at, record, producer_id);
    }

    /// Applies a marker in this log, which ends a producer's transaction. The offsets of the transaction count now, or
    /// never will.
    pub(crate) fn on_marker(&mut self, producer_id: i64, commits: bool) {
        let held = self.in_transactions.remove(&producer_id).unwrap_or_default();
        for (group, topic, partition) in held {
            if let Some(it) = self.groups.get_mut(&group) {
                let key = OffsetCommitKey { group: group.clone(), topic, partition };
                it.release(&mut self.ledger.live, key, producer_id, commits);
            }
            self.forget_if_idle(&group);
        }
    }

    fn forget_if_idle(&mut self, name: &Arc<str>) {
        if self.groups.get(name).is_some_and(Group::is_idle) {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: &Arc<str>) {
        self.schedule(name, None);
        let Some(group) = self.groups.remove(name) else { return };
        assert_eq!(group.facts_flying, 0, "no renewed fact of {name}, now forgotten, is under way");
        assert!(!group.is_deciding, "{name}, now forgotten, has no decision under way");
    }
}

/// Keeping the log short.
impl Coordinator {
    /// Returns the live records of the log. The log may be trimmed before the first of them.
    pub(crate) fn live(&self) -> &Live<Key> {
        &self.ledger.live
    }

    /// Appends live records before an offset again: the oldest, up to about `bytes_max` bytes. Returns the ticket of
    /// that append, or none if there is nothing to append. Leaves out keys that have an append under way.
    pub(crate) fn renew(&mut self, before: i64, bytes_max: usize) -> Option<Ticket> {
        let live = self.ledger.live.before(before);
        let current = live.filter_map(|(key, bytes)| Some((self.current(key)?, bytes)));
        let records = ledger::first_bytes(current, bytes_max);
        let ticket = self.ledger.next_ticket();
        (!records.is_empty()).then(|| {
            self.append(None, records, Then::Nothing);
            ticket
        })
    }

    /// Returns a live key's record, or `None` if a newer one is under way: a renewed record would land after that.
    fn current(&self, key: &Key) -> Option<GroupRecord> {
        match key {
            Key::Group(name) => {
                let group = self.groups.get(name)?;
                let (_, value) = group.stored.as_ref().filter(|_| group.stored_flying == 0)?;
                Some(GroupRecord::Group { group: name.clone(), value: Some(value.clone()) })
            }
            Key::Consumer { group: name, fact } => {
                let group = self.groups.get(name)?;
                let (_, value) = group.facts.get(fact).filter(|_| group.facts_flying == 0)?;
                let (group, fact) = (name.clone(), fact.clone());
                Some(GroupRecord::Consumer { group, fact, value: Some(value.clone()) })
            }
            Key::Pending => None,
            Key::Offset { group, topic, partition } => {
                let slot = self.groups.get(group)?.offsets.slot(topic, *partition)?;
                // A transaction's pending offset has an older record than a renewed one would have, and must count
                // more.
                let is_at_rest = slot.flying == 0 && slot.pending.is_empty();
                let committed = slot.committed.as_ref().filter(|_| is_at_rest)?;
                let (group, topic, partition) = (group.clone(), topic.clone(), *partition);
                let key = OffsetCommitKey { group, topic, partition };
                Some(GroupRecord::Offset { key, value: Some(committed.value.clone()) })
            }
        }
    }
}

#[cfg(test)]
mod tests;
