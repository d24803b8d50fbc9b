//! A driver of one node: sessions for connections, and storage that is a few vectors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::{BatchHeader, BatchView};
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::produce::{
    PartitionProduceData, PartitionProduceResponse, TopicProduceData,
};
use duramen_protocol::messages::{
    CreateTopicsRequest, CreateTopicsResponse, FetchRequest, FetchResponse, MetadataRequest,
    MetadataResponse, ProduceRequest, ShareFetchResponse,
};
use duramen_protocol::records::{BatchBuilder, ID_HEADER, NewRecord, Records};
use duramen_protocol::sasl::scram::Credential;
use duramen_protocol::wire::RecordData;
use duramen_protocol::{ApiKey, Request, RequestHeader, Response, decode_response, encode_request};
use duramen_storage::compaction::Order;
use duramen_storage::history::History;
use duramen_storage::indexing::{self, Indexed, Touched, queue_hash};
use duramen_storage::keys::{
    Erasable, Fact, Masks, Said, Standing, Statement, is_replacement, statement_with, statements_of,
};
use duramen_storage::mending::Mend;
use duramen_storage::op::{
    Compacted, ConfState, Content, Done, HardState, Hold, HoldId, Identity, LogEntry, Op, OpKind,
    RecoveredReplica, ReplicaId, SegmentMeta, Shortage, TermRun,
};
use duramen_storage::staging::Stage;
use duramen_storage::storage::Facts;

use crate::access::Api;
use crate::checked_batch::digest_of;
use crate::configs::BrokerSettings;
use crate::controller::METADATA_TOPIC;
use crate::core::ClientListener;
use crate::event::{
    Action, ConnectionId, Dated, DeadLettersMade, Event, FetchPlan, FoundElement, FoundElements,
    LogRead, Look, Now, QueueLook, QueueLooked, ReadLog, Reply, SharePlan, Survey, Surveyed,
    WantedElements,
};
use crate::limits::{GROUP_QUIET_TICKS, Memory};
use crate::native::{self, Answer, Answered, Position, Problem};
use crate::node::{Node, NodeOptions};
use crate::peer::PeerFrame;
use crate::read_plan::{first_since, letters_of, seen_in};
use crate::recompression::Targets;
use crate::session::{Prepared, RequestContext, Session, SessionStep};

/// One replica as the model of storage keeps it.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub identity: Identity,
    pub conf: ConfState,
    pub hard_state: HardState,
    pub entries: Vec<LogEntry>,
    pub payloads: Vec<Bytes>,
    pub log_start: i64,
    pub image: (u64, Bytes),
    /// Where its log begins: index, term, offset.
    pub begins: (u64, u64, i64),
    /// Batches beside the log.
    pub holds: BTreeMap<HoldId, Bytes>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub replicas: BTreeMap<ReplicaId, Stored>,
    pub deleted: Vec<ReplicaId>,
    pub trims: Vec<(ReplicaId, i64)>,
    pub turns: usize,
    /// Replicas that the next start finds damaged, and whether that is for want of room.
    pub damaged: BTreeMap<ReplicaId, bool>,
}

impl Store {
    pub(super) fn execute(&mut self, op: Op) -> Option<Done> {
        let replica = op.replica;
        if let OpKind::Create { ticket, identity, conf } = op.kind {
            let begins = if conf.voters.is_empty() { (0, 0, 0) } else { (1, 1, 0) };
            let stored = Stored {
                begins,
                identity,
                conf,
                holds: BTreeMap::new(),
                hard_state: HardState::default(),
                entries: Vec::new(),
                payloads: Vec::new(),
                log_start: 0,
                image: (begins.0, Bytes::new()),
            };
            assert!(self.replicas.insert(replica, stored).is_none(), "made twice");
            return Some(Done::Persisted { replica, ticket });
        }
        let stored = self.replicas.get_mut(&replica).expect("created before");
        match op.kind {
            OpKind::Create { .. } => unreachable!(),
            OpKind::Reset(beginning) => {
                stored.begins = (beginning.index, beginning.term, beginning.end_offset);
                stored.entries.clear();
                stored.payloads.clear();
                let given = beginning.given.as_ref();
                stored.log_start = given.map_or(beginning.end_offset, |given| given.log_start);
                stored.conf = beginning.conf;
                stored.image = (beginning.index, beginning.image);
            }
            OpKind::Write { ticket, appends, hard_state, .. } => {
                for append in appends {
                    let at = append.entry.index - stored.begins.0 - 1;
                    let at = usize::try_from(at).expect("small");
                    stored.entries.truncate(at);
                    stored.payloads.truncate(at);
                    assert_eq!(stored.entries.len(), at, "no gaps");
                    if let Content::Batch(descriptor) = &append.entry.content {
                        assert!(descriptor.matches(&append.payload), "descriptor and batch agree");
                    }
                    stored.entries.push(append.entry);
                    stored.payloads.push(append.payload);
                }
                stored.hard_state = hard_state.unwrap_or(stored.hard_state);
                return Some(Done::Persisted { replica, ticket });
            }
            OpKind::Conf { conf } => stored.conf = conf,
            OpKind::Trim { log_start } => {
                stored.log_start = log_start;
                self.trims.push((replica, log_start));
            }
            OpKind::Image { index, image } => stored.image = (index, image),
            OpKind::Settle => {}
            OpKind::Hold(hold) => {
                stored.holds.insert(hold.id, hold.payload);
                return Some(Done::Held { replica, hold: hold.id });
            }
            OpKind::LetGo(holds) => stored.holds.retain(|id, _| !holds.contains(id)),
            OpKind::Delete => {
                self.replicas.remove(&replica);
                self.deleted.push(replica);
            }
        }
        None
    }

