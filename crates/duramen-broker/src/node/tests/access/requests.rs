//! One request for each row of the table of questions.

use duramen_protocol::messages::alter_user_scram_credentials::ScramCredentialDeletion;
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic};
use duramen_protocol::messages::describe_fast::DescribeFastTopic;
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AlterClientQuotasRequest,
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest,
    AlterShareGroupOffsetsRequest, AlterUserScramCredentialsRequest, ApiVersionsRequest,
    AppendFastRequest, BeginBackupRequest, ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest, CreateAclsRequest, CreateDelegationTokenRequest,
    CreatePartitionsRequest, CreateTopicsRequest, DeleteAclsRequest, DeleteGroupsRequest,
    DeleteRecordsRequest, DeleteShareGroupOffsetsRequest, DeleteShareGroupStateRequest,
    DeleteTopicsRequest, DescribeAclsRequest, DescribeClientQuotasRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeDelegationTokenRequest, DescribeFastRequest,
    DescribeGroupsRequest, DescribeLogDirsRequest, DescribeProducersRequest, DescribeQuorumRequest,
    DescribeReplicasRequest, DescribeShareGroupOffsetsRequest, DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest, DescribeUserScramCredentialsRequest, ElectLeadersRequest,
    EndTxnRequest, ExpireDelegationTokenRequest, FindCoordinatorRequest, HeartbeatRequest,
    IncrementalAlterConfigsRequest, InitProducerIdRequest, InitializeShareGroupStateRequest,
    JoinGroupRequest, LeaveGroupRequest, ListConfigResourcesRequest, ListGroupsRequest,
    ListOffsetsRequest, ListPartitionReassignmentsRequest, ListTransactionsRequest,
    MetadataRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest,
    OffsetForLeaderEpochRequest, ReadShareGroupStateRequest, ReadShareGroupStateSummaryRequest,
    RenewDelegationTokenRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
    ShareAcknowledgeRequest, ShareFetchRequest, ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest, SyncGroupRequest, TxnOffsetCommitRequest, UnregisterBrokerRequest,
    UpdateFeaturesRequest, WriteShareGroupStateRequest, WriteTxnMarkersRequest,
    delete_share_group_state,
};
use duramen_protocol::messages::{
    add_partitions_to_txn, alter_client_quotas, alter_configs, alter_partition_reassignments,
    alter_replica_log_dirs, alter_share_group_offsets, create_acls, create_partitions, delete_acls,
    delete_records, delete_share_group_offsets, delete_topics, describe_configs,
    describe_producers, describe_share_group_offsets, describe_topic_partitions, elect_leaders,
    incremental_alter_configs, initialize_share_group_state, list_offsets, metadata, offset_commit,
    offset_delete, offset_fetch, offset_for_leader_epoch, read_share_group_state,
    read_share_group_state_summary, share_acknowledge, share_fetch, txn_offset_commit,
    write_share_group_state, write_txn_markers,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ApiKey, Request};

use super::super::harness::{batch, fetch_request, new_topic, produce_request};
use crate::access::Kind;
use crate::configs::resource_kind::{BROKER, GROUP, TOPIC};

/// Names that a request mentions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    pub topic: &'a str,
    pub topic_id: Uuid,
    pub group: &'a str,
    pub id: &'a str,
}

/// Returns the request of an API, with its version, that asks its question about a resource of the kind.
pub(super) fn request(api: ApiKey, kind: Option<Kind>, names: Names<'_>) -> (Request, i16) {
    let found = of_records(api, kind, names)
        .or_else(|| of_fast_appends(api, names))
        .or_else(|| of_topics(api, names))
        .or_else(|| of_members(api, names))
        .or_else(|| of_groups(api, names))
        .or_else(|| of_transactions(api, kind, names))
        .or_else(|| of_settings(api, kind, names))
        .or_else(|| of_the_cluster(api, names))
        .or_else(|| of_share_groups(api, names))
        .or_else(|| of_shared_states(api, names));
    found.unwrap_or_else(|| panic!("no request of {api} is tried"))
}

