//! The `config` command: what can be configured.

use std::io::Write;

use clap::{Args, Subcommand};

/// Arguments of `duramen config`.
#[derive(Debug, Args)]
pub struct ConfigCommand {
    /// What to print.
    #[command(subcommand)]
    pub what: What,
}

/// What can be printed.
#[derive(Debug, Subcommand)]
pub enum What {
    /// A commented configuration file for `serve`, with every key at its default.
    Example,
}

impl ConfigCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.what {
            What::Example => {
                std::io::stdout().write_all(crate::config::EXAMPLE.as_bytes())?;
                Ok(())
            }
        }
    }
}
