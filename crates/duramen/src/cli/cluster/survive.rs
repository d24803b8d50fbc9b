//! `duramen cluster survive`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use duramen_broker::survivor::{Outcome, Place};
use serde::Serialize;

use crate::cli::bootstrap::Output;
use crate::cli::screen;
use crate::config::{Config, ServerArgs};
use crate::server::surviving::Survivor;
use crate::telemetry;

#[derive(Debug, Args)]
#[command(
    after_help = "Use this command only after most nodes of a cluster are lost for ever, with their disks. If you can
bring the nodes back, do that instead: then no record is lost. The command begins a new cluster with
a new id from the directory of one node. The cluster loses the data that only other nodes had:
partitions without a replica here, and records that the others acknowledged before this node got
them. Choose the node with the most data; without --yes the command lists the data of a directory.

Without --yes the command only shows the outcome for each partition. The node must not run. Start it
afterwards as before, let others join it with empty directories, and add replicas to topics again:
  duramen topic alter orders --replication-factor 3

The new cluster refuses directories of the former one.

Examples:
  duramen cluster survive --data-dir /var/lib/duramen
  duramen cluster survive --data-dir /var/lib/duramen --yes"
)]
pub(super) struct Survive {
    /// Data directory of the node that survives
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,

    /// Execute the plan
    #[arg(long)]
    yes: bool,

    /// Print for people (table) or for programs (json)
    #[arg(long, short, default_value = "table", value_name = "FORM", hide_possible_values = true)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Report {
    node: i32,
    former_cluster_id: String,
    /// Absent without --yes.
    cluster_id: Option<String>,
    lost_nodes: Vec<i32>,
    kept: Partitions,
    partial: Partitions,
    unsettled: Partitions,
    lost: Partitions,
    renewed: Partitions,
    damaged: Partitions,
}

/// Numbers of partitions, by topic.
type Partitions = BTreeMap<String, Vec<i32>>;

impl Survive {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let args = ServerArgs { data_dir: Some(self.data_dir.clone()), ..ServerArgs::default() };
        let config = Config::load(None, &args, std::iter::empty())?;
        telemetry::start(&config.log)?;
        let survivor = Survivor::open(&config)?;
        let mut report = Report::new(&survivor);
        if self.yes {
            report.cluster_id = Some(id(survivor.carry_out()?));
        }
        self.output.print(&report, || report.render())
    }
}

impl Report {
    fn new(survivor: &Survivor) -> Self {
        let Outcome { others, kept, partial, unsettled, lost, renewed, damaged } =
            survivor.outcome();
        Self {
            node: survivor.facts.broker_id,
            former_cluster_id: id(survivor.facts.cluster_id),
            cluster_id: None,
            lost_nodes: others.clone(),
            kept: by_topic(kept),
            partial: by_topic(partial),
            unsettled: by_topic(unsettled),
            lost: by_topic(lost),
            renewed: by_topic(renewed),
            damaged: by_topic(damaged),
        }
    }

    fn render(&self) -> String {
        let Self { node, former_cluster_id, lost_nodes, .. } = self;
        let mut text = format!("Node {node} of the cluster {former_cluster_id}\n");
        let nodes = screen::list(lost_nodes);
        let nodes = if lost_nodes.is_empty() { "none" } else { &nodes };
        let count: usize = self.kept.values().map(Vec::len).sum();
        let _ = writeln!(text, "  nodes that are given up     {nodes}");
        let _ = writeln!(text, "  partitions that it has      {count}");
        let rows = [
            ("  of these perhaps not whole  ", &self.partial),
            ("  of these, fast appends lost?  ", &self.unsettled),
            ("  damaged here, not served    ", &self.damaged),
            ("  lost: nothing is here       ", &self.lost),
            ("  begun anew, empty           ", &self.renewed),
        ];
        for (name, partitions) in rows {
            for (topic, numbers) in partitions {
                let _ = writeln!(text, "{name}{topic} {}", screen::runs(numbers));
            }
        }
        match &self.cluster_id {
            Some(id) => {
                let _ = write!(text, "It is the cluster {id} now. Start the node as before.");
            }
            None => text.push_str("Nothing was changed. Do it with --yes."),
        }
        text
    }
}

fn by_topic(places: &[Place]) -> Partitions {
    let mut partitions = Partitions::new();
    for Place { topic, partition } in places {
        partitions.entry(topic.clone()).or_default().push(*partition);
    }
    partitions
}

/// Writes a cluster id as clients see it.
fn id(bytes: [u8; 16]) -> String {
    duramen_protocol::wire::Uuid(bytes).to_string()
}
