//! # Room card: fast appends of clients
//!
//! Purpose:    `AppendFast` and `DescribeFast`: batches that clients send to all members of a stretch, and the stretch.
//! Owns:       the answers, and the waits of both requests.
//! Interface:  [`handle`], [`describe`]; [`on_finished`] and [`on_timeout`] end a wait.
//! Invariants: with `wait=0` the error code of every part is 0. A part has an outcome only once the partition said so.
//!             A client that may not write to a topic learns nothing of it.
//! Never:      the rules of a stretch (see `partition/fast.rs`).
//! Tests:      `node/tests/fast.rs`.
//! Start at:   [`handle`].
//!
//! With `wait=0` a request never stalls, since its client has sent the batch to others too. With `wait=1` it is a
//! Produce with `acks=all`, or a question after a batch.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::append_fast::{AppendedFast, AppendedFastTopic};
use duramen_protocol::messages::describe_fast::{DescribedFast, DescribedFastTopic};
use duramen_protocol::messages::describe_replicas::DescribedStretch;
use duramen_protocol::messages::{AppendFastResponse, DescribeFastRequest, DescribeFastResponse};
use duramen_protocol::wire::{Few, Uuid};
use duramen_storage::op::{ReplicaId, Stretch};

use super::produce;
use crate::checked_batch::BatchIds;
use crate::core::{FastWait, Parked};
use crate::event::RequestKey;
use crate::limits::FAST_OPEN_US_MAX;
use crate::node::Node;
use crate::partition::fast::{Fast, OpenStretch, Outcome};
use crate::partition::members::Opening;
use crate::partition::{Acks, Partition, Slot};
use crate::quotas::QuotaKey;
use crate::session::{
    Prepared, PreparedFast, PreparedFastPartition, PreparedFastTopic, Rejection, RequestContext,
};

const NOT_ENABLED: &str = "the topic's fast.append.enable is false";
const NO_ROOM: &str = "too much waits for the disk";
const NO_BATCH: &str = "the request has no batch for the partition";
const NO_STRETCH: &str = "the request names no stretch";

/// Error code, or none where a batch is merely not taken now, and the reason if the code does not tell it.
type Refusal = (ErrorCode, Option<String>);

/// Place of a part in a request and its answer: of its topic, and there of its partition.
type Place = (usize, usize);

/// Result of one part.
enum Step {
    Waits(FastWait),
    Committed { base_offset: i64, log_start: i64 },
}

fn not_now(reason: &str) -> Refusal {
    (ErrorCode::None, Some(reason.to_owned()))
}

/// Tells whether a client waits for the commit, or for an error.
fn waits_for_commit(wait: i8) -> bool {
    wait != 0
}

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: PreparedFast,
) {
    let deadline_us = produce::deadline_us(node, request.timeout_ms);
    let is_full = node.core.has_stalled() || !node.core.has_room(request.bytes());
    if !is_full {
        append(node, key, context, request, deadline_us, None);
    } else if waits_for_commit(request.wait) {
        node.core.stall(key, context, Prepared::Fast(request), deadline_us);
    } else {
        append(node, key, context, request, deadline_us, Some(NO_ROOM));
    }
}

/// Goes on with a request for which there is room now.
pub(crate) fn resume_stalled(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: PreparedFast,
    deadline_us: u64,
) {
    append(node, key, context, request, deadline_us, None);
}

/// Answers a stalled request whose timeout has passed; none of its batches was appended.
pub(crate) fn on_stalled_too_long(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: PreparedFast,
) {
    let commits = waits_for_commit(request.wait);
    let answer = |partition: PreparedFastPartition| {
        let refusal = match partition.batch {
            Some(Err(Rejection { code, message })) => (code, Some(message)),
            _ => (ErrorCode::RequestTimedOut, None),
        };
        let mut part = AppendedFast { index: partition.index, ..Default::default() };
        refuse(&mut part, commits, refusal);
        part
    };
    let topic = |topic: PreparedFastTopic| AppendedFastTopic {
        topic_id: topic.id,
        partitions: topic.partitions.into_iter().map(answer).collect(),
    };
    let topics = request.topics.into_iter().map(topic).collect();
    reply(node, key, context, AppendFastResponse { topics, ..Default::default() });
}

