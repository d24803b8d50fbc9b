//! `duramen bench`: load generators for any broker, which use little CPU themselves.

mod append;
mod consume;
mod frames;
mod produce;
mod report;
mod tail;

use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use duramen_protocol::error_code::ErrorCode;
use tokio::net::TcpStream;

use super::bootstrap::{Cluster, run};
use super::screen;
use super::topic::key_value;
use super::usage::{settings, topic_name};
use duramen_client::{Acknowledgement, Client, NewTopic};

/// Measure a broker: appends that wait for their acknowledgement, bulk produce, bulk read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen bench append --appenders 128 --connections 16 --size 2048 --seconds 10
  duramen bench produce --messages 5000000 --size 200 --batch 500
  duramen bench consume --topic duramen-bench --check

They speak plain Kafka protocol (Produce 9, Fetch 12), so they measure any broker since 2.8.
`bench/run.sh` in the source tree runs them side by side with Apache Kafka.")]
pub struct Bench {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Closed loop: appenders that each wait for their own acknowledgement, over shared connections
    Append(append::Append),
    /// Open pipeline: batches of records, as fast as the broker acknowledges them
    Produce(produce::Produce),
    /// Sequential read of a partition
    Consume(consume::Consume),
    /// Consumers at the end of a partition to which a producer writes at a steady rate
    Tail(tail::Tail),
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.kind {
            Kind::Append(command) => run(command.run()),
            Kind::Produce(command) => run(command.run()),
            Kind::Consume(command) => run(command.run()),
            Kind::Tail(command) => run(command.run()),
        }
    }
}

/// Acknowledgement that an append waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Acks {
    /// Enough replicas have the record on disk
    All,
    /// The leader has the record
    #[value(name = "1")]
    Leader,
    /// The client does not wait
    #[value(name = "0")]
    None,
}

impl From<Acks> for Acknowledgement {
    fn from(acks: Acks) -> Self {
        match acks {
            Acks::All => Self::All,
            Acks::Leader => Self::Leader,
            Acks::None => Self::None,
        }
    }
}

/// Topic and acknowledgements of a benchmark that writes.
#[derive(Debug, Clone, Args)]
struct Target {
    /// Topic to write to; created if missing
    #[arg(long, short, default_value = "duramen-bench", value_name = "NAME", value_parser = topic_name)]
    topic: String,
    /// Number of partitions to write to
    #[arg(long, short, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: i32,
    /// Replicas of each partition of a created topic
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    replication_factor: Option<i16>,
    /// Setting of a created topic; may be repeated
    #[arg(long = "config", short, value_name = "KEY=VALUE", value_parser = key_value)]
    configs: Vec<(String, String)>,
    /// Acknowledgement that completes an append
    #[arg(
        long,
        value_enum,
        default_value = "all",
        value_name = "all|1|0",
        hide_possible_values = true
    )]
    acks: Acks,
}

/// Address of a broker, and the partitions that it leads.
#[derive(Debug, Clone)]
struct Led {
    address: String,
    partitions: Vec<i32>,
}

impl Target {
    /// Creates a missing topic, and finds the leaders of its partitions.
    async fn prepare(&self, client: &Client) -> anyhow::Result<Vec<Led>> {
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
        let mut led: Vec<Led> = Vec::new();
        for partition in 0..self.partitions {
            let leader = client.retry(async || client.leader(&self.topic, partition).await).await;
            let leader = match leader {
                Err(error) if error.code() == Some(ErrorCode::UnknownTopicOrPartition) => bail!(
                    "topic {} has no more than {}; delete it, or name another",
                    self.topic,
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
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    seconds.ok_or_else(|| "give a number of seconds, 0 or more, such as 0.5".to_owned())
}

async fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect(address).await;
    let socket = socket.with_context(|| format!("cannot connect to {address}"))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

async fn client(cluster: &Cluster) -> anyhow::Result<Client> {
    cluster.connect().await
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
