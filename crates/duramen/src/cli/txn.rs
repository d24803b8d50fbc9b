//! `duramen txn`: transactional ids and their transactions.

use clap::{Args, Subcommand};

use super::bootstrap::run;

mod abort;
mod describe;
mod list;

/// Transactional ids and their transactions.
#[derive(Debug, Args)]
#[command(
    after_help = "An open transaction holds up readers of committed records (isolation.level=read_committed) in all
its partitions, until it ends or times out.

Examples:
  duramen txn list --state ongoing
  duramen txn describe billing-1
  duramen txn abort billing-1"
)]
pub struct Txn {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List transactional ids with their states
    List(list::List),
    /// Show a transaction: its producer, its begin, and the partitions in which it holds up readers
    Describe(describe::Describe),
    /// Abort the open transaction of an id, and fence its producer
    Abort(abort::Abort),
}

impl Txn {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List(command) => run(command.run()),
            Action::Describe(command) => run(command.run()),
            Action::Abort(command) => run(command.run()),
        }
    }
}
