//! # Room card: survivor
//!
//! Purpose:    make a new cluster from one node when most of the others are lost for ever.
//! Owns:       the records by which a data directory becomes a cluster of its own, and the list of losses.
//! Interface:  [`Survival::plan`], for a directory that no process serves.
//! Invariants: the directory loses nothing that it holds: its only voter commits entries that were not committed. The
//!             plan retires the others' directories, and no node gets an id again that they may have given away.
//! Never:      a check that the majority is lost, which a person must judge; the manifest with the new cluster's id
//!             (see `duramen_storage::Storage::secede`).
//! Tests:      `node/tests/survivor.rs`; `duramen/tests/cluster.rs` does it to real processes.
//! Start at:   [`Survival::plan`].

use bytes::Bytes;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::Uuid;
use duramen_storage::Descriptor;
use duramen_storage::op::{
    Append, ConfState, Content, HardState, LogEntry, Op, OpKind, RecoveredReplica,
};
use duramen_storage::storage::{Facts, Voter};

use crate::controller::image::{Image, Topic};
use crate::controller::is_metadata;
use crate::internal_topics;
use crate::limits::PRODUCER_ID_BLOCK;
use crate::metadata_records::{
    AllocateProducerIds, BearPartition, MetadataRecord, PlacePartition, PlacedReplica,
    RetireDirectory, records_of,
};
use crate::partition::{View, stamp};

/// Count of blocks of producer ids that other nodes may have got without this node's knowledge.
pub(crate) const BLOCKS_UNHEARD_OF: i64 = 1_000_000;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
}

/// Result of the recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The other nodes, which have no part in the cluster any more.
    pub others: Vec<i32>,
    /// Partitions that go on with this node's replica of them.
    pub kept: Vec<Place>,
    /// Those of the kept partitions whose replica here was still a learner: they may lack much.
    pub partial: Vec<Place>,
    /// Those of the kept partitions whose last fast appends only other nodes held: they may lack some.
    pub unsettled: Vec<Place>,
    /// Partitions that this node has nothing of: they stay without a leader until they are deleted.
    pub lost: Vec<Place>,
    /// Partitions of the cluster's own topics that begin anew, empty.
    pub renewed: Vec<Place>,
    /// Partitions whose files on this node are damaged: the node does not serve them.
    pub damaged: Vec<Place>,
}

/// See the room card.
#[derive(Debug)]
pub struct Survival {
    /// Fate of nodes and partitions.
    pub outcome: Outcome,
    /// Only founder of the new cluster: this node.
    pub founder: Voter,
    /// To be made durable, after the manifest was.
    pub ops: Vec<Op>,
}

impl Survival {
    /// Plans the recovery from the content of a directory, or returns the reason for which it is impossible. `tail`
    /// holds the metadata's batches after its image, `wall_ms` is the present time.
    pub fn plan(
        facts: &Facts,
        replicas: &[RecoveredReplica],
        tail: Vec<Bytes>,
        wall_ms: i64,
    ) -> Result<Self, String> {
        let metadata = replicas.iter().find(|it| is_metadata(&it.identity));
        let metadata = metadata.filter(|it| is_born(it)).ok_or(
            "the data directory has no metadata of a cluster: it never was a member, or it had only begun to join",
        )?;
        if let Some(damage) = &metadata.damage {
            return Err(format!("the metadata in it is damaged: {damage}"));
        }
        let image = image_of(metadata, tail)
            .ok_or("the metadata has records that this version cannot read")?;
        let own = Uuid(facts.directory_id);
        let (outcome, placed) = outcome(&image, replicas, facts);
        let retire =
            |(_, directory_id)| MetadataRecord::RetireDirectory(RetireDirectory { directory_id });
        let others = image.staying().map(|(id, broker)| (id, broker.directory_id));
        let mut records: Vec<_> = others.filter(|(_, it)| *it != own).map(retire).collect();
        let end = image.next_producer_id + BLOCKS_UNHEARD_OF * PRODUCER_ID_BLOCK;
        let ids = AllocateProducerIds { broker_id: facts.broker_id, end };
        records.push(MetadataRecord::AllocateProducerIds(ids));
        records.extend(placed);
        let append = append(metadata, &records, wall_ms).ok_or("the records do not fit")?;
        let healthy = replicas.iter().filter(|it| is_born(it) && it.damage.is_none());
        let ops = healthy.flat_map(|it| {
            let appends = if is_metadata(&it.identity) { vec![append.clone()] } else { vec![] };
            seize(it, appends)
        });
        let founder = Voter {
            peer_id: metadata.replica.0,
            broker_id: facts.broker_id,
            directory_id: facts.directory_id,
        };
        Ok(Self { ops: ops.collect(), outcome, founder })
    }
}

/// Tells whether the replica ever learnt where its log begins.
pub(crate) fn is_born(found: &RecoveredReplica) -> bool {
    !found.conf.voters.is_empty()
}

pub(crate) fn last_index(found: &RecoveredReplica) -> u64 {
    found.entries.last().map_or(found.prev_index, |entry| entry.index)
}

/// Returns the image after the last entry of the log, whether or not other nodes have that entry.
pub(crate) fn image_of(metadata: &RecoveredReplica, tail: Vec<Bytes>) -> Option<Image> {
    let mut image = Image::decode(&metadata.image)?;
    for bytes in tail {
        for (_, records) in records_of(bytes)? {
            for record in records {
                image.apply(record);
            }
        }
    }
    Some(image)
}

