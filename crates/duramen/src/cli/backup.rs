//! `duramen backup`: copies of a running node's partitions.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use duramen_client::{Client, Error};
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{BeginBackupRequest, BeginBackupResponse};
use duramen_storage::MANIFEST;
use duramen_storage::backup::{Moment, owner};
use serde::Serialize;

use super::bootstrap::{Cluster, Output, run};
use super::failure::explained;
use super::screen;
use crate::server::freezing::STATE;
use crate::server::restoring::{KeptPartition, Restoring};

mod kept;

pub(super) use kept::{Backup, sync_dir};

/// Most requests for a moment, and the pause between. A moment passes when a log is checkpointed, or a segment goes,
/// just then.
const ASKED_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);
/// Most partitions that an error names.
const NAMED_MAX: usize = 5;

/// Copies of a running node's partitions.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen backup create /backups/monday --data-dir /var/lib/duramen
  duramen backup verify /backups/monday
  duramen restore /backups/monday --data-dir /var/lib/duramen-new")]
pub struct BackupCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Copy all partitions of a running node, as they are at one moment
    Create(Create),
    /// Read a backup, and check every byte of it
    Verify(Verify),
}

impl BackupCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Create(command) => run(command.run()),
            Action::Verify(command) => command.run(),
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Use this command on the machine of the node, as a user who may read its data directory. Clients go
on. The node keeps its files as they are at one moment, by hard links in the folder backup of the
data directory. The command copies them, checks each batch on the way, and removes the folder.

The backup holds the committed records of every partition that the node has, at the same offsets
and byte for byte, with the settings of topics, users, rules, groups and transactions. Each log
ends where the node knew it to be committed at that moment. The node has to hold a whole replica of
every partition; otherwise the command names the partitions that it lacks (see --partial).

A backup holds all records and the keys of passwords: keep it as safe as the data directory.
The command needs Alter on the cluster where rules are set.

Examples:
  duramen backup create /backups/monday --data-dir /var/lib/duramen
  duramen backup create /backups/monday --data-dir /var/lib/duramen --output json"
)]
struct Create {
    /// Directory for the backup, which must not exist yet
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Data directory of the node, which runs
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Go on if the node lacks partitions of the cluster: a restore then lacks them, too
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command reads all files, and compares them with the checksums of the backup. It also checks what
the log itself says: each batch has its checksum, its offset, and the leader epoch of its time.

Examples:
  duramen backup verify /backups/monday
  duramen backup verify /backups/monday --output json | jq .partitions"
)]
struct Verify {
    /// Directory of the backup
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print for people (table) or for programs (json)
    #[command(flatten)]
    output: Output,
}

/// A backup, in words.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    dir: PathBuf,
    /// Time at which it was made, in milliseconds since 1970.
    made_at_ms: i64,
    cluster_id: String,
    node: i32,
    bytes: u64,
    partitions: Vec<Row>,
    /// Partitions of the cluster that it lacks, with reasons.
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    topic: String,
    partition: i32,
    start: i64,
    end: i64,
}

impl Report {
    pub(super) fn new(backup: &Backup, partitions: Vec<KeptPartition>) -> Self {
        let row = |it: KeptPartition| {
            let KeptPartition { topic, partition, start, end } = it;
            Row { topic, partition, start, end }
        };
        Self {
            dir: backup.dir.clone(),
            made_at_ms: backup.catalogue.made_at_ms,
            cluster_id: backup.catalogue.cluster_id.clone(),
            node: backup.catalogue.node,
            bytes: backup.bytes(),
            partitions: partitions.into_iter().map(row).collect(),
            missing: backup.catalogue.missing.clone(),
        }
    }

    pub(super) fn text(&self) -> String {
        let Self { dir, node, cluster_id, missing, .. } = self;
        let partitions = screen::count(self.partitions.len(), "partition");
        let bytes = screen::bytes(self.bytes as f64);
        let mut text = format!(
            "{}: {partitions}, {bytes}, of node {node} of the cluster {cluster_id}",
            dir.display()
        );
        for it in missing {
            let _ = write!(text, "\n  it lacks {it}");
        }
        text
    }
}

