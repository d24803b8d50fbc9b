//! `duramen share`: dead letters of share groups.

use clap::{Args, Subcommand};

use super::bootstrap::run;

mod redrive;

/// Share groups and their dead letters.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen share redrive dlq.billing --dry-run
  duramen share redrive dlq.billing")]
pub struct Share {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Produce the records of a dead-letter topic again, to the topics that they came from
    Redrive(redrive::Redrive),
}

impl Share {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Redrive(command) => run(command.run()),
        }
    }
}