/// Returns the fate of each partition, and the records that let the cluster's own partitions begin anew.
pub(crate) fn outcome(
    image: &Image,
    replicas: &[RecoveredReplica],
    facts: &Facts,
) -> (Outcome, Vec<MetadataRecord>) {
    let own = Uuid(facts.directory_id);
    let others = image.staying().filter(|(_, broker)| broker.directory_id != own);
    let mut outcome = Outcome { others: others.map(|(id, _)| id).collect(), ..Outcome::default() };
    let mut records = Vec::new();
    let mut next_peer_id = image.next_peer_id;
    for (topic, partition, placed) in image.topics_by_name().flat_map(partitions) {
        let place = Place { topic: topic.name.clone(), partition };
        let here = placed.iter().find(|it| it.directory_id == own);
        let found = here.and_then(|it| replicas.iter().find(|found| found.replica.0 == it.peer_id));
        match found.filter(|it| is_born(it)) {
            Some(found) if found.damage.is_some() => outcome.damaged.push(place),
            Some(found) => {
                if !found.conf.voters.contains(&found.replica.0) {
                    outcome.partial.push(place.clone());
                }
                let members = View::members_at_end(found);
                if !members.is_empty() && !members.contains(&found.replica.0) {
                    outcome.unsettled.push(place.clone());
                }
                outcome.kept.push(place);
            }
            None if internal_topics::is_internal(&topic.name) => {
                let peer_id = next_peer_id;
                next_peer_id += 1;
                let (topic_id, broker_id) = (topic.id, facts.broker_id);
                let replicas = vec![PlacedReplica { peer_id, broker_id, directory_id: own }];
                let placed = PlacePartition { topic_id, partition, replicas };
                let born = BearPartition { topic_id, partition, voters: vec![peer_id] };
                records.push(MetadataRecord::BearPartition(born));
                records.push(MetadataRecord::PlacePartition(placed));
                outcome.renewed.push(place);
            }
            None => outcome.lost.push(place),
        }
    }
    let fates = [&outcome.kept, &outcome.damaged, &outcome.renewed, &outcome.lost];
    assert_eq!(
        fates.iter().map(|places| places.len()).sum::<usize>(),
        image.partitions_len,
        "each partition has one fate"
    );
    (outcome, records)
}

fn partitions(topic: &Topic) -> impl Iterator<Item = (&Topic, i32, &Vec<PlacedReplica>)> {
    (0..).zip(&topic.partitions).map(move |(partition, placed)| (topic, partition, placed))
}

/// Makes the replica its group's only voter, with a vote for itself in a new term. All of its log is then committed.
fn seize(found: &RecoveredReplica, appends: Vec<Append>) -> [Op; 2] {
    let replica = found.replica;
    let last = appends.last().map_or(last_index(found), |append| append.entry.index);
    assert!(last >= found.hard_state.commit, "all that was committed stays");
    let hard_state =
        Some(HardState { term: found.hard_state.term + 1, vote: replica.0, commit: last });
    // The membership is as if the last entry had set it, so earlier entries can no longer change it.
    let conf = ConfState { applied: last, voters: vec![replica.0], ..ConfState::default() };
    let write = OpKind::Write { ticket: 1, appends, hard_state, must_sync: true };
    [Op { replica, kind: write }, Op { replica, kind: OpKind::Conf { conf } }]
}

/// Builds the entry after the metadata's last one.
fn append(metadata: &RecoveredReplica, records: &[MetadataRecord], wall_ms: i64) -> Option<Append> {
    let term = metadata.hard_state.term + 1;
    let starts_segment = metadata.segments.is_empty();
    let place = ((last_index(metadata) + 1, term), metadata.end_offset, starts_segment);
    append_at(place, records, wall_ms)
}

/// Index and term of an entry, the offset of its batch, and whether that begins a segment.
pub(crate) type EntryPlace = ((u64, u64), i64, bool);

/// Builds an entry of records of the metadata.
pub(crate) fn append_at(
    place: EntryPlace,
    records: &[MetadataRecord],
    wall_ms: i64,
) -> Option<Append> {
    let values: Vec<_> = records.iter().map(MetadataRecord::encode).collect();
    entry_at(place, values.iter().map(|value| (None, &value[..])), wall_ms)
}

/// Builds an entry of records with these keys and values.
pub(crate) fn entry_at<'a>(
    ((index, term), offset, starts_segment): EntryPlace,
    records: impl Iterator<Item = (Option<&'a [u8]>, &'a [u8])>,
    wall_ms: i64,
) -> Option<Append> {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        let record =
            NewRecord { timestamp: wall_ms, key, value: Some(value), ..NewRecord::default() };
        builder.push(&record).ok()?;
    }
    let epoch = i32::try_from(term).ok()?;
    let payload = stamp(builder.build_mut().ok()?, offset, epoch);
    let descriptor = Descriptor::of_batch(&payload, starts_segment).ok()?;
    assert_eq!(descriptor.base_offset, offset, "the batch is the log's next");
    let content = Content::Batch(descriptor);
    Some(Append { entry: LogEntry { index, term, content }, payload })
}
