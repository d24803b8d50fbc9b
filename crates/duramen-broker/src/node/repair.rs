//! # Room card: mending
//!
//! Purpose:    repair damaged ranges of segments with the bytes of other replicas.
//! Owns:       damaged ranges on this node, requests to other replicas, requests of other nodes.
//! Interface:  [`Repairs::on_damaged`], [`Repairs::on_mended`], [`Repairs::tick_mends`], [`Repairs::on_ranges`].
//! Invariants: the node repairs one segment at a time, with one request at a time. Nodes ask for committed batches
//!             only, and give no others. This room checks received batches, and storage checks them once more.
//! Never:      files; detection of damage (see storage's `scrub`), the choice of valid batches (see storage's
//!             `mending`).
//! Tests:      `node/tests/repair.rs`; `duramen-sim`, scenario `cluster`; `tests/cluster.rs` of the binary.
//! Start at:   [`Repairs::tick_mends`].
//!
//! Repair does not depend on Raft: all replicas have the same bytes at the same offsets, so that any of them can give a
//! range. The damaged replica goes on to follow or to lead meanwhile. The node refuses only reads of damaged ranges.
//!
//! Compaction ends that: a replica that is damaged before it compacts can neither compact nor be repaired, once all
//! others have compacted. Then the cluster replaces it. One that leads hands over before, to a replica that has
//! compacted: a leader feeds replicas that lack the log, and this one cannot.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::batches;
use duramen_protocol::wire::Uuid;
use duramen_storage::Descriptor;
use duramen_storage::mending::{Damage, DamagedRange, Mend};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use crate::controller::METADATA_GROUP;
use crate::core::Core;
use crate::event::{Action, LogRead, MENDING_TICKETS, MadeBy, ReadLog};
use crate::metadata_records::PlacedReplica;
use crate::peer::{Frame, RangeGiven, RangeWanted};
use crate::raft::{Group, GroupId};

/// About how much is asked for at once; at least one batch.
const PIECE_BYTES: u32 = 256 * 1024;
/// Most bytes that one copy of a segment is repaired with; the rest follows with the next.
const MEND_BYTES_MAX: usize = 32 << 20;
/// Ticks until another replica is asked, because this one does not answer.
const ANSWER_TICKS: u64 = 20;
/// Ticks until the next try, when no replica has the range.
const REST_TICKS: u64 = 100;
/// Longest rest after doublings, in ticks: five minutes.
const REST_TICKS_MAX: u64 = 6000;
/// Segments that are remembered to be damaged; the others are found again.
const OPEN_MAX: usize = 1024;
/// Reads for others that may wait; above, they ask again.
const SERVING_MAX: usize = 16;

/// A question to another node.
#[derive(Clone, Copy, Debug)]
struct Asked {
    nonce: u64,
    broker_id: i32,
    /// Range that the question is for.
    range: usize,
    at_tick: u64,
}

/// A range, and the batches received for it so far.
#[derive(Debug)]
struct Hole {
    range: DamagedRange,
    batches: BytesMut,
    /// Offset after those batches.
    end: i64,
    /// True if no replica has more of the range now.
    is_given_up: bool,
    /// Nodes where a compaction has changed the range.
    changed: BTreeSet<i32>,
}

/// Contents of a question: ranges, asked replicas, and term. The same question most likely gets the same answer.
#[derive(Clone, Debug, PartialEq)]
struct Question {
    ranges: Vec<DamagedRange>,
    others: Vec<PlacedReplica>,
    term: u64,
}

/// A question that no replica could answer.
#[derive(Clone, Debug)]
struct InVain {
    question: Question,
    rest_ticks: u64,
    until_tick: u64,
}

/// A damaged segment.
#[derive(Debug, Default)]
struct Open {
    holes: Vec<Hole>,
    asked: Option<Asked>,
    /// Nodes that did not have the range, or gave batches that do not fit.
    refused: BTreeSet<i32>,
    /// True while storage repairs the segment.
    is_ordered: bool,
    /// True once the log says that no replica has the range.
    is_deplored: bool,
    not_before_tick: u64,
    in_vain: Option<InVain>,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    open: BTreeMap<(ReplicaId, i64), Open>,
    /// The segment that is being repaired, or was last.
    turn: Option<(ReplicaId, i64)>,
    /// Reads for other nodes: node and its number for the read, by ticket.
    serving: BTreeMap<u64, (i32, u64)>,
    tickets: u64,
    /// Replicas that no other can repair any more, for [`Repairs::take_useless`].
    useless: Vec<ReplicaId>,
}

