//! # Room card: access clients
//!
//! Purpose:    log in as users, ask for what rules may deny, and state what each answer says about the client.
//! Owns:       the connections of users; fetch sessions; questions that wait for their answer.
//! Interface:  [`Client::choose`], [`Client::on_came`].
//! Invariants: an answer that shows data or does something says that the client may; a denial says that it may not.
//! Never:      what is right (the oracle); the choice of the next client.
//! Tests:      scenario `access`.
//! Start at:   [`Client::choose`].

use std::sync::Arc;

use bytes::Bytes;
use duramen_broker::ConnectionId;
use duramen_broker::acls::{AclOperation, CLUSTER_NAME, Pattern, Permission, ResourceType};
use duramen_broker::checked_batch::CheckedBatch;
use duramen_broker::native::{
    Answer, Answered, Append, Op, Problem, Queue, Retrieve, Start, Target,
};
use duramen_broker::session::{Prepared, RequestContext, Session, SessionStep};
use duramen_protocol::compression::Codec;
use duramen_protocol::messages::create_acls::AclCreation;
use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic};
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::messages::{
    CreateAclsRequest, CreateTopicsRequest, FetchRequest, FetchResponse, MetadataRequest,
    ProduceRequest,
};
use duramen_protocol::partitioner::key_number;
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::sasl::scram::Credential;
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Request, RequestHeader, Response, encode_request};

use super::oracle::{Act, Says, Who};
use crate::batch::Records;
use crate::failure::{Failure, wrong};
use crate::machine::Came;
use crate::prng::Prng;

/// Topics of Kafka's clients. The name of one begins as that of another.
pub(super) const TOPICS: [&str; 4] = ["tea", "tea-green", "tin", "oak"];
/// Topic of queues.
pub(super) const QUAY: &str = "quay";
/// Names of topics that nobody makes.
const NEW_TOPICS: [&str; 2] = ["tea-new", "oak-new"];
const QUEUE: &[u8] = b"mail";
/// Longest waits for records, in milliseconds.
const WAITS_MS: [i32; 4] = [0, 500, 2_500, 6_000];

/// Question of a client.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Fetch,
    Produce(&'static str),
    Metadata,
    Create(&'static str),
    Rule,
    Enqueue,
    Retrieve,
}

/// Time at which a node may have looked at the rules for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// When it answered.
    Last,
    /// At any time since the question came.
    Since,
    /// The same, or another node did, to which the question was forwarded.
    Elsewhere,
}

/// Statement of an answer, and when the node looked.
pub(super) type Stated = (Says, Looked);

/// State of a connection.
#[derive(Clone, Debug)]
pub(super) enum Door {
    /// There is none.
    Out,
    /// The client waits for the credential of its user.
    Asks,
    /// The client has shown who it is, and the node does not know yet.
    Proven(Arc<Credential>),
    /// The client has shown that, and the machine stands still.
    Knocks(Arc<Credential>),
    /// The client is in, with this credential; none for the administrator.
    In(Option<Arc<Credential>>),
}

/// Question that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Outstanding {
    pub(super) sequence: u64,
    pub(super) asked: Asked,
    /// State of the machine when the question came, and a state that every machine in touch had then.
    pub(super) came: (i64, i64),
}

/// A client of a user.
pub(super) struct Client {
    pub(super) who: Who,
    /// The user; none for the administrator, who may do everything.
    pub(super) user: Option<String>,
    is_native: bool,
    names_by_id: bool,
    pub(super) door: Door,
    pub(super) connection: ConnectionId,
    /// Machine to which the connection leads.
    pub(super) at: usize,
    session: Session,
    sequence: u64,
    pub(super) outstanding: Option<Outstanding>,
    /// Id and next epoch of the fetch session.
    fetch_session: (i32, i32),
    /// Next offset in each topic, and the one that the session was told.
    offsets: [i64; TOPICS.len()],
    told: [Option<i64>; TOPICS.len()],
    /// Answers so far.
    pub(super) answered: u64,
}

fn session(connection: ConnectionId, who: &Who) -> Session {
    let host = format!("/{}", who.host);
    Session::new(connection, who.principal.as_str().into(), "SASL".into(), host.as_str().into())
}

/// Facts that a client knows when it asks.
pub(super) struct Means<'a> {
    /// Ids of the topics.
    pub(super) ids: &'a [Uuid; TOPICS.len()],
    /// True for each topic that the client's machine leads.
    pub(super) leads: [bool; TOPICS.len()],
    pub(super) wall_ms: i64,
    pub(super) chance: &'a mut Prng,
}

