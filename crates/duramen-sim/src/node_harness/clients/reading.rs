//! Readers: fetches with and without a session, and the records that they may bring.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::batches;
use duramen_protocol::messages::FetchResponse;
use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::records::Records as View;
use duramen_protocol::wire::Uuid;

use super::super::oracle::{Place, Standing};
use super::answers::bytes_of;
use super::requests::{self, Asking, Patience, Target};
use super::{Asked, Clients, PARTITIONS, keyed};
use crate::failure::Failure;
use crate::trace::tell;

/// A reader has to ask where the log starts.
const UNKNOWN_START: i64 = -1;
const RECORDS_BYTES_MAX: usize = 1 << 20;

/// Partition and offset that a fetch asks for, and the facts known of the partition when the fetch was sent.
#[derive(Clone, Debug)]
pub(super) struct Want {
    target: Target,
    life: u32,
    offset: i64,
    acked_end: i64,
    end_seen: i64,
    start_seen: i64,
}

/// Larger task that a fetch is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Alone,
    /// The fetch begins a session.
    First,
    /// The fetch goes on with a session: partitions without news are left out of the answer.
    Incremental,
    /// The fetch belongs to the reading of the last phase.
    Through,
    /// The fetch asks by the id of a topic that is gone.
    Stale,
}

/// A fetch on its way.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    wants: Vec<Want>,
    kind: Kind,
}

/// State of a client's fetch session.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchSession {
    id: i32,
    /// Epoch of the next request; 0 begins again.
    epoch: i32,
    by_id: bool,
    /// Start of the process that made the session.
    start: u64,
    /// Topic's life and offset that the node was last told, by name or id and partition.
    told: BTreeMap<(String, i32), (u32, i64)>,
}

impl FetchSession {
    /// Notes that the answer to a request was lost: nobody knows whether the request came through.
    pub(super) fn forget(&mut self) {
        self.epoch = 0;
    }
}

/// Reading a partition through, in the last phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Through {
    start: Option<i64>,
    at: i64,
    read: BTreeMap<i64, (u64, i64)>,
    /// Logs that were compacted when it began.
    compactions: u64,
    pub(super) done: bool,
}

fn wrong<T>(place: &Place, what: &str) -> Result<T, Failure> {
    Err(Failure::correctness(format!("{place:?}: {what}")))
}

fn versions(by_id: bool) -> &'static [i16] {
    if by_id { &requests::FETCH_BY_ID } else { &requests::FETCH_BY_NAME }
}

fn key_of((place, id): &Target) -> (String, i32) {
    (id.map_or_else(|| place.0.clone(), |id| id.to_string()), place.1)
}

impl Clients {
    fn want(&mut self, target: Target, life: u32, offset: i64) -> Want {
        let known = self.oracle.known(&target.0);
        let (acked_end, end_seen) = (known.acked_end(), known.end_seen);
        let start_seen = known.start_seen;
        Want { target, life, offset, acked_end, end_seen, start_seen }
    }

    fn fetch_one(&mut self, want: Want, patience: Patience, kind: Kind) -> Asking<Asked> {
        // Later versions are answered by any replica, which may not know of all yet.
        let is_of_leader = kind == Kind::Through && self.many;
        let version = match want.target.1 {
            None if is_of_leader => requests::FETCH_OF_LEADER,
            id => *self.work.pick(versions(id.is_some())),
        };
        let request = requests::fetch(&[(want.target.clone(), want.offset)], patience).into();
        (Asked::Fetch(Fetch { wants: vec![want], kind }), request, version)
    }

    /// Tells whether a follower may answer, or a leader that does not know yet that it is none. Such a node shows only
    /// committed records all the same.
    fn may_be_stale(&self, kind: Kind) -> bool {
        self.many && (!self.last_phase || kind != Kind::Through)
    }

    fn patience(&mut self) -> Patience {
        let wait_ms = if self.work.chance(500) { 500 } else { 0 };
        Patience { wait_ms, bytes: i32::try_from(self.work.between(1, 20_000)).expect("small") }
    }

