//! # Room card: fetch sessions
//!
//! Purpose:    what each incremental fetcher wants, so that it need not say it every time (KIP-227).
//! Owns:       the sessions, their bounded number, which partitions changed since the last answer.
//! Interface:  [`FetchSessions::begin`], [`FetchSessions::is_news`], [`FetchSessions::rotate`].
//! Invariants: a session's epoch counts its requests; at most a fixed number of sessions and of
//!             partitions in them.
//! Never:      logs.
//! Tests:      below and `node/tests`.
//! Start at:   [`FetchSessions::begin`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::FetchRequest;
use duramen_protocol::messages::fetch::FetchPartition;
use duramen_protocol::wire::Uuid;

use crate::limits::{FETCH_SESSION_IDLE_US, FETCH_SESSION_PARTITIONS_MAX, FETCH_SESSIONS_MAX};
use crate::prng::Prng;

const FIRST_EPOCH: i32 = 0;
const NO_SESSION_EPOCH: i32 = -1;

/// A partition as the client names it: by id from version 13 on, else by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub id: Uuid,
    pub name: String,
    pub partition: i32,
}

/// What is wanted of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub offset: i64,
    pub bytes_max: i32,
    pub leader_epoch: i32,
    pub last_epoch: i32,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    wanted: Wanted,
    /// Committed end and log start as the client was last told.
    told: Option<(i64, i64)>,
}

#[derive(Debug)]
struct Session {
    epoch: i32,
    by_id: bool,
    partitions: BTreeMap<Target, Kept>,
    /// The next answer begins after this one, so that all get their turn.
    last_served: Option<Target>,
    used_us: u64,
}

/// A fetch request, complete.
#[derive(Debug)]
pub(crate) struct Begun {
    /// 0 without a session.
    pub session_id: i32,
    /// Whether unchanged partitions are left out of the answer.
    pub is_incremental: bool,
    pub targets: Vec<(Target, Wanted)>,
}

/// All sessions of a node.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    sessions: BTreeMap<i32, Session>,
    by_use: BTreeSet<(u64, i32)>,
    partitions: usize,
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

fn targets_of(request: &FetchRequest) -> Vec<(Target, Wanted)> {
    let mut targets = Vec::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let (id, name) = (topic.topic_id, topic.topic.clone());
            targets.push((Target { id, name, partition: partition.partition }, wanted(partition)));
        }
    }
    targets
}

impl FetchSessions {
    pub(crate) fn new(chance: Prng) -> Self {
        Self { sessions: BTreeMap::new(), by_use: BTreeSet::new(), partitions: 0, chance }
    }

    /// How many there are.
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
            let targets = targets_of(request);
            let session_id = match request.session_epoch {
                FIRST_EPOCH => self.make(&targets, by_id, now_us),
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
        self.partitions -= session.partitions.len();
        session.update(request);
        self.partitions += session.partitions.len();
        Ok(Begun { session_id: id, is_incremental: true, targets: session.in_turn() })
    }

    fn make(&mut self, targets: &[(Target, Wanted)], by_id: bool, now_us: u64) -> i32 {
        let has_room = |all: &Self| {
            all.sessions.len() < FETCH_SESSIONS_MAX
                && all.partitions + targets.len() <= FETCH_SESSION_PARTITIONS_MAX
        };
        while !has_room(self) {
            match self.by_use.first() {
                Some(&(used_us, id)) if used_us + FETCH_SESSION_IDLE_US < now_us => self.end(id),
                // All are in use: this client goes on without one.
                _ => return 0,
            }
        }
        let id = loop {
            let id = i32::try_from(self.chance.next() >> 33).expect("31 bits");
            if id != 0 && !self.sessions.contains_key(&id) {
                break id;
            }
        };
        let kept = |(target, wanted): &(Target, Wanted)| {
            (target.clone(), Kept { wanted: *wanted, told: None })
        };
        let partitions: BTreeMap<_, _> = targets.iter().map(kept).collect();
        self.partitions += partitions.len();
        let session = Session { epoch: 1, by_id, partitions, last_served: None, used_us: now_us };
        self.sessions.insert(id, session);
        self.by_use.insert((now_us, id));
        id
    }

    fn end(&mut self, id: i32) {
        if let Some(session) = self.sessions.remove(&id) {
            self.by_use.remove(&(session.used_us, id));
            self.partitions -= session.partitions.len();
        }
    }

    /// Whether committed end and log start differ from what the client was last told; it counts
    /// as told now.
    pub(crate) fn is_news(&mut self, id: i32, target: &Target, ends: Option<(i64, i64)>) -> bool {
        let session = self.sessions.get_mut(&id);
        let kept = session.and_then(|session| session.partitions.get_mut(target));
        kept.is_none_or(|kept| std::mem::replace(&mut kept.told, ends) != ends || ends.is_none())
    }

    /// The next answer begins after `last`.
    pub(crate) fn rotate(&mut self, id: i32, last: Option<Target>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.last_served = last;
        }
    }
}

impl Session {
    fn update(&mut self, request: &FetchRequest) {
        for topic in &request.forgotten_topics_data {
            for &partition in &topic.partitions {
                let (id, name) = (topic.topic_id, topic.topic.clone());
                self.partitions.remove(&Target { id, name, partition });
            }
        }
        for (target, wanted) in targets_of(request) {
            let kept = self.partitions.entry(target).or_insert(Kept { wanted, told: None });
            kept.wanted = wanted;
        }
    }

    fn in_turn(&self) -> Vec<(Target, Wanted)> {
        let (first, rest) = match &self.last_served {
            None => (Bound::Unbounded, None),
            Some(last) => (Bound::Excluded(last), Some(last)),
        };
        let head = self.partitions.range((first, Bound::Unbounded));
        let tail = rest.map(|last| self.partitions.range(..=last));
        let all = head.chain(tail.into_iter().flatten());
        all.map(|(target, kept)| (target.clone(), kept.wanted)).collect()
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
        begun.targets.iter().map(|(target, _)| target.partition).collect()
    }

    #[test]
    fn a_session_remembers_forgets_and_takes_turns() {
        let mut sessions = FetchSessions::new(Prng::stream(1, 1));
        let first = sessions.begin(&request(0, 0, &[0, 1, 2]), 12, 5).expect("a new session");
        assert!(first.session_id > 0 && !first.is_incremental);
        let id = first.session_id;
        let next = sessions.begin(&request(id, 1, &[]), 12, 6).expect("the next request");
        assert_eq!((numbers(&next), next.is_incremental), (vec![0, 1, 2], true));
        sessions.rotate(id, Some(next.targets[0].0.clone()));
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
}