/// Gives each batch to its replica. With an obstacle, none is taken, for that reason.
fn append(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: PreparedFast,
    deadline_us: u64,
    obstacle: Option<&str>,
) {
    let commits = waits_for_commit(request.wait);
    let refusal = match request.wait {
        0 | 1 => obstacle.map(not_now),
        _ => Some((ErrorCode::InvalidRequest, None)),
    };
    let quota = node.core.quota(QuotaKey::ProducerByteRate, &context);
    let bytes = bytes_led(node, &request);
    let rest_ms = quota.map_or(0, |quota| node.core.use_up(&quota, bytes));
    let mut response = AppendFastResponse { throttle_time_ms: rest_ms, ..Default::default() };
    let mut waits = BTreeMap::new();
    for (at, topic) in request.topics.into_iter().enumerate() {
        let PreparedFastTopic { id: topic_id, partitions } = topic;
        let admitted = produce::admit(node, &context, topic_id);
        let mut answers = Few::with_capacity(partitions.len());
        for (place, partition) in partitions.into_iter().enumerate() {
            let slot = Slot::Request { key, topic: at, partition: place };
            let mut part = AppendedFast { index: partition.index, ..Default::default() };
            let step = match (&admitted, &refusal) {
                (Err(code), _) => Err((*code, None)),
                (Ok(_), Some(refusal)) => Err(refusal.clone()),
                (Ok(topic), None) if commits => commit(node, &context, *topic, partition, slot),
                (Ok(topic), None) => send(node, *topic, partition, slot),
            };
            match step {
                Ok(Step::Waits(wait)) => {
                    waits.insert((at, place), wait);
                }
                Ok(Step::Committed { base_offset, log_start }) => {
                    tell_outcome(&mut part, Outcome::Committed, (base_offset, log_start));
                }
                Err(refusal) => refuse(&mut part, commits, refusal),
            }
            answers.push(part);
        }
        response.topics.push(AppendedFastTopic { topic_id, partitions: answers });
    }
    if waits.is_empty() {
        reply(node, key, &context, response);
    } else {
        node.core.park(key, Parked::Fast { response, waits, commits, context }, deadline_us);
    }
}

/// Returns the size of the batches for partitions that this node leads. Copies on followers do not count for quotas.
fn bytes_led(node: &Node, request: &PreparedFast) -> u64 {
    let led = |topic: &PreparedFastTopic| {
        let known = node.core.controller.image.topic(topic.id);
        let leads = |it: &&PreparedFastPartition| {
            known.is_some_and(|topic| node.core.serving(topic, it.index).is_ok())
        };
        topic.partitions.iter().filter(leads).map(PreparedFastPartition::bytes).sum::<u64>()
    };
    request.topics.iter().map(led).sum()
}

/// Returns the replica here that a batch is for, leader or not, or the reason why it takes none.
fn find(node: &Node, topic: Uuid, index: i32) -> Result<ReplicaId, Refusal> {
    let blunt = |code| (code, None);
    let topic = produce::topic_of(node, topic).map_err(blunt)?;
    let partition = node.core.partition_here(topic, index).map_err(blunt)?;
    produce::check_room(node, partition)?;
    Ok(partition.group.id())
}

/// Gives a batch to the replica here, to be held or appended.
fn send(
    node: &mut Node,
    topic: Uuid,
    partition: PreparedFastPartition,
    slot: Slot,
) -> Result<Step, Refusal> {
    let batch = partition.batch.ok_or_else(|| not_now(NO_BATCH))?;
    let batch = batch.map_err(|Rejection { code, message }| (code, Some(message)))?;
    let replica = find(node, topic, partition.index)?;
    if !node.core.partitions[&replica].settings.fast_append {
        return Err(not_now(NOT_ENABLED));
    }
    let stretch = partition.stretch.ok_or_else(|| not_now(NO_STRETCH))?;
    step_of(node.core.append_fast(replica, stretch, batch, slot))
}

