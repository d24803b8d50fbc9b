//! # Room card: controller
//!
//! Purpose:    the metadata group: the nodes, topics and settings of the cluster.
//! Owns:       the metadata log and its image; proposed decisions that are not committed yet.
//! Interface:  [`Controller::create_topic`], [`Controller::add_partitions`], [`Controller::delete_topic`],
//!             [`Controller::allocate_producer_ids`], [`Controller::propose`], [`Controller::turn`].
//! Invariants: a decision returns records. Only their application, after the commit, changes the image, and a reply
//!             waits for that. Proposed names and ids count as taken. The controller trims the log only behind an image
//!             that storage already has.
//! Never:      time or chance inside `apply`; replicas (the node follows the changes).
//! Tests:      `image`, `records`, `placement`; `node/tests`.
//! Start at:   [`Controller::create_topic`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::create_topics::{CreatableReplicaAssignment, CreatableTopic};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::Uuid;
use duramen_storage::Descriptor;
use duramen_storage::op::{Beginning, Content, Identity, Op, OpKind, RecoveredReplica, ReplicaId};

use crate::configs::{BrokerSettings, TOPIC_CONFIGS, check_topic, check_topic_as_one, find};
use crate::event::{Action, Now, RequestKey};
use crate::limits::{
    CLUSTER_PARTITIONS_MAX, PRODUCER_ID_BLOCK, PRODUCER_ID_ZEROES, PRODUCER_IDS_MAX,
    TOPIC_NAME_BYTES_MAX, TOPIC_PARTITIONS_MAX,
};
use crate::partition::internal::Internal;
use crate::partition::stamp;
use crate::prng::Prng;
use crate::raft::{Group, GroupId, Outgoing, PayloadRead, internal_of};
use duramen_storage::sabotage::{self, Bug};

pub(crate) mod image;
mod placement;
pub(crate) mod quorum;
mod requests;

use crate::metadata_records::{
    AllocateProducerIds, CreateTopic, DeleteTopic, MetadataRecord, MovePartition, PlacePartition,
    PlacedReplica, RegisterBroker, RemoveAcl, RemoveScramCredential, RetireDirectory, SetAcl,
    SetBrokerConfig, SetScramCredential, SetTopicConfig, records_of,
};
use image::{Change, Image};
pub(crate) use requests::{DECISION_MS, decides, knows_best, timeout_ms};

/// The metadata group's replica where it is the only one.
pub(crate) const METADATA_REPLICA: ReplicaId = ReplicaId(1);
/// The name of the metadata log, which is no topic for clients.
pub const METADATA_TOPIC: &str = "__cluster_metadata";
/// Its id, as in Kafka.
pub const METADATA_TOPIC_ID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const METADATA_SEGMENT_BYTES: u64 = 64 << 20;

/// Founder of a cluster, which keeps the metadata since the first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Its id in the metadata group, from 1.
    pub peer_id: u64,
    /// Its node.
    pub broker_id: i32,
    /// The data directory, and no other: one that was wiped is another.
    pub directory_id: [u8; 16],
}

/// Tells whether a replica belongs to the metadata group.
pub(crate) fn is_metadata(identity: &Identity) -> bool {
    identity.topic_id == METADATA_TOPIC_ID
}

/// The metadata group.
pub(crate) const METADATA_GROUP: GroupId = GroupId { topic_id: METADATA_TOPIC_ID, partition: 0 };

/// Returns the producer ids that a cluster gives out. Two clusters give out different ids. A mirror's log may hold
/// batches of both, and no batch then counts as a duplicate of another.
pub(crate) fn producer_ids_of(cluster_id: [u8; 16]) -> Range<i64> {
    let (halves, _) = cluster_id.as_chunks::<8>();
    let mut chance = Prng::stream(u64::from_be_bytes(halves[0]), u64::from_be_bytes(halves[1]));
    let place = i64::try_from(chance.next() >> 32).expect("32 bits fit");
    let first = place << PRODUCER_ID_ZEROES;
    first..first + PRODUCER_IDS_MAX
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub code: ErrorCode,
    pub message: String,
}

impl Error {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Topic to create.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Creation {
    pub topic_id: Uuid,
    pub configs: BTreeMap<String, String>,
    pub partitions: i32,
    pub replication_factor: i16,
    pub records: Vec<MetadataRecord>,
}

/// Results of a turn of the metadata group.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Changes of the image, in order.
    pub changes: Vec<Change>,
    /// Requests whose records are committed, or were lost (`false`).
    pub released: Vec<(RequestKey, bool)>,
    /// For the other voters.
    pub messages: Vec<Outgoing>,
    /// Payloads to read for the messages.
    pub reads: Vec<PayloadRead>,
    /// New role, if the replica began to lead or ceased to.
    pub leads: Option<bool>,
    /// All of the image is another one.
    pub is_begun: bool,
}

