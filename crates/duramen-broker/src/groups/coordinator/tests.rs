//! A coordinator with a log that takes what it appends at once, late or not at all.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use duramen_protocol::ApiKey;
use duramen_protocol::messages::join_group::JoinGroupRequestProtocol;
use duramen_protocol::messages::leave_group::MemberIdentity;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use duramen_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use duramen_protocol::messages::offset_fetch::OffsetFetchRequestTopics;
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;
use duramen_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse,
    ListGroupsRequest, OffsetCommitRequest, OffsetDeleteRequest, SyncGroupRequest,
    SyncGroupResponse,
};
use duramen_protocol::wire::Uuid;

use super::*;
use crate::access::{Access, RequestContext};
use crate::controller::image::Image as Metadata;
use crate::event::ConnectionId;
use crate::groups::consumer::Topics;
use crate::groups::membership::Caller;
use crate::groups::rules::Rules;
use crate::groups::{Assignor, ConsumerRules, Migration, ShareRules};
use crate::metadata_records::{CreateTopic, DeleteTopic, MetadataRecord, PlacePartition};

mod chance;
mod consumers;
mod consumers_by_chance;
mod scenarios;
mod shares;
mod transactions;

const SECOND: u64 = 1_000_000;
const HOUR_MS: i64 = 3_600_000;
const SESSION_MS: i32 = 10_000;

/// A coordinator, its log, its clock, and all answers that it gave.
struct Play {
    coordinator: Coordinator,
    rules: Rules,
    now: Now,
    log: BTreeMap<i64, GroupRecord>,
    end: i64,
    /// Appends that nothing has become of yet.
    waiting: VecDeque<(Ticket, Vec<GroupRecord>, Option<Transactor>)>,
    /// Whose transaction a record of the log is part of.
    transactors: BTreeMap<i64, i64>,
    /// The ends of transactions: whose, and whether it was committed.
    markers: BTreeMap<i64, (i64, bool)>,
    appends_at_once: bool,
    /// Fetches want no offset that may change.
    is_stable: bool,
    asked: u64,
    version: i16,
    /// Of classic members that join.
    rebalance_timeout_ms: i32,
    replies: BTreeMap<RequestKey, Response>,
    fetched: BTreeMap<RequestKey, OffsetFetchResponseGroup>,
    deleted: BTreeMap<RequestKey, ErrorCode>,
    /// The topics that there are, and how often they have changed.
    image: Metadata,
    topics_version: u64,
    /// What was asked for share groups, and is not answered.
    share_asks: VecDeque<(ShareKey, Ask)>,
}

fn consumer_rules() -> ConsumerRules {
    ConsumerRules {
        session_timeout_ms: 45_000,
        session_timeout_bounds_ms: 45_000..=60_000,
        heartbeat_interval_ms: 5_000,
        heartbeat_interval_bounds_ms: 5_000..=15_000,
        members_max: 100,
        assignors: Assignor::ALL.to_vec(),
        migration: Migration::Bidirectional,
        assignment_interval_ms: 0,
        assignment_interval_bounds_ms: 0..=15_000,
        regex_refresh_ms: 600_000,
    }
}

fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known code")
}

/// What a consumer says about itself.
fn subscription(topics: &[&str]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(3);
    bytes.put_i32(i32::try_from(topics.len()).expect("few"));
    for topic in topics {
        bytes.put_i16(i16::try_from(topic.len()).expect("short"));
        bytes.put_slice(topic.as_bytes());
    }
    bytes.put_i32(-1);
    bytes.put_slice(b"what later versions add");
    bytes.freeze()
}

fn commit(group: &str, offsets: &[(&str, i32, i64)]) -> OffsetCommitRequest {
    let topic = |(name, partition_index, committed_offset): &(&str, i32, i64)| {
        let partition = OffsetCommitRequestPartition {
            partition_index: *partition_index,
            committed_offset: *committed_offset,
            ..OffsetCommitRequestPartition::default()
        };
        OffsetCommitRequestTopic {
            name: (*name).to_owned(),
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        }
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        topics: offsets.iter().map(topic).collect(),
        ..OffsetCommitRequest::default()
    }
}