/// Appends a batch as a Produce with `acks=all` does, or asks after one.
fn commit(
    node: &mut Node,
    context: &RequestContext,
    topic: Uuid,
    partition: PreparedFastPartition,
    slot: Slot,
) -> Result<Step, Refusal> {
    let index = partition.index;
    let Some(batch) = partition.batch else {
        if !partition.ids.is_sound() {
            return Err((ErrorCode::InvalidRequest, None));
        }
        let blunt = |code| (code, None);
        let known = produce::topic_of(node, topic).map_err(blunt)?;
        let replica = node.core.serving(known, index).map_err(blunt)?.group.id();
        return step_of(node.core.ask_fast(replica, partition.ids, slot));
    };
    let batch = batch.map_err(|Rejection { code, message }| (code, Some(message)))?;
    let header = batch.header;
    if partition.stretch.is_some()
        && let Ok(replica) = leader_here(node, topic, index)
    {
        // The leader may have it already: then no setting of the topic matters any more.
        let asked = step_of(node.core.ask_fast(replica, BatchIds::of(&header), slot));
        if asked.is_ok() {
            return asked;
        }
    }
    let outcome = produce::one(node, ("", context), (topic, index), batch, Acks::All, slot);
    produce::note_refusal(node, (topic, index), &header, &outcome);
    match outcome {
        produce::Outcome::Waits { .. } => Ok(Step::Waits(FastWait::Commit(partition.stretch))),
        produce::Outcome::Done(part) => match ErrorCode::from_code(part.error_code) {
            None | Some(ErrorCode::None) => Ok(Step::Committed {
                base_offset: part.base_offset,
                log_start: part.log_start_offset,
            }),
            Some(code) => {
                let refusal = (code, part.error_message);
                refuse_for_good(node, (topic, index), partition.stretch, refusal, slot)
            }
        },
    }
}

/// Returns the replica here that leads a partition.
fn leader_here(node: &Node, topic: Uuid, index: i32) -> Result<ReplicaId, ErrorCode> {
    let topic = produce::topic_of(node, topic)?;
    Ok(node.core.serving(topic, index)?.group.id())
}

/// Refuses a batch. A stretch in which it may be held ends before it is refused for good. Else a later leader could
/// take the batch over.
fn refuse_for_good(
    node: &mut Node,
    (topic, index): (Uuid, i32),
    stretch: Option<Stretch>,
    refusal: Refusal,
    slot: Slot,
) -> Result<Step, Refusal> {
    let is_final = !refusal.0.is_none() && !refusal.0.is_retriable();
    let Some(stretch) = stretch.filter(|_| is_final) else { return Err(refusal) };
    let replica = leader_here(node, topic, index).map_err(|code| (code, None))?;
    match node.core.outlast_stretch(replica, stretch, slot) {
        Ok(true) => Ok(Step::Waits(FastWait::Refusal(refusal.0, refusal.1))),
        Ok(false) => Err(refusal),
        Err(code) => Err((code, None)),
    }
}

fn step_of((fast, log_start): (Fast, i64)) -> Result<Step, Refusal> {
    match fast {
        Fast::Waits(outcome) => Ok(Step::Waits(FastWait::Outcome(outcome))),
        Fast::Committed { base_offset } => Ok(Step::Committed { base_offset, log_start }),
        Fast::NotNow(reason) => Err(not_now(reason)),
    }
}

fn tell_outcome(part: &mut AppendedFast, outcome: Outcome, (base_offset, log_start): (i64, i64)) {
    part.outcome = outcome as i8;
    part.log_start_offset = log_start;
    // No other outcome makes the place of the batch certain.
    if outcome == Outcome::Committed {
        part.base_offset = base_offset;
    }
}

/// Says that nothing is promised. Only a client that waits for the commit gets the code.
fn refuse(part: &mut AppendedFast, commits: bool, (code, reason): Refusal) {
    part.outcome = Outcome::NotNow as i8;
    if commits {
        (part.error_code, part.error_message) = (code.code(), reason);
    } else {
        part.error_message = Some(reason.unwrap_or_else(|| code.to_string()));
    }
}

