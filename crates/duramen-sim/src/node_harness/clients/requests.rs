//! Requests of clients, as Kafka's messages. One kind of request comes in several versions, by name or by id.

use bytes::Bytes;
use duramen_protocol::Request;
use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignableTopic,
};
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::delete_topics::DeleteTopicState;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic, ForgottenTopic};
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use duramen_protocol::messages::join_group::JoinGroupRequestProtocol;
use duramen_protocol::messages::leave_group::MemberIdentity;
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use duramen_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, CreateTopicsRequest, DeleteRecordsRequest,
    DeleteTopicsRequest, FetchRequest, FindCoordinatorRequest, HeartbeatRequest,
    IncrementalAlterConfigsRequest, InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest,
    ListOffsetsRequest, MetadataRequest, OffsetCommitRequest, OffsetFetchRequest, ProduceRequest,
    SyncGroupRequest,
};
use duramen_protocol::wire::Uuid;

use super::super::oracle::Place;
use crate::prng::Prng;

/// Versions of Produce and Fetch that name topics; zstd needs at least these.
pub(super) const PRODUCE_BY_NAME: [i16; 4] = [7, 8, 9, 12];
pub(super) const FETCH_BY_NAME: [i16; 3] = [10, 11, 12];
/// The last of them that only a leader answers.
pub(super) const FETCH_OF_LEADER: i16 = 10;
/// And those that give their ids.
pub(super) const PRODUCE_BY_ID: [i16; 1] = [13];
pub(super) const FETCH_BY_ID: [i16; 4] = [13, 14, 16, 18];

const TIMEOUT_MS: i32 = 10_000;
/// Offsets are committed for this topic: it is always there, once groups are.
pub(super) const COMMITTED: &str = "__consumer_offsets";
/// Settings that set no limit of time, for topics in clusters whose clocks leap.
pub(super) const TIMELESS: [(&str, &str); 2] =
    [("retention.ms", "-1"), ("message.timestamp.after.max.ms", "9223372036854775807")];

/// Key types of `FindCoordinator`.
pub(super) const GROUP_KEY: i8 = 0;
pub(super) const TRANSACTION_KEY: i8 = 1;
pub(super) const SHARE_KEY: i8 = 2;
/// Type of a group's settings.
pub(super) const OF_GROUP: i8 = 32;

/// Type of the groups whose members speak the classic protocol, and the name of an assignment strategy.
const CONSUMER: &str = "consumer";
const CHANCE: &str = "chance";

/// A question of a client, with its request and the version of that.
pub(super) type Asking<Question> = (Question, Request, i16);

/// A partition as a request names it: by name, or by id if there is one.
pub(super) type Target = (Place, Option<Uuid>);

pub(super) fn produce((place, id): &Target, acks: i16, bytes: Bytes) -> ProduceRequest {
    let partition_data = [PartitionProduceData { index: place.1, records: Some(bytes) }].into();
    let (name, topic_id) = (place.0.as_str().into(), id.unwrap_or(Uuid::ZERO));
    let topic_data = [TopicProduceData { name, topic_id, partition_data }].into();
    ProduceRequest { acks, timeout_ms: TIMEOUT_MS, topic_data, ..ProduceRequest::default() }
}

/// Appends a batch to a partition in a transaction of this id.
pub(super) fn produce_in(id: &str, topic: &str, partition: i32, batch: Bytes) -> Request {
    let target = ((topic.to_owned(), partition), None);
    let transactional_id = Some(id.to_owned());
    ProduceRequest { transactional_id, ..produce(&target, -1, batch) }.into()
}

/// Asks for a producer with a transactional id.
pub(super) fn init(id: &str, work: &mut Prng) -> Request {
    InitProducerIdRequest {
        transactional_id: Some(id.to_owned()),
        transaction_timeout_ms: *work.pick(&[500, 2_000, 8_000]),
        ..InitProducerIdRequest::default()
    }
    .into()
}

/// Asks for coordinators of keys of one type.
pub(super) fn find(key_type: i8, keys: &[&str]) -> Request {
    let coordinator_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() }.into()
}

/// Longest wait of a fetch, and the bytes that it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) wait_ms: i32,
    pub(super) bytes: i32,
}

