//! Which answer belongs to which request.

use duramen_protocol::api::ApiKey;
use duramen_protocol::messages as m;
use duramen_protocol::wire::Message;

/// A request that this client sends.
pub trait Call: Message {
    /// Its API.
    const API: ApiKey;
    /// The answer.
    type Response: Message;

    /// The newest version that can carry this very request. Topic ids decide it in some APIs.
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
    ApiVersions ApiVersionsRequest ApiVersionsResponse;
    CreateTopics CreateTopicsRequest CreateTopicsResponse;
    DeleteRecords DeleteRecordsRequest DeleteRecordsResponse;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse;
    DescribeCluster DescribeClusterRequest DescribeClusterResponse;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse;
    InitProducerId InitProducerIdRequest InitProducerIdResponse;
    ListOffsets ListOffsetsRequest ListOffsetsResponse;
    Metadata MetadataRequest MetadataResponse;
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse;
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
