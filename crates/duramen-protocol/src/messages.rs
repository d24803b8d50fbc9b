//! # Room card: messages
//!
//! Purpose:    the layout of every request and response we speak, one API a file.
//! Owns:       the declarations; the code that reads and writes them comes from [`message!`](crate::message).
//! Interface:  `<Api>Request` and `<Api>Response`, both [`Message`](crate::wire::Message)s; what stands inside them
//!             lives in the API's module, under Kafka's names (`messages::fetch::PartitionData`).
//! Invariants: decode(encode(m, v), v) = m for every version v; what Kafka 4.3 declares is declared here.
//!             A field that is null-able in every version it exists in defaults to null, others as in Kafka.
//! Never:      behaviour, defaults that depend on the node.
//! Tests:      `messages/tests.rs`, every message and version, also against an independent codec.
//! Start at:   `messages/fetch.rs`.

pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod alter_client_quotas;
pub mod alter_configs;
pub mod alter_partition_reassignments;
pub mod alter_replica_log_dirs;
pub mod alter_share_group_offsets;
pub mod api_versions;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod consumer_protocol;
pub mod create_acls;
pub mod create_delegation_token;
pub mod create_partitions;
pub mod create_topics;
mod declare;
pub mod delete_acls;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_share_group_offsets;
pub mod delete_share_group_state;
pub mod delete_topics;
pub mod describe_acls;
pub mod describe_client_quotas;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_delegation_token;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_replicas;
pub mod describe_share_group_offsets;
pub mod describe_topic_partitions;
pub mod describe_transactions;
pub mod describe_user_scram_credentials;
pub mod elect_leaders;
pub mod end_txn;
pub mod expire_delegation_token;
pub mod fetch;
pub mod find_coordinator;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod initialize_share_group_state;
pub mod join_group;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod list_partition_reassignments;
pub mod list_transactions;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod read_share_group_state;
pub mod read_share_group_state_summary;
pub mod renew_delegation_token;
pub mod sasl_handshake;
pub mod share_acknowledge;
pub mod share_fetch;
pub mod share_group_describe;
pub mod share_group_heartbeat;
pub mod sync_group;
pub mod txn_offset_commit;
pub mod unregister_broker;
pub mod update_features;
pub mod write_share_group_state;
pub mod write_txn_markers;

