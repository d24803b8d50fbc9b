//! Members of a group of the consumer protocol (KIP-848), and what they may be told.
//!
//! Members join, are told what to use, give up what they are told to, sooner or later, and say so; they fall silent, leave, and
//! begin anew, some under static names. They commit offsets for what they use, each with a larger number than all before; and so
//! do those that do not know yet that they are not who they were.
//!
//! What coordinators say is judged as they say it, also where nobody hears it. A partition is a member's from when it is told
//! so until it says otherwise, or is out: it left, is replaced, or was silent for a session, or slow to give up, by the clock
//! of whoever coordinates in this term. Nobody else is told of the partition before. From then on no commit of the one before
//! is taken. What is said in an earlier term, by who does not know that it coordinates no more, counts for nothing.

use std::collections::{BTreeMap, BTreeSet};

use duramen_broker::ConnectionId;
use duramen_protocol::messages::consumer_group_heartbeat::TopicPartitions;
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use duramen_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use duramen_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, CreateTopicsRequest,
    FindCoordinatorRequest, FindCoordinatorResponse, MetadataResponse, OffsetCommitRequest,
    OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Request, Response};

use super::committing::Known;
use super::share_group::{Answered, Sight};
use super::{Asked, expect_one_of, requests, unexpected};
use crate::failure::Failure;
use crate::prng::Prng;
use crate::trace::tell;

const GROUP: &str = "otters";
const TOPIC: &str = "fish";
const PATTERN: &str = "fi.*";
const PARTITIONS: i32 = 4;
const MEMBERS: usize = 3;
/// Where groups are kept, in so many partitions.
const LOG: &str = "__consumer_offsets";
const LOG_PARTITIONS: i32 = 2;
/// As the harness sets it.
const SESSION_US: u64 = 1_500_000;
const LEAVE: i32 = -1;
/// A static member leaves so, to come back.
const AWAY: i32 = -2;
/// A step of the harness: what a leader did may be seen so much later.
const STEP_US: u64 = 3_000;

const CODES: [ErrorCode; 10] = [
    ErrorCode::None,
    ErrorCode::CoordinatorLoadInProgress,
    ErrorCode::CoordinatorNotAvailable,
    ErrorCode::NotCoordinator,
    ErrorCode::UnknownMemberId,
    // All had fallen silent, and then the group was forgotten.
    ErrorCode::GroupIdNotFound,
    ErrorCode::FencedMemberEpoch,
    ErrorCode::StaleMemberEpoch,
    ErrorCode::FencedInstanceId,
    ErrorCode::UnreleasedInstanceId,
];

#[derive(Debug)]
struct Member {
    at: usize,
    lives: u64,
    instance: Option<&'static str>,
    has_pattern: bool,
    rebalance_timeout_ms: i32,
    id: String,
    epoch: i32,
    /// What it uses, and what it was told to use.
    uses: BTreeSet<i32>,
    wanted: BTreeSet<i32>,
    /// Who it was, in which epoch, and what it used.
    was: Option<(String, i32, BTreeSet<i32>)>,
    coordinator: Option<i32>,
    silent: u64,
    /// It may not have heard all: it says all the next time, and is told all.
    says_all: bool,
}

/// A heartbeat on its way.
#[derive(Clone, Debug)]
pub(super) struct Beat {
    id: String,
    epoch: i32,
    /// What it says that it uses.
    uses: BTreeSet<i32>,
    sent_us: u64,
}

/// A commit on its way.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    id: String,
    number: i64,
    partitions: Vec<i32>,
    /// Partitions for which it must be refused.
    void: BTreeSet<i32>,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Create,
    Overview,
    Find,
    Beat(Beat),
    Commit(Commit),
    Offsets,
}

/// Somebody by an id, as coordinators of the last term know it.
#[derive(Debug, Default)]
struct Owner {
    has: BTreeSet<i32>,
    /// What it said that it has given up, and in which epoch: as long as that is its own, it may commit for all.
    given_up: BTreeMap<i32, i32>,
    /// What it is to give up, and since when that may be known.
    revoked: BTreeMap<i32, u64>,
    /// When its last heartbeat was sent that was answered well, and in which term.
    beat_us: Option<(u64, u64)>,
    /// The first heartbeat since the last assignment that may have led to another one; the term of that.
    unheard_us: Option<u64>,
    told_in: u64,
    rebalance_timeout_us: u64,
    /// It said that it leaves.
    is_leaving: bool,
}