impl Client {
    pub(super) fn new(
        user: Option<&str>,
        host: &'static str,
        is_native: bool,
        by_id: bool,
    ) -> Self {
        let principal = format!("User:{}", user.unwrap_or("admin"));
        let who = Who { principal, host };
        let connection = ConnectionId(0);
        Self {
            session: session(connection, &who),
            who,
            user: user.map(str::to_owned),
            is_native,
            names_by_id: by_id,
            door: Door::Out,
            connection,
            at: 0,
            sequence: 0,
            outstanding: None,
            fetch_session: (0, 0),
            offsets: [0; TOPICS.len()],
            told: [None; TOPICS.len()],
            answered: 0,
        }
    }

    /// Begins a connection to a machine.
    pub(super) fn connect(&mut self, connection: ConnectionId, at: usize) {
        (self.connection, self.at) = (connection, at);
        self.session = session(connection, &self.who);
        self.door = if self.user.is_some() { Door::Asks } else { Door::In(None) };
        self.leave_session();
    }

    /// Forgets the connection.
    pub(super) fn leave(&mut self) {
        (self.door, self.outstanding) = (Door::Out, None);
    }

    fn leave_session(&mut self) {
        (self.fetch_session, self.told) = ((0, 0), [None; TOPICS.len()]);
    }

    /// Chooses a question. Returns it as the node wants it.
    pub(super) fn choose(
        &mut self,
        means: &mut Means<'_>,
    ) -> (Asked, (u64, RequestContext, Box<Prepared>)) {
        if self.is_native {
            return self.choose_native(means);
        }
        let kind = if self.user.is_none() { 55 } else { means.chance.below(100) };
        let (asked, request, version) = match kind {
            0..55 => (Asked::Fetch, self.fetch(&means.ids[..], means.chance), self.fetch_version()),
            55..78 => {
                let topic = topic_led(means.leads, means.chance);
                (Asked::Produce(TOPICS[topic]), produce(TOPICS[topic], means.wall_ms), 9)
            }
            78..88 => {
                let allow_auto_topic_creation = false;
                let topics = None;
                let request =
                    MetadataRequest { topics, allow_auto_topic_creation, ..Default::default() };
                (Asked::Metadata, request.into(), 12)
            }
            88..96 => {
                let name = *means.chance.pick(&NEW_TOPICS);
                (Asked::Create(name), create(name), 7)
            }
            _ => (Asked::Rule, rule(), 3),
        };
        (asked, self.framed(&request, version))
    }

    /// Sends a request as bytes.
    pub(super) fn framed(
        &mut self,
        request: &Request,
        version: i16,
    ) -> (u64, RequestContext, Box<Prepared>) {
        let header = RequestHeader {
            api_key: request.api_key().code(),
            api_version: version,
            correlation_id: 1,
            client_id: None,
        };
        let frame = encode_request(&header, request).expect("requests here are well-formed");
        match self.session.on_frame(frame.bytes.freeze().slice(4..)) {
            SessionStep::Request { sequence, context, request } => (sequence, context, request),
            other => panic!("a good request led to {other:?}"),
        }
    }

    fn fetch_version(&self) -> i16 {
        if self.names_by_id { 16 } else { 12 }
    }

    fn fetch(&mut self, ids: &[Uuid], chance: &mut Prng) -> Request {
        let (session_id, session_epoch) = self.fetch_session;
        let mut topics = Vec::new();
        for (at, name) in TOPICS.iter().enumerate() {
            let fetch_offset = self.offsets[at];
            if self.told[at].replace(fetch_offset) == Some(fetch_offset) {
                continue;
            }
            let part =
                FetchPartition { fetch_offset, partition_max_bytes: 1 << 20, ..Default::default() };
            let (topic, topic_id) = ((*name).to_owned(), ids[at]);
            topics.push(FetchTopic { topic, topic_id, partitions: vec![part] });
        }
        FetchRequest {
            max_wait_ms: *chance.pick(&WAITS_MS),
            min_bytes: 1,
            session_id,
            session_epoch,
            topics,
            ..Default::default()
        }
        .into()
    }

