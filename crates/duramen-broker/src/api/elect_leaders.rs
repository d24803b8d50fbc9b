//! `ElectLeaders`: the leader of a partition hands over to its preferred replica. Any node carries out the request, and
//! asks the leaders itself.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::elect_leaders::{
    PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use duramen_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};

use super::checks::admit_operator;
use crate::controller::Error;
use crate::controller::image::Topic;
use crate::core::{ElectionWanted, Parked};
use crate::event::RequestKey;
use crate::limits::ELECTION_WAITS_US;
use crate::node::{Election, Node};
use crate::session::RequestContext;

const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &ElectLeadersRequest,
) {
    let (response, wanted) = match &request.topic_partitions {
        Some(topics) => judge_some(node, context, request, topics),
        None => judge_all(node, context, request),
    };
    if wanted.is_empty() {
        return node.reply(key, response);
    }
    let now = node.core.now;
    let last_us = now.mono_us.saturating_add(ELECTION_WAITS_US);
    let deadline_us = now.deadline_us(request.timeout_ms).min(last_us);
    node.moves.elect(&mut node.core, key, response, wanted, deadline_us);
}

fn judge_some(
    node: &Node,
    context: &RequestContext,
    request: &ElectLeadersRequest,
    topics: &[TopicPartitions],
) -> (ElectLeadersResponse, Vec<ElectionWanted>) {
    let mut response = ElectLeadersResponse::default();
    let mut wanted = Vec::new();
    let obstacle = admit(node, context, request).err();
    if let Some(error) = obstacle.as_ref().filter(|_| !topics.is_empty()) {
        response.error_code = error.code.code();
    }
    for (at, TopicPartitions { topic: name, partitions }) in topics.iter().enumerate() {
        let topic = node.core.controller.image.topic_named(name);
        let mut row = ReplicaElectionResult { topic: name.clone(), partition_result: Vec::new() };
        for &partition in partitions {
            let judged = match &obstacle {
                Some(error) => Some(error.clone()),
                None => judge(node, request.election_type, topic, partition),
            };
            if judged.is_none()
                && let Some(topic) = topic
            {
                let slot = (at, row.partition_result.len());
                wanted.push(ElectionWanted { topic_id: topic.id, partition, slot });
            }
            row.partition_result.push(result(partition, judged));
        }
        response.replica_election_results.push(row);
    }
    (response, wanted)
}

/// Judges all partitions. The answer leaves out those that have their preferred leader.
fn judge_all(
    node: &Node,
    context: &RequestContext,
    request: &ElectLeadersRequest,
) -> (ElectLeadersResponse, Vec<ElectionWanted>) {
    let mut response = ElectLeadersResponse::default();
    let mut wanted = Vec::new();
    if let Err(error) = admit(node, context, request) {
        response.error_code = error.code.code();
        return (response, wanted);
    }
    for (at, topic) in node.core.controller.image.topics_by_name().enumerate() {
        let topic_id = topic.id;
        let mut row =
            ReplicaElectionResult { topic: topic.name.clone(), partition_result: Vec::new() };
        for partition in (0..).take(topic.partitions.len()) {
            let judged = judge(node, request.election_type, Some(topic), partition);
            if judged.as_ref().is_some_and(|it| it.code == ErrorCode::ElectionNotNeeded) {
                continue;
            }
            if judged.is_none() {
                let slot = (at, row.partition_result.len());
                wanted.push(ElectionWanted { topic_id, partition, slot });
            }
            row.partition_result.push(result(partition, judged));
        }
        response.replica_election_results.push(row);
    }
    (response, wanted)
}

/// Returns the result for one partition, or `None` if the node waits for its election. The texts do not repeat the
/// request: a long request would come back once for each partition.
fn judge(node: &Node, election_type: i8, topic: Option<&Topic>, partition: i32) -> Option<Error> {
    let error = |code, text: &str| Some(Error::new(code, text));
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let Some(topic) = topic else { return error(unknown, "there is no such topic") };
    let Some(election) = node.moves.election(&node.core, topic.id, partition) else {
        return error(unknown, "the topic has no such partition");
    };
    let not_needed = ErrorCode::ElectionNotNeeded;
    if election_type == UNCLEAN {
        if node.core.leader_of(topic, partition).is_some() {
            return error(not_needed, "the partition has a leader");
        }
        let text =
            "a leader needs a majority of the replicas: others may lack what was acknowledged";
        return error(ErrorCode::EligibleLeadersNotAvailable, text);
    }
    match election {
        Election::Led => error(not_needed, "the partition has its leader"),
        Election::NotThere => Some(not_available()),
        Election::Pending => None,
    }
}

fn not_available() -> Error {
    let text = "the preferred replica is not there, does not keep up, or has a full disk";
    Error::new(ErrorCode::PreferredLeaderNotAvailable, text)
}

fn result(partition_id: i32, error: Option<Error>) -> PartitionResult {
    let error_code = error.as_ref().map_or(0, |error| error.code.code());
    PartitionResult { partition_id, error_code, error_message: error.map(|error| error.message) }
}

/// Records results of elections, and answers when none is left.
pub(crate) fn on_elected(node: &mut Node, key: RequestKey, outcomes: &[(ElectionWanted, bool)]) {
    let Some(Parked::Election { response, wanted }) = node.core.parked_mut(key) else { return };
    for (one, is_led) in outcomes {
        let row = &mut response.replica_election_results[one.slot.0].partition_result[one.slot.1];
        *row = result(one.partition, (!is_led).then(not_available));
    }
    if wanted.is_empty()
        && let Some(Parked::Election { response, .. }) = node.unpark(key)
    {
        node.reply(key, *response);
    }
}

/// Tells whether the request as a whole is allowed.
fn admit(
    node: &Node,
    context: &RequestContext,
    request: &ElectLeadersRequest,
) -> Result<(), Error> {
    admit_operator(node, context)?;
    if !matches!(request.election_type, PREFERRED | UNCLEAN) {
        let text = format!("there is no type of election {}", request.election_type);
        return Err(Error::new(ErrorCode::InvalidRequest, text));
    }
    if request.timeout_ms <= 0 && request.topic_partitions.is_some() {
        return Err(Error::new(ErrorCode::RequestTimedOut, "there is no time"));
    }
    Ok(())
}
