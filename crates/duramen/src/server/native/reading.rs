//! Reading a log page by page, at the pace of the reader. Each page is one Fetch of the node; nothing is read ahead.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use duramen_broker::limits::DECOMPRESSED_BYTES_MAX;
use duramen_broker::native::{self, Answer, Log, Op, Problem, Target, WantTail};
use duramen_client::Fetched;
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::messages::FetchRequest;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use duramen_protocol::records::{ID_HEADER, Record, Records};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::calls::Call;
use super::messages::{log_of, position_of};
use super::problems::{DAMAGED, Fault, NOT_AUTHORIZED};
use super::selecting::{Selected, Selection, is_hidden};
use crate::proto::{self, ReadRecord, ReadRequest, ReadResponse, read_request};

/// Version of the Fetch: topics by name, and the epoch of what the reader has.
const FETCH_VERSION: i16 = 12;
const PAGE_BYTES: u32 = 1 << 20;
const PAGE_BYTES_MAX: u32 = 16 << 20;
/// Longest wait for more records, in milliseconds.
pub(crate) const WAIT_MS_MAX: u32 = 60_000;
/// Memory of a header beside its name and value, in bytes.
const HEADER_BYTES: usize = 64;
/// Pause of a reader that follows a log, after an answer without records. The node answers at once where compaction
/// left nothing before the end.
const PAUSE: Duration = Duration::from_millis(100);
/// Most reads in a row whose segment may go away.
const RACES_MAX: u32 = 10;
/// Time after which a page with expressions ends, so that a selective reader hears how far it is.
const PAGE_TIME: Duration = Duration::from_millis(50);

/// One reader of a log.
#[derive(Debug)]
pub(crate) struct Reading {
    call: Call,
    log: Log,
    /// Offset of the next record.
    next: i64,
    /// Term of the record before that, as the reader knows it; -1 if it does not.
    term: i32,
    request: ReadRequest,
    bytes: i32,
    /// Longest wait at the end of the log, in milliseconds.
    wait_ms: i32,
    /// Records that may still be returned.
    left: u64,
    has_skipped: bool,
    /// Reads in a row whose segment went away.
    races: u32,
    /// Filter and projection, if the reader has some.
    selection: Option<Selection>,
}

impl Reading {
    /// Begins to read; asks where the log begins and ends.
    pub(crate) async fn begin(
        mut call: Call,
        request: ReadRequest,
        selection: Option<Selection>,
    ) -> Result<Self, Problem> {
        log_of(&request.topic, request.partition)?;
        let log = Log { topic: request.topic.clone(), partition: request.partition };
        let is_latest = request.consistency() == proto::Consistency::Latest;
        let bytes = match request.bytes {
            0 => PAGE_BYTES,
            bytes @ ..=PAGE_BYTES_MAX => bytes,
            _ => return Err(wrong("bytes", format!("a page has at most {PAGE_BYTES_MAX}"))),
        };
        if request.wait_ms > WAIT_MS_MAX {
            return Err(wrong("wait_ms", format!("a read waits at most {WAIT_MS_MAX}")));
        }
        let wait_ms = if request.follow { WAIT_MS_MAX } else { request.wait_ms };
        let tail = tail(&mut call, &log, is_latest).await?;
        let (next, term) = match request.start {
            None => (tail.start, -1),
            Some(read_request::Start::End(true)) => (tail.stable, -1),
            Some(read_request::Start::End(false)) => {
                return Err(wrong("end", "it is true, or absent".to_owned()));
            }
            Some(read_request::Start::From(offset)) if offset < 0 => {
                return Err(wrong("from", "offsets count from 0".to_owned()));
            }
            Some(read_request::Start::From(offset)) => (offset, -1),
            Some(read_request::Start::After(position)) => {
                let position = position_of("after", position)?;
                (position.offset.saturating_add(1), position.term)
            }
        };
        if is_latest && next > tail.end {
            return Err(Problem::PositionDiverged(tail.end));
        }
        Ok(Self {
            call,
            log,
            next,
            term,
            bytes: i32::try_from(bytes).expect("a page is small"),
            wait_ms: i32::try_from(wait_ms).expect("a wait is short"),
            left: if request.limit == 0 { u64::MAX } else { request.limit },
            has_skipped: false,
            races: 0,
            selection,
            request,
        })
    }

