//! Plain counters and gauges of a node.

use super::Node;

/// What a node has done and holds. The driver measures what takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Requests that reached the node.
    pub requests: u64,
    /// Replies it gave.
    pub replies: u64,
    /// Record batches it appended.
    pub batches: u64,
    /// Bytes of them.
    pub batch_bytes: u64,
    /// Produces that found their batch appended already.
    pub duplicates: u64,
    /// Produces that had to wait for bytes in flight.
    pub stalls: u64,
    /// Trim entries proposed by retention.
    pub retention_trims: u64,
    /// Gauge: requests that wait for something.
    pub parked: u64,
    /// Gauge: bytes of batches between arrival and sync.
    pub bytes_in_flight: u64,
    /// Gauge: replicas here, the metadata group not counted.
    pub partitions: u64,
    /// Gauge: those of them that have failed.
    pub partitions_failed: u64,
    /// Gauge: partitions of `__consumer_offsets` whose log cannot be read, so that their groups are not served.
    pub coordinators_failed: u64,
    /// Gauge: producers remembered.
    pub producers: u64,
    /// Gauge: incremental fetch sessions.
    pub fetch_sessions: u64,
    /// How often a leap of the wall clock held retention.
    pub clock_holds: u64,
    /// Gauge: whether a leap of the wall clock holds retention now.
    pub is_clock_held: bool,
    /// Gauge: whether appends are refused for want of space.
    pub is_disk_full: bool,
    /// Gauge: whether the node still waits for its groups to lead.
    pub is_opening: bool,
}

impl Node {
    /// Counters since the node was opened, and gauges. Walks over all partitions: not for every
    /// turn.
    pub fn metrics(&self) -> Metrics {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let partitions = self.partitions.values();
        let failed = partitions.clone().filter(|it| it.group.failure().is_some());
        Metrics {
            parked: count(self.parked.len() + self.stalls.len() + self.undecided.len()),
            bytes_in_flight: self.bytes_in_flight,
            partitions: count(self.partitions.len()),
            partitions_failed: count(failed.count()),
            coordinators_failed: count(self.coordinators.failed()),
            producers: count(partitions.map(super::Partition::producers_len).sum()),
            fetch_sessions: count(self.sessions.len()),
            clock_holds: self.clock.holds(),
            is_clock_held: self.clock.is_held(),
            is_disk_full: self.is_disk_full,
            is_opening: self.opening.is_some(),
            ..self.counters
        }
    }
}
