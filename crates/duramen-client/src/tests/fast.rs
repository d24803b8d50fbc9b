//! The fast appender against a leader and a follower that do what a test tells them to.

use std::collections::BTreeMap;

use duramen_protocol::api::advertised_to;
use duramen_protocol::messages::append_fast::{
    AppendFastPartition, AppendedFast, AppendedFastTopic,
};
use duramen_protocol::messages::describe_fast::{DescribedFast, DescribedFastTopic};
use duramen_protocol::messages::{AppendFastResponse, DescribeFastResponse};

use super::*;

const LEADER: NodeId = 7;
const FOLLOWER: NodeId = 8;
const STRETCH: (i64, i64) = (3, 40);
const LATER: (i64, i64) = (3, 90);

const NOT_NOW: i8 = 0;
const HELD: i8 = 1;
const APPENDED: i8 = 2;
const COMMITTED: i8 = 3;
const UNCOUNTED: i8 = 4;

/// Behaviour of a node towards the copy of one batch that goes to all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    NotNow,
    Uncounted,
    Committed,
    /// The node never answers.
    Silent,
    HangsUp,
    /// The node takes the batch under the stretch, and names a later one.
    NamesAnother,
}

enum Reply {
    Answer(Response),
    Silence,
    HangUp,
}

/// A leader and a follower of partition 0 of topic `t`. Each batch has one record, so its sequence is its number.
#[derive(Default)]
struct Pair {
    /// Batches in the leader's log.
    log: Vec<i32>,
    twists: BTreeMap<(NodeId, i32), Twist>,
    /// Errors of requests for a commit, once each.
    errors: Vec<(i32, ErrorCode)>,
    /// The leader has lost these batches when it is asked after them.
    forgotten: Vec<i32>,
    is_allowed: bool,
    has_moved_on: bool,
    /// Requests for a commit: sequence, and true if they have the batch.
    commits: Vec<(i32, bool)>,
    /// Copies that members got.
    copies: Vec<(NodeId, i32, (i64, i64))>,
    produced: u32,
}

impl Pair {
    /// Returns the stretch that is open.
    fn stretch(&self) -> (i64, i64) {
        if self.has_moved_on { LATER } else { STRETCH }
    }

    fn append(&mut self, sequence: i32) -> bool {
        if !self.log.contains(&sequence) && usize::try_from(sequence).unwrap() == self.log.len() {
            self.log.push(sequence);
        }
        self.log.contains(&sequence)
    }

    fn on(&mut self, node: NodeId, request: &Request) -> Reply {
        match request {
            Request::DescribeFast(_) => Reply::Answer(self.describe()),
            Request::AppendFast(it) => {
                let partition = &it.topics[0].partitions[0];
                match it.wait {
                    0 => self.copy(node, partition),
                    _ => self.commit(node, partition),
                }
            }
            Request::Produce(_) => {
                self.produced += 1;
                let sequence = sent(request).header().base_sequence;
                assert!(self.append(sequence));
                Reply::Answer(appended(ErrorCode::None, sequence.into()))
            }
            Request::InitProducerId(_) => {
                let producer = InitProducerIdResponse { producer_id: 9, ..Default::default() };
                Reply::Answer(producer.into())
            }
            other => panic!("{other:?}"),
        }
    }

    fn describe(&self) -> Response {
        let part = if self.is_allowed {
            DescribedFast {
                stretch_term: self.stretch().0,
                stretch_index: self.stretch().1,
                members: vec![LEADER, FOLLOWER],
                ..DescribedFast::default()
            }
        } else {
            DescribedFast { error_code: ErrorCode::PolicyViolation.code(), ..Default::default() }
        };
        let topic = DescribedFastTopic { partitions: vec![part], ..Default::default() };
        DescribeFastResponse { topics: vec![topic], ..Default::default() }.into()
    }

