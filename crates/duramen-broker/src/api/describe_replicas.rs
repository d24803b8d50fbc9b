//! `DescribeReplicas`: the replicas that this node holds, with digests by which a program compares replicas while the
//! cluster runs. The answer also gives the node's clock, whether few nodes share it, and whether the disk is full. It
//! lists the stretches that leaders here have open. The API is ours, not Kafka's. Another thread than the node's
//! computes the digests. Of a queue topic a program may also ask for the elements of queues in a part, and for faults
//! of the queue index there.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_replicas::{
    DescribeReplicasPartition, DescribeReplicasTopic, DescribedReplica, DescribedReplicasTopic,
};
use duramen_protocol::messages::{DescribeReplicasRequest, DescribeReplicasResponse};
use duramen_protocol::wire::Uuid;
use duramen_storage::ReplicaId;
use duramen_storage::op::{Compacted, Shortage};

use crate::access::{Operation, Resource};
use crate::controller::{Error, METADATA_GROUP};
use crate::event::{Described, QueuesPart, ReplicaPart, ReplicasPlan, Reply, RequestKey};
use crate::limits::DIGEST_BYTES_MAX;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &DescribeReplicasRequest,
) {
    let mut response = DescribeReplicasResponse::default();
    if !node.core.access.may(context, Operation::Describe, Resource::Cluster) {
        response.error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return node.reply(key, response);
    }
    (response.wall_ms, response.is_clock_alone) = node.core.clock();
    if let Some(Shortage { free_bytes, needed_bytes }) = node.core.disk_shortage {
        response.disk_free_bytes = i64::try_from(free_bytes).unwrap_or(i64::MAX);
        response.disk_needed_bytes = i64::try_from(needed_bytes).unwrap_or(i64::MAX);
    }
    // One who looks at replicas asks often, and is interested in nothing else.
    if request.topics.is_empty() {
        response.stretches = super::fast::stretches(node);
        response.plain_nodes = node.core.peers.plain.iter().copied().collect();
    }
    let mut parts = Vec::new();
    for topic in &request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let place = (response.topics.len(), partitions.len());
            let (described, part) = describe(node, topic, asked, place);
            partitions.push(described);
            parts.extend(part);
        }
        response.topics.push(DescribedReplicasTopic { topic_id: topic.topic_id, partitions });
    }
    let bytes_max = u64::from(request.bytes_max.max(0).unsigned_abs()).min(DIGEST_BYTES_MAX);
    if parts.is_empty() || bytes_max == 0 {
        return node.reply(key, response);
    }
    let plan = ReplicasPlan { response, parts, bytes_max };
    node.reply_with(key, Reply::Replicas(Box::new(plan)));
}

/// State of the replica of a partition that this node holds.
struct Held {
    replica: ReplicaId,
    start: i64,
    committed: i64,
    compacted: Compacted,
    /// Last stable offset and indexed end of a log of queues.
    queues: Option<(i64, i64)>,
}

fn held(node: &Node, topic_id: Uuid, index: i32) -> Result<Held, Error> {
    if topic_id == Uuid(METADATA_GROUP.topic_id) && index == METADATA_GROUP.partition {
        let controller = &node.core.controller;
        if let Some(why) = controller.group.failure() {
            return Err(Error::new(ErrorCode::KafkaStorageError, why));
        }
        let (start, committed) = (controller.log_start(), controller.end());
        let (replica, compacted) = (controller.group.id(), Compacted::default());
        return Ok(Held { replica, start, committed, compacted, queues: None });
    }
    let topic = node.core.controller.image.topic(topic_id).ok_or_else(|| {
        Error::new(ErrorCode::UnknownTopicId, "the topic is not known to the node")
    })?;
    let replica = node.core.local_replica(topic, index);
    let partition =
        replica.and_then(|replica| Some((replica, node.core.partitions.get(&replica)?)));
    let (replica, partition) = partition.ok_or_else(|| {
        Error::new(ErrorCode::ReplicaNotAvailable, "the node holds no replica of the partition")
    })?;
    if let Some(why) = partition.group.failure() {
        return Err(Error::new(ErrorCode::KafkaStorageError, why));
    }
    let (start, committed) = (partition.log_start(), partition.committed());
    let ends = || (partition.stable(), node.queues.indexed(replica));
    let queues = partition.settings.queue.then(ends);
    Ok(Held { replica, start, committed, compacted: partition.compacted(), queues })
}

