use duramen_protocol::api::{Api, OWN_TABLE, advertised};
use duramen_protocol::messages::alter_client_quotas::{EntityData, EntryData};
use duramen_protocol::messages::alter_configs::AlterConfigsResource;
use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use duramen_protocol::messages::delete_topics::DeleteTopicState;
use duramen_protocol::messages::describe_configs::DescribeConfigsResource;
use duramen_protocol::messages::describe_quorum::{RequestPartitionData, RequestTopicData};
use duramen_protocol::messages::describe_topic_partitions::TopicRequest;
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AlterClientQuotasRequest,
    AlterConfigsRequest, AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest,
    AlterShareGroupOffsetsRequest, AlterUserScramCredentialsRequest, ApiVersionsRequest,
    AppendFastRequest, BeginBackupRequest, CreateAclsRequest, CreateDelegationTokenRequest,
    CreatePartitionsRequest, CreateTopicsRequest, DeleteAclsRequest, DeleteRecordsRequest,
    DeleteShareGroupOffsetsRequest, DeleteShareGroupStateRequest, DeleteTopicsRequest,
    DescribeAclsRequest, DescribeClientQuotasRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeDelegationTokenRequest, DescribeFastRequest,
    DescribeLogDirsRequest, DescribeProducersRequest, DescribeQuorumRequest,
    DescribeReplicasRequest, DescribeShareGroupOffsetsRequest, DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest, DescribeUserScramCredentialsRequest, ElectLeadersRequest,
    EndTxnRequest, ExpireDelegationTokenRequest, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, InitializeShareGroupStateRequest, ListConfigResourcesRequest,
    ListOffsetsRequest, ListPartitionReassignmentsRequest, ListTransactionsRequest,
    MetadataRequest, OffsetForLeaderEpochRequest, ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest, RenewDelegationTokenRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest, ShareAcknowledgeRequest, ShareFetchRequest, ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest, TxnOffsetCommitRequest, UnregisterBrokerRequest,
    UpdateFeaturesRequest, WriteShareGroupStateRequest, WriteTxnMarkersRequest,
    incremental_alter_configs,
};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ApiKey, Request, Response};

use super::groups;
use super::harness::{Harness, batch, fetch_request, new_topic, produce_request};

/// A request of `api` about topic `t` that means something in `version`.
fn request(api: ApiKey, version: i16, id: Uuid) -> Request {
    let name = "t".to_owned();
    match api {
        ApiKey::ApiVersions => ApiVersionsRequest {
            client_software_name: "test".to_owned(),
            client_software_version: "1.0".to_owned(),
        }
        .into(),
        ApiKey::Produce => {
            let mut request = produce_request("t", batch(&["a"]), -1);
            request.topic_data[0].topic_id = id;
            request.into()
        }
        ApiKey::Fetch => {
            let mut request = fetch_request("t", 0);
            request.topics[0].topic_id = id;
            request.into()
        }
        ApiKey::ListOffsets => {
            let partition = ListOffsetsPartition { timestamp: -1, ..Default::default() };
            let topics = vec![ListOffsetsTopic { name, partitions: vec![partition] }];
            ListOffsetsRequest { topics, ..Default::default() }.into()
        }
        ApiKey::Metadata => {
            let topic = MetadataRequestTopic { name: Some(name), ..Default::default() };
            MetadataRequest { topics: Some(vec![topic]), ..Default::default() }.into()
        }
        ApiKey::CreateTopics => {
            let topics = vec![new_topic(&format!("made-{version}"), 1, &[])];
            CreateTopicsRequest { topics, ..Default::default() }.into()
        }
        ApiKey::DeleteTopics => delete(version),
        ApiKey::DeleteRecords => {
            let partition = DeleteRecordsPartition { partition_index: 0, offset: 1 };
            let topics = vec![DeleteRecordsTopic { name, partitions: vec![partition] }];
            DeleteRecordsRequest { topics, timeout_ms: 1000 }.into()
        }
        ApiKey::InitProducerId => {
            InitProducerIdRequest { transactional_id: None, ..Default::default() }.into()
        }
        ApiKey::OffsetForLeaderEpoch => {
            let partition = OffsetForLeaderPartition { leader_epoch: 2, ..Default::default() };
            let topics = vec![OffsetForLeaderTopic { topic: name, partitions: vec![partition] }];
            OffsetForLeaderEpochRequest { topics, ..Default::default() }.into()
        }
        ApiKey::DescribeConfigs => {
            let resource = DescribeConfigsResource {
                resource_type: 2,
                resource_name: name,
                configuration_keys: None,
            };
            DescribeConfigsRequest { resources: vec![resource], ..Default::default() }.into()
        }
        ApiKey::DescribeCluster => DescribeClusterRequest::default().into(),
        ApiKey::CreatePartitions => {
            let count = i32::from(version) + 2;
            let topics = vec![CreatePartitionsTopic { name, count, assignments: None }];
            CreatePartitionsRequest { topics, ..Default::default() }.into()
        }
        ApiKey::DescribeTopicPartitions => {
            let topics = vec![TopicRequest { name }];
            DescribeTopicPartitionsRequest { topics, ..Default::default() }.into()
        }
        ApiKey::DescribeClientQuotas => DescribeClientQuotasRequest::default().into(),
        other => groups::any_request(other, version, id)
            .or_else(|| of_transactions(other))
            .or_else(|| of_the_cluster(other))
            .unwrap_or_else(|| alteration(other, name)),
    }
}

