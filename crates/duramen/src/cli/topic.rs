//! `duramen topic`: create, list, describe, alter, trim and delete topics.

use std::fmt::Write as _;

use anyhow::ensure;
use clap::{Args, Subcommand};
use duramen_client::{Client, Error, NewTopic, OffsetAt};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::metadata::MetadataResponseTopic;
use serde::Serialize;

use super::bootstrap::{Cluster, run};
use super::failure::explained;
use super::missing::{unknown, unknown_topic};
use super::screen::{self, Table, or_dash};
use super::usage::{key_value, once, one_by_one, settings, topic_name};

mod alter;
mod source;
mod trim;

use source::{SOURCE_TOPIC, source};

/// Create, list, describe, alter, trim and delete topics.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen topic create orders --partitions 6
  duramen topic create audit --config retention.ms=-1 --config segment.bytes=268435456
  duramen topic list
  duramen topic describe orders
  duramen topic alter orders --partitions 12 --config retention.ms=86400000
  duramen topic delete orders")]
pub struct Topic {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a topic
    Create(Create),
    /// List topics
    List(List),
    /// Show partitions, leaders, offsets and settings of topics
    Describe(Describe),
    /// Change settings of topics, or their number of partitions or replicas
    Alter(alter::Alter),
    /// Delete the oldest records of a topic; shows them first
    Trim(trim::Trim),
    /// Delete topics with all their records
    Delete(Delete),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen topic create orders --partitions 6
  duramen topic create orders --partitions 6 --if-not-exists
  duramen topic create audit --config retention.ms=-1 --config cleanup.policy=delete")]
struct Create {
    /// Name of the topic: letters, digits, '.', '_' and '-'
    #[arg(value_parser = topic_name)]
    name: String,
    /// Number of partitions; the default is the broker's num.partitions
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Replicas of each partition; the default is the broker's default.replication.factor
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// Setting that differs from the broker's; may be repeated
    #[arg(long = "config", short, value_name = "KEY=VALUE", value_parser = key_value)]
    configs: Vec<(String, String)>,
    /// Succeed without a change if the topic exists
    #[arg(long)]
    if_not_exists: bool,
    /// Only check that the broker could create the topic
    #[arg(long, alias = "validate-only")]
    dry_run: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen topic list
  duramen topic list --output json | jq -r '.[].name'")]
struct List {
    /// List the cluster's internal topics, too
    #[arg(long)]
    internal: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen topic describe orders
  duramen topic describe orders --all-configs
  duramen topic describe orders --output json | jq '.[0].partitions[0].end'")]
struct Describe {
    /// The topics' names
    #[arg(required = true, value_parser = topic_name)]
    names: Vec<String>,
    /// Show settings with the broker's values, too
    #[arg(long)]
    all_configs: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen topic delete orders
  duramen topic delete orders audit --if-exists")]
struct Delete {
    /// The topics' names
    #[arg(required = true, value_parser = topic_name)]
    names: Vec<String>,
    /// Succeed without a change if a topic does not exist
    #[arg(long)]
    if_exists: bool,
    /// Delete internal topics, too, and lose their content: groups and their offsets, transactions
    #[arg(long)]
    internal: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Outcome {
    name: String,
    created: bool,
    /// Absent, as are the fields below, if the topic existed or the broker does not return them.
    id: Option<String>,
    partitions: Option<i32>,
    replication_factor: Option<i16>,
}

#[derive(Debug, Serialize)]
struct Removal {
    name: String,
    deleted: bool,
}

#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    partitions: usize,
    replication_factor: usize,
    internal: bool,
}

#[derive(Debug, Serialize)]
struct Described {
    name: String,
    id: Option<String>,
    internal: bool,
    partitions: Vec<DescribedPartition>,
    configs: Vec<DescribedConfig>,
}

#[derive(Debug, Serialize)]
struct DescribedPartition {
    partition: i32,
    leader: Option<i32>,
    term: Option<i32>,
    replicas: Vec<i32>,
    in_sync: Vec<i32>,
    start: Option<i64>,
    end: Option<i64>,
}

#[derive(Debug, Serialize)]
struct DescribedConfig {
    name: String,
    value: Option<String>,
    source: &'static str,
}

impl Topic {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Create(command) => run(command.run()),
            Action::List(command) => run(command.run()),
            Action::Describe(command) => run(command.run()),
            Action::Alter(command) => run(command.run()),
            Action::Trim(command) => run(command.run()),
            Action::Delete(command) => run(command.run()),
        }
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        let configs = settings(&self.configs)?;
        let client = self.cluster.connect().await?;
        let topic = NewTopic {
            name: self.name.clone(),
            partitions: self.partitions.unwrap_or(-1),
            replication_factor: self.replication_factor.unwrap_or(-1),
            configs,
        };
        let created = match client.create_topic(&topic, self.dry_run).await {
            Ok(result) => Outcome {
                name: self.name,
                created: !self.dry_run,
                id: (!result.topic_id.is_zero()).then(|| result.topic_id.to_string()),
                partitions: (result.num_partitions > 0).then_some(result.num_partitions),
                replication_factor: (result.replication_factor > 0)
                    .then_some(result.replication_factor),
            },
            Err(error) if exists(&error) && self.if_not_exists => Outcome {
                name: self.name,
                created: false,
                id: None,
                partitions: None,
                replication_factor: None,
            },
            Err(error) if exists(&error) => {
                let text = format!(
                    "topic {0} is there already; see it with `duramen topic describe {0}`, or pass --if-not-exists",
                    self.name
                );
                return Err(explained(ErrorCode::TopicAlreadyExists, text));
            }
            Err(error) => return Err(error.into()),
        };
        self.cluster.output.print(&created, || created.text(self.dry_run))
    }
}

impl Outcome {
    fn text(&self, dry_run: bool) -> String {
        let name = &self.name;
        let line = match (self.created, dry_run) {
            (true, _) => format!("created topic {name}"),
            (false, true) => format!("topic {name} could be created"),
            (false, false) => format!("topic {name} is there already"),
        };
        let partitions = self.partitions.map(|it| screen::count(it, "partition"));
        line + &partitions.map(|it| format!(" with {it}")).unwrap_or_default()
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let metadata = client.metadata(None, false).await?;
        let mut listed: Vec<Listed> = metadata
            .topics
            .into_iter()
            .filter(|topic| self.internal || !topic.is_internal)
            .map(|topic| Listed {
                partitions: topic.partitions.len(),
                replication_factor: topic.partitions.first().map_or(0, |p| p.replica_nodes.len()),
                internal: topic.is_internal,
                name: topic.name.unwrap_or_default(),
            })
            .collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let empty = "no topics; create one with `duramen topic create NAME`";
        self.cluster.output.print_list(&listed, empty, |listed| {
            let mut table = Table::new(&["TOPIC", "PARTITIONS", "REPLICAS"]);
            for topic in listed {
                let name =
                    format!("{}{}", topic.name, if topic.internal { " (internal)" } else { "" });
                table.row(&[&name, &topic.partitions, &topic.replication_factor]);
            }
            table
        })
    }
}

impl Describe {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let mut described = Vec::new();
        for name in once(&self.names) {
            let topic = client.topic(name, false).await.map_err(unknown_topic(name))?;
            described.push(self.describe(&client, topic).await?);
        }
        self.cluster.output.print(&described, || {
            described.iter().map(Described::text).collect::<Vec<_>>().join("\n")
        })
    }