impl Verify {
    fn run(self) -> anyhow::Result<()> {
        let backup = Backup::open(&self.dir)?;
        backup.pass(None)?;
        let restoring = Restoring::plan(backup.moment.clone(), &backup.dir)?;
        let report = Report::new(&backup, restoring.partitions());
        self.output.print(&report, || format!("{}. It is whole.", report.text()))
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        let (dir, part) = (&self.dir, part_of(&self.dir)?);
        for path in [dir, &part] {
            ensure!(
                std::fs::symlink_metadata(path).is_err(),
                "{} exists already: choose another directory, or remove it",
                path.display()
            );
        }
        let manifest = self.data_dir.join(MANIFEST);
        let facts = std::fs::read(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))
            .and_then(|bytes| Ok(owner(&bytes)?))?;
        let client = self.cluster.connect().await?;
        let answer = self.begin(&client, facts.broker_id).await?;
        let frozen = self.data_dir.join(&answer.path);
        ensure!(
            answer.directory_id.0 == facts.directory_id && frozen.join(STATE).exists(),
            "{} is not the data directory of the node {} that answered: run the command on that node's machine",
            self.data_dir.display(),
            facts.broker_id
        );
        let made = self.copy(&frozen, &part, answer.missing);
        // The links would keep the room of segments that the node removes.
        let thawed = std::fs::remove_dir_all(&frozen);
        made?;
        thawed.with_context(|| format!("cannot remove {}", frozen.display()))?;
        let backup = Backup::open(dir)?;
        let restoring = Restoring::plan(backup.moment.clone(), dir)?;
        ensure!(
            self.partial || restoring.outcome().lost.is_empty(),
            "the backup lacks partitions that its metadata has: remove {}, and make another one",
            dir.display()
        );
        let report = Report::new(&backup, restoring.partitions());
        self.cluster.output.print(&report, || report.text())
    }

    /// Copies the frozen files, and gives the backup its name once it is whole.
    fn copy(&self, frozen: &Path, part: &Path, missing: Vec<String>) -> anyhow::Result<()> {
        let state = frozen.join(STATE);
        let bytes =
            std::fs::read(&state).with_context(|| format!("cannot read {}", state.display()))?;
        let moment = Moment::decode(&bytes.into())
            .map_err(|why| anyhow::anyhow!("{} is damaged: {why}", state.display()))?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let made_at_ms = now.map_or(0, |it| i64::try_from(it.as_millis()).unwrap_or(i64::MAX));
        std::fs::create_dir_all(part).with_context(|| format!("cannot make {}", part.display()))?;
        kept::make(&moment, frozen, part, (missing, made_at_ms))?;
        std::fs::rename(part, &self.dir)
            .with_context(|| format!("cannot rename {}", part.display()))?;
        sync_dir(
            self.dir.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )
    }

    /// Asks the node to keep its files, until it finds a moment for that.
    async fn begin(&self, client: &Client, node: i32) -> anyhow::Result<BeginBackupResponse> {
        let request = BeginBackupRequest { partial: self.partial };
        // A client knows nodes by what it was told.
        client.metadata(Some(&[]), false).await?;
        for _ in 0..ASKED_MAX {
            let asked = client.node(node).await?.call(&request).await;
            let answer = asked.map_err(|error| match error {
                Error::Unsupported { .. } => {
                    anyhow::anyhow!("{error}; only Duramen's own nodes do")
                }
                _ => anyhow::Error::new(error),
            })?;
            let message = answer.error_message.as_deref();
            match ErrorCode::from_code(answer.error_code) {
                Some(ErrorCode::None) => return Ok(answer),
                Some(ErrorCode::OperationNotAttempted) => tokio::time::sleep(PAUSE).await,
                Some(code @ ErrorCode::ReplicaNotAvailable) => {
                    let named: Vec<_> = answer.missing.iter().take(NAMED_MAX).cloned().collect();
                    return Err(explained(
                        code,
                        format!(
                            "node {node} has not all partitions, and so no backup of it would: {}; give the node replicas of \
                             them (duramen cluster move), or leave them out with --partial",
                            named.join("; ")
                        ),
                    ));
                }
                _ => Error::check(|| format!("node {node}"), answer.error_code, message)?,
            }
        }
        bail!("node {node} found no moment for a backup: try again when it has less to do")
    }
}

/// Returns the name of a backup that is not whole yet.
fn part_of(dir: &Path) -> anyhow::Result<PathBuf> {
    let mut name = dir.file_name().context("the directory of a backup needs a name")?.to_owned();
    name.push(".partial");
    Ok(dir.with_file_name(name))
}
