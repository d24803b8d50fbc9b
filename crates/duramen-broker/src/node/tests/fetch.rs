use duramen_protocol::messages::fetch::FetchPartition;
use duramen_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use duramen_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use duramen_protocol::messages::{
    FetchRequest, FetchResponse, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, batch, bytes_of, fetch_request, new_topic};

fn fetched(it: &mut Harness, id: i32) -> Option<FetchResponse> {
    match it.response(id)? {
        Response::Fetch(response) => Some(response),
        other => panic!("{other:?}"),
    }
}

fn patient(topic: &str, offset: i64) -> FetchRequest {
    FetchRequest { max_wait_ms: 500, ..fetch_request(topic, offset) }
}

#[test]
fn a_long_poll_waits_and_is_woken_by_the_commit() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let id = it.send(patient("t", 0), 12);
    it.pass_ms(499);
    assert!(fetched(&mut it, id).is_none());
    let connection = super::super::ConnectionId(2);
    let produce = super::harness::produce_request("t", batch(&["a"]), -1);
    it.enqueue(connection, &produce.into(), 9);
    it.run();
    let response = fetched(&mut it, id).expect("woken");
    let data = &response.responses[0].partitions[0];
    assert_eq!((data.high_watermark, bytes_of(data).is_empty()), (1, false));
}

#[test]
fn a_long_poll_ends_empty_and_without_an_error() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let id = it.send(patient("t", 0), 12);
    it.pass_ms(500);
    let response = fetched(&mut it, id).expect("over");
    let data = &response.responses[0].partitions[0];
    assert_eq!((data.error_code, data.high_watermark), (0, 0));
    assert!(bytes_of(data).is_empty());
    assert_eq!(it.node.metrics().parked, 0);
}

#[test]
fn a_fetch_waits_until_its_minimum_is_there() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let size = i32::try_from(batch(&["a"]).len()).expect("small");
    let id = it.send(FetchRequest { min_bytes: 2 * size, ..patient("t", 0) }, 12);
    let other = super::super::ConnectionId(2);
    for n in 0..2 {
        assert!(fetched(&mut it, id).is_none(), "after {n}");
        let produce = super::harness::produce_request("t", batch(&["a"]), -1);
        it.enqueue(other, &produce.into(), 9);
        it.run();
    }
    assert!(fetched(&mut it, id).is_some());
}

#[test]
fn a_minimum_above_what_an_answer_may_have_is_not_waited_for() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let id = it.send(FetchRequest { min_bytes: 1 << 20, max_bytes: 10, ..patient("t", 0) }, 12);
    assert!(
        !bytes_of(&fetched(&mut it, id).expect("at once").responses[0].partitions[0]).is_empty()
    );
}

#[test]
fn offsets_outside_the_log_and_wrong_epochs_are_told_at_once() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let mut code = |offset, epoch| {
        let mut request = patient("t", offset);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        let id = it.send(request, 12);
        let response = fetched(&mut it, id);
        response.map(|it| ErrorCode::from_code(it.responses[0].partitions[0].error_code))
    };
    assert_eq!(code(2, -1), Some(Some(ErrorCode::OffsetOutOfRange)));
    assert_eq!(code(-5, -1), Some(Some(ErrorCode::OffsetOutOfRange)));
    assert_eq!(code(0, 1), Some(Some(ErrorCode::FencedLeaderEpoch)));
    assert_eq!(code(0, 1000), Some(Some(ErrorCode::UnknownLeaderEpoch)));
    assert_eq!(code(0, 2), Some(Some(ErrorCode::None)));
}

#[test]
fn a_partition_that_is_not_there_does_not_end_the_wait_for_one_that_is() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let mut request = patient("t", 0);
    let missing = FetchPartition { partition: 7, ..FetchPartition::default() };
    request.topics[0].partitions.push(missing.clone());
    let id = it.send(request, 12);
    it.pass_ms(499);
    assert!(fetched(&mut it, id).is_none());
    it.pass_ms(1);
    let response = fetched(&mut it, id).expect("over");
    let codes: Vec<_> = response.responses[0].partitions.iter().map(|it| it.error_code).collect();
    assert_eq!(codes, [0, 3]);
    let mut request = patient("t", 0);
    request.topics[0].partitions = vec![missing];
    let id = it.send(request, 12);
    assert!(fetched(&mut it, id).is_some(), "there is nothing to wait for");
}

#[test]
fn the_first_batch_comes_whole_however_little_is_asked_for() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let mut request = fetch_request("t", 0);
    request.max_bytes = 0;
    request.isolation_level = 1;
    request.topics[0].partitions[0].partition_max_bytes = 0;
    let id = it.send(request, 12);
    let response = fetched(&mut it, id).expect("answered");
    let data = &response.responses[0].partitions[0];
    assert_eq!(bytes_of(data).len(), batch(&["a"]).len());
    assert_eq!(data.aborted_transactions, Some(Vec::new()));
}

