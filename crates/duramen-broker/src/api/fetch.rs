//! `Fetch`: returns records of logs, as soon as there are enough of them.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::fetch::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, PartitionData,
};
use duramen_protocol::messages::{FetchRequest, FetchResponse};
use duramen_protocol::wire::{RecordData, Uuid};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::leaders;
use crate::access::{Operation, Resource};
use crate::controller::image::Topic;
use crate::core::{Core, Fetch, Parked, ParkedFetch};
use crate::event::{FetchPart, FetchPlan, Reply, RequestKey};
use crate::fetch_sessions::{Asked, Target, Wanted};
use crate::node::Node;
use crate::partition::{Aborted, Growth, Partition, Place};
use crate::quotas::QuotaKey;
use crate::session::RequestContext;

const READ_COMMITTED: i8 = 1;
/// The first version in which a client may be sent to, and read from, a replica that does not lead.
const FIRST_FROM_ANY_REPLICA: i16 = 11;
/// The first version that names topics by id.
const FIRST_BY_ID: i16 = 13;
const DENIED: ErrorCode = ErrorCode::TopicAuthorizationFailed;

/// Result of looking at one partition of a fetch.
#[derive(Default)]
struct Found {
    replica: Option<ReplicaId>,
    error: ErrorCode,
    /// Committed end and log start.
    ends: Option<(i64, i64)>,
    /// Last stable offset: one past the last offset that a `read_committed` consumer may see.
    stable: i64,
    /// End of the records that the consumer may see.
    shown: i64,
    is_of_queues: bool,
    diverging: Option<EpochEndOffset>,
    /// The node to read from instead.
    preferred: Option<i32>,
    available: u64,
    /// Size of the first batch, which comes whole, in bytes; 0 if unknown.
    first: u64,
}

impl Found {
    /// Tells whether the answer carries an error, a diverging epoch or a preferred replica instead of records.
    fn is_wrong(&self) -> bool {
        !self.error.is_none() || self.diverging.is_some() || self.preferred.is_some()
    }

    /// Sends the client to another node, if there is one to prefer.
    fn send_elsewhere(&mut self, preferred: Option<i32>) {
        if preferred.is_some() {
            (self.preferred, self.available, self.first) = (preferred, 0, 0);
        }
    }
}

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: &FetchRequest,
) {
    let begun = node.sessions.begin(request, context.version, node.core.now.mono_us);
    for (replica, watcher) in node.sessions.take_unwatched() {
        if let Some(partition) = node.core.partitions.get_mut(&replica) {
            partition.watchers.retain(|other| *other != watcher);
        }
    }
    let begun = match begun {
        Ok(begun) => begun,
        Err(code) => {
            let response = FetchResponse { error_code: code.code(), ..Default::default() };
            return node.reply(key, response);
        }
    };
    let mut bytes_max = request.max_bytes.min(node.core.options.settings.fetch_max_bytes).max(0);
    let quota = node.core.quota(QuotaKey::ConsumerByteRate, &context);
    if let Some(quota) = &quota {
        bytes_max = bytes_max.min(quota.window_max());
    }
    let fetch = Fetch {
        is_of_replica: request.replica_id >= 0 || request.replica_state.replica_id >= 0,
        context,
        session_id: begun.session_id,
        is_incremental: begun.is_incremental,
        targets: begun.targets,
        // A minimum above the maximum counts as the maximum.
        bytes_min: u64::from(request.min_bytes.clamp(0, bytes_max).unsigned_abs()),
        bytes_max: bytes_max.unsigned_abs(),
        is_read_committed: request.isolation_level == READ_COMMITTED,
        rack: request.rack_id.clone(),
        quota,
    };
    let found = fetch.look(node, false);
    let available: u64 = found.iter().map(|found| found.available).sum();
    // A partition that does not exist does not end the wait for one that does: its fetcher would never rest. In a
    // session, a partition that the node does not look at counts as existing.
    let is_absent = |found: &Found| is_absence(found.error);
    let is_news = |found: &Found| found.is_wrong();
    let is_urgent = found.iter().any(|found| is_news(found) && !is_absent(found))
        || found.iter().all(is_absent)
            && !node.sessions.is_more_than(fetch.session_id, found.len());
    let is_enough = available >= fetch.bytes_min;
    if is_urgent || is_enough || request.max_wait_ms <= 0 {
        return respond(node, key, &fetch, &found);
    }
    let mut waits_on = Vec::new();
    if !node.sessions.park(fetch.session_id, key) {
        let there = found.iter().enumerate();
        waits_on.extend(there.filter_map(|(at, found)| Some((at, found.replica?))));
        for (_, replica) in &waits_on {
            if let Some(partition) = node.core.partitions.get_mut(replica) {
                partition.fetches.insert(key);
            }
        }
    }
    let parked = Parked::Fetch(ParkedFetch { fetch, waits_on, available });
    node.core.park(key, parked, node.core.now.deadline_us(request.max_wait_ms));
}

