//! What a compaction left of a log is given to a replica that lacks it, before its log begins anew. Storage is the
//! model's: it compacts nothing, and says that it did.

use bytes::Bytes;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_storage::Descriptor;
use duramen_storage::op::{Compacted, Content, Done, ReplicaId, SegmentMeta};
use duramen_storage::staging::Stage;

use super::harness::{WALL_MS, new_topic};
use super::trio::{TICK_MS, Trio};
use crate::event::Event;

const SETTINGS: &[(&str, &str)] =
    &[("auto.leader.rebalance.enable", "false"), ("log.retention.check.interval.ms", "1000")];
/// Two such batches are more than one piece.
const LARGE: usize = 200 * 1024;

/// A cluster in which one node was away while a log was compacted.
struct Fed {
    trio: Trio,
    leader: usize,
    away: usize,
    /// Of the node that is away.
    replica: ReplicaId,
    compacted: Compacted,
}

fn keyed(timestamp: i64, key: &str, bytes: usize) -> Bytes {
    let value = vec![b'x'; bytes];
    let (key, value) = (Some(key.as_bytes()), Some(&value[..]));
    let mut batch = BatchBuilder::new();
    batch.push(&NewRecord { timestamp, key, value, ..NewRecord::default() }).expect("good");
    batch.build().expect("a good batch")
}

impl Fed {
    /// The node is back, and was told where its log is to begin.
    fn new() -> Self {
        let mut trio = Trio::new(SETTINGS);
        let configs = [("cleanup.policy", "compact"), ("segment.ms", "1000")];
        let topic = CreatableTopic { replication_factor: 3, ..new_topic("t", 1, &configs) };
        let row = trio.try_create(trio.controller(), topic).topics.remove(0);
        assert_eq!(row.error_code, 0, "{:?}", row.error_message);
        trio.pass_ms(3000);
        let leader = trio.leader("t", 0).expect("led");
        let is_free = |at: &usize| *at != leader && *at != trio.controller();
        let away = (0..3).find(is_free).expect("two are taken at most");
        let replica = trio.replica(away, "t", 0);
        trio.cut.insert(away);
        let mut fed = Self { trio, leader, away, replica, compacted: Compacted::default() };
        for key in ["a", "b"] {
            fed.produce(key, LARGE);
        }
        fed.trio.pass_ms(2000);
        fed.produce("c", 10);
        fed.compacted = fed.compact();
        assert_eq!(fed.compacted.below, 2);
        fed.trio.cut.clear();
        fed.trio.pass_ms(1000);
        fed
    }

    fn produce(&mut self, key: &str, bytes: usize) {
        let batch = keyed(self.trio.now.wall_ms, key, bytes);
        let part = self.trio.produce(self.leader, "t", batch);
        assert_eq!(part.error_code, 0);
    }

    /// The leader decides a compaction, and those that are there say that they did it.
    fn compact(&mut self) -> Compacted {
        for _ in 0..400 {
            if !self.trio.nodes[self.leader].compactions.is_empty() {
                break;
            }
            self.trio.pass_ms(TICK_MS);
        }
        let order = self.trio.nodes[self.leader].compactions.last().expect("it was decided");
        let compacted = order.compacted;
        self.trio.pass_ms(1000);
        self.say_compacted(compacted);
        compacted
    }

    fn say_compacted(&mut self, compacted: Compacted) {
        for at in (0..3).filter(|at| *at != self.away) {
            let replica = self.trio.replica(at, "t", 0);
            self.trio.nodes[at].compactions.clear();
            let entries = &self.trio.nodes[at].store.replicas[&replica].entries;
            let first = entries.iter().find(|it| matches!(it.content, Content::Batch(_)));
            let first_index = first.expect("there are some").index;
            let made =
                SegmentMeta { base_offset: 0, first_index, size: 10, max_timestamp: WALL_MS };
            let done = Some((compacted, vec![made]));
            self.trio.nodes[at].step(Event::Storage(Done::Compacted { replica, done }));
        }
        self.trio.talk();
    }

    /// What the node that was away wants of its disk, since the last time.
    fn stages(&mut self) -> Vec<Stage> {
        std::mem::take(&mut self.trio.nodes[self.away].stages)
    }

    /// The one piece that it wants to put to others, and whether it is the last.
    fn piece(&mut self) -> (u64, Bytes, bool) {
        let mut all = self.stages();
        match all.pop() {
            Some(Stage::Put { number, batches, is_last, .. }) if all.is_empty() => {
                (number, batches, is_last)
            }
            other => panic!("{other:?} behind {all:?}"),
        }
    }

