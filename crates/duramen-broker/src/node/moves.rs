//! # Room card: moves
//!
//! Purpose:    planned transfers of leadership: on request, back to preferred replicas, away from a slow or full disk,
//!             and from a node about to end.
//! Owns:       transfers that wait and those under way; the state of this node's disk, slow or steadily full; elections
//!             that administrators wait for.
//! Interface:  [`Moves::tick_moves`], [`Moves::drain`], [`Moves::elect`].
//! Invariants: the node transfers a group only to an in-sync replica, on a node that it hears and that does not leave;
//!             few groups at once. A node with a slow disk gets no group while the own disk makes progress, so that
//!             leadership does not go to and fro. Exceptions are an administrator's request, and a shutdown of all
//!             nodes. A node with a full disk gets a group only from a node that is about to end.
//! Never:      the transfer of one group (see `raft/moving.rs`).
//! Tests:      `node/tests/moves.rs`; `duramen-sim`.
//! Start at:   [`Moves::tick_moves`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duramen_protocol::messages::ElectLeadersResponse;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::Quiescence;
use crate::controller::METADATA_GROUP;
use crate::core::{Core, ElectionWanted, Parked, Signal, mark};
use crate::event::{Action, ConnectionId, RequestKey};
use crate::limits::{
    DISK_STILL_TICKS, DRAIN_MOVES_MAX, ELECTION_ASKED_TICKS, ELECTION_TICKS, ELECTIONS_MAX,
    FULL_DISK_ROOM_TICKS, FULL_DISK_TICKS, MOVES_MAX, SLOW_DISK_TICKS, TICK_US,
};
use crate::peer::{Frame, MoveWanted};
use crate::raft::{Group, GroupId};

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Ticks between two looks for groups that others should lead; never if there is none.
    look_ticks: Option<u64>,
    /// Groups that another replica should lead.
    misplaced: VecDeque<ReplicaId>,
    /// Groups that are being handed over.
    under_way: BTreeSet<ReplicaId>,
    /// Tick until which the node's disk counts as slow.
    slow_until: u64,
    /// Ticks for which its disk has refused appends.
    full_ticks: u64,
    /// Tick until which the node's disk counts as full.
    full_until: u64,
    /// True if the node is about to end.
    is_draining: bool,
    is_drained: bool,
    /// Requests that wait for elections.
    elections: BTreeSet<RequestKey>,
}

/// Disk state of a node, as it matters to a leader, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DiskState {
    Well,
    Slow,
    /// Full: the disk refuses appends.
    Full,
}

/// State of an election, for an administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Election {
    /// The preferred replica leads.
    Led,
    /// The preferred replica may lead soon.
    Pending,
    /// The preferred replica will not lead: its node is not heard or about to end, or its disk is full.
    NotThere,
}

impl Moves {
    pub(super) fn new(settings: &crate::configs::BrokerSettings) -> Self {
        let seconds = settings.leader_imbalance_check_interval_seconds;
        let look_ticks =
            seconds.map(|it| (it.unsigned_abs().saturating_mul(1_000_000) / TICK_US).max(1));
        Self { look_ticks, ..Self::default() }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Checks that a node that is about to end takes no group back, at the end of a turn.
    pub(crate) fn inspect(&self) {
        assert!(self.is_draining || !self.is_drained, "only a node that is to end is drained");
        assert!(
            !self.is_draining || self.misplaced.is_empty(),
            "a node that is about to end returns no groups to preferred replicas"
        );
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.elections.retain(|key| key.0 != connection);
    }
}

impl Moves {
    /// Goes on with the handovers, at a tick of peers.
    pub(crate) fn tick_moves(&mut self, core: &mut Core, quiescence: &Quiescence) {
        let under_way = std::mem::take(&mut self.under_way);
        let is_moving = |id: &ReplicaId| core.group(*id).is_some_and(Group::is_moving);
        self.under_way = under_way.into_iter().filter(is_moving).collect();
        let own = self.has_full_disk(core).then_some(core.options.facts.broker_id);
        core.controller.full = core.peers.full_disks().chain(own).collect();
        if self.is_draining {
            self.go_on_draining(core);
        } else {
            self.leave_slow_disk(core, quiescence);
            self.leave_full_disk(core);
            self.return_to_preferred(core);
        }
        if core.peers.ticks().is_multiple_of(ELECTION_ASKED_TICKS) {
            for key in self.elections.clone() {
                self.ask_for_elections(core, key);
            }
        }
        for key in self.elections.clone() {
            self.settle_elections(core, key, false);
        }
    }

