//! # Room card: fetch sessions
//!
//! Purpose:    the partitions that each incremental fetcher wants, so that it need not name them every time (KIP-227).
//! Owns:       the sessions, their bounded number, the partitions of each that may have changed.
//! Interface:  [`FetchSessions::begin`], [`FetchSessions::touch`], [`FetchSessions::settle`],
//!             [`FetchSessions::rotate`].
//! Invariants: a session's epoch counts its requests. The numbers of sessions and of partitions in them are bounded. A
//!             partition's place in a session is closed while the fetcher lacks nothing. Such a fetcher knows the log
//!             start offset and the high watermark, and has read up to the latter. The partition opens the place when
//!             anything changes. So a request costs the changes, not the size of the session.
//! Never:      logs.
//! Tests:      below and `node/tests`.
//! Start at:   [`FetchSessions::begin`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::FetchRequest;
use duramen_protocol::messages::fetch::FetchPartition;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use crate::event::RequestKey;
use crate::limits::{
    FETCH_SESSION_IDLE_US, FETCH_SESSION_PARTITIONS_MAX, FETCH_SESSIONS_MAX, INSPECTED_MAX,
};
use crate::partition::{Place, Watcher};
use crate::prng::Prng;

const FIRST_EPOCH: i32 = 0;
const NO_SESSION_EPOCH: i32 = -1;

/// A partition as the client names it: by id from version 13 on, else by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub id: Uuid,
    pub name: Arc<str>,
    pub partition: i32,
}

/// Position and limits of a fetch of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub offset: i64,
    pub bytes_max: i32,
    pub leader_epoch: i32,
    pub last_epoch: i32,
}

/// One partition of a fetch.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `None` outside of sessions.
    pub place: Option<Place>,
    pub target: Target,
    pub wanted: Wanted,
}

#[derive(Clone, Debug)]
struct Kept {
    target: Target,
    wanted: Wanted,
    /// High watermark and log start offset that the client last got.
    told: Option<(i64, i64)>,
    /// The replica that touches this place, and its topic's name when it was found.
    watched: Option<(ReplicaId, Arc<str>)>,
}

#[derive(Debug, Default)]
struct Session {
    epoch: i32,
    by_id: bool,
    places: BTreeMap<Target, Place>,
    kept: BTreeMap<Place, Kept>,
    /// Places that may have something new.
    open: BTreeSet<Place>,
    next_place: Place,
    /// The next answer begins after this one, so that all get their turn.
    last_served: Option<Place>,
    used_us: u64,
    /// Requests that wait for something new.
    parked: Vec<RequestKey>,
}

/// A fetch request, complete.
#[derive(Debug)]
pub(crate) struct Begun {
    /// 0 without a session.
    pub session_id: i32,
    /// Flag that the answer leaves out unchanged partitions.
    pub is_incremental: bool,
    /// All partitions, or, in an incremental answer, those that may have something new.
    pub targets: Vec<Asked>,
}

/// All sessions of a node.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    sessions: BTreeMap<i32, Session>,
    by_use: BTreeSet<(u64, i32)>,
    partitions: usize,
    /// Replicas that need not touch these places any more.
    unwatched: Vec<(ReplicaId, Watcher)>,
    chance: Prng,
}

fn wanted(partition: &FetchPartition) -> Wanted {
    Wanted {
        offset: partition.fetch_offset,
        bytes_max: partition.partition_max_bytes,
        leader_epoch: partition.current_leader_epoch,
        last_epoch: partition.last_fetched_epoch,
    }
}

/// Returns the partitions of a request. As in Kafka, the last mention of a partition counts, at the place of the first.
fn targets_of(request: &FetchRequest) -> Vec<Asked> {
    let count = request.topics.iter().map(|topic| topic.partitions.len()).sum();
    let mut targets: Vec<Asked> = Vec::with_capacity(count);
    let mut places = BTreeMap::new();
    for topic in &request.topics {
        let (id, name) = (topic.topic_id, Arc::<str>::from(topic.topic.as_str()));
        for partition in &topic.partitions {
            let target = Target { id, name: Arc::clone(&name), partition: partition.partition };
            if count > 1 {
                let next = targets.len();
                let place = *places.entry(target.clone()).or_insert(next);
                if let Some(asked) = targets.get_mut(place) {
                    asked.wanted = wanted(partition);
                    continue;
                }
            }
            targets.push(Asked { place: None, target, wanted: wanted(partition) });
        }
    }
    targets
}