/// See above.
#[derive(Debug)]
pub(super) struct ConsumerGroup {
    all: Vec<Member>,
    owners: BTreeMap<String, Owner>,
    /// Whose each partition is by the last that somebody was told of it.
    newest: BTreeMap<i32, String>,
    term: u64,
    known: BTreeMap<i32, Known>,
    number: i64,
    is_created: bool,
    topic_id: Option<Uuid>,
    log_id: Option<Uuid>,
    at: Vec<Option<i32>>,
    aims: Vec<(usize, i32)>,
    lost: BTreeMap<ConnectionId, Beat>,
    last_phase: bool,
    is_told: bool,
    /// Assignments that were told, and commits that were refused.
    assigned: u64,
    refused: u64,
}

fn wrong<T>(what: String) -> Result<T, Failure> {
    Err(Failure::correctness(what))
}

fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError)
}

/// The partition in which a group is kept, as Kafka's clients know it.
fn log_partition() -> i32 {
    let hash = GROUP.bytes().fold(0i32, |hash, it| hash.wrapping_mul(31).wrapping_add(it.into()));
    (hash & i32::MAX) % LOG_PARTITIONS
}

impl Member {
    fn new(at: usize, shape: &mut Prng) -> Self {
        Self {
            at,
            lives: 0,
            instance: shape.chance(300).then_some(["ann", "bob", "cat"][at]),
            has_pattern: shape.chance(300),
            rebalance_timeout_ms: *shape.pick(&[500, 3_000]),
            id: format!("otter-{at}-0"),
            epoch: 0,
            uses: BTreeSet::new(),
            wanted: BTreeSet::new(),
            was: None,
            coordinator: None,
            silent: 0,
            says_all: false,
        }
    }

    fn remember(&mut self) {
        if !self.uses.is_empty() {
            self.was = Some((self.id.clone(), self.epoch, self.uses.clone()));
        }
    }

    /// It uses nothing any more, and has to join.
    fn fall_out(&mut self) {
        self.remember();
        self.epoch = 0;
        self.uses.clear();
        self.wanted.clear();
    }

    /// Its process begins anew.
    fn become_another(&mut self) {
        self.fall_out();
        self.lives += 1;
        self.id = format!("otter-{}-{}", self.at, self.lives);
    }

    fn request(&self, says_all: bool) -> ConsumerGroupHeartbeatRequest {
        let is_full = self.epoch == 0 || says_all;
        let pattern = self.has_pattern.then(|| PATTERN.to_owned());
        let names = if self.has_pattern { Vec::new() } else { vec![TOPIC.to_owned()] };
        ConsumerGroupHeartbeatRequest {
            group_id: GROUP.to_owned(),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            instance_id: self.instance.map(str::to_owned),
            rebalance_timeout_ms: if is_full { self.rebalance_timeout_ms } else { -1 },
            subscribed_topic_names: is_full.then_some(names),
            subscribed_topic_regex: pattern.filter(|_| is_full),
            ..ConsumerGroupHeartbeatRequest::default()
        }
    }
}

