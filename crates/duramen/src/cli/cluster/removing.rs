//! `duramen cluster remove`.

use anyhow::{Context, ensure};
use clap::Args;
use duramen_client::NodeId;
use serde::Serialize;

use super::moving::{self, Move, MoveCommand};
use super::overview::Overview;
use crate::cli::bootstrap::Cluster;
use crate::cli::screen;
use crate::cli::usage::whole;

#[derive(Debug, Args)]
#[command(
    after_help = "The command first moves everything off the node, as `duramen cluster move --from` does. Then it
removes the node from the cluster, and another node becomes a voter of the metadata instead. The
node may run, and you stop it afterwards, or it may be lost. An interrupt does not stop the moves
under way; run the command again to do the rest. The node's directory cannot join again, an empty
one can.

Where partitions have as many replicas as there are nodes, give them fewer first:
  duramen topic alter orders --replication-factor 2

Examples:
  duramen cluster remove 4 --dry-run
  duramen cluster remove 4"
)]
pub(super) struct Remove {
    /// Id of the node
    node: NodeId,
    /// Most partitions under way at once
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole::<usize>)]
    at_once: usize,
    /// Only show the moves
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Serialize)]
struct Report {
    node: NodeId,
    moves: Vec<Move>,
    removed: bool,
}

impl Remove {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let node = self.node;
        let client = self.cluster.connect_within(moving::PATIENCE).await?;
        let overview = Overview::gather(&client).await?;
        ensure!(
            overview.nodes.contains_key(&node),
            "there is no node {node}; {}",
            moving::there(&overview)
        );
        let mut moves = MoveCommand::off(node, self.cluster.clone())
            .plan(&overview)
            .with_context(|| format!("node {node} cannot be removed"))?;
        if !self.dry_run {
            moving::carry_out(&client, &mut moves, self.at_once.max(1)).await?;
            client.unregister(node).await?;
        }
        let report = Report { node, moves, removed: !self.dry_run };
        if self.cluster.json() {
            return screen::print_json(&report);
        }
        if !report.moves.is_empty() {
            moving::table(&report.moves).print()?;
        }
        let moves = screen::count(report.moves.len(), "partition");
        eprintln!(
            "{}",
            if self.dry_run {
                format!("{moves} would move, and node {node} be removed; nothing was changed")
            } else {
                format!("node {node} has no part in the cluster any more: stop it now")
            }
        );
        Ok(())
    }
}
