//! Trims of a log of queues. Statements about fences and trims of queues must not go with its first records. So a trim
//! waits until the log has repeated them.

use duramen_protocol::BatchHeader;
use duramen_protocol::ErrorCode;
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::Keys;
use duramen_storage::keys::{Statement, batch_of};
use duramen_storage::sabotage::{self, Bug};

use super::{Acks, Appended, Effects, Finished, Partition, Slot};
use crate::event::Now;
use crate::native::Pointer;

/// Trims that wait.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Offset below which the log says nothing of fences and trims that it does not say again behind it.
    below: i64,
    trims: Vec<Trim>,
    /// Trims that ended without an entry, with their results.
    ended: Vec<(Slot, ErrorCode)>,
}

#[derive(Debug)]
struct Trim {
    offset: i64,
    pointer: Option<Pointer>,
    slot: Option<Slot>,
}

impl Partition {
    /// Keeps a trim until the log has said again what would be lost, if that is not known yet.
    pub(super) fn keeps_trim(
        &mut self,
        offset: i64,
        pointer: Option<&Pointer>,
        slot: Option<Slot>,
    ) -> bool {
        let may_lose = self.settings.queue && offset > self.kept.below;
        if !may_lose || sabotage::is(Bug::FenceNotRestated) {
            return false;
        }
        // Retention asks again and again.
        self.kept.trims.retain(|trim| slot.is_some() || trim.slot.is_some());
        self.kept.trims.push(Trim { offset, pointer: pointer.cloned(), slot });
        true
    }

    /// Returns the offset below which nothing may be said of fences and trims alone, for the trims that wait.
    pub(crate) fn wants_kept(&self) -> Option<i64> {
        self.kept.trims.iter().map(|trim| trim.offset).max()
    }

    /// Says statements again, unless their queues may have changed behind `known`.
    pub(crate) fn say_again(
        &mut self,
        now: Now,
        mut statements: Vec<Statement>,
        known: i64,
    ) -> Appended {
        if let Some(code) = self.obstacle() {
            return Appended::Refused(code, None);
        }
        statements.retain(|it| self.fresh_end(key_number(&it.queue)) <= known);
        let mut numbers = statements.iter().map(|it| key_number(&it.queue));
        let Some(number) = numbers.next() else {
            return Appended::Done { base_offset: -1 };
        };
        let others = numbers.collect();
        let bytes = batch_of(now.wall_ms, &statements);
        let header = BatchHeader::parse(&bytes).expect("it was just built");
        let end = self.group.end_offset();
        // Nobody waits for it.
        let slot = Slot::Coordinator { replica: self.group.id(), ticket: 0 };
        let time = header.max_timestamp;
        let appended = self.append_bytes(now, bytes, &header, time, Acks::None, slot);
        if self.group.end_offset() > end {
            let keys = Keys { number: Some(number), others, ..Keys::default() };
            self.fresh.note(self.group.end_offset(), keys);
        }
        appended
    }

    /// Carries out the trims that waited: the log has said again all that it says of fences and trims below an offset.
    pub(crate) fn note_kept(&mut self, below: i64) {
        self.kept.below = self.kept.below.max(below);
        for trim in std::mem::take(&mut self.kept.trims) {
            let Trim { offset, pointer, slot } = trim;
            let appended = match (pointer, slot) {
                (Some(pointer), Some(slot)) => self.truncate(offset, pointer, slot),
                (_, slot) => match self.trim(offset, slot) {
                    Ok(true) => Appended::Waits { append_time_ms: -1 },
                    Ok(false) => Appended::Done { base_offset: -1 },
                    Err(code) => Appended::Refused(code, None),
                },
            };
            let result = match appended {
                Appended::Refused(code, _) if code != ErrorCode::PolicyViolation => code,
                // The log begins later already.
                Appended::Refused(..) | Appended::Done { .. } => ErrorCode::None,
                _ => continue,
            };
            self.kept.ended.extend(slot.map(|slot| (slot, result)));
        }
    }

    /// Tells the results of trims that have ended without an entry, or for which this replica does not lead any more.
    pub(super) fn end_kept(&mut self, effects: &mut Effects) {
        if let Some(code) = self.obstacle() {
            self.drop_kept(code);
        }
        let log_start = self.log_start;
        let ended = self.kept.ended.drain(..);
        effects.finished.extend(ended.map(|(slot, error)| Finished {
            slot,
            error,
            base_offset: -1,
            log_start,
        }));
    }

    /// Ends the trims that wait.
    pub(super) fn drop_kept(&mut self, code: ErrorCode) {
        let trims = std::mem::take(&mut self.kept.trims).into_iter();
        self.kept.ended.extend(trims.filter_map(|trim| Some((trim.slot?, code))));
    }
}
