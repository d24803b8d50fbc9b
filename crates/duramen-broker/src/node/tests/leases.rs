//! Workers, who lease records of a share group without a session.

use duramen_protocol::messages::ListGroupsRequest;
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, batch, produce_request};
use crate::native::{
    Answer, Decision, Lease, Leased, Log, Op, Problem, Settle, Settlement, Target,
};

const FEW: [(&str, &str); 5] = [
    ("share.coordinator.state.topic.num.partitions", "2"),
    ("share.coordinator.state.topic.segment.bytes", "16384"),
    ("offsets.topic.num.partitions", "2"),
    ("group.share.record.lock.duration.ms", "10000"),
    ("group.share.min.record.lock.duration.ms", "10000"),
];

fn node() -> Harness {
    let mut it = Harness::new(&FEW);
    it.create("t", &[]);
    it
}

fn target(partition: i32) -> Target {
    Target::Log(Log { topic: "t".to_owned(), partition })
}

fn lease(worker: &str, records: i64, wait_ms: i32) -> Op {
    let (group, worker) = ("g".to_owned(), worker.to_owned());
    Op::Lease(Lease { target: target(-1), group, worker, records, bytes: 1 << 20, wait_ms })
}

fn settle(worker: &str, offset: i64, deliveries: i16, decision: Decision) -> Op {
    Op::Settle(Settle {
        target: target(0),
        group: "g".to_owned(),
        worker: worker.to_owned(),
        settlements: vec![Settlement { offset, deliveries, decision }],
    })
}

fn answer(it: &mut Harness, number: u64) -> Result<Answer, Problem> {
    for _ in 0..200 {
        if let Some(answer) = it.answer(number) {
            return answer;
        }
        it.run();
        it.persist();
        it.pass_ms(10);
    }
    panic!("the operation {number} has no answer");
}

fn ask(it: &mut Harness, op: Op) -> Result<Answer, Problem> {
    let number = it.operate(op);
    answer(it, number)
}

fn records(answer: Result<Answer, Problem>) -> Vec<(i64, i16)> {
    match answer {
        Ok(Answer::Leased(Leased { parts, .. })) => {
            parts.into_iter().flat_map(|part| part.records).collect()
        }
        other => panic!("{other:?} is no lease"),
    }
}

fn append(it: &mut Harness, values: &[&str]) {
    it.ask(produce_request("t", batch(values), -1), 9);
}

#[test]
fn the_first_lease_begins_a_group_with_what_is_there_and_each_record_has_one_worker() {
    let mut it = node();
    append(&mut it, &["a", "b", "c"]);
    assert_eq!(records(ask(&mut it, lease("one", 2, 0))), [(0, 1), (1, 1)]);
    assert_eq!(records(ask(&mut it, lease("two", 9, 0))), [(2, 1)]);
    assert_eq!(records(ask(&mut it, lease("two", 9, 0))), []);
    let settled = |offset| Ok(Answer::Settled(offset));
    let by_other = ask(&mut it, settle("two", 0, 1, Decision::Accept));
    assert_eq!(by_other, settled(vec![0]), "another worker has it");
    assert_eq!(ask(&mut it, settle("one", 0, 1, Decision::Accept)), settled(vec![]));
    assert_eq!(ask(&mut it, settle("one", 0, 1, Decision::Accept)), settled(vec![0]), "once");
    assert_eq!(ask(&mut it, settle("one", 1, 1, Decision::Unseen)), settled(vec![]));
    assert_eq!(records(ask(&mut it, lease("one", 9, 0))), [(1, 1)], "it was not seen");
    let later = Decision::Release { delay_ms: 500 };
    assert_eq!(ask(&mut it, settle("one", 1, 1, later)), settled(vec![]));
    assert_eq!(records(ask(&mut it, lease("one", 9, 0))), []);
    it.pass_ms(600);
    assert_eq!(records(ask(&mut it, lease("two", 9, 0))), [(1, 2)]);
    let late = ask(&mut it, settle("one", 1, 1, Decision::Accept));
    assert_eq!(late, settled(vec![1]), "its lease is over");
    it.pass_ms(11_000);
    assert_eq!(records(ask(&mut it, lease("one", 9, 0))), [(1, 3), (2, 2)], "locks have ended");
}

#[test]
fn a_worker_waits_for_records_and_the_share_partition_for_workers() {
    let mut it = node();
    let waiting = it.operate(lease("one", 1, 30_000));
    it.run();
    append(&mut it, &["a"]);
    let found = answer(&mut it, waiting);
    assert_eq!(records(found), [(0, 1)]);
    assert_eq!(ask(&mut it, settle("one", 0, 1, Decision::Accept)), Ok(Answer::Settled(vec![])));
    assert_eq!(it.node.shares.len(), 1, "it stays for the next lease");
    it.pass_ms(61_000);
    assert_eq!(it.node.shares.len(), 0, "nobody wants it");
    append(&mut it, &["b"]);
    assert_eq!(records(ask(&mut it, lease("one", 9, 0))), [(1, 1)], "and what was done stays done");
}

#[test]
fn a_group_of_workers_is_listed_as_a_share_group() {
    let mut it = node();
    append(&mut it, &["a"]);
    assert_eq!(records(ask(&mut it, lease("one", 1, 0))), [(0, 1)]);
    let Response::ListGroups(listed) = it.ask(ListGroupsRequest::default(), 5) else {
        panic!("no list of groups");
    };
    assert_eq!(listed.error_code, ErrorCode::None.code());
    let groups: Vec<_> = listed.groups.iter().map(|it| (&*it.group_id, &*it.group_type)).collect();
    assert_eq!(groups, [("g", "share")]);
}