    pub(super) fn recover(&self) -> Vec<RecoveredReplica> {
        let found = |(id, stored): (&ReplicaId, &Stored)| {
            let damaged = self.damaged.get(id);
            RecoveredReplica {
                damage: damaged.map(|_| "a segment is missing".to_owned()),
                lacks_room: damaged == Some(&true),
                ..stored.recover(*id)
            }
        };
        self.replicas.iter().map(found).collect()
    }

    pub(super) fn metadata_tail(&self) -> Vec<Bytes> {
        let is_metadata = |it: &&Stored| it.identity.topic == METADATA_TOPIC;
        let Some(metadata) = self.replicas.values().find(is_metadata) else { return Vec::new() };
        let all = metadata.entries.iter().zip(&metadata.payloads);
        let after =
            all.filter(|(entry, payload)| entry.index > metadata.image.0 && !payload.is_empty());
        after.map(|(_, payload)| payload.clone()).collect()
    }
}

impl Stored {
    fn recover(&self, replica: ReplicaId) -> RecoveredReplica {
        let mut runs: Vec<TermRun> = Vec::new();
        let mut segments: Vec<SegmentMeta> = Vec::new();
        let (mut end_offset, mut prev) = (self.begins.2, self.begins);
        for entry in &self.entries {
            let (term, first_index) = (entry.term, entry.index);
            if runs.last().is_none_or(|run| run.term < term) {
                runs.push(TermRun { term, first_index, start_offset: end_offset });
            }
            if let Content::Batch(batch) = &entry.content {
                if batch.starts_segment {
                    let base_offset = batch.base_offset;
                    let max_timestamp = -1;
                    segments.push(SegmentMeta { base_offset, first_index, size: 0, max_timestamp });
                }
                let segment = segments.last_mut().expect("the first batch starts one");
                segment.size += u64::from(batch.length);
                segment.max_timestamp = segment.max_timestamp.max(batch.max_timestamp);
                end_offset = batch.end_offset();
            }
            if entry.index <= self.image.0 {
                prev = (entry.index, entry.term, end_offset);
            }
        }
        let later = segments.iter().skip(1).map(|segment| segment.base_offset);
        let gone = later.take_while(|base| *base <= self.log_start).count();
        RecoveredReplica {
            replica,
            identity: self.identity.clone(),
            hard_state: self.hard_state,
            conf: self.conf.clone(),
            prev_index: prev.0,
            prev_term: prev.1,
            prev_end_offset: prev.2,
            entries: self.entries.iter().filter(|it| it.index > prev.0).cloned().collect(),
            term_runs: runs,
            log_start: self.log_start,
            compacted: Compacted::default(),
            history: History::new(prev.0, prev.1, prev.2),
            end_offset,
            image: self.image.1.clone(),
            holds: self
                .holds
                .iter()
                .map(|(id, payload)| Hold { id: *id, payload: payload.clone() })
                .collect(),
            segments: segments.split_off(gone),
            damage: None,
            lacks_room: false,
        }
    }

    /// Batches that hold offsets from `from` up to `end`.
    pub(super) fn batches(&self, from: i64, end: i64) -> Vec<Bytes> {
        let all = self.payloads.iter().filter(|payload| !payload.is_empty());
        let inside = all.filter(|payload| {
            let header = BatchHeader::parse(payload).expect("our own batch");
            header.end_offset() > from && header.base_offset < end
        });
        inside.cloned().collect()
    }

    /// Statements about queues, each with its offset.
    pub(super) fn said(&self) -> Vec<(i64, Statement)> {
        let mut all = Vec::new();
        for batch in self.batches(0, i64::MAX) {
            let batch = BatchView::parse(&batch).expect("our own batch");
            let header = batch.header();
            let said = if header.attributes.is_control() {
                statements_of(&batch).expect("it can be read").unwrap_or_default()
            } else {
                let records = Records::of(&batch, usize::MAX).expect("records");
                let first = records.iter().next().expect("one").expect("a record");
                let said = statement_with(header, &first).expect("it can be read");
                said.into_iter().collect()
            };
            all.extend(said.into_iter().map(|it| (header.base_offset, it)));
        }
        all
    }

