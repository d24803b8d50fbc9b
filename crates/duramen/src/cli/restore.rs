//! `duramen restore`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use duramen_broker::restoration::SetBack;
use serde::Serialize;

use super::backup::{Backup, Report, sync_dir};
use super::bootstrap::Output;
use super::screen;
use crate::config::{Config, ServerArgs};
use crate::server::restoring::Restoring;
use crate::telemetry;

/// Make a new data directory from a backup.
#[derive(Debug, Args)]
#[command(
    after_help = "The command makes a new data directory from a backup: the same records at the same offsets, topics,
settings, users, rules and groups. It is a new cluster, with a new id, of one node. Clients and
nodes of the old cluster can run on: neither cluster takes the other's directories.

The command checks every byte of the backup on the way, and writes the manifest of the directory at
last: until then no node starts on it. If the command is interrupted, empty the directory and run
it again. Start the node afterwards, let others join it with empty directories, and add replicas:
  duramen serve --data-dir /var/lib/duramen-new
  duramen topic alter orders --replication-factor 3
A node of a cluster of several needs its --node-listen again.

Producers that wrote to the old cluster after the backup are refused by the sequence of their
batches: start them anew. Consumers that read further than the backup are told that the log ends
earlier. Leader epochs and producer ids go on behind those of the old cluster.

Examples:
  duramen restore /backups/monday --dry-run --data-dir /var/lib/duramen-new
  duramen restore /backups/monday --data-dir /var/lib/duramen-new"
)]
pub struct Restore {
    /// Directory of the backup
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Data directory to make: it must be empty, or not exist yet
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Check the backup and list what it holds, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print for people (table) or for programs (json)
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Restored {
    backup: Report,
    data_dir: PathBuf,
    /// Id of the new cluster. Absent with --dry-run.
    cluster_id: Option<String>,
    /// Nodes of the old cluster, which have no part in the new one.
    former_nodes: Vec<i32>,
    /// Offsets of groups that were behind the ends of their logs.
    offsets_set_back: Vec<Offset>,
}

#[derive(Debug, Serialize)]
struct Offset {
    group: String,
    topic: String,
    partition: i32,
    from: i64,
    to: i64,
}

impl Offset {
    fn new(it: &SetBack) -> Self {
        let SetBack { group, topic, partition, from, to } = it.clone();
        Self { group, topic, partition, from, to }
    }
}

impl Restore {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        let args = ServerArgs { data_dir: Some(self.data_dir.clone()), ..ServerArgs::default() };
        telemetry::start(&Config::load(None, &args, std::iter::empty())?.log)?;
        let backup = Backup::open(&self.dir)?;
        let restoring = Restoring::plan(backup.moment.clone(), &backup.dir)?;
        check_empty(&self.data_dir)?;
        let mut restored = Restored {
            backup: Report::new(&backup, restoring.partitions()),
            data_dir: self.data_dir.clone(),
            cluster_id: None,
            former_nodes: restoring.outcome().others.clone(),
            offsets_set_back: restoring.set_back().iter().map(Offset::new).collect(),
        };
        if self.dry_run {
            backup.pass(None)?;
        } else {
            let target = &self.data_dir;
            std::fs::create_dir_all(target)
                .with_context(|| format!("cannot make {}", target.display()))?;
            backup.pass(Some(target))?;
            sync_dir(target)?;
            let id = restoring.carry_out(target)?;
            restored.cluster_id = Some(duramen_protocol::wire::Uuid(id).to_string());
        }
        self.output.print(&restored, || restored.text())
    }
}

impl Restored {
    fn text(&self) -> String {
        let mut text = self.backup.text();
        if !self.former_nodes.is_empty() {
            let nodes = screen::list(&self.former_nodes);
            let _ = write!(text, "\n  former nodes of the cluster, given up: {nodes}");
        }
        for Offset { group, topic, partition, from, to } in &self.offsets_set_back {
            let _ = write!(
                text,
                "\n  group {group} is set back in {topic} {partition}, from offset {from} to the end, {to}"
            );
        }
        let dir = self.data_dir.display();
        match &self.cluster_id {
            Some(id) => {
                let _ = write!(text, "\n{dir} is the cluster {id} now. Start a node on it.");
            }
            None => text.push_str("\nThe backup is whole. Nothing was changed."),
        }
        text
    }
}

/// Refuses a directory that holds something.
fn check_empty(dir: &Path) -> anyhow::Result<()> {
    let Ok(mut entries) = std::fs::read_dir(dir) else { return Ok(()) };
    let is_foreign = |entry: &std::io::Result<std::fs::DirEntry>| {
        !entry.as_ref().is_ok_and(|entry| entry.file_name() == "lost+found")
    };
    let first = entries.find(is_foreign).transpose()?;
    let name = first.map(|entry| entry.file_name().to_string_lossy().into_owned());
    ensure!(
        name.is_none(),
        "{} is not empty: it has {}; a backup is restored into an empty directory",
        dir.display(),
        name.unwrap_or_default()
    );
    Ok(())
}
