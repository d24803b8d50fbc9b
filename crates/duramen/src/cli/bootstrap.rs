//! The flags that every client command has: where the cluster is, and how to print.

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::client::{Client, Error, Options};

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// JSON, for programs.
    Json,
}

/// Which cluster, and how to print.
#[derive(Debug, Clone, Args)]
pub struct Cluster {
    /// Broker to ask first; the others are learned from it. Several may be separated by commas
    #[arg(
        long,
        short,
        value_name = "HOST:PORT",
        env = "DURAMEN_BOOTSTRAP",
        hide_env_values = true,
        default_value = "127.0.0.1:9092",
        value_delimiter = ',',
        help_heading = "Cluster"
    )]
    pub bootstrap: Vec<String>,

    /// Print for people (table) or for programs (json)
    #[arg(
        long,
        short,
        value_enum,
        default_value_t,
        value_name = "FORM",
        hide_possible_values = true,
        help_heading = "Cluster"
    )]
    pub output: Output,
}

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Cluster {
    /// A client of this cluster.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        self.connect_with(Options::new(&self.bootstrap)).await
    }

    /// A client that waits for no node longer than this: some may be frozen.
    pub async fn connect_within(&self, request_timeout: Duration) -> anyhow::Result<Client> {
        self.connect_with(Options { request_timeout, ..Options::new(&self.bootstrap) }).await
    }

    async fn connect_with(&self, options: Options) -> anyhow::Result<Client> {
        let client = Client::connect(options).await;
        client.map_err(|error| match &error {
            Error::Unreachable { address, source } => anyhow::anyhow!(
                "no broker answers at {address} ({source}); start one with `duramen dev`, \
                 or name another with --bootstrap HOST:PORT"
            ),
            _ => anyhow::Error::new(error),
        })
    }

    /// True if results are to be JSON.
    pub fn json(&self) -> bool {
        self.output == Output::Json
    }
}

/// Runs a command's future on a runtime of its own, until it ends or the user interrupts it.
pub fn run(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the client's runtime")?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = command => outcome,
            pressed = tokio::signal::ctrl_c() => {
                pressed.context("cannot listen for Ctrl-C")?;
                Err(Interrupted.into())
            }
        }
    });
    // A thread that waits for a name server or for stdin must not keep the process.
    runtime.shutdown_background();
    outcome
}
