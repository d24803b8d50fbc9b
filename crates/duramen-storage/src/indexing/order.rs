//! Orders of the node, their reports, and the bounds of the work, as data.

use std::collections::BTreeSet;

use twox_hash::XxHash3_64;

use crate::ReplicaId;
use crate::keys::BLOCK_BYTES_MAX;
use crate::op::Identity;
use crate::sabotage::{self, Bug};

/// Returns the hash by which waiting readers of a queue are found. Each process has a seed of its own.
pub fn queue_hash(name: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, name)
}

/// Request to index a log up to an offset. The latest order of a replica counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Replica whose log is indexed.
    pub replica: ReplicaId,
    /// Topic and partition of the replica.
    pub identity: Identity,
    /// Number of the log's beginning: each time a log begins anew it has another one.
    pub beginning: u64,
    /// First offset that is left of the log.
    pub start: i64,
    /// Committed end of the log.
    pub to: i64,
}

impl Order {
    /// Returns the offset at which the log's segments begin: the first one, or the log start if there is none.
    pub(crate) fn start_of(&self, first: Option<i64>) -> i64 {
        first.unwrap_or(self.start)
    }
}

/// Outcome of a step for the replica of an [`Order`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// Replica whose log was indexed.
    pub replica: ReplicaId,
    /// [`Order::beginning`].
    pub beginning: u64,
    /// Offset up to which the log is indexed now.
    pub to: i64,
    /// Queues that have records in the part that was indexed.
    pub touched: Touched,
    /// Reason why the order ended early: the caller orders it again later.
    pub problem: Option<String>,
}

/// Set of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Queues with these hashes ([`queue_hash`]).
    These(BTreeSet<u64>),
    /// Any queue.
    All,
}

impl Default for Touched {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl Touched {
    /// Returns the set of these queues, or that of all if they are too many.
    pub(super) fn of(hashes: Vec<u64>, limits: &Limits) -> Self {
        let known = BTreeSet::from_iter(hashes);
        if known.len() <= limits.touched {
            return Self::These(known);
        }
        if sabotage::is(Bug::TouchedCut) {
            return Self::These(known.into_iter().take(limits.touched).collect());
        }
        Self::All
    }
}

/// Bounds of a node's indexes. The simulator sets them low.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one memtable, and of all.
    pub memtable_bytes: (usize, usize),
    /// Bytes of log that one memtable stands for, and all.
    pub log_bytes: (u64, u64),
    /// Bytes of log that a memtable has to stand for to be flushed while the log rests.
    pub rest_bytes: u64,
    /// Bytes of the log read in one step.
    pub step_bytes: u32,
    /// Bytes of a table's block.
    pub block_bytes: usize,
    /// Number of neighbours of one size class that are merged.
    pub merge_width: usize,
    /// Bytes of a table of the smallest size class. The next class has eight times as many.
    pub class_bytes: u64,
    /// Bytes of entries merged in one step.
    pub merge_bytes: usize,
    /// Bytes that tables leave free on the disk.
    pub free_bytes_min: u64,
    /// Number of queues named in [`Touched`].
    pub touched: usize,
    /// Seed of [`queue_hash`], a secret of the process.
    pub seed: u64,
}

impl Limits {
    /// Returns the bounds of a real node.
    pub fn new(seed: u64, free_bytes_min: u64) -> Self {
        Self {
            free_bytes_min,
            memtable_bytes: (4 << 20, 64 << 20),
            log_bytes: (64 << 20, 256 << 20),
            rest_bytes: 1 << 20,
            step_bytes: 1 << 20,
            block_bytes: BLOCK_BYTES_MAX,
            merge_width: 8,
            class_bytes: 1 << 20,
            merge_bytes: 1 << 20,
            touched: 4096,
            seed,
        }
    }
}
