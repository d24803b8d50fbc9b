//! Messages of the protocol, and the operations and records that they stand for.

use bytes::Bytes;
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::limits::{
    FENCE_BYTES_MAX, POINTER_BYTES_MAX, QUEUE_DELETES_MAX, QUEUE_NAME_BYTES_MAX, REASON_BYTES_MAX,
};
use duramen_broker::native::{
    self, Answer, Guard, Last, Log, Op, Problem, Queue, Start, Target, WantQueue, WantTail,
};
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::{
    BatchBuilder, DELIVER_AT_HEADER, EXPIRES_HEADER, ID_HEADER, NewRecord, PRIORITY_HEADER,
    PRIORITY_MAX,
};
use tokio::task::block_in_place;

use crate::proto::{
    self as proto, AppendRequest, AppendResponse, DeleteQueueRequest, DeleteRequest,
    EnqueueManyRequest, EnqueueRequest, FenceQueueRequest, FenceRequest, QueueMessage,
    ReplaceRequest, RetrieveRequest, RewriteRequest, TrimQueueRequest, TruncateRequest, guard,
    retrieve_request, rewrite_request,
};
use crate::server::checking::LARGE_FRAME;

/// Most records of one append.
const RECORDS_MAX: usize = 10_000;
/// Length of the longest id of a record, in bytes.
const ID_BYTES_MAX: usize = 64;

/// Reads the name of a log.
pub(crate) fn log_of(topic: &str, partition: i32) -> Result<Target, Problem> {
    if topic.is_empty() {
        return Err(wrong("topic", "a topic has a name"));
    }
    if partition < 0 {
        return Err(wrong("partition", "partitions count from 0"));
    }
    Ok(Target::Log(Log { topic: topic.to_owned(), partition }))
}

fn timeout_of(timeout_ms: u32) -> i32 {
    i32::try_from(timeout_ms).unwrap_or(i32::MAX)
}

fn wrong(field: &'static str, reason: impl Into<String>) -> Problem {
    Problem::BadRequest(field, reason.into())
}

/// Reads a position.
pub(crate) fn position_of(
    field: &'static str,
    position: proto::Position,
) -> Result<native::Position, Problem> {
    let proto::Position { term, entry, offset } = position;
    if term < 0 || offset < 0 || entry < -1 {
        return Err(wrong(field, "a position has no negative parts"));
    }
    Ok(native::Position { term, entry, offset })
}

impl From<native::Position> for proto::Position {
    fn from(native::Position { term, entry, offset }: native::Position) -> Self {
        Self { term, entry, offset }
    }
}

fn guard_of(guard: Option<&proto::Guard>) -> Result<Guard, Problem> {
    let Some(proto::Guard { last, fence }) = guard else { return Ok(Guard::default()) };
    let last = match *last {
        None => None,
        Some(guard::Last::None(true)) => Some(Last::Nothing),
        Some(guard::Last::None(false)) => {
            return Err(wrong("guard.none", "it is true, or absent"));
        }
        Some(guard::Last::At(position)) => Some(Last::At(position_of("guard.at", position)?)),
    };
    Ok(Guard { last, fence: token_of("guard.fence", fence.as_ref())?, queue: None })
}

fn token_of(field: &'static str, token: Option<&Bytes>) -> Result<Option<Bytes>, Problem> {
    match token {
        Some(token) if token.len() > FENCE_BYTES_MAX => {
            Err(wrong(field, format!("a token has at most {FENCE_BYTES_MAX} bytes")))
        }
        token => Ok(token.cloned()),
    }
}

