//! Members of a group of the consumer protocol (KIP-848), and the answers that they may get.
//!
//! Members join, get an assignment, give up revoked partitions sooner or later, and say so. They fall silent, leave,
//! and begin anew, some under static names. They commit offsets for the partitions that they use, each with a larger
//! number than all before. So do members that do not know yet that the group has removed or replaced them. `owners`
//! keeps the owner of each partition, by the answers of coordinators.
//!
//! There is another such group, in which members of the classic protocol (`classic`) come and go as well. The group is
//! all of the one kind, of both, all of the other, and back.

use std::collections::{BTreeMap, BTreeSet};

use duramen_broker::ConnectionId;
use duramen_protocol::messages::consumer_group_heartbeat::TopicPartitions;
use duramen_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, MetadataResponse,
    OffsetCommitResponse, OffsetFetchResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

mod classic;
mod owners;

use classic::{Stage, Tide};
use owners::{Beat, Kind, Owners, assigned};

use super::answers::{
    Answered, CLASSIC_CODES, Sight, code_of, expect_one_of, found, is_made, on_left, unexpected,
};
use super::committing::{Known, on_told};
use super::requests::{self, Asking, COMMITTED};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

const OF_CONSUMERS: &str = "otters";
const OF_BOTH: &str = "newts";
const TOPIC: &str = "fish";
const PATTERN: &str = "fi.*";
const PARTITIONS: i32 = 4;
const MEMBERS: usize = 3;
/// Partitions of the topic in which groups are kept.
const LOG_PARTITIONS: i32 = 2;
/// As the harness sets it.
const SESSION_US: u64 = 1_500_000;
const LEAVE: i32 = -1;
/// A static member leaves so, to come back.
const AWAY: i32 = -2;
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

