//! # Room card: health
//!
//! Purpose:    tell whether this server lives, whether it can do its work, and if not, why.
//! Owns:       [`Health`], [`Beat`].
//! Interface:  [`Health::stuck`], [`Health::not_ready`], [`Health::problems`].
//! Invariants: reading it costs no lock that a working thread holds. A server that does not live is one that a
//!             restart may help.
//! Never:      repair.
//! Tests:      below.
//! Start at:   [`Health::problems`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use duramen_broker::Readiness;

/// A thread that works on one thing for so long is stuck, or its disk is.
const STUCK: Duration = Duration::from_secs(10);

/// State that the threads report of themselves.
#[derive(Debug)]
pub struct Health {
    started: Instant,
    /// The node's thread.
    pub node: Beat,
    /// The storage thread.
    pub storage: Beat,
    /// True while appends are refused for want of disk space.
    pub disk_full: AtomicBool,
    /// True once the server stops.
    pub stopping: AtomicBool,
    /// Groups that failed and serve no more.
    pub groups_failed: AtomicU64,
    standing: Standing,
    /// Why this node is not a member of its cluster; nothing if it is one, or has none.
    stranger: Mutex<Option<String>>,
}

/// The node's [`Readiness`], as it was last said.
#[derive(Debug)]
struct Standing {
    is_opening: AtomicBool,
    is_member: AtomicBool,
    knows_leader: AtomicBool,
    nodes: AtomicU64,
    nodes_unheard: AtomicU64,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            is_opening: AtomicBool::new(true),
            is_member: AtomicBool::new(false),
            knows_leader: AtomicBool::new(false),
            nodes: AtomicU64::new(0),
            nodes_unheard: AtomicU64::new(0),
        }
    }
}

/// Time when a thread took up its present work: microseconds since the start, 0 while it waits.
#[derive(Debug, Default)]
pub struct Beat(AtomicU64);

impl Default for Health {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            node: Beat::default(),
            storage: Beat::default(),
            disk_full: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            groups_failed: AtomicU64::new(0),
            standing: Standing::default(),
            stranger: Mutex::default(),
        }
    }
}

impl Health {
    /// Notes that the thread of this beat has something to do.
    pub fn begin(&self, beat: &Beat) {
        beat.0.store(self.now_us().max(1), Ordering::Relaxed);
    }

    /// Notes that the thread of this beat waits.
    pub fn end(&self, beat: &Beat) {
        beat.0.store(0, Ordering::Relaxed);
    }

