use duramen_protocol::ErrorCode;

use crate::event::ConnectionId;

use super::harness::{Harness, batch, idempotent, produce_request};

/// A node whose disk stands still, with as much on its way there as it takes.
fn full() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let large = "x".repeat((1 << 20) - 100);
    let other = ConnectionId(9);
    it.enqueue(other, &produce_request("t", batch(&[&large]), -1).into(), 9);
    it.run();
    it
}

fn timed_out(it: &mut Harness, id: i32) -> bool {
    let produced = it.produced(id);
    produced.is_some_and(|it| it.error_code == ErrorCode::RequestTimedOut.code())
}

#[test]
fn a_produce_that_is_not_taken_in_within_its_time_is_told_so_and_not_appended() {
    let mut it = full();
    let mut request = produce_request("t", idempotent(5, 0, 0, &["a"]), -1);
    request.timeout_ms = 5_000;
    let id = it.send(request.clone(), 9);
    assert_eq!(it.node.metrics().stalls, 1);
    it.pass_ms(4_999);
    assert!(it.produced(id).is_none());
    it.pass_ms(2);
    assert!(timed_out(&mut it, id));
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
    let id = it.send(request, 9);
    assert_eq!(it.produced(id).expect("answered").base_offset, 1, "the retry is the first");
    assert_eq!(it.node.metrics().parked, 0);
}

#[test]
fn the_time_a_produce_was_stalled_counts_towards_its_timeout() {
    let mut it = full();
    let mut request = produce_request("t", batch(&["a"]), -1);
    request.timeout_ms = 5_000;
    let id = it.send(request, 9);
    it.pass_ms(4_000);
    // The first batch is on disk now, and the second on its way.
    it.persist();
    it.run();
    assert_eq!(it.node.metrics().parked, 1);
    it.pass_ms(1_001);
    assert!(timed_out(&mut it, id));
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!(it.fetch("t", 0).high_watermark, 2, "the append stays");
}

#[test]
fn a_stalled_produce_without_an_answer_hangs_up_in_the_end() {
    let mut it = full();
    it.send(produce_request("t", batch(&["a"]), 0), 9);
    it.pass_ms(30_001);
    assert!(it.closed().expect("closed").contains("REQUEST_TIMED_OUT"));
}

#[test]
fn a_stalled_produce_of_a_closed_connection_is_forgotten() {
    let mut it = full();
    let other = ConnectionId(2);
    it.enqueue(other, &produce_request("t", batch(&["a"]), -1).into(), 9);
    assert_eq!(it.node.metrics().parked, 2);
    it.disconnect(other);
    assert_eq!(it.node.metrics().parked, 1);
    it.is_prompt = true;
    it.persist();
    it.run();
    it.pass_ms(60_000);
    assert_eq!(it.fetch("t", 0).high_watermark, 1);
}

#[test]
fn a_produce_that_gives_no_time_gets_that_of_a_sync() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.is_prompt = false;
    let mut request = produce_request("t", batch(&["a"]), -1);
    request.timeout_ms = 0;
    let id = it.send(request, 9);
    it.pass_ms(500);
    it.persist();
    it.run();
    assert_eq!(it.produced(id).expect("answered").error_code, 0);
}