/// A request about transactions, of an API that is served.
fn of_transactions(api: ApiKey) -> Option<Request> {
    Some(match api {
        ApiKey::AddOffsetsToTxn => AddOffsetsToTxnRequest::default().into(),
        ApiKey::AddPartitionsToTxn => AddPartitionsToTxnRequest::default().into(),
        ApiKey::DescribeTransactions => DescribeTransactionsRequest::default().into(),
        ApiKey::EndTxn => EndTxnRequest::default().into(),
        ApiKey::ListTransactions => ListTransactionsRequest::default().into(),
        ApiKey::TxnOffsetCommit => TxnOffsetCommitRequest::default().into(),
        ApiKey::WriteTxnMarkers => WriteTxnMarkersRequest::default().into(),
        _ => return of_shares(api),
    })
}

/// A request about share groups, of an API that is served.
fn of_shares(api: ApiKey) -> Option<Request> {
    Some(match api {
        ApiKey::ShareFetch => ShareFetchRequest::default().into(),
        ApiKey::ShareAcknowledge => ShareAcknowledgeRequest::default().into(),
        ApiKey::ShareGroupHeartbeat => ShareGroupHeartbeatRequest::default().into(),
        ApiKey::ShareGroupDescribe => ShareGroupDescribeRequest::default().into(),
        ApiKey::InitializeShareGroupState => InitializeShareGroupStateRequest::default().into(),
        ApiKey::ReadShareGroupState => ReadShareGroupStateRequest::default().into(),
        ApiKey::WriteShareGroupState => WriteShareGroupStateRequest::default().into(),
        ApiKey::DeleteShareGroupState => DeleteShareGroupStateRequest::default().into(),
        ApiKey::ReadShareGroupStateSummary => ReadShareGroupStateSummaryRequest::default().into(),
        ApiKey::DescribeShareGroupOffsets => DescribeShareGroupOffsetsRequest::default().into(),
        ApiKey::AlterShareGroupOffsets => AlterShareGroupOffsetsRequest::default().into(),
        ApiKey::DeleteShareGroupOffsets => DeleteShareGroupOffsetsRequest::default().into(),
        _ => return None,
    })
}

