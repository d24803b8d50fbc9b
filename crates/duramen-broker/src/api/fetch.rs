//! `Fetch`: records out of logs, as soon as there are enough of them.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::fetch::{EpochEndOffset, FetchableTopicResponse, PartitionData};
use duramen_protocol::messages::{FetchRequest, FetchResponse};
use duramen_protocol::wire::RecordData;
use duramen_storage::op::ReplicaId;

use super::fetch_sessions::{Target, Wanted};
use super::{Operation, Resource, authorize, deadline_us, leaders};
use crate::controller::image::Topic;
use crate::event::{Action, FetchPart, FetchPlan, Now, Reply, RequestKey};
use crate::node::{Node, Parked};
use crate::partition::Partition;
use crate::sabotage::{self, Bug};
use crate::session::RequestContext;

const READ_COMMITTED: i8 = 1;
/// The first version that names topics by id.
const FIRST_BY_ID: i16 = 13;

/// A fetch that waits for more records.
#[derive(Debug)]
pub(crate) struct ParkedFetch {
    fetch: Fetch,
    /// Replicas that wake it.
    pub(crate) waits_on: Vec<ReplicaId>,
    available: u64,
}

/// A fetch, complete.
#[derive(Debug)]
struct Fetch {
    principal: std::sync::Arc<str>,
    version: i16,
    session_id: i32,
    is_incremental: bool,
    targets: Vec<(Target, Wanted)>,
    bytes_min: u64,
    bytes_max: u32,
    is_read_committed: bool,
}

/// What there is for one target.
struct Found {
    replica: Option<ReplicaId>,
    error: ErrorCode,
    /// Committed end and log start.
    ends: Option<(i64, i64)>,
    diverging: Option<EpochEndOffset>,
    available: u64,
}

pub(crate) fn handle(
    node: &mut Node,
    now: Now,
    key: RequestKey,
    context: &RequestContext,
    request: &FetchRequest,
    actions: &mut Vec<Action>,
) {
    let begun = match node.sessions.begin(request, context.version, now.mono_us) {
        Ok(begun) => begun,
        Err(code) => {
            let response = FetchResponse { error_code: code.code(), ..FetchResponse::default() };
            return node.reply(key, response, actions);
        }
    };
    let bytes_max = request.max_bytes.min(node.options.settings.fetch_max_bytes).max(0);
    let fetch = Fetch {
        principal: context.principal.clone(),
        version: context.version,
        session_id: begun.session_id,
        is_incremental: begun.is_incremental,
        targets: begun.targets,
        bytes_min: u64::from(request.min_bytes.max(0).unsigned_abs()),
        bytes_max: bytes_max.unsigned_abs(),
        is_read_committed: request.isolation_level == READ_COMMITTED,
    };
    let found: Vec<_> =
        fetch.targets.iter().map(|(target, wanted)| fetch.look(node, target, *wanted)).collect();
    let available: u64 = found.iter().map(|found| found.available).sum();
    // What does not exist does not end the wait for what does: its fetcher would never rest.
    let is_absent = |found: &Found| is_absence(found.error);
    let is_news = |found: &Found| !found.error.is_none() || found.diverging.is_some();
    let is_urgent = found.iter().any(|found| is_news(found) && !is_absent(found))
        || found.iter().all(is_absent);
    let is_enough = available >= fetch.bytes_min;
    if is_urgent || is_enough || request.max_wait_ms <= 0 {
        return respond(node, key, &fetch, &found, actions);
    }
    let waits_on: Vec<_> = found.iter().filter_map(|found| found.replica).collect();
    for replica in &waits_on {
        if let Some(partition) = node.partitions.get_mut(replica) {
            partition.fetches.insert(key);
        }
    }
    let parked = Parked::Fetch(ParkedFetch { fetch, waits_on, available });
    node.park(key, parked, deadline_us(now, request.max_wait_ms));
}

/// Something was committed in a partition that a parked fetch waits on.
pub(crate) fn on_woken(
    node: &mut Node,
    key: RequestKey,
    bytes: Option<u64>,
    actions: &mut Vec<Action>,
) {
    let Some(Parked::Fetch(parked)) = node.parked_mut(key) else { return };
    parked.available = bytes.map_or(u64::MAX, |bytes| parked.available.saturating_add(bytes));
    if parked.available >= parked.fetch.bytes_min {
        answer_parked(node, key, actions);
    }
}

/// Answers a parked fetch with what there is.
pub(crate) fn answer_parked(node: &mut Node, key: RequestKey, actions: &mut Vec<Action>) {
    let Some(Parked::Fetch(ParkedFetch { fetch, .. })) = node.unpark(key) else { return };
    let found: Vec<_> =
        fetch.targets.iter().map(|(target, wanted)| fetch.look(node, target, *wanted)).collect();
    respond(node, key, &fetch, &found, actions);
}

impl Fetch {
    fn look(&self, node: &Node, target: &Target, wanted: Wanted) -> Found {
        let refuse =
            |error| Found { replica: None, error, ends: None, diverging: None, available: 0 };
        match self.find(node, target) {
            Err(code) => refuse(code),
            Ok(partition) => look_at(partition, wanted).unwrap_or_else(refuse),
        }
    }

