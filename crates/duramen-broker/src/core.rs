//! # Room card: core
//!
//! Purpose:    the state that all parts of a node share.
//! Owns:       the replicas of this node, the metadata, links to other nodes, requests that wait, timers; the actions
//!             and signals of the present turn.
//! Interface:  [`Core`]; its methods stand beside the state that they are about.
//! Invariants: a replica with work to do is marked. Bytes in flight are those of all replicas here.
//! Never:      a part of the node (see `node`), an API.
//! Tests:      `node/tests`; `duramen-sim`.
//! Start at:   [`Core::append`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;
use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::keys::Statement;
use duramen_storage::op::{ReplicaId, Shortage};
use duramen_storage::storage::Facts;

use self::certainty::Certainty;
use self::clocks::Clocks;
use self::desk::Desk;
use self::quotas::Timed;
use self::throttle::Throttle;
use crate::access::Access;
use crate::checked_batch::CheckedBatch;
use crate::controller::Controller;
use crate::controller::image::Topic;
use crate::event::{Action, Now, RequestKey};
use crate::limits::PRODUCER_ID_BLOCK;
use crate::metadata_records::{MetadataRecord, PlacedReplica};
use crate::partition::retention::ClockWatch;
use crate::partition::{Acks, Appended, Partition, Slot};
use crate::prng::Prng;
use crate::quotas::Meters;
use crate::recompression::Board;

mod certainty;
mod clocks;
mod deliveries;
mod desk;
mod fast;
mod in_sync;
mod internal_topics;
mod membership;
mod metrics;
mod options;
mod parked;
mod peers;
mod placement;
mod quotas;
mod signals;
mod throttle;

pub(crate) use certainty::Then;
pub use membership::{NATIVE, NODES};
pub(crate) use metrics::standing;
pub use metrics::{Metrics, Readiness, Standing};
pub use options::{ClientListener, NodeOptions};
pub(crate) use parked::{
    Awaited, Describing, ElectionWanted, FastWait, Fetch, NativeWait, Parked, ParkedFetch, Place,
    QueueStage, QueueWait, ShareRequest, Told, Wanted, Worker,
};
pub(crate) use peers::{Peers, metadata_replica};
pub(crate) use signals::Signal;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Opened,
    Retention,
    Cleaning,
    Producers,
    Settings,
    Offsets,
    Peers,
    Coordinator(ReplicaId),
    Calls,
    ShareCalls,
    Share(u64),
    DeadLetters,
    AccessLog,
    Queues,
    Request(RequestKey),
}

/// See the room card.
#[derive(Debug)]
pub(crate) struct Core {
    pub options: NodeOptions,
    pub access: Access,
    pub controller: Controller,
    /// In boxes: a node of the tree has room for eleven values, and is half empty.
    pub partitions: BTreeMap<ReplicaId, Box<Partition>>,
    pub counters: Metrics,
    pub(crate) desk: Desk,
    pub timers: BTreeSet<(u64, Timer)>,
    pub dirty: VecDeque<ReplicaId>,
    pub is_controller_dirty: bool,
    /// The registration is applied: the image is complete, and replicas follow it.
    pub is_registered: bool,
    pub(crate) certainty: Certainty,
    pub bytes_in_flight: u64,
    /// Bytes of batches that the replicas here hold beside their logs.
    pub(crate) held_bytes: usize,
    /// Why appends are refused, if they are.
    pub(crate) disk_shortage: Option<Shortage>,
    pub producer_ids: (i64, i64),
    /// A block of producer ids that this node gives itself: index, first and end.
    pub allocating: Option<(u64, i64, i64)>,
    pub peers: Peers,
    /// Topics with a codec of their own.
    pub(crate) board: Board,
    pub clock: ClockWatch,
    pub(crate) clocks: Clocks,
    pub(crate) chance: Prng,
    pub(crate) meters: Meters,
    pub(crate) timed: Timed,
    pub(crate) throttle: Throttle,
    /// When the present step or flush began.
    pub now: Now,
    /// Actions of the present step or flush.
    pub out: Vec<Action>,
    /// Things that happened here, with which requests go on; empty between steps.
    pub signals: VecDeque<Signal>,
}

impl Core {
    pub(crate) fn new(
        mut options: NodeOptions,
        controller: Controller,
        now: Now,
        out: Vec<Action>,
    ) -> Self {
        Self {
            access: Access::default(),
            controller,
            partitions: BTreeMap::new(),
            counters: Metrics::default(),
            desk: Desk::new(),
            timers: BTreeSet::new(),
            dirty: VecDeque::new(),
            is_controller_dirty: true,
            is_registered: false,
            certainty: Certainty::default(),
            bytes_in_flight: 0,
            held_bytes: 0,
            disk_shortage: None,
            producer_ids: (0, 0),
            allocating: None,
            peers: Peers::new(std::mem::take(&mut options.founders)),
            board: Board::default(),
            clock: ClockWatch::new(now),
            clocks: Clocks::default(),
            chance: Prng::stream(options.seed, 0x006d_656d_6265_7273),
            meters: Meters::default(),
            timed: Timed::default(),
            throttle: Throttle::default(),
            now,
            out,
            signals: VecDeque::new(),
            options,
        }
    }
}

