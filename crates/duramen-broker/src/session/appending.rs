//! Requests with batches, Produce and `AppendFast`: where their batches are, and their form after the checks.

use bytes::{Bytes, BytesMut};
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{AppendFastRequest, ProduceRequest};
use duramen_protocol::wire::{Few, Uuid};
use duramen_protocol::{ApiKey, BatchHeader, ErrorCode};
use duramen_storage::op::Stretch;

use super::{
    Checked, FIRST_THAT_ADDS, Finding, Prepared, PreparedFast, PreparedFastPartition,
    PreparedFastTopic, PreparedPartition, PreparedProduce, PreparedTopic, Rejection,
};
use crate::checked_batch::{BatchIds, CheckedBatch};
use crate::limits::FAST_BATCH_BYTES_MAX;
use crate::recompression::{Target, Targets};

/// A request with batches.
#[derive(Debug)]
pub(super) enum Appending {
    Produce(ProduceRequest),
    Fast(AppendFastRequest),
}

/// A batch of a request.
pub(super) struct Asked<'a> {
    pub partition: i32,
    pub records: Option<&'a Bytes>,
    /// Codec of the topic's own, if it has one.
    pub target: Option<&'a Target>,
}

impl Asked<'_> {
    /// Tells whether the batch is in another codec than its topic's, as its header has it.
    pub(super) fn is_to_be_made_anew(&self) -> bool {
        let target = self.target.zip(self.records);
        let header =
            target.and_then(|(target, bytes)| Some((target, BatchHeader::parse(bytes).ok()?)));
        header.is_some_and(|(target, header)| target.is_due(&header))
    }
}

/// Tells whether a client may send further requests before the answer.
pub(super) fn is_pipelined(api: ApiKey) -> bool {
    matches!(api, ApiKey::Produce | ApiKey::AppendFast)
}

impl Appending {
    pub(super) fn api(&self) -> ApiKey {
        match self {
            Self::Produce(_) => ApiKey::Produce,
            Self::Fast(_) => ApiKey::AppendFast,
        }
    }

    /// Returns the version of Produce whose rules the batches follow.
    pub(super) fn batches_version(&self, version: i16) -> i16 {
        match self {
            Self::Produce(_) => version,
            Self::Fast(_) => i16::MAX,
        }
    }

    /// Returns the batches with the numbers of their partitions. A partition of `AppendFast` may have none. `targets`
    /// say in which codec each is stored. A batch that several members may hold stays as it came, the same bytes on all
    /// of them. One that only the leader appends is like that of a Produce.
    pub(super) fn batches<'a>(&'a self, targets: &'a Targets) -> impl Iterator<Item = Asked<'a>> {
        let target = |topic: &TopicProduceData| match topic.name.as_str() {
            "" => targets.of_id(topic.topic_id),
            name => targets.of_name(name),
        };
        let (produce, fast) = match self {
            Self::Produce(request) => (Some(request), None),
            Self::Fast(request) => (None, Some(request)),
        };
        let produced = produce.into_iter().flat_map(|it| &it.topic_data);
        let produced = produced.flat_map(move |topic| {
            let target = target(topic);
            topic.partition_data.iter().map(move |it| Asked {
                partition: it.index,
                records: it.records.as_ref(),
                target,
            })
        });
        let is_held = fast.is_some_and(|it| it.wait == 0);
        let fast = fast.into_iter().flat_map(|it| &it.topics).flat_map(move |topic| {
            let target = targets.of_id(topic.topic_id).filter(|_| !is_held);
            let parts = topic.partitions.iter().filter(|it| it.records.is_some());
            parts.map(move |it| Asked { partition: it.index, records: it.records.as_ref(), target })
        });
        produced.chain(fast)
    }

    /// Keeps only the last batch of a partition that the request names more than once.
    pub(super) fn drop_repeated(&mut self) {
        match self {
            Self::Produce(request) => drop_repeated(&mut request.topic_data),
            Self::Fast(request) => drop_repeated(&mut request.topics),
        }
    }

    /// Returns the request as the node wants it.
    pub(super) fn prepare(self, version: i16, checked: Checked) -> Prepared {
        match self {
            Self::Produce(request) => Prepared::Produce(prepare(request, version, checked)),
            Self::Fast(request) => Prepared::Fast(prepare_fast(request, checked)),
        }
    }
}

fn prepare(request: ProduceRequest, version: i16, checked: Checked) -> PreparedProduce {
    let adds_itself = version >= FIRST_THAT_ADDS;
    let mut batches = checked.batches.into_iter();
    let mut topics = Few::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let mut partitions = Few::with_capacity(topic.partition_data.len());
        for partition in topic.partition_data {
            let found = batches.next().expect("every batch was checked");
            let batch = found.map(|found| {
                let bytes = partition.records.expect("a batch was found in it");
                checked_batch(bytes, found, adds_itself)
            });
            partitions.push(PreparedPartition { index: partition.index, batch });
        }
        topics.push(PreparedTopic { name: topic.name, id: topic.topic_id, partitions });
    }
    assert!(batches.next().is_none(), "each checked batch is of a partition");
    let (acks, timeout_ms) = (request.acks, request.timeout_ms);
    let transactional_id = request.transactional_id;
    let is_transactional = checked.is_transactional;
    PreparedProduce { acks, timeout_ms, transactional_id, is_transactional, topics }
}

