//! Requests of clients to a coordinator, one function each, and the expiry of offsets.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_groups::DescribedGroup;
use duramen_protocol::messages::leave_group::{MemberIdentity, MemberResponse};
use duramen_protocol::messages::list_groups::ListedGroup;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use duramen_protocol::messages::offset_delete::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use duramen_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchResponseGroup, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
};
use duramen_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use duramen_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, ListGroupsRequest, OffsetCommitRequest, OffsetCommitResponse,
    OffsetDeleteRequest, OffsetDeleteResponse, SyncGroupRequest, SyncGroupResponse,
    TxnOffsetCommitRequest,
};
use duramen_protocol::wire::Uuid;

use super::consumer::Classic;
use super::{Asked, Coordinator, Group, Reader, Then, Transactor};
use crate::event::{Now, RequestKey};
use crate::groups::consumer::{CONSUMER, CommitRight, ConsumerGroup};
use crate::groups::membership::{Caller, Membership, State};
use crate::groups::offsets::Slot;
use crate::groups::records::{
    Fact, FactValue, GroupRecord, NEVER, OffsetCommitKey, OffsetCommitValue,
};
use crate::groups::rules::Rules;
use crate::groups::share::{SHARE, ShareGroup};

/// Way in which a client commits offsets.
#[derive(Clone, Copy, Debug)]
enum Commit {
    /// By an `OffsetCommit` of this version.
    Plain { version: i16 },
    /// By a `TxnOffsetCommit`.
    InTransaction(Transactor),
}

impl Commit {
    fn transactor(self) -> Option<Transactor> {
        match self {
            Self::Plain { .. } => None,
            Self::InTransaction(transactor) => Some(transactor),
        }
    }

    /// Returns the error code for the client.
    fn told(self, code: ErrorCode) -> ErrorCode {
        match (self, code) {
            (Self::InTransaction(_), ErrorCode::StaleMemberEpoch) => ErrorCode::IllegalGeneration,
            (_, code) => code,
        }
    }
}

/// Membership.
impl Coordinator {
    /// Tells whether a group of this name exists and is not ending.
    fn exists(&self, name: &str) -> bool {
        self.groups.get(name).is_some_and(|group| group.is_ending.is_none())
    }

    /// Returns the shared text of the group's name, if the group exists.
    fn known(&self, name: &str) -> Option<Arc<str>> {
        let (name, group) = self.groups.get_key_value(name)?;
        group.is_ending.is_none().then(|| name.clone())
    }

    /// Returns the group's name, and creates the group if it does not exist.
    fn known_or_new(&mut self, name: &str) -> Arc<str> {
        let name =
            self.groups.get_key_value(name).map_or_else(|| name.into(), |(name, _)| name.clone());
        let group = self.group_mut(&name);
        // Until its facts have ended, a group of the consumer protocol is not built from them again.
        if group.facts.is_empty() {
            group.is_ending = None;
        }
        name
    }

    /// Returns the name of a group of the consumer protocol, or of one that changes to or from it.
    fn of_consumers(&self, name: &str) -> Option<Arc<str>> {
        let (name, group) = self.groups.get_key_value(name)?;
        let is_ending = group.is_ending.is_some() && !group.facts.is_empty();
        (group.is_of_consumers() || group.is_deciding || is_ending).then(|| name.clone())
    }

