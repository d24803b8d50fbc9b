//! Matching of answers to requests.

use duramen_protocol::api::ApiKey;
use duramen_protocol::messages as m;
use duramen_protocol::wire::Message;

/// Last version of `OffsetCommit` and `OffsetFetch` in which topics have names. Later ones know only ids, and offsets
/// may be of topics that are gone.
pub(crate) const OFFSETS_BY_TOPIC_NAME: i16 = 9;

/// A request that this client sends.
pub trait Call: Message {
    /// Its API.
    const API: ApiKey;
    /// The answer.
    type Response: Message;

    /// Returns the newest version that can carry this very request. Topic ids decide it in some APIs.
    fn version_max(&self) -> i16 {
        Self::VERSIONS.last
    }
}

macro_rules! calls {
    ($($api:ident $request:ident $response:ident;)*) => {$(
        impl Call for m::$request {
            const API: ApiKey = ApiKey::$api;
            type Response = m::$response;
        }
    )*};
}

calls! {
    AlterClientQuotas AlterClientQuotasRequest AlterClientQuotasResponse;
    AlterPartitionReassignments AlterPartitionReassignmentsRequest AlterPartitionReassignmentsResponse;
    AlterUserScramCredentials AlterUserScramCredentialsRequest AlterUserScramCredentialsResponse;
    AlterShareGroupOffsets AlterShareGroupOffsetsRequest AlterShareGroupOffsetsResponse;
    ApiVersions ApiVersionsRequest ApiVersionsResponse;
    AppendFast AppendFastRequest AppendFastResponse;
    BeginBackup BeginBackupRequest BeginBackupResponse;
    ConsumerGroupDescribe ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse;
    CreateAcls CreateAclsRequest CreateAclsResponse;
    CreatePartitions CreatePartitionsRequest CreatePartitionsResponse;
    CreateTopics CreateTopicsRequest CreateTopicsResponse;
    DeleteAcls DeleteAclsRequest DeleteAclsResponse;
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse;
    DeleteRecords DeleteRecordsRequest DeleteRecordsResponse;
    DeleteShareGroupOffsets DeleteShareGroupOffsetsRequest DeleteShareGroupOffsetsResponse;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse;
    DescribeAcls DescribeAclsRequest DescribeAclsResponse;
    DescribeCluster DescribeClusterRequest DescribeClusterResponse;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse;
    DescribeFast DescribeFastRequest DescribeFastResponse;
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse;
    DescribeLogDirs DescribeLogDirsRequest DescribeLogDirsResponse;
    DescribeProducers DescribeProducersRequest DescribeProducersResponse;
    DescribeQuorum DescribeQuorumRequest DescribeQuorumResponse;
    DescribeReplicas DescribeReplicasRequest DescribeReplicasResponse;
    DescribeShareGroupOffsets DescribeShareGroupOffsetsRequest DescribeShareGroupOffsetsResponse;
    DescribeUserScramCredentials DescribeUserScramCredentialsRequest DescribeUserScramCredentialsResponse;
    DescribeTransactions DescribeTransactionsRequest DescribeTransactionsResponse;
    ElectLeaders ElectLeadersRequest ElectLeadersResponse;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse;
    Heartbeat HeartbeatRequest HeartbeatResponse;
    IncrementalAlterConfigs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse;
    InitProducerId InitProducerIdRequest InitProducerIdResponse;
    JoinGroup JoinGroupRequest JoinGroupResponse;
    LeaveGroup LeaveGroupRequest LeaveGroupResponse;
    ListGroups ListGroupsRequest ListGroupsResponse;
    ListOffsets ListOffsetsRequest ListOffsetsResponse;
    ListPartitionReassignments ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse;
    ListTransactions ListTransactionsRequest ListTransactionsResponse;
    Metadata MetadataRequest MetadataResponse;
    OffsetDelete OffsetDeleteRequest OffsetDeleteResponse;
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse;
    SaslAuthenticate SaslAuthenticateRequest SaslAuthenticateResponse;
    SaslHandshake SaslHandshakeRequest SaslHandshakeResponse;
    ShareGroupDescribe ShareGroupDescribeRequest ShareGroupDescribeResponse;
    SyncGroup SyncGroupRequest SyncGroupResponse;
    UnregisterBroker UnregisterBrokerRequest UnregisterBrokerResponse;
}

impl Call for m::ProduceRequest {
    const API: ApiKey = ApiKey::Produce;
    type Response = m::ProduceResponse;

    fn version_max(&self) -> i16 {
        // From 13 on topics travel by id alone.
        if self.topic_data.iter().any(|topic| topic.topic_id.is_zero()) { 12 } else { 13 }
    }
}

impl Call for m::FetchRequest {
    const API: ApiKey = ApiKey::Fetch;
    type Response = m::FetchResponse;

    fn version_max(&self) -> i16 {
        let nameless = self.topics.iter().any(|topic| topic.topic_id.is_zero());
        let forgotten = self.forgotten_topics_data.iter().any(|topic| topic.topic_id.is_zero());
        if nameless || forgotten { 12 } else { Self::VERSIONS.last }
    }
}

impl Call for m::OffsetCommitRequest {
    const API: ApiKey = ApiKey::OffsetCommit;
    type Response = m::OffsetCommitResponse;

    fn version_max(&self) -> i16 {
        OFFSETS_BY_TOPIC_NAME
    }
}

impl Call for m::OffsetFetchRequest {
    const API: ApiKey = ApiKey::OffsetFetch;
    type Response = m::OffsetFetchResponse;

    fn version_max(&self) -> i16 {
        OFFSETS_BY_TOPIC_NAME
    }
}