    /// Facts about a queue below an offset, as far as the log has them.
    fn facts(&self, key: &[u8], end: i64) -> Vec<Fact> {
        let said = self.said().into_iter();
        let own = said.filter(|(at, it)| *at < end && it.queue == key);
        let fact = |(offset, Statement { said, .. })| Fact {
            kind: Said::kind(&said),
            offset,
            body: said.body(),
        };
        own.map(fact).collect()
    }

    /// Statements that the log has to repeat before it loses its records below an offset.
    fn kept(&self, below: i64, end: i64) -> Vec<(Bytes, Said)> {
        let queues: BTreeSet<Bytes> = self.said().into_iter().map(|(_, it)| it.queue).collect();
        let mut kept = Vec::new();
        for queue in queues {
            let facts = self.facts(&queue, end);
            let standing = Standing::of(&facts).expect("they can be read");
            kept.extend(standing.below(below).map(|said| (queue.clone(), said)));
        }
        kept
    }

    /// Statements from an offset on that took records away, and the time of the first one.
    fn erasable(&self, since: i64, end: i64) -> Option<(Erasable, i64)> {
        let said = self.said();
        let taking = said.iter().filter(|(offset, it)| {
            let is_trim = matches!(it.said, Said::Trimmed { first_said: ..0, .. });
            (since..end).contains(offset) && (is_trim || !it.said.withdrawn().is_empty())
        });
        let offsets: Vec<i64> = taking.clone().map(|(offset, _)| *offset).collect();
        let records = taking.map(|(_, it)| it.said.withdrawn().len() as u64).sum();
        let (first, last) = (*offsets.first()?, *offsets.last()?);
        let batch = self.batches(first, i64::MAX).first().cloned()?;
        let time_ms = BatchView::parse(&batch).ok()?.header().max_timestamp;
        Some((Erasable { first, last, records }, time_ms))
    }

    /// Offsets that the log's statements mask.
    fn masks(&self) -> Masks {
        let mut masks = Masks::default();
        for (_, statement) in self.said() {
            statement.said.withdrawn().iter().for_each(|offset| masks.insert(*offset));
        }
        masks
    }

    /// Elements of a queue that are shown.
    pub(super) fn shown(&self, key: &[u8]) -> Vec<FoundElement> {
        let (masks, said) = (self.masks(), self.said());
        let mut shown = Vec::new();
        for batch in self.batches(0, i64::MAX) {
            let view = BatchView::parse(&batch).expect("a batch");
            let header = view.header();
            let records = Records::of(&view, usize::MAX).expect("records");
            for record in &records {
                let record = record.expect("a record");
                if record.key != Some(key) || is_replacement(&record) {
                    continue;
                }
                let offset = records.offset(&record);
                let replaced = said.iter().filter(|(at, statement)| match &statement.said {
                    Said::Replaced(it) => it.offset == offset && !masks.hides(*at),
                    _ => false,
                });
                let content = replaced.map(|(at, _)| *at).next().unwrap_or(offset);
                let (term, entry) = (header.partition_leader_epoch, header.base_offset);
                let position = Position { term, entry, offset };
                if !masks.hides(content) {
                    let (id, digest) = self.id_of(content);
                    shown.push(FoundElement { position, content, id, digest });
                }
            }
        }
        shown
    }

    fn id_of(&self, offset: i64) -> (Option<Bytes>, u64) {
        let batch = self.batches(offset, offset + 1).pop().expect("it is there");
        let view = BatchView::parse(&batch).expect("a batch");
        let records = Records::of(&view, usize::MAX).expect("records");
        let mut all = records.iter().map(|it| it.expect("a record"));
        let record = all.find(|it| records.offset(it) == offset).expect("it is there");
        let id = record.headers.into_iter().find(|it| it.key == ID_HEADER.as_bytes());
        (id.and_then(|it| it.value).map(Bytes::copy_from_slice), digest_of(&record))
    }
}

