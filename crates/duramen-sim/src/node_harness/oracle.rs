//! # Room card: oracle
//!
//! Purpose:    the answers that clients may observe, given their requests.
//! Owns:       the promises P1 to P4 as checks.
//! Interface:  [`Oracle`].
//! Invariants: an unanswered request may have happened once, or not.
//! Never:      the node's inside.
//! Tests:      planted bugs.
//! Start at:   [`Oracle::on_shown`].

use std::collections::BTreeMap;

use duramen_protocol::wire::Uuid;

use super::clients::keyed::{self, KEYED, Numbered};
use crate::failure::{Failure, wrong};

/// A node may know so much earlier than clients how late it is.
const LATE_MS: i64 = 100;

/// A partition of a topic of this name.
pub(super) type Place = (String, i32);

/// A batch that was sent.
#[derive(Clone, Debug)]
struct Sent {
    place: Place,
    /// The topic's.
    life: u32,
    count: i64,
    bytes: i64,
    /// Time when the batch was sent first, in milliseconds.
    at_ms: i64,
    /// True if the batch does not follow its producer's last one, or its topic was gone: it must never be in a log.
    is_void: bool,
    acked: Option<i64>,
    seen: Option<i64>,
}

/// Facts about one partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Acknowledged batches by base offset: batch number and count.
    acked: BTreeMap<i64, (u64, i64)>,
    /// Shown records by offset: batch number and place in it.
    shown: BTreeMap<i64, (u64, i64)>,
    /// No `DeleteRecords` ever asked for more that may have found this log.
    pub(super) trim_max: i64,
    /// Trims that were asked for and not answered: they may still come, and find the topic's successor.
    trims_unanswered: Vec<i64>,
    /// The largest high watermark that was seen.
    pub(super) end_seen: i64,
    /// The largest log start that was seen.
    pub(super) start_seen: i64,
}

impl Known {
    /// Returns the offset after the last acknowledged record.
    pub(super) fn acked_end(&self) -> i64 {
        self.acked.last_key_value().map_or(0, |(base, (_, count))| base + count)
    }
}

/// State of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// The topic is not there.
    #[default]
    Absent,
    /// Its creation was sent.
    Creating,
    /// The topic is there.
    Live,
    /// Its deletion was sent.
    Deleting,
}

/// One topic's name, through all its lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Topic {
    pub(super) standing: Standing,
    /// True if the topic was seen at work, or its creation was confirmed: it cannot be unknown any more.
    pub(super) firm: bool,
    /// Counts deletions.
    pub(super) life: u32,
    /// Its id in this life.
    pub(super) id: Option<Uuid>,
    /// Ids of its earlier lives.
    pub(super) old_ids: Vec<Uuid>,
    decisions: Decisions,
}

/// Decisions on whether a topic is there. One client asks for them, one question at a time.
#[derive(Clone, Debug, Default)]
struct Decisions {
    /// Questions that may be carried out yet: their answers were lost, or do not tell the outcome.
    open: u32,
    is_there: Option<bool>,
}

impl Decisions {
    /// Takes an answer that says whether the topic was there before, and is now. Returns false if that cannot be.
    fn take(&mut self, was_there: bool, is_there: bool) -> bool {
        self.open -= 1;
        let is_sure = self.open == 0;
        let fits = !is_sure || self.is_there.is_none_or(|known| known == was_there);
        self.is_there = is_sure.then_some(is_there);
        fits
    }
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(super) topics: BTreeMap<String, Topic>,
    /// The clock leapt, and the node was started after it: records may be too old now.
    pub(crate) trims_by_time: bool,
    /// Limits of topics: least time and bytes for which records are kept, if somebody ever asked for a limit.
    limits: BTreeMap<String, (Option<i64>, Option<i64>)>,
    /// The clients' time.
    pub(super) now_ms: i64,
    /// One topic is compacted.
    pub(super) has_keyed: bool,
    /// True if there are several nodes, of which each may be behind.
    pub(super) many: bool,
    known: BTreeMap<Place, Known>,
    sent: BTreeMap<u64, Sent>,
    deleted: u64,
    acked: u64,
    shown: u64,
}

