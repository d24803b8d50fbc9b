//! `duramen cluster`: nodes, replicas, and where they are.

use clap::{Args, Subcommand};

use super::bootstrap::run;

mod moving;
pub(in crate::cli) mod overview;
pub(in crate::cli) mod placement;
mod removing;
mod status;
mod survive;
mod verify;

pub(in crate::cli) use moving::{Move, carry_out};

/// The nodes of a cluster, their replicas, and where these are.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen cluster status
  duramen cluster verify
  duramen cluster move --topic orders --to 1,2,3
  duramen cluster remove 4")]
pub struct ClusterCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the nodes, what each leads and holds, who keeps the metadata, and what is not as it should be
    Status(status::Status),
    /// Compare the replicas of partitions with each other, byte by byte, while the cluster runs
    Verify(verify::Verify),
    /// Move partitions to other nodes, or everything off a node
    Move(moving::MoveCommand),
    /// Take a node out of the cluster for good: everything is moved off it first
    Remove(removing::Remove),
    /// Begin a new cluster from the data directory of one node, when most of the others are lost for ever
    Survive(survive::Survive),
}

impl ClusterCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Status(command) => run(command.run()),
            Action::Verify(command) => run(command.run()),
            Action::Move(command) => run(command.run()),
            Action::Remove(command) => run(command.run()),
            Action::Survive(command) => command.run(),
        }
    }
}