/// A request about the cluster, of an API that is served.
fn of_the_cluster(api: ApiKey) -> Option<Request> {
    Some(match api {
        ApiKey::AlterPartitionReassignments => AlterPartitionReassignmentsRequest::default().into(),
        ApiKey::AlterReplicaLogDirs => AlterReplicaLogDirsRequest::default().into(),
        ApiKey::CreateAcls => CreateAclsRequest::default().into(),
        ApiKey::CreateDelegationToken => CreateDelegationTokenRequest::default().into(),
        ApiKey::DeleteAcls => DeleteAclsRequest::default().into(),
        ApiKey::DescribeAcls => DescribeAclsRequest::default().into(),
        ApiKey::DescribeDelegationToken => DescribeDelegationTokenRequest::default().into(),
        ApiKey::DescribeLogDirs => DescribeLogDirsRequest::default().into(),
        ApiKey::DescribeProducers => DescribeProducersRequest::default().into(),
        ApiKey::DescribeQuorum => {
            let partitions = vec![RequestPartitionData { partition_index: 0 }];
            let topic_name = "__cluster_metadata".to_owned();
            let topics = vec![RequestTopicData { topic_name, partitions }];
            DescribeQuorumRequest { topics }.into()
        }
        ApiKey::AppendFast => AppendFastRequest::default().into(),
        ApiKey::DescribeFast => DescribeFastRequest::default().into(),
        ApiKey::DescribeReplicas => DescribeReplicasRequest::default().into(),
        ApiKey::BeginBackup => BeginBackupRequest::default().into(),
        ApiKey::AlterUserScramCredentials => AlterUserScramCredentialsRequest::default().into(),
        ApiKey::SaslHandshake => SaslHandshakeRequest::default().into(),
        ApiKey::SaslAuthenticate => SaslAuthenticateRequest::default().into(),
        ApiKey::DescribeUserScramCredentials => {
            DescribeUserScramCredentialsRequest::default().into()
        }
        ApiKey::ElectLeaders => ElectLeadersRequest::default().into(),
        ApiKey::ExpireDelegationToken => ExpireDelegationTokenRequest::default().into(),
        ApiKey::ListConfigResources => ListConfigResourcesRequest::default().into(),
        ApiKey::ListPartitionReassignments => ListPartitionReassignmentsRequest::default().into(),
        ApiKey::RenewDelegationToken => RenewDelegationTokenRequest::default().into(),
        ApiKey::UnregisterBroker => UnregisterBrokerRequest::default().into(),
        ApiKey::UpdateFeatures => UpdateFeaturesRequest::default().into(),
        _ => return None,
    })
}

/// A request that alters the settings of topic `name`, in one of the two ways.
fn alteration(api: ApiKey, name: String) -> Request {
    match api {
        ApiKey::AlterClientQuotas => {
            let user = EntityData { entity_type: "user".to_owned(), entity_name: Some(name) };
            let entries = vec![EntryData { entity: vec![user], ops: Vec::new() }];
            AlterClientQuotasRequest { entries, validate_only: false }.into()
        }
        ApiKey::AlterConfigs => {
            let resource =
                AlterConfigsResource { resource_type: 2, resource_name: name, configs: Vec::new() };
            AlterConfigsRequest { resources: vec![resource], validate_only: false }.into()
        }
        ApiKey::IncrementalAlterConfigs => {
            let resource = incremental_alter_configs::AlterConfigsResource {
                resource_type: 2,
                resource_name: name,
                configs: Vec::new(),
            };
            IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false }
                .into()
        }
        other => panic!("{other} is served and has no request here"),
    }
}

fn delete(version: i16) -> Request {
    let timeout_ms = 1000;
    let name = format!("made-{}", version.max(2));
    if version < 6 {
        let topic_names = vec![name];
        return DeleteTopicsRequest { topic_names, timeout_ms, ..Default::default() }.into();
    }
    let topics = vec![DeleteTopicState { name: Some(name), topic_id: Uuid::ZERO }];
    DeleteTopicsRequest { topics, timeout_ms, ..Default::default() }.into()
}

#[test]
fn every_accepted_version_of_every_served_api_is_answered() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b"]));
    let id = it.metadata(&["t"]).topics[0].topic_id;
    // Topics are made before they are deleted: rows are in the order of their keys.
    for Api { key, accepted, .. } in advertised().chain(OWN_TABLE) {
        for version in accepted.first..=accepted.last {
            let request = request(*key, version, id);
            let response = it.ask(request, version);
            assert_eq!(response.api_key(), *key, "version {version}");
        }
    }
}

#[test]
fn features_that_may_be_at_level_0_are_supported_from_version_4_on() {
    let mut it = Harness::new(&[]);
    for version in 0..=4 {
        let Response::ApiVersions(answer) = it.ask(ApiVersionsRequest::default(), version) else {
            panic!("another answer");
        };
        let supported: Vec<_> = answer.supported_features.iter().map(|it| it.min_version).collect();
        assert_eq!(supported, if version < 4 { vec![] } else { vec![0; 3] }, "version {version}");
        // Kafka shows these to all: of a feature that is at level 0 there is no row.
        let finalized: Vec<_> = answer
            .finalized_features
            .iter()
            .map(|it| (&*it.name, it.min_version_level, it.max_version_level))
            .collect();
        let levels =
            [("group.version", 1, 1), ("share.version", 1, 1), ("transaction.version", 2, 2)];
        let levels = if version < 3 { &[][..] } else { &levels };
        assert_eq!(finalized, levels, "version {version}");
    }
}
