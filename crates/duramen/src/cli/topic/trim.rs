//! `duramen topic trim`: deletes the oldest records of a topic.

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use super::unknown_topic;
use crate::cli::bootstrap::Cluster;
use crate::cli::place::{Bounds, Place};
use crate::cli::screen::{self, Table};

#[derive(Debug, Args)]
#[command(
    after_help = "Without --execute it only shows what would go: what is deleted does not come back.
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
    name: String,
    /// Delete the records in front of this place, in each partition
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    before: Place,
    /// Only this partition; may be repeated
    #[arg(long = "partition", short, value_name = "P")]
    partitions: Vec<i32>,
    /// Do it
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
        let topic = client.topic(name, false).await.map_err(unknown_topic(name))?;
        let mut there: Vec<i32> =
            topic.partitions.iter().map(|part| part.partition_index).collect();
        there.sort_unstable();
        for partition in &self.partitions {
            let last = there.last().copied().unwrap_or(0);
            ensure!(there.contains(partition), "topic {name} has partitions 0 to {last}");
        }
        let partitions = if self.partitions.is_empty() { &there } else { &self.partitions };
        let bounds = Bounds::find(&client, name, partitions).await?;
        // What is gone already need not go.
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
        if self.execute {
            for cut in plan.partitions.iter_mut().filter(|cut| cut.start > cut.start_before) {
                cut.start = client.delete_records(name, cut.partition, cut.start).await?;
            }
            plan.executed = true;
        }
        if self.cluster.json() {
            screen::print_json(&plan)?;
        } else {
            plan.table().print()?;
        }
        if !self.execute {
            eprintln!("nothing was changed; do it with --execute");
        }
        Ok(())
    }
}

impl Plan {
    fn table(&self) -> Table {
        let records = if self.executed { "DELETED" } else { "TO DELETE" };
        let mut table = Table::new(&["PARTITION", "START", "NEW START", "END", records]);
        for cut in &self.partitions {
            let offsets = [cut.start_before, cut.start, cut.end, cut.start - cut.start_before];
            let cells = offsets.into_iter().map(|offset| offset.to_string());
            table.row([cut.partition.to_string()].into_iter().chain(cells));
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