    fn copy(&mut self, node: NodeId, part: &AppendFastPartition) -> Reply {
        let batch = BatchView::parse(part.records.as_ref().unwrap()).unwrap();
        assert!(batch.crc_matches(), "a claimed batch has a new checksum");
        let sequence = batch.header().base_sequence;
        assert_eq!((part.first_sequence, part.last_sequence), (sequence, sequence));
        self.copies.push((node, sequence, (part.stretch_term, part.stretch_index)));
        let twist = self.twists.get(&(node, sequence)).copied();
        let outcome = match twist {
            Some(Twist::NotNow) => NOT_NOW,
            Some(Twist::Silent) if node == FOLLOWER => return Reply::Silence,
            Some(Twist::HangsUp) => return Reply::HangUp,
            Some(Twist::Committed) if self.append(sequence) => COMMITTED,
            _ if node == FOLLOWER => HELD,
            Some(Twist::Uncounted) if self.append(sequence) => UNCOUNTED,
            _ if self.append(sequence) => APPENDED,
            _ => NOT_NOW,
        };
        if twist == Some(Twist::Silent) {
            return Reply::Silence;
        }
        self.has_moved_on |= twist == Some(Twist::NamesAnother);
        Reply::Answer(answer(node, outcome, sequence, self.stretch()))
    }

    fn commit(&mut self, node: NodeId, part: &AppendFastPartition) -> Reply {
        assert_eq!(node, LEADER, "only the leader knows of commits");
        let sequence = part.first_sequence;
        self.commits.push((sequence, part.records.is_some()));
        if let Some(at) = self.errors.iter().position(|(of, _)| *of == sequence) {
            let (_, code) = self.errors.remove(at);
            return Reply::Answer(refused(code));
        }
        if part.records.is_none() && self.forgotten.contains(&sequence) {
            return Reply::Answer(answer(LEADER, NOT_NOW, sequence, self.stretch()));
        }
        if !self.append(sequence) {
            return Reply::Answer(refused(ErrorCode::OutOfOrderSequenceNumber));
        }
        Reply::Answer(answer(LEADER, COMMITTED, sequence, self.stretch()))
    }
}

fn answer(node: NodeId, outcome: i8, sequence: i32, stretch: (i64, i64)) -> Response {
    let base_offset = if outcome == COMMITTED { i64::from(sequence) } else { -1 };
    let part = AppendedFast { outcome, base_offset, ..AppendedFast::default() };
    if node == FOLLOWER {
        return of(part);
    }
    let (stretch_term, stretch_index) = stretch;
    let members = vec![LEADER, FOLLOWER];
    of(AppendedFast { stretch_term, stretch_index, members, ..part })
}

fn refused(code: ErrorCode) -> Response {
    of(AppendedFast { error_code: code.code(), ..AppendedFast::default() })
}

fn of(part: AppendedFast) -> Response {
    let topic = AppendedFastTopic { partitions: [part].into(), ..Default::default() };
    AppendFastResponse { topics: [topic].into(), ..Default::default() }.into()
}

/// Starts both nodes.
async fn start(pair: &Arc<Mutex<Pair>>) -> Client {
    let mut listeners = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ports.push(listener.local_addr().unwrap().port());
        listeners.push(listener);
    }
    let both = (ports[0], ports[1]);
    for (node, listener) in [LEADER, FOLLOWER].into_iter().zip(listeners) {
        let pair = pair.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_as(node, stream, both, pair.clone()));
            }
        });
    }
    let options = Options {
        retry_for: Duration::from_secs(5),
        request_timeout: Duration::from_secs(5),
        ..Options::new([format!("127.0.0.1:{}", ports[0])])
    };
    Client::connect(options).await.unwrap()
}

async fn serve_as(
    node: NodeId,
    mut stream: TcpStream,
    (leader, follower): (u16, u16),
    pair: Arc<Mutex<Pair>>,
) {
    while let Ok(length) = stream.read_u32().await {
        let mut frame = vec![0; length as usize];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
        let (header, request) = decode_request(Bytes::from(frame)).unwrap();
        let reply = match &request {
            Request::ApiVersions(_) => {
                let mut response = versions();
                response.api_keys.extend(advertised_to("duramen").map(|api| ApiVersion {
                    api_key: api.key.code(),
                    min_version: api.advertised.first,
                    max_version: api.advertised.last,
                }));
                Reply::Answer(response.into())
            }
            Request::Metadata(_) => {
                let mut response = metadata(leader);
                let mut other = response.brokers[0].clone();
                (other.node_id, other.port) = (FOLLOWER, follower.into());
                response.brokers.push(other);
                Reply::Answer(response.into())
            }
            other => pair.lock().unwrap().on(node, other),
        };
        let response = match reply {
            Reply::Answer(response) => response,
            Reply::Silence => std::future::pending().await,
            Reply::HangUp => return,
        };
        let frame = encode_response(header.correlation_id, &response, header.api_version).unwrap();
        stream.write_all(&frame.bytes).await.unwrap();
    }
}

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