fn of_records(api: ApiKey, kind: Option<Kind>, names: Names<'_>) -> Option<(Request, i16)> {
    let topic = names.topic;
    Some(match api {
        ApiKey::Produce if kind == Some(Kind::TransactionalId) => {
            let records = super::transactional();
            let mut request = produce_request(topic, records, -1);
            request.transactional_id = Some(names.id.to_owned());
            (request.into(), 12)
        }
        ApiKey::Produce => (produce_request(topic, batch(&["a"]), -1).into(), 12),
        ApiKey::Fetch => {
            let mut request = fetch_request(topic, 0);
            request.replica_id = if kind == Some(Kind::Cluster) { 1 } else { -1 };
            (request.into(), 12)
        }
        ApiKey::ListOffsets => {
            let partitions = vec![list_offsets::ListOffsetsPartition::default()];
            let topics =
                vec![list_offsets::ListOffsetsTopic { name: topic.to_owned(), partitions }];
            (ListOffsetsRequest { topics, ..Default::default() }.into(), 9)
        }
        ApiKey::DeleteRecords => {
            let partitions = vec![delete_records::DeleteRecordsPartition::default()];
            let topics =
                vec![delete_records::DeleteRecordsTopic { name: topic.to_owned(), partitions }];
            (DeleteRecordsRequest { topics, ..Default::default() }.into(), 2)
        }
        ApiKey::OffsetForLeaderEpoch => {
            let partitions = vec![offset_for_leader_epoch::OffsetForLeaderPartition::default()];
            let topic = topic.to_owned();
            let topics = vec![offset_for_leader_epoch::OffsetForLeaderTopic { topic, partitions }];
            (OffsetForLeaderEpochRequest { topics, ..Default::default() }.into(), 4)
        }
        ApiKey::DescribeProducers => {
            let (name, partition_indexes) = (topic.to_owned(), vec![0]);
            let topics = vec![describe_producers::TopicRequest { name, partition_indexes }];
            (DescribeProducersRequest { topics }.into(), 0)
        }
        _ => return None,
    })
}

fn of_fast_appends(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    Some(match api {
        ApiKey::DescribeFast => {
            let topics = vec![DescribeFastTopic { topic_id: names.topic_id, partitions: vec![0] }];
            (DescribeFastRequest { open: false, topics }.into(), 0)
        }
        ApiKey::AppendFast => {
            let partition = AppendFastPartition {
                producer_id: 7,
                producer_epoch: 0,
                first_sequence: 0,
                last_sequence: 0,
                ..Default::default()
            };
            let topics =
                [AppendFastTopic { topic_id: names.topic_id, partitions: [partition].into() }]
                    .into();
            (AppendFastRequest { wait: 1, timeout_ms: 1_000, topics }.into(), 0)
        }
        _ => return None,
    })
}

