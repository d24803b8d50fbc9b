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
use crate::event::{Action, Event, Now, RequestKey};
use crate::node::{Node, Parked, Signal, Timer};
use crate::partition::Effects;
use crate::peer::Frame;
use crate::raft::GroupId;
use crate::session::{Prepared, RequestContext};

mod routing;

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
        self.resume();
        self.fire_timers();
        debug_assert!(self.signals.is_empty(), "a step handles all that it caused");
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
                && self.signals.is_empty()
            {
                break;
            }
            self.resume();
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

    /// Hands each signal to the API whose request goes on. Signals that this causes come before the rest.
    fn resume(&mut self) {
        while let Some(signal) = self.signals.pop_front() {
            let rest = self.signals.len();
            match signal {
                Signal::Judge { key, context, request } => self.judge(key, context, *request),
                Signal::Certain { key, context, request } => {
                    self.judge_certain(key, context, *request);
                }
                signal => api::waiting::resume(self, signal),
            }
            let caused = self.signals.len() - rest;
            self.signals.rotate_right(caused);
        }
    }

    fn on_request(&mut self, key: RequestKey, context: RequestContext, request: Box<Prepared>) {
        self.counters.requests += 1;
        self.begin_time(key, &context);
        if api::needs_no_state(&request) {
            return self.judge(key, context, *request);
        }
        if let Some((context, request)) = self.hold(key, context, request) {
            self.judge(key, context, *request);
        }
    }

    fn on_peer(&mut self, frame: Frame) {
        let Some(frame) = self.hear_of(frame) else { return };
        self.resume();
        self.on_forwards(&frame);
        // A forwarded request is decided on before the letters change what this node knows.
        self.resume();
        self.on_frame(frame);
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
                Timer::DeadLetters => self.on_burials_timer(),
                Timer::Request(key) => self.end_wait(key),
            }
            self.resume();
        }
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
        if is_settled {
            self.note_opened(replica);
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
        self.resume();
        self.judge_again();
        self.settle_doubts(replica);
        // All of these may propose records, which come before this node's own.
        self.resume();
        let applied = self.controller.group.applied();
        if let Some((_, first, end)) = self.allocating.take_if(|block| block.0 <= applied) {
            self.producer_ids = (first, end);
            self.grant_producer_ids();
        }
        self.peers.grant(applied);
        self.look_for_groups();
        self.resume();
        self.register();
        let log_bytes = self.options.settings.metadata_log_bytes.unsigned_abs();
        self.is_controller_dirty |= self.controller.trim_if_large(log_bytes);
    }

    /// Goes on with a request whose metadata records are committed, or lost.
    fn on_committed(&mut self, key: RequestKey, is_committed: bool, made: &[GroupId]) {
        let Some(parked) = self.parked_mut(key) else { return };
        if !is_committed {
            return self.end_wait(key);
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
}