    /// Reads the next page; `None` once the reader has all that there is, and nothing came while it waited.
    pub(crate) async fn page(&mut self) -> Result<Option<ReadResponse>, Fault> {
        let (mut waits, mut has_asked_again) = (false, false);
        loop {
            if self.left == 0 {
                return Ok(None);
            }
            let part = self.fetch(if waits { self.wait_ms } else { 0 }).await?;
            let Some(part) = part else { continue };
            let before = self.next;
            // A small batch may hold very much, compressed.
            if let Some(page) = block_in_place(|| self.page_of(part))? {
                return Ok(Some(page));
            }
            if self.next > before {
                continue; // batches that no reader sees: markers, aborted transactions
            }
            if waits && self.request.follow {
                sleep(PAUSE).await;
                continue;
            }
            // Asked once more, a log without records before its end has none.
            if !waits && !has_asked_again && self.is_behind().await? {
                has_asked_again = true;
                continue;
            }
            if waits || self.wait_ms == 0 {
                return Ok(None);
            }
            waits = true;
        }
    }

    fn is_latest(&self) -> bool {
        self.request.consistency() == proto::Consistency::Latest
    }

    /// Tells whether there are records for this reader that its last page could not show, for certain.
    async fn is_behind(&mut self) -> Result<bool, Fault> {
        let is_certain = self.is_latest();
        let tail = tail(&mut self.call, &self.log, is_certain).await?;
        Ok(self.next < tail.stable)
    }

    /// Fetches from the next offset. `None` if the reader goes on elsewhere, or rests first.
    async fn fetch(&mut self, wait_ms: i32) -> Result<Option<PartitionData>, Fault> {
        let partition = FetchPartition {
            partition: self.log.partition,
            fetch_offset: self.next,
            last_fetched_epoch: self.term,
            partition_max_bytes: self.bytes,
            ..FetchPartition::default()
        };
        let topic = FetchTopic {
            topic: self.log.topic.clone(),
            partitions: vec![partition],
            ..FetchTopic::default()
        };
        let request = FetchRequest {
            max_wait_ms: wait_ms,
            min_bytes: 1,
            max_bytes: self.bytes,
            isolation_level: 1,
            session_epoch: -1,
            topics: vec![topic],
            ..FetchRequest::default()
        };
        let response = self.call.fetch(request, FETCH_VERSION).await?;
        let rest_ms = u64::from(response.throttle_time_ms.max(0).unsigned_abs());
        let part = response.responses.into_iter().flat_map(|topic| topic.partitions).next();
        let Some(part) = part else {
            if response.error_code != 0 {
                return Err(Problem::NoLeader.into());
            }
            sleep(Duration::from_millis(rest_ms)).await;
            return Ok(None);
        };
        match ErrorCode::from_code(part.error_code) {
            Some(ErrorCode::None) => self.races = 0,
            // Compaction or a trim took the segment away in the middle of the read, unless the log is led elsewhere.
            Some(ErrorCode::NotLeaderOrFollower) if self.races < RACES_MAX => {
                self.races += 1;
                let is_certain = self.is_latest();
                tail(&mut self.call, &self.log, is_certain).await?;
                return Ok(None);
            }
            Some(ErrorCode::OffsetOutOfRange) => {
                self.skip().await?;
                return Ok(None);
            }
            Some(ErrorCode::UnknownTopicOrPartition) => return Err(Problem::UnknownTopic.into()),
            Some(ErrorCode::TopicAuthorizationFailed) => {
                return Err(Fault::new(NOT_AUTHORIZED, "the client lacks the right to read"));
            }
            Some(ErrorCode::KafkaStorageError) => return Err(Problem::Damaged.into()),
            _ => return Err(Problem::NoLeader.into()),
        }
        if part.diverging_epoch.end_offset >= 0 {
            return Err(Fault::diverged(part.diverging_epoch.end_offset.min(self.next)));
        }
        Ok(Some(part))
    }

    /// Goes on at the beginning of the log, if the reader allows that.
    async fn skip(&mut self) -> Result<(), Fault> {
        let is_certain = self.is_latest();
        let tail = tail(&mut self.call, &self.log, is_certain).await?;
        if self.next >= tail.start {
            return Err(Fault::diverged(tail.end));
        }
        if !self.request.skip_trimmed {
            return Err(Fault::trimmed(tail.start, tail.pointer.as_ref()));
        }
        (self.next, self.term, self.has_skipped) = (tail.start, -1, true);
        Ok(())
    }