impl Repairs {
    /// Takes the replicas that are damaged where all others have compacted their logs since.
    pub(crate) fn take_useless(&mut self) -> Vec<ReplicaId> {
        std::mem::take(&mut self.useless)
    }

    /// Numbers a read for another node.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        MENDING_TICKETS + self.tickets
    }

    /// Takes in that a segment is damaged.
    pub(super) fn forget(&mut self, replica: ReplicaId, segment: i64) {
        self.open.remove(&(replica, segment));
    }
}

impl Open {
    fn of(ranges: &[DamagedRange]) -> Self {
        let hole = |&range: &DamagedRange| Hole {
            range,
            batches: BytesMut::new(),
            end: range.offset,
            is_given_up: false,
            changed: BTreeSet::new(),
        };
        Self { holes: ranges.iter().map(hole).collect(), ..Self::default() }
    }

    fn ranges(&self) -> Vec<DamagedRange> {
        self.holes.iter().map(|hole| hole.range).collect()
    }

    /// Returns the ranges that are still to be filled after storage has put in the received batches.
    fn rest_of_ranges(&self) -> Vec<DamagedRange> {
        let rest = |hole: &Hole| DamagedRange {
            at: hole.range.at + hole.batches.len() as u64,
            offset: hole.end,
            ..hole.range
        };
        self.holes.iter().map(rest).filter(|range| range.offset < range.end_offset).collect()
    }

    fn bytes(&self) -> usize {
        self.holes.iter().map(|hole| hole.batches.len()).sum()
    }

    /// Returns the first range that lacks something, if there is room for more.
    fn lacks(&self) -> Option<usize> {
        let lacks = |hole: &Hole| hole.end < hole.range.end_offset && !hole.is_given_up;
        self.holes.iter().position(lacks).filter(|_| self.bytes() < MEND_BYTES_MAX)
    }

    /// Tells whether compactions have changed all ranges on these nodes.
    fn is_changed_on(&self, others: &[PlacedReplica]) -> bool {
        let is_changed = |hole: &Hole| others.iter().all(|it| hole.changed.contains(&it.broker_id));
        !others.is_empty() && self.holes.iter().all(is_changed)
    }

    /// Tells whether any of the ranges reaches past this log start.
    fn is_kept(&self, log_start: i64) -> bool {
        self.holes.iter().any(|hole| hole.range.end_offset > log_start)
    }

    /// Postpones the segment's next try.
    fn rest(&mut self, ticks: u64) {
        (self.asked, self.is_ordered) = (None, false);
        self.refused.clear();
        self.holes.iter_mut().for_each(|hole| hole.is_given_up = false);
        self.not_before_tick = ticks + REST_TICKS;
    }

    /// Tells whether the same question was asked in vain, and not long enough ago. A different question resets that.
    fn is_vain(&mut self, question: &Question, ticks: u64) -> bool {
        self.in_vain.take_if(|before| before.question != *question);
        self.in_vain.as_ref().is_some_and(|before| ticks < before.until_tick)
    }

    /// Notes that no replica could answer: the same question rests longer each time.
    fn note_vain(&mut self, question: Question, ticks: u64) {
        let before = self.in_vain.take();
        let twice = |before: InVain| (2 * before.rest_ticks).min(REST_TICKS_MAX);
        let rest_ticks = before.map_or(REST_TICKS, twice);
        self.in_vain = Some(InVain { question, rest_ticks, until_tick: ticks + rest_ticks });
    }
}

impl Hole {
    /// Takes the batches that follow what is there. False if there are none.
    fn take(&mut self, given: Bytes) -> bool {
        let before = self.end;
        for batch in batches(given).map_while(Result::ok) {
            let Ok(descriptor) = Descriptor::of_batch(batch.bytes(), false) else { break };
            let is_whole = descriptor.matches(batch.bytes()) || sabotage::is(Bug::MendUnchecked);
            let at = self.range.at + (self.batches.len() + batch.bytes().len()) as u64;
            let fits = at <= self.range.end_at && descriptor.end_offset() <= self.range.end_offset;
            if !is_whole || !fits || descriptor.base_offset != self.end {
                break;
            }
            self.batches.extend_from_slice(batch.bytes());
            self.end = descriptor.end_offset();
        }
        assert!(
            self.range.at + self.batches.len() as u64 <= self.range.end_at,
            "received batches fit into the range"
        );
        assert!(self.end <= self.range.end_offset.max(before), "they are of the range's offsets");
        self.end > before
    }
}

