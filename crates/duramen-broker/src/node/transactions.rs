//! # Room card: transactions in the node
//!
//! Purpose:    the messages between coordinators of transactions and leaders of partitions, here and between nodes.
//! Owns:       batches that wait for the coordinator's answer whether their partition is in the transaction; open
//!             requests for these answers; markers that are not written yet.
//! Interface:  [`Coordinators::append_in_transaction`], [`Coordinators::judge_offsets`], [`Coordinators::mark`]; the
//!             node calls the rest on events.
//! Invariants: a leader appends a transaction's first batch only after the coordinator has confirmed the partition, and
//!             only if no marker came in between. A coordinator asks for a marker until it is written, or no longer can
//!             be. A marker that comes after the end of its transaction has no effect.
//! Never:      the state of transactions (see `transactions`), the content of logs (see `partition`).
//! Tests:      `node/tests/transactions.rs`; `duramen-sim`.
//! Start at:   [`Coordinators::append_in_transaction`], then [`Coordinators::on_judged`].
//!
//! Frames may be lost, late, and come twice. A node may repeat a question, because questions change nothing. A marker
//! carries the term of the leader that it is for, so that a later leader does not execute it. A marker also carries the
//! place of the decision in the coordinator's log, of which a leader remembers the last for each producer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{AddOffsetsToTxnRequest, TxnOffsetCommitRequest};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::Coordinators;
use super::questions::Questions;
use crate::checked_batch::CheckedBatch;
use crate::controller::image::Topic;
use crate::core::{Core, Parked, Signal, Then, Timer};
use crate::event::RequestKey;
use crate::internal_topics::{GROUPS, TRANSACTIONS, partition_of};
use crate::limits::{TRANSACTION_CALL_AGAIN_US, TRANSACTION_CALL_US, TRANSACTION_CALL_US_MAX};
use crate::partition::{Acks, Appended, MarkAsker, Marker, Slot, Verdict};
use crate::peer::{Frame, MarkWanted, Marked, TransactionAnswer, TransactionAsk};
use crate::session::{FIRST_THAT_ADDS, RequestContext};
use crate::transactions::coordinator::{Addition, Ask, Asker, Mark};

/// A batch whose partition may or may not be in its transaction.
#[derive(Debug)]
struct HeldBatch {
    batch: CheckedBatch,
    acks: Acks,
    slot: Slot,
}

/// The batches of one producer for one partition.
#[derive(Debug)]
struct Held {
    batches: Vec<HeldBatch>,
    /// Term in which the leader asked.
    term: u64,
    /// True if a marker came meanwhile: the answer may be of the transaction that the marker has ended.
    is_void: bool,
}

/// Subject of a question: held batches, or a request to commit offsets.
#[derive(Debug)]
enum For {
    Batches(ReplicaId, i64),
    Offsets(RequestKey),
}

/// A question to a coordinator of transactions.
#[derive(Debug)]
struct Question {
    id: Arc<str>,
    addition: Addition,
    of: For,
}

/// A marker that a coordinator here wants to be written.
#[derive(Debug)]
struct Wanted {
    coordinator: ReplicaId,
    mark: Mark,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    held: BTreeMap<(ReplicaId, i64), Held>,
    questions: Questions<Question>,
    wanted: Questions<Wanted>,
    /// Numbers of the last decisions that were executed here, by partition and producer. Only leaders have any.
    executed: BTreeMap<ReplicaId, BTreeMap<i64, i64>>,
    /// Numbers of the decisions whose markers are being written.
    numbers: BTreeMap<(ReplicaId, i64), i64>,
    /// Requests that wait for `__consumer_offsets`.
    for_groups: BTreeSet<RequestKey>,
    /// Transactional ids that wait for a producer id, with their coordinators.
    ids_wanted: BTreeSet<(ReplicaId, Arc<str>)>,
    is_timed: bool,
}

