//! Appends to many queues, streams of appends, and subscriptions, of a real server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use duramen::proto::subscribe_response::Event;
use duramen::proto::{
    Cursor, EnqueueManyRequest, EnqueueRequest, EnqueueStreamRequest, Heartbeat,
    OpenSessionRequest, Problem, QueueMessage, Record, Session, SubscribeRequest,
    SubscribeResponse, Trimmed, TruncateRequest, cursor, enqueue_result, enqueue_stream_response,
};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use super::queues::{all, create, enqueue, start};
use super::quotas::limit;
use super::{Node, PATIENCE, in_flight, slug};

fn message(queue: &str, value: &str) -> QueueMessage {
    let record = Record { value: Some(value.to_owned().into()), ..Record::default() };
    QueueMessage { queue: queue.to_owned().into(), message: Some(record) }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_appends_to_many_queues_and_each_message_has_a_result() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 3).await;
    let mut queues = node.queues().await;
    let names: Vec<String> = (0..20).map(|it| format!("user-{it:02}")).collect();
    let both = ["a", "b"].into_iter().flat_map(|value| names.iter().map(move |it| (it, value)));
    let messages: Vec<_> = both.map(|(name, value)| message(name, value)).collect();
    let request = EnqueueManyRequest { topic: "t".into(), messages, timeout_ms: 0 };
    let results = queues.enqueue_many(request.clone()).await.unwrap().into_inner().results;
    let positions: Vec<_> = results
        .into_iter()
        .map(|it| match it.result {
            Some(enqueue_result::Result::Position(position)) => position,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(positions.len(), 40);
    for (name, first) in names.iter().zip(&positions) {
        assert_eq!(all(&mut queues, name, 0).await, ["a", "b"], "{name}");
        let page = queues.retrieve(super::queues::retrieve(name, None)).await.unwrap();
        assert_eq!(page.into_inner().elements[0].position, Some(*first), "{name}");
    }
    // What one partition refuses the others take.
    let big = "x".repeat(2 << 20);
    let mut mixed = request.clone();
    mixed.messages = names.iter().map(|name| message(name, "c")).collect();
    mixed.messages.push(message("user-00", &big));
    let results = queues.enqueue_many(mixed).await.unwrap().into_inner().results;
    let is_too_large = |it: &Option<enqueue_result::Result>| match it {
        Some(enqueue_result::Result::Problem(Problem { reason, .. })) => {
            assert_eq!(reason, "too-large");
            true
        }
        _ => false,
    };
    let refused = results.iter().filter(|it| is_too_large(&it.result)).count();
    assert!(refused > 1 && refused < 21, "{refused}");
    assert!(is_too_large(&results[20].result) && is_too_large(&results[0].result));
    assert_eq!(all(&mut queues, "user-00", 0).await, ["a", "b"]);
    // A problem of all is the call's.
    let nowhere = EnqueueManyRequest { topic: "nowhere".into(), ..request.clone() };
    assert_eq!(queues.enqueue_many(nowhere).await.unwrap_err().code(), Code::NotFound);
    let nothing = EnqueueManyRequest { messages: Vec::new(), ..request };
    assert_eq!(queues.enqueue_many(nothing).await.unwrap_err().code(), Code::InvalidArgument);
    let body = json!({ "messages": [
        { "queue": "alice", "message": { "value": "x" } },
        { "queue_base64": "Ym9i", "message": { "json": [1] } },
    ] });
    let (status, answer) = node.json("POST", "/v1/topics/t/messages", &body);
    assert_eq!((status, answer["results"].as_array().unwrap().len()), (200, 2), "{answer}");
    assert!(answer["results"][1]["position"].is_string());
    assert_eq!(all(&mut queues, "bob", 0).await, ["[1]"]);
    let nameless = json!({ "messages": [{ "message": { "value": "x" } }] });
    let (status, problem) = node.json("POST", "/v1/topics/t/messages", &nameless);
    assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!("queue")));
}

