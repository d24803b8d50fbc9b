//! # Room card: node
//!
//! Purpose:    one node as a value: events in, actions out.
//! Owns:       the replicas of this node, requests that wait, timers, the turn.
//! Interface:  [`Node::open`], [`Node::step`], [`Node::flush`], [`Node::deadline`], [`Node::metrics`].
//! Invariants: nothing blocks; every request gets exactly one reply or a closed connection; all
//!             that is to be stored leaves in [`Node::flush`], so one turn makes one storage batch;
//!             no work per event grows with the number of partitions.
//! Never:      async, locks, hash maps, clocks, globals.
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Node::step`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;
use duramen_protocol::messages::offset_fetch::OffsetFetchResponseGroup;
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, DeleteGroupsResponse, DeleteRecordsResponse, ElectLeadersResponse,
    FindCoordinatorRequest, MetadataRequest, ProduceResponse, TxnOffsetCommitRequest,
    WriteTxnMarkersResponse,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::{Done, Op, ReplicaId, Shortage};

use crate::access::Access;
use crate::api::add_partitions_to_txn::Place;
use crate::api::share_offsets::Describing;
use crate::api::{self, fetch::ParkedFetch, fetch_sessions::FetchSessions};
use crate::controller::image::Topic;
use crate::controller::records::PlacedReplica;
use crate::controller::{Controller, METADATA_GROUP};
use crate::event::{Action, ConnectionId, Event, Now, Reply, RequestKey};
use crate::group::GroupId;
use crate::limits::PRODUCER_ID_BLOCK;
use crate::partition::retention::ClockWatch;
use crate::partition::{Acks, Appended, Effects, Finished, Partition, Slot};
use crate::prng::Prng;
use crate::quotas::Meters;
use crate::session::{CheckedBatch, Prepared, RequestContext};

mod burials;
mod clocks;
mod coordinators;
mod doubts;
mod feeding;
mod forwarding;
mod in_sync;
mod members;
mod mending;
mod metrics;
mod moves;
mod opening;
mod peers;
mod quotas;
mod reassignments;
mod replicas;
mod share_calls;
mod shares;
mod sleepers;
mod stalls;
mod sweep;
#[cfg(test)]
mod tests;
mod transactions;
mod undecided;

use burials::Burials;
use clocks::Clocks;
use coordinators::Coordinators;
use doubts::Doubts;
use feeding::Feeds;
use forwarding::Forwards;
use members::Members;
use mending::Mends;
pub use metrics::{Metrics, Readiness, Standing};
use moves::Moves;
pub(crate) use moves::{Election, ElectionWanted};
pub use opening::NodeOptions;
use opening::Opening;
pub(crate) use peers::Peers;
use quotas::Timed;
use share_calls::ShareCalls;
use shares::Shares;
pub(crate) use shares::{ShareRequest, Told, Wanted};
use sleepers::Sleepers;
use stalls::Stalls;
use sweep::Sweep;
use transactions::Calls;
use undecided::Undecided;

/// A request that waits.
#[derive(Debug)]
pub(crate) enum Parked {
    /// For its batches to be durable.
    Produce { response: ProduceResponse, outstanding: usize, version: i16 },
    /// For more records.
    Fetch(ParkedFetch),
    /// For its trims to be committed.
    Trims { response: DeleteRecordsResponse, outstanding: usize },
    /// For its records to be committed, and then for its new partitions to have leaders.
    Commit { response: Box<Response>, outstanding: usize },
    /// For topics it names to be made.
    Metadata { request: MetadataRequest, context: RequestContext, outstanding: usize },
    /// For the topic that groups are kept in to be made.
    FindCoordinator { request: FindCoordinatorRequest, context: RequestContext, outstanding: usize },
    /// For partitions to be led by other replicas.
    Election { response: Box<ElectLeadersResponse>, wanted: VecDeque<ElectionWanted> },
    /// For a node to be gone from the cluster.
    Departure { broker_id: i32 },
    /// For the node that leads the metadata.
    Forwarded { nonce: u64 },
    /// For a block of producer ids.
    ProducerId,
    /// For the coordinator of its group.
    Group { version: i16 },
    /// For the coordinator of its transactional id.
    Transaction { version: i16 },
    /// For the coordinators of its transactional ids.
    Addition { response: Box<Response>, places: Vec<Place>, outstanding: usize, version: i16 },
    /// For the topic that groups are kept in to be made.
    AddOffsets { request: AddOffsetsToTxnRequest, context: RequestContext },
    /// For its transaction to be known to commit offsets.
    TxnOffsets { request: Box<TxnOffsetCommitRequest>, context: RequestContext },
    /// For the coordinators of what is kept of share groups.
    ShareStates { response: Box<Response>, outstanding: usize },
    /// For the same, and for how long partitions are.
    ShareOffsets(Box<Describing>),
    /// For its markers to be committed.
    Markers { response: WriteTxnMarkersResponse, outstanding: usize },
    /// For the coordinators of its groups.
    OffsetFetch {
        groups: Vec<OffsetFetchResponseGroup>,
        outstanding: usize,
        context: RequestContext,
    },
    /// For the coordinators of its groups.
    DeleteGroups { response: DeleteGroupsResponse, outstanding: usize },
    /// For records of share partitions, or for decisions on them to be durable.
    Share(Box<ShareRequest>),
}

#[derive(Debug)]
pub(crate) struct Waiting {
    parked: Parked,
    deadline_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
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
    Burials,
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
    timers: BTreeSet<(u64, Timer)>,
    dirty: VecDeque<ReplicaId>,
    is_controller_dirty: bool,
    opening: Option<Opening>,
    registration: Option<u64>,
    /// The registration is applied: the image is complete, and replicas follow it.
    is_registered: bool,
    stalls: Stalls,
    undecided: Undecided,
    doubts: Doubts,
    bytes_in_flight: u64,
    /// Why appends are refused, if they are.
    disk_shortage: Option<Shortage>,
    producer_ids: (i64, i64),
    /// A block of producer ids that this node gives itself: index, first and end.
    allocating: Option<(u64, i64, i64)>,
    pub(crate) peers: Peers,
    members: Members,
    /// Replicas here that were found damaged at the start.
    useless: BTreeSet<ReplicaId>,
    sleepers: Sleepers,
    moves: Moves,
    forwards: Forwards,
    mends: Mends,
    feeds: Feeds,
    clock: ClockWatch,
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
    burials: Burials,
    chance: Prng,
    meters: Meters,
    timed: Timed,
    /// When the present step or flush began.
    pub(crate) now: Now,
    /// Actions of the present step or flush.
    pub(crate) out: Vec<Action>,
}

impl Node {
    /// Takes one event in. Call [`Node::flush`] after the last one of a turn.
    pub fn step(&mut self, now: Now, event: Event, actions: &mut Vec<Action>) {
        self.now = self.clock.read(now);
        std::mem::swap(&mut self.out, actions);
        match event {
            Event::Request { connection, sequence, context, request } => {
                self.on_request((connection, sequence), context, request);
            }
            Event::Disconnected(connection) => self.on_disconnected(connection),
            Event::Storage(done) => self.on_storage(&done),
            Event::LogRead(read) if read.peer.is_some() => self.on_payload(read),
            Event::LogRead(read) => self.on_log_read(read),
            Event::Surveyed(surveyed) => self.on_surveyed(surveyed),
            Event::Dated(dated) => self.on_dated(dated),
            Event::DeadLetters(made) => self.on_dead_letters(made),
            Event::Damaged(damage) => self.on_damaged(&damage),
            Event::Peer(frame) => self.on_peer(frame.0),
            Event::Drain => self.drain(),
            Event::Suspended { ms } => self.clock.note_suspended(ms),
            Event::Given(changes) => {
                self.options.settings.give(changes);
                self.reconfigure();
            }
            Event::Tick => {}
        }
        self.fire_timers();
        std::mem::swap(&mut self.out, actions);
    }

    /// Ends a turn: what was proposed goes to storage, what was committed takes effect.
    pub fn flush(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.now = self.clock.read(now);
        std::mem::swap(&mut self.out, actions);
        // Effects can make more work: a committed topic makes replicas, a freed byte lets a
        // stalled produce in. Each round ends with fewer of either.
        loop {
            if std::mem::take(&mut self.is_controller_dirty) {
                self.turn_controller();
            } else if let Some(replica) = self.dirty.pop_front() {
                self.turn_partition(replica);
            } else if !self.send_questions()
                && !self.send_share_calls()
                && !self.flush_shares()
                && !self.resume_stalled()
            {
                break;
            }
        }
        // All that is to be stored has left before anything is said of it.
        self.send_frames();
        self.peers.begin_reads(&mut self.out);
        std::mem::swap(&mut self.out, actions);
    }

    /// Returns the time to send [`Event::Tick`] if nothing happens before, in monotonic microseconds.
    pub fn deadline(&self) -> u64 {
        self.timers.first().map_or(u64::MAX, |(at, _)| *at)
    }

    fn on_request(&mut self, key: RequestKey, context: RequestContext, request: Box<Prepared>) {
        self.counters.requests += 1;
        self.begin_time(key, &context);
        match &mut self.opening {
            Some(opening) if !api::needs_no_state(&request) => {
                opening.held.push_back((key, context, request));
            }
            _ => self.judge(key, context, *request),
        }
    }

    fn on_disconnected(&mut self, connection: ConnectionId) {
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

    fn on_storage(&mut self, done: &Done) {
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
            Done::Cut { replica, segment } => self.mends.forget(replica, segment),
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

    fn fire_timers(&mut self) {
        while let Some(&(at, timer)) = self.timers.first() {
            if at > self.now.mono_us {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Opened => self.finish_opening(),
                Timer::Retention => self.sweep_retention(),
                Timer::Cleaning => self.sweep_cleaning(),
                Timer::Producers => self.sweep_producers(),
                Timer::Settings => self.sweep_settings(),
                Timer::Offsets => self.sweep_offsets(),
                Timer::Peers => {
                    self.tick_peers();
                    self.tick_moves();
                    self.tick_mends();
                    self.tick_feeds();
                    self.tick_forwards();
                }
                Timer::Coordinator(replica) => self.on_coordinator_timer(replica),
                Timer::Calls => self.on_calls_timer(),
                Timer::ShareCalls => self.on_share_calls_timer(),
                Timer::Share(number) => self.on_share_timer(number),
                Timer::Burials => self.on_burials_timer(),
                Timer::Request(key) => api::on_timeout(self, key),
            }
        }
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

    fn turn_partition(&mut self, replica: ReplicaId) {
        let Some(partition) = self.partitions.get_mut(&replica) else { return };
        partition.is_dirty = false;
        let before = partition.group.bytes_in_flight();
        let mut effects = Effects::default();
        partition.turn(self.now, &mut self.out, &mut effects);
        self.bytes_in_flight -= before - partition.group.bytes_in_flight();
        let (id, lead) = (partition.id, partition.group.lead());
        self.post(replica, id, &mut effects.messages);
        self.peers.read(replica, &effects.reads);
        self.note_rest(replica);
        let Some(partition) = self.partitions.get(&replica) else { return };
        let is_settled = partition.group.is_serving() || partition.group.failure().is_some();
        let serves = effects.serves;
        if serves == Some(true) && self.peers.may_be() {
            self.peers.announce(id, lead);
        }
        self.follow(effects);
        if let Some(serves) = serves {
            self.on_serves(replica, serves);
        }
        self.settle_doubts(replica);
        if is_settled && self.opening.is_some() {
            self.note_opened(replica);
        }
    }

    /// Notifies everyone who waited for the results of a partition's turn.
    fn follow(&mut self, effects: Effects) {
        for finished in effects.finished {
            self.on_finished(finished);
        }
        for (watcher, growth) in effects.touched {
            for key in self.sessions.touch(watcher).to_vec() {
                api::fetch::on_woken(self, key, growth);
            }
        }
        for (key, growth) in effects.woken {
            api::fetch::on_woken(self, key, growth);
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
        let Some(waiting) = self.parked.get_mut(&key) else { return };
        let left = match &mut waiting.parked {
            Parked::Produce { response, outstanding, .. } => {
                let topic = &mut response.responses[topic];
                let part = &mut topic.partition_responses[partition];
                part.error_code = error.code();
                part.base_offset = base_offset;
                part.log_start_offset = log_start;
                if !error.is_none() {
                    part.log_append_time_ms = -1;
                }
                *outstanding -= 1;
                *outstanding
            }
            Parked::Trims { response, outstanding } => {
                let part = &mut response.topics[topic].partitions[partition];
                part.error_code = error.code();
                part.low_watermark = if error.is_none() { log_start } else { -1 };
                *outstanding -= 1;
                *outstanding
            }
            other => unreachable!("{other:?} waits for no log"),
        };
        if left == 0 {
            match self.unpark(key) {
                Some(Parked::Produce { response, version, .. }) => {
                    api::produce::answer(self, key, response, version);
                }
                Some(Parked::Trims { response, .. }) => self.reply(key, response),
                _ => {}
            }
        }
    }

    /// Notes that one of the partitions that a request waits for has a leader, or never will.
    fn on_leader(&mut self, key: RequestKey) {
        let Some(waiting) = self.parked.get_mut(&key) else { return };
        let (Parked::Commit { outstanding, .. }
        | Parked::Metadata { outstanding, .. }
        | Parked::FindCoordinator { outstanding, .. }) = &mut waiting.parked
        else {
            return;
        };
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            self.answer_parked(key);
        }
    }

    /// Answers a request that waited for the metadata group, or for partitions.
    pub(crate) fn answer_parked(&mut self, key: RequestKey) {
        match self.unpark(key) {
            Some(Parked::Commit { response, .. }) => self.reply_boxed(key, response),
            Some(Parked::Metadata { request, context, .. }) => {
                let response = api::metadata::answer(self, &context, &request);
                self.reply(key, response);
            }
            Some(Parked::FindCoordinator { request, context, .. }) => {
                let response = api::find_coordinator::answer(self, &context, &request);
                self.reply(key, response);
            }
            _ => {}
        }
    }

    fn turn_controller(&mut self) {
        let mut outcome = self.controller.turn(&mut self.out);
        let replica = self.controller.group.id();
        self.post(replica, METADATA_GROUP, &mut outcome.messages);
        self.peers.read(replica, &outcome.reads);
        if outcome.leads.is_some() {
            // An entry proposed in another term may have been replaced by now.
            self.allocating = None;
            self.registration = None;
            self.peers.forget_grants();
        }
        if let Some(problem) = self.controller.group.failure() {
            self.out.push(Action::Fatal(format!("the metadata group failed: {problem}")));
            return;
        }
        if outcome.is_begun {
            self.tell_nodes();
            self.take_dynamic_settings();
            if self.is_registered {
                self.reconcile();
            }
        }
        let mut made = Vec::new();
        let may_be_gone = outcome.leads.is_some() || !outcome.changes.is_empty();
        for change in outcome.changes {
            self.follow_change(change, &mut made);
        }
        if may_be_gone {
            self.note_departures(outcome.leads.is_some());
        }
        for (key, is_committed) in outcome.released {
            self.on_committed(key, is_committed, &made);
        }
        self.judge_again();
        self.settle_doubts(replica);
        let applied = self.controller.group.applied();
        if let Some((_, first, end)) = self.allocating.take_if(|block| block.0 <= applied) {
            self.producer_ids = (first, end);
            self.grant_producer_ids();
        }
        self.peers.grant(applied);
        self.look_for_groups();
        self.register();
        let log_bytes = self.options.settings.metadata_log_bytes.unsigned_abs();
        self.is_controller_dirty |= self.controller.trim_if_large(log_bytes);
    }

    /// Returns a new random id.
    pub(crate) fn fresh_id(&mut self) -> Uuid {
        let (high, low) = (self.chance.next(), self.chance.next());
        Uuid::from_u128(u128::from(high) << 64 | u128::from(low))
    }

    pub(crate) fn own_directory(&self) -> Uuid {
        Uuid(self.options.facts.directory_id)
    }

    /// Goes on with a request whose metadata records are committed, or lost.
    fn on_committed(&mut self, key: RequestKey, is_committed: bool, made: &[GroupId]) {
        let Some(waiting) = self.parked.get_mut(&key) else { return };
        if !is_committed {
            api::on_timeout(self, key);
            return;
        }
        let (Parked::Commit { outstanding, .. }
        | Parked::Metadata { outstanding, .. }
        | Parked::FindCoordinator { outstanding, .. }) = &mut waiting.parked
        else {
            return;
        };
        *outstanding = made.len();
        if made.is_empty() {
            return self.answer_parked(key);
        }
        for group in made {
            let Some(topic) = self.controller.image.topic(Uuid(group.topic_id)) else {
                self.on_leader(key); // it was deleted at once
                continue;
            };
            let here = self.local_replica(topic, group.partition);
            match here.and_then(|replica| self.partitions.get_mut(&replica)) {
                Some(partition) => partition.creators.push(key),
                None => self.peers.expect_leader(*group, key),
            }
        }
    }

    /// Keeps a request until `deadline_us`.
    pub(crate) fn park(&mut self, key: RequestKey, parked: Parked, deadline_us: u64) {
        self.timers.insert((deadline_us, Timer::Request(key)));
        let before = self.parked.insert(key, Waiting { parked, deadline_us });
        assert!(before.is_none(), "a connection numbers its requests");
    }

    /// Takes a waiting request back.
    pub(crate) fn unpark(&mut self, key: RequestKey) -> Option<Parked> {
        let Waiting { parked, deadline_us } = self.parked.remove(&key)?;
        self.timers.remove(&(deadline_us, Timer::Request(key)));
        match &parked {
            Parked::Fetch(fetch) => fetch.forget(key, self),
            Parked::Share(request) => self.forget_share_request(key, request),
            _ => {}
        }
        Some(parked)
    }

    pub(crate) fn parked_mut(&mut self, key: RequestKey) -> Option<&mut Parked> {
        self.parked.get_mut(&key).map(|waiting| &mut waiting.parked)
    }

    pub(crate) fn reply(&mut self, key: RequestKey, response: impl Into<Response>) {
        self.reply_boxed(key, Box::new(response.into()));
    }

    fn reply_boxed(&mut self, key: RequestKey, reply: Box<Response>) {
        self.reply_with(key, Reply::Response(reply));
    }

    pub(crate) fn reply_with(&mut self, key: RequestKey, mut reply: Reply) {
        self.counters.replies += 1;
        if let Reply::Response(response) = reply {
            // Another node may have asked on behalf of its client.
            let Some(response) = self.answer_forwarded(key, response) else { return };
            reply = Reply::Response(response);
        }
        reply.rest(self.time_rest_ms(key));
        self.end_time(key);
        self.out.push(Action::Reply { connection: key.0, sequence: key.1, reply });
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

    fn grant_producer_ids(&mut self) {
        let is_one = |waiting: &Waiting| matches!(waiting.parked, Parked::ProducerId);
        let waiting = self.parked.iter().filter(|(_, waiting)| is_one(waiting));
        let keys: Vec<_> = waiting.map(|(key, _)| *key).collect();
        for key in keys {
            match self.next_producer_id() {
                Ok(Some(id)) => {
                    self.unpark(key);
                    self.reply(key, api::init_producer_id::granted(id));
                }
                Ok(None) => break,
                Err(_) => api::on_timeout(self, key),
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
