//! Arguments of `duramen log dump`, and the kinds of files.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::bootstrap::Output;
use crate::cli::usage::whole;

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
pub(super) struct Dump {
    /// File to print
    pub(super) file: PathBuf,
    /// Print the records of each batch or round, and the facts of an image, too
    #[arg(long, short)]
    pub(super) records: bool,
    /// Skip batches and entries that end before this offset
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) from: Option<i64>,
    /// Print at most this many batches, entries, rounds or facts
    #[arg(long, short = 'n', value_name = "N", value_parser = whole::<u64>)]
    pub(super) count: Option<u64>,
    /// Read the file as this kind, whatever its name
    #[arg(long = "as", value_enum, value_name = "KIND")]
    pub(super) kind: Option<Kind>,
    /// Print for people (table) or one JSON object a line (json)
    #[arg(long, short, default_value = "table", value_name = "FORM", hide_possible_values = true)]
    pub(super) output: Output,
}

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    Segment,
    Index,
    Timeindex,
    Image,
    Journal,
}

impl Dump {
    /// Offset in the file's name, to which the relative offsets of an index are added.
    pub(super) fn base_offset(&self) -> i64 {
        let stem = self.file.file_stem().and_then(|stem| stem.to_str());
        stem.and_then(|stem| stem.parse().ok()).unwrap_or(0)
    }

    /// Tells whether the user wants what ends at this offset.
    pub(super) fn wants(&self, last_offset: i64) -> bool {
        self.from.is_none_or(|from| last_offset >= from)
    }
}

/// Tells the kind of a file by its name.
pub(super) fn kind_of(path: &Path) -> Option<Kind> {
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