#[derive(Debug, Default)]
struct Member {
    group: &'static str,
    at: usize,
    lives: u64,
    /// Stage of a classic member, if it is one.
    classic: Option<Stage>,
    instance: Option<&'static str>,
    has_pattern: bool,
    rebalance_timeout_ms: i32,
    /// As a classic member.
    session_timeout_ms: i32,
    /// Id of the member; empty as long as a classic member has to be told.
    id: String,
    epoch: i32,
    /// Generation in which the member was told its assignment.
    told_in: i32,
    /// Partitions that the member uses, and those that it was told to use.
    uses: BTreeSet<i32>,
    wanted: BTreeSet<i32>,
    /// Former id of the member, with its epoch and the partitions that it used.
    was: Option<(String, i32, BTreeSet<i32>)>,
    coordinator: Option<i32>,
    silent: u64,
    /// True if the member may not have heard all: it says all the next time, and is told all.
    says_all: bool,
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

/// See above.
#[derive(Debug, Default)]
pub(super) struct ConsumerGroup {
    group: &'static str,
    all: Vec<Member>,
    /// Protocol that new members speak, if the group has both.
    tide: Option<Tide>,
    owners: Owners,
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
    /// Commits that were refused.
    refused: u64,
}

/// Returns the partition in which a group is kept, as Kafka's clients know it.
fn log_partition(group: &str) -> i32 {
    let hash = group.bytes().fold(0i32, |hash, it| hash.wrapping_mul(31).wrapping_add(it.into()));
    (hash & i32::MAX) % LOG_PARTITIONS
}

impl Member {
    fn new((group, at): (&'static str, usize), shape: &mut Prng) -> Self {
        Self {
            group,
            at,
            instance: shape.chance(300).then_some(["ann", "bob", "cat"][at]),
            has_pattern: shape.chance(300),
            rebalance_timeout_ms: *shape.pick(&[500, 3_000]),
            session_timeout_ms: 3_000,
            id: format!("{group}-{at}-0"),
            told_in: -1,
            ..Self::default()
        }
    }

    fn remember(&mut self) {
        if !self.uses.is_empty() {
            self.was = Some((self.id.clone(), self.commits_in(), self.uses.clone()));
        }
    }

    /// Returns the epoch in which the member commits. A generation in which nobody was told anything may be forgotten,
    /// and be another one then.
    fn commits_in(&self) -> i32 {
        if self.classic.is_some() { self.told_in } else { self.epoch }
    }

    /// Takes the member out: it uses nothing any more, and has to join.
    fn fall_out(&mut self) {
        self.remember();
        (self.epoch, self.told_in) = (0, -1);
        self.uses.clear();
        self.wanted.clear();
        if let Some(stage) = &mut self.classic {
            *stage = Stage::Out;
        }
    }

    /// Begins the member's process anew, with this protocol.
    fn become_another(&mut self, is_classic: bool) {
        self.fall_out();
        self.lives += 1;
        self.classic = is_classic.then_some(Stage::Out);
        self.id = if is_classic {
            String::new()
        } else {
            format!("{}-{}-{}", self.group, self.at, self.lives)
        };
    }

    /// Returns the facts that the member states by a request of this kind.
    fn beat(&self, kind: Kind, sent_us: u64) -> Beat {
        let us = |ms: i32| u64::from(ms.unsigned_abs()) * 1000;
        let session_us = self.classic.as_ref().map(|_| us(self.session_timeout_ms));
        Beat {
            kind,
            id: self.id.clone(),
            instance: self.instance,
            epoch: self.epoch,
            uses: self.uses.clone(),
            sent_us,
            session_us: session_us.unwrap_or(SESSION_US),
            rebalance_timeout_us: us(self.rebalance_timeout_ms),
        }
    }

    /// Tells whether the member knows its assignment, and uses nothing else.
    fn is_settled(&self) -> bool {
        self.uses == self.wanted && matches!(self.classic, None | Some(Stage::In))
    }

    fn request(&self, says_all: bool) -> ConsumerGroupHeartbeatRequest {
        let is_full = self.epoch == 0 || says_all;
        let pattern = self.has_pattern.then(|| PATTERN.to_owned());
        let names = if self.has_pattern { Vec::new() } else { vec![TOPIC.to_owned()] };
        ConsumerGroupHeartbeatRequest {
            group_id: self.group.to_owned(),
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
    /// Makes a group of the consumer protocol in every thirteenth seed, and in as many one of both protocols.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let group = match seed % 13 {
            11 => OF_CONSUMERS,
            0 => OF_BOTH,
            _ => return None,
        };
        let mut shape = Prng::new(seed, "consumer groups");
        let all = (0..MEMBERS).map(|at| Member::new((group, at), &mut shape)).collect();
        let mut it = Self {
            group,
            all,
            tide: (group == OF_BOTH).then(|| Tide::new(&mut shape)),
            at: vec![None; MEMBERS],
            ..Self::default()
        };
        for at in (0..MEMBERS).filter(|_| group == OF_BOTH) {
            it.all[at].session_timeout_ms = *shape.pick(&[1_000, 3_000]);
            it.all[at].rebalance_timeout_ms = *shape.pick(&[1_000, 5_000]);
            it.begin_anew(at, &mut shape);
        }
        Some(it)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.last_phase = true;
        self.is_told = false;
        self.all.iter_mut().for_each(|it| it.silent = 0);
    }

    /// Tells whether one member uses every partition, all have their assignments, and the committed offsets were told.
    pub(super) fn is_done(&self) -> bool {
        let all: Vec<i32> = self.all.iter().flat_map(|it| it.uses.iter().copied()).collect();
        let epochs: BTreeSet<i32> = self.all.iter().map(|it| it.epoch).collect();
        let is_settled = self.all.iter().all(Member::is_settled);
        let used: BTreeSet<i32> = all.iter().copied().collect();
        let is_each = all.len() == used.len() && used == (0..PARTITIONS).collect();
        is_each && is_settled && epochs.len() == 1 && self.is_told
    }

    /// Assignments that members were told, and commits of theirs that were refused.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.owners.assigned, self.refused)
    }

    /// Returns the number of times that the group became one of the consumer protocol, and one of the classic one.
    pub(super) fn changes(&self) -> (u64, u64) {
        (self.owners.upgrades, self.owners.downgrades)
    }

    pub(super) fn told(&self) -> String {
        format!("{:?} {:?}", self.all, self.owners)
    }