/// What came back for a request.
#[derive(Debug)]
pub(super) enum Came {
    Response(Response),
    Closed(String),
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Harness {
    pub node: Node,
    pub store: Store,
    pub now: Now,
    /// Whether storage answers at once.
    pub is_prompt: bool,
    /// Ops that storage did not execute yet.
    pub queued: Vec<Op>,
    /// Reads of logs that were not carried out yet.
    pub reads: Vec<ReadLog>,
    /// Looks at logs that were not carried out yet.
    pub looks: Vec<Look>,
    /// What it said to other nodes.
    pub sent: Vec<(i32, PeerFrame)>,
    /// What is read cannot be.
    pub are_reads_broken: bool,
    /// True if they do so because a compaction has changed what is there.
    pub are_reads_changed: bool,
    /// Segments that it wants mended.
    pub mends: Vec<Mend>,
    pub compactions: Vec<Order>,
    /// Orders of the queue index, and the end of each index. They are carried out at once, unless somebody stops that.
    pub orders: Vec<indexing::Order>,
    pub indexed: BTreeMap<ReplicaId, i64>,
    pub is_indexing: bool,
    pub stages: Vec<Stage>,
    /// It has nothing left that others could lead.
    pub is_drained: bool,
    pub sessions: BTreeMap<ConnectionId, Session>,
    pub targets: Arc<Targets>,
    asked: BTreeMap<(ConnectionId, i32), (ApiKey, i16)>,
    answers: BTreeMap<u64, Answered>,
    operations: u64,
    /// Answers to questions about users.
    pub credentials: BTreeMap<ConnectionId, Arc<Credential>>,
    came: BTreeMap<(ConnectionId, i32), Came>,
    correlation: i32,
}

pub(super) const ONE: ConnectionId = ConnectionId(1);
/// Connection of all operations of the native API.
pub(super) const NATIVE: ConnectionId = ConnectionId(2);
pub(super) const WALL_MS: i64 = 1_700_000_000_000;

/// A disk that is full.
pub(super) const SHORTAGE: Shortage = Shortage { free_bytes: 200 << 20, needed_bytes: 400 << 20 };

pub(super) fn settings(pairs: &[(&str, &str)]) -> BrokerSettings {
    let pairs: Vec<_> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    BrokerSettings::from_pairs(&pairs).expect("good settings")
}

pub(super) fn options(
    settings: BrokerSettings,
    seed: u64,
    metadata_tail: Vec<Bytes>,
) -> NodeOptions {
    NodeOptions {
        facts: Facts { cluster_id: [7; 16], broker_id: 0, directory_id: [9; 16] },
        listeners: vec![ClientListener {
            name: "PLAINTEXT".to_owned(),
            host: "node.example".to_owned(),
            port: 9092,
        }],
        rack: None,
        log_dir: "/data".to_owned(),
        settings,
        seed,
        bytes_in_flight_max: 1 << 20,
        node_address: None,
        native_address: None,
        founders: Vec::new(),
        memory: Memory::default(),
        introduced: Vec::new(),
        replaces: false,
        quiet_ticks: GROUP_QUIET_TICKS,
        metadata_tail,
        kinds: crate::KINDS,
        secret: [3; 32],
        first_users: Vec::new(),
    }
}

impl Harness {
    pub(super) fn new(pairs: &[(&str, &str)]) -> Self {
        let mut harness = Self::slow(Store::default(), pairs, 1);
        harness.is_prompt = true;
        harness.run();
        harness
    }

    /// A node over `store` that was just opened, and whose storage waits to be told.
    pub(super) fn slow(store: Store, pairs: &[(&str, &str)], seed: u64) -> Self {
        let options = options(settings(pairs), seed, store.metadata_tail());
        Self::opened(store, options, Now { mono_us: 0, wall_ms: WALL_MS })
    }