    /// Fetches one partition, outside of sessions.
    pub(super) fn fetch(&mut self, at: usize, place: Place) -> Asking<Asked> {
        let life = self.life(&place);
        let known = self.oracle.known(&place);
        let (end_seen, trimmed) = (known.end_seen, known.trim_max);
        let key = (place.clone(), life);
        let mut offset = self.all[at].at.get(&key).copied().unwrap_or(0);
        if offset == UNKNOWN_START {
            return (Asked::Start { place: place.clone(), life }, requests::start(&place), 7);
        }
        if self.work.chance(100) {
            let from = u64::try_from(end_seen.max(1)).expect("it is positive");
            offset = i64::try_from(self.work.below(from)).expect("small");
        }
        let offset = offset.max(trimmed.min(end_seen));
        let id = self.id_to_use(&place.0);
        let want = self.want((place, id), life, offset);
        let patience = self.patience();
        self.fetch_one(want, patience, Kind::Alone)
    }

    /// Fetches by the id of a topic that is gone: it must not lead to another one.
    pub(super) fn fetch_stale(&mut self, place: Place, id: Uuid) -> Asking<Asked> {
        let life = self.life(&place);
        let want = self.want((place, Some(id)), life, 0);
        let patience = self.patience();
        self.fetch_one(want, patience, Kind::Stale)
    }

    /// Fetches all partitions, in a session.
    pub(super) fn fetch_in_session(&mut self, at: usize) -> Option<Asking<Asked>> {
        let mut session = std::mem::take(&mut self.all[at].fetches);
        let is_full = session.epoch == 0;
        if is_full {
            session.by_id = self.work.chance(500) || self.goes_by_id();
            session.told.clear();
        }
        let mut wants = Vec::new();
        for (name, topic) in self.oracle.topics.clone() {
            let id = topic.id.filter(|_| session.by_id);
            if topic.standing != Standing::Live || (session.by_id && id.is_none()) {
                continue;
            }
            for partition in 0..PARTITIONS {
                let place = (name.clone(), partition);
                let key = (place.clone(), topic.life);
                let offset = self.all[at].at.get(&key).copied().unwrap_or(0);
                if offset == UNKNOWN_START {
                    self.all[at].fetches = session;
                    let request = requests::start(&place);
                    return Some((Asked::Start { place, life: topic.life }, request, 7));
                }
                wants.push(self.want((place, id), topic.life, offset));
            }
        }
        if wants.is_empty() {
            self.all[at].fetches = session;
            return None;
        }
        let now: BTreeMap<_, _> =
            wants.iter().map(|want| (key_of(&want.target), (want.life, want.offset))).collect();
        let is_news = |want: &&Want| {
            let key = key_of(&want.target);
            session.told.get(&key) != now.get(&key)
        };
        let wanted: Vec<_> =
            wants.iter().filter(is_news).map(|it| (it.target.clone(), it.offset)).collect();
        let patience = self.patience();
        let mut request = requests::fetch(&wanted, patience);
        let gone = session.told.keys().filter(|key| !now.contains_key(*key));
        request.forgotten_topics_data = gone
            .map(|(topic, partition)| {
                let id = session.by_id.then(|| topic.parse().expect("it was written by us"));
                requests::forgotten(&((topic.clone(), *partition), id))
            })
            .collect();
        (request.session_id, request.session_epoch) = (session.id, session.epoch);
        session.told = now;
        let version = *self.work.pick(versions(session.by_id));
        self.all[at].fetches = session;
        let kind = if is_full { Kind::First } else { Kind::Incremental };
        Some((Asked::Fetch(Fetch { wants, kind }), request.into(), version))
    }

    pub(super) fn read_through(&mut self, place: Place) -> Option<Asking<Asked>> {
        let life = self.life(&place);
        let through = self.through.entry(place.clone()).or_default();
        if through.done {
            return None;
        }
        if through.start.is_none() {
            let request = requests::start(&place);
            return Some((Asked::Start { place, life }, request, 7));
        }
        let offset = through.at;
        let id = if self.many { None } else { self.id_to_use(&place.0) };
        let want = self.want((place, id), life, offset);
        Some(self.fetch_one(want, Patience { wait_ms: 0, bytes: 50_000 }, Kind::Through))
    }

    pub(super) fn end(&mut self, place: Place) -> Asking<Asked> {
        let life = self.life(&place);
        let known = self.oracle.known(&place);
        let least = known.acked_end().max(known.end_seen);
        let request = requests::end(&place);
        (Asked::End { place, life, least }, request, 7)
    }

    /// Takes the log start offset of an answer.
    pub(super) fn on_start(&mut self, at: usize, place: Place, life: u32, offset: i64) {
        self.all[at].at.insert((place.clone(), life), offset);
        let through = self.through.entry(place).or_default();
        through.start = Some(offset);
        through.compactions = self.compactions;
        through.at = offset;
    }