pub use add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
pub use add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
pub use alter_client_quotas::{AlterClientQuotasRequest, AlterClientQuotasResponse};
pub use alter_configs::{AlterConfigsRequest, AlterConfigsResponse};
pub use alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
};
pub use alter_replica_log_dirs::{AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse};
pub use alter_share_group_offsets::{
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse,
};
pub use api_versions::{ApiVersionsRequest, ApiVersionsResponse};
pub use consumer_group_describe::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse};
pub use consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
pub use create_acls::{CreateAclsRequest, CreateAclsResponse};
pub use create_delegation_token::{CreateDelegationTokenRequest, CreateDelegationTokenResponse};
pub use create_partitions::{CreatePartitionsRequest, CreatePartitionsResponse};
pub use create_topics::{CreateTopicsRequest, CreateTopicsResponse};
pub use delete_acls::{DeleteAclsRequest, DeleteAclsResponse};
pub use delete_groups::{DeleteGroupsRequest, DeleteGroupsResponse};
pub use delete_records::{DeleteRecordsRequest, DeleteRecordsResponse};
pub use delete_share_group_offsets::{
    DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse,
};
pub use delete_share_group_state::{DeleteShareGroupStateRequest, DeleteShareGroupStateResponse};
pub use delete_topics::{DeleteTopicsRequest, DeleteTopicsResponse};
pub use describe_acls::{DescribeAclsRequest, DescribeAclsResponse};
pub use describe_client_quotas::{DescribeClientQuotasRequest, DescribeClientQuotasResponse};
pub use describe_cluster::{DescribeClusterRequest, DescribeClusterResponse};
pub use describe_configs::{DescribeConfigsRequest, DescribeConfigsResponse};
pub use describe_delegation_token::{
    DescribeDelegationTokenRequest, DescribeDelegationTokenResponse,
};
pub use describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse};
pub use describe_log_dirs::{DescribeLogDirsRequest, DescribeLogDirsResponse};
pub use describe_producers::{DescribeProducersRequest, DescribeProducersResponse};
pub use describe_quorum::{DescribeQuorumRequest, DescribeQuorumResponse};
pub use describe_replicas::{DescribeReplicasRequest, DescribeReplicasResponse};
pub use describe_share_group_offsets::{
    DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse,
};
pub use describe_topic_partitions::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
};
pub use describe_transactions::{DescribeTransactionsRequest, DescribeTransactionsResponse};
pub use describe_user_scram_credentials::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
};
pub use elect_leaders::{ElectLeadersRequest, ElectLeadersResponse};
pub use end_txn::{EndTxnRequest, EndTxnResponse};
pub use expire_delegation_token::{ExpireDelegationTokenRequest, ExpireDelegationTokenResponse};
pub use fetch::{FetchRequest, FetchResponse};
pub use find_coordinator::{FindCoordinatorRequest, FindCoordinatorResponse};
pub use heartbeat::{HeartbeatRequest, HeartbeatResponse};
pub use incremental_alter_configs::{
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
pub use init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
pub use initialize_share_group_state::{
    InitializeShareGroupStateRequest, InitializeShareGroupStateResponse,
};
pub use join_group::{JoinGroupRequest, JoinGroupResponse};
pub use leave_group::{LeaveGroupRequest, LeaveGroupResponse};
pub use list_config_resources::{ListConfigResourcesRequest, ListConfigResourcesResponse};
pub use list_groups::{ListGroupsRequest, ListGroupsResponse};
pub use list_offsets::{ListOffsetsRequest, ListOffsetsResponse};
pub use list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
pub use list_transactions::{ListTransactionsRequest, ListTransactionsResponse};
pub use metadata::{MetadataRequest, MetadataResponse};
pub use offset_commit::{OffsetCommitRequest, OffsetCommitResponse};
pub use offset_delete::{OffsetDeleteRequest, OffsetDeleteResponse};
pub use offset_fetch::{OffsetFetchRequest, OffsetFetchResponse};
pub use offset_for_leader_epoch::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
pub use produce::{ProduceRequest, ProduceResponse};
pub use read_share_group_state::{ReadShareGroupStateRequest, ReadShareGroupStateResponse};
pub use read_share_group_state_summary::{
    ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse,
};
pub use renew_delegation_token::{RenewDelegationTokenRequest, RenewDelegationTokenResponse};
pub use sasl_handshake::{SaslHandshakeRequest, SaslHandshakeResponse};
pub use share_acknowledge::{ShareAcknowledgeRequest, ShareAcknowledgeResponse};
pub use share_fetch::{ShareFetchRequest, ShareFetchResponse};
pub use share_group_describe::{ShareGroupDescribeRequest, ShareGroupDescribeResponse};
pub use share_group_heartbeat::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};
pub use sync_group::{SyncGroupRequest, SyncGroupResponse};
pub use txn_offset_commit::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
pub use unregister_broker::{UnregisterBrokerRequest, UnregisterBrokerResponse};
pub use update_features::{UpdateFeaturesRequest, UpdateFeaturesResponse};
pub use write_share_group_state::{WriteShareGroupStateRequest, WriteShareGroupStateResponse};
pub use write_txn_markers::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};

