//! Check of the queues of one partition: each replica by itself, and the replicas with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::bail;
use duramen_client::NodeId;
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::describe_replicas::{DescribedReplica, QueueFault};
use indicatif::ProgressBar;

use super::verdict::{Finding, State, Verdict};
use crate::cli::replicas::{Nodes, Question, Subject, words};
use crate::cli::screen;

/// Bytes of the log that a node reads for one response, about.
const SLICE_BYTES: i32 = 8 << 20;
/// Longest time that the check waits for a replica whose index is behind.
const BEHIND_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);
/// Most looks at a part that keeps changing.
const TRIES_MAX: usize = 50;
/// Most findings of a partition. A fault is seldom alone, and the first ones suffice.
const FINDINGS_MAX: usize = 100;

type Rows = BTreeMap<NodeId, DescribedReplica>;

/// Check of one partition.
pub(super) struct Checking<'a> {
    nodes: &'a mut Nodes,
    subject: &'a Subject,
    bar: &'a ProgressBar,
    /// Nodes whose replicas are checked.
    checked: Vec<NodeId>,
    left_out: BTreeMap<NodeId, String>,
    start: i64,
    at: i64,
    /// Highest last stable offset of a replica when the check began, up to which it goes.
    target: Option<i64>,
    /// Offset below which edits count: all replicas have them.
    edits_end: i64,
    elements: i64,
    queues: i64,
    bytes: i64,
    findings: Vec<Finding>,
    /// False after replicas were found to differ: only the first difference is shown.
    compares: bool,
}

impl<'a> Checking<'a> {
    pub(super) fn new(nodes: &'a mut Nodes, subject: &'a Subject, bar: &'a ProgressBar) -> Self {
        Self {
            nodes,
            subject,
            bar,
            checked: subject.nodes.clone(),
            left_out: BTreeMap::new(),
            start: 0,
            at: 0,
            target: None,
            edits_end: 0,
            elements: 0,
            queues: 0,
            bytes: 0,
            findings: Vec::new(),
            compares: true,
        }
    }

    pub(super) async fn run(mut self) -> anyhow::Result<Verdict> {
        self.find_range().await?;
        let (mut tries, mut is_sure) = (0, false);
        while !self.checked.is_empty() && self.at < self.end() {
            tries += 1;
            if tries > TRIES_MAX {
                for node in self.checked.clone() {
                    self.leave_out(node, "it changes too fast to be checked");
                }
                break;
            }
            let Some(rows) = self.look((self.at, self.end())).await? else {
                is_sure = false;
                tokio::time::sleep(POLL).await;
                continue;
            };
            let differs = self.compares && differ(&rows);
            if (differs || rows.values().any(|row| !row.faults.is_empty())) && !is_sure {
                // A trim or an erasure may have come in between: look again, with what is there now.
                tokio::time::sleep(POLL).await;
                self.find_range().await?;
                is_sure = true;
                continue;
            }
            let end = rows.values().map(|row| row.end_offset).min().unwrap_or(self.at);
            if differs {
                let Some(found) = self.locate(end).await? else {
                    is_sure = false;
                    continue;
                };
                self.findings.extend(found);
                self.compares = false;
            }
            self.take(&rows, end);
            (tries, is_sure) = (0, false);
        }
        Ok(self.verdict())
    }

    fn end(&self) -> i64 {
        self.target.unwrap_or(0)
    }

    /// Takes in a part that was checked.
    fn take(&mut self, rows: &Rows, end: i64) {
        for (node, row) in rows {
            let room = FINDINGS_MAX.saturating_sub(self.findings.len());
            self.findings.extend(row.faults.iter().take(room).map(|fault| finding(*node, fault)));
        }
        let most = |of: fn(&DescribedReplica) -> i64| rows.values().map(of).max().unwrap_or(0);
        self.elements += most(|row| row.elements);
        self.queues += most(|row| row.queues);
        self.bytes += most(|row| row.bytes);
        self.bar.inc((end - self.at).max(0).unsigned_abs());
        self.at = end;
    }

    fn verdict(mut self) -> Verdict {
        self.checked.sort_unstable();
        let state = match (self.findings.is_empty(), self.left_out.is_empty()) {
            (false, _) => State::Faulty,
            (true, true) => State::Ok,
            (true, false) => State::NotChecked,
        };
        Verdict {
            partition: self.subject.partition,
            state,
            start: self.start,
            end: self.at,
            elements: self.elements,
            queues: self.queues,
            bytes: self.bytes,
            nodes: self.checked,
            left_out: self.left_out,
            findings: self.findings,
        }
    }