/// Reads an append, and makes the batch of its records.
pub(crate) fn append_of(request: &AppendRequest, now_ms: i64) -> Result<Op, Problem> {
    let AppendRequest { topic, partition, records, batch, guard, session, timeout_ms } = request;
    let target = log_of(topic, *partition)?;
    let guard = guard_of(guard.as_ref())?;
    let ids = ids_of("records", records)?;
    let keyed = || records.iter().map(|it| (it.key.as_ref(), it)).collect::<Vec<_>>();
    let mut batch = match (records.is_empty(), batch.is_empty()) {
        (true, true) => return Err(wrong("records", "there are none")),
        (false, false) => return Err(wrong("batch", "there are records already")),
        (false, true) => batch_of(&keyed(), *partition, *session, now_ms)?,
        (true, false) if session.is_some() => {
            let reason = "a finished batch names its session itself";
            return Err(wrong("session", reason));
        }
        (true, false) => {
            CheckedBatch::of(batch.clone(), *partition).map_err(|error| wrong("batch", error))?
        }
    };
    if !guard.is_open() && !batch.guard.is_open() {
        return Err(wrong("guard", "the first record's headers are a guard already"));
    }
    // The guard of a call, and that of a header, is about the log here.
    batch.guard = if guard.is_open() { Guard { queue: None, ..batch.guard } } else { guard };
    Ok(Op::Append(native::Append {
        target,
        batch,
        ids,
        is_patient: false,
        timeout_ms: timeout_of(*timeout_ms),
    }))
}

/// Reads the ids of records: each has one, or none has.
fn ids_of<'a>(
    field: &'static str,
    records: impl IntoIterator<Item = &'a proto::Record, IntoIter: ExactSizeIterator + Clone>,
) -> Result<Vec<Bytes>, Problem> {
    let mut records = records.into_iter();
    let ids: Vec<&String> = records.clone().filter_map(|it| it.id.as_ref()).collect();
    if !ids.is_empty() && ids.len() < records.len() {
        return Err(wrong(field, "all have an id, or none has"));
    }
    if ids.iter().any(|it| it.is_empty() || it.len() > ID_BYTES_MAX) {
        return Err(wrong(field, format!("an id has 1 to {ID_BYTES_MAX} bytes")));
    }
    let is_id = |header: &proto::Header| header.name == ID_HEADER;
    if !ids.is_empty() && records.any(|it| it.headers.iter().any(is_id)) {
        return Err(wrong(field, "a record with an id has no header duramen-id"));
    }
    Ok(ids.into_iter().map(|it| Bytes::copy_from_slice(it.as_bytes())).collect())
}

/// Makes the batch of records, each with its key, for the partition that their keys belong to, or that `number` stands
/// for.
fn batch_of(
    records: &[(Option<&Bytes>, &proto::Record)],
    number: i32,
    session: Option<proto::Session>,
    now_ms: i64,
) -> Result<CheckedBatch, Problem> {
    if records.len() > RECORDS_MAX {
        return Err(wrong("records", format!("one append has at most {RECORDS_MAX}")));
    }
    let keys: usize = records.iter().filter_map(|(key, _)| key.map(Bytes::len)).sum();
    let room = keys + content(records.iter().map(|(_, record)| *record));
    let mut builder = BatchBuilder::new().room(room);
    if let Some(proto::Session { id, epoch, sequence }) = session {
        let epoch = i16::try_from(epoch).ok().filter(|epoch| *epoch >= 0);
        let (Some(epoch), true) = (epoch, id >= 0 && sequence >= 0) else {
            return Err(wrong("session", "its id, epoch and sequence are those that it was given"));
        };
        builder = builder.producer(id, epoch, sequence);
    }
    for (key, record) in records {
        let headers = record.headers.iter().map(|it| (it.name.as_str(), it.value.as_deref()));
        let id = record.id.as_ref().map(|id| (ID_HEADER, Some(id.as_bytes())));
        let schedule = schedule_of(record, now_ms)?;
        let times = schedule.iter().map(|(name, value)| (*name, Some(value.as_bytes())));
        let headers: Vec<_> = headers.chain(id).chain(times).collect();
        let record = NewRecord {
            timestamp: if record.timestamp_ms == 0 { now_ms } else { record.timestamp_ms },
            key: key.map(|key| &key[..]),
            value: record.value.as_deref(),
            headers: &headers,
        };
        builder.push(&record).map_err(|error| wrong("records", error.to_string()))?;
    }
    let bytes = builder.finish().map_err(|error| wrong("records", error.to_string()))?;
    CheckedBatch::made(bytes, number).map_err(|error| wrong("records", error))
}

