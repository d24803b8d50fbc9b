//! Operations on queues: the index, waits for it, waits for elements.

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::CreatePartitionsRequest;
use duramen_protocol::messages::create_partitions::CreatePartitionsTopic;
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use duramen_protocol::partitioner::{key_number, partition_of_key};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{Request, Response};
use duramen_storage::indexing::{Indexed, Touched};

use super::harness::{Harness, NATIVE, new_topic, produce_request};
use super::native::ask_of;
use super::trio::Trio;
use crate::access::{Kind, Operation};
use crate::checked_batch::CheckedBatch;
use crate::event::Event;
use crate::limits::{INDEX_LAG_BYTES_MAX, QUEUE_LOOKS_MAX, QUEUE_READS_WAITING_MAX};
use crate::native::{
    Answer, Append, Op, Position, Problem, Queue, Retrieve, Rewrite, Span, Start, Target,
    TrimQueue, WantQueue,
};

fn node() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("mail", &[("queue.enable", "true")]);
    it
}

fn queue(name: &'static str) -> Target {
    let name = Bytes::from_static(name.as_bytes());
    Target::Queue(Queue { topic: "mail".to_owned(), name })
}

fn keyed(records: &[(Option<&str>, &str)], header: Option<&str>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (key, value) in records {
        let headers: Vec<_> = header.iter().map(|name| (*name, None)).collect();
        let record = NewRecord {
            timestamp: 1_700_000_000_000,
            key: key.map(str::as_bytes),
            value: Some(value.as_bytes()),
            headers: &headers,
        };
        builder.push(&record).expect("a record");
    }
    builder.build().expect("a batch")
}

fn enqueue(name: &'static str, values: &[&str]) -> Op {
    let records: Vec<_> = values.iter().map(|value| (Some(name), *value)).collect();
    let batch = CheckedBatch::of(keyed(&records, None), key_number(name.as_bytes()));
    let batch = batch.expect("a batch");
    Op::Append(Append {
        target: queue(name),
        batch,
        ids: Vec::new(),
        is_patient: false,
        timeout_ms: 5_000,
    })
}

fn retrieve(name: &'static str, start: Start, wait_ms: i32) -> Op {
    Op::Retrieve(Retrieve {
        target: queue(name),
        start,
        wait_ms,
        is_certain: true,
        skips_trimmed: false,
    })
}

fn ask(it: &mut Harness, op: Op) -> Result<Answer, Problem> {
    let number = it.operate(op);
    it.answer(number).expect("answered at once")
}

fn put(it: &mut Harness, name: &'static str, value: &str) -> Position {
    match ask(it, enqueue(name, &[value])) {
        Ok(Answer::Appended { last, .. }) => last,
        other => panic!("{other:?}"),
    }
}

fn span(answer: Result<Answer, Problem>) -> Span {
    match answer {
        Ok(Answer::Span(span)) => span,
        other => panic!("{other:?}"),
    }
}

/// Returns the offsets that a reader of the span gets.
fn shown(it: &Harness, span: &Span) -> Vec<i64> {
    it.elements(span.replica, &span.name, span.from, span.end)
}

#[test]
fn a_right_that_is_taken_away_counts_for_a_read_that_waits() {
    let mut it = node();
    let waits = it.operate(retrieve("alice", Start::Begin, 10_000));
    it.run();
    assert!(it.answer(waits).is_none());
    it.node.core.access.deny(Operation::Read, Kind::Topic);
    put(&mut it, "alice", "secret");
    assert_eq!(it.answer(waits).expect("answered"), Err(Problem::NotAuthorized));
}

#[test]
fn a_read_gets_its_queue_and_goes_on_where_it_was() {
    let mut it = node();
    put(&mut it, "alice", "a");
    put(&mut it, "bob", "b");
    let last = put(&mut it, "alice", "c");
    let all = span(ask(&mut it, retrieve("alice", Start::Begin, 0)));
    assert_eq!((shown(&it, &all), all.is_whole), (vec![0, 2], true));
    let rest = span(ask(&mut it, retrieve("alice", Start::After(last), 0)));
    assert_eq!(shown(&it, &rest), [0; 0]);
    let whole = Op::GetQueue(WantQueue { target: queue("bob"), is_certain: true });
    let whole = span(ask(&mut it, whole));
    assert_eq!(shown(&it, &whole), [1]);
    // Somebody else's records of the same keys are elements, too.
    let produced = it.produce("mail", keyed(&[(Some("bob"), "d"), (Some("alice"), "e")], None));
    assert_eq!((produced.error_code, produced.base_offset), (0, 3));
    let more = span(ask(&mut it, retrieve("alice", Start::After(last), 0)));
    assert_eq!(shown(&it, &more), [4]);
}