    fn leave_out(&mut self, node: NodeId, why: impl Into<String>) {
        self.checked.retain(|id| *id != node);
        self.left_out.insert(node, why.into());
    }

    /// Finds the offsets that all replicas have in their indexes, and leaves out the other replicas.
    async fn find_range(&mut self) -> anyhow::Result<()> {
        let mut held = self.nodes.take_described(self.subject);
        let began = Instant::now();
        loop {
            let said = match held.take() {
                Some(said) => said,
                None => {
                    self.nodes.ask_about(&self.checked, self.subject, Question::STATE, 0).await?
                }
            };
            let (mut starts, mut stable, mut shown) = (Vec::new(), Vec::new(), BTreeMap::new());
            let mut without = Vec::new();
            for (node, said) in said {
                match said {
                    Err(why) => self.leave_out(node, why),
                    Ok(row) if row.error_code != 0 => self.leave_out(node, words(&row)),
                    Ok(row) if row.stable_offset < 0 => without.push(node),
                    Ok(row) => {
                        starts.push(row.start_offset);
                        stable.push(row.stable_offset);
                        shown.insert(node, row.stable_offset.min(row.indexed_offset));
                    }
                }
            }
            if shown.is_empty() && !without.is_empty() {
                bail!("the keys of topic {} are no queues", self.subject.topic);
            }
            for node in without {
                self.leave_out(node, "its version of duramen does not check queues");
            }
            let most = stable.into_iter().max().unwrap_or(0);
            let target = *self.target.get_or_insert(most);
            let start = starts.into_iter().max().unwrap_or(0).max(self.at).min(target);
            self.start = if self.bytes == 0 { start } else { self.start };
            self.at = start;
            let behind: Vec<_> = shown.iter().filter(|(_, end)| **end < target).collect();
            if behind.is_empty() || began.elapsed() > BEHIND_MAX {
                for (node, end) in behind {
                    let why = format!("its queue index is behind: it is at {end} of {target}");
                    self.leave_out(*node, why);
                }
                let ends = shown.values().copied().filter(|end| *end >= target);
                self.edits_end = ends.min().unwrap_or(target);
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Asks all nodes about a part. All rows are about the same offsets. Returns `None` if that has to be done again.
    async fn look(&mut self, (from, mut to): (i64, i64)) -> anyhow::Result<Option<Rows>> {
        loop {
            let asked = Question { part: (from, to), queues_end: self.edits_end, erasure: false };
            let said =
                self.nodes.ask_about(&self.checked, self.subject, asked, SLICE_BYTES).await?;
            let before = self.checked.len();
            let (mut rows, mut has_moved) = (Rows::new(), false);
            for (node, said) in said {
                match said {
                    Err(why) => self.leave_out(node, why),
                    Ok(row) => match ErrorCode::from_code(row.error_code) {
                        Some(ErrorCode::None) if row.elements < 0 || row.end_offset <= from => {
                            self.leave_out(node, "its answer is incomplete");
                        }
                        Some(ErrorCode::None) => _ = rows.insert(node, row),
                        Some(ErrorCode::OffsetOutOfRange | ErrorCode::OffsetNotAvailable) => {
                            has_moved = true;
                        }
                        Some(ErrorCode::KafkaStorageError) => self.leave_out_damaged(node, &row),
                        _ => self.leave_out(node, words(&row)),
                    },
                }
            }
            if has_moved {
                // The part was trimmed, or an index is made anew.
                self.find_range().await?;
                return Ok(None);
            }
            if self.checked.len() < before {
                return Ok(None);
            }
            let end = rows.values().map(|row| row.end_offset).min().unwrap_or(to);
            if rows.values().all(|row| row.end_offset == end) {
                return Ok(Some(rows));
            }
            // Logs that were compacted differently, or by other limits.
            to = end;
        }
    }

    /// Leaves out a replica whose log or index cannot be read: a fault, too.
    fn leave_out_damaged(&mut self, node: NodeId, row: &DescribedReplica) {
        let what = words(row);
        self.findings.push(Finding { node, queue: None, position: None, what: what.clone() });
        self.leave_out(node, what);
    }

    /// Finds the first offset from [`Checking::at`] on whose element differs. Returns `None` if none does any more.
    async fn locate(&mut self, end: i64) -> anyhow::Result<Option<Vec<Finding>>> {
        let (mut low, mut high) = (self.at, end);
        while low < high {
            let middle = low + (high - low + 1) / 2;
            let Some(rows) = self.look((low, middle)).await? else { return Ok(None) };
            let middle = rows.values().map(|row| row.end_offset).min().unwrap_or(middle);
            if !differ(&rows) {
                low = middle;
            } else if middle == low + 1 {
                return Ok(Some(difference(&rows)));
            } else {
                high = middle;
            }
        }
        Ok(None)
    }
}

fn differ(rows: &Rows) -> bool {
    rows.values().map(|row| (row.elements, &row.digest)).collect::<BTreeSet<_>>().len() > 1
}

fn text_of(queue: &[u8]) -> String {
    String::from_utf8_lossy(queue).into_owned()
}

fn finding(node: NodeId, fault: &QueueFault) -> Finding {
    let QueueFault { queue, term, entry, offset, what } = fault;
    let position = Some(format!("{term}.{entry}.{offset}"));
    Finding { node, queue: Some(text_of(queue)), position, what: what.clone() }
}

/// Tells what each replica shows at one offset, if that is not what most replicas show.
fn difference(rows: &Rows) -> Vec<Finding> {
    let mut alike: BTreeMap<&[u8], Vec<NodeId>> = BTreeMap::new();
    for (node, row) in rows {
        alike.entry(&row.digest).or_default().push(*node);
    }
    let most = alike.values().map(Vec::len).max().unwrap_or(0);
    let some = rows.values().find_map(|row| row.shown.first());
    let mut findings = Vec::new();
    for (node, row) in rows {
        if 2 * alike[&row.digest[..]].len() > rows.len() {
            continue;
        }
        let others = alike.values().filter(|it| it.len() == most && !it.contains(node));
        let others = others.map(|nodes| {
            let (word, verb) = if nodes.len() == 1 { ("node", "shows") } else { ("nodes", "show") };
            format!("; {word} {} {verb} {}", screen::list(nodes), told(&rows[&nodes[0]]))
        });
        let what = format!("it shows {}{}", told(row), others.collect::<String>());
        let element = row.shown.first().or(some);
        let queue = element.map(|it| text_of(&it.queue));
        let position = element.map(|it| format!("{}.{}.{}", it.term, it.entry, it.offset));
        findings.push(Finding { node: *node, queue, position, what });
    }
    findings
}

fn told(row: &DescribedReplica) -> String {
    let Some(it) = row.shown.first() else { return "no element".to_owned() };
    let digest = it.digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    format!("version {} with digest {digest}", it.version)
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::describe_replicas::DescribedElement;

    use super::*;

    fn row(shown: &[(i64, u8)]) -> DescribedReplica {
        let element = |(version, digest): &(i64, u8)| DescribedElement {
            queue: "alice".into(),
            term: 2,
            entry: 4,
            offset: 5,
            version: *version,
            digest: vec![*digest].into(),
        };
        let digest = shown.iter().map(|it| it.1).collect::<Vec<_>>().into();
        let elements = i64::try_from(shown.len()).expect("small");
        let shown = shown.iter().map(element).collect();
        DescribedReplica { digest, elements, shown, ..DescribedReplica::default() }
    }

    #[test]
    fn a_replica_that_differs_from_most_others_is_named() {
        let rows = Rows::from([(1, row(&[(5, 1)])), (2, row(&[(5, 2)])), (3, row(&[(5, 1)]))]);
        assert!(differ(&rows));
        let found = difference(&rows);
        assert_eq!((found.len(), found[0].node), (1, 2));
        assert_eq!(found[0].queue.as_deref(), Some("alice"));
        assert_eq!(found[0].position.as_deref(), Some("2.4.5"));
        let what = "it shows version 5 with digest 02; nodes 1,3 show version 5 with digest 01";
        assert_eq!(found[0].what, what);
        let same = Rows::from([(1, row(&[(5, 1)])), (2, row(&[(5, 1)]))]);
        assert!(!differ(&same));
    }

    #[test]
    fn of_two_replicas_that_differ_both_are_named() {
        let rows = Rows::from([(1, row(&[(9, 1)])), (2, row(&[]))]);
        let found = difference(&rows);
        assert_eq!(found.iter().map(|it| it.node).collect::<Vec<_>>(), [1, 2]);
        let what = "it shows no element; node 1 shows version 9 with digest 01";
        assert_eq!(found[1].what, what);
        assert_eq!(found[1].position.as_deref(), Some("2.4.5"));
    }
}