/// Returns the headers of a record that say when workers get it, and before which others.
fn schedule_of(
    record: &proto::Record,
    now_ms: i64,
) -> Result<Vec<(&'static str, String)>, Problem> {
    use proto::schedule::{End, Start};
    let Some(schedule) = &record.schedule else { return Ok(Vec::new()) };
    let later = |ms: u64| now_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX));
    let start = schedule.start.map(|it| match it {
        Start::DeliverAtMs(at) => at,
        Start::DelayMs(ms) => later(ms),
    });
    let end = schedule.end.map(|it| match it {
        End::ExpiresMs(at) => at,
        End::TtlMs(ms) => later(ms),
    });
    if start.into_iter().chain(end).any(|at| at <= 0) {
        return Err(wrong("schedule", "a time is a positive number of milliseconds since 1970"));
    }
    if schedule.priority.is_some_and(|it| it > PRIORITY_MAX.into()) {
        return Err(wrong("schedule", format!("a priority is 0 to {PRIORITY_MAX}")));
    }
    let names = [DELIVER_AT_HEADER, EXPIRES_HEADER, PRIORITY_HEADER];
    if record.headers.iter().any(|it| names.contains(&it.name.as_str())) {
        return Err(wrong("schedule", "a message with a schedule has no header of one"));
    }
    let numbers = [start, end, schedule.priority.map(i64::from)];
    let headers = names.into_iter().zip(numbers);
    Ok(headers.filter_map(|(name, number)| Some((name, number?.to_string()))).collect())
}

/// Returns about as many bytes as records have in a batch, beside their keys.
pub(crate) fn content<'a>(records: impl Iterator<Item = &'a proto::Record>) -> usize {
    /// Lengths and differences of a record, or of a header.
    const EDGES: usize = 16;
    let value = |value: Option<&Bytes>| EDGES + value.map_or(0, Bytes::len);
    let header = |it: &proto::Header| it.name.len() + value(it.value.as_ref());
    let record = |it: &proto::Record| {
        let id = it.id.as_ref().map_or(0, |id| EDGES + ID_HEADER.len() + id.len());
        let schedule = if it.schedule.is_some() { 3 * 4 * EDGES } else { 0 };
        value(it.value.as_ref()) + id + schedule + it.headers.iter().map(header).sum::<usize>()
    };
    records.map(record).sum()
}

/// Reads a request of so many bytes. A large one holds up no other client of its thread. A small one does not pay for
/// that: the rest of the thread's work goes to another thread, and comes back.
pub(crate) fn unhurried<T>(bytes: usize, read: impl FnOnce() -> T) -> T {
    if bytes > LARGE_FRAME { block_in_place(read) } else { read() }
}

/// Reads the name of a queue.
fn queue_of(topic: &str, name: &Bytes) -> Result<Target, Problem> {
    if topic.is_empty() {
        return Err(wrong("topic", "a topic has a name"));
    }
    if name.is_empty() || name.len() > QUEUE_NAME_BYTES_MAX {
        return Err(wrong(
            "queue",
            format!("a queue's name has 1 to {QUEUE_NAME_BYTES_MAX} bytes"),
        ));
    }
    Ok(Target::Queue(Queue { topic: topic.to_owned(), name: name.clone() }))
}

/// Makes the batch of messages to one queue.
fn batch_to(
    queue: &Bytes,
    messages: &[proto::Record],
    session: Option<proto::Session>,
    now_ms: i64,
) -> Result<CheckedBatch, Problem> {
    if messages.iter().any(|it| it.key.as_ref().is_some_and(|key| key != queue)) {
        return Err(wrong("messages", "the key of a message is its queue's name, or absent"));
    }
    // The node finds the partition by the number of the name.
    let keyed: Vec<_> = messages.iter().map(|it| (Some(queue), it)).collect();
    batch_of(&keyed, key_number(queue), session, now_ms)
}