fn of_topics(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    let name = names.topic.to_owned();
    Some(match api {
        ApiKey::Metadata => {
            let topic = metadata::MetadataRequestTopic { name: Some(name), ..Default::default() };
            let request = MetadataRequest {
                topics: Some(vec![topic]),
                allow_auto_topic_creation: true,
                include_cluster_authorized_operations: true,
                include_topic_authorized_operations: true,
            };
            (request.into(), 10)
        }
        ApiKey::DescribeTopicPartitions => {
            let topics = vec![describe_topic_partitions::TopicRequest { name }];
            (DescribeTopicPartitionsRequest { topics, ..Default::default() }.into(), 0)
        }
        ApiKey::CreateTopics => {
            let topics = vec![new_topic(names.topic, 1, &[])];
            (CreateTopicsRequest { topics, ..Default::default() }.into(), 7)
        }
        ApiKey::DeleteTopics => {
            let topics =
                vec![delete_topics::DeleteTopicState { name: Some(name), ..Default::default() }];
            (DeleteTopicsRequest { topics, ..Default::default() }.into(), 6)
        }
        ApiKey::CreatePartitions => {
            let topic =
                create_partitions::CreatePartitionsTopic { name, count: 2, assignments: None };
            (CreatePartitionsRequest { topics: vec![topic], ..Default::default() }.into(), 3)
        }
        ApiKey::ElectLeaders => {
            let topics = vec![elect_leaders::TopicPartitions { topic: name, partitions: vec![0] }];
            let request =
                ElectLeadersRequest { topic_partitions: Some(topics), ..Default::default() };
            (request.into(), 2)
        }
        ApiKey::AlterPartitionReassignments => {
            let partitions = vec![alter_partition_reassignments::ReassignablePartition::default()];
            let topics =
                vec![alter_partition_reassignments::ReassignableTopic { name, partitions }];
            (AlterPartitionReassignmentsRequest { topics, ..Default::default() }.into(), 1)
        }
        ApiKey::AlterReplicaLogDirs => {
            let partitions = vec![0];
            let topics = vec![alter_replica_log_dirs::AlterReplicaLogDirTopic { name, partitions }];
            let path = "/data".to_owned();
            let dirs = vec![alter_replica_log_dirs::AlterReplicaLogDir { path, topics }];
            (AlterReplicaLogDirsRequest { dirs }.into(), 2)
        }
        _ => return None,
    })
}

fn of_members(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    let group_id = names.group.to_owned();
    let subscribed = Some(vec![names.topic.to_owned()]);
    Some(match api {
        ApiKey::JoinGroup => (JoinGroupRequest { group_id, ..Default::default() }.into(), 9),
        ApiKey::Heartbeat => (HeartbeatRequest { group_id, ..Default::default() }.into(), 4),
        ApiKey::LeaveGroup => (LeaveGroupRequest { group_id, ..Default::default() }.into(), 5),
        ApiKey::SyncGroup => {
            let (kind, name) = (Some("consumer".to_owned()), Some("range".to_owned()));
            let request = SyncGroupRequest {
                group_id,
                protocol_type: kind,
                protocol_name: name,
                ..Default::default()
            };
            (request.into(), 5)
        }
        ApiKey::ConsumerGroupHeartbeat => {
            let request = ConsumerGroupHeartbeatRequest {
                group_id,
                member_id: "m".to_owned(),
                rebalance_timeout_ms: 60_000,
                subscribed_topic_names: subscribed,
                topic_partitions: Some(Vec::new()),
                ..Default::default()
            };
            (request.into(), 1)
        }
        ApiKey::ShareGroupHeartbeat => {
            let request = ShareGroupHeartbeatRequest {
                group_id,
                member_id: "m".to_owned(),
                subscribed_topic_names: subscribed,
                ..Default::default()
            };
            (request.into(), 1)
        }
        _ => return None,
    })
}

fn of_groups(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    let (group, name) = (names.group.to_owned(), names.topic.to_owned());
    let (groups, include_authorized_operations) = (vec![group.clone()], true);
    Some(match api {
        ApiKey::OffsetCommit => {
            let partitions = vec![offset_commit::OffsetCommitRequestPartition::default()];
            let topic =
                offset_commit::OffsetCommitRequestTopic { name, partitions, ..Default::default() };
            let (group_id, topics) = (group, vec![topic]);
            (OffsetCommitRequest { group_id, topics, ..Default::default() }.into(), 9)
        }
        ApiKey::OffsetFetch => {
            let topic = offset_fetch::OffsetFetchRequestTopics {
                name,
                partition_indexes: vec![0],
                ..Default::default()
            };
            let (group_id, topics) = (group, Some(vec![topic]));
            let group =
                offset_fetch::OffsetFetchRequestGroup { group_id, topics, ..Default::default() };
            (OffsetFetchRequest { groups: vec![group], ..Default::default() }.into(), 9)
        }
        ApiKey::OffsetDelete => {
            let partitions = vec![offset_delete::OffsetDeleteRequestPartition::default()];
            let topics = vec![offset_delete::OffsetDeleteRequestTopic { name, partitions }];
            (OffsetDeleteRequest { group_id: group, topics }.into(), 0)
        }
        ApiKey::DescribeGroups => {
            (DescribeGroupsRequest { groups, include_authorized_operations }.into(), 6)
        }
        ApiKey::ConsumerGroupDescribe => {
            let group_ids = groups;
            let request = ConsumerGroupDescribeRequest { group_ids, include_authorized_operations };
            (request.into(), 1)
        }
        ApiKey::ShareGroupDescribe => {
            let group_ids = groups;
            (ShareGroupDescribeRequest { group_ids, include_authorized_operations }.into(), 1)
        }
        ApiKey::ListGroups => (ListGroupsRequest::default().into(), 5),
        ApiKey::DeleteGroups => (DeleteGroupsRequest { groups_names: groups }.into(), 2),
        _ => return None,
    })
}