    async fn describe(
        &self,
        client: &Client,
        topic: MetadataResponseTopic,
    ) -> anyhow::Result<Described> {
        let name = topic.name.unwrap_or_default();
        let led = topic.partitions.iter().filter(|partition| partition.leader_id >= 0);
        let led: Vec<i32> = led.map(|partition| partition.partition_index).collect();
        let places = |at: OffsetAt| led.iter().map(|index| (*index, at)).collect::<Vec<_>>();
        let starts = client.list_offsets(&name, &places(OffsetAt::Start)).await?;
        let ends = client.list_offsets(&name, &places(OffsetAt::End)).await?;
        let mut partitions: Vec<_> = topic
            .partitions
            .into_iter()
            .map(|partition| DescribedPartition {
                partition: partition.partition_index,
                leader: (partition.leader_id >= 0).then_some(partition.leader_id),
                term: (partition.leader_epoch >= 0).then_some(partition.leader_epoch),
                replicas: partition.replica_nodes,
                in_sync: partition.isr_nodes,
                start: starts.get(&partition.partition_index).map(|listed| listed.offset),
                end: ends.get(&partition.partition_index).map(|listed| listed.offset),
            })
            .collect();
        partitions.sort_by_key(|partition| partition.partition);
        let configs = client.topic_configs(&name).await?.into_iter();
        let mut configs: Vec<_> = configs
            .filter(|config| self.all_configs || config.config_source == SOURCE_TOPIC)
            .map(|config| DescribedConfig {
                name: config.name,
                value: config.value,
                source: source(config.config_source),
            })
            .collect();
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        let id = (!topic.topic_id.is_zero()).then(|| topic.topic_id.to_string());
        Ok(Described { name, id, internal: topic.is_internal, partitions, configs })
    }
}

impl Described {
    fn text(&self) -> String {
        let id = self.id.as_deref().map(|id| format!(", id {id}")).unwrap_or_default();
        let partitions = screen::count(self.partitions.len(), "partition");
        let mut text = format!("topic {}: {partitions}{id}\n", self.name);
        for config in &self.configs {
            let value = config.value.as_deref().unwrap_or("(hidden)");
            writeln!(text, "  {} = {value}  ({})", config.name, config.source)
                .expect("a string takes all");
        }
        let headings =
            ["PARTITION", "LEADER", "TERM", "REPLICAS", "IN SYNC", "START", "END", "RECORDS"];
        let mut table = Table::new(&headings);
        for part in &self.partitions {
            let records = part.start.zip(part.end).map(|(start, end)| end - start);
            table.row(&[
                &part.partition,
                &or_dash(part.leader),
                &or_dash(part.term),
                &screen::list(&part.replicas),
                &screen::list(&part.in_sync),
                &or_dash(part.start),
                &or_dash(part.end),
                &or_dash(records),
            ]);
        }
        text + &table.render()
    }
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        self.check(&client).await?;
        let delete = async |name: &str| match client.delete_topic(name).await {
            Ok(()) => Ok(Removal { name: name.to_owned(), deleted: true }),
            Err(error) if unknown(&error) && self.if_exists => {
                Ok(Removal { name: name.to_owned(), deleted: false })
            }
            Err(error) if unknown(&error) => Err(missing(name)),
            Err(error) => Err(error.into()),
        };
        one_by_one(&self.cluster, &self.names, delete, Removal::text).await
    }