impl FetchSessions {
    pub(crate) fn new(chance: Prng) -> Self {
        Self {
            sessions: BTreeMap::new(),
            by_use: BTreeSet::new(),
            partitions: 0,
            unwatched: Vec::new(),
            chance,
        }
    }

    /// Returns the count of sessions.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Completes a request by its session, or makes one for it.
    pub(crate) fn begin(
        &mut self,
        request: &FetchRequest,
        version: i16,
        now_us: u64,
    ) -> Result<Begun, ErrorCode> {
        let by_id = version >= 13;
        let id = request.session_id;
        if matches!(request.session_epoch, FIRST_EPOCH | NO_SESSION_EPOCH) {
            self.end(id);
            let mut targets = targets_of(request);
            let session_id = match request.session_epoch {
                FIRST_EPOCH => self.make(&mut targets, by_id, now_us),
                _ => 0,
            };
            return Ok(Begun { session_id, is_incremental: false, targets });
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return Err(ErrorCode::FetchSessionIdNotFound);
        };
        if session.epoch != request.session_epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if session.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        self.by_use.remove(&(session.used_us, id));
        self.by_use.insert((now_us, id));
        session.used_us = now_us;
        session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        self.partitions -= session.kept.len();
        session.update(id, request, &mut self.unwatched);
        session.inspect();
        self.partitions += session.kept.len();
        let targets = session.in_turn();
        self.inspect();
        Ok(Begun { session_id: id, is_incremental: true, targets })
    }

    /// Makes a session if there is room for it; 0 if there is none.
    fn make(&mut self, targets: &mut [Asked], by_id: bool, now_us: u64) -> i32 {
        let is_full = |sessions: &Self| {
            sessions.sessions.len() >= FETCH_SESSIONS_MAX
                || sessions.partitions + targets.len() > FETCH_SESSION_PARTITIONS_MAX
        };
        while is_full(self) {
            let Some(&(used_us, oldest)) = self.by_use.first() else { return 0 };
            if now_us.saturating_sub(used_us) < FETCH_SESSION_IDLE_US {
                return 0;
            }
            self.end(oldest);
        }
        let id = loop {
            let bits = u32::try_from(self.chance.next() >> 33).expect("31 bits");
            let id = bits.cast_signed();
            if id != 0 && !self.sessions.contains_key(&id) {
                break id;
            }
        };
        let mut session = Session { epoch: 1, by_id, used_us: now_us, ..Session::default() };
        session.fill(targets);
        self.partitions += session.kept.len();
        session.inspect();
        self.sessions.insert(id, session);
        self.by_use.insert((now_us, id));
        let is_bounded = self.sessions.len() <= FETCH_SESSIONS_MAX
            && self.partitions <= FETCH_SESSION_PARTITIONS_MAX;
        assert!(is_bounded, "{} sessions have {}", self.sessions.len(), self.partitions);
        self.inspect();
        id
    }

    /// Checks the counts, and the order of use.
    fn inspect(&self) {
        assert_eq!(self.by_use.len(), self.sessions.len(), "each session has one time of use");
        if !cfg!(debug_assertions) || self.sessions.len() > INSPECTED_MAX {
            return;
        }
        let partitions = self.sessions.values().map(|it| it.kept.len());
        assert_eq!(
            self.partitions,
            partitions.sum::<usize>(),
            "the partitions of sessions are counted"
        );
        for (id, session) in &self.sessions {
            let is_in_order = self.by_use.contains(&(session.used_us, *id));
            assert!(is_in_order, "the session {id} stands at its last use");
        }
    }

    /// Forgets a session, if it is there.
    pub(crate) fn end(&mut self, id: i32) {
        if let Some(session) = self.sessions.remove(&id) {
            self.by_use.remove(&(session.used_us, id));
            self.partitions -= session.kept.len();
            for (place, kept) in session.kept {
                self.unwatched.extend(kept.watched.map(|(replica, _)| (replica, (id, place))));
            }
            self.inspect();
        }
    }

