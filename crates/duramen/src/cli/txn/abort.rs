//! `duramen txn abort`.

use anyhow::bail;
use clap::Args;
use duramen_client::Client;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::missing::no_such_id;
use crate::cli::screen;
use crate::cli::usage::one_by_one;

const ONGOING: &str = "Ongoing";

#[derive(Debug, Args)]
#[command(
    after_help = "The command takes the id over, as a new producer does. The broker fences the former producer for
good, and its application has to start again. A transaction whose end is decided keeps that end.

The command aborts one id after the other. If one fails, it aborts the others nevertheless.

Examples:
  duramen txn abort billing-1
  duramen txn list --state ongoing --open-for 1h -o json \\
      | jq -r '.[].id' | xargs -r duramen txn abort"
)]
pub(super) struct Abort {
    /// The transactional ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Aborted {
    id: String,
    producer_id: i64,
    /// Number of partitions of the transaction.
    partitions: usize,
}

impl Abort {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let abort = async |id: &str| abort(&client, id).await;
        one_by_one(&self.cluster, &self.ids, abort, Aborted::text).await
    }
}

async fn abort(client: &Client, id: &str) -> anyhow::Result<Aborted> {
    let found = client.describe_transaction(id).await?;
    let (_, found) = found.ok_or_else(|| no_such_id(id))?;
    if found.transaction_state != ONGOING {
        let state = found.transaction_state;
        bail!("transactional id {id} has nothing open: its state is {state}");
    }
    client.take_over(id, found.transaction_timeout_ms).await?;
    let partitions = found.topics.iter().map(|topic| topic.partitions.len()).sum();
    Ok(Aborted { id: id.to_owned(), producer_id: found.producer_id, partitions })
}

impl Aborted {
    fn text(&self) -> String {
        let Self { id, producer_id, partitions } = self;
        let partitions = screen::count(*partitions, "partition");
        format!(
            "aborted the transaction of {id} in {partitions}; producer {producer_id} is kept out"
        )
    }
}
