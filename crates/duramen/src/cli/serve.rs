//! The `serve` command: starts a node with its configuration.

use std::path::PathBuf;

use clap::Args;
use rustix::process::{Signal, getpid, kill_process};

use crate::config::{Config, ServerArgs, environment};
use crate::server::reloading::Load;
use crate::{server, telemetry};

/// Arguments of `duramen serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "A flag takes precedence over the environment (DURAMEN_LISTEN, DURAMEN_SET_NUM_PARTITIONS,\n\
    ...), and the environment over the file. `duramen config example` prints a file with every key.\n\n\
    On SIGHUP the broker reads the file again. The log names the changed settings, and those that\n\
    need a restart.\n\n\
    Exit codes: 0 stopped by SIGINT or SIGTERM, 1 could not start, 2 wrongly called or configured,\n\
    70 found itself wrong, 74 the disk failed."
)]
pub struct Serve {
    /// TOML file with the values of the flags, and [settings].
    #[arg(long, value_name = "FILE", env = "DURAMEN_CONFIG")]
    pub config: Option<PathBuf>,
    /// Take the place of the data directory that is registered under this node.id, because that one is lost. The
    /// cluster retires the lost one for ever once it has not heard it for three seconds. For one start only.
    #[arg(long)]
    pub replace: bool,
    /// Stop when stdin ends. The process that started this node holds the other end, so that both end together.
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
    /// Flags that `serve` shares with `dev`.
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

/// Waits for the end of stdin, then stops the node as SIGTERM does.
fn stop_when_stdin_ends() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = kill_process(getpid(), Signal::TERM);
}
