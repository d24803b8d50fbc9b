//! Reads for share groups: surveys of batches, and the bytes of batches with acquired records.

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::{BatchView, batches};
use duramen_protocol::messages::ShareFetchResponse;
use duramen_protocol::messages::share_fetch::PartitionData;
use duramen_protocol::records::{BatchBuilder, NewRecord, Record, Records, Retained, Schedule};
use duramen_protocol::wire::RecordData;
use duramen_storage::keys::Masks;
use duramen_storage::reader::{FileRange, ReadError};
use duramen_storage::{Disk, Reader};
use twox_hash::XxHash3_128;

use super::masking::{self, retained};
use super::queues::look_at_queue;
use super::{code_of, text_of};
use crate::event::{
    Date, Dated, DeadLetters, DeadLettersMade, Event, Look, QueueLooked, SeenBatch, SeenRecord,
    SeenRecords, SharePart, SharePlan, Survey, Surveyed,
};
use crate::limits::DECOMPRESSED_BYTES_MAX;

/// Looks at a log as a node asked for it.
pub fn look<D: Disk>(reader: &Reader<D>, wanted: &Look) -> Event {
    match wanted {
        Look::Survey(wanted) => Event::Surveyed(survey(reader, wanted)),
        Look::DeadLetters(wanted) => Event::DeadLetters(dead_letters(reader, wanted)),
        Look::Date(wanted) => Event::Dated(date(reader, wanted)),
        Look::Queue(wanted) => {
            let (found, standing) = look_at_queue(reader, wanted);
            Event::QueueLooked(QueueLooked { ticket: wanted.ticket, found, standing })
        }
    }
}

fn date<D: Disk>(reader: &Reader<D>, wanted: &Date) -> Dated {
    let &Date { replica, timestamp, start, end, ticket } = wanted;
    let found = reader.find_time(replica, timestamp, start, end);
    let found = found.map(|it| it.map(|(offset, _)| offset)).map_err(|error| text_of(&error));
    Dated { ticket, found }
}

/// Finds the same in the batches of these bytes.
#[cfg(test)]
pub(crate) fn first_since(bytes: Bytes, wanted: &Date) -> Option<i64> {
    let all = batches(bytes).map_while(Result::ok);
    let mut since = all.filter(|it| it.header().max_timestamp >= wanted.timestamp);
    since.next().map(|it| it.header().base_offset.max(wanted.start))
}

/// Looks at the batches of a log, in one segment.
fn survey<D: Disk>(reader: &Reader<D>, wanted: &Survey) -> Surveyed {
    let &Survey { replica, from, end, bytes_max, ticket, .. } = wanted;
    let read = || -> Result<_, ReadError> {
        let Some(range) = reader.locate(replica, from, end, bytes_max, true)? else {
            return Ok(None);
        };
        let bytes = reader.read(replica, &range)?;
        Ok(Some(((range.segment, range.at), bytes, reader.masks(replica, wanted.is_of_queues)?)))
    };
    let found = match read() {
        Ok(None) => Ok((Vec::new(), end)),
        Ok(Some((place, bytes, masks))) => seen_in(wanted, place, bytes, &masks),
        Err(error) => Err(text_of(&error)),
    };
    Surveyed { replica, from, ticket, found }
}

/// Surveys the batches in these bytes, which have these places in their segment.
pub(crate) fn seen_in(
    wanted: &Survey,
    (segment, mut at): (i64, u64),
    bytes: Bytes,
    masks: &Masks,
) -> Result<(Vec<SeenBatch>, i64), String> {
    let mut found = Vec::new();
    let mut to = wanted.from;
    let mut records_left = wanted.records_max;
    for batch in batches(bytes).map_while(Result::ok) {
        let header = batch.header();
        let len = batch.bytes().len() as u64;
        let transactional = header.attributes.is_transactional().then_some(header.producer_id);
        let is_masked = retained(&batch, masks)? == Retained::Nothing;
        let is_nothing = header.attributes.is_control() || is_masked;
        let records = match wanted.records_max {
            0 => None,
            _ if is_nothing => None,
            _ => Some(records_of(&batch, wanted, &mut records_left, masks)?),
        };
        let last = header.end_offset() - 1;
        to = records.as_ref().map_or(last, |it| it.end - 1) + 1;
        let (base, bytes) = (header.base_offset, len);
        let seen = SeenBatch { base, last, segment, at, bytes, transactional, is_nothing, records };
        found.push(seen);
        at += len;
        if to <= last {
            break;
        }
    }
    if found.is_empty() {
        Err(format!("there is no batch at {}", wanted.from))
    } else {
        Ok((found, to))
    }
}

