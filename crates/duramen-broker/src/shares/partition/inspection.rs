//! Invariants of a share partition, checked after each change where debug assertions are on.

use std::collections::BTreeMap;

use super::{Phase, Range, Run, Saved, SharePartition};
use crate::limits::INSPECTED_MAX;

impl SharePartition {
    /// Checks that runs, locks, decisions and batches agree.
    pub(super) fn inspect(&self) {
        if !cfg!(debug_assertions) || self.runs.len() > INSPECTED_MAX {
            return;
        }
        let Self { start, end, scan_from, unfinished, .. } = *self;
        let mut next = start;
        let mut left = 0;
        for (&first, run) in &self.runs {
            assert_eq!(first, next, "the window has no gap");
            assert!(first <= run.last, "the run at {first} has an offset");
            next = run.last + 1;
            left += if run.phase == Phase::Done { 0 } else { next - first };
            self.inspect_run(first, run);
        }
        assert_eq!(next, end, "the window ends with its last run");
        assert_eq!(unfinished, left, "the records that the group is not done with are counted");
        let first = self.runs.first_key_value();
        assert!(
            first.is_none_or(|(_, run)| run.phase != Phase::Done),
            "the start passes done ones"
        );
        assert!((start..=end).contains(&scan_from), "{scan_from} is in the window");
        let apart = self.spans.iter().zip(self.spans.iter().skip(1));
        let are_apart = apart.into_iter().all(|((_, span), (base, _))| span.last < *base);
        assert!(are_apart, "batches follow each other");
        let first = self.spans.first_key_value();
        assert!(
            first.is_none_or(|(_, it)| it.last >= start),
            "batches before {start} are forgotten"
        );
        let last = self.spans.last_key_value();
        assert!(last.is_none_or(|(base, _)| *base <= end), "batches after {end} are not known");
        self.inspect_tickets();
        self.inspect_keys();
        let count = |phase: Phase| {
            let runs = self.runs.iter().filter(|(_, run)| run.phase == phase);
            runs.map(|(first, run)| run.last - first + 1).sum::<i64>()
        };
        self.lanes.inspect(count(Phase::Available), count(Phase::Delayed));
    }

    fn inspect_run(&self, first: i64, run: &Run) {
        let covers = |range: &Range, at: i64| (range.0..=range.1).contains(&at);
        let is_in = |all: &[Range]| {
            [first, run.last].iter().all(|at| all.iter().any(|range| covers(range, *at)))
        };
        match run.saved {
            Saved::Yes => {}
            Saved::Due => assert!(is_in(&self.due), "the run at {first} is due in a write"),
            Saved::Sent => {
                let sent = self.sent.as_ref();
                assert!(sent.is_some_and(|it| is_in(&it.1)), "the run at {first} is in the write");
            }
        }
        match &run.phase {
            Phase::Available => {
                assert!(first >= self.scan_from, "no record before the scan is available: {first}");
            }
            Phase::Delayed => {}
            Phase::Acquired { until_us, .. } => {
                let count = run.deliveries;
                assert!(count > 0, "the acquired run at {first} has {count} deliveries");
                assert!(self.earliest_us <= *until_us, "no lock ends unnoticed: {first}");
            }
            Phase::Settling { .. } => {
                assert!(run.saved != Saved::Yes, "the decision on the run at {first} is written");
            }
            Phase::Dying { is_asked, .. } => {
                assert!(*is_asked || self.is_dying, "the dead letter of {first} is asked for");
            }
            Phase::Done => {
                let is_plain = (run.deliveries, run.saved) == (0, Saved::Yes);
                assert!(is_plain, "nothing is kept of the done run at {first}");
            }
        }
    }

    /// Checks that each decision waits for its records, and for no others.
    fn inspect_tickets(&self) {
        let mut waiting: BTreeMap<u64, i64> = BTreeMap::new();
        for (first, run) in &self.runs {
            if let Phase::Settling { ticket: Some(ticket), .. }
            | Phase::Dying { ticket: Some(ticket), .. } = run.phase
            {
                *waiting.entry(ticket).or_default() += run.last - first + 1;
            }
        }
        for (ticket, left) in &self.tickets {
            assert_eq!(waiting.get(ticket), Some(left), "the decision {ticket} waits for these");
        }
    }

    /// Checks that each key's records wait in their order.
    fn inspect_keys(&self) {
        if self.keys.len() > INSPECTED_MAX {
            return;
        }
        let window = self.start..self.end;
        let mut queued = 0;
        for (key, queue) in &self.queues {
            assert!(!queue.is_empty(), "the key {key} has a record");
            // A record enters the order when its time has come, behind one that is out.
            let in_order = self.is_of_queues() || queue.iter().is_sorted();
            assert!(in_order, "the records of the key {key} are in order");
            let is_its = |at: &i64| window.contains(at) && self.keys.get(at) == Some(key);
            assert!(queue.iter().all(is_its), "the queue of {key} has records of this key only");
            queued += queue.len();
        }
        assert_eq!(queued, self.keys.len(), "each record with a key is in its queue");
    }
}