pub(crate) fn describe(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: DescribeFastRequest,
) {
    let mut response = DescribeFastResponse::default();
    let mut waits = BTreeSet::new();
    for (at, topic) in request.topics.into_iter().enumerate() {
        let topic_id = topic.topic_id;
        let admitted = produce::admit(node, &context, topic_id);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for (place, partition_index) in topic.partitions.into_iter().enumerate() {
            let slot = Slot::Request { key, topic: at, partition: place };
            let opened =
                admitted.and_then(|topic| open(node, (topic, partition_index), request.open, slot));
            if opened == Ok(Opening::Waits) {
                waits.insert((at, place));
            }
            let mut part = DescribedFast { partition_index, ..Default::default() };
            if let Err(code) = opened {
                part.error_code = code.code();
                let is_off = code == ErrorCode::PolicyViolation;
                part.error_message = is_off.then(|| NOT_ENABLED.to_owned());
            }
            partitions.push(part);
        }
        response.topics.push(DescribedFastTopic { topic_id, partitions });
    }
    if waits.is_empty() {
        reply_described(node, key, &context, response);
    } else {
        let deadline_us = node.core.now.mono_us + FAST_OPEN_US_MAX;
        node.core.park(key, Parked::Opening { response, waits, context }, deadline_us);
    }
}

/// Opens a stretch if the client wants one and none is open. Without such a wish nothing is to be waited for.
fn open(
    node: &mut Node,
    (topic, index): (Uuid, i32),
    is_wanted: bool,
    slot: Slot,
) -> Result<Opening, ErrorCode> {
    let topic = produce::topic_of(node, topic)?;
    let partition = node.core.serving(topic, index)?;
    if is_wanted && !partition.settings.fast_append {
        return Err(ErrorCode::PolicyViolation);
    }
    if !is_wanted || partition.open_here().is_some() {
        return Ok(Opening::Open);
    }
    let replica = partition.group.id();
    match node.core.open_stretch(replica, slot) {
        Opening::Refused(code) => Err(code),
        opening => Ok(opening),
    }
}

/// Records the outcome of a batch, or of a wish for a stretch, and answers after the last one.
pub(crate) fn on_finished(
    node: &mut Node,
    key: RequestKey,
    place: Place,
    error: ErrorCode,
    offsets: (i64, i64),
) {
    let is_last = match node.core.parked_mut(key) {
        Some(Parked::Fast { waits, .. }) => {
            let wait = waits.remove(&place).expect("a batch has one result");
            on_batch_finished(node, (key, place), wait, error, offsets)
        }
        Some(Parked::Opening { response, waits, .. }) => {
            assert!(waits.remove(&place), "a wish has one result");
            response.topics[place.0].partitions[place.1].error_code = error.code();
            waits.is_empty()
        }
        _ => false,
    };
    if is_last {
        answer(node, key);
    }
}

/// Does that for a batch. True if nothing is awaited any more.
fn on_batch_finished(
    node: &mut Node,
    (key, place): (RequestKey, Place),
    wait: FastWait,
    error: ErrorCode,
    offsets: (i64, i64),
) -> bool {
    let result = match wait {
        FastWait::Outcome(outcome) if error.is_none() => Ok(outcome),
        FastWait::Commit(_) if error.is_none() => Ok(Outcome::Committed),
        FastWait::Refusal(code, reason) if error.is_none() => Err((code, reason)),
        FastWait::Commit(stretch) => {
            let Some(Parked::Fast { response, .. }) = node.core.parked(key) else { return false };
            let topic = &response.topics[place.0];
            let of = (topic.topic_id, topic.partitions[place.1].index);
            let slot = Slot::Request { key, topic: place.0, partition: place.1 };
            match refuse_for_good(node, of, stretch, (error, None), slot) {
                Ok(Step::Waits(wait)) => {
                    if let Some(Parked::Fast { waits, .. }) = node.core.parked_mut(key) {
                        waits.insert(place, wait);
                    }
                    return false;
                }
                Ok(Step::Committed { .. }) => unreachable!("a refusal commits nothing"),
                Err(refusal) => Err(refusal),
            }
        }
        FastWait::Outcome(_) | FastWait::Refusal(..) => Err((error, None)),
    };
    let Some(Parked::Fast { response, waits, commits, .. }) = node.core.parked_mut(key) else {
        return false;
    };
    let part = &mut response.topics[place.0].partitions[place.1];
    match result {
        Ok(outcome) => tell_outcome(part, outcome, offsets),
        Err(refusal) => refuse(part, *commits, refusal),
    }
    waits.is_empty()
}