    /// Makes a page of what was fetched; `None` if a reader sees nothing of it.
    fn page_of(&mut self, part: PartitionData) -> Result<Option<ReadResponse>, Fault> {
        let fetched = Fetched::of(part, self.next);
        let (end, stable) = (fetched.committed, fetched.stable);
        let mut page = ReadResponse { end, stable, ..ReadResponse::default() };
        let mut raw = BytesMut::new();
        let mut cut = None;
        let ends_at = Instant::now() + PAGE_TIME;
        // Compressed records may be much larger than the bytes that were fetched.
        let mut room = self.request.bytes.max(PAGE_BYTES) as usize;
        for batch in fetched.batches() {
            let batch = batch.map_err(|error| Fault::new(DAMAGED, error.to_string()))?;
            self.term = batch.header().partition_leader_epoch;
            cut = if self.request.raw {
                raw.extend_from_slice(batch.bytes());
                let count = i64::from(batch.header().last_offset_delta) + 1;
                self.left = self.left.saturating_sub(count.unsigned_abs());
                (self.left == 0).then(|| batch.header().last_offset() + 1)
            } else {
                self.take(&batch, ends_at, &mut room, &mut page.records)?
            };
            if cut.is_some() {
                break;
            }
        }
        if cut.is_none() {
            // The reader passes batches of later terms that nobody sees, too.
            let last = batches(fetched.records.clone()).map_while(Result::ok).last();
            self.term = last.map_or(self.term, |batch| batch.header().partition_leader_epoch);
        }
        let next = cut.unwrap_or(fetched.next_offset);
        let has_moved = next > self.next;
        self.next = next;
        page.batches = raw.freeze();
        page.next = next;
        let is_told = has_moved && self.selection.is_some();
        if page.records.is_empty() && page.batches.is_empty() && !is_told {
            return Ok(None);
        }
        page.skipped = std::mem::take(&mut self.has_skipped);
        Ok(Some(page))
    }

    /// Takes the wanted records of a batch. Returns the offset at which the page ends, if it ends in the batch.
    fn take(
        &mut self,
        batch: &BatchView,
        ends_at: Instant,
        room: &mut usize,
        out: &mut Vec<ReadRecord>,
    ) -> Result<Option<i64>, Fault> {
        let header = batch.header();
        let records = Records::of(batch, DECOMPRESSED_BYTES_MAX)
            .map_err(|error| Fault::new(DAMAGED, error.to_string()))?;
        for record in &records {
            let record = record.map_err(|error| Fault::new(DAMAGED, error.to_string()))?;
            let offset = records.offset(&record);
            if offset < self.next {
                continue;
            }
            let term = header.partition_leader_epoch;
            let position = native::Position { term, entry: header.base_offset, offset }.into();
            let selected = match &self.selection {
                Some(selection) => selection.select(&records, &record, position),
                None => Ok(Selected::Whole),
            };
            let (record, fields, bytes) = match selected? {
                Selected::Nothing => (None, HashMap::new(), 0),
                Selected::Whole => {
                    let (message, bytes) = written(&records, &record, &[]);
                    (Some(message), HashMap::new(), bytes)
                }
                Selected::Fields(fields, bytes) => (None, fields, bytes),
            };
            if record.is_some() || !fields.is_empty() {
                out.push(ReadRecord { position: Some(position), record, fields, version: None });
                self.left -= 1;
                *room = room.saturating_sub(bytes);
            }
            let is_full = self.left == 0 || *room == 0;
            if is_full || self.selection.is_some() && Instant::now() > ends_at {
                return Ok(Some(offset + 1));
            }
        }
        Ok(None)
    }
}

/// Makes the message of a record, without the headers of some names. Returns its memory, too, about, in bytes.
pub(crate) fn written(
    records: &Records,
    record: &Record<'_>,
    hidden: &[&str],
) -> (proto::Record, usize) {
    let (mut headers, mut id) = (Vec::new(), None);
    for header in record.headers.into_iter().filter(|it| !is_hidden(it, hidden)) {
        let value = header.value.map(|value| records.keep(value));
        match value.as_deref().map(str::from_utf8) {
            // Other clients may write the header, too, and more than once.
            Some(Ok(text)) if header.key == ID_HEADER.as_bytes() && id.is_none() => {
                id = Some(text.to_owned());
            }
            _ => {
                let name = String::from_utf8_lossy(header.key).into_owned();
                headers.push(proto::Header { name, value });
            }
        }
    }
    let message = proto::Record {
        key: record.key.map(|key| records.keep(key)),
        value: record.value.map(|value| records.keep(value)),
        headers,
        timestamp_ms: records.timestamp(record),
        id,
        schedule: None,
    };
    let len = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
    let of_headers: usize =
        message.headers.iter().map(|it| HEADER_BYTES + it.name.len() + len(&it.value)).sum();
    let of_id = message.id.as_ref().map_or(0, String::len);
    let bytes = len(&message.key) + len(&message.value) + of_headers + of_id;
    (message, bytes)
}

fn wrong(field: &'static str, reason: String) -> Problem {
    Problem::BadRequest(field, reason)
}

async fn tail(call: &mut Call, log: &Log, is_certain: bool) -> Result<native::Tail, Problem> {
    let target = Target::Log(log.clone());
    match call.operate(Box::new(Op::Tail(WantTail { target, is_certain }))).await? {
        Answer::Tail(tail) => Ok(tail),
        other => unreachable!("{other:?} answers no question about a log"),
    }
}