impl ConsumerGroup {
    /// In every thirteenth seed there is one.
    pub(super) fn of(seed: u64) -> Option<Self> {
        if seed % 13 != 11 {
            return None;
        }
        let mut shape = Prng::new(seed, "consumer groups");
        Some(Self {
            all: (0..MEMBERS).map(|at| Member::new(at, &mut shape)).collect(),
            owners: BTreeMap::new(),
            newest: BTreeMap::new(),
            term: 0,
            known: BTreeMap::new(),
            number: 0,
            is_created: false,
            topic_id: None,
            log_id: None,
            at: vec![None; MEMBERS],
            aims: Vec::new(),
            lost: BTreeMap::new(),
            last_phase: false,
            is_told: false,
            assigned: 0,
            refused: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.last_phase = true;
        self.is_told = false;
        self.all.iter_mut().for_each(|it| it.silent = 0);
    }

    /// Whether every partition is used by one member, all have what they are to have, and what was committed was told.
    pub(super) fn is_done(&self) -> bool {
        let all: Vec<i32> = self.all.iter().flat_map(|it| it.uses.iter().copied()).collect();
        let epochs: BTreeSet<i32> = self.all.iter().map(|it| it.epoch).collect();
        let is_settled = self.all.iter().all(|it| it.uses == it.wanted);
        let used: BTreeSet<i32> = all.iter().copied().collect();
        let is_each = all.len() == used.len() && used == (0..PARTITIONS).collect();
        is_each && is_settled && epochs.len() == 1 && self.is_told
    }

    /// Assignments that members were told, and commits of theirs that were refused.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.assigned, self.refused)
    }

    pub(super) fn told(&self) -> String {
        format!("{:?} {:?}", self.all, self.owners)
    }

    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.aims)
    }

    /// The client lost its connection, or went elsewhere.
    pub(super) fn on_moved(&mut self, at: usize, before: ConnectionId, asked: Option<&Asked>) {
        self.at[at] = None;
        match asked {
            Some(Asked::Otter(Question::Beat(beat))) => {
                self.lost.insert(before, beat.clone());
                (self.all[at].says_all, self.all[at].coordinator) = (true, None);
            }
            Some(_) => self.all[at].coordinator = None,
            None => {}
        }
    }

    pub(super) fn on_arrived(&mut self, at: usize, node: i32) {
        self.at[at] = Some(node);
    }

    pub(super) fn choose(
        &mut self,
        at: usize,
        work: &mut Prng,
        now_us: u64,
    ) -> Option<(Asked, Request, i16)> {
        if self.last_phase && self.is_done() {
            return None;
        }
        let (question, request, version) = self.turn(at, work, now_us)?;
        Some((Asked::Otter(question), request, version))
    }

    fn turn(
        &mut self,
        at: usize,
        work: &mut Prng,
        now_us: u64,
    ) -> Option<(Question, Request, i16)> {
        if !self.is_created {
            return (at == 0).then(|| (Question::Create, created(), 7));
        }
        let it = &mut self.all[at];
        it.silent = it.silent.saturating_sub(1);
        if it.silent > 0 {
            return None;
        }
        let Some(node) = it.coordinator else {
            let coordinator_keys = vec![GROUP.to_owned()];
            let request = FindCoordinatorRequest { coordinator_keys, ..Default::default() };
            return Some((Question::Find, request.into(), 4));
        };
        if self.topic_id.is_none() || self.log_id.is_none() {
            return Some((Question::Overview, requests::metadata_of_all(), 12));
        }
        if self.at[at] != Some(node) {
            self.aims.push((at, node));
            return None;
        }
        if !self.last_phase {
            match work.below(100) {
                0 => {
                    self.all[at].silent = work.between(10, 60);
                    return None;
                }
                1 => self.begin_anew(at),
                2 if self.all[at].epoch > 0 => return Some(self.leave(at, work, now_us)),
                3..=9 => {
                    if let Some((id, epoch, uses)) = self.all[at].was.clone() {
                        return Some(self.commit(at, (id, epoch), uses.into_iter().collect()));
                    }
                }
                _ => {}
            }
        }
        let it = &self.all[at];
        let is_in = it.epoch > 0;
        if is_in && !it.uses.is_empty() && work.chance(300) {
            let (who, uses) = ((it.id.clone(), it.epoch), it.uses.iter().copied().collect());
            return Some(self.commit(at, who, uses));
        }
        if is_in && work.chance(100) {
            return Some(offsets());
        }
        Some(self.beat(at, work, now_us))
    }

    /// A member's process dies, and begins anew. Whoever had a static name comes back under it when its session is over.
    fn begin_anew(&mut self, at: usize) {
        self.all[at].become_another();
    }

    fn beat(&mut self, at: usize, work: &mut Prng, now_us: u64) -> (Question, Request, i16) {
        let gives_up = self.last_phase || work.chance(400);
        let it = &mut self.all[at];
        if gives_up && it.uses != it.wanted {
            it.remember();
            it.uses = it.wanted.clone();
        }
        let says_all = it.says_all || work.chance(100);
        let mut request = it.request(says_all);
        let topic_id = self.topic_id.expect("it was looked for");
        let partitions: Vec<i32> = it.uses.iter().copied().collect();
        let topics = TopicPartitions { topic_id, partitions };
        let uses = vec![topics].into_iter().filter(|it| !it.partitions.is_empty()).collect();
        request.topic_partitions = Some(uses);
        let (id, epoch, uses) = (it.id.clone(), it.epoch, it.uses.clone());
        let owner = self.owners.entry(id.clone()).or_default();
        owner.rebalance_timeout_us = u64::from(it.rebalance_timeout_ms.unsigned_abs()) * 1000;
        owner.is_leaving = false;
        owner.unheard_us.get_or_insert(now_us);
        let less = owner.has.difference(&uses).map(|partition| (*partition, epoch));
        owner.given_up.extend(less);
        owner.has.retain(|partition| uses.contains(partition));
        (Question::Beat(Beat { id, epoch, uses, sent_us: now_us }), request.into(), 1)
    }

    /// It does not wait for the answer to be out.
    fn leave(&mut self, at: usize, work: &mut Prng, now_us: u64) -> (Question, Request, i16) {
        let it = &mut self.all[at];
        let epoch = if it.instance.is_some() && work.chance(600) { AWAY } else { LEAVE };
        let mut request = it.request(false);
        request.member_epoch = epoch;
        let id = it.id.clone();
        it.become_another();
        let owner = self.owners.entry(id.clone()).or_default();
        owner.is_leaving = true;
        owner.has.clear();
        let beat = Beat { id, epoch, uses: BTreeSet::new(), sent_us: now_us };
        (Question::Beat(beat), request.into(), 1)
    }

    fn commit(
        &mut self,
        at: usize,
        (id, epoch): (String, i32),
        partitions: Vec<i32>,
    ) -> (Question, Request, i16) {
        self.number += 1;
        let number = self.number;
        let given_up = self.owners.get(&id).map(|it| &it.given_up);
        let is_void = |it: &&i32| {
            let may = given_up.is_some_and(|given_up| given_up.get(*it) == Some(&epoch));
            !may && self.newest.get(*it).is_some_and(|newest| *newest != id)
        };
        let void: BTreeSet<i32> = partitions.iter().filter(is_void).copied().collect();
        for partition in partitions.iter().filter(|it| !void.contains(it)) {
            self.known.entry(*partition).or_default().sent.push(number);
        }
        let partition = |partition_index: &i32| OffsetCommitRequestPartition {
            partition_index: *partition_index,
            committed_offset: number,
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: TOPIC.to_owned(),
            partitions: partitions.iter().map(partition).collect(),
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: GROUP.to_owned(),
            generation_id_or_member_epoch: epoch,
            member_id: id.clone(),
            group_instance_id: self.all[at].instance.map(str::to_owned),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        (Question::Commit(Commit { id, number, partitions, void }), request.into(), 9)
    }
}

