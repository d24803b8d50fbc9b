//! # Room card: throttle
//!
//! Purpose:    Kafka's limits of the copies that a node sends to replicas that are not in sync, as for moves.
//! Owns:       meters of what is sent and received; reads for throttled replicas that wait for their turn; the bytes of
//!             those under way.
//! Interface:  [`Core::read_entries`], [`Core::read_for_follower`], [`Core::release_reads`], [`Throttle::on_read`].
//! Invariants: a read waits only if its replica is throttled and not in sync. The average of what is read for throttled
//!             replicas stays within each limit. Without a rate nothing waits.
//! Never:      what a log still has in memory; repair of damaged segments; clients (see `quotas`).
//! Tests:      `node/tests/throttle.rs`.
//! Start at:   [`Core::read_for_follower`].
//!
//! Kafka's followers fetch, and each follower limits itself. Here leaders send. So each leader keeps within its share
//! of a follower's limit: the limit divided by the number of nodes that lead partitions which move there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::Core;
use crate::configs::{FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_REPLICAS};
use crate::event::{LogRead, MadeBy, ReadLog};
use crate::limits::TICK_US;
use crate::metadata_records::ALL_BROKERS;
use crate::raft::{GroupId, PayloadRead};

/// Most bytes of one throttled read, unless one batch has more. The payload of a long message comes piece by piece.
const PIECE_BYTES: u32 = 256 << 10;
/// Ticks after which the node looks again at how many leaders share a follower's limit.
const SHARE_TICKS: u64 = 10;

/// Kafka's default, which sets no limit.
const NO_LIMIT: u64 = i64::MAX.unsigned_abs();

/// Average of bytes a second.
#[derive(Debug, Default)]
struct Meter {
    /// Bytes a second; no limit without one.
    rate: Option<u64>,
    /// When the average of all that was charged is back within the rate.
    free_us: u64,
}

impl Meter {
    fn set_rate(&mut self, rate: Option<u64>) {
        if self.rate != rate {
            *self = Self { rate, free_us: 0 };
        }
    }

    /// Tells whether a read may begin. Reads of one tick may begin together, because the node looks once a tick.
    fn is_free(&self, now_us: u64) -> bool {
        self.rate.is_none() || self.free_us <= now_us.saturating_add(TICK_US)
    }

    fn time_us(&self, bytes: u64) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let us = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
        u64::try_from(us).unwrap_or(u64::MAX)
    }

    fn charge(&mut self, now_us: u64, bytes: u64) {
        self.free_us = self.free_us.max(now_us).saturating_add(self.time_us(bytes));
    }

    /// Corrects a charge once the bytes are known.
    fn correct(&mut self, charged: u64, bytes: u64) {
        self.free_us =
            self.free_us.saturating_add(self.time_us(bytes)).saturating_sub(self.time_us(charged));
    }
}

/// Read that waits for its turn.
#[derive(Debug)]
struct Waiting {
    wanted: ReadLog,
    limits: Limits,
    /// Tick from which on its receiver asks again.
    until_tick: u64,
}

/// Limits that a read keeps within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// That of this node as a leader.
    leader: bool,
    /// That of the follower's node.
    follower: Option<i32>,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    sending: Meter,
    /// True if some node has a limit as a follower.
    are_followers_limited: bool,
    /// This node's shares of the limits of followers for which reads wait.
    receiving: BTreeMap<i32, Meter>,
    /// Tick of the last look at the shares; `None` after a change of settings.
    shared_at: Option<u64>,
    waiting: VecDeque<Waiting>,
    /// Tick of the last look at the reads that wait; `None` if something has changed since.
    looked_at: Option<u64>,
    /// Bytes charged for reads that have begun, by replica and ticket.
    under_way: BTreeMap<(ReplicaId, u64), (Limits, u64)>,
}

impl Throttle {
    fn is_on(&self) -> bool {
        self.sending.rate.is_some() || self.are_followers_limited
    }

    /// Returns this node's share of a follower's limit.
    #[cfg(test)]
    pub(crate) fn share_of(&self, broker_id: i32) -> Option<u64> {
        self.receiving.get(&broker_id)?.rate
    }

    fn is_free(&self, limits: Limits, now_us: u64) -> bool {
        let is_taken = |id| self.receiving.get(&id).is_none_or(|meter| meter.is_free(now_us));
        (!limits.leader || self.sending.is_free(now_us)) && limits.follower.is_none_or(is_taken)
    }

    fn meters(&mut self, limits: Limits) -> impl Iterator<Item = &mut Meter> {
        let sending = limits.leader.then_some(&mut self.sending);
        let receiving = limits.follower.and_then(|id| self.receiving.get_mut(&id));
        sending.into_iter().chain(receiving)
    }