    fn choose_native(
        &mut self,
        means: &mut Means<'_>,
    ) -> (Asked, (u64, RequestContext, Box<Prepared>)) {
        let name = Bytes::from_static(QUEUE);
        let target = Target::Queue(Queue { topic: QUAY.to_owned(), name });
        let (asked, op) = if means.chance.chance(300) {
            (Asked::Enqueue, Op::Append(enqueue(target, means.wall_ms)))
        } else {
            let start = if means.chance.chance(700) { Start::End } else { Start::Begin };
            let wait_ms = *means.chance.pick(&WAITS_MS);
            let (is_certain, skips_trimmed) = (means.chance.chance(500), true);
            let read = Retrieve { target, start, wait_ms, is_certain, skips_trimmed };
            (Asked::Retrieve, Op::Retrieve(read))
        };
        let request = Prepared::Native(Box::new(op));
        let context = RequestContext {
            principal: self.who.principal.as_str().into(),
            client_id: None,
            listener: "NATIVE".into(),
            client_host: format!("/{}", self.who.host).as_str().into(),
            api: request.api(),
            version: 0,
            spent_us: 0,
            is_ruled: false,
        };
        self.sequence += 1;
        (asked, (self.sequence, context, Box::new(request)))
    }

    /// Takes an answer, and returns what it says about the client's rights.
    pub(super) fn on_came(
        &mut self,
        asked: &Asked,
        sequence: u64,
        came: Came,
        ids: &[Uuid; TOPICS.len()],
    ) -> Result<Vec<Stated>, Failure> {
        self.answered += 1;
        let quay = |operation| vec![Act::on_topic(operation, QUAY)];
        match (asked, came) {
            (_, Came::Silence) => Ok(Vec::new()),
            (_, Came::Response(response)) => {
                let sent = self.session.on_reply(sequence, Some(response.clone()));
                sent.map_err(|why| Failure::correctness(format!("a reply fails: {why}")))?;
                self.on_response(asked, response, ids)
            }
            (Asked::Retrieve, Came::Page(..)) => {
                Ok(vec![(self.may(quay(AclOperation::Read)), Looked::Last)])
            }
            (Asked::Retrieve | Asked::Enqueue, Came::Native(Answered { answer, .. })) => {
                let operation = match asked {
                    Asked::Retrieve => AclOperation::Read,
                    _ => AclOperation::Write,
                };
                Ok(match answer {
                    Ok(Answer::Appended { .. }) => {
                        vec![(self.may(quay(operation)), Looked::Since)]
                    }
                    Err(Problem::NotAuthorized) => {
                        vec![(self.may_not(quay(operation)), Looked::Since)]
                    }
                    _ => Vec::new(),
                })
            }
            (asked, _) => wrong(format!("an answer of another kind to {asked:?}")),
        }
    }

    fn may(&self, acts: Vec<Act>) -> Says {
        Says::May(self.who.clone(), acts)
    }

    fn may_not(&self, acts: Vec<Act>) -> Says {
        Says::MayNot(self.who.clone(), acts)
    }

    /// Returns the statement of an error code, or of its absence.
    fn of_code(&self, code: i16, acts: Vec<Act>) -> Option<Says> {
        let denials = [ErrorCode::TopicAuthorizationFailed, ErrorCode::ClusterAuthorizationFailed];
        match code {
            0 => Some(self.may(acts)),
            code if denials.iter().any(|it| it.code() == code) => Some(self.may_not(acts)),
            _ => None,
        }
    }

    fn on_response(
        &mut self,
        asked: &Asked,
        response: Response,
        ids: &[Uuid; TOPICS.len()],
    ) -> Result<Vec<Stated>, Failure> {
        let act = |operation, name: &str| vec![Act::on_topic(operation, name)];
        match (asked, response) {
            (Asked::Fetch, Response::Fetch(it)) => Ok(self.on_fetched(it, ids)),
            (Asked::Produce(name), Response::Produce(it)) => {
                let code = it.responses[0].partition_responses[0].error_code;
                let says = self.of_code(code, act(AclOperation::Write, name));
                Ok(says.into_iter().map(|it| (it, Looked::Since)).collect())
            }
            (Asked::Metadata, Response::Metadata(it)) => {
                let named =
                    |name: &str| it.topics.iter().any(|it| it.name.as_deref() == Some(name));
                let each = TOPICS.into_iter().chain([QUAY]).map(|name| {
                    let acts = act(AclOperation::Describe, name);
                    if named(name) { self.may(acts) } else { self.may_not(acts) }
                });
                Ok(each.map(|it| (it, Looked::Since)).collect())
            }
            (Asked::Create(name), Response::CreateTopics(it)) => {
                let on_cluster = on_cluster(AclOperation::Create);
                let acts = vec![on_cluster, Act::on_topic(AclOperation::Create, name)];
                let says = self.of_code(it.topics[0].error_code, acts);
                Ok(says.into_iter().map(|it| (it, Looked::Elsewhere)).collect())
            }
            (Asked::Rule, Response::CreateAcls(it)) => {
                let acts = vec![on_cluster(AclOperation::Alter)];
                let says = self.of_code(it.results[0].error_code, acts);
                Ok(says.into_iter().map(|it| (it, Looked::Elsewhere)).collect())
            }
            (asked, other) => wrong(format!("{other:?} to {asked:?}")),
        }
    }

