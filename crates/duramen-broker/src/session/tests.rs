//! Requests that a session takes in, counts and refuses, without a node.

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{
    ApiVersionsResponse, AppendFastRequest, MetadataRequest, ProduceRequest,
};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{Few, Uuid};
use duramen_protocol::{ErrorCode, Request, RequestHeader, Response, encode_request};

use super::{Prepared, PreparedFastPartition, PreparedProduce, Rejection, Session, SessionStep};
use crate::event::ConnectionId;
use crate::limits::{
    ELEMENT_BYTES, FAST_BATCH_BYTES_MAX, RECOMPRESSED_BYTES_MAX, SESSION_REQUESTS_MAX,
};
use crate::recompression::{Board, Target};

fn session() -> Session {
    Session::new(ConnectionId(1), "User:ANONYMOUS".into(), "L".into(), "/127.0.0.1".into())
}

#[test]
fn a_client_that_is_not_answered_is_not_read() {
    let mut session = session();
    let produce = Request::Produce(ProduceRequest::default());
    let frame = encoded(&produce, 9);
    for _ in 0..SESSION_REQUESTS_MAX {
        assert!(session.wants_more());
        session.on_frame(frame.clone());
    }
    assert!(!session.wants_more());
    session.on_reply(0, None).expect("known");
    assert!(session.wants_more());
}

#[test]
fn a_request_whose_answer_may_be_large_is_answered_before_the_next_one_is_taken_in() {
    let mut session = session();
    session.on_frame(Bytes::from_static(&[0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff]));
    assert!(!session.wants_more());
    let response = Response::ApiVersions(ApiVersionsResponse::default());
    session.on_reply(0, Some(response)).expect("known");
    assert!(session.wants_more());
}

#[test]
fn what_a_request_takes_of_memory_is_counted_by_its_elements() {
    let mut session = session();
    let topics = vec![MetadataRequestTopic::default(); 1000];
    let request = MetadataRequest { topics: Some(topics), ..MetadataRequest::default() };
    let frame = encoded(&Request::Metadata(request), 12);
    let bytes = frame.len() + 1000 * ELEMENT_BYTES;
    session.on_frame(frame);
    assert_eq!(session.bytes(), bytes);
    session.on_reply(0, None).expect("known");
    assert_eq!(session.bytes(), 0);
}

#[test]
fn records_that_expand_to_much_are_checked_at_length_and_to_too_much_are_refused() {
    for (megabytes, is_refused) in [(20, false), (300, true)] {
        let mut session = session();
        let bomb = bomb(megabytes << 20);
        assert!(bomb.len() < 64 << 10, "{}", bomb.len());
        let SessionStep::Heavy(heavy) = session.on_frame(produce_frame(&[bomb.clone(), bomb]))
        else {
            panic!("it was checked where others wait")
        };
        let SessionStep::Request { request, .. } = session.on_heavy(*heavy) else { panic!() };
        let Prepared::Produce(produce) = *request else { panic!() };
        for partition in &produce.topics[0].partitions {
            let code = partition.batch.as_ref().map(|_| ()).map_err(|refused| refused.code);
            assert_eq!(code, if is_refused { Err(ErrorCode::MessageTooLarge) } else { Ok(()) });
        }
    }
}

#[test]
fn a_partition_named_hundreds_of_thousands_of_times_takes_no_time() {
    let partition_data = vec![PartitionProduceData::default(); 250_000].into();
    let topic = TopicProduceData { name: "t".into(), partition_data, ..Default::default() };
    let produce = ProduceRequest { topic_data: [topic].into(), ..ProduceRequest::default() };
    let mut session = session();
    let step = session.on_frame(encoded(&Request::Produce(produce), 9));
    let SessionStep::Request { request, .. } = step else { panic!("{step:?}") };
    let Prepared::Produce(produce) = *request else { panic!() };
    assert_eq!(produce.topics[0].partitions.len(), 1);
}

#[test]
fn fast_appends_do_not_hold_up_the_next_request() {
    let mut session = session();
    session.on_frame(fast_frame(vec![AppendFastPartition::default()]));
    session.on_frame(fast_frame(Vec::new()));
    assert!(session.wants_more());
    session.on_reply(0, None).expect("known");
    session.on_reply(1, None).expect("known");
    assert!(!session.is_waiting());
}

