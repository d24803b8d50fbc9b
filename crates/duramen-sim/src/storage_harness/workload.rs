//! # Room card: storage workload
//!
//! Purpose:    submit what a node might, as Raft would order it.
//! Owns:       the choice of ops and payloads.
//! Interface:  [`World::submit_something`].
//! Invariants: commits, images, memberships and trims never pass what was reported persisted;
//!             conflicts never reach them; terms only grow.
//! Never:      ops that no correct node submits.
//! Tests:      with the harness.
//! Start at:   [`World::submit_something`].

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_storage::op::{Append, ConfState, Content, HardState, Identity, LogEntry};
use duramen_storage::{Descriptor, Op, OpKind, ReplicaId};

use super::{IN_FLIGHT_MAX, World};
use crate::batch::Records;
use crate::model::{ModelEntry, ModelOp, ReplicaModel, State};
use crate::trace::tell;

const SEGMENT_BYTES: u64 = 16 * 1024;
const TOPICS: u64 = 4;

impl World {
    pub(super) fn submit_something(&mut self) {
        let all: Vec<usize> =
            (0..self.replicas.len()).filter(|at| !self.replicas[*at].deleted).collect();
        let is_live = |at: &usize| !self.unrestored.contains(&self.replicas[*at].id);
        let live: Vec<usize> = all.iter().copied().filter(is_live).collect();
        if live.is_empty() || (live.len() < self.profile.replicas_max && self.work.chance(60)) {
            return self.create();
        }
        if !self.wants.is_empty() && self.work.chance(400) {
            let at = self.work.index(self.wants.len());
            let wanted = self.wants.swap_remove(at);
            if let Some(at) = live.iter().find(|at| self.replicas[**at].id == wanted) {
                return self.answer_want(*at);
            }
        }
        if self.work.chance(self.profile.delete) {
            let at = *self.work.pick(&all);
            return self.delete(at);
        }
        let at = *self.work.pick(&live);
        match self.work.below(20) {
            0 => self.conf(at),
            1 => self.trim(at),
            2 => self.image(at),
            3..=4 => self.hard_state_alone(at),
            _ if self.full || self.bytes_in_flight() >= IN_FLIGHT_MAX => self.hard_state_alone(at),
            _ => self.append(at),
        }
    }

    fn bytes_in_flight(&self) -> u64 {
        self.in_flight.values().sum()
    }

