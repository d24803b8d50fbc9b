//! Work that visits every partition or topic, in slices, so that no turn grows with their number.

use duramen_protocol::wire::Uuid;
use duramen_storage::op::{Compacted, ReplicaId, SegmentMeta};

use super::Coordinators;
use super::queues::Queues;
use crate::core::{Core, Timer};
use crate::event::Now;
use crate::limits::{CLEANING_MS_MIN, SWEEP_PAUSE_US, SWEEP_SLICE};
use crate::metadata_records::ALL_BROKERS;

/// Where a sweep stands.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    /// The last partition visited; `None` between two sweeps.
    at: Option<ReplicaId>,
    /// True if the wall clock was believed when the sweep began.
    is_believed: bool,
}

/// The sweeps of a node.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    retention: Sweep,
    cleaning: Sweep,
    producers: Sweep,
    /// The last topic that was told of other settings of the node; `None` between two sweeps.
    reconfigured: Option<Uuid>,
}

pub(crate) fn interval_us(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(1).max(1).saturating_mul(1000)
}

impl Sweep {
    /// Takes a reading of the wall clock, one a slice: one that is not believed holds the rest of the sweep.
    fn take_reading(&mut self, is_believed: bool, now: Now) -> Option<i64> {
        self.is_believed = is_believed && (self.at.is_none() || self.is_believed);
        self.is_believed.then_some(now.wall_ms)
    }

    /// Goes on behind a slice. Returns when, in microseconds from now.
    fn go_on(&mut self, slice: &[ReplicaId], interval_ms: i64) -> u64 {
        assert!(slice.len() <= SWEEP_SLICE, "a slice of a sweep is bounded");
        assert!(
            slice.first().copied().is_none_or(|first| Some(first) > self.at),
            "a sweep goes on behind its last slice"
        );
        self.at = slice.last().copied().filter(|_| slice.len() == SWEEP_SLICE);
        if self.at.is_some() { SWEEP_PAUSE_US } else { interval_us(interval_ms) }
    }
}

impl Core {
    pub(super) fn schedule_sweeps(&mut self) {
        let settings = &self.options.settings;
        let retention = interval_us(settings.retention_check_interval_ms);
        let producers = interval_us(settings.producer_id_expiration_check_interval_ms);
        self.timers.insert((self.now.mono_us.saturating_add(retention), Timer::Retention));
        let cleaning = interval_us(settings.cleaner_backoff_ms.max(CLEANING_MS_MIN));
        self.timers.insert((self.now.mono_us.saturating_add(cleaning), Timer::Cleaning));
        let offsets = interval_us(settings.offsets_retention_check_interval_ms);
        self.timers.insert((self.now.mono_us.saturating_add(producers), Timer::Producers));
        self.timers.insert((self.now.mono_us.saturating_add(offsets), Timer::Offsets));
    }

    fn slice_after(&self, at: Option<ReplicaId>) -> Vec<ReplicaId> {
        let from = at.map_or(ReplicaId(0), |at| ReplicaId(at.0 + 1));
        self.partitions.range(from..).take(SWEEP_SLICE).map(|(id, _)| *id).collect()
    }

    /// Returns the next partitions whose topics' own settings are known here.
    fn configured_after(&self, at: Option<ReplicaId>) -> Vec<ReplicaId> {
        if self.is_registered { self.slice_after(at) } else { Vec::new() }
    }

    /// Trims some partitions by their retention. Without a believed wall clock only size counts.
    pub(super) fn retain(&mut self, replicas: &[ReplicaId], wall_ms: Option<i64>) {
        for replica in replicas {
            let partition = self.partitions.get_mut(replica);
            if partition.is_some_and(|partition| partition.retain(wall_ms)) {
                self.counters.retention_trims += 1;
                self.mark_dirty(*replica);
            }
        }
    }

    /// Notes that a log was compacted, or not.
    pub(super) fn on_compacted(
        &mut self,
        replica: ReplicaId,
        done: Option<&(Compacted, Vec<SegmentMeta>)>,
    ) {
        let Some(partition) = self.partitions.get_mut(&replica) else { return };
        let before = partition.bytes();
        partition.on_compacted(done);
        if done.is_some() {
            self.counters.compactions += 1;
            self.counters.compacted_bytes += before.saturating_sub(partition.bytes());
        }
    }

