//! # Room card: read plans
//!
//! Purpose:    execute the reads that a node planned, on a thread that may block.
//! Owns:       the split of a response's limit of bytes among its partitions.
//! Interface:  [`fetch_ranges`] for sendfile, [`fetch_bytes`] for everything else, [`list_offsets`], [`metadata_tail`]
//!             before a node is opened, [`log_slice`] for the node itself, [`digests`] for programs that compare
//!             replicas; [`look`], [`share_ranges`], [`share_bytes`] and [`leased`] for
//!             share groups; [`queue_page`] and its like.
//! Invariants: a response has no bytes at or past a part's end, and none of a record that an edit took away. The limit
//!             of bytes never empties the first part that has batches. Damage is an error of its partition, and of no
//!             other.
//! Never:      the node's state; the offsets that a client may see.
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`fetch_ranges`].

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::messages::{DescribeReplicasResponse, FetchResponse, ListOffsetsResponse};
use duramen_protocol::wire::RecordData;
use duramen_storage::keys::Masks;
use duramen_storage::op::{RecoveredReplica, ReplicaId};
use duramen_storage::reader::{FileRange, ReadError};
use duramen_storage::{Descriptor, Disk, Reader};

use crate::controller::is_metadata;
use crate::event::{
    Described, FetchPart, FetchPlan, LogRead, MadeBy, ReadLog, ReplicasPlan, TimePlan,
};
use crate::native::{Answer, Answered, Problem};

mod leases;
mod masking;
mod queue_digests;
mod queues;
mod shares;
pub use leases::leased;
use masking::Stretch;
pub use queues::{Extent, PageEnd, QueueError, Taken, queue_extent, queue_names, queue_page};
#[cfg(test)]
pub(crate) use shares::{first_since, letters_of, seen_in};
pub use shares::{look, share_bytes, share_ranges};

/// The most bytes of the metadata log that one read returns.
const TAIL_READ_BYTES: u32 = 16 << 20;
const MAX_TIMESTAMP: i64 = -3;

/// Finds the bytes of a fetch. The records of the response are [`RecordData::External`] whose id is the index into the
/// returned ranges. All of them are verified, so no reader needs to read them ahead. `note` hears the bytes found for
/// each replica.
pub fn fetch_ranges<D: Disk>(
    reader: &Reader<D>,
    plan: FetchPlan,
    note: impl FnMut(ReplicaId, usize),
) -> (FetchResponse, Vec<FileRange<D::File>>) {
    let mut ranges = Vec::new();
    let response = fetch(
        reader,
        plan,
        |part, mut range| {
            // Rot is found before the response is promised, not in the middle of it.
            if !range.verified {
                reader.verify(part.replica, &range)?;
                range.verified = true;
            }
            let id = u32::try_from(ranges.len()).expect("a request has fewer partitions");
            let len = range.len;
            ranges.push(range);
            Ok(RecordData::External { len, id })
        },
        note,
    );
    (response, ranges)
}

/// Reads the bytes of a fetch into memory.
pub fn fetch_bytes<D: Disk>(
    reader: &Reader<D>,
    plan: FetchPlan,
    note: impl FnMut(ReplicaId, usize),
) -> FetchResponse {
    let read = |part: &FetchPart, range| Ok(RecordData::Bytes(reader.read(part.replica, &range)?));
    fetch(reader, plan, read, note)
}

/// Finds the records of a part: a range of a file, which `take` turns into records, or a copy without what is masked.
fn records_of<D: Disk>(
    reader: &Reader<D>,
    part: &FetchPart,
    limit: (u32, bool),
    take: impl FnOnce(&FetchPart, FileRange<D::File>) -> Result<RecordData, ReadError>,
) -> Result<Option<RecordData>, ReadError> {
    let masks = reader.masks(part.replica, part.is_of_queues)?;
    match masking::stretch(reader, part, &masks)? {
        Stretch::Clear(end) => {
            locate(reader, part, end, limit)?.map(|range| take(part, range)).transpose()
        }
        Stretch::Masked => shown(reader, part, &masks, limit),
    }
}

