//! Clients that edit queues; and the edits of one queue, as they know them: elements that may be gone, and contents that
//! must not be shown.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::native::{
    Answer, Delete, DeleteQueue, Edited, Op, Position, Problem, Replace, Rewrite,
};
use duramen_broker::session::Prepared;
use duramen_protocol::partitioner::key_number;

use super::{Known, Question, Queuers, Sent, id_of, partition_of, refusal, target};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;

/// Edits of one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    /// Number of deletions of each element that were asked for.
    deleting: BTreeMap<i64, usize>,
    /// Elements of which a deletion was acknowledged.
    deleted: BTreeSet<i64>,
    /// Number of replacements of each element that were asked for, but for those that were refused.
    replacing: BTreeMap<i64, usize>,
    /// Offsets of the contents of each element that replaced another, as far as they were acknowledged.
    contents: BTreeMap<i64, BTreeSet<i64>>,
    /// Rewrites that were asked for, but for those that were refused.
    cuts: BTreeMap<u64, Cut>,
}

/// Withdrawal of all elements behind an offset.
#[derive(Clone, Copy, Debug)]
struct Cut {
    after: i64,
    /// Offset of the entry, once a client has heard of it.
    at: Option<i64>,
}

/// Edits that were acknowledged before a question: no answer of a leader shows what they took away.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Gone {
    deleted: BTreeSet<i64>,
    /// Contents that were replaced.
    replaced: BTreeSet<i64>,
    cuts: Vec<(i64, i64)>,
}

impl Gone {
    /// Adds what is gone of another queue of the same log.
    pub(super) fn add(&mut self, other: Self) {
        self.deleted.extend(other.deleted);
        self.replaced.extend(other.replaced);
    }

    /// Tells why an element with a content must not be shown, if so.
    pub(super) fn forbids(&self, element: i64, content: i64) -> Option<&'static str> {
        let is_cut = |(after, at): &(i64, i64)| *after < element && element < *at;
        if self.deleted.contains(&element) {
            Some("was deleted")
        } else if self.replaced.contains(&content) {
            Some("was replaced")
        } else {
            self.cuts.iter().any(is_cut).then_some("was withdrawn")
        }
    }
}

impl Edits {
    pub(super) fn ask_deletion(&mut self, element: i64) {
        *self.deleting.entry(element).or_default() += 1;
    }

    /// Returns the number of deletions of an element that were asked for.
    pub(super) fn deletions(&self, element: i64) -> usize {
        self.deleting.get(&element).copied().unwrap_or(0)
    }

    pub(super) fn ask_replacement(&mut self, element: i64) {
        *self.replacing.entry(element).or_default() += 1;
    }

    /// Notes that a replacement was refused.
    pub(super) fn drop_replacement(&mut self, element: i64) {
        *self.replacing.get_mut(&element).expect("it was asked for") -= 1;
    }

    pub(super) fn ask_cut(&mut self, number: u64, after: i64) {
        self.cuts.insert(number, Cut { after, at: None });
    }

    /// Notes that a rewrite was refused, or had nothing to do.
    pub(super) fn drop_cut(&mut self, number: u64) {
        self.cuts.remove(&number);
    }

    pub(super) fn on_deleted(&mut self, elements: &BTreeSet<i64>) {
        self.deleted.extend(elements);
    }

    pub(super) fn on_replaced(&mut self, element: i64, content: i64) {
        self.contents.entry(element).or_default().insert(content);
    }

    /// Notes the offset of a rewrite's entry.
    pub(super) fn on_cut(&mut self, number: u64, at: i64) {
        self.cuts.get_mut(&number).expect("it was asked for").at = Some(at);
    }

    /// Returns the offset behind which a rewrite withdrew.
    pub(super) fn after(&self, number: u64) -> Option<i64> {
        self.cuts.get(&number).map(|cut| cut.after)
    }

