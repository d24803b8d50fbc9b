//! Coordinators of consumer groups and of share groups' members.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::ListGroupsRequest;
use duramen_protocol::messages::list_groups::ListedGroup;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::view::{Effect, Expired, Sight, View};
use super::{Coordinators, Stage};
use crate::core::{Core, Parked, Signal};
use crate::event::{Now, RequestKey};
use crate::groups::coordinator::census::{GroupPlace, GroupRow};
use crate::groups::coordinator::{Coordinator, Output};
use crate::groups::records::GroupRecord;
use crate::internal_topics::GROUPS;
use crate::limits::CENSUS_SLICE;
use crate::shares::ShareKey;
use crate::shares::coordinator::{Answer, Ask};

impl View for Coordinator {
    fn replay(
        &mut self,
        offset: i64,
        key: Bytes,
        value: Option<Bytes>,
        producer: Option<i64>,
    ) -> Result<(), String> {
        let record = GroupRecord::decode(key, value).map_err(|error| error.to_string())?;
        match producer {
            Some(producer) => self.hold(offset, record, producer),
            None => self.apply(offset, record),
        }
        Ok(())
    }

    fn has_transactions(&self) -> bool {
        true
    }

    fn replay_marker(&mut self, producer_id: i64, commits: bool) {
        self.on_marker(producer_id, commits);
    }

    fn loaded(&mut self, sight: Sight<'_>, _epoch: i32, now: Now) {
        self.loaded(sight.rules, now);
    }

    fn unload(&mut self) {
        self.unload();
    }

    fn deadline_us(&self) -> Option<u64> {
        self.deadline_us()
    }

    fn on_time(&mut self, now: Now) {
        self.on_time(now);
    }

    fn on_appended(&mut self, ticket: u64, result: Result<i64, ErrorCode>, now: Now) {
        self.on_appended(ticket, result, now);
    }

    fn go_on(&mut self, sight: Sight<'_>, now: Now) {
        self.go_on(sight.rules, sight.topics, now);
    }

    fn take_effects(&mut self) -> Vec<Effect> {
        let effect = |output| match output {
            Output::Reply(key, response) => Effect::Signal(Signal::GroupAnswered { key, response }),
            Output::Fetched { key, part, group } => {
                Effect::Signal(Signal::OffsetsFetched { key, part, group })
            }
            Output::Deleted { key, part, result } => {
                Effect::Signal(Signal::GroupDeleted { key, part, code: result.error_code })
            }
            Output::AskShares(key, ask) => Effect::AskShares(key, ask),
            Output::Append(ticket, records, transactor) => {
                let records = records.iter().map(GroupRecord::encode).collect();
                Effect::Append { ticket, records, transactor }
            }
        };
        self.take_outputs().into_iter().map(effect).collect()
    }

    fn live_size(&self) -> (usize, usize) {
        self.live().size()
    }

    fn inspect(&self) {
        self.inspect();
    }

    fn first_live(&self) -> Option<i64> {
        self.live().first()
    }

    fn renew(&mut self, before: i64, bytes_max: usize) -> Option<u64> {
        self.renew(before, bytes_max)
    }

    fn expire(
        &mut self,
        sight: Sight<'_>,
        now: Now,
        after: Option<&Arc<str>>,
        max: usize,
    ) -> Expired {
        let seen = self.expire(sight.rules, now, after, max);
        let kept: BTreeSet<Uuid> = self.topics_shared(after, seen.as_ref());
        Expired { seen, kept }
    }

    fn forget_topic(&mut self, name: &str, id: Uuid, _now: Now) {
        self.forget_topic(name, id);
    }

    fn forget_kept(&mut self, topic_id: Uuid, _now: Now) {
        self.forget_shared_topic(topic_id);
    }
}

impl Coordinators {
    /// Returns the coordinator of a group, for callers that only read.
    pub(crate) fn coordinator(&self, core: &Core, group: &str) -> Result<&Coordinator, ErrorCode> {
        let replica = self.shard_of(core, GROUPS, group)?;
        self.view(replica).ok_or(ErrorCode::NotCoordinator)
    }

