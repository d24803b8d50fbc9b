//! Owners of partitions, by the statements of coordinators as they make them, also where nobody hears them.
//!
//! A member owns a partition from the answer that assigns it until the member gives it up or is out. A member is out
//! when it left, was replaced, was silent for a session, or was slow to give up or to join again. The clock of the
//! coordinator of this term decides. No other member is told of the partition before. From then on no commit of the
//! former owner is taken. Statements of an earlier term, by a node that does not know that it coordinates no more,
//! count for nothing.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::messages::consumer_protocol::{self, ConsumerProtocolAssignment};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};

use super::TOPIC;
use crate::failure::{Failure, wrong};
use crate::node_harness::clients::answers::{Sight, code_of};
use crate::trace::tell;

/// Time of a step of the harness: a leader's act may be seen so much later, in microseconds.
const STEP_US: u64 = 3_000;

/// Kind of a member's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Heartbeat of a member, with the partitions that it uses.
    Beat,
    /// Request of a classic member to join, with the partitions that it goes on using.
    Join,
    /// Request of a classic member for its assignment.
    Sync,
    /// Heartbeat of a classic member.
    Heartbeat,
    /// Request to leave.
    Leave,
}

/// Something that a member says, on its way.
#[derive(Clone, Debug)]
pub(crate) struct Beat {
    pub(super) kind: Kind,
    /// Id of the member; empty if it does not know its own yet.
    pub(super) id: String,
    pub(super) instance: Option<&'static str>,
    pub(super) epoch: i32,
    /// Partitions that the member uses; the request lists them unless it says nothing about that.
    pub(super) uses: BTreeSet<i32>,
    pub(super) sent_us: u64,
    pub(super) session_us: u64,
    pub(super) rebalance_timeout_us: u64,
}

impl Beat {
    fn is_classic(&self) -> bool {
        matches!(self.kind, Kind::Join | Kind::Sync | Kind::Heartbeat)
    }
}

/// Member of an id, as coordinators of the last term know it.
#[derive(Debug, Default)]
struct Owner {
    instance: Option<&'static str>,
    has: BTreeSet<i32>,
    /// Partitions that the member said it has given up, with the epoch. As long as that epoch is its own, it may
    /// commit for all of them.
    given_up: BTreeMap<i32, i32>,
    /// Partitions that the member is to give up, and the time from which it may know that.
    revoked: BTreeMap<i32, u64>,
    /// Time when its last heartbeat was sent that was answered well, and the term of the answer.
    beat_us: Option<(u64, u64)>,
    /// Time of the first heartbeat since the last assignment that may have led to another one, and below the term of
    /// that assignment. For a classic member, whom others may make join again at any time, it is the last request
    /// answered as if nobody had.
    unheard_us: Option<u64>,
    told_in: u64,
    session_us: u64,
    rebalance_timeout_us: u64,
    /// True once the member said that it leaves.
    is_leaving: bool,
}

