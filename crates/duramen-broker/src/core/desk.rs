//! # Room card: desk
//!
//! Purpose:    the one place where requests wait.
//! Owns:       every request that waits, its deadline, and the order of those that are served first come, first served.
//! Interface:  [`Core::park`], [`Core::parked_mut`], [`Core::take_parked`]; [`Core::hold`] and [`Core::stall`]
//!             for requests that wait as a whole.
//! Invariants: a request waits once. A request in an order is parked. A request leaves with its key, its time or its
//!             connection, and then nothing here names it.
//! Never:      answers (see `api`); the other ends of a wait, such as a partition that wakes a fetch (see `node.rs`).
//! Tests:      `node/tests/backpressure.rs`, `node/tests/restart.rs`.
//! Start at:   [`Core::park`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duramen_storage::op::ReplicaId;

use super::{Core, Parked, Signal, Timer};
use crate::event::{ConnectionId, RequestKey};
use crate::session::{Prepared, RequestContext};

#[derive(Debug)]
struct Waiting {
    parked: Parked,
    /// Monotonic microseconds; `u64::MAX` without a deadline.
    deadline_us: u64,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    waiting: BTreeMap<RequestKey, Waiting>,
    /// Requests that wait for the node to open, for a decision, and for room, each in the order in which they came.
    held: VecDeque<RequestKey>,
    deferred: VecDeque<RequestKey>,
    stalled: VecDeque<RequestKey>,
    /// Replicas without other voters that are to lead before the node is open; `None` once it is.
    opening: Option<BTreeSet<ReplicaId>>,
    /// True if the operator was told of produces that waited in vain since none was stalled.
    is_told: bool,
}

impl Desk {
    /// Returns a desk at which requests wait for the node to open.
    pub(crate) fn new() -> Self {
        Self { opening: Some(BTreeSet::new()), ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestKey, &Parked)> {
        self.waiting.iter().map(|(key, waiting)| (*key, &waiting.parked))
    }

    pub(crate) fn of(&self, connection: ConnectionId) -> Vec<RequestKey> {
        let range = (connection, 0)..=(connection, u64::MAX);
        self.waiting.range(range).map(|(key, _)| *key).collect()
    }

    pub(crate) fn contains(&self, key: RequestKey) -> bool {
        self.waiting.contains_key(&key)
    }

    /// Returns the order that a request stands in, if any.
    fn order_of(&mut self, parked: &Parked) -> Option<&mut VecDeque<RequestKey>> {
        match parked {
            Parked::Held { .. } => Some(&mut self.held),
            Parked::Deferred { .. } => Some(&mut self.deferred),
            Parked::Stalled { .. } => Some(&mut self.stalled),
            _ => None,
        }
    }
}

/// All requests that wait.
impl Core {
    /// Keeps a request until `deadline_us`, in monotonic microseconds.
    pub(crate) fn park(&mut self, key: RequestKey, parked: Parked, deadline_us: u64) {
        if let Some(order) = self.desk.order_of(&parked) {
            order.push_back(key);
        }
        if deadline_us < u64::MAX {
            self.timers.insert((deadline_us, Timer::Request(key)));
        }
        let before = self.desk.waiting.insert(key, Waiting { parked, deadline_us });
        assert!(before.is_none(), "a connection numbers its requests");
    }

    /// Takes a waiting request back. Its other ends, if it has any, are the caller's to end.
    pub(crate) fn take_parked(&mut self, key: RequestKey) -> Option<Parked> {
        let Waiting { parked, deadline_us } = self.desk.waiting.remove(&key)?;
        self.timers.remove(&(deadline_us, Timer::Request(key)));
        if let Some(order) = self.desk.order_of(&parked) {
            let at = order.iter().position(|it| *it == key);
            order.remove(at.expect("a request in an order stands in it"));
            self.desk.is_told &= !self.desk.stalled.is_empty();
        }
        Some(parked)
    }

