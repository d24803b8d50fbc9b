//! # Room card: restoration
//!
//! Purpose:    make a new cluster of one node, in a new directory, from the replicas of a backup.
//! Owns:       the records by which the replicas become those of another directory; offsets of groups that are set
//!             back.
//! Interface:  [`Restoration::plan`].
//! Invariants: those of `survivor`. At no time is a replica of the node in a directory that was retired. The terms leap
//!             over those that the old cluster may have had after the backup. No group has committed an offset behind
//!             the end of its log, but in a transaction that is open.
//! Never:      files (see `duramen_storage::backup`).
//! Tests:      below; `duramen/tests/cli/backup.rs`.
//! Start at:   [`Restoration::plan`].
//!
//! A restoration does to a backup what `survivor` does to a directory. Beyond that, the metadata's image holds all of
//! it: a start knows the new placements before it looks at any replica.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::batch;
use duramen_protocol::records::Records;
use duramen_protocol::wire::Uuid;
use duramen_storage::Descriptor;
use duramen_storage::op::{Append, ConfState, HardState, Op, OpKind, RecoveredReplica};
use duramen_storage::storage::{Facts, Voter};

use crate::controller::image::Image;
use crate::controller::is_metadata;
use crate::groups::records::{GroupRecord, OffsetCommitKey, OffsetCommitValue};
use crate::internal_topics::GROUPS;
use crate::limits::PRODUCER_ID_BLOCK;
use crate::metadata_records::{
    AllocateProducerIds, MetadataRecord, PlacePartition, PlacedReplica, RegisterBroker,
    RetireDirectory, UnregisterBroker,
};
use crate::survivor::{
    BLOCKS_UNHEARD_OF, Outcome, append_at, entry_at, image_of, is_born, last_index, outcome,
};

/// Number of terms that the old cluster may have had after the backup. A client that knows a later leader epoch than
/// that of the backup learns from a lookup where the log ends for it.
const TERMS_UNHEARD_OF: u64 = 1 << 16;
/// Most records of one batch of the metadata log: such a batch stays far below the limit of an entry.
const RECORDS_A_BATCH: usize = 1000;

/// Plan of a restore.
#[derive(Debug)]
pub struct Restoration {
    /// Fate of nodes and partitions.
    pub outcome: Outcome,
    /// Offsets of groups that are set back to the ends of their logs.
    pub set_back: Vec<SetBack>,
    /// First voters of the new cluster; none if the old one was a cluster of its own, as a node alone is.
    pub voters: Vec<Voter>,
    /// Changes of the replicas before the directory is made.
    pub ops: Vec<Op>,
}

/// Committed offset that was behind the end of its log. A group may have read further by another node than the node of
/// the backup knew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// The group.
    pub group: String,
    /// Topic of the log.
    pub topic: String,
    /// Partition of the log.
    pub partition: i32,
    /// Committed offset in the backup.
    pub from: i64,
    /// End of the log, which is committed now.
    pub to: i64,
}

/// Batches of a replica from an offset on, or the reason of their absence.
type Read<'a> = &'a mut dyn FnMut(&RecoveredReplica, i64) -> Result<Vec<Bytes>, String>;