    /// Tells whether this node has given up leadership because of its disk, and is not to be given any yet.
    pub(crate) fn has_slow_disk(&self, core: &Core) -> bool {
        core.peers.ticks() < self.slow_until
    }

    /// Tells whether this node has refused appends for long enough for others to lead, and is not to be given any
    /// leadership yet.
    pub(crate) fn has_full_disk(&self, core: &Core) -> bool {
        core.peers.ticks() < self.full_until
    }

    /// Tells whether a node reports a full disk: it is to lead nothing.
    pub(crate) fn is_full_at(&self, core: &Core, broker_id: i32) -> bool {
        if broker_id == core.options.facts.broker_id {
            self.has_full_disk(core)
        } else {
            core.peers.has_full_disk(broker_id)
        }
    }

    fn hand_over(&mut self, core: &mut Core, replica: ReplicaId, to: u64, in_haste: bool) -> bool {
        if !in_haste {
            core.end_stretch(replica, to);
        }
        let group = core.changing_group(replica);
        let is_begun = group.is_some_and(|group| group.hand_over(to, in_haste));
        if is_begun {
            assert_ne!(to, replica.0, "a group goes to another replica");
            self.under_way.insert(replica);
            core.counters.handovers += 1;
        }
        is_begun
    }

    /// Hands a group whose commits wait for this node's disk to a replica whose disk is faster.
    fn leave_slow_disk(&mut self, core: &mut Core, quiescence: &Quiescence) {
        let behind = |id| Some((id, core.group(id)?.held_up_by_disk()?));
        let awake = quiescence.awake().chain([core.controller.group.id()]);
        let held_up: Vec<(ReplicaId, u64)> = awake.filter_map(behind).collect();
        for (replica, behind) in held_up {
            let leads = core.led(std::iter::once(replica)).next().is_some();
            // A replica that follows may have much to catch up with.
            if leads || self.has_slow_disk(core) {
                self.slow_until = core.peers.ticks() + SLOW_DISK_TICKS;
            }
            if !leads || self.under_way.len() >= DRAIN_MOVES_MAX {
                continue;
            }
            let stands_still = behind >= DISK_STILL_TICKS;
            let worst = if stands_still { DiskState::Slow } else { DiskState::Well };
            let successors = core.best_successors(replica, worst);
            // The replica with the most entries is the quickest successor.
            let matched = |peer: &u64| core.group(replica).map(|group| group.matched(*peer));
            let Some(to) = successors.into_iter().max_by_key(matched) else { continue };
            // The disk would be too late to catch up within the handover.
            let in_haste = 2 * behind >= ELECTION_TICKS as u64;
            if self.hand_over(core, replica, to, in_haste) {
                tracing::warn!(
                    replica = replica.0,
                    "this node's disk is behind the disks of a majority; this node transfers leadership"
                );
            }
        }
    }

    /// Hands over what this node leads to replicas with room that keep up, once its disk has refused appends for a
    /// second.
    fn leave_full_disk(&mut self, core: &mut Core) {
        let Self { full_ticks, full_until, .. } = self;
        *full_ticks = if core.disk_shortage.is_some() { *full_ticks + 1 } else { 0 };
        if *full_ticks == 0 {
            return;
        }
        // The others learn of it at once: two disks that fill together must not lead for each other.
        *full_until = core.peers.ticks() + FULL_DISK_ROOM_TICKS;
        if !full_ticks.is_multiple_of(FULL_DISK_TICKS) {
            return;
        }
        let mut moved = 0;
        for replica in core.all_led().collect::<Vec<_>>() {
            if self.under_way.len() >= DRAIN_MOVES_MAX {
                break;
            }
            let matched = |peer: &u64| core.group(replica).map(|group| group.matched(*peer));
            let successors = core.best_successors(replica, DiskState::Slow);
            let Some(to) = successors.into_iter().max_by_key(matched) else { continue };
            moved += usize::from(self.hand_over(core, replica, to, false));
        }
        if moved > 0 {
            tracing::warn!(
                moved,
                "this node's disk is full; this node transfers leadership to nodes with room"
            );
        }
    }

    /// Returns groups to their preferred replicas, a few at a time.
    fn return_to_preferred(&mut self, core: &mut Core) {
        if self.look_ticks.is_some_and(|every| core.peers.ticks().is_multiple_of(every)) {
            let is_elsewhere = |id: &ReplicaId| core.preferred(*id).is_some_and(|to| to != id.0);
            self.misplaced = core.all_led().filter(is_elsewhere).collect();
        }
        while self.under_way.len() < MOVES_MAX
            && let Some(replica) = self.misplaced.pop_front()
        {
            let Some(to) = core.preferred(replica) else { continue };
            // One that does not keep up, or whose disk is slow or full, is looked at again the next time.
            if core.best_successors(replica, DiskState::Well).contains(&to) {
                self.hand_over(core, replica, to, false);
            }
        }
    }