/// Questions of partitions.
impl Coordinators {
    /// Gives a partition a batch of a transaction, or holds the batch until the coordinator has confirmed it. Returns
    /// the partition's log start offset, too.
    pub(crate) fn append_in_transaction(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        (id, context): (&str, &RequestContext),
        batch: CheckedBatch,
        acks: Acks,
        slot: Slot,
    ) -> (Appended, i64) {
        let partition = core.partitions.get(&replica).expect("it was just found");
        let log_start = partition.log_start();
        let (producer_id, epoch) = (batch.header.producer_id, batch.header.producer_epoch);
        let held = HeldBatch { batch, acks, slot };
        if let Some(waiting) = self.calls.held.get_mut(&(replica, producer_id)) {
            waiting.batches.push(held);
            return (Appended::Waits { append_time_ms: -1 }, log_start);
        }
        let is_open = partition.is_in_transaction(producer_id);
        let is_known = match partition.verdict(&held.batch.header) {
            Verdict::Duplicate { .. } | Verdict::Refuse(ErrorCode::InvalidProducerEpoch) => true,
            _ => is_open && partition.producer_epoch(producer_id) == Some(epoch),
        };
        if is_known || sabotage::is(Bug::TransactionUnverified) {
            return core.append(replica, held.batch, acks, slot);
        }
        let topic =
            core.controller.image.topic(duramen_protocol::wire::Uuid(partition.id.topic_id));
        let Some(topic) = topic else {
            return (Appended::Refused(ErrorCode::UnknownTopicOrPartition, None), log_start);
        };
        // From this version on producers leave it to the partition to join the transaction.
        let is_second = context.version >= FIRST_THAT_ADDS;
        let partitions = [(topic.name.clone(), [partition.id.partition].into())].into();
        let addition = Addition {
            producer_id,
            epoch,
            partitions,
            verify_only: !is_second,
            version: if is_second { 2 } else { 1 },
        };
        let term = partition.group.term();
        let waiting = Held { batches: vec![held], term, is_void: false };
        self.calls.held.insert((replica, producer_id), waiting);
        self.question(core, id, addition, For::Batches(replica, producer_id));
        (Appended::Waits { append_time_ms: -1 }, log_start)
    }

    /// Asks whether a transaction may commit offsets of a group.
    pub(crate) fn judge_offsets(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        context: &RequestContext,
        request: TxnOffsetCommitRequest,
        (topic, partition): (&str, i32),
    ) {
        let is_second = context.version >= 5;
        let addition = Addition {
            producer_id: request.producer_id,
            epoch: request.producer_epoch,
            partitions: [(topic.to_owned(), [partition].into())].into(),
            verify_only: !is_second,
            version: if is_second { 2 } else { 1 },
        };
        let id = request.transactional_id.clone();
        let parked = Parked::TxnOffsets { request: Box::new(request), context: context.clone() };
        core.park(key, parked, u64::MAX);
        self.question(core, &id, addition, For::Offsets(key));
    }

    /// Has `__consumer_offsets` made. The request goes on when the topic is there.
    pub(crate) fn await_groups(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        context: RequestContext,
        request: AddOffsetsToTxnRequest,
    ) {
        core.make_or_want_topic(GROUPS);
        let deadline_us = core.now.mono_us.saturating_add(TRANSACTION_CALL_US_MAX);
        core.park(key, Parked::AddOffsets { request, context }, deadline_us);
        self.calls.for_groups.insert(key);
        self.time_calls(core);
    }

    /// Goes on with the requests that wait for `__consumer_offsets`, if the topic is there.
    pub(crate) fn look_for_groups(&mut self, core: &mut Core) {
        if core.controller.image.topic_named(GROUPS).is_none() {
            return;
        }
        for key in std::mem::take(&mut self.calls.for_groups) {
            core.signals.push_back(Signal::GroupsMade(key));
        }
    }

    fn question(&mut self, core: &mut Core, id: &str, addition: Addition, of: For) {
        let nonce = core.chance.next();
        let until_us = core.now.mono_us.saturating_add(TRANSACTION_CALL_US_MAX);
        // The caller is about to be parked, and the answer may be at hand: the question leaves with the turn.
        self.calls.questions.ask(nonce, Question { id: id.into(), addition, of }, until_us);
        self.time_calls(core);
    }