impl Restoration {
    /// Plans the restore of replicas into a new directory of the same node, or returns the reason for which it is
    /// impossible. `facts` and `voters` are those of the old directory, `read` reads batches of a replica from an
    /// offset on, `wall_ms` is the present time.
    pub fn plan(
        (facts, voters): (&Facts, &[Voter]),
        directory_id: [u8; 16],
        (replicas, read): (&[RecoveredReplica], Read<'_>),
        wall_ms: i64,
    ) -> Result<Self, String> {
        let metadata = replicas.iter().find(|it| is_metadata(&it.identity) && is_born(it));
        let metadata = metadata.ok_or("it has no metadata of a cluster")?;
        let image = image_of(metadata, read(metadata, metadata.prev_end_offset)?)
            .ok_or("the metadata has records that this version cannot read")?;
        let new = Facts { directory_id, ..facts.clone() };
        let (outcome, records, image) = rehoused(image, replicas, (facts, &new))?;
        let term = metadata.hard_state.term + TERMS_UNHEARD_OF;
        let appends = appends(metadata, (&records, term), wall_ms)?;
        let last = appends.last().map_or(last_index(metadata), |append| append.entry.index);
        let ends = replicas
            .iter()
            .map(|it| ((it.identity.topic.as_str(), it.identity.partition), it.end_offset));
        let ends: BTreeMap<_, _> = ends.collect();
        let end_of = |topic: &str, partition| ends.get(&(topic, partition)).copied();
        let (mut ops, mut all_set_back) = (Vec::new(), Vec::new());
        for replica in replicas.iter().filter(|it| is_born(it)) {
            let appends = match &replica.identity {
                it if is_metadata(it) => appends.clone(),
                it if it.topic == GROUPS => {
                    let committed = committed(read(replica, replica.log_start)?)?;
                    let late = behind_ends(committed, &end_of);
                    let appends = set_back(replica, &late, wall_ms)?;
                    all_set_back.extend(late.into_iter().map(|(it, ..)| it));
                    appends
                }
                _ => Vec::new(),
            };
            ops.extend(seize(replica, appends)?);
        }
        let kind = OpKind::Image { index: last, image: image.encode(last) };
        ops.push(Op { replica: metadata.replica, kind });
        let founder =
            Voter { peer_id: metadata.replica.0, broker_id: facts.broker_id, directory_id };
        let voters = if voters.is_empty() { Vec::new() } else { vec![founder] };
        Ok(Self { outcome, set_back: all_set_back, voters, ops })
    }
}

/// Returns the fate of each partition, the records that move the node to its new directory, and the image after them.
/// Placements come first: at no time is a replica of the node in a directory that was retired.
fn rehoused(
    mut image: Image,
    replicas: &[RecoveredReplica],
    (old, new): (&Facts, &Facts),
) -> Result<(Outcome, Vec<MetadataRecord>, Image), String> {
    let (from, to) = (Uuid(old.directory_id), Uuid(new.directory_id));
    let own = image.brokers.get(&old.broker_id).filter(|it| it.directory_id == from);
    let own = own.ok_or_else(|| format!("the metadata does not know node {}", old.broker_id))?;
    let own = RegisterBroker { directory_id: to, ..own.clone() };
    let mut records = Vec::new();
    for topic in image.topics_by_name() {
        for (partition, placed) in (0..).zip(&topic.partitions) {
            if placed.iter().all(|it| it.directory_id != from) {
                continue;
            }
            let own = placed.iter().filter(|it| it.directory_id == from);
            let replicas = own.map(|it| PlacedReplica { directory_id: to, ..it.clone() }).collect();
            let topic_id = topic.id;
            let placed = PlacePartition { topic_id, partition, replicas };
            records.push(MetadataRecord::PlacePartition(placed));
        }
    }
    records.push(MetadataRecord::RegisterBroker(own));
    apply(&mut image, &records);
    let (outcome, renewed) = outcome(&image, replicas, new);
    let mut more = Vec::new();
    for directory_id in image.brokers.values().map(|it| it.directory_id).filter(|it| *it != to) {
        more.push(MetadataRecord::RetireDirectory(RetireDirectory { directory_id }));
    }
    more.push(MetadataRecord::RetireDirectory(RetireDirectory { directory_id: from }));
    // No node of the new cluster looks for one of the old: those may run, and take in whoever joins.
    for broker_id in image.brokers.keys().copied().filter(|id| *id != new.broker_id) {
        more.push(MetadataRecord::UnregisterBroker(UnregisterBroker { broker_id }));
    }
    let end = image.next_producer_id + BLOCKS_UNHEARD_OF * PRODUCER_ID_BLOCK;
    let ids = AllocateProducerIds { broker_id: new.broker_id, end };
    more.push(MetadataRecord::AllocateProducerIds(ids));
    more.extend(renewed);
    apply(&mut image, &more);
    records.extend(more);
    Ok((outcome, records, image))
}

fn apply(image: &mut Image, records: &[MetadataRecord]) {
    for record in records {
        image.apply(record.clone());
    }
}

/// Builds the entries after the metadata's last one. The first begins a segment, so no file of the backup is written
/// to.
fn appends(
    metadata: &RecoveredReplica,
    (records, term): (&[MetadataRecord], u64),
    wall_ms: i64,
) -> Result<Vec<Append>, String> {
    let mut appends: Vec<Append> = Vec::new();
    let (mut index, mut offset) = (last_index(metadata), metadata.end_offset);
    for records in records.chunks(RECORDS_A_BATCH) {
        index += 1;
        let place = ((index, term), offset, appends.is_empty());
        let append = append_at(place, records, wall_ms).ok_or("the records do not fit")?;
        offset += i64::try_from(records.len()).map_err(|error| error.to_string())?;
        appends.push(append);
    }
    Ok(appends)
}

/// Makes the replica its group's only voter, with a vote for itself in a term that the old cluster did not come to.
fn seize(found: &RecoveredReplica, appends: Vec<Append>) -> Result<[Op; 2], String> {
    let replica = found.replica;
    let commit = appends.last().map_or(last_index(found), |append| append.entry.index);
    let term = found.hard_state.term + TERMS_UNHEARD_OF;
    if i32::try_from(term).is_err() {
        let identity = &found.identity;
        return Err(format!("{}-{} has no leader epoch left", identity.topic, identity.partition));
    }
    let hard_state = Some(HardState { term, vote: replica.0, commit });
    // The membership is as if the last entry had set it, so earlier entries can no longer change it.
    let conf = ConfState { applied: commit, voters: vec![replica.0], ..ConfState::default() };
    let write = OpKind::Write { ticket: 1, appends, hard_state, must_sync: true };
    Ok([Op { replica, kind: write }, Op { replica, kind: OpKind::Conf { conf } }])
}

/// Committed offsets, by group, topic and partition.
type Committed = BTreeMap<(String, String, i32), (OffsetCommitKey, OffsetCommitValue)>;

/// Folds the batches of a partition of the groups: the offsets that are committed at its end. Offsets of a transaction
/// count from its marker on.
fn committed(batches: Vec<Bytes>) -> Result<Committed, String> {
    let mut committed = Committed::new();
    let mut pending: BTreeMap<i64, Vec<GroupRecord>> = BTreeMap::new();
    for bytes in batches {
        for view in batch::batches(bytes) {
            let view = view.map_err(|error| error.to_string())?;
            let header = view.header();
            if header.attributes.is_control() {
                let ended = pending.remove(&header.producer_id).unwrap_or_default();
                let brief = Descriptor::of_batch(view.bytes(), false);
                let commits = brief.is_ok_and(|it| it.marker.is_some_and(|it| it.commits));
                ended
                    .into_iter()
                    .filter(|_| commits)
                    .for_each(|it| apply_offset(&mut committed, it));
                continue;
            }
            let records = Records::of(&view, 0).map_err(|error| error.to_string())?;
            for record in &records {
                let record = record.map_err(|error| error.to_string())?;
                let Some(key) = record.key.map(|key| records.keep(key)) else { continue };
                let value = record.value.map(|value| records.keep(value));
                // A record that this build does not know is no committed offset.
                let Ok(record) = GroupRecord::decode(key, value) else { continue };
                if header.attributes.is_transactional() {
                    pending.entry(header.producer_id).or_default().push(record);
                } else {
                    apply_offset(&mut committed, record);
                }
            }
        }
    }
    Ok(committed)
}

fn apply_offset(committed: &mut Committed, record: GroupRecord) {
    let GroupRecord::Offset { key, value } = record else { return };
    let of = (key.group.to_string(), key.topic.to_string(), key.partition);
    match value {
        Some(value) => _ = committed.insert(of, (key, value)),
        None => _ = committed.remove(&of),
    }
}

/// Returns the offsets that are behind the ends of their logs, with the records that set them back.
fn behind_ends(
    committed: Committed,
    end_of: &dyn Fn(&str, i32) -> Option<i64>,
) -> Vec<(SetBack, OffsetCommitKey, OffsetCommitValue)> {
    let mut late = Vec::new();
    for ((group, topic, partition), (key, value)) in committed {
        let Some(to) = end_of(&topic, partition).filter(|end| value.offset > *end) else {
            continue;
        };
        let from = value.offset;
        let it = SetBack { group, topic, partition, from, to };
        // The epoch is that of a record which is not there.
        late.push((it, key, OffsetCommitValue { offset: to, leader_epoch: -1, ..value }));
    }
    late
}

/// Builds the entries that set offsets back.
fn set_back(
    found: &RecoveredReplica,
    late: &[(SetBack, OffsetCommitKey, OffsetCommitValue)],
    wall_ms: i64,
) -> Result<Vec<Append>, String> {
    let term = found.hard_state.term + TERMS_UNHEARD_OF;
    let (mut index, mut offset) = (last_index(found), found.end_offset);
    let mut appends: Vec<Append> = Vec::new();
    for late in late.chunks(RECORDS_A_BATCH) {
        index += 1;
        let record = |(_, key, value): &(SetBack, OffsetCommitKey, OffsetCommitValue)| {
            let (key, value) = (key.clone(), Some(value.clone()));
            GroupRecord::Offset { key, value }.encode().map_err(|error| error.to_string())
        };
        let records = late.iter().map(record).collect::<Result<Vec<_>, _>>()?;
        let pairs = records.iter().map(|(key, value)| {
            (Some(&key[..]), value.as_ref().map_or(&[][..], |value| &value[..]))
        });
        let place = ((index, term), offset, appends.is_empty());
        appends.push(entry_at(place, pairs, wall_ms).ok_or("the offsets of groups do not fit")?);
        offset += i64::try_from(late.len()).map_err(|error| error.to_string())?;
    }
    Ok(appends)
}

#[cfg(test)]
mod tests {
    use duramen_protocol::records::{BatchBuilder, NewRecord};

