//! The table of questions: for each served API, every question that its handler asks, and the effect of a refusal. Its
//! rows are those of Apache Kafka's `KafkaApis` and `ControllerApis`, in version 4.2, but for the differences in notes.

use duramen_protocol::{ApiKey, ErrorCode};

use super::Kind::{self, Cluster, Group, Topic, TransactionalId};
use super::Operation::{
    self, Alter, AlterConfigs, ClusterAction, Create, Delete, Describe, DescribeConfigs,
    IdempotentWrite, Read, Write,
};
use crate::native::Name;

/// Content of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// May the client perform the operation on this resource?
    Operation(Operation, Kind),
    /// May the client perform the operation on any resource of the kind?
    OnAny(Operation, Kind),
    /// Which operations may the client perform on the resource?
    Each(Kind),
    /// The handler asks nothing.
    Nothing,
}

/// Effect of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The answer carries the error code.
    Code(ErrorCode),
    /// The answer leaves the resource out.
    Omits,
    /// The next row decides.
    Next,
    /// The answer's set lacks the operation, or all operations.
    Lacks,
}

/// Row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// API of the request.
    pub api: ApiKey,
    /// The question.
    pub asked: Asked,
    /// Effect of a refusal.
    pub refusal: Refusal,
    /// Condition of the question, its alternatives, and differences from Apache Kafka with their reasons.
    pub note: &'static str,
}

/// Makes the row of a question whose refusal is the error code of its resource's kind.
const fn ask(api: ApiKey, operation: Operation, kind: Kind, note: &'static str) -> Question {
    let refusal = Refusal::Code(kind.refusal());
    Question { api, asked: Asked::Operation(operation, kind), refusal, note }
}

/// Makes the row of a question whose refusal leaves the answer to the next row.
const fn or(api: ApiKey, operation: Operation, kind: Kind, note: &'static str) -> Question {
    Question { api, asked: Asked::Operation(operation, kind), refusal: Refusal::Next, note }
}

/// Makes the row of a question about each resource that an answer would name.
const fn filter(api: ApiKey, operation: Operation, kind: Kind, note: &'static str) -> Question {
    Question { api, asked: Asked::Operation(operation, kind), refusal: Refusal::Omits, note }
}

/// Makes the row of a set of operations.
const fn set(api: ApiKey, kind: Kind) -> Question {
    Question { api, asked: Asked::Each(kind), refusal: Refusal::Lacks, note: ON_REQUEST }
}

/// Makes the row of the right to see the cluster, without which the set of operations on it is empty.
const fn sight(api: ApiKey) -> Question {
    let note = TO_SEE_SETS;
    Question { api, asked: Asked::Operation(Describe, Cluster), refusal: Refusal::Lacks, note }
}

/// Makes the row of an API whose handler asks nothing.
const fn free(api: ApiKey, note: &'static str) -> Question {
    Question { api, asked: Asked::Nothing, refusal: Refusal::Lacks, note }
}

const ON_REQUEST: &str = "If the client wants the set of its operations.";
const TO_SEE_SETS: &str =
    "If the client wants the set of its operations: without the right the set is empty.";
const NO_TOKENS: &str =
    "No client gets a token yet: the answer is always DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.";
const BEFORE_ALL: &str =
    "Clients show by it who they are. A client that is known already gets ILLEGAL_SASL_STATE.";
const EACH_NAMED: &str = "Each topic by itself.";
const OF_MEMBERS: &str = "All topics of the members' assignments. The refusal covers the whole group, without its members.";
const OF_OPERATORS: &str = "Our own nodes ask each other by other means.";
const OF_GROUPS_TOPICS: &str =
    "Each topic by itself. An answer about all topics of a group leaves the topic out.";
const OF_KIND_CLUSTER: &str = "Settings of brokers, loggers and client metrics.";
const OF_KIND_TOPIC: &str = "Settings of topics.";
const OF_KIND_GROUP: &str = "Settings of groups.";

