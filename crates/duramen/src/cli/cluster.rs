//! `duramen cluster`: nodes of a cluster and the places of replicas.

use clap::{Args, Subcommand};

use super::bootstrap::run;

mod balancing;
mod moving;
pub(super) mod overview;
pub(super) mod placement;
mod removing;
mod status;
mod stretches;
mod survive;
mod verify;

pub(super) use moving::{Move, carry_out};

/// Nodes of a cluster and the places of replicas.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen cluster status
  duramen cluster verify
  duramen cluster balance
  duramen cluster move --topic orders --to 1,2,3
  duramen cluster remove 4")]
pub struct ClusterCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the nodes with the partitions that they lead and hold, the metadata's voters, and every fault
    Status(status::Status),
    /// Compare the replicas of partitions with each other, byte by byte, while the cluster runs
    Verify(verify::Verify),
    /// Spread replicas and preferred leaders evenly over the nodes, as after nodes have joined
    Balance(balancing::Balance),
    /// Move partitions to other nodes, or everything off a node
    Move(moving::MoveCommand),
    /// Move every partition off a node, then remove it from the cluster for good
    Remove(removing::Remove),
    /// Begin a new cluster from the data directory of one node, after most of the others are lost for ever
    Survive(survive::Survive),
}

impl ClusterCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Status(command) => run(command.run()),
            Action::Verify(command) => run(command.run()),
            Action::Balance(command) => run(command.run()),
            Action::Move(command) => run(command.run()),
            Action::Remove(command) => run(command.run()),
            Action::Survive(command) => command.run(),
        }
    }
}