    /// Handles a `JoinGroup` of this version.
    pub(crate) fn join_group(
        &mut self,
        rules: &Rules,
        version: i16,
        caller: Caller,
        request: &JoinGroupRequest,
        now: Now,
    ) {
        let code = if request.group_id.is_empty() {
            ErrorCode::InvalidGroupId
        } else if !rules.session_timeout_ms.contains(&request.session_timeout_ms) {
            ErrorCode::InvalidSessionTimeout
        } else if self.groups.get(request.group_id.as_str()).is_some_and(Group::is_of_shares) {
            ErrorCode::InconsistentGroupProtocol
        } else if let Some(name) = self.of_consumers(&request.group_id) {
            return self.ask_as_classic(&name, Classic::Join(version, caller, request.clone()));
        } else if !self.exists(&request.group_id) && !request.member_id.is_empty() {
            ErrorCode::UnknownMemberId
        } else {
            let name = self.known_or_new(&request.group_id);
            let members = &mut self.group_mut(&name).members;
            members.join(rules, version, caller, request, now.mono_us);
            self.settle(&name, now);
            return;
        };
        let answer = JoinGroupResponse {
            error_code: code.code(),
            member_id: request.member_id.clone(),
            ..JoinGroupResponse::default()
        };
        self.reply(caller.key, answer);
    }

    /// Handles a `SyncGroup`.
    pub(crate) fn sync_group(&mut self, key: RequestKey, request: &SyncGroupRequest, now: Now) {
        if let Some(name) = self.of_consumers(&request.group_id) {
            return self.ask_as_classic(&name, Classic::Sync(key, request.clone()));
        }
        let code = match self.known(&request.group_id) {
            _ if request.group_id.is_empty() => ErrorCode::InvalidGroupId,
            None => ErrorCode::UnknownMemberId,
            Some(name) => {
                self.group_mut(&name).members.sync(key, request, now.mono_us);
                self.settle(&name, now);
                return;
            }
        };
        let refused = SyncGroupResponse { error_code: code.code(), ..SyncGroupResponse::default() };
        self.reply(key, refused);
    }

    /// Handles a `Heartbeat`.
    pub(crate) fn heartbeat(&mut self, key: RequestKey, request: &HeartbeatRequest, now: Now) {
        if let Some(name) = self.of_consumers(&request.group_id) {
            return self.ask_as_classic(&name, Classic::Heartbeat(key, request.clone()));
        }
        let code = match self.known(&request.group_id) {
            _ if request.group_id.is_empty() => ErrorCode::InvalidGroupId,
            None => ErrorCode::UnknownMemberId,
            Some(name) => {
                let id = request.member_id.as_str();
                let instance = request.group_instance_id.as_deref();
                let members = &mut self.group_mut(&name).members;
                let result = members.heartbeat(id, instance, request.generation_id, now.mono_us);
                self.hasten(&name, id);
                result.err().unwrap_or(ErrorCode::None)
            }
        };
        let answer = HeartbeatResponse { error_code: code.code(), ..HeartbeatResponse::default() };
        self.reply(key, answer);
    }

    /// Handles a `LeaveGroup` of this version.
    pub(crate) fn leave_group(
        &mut self,
        key: RequestKey,
        version: i16,
        request: &LeaveGroupRequest,
        now: Now,
    ) {
        if let Some(name) = self.of_consumers(&request.group_id) {
            return self.ask_as_classic(&name, Classic::Leave(key, version, request.clone()));
        }
        let single =
            [MemberIdentity { member_id: request.member_id.clone(), ..MemberIdentity::default() }];
        let leaving = if version < 3 { &single[..] } else { &request.members };
        let results = match self.known(&request.group_id) {
            _ if request.group_id.is_empty() => Err(ErrorCode::InvalidGroupId),
            None => Ok(vec![Err(ErrorCode::UnknownMemberId); leaving.len()]),
            Some(name) => {
                let results = self.group_mut(&name).members.leave(leaving, now.mono_us);
                self.settle(&name, now);
                results
            }
        };
        let code = |result: &Result<(), ErrorCode>| result.err().unwrap_or(ErrorCode::None).code();
        let answer = match results {
            Err(refused) => {
                LeaveGroupResponse { error_code: refused.code(), ..LeaveGroupResponse::default() }
            }
            Ok(results) if version < 3 => LeaveGroupResponse {
                error_code: results.first().map_or(0, code),
                ..LeaveGroupResponse::default()
            },
            Ok(results) => {
                let member = |(member, result): (&MemberIdentity, _)| MemberResponse {
                    member_id: member.member_id.clone(),
                    group_instance_id: member.group_instance_id.clone(),
                    error_code: code(result),
                };
                let members = leaving.iter().zip(&results).map(member).collect();
                LeaveGroupResponse { members, ..LeaveGroupResponse::default() }
            }
        };
        self.reply(key, answer);
    }
}