/// Content of an answer to a member.
struct Told {
    code: i16,
    /// Id of the member, if it did not know it.
    id: Option<String>,
    /// Epoch of a member of the consumer protocol.
    epoch: Option<i32>,
    /// Partitions that the member is to use.
    has: Option<BTreeSet<i32>>,
    /// True if the group is one of the consumer protocol.
    is_of_consumers: Option<bool>,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Owners {
    all: BTreeMap<String, Owner>,
    /// Owner of each partition, by the last assignment that anybody was told of.
    newest: BTreeMap<i32, String>,
    /// Static names with which a new member was sent, and not answered well yet. The coordinator may have replaced the
    /// former member already, and others may hear of its partitions before the new one hears anything.
    replacing: BTreeSet<&'static str>,
    /// Members that a coordinator did not know any more, each with the epoch that it was told since. A group that was
    /// forgotten begins with new epochs, so a member may come into one that it had before. It may commit by it then.
    forgotten: BTreeMap<String, Option<i32>>,
    term: u64,
    is_of_consumers: Option<bool>,
    /// Assignments that were told. Below, the times that the group became one of the consumer protocol, and one of the
    /// classic one.
    pub(super) assigned: u64,
    pub(super) upgrades: u64,
    pub(super) downgrades: u64,
}

/// Returns the partitions of the topic that a member of the consumer protocol was told to use.
pub(super) fn assigned(
    assignment: &duramen_protocol::messages::consumer_group_heartbeat::Assignment,
    topic_id: Option<Uuid>,
) -> BTreeSet<i32> {
    let mine = assignment.topic_partitions.iter().filter(|it| Some(it.topic_id) == topic_id);
    mine.flat_map(|it| it.partitions.iter().copied()).collect()
}

/// Returns the partitions of the topic that a classic member was told to use.
pub(super) fn synced(assignment: &bytes::Bytes) -> Result<BTreeSet<i32>, Failure> {
    let read = consumer_protocol::decode::<ConsumerProtocolAssignment>(assignment.clone());
    let Ok(read) = read else { return wrong(format!("assigned is {assignment:?}")) };
    let mine = read.assigned_partitions.into_iter().filter(|it| it.topic == TOPIC);
    Ok(mine.flat_map(|it| it.partitions).collect())
}

fn told(response: &Response, topic_id: Option<Uuid>) -> Result<Option<Told>, Failure> {
    let of = |code| Told { code, id: None, epoch: None, has: None, is_of_consumers: None };
    Ok(Some(match response {
        Response::ConsumerGroupHeartbeat(it) => {
            let has = it.assignment.as_ref().map(|it| assigned(it, topic_id));
            let is_of_consumers = (it.member_epoch > 0).then_some(true);
            let epoch = Some(it.member_epoch);
            Told { epoch, has, is_of_consumers, ..of(it.error_code) }
        }
        Response::JoinGroup(it) => {
            // A group of the consumer protocol has no leader that its members know.
            let is_of_consumers = Some(it.leader.is_empty());
            Told { id: Some(it.member_id.clone()), is_of_consumers, ..of(it.error_code) }
        }
        Response::SyncGroup(it) => {
            let has = if it.error_code == 0 { Some(synced(&it.assignment)?) } else { None };
            Told { has, ..of(it.error_code) }
        }
        Response::Heartbeat(it) => of(it.error_code),
        Response::LeaveGroup(it) => {
            of(it.members.first().map_or(it.error_code, |member| member.error_code))
        }
        _ => return Ok(None),
    }))
}

impl Owners {
    /// Notes a request that a member is about to send. From now on the member knows nothing of partitions that it uses
    /// no more.
    pub(super) fn on_sent(&mut self, beat: &Beat) {
        if matches!(beat.kind, Kind::Beat | Kind::Join) && !self.all.contains_key(&beat.id) {
            self.replacing.extend(beat.instance);
        }
        if beat.id.is_empty() {
            return;
        }
        let owner = self.all.entry(beat.id.clone()).or_default();
        owner.is_leaving = beat.kind == Kind::Leave;
        if owner.is_leaving {
            owner.has.clear();
            return;
        }
        owner.instance = beat.instance;
        owner.session_us = beat.session_us;
        owner.rebalance_timeout_us = beat.rebalance_timeout_us;
        owner.unheard_us.get_or_insert(beat.sent_us);
        match beat.kind {
            Kind::Beat | Kind::Join => {
                let less = owner.has.difference(&beat.uses).map(|it| (*it, beat.epoch));
                owner.given_up.extend(less);
                owner.has.retain(|partition| beat.uses.contains(partition));
            }
            Kind::Sync | Kind::Heartbeat | Kind::Leave => {}
        }
    }

    /// Tells whether a commit of this member and epoch must be refused: another member was told of the partition.
    pub(super) fn is_void(&self, id: &str, epoch: i32, partition: i32) -> bool {
        let may = |owner: &Owner| owner.given_up.get(&partition) == Some(&epoch);
        !self.all.get(id).is_some_and(may)
            && self.forgotten.get(id) != Some(&Some(epoch))
            && self.newest.get(&partition).is_some_and(|newest| newest != id)
    }

    /// Returns the member that was told of a partition last.
    pub(super) fn newest(&self, partition: i32) -> Option<&str> {
        self.newest.get(&partition).map(String::as_str)
    }

