//! # Room card: feeding
//!
//! Purpose:    give a replica the prefix of a compacted log that it lacks, before its log begins anew behind the
//!             prefix.
//! Owns:       feeds for replicas on this node and their progress; requests of other nodes for pieces.
//! Interface:  [`Feeds::on_prefixed`], [`Feeds::tick_feeds`], [`Feeds::on_prefixes`], [`Feeds::on_put`],
//!             [`Feeds::on_staged`].
//! Invariants: a group gets a snapshot with a prefix only when this disk has the whole prefix, of the compaction that
//!             the snapshot names. Each piece names its compaction, which the giver checks as it reads the
//!             piece. If the compaction changes, the feed begins anew: otherwise an older value could come back, or a
//!             tombstone be missing.
//! Never:      files (see storage's `staging`); the content of a snapshot (see `raft/snapshots.rs`).
//! Tests:      `node/tests/snapshot_feed.rs`; `duramen-sim`, scenario `cluster`.
//! Start at:   [`Feeds::on_prefixed`].
//!
//! A feed asks for no offset below the giver's log start, which an entry trimmed that a majority has. A feed also skips
//! offsets that are trimmed meanwhile. The log begins anew at the place that the latest snapshot names, or at the log
//! start of a piece, if that is later.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::wire::Uuid;
use duramen_storage::Descriptor;
use duramen_storage::op::{Given, Identity, ReplicaId, SegmentMeta};
use duramen_storage::sabotage::{self, Bug};
use duramen_storage::staging::Stage;

use super::Repairs;
use crate::core::{Core, mark};
use crate::event::{Action, LogRead, MadeBy, ReadLog};
use crate::peer::{Frame, Letter, PrefixGiven, PrefixWanted};
use crate::raft::GroupId;

/// About how much is asked for at once; at least one batch.
const PIECE_BYTES: u32 = 256 * 1024;
/// Ticks until a question is asked again, because it or its answer was lost.
const ANSWER_TICKS: u64 = 20;
/// Ticks without another snapshot after which a feed is no longer wanted.
const FORGOTTEN_TICKS: u64 = 400;
/// Logs that are fed here at once. The snapshots of others come again.
const FEEDS_MAX: usize = 16;
/// Reads for others that may wait; above, they ask again.
const SERVING_MAX: usize = 16;
/// Ticks for which a leader decides no compaction after it was asked for a piece.
pub(crate) const FED_TICKS: u64 = 200;

/// A log that is being fed.
#[derive(Debug)]
struct Feed {
    /// The latest snapshot, and the node that sent it.
    letter: Letter,
    broker_id: i32,
    heard_tick: u64,
    given: Given,
    /// The next offset that is lacking.
    next: i64,
    asked: Option<(u64, u64)>,
    at: At,
}

/// Next step of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Ask for the first piece.
    Beginning,
    /// Ask for more.
    Asking,
    /// Put a piece to the others; it may be the last.
    Putting,
    /// Complete: all of the prefix is here.
    Staged,
}

/// A piece for another node, while it is being read.
#[derive(Clone, Copy, Debug)]
struct Serving {
    broker_id: i32,
    nonce: u64,
    compaction: u64,
    below: i64,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    open: BTreeMap<ReplicaId, Feed>,
    serving: BTreeMap<u64, Serving>,
    numbers: u64,
}

impl Feeds {
    /// Tells whether a read is for another node's replica that is fed.
    pub(crate) fn serves(&self, ticket: u64) -> bool {
        self.serving.contains_key(&ticket)
    }
}

/// Invariants.
impl Feeds {
    /// Checks the stages of the feeds, at the end of a turn.
    pub(crate) fn inspect(&self) {
        assert!(self.open.len() <= FEEDS_MAX, "few logs are fed at once");
        assert!(self.serving.len() <= SERVING_MAX, "few reads for others wait");
        debug_assert!(
            self.open.values().all(|feed| feed.asked.is_none() || feed.at == At::Asking),
            "a piece is asked for once the last one is with the others"
        );
        debug_assert!(
            self.open.values().all(|feed| feed.given.number <= self.numbers),
            "feeds are numbered"
        );
        debug_assert!(
            self.open.iter().all(|(replica, feed)| feed.letter.to == replica.0),
            "a feed is for the receiver of its snapshot"
        );
    }
}

