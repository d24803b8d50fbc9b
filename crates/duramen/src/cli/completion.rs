//! `duramen completion`: scripts for shells.

use clap::{Args, Command};
use clap_complete::Shell;

use super::screen;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(duramen completion bash)
  duramen completion zsh > ~/.zfunc/_duramen
  duramen completion fish > ~/.config/fish/completions/duramen.fish")]
pub struct Completion {
    /// Shell of the script
    shell: Shell,
}

impl Completion {
    /// Runs the command, for the whole command line.
    pub fn run(self, mut whole: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut whole, "duramen", &mut script);
        Ok(screen::print_line(String::from_utf8(script)?.trim_end())?)
    }
}
