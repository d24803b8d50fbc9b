//! The operations on topics: Kafka's own requests, which any node takes and passes on to the controller.

use std::collections::HashMap;

use duramen_broker::native::Problem;
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::delete_topics::DeleteTopicState;
use duramen_protocol::messages::describe_configs::DescribeConfigsResource;
use duramen_protocol::messages::metadata::{MetadataRequestTopic, MetadataResponseTopic};
use duramen_protocol::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, MetadataRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::calls::{Caller, Calls};
use super::problems::{Fault, NOT_AUTHORIZED, OUTCOME_UNKNOWN, TOPIC_EXISTS};
use crate::proto::{
    CreateTopicRequest, DeleteTopicRequest, DeleteTopicResponse, GetTopicRequest,
    ListTopicsRequest, ListTopicsResponse, Topic,
};

const CREATE_VERSION: i16 = 7;
const DELETE_VERSION: i16 = 5;
const METADATA_VERSION: i16 = 12;
const CONFIGS_VERSION: i16 = 4;
/// Kind of a topic among the resources that have settings.
const TOPIC: i8 = 2;
/// Source of a setting that was given for the topic.
const GIVEN: i8 = 1;
const TIMEOUT_MS: i32 = 30_000;
const PAGE_MAX: u32 = 1_000;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    pub calls: Calls,
}

fn fault_of(code: i16, message: Option<String>) -> Fault {
    let code = ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError);
    let text = message.unwrap_or_else(|| code.to_string());
    match code {
        ErrorCode::UnknownTopicOrPartition => Problem::UnknownTopic.into(),
        ErrorCode::TopicAlreadyExists => Fault::new(TOPIC_EXISTS, text),
        ErrorCode::TopicAuthorizationFailed | ErrorCode::ClusterAuthorizationFailed => {
            Fault::new(NOT_AUTHORIZED, text)
        }
        ErrorCode::RequestTimedOut => Fault::new(OUTCOME_UNKNOWN, text),
        ErrorCode::NotController | ErrorCode::CoordinatorNotAvailable => Problem::NoLeader.into(),
        // One topic is asked for, so that a policy is about its partitions.
        ErrorCode::InvalidPartitions | ErrorCode::PolicyViolation => {
            Fault::bad_request(&[("partitions", text)])
        }
        ErrorCode::InvalidReplicationFactor => Fault::bad_request(&[("replication_factor", text)]),
        ErrorCode::InvalidConfig => Fault::bad_request(&[("settings", text)]),
        _ => Fault::bad_request(&[("name", text)]),
    }
}

/// Makes Kafka's request of a new topic.
pub(crate) fn create_of(request: CreateTopicRequest) -> Result<CreateTopicsRequest, Fault> {
    let CreateTopicRequest { name, partitions, replication_factor, settings } = request;
    // Kafka takes -1 for its default, for which 0 stands here.
    let counts = [("partitions", partitions), ("replication_factor", replication_factor)];
    let negative = counts.into_iter().filter(|(_, count)| *count < 0);
    let errors: Vec<_> = negative.map(|(field, _)| (field, "it is negative".to_owned())).collect();
    if !errors.is_empty() {
        return Err(Fault::bad_request(&errors));
    }
    let configs = settings.into_iter();
    let configs = configs.map(|(name, value)| CreatableTopicConfig { name, value: Some(value) });
    let default = |count: i32| if count == 0 { -1 } else { count };
    let factor = i16::try_from(default(replication_factor));
    let topic = CreatableTopic {
        name,
        num_partitions: default(partitions),
        replication_factor: factor.map_err(|_| {
            Fault::bad_request(&[("replication_factor", "there are not so many nodes".into())])
        })?,
        configs: configs.collect(),
        ..CreatableTopic::default()
    };
    Ok(CreateTopicsRequest {
        topics: vec![topic],
        timeout_ms: TIMEOUT_MS,
        ..CreateTopicsRequest::default()
    })
}