pub(super) fn fetch(wanted: &[(Target, i64)], patience: Patience) -> FetchRequest {
    let topic = |((place, id), fetch_offset): &(Target, i64)| FetchTopic {
        topic: place.0.clone(),
        topic_id: id.unwrap_or(Uuid::ZERO),
        partitions: vec![FetchPartition {
            partition: place.1,
            fetch_offset: *fetch_offset,
            partition_max_bytes: patience.bytes,
            ..FetchPartition::default()
        }],
    };
    FetchRequest {
        max_wait_ms: patience.wait_ms,
        min_bytes: 1,
        topics: wanted.iter().map(topic).collect(),
        ..FetchRequest::default()
    }
}

pub(super) fn forgotten((place, id): &Target) -> ForgottenTopic {
    let (topic, topic_id) = (place.0.clone(), id.unwrap_or(Uuid::ZERO));
    ForgottenTopic { topic, topic_id, partitions: vec![place.1] }
}

/// Asks for the log start offset.
pub(super) fn start(place: &Place) -> Request {
    list_offsets(place, -2)
}

fn list_offsets(place: &Place, timestamp: i64) -> Request {
    let partition = ListOffsetsPartition {
        partition_index: place.1,
        timestamp,
        ..ListOffsetsPartition::default()
    };
    let topic = ListOffsetsTopic { name: place.0.clone(), partitions: vec![partition] };
    let topics = vec![topic];
    ListOffsetsRequest { topics, replica_id: -1, ..ListOffsetsRequest::default() }.into()
}

/// Asks for the log end offset.
pub(super) fn end(place: &Place) -> Request {
    list_offsets(place, -1)
}

/// Asks for topics' ids and leaders.
pub(super) fn metadata(names: &[&str]) -> Request {
    let topic = |name: &&str| MetadataRequestTopic {
        name: Some((*name).to_owned()),
        ..MetadataRequestTopic::default()
    };
    let topics = Some(names.iter().map(topic).collect());
    MetadataRequest { topics, allow_auto_topic_creation: false, ..MetadataRequest::default() }
        .into()
}

/// Asks for all topics, and the nodes that have them.
pub(super) fn metadata_of_all() -> Request {
    MetadataRequest { topics: None, allow_auto_topic_creation: false, ..MetadataRequest::default() }
        .into()
}

pub(super) fn create(
    name: &str,
    num_partitions: i32,
    replication_factor: i16,
    configs: &[(&str, &str)],
) -> Request {
    let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
        name: (*name).to_owned(),
        value: Some((*value).to_owned()),
    };
    let topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions,
        replication_factor,
        configs: configs.iter().map(config).collect(),
        ..CreatableTopic::default()
    };
    let topics = vec![topic];
    CreateTopicsRequest { topics, timeout_ms: TIMEOUT_MS, validate_only: false }.into()
}

/// Deletes a topic by name, or by id if there is one; returns the version that can.
pub(super) fn delete(name: &str, id: Option<Uuid>) -> (Request, i16) {
    let timeout_ms = TIMEOUT_MS;
    let topics: Vec<_> =
        id.map(|topic_id| DeleteTopicState { name: None, topic_id }).into_iter().collect();
    let (topic_names, version) =
        if id.is_some() { (Vec::new(), 6) } else { (vec![name.to_owned()], 5) };
    (DeleteTopicsRequest { topics, topic_names, timeout_ms }.into(), version)
}

/// Moves a partition to these nodes, or, with none, lets it stay where it was.
pub(super) fn move_to(place: &Place, brokers: Option<Vec<i32>>) -> Request {
    let partition = ReassignablePartition { partition_index: place.1, replicas: brokers };
    let topic = ReassignableTopic { name: place.0.clone(), partitions: vec![partition] };
    AlterPartitionReassignmentsRequest {
        timeout_ms: TIMEOUT_MS,
        allow_replication_factor_change: true,
        topics: vec![topic],
    }
    .into()
}

pub(super) fn trim(place: &Place, offset: i64) -> Request {
    let partitions = vec![DeleteRecordsPartition { partition_index: place.1, offset }];
    let topics = vec![DeleteRecordsTopic { name: place.0.clone(), partitions }];
    DeleteRecordsRequest { topics, timeout_ms: TIMEOUT_MS }.into()
}