impl Oracle {
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.acked, self.shown)
    }

    pub(super) fn add_topic(&mut self, name: &str) {
        self.topics.insert(name.to_owned(), Topic::default());
    }

    pub(super) fn live(&self) -> Vec<String> {
        let live = self.topics.iter().filter(|(_, topic)| topic.standing == Standing::Live);
        live.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn is_live(&self, name: &str, life: u32) -> bool {
        let topic = &self.topics[name];
        topic.standing == Standing::Live && topic.life == life
    }

    /// Returns the number of topics that were deleted.
    pub(crate) fn deleted(&self) -> u64 {
        self.deleted
    }

    /// Tells whether a topic of this id was deleted, by all that clients know.
    pub(crate) fn is_gone(&self, id: Uuid) -> bool {
        self.topics.values().any(|topic| topic.old_ids.contains(&id))
    }

    /// Tells whether a topic of this id was deleted, or may have been.
    pub(crate) fn may_be_gone(&self, id: Uuid) -> bool {
        let is_going = |topic: &Topic| topic.standing == Standing::Deleting && topic.id == Some(id);
        self.is_gone(id) || self.topics.values().any(is_going)
    }

    /// Returns the topic of this name that is there.
    pub(crate) fn id_of(&self, name: &str) -> Option<Uuid> {
        self.topics.get(name)?.id
    }

    /// Tells whether an answer by name is of this life of a topic. Among several nodes, one that is behind may still
    /// lead the topic that had the name before.
    pub(super) fn is_named_surely(&self, name: &str) -> bool {
        !self.many || self.topics[name].old_ids.is_empty()
    }

    pub(super) fn known(&mut self, place: &Place) -> &mut Known {
        self.known.entry(place.clone()).or_default()
    }

    pub(super) fn on_create_sent(&mut self, name: &str) {
        let topic = self.topics.get_mut(name).expect("it was added");
        topic.standing = Standing::Creating;
        topic.decisions.open += 1;
    }

    /// Takes the decider's word whether a topic was there, and is there now.
    pub(super) fn on_decided(
        &mut self,
        name: &str,
        was_there: bool,
        is_there: bool,
    ) -> Result<(), Failure> {
        let topic = self.topics.get_mut(name).expect("it was added");
        if topic.decisions.take(was_there, is_there) {
            return Ok(());
        }
        let before = if was_there {
            "was gone, and is said to be"
        } else {
            "was there, and is said not to be"
        };
        wrong(format!("topic {name} {before} there"))
    }

    /// Notes that the topic was created just now, or (not `firm`) that somebody has asked for it before.
    pub(super) fn on_created(&mut self, name: &str, firm: bool) {
        let topic = self.topics.get_mut(name).expect("it was added");
        topic.standing = Standing::Live;
        topic.firm |= firm;
    }

    /// Judges that the node does not know a topic: it may not be there only if nobody was told that it is.
    pub(super) fn on_unknown(&mut self, name: &str) -> Result<(), Failure> {
        if self.many {
            return Ok(());
        }
        let topic = self.topics.get_mut(name).expect("it was added");
        if topic.firm {
            return wrong(format!("P1: topic {name} was created, and is unknown"));
        }
        topic.standing = Standing::Creating;
        Ok(())
    }

    /// Notes that a topic was seen to have this id: so it is there for good.
    pub(super) fn on_id(&mut self, name: &str, life: u32, id: Uuid) -> Result<(), Failure> {
        let topic = self.topics.get_mut(name).expect("it was added");
        if topic.old_ids.contains(&id) && topic.life == life {
            if self.many {
                return Ok(()); // by a node that is behind
            }
            return wrong(format!("topic {name} has the id of a topic that is gone"));
        }
        if topic.standing != Standing::Live || topic.life != life {
            return Ok(());
        }
        topic.firm = true;
        match topic.id.replace(id) {
            Some(before) if before != id => {
                wrong(format!("topic {name} was {before}, and is {id}"))
            }
            _ => Ok(()),
        }
    }

    /// Handles the answer of a node that may be behind. It gives a topic no id, or (`Some`) that of one that is gone,
    /// though somebody said that the topic is there. An earlier request may have been carried out late, so the topic
    /// is made again, or first deleted again.
    pub(super) fn on_doubtful(&mut self, name: &str, id: Option<Uuid>) {
        let topic = self.topics.get_mut(name).expect("it was added");
        if topic.standing == Standing::Live && topic.id.is_none() {
            topic.decisions.is_there = None;
            topic.standing = if id.is_some() { Standing::Deleting } else { Standing::Creating };
            topic.old_ids.retain(|old| Some(*old) != id);
            topic.id = id;
        }
    }

    /// Notes that a topic was made just now.
    pub(super) fn on_new_id(&mut self, name: &str, life: u32, id: Uuid) -> Result<(), Failure> {
        if self.is_gone(id) {
            return wrong(format!("topic {name} was made, and has the id of one that is gone"));
        }
        self.on_id(name, life, id)
    }

    pub(super) fn on_trim_sent(&mut self, place: &Place, offset: i64) {
        let known = self.known(place);
        known.trim_max = known.trim_max.max(offset);
        known.trims_unanswered.push(offset);
    }

    /// Notes that a trim was answered: whatever the answer, it will not be carried out later.
    pub(super) fn on_trim_answered(&mut self, place: &Place, offset: i64) {
        let unanswered = &mut self.known(place).trims_unanswered;
        if let Some(at) = unanswered.iter().position(|asked| *asked == offset) {
            unanswered.swap_remove(at);
        }
    }

    /// Notes that a log was trimmed at its start.
    pub(super) fn on_trimmed(
        &mut self,
        place: &Place,
        asked: i64,
        start: i64,
    ) -> Result<(), Failure> {
        let is_sure = self.is_named_surely(&place.0);
        let is_short = start < asked;
        if is_short || is_sure && !self.may_start_at(place, start) {
            return wrong(format!("{place:?}: {asked} was asked for, and it starts at {start}"));
        }
        if is_sure {
            let known = self.known(place);
            known.start_seen = known.start_seen.max(start);
        }
        Ok(())
    }

    pub(super) fn on_delete_sent(&mut self, name: &str) {
        let topic = self.topics.get_mut(name).expect("it was added");
        topic.standing = Standing::Deleting;
        topic.decisions.open += 1;
    }

    pub(super) fn on_deleted(&mut self, name: &str) {
        let topic = self.topics.get_mut(name).expect("it was added");
        topic.standing = Standing::Absent;
        topic.firm = false;
        topic.life += 1;
        topic.old_ids.extend(topic.id.take());
        self.deleted += 1;
        let many = self.many;
        for (_, known) in self.known.iter_mut().filter(|((topic, _), _)| topic == name) {
            let before = std::mem::take(known);
            // The process that has the request may stand still.
            if many {
                known.trim_max = before.trims_unanswered.iter().copied().max().unwrap_or(0);
                known.trims_unanswered = before.trims_unanswered;
            }
        }
    }

    /// Tells whether a log may start at `start`.
    pub(super) fn may_start_at(&mut self, place: &Place, start: i64) -> bool {
        self.trims_by_time
            || start <= self.known(place).trim_max
            || self.may_have_expired(place, start)
    }

    /// Notes that somebody asks for a topic's records to be kept for so long only, or up to so many bytes.
    pub(super) fn limit(&mut self, topic: &str, ms: Option<i64>, bytes: Option<i64>) {
        let limits = self.limits.entry(topic.to_owned()).or_default();
        limits.0 = limits.0.into_iter().chain(ms).min();
        limits.1 = limits.1.into_iter().chain(bytes).min();
    }

    /// Tells whether records of a topic may go by themselves.
    pub(super) fn may_expire(&self, topic: &str) -> bool {
        self.trims_by_time || self.limits.contains_key(topic)
    }

    /// Tells whether retention may have deleted all records known to have been below `start`. Either all are old
    /// enough, or the bytes above the last young one reach the limit.
    fn may_have_expired(&self, place: &Place, start: i64) -> bool {
        let Some((ms, most)) = self.limits.get(&place.0).copied() else { return false };
        let Some(known) = self.known.get(place) else { return true };
        let shown = known.shown.range(known.trim_max..start);
        let shown = shown.map(|(offset, (batch, _))| (offset + 1, *batch));
        let acked = known.acked.range(..start);
        let acked = acked.map(|(base, (batch, count))| (base + count, *batch));
        let below = acked.filter(|(end, _)| *end > known.trim_max).chain(shown);
        let is_young = |batch: &u64| {
            let age_ms = self.now_ms + LATE_MS - self.sent[batch].at_ms;
            ms.is_none_or(|ms| age_ms < ms)
        };
        let young = below.filter(|(_, batch)| is_young(batch)).map(|(end, _)| end);
        let Some(last) = young.max() else { return true };
        let life = self.topics[&place.0].life;
        let here = self.sent.values().filter(|it| it.place == *place && it.life == life);
        let is_above = |it: &&Sent| {
            let base = it.acked.or(it.seen);
            !it.is_void && base.is_none_or(|base| base + it.count > last)
        };
        let above: i64 = here.filter(is_above).map(|it| it.bytes).sum();
        most.is_some_and(|most| above >= most)
    }

    pub(super) fn on_sent(
        &mut self,
        batch: u64,
        (place, life): (&Place, u32),
        (count, bytes): (i64, usize),
        is_void: bool,
    ) {
        let (place, at_ms) = (place.clone(), self.now_ms);
        let bytes = i64::try_from(bytes).expect("small");
        let sent = Sent { place, life, count, bytes, at_ms, is_void, acked: None, seen: None };
        self.sent.entry(batch).or_insert(sent);
    }

    /// Judges the offset in the answer to a produce request.
    pub(super) fn on_acked(&mut self, batch: u64, base: i64) -> Result<(), Failure> {
        self.acked += 1;
        let sent = self.sent.get_mut(&batch).expect("it was sent");
        if sent.is_void {
            return wrong(format!("P4: batch {batch} was void, and is at {base}"));
        }
        if let Some(before) = sent.acked.or(sent.seen)
            && before != base
        {
            return wrong(format!("P4: batch {batch} is at {before}, and its retry says {base}"));
        }
        sent.acked = Some(base);
        let (place, count) = (sent.place.clone(), sent.count);
        self.topics.get_mut(&place.0).expect("it was added").firm = true;
        let known = self.known.entry(place.clone()).or_default();
        let before = known.acked.range(..base + count).next_back();
        if let Some((other, (number, length))) = before
            && other + length > base
            && *number != batch
        {
            return wrong(format!("P3: batches {number} and {batch} of {place:?} share offsets"));
        }
        for offset in base..base + count {
            if known.shown.get(&offset).is_some_and(|shown| *shown != (batch, offset - base)) {
                return wrong(format!("P2: offset {offset} of {place:?} was shown otherwise"));
            }
        }
        known.acked.insert(base, (batch, count));
        Ok(())
    }

    /// Notes that a batch was refused: it must never be in a log.
    pub(super) fn on_refused(&mut self, batch: u64) -> Result<(), Failure> {
        let sent = self.sent.get_mut(&batch).expect("it was sent");
        sent.is_void = true;
        match sent.acked.or(sent.seen) {
            Some(base) => wrong(format!("batch {batch} was refused, and is at {base}")),
            None => Ok(()),
        }
    }

    /// Judges a record that a consumer was given.
    pub(super) fn on_shown(
        &mut self,
        place: &Place,
        offset: i64,
        record: (u64, i64),
    ) -> Result<(), Failure> {
        self.shown += 1;
        let (batch, within) = record;
        let life = self.topics[&place.0].life;
        let Some(sent) = self.sent.get_mut(&batch).filter(|sent| sent.place == *place) else {
            return wrong(format!("{place:?} offset {offset}: batch {batch} was never sent there"));
        };
        if sent.life < life {
            return wrong(format!("{place:?} offset {offset}: data of a deleted topic is back"));
        }
        if sent.is_void {
            return wrong(format!("P4: {place:?} offset {offset}: batch {batch} was void"));
        }
        let base = offset - within;
        if sent.acked.or(sent.seen).is_some_and(|before| before != base) || within >= sent.count {
            return wrong(format!(
                "P4: batch {batch} of {place:?} is at {base}, and was elsewhere"
            ));
        }
        sent.seen = Some(base);
        let known = self.known.entry(place.clone()).or_default();
        if let Some(before) = known.shown.insert(offset, record)
            && before != record
        {
            return wrong(format!("P2: {place:?} offset {offset}: {before:?}, then {record:?}"));
        }
        let acked = known.acked.range(..=offset).next_back();
        match acked {
            Some((base, (number, count))) if base + count > offset && *number != batch => {
                wrong(format!("P1: {place:?} offset {offset}: {number} was acked, {batch} shown"))
            }
            _ => Ok(()),
        }
    }

    /// Judges a record of a topic that is gone: it must be one of that topic's.
    pub(super) fn on_shown_of_gone(&self, place: &Place, batch: u64) -> Result<(), Failure> {
        let life = self.topics[&place.0].life;
        match self.sent.get(&batch) {
            Some(sent) if sent.place == *place && (sent.life < life || sent.is_void) => Ok(()),
            _ => wrong(format!("{place:?}: an old topic shows batch {batch}, sent to a new one")),
        }
    }

    /// Judges the log end offset told to a client that asked when the end was `least` already.
    pub(super) fn on_end(&mut self, place: &Place, end: i64, least: i64) -> Result<(), Failure> {
        if !self.is_named_surely(&place.0) {
            return Ok(());
        }
        if end < least {
            return wrong(format!("P2: {place:?} ended at {least}, then at {end}"));
        }
        let known = self.known(place);
        known.end_seen = known.end_seen.max(end);
        Ok(())
    }

    /// Judges a partition that was read from its start to its end in the last phase.
    pub(super) fn on_read_through(
        &mut self,
        place: &Place,
        start: i64,
        end: i64,
        read: &BTreeMap<i64, (u64, i64)>,
    ) -> Result<(), Failure> {
        if !self.may_start_at(place, start) {
            let asked = self.known(place).trim_max;
            return wrong(format!("{place:?} starts at {start}, but only {asked} was asked for"));
        }
        let known = self.known.entry(place.clone()).or_default();
        if self.has_keyed && place.0 == KEYED {
            return self.check_compacted(place, start, end, read);
        }
        if let Some(missing) = (start..end).find(|offset| !read.contains_key(offset)) {
            return wrong(format!("P3: {place:?} has no offset {missing} of {start}..{end}"));
        }
        if end < known.acked_end() {
            return wrong(format!("P1: {place:?} ends at {end}, {} was acked", known.acked_end()));
        }
        for (offset, record) in known.shown.range(start..) {
            if read.get(offset) != Some(record) {
                return wrong(format!("P2: {place:?} offset {offset} was shown, and is gone"));
            }
        }
        for (base, (batch, count)) in &known.acked {
            for within in 0..*count {
                let offset = base + within;
                if offset >= start && read.get(&offset) != Some(&(*batch, within)) {
                    return wrong(format!("P1: {place:?} offset {offset} was acked, and is gone"));
                }
            }
        }
        Ok(())
    }

    /// Checks a log that is compacted: of each key the last record is there, and none that is older than one that is
    /// gone.
    fn check_compacted(
        &self,
        place: &Place,
        start: i64,
        end: i64,
        read: &BTreeMap<i64, Numbered>,
    ) -> Result<(), Failure> {
        let known = &self.known[place];
        if end < known.acked_end() {
            return wrong(format!("P1: {place:?} ends at {end}, {} was acked", known.acked_end()));
        }
        let life = self.topics[&place.0].life;
        let here = self.sent.iter().filter(|(_, it)| it.place == *place && it.life == life);
        let (mut all, mut unknown) = (known.shown.clone(), Vec::new());
        for (batch, sent) in here {
            // Of one that was seen some records may have been gone by then.
            match sent.acked.or(sent.seen) {
                Some(base) => all.extend((0..sent.count).map(|it| (base + it, (*batch, it)))),
                None => unknown.extend((0..sent.count).map(|it| (*batch, it))),
            }
        }
        all.retain(|offset, _| *offset >= start);
        match keyed::fault(read, &all, &unknown) {
            Some(fault) => wrong(format!("P1: {place:?}: {fault}")),
            None => Ok(()),
        }
    }

    /// Tells whether one topic is compacted.
    pub(crate) fn compacts(&self) -> bool {
        self.has_keyed
    }

    /// Turns compaction off, if so.
    pub(crate) fn spare_compaction(&mut self, is_spared: bool) {
        self.has_keyed &= !is_spared;
    }

    /// Tells whether a topic is compacted.
    pub(super) fn is_keyed(&self, name: &str) -> bool {
        self.has_keyed && name == KEYED
    }

    /// Checks the end of a run.
    pub(crate) fn check_complete(&self) -> Result<(), Failure> {
        let unsettled = self
            .topics
            .iter()
            .find(|(_, topic)| matches!(topic.standing, Standing::Creating | Standing::Deleting));
        match unsettled {
            Some((name, _)) => Err(Failure::liveness(format!("topic {name} never settled"))),
            None => Ok(()),
        }
    }
}