    /// Sends the questions of this turn.
    pub(crate) fn send_questions(&mut self, core: &mut Core) -> bool {
        let unsent = self.calls.questions.take_unsent();
        for nonce in &unsent {
            self.send_question(core, *nonce);
        }
        !unsent.is_empty()
    }

    /// Puts a question to the coordinator of the transactional id, if it is known.
    fn send_question(&mut self, core: &mut Core, nonce: u64) {
        let Some(question) = self.calls.questions.get(nonce) else { return };
        let id = question.id.clone();
        if id.is_empty() {
            return self.on_judged(core, nonce, ErrorCode::InvalidRequest);
        }
        let is_kept = core.controller.image.topic_named(TRANSACTIONS).is_some();
        if !is_kept && !core.is_clustered() {
            return self.on_judged(core, nonce, ErrorCode::InvalidTxnState);
        }
        let Some(leader) = core.coordinator_of(TRANSACTIONS, &id) else { return };
        let addition = question.addition.clone();
        let place = (leader, 0);
        if !self.calls.questions.is_due(nonce, place, core.now, TRANSACTION_CALL_AGAIN_US) {
            return;
        }
        if leader == core.options.facts.broker_id {
            let asker = Asker::Own { nonce };
            let now = core.now;
            let given = self.coordinate_transaction(core, &id, |it| {
                it.ask(&id, Ask::Add { asker, addition }, now);
            });
            if let Err(code) = given {
                self.on_judged(core, nonce, code);
            }
            return;
        }
        let topics = addition.partitions.iter();
        let all = topics.flat_map(|(topic, all)| all.iter().map(move |it| (topic, *it)));
        let frame = core.peers.frame_to(leader);
        frame.transaction_asks.extend(all.map(|(topic, partition)| TransactionAsk {
            nonce,
            transactional_id: id.as_ref().to_owned(),
            producer_id: addition.producer_id,
            producer_epoch: addition.epoch,
            verify_only: addition.verify_only,
            version: addition.version,
            topic: topic.clone(),
            partition,
        }));
    }

    /// Takes the answer to a question.
    fn on_judged(&mut self, core: &mut Core, nonce: u64, code: ErrorCode) {
        let is_elsewhere = matches!(
            code,
            ErrorCode::NotCoordinator
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::CoordinatorNotAvailable
        );
        if is_elsewhere {
            // The coordinator may be here again, or elsewhere, at the next look.
            return self.calls.questions.ask_elsewhere(nonce);
        }
        let Some(question) = self.calls.questions.take(nonce) else { return };
        self.end_question(core, &question.of, code);
    }

    fn end_question(&mut self, core: &mut Core, of: &For, code: ErrorCode) {
        match *of {
            For::Batches(replica, producer_id) => {
                self.release(core, replica, producer_id, code);
            }
            For::Offsets(key) => core.signals.push_back(Signal::OffsetsJudged { key, code }),
        }
    }

    /// Appends the batches that waited, or tells their producer why not.
    fn release(&mut self, core: &mut Core, replica: ReplicaId, producer_id: i64, code: ErrorCode) {
        let Some(held) = self.calls.held.remove(&(replica, producer_id)) else { return };
        let term = core.partitions.get(&replica).map(|it| it.group.term());
        let is_void = held.is_void && !sabotage::is(Bug::VoidAnswerTaken);
        let code = match code {
            _ if term != Some(held.term) => ErrorCode::NotLeaderOrFollower,
            ErrorCode::None if is_void => ErrorCode::NotEnoughReplicas,
            code => code,
        };
        for HeldBatch { batch, acks, slot } in held.batches {
            let refused = match core.partitions.get(&replica) {
                None => Some(ErrorCode::UnknownTopicOrPartition),
                Some(_) if !code.is_none() => Some(code),
                Some(it) => it.obstacle().or_else(|| {
                    (acks == Acks::All && it.lacks_replicas())
                        .then_some(ErrorCode::NotEnoughReplicas)
                }),
            };
            let signal = if let Some(code) = refused {
                Signal::Refused { slot, code }
            } else {
                let (appended, log_start) = core.append(replica, batch, acks, slot);
                Signal::Appended { slot, appended, log_start }
            };
            core.signals.push_back(signal);
        }
    }

