//! Fate of each record that a share group is given, by all statements of nodes, whether or not anybody heard them; and
//! the fates that no record may have.
//!
//! A term of a partition is one leader's, so its statements within one must fit together. While the leader knows that
//! a consumer holds a record, no other gets it, and each delivery counts. A new leader knows the state that is kept:
//! decisions that were answered, and the delivery count when the record was last released for certain.
//!
//! A leader that was deposed and does not know it may give out records that others are done with. The decisions of its
//! consumers are not kept, and not answered.

use std::collections::{BTreeMap, BTreeSet};

use super::writing::Fates;
use super::{ACCEPT, GAP, REJECT, RELEASE, RENEW, Said};
use crate::failure::{Failure, wrong};
use crate::trace::tell;

/// A partition and an offset.
pub(super) type Place = (i32, i64);
/// A batch's number, and a record's place in it.
pub(super) type Numbered = (u64, u64);

/// Rules of the group, through all of a run.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Rules {
    pub(super) by_key: bool,
    pub(super) deliveries_max: i16,
    pub(super) lock_us: u64,
    pub(super) has_dead_letters: bool,
    pub(super) starts_at_earliest: bool,
    /// True if the group reads with isolation level `read_committed`.
    pub(super) is_committed: bool,
}

/// Records that somebody was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) partition: i32,
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) count: i16,
}

/// One time that a record was given to somebody.
#[derive(Clone, Debug)]
struct Hold {
    member: String,
    count: i16,
    /// Its lock does not end before, and has ended then, unless the holder let go of it.
    until_us: u64,
    until_at_most_us: u64,
    /// The holder may have let go of it.
    may_be_over: bool,
    /// Its session may have ended: then this time does not count.
    may_not_count: bool,
}

#[derive(Clone, Debug, Default)]
struct Record {
    content: Option<Numbered>,
    /// Holds of the record by term, the last one last.
    holds: BTreeMap<u64, Vec<Hold>>,
    most: i16,
    /// Decisions for good that may have been taken, by the request that said them.
    decisions: BTreeMap<u64, i8>,
    /// The term in which one was answered.
    done: Option<u64>,
    /// The term and the number of times that are kept at least.
    kept: Option<(u64, i16)>,
    /// When it was given out for the first time, among all.
    first: Option<u64>,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    pub(super) rules: Rules,
    pub(super) fates: Fates,
    records: BTreeMap<Place, Record>,
    /// Where a client asked a log to begin, at most.
    trimmed: BTreeMap<i32, i64>,
    /// Below it nobody knows whether the group was to be given anything.
    from: BTreeMap<i32, i64>,
    /// The last start that was told.
    starts: BTreeMap<i32, i64>,
    counted: u64,
    letters: BTreeSet<Place>,
    /// Records given out, and decisions that were answered.
    pub(super) delivered: u64,
    pub(super) decided: u64,
}

pub(super) fn key_of((number, within): Numbered) -> u64 {
    number.wrapping_mul(7).wrapping_add(within) % 5
}

impl Record {
    /// Tells whether somebody may be done with the record.
    fn may_be_done(&self, rules: &Rules) -> bool {
        self.done.is_some() || !self.decisions.is_empty() || self.most >= rules.deliveries_max
    }

    /// Tells whether somebody holds the record for certain, by the knowledge of the leader of a term.
    fn is_held(&self, term: u64, now_us: u64) -> bool {
        let hold = self.holds.get(&term).and_then(|all| all.last());
        hold.is_some_and(|hold| !hold.may_be_over && now_us < hold.until_us)
    }

    /// Tells whether the record may be a dead letter.
    fn may_be_buried(&self, rules: &Rules) -> bool {
        self.most >= rules.deliveries_max || self.decisions.values().any(|kind| *kind == REJECT)
    }

    /// Tells whether the record must be a dead letter, if the group is done with it.
    fn must_be_buried(&self) -> bool {
        !self.decisions.values().any(|kind| [ACCEPT, GAP].contains(kind))
    }
}

impl Deliveries {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    pub(super) fn letters(&self) -> u64 {
        self.letters.len() as u64
    }

