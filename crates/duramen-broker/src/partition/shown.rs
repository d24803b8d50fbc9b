//! The ends of a log that readers see.
//!
//! Readers of a queue topic see records up to the end of the queue index. So an element and its deletion are seen in
//! the log's order. A leader shows them nothing before its index has all that other leaders may have acknowledged.

use duramen_storage::sabotage::{self, Bug};

use super::{Effects, Partition};

/// Bytes that were added before the ends that fetchers see; `None` if a fetcher should look at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    pub committed: Option<u64>,
    /// Bytes added before the last stable offset.
    pub stable: Option<u64>,
}

/// State of a partition that a fetch reports, as its watchers know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    committed: i64,
    stable: i64,
    log_start: i64,
    term: u64,
    is_serving: bool,
}

/// Progress of the queue index of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Indexed {
    /// Offset before which readers see records; it never falls while the log goes on. -1 before the index is open.
    to: i64,
    /// The same as the index reported it, until the next turn.
    reported: i64,
    /// Offset that the index has to reach before a leader shows anything.
    first: i64,
    /// True if the index could not go on when it was tried last.
    is_stuck: bool,
}

impl Default for Indexed {
    fn default() -> Self {
        Self { to: -1, reported: -1, first: 0, is_stuck: false }
    }
}

impl Indexed {
    /// Takes what the index has reported since the last turn.
    pub(super) fn take_report(&mut self) {
        self.to = self.to.max(self.reported);
    }

    /// Forgets all, because the log begins anew.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// Begins a term: as the leader of a log that has this end, or not as the leader.
    pub(super) fn begin_term(&mut self, end: Option<i64>) {
        self.first = end.unwrap_or(0);
    }

    fn is_there(self) -> bool {
        self.to >= self.first
    }
}

impl Partition {
    /// Returns the last stable offset.
    pub(crate) fn stable(&self) -> i64 {
        let open = self.producers.transactions().first_open();
        // After a start with an image older than a trim, the log start is ahead until the trim is committed again.
        open.map_or(self.committed, |first| first.max(self.log_start).min(self.committed))
    }

    /// Returns the end of what a reader sees that takes part in no transactions: the high watermark, but for queue
    /// topics.
    pub(crate) fn shown(&self) -> i64 {
        if !self.settings.queue || sabotage::is(Bug::ShownUnindexed) {
            return self.committed;
        }
        let is_there = self.indexed.is_there() || sabotage::is(Bug::LeaderShowsEarly);
        let indexed = if is_there { self.indexed.to } else { -1 };
        indexed.max(self.log_start).min(self.committed)
    }

    /// Returns [`Partition::shown`], and the same for readers of committed transactions.
    pub(super) fn shown_ends(&self) -> (i64, i64) {
        let shown = self.shown();
        (shown, self.stable().min(shown))
    }

    /// Returns the offset up to which the log is indexed, as far as this view knows; -1 before the index is open.
    pub(super) fn indexed_to(&self) -> i64 {
        self.indexed.to
    }

    /// Tells whether records from an offset on are committed, and cannot be shown before the log is repaired.
    pub(crate) fn hides(&self, offset: i64) -> bool {
        self.indexed.is_stuck && (self.shown()..self.committed).contains(&offset)
    }

    /// Notes how far the log is indexed, and whether it cannot be read on. The next turn tells readers.
    pub(crate) fn note_indexed(&mut self, to: i64, is_stuck: bool) {
        (self.indexed.reported, self.indexed.is_stuck) = (to, is_stuck);
        self.fresh.forget(to);
    }

    /// Returns the bytes that were added since [`Partition::shown_ends`] had these values.
    pub(super) fn growth(&self, (committed, stable): (i64, i64)) -> Growth {
        let between =
            |from, to| if from == to { Some(0) } else { self.group.bytes_between(from, to) };
        let now = self.shown_ends();
        Growth { committed: between(committed, now.0), stable: between(stable, now.1) }
    }

    pub(super) fn touch_watchers(&mut self, effects: &mut Effects) {
        let (committed, stable) = self.shown_ends();
        let told = Told {
            committed,
            stable,
            log_start: self.log_start,
            term: self.group.term(),
            is_serving: self.group.is_serving(),
        };
        let before = std::mem::replace(&mut self.told, told);
        let is_idle = before == told || self.watchers.is_empty();
        if is_idle || sabotage::is(Bug::SessionNotTouched) {
            return;
        }
        let is_led_alike = (before.term, before.is_serving) == (told.term, told.is_serving);
        let growth = if is_led_alike {
            self.growth((before.committed, before.stable))
        } else {
            Growth::default()
        };
        effects.touched.extend(self.watchers.iter().map(|watcher| (*watcher, growth)));
    }
}