    pub(crate) fn parked_mut(&mut self, key: RequestKey) -> Option<&mut Parked> {
        self.desk.waiting.get_mut(&key).map(|waiting| &mut waiting.parked)
    }

    pub(crate) fn parked(&self, key: RequestKey) -> Option<&Parked> {
        self.desk.waiting.get(&key).map(|waiting| &waiting.parked)
    }

    /// Notes that one of the partitions that a request waits for has a leader, or never will.
    pub(crate) fn on_leader(&mut self, key: RequestKey) {
        let Some(
            Parked::Commit { outstanding, .. }
            | Parked::Metadata { outstanding, .. }
            | Parked::FindCoordinator { outstanding, .. },
        ) = self.parked_mut(key)
        else {
            return;
        };
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            self.signals.push_back(Signal::Ready(key));
        }
    }

    /// Notes that one of the leadership checks that a request waits for is done. The request goes on after the last.
    pub(crate) fn on_sure(&mut self, key: RequestKey) {
        let Some(Parked::Doubtful { outstanding, .. }) = self.parked_mut(key) else { return };
        *outstanding -= 1;
        if *outstanding > 0 {
            return;
        }
        if let Some(Parked::Doubtful { context, request, .. }) = self.take_parked(key) {
            self.signals.push_back(Signal::Certain { key, context, request });
        }
    }
}

/// Invariants.
impl Core {
    /// Checks that each request that waits is in its order, and has the timer of its deadline.
    pub(crate) fn inspect_desk(&self) {
        let Desk { waiting, held, deferred, stalled, opening, is_told } = &self.desk;
        assert!(opening.is_some() || held.is_empty(), "an open node holds no request");
        assert!(stalled.is_empty() || self.bytes_in_flight > 0, "produces wait only for a disk");
        assert!(!is_told || !stalled.is_empty(), "the operator is told of produces that wait");
        if !cfg!(debug_assertions) {
            return;
        }
        for (order, is_it) in [
            (held, (|it| matches!(it, Parked::Held { .. })) as fn(&Parked) -> bool),
            (deferred, |it| matches!(it, Parked::Deferred { .. })),
            (stalled, |it| matches!(it, Parked::Stalled { .. })),
        ] {
            let in_order = order.iter().filter(|key| is_it(&waiting[key].parked)).count();
            let all = waiting.values().filter(|it| is_it(&it.parked)).count();
            assert_eq!((in_order, all), (order.len(), all), "a request in an order is parked");
            assert_eq!(in_order, all, "a parked request of an order stands in it");
        }
        for (key, Waiting { deadline_us, .. }) in waiting {
            let timer = (*deadline_us, Timer::Request(*key));
            // A share fetch may wait on for decisions to be durable.
            let is_over = *deadline_us <= self.now.mono_us;
            let is_timed = *deadline_us == u64::MAX || self.timers.contains(&timer);
            assert!(is_timed || is_over, "a request with a deadline has a timer");
        }
        assert!(
            opening.iter().flatten().all(|replica| self.partitions.contains_key(replica)),
            "the node opens after replicas that are here"
        );
    }

    /// Checks that each timer has its purpose, and each sweep its timer.
    pub(crate) fn inspect_timers(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let count = |kind| self.timers.iter().filter(|(_, timer)| *timer == kind).count();
        for sweep in [Timer::Retention, Timer::Cleaning, Timer::Producers, Timer::Offsets] {
            assert_eq!(count(sweep), 1, "the next {sweep:?} has one time");
        }
        let clustered = usize::from(self.is_clustered());
        assert_eq!(count(Timer::Peers), clustered, "ticks follow each other");
        let opening = usize::from(self.is_opening());
        assert_eq!(count(Timer::Opened), opening, "a node opens in time");
        let is_needed = |timer: &Timer| match timer {
            Timer::Request(key) => self.desk.contains(*key),
            _ => true,
        };
        assert!(
            self.timers.iter().all(|(_, timer)| is_needed(timer)),
            "a request that was answered has no timer"
        );
    }
}

