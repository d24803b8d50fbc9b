//! # Room card: restoring
//!
//! Purpose:    make a new data directory, and a new cluster of one node, from the files of a backup.
//! Owns:       the new identity; the order of steps; the look at the result as a start sees it.
//! Interface:  [`Restoring::plan`], [`Restoring::carry_out`].
//! Invariants: the directory has no manifest before all else in it is durable, so a part of it is never served.
//! Never:      what becomes of which partition (see `duramen_broker::restoration`); the files of a backup (see
//!             `cli::backup`).
//! Tests:      `tests/cli/backup.rs`.
//! Start at:   [`Restoring::carry_out`].

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use duramen_broker::METADATA_TOPIC;
use duramen_broker::restoration::{Restoration, SetBack};
use duramen_broker::survivor::Outcome;
use duramen_protocol::batch;
use duramen_storage::backup::{Moment, Role};
use duramen_storage::op::RecoveredReplica;
use duramen_storage::storage::Facts;

use super::chance::random;
use super::core_loop::Clock;
use super::descriptors::raise_file_limit;
use super::disk::RealDisk;
use super::opening::open_storage;
use super::settings::ServerSettings;
use crate::config::{Config, ServerArgs};

/// A backup, and what a restore would make of it. Nothing is changed yet.
#[derive(Debug)]
pub struct Restoring {
    moment: Moment,
    found: Vec<RecoveredReplica>,
    restoration: Restoration,
    directory_id: [u8; 16],
}

/// A partition of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPartition {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// First offset kept.
    pub start: i64,
    /// Offset behind the last record.
    pub end: i64,
}

impl Restoring {
    /// Plans the restore of a moment whose files are in the folder `dir`.
    pub fn plan(moment: Moment, dir: &Path) -> anyhow::Result<Self> {
        let found = moment.recovered(|path| Ok(std::fs::read(dir.join(path))?.into()));
        let found = found.context("cannot read a snapshot of the backup")?;
        let wall_ms = Clock::start().now().wall_ms;
        let directory_id = random()?;
        let owner = (&moment.facts, &moment.voters[..]);
        let mut read = |replica: &RecoveredReplica, from| {
            batches(&moment, replica, (dir, from)).map_err(|error| error.to_string())
        };
        let restoration = Restoration::plan(owner, directory_id, (&found, &mut read), wall_ms)
            .map_err(|why| anyhow::anyhow!("the backup cannot be restored: {why}"))?;
        Ok(Self { moment, found, restoration, directory_id })
    }

    /// Returns the moment that the backup holds.
    pub fn moment(&self) -> &Moment {
        &self.moment
    }

    /// Returns the fate of nodes and partitions.
    pub fn outcome(&self) -> &Outcome {
        &self.restoration.outcome
    }

    /// Returns the offsets of groups that are set back, because they were behind the ends of their logs.
    pub fn set_back(&self) -> &[SetBack] {
        &self.restoration.set_back
    }

    /// Returns the partitions that the backup holds, by name; the metadata is not among them.
    pub fn partitions(&self) -> Vec<KeptPartition> {
        let partitions = self.found.iter().filter(|it| it.identity.topic != METADATA_TOPIC);
        let mut partitions: Vec<_> = partitions
            .map(|it| KeptPartition {
                topic: it.identity.topic.clone(),
                partition: it.identity.partition,
                start: it.log_start,
                end: it.end_offset,
            })
            .collect();
        partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        partitions
    }

    /// Makes a directory, which has the backup's files, the data directory of a new cluster. Returns the cluster's id.
    pub fn carry_out(self, target: &Path) -> anyhow::Result<[u8; 16]> {
        let Self { moment, found, restoration, directory_id } = self;
        let cluster_id = random()?;
        let facts = Facts { cluster_id, broker_id: moment.facts.broker_id, directory_id };
        let disk = RealDisk::open(target)?;
        moment
            .restore(&disk, restoration.ops, (facts, restoration.voters))
            .with_context(|| format!("cannot make a data directory of {}", target.display()))?;
        drop(disk);
        look(target, &found)?;
        Ok(cluster_id)
    }
}

/// Opens a restored directory as a start does, and compares it with the backup.
fn look(target: &Path, expected: &[RecoveredReplica]) -> anyhow::Result<()> {
    let args = ServerArgs { data_dir: Some(target.to_owned()), ..ServerArgs::default() };
    let config = Config::load(None, &args, std::iter::empty())?;
    let (settings, broker) = ServerSettings::split(&config)?;
    let files_max = usize::try_from(raise_file_limit()).unwrap_or(usize::MAX);
    let (_storage, found) = open_storage(&config, &settings, &broker, files_max / 2, true)?;
    ensure!(found.replicas.len() == expected.len(), "the restored directory lacks partitions");
    for (is, was) in found.replicas.iter().zip(expected) {
        let (topic, partition) = (&was.identity.topic, was.identity.partition);
        if let Some(damage) = &is.damage {
            bail!("the restored partition {topic}-{partition} is damaged: {damage}");
        }
        let is_same = (&is.identity, is.log_start) == (&was.identity, was.log_start)
            && is.end_offset >= was.end_offset
            && is.hard_state.term > was.hard_state.term;
        ensure!(is_same, "the restored partition {topic}-{partition} is not as the backup says");
    }
    Ok(())
}

/// Reads the batches of a replica from an offset on.
fn batches(
    moment: &Moment,
    replica: &RecoveredReplica,
    (dir, from): (&Path, i64),
) -> io::Result<Vec<Bytes>> {
    let folder = format!("{}-{}/", replica.identity.topic, replica.identity.partition);
    let mut batches = Vec::new();
    for file in moment.files() {
        let Role::Segment { end_offset, .. } = file.role else { continue };
        if !file.path.starts_with(&folder) || end_offset <= from {
            continue;
        }
        let mut bytes = Vec::new();
        File::open(dir.join(&file.path))?.take(file.bytes).read_to_end(&mut bytes)?;
        for view in batch::batches(bytes.into()) {
            let view = view.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if view.header().base_offset >= from {
                batches.push(view.bytes().clone());
            }
        }
    }
    Ok(batches)
}