async fn appender(client: &Client, window: usize, late_after: Duration) -> FastAppender {
    let producer = client.init_producer().await.unwrap();
    let options = FastOptions { producer, window, timeout_ms: 1_000, late_after };
    let mut appender = FastAppender::new(client.clone(), "t", 0, options);
    appender.prepare(Duration::from_secs(5)).await;
    appender
}

/// Appends so many batches. Returns their offsets.
async fn append(appender: &mut FastAppender, count: i32) -> Vec<i64> {
    let mut acked = Vec::new();
    for index in 0..count {
        acked.extend(appender.push(batch(&index.to_string())).await.unwrap());
    }
    acked.extend(appender.finish().await.unwrap());
    acked.iter().map(|acked| acked.base_offset).collect()
}

fn pair(twists: &[(NodeId, i32, Twist)]) -> Arc<Mutex<Pair>> {
    let twists = twists.iter().map(|(node, sequence, twist)| ((*node, *sequence), *twist));
    let twists = twists.collect();
    Arc::new(Mutex::new(Pair { twists, is_allowed: true, ..Pair::default() }))
}

/// Runs twenty batches, and checks that each is in the log once and in order.
async fn twenty(twists: &[(NodeId, i32, Twist)], window: usize) -> (Arc<Mutex<Pair>>, Vec<i64>) {
    let pair = pair(twists);
    let client = start(&pair).await;
    let is_silent = twists.iter().any(|(_, _, twist)| *twist == Twist::Silent);
    let mut appender =
        appender(&client, window, if is_silent { LATE_AFTER } else { PATIENCE }).await;
    let offsets = append(&mut appender, 20).await;
    assert_eq!(offsets.len(), 20);
    for (at, offset) in (0..).zip(&offsets) {
        assert!([-1, at].contains(offset), "{offsets:?}");
    }
    assert_eq!(pair.lock().unwrap().log, (0..20).collect::<Vec<_>>());
    let copies = pair.lock().unwrap().copies.clone();
    for node in [LEADER, FOLLOWER] {
        let of = |it: &i32| copies.iter().filter(|copy| (copy.0, copy.1) == (node, *it)).count();
        assert!((0..20).all(|it| of(&it) <= 1), "each batch went to a member once");
    }
    (pair, offsets)
}

#[tokio::test]
async fn a_batch_that_all_members_have_needs_no_commit() {
    for window in [1, 5] {
        let (pair, offsets) = twenty(&[], window).await;
        let pair = pair.lock().unwrap();
        assert_eq!(offsets, [-1; 20]);
        assert_eq!(pair.commits, []);
        assert!(pair.copies.iter().all(|copy| copy.2 == STRETCH));
        assert_eq!(pair.produced, 0);
    }
}

#[tokio::test]
async fn a_batch_that_a_follower_does_not_take_goes_to_the_leader_for_the_commit() {
    for window in [1, 5] {
        let (pair, offsets) = twenty(&[(FOLLOWER, 6, Twist::NotNow)], window).await;
        assert_eq!(offsets[6], 6);
        assert!(pair.lock().unwrap().commits.iter().any(|(sequence, _)| *sequence == 6));
    }
}

#[tokio::test]
async fn the_leader_is_asked_by_ids_after_a_batch_that_it_has() {
    let (pair, offsets) = twenty(&[(LEADER, 6, Twist::Uncounted)], 1).await;
    assert_eq!(offsets[6], 6);
    assert_eq!(pair.lock().unwrap().commits, [(6, false)]);
}