/// Size of the metadata log, and of the part that is still needed.
#[derive(Debug, Default)]
struct LogSize {
    /// Log start offset.
    start: i64,
    /// The highest offset that a proposed Trim names.
    trimming: i64,
    /// Batches before this offset were counted at the recovery.
    recovered_end: i64,
    /// Bytes of batches since the last trim.
    bytes: u64,
    /// Bytes of the last image.
    image_bytes: u64,
}

impl LogSize {
    /// Tells whether the batches since the last trim exceed both the limit and twice the last image. Making an image
    /// takes work in proportion to its size, so the node makes none for fewer batches.
    fn is_large(&self, bytes_max: u64) -> bool {
        self.bytes > bytes_max.max(2 * self.image_bytes)
    }
}

/// The metadata group's replica on this node.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) group: Group,
    pub(crate) image: Image,
    /// Records of batches that are not applied yet, by base offset.
    unapplied: BTreeMap<i64, Vec<MetadataRecord>>,
    waiting: BTreeMap<(u64, u64), RequestKey>,
    waited: u64,
    creating: BTreeMap<String, u64>,
    /// Topics that a proposal changes or deletes, while its result is open.
    changing: BTreeSet<Uuid>,
    /// Nodes whose settings a proposal changes.
    configuring: BTreeSet<i32>,
    /// Rules of access that a proposal makes or takes away.
    ruling: BTreeSet<Uuid>,
    /// Users whose credentials a proposal changes.
    crediting: BTreeSet<String>,
    /// Directories that a proposal retires.
    retiring: BTreeSet<Uuid>,
    /// Nodes that a proposal registers.
    registering: BTreeSet<i32>,
    /// Nodes that report full disks: new partitions prefer other nodes as leaders.
    pub(crate) full: BTreeSet<i32>,
    next_peer_id: u64,
    next_producer_id: i64,
    /// Bytes of the segment that the next batch goes to; `None` if it begins one.
    segment_bytes: Option<u64>,
    /// One past the last applied offset.
    end: i64,
    log: LogSize,
    chance: Prng,
    /// The term in which it served at the end of its last turn.
    served: Option<u64>,
}

impl Controller {
    /// Builds the metadata group of a directory that was just formatted.
    pub(crate) fn create(replica: ReplicaId, voters: &[u64], seed: u64) -> Self {
        Self::over(Group::create(replica, identity(), voters, seed), Image::empty(), seed)
    }

    /// Builds the metadata group of a directory that joins a cluster. The group learns the rest from the other nodes.
    pub(crate) fn await_birth(replica: ReplicaId, seed: u64) -> Self {
        Self::over(Group::await_birth(replica, identity(), seed), Image::empty(), seed)
    }

    /// Builds the metadata group from the state that storage recovered; `tail` holds the batches after its image.
    pub(crate) fn recover(
        found: &RecoveredReplica,
        tail: Vec<Bytes>,
        seed: u64,
    ) -> Result<Self, String> {
        let image = Image::decode(&found.image)
            .ok_or("the image of the metadata cannot be read by this version")?;
        let mut controller = Self::over(Group::recover(found, seed), image, seed);
        for bytes in tail {
            let batches = records_of(bytes)
                .ok_or("the metadata log has records that this version cannot read")?;
            controller.unapplied.extend(batches);
        }
        // Of a log that was trimmed to its end storage removes the last segment, if it has not yet.
        let last = found.segments.last().filter(|_| found.log_start < found.end_offset);
        controller.segment_bytes = last.map(|segment| segment.size);
        controller.end = found.prev_end_offset;
        controller.log = LogSize {
            start: found.log_start,
            trimming: found.log_start,
            recovered_end: found.end_offset,
            bytes: found.segments.iter().map(|segment| segment.size).sum(),
            image_bytes: found.image.len() as u64,
        };
        Ok(controller)
    }

    fn over(group: Group, mut image: Image, seed: u64) -> Self {
        // No other replica may get an id of the metadata group.
        let own = group.voter_ids().iter().filter(|id| !quorum::is_of_directory(**id)).max();
        image.next_peer_id = image.next_peer_id.max(own.copied().unwrap_or(0) + 1);
        Self {
            group,
            next_peer_id: image.next_peer_id,
            next_producer_id: image.next_producer_id,
            image,
            unapplied: BTreeMap::new(),
            waiting: BTreeMap::new(),
            waited: 0,
            creating: BTreeMap::new(),
            changing: BTreeSet::new(),
            crediting: BTreeSet::new(),
            ruling: BTreeSet::new(),
            retiring: BTreeSet::new(),
            registering: BTreeSet::new(),
            full: BTreeSet::new(),
            configuring: BTreeSet::new(),
            segment_bytes: None,
            end: 0,
            log: LogSize::default(),
            chance: Prng::stream(seed, 0x0063_7472_6c00),
            served: None,
        }
    }

    /// Returns the log start offset.
    pub(crate) fn log_start(&self) -> i64 {
        self.log.start
    }

    /// Returns one past the last applied offset.
    pub(crate) fn end(&self) -> i64 {
        self.end
    }

