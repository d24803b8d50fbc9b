//! # Room card: node
//!
//! Purpose:    one node as a value: events in, actions out.
//! Owns:       the parts of the node, and the order in which one event reaches several of them.
//! Interface:  [`Node::open`], [`Node::metrics`]; [`Node::step`] and [`Node::flush`] are in `turn`.
//! Invariants: nothing blocks. Every request gets exactly one reply or a closed connection. All writes leave in
//!             [`Node::flush`], so that one turn makes one storage batch. The work for an event does not grow with the
//!             number of partitions.
//! Never:      async, locks, hash maps, clocks, globals; a call of an API (see [`Signal`]).
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Node`], then [`Node::follow`].
//!
//! Each part is a value of its own. A method of a part takes the [`Core`] that it works on, and the one other part that
//! it needs, if any; no part knows the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::{Done, Op, RecoveredReplica, ReplicaId};
use duramen_storage::sabotage::{self, Bug};

use crate::audit::Audit;
use crate::configs::TopicSettings;
use crate::controller::quorum::Quorum;
use crate::controller::{Controller, METADATA_GROUP, METADATA_REPLICA, is_metadata};
use crate::core::{
    Awaited, Core, Metrics, NodeOptions, Parked, Readiness, Signal, Standing, Then, Timer, mark,
    metadata_replica, standing,
};
use crate::event::{Action, ConnectionId, Now, Reply, RequestKey};
use crate::fetch_sessions::FetchSessions;
use crate::limits::OPENING_US_MAX;
use crate::metadata_records::PlacedReplica;
use crate::partition::{Effects, Finished, Partition, Sender, Slot};
use crate::prng::Prng;
use crate::raft::GroupId;

mod access_log;
pub mod census;
mod coordinators;
mod dead_letters;
mod forwarding;
mod logins;
pub(crate) mod members;
mod moves;
mod questions;
pub(crate) mod queues;
mod quiescence;
pub(crate) mod reassignments;
mod repair;
pub(crate) mod replicas;
pub(crate) mod settling;
mod share_calls;
mod shares;
mod snapshot_feed;
mod sweep;
#[cfg(test)]
mod tests;
mod transactions;

pub(crate) use access_log::AccessLog;
pub(crate) use coordinators::Coordinators;
pub(crate) use forwarding::{Forwards, node_of};
pub(crate) use logins::Logins;
pub(crate) use members::Members;
pub(crate) use moves::{Election, Moves};
pub(crate) use queues::Queues;
pub(crate) use quiescence::Quiescence;
pub(crate) use repair::Repairs;
pub(crate) use settling::Settlings;
pub(crate) use shares::Shares;
pub(crate) use snapshot_feed::Feeds;
pub(crate) use sweep::Sweeps;

/// See the room card.
#[derive(Debug)]
pub struct Node {
    pub(crate) core: Core,
    pub(crate) sessions: FetchSessions,
    pub(crate) forwards: Forwards,
    pub(crate) coordinators: Coordinators,
    pub(crate) shares: Shares,
    pub(crate) moves: Moves,
    pub(crate) members: Members,
    pub(crate) quiescence: Quiescence,
    pub(crate) repairs: Repairs,
    pub(crate) feeds: Feeds,
    pub(crate) sweeps: Sweeps,
    pub(crate) queues: Queues,
    pub(crate) settling: Settlings,
    pub(crate) logins: Logins,
    pub(crate) audit: Audit,
    pub(crate) access_log: AccessLog,
}

impl Node {
    pub(crate) fn on_disconnected(&mut self, connection: ConnectionId) {
        let keys = self.core.desk.of(connection);
        for key in keys {
            self.unpark(key);
        }
        self.core.forget_times(connection);
        self.shares.forget_share_sessions(connection);
        self.moves.forget(connection);
        self.forwards.forget(connection);
        self.logins.forget(connection);
    }

    pub(crate) fn on_storage(&mut self, done: &Done) {
        match *done {
            Done::Persisted { replica, ticket } if replica == self.core.controller.group.id() => {
                self.core.controller.group.on_persisted(ticket);
                self.core.is_controller_dirty = true;
            }
            Done::Persisted { replica, ticket } => {
                // A deleted replica's last writes may still come back.
                if let Some(partition) = self.core.partitions.get_mut(&replica) {
                    let before = partition.group.bytes_in_flight();
                    partition.group.on_persisted(ticket);
                    self.core.bytes_in_flight -= before - partition.group.bytes_in_flight();
                    mark(&mut self.core.dirty, partition);
                }
            }
            Done::WantImage { replica } => {
                let kind = if replica == self.core.controller.group.id() {
                    Some(self.core.controller.image_op())
                } else {
                    self.core.partitions.get(&replica).map(|it| it.image())
                };
                self.core.out.extend(kind.map(|kind| Action::Storage(Op { replica, kind })));
            }
            Done::Held { replica, hold } => {
                let Some(partition) = self.core.partitions.get_mut(&replica) else { return };
                let finished = partition.on_held(hold);
                mark(&mut self.core.dirty, partition);
                for it in finished {
                    self.on_finished(it);
                }
            }
            Done::DiskFull(shortage) => self.core.on_disk_full(shortage),
            Done::Cut { replica, segment } => self.repairs.forget(replica, segment),
            Done::Mended { replica, segment, is_done } => {
                self.repairs.on_mended(&mut self.core, replica, segment, is_done);
            }
            Done::Compacted { replica, ref done } => {
                self.core.on_compacted(replica, done.as_ref());
                if done.is_some() {
                    self.queues.on_erased(&mut self.core, replica);
                }
            }
            Done::Put { replica, number, next } => {
                self.feeds.on_put(&mut self.core, replica, number, next);
            }
            Done::Staged { replica, number, ref segments } => {
                self.feeds.on_staged(&mut self.core, replica, number, segments);
            }
        }
    }

    /// Notifies everyone who waited for the results of a partition's turn.
    pub(crate) fn follow(&mut self, effects: Effects) {
        for finished in effects.finished {
            self.on_finished(finished);
        }
        for (watcher, growth) in effects.touched {
            for key in self.sessions.touch(watcher).to_vec() {
                self.core.signals.push_back(Signal::Grown { key, growth });
            }
        }
        for (key, growth) in effects.woken {
            self.core.signals.push_back(Signal::Grown { key, growth });
        }
        for key in effects.served {
            self.core.on_leader(key);
        }
    }

    fn on_finished(&mut self, finished: Finished) {
        let Finished { slot, error, base_offset, log_start } = finished;
        let (key, topic, partition) = match slot {
            Slot::Request { key, topic, partition } => (key, topic, partition),
            Slot::Coordinator { replica, ticket } => {
                let result = if error.is_none() { Ok(base_offset) } else { Err(error) };
                return self.coordinators.on_stored(&mut self.core, replica, ticket, result);
            }
            Slot::Marker { replica, producer_id, commits, asker } => {
                let marker = (replica, producer_id, commits);
                return self.coordinators.on_marker(&mut self.core, marker, asker, error);
            }
            Slot::Delivery(Sender::Own { nonce }) => return self.on_delivered(nonce, error),
            Slot::Delivery(Sender::Node { broker_id, nonce }) => {
                return self.core.tell_delivered(broker_id, nonce, error);
            }
        };
        let place = (topic, partition);
        let finished = Signal::Finished { key, place, error, base_offset, log_start };
        self.core.signals.push_back(finished);
    }

    /// Hands the result of a delivery to the part that made the batch.
    pub(crate) fn on_delivered(&mut self, nonce: u64, code: ErrorCode) {
        if !self.access_log.on_delivered(&self.core, nonce, code) {
            self.shares.on_buried(&mut self.core, nonce, code);
        }
    }

    pub(crate) fn grant_producer_ids(&mut self) {
        let waiting = self.core.desk.iter();
        let waiting = waiting.filter(|(_, parked)| matches!(parked, Parked::ProducerId));
        let keys: Vec<_> = waiting.map(|(key, _)| key).collect();
        for key in keys {
            match self.core.next_producer_id() {
                Ok(Some(id)) => {
                    self.unpark(key);
                    self.core.signals.push_back(Signal::ProducerId { key, id });
                }
                Ok(None) => break,
                Err(_) => self.core.signals.push_back(Signal::TimedOut(key)),
            }
        }
        self.coordinators.give_producer_ids(&mut self.core);
    }
}

impl Node {
    /// Begins or ends a coordinator, because its replica leads now, or does so no longer.
    pub(crate) fn on_serves(&mut self, replica: ReplicaId, serves: bool) {
        if !serves {
            self.coordinators.forget_calls(&mut self.core, replica);
            self.coordinators.forget_share_calls(replica);
            self.shares.forget_shares(&mut self.core, replica);
            self.queues.lose(&mut self.core, replica);
        }
        if !self.coordinators.replicas.contains_key(&replica) {
            return;
        }
        if serves {
            self.coordinators.begin_coordinating(&mut self.core, replica);
        } else {
            self.coordinators.end_coordinating(&mut self.core, replica);
        }
    }
}

impl Node {
    /// Returns the seed of the hashes by which the indexer names queues to this node.
    pub fn queue_seed(&self) -> u64 {
        self.queues.seed()
    }

    /// Tells whether a request waits for the index of its queue, or for an element.
    pub fn waits_for_queue(&self, key: (ConnectionId, u64)) -> bool {
        matches!(self.core.parked(key), Some(Parked::Queue(_)))
    }

    /// Returns the number of partitions that are being moved, or have a replica whose directory is lost. `None` if this
    /// node does not lead the metadata.
    pub fn unsettled(&self) -> Option<usize> {
        let image = &self.core.controller.image;
        let is_lost = |it: &PlacedReplica| image.retired.contains(&it.directory_id);
        let topics = image.topics_by_name();
        let lost = topics.flat_map(|topic| &topic.partitions).filter(|it| it.iter().any(is_lost));
        let unsettled = lost.count() + image.reassignments.len();
        self.core.controller.group.is_serving().then_some(unsettled)
    }

    /// Returns the data directories of the nodes that belong to the cluster, as far as this one knows.
    pub fn directories(&self) -> impl Iterator<Item = [u8; 16]> {
        self.core.controller.image.staying().map(|(_, broker)| broker.directory_id.0)
    }

    /// Returns the term of the metadata.
    pub fn metadata_term(&self) -> u64 {
        self.core.controller.group.term()
    }

    /// Tells whether all committed data would survive elsewhere, and could be served, if a node's directory were lost
    /// now. Only the leader of the metadata knows.
    pub fn can_spare(&self, broker_id: i32) -> bool {
        let image = &self.core.controller.image;
        let group = &self.core.controller.group;
        let quorum = Quorum::of(image, self.core.peers.founders(), group.voter_ids(), |_| true);
        // In a joint membership, a majority of the former voters is needed, too.
        let is_kept =
            group.voters() >= 3 && quorum.voters == group.voter_ids() && !group.is_joint();
        let partitions = image.topics_by_name().flat_map(|topic| &topic.partitions);
        let mut there = partitions.filter(|it| it.iter().any(|it| it.broker_id == broker_id));
        self.unsettled() == Some(0) && is_kept && there.all(|it| it.len() >= 3)
    }
}

impl Node {
    /// Returns the states of all replicas here, that of the metadata first.
    pub fn standings(&self) -> Vec<Standing> {
        let (start, end) = (self.core.controller.log_start(), self.core.controller.end());
        let metadata = standing(METADATA_GROUP, &self.core.controller.group, start, end);
        let others = self.core.partitions.values();
        let is_reassigned = |id: GroupId| {
            let place = (Uuid(id.topic_id), id.partition);
            self.core.controller.image.reassignments.contains_key(&place)
        };
        let others = others.map(|it| Standing {
            is_reassigned: is_reassigned(it.id),
            compacted: it.compacted(),
            expired_by_ms: it.expired_by_ms(),
            ..standing(it.id, &it.group, it.log_start(), it.committed())
        });
        std::iter::once(metadata).chain(others).collect()
    }

    /// Returns the readiness of the node to serve.
    pub fn readiness(&self) -> Readiness {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Readiness {
            is_opening: self.core.is_opening(),
            is_member: self.core.is_registered,
            knows_leader: self.core.metadata_leader().is_some(),
            nodes: count(self.core.controller.image.brokers.len()),
            nodes_unheard: count(self.core.unheard().count()),
        }
    }

    /// Counters since the node was opened, and gauges. Walks over all partitions: not for every
    /// turn.
    pub fn metrics(&self) -> Metrics {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let partitions = self.core.partitions.values();
        let failed = partitions.clone().filter(|it| it.group.failure().is_some());
        Metrics {
            parked: count(self.core.desk.len()),
            bytes_in_flight: self.core.bytes_in_flight,
            partitions: count(self.core.partitions.len()),
            partitions_asleep: count(self.quiescence.asleep()),
            sleep_disputes: count(self.quiescence.uneven()),
            partitions_slept: self.quiescence.slept(),
            partitions_failed: count(failed.count()),
            coordinators_failed: count(self.coordinators.failed()),
            left_behind: count(
                partitions.clone().map(|it| it.group.left_behind()).sum::<usize>()
                    + self.core.controller.group.left_behind(),
            ),
            producers: count(partitions.clone().map(|it| it.producers_len()).sum()),
            fetch_sessions: count(self.sessions.len()),
            share_sessions: count(self.shares.sessions.len()),
            share_partitions: count(self.shares.len()),
            stretches_open: count(partitions.clone().filter(|it| it.open_here().is_some()).count()),
            held_bytes: count(self.core.held_bytes),
            partitions_settling: count(partitions.clone().filter(|it| it.is_settling()).count()),
            burials: count(self.shares.dead_letters.len()),
            queue_reads_waiting: count(self.queues.waiting()),
            queue_index_lag: self.queues.lag(&self.core),
            share_records: u64::try_from(self.shares.unfinished()).unwrap_or(0),
            segments_damaged: count(self.repairs.segments_damaged(&self.core)),
            clock_holds: self.core.clock.holds(),
            is_clock_held: self.core.clock.is_held(),
            clocks_apart_ms: self.core.clocks.apart_ms,
            is_clock_alone: self.core.clocks.is_alone,
            is_disk_full: self.core.is_disk_full(),
            denials: self.core.access.denials(),
            has_slow_disk: self.moves.has_slow_disk(&self.core),
            is_opening: self.core.is_opening(),
            nodes_unheard: count(self.core.unheard().count()),
            partitions_under_replicated: count(self.core.under_replicated()),
            ..self.core.counters
        }
    }
}

impl Node {
    /// Opens a node over the state that storage recovered. Requests are kept until its groups lead.
    pub fn open(
        mut options: NodeOptions,
        recovered: Vec<RecoveredReplica>,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Self {
        let seed = options.seed;
        options.settle();
        let tail = std::mem::take(&mut options.metadata_tail);
        let metadata = recovered.iter().find(|found| is_metadata(&found.identity));
        let controller =
            Self::open_controller(&options, metadata, tail).unwrap_or_else(|problem| {
                actions.push(Action::Fatal(problem));
                Controller::create(METADATA_REPLICA, &[METADATA_REPLICA.0], seed)
            });
        let mut node = Self {
            sessions: FetchSessions::new(Prng::stream(seed, 0x6665_7463_6800)),
            forwards: Forwards::default(),
            coordinators: Coordinators::new(&options.settings),
            shares: Shares::new(&options.settings),
            moves: Moves::new(&options.settings),
            members: Members::default(),
            quiescence: Quiescence::new(options.quiet_ticks),
            repairs: Repairs::default(),
            feeds: Feeds::default(),
            sweeps: Sweeps::default(),
            logins: Logins::default(),
            audit: Audit::default(),
            access_log: AccessLog::default(),
            settling: Settlings::default(),
            queues: Queues::new(Prng::stream(seed, 0x7175_6575_6573).next()),
            core: Core::new(options, controller, now, std::mem::take(actions)),
        };
        node.core.controller.group.keep_in_memory(node.core.options.memory);
        node.core.take_dynamic_settings();
        node.core.access.begin_anew(node.core.controller.image.acls.values());
        if node.core.controller.group.is_alone() {
            node.core.controller.group.campaign();
        }
        let logs = recovered.into_iter().filter(|found| !is_metadata(&found.identity));
        logs.for_each(|found| node.adopt(&found));
        node.core.tell_nodes();
        node.core.schedule_ticks();
        node.core.timers.insert((now.mono_us + OPENING_US_MAX, Timer::Opened));
        node.core.schedule_sweeps();
        *actions = std::mem::take(&mut node.core.out);
        node.flush(now, actions);
        node
    }

    fn open_controller(
        options: &NodeOptions,
        found: Option<&RecoveredReplica>,
        tail: Vec<Bytes>,
    ) -> Result<Controller, String> {
        let (mut replica, voters) = metadata_replica(options)?;
        if sabotage::is(Bug::WipedVotes) {
            let mut founders = options.founders.iter();
            let named = founders.find(|it| it.broker_id == options.facts.broker_id);
            replica = named.map_or(replica, |named| ReplicaId(named.peer_id));
        }
        let Some(found) = found else {
            return Ok(if voters.contains(&replica.0) {
                Controller::create(replica, &voters, options.seed)
            } else {
                Controller::await_birth(replica, options.seed)
            });
        };
        if found.replica != replica {
            return Err("the data directory holds the metadata of another cluster".to_owned());
        }
        Controller::recover(found, tail, options.seed)
    }

    fn adopt(&mut self, found: &RecoveredReplica) {
        // The topic's own settings come with the metadata, before anything is appended.
        let settings = TopicSettings::resolve(&BTreeMap::new(), &self.core.options.settings);
        let seed = self.core.options.seed;
        let mut partition = Partition::recover(found, Arc::new(settings), self.core.now, seed);
        partition.group.keep_in_memory(self.core.options.memory);
        if found.damage.is_some() && !found.lacks_room {
            self.members.useless.insert(found.replica);
        }
        // A group of several voters may elect its leader later; no request waits for that here.
        if partition.group.is_alone() {
            partition.group.campaign();
            self.core.open_after(found.replica);
        }
        self.core.held_bytes += partition.held_bytes();
        self.core.peers.tick(found.replica);
        self.quiescence.begin(found.replica);
        self.core.partitions.insert(found.replica, Box::new(partition));
        self.core.mark_dirty(found.replica);
    }
}

impl Node {
    /// Takes a waiting request back.
    pub(crate) fn unpark(&mut self, key: RequestKey) -> Option<Parked> {
        let parked = self.core.take_parked(key)?;
        match &parked {
            Parked::Fetch(fetch) => {
                fetch.forget(key, &mut self.sessions, &mut self.core.partitions);
            }
            Parked::Share(request) => {
                self.shares.forget_share_request(&mut self.core, key, request);
            }
            Parked::Queue(wait) => self.queues.forget_read(key, wait),
            Parked::Native(wait) => {
                self.queues.forget_appends(key);
                if let Awaited::Indexed { end, .. } = wait.awaited {
                    self.queues.forget_behind(wait.replica, end, key);
                }
            }
            Parked::Produce { .. } => self.queues.forget_appends(key),
            _ => {}
        }
        Some(parked)
    }
}

impl Node {
    /// Counts the time of the last event, as measured by the driver, if the event was a request.
    pub fn took(&mut self, us: u64) {
        self.core.count_time(us);
    }
}

/// Answers to requests.
impl Node {
    pub(crate) fn reply(&mut self, key: RequestKey, response: impl Into<Response>) {
        self.forwards.reply(&mut self.core, key, response);
    }

    pub(crate) fn reply_boxed(&mut self, key: RequestKey, response: Box<Response>) {
        self.forwards.reply_boxed(&mut self.core, key, response);
    }

    pub(crate) fn reply_with(&mut self, key: RequestKey, reply: Reply) {
        self.forwards.reply_with(&mut self.core, key, reply);
    }
}

impl Node {
    /// Goes on with all that waited for a replica's leadership check, once the check is done or the replica leads no
    /// more.
    pub(crate) fn settle_doubts(&mut self, replica: ReplicaId) {
        for (led, then) in self.core.settled(replica) {
            match then {
                // The request's own handler answers, or another node does.
                Then::Serve(key) => self.core.on_sure(key),
                then => self.coordinators.tell(&mut self.core, then, led),
            }
        }
    }
}
