//! Members of the classic protocol in a group of the consumer protocol, and a group's change from one protocol to the
//! other.
//!
//! To a classic member such a group looks like one that rebalances cooperatively. The member joins, gets its epoch as
//! the generation, and asks for its assignment, which the coordinator has decided. A heartbeat tells the member to join
//! again when it must revoke partitions or can get more. The group takes the partitions that the member names in
//! `JoinGroup` as those that it has.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::consumer_group_heartbeat::TopicPartitions;
use duramen_protocol::messages::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use duramen_protocol::messages::join_group::JoinGroupRequestProtocol;
use duramen_protocol::messages::leave_group::{MemberIdentity, MemberResponse};
use duramen_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_storage::sabotage::{self, Bug};

use super::view::{Current, Member, Owned, Stage, View, target_value};
use super::{ConsumerGroup, ConsumerRules, Migration, Shares, Topics, sorted};
use crate::event::{Now, RequestKey};
use crate::groups::membership::{Caller, HandedOver};
use crate::groups::records::{
    ClassicMember, ClassicProtocol, EpochValue, Fact, FactValue, GroupMetadataValue,
    MemberMetadata, MemberValue, TargetEpochValue,
};
use crate::groups::rules::us;

/// The kind of classic group that can change to this one and back.
pub(crate) const CONSUMER: &str = "consumer";

/// First version of `JoinGroup` in which members without a static name must have an id.
const FIRST_WITH_ID: i16 = 4;
/// The first version of `LeaveGroup` that names several members.
const FIRST_OF_SEVERAL: i16 = 3;

impl Migration {
    /// Tells whether groups of the classic protocol may become groups of the consumer protocol while they have members.
    pub(crate) fn upgrades(self) -> bool {
        matches!(self, Self::Bidirectional | Self::Upgrade)
    }

    fn downgrades(self) -> bool {
        matches!(self, Self::Bidirectional | Self::Downgrade)
    }
}

/// Requests of classic members.
impl ConsumerGroup {
    /// Handles a `JoinGroup` of this version.
    pub(crate) fn join(
        &mut self,
        rules: &ConsumerRules,
        topics: Topics<'_>,
        version: i16,
        caller: &Caller,
        request: &JoinGroupRequest,
        now: Now,
    ) {
        let answer = self.admit(rules, topics, version, caller, request, now);
        let answer = answer.unwrap_or_else(|(code, id)| JoinGroupResponse {
            error_code: code.code(),
            member_id: id,
            ..JoinGroupResponse::default()
        });
        self.answer(caller.key, answer);
    }

    fn admit(
        &mut self,
        rules: &ConsumerRules,
        topics: Topics<'_>,
        version: i16,
        caller: &Caller,
        request: &JoinGroupRequest,
        now: Now,
    ) -> Result<JoinGroupResponse, (ErrorCode, String)> {
        let refused = |code| (code, request.member_id.clone());
        let is_unknown = request.member_id.is_empty();
        let id: Arc<str> = if is_unknown {
            caller.fresh.to_string().into()
        } else {
            let id = request.member_id.as_str();
            self.view.known(id).cloned().unwrap_or_else(|| id.into())
        };
        if rules.migration == Migration::Disabled {
            return Err(refused(ErrorCode::InconsistentGroupProtocol));
        }
        if self.view.members.len() >= rules.members_max && !self.view.members.contains_key(&id) {
            return Err((ErrorCode::GroupMaxSizeReached, String::new()));
        }
        let subscription = self.read_subscription(request);
        let subscription =
            subscription.ok_or_else(|| refused(ErrorCode::InconsistentGroupProtocol))?;
        let instance = request.group_instance_id.as_deref();
        if is_unknown && instance.is_none() && version >= FIRST_WITH_ID {
            return Err((ErrorCode::MemberIdRequired, id.as_ref().to_owned()));
        }
        // A new id has no partitions. A member that was removed must first give up its partitions. Another member may
        // have them by now, and the group would accept the old member's commits in its new epoch.
        let has_any = subscription.owned_partitions.iter().any(|it| !it.partitions.is_empty());
        if !is_unknown && has_any && !self.view.members.contains_key(&id) {
            return Err(refused(ErrorCode::UnknownMemberId));
        }
        let named = instance.map(|name| self.view.named(name).map(|(other, _)| other.clone()));
        let replaced = match named {
            Some(None) if !is_unknown => return Err(refused(ErrorCode::UnknownMemberId)),
            Some(Some(other)) if other != id && !is_unknown => {
                return Err(refused(ErrorCode::FencedInstanceId));
            }
            Some(Some(other)) if other != id => Some(other),
            _ => None,
        };
        let before_id = replaced.as_ref().unwrap_or(&id);
        let before = self.view.members.get(before_id).cloned().unwrap_or_default();
        let value = Arc::new(classic_value(&before.value, caller, request, &subscription));
        match replaced {
            Some(old) => self.replace(&old, &id, &before, &value),
            None if value != before.value => {
                self.emit(Fact::Member(id.clone()), Some(FactValue::Member(value.clone())));
            }
            None => {}
        }
        let has_changed =
            self.follow_subscription(rules, topics, &caller.context, (&before.value, &value), now);
        self.assign(rules, topics, now);
        let mut owned = owned_of(&subscription, topics);
        if sabotage::is(Bug::ClassicHasNothing) {
            owned.clear();
        }
        self.reconcile(&id, has_changed, Some(&owned), topics, now);
        self.beat(&id, request.session_timeout_ms, now);
        let deadlines = self.deadlines.get_mut(&id).expect("it was just heard of");
        deadlines.joining = None;
        deadlines.syncing = Some(now.mono_us + us(value.rebalance_timeout_ms));
        Ok(JoinGroupResponse {
            generation_id: self.view.members[&id].current.epoch,
            protocol_type: Some(CONSUMER.to_owned()),
            protocol_name: Some(first_protocol(&value).to_owned()),
            member_id: id.as_ref().to_owned(),
            ..JoinGroupResponse::default()
        })
    }

