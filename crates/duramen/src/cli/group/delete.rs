//! `duramen group delete`.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use clap::Args;
use duramen_client::{Client, Partitions};
use duramen_protocol::error_code::ErrorCode;
use serde::Serialize;

use super::refusal::refusal;
use super::scope::{Scope, partitions_of, scope};
use crate::cli::bootstrap::Cluster;
use crate::cli::missing::no_such_group;
use crate::cli::screen;
use crate::cli::usage::one_by_one;

#[derive(Debug, Args)]
#[command(
    after_help = "Stop the members of a group before you delete it. While members run, you can delete only offsets of
topics that no member reads. A share group must have no members for either, and you can delete its
offsets only for whole topics.

The command deletes one group after the other. If one fails, it deletes the others nevertheless.

Examples:
  duramen group delete billing
  duramen group delete billing audit --if-exists
  duramen group delete billing --topic orders --topic audit:0,3
  duramen group list --state empty -o json | jq -r '.[].group' | xargs -r duramen group delete"
)]
pub(super) struct Delete {
    /// The groups' names
    #[arg(value_name = "GROUP", required = true)]
    groups: Vec<String>,
    /// Delete only the offsets of this topic, or of these partitions of it; may be repeated. The group stays
    #[arg(long = "topic", short, value_name = "TOPIC[:P,...]", value_parser = scope)]
    topics: Vec<Scope>,
    /// Succeed without a change if a group does not exist
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Removal {
    group: String,
    deleted: bool,
    /// Partitions whose offsets were deleted; absent if the whole group was.
    offsets: Option<Partitions>,
}

impl Delete {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let delete = async |group: &str| self.delete(&client, group).await;
        one_by_one(&self.cluster, &self.groups, delete, Removal::text).await
    }

    async fn delete(&self, client: &Client, group: &str) -> anyhow::Result<Removal> {
        let offsets = if self.topics.is_empty() {
            None
        } else {
            let (_, found) = client.describe_group(group).await?;
            if found.is_some_and(|found| found.is_share()) {
                return self.forget(client, group).await;
            }
            let committed = client.committed(group).await?;
            let named = partitions_of(client, &self.topics).await?;
            let mut held = Partitions::new();
            for (topic, partitions) in named {
                let of_topic = committed.get(&topic);
                let has = |partition: &i32| of_topic.is_some_and(|it| it.contains_key(partition));
                let partitions: Vec<i32> = partitions.into_iter().filter(has).collect();
                if !partitions.is_empty() {
                    held.insert(topic, partitions);
                }
            }
            if held.is_empty() && !self.if_exists {
                bail!(
                    "group {group} has no offsets there; `duramen group describe {group}` shows where it has"
                );
            }
            Some(held)
        };
        let outcome = match &offsets {
            Some(held) if held.is_empty() => {
                return Ok(Removal { group: group.into(), deleted: false, offsets });
            }
            Some(held) => client.delete_offsets(group, held).await,
            None => client.delete_group(group).await,
        };
        match outcome {
            Ok(()) => Ok(Removal { group: group.into(), deleted: true, offsets }),
            Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => {
                ensure!(self.if_exists, no_such_group(group));
                Ok(Removal { group: group.into(), deleted: false, offsets })
            }
            Err(error) => Err(refusal(group, error)),
        }
    }
}

impl Delete {
    /// Deletes the offsets of a share group in whole topics.
    async fn forget(&self, client: &Client, group: &str) -> anyhow::Result<Removal> {
        ensure!(
            self.topics.iter().all(|scope| scope.partitions.is_empty()),
            "group {group} is a share group, which forgets whole topics; name them without partitions"
        );
        let starts = client.share_starts(group).await?;
        let held = |scope: &&Scope| starts.contains_key(&scope.topic);
        let topics: BTreeSet<String> =
            self.topics.iter().filter(held).map(|scope| scope.topic.clone()).collect();
        let topics: Vec<String> = topics.into_iter().collect();
        ensure!(
            !topics.is_empty() || self.if_exists,
            "group {group} has no offsets there; `duramen group describe {group}` shows where it has"
        );
        if !topics.is_empty() {
            let outcome = client.forget_share_starts(group, &topics).await;
            outcome.map_err(|error| refusal(group, error))?;
        }
        let of = |topic: &String| (topic.clone(), starts[topic].keys().copied().collect());
        let offsets: Partitions = topics.iter().map(of).collect();
        Ok(Removal { group: group.into(), deleted: !offsets.is_empty(), offsets: Some(offsets) })
    }
}

impl Removal {
    fn text(&self) -> String {
        let Self { group, .. } = self;
        match &self.offsets {
            None if self.deleted => format!("deleted group {group}"),
            None => format!("there is no group {group}"),
            Some(_) if !self.deleted => format!("group {group} has no offsets there"),
            Some(offsets) => {
                let topic =
                    |(topic, it): (&String, &Vec<i32>)| format!("{topic}:{}", screen::runs(it));
                let named = offsets.iter().map(topic).collect::<Vec<_>>().join(" ");
                format!("deleted the offsets of group {group} in {named}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_deleted_is_said() {
        let offsets = Partitions::from([("t".to_owned(), vec![0, 1, 2])]);
        let of_topic = Removal { group: "g".into(), deleted: true, offsets: Some(offsets) };
        assert_eq!(of_topic.text(), "deleted the offsets of group g in t:0-2");
        let all = Removal { group: "g".into(), deleted: true, offsets: None };
        assert_eq!(all.text(), "deleted group g");
        assert_eq!(Removal { deleted: false, ..all }.text(), "there is no group g");
    }
}
