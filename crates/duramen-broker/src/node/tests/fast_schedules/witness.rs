//! Judgement of fast appends, at the moment a replica says something.

use std::collections::{BTreeMap, BTreeSet};

use duramen_storage::op::{LogEntry, Stretch};

use crate::partition::fast::Outcome;

/// A batch of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Batch {
    pub producer: i64,
    pub sequence: i32,
}

#[derive(Debug, Default)]
pub(super) struct Witness {
    /// Members of every stretch that was proposed, the leader first.
    pub stretches: BTreeMap<Stretch, Vec<u64>>,
    /// Batches that were sent, each with those that were complete before.
    sent: BTreeMap<Batch, BTreeSet<Batch>>,
    answers: BTreeMap<(Stretch, Batch), BTreeSet<u64>>,
    /// Batches that their leader has counted.
    counted: BTreeSet<(Stretch, Batch)>,
    pub complete: BTreeSet<Batch>,
    /// Batches that were refused for good.
    refused: BTreeSet<Batch>,
    /// Complete by the answers of members alone.
    pub fast: usize,
    /// Last term in which a leader served.
    pub served: u64,
    committed: BTreeMap<u64, u64>,
}

impl Witness {
    /// Returns the first sequence of a producer that is not complete, and the first that was not sent.
    pub(super) fn unresolved(&self, producer: i64) -> (i32, i32) {
        let behind = |all: &mut dyn Iterator<Item = &Batch>| {
            let own = all.filter(|it| it.producer == producer);
            own.map(|it| it.sequence + 1).max().unwrap_or(0)
        };
        (behind(&mut self.complete.iter()), behind(&mut self.sent.keys()))
    }

    pub(super) fn send(&mut self, batch: Batch) {
        let complete = &self.complete;
        self.sent.entry(batch).or_insert_with(|| complete.clone());
    }

    pub(super) fn hear(&mut self, replica: u64, stretch: Stretch, batch: Batch, said: Outcome) {
        match said {
            Outcome::Committed => return self.hear_commit(batch),
            Outcome::NotNow | Outcome::Uncounted => return,
            Outcome::Appended => {
                self.counted.insert((stretch, batch));
            }
            Outcome::Held => {}
        }
        self.answers.entry((stretch, batch)).or_default().insert(replica);
        self.note_complete();
    }

    pub(super) fn hear_commit(&mut self, batch: Batch) {
        self.complete.insert(batch);
        self.note_complete();
    }

    /// Clients take batches for complete, each producer's in its order.
    fn note_complete(&mut self) {
        let mut news = true;
        while std::mem::take(&mut news) {
            for ((stretch, batch), answers) in &self.answers {
                let before = Batch { sequence: batch.sequence - 1, ..*batch };
                let is_next = batch.sequence == 0 || self.complete.contains(&before);
                let members = self.stretches.get(stretch).into_iter().flatten();
                let has_all = members.clone().all(|member| answers.contains(member));
                let is_counted = self.counted.contains(&(*stretch, *batch));
                if is_next && has_all && is_counted && self.complete.insert(*batch) {
                    self.fast += 1;
                    news = true;
                }
            }
        }
    }

    /// Notes that a batch was refused for good.
    pub(super) fn refuse(&mut self, batch: Batch) {
        assert!(!self.complete.contains(&batch), "{batch:?} is complete, and refused");
        self.refused.insert(batch);
    }

    /// Judges an answer to a question for the end of the log: the batches in front of it.
    pub(super) fn judge_end(before: &BTreeSet<Batch>, log: &[Batch]) {
        for batch in before {
            assert!(log.contains(batch), "{batch:?} was complete, and is not in front of the end");
        }
    }

    /// Judges the log of a leader that serves.
    pub(super) fn judge(&self, log: &[Batch]) {
        let places: BTreeMap<Batch, usize> = log.iter().copied().zip(0..).collect();
        assert_eq!(places.len(), log.len(), "each batch is there once: {log:?}");
        for batch in &self.refused {
            assert!(!places.contains_key(batch), "{batch:?} was refused for good: {log:?}");
        }
        for batch in &self.complete {
            assert!(places.contains_key(batch), "{batch:?} is complete, and not in {log:?}");
        }
        for (batch, place) in &places {
            if batch.sequence > 0 {
                let before = Batch { sequence: batch.sequence - 1, ..*batch };
                let is_before = places.get(&before).is_some_and(|before| before < place);
                assert!(is_before, "{batch:?} is behind its producer's last one in {log:?}");
            }
            for earlier in &self.sent[batch] {
                let is_before = places.get(earlier).is_some_and(|earlier| earlier < place);
                assert!(is_before, "{batch:?} was sent after {earlier:?} was complete: {log:?}");
            }
        }
    }

    /// Compares committed entries with those of other replicas.
    pub(super) fn compare<'a>(&mut self, entries: impl Iterator<Item = &'a LogEntry>) {
        for entry in entries {
            let term = *self.committed.entry(entry.index).or_insert(entry.term);
            assert_eq!(term, entry.term, "entry {} is committed twice", entry.index);
        }
    }
}
