//! Comparison of the replicas of one partition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::ensure;
use duramen_client::NodeId;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::describe_replicas::DescribedReplica;
use indicatif::ProgressBar;

use super::verdict::{Difference, NodeDigest, State, Verdict};
use crate::cli::replicas::{Nodes, Question, Subject, words};

/// Bytes of a replica that a node reads for one response, about.
const SLICE_BYTES: i32 = 8 << 20;
/// Longest time that the comparison waits for a replica that is behind.
const BEHIND_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);
/// Most looks at a part that keeps changing: its replicas differed and then did not, or it was trimmed meanwhile.
const TRIES_MAX: usize = 50;

/// Outcome of a look at a part of a partition.
enum Looked {
    /// All replicas are the same.
    Same(Box<DescribedReplica>),
    /// Replicas differ, or one is damaged.
    Differing(BTreeMap<NodeId, DescribedReplica>),
    /// The log start offset has changed, or a node was left out: look again.
    Moved,
}

/// Comparison of one partition's replicas.
pub(super) struct Comparison<'a> {
    nodes: &'a mut Nodes,
    subject: &'a Subject,
    bar: &'a ProgressBar,
    /// Nodes whose replicas are compared.
    compared: Vec<NodeId>,
    left_out: BTreeMap<NodeId, String>,
    start: i64,
    /// One past the last offset that all replicas share.
    at: i64,
    end: i64,
    /// Highest high watermark of a replica when the comparison began, up to which it goes.
    target: Option<i64>,
    bytes: i64,
    /// Offset behind which segments' first offsets are compared. A replica that was copied may have less of its first
    /// segment.
    origin: Option<i64>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(nodes: &'a mut Nodes, subject: &'a Subject, bar: &'a ProgressBar) -> Self {
        Self {
            nodes,
            subject,
            bar,
            compared: subject.nodes.clone(),
            left_out: BTreeMap::new(),
            start: 0,
            at: 0,
            end: 0,
            target: None,
            bytes: 0,
            origin: None,
        }
    }

    pub(super) async fn run(mut self) -> anyhow::Result<Verdict> {
        self.find_range().await?;
        let mut tries = 0;
        let mut difference = None;
        while self.compared.len() > 1 && self.at < self.end && difference.is_none() {
            match self.look((self.at, self.end)).await? {
                Looked::Same(row) => {
                    ensure!(row.end_offset > self.at, "nodes answer with an empty range");
                    self.bar.inc((row.end_offset - self.at).max(0).unsigned_abs());
                    self.at = row.end_offset;
                    self.bytes += row.bytes;
                    self.origin.get_or_insert(row.first_offset);
                    tries = 0;
                    continue;
                }
                Looked::Differing(rows) => {
                    let end = rows.values().map(|row| row.end_offset).max().unwrap_or(self.end);
                    difference = self.locate(end.clamp(self.at + 1, self.end)).await?;
                }
                Looked::Moved => tokio::time::sleep(POLL).await,
            }
            tries += 1;
            if tries > TRIES_MAX {
                self.leave_all("it changes too fast to be compared");
            }
        }
        Ok(self.verdict(difference))
    }

    fn verdict(mut self, difference: Option<Difference>) -> Verdict {
        if self.subject.nodes.len() == 1 && self.left_out.is_empty() {
            self.leave_all("it is the only replica");
        }
        let state = match &difference {
            Some(_) => State::Differs,
            None if self.left_out.is_empty() => State::Identical,
            None => State::NotCompared,
        };
        if self.compared.len() < 2 {
            self.compared.clear();
        }
        Verdict {
            topic: self.subject.topic.clone(),
            partition: self.subject.partition,
            state,
            start: self.start,
            end: self.at,
            bytes: self.bytes,
            nodes: self.compared,
            left_out: self.left_out,
            difference,
        }
    }

    fn leave_out(&mut self, node: NodeId, why: impl Into<String>) {
        self.compared.retain(|id| *id != node);
        self.left_out.insert(node, why.into());
    }

    fn leave_all(&mut self, why: &str) {
        for id in std::mem::take(&mut self.compared) {
            self.left_out.insert(id, why.to_owned());
        }
    }

    /// Finds the offsets that all comparable replicas have, and leaves out the other replicas.
    async fn find_range(&mut self) -> anyhow::Result<()> {
        let mut held = match self.nodes.take_described(self.subject) {
            Some(held) => held,
            None => self.nodes.ask_about(&self.compared, self.subject, Question::STATE, 0).await?,
        };
        let began = Instant::now();
        loop {
            let mut starts = Vec::new();
            let mut ends = BTreeMap::new();
            let mut compacted = BTreeMap::new();
            for (node, said) in held {
                match said {
                    Err(why) => self.leave_out(node, why),
                    Ok(row) if row.error_code != 0 => self.leave_out(node, words(&row)),
                    Ok(row) => {
                        starts.push(row.start_offset);
                        ends.insert(node, row.committed_offset);
                        compacted.insert(node, (row.compaction, row.compacted_offset));
                    }
                }
            }
            // The comparison ends at this offset, whatever producers append from now on.
            let most = ends.values().copied().max().unwrap_or(0);
            self.end = *self.target.get_or_insert(most);
            // The comparison begins at the highest log start offset: a trim is not a difference.
            let start = starts.into_iter().max().unwrap_or(0).max(self.at).min(self.end);
            if start > self.at {
                self.origin = None;
                self.start = if self.bytes == 0 { start } else { self.start };
            }
            self.at = start;
            let behind = ends.iter().filter(|(_, end)| **end < self.end);
            let behind: Vec<(NodeId, i64)> = behind.map(|(id, end)| (*id, *end)).collect();
            // Replicas differ rightly after different compactions: wait until all have done the last one.
            let last = compacted.values().map(|it| it.0).max().unwrap_or(0);
            let reaches = compacted.values().any(|it| it.1 > start);
            let is_other = |it: &(i64, i64)| reaches && it.0 < last;
            let others = compacted.iter().filter(|(_, it)| is_other(it)).map(|(id, _)| *id);
            let others: Vec<NodeId> = others.collect();
            if behind.is_empty() && others.is_empty() {
                return Ok(());
            }
            if began.elapsed() > BEHIND_MAX {
                for node in others {
                    self.leave_out(node, "it has not done the last compaction yet");
                }
                for (node, end) in behind {
                    let why = format!("it is behind: its high watermark is {end} of {}", self.end);
                    self.leave_out(node, why);
                }
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
            held = self.nodes.ask_about(&self.compared, self.subject, Question::STATE, 0).await?;
        }
    }

    /// Asks all nodes for digests of a part.
    async fn look(&mut self, part: (i64, i64)) -> anyhow::Result<Looked> {
        let asked = Question { part, ..Question::STATE };
        let said = self.nodes.ask_about(&self.compared, self.subject, asked, SLICE_BYTES).await?;
        let before = self.compared.len();
        let mut rows = BTreeMap::new();
        let mut is_out_of_range = false;
        for (node, said) in said {
            match said {
                Err(why) => self.leave_out(node, why),
                Ok(row) if row.error_code == ErrorCode::OffsetOutOfRange.code() => {
                    is_out_of_range = true;
                }
                Ok(row) if row.error_code != 0 => self.leave_out(node, words(&row)),
                Ok(row) => {
                    rows.insert(node, row);
                }
            }
        }
        if is_out_of_range {
            // The part was trimmed, or a restarted node does not know its high watermark yet.
            self.find_range().await?;
            return Ok(Looked::Moved);
        }
        if self.compared.len() < before {
            return Ok(Looked::Moved);
        }
        let compactions: BTreeSet<i64> = rows.values().map(|row| row.compaction).collect();
        if compactions.len() > 1 && !Self::are_compacted_alike(&rows) {
            self.find_range().await?;
            return Ok(Looked::Moved);
        }
        let Some(first) = rows.values().next().cloned() else { return Ok(Looked::Moved) };
        let origin = self.origin.unwrap_or(first.first_offset);
        let essence = |row: &DescribedReplica| {
            let segments = row.segments.iter().copied().filter(|base| *base > origin);
            let digest = row.digest.clone();
            (row.first_offset, row.end_offset, row.bytes, digest, segments.collect::<Vec<_>>())
        };
        let is_same = rows.values().all(|row| {
            row.damaged_offset < 0 && row.damage.is_none() && essence(row) == essence(&first)
        });
        Ok(if is_same { Looked::Same(Box::new(first)) } else { Looked::Differing(rows) })
    }

    /// Tells whether the part lies behind the compacted offsets of all replicas, so that their Compact entries may
    /// differ.
    fn are_compacted_alike(rows: &BTreeMap<NodeId, DescribedReplica>) -> bool {
        rows.values().all(|row| row.compacted_offset <= row.first_offset)
    }

    /// Finds the first batch from [`Comparison::at`] on that differs. Returns `None` if none differs any more.
    async fn locate(&mut self, end: i64) -> anyhow::Result<Option<Difference>> {
        let (mut low, mut high) = (self.at, end);
        while low < high {
            let middle = low + (high - low + 1) / 2;
            match self.look((low, middle)).await? {
                Looked::Moved => return Ok(None),
                Looked::Same(row) => {
                    ensure!(row.end_offset > low, "nodes answer with an empty range");
                    low = row.end_offset;
                }
                Looked::Differing(rows) if middle == low + 1 => {
                    return Ok(Some(self.difference(low, &rows)));
                }
                Looked::Differing(_) => high = middle,
            }
        }
        Ok(None)
    }

    fn difference(&mut self, at: i64, rows: &BTreeMap<NodeId, DescribedReplica>) -> Difference {
        self.at = at;
        let origin = self.origin.unwrap_or(i64::MIN);
        let has = |row: &DescribedReplica| {
            let begins = row.segments.iter().any(|base| *base > origin);
            (row.end_offset, row.bytes, row.digest.clone(), begins)
        };
        let alike = |row: &DescribedReplica| rows.values().filter(|it| has(it) == has(row)).count();
        let digest = |(node, row): (&NodeId, &DescribedReplica)| NodeDigest {
            node: *node,
            bytes: row.bytes,
            digest: row
                .digest
                .iter()
                .fold(String::new(), |text, byte| text + &format!("{byte:02x}")),
            segments: row.segments.iter().copied().filter(|base| *base > origin).collect(),
            damage: row.damage.clone(),
            odd: row.damage.is_some()
                || rows.values().any(|it| 2 * alike(it) > rows.len() && has(it) != has(row)),
        };
        // Without a whole batch, the difference is one offset long.
        Difference {
            from: rows.values().map(|row| row.first_offset).min().unwrap_or(at),
            to: rows.values().map(|row| row.end_offset).max().unwrap_or(at).max(at + 1),
            nodes: rows.iter().map(digest).collect(),
        }
    }
}