fn created() -> Request {
    let config =
        CreatableTopicConfig { name: "retention.ms".to_owned(), value: Some("-1".to_owned()) };
    let topic = CreatableTopic {
        name: TOPIC.to_owned(),
        num_partitions: PARTITIONS,
        replication_factor: 3,
        configs: vec![config],
        ..CreatableTopic::default()
    };
    CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, validate_only: false }.into()
}

/// What was committed?
fn offsets() -> (Question, Request, i16) {
    let topic = OffsetFetchRequestTopics {
        name: TOPIC.to_owned(),
        partition_indexes: (0..PARTITIONS).collect(),
        ..OffsetFetchRequestTopics::default()
    };
    let group = OffsetFetchRequestGroup {
        group_id: GROUP.to_owned(),
        topics: Some(vec![topic]),
        ..OffsetFetchRequestGroup::default()
    };
    let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
    (Question::Offsets, request.into(), 9)
}

/// Answers.
impl ConsumerGroup {
    pub(super) fn on_response(
        &mut self,
        at: usize,
        question: Question,
        came: &Response,
    ) -> Result<(), Failure> {
        match (question, came) {
            (Question::Create, Response::CreateTopics(it)) => {
                let code = code_of(it.topics[0].error_code);
                self.is_created = matches!(code, ErrorCode::None | ErrorCode::TopicAlreadyExists);
                Ok(())
            }
            (Question::Find, Response::FindCoordinator(it)) => {
                self.on_found(at, it);
                Ok(())
            }
            (Question::Overview, Response::Metadata(it)) => {
                self.on_overview(it);
                Ok(())
            }
            (Question::Beat(beat), Response::ConsumerGroupHeartbeat(it)) => {
                self.on_beat(at, &beat, it)
            }
            (Question::Commit(commit), Response::OffsetCommit(it)) => {
                self.on_committed(at, &commit, it)
            }
            (Question::Offsets, Response::OffsetFetch(it)) => self.on_offsets(at, it),
            (_, came) => unexpected(came),
        }
    }