/// Describes a replica of this node, and returns the part still to be read from disk for the slot at `place`.
fn describe(
    node: &mut Node,
    topic: &DescribeReplicasTopic,
    asked: &DescribeReplicasPartition,
    (topic_at, partition_at): (usize, usize),
) -> (DescribedReplica, Option<ReplicaPart>) {
    let &DescribeReplicasPartition { partition_index, from_offset, to_offset, .. } = asked;
    let mut described = DescribedReplica { partition_index, ..Default::default() };
    let judged = held(node, topic.topic_id, partition_index).and_then(|held| {
        described.replica_id = i64::try_from(held.replica.0).unwrap_or(i64::MAX);
        described.start_offset = held.start;
        described.committed_offset = held.committed;
        described.compaction = i64::try_from(held.compacted.index).unwrap_or(i64::MAX);
        described.compacted_offset = held.compacted.below;
        if let Some((stable, indexed)) = held.queues {
            (described.stable_offset, described.indexed_offset) = (stable, indexed);
            // An index that was given up is ordered anew.
            node.queues.follow(&mut node.core, held.replica);
        }
        let (topic, partition) = (topic_at, partition_at);
        if asked.erasure {
            let (stable, indexed) = held.queues.ok_or_else(no_queues)?;
            let (from, to) = (held.start, indexed.min(stable).max(held.start));
            let subject = Described::Erasure(held.compacted);
            let replica = held.replica;
            return Ok(Some(ReplicaPart { topic, partition, replica, from, to, subject }));
        }
        if from_offset < 0 || from_offset >= to_offset {
            return Ok(None);
        }
        if from_offset < held.start {
            return Err(Error::new(ErrorCode::OffsetOutOfRange, "the log begins later"));
        }
        if to_offset > held.committed {
            let text = "the node does not know that so much is committed";
            return Err(Error::new(ErrorCode::OffsetOutOfRange, text));
        }
        let (subject, to) = match asked.queues_end {
            end @ 0.. => queues_part(node, &held, (from_offset, to_offset), end)?,
            _ => (Described::Bytes, to_offset),
        };
        let (replica, from) = (held.replica, from_offset);
        Ok(Some(ReplicaPart { topic, partition, replica, from, to, subject }))
    });
    let part = judged.unwrap_or_else(|error| {
        described.error_code = error.code.code();
        described.error_message = Some(error.message);
        None
    });
    (described, part)
}

fn no_queues() -> Error {
    Error::new(ErrorCode::InvalidRequest, "the keys of the topic are no queues")
}

/// Returns what a digest of elements needs, and the offset up to which it has all.
fn queues_part(
    node: &Node,
    held: &Held,
    (from, to): (i64, i64),
    end: i64,
) -> Result<(Described, i64), Error> {
    let (stable, indexed) = held.queues.ok_or_else(no_queues)?;
    if to > end {
        return Err(Error::new(ErrorCode::InvalidRequest, "the part goes on behind its edits"));
    }
    if end > stable.min(indexed) {
        let text = "the queue index does not reach so far";
        return Err(Error::new(ErrorCode::OffsetNotAvailable, text));
    }
    let (aborted, to) = node.core.partitions[&held.replica].aborted(from, to);
    let aborted = aborted.iter().map(|it| (it.producer_id, it.first_offset, it.last_offset));
    let part = QueuesPart { end, log_start: held.start, aborted: aborted.collect() };
    Ok((Described::Queues(part), to))
}