    /// Hands over whatever this node leads, because the node is about to end. [`Action::Drained`] reports when that is
    /// done, or when no other replica can take the rest.
    pub(crate) fn drain(&mut self, core: &mut Core) {
        if std::mem::replace(&mut self.is_draining, true) {
            return;
        }
        self.misplaced.clear();
        if core.is_clustered() {
            // A node that is about to end, too, then gives nothing to this one.
            core.say_something_to_all();
        }
        self.go_on_draining(core);
    }

    fn go_on_draining(&mut self, core: &mut Core) {
        let led: Vec<_> = core.all_led().collect();
        // Groups that are given away at the same time are spread over several nodes.
        let mut given: BTreeMap<i32, usize> = BTreeMap::new();
        for replica in led {
            if self.under_way.len() >= DRAIN_MOVES_MAX {
                break;
            }
            if self.under_way.contains(&replica) {
                continue;
            }
            let Some(id) = core.id_of_group(replica) else { continue };
            let node_of = |peer: u64| core.placed(id, peer).map(|placed| placed.broker_id);
            let successors = core.best_successors(replica, DiskState::Full).into_iter();
            let named = successors.filter_map(|peer| Some((node_of(peer)?, peer)));
            let least = named.min_by_key(|(node, _)| given.get(node).copied().unwrap_or(0));
            if let Some((node, to)) = least {
                *given.entry(node).or_default() += 1;
                self.hand_over(core, replica, to, false);
            }
        }
        if self.under_way.is_empty() && !self.is_drained {
            self.is_drained = true;
            core.out.push(Action::Drained);
        }
    }
}

impl Core {
    pub(crate) fn group(&self, replica: ReplicaId) -> Option<&Group> {
        if replica == self.controller.group.id() {
            return Some(&self.controller.group);
        }
        self.partitions.get(&replica).map(|partition| &partition.group)
    }

    /// Returns a replica's group for a change. The turn collects what follows from the change.
    pub(super) fn changing_group(&mut self, replica: ReplicaId) -> Option<&mut Group> {
        if replica == self.controller.group.id() {
            self.is_controller_dirty = true;
            return Some(&mut self.controller.group);
        }
        let partition = self.partitions.get_mut(&replica)?;
        mark(&mut self.dirty, partition);
        Some(&mut partition.group)
    }

    fn id_of_group(&self, replica: ReplicaId) -> Option<GroupId> {
        if replica == self.controller.group.id() {
            return Some(METADATA_GROUP);
        }
        self.partitions.get(&replica).map(|partition| partition.id)
    }

    fn all_led(&self) -> impl Iterator<Item = ReplicaId> {
        self.led(self.peers.ticked().chain([self.controller.group.id()]))
    }

    /// Returns those of these replicas that lead here and are not alone.
    fn led(&self, all: impl Iterator<Item = ReplicaId>) -> impl Iterator<Item = ReplicaId> {
        all.filter(|id| {
            self.group(*id).is_some_and(|group| group.is_serving() && !group.is_alone())
        })
    }

    /// Returns those of a group's replicas that may lead it instead of the one here.
    fn successors(&self, replica: ReplicaId) -> Vec<u64> {
        let (Some(group), Some(id)) = (self.group(replica), self.id_of_group(replica)) else {
            return Vec::new();
        };
        let stays = |peer: &u64| {
            self.placed(id, *peer).is_some_and(|placed| !self.peers.leaves(placed.broker_id))
        };
        let mut successors: Vec<u64> = group.successors().filter(stays).collect();
        successors.sort_unstable();
        successors
    }

    fn disk_of(&self, broker_id: i32) -> DiskState {
        match (self.peers.has_full_disk(broker_id), self.peers.has_slow_disk(broker_id)) {
            (true, _) => DiskState::Full,
            (false, true) => DiskState::Slow,
            (false, false) => DiskState::Well,
        }
    }

    /// Returns those of [`Core::successors`] whose nodes report the best disks; none if these are worse than `worst`.
    fn best_successors(&self, replica: ReplicaId, worst: DiskState) -> Vec<u64> {
        let id = self.id_of_group(replica);
        let state_of = |peer| Some((self.disk_of(self.placed(id?, peer)?.broker_id), peer));
        let all: Vec<_> = self.successors(replica).into_iter().filter_map(state_of).collect();
        let best = all.iter().map(|(state, _)| *state).min().filter(|best| *best <= worst);
        all.into_iter().filter(|(state, _)| Some(*state) == best).map(|(_, peer)| peer).collect()
    }

