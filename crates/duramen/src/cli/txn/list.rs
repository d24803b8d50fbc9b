//! `duramen txn list`.

use std::time::Duration;

use clap::Args;
use duramen_client::{Error, NodeId, TransactionFilter};
use duramen_protocol::ErrorCode;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::failure::explained;
use crate::cli::screen::Table;
use crate::cli::usage::{demand, time, word};

/// The states in which readers wait for a transaction.
const OPEN: [&str; 3] = ["Ongoing", "PrepareCommit", "PrepareAbort"];
/// The states of a transaction as Kafka writes them.
const STATES: [&str; 6] =
    ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"];

#[derive(Debug, Args)]
#[command(
    after_help = "States: empty (a producer, and nothing begun), ongoing, prepare-commit and prepare-abort (its end is
decided, and its markers are being written), complete-commit, complete-abort. A transaction is open
(--open-for) while it is ongoing, prepare-commit or prepare-abort.

Examples:
  duramen txn list
  duramen txn list --state ongoing --open-for 10m
  duramen txn list --pattern 'billing-.*'
  duramen txn list --state ongoing -o json | jq -r '.[].id'"
)]
pub(super) struct List {
    /// Only ids in these states
    #[arg(long, short, value_name = "STATE,...", value_delimiter = ',', value_parser = state)]
    state: Vec<&'static str>,
    /// Only ids with a transaction that has been open for at least this time, such as 10m or 2h
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    open_for: Option<Duration>,
    /// Only ids that match this regular expression as a whole
    #[arg(long, short, value_name = "REGEX", allow_hyphen_values = true)]
    pattern: Option<String>,
    /// Only the id of this producer id; may be repeated
    #[arg(long = "producer", value_name = "ID")]
    producers: Vec<i64>,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Listed {
    id: String,
    state: String,
    producer_id: i64,
    coordinator: NodeId,
}

fn state(text: &str) -> Result<&'static str, String> {
    word(text, &STATES, "state")
}

impl List {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let states = self.states()?;
        let client = self.cluster.connect().await?;
        let filter = TransactionFilter {
            states: states.iter().map(|it| (*it).to_owned()).collect(),
            producer_ids: self.producers.clone(),
            open_for_ms: self.open_for.map(|it| i64::try_from(it.as_millis()).unwrap_or(i64::MAX)),
            pattern: self.pattern.clone(),
        };
        let found = client.list_transactions(&filter).await;
        let found = found.map_err(|error| self.explain(error))?;
        let listed = found.into_iter().map(|(coordinator, it)| Listed {
            id: it.transactional_id,
            state: it.transaction_state,
            producer_id: it.producer_id,
            coordinator,
        });
        let mut listed: Vec<Listed> = listed.collect();
        listed.sort_by(|a, b| a.id.cmp(&b.id));
        self.cluster.output.print_list(&listed, "no such transactional ids", |listed| {
            let mut table = Table::new(&["ID", "STATE", "PRODUCER", "COORDINATOR"]);
            for it in listed {
                table.row(&[&it.id, &it.state, &it.producer_id, &it.coordinator]);
            }
            table
        })
    }

    /// Returns the states to ask for. Brokers compare only ages, also of ids without an open transaction, so
    /// `--open-for` needs the states of open ones.
    fn states(&self) -> anyhow::Result<Vec<&'static str>> {
        match (self.open_for, &self.state[..]) {
            (None, named) => Ok(named.to_vec()),
            (Some(_), []) => Ok(OPEN.to_vec()),
            (Some(_), named) => {
                let open: Vec<_> = named.iter().copied().filter(|it| OPEN.contains(it)).collect();
                demand(
                    !open.is_empty(),
                    "--open-for selects open transactions, and none is open in these states; leave one of the two out",
                )?;
                Ok(open)
            }
        }
    }

    fn explain(&self, error: Error) -> anyhow::Error {
        let code = error.code();
        match (code, &self.pattern) {
            (Some(code @ ErrorCode::InvalidRegularExpression), Some(pattern)) => explained(
                code,
                format!(
                    "the broker cannot read the regular expression `{pattern}`; write \\ in front of ( [ . * + ? \
                     where the letter itself is meant"
                ),
            ),
            (Some(code @ ErrorCode::UnsupportedVersion), _) => explained(
                code,
                format!("{error}: the broker is too old; leave out --pattern and --open-for"),
            ),
            _ => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read() {
        assert_eq!(state("prepare-commit"), Ok("PrepareCommit"));
        assert!(state("open").is_err_and(|it| it.contains("Ongoing")));
    }
}
