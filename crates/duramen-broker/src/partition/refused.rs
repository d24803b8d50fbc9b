//! # Room card: refused batches
//!
//! Purpose:    give a producer's batch the refusal of the batch before it, if the producer sent both at once.
//! Owns:       the sequence behind each producer's last batch that this replica refused for a while, and the term.
//! Interface:  [`RefusedBatches::note`], [`RefusedBatches::note_cut`], [`RefusedBatches::judge`],
//!             [`RefusedBatches::forget`].
//! Invariants: a batch follows a refusal once. A leader takes one gap of a producer for such a batch, before it has
//!             appended others of that producer in its term. A gap that stays is told as one.
//! Never:      anything that the log depends on: all of it may be forgotten at any time.
//! Tests:      below; `node/tests/produce.rs`.
//! Start at:   [`RefusedBatches::judge`].
//!
//! A replica may come to lead between two batches, or have room again. Or the leader before refused the first batch,
//! and the second one is here before its retry. Then the second batch leaves a gap. Kafka answers
//! `OUT_OF_ORDER_SEQUENCE_NUMBER`. After that librdkafka begins another epoch, and in it sends all records anew whose
//! end it does not know, of all partitions. Some are then in the log twice.

use std::collections::BTreeMap;

use duramen_protocol::{BatchHeader, ErrorCode};

use super::producers::{Verdict, advance};
use crate::limits::REFUSED_PRODUCERS_MAX;
use crate::raft::Group;

/// Tells whether a batch is refused for the batches that should come before it.
pub(crate) fn leaves_gap(verdict: Verdict) -> bool {
    let codes = [ErrorCode::OutOfOrderSequenceNumber, ErrorCode::UnknownProducerId];
    matches!(verdict, Verdict::Refuse(code) if codes.contains(&code))
}

/// Batches of which the first were refused, and may be sent again.
#[derive(Debug, Default)]
pub(crate) struct RefusedBatches {
    behind: BTreeMap<i64, Behind>,
}

#[derive(Clone, Copy, Debug)]
struct Behind {
    epoch: i16,
    /// The sequence behind the last batch.
    sequence: i32,
    /// The term in which it was refused.
    term: i32,
    code: ErrorCode,
}

impl RefusedBatches {
    /// Notes that a batch was refused in a term, if its producer sends such a batch again.
    pub(crate) fn note(&mut self, header: &BatchHeader, term: i32, code: ErrorCode) {
        let passes = matches!(
            code,
            ErrorCode::NotLeaderOrFollower
                | ErrorCode::NotEnoughReplicas
                | ErrorCode::KafkaStorageError
        );
        if !passes || header.producer_id < 0 || header.base_sequence < 0 {
            return;
        }
        let count = header.last_offset_delta.unsigned_abs() + 1;
        let sequence = advance(header.base_sequence, count);
        self.note_behind(header.producer_id, (header.producer_epoch, sequence), (term, code));
    }

    /// Notes that a new leader's log lacks the last batches of producers: the id and epoch of each, and the sequence
    /// behind it.
    pub(crate) fn note_cut(&mut self, cut: &[(i64, i16, i32)], term: i32) {
        for (id, epoch, sequence) in cut {
            let refused = (term, ErrorCode::NotLeaderOrFollower);
            self.note_behind(*id, (*epoch, *sequence), refused);
        }
    }

    /// Notes the epoch of a producer's refused batch, and the sequence behind it.
    fn note_behind(
        &mut self,
        id: i64,
        (epoch, sequence): (i16, i32),
        (term, code): (i32, ErrorCode),
    ) {
        if self.behind.len() >= REFUSED_PRODUCERS_MAX && !self.behind.contains_key(&id) {
            self.behind.pop_first();
        }
        self.behind.insert(id, Behind { epoch, sequence, term, code });
    }

    /// Returns the refusal of the batch before a batch that leaves a gap, if there was one. `last` is the offset of the
    /// producer's last batch in the log.
    pub(crate) fn judge(
        &mut self,
        header: &BatchHeader,
        group: &Group,
        last: Option<i64>,
    ) -> Option<ErrorCode> {
        let began = group.term_runs().last().map_or(0, |run| run.start_offset);
        // An unknown producer is told so at once, as by Kafka.
        let has_appended = group.is_alone() || last.is_none_or(|last| began <= last);
        self.follow(header, group.epoch(), has_appended)
    }

