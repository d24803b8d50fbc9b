//! # Room card: scenario
//!
//! Purpose:    the harnesses, by name.
//! Owns:       the list of scenarios; the harness that looks for a planted bug.
//! Interface:  [`Scenario`], [`find`].
//! Invariants: a scenario's outcome is a function of the seed.
//! Never:      what a scenario does.
//! Tests:      `tests/`.
//! Start at:   [`Scenario::run`].

#[cfg(feature = "sabotage")]
use duramen_storage::sabotage;

use crate::failure::{Failure, catching};
use crate::planted::Bug;
use crate::{cluster_harness, node_harness, storage_harness};

/// Scenario of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Storage alone, under random ops.
    Storage,
    /// The whole node, with clients.
    Node,
    /// Several nodes, with clients and a network.
    Cluster,
}

impl Scenario {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Storage, Self::Node, Self::Cluster];

    /// Returns the scenario called so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.name() == name)
    }

    /// Returns the scenario's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }

    /// Runs one seed; returns a line about it.
    pub fn run(self, seed: u64) -> Result<String, Failure> {
        match self {
            Self::Storage => storage_harness::run(seed, None).map(|report| {
                format!(
                    "trace {:016x}, {} ops, {} rounds at last, {} checkpoints at last, \
                     {} recoveries, {} power losses, {} kills, {} faults",
                    report.trace.hash(),
                    report.ops,
                    report.rounds,
                    report.checkpoints,
                    report.recoveries,
                    report.disk.power_losses,
                    report.disk.kills,
                    report.disk.faults
                )
            }),
            Self::Cluster => cluster_harness::run(seed, None).map(|report| of_cluster(&report)),
            Self::Node => node_harness::run(seed, None).map(|report| {
                format!(
                    "trace {:016x}, {} requests, {} acknowledged, {} records read, \
                     {} logs compacted, {} starts, {} power losses, {} kills, {} faults",
                    report.trace.hash(),
                    report.requests,
                    report.acked,
                    report.shown,
                    report.compactions,
                    report.starts,
                    report.disk.power_losses,
                    report.disk.kills,
                    report.disk.faults
                )
            }),
        }
    }
}

fn of_cluster(report: &cluster_harness::Report) -> String {
    format!(
        "trace {:016x}, {} machines, {} requests, {} acknowledged, {} records read, \
                     {} by followers, {} starts, {} frames, {} elections, {} entries from segments, \
                     {} logs begun anew, {} disks lost, {} sleeps, {} of them through a fault, {} nights, \
                     {} bits flipped, {} segments mended, {} leaps of clocks, \
                     {} disks filled, {} produces refused for it, {} topics deleted, \
                     {} generations, {} commits of members refused, {} transactions committed, {} aborted, \
                     {} assignments, {} commits of theirs refused, {} groups upgraded, {} downgraded, {} records given to a share group, {} decisions, {} dead letters, {} batches for it committed, {} aborted, {} machines left, {} of them came back, \
                     {} logs compacted, {} pieces of such given, {} settings changed",
        report.trace.hash(),
        report.machines,
        report.requests,
        report.acked,
        report.shown,
        report.of_followers,
        report.starts,
        report.frames,
        report.elections,
        report.rebuilt,
        report.begun,
        report.wiped,
        report.slept,
        report.roused,
        report.nights,
        report.flips,
        report.mended,
        report.leaps,
        report.filled,
        report.refused,
        report.deleted,
        report.generations,
        report.fenced,
        report.transacted.0,
        report.transacted.1,
        report.assigned.0,
        report.assigned.1,
        report.changed.0,
        report.changed.1,
        report.given.0,
        report.given.1,
        report.given.2,
        report.written.0,
        report.written.1,
        report.left,
        report.returned,
        report.compacted,
        report.fed,
        report.altered
    )
}

/// Runs seeds until one finds `bug`, and returns the seed and its failure.
pub fn find(bug: Bug, mut seeds: impl Iterator<Item = u64>) -> Option<(u64, Failure)> {
    #[cfg(feature = "sabotage")]
    if let Bug::Storage(inside) | Bug::Broker(inside) | Bug::Peers(inside) = bug {
        sabotage::plant(Some(inside));
    }
    #[cfg(feature = "sabotage")]
    let is_of_node = matches!(bug, Bug::Node(_) | Bug::Broker(_));
    #[cfg(not(feature = "sabotage"))]
    let is_of_node = matches!(bug, Bug::Node(_));
    #[cfg(feature = "sabotage")]
    let is_of_cluster = matches!(bug, Bug::Cluster(_) | Bug::Peers(_));
    #[cfg(not(feature = "sabotage"))]
    let is_of_cluster = matches!(bug, Bug::Cluster(_));
    let found = seeds.find_map(|seed| {
        let outcome = catching(|| {
            if is_of_cluster {
                cluster_harness::run(seed, Some(bug)).map(|_| ())
            } else if is_of_node {
                node_harness::run(seed, Some(bug)).map(|_| ())
            } else {
                storage_harness::run(seed, Some(bug)).map(|_| ())
            }
        });
        outcome.err().map(|failure| (seed, failure))
    });
    #[cfg(feature = "sabotage")]
    sabotage::plant(None);
    found
}
