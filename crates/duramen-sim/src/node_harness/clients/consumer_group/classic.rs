//! Members of the classic protocol, in a group that has members of both protocols by turns.
//!
//! The members are consumers as Kafka's are. They tell in `JoinGroup` the partitions that they go on using: none where
//! the group gives up everything before it agrees anew. The leader of a generation assigns no member a partition that
//! another says it uses. The group's coordinator does so, as long as a member speaks the consumer protocol.

use std::collections::BTreeSet;

use bytes::Bytes;
use duramen_protocol::messages::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;
use duramen_protocol::messages::{JoinGroupResponse, SyncGroupResponse};
use duramen_protocol::{ErrorCode, Request};

use super::owners::{Beat, Kind, synced};
use super::{LEAVE, Member, PARTITIONS, TOPIC};
use crate::failure::{Failure, wrong};
use crate::node_harness::clients::answers::{CLASSIC_CODES as CODES, code_of, expect_one_of};
use crate::node_harness::clients::requests::{Asking, Classic};
use crate::prng::Prng;
use crate::trace::tell;

/// Stage of a classic member.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// The member has to join, or to join again.
    Out,
    /// The member is in a generation; its leader knows all members.
    Joined { led: Vec<Led> },
    /// The member knows its assignment.
    In,
}

/// A member as the leader of its generation knows it.
#[derive(Clone, Debug)]
pub(super) struct Led {
    id: String,
    uses: BTreeSet<i32>,
    /// When it was told so.
    generation: i32,
}

/// Protocol that most members speak that begin anew: it turns, now and then.
#[derive(Debug)]
pub(super) struct Tide {
    pub(super) is_classic: bool,
    /// Classic members give up everything before they join again.
    pub(super) is_eager: bool,
}

impl Tide {
    pub(super) fn new(shape: &mut Prng) -> Self {
        Self { is_classic: shape.chance(500), is_eager: shape.chance(500) }
    }
}

/// Requests of a classic member.
impl Member {
    /// Returns the next request of a classic member, of which the first part is for the oracle.
    pub(super) fn say(
        &mut self,
        (tide, last_phase): (&Tide, bool),
        work: &mut Prng,
        now_us: u64,
    ) -> Asking<Beat> {
        if self.uses != self.wanted {
            self.remember();
            self.uses.clone_from(&self.wanted);
            self.classic = Some(Stage::Out);
        }
        match self.classic.clone() {
            Some(Stage::Joined { led }) => {
                let (request, version) = self.sync(&led, work, last_phase);
                (self.beat(Kind::Sync, now_us), request, version)
            }
            Some(Stage::In) => {
                let request = self.named().heartbeat();
                (self.beat(Kind::Heartbeat, now_us), request, *work.pick(&[3, 4]))
            }
            _ => {
                if tide.is_eager {
                    self.remember();
                    self.uses.clear();
                    self.wanted.clear();
                }
                let (request, version) = self.join(work);
                (self.beat(Kind::Join, now_us), request, version)
            }
        }
    }

    /// Names itself to the coordinator.
    fn named(&self) -> Classic<'_> {
        let Self { group, id, epoch, instance, .. } = self;
        Classic { group, id, generation: *epoch, instance: *instance }
    }

    fn join(&self, work: &mut Prng) -> (Request, i16) {
        let partitions: Vec<i32> = self.uses.iter().copied().collect();
        let owned = TopicPartition { topic: TOPIC.to_owned(), partitions };
        let subscription = ConsumerProtocolSubscription {
            topics: vec![TOPIC.to_owned()],
            owned_partitions: vec![owned],
            generation_id: self.told_in,
            ..ConsumerProtocolSubscription::default()
        };
        let version = if self.at == 0 { 2 } else { 3 };
        let metadata = consumer_protocol::encode(&subscription, version);
        let metadata = metadata.expect("subscriptions here are well-formed");
        let limits = (self.session_timeout_ms, self.rebalance_timeout_ms);
        let version = *work.pick(if self.instance.is_some() { &[5, 9] } else { &[3, 5, 9] });
        (self.named().join(limits, metadata), version)
    }

    fn sync(&self, led: &[Led], work: &mut Prng, last_phase: bool) -> (Request, i16) {
        let assignment = |(member, partitions): (&Led, Vec<i32>)| {
            let part = TopicPartition { topic: TOPIC.to_owned(), partitions };
            let assignment =
                ConsumerProtocolAssignment { assigned_partitions: vec![part], user_data: None };
            let bytes = consumer_protocol::encode(&assignment, 1);
            SyncGroupRequestAssignment {
                member_id: member.id.clone(),
                assignment: bytes.expect("assignments here are well-formed"),
            }
        };
        // A member that gets nothing need not be named.
        let given = led.iter().zip(shares(led, work, last_phase)).filter(|it| !it.1.is_empty());
        (self.named().sync(given.map(assignment).collect()), *work.pick(&[3, 5]))
    }

    /// Makes the member leave; the member does not wait for the answer.
    pub(super) fn leave_as_classic(&self, work: &mut Prng, now_us: u64) -> Asking<Beat> {
        let beat = Beat { epoch: LEAVE, ..self.beat(Kind::Leave, now_us) };
        let version = *work.pick(&[3, 5]);
        (beat, self.named().leave(version), version)
    }
}