    /// A node over `store` with these options.
    pub(super) fn opened(store: Store, options: NodeOptions, now: Now) -> Self {
        let mut actions = Vec::new();
        let node = Node::open(options, store.recover(), now, &mut actions);
        let mut harness = Self {
            node,
            store,
            now,
            is_prompt: false,
            queued: Vec::new(),
            reads: Vec::new(),
            looks: Vec::new(),
            sent: Vec::new(),
            are_reads_broken: false,
            are_reads_changed: false,
            mends: Vec::new(),
            compactions: Vec::new(),
            orders: Vec::new(),
            indexed: BTreeMap::new(),
            is_indexing: true,
            stages: Vec::new(),
            is_drained: false,
            sessions: BTreeMap::new(),
            targets: Arc::default(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            operations: 0,
            came: BTreeMap::new(),
            credentials: BTreeMap::new(),
            correlation: 0,
        };
        harness.act(actions);
        harness
    }

    /// The node dies; another one opens what storage has.
    pub(super) fn restart(&mut self, pairs: &[(&str, &str)], seed: u64) {
        let (now, is_indexing) = (self.now, self.is_indexing);
        *self = Self::slow(std::mem::take(&mut self.store), pairs, seed);
        (self.is_prompt, self.is_indexing) = (true, is_indexing);
        self.now.wall_ms = now.wall_ms;
        self.run();
    }

    /// The node dies, and comes back; what it wants to read is not read yet.
    pub(super) fn restart_without_reading(&mut self, pairs: &[(&str, &str)], seed: u64) {
        let wall_ms = self.now.wall_ms;
        *self = Self::slow(std::mem::take(&mut self.store), pairs, seed);
        self.now.wall_ms = wall_ms;
        for _ in 0..10 {
            self.persist();
            self.run();
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        if actions.iter().any(|action| matches!(action, Action::Storage(_))) {
            self.store.turns += 1;
        }
        for action in actions {
            match action {
                Action::Storage(op) => self.queued.push(op),
                Action::ReadLog(wanted) => self.reads.push(wanted),
                Action::Look(wanted) => self.looks.push(wanted),
                Action::Reply { connection, sequence, reply } => {
                    let response = match reply {
                        Reply::Nothing { .. } => None,
                        Reply::Response(response) => Some(*response),
                        Reply::Fetch(plan) => Some(self.read(*plan).into()),
                        Reply::ShareFetch(plan) => Some(self.share(*plan).into()),
                        Reply::ListOffsets(plan) => Some(plan.response.into()),
                        Reply::LogDirs(response) => Some((*response).into()),
                        Reply::Replicas(plan) => Some(plan.response.into()),
                        Reply::Backup(plan) => Some(plan.response.into()),
                        Reply::Native(answered) => {
                            assert_eq!(connection, NATIVE);
                            self.complete(sequence, *answered);
                            continue;
                        }
                    };
                    let session = self.sessions.get_mut(&connection).expect("connected");
                    let outgoing = session.on_reply(sequence, response).expect("encodes");
                    for it in outgoing {
                        self.receive(connection, it.frame.bytes);
                    }
                }
                Action::Close { connection, reason } => {
                    self.came.insert((connection, -1), Came::Closed(reason));
                }
                Action::Credential { connection, credential } => {
                    self.credentials.insert(connection, credential);
                }
                Action::Fatal(reason) => panic!("fatal: {reason}"),
                Action::Send { to, frame } => self.sent.push((to, *frame)),
                Action::Nodes(_) | Action::Members(_) => {}
                Action::Targets(targets) => self.targets = targets,
                Action::Drained => self.is_drained = true,
                Action::Mend(mend) => self.mends.push(mend),
                Action::Index(order) => self.orders.push(order),
                Action::Compact(order) => self.compactions.push(order),
                Action::Stage(stage) => self.stages.push(stage),
            }
        }
    }

    fn receive(&mut self, connection: ConnectionId, frame: BytesMut) {
        let frame = frame.freeze().slice(4..);
        let correlation = i32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
        let (api, version) = self.asked[&(connection, correlation)];
        let (_, response) = decode_response(frame, api, version).expect("our own frame");
        self.came.insert((connection, correlation), Came::Response(response));
    }

    /// Looks up what the answer to an operation lacks.
    fn complete(&mut self, number: u64, mut answered: Answered) {
        if let Some((replica, position)) = answered.lacking() {
            let batches = self.store.replicas[&replica].batches(position.offset, i64::MAX);
            let first = batches.first().expect("a committed batch is stored");
            position.entry = BatchHeader::parse(first).expect("a batch").base_offset;
        }
        assert!(self.answers.insert(number, answered).is_none(), "answered twice");
    }

    /// Gives the node an operation of the native API; returns its number.
    pub(super) fn operate(&mut self, op: native::Op) -> u64 {
        self.operations += 1;
        let context = RequestContext {
            api: Api::Native(op.name()),
            ..RequestContext::sample(ApiKey::Produce)
        };
        let request = Box::new(Prepared::Native(Box::new(op)));
        let (connection, sequence) = (NATIVE, self.operations);
        self.step(Event::Request { connection, sequence, context, request });
        sequence
    }

    /// Returns the answer to an operation, if it has one.
    pub(super) fn answer(&mut self, number: u64) -> Option<Result<Answer, Problem>> {
        self.answers.remove(&number).map(|it| it.answer)
    }

    fn read(&self, plan: FetchPlan) -> FetchResponse {
        let FetchPlan { mut response, parts, bytes_max } = plan;
        let mut left = bytes_max as usize;
        for part in parts {
            let mut bytes = Vec::new();
            let limit = left.min(part.bytes_max as usize);
            for batch in self.store.replicas[&part.replica].batches(part.offset, part.end) {
                if !bytes.is_empty() && bytes.len() + batch.len() > limit {
                    break;
                }
                bytes.extend_from_slice(&batch);
            }
            left = left.saturating_sub(bytes.len());
            let slot = &mut response.responses[part.topic].partitions[part.partition];
            slot.records = Some(RecordData::Bytes(bytes.into()));
        }
        response
    }

    fn share(&self, plan: SharePlan) -> ShareFetchResponse {
        let SharePlan { mut response, parts } = plan;
        for part in parts {
            let batches = self.store.replicas[&part.replica].batches(part.from, part.end);
            let bytes = batches.concat();
            assert_eq!(bytes.len() as u64, part.bytes, "all of it is there");
            let slot = &mut response.responses[part.topic].partitions[part.partition];
            slot.records = RecordData::Bytes(bytes.into());
        }
        response
    }

    fn survey(&self, wanted: &Survey) -> Surveyed {
        let Survey { replica, from, end, ticket, .. } = *wanted;
        let stored = &self.store.replicas[&replica];
        let at: u64 = stored.batches(0, from).iter().map(|it| it.len() as u64).sum();
        let batches = stored.batches(from, end);
        // One that holds `from` as well as what is before it.
        let before = stored.batches(0, from).last().cloned();
        let twice = before.filter(|it| batches.first() == Some(it)).map_or(0, |it| it.len());
        let found = if batches.is_empty() {
            Ok((Vec::new(), end))
        } else {
            let masks = stored.masks();
            seen_in(wanted, (0, at - twice as u64), batches.concat().into(), &masks)
        };
        Surveyed { replica, from, ticket, found }
    }

    /// Looks at logs as the node asked for it. False if there was nothing.
    fn carry_out_looks(&mut self) -> bool {
        let looks = std::mem::take(&mut self.looks);
        let any = !looks.is_empty();
        let mut actions = Vec::new();
        for look in looks {
            let event = match look {
                Look::Survey(wanted) => Event::Surveyed(self.survey(&wanted)),
                Look::DeadLetters(wanted) => {
                    let stored = &self.store.replicas[&wanted.replica];
                    let batches = stored.batches(wanted.from, wanted.committed);
                    let made = letters_of(&wanted, batches.concat().into(), &stored.masks());
                    Event::DeadLetters(DeadLettersMade { ticket: wanted.ticket, made })
                }
                Look::Queue(QueueLook { ticket, span, wanted }) => {
                    let facts = self.store.replicas[&span.replica].facts(&span.name, span.end);
                    let standing = Standing::of(&facts).expect("they can be read");
                    let all = self.elements(span.replica, &span.name, span.from, span.end);
                    let masks = self.store.replicas[&span.replica].masks();
                    let is_shown = |offset: &i64| !masks.hides(*offset);
                    let found = match wanted {
                        WantedElements::These(wanted) => {
                            let mut there = self.store.replicas[&span.replica].shown(&span.name);
                            there.retain(|it| wanted.contains(&it.position.offset));
                            FoundElements::These(there, masks.count())
                        }
                        WantedElements::Behind(after) => {
                            let mut there = self.store.replicas[&span.replica].shown(&span.name);
                            there.retain(|it| it.position.offset > after);
                            FoundElements::These(there, masks.count())
                        }
                        WantedElements::Erasable(since, _) => {
                            let stored = &self.store.replicas[&span.replica];
                            FoundElements::Erasable(stored.erasable(since, span.end), None)
                        }
                        WantedElements::Kept(below) => {
                            let stored = &self.store.replicas[&span.replica];
                            FoundElements::Kept(stored.kept(below, span.end))
                        }
                        WantedElements::Any if all.iter().any(is_shown) => FoundElements::Some,
                        WantedElements::Any | WantedElements::Standing => FoundElements::None,
                        WantedElements::Last => match all.last() {
                            None => FoundElements::None,
                            Some(last) => self.found_at(span.replica, *last),
                        },
                    };
                    Event::QueueLooked(QueueLooked { ticket, found, standing })
                }
                Look::Date(wanted) => {
                    let stored = &self.store.replicas[&wanted.replica];
                    let batches = stored.batches(wanted.start, wanted.end).concat();
                    let found = first_since(batches.into(), &wanted);
                    Event::Dated(Dated { ticket: wanted.ticket, found: Ok(found) })
                }
            };
            self.node.step(self.now, event, &mut actions);
        }
        self.act(actions);
        any
    }

    fn found_at(&self, id: ReplicaId, offset: i64) -> FoundElements {
        let batches = self.store.replicas[&id].batches(offset, offset + 1);
        let view = BatchView::parse(&batches[0]).expect("a batch");
        let header = view.header();
        let (term, entry) = (header.partition_leader_epoch, header.base_offset);
        let position = Position { term, entry, offset };
        FoundElements::Last(position, header.attributes.is_transactional())
    }

    /// Returns the offsets of records with a key.
    pub(super) fn elements(&self, id: ReplicaId, key: &[u8], from: i64, end: i64) -> Vec<i64> {
        let mut offsets = Vec::new();
        for batch in self.store.replicas[&id].batches(from, end) {
            let view = BatchView::parse(&batch).expect("a batch");
            let records = Records::of(&view, usize::MAX).expect("records");
            for record in &records {
                let record = record.expect("a record");
                let offset = records.offset(&record);
                if record.key == Some(key) && (from..end).contains(&offset) {
                    offsets.push(offset);
                }
            }
        }
        offsets
    }

    /// Indexes logs as the node ordered it. False if there was nothing.
    pub(super) fn carry_out_orders(&mut self) -> bool {
        let orders = std::mem::take(&mut self.orders);
        let any = !orders.is_empty();
        for indexing::Order { replica, beginning, to, .. } in orders {
            let from = self.indexed.insert(replica, to).unwrap_or(0);
            let mut hashes = BTreeSet::new();
            for batch in self.store.replicas[&replica].batches(from, to) {
                let view = BatchView::parse(&batch).expect("a batch");
                let records = Records::of(&view, usize::MAX).expect("records");
                let keys = records.iter().filter_map(|it| it.expect("a record").key);
                hashes.extend(keys.map(|key| queue_hash(key, self.node.queue_seed())));
            }
            let touched = Touched::These(hashes);
            let indexed = Indexed { replica, beginning, to, touched, problem: None };
            self.step(Event::Indexed(indexed));
        }
        any
    }

    /// Turns until nothing more happens.
    pub(super) fn run(&mut self) {
        loop {
            let mut actions = Vec::new();
            self.node.flush(self.now, &mut actions);
            self.act(actions);
            if !self.is_prompt
                || !(self.persist()
                    | self.carry_out_reads()
                    | self.carry_out_looks()
                    | (self.is_indexing && self.carry_out_orders()))
            {
                break;
            }
        }
    }

    /// Reads what the node asked for. False if there was nothing.
    pub(super) fn carry_out_reads(&mut self) -> bool {
        let reads = std::mem::take(&mut self.reads);
        let any = !reads.is_empty();
        let mut actions = Vec::new();
        for wanted in reads {
            assert_eq!(wanted.pass, 0, "only followers' reads pass over anything");
            let mut bytes = Vec::new();
            for batch in self.store.replicas[&wanted.replica].batches(wanted.from, wanted.end) {
                if !bytes.is_empty() && bytes.len() + batch.len() > wanted.bytes_max as usize {
                    break;
                }
                bytes.extend_from_slice(&batch);
            }
            let broken = self.are_reads_broken.then(|| "broken".to_owned());
            let batches = broken.map_or(Ok(bytes.into()), Err);
            let is_changed = self.are_reads_changed;
            let read = LogRead { is_changed, ..wanted.answer(batches) };
            self.node.step(self.now, Event::LogRead(read), &mut actions);
        }
        self.act(actions);
        any
    }

    /// Storage executes everything queued and reports. False if there was nothing.
    pub(super) fn persist(&mut self) -> bool {
        let queued = std::mem::take(&mut self.queued);
        let any = !queued.is_empty();
        let mut actions = Vec::new();
        for op in queued {
            if let Some(done) = self.store.execute(op) {
                self.node.step(self.now, Event::Storage(done), &mut actions);
            }
        }
        self.act(actions);
        any
    }

    pub(super) fn storage(&mut self, done: Done) {
        let mut actions = Vec::new();
        self.node.step(self.now, Event::Storage(done), &mut actions);
        self.act(actions);
        self.run();
    }

    /// Time passes, on both clocks.
    pub(super) fn pass_ms(&mut self, ms: u64) {
        let end = self.now.mono_us + ms * 1000;
        self.now.wall_ms += i64::try_from(ms).expect("small");
        while self.node.deadline() <= end {
            self.now.mono_us = self.now.mono_us.max(self.node.deadline());
            self.tick();
        }
        self.now.mono_us = end;
        self.tick();
    }

    fn tick(&mut self) {
        self.step(Event::Tick);
    }

    /// Something happens, and that turn and all that follow from it end.
    pub(super) fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.node.step(self.now, event, &mut actions);
        self.act(actions);
        self.run();
    }

    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        let mut actions = Vec::new();
        self.node.step(self.now, Event::Disconnected(connection), &mut actions);
        self.act(actions);
        self.sessions.remove(&connection);
        self.run();
    }

