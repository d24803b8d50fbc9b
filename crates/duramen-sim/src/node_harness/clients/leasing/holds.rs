//! Leases and fates of messages, by all answers of nodes, whether or not anybody heard them; and the fates that no
//! message may have.
//!
//! A term of a partition is one leader's. Within it, each delivery counts, and a message has one holder. That ends
//! when the lock ends by the clock of the leader's process, or the holder may have let go. A new leader knows the
//! decisions that were answered, and not the holders. A leader that was deposed and does not know it may give out
//! messages that others are done with; decisions on those are not answered.
//!
//! Names of two leases of a message differ within a term, unless one was handed back as unseen. A worker may get the
//! same name again from the next leader, which does not know of the first delivery.

use std::collections::{BTreeMap, BTreeSet};

use duramen_broker::native::{Decision, Settlement};

use super::messages::{Message, Messages};
use super::{Place, Said};
use crate::failure::{Failure, wrong};
use crate::trace::tell;

/// Rules of the group, through all of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// True if one message of a queue is out at a time.
    pub(super) by_key: bool,
    pub(super) deliveries_max: i16,
    pub(super) lock_us: u64,
    pub(super) has_letters: bool,
}

/// Times of a node when it gives out a message, or takes a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Time of the process when the question came, and when it is answered, in microseconds.
    pub(super) came_us: u64,
    pub(super) now_us: u64,
    /// Time of the machine's clock at the same moments, in milliseconds since 1970.
    pub(super) came_ms: i64,
    pub(super) now_ms: i64,
    /// Latest time that the clock has shown to the process.
    pub(super) latest_ms: i64,
    /// True if clocks leap in this run.
    pub(super) leaps: bool,
}

/// One lease of a message.
#[derive(Clone, Debug)]
struct Hold {
    worker: String,
    count: i16,
    /// Number of the answer that gave it.
    moment: u64,
    /// The lock does not end before, and has ended then.
    until_us: u64,
    until_at_most_us: u64,
    /// Requests that may have ended it, and those of them that may have handed it back as unseen.
    over_by: BTreeSet<u64>,
    unseen_by: BTreeSet<u64>,
    /// True if it was handed back for certain.
    is_unseen: bool,
}

impl Hold {
    fn is_named(&self, said: &Said, it: &Settlement) -> bool {
        self.worker == said.worker && self.count == it.deliveries
    }

    fn is_held(&self, now_us: u64) -> bool {
        self.over_by.is_empty() && now_us < self.until_us
    }
}

/// Decision that a request may have brought about.
#[derive(Clone, Debug)]
struct Word {
    worker: String,
    count: i16,
    decision: Decision,
}

/// Fate of one record.
#[derive(Clone, Debug, Default)]
struct Fate {
    /// Leases by term, the last one last.
    holds: BTreeMap<u64, Vec<Hold>>,
    most: i16,
    said: BTreeMap<u64, Word>,
    /// Term in which a decision for good was answered.
    done: Option<u64>,
    /// Term and number of deliveries that are kept at least.
    kept: Option<(u64, i16)>,
    /// Term whose leader keeps a released message back, and the end of that time in milliseconds.
    back: Option<(u64, i64)>,
}

impl Fate {
    fn may_be_done(&self, rules: &Rules) -> bool {
        let is_final = |it: &Word| matches!(it.decision, Decision::Accept | Decision::Reject);
        self.done.is_some() || self.most >= rules.deliveries_max || self.said.values().any(is_final)
    }

    fn may_be_accepted(&self) -> bool {
        self.said.values().any(|it| it.decision == Decision::Accept)
    }

    fn may_be_rejected(&self) -> bool {
        self.said.values().any(|it| it.decision == Decision::Reject)
    }