/// All questions, in the order of the APIs' keys, and for one API in the order in which its handler asks.
pub const QUESTIONS: &[Question] = &[
    ask(ApiKey::Produce, Write, TransactionalId, "If a batch is part of a transaction."),
    ask(ApiKey::Produce, Write, Topic, EACH_NAMED),
    Question {
        api: ApiKey::Fetch,
        asked: Asked::Operation(ClusterAction, Cluster),
        refusal: Refusal::Code(ErrorCode::TopicAuthorizationFailed),
        note: "If the request names a replica id, as a follower does: then in place of the next row.",
    },
    ask(ApiKey::Fetch, Read, Topic, EACH_NAMED),
    ask(
        ApiKey::ListOffsets,
        Describe,
        Topic,
        "Each topic by itself, whatever replica id the request names: no client sees offsets that are not committed.",
    ),
    ask(
        ApiKey::Metadata,
        Describe,
        Topic,
        "Each topic by itself. A refusal by topic id names the id alone. An answer about all topics leaves the topic out.",
    ),
    or(
        ApiKey::Metadata,
        Create,
        Cluster,
        "For a missing topic, if client and node allow its creation.",
    ),
    ask(ApiKey::Metadata, Create, Topic, "The same, for one topic."),
    sight(ApiKey::Metadata),
    set(ApiKey::Metadata, Cluster),
    set(ApiKey::Metadata, Topic),
    ask(ApiKey::OffsetCommit, Read, Group, ""),
    ask(ApiKey::OffsetCommit, Read, Topic, EACH_NAMED),
    ask(ApiKey::OffsetFetch, Describe, Group, "Each group by itself."),
    ask(ApiKey::OffsetFetch, Describe, Topic, OF_GROUPS_TOPICS),
    ask(
        ApiKey::FindCoordinator,
        Describe,
        Group,
        "Keys of groups. The node creates the internal topic for every client that may ask for one key.",
    ),
    ask(
        ApiKey::FindCoordinator,
        Describe,
        TransactionalId,
        "Keys of transactional ids, in the same way.",
    ),
    ask(
        ApiKey::FindCoordinator,
        ClusterAction,
        Cluster,
        "Keys of share partitions, in the same way.",
    ),
    ask(ApiKey::JoinGroup, Read, Group, ""),
    filter(
        ApiKey::JoinGroup,
        Describe,
        Topic,
        "If a member joins a group in which others subscribe by regular expressions: the request may begin a search for their topics. Apache Kafka searches at heartbeats only.",
    ),
    ask(ApiKey::Heartbeat, Read, Group, ""),
    ask(ApiKey::LeaveGroup, Read, Group, ""),
    ask(ApiKey::SyncGroup, Read, Group, ""),
    ask(ApiKey::DescribeGroups, Describe, Group, "Each group by itself."),
    set(ApiKey::DescribeGroups, Group),
    or(ApiKey::ListGroups, Describe, Cluster, "The answer has all groups."),
    filter(ApiKey::ListGroups, Describe, Group, "The answer has these groups."),
    free(ApiKey::SaslHandshake, BEFORE_ALL),
    free(ApiKey::ApiVersions, "Clients send it before anything else."),
    or(ApiKey::CreateTopics, Create, Cluster, ""),
    ask(ApiKey::CreateTopics, Create, Topic, EACH_NAMED),
    ask(
        ApiKey::CreateTopics,
        DescribeConfigs,
        Topic,
        "For the settings in the answer. A refusal is the topic_config_error_code: the topic is created, and the answer has neither settings nor counts.",
    ),
    or(ApiKey::DeleteTopics, Delete, Cluster, "Stands for both of the next rows."),
    ask(
        ApiKey::DeleteTopics,
        Describe,
        Topic,
        "Each topic by itself. A refusal by topic id names the id alone.",
    ),
    ask(ApiKey::DeleteTopics, Delete, Topic, EACH_NAMED),
    ask(ApiKey::DeleteRecords, Delete, Topic, EACH_NAMED),
    ask(
        ApiKey::InitProducerId,
        Write,
        TransactionalId,
        "If the request names a transactional id: then in place of the next rows.",
    ),
    or(ApiKey::InitProducerId, IdempotentWrite, Cluster, ""),
    Question {
        api: ApiKey::InitProducerId,
        asked: Asked::OnAny(Write, Topic),
        refusal: Refusal::Code(ErrorCode::ClusterAuthorizationFailed),
        note: "Any topic will do (KIP-679).",
    },
    or(ApiKey::OffsetForLeaderEpoch, ClusterAction, Cluster, ""),
    ask(ApiKey::OffsetForLeaderEpoch, Describe, Topic, EACH_NAMED),
    ask(
        ApiKey::AddPartitionsToTxn,
        Write,
        TransactionalId,
        "Versions up to 3, which clients send.",
    ),
    ask(ApiKey::AddPartitionsToTxn, Write, Topic, "Versions up to 3, each topic by itself."),
    ask(
        ApiKey::AddPartitionsToTxn,
        ClusterAction,
        Cluster,
        "Versions from 4 on, which nodes send.",
    ),
    ask(ApiKey::AddOffsetsToTxn, Write, TransactionalId, ""),
    ask(ApiKey::AddOffsetsToTxn, Read, Group, ""),
    ask(ApiKey::EndTxn, Write, TransactionalId, ""),
    or(ApiKey::WriteTxnMarkers, Alter, Cluster, ""),
    ask(ApiKey::WriteTxnMarkers, ClusterAction, Cluster, ""),
    ask(ApiKey::TxnOffsetCommit, Write, TransactionalId, ""),
    ask(ApiKey::TxnOffsetCommit, Read, Group, ""),
    ask(ApiKey::TxnOffsetCommit, Read, Topic, EACH_NAMED),
    ask(ApiKey::DescribeAcls, Describe, Cluster, ""),
    ask(ApiKey::CreateAcls, Alter, Cluster, ""),
    ask(ApiKey::DeleteAcls, Alter, Cluster, ""),
    ask(ApiKey::DescribeConfigs, DescribeConfigs, Cluster, OF_KIND_CLUSTER),
    ask(ApiKey::DescribeConfigs, DescribeConfigs, Topic, OF_KIND_TOPIC),
    ask(ApiKey::DescribeConfigs, DescribeConfigs, Group, OF_KIND_GROUP),
    ask(ApiKey::AlterConfigs, AlterConfigs, Cluster, OF_KIND_CLUSTER),
    ask(ApiKey::AlterConfigs, AlterConfigs, Topic, OF_KIND_TOPIC),
    ask(ApiKey::AlterConfigs, AlterConfigs, Group, OF_KIND_GROUP),
    ask(ApiKey::AlterReplicaLogDirs, Alter, Cluster, ""),
    ask(ApiKey::DescribeLogDirs, Describe, Cluster, ""),
    free(ApiKey::SaslAuthenticate, BEFORE_ALL),
    ask(ApiKey::CreatePartitions, Alter, Topic, EACH_NAMED),
    free(ApiKey::CreateDelegationToken, NO_TOKENS),
    free(ApiKey::RenewDelegationToken, NO_TOKENS),
    free(ApiKey::ExpireDelegationToken, NO_TOKENS),
    free(ApiKey::DescribeDelegationToken, NO_TOKENS),
    ask(ApiKey::DeleteGroups, Delete, Group, "Each group by itself."),
    ask(ApiKey::ElectLeaders, Alter, Cluster, ""),
    ask(ApiKey::IncrementalAlterConfigs, AlterConfigs, Cluster, OF_KIND_CLUSTER),
    ask(ApiKey::IncrementalAlterConfigs, AlterConfigs, Topic, OF_KIND_TOPIC),
    ask(ApiKey::IncrementalAlterConfigs, AlterConfigs, Group, OF_KIND_GROUP),
    ask(ApiKey::AlterPartitionReassignments, Alter, Cluster, ""),
    ask(ApiKey::ListPartitionReassignments, Describe, Cluster, ""),
    ask(ApiKey::OffsetDelete, Delete, Group, ""),
    ask(ApiKey::OffsetDelete, Read, Topic, EACH_NAMED),
    ask(ApiKey::DescribeClientQuotas, DescribeConfigs, Cluster, ""),
    ask(ApiKey::AlterClientQuotas, AlterConfigs, Cluster, ""),
    ask(ApiKey::DescribeUserScramCredentials, Describe, Cluster, ""),
    ask(ApiKey::AlterUserScramCredentials, Alter, Cluster, ""),
    ask(ApiKey::DescribeQuorum, Describe, Cluster, ""),
    ask(ApiKey::UpdateFeatures, Alter, Cluster, ""),
    sight(ApiKey::DescribeCluster),
    set(ApiKey::DescribeCluster, Cluster),
    ask(ApiKey::DescribeProducers, Read, Topic, EACH_NAMED),
    ask(ApiKey::UnregisterBroker, Alter, Cluster, ""),
    ask(
        ApiKey::DescribeTransactions,
        Describe,
        TransactionalId,
        "Each transactional id by itself.",
    ),
    filter(ApiKey::DescribeTransactions, Describe, Topic, "Topics of the transaction."),
    filter(ApiKey::ListTransactions, Describe, TransactionalId, ""),
    ask(ApiKey::ConsumerGroupHeartbeat, Read, Group, ""),
    ask(
        ApiKey::ConsumerGroupHeartbeat,
        Describe,
        Topic,
        "All topics that the member names. A regular expression stands for those topics alone that the member whose heartbeat begins the search may describe.",
    ),
    ask(ApiKey::ConsumerGroupDescribe, Describe, Group, "Each group by itself."),
    ask(ApiKey::ConsumerGroupDescribe, Describe, Topic, OF_MEMBERS),
    set(ApiKey::ConsumerGroupDescribe, Group),
    ask(ApiKey::ListConfigResources, DescribeConfigs, Cluster, ""),
    ask(
        ApiKey::DescribeTopicPartitions,
        Describe,
        Topic,
        "Each topic by itself. An answer about all topics leaves the topic out.",
    ),
    set(ApiKey::DescribeTopicPartitions, Topic),
    ask(ApiKey::ShareGroupHeartbeat, Read, Group, ""),
    ask(ApiKey::ShareGroupHeartbeat, Describe, Topic, "All topics that the member names."),
    ask(ApiKey::ShareGroupDescribe, Describe, Group, "Each group by itself."),
    ask(ApiKey::ShareGroupDescribe, Describe, Topic, OF_MEMBERS),
    set(ApiKey::ShareGroupDescribe, Group),
    ask(ApiKey::ShareFetch, Read, Group, ""),
    ask(ApiKey::ShareFetch, Read, Topic, EACH_NAMED),
    ask(ApiKey::ShareAcknowledge, Read, Group, ""),
    ask(ApiKey::ShareAcknowledge, Read, Topic, EACH_NAMED),
    ask(ApiKey::InitializeShareGroupState, ClusterAction, Cluster, OF_OPERATORS),
    ask(ApiKey::ReadShareGroupState, ClusterAction, Cluster, OF_OPERATORS),
    ask(ApiKey::WriteShareGroupState, ClusterAction, Cluster, OF_OPERATORS),
    ask(ApiKey::DeleteShareGroupState, ClusterAction, Cluster, OF_OPERATORS),
    ask(ApiKey::ReadShareGroupStateSummary, ClusterAction, Cluster, OF_OPERATORS),
    ask(ApiKey::DescribeShareGroupOffsets, Describe, Group, "Each group by itself."),
    ask(ApiKey::DescribeShareGroupOffsets, Describe, Topic, OF_GROUPS_TOPICS),
    ask(ApiKey::AlterShareGroupOffsets, Read, Group, ""),
    ask(
        ApiKey::AlterShareGroupOffsets,
        Read,
        Topic,
        "Each topic by itself. A refusal names no topic id: Apache Kafka's does, and so tells that the topic exists.",
    ),
    ask(ApiKey::DeleteShareGroupOffsets, Delete, Group, ""),
    ask(ApiKey::DeleteShareGroupOffsets, Read, Topic, EACH_NAMED),
    ask(
        ApiKey::DescribeReplicas,
        Describe,
        Cluster,
        "An API of Duramen: a node's replicas, their digests, and the check of their queue indexes.",
    ),
    ask(ApiKey::DescribeFast, Write, Topic, "An API of Duramen. Each topic by itself."),
    ask(
        ApiKey::AppendFast,
        Write,
        Topic,
        "An API of Duramen. Each topic by itself. With `wait=0` the name of the error is the answer's message, and the code is 0.",
    ),
    ask(
        ApiKey::BeginBackup,
        Alter,
        Cluster,
        "An API of Duramen. The files hold all records, and the keys of passwords: reading them takes rights on the machine, too.",
    ),
];

