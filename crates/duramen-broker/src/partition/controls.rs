//! # Room card: controls of a log
//!
//! Purpose:    a log's fence and snapshot pointer, and the guards of appends.
//! Owns:       [`Controls`], a part of the view; the fence that was proposed last in this term.
//! Interface:  [`Partition::objection`], [`Partition::set_fence`], [`Partition::truncate`].
//! Invariants: fence and pointer follow from the committed log alone. A guard is judged by all that this leader has
//!             proposed, so an append and its guard are one step. A refusal is told only once the state that it was
//!             judged by is committed, and the leader is known to lead.
//! Never:      answers (see `api/native`).
//! Tests:      below; `node/tests/native.rs`; `duramen-sim`.
//! Start at:   [`Partition::objection`].

use std::fmt;

use bytes::{Buf, BufMut, Bytes};
use duramen_protocol::ErrorCode;
use duramen_storage::sabotage::{self, Bug};

use super::internal::Internal;
use super::pointers::{put_pointer, put_short, take_pointer, take_short};
use super::{Acks, Appended, Partition, Slot, Waiting};
use crate::guard::{Guard, Last, Position};
use crate::limits::FENCE_BYTES_MAX;
use crate::native::Pointer;
use crate::raft::Refused;

/// Fence and pointer of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controls {
    /// Token of whoever may append; empty for none.
    pub(crate) fence: Bytes,
    /// Pointer that the latest truncation kept.
    pub(crate) pointer: Option<Pointer>,
    /// Log start of that truncation.
    pointed: i64,
    /// Log start of the latest truncation that names the last record before it, and the leader epoch of that record.
    removed: (i64, i32),
}

/// Reason why a guard does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objection {
    /// The token is not the log's fence.
    Fenced,
    /// The log ends with this record, without its entry.
    LogEnds(Option<Position>),
    /// The queue ends with this element.
    QueueEnds(Option<Position>),
    /// The queue has no such element.
    NoElement,
    /// The content of the element is at this offset.
    Version(i64),
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ending, last) = match self {
            Self::Fenced => return f.write_str("the token is not the log's fence"),
            Self::LogEnds(last) => ("log", last),
            Self::QueueEnds(last) => ("queue", last),
            Self::NoElement => return f.write_str("the queue has no such element"),
            Self::Version(content) => return write!(f, "the element's version is {content}"),
        };
        match last {
            Some(last) => write!(f, "the {ending} ends with {last}"),
            None => write!(f, "the {ending} ends with none"),
        }
    }
}

impl Controls {
    /// Tells whether the log never had a fence or pointer.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Executes a truncation. An earlier one that comes again, after a start, changes nothing.
    pub(super) fn truncate(&mut self, offset: i64, term: i32, pointer: Option<Pointer>) {
        if offset >= self.removed.0 {
            self.removed = (offset, term);
        }
        let is_new = pointer.is_some() && offset >= self.pointed;
        if is_new || sabotage::is(Bug::PointerLost) {
            (self.pointed, self.pointer) = (offset, pointer);
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_short(out, &self.fence);
        out.put_i64(self.removed.0);
        out.put_i32(self.removed.1);
        out.put_i64(self.pointed);
        put_pointer(out, self.pointer.as_ref());
    }

    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let fence = take_short(bytes)?;
        let removed = (bytes.try_get_i64().ok()?, bytes.try_get_i32().ok()?);
        let pointed = bytes.try_get_i64().ok()?;
        let pointer = take_pointer(bytes)?;
        let is_sane = fence.len() <= FENCE_BYTES_MAX && pointed >= 0 && removed.0 >= 0;
        is_sane.then_some(Self { fence, pointer, pointed, removed })
    }

    /// Describes both for people, one a line.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let fence =
            (!self.fence.is_empty()).then(|| format!("fence {}", self.fence.escape_ascii()));
        let pointer = self.pointer.as_ref().map(|it| {
            let (uri, note) = (it.uri.escape_debug(), it.note.escape_debug());
            format!("pointer {uri}  kept by the truncation below {}  note {note}", self.pointed)
        });
        fence.into_iter().chain(pointer)
    }
}