/// Committed offsets.
impl Coordinator {
    /// Handles an `OffsetCommit` of this version, with names for all topics that the request gives by id. `refused`
    /// returns the error that forbids a commit for a partition, if there is one.
    pub(crate) fn offset_commit(
        &mut self,
        rules: &Rules,
        key: RequestKey,
        version: i16,
        request: OffsetCommitRequest,
        refused: impl Fn(&OffsetCommitRequestTopic, i32) -> Option<ErrorCode>,
        now: Now,
    ) {
        let judge = |topic: &OffsetCommitRequestTopic, partition| {
            refused(topic, partition).map_or(Ok(topic.topic_id), Err)
        };
        self.commit(rules, key, Commit::Plain { version }, request, judge, now);
    }

    /// Handles a `TxnOffsetCommit`, with ids for all topics that exist. `refused` gives the error of a partition whose
    /// offset the producer may not commit. The caller has checked that the producer's transaction is open, and that
    /// this partition is part of it.
    pub(crate) fn txn_offset_commit(
        &mut self,
        rules: &Rules,
        key: RequestKey,
        request: TxnOffsetCommitRequest,
        refused: impl Fn(&str, i32) -> Result<Uuid, ErrorCode>,
        now: Now,
    ) {
        let (producer_id, epoch) = (request.producer_id, request.producer_epoch);
        let partition = |it: TxnOffsetCommitRequestPartition| OffsetCommitRequestPartition {
            partition_index: it.partition_index,
            committed_offset: it.committed_offset,
            committed_leader_epoch: it.committed_leader_epoch,
            committed_metadata: it.committed_metadata,
        };
        let topic = |it: TxnOffsetCommitRequestTopic| OffsetCommitRequestTopic {
            name: it.name,
            partitions: it.partitions.into_iter().map(partition).collect(),
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: request.group_id,
            generation_id_or_member_epoch: request.generation_id,
            member_id: request.member_id,
            group_instance_id: request.group_instance_id,
            topics: request.topics.into_iter().map(topic).collect(),
            ..OffsetCommitRequest::default()
        };
        let judge = |topic: &OffsetCommitRequestTopic, partition| refused(&topic.name, partition);
        let commit = Commit::InTransaction(Transactor { producer_id, epoch });
        self.commit(rules, key, commit, request, judge, now);
    }

