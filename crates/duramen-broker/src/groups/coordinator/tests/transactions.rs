//! Offsets that transactions commit.

use duramen_protocol::messages::TxnOffsetCommitRequest;
use duramen_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};

use super::*;
use crate::prng::Prng;

impl Play {
    fn commit_in(&mut self, producer_id: i64, group: &str, place: (&str, i32, i64)) -> RequestKey {
        let key = self.key();
        let (topic, partition_index, committed_offset) = place;
        let partitions = vec![TxnOffsetCommitRequestPartition {
            partition_index,
            committed_offset,
            ..Default::default()
        }];
        let topics = vec![TxnOffsetCommitRequestTopic { name: topic.to_owned(), partitions }];
        let request = TxnOffsetCommitRequest {
            group_id: group.to_owned(),
            producer_id,
            topics,
            ..TxnOffsetCommitRequest::default()
        };
        let allowed = |_: &str, _| Ok(Uuid::ZERO);
        self.coordinator.txn_offset_commit(&self.rules.clone(), key, request, allowed, self.now);
        self.settle();
        key
    }

    fn is_pending(&mut self, group: &str) -> Vec<i32> {
        self.is_stable = true;
        let key = self.fetch_as(group, None);
        self.is_stable = false;
        let answer = &self.fetched[&key];
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let unstable = ErrorCode::UnstableOffsetCommit.code();
        let pending = partitions.filter(|it| it.error_code == unstable);
        pending.map(|it| it.partition_index).collect()
    }
}

#[test]
fn an_offset_of_a_transaction_counts_when_it_commits() {
    let mut play = Play::new();
    play.commit("g", &[("t", 0, 1)]);
    let asked = play.commit_in(7, "g", ("t", 0, 5));
    assert!(play.replies.contains_key(&asked), "it is durable");
    assert_eq!(play.offsets("g"), [offset("t", 0, 1)], "for whoever takes what may change");
    assert_eq!(play.is_pending("g"), [0]);
    play.check_log();
    play.mark(8, true);
    assert_eq!(play.is_pending("g"), [0], "another producer's end is not its own");
    play.mark(7, true);
    assert_eq!((play.offsets("g"), play.is_pending("g")), (vec![offset("t", 0, 5)], vec![]));
    play.commit_in(7, "g", ("t", 0, 6));
    play.commit_in(7, "new", ("t", 1, 6));
    play.mark(7, false);
    assert_eq!(play.offsets("g"), [offset("t", 0, 5)]);
    assert_eq!(play.offsets("new"), []);
    play.check_log();
}

#[test]
fn of_two_transactions_the_later_record_counts_whichever_commits_last() {
    let mut play = Play::new();
    play.commit_in(1, "g", ("t", 0, 1));
    play.commit_in(2, "g", ("t", 0, 2));
    play.mark(2, true);
    play.mark(1, true);
    assert_eq!(play.offsets("g"), [offset("t", 0, 2)]);
    play.commit_in(1, "g", ("t", 0, 3));
    play.commit("g", &[("t", 0, 4)]);
    play.mark(1, true);
    assert_eq!(play.offsets("g"), [offset("t", 0, 4)], "a plain commit is later, too");
    play.check_log();
}

#[test]
fn what_is_deleted_stays_deleted_when_a_transaction_commits() {
    let mut play = Play::new();
    play.commit_in(1, "g", ("t", 0, 1));
    let key = play.key();
    play.coordinator.delete_group(key, 0, "g");
    play.settle();
    assert_eq!(play.deleted[&key], ErrorCode::None);
    play.mark(1, true);
    assert_eq!(play.offsets("g"), []);
    play.check_log();
}

#[test]
fn an_open_transaction_keeps_its_records_from_being_trimmed() {
    let mut play = Play::new();
    play.commit_in(1, "g", ("t", 0, 1));
    play.commit("g", &[("t", 1, 1)]);
    let end = play.end;
    while play.coordinator.renew(end, 1000).is_some() {
        play.settle();
    }
    assert_eq!(play.coordinator.live().first(), Some(0));
    play.mark(1, true);
    while play.coordinator.renew(end, 1000).is_some() {
        play.settle();
    }
    assert!(play.coordinator.live().first() >= Some(end));
    play.check_log();
}

#[test]
fn what_is_written_anew_does_not_outlast_what_a_transaction_was_to_commit() {
    let mut play = Play::new();
    play.commit("g", &[("t", 0, 1), ("t", 1, 1)]);
    play.commit_in(1, "g", ("t", 0, 2));
    let end = play.end;
    while play.coordinator.renew(end, 1000).is_some() {
        play.settle();
    }
    play.mark(1, true);
    assert_eq!(play.offsets("g"), [offset("t", 0, 2), offset("t", 1, 1)]);
    play.check_log();
}

/// The model keeps the log, and says what it means by reading all of it.
#[test]
fn transactions_and_plain_commits_by_chance_agree_with_the_log() {
    for seed in 0..200 {
        let mut chance = Prng::stream(seed, 0);
        let mut play = Play::new();
        let mut open = std::collections::BTreeSet::new();
        for step in 0..60 {
            let producer = i64::try_from(chance.below(3)).expect("small");
            let group = ["g", "h"][usize::from(chance.below(2) == 0)];
            let partition = i32::try_from(chance.below(3)).expect("small");
            match chance.below(6) {
                0 => {
                    play.commit(group, &[("t", partition, step)]);
                }
                1 | 2 => {
                    play.commit_in(producer, group, ("t", partition, step));
                    open.insert(producer);
                }
                3 => {
                    play.mark(producer, chance.below(2) == 0);
                    open.remove(&producer);
                }
                4 => {
                    let end = play.end;
                    play.coordinator.renew(end, 100);
                    play.settle();
                }
                _ => {
                    let reloaded = play.reloaded();
                    play.coordinator = reloaded;
                    play.coordinator.loaded(&play.rules.clone(), play.now);
                    play.settle();
                }
            }
            play.check_log();
            for group in ["g", "h"] {
                let mut meant = BTreeMap::new();
                let mut pending = std::collections::BTreeSet::new();
                for (at, record) in &play.log {
                    let GroupRecord::Offset { key, value } = record else { continue };
                    if key.group.as_ref() != group {
                        continue;
                    }
                    let counts = match play.transactors.get(at) {
                        None => true,
                        Some(id) => {
                            let mut later = play.markers.range(at..);
                            let end = later.find(|(_, marker)| marker.0 == *id);
                            if end.is_none() {
                                pending.insert(key.partition);
                            }
                            end.is_some_and(|(_, marker)| marker.1)
                        }
                    };
                    if counts {
                        meant.insert(key.partition, value.as_ref().map(|it| it.offset));
                    }
                }
                let told = play.offsets(group);
                let told: BTreeMap<_, _> =
                    told.into_iter().map(|(_, partition, offset)| (partition, offset)).collect();
                let meant = meant.into_iter().filter_map(|(it, offset)| Some((it, offset?)));
                assert_eq!(told, meant.collect(), "seed {seed}: {group}");
                let told: std::collections::BTreeSet<_> =
                    play.is_pending(group).into_iter().collect();
                assert_eq!(told, pending, "seed {seed}: {group}");
            }
        }
    }
}
