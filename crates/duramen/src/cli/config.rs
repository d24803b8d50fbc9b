//! The `config` command: prints the settings of a broker.

use std::io::Write;

use clap::{Args, Subcommand};

/// Arguments of `duramen config`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen config example > duramen.toml
  duramen serve --config duramen.toml")]
pub struct ConfigCommand {
    /// Form of the settings.
    #[command(subcommand)]
    pub what: What,
}

/// Forms of the settings that the command prints.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Print a commented configuration file for `serve`: every key, and every setting that has an effect, at its
    /// default
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