impl Play {
    fn new() -> Self {
        Self::of(Coordinator::new())
    }

    fn of(coordinator: Coordinator) -> Self {
        let rules = Rules {
            initial_delay_ms: 0,
            session_timeout_ms: 6_000..=1_800_000,
            members_max: 100,
            metadata_max: 10,
            retention_ms: 24 * HOUR_MS,
            consumer: consumer_rules(),
            share: ShareRules {
                session_timeout_ms: 45_000,
                session_timeout_bounds_ms: 45_000..=60_000,
                heartbeat_interval_ms: 5_000,
                heartbeat_interval_bounds_ms: 5_000..=15_000,
                members_max: 3,
            },
        };
        Self {
            coordinator,
            rules,
            now: Now { mono_us: SECOND, wall_ms: 1_700_000_000_000 },
            log: BTreeMap::new(),
            end: 0,
            waiting: VecDeque::new(),
            transactors: BTreeMap::new(),
            markers: BTreeMap::new(),
            appends_at_once: true,
            is_stable: false,
            asked: 0,
            version: 9,
            rebalance_timeout_ms: 60_000,
            replies: BTreeMap::new(),
            fetched: BTreeMap::new(),
            deleted: BTreeMap::new(),
            image: Metadata::empty(),
            topics_version: 0,
            share_asks: VecDeque::new(),
        }
    }

    /// A topic is made, or has more partitions from now on.
    fn make_topic(&mut self, name: &str, partitions: i32) -> Uuid {
        self.topics_version += 1;
        let known = self.image.topic_named(name).map(|topic| topic.id);
        let topic_id = known.unwrap_or_else(|| {
            let topic_id = Uuid::from_u128(u128::from(self.topics_version) << 8);
            let name = name.to_owned();
            self.image.apply(MetadataRecord::CreateTopic(CreateTopic { topic_id, name }));
            topic_id
        });
        let before = self.image.topic(topic_id).map_or(0, |topic| topic.partitions.len());
        for partition in i32::try_from(before).expect("few")..partitions {
            let placed = PlacePartition { topic_id, partition, replicas: Vec::new() };
            self.image.apply(MetadataRecord::PlacePartition(placed));
        }
        topic_id
    }

    /// A topic goes.
    fn delete_topic(&mut self, name: &str) {
        let Some(topic_id) = self.image.topic_named(name).map(|topic| topic.id) else { return };
        self.topics_version += 1;
        self.image.apply(MetadataRecord::DeleteTopic(DeleteTopic { topic_id }));
        self.coordinator.forget_topic(name, topic_id);
        self.settle();
    }

    fn key(&mut self) -> RequestKey {
        self.asked += 1;
        (ConnectionId(1), self.asked)
    }

    fn settle(&mut self) {
        loop {
            let topics = Topics {
                access: &Access::default(),
                image: &self.image,
                version: self.topics_version,
            };
            self.coordinator.go_on(&self.rules, topics, self.now);
            for output in self.coordinator.take_outputs() {
                let before = match output {
                    Output::Append(ticket, records, transactor) => {
                        self.waiting.push_back((ticket, records, transactor));
                        false
                    }
                    Output::AskShares(key, ask) => {
                        self.share_asks.push_back((key, ask));
                        false
                    }
                    Output::Reply(key, answer) => self.replies.insert(key, *answer).is_some(),
                    Output::Fetched { key, group, .. } => {
                        self.fetched.insert(key, *group).is_some()
                    }
                    Output::Deleted { key, result, .. } => {
                        self.deleted.insert(key, code_of(result.error_code)).is_some()
                    }
                };
                assert!(!before, "a request was answered twice");
            }
            self.coordinator.inspect();
            if !self.appends_at_once || !self.land() {
                return;
            }
        }
    }