    /// Checks that a leader may lease the message.
    fn check_given(&self, term: u64, count: i16, times: Times) -> Result<(), String> {
        if self.done.is_some_and(|done| done <= term) {
            return Err("it was done with".to_owned());
        }
        if let Some((_, until_ms)) = self.back.filter(|back| back.0 == term)
            && times.latest_ms < until_ms
        {
            return Err(format!("it was to stay back until {until_ms}, now {}", times.latest_ms));
        }
        if let Some(hold) = self.holds.get(&term).and_then(|all| all.last()) {
            if hold.is_held(times.now_us) {
                return Err(format!("somebody else holds it at {}", times.now_us));
            }
            let may_be_unseen = hold.is_unseen || !hold.unseen_by.is_empty();
            let is_next = count == hold.count + 1 && !hold.is_unseen;
            let is_again = count == hold.count && may_be_unseen;
            let text = || format!("it is the {count}th time");
            return if is_next || is_again { Ok(()) } else { Err(text()) };
        }
        let least = self.kept.filter(|(since, _)| *since <= term).map_or(0, |(_, count)| count);
        if count <= least || count > self.most + 1 {
            let most = self.most;
            return Err(format!("it is the {count}th time, after {least} to {most}"));
        }
        Ok(())
    }

    /// Checks that a leader may have taken a decision, and notes its effect.
    fn check_taken(
        &mut self,
        said: &Said,
        it: &Settlement,
        term: u64,
        (times, lock_us): (Times, u64),
    ) -> Result<(), String> {
        let is_kept = !matches!(it.decision, Decision::Renew | Decision::Unseen);
        let is_before = |hold: &Hold| hold.moment < said.moment;
        let mut later = self.holds.range(term + 1..).flat_map(|(_, all)| all);
        if let Some(hold) = later.find(|hold| is_kept && is_before(hold)) {
            return Err(format!("it was leased in a later term before the question: {hold:?}"));
        }
        let Some(all) = self.holds.get_mut(&term) else {
            return Err("nobody has a lease of it in this term".to_owned());
        };
        let is_it = |hold: &Hold| hold.is_named(said, it) && times.came_us < hold.until_at_most_us;
        let Some(at) = all.iter().rposition(is_it) else {
            return Err("it is no such lease, or its time was over".to_owned());
        };
        if let Some(hold) = all[at + 1..].iter().find(|hold| is_before(hold)) {
            return Err(format!("it was leased again before the question: {hold:?}"));
        }
        // The answer may wait for other decisions, and the message may be another's by then. One that was accepted is
        // nobody's.
        let is_final = matches!(it.decision, Decision::Accept | Decision::Reject);
        if is_final && at + 1 < all.len() {
            return Err("somebody else has a lease of it".to_owned());
        }
        let is_alone = all.iter().filter(|hold| hold.is_named(said, it)).count() == 1;
        let hold = &mut all[at];
        match it.decision {
            Decision::Renew => {
                hold.until_us = hold.until_us.max(times.came_us + lock_us);
                hold.until_at_most_us = times.now_us + lock_us;
            }
            // Of two leases with this name, nobody knows which one was handed back.
            Decision::Unseen => hold.is_unseen = is_alone,
            Decision::Release { delay_ms } => {
                self.kept = self.kept.max(Some((term, it.deliveries)));
                let is_last = at + 1 == all.len() && delay_ms > 0 && !times.leaps;
                self.back = is_last.then_some((term, times.came_ms + delay_ms));
            }
            Decision::Accept | Decision::Reject | Decision::Gone => {
                self.done = self.done.max(Some(term));
            }
        }
        Ok(())
    }
}

/// A turn of a queue.
#[derive(Clone, Debug)]
struct Turn {
    queue: String,
    priority: u8,
    offset: i64,
}

/// A message that a leader gives out.
#[derive(Clone, Debug)]
pub(super) struct Given<'a> {
    pub(super) place: Place,
    pub(super) term: u64,
    pub(super) worker: &'a str,
    pub(super) count: i16,
    pub(super) moment: u64,
}

/// See above.
#[derive(Debug)]
pub(super) struct Holds {
    pub(super) rules: Rules,
    fates: BTreeMap<Place, Fate>,
    /// Turns of queues by partition and term.
    turns: BTreeMap<(i32, u64), Vec<Turn>>,
    letters: BTreeSet<Place>,
    /// Leases, decisions that were answered, and messages that may have ended.
    pub(super) leased: u64,
    pub(super) settled: u64,
}

impl Holds {
    pub(super) fn new(rules: Rules) -> Self {
        let (fates, turns, letters) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { rules, fates, turns, letters, leased: 0, settled: 0 }
    }