    /// Returns the element that was deleted first.
    pub(super) fn first_deleted(&self) -> Option<i64> {
        self.deleted.first().copied()
    }

    /// Returns the last acknowledged content of an element.
    pub(super) fn content(&self, element: i64) -> i64 {
        let last = self.contents.get(&element).and_then(BTreeSet::last);
        last.copied().unwrap_or(element)
    }

    /// Returns each content that replaced another, as far as it was acknowledged.
    pub(super) fn contents(&self) -> impl Iterator<Item = i64> {
        self.contents.values().flatten().copied()
    }

    /// Tells whether a rewrite may have withdrawn an element.
    pub(super) fn may_be_cut(&self, element: i64) -> bool {
        let may = |cut: &Cut| cut.after < element && cut.at.is_none_or(|at| element < at);
        self.cuts.values().any(may)
    }

    /// Tells whether an element may be gone.
    pub(super) fn may_lack(&self, element: i64) -> bool {
        self.deletions(element) > 0 || self.may_be_cut(element)
    }

    /// Tells whether the record at an offset, an element's or a later content's, may be gone.
    pub(super) fn may_lack_content(&self, content: i64) -> bool {
        let of = self.contents.iter().find(|(_, all)| all.contains(&content));
        let element = of.map_or(content, |(element, _)| *element);
        let acked = self.contents.get(&element).map_or(0, BTreeSet::len);
        let asked = self.replacing.get(&element).copied().unwrap_or(0);
        self.may_lack(element) || asked > acked || content < self.content(element)
    }

    /// Returns the records that are gone for certain, of a queue with these elements.
    pub(super) fn gone_in(&self, elements: &BTreeSet<i64>) -> Gone {
        let Gone { mut deleted, replaced, cuts } = self.gone();
        for (after, at) in cuts {
            deleted.extend(elements.range(after + 1..at));
        }
        Gone { deleted, replaced, cuts: Vec::new() }
    }

    /// Returns what is gone for certain.
    pub(super) fn gone(&self) -> Gone {
        let mut replaced = BTreeSet::new();
        for (element, contents) in &self.contents {
            let all = [*element].into_iter().chain(contents.iter().copied());
            let last = self.content(*element);
            let is_cut = |cut: &Cut| cut.after < *element && cut.at.is_some_and(|at| *element < at);
            let goes = self.deleted.contains(element) || self.cuts.values().any(is_cut);
            replaced.extend(all.filter(|content| goes || *content < last));
        }
        let cuts = self.cuts.values().filter_map(|cut| Some((cut.after, cut.at?))).collect();
        Gone { deleted: self.deleted.clone(), replaced, cuts }
    }
}

impl Queuers {
    /// Deletes some elements of a queue, and names some of its neighbours, which stay.
    pub(super) fn delete(&mut self, queue: &str, work: &mut Prng) -> Option<(Question, Prepared)> {
        let known = self.queues.get(queue)?;
        let mut positions: Vec<Position> =
            (0..work.between(1, 3)).map_while(|_| known.pick(work)).collect();
        if positions.is_empty() {
            return None;
        }
        let offsets: BTreeSet<i64> = positions.iter().map(|it| it.offset).collect();
        let partition = partition_of(queue);
        let is_neighbour =
            |(name, _): &(&String, &Known)| *name != queue && partition_of(name) == partition;
        let neighbours = self.queues.iter().filter(is_neighbour);
        let others: Vec<Position> =
            neighbours.flat_map(|(_, it)| it.positions.values().copied()).collect();
        let mut foreign = 0;
        if !others.is_empty() && work.chance(300) {
            positions.push(*work.pick(&others));
            foreign = 1;
        }
        let known = self.queues.get_mut(queue)?;
        for offset in &offsets {
            known.edits.ask_deletion(*offset);
        }
        let target = target(queue);
        let op = Op::Delete(Delete { target, positions, fence: None, timeout_ms: 10_000 });
        let question = Question::Delete { queue: queue.to_owned(), offsets, foreign };
        Some((question, Prepared::Native(Box::new(op))))
    }

