//! Clients that read queues: pages of one queue, and the topic as consumers of Kafka do.

use std::collections::BTreeSet;

use bytes::Bytes;
use duramen_broker::native::{Op, Position, Retrieve, Start};
use duramen_broker::session::Prepared;
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::FetchRequest;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use duramen_protocol::records::Records;
use duramen_protocol::wire::RecordData;

use super::known::{Edits, Gone};
use super::{Known, Question, Queuers, TOPIC, number_in, partition_of, target};
use crate::failure::{Failure, wrong};
use crate::machine::Shown;
use crate::prng::Prng;

impl Queuers {
    pub(super) fn retrieve(
        &mut self,
        queue: String,
        (start, wait_ms): (Start, i32),
        is_certain: bool,
        is_last: bool,
    ) -> (Question, Prepared) {
        let after = if let Start::After(position) = start { position.offset } else { -1 };
        let known = self.queues.entry(queue.clone()).or_default();
        let due = known.acked.range(after + 1..).copied().collect();
        let gone = known.edits.gone();
        let op = Op::Retrieve(Retrieve {
            target: target(&queue),
            start,
            wait_ms,
            is_certain,
            skips_trimmed: is_last || known.edits.first() % 2 == 1,
        });
        let question = Question::Retrieve { queue, after, due, is_certain, is_last, gone };
        (question, Prepared::Native(Box::new(op)))
    }

    /// Fetches as a consumer of Kafka does that knows nothing of replicas.
    pub(super) fn fetch(
        &self,
        partition: i32,
        offset: i64,
        work: &mut Prng,
    ) -> (Question, Prepared) {
        let here = self.queues.iter().filter(|(name, _)| partition_of(name) == partition);
        let (mut due, mut gone) = (BTreeSet::new(), Gone::default());
        for (_, known) in here {
            due.extend(known.acked.range(offset..));
            due.extend(known.edits.contents().filter(|it| *it >= offset));
            gone.add(known.edits.gone_in(&known.acked));
        }
        let asked = FetchPartition {
            partition,
            fetch_offset: offset,
            // With so little the first batch alone comes: one of which nothing is left must not stop a consumer.
            partition_max_bytes: if self.is_last_phase { 1 } else { *work.pick(&[1, 500, 1000]) },
            ..FetchPartition::default()
        };
        let topic = TOPIC.to_owned();
        let topic = FetchTopic { topic, partitions: vec![asked], ..FetchTopic::default() };
        let request = FetchRequest {
            replica_id: -1,
            max_bytes: 2000,
            topics: [topic].into(),
            ..FetchRequest::default()
        };
        (Question::Fetch { partition, offset, due, gone }, Prepared::Request(request.into()))
    }

    /// Judges what a consumer fetched.
    pub(super) fn on_fetched(
        &mut self,
        (partition, offset): (i32, i64),
        (due, gone): (&BTreeSet<i64>, &Gone),
        part: &PartitionData,
    ) -> Result<(), Failure> {
        if part.error_code == ErrorCode::OffsetOutOfRange.code()
            && let Some(place) = self.unconsumed.get_mut(&partition)
        {
            *place = self.floors.get(&partition).copied().unwrap_or(0);
        }
        if part.error_code != 0 {
            return Ok(());
        }
        let (mut next, mut shown) = (offset, BTreeSet::new());
        let bytes = match &part.records {
            Some(RecordData::Bytes(bytes)) => bytes.clone(),
            _ => Bytes::new(),
        };
        for batch in batches(bytes).map_while(Result::ok) {
            next = next.max(batch.header().end_offset());
            if batch.header().attributes.is_control() {
                continue;
            }
            let records = Records::of(&batch, 1 << 20).expect("its own records");
            for record in &records {
                let record = record.expect("its own record");
                let at = records.offset(&record);
                let queue = String::from_utf8_lossy(record.key.unwrap_or_default()).into_owned();
                let (Some(number), Some(index)) = (
                    record.value.and_then(number_in),
                    record.value.and_then(|it| it.get(8)).copied(),
                ) else {
                    return wrong(format!("nobody sent {record:?}"));
                };
                self.place(&queue, at, (number, index))?;
                if let Some(why) = gone.forbids(at, at).filter(|_| at >= offset) {
                    return wrong(format!("a fetch shows {at}, which {why}"));
                }
                shown.insert(at);
            }
        }
        let floor = self.floors.get(&partition).copied().unwrap_or(0);
        let first = offset.max(floor).min(next);
        for missing in due.range(first..next).filter(|it| !shown.contains(it)) {
            let is_asked = |known: &Known| {
                let is_own = known.acked.contains(missing)
                    || known.edits.contents().any(|content| content == *missing);
                is_own && known.edits.may_lack_content(*missing)
            };
            let here = self.queues.iter().filter(|(name, _)| partition_of(name) == partition);
            if !here.map(|it| it.1).any(is_asked) && !self.may_have_expired(partition, *missing) {
                return wrong(format!(
                    "a fetch from {offset} to {next} lacks {missing}, which was acknowledged"
                ));
            }
        }
        self.consumed.insert(partition, next);
        if let Some(place) = self.unconsumed.get_mut(&partition) {
            *place = next;
            let last = due.last().copied().unwrap_or(-1);
            if next > last && next >= part.high_watermark {
                self.unconsumed.remove(&partition);
            }
        }
        Ok(())
    }