    /// Forgets the calls of a replica that leads no more, or is gone, and refuses the batches that it held.
    pub(super) fn forget_calls(&mut self, core: &mut Core, replica: ReplicaId) {
        self.calls.executed.remove(&replica);
        self.calls.numbers.retain(|(of, _), _| *of != replica);
        let held = self.calls.held.range((replica, i64::MIN)..=(replica, i64::MAX));
        let producers: Vec<i64> = held.map(|((_, producer), _)| *producer).collect();
        for producer_id in producers {
            self.release(core, replica, producer_id, ErrorCode::NotLeaderOrFollower);
        }
        let of_it =
            |question: &Question| matches!(question.of, For::Batches(of, _) if of == replica);
        self.calls.questions.retain(|question| !of_it(question));
    }
}

impl Core {
    /// Returns the node that coordinates a name in an internal topic.
    pub(crate) fn coordinator_of(&self, topic: &str, name: &str) -> Option<i32> {
        let topic = self.controller.image.topic_named(topic)?;
        let partition = partition_of(name, topic.partitions.len());
        self.leader_of(topic, partition).map(|leader| leader.0)
    }
}

/// Outputs of coordinators.
impl Coordinators {
    /// Gets a producer id for a transactional id, at once or later.
    pub(super) fn want_producer_id(&mut self, core: &mut Core, replica: ReplicaId, id: Arc<str>) {
        self.calls.ids_wanted.insert((replica, id));
        self.give_producer_ids(core);
        self.time_calls(core);
    }

    /// Has a marker written, however long that takes.
    pub(super) fn want_mark(&mut self, core: &mut Core, replica: ReplicaId, mark: Mark) {
        let nonce = core.chance.next();
        let wanted = Wanted { coordinator: replica, mark };
        self.calls.wanted.open(nonce, wanted, u64::MAX);
        self.send_mark(core, nonce);
        self.time_calls(core);
    }

    /// Answers after a leadership check, because another node may coordinate by now, and know better. A fresh write
    /// proves that none did.
    pub(super) fn tell_for_certain(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        then: Then,
        is_written: bool,
    ) {
        let is_doubtful =
            !is_written && core.is_clustered() && !sabotage::is(Bug::StaleLeaderAnswers);
        let then = if is_doubtful { core.when_sure(replica, then) } else { Some(then) };
        if let Some(then) = then {
            self.tell(core, then, true);
        }
    }

    /// Gives a coordinator's answer to its asker. The answer is void if the coordinator did not lead for certain.
    pub(super) fn tell(&mut self, core: &mut Core, then: Then, led: bool) {
        match then {
            Then::Serve(_) => unreachable!("a request is no coordinator's answer"),
            Then::Reply { key, response } => {
                let answered = Signal::TransactionAnswered { key, response, is_certain: led };
                core.signals.push_back(answered);
            }
            Then::Judged(asker, code) => {
                self.tell_judged(core, asker, if led { code } else { ErrorCode::NotCoordinator });
            }
            Then::ShareState(asker, answer) => {
                let answer = if led { answer } else { Err(ErrorCode::NotCoordinator) };
                self.tell_share_asker(core, asker, answer);
            }
        }
    }

    fn tell_judged(&mut self, core: &mut Core, asker: Asker, code: ErrorCode) {
        match asker {
            Asker::Own { nonce } => self.on_judged(core, nonce, code),
            Asker::Node { broker_id, nonce } => {
                let answer = TransactionAnswer { nonce, error_code: code.code() };
                core.peers.frame_to(broker_id).transaction_answers.push(answer);
            }
            Asker::Request { key, part } => {
                core.signals.push_back(Signal::Judged { key, part, code });
            }
        }
    }

    /// Gives producer ids to transactional ids that wait for one, as far as there are any.
    pub(super) fn give_producer_ids(&mut self, core: &mut Core) {
        while let Some((replica, name)) = self.calls.ids_wanted.first().cloned() {
            let result = match core.next_producer_id() {
                Ok(Some(producer_id)) => Ok(producer_id),
                Ok(None) => return,
                Err(_) => Err(ErrorCode::CoordinatorNotAvailable),
            };
            self.calls.ids_wanted.remove(&(replica, name.clone()));
            let now = core.now;
            self.with_transactions(core, replica, |it| {
                it.on_producer_id(&name, result, now);
            });
        }
    }