#[test]
fn a_read_waits_until_the_index_has_all_that_was_committed() {
    let mut it = node();
    it.is_indexing = false;
    put(&mut it, "alice", "a");
    let read = it.operate(retrieve("alice", Start::Begin, 0));
    assert_eq!(it.answer(read), None, "the index is behind");
    it.carry_out_orders();
    it.run();
    let found = span(it.answer(read).expect("the index is there"));
    assert_eq!(shown(&it, &found), [0]);
    put(&mut it, "alice", "b");
    let read = it.operate(retrieve("alice", Start::Begin, 0));
    it.pass_ms(5_001);
    assert!(matches!(it.answer(read), Some(Err(Problem::Busy(_)))));
}

#[test]
fn a_waiting_read_is_woken_by_its_own_queue_alone() {
    let mut it = node();
    let alice = it.operate(retrieve("alice", Start::Begin, 30_000));
    let bob = it.operate(retrieve("bob", Start::End, 30_000));
    assert_eq!((it.answer(alice), it.answer(bob)), (None, None));
    put(&mut it, "carol", "c");
    assert_eq!((it.answer(alice), it.answer(bob)), (None, None));
    put(&mut it, "alice", "a");
    let found = span(it.answer(alice).expect("woken"));
    assert_eq!((shown(&it, &found), it.answer(bob)), (vec![1], None));
    // The end is that of the time when the read came.
    put(&mut it, "bob", "b");
    let found = span(it.answer(bob).expect("woken"));
    assert_eq!(shown(&it, &found), [2]);
    // One that has an element does not wait.
    let at_once = it.operate(retrieve("bob", Start::Begin, 30_000));
    assert!(it.answer(at_once).is_some());
}

#[test]
fn a_wait_ends_with_its_time_its_connection_and_its_topic() {
    let mut it = node();
    let late = it.operate(retrieve("alice", Start::Begin, 100));
    it.pass_ms(101);
    let nothing = span(it.answer(late).expect("its time is over"));
    assert_eq!(shown(&it, &nothing), [0; 0]);
    it.operate(retrieve("alice", Start::Begin, 30_000));
    assert_eq!(it.node.queues.waiting(), 1);
    it.disconnect(NATIVE);
    assert_eq!(it.node.queues.waiting(), 0);
    let gone = it.operate(retrieve("alice", Start::Begin, 30_000));
    let request = duramen_protocol::messages::DeleteTopicsRequest {
        topic_names: vec!["mail".to_owned()],
        timeout_ms: 1_000,
        ..Default::default()
    };
    it.ask(request, 5);
    assert_eq!(it.answer(gone), Some(Err(Problem::UnknownTopic)));
}

#[test]
fn an_element_that_comes_during_the_look_wakes_the_read() {
    let mut it = node();
    it.is_prompt = false;
    let read = it.operate(retrieve("alice", Start::Begin, 30_000));
    it.run();
    let looks = std::mem::take(&mut it.looks);
    assert_eq!(looks.len(), 1, "somebody looks");
    it.is_prompt = true;
    put(&mut it, "alice", "a");
    let found = span(it.answer(read).expect("woken"));
    assert_eq!(shown(&it, &found), [0]);
}

#[test]
fn too_many_queues_in_one_step_wake_all_and_an_old_report_is_none() {
    let mut it = node();
    put(&mut it, "carol", "c");
    let read = it.operate(retrieve("alice", Start::Begin, 30_000));
    let replica = it.replica("mail");
    let report = |beginning, touched| {
        Event::Indexed(Indexed { replica, beginning, to: 1, touched, problem: None })
    };
    it.step(report(7, Touched::All));
    it.run();
    assert_eq!(it.answer(read), None, "the report is about another beginning");
    it.step(report(0, Touched::All));
    it.run();
    let nothing = span(it.answer(read).expect("it may be its queue"));
    assert_eq!(shown(&it, &nothing), [0; 0]);
}

