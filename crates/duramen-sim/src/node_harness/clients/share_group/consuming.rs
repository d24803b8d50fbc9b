//! The consumers of a share group.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::share_acknowledge::{AcknowledgePartition, AcknowledgeTopic};
use duramen_protocol::messages::share_fetch::{
    AcknowledgementBatch, FetchPartition, FetchTopic, ForgottenTopic,
};
use duramen_protocol::messages::{
    ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareFetchRequest, ShareFetchResponse,
    ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse,
};
use duramen_protocol::wire::Uuid;

use super::super::answers::{code_of, expect_one_of};
use super::super::requests;
use super::deliveries::Place;
use super::{
    ACCEPT, Asking, CLIENTS_EACH, Demand, GROUP, PARTITIONS, Question, REJECT, RELEASE, RENEW,
    Said, ShareGroup, TOPIC,
};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

/// Error codes that a member may get from the group's coordinator.
const HEARTBEAT_CODES: [ErrorCode; 6] = [
    ErrorCode::None,
    ErrorCode::CoordinatorLoadInProgress,
    ErrorCode::CoordinatorNotAvailable,
    ErrorCode::NotCoordinator,
    ErrorCode::UnknownMemberId,
    ErrorCode::FencedMemberEpoch,
];
/// Error codes of a session that a consumer may get from a leader.
const SESSION_CODES: [ErrorCode; 3] =
    [ErrorCode::None, ErrorCode::ShareSessionNotFound, ErrorCode::InvalidShareSessionEpoch];
/// Error codes of a partition that a consumer may get from a leader.
const FETCH_CODES: [ErrorCode; 4] = [
    ErrorCode::None,
    ErrorCode::NotLeaderOrFollower,
    ErrorCode::UnknownTopicId,
    ErrorCode::KafkaStorageError,
];
/// Error codes of decisions. A record may lie behind all that a new leader knows to be delivered: an invalid request,
/// as in Kafka.
const DECISION_CODES: [ErrorCode; 6] = [
    ErrorCode::None,
    ErrorCode::InvalidRecordState,
    ErrorCode::InvalidRequest,
    ErrorCode::NotLeaderOrFollower,
    ErrorCode::UnknownTopicId,
    ErrorCode::CoordinatorNotAvailable,
];
const FINAL: i32 = -1;

/// Tells whether a member learns from the answer to a decision that it holds the record no more.
fn is_lost(code: i16) -> bool {
    [ErrorCode::InvalidRecordState, ErrorCode::InvalidRequest].iter().any(|it| it.code() == code)
}

/// The client of one partition.
#[derive(Debug, Default)]
struct Fetcher {
    /// The epoch of the next request; 0 asks for a session.
    epoch: i32,
    /// Partitions of the session.
    has: BTreeSet<i32>,
    /// Records that it was given and has not decided on, with their delivery counts.
    held: BTreeMap<Place, i16>,
    /// Number of turns for which it still says nothing.
    silent: u64,
}

#[derive(Debug, Default)]
pub(super) struct Consumer {
    at: usize,
    lives: u64,
    pub(super) id: String,
    /// Former ids of the consumer: their sessions may not be over.
    pub(super) former: Vec<String>,
    epoch: i32,
    assigned: BTreeSet<i32>,
    pub(super) coordinator: Option<i32>,
    pub(super) leaders: BTreeMap<i32, i32>,
    silent: u64,
    fetchers: Vec<Fetcher>,
}

impl Fetcher {
    /// Begins anew: the session is over, and its records are not held any more.
    fn begin_anew(&mut self) {
        self.epoch = 0;
        self.has.clear();
    }
}

impl Consumer {
    pub(super) fn new(at: usize) -> Self {
        Self {
            at,
            id: format!("bear-{at}-0"),
            fetchers: (0..PARTITIONS).map(|_| Fetcher::default()).collect(),
            ..Self::default()
        }
    }

    pub(super) fn wake(&mut self) {
        self.silent = 0;
        self.fetchers.iter_mut().for_each(|it| it.silent = 0);
    }

    /// Makes the consumer somebody else. The former one may still believe to hold its records.
    fn become_another(&mut self) {
        self.lives += 1;
        let id = format!("bear-{}-{}", self.at, self.lives);
        self.former.push(std::mem::replace(&mut self.id, id));
        self.epoch = 0;
        self.assigned.clear();
        self.fetchers.iter_mut().for_each(Fetcher::begin_anew);
    }