    fn on_found(&mut self, at: usize, it: &FindCoordinatorResponse) {
        let found = &it.coordinators[0];
        self.all[at].coordinator = (found.error_code == 0).then_some(found.node_id);
    }

    fn on_overview(&mut self, it: &MetadataResponse) {
        let id = |name: &str| {
            let topic = it.topics.iter().find(|topic| topic.name.as_deref() == Some(name))?;
            (topic.error_code == 0).then_some(topic.topic_id)
        };
        (self.topic_id, self.log_id) = (id(TOPIC).or(self.topic_id), id(LOG).or(self.log_id));
    }

    fn on_beat(
        &mut self,
        at: usize,
        beat: &Beat,
        it: &ConsumerGroupHeartbeatResponse,
    ) -> Result<(), Failure> {
        let code = it.error_code;
        tell(|| format!("  {} {}: {code} {:?}", beat.id, it.member_epoch, it.assignment));
        expect_one_of(code, &CODES, "ConsumerGroupHeartbeat")?;
        let topic_id = self.topic_id;
        let member = &mut self.all[at];
        if beat.id != member.id || beat.epoch < 0 {
            return Ok(());
        }
        match code_of(code) {
            ErrorCode::None => {
                if it.member_epoch < member.epoch {
                    let (id, before, now) = (&member.id, member.epoch, it.member_epoch);
                    return wrong(format!("the epoch of {id} was {before}, and is {now}"));
                }
                if it.member_epoch > member.epoch {
                    member.remember();
                }
                member.epoch = it.member_epoch;
                if let Some(assignment) = &it.assignment {
                    member.says_all = false;
                    member.wanted = assigned(assignment, topic_id);
                    member.uses.extend(&member.wanted);
                }
            }
            ErrorCode::CoordinatorLoadInProgress => member.says_all = true,
            ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator => {
                (member.coordinator, member.says_all) = (None, true);
            }
            ErrorCode::UnreleasedInstanceId => {}
            ErrorCode::FencedInstanceId => member.become_another(),
            _ => member.fall_out(),
        }
        Ok(())
    }

    fn on_committed(
        &mut self,
        at: usize,
        commit: &Commit,
        it: &OffsetCommitResponse,
    ) -> Result<(), Failure> {
        let Commit { id, number, partitions, void } = commit;
        for (partition, answer) in partitions.iter().zip(&it.topics[0].partitions) {
            let code = answer.error_code;
            tell(|| format!("  {id} committed {partition} {number}: {code}"));
            if code == ErrorCode::UnknownTopicOrPartition.code() {
                continue; // by a node that is behind
            }
            expect_one_of(code, &CODES, "OffsetCommit")?;
            let is_void = void.contains(partition);
            self.refused += u64::from(is_void);
            if code == 0 && is_void {
                let whose = &self.newest[partition];
                let what = format!("commit {number} of {id} for {partition} is taken");
                return wrong(format!("{what}, which is {whose}'s"));
            }
            if code == 0 {
                self.known.entry(*partition).or_default().on_acknowledged(*number);
            }
            if matches!(
                code_of(code),
                ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator
            ) {
                self.all[at].coordinator = None;
            }
        }
        Ok(())
    }

    fn on_offsets(&mut self, at: usize, it: &OffsetFetchResponse) -> Result<(), Failure> {
        let answer = &it.groups[0];
        expect_one_of(answer.error_code, &CODES, "OffsetFetch")?;
        if answer.error_code != 0 {
            self.all[at].coordinator = None;
            return Ok(());
        }
        for part in &answer.topics[0].partitions {
            let (at, told) = (part.partition_index, part.committed_offset);
            self.known.entry(at).or_default().on_told((GROUP, at), told)?;
        }
        self.is_told = true;
        Ok(())
    }
}

fn assigned(
    assignment: &duramen_protocol::messages::consumer_group_heartbeat::Assignment,
    topic_id: Option<Uuid>,
) -> BTreeSet<i32> {
    let mine = assignment.topic_partitions.iter().filter(|it| Some(it.topic_id) == topic_id);
    mine.flat_map(|it| it.partitions.iter().copied()).collect()
}