/// Feeds of replicas here.
impl Feeds {
    /// Takes a snapshot that names a prefix which is not in it.
    pub(crate) fn on_prefixed(
        &mut self,
        core: &mut Core,
        broker_id: i32,
        letter: Letter,
        given: Given,
    ) {
        let replica = ReplicaId(letter.to);
        let ticks = core.peers.ticks();
        let compaction = given.compacted.index;
        let known = self.open.get_mut(&replica);
        let is_same = |feed: &Feed| feed.given.compacted.index == compaction;
        if let Some(feed) = known.filter(|feed| is_same(feed)) {
            feed.given.log_start = feed.given.log_start.max(given.log_start);
            (feed.letter, feed.broker_id, feed.heard_tick) = (letter, broker_id, ticks);
            if feed.at == At::Staged {
                self.begin_fed(core, replica);
            }
            return;
        }
        if !self.open.contains_key(&replica) && self.open.len() >= FEEDS_MAX {
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        let next = given.log_start;
        let given = Given { number, ..given };
        tracing::info!(
            replica = replica.0,
            compaction,
            below = given.compacted.below,
            "a log lacks the prefix that a compaction left: this node fetches it from the leader's node first"
        );
        let at = At::Beginning;
        let feed = Feed { letter, broker_id, heard_tick: ticks, given, next, asked: None, at };
        self.open.insert(replica, feed);
        self.feed(core, replica);
    }

    /// Gives the snapshot to its group, because all of the prefix is here.
    fn begin_fed(&mut self, core: &mut Core, replica: ReplicaId) {
        let Some(feed) = self.open.get(&replica) else { return };
        let Some(partition) = core.partitions.get_mut(&replica) else { return };
        partition.group.on_fed(feed.letter.clone(), feed.given.clone());
        mark(&mut core.dirty, partition);
    }

    /// Goes on with the open feeds.
    pub(crate) fn tick_feeds(&mut self, core: &mut Core) {
        let ticks = core.peers.ticks();
        let all: Vec<ReplicaId> = self.open.keys().copied().collect();
        for replica in all {
            let feed = self.open.get_mut(&replica).expect("it was just there");
            let partition = core.partitions.get(&replica);
            let is_wanted = partition.is_some_and(|it| it.group.given_by(&feed.letter).is_some());
            if !is_wanted || ticks >= feed.heard_tick + FORGOTTEN_TICKS {
                self.open.remove(&replica);
                core.out.push(Action::Stage(Stage::Drop { replica }));
                continue;
            }
            if feed.asked.is_some_and(|(_, at_tick)| ticks >= at_tick + ANSWER_TICKS) {
                feed.asked = None;
            }
            if feed.asked.is_none() {
                self.feed(core, replica);
            }
        }
    }

    /// Asks for the next piece.
    fn feed(&mut self, core: &mut Core, replica: ReplicaId) {
        let nonce = core.chance.next();
        let ticks = core.peers.ticks();
        let Some(feed) = self.open.get_mut(&replica) else { return };
        if feed.at == At::Beginning {
            let (id, topic) = {
                let Some(partition) = core.partitions.get(&replica) else { return };
                let topic_id = Uuid(partition.id.topic_id);
                let Some(topic) = core.controller.image.topic(topic_id) else { return };
                (partition.id, topic.name.clone())
            };
            let GroupId { topic_id, partition } = id;
            let identity = Identity { topic, topic_id, partition };
            let given = feed.given.clone();
            core.out.push(Action::Stage(Stage::Begin { replica, identity, given }));
            feed.at = At::Asking;
        }
        if feed.at != At::Asking {
            return;
        }
        feed.asked = Some((nonce, ticks));
        let wanted = PrefixWanted {
            nonce,
            topic_id: feed.letter.topic_id,
            partition: feed.letter.partition,
            replica: replica.0,
            compaction: feed.given.compacted.index,
            offset: feed.next,
        };
        core.peers.frame_to(feed.broker_id).prefixes_wanted.push(wanted);
    }

    /// Drops a feed that is of no use or no longer wanted. If the prefix is wanted still, another snapshot comes.
    fn drop_feed(&mut self, core: &mut Core, replica: ReplicaId) {
        if self.open.remove(&replica).is_some() {
            core.out.push(Action::Stage(Stage::Drop { replica }));
        }
    }

    /// Takes a piece from another node.
    fn on_prefix_given(&mut self, core: &mut Core, broker_id: i32, given: &PrefixGiven) {
        let is_this = |(_, feed): &(&ReplicaId, &mut Feed)| {
            let asked = feed.asked.map(|(nonce, _)| nonce);
            asked == Some(given.nonce) && feed.broker_id == broker_id
        };
        let Some((&replica, feed)) = self.open.iter_mut().find(is_this) else { return };
        feed.asked = None;
        let is_other = given.compaction != feed.given.compacted.index;
        if is_other && !sabotage::is(Bug::GivenMixed) {
            return self.drop_feed(core, replica);
        }
        let below = feed.given.compacted.below;
        feed.given.log_start = feed.given.log_start.max(given.log_start.min(below));
        // A piece that was damaged on its way or at the giver is asked for again.
        let batches = sound(&given.batches);
        let is_last = given.is_last && batches.len() == given.batches.len();
        if batches.is_empty() && !is_last {
            // The giver could not read the piece, or no longer has it. Trimmed offsets are skipped, and all else is
            // asked for again later.
            if feed.given.log_start > feed.next {
                feed.next = feed.given.log_start;
            } else {
                feed.asked = Some((0, core.peers.ticks()));
            }
            return;
        }
        feed.at = At::Putting;
        let number = feed.given.number;
        core.out.push(Action::Stage(Stage::Put { replica, number, batches, is_last }));
    }

    /// Notes that a piece was put to the others, or cannot be.
    pub(super) fn on_put(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        number: u64,
        next: Option<i64>,
    ) {
        let feed = self.open.get_mut(&replica).filter(|it| it.given.number == number);
        let Some(feed) = feed else { return };
        match next {
            Some(next) => {
                feed.next = feed.next.max(next);
                feed.at = At::Asking;
                self.feed(core, replica);
            }
            None => self.drop_feed(core, replica),
        }
    }

    /// Goes on with the snapshot, because all of the prefix is on this disk.
    pub(super) fn on_staged(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        number: u64,
        segments: &[SegmentMeta],
    ) {
        let feed = self.open.get_mut(&replica).filter(|it| it.given.number == number);
        let Some(feed) = feed else { return };
        feed.given.segments = segments.to_vec();
        feed.at = At::Staged;
        self.begin_fed(core, replica);
    }
}

/// Pieces given to other nodes.
impl Feeds {
    /// Takes a frame's questions and pieces of compacted logs.
    pub(crate) fn on_prefixes(&mut self, core: &mut Core, repairs: &mut Repairs, frame: &Frame) {
        for wanted in &frame.prefixes_wanted {
            self.serve_prefix(core, repairs, frame.broker_id, frame.directory_id, wanted);
        }
        for given in &frame.prefixes_given {
            self.on_prefix_given(core, frame.broker_id, given);
        }
    }