    /// Judges an element of a page, which shows others before it.
    fn on_shown(
        &mut self,
        (queue, is_certain): (&String, bool),
        Shown { position, content, value }: &Shown,
        gone: &Gone,
        seen: &BTreeSet<i64>,
    ) -> Result<(), Failure> {
        let (Some(number), Some(index)) = (number_in(value), value.get(8)) else {
            return wrong(format!("{queue}: nobody sent {value:?}"));
        };
        let Some(sent) = self.sent.get(&number) else {
            return wrong(format!("{queue}: nobody sent batch {number}"));
        };
        let element = sent.elements.get(usize::from(*index));
        if element.is_none_or(|(of, it)| of != queue || it != value) {
            return wrong(format!("{queue}: {number} is of {sent:?}"));
        }
        if sent.is_refused {
            return wrong(format!("{queue}: batch {number} was refused, and is there"));
        }
        let is_first = position.offset == *content;
        if sent.replaces != (!is_first).then_some(position.offset) {
            return wrong(format!("{queue}: {number} at {content} is shown at {position:?}"));
        }
        self.place(queue, *content, (number, *index))?;
        self.hear_of(queue, *position);
        if let Some(why) = gone.forbids(position.offset, *content).filter(|_| is_certain) {
            return wrong(format!("{queue}: a page shows {position:?}, which {why}"));
        }
        let known = self.queues.entry(queue.clone()).or_default();
        if known.acked.contains(&position.offset) {
            let there = *known.positions.entry(position.offset).or_insert(*position);
            if there != *position {
                return wrong(format!("{queue}: {there:?} is shown at {position:?}"));
            }
        }
        // A reader that sees an element of a rewrite sees none that it withdrew.
        let at = position.offset - i64::from(*index);
        if let Some(after) = known.edits.after(number).filter(|_| is_first) {
            if let Some(other) = seen.range(after + 1..at).next() {
                return wrong(format!("{queue}: {number} withdrew {other}, and both are shown"));
            }
            if is_certain {
                known.edits.on_cut(number, at);
            }
        }
        Ok(())
    }

    /// Judges a page.
    pub(in super::super) fn on_page(
        &mut self,
        question: &Question,
        elements: &[Shown],
        (next, more): (Option<Position>, bool),
    ) -> Result<(), Failure> {
        let Question::Retrieve { queue, after, due, is_certain, is_last, gone } = question else {
            return wrong(format!("a page answers {question:?}"));
        };
        let mut before = *after;
        let mut seen = BTreeSet::new();
        for shown in elements {
            if shown.position.offset <= before || shown.position.entry > shown.position.offset {
                return wrong(format!("{queue}: {shown:?} is behind {before}"));
            }
            before = shown.position.offset;
            self.on_shown((queue, *is_certain), shown, gone, &seen)?;
            seen.insert(before);
            let number = number_in(&shown.value).filter(|it| *is_last && self.erased.contains(it));
            if let Some(number) = number {
                return wrong(format!("{queue}: batch {number} was refused, and is there"));
            }
        }
        if next.is_some_and(|next| next.offset < before) {
            return wrong(format!("{queue}: a page ends at {next:?}, and shows {before}"));
        }
        // A page that is not the last one shows all up to where it has looked.
        let looked = if more { next.map_or(*after, |next| next.offset) } else { i64::MAX };
        let floor = self.floor(queue);
        let nothing = Edits::default();
        let edits = self.queues.get(queue).map_or(&nothing, |known| &known.edits);
        let first = edits.first().max(floor);
        let is_missing = |it: &&i64| {
            let may_lack = edits.may_lack(**it) || self.may_have_expired(partition_of(queue), **it);
            first <= **it && **it <= looked && !seen.contains(it) && !may_lack
        };
        let missing = due.iter().find(is_missing);
        if let Some(missing) = missing.filter(|_| *is_certain) {
            return wrong(format!(
                "{queue}: a page behind {after} up to {looked} lacks {missing}, which was acknowledged"
            ));
        }
        if *is_certain && !more {
            self.judge_rewrites(queue, due, &seen)?;
        }
        let known = self.queues.entry(queue.clone()).or_default();
        known.next = next.or(known.next);
        if *is_last {
            if more && next.is_some() {
                self.unread.insert(queue.clone(), next);
            } else {
                self.unread.remove(queue);
            }
        }
        Ok(())
    }
}