    /// Tells the leader of a partition that a transaction has ended, if the leader is known.
    fn send_mark(&mut self, core: &mut Core, nonce: u64) {
        let Some(wanted) = self.calls.wanted.get(nonce) else { return };
        let Mark { topic, partition, marker, number, .. } = &wanted.mark;
        let (partition, marker, number) = (*partition, *marker, *number);
        let Some(found) = core.controller.image.topic_named(topic) else {
            // The topic's records went with it.
            return self.on_marked(core, nonce, ErrorCode::None);
        };
        if usize::try_from(partition).is_ok_and(|it| it >= found.partitions.len()) {
            return self.on_marked(core, nonce, ErrorCode::None);
        }
        let topic_id = found.id;
        let Some((leader, term)) = core.leader_of(found, partition) else { return };
        let replica = core.local_replica(found, partition);
        let place = (leader, term);
        if !self.calls.wanted.is_due(nonce, place, core.now, TRANSACTION_CALL_AGAIN_US) {
            return;
        }
        if leader != core.options.facts.broker_id {
            core.peers.frame_to(leader).marks_wanted.push(MarkWanted {
                nonce,
                topic_id,
                partition,
                term,
                producer_id: marker.producer_id,
                producer_epoch: marker.epoch,
                coordinator_epoch: marker.coordinator_epoch,
                commits: marker.commits,
                number,
            });
        } else if let Some(replica) = replica {
            self.mark(core, replica, marker, Some(number), MarkAsker::Own { nonce });
        }
    }

    /// Takes the result of a marker that a coordinator here wanted.
    fn on_marked(&mut self, core: &mut Core, nonce: u64, code: ErrorCode) {
        let is_over = matches!(
            code,
            // Another producer has its place there, or another coordinator this one's: nothing is left to end.
            ErrorCode::None
                | ErrorCode::InvalidProducerEpoch
                | ErrorCode::TransactionCoordinatorFenced
        );
        if !is_over {
            // The next look asks for the marker again.
            return;
        }
        let Some(Wanted { coordinator, mark }) = self.calls.wanted.take(nonce) else { return };
        let now = core.now;
        self.with_transactions(core, coordinator, |it| it.on_marked(&mark, now));
    }

    /// Forgets the markers of a coordinator that is one no more: the next coordinator asks for them.
    pub(super) fn forget_wanted(&mut self, coordinator: ReplicaId) {
        self.calls.wanted.retain(|wanted| wanted.coordinator != coordinator);
        self.calls.ids_wanted.retain(|(of, _)| *of != coordinator);
    }
}

/// Leaders of partitions.
impl Coordinators {
    /// Ends a producer's transaction in a partition here, and answers the asker.
    pub(crate) fn mark(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        marker: Marker,
        number: Option<i64>,
        asker: MarkAsker,
    ) {
        let Marker { producer_id, commits, .. } = marker;
        let slot = Slot::Marker { replica, producer_id, commits, asker };
        let executed = self.calls.executed.get(&replica).and_then(|all| all.get(&producer_id));
        let is_old = number.is_some_and(|it| executed.is_some_and(|last| it <= *last));
        if is_old && !sabotage::is(Bug::LateMarkerTaken) {
            return self.tell_asker(core, asker, ErrorCode::None);
        }
        if core.is_disk_full() {
            return self.tell_asker(core, asker, ErrorCode::KafkaStorageError);
        }
        let Some(partition) = core.partitions.get_mut(&replica) else {
            return self.tell_asker(core, asker, ErrorCode::NotLeaderOrFollower);
        };
        let in_flight = partition.group.bytes_in_flight();
        let result = partition.mark(core.now, marker, slot);
        core.bytes_in_flight += partition.group.bytes_in_flight() - in_flight;
        core.mark_dirty(replica);
        if let Some(held) = self.calls.held.get_mut(&(replica, producer_id)) {
            held.is_void = true;
        }
        match result {
            Ok(true) => {
                if let Some(number) = number {
                    self.calls.numbers.insert((replica, producer_id), number);
                }
            }
            Ok(false) => {
                self.note_executed(replica, producer_id, number);
                self.tell_asker(core, asker, ErrorCode::None);
            }
            Err(code) => self.tell_asker(core, asker, code),
        }
    }