    /// The oldest append becomes durable.
    fn land(&mut self) -> bool {
        let Some((ticket, records, transactor)) = self.waiting.pop_front() else { return false };
        let base = self.end;
        for record in records {
            let (key, value) = record.encode().expect("all fits");
            let read = GroupRecord::decode(key, value).expect("it was just written");
            assert_eq!(read, record, "the log says what was meant");
            self.log.insert(self.end, read);
            self.transactors.extend(transactor.map(|it| (self.end, it.producer_id)));
            self.end += 1;
        }
        self.coordinator.on_appended(ticket, Ok(base), self.now);
        true
    }

    /// A transaction ends in the log.
    fn mark(&mut self, producer_id: i64, commits: bool) {
        self.markers.insert(self.end, (producer_id, commits));
        self.end += 1;
        self.coordinator.on_marker(producer_id, commits);
        self.settle();
    }

    fn land_all(&mut self) {
        while !self.waiting.is_empty() {
            self.land();
            self.settle();
        }
    }

    /// The oldest append will never be in the log.
    fn fail(&mut self, code: ErrorCode) {
        let (ticket, ..) = self.waiting.pop_front().expect("something waits");
        self.coordinator.on_appended(ticket, Err(code), self.now);
        self.settle();
    }

    /// What a coordinator makes of the log.
    fn reloaded(&self) -> Coordinator {
        let mut coordinator = Coordinator::new();
        for offset in 0..self.end {
            if let Some((producer_id, commits)) = self.markers.get(&offset) {
                coordinator.on_marker(*producer_id, *commits);
            }
            let Some(record) = self.log.get(&offset) else { continue };
            match self.transactors.get(&offset) {
                Some(id) => coordinator.hold(offset, record.clone(), *id),
                None => coordinator.apply(offset, record.clone()),
            }
        }
        coordinator
    }

    fn check_log(&self) {
        assert_eq!(image(&self.coordinator), image(&self.reloaded()));
    }

    fn trim(&mut self) {
        let first = self.coordinator.live().first().unwrap_or(self.end);
        self.log = self.log.split_off(&first);
    }

    /// Lets time pass, from one deadline to the next.
    fn pass(&mut self, us: u64) {
        let until = self.now.mono_us + us;
        while let Some(due) = self.coordinator.deadline_us().filter(|due| *due <= until) {
            self.step_to(due.max(self.now.mono_us));
            self.coordinator.on_time(self.now);
            self.settle();
        }
        self.step_to(until);
    }

    fn step_to(&mut self, mono_us: u64) {
        self.now.wall_ms += i64::try_from((mono_us - self.now.mono_us) / 1000).expect("small");
        self.now.mono_us = mono_us;
    }

    fn commit_as(&mut self, request: OffsetCommitRequest) -> RequestKey {
        let key = self.key();
        let refused = |topic: &OffsetCommitRequestTopic, _| {
            (topic.name == "missing").then_some(ErrorCode::UnknownTopicOrPartition)
        };
        self.coordinator.offset_commit(&self.rules, key, self.version, request, refused, self.now);
        self.settle();
        key
    }

    fn commit(&mut self, group: &str, offsets: &[(&str, i32, i64)]) -> RequestKey {
        self.commit_as(commit(group, offsets))
    }