/// Invariants.
impl Repairs {
    /// Checks that one segment is repaired at a time, with one request at a time.
    pub(crate) fn inspect(&self) {
        assert!(self.open.len() <= OPEN_MAX, "few damaged segments are remembered");
        assert!(self.serving.len() <= SERVING_MAX, "few reads for others wait");
        let at_work = self.open.iter().filter(|(_, it)| it.asked.is_some() || it.is_ordered);
        debug_assert!(
            at_work.into_iter().all(|(key, _)| Some(*key) == self.turn),
            "one segment is repaired at a time"
        );
        debug_assert!(
            self.open.values().all(|open| !(open.is_ordered && open.asked.is_some())),
            "a segment is asked for or repaired"
        );
        debug_assert!(
            self.open
                .values()
                .all(|open| { open.asked.is_none_or(|asked| asked.range < open.holes.len()) }),
            "a question is for a range of the segment"
        );
    }
}

/// Damage here.
impl Repairs {
    /// Takes in that a segment of a replica here is damaged.
    pub(crate) fn on_damaged(&mut self, core: &mut Core, damage: &Damage) {
        let key = (damage.replica, damage.segment);
        let Some((group, committed, _)) = core.log_here(damage.replica) else { return };
        let known = self.open.get(&key);
        // Each read that meets the damage reports it. An answer on its way is good for all of these reports.
        if known.is_some_and(|open| open.is_ordered || open.ranges() == damage.ranges)
            || self.open.len() >= OPEN_MAX
        {
            return;
        }
        let bytes: u64 = damage.ranges.iter().map(|range| range.end_at - range.at).sum();
        let others = core.others_of(group, damage.replica).len();
        let (replica, segment, ranges) = (damage.replica.0, damage.segment, damage.ranges.len());
        if others == 0 {
            tracing::error!(
                replica,
                segment,
                ranges,
                bytes,
                "durable data is damaged, and there is no other copy of it: see docs/operations.md, \"A damaged partition\""
            );
        } else {
            let offset = damage.ranges.first().map(|range| range.offset);
            tracing::warn!(
                replica,
                segment,
                ranges,
                bytes,
                offset,
                committed,
                "durable data is damaged: this node fetches it from another replica"
            );
        }
        let mut open = Open::of(&damage.ranges);
        if let Some(known) = known {
            (open.is_deplored, open.not_before_tick) = (known.is_deplored, known.not_before_tick);
            open.in_vain.clone_from(&known.in_vain);
        }
        self.open.insert(key, open);
    }

    /// Takes the result of a repair by storage.
    pub(super) fn on_mended(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        segment: i64,
        is_done: bool,
    ) {
        let ticks = core.peers.ticks();
        let Some(open) = self.open.get_mut(&(replica, segment)) else { return };
        if !is_done {
            *open = Open { is_deplored: open.is_deplored, ..Open::of(&open.ranges()) };
            open.rest(ticks);
            return;
        }
        let (bytes, rest) = (open.bytes(), open.rest_of_ranges());
        core.counters.mended_bytes += bytes as u64;
        if !rest.is_empty() {
            let is_given_up = open.holes.iter().any(|hole| hole.is_given_up);
            *open = Open { is_deplored: open.is_deplored, ..Open::of(&rest) };
            if is_given_up {
                open.rest(ticks);
            }
            return;
        }
        core.counters.segments_mended += 1;
        self.open.remove(&(replica, segment));
        tracing::info!(
            replica = replica.0,
            segment,
            bytes,
            "a damaged segment is as other replicas have it again"
        );
    }

    /// Returns the number of segments that are known to be damaged, and not repaired yet.
    pub(super) fn segments_damaged(&self, core: &Core) -> usize {
        let is_damaged = |(key, open): &(&(ReplicaId, i64), &Open)| {
            let log = core.log_here(key.0);
            log.is_some_and(|(_, _, start)| open.is_kept(start))
        };
        self.open.iter().filter(is_damaged).count()
    }

    /// Goes on with the segment whose turn it is.
    pub(crate) fn tick_mends(&mut self, core: &mut Core) {
        if self.open.is_empty() {
            return;
        }
        let ticks = core.peers.ticks();
        if let Some(open) = self.turn.and_then(|key| self.open.get_mut(&key)) {
            if open.is_ordered {
                return;
            }
            match open.asked {
                Some(asked) if ticks < asked.at_tick + ANSWER_TICKS => return,
                Some(asked) => {
                    open.refused.insert(asked.broker_id);
                    open.asked = None;
                }
                None => {}
            }
        }
        let is_due = |key: &(ReplicaId, i64)| self.open[key].not_before_tick <= ticks;
        let at_work = self.turn.filter(|key| self.open.contains_key(key));
        let keys = || self.open.keys().copied().filter(is_due);
        let next = keys().find(|key| Some(*key) > self.turn).or_else(|| keys().next());
        self.turn = at_work.filter(is_due).or(next);
        if let Some(key) = self.turn.filter(|key| self.open.contains_key(key)) {
            self.ask_for_ranges(core, key);
        }
    }

