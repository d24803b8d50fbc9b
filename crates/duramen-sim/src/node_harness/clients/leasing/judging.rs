//! Judgements on the answers to workers, and on those to clients that enqueue for them.

use std::collections::BTreeMap;

use duramen_broker::ConnectionId;
use duramen_broker::native::{Answer, Problem};
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::records::Records;
use duramen_protocol::{ErrorCode, Response};

use super::super::answers::{bytes_of, is_made};
use super::holds::{Given, Times};
use super::{
    Demand, Facts, LATE_MS, Last, PARTITIONS, PATIENCE_US, Place, Probe, Question, Said, TOPIC,
    Workers,
};
use crate::failure::{Failure, wrong};
use crate::machine::Worked;

impl Workers {
    /// Judges an answer of a node to a worker, even if nobody hears it.
    pub(in super::super) fn witness(
        &mut self,
        to: (ConnectionId, u64),
        worked: &Worked,
    ) -> Result<(), Failure> {
        self.moment += 1;
        match self.asked.remove(&to) {
            Some(Question::Lease(demand)) => self.on_leased(&demand, worked),
            Some(Question::Settle(said)) => self.on_settled(&said, worked),
            other => wrong(format!("{worked:?} answers {other:?}")),
        }
    }

    fn times(&self, worked: &Worked) -> Times {
        Times {
            came_us: worked.came.mono_us,
            now_us: worked.now.mono_us,
            came_ms: worked.came.wall_ms,
            now_ms: worked.now.wall_ms,
            latest_ms: worked.latest_ms,
            leaps: self.leaps,
        }
    }

    fn on_leased(&mut self, demand: &Demand, worked: &Worked) -> Result<(), Failure> {
        match &worked.answer {
            Ok(Answer::Leased(_)) => {}
            Err(problem) => return refusal(demand, problem),
            other => return wrong(format!("{demand:?} is answered with {other:?}")),
        }
        let times = self.times(worked);
        let mut places: BTreeMap<(i32, u64), Vec<Place>> = BTreeMap::new();
        for it in &worked.leased {
            self.topic_id = Some(it.topic_id);
            let place = (it.partition, it.offset);
            let Some(led) = worked.now.led(it.topic_id, it.partition) else {
                return wrong(format!("{place:?} is leased by who does not lead"));
            };
            if it.offset >= led.committed {
                return wrong(format!("{place:?} is leased, {} is committed", led.committed));
            }
            match &it.content {
                Some(content) => {
                    self.messages.on_content(place, content)?;
                }
                None if self.rots || self.may_be_erased(place) => {}
                None => return wrong(format!("{place:?} is leased, and is not there")),
            }
            places.entry((it.partition, led.term)).or_default().push(place);
        }
        for (log, places) in &places {
            self.holds.on_turns(*log, places, &self.messages)?;
        }
        for it in &worked.leased {
            let place = (it.partition, it.offset);
            let term = worked.now.led(it.topic_id, it.partition).expect("just found").term;
            let (worker, count, moment) = (&*demand.worker, it.deliveries, self.moment);
            let given = Given { place, term, worker, count, moment };
            self.holds.on_given(&given, &self.messages, times)?;
        }
        if worked.leased.is_empty() {
            return self.on_nothing(demand, worked);
        }
        self.check_probe(demand, worked)
    }

    /// Tells whether an erasure may have taken a message, when its leader still believed the clock. Once the clock
    /// leaps nothing ends, so the leader gives out what it had read before. The server settles what it finds gone.
    fn may_be_erased(&self, place: Place) -> bool {
        self.leaps && self.messages.at(place).is_none_or(|(_, it)| it.expires_ms < i64::MAX)
    }