    /// Sends a request without ending the turn.
    pub(super) fn enqueue(
        &mut self,
        connection: ConnectionId,
        request: &Request,
        version: i16,
    ) -> i32 {
        self.correlation += 1;
        let correlation_id = self.correlation;
        let api = request.api_key();
        let header = RequestHeader {
            api_key: api.code(),
            api_version: version,
            correlation_id,
            client_id: Some("test".into()),
        };
        self.asked.insert((connection, correlation_id), (api, version));
        let frame = encode_request(&header, request).expect("a good request").bytes;
        let session = self.sessions.entry(connection).or_insert_with(|| {
            Session::new(
                connection,
                "User:ANONYMOUS".into(),
                "PLAINTEXT".into(),
                "/127.0.0.1".into(),
            )
        });
        session.follow(Arc::clone(&self.targets));
        let mut step = session.on_frame(frame.freeze().slice(4..));
        while let SessionStep::Heavy(heavy) = step {
            step = session.on_heavy(*heavy);
        }
        match step {
            SessionStep::Heavy(_) => unreachable!("it was checked at length"),
            SessionStep::Request { sequence, context, request } => {
                let event = Event::Request { connection, sequence, context, request };
                let mut actions = Vec::new();
                self.node.step(self.now, event, &mut actions);
                self.act(actions);
            }
            SessionStep::Reply(outgoing) => {
                for it in outgoing {
                    self.receive(connection, it.frame.bytes);
                }
            }
            SessionStep::Close(reason) => {
                self.came.insert((connection, -1), Came::Closed(reason));
            }
        }
        correlation_id
    }