    /// Judges a coordinator's answer to a member.
    pub(super) fn witness(
        &mut self,
        beat: &Beat,
        response: &Response,
        topic_id: Option<Uuid>,
        (now_us, sight): (u64, Sight),
    ) -> Result<(), Failure> {
        let Some(told) = told(response, topic_id)? else { return Ok(()) };
        if sight.term < self.term {
            return Ok(());
        }
        self.term = sight.term;
        if told.code != 0 {
            if let ErrorCode::UnknownMemberId
            | ErrorCode::GroupIdNotFound
            | ErrorCode::FencedMemberEpoch = code_of(told.code)
            {
                self.all.remove(&beat.id);
                self.forgotten.insert(beat.id.clone(), None);
            }
            return Ok(());
        }
        if let Some(epoch) = self.forgotten.get_mut(&beat.id) {
            *epoch = told.epoch;
        }
        if beat.kind == Kind::Leave {
            self.all.remove(&beat.id);
            return Ok(());
        }
        if let Some(is_of_consumers) = told.is_of_consumers {
            let before = self.is_of_consumers.replace(is_of_consumers);
            self.upgrades += u64::from(before == Some(false) && is_of_consumers);
            self.downgrades += u64::from(before == Some(true) && !is_of_consumers);
        }
        let id = told.id.unwrap_or_else(|| beat.id.clone());
        self.take_up((beat, &id), told.has, (now_us, sight))
    }

    /// Notes that a member was answered well, and maybe told its assignment.
    fn take_up(
        &mut self,
        (beat, id): (&Beat, &String),
        has: Option<BTreeSet<i32>>,
        (now_us, sight): (u64, Sight),
    ) -> Result<(), Failure> {
        if let Some(instance) = beat.instance {
            self.replacing.remove(instance);
            // The member that had the name before is out.
            self.all.retain(|other, owner| other == id || owner.instance != beat.instance);
        }
        let is_new = !self.all.contains_key(id);
        let owner = self.all.entry(id.clone()).or_default();
        if is_new {
            owner.instance = beat.instance;
            owner.session_us = beat.session_us;
            owner.rebalance_timeout_us = beat.rebalance_timeout_us;
        }
        if beat.kind == Kind::Join && owner.is_in(beat.sent_us, sight).is_none() {
            // The member was out before: others may have been assigned partitions that it says it uses still.
            owner.has.clear();
        }
        if beat.kind != Kind::Sync {
            // `SyncGroup` is no sign of life to a classic group that is stable, nor to Kafka's.
            owner.beat_us = owner.beat_us.max(Some((sight.term, beat.sent_us)));
        }
        owner.revoked.retain(|partition, _| beat.uses.contains(partition));
        if beat.kind == Kind::Join {
            // An assignment from before the join may have been told to a member that had given it up already.
            owner.has.retain(|partition| beat.uses.contains(partition));
        }
        let Some(has) = has else {
            if !beat.is_classic() {
                // Nothing has changed for the member.
                owner.unheard_us = owner.unheard_us.filter(|us| *us != beat.sent_us);
            } else if beat.kind == Kind::Heartbeat {
                // Nobody wanted it to join again before.
                let unheard_us = owner.unheard_us.max(Some(beat.sent_us));
                (owner.unheard_us, owner.told_in) = (unheard_us, sight.term);
            }
            return Ok(());
        };
        // A beat that nobody answered may have been the one that led to it.
        let since_us = owner.unheard_us.map_or(beat.sent_us, |us| us.min(beat.sent_us));
        (owner.unheard_us, owner.told_in) =
            (Some(beat.sent_us).filter(|_| beat.is_classic()), sight.term);
        self.assigned += 1;
        let gained: Vec<i32> = has.difference(&owner.has).copied().collect();
        let to_revoke: Vec<i32> = owner.has.difference(&has).copied().collect();
        for partition in to_revoke {
            owner.revoked.entry(partition).or_insert(since_us);
        }
        owner.revoked.retain(|partition, _| !has.contains(partition));
        owner.has.extend(&has);
        tell(|| format!("  {id} is told of {has:?} in term {}", sight.term));
        for partition in gained {
            for (other_id, other) in self.all.iter_mut().filter(|(other, _)| *other != id) {
                if !other.has.contains(&partition) {
                    continue;
                }
                let may_be_replaced = other.instance.is_some_and(|it| self.replacing.contains(it));
                if let Some(why) = other.is_in(now_us, sight).filter(|_| !may_be_replaced) {
                    let what = format!("{id} is told of partition {partition} at {now_us}");
                    return wrong(format!("{what}, which {other_id} has: {why} {other:?}"));
                }
                other.has.remove(&partition);
            }
            self.newest.insert(partition, id.clone());
        }
        Ok(())
    }
}

impl Owner {
    /// Returns the reason why a member still has the partitions that it did not give up, if it has. The coordinator of
    /// a term must know that reason.
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
            // The member may have been out before.
            Some((_, beat_us)) if beat_us + self.session_us <= sight.since_us => return None,
            _ => loaded_us,
        };
        (now_us < since_us + self.session_us).then(|| format!("its session began at {since_us}"))
    }
}