    pub(super) fn on_fetch(
        &mut self,
        at: usize,
        fetch: &Fetch,
        response: FetchResponse,
    ) -> Result<(), Failure> {
        let in_session = matches!(fetch.kind, Kind::First | Kind::Incremental);
        if in_session && !self.on_session(at, fetch.kind, &response)? {
            return Ok(());
        }
        let mut came = BTreeMap::new();
        for topic in response.responses {
            for part in topic.partitions {
                let id = Some(topic.topic_id).filter(|id| !id.is_zero());
                let name = id.map_or_else(|| topic.topic.clone(), |id| id.to_string());
                came.insert((name, part.partition_index), part);
            }
        }
        let has_records = came.values().any(|part| !bytes_of(part).is_empty());
        for want in &fetch.wants {
            let place = &want.target.0;
            let part = came.remove(&key_of(&want.target));
            if fetch.kind == Kind::Stale && self.many {
                // A node that is behind has it still.
                if let Some(part) = part {
                    let (bytes, end) = (bytes_of(&part), part.high_watermark);
                    self.on_batches(place, bytes, want.offset, end, fetch.kind)?;
                }
                continue;
            }
            if fetch.kind == Kind::Stale {
                let code = part.map(|part| (part.error_code, bytes_of(&part).len()));
                if code != Some((ErrorCode::UnknownTopicId.code(), 0)) {
                    return wrong(place, &format!("by the id of a topic that is gone: {code:?}"));
                }
                continue;
            }
            if !self.oracle.is_live(&place.0, want.life) {
                continue;
            }
            let is_refused = part.as_ref().is_some_and(|part| part.error_code != 0);
            let may_be_stale = self.may_be_stale(fetch.kind);
            if !has_records && !is_refused && want.offset < want.acked_end && !may_be_stale {
                let (offset, end) = (want.offset, want.acked_end);
                return wrong(place, &format!("P2: nothing at {offset}, {end} is acknowledged"));
            }
            let Some(part) = part else {
                if fetch.kind == Kind::Incremental {
                    continue;
                }
                return wrong(place, "it was asked for, and is not in the answer");
            };
            if let Some(next) = self.on_fetched(want, &part, fetch.kind)? {
                self.all[at].at.insert((place.clone(), want.life), next);
            }
        }
        match came.keys().next() {
            None => Ok(()),
            Some(other) => {
                Err(Failure::correctness(format!("{other:?} was fetched, and nobody asked")))
            }
        }
    }

    /// Takes the session's part of an answer. Returns false if the answer has no more.
    fn on_session(
        &mut self,
        at: usize,
        kind: Kind,
        response: &FetchResponse,
    ) -> Result<bool, Failure> {
        let is_next = kind == Kind::Incremental;
        let start = self.starts;
        let session = &mut self.all[at].fetches;
        let refuse = |what: String| Err(Failure::correctness(format!("fetch session: {what}")));
        match ErrorCode::from_code(response.error_code) {
            Some(ErrorCode::None) => {}
            // The session was made in an earlier life of the process.
            Some(ErrorCode::FetchSessionIdNotFound)
                if is_next && (session.start != start || self.many) =>
            {
                *session = FetchSession::default();
                return Ok(false);
            }
            code => return refuse(format!("{code:?}")),
        }
        if is_next && response.session_id != session.id || response.session_id == 0 {
            return refuse(format!("{} became {}", session.id, response.session_id));
        }
        (session.id, session.start) = (response.session_id, start);
        session.epoch += 1;
        Ok(true)
    }