    /// The codes of a commit, one a partition.
    fn committed(&self, key: RequestKey) -> Vec<ErrorCode> {
        let Some(Response::OffsetCommit(answer)) = self.replies.get(&key) else {
            panic!("{key:?} waits")
        };
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|it| code_of(it.error_code)).collect()
    }

    fn fetch_as(&mut self, group: &str, topics: Option<&[(&str, u128, i32)]>) -> RequestKey {
        let key = self.key();
        let topic = |(name, id, partition): &(&str, u128, i32)| OffsetFetchRequestTopics {
            name: (*name).to_owned(),
            topic_id: Uuid::from_u128(*id),
            partition_indexes: vec![*partition],
        };
        let request = OffsetFetchRequestGroup {
            group_id: group.to_owned(),
            topics: topics.map(|topics| topics.iter().map(topic).collect()),
            ..OffsetFetchRequestGroup::default()
        };
        self.coordinator.offset_fetch(key, 0, request, self.is_stable);
        self.settle();
        key
    }

    fn told(&self, key: RequestKey) -> Vec<(String, i32, i64)> {
        let group = self.fetched.get(&key).unwrap_or_else(|| panic!("{key:?} waits"));
        assert_eq!(group.error_code, 0);
        let mut told = Vec::new();
        for topic in &group.topics {
            let of =
                |it: &duramen_protocol::messages::offset_fetch::OffsetFetchResponsePartitions| {
                    (topic.name.clone(), it.partition_index, it.committed_offset)
                };
            told.extend(topic.partitions.iter().map(of));
        }
        told
    }

    /// All committed offsets.
    fn offsets(&mut self, group: &str) -> Vec<(String, i32, i64)> {
        let key = self.fetch_as(group, None);
        self.told(key)
    }

    fn delete_offsets(&mut self, group: &str, topic: &str, partition: i32) -> RequestKey {
        let key = self.key();
        let partitions = vec![OffsetDeleteRequestPartition { partition_index: partition }];
        let topics = vec![OffsetDeleteRequestTopic { name: topic.to_owned(), partitions }];
        let request = OffsetDeleteRequest { group_id: group.to_owned(), topics };
        let refused =
            |topic: &str, _| (topic == "missing").then_some(ErrorCode::UnknownTopicOrPartition);
        self.coordinator.offset_delete(key, request, refused);
        self.settle();
        key
    }

    /// The code of the whole, or of its one partition.
    fn deleted_offset(&self, key: RequestKey) -> ErrorCode {
        let Some(Response::OffsetDelete(answer)) = self.replies.get(&key) else {
            panic!("{key:?} waits")
        };
        let partition = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        code_of(partition.map_or(answer.error_code, |it| it.error_code))
    }

    fn delete(&mut self, group: &str) -> RequestKey {
        let key = self.key();
        self.coordinator.delete_group(key, 0, group);
        self.settle();
        key
    }

    fn expire(&mut self) {
        assert_eq!(self.coordinator.expire(&self.rules, self.now, None, 1000), None);
        self.settle();
    }

    fn join(&mut self, group: &str, id: &str, kind: &str, metadata: Bytes) -> RequestKey {
        let key = self.key();
        let fresh = Uuid::from_u128(u128::from(self.asked));
        let (client_id, client_host) = ("client".to_owned(), "/127.0.0.1".to_owned());
        let context = RequestContext::sample(ApiKey::JoinGroup);
        let caller = Caller { key, context, client_id, client_host, fresh };
        let request = JoinGroupRequest {
            group_id: group.to_owned(),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            member_id: id.to_owned(),
            protocol_type: kind.to_owned(),
            protocols: vec![JoinGroupRequestProtocol { name: "range".to_owned(), metadata }],
            ..JoinGroupRequest::default()
        };
        self.coordinator.join_group(&self.rules, self.version, caller, &request, self.now);
        self.settle();
        key
    }

    fn joined(&self, key: RequestKey) -> &JoinGroupResponse {
        match self.replies.get(&key) {
            Some(Response::JoinGroup(answer)) => answer,
            other => panic!("{key:?}: {other:?}"),
        }
    }

    fn sync(&mut self, group: &str, id: &str, generation: i32) -> RequestKey {
        let assignment = Bytes::from_static(b"all");
        let all = SyncGroupRequestAssignment { member_id: id.to_owned(), assignment };
        self.sync_as(group, id, generation, vec![all])
    }

    /// What a leader says, or another member without assignments.
    fn sync_as(
        &mut self,
        group: &str,
        id: &str,
        generation: i32,
        assignments: Vec<SyncGroupRequestAssignment>,
    ) -> RequestKey {
        let key = self.key();
        let request = SyncGroupRequest {
            group_id: group.to_owned(),
            generation_id: generation,
            member_id: id.to_owned(),
            assignments,
            ..SyncGroupRequest::default()
        };
        self.coordinator.sync_group(key, &request, self.now);
        self.settle();
        key
    }

    fn synced(&self, key: RequestKey) -> &SyncGroupResponse {
        match self.replies.get(&key) {
            Some(Response::SyncGroup(answer)) => answer,
            other => panic!("{key:?}: {other:?}"),
        }
    }

    /// A stable group of one member, and its id.
    fn stable(&mut self, group: &str, kind: &str, topics: &[&str]) -> String {
        let asked = self.join(group, "", kind, subscription(topics));
        let id = self.joined(asked).member_id.clone();
        let joins = self.join(group, &id, kind, subscription(topics));
        self.pass(0);
        let generation = self.joined(joins).generation_id;
        let syncs = self.sync(group, &id, generation);
        assert_eq!(self.synced(syncs).assignment, Bytes::from_static(b"all"));
        id
    }

    fn beat(&mut self, group: &str, id: &str, generation: i32) -> ErrorCode {
        let key = self.ask_beat(group, id, generation);
        match self.replies.get(&key) {
            Some(Response::Heartbeat(answer)) => code_of(answer.error_code),
            other => panic!("{key:?}: {other:?}"),
        }
    }

    /// A heartbeat that may be answered later.
    fn ask_beat(&mut self, group: &str, id: &str, generation: i32) -> RequestKey {
        let key = self.key();
        let request = HeartbeatRequest {
            group_id: group.to_owned(),
            generation_id: generation,
            member_id: id.to_owned(),
            ..HeartbeatRequest::default()
        };
        self.coordinator.heartbeat(key, &request, self.now);
        self.settle();
        key
    }

    fn leave(&mut self, group: &str, id: &str) -> LeaveGroupResponse {
        let key = self.leave_in_time(group, id);
        match self.replies.get(&key) {
            Some(Response::LeaveGroup(answer)) => answer.clone(),
            other => panic!("{key:?}: {other:?}"),
        }
    }

    /// A member leaves, which may be answered later.
    fn leave_in_time(&mut self, group: &str, id: &str) -> RequestKey {
        let key = self.key();
        let member = MemberIdentity { member_id: id.to_owned(), ..MemberIdentity::default() };
        let request = LeaveGroupRequest {
            group_id: group.to_owned(),
            member_id: id.to_owned(),
            members: vec![member],
        };
        self.coordinator.leave_group(key, self.version, &request, self.now);
        self.settle();
        key
    }

    fn states(&self, states: &[&str], types: &[&str]) -> Vec<(String, String, String)> {
        let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect();
        let request =
            ListGroupsRequest { states_filter: texts(states), types_filter: texts(types) };
        let listed = self.coordinator.list(&self.rules, &request, self.now).into_iter();
        listed.map(|it| (it.group_id, it.protocol_type, it.group_state)).collect()
    }
}

