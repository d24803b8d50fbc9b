//! Replicas of logs that are compacted: each does that when it comes to it, and in the end they hold the same records.

use std::collections::{BTreeMap, BTreeSet};

use duramen_broker::Standing;
use duramen_storage::reader::Digest;

use super::World;
use super::member::Log;
use crate::failure::{Failure, wrong};

impl World {
    /// Tells whether replicas of a compacted log differ in their compaction, or have changed it. A client that reads
    /// now reads several states of the log.
    pub(super) fn look_at_compaction(&mut self) -> bool {
        let mut now: BTreeMap<Log, BTreeSet<u64>> = BTreeMap::new();
        for it in self.members.iter().flat_map(|it| it.machine.standings()) {
            let is_kept = it.compacted.below > it.log_start;
            let index = if is_kept { it.compacted.index } else { 0 };
            now.entry((it.topic_id, it.partition)).or_default().insert(index);
        }
        for member in &self.members {
            let Some(node) = member.machine.node() else { continue };
            let given = node.metrics().prefixes_given;
            self.fed.insert((member.at, member.machine.starts), given);
        }
        let is_mixed = now.values().any(|all| all.len() > 1);
        if is_mixed || now != self.compactions {
            self.clients.compactions += 1;
        }
        self.compactions = now;
        is_mixed
    }

    /// Checks that replicas are compacted alike, and hold the same records.
    pub(super) fn check_compacted(&mut self) -> Result<(), Failure> {
        for _ in 0..30_000 {
            if !self.look_at_compaction() {
                break;
            }
            self.disturb()?;
            self.step(0)?;
        }
        if self.look_at_compaction() {
            return self.stuck("not compacted alike:");
        }
        let mut all: BTreeMap<Log, Vec<(usize, Standing)>> = BTreeMap::new();
        for member in &self.members {
            for it in member.machine.standings() {
                all.entry((it.topic_id, it.partition)).or_default().push((member.at, it));
            }
        }
        for (log, replicas) in &all {
            let from = replicas.iter().map(|(_, it)| it.log_start).max().unwrap_or(0);
            let to = replicas.iter().map(|(_, it)| it.committed).min().unwrap_or(0);
            if from >= to || replicas.iter().all(|(_, it)| it.compacted.index == 0) {
                continue;
            }
            self.report.compacted += 1;
            let mut seen = None;
            for (at, it) in replicas {
                let Some(reader) = self.members[*at].machine.reader() else { continue };
                let digest = reader.digest(it.replica, from, to, u64::MAX);
                let digest = digest.map_err(|error| {
                    Failure::correctness(format!("machine {at}: {log:?}: {error}"))
                })?;
                if let Some(damage) = &digest.damage {
                    return wrong(format!("machine {at}: {log:?}: {damage:?}"));
                }
                let first = seen.get_or_insert_with(|| digest.clone());
                let essence = |it: &Digest| (it.first, it.end, it.bytes, it.hash);
                if essence(first) != essence(&digest) {
                    let what =
                        format!("{log:?} is not the same on machine {at}: {first:?} {digest:?}");
                    return wrong(what);
                }
            }
        }
        Ok(())
    }
}