    /// Reads the subscription of a member, if the member offers a protocol that all other classic members know.
    fn read_subscription(
        &self,
        request: &JoinGroupRequest,
    ) -> Option<ConsumerProtocolSubscription> {
        let classic = || self.view.members.values().filter_map(|it| it.value.classic.as_ref());
        let all_know = |protocol: &JoinGroupRequestProtocol| {
            classic().all(|it| it.protocols.iter().any(|known| known.name == protocol.name))
        };
        if request.protocol_type != CONSUMER || !request.protocols.iter().any(all_know) {
            return None;
        }
        let first = request.protocols.first()?;
        consumer_protocol::decode(first.metadata.clone()).ok()
    }

    /// Handles a `SyncGroup`.
    pub(crate) fn sync(
        &mut self,
        topics: Topics<'_>,
        key: RequestKey,
        request: &SyncGroupRequest,
        now: Now,
    ) {
        let answer = self.share_of(topics, request, now).unwrap_or_else(|code| SyncGroupResponse {
            error_code: code.code(),
            ..SyncGroupResponse::default()
        });
        self.answer(key, answer);
    }

    fn share_of(
        &mut self,
        topics: Topics<'_>,
        request: &SyncGroupRequest,
        now: Now,
    ) -> Result<SyncGroupResponse, ErrorCode> {
        let instance = request.group_instance_id.as_deref();
        let (id, session_timeout_ms) =
            self.find_classic(&request.member_id, instance, request.generation_id)?;
        let member = &self.view.members[&id];
        let (kind, protocol) = (&request.protocol_type, &request.protocol_name);
        if kind.as_deref().is_some_and(|it| it != CONSUMER)
            || protocol.as_deref().is_some_and(|it| it != first_protocol(&member.value))
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        let Current { epoch, stage, .. } = *member.current;
        if self.view.target_epoch > epoch && stage != Stage::Revoking {
            self.expect_to_join(&id, now);
            return Err(ErrorCode::RebalanceInProgress);
        }
        let assigned = shares(&member.current.assigned);
        let assignment = encoded(&assigned, first_metadata(&member.value), topics);
        self.beat(&id, session_timeout_ms, now);
        self.deadlines.get_mut(&id).expect("it was just heard of").syncing = None;
        Ok(SyncGroupResponse {
            protocol_type: kind.clone(),
            protocol_name: protocol.clone(),
            assignment,
            ..SyncGroupResponse::default()
        })
    }

    /// Handles a `Heartbeat`.
    pub(crate) fn classic_heartbeat(
        &mut self,
        key: RequestKey,
        request: &HeartbeatRequest,
        now: Now,
    ) {
        let instance = request.group_instance_id.as_deref();
        let found = self.find_classic(&request.member_id, instance, request.generation_id);
        let code = match found {
            Err(code) => code,
            Ok((id, session_timeout_ms)) => {
                self.beat(&id, session_timeout_ms, now);
                let has_to_join = self.has_to_join(&id);
                if has_to_join {
                    self.expect_to_join(&id, now);
                }
                if has_to_join { ErrorCode::RebalanceInProgress } else { ErrorCode::None }
            }
        };
        let answer = HeartbeatResponse { error_code: code.code(), ..HeartbeatResponse::default() };
        self.answer(key, answer);
    }