    fn serve_prefix(
        &mut self,
        core: &mut Core,
        repairs: &mut Repairs,
        broker_id: i32,
        directory_id: Uuid,
        wanted: &PrefixWanted,
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
        let ticks = core.peers.ticks();
        let partition = here.and_then(|replica| core.partitions.get_mut(&replica));
        let Some(partition) = partition.filter(|it| it.group.failure().is_none()) else { return };
        let compacted = partition.compacted();
        let (replica, log_start) = (partition.group.id(), partition.log_start());
        let is_it = compacted.index == wanted.compaction || sabotage::is(Bug::GivenMixed);
        if !is_it || wanted.offset < 0 {
            let (nonce, compaction) = (wanted.nonce, compacted.index);
            let refusal = PrefixGiven { nonce, compaction, ..PrefixGiven::default() };
            core.peers.frame_to(broker_id).prefixes_given.push(refusal);
            return;
        }
        partition.note_fed(ticks + FED_TICKS);
        let (nonce, compaction, below) = (wanted.nonce, compacted.index, compacted.below);
        if wanted.offset < log_start || wanted.offset >= below {
            let (is_last, batches) = (wanted.offset >= below, Bytes::new());
            let given = PrefixGiven { nonce, compaction, is_last, log_start, batches };
            core.peers.frame_to(broker_id).prefixes_given.push(given);
            return;
        }
        let ticket = repairs.next_ticket();
        self.serving.insert(ticket, Serving { broker_id, nonce, compaction, below });
        let read = ReadLog {
            replica,
            from: wanted.offset,
            pass: 0,
            end: below,
            bytes_max: PIECE_BYTES,
            peer: Some(ReplicaId(wanted.replica)),
            ticket,
            made_by: MadeBy::Compaction(compaction),
        };
        core.read_for_follower(group, read, Some(ANSWER_TICKS));
    }

    /// Sends a piece that was read for another node's replica.
    pub(crate) fn on_prefix_read(&mut self, core: &mut Core, read: LogRead) {
        let Some(serving) = self.serving.remove(&read.ticket) else { return };
        let Serving { broker_id, nonce, compaction, below } = serving;
        let log_start = core.partitions.get(&read.replica).map_or(0, |it| it.log_start());
        let given = match read.batches {
            Ok(batches) => {
                let is_last = batches.is_empty() || last_end(&batches) >= below;
                PrefixGiven { nonce, compaction, is_last, log_start, batches }
            }
            Err(why) => {
                tracing::debug!(replica = read.replica.0, why, "cannot read a piece of a feed");
                PrefixGiven { nonce, compaction, log_start, ..PrefixGiven::default() }
            }
        };
        core.counters.prefixes_given += u64::from(!given.batches.is_empty());
        core.peers.frame_to(broker_id).prefixes_given.push(given);
    }
}

/// Returns the whole batches at the beginning whose checksums are right.
fn sound(bytes: &Bytes) -> Bytes {
    let is_sound =
        |batch: &[u8]| Descriptor::of_batch(batch, false).is_ok_and(|it| it.matches(batch));
    let all = duramen_protocol::batch::batches(bytes.clone()).map_while(Result::ok);
    let all = all.take_while(|batch| is_sound(batch.bytes()));
    bytes.slice(..all.map(|batch| batch.bytes().len()).sum::<usize>())
}

fn last_end(bytes: &Bytes) -> i64 {
    let all = duramen_protocol::batch::batches(bytes.clone()).map_while(Result::ok);
    all.last().map_or(0, |batch| batch.header().end_offset())
}
