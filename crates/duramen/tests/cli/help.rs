//! Help and manual pages.

use std::path::Path;
use std::process::Command;

use clap::CommandFactory;

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let man = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duramen"));
        command.arg("man");
        command
    };
    let page = String::from_utf8(man().output().unwrap().stdout).unwrap();
    let title = concat!(
        ".TH DURAMEN 1 \"\" \"Duramen ",
        env!("CARGO_PKG_VERSION"),
        "\" \"Duramen manual\"\n"
    );
    assert!(page.contains(title) && page.contains("duramen\\-topic"), "{page}");
    assert!(man().arg("--dir").arg(directory.path()).status().unwrap().success());
    for name in ["duramen.1", "duramen-serve.1", "duramen-topic-alter.1", "duramen-group-reset.1"] {
        let page = std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
        let foot = title.split_once(" 1 ").unwrap().1;
        assert!(page.contains(foot), "{name}: {page}");
    }
}

#[test]
fn help_is_no_wider_than_a_hundred_columns() {
    fn look(command: &mut clap::Command, path: &str) {
        // What is written by hand is not filled into lines again: too long a line breaks where a word ends.
        let by_hand = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let help = command.render_long_help().to_string();
        for line in by_hand.lines().chain(help.lines()) {
            let columns = line.chars().count();
            assert!(columns <= 100, "{path} has a line of {columns} columns: {line}");
        }
        for inner in command.get_subcommands_mut() {
            let path = format!("{path} {}", inner.get_name());
            look(inner, &path);
        }
    }
    let mut cli = duramen::cli::Cli::command().term_width(100);
    cli.build();
    look(&mut cli, "duramen");
}

/// Commands whose help is reviewed.
const REVIEWED: &[&[&str]] = &[
    &["topic"],
    &["topic", "create"],
    &["topic", "list"],
    &["topic", "describe"],
    &["topic", "alter"],
    &["topic", "trim"],
    &["topic", "delete"],
    &["group"],
    &["group", "list"],
    &["group", "describe"],
    &["group", "reset"],
    &["group", "delete"],
    &["txn"],
    &["txn", "list"],
    &["txn", "describe"],
    &["txn", "abort"],
    &["share"],
    &["share", "redrive"],
    &["produce"],
    &["consume"],
    &["log"],
    &["log", "dump"],
    &["log", "set-aside"],
    &["log", "append"],
    &["log", "read"],
    &["log", "tail"],
    &["log", "truncate"],
    &["log", "fence"],
    &["queue"],
    &["queue", "enqueue"],
    &["queue", "retrieve"],
    &["queue", "tail"],
    &["queue", "edit"],
    &["queue", "rewrite"],
    &["queue", "delete"],
    &["queue", "trim"],
    &["queue", "fence"],
    &["queue", "list"],
    &["queue", "show"],
    &["queue", "lease"],
    &["queue", "settle"],
    &["queue", "work"],
    &["queue", "redrive"],
    &["queue", "verify"],
    &["bench"],
    &["cluster"],
    &["cluster", "status"],
    &["cluster", "verify"],
    &["cluster", "balance"],
    &["cluster", "move"],
    &["cluster", "remove"],
    &["cluster", "survive"],
    &["backup"],
    &["backup", "create"],
    &["backup", "verify"],
    &["restore"],
    &["bench", "append"],
    &["bench", "produce"],
    &["bench", "consume"],
    &["bench", "tail"],
    &["config"],
    &["completion"],
    &["man"],
];

/// The help of every client command, as it stands in `tests/help.txt`. After a change on purpose, run
/// `DURAMEN_WRITE_HELP=1 cargo test -p duramen --test cli help`, and read the difference.
#[test]
fn the_help_is_as_reviewed_and_teaches_by_example() {
    let mut cli = duramen::cli::Cli::command().term_width(100);
    cli.build();
    let mut text = String::new();
    for path in REVIEWED.iter().copied() {
        let mut command = &mut cli;
        for name in path {
            command = command.find_subcommand_mut(name).unwrap();
        }
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:\n"), "{path:?} has no examples");
        let line = |line: &str| line.trim_end().to_owned() + "\n";
        text.extend(["$ duramen ", &path.join(" "), " --help\n"]);
        text.extend(help.lines().map(line));
        text.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    if std::env::var_os("DURAMEN_WRITE_HELP").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(reviewed == text, "the help differs from tests/help.txt");
}