    /// Returns the groups of all coordinators that a client asks for. An error while some of them load, because they
    /// could have more.
    pub(crate) fn groups(
        &self,
        core: &Core,
        request: &ListGroupsRequest,
    ) -> Result<Vec<ListedGroup>, ErrorCode> {
        let list = |it: &Coordinator| it.list(&self.settings.rules, request, core.now);
        Ok(self.serving()?.into_iter().flat_map(list).collect())
    }

    /// Returns rows of the first coordinator of groups that serves, behind a place or from a replica on. `None` if
    /// there is none.
    pub(in crate::node) fn rows_after(
        &self,
        after: Option<(ReplicaId, Option<GroupPlace>)>,
        now: Now,
    ) -> Option<(ReplicaId, Vec<(GroupPlace, GroupRow)>)> {
        let (from, place) = after.unwrap_or((ReplicaId(0), None));
        let mut shards = self.shards.range(from..).filter(|(_, shard)| shard.is_serving());
        let (replica, coordinator) =
            shards.find_map(|(id, shard)| Some((*id, shard.as_view::<Coordinator>()?)))?;
        let place = place.filter(|_| replica == from);
        let rules = &self.settings.rules;
        Some((replica, coordinator.rows_after(rules, now, place.as_ref(), CENSUS_SLICE)))
    }

    /// Gives the coordinator of a group a request, and parks it so: the answer comes as an [`Output`].
    pub(crate) fn coordinate(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        version: i16,
        group: &str,
        ask: impl FnOnce(&mut Coordinator, Sight<'_>),
    ) -> Result<(), ErrorCode> {
        self.shard_of(core, GROUPS, group)?;
        core.park(key, Parked::Group { version }, u64::MAX);
        self.coordinate_part(core, group, ask)
    }

    /// Gives the coordinator of a group its part of a request that is parked.
    pub(crate) fn coordinate_part(
        &mut self,
        core: &mut Core,
        group: &str,
        ask: impl FnOnce(&mut Coordinator, Sight<'_>),
    ) -> Result<(), ErrorCode> {
        let replica = self.shard_of(core, GROUPS, group)?;
        let sight = self.settings.sight(core, self.topics_version);
        let shard = self.shards.get_mut(&replica).expect("it was just found");
        if let Some(groups) = shard.as_view_mut::<Coordinator>() {
            ask(groups, sight);
        }
        self.settle(core, replica);
        Ok(())
    }

    /// Returns the coordinator of a group, and its view of topics, for callers that only read.
    pub(crate) fn coordinator_and_sight<'a>(
        &'a self,
        core: &'a Core,
        group: &str,
    ) -> Result<(&'a Coordinator, Sight<'a>), ErrorCode> {
        Ok((self.coordinator(core, group)?, self.settings.sight(core, self.topics_version)))
    }

    /// Answers a question of a coordinator of groups to one of shares.
    pub(crate) fn tell_groups_of_share(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        (key, ask, answer): (&ShareKey, &Ask, &Answer),
    ) {
        if let Some(groups) = self.view_mut::<Coordinator>(replica) {
            groups.on_share_answer(key, ask, answer);
            self.settle(core, replica);
        }
    }

    /// Tells coordinators of groups that a transaction has ended in a partition, which may be one that keeps groups.
    pub(crate) fn tell_groups_of_marker(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        producer_id: i64,
        commits: bool,
    ) {
        let Some(shard) = self.shards.get_mut(&replica) else { return };
        match &mut shard.stage {
            Stage::Loading { end, .. } => {
                // The marker may be behind the end of what is being read. So it is read, too.
                let committed = core.partitions.get(&replica).map_or(*end, |it| it.committed());
                *end = committed.max(*end);
                return;
            }
            Stage::Failed { .. } => return,
            Stage::Serving => {}
        }
        if let Some(groups) = shard.as_view_mut::<Coordinator>() {
            groups.on_marker(producer_id, commits);
            self.settle(core, replica);
            self.keep_small(core, replica);
        }
    }
}