    fn note_executed(&mut self, replica: ReplicaId, producer_id: i64, number: Option<i64>) {
        if let Some(number) = number {
            let last = self.calls.executed.entry(replica).or_default();
            let last = last.entry(producer_id).or_insert(number);
            *last = number.max(*last);
        }
    }

    /// Takes the result of a marker's append.
    pub(super) fn on_marker(
        &mut self,
        core: &mut Core,
        (replica, producer_id, commits): (ReplicaId, i64, bool),
        asker: MarkAsker,
        error: ErrorCode,
    ) {
        let number = self.calls.numbers.remove(&(replica, producer_id));
        if error.is_none() {
            self.note_executed(replica, producer_id, number);
            self.tell_groups_of_marker(core, replica, producer_id, commits);
        }
        self.tell_asker(core, asker, error);
    }

    fn tell_asker(&mut self, core: &mut Core, asker: MarkAsker, code: ErrorCode) {
        match asker {
            MarkAsker::Own { nonce } => self.on_marked(core, nonce, code),
            MarkAsker::Node { broker_id, nonce } => {
                let marked = Marked { nonce, error_code: code.code() };
                core.peers.frame_to(broker_id).marked.push(marked);
            }
            MarkAsker::Request { key, at } => {
                core.signals.push_back(Signal::Marked { key, at, code });
            }
        }
    }

    /// Forgets the decisions of producers that a partition has forgotten.
    pub(super) fn forget_executed(&mut self, core: &mut Core, replica: ReplicaId) {
        let (Some(all), Some(partition)) =
            (self.calls.executed.get_mut(&replica), core.partitions.get(&replica))
        else {
            return;
        };
        all.retain(|producer_id, _| partition.producer_epoch(*producer_id).is_some());
    }
}

/// Other nodes.
impl Coordinators {
    pub(crate) fn on_transaction_calls(&mut self, core: &mut Core, frame: &Frame) {
        let broker_id = frame.broker_id;
        for ask in &frame.transaction_asks {
            let asker = Asker::Node { broker_id, nonce: ask.nonce };
            let addition = Addition {
                producer_id: ask.producer_id,
                epoch: ask.producer_epoch,
                partitions: [(ask.topic.clone(), [ask.partition].into())].into(),
                verify_only: ask.verify_only,
                version: ask.version,
            };
            let id = &ask.transactional_id;
            let now = core.now;
            let given = self.coordinate_transaction(core, id, |it| {
                it.ask(id, Ask::Add { asker, addition }, now);
            });
            if let Err(code) = given {
                let answer = TransactionAnswer { nonce: ask.nonce, error_code: code.code() };
                core.peers.frame_to(broker_id).transaction_answers.push(answer);
            }
        }
        for wanted in &frame.marks_wanted {
            let asker = MarkAsker::Node { broker_id, nonce: wanted.nonce };
            match core.marked_replica(wanted) {
                Some(replica) => {
                    let marker = Marker {
                        producer_id: wanted.producer_id,
                        epoch: wanted.producer_epoch,
                        coordinator_epoch: wanted.coordinator_epoch,
                        commits: wanted.commits,
                    };
                    self.mark(core, replica, marker, Some(wanted.number), asker);
                }
                None => self.tell_asker(core, asker, ErrorCode::NotLeaderOrFollower),
            }
        }
        for answer in &frame.transaction_answers {
            let code = ErrorCode::from_code(answer.error_code);
            self.on_judged(core, answer.nonce, code.unwrap_or(ErrorCode::UnknownServerError));
        }
        for marked in &frame.marked {
            let code = ErrorCode::from_code(marked.error_code);
            self.on_marked(core, marked.nonce, code.unwrap_or(ErrorCode::UnknownServerError));
        }
    }

