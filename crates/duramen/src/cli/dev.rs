//! The `dev` command.

use clap::Args;

/// Arguments of `duramen dev`.
#[derive(Debug, Args)]
pub struct Dev {}

impl Dev {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        anyhow::bail!("`dev` is not written yet")
    }
}