    /// Keeps why this node is not a member of its cluster, if it is not.
    pub fn set_stranger(&self, why: Option<String>) {
        *self.stranger.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns the reason why this node is not a member of its cluster, if it is not.
    pub fn stranger(&self) -> Option<String> {
        self.stranger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes whether the node can serve. Returns true if it has no reason against it.
    pub fn note(&self, now: &Readiness) -> bool {
        let Standing { is_opening, is_member, knows_leader, nodes, nodes_unheard } = &self.standing;
        is_opening.store(now.is_opening, Ordering::Relaxed);
        is_member.store(now.is_member, Ordering::Relaxed);
        knows_leader.store(now.knows_leader, Ordering::Relaxed);
        nodes.store(now.nodes, Ordering::Relaxed);
        nodes_unheard.store(now.nodes_unheard, Ordering::Relaxed);
        self.not_standing().is_empty()
    }

    /// Lists the reasons why the process does not live, in sentences: its threads make no progress. A restart may
    /// help.
    pub fn stuck(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (beat, what) in [(&self.node, "the node"), (&self.storage, "storage")] {
            let since = beat.0.load(Ordering::Relaxed);
            let busy = Duration::from_micros(self.now_us().saturating_sub(since));
            if since != 0 && busy > STUCK {
                problems.push(format!("{what} has been busy with one turn for {busy:.0?}"));
            }
        }
        problems
    }

    /// Lists the reasons why the server cannot serve as it should, in sentences: clients had better go elsewhere. A
    /// restart does not help.
    pub fn not_ready(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.stopping.load(Ordering::Relaxed) {
            problems.push("the server is stopping".to_owned());
        }
        if self.disk_full.load(Ordering::Relaxed) {
            problems.push(
                "the disk is full: appends are refused until topics or records are deleted, \
                 or other files on the same disk"
                    .to_owned(),
            );
        }
        problems.extend(self.not_standing());
        problems.extend(self.stuck());
        problems
    }

    /// Lists the reasons why the node cannot serve, its own and its cluster's.
    fn not_standing(&self) -> Vec<String> {
        let is = |it: &AtomicBool| it.load(Ordering::Relaxed);
        let Standing { is_opening, is_member, knows_leader, nodes, nodes_unheard } = &self.standing;
        if let Some(why) = self.stranger() {
            return vec![why];
        }
        if is(is_opening) {
            return vec!["the partitions found on disk are not led yet".to_owned()];
        }
        let mut problems = Vec::new();
        if !is(is_member) {
            problems.push("the node is not registered in its cluster yet".to_owned());
        }
        let (nodes, unheard) =
            (nodes.load(Ordering::Relaxed), nodes_unheard.load(Ordering::Relaxed));
        let heard = nodes.saturating_sub(unheard);
        if !is(knows_leader) && 2 * heard <= nodes {
            problems.push(format!(
                "the node hears no majority: {heard} of {nodes} nodes are there, itself among them"
            ));
        } else if !is(knows_leader) {
            problems.push("nobody leads the metadata, as far as the node knows".to_owned());
        }
        problems
    }

    /// Lists all that is wrong, in sentences; empty if nothing is.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.not_ready();
        let failed = self.groups_failed.load(Ordering::Relaxed);
        if failed > 0 {
            let what =
                if failed == 1 { "partition failed and is" } else { "partitions failed and are" };
            problems.push(format!("{failed} {what} not served; see the log"));
        }
        problems
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> (Health, Readiness) {
        let health = Health::default();
        let readiness = Readiness {
            is_opening: false,
            is_member: true,
            knows_leader: true,
            nodes: 3,
            nodes_unheard: 0,
        };
        assert!(health.note(&readiness));
        (health, readiness)
    }

    #[test]
    fn problems_are_told_while_they_last() {
        let (health, _) = ready();
        assert!(health.problems().is_empty());
        health.begin(&health.node);
        assert!(health.problems().is_empty());
        health.disk_full.store(true, Ordering::Relaxed);
        health.groups_failed.store(2, Ordering::Relaxed);
        assert_eq!(health.problems().len(), 2);
        health.disk_full.store(false, Ordering::Relaxed);
        assert_eq!(health.problems().len(), 1);
    }

    #[test]
    fn a_full_disk_is_no_reason_to_restart() {
        let (health, _) = ready();
        health.disk_full.store(true, Ordering::Relaxed);
        assert!(health.stuck().is_empty());
        assert!(health.not_ready()[0].contains("the disk is full"));
        health.disk_full.store(false, Ordering::Relaxed);
        health.groups_failed.store(1, Ordering::Relaxed);
        assert!(health.not_ready().is_empty(), "all else is served");
    }

    #[test]
    fn a_thread_that_is_stuck_is_told_by_all() {
        let (mut health, _) = ready();
        let Some(before) = Instant::now().checked_sub(2 * STUCK) else { return };
        health.started = before;
        health.storage.0.store(1, Ordering::Relaxed);
        assert_eq!((health.stuck().len(), health.not_ready().len()), (1, 1));
    }

    #[test]
    fn whoever_is_not_in_its_cluster_is_not_ready() {
        assert!(Health::default().not_ready()[0].contains("not led yet"));
        let (health, readiness) = ready();
        assert!(
            health.note(&Readiness { nodes_unheard: 1, ..readiness }),
            "two of three are there"
        );
        let cut_off = Readiness { nodes_unheard: 2, knows_leader: false, ..readiness };
        assert!(!health.note(&cut_off));
        assert!(health.not_ready()[0].contains("1 of 3 nodes"), "{:?}", health.not_ready());
        assert!(!health.note(&Readiness { knows_leader: false, ..readiness }));
        assert!(!health.note(&Readiness { is_member: false, ..readiness }));
        assert!(health.stuck().is_empty());
    }
}
