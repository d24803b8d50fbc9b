//! # Room card: tally
//!
//! Purpose:    decide from answers which batches of a producer are done, as a value without I/O.
//! Owns:       the rule of counting, the order of telling, and the reasons to ask the leader for the commit.
//! Interface:  [`Tally::push`], [`Tally::send`], [`Tally::hear`], [`Tally::resort`], [`Tally::commit`],
//!             [`Tally::take`].
//! Invariants: a batch is complete once one answer says *committed*. Or all members of its stretch have answered, the
//!             leader *appended* and each follower *held*. A batch is sent under one stretch, once. Batches are told in
//!             the order in which they were pushed.
//! Never:      time, connections, and the bytes of batches.
//! Tests:      below.
//! Start at:   [`Tally::hear`].

use std::collections::{BTreeSet, VecDeque};

use crate::node_id::NodeId;

/// A stretch of fast appends, by the term and index of the entry that opened it. A later one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stretch {
    pub(crate) term: i64,
    pub(crate) index: i64,
}

/// A stretch and the brokers that serve it, the leader first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) stretch: Stretch,
    pub(crate) members: Vec<NodeId>,
}

impl Named {
    /// Returns the stretch that an answer names, if it names one with a leader and a follower.
    pub(crate) fn of((term, index): (i64, i64), members: Vec<NodeId>) -> Option<Self> {
        let distinct: BTreeSet<_> = members.iter().collect();
        let are_members = distinct.len() == members.len() && members.len() >= 2;
        let is_whole = term >= 0 && index >= 0 && are_members;
        is_whole.then_some(Self { stretch: Stretch { term, index }, members })
    }
}

/// Statement of one answer about a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing is promised.
    NotNow,
    /// A follower has it on disk, for the stretch.
    Held,
    /// The leader has it on disk, and that counts in the stretch.
    Appended,
    /// The log has it for good, at this offset.
    Committed(i64),
    /// The leader has it on disk, and that counts in no stretch.
    Uncounted,
}

impl Said {
    /// Reads an outcome of an answer. An unknown one promises nothing.
    pub(crate) fn of(outcome: i8, base_offset: i64) -> Self {
        match outcome {
            1 => Self::Held,
            2 => Self::Appended,
            3 => Self::Committed(base_offset),
            4 => Self::Uncounted,
            _ => Self::NotNow,
        }
    }
}

/// Form of a request for the commit of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resort {
    /// With the batch.
    Whole,
    /// With the names of the batch alone: the leader has said that it has it.
    ByIds,
}

/// State of a producer's batches that have not been told yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Number of the oldest batch.
    first: u64,
    rows: VecDeque<Row>,
}

/// A batch that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Its offset, or -1 if none is known.
    pub(crate) offset: i64,
    /// Members were sent the batch, and the leader was not asked for its commit.
    pub(crate) is_fast: bool,
}

#[derive(Debug, Default)]
struct Row {
    sent: Option<Sent>,
    /// Offset of a batch that is committed; -1 where the leader has forgotten it.
    offset: Option<i64>,
    needs_commit: bool,
    /// The leader of the batch's stretch has it in its log.
    is_with_leader: bool,
}

/// A batch on its way to the members of a stretch.
#[derive(Debug)]
struct Sent {
    stretch: Stretch,
    leader: NodeId,
    /// Members whose answer is missing.
    missing: BTreeSet<NodeId>,
}

impl Row {
    fn is_counted(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.missing.is_empty())
    }

    fn is_complete(&self) -> bool {
        self.offset.is_some() || self.is_counted()
    }
}

impl Tally {
    /// Adds a batch behind all others, and returns its number.
    pub(crate) fn push(&mut self) -> u64 {
        self.rows.push_back(Row::default());
        self.first + self.rows.len() as u64 - 1
    }

