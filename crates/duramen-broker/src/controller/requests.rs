//! Requests that the controller decides on, or answers best.

use duramen_protocol::Request;

use super::Controller;
use crate::configs::resource_kind;

/// Longest time that the leader of the metadata may take to describe the quorum to another node, in milliseconds.
const DESCRIBE_QUORUM_MS: i32 = 5_000;
/// Longest time that the controller may take to decide on a request without a timeout of its own, in milliseconds:
/// Kafka's `request.timeout.ms`.
pub(crate) const DECISION_MS: i32 = 30_000;

/// Tells whether only the controller, which leads the metadata, decides on this request.
pub(crate) fn decides(request: &Request) -> bool {
    matches!(
        request,
        Request::AlterClientQuotas(_)
            | Request::CreateAcls(_)
            | Request::DeleteAcls(_)
            | Request::AlterUserScramCredentials(_)
            | Request::AlterConfigs(_)
            | Request::IncrementalAlterConfigs(_)
            | Request::AlterPartitionReassignments(_)
            | Request::CreatePartitions(_)
            | Request::CreateTopics(_)
            | Request::DeleteTopics(_)
            | Request::UnregisterBroker(_)
    )
}

/// Tells whether the controller knows the best answer. Without a controller, any node answers with its own knowledge.
pub(crate) fn knows_best(request: &Request) -> bool {
    matches!(request, Request::DescribeQuorum(_))
}

/// Returns the longest time that the controller may take to decide on a request, in milliseconds.
pub(crate) fn timeout_ms(request: &Request) -> i32 {
    match request {
        Request::AlterPartitionReassignments(request) => request.timeout_ms,
        Request::CreatePartitions(request) => request.timeout_ms,
        Request::CreateTopics(request) => request.timeout_ms,
        Request::DeleteTopics(request) => request.timeout_ms,
        Request::DescribeQuorum(_) => DESCRIBE_QUORUM_MS,
        _ => DECISION_MS,
    }
}

impl Controller {
    /// Tells whether a request depends on a proposed change that is not committed yet: of a topic that it names, or of
    /// nodes' settings. The controller can judge the request only after that change is decided.
    pub(crate) fn is_deciding_on(&self, request: &Request) -> bool {
        let is_open = |name: &str| {
            let there = self.image.topic_named(name);
            self.creating.contains_key(name)
                || there.is_some_and(|topic| self.changing.contains(&topic.id))
        };
        let is_altered = |kind: i8, name: &str| match kind {
            resource_kind::BROKER => !self.configuring.is_empty(),
            _ => is_open(name),
        };
        match request {
            Request::CreateAcls(_) | Request::DeleteAcls(_) => !self.ruling.is_empty(),
            Request::AlterUserScramCredentials(request) => {
                let deleted = request.deletions.iter().map(|it| &it.name);
                let mut named = deleted.chain(request.upsertions.iter().map(|it| &it.name));
                named.any(|user| self.crediting.contains(user))
            }
            Request::AlterConfigs(request) => {
                request.resources.iter().any(|it| is_altered(it.resource_type, &it.resource_name))
            }
            Request::IncrementalAlterConfigs(request) => {
                request.resources.iter().any(|it| is_altered(it.resource_type, &it.resource_name))
            }
            Request::AlterPartitionReassignments(asked) => {
                asked.topics.iter().any(|it| is_open(&it.name))
            }
            Request::CreatePartitions(asked) => asked.topics.iter().any(|it| is_open(&it.name)),
            Request::CreateTopics(asked) => asked.topics.iter().any(|it| is_open(&it.name)),
            Request::DeleteTopics(request) => {
                let names = request.topic_names.iter();
                let states = request.topics.iter();
                names.chain(states.clone().filter_map(|it| it.name.as_ref())).any(|it| is_open(it))
                    || states.into_iter().any(|it| self.changing.contains(&it.topic_id))
            }
            _ => false,
        }
    }
}