impl Topics {
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        request: CreateTopicRequest,
    ) -> Result<Topic, Fault> {
        let name = request.name.clone();
        let request = create_of(request)?;
        let Response::CreateTopics(response) =
            self.calls.begin(caller).request(request, CREATE_VERSION).await?
        else {
            unreachable!("a response is of its request's API")
        };
        let row = response.topics.into_iter().next();
        let row = row.ok_or_else(|| Fault::from(Problem::NoLeader))?;
        if row.error_code != 0 {
            return Err(fault_of(row.error_code, row.error_message));
        }
        self.get(caller, GetTopicRequest { name }).await
    }

    /// Returns the number of a topic's partitions.
    pub(crate) async fn partitions(&self, caller: &Caller, name: &str) -> Result<i32, Fault> {
        Ok(self.find(caller, name).await?.partitions)
    }

    /// Finds a topic, without its settings.
    async fn find(&self, caller: &Caller, name: &str) -> Result<Topic, Fault> {
        let topic = MetadataRequestTopic { name: Some(name.to_owned()), ..Default::default() };
        let found = self.metadata(caller, Some(vec![topic])).await?.into_iter().next();
        let found = found.ok_or_else(|| Fault::from(Problem::UnknownTopic))?;
        if found.error_code != 0 && found.partitions.is_empty() {
            return Err(fault_of(found.error_code, None));
        }
        Ok(topic_of(found))
    }

    pub(crate) async fn get(
        &self,
        caller: &Caller,
        request: GetTopicRequest,
    ) -> Result<Topic, Fault> {
        let mut topic = self.find(caller, &request.name).await?;
        topic.settings = self.settings(caller, &topic.name).await?;
        Ok(topic)
    }

    async fn metadata(
        &self,
        caller: &Caller,
        topics: Option<Vec<MetadataRequestTopic>>,
    ) -> Result<Vec<MetadataResponseTopic>, Fault> {
        let request = MetadataRequest {
            topics,
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let answer = self.calls.begin(caller).request(request, METADATA_VERSION).await;
        match answer.map_err(Fault::of_a_read)? {
            Response::Metadata(response) => Ok(response.topics),
            other => unreachable!("{:?} answers no metadata request", other.api_key()),
        }
    }

    /// Returns the settings that were given for a topic.
    async fn settings(
        &self,
        caller: &Caller,
        name: &str,
    ) -> Result<HashMap<String, String>, Fault> {
        let resource = DescribeConfigsResource {
            resource_type: TOPIC,
            resource_name: name.to_owned(),
            ..DescribeConfigsResource::default()
        };
        let request = DescribeConfigsRequest {
            resources: vec![resource],
            ..DescribeConfigsRequest::default()
        };
        let Response::DescribeConfigs(response) = self
            .calls
            .begin(caller)
            .request(request, CONFIGS_VERSION)
            .await
            .map_err(Fault::of_a_read)?
        else {
            unreachable!("a response is of its request's API")
        };
        let rows = response.results.into_iter().flat_map(|it| it.configs);
        let given = rows.filter(|it| it.config_source == GIVEN);
        Ok(given.filter_map(|it| Some((it.name, it.value?))).collect())
    }

    pub(crate) async fn list(
        &self,
        caller: &Caller,
        request: ListTopicsRequest,
    ) -> Result<ListTopicsResponse, Fault> {
        let ListTopicsRequest { prefix, after, limit } = request;
        if limit > PAGE_MAX {
            let reason = format!("a page has at most {PAGE_MAX} topics");
            return Err(Fault::bad_request(&[("limit", reason)]));
        }
        let limit = if limit == 0 { PAGE_MAX } else { limit } as usize;
        let all = self.metadata(caller, None).await?;
        let mut topics: Vec<Topic> = all
            .into_iter()
            .filter(|topic| !topic.is_internal)
            .map(topic_of)
            .filter(|topic| topic.name.starts_with(&prefix) && topic.name > after)
            .collect();
        topics.sort_by(|one, other| one.name.cmp(&other.name));
        let more = topics.len() > limit;
        topics.truncate(limit);
        Ok(ListTopicsResponse { topics, more })
    }

    pub(crate) async fn delete(
        &self,
        caller: &Caller,
        request: DeleteTopicRequest,
    ) -> Result<DeleteTopicResponse, Fault> {
        let request = DeleteTopicsRequest {
            topic_names: vec![request.name],
            topics: Vec::<DeleteTopicState>::new(),
            timeout_ms: TIMEOUT_MS,
        };
        let Response::DeleteTopics(response) =
            self.calls.begin(caller).request(request, DELETE_VERSION).await?
        else {
            unreachable!("a response is of its request's API")
        };
        let row = response.responses.into_iter().next();
        let row = row.ok_or_else(|| Fault::from(Problem::NoLeader))?;
        if row.error_code != 0 {
            return Err(fault_of(row.error_code, row.error_message));
        }
        Ok(DeleteTopicResponse {})
    }
}

fn topic_of(found: MetadataResponseTopic) -> Topic {
    let replicas = found.partitions.first().map_or(0, |it| it.replica_nodes.len());
    Topic {
        name: found.name.unwrap_or_default(),
        id: found.topic_id.0.to_vec().into(),
        partitions: i32::try_from(found.partitions.len()).unwrap_or(i32::MAX),
        replication_factor: i32::try_from(replicas).unwrap_or(i32::MAX),
        settings: HashMap::new(),
    }
}
