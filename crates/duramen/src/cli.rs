//! # Room card: cli
//!
//! Purpose:    the command line as one enum; one file for each command under `cli/`.
//! Owns:       [`Cli`], exit codes.
//! Interface:  [`main`].
//! Invariants: [`main`] prints an error once, to stderr, with its causes; every exit code is one of those that its
//!             comment lists.
//! Never:      logic of a command; anything that a command imports.
//! Tests:      the parser's own check below; each command has its own.
//! Start at:   [`Command`].

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

mod acks;
pub mod acl;
pub mod backup;
pub mod bench;
pub mod bootstrap;
pub mod cluster;
pub mod completion;
pub mod config;
pub mod consume;
pub mod dev;
mod failure;
pub mod group;
pub mod log;
pub mod man;
mod missing;
mod native;
mod password;
pub mod place;
pub mod produce;
pub mod queue;
mod replicas;
pub mod restore;
pub mod screen;
pub mod serve;
pub mod share;
pub mod tls;
pub mod topic;
pub mod txn;
mod usage;
pub mod user;

use failure::{complain, is_broken_pipe};

/// A durable, replicated log that speaks the Kafka protocol.
#[derive(Debug, Parser)]
#[command(
    name = "duramen",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrongly called, 130 interrupted."
)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a durable broker here, or a cluster of them, and print the next commands to type.
    Dev(dev::Dev),
    /// Start a broker with the configuration of a file, flags and the environment.
    Serve(serve::Serve),
    /// Create, list, describe, alter, trim and delete topics
    Topic(topic::Topic),
    /// Consumer groups, their members and their offsets
    Group(group::Group),
    /// Transactional ids and their transactions
    Txn(txn::Txn),
    /// Share groups and their dead letters
    Share(share::Share),
    /// Nodes of a cluster and the places of replicas
    Cluster(cluster::ClusterCommand),
    /// Copy a running node's partitions; check such a copy
    Backup(backup::BackupCommand),
    /// Make a new data directory from a backup
    Restore(restore::Restore),
    /// Append records to a topic
    Produce(produce::Produce),
    /// Read records of a topic
    Consume(consume::Consume),
    /// Append to a log and read it by position; print the files of a data directory
    Log(log::Log),
    /// Queues, one for each key of a topic: append, read, wait, list
    Queue(queue::Queue),
    /// Users and their passwords
    User(user::UserCommand),
    /// Rules of access: which user may do what
    Acl(acl::AclCommand),
    /// Make and look at certificates
    Tls(tls::TlsCommand),
    /// Measure a broker
    Bench(bench::Bench),
    /// Print a completion script for a shell
    Completion(completion::Completion),
    /// Print the manual page, or write one for every command
    Man(man::Man),
    /// Print every setting of a broker.
    Config(config::ConfigCommand),
}

/// Exit code that shells report for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Exit code of the parser for a wrong command line.
const WRONGLY_CALLED: u8 = 2;

/// Parses the command line and runs the command.
///
/// Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrongly called, 130 interrupted.
pub fn main() -> ExitCode {
    let matches = usage::adapted(Cli::command()).get_matches();
    let json = wants_json(&matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Dev(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Config(command) => command.run(),
        Command::Topic(command) => command.run(),
        Command::Group(command) => command.run(),
        Command::Txn(command) => command.run(),
        Command::Share(command) => command.run(),
        Command::Cluster(command) => command.run(),
        Command::Backup(command) => command.run(),
        Command::Restore(command) => command.run(),
        Command::Produce(command) => command.run(),
        Command::Consume(command) => command.run(),
        Command::Log(command) => command.run(),
        Command::Queue(command) => command.run(),
        Command::User(command) => command.run(),
        Command::Acl(command) => command.run(),
        Command::Tls(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Completion(command) => command.run(Cli::command()),
        Command::Man(command) => command.run(Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output closed the pipe, because it has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<bootstrap::Interrupted>() => ExitCode::from(INTERRUPTED),
        Err(error) => {
            complain(&error, json);
            if usage::is_misuse(&error) {
                ExitCode::from(WRONGLY_CALLED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Tells whether the user asked the command for JSON.
fn wants_json(mut matches: &ArgMatches) -> bool {
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    let output = matches.try_get_one::<bootstrap::Output>("output");
    output.is_ok_and(|output| output == Some(&bootstrap::Output::Json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        usage::adapted(Cli::command()).debug_assert();
    }
}