    fn find<'a>(&self, node: &'a Node, target: &Target) -> Result<&'a Partition, ErrorCode> {
        let may_read =
            |name: &str| authorize(&self.principal, Operation::Read, Resource::Topic(name));
        let topic: &Topic = if self.version >= FIRST_BY_ID {
            let topic = node.controller.image.topic(target.id).ok_or(ErrorCode::UnknownTopicId)?;
            if !may_read(&topic.name) {
                return Err(ErrorCode::TopicAuthorizationFailed);
            }
            topic
        } else {
            if !may_read(&target.name) {
                return Err(ErrorCode::TopicAuthorizationFailed);
            }
            let topic = node.controller.image.topic_named(&target.name);
            topic.ok_or(ErrorCode::UnknownTopicOrPartition)?
        };
        node.serving(topic, target.partition)
    }
}

fn is_absence(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId
            | ErrorCode::TopicAuthorizationFailed
    )
}

fn look_at(partition: &Partition, wanted: Wanted) -> Result<Found, ErrorCode> {
    partition.check_epoch(wanted.leader_epoch)?;
    let (start, mut committed) = (partition.log_start(), partition.committed());
    if sabotage::is(Bug::UncommittedShown) {
        committed = partition.group.end_offset();
    }
    let mut found = Found {
        replica: Some(partition.group.id()),
        error: ErrorCode::None,
        ends: Some((committed, start)),
        diverging: None,
        available: 0,
    };
    if wanted.last_epoch >= 0 {
        let (epoch, end_offset) = partition.epoch_end(wanted.last_epoch);
        if epoch < wanted.last_epoch || end_offset < wanted.offset {
            found.diverging = Some(EpochEndOffset { epoch, end_offset });
            return Ok(found);
        }
    }
    // What lies between the committed end and the log's end is no client's business yet, but an
    // offset there is not a wrong one.
    if wanted.offset < start || wanted.offset > partition.group.end_offset() {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    if wanted.offset < committed && wanted.bytes_max >= 0 {
        // The first batch comes whole, however little was asked for.
        let bytes_max = u64::from(wanted.bytes_max.unsigned_abs()).max(1);
        let bytes = partition.group.bytes_between(wanted.offset, committed);
        // Offsets so old that their sizes are forgotten have enough behind them.
        found.available = bytes.unwrap_or(u64::from(u32::MAX)).min(bytes_max);
    }
    Ok(found)
}

fn respond(
    node: &mut Node,
    key: RequestKey,
    fetch: &Fetch,
    found: &[Found],
    actions: &mut Vec<Action>,
) {
    let session_id = fetch.session_id;
    let mut response = FetchResponse { session_id, ..FetchResponse::default() };
    let mut parts = Vec::new();
    let mut budget = u64::from(fetch.bytes_max);
    let mut last_served = None;
    for ((target, wanted), found) in fetch.targets.iter().zip(found) {
        let is_news = session_id == 0 || node.sessions.is_news(session_id, target, found.ends);
        let has_records = found.available > 0 && found.diverging.is_none();
        let is_needed = is_news || !found.error.is_none() || found.diverging.is_some();
        if fetch.is_incremental && !is_needed && !has_records {
            continue;
        }
        let (topic, partition) = push(&mut response, target, found, fetch.is_read_committed);
        let (Some(replica), Some((end, _))) = (found.replica, found.ends) else { continue };
        if has_records {
            parts.push(FetchPart {
                topic,
                partition,
                replica,
                offset: wanted.offset,
                end,
                bytes_max: wanted.bytes_max.unsigned_abs(),
                omit_if_empty: fetch.is_incremental && !is_needed,
            });
            if budget > 0 {
                last_served = Some(target.clone());
            }
            budget = budget.saturating_sub(found.available);
        }
    }
    if last_served.is_some() {
        node.sessions.rotate(session_id, last_served);
    }
    leaders::tell_consumer(node, &mut response, fetch.version);
    if parts.is_empty() {
        return node.reply(key, response, actions);
    }
    let plan = FetchPlan { response, parts, bytes_max: fetch.bytes_max };
    node.reply_with(key, Reply::Fetch(Box::new(plan)), actions);
}

/// Adds a partition to the response; partitions of one topic that stand together share its entry.
fn push(
    response: &mut FetchResponse,
    target: &Target,
    found: &Found,
    is_read_committed: bool,
) -> (usize, usize) {
    let is_same =
        |topic: &FetchableTopicResponse| topic.topic == target.name && topic.topic_id == target.id;
    if !response.responses.last().is_some_and(is_same) {
        response.responses.push(FetchableTopicResponse {
            topic: target.name.clone(),
            topic_id: target.id,
            partitions: Vec::new(),
        });
    }
    let topic = response.responses.len() - 1;
    let partitions = &mut response.responses[topic].partitions;
    let (end, start) = found.ends.unwrap_or((-1, -1));
    partitions.push(PartitionData {
        partition_index: target.partition,
        error_code: found.error.code(),
        high_watermark: end,
        // Without transactions everything committed is stable.
        last_stable_offset: end,
        log_start_offset: start,
        diverging_epoch: found.diverging.clone().unwrap_or_default(),
        aborted_transactions: is_read_committed.then(Vec::new),
        records: Some(RecordData::default()),
        ..PartitionData::default()
    });
    (topic, partitions.len() - 1)
}