    /// Tells whether a classic member would get a step further by joining again.
    fn has_to_join(&self, id: &Arc<str>) -> bool {
        let Member { current, target, .. } = &self.view.members[id];
        let lacks = |(topic, partitions): (&Uuid, &Vec<i32>)| {
            let has = current.assigned.get(topic);
            partitions.iter().any(|part| {
                has.is_none_or(|has| !has.contains_key(part))
                    && self.view.owner(*topic, *part).is_some()
            })
        };
        match current.stage {
            _ if current.epoch < self.view.target_epoch => true,
            Stage::Revoking => true,
            Stage::Waiting => !target.iter().any(lacks),
            Stage::Stable | Stage::Unknown => false,
        }
    }

    fn expect_to_join(&mut self, id: &Arc<str>, now: Now) {
        let timeout_us = us(self.view.members[id].value.rebalance_timeout_ms);
        let deadlines = self.deadlines.entry(id.clone()).or_default();
        deadlines.joining.get_or_insert(now.mono_us + timeout_us);
    }

    /// Handles a `LeaveGroup` of this version, which removes classic members, and any member that an operator takes
    /// out.
    pub(crate) fn leave_classic(
        &mut self,
        topics: Topics<'_>,
        key: RequestKey,
        version: i16,
        request: &LeaveGroupRequest,
    ) {
        let single =
            [MemberIdentity { member_id: request.member_id.clone(), ..MemberIdentity::default() }];
        let leaving = if version < FIRST_OF_SEVERAL { &single[..] } else { &request.members };
        let mut found: Vec<Arc<str>> = Vec::new();
        let mut members = Vec::with_capacity(leaving.len());
        for identity in leaving {
            let instance = identity.group_instance_id.as_deref();
            let id = self.find(&identity.member_id, instance, true);
            if let Ok(id) = &id
                && !found.contains(id)
            {
                found.push(id.clone());
            }
            members.push(MemberResponse {
                member_id: identity.member_id.clone(),
                group_instance_id: identity.group_instance_id.clone(),
                error_code: id.err().unwrap_or(ErrorCode::None).code(),
            });
        }
        if !found.is_empty() {
            self.fence(&found, topics);
        }
        let answer = if version < FIRST_OF_SEVERAL {
            let error_code = members.first().map_or(0, |member| member.error_code);
            LeaveGroupResponse { error_code, ..LeaveGroupResponse::default() }
        } else {
            LeaveGroupResponse { members, ..LeaveGroupResponse::default() }
        };
        self.answer(key, answer);
    }

    fn find(&self, id: &str, instance: Option<&str>, by_name: bool) -> Result<Arc<str>, ErrorCode> {
        let Some(instance) = instance else {
            return self.view.known(id).cloned().ok_or(ErrorCode::UnknownMemberId);
        };
        let (known, _) = self.view.named(instance).ok_or(ErrorCode::UnknownMemberId)?;
        // An operator takes static members out by their names, without knowing their ids.
        if known.as_ref() == id || (by_name && id.is_empty()) {
            Ok(known.clone())
        } else {
            Err(ErrorCode::FencedInstanceId)
        }
    }

