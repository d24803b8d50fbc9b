//! `duramen group`: consumer groups, their members and their offsets.

use clap::{Args, Subcommand};

use super::bootstrap::run;

mod delete;
mod describe;
mod list;
mod refusal;
mod reset;
mod scope;

/// Consumer groups, their members and their offsets.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen group list
  duramen group describe billing
  duramen group reset billing --to beginning
  duramen group delete billing
  duramen consume orders --group billing --follow")]
pub struct Group {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List groups with their states
    List(list::List),
    /// Show members of groups, their partitions, and their lag
    Describe(describe::Describe),
    /// Set the offsets at which a group continues; shows them first
    Reset(reset::Reset),
    /// Delete groups, or a group's offsets of some topics
    Delete(delete::Delete),
}

impl Group {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List(command) => run(command.run()),
            Action::Describe(command) => run(command.run()),
            Action::Reset(command) => run(command.run()),
            Action::Delete(command) => run(command.run()),
        }
    }
}
