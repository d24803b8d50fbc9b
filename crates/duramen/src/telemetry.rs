//! # Room card: telemetry
//!
//! Purpose:    logs, for people at a terminal or for machines.
//! Owns:       the subscriber; the flags that shape it.
//! Interface:  [`Flags`], [`start`], [`change`].
//! Invariants: logs go to stderr; stdout belongs to the commands.
//! Never:      metrics (see `server::metrics`).
//! Tests:      below.
//! Start at:   [`start`].

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line of text an event, coloured on a terminal.
    Human,
    /// One JSON object a line.
    Json,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Json { "json" } else { "human" })
    }
}

/// Replaces the filter of log lines.
type Change = Box<dyn Fn(EnvFilter) -> anyhow::Result<()> + Send + Sync>;

static CHANGE: OnceLock<Change> = OnceLock::new();

/// Flags of the commands that log.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// Level of log lines [default: info]: error, warn, info, debug, trace, or a filter such as
    /// `info,duramen_storage=debug`. `RUST_LOG` applies if this is not given.
    #[arg(long = "log", value_name = "FILTER", env = "DURAMEN_LOG")]
    pub filter: Option<String>,
    /// Format of log lines, which go to stderr [default: human].
    #[arg(long = "log-format", value_name = "FORMAT", env = "DURAMEN_LOG_FORMAT", value_enum)]
    pub format: Option<Format>,
}

/// Starts logging for the whole process. A second call changes nothing.
pub fn start(flags: &Flags) -> anyhow::Result<()> {
    let filter = filter(flags)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    // An error means that a subscriber is there already, as in a test process.
    match flags.format.unwrap_or(Format::Human) {
        Format::Human => {
            let builder = builder.with_target(false).with_ansi(stderr().is_terminal());
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_ok() {
                let _ = CHANGE.set(Box::new(move |filter| Ok(handle.reload(filter)?)));
            }
        }
        Format::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_ok() {
                let _ = CHANGE.set(Box::new(move |filter| Ok(handle.reload(filter)?)));
            }
        }
    }
    Ok(())
}

/// Changes the filter of log lines.
pub fn change(flags: &Flags) -> anyhow::Result<()> {
    let Some(change) = CHANGE.get() else { bail!("this process does not log by a filter") };
    change(filter(flags)?)
}

/// The filter that the flags ask for.
pub fn filter(flags: &Flags) -> anyhow::Result<EnvFilter> {
    let text = flags.filter.clone().or_else(|| std::env::var("RUST_LOG").ok());
    let text = text.filter(|text| !text.is_empty()).unwrap_or_else(|| "info".to_owned());
    EnvFilter::try_new(&text).with_context(|| format!("`{text}` is not a log filter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken_and_nonsense_is_refused() {
        let flags = |text: &str| Flags { filter: Some(text.into()), format: None };
        assert!(filter(&flags("debug")).is_ok());
        assert!(filter(&flags("warn,duramen=trace")).is_ok());
        assert!(filter(&flags("duramen=loud")).is_err());
    }
}
