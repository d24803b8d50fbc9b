//! # Room card: cli
//!
//! Purpose:    what people type, as one enum; one file a command under `cli/`.
//! Owns:       [`Cli`], exit codes.
//! Interface:  [`main`].
//! Invariants: an error is printed once, to stderr, with its causes; exit codes are those of [`main`].
//! Never:      logic of a command.
//! Tests:      the parser's own check below; each command has its own.
//! Start at:   [`Command`].

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod dev;
pub mod serve;

/// A durable, replicated log that speaks the Kafka protocol.
#[derive(Debug, Parser)]
#[command(name = "duramen", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a durable single-node broker here and say what to type next.
    Dev(dev::Dev),
    /// Start a broker as configured by file, flags and environment.
    Serve(serve::Serve),
}

/// Parses the command line and runs the command.
///
/// Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrongly called.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Dev(command) => command.run(),
        Command::Serve(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