/// Assigns each partition to a member, as the leader does. A partition goes to nobody for now if another member is to
/// have it than the one that uses it.
fn shares(led: &[Led], work: &mut Prng, last_phase: bool) -> Vec<Vec<i32>> {
    let mut shares = vec![Vec::new(); led.len()];
    for partition in (0..PARTITIONS).filter(|_| !led.is_empty()) {
        let claims = led.iter().enumerate().filter(|(_, it)| it.uses.contains(&partition));
        let newest = claims.clone().map(|(_, it)| it.generation).max();
        let mut users = claims.filter(|(_, it)| Some(it.generation) == newest);
        match (users.next(), users.next()) {
            (None, _) => shares[work.index(led.len())].push(partition),
            (Some((at, _)), None) if last_phase || work.chance(700) => shares[at].push(partition),
            _ => {}
        }
    }
    shares
}

fn led(it: &JoinGroupResponse) -> Result<Vec<Led>, Failure> {
    let led = |(id, metadata): (&String, &Bytes)| {
        let read = consumer_protocol::decode::<ConsumerProtocolSubscription>(metadata.clone());
        let Ok(read) = read else { return wrong(format!("{id} is subscribed to {metadata:?}")) };
        let owned = read.owned_partitions.into_iter().flat_map(|it| it.partitions);
        Ok(Led { id: id.clone(), uses: owned.collect(), generation: read.generation_id })
    };
    let members = it.members.iter().filter(|_| !it.skip_assignment);
    members.map(|it| led((&it.member_id, &it.metadata))).collect()
}

/// Answers to a classic member.
impl Member {
    pub(super) fn on_joined(&mut self, it: &JoinGroupResponse) -> Result<(), Failure> {
        expect_one_of(it.error_code, &CODES, "JoinGroup")?;
        match code_of(it.error_code) {
            ErrorCode::None => {
                self.remember();
                (self.id, self.epoch) = (it.member_id.clone(), it.generation_id);
                tell(|| format!("  {} joined generation {}", self.id, self.epoch));
                self.classic = Some(Stage::Joined { led: led(it)? });
            }
            ErrorCode::MemberIdRequired => self.id.clone_from(&it.member_id),
            // The group has become one of the other kind.
            ErrorCode::RebalanceInProgress => {}
            _ => self.on_code(it.error_code),
        }
        Ok(())
    }

    pub(super) fn on_synced(&mut self, it: &SyncGroupResponse) -> Result<(), Failure> {
        expect_one_of(it.error_code, &CODES, "SyncGroup")?;
        if it.error_code != 0 {
            self.on_code(it.error_code);
            return Ok(());
        }
        self.wanted = synced(&it.assignment)?;
        self.uses.extend(&self.wanted);
        self.told_in = self.epoch;
        self.classic = Some(Stage::In);
        Ok(())
    }

    /// Makes a classic member react to an error code.
    pub(super) fn on_code(&mut self, code: i16) {
        match code_of(code) {
            ErrorCode::None | ErrorCode::CoordinatorLoadInProgress => {}
            ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator => {
                self.coordinator = None;
            }
            ErrorCode::RebalanceInProgress => self.classic = Some(Stage::Out),
            ErrorCode::UnknownMemberId | ErrorCode::FencedInstanceId => self.become_another(true),
            _ => self.fall_out(),
        }
    }
}