    /// Commits the offsets that `judge` has no error for. `judge` returns the id of a partition's topic.
    fn commit(
        &mut self,
        rules: &Rules,
        key: RequestKey,
        commit: Commit,
        mut request: OffsetCommitRequest,
        judge: impl Fn(&OffsetCommitRequestTopic, i32) -> Result<Uuid, ErrorCode>,
        now: Now,
    ) {
        let topics = mem::take(&mut request.topics);
        let admitted = self.admit_commit(commit, &request, now);
        let right = admitted.clone().and_then(|name| self.right_to_commit(name, commit, &request));
        let expire_timestamp = match request.retention_time_ms {
            -1 => NEVER,
            ms => now.wall_ms.saturating_add(ms),
        };
        let mut records = Vec::new();
        let mut answer = OffsetCommitResponse::default();
        for mut topic in topics {
            let asked = mem::take(&mut topic.partitions);
            let mut partitions = Vec::with_capacity(asked.len());
            let name = match &right {
                Ok((group, _)) => self.groups[group].offsets.name(&topic.name),
                Err(_) => Arc::default(),
            };
            for it in asked {
                let partition_index = it.partition_index;
                let record = judge(&topic, partition_index).and_then(|topic_id| {
                    let (group, right) = right.as_ref().map_err(|code| *code)?;
                    right.check(topic_id, partition_index)?;
                    check_metadata(it.committed_metadata.as_deref(), rules.metadata_max)?;
                    let (group, partition) = (group.clone(), partition_index);
                    let key = OffsetCommitKey { group, topic: name.clone(), partition };
                    let value = OffsetCommitValue {
                        offset: it.committed_offset,
                        leader_epoch: it.committed_leader_epoch,
                        metadata: it.committed_metadata.map_or_else(Arc::default, Arc::from),
                        commit_timestamp: now.wall_ms,
                        expire_timestamp,
                        topic_id,
                    };
                    Ok(GroupRecord::Offset { key, value: Some(value) })
                });
                let code =
                    record.as_ref().map_or_else(|code| commit.told(*code), |_| ErrorCode::None);
                records.extend(record);
                let error_code = code.code();
                partitions.push(OffsetCommitResponsePartition { partition_index, error_code });
            }
            let OffsetCommitRequestTopic { name, topic_id, .. } = topic;
            answer.topics.push(OffsetCommitResponseTopic { name, topic_id, partitions });
        }
        match admitted {
            Ok(name) if !records.is_empty() => {
                self.append_commit(&name, records, (key, answer), commit.transactor());
            }
            admitted => {
                self.reply_commit(key, answer, commit.transactor().is_some());
                // Perhaps it was made for this.
                if let Ok(name) = admitted {
                    self.settle(&name, now);
                }
            }
        }
    }

    /// Checks whether the client may commit to the group, and creates the group if need be.
    fn admit_commit(
        &mut self,
        commit: Commit,
        request: &OffsetCommitRequest,
        now: Now,
    ) -> Result<Arc<str>, ErrorCode> {
        let generation = request.generation_id_or_member_epoch;
        if !self.exists(&request.group_id) && generation >= 0 {
            return Err(match commit {
                Commit::Plain { version: 9.. } => ErrorCode::GroupIdNotFound,
                _ => ErrorCode::IllegalGeneration,
            });
        }
        if self.groups.get(request.group_id.as_str()).is_some_and(Group::is_of_shares) {
            return Err(ErrorCode::GroupIdNotFound);
        }
        let name = self.known_or_new(&request.group_id);
        let (id, instance) = (request.member_id.as_str(), request.group_instance_id.as_deref());
        let group = self.group_mut(&name);
        if group.consumer.is_some() {
            return Ok(name);
        }
        let is_transactional = commit.transactor().is_some();
        group.members.check_commit(id, instance, generation, is_transactional, now.mono_us)?;
        self.hasten(&name, id);
        Ok(name)
    }

    /// Returns the offsets of a group that the client may commit: all of them in a group of the classic protocol. The
    /// producer of a transaction need not name the member that it commits for.
    fn right_to_commit(
        &self,
        name: Arc<str>,
        commit: Commit,
        request: &OffsetCommitRequest,
    ) -> Result<(Arc<str>, CommitRight<'_>), ErrorCode> {
        let (id, epoch) = (request.member_id.as_str(), request.generation_id_or_member_epoch);
        let is_anonymous = epoch < 0 && id.is_empty() && request.group_instance_id.is_none();
        let right = match (&self.groups[&name].consumer, commit) {
            (None, _) => CommitRight::All,
            (Some(_), Commit::InTransaction(_)) if is_anonymous => CommitRight::All,
            (Some(consumer), Commit::InTransaction(_)) => {
                consumer.check_commit(i16::MAX, id, epoch)?
            }
            (Some(consumer), Commit::Plain { version }) => {
                consumer.check_commit(version, id, epoch)?
            }
        };
        Ok((name, right))
    }