    pub(super) fn send(&mut self, request: impl Into<Request>, version: i16) -> i32 {
        let id = self.enqueue(ONE, &request.into(), version);
        self.run();
        id
    }

    pub(super) fn response(&mut self, id: i32) -> Option<Response> {
        self.response_on(ONE, id)
    }

    pub(super) fn response_on(&mut self, connection: ConnectionId, id: i32) -> Option<Response> {
        match self.came.remove(&(connection, id))? {
            Came::Response(response) => Some(response),
            Came::Closed(reason) => panic!("closed: {reason}"),
        }
    }

    pub(super) fn closed(&mut self) -> Option<String> {
        self.closed_on(ONE)
    }

    pub(super) fn closed_on(&mut self, connection: ConnectionId) -> Option<String> {
        match self.came.remove(&(connection, -1))? {
            Came::Closed(reason) => Some(reason),
            Came::Response(_) => None,
        }
    }

    /// Sends a request that is answered in the same turn.
    pub(super) fn ask(&mut self, request: impl Into<Request>, version: i16) -> Response {
        let id = self.send(request, version);
        self.response(id).expect("answered at once")
    }

    pub(super) fn create(&mut self, name: &str, configs: &[(&str, &str)]) {
        let topic = self.try_create(new_topic(name, 1, configs)).topics.remove(0);
        assert_eq!(topic.error_code, 0, "{:?}", topic.error_message);
    }

