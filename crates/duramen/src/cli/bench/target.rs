//! Topic, acknowledgements and time of a benchmark, and the way to its brokers.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use duramen_client::{Client, NewTopic};
use duramen_protocol::error_code::ErrorCode;

use crate::cli::acks::Acks;
use crate::cli::screen;
use crate::cli::usage::{demand, key_value, settings, topic_name};

/// Topic and acknowledgements of a benchmark that writes.
#[derive(Debug, Clone, Args)]
pub(super) struct Target {
    /// Topic to write to; created if missing
    #[arg(long, short, default_value = "duramen-bench", value_name = "NAME", value_parser = topic_name)]
    pub(super) topic: String,
    /// Number of partitions to write to
    #[arg(long, short, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) partitions: i32,
    /// Replicas of each partition of a created topic
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// Setting of a created topic; may be repeated
    #[arg(long = "config", short, value_name = "KEY=VALUE", value_parser = key_value)]
    configs: Vec<(String, String)>,
    /// Acknowledgement that completes an append
    #[arg(long, default_value = "all", value_name = "all|1|0", hide_possible_values = true)]
    pub(super) acks: Acks,
}

/// Address of a broker, and the partitions that it leads.
#[derive(Debug, Clone)]
pub(super) struct Led {
    pub(super) address: String,
    pub(super) partitions: Vec<i32>,
}

impl Target {
    /// Lets a topic that is created take fast appends.
    pub(super) fn allow_fast(&mut self) -> anyhow::Result<()> {
        demand(
            self.acks == Acks::All,
            "--fast needs --acks all: it is another way to the same promise",
        )?;
        self.configs.push(("fast.append.enable".to_owned(), "true".to_owned()));
        Ok(())
    }

    /// Creates a missing topic, and finds the leaders of its partitions.
    pub(super) async fn prepare(&self, client: &Client) -> anyhow::Result<Vec<Led>> {
        let topic = NewTopic {
            name: self.topic.clone(),
            partitions: self.partitions,
            replication_factor: self.replication_factor.unwrap_or(-1),
            configs: settings(&self.configs)?,
        };
        match client.create_topic(&topic, false).await {
            Err(error) if error.code() != Some(ErrorCode::TopicAlreadyExists) => {
                return Err(error).context("cannot create the topic");
            }
            _ => {}
        }
        leaders(client, &self.topic, self.partitions).await
    }
}

/// Finds the leaders of a topic's first partitions.
pub(super) async fn leaders(
    client: &Client,
    topic: &str,
    partitions: i32,
) -> anyhow::Result<Vec<Led>> {
    let mut led: Vec<Led> = Vec::new();
    for partition in 0..partitions {
        let leader = client.retry(async || client.leader(topic, partition).await).await;
        let leader = match leader {
            Err(error) if error.code() == Some(ErrorCode::UnknownTopicOrPartition) => bail!(
                "topic {topic} has no more than {}; delete it, or name another",
                screen::count(partition, "partition")
            ),
            other => other?,
        };
        let address = client.address(leader.node).await?;
        match led.iter_mut().find(|led| led.address == address) {
            Some(led) => led.partitions.push(partition),
            None => led.push(Led { address, partitions: vec![partition] }),
        }
    }
    Ok(led)
}

/// Reads a number of seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    seconds.ok_or_else(|| "give a number of seconds, 0 or more, such as 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for text in ["-1", "soon", "NaN", "1e300"] {
            assert!(seconds(text).is_err_and(|error| error.contains("0 or more")), "{text}");
        }
    }
}
