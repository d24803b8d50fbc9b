//! The `serve` command.

use clap::Args;

/// Arguments of `duramen serve`.
#[derive(Debug, Args)]
pub struct Serve {}

impl Serve {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        anyhow::bail!("`serve` is not written yet")
    }
}