    /// Returns the replica that should lead a partition: the first of its placement.
    fn preferred(&self, replica: ReplicaId) -> Option<u64> {
        let id = self.partitions.get(&replica)?.id;
        let topic = self.controller.image.topic(Uuid(id.topic_id))?;
        let replicas = topic.partitions.get(usize::try_from(id.partition).ok()?)?;
        replicas.first().map(|first| first.peer_id)
    }
}

/// Elections that administrators ask for.
impl Moves {
    /// Tells whether the preferred replica of a partition leads it.
    pub(crate) fn election(&self, core: &Core, topic: Uuid, index: i32) -> Option<Election> {
        let topic = core.controller.image.topic(topic)?;
        let replicas = topic.partitions.get(usize::try_from(index).ok()?)?;
        let preferred = replicas.first()?.broker_id;
        if core.leader_of(topic, index).is_some_and(|(leader, _)| leader == preferred) {
            return Some(Election::Led);
        }
        let is_there = core.live_brokers().any(|(id, _)| id == preferred);
        let may = is_there
            && !core.peers.leaves(preferred)
            && !self.is_full_at(core, preferred)
            && replicas.len() > 1;
        Some(if may { Election::Pending } else { Election::NotThere })
    }

    /// Keeps a request until its elections were held.
    pub(crate) fn elect(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        response: ElectLeadersResponse,
        wanted: Vec<ElectionWanted>,
        deadline_us: u64,
    ) {
        let response = Box::new(response);
        core.park(key, Parked::Election { response, wanted: wanted.into() }, deadline_us);
        self.elections.insert(key);
        self.ask_for_elections(core, key);
    }

    /// Asks the leaders of the partitions to hand over to the preferred replicas. A question may be lost, so it is
    /// asked again and again.
    fn ask_for_elections(&mut self, core: &mut Core, key: RequestKey) {
        let Some(Parked::Election { wanted, .. }) = core.parked_mut(key) else { return };
        let wanted: Vec<_> = wanted.iter().take(ELECTIONS_MAX).copied().collect();
        for ElectionWanted { topic_id, partition, .. } in wanted {
            let Some(topic) = core.controller.image.topic(topic_id) else { continue };
            let at = usize::try_from(partition).unwrap_or(usize::MAX);
            let Some(to) = topic.partitions.get(at).and_then(|it| it.first()) else { continue };
            let wish = MoveWanted { topic_id, partition, peer_id: to.peer_id };
            let Some((leader, _)) = core.leader_of(topic, partition) else { continue };
            if leader == core.options.facts.broker_id {
                self.grant_move(core, &wish);
            } else {
                core.peers.frame_to(leader).moves_wanted.push(wish);
            }
        }
    }

    /// Takes other nodes' wishes for other leaders.
    pub(crate) fn on_moves_wanted(&mut self, core: &mut Core, frame: &Frame) {
        for wish in &frame.moves_wanted {
            self.grant_move(core, wish);
        }
    }

    fn grant_move(&mut self, core: &mut Core, wish: &MoveWanted) {
        let Some(topic) = core.controller.image.topic(wish.topic_id) else { return };
        let Some(replica) = core.local_replica(topic, wish.partition) else { return };
        let id = core.id_of_group(replica);
        let placed = id.and_then(|id| core.placed(id, wish.peer_id));
        if placed.is_none_or(|placed| self.is_full_at(core, placed.broker_id)) {
            return;
        }
        if !self.is_draining && core.successors(replica).contains(&wish.peer_id) {
            self.hand_over(core, replica, wish.peer_id, false);
        }
    }

    /// Reports the elections of a request that were held, or, once its time is over, all.
    pub(crate) fn settle_elections(&mut self, core: &mut Core, key: RequestKey, is_over: bool) {
        let Some(Parked::Election { wanted, .. }) = core.parked_mut(key) else {
            self.elections.remove(&key);
            return;
        };
        let mut wanted = std::mem::take(wanted);
        let mut outcomes = Vec::new();
        let count = if is_over { wanted.len() } else { wanted.len().min(ELECTIONS_MAX) };
        for _ in 0..count {
            let Some(one) = wanted.pop_front() else { break };
            match self.election(core, one.topic_id, one.partition) {
                Some(Election::Pending) if !is_over => wanted.push_back(one),
                outcome => {
                    outcomes.push((one, outcome == Some(Election::Led)));
                }
            }
        }
        if wanted.is_empty() {
            self.elections.remove(&key);
        }
        if let Some(Parked::Election { wanted: left, .. }) = core.parked_mut(key) {
            *left = wanted;
        }
        core.signals.push_back(Signal::Elected { key, outcomes });
    }
}