    /// Answers one group's part of an `OffsetFetch`, with names for all topics that the request gives by id. The answer
    /// contains every commit that came before it.
    pub(crate) fn offset_fetch(
        &mut self,
        key: RequestKey,
        part: usize,
        request: OffsetFetchRequestGroup,
        stable: bool,
    ) {
        if let Some(group) = self.groups.get_mut(request.group_id.as_str())
            && let Some(&until) = group.flying.last()
        {
            group.readers.push(Reader { until, key, part, request, stable });
            return;
        }
        let group = self.groups.get(request.group_id.as_str());
        let answer = Self::fetched(&request.group_id, group, &request, stable);
        self.push_fetched(key, part, answer);
    }

    /// Checks the member id and epoch of a fetch against the durable facts of a group of the consumer protocol. A
    /// client that gives neither may fetch.
    fn check_fetch(group: &Group, request: &OffsetFetchRequestGroup) -> Result<(), ErrorCode> {
        if !group.is_of_consumers() || (request.member_id.is_none() && request.member_epoch < 0) {
            return Ok(());
        }
        let id: Arc<str> = request.member_id.as_deref().unwrap_or_default().into();
        let Some((_, FactValue::Member(member))) = group.facts.get(&Fact::Member(id.clone()))
        else {
            return Err(ErrorCode::UnknownMemberId);
        };
        let epoch = match group.facts.get(&Fact::Current(id)) {
            Some((_, FactValue::Current(current))) => current.member_epoch,
            _ => 0,
        };
        match () {
            () if epoch == request.member_epoch => Ok(()),
            () if member.classic.is_some() => Err(ErrorCode::IllegalGeneration),
            () => Err(ErrorCode::StaleMemberEpoch),
        }
    }

    pub(super) fn fetched(
        name: &str,
        group: Option<&Group>,
        request: &OffsetFetchRequestGroup,
        stable: bool,
    ) -> OffsetFetchResponseGroup {
        if let Some(Err(code)) = group.map(|group| Self::check_fetch(group, request)) {
            return Self::not_fetched(request, code);
        }
        let is_unstable = |topic: &str, partition| {
            let slot = group.and_then(|it| it.offsets.slot(topic, partition));
            stable && slot.is_some_and(|slot| !slot.pending.is_empty())
        };
        let answer = |topic: &str, partition_index, value: Option<&OffsetCommitValue>| {
            let is_unstable = is_unstable(topic, partition_index);
            let value = value.filter(|_| !is_unstable);
            let none = || OffsetCommitValue { offset: -1, ..OffsetCommitValue::default() };
            let value = value.cloned().unwrap_or_else(none);
            let code = if is_unstable { ErrorCode::UnstableOffsetCommit } else { ErrorCode::None };
            OffsetFetchResponsePartitions {
                partition_index,
                committed_offset: value.offset,
                committed_leader_epoch: value.leader_epoch,
                metadata: Some(value.metadata.as_ref().to_owned()),
                error_code: code.code(),
            }
        };
        let mut topics = Vec::new();
        if let Some(asked) = &request.topics {
            for topic in asked {
                let value = |partition: i32| {
                    group.and_then(|it| it.offsets.fetch(&topic.name, topic.topic_id, partition))
                };
                let partitions = topic.partition_indexes.iter();
                topics.push(OffsetFetchResponseTopics {
                    name: topic.name.clone(),
                    topic_id: topic.topic_id,
                    partitions: partitions.map(|it| answer(&topic.name, *it, value(*it))).collect(),
                });
            }
        } else if let Some(group) = group {
            for (topic, slots) in group.offsets.slots() {
                let is_told =
                    |it: &i32, slot: &Slot| slot.committed.is_some() || is_unstable(topic, *it);
                let told = slots.iter().filter(|(it, slot)| is_told(it, slot));
                let partitions = told.map(|(it, slot)| {
                    answer(topic, *it, slot.committed.as_ref().map(|it| &it.value))
                });
                let partitions: Vec<_> = partitions.collect();
                if !partitions.is_empty() {
                    let (name, topic_id) = (topic.as_ref().to_owned(), Uuid::default());
                    topics.push(OffsetFetchResponseTopics { name, topic_id, partitions });
                }
            }
        }
        let group_id = name.to_owned();
        OffsetFetchResponseGroup { group_id, topics, ..OffsetFetchResponseGroup::default() }
    }