    /// Returns where the reader goes on.
    fn on_fetched(
        &mut self,
        want: &Want,
        part: &PartitionData,
        kind: Kind,
    ) -> Result<Option<i64>, Failure> {
        let through = kind == Kind::Through;
        let (place, offset) = (&want.target.0, want.offset);
        tell(|| format!("  fetched {} up to {}", part.error_code, part.high_watermark));
        let trimmed = self.oracle.known(place).trim_max;
        match ErrorCode::from_code(part.error_code) {
            Some(ErrorCode::None) => {}
            Some(ErrorCode::OffsetOutOfRange) if self.oracle.may_expire(&place.0) => {
                self.through.remove(place);
                return Ok(Some(UNKNOWN_START));
            }
            Some(ErrorCode::OffsetOutOfRange)
                if offset < trimmed || self.many && offset > want.end_seen =>
            {
                self.through.remove(place); // a trim came late: begin again
                // Among several nodes the trim may have been meant for an earlier topic of the name, and be past the
                // end of this one.
                return Ok(Some(if self.many { UNKNOWN_START } else { trimmed }));
            }
            Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) => {
                self.oracle.on_unknown(&place.0)?;
                return Ok(None);
            }
            Some(code)
                if code.is_retriable() && (self.rots || code != ErrorCode::KafkaStorageError) =>
            {
                return Ok(None);
            }
            _ => {
                let code = part.error_code;
                return wrong(place, &format!("fetch at {offset} fails with {code}"));
            }
        }
        let before = want.acked_end.max(want.end_seen);
        let is_stale = part.high_watermark < before || part.log_start_offset < want.start_seen;
        if is_stale && self.may_be_stale(kind) {
            let (end, bytes) = (part.high_watermark, bytes_of(part));
            return self.on_batches(place, bytes, offset, end, Kind::Alone).map(Some);
        }
        if part.high_watermark < before {
            let what = format!("P2: the end was {before}, and is {}", part.high_watermark);
            return wrong(place, &what);
        }
        if !self.oracle.may_start_at(place, part.log_start_offset) {
            let what = format!("starts at {}, {trimmed} was asked", part.log_start_offset);
            return wrong(place, &what);
        }
        if part.log_start_offset < want.start_seen || offset < want.start_seen {
            let (start, seen) = (part.log_start_offset, want.start_seen);
            return wrong(
                place,
                &format!("P2: {offset} is read, it starts at {start} after {seen}"),
            );
        }
        let known = self.oracle.known(place);
        known.end_seen = known.end_seen.max(part.high_watermark);
        known.start_seen = known.start_seen.max(part.log_start_offset);
        let next = self.on_batches(place, bytes_of(part), offset, part.high_watermark, kind)?;
        if through {
            let done = self.through.entry(place.clone()).or_default();
            done.at = next;
            let is_mixed = done.compactions != self.compactions && self.oracle.is_keyed(&place.0);
            if next >= part.high_watermark && is_mixed {
                // The records that were read are not of one state of the log: the client reads it once more from its
                // beginning.
                self.through.remove(place);
            } else if next >= part.high_watermark && !done.done {
                done.done = true;
                let (start, read) = (done.start.unwrap_or(0), std::mem::take(&mut done.read));
                self.oracle.on_read_through(place, start, next, &read)?;
            }
        }
        Ok(Some(next))
    }

    fn on_batches(
        &mut self,
        place: &Place,
        bytes: Bytes,
        offset: i64,
        end: i64,
        kind: Kind,
    ) -> Result<i64, Failure> {
        let is_keyed = self.oracle.is_keyed(&place.0);
        let mut next = offset;
        let mut first = true;
        for batch in batches(bytes).map_while(Result::ok) {
            let header = *batch.header();
            let follows = header.base_offset == next
                || (first && header.base_offset < next)
                || (is_keyed && header.base_offset > next);
            if !follows || !batch.crc_matches() || header.end_offset() <= next {
                return wrong(place, &format!("P3: {} follows {next}", header.base_offset));
            }
            if header.end_offset() > end {
                let what = format!("P2: {} is shown past {end}", header.end_offset());
                return wrong(place, &what);
            }
            first = false;
            next = header.end_offset();
            let Ok(records) = View::of(&batch, RECORDS_BYTES_MAX) else {
                return wrong(place, "records cannot be read");
            };
            for (record, place_in) in (&records).into_iter().zip(0..) {
                let Ok(record) = record else {
                    return wrong(place, "a record cannot be read");
                };
                let at = records.offset(&record);
                let number = if is_keyed {
                    keyed::number_of(&record)
                } else {
                    let number = record.value.and_then(|value| value.first_chunk::<8>());
                    number.map(|it| u64::from_be_bytes(*it)).filter(|_| {
                        // Where nothing is compacted no place is left out.
                        record.offset_delta == place_in
                    })
                };
                let Some(number) = number else {
                    return wrong(place, &format!("a record at {at} has no number"));
                };
                let shown = (number, at - header.base_offset);
                if kind == Kind::Stale {
                    self.oracle.on_shown_of_gone(place, shown.0)?;
                    continue;
                }
                self.oracle.on_shown(place, at, shown)?;
                if kind == Kind::Through {
                    self.through.entry(place.clone()).or_default().read.insert(at, shown);
                }
            }
        }
        Ok(next)
    }
}