fn of_transactions(api: ApiKey, kind: Option<Kind>, names: Names<'_>) -> Option<(Request, i16)> {
    let (id, group, name) = (names.id.to_owned(), names.group.to_owned(), names.topic.to_owned());
    let is_of_nodes = kind == Some(Kind::Cluster);
    Some(match api {
        ApiKey::InitProducerId => {
            let transactional_id = (kind == Some(Kind::TransactionalId)).then_some(id);
            let request = InitProducerIdRequest {
                transactional_id,
                transaction_timeout_ms: 60_000,
                ..Default::default()
            };
            (request.into(), 5)
        }
        ApiKey::AddPartitionsToTxn => {
            let topics =
                vec![add_partitions_to_txn::AddPartitionsToTxnTopic { name, partitions: vec![0] }];
            let mut request = AddPartitionsToTxnRequest::default();
            if is_of_nodes {
                request.transactions = vec![add_partitions_to_txn::AddPartitionsToTxnTransaction {
                    transactional_id: id,
                    topics,
                    ..Default::default()
                }];
            } else {
                request.v3_and_below_transactional_id = id;
                request.v3_and_below_topics = topics;
            }
            (request.into(), if is_of_nodes { 5 } else { 3 })
        }
        ApiKey::AddOffsetsToTxn => {
            let (transactional_id, group_id) = (id, group);
            (AddOffsetsToTxnRequest { transactional_id, group_id, ..Default::default() }.into(), 4)
        }
        ApiKey::EndTxn => (EndTxnRequest { transactional_id: id, ..Default::default() }.into(), 5),
        ApiKey::TxnOffsetCommit => {
            let partitions = vec![txn_offset_commit::TxnOffsetCommitRequestPartition::default()];
            let request = TxnOffsetCommitRequest {
                transactional_id: id,
                group_id: group,
                topics: vec![txn_offset_commit::TxnOffsetCommitRequestTopic { name, partitions }],
                ..Default::default()
            };
            (request.into(), 5)
        }
        ApiKey::WriteTxnMarkers => {
            let topic =
                write_txn_markers::WritableTxnMarkerTopic { name, partition_indexes: vec![0] };
            let topics = vec![topic];
            let markers =
                vec![write_txn_markers::WritableTxnMarker { topics, ..Default::default() }];
            (WriteTxnMarkersRequest { markers }.into(), 2)
        }
        ApiKey::DescribeTransactions => {
            (DescribeTransactionsRequest { transactional_ids: vec![id] }.into(), 0)
        }
        ApiKey::ListTransactions => (ListTransactionsRequest::default().into(), 2),
        _ => return None,
    })
}

