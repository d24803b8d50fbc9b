//! Clients that edit queues: they delete, replace and rewrite, set fences and trim.

use std::collections::BTreeSet;

use bytes::Bytes;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::native::{
    Answer, Delete, DeleteQueue, Edited, Op, Position, Problem, Replace, Rewrite, SetFence,
    TrimQueue,
};
use duramen_broker::session::Prepared;
use duramen_protocol::messages::DeleteRecordsRequest;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::partitioner::key_number;

use super::{Known, Question, Queuers, Sent, TOPIC, id_of, partition_of, refusal, target};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;

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
        let (number, batch) =
            self.batch(vec![queue.to_owned()], (has_id, None, None), work, wall_ms);
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
            let (elements, is_refused, is_brief) = (Vec::new(), false, false);
            let (replaces, again) = (None, None);
            let sent = Sent { elements, is_refused, is_brief, replaces, again };
            self.sent.insert(self.batches, sent);
            (self.batches, None)
        } else {
            let (number, batch) = self.batch(queues, (true, None, None), work, wall_ms);
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
            // Its fence goes with it.
            known.edits.ask_fence(number, Vec::new());
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
        edits.on_fence(number, edited.first.map(|it| it.offset))?;
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

    /// Judges what a page up to the end lacks: a rewrite that withdrew it has its own elements there.
    pub(super) fn judge_rewrites(
        &self,
        queue: &str,
        due: &BTreeSet<i64>,
        seen: &BTreeSet<i64>,
    ) -> Result<(), Failure> {
        let Some(Known { edits, .. }) = self.queues.get(queue) else { return Ok(()) };
        let (partition, first) = (partition_of(queue), edits.first().max(self.floor(queue)));
        let lacking = due.range(first..).filter(|it| !seen.contains(it));
        let lacking = lacking.filter(|it| !self.may_have_expired(partition, **it));
        for number in lacking.filter_map(|it| edits.sole_cut(*it)).collect::<BTreeSet<u64>>() {
            let own = (0_u8..).zip(&self.sent[&number].elements);
            for (index, _) in own {
                let at = self.of.get(&(number, index));
                if at.is_none_or(|at| !seen.contains(at) && edits.deletions(*at) == 0) {
                    return wrong(format!(
                        "{queue}: rewrite {number} withdrew others, and its element {index} is not there"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Sets the fence of a queue, or trims it.
    pub(super) fn fence_or_trim(&mut self, queue: &str, work: &mut Prng) -> (Question, Prepared) {
        let known = self.queues.entry(queue.to_owned()).or_default();
        let (target, timeout_ms) = (target(queue), 10_000);
        let queue = queue.to_owned();
        if let Some(through) = known.pick(work).filter(|_| work.chance(300)) {
            known.edits.ask_trim(through.offset);
            let op = TrimQueue { target, through, pointer: None, fence: None, timeout_ms };
            let question = Question::TrimQueue { queue, through: through.offset };
            return (question, Prepared::Native(Box::new(Op::TrimQueue(op))));
        }
        self.batches += 1;
        let number = self.batches;
        let token = if work.chance(200) { Vec::new() } else { number.to_string().into_bytes() };
        known.edits.ask_fence(number, token.clone());
        let op = SetFence { target, token: token.into(), if_token: None, timeout_ms };
        let question = Question::Fence { queue, number };
        (question, Prepared::Native(Box::new(Op::FenceQueue(op))))
    }

    /// Trims the log of a queue, as an administrator of Kafka does.
    pub(super) fn trim_log(
        &mut self,
        queue: &str,
        work: &mut Prng,
    ) -> Option<(Question, Prepared)> {
        let partition = partition_of(queue);
        let known = self.queues.get(queue)?;
        let last = known.positions.values().next_back().filter(|_| work.chance(700)).copied();
        let offset = last.or_else(|| known.pick(work))?.offset + 1;
        let floor = self.floors.entry(partition).or_default();
        *floor = offset.max(*floor);
        let asked = DeleteRecordsPartition { partition_index: partition, offset };
        let topic = DeleteRecordsTopic { name: TOPIC.to_owned(), partitions: vec![asked] };
        let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 };
        Some((Question::TrimLog, Prepared::Request(request.into())))
    }

    /// Returns the offset below which elements of a queue's log may be gone with its first records.
    pub(super) fn floor(&self, queue: &str) -> i64 {
        self.floors.get(&partition_of(queue)).copied().unwrap_or(0)
    }

    /// Judges the answer to an edit.
    pub(super) fn on_edit_answer(
        &mut self,
        question: &Question,
        answer: &Result<Answer, Problem>,
    ) -> Result<(), Failure> {
        match (question, answer) {
            (Question::Delete { .. } | Question::TrimQueue { .. }, Err(problem)) => {
                refusal(question, problem)
            }
            (Question::Fence { queue, number }, Err(problem)) => {
                if *problem == Problem::OutcomeUnknown {
                    self.on_lost(question);
                    return Ok(());
                }
                self.queues.entry(queue.clone()).or_default().edits.on_fence(*number, None)?;
                refusal(question, problem)
            }
            (Question::Fence { queue, number }, Ok(Answer::Edited(edited))) => {
                let edits = &mut self.queues.entry(queue.clone()).or_default().edits;
                edits.on_fence(*number, edited.first.map(|it| it.offset))
            }
            (Question::TrimQueue { queue, through }, Ok(Answer::Edited(_))) => {
                let edits = &mut self.queues.entry(queue.clone()).or_default().edits;
                edits.on_trimmed(*through);
                Ok(())
            }
            (_, Err(Problem::OutcomeUnknown)) => {
                self.on_lost(question);
                Ok(())
            }
            (Question::Replace { queue, number, element, version }, Err(problem)) => {
                let floor = self.floor(queue);
                let has_expired = self.may_have_expired(partition_of(queue), *element);
                let edits = &mut self.queues.entry(queue.clone()).or_default().edits;
                edits.drop_replacement(*element);
                let first = edits.first().max(floor);
                let is_right = match problem {
                    Problem::UnknownElement => {
                        edits.may_lack(*element) || *element < first || has_expired
                    }
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
                let edits = &mut self.queues.entry(queue.clone()).or_default().edits;
                edits.drop_cut(*number);
                edits.on_fence(*number, None)?;
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
        let floor = self.floor(queue);
        let partition = partition_of(queue);
        let expired = offsets.iter().filter(|it| self.may_have_expired(partition, **it));
        let expired: BTreeSet<i64> = expired.copied().collect();
        let known = self.queues.entry(queue.clone()).or_default();
        let first = known.edits.first().max(floor);
        let is_again = |it: &&i64| {
            let is_edited = known.edits.deletions(**it) > 1 || known.edits.may_be_cut(**it);
            is_edited || **it < first || expired.contains(it)
        };
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
        // Trimmed and expired elements that one leader has erased are absent, and the next may show them to a Fetch.
        let may_stay = |it: &&i64| absent > *foreign && (**it < first || expired.contains(it));
        let deleted = offsets.iter().filter(|it| !may_stay(it)).copied().collect();
        known.edits.on_deleted(&deleted);
        let suspect = deleted.first().map(|offset| (partition_of(queue), *offset));
        self.suspects.extend(suspect.filter(|_| !self.is_last_phase));
        Ok(())
    }
}