    pub(super) fn letters(&self) -> u64 {
        self.letters.len() as u64
    }

    fn fate(&self, place: Place) -> Option<&Fate> {
        self.fates.get(&place)
    }

    fn is_untouched(&self, place: Place) -> bool {
        self.fate(place).is_none_or(|fate| fate.holds.is_empty())
    }

    /// Tells whether a record of a message's queue may be in its last delivery. Such a record comes alone, and its
    /// queue may lose a turn.
    fn has_last_time(&self, message: &Message, messages: &Messages) -> bool {
        let (partition, _) = message.place.unwrap_or_default();
        let mut of_queue = messages.of(partition).filter(|it| it.1.queue == message.queue);
        let may_be_last = |fate: &Fate| fate.most > 0 && fate.most + 1 >= self.rules.deliveries_max;
        of_queue.any(|it| self.fate(it.0).is_some_and(may_be_last))
    }

    /// Tells whether nobody was ever given a message.
    pub(super) fn is_free(&self, message: &Message) -> bool {
        message.place.is_some_and(|place| self.is_untouched(place))
    }

    /// Notes decisions that leave their worker.
    pub(super) fn on_said(&mut self, said: &Said) {
        for it in &said.settlements {
            let fate = self.fates.entry((said.partition, it.offset)).or_default();
            let one =
                Word { worker: said.worker.clone(), count: it.deliveries, decision: it.decision };
            fate.said.insert(said.request, one);
            let all = fate.holds.values_mut().flatten();
            for hold in all.filter(|hold| hold.is_named(said, it)) {
                hold.note(said.request, it.decision);
            }
        }
    }

    /// Judges a lease.
    pub(super) fn on_given(
        &mut self,
        given: &Given<'_>,
        messages: &Messages,
        times: Times,
    ) -> Result<(), Failure> {
        let &Given { place, term, worker, count, moment } = given;
        self.leased += 1;
        tell(|| format!("  {worker} leases {place:?} for the {count}th time in term {term}"));
        if count < 1 || count > self.rules.deliveries_max {
            let most = self.rules.deliveries_max;
            return wrong(format!("{given:?}: {most} times are the most"));
        }
        if let Some((_, message)) = messages.at(place) {
            check_time(message, times).or_else(|why| wrong(format!("{given:?}: {why}")))?;
            if self.rules.by_key {
                self.check_order(given, message, messages, times)?;
            }
        }
        let fate = self.fates.entry(place).or_default();
        if let Err(why) = fate.check_given(term, count, times) {
            return wrong(format!("{given:?}: {why}: {fate:?}"));
        }
        fate.most = fate.most.max(count);
        fate.back = None;
        let until_us = times.now_us + self.rules.lock_us;
        let mut hold = Hold {
            worker: worker.to_owned(),
            count,
            moment,
            until_us,
            until_at_most_us: until_us,
            over_by: BTreeSet::new(),
            unseen_by: BTreeSet::new(),
            is_unseen: false,
        };
        // A decision on the way may be on a lease of this name.
        for (request, it) in &fate.said {
            if it.worker == worker && it.count == count {
                hold.note(*request, it.decision);
            }
        }
        fate.holds.entry(term).or_default().push(hold);
        Ok(())
    }

    /// Checks that one message of a queue is out at a time, and the first one first.
    fn check_order(
        &self,
        given: &Given<'_>,
        message: &Message,
        messages: &Messages,
        times: Times,
    ) -> Result<(), Failure> {
        let of_queue = messages.of(given.place.0).filter(|it| it.1.queue == message.queue);
        for (other, it) in of_queue.filter(|it| it.0 != given.place) {
            let fate = self.fate(other);
            let hold = fate.and_then(|fate| fate.holds.get(&given.term)?.last());
            if hold.is_some_and(|hold| hold.is_held(times.now_us)) {
                return wrong(format!("{given:?}: {other:?} of the same queue is out: {hold:?}"));
            }
            let is_first = other < given.place && it.is_timeless() && it.acknowledged.is_some();
            if is_first && !fate.is_some_and(|fate| fate.may_be_done(&self.rules)) {
                return wrong(format!("{given:?}: {other:?} of the same queue is first: {fate:?}"));
            }
        }
        Ok(())
    }