#[test]
fn an_incremental_session_tells_only_what_changed() {
    let mut it = Harness::new(&[]);
    let made = it.try_create(new_topic("t", 3, &[]));
    assert_eq!(made.topics[0].error_code, 0);
    let mut request = fetch_request("t", 0);
    request.session_epoch = 0;
    request.topics[0].partitions = (0..3)
        .map(|partition| FetchPartition {
            partition,
            partition_max_bytes: 1000,
            ..FetchPartition::default()
        })
        .collect();
    let id = it.send(request, 12);
    let first = fetched(&mut it, id).expect("answered");
    assert_eq!(first.responses[0].partitions.len(), 3);
    let next = |epoch| FetchRequest {
        session_id: first.session_id,
        session_epoch: epoch,
        ..FetchRequest::default()
    };
    let id = it.send(next(1), 12);
    assert!(fetched(&mut it, id).expect("answered").responses.is_empty());
    it.produce("t", batch(&["a"]));
    let id = it.send(next(2), 12);
    let third = fetched(&mut it, id).expect("answered");
    assert_eq!(third.responses[0].partitions.len(), 1);
    assert!(!bytes_of(&third.responses[0].partitions[0]).is_empty());
    let id = it.send(next(2), 12);
    let stale = fetched(&mut it, id).expect("answered").error_code;
    assert_eq!(stale, ErrorCode::InvalidFetchSessionEpoch.code());
}

/// A session of all partitions of `t`, by id.
fn session_by_id(it: &mut Harness, partitions: i32) -> i32 {
    let made = it.try_create(new_topic("t", partitions, &[]));
    assert_eq!(made.topics[0].error_code, 0);
    let mut request = fetch_request("", 0);
    request.session_epoch = 0;
    request.topics[0].topic_id = made.topics[0].topic_id;
    let partition = |partition| FetchPartition {
        partition,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    request.topics[0].partitions = (0..partitions).map(partition).collect();
    let id = it.send(request, 13);
    fetched(it, id).expect("answered").session_id
}

fn next(session_id: i32, session_epoch: i32, max_wait_ms: i32) -> FetchRequest {
    FetchRequest { session_id, session_epoch, max_wait_ms, min_bytes: 1, ..FetchRequest::default() }
}

fn codes(response: &FetchResponse) -> Vec<i16> {
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.error_code).collect()
}

#[test]
fn a_session_knows_a_recreated_topic_from_a_deleted_one() {
    let mut it = Harness::new(&[]);
    let session = session_by_id(&mut it, 1);
    let parked = it.send(next(session, 1, 500), 13);
    let other = super::super::ConnectionId(2);
    it.enqueue(other, &super::topics::delete_request("t").into(), 5);
    it.run();
    let woken = fetched(&mut it, parked).expect("woken");
    assert_eq!(codes(&woken), [ErrorCode::UnknownTopicOrPartition.code()]);
    it.create("t", &[]);
    it.produce("t", batch(&["new"]));
    for epoch in 2..4 {
        let id = it.send(next(session, epoch, 0), 13);
        let response = fetched(&mut it, id).expect("answered");
        assert_eq!(codes(&response), [ErrorCode::InconsistentTopicId.code()], "every time");
    }
}

#[test]
fn a_session_that_is_up_to_date_waits_and_is_woken_by_any_of_its_partitions() {
    let mut it = Harness::new(&[]);
    let session = session_by_id(&mut it, 3);
    let other = super::super::ConnectionId(2);
    for epoch in 1..4 {
        let parked = it.send(next(session, 2 * epoch - 1, 500), 13);
        assert!(fetched(&mut it, parked).is_none(), "nothing is new");
        let mut produce = super::harness::produce_request("t", batch(&["a"]), -1);
        produce.topic_data[0].partition_data[0].index = epoch - 1;
        it.enqueue(other, &produce.into(), 9);
        it.run();
        let response = fetched(&mut it, parked).expect("woken");
        assert_eq!(codes(&response), [0]);
        assert_eq!(response.responses[0].partitions[0].partition_index, epoch - 1);
        // It reads on after the record, and what it has read is not told again.
        let mut read = next(session, 2 * epoch, 0);
        let mut topic = fetch_request("", 1).topics.remove(0);
        topic.topic_id = response.responses[0].topic_id;
        topic.partitions[0].partition = epoch - 1;
        read.topics = vec![topic];
        let id = it.send(read, 13);
        assert_eq!(codes(&fetched(&mut it, id).expect("answered")), [0i16; 0]);
    }
    assert!(it.node.core.partitions.values().all(|partition| partition.watchers.len() == 1));
    let mut end = next(session, -1, 0);
    end.topics = fetch_request("t", 0).topics;
    it.send(end, 12);
    assert!(it.node.core.partitions.values().all(|partition| partition.watchers.is_empty()));
}

