//! `duramen log`: appends to logs and reads them by the native API; prints files of a data directory, and lists those
//! that a start set aside there.

mod aside;
mod dump;
mod image;
mod index;
mod journal;
mod printer;
mod remote;
mod segment;

use std::io::Write;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};

use super::bootstrap::{self, Output};
use super::screen;

use dump::{Dump, Kind, kind_of};
use printer::Printer;

/// Logs by the native API, and the files of a data directory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen log append orders first second
  duramen log read orders --follow
  duramen log fence orders writer-2
  duramen log dump duramen-data/orders-0/00000000000000000000.log
  duramen log dump duramen-data/orders-0/00000000000000000000.log --records --from 100 --count 5
  duramen log set-aside --data-dir duramen-data")]
pub struct Log {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Append records to a log, on a condition
    Append(remote::Append),
    /// Read a log by position
    Read(remote::Read),
    /// Show the ends of a log, its fence and its pointer
    Tail(remote::TailOf),
    /// Remove the first records of a log, and keep a pointer to what they led to
    Truncate(remote::TruncateLog),
    /// Set the token that appends to a log have to carry if they carry one
    Fence(remote::FenceLog),
    /// Print the content of a segment, an index, an image or a journal extent
    Dump(Dump),
    /// List or drop the files that a start of the node set aside
    SetAside(aside::SetAside),
}

impl Log {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Append(append) => bootstrap::run(append.run()),
            Action::Read(read) => bootstrap::run(read.run()),
            Action::Tail(tail) => bootstrap::run(tail.run()),
            Action::Truncate(truncate) => bootstrap::run(truncate.run()),
            Action::Fence(fence) => bootstrap::run(fence.run()),
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
}