/// What coordinators say.
impl ConsumerGroup {
    /// An answer leaves a node, whether or not anybody hears it.
    pub(super) fn witness(
        &mut self,
        asked: Option<&Asked>,
        connection: ConnectionId,
        answered: &Answered<'_>,
        sight: &impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        let Response::ConsumerGroupHeartbeat(it) = answered.response else { return Ok(()) };
        let lost = self.lost.remove(&connection);
        let beat = match (asked, lost) {
            (Some(Asked::Otter(Question::Beat(beat))), _) => beat.clone(),
            (_, Some(beat)) => beat,
            _ => return Ok(()),
        };
        let Some(sight) = self.log_id.and_then(|id| sight(id, log_partition())) else {
            return Ok(());
        };
        if sight.term < self.term {
            return Ok(());
        }
        self.term = sight.term;
        if it.error_code != 0 {
            let is_out = [
                ErrorCode::UnknownMemberId,
                ErrorCode::GroupIdNotFound,
                ErrorCode::FencedMemberEpoch,
            ];
            if is_out.contains(&code_of(it.error_code)) {
                self.owners.remove(&beat.id);
            }
            return Ok(());
        }
        if beat.epoch < 0 {
            self.owners.remove(&beat.id);
            return Ok(());
        }
        let has = it.assignment.as_ref().map(|it| assigned(it, self.topic_id));
        self.take_up(&beat, has, (answered.now_us, sight))
    }

    /// A member was answered well, and maybe told what it is to use.
    fn take_up(
        &mut self,
        beat: &Beat,
        has: Option<BTreeSet<i32>>,
        (now_us, sight): (u64, Sight),
    ) -> Result<(), Failure> {
        let owner = self.owners.entry(beat.id.clone()).or_default();
        owner.beat_us = owner.beat_us.max(Some((sight.term, beat.sent_us)));
        owner.revoked.retain(|partition, _| beat.uses.contains(partition));
        let Some(has) = has else {
            // Nothing has changed for it.
            owner.unheard_us = owner.unheard_us.filter(|us| *us != beat.sent_us);
            return Ok(());
        };
        (owner.unheard_us, owner.told_in) = (None, sight.term);
        self.assigned += 1;
        let gained: Vec<i32> = has.difference(&owner.has).copied().collect();
        let to_revoke: Vec<i32> = owner.has.difference(&has).copied().collect();
        for partition in to_revoke {
            owner.revoked.entry(partition).or_insert(beat.sent_us);
        }
        owner.revoked.retain(|partition, _| !has.contains(partition));
        owner.has.extend(&has);
        for partition in gained {
            let others = self.owners.iter_mut();
            for (id, other) in others.filter(|(id, _)| **id != beat.id) {
                if !other.has.contains(&partition) {
                    continue;
                }
                if let Some(why) = other.is_in(now_us, sight) {
                    let to = &beat.id;
                    let what = format!("{to} is told of partition {partition} at {now_us}");
                    return wrong(format!("{what}, which {id} has: {why} {other:?}"));
                }
                other.has.remove(&partition);
            }
            self.newest.insert(partition, beat.id.clone());
        }
        Ok(())
    }
}

impl Owner {
    /// Why a member has still what it did not give up, if it does, by what the coordinator of a term must know.
    fn is_in(&self, now_us: u64, sight: Sight) -> Option<String> {
        if self.is_leaving {
            return None;
        }
        // A new coordinator begins all sessions anew when it has loaded them, and whatever they are to give up.
        let loaded_us = sight.since_us.saturating_sub(STEP_US);
        let of_others = Some(loaded_us).filter(|_| self.told_in != sight.term);
        let revoked = self.revoked.values().copied();
        let slow_us = revoked.chain(self.unheard_us).chain(of_others).min();
        if slow_us.is_some_and(|since_us| since_us + self.rebalance_timeout_us <= now_us) {
            return None;
        }
        let since_us = match self.beat_us {
            Some((term, beat_us)) if term == sight.term => beat_us.max(loaded_us),
            // It may have been out before.
            Some((_, beat_us)) if beat_us + SESSION_US <= sight.since_us => return None,
            _ => loaded_us,
        };
        (now_us < since_us + SESSION_US).then(|| format!("its session began at {since_us}"))
    }
}