/// Calls a macro with the list of all declared APIs.
macro_rules! for_each_api {
    ($callback:path) => {
        $callback! {
            AddOffsetsToTxn(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse)
            AddPartitionsToTxn(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse)
            AlterClientQuotas(AlterClientQuotasRequest, AlterClientQuotasResponse)
            AlterConfigs(AlterConfigsRequest, AlterConfigsResponse)
            AlterPartitionReassignments(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse)
            AlterReplicaLogDirs(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse)
            AlterShareGroupOffsets(AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse)
            ApiVersions(ApiVersionsRequest, ApiVersionsResponse)
            ConsumerGroupDescribe(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse)
            ConsumerGroupHeartbeat(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse)
            CreateAcls(CreateAclsRequest, CreateAclsResponse)
            CreateDelegationToken(CreateDelegationTokenRequest, CreateDelegationTokenResponse)
            CreatePartitions(CreatePartitionsRequest, CreatePartitionsResponse)
            CreateTopics(CreateTopicsRequest, CreateTopicsResponse)
            DeleteAcls(DeleteAclsRequest, DeleteAclsResponse)
            DeleteGroups(DeleteGroupsRequest, DeleteGroupsResponse)
            DeleteRecords(DeleteRecordsRequest, DeleteRecordsResponse)
            DeleteShareGroupOffsets(DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse)
            DeleteShareGroupState(DeleteShareGroupStateRequest, DeleteShareGroupStateResponse)
            DeleteTopics(DeleteTopicsRequest, DeleteTopicsResponse)
            DescribeAcls(DescribeAclsRequest, DescribeAclsResponse)
            DescribeClientQuotas(DescribeClientQuotasRequest, DescribeClientQuotasResponse)
            DescribeCluster(DescribeClusterRequest, DescribeClusterResponse)
            DescribeConfigs(DescribeConfigsRequest, DescribeConfigsResponse)
            DescribeDelegationToken(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse)
            DescribeGroups(DescribeGroupsRequest, DescribeGroupsResponse)
            DescribeLogDirs(DescribeLogDirsRequest, DescribeLogDirsResponse)
            DescribeProducers(DescribeProducersRequest, DescribeProducersResponse)
            DescribeQuorum(DescribeQuorumRequest, DescribeQuorumResponse)
            DescribeReplicas(DescribeReplicasRequest, DescribeReplicasResponse)
            DescribeShareGroupOffsets(DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse)
            DescribeTopicPartitions(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse)
            DescribeTransactions(DescribeTransactionsRequest, DescribeTransactionsResponse)
            DescribeUserScramCredentials(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse)
            ElectLeaders(ElectLeadersRequest, ElectLeadersResponse)
            EndTxn(EndTxnRequest, EndTxnResponse)
            ExpireDelegationToken(ExpireDelegationTokenRequest, ExpireDelegationTokenResponse)
            Fetch(FetchRequest, FetchResponse)
            FindCoordinator(FindCoordinatorRequest, FindCoordinatorResponse)
            Heartbeat(HeartbeatRequest, HeartbeatResponse)
            IncrementalAlterConfigs(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse)
            InitProducerId(InitProducerIdRequest, InitProducerIdResponse)
            InitializeShareGroupState(InitializeShareGroupStateRequest, InitializeShareGroupStateResponse)
            JoinGroup(JoinGroupRequest, JoinGroupResponse)
            LeaveGroup(LeaveGroupRequest, LeaveGroupResponse)
            ListConfigResources(ListConfigResourcesRequest, ListConfigResourcesResponse)
            ListGroups(ListGroupsRequest, ListGroupsResponse)
            ListOffsets(ListOffsetsRequest, ListOffsetsResponse)
            ListPartitionReassignments(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse)
            ListTransactions(ListTransactionsRequest, ListTransactionsResponse)
            Metadata(MetadataRequest, MetadataResponse)
            OffsetCommit(OffsetCommitRequest, OffsetCommitResponse)
            OffsetDelete(OffsetDeleteRequest, OffsetDeleteResponse)
            OffsetFetch(OffsetFetchRequest, OffsetFetchResponse)
            OffsetForLeaderEpoch(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse)
            Produce(ProduceRequest, ProduceResponse)
            ReadShareGroupState(ReadShareGroupStateRequest, ReadShareGroupStateResponse)
            ReadShareGroupStateSummary(ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse)
            RenewDelegationToken(RenewDelegationTokenRequest, RenewDelegationTokenResponse)
            SaslHandshake(SaslHandshakeRequest, SaslHandshakeResponse)
            ShareAcknowledge(ShareAcknowledgeRequest, ShareAcknowledgeResponse)
            ShareFetch(ShareFetchRequest, ShareFetchResponse)
            ShareGroupDescribe(ShareGroupDescribeRequest, ShareGroupDescribeResponse)
            ShareGroupHeartbeat(ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse)
            SyncGroup(SyncGroupRequest, SyncGroupResponse)
            TxnOffsetCommit(TxnOffsetCommitRequest, TxnOffsetCommitResponse)
            UnregisterBroker(UnregisterBrokerRequest, UnregisterBrokerResponse)
            UpdateFeatures(UpdateFeaturesRequest, UpdateFeaturesResponse)
            WriteShareGroupState(WriteShareGroupStateRequest, WriteShareGroupStateResponse)
            WriteTxnMarkers(WriteTxnMarkersRequest, WriteTxnMarkersResponse)
        }
    };
}
/// An enum of one message of every declared API.
macro_rules! any_message {
    ($(#[$doc:meta])* $name:ident: $($api:ident($message:path))*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        #[expect(missing_docs, reason = "each variant is the API of that name")]
        pub enum $name {
            $($api($message),)*
        }

        impl $name {
            /// Returns the API that the message belongs to.
            pub fn api_key(&self) -> ApiKey {
                match self { $(Self::$api(_) => ApiKey::$api,)* }
            }

            /// Reads the body. Also reads APIs that are declared but not served.
            pub fn decode(d: &mut Decoder, api: ApiKey, version: i16) -> Result<Self, DecodeError> {
                match api {
                    $(ApiKey::$api => Message::decode(d, version).map(Self::$api),)*
                    _ => Err(DecodeError::UnknownVersion { message: Api::of(api).name, version }),
                }
            }

            /// Writes the body.
            pub fn encode(&self, e: &mut Encoder, version: i16) -> Result<(), EncodeError> {
                match self { $(Self::$api(message) => message.encode(e, version),)* }
            }
        }

        $(
            impl From<$message> for $name {
                fn from(message: $message) -> Self {
                    Self::$api(message)
                }
            }
        )*
    };
}

pub(crate) use any_message;
pub(crate) use for_each_api;

#[cfg(test)]
mod tests;