    fn begun(&mut self) -> Compacted {
        let mut all = self.stages();
        assert!(all.len() >= 2, "{all:?}");
        match all.remove(0) {
            Stage::Begin { given, .. } => {
                self.trio.nodes[self.away].stages = all;
                given.compacted
            }
            other => panic!("{other:?}"),
        }
    }

    /// Its disk has a piece.
    fn put(&mut self, number: u64, next: Option<i64>) {
        let done = Done::Put { replica: self.replica, number, next };
        self.trio.nodes[self.away].step(Event::Storage(done));
        self.trio.talk();
    }

    /// The offset at which its log begins as Raft knows it.
    fn begins(&self) -> i64 {
        self.trio.nodes[self.away].store.replicas[&self.replica].begins.2
    }
}

fn end_of(batches: &Bytes) -> i64 {
    Descriptor::of_batch(batches, false).expect("a batch").end_offset()
}

#[test]
fn a_log_begins_anew_only_when_what_was_before_is_on_the_disk() {
    let mut fed = Fed::new();
    assert_eq!(fed.begun(), fed.compacted);
    let (number, first, is_last) = fed.piece();
    assert_eq!((end_of(&first), is_last), (1, false));
    fed.put(number, Some(1));
    let (number, second, is_last) = fed.piece();
    assert_eq!((end_of(&second), is_last), (2, true));
    // It hears more snapshots meanwhile, and does not listen to them.
    fed.trio.pass_ms(8000);
    assert_eq!(fed.begins(), 0);
    assert_eq!(fed.stages(), []);
    let segments = vec![SegmentMeta { base_offset: 0, first_index: 2, size: 9, max_timestamp: 0 }];
    let staged = Done::Staged { replica: fed.replica, number, segments };
    fed.trio.nodes[fed.away].step(Event::Storage(staged));
    fed.trio.pass_ms(8000);
    assert_eq!(fed.begins(), 2);
    let partition = &fed.trio.nodes[fed.away].node.core.partitions[&fed.replica];
    assert_eq!((partition.log_start(), partition.compacted()), (0, fed.compacted));
    assert_eq!(partition.committed(), 3, "it goes on behind it");
    let given: u64 = fed.trio.nodes.iter().map(|it| it.node.metrics().prefixes_given).sum();
    assert_eq!(given, 2);
}

#[test]
fn nothing_goes_with_what_another_compaction_left() {
    let mut fed = Fed::new();
    assert_eq!(fed.begun(), fed.compacted);
    let (number, ..) = fed.piece();
    let next = Compacted { index: fed.compacted.index + 1, ..fed.compacted };
    fed.say_compacted(next);
    fed.put(number, Some(1));
    assert_eq!(fed.stages(), [Stage::Drop { replica: fed.replica }]);
    // A snapshot that names the other one comes, and all is fetched once more.
    fed.trio.pass_ms(20_000);
    assert_eq!(fed.begun(), next);
    let (number, first, _) = fed.piece();
    assert_eq!(end_of(&first), 1);
    // What cannot be put to the others leaves nothing either, and is asked for again.
    fed.put(number, None);
    assert_eq!(fed.stages(), [Stage::Drop { replica: fed.replica }]);
    fed.trio.pass_ms(20_000);
    assert_eq!(fed.begun(), next);
    assert_eq!(fed.begins(), 0);
}

#[test]
fn no_compaction_is_decided_while_somebody_is_given_what_the_last_one_left() {
    let mut fed = Fed::new();
    fed.produce("a", LARGE);
    fed.produce("b", LARGE);
    fed.trio.pass_ms(2000);
    fed.produce("c", 10);
    fed.trio.pass_ms(5000);
    assert!(fed.trio.nodes[fed.leader].compactions.is_empty());
    // Nothing more is asked for: whoever wanted it may be dead.
    let next = fed.compact();
    assert!(next.below > fed.compacted.below, "{next:?}");
}

#[test]
fn a_piece_that_was_harmed_or_could_not_be_read_is_asked_for_again() {
    let mut fed = Fed::new();
    assert_eq!(fed.begun(), fed.compacted);
    let (number, ..) = fed.piece();
    fed.trio.nodes[fed.leader].are_reads_broken = true;
    fed.put(number, Some(1));
    fed.trio.pass_ms(3000);
    assert_eq!(fed.stages(), []);
    fed.trio.nodes[fed.leader].are_reads_broken = false;
    fed.trio.pass_ms(3000);
    let (_, second, is_last) = fed.piece();
    assert_eq!((end_of(&second), is_last), (2, true));
}