    /// Notes that one of its clients lost its connection, or (`by_itself`) gave it up to go elsewhere.
    pub(super) fn on_moved(&mut self, part: usize, by_itself: bool) {
        match part.checked_sub(1) {
            None if by_itself => {}
            None => self.coordinator = None,
            Some(part) => {
                self.fetchers[part].begin_anew();
                if !by_itself {
                    self.leaders.clear();
                }
            }
        }
    }

    /// Returns the node to which the client of a partition goes. The client fetches all partitions that this node
    /// leads. If there is an earlier one, that one's client does.
    fn node_of(&self, part: usize) -> Option<(i32, BTreeSet<i32>)> {
        let partition = i32::try_from(part).expect("few");
        if !self.assigned.contains(&partition) {
            return None;
        }
        let node = *self.leaders.get(&partition)?;
        let is_there = |it: &&i32| self.leaders.get(*it) == Some(&node);
        let all: BTreeSet<i32> = self.assigned.iter().filter(is_there).copied().collect();
        (all.first() == Some(&partition)).then_some((node, all))
    }

    pub(super) fn on_heartbeat(
        &mut self,
        id: &str,
        it: &ShareGroupHeartbeatResponse,
        topic_id: Option<Uuid>,
    ) -> Result<(), Failure> {
        tell(|| format!("  {id}: {} {} {:?}", it.error_code, it.member_epoch, it.assignment));
        expect_one_of(it.error_code, &HEARTBEAT_CODES, "ShareGroupHeartbeat")?;
        if id != self.id {
            return Ok(());
        }
        match code_of(it.error_code) {
            ErrorCode::None => {
                if it.member_epoch < self.epoch {
                    let (before, now) = (self.epoch, it.member_epoch);
                    return wrong(format!("the epoch of {id} was {before}, and is {now}"));
                }
                self.epoch = it.member_epoch;
                if let Some(assignment) = &it.assignment {
                    let mine = assignment.topic_partitions.iter();
                    let mine = mine.filter(|topic| Some(topic.topic_id) == topic_id);
                    self.assigned = mine.flat_map(|topic| topic.partitions.clone()).collect();
                }
            }
            ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator => {
                self.coordinator = None;
            }
            ErrorCode::UnknownMemberId | ErrorCode::FencedMemberEpoch => {
                self.epoch = 0;
                self.assigned.clear();
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn on_fetched(
        &mut self,
        part: usize,
        demand: &Demand,
        it: &ShareFetchResponse,
    ) -> Result<(), Failure> {
        expect_one_of(it.error_code, &SESSION_CODES, "ShareFetch")?;
        let fetcher = &mut self.fetchers[part];
        if it.error_code != 0 || demand.member != self.id {
            fetcher.begin_anew();
            return Ok(());
        }
        for answer in it.responses.iter().flat_map(|topic| &topic.partitions) {
            let (code, decided) = (answer.error_code, answer.acknowledge_error_code);
            expect_one_of(code, &FETCH_CODES, "a partition of ShareFetch")?;
            expect_one_of(decided, &DECISION_CODES, "a decision with ShareFetch")?;
            if code != 0 && code != ErrorCode::KafkaStorageError.code() {
                self.leaders.clear();
            }
            let partition = answer.partition_index;
            if is_lost(decided) {
                fetcher.held.retain(|place, _| place.0 != partition);
            }
            for run in &answer.acquired_records {
                let all = (run.first_offset..=run.last_offset).map(|it| (partition, it));
                fetcher.held.extend(all.map(|place| (place, run.delivery_count)));
            }
        }
        Ok(())
    }

    pub(super) fn on_decided(
        &mut self,
        part: usize,
        demand: &Demand,
        it: &ShareAcknowledgeResponse,
    ) -> Result<(), Failure> {
        expect_one_of(it.error_code, &SESSION_CODES, "ShareAcknowledge")?;
        let fetcher = &mut self.fetchers[part];
        if it.error_code != 0 || demand.member != self.id {
            fetcher.begin_anew();
            return Ok(());
        }
        for answer in it.responses.iter().flat_map(|topic| &topic.partitions) {
            expect_one_of(answer.error_code, &DECISION_CODES, "a decision")?;
            if is_lost(answer.error_code) {
                fetcher.held.retain(|place, _| place.0 != answer.partition_index);
            }
        }
        Ok(())
    }
}

/// Requests of consumers.
impl ShareGroup {
    /// Asks the coordinator for a consumer's assignment.
    pub(super) fn attend(&mut self, at: usize, work: &mut Prng) -> Option<Asking> {
        let is_last = self.last_phase;
        let it = &mut self.consumers[at];
        it.silent = it.silent.saturating_sub(1);
        if it.silent > 0 {
            return None;
        }
        let Some(node) = it.coordinator else {
            return Some((Question::Find, requests::find(requests::GROUP_KEY, &[GROUP]), 4));
        };
        if it.leaders.len() < usize::try_from(PARTITIONS).expect("few") || self.topic_id.is_none() {
            return Some((Question::Overview, requests::metadata(&[TOPIC]), 12));
        }
        let mut member_epoch = it.epoch;
        let mut member_id = it.id.clone();
        if !is_last {
            match work.below(200) {
                0 | 1 => it.silent = work.between(10, 60),
                2 | 3 => it.become_another(),
                // The consumer leaves, and does not wait for the answer.
                4 if it.epoch > 0 => {
                    member_epoch = FINAL;
                    it.become_another();
                }
                _ => {}
            }
        }
        if member_epoch != FINAL {
            (member_epoch, member_id) = (it.epoch, it.id.clone());
        }
        let is_full = member_epoch == 0 || member_epoch > 0 && work.chance(100);
        let request = ShareGroupHeartbeatRequest {
            group_id: GROUP.to_owned(),
            member_id: member_id.clone(),
            member_epoch,
            rack_id: None,
            subscribed_topic_names: is_full.then(|| vec![TOPIC.to_owned()]),
        };
        let asking = (Question::Heartbeat(member_id), request.into(), 1);
        self.places.to(1 + at * CLIENTS_EACH, node, asking)
    }

    /// Fetches with the client of a partition, and decides on its records.
    pub(super) fn consume(
        &mut self,
        at: usize,
        part: usize,
        work: &mut Prng,
        now_us: u64,
    ) -> Option<Asking> {
        let topic_id = self.topic_id?;
        let it = &mut self.consumers[at];
        let (node, wanted) = it.node_of(part)?;
        let client = 2 + at * CLIENTS_EACH + part;
        let fetcher = &mut it.fetchers[part];
        fetcher.silent = fetcher.silent.saturating_sub(1);
        if fetcher.silent > 0 {
            return None;
        }
        if !self.last_phase && work.chance(20) {
            fetcher.silent = work.between(5, 40);
            return None;
        }
        if self.places.at[client] != Some(node) {
            self.places.aim(client, node);
            return None;
        }
        let said = if fetcher.epoch > 0 {
            decide(fetcher, &wanted, work, self.last_phase)
        } else {
            if work.chance(700) {
                fetcher.held.clear();
            }
            Vec::new()
        };
        let is_final = fetcher.epoch > 0 && !self.last_phase && work.chance(15);
        let renews = said.iter().any(|said| said.kind == RENEW);
        self.requests += 1;
        let demand = Demand {
            member: it.id.clone(),
            said,
            number: self.requests,
            sent_us: now_us,
            is_final,
        };
        let decides = fetcher.epoch > 0 && (renews || !demand.said.is_empty() && work.chance(400));
        let asking = if decides {
            acknowledged(fetcher, topic_id, demand.clone(), work)
        } else {
            fetched(fetcher, topic_id, demand.clone(), &wanted, work)
        };
        self.deliveries.on_said(&demand.member, &demand.said, demand.number);
        if is_final {
            self.deliveries.on_gone(&demand.member);
            self.consumers[at].fetchers[part].begin_anew();
        }
        Some(asking)
    }
}

/// Decides on some of the records that a consumer holds. In the last phase the consumer accepts all.
fn decide(
    fetcher: &mut Fetcher,
    wanted: &BTreeSet<i32>,
    work: &mut Prng,
    is_last: bool,
) -> Vec<Said> {
    let renews = !is_last && work.chance(50);
    let share = *work.pick(&[0, 300, 1000, 1000]);
    let mut said = Vec::new();
    for (&place, &count) in fetcher.held.iter().filter(|(place, _)| wanted.contains(&place.0)) {
        if !is_last && !work.chance(share) {
            continue;
        }
        let kind = match work.below(100) {
            _ if renews => RENEW,
            _ if is_last => ACCEPT,
            0..=69 => ACCEPT,
            70..=91 => RELEASE,
            _ => REJECT,
        };
        said.push(Said { place, kind, count });
    }
    // Now and then it forgets that it has decided, and does so again.
    if !renews && !work.chance(30) {
        for it in &said {
            fetcher.held.remove(&it.place);
        }
    }
    said
}

/// Decisions on one partition after the other, those on neighbours together.
fn runs(said: &[Said]) -> BTreeMap<i32, Vec<AcknowledgementBatch>> {
    let mut all: BTreeMap<i32, Vec<AcknowledgementBatch>> = BTreeMap::new();
    for it in said {
        let (partition, offset) = it.place;
        let of = all.entry(partition).or_default();
        match of.last_mut() {
            Some(run) if run.last_offset + 1 == offset => {
                run.last_offset = offset;
                run.acknowledge_types.push(it.kind);
            }
            _ => of.push(AcknowledgementBatch {
                first_offset: offset,
                last_offset: offset,
                acknowledge_types: vec![it.kind],
            }),
        }
    }
    all
}

fn acknowledged(fetcher: &mut Fetcher, topic_id: Uuid, demand: Demand, work: &mut Prng) -> Asking {
    let renews = demand.said.iter().any(|said| said.kind == RENEW);
    let partition = |(partition_index, acknowledgement_batches)| AcknowledgePartition {
        partition_index,
        acknowledgement_batches,
    };
    let partitions = runs(&demand.said).into_iter().map(partition).collect();
    let request = ShareAcknowledgeRequest {
        group_id: Some(GROUP.to_owned()),
        member_id: Some(demand.member.clone()),
        share_session_epoch: epoch_for(fetcher, &demand),
        is_renew_ack: renews,
        topics: vec![AcknowledgeTopic { topic_id, partitions }],
    };
    let version = if renews { 2 } else { *work.pick(&[1, 2]) };
    (Question::Decide(demand), request.into(), version)
}

fn fetched(
    fetcher: &mut Fetcher,
    topic_id: Uuid,
    demand: Demand,
    wanted: &BTreeSet<i32>,
    work: &mut Prng,
) -> Asking {
    let mut all = runs(&demand.said);
    let gone: Vec<i32> = fetcher.has.difference(wanted).copied().collect();
    let added = wanted.difference(&fetcher.has).copied();
    for partition in added {
        all.entry(partition).or_default();
    }
    let partition = |(partition_index, acknowledgement_batches)| FetchPartition {
        partition_index,
        acknowledgement_batches,
    };
    let partitions: Vec<_> = all.into_iter().map(partition).collect();
    let forgotten = ForgottenTopic { topic_id, partitions: gone.clone() };
    let version = *work.pick(&[1, 2]);
    let topics = FetchTopic { topic_id, partitions };
    let request = ShareFetchRequest {
        group_id: Some(GROUP.to_owned()),
        member_id: Some(demand.member.clone()),
        share_session_epoch: epoch_for(fetcher, &demand),
        max_wait_ms: *work.pick(&[50, 300]),
        min_bytes: 1,
        max_bytes: *work.pick(&[300, 1 << 20]),
        max_records: *work.pick(&[1, 5, 50]),
        batch_size: 10,
        share_acquire_mode: i8::from(version == 2 && work.chance(300)),
        topics: Some(topics).filter(|it| !it.partitions.is_empty()).into_iter().collect(),
        forgotten_topics_data: Some(forgotten).filter(|_| !gone.is_empty()).into_iter().collect(),
        ..ShareFetchRequest::default()
    };
    fetcher.has.clone_from(wanted);
    (Question::Fetch(demand), request.into(), version)
}

/// Returns the epoch of this request; the next has the one after it.
fn epoch_for(fetcher: &mut Fetcher, demand: &Demand) -> i32 {
    if demand.is_final {
        return FINAL;
    }
    let epoch = fetcher.epoch;
    fetcher.epoch += 1;
    epoch
}