    fn ticket(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn submit(&mut self, replica: ReplicaId, kind: OpKind) {
        self.report.ops += 1;
        tell(|| format!("submit {}: {}", replica.0, brief(&kind)));
        self.storage().submit(Op { replica, kind });
    }

    fn create(&mut self) {
        let number = self.work.below(TOPICS);
        let rest = self.profile.topic_bytes.saturating_sub(1);
        let topic = format!("t{number:x<rest$}");
        let partition = i32::from(self.work.chance(300));
        let taken = self.replicas.iter().any(|model| {
            !model.deleted && model.identity.topic == topic && model.identity.partition == partition
        });
        if taken || self.full {
            return;
        }
        let ticket = self.ticket();
        let id = ReplicaId(1000 + ticket);
        let mut topic_id = [0; 16];
        topic_id[..8].copy_from_slice(&ticket.to_be_bytes());
        let identity = Identity { topic, topic_id, partition };
        let voters = if self.work.chance(500) { vec![id.0] } else { vec![1, 2, id.0] };
        let conf = ConfState { applied: 1, voters, ..ConfState::default() };
        let model = ReplicaModel::new(id, identity.clone(), conf.clone(), ticket);
        self.replicas.push(model);
        self.submit(id, OpKind::Create { ticket, identity, conf });
    }

    fn delete(&mut self, at: usize) {
        let now = self.ticket();
        let model = &mut self.replicas[at];
        model.deleted = true;
        let id = model.id;
        self.unrestored.remove(&id);
        if model.created {
            self.deletions.push((id, now));
        } // else its creation may be waiting for its name, and the deletion behind it
        self.submit(id, OpKind::Delete);
    }

    fn conf(&mut self, at: usize) {
        let model = &mut self.replicas[at];
        let applied = applied(model);
        if applied <= model.tip.conf.applied {
            return;
        }
        let mut conf = ConfState { applied, ..model.tip.conf.clone() };
        conf.learners = vec![self.work.below(1000)];
        conf.auto_leave = self.work.chance(500);
        conf.move_number += self.work.below(3);
        model.submit(ModelOp::Conf(conf.clone()), None);
        let id = model.id;
        self.submit(id, OpKind::Conf { conf });
    }

    fn trim(&mut self, at: usize) {
        let model = &mut self.replicas[at];
        let end = model.tip.end_offset_at(applied(model));
        let start = model.tip.log_start;
        if end <= start {
            return;
        }
        let span = u64::try_from(end - start).expect("it is positive");
        let trimmed = self.work.between(1, span);
        // One of four goes to the end.
        let trimmed = if trimmed > span / 4 * 3 { span } else { trimmed };
        let log_start = start + i64::try_from(trimmed).expect("small");
        model.submit(ModelOp::Trim(log_start), None);
        let id = model.id;
        self.submit(id, OpKind::Trim { log_start });
    }

    /// Writes the snapshot that storage asked for: at the newest applied index, even if that is no newer.
    pub(super) fn answer_want(&mut self, at: usize) {
        let model = &self.replicas[at];
        let (index, image) = model.tip.image.clone();
        if applied(model) > index {
            return self.image(at);
        }
        let id = model.id;
        self.submit(id, OpKind::Image { index, image });
    }

    pub(super) fn image(&mut self, at: usize) {
        let model = &mut self.replicas[at];
        let safe = applied(model);
        let low = model.tip.image.0;
        if safe <= low {
            return;
        }
        let newest = self.work.chance(700);
        let index = if newest { safe } else { self.work.between(low + 1, safe) };
        let size = *self.work.pick(&[0, 20, 300, 3000, 9000]);
        let image = Bytes::from(self.work.bytes(size));
        model.submit(ModelOp::Image(index, image.clone()), None);
        let id = model.id;
        self.submit(id, OpKind::Image { index, image });
    }

    /// Writes hard state alone: a commit that rises, a new term, a vote.
    fn hard_state_alone(&mut self, at: usize) {
        let ticket = self.ticket();
        let commit = self.commit(at);
        let model = &mut self.replicas[at];
        let mut hard_state = HardState { commit, ..model.tip.hard_state };
        let must_sync = self.work.chance(400);
        if must_sync {
            hard_state.term += self.work.below(2);
            hard_state.vote = self.work.below(4);
        }
        let op = ModelOp::Write { appends: Vec::new(), hard_state: Some(hard_state) };
        model.submit(op, Some((ticket, must_sync)));
        let id = model.id;
        let hard_state = Some(hard_state);
        self.submit(id, OpKind::Write { ticket, appends: Vec::new(), hard_state, must_sync });
    }

    /// Returns a commit index that may be true now: past the persisted index only with more voters.
    fn commit(&mut self, at: usize) -> u64 {
        let model = &self.replicas[at];
        let known = if model.tip.conf.voters.len() > 1 && self.work.chance(300) {
            model.tip.last_index()
        } else {
            model.safe_index()
        };
        let before = model.tip.hard_state.commit;
        if self.work.chance(600) { before.max(known) } else { before }
    }

    fn append(&mut self, at: usize) {
        let ticket = self.ticket();
        let commit = self.commit(at);
        let mut hard_state = self.replicas[at].tip.hard_state;
        let before = hard_state;
        let mut state = self.replicas[at].tip.clone();
        let floor = state.committed();
        if self.work.chance(self.profile.conflict) && state.last_index() > floor {
            let from = self.work.between(floor + 1, state.last_index());
            state.entries.truncate(usize::try_from(from - 2).expect("small"));
            hard_state.term += 1;
        } else if self.work.chance(30) {
            hard_state.term += self.work.between(1, 3);
        }
        if self.work.chance(500) {
            hard_state.commit = commit.min(state.last_index()).max(hard_state.commit);
        }
        let mut appends = Vec::new();
        for _ in 0..self.work.between(1, 4) {
            let entry = Arc::new(self.entry(at, &state, hard_state.term));
            state.entries.push(Arc::clone(&entry));
            appends.push(entry);
        }
        let hard_state = (hard_state != before).then_some(hard_state);
        let model = &mut self.replicas[at];
        let id = model.id;
        let bytes = appends.iter().map(|entry| entry.payload.len() as u64).sum();
        self.in_flight.insert((id, ticket), bytes);
        model.submit(ModelOp::Write { appends: appends.clone(), hard_state }, Some((ticket, true)));
        let appends = appends
            .iter()
            .map(|model| Append { entry: model.entry.clone(), payload: model.payload.clone() })
            .collect();
        self.submit(id, OpKind::Write { ticket, appends, hard_state, must_sync: true });
    }

    fn entry(&mut self, at: usize, state: &State, term: u64) -> ModelEntry {
        let index = state.last_index() + 1;
        if self.work.chance(150) {
            let size = self.work.index(60);
            let bytes = Bytes::from(self.work.bytes(size));
            let entry = LogEntry { index, term, content: Content::Internal(bytes) };
            return ModelEntry { entry, payload: Bytes::new(), records: None };
        }
        let records = self.records();
        let records = self.records_held(at).unwrap_or(records);
        let payload = Bytes::from(records.encode(state.end_offset(), term));
        let active = state.segments().last().map_or(SEGMENT_BYTES, |segment| segment.size);
        let starts = active + payload.len() as u64 > SEGMENT_BYTES || self.work.chance(20);
        let descriptor = Descriptor::of_batch(&payload, starts).expect("the builder is right");
        let entry = LogEntry { index, term, content: Content::Batch(descriptor) };
        ModelEntry { entry, payload, records: Some(records) }
    }

    fn records(&mut self) -> Records {
        let large = self.work.chance(self.profile.large);
        let size = if large { self.work.between(3000, 9000) } else { self.work.between(0, 120) };
        let count = if large { 1 } else { self.work.between(1, 6) };
        let now = 1_700_000_000_000 + i64::try_from(self.clock * 50).expect("small");
        let timestamps =
            (0..count).map(|_| now + i64::try_from(self.work.below(400)).expect("small")).collect();
        let value = self.work.bytes(usize::try_from(size).expect("small"));
        let producer = if self.work.chance(300) { (7, 0, 1) } else { (-1, -1, -1) };
        let log_append_time = self.work.chance(100);
        Records { timestamps, value, producer, log_append_time, codec: Codec::None }
    }
}

/// Returns the largest index that may have been applied: committed, and persisted here.
fn applied(model: &ReplicaModel) -> u64 {
    model.safe_index().min(model.tip.hard_state.commit)
}

fn brief(kind: &OpKind) -> String {
    match kind {
        OpKind::Write { ticket, appends, hard_state, must_sync } => {
            let entries: Vec<String> = appends.iter().map(brief_entry).collect();
            format!("write {ticket} [{}] {hard_state:?} {must_sync}", entries.join(", "))
        }
        OpKind::Image { index, image } => format!("image at {index} of {} bytes", image.len()),
        other => format!("{other:?}"),
    }
}

fn brief_entry(append: &Append) -> String {
    let LogEntry { index, term, content } = &append.entry;
    match content {
        Content::Internal(_) => format!("{index}@{term}"),
        Content::Batch(batch) => {
            let roll = if batch.starts_segment { " roll" } else { "" };
            format!("{index}@{term} offset {} of {}{roll}", batch.base_offset, batch.length)
        }
    }
}