    /// Judges the order of the leases of one answer, all of one partition.
    pub(super) fn on_turns(
        &mut self,
        (partition, term): (i32, u64),
        places: &[Place],
        messages: &Messages,
    ) -> Result<(), Failure> {
        if self.rules.by_key {
            return Ok(());
        }
        let mut turns = self.turns.remove(&(partition, term)).unwrap_or_default();
        let known = turns.iter().map(|it| it.offset).max().unwrap_or(-1);
        // Messages that the leader had seen before, and that nobody has had.
        let is_left = |(place, it): &(Place, &Message)| {
            let is_free = it.is_timeless() && self.is_untouched(*place);
            place.1 <= known && is_free && !places.contains(place)
        };
        let left: Vec<_> = messages.of(partition).filter(is_left).collect();
        for place in places {
            let Some((_, message)) = messages.at(*place) else { continue };
            if let Some(other) = left.iter().find(|it| it.1.priority > message.priority) {
                return wrong(format!("{place:?}: {message:?} is leased before {other:?}"));
            }
            let passed = passed(&turns, message, &left);
            if let Some(other) = passed.filter(|it| !self.has_last_time(it.1, messages)) {
                return wrong(format!("{place:?}: {message:?} is leased again before {other:?}"));
            }
            let (queue, priority) = (message.queue.clone(), message.priority);
            turns.push(Turn { queue, priority, offset: place.1 });
        }
        self.turns.insert((partition, term), turns);
        Ok(())
    }

    /// Returns a message that a leader has for workers for certain. The message was acknowledged before a moment, lies
    /// below an offset, and nobody has had it.
    pub(super) fn available<'a>(
        &self,
        (partition, committed): (i32, i64),
        moment: u64,
        messages: &'a Messages,
    ) -> Option<(Place, &'a Message)> {
        let is_known = |it: &Message| it.acknowledged.is_some_and(|at| at < moment);
        let mut here = messages.of(partition).filter(|it| !self.rules.by_key && is_known(it.1));
        here.find(|(place, it)| {
            place.1 < committed && it.is_timeless() && self.is_untouched(*place)
        })
    }

    /// Notes that a request decided nothing, for certain.
    pub(super) fn on_refused(&mut self, said: &Said) {
        for it in &said.settlements {
            if let Some(fate) = self.fates.get_mut(&(said.partition, it.offset)) {
                fate.forget(said.request);
            }
        }
    }

    /// Judges the answer to decisions, of which these offsets are said to be nobody's, by a leader of this term.
    pub(super) fn on_settled(
        &mut self,
        said: &Said,
        lost: &[i64],
        term: Option<u64>,
        times: Times,
    ) -> Result<(), Failure> {
        for it in &said.settlements {
            let place = (said.partition, it.offset);
            let fate = self.fates.entry(place).or_default();
            let is_lost = lost.contains(&it.offset);
            let Some(term) = term else {
                if is_lost {
                    fate.forget(said.request);
                }
                continue;
            };
            if !is_lost {
                self.settled += 1;
                let lock_us = self.rules.lock_us;
                if let Err(why) = fate.check_taken(said, it, term, (times, lock_us)) {
                    let text = format!("{it:?} of {:?} is taken at {place:?}", said.worker);
                    return wrong(format!("{text} in term {term}: {why}: {fate:?}"));
                }
                if !matches!(it.decision, Decision::Accept | Decision::Reject) {
                    fate.said.remove(&said.request);
                }
                continue;
            }
            fate.forget(said.request);
            let last = fate.holds.get(&term).and_then(|all| all.last());
            // The decision may have come before a lease of this name, and be answered later.
            let is_its = |hold: &&Hold| {
                hold.moment < said.moment && hold.is_named(said, it) && hold.is_held(times.now_us)
            };
            if let Some(hold) = last.filter(is_its) {
                return wrong(format!("{it:?} is said to be lost in term {term}, and is {hold:?}"));
            }
        }
        Ok(())
    }

    /// Judges a dead letter.
    pub(super) fn on_letter(
        &mut self,
        place: Place,
        message: &Message,
        (now_ms, lies): (i64, bool),
    ) -> Result<(), Failure> {
        let fate = self.fates.entry(place).or_default();
        let may_be = fate.most >= self.rules.deliveries_max || fate.may_be_rejected();
        if !may_be && !may_expire(message, now_ms, lies) {
            return wrong(format!("{place:?} is a dead letter: {message:?} {fate:?}"));
        }
        self.letters.insert(place);
        Ok(())
    }

    /// Returns a message that was acknowledged, and with which the group cannot be done.
    pub(super) fn open<'a>(
        &self,
        messages: &'a Messages,
        (now_ms, lies): (i64, bool),
    ) -> Option<(Place, &'a Message)> {
        let mut all = messages.all.values().filter(|it| it.acknowledged.is_some());
        all.find_map(|it| {
            let place = it.place.expect("an acknowledged message has a place");
            let is_done = self.fate(place).is_some_and(|fate| fate.may_be_done(&self.rules));
            (!is_done && !may_expire(it, now_ms, lies)).then_some((place, it))
        })
    }

    /// Returns a message that must be a dead letter, and was not seen there.
    pub(super) fn unburied<'a>(
        &self,
        messages: &'a Messages,
        lies: bool,
    ) -> Option<(Place, &'a Message)> {
        let all = messages.all.values().filter(|it| it.acknowledged.is_some());
        let placed = all.map(|it| (it.place.expect("an acknowledged message has a place"), it));
        let must_be = |place: &Place, it: &Message| {
            let may_be_accepted = self.fate(*place).is_some_and(Fate::may_be_accepted);
            // With clocks that lie, nobody knows whether it has ended.
            let is_doubtful = lies && it.expires_ms < i64::MAX;
            !may_be_accepted && !is_doubtful && !self.letters.contains(place)
        };
        let mut placed = placed;
        placed.find(|(place, it)| must_be(place, it))
    }
}