    /// Returns the number of clients that may ask in a moment, so that much happens in the time that there is.
    pub(super) fn haste(&self) -> usize {
        if self.tide.is_some() { 4 } else { 2 }
    }

    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.aims)
    }

    /// Notes that a client lost its connection, or went elsewhere.
    pub(super) fn on_moved(&mut self, at: usize, before: ConnectionId, asked: Option<&Question>) {
        self.at[at] = None;
        match asked {
            Some(Question::Beat(beat)) => {
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
    ) -> Option<Asking<Question>> {
        if self.last_phase && self.is_done() {
            return None;
        }
        if !self.is_created {
            let request = requests::create(TOPIC, PARTITIONS, 3, &[("retention.ms", "-1")]);
            return (at == 0).then_some((Question::Create, request, 7));
        }
        let it = &mut self.all[at];
        it.silent = it.silent.saturating_sub(1);
        if it.silent > 0 {
            return None;
        }
        let Some(node) = it.coordinator else {
            return Some((Question::Find, requests::find(requests::GROUP_KEY, &[self.group]), 4));
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
                1 => self.begin_anew(at, work),
                2 if self.all[at].epoch > 0 => return Some(self.leave(at, work, now_us)),
                3..=9 => {
                    if let Some((id, epoch, uses)) = self.all[at].was.clone() {
                        return Some(self.commit(at, (id, epoch), uses.into_iter().collect()));
                    }
                }
                10 | 11 if self.tide.is_some() && work.chance(700) => {
                    self.tide.iter_mut().for_each(|tide| tide.is_classic = !tide.is_classic);
                }
                12..=30 if self.is_against_the_tide(at) => {
                    if self.all[at].epoch > 0 && work.chance(700) {
                        return Some(self.leave(at, work, now_us));
                    }
                    self.begin_anew(at, work);
                }
                _ => {}
            }
        }
        let it = &self.all[at];
        let is_in = it.commits_in() > 0;
        if is_in && !it.uses.is_empty() && work.chance(300) {
            let who = (it.id.clone(), it.commits_in());
            let uses = it.uses.iter().copied().collect();
            return Some(self.commit(at, who, uses));
        }
        if is_in && work.chance(100) {
            let request = requests::committed(&[self.group], TOPIC, PARTITIONS);
            return Some((Question::Offsets, request.into(), 9));
        }
        Some(self.beat(at, work, now_us))
    }

    fn is_against_the_tide(&self, at: usize) -> bool {
        let is_classic = self.all[at].classic.is_some();
        self.tide.as_ref().is_some_and(|tide| tide.is_classic != is_classic)
    }

    /// Lets a member's process die and begin anew. A member with a static name comes back under it when its session is
    /// over. It comes back at once if it was a classic member or is one now.
    fn begin_anew(&mut self, at: usize, work: &mut Prng) {
        let is_classic = self.tide.as_ref().is_some_and(|tide| tide.is_classic != work.chance(150));
        self.all[at].become_another(is_classic);
    }

    fn beat(&mut self, at: usize, work: &mut Prng, now_us: u64) -> Asking<Question> {
        let it = &mut self.all[at];
        if let (Some(tide), Some(_)) = (&self.tide, &it.classic) {
            let (beat, request, version) = it.say((tide, self.last_phase), work, now_us);
            self.owners.on_sent(&beat);
            return (Question::Beat(beat), request, version);
        }
        let gives_up = self.last_phase || work.chance(400);
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
        let beat = it.beat(Kind::Beat, now_us);
        self.owners.on_sent(&beat);
        (Question::Beat(beat), request.into(), 1)
    }

    /// Makes the member leave; the member does not wait for the answer.
    fn leave(&mut self, at: usize, work: &mut Prng, now_us: u64) -> Asking<Question> {
        let it = &self.all[at];
        let (beat, request, version) = if it.classic.is_some() {
            it.leave_as_classic(work, now_us)
        } else {
            let epoch = if it.instance.is_some() && work.chance(600) { AWAY } else { LEAVE };
            let request =
                ConsumerGroupHeartbeatRequest { member_epoch: epoch, ..it.request(false) };
            (Beat { epoch, ..it.beat(Kind::Leave, now_us) }, request.into(), 1)
        };
        self.begin_anew(at, work);
        self.owners.on_sent(&beat);
        (Question::Beat(beat), request, version)
    }

    fn commit(
        &mut self,
        at: usize,
        (id, epoch): (String, i32),
        partitions: Vec<i32>,
    ) -> Asking<Question> {
        self.number += 1;
        let number = self.number;
        let is_void = |it: &&i32| self.owners.is_void(&id, epoch, **it);
        let void: BTreeSet<i32> = partitions.iter().filter(is_void).copied().collect();
        for partition in partitions.iter().filter(|it| !void.contains(it)) {
            self.known.entry(*partition).or_default().sent.push(number);
        }
        let mut request = requests::commit(self.group, TOPIC, number, &partitions, None);
        request.generation_id_or_member_epoch = epoch;
        request.member_id.clone_from(&id);
        request.group_instance_id = self.all[at].instance.map(str::to_owned);
        (Question::Commit(Commit { id, number, partitions, void }), request.into(), 9)
    }
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
            (Question::Create, Response::CreateTopics(it)) => self.is_created = is_made(it),
            (Question::Find, Response::FindCoordinator(it)) => {
                self.all[at].coordinator = found(it);
            }
            (Question::Overview, Response::Metadata(it)) => self.on_overview(it),
            (Question::Beat(beat), Response::ConsumerGroupHeartbeat(it)) => {
                self.on_beat(at, &beat, it)?;
            }
            (Question::Beat(beat), came) if beat.kind != Kind::Beat => {
                self.on_classic(at, &beat, came)?;
            }
            (Question::Commit(commit), Response::OffsetCommit(it)) => {
                self.on_committed(at, &commit, it)?;
            }
            (Question::Offsets, Response::OffsetFetch(it)) => self.on_offsets(at, it)?,
            (_, came) => unexpected(came)?,
        }
        Ok(())
    }

    /// Takes an answer to a classic member, or to a member that has left.
    fn on_classic(&mut self, at: usize, beat: &Beat, came: &Response) -> Result<(), Failure> {
        let member = &mut self.all[at];
        match (beat.kind, came) {
            (Kind::Join, Response::JoinGroup(it)) => member.on_joined(it),
            (Kind::Sync, Response::SyncGroup(it)) => member.on_synced(it),
            (Kind::Heartbeat, Response::Heartbeat(it)) => {
                expect_one_of(it.error_code, &CLASSIC_CODES, "Heartbeat")?;
                member.on_code(it.error_code);
                Ok(())
            }
            (Kind::Leave, Response::LeaveGroup(it)) => on_left(it),
            (_, came) => unexpected(came),
        }
    }

    fn on_overview(&mut self, it: &MetadataResponse) {
        let id = |name: &str| {
            let topic = it.topics.iter().find(|topic| topic.name.as_deref() == Some(name))?;
            (topic.error_code == 0).then_some(topic.topic_id)
        };
        (self.topic_id, self.log_id) = (id(TOPIC).or(self.topic_id), id(COMMITTED).or(self.log_id));
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
            ErrorCode::FencedInstanceId => member.become_another(false),
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
            let codes = [&CODES[..], &CLASSIC_CODES].concat();
            expect_one_of(code, &codes, "OffsetCommit")?;
            let is_void = void.contains(partition);
            self.refused += u64::from(is_void);
            if code == 0 && is_void {
                let whose = self.owners.newest(*partition).unwrap_or_default();
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
        if on_told(self.group, it, &CODES, &mut self.known)? {
            self.is_told = true;
        } else {
            self.all[at].coordinator = None;
        }
        Ok(())
    }
}

/// Statements of coordinators.
impl ConsumerGroup {
    /// Judges an answer that leaves a node, even if nobody hears it.
    pub(super) fn witness(
        &mut self,
        asked: Option<&Question>,
        connection: ConnectionId,
        answered: &Answered<'_>,
        sight: &impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        let lost = self.lost.remove(&connection);
        let beat = match (asked, lost) {
            (Some(Question::Beat(beat)), _) => beat.clone(),
            (_, Some(beat)) => beat,
            _ => return Ok(()),
        };
        let log = log_partition(self.group);
        let Some(sight) = self.log_id.and_then(|id| sight(id, log)) else {
            return Ok(());
        };
        let seen = (answered.now_us, sight);
        self.owners.witness(&beat, answered.response, self.topic_id, seen)
    }
}
