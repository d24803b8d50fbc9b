//! `duramen man`: manual pages.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::Resettable::Reset;
use clap::builder::StyledStr;
use clap::{Args, Command};

use super::screen;

/// Print the manual page, or write one for every command.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen man | man -l -
  duramen man --dir ~/.local/share/man/man1 && man duramen-topic-create")]
pub struct Man {
    /// Write a page for every command into this directory, instead of printing the first
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    /// Runs the command, for the whole command line.
    pub fn run(self, whole: Command) -> anyhow::Result<()> {
        let mut command = whole.disable_help_subcommand(true);
        // Build gives every command its whole name.
        command.build();
        let Some(dir) = self.dir else {
            return Ok(screen::print_line(page(&command)?.trim_end())?);
        };
        let cannot = || format!("cannot write to {}", dir.display());
        std::fs::create_dir_all(&dir).with_context(cannot)?;
        write_all(&command, &dir).with_context(cannot)
    }
}

fn write_all(command: &Command, dir: &Path) -> anyhow::Result<()> {
    for inner in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_all(inner, dir)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    Ok(std::fs::write(dir.join(format!("{name}.1")), page(command)?)?)
}

/// Writes a command's page. Notes and examples are sections of their own and keep their lines: nobody could copy an
/// example from a filled paragraph.
fn page(command: &Command) -> anyhow::Result<String> {
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let plain = command.clone().after_help(Reset::<StyledStr>).after_long_help(Reset::<StyledStr>);
    let mut page = Vec::new();
    clap_mangen::Man::new(plain).render(&mut page)?;
    let page = String::from_utf8(page)?;
    let (before, rest) = page.split_once(".TH ").context("a page has a title")?;
    let (_, rest) = rest.split_once('\n').context("a title has a line")?;
    let mut page = format!("{before}{}\n{rest}", title(command));
    let (notes, examples) = match notes.as_deref().map(|it| it.split_once("Examples:\n")) {
        None => (None, None),
        Some(Some((notes, examples))) => (Some(notes.to_owned()), Some(examples.to_owned())),
        Some(None) => (notes, None),
    };
    for (heading, text) in [("NOTES", notes), ("EXAMPLES", examples)] {
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else { continue };
        writeln!(page, ".SH {heading}\n.nf")?;
        for line in text.trim_end().lines() {
            // troff reads a leading dot or quote as a request, and prints a bare dash as a hyphen, which no shell
            // takes.
            let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
            let line = if line.starts_with('.') { format!("\\&{line}") } else { line };
            writeln!(page, "{line}")?;
        }
        writeln!(page, ".fi")?;
    }
    Ok(page)
}

/// Writes the title, which the foot of the page repeats. The title has the program's version and an empty date, so that
/// pages are the same on every day. The library would leave an empty date out and shift the fields after it.
fn title(command: &Command) -> String {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_uppercase();
    let version = command.get_version().unwrap_or_default();
    format!(".TH {name} 1 \"\" \"Duramen {version}\" \"Duramen manual\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let command = Command::new("c").version("1.2").after_help(
            "A note\nof two lines.\n\nExamples:\n  c --a 'b c'\n  c d\n\nExit codes: 0 done.",
        );
        let page = page(&command).unwrap();
        assert!(page.contains(".TH C 1 \"\" \"Duramen 1.2\" \"Duramen manual\"\n"), "{page}");
        let (_, notes) = page.split_once(".SH NOTES\n").unwrap();
        let expected = ".nf\nA note\nof two lines.\n.fi\n.SH EXAMPLES\n.nf\n  c \\-\\-a \\(aqb c\\(aq\n  c d\n\n\
                        Exit codes: 0 done.\n.fi\n";
        assert_eq!(notes, expected);
    }
}