fn code_of(refused: Refused) -> ErrorCode {
    match refused {
        Refused::NotLeader => ErrorCode::NotLeaderOrFollower,
        Refused::Failed => ErrorCode::KafkaStorageError,
        Refused::Full => ErrorCode::NotEnoughReplicas,
    }
}

impl Partition {
    /// Returns the leader epoch under which the record at `offset` was appended; also of the last one, if all are
    /// removed. -1 if it is not known.
    pub(crate) fn term_at(&self, offset: i64) -> i32 {
        let (start, term) = self.controls.removed;
        match self.epoch_at(offset) {
            -1 if offset.checked_add(1) == Some(start) => term,
            known => known,
        }
    }

    /// Returns the entry of a trim. The entry names the epoch of the last record that goes, if none may be left, or if
    /// the log keeps a pointer.
    pub(super) fn trim_entry(&self, offset: i64, pointer: Option<Pointer>) -> Internal {
        let is_all = offset > 0 && offset == self.committed;
        if !is_all && pointer.is_none() {
            return Internal::Trim { offset };
        }
        Internal::Truncate { offset, term: self.term_at(offset - 1), pointer }
    }

    /// Returns the token that the next append has to carry, after all that was proposed.
    fn fence(&self) -> &Bytes {
        if sabotage::is(Bug::FenceOfCommitted) {
            return &self.controls.fence;
        }
        self.fencing.as_ref().map_or(&self.controls.fence, |(_, token)| token)
    }

    /// Returns the position of the last record after all that was proposed, without its entry.
    fn proposed_last(&self) -> Option<Position> {
        let offset = self.group.end_offset() - 1;
        (offset >= 0).then(|| Position { term: self.term_at(offset), entry: -1, offset })
    }

    /// Returns the reason why an append with this guard would be refused now, after all that was proposed.
    pub(crate) fn objection(&self, guard: &Guard) -> Option<Objection> {
        if guard.fence.as_ref().is_some_and(|token| token != self.fence()) {
            return Some(Objection::Fenced);
        }
        let is_blind = sabotage::is(Bug::GuardOfCommitted);
        let end = if is_blind { self.committed } else { self.group.end_offset() };
        let holds = match guard.last {
            None => true,
            Some(Last::Nothing) => end == 0,
            Some(Last::At(Position { term, offset, .. })) => {
                offset.checked_add(1) == Some(end) && term == self.term_at(offset)
            }
        };
        (!holds).then(|| Objection::LogEnds(self.proposed_last()))
    }

    /// Refuses an append whose guard does not hold. `slot` waits until that is certain.
    pub(crate) fn object(&mut self, reason: Objection, slot: Slot) -> Appended {
        match self.make_certain(slot) {
            Appended::Waits { .. } => Appended::Objected { reason, is_certain: false },
            Appended::Refused(ErrorCode::PolicyViolation, _) => {
                Appended::Objected { reason, is_certain: true }
            }
            other => other,
        }
    }

    /// Has `slot` wait until a judgement is certain: all that it was judged by is committed, and this replica leads. A
    /// refusal with [`ErrorCode::PolicyViolation`] is that certainty, at once or later; so is a result without error.
    pub(crate) fn make_certain(&mut self, slot: Slot) -> Appended {
        let last = self.group.last_index();
        if last > self.group.applied() {
            return self.wait(last, Acks::All, Waiting { slot, base_offset: -1 }, -1);
        }
        if self.group.is_alone() || sabotage::is(Bug::RefusedUncertain) {
            return Appended::Refused(ErrorCode::PolicyViolation, None);
        }
        self.doubted.push(self.group.doubt(), (slot, ErrorCode::PolicyViolation));
        Appended::Waits { append_time_ms: -1 }
    }

