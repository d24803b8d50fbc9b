//! Produce requests that wait because too many bytes are on their way to the disk.

use std::collections::VecDeque;

use super::{Core, Timer};
use crate::event::{ConnectionId, RequestKey};
use crate::session::{PreparedProduce, RequestContext};

#[derive(Debug)]
pub(crate) struct Stalled {
    pub key: RequestKey,
    pub context: RequestContext,
    pub request: PreparedProduce,
    pub deadline_us: u64,
}

/// First come, first served, so that a producer's batches stay in order.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    pub queue: VecDeque<Stalled>,
    /// True if the operator was told of produces that waited in vain since the queue was last empty.
    pub is_told: bool,
}

impl Backpressure {
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

impl Core {
    /// Tells whether `bytes` more may be taken in now.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let total = self.bytes_in_flight + bytes;
        self.bytes_in_flight == 0 || total <= self.options.bytes_in_flight_max
    }

    /// Tells whether produces wait for room already: later ones queue behind them.
    pub(crate) fn has_stalled(&self) -> bool {
        !self.backpressure.queue.is_empty()
    }

    pub(crate) fn stall(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: PreparedProduce,
        deadline_us: u64,
    ) {
        self.counters.stalls += 1;
        self.timers.insert((deadline_us, Timer::Request(key)));
        self.backpressure.queue.push_back(Stalled { key, context, request, deadline_us });
    }

    /// Takes back a produce whose time is over.
    pub(crate) fn take_back_stalled(&mut self, key: RequestKey) -> Option<PreparedProduce> {
        let at = self.backpressure.queue.iter().position(|stalled| stalled.key == key)?;
        if !std::mem::replace(&mut self.backpressure.is_told, true) {
            tracing::warn!(
                bytes_in_flight = self.bytes_in_flight,
                bytes_in_flight_max = self.options.bytes_in_flight_max,
                waiting = self.backpressure.queue.len(),
                "produce requests time out before the node appends their batches: storage is \
                 slower than the producers, or stands still"
            );
        }
        let stalled = self.backpressure.queue.remove(at)?;
        self.timers.remove(&(stalled.deadline_us, Timer::Request(key)));
        self.backpressure.is_told &= self.has_stalled();
        Some(stalled.request)
    }

    pub(crate) fn forget_stalled(&mut self, connection: ConnectionId) {
        let timers = &mut self.timers;
        self.backpressure.queue.retain(|stalled| {
            let stays = stalled.key.0 != connection;
            if !stays {
                timers.remove(&(stalled.deadline_us, Timer::Request(stalled.key)));
            }
            stays
        });
    }
}