    /// Asks another replica for the missing batches, or gives storage the received ones.
    fn ask_for_ranges(&mut self, core: &mut Core, key: (ReplicaId, i64)) {
        let ticks = core.peers.ticks();
        let Some((group, committed, start)) = core.log_here(key.0) else {
            self.open.remove(&key);
            return;
        };
        let term = core.group(key.0).map_or(0, Group::term);
        let mut others = core.others_of(group, key.0);
        let placed = others.len();
        others.retain(|it| core.peers.hears(it.broker_id));
        let (nonce, are_all_heard) = (core.chance.next(), others.len() == placed);
        let Some(open) = self.open.get_mut(&key) else { return };
        let question = Question { ranges: open.ranges(), others, term };
        if open.is_vain(&question, ticks) {
            // The question may change, so this look comes more often than the question.
            open.rest(ticks);
            return;
        }
        while let Some(at) = open.lacks() {
            let hole = &mut open.holes[at];
            let mut others = question.others.iter().map(|it| it.broker_id);
            let other = others.find(|id| !open.refused.contains(id));
            // No replica gives batches that are not committed: they may yet be cut.
            let other = other.filter(|_| hole.range.end_offset <= committed);
            let Some(broker_id) = other else {
                hole.is_given_up = true;
                open.refused.clear();
                continue;
            };
            let (offset, end_offset) = (hole.end, hole.range.end_offset);
            open.asked = Some(Asked { nonce, broker_id, range: at, at_tick: ticks });
            let GroupId { topic_id, partition } = group;
            let (topic_id, replica) = (Uuid(topic_id), key.0.0);
            let wanted = RangeWanted { nonce, topic_id, partition, replica, offset, end_offset };
            core.peers.frame_to(broker_id).ranges_wanted.push(wanted);
            return;
        }
        if open.bytes() > 0 {
            open.is_ordered = true;
            let patches = open.holes.iter().map(|it| (it.range, it.batches.clone().freeze()));
            let patches = patches.collect();
            core.out.push(Action::Mend(Mend { replica: key.0, segment: key.1, patches }));
        } else if !open.is_kept(start) {
            // The range was trimmed, and the others no longer even have its file: nobody reads it.
            self.open.remove(&key);
        } else {
            let is_committed = open.holes.iter().all(|hole| hole.range.end_offset <= committed);
            if are_all_heard && is_committed && !open.is_deplored {
                open.is_deplored = true;
                tracing::error!(
                    replica = key.0.0,
                    segment = key.1,
                    "no other replica has what is damaged here: this node asks again; see docs/operations.md, \"A damaged partition\""
                );
            }
            if are_all_heard && is_committed && open.is_changed_on(&question.others) {
                tracing::warn!(
                    replica = key.0.0,
                    segment = key.1,
                    "all other replicas have compacted what is damaged here: the cluster replaces this one"
                );
                self.useless.push(key.0);
            }
            hand_over(core, key.0, open, &question.others);
            let was_in_vain = open.not_before_tick > 0;
            open.rest(ticks);
            if is_committed {
                open.note_vain(question, ticks);
            }
            if was_in_vain {
                step_aside(core, key.0, is_committed);
            }
        }
    }
}

/// Hands over to a replica that has compacted the damaged ranges. That one can feed others which lack the log, and
/// this leader cannot.
fn hand_over(core: &mut Core, replica: ReplicaId, open: &Open, others: &[PlacedReplica]) {
    let Some(group) = core.changing_group(replica) else { return };
    let is_able = |it: &&PlacedReplica| open.is_changed_on(std::slice::from_ref(*it));
    let able: BTreeSet<u64> = others.iter().filter(is_able).map(|it| it.peer_id).collect();
    let to = group.successors().find(|id| able.contains(id));
    if let Some(to) = to {
        group.hand_over(to, false);
    }
}