    /// Proposes a fence, unless the present one is another than expected, or the new one already. `slot` waits until it
    /// is certain which fence the log has.
    pub(crate) fn set_fence(
        &mut self,
        token: &Bytes,
        expected: Option<&Bytes>,
        slot: Slot,
    ) -> Appended {
        if let Some(code) = self.obstacle() {
            return Appended::Refused(code, None);
        }
        let is_set = self.fence() == token;
        if is_set || expected.is_some_and(|expected| expected != self.fence()) {
            return self.make_certain(slot);
        }
        let entry = Internal::Fence { token: token.clone() }.encode();
        match self.group.propose_internal(&entry) {
            Ok(index) => {
                self.fencing = Some((index, token.clone()));
                self.wait(index, Acks::All, Waiting { slot, base_offset: -1 }, -1)
            }
            Err(refused) => Appended::Refused(code_of(refused), None),
        }
    }

    /// Proposes that offsets below `offset` go and that the log keeps a pointer. `slot` waits until that is committed,
    /// or until it is certain that the log begins later already.
    pub(crate) fn truncate(&mut self, offset: i64, pointer: Pointer, slot: Slot) -> Appended {
        if let Some(code) = self.obstacle() {
            return Appended::Refused(code, None);
        }
        if offset > self.committed || offset < 0 {
            return Appended::Refused(ErrorCode::OffsetOutOfRange, None);
        }
        let is_kept = self.controls.pointer.as_ref() == Some(&pointer);
        if offset < self.log_start.max(self.trimming) || offset == self.log_start && is_kept {
            return self.make_certain(slot);
        }
        if self.keeps_trim(offset, Some(&pointer), Some(slot)) {
            return Appended::Waits { append_time_ms: -1 };
        }
        let entry = self.trim_entry(offset, Some(pointer)).encode();
        match self.group.propose_internal(&entry) {
            Ok(index) => {
                self.trimming = self.trimming.max(offset);
                self.wait(index, Acks::All, Waiting { slot, base_offset: -1 }, -1)
            }
            Err(refused) => Appended::Refused(code_of(refused), None),
        }
    }

    /// Executes a change of the fence.
    pub(super) fn apply_fence(&mut self, index: u64, token: Bytes) {
        self.controls.fence = token;
        self.fencing.take_if(|(proposed, _)| *proposed <= index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer() -> Pointer {
        Pointer {
            uri: "s3://bucket/7".to_owned(),
            position: Some(Position { term: 7, entry: 4711, offset: 4713 }),
            sha256: Bytes::from_static(&[9; 32]),
            note: "daily".to_owned(),
        }
    }

    #[test]
    fn controls_survive_their_encoding_and_no_prefix_of_it_decodes() {
        let all = [
            Controls::default(),
            Controls { fence: Bytes::from_static(b"one"), ..Controls::default() },
            Controls { pointer: Some(pointer()), pointed: 12, ..Controls::default() },
            Controls { pointer: Some(Pointer::default()), ..Controls::default() },
            Controls { removed: (9, 3), ..Controls::default() },
        ];
        for controls in all {
            let mut bytes = Vec::new();
            controls.encode(&mut bytes);
            let mut rest = &bytes[..];
            assert_eq!(Controls::decode(&mut rest), Some(controls));
            assert!(rest.is_empty());
            for end in 0..bytes.len() {
                assert_eq!(Controls::decode(&mut &bytes[..end]), None, "{end} of {bytes:?}");
            }
        }
    }

    #[test]
    fn controls_that_no_log_keeps_do_not_decode() {
        let mut bytes = Vec::new();
        Controls { fence: Bytes::from_static(&[1; 65]), ..Controls::default() }.encode(&mut bytes);
        assert_eq!(Controls::decode(&mut &bytes[..]), None);
        bytes = vec![0; 21];
        bytes.push(2);
        assert_eq!(Controls::decode(&mut &bytes[..]), None);
    }

    #[test]
    fn the_pointer_of_the_furthest_truncation_stays() {
        let mut controls = Controls::default();
        controls.truncate(9, 2, Some(pointer()));
        controls.truncate(5, 1, Some(Pointer::default()));
        assert_eq!((controls.pointed, controls.pointer.clone()), (9, Some(pointer())));
        controls.truncate(12, 3, None);
        assert_eq!((controls.removed, controls.pointed), ((12, 3), 9));
        controls.truncate(12, 3, Some(Pointer::default()));
        assert_eq!((controls.pointer.clone(), controls.pointed), (Some(Pointer::default()), 12));
    }
}
