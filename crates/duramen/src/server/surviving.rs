//! # Room card: surviving
//!
//! Purpose:    make the data directory of one node a cluster of its own, when most of the others are lost.
//! Owns:       the order of steps: first it is another cluster's, then its replicas are their groups' only voters.
//! Interface:  [`Survivor::open`], [`Survivor::carry_out`].
//! Invariants: between the steps nobody would follow this node, and it nobody: begun and not ended, it is begun again.
//! Never:      what becomes of which partition (see `duramen_broker::survivor`).
//! Tests:      `tests/cluster.rs`.
//! Start at:   [`Survivor::open`].

use anyhow::{Context, bail};
use duramen_broker::read_plan;
use duramen_broker::survivor::{Outcome, Survival};
use duramen_storage::storage::Facts;
use duramen_storage::{MANIFEST, Storage};

use super::chance::random;
use super::core_loop::Clock;
use super::descriptors::raise_file_limit;
use super::disk::RealDisk;
use super::opening::open_storage;
use super::settings::ServerSettings;
use super::storage_worker;
use super::threads::{Common, Work};
use crate::config::Config;

/// A directory that could go on alone. Nothing is changed yet.
#[derive(Debug)]
pub struct Survivor {
    /// Identity of the directory's node and of its cluster.
    pub facts: Facts,
    storage: Storage<RealDisk>,
    survival: Survival,
}

impl Survivor {
    /// Opens the directory as a start of the node does, and looks at what it has.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let path = config.data_dir.display();
        if !config.data_dir.join(MANIFEST).exists() {
            bail!("{path} is no data directory: it has no file {MANIFEST}");
        }
        let (settings, broker) = ServerSettings::split(config)?;
        let files_max = usize::try_from(raise_file_limit()).unwrap_or(usize::MAX);
        let (storage, found) = open_storage(config, &settings, &broker, files_max / 2, true)?;
        let tail = read_plan::metadata_tail(&storage.reader(), &found.replicas)?;
        let wall_ms = Clock::start().now().wall_ms;
        let survival = Survival::plan(&found.facts, &found.replicas, tail, wall_ms)
            .map_err(|why| anyhow::anyhow!("{path} cannot go on alone: {why}"))?;
        Ok(Self { facts: found.facts, storage, survival })
    }

    /// Returns the outcome that the plan would have for nodes and partitions.
    pub fn outcome(&self) -> &Outcome {
        &self.survival.outcome
    }

    /// Carries out the plan. Returns the id of the cluster that the directory then is.
    pub fn carry_out(mut self) -> anyhow::Result<[u8; 16]> {
        let cluster_id = random()?;
        let Survival { founder, ops, .. } = self.survival;
        self.storage.secede(cluster_id, founder).context("cannot write the manifest")?;
        let (parts, _inputs) = Common::new();
        let work = parts.work.clone();
        let thread = storage_worker::start(self.storage, std::sync::Arc::default(), parts)?;
        work.push(Work::Ops(ops));
        work.push(Work::Stop);
        if thread.join().is_err() {
            bail!("the storage thread panicked: run the command again");
        }
        Ok(cluster_id)
    }
}