/// Commits an offset for each of these partitions.
pub(super) fn commit(
    group: &str,
    topic: &str,
    offset: i64,
    partitions: &[i32],
    metadata: Option<&str>,
) -> OffsetCommitRequest {
    let partition = |partition_index: &i32| OffsetCommitRequestPartition {
        partition_index: *partition_index,
        committed_offset: offset,
        committed_metadata: metadata.map(str::to_owned),
        ..OffsetCommitRequestPartition::default()
    };
    let topic = OffsetCommitRequestTopic {
        name: topic.to_owned(),
        partitions: partitions.iter().map(partition).collect(),
        ..OffsetCommitRequestTopic::default()
    };
    OffsetCommitRequest {
        group_id: group.to_owned(),
        topics: vec![topic],
        ..OffsetCommitRequest::default()
    }
}

/// Asks for the offsets that groups committed for the first so many partitions of a topic.
pub(super) fn committed(groups: &[&str], topic: &str, partitions: i32) -> OffsetFetchRequest {
    let topics = vec![OffsetFetchRequestTopics {
        name: topic.to_owned(),
        partition_indexes: (0..partitions).collect(),
        ..OffsetFetchRequestTopics::default()
    }];
    let asked = |group: &&str| OffsetFetchRequestGroup {
        group_id: (*group).to_owned(),
        topics: Some(topics.clone()),
        ..OffsetFetchRequestGroup::default()
    };
    let groups = groups.iter().map(asked).collect();
    OffsetFetchRequest { groups, ..OffsetFetchRequest::default() }
}

/// Sets settings of a topic or a group; those without a value are given back.
pub(super) fn alter<'a>(
    (resource_type, name): (i8, &str),
    settings: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Request {
    let config = |(name, value): (&str, Option<&str>)| AlterableConfig {
        name: name.to_owned(),
        config_operation: i8::from(value.is_none()),
        value: value.map(str::to_owned),
    };
    let (resource_name, configs) = (name.to_owned(), settings.map(config).collect());
    let resources = vec![AlterConfigsResource { resource_type, resource_name, configs }];
    IncrementalAlterConfigsRequest { resources, validate_only: false }.into()
}

/// A member of a group of the classic protocol, as it names itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classic<'a> {
    pub(super) group: &'a str,
    pub(super) id: &'a str,
    pub(super) generation: i32,
    /// Its static name.
    pub(super) instance: Option<&'static str>,
}

impl Classic<'_> {
    /// Joins the group. The limits are those of the session and of a rebalance, in milliseconds.
    pub(super) fn join(self, (session, rebalance): (i32, i32), metadata: Bytes) -> Request {
        JoinGroupRequest {
            group_id: self.group.to_owned(),
            session_timeout_ms: session,
            rebalance_timeout_ms: rebalance,
            member_id: self.id.to_owned(),
            group_instance_id: self.instance.map(str::to_owned),
            protocol_type: CONSUMER.to_owned(),
            protocols: vec![JoinGroupRequestProtocol { name: CHANCE.to_owned(), metadata }],
            ..JoinGroupRequest::default()
        }
        .into()
    }

    pub(super) fn sync(self, assignments: Vec<SyncGroupRequestAssignment>) -> Request {
        SyncGroupRequest {
            group_id: self.group.to_owned(),
            generation_id: self.generation,
            member_id: self.id.to_owned(),
            group_instance_id: self.instance.map(str::to_owned),
            protocol_type: Some(CONSUMER.to_owned()),
            protocol_name: Some(CHANCE.to_owned()),
            assignments,
        }
        .into()
    }

    pub(super) fn heartbeat(self) -> Request {
        HeartbeatRequest {
            group_id: self.group.to_owned(),
            generation_id: self.generation,
            member_id: self.id.to_owned(),
            group_instance_id: self.instance.map(str::to_owned),
        }
        .into()
    }

    /// Leaves the group. Before version 3 a request names one member, by its id alone.
    pub(super) fn leave(self, version: i16) -> Request {
        let (group_id, member_id) = (self.group.to_owned(), self.id.to_owned());
        if version < 3 {
            return LeaveGroupRequest { group_id, member_id, ..Default::default() }.into();
        }
        let group_instance_id = self.instance.map(str::to_owned);
        let members = vec![MemberIdentity { member_id, group_instance_id, ..Default::default() }];
        LeaveGroupRequest { group_id, members, ..Default::default() }.into()
    }
}