    use super::*;
    use crate::groups::records::NEVER;

    fn offset(group: &str, offset: Option<i64>) -> (Bytes, Option<Bytes>) {
        let key = OffsetCommitKey { group: group.into(), topic: "t".into(), partition: 0 };
        let value = offset.map(|offset| OffsetCommitValue {
            offset,
            leader_epoch: 3,
            metadata: "m".into(),
            commit_timestamp: 5,
            expire_timestamp: NEVER,
            topic_id: Uuid::default(),
        });
        GroupRecord::Offset { key, value }.encode().unwrap()
    }

    fn batch_of(producer: Option<i64>, records: &[(Bytes, Option<Bytes>)]) -> Bytes {
        let mut builder = BatchBuilder::new();
        if let Some(id) = producer {
            builder = builder.producer(id, 0, 0).transactional();
        }
        for (key, value) in records {
            let (key, value) = (Some(&key[..]), value.as_deref());
            builder.push(&NewRecord { key, value, ..NewRecord::default() }).unwrap();
        }
        builder.build().unwrap()
    }

    fn marker(producer: i64, commits: bool) -> Bytes {
        let key = [0, 0, 0, u8::from(commits)];
        let mut builder = BatchBuilder::new().producer(producer, 0, -1).transactional().control();
        let value = Some(&[0; 6][..]);
        builder.push(&NewRecord { key: Some(&key), value, ..NewRecord::default() }).unwrap();
        builder.build().unwrap()
    }

    #[test]
    fn offsets_behind_the_end_of_their_log_are_set_back_to_it() {
        let log = vec![
            batch_of(None, &[offset("late", Some(7)), offset("fits", Some(5))]),
            batch_of(None, &[offset("gone", Some(9))]),
            batch_of(None, &[offset("gone", None), offset("late", Some(8))]),
            batch_of(Some(1), &[offset("committed", Some(6))]),
            batch_of(Some(2), &[offset("aborted", Some(6))]),
            batch_of(Some(3), &[offset("open", Some(6))]),
            marker(1, true),
            marker(2, false),
        ];
        let late = behind_ends(committed(log).unwrap(), &|topic, _| (topic == "t").then_some(5));
        let named: Vec<_> =
            late.iter().map(|(it, _, value)| (it.group.as_str(), it.from, value.offset)).collect();
        assert_eq!(named, [("committed", 6, 5), ("late", 8, 5)]);
        assert!(
            late.iter().all(|(_, _, value)| value.leader_epoch == -1 && &*value.metadata == "m")
        );
    }
}