    /// Watchers that have become useless since the last call.
    pub(crate) fn take_unwatched(&mut self) -> Vec<(ReplicaId, Watcher)> {
        std::mem::take(&mut self.unwatched)
    }

    fn kept_mut(&mut self, (id, place): Watcher) -> Option<&mut Kept> {
        self.sessions.get_mut(&id)?.kept.get_mut(&place)
    }

    /// Tells whether the caller must still register the watcher with the partition: with `replica`, of a topic now
    /// called `name`.
    pub(crate) fn watch(&mut self, watcher: Watcher, replica: ReplicaId, name: &str) -> bool {
        let Some(kept) = self.kept_mut(watcher) else { return false };
        let is_new = kept.watched.as_ref().is_none_or(|(watched, _)| *watched != replica);
        if is_new {
            let is_named = *kept.target.name == *name;
            let name = if is_named { Arc::clone(&kept.target.name) } else { Arc::from(name) };
            kept.watched = Some((replica, name));
        }
        is_new
    }

    /// Returns the former name of a topic that a session asks for by id.
    pub(crate) fn name_at(&self, (id, place): Watcher) -> Option<&str> {
        let kept = self.sessions.get(&id)?.kept.get(&place)?;
        kept.watched.as_ref().map(|(_, name)| &**name)
    }

    /// Marks a watched partition as changed. Returns the requests that wait for that.
    pub(crate) fn touch(&mut self, (id, place): Watcher) -> &[RequestKey] {
        let Some(session) = self.sessions.get_mut(&id) else { return &[] };
        if session.kept.contains_key(&place) {
            session.open.insert(place);
        }
        &session.parked
    }

    /// Parks a request in its session until a partition has something new. Returns false without a session.
    pub(crate) fn park(&mut self, id: i32, key: RequestKey) -> bool {
        let session = self.sessions.get_mut(&id);
        session.map(|session| session.parked.push(key)).is_some()
    }

    /// Takes a parked request out of its session, because it no longer waits.
    pub(crate) fn unpark(&mut self, id: i32, key: RequestKey) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.parked.retain(|parked| *parked != key);
        }
    }

    /// Tells whether a session has more partitions than `count`.
    pub(crate) fn is_more_than(&self, id: i32, count: usize) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.kept.len() > count)
    }

    /// Returns the partitions that may have something new to tell, or `None` if the session is gone.
    pub(crate) fn open_in(&self, id: i32) -> Option<Vec<Asked>> {
        self.sessions.get(&id).map(Session::in_turn)
    }

    /// Tells whether high watermark and log start offset differ from the last ones that the client got, and remembers
    /// these as sent. A place that is no longer `open` has nothing new until a partition touches it.
    pub(crate) fn settle(
        &mut self,
        (id, place): Watcher,
        ends: Option<(i64, i64)>,
        is_open: bool,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return true };
        let Some(kept) = session.kept.get_mut(&place) else { return true };
        // Without a replica that touches it, it is looked at every time.
        if !is_open && kept.watched.is_some() {
            session.open.remove(&place);
        }
        std::mem::replace(&mut kept.told, ends) != ends || ends.is_none()
    }

    /// Makes the next answer begin after `last`.
    pub(crate) fn rotate(&mut self, id: i32, last: Option<Place>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.last_served = last;
        }
    }
}

impl Session {
    /// Checks that partitions and places agree.
    fn inspect(&self) {
        let Self { epoch, places, kept, open, next_place, last_served, .. } = self;
        assert!(*epoch > FIRST_EPOCH, "the epoch {epoch} continues a session");
        assert_eq!(places.len(), kept.len(), "each partition has one place");
        assert!(open.len() <= kept.len(), "each open place is a partition's");
        assert!(last_served.is_none_or(|it| it <= *next_place), "{last_served:?} was given");
        if !cfg!(debug_assertions) || kept.len() > INSPECTED_MAX {
            return;
        }
        for (target, place) in places {
            let is_its = kept.get(place).is_some_and(|it| it.target == *target);
            assert!(is_its, "{target:?} is at {place}");
        }
        assert!(open.iter().all(|it| kept.contains_key(it)), "each open place is a partition's");
        let last = kept.last_key_value();
        assert!(last.is_none_or(|(it, _)| it <= next_place), "no place is given twice");
    }

