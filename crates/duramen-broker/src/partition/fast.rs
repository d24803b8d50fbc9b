//! # Room card: fast appends
//!
//! Purpose:    take batches that clients send to every member of a stretch at once.
//! Owns:       the batches that this replica holds, the stretch that its leader has open, the clients that wait.
//! Interface:  [`Partition::append_fast`], [`Partition::ask_fast`].
//! Invariants: a client hears that a batch is held once the hold is on disk. The leader counts a batch only in a
//!             stretch whose Open is applied, and while no other change is proposed. Nothing is refused for good here.
//! Never:      the choice of members (`members.rs`), what a new leader takes over (`settling.rs`), what a former one
//!             keeps (`rescue.rs`).
//! Tests:      `node/tests/fast.rs`; `duramen-sim`.
//! Start at:   [`Partition::append_fast`].

use duramen_protocol::ErrorCode;
use duramen_protocol::batch::{self, TimestampType};
use duramen_storage::op::{HoldId, LogEntry, Stretch};
use duramen_storage::sabotage::{self, Bug};

use super::fast_state::Said;
use super::holds::Holding;
use super::internal::Internal;
use super::{Acks, Appended, Effects, Finished, Partition, Slot, Verdict, Waiting, faults};
use crate::checked_batch::{BatchIds, CheckedBatch};
use crate::event::Now;
use crate::limits::{FAST_HELD_BYTES_MAX, FAST_UNCOMMITTED_BYTES_MAX};
use crate::peer::Letter;
use crate::raft::Refused;

/// Statement of an answer about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is promised.
    NotNow = 0,
    /// A follower holds it, synced.
    Held = 1,
    /// The leader has it in its log, synced, and that counts in the stretch.
    Appended = 2,
    /// The log has it for good.
    Committed = 3,
    /// The leader has it in its log, synced, and that does not count in a stretch.
    Uncounted = 4,
}

/// Immediate result of a fast append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fast {
    /// A [`super::Finished`] will come. Without an error this is then true of the batch.
    Waits(Outcome),
    /// The batch is committed.
    Committed {
        /// Its place.
        base_offset: i64,
    },
    /// Nothing was done, for this reason.
    NotNow(&'static str),
}

/// A stretch that is open here, for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenStretch {
    pub(crate) stretch: Stretch,
    /// Its members as peers, the leader first.
    pub(crate) members: Vec<u64>,
}

impl Partition {
    /// Takes a batch that a client sends to all members of a stretch: as a follower to hold, as the leader to append.
    pub(crate) fn append_fast(
        &mut self,
        now: Now,
        stretch: Stretch,
        batch: CheckedBatch,
        slot: Slot,
    ) -> Fast {
        if self.group.failure().is_some() {
            return Fast::NotNow("the replica has failed");
        }
        if self.producers.is_open(batch.header.producer_id) {
            return Fast::NotNow("the producer has an open transaction");
        }
        if self.group.is_elected() {
            self.append_in_stretch(now, stretch, batch, slot)
        } else {
            self.hold(now, stretch, batch, slot)
        }
    }

    fn append_in_stretch(
        &mut self,
        now: Now,
        stretch: Stretch,
        batch: CheckedBatch,
        slot: Slot,
    ) -> Fast {
        if !self.group.is_serving() || self.group.is_moving() {
            return Fast::NotNow("the leader begins or ends its term");
        }
        if self.fast.open != Some(stretch) {
            return Fast::NotNow("no such stretch is open");
        }
        if self.lacks_replicas() {
            return Fast::NotNow("too few replicas are in sync");
        }
        if let Verdict::Refuse(_) = self.verdict(&batch.header) {
            return Fast::NotNow("the batch is not its producer's next");
        }
        let counts = self.group.uncommitted_bytes() <= FAST_UNCOMMITTED_BYTES_MAX;
        self.fast.used_us = now.mono_us;
        let last = self.group.last_index();
        let appended = self.produce(now, batch, Acks::Own, slot);
        if self.group.last_index() > last {
            self.group.note_shared(self.group.last_index());
        }
        match appended {
            Appended::Waits { .. } if counts => Fast::Waits(Outcome::Appended),
            Appended::Waits { .. } => Fast::Waits(Outcome::Uncounted),
            Appended::Done { base_offset } => Fast::Committed { base_offset },
            Appended::Busy(why) => Fast::NotNow(why),
            Appended::Objected { .. } | Appended::Refused(..) | Appended::Faulty(_) => {
                Fast::NotNow("the leader refuses the batch; wait=1 tells why")
            }
        }
    }

