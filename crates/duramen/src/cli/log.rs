//! `duramen log`: prints files of a data directory, and lists the files that a start set aside there.

mod aside;
mod image;
mod index;
mod journal;
mod segment;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::bootstrap::Output;
use super::screen;
use super::usage::whole;

/// Print the files of a data directory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen log dump duramen-data/orders-0/00000000000000000000.log
  duramen log dump duramen-data/orders-0/00000000000000000000.log --records --from 100 --count 5
  duramen log set-aside --data-dir duramen-data")]
pub struct Log {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the content of a segment, an index, an image or a journal extent
    Dump(Dump),
    /// List or drop the files that a start of the node set aside
    SetAside(aside::SetAside),
}

/// Print the content of a file. The command only reads, and a node may use the file.
#[derive(Debug, Args)]
#[command(after_help = "A file's name tells its kind:
  *.log         segment: record batches, in the format of Apache Kafka
  *.index       offset index        *.timeindex   time index
  image-*       snapshot of a view after an index: idempotent producers, or the metadata
  journal/*     an extent of the journal: rounds, and the records in them
Segments hold the payload. The command prints only the length of payload in the journal.

Examples:
  duramen log dump duramen-data/orders-0/00000000000000000000.log
  duramen log dump duramen-data/orders-0/00000000000000000000.log --records --count 10
  duramen log dump duramen-data/orders-0/00000000000000000000.index
  duramen log dump duramen-data/journal/0000 --output json | jq 'select(.whole == false)'

Exit codes: 0 all of it could be read, 1 some of it is damaged or the file cannot be opened,
2 wrongly called.")]
struct Dump {
    /// File to print
    file: PathBuf,
    /// Print the records of each batch or round, and the facts of an image, too
    #[arg(long, short)]
    records: bool,
    /// Skip batches and entries that end before this offset
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    from: Option<i64>,
    /// Print at most this many batches, entries, rounds or facts
    #[arg(long, short = 'n', value_name = "N", value_parser = whole::<u64>)]
    count: Option<u64>,
    /// Read the file as this kind, whatever its name
    #[arg(long = "as", value_enum, value_name = "KIND")]
    kind: Option<Kind>,
    /// Print for people (table) or one JSON object a line (json)
    #[arg(
        long,
        short,
        value_enum,
        default_value_t,
        value_name = "FORM",
        hide_possible_values = true
    )]
    output: Output,
}

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Segment,
    Index,
    Timeindex,
    Image,
    Journal,
}

impl Log {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Dump(dump) => dump.run(),
            Action::SetAside(aside) => aside.run(),
        }
    }
}

impl Dump {
    fn run(&self) -> anyhow::Result<()> {
        let is_dir = std::fs::metadata(&self.file).map(|it| it.is_dir());
        let is_dir = is_dir.with_context(|| format!("cannot read {}", self.file.display()))?;
        ensure!(!is_dir, "{} is a directory: name a file in it", self.file.display());
        let kind = self.kind.or_else(|| kind_of(&self.file)).with_context(|| {
            format!("{} has no name that tells its kind; say it with --as", self.file.display())
        })?;
        let cannot = || format!("cannot read {}", self.file.display());
        let mut printer = Printer {
            out: Box::new(screen::stdout()),
            json: self.output == Output::Json,
            left: self.count.unwrap_or(u64::MAX),
            damage: 0,
        };
        match kind {
            Kind::Segment => segment::dump(self, &mut printer).with_context(cannot)?,
            Kind::Index => index::dump_offsets(self, &mut printer).with_context(cannot)?,
            Kind::Timeindex => index::dump_times(self, &mut printer).with_context(cannot)?,
            Kind::Image => image::dump(self, &mut printer).with_context(cannot)?,
            Kind::Journal => journal::dump(self, &mut printer).with_context(cannot)?,
        }
        printer.out.flush()?;
        match printer.damage {
            0 => Ok(()),
            1 => bail!("one place of {} is damaged", self.file.display()),
            places => bail!("{places} places of {} are damaged", self.file.display()),
        }
    }

    /// Offset in the file's name, to which the relative offsets of an index are added.
    fn base_offset(&self) -> i64 {
        let stem = self.file.file_stem().and_then(|stem| stem.to_str());
        stem.and_then(|stem| stem.parse().ok()).unwrap_or(0)
    }

    fn wants(&self, last_offset: i64) -> bool {
        self.from.is_none_or(|from| last_offset >= from)
    }
}

fn kind_of(path: &Path) -> Option<Kind> {
    let name = path.file_name().and_then(|name| name.to_str());
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("log") => Some(Kind::Segment),
        Some("index") => Some(Kind::Index),
        Some("timeindex") => Some(Kind::Timeindex),
        None if name.is_some_and(|name| name.starts_with("image-")) => Some(Kind::Image),
        None if path.parent().is_some_and(|parent| parent.ends_with("journal"))
            && name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) =>
        {
            Some(Kind::Journal)
        }
        _ => None,
    }
}

/// Prints entries in either form, and counts damaged places.
struct Printer {
    out: Box<dyn Write>,
    json: bool,
    left: u64,
    damage: u64,
}

impl Printer {
    /// Prints an entry. Returns false after the last entry that the user wants.
    fn entry(
        &mut self,
        value: &impl Serialize,
        line: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        self.detail(value, line)?;
        Ok(self.left > 0)
    }

    /// Prints a detail of the entry before it.
    fn detail(
        &mut self,
        value: &impl Serialize,
        line: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            serde_json::to_writer(&mut self.out, value).map_err(std::io::Error::from)?;
            self.out.write_all(b"\n")?;
        } else {
            writeln!(self.out, "{}", line())?;
        }
        Ok(())
    }

    /// Prints the damage at a place of the file.
    fn damage(&mut self, position: u64, what: &str) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Damage<'a> {
            position: u64,
            damage: &'a str,
        }
        self.damage += 1;
        let value = Damage { position, damage: what };
        self.detail(&value, || format!("position {position}: DAMAGED: {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_names() {
        for (path, kind) in [
            ("d/t-0/00000000000000000000.log", Some(Kind::Segment)),
            ("00000000000000000000.index", Some(Kind::Index)),
            ("00000000000000000000.timeindex", Some(Kind::Timeindex)),
            ("d/t-0/image-00000000000000000815", Some(Kind::Image)),
            ("duramen-data/journal/0003", Some(Kind::Journal)),
            ("duramen-data/manifest", None),
        ] {
            assert_eq!(kind_of(Path::new(path)), kind, "{path}");
        }
    }
}