    /// Tells whether a change of a topic is proposed and not committed yet.
    pub(crate) fn is_changing(&self, topic_id: Uuid) -> bool {
        self.changing.contains(&topic_id)
    }

    /// Tells whether a registration of a node is proposed and not committed yet.
    pub(crate) fn is_registering(&self, broker_id: i32) -> bool {
        self.registering.contains(&broker_id)
    }

    /// Tells whether a change that may give a node replicas is proposed and not committed yet.
    pub(crate) fn is_placing(&self) -> bool {
        !self.creating.is_empty() || !self.changing.is_empty()
    }

    /// Returns the nodes that belong to the cluster and are not about to leave it. Only these may get replicas.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (i32, &RegisterBroker)> {
        self.image.staying().filter(|(_, it)| !self.retiring.contains(&it.directory_id))
    }

    /// Returns the commit at which a topic under creation will exist.
    pub(crate) fn creating(&self, name: &str) -> Option<u64> {
        self.creating.get(name).copied()
    }

    /// Decides on a new topic. Nothing is proposed yet, but ids are taken.
    pub(crate) fn create_topic(
        &mut self,
        topic: &CreatableTopic,
        settings: &BrokerSettings,
    ) -> Result<Creation, Error> {
        self.check_name(&topic.name)?;
        let mut configs = BTreeMap::new();
        for config in &topic.configs {
            let Some(value) = &config.value else {
                let text = format!("{}: a setting needs a value", config.name);
                return Err(Error::new(ErrorCode::InvalidConfig, text));
            };
            check_topic(&config.name, value)
                .map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))?;
            let row = find(TOPIC_CONFIGS, &config.name).expect("it was checked");
            configs.insert(config.name.clone(), row.kept(value));
        }
        check_topic_as_one(&configs, settings)
            .map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))?;
        let placed = self.place(topic, settings)?;
        if self.image.partitions_len + placed.len() > CLUSTER_PARTITIONS_MAX {
            let text = format!("a cluster holds at most {CLUSTER_PARTITIONS_MAX} partitions");
            return Err(Error::new(ErrorCode::InvalidPartitions, text));
        }
        let replication_factor = i16::try_from(placed[0].len()).expect("it was an i16");
        let partitions = i32::try_from(placed.len()).expect("it was an i32");
        let topic_id = self.new_topic_id();
        let mut records = Vec::with_capacity(1 + configs.len() + placed.len());
        let name = topic.name.clone();
        records.push(MetadataRecord::CreateTopic(CreateTopic { topic_id, name }));
        for (name, value) in &configs {
            let (name, value) = (name.clone(), Some(value.clone()));
            records.push(MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, name, value }));
        }
        for (partition, brokers) in (0..).zip(placed) {
            let replicas = brokers.into_iter().map(|id| self.new_replica(id)).collect();
            let placement = PlacePartition { topic_id, partition, replicas };
            records.push(MetadataRecord::PlacePartition(placement));
        }
        Ok(Creation { topic_id, configs, partitions, replication_factor, records })
    }

    fn check_name(&self, name: &str) -> Result<(), Error> {
        if let Some(problem) = name_problem(name) {
            return Err(Error::new(ErrorCode::InvalidTopicException, problem));
        }
        if name == METADATA_TOPIC {
            let text = format!("creation of internal topic '{name}' is prohibited");
            return Err(Error::new(ErrorCode::InvalidRequest, text));
        }
        let is_taken = self.image.topic_named(name).is_some() || self.creating.contains_key(name);
        if is_taken {
            let text = format!("topic '{name}' already exists");
            return Err(Error::new(ErrorCode::TopicAlreadyExists, text));
        }
        if let Some(other) = self.image.confusable(name) {
            let text = format!("topic '{name}' collides with existing topic '{other}'");
            return Err(Error::new(ErrorCode::InvalidTopicException, text));
        }
        Ok(())
    }

    fn place(
        &mut self,
        topic: &CreatableTopic,
        settings: &BrokerSettings,
    ) -> Result<Vec<Vec<i32>>, Error> {
        let brokers: Vec<i32> = self.staying().map(|(id, _)| id).collect();
        if !topic.assignments.is_empty() {
            if topic.num_partitions != -1 || topic.replication_factor != -1 {
                let text = "with a manual assignment, partitions and replication factor are -1";
                return Err(Error::new(ErrorCode::InvalidRequest, text));
            }
            return placement::manual(&brokers, &topic.assignments);
        }
        let partitions = match topic.num_partitions {
            -1 => settings.num_partitions,
            given => given,
        };
        let replication_factor = match topic.replication_factor {
            -1 => i16::try_from(settings.default_replication_factor).unwrap_or(i16::MAX),
            given => given,
        };
        let start = usize::try_from(self.chance.below(1 << 16)).expect("16 bits");
        let placed = placement::spread(&self.sites(), partitions, replication_factor, start)?;
        Ok(placement::led_elsewhere(placed, &self.full))
    }

    /// Decides on more partitions for a topic, beside `decided` of others. Nothing is proposed yet,
    /// but ids are taken.
    pub(crate) fn add_partitions(
        &mut self,
        topic: &CreatePartitionsTopic,
        decided: usize,
    ) -> Result<Vec<MetadataRecord>, Error> {
        let there = self.image.topic_named(&topic.name).ok_or_else(|| {
            let text = format!("no topic '{}'", topic.name);
            Error::new(ErrorCode::UnknownTopicOrPartition, text)
        })?;
        let (topic_id, before) = (there.id, there.partitions.len());
        let moved = self.image.reassignments.get(&(topic_id, 0)).map(|moved| moved.target.len());
        let replicas = moved.or(there.partitions.first().map(Vec::len)).unwrap_or(1);
        let refuse = |text: String| Err(Error::new(ErrorCode::InvalidPartitions, text));
        if topic.count > TOPIC_PARTITIONS_MAX {
            return refuse(format!("a topic has at most {TOPIC_PARTITIONS_MAX} partitions"));
        }
        let wanted = usize::try_from(topic.count).unwrap_or(0);
        if wanted <= before {
            let text = format!("the topic has {before} partitions; {} is no more", topic.count);
            return refuse(text);
        }
        if self.image.partitions_len + decided + wanted - before > CLUSTER_PARTITIONS_MAX {
            return refuse(format!("a cluster holds at most {CLUSTER_PARTITIONS_MAX} partitions"));
        }
        let placed = self.place_more(topic, wanted - before, replicas)?;
        let records = (before..).zip(placed).map(|(partition, brokers)| {
            let partition = i32::try_from(partition).expect("below the count that was asked for");
            let replicas = brokers.into_iter().map(|id| self.new_replica(id)).collect();
            MetadataRecord::PlacePartition(PlacePartition { topic_id, partition, replicas })
        });
        Ok(records.collect())
    }

    fn place_more(
        &mut self,
        topic: &CreatePartitionsTopic,
        added: usize,
        replicas: usize,
    ) -> Result<Vec<Vec<i32>>, Error> {
        let brokers: Vec<i32> = self.staying().map(|(id, _)| id).collect();
        let Some(assignments) = &topic.assignments else {
            let added = i32::try_from(added).expect("below the count that was asked for");
            let replicas = i16::try_from(replicas).expect("it was an i16");
            let start = usize::try_from(self.chance.below(1 << 16)).expect("16 bits");
            let placed = placement::spread(&self.sites(), added, replicas, start)?;
            return Ok(placement::led_elsewhere(placed, &self.full));
        };
        let refuse = |text: String| Err(Error::new(ErrorCode::InvalidReplicaAssignment, text));
        if assignments.len() != added {
            let given = assignments.len();
            return refuse(format!("{added} partitions are added, but {given} are assigned"));
        }
        if assignments.iter().any(|assignment| assignment.broker_ids.len() != replicas) {
            return refuse(format!("each partition of the topic has {replicas} replicas"));
        }
        let assigned = (0..).zip(assignments).map(|(partition_index, assignment)| {
            let broker_ids = assignment.broker_ids.clone();
            CreatableReplicaAssignment { partition_index, broker_ids }
        });
        placement::manual(&brokers, &assigned.collect::<Vec<_>>())
    }

    /// Returns all nodes that may get replicas, with their racks.
    fn sites(&self) -> Vec<placement::Site<'_>> {
        self.staying().map(|(id, broker)| (id, broker.rack.as_deref())).collect()
    }

    /// Decides that a partition is to be on other nodes, the preferred one first. Nothing is proposed yet, but ids are
    /// taken. `None` if it is there already, or on its way.
    pub(crate) fn move_partition(
        &mut self,
        topic_id: Uuid,
        partition: i32,
        wanted: &[i32],
    ) -> Option<MetadataRecord> {
        let there = self.image.replicas(topic_id, partition)?.to_vec();
        let moved = self.image.reassignments.get(&(topic_id, partition));
        let origin = moved.map_or_else(|| peers(&there), |moved| moved.origin.clone());
        // A client that asks again for a move that is under way must not make it begin again.
        let meant = moved.map_or_else(|| origin.clone(), |moved| moved.target.clone());
        let is_all = moved.is_none_or(|moved| moved.then.is_empty());
        let replicas = self.replicas_on(&there, wanted);
        if is_all && peers(&replicas) == meant {
            return None;
        }
        Some(self.begin_move((topic_id, partition), (&there, replicas), origin, Vec::new()))
    }

    /// Decides to replace a useless replica by a new one on the same node. The group first removes the old replica,
    /// then adds the new one. Returns `None` if the others have no majority without it, or if the partition moves
    /// already.
    pub(crate) fn replace_replica(
        &mut self,
        topic_id: Uuid,
        partition: i32,
        useless: &PlacedReplica,
    ) -> Option<MetadataRecord> {
        let place = (topic_id, partition);
        let there = self.image.replicas(topic_id, partition)?.to_vec();
        let others: Vec<_> = there.iter().filter(|it| *it != useless).cloned().collect();
        let is_one = others.len() < there.len();
        let is_free = !self.image.reassignments.contains_key(&place) && !self.is_changing(topic_id);
        if !is_one || !is_free || 2 * others.len() <= there.len() {
            return None;
        }
        let then = there.iter().map(|it| it.broker_id).collect();
        Some(self.begin_move(place, (&there, others), peers(&there), then))
    }

    /// Returns the replicas of a partition on these nodes. A replica stays if its node still has its directory; every
    /// other one is new.
    fn replicas_on(&mut self, there: &[PlacedReplica], wanted: &[i32]) -> Vec<PlacedReplica> {
        // A replica whose directory is gone is not the same one.
        let known = |id: &i32| {
            let directory_id = self.image.brokers.get(id)?.directory_id;
            let has = |it: &&PlacedReplica| (it.broker_id, it.directory_id) == (*id, directory_id);
            there.iter().find(has).cloned()
        };
        let found: Vec<Option<PlacedReplica>> = wanted.iter().map(known).collect();
        let replicas = found.into_iter().zip(wanted);
        replicas.map(|(known, id)| known.unwrap_or_else(|| self.new_replica(*id))).collect()
    }

    /// Returns the record that begins a move from the present replicas to other ones.
    fn begin_move(
        &mut self,
        (topic_id, partition): (Uuid, i32),
        (there, mut replicas): (&[PlacedReplica], Vec<PlacedReplica>),
        origin: Vec<u64>,
        then: Vec<i32>,
    ) -> MetadataRecord {
        let target = peers(&replicas);
        // Those that stay come first: the preferred one must not be one that goes.
        replicas.extend(there.iter().filter(|it| !target.contains(&it.peer_id)).cloned());
        debug_assert!(
            replicas.iter().enumerate().all(|(at, one)| {
                replicas[..at].iter().all(|before| before.peer_id != one.peer_id)
            }),
            "a partition has a replica once"
        );
        let number = self.take_id();
        let moved = MovePartition { topic_id, partition, replicas, target, origin, number, then };
        MetadataRecord::MovePartition(moved)
    }

    /// Decides to take a move back. `None` if there is none.
    pub(crate) fn cancel_move(&mut self, topic_id: Uuid, partition: i32) -> Option<MetadataRecord> {
        let moved = self.image.reassignments.get(&(topic_id, partition))?;
        let there = self.image.replicas(topic_id, partition)?.to_vec();
        let origin = moved.origin.clone();
        let known = |peer: &u64| there.iter().find(|it| it.peer_id == *peer).cloned();
        let replicas: Vec<_> = origin.iter().filter_map(known).collect();
        if replicas.is_empty() {
            return None;
        }
        Some(self.begin_move((topic_id, partition), (&there, replicas), origin, Vec::new()))
    }

    /// Returns the records that end the move of this number, once the partition's group has the wanted replicas. The
    /// records also begin the next move, if one follows. Returns `None` if no move has this number, or a change of the
    /// topic is proposed.
    pub(crate) fn finish_move(
        &mut self,
        topic_id: Uuid,
        partition: i32,
        number: u64,
    ) -> Option<Vec<MetadataRecord>> {
        let moved = self.image.reassignments.get(&(topic_id, partition))?;
        if self.changing.contains(&topic_id) || moved.number != number {
            return None;
        }
        let is_there = |id: &&i32| self.image.brokers.contains_key(id);
        let then: Vec<i32> = moved.then.iter().filter(is_there).copied().collect();
        let there = self.image.replicas(topic_id, partition)?;
        let placed = |peer: &u64| there.iter().find(|it| it.peer_id == *peer).cloned();
        let replicas = moved.target.iter().map(placed).collect::<Option<Vec<_>>>()?;
        let there = replicas.clone();
        let placement = PlacePartition { topic_id, partition, replicas };
        let mut records = vec![MetadataRecord::PlacePartition(placement)];
        if !then.is_empty() {
            let replicas = self.replicas_on(&there, &then);
            // There is nothing that it could be taken back to.
            let origin = peers(&replicas);
            let place = (topic_id, partition);
            records.push(self.begin_move(place, (&there, replicas), origin, Vec::new()));
        }
        Some(records)
    }

    fn new_replica(&mut self, broker_id: i32) -> PlacedReplica {
        let peer_id = self.take_id();
        let directory_id = self.image.brokers[&broker_id].directory_id;
        PlacedReplica { peer_id, broker_id, directory_id }
    }

    /// Returns the id of a new replica or move, which is higher than any before.
    fn take_id(&mut self) -> u64 {
        self.next_peer_id += 1;
        self.next_peer_id - 1
    }

    /// Returns a topic id that was never used before: it contains the log end offset, which only grows.
    fn new_topic_id(&mut self) -> Uuid {
        loop {
            let end = self.group.end_offset().unsigned_abs();
            let (high, low) = (self.chance.next(), self.chance.next() ^ end.rotate_left(32));
            let id = Uuid::from_u128(u128::from(high) << 64 | u128::from(low));
            // A leading dash would be taken for an option on a command line.
            if !id.to_string().starts_with('-')
                && id.as_u128() > 1
                && self.image.topic(id).is_none()
            {
                return id;
            }
        }
    }

    /// Decides to delete a topic.
    pub(crate) fn delete_topic(&self, id: Uuid) -> Option<MetadataRecord> {
        let is_there = self.image.topic(id).is_some() && !self.changing.contains(&id);
        is_there.then_some(MetadataRecord::DeleteTopic(DeleteTopic { topic_id: id }))
    }

    /// Decides on a block of producer ids for a node of this cluster: its first id, its end, and the record.
    pub(crate) fn allocate_producer_ids(
        &mut self,
        cluster_id: [u8; 16],
        broker_id: i32,
    ) -> (i64, i64, MetadataRecord) {
        let first = self.next_producer_id.max(producer_ids_of(cluster_id).start);
        let end = first + PRODUCER_ID_BLOCK;
        self.next_producer_id = end;
        let record = AllocateProducerIds { broker_id, end };
        (first, end, MetadataRecord::AllocateProducerIds(record))
    }

    /// Proposes records as one batch: all of them are committed, or none.
    pub(crate) fn propose(
        &mut self,
        now: Now,
        records: &[MetadataRecord],
    ) -> Result<u64, ErrorCode> {
        let mut builder = BatchBuilder::new();
        for record in records {
            let value = record.encode();
            let record =
                NewRecord { timestamp: now.wall_ms, value: Some(&value), ..NewRecord::default() };
            builder.push(&record).map_err(|error| error.code())?;
        }
        let bytes = builder.build_mut().map_err(|error| error.code())?;
        let base_offset = self.group.end_offset();
        let payload = stamp(bytes, base_offset, self.group.epoch());
        let starts_segment = self.segment_bytes.is_none_or(|bytes| bytes > METADATA_SEGMENT_BYTES);
        let descriptor = Descriptor::of_batch(&payload, starts_segment)
            .map_err(|_| ErrorCode::UnknownServerError)?;
        let length = u64::from(descriptor.length);
        let index =
            self.group.propose_batch(&descriptor, payload).map_err(|_| ErrorCode::NotController)?;
        self.segment_bytes = match self.segment_bytes {
            Some(bytes) if !starts_segment => Some(bytes + length),
            _ => Some(length),
        };
        for record in records {
            match record {
                MetadataRecord::CreateTopic(topic) => {
                    self.creating.insert(topic.name.clone(), index);
                }
                MetadataRecord::DeleteTopic(DeleteTopic { topic_id })
                | MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, .. })
                | MetadataRecord::MovePartition(MovePartition { topic_id, .. })
                | MetadataRecord::PlacePartition(PlacePartition { topic_id, .. }) => {
                    self.changing.insert(*topic_id);
                }
                MetadataRecord::SetBrokerConfig(SetBrokerConfig { broker_id, .. }) => {
                    self.configuring.insert(*broker_id);
                }
                MetadataRecord::SetAcl(SetAcl { id, .. })
                | MetadataRecord::RemoveAcl(RemoveAcl { id }) => {
                    self.ruling.insert(*id);
                }
                MetadataRecord::SetScramCredential(SetScramCredential { user, .. })
                | MetadataRecord::RemoveScramCredential(RemoveScramCredential { user, .. }) => {
                    self.crediting.insert(user.clone());
                }
                MetadataRecord::RetireDirectory(RetireDirectory { directory_id }) => {
                    self.retiring.insert(*directory_id);
                }
                MetadataRecord::RegisterBroker(RegisterBroker { broker_id, .. }) => {
                    self.registering.insert(*broker_id);
                }
                _ => {}
            }
        }
        Ok(index)
    }

    /// Tells `key` when the entry at `index` is applied.
    pub(crate) fn wait(&mut self, index: u64, key: RequestKey) {
        assert!(index > self.group.applied(), "an applied decision is not awaited");
        self.waited += 1;
        self.waiting.insert((index, self.waited), key);
    }

    /// Returns the storage operation that stores the image at the applied index.
    pub(crate) fn image_op(&mut self) -> OpKind {
        let image = self.image.encode(self.group.applied());
        debug_assert!(Image::decode(&image).is_some(), "an image can be read again");
        self.log.image_bytes = image.len() as u64;
        OpKind::Image { index: self.group.applied(), image }
    }

    /// Proposes to trim the part of the log that the image replaces, once that part is large. Returns true if it
    /// proposed a trim.
    pub(crate) fn trim_if_large(&mut self, bytes_max: u64) -> bool {
        let end = self.end;
        if !self.log.is_large(bytes_max) || end <= self.log.trimming || !self.group.is_serving() {
            return false;
        }
        let entry = Internal::Trim { offset: end }.encode();
        let is_proposed = self.group.propose_internal(&entry).is_ok();
        if is_proposed {
            self.log.trimming = end;
            // Storage may remove all that is there once the entry is applied.
            self.segment_bytes = None;
        }
        is_proposed
    }

    /// Executes a committed Trim. Storage takes the ops of a replica in order, so that the log goes
    /// only after an image that holds all of it.
    fn trim(&mut self, offset: i64) -> Vec<OpKind> {
        self.log.start = offset;
        self.log.trimming = self.log.trimming.max(offset);
        self.log.bytes = 0;
        // This trim cuts a segment, which goes at once, or when the next one begins.
        self.segment_bytes = None;
        vec![self.image_op(), OpKind::Trim { log_start: offset }]
    }

    /// Collects the outputs of the Raft group and applies the committed entries.
    pub(crate) fn turn(&mut self, actions: &mut Vec<Action>) -> Outcome {
        let mut outcome = Outcome::default();
        let turn = self.group.collect();
        (outcome.messages, outcome.reads) = (turn.messages, turn.reads);
        if let Some(beginning) = &turn.begun {
            outcome.is_begun = true;
            outcome.changes.extend(self.begin_anew(beginning));
        }
        self.take_appends(&turn.ops);
        if let Some(first) = turn.cut {
            let lost = self.waiting.split_off(&(first, 0)).into_values();
            outcome.released.extend(lost.map(|key| (key, false)));
        }
        let replica = self.group.id();
        let emit = |kind| Action::Storage(Op { replica, kind });
        actions.extend(turn.ops.into_iter().map(emit));
        let mut trimmed = None;
        let mut begins_segment = false;
        for entry in &turn.committed {
            match &entry.content {
                Content::Batch(batch) => {
                    begins_segment |= batch.starts_segment;
                    if !self.apply(entry.index, batch, &mut outcome) {
                        break;
                    }
                }
                Content::Internal(bytes) => {
                    match internal_of(bytes).map(|it| it.map(Internal::decode)) {
                        Ok(None) => {}
                        Ok(Some(Some(Internal::Trim { offset }))) => trimmed = Some(offset),
                        _ => {
                            self.group.fail("a metadata entry is of an unknown kind".to_owned());
                            break;
                        }
                    }
                }
            }
        }
        // The image holds everything committed so far, so the snapshots come after the last change. The image of a
        // group that has just failed does not.
        if self.group.failure().is_some() {
            return outcome;
        }
        for snapshot in turn.snapshots {
            let claimed = self.group.applied() + u64::from(sabotage::is(Bug::ImageClaimsMore));
            let (image, log_start) = (self.image.encode(claimed), self.log.start);
            outcome.messages.extend(self.group.with_image(snapshot, image, log_start));
        }
        if let Some(offset) = trimmed.filter(|offset| *offset > self.log.start) {
            actions.extend(self.trim(offset).into_iter().map(emit));
        } else if begins_segment && self.log.start > 0 {
            actions.push(emit(OpKind::Trim { log_start: self.log.start }));
        }
        self.group.trim(self.log.start);
        let end = self.group.applied();
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= end) {
            outcome.released.push((first.remove(), true));
        }
        self.note_leadership(&mut outcome);
        self.inspect();
        if !outcome.changes.is_empty() {
            self.image.inspect();
        }
        outcome
    }

    /// Checks the log and the decisions under way, at the end of a turn.
    fn inspect(&self) {
        let applied = self.group.applied();
        assert!(self.end <= self.group.end_offset(), "applied records are in the log");
        assert!(self.log.start <= self.end, "only records that the image has are trimmed");
        assert!(self.log.start <= self.log.trimming, "a trim that is executed was proposed");
        let first = self.unapplied.first_key_value();
        assert!(
            first.is_none_or(|(offset, _)| *offset >= self.end),
            "records are forgotten once they are applied"
        );
        let first = self.waiting.first_key_value();
        assert!(
            first.is_none_or(|(key, _)| key.0 > applied),
            "no request waits for a decision that is applied"
        );
        if self.served.is_none() {
            assert!(self.waiting.is_empty(), "requests wait only for a leader's decisions");
            assert!(
                !self.is_placing() && self.configuring.is_empty() && self.retiring.is_empty(),
                "only a leader has decisions under way"
            );
            assert!(
                self.registering.is_empty() && self.crediting.is_empty() && self.ruling.is_empty(),
                "only a leader registers nodes, and changes users and rules"
            );
            return;
        }
        assert!(self.next_peer_id >= self.image.next_peer_id, "an id of a replica is given once");
        assert!(
            self.next_producer_id >= self.image.next_producer_id,
            "an id of a producer is given once"
        );
    }

    /// Begins this replica's log anew, as its leader's does. Returns the deletions that the replica would otherwise
    /// miss.
    fn begin_anew(&mut self, beginning: &Beginning) -> Vec<Change> {
        let Some(image) = Image::decode(&beginning.image) else {
            self.group.fail("an image came that this version cannot read".to_owned());
            return Vec::new();
        };
        let before = std::mem::replace(&mut self.image, image);
        self.unapplied.clear();
        self.segment_bytes = None;
        self.end = beginning.end_offset;
        self.log = LogSize {
            start: beginning.end_offset,
            trimming: beginning.end_offset,
            image_bytes: beginning.image.len() as u64,
            ..LogSize::default()
        };
        before.topics_missing_in(&self.image).cloned().map(Change::Deleted).collect()
    }

    /// Reads new entries, which this node or the leader appended, to apply them once they are committed.
    fn take_appends(&mut self, ops: &[OpKind]) {
        let appends = ops.iter().flat_map(|op| match op {
            OpKind::Write { appends, .. } => &appends[..],
            _ => &[],
        });
        for append in appends {
            let Content::Batch(batch) = &append.entry.content else { continue };
            // Raft truncated any earlier batches at this offset.
            let _ = self.unapplied.split_off(&batch.base_offset);
            match records_of(append.payload.clone()) {
                Some(batches) => self.unapplied.extend(batches),
                None => {
                    self.group.fail("a metadata batch cannot be read by this version".to_owned());
                }
            }
        }
    }

    /// Applies a committed batch. False if the group failed over it.
    fn apply(&mut self, index: u64, batch: &Descriptor, outcome: &mut Outcome) -> bool {
        assert!(
            batch.base_offset == self.end || self.group.failure().is_some(),
            "committed records are dense, and {} follows {}",
            batch.base_offset,
            self.end
        );
        let Some(records) = self.unapplied.remove(&batch.base_offset) else {
            self.group.fail("a metadata batch has no records here".to_owned());
            return false;
        };
        for record in records {
            self.forget_decision(&record);
            if index > self.image.as_of {
                outcome.changes.extend(self.image.apply(record));
            }
        }
        self.end = batch.end_offset();
        if batch.base_offset >= self.log.recovered_end {
            self.log.bytes += u64::from(batch.length);
        }
        true
    }

    fn forget_decision(&mut self, record: &MetadataRecord) {
        match record {
            MetadataRecord::CreateTopic(topic) => drop(self.creating.remove(&topic.name)),
            MetadataRecord::DeleteTopic(DeleteTopic { topic_id })
            | MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, .. })
            | MetadataRecord::MovePartition(MovePartition { topic_id, .. })
            | MetadataRecord::PlacePartition(PlacePartition { topic_id, .. }) => {
                self.changing.remove(topic_id);
            }
            MetadataRecord::SetBrokerConfig(SetBrokerConfig { broker_id, .. }) => {
                self.configuring.remove(broker_id);
            }
            MetadataRecord::SetAcl(SetAcl { id, .. })
            | MetadataRecord::RemoveAcl(RemoveAcl { id }) => {
                self.ruling.remove(id);
            }
            MetadataRecord::SetScramCredential(SetScramCredential { user, .. })
            | MetadataRecord::RemoveScramCredential(RemoveScramCredential { user, .. }) => {
                self.crediting.remove(user);
            }
            MetadataRecord::RetireDirectory(RetireDirectory { directory_id }) => {
                self.retiring.remove(directory_id);
            }
            MetadataRecord::RegisterBroker(RegisterBroker { broker_id, .. }) => {
                self.registering.remove(broker_id);
            }
            _ => {}
        }
    }

    fn note_leadership(&mut self, outcome: &mut Outcome) {
        let serves = self.group.is_serving().then(|| self.group.term());
        if self.served == serves {
            return;
        }
        // Decisions of a former leader that are not committed are void, and so are the ids that it gave out.
        self.creating.clear();
        self.changing.clear();
        self.configuring.clear();
        self.crediting.clear();
        self.ruling.clear();
        self.retiring.clear();
        self.registering.clear();
        self.next_peer_id = self.image.next_peer_id;
        self.next_producer_id = self.image.next_producer_id;
        if !self.group.is_alone() {
            self.segment_bytes = None;
        }
        let lost = std::mem::take(&mut self.waiting).into_values();
        outcome.released.extend(lost.map(|key| (key, false)));
        outcome.leads = Some(serves.is_some());
        self.served = serves;
    }
}

fn peers(replicas: &[PlacedReplica]) -> Vec<u64> {
    replicas.iter().map(|it| it.peer_id).collect()
}

fn identity() -> Identity {
    Identity { topic: METADATA_TOPIC.to_owned(), topic_id: METADATA_TOPIC_ID, partition: 0 }
}

/// Returns a description of the mistake in a topic's name, if it has one.
pub(crate) fn name_problem(name: &str) -> Option<String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() {
        Some("a topic name is not empty".to_owned())
    } else if matches!(name, "." | "..") {
        Some("a topic is not named '.' or '..'".to_owned())
    } else if name.len() > TOPIC_NAME_BYTES_MAX {
        Some(format!("a topic name has at most {TOPIC_NAME_BYTES_MAX} characters"))
    } else if !name.bytes().all(is_legal) {
        Some(format!(
            "topic name '{name}' has characters other than letters, digits, '.', '_', '-'"
        ))
    } else {
        None
    }
}