    /// Returns the answer about a group that the coordinator cannot show: the code is the group's and each partition's.
    pub(crate) fn not_fetched(
        request: &OffsetFetchRequestGroup,
        code: ErrorCode,
    ) -> OffsetFetchResponseGroup {
        let mut answer = Self::fetched(&request.group_id, None, request, false);
        answer.error_code = code.code();
        for partition in answer.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
            partition.error_code = code.code();
        }
        answer
    }

    /// Handles an `OffsetDelete`. `refused` returns the error that forbids a deletion for a partition, if there is one.
    pub(crate) fn offset_delete(
        &mut self,
        key: RequestKey,
        request: OffsetDeleteRequest,
        refused: impl Fn(&str, i32) -> Option<ErrorCode>,
    ) {
        let name = match self.deletable(&request.group_id) {
            Ok(name) => name,
            Err(code) => {
                let error_code = code.code();
                self.reply(
                    key,
                    OffsetDeleteResponse { error_code, ..OffsetDeleteResponse::default() },
                );
                return;
            }
        };
        let group = &self.groups[&name];
        let subscribed = Subscribed::of(group);
        let mut records = Vec::new();
        let mut answer = OffsetDeleteResponse::default();
        for topic in request.topics {
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for it in topic.partitions {
                let partition = it.partition_index;
                let code = match refused(&topic.name, partition) {
                    Some(code) => code,
                    None if subscribed.contains(&topic.name) => ErrorCode::GroupSubscribedToTopic,
                    None => {
                        if group.offsets.slot(&topic.name, partition).is_some() {
                            let topic = group.offsets.name(&topic.name);
                            records.push(tombstone(&name, &topic, partition));
                        }
                        ErrorCode::None
                    }
                };
                partitions.push(OffsetDeleteResponsePartition {
                    partition_index: partition,
                    error_code: code.code(),
                });
            }
            answer.topics.push(OffsetDeleteResponseTopic { name: topic.name, partitions });
        }
        if records.is_empty() {
            self.reply(key, answer);
        } else {
            self.group_mut(&name).lingers = true;
            self.append_parted(&name, records, Then::DeleteOffsets(key, answer));
        }
    }

    /// Checks whether a client may delete offsets of a group.
    fn deletable(&self, group_id: &str) -> Result<Arc<str>, ErrorCode> {
        if group_id.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        let name = self.known(group_id).ok_or(ErrorCode::GroupIdNotFound)?;
        let members = &self.groups[&name].members;
        let is_known_kind = members.state() == State::Empty || members.protocol_type() == CONSUMER;
        if is_known_kind { Ok(name) } else { Err(ErrorCode::NonEmptyGroup) }
    }

    /// Deletes the offsets that were committed for a topic, because the topic was deleted.
    pub(crate) fn forget_topic(&mut self, topic: &str, topic_id: Uuid) {
        let mut found = Vec::new();
        for (name, group) in &self.groups {
            let keys = group.offsets.of_topic(topic, topic_id);
            let records: Vec<_> = keys.map(|(topic, it)| tombstone(name, topic, it)).collect();
            if !records.is_empty() {
                found.push((name.clone(), records));
            }
        }
        for (name, records) in found {
            self.group_mut(&name).lingers = true;
            self.append_parted(&name, records, Then::Nothing);
        }
        self.forget_shared_topic(topic_id);
    }
}