    /// Returns a classic member of this generation, and its session timeout.
    fn find_classic(
        &self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(Arc<str>, i32), ErrorCode> {
        let id = self.find(id, instance, false)?;
        let member = &self.view.members[&id];
        let classic = member.value.classic.as_ref().ok_or(ErrorCode::UnknownMemberId)?;
        if member.current.epoch != generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        Ok((id, classic.session_timeout_ms))
    }
}

/// A group of one kind becomes one of the other.
impl ConsumerGroup {
    /// Converts a group of the classic protocol to the consumer protocol. Returns `None` if a part of it cannot be
    /// converted.
    pub(crate) fn upgraded(
        generation: i32,
        members: Vec<HandedOver>,
        topics: Topics<'_>,
        now: Now,
    ) -> Option<Self> {
        let mut group = Self::default();
        let mut read = Vec::with_capacity(members.len());
        for member in members {
            let HandedOver { stored, protocols } = member;
            let subscription = consumer_protocol::decode(stored.subscription.clone()).ok()?;
            let assignment: ConsumerProtocolAssignment =
                consumer_protocol::decode(stored.assignment.clone()).ok()?;
            if assignment.user_data.is_some_and(|data| !data.is_empty()) {
                return None; // An assignor of the application's own told its members something by it.
            }
            let mut owned = owned_by_id(&assignment.assigned_partitions, topics);
            let mut claimed = owned_of(&subscription, topics);
            if sabotage::is(Bug::UpgradedWithNothing) {
                owned.clear();
            }
            if sabotage::is(Bug::GivingUpForgotten) {
                claimed.clear();
            }
            read.push((stored, protocols, subscription, owned, claimed));
        }
        let given: BTreeSet<(Uuid, i32)> = read.iter().flat_map(|it| each(&it.3)).collect();
        for (stored, protocols, subscription, owned, claimed) in read {
            let id: Arc<str> = stored.member_id.as_str().into();
            let value = upgraded_value(stored, protocols, subscription);
            let session_timeout_ms = value.classic.as_ref().map_or(0, |it| it.session_timeout_ms);
            group.emit(Fact::Member(id.clone()), Some(FactValue::Member(Arc::new(value))));
            // An assignor may have given one partition to two members. The first one gets it.
            let is_free = |it: &(Uuid, i32)| group.view.owner(it.0, it.1).is_none();
            let assigned = owned_since(generation, each(&owned).filter(is_free));
            // The member may still be about to revoke partitions that it had when it joined and did not get again. Its
            // next `JoinGroup` no longer names them.
            let left = each(&claimed).filter(|it| is_free(it) && !given.contains(it));
            let revoking = owned_since(generation, left);
            let stage = if revoking.is_empty() { Stage::Stable } else { Stage::Revoking };
            group.emit(Fact::Target(id.clone()), Some(target_value(&shares(&assigned))));
            let (epoch, previous) = (generation, generation);
            let current = Current { epoch, previous, stage, assigned, revoking };
            group.emit(Fact::Current(id.clone()), Some(current.value()));
            group.beat(&id, session_timeout_ms, now);
        }
        let metadata_hash = topics.hash(group.view.subscribed_topics().into_iter());
        let epoch = EpochValue { epoch: generation, metadata_hash };
        group.emit(Fact::Epoch, Some(FactValue::Epoch(epoch)));
        let target = TargetEpochValue { epoch: generation, timestamp: 0 };
        group.emit(Fact::TargetEpoch, Some(FactValue::TargetEpoch(target)));
        Some(group)
    }