/// Returns the records of a batch one by one, at most as many as are left.
fn records_of(
    batch: &BatchView,
    wanted: &Survey,
    left: &mut usize,
    masks: &Masks,
) -> Result<SeenRecords, String> {
    let mut of = Vec::new();
    let records = Records::of(batch, DECOMPRESSED_BYTES_MAX).map_err(|it| it.to_string())?;
    for record in &records {
        let record = record.map_err(|error| error.to_string())?;
        let offset = records.offset(&record);
        if offset < wanted.from || masks.hides(offset) {
            continue;
        }
        if *left == 0 {
            return Ok(SeenRecords { end: offset, of });
        }
        *left -= 1;
        let key = record.key.map(XxHash3_128::oneshot);
        let schedule = wanted.is_of_queues.then(|| Schedule::of(&record));
        of.push(SeenRecord { offset, key, schedule });
    }
    Ok(SeenRecords { end: batch.header().end_offset(), of })
}

/// Builds a batch of dead letters: the records as they were, with headers that give the reason and the source
/// (KIP-1191).
fn dead_letters<D: Disk>(reader: &Reader<D>, wanted: &DeadLetters) -> DeadLettersMade {
    let DeadLetters { replica, from, end, committed, ticket, .. } = *wanted;
    let read = || -> Result<_, ReadError> {
        let bytes_max = u32::try_from(wanted.bytes_max).unwrap_or(u32::MAX);
        let Some(range) = reader.locate(replica, from, committed, bytes_max, true)? else {
            return Ok(None);
        };
        let bytes = reader.read(replica, &range)?;
        Ok(Some((bytes, reader.masks(replica, wanted.is_of_queues)?)))
    };
    let made = match read() {
        Ok(Some((bytes, masks))) => letters_of(wanted, bytes, &masks),
        Ok(None) => Ok((Bytes::new(), end)),
        Err(error) => Err(error.to_string()),
    };
    DeadLettersMade { ticket, made }
}

/// Builds the dead letters of the batches in these bytes.
pub(crate) fn letters_of(
    wanted: &DeadLetters,
    bytes: Bytes,
    masks: &Masks,
) -> Result<(Bytes, i64), String> {
    let mut letters = BatchBuilder::new();
    let mut upto = wanted.from;
    'batches: for batch in batches(bytes).map_while(Result::ok) {
        let end = batch.header().end_offset();
        if batch.header().base_offset >= wanted.end {
            upto = wanted.end;
            break;
        }
        let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).map_err(|it| it.to_string())?;
        for record in &records {
            let record = record.map_err(|error| error.to_string())?;
            let offset = records.offset(&record);
            if !(wanted.from..wanted.end).contains(&offset)
                || batch.header().attributes.is_control()
                || masks.hides(offset)
            {
                continue;
            }
            if letters.plain_bytes() >= wanted.bytes_max {
                upto = offset;
                break 'batches;
            }
            push_letter(&mut letters, wanted, offset, records.timestamp(&record), &record)?;
        }
        upto = end.min(wanted.end);
    }
    if upto <= wanted.from {
        return Err(format!("there is no batch at {}", wanted.from));
    }
    if letters.count() == 0 {
        return Ok((Bytes::new(), upto));
    }
    Ok((letters.build().map_err(|error| error.to_string())?, upto))
}

fn push_letter(
    letters: &mut BatchBuilder,
    wanted: &DeadLetters,
    offset: i64,
    timestamp: i64,
    record: &Record<'_>,
) -> Result<(), String> {
    let said = [
        ("__dlq.errors.topic", wanted.topic.clone()),
        ("__dlq.errors.partition", wanted.partition.to_string()),
        ("__dlq.errors.offset", offset.to_string()),
        ("__dlq.errors.group", wanted.group.clone()),
        ("__dlq.errors.delivery.count", wanted.deliveries.to_string()),
        ("__dlq.errors.message", wanted.reason.to_owned()),
    ];
    let own = record.headers.into_iter().filter(|_| wanted.copies);
    let own: Vec<_> = own.map(|it| (String::from_utf8_lossy(it.key), it.value)).collect();
    let mut headers: Vec<(&str, Option<&[u8]>)> =
        own.iter().map(|(key, value)| (&**key, *value)).collect();
    headers.extend(said.iter().map(|(key, value)| (*key, Some(value.as_bytes()))));
    let (key, value) = if wanted.copies { (record.key, record.value) } else { (None, None) };
    let letter = NewRecord { timestamp, key, value, headers: &headers };
    letters.push(&letter).map_err(|error| error.to_string())
}