    pub(super) fn try_create(&mut self, topic: CreatableTopic) -> CreateTopicsResponse {
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        match self.ask(request, 7) {
            Response::CreateTopics(response) => response,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn metadata(&mut self, names: &[&str]) -> MetadataResponse {
        let topic = |name: &&str| MetadataRequestTopic {
            name: Some((*name).to_owned()),
            ..Default::default()
        };
        let topics = Some(names.iter().map(topic).collect());
        match self.ask(MetadataRequest { topics, ..Default::default() }, 12) {
            Response::Metadata(response) => response,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn produce(&mut self, topic: &str, records: Bytes) -> PartitionProduceResponse {
        let id = self.send(produce_request(topic, records, -1), 9);
        self.produced(id).expect("answered at once")
    }

    pub(super) fn produced(&mut self, id: i32) -> Option<PartitionProduceResponse> {
        match self.response(id)? {
            Response::Produce(mut response) => {
                Some(response.responses.remove(0).partition_responses.remove(0))
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn fetch(&mut self, topic: &str, offset: i64) -> PartitionData {
        match self.ask(fetch_request(topic, offset), 12) {
            Response::Fetch(mut response) => response.responses.remove(0).partitions.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn replica(&self, topic: &str) -> ReplicaId {
        let mut all = self.store.replicas.iter();
        *all.find(|(_, stored)| stored.identity.topic == topic).expect("it is there").0
    }
}

pub(super) fn new_topic(name: &str, partitions: i32, configs: &[(&str, &str)]) -> CreatableTopic {
    let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
        name: (*name).to_owned(),
        value: Some((*value).to_owned()),
    };
    CreatableTopic {
        name: name.to_owned(),
        num_partitions: partitions,
        replication_factor: 1,
        configs: configs.iter().map(config).collect(),
        ..CreatableTopic::default()
    }
}

pub(super) fn produce_request(topic: &str, records: Bytes, acks: i16) -> ProduceRequest {
    let partition = PartitionProduceData { index: 0, records: Some(records) };
    let topic = TopicProduceData {
        name: topic.into(),
        partition_data: [partition].into(),
        ..TopicProduceData::default()
    };
    ProduceRequest { acks, timeout_ms: 30_000, topic_data: [topic].into(), ..Default::default() }
}

pub(super) fn fetch_request(topic: &str, offset: i64) -> FetchRequest {
    let partition = FetchPartition {
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let topic = FetchTopic {
        topic: topic.to_owned(),
        partitions: vec![partition],
        ..FetchTopic::default()
    };
    FetchRequest { max_wait_ms: 0, min_bytes: 1, topics: vec![topic], ..FetchRequest::default() }
}

/// A batch of records with these values.
pub(super) fn batch(values: &[&str]) -> Bytes {
    builder(values, WALL_MS).build().expect("a good batch")
}

pub(super) fn builder(values: &[&str], timestamp: i64) -> BatchBuilder {
    let mut batch = BatchBuilder::new();
    for value in values {
        let value = Some(value.as_bytes());
        let record = NewRecord { timestamp, value, ..NewRecord::default() };
        batch.push(&record).expect("a good record");
    }
    batch
}

/// A batch of an idempotent producer.
pub(super) fn idempotent(id: i64, epoch: i16, sequence: i32, values: &[&str]) -> Bytes {
    builder(values, WALL_MS).producer(id, epoch, sequence).build().expect("a good batch")
}

pub(super) fn bytes_of(data: &PartitionData) -> Bytes {
    match &data.records {
        Some(RecordData::Bytes(bytes)) => bytes.clone(),
        other => panic!("{other:?}"),
    }
}