#[test]
fn of_a_partition_named_twice_the_last_fast_append_counts() {
    let sent = AppendFastPartition { records: Some(fast_batch("a")), ..Default::default() };
    let asked = AppendFastPartition { index: 1, first_sequence: 4, ..Default::default() };
    let last = AppendFastPartition { first_sequence: 9, ..Default::default() };
    let fast = prepared(vec![sent.clone(), asked.clone(), last.clone()]);
    let told: Vec<_> = fast.iter().map(|it| (it.index, it.ids.first_sequence)).collect();
    assert_eq!(told, [(1, 4), (0, 9)]);
    assert!(fast.iter().all(|it| it.batch.is_none()));
    let fast = prepared(vec![last, asked, sent]);
    let told: Vec<_> = fast.iter().map(|it| (it.index, it.batch.is_some())).collect();
    assert_eq!(told, [(1, false), (0, true)]);
}

#[test]
fn a_fast_append_has_a_sequence_and_neither_a_transaction_nor_a_guard() {
    let with = |builder: BatchBuilder| builder.build().expect("a batch");
    let large = "x".repeat(FAST_BATCH_BYTES_MAX);
    let guarded = NewRecord { headers: &[("duramen-fence", Some(b"f"))], ..record("a") };
    let mut guarded_batch = BatchBuilder::new().producer(7, 0, 0);
    guarded_batch.push(&guarded).expect("one");
    let cases = [
        (fast_batch("a"), None),
        (with(builder("a")), Some(ErrorCode::InvalidRecord)),
        (with(builder("a").producer(7, 0, 0).transactional()), Some(ErrorCode::InvalidRecord)),
        (with(guarded_batch), Some(ErrorCode::InvalidRecord)),
        (fast_batch(&large), Some(ErrorCode::MessageTooLarge)),
        (fast_batch("a").slice(1..), Some(ErrorCode::CorruptMessage)),
    ];
    // A partition without a batch stands between any two.
    let part = |(at, (records, _)): (i32, &(Bytes, _))| {
        let sent = AppendFastPartition {
            index: 2 * at,
            records: Some(records.clone()),
            ..Default::default()
        };
        [sent, AppendFastPartition { index: 2 * at + 1, ..Default::default() }]
    };
    let fast = prepared((0..).zip(&cases).flat_map(part).collect());
    for (pair, (_, code)) in fast.chunks(2).zip(&cases) {
        let batch = pair[0].batch.as_ref().expect("sent");
        assert_eq!(batch.as_ref().err().map(|it| it.code), *code, "{batch:?}");
        assert!(pair[1].batch.is_none());
    }
}

#[test]
fn fast_appends_that_expand_to_much_are_checked_at_length() {
    let mut session = session();
    let bomb = AppendFastPartition { records: Some(bomb(20 << 20)), ..Default::default() };
    let SessionStep::Heavy(heavy) = session.on_frame(fast_frame(vec![bomb])) else { panic!() };
    let SessionStep::Request { request, .. } = session.on_heavy(*heavy) else { panic!() };
    assert!(matches!(*request, Prepared::Fast(_)));
}

/// A session that knows of a codec for the topic of [`produce_frame`].
fn session_with(codec: Codec) -> Session {
    let mut board = Board::default();
    let target = Target { compression: codec.into(), batch_bytes_max: 100 << 20 };
    board.note(Uuid::from_u128(1), "t", Some(target));
    let mut session = session();
    session.follow(board.take().expect("it has changed"));
    session
}

fn produced(step: SessionStep) -> PreparedProduce {
    let SessionStep::Request { request, .. } = step else { panic!("{step:?}") };
    let Prepared::Produce(produce) = *request else { panic!() };
    produce
}

#[test]
fn a_batch_in_another_codec_than_its_topics_is_made_anew_where_nobody_waits() {
    let mut session = session_with(Codec::None);
    let sent = bomb(10_000);
    let mut wrong = sent.to_vec();
    *wrong.last_mut().expect("it has bytes") ^= 1;
    let plain = builder("a").build().expect("a batch");
    let frame = produce_frame(&[sent.clone(), plain.clone(), wrong.into()]);
    let frame_bytes = frame.len();
    let SessionStep::Heavy(heavy) = session.on_frame(frame) else { panic!("too much to do") };
    assert!(!heavy.expands());
    let mut produce = produced(session.on_heavy(*heavy));
    let [anew, same, wrong] = [0, 1, 2].map(|at| {
        let batch = std::mem::replace(&mut produce.topics[0].partitions[at].batch, Err(nothing()));
        batch.map_err(|rejection| rejection.code)
    });
    let (anew, same) = (anew.expect("it is right"), same.expect("it is right"));
    assert_eq!(anew.header.attributes.codec(), Ok(Codec::None));
    assert_eq!(
        (anew.header.batch_bytes(), anew.greatest_bytes),
        (anew.bytes.len(), anew.bytes.len())
    );
    assert!(anew.bytes.len() > 10_000);
    assert_eq!((&same.bytes[..], same.greatest_bytes), (&plain[..], 0));
    assert_eq!(wrong.expect_err("it is damaged"), ErrorCode::CorruptMessage);
    assert!(session.bytes() >= frame_bytes + anew.bytes.len(), "its memory is counted");
    session.on_reply(0, None).expect("known");
    assert_eq!(session.bytes(), 0);
    // In the codec of the topic there is nothing to do.
    produced(session_with(Codec::Zstd).on_frame(produce_frame(&[sent])));
}