#[test]
fn an_index_that_is_lost_or_fails_is_ordered_again() {
    let mut it = node();
    put(&mut it, "alice", "a");
    let replica = it.replica("mail");
    it.is_indexing = false;
    it.step(Event::IndexLost(replica));
    it.run();
    let read = it.operate(retrieve("alice", Start::Begin, 0));
    assert_eq!(it.answer(read), None);
    let beginning = it.orders.pop().expect("ordered again").beginning;
    let (touched, problem) = (Touched::default(), Some("damaged".to_owned()));
    it.step(Event::Indexed(Indexed { replica, beginning, to: 0, touched, problem }));
    it.run();
    assert!(it.orders.is_empty(), "it rests for a while");
    put(&mut it, "alice", "b");
    assert!(it.orders.is_empty(), "a commit does not end the rest");
    it.pass_ms(1_001);
    it.indexed.insert(replica, 0);
    assert!(it.carry_out_orders());
    it.run();
    let found = span(it.answer(read).expect("indexed"));
    assert_eq!(shown(&it, &found), [0, 1]);
}

#[test]
fn an_index_that_is_opened_anew_wakes_all_even_if_it_fails_then() {
    for problem in [None, Some("damaged".to_owned())] {
        let mut it = node();
        put(&mut it, "carol", "c");
        let read = it.operate(retrieve("alice", Start::Begin, 30_000));
        assert_eq!(it.answer(read), None);
        let replica = it.replica("mail");
        it.is_indexing = false;
        it.step(Event::IndexLost(replica));
        put(&mut it, "alice", "a");
        let beginning = it.orders.pop().expect("ordered again").beginning;
        // Its tables have the element, and no report named the queue.
        let touched = Touched::default();
        it.step(Event::Indexed(Indexed { replica, beginning, to: 2, touched, problem }));
        it.run();
        let found = span(it.answer(read).expect("woken"));
        assert_eq!(shown(&it, &found), [1]);
    }
}

#[test]
fn appends_wait_for_an_index_that_does_not_follow() {
    let mut it = node();
    put(&mut it, "alice", "a");
    it.run();
    it.is_indexing = false;
    let value = "v".repeat(1_000_000);
    let put_large = |it: &mut Harness| {
        let number = it.operate(enqueue("alice", &[&value]));
        it.run();
        it.answer(number).expect("answered")
    };
    // The first is in the order under way.
    let taken = (0..100).take_while(|_| put_large(&mut it).is_ok()).count() as u64;
    let bytes = taken * 1_000_000;
    assert!((INDEX_LAG_BYTES_MAX..INDEX_LAG_BYTES_MAX + 3_000_000).contains(&bytes), "{taken}");
    assert!(matches!(put_large(&mut it), Err(Problem::Busy(_))));
    let kafka = it.send(produce_request("mail", keyed(&[(Some("bob"), "x")], None), -1), 9);
    let part = it.produced(kafka).expect("answered");
    assert_eq!(part.error_code, ErrorCode::NotEnoughReplicas.code());
    it.carry_out_orders();
    it.run();
    assert!(put_large(&mut it).is_ok(), "the index follows");
}

#[test]
fn the_looks_and_the_reads_that_wait_are_bounded() {
    let mut it = node();
    it.is_prompt = false;
    let read = || retrieve("alice", Start::Begin, 30_000);
    let reads: Vec<_> = (0..QUEUE_READS_WAITING_MAX).map(|_| it.operate(read())).collect();
    it.run();
    assert_eq!(it.looks.len(), QUEUE_LOOKS_MAX);
    it.is_prompt = true;
    it.run();
    assert_eq!((it.looks.len(), it.node.queues.waiting()), (0, QUEUE_READS_WAITING_MAX));
    let busy = it.operate(read());
    assert!(matches!(it.answer(busy), Some(Err(Problem::Busy(_)))));
    put(&mut it, "alice", "a");
    for read in reads {
        let found = span(it.answer(read).expect("woken"));
        assert_eq!(shown(&it, &found), [0]);
    }
    assert_eq!(it.node.queues.waiting(), 0);
}