    /// Takes all partitions of a new session in.
    fn fill(&mut self, targets: &mut [Asked]) {
        let placed = (1..).zip(targets.iter()).map(|(place, it)| (it.target.clone(), place));
        self.places = placed.collect();
        if self.places.len() < targets.len() {
            // Some are named twice.
            self.places.clear();
            for asked in targets {
                asked.place = Some(self.keep(&asked.target, asked.wanted));
            }
            return;
        }
        for (place, asked) in (1..).zip(targets.iter_mut()) {
            asked.place = Some(place);
            self.next_place = place;
        }
        let kept = |asked: &Asked| {
            let target = asked.target.clone();
            Kept { target, wanted: asked.wanted, told: None, watched: None }
        };
        self.kept = (1..).zip(targets.iter().map(kept)).collect();
        self.open = (1..=self.next_place).collect();
    }

    fn keep(&mut self, target: &Target, wanted: Wanted) -> Place {
        let place = *self.places.entry(target.clone()).or_insert_with(|| {
            self.next_place += 1;
            let kept = Kept { target: target.clone(), wanted, told: None, watched: None };
            self.kept.insert(self.next_place, kept);
            self.next_place
        });
        self.kept.get_mut(&place).expect("every place is kept").wanted = wanted;
        self.open.insert(place);
        place
    }

    fn update(
        &mut self,
        id: i32,
        request: &FetchRequest,
        unwatched: &mut Vec<(ReplicaId, Watcher)>,
    ) {
        for topic in &request.forgotten_topics_data {
            let (topic_id, name) = (topic.topic_id, Arc::<str>::from(topic.topic.as_str()));
            for &partition in &topic.partitions {
                let target = Target { id: topic_id, name: Arc::clone(&name), partition };
                let Some(place) = self.places.remove(&target) else { continue };
                self.open.remove(&place);
                let kept = self.kept.remove(&place).expect("every place is kept");
                unwatched.extend(kept.watched.map(|(replica, _)| (replica, (id, place))));
            }
        }
        for asked in targets_of(request) {
            self.keep(&asked.target, asked.wanted);
        }
    }

