//! `duramen group`: consumer groups, their members and their offsets.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::{Args, Subcommand};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::describe_groups::DescribedGroup;

use super::bootstrap::run;
use super::topic::{has_not, unknown};
use super::usage::topic_name;
use super::{explained, screen};
use duramen_client::{Client, Error, Partitions};

mod delete;
mod describe;
mod list;
mod reset;

/// Consumer groups, their members and their offsets.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen group list
  duramen group describe billing
  duramen group reset billing --to beginning
  duramen group delete billing
  duramen consume orders --group billing --follow")]
pub struct Group {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List groups with their states
    List(list::List),
    /// Show members of groups, their partitions, and their lag
    Describe(describe::Describe),
    /// Set the offsets at which a group continues; shows them first
    Reset(reset::Reset),
    /// Delete groups, or a group's offsets of some topics
    Delete(delete::Delete),
}

impl Group {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List(command) => run(command.run()),
            Action::Describe(command) => run(command.run()),
            Action::Reset(command) => run(command.run()),
            Action::Delete(command) => run(command.run()),
        }
    }
}

/// `TOPIC` or `TOPIC:P,P,…`. Without partitions, all of them are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    topic: String,
    partitions: Vec<i32>,
}

/// Reads a [`Scope`].
fn scope(text: &str) -> Result<Scope, String> {
    let (topic, listed) = text.split_once(':').unwrap_or((text, ""));
    if topic.is_empty() || text.ends_with(':') {
        return Err(format!("`{text}` is not TOPIC or TOPIC:PARTITION,..."));
    }
    let topic = topic_name(topic)?;
    let number = |part: &str| part.trim().parse::<i32>().ok().filter(|part| *part >= 0);
    let partitions = match listed {
        "" => Some(Vec::new()),
        _ => listed.split(',').map(number).collect(),
    };
    let partitions = partitions.ok_or_else(|| format!("`{listed}` is not a list of partitions"))?;
    Ok(Scope { topic, partitions })
}

/// Finds the partitions that these scopes name, or all of a topic where a scope names none.
async fn partitions_of(client: &Client, scopes: &[Scope]) -> anyhow::Result<Partitions> {
    let mut found = Partitions::new();
    for scope in scopes {
        let there = partitions_there(client, &scope.topic).await?;
        let Some(there) = there else {
            let text = format!("there is no topic {}", scope.topic);
            return Err(explained(ErrorCode::UnknownTopicOrPartition, text));
        };
        for partition in &scope.partitions {
            ensure!(there.contains(partition), has_not(&scope.topic, &there, *partition));
        }
        let named = if scope.partitions.is_empty() { &there } else { &scope.partitions };
        let partitions = found.entry(scope.topic.clone()).or_default();
        partitions.extend(named);
        partitions.sort_unstable();
        partitions.dedup();
    }
    Ok(found)
}

/// Finds the partitions of a topic. Returns `None` for a missing topic.
async fn partitions_there(client: &Client, topic: &str) -> anyhow::Result<Option<Vec<i32>>> {
    match client.topic(topic, false).await {
        Ok(found) => {
            let mut there: Vec<i32> =
                found.partitions.iter().map(|part| part.partition_index).collect();
            there.sort_unstable();
            Ok(Some(there))
        }
        Err(error) if unknown(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn no_such_group(group: &str) -> anyhow::Error {
    explained(
        ErrorCode::GroupIdNotFound,
        format!("there is no group {group}; see which there are with `duramen group list`"),
    )
}

/// Names the members that prevent a change to a group's offsets, and the fix.
fn has_members(group: &DescribedGroup) -> String {
    let mut clients = BTreeMap::<String, usize>::new();
    for member in &group.members {
        let host = member.client_host.trim_start_matches('/');
        *clients.entry(format!("{} at {host}", member.client_id)).or_default() += 1;
    }
    let more = |(client, count): (String, usize)| match count {
        1 => client,
        count => format!("{client} ({count} times)"),
    };
    let clients = clients.into_iter().map(more).collect::<Vec<_>>().join(", ");
    let members = screen::count(group.members.len(), "active member");
    format!("group {} has {members}: {clients}", group.group_id)
}

/// Explains the broker's refusal of a change to a group, with the fix.
fn refusal(group: &str, error: Error) -> anyhow::Error {
    match error.code() {
        Some(ErrorCode::GroupIdNotFound) => no_such_group(group),
        Some(
            code @ (ErrorCode::NonEmptyGroup
            | ErrorCode::UnknownMemberId
            | ErrorCode::IllegalGeneration
            | ErrorCode::RebalanceInProgress),
        ) => explained(
            code,
            format!(
                "group {group} has active members; stop them (`duramen group describe {group}` shows \
                 who they are), then try again"
            ),
        ),
        Some(ErrorCode::GroupSubscribedToTopic) => anyhow::Error::new(error).context(format!(
            "members of group {group} read this topic; stop them (`duramen group describe {group}` \
             shows who they are), then try again"
        )),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::describe_groups::DescribedGroupMember;

    use super::*;

    #[test]
    fn scopes_are_topics_with_or_without_partitions() {
        let is = |topic: &str, partitions: &[i32]| {
            Ok(Scope { topic: topic.into(), partitions: partitions.into() })
        };
        assert_eq!(scope("orders"), is("orders", &[]));
        assert_eq!(scope("orders:0"), is("orders", &[0]));
        assert_eq!(scope("orders:0,2, 7"), is("orders", &[0, 2, 7]));
        for text in ["", ":0", "orders:", "orders:a", "orders:-1", "orders:1,"] {
            assert!(scope(text).is_err(), "{text}");
        }
    }

    #[test]
    fn members_in_the_way_are_named() {
        let member = |id: &str| DescribedGroupMember {
            client_id: id.into(),
            client_host: "/10.0.0.7".into(),
            ..DescribedGroupMember::default()
        };
        let group = DescribedGroup {
            group_id: "g".into(),
            members: vec![member("app"), member("other"), member("app")],
            ..DescribedGroup::default()
        };
        let expected = "group g has 3 active members: app at 10.0.0.7 (2 times), other at 10.0.0.7";
        assert_eq!(has_members(&group), expected);
    }
}
