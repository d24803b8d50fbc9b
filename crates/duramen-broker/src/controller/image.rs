//! # Room card: image
//!
//! Purpose:    the cluster's metadata after a prefix of the metadata log.
//! Owns:       brokers, retired directories, topics, placements, settings, the counters of ids.
//! Interface:  [`Image::apply`], [`Image::encode`], [`Image::decode`], lookups.
//! Invariants: the image is the fold of the records; `apply` is total, deterministic, and the only writer; ids are
//!             never used twice.
//! Never:      time, chance, entries that are not committed.
//! Tests:      below.
//! Start at:   [`Image::apply`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use duramen_protocol::wire::{Decoder, Encoder, Uuid};

use crate::acls::Acl;
use crate::configs::Settings;

use crate::metadata_records::{
    AllocatePeerIds, AllocateProducerIds, BearPartition, CreateTopic, MetadataRecord,
    MovePartition, NoteNewcomers, PlacePartition, PlacedReplica, QuotaEntity, RegisterBroker,
    RemoveAcl, RetireDirectory, SetAcl, SetBrokerConfig, SetClientQuota, SetFeature,
    SetGroupConfig, SetTopicConfig, UnregisterBroker,
};
use crate::quotas::{EntityType, QuotaKey, QuotaTable};
use crate::users::Users;
use duramen_storage::sabotage::{self, Bug};

const IMAGE_VERSION: u8 = 2;
/// Version of an image without its own index: the index was the one that it was stored under.
const IMAGE_VERSION_WITHOUT_INDEX: u8 = 1;
/// First peer id of a partition's replica: 0 is nobody, 1 is the metadata group.
const FIRST_PEER_ID: u64 = 2;

/// One topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Topic {
    pub name: String,
    pub id: Uuid,
    pub configs: Settings,
    /// First producer id that the cluster gave out after it created the topic. No producer from there on has written to
    /// an older topic of the same name.
    pub newcomers_from: i64,
    pub partitions: Vec<Vec<PlacedReplica>>,
}

impl Topic {
    /// Returns the replicas of a partition.
    pub(crate) fn replicas(&self, partition: i32) -> Option<&[PlacedReplica]> {
        self.partitions.get(usize::try_from(partition).ok()?).map(Vec::as_slice)
    }
}

/// Move of a partition to other replicas, as peer ids.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reassignment {
    /// Wanted replicas, the preferred one first.
    pub target: Vec<u64>,
    /// Those that it had.
    pub origin: Vec<u64>,
    /// A later move of the partition has a higher one.
    pub number: u64,
    /// Nodes of the replicas after a second move; empty if none follows.
    pub then: Vec<i32>,
}

/// Change by a record, for the node to follow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// A partition has (other) replicas; these are not among them any more.
    Placed { topic_id: Uuid, partition: i32, gone: Vec<PlacedReplica> },
    /// A topic's settings are others.
    Configured { topic_id: Uuid },
    /// Settings of nodes are others.
    BrokersConfigured,
    /// Other nodes belong to the cluster, or they are elsewhere.
    Brokers,
    /// A user has another credential, or one less.
    Users,
    /// A rule of access is new.
    AclAdded(Acl),
    /// A rule of access is gone.
    AclRemoved(Acl),
    /// A topic is gone.
    Deleted(Topic),
}