    /// Judges an answer without a message.
    fn on_nothing(&self, demand: &Demand, worked: &Worked) -> Result<(), Failure> {
        let Some(topic_id) = self.topic_id else { return Ok(()) };
        let waited_us = worked.now.mono_us - worked.came.mono_us;
        let wait_us = u64::from(demand.wait_ms.unsigned_abs()) * 1000;
        let wanted = (0..PARTITIONS).filter(|it| demand.partition < 0 || *it == demand.partition);
        for partition in wanted {
            let (before, now) =
                (worked.came.led(topic_id, partition), worked.now.led(topic_id, partition));
            let Some((before, now)) = before.zip(now).filter(|it| it.0.term == it.1.term) else {
                continue;
            };
            if wait_us > 0 && waited_us < wait_us {
                return wrong(format!("{demand:?} is answered with nothing after {waited_us} us"));
            }
            let is_soon = wait_us == 0 && waited_us < PATIENCE_US;
            let of = (partition, before.committed);
            let there = self.holds.available(of, demand.moment, &self.messages);
            if let Some(there) = there.filter(|_| is_soon) {
                return wrong(format!(
                    "{demand:?} gets nothing of {now:?}, and {there:?} is there"
                ));
            }
        }
        match demand.probe.map(|number| &self.messages.all[&number]) {
            Some(message) if self.holds.is_free(message) => {
                wrong(format!("{demand:?} waits in vain, and {message:?} is there"))
            }
            _ => Ok(()),
        }
    }

    /// Judges the wait for a message.
    fn check_probe(&self, demand: &Demand, worked: &Worked) -> Result<(), Failure> {
        let Some(message) = demand.probe.map(|number| &self.messages.all[&number]) else {
            return Ok(());
        };
        let due_ms = message.deliver_at_ms.max(worked.came.wall_ms);
        let is_it = worked.leased.iter().any(|it| Some((it.partition, it.offset)) == message.place);
        if is_it && worked.now.wall_ms > due_ms + LATE_MS {
            let now_ms = worked.now.wall_ms;
            return wrong(format!("{demand:?} gets {message:?} at {now_ms}, due at {due_ms}"));
        }
        Ok(())
    }

    fn on_settled(&mut self, said: &Said, worked: &Worked) -> Result<(), Failure> {
        match &worked.answer {
            Ok(Answer::Settled(lost)) => {
                let led = self.topic_id.and_then(|it| worked.now.led(it, said.partition));
                let times = self.times(worked);
                self.holds.on_settled(said, lost, led.map(|it| it.term), times)
            }
            Err(Problem::OutcomeUnknown) => Ok(()),
            Err(problem) => {
                self.holds.on_refused(said);
                refusal(said, problem)
            }
            other => wrong(format!("{said:?} is answered with {other:?}")),
        }
    }

    /// Takes an answer that a client hears. Returns the node to turn to, if it names one.
    pub(in super::super) fn on_heard(
        &mut self,
        question: &Question,
        worked: &Worked,
    ) -> Option<i32> {
        if let Question::Lease(demand) = question {
            for it in &worked.leased {
                let name = (it.partition, it.offset, it.deliveries);
                self.held.insert(name, demand.worker.clone());
            }
            self.on_probe_answer(demand, worked);
        }
        let Err(problem) = &worked.answer else { return None };
        if let Question::Settle(said) = question
            && *problem != Problem::OutcomeUnknown
        {
            self.again.push(said.clone());
        }
        if let Problem::Elsewhere(node, _) = problem { Some(*node) } else { None }
    }

    fn on_probe_answer(&mut self, demand: &Demand, worked: &Worked) {
        let Some(Last::Waiting(left, Probe::Asked(number))) = self.last else { return };
        if demand.probe != Some(number) {
            return;
        }
        let message = &self.messages.all[&number];
        let is_it = worked.leased.iter().any(|it| Some((it.partition, it.offset)) == message.place);
        // Another worker may have it.
        let is_gone = is_it || !self.holds.is_free(message);
        let next = if is_gone {
            Last::Waiting(left - 1, Probe::New)
        } else {
            Last::Waiting(left, Probe::There(number))
        };
        self.last = Some(next);
    }

    /// Judges the answer to messages that a client enqueued.
    fn on_enqueued(&mut self, batch: u64, base: i64) -> Result<(), Failure> {
        self.moment += 1;
        self.messages.on_appended(batch, base, self.moment)?;
        if let Some(Last::Waiting(left, Probe::Sent(number))) = self.last
            && self.messages.all[&number].acknowledged.is_some()
        {
            self.last = Some(Last::Waiting(left, Probe::There(number)));
        }
        Ok(())
    }