    fn on_fetched(&mut self, response: FetchResponse, ids: &[Uuid; TOPICS.len()]) -> Vec<Stated> {
        if response.error_code != 0 || response.session_id == 0 {
            self.leave_session();
            return Vec::new();
        }
        self.fetch_session = (response.session_id, self.fetch_session.1 + 1);
        let mut stated = Vec::new();
        for topic in response.responses {
            let is_it = |at: &usize| {
                if self.names_by_id {
                    ids[*at] == topic.topic_id
                } else {
                    TOPICS[*at] == topic.topic
                }
            };
            let Some(at) = (0..TOPICS.len()).find(is_it) else { continue };
            for part in topic.partitions {
                if part.records.is_some_and(|it| !it.is_empty()) {
                    self.offsets[at] = part.high_watermark;
                }
                let acts = vec![Act::on_topic(AclOperation::Read, TOPICS[at])];
                stated.extend(self.of_code(part.error_code, acts).map(|it| (it, Looked::Last)));
            }
        }
        stated
    }
}

fn on_cluster(operation: AclOperation) -> Act {
    let (resource, name) = (ResourceType::Cluster, CLUSTER_NAME.to_owned());
    Act { operation, resource, name }
}

/// Chooses a topic, more often one that the machine leads.
fn topic_led(leads: [bool; TOPICS.len()], chance: &mut Prng) -> usize {
    let led: Vec<usize> = (0..TOPICS.len()).filter(|at| leads[*at]).collect();
    if led.is_empty() || chance.chance(200) {
        return chance.index(TOPICS.len());
    }
    *chance.pick(&led)
}

fn produce(topic: &'static str, wall_ms: i64) -> Request {
    let records = Records {
        timestamps: vec![wall_ms],
        value: b"leaf".to_vec(),
        producer: (-1, -1, -1),
        log_append_time: false,
        codec: Codec::None,
    };
    let records = Some(Bytes::from(records.encode(0, 0)));
    let partition_data = [PartitionProduceData { index: 0, records }].into();
    let topic =
        TopicProduceData { name: topic.into(), partition_data, ..TopicProduceData::default() };
    let topic_data = [topic].into();
    ProduceRequest { acks: -1, timeout_ms: 5_000, topic_data, ..Default::default() }.into()
}

/// Asks whether a topic could be made.
fn create(name: &str) -> Request {
    let topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions: 1,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    CreateTopicsRequest { topics: vec![topic], timeout_ms: 3_000, validate_only: true }.into()
}

/// Asks for a rule that concerns nobody here.
fn rule() -> Request {
    let creation = AclCreation {
        resource_type: ResourceType::Topic.code(),
        resource_name: "ash".to_owned(),
        resource_pattern_type: Pattern::Literal.code(),
        principal: "User:dan".to_owned(),
        host: "*".to_owned(),
        operation: AclOperation::Read.code(),
        permission_type: Permission::Allow.code(),
    };
    CreateAclsRequest { creations: vec![creation] }.into()
}

fn enqueue(target: Target, wall_ms: i64) -> Append {
    let mut builder = BatchBuilder::new();
    let record =
        NewRecord { timestamp: wall_ms, key: Some(QUEUE), value: Some(b"letter"), headers: &[] };
    builder.push(&record).expect("a small record");
    let batch = builder.build().expect("a small batch");
    let batch = CheckedBatch::of(batch, key_number(QUEUE)).expect("it is right");
    Append { target, batch, ids: Vec::new(), is_patient: false, timeout_ms: 5_000 }
}