    /// Takes the metadata's settings of this node.
    pub(crate) fn take_dynamic_settings(&mut self) {
        let image = &self.controller.image;
        let own = image.broker_configs(self.options.facts.broker_id).clone();
        self.options.settings.set_dynamic(own, image.broker_configs(ALL_BROKERS).clone());
        self.access.reconfigure(&self.options.settings);
        self.take_rates();
    }
}

impl Sweeps {
    pub(crate) fn sweep_retention(&mut self, core: &mut Core) {
        let is_believed = core.believes_clock();
        let wall_ms = self.retention.take_reading(is_believed, core.now);
        let slice = core.configured_after(self.retention.at);
        core.retain(&slice, wall_ms);
        let pause = self.retention.go_on(&slice, core.options.settings.retention_check_interval_ms);
        core.timers.insert((core.now.mono_us.saturating_add(pause), Timer::Retention));
    }

    /// Looks for logs that are to be compacted or erased, and tries failed compactions again.
    pub(crate) fn sweep_cleaning(&mut self, core: &mut Core, queues: &mut Queues) {
        let is_believed = core.believes_clock();
        let wall_ms = self.cleaning.take_reading(is_believed, core.now);
        let slice = core.configured_after(self.cleaning.at);
        let ticks = core.peers.ticks();
        for replica in &slice {
            queues.look_erasable(core, *replica);
            let partition = core.partitions.get_mut(replica).zip(wall_ms);
            if partition.is_some_and(|(partition, it)| {
                partition.sweep_compaction(it, ticks) || partition.sweep_erasure(it, ticks)
            }) {
                core.mark_dirty(*replica);
            }
            let partition = core.partitions.get_mut(replica);
            if partition.is_some_and(|it| it.retry_compaction()) {
                core.mark_dirty(*replica);
            }
        }
        let interval_ms = core.options.settings.cleaner_backoff_ms.max(CLEANING_MS_MIN);
        let pause = self.cleaning.go_on(&slice, interval_ms);
        core.timers.insert((core.now.mono_us.saturating_add(pause), Timer::Cleaning));
    }

    /// Passes changed settings of nodes to the topics without own ones, a slice at a time.
    pub(crate) fn reconfigure(&mut self, core: &mut Core) {
        core.take_dynamic_settings();
        core.timers.retain(|(_, timer)| *timer != Timer::Settings);
        self.reconfigured = None;
        self.sweep_settings(core);
    }

    pub(crate) fn sweep_settings(&mut self, core: &mut Core) {
        let slice = core.controller.image.topics_after(self.reconfigured, SWEEP_SLICE);
        for topic_id in &slice {
            core.configure(*topic_id);
        }
        self.reconfigured = slice.last().copied().filter(|_| slice.len() == SWEEP_SLICE);
        if self.reconfigured.is_some() {
            core.timers.insert((core.now.mono_us.saturating_add(SWEEP_PAUSE_US), Timer::Settings));
        }
    }

    pub(crate) fn sweep_producers(&mut self, core: &mut Core, coordinators: &mut Coordinators) {
        let settings = &core.options.settings;
        let kept_us = interval_us(settings.producer_id_expiration_ms);
        let interval_ms = settings.producer_id_expiration_check_interval_ms;
        let slice = core.slice_after(self.producers.at);
        // Monotonic time since this node saw the producer: no clock can leap over it.
        if let Some(before_us) = core.now.mono_us.checked_sub(kept_us) {
            for replica in &slice {
                let partition = core.partitions.get_mut(replica);
                if partition
                    .is_some_and(|partition| partition.expire_producers(core.now, before_us))
                {
                    core.mark_dirty(*replica);
                }
                coordinators.forget_executed(core, *replica);
            }
        }
        let pause = self.producers.go_on(&slice, interval_ms);
        core.timers.insert((core.now.mono_us.saturating_add(pause), Timer::Producers));
    }
}