fn of_settings(api: ApiKey, kind: Option<Kind>, names: Names<'_>) -> Option<(Request, i16)> {
    let (resource_type, resource_name) = match kind {
        Some(Kind::Topic) => (TOPIC, names.topic.to_owned()),
        Some(Kind::Group) => (GROUP, names.group.to_owned()),
        _ => (BROKER, "0".to_owned()),
    };
    Some(match api {
        ApiKey::DescribeConfigs => {
            let configuration_keys = None;
            let resources = vec![describe_configs::DescribeConfigsResource {
                resource_type,
                resource_name,
                configuration_keys,
            }];
            (DescribeConfigsRequest { resources, ..Default::default() }.into(), 4)
        }
        ApiKey::AlterConfigs => {
            let configs = Vec::new();
            let resources =
                vec![alter_configs::AlterConfigsResource { resource_type, resource_name, configs }];
            (AlterConfigsRequest { resources, ..Default::default() }.into(), 2)
        }
        ApiKey::IncrementalAlterConfigs => {
            let resources = vec![incremental_alter_configs::AlterConfigsResource {
                resource_type,
                resource_name,
                configs: Vec::new(),
            }];
            (IncrementalAlterConfigsRequest { resources, ..Default::default() }.into(), 1)
        }
        ApiKey::AlterClientQuotas => {
            let entries = vec![alter_client_quotas::EntryData::default()];
            (AlterClientQuotasRequest { entries, ..Default::default() }.into(), 1)
        }
        ApiKey::DescribeClientQuotas => (DescribeClientQuotasRequest::default().into(), 1),
        ApiKey::ListConfigResources => (ListConfigResourcesRequest::default().into(), 1),
        ApiKey::FindCoordinator => {
            let (key_type, key) = match kind {
                Some(Kind::Group) => (0, names.group.to_owned()),
                Some(Kind::TransactionalId) => (1, names.id.to_owned()),
                _ => (2, format!("{}:{}:0", names.group, names.topic_id)),
            };
            let coordinator_keys = vec![key];
            (FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() }.into(), 6)
        }
        _ => return None,
    })
}

fn of_the_cluster(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    Some(match api {
        ApiKey::ApiVersions => (ApiVersionsRequest::default().into(), 0),
        ApiKey::DescribeAcls => (DescribeAclsRequest::default().into(), 3),
        ApiKey::CreateAcls => {
            let creations = vec![create_acls::AclCreation::default()];
            (CreateAclsRequest { creations }.into(), 3)
        }
        ApiKey::DeleteAcls => {
            let filters = vec![delete_acls::DeleteAclsFilter::default()];
            (DeleteAclsRequest { filters }.into(), 3)
        }
        ApiKey::DescribeLogDirs => (DescribeLogDirsRequest { topics: None }.into(), 5),
        ApiKey::CreateDelegationToken => (CreateDelegationTokenRequest::default().into(), 3),
        ApiKey::RenewDelegationToken => (RenewDelegationTokenRequest::default().into(), 2),
        ApiKey::ExpireDelegationToken => (ExpireDelegationTokenRequest::default().into(), 2),
        ApiKey::DescribeDelegationToken => (DescribeDelegationTokenRequest::default().into(), 3),
        ApiKey::ListPartitionReassignments => {
            (ListPartitionReassignmentsRequest::default().into(), 0)
        }
        ApiKey::AlterUserScramCredentials => {
            let deletions = vec![ScramCredentialDeletion { name: "u".to_owned(), mechanism: 1 }];
            (AlterUserScramCredentialsRequest { deletions, upsertions: vec![] }.into(), 0)
        }
        ApiKey::SaslHandshake => (SaslHandshakeRequest::default().into(), 1),
        ApiKey::SaslAuthenticate => (SaslAuthenticateRequest::default().into(), 2),
        ApiKey::DescribeUserScramCredentials => {
            (DescribeUserScramCredentialsRequest::default().into(), 0)
        }
        ApiKey::DescribeQuorum => (DescribeQuorumRequest::default().into(), 2),
        ApiKey::UpdateFeatures => (UpdateFeaturesRequest::default().into(), 2),
        ApiKey::DescribeCluster => {
            let include_cluster_authorized_operations = true;
            let request = DescribeClusterRequest {
                include_cluster_authorized_operations,
                ..Default::default()
            };
            (request.into(), 2)
        }
        ApiKey::UnregisterBroker => (UnregisterBrokerRequest { broker_id: 7 }.into(), 0),
        ApiKey::DescribeReplicas => (DescribeReplicasRequest::default().into(), 0),
        ApiKey::BeginBackup => (BeginBackupRequest::default().into(), 0),
        ApiKey::ShareFetch => {
            let partitions = vec![share_fetch::FetchPartition::default()];
            let request = ShareFetchRequest {
                group_id: Some(names.group.to_owned()),
                member_id: Some("m".to_owned()),
                max_records: 1,
                topics: vec![share_fetch::FetchTopic { topic_id: names.topic_id, partitions }],
                ..Default::default()
            };
            (request.into(), 2)
        }
        ApiKey::ShareAcknowledge => {
            let partitions = vec![share_acknowledge::AcknowledgePartition::default()];
            let topic_id = names.topic_id;
            let request = ShareAcknowledgeRequest {
                group_id: Some(names.group.to_owned()),
                member_id: Some("m".to_owned()),
                share_session_epoch: 1,
                topics: vec![share_acknowledge::AcknowledgeTopic { topic_id, partitions }],
                ..Default::default()
            };
            (request.into(), 2)
        }
        _ => return None,
    })
}