    /// Notes that a batch goes to all members of a stretch now.
    pub(crate) fn send(&mut self, batch: u64, named: &Named) {
        let row = self.row(batch).expect("only a batch that is not told yet is sent");
        assert!(row.sent.is_none(), "a batch is sent under one stretch, once");
        let missing: BTreeSet<NodeId> = named.members.iter().copied().collect();
        assert!(missing.len() >= 2, "a stretch has a leader and a follower");
        row.sent = Some(Sent { stretch: named.stretch, leader: named.members[0], missing });
    }

    /// Takes in the answer of a broker to a batch that was sent under a stretch. Returns true if the batch is complete
    /// from now on because all members have answered.
    pub(crate) fn hear(&mut self, batch: u64, from: NodeId, under: Stretch, said: Said) -> bool {
        let Some(row) = self.row(batch) else { return false };
        let was_complete = row.is_complete();
        if let Said::Committed(offset) = said {
            row.offset = Some(offset);
            return false;
        }
        let sent = row.sent.as_mut().filter(|sent| sent.stretch == under);
        let Some(sent) = sent else { return false };
        let leads = from == sent.leader;
        match said {
            Said::Appended if leads => {
                sent.missing.remove(&from);
                row.is_with_leader = true;
            }
            Said::Held if !leads => {
                sent.missing.remove(&from);
            }
            _ => {
                row.needs_commit = true;
                row.is_with_leader |= leads && said == Said::Uncounted;
            }
        }
        !was_complete && row.is_counted()
    }

    /// Returns the members whose answer to a batch is missing.
    pub(crate) fn missing(&self, batch: u64) -> impl Iterator<Item = NodeId> {
        let sent = self.at(batch).and_then(|at| self.rows[at].sent.as_ref());
        sent.into_iter().flat_map(|sent| sent.missing.iter().copied())
    }

    /// Notes that nobody should wait for the members alone any more: one was lost or is late, or the stretch is over.
    pub(crate) fn resort(&mut self, batch: u64) {
        if let Some(row) = self.row(batch) {
            row.needs_commit = true;
        }
    }

    /// Notes that the leader has said that a batch is committed.
    pub(crate) fn commit(&mut self, batch: u64, offset: i64) {
        if let Some(row) = self.row(batch) {
            row.offset = Some(offset);
        }
    }

    /// Tells whether a batch is done but for the batches before it.
    pub(crate) fn is_complete(&self, batch: u64) -> bool {
        self.at(batch).is_none_or(|at| self.rows[at].is_complete())
    }

    /// Returns the request for the commit that a batch needs, if it needs one.
    pub(crate) fn wanted(&self, batch: u64) -> Option<Resort> {
        let row = &self.rows[self.at(batch)?];
        let is_wanted = row.needs_commit && !row.is_complete();
        is_wanted.then_some(if row.is_with_leader { Resort::ByIds } else { Resort::Whole })
    }

    /// Returns the stretch under which a batch was sent to members. They may hold it.
    pub(crate) fn stretch_of(&self, batch: u64) -> Option<Stretch> {
        let row = &self.rows[self.at(batch)?];
        row.sent.as_ref().map(|sent| sent.stretch)
    }

    /// Lets all batches before one that needs a request for its commit need one, too. The leader must not get a batch
    /// before those in front of it, whose copies take another connection.
    pub(crate) fn resort_in_order(&mut self) {
        let needs = |row: &Row| row.needs_commit && !row.is_complete();
        let last = self.rows.iter().rposition(needs).unwrap_or(0);
        for row in self.rows.iter_mut().take(last) {
            row.needs_commit = true;
        }
    }

    /// Tells whether some batch is not complete and needs a request for its commit.
    pub(crate) fn has_resorted(&self) -> bool {
        self.rows.iter().any(|row| row.needs_commit && !row.is_complete())
    }

    /// Takes the oldest batch if it is complete, and with it all before it.
    pub(crate) fn take(&mut self) -> Option<Told> {
        let oldest = self.rows.front().filter(|row| row.is_complete())?;
        let told = Told {
            offset: oldest.offset.unwrap_or(-1),
            is_fast: oldest.sent.is_some() && !oldest.needs_commit,
        };
        self.rows.pop_front();
        self.first += 1;
        Some(told)
    }

