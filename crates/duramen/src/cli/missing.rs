//! Things that a command names and the cluster does not have: topics, partitions, groups, transactional ids.

use duramen_client::Error;
use duramen_protocol::ErrorCode;

use super::failure::explained;

/// Tells whether an error is about a missing topic.
pub(super) fn unknown(error: &Error) -> bool {
    error.code() == Some(ErrorCode::UnknownTopicOrPartition)
}

/// Names the fix for a missing topic.
pub(super) fn unknown_topic(name: &str) -> impl Fn(Error) -> anyhow::Error {
    move |error| {
        if unknown(&error) {
            let text =
                format!("there is no topic {name}; create it with `duramen topic create {name}`");
            explained(ErrorCode::UnknownTopicOrPartition, text)
        } else {
            error.into()
        }
    }
}

/// Names the way to find the topics that exist.
pub(super) fn no_such_topic(name: &str) -> anyhow::Error {
    let text = format!("there is no topic {name}; see which there are with `duramen topic list`");
    explained(ErrorCode::UnknownTopicOrPartition, text)
}

/// Explains that a topic lacks a partition, and names those that it has.
pub(super) fn has_not(topic: &str, there: &[i32], partition: i32) -> String {
    match there.iter().max() {
        Some(last @ 1..) => {
            format!("topic {topic} has partitions 0 to {last}, and no partition {partition}")
        }
        _ => format!("topic {topic} has partition 0 alone, and no partition {partition}"),
    }
}

/// Names the way to find the groups that exist.
pub(super) fn no_such_group(group: &str) -> anyhow::Error {
    explained(
        ErrorCode::GroupIdNotFound,
        format!("there is no group {group}; see which there are with `duramen group list`"),
    )
}

/// Names the way to find the transactional ids that exist.
pub(super) fn no_such_id(id: &str) -> anyhow::Error {
    let text =
        format!("there is no transactional id {id}; see which there are with `duramen txn list`");
    explained(ErrorCode::TransactionalIdNotFound, text)
}