    /// Takes the first read whose limits allow it, and those before it that nobody waits for any more.
    fn next(&mut self, now_us: u64, ticks: u64, late: &mut Vec<ReadLog>) -> Option<ReadLog> {
        self.waiting.retain(|it| {
            let is_late = ticks >= it.until_tick;
            late.extend(is_late.then_some(it.wanted));
            !is_late
        });
        let at = self.waiting.iter().position(|it| self.is_free(it.limits, now_us))?;
        let Waiting { wanted, limits, .. } = self.waiting.remove(at)?;
        let bytes = u64::from(wanted.bytes_max);
        self.meters(limits).for_each(|meter| meter.charge(now_us, bytes));
        self.under_way.insert((wanted.replica, wanted.ticket), (limits, bytes));
        Some(wanted)
    }

    /// Notes how much was read. Returns the bytes, if the read was throttled.
    pub(crate) fn on_read(&mut self, read: &LogRead) -> u64 {
        let key = (read.replica, read.ticket);
        let Some((limits, charged)) = self.under_way.remove(&key) else { return 0 };
        let bytes = read.batches.as_ref().map_or(0, |it| it.len() as u64);
        self.meters(limits).for_each(|meter| meter.correct(charged, bytes));
        self.looked_at = None;
        bytes
    }
}

impl Core {
    /// Takes changed limits from the settings of all nodes.
    pub(crate) fn take_rates(&mut self) {
        let leader = self.options.settings.leader_throttled_rate.unsigned_abs();
        let mut nodes = self.controller.image.brokers.keys();
        self.throttle.are_followers_limited = nodes.any(|id| self.follower_rate(*id).is_some());
        self.throttle.sending.set_rate(Some(leader).filter(|rate| *rate < NO_LIMIT));
        (self.throttle.shared_at, self.throttle.looked_at) = (None, None);
    }

    /// Returns the limit of a node as a follower: its own, or else that of all nodes.
    fn follower_rate(&self, broker_id: i32) -> Option<u64> {
        let of = |id| self.controller.image.broker_configs(id).get(FOLLOWER_RATE);
        let rate = of(broker_id).or_else(|| of(ALL_BROKERS))?.parse::<u64>().ok()?;
        Some(rate).filter(|rate| *rate < NO_LIMIT)
    }

    /// Reads entries for the followers of a replica here.
    pub(crate) fn read_entries(
        &mut self,
        group: GroupId,
        replica: ReplicaId,
        reads: &[PayloadRead],
    ) {
        for wanted in reads {
            let read = ReadLog {
                replica,
                from: wanted.from,
                pass: wanted.pass,
                end: wanted.end,
                bytes_max: wanted.bytes,
                peer: Some(ReplicaId(wanted.peer)),
                ticket: wanted.ticket,
                made_by: MadeBy::Anything,
            };
            self.read_for_follower(group, read, None);
        }
    }

    /// Reads batches that a follower lacks, now or within the limits. `late_ticks` is the time after which the follower
    /// asks again, if it does.
    pub(crate) fn read_for_follower(
        &mut self,
        group: GroupId,
        wanted: ReadLog,
        late_ticks: Option<u64>,
    ) {
        let until_tick = late_ticks.map_or(u64::MAX, |late| self.peers.ticks() + late);
        match self.limits_of(group, &wanted) {
            Some(limits) => {
                let receiving = &self.throttle.receiving;
                if limits.follower.is_some_and(|id| !receiving.contains_key(&id)) {
                    self.throttle.shared_at = None;
                }
                self.throttle.looked_at = None;
                let bytes_max = wanted.bytes_max.min(PIECE_BYTES);
                let wanted = ReadLog { bytes_max, ..wanted };
                self.throttle.waiting.push_back(Waiting { wanted, limits, until_tick });
            }
            None => self.peers.read(wanted),
        }
    }

    /// Returns the limits of a read, if it has any.
    fn limits_of(&self, group: GroupId, wanted: &ReadLog) -> Option<Limits> {
        if !self.throttle.is_on() {
            return None;
        }
        let placed = self.placed(group, wanted.peer?.0)?;
        let topic = self.controller.image.topic(Uuid(group.topic_id))?;
        let leader = self.partitions.get(&wanted.replica)?;
        if self.keeps_up(leader, &placed) {
            return None;
        }
        let names = |list: &str, broker_id: i32| {
            let list = topic.configs.get(list).map_or("", String::as_str);
            let is_it = |word: &str| {
                let pair = word.trim().split_once(':');
                let pair = pair.and_then(|(at, id)| Some((at.parse().ok()?, id.parse().ok()?)));
                pair == Some((group.partition, broker_id))
            };
            list == "*" || list.split(',').any(is_it)
        };
        let is_limited = self.follower_rate(placed.broker_id).is_some()
            && names(FOLLOWER_REPLICAS, placed.broker_id);
        let limits = Limits {
            leader: self.throttle.sending.rate.is_some()
                && names(LEADER_REPLICAS, self.options.facts.broker_id),
            follower: is_limited.then_some(placed.broker_id),
        };
        (limits.leader || limits.follower.is_some()).then_some(limits)
    }