/// Gives up leadership that damage makes useless. No other replica may have damaged entries that are not committed, and
/// this leader could never give them. Damage of committed ones may keep it from reading the entries behind them, and so
/// from its first commit. Another replica leads then, which has less, or can give them.
fn step_aside(core: &mut Core, replica: ReplicaId, is_committed: bool) {
    if let Some(group) = core.changing_group(replica)
        && !(is_committed && group.has_begun_term())
    {
        group.step_aside();
    }
}

impl Core {
    /// Returns a replica's group, high watermark and log start, unless the replica has failed.
    fn log_here(&self, replica: ReplicaId) -> Option<(GroupId, i64, i64)> {
        let controller = &self.controller;
        if replica == controller.group.id() {
            return Some((METADATA_GROUP, controller.end(), controller.log_start()));
        }
        let partition = self.partitions.get(&replica)?;
        let is_well = partition.group.failure().is_none();
        is_well.then(|| (partition.id, partition.committed(), partition.log_start()))
    }

    /// Returns the other replicas of a group.
    fn others_of(&self, group: GroupId, own: ReplicaId) -> Vec<PlacedReplica> {
        let placed = self.placed_all(group).into_iter();
        placed.filter(|placed| placed.peer_id != own.0).collect()
    }
}

/// Ranges that other nodes lack or give.
impl Repairs {
    /// Takes a frame's questions and answers about damaged ranges.
    pub(crate) fn on_ranges(&mut self, core: &mut Core, frame: &Frame) {
        for wanted in &frame.ranges_wanted {
            self.serve_range(core, frame.broker_id, frame.directory_id, wanted);
        }
        for given in &frame.ranges_given {
            self.on_range_given(core, frame.broker_id, given);
        }
    }

    /// Serves another node's replica, which lacks a range that this node's may have.
    fn serve_range(
        &mut self,
        core: &mut Core,
        broker_id: i32,
        directory_id: Uuid,
        wanted: &RangeWanted,
    ) {
        let group = GroupId { topic_id: wanted.topic_id.0, partition: wanted.partition };
        let sender = core.placed(group, wanted.replica);
        if sender.is_none_or(|placed| placed.directory_id != directory_id)
            || self.serving.len() >= SERVING_MAX
        {
            return;
        }
        let own = core.own_directory();
        let here = core.placed_all(group).into_iter().find(|placed| placed.directory_id == own);
        let here = here.map(|placed| ReplicaId(placed.peer_id));
        let log = here.and_then(|replica| Some((replica, core.log_here(replica)?)));
        // Trimmed batches count, too: the segment may be there still, and all of it be the same as elsewhere.
        let has = |committed: i64| wanted.offset < wanted.end_offset.min(committed);
        let log = log.filter(|(_, (_, committed, _))| has(*committed));
        let Some((replica, (_, committed, _))) = log else {
            let refusal = RangeGiven { nonce: wanted.nonce, ..RangeGiven::default() };
            core.peers.frame_to(broker_id).ranges_given.push(refusal);
            return;
        };
        let ticket = self.next_ticket();
        self.serving.insert(ticket, (broker_id, wanted.nonce));
        core.peers.read(ReadLog {
            replica,
            from: wanted.offset,
            pass: 0,
            end: wanted.end_offset.min(committed),
            bytes_max: PIECE_BYTES,
            peer: Some(ReplicaId(wanted.replica)),
            ticket,
            // Batches that a compaction has changed elsewhere are not the ones that belong there.
            made_by: MadeBy::Appends,
        });
    }

    /// Sends batches that were read for another node's replica.
    pub(crate) fn on_range_read(&mut self, core: &mut Core, read: LogRead) {
        let Some((broker_id, nonce)) = self.serving.remove(&read.ticket) else { return };
        let batches = read.batches.unwrap_or_default();
        core.counters.ranges_given += u64::from(!batches.is_empty());
        let given = RangeGiven { nonce, batches, is_changed: read.is_changed };
        core.peers.frame_to(broker_id).ranges_given.push(given);
    }

    /// Takes another node's batches for a range, or its answer that it has none.
    fn on_range_given(&mut self, core: &mut Core, broker_id: i32, given: &RangeGiven) {
        let Some(key) = self.turn else { return };
        let Some(open) = self.open.get_mut(&key) else { return };
        let is_this =
            |asked: &mut Asked| (asked.nonce, asked.broker_id) == (given.nonce, broker_id);
        let Some(asked) = open.asked.take_if(is_this) else { return };
        let hole = &mut open.holes[asked.range];
        if !hole.take(given.batches.clone()) {
            open.refused.insert(broker_id);
            if given.is_changed {
                hole.changed.insert(broker_id);
            }
        }
        self.ask_for_ranges(core, key);
    }
}