    /// Gives an element of a queue another content.
    pub(super) fn replace(
        &mut self,
        queue: &str,
        work: &mut Prng,
        wall_ms: i64,
    ) -> Option<(Question, Prepared)> {
        let known = self.queues.get(queue)?;
        let position = known.pick(work)?;
        let element = position.offset;
        let version = work.chance(300).then(|| known.edits.content(element));
        let has_id = work.chance(300);
        let (number, batch) = self.batch(vec![queue.to_owned()], (has_id, None), work, wall_ms);
        self.sent.get_mut(&number).expect("just made").replaces = Some(element);
        self.queues.get_mut(queue)?.edits.ask_replacement(element);
        let op = Op::Replace(Replace {
            target: target(queue),
            position,
            batch: CheckedBatch::of(batch, key_number(queue.as_bytes())).expect("it is right"),
            id: has_id.then(|| Bytes::from(id_of(number, 0))),
            if_version: version,
            fence: None,
            timeout_ms: 10_000,
        });
        let question = Question::Replace { queue: queue.to_owned(), number, element, version };
        Some((question, Prepared::Native(Box::new(op))))
    }

    /// Withdraws the last elements of a queue, or all, and appends others or none.
    pub(super) fn rewrite(
        &mut self,
        queue: &str,
        work: &mut Prng,
        wall_ms: i64,
    ) -> (Question, Prepared) {
        let known = self.queues.entry(queue.to_owned()).or_default();
        let after = if work.chance(150) { None } else { known.pick(work) };
        let count = work.below(4);
        let queues = (0..count).map(|_| queue.to_owned()).collect::<Vec<_>>();
        let (number, batch) = if count == 0 {
            self.batches += 1;
            let (elements, is_refused, replaces) = (Vec::new(), false, None);
            self.sent.insert(self.batches, Sent { elements, is_refused, replaces, again: None });
            (self.batches, None)
        } else {
            let (number, batch) = self.batch(queues, (true, None), work, wall_ms);
            (number, Some(batch))
        };
        let known = self.queues.entry(queue.to_owned()).or_default();
        known.edits.ask_cut(number, after.map_or(-1, |it| it.offset));
        let key = key_number(queue.as_bytes());
        let batch = batch.map(|it| CheckedBatch::of(it, key).expect("it is right"));
        let count = u8::try_from(count).expect("few");
        let ids = (0..count).map(|index| Bytes::from(id_of(number, index))).collect();
        let (target, timeout_ms) = (target(queue), 10_000);
        let op = if after.is_none() && batch.is_none() {
            Op::DeleteQueue(DeleteQueue { target, fence: None, timeout_ms })
        } else {
            let reason = "a test".to_owned();
            Op::Rewrite(Rewrite { target, after, batch, ids, fence: None, reason, timeout_ms })
        };
        let count = i64::from(count);
        let question = Question::Rewrite { queue: queue.to_owned(), number, count };
        (question, Prepared::Native(Box::new(op)))
    }

    /// Judges the answer to a replacement.
    fn on_replaced(
        &mut self,
        (queue, number, element): (&String, u64, i64),
        edited: &Edited,
    ) -> Result<(), Failure> {
        let is_right = |it: &Position| it.offset > element && it.entry == it.offset;
        let Some(at) = edited.first.filter(|it| is_right(it) && !edited.is_duplicate) else {
            return wrong(format!("{queue}: {number} replaces {element}: {edited:?}"));
        };
        self.place(queue, at.offset, (number, 0))?;
        self.queues.entry(queue.clone()).or_default().edits.on_replaced(element, at.offset);
        self.suspects.push((partition_of(queue), element));
        Ok(())
    }