fn nothing() -> Rejection {
    Rejection { code: ErrorCode::None, message: String::new() }
}

#[test]
fn batches_that_grow_are_bounded_together() {
    let mut session = session_with(Codec::None);
    let large = bomb(RECOMPRESSED_BYTES_MAX / 3 * 2);
    let frame = produce_frame(&[large.clone(), large.clone(), bomb(100), large]);
    let SessionStep::Heavy(heavy) = session.on_frame(frame) else { panic!("too much to do") };
    let SessionStep::Heavy(heavy) = session.on_heavy(*heavy) else { panic!("far too much") };
    assert!(heavy.expands());
    let produce = produced(session.on_heavy(*heavy));
    let codes = produce.topics[0].partitions.iter().map(|it| {
        let batch = it.batch.as_ref();
        batch.map(|it| it.header.attributes.codec()).map_err(|refused| refused.code)
    });
    let (anew, refused) = (Ok(Ok(Codec::None)), Err(ErrorCode::MessageTooLarge));
    assert_eq!(codes.collect::<Vec<_>>(), [anew, refused, anew, refused]);
}

#[test]
fn a_fast_append_stays_as_it_came_if_others_may_hold_it_too() {
    for (wait, is_anew) in [(0, false), (1, true)] {
        let mut session = session_with(Codec::Gzip);
        let sent = AppendFastPartition { records: Some(fast_batch("a")), ..Default::default() };
        let partitions = [sent].into();
        let topics = [AppendFastTopic { topic_id: Uuid::from_u128(1), partitions }].into();
        let request = AppendFastRequest { wait, topics, ..Default::default() };
        let mut step = session.on_frame(encoded(&request.into(), 0));
        if let SessionStep::Heavy(heavy) = step {
            step = session.on_heavy(*heavy);
        }
        let SessionStep::Request { request, .. } = step else { panic!("{step:?}") };
        let Prepared::Fast(fast) = *request else { panic!() };
        let batch = fast.topics[0].partitions[0].batch.as_ref().expect("sent");
        let codec = batch.as_ref().expect("it is right").header.attributes.codec();
        assert_eq!(codec, Ok(if is_anew { Codec::Gzip } else { Codec::None }), "{wait}");
    }
}

fn record(value: &str) -> NewRecord<'_> {
    NewRecord { timestamp: 1, key: None, value: Some(value.as_bytes()), headers: &[] }
}

fn builder(value: &str) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    builder.push(&record(value)).expect("one");
    builder
}

fn fast_batch(value: &str) -> Bytes {
    builder(value).producer(7, 0, 0).build().expect("a batch")
}

fn fast_frame(partitions: Vec<AppendFastPartition>) -> Bytes {
    let partitions = partitions.into();
    let topics = [AppendFastTopic { topic_id: Uuid::from_u128(1), partitions }].into();
    encoded(&AppendFastRequest { topics, ..Default::default() }.into(), 0)
}

fn prepared(partitions: Vec<AppendFastPartition>) -> Few<PreparedFastPartition> {
    let step = session().on_frame(fast_frame(partitions));
    let SessionStep::Request { request, .. } = step else { panic!("{step:?}") };
    let Prepared::Fast(mut fast) = *request else { panic!() };
    fast.topics.remove(0).partitions
}

fn encoded(request: &Request, api_version: i16) -> Bytes {
    let api_key = request.api_key().code();
    let header = RequestHeader { api_key, api_version, correlation_id: 1, client_id: None };
    encode_request(&header, request).expect("expressible").bytes.freeze().slice(4..)
}

/// A sound batch of one record with so many zeroes.
fn bomb(bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new().codec(Codec::Zstd);
    let value = vec![0; bytes];
    let record = NewRecord { timestamp: 1, key: None, value: Some(&value), headers: &[] };
    builder.push(&record).expect("one");
    builder.build().expect("small")
}

fn produce_frame(batches: &[Bytes]) -> Bytes {
    let of = |(index, records): (i32, &Bytes)| {
        let records = Some(records.clone());
        PartitionProduceData { index, records }
    };
    let partition_data = (0..).zip(batches).map(of).collect();
    let topic = TopicProduceData { name: "t".into(), partition_data, ..Default::default() };
    let produce = ProduceRequest { topic_data: [topic].into(), ..ProduceRequest::default() };
    encoded(&Request::Produce(produce), 9)
}
