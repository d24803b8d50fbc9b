//! # Room card: node
//!
//! Purpose:    one node as a value: events in, actions out.
//! Owns:       the replicas of this node, requests that wait, timers.
//! Interface:  [`Node::open`], [`Node::metrics`]; [`Node::step`] and [`Node::flush`] are in `turn`.
//! Invariants: nothing blocks. Every request gets exactly one reply or a closed connection. All writes leave in
//!             [`Node::flush`], so that one turn makes one storage batch. The work for an event does not grow with the
//!             number of partitions.
//! Never:      async, locks, hash maps, clocks, globals; a call of an API (see [`Signal`]).
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Node::append`], then [`Node::follow`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;
use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::{Done, Op, ReplicaId, Shortage};

use crate::access::Access;
use crate::controller::Controller;
use crate::controller::image::Topic;
use crate::event::{Action, ConnectionId, Now, RequestKey};
use crate::fetch_sessions::FetchSessions;
use crate::limits::PRODUCER_ID_BLOCK;
use crate::metadata_records::PlacedReplica;
use crate::partition::retention::ClockWatch;
use crate::partition::{Acks, Appended, Effects, Finished, Partition, Slot};
use crate::prng::Prng;
use crate::quotas::Meters;
use crate::session::CheckedBatch;

mod backpressure;
mod certainty;
mod clocks;
mod coordinators;
mod dead_letters;
mod forwarding;
mod in_sync;
mod members;
mod metrics;
mod moves;
mod opening;
mod parked;
mod peers;
mod pending;
mod quiescence;
mod quotas;
mod reassignments;
mod repair;
mod replicas;
mod share_calls;
mod shares;
mod signals;
mod snapshot_feed;
mod sweep;
#[cfg(test)]
mod tests;
mod transactions;

use backpressure::Backpressure;
pub(crate) use backpressure::Stalled;
use certainty::Certainty;
use clocks::Clocks;
use coordinators::Coordinators;
use dead_letters::DeadLetterCopies;
use forwarding::Forwards;
use members::Members;
pub use metrics::{Metrics, Readiness, Standing};
use moves::Moves;
pub(crate) use moves::{Election, ElectionWanted};
pub use opening::NodeOptions;
use opening::Opening;
use parked::Waiting;
pub(crate) use parked::{Describing, Fetch, Parked, ParkedFetch, Place};
pub(crate) use peers::Peers;
pub(crate) use pending::Deferred;
use pending::Pending;
use quiescence::Quiescence;
use quotas::Timed;
use repair::Repairs;
use share_calls::ShareCalls;
use shares::Shares;
pub(crate) use shares::{ShareRequest, Told, Wanted};
pub(crate) use signals::Signal;
use snapshot_feed::Feeds;
use sweep::Sweep;
use transactions::Calls;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Opened,
    Retention,
    Cleaning,
    Producers,
    Settings,
    Offsets,
    Peers,
    Coordinator(ReplicaId),
    Calls,
    ShareCalls,
    Share(u64),
    DeadLetters,
    Request(RequestKey),
}

/// See the room card.
#[derive(Debug)]
pub struct Node {
    pub(crate) options: NodeOptions,
    pub(crate) access: Access,
    pub(crate) controller: Controller,
    pub(crate) partitions: BTreeMap<ReplicaId, Partition>,
    pub(crate) sessions: FetchSessions,
    pub(crate) counters: Metrics,
    parked: BTreeMap<RequestKey, Waiting>,
    pub(crate) timers: BTreeSet<(u64, Timer)>,
    pub(crate) dirty: VecDeque<ReplicaId>,
    pub(crate) is_controller_dirty: bool,
    opening: Option<Opening>,
    pub(crate) registration: Option<u64>,
    /// The registration is applied: the image is complete, and replicas follow it.
    pub(crate) is_registered: bool,
    pub(crate) backpressure: Backpressure,
    pub(crate) pending: Pending,
    certainty: Certainty,
    pub(crate) bytes_in_flight: u64,
    /// Why appends are refused, if they are.
    disk_shortage: Option<Shortage>,
    pub(crate) producer_ids: (i64, i64),
    /// A block of producer ids that this node gives itself: index, first and end.
    pub(crate) allocating: Option<(u64, i64, i64)>,
    pub(crate) peers: Peers,
    members: Members,
    /// Replicas here that were found damaged at the start.
    useless: BTreeSet<ReplicaId>,
    quiescence: Quiescence,
    moves: Moves,
    forwards: Forwards,
    repairs: Repairs,
    feeds: Feeds,
    pub(crate) clock: ClockWatch,
    clocks: Clocks,
    retention: Sweep,
    cleaning: Sweep,
    producers: Sweep,
    /// The last topic that was told of other settings of the node; `None` between two sweeps.
    reconfigured: Option<Uuid>,
    coordinators: Coordinators,
    calls: Calls,
    share_calls: ShareCalls,
    pub(crate) shares: Shares,
    dead_letters: DeadLetterCopies,
    chance: Prng,
    meters: Meters,
    timed: Timed,
    /// When the present step or flush began.
    pub(crate) now: Now,
    /// Actions of the present step or flush.
    pub(crate) out: Vec<Action>,
    /// Things that happened here, with which requests go on; empty between steps.
    pub(crate) signals: VecDeque<Signal>,
}

impl Node {
    pub(crate) fn on_disconnected(&mut self, connection: ConnectionId) {
        let range = (connection, 0)..=(connection, u64::MAX);
        let keys: Vec<_> = self.parked.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            self.unpark(key);
        }
        self.forget_stalled(connection);
        self.forget_undecided(connection);
        self.forget_doubts(connection);
        self.forget_times(connection);
        self.forget_share_sessions(connection);
        self.moves.forget(connection);
        self.forwards.forget(connection);
        if let Some(opening) = &mut self.opening {
            opening.held.retain(|(key, ..)| key.0 != connection);
        }
    }

    pub(crate) fn on_storage(&mut self, done: &Done) {
        match *done {
            Done::Persisted { replica, ticket } if replica == self.controller.group.id() => {
                self.controller.group.on_persisted(ticket);
                self.is_controller_dirty = true;
            }
            Done::Persisted { replica, ticket } => {
                // A deleted replica's last writes may still come back.
                if let Some(partition) = self.partitions.get_mut(&replica) {
                    let before = partition.group.bytes_in_flight();
                    partition.group.on_persisted(ticket);
                    self.bytes_in_flight -= before - partition.group.bytes_in_flight();
                    mark(&mut self.dirty, partition);
                }
            }
            Done::WantImage { replica } => {
                let kind = if replica == self.controller.group.id() {
                    Some(self.controller.image_op())
                } else {
                    self.partitions.get(&replica).map(Partition::image)
                };
                self.out.extend(kind.map(|kind| Action::Storage(Op { replica, kind })));
            }
            Done::DiskFull(shortage) => self.on_disk_full(shortage),
            Done::Cut { replica, segment } => self.repairs.forget(replica, segment),
            Done::Mended { replica, segment, is_done } => self.on_mended(replica, segment, is_done),
            Done::Compacted { replica, ref done } => self.on_compacted(replica, done.as_ref()),
            Done::Put { replica, number, next } => self.on_put(replica, number, next),
            Done::Staged { replica, number, ref segments } => {
                self.on_staged(replica, number, segments);
            }
        }
    }

    fn on_disk_full(&mut self, shortage: Option<Shortage>) {
        let was_full = self.disk_shortage.is_some();
        self.disk_shortage = shortage;
        match self.refusal() {
            Some(refusal) if !was_full => tracing::warn!("{refusal}"),
            None if was_full => tracing::info!("the disk has room again: appends are accepted"),
            _ => {}
        }
    }

    /// Returns the message for producers while the disk is full: which disk, the missing space, and the remedy.
    pub(crate) fn refusal(&self) -> Option<String> {
        const MIB: u64 = 1 << 20;
        let Shortage { free_bytes, needed_bytes } = self.disk_shortage?;
        Some(format!(
            "the disk of broker {} is full: {} MiB are free, and appends are taken from {} MiB on; delete topics or \
             records, shorten their retention, or free space on the file system of its data directory",
            self.options.facts.broker_id,
            free_bytes / MIB,
            needed_bytes.div_ceil(MIB)
        ))
    }

    pub(crate) fn mark_dirty(&mut self, replica: ReplicaId) {
        if let Some(partition) = self.partitions.get_mut(&replica) {
            mark(&mut self.dirty, partition);
        }
    }

    /// Gives a partition a batch. Returns its first offset kept too.
    pub(crate) fn append(
        &mut self,
        replica: ReplicaId,
        batch: CheckedBatch,
        acks: Acks,
        slot: Slot,
    ) -> (Appended, i64) {
        let bytes = batch.bytes.len() as u64;
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let in_flight = partition.group.bytes_in_flight();
        let appended = partition.produce(self.now, batch, acks, slot);
        let added = partition.group.bytes_in_flight() - in_flight;
        // Of one that has just failed, those who wait are told in the turn.
        let waits = matches!(appended, Appended::Waits { .. });
        if waits || added > 0 || partition.group.failure().is_some() {
            mark(&mut self.dirty, partition);
        }
        let is_taken = matches!(appended, Appended::Waits { .. } | Appended::Done { .. });
        if added > 0 {
            self.bytes_in_flight += added;
            self.counters.batches += 1;
            self.counters.batch_bytes += bytes;
        } else if is_taken {
            self.counters.duplicates += 1;
        }
        (appended, partition.log_start())
    }

    /// Gives a partition a batch of this node's own.
    fn append_own(&mut self, replica: ReplicaId, bytes: BytesMut, slot: Slot) -> Appended {
        let Some(partition) = self.partitions.get_mut(&replica) else {
            return Appended::Refused(ErrorCode::UnknownTopicOrPartition, None);
        };
        let in_flight = partition.group.bytes_in_flight();
        let appended = partition.append_own(self.now, bytes, slot);
        self.bytes_in_flight += partition.group.bytes_in_flight() - in_flight;
        mark(&mut self.dirty, partition);
        appended
    }

    pub(crate) fn mark_controller_dirty(&mut self) {
        self.is_controller_dirty = true;
    }

    /// Notifies everyone who waited for the results of a partition's turn.
    pub(crate) fn follow(&mut self, effects: Effects) {
        for finished in effects.finished {
            self.on_finished(finished);
        }
        for (watcher, growth) in effects.touched {
            for key in self.sessions.touch(watcher).to_vec() {
                self.signals.push_back(Signal::Grown { key, growth });
            }
        }
        for (key, growth) in effects.woken {
            self.signals.push_back(Signal::Grown { key, growth });
        }
        for key in effects.served {
            self.on_leader(key);
        }
    }

    fn on_finished(&mut self, finished: Finished) {
        let Finished { slot, error, base_offset, log_start } = finished;
        let (key, topic, partition) = match slot {
            Slot::Request { key, topic, partition } => (key, topic, partition),
            Slot::Coordinator { replica, ticket } => {
                let result = if error.is_none() { Ok(base_offset) } else { Err(error) };
                return self.on_stored(replica, ticket, result);
            }
            Slot::Marker { replica, producer_id, commits, asker } => {
                let marker = (replica, producer_id, commits);
                return self.on_marker(marker, asker, error);
            }
            Slot::Burial(asker) => return self.tell_burial(asker, error),
        };
        let place = (topic, partition);
        let finished = Signal::Finished { key, place, error, base_offset, log_start };
        self.signals.push_back(finished);
    }

    /// Returns a new random id.
    pub(crate) fn fresh_id(&mut self) -> Uuid {
        let (high, low) = (self.chance.next(), self.chance.next());
        Uuid::from_u128(u128::from(high) << 64 | u128::from(low))
    }

    pub(crate) fn own_directory(&self) -> Uuid {
        Uuid(self.options.facts.directory_id)
    }

    /// Returns the local replica of a partition.
    pub(crate) fn local_replica(&self, topic: &Topic, partition: i32) -> Option<ReplicaId> {
        let replicas = topic.partitions.get(usize::try_from(partition).ok()?)?;
        let own = self.own_directory();
        let replica = replicas.iter().find(|replica| replica.directory_id == own)?;
        Some(ReplicaId(replica.peer_id))
    }

    /// Returns the local replica of a partition that serves, or the error for a client.
    pub(crate) fn serving(&self, topic: &Topic, index: i32) -> Result<&Partition, ErrorCode> {
        let partition = self.partition_here(topic, index)?;
        partition.obstacle().map_or(Ok(partition), Err)
    }

    /// Returns the local replica of a partition, leader or not, or the reason why none can be read.
    pub(crate) fn readable(&self, topic: &Topic, index: i32) -> Result<&Partition, ErrorCode> {
        let partition = self.partition_here(topic, index)?;
        partition.obstacle_to_reading().map_or(Ok(partition), Err)
    }

    fn partition_here(&self, topic: &Topic, index: i32) -> Result<&Partition, ErrorCode> {
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        if !(0..count).contains(&index) {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let replica = self.local_replica(topic, index).ok_or(ErrorCode::NotLeaderOrFollower)?;
        self.partitions.get(&replica).ok_or(ErrorCode::NotLeaderOrFollower)
    }

    /// Returns the node from which a client in `rack` should read a partition that this node leads. That node has a
    /// replica that keeps up and is in the client's rack, while this node is not.
    pub(crate) fn read_replica(&self, topic: &Topic, index: i32, rack: &str) -> Option<i32> {
        let settings = &self.options.settings;
        if rack.is_empty() || self.options.rack.as_deref() == Some(rack) || settings.leaders_only {
            return None;
        }
        let partition = self.serving(topic, index).ok()?;
        let replicas = topic.partitions.get(usize::try_from(index).ok()?)?;
        let near = |placed: &&PlacedReplica| {
            let broker = self.controller.image.brokers.get(&placed.broker_id);
            let is_there =
                self.peers.hears(placed.broker_id) && !self.peers.leaves(placed.broker_id);
            is_there
                && broker.is_some_and(|broker| broker.rack.as_deref() == Some(rack))
                && self.keeps_up(partition, placed)
        };
        let best = replicas.iter().filter(near).max_by_key(|placed| {
            (partition.group.matched(placed.peer_id), std::cmp::Reverse(placed.broker_id))
        });
        best.map(|placed| placed.broker_id)
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_shortage.is_some()
    }

    /// Returns the free and the needed disk space while appends are refused for want of room.
    pub(crate) fn disk_shortage(&self) -> Option<Shortage> {
        self.disk_shortage
    }

    /// Returns the next producer id, or `None` after having asked for a block of them.
    pub(crate) fn next_producer_id(&mut self) -> Result<Option<i64>, ErrorCode> {
        let (next, end) = self.producer_ids;
        if next < end {
            self.producer_ids.0 += 1;
            return Ok(Some(next));
        }
        if !self.controller.group.is_alone() && !self.controller.group.is_serving() {
            return self.want_producer_ids().map(|()| None);
        }
        if self.allocating.is_none() {
            let (cluster_id, broker_id) =
                (self.options.facts.cluster_id, self.options.facts.broker_id);
            let block = self.controller.allocate_producer_ids(cluster_id, broker_id);
            let (first, end, record) = block;
            debug_assert_eq!(end - first, PRODUCER_ID_BLOCK);
            let index = self.controller.propose(self.now, &[record])?;
            self.allocating = Some((index, first, end));
            self.is_controller_dirty = true;
        }
        Ok(None)
    }

    pub(crate) fn grant_producer_ids(&mut self) {
        let is_one = |waiting: &Waiting| matches!(waiting.parked, Parked::ProducerId);
        let waiting = self.parked.iter().filter(|(_, waiting)| is_one(waiting));
        let keys: Vec<_> = waiting.map(|(key, _)| *key).collect();
        for key in keys {
            match self.next_producer_id() {
                Ok(Some(id)) => {
                    self.unpark(key);
                    self.signals.push_back(Signal::ProducerId { key, id });
                }
                Ok(None) => break,
                Err(_) => self.signals.push_back(Signal::TimedOut(key)),
            }
        }
        self.give_producer_ids();
    }
}

/// Gives the partition a turn in the next flush.
fn mark(dirty: &mut VecDeque<ReplicaId>, partition: &mut Partition) {
    if !std::mem::replace(&mut partition.is_dirty, true) {
        dirty.push_back(partition.group.id());
    }
}