impl Hold {
    /// Notes that a request may change the lease.
    fn note(&mut self, request: u64, decision: Decision) {
        match decision {
            Decision::Renew => self.until_at_most_us = u64::MAX,
            Decision::Unseen => {
                self.over_by.insert(request);
                self.unseen_by.insert(request);
            }
            _ => {
                self.over_by.insert(request);
            }
        }
    }
}

impl Fate {
    /// Forgets a request that decided nothing.
    fn forget(&mut self, request: u64) {
        self.said.remove(&request);
        for hold in self.holds.values_mut().flatten() {
            hold.over_by.remove(&request);
            hold.unseen_by.remove(&request);
        }
    }
}

/// Tells whether a message may have ended. If clocks lie, nobody knows.
fn may_expire(message: &Message, now_ms: i64, lies: bool) -> bool {
    message.expires_ms < i64::MAX && (lies || message.expires_ms <= now_ms)
}

/// Checks that the time of a message has come, and not its end.
fn check_time(message: &Message, times: Times) -> Result<(), String> {
    let now = times.latest_ms;
    if message.deliver_at_ms > now {
        return Err(format!("it is due at {}, now {now}", message.deliver_at_ms));
    }
    // A node that does not believe its clock lets nothing end.
    if !times.leaps && message.expires_ms <= times.now_ms {
        return Err(format!("it ended at {}, now {}", message.expires_ms, times.now_ms));
    }
    Ok(())
}

/// Returns a message of the same rank that waits since before the last turn of a message's queue, if there is one. Its
/// own queue has had no turn since.
fn passed<'a>(
    turns: &[Turn],
    message: &Message,
    waiting: &[(Place, &'a Message)],
) -> Option<(Place, &'a Message)> {
    let last = turns.iter().rposition(|it| it.queue == message.queue)?;
    let since = &turns[last..];
    // Turns of other ranks change whose turn it is.
    if since.iter().any(|it| it.priority != message.priority) {
        return None;
    }
    let known = turns[..=last].iter().map(|it| it.offset).max()?;
    let is_passed = |it: &&(Place, &Message)| {
        let (place, other) = it;
        place.1 <= known
            && other.priority == message.priority
            && since.iter().all(|turn| turn.queue != other.queue)
    };
    waiting.iter().find(is_passed).copied()
}