/// Looks again at a parked fetch, because the high watermark of one of its partitions has risen.
pub(crate) fn on_woken(node: &mut Node, key: RequestKey, growth: Growth) {
    let parked = match node.core.parked_mut(key) {
        Some(Parked::Fetch(parked)) => parked,
        Some(Parked::Share(_)) => return node.shares.wake_share(key),
        _ => return,
    };
    let bytes = if parked.fetch.is_read_committed { growth.stable } else { growth.committed };
    parked.available = bytes.map_or(u64::MAX, |bytes| parked.available.saturating_add(bytes));
    if parked.available >= parked.fetch.bytes_min {
        answer_parked(node, key);
    }
}

/// Answers a parked fetch with the records at hand.
pub(crate) fn answer_parked(node: &mut Node, key: RequestKey) {
    let Some(Parked::Fetch(parked)) = node.unpark(key) else { return };
    let ParkedFetch { mut fetch, waits_on, .. } = parked;
    assert!(
        waits_on.is_empty() || !fetch.is_incremental,
        "a fetch of a session waits at the session"
    );
    if fetch.is_incremental
        && let Some(open) = node.sessions.open_in(fetch.session_id)
    {
        fetch.targets = open;
    }
    let mut found = fetch.look(node, true);
    // An id that existed when the fetch came is not unknown: its topic was deleted meanwhile.
    for (at, _) in waits_on {
        if found[at].error == ErrorCode::UnknownTopicId {
            found[at].error = ErrorCode::UnknownTopicOrPartition;
        }
    }
    respond(node, key, &fetch, &found);
}

impl Fetch {
    /// Looks at all targets, for the first time or again, and sees to it that those of a session touch their places
    /// from now on.
    fn look(&self, node: &mut Node, is_again: bool) -> Vec<Found> {
        let mut found = Vec::with_capacity(self.targets.len());
        let mut unwatched = Vec::new();
        // Targets of one topic stand together.
        let mut last: Option<(&Target, Result<&Topic, ErrorCode>)> = None;
        for asked in &self.targets {
            let target = &asked.target;
            let is_last =
                |(last, _): &(&Target, _)| last.id == target.id && last.name == target.name;
            let topic = match last.filter(is_last) {
                Some((_, topic)) => topic,
                None => self.topic(node, asked, is_again),
            };
            last = Some((target, topic));
            let refuse = |error| Found { error, stable: -1, ..Default::default() };
            let readable = topic.and_then(|topic| match self.context.version {
                FIRST_FROM_ANY_REPLICA.. => node.core.readable(topic, target.partition),
                _ => node.core.serving(topic, target.partition),
            });
            found.push(match readable {
                Err(ErrorCode::UnknownTopicId) => refuse(self.missing(node, asked)),
                Err(code) => refuse(code),
                Ok(partition) => {
                    let replica = partition.group.id();
                    if let (Some(place), Ok(topic)) = (asked.place, topic) {
                        unwatched.push((place, replica, topic.id));
                    }
                    let found = look_at(partition, asked.wanted, self.is_read_committed);
                    partition.note_read(found.is_err());
                    let mut found = found.unwrap_or_else(refuse);
                    if found.error.is_none()
                        && let Ok(topic) = topic
                    {
                        found.send_elsewhere(node.core.read_replica(
                            topic,
                            target.partition,
                            &self.rack,
                        ));
                    }
                    found
                }
            });
        }
        self.watch(node, &unwatched);
        found
    }

    fn watch(&self, node: &mut Node, found: &[(Place, ReplicaId, Uuid)]) {
        let Node { sessions, core, .. } = node;
        let Core { partitions, controller, .. } = core;
        let mut last = (Uuid::ZERO, "");
        for &(place, replica, topic) in found {
            if last.0 != topic {
                let name = controller.image.topic(topic).map_or("", |topic| topic.name.as_str());
                last = (topic, name);
            }
            let watcher = (self.session_id, place);
            if sessions.watch(watcher, replica, last.1)
                && let Some(partition) = partitions.get_mut(&replica)
            {
                partition.watchers.push(watcher);
            }
        }
    }