    /// Judges an answer of the native API to no worker.
    pub(in super::super) fn on_answer(
        &mut self,
        question: &Question,
        answer: &Result<Answer, Problem>,
    ) -> Result<(), Failure> {
        match (question, answer) {
            (
                Question::Enqueue { batch },
                Ok(Answer::Appended { first, is_duplicate: false, .. }),
            ) => self.on_enqueued(*batch, first.offset),
            (Question::Enqueue { batch }, Err(problem)) => {
                if *problem != Problem::OutcomeUnknown {
                    self.messages.on_refused(*batch)?;
                }
                self.on_lost(question);
                refusal(question, problem)
            }
            _ => wrong(format!("{question:?} is answered with {answer:?}")),
        }
    }

    /// Judges an answer of Kafka's.
    pub(in super::super) fn on_kafkas(
        &mut self,
        question: &Question,
        response: &Response,
        facts: Facts,
    ) -> Result<(), Failure> {
        match (question, response) {
            (Question::Create(name), Response::CreateTopics(it)) => {
                self.made.extend(is_made(it).then_some(*name));
                if *name == TOPIC && it.topics[0].error_code == 0 {
                    self.topic_id = Some(it.topics[0].topic_id.0);
                }
                Ok(())
            }
            (Question::Set, Response::IncrementalAlterConfigs(it)) => {
                self.is_set |= it.responses[0].error_code == 0;
                Ok(())
            }
            (Question::Enqueue { batch }, Response::Produce(it)) => {
                let part = &it.responses[0].partition_responses[0];
                match ErrorCode::from_code(part.error_code) {
                    Some(ErrorCode::None) => self.on_enqueued(*batch, part.base_offset),
                    // The batch may be in the log all the same.
                    Some(
                        ErrorCode::RequestTimedOut
                        | ErrorCode::NotLeaderOrFollower
                        | ErrorCode::UnknownTopicOrPartition,
                    ) => Ok(()),
                    Some(
                        ErrorCode::NotEnoughReplicas
                        | ErrorCode::KafkaStorageError
                        | ErrorCode::InvalidTimestamp,
                    ) => self.messages.on_refused(*batch),
                    _ => wrong(format!("{question:?} is answered with {part:?}")),
                }
            }
            (Question::Letters, Response::Fetch(it)) => {
                let Some(part) = it.responses.first().and_then(|it| it.partitions.first()) else {
                    return Ok(());
                };
                if part.error_code != 0 {
                    return Ok(());
                }
                for batch in batches(bytes_of(part)).map_while(Result::ok) {
                    self.on_letters(&batch, facts)?;
                    self.letters_at = batch.header().end_offset();
                }
                Ok(())
            }
            _ => wrong(format!("{question:?} is answered with {response:?}")),
        }
    }

    fn on_letters(&mut self, batch: &BatchView, facts: Facts) -> Result<(), Failure> {
        if batch.header().attributes.is_control() {
            return Ok(());
        }
        let Ok(records) = Records::of(batch, 1 << 20) else {
            return wrong("dead letters cannot be read");
        };
        for record in &records {
            let Ok(record) = record else { return wrong("a torn dead letter") };
            let number = |name: &str| -> Option<i64> {
                let header = record.headers.into_iter().find(|it| it.key == name.as_bytes())?;
                std::str::from_utf8(header.value?).ok()?.parse().ok()
            };
            let of = number("__dlq.errors.partition").zip(number("__dlq.errors.offset"));
            let Some((partition, offset)) = of else {
                return wrong(format!("the dead letter {record:?} does not say what it is"));
            };
            let place = (i32::try_from(partition).expect("few"), offset);
            let own = |part: Option<&[u8]>| records.keep(part.unwrap_or_default());
            let content = (own(record.key), own(record.value));
            let number = self.messages.on_content(place, &content)?;
            let message = &self.messages.all[&number];
            self.holds.on_letter(place, message, (facts.wall_ms, facts.lies))?;
        }
        Ok(())
    }
}

/// Judges a refusal: it is of the cluster's state, and not of the request.
fn refusal(question: &impl std::fmt::Debug, problem: &Problem) -> Result<(), Failure> {
    match problem {
        Problem::Elsewhere(..)
        | Problem::NoLeader
        | Problem::NotEnoughReplicas
        | Problem::DiskFull(_)
        | Problem::Damaged
        | Problem::Busy(_)
        | Problem::UnknownTopic
        | Problem::OutcomeUnknown
        // The clock has leapt.
        | Problem::BadRequest("records", _) => Ok(()),
        _ => wrong(format!("{question:?} is refused: {problem:?}")),
    }
}