    /// Checks that a turn has sent all questions, and that what is open is looked at again.
    pub(crate) fn inspect_calls(&self, core: &Core) {
        let Calls { held, questions, wanted, numbers, ids_wanted, for_groups, is_timed, .. } =
            &self.calls;
        assert!(questions.are_sent() && wanted.are_sent(), "questions leave with their turn");
        let is_open = !questions.is_empty()
            || !wanted.is_empty()
            || !ids_wanted.is_empty()
            || !for_groups.is_empty();
        assert!(*is_timed || !is_open, "an open call is looked at again");
        assert!(held.is_empty() || !questions.is_empty(), "batches wait for an answer");
        debug_assert!(
            held.values().all(|it| !it.batches.is_empty()),
            "a question about batches has some"
        );
        debug_assert!(
            numbers.keys().all(|(replica, _)| core.partitions.contains_key(replica)),
            "markers are written in partitions that are here"
        );
    }

    /// Sets the timer for the next look, as long as any call is open.
    fn time_calls(&mut self, core: &mut Core) {
        let calls = &self.calls;
        let is_open = !calls.questions.is_empty()
            || !calls.wanted.is_empty()
            || !calls.ids_wanted.is_empty()
            || !calls.for_groups.is_empty();
        if is_open && !self.calls.is_timed {
            self.calls.is_timed = true;
            let at = core.now.mono_us.saturating_add(TRANSACTION_CALL_US);
            core.timers.insert((at, Timer::Calls));
        }
    }

    /// Sends unanswered questions again, and gives up those that have waited too long.
    pub(crate) fn on_calls_timer(&mut self, core: &mut Core) {
        self.calls.is_timed = false;
        for nonce in self.calls.questions.nonces() {
            if let Some(question) = self.calls.questions.take_late(nonce, core.now) {
                self.end_question(core, &question.of, ErrorCode::CoordinatorNotAvailable);
            } else {
                self.send_question(core, nonce);
            }
        }
        for nonce in self.calls.wanted.nonces() {
            self.send_mark(core, nonce);
        }
        self.give_producer_ids(core);
        self.calls.for_groups.retain(|key| core.desk.contains(*key));
        if !self.calls.for_groups.is_empty() {
            core.make_or_want_topic(GROUPS);
        }
        self.time_calls(core);
    }

    /// Returns the replica and the partition that keep a group, if it is coordinated here.
    pub(crate) fn group_partition(
        &self,
        core: &Core,
        group: &str,
    ) -> Result<(ReplicaId, i32), ErrorCode> {
        let replica = self.shard_of(core, GROUPS, group)?;
        let partition = core.partitions.get(&replica).ok_or(ErrorCode::NotCoordinator)?;
        Ok((replica, partition.id.partition))
    }

    /// Checks that a transactional id may be coordinated here.
    pub(crate) fn coordinates(&self, core: &Core, id: &str) -> Result<(), ErrorCode> {
        self.shard_of(core, TRANSACTIONS, id).map(|_| ())
    }
}

impl Core {
    /// Returns the replica here that leads in the term that a marker is for.
    fn marked_replica(&self, wanted: &MarkWanted) -> Option<ReplicaId> {
        let topic: &Topic = self.controller.image.topic(wanted.topic_id)?;
        let partition = self.serving(topic, wanted.partition).ok()?;
        let is_of_term = partition.group.epoch() == wanted.term;
        (is_of_term || sabotage::is(Bug::LateMarkerTaken)).then(|| partition.group.id())
    }

    /// Tells whether a producer's transaction is open in the partition that keeps a group. Returns an error if a newer
    /// epoch of the producer is known. An open transaction of an earlier epoch counts as ended. Its marker is on its
    /// way, and the coordinator lets no producer in before the marker is there.
    pub(crate) fn check_transactor(
        &self,
        replica: ReplicaId,
        producer_id: i64,
        epoch: i16,
    ) -> Result<bool, ErrorCode> {
        let partition = self.partitions.get(&replica).ok_or(ErrorCode::NotCoordinator)?;
        let known = partition.producer_epoch(producer_id);
        if known > Some(epoch) {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        Ok(known == Some(epoch) && partition.is_in_transaction(producer_id))
    }
}