fn streamed(call: u64, queue: &str, value: &str) -> EnqueueStreamRequest {
    let QueueMessage { queue, message } = message(queue, value);
    let messages = message.into_iter().collect();
    let request = EnqueueRequest { topic: "t".into(), queue, messages, ..Default::default() };
    EnqueueStreamRequest { call, request: Some(request) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_appends_is_answered_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 3).await;
    let mut queues = node.queues().await;
    let name = |call: u64| format!("user-{}", call % 7);
    let requests: Vec<_> = (0..3_000)
        .map(|call| match call {
            1_000 => streamed(call, "", "nameless"),
            _ => streamed(call, &name(call), &call.to_string()),
        })
        .collect();
    let answers = queues.enqueue_stream(stream::iter(requests)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert!(answers.iter().map(|it| it.call).eq(0..3_000));
    for answer in &answers {
        match answer.result.as_ref().unwrap() {
            enqueue_stream_response::Result::Appended(_) => assert_ne!(answer.call, 1_000),
            enqueue_stream_response::Result::Problem(problem) => {
                assert_eq!((answer.call, &problem.reason[..]), (1_000, "bad-request"));
            }
        }
    }
    for user in 0..7 {
        let expected: Vec<_> = (0..3_000u64)
            .filter(|call| call % 7 == user && *call != 1_000)
            .map(|it| it.to_string())
            .collect();
        assert_eq!(all(&mut queues, &name(user), 0).await, expected);
    }
    // Requests of a session are taken once, in their order.
    let session = node.logs().await.open_session(OpenSessionRequest::default()).await.unwrap();
    let Session { id, epoch, .. } = session.into_inner();
    let of_session = |sequence: i32| {
        let mut it = streamed(0, "session", &sequence.to_string());
        let request = it.request.as_mut().unwrap();
        request.session = Some(Session { id, epoch, sequence });
        it
    };
    let requests: Vec<_> = (0..50).chain(45..55).map(of_session).collect();
    let answers = queues.enqueue_stream(stream::iter(requests)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert_eq!(answers.len(), 60);
    let expected: Vec<_> = (0..55).map(|it| it.to_string()).collect();
    assert_eq!(all(&mut queues, "session", 0).await, expected, "{answers:?}");
}

fn cursor(queue: &str, start: Option<cursor::Start>) -> Cursor {
    Cursor { queue: queue.to_owned().into(), start }
}

async fn next(events: &mut Streaming<SubscribeResponse>) -> (String, &'static str, String) {
    let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    let queue = String::from_utf8(event.queue.to_vec()).unwrap();
    match event.event.unwrap() {
        Event::Element(it) => {
            assert_eq!(it.position, event.next);
            let value = it.record.unwrap().value.unwrap();
            (queue, "element", String::from_utf8(value.to_vec()).unwrap())
        }
        Event::Trimmed(_) => (queue, "trimmed", String::new()),
        Event::CaughtUp(_) => (queue, "caught_up", String::new()),
        Event::Heartbeat(_) => (queue, "heartbeat", String::new()),
    }
}

async fn many(
    events: &mut Streaming<SubscribeResponse>,
    count: usize,
) -> Vec<(String, &'static str, String)> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(next(events).await);
    }
    all.sort();
    all
}

fn told(queue: &str, event: &'static str, value: &str) -> (String, &'static str, String) {
    (queue.to_owned(), event, value.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_gets_all_of_its_queues_and_what_comes() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 2).await;
    let mut queues = node.queues().await;
    enqueue(&mut queues, "alice", &["a", "b"]).await;
    let position = enqueue(&mut queues, "bob", &["c"]).await;
    enqueue(&mut queues, "bob", &["d"]).await;
    enqueue(&mut queues, "carol", &["e"]).await;
    let request = SubscribeRequest {
        topic: "t".into(),
        cursors: vec![
            cursor("alice", None),
            cursor("bob", Some(cursor::Start::After(position))),
            cursor("carol", Some(cursor::Start::End(true))),
        ],
        ..SubscribeRequest::default()
    };
    let mut events = queues.subscribe(request.clone()).await.unwrap().into_inner();
    let expected = [
        told("alice", "caught_up", ""),
        told("alice", "element", "a"),
        told("alice", "element", "b"),
        told("bob", "caught_up", ""),
        told("bob", "element", "d"),
        told("carol", "caught_up", ""),
    ];
    assert_eq!(many(&mut events, 6).await, expected);
    for (queue, value) in [("carol", "f"), ("dave", "no"), ("alice", "g"), ("bob", "h")] {
        enqueue(&mut queues, queue, &[value]).await;
    }
    let expected =
        [told("alice", "element", "g"), told("bob", "element", "h"), told("carol", "element", "f")];
    assert_eq!(many(&mut events, 3).await, expected);
    drop(events);
    let twice = vec![cursor("alice", None), cursor("alice", None)];
    let too_many = (0..65).map(|it| cursor(&it.to_string(), None)).collect();
    for cursors in [Vec::new(), twice, too_many] {
        let wrong = SubscribeRequest { cursors, ..request.clone() };
        assert_eq!(queues.subscribe(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let nowhere = SubscribeRequest { topic: "nowhere".into(), ..request };
    assert_eq!(queues.subscribe(nowhere).await.unwrap_err().code(), Code::NotFound);
}

/// Begins an event stream, and returns its lines.
fn lines(
    node: &Node,
    method: &str,
    path: &str,
    body: &str,
) -> impl Iterator<Item = String> + use<> {
    let mut stream = TcpStream::connect(node.native).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let headers = "host: x\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n";
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    BufReader::new(stream).lines().map_while(Result::ok)
}

/// Subscribes by HTTP, and returns the events with their data.
fn subscribed(node: &Node, body: &Value) -> impl Iterator<Item = (String, Value)> {
    let mut lines = lines(node, "POST", "/v1/topics/t/subscribe", &body.to_string());
    let mut part = move |name: &str| {
        let line = lines.find_map(|line| line.strip_prefix(name).map(str::to_owned));
        line.expect("the stream goes on")
    };
    std::iter::from_fn(move || {
        let name = part("event: ");
        Some((name, serde_json::from_str(&part("data: ")).unwrap()))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_by_http_is_an_event_stream() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 2).await;
    let mut queues = node.queues().await;
    enqueue(&mut queues, "alice", &["a", "b"]).await;
    let body = json!({ "cursors": [{ "queue": "alice" }], "filter": "text == 'b'" });
    let told: Vec<_> = subscribed(&node, &body).take(2).collect();
    let [(first, element), (second, end)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&first[..], &second[..]), ("element", "caught_up"));
    assert_eq!(element["element"]["value"], "b");
    assert_eq!(
        (&element["queue"], &element["next"]),
        (&json!("alice"), &element["element"]["position"])
    );
    assert_eq!(end["next"], element["next"]);
    let unknown = json!({ "cursors": [{ "queue": "alice" }], "skip_trim": true });
    let (status, _) = node.json("POST", "/v1/topics/t/subscribe", &unknown);
    assert_eq!(status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_hears_that_elements_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    let mut positions = Vec::new();
    for value in ["a", "b", "c"] {
        positions.push(enqueue(&mut queues, "alice", &[value]).await);
    }
    let [first, second, third] = positions[..] else { unreachable!() };
    let truncate =
        TruncateRequest { topic: "t".into(), through: Some(second), ..Default::default() };
    node.logs().await.truncate(truncate).await.unwrap();
    let behind_first = vec![cursor("alice", Some(cursor::Start::After(first)))];
    let request =
        SubscribeRequest { topic: "t".into(), cursors: behind_first, ..Default::default() };
    let refused = queues.subscribe(request.clone()).await.unwrap_err();
    assert_eq!(slug(&refused), "trimmed");
    let skipping = SubscribeRequest { skip_trimmed: true, ..request };
    let mut events = queues.subscribe(skipping).await.unwrap().into_inner();
    let trimmed = events.message().await.unwrap().unwrap();
    // What is there is still to come.
    assert_eq!((trimmed.event, trimmed.next), (Some(Event::Trimmed(Trimmed {})), Some(first)));
    assert_eq!(next(&mut events).await, told("alice", "element", "c"));
    assert_eq!(next(&mut events).await, told("alice", "caught_up", ""));
    let cursor = json!({ "queue": "alice", "after": first.to_string() });
    let body = json!({ "cursors": [cursor], "skip_trimmed": true });
    let told: Vec<_> = subscribed(&node, &body).take(3).collect();
    let names: Vec<_> = told.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["trimmed", "element", "caught_up"]);
    let positions: Vec<_> = told.iter().map(|(_, data)| data["next"].as_str().unwrap()).collect();
    assert_eq!(positions, [first, third, third].map(|it| it.to_string()));
    assert!(told.iter().all(|(_, data)| data["queue"] == "alice"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_events_shows_that_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::beating(dir.path(), Duration::from_millis(50));
    create(&node, "t", 1).await;
    create(&node, "empty", 1).await;
    let mut queues = node.queues().await;
    let cursors = vec![cursor("alice", None)];
    let request = SubscribeRequest { topic: "t".into(), cursors, ..Default::default() };
    let mut events = queues.subscribe(request).await.unwrap().into_inner();
    assert_eq!(next(&mut events).await, told("alice", "caught_up", ""));
    for _ in 0..2 {
        assert_eq!(next(&mut events).await, told("alice", "heartbeat", ""));
    }
    let position = enqueue(&mut queues, "alice", &["a"]).await;
    loop {
        match next(&mut events).await {
            (_, "heartbeat", _) => {}
            event => break assert_eq!(event, told("alice", "element", "a")),
        }
    }
    let beat = events.message().await.unwrap().unwrap();
    assert_eq!((beat.event, beat.next), (Some(Event::Heartbeat(Heartbeat {})), Some(position)));
    let body = json!({ "cursors": [{ "queue": "alice", "after": "end" }] });
    let told: Vec<_> = subscribed(&node, &body).take(3).collect();
    let names: Vec<_> = told.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["caught_up", "heartbeat", "heartbeat"]);
    assert_eq!(told[2].1, json!({ "queue": "alice", "next": position.to_string() }));
    // Where nothing ever was there is no place to tell.
    for path in ["/v1/topics/empty/queues/a/messages", "/v1/topics/empty/partitions/0/records"] {
        let mut lines = lines(&node, "GET", path, "");
        assert!(lines.any(|line| line.starts_with(':')), "{path} shows nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_not_read_on_above_its_memory_and_loses_nothing() {
    const REQUESTS: u64 = 288;
    const BYTES: usize = 256 << 10;
    const MOST: u64 = 16 << 20;
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), 1).await;
    let mut queues = node.queues().await;
    // The answers to a client above its quota are late, so its requests stay in flight: the first 50 MiB are free.
    limit(&node, "producer_byte_rate", 5_242_880.0).await;
    let value = "x".repeat(BYTES);
    let requests = stream::iter(0..REQUESTS)
        .map(move |call| streamed(call, "alice", &format!("{call} {value}")));
    let answers = queues.enqueue_stream(requests).await.unwrap().into_inner();
    let read = tokio::spawn(answers.map(Result::unwrap).collect::<Vec<_>>());
    let mut most = 0;
    while !read.is_finished() {
        most = most.max(in_flight(&node));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The node's own figure: answers on their way to a client that is slow to take them count no more.
    assert!(most > BYTES as u64, "{most} bytes were charged at most");
    assert!(most < MOST + (2 << 20), "{most} bytes were charged");
    let answers = read.await.unwrap();
    assert!(answers.iter().map(|it| it.call).eq(0..REQUESTS));
    let is_taken = |it: &_| matches!(it, Some(enqueue_stream_response::Result::Appended(_)));
    assert!(answers.iter().all(|it| is_taken(&it.result)));
    let elements = all(&mut queues, "alice", 0).await;
    let calls = elements.iter().map(|it| it.split(' ').next().unwrap().parse::<u64>().unwrap());
    assert!(calls.eq(0..REQUESTS));
    let began = Instant::now();
    while in_flight(&node) > 0 {
        assert!(began.elapsed() < PATIENCE, "{} bytes stay charged", in_flight(&node));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