/// Requests about topics or settings whose creation, change or deletion is being committed: their answers depend on the
/// result. Also requests for topics on nodes that are about to register.
impl Core {
    /// Returns the deferred requests, in the order in which they came.
    pub(crate) fn deferred(&self) -> Vec<RequestKey> {
        self.desk.deferred.iter().copied().collect()
    }
}

/// Appends that wait because too many bytes are on their way to the disk. First come, first served, so that a
/// producer's batches stay in order.
impl Core {
    /// Tells whether `bytes` more may be taken in now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let total = self.bytes_in_flight + bytes;
        self.bytes_in_flight == 0 || total <= self.options.bytes_in_flight_max
    }

    /// Tells whether produces wait for room already: later ones queue behind them.
    pub(crate) fn has_stalled(&self) -> bool {
        !self.desk.stalled.is_empty()
    }

    pub(crate) fn stall(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Prepared,
        deadline_us: u64,
    ) {
        self.counters.stalls += 1;
        let request = Box::new(request);
        self.park(key, Parked::Stalled { context, request }, deadline_us);
    }

    /// Takes the first stalled produce, if there is room for it by now; with its deadline.
    pub(crate) fn next_stalled(&mut self) -> Option<(RequestKey, RequestContext, Prepared, u64)> {
        let key = *self.desk.stalled.front()?;
        let waiting = self.desk.waiting.get(&key);
        let Waiting { parked, deadline_us } = waiting.expect("a request in an order is parked");
        let deadline_us = *deadline_us;
        let Parked::Stalled { request, .. } = parked else { return None };
        if !self.has_room(request.bytes()) {
            return None;
        }
        let Some(Parked::Stalled { context, request }) = self.take_parked(key) else { return None };
        Some((key, context, *request, deadline_us))
    }

    /// Takes back a produce whose time is over.
    pub(crate) fn take_back_stalled(
        &mut self,
        key: RequestKey,
    ) -> Option<(RequestContext, Prepared)> {
        if !std::mem::replace(&mut self.desk.is_told, true) {
            tracing::warn!(
                bytes_in_flight = self.bytes_in_flight,
                bytes_in_flight_max = self.options.bytes_in_flight_max,
                waiting = self.desk.stalled.len(),
                "produce requests time out before the node appends their batches: storage is \
                 slower than the producers, or stands still"
            );
        }
        let Some(Parked::Stalled { context, request }) = self.take_parked(key) else { return None };
        Some((context, *request))
    }
}

/// Requests that come before the groups with this node as their only voter have a leader. They wait until the node is
/// registered and leads those groups, or the time for that is over, and then are served in their order.
impl Core {
    pub(crate) fn is_opening(&self) -> bool {
        self.desk.opening.is_some()
    }

    /// Has the node open only once a replica leads, if it is not open yet.
    pub(crate) fn open_after(&mut self, replica: ReplicaId) {
        if let Some(awaited) = &mut self.desk.opening {
            awaited.insert(replica);
        }
    }

    /// Keeps a request while the node opens; hands it back once the node is open.
    pub(crate) fn hold(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Box<Prepared>,
    ) -> Option<(RequestContext, Box<Prepared>)> {
        if !self.is_opening() {
            return Some((context, request));
        }
        self.park(key, Parked::Held { context, request }, u64::MAX);
        None
    }

    pub(crate) fn note_opened(&mut self, replica: ReplicaId) {
        let Some(awaited) = &mut self.desk.opening else { return };
        awaited.remove(&replica);
        if self.is_registered && awaited.is_empty() {
            self.finish_opening();
        }
    }

    pub(crate) fn finish_opening(&mut self) {
        if self.desk.opening.take().is_none() {
            return;
        }
        self.timers.retain(|(_, timer)| *timer != Timer::Opened);
        while let Some(key) = self.desk.held.front().copied() {
            if let Some(Parked::Held { context, request }) = self.take_parked(key) {
                self.signals.push_back(Signal::Judge { key, context, request });
            }
        }
    }
}
