//! # Room card: turn
//!
//! Purpose:    one turn of the node: each event is taken in, then everything it caused is carried out.
//! Owns:       the order in which the parts of a turn run; where and when a request is served.
//! Interface:  [`Node::step`], [`Node::flush`], [`Node::deadline`].
//! Invariants: all that is to be stored leaves in [`Node::flush`], so one turn makes one storage batch; signals are
//!             handled before anything else of the turn runs, the newest ones first, as if they were calls; no
//!             signal is left at the end of a step or flush.
//! Never:      replication, coordinators (see `node`); the content of requests (see `api`).
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Node::step`].
//!
//! This room alone names both `node` and `api`. The node does not call an API: it pushes a signal, and [`Node::resume`]
//! hands the signal to the API whose request goes on.

use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use crate::api;
use crate::controller::METADATA_GROUP;
use crate::core::{Parked, Signal, Timer, mark};
use crate::event::{Action, Event, Now, RequestKey};
use crate::node::queues::Waiter;
use crate::node::{Node, node_of, replicas};
use crate::partition::Effects;
use crate::peer::Frame;
use crate::quotas::QuotaKey;
use crate::raft::GroupId;
use crate::session::{Prepared, RequestContext};

mod frames;
mod routing;

impl Node {
    /// Takes one event in. Call [`Node::flush`] after the last one of a turn.
    pub fn step(&mut self, now: Now, event: Event, actions: &mut Vec<Action>) {
        self.core.now = self.core.clock.read(now);
        std::mem::swap(&mut self.core.out, actions);
        match event {
            Event::Request { connection, .. } if self.logins.is_shut(connection) => {}
            Event::Request { connection, sequence, context, request } => {
                self.on_request((connection, sequence), context, request);
            }
            Event::WhoIs { connection, asked } => {
                self.logins.on_who_is(&mut self.core, connection, asked);
            }
            Event::Known { connection, known } => {
                self.logins.on_known(&mut self.core, connection, known);
            }
            Event::Disconnected(connection) => self.on_disconnected(connection),
            Event::Storage(done) => self.on_storage(&done),
            Event::LogRead(read) if read.peer.is_some() => frames::on_payload(self, read),
            Event::LogRead(read) => self.coordinators.on_log_read(&mut self.core, read),
            Event::Surveyed(surveyed) => self.shares.on_surveyed(&mut self.core, surveyed),
            Event::Dated(dated) => self.shares.on_dated(&mut self.core, dated),
            Event::DeadLetters(made) => self.shares.on_dead_letters(&mut self.core, made),
            Event::QueueLooked(looked) => {
                match self.queues.on_looked(&mut self.core, looked.ticket) {
                    Some(Waiter::Read(key)) => api::queues::on_looked(self, key, &looked.found),
                    Some(Waiter::Append(place)) => {
                        api::guarded::on_looked(self, place, looked);
                    }
                    Some(Waiter::Trims(replica)) => {
                        self.queues.on_kept(&mut self.core, replica, looked.found);
                    }
                    Some(Waiter::Erasure(replica)) => {
                        self.queues.on_erasable(&mut self.core, replica, &looked.found);
                    }
                    None => {}
                }
            }
            Event::Indexed(indexed) => self.queues.on_indexed(&mut self.core, indexed),
            Event::Consumed { context, bytes } => {
                if let Some(quota) = self.core.quota(QuotaKey::ConsumerByteRate, &context) {
                    self.core.use_up(&quota, bytes);
                }
            }
            Event::IndexLost(replica) => self.queues.on_index_lost(&mut self.core, replica),
            Event::Damaged(damage) => self.repairs.on_damaged(&mut self.core, &damage),
            Event::Peer(frame) => self.on_peer(frame.0),
            Event::Drain => self.moves.drain(&mut self.core),
            Event::Suspended { ms } => {
                self.core.clock.note_suspended(ms);
                let us = u64::try_from(ms).unwrap_or(0).saturating_mul(1000);
                self.core.peers.note_suspended(us);
                self.logins.note_suspended(us);
            }
            Event::Plain(nodes) => self.core.peers.plain = nodes,
            Event::Given(changes) => {
                self.core.options.settings.give(changes);
                self.sweeps.reconfigure(&mut self.core);
            }
            Event::Tick => {}
        }
        self.resume();
        self.fire_timers();
        assert!(self.core.signals.is_empty(), "a step handles all that it caused");
        std::mem::swap(&mut self.core.out, actions);
    }

    /// Ends a turn: what was proposed goes to storage, what was committed takes effect.
    pub fn flush(&mut self, now: Now, actions: &mut Vec<Action>) {
        self.core.now = self.core.clock.read(now);
        std::mem::swap(&mut self.core.out, actions);
        // Effects can make more work: a committed topic makes replicas, a freed byte lets a
        // stalled produce in. Each round ends with fewer of either.
        loop {
            if std::mem::take(&mut self.core.is_controller_dirty) {
                self.turn_controller();
            } else if let Some(replica) = self.core.dirty.pop_front() {
                self.turn_partition(replica);
            } else if !self.coordinators.send_questions(&mut self.core)
                && !self.coordinators.send_share_calls(&mut self.core)
                && !self.shares.flush_shares(&mut self.core, &mut self.coordinators)
                && !routing::resume_stalled(self)
                && self.core.signals.is_empty()
            {
                break;
            }
            self.resume();
        }
        self.logins.answer_waiting(&mut self.core);
        let judged = self.core.access.say_verdicts(now.mono_us);
        self.access_log.take(&mut self.core, &judged);
        self.inspect();
        // All that is to be stored has left before anything is said of it.
        frames::send_frames(self);
        frames::release_reads(self);
        self.core.peers.begin_reads(&mut self.core.out);
        self.core.out.extend(self.core.board.take().map(Action::Targets));
        std::mem::swap(&mut self.core.out, actions);
    }

    /// Checks that a turn has carried out all that it caused.
    fn inspect(&self) {
        let core = &self.core;
        assert!(core.signals.is_empty(), "a flush handles all that it caused");
        assert!(core.dirty.is_empty() && !core.is_controller_dirty, "every group had its turn");
        debug_assert_eq!(
            core.bytes_in_flight,
            core.partitions.values().map(|it| it.group.bytes_in_flight()).sum::<u64>(),
            "bytes in flight are those of all replicas"
        );
        debug_assert_eq!(
            core.held_bytes,
            core.partitions.values().map(|it| it.held_bytes()).sum::<usize>(),
            "held bytes are those of all replicas"
        );
        debug_assert!(
            core.partitions.iter().all(|(id, it)| *id == it.group.id() && !it.is_dirty),
            "a replica without work is not marked"
        );
        assert!(core.producer_ids.0 <= core.producer_ids.1, "a block of producer ids has an end");
        if core.controller.group.failure().is_some() {
            return; // the node is about to end
        }
        core.inspect_desk();
        core.inspect_timers();
        core.inspect_certainty();
        core.peers.inspect();
        self.forwards.inspect(core);
        self.moves.inspect();
        self.quiescence.inspect(core);
        self.repairs.inspect();
        self.feeds.inspect();
        self.shares.inspect(core);
        self.queues.inspect(core);
        self.logins.inspect(core);
        self.access_log.inspect();
        self.coordinators.inspect_calls(core);
        self.coordinators.inspect_share_calls();
    }

    /// Returns the time to send [`Event::Tick`] if nothing happens before, in monotonic microseconds.
    pub fn deadline(&self) -> u64 {
        self.core.timers.first().map_or(u64::MAX, |(at, _)| *at)
    }

    /// Hands each signal to the API whose request goes on. Signals that this causes come before the rest.
    fn resume(&mut self) {
        while let Some(signal) = self.core.signals.pop_front() {
            let rest = self.core.signals.len();
            match signal {
                Signal::Judge { key, context, request } => {
                    routing::judge(self, key, context, *request);
                }
                Signal::Certain { key, context, request } => {
                    routing::judge_certain(self, key, context, *request);
                }
                signal => api::waiting::resume(self, signal),
            }
            assert!(self.core.signals.len() >= rest, "a signal takes no other back");
            let caused = self.core.signals.len() - rest;
            self.core.signals.rotate_right(caused);
        }
    }

    fn on_request(&mut self, key: RequestKey, context: RequestContext, request: Box<Prepared>) {
        assert_eq!(node_of(key.0), None, "a client's connection has no number of a node's");
        self.core.counters.requests += 1;
        self.core.begin_time(key, &context);
        if api::needs_no_state(&request) {
            return routing::judge(self, key, context, *request);
        }
        if let Some((context, request)) = self.core.hold(key, context, request) {
            routing::judge(self, key, context, *request);
        }
    }

    fn on_peer(&mut self, frame: Frame) {
        let Some(frame) = frames::hear_of(self, frame) else { return };
        self.resume();
        self.forwards.on_forwards(&mut self.core, &frame);
        // A forwarded request is decided on before the letters change what this node knows.
        self.resume();
        frames::on_frame(self, frame);
    }

    fn fire_timers(&mut self) {
        while let Some(&(at, timer)) = self.core.timers.first() {
            if at > self.core.now.mono_us {
                break;
            }
            self.core.timers.pop_first();
            match timer {
                Timer::Opened => self.core.finish_opening(),
                Timer::Retention => self.sweeps.sweep_retention(&mut self.core),
                Timer::Cleaning => {
                    self.sweeps.sweep_cleaning(&mut self.core, &mut self.queues);
                }
                Timer::Producers => {
                    self.sweeps.sweep_producers(&mut self.core, &mut self.coordinators);
                }
                Timer::Settings => self.sweeps.sweep_settings(&mut self.core),
                Timer::Offsets => self.coordinators.sweep_offsets(&mut self.core),
                Timer::Peers => {
                    frames::tick_peers(self);
                    self.moves.tick_moves(&mut self.core, &self.quiescence);
                    self.repairs.tick_mends(&mut self.core);
                    self.feeds.tick_feeds(&mut self.core);
                    self.forwards.tick_forwards(&mut self.core);
                    self.logins.note_certainty(&self.core);
                }
                Timer::Coordinator(replica) => {
                    self.coordinators.on_coordinator_timer(&mut self.core, replica);
                }
                Timer::Calls => self.coordinators.on_calls_timer(&mut self.core),
                Timer::ShareCalls => self.coordinators.on_share_calls_timer(&mut self.core),
                Timer::Share(number) => self.shares.on_share_timer(number),
                Timer::Queues => self.queues.on_timer(&mut self.core),
                Timer::AccessLog => self.access_log.on_timer(&mut self.core),
                Timer::DeadLetters => self.shares.on_burials_timer(&mut self.core),
                Timer::Request(key) => routing::end_wait(self, key),
            }
            self.resume();
        }
    }

    fn turn_partition(&mut self, replica: ReplicaId) {
        let Some(partition) = self.core.partitions.get_mut(&replica) else { return };
        assert!(partition.is_dirty, "a replica in the order is marked");
        partition.is_dirty = false;
        let before = partition.group.bytes_in_flight();
        let mut effects = Effects::default();
        let held = partition.held_bytes();
        partition.turn(self.core.now, &mut self.core.out, &mut effects);
        // A new leader appends what others held.
        let in_flight = self.core.bytes_in_flight - before;
        self.core.bytes_in_flight = in_flight + partition.group.bytes_in_flight();
        self.core.held_bytes = self.core.held_bytes - held + partition.held_bytes();
        if effects.goes_on {
            mark(&mut self.core.dirty, partition);
        }
        let (id, lead) = (partition.id, partition.group.lead());
        self.core.counters.stretches += effects.fast.begun;
        self.core.counters.taken_over += effects.fast.taken_over;
        self.core.counters.left_out += effects.fast.left_out;
        self.settling.follow(&mut self.core, replica);
        self.core.post(replica, id, &mut effects.messages);
        self.core.read_entries(id, replica, &effects.reads);
        self.quiescence.note_rest(&mut self.core, replica);
        let Some(partition) = self.core.partitions.get(&replica) else { return };
        let is_settled = partition.group.is_serving() || partition.group.failure().is_some();
        let serves = effects.serves;
        if serves == Some(true) && self.core.peers.may_be() {
            self.core.peers.announce(id, lead);
        }
        self.follow(effects);
        self.queues.follow(&mut self.core, replica);
        if let Some(serves) = serves {
            self.on_serves(replica, serves);
        }
        self.settle_doubts(replica);
        if is_settled {
            self.core.note_opened(replica);
        }
    }

    fn turn_controller(&mut self) {
        let mut outcome = self.core.controller.turn(&mut self.core.out);
        let replica = self.core.controller.group.id();
        self.core.post(replica, METADATA_GROUP, &mut outcome.messages);
        self.core.read_entries(METADATA_GROUP, replica, &outcome.reads);
        if outcome.leads.is_some() {
            // An entry proposed in another term may have been replaced by now.
            self.core.allocating = None;
            self.members.registration = None;
            self.core.peers.forget_grants();
        }
        if let Some(problem) = self.core.controller.group.failure() {
            self.core.out.push(Action::Fatal(format!("the metadata group failed: {problem}")));
            return;
        }
        if outcome.is_begun {
            self.core.tell_nodes();
            self.core.take_dynamic_settings();
            self.core.access.begin_anew(self.core.controller.image.acls.values());
            self.logins.follow(&mut self.core);
            if self.core.is_registered {
                replicas::reconcile(self);
            }
        }
        let may_be_gone = outcome.leads.is_some() || !outcome.changes.is_empty();
        let made = replicas::follow_changes(self, outcome.changes);
        if may_be_gone {
            self.core.note_departures(outcome.leads.is_some());
        }
        for (key, is_committed) in outcome.released {
            self.on_committed(key, is_committed, &made);
        }
        self.resume();
        routing::judge_again(self);
        self.settle_doubts(replica);
        // All of these may propose records, which come before this node's own.
        self.resume();
        let applied = self.core.controller.group.applied();
        if let Some((_, first, end)) = self.core.allocating.take_if(|block| block.0 <= applied) {
            self.core.producer_ids = (first, end);
            self.grant_producer_ids();
        }
        self.core.peers.grant(applied);
        self.coordinators.look_for_groups(&mut self.core);
        self.resume();
        replicas::register(self);
        self.logins.begin(&mut self.core);
        let log_bytes = self.core.options.settings.metadata_log_bytes.unsigned_abs();
        self.core.is_controller_dirty |= self.core.controller.trim_if_large(log_bytes);
    }

    /// Goes on with a request whose metadata records are committed, or lost.
    fn on_committed(&mut self, key: RequestKey, is_committed: bool, made: &[GroupId]) {
        // The client may be gone, and what it did is done all the same.
        let done = self.audit.settle(key, is_committed);
        if let Some(done) = done.filter(|_| self.core.access.keeps_records()) {
            self.access_log.take(&mut self.core, &done.records());
        }
        let Some(parked) = self.core.parked_mut(key) else { return };
        if !is_committed {
            return routing::end_wait(self, key);
        }
        let (Parked::Commit { outstanding, .. }
        | Parked::Metadata { outstanding, .. }
        | Parked::FindCoordinator { outstanding, .. }) = parked
        else {
            return;
        };
        *outstanding = made.len();
        if made.is_empty() {
            return api::waiting::answer_decided(self, key);
        }
        for group in made {
            let Some(topic) = self.core.controller.image.topic(Uuid(group.topic_id)) else {
                self.core.on_leader(key); // it was deleted at once
                continue;
            };
            let here = self.core.local_replica(topic, group.partition);
            match here.and_then(|replica| self.core.partitions.get_mut(&replica)) {
                Some(partition) => partition.creators.push(key),
                None => self.core.peers.expect_leader(*group, key),
            }
        }
    }
}