/// Reads the batches of a part without their masked records.
fn shown<D: Disk>(
    reader: &Reader<D>,
    part: &FetchPart,
    masks: &Masks,
    (bytes_max, first_whole): (u32, bool),
) -> Result<Option<RecordData>, ReadError> {
    let Some(range) = locate(reader, part, part.end, (bytes_max, first_whole))? else {
        return Ok(None);
    };
    let bytes = reader.read(part.replica, &range)?;
    let shown = masking::shown(bytes, masks, bytes_max as usize, first_whole);
    let damaged =
        |what| ReadError::Damaged { path: part.replica.0.to_string(), at: range.at, what };
    Ok(shown.map_err(damaged)?.map(RecordData::Bytes))
}

fn locate<D: Disk>(
    reader: &Reader<D>,
    part: &FetchPart,
    end: i64,
    (bytes_max, first_whole): (u32, bool),
) -> Result<Option<FileRange<D::File>>, ReadError> {
    let found = reader.locate(part.replica, part.offset, end, bytes_max, first_whole)?;
    let is_other = |range: &FileRange<D::File>| {
        part.compaction.is_some_and(|compaction| compaction != range.compaction)
    };
    // Compaction has changed the log since the plan: the plan's aborted transactions may name too much now.
    if found.as_ref().is_some_and(is_other) { Err(ReadError::Removed) } else { Ok(found) }
}

fn fetch<D: Disk>(
    reader: &Reader<D>,
    plan: FetchPlan,
    mut take: impl FnMut(&FetchPart, FileRange<D::File>) -> Result<RecordData, ReadError>,
    mut note: impl FnMut(ReplicaId, usize),
) -> FetchResponse {
    let FetchPlan { mut response, parts, bytes_max } = plan;
    debug_assert!(
        parts.is_sorted_by_key(|part| (part.topic, part.partition)),
        "parts are in the order of the response, from whose end some are removed"
    );
    let mut budget = bytes_max;
    let mut is_first = true;
    let mut omitted = Vec::new();
    for part in &parts {
        let slot = &mut response.responses[part.topic].partitions[part.partition];
        let limit = part.bytes_max.min(budget);
        let is_full = limit == 0 && !is_first;
        let found =
            if is_full { Ok(None) } else { records_of(reader, part, (limit, is_first), &mut take) };
        match found {
            Ok(Some(records)) => {
                let len = u32::try_from(records.len()).unwrap_or(u32::MAX);
                debug_assert!(is_first || len <= limit, "only the first part exceeds its limit");
                is_first = false;
                budget = budget.saturating_sub(len);
                note(part.replica, records.len());
                slot.records = Some(records);
            }
            Ok(None) if part.omit_if_empty => omitted.push((part.topic, part.partition)),
            Ok(None) => {}
            Err(error) => refuse(slot, part, &error),
        }
    }
    for &(topic, partition) in omitted.iter().rev() {
        response.responses[topic].partitions.remove(partition);
    }
    if !omitted.is_empty() {
        response.responses.retain(|topic| !topic.partitions.is_empty());
    }
    response
}

fn refuse(slot: &mut PartitionData, part: &FetchPart, error: &ReadError) {
    let code = code_of(error);
    if code == ErrorCode::KafkaStorageError {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let (replica, offset) = (part.replica.0, part.offset);
        tracing::error!(replica, offset, %error, cause, "a read failed");
    }
    slot.error_code = code.code();
    slot.high_watermark = -1;
    slot.last_stable_offset = -1;
    slot.log_start_offset = -1;
}

fn code_of(error: &ReadError) -> ErrorCode {
    match error {
        // A deletion of the topic between plan and read, or the removal of a segment in the middle of the read. The
        // client asks again and learns which.
        ReadError::UnknownReplica | ReadError::Removed => ErrorCode::NotLeaderOrFollower,
        // The log was trimmed between the plan and the read.
        ReadError::OutOfRange => ErrorCode::OffsetOutOfRange,
        ReadError::Damaged { .. } | ReadError::Disk { .. } => ErrorCode::KafkaStorageError,
    }
}

/// Returns the error and its cause in words.
fn text_of(error: &ReadError) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let text = [Some(error.to_string()), cause].into_iter().flatten();
    text.collect::<Vec<_>>().join(": ")
}

