//! `duramen log set-aside`: lists and drops the bytes that starts of a node set aside.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use duramen_storage::SET_ASIDE;
use serde::Serialize;

use crate::cli::bootstrap::Output;
use crate::cli::screen::Table;
use crate::cli::usage::once;

/// List or drop the files that a start of the node set aside. The node may run meanwhile.
#[derive(Debug, Args)]
#[command(
    after_help = "A node that starts may find whole record batches that no record of its journal names. It moves them
to the folder `set-aside` of its data directory, and logs a warning. The node never reads them
again, and removes nothing. To print a segment, use `duramen log dump`; to remove it, use --drop.

Examples:
  duramen log set-aside --data-dir duramen-data
  duramen log set-aside --data-dir duramen-data --drop orders-0.815 --drop orders-1.815

Exit codes: 0 listed or dropped, 1 there is no such name, or the folder cannot be read,
2 wrongly called."
)]
pub(super) struct SetAside {
    /// Data directory of the node
    #[arg(long, value_name = "DIR", default_value = "duramen-data")]
    data_dir: PathBuf,
    /// Remove the directory of this name for ever; may be repeated
    #[arg(long, value_name = "NAME")]
    drop: Vec<String>,
    /// Print for people (table) or one JSON document (json)
    #[arg(long, short, default_value = "table", value_name = "FORM", hide_possible_values = true)]
    output: Output,
}

/// One directory of the folder.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    files: u64,
    bytes: u64,
}

impl SetAside {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let folder = self.data_dir.join(SET_ASIDE);
        let entries = entries(&folder)?;
        for name in &self.drop {
            if !entries.iter().any(|entry| entry.name == *name) {
                bail!(
                    "{name:?} is not set aside in {}; without --drop this command lists the names",
                    folder.display()
                );
            }
        }
        for name in once(&self.drop) {
            let path = folder.join(name);
            fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let left: Vec<Entry> =
            entries.into_iter().filter(|entry| !self.drop.contains(&entry.name)).collect();
        self.output.print_list(&left, "nothing is set aside", |left| {
            let mut table = Table::new(&["NAME", "FILES", "BYTES"]);
            for Entry { name, files, bytes } in left {
                table.row(&[name, files, bytes]);
            }
            table
        })
    }
}

/// Lists the directories of the folder by name. A missing folder is empty.
fn entries(folder: &Path) -> anyhow::Result<Vec<Entry>> {
    let cannot = || format!("cannot read {}", folder.display());
    let found = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let data_dir = folder.parent().unwrap_or(folder);
            if !data_dir.join(duramen_storage::MANIFEST).exists() {
                bail!(
                    "{} is no data directory of a node; name one with --data-dir",
                    data_dir.display()
                );
            }
            return Ok(Vec::new());
        }
        found => found.with_context(cannot)?,
    };
    let mut entries = Vec::new();
    for entry in found {
        let entry = entry.with_context(cannot)?;
        let (mut files, mut bytes) = (0, 0);
        for file in fs::read_dir(entry.path()).with_context(cannot)? {
            let about = file.and_then(|file| file.metadata()).with_context(cannot)?;
            files += 1;
            bytes += about.len();
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push(Entry { name, files, bytes });
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}