    /// Returns the offset from which all records of a partition are to be given out, as far as that is known.
    fn from(&self, partition: i32) -> i64 {
        let from = if self.rules.starts_at_earliest { 0 } else { i64::MAX };
        let from = self.from.get(&partition).copied().unwrap_or(from);
        from.max(self.trimmed.get(&partition).copied().unwrap_or(0))
    }

    /// Tells whether a record may be for nobody: it may be a marker, or of a transaction that was not committed. In
    /// the end it is known.
    fn may_be_passed(&self, record: &Record) -> bool {
        let is_it = |content: Numbered| self.fates.may_be_nothing(content.0);
        self.rules.is_committed && record.content.is_none_or(is_it)
    }

    fn note_from(&mut self, partition: i32, offset: i64) {
        if !self.rules.starts_at_earliest {
            let from = self.from.entry(partition).or_insert(offset);
            *from = offset.min(*from);
        }
    }

    pub(super) fn on_trim_sent(&mut self, partition: i32, offset: i64) {
        let most = self.trimmed.entry(partition).or_default();
        *most = offset.max(*most);
    }

    /// Notes the content of a record that was read.
    pub(super) fn on_content(&mut self, place: Place, content: Numbered) -> Result<(), Failure> {
        let record = self.records.entry(place).or_default();
        match record.content.replace(content) {
            Some(before) if before != content => {
                wrong(format!("record {place:?} was {before:?}, and is {content:?}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn content(&self, place: Place) -> Option<Numbered> {
        self.records.get(&place)?.content
    }

    /// Decisions leave their consumer.
    pub(super) fn on_said(&mut self, member: &str, said: &[Said], request: u64) {
        for it in said {
            let Some(record) = self.records.get_mut(&it.place) else { continue };
            if [ACCEPT, REJECT, GAP].contains(&it.kind) {
                record.decisions.insert(request, it.kind);
            }
            let all = record.holds.values_mut().flatten();
            for hold in all.filter(|hold| hold.member == member) {
                if it.kind == RENEW {
                    hold.until_at_most_us = u64::MAX;
                } else {
                    hold.may_be_over = true;
                }
            }
        }
    }

    /// Notes that a consumer's session may end: its records are for others then, and count as not given out.
    pub(super) fn on_gone(&mut self, member: &str) {
        let all = self.records.values_mut().flat_map(|record| record.holds.values_mut().flatten());
        for hold in all.filter(|hold| hold.member == member) {
            (hold.may_be_over, hold.may_not_count) = (true, true);
        }
    }

    /// Judges the records that a leader gave a consumer. `is_gone` tells that the consumer's connection is gone by
    /// now.
    pub(super) fn on_given(
        &mut self,
        term: u64,
        member: &str,
        given: Given,
        now_us: u64,
        is_gone: bool,
    ) -> Result<(), Failure> {
        let Given { partition, first, last, count } = given;
        tell(|| {
            format!(
                "  {member} is given {partition}: {first}..={last} for the {count}th time in term {term}"
            )
        });
        if count < 1 || count > self.rules.deliveries_max {
            let most = self.rules.deliveries_max;
            return wrong(format!("{given:?} is given out, and {most} times are the most"));
        }
        self.note_from(partition, first);
        for offset in first..=last {
            self.delivered += 1;
            self.counted += 1;
            let place = (partition, offset);
            if let Some((number, _)) = self.content(place) {
                self.fates.on_given(number)?;
            }
            if self.rules.by_key {
                self.check_order(place, term, now_us)?;
            }
            let (rules, at) = (self.rules, self.counted);
            let record = self.records.entry(place).or_default();
            record.check_given(term, count, now_us).or_else(|why| {
                wrong(format!("{member} is given {place:?} in term {term}: {why} {record:?}"))
            })?;
            record.most = record.most.max(count);
            record.first.get_or_insert(at);
            let until_us = now_us + rules.lock_us;
            let hold = Hold {
                member: member.to_owned(),
                count,
                until_us,
                until_at_most_us: until_us,
                may_be_over: is_gone,
                may_not_count: is_gone,
            };
            record.holds.entry(term).or_default().push(hold);
        }
        Ok(())
    }

    /// Checks that the group is done with all earlier records of a record's key, as far as anybody knows.
    fn check_order(&self, place: Place, term: u64, now_us: u64) -> Result<(), Failure> {
        let Some(key) = self.content(place).map(key_of) else { return Ok(()) };
        let from = self.from(place.0);
        if from >= place.1 {
            return Ok(());
        }
        let before = self.records.range((place.0, from)..place);
        let mut of_key = before.filter(|(_, record)| record.content.map(key_of) == Some(key));
        let is_open = |record: &Record| {
            !self.may_be_passed(record)
                && (!record.may_be_done(&self.rules) || record.is_held(term, now_us))
        };
        match of_key.find(|(_, record)| is_open(record)) {
            Some((other, record)) => {
                let what = format!("{place:?} of key {key} is given out before {other:?}");
                wrong(format!("{what}, with which nobody is done: {record:?}"))
            }
            None => Ok(()),
        }
    }

    /// Judges the answer to a request with decisions, each partition by a leader of this term, if one is known.
    pub(super) fn on_answered(
        &mut self,
        member: &str,
        (said, request, sent_us): (&[Said], u64, u64),
        told: impl Fn(i32) -> Option<(bool, Option<u64>)>,
        now_us: u64,
    ) -> Result<(), Failure> {
        for it in said {
            let Some(record) = self.records.get_mut(&it.place) else { continue };
            match told(it.place.0) {
                None => {}
                // Nothing was decided, for certain.
                Some((false, _)) => {
                    record.decisions.remove(&request);
                }
                Some((true, term)) => {
                    self.decided += 1;
                    let is_trimmed =
                        self.trimmed.get(&it.place.0).is_some_and(|start| it.place.1 < *start);
                    let Some(term) = term else { continue };
                    let taken = record.check_taken(
                        member,
                        (it, request, sent_us),
                        term,
                        now_us,
                        &self.rules,
                    );
                    if let Err(why) = taken
                        && !is_trimmed
                    {
                        let (kind, place) = (it.kind, it.place);
                        let what = format!("decision {kind} of {member} on {place:?} is taken");
                        return wrong(format!("{what} in term {term}: {why}: {record:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Judges the start of the group in a partition, as the coordinator tells it.
    pub(super) fn on_start(&mut self, partition: i32, start: i64) -> Result<(), Failure> {
        tell(|| format!("  the group starts at {start} of {partition}"));
        let before = self.starts.get(&partition).copied().unwrap_or(-1);
        if start < before {
            return wrong(format!("the group started at {before} of {partition}, then at {start}"));
        }
        if start < 0 {
            return Ok(());
        }
        self.starts.insert(partition, start);
        if before < 0 {
            self.note_from(partition, start);
        }
        for offset in before.max(self.from(partition))..start {
            let place = (partition, offset);
            let record = self.records.entry(place).or_default();
            if record.may_be_done(&self.rules) {
                continue;
            }
            let record = &self.records[&place];
            if !self.may_be_passed(record) {
                let what = format!("the group starts at {start} of {partition}");
                return wrong(format!("{what}, and nobody is done with {offset}: {record:?}"));
            }
        }
        Ok(())
    }

    /// Returns the start of the group in a partition, by the last answer.
    pub(super) fn start(&self, partition: i32) -> i64 {
        self.starts.get(&partition).copied().unwrap_or(-1)
    }

    /// Judges a record that is a dead letter.
    pub(super) fn on_letter(&mut self, place: Place, content: Numbered) -> Result<(), Failure> {
        let record = self.records.entry(place).or_default();
        if record.content != Some(content) {
            return wrong(format!("the dead letter {content:?} of {place:?} is {record:?}"));
        }
        if !record.may_be_buried(&self.rules) {
            return wrong(format!("{place:?} is a dead letter: {record:?}"));
        }
        self.letters.insert(place);
        Ok(())
    }

    /// Tells whether a record is for nobody, once all was read.
    fn is_nothing(&self, record: &Record) -> bool {
        let is_of_marker = self.rules.is_committed && record.holds.is_empty();
        record.content.map_or(is_of_marker, |content| self.fates.is_nothing(content.0))
    }

    /// Returns the end of a partition for a group that is given no markers and no aborted records, once all was read
    /// up to `end`. The leader need not keep that it passed the last of them before it has something to keep.
    pub(super) fn end_of_all(&self, partition: i32, end: i64) -> i64 {
        if !self.rules.is_committed {
            return end;
        }
        let all = self.records.range((partition, 0)..(partition, end));
        let last = all.rev().find(|(_, record)| !self.is_nothing(record));
        last.map_or(0, |((_, offset), _)| offset + 1)
    }

    /// Checks the end: the group is done with all records, and all of the log was read.
    pub(super) fn check_end(&self, ends: &BTreeMap<i32, i64>) -> Result<(), Failure> {
        let lost = self.fates.lost();
        if !lost.is_empty() && self.trimmed.is_empty() {
            return wrong(format!("batches {lost:?} are committed, and are not in the log"));
        }
        let mut last_of_key: BTreeMap<(i32, u64), (i64, u64)> = BTreeMap::new();
        for (place, record) in &self.records {
            let (partition, offset) = *place;
            if offset < self.from(partition) || self.is_nothing(record) {
                continue;
            }
            if ends.get(&partition).is_none_or(|end| offset >= *end) || record.content.is_none() {
                return wrong(format!(
                    "{place:?} was given out, and is not in the log: {record:?}"
                ));
            }
            let is_missing = self.rules.has_dead_letters
                && record.must_be_buried()
                && !self.letters.contains(place);
            if !record.may_be_done(&self.rules) || is_missing {
                return wrong(format!("{place:?} is lost, or no dead letter: {record:?}"));
            }
            let (Some(content), Some(first)) = (record.content, record.first) else { continue };
            let key = (partition, key_of(content));
            let before = last_of_key.insert(key, (offset, first));
            if let Some((other, at)) = before.filter(|(_, at)| self.rules.by_key && *at > first) {
                let what = format!("{offset} of {partition} was given out first, at {first}");
                return wrong(format!("{what}, and {other} of the same key at {at}"));
            }
        }
        Ok(())
    }
}

impl Record {
    /// Checks that a leader may give the record out.
    fn check_given(&self, term: u64, count: i16, now_us: u64) -> Result<(), String> {
        if self.done.is_some_and(|done| done <= term) {
            return Err("it was done with".to_owned());
        }
        if let Some(hold) = self.holds.get(&term).and_then(|all| all.last()) {
            if self.is_held(term, now_us) {
                return Err(format!("at {now_us} somebody else holds it"));
            }
            let is_next = count == hold.count + 1 || hold.may_not_count && count == hold.count;
            return if is_next { Ok(()) } else { Err("times are counted wrongly".to_owned()) };
        }
        let least = self.kept.filter(|(since, _)| *since <= term).map_or(0, |(_, count)| count);
        if count <= least || count > self.most + 1 {
            let most = self.most;
            return Err(format!("it is the {count}th time, after {least} to {most}"));
        }
        Ok(())
    }

    /// Checks that a leader may have taken a decision.
    fn check_taken(
        &mut self,
        member: &str,
        (said, request, sent_us): (&Said, u64, u64),
        term: u64,
        now_us: u64,
        rules: &Rules,
    ) -> Result<(), String> {
        let later = self.holds.last_key_value().filter(|(other, _)| **other > term);
        let later = later.map(|(other, _)| *other);
        let is_final = ![RELEASE, RENEW].contains(&said.kind);
        let is_it = |hold: &&mut Hold| hold.member == member && sent_us < hold.until_at_most_us;
        // A record that was given back may be another's before that is answered.
        let given = self.holds.get_mut(&term).and_then(|all| {
            if is_final { all.last_mut().filter(is_it) } else { all.iter_mut().rev().find(is_it) }
        });
        let Some(hold) = given else {
            // Nobody has to hold a record that lies before the start.
            let others = self.decisions.keys().any(|other| *other != request);
            let is_done = self.done.is_some() || others || self.most >= rules.deliveries_max;
            return if is_done { Ok(()) } else { Err("somebody else holds it".to_owned()) };
        };
        match said.kind {
            RENEW => {
                // Of what lies before the start it is well answered, too, and nothing happens.
                if now_us < hold.until_us {
                    hold.until_us = hold.until_us.max(sent_us + rules.lock_us);
                }
                hold.until_at_most_us = now_us + rules.lock_us;
            }
            RELEASE => self.kept = self.kept.max(Some((term, said.count))),
            _ => {
                self.done = self.done.max(Some(term));
                if let Some(later) = later {
                    return Err(format!("it was given out in term {later}"));
                }
            }
        }
        Ok(())
    }
}
