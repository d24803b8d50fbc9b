//! `duramen txn describe`.

use std::fmt::Write as _;

use clap::Args;
use duramen_client::{Client, NodeId};
use duramen_protocol::messages::describe_transactions::TransactionState;
use jiff::{SignedDuration, SpanRound, Timestamp, Unit};
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::missing::no_such_id;
use crate::cli::screen::Table;
use crate::cli::usage::once;

#[derive(Debug, Args)]
#[command(
    after_help = "SINCE is the first offset of the transaction in the partition: readers of committed records wait
there. The column is empty where the transaction has written nothing yet, or has ended already.

Examples:
  duramen txn describe billing-1
  duramen txn describe billing-1 --output json | jq '.[0].partitions'"
)]
pub(super) struct Describe {
    /// The transactional ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Described {
    id: String,
    state: String,
    producer_id: i64,
    producer_epoch: i16,
    timeout_ms: i32,
    /// Begin in milliseconds since 1970; absent without an open transaction.
    began_ms: Option<i64>,
    coordinator: NodeId,
    partitions: Vec<Part>,
}

#[derive(Debug, Serialize)]
struct Part {
    topic: String,
    partition: i32,
    since: Option<i64>,
}

impl Describe {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let mut described = Vec::new();
        for id in once(&self.ids) {
            let found = client.describe_transaction(id).await?;
            let (coordinator, found) = found.ok_or_else(|| no_such_id(id))?;
            described.push(Described::of(&client, coordinator, found).await?);
        }
        let now = Timestamp::now();
        self.cluster.output.print(&described, || {
            described.iter().map(|it| it.text(now)).collect::<Vec<_>>().join("\n")
        })
    }
}

impl Described {
    async fn of(
        client: &Client,
        coordinator: NodeId,
        found: TransactionState,
    ) -> anyhow::Result<Self> {
        let mut partitions = Vec::new();
        for topic in found.topics {
            for partition in topic.partitions {
                let since = client.open_since(&topic.topic, partition, found.producer_id).await?;
                partitions.push(Part { topic: topic.topic.clone(), partition, since });
            }
        }
        Ok(Self {
            id: found.transactional_id,
            state: found.transaction_state,
            producer_id: found.producer_id,
            producer_epoch: found.producer_epoch,
            timeout_ms: found.transaction_timeout_ms,
            began_ms: Some(found.transaction_start_time_ms).filter(|ms| *ms >= 0),
            coordinator,
            partitions,
        })
    }

    fn text(&self, now: Timestamp) -> String {
        let began = self.began_ms.map(|ms| format!(", began {} ago", ago(ms, now)));
        let mut text = format!(
            "{}: {}, producer {} epoch {}, timeout {} ms{}, coordinated by node {}\n",
            self.id,
            self.state,
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            began.unwrap_or_default(),
            self.coordinator
        );
        if self.partitions.is_empty() {
            return text;
        }
        let mut table = Table::new(&["TOPIC", "PARTITION", "SINCE"]);
        for part in &self.partitions {
            let since = part.since.map_or_else(String::new, |it| it.to_string());
            table.row(&[&part.topic, &part.partition, &since]);
        }
        write!(text, "{}", table.render()).expect("a string takes all");
        text
    }
}

/// Writes the time since `then_ms` with its greatest two units.
fn ago(then_ms: i64, now: Timestamp) -> String {
    let Ok(then) = Timestamp::from_millisecond(then_ms) else { return "-".into() };
    let passed = now.duration_since(then).max(SignedDuration::ZERO);
    let smallest = if passed < SignedDuration::from_hours(1) { Unit::Second } else { Unit::Minute };
    let round = SpanRound::new().largest(Unit::Hour).smallest(smallest);
    let span = jiff::Span::try_from(passed).and_then(|span| span.round(round));
    span.map_or_else(|_| "-".into(), |span| format!("{span:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_told_with_its_age_and_places() {
        let part = |partition, since| Part { topic: "t".into(), partition, since };
        let described = Described {
            id: "billing-1".into(),
            state: "Ongoing".into(),
            producer_id: 4,
            producer_epoch: 2,
            timeout_ms: 60_000,
            began_ms: Some(1_000_000),
            coordinator: 1,
            partitions: vec![part(0, Some(17)), part(1, None)],
        };
        let now = Timestamp::from_millisecond(1_035_000).unwrap();
        let expected = "billing-1: Ongoing, producer 4 epoch 2, timeout 60000 ms, began 35s ago, coordinated by node 1\n\
                        TOPIC  PARTITION  SINCE\nt              0  17\nt              1\n";
        assert_eq!(described.text(now), expected);
    }

    #[test]
    fn ages_read_well() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let ago = |seconds: i64| ago((1_000_000 - seconds) * 1000, now);
        assert_eq!(
            (ago(0), ago(75), ago(3_600 * 49 + 150)),
            ("0s".into(), "1m 15s".into(), "49h 3m".into())
        );
        assert_eq!(ago(-5), "0s", "another machine's clock is ahead");
    }
}