impl Core {
    pub(crate) fn on_disk_full(&mut self, shortage: Option<Shortage>) {
        let was_full = self.disk_shortage.is_some();
        self.disk_shortage = shortage;
        match self.refusal() {
            Some(refusal) if !was_full => tracing::warn!("{refusal}"),
            None if was_full => tracing::info!("the disk has room again: appends are accepted"),
            _ => {}
        }
    }

    /// Returns the message for producers while the disk is full: which disk, the missing space, and the remedy.
    pub(crate) fn refusal(&self) -> Option<String> {
        const MIB: u64 = 1 << 20;
        let Shortage { free_bytes, needed_bytes } = self.disk_shortage?;
        Some(format!(
            "the disk of broker {} is full: {} MiB are free, and appends are taken from {} MiB on; delete topics or \
             records, shorten their retention, or free space on the file system of its data directory",
            self.options.facts.broker_id,
            free_bytes / MIB,
            needed_bytes.div_ceil(MIB)
        ))
    }

    pub(crate) fn mark_dirty(&mut self, replica: ReplicaId) {
        if let Some(partition) = self.partitions.get_mut(&replica) {
            mark(&mut self.dirty, partition);
        }
    }

    /// Gives a partition a batch. Returns its first offset kept too.
    pub(crate) fn append(
        &mut self,
        replica: ReplicaId,
        batch: CheckedBatch,
        acks: Acks,
        slot: Slot,
    ) -> (Appended, i64) {
        let (bytes, records) = (batch.bytes.len() as u64, records_of(&batch));
        let partition = self.partitions.get_mut(&replica).expect("it was just found");
        let in_flight = partition.group.bytes_in_flight();
        let appended = partition.produce(self.now, batch, acks, slot);
        let added = partition.group.bytes_in_flight() - in_flight;
        // Of one that has just failed, those who wait are told in the turn.
        let waits = matches!(
            appended,
            Appended::Waits { .. } | Appended::Objected { is_certain: false, .. }
        );
        if waits || added > 0 || partition.group.failure().is_some() {
            mark(&mut self.dirty, partition);
        }
        let log_start = partition.log_start();
        let is_taken = matches!(appended, Appended::Waits { .. } | Appended::Done { .. });
        // A condition that does not hold is an answer, and no failure.
        let is_answer = matches!(appended, Appended::Objected { .. });
        partition.note_append(records, added, !is_taken && !is_answer);
        self.count_append(bytes, added, is_taken);
        (appended, log_start)
    }

    /// Counts a client's batch of so many bytes, of which some were put in flight.
    fn count_append(&mut self, bytes: u64, added: u64, is_taken: bool) {
        assert!(added == 0 || added == bytes, "all of a batch is in flight, or nothing");
        assert!(added == 0 || is_taken, "a batch that was refused is not in flight");
        if added > 0 {
            self.bytes_in_flight += added;
            self.counters.batches += 1;
            self.counters.batch_bytes += bytes;
        } else if is_taken {
            self.counters.duplicates += 1;
        }
    }

    /// Gives a partition a batch of this node's own.
    pub(crate) fn append_own(
        &mut self,
        replica: ReplicaId,
        bytes: BytesMut,
        slot: Slot,
    ) -> Appended {
        let now = self.now;
        self.append_by(replica, |partition| partition.append_own(now, bytes, slot))
    }

    /// Has a partition say something of one of its queues.
    pub(crate) fn say(
        &mut self,
        replica: ReplicaId,
        statement: &Statement,
        slot: Slot,
    ) -> Appended {
        let now = self.now;
        self.append_by(replica, |partition| partition.say(now, statement, slot))
    }

    /// Has a log of queues say statements again, unless their queues may have changed behind `known`.
    pub(crate) fn say_again(
        &mut self,
        replica: ReplicaId,
        statements: Vec<Statement>,
        known: i64,
    ) -> Appended {
        let now = self.now;
        self.append_by(replica, |partition| partition.say_again(now, statements, known))
    }

    fn append_by(
        &mut self,
        replica: ReplicaId,
        append: impl FnOnce(&mut Partition) -> Appended,
    ) -> Appended {
        let Some(partition) = self.partitions.get_mut(&replica) else {
            return Appended::Refused(ErrorCode::UnknownTopicOrPartition, None);
        };
        let in_flight = partition.group.bytes_in_flight();
        let appended = append(partition);
        self.bytes_in_flight += partition.group.bytes_in_flight() - in_flight;
        mark(&mut self.dirty, partition);
        appended
    }