/// Row of the native API's table: a question of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeQuestion {
    /// Operation of the native API.
    pub op: Name,
    /// The right that the client needs.
    pub operation: Operation,
    /// Kind of the resource that it is about.
    pub kind: Kind,
}

/// Makes the row of a question about a topic.
const fn of_topic(op: Name, operation: Operation) -> NativeQuestion {
    NativeQuestion { op, operation, kind: Topic }
}

/// Questions of the native API. A refusal is the problem `not-authorized`.
pub const NATIVE_QUESTIONS: &[NativeQuestion] = &[
    of_topic(Name::Append, Write),
    of_topic(Name::Tail, Describe),
    of_topic(Name::Truncate, Delete),
    of_topic(Name::Fence, Alter),
    of_topic(Name::Delete, Delete),
    of_topic(Name::Replace, Write),
    of_topic(Name::Replace, Delete),
    of_topic(Name::Rewrite, Write),
    of_topic(Name::Rewrite, Delete),
    of_topic(Name::DeleteQueue, Delete),
    of_topic(Name::TrimQueue, Delete),
    of_topic(Name::FenceQueue, Alter),
    of_topic(Name::Retrieve, Read),
    of_topic(Name::GetQueue, Describe),
    of_topic(Name::ListQueues, Describe),
    of_topic(Name::Lease, Read),
    NativeQuestion { op: Name::Lease, operation: Read, kind: Group },
    of_topic(Name::Settle, Read),
    NativeQuestion { op: Name::Settle, operation: Read, kind: Group },
];