    fn topic<'a>(
        &self,
        node: &'a Node,
        asked: &Asked,
        is_again: bool,
    ) -> Result<&'a Topic, ErrorCode> {
        let (access, context, target) = (&node.core.access, &self.context, &asked.target);
        if self.is_of_replica && !access.may(context, Operation::ClusterAction, Resource::Cluster) {
            return Err(DENIED);
        }
        let is_unjudged = is_again && sabotage::is(Bug::ParkedNotJudged)
            || self.is_incremental && sabotage::is(Bug::SessionNotJudged);
        let is_trusted = is_unjudged && self.former_name(node, asked).is_some();
        let may_read = |name: &str| {
            self.is_of_replica
                || is_trusted
                || access.may(context, Operation::Read, Resource::Topic(name))
        };
        if self.context.version >= FIRST_BY_ID {
            let topic =
                node.core.controller.image.topic(target.id).ok_or(ErrorCode::UnknownTopicId)?;
            return if may_read(&topic.name) { Ok(topic) } else { Err(DENIED) };
        }
        if !may_read(&target.name) {
            return Err(DENIED);
        }
        let topic = node.core.controller.image.topic_named(&target.name);
        topic.ok_or(ErrorCode::UnknownTopicOrPartition)
    }

    /// Returns the name that a topic had when the session found it last.
    fn former_name<'a>(&self, node: &'a Node, asked: &Asked) -> Option<&'a str> {
        node.sessions.name_at((self.session_id, asked.place?))
    }

    /// Returns the error for an unknown topic id. A session remembers the topic's former name. As in Kafka, the error
    /// depends on whether that name now belongs to another topic.
    fn missing(&self, node: &Node, asked: &Asked) -> ErrorCode {
        match self.former_name(node, asked).map(|name| node.core.controller.image.topic_named(name))
        {
            None => ErrorCode::UnknownTopicId,
            Some(None) => ErrorCode::UnknownTopicOrPartition,
            Some(Some(_)) => ErrorCode::InconsistentTopicId,
        }
    }
}

fn is_absence(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId
            | ErrorCode::InconsistentTopicId
            | DENIED
    )
}