    /// Proposes metadata records, and gives the metadata group a turn. Returns the index to wait for.
    pub(crate) fn propose(&mut self, records: &[MetadataRecord]) -> Result<u64, ErrorCode> {
        let index = self.controller.propose(self.now, records)?;
        self.is_controller_dirty = true;
        Ok(index)
    }

    /// Returns a new random id.
    pub(crate) fn fresh_id(&mut self) -> Uuid {
        let (high, low) = (self.chance.next(), self.chance.next());
        Uuid::from_u128(u128::from(high) << 64 | u128::from(low))
    }

    pub(crate) fn own_directory(&self) -> Uuid {
        Uuid(self.options.facts.directory_id)
    }

    /// Returns the local replica of a partition.
    pub(crate) fn local_replica(&self, topic: &Topic, partition: i32) -> Option<ReplicaId> {
        let replicas = topic.replicas(partition)?;
        let own = self.own_directory();
        let replica = replicas.iter().find(|replica| replica.directory_id == own)?;
        Some(ReplicaId(replica.peer_id))
    }

    /// Returns the local replica of a partition that serves, or the error for a client.
    pub(crate) fn serving(&self, topic: &Topic, index: i32) -> Result<&Partition, ErrorCode> {
        let partition = self.partition_here(topic, index)?;
        partition.obstacle().map_or(Ok(partition), Err)
    }

    /// Returns the local replica of a partition, leader or not, or the reason why none can be read.
    pub(crate) fn readable(&self, topic: &Topic, index: i32) -> Result<&Partition, ErrorCode> {
        let partition = self.partition_here(topic, index)?;
        partition.obstacle_to_reading().map_or(Ok(partition), Err)
    }

    /// Returns the local replica of a partition, whatever its state.
    pub(crate) fn partition_here(
        &self,
        topic: &Topic,
        index: i32,
    ) -> Result<&Partition, ErrorCode> {
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        if !(0..count).contains(&index) {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let replica = self.local_replica(topic, index).ok_or(ErrorCode::NotLeaderOrFollower)?;
        self.partitions.get(&replica).map(AsRef::as_ref).ok_or(ErrorCode::NotLeaderOrFollower)
    }

    /// Returns the node from which a client in `rack` should read a partition that this node leads. That node has a
    /// replica that keeps up and is in the client's rack, while this node is not.
    pub(crate) fn read_replica(&self, topic: &Topic, index: i32, rack: &str) -> Option<i32> {
        let settings = &self.options.settings;
        if rack.is_empty() || self.options.rack.as_deref() == Some(rack) || settings.leaders_only {
            return None;
        }
        let partition = self.serving(topic, index).ok()?;
        let replicas = topic.replicas(index)?;
        let near = |placed: &&PlacedReplica| {
            let broker = self.controller.image.brokers.get(&placed.broker_id);
            let is_there =
                self.peers.hears(placed.broker_id) && !self.peers.leaves(placed.broker_id);
            is_there
                && broker.is_some_and(|broker| broker.rack.as_deref() == Some(rack))
                && self.keeps_up(partition, placed)
        };
        let best = replicas.iter().filter(near).max_by_key(|placed| {
            (partition.group.matched(placed.peer_id), std::cmp::Reverse(placed.broker_id))
        });
        best.map(|placed| placed.broker_id)
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_shortage.is_some()
    }

    /// Returns the next producer id, or `None` after having asked for a block of them.
    pub(crate) fn next_producer_id(&mut self) -> Result<Option<i64>, ErrorCode> {
        let (next, end) = self.producer_ids;
        if next < end {
            self.producer_ids.0 += 1;
            return Ok(Some(next));
        }
        if !self.controller.group.is_alone() && !self.controller.group.is_serving() {
            return self.want_producer_ids().map(|()| None);
        }
        if self.allocating.is_none() {
            let Facts { cluster_id, broker_id, .. } = self.options.facts;
            let (first, end, record) = self.controller.allocate_producer_ids(cluster_id, broker_id);
            debug_assert_eq!(end - first, PRODUCER_ID_BLOCK);
            let index = self.propose(&[record])?;
            self.allocating = Some((index, first, end));
        }
        Ok(None)
    }
}

/// Returns the number of a batch's records.
fn records_of(batch: &CheckedBatch) -> u64 {
    u64::from(batch.header.last_offset_delta.unsigned_abs()) + 1
}

/// Gives the partition a turn in the next flush.
pub(crate) fn mark(dirty: &mut VecDeque<ReplicaId>, partition: &mut Partition) {
    if !std::mem::replace(&mut partition.is_dirty, true) {
        dirty.push_back(partition.group.id());
    }
}
