//! `duramen man`: manual pages.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};

use super::{Cli, screen};

/// Print the manual page, or write one for every command.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen man | man -l -
  duramen man --dir ~/.local/share/man/man1 && man duramen-topic-create")]
pub struct Man {
    /// Write a page for every command here, instead of printing the first
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        let Some(dir) = self.dir else {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            return Ok(screen::print_line(String::from_utf8(page)?.trim_end())?);
        };
        let cannot = || format!("cannot write to {}", dir.display());
        std::fs::create_dir_all(&dir).with_context(cannot)?;
        clap_mangen::generate_to(Cli::command(), &dir).with_context(cannot)
    }
}