fn prepare_fast(request: AppendFastRequest, checked: Checked) -> PreparedFast {
    let mut batches = checked.batches.into_iter();
    let mut partition = |it: AppendFastPartition| {
        let batch = it.records.map(|bytes| {
            let found = batches.next().expect("every batch was checked");
            found.and_then(|found| admit(checked_batch(bytes, found, false)))
        });
        let term = u64::try_from(it.stretch_term);
        let stretch = term.and_then(|term| {
            let index = u64::try_from(it.stretch_index)?;
            Ok(Stretch { term, index })
        });
        let AppendFastPartition {
            producer_id, producer_epoch, first_sequence, last_sequence, ..
        } = it;
        let ids = BatchIds { producer_id, producer_epoch, first_sequence, last_sequence };
        PreparedFastPartition { index: it.index, stretch: stretch.ok(), ids, batch }
    };
    let topic = |topic: AppendFastTopic| PreparedFastTopic {
        id: topic.topic_id,
        partitions: topic.partitions.into_iter().map(&mut partition).collect(),
    };
    let topics = request.topics.into_iter().map(topic).collect();
    assert!(batches.next().is_none(), "each checked batch is of a partition");
    PreparedFast { wait: request.wait, timeout_ms: request.timeout_ms, topics }
}

fn checked_batch(
    bytes: Bytes,
    Finding { header, summary, guard, anew, greatest_bytes }: Finding,
    adds_itself: bool,
) -> CheckedBatch {
    let bytes = anew.unwrap_or(bytes);
    // Nobody else holds the frame if this is its only batch, or the last one; then the bytes are not copied.
    let bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    CheckedBatch { bytes, header, summary, guard, added_bytes: 0, greatest_bytes, adds_itself }
}

/// Refuses a batch that no fast append may have. A batch is known by its producer and sequence: where it is held, and
/// to a leader that finds it there. And nobody could judge a guard or a transaction where it is held.
fn admit(batch: CheckedBatch) -> Result<CheckedBatch, Rejection> {
    let header = &batch.header;
    let is_idempotent = header.producer_id >= 0 && header.base_sequence >= 0;
    let is_plain = !header.attributes.is_transactional() && !header.attributes.is_control();
    let (code, text) = if batch.bytes.len() > FAST_BATCH_BYTES_MAX {
        (ErrorCode::MessageTooLarge, "the batch is too large for a fast append")
    } else if !is_idempotent {
        (ErrorCode::InvalidRecord, "a fast append needs a producer id and a sequence")
    } else if !is_plain {
        (ErrorCode::InvalidRecord, "a fast append is part of no transaction")
    } else if !batch.guard.is_open() {
        (ErrorCode::InvalidRecord, "a fast append has no guard")
    } else {
        return Ok(batch);
    };
    Err(Rejection { code, message: text.to_owned() })
}

/// Topic of a request with batches.
trait Topic {
    type Part;

    /// Returns the topic's name and id; one of them may be empty.
    fn name(&self) -> (&str, Uuid);
    fn parts(&self) -> &[Self::Part];
    fn parts_mut(&mut self) -> &mut Few<Self::Part>;
    fn index(part: &Self::Part) -> i32;
}

impl Topic for TopicProduceData {
    type Part = PartitionProduceData;

    fn name(&self) -> (&str, Uuid) {
        (&self.name, self.topic_id)
    }

    fn parts(&self) -> &[Self::Part] {
        &self.partition_data
    }

    fn parts_mut(&mut self) -> &mut Few<Self::Part> {
        &mut self.partition_data
    }

    fn index(part: &Self::Part) -> i32 {
        part.index
    }
}

impl Topic for AppendFastTopic {
    type Part = AppendFastPartition;

    fn name(&self) -> (&str, Uuid) {
        ("", self.topic_id)
    }

    fn parts(&self) -> &[Self::Part] {
        &self.partitions
    }

    fn parts_mut(&mut self) -> &mut Few<Self::Part> {
        &mut self.partitions
    }

    fn index(part: &Self::Part) -> i32 {
        part.index
    }
}

/// Keeps only the last batch of a partition that a request names more than once. Kafka does the same, and no client
/// that we test depends on more.
fn drop_repeated<T: Topic>(topics: &mut Few<T>) {
    let count: usize = topics.iter().map(|topic| topic.parts().len()).sum();
    if count <= 1 {
        return;
    }
    let mut named = Vec::with_capacity(count);
    for (at, topic) in topics.iter().enumerate() {
        let places = topic.parts().iter().enumerate();
        named.extend(places.map(|(place, it)| ((topic.name(), T::index(it)), at, place)));
    }
    named.sort_unstable();
    let repeated = named.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let mut repeated: Vec<(usize, usize)> = repeated.map(|pair| (pair[0].1, pair[0].2)).collect();
    if repeated.is_empty() {
        return;
    }
    repeated.sort_unstable();
    let mut repeated = repeated.into_iter().peekable();
    for (at, topic) in topics.iter_mut().enumerate() {
        let mut places = 0..;
        // One pass, however many there are.
        topic.parts_mut().retain(|_| {
            let place = places.next().expect("it has no end");
            repeated.next_if_eq(&(at, place)).is_none()
        });
    }
    topics.retain(|topic| !topic.parts().is_empty());
}