/// Makes the batch of messages that an edit appends, and reads their ids.
fn edit_of(
    queue: &Bytes,
    messages: &[proto::Record],
    now_ms: i64,
) -> Result<(CheckedBatch, Vec<Bytes>), Problem> {
    let batch = batch_to(queue, messages, None, now_ms)?;
    if !batch.guard.is_open() {
        return Err(wrong("messages", "a message of an edit has no guard"));
    }
    Ok((batch, ids_of("messages", messages)?))
}

/// Reads an append to a queue, and makes the batch of its messages.
pub(crate) fn enqueue_of(request: &EnqueueRequest, now_ms: i64) -> Result<Op, Problem> {
    let EnqueueRequest { topic, queue, messages, guard, session, timeout_ms } = request;
    let target = queue_of(topic, queue)?;
    if messages.is_empty() {
        return Err(wrong("messages", "there are none"));
    }
    let mut batch = batch_to(queue, messages, *session, now_ms)?;
    let ids = ids_of("messages", messages)?;
    let guard = guard_of(guard.as_ref())?;
    if !guard.is_open() {
        if !batch.guard.is_open() {
            return Err(wrong("guard", "the first message's headers are a guard already"));
        }
        batch.guard = Guard { queue: Some(queue.clone()), ..guard };
    }
    Ok(Op::Append(native::Append {
        target,
        batch,
        ids,
        is_patient: false,
        timeout_ms: timeout_of(*timeout_ms),
    }))
}

/// Checks what needs no node of an append to many queues.
pub(crate) fn check_many(request: &EnqueueManyRequest) -> Result<(), Problem> {
    if request.messages.is_empty() {
        return Err(wrong("messages", "there are none"));
    }
    if request.messages.len() > RECORDS_MAX {
        return Err(wrong("messages", format!("one call has at most {RECORDS_MAX}")));
    }
    for QueueMessage { queue, message } in &request.messages {
        queue_of(&request.topic, queue)?;
        let Some(message) = message else {
            return Err(wrong("messages", "a queue has no message"));
        };
        if message.key.as_ref().is_some_and(|key| key != queue) {
            return Err(wrong("messages", "the key of a message is its queue's name, or absent"));
        }
    }
    Ok(())
}

/// Reads an append to many queues of one partition, which [`check_many`] has passed, and makes its batch.
pub(crate) fn enqueue_many_of(request: &EnqueueManyRequest, now_ms: i64) -> Result<Op, Problem> {
    let EnqueueManyRequest { topic, messages, timeout_ms } = request;
    let Some(first) = messages.first() else { return Err(wrong("messages", "there are none")) };
    let keyed = messages.iter().filter_map(|it| Some((Some(&it.queue), it.message.as_ref()?)));
    let keyed: Vec<_> = keyed.collect();
    ids_of("messages", keyed.iter().map(|(_, record)| *record))?;
    let batch = batch_of(&keyed, key_number(&first.queue), None, now_ms)?;
    if !batch.guard.is_open() {
        return Err(wrong("messages", "an append to many queues has no guard"));
    }
    let target = queue_of(topic, &first.queue)?;
    Ok(Op::Append(native::Append {
        target,
        batch,
        ids: Vec::new(),
        is_patient: false,
        timeout_ms: timeout_of(*timeout_ms),
    }))
}

/// Reads a read of a queue that waits for so many milliseconds.
pub(crate) fn retrieve_of(request: &RetrieveRequest, wait_ms: i32) -> Result<Op, Problem> {
    let start = match request.start {
        None => Start::Begin,
        Some(retrieve_request::Start::After(position)) => {
            Start::After(position_of("after", position)?)
        }
        Some(retrieve_request::Start::End(true)) => Start::End,
        Some(retrieve_request::Start::End(false)) => {
            return Err(wrong("end", "it is true, or absent"));
        }
    };
    Ok(Op::Retrieve(native::Retrieve {
        target: queue_of(&request.topic, &request.queue)?,
        start,
        wait_ms,
        is_certain: request.consistency() == proto::Consistency::Latest,
        skips_trimmed: request.skip_trimmed,
    }))
}