    fn hold(&mut self, now: Now, stretch: Stretch, batch: CheckedBatch, slot: Slot) -> Fast {
        if let Some(why) = self.obstacle_to_holding(stretch) {
            return Fast::NotNow(why);
        }
        let CheckedBatch { mut bytes, header, summary, .. } = batch;
        let bytes_max = usize::try_from(self.settings.max_message_bytes).unwrap_or(0);
        let is_faulty = faults::of(&self.settings, now.wall_ms, &summary).is_some();
        if bytes.len() > bytes_max || is_faulty {
            return Fast::NotNow("the topic's settings do not let it in; wait=1 tells why");
        }
        match self.fast.holds.judge(stretch, &header, &self.producers) {
            Holding::Committed { base_offset } => Fast::Committed { base_offset },
            Holding::NotNow(_) => Fast::NotNow("the batch is not its producer's next here"),
            Holding::Held { is_durable: true, .. } => {
                self.fast.over.push(slot);
                Fast::Waits(Outcome::Held)
            }
            Holding::Held { id, is_durable: false } => {
                self.fast.waiting.entry(id).or_default().push(slot);
                Fast::Waits(Outcome::Held)
            }
            Holding::Take if self.fast.holds.bytes() + bytes.len() > FAST_HELD_BYTES_MAX => {
                Fast::NotNow("too much is held")
            }
            Holding::Take => {
                // A leader that takes the batch over does not read its records again.
                if header.max_timestamp != summary.max_timestamp
                    || header.attributes.timestamp_type() == TimestampType::LogAppendTime
                {
                    let time = summary.max_timestamp;
                    batch::restamp(&mut bytes, TimestampType::CreateTime, time);
                }
                let (id, op) = self.fast.holds.take(stretch, &header, bytes.freeze());
                self.fast.ops.push(op);
                self.fast.waiting.entry(id).or_default().push(slot);
                Fast::Waits(Outcome::Held)
            }
        }
    }