/// See the room card. [`Image::empty`] makes one; the default has no id to give.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Image {
    /// Index up to which this image contains the changes of entries, though a replica that restarted may not have
    /// applied them again.
    pub as_of: u64,
    pub brokers: BTreeMap<i32, RegisterBroker>,
    /// Data directories that have no part in the cluster any more.
    pub retired: BTreeSet<Uuid>,
    pub features: BTreeMap<String, i16>,
    broker_configs: BTreeMap<i32, Settings>,
    /// Groups that have settings of their own.
    group_configs: BTreeMap<String, Settings>,
    pub quotas: QuotaTable,
    pub users: Users,
    /// Rules of access, by id.
    pub acls: BTreeMap<Uuid, Acl>,
    topics: BTreeMap<Uuid, Topic>,
    /// Partitions that are being moved.
    pub reassignments: BTreeMap<(Uuid, i32), Reassignment>,
    /// First voters of those groups whose partitions have moved since.
    born: BTreeMap<(Uuid, i32), Vec<u64>>,
    names: BTreeMap<String, Uuid>,
    /// Names with `.` and `_` made the same, which may not differ in that alone.
    folded: BTreeMap<String, Uuid>,
    pub next_peer_id: u64,
    pub next_producer_id: i64,
    pub partitions_len: usize,
}

/// Folds a topic's name. Metric names of common tools do not distinguish `.` from `_`, so no two topics may differ in
/// that alone.
pub(crate) fn fold(name: &str) -> String {
    name.replace('.', "_")
}

/// Sets or removes one setting.
fn set(settings: &mut Settings, name: String, value: Option<String>) {
    match value {
        Some(value) => settings.insert(name, value),
        None => settings.remove(&name),
    };
}

/// Sets or removes one setting of an owner, which is named as long as it has settings.
fn set_of<K: Ord>(all: &mut BTreeMap<K, Settings>, owner: K, name: String, value: Option<String>) {
    let mut settings = all.remove(&owner).unwrap_or_default();
    set(&mut settings, name, value);
    if !settings.is_empty() {
        all.insert(owner, settings);
    }
}

impl Image {
    /// Returns an image without content.
    pub(crate) fn empty() -> Self {
        Self { next_peer_id: FIRST_PEER_ID, ..Self::default() }
    }

    /// Returns all topics, by name.
    pub(crate) fn topics_by_name(&self) -> impl Iterator<Item = &Topic> {
        self.names.values().filter_map(|id| self.topics.get(id))
    }