/// Groups.
impl Coordinator {
    /// Describes a group for `DescribeGroups` of this version.
    pub(crate) fn describe(&self, version: i16, group_id: &str) -> DescribedGroup {
        let other = match self.groups.get(group_id) {
            Some(group) if !group.is_of_consumers() && !group.is_of_shares() => {
                return group.members.describe(group_id);
            }
            other => other.is_some(),
        };
        let mut missing = DescribedGroup {
            group_id: group_id.to_owned(),
            group_state: State::Dead.name().to_owned(),
            ..DescribedGroup::default()
        };
        if version >= 6 {
            missing.error_code = ErrorCode::GroupIdNotFound.code();
            let problem = if other { "is not a classic group" } else { "not found" };
            missing.error_message = Some(format!("Group {group_id} {problem}."));
        }
        missing
    }

    /// Returns the groups that `ListGroups` asks for.
    pub(crate) fn list(
        &self,
        rules: &Rules,
        request: &ListGroupsRequest,
        now: Now,
    ) -> Vec<ListedGroup> {
        let is_wanted = |wanted: &[String], is: &str| {
            wanted.is_empty() || wanted.iter().any(|it| it.trim().eq_ignore_ascii_case(is))
        };
        let listed = |(name, group): (&Arc<str>, &Group)| {
            let is_of_consumers = group.is_of_consumers();
            let group_type = match () {
                () if is_of_consumers => CONSUMER,
                () if group.is_of_shares() => SHARE,
                () => "classic",
            };
            if !is_wanted(&request.types_filter, group_type) {
                return None;
            }
            let (group_state, protocol_type) = if is_of_consumers {
                (group.shown(&rules.consumer, now, ConsumerGroup::state), CONSUMER)
            } else if group.is_of_shares() {
                (group.shown_share(&rules.share, now, ShareGroup::state), SHARE)
            } else {
                (group.members.state().name(), group.members.protocol_type())
            };
            is_wanted(&request.states_filter, group_state).then(|| ListedGroup {
                group_id: name.as_ref().to_owned(),
                protocol_type: protocol_type.to_owned(),
                group_state: group_state.to_owned(),
                group_type: group_type.to_owned(),
            })
        };
        self.groups.iter().filter_map(listed).collect()
    }

    /// Handles one group's part of a `DeleteGroups`.
    pub(crate) fn delete_group(&mut self, key: RequestKey, part: usize, group_id: &str) {
        let code = match self.known(group_id) {
            None => ErrorCode::GroupIdNotFound,
            Some(name)
                if self.groups[&name].is_of_consumers() || self.groups[&name].is_of_shares() =>
            {
                // Members may be about to join, so only the group's turn tells whether it has any.
                self.group_mut(&name).waiting.push_back(Asked::Delete(key, part));
                self.ready.insert(name);
                return;
            }
            Some(name) if self.groups[&name].members.state() != State::Empty => {
                ErrorCode::NonEmptyGroup
            }
            Some(name) => return self.delete_empty(&name, key, part),
        };
        self.push_deleted(key, part, group_id, code);
    }

    /// Deletes a group without members.
    pub(super) fn delete_empty(&mut self, name: &Arc<str>, key: RequestKey, part: usize) {
        let keys = self.groups[name].offsets.keys();
        let records = keys.map(|(topic, it)| tombstone(name, topic, it)).collect();
        self.end_group(name, records, Some((key, part)));
    }

    /// Appends these records and the end of a group without members.
    fn end_group(
        &mut self,
        name: &Arc<str>,
        mut records: Vec<GroupRecord>,
        asked: Option<(RequestKey, usize)>,
    ) {
        let ends = self.ends_of_facts(name);
        if ends.is_empty() {
            records.push(GroupRecord::Group { group: name.clone(), value: None });
        }
        records.extend(ends);
        let last = self.append_parted(name, records, Then::DeleteGroup(asked));
        let life = self.new_life();
        let group = self.group_mut(name);
        assert!(!group.is_deciding, "{name} does not end while it decides");
        assert_eq!(group.members.len(), 0, "{name} has no members when it ends");
        let is_empty = group.consumer.as_ref().is_none_or(|it| it.is_empty())
            && group.share.as_ref().is_none_or(|it| it.is_empty());
        assert!(is_empty, "{name} has no members of its protocol when it ends");
        (group.members, group.life, group.is_ending) = (Membership::default(), life, Some(last));
        group.consumer = None;
        group.share = None;
        group.lingers = false;
    }

