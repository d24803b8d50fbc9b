//! # Room card: health
//!
//! Purpose:    whether this server can do its work, and if not, why.
//! Owns:       [`Health`], [`Beat`].
//! Interface:  [`Health::problems`].
//! Invariants: reading it costs no lock that a working thread holds.
//! Never:      repair.
//! Tests:      below.
//! Start at:   [`Health::problems`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread that works on one thing for so long is stuck, or its disk is.
const STUCK: Duration = Duration::from_secs(10);

/// What the threads say of themselves.
#[derive(Debug)]
pub struct Health {
    started: Instant,
    /// The node's thread.
    pub node: Beat,
    /// The storage thread.
    pub storage: Beat,
    /// Set while appends are refused for want of disk space.
    pub disk_full: AtomicBool,
    /// Set once the server stops.
    pub stopping: AtomicBool,
    /// Groups that failed and serve no more.
    pub groups_failed: AtomicU64,
}

/// When a thread took up what it is doing: microseconds since the start, 0 while it waits.
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
        }
    }
}

impl Health {
    /// The thread of this beat has something to do.
    pub fn begin(&self, beat: &Beat) {
        beat.0.store(self.now_us().max(1), Ordering::Relaxed);
    }

    /// The thread of this beat waits.
    pub fn end(&self, beat: &Beat) {
        beat.0.store(0, Ordering::Relaxed);
    }

    /// What is wrong, in sentences; empty if nothing is.
    pub fn problems(&self) -> Vec<String> {
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
        for (beat, what) in [(&self.node, "the node"), (&self.storage, "storage")] {
            let since = beat.0.load(Ordering::Relaxed);
            let busy = Duration::from_micros(self.now_us().saturating_sub(since));
            if since != 0 && busy > STUCK {
                problems.push(format!("{what} has been busy with one turn for {busy:.0?}"));
            }
        }
        let failed = self.groups_failed.load(Ordering::Relaxed);
        if failed > 0 {
            problems.push(format!("{failed} partitions failed and are not served; see the log"));
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

    #[test]
    fn problems_are_told_while_they_last() {
        let health = Health::default();
        assert!(health.problems().is_empty());
        health.begin(&health.node);
        assert!(health.problems().is_empty());
        health.disk_full.store(true, Ordering::Relaxed);
        health.groups_failed.store(2, Ordering::Relaxed);
        assert_eq!(health.problems().len(), 2);
        health.disk_full.store(false, Ordering::Relaxed);
        assert_eq!(health.problems().len(), 1);
    }
}
