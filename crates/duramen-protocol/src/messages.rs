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
pub mod alter_user_scram_credentials;
pub mod api_versions;
pub mod append_fast;
pub mod begin_backup;
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
pub mod describe_fast;
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
pub mod sasl_authenticate;
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

/// Calls a macro with the list of all declared APIs: of each its module, its name, its request and its response.
macro_rules! for_each_api {
    ($callback:path) => {
        $callback! {
            add_offsets_to_txn AddOffsetsToTxn(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse)
            add_partitions_to_txn AddPartitionsToTxn(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse)
            alter_client_quotas AlterClientQuotas(AlterClientQuotasRequest, AlterClientQuotasResponse)
            alter_configs AlterConfigs(AlterConfigsRequest, AlterConfigsResponse)
            alter_partition_reassignments AlterPartitionReassignments(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse)
            alter_replica_log_dirs AlterReplicaLogDirs(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse)
            alter_share_group_offsets AlterShareGroupOffsets(AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse)
            alter_user_scram_credentials AlterUserScramCredentials(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse)
            api_versions ApiVersions(ApiVersionsRequest, ApiVersionsResponse)
            append_fast AppendFast(AppendFastRequest, AppendFastResponse)
            begin_backup BeginBackup(BeginBackupRequest, BeginBackupResponse)
            consumer_group_describe ConsumerGroupDescribe(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse)
            consumer_group_heartbeat ConsumerGroupHeartbeat(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse)
            create_acls CreateAcls(CreateAclsRequest, CreateAclsResponse)
            create_delegation_token CreateDelegationToken(CreateDelegationTokenRequest, CreateDelegationTokenResponse)
            create_partitions CreatePartitions(CreatePartitionsRequest, CreatePartitionsResponse)
            create_topics CreateTopics(CreateTopicsRequest, CreateTopicsResponse)
            delete_acls DeleteAcls(DeleteAclsRequest, DeleteAclsResponse)
            delete_groups DeleteGroups(DeleteGroupsRequest, DeleteGroupsResponse)
            delete_records DeleteRecords(DeleteRecordsRequest, DeleteRecordsResponse)
            delete_share_group_offsets DeleteShareGroupOffsets(DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse)
            delete_share_group_state DeleteShareGroupState(DeleteShareGroupStateRequest, DeleteShareGroupStateResponse)
            delete_topics DeleteTopics(DeleteTopicsRequest, DeleteTopicsResponse)
            describe_acls DescribeAcls(DescribeAclsRequest, DescribeAclsResponse)
            describe_client_quotas DescribeClientQuotas(DescribeClientQuotasRequest, DescribeClientQuotasResponse)
            describe_cluster DescribeCluster(DescribeClusterRequest, DescribeClusterResponse)
            describe_configs DescribeConfigs(DescribeConfigsRequest, DescribeConfigsResponse)
            describe_delegation_token DescribeDelegationToken(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse)
            describe_fast DescribeFast(DescribeFastRequest, DescribeFastResponse)
            describe_groups DescribeGroups(DescribeGroupsRequest, DescribeGroupsResponse)
            describe_log_dirs DescribeLogDirs(DescribeLogDirsRequest, DescribeLogDirsResponse)
            describe_producers DescribeProducers(DescribeProducersRequest, DescribeProducersResponse)
            describe_quorum DescribeQuorum(DescribeQuorumRequest, DescribeQuorumResponse)
            describe_replicas DescribeReplicas(DescribeReplicasRequest, DescribeReplicasResponse)
            describe_share_group_offsets DescribeShareGroupOffsets(DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse)
            describe_topic_partitions DescribeTopicPartitions(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse)
            describe_transactions DescribeTransactions(DescribeTransactionsRequest, DescribeTransactionsResponse)
            describe_user_scram_credentials DescribeUserScramCredentials(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse)
            elect_leaders ElectLeaders(ElectLeadersRequest, ElectLeadersResponse)
            end_txn EndTxn(EndTxnRequest, EndTxnResponse)
            expire_delegation_token ExpireDelegationToken(ExpireDelegationTokenRequest, ExpireDelegationTokenResponse)
            fetch Fetch(FetchRequest, FetchResponse)
            find_coordinator FindCoordinator(FindCoordinatorRequest, FindCoordinatorResponse)
            heartbeat Heartbeat(HeartbeatRequest, HeartbeatResponse)
            incremental_alter_configs IncrementalAlterConfigs(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse)
            init_producer_id InitProducerId(InitProducerIdRequest, InitProducerIdResponse)
            initialize_share_group_state InitializeShareGroupState(InitializeShareGroupStateRequest, InitializeShareGroupStateResponse)
            join_group JoinGroup(JoinGroupRequest, JoinGroupResponse)
            leave_group LeaveGroup(LeaveGroupRequest, LeaveGroupResponse)
            list_config_resources ListConfigResources(ListConfigResourcesRequest, ListConfigResourcesResponse)
            list_groups ListGroups(ListGroupsRequest, ListGroupsResponse)
            list_offsets ListOffsets(ListOffsetsRequest, ListOffsetsResponse)
            list_partition_reassignments ListPartitionReassignments(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse)
            list_transactions ListTransactions(ListTransactionsRequest, ListTransactionsResponse)
            metadata Metadata(MetadataRequest, MetadataResponse)
            offset_commit OffsetCommit(OffsetCommitRequest, OffsetCommitResponse)
            offset_delete OffsetDelete(OffsetDeleteRequest, OffsetDeleteResponse)
            offset_fetch OffsetFetch(OffsetFetchRequest, OffsetFetchResponse)
            offset_for_leader_epoch OffsetForLeaderEpoch(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse)
            produce Produce(ProduceRequest, ProduceResponse)
            read_share_group_state ReadShareGroupState(ReadShareGroupStateRequest, ReadShareGroupStateResponse)
            read_share_group_state_summary ReadShareGroupStateSummary(ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse)
            renew_delegation_token RenewDelegationToken(RenewDelegationTokenRequest, RenewDelegationTokenResponse)
            sasl_authenticate SaslAuthenticate(SaslAuthenticateRequest, SaslAuthenticateResponse)
            sasl_handshake SaslHandshake(SaslHandshakeRequest, SaslHandshakeResponse)
            share_acknowledge ShareAcknowledge(ShareAcknowledgeRequest, ShareAcknowledgeResponse)
            share_fetch ShareFetch(ShareFetchRequest, ShareFetchResponse)
            share_group_describe ShareGroupDescribe(ShareGroupDescribeRequest, ShareGroupDescribeResponse)
            share_group_heartbeat ShareGroupHeartbeat(ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse)
            sync_group SyncGroup(SyncGroupRequest, SyncGroupResponse)
            txn_offset_commit TxnOffsetCommit(TxnOffsetCommitRequest, TxnOffsetCommitResponse)
            unregister_broker UnregisterBroker(UnregisterBrokerRequest, UnregisterBrokerResponse)
            update_features UpdateFeatures(UpdateFeaturesRequest, UpdateFeaturesResponse)
            write_share_group_state WriteShareGroupState(WriteShareGroupStateRequest, WriteShareGroupStateResponse)
            write_txn_markers WriteTxnMarkers(WriteTxnMarkersRequest, WriteTxnMarkersResponse)
        }
    };
}

macro_rules! exported {
    ($($module:ident $api:ident($request:ident, $response:ident))*) => {
        $(pub use $module::{$request, $response};)*
    };
}

for_each_api!(exported);

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