/// Looks offsets up by time.
pub fn list_offsets<D: Disk>(reader: &Reader<D>, plan: TimePlan) -> ListOffsetsResponse {
    let TimePlan { mut response, parts } = plan;
    for part in parts {
        let found = if part.timestamp == MAX_TIMESTAMP {
            reader.find_max_time(part.replica, part.start, part.end)
        } else {
            reader.find_time(part.replica, part.timestamp, part.start, part.end)
        };
        let slot = &mut response.topics[part.topic].partitions[part.partition];
        match found {
            Ok(None) => {}
            Ok(Some((offset, timestamp))) => {
                debug_assert!(part.epochs.is_sorted(), "epochs follow each other");
                let at = part.epochs.partition_point(|(start, _)| *start <= offset);
                slot.offset = offset;
                slot.timestamp = timestamp;
                slot.leader_epoch = at.checked_sub(1).map_or(-1, |at| part.epochs[at].1);
            }
            Err(error) => {
                let code = code_of(&error);
                if code == ErrorCode::KafkaStorageError {
                    tracing::error!(replica = part.replica.0, %error, "a lookup by time failed");
                }
                slot.error_code = code.code();
            }
        }
    }
    response
}

/// Completes the answer to an operation of the native API. Finds an earlier attempt of a refused append, and the
/// beginning of the last batch, which stays unknown if the batch is gone by now.
pub fn native<D: Disk>(reader: &Reader<D>, mut answered: Answered) -> Answered {
    if let Some(repeat) = answered.repeat.take() {
        match queues::repeated(reader, &repeat) {
            Ok(None) => {}
            Ok(Some((first, last))) => {
                answered.answer = Ok(Answer::Appended { first, last, is_duplicate: true });
            }
            Err(QueueError::Index) => {
                answered.answer = Err(Problem::Busy("the index of the queues is made anew"));
            }
            Err(error) => {
                let replica = repeat.span.replica.0;
                tracing::error!(replica, ?error, "an earlier append cannot be looked for");
                answered.answer = Err(Problem::Damaged);
            }
        }
    }
    if let Some((replica, position)) = answered.lacking() {
        match reader.base_of(replica, position.offset, position.offset.saturating_add(1)) {
            Ok(Some(base)) => position.entry = base,
            Ok(None)
            | Err(ReadError::UnknownReplica | ReadError::Removed | ReadError::OutOfRange) => {}
            Err(error) => {
                tracing::error!(replica = replica.0, %error, "the last batch cannot be read");
                answered.answer = Err(Problem::Damaged);
            }
        }
    }
    answered.lacking = None;
    answered
}

/// Computes the digests of replicas. A replica that has no room left gets none, and ends where it begins.
pub fn digests<D: Disk>(reader: &Reader<D>, plan: ReplicasPlan) -> DescribeReplicasResponse {
    let ReplicasPlan { mut response, parts, mut bytes_max } = plan;
    for (at, part) in parts.iter().enumerate() {
        let slot = &mut response.topics[part.topic].partitions[part.partition];
        (slot.first_offset, slot.end_offset) = (part.from, part.from);
        if bytes_max == 0 && at > 0 {
            continue;
        }
        match &part.subject {
            Described::Bytes => {}
            Described::Queues(queues) => {
                let read = queue_digests::describe(reader, part, queues, bytes_max, slot);
                bytes_max = bytes_max.saturating_sub(read);
                continue;
            }
            Described::Erasure(done) => {
                queue_digests::describe_erasure(reader, part, *done, slot);
                continue;
            }
        }
        match reader.digest(part.replica, part.from, part.to, bytes_max) {
            Ok(digest) => {
                bytes_max = bytes_max.saturating_sub(digest.bytes);
                slot.first_offset = digest.first;
                slot.end_offset = digest.end;
                slot.bytes = i64::try_from(digest.bytes).unwrap_or(i64::MAX);
                slot.digest = Bytes::copy_from_slice(&digest.hash);
                slot.segments = digest.segments;
                slot.compaction = i64::try_from(digest.compaction).unwrap_or(i64::MAX);
                slot.damaged_offset = digest.damage.as_ref().map_or(-1, |damage| damage.offset);
                slot.damage = digest.damage.map(|damage| damage.what);
            }
            Err(error) => {
                slot.error_code = match error {
                    // The log was trimmed between the plan and the read. The client asks again and learns how far.
                    ReadError::Removed => ErrorCode::OffsetOutOfRange,
                    _ => code_of(&error),
                }
                .code();
                slot.error_message = Some(text_of(&error));
            }
        }
    }
    response
}