    /// Converts the group to the classic protocol, if all members now speak that and one of them did not before.
    /// Otherwise returns `None`.
    pub(crate) fn downgraded(
        &self,
        rules: &ConsumerRules,
        members_max: usize,
        topics: Topics<'_>,
    ) -> Option<GroupMetadataValue> {
        let View { members, epoch, .. } = &self.view;
        if members.is_empty()
            || !self.has_lost_consumer
            || !rules.migration.downgrades()
            || members.len() > members_max
            || !members.values().all(Member::is_classic)
        {
            return None;
        }
        let protocols = |member: &Member| -> Vec<ClassicProtocol> {
            member.value.classic.as_ref().map(|it| it.protocols.clone()).unwrap_or_default()
        };
        let all: Vec<Vec<ClassicProtocol>> = members.values().map(protocols).collect();
        let is_common = |name: &str| all.iter().all(|them| them.iter().any(|it| it.name == name));
        let protocol = all.first()?.iter().find(|it| is_common(&it.name))?.name.clone();
        let stored = |((id, member), protocols): ((&Arc<str>, &Member), &Vec<ClassicProtocol>)| {
            let chosen = protocols.iter().find(|it| it.name == protocol);
            let subscription = chosen.map(|it| it.metadata.clone()).unwrap_or_default();
            let assignment =
                encoded(&shares(&member.current.assigned), Some(&subscription), topics);
            let value = &member.value;
            MemberMetadata {
                member_id: id.as_ref().to_owned(),
                group_instance_id: value.instance_id.as_deref().map(ToOwned::to_owned),
                client_id: value.client_id.clone(),
                client_host: value.client_host.clone(),
                session_timeout: value.classic.as_ref().map_or(0, |it| it.session_timeout_ms),
                rebalance_timeout: value.rebalance_timeout_ms,
                subscription,
                assignment,
            }
        };
        Some(GroupMetadataValue {
            protocol_type: CONSUMER.to_owned(),
            generation: if sabotage::is(Bug::DowngradedAnew) { 0 } else { *epoch },
            protocol: Some(protocol.clone()),
            leader: None,
            members: members.iter().zip(&all).map(stored).collect(),
            ..GroupMetadataValue::default()
        })
    }
}

fn first_protocol(value: &MemberValue) -> &str {
    let first = value.classic.as_ref().and_then(|it| it.protocols.first());
    first.map_or("", |it| it.name.as_str())
}

fn first_metadata(value: &MemberValue) -> Option<&Bytes> {
    value.classic.as_ref()?.protocols.first().map(|it| &it.metadata)
}

fn shares(owned: &Owned) -> Shares {
    owned.iter().map(|(topic, it)| (*topic, it.keys().copied().collect())).collect()
}

fn each(topics: &[TopicPartitions]) -> impl Iterator<Item = (Uuid, i32)> {
    topics.iter().flat_map(|it| it.partitions.iter().map(|part| (it.topic_id, *part)))
}

fn owned_since(epoch: i32, partitions: impl Iterator<Item = (Uuid, i32)>) -> Owned {
    let mut owned = Owned::new();
    for (topic, partition) in partitions {
        owned.entry(topic).or_default().insert(partition, epoch);
    }
    owned
}

/// Encodes partitions for a classic member, in the version of the protocol that it speaks.
fn encoded(shares: &Shares, metadata: Option<&Bytes>, topics: Topics<'_>) -> Bytes {
    let named = |(topic, partitions): (&Uuid, &Vec<i32>)| {
        let topic = topics.image.topic(*topic)?.name.clone();
        Some(TopicPartition { topic, partitions: partitions.clone() })
    };
    let assigned_partitions = shares.iter().filter_map(named).collect();
    let assignment = ConsumerProtocolAssignment { assigned_partitions, user_data: None };
    let version = metadata.and_then(|it| Some(i16::from_be_bytes(it.get(..2)?.try_into().ok()?)));
    let version = version.unwrap_or(0).clamp(0, 3);
    consumer_protocol::encode(&assignment, version).unwrap_or_default()
}

fn owned_by_id(owned: &[TopicPartition], topics: Topics<'_>) -> Vec<TopicPartitions> {
    let known = |it: &TopicPartition| {
        let topic_id = topics.image.topic_named(&it.topic)?.id;
        Some(TopicPartitions { topic_id, partitions: it.partitions.clone() })
    };
    owned.iter().filter_map(known).collect()
}

/// Returns the partitions that a classic member claims. A member whose version cannot name them has none when it joins.
fn owned_of(
    subscription: &ConsumerProtocolSubscription,
    topics: Topics<'_>,
) -> Vec<TopicPartitions> {
    owned_by_id(&subscription.owned_partitions, topics)
}

fn classic_value(
    before: &MemberValue,
    caller: &Caller,
    request: &JoinGroupRequest,
    subscription: &ConsumerProtocolSubscription,
) -> MemberValue {
    let protocol = |it: &JoinGroupRequestProtocol| ClassicProtocol {
        name: it.name.clone(),
        metadata: it.metadata.clone(),
    };
    let instance = request.group_instance_id.as_deref().map(Arc::from);
    MemberValue {
        instance_id: instance.or_else(|| before.instance_id.clone()),
        rack_id: subscription.rack_id.clone().or_else(|| before.rack_id.clone()),
        client_id: caller.client_id.clone(),
        client_host: caller.client_host.clone(),
        subscribed_topic_names: sorted(subscription.topics.clone()),
        // Classic members know no such thing on the server's side.
        subscribed_topic_regex: Some("".into()),
        rebalance_timeout_ms: match request.rebalance_timeout_ms {
            -1 => request.session_timeout_ms, // The first version knew one timeout only.
            ms => ms,
        },
        server_assignor: before.server_assignor.clone(),
        classic: Some(ClassicMember {
            session_timeout_ms: request.session_timeout_ms,
            protocols: request.protocols.iter().map(protocol).collect(),
        }),
    }
}

fn upgraded_value(
    stored: MemberMetadata,
    protocols: Vec<(String, Bytes)>,
    subscription: ConsumerProtocolSubscription,
) -> MemberValue {
    let protocol = |(name, metadata)| ClassicProtocol { name, metadata };
    MemberValue {
        instance_id: stored.group_instance_id.map(Arc::from),
        rack_id: subscription.rack_id,
        client_id: stored.client_id,
        client_host: stored.client_host,
        subscribed_topic_names: sorted(subscription.topics),
        subscribed_topic_regex: None,
        rebalance_timeout_ms: stored.rebalance_timeout,
        server_assignor: None,
        classic: Some(ClassicMember {
            session_timeout_ms: stored.session_timeout,
            protocols: protocols.into_iter().map(protocol).collect(),
        }),
    }
}