fn of_share_groups(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    let (group_id, topic_name) = (names.group.to_owned(), names.topic.to_owned());
    Some(match api {
        ApiKey::DescribeShareGroupOffsets => {
            use describe_share_group_offsets as it;
            let partitions = vec![0];
            let topics = vec![it::DescribeShareGroupOffsetsRequestTopic { topic_name, partitions }];
            let topics = Some(topics);
            let groups = vec![it::DescribeShareGroupOffsetsRequestGroup { group_id, topics }];
            (DescribeShareGroupOffsetsRequest { groups }.into(), 1)
        }
        ApiKey::AlterShareGroupOffsets => {
            use alter_share_group_offsets as it;
            let partitions = vec![it::AlterShareGroupOffsetsRequestPartition::default()];
            let topics = vec![it::AlterShareGroupOffsetsRequestTopic { topic_name, partitions }];
            (AlterShareGroupOffsetsRequest { group_id, topics }.into(), 0)
        }
        ApiKey::DeleteShareGroupOffsets => {
            use delete_share_group_offsets as it;
            let topics = vec![it::DeleteShareGroupOffsetsRequestTopic { topic_name }];
            (DeleteShareGroupOffsetsRequest { group_id, topics }.into(), 0)
        }
        _ => return None,
    })
}

fn of_shared_states(api: ApiKey, names: Names<'_>) -> Option<(Request, i16)> {
    let (group_id, topic_id) = (names.group.to_owned(), names.topic_id);
    macro_rules! state {
        ($request:ident, $room:ident, $topic:ident, $version:literal) => {{
            let partitions = vec![$room::PartitionData::default()];
            let topics = vec![$room::$topic { topic_id, partitions }];
            ($request { group_id, topics }.into(), $version)
        }};
    }
    Some(match api {
        ApiKey::InitializeShareGroupState => state!(
            InitializeShareGroupStateRequest,
            initialize_share_group_state,
            InitializeStateData,
            0
        ),
        ApiKey::ReadShareGroupState => {
            state!(ReadShareGroupStateRequest, read_share_group_state, ReadStateData, 0)
        }
        ApiKey::WriteShareGroupState => {
            state!(WriteShareGroupStateRequest, write_share_group_state, WriteStateData, 1)
        }
        ApiKey::DeleteShareGroupState => {
            state!(DeleteShareGroupStateRequest, delete_share_group_state, DeleteStateData, 0)
        }
        ApiKey::ReadShareGroupStateSummary => state!(
            ReadShareGroupStateSummaryRequest,
            read_share_group_state_summary,
            ReadStateSummaryData,
            1
        ),
        _ => return None,
    })
}