type Stored = Option<(i64, Arc<GroupMetadataValue>)>;

type Facts = BTreeMap<Fact, (i64, FactValue)>;

type Image = BTreeMap<Arc<str>, (Stored, Facts, Vec<(String, Committed)>)>;

/// All that is durable: groups, offsets, and where the log says so.
fn image(coordinator: &Coordinator) -> (Image, Live<Key>) {
    let mut groups = BTreeMap::new();
    for (name, group) in &coordinator.groups {
        let mut offsets = Vec::new();
        for (topic, slots) in group.offsets.slots() {
            for (it, slot) in slots {
                let told = slot.committed.iter().map(|value| (format!("{topic}-{it}"), value));
                offsets.extend(told.map(|(place, value)| (place, value.clone())));
                let pending = slot.pending.iter();
                let told = pending.map(|(id, value)| (format!("{topic}-{it} of {id}"), value));
                offsets.extend(told.map(|(place, value)| (place, value.clone())));
            }
        }
        if group.stored.is_some() || !offsets.is_empty() || !group.facts.is_empty() {
            groups.insert(name.clone(), (group.stored.clone(), group.facts.clone(), offsets));
        }
    }
    (groups, coordinator.ledger.live.clone())
}

fn offset(topic: &str, partition: i32, offset: i64) -> (String, i32, i64) {
    (topic.to_owned(), partition, offset)
}