/// Reads a question for one element.
pub(crate) fn element_of(
    request: &proto::GetElementRequest,
    position: proto::Position,
) -> Result<Op, Problem> {
    Ok(Op::Retrieve(native::Retrieve {
        target: queue_of(&request.topic, &request.queue)?,
        start: Start::At(position_of("position", position)?.offset),
        wait_ms: 0,
        is_certain: true,
        skips_trimmed: true,
    }))
}

/// Reads a deletion of elements.
pub(crate) fn delete_of(request: &DeleteRequest) -> Result<Op, Problem> {
    if !(1..=QUEUE_DELETES_MAX).contains(&request.positions.len()) {
        return Err(wrong("positions", format!("there are 1 to {QUEUE_DELETES_MAX}")));
    }
    let positions = request.positions.iter().map(|it| position_of("positions", *it));
    Ok(Op::Delete(native::Delete {
        target: queue_of(&request.topic, &request.queue)?,
        positions: positions.collect::<Result<_, _>>()?,
        fence: token_of("fence", request.fence.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a replacement of an element, and makes the batch of its new content.
pub(crate) fn replace_of(request: &ReplaceRequest, now_ms: i64) -> Result<Op, Problem> {
    let target = queue_of(&request.topic, &request.queue)?;
    let position = request.position.ok_or_else(|| wrong("position", "it is missing"))?;
    let message = request.message.as_ref().ok_or_else(|| wrong("message", "it is missing"))?;
    if request.if_version.is_some_and(|version| version < 0) {
        return Err(wrong("if_version", "versions count from 0"));
    }
    let (batch, mut ids) = edit_of(&request.queue, std::slice::from_ref(message), now_ms)?;
    Ok(Op::Replace(native::Replace {
        target,
        position: position_of("position", position)?,
        batch,
        id: ids.pop(),
        if_version: request.if_version,
        fence: token_of("fence", request.fence.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a rewrite, and makes the batch of its messages, if it has some.
pub(crate) fn rewrite_of(request: &RewriteRequest, now_ms: i64) -> Result<Op, Problem> {
    let target = queue_of(&request.topic, &request.queue)?;
    let after = match request.keep {
        Some(rewrite_request::Keep::After(position)) => Some(position_of("after", position)?),
        Some(rewrite_request::Keep::None(true)) => None,
        Some(rewrite_request::Keep::None(false)) => {
            return Err(wrong("none", "it is true, or absent"));
        }
        None => return Err(wrong("after", "it is a position, or none is true")),
    };
    if request.fence.is_empty() {
        return Err(wrong("fence", "a rewrite names the queue's fence; set that first"));
    }
    if request.reason.len() > REASON_BYTES_MAX {
        return Err(wrong("reason", format!("it has at most {REASON_BYTES_MAX} bytes")));
    }
    let made = (!request.messages.is_empty())
        .then(|| edit_of(&request.queue, &request.messages, now_ms))
        .transpose()?;
    let (batch, ids) = made.map_or((None, Vec::new()), |(batch, ids)| (Some(batch), ids));
    Ok(Op::Rewrite(native::Rewrite {
        target,
        after,
        batch,
        ids,
        fence: token_of("fence", Some(&request.fence))?,
        reason: request.reason.clone(),
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a deletion of a queue.
pub(crate) fn delete_queue_of(request: &DeleteQueueRequest) -> Result<Op, Problem> {
    Ok(Op::DeleteQueue(native::DeleteQueue {
        target: queue_of(&request.topic, &request.queue)?,
        fence: token_of("fence", request.fence.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a trim of a queue.
pub(crate) fn trim_queue_of(request: &TrimQueueRequest) -> Result<Op, Problem> {
    let through = request.through.ok_or_else(|| wrong("through", "it is missing"))?;
    Ok(Op::TrimQueue(native::TrimQueue {
        target: queue_of(&request.topic, &request.queue)?,
        through: position_of("through", through)?,
        pointer: pointer_of(request.pointer.as_ref())?,
        fence: token_of("fence", request.fence.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a change of a queue's fence.
pub(crate) fn fence_queue_of(request: &FenceQueueRequest) -> Result<Op, Problem> {
    Ok(Op::FenceQueue(native::SetFence {
        target: queue_of(&request.topic, &request.queue)?,
        token: token_of("token", Some(&request.token))?.unwrap_or_default(),
        if_token: token_of("if_token", request.if_token.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a question about a queue.
pub(crate) fn get_queue_of(request: &proto::GetQueueRequest) -> Result<Op, Problem> {
    let target = queue_of(&request.topic, &request.queue)?;
    Ok(Op::GetQueue(WantQueue { target, is_certain: true }))
}

/// Reads a question about the queues of one partition.
pub(crate) fn list_queues_of(topic: &str, partition: i32) -> Result<Op, Problem> {
    Ok(Op::ListQueues(WantTail { target: log_of(topic, partition)?, is_certain: true }))
}

fn pointer_of(pointer: Option<&proto::Pointer>) -> Result<Option<native::Pointer>, Problem> {
    let Some(pointer) = pointer else { return Ok(None) };
    let proto::Pointer { uri, position, sha256, note } = pointer.clone();
    let position = position.map(|it| position_of("pointer.position", it)).transpose()?;
    let pointer = native::Pointer { uri, position, sha256, note };
    if !matches!(pointer.sha256.len(), 0 | 32) {
        return Err(wrong("pointer.sha256", "it has 32 bytes, or none"));
    }
    if !pointer.is_small() {
        return Err(wrong("pointer", format!("it has at most {POINTER_BYTES_MAX} bytes")));
    }
    Ok(Some(pointer))
}

/// Reads a truncation.
pub(crate) fn truncate_of(request: &TruncateRequest) -> Result<Op, Problem> {
    Ok(Op::Truncate(native::Truncate {
        target: log_of(&request.topic, request.partition)?,
        through: request.through.map(|it| position_of("through", it)).transpose()?,
        pointer: pointer_of(request.pointer.as_ref())?,
        fence: token_of("fence", request.fence.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a change of a log's fence.
pub(crate) fn fence_of(request: &FenceRequest) -> Result<Op, Problem> {
    Ok(Op::Fence(native::SetFence {
        target: log_of(&request.topic, request.partition)?,
        token: token_of("token", Some(&request.token))?.unwrap_or_default(),
        if_token: token_of("if_token", request.if_token.as_ref())?,
        timeout_ms: timeout_of(request.timeout_ms),
    }))
}

/// Reads a question about the ends of a log.
pub(crate) fn tail_of(request: &proto::TailRequest) -> Result<Op, Problem> {
    let target = log_of(&request.topic, request.partition)?;
    Ok(Op::Tail(WantTail { target, is_certain: true }))
}

/// Writes the answer to an append.
pub(crate) fn appended(answer: Answer) -> AppendResponse {
    match answer {
        Answer::Appended { first, last, is_duplicate } => AppendResponse {
            first: Some(first.into()),
            last: Some(last.into()),
            duplicate: is_duplicate,
        },
        other => unreachable!("{other:?} answers no append"),
    }
}

/// Writes the answer to an edit.
pub(crate) fn edited(answer: &Answer) -> proto::EditResponse {
    let Answer::Edited(it) = answer else { unreachable!("{answer:?} answers no edit") };
    let native::Edited { first, last, absent, withdrawn, is_duplicate } = *it;
    let count = |it| u32::try_from(it).unwrap_or(u32::MAX);
    proto::EditResponse {
        at: first.map(Into::into),
        absent: count(absent),
        last: last.map(Into::into),
        withdrawn: count(withdrawn),
        duplicate: is_duplicate,
    }
}

/// Writes the answer about the ends of a log.
pub(crate) fn tail(answer: Answer) -> proto::Tail {
    let Answer::Tail(native::Tail { start, stable, end, last, fence, pointer }) = answer else {
        unreachable!("only an append has positions")
    };
    let (last, pointer) = (last.map(Into::into), pointer.map(Into::into));
    proto::Tail { start, stable, end, last, fence, pointer }
}

impl From<native::Pointer> for proto::Pointer {
    fn from(it: native::Pointer) -> Self {
        let native::Pointer { uri, position, sha256, note } = it;
        Self { uri, position: position.map(Into::into), sha256, note }
    }
}