#[test]
fn a_queue_topic_takes_what_its_readers_find_and_nothing_else() {
    let mut it = Harness::new(&[]);
    it.try_create(new_topic("mail", 3, &[("queue.enable", "true")]));
    let name = "alice";
    let own = partition_of_key(name.as_bytes(), 3);
    let mut produce = |partition: i32, records: Bytes| {
        let mut request = produce_request("mail", records, -1);
        request.topic_data[0].partition_data[0].index = partition;
        let id = it.send(request, 9);
        let part = it.produced(id).expect("answered");
        (ErrorCode::from_code(part.error_code).expect("known"), part.error_message)
    };
    let good = keyed(&[(Some(name), "a"), (Some(name), "b")], None);
    assert_eq!(produce(own, good.clone()).0, ErrorCode::None);
    for other in (0..3).filter(|partition| *partition != own) {
        let (code, message) = produce(other, good.clone());
        assert_eq!(code, ErrorCode::InvalidRecord);
        assert!(message.expect("a reason").contains("murmur2_random"));
    }
    let long = "k".repeat(513);
    let wrong = [
        keyed(&[(Some(name), "a"), (None, "b")], None),
        keyed(&[(Some(name), "a"), (Some(""), "b")], None),
        keyed(&[(Some(&long), "a")], None),
        keyed(&[(Some(name), "a")], Some("duramen-edit")),
    ];
    for records in wrong {
        let number = partition_of_key(long.as_bytes(), 3);
        for partition in [own, number] {
            assert_eq!(produce(partition, records.clone()).0, ErrorCode::InvalidRecord);
        }
    }
    // Elsewhere all of that is taken.
    it.create("t", &[]);
    assert_eq!(it.produce("t", keyed(&[(None, "a")], Some("duramen-edit"))).error_code, 0);
}

#[test]
fn a_topic_of_queues_stays_one_and_others_never_become_one() {
    let mut it = node();
    it.create("t", &[]);
    assert_eq!(ask(&mut it, enqueue_to("t")), Err(Problem::NotAQueueTopic));
    let request = CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic {
            name: "mail".to_owned(),
            count: 2,
            ..CreatePartitionsTopic::default()
        }],
        timeout_ms: 1_000,
        ..CreatePartitionsRequest::default()
    };
    let Response::CreatePartitions(response) = it.ask(request, 2) else { panic!("another") };
    assert_eq!(response.results[0].error_code, ErrorCode::InvalidPartitions.code());
    for (topic, name, value) in [
        ("mail", "queue.enable", "false"),
        ("mail", "cleanup.policy", "compact"),
        ("t", "queue.enable", "true"),
    ] {
        let config = AlterableConfig {
            name: name.to_owned(),
            config_operation: 0,
            value: Some(value.to_owned()),
        };
        let resource = AlterConfigsResource {
            resource_type: 2,
            resource_name: topic.to_owned(),
            configs: vec![config],
        };
        let request =
            IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        let Response::IncrementalAlterConfigs(response) = it.ask(Request::from(request), 1) else {
            panic!("another")
        };
        let code = response.responses[0].error_code;
        assert_eq!(code, ErrorCode::InvalidConfig.code(), "{topic} {name}");
    }
    let both = [("queue.enable", "true"), ("cleanup.policy", "compact,delete")];
    let response = it.try_create(new_topic("both", 1, &both));
    assert_eq!(response.topics[0].error_code, ErrorCode::InvalidConfig.code());
}

fn enqueue_to(topic: &str) -> Op {
    let Op::Append(append) = enqueue("alice", &["a"]) else { unreachable!("it is one") };
    let name = Bytes::from_static(b"alice");
    let target = Target::Queue(Queue { topic: topic.to_owned(), name });
    Op::Append(Append { target, ..append })
}

#[test]
fn a_log_is_indexed_after_a_start_though_the_node_learns_later_that_it_has_queues() {
    let mut it = node();
    put(&mut it, "alice", "a");
    let mut it = Harness::slow(std::mem::take(&mut it.store), &[], 2);
    let replica = it.replica("mail");
    let mut others = Vec::new();
    // All writes of the log are done before the first one of the metadata.
    for _ in 0..4 {
        it.run();
        let (own, more): (Vec<_>, Vec<_>) =
            it.queued.drain(..).partition(|op| op.replica == replica);
        others.extend(more);
        it.queued = own;
        it.persist();
    }
    it.run();
    assert!(it.orders.is_empty(), "the node does not know that it has queues");
    others.append(&mut it.queued);
    it.queued = others;
    it.is_prompt = true;
    it.run();
    assert_eq!(it.indexed.get(&replica), Some(&1), "what is there is indexed");
}

