//! # Room card: oracle
//!
//! Purpose:    what clients may observe, given what they did.
//! Owns:       the promises P1 to P4 as checks.
//! Interface:  [`Oracle`].
//! Invariants: an unanswered request may have happened once, or not.
//! Never:      the node's inside.
//! Tests:      planted bugs.
//! Start at:   [`Oracle::on_shown`].

use std::collections::BTreeMap;

use duramen_protocol::wire::Uuid;

use crate::failure::Failure;

/// A partition of one life of a topic.
pub(super) type Place = (String, i32);

/// A batch that was sent.
#[derive(Clone, Debug)]
struct Sent {
    place: Place,
    count: i64,
    /// It does not follow its producer's last one, or its topic was gone: it must never be in a log.
    is_void: bool,
    /// When it was last sent.
    at: u64,
    acked: Option<i64>,
    seen: Option<i64>,
}

/// What is known of one partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// By base offset: batch number and count.
    acked: BTreeMap<i64, (u64, i64)>,
    /// By offset: batch number and place in it.
    shown: BTreeMap<i64, (u64, i64)>,
    /// No `DeleteRecords` ever asked for more.
    pub(super) trim_max: i64,
    /// The largest high watermark that was seen.
    pub(super) end_seen: i64,
    /// The largest log start that was seen.
    pub(super) start_seen: i64,
}

impl Known {
    /// What is acknowledged ends here.
    pub(super) fn acked_end(&self) -> i64 {
        self.acked.last_key_value().map_or(0, |(base, (_, count))| base + count)
    }
}

/// How a topic stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is not there.
    Absent,
    /// Its creation was sent.
    Creating,
    /// It is there.
    Live,
    /// Its deletion was sent.
    Deleting,
}

/// One topic's name, through all its lives.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub(super) standing: Standing,
    /// It was seen at work, or its creation was confirmed: it cannot be unknown any more.
    pub(super) firm: bool,
    /// Counts deletions.
    pub(super) life: u32,
    /// Its id in this life.
    pub(super) id: Option<Uuid>,
    /// Those of its earlier lives.
    pub(super) old_ids: Vec<Uuid>,
    /// Batches sent before this must never be seen: they were for an earlier life.
    barrier: u64,
    deleting_since: u64,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(super) topics: BTreeMap<String, Topic>,
    /// The clock leapt, and the node was started after it: records may be too old now.
    pub(super) trims_by_time: bool,
    /// There are several nodes, and each may be behind.
    pub(super) many: bool,
    known: BTreeMap<Place, Known>,
    sent: BTreeMap<u64, Sent>,
    clock: u64,
    acked: u64,
    shown: u64,
}

fn wrong<T>(what: String) -> Result<T, Failure> {
    Err(Failure::correctness(what))
}

impl Oracle {
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.acked, self.shown)
    }

    pub(super) fn add_topic(&mut self, name: &str) {
        let topic = Topic {
            standing: Standing::Absent,
            firm: false,
            life: 0,
            id: None,
            old_ids: Vec::new(),
            barrier: 0,
            deleting_since: 0,
        };
        self.topics.insert(name.to_owned(), topic);
    }

    pub(super) fn is_live(&self, name: &str, life: u32) -> bool {
        let topic = &self.topics[name];
        topic.standing == Standing::Live && topic.life == life
    }

    pub(super) fn known(&mut self, place: &Place) -> &mut Known {
        self.known.entry(place.clone()).or_default()
    }

    pub(super) fn on_create_sent(&mut self, name: &str) {
        self.topics.get_mut(name).expect("it was added").standing = Standing::Creating;
    }

    /// It was created just now, or (not `firm`) somebody has asked for it before.
    pub(super) fn on_created(&mut self, name: &str, firm: bool) {
        let topic = self.topics.get_mut(name).expect("it was added");
        topic.standing = Standing::Live;
        topic.firm |= firm;
    }

    /// The node does not know a topic; it may not be there only if nobody was told that it is.
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

    /// A topic was seen to have this id: so it is there for good.
    pub(super) fn on_id(&mut self, name: &str, life: u32, id: Uuid) -> Result<(), Failure> {
        let topic = self.topics.get_mut(name).expect("it was added");
        if topic.old_ids.contains(&id) && topic.life == life {
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

    /// A log was cut at its start.
    pub(super) fn on_trimmed(
        &mut self,
        place: &Place,
        asked: i64,
        start: i64,
    ) -> Result<(), Failure> {
        let is_short = start < asked;
        if is_short || !self.may_start_at(place, start) {
            return wrong(format!("{place:?}: {asked} was asked for, and it starts at {start}"));
        }
        let known = self.known(place);
        known.start_seen = known.start_seen.max(start);
        Ok(())
    }

    pub(super) fn on_delete_sent(&mut self, name: &str) {
        self.clock += 1;
        let topic = self.topics.get_mut(name).expect("it was added");
        if topic.standing != Standing::Deleting {
            topic.deleting_since = self.clock;
        }
        topic.standing = Standing::Deleting;
    }

    pub(super) fn on_deleted(&mut self, name: &str) {
        let topic = self.topics.get_mut(name).expect("it was added");
        topic.standing = Standing::Absent;
        topic.firm = false;
        topic.life += 1;
        topic.old_ids.extend(topic.id.take());
        topic.barrier = topic.deleting_since;
        self.known.retain(|(topic, _), _| topic != name);
    }

    /// Whether a log may start at `start`.
    pub(super) fn may_start_at(&mut self, place: &Place, start: i64) -> bool {
        self.trims_by_time || start <= self.known(place).trim_max
    }

    pub(super) fn on_sent(&mut self, batch: u64, place: &Place, count: i64, is_void: bool) {
        self.clock += 1;
        let at = self.clock;
        let sent = Sent { place: place.clone(), count, is_void, at, acked: None, seen: None };
        self.sent.entry(batch).or_insert(sent).at = at;
    }

    /// A produce was answered with an offset.
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

    /// A consumer was given this record.
    pub(super) fn on_shown(
        &mut self,
        place: &Place,
        offset: i64,
        record: (u64, i64),
    ) -> Result<(), Failure> {
        self.shown += 1;
        let (batch, within) = record;
        let barrier = self.topics[&place.0].barrier;
        let Some(sent) = self.sent.get_mut(&batch).filter(|sent| sent.place == *place) else {
            return wrong(format!("{place:?} offset {offset}: batch {batch} was never sent there"));
        };
        if sent.at < barrier {
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

    /// Where a log ends was told to a client that asked when it ended at `least` already.
    pub(super) fn on_end(&mut self, place: &Place, end: i64, least: i64) -> Result<(), Failure> {
        if end < least {
            return wrong(format!("P2: {place:?} ended at {least}, then at {end}"));
        }
        let known = self.known(place);
        known.end_seen = known.end_seen.max(end);
        Ok(())
    }

    /// A partition was read from its start to its end in the last phase.
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

    /// The run is over.
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