/// Reads the metadata log's batches after its image, for [`crate::NodeOptions::metadata_tail`].
pub fn metadata_tail<D: Disk>(
    reader: &Reader<D>,
    recovered: &[RecoveredReplica],
) -> Result<Vec<Bytes>, ReadError> {
    let mut tail = Vec::new();
    let Some(found) = recovered.iter().find(|found| is_metadata(&found.identity)) else {
        return Ok(tail);
    };
    let mut at = found.prev_end_offset;
    while at < found.end_offset {
        let range = reader.locate(found.replica, at, found.end_offset, TAIL_READ_BYTES, true)?;
        let bytes = match range {
            Some(range) => reader.read(found.replica, &range)?,
            None => return Err(ReadError::OutOfRange),
        };
        let (whole, next) = whole_batches(&bytes, |_| true);
        if next <= at {
            return Err(ReadError::OutOfRange);
        }
        tail.push(bytes.slice(..whole));
        at = next;
    }
    Ok(tail)
}

/// Reads the part of a log that a node asked for.
pub fn log_slice<D: Disk>(reader: &Reader<D>, wanted: &ReadLog) -> LogRead {
    let &ReadLog { replica, from, pass, end, bytes_max, made_by, .. } = wanted;
    let mut is_changed = false;
    let mut read = || -> Result<_, ReadError> {
        let from = reader.pass(replica, from, pass)?;
        let range = reader.locate(replica, from, end, bytes_max, true)?;
        let is_as_wanted = match (made_by, &range) {
            (MadeBy::Anything, _) | (MadeBy::Appends, None) => true,
            (MadeBy::Appends, Some(range)) => range.generation == 0,
            // The index only grows: if it is the planned one now, it was so when the read found nothing.
            (MadeBy::Compaction(index), None) => reader.compaction(replica)? == index,
            (MadeBy::Compaction(index), Some(range)) => range.compaction == index,
        };
        is_changed = made_by == MadeBy::Appends
            && (!is_as_wanted || range.is_none() && reader.compaction(replica)? > 0);
        if !is_as_wanted {
            return Err(ReadError::Removed);
        }
        match range {
            Some(range) => Ok((from, range.at == 0, reader.read(replica, &range)?)),
            None if made_by == MadeBy::Anything => Err(ReadError::OutOfRange),
            None => Ok((from, false, Bytes::new())),
        }
    };
    // A batch that was sound at its first read may be damaged since.
    let is_sound = |batch: &[u8]| {
        !wanted.is_for_mending()
            || Descriptor::of_batch(batch, false).is_ok_and(|it| it.matches(batch))
    };
    let whole = |bytes: Bytes| bytes.slice(..whole_batches(&bytes, is_sound).0);
    let read = read();
    let is_damaged = matches!(read, Err(ReadError::Damaged { .. }));
    let (from, begins_segment, batches) = match read {
        Ok((from, begins, bytes)) => {
            let (is_empty, whole) = (bytes.is_empty(), whole(bytes));
            // Damaged bytes must not look like the absence of records.
            let is_lost = whole.is_empty() && !is_empty && made_by != MadeBy::Anything;
            let batches = if is_lost { Err("it is damaged".to_owned()) } else { Ok(whole) };
            (from, begins, batches)
        }
        Err(error) => (from, false, Err(text_of(&error))),
    };
    LogRead { from, begins_segment, is_damaged, is_changed, ..wanted.answer(batches) }
}

/// Returns the size of the whole batches, up to the first that is not wanted, and the offset after them.
fn whole_batches(bytes: &Bytes, is_wanted: impl Fn(&[u8]) -> bool) -> (usize, i64) {
    let walk = duramen_protocol::batch::batches(bytes.clone());
    let (mut whole, mut next) = (0, -1);
    for batch in walk.map_while(Result::ok).take_while(|it| is_wanted(it.bytes())) {
        whole += batch.bytes().len();
        next = batch.header().end_offset();
    }
    (whole, next)
}