#[test]
fn a_record_that_was_not_fetched_is_offered_again() {
    let mut it = Harness::new(&[]);
    let session = session_by_id(&mut it, 2);
    it.produce("t", batch(&["a"]));
    for epoch in 1..4 {
        let id = it.send(next(session, epoch, 0), 13);
        let response = fetched(&mut it, id).expect("answered");
        assert!(!bytes_of(&response.responses[0].partitions[0]).is_empty());
    }
}

#[test]
fn a_trimmed_log_is_told_to_its_sessions() {
    let mut it = Harness::new(&[]);
    let session = session_by_id(&mut it, 1);
    it.produce("t", batch(&["a", "b"]));
    let mut read = next(session, 1, 0);
    let mut topic = fetch_request("", 2).topics.remove(0);
    topic.topic_id = it.metadata(&["t"]).topics[0].topic_id;
    read.topics = vec![topic];
    it.send(read, 13);
    let id = it.send(next(session, 2, 0), 13);
    assert!(fetched(&mut it, id).expect("answered").responses.is_empty());
    assert_eq!(super::retention::delete_records(&mut it, 1), (0, 1));
    let id = it.send(next(session, 3, 0), 13);
    let response = fetched(&mut it, id).expect("answered");
    assert_eq!(response.responses[0].partitions[0].log_start_offset, 1);
}

#[test]
fn topic_ids_are_served_and_old_ones_never_are() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a"]));
    let mut request = fetch_request("", 0);
    request.topics[0].topic_id = it.metadata(&["t"]).topics[0].topic_id;
    let id = it.send(request.clone(), 13);
    assert_eq!(fetched(&mut it, id).expect("answered").responses[0].partitions[0].error_code, 0);
    super::topics::delete(&mut it, "t");
    it.create("t", &[]);
    let id = it.send(request, 13);
    let code = fetched(&mut it, id).expect("answered").responses[0].partitions[0].error_code;
    assert_eq!(code, ErrorCode::UnknownTopicId.code());
}

#[test]
fn a_parked_fetch_learns_that_its_topic_is_deleted() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let id = it.send(patient("t", 0), 12);
    let other = super::super::ConnectionId(2);
    let delete = super::topics::delete_request("t");
    it.enqueue(other, &delete.into(), 5);
    it.run();
    let code = fetched(&mut it, id).expect("woken").responses[0].partitions[0].error_code;
    assert_eq!(code, ErrorCode::UnknownTopicOrPartition.code());
}

#[test]
fn a_parked_fetch_by_id_tells_a_deleted_topic_from_one_that_never_was() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let mut request = patient("", 0);
    request.topics[0].topic_id = it.metadata(&["t"]).topics[0].topic_id;
    let mut never = request.topics[0].clone();
    never.topic_id.0[0] ^= 1;
    request.topics.push(never);
    let id = it.send(request, 13);
    let delete = super::topics::delete_request("t");
    it.enqueue(super::super::ConnectionId(2), &delete.into(), 5);
    it.run();
    let told = [ErrorCode::UnknownTopicOrPartition.code(), ErrorCode::UnknownTopicId.code()];
    assert_eq!(codes(&fetched(&mut it, id).expect("woken")), told);
}

fn list(it: &mut Harness, timestamp: i64, version: i16) -> (i16, i64, i32) {
    let partition = ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() };
    let topic = ListOffsetsTopic { name: "t".to_owned(), partitions: vec![partition] };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    match it.ask(request, version) {
        Response::ListOffsets(response) => {
            let part = &response.topics[0].partitions[0];
            (part.error_code, part.offset, part.leader_epoch)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn list_offsets_knows_the_first_the_last_and_what_is_not_there() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    assert_eq!(list(&mut it, 5, 6).1, -1, "an empty log has no time");
    it.produce("t", batch(&["a", "b"]));
    assert_eq!(list(&mut it, -1, 6), (0, 2, 2));
    assert_eq!(list(&mut it, -2, 6), (0, 0, 2));
    assert_eq!(list(&mut it, -4, 8), (0, 0, 2));
    assert_eq!(list(&mut it, -5, 9), (0, -1, -1));
    assert_eq!(list(&mut it, -3, 6).0, ErrorCode::UnsupportedVersion.code());
}

#[test]
fn epochs_end_where_the_next_one_began() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b"]));
    it.restart(&[], 2);
    it.produce("t", batch(&["c"]));
    let mut end = |leader_epoch| {
        let partition = OffsetForLeaderPartition { leader_epoch, ..Default::default() };
        let topic = OffsetForLeaderTopic { topic: "t".to_owned(), partitions: vec![partition] };
        let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
        match it.ask(request, 4) {
            Response::OffsetForLeaderEpoch(response) => {
                let part = &response.topics[0].partitions[0];
                (part.leader_epoch, part.end_offset)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end(2), (2, 2));
    assert_eq!(end(3), (3, 3));
    assert_eq!(end(4), (-1, -1));
    assert_eq!(end(1), (1, 0));
}