    fn in_turn(&self) -> Vec<Asked> {
        let (first, rest) = match self.last_served {
            None => (Bound::Unbounded, None),
            Some(last) => (Bound::Excluded(last), Some(last)),
        };
        let head = self.open.range((first, Bound::Unbounded));
        let tail = rest.map(|last| self.open.range(..=last));
        let asked = |place: &Place| {
            let kept = &self.kept[place];
            Asked { place: Some(*place), target: kept.target.clone(), wanted: kept.wanted }
        };
        head.chain(tail.into_iter().flatten()).map(asked).collect()
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::fetch::{FetchTopic, ForgottenTopic};

    use super::*;

    fn request(session_id: i32, session_epoch: i32, partitions: &[i32]) -> FetchRequest {
        let partition = |&partition| FetchPartition { partition, ..FetchPartition::default() };
        let partitions = partitions.iter().map(partition).collect();
        let topic = FetchTopic { topic: "t".to_owned(), partitions, ..FetchTopic::default() };
        FetchRequest { session_id, session_epoch, topics: vec![topic], ..FetchRequest::default() }
    }

    fn numbers(begun: &Begun) -> Vec<i32> {
        begun.targets.iter().map(|asked| asked.target.partition).collect()
    }

    #[test]
    fn a_session_remembers_forgets_and_takes_turns() {
        let mut sessions = FetchSessions::new(Prng::stream(1, 1));
        let first = sessions.begin(&request(0, 0, &[0, 1, 2]), 12, 5).expect("a new session");
        assert!(first.session_id > 0 && !first.is_incremental);
        let id = first.session_id;
        let next = sessions.begin(&request(id, 1, &[]), 12, 6).expect("the next request");
        assert_eq!((numbers(&next), next.is_incremental), (vec![0, 1, 2], true));
        sessions.rotate(id, next.targets[0].place);
        let mut forgets = request(id, 2, &[5]);
        forgets.forgotten_topics_data = vec![ForgottenTopic {
            topic: "t".to_owned(),
            partitions: vec![1],
            ..ForgottenTopic::default()
        }];
        let next = sessions.begin(&forgets, 12, 7).expect("the next request");
        assert_eq!(numbers(&next), [2, 5, 0]);
    }

    #[test]
    fn wrong_ids_epochs_and_versions_are_told_apart() {
        let mut sessions = FetchSessions::new(Prng::stream(1, 1));
        let code = |result: Result<Begun, ErrorCode>| result.expect_err("refused");
        let unknown = sessions.begin(&request(9, 1, &[]), 12, 0);
        assert_eq!(code(unknown), ErrorCode::FetchSessionIdNotFound);
        let id = sessions.begin(&request(0, 0, &[0]), 12, 0).expect("new").session_id;
        let early = sessions.begin(&request(id, 2, &[]), 12, 0);
        assert_eq!(code(early), ErrorCode::InvalidFetchSessionEpoch);
        let other = sessions.begin(&request(id, 1, &[]), 13, 0);
        assert_eq!(code(other), ErrorCode::FetchSessionTopicIdError);
        sessions.begin(&request(id, -1, &[0]), 12, 0).expect("the session is closed");
        assert_eq!(sessions.len(), 0);
    }

    #[test]
    fn a_full_cache_gives_way_only_where_it_is_idle() {
        let mut sessions = FetchSessions::new(Prng::stream(1, 1));
        for _ in 0..FETCH_SESSIONS_MAX {
            assert!(sessions.begin(&request(0, 0, &[0]), 12, 0).expect("new").session_id > 0);
        }
        let full = sessions.begin(&request(0, 0, &[0]), 12, 10).expect("without a session");
        assert_eq!(full.session_id, 0);
        let later = FETCH_SESSION_IDLE_US + 1;
        let idle = sessions.begin(&request(0, 0, &[0]), 12, later).expect("new");
        assert!(idle.session_id > 0);
        assert_eq!(sessions.len(), FETCH_SESSIONS_MAX);
    }

    #[test]
    fn a_settled_place_is_silent_until_it_is_touched_or_updated() {
        let mut sessions = FetchSessions::new(Prng::stream(1, 1));
        let first = sessions.begin(&request(0, 0, &[0, 1, 2]), 12, 5).expect("a new session");
        let id = first.session_id;
        let watchers: Vec<_> =
            first.targets.iter().map(|asked| (id, asked.place.expect("in a session"))).collect();
        for (n, watcher) in (10..).zip(&watchers) {
            assert!(sessions.watch(*watcher, ReplicaId(n), "t"));
            assert!(!sessions.watch(*watcher, ReplicaId(n), "t"), "once is enough");
            assert!(sessions.settle(*watcher, Some((0, 0)), n == 10), "news at first");
        }
        let next = sessions.begin(&request(id, 1, &[]), 12, 6).expect("the next request");
        assert_eq!(numbers(&next), [0], "the others have nothing to tell");
        sessions.touch(watchers[2]);
        let next = sessions.begin(&request(id, 2, &[1]), 12, 7).expect("the next request");
        assert_eq!(numbers(&next), [0, 1, 2]);
        sessions.begin(&request(id, -1, &[]), 12, 8).expect("the end");
        let gone: Vec<_> = sessions.take_unwatched().into_iter().map(|(id, _)| id.0).collect();
        assert_eq!(gone, [10, 11, 12]);
    }

    #[test]
    fn a_place_that_nothing_touches_is_always_looked_at() {
        let mut sessions = FetchSessions::new(Prng::stream(1, 1));
        let first = sessions.begin(&request(0, 0, &[0]), 12, 5).expect("a new session");
        let watcher = (first.session_id, first.targets[0].place.expect("in a session"));
        sessions.settle(watcher, None, false);
        let next = sessions.begin(&request(first.session_id, 1, &[]), 12, 6).expect("the next");
        assert_eq!(numbers(&next), [0]);
    }
}