    /// Returns the place of a batch among those that are not told yet.
    pub(crate) fn at(&self, batch: u64) -> Option<usize> {
        let at = usize::try_from(batch.checked_sub(self.first)?).ok()?;
        (at < self.rows.len()).then_some(at)
    }

    /// Returns the number of the batch at a place among those that are not told yet.
    pub(crate) fn number(&self, at: usize) -> u64 {
        self.first + at as u64
    }

    fn row(&mut self, batch: u64) -> Option<&mut Row> {
        let at = self.at(batch)?;
        self.rows.get_mut(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Stretch = Stretch { term: 3, index: 40 };
    const NEXT: Stretch = Stretch { term: 3, index: 90 };

    fn named(members: &[NodeId]) -> Named {
        Named::of((FIRST.term, FIRST.index), members.to_vec()).expect("a whole stretch")
    }

    /// A tally of one batch that was sent to these members.
    fn sent(members: &[NodeId]) -> (Tally, u64) {
        let mut tally = Tally::default();
        let batch = tally.push();
        tally.send(batch, &named(members));
        (tally, batch)
    }

    #[test]
    fn a_batch_is_done_once_every_member_has_it() {
        for order in [[7, 8], [8, 7]] {
            let (mut tally, batch) = sent(&[7, 8]);
            let said = |from| if from == 7 { Said::Appended } else { Said::Held };
            assert!(!tally.hear(batch, order[0], FIRST, said(order[0])));
            assert_eq!(tally.take(), None);
            assert!(tally.hear(batch, order[1], FIRST, said(order[1])));
            assert_eq!(tally.wanted(batch), None);
            assert_eq!(tally.take().map(|it| it.offset), Some(-1), "its offset is not known");
            assert_eq!(tally.take(), None);
        }
    }

    #[test]
    fn too_few_members_are_not_enough() {
        let (mut tally, batch) = sent(&[7, 8, 9]);
        tally.hear(batch, 7, FIRST, Said::Appended);
        tally.hear(batch, 8, FIRST, Said::Held);
        // The same answer again, and one of a broker that is no member.
        tally.hear(batch, 8, FIRST, Said::Held);
        tally.hear(batch, 5, FIRST, Said::Held);
        assert_eq!(tally.take(), None);
        assert!(tally.hear(batch, 9, FIRST, Said::Held));
        assert_eq!(tally.take().map(|it| it.offset), Some(-1));
    }

    #[test]
    fn nothing_counts_without_the_leaders_word_that_it_appended() {
        for wrong in [Said::Held, Said::Uncounted, Said::NotNow] {
            let (mut tally, batch) = sent(&[7, 8]);
            tally.hear(batch, 8, FIRST, Said::Held);
            tally.hear(batch, 7, FIRST, wrong);
            assert_eq!(tally.take(), None, "{wrong:?}");
            let by_ids = wrong == Said::Uncounted;
            let resort = if by_ids { Resort::ByIds } else { Resort::Whole };
            assert_eq!(tally.wanted(batch), Some(resort), "{wrong:?}");
        }
        let (mut tally, batch) = sent(&[7, 8]);
        tally.hear(batch, 7, FIRST, Said::Appended);
        tally.hear(batch, 8, FIRST, Said::Appended);
        assert_eq!(tally.take(), None, "a follower holds");
    }

    #[test]
    fn answers_under_another_stretch_do_not_count() {
        let (mut tally, batch) = sent(&[7, 8]);
        tally.hear(batch, 7, FIRST, Said::Appended);
        tally.hear(batch, 8, NEXT, Said::Held);
        assert_eq!(tally.take(), None);
        tally.hear(batch, 8, FIRST, Said::Held);
        assert_eq!(tally.take().map(|it| it.offset), Some(-1));
        let mut unsent = Tally::default();
        let batch = unsent.push();
        unsent.hear(batch, 7, FIRST, Said::Appended);
        unsent.hear(batch, 8, FIRST, Said::Held);
        assert_eq!(unsent.take(), None, "it was sent under no stretch");
    }

    #[test]
    #[should_panic(expected = "once")]
    fn a_batch_is_never_sent_under_a_second_stretch() {
        let (mut tally, batch) = sent(&[7, 8]);
        tally.send(batch, &Named { stretch: NEXT, members: vec![7, 8] });
    }

    #[test]
    fn batches_are_told_in_order() {
        let mut tally = Tally::default();
        let batches = [tally.push(), tally.push(), tally.push()];
        for batch in batches {
            tally.send(batch, &named(&[7, 8]));
        }
        tally.hear(batches[1], 7, FIRST, Said::Appended);
        tally.hear(batches[1], 8, FIRST, Said::Held);
        tally.hear(batches[2], 8, FIRST, Said::Committed(12));
        assert!(tally.is_complete(batches[1]) && tally.is_complete(batches[2]));
        assert_eq!(tally.take(), None, "the oldest is not done");
        tally.hear(batches[0], 7, FIRST, Said::Appended);
        tally.hear(batches[0], 8, FIRST, Said::Held);
        let told: Vec<_> = std::iter::from_fn(|| tally.take()).map(|it| it.offset).collect();
        assert_eq!(told, [-1, -1, 12]);
        // A late answer finds nothing.
        assert!(!tally.hear(batches[0], 7, FIRST, Said::NotNow));
        assert_eq!(tally.push(), 3);
    }

    #[test]
    fn one_committed_is_enough() {
        let (mut tally, batch) = sent(&[7, 8]);
        assert!(!tally.hear(batch, 8, FIRST, Said::Committed(5)), "no member was counted");
        assert_eq!(tally.take().map(|it| it.offset), Some(5));
        let (mut tally, batch) = sent(&[7, 8]);
        tally.resort(batch);
        tally.commit(batch, 6);
        assert_eq!(tally.take().map(|it| it.offset), Some(6));
    }

    #[test]
    fn a_batch_in_doubt_goes_to_the_leader_and_late_answers_still_count() {
        let (mut tally, batch) = sent(&[7, 8]);
        assert_eq!(tally.wanted(batch), None, "nobody is late yet");
        tally.hear(batch, 8, FIRST, Said::NotNow);
        assert_eq!(tally.wanted(batch), Some(Resort::Whole));
        assert!(tally.has_resorted());
        tally.hear(batch, 7, FIRST, Said::Appended);
        assert_eq!(tally.wanted(batch), Some(Resort::ByIds), "the leader has it");
        assert_eq!(tally.take(), None);
        let (mut tally, batch) = sent(&[7, 8]);
        tally.resort(batch);
        tally.hear(batch, 7, FIRST, Said::Appended);
        tally.hear(batch, 8, FIRST, Said::Held);
        assert_eq!(tally.wanted(batch), None);
        assert_eq!(tally.take().map(|it| it.offset), Some(-1));
    }

    #[test]
    fn the_leader_is_asked_for_a_batch_behind_all_before_it() {
        let mut tally = Tally::default();
        let batches = [tally.push(), tally.push(), tally.push()];
        for batch in batches {
            tally.send(batch, &named(&[7, 8]));
        }
        tally.hear(batches[0], 7, FIRST, Said::Appended);
        tally.hear(batches[1], 8, FIRST, Said::NotNow);
        tally.resort_in_order();
        let wanted = batches.map(|batch| tally.wanted(batch));
        assert_eq!(wanted, [Some(Resort::ByIds), Some(Resort::Whole), None]);
        assert_eq!(tally.stretch_of(batches[1]), Some(FIRST), "a member may hold it");
        let next = tally.push();
        assert_eq!(tally.stretch_of(next), None);
    }

    #[test]
    fn an_answer_names_a_stretch_only_with_a_leader_and_a_follower() {
        assert_eq!(Named::of((-1, -1), Vec::new()), None);
        assert_eq!(Named::of((3, 40), vec![7]), None);
        assert_eq!(Named::of((3, 40), vec![7, 7]), None);
        assert!(Named::of((3, 40), vec![7, 8]).is_some());
    }
}
