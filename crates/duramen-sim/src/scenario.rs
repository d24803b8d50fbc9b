//! # Room card: scenario
//!
//! Purpose:    the harnesses, by name.
//! Owns:       the list of scenarios; the harness that looks for a planted bug.
//! Interface:  [`Scenario`], [`find`].
//! Invariants: a scenario's outcome is a function of the seed.
//! Never:      what a scenario does.
//! Tests:      `tests/`.
//! Start at:   [`Scenario::run`].

use std::fmt::Write as _;

#[cfg(feature = "sabotage")]
use duramen_storage::sabotage;

use crate::cluster_harness::access;
use crate::disk::Counters;
use crate::failure::{Failure, catching};
use crate::planted::Bug;
use crate::trace::Trace;
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
    /// The same, and writers of fast appends.
    Fast,
    /// Several nodes that let in users, by rules that change.
    Access,
}

impl Scenario {
    /// Those that run where none is named. Fast appends and access control are off by default.
    pub const ALL: &'static [Self] = &[Self::Storage, Self::Node, Self::Cluster];

    /// Returns the scenario called so.
    pub fn named(name: &str) -> Option<Self> {
        let all = Self::ALL.iter().copied().chain([Self::Fast, Self::Access]);
        all.into_iter().find(|it| it.name() == name)
    }

    /// Returns the scenario's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Node => "node",
            Self::Cluster => "cluster",
            Self::Fast => "fast",
            Self::Access => "access",
        }
    }

    /// Runs one seed; returns a line about it.
    pub fn run(self, seed: u64) -> Result<String, Failure> {
        match self {
            Self::Storage => storage_harness::run(seed, None).map(|it| {
                let counts = [
                    (it.ops, "ops"),
                    (it.rounds, "rounds at last"),
                    (it.checkpoints, "checkpoints at last"),
                    (it.recoveries, "recoveries"),
                ];
                line(it.trace, counts.into_iter().chain(of_disk(&it.disk)))
            }),
            Self::Cluster => cluster_harness::run(seed, None).map(|report| of_cluster(&report)),
            Self::Fast => cluster_harness::run_fast(seed, None).map(|report| of_cluster(&report)),
            Self::Access => access::run(seed).map(|it| {
                let counts = [
                    (it.starts, "starts"),
                    (it.changes, "changes of rules and users"),
                    (it.logins, "logins"),
                    (it.doubted, "turned away in doubt"),
                    (it.shut, "connections of changed users closed"),
                    (it.answered, "answers"),
                    (it.allowed, "rights used"),
                    (it.denied, "denials"),
                ];
                line(it.trace, counts)
            }),
            Self::Node => node_harness::run(seed, None).map(|it| {
                let counts = [
                    (it.requests, "requests"),
                    (it.acked, "acknowledged"),
                    (it.shown, "records read"),
                    (it.compactions, "logs compacted"),
                    (it.operated, "native operations"),
                    (it.objected, "refused by a guard"),
                    (it.leased.0, "leases"),
                    (it.leased.1, "decisions on leases"),
                    (it.leased.2, "of them dead letters"),
                    (it.starts, "starts"),
                ];
                line(it.trace, counts.into_iter().chain(of_disk(&it.disk)))
            }),
        }
    }
}

/// A number of something.
type Count = (u64, &'static str);

fn line(trace: Trace, counts: impl IntoIterator<Item = Count>) -> String {
    let mut line = format!("trace {:016x}", trace.hash());
    for (count, what) in counts {
        let _ = write!(line, ", {count} {what}");
    }
    line
}

fn of_disk(it: &Counters) -> [Count; 3] {
    [(it.power_losses, "power losses"), (it.kills, "kills"), (it.faults, "faults")]
}

fn of_cluster(it: &cluster_harness::Report) -> String {
    let counts = [
        (it.machines as u64, "machines"),
        (it.requests, "requests"),
        (it.acked, "acknowledged"),
        (it.shown, "records read"),
        (it.of_followers, "by followers"),
        (it.starts, "starts"),
        (it.frames, "frames"),
        (it.elections, "elections"),
        (it.rebuilt, "entries from segments"),
        (it.begun, "logs begun anew"),
        (it.wiped, "disks lost"),
        (it.slept, "sleeps"),
        (it.roused, "of them through a fault"),
        (it.nights, "nights"),
        (it.flips, "bits flipped"),
        (it.mended, "segments mended"),
        (it.leaps, "leaps of clocks"),
        (it.filled, "disks filled"),
        (it.refused, "produces refused for it"),
        (it.deleted, "topics deleted"),
        (it.generations, "generations"),
        (it.fenced, "commits of members refused"),
        (it.operated, "native operations"),
        (it.objected, "refused by a guard"),
        (it.transacted.0, "transactions committed"),
        (it.transacted.1, "aborted"),
        (it.assigned.0, "assignments"),
        (it.assigned.1, "commits of theirs refused"),
        (it.changed.0, "groups upgraded"),
        (it.changed.1, "downgraded"),
        (it.given.0, "records given to a share group"),
        (it.given.1, "decisions"),
        (it.given.2, "dead letters"),
        (it.leased.0, "leases"),
        (it.leased.1, "decisions on leases"),
        (it.leased.2, "of them dead letters"),
        (it.written.0, "batches for it committed"),
        (it.written.1, "aborted"),
        (it.left, "machines left"),
        (it.returned, "of them came back"),
        (it.compacted, "logs compacted"),
        (it.fed, "pieces of such given"),
        (it.altered, "settings changed"),
        (it.fast.0, "stretches"),
        (it.fast.1, "fast appends"),
    ];
    line(it.trace, counts)
}

/// Runs seeds until one finds `bug`, and returns the seed and its failure.
pub fn find(bug: Bug, mut seeds: impl Iterator<Item = u64>) -> Option<(u64, Failure)> {
    #[cfg(feature = "sabotage")]
    if let Bug::Storage(inside)
    | Bug::Broker(inside)
    | Bug::Peers(inside)
    | Bug::Writers(inside)
    | Bug::Access(inside) = bug
    {
        sabotage::plant(Some(inside));
    }
    #[cfg(feature = "sabotage")]
    let is_of_writers = matches!(bug, Bug::Writers(_));
    #[cfg(not(feature = "sabotage"))]
    let is_of_writers = false;
    #[cfg(feature = "sabotage")]
    let is_of_access = matches!(bug, Bug::Access(_));
    #[cfg(not(feature = "sabotage"))]
    let is_of_access = false;
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
            if is_of_access {
                access::run(seed).map(|_| ())
            } else if is_of_writers {
                cluster_harness::run_fast(seed, Some(bug)).map(|_| ())
            } else if is_of_cluster {
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