    /// Begins the reads that the limits allow by now. Returns those that came too late.
    pub(crate) fn release_reads(&mut self) -> Vec<ReadLog> {
        let mut late = Vec::new();
        let (now_us, ticks) = (self.now.mono_us, self.peers.ticks());
        if self.throttle.waiting.is_empty() || self.throttle.looked_at == Some(ticks) {
            return late;
        }
        self.throttle.looked_at = Some(ticks);
        if self.throttle.shared_at.is_none_or(|at| ticks >= at + SHARE_TICKS) {
            self.share_limits();
        }
        while let Some(wanted) = self.throttle.next(now_us, ticks, &mut late) {
            self.peers.read(wanted);
        }
        late
    }

    /// Divides the limit of each follower by the number of nodes that send to it.
    fn share_limits(&mut self) {
        let image = &self.controller.image;
        let mut senders: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
        for ((topic_id, partition), moved) in &image.reassignments {
            let Some(topic) = image.topic(*topic_id) else { continue };
            let Some((leader, _)) = self.leader_of(topic, *partition) else { continue };
            let placed = topic.replicas(*partition).unwrap_or_default();
            for new in placed.iter().filter(|it| !moved.origin.contains(&it.peer_id)) {
                senders.entry(new.broker_id).or_default().insert(leader);
            }
        }
        let followers: BTreeSet<i32> =
            self.throttle.waiting.iter().filter_map(|it| it.limits.follower).collect();
        for id in followers {
            let count = senders.get(&id).map_or(1, |it| it.len().max(1)) as u64;
            let rate = self.follower_rate(id).map(|rate| rate / count);
            self.throttle.receiving.entry(id).or_default().set_rate(rate);
        }
        self.throttle.shared_at = Some(self.peers.ticks());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDING: Limits = Limits { leader: true, follower: None };

    fn throttle(rate: u64, until_ticks: &[u64]) -> Throttle {
        let mut throttle = Throttle::default();
        throttle.sending.set_rate(Some(rate));
        for (ticket, until_tick) in (1..).zip(until_ticks.iter().copied()) {
            let wanted = ReadLog {
                replica: ReplicaId(1),
                from: 0,
                pass: 0,
                end: 10,
                bytes_max: 1000,
                peer: Some(ReplicaId(2)),
                ticket,
                made_by: MadeBy::Anything,
            };
            throttle.waiting.push_back(Waiting { wanted, limits: SENDING, until_tick });
        }
        throttle
    }

    fn ticket(read: Option<ReadLog>) -> Option<u64> {
        read.map(|it| it.ticket)
    }

    #[test]
    fn a_read_that_nobody_waits_for_any_more_is_given_back() {
        let mut throttle = throttle(1, &[u64::MAX, 20, u64::MAX]);
        let mut late = Vec::new();
        assert_eq!(ticket(throttle.next(0, 0, &mut late)), Some(1));
        assert_eq!((ticket(throttle.next(0, 19, &mut late)), late.len()), (None, 0));
        assert_eq!(ticket(throttle.next(0, 20, &mut late)), None);
        assert_eq!(late.iter().map(|it| it.ticket).collect::<Vec<_>>(), [2]);
        throttle.sending.set_rate(Some(1 << 30));
        assert_eq!(ticket(throttle.next(0, 20, &mut late)), Some(3));
    }

    #[test]
    fn what_was_read_counts_and_not_what_was_asked_for() {
        let mut throttle = throttle(1000, &[u64::MAX; 4]);
        let mut late = Vec::new();
        let first = throttle.next(0, 0, &mut late).expect("nothing was read yet");
        assert_eq!(ticket(throttle.next(TICK_US, 0, &mut late)), None, "it may be 1000 bytes");
        let bytes = |count| Ok(vec![0; count].into());
        assert_eq!(throttle.on_read(&first.answer(bytes(10))), 10);
        let second = throttle.next(TICK_US, 0, &mut late).expect("it was little");
        // One batch may be longer than what was asked for.
        assert_eq!(throttle.on_read(&second.answer(bytes(5000))), 5000);
        assert_eq!(ticket(throttle.next(4_000_000, 0, &mut late)), None);
        let third = throttle.next(5_100_000, 0, &mut late).expect("the average is right again");
        assert_eq!(throttle.on_read(&third.answer(Err("broken".to_owned()))), 0);
        assert_eq!(ticket(throttle.next(5_100_000, 0, &mut late)), Some(4), "it read nothing");
        let other = ReadLog { ticket: 9, ..third };
        assert_eq!(throttle.on_read(&other.answer(bytes(7))), 0, "it was not throttled");
    }
}