    /// Judges the answer to a rewrite.
    fn on_rewritten(
        &mut self,
        (queue, number, count): (&String, u64, i64),
        edited: &Edited,
    ) -> Result<(), Failure> {
        let edits = &mut self.queues.entry(queue.clone()).or_default().edits;
        let Some((first, last)) = edited.first.zip(edited.last) else {
            edits.drop_cut(number);
            let is_right = count == 0 && edited.withdrawn == 0;
            let text = || format!("{queue}: rewrite {number} of {count}: {edited:?}");
            return if is_right { Ok(()) } else { wrong(text()) };
        };
        edits.on_cut(number, first.offset);
        if edited.is_duplicate || last.offset - first.offset != (count - 1).max(0) {
            return wrong(format!("{queue}: rewrite {number} of {count}: {edited:?}"));
        }
        if count > 0 {
            self.on_appended(number, first.offset)?;
            self.hear_of(queue, last);
        }
        Ok(())
    }

    /// Judges the answer to an edit.
    pub(super) fn on_edit_answer(
        &mut self,
        question: &Question,
        answer: &Result<Answer, Problem>,
    ) -> Result<(), Failure> {
        match (question, answer) {
            (Question::Delete { .. }, Err(problem)) => refusal(question, problem),
            (_, Err(Problem::OutcomeUnknown)) => {
                self.on_lost(question);
                Ok(())
            }
            (Question::Replace { queue, number, element, version }, Err(problem)) => {
                let edits = &mut self.queues.entry(queue.clone()).or_default().edits;
                edits.drop_replacement(*element);
                let is_right = match problem {
                    Problem::UnknownElement => edits.may_lack(*element),
                    Problem::VersionMismatch(now) => version.is_some_and(|version| version != *now),
                    _ => true,
                };
                if !is_right {
                    return wrong(format!("{question:?} is refused: {problem:?}"));
                }
                self.on_refused(*number)?;
                refusal(question, problem)
            }
            (Question::Rewrite { queue, number, .. }, Err(problem)) => {
                self.queues.entry(queue.clone()).or_default().edits.drop_cut(*number);
                self.on_refused(*number)?;
                refusal(question, problem)
            }
            (Question::Delete { .. }, Ok(Answer::Edited(edited))) => {
                self.on_deleted(question, (edited.first, edited.absent))
            }
            (Question::Replace { queue, number, element, .. }, Ok(Answer::Edited(edited))) => {
                self.on_replaced((queue, *number, *element), edited)
            }
            (Question::Rewrite { queue, number, count }, Ok(Answer::Edited(edited))) => {
                self.on_rewritten((queue, *number, *count), edited)
            }
            _ => wrong(format!("{question:?} is answered with {answer:?}")),
        }
    }

    /// Judges the answer to a deletion.
    fn on_deleted(
        &mut self,
        question: &Question,
        (at, absent): (Option<Position>, usize),
    ) -> Result<(), Failure> {
        let Question::Delete { queue, offsets, foreign } = question else {
            return wrong(format!("a deletion answers {question:?}"));
        };
        let known = self.queues.entry(queue.clone()).or_default();
        let is_again = |it: &&i64| known.edits.deletions(**it) > 1 || known.edits.may_be_cut(**it);
        let again = offsets.iter().filter(is_again).count();
        if absent < *foreign || absent > foreign + again {
            return wrong(format!("{queue}: of {question:?} {absent} are said to be absent"));
        }
        if at.is_none() && absent < offsets.len() + foreign {
            return wrong(format!("{queue}: nothing was deleted of {question:?}"));
        }
        if let Some(at) = at
            && offsets.last().is_none_or(|last| *last >= at.offset)
        {
            return wrong(format!("{queue}: {at:?} deletes {question:?}"));
        }
        self.queues.entry(queue.clone()).or_default().edits.on_deleted(offsets);
        let suspect = offsets.first().map(|offset| (partition_of(queue), *offset));
        self.suspects.extend(suspect.filter(|_| !self.is_last_phase));
        Ok(())
    }
}
