//! `duramen share`: what share groups leave behind.

use clap::{Args, Subcommand};

use super::bootstrap::run;

mod redrive;

/// Share groups, and the records that they have given up.
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
    /// Produce the records of a dead-letter topic again, where they came from
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
