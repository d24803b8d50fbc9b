//! The `config` command: what can be configured.

use std::io::Write;

use clap::{Args, Subcommand};

/// Arguments of `duramen config`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen config example > duramen.toml
  duramen serve --config duramen.toml")]
pub struct ConfigCommand {
    /// What to print.
    #[command(subcommand)]
    pub what: What,
}

/// What can be printed.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Print a commented configuration file for `serve`: every key, and every setting that does something, at its default
    Example,
}

impl ConfigCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.what {
            What::Example => {
                std::io::stdout().write_all(crate::config::example().as_bytes())?;
                Ok(())
            }
        }
    }
}