    /// Checks all topics before the command deletes one.
    async fn check(&self, client: &Client) -> anyhow::Result<()> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        for topic in client.metadata(Some(&names), false).await?.topics {
            let Some(name) = &topic.name else { continue };
            if topic.error_code == ErrorCode::UnknownTopicOrPartition.code() && !self.if_exists {
                return Err(missing(name));
            }
            ensure!(
                !topic.is_internal || self.internal,
                "topic {name} is the cluster's own, and keeps its groups or transactions; pass --internal to lose them"
            );
        }
        Ok(())
    }
}

impl Removal {
    fn text(&self) -> String {
        let line = if self.deleted { "deleted topic" } else { "there is no topic" };
        format!("{line} {}", self.name)
    }
}

fn missing(name: &str) -> anyhow::Error {
    let text = format!("there is no topic {name}; pass --if-exists if that is all right");
    explained(ErrorCode::UnknownTopicOrPartition, text)
}

fn exists(error: &Error) -> bool {
    error.code() == Some(ErrorCode::TopicAlreadyExists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_reads_like_a_table() {
        let partition = DescribedPartition {
            partition: 0,
            leader: Some(1),
            term: Some(3),
            replicas: vec![1],
            in_sync: vec![1],
            start: Some(5),
            end: Some(12),
        };
        let orphan = DescribedPartition {
            partition: 1,
            leader: None,
            term: None,
            replicas: vec![1, 2],
            in_sync: vec![],
            start: None,
            end: None,
        };
        let config = DescribedConfig {
            name: "retention.ms".into(),
            value: Some("-1".into()),
            source: source(SOURCE_TOPIC),
        };
        let described = Described {
            name: "orders".into(),
            id: None,
            internal: false,
            partitions: vec![partition, orphan],
            configs: vec![config],
        };
        let expected = "topic orders: 2 partitions\n  \
             retention.ms = -1  (set on the topic)\n\
             PARTITION  LEADER  TERM  REPLICAS  IN SYNC  START  END  RECORDS\n        \
             0       1     3  1         1            5   12        7\n        \
             1       -     -  1,2                    -    -        -\n";
        assert_eq!(described.text(), expected);
    }
}