fn look_at(
    partition: &Partition,
    wanted: Wanted,
    is_read_committed: bool,
) -> Result<Found, ErrorCode> {
    partition.check_epoch(wanted.leader_epoch)?;
    let (start, mut committed) = (partition.log_start(), partition.committed());
    let leads = partition.group.is_serving();
    if sabotage::is(Bug::UncommittedShown) || !leads && sabotage::is(Bug::FollowerShowsAll) {
        committed = partition.group.end_offset();
    }
    let mut stable = partition.stable().min(committed);
    if sabotage::is(Bug::UnstableShown) {
        stable = committed;
    }
    let mut shown = if is_read_committed { stable } else { committed };
    if partition.settings.queue {
        shown = shown.min(partition.shown());
    }
    let mut found = Found {
        replica: Some(partition.group.id()),
        ends: Some((committed, start)),
        stable,
        shown,
        is_of_queues: partition.settings.queue,
        ..Default::default()
    };
    // A follower may not have heard yet of the epoch that the client knows. The client then waits for it.
    if wanted.last_epoch >= 0 && leads {
        let (epoch, end_offset) = partition.epoch_end(wanted.last_epoch);
        if epoch < wanted.last_epoch || end_offset < wanted.offset {
            found.diverging = Some(EpochEndOffset { epoch, end_offset });
            return Ok(found);
        }
    }
    // No client may read between the high watermark and the log end offset, but an offset there is not out of range.
    if wanted.offset < start || leads && wanted.offset > partition.group.end_offset() {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    if partition.hides(wanted.offset) {
        return Err(ErrorCode::KafkaStorageError);
    }
    if wanted.offset < shown && wanted.bytes_max >= 0 {
        // The first batch comes whole, however small the limit is.
        let bytes_max = u64::from(wanted.bytes_max.unsigned_abs()).max(1);
        let bytes = partition.group.bytes_between(wanted.offset, shown);
        // Offsets so old that their sizes are forgotten have enough behind them.
        found.available = bytes.unwrap_or(u64::from(u32::MAX)).min(bytes_max);
        found.first = partition.group.batch_bytes_at(wanted.offset).unwrap_or(0);
    }
    Ok(found)
}

/// Returns the time that a quota makes the fetcher wait, in milliseconds. A fetcher that waits gets none of the records
/// found, and they do not count against the quota.
fn rest_ms(node: &mut Node, key: RequestKey, fetch: &Fetch, found: &[Found]) -> i32 {
    let for_time_ms = node.core.time_rest_ms(key);
    let Some(quota) = &fetch.quota else { return for_time_ms };
    let available: u64 = found.iter().map(|found| found.available).sum();
    let first = found.iter().find(|found| found.available > 0).map_or(0, |found| found.first);
    let bytes = available.min(u64::from(fetch.bytes_max)).max(first);
    let rest_ms = node.core.use_up(quota, bytes).max(for_time_ms);
    if rest_ms > 0 {
        node.core.give_back(quota, bytes);
    }
    rest_ms
}

fn respond(node: &mut Node, key: RequestKey, fetch: &Fetch, found: &[Found]) {
    assert_eq!(found.len(), fetch.targets.len(), "each partition of a fetch was looked at");
    let rest_ms = rest_ms(node, key, fetch, found);
    if rest_ms > 0 {
        // As in Kafka: a session that was to begin does not.
        if !fetch.is_incremental {
            node.sessions.end(fetch.session_id);
        }
        let session_id = if fetch.is_incremental { fetch.session_id } else { 0 };
        let throttle_time_ms = rest_ms;
        let response = FetchResponse { session_id, throttle_time_ms, ..Default::default() };
        return node.reply(key, response);
    }
    let session_id = fetch.session_id;
    let mut response = FetchResponse { session_id, ..Default::default() };
    let mut parts = Vec::new();
    let mut budget = u64::from(fetch.bytes_max);
    let mut last_served = None;
    for (at, found) in found.iter().enumerate() {
        let Asked { place, wanted, .. } = &fetch.targets[at];
        let is_wrong = found.is_wrong();
        let is_open = is_wrong || found.available > 0;
        let is_news =
            place.is_none_or(|it| node.sessions.settle((session_id, it), found.ends, is_open));
        let is_needed = is_news || is_wrong;
        let has_records = found.available > 0 && found.diverging.is_none();
        if fetch.is_incremental && !is_needed && !has_records {
            continue;
        }
        let rest = &fetch.targets[at..];
        let (topic, partition) = push(&mut response, rest, found, fetch.is_read_committed);
        let Some(replica) = found.replica else { continue };
        if has_records {
            let mut end = found.shown;
            let mut compaction = None;
            if fetch.is_read_committed {
                compaction = node.core.partitions.get(&replica).map(|it| it.compacted().index);
                let aborted;
                (aborted, end) = aborted_in(node, replica, wanted.offset, end);
                let part = &mut response.responses[topic].partitions[partition];
                part.aborted_transactions = Some(aborted);
                assert!(end <= found.stable, "a read_committed consumer sees stable records");
            }
            parts.push(FetchPart {
                topic,
                partition,
                replica,
                offset: wanted.offset,
                end,
                bytes_max: wanted.bytes_max.unsigned_abs(),
                omit_if_empty: fetch.is_incremental && !is_needed,
                compaction,
                is_of_queues: found.is_of_queues,
            });
            if budget > 0 {
                last_served = *place;
            }
            budget = budget.saturating_sub(found.available);
        }
    }
    if last_served.is_some() {
        node.sessions.rotate(session_id, last_served);
    }
    leaders::tell_consumer(node, &fetch.context, &mut response);
    if parts.is_empty() {
        return node.reply(key, response);
    }
    let plan = FetchPlan { response, parts, bytes_max: fetch.bytes_max };
    node.reply_with(key, Reply::Fetch(Box::new(plan)));
}

/// Returns the aborted transactions that a `read_committed` consumer leaves out between two offsets, and the offset up
/// to which the list is complete.
fn aborted_in(
    node: &Node,
    replica: ReplicaId,
    from: i64,
    to: i64,
) -> (Vec<AbortedTransaction>, i64) {
    let Some(partition) = node.core.partitions.get(&replica) else { return (Vec::new(), to) };
    let (aborted, end) = partition.aborted(from, to);
    let told = |it: Aborted| AbortedTransaction {
        producer_id: it.producer_id,
        first_offset: it.first_offset,
    };
    (aborted.into_iter().filter(|_| !sabotage::is(Bug::AbortedNotTold)).map(told).collect(), end)
}

/// Adds the first of `targets` to the response; partitions of one topic that stand together share
/// its entry.
fn push(
    response: &mut FetchResponse,
    targets: &[Asked],
    found: &Found,
    is_read_committed: bool,
) -> (usize, usize) {
    let target = &targets[0].target;
    let is_same =
        |topic: &FetchableTopicResponse| topic.topic == *target.name && topic.topic_id == target.id;
    if !response.responses.last().is_some_and(is_same) {
        let is_alike = |it: &&Asked| (it.target.id, &it.target.name) == (target.id, &target.name);
        let together = targets.iter().take_while(is_alike).count();
        response.responses.push(FetchableTopicResponse {
            topic: String::from(&*target.name),
            topic_id: target.id,
            partitions: Vec::with_capacity(together),
        });
    }
    let topic = response.responses.len() - 1;
    let partitions = &mut response.responses[topic].partitions;
    let (end, start) = found.ends.unwrap_or((-1, -1));
    partitions.push(PartitionData {
        partition_index: target.partition,
        error_code: found.error.code(),
        high_watermark: end,
        last_stable_offset: found.stable,
        log_start_offset: start,
        diverging_epoch: found.diverging.clone().unwrap_or_default(),
        preferred_read_replica: found.preferred.unwrap_or(-1),
        aborted_transactions: is_read_committed.then(Vec::new),
        records: Some(RecordData::default()),
        ..Default::default()
    });
    (topic, partitions.len() - 1)
}