#[tokio::test]
async fn a_batch_that_the_leader_does_not_know_is_sent_whole() {
    let pair = pair(&[(LEADER, 0, Twist::Uncounted)]);
    pair.lock().unwrap().forgotten.push(0);
    let client = start(&pair).await;
    let mut appender = appender(&client, 1, PATIENCE).await;
    assert_eq!(append(&mut appender, 1).await, [0]);
    assert_eq!(pair.lock().unwrap().commits, [(0, false), (0, true)]);
}

#[tokio::test]
async fn lost_and_silent_members_lose_nothing() {
    for window in [1, 5] {
        let twists = [
            (LEADER, 3, Twist::HangsUp),
            (FOLLOWER, 5, Twist::HangsUp),
            (LEADER, 9, Twist::NotNow),
            (FOLLOWER, 12, Twist::Silent),
        ];
        twenty(&twists, window).await;
        twenty(&[(LEADER, 4, Twist::Silent), (FOLLOWER, 4, Twist::NotNow)], window).await;
    }
}

#[tokio::test]
async fn one_committed_is_enough_and_tells_the_offset() {
    let (_, offsets) = twenty(&[(LEADER, 6, Twist::Committed)], 1).await;
    assert_eq!(offsets[6], 6);
}

#[tokio::test]
async fn a_stretch_that_the_leader_names_is_used_from_then_on() {
    let (pair, _) = twenty(&[(LEADER, 6, Twist::NamesAnother)], 1).await;
    let pair = pair.lock().unwrap();
    let under = |sequence| pair.copies.iter().find(|copy| copy.1 == sequence).map(|copy| copy.2);
    assert_eq!(under(6), Some(STRETCH));
    assert!(pair.copies.iter().any(|copy| copy.2 == LATER), "{:?}", pair.copies);
}

#[tokio::test]
async fn requests_for_a_commit_are_sent_again_while_that_may_help() {
    let pair = pair(&[(FOLLOWER, 0, Twist::NotNow), (LEADER, 0, Twist::NotNow)]);
    let errors = [ErrorCode::NotLeaderOrFollower, ErrorCode::RequestTimedOut];
    pair.lock().unwrap().errors.extend(errors.map(|code| (0, code)));
    let client = start(&pair).await;
    let offsets = append(&mut appender(&client, 5, PATIENCE).await, 5).await;
    assert_eq!(offsets[0], 0);
    assert_eq!(pair.lock().unwrap().log, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_refusal_for_good_comes_from_the_request_for_the_commit() {
    let pair = pair(&[(FOLLOWER, 1, Twist::NotNow), (LEADER, 1, Twist::NotNow)]);
    pair.lock().unwrap().errors.push((1, ErrorCode::MessageTooLarge));
    let client = start(&pair).await;
    let mut appender = appender(&client, 1, PATIENCE).await;
    append(&mut appender, 1).await;
    appender.push(batch("too large")).await.unwrap();
    let error = appender.finish().await.unwrap_err();
    let text = "append to partition 0 of topic t: MESSAGE_TOO_LARGE";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_topic_that_does_not_allow_it_is_produced_to_with_one_warning() {
    let pair = pair(&[]);
    pair.lock().unwrap().is_allowed = false;
    let client = start(&pair).await;
    let mut appender = appender(&client, 5, PATIENCE).await;
    assert_eq!(append(&mut appender, 20).await, (0..20).collect::<Vec<_>>());
    let warning = appender.warning().unwrap();
    assert!(warning.contains("fast.append.enable"), "{warning}");
    assert_eq!(appender.warning(), None);
    let pair = pair.lock().unwrap();
    assert_eq!((pair.produced, pair.copies.len(), pair.commits.len()), (20, 0, 0));
}

#[tokio::test]
async fn a_cluster_that_does_not_know_it_is_produced_to_with_one_warning() {
    let client = broker(|request| match request {
        Request::InitProducerId(_) => {
            let producer = InitProducerIdResponse { producer_id: 9, ..Default::default() };
            Some(producer.into())
        }
        request => Some(appended(ErrorCode::None, sent(request).header().base_sequence.into())),
    })
    .await;
    let mut appender = appender(&client, 5, PATIENCE).await;
    assert_eq!(append(&mut appender, 20).await, (0..20).collect::<Vec<_>>());
    assert!(appender.warning().unwrap().contains("does not know"));
}
