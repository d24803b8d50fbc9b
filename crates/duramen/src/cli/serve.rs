//! The `serve` command: a node as configured.

use std::path::PathBuf;

use clap::Args;
use rustix::process::{Signal, getpid, kill_process};

use crate::config::{Config, ServerArgs, environment};
use crate::server::reloading::Load;
use crate::{server, telemetry};

/// Arguments of `duramen serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "A flag beats the environment (DURAMEN_LISTEN, DURAMEN_SET_NUM_PARTITIONS, \
    ...),\nwhich beats the file. `duramen config example` prints a file with every key.\n\n\
    On SIGHUP it reads the file again. The log says what was changed, and what needs a restart.\n\n\
    Exit codes: 0 stopped by SIGINT or SIGTERM, 1 could not start, 2 wrongly called or configured,\n\
    70 found itself wrong, 74 the disk failed."
)]
pub struct Serve {
    /// A TOML file with what the flags can say, and [settings].
    #[arg(long, value_name = "FILE", env = "DURAMEN_CONFIG")]
    pub config: Option<PathBuf>,
    /// Take the place of the data directory that is registered under this node.id: that one is lost, and retired for ever once
    /// it has not been heard for three seconds. For one start only.
    #[arg(long)]
    pub replace: bool,
    /// Stop when stdin ends: whoever started this node holds the other end, and it ends however that one does.
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
    /// What it has in common with `dev`.
    #[command(flatten)]
    pub server: ServerArgs,
}

impl Serve {
    /// Runs the command until it is stopped.
    pub fn run(self) -> anyhow::Result<()> {
        let mut config = Config::load(self.config.as_deref(), &self.server, environment())?;
        config.replaces = self.replace;
        telemetry::start(&config.log)?;
        if self.until_stdin_ends {
            std::thread::spawn(stop_when_stdin_ends);
        }
        let load: Load =
            Box::new(move || Config::load(self.config.as_deref(), &self.server, environment()));
        server::start(&config)?.run(Some(&load))
    }
}

/// As SIGTERM does it, at any time from here on.
fn stop_when_stdin_ends() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = kill_process(getpid(), Signal::TERM);
}