/// Finds the bytes of a share fetch. A part's records are a [`RecordData::External`], whose id is the index into the
/// returned ranges, all of them verified. Records that no longer lie together come as bytes.
pub fn share_ranges<D: Disk>(
    reader: &Reader<D>,
    plan: SharePlan,
) -> (ShareFetchResponse, Vec<FileRange<D::File>>) {
    let mut ranges = Vec::new();
    let response = share(plan, |part| {
        let Some(mut range) = located(reader, part)? else { return whole(reader, part) };
        if !range.verified {
            reader.verify(part.replica, &range)?;
            range.verified = true;
        }
        let id = u32::try_from(ranges.len()).expect("a request has fewer partitions");
        let len = range.len;
        ranges.push(range);
        Ok(RecordData::External { len, id })
    });
    (response, ranges)
}

/// Reads the bytes of a share fetch into memory.
pub fn share_bytes<D: Disk>(reader: &Reader<D>, plan: SharePlan) -> ShareFetchResponse {
    share(plan, |part| whole(reader, part))
}

/// Returns the place of all of a part, if it lies as the survey found it.
fn located<D: Disk>(
    reader: &Reader<D>,
    part: &SharePart,
) -> Result<Option<FileRange<D::File>>, ReadError> {
    let masks = reader.masks(part.replica, part.is_of_queues)?;
    if masks.first_in(part.from..part.end).is_some() {
        return Ok(None);
    }
    let range = reader.locate(part.replica, part.from, part.end, u32::MAX, true)?;
    Ok(range.filter(|range| u64::from(range.len) == part.bytes))
}

/// Reads all of a part that is to be seen, from however many segments.
fn whole<D: Disk>(reader: &Reader<D>, part: &SharePart) -> Result<RecordData, ReadError> {
    let masks = reader.masks(part.replica, part.is_of_queues)?;
    let mut all = BytesMut::new();
    let mut at = part.from;
    while at < part.end {
        let Some(range) = reader.locate(part.replica, at, part.end, u32::MAX, true)? else { break };
        let bytes = reader.read(part.replica, &range)?;
        let last = batches(bytes.clone()).map_while(Result::ok).last();
        let next = last.map_or(at, |batch| batch.header().end_offset());
        if next <= at {
            return Err(ReadError::OutOfRange);
        }
        let damaged = |what| {
            let path = part.replica.0.to_string();
            ReadError::Damaged { path, at: range.at, what }
        };
        let shown = masking::shown(bytes, &masks, usize::MAX, true).map_err(damaged)?;
        all.extend_from_slice(&shown.unwrap_or_default());
        at = next;
    }
    Ok(RecordData::Bytes(all.freeze()))
}

fn share(
    plan: SharePlan,
    mut read: impl FnMut(&SharePart) -> Result<RecordData, ReadError>,
) -> ShareFetchResponse {
    let SharePlan { mut response, parts } = plan;
    for part in &parts {
        let slot = &mut response.responses[part.topic].partitions[part.partition];
        match read(part) {
            Ok(records) => slot.records = records,
            Err(error) => refuse(slot, part, &error),
        }
    }
    response
}

/// The records that the consumer acquired become available again when their lock ends.
fn refuse(slot: &mut PartitionData, part: &SharePart, error: &ReadError) {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(replica = part.replica.0, from = part.from, %error, cause, "a read for a share group failed");
    slot.error_code = match code_of(error) {
        // The log was trimmed since, which no consumer of a share group has to know.
        duramen_protocol::ErrorCode::OffsetOutOfRange => {
            duramen_protocol::ErrorCode::NotLeaderOrFollower
        }
        code => code,
    }
    .code();
    slot.acquired_records.clear();
}