#[test]
fn nothing_is_indexed_before_it_is_committed() {
    let mut it = node();
    it.is_prompt = false;
    let number = it.operate(enqueue("alice", &["a"]));
    assert!(it.orders.is_empty(), "the append is not synced");
    assert_eq!(it.answer(number), None);
    it.persist();
    it.run();
    assert_eq!(it.orders.iter().map(|it| it.to).collect::<Vec<_>>(), [1]);
    assert!(matches!(it.answer(number), Some(Ok(_))));
    // A leader that was cut off has synced an append, and no majority has it.
    let mut trio = Trio::new(&[]);
    trio.create_with("mail", 1, &[("queue.enable", "true")]);
    let old = trio.leader("mail", 0).expect("led");
    assert!(ask_of(&mut trio, old, enqueue("alice", &["a"])).is_ok());
    trio.cut.insert(old);
    let leader = &mut trio.nodes[old];
    leader.is_indexing = false;
    let number = leader.operate(enqueue("alice", &["b"]));
    assert!(leader.queued.is_empty() && leader.orders.is_empty());
    trio.pass_ms(20_000);
    let leader = &mut trio.nodes[old];
    assert!(leader.orders.is_empty(), "the append is not committed");
    assert!(matches!(leader.answer(number), Some(Err(_))));
}

#[test]
fn a_reader_of_another_history_is_told() {
    let mut it = node();
    let last = put(&mut it, "alice", "a");
    let of_another = Position { term: last.term + 1, ..last };
    let later = Position { offset: last.offset + 5, entry: last.entry + 5, ..last };
    let read = |start, is_certain| {
        let Op::Retrieve(it) = retrieve("alice", start, 0) else { unreachable!("it is one") };
        Op::Retrieve(Retrieve { is_certain, ..it })
    };
    for is_certain in [true, false] {
        let told = ask(&mut it, read(Start::After(of_another), is_certain));
        assert_eq!(told, Err(Problem::PositionDiverged(0)), "{is_certain}");
    }
    let told = ask(&mut it, read(Start::After(later), true));
    assert_eq!(told, Err(Problem::PositionDiverged(1)));
    // A replica that is behind does not know better.
    let nothing = span(ask(&mut it, read(Start::After(later), false)));
    assert_eq!(shown(&it, &nothing), [0; 0]);
    let (target, timeout_ms) = (queue("alice"), 5_000);
    for (position, parted) in [(of_another, 0), (later, 1)] {
        let trim = TrimQueue {
            target: target.clone(),
            through: position,
            pointer: None,
            fence: None,
            timeout_ms,
        };
        let rewrite = Rewrite {
            target: target.clone(),
            after: Some(position),
            batch: None,
            ids: Vec::new(),
            fence: None,
            reason: String::new(),
            timeout_ms,
        };
        for op in [Op::TrimQueue(trim), Op::Rewrite(rewrite)] {
            assert_eq!(ask(&mut it, op), Err(Problem::PositionDiverged(parted)), "{position:?}");
        }
    }
    let same = span(ask(&mut it, read(Start::After(last), true)));
    assert_eq!(shown(&it, &same), [0; 0]);
}

#[test]
fn no_element_has_ended_by_a_clock_that_has_leapt() {
    const LEAP_MS: i64 = 8 * 86_400_000;
    let mut it = node();
    put(&mut it, "alice", "a");
    let page = |it: &mut Harness| span(ask(it, retrieve("alice", Start::Begin, 0))).ended_ms;
    assert_eq!(page(&mut it), it.now.wall_ms);
    it.now.wall_ms += LEAP_MS;
    it.pass_ms(300_000);
    assert_eq!(page(&mut it), i64::MIN);
    it.now.wall_ms -= LEAP_MS;
    it.pass_ms(300_000);
    assert_eq!(page(&mut it), it.now.wall_ms);
}