    /// Returns the topics whose names come after this one, by name.
    pub(crate) fn topics_named_after(&self, name: Option<&str>) -> impl Iterator<Item = &Topic> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.range::<str, _>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.topics.get(id))
    }

    /// Returns at most `limit` topics whose ids come after `id`, by id.
    pub(crate) fn topics_after(&self, id: Option<Uuid>, limit: usize) -> Vec<Uuid> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.topics.range((from, Bound::Unbounded)).take(limit).map(|(id, _)| *id).collect()
    }

    /// Returns the topics that a later image no longer has.
    pub(crate) fn topics_missing_in(&self, later: &Self) -> impl Iterator<Item = &Topic> {
        self.topics.values().filter(|topic| !later.topics.contains_key(&topic.id))
    }

    /// Returns the settings of a group.
    pub(crate) fn group_configs(&self, group: &str) -> &Settings {
        static NONE: Settings = Settings::new();
        self.group_configs.get(group).unwrap_or(&NONE)
    }

    /// Returns the groups that have settings of their own.
    pub(crate) fn configured_groups(&self) -> impl Iterator<Item = &str> {
        self.group_configs.keys().map(String::as_str)
    }

    /// Returns the dynamic settings of a node, or those of all nodes.
    pub(crate) fn broker_configs(&self, broker_id: i32) -> &Settings {
        static NONE: Settings = Settings::new();
        self.broker_configs.get(&broker_id).unwrap_or(&NONE)
    }

    /// Returns the topic of this name.
    pub(crate) fn topic_named(&self, name: &str) -> Option<&Topic> {
        self.topics.get(self.names.get(name)?)
    }

    /// Returns the topic of this id.
    pub(crate) fn topic(&self, id: Uuid) -> Option<&Topic> {
        self.topics.get(&id)
    }

    /// Tells whether the topic with this id has this partition.
    pub(crate) fn has_partition(&self, id: Uuid, partition: i32) -> bool {
        self.replicas(id, partition).is_some()
    }

    /// Returns the replicas of a partition of the topic with this id.
    pub(crate) fn replicas(&self, id: Uuid, partition: i32) -> Option<&[PlacedReplica]> {
        self.topic(id)?.replicas(partition)
    }

    /// Returns the nodes that belong to the cluster and are not leaving it.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (i32, &RegisterBroker)> {
        let all = self.brokers.iter().map(|(&id, broker)| (id, broker));
        all.filter(|(_, broker)| !self.retired.contains(&broker.directory_id))
    }

    /// Returns the name of a topic that a new one would be confused with.
    pub(crate) fn confusable(&self, name: &str) -> Option<&str> {
        let id = self.folded.get(&fold(name))?;
        self.topics.get(id).map(|topic| topic.name.as_str())
    }

    /// Returns the voters with which the group of a partition began. Any other replica of it begins empty, and learns
    /// the rest from its leader.
    pub(crate) fn voters_at_birth(&self, topic_id: Uuid, partition: i32) -> Vec<u64> {
        let placed = || {
            let replicas = self.replicas(topic_id, partition)?;
            Some(replicas.iter().map(|it| it.peer_id).collect())
        };
        let moved = self.born.get(&(topic_id, partition)).cloned();
        let moved = moved.filter(|_| !sabotage::is(Bug::BornAsPlaced));
        moved.or_else(placed).unwrap_or_default()
    }

    /// Takes one committed record in.
    pub(crate) fn apply(&mut self, record: MetadataRecord) -> Option<Change> {
        match record {
            MetadataRecord::RegisterBroker(broker) => {
                self.brokers.insert(broker.broker_id, broker);
                Some(Change::Brokers)
            }
            MetadataRecord::RetireDirectory(RetireDirectory { directory_id }) => {
                self.retired.insert(directory_id);
                Some(Change::Brokers)
            }
            MetadataRecord::UnregisterBroker(UnregisterBroker { broker_id }) => {
                self.brokers.remove(&broker_id);
                Some(Change::Brokers)
            }
            MetadataRecord::CreateTopic(CreateTopic { topic_id, name }) => {
                self.names.insert(name.clone(), topic_id);
                self.folded.insert(fold(&name), topic_id);
                let newcomers_from = self.next_producer_id;
                let topic = Topic { name, id: topic_id, newcomers_from, ..Topic::default() };
                self.topics.insert(topic_id, topic);
                None
            }
            MetadataRecord::NoteNewcomers(NoteNewcomers { topic_id, first }) => {
                self.topics.get_mut(&topic_id)?.newcomers_from = first;
                None
            }
            MetadataRecord::SetTopicConfig(set) => self.set_topic_config(set),
            MetadataRecord::PlacePartition(PlacePartition { topic_id, partition, replicas }) => {
                self.reassignments.remove(&(topic_id, partition));
                self.place(topic_id, partition, replicas)
            }
            MetadataRecord::MovePartition(moved) => self.begin_move(moved),
            MetadataRecord::DeleteTopic(deleted) => {
                let topic = self.topics.remove(&deleted.topic_id)?;
                self.names.remove(&topic.name);
                self.folded.remove(&fold(&topic.name));
                self.partitions_len -= topic.partitions.len();
                self.reassignments.retain(|(id, _), _| *id != topic.id);
                self.born.retain(|(id, _), _| *id != topic.id);
                Some(Change::Deleted(topic))
            }
            MetadataRecord::BearPartition(BearPartition { topic_id, partition, voters }) => {
                self.born.insert((topic_id, partition), voters);
                None
            }
            MetadataRecord::AllocateProducerIds(AllocateProducerIds { end, .. }) => {
                self.next_producer_id = self.next_producer_id.max(end);
                None
            }
            MetadataRecord::AllocatePeerIds(AllocatePeerIds { end }) => {
                self.next_peer_id = self.next_peer_id.max(end);
                None
            }
            MetadataRecord::SetBrokerConfig(SetBrokerConfig { broker_id, name, value }) => {
                set_of(&mut self.broker_configs, broker_id, name, value);
                Some(Change::BrokersConfigured)
            }
            MetadataRecord::SetGroupConfig(SetGroupConfig { group, name, value }) => {
                set_of(&mut self.group_configs, group, name, value);
                None
            }
            MetadataRecord::SetClientQuota(quota) => self.set_quota(quota),
            MetadataRecord::SetScramCredential(_)
            | MetadataRecord::RemoveScramCredential(_)
            | MetadataRecord::SetSecret(_)
            | MetadataRecord::SetAcl(_)
            | MetadataRecord::RemoveAcl(_) => self.apply_security(record),
            MetadataRecord::SetFeature(set) => self.set_feature(set),
        }
    }

    fn set_topic_config(&mut self, setting: SetTopicConfig) -> Option<Change> {
        let SetTopicConfig { topic_id, name, value } = setting;
        set(&mut self.topics.get_mut(&topic_id)?.configs, name, value);
        Some(Change::Configured { topic_id })
    }

    fn set_feature(&mut self, set: SetFeature) -> Option<Change> {
        self.features.insert(set.name, set.level);
        None
    }

    /// Takes a record about users or rules of access in.
    fn apply_security(&mut self, record: MetadataRecord) -> Option<Change> {
        match record {
            MetadataRecord::SetAcl(set) => {
                let (id, acl) = (set.id, set.acl()?);
                self.acls.insert(id, acl.clone());
                Some(Change::AclAdded(acl))
            }
            MetadataRecord::RemoveAcl(RemoveAcl { id }) => {
                self.acls.remove(&id).map(Change::AclRemoved)
            }
            of_users => self.users.apply(of_users).then_some(Change::Users),
        }
    }

    /// Names that this version does not know cannot be in its log: they are refused when they are asked for.
    fn set_quota(&mut self, quota: SetClientQuota) -> Option<Change> {
        let SetClientQuota { entity, key, value, is_removed } = quota;
        let named = entity
            .into_iter()
            .map(|it| Some((EntityType::from_name(&it.entity_type)?, it.entity_name)));
        let key = QuotaKey::from_name(&key)?;
        self.quotas.set(named.collect::<Option<_>>()?, key, (!is_removed).then_some(value));
        None
    }

    fn begin_move(&mut self, moved: MovePartition) -> Option<Change> {
        let MovePartition { topic_id, partition, replicas, target, origin, number, then } = moved;
        let first = self.voters_at_birth(topic_id, partition);
        let change = self.place(topic_id, partition, replicas)?;
        self.born.insert((topic_id, partition), first);
        self.next_peer_id = self.next_peer_id.max(number + 1);
        let moved = Reassignment { target, origin, number, then };
        self.reassignments.insert((topic_id, partition), moved);
        Some(change)
    }

    fn place(
        &mut self,
        topic_id: Uuid,
        partition: i32,
        replicas: Vec<PlacedReplica>,
    ) -> Option<Change> {
        let highest = replicas.iter().map(|replica| replica.peer_id).max().unwrap_or(0);
        self.next_peer_id = self.next_peer_id.max(highest + 1);
        let partitions = &mut self.topics.get_mut(&topic_id)?.partitions;
        let at = usize::try_from(partition).ok()?;
        let mut gone = Vec::new();
        if at == partitions.len() {
            partitions.push(replicas);
            self.partitions_len += 1;
        } else {
            let stays = |it: &PlacedReplica| replicas.iter().any(|new| new.peer_id == it.peer_id);
            gone.extend(partitions.get(at)?.iter().filter(|it| !stays(it)).cloned());
            partitions[at] = replicas;
        }
        Some(Change::Placed { topic_id, partition, gone })
    }

    /// Checks that names, counts and moves are those of the topics.
    pub(super) fn inspect(&self) {
        debug_assert!(
            self.topics
                .iter()
                .all(|(id, topic)| { topic.id == *id && self.names.get(&topic.name) == Some(id) }),
            "a topic is found by its name and by its id"
        );
        debug_assert_eq!(self.names.len(), self.topics.len(), "a name is that of one topic");
        debug_assert_eq!(
            self.partitions_len,
            self.topics.values().map(|topic| topic.partitions.len()).sum::<usize>(),
            "the count of partitions is that of all topics"
        );
        let moved = self.reassignments.keys().chain(self.born.keys());
        debug_assert!(
            moved.into_iter().all(|(id, partition)| self.has_partition(*id, *partition)),
            "only partitions that exist are moved"
        );
        let placed = self.topics.values().flat_map(|topic| topic.partitions.iter().flatten());
        debug_assert!(
            placed.into_iter().all(|replica| replica.peer_id < self.next_peer_id),
            "the id of a replica is not given again"
        );
    }

    /// Returns the records that make the quotas.
    fn quota_records(&self) -> impl Iterator<Item = MetadataRecord> {
        let name = |(kind, name): (&EntityType, &Option<String>)| QuotaEntity {
            entity_type: kind.name().to_owned(),
            entity_name: name.clone(),
        };
        self.quotas.all().flat_map(move |(entity, quotas)| {
            let entity: Vec<_> = entity.iter().map(name).collect();
            quotas.iter().map(move |(key, &value)| {
                let (entity, key) = (entity.clone(), key.name().to_owned());
                let quota = SetClientQuota { entity, key, value, is_removed: false };
                MetadataRecord::SetClientQuota(quota)
            })
        })
    }

    /// Encodes this image as of the entry at `applied`: a version, and the records that make it.
    pub(crate) fn encode(&self, applied: u64) -> Bytes {
        let mut e = Encoder::new();
        e.put(&[IMAGE_VERSION]);
        e.put(&self.as_of.max(applied).to_be_bytes());
        let mut put = |record: MetadataRecord| {
            let bytes = record.encode();
            e.unsigned_varint(u32::try_from(bytes.len()).expect("one record is small"));
            e.put(&bytes);
        };
        let brokers = self.brokers.values().cloned().map(MetadataRecord::RegisterBroker);
        brokers.for_each(&mut put);
        for &directory_id in &self.retired {
            put(MetadataRecord::RetireDirectory(RetireDirectory { directory_id }));
        }
        for (name, &level) in &self.features {
            put(MetadataRecord::SetFeature(SetFeature { name: name.clone(), level }));
        }
        for (&broker_id, configs) in &self.broker_configs {
            for (name, value) in configs {
                let (name, value) = (name.clone(), Some(value.clone()));
                put(MetadataRecord::SetBrokerConfig(SetBrokerConfig { broker_id, name, value }));
            }
        }
        for (group, configs) in &self.group_configs {
            for (name, value) in configs {
                let (group, name, value) = (group.clone(), name.clone(), Some(value.clone()));
                put(MetadataRecord::SetGroupConfig(SetGroupConfig { group, name, value }));
            }
        }
        self.quota_records().for_each(&mut put);
        self.users.records().into_iter().for_each(&mut put);
        let acls = self.acls.iter().map(|(id, acl)| SetAcl::of(*id, acl));
        acls.map(MetadataRecord::SetAcl).for_each(&mut put);
        put(MetadataRecord::AllocatePeerIds(AllocatePeerIds { end: self.next_peer_id }));
        let end = self.next_producer_id;
        put(MetadataRecord::AllocateProducerIds(AllocateProducerIds { broker_id: -1, end }));
        for topic in self.topics.values() {
            let topic_id = topic.id;
            let name = topic.name.clone();
            put(MetadataRecord::CreateTopic(CreateTopic { topic_id, name }));
            let first = topic.newcomers_from;
            put(MetadataRecord::NoteNewcomers(NoteNewcomers { topic_id, first }));
            for (name, value) in &topic.configs {
                let (name, value) = (name.clone(), Some(value.clone()));
                put(MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, name, value }));
            }
            for (partition, replicas) in (0..).zip(&topic.partitions) {
                let replicas = replicas.clone();
                let placement = PlacePartition { topic_id, partition, replicas };
                put(MetadataRecord::PlacePartition(placement));
                if let Some(voters) = self.born.get(&(topic_id, partition)).cloned() {
                    let born = BearPartition { topic_id, partition, voters };
                    put(MetadataRecord::BearPartition(born));
                }
                let Some(moved) = self.reassignments.get(&(topic_id, partition)) else { continue };
                let Reassignment { target, origin, number, then } = moved.clone();
                let replicas = topic.partitions[usize::try_from(partition).unwrap_or(0)].clone();
                let moved =
                    MovePartition { topic_id, partition, replicas, target, origin, number, then };
                put(MetadataRecord::MovePartition(moved));
            }
        }
        e.into_bytes().freeze()
    }

    /// Reads [`Image::encode`]; no bytes at all are the empty image. `None` if they cannot be read
    /// by this version.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        let mut image = Self::empty();
        for record in Self::records_of(bytes)? {
            image.apply(record);
        }
        if bytes.first() == Some(&IMAGE_VERSION) {
            image.as_of = u64::from_be_bytes(*bytes[1..].first_chunk::<8>()?);
        }
        Some(image)
    }

    /// Returns the records of an encoded image.
    pub(crate) fn records_of(bytes: &Bytes) -> Option<Vec<MetadataRecord>> {
        let mut records = Vec::new();
        let Some(&version) = bytes.first() else { return Some(records) };
        let from = match version {
            IMAGE_VERSION => 1 + 8,
            IMAGE_VERSION_WITHOUT_INDEX => 1,
            _ => return None,
        };
        let mut d = Decoder::new(bytes.slice(from.min(bytes.len())..));
        while d.remaining() > 0 {
            let len = usize::try_from(d.unsigned_varint().ok()?).ok()?;
            records.push(MetadataRecord::decode(d.bytes(len).ok()?)?);
        }
        Some(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata_records::{DeleteTopic, Endpoint};

    fn history() -> Vec<MetadataRecord> {
        let mut records = vec![MetadataRecord::RegisterBroker(RegisterBroker {
            broker_id: 0,
            directory_id: Uuid::from_u128(9),
            incarnation: 4,
            endpoints: vec![Endpoint { listener: "L".into(), host: "h".into(), port: 9092 }],
            rack: None,
            kinds: 3,
        })];
        for n in 0..4u32 {
            let topic_id = Uuid::from_u128(u128::from(n) + 100);
            records.push(MetadataRecord::CreateTopic(CreateTopic {
                topic_id,
                name: format!("topic-{n}"),
            }));
            records.push(MetadataRecord::SetTopicConfig(SetTopicConfig {
                topic_id,
                name: "retention.ms".into(),
                value: Some("5".into()),
            }));
            for partition in 0..3 {
                let peer_id = u64::from(n) * 3 + u64::try_from(partition).expect("small") + 2;
                let directory_id = Uuid::from_u128(9);
                let replicas = vec![PlacedReplica { peer_id, broker_id: 0, directory_id }];
                let placement = PlacePartition { topic_id, partition, replicas };
                records.push(MetadataRecord::PlacePartition(placement));
            }
        }
        let moved = |partition, origin: u64, target: u64| {
            let topic_id = Uuid::from_u128(101);
            let directory_id = Uuid::from_u128(9);
            let placed = |peer_id| PlacedReplica { peer_id, broker_id: 0, directory_id };
            let replicas = vec![placed(target), placed(origin)];
            let (target, origin) = (vec![target], vec![origin]);
            let (number, then) = (7, vec![3, 1]);
            let moved =
                MovePartition { topic_id, partition, replicas, target, origin, number, then };
            MetadataRecord::MovePartition(moved)
        };
        records.extend([moved(0, 5, 20), moved(1, 6, 21), moved(1, 6, 22)]);
        let replicas =
            vec![PlacedReplica { peer_id: 20, broker_id: 0, directory_id: Uuid::from_u128(9) }];
        let topic_id = Uuid::from_u128(101);
        records.push(MetadataRecord::PlacePartition(PlacePartition {
            topic_id,
            partition: 0,
            replicas,
        }));
        let quota = |name: &str, value, is_removed| {
            let client = QuotaEntity { entity_type: "client-id".into(), entity_name: None };
            let user = QuotaEntity { entity_type: "user".into(), entity_name: Some(name.into()) };
            let (entity, key) = (vec![client, user], "producer_byte_rate".into());
            MetadataRecord::SetClientQuota(SetClientQuota { entity, key, value, is_removed })
        };
        records.extend([quota("u", 5.0, false), quota("v", 7.0, false), quota("u", 0.0, true)]);
        let allocated = AllocateProducerIds { broker_id: 0, end: 2000 };
        records.push(MetadataRecord::AllocateProducerIds(allocated));
        let (topic_id, name) = (Uuid::from_u128(104), "later".to_owned());
        records.push(MetadataRecord::CreateTopic(CreateTopic { topic_id, name }));
        let topic_id = Uuid::from_u128(103);
        records.push(MetadataRecord::DeleteTopic(DeleteTopic { topic_id }));
        for (broker_id, value) in [(0, Some("5")), (-1, Some("6")), (0, None)] {
            let (name, value) = ("log.retention.ms".to_owned(), value.map(str::to_owned));
            let set = SetBrokerConfig { broker_id, name, value };
            records.push(MetadataRecord::SetBrokerConfig(set));
        }
        let allocated = AllocateProducerIds { broker_id: 0, end: 3000 };
        records.push(MetadataRecord::AllocateProducerIds(allocated));
        records
    }

    #[test]
    fn an_image_of_any_prefix_equals_its_replay() {
        let mut image = Image::empty();
        for record in history() {
            image.apply(record);
            assert_eq!(Image::decode(&image.encode(0)).as_ref(), Some(&image));
        }
        assert_eq!((image.topics.len(), image.partitions_len), (4, 9));
    }

    #[test]
    fn a_topic_knows_which_producer_ids_are_newer_than_it() {
        let mut image = Image::empty();
        for record in history() {
            image.apply(record);
        }
        let copy = Image::decode(&image.encode(0)).expect("ours");
        let from = |id| copy.topic(Uuid::from_u128(id)).expect("it is there").newcomers_from;
        assert_eq!((from(101), from(104), copy.next_producer_id), (0, 2000, 3000));
    }

    #[test]
    fn ids_of_deleted_replicas_are_not_given_again() {
        let mut image = Image::empty();
        for record in history() {
            image.apply(record);
        }
        assert_eq!(image.next_peer_id, 23);
        assert_eq!(Image::decode(&image.encode(0)).expect("ours").next_peer_id, 23);
        assert_eq!(image.confusable("topic_0"), None);
        assert!(image.topic_named("topic-3").is_none());
    }

    #[test]
    fn a_group_begins_with_its_first_voters_wherever_its_partition_is_now() {
        let mut image = Image::empty();
        for record in history() {
            image.apply(record);
        }
        let topic = Uuid::from_u128(101);
        for image in [image.clone(), Image::decode(&image.encode(0)).expect("ours")] {
            assert_eq!(image.voters_at_birth(topic, 0), [5], "it was moved, and is there");
            assert_eq!(
                image.voters_at_birth(topic, 1),
                [6],
                "it is being moved, for the second time"
            );
            assert_eq!(image.voters_at_birth(topic, 2), [7], "it was never moved");
            let under_way: Vec<_> = image.reassignments.keys().collect();
            assert_eq!(under_way, [&(topic, 1)]);
        }
    }

    #[test]
    fn an_unknown_image_is_refused() {
        assert!(Image::decode(&Bytes::from_static(&[9])).is_none());
        assert_eq!(Image::decode(&Bytes::new()), Some(Image::empty()));
    }
}
