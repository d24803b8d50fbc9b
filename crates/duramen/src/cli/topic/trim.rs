//! `duramen topic trim`: deletes the oldest records of a topic.

use clap::Args;
use duramen_client::Client;
use duramen_protocol::ErrorCode;
use serde::Serialize;

use crate::cli::bootstrap::Cluster;
use crate::cli::failure::explained;
use crate::cli::place::{Bounds, Place, chosen};
use crate::cli::screen::Table;
use crate::cli::usage::{joined, topic_name};

/// Setting that decides on old records.
const POLICY: &str = "cleanup.policy";

#[derive(Debug, Args)]
#[command(
    after_help = "Without --execute the command only shows the records to delete, because nothing brings them back.
Places are those of `duramen consume --from`: end, 4711, -10, @1700000000000,
2024-05-01T12:00:00Z, '2h ago'.

Examples:
  duramen topic trim orders --before '30 days ago'
  duramen topic trim orders --before -1000 --execute
  duramen topic trim orders --partition 3 --before 4711 --execute
  duramen topic trim orders --before end --execute      # all records"
)]
pub(super) struct Trim {
    /// The topic's name
    #[arg(value_parser = topic_name)]
    name: String,
    /// Delete the records before this place, in each partition
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    before: Place,
    /// Only this partition; may be repeated
    #[arg(long = "partition", short, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,
    /// Execute the plan
    #[arg(long)]
    execute: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Plan {
    topic: String,
    executed: bool,
    partitions: Vec<Cut>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Cut {
    partition: i32,
    start_before: i64,
    start: i64,
    end: i64,
}

impl Trim {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let client = self.cluster.connect().await?;
        let name = &self.name;
        let partitions = chosen(&client, name, &self.partitions).await?;
        self.check_policy(&client).await?;
        let bounds = Bounds::find(&client, name, &partitions).await?;
        // A place before the log start offset is allowed: its records are gone already.
        let reach = |held: &Bounds| match self.before {
            Place::Offset(offset) => Bounds { start: held.start.min(offset), ..*held },
            _ => *held,
        };
        let reach = bounds.iter().map(|(partition, held)| (*partition, reach(held))).collect();
        let starts = self.before.find(&client, name, &reach).await?;
        let cut = |(partition, held): (&i32, &Bounds)| Cut {
            partition: *partition,
            start_before: held.start,
            start: starts[partition].max(held.start),
            end: held.end,
        };
        let mut plan = Plan {
            topic: name.clone(),
            executed: false,
            partitions: bounds.iter().map(cut).collect(),
        };
        let outcome = if self.execute { plan.execute(&client).await } else { Ok(()) };
        // Print the trimmed partitions, although another trim failed.
        if outcome.is_err() && plan.partitions.is_empty() {
            return outcome;
        }
        self.cluster.output.print(&plan, || plan.table().render())?;
        if !self.execute {
            eprintln!("nothing was changed; do it with --execute");
        }
        outcome
    }

    /// Refuses topics whose policy forbids a trim, before a plan promises one.
    async fn check_policy(&self, client: &Client) -> anyhow::Result<()> {
        let configs = client.topic_configs(&self.name).await?;
        let policy = configs.into_iter().find(|config| config.name == POLICY);
        match policy.and_then(|config| config.value) {
            Some(policy) if policy.contains("compact") && !policy.contains("delete") => {
                let name = &self.name;
                let text = format!(
                    "topic {name} is compacted ({POLICY}={policy}), and keeps the last record of each key; to delete \
                     old records, too, set `duramen topic alter {name} --config {POLICY}=compact,delete`"
                );
                Err(explained(ErrorCode::PolicyViolation, text))
            }
            _ => Ok(()),
        }
    }
}

impl Plan {
    /// Trims one partition after the other, and removes those that fail from the plan.
    async fn execute(&mut self, client: &Client) -> anyhow::Result<()> {
        let (asked, mut failures) = (self.partitions.len(), Vec::new());
        let mut done = Vec::new();
        for mut cut in self.partitions.drain(..) {
            if cut.start > cut.start_before {
                match client.delete_records(&self.topic, cut.partition, cut.start).await {
                    Ok(start) => cut.start = start,
                    Err(error) => {
                        failures.push(error.into());
                        continue;
                    }
                }
            }
            done.push(cut);
        }
        (self.partitions, self.executed) = (done, true);
        joined(asked, failures)
    }

    fn table(&self) -> Table {
        let records = if self.executed { "DELETED" } else { "TO DELETE" };
        let mut table = Table::new(&["PARTITION", "START", "NEW START", "END", records]);
        for cut in &self.partitions {
            let Cut { partition, start_before, start, end } = cut;
            table.row(&[partition, start_before, start, end, &(start - start_before)]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_counts_what_goes() {
        let cut = |partition, start| Cut { partition, start_before: 5, start, end: 12 };
        let plan =
            Plan { topic: "t".into(), executed: false, partitions: vec![cut(0, 5), cut(1, 9)] };
        let expected = "PARTITION  START  NEW START  END  TO DELETE\n        \
             0      5          5   12          0\n        \
             1      5          9   12          4\n";
        assert_eq!(plan.table().render(), expected);
    }
}