    /// Appends tombstones of expired offsets in a limited count of groups after this one. Returns the group where it
    /// stopped, unless it saw all. Groups without members, offsets and appends under way end, too.
    pub(crate) fn expire(
        &mut self,
        rules: &Rules,
        now: Now,
        after: Option<&Arc<str>>,
        groups_max: usize,
    ) -> Option<Arc<str>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let names = self.groups.range::<Arc<str>, _>((from, Unbounded));
        let names: Vec<Arc<str>> = names.map(|(name, _)| name.clone()).take(groups_max).collect();
        for name in &names {
            self.expire_group(name, rules.retention_ms, now);
        }
        names.last().filter(|_| names.len() == groups_max).cloned()
    }

    fn expire_group(&mut self, name: &Arc<str>, retention_ms: i64, now: Now) {
        let group = &self.groups[name];
        if group.is_of_shares() {
            return;
        }
        let (members, since_ms) = (&group.members, group.since_ms);
        let subscribed = Subscribed::of(group);
        let ages_from_commit = match members.state() {
            _ if group.is_of_consumers() || members.protocol_type().is_empty() => true,
            State::Empty => since_ms == NEVER,
            State::Stable if matches!(subscribed, Subscribed::To(_)) => true,
            _ => return,
        };
        let since = |value: &OffsetCommitValue| {
            if ages_from_commit { value.commit_timestamp } else { since_ms }
        };
        let is_subscribed = |topic: &str| subscribed.contains(topic);
        let (expired, all) = group.offsets.expired(now.wall_ms, retention_ms, is_subscribed, since);
        let tombstones = expired.iter().map(|(topic, it)| tombstone(name, topic, *it));
        let records: Vec<_> = tombstones.collect();
        let is_deserted = match &group.consumer {
            Some(consumer) => consumer.is_empty() && !group.is_deciding && group.waiting.is_empty(),
            None => members.is_idle() && group.facts.is_empty(),
        };
        if all && group.is_ending.is_none() && is_deserted {
            self.end_group(name, records, None);
        } else if !records.is_empty() {
            self.append_parted(name, records, Then::Nothing);
        }
    }
}

/// The topics that members of a group are subscribed to.
enum Subscribed<'a> {
    To(BTreeSet<String>),
    /// A group of the consumer protocol knows it.
    AsIn(&'a ConsumerGroup),
    /// Topics of a consumer, which the coordinator cannot know: any topic may be one.
    Unknown,
    /// Those of a group of another kind.
    None,
}

impl<'a> Subscribed<'a> {
    fn of(group: &'a Group) -> Self {
        if let Some(consumer) = &group.consumer {
            return Self::AsIn(consumer);
        }
        let members = &group.members;
        if members.protocol_type() != CONSUMER {
            return Self::None;
        }
        members.subscribed_topics().map_or(Self::Unknown, Self::To)
    }

    fn contains(&self, topic: &str) -> bool {
        match self {
            Self::To(topics) => topics.contains(topic),
            Self::AsIn(consumer) => consumer.is_subscribed(topic),
            Self::Unknown => true,
            Self::None => false,
        }
    }
}

fn tombstone(group: &Arc<str>, topic: &Arc<str>, partition: i32) -> GroupRecord {
    let key = OffsetCommitKey { group: group.clone(), topic: topic.clone(), partition };
    GroupRecord::Offset { key, value: None }
}

/// Tells whether the metadata exceeds `max`. Kafka counts in UTF-16.
fn check_metadata(metadata: Option<&str>, max: usize) -> Result<(), ErrorCode> {
    let is_too_long = metadata.is_some_and(|it| it.len() > max && it.encode_utf16().count() > max);
    if is_too_long { Err(ErrorCode::OffsetMetadataTooLarge) } else { Ok(()) }
}