    /// Returns the reason why this follower holds nothing in a stretch now, if there is one.
    fn obstacle_to_holding(&self, stretch: Stretch) -> Option<&'static str> {
        let own = self.group.id().0;
        let current = self.stretches.current().filter(|it| it.at == stretch);
        let is_member = |members: &[u64]| {
            let leads = members.first() == Some(&own);
            members.contains(&own) && (!leads || sabotage::is(Bug::ExLeaderHolds))
        };
        match current {
            _ if self.group.is_beginning() => Some("the log begins anew here"),
            _ if self.group.term() != stretch.term => Some("the stretch is of another term"),
            None if sabotage::is(Bug::NoBarrier) => None,
            None => Some("the stretch is not the last one here"),
            Some(current) if !is_member(&current.members) => {
                Some("this replica is no member that holds")
            }
            Some(_) => None,
        }
    }

    /// Asks after a batch that was sent before.
    pub(crate) fn ask_fast(&mut self, ids: BatchIds, slot: Slot) -> Fast {
        if !self.group.is_serving() {
            return Fast::NotNow("another replica leads");
        }
        let BatchIds { producer_id, producer_epoch, first_sequence, .. } = ids;
        let count = ids.count();
        match self.producers.check(producer_id, producer_epoch, first_sequence, count) {
            Verdict::Duplicate { base_offset, uncommitted: None } => {
                Fast::Committed { base_offset }
            }
            Verdict::Duplicate { base_offset, uncommitted: Some(index) } => {
                self.wait(index, Acks::All, Waiting { slot, base_offset }, -1);
                Fast::Waits(Outcome::Committed)
            }
            Verdict::Append | Verdict::Refuse(_) => Fast::NotNow("the batch is not known here"),
        }
    }

    /// Tells whether an Open or Close of this leader is not applied yet.
    #[cfg(test)]
    pub(crate) fn is_changing_stretch(&self) -> bool {
        self.fast.opening.is_some()
    }

    /// Describes the last change of its stretches that was applied.
    #[cfg(test)]
    pub(crate) fn stretch_lines(&self) -> Vec<String> {
        self.stretches.lines().collect()
    }

    /// Begins a stretch with these members.
    #[cfg(test)]
    pub(crate) fn open_with(&mut self, members: Vec<u64>) -> Option<Stretch> {
        let index = self.propose_change(&Internal::Open { members }).ok()?;
        Some(Stretch { term: self.group.term(), index })
    }

    /// Ends the stretch that the log is in, if it is in one. True if something was proposed.
    pub(crate) fn close_stretch(&mut self) -> bool {
        let is_open = self.stretches.current().is_some_and(|it| !it.members.is_empty());
        is_open && self.obstacle().is_none() && self.propose_change(&Internal::Close).is_ok()
    }

    /// Tells whether the log is in a stretch, as far as this replica has it.
    pub(crate) fn is_in_stretch(&self) -> bool {
        let last = [self.stretches.applied(), self.stretches.current()];
        last.iter().flatten().any(|it| !it.members.is_empty())
    }

    /// Proposes to begin or end a stretch. From now on nothing counts in the one before.
    pub(super) fn propose_change(&mut self, change: &Internal) -> Result<u64, ErrorCode> {
        let index = self.group.propose_internal(&change.encode()).map_err(|it| match it {
            Refused::NotLeader => ErrorCode::NotLeaderOrFollower,
            Refused::Failed => ErrorCode::KafkaStorageError,
            Refused::Full => ErrorCode::NotEnoughReplicas,
        })?;
        self.fast.opening = Some(index);
        self.group.share_with(Vec::new());
        if !sabotage::is(Bug::OldStretchCounts) {
            self.fast.open = None;
        }
        if sabotage::is(Bug::NoBarrier) {
            self.fast.open = Some(Stretch { term: self.group.term(), index });
        }
        self.stretches.note_own(Stretch { term: self.group.term(), index }, change);
        Ok(index)
    }

    /// Returns the stretch that is open here: its leader takes batches of clients.
    pub(crate) fn open_here(&self) -> Option<OpenStretch> {
        let stretch = self.fast.open?;
        let current = self.stretches.current().filter(|it| it.at == stretch)?;
        Some(OpenStretch { stretch, members: current.members.clone() })
    }

    /// Takes in that a hold is on disk. Returns the clients that waited for it.
    pub(crate) fn on_held(&mut self, id: HoldId) -> Vec<Finished> {
        let op = self.fast.holds.on_held(id);
        self.fast.ops.extend(op);
        let waited = self.fast.waiting.remove(&id).unwrap_or_default();
        waited.into_iter().map(|slot| self.finished(slot, ErrorCode::None)).collect()
    }

    fn finished(&self, slot: Slot, error: ErrorCode) -> Finished {
        Finished { slot, error, base_offset: -1, log_start: self.log_start }
    }

    /// Takes a letter of a peer, which may leave out what this replica holds.
    pub(crate) fn hear(&mut self, letter: Letter) {
        let holds = &self.fast.holds;
        self.group.hear(letter, |batch, term| holds.payload_of(batch, term));
    }

    /// Hears letters that waited for a hold.
    pub(super) fn hear_late(&mut self) {
        let holds = &self.fast.holds;
        let lacked = self.group.hear_late(|batch, term| holds.payload_of(batch, term));
        self.fast.said.extend(lacked.map(|(leader, term)| Said::Lacks { leader, term }));
    }

    /// Sends whole letters to a follower that lacks what was left out.
    pub(crate) fn on_lack(&mut self, peer: u64, term: u64) {
        if self.group.is_elected() && self.group.term() == term {
            self.group.send_whole(peer);
        }
    }

    /// Notes an applied entry of ours: it may begin or end a stretch.
    pub(super) fn follow_change(&mut self, entry: &LogEntry) {
        if !self.stretches.apply(entry) {
            return;
        }
        let Some(applied) = self.stretches.applied() else { return };
        let (at, members) = (applied.at, applied.members.clone());
        let is_open = !members.is_empty();
        self.fast.ops.extend(self.fast.holds.on_change(at));
        if self.fast.opening == Some(at.index) && self.fast.led == Some(at.term) {
            self.fast.opening = None;
            self.fast.open = is_open.then_some(at);
            if is_open {
                self.fast.counts.begun += 1;
                self.group.begin_counting();
                self.group.share_with(members);
            }
        }
    }

    /// Lets go of what an image tells to be committed: the log begins anew with it, or this replica has just started.
    pub(super) fn drop_known_holds(&mut self) {
        if let Some(applied) = self.stretches.applied() {
            self.fast.ops.extend(self.fast.holds.on_change(applied.at));
        }
        self.fast.ops.extend(self.fast.holds.on_image(&self.producers));
    }

    /// Follows the log and this replica's role in it, at the end of a turn.
    pub(super) fn follow_stretch(&mut self, now: Now, effects: &mut Effects) {
        if self.group.failure().is_none() {
            self.follow_role();
            self.time_voters(now);
            self.tend_rescue();
            self.answer_leader();
            effects.goes_on |= self.can_settle();
        }
        effects.fast = std::mem::take(&mut self.fast.counts);
        effects.fast.left_out = self.group.take_left_out();
        let over = std::mem::take(&mut self.fast.over);
        effects.finished.extend(over.into_iter().map(|slot| self.finished(slot, ErrorCode::None)));
    }

    /// Ends the waits for holds: the replica is being deleted.
    pub(super) fn end_holding(&mut self, error: ErrorCode, effects: &mut Effects) {
        let waiting = std::mem::take(&mut self.fast.waiting).into_values().flatten();
        let over = std::mem::take(&mut self.fast.over);
        let all = waiting.chain(over);
        effects.finished.extend(all.map(|slot| self.finished(slot, error)));
    }

    /// Returns the bytes of the batches that this replica holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.fast.holds.bytes()
    }
}