    /// Does that for a leader that has appended some of the producer's batches in its term, or none. The leader before
    /// may have refused the batch if this one has appended none.
    fn follow(&mut self, header: &BatchHeader, term: i32, has_appended: bool) -> Option<ErrorCode> {
        let last = self.behind.get(&header.producer_id).copied();
        let wanted = (header.producer_epoch, header.base_sequence);
        let before = last.filter(|it| (it.epoch, it.sequence) == wanted);
        let is_told = has_appended || last.is_some_and(|it| it.term == term);
        let code = match before {
            Some(before) => before.code,
            None if is_told => return None,
            None => ErrorCode::NotLeaderOrFollower,
        };
        self.note(header, term, code);
        Some(code)
    }

    /// Notes that a batch of a producer was appended.
    pub(crate) fn forget(&mut self, id: i64) {
        self.behind.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(id: i64, sequence: i32, count: i32) -> BatchHeader {
        let mut builder = duramen_protocol::records::BatchBuilder::new().producer(id, 0, sequence);
        for _ in 0..count {
            let record = duramen_protocol::records::NewRecord::default();
            builder.push(&record).expect("a record");
        }
        BatchHeader::parse(&builder.build().expect("a batch")).expect("a header")
    }

    const AWAY: ErrorCode = ErrorCode::NotLeaderOrFollower;

    #[test]
    fn batches_behind_a_refused_one_are_refused_like_it_and_once() {
        let mut refused = RefusedBatches::default();
        refused.note(&header(7, 4, 3), 1, AWAY);
        assert_eq!(refused.follow(&header(7, 8, 1), 1, true), None, "a batch between is missing");
        assert_eq!(refused.follow(&header(8, 7, 1), 1, true), None, "another producer");
        assert_eq!(refused.follow(&header(7, 7, 2), 1, true), Some(AWAY));
        assert_eq!(refused.follow(&header(7, 9, 1), 1, true), Some(AWAY));
        assert_eq!(refused.follow(&header(7, 7, 2), 1, true), None, "a gap that stays is a gap");
        refused.forget(7);
        assert_eq!(refused.follow(&header(7, 10, 1), 1, true), None);
    }

    #[test]
    fn a_leader_takes_the_first_gap_of_a_term_for_a_batch_behind_a_refused_one() {
        let mut refused = RefusedBatches::default();
        assert_eq!(refused.follow(&header(7, 8, 1), 3, true), None, "it has appended others");
        assert_eq!(refused.follow(&header(7, 8, 1), 3, false), Some(AWAY));
        assert_eq!(refused.follow(&header(7, 9, 1), 3, false), Some(AWAY), "sent at once");
        assert_eq!(refused.follow(&header(7, 8, 1), 3, false), None, "a gap that stays is a gap");
        assert_eq!(refused.follow(&header(7, 8, 1), 4, false), Some(AWAY));
    }

    #[test]
    fn a_batch_that_is_refused_for_good_has_no_followers() {
        let mut refused = RefusedBatches::default();
        refused.note(&header(7, 0, 1), 1, ErrorCode::MessageTooLarge);
        assert_eq!(refused.follow(&header(7, 1, 1), 1, true), None);
    }

    #[test]
    fn sequences_begin_again_behind_the_last_one() {
        let mut refused = RefusedBatches::default();
        refused.note(&header(7, i32::MAX, 1), 1, ErrorCode::NotEnoughReplicas);
        let code = refused.follow(&header(7, 0, 1), 1, true);
        assert_eq!(code, Some(ErrorCode::NotEnoughReplicas));
    }

    #[test]
    fn few_producers_are_remembered() {
        let mut refused = RefusedBatches::default();
        for id in 0..2 * i64::try_from(REFUSED_PRODUCERS_MAX).expect("few") {
            refused.note(&header(id, 0, 1), 1, ErrorCode::NotEnoughReplicas);
        }
        assert_eq!(refused.behind.len(), REFUSED_PRODUCERS_MAX);
    }
}