/// Answers a request whose time is over. A batch without an outcome may be in the log nevertheless.
pub(crate) fn on_timeout(node: &mut Node, key: RequestKey) {
    let code = ErrorCode::RequestTimedOut;
    match node.core.parked_mut(key) {
        Some(Parked::Fast { response, waits, commits, .. }) => {
            for (topic, partition) in std::mem::take(waits).into_keys() {
                let part = &mut response.topics[topic].partitions[partition];
                refuse(part, *commits, (code, None));
            }
        }
        Some(Parked::Opening { response, waits, .. }) => {
            for (topic, partition) in std::mem::take(waits) {
                response.topics[topic].partitions[partition].error_code = code.code();
            }
        }
        _ => {}
    }
    answer(node, key);
}

fn answer(node: &mut Node, key: RequestKey) {
    match node.unpark(key) {
        Some(Parked::Fast { response, context, .. }) => reply(node, key, &context, response),
        Some(Parked::Opening { response, context, .. }) => {
            reply_described(node, key, &context, response);
        }
        Some(other) => unreachable!("{other:?} is no fast append"),
        None => {}
    }
}

/// Returns the stretches that leaders here have open.
pub(super) fn stretches(node: &Node) -> Vec<DescribedStretch> {
    let of = |partition: &Partition| {
        let OpenStretch { stretch, members } = partition.open_here()?;
        let broker = |peer: &u64| Some(node.core.placed(partition.id, *peer)?.broker_id);
        Some(DescribedStretch {
            topic_id: Uuid(partition.id.topic_id),
            partition_index: partition.id.partition,
            stretch_term: i64::try_from(stretch.term).unwrap_or(i64::MAX),
            stretch_index: i64::try_from(stretch.index).unwrap_or(i64::MAX),
            members: members.iter().filter_map(broker).collect(),
        })
    };
    node.core.partitions.values().filter_map(|it| of(it)).collect()
}

/// Leader and stretch of a partition, for clients: -1 stands for whatever is not known.
struct Standing {
    /// The leader's node, and its epoch.
    leader: (i32, i32),
    /// Term and index of the stretch that is open here.
    stretch: (i64, i64),
    /// Nodes of the stretch's members, the leader first.
    members: Vec<i32>,
}

/// Returns what the node knows of a partition, as far as the client may know it.
fn standing(node: &Node, context: &RequestContext, topic: Uuid, index: i32) -> Standing {
    let mut standing = Standing { leader: (-1, -1), stretch: (-1, -1), members: Vec::new() };
    let topic = produce::admit(node, context, topic).ok();
    let Some(topic) = topic.and_then(|id| node.core.controller.image.topic(id)) else {
        return standing;
    };
    if let Some(leader) = node.core.leader_of(topic, index) {
        standing.leader = leader;
    }
    let Ok(partition) = node.core.partition_here(topic, index) else { return standing };
    let Some(OpenStretch { stretch, members }) = partition.open_here() else { return standing };
    let broker = |peer: &u64| Some(node.core.placed(partition.id, *peer)?.broker_id);
    // A client that does not know all of them cannot use the stretch.
    if let Some(members) = members.iter().map(broker).collect() {
        let number = |it| i64::try_from(it).unwrap_or(i64::MAX);
        standing.stretch = (number(stretch.term), number(stretch.index));
        standing.members = members;
    }
    standing
}

fn reply(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    mut response: AppendFastResponse,
) {
    for topic in &mut response.topics {
        for part in &mut topic.partitions {
            let standing = standing(node, context, topic.topic_id, part.index);
            (part.leader_id, part.leader_epoch) = standing.leader;
            (part.stretch_term, part.stretch_index) = standing.stretch;
            part.members = standing.members;
        }
    }
    node.reply(key, response);
}

fn reply_described(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    mut response: DescribeFastResponse,
) {
    for topic in &mut response.topics {
        for part in &mut topic.partitions {
            let standing = standing(node, context, topic.topic_id, part.partition_index);
            (part.leader_id, part.leader_epoch) = standing.leader;
            (part.stretch_term, part.stretch_index) = standing.stretch;
            part.members = standing.members;
        }
    }
    node.reply(key, response);
}
