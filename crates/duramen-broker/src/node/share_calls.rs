//! # Room card: share calls
//!
//! Purpose:    calls of partition leaders to the coordinators of share groups' states, on this node and others; calls
//!             of these coordinators to the leader of the metadata about the existence of topics.
//! Owns:       open calls.
//! Interface:  [`Coordinators::read_share_state`], [`Coordinators::write_share_state`] and
//!             [`Coordinators::take_share_answers`] for leaders, [`Coordinators::coordinate_share`] for clients,
//!             [`Coordinators::doubt_topics`] for coordinators; the node calls the rest on events.
//! Invariants: the node repeats a call until it gets the answer, or gives the call up. A former leader gets no answer.
//!             The coordinator sends an answer without a write only after a leadership check. The metadata's leader
//!             reports a topic as missing only after a leadership check.
//! Never:      the stored state (see `shares`), its use by leaders.
//! Tests:      `node/tests/shares.rs`.
//! Start at:   [`Coordinators::send_share_call`], then [`Coordinators::on_share_answer`].
//!
//! Frames may be lost, late, and come twice, so every call may be repeated (see `shares/coordinator.rs`).

use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::Coordinators;
use super::questions::Questions;
use crate::core::{Core, Signal, Then, Timer};
use crate::event::RequestKey;
use crate::internal_topics::{GROUPS, SHARES};
use crate::limits::{SHARE_CALL_AGAIN_US, SHARE_CALL_US, SHARE_CALL_US_MAX};
use crate::peer::{Frame, ShareAnswer, ShareAsk, ShareBatch};
use crate::shares::coordinator::{Answer, Ask, Asker};
use crate::shares::{ShareKey, ShareState, ShareWrite, StateBatch};

/// Receiver of a call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The leader of the key's partition.
    Leader(ReplicaId),
    /// The coordinator of its group.
    Group(ReplicaId),
    /// A client, in a part of its request.
    Request(RequestKey, usize),
    /// A coordinator that keeps state of the key's topic.
    Keeper(ReplicaId),
}

/// Subject of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    /// The state that the coordinator keeps.
    Kept(Ask),
    /// The end of the partition, as its leader knows it.
    End,
    /// The existence of the topic, as the leader of the metadata knows it.
    Topic,
    /// A begin of the state by the coordinator of the group, which has workers that are no members. An answer without
    /// an error says that the coordinator has begun.
    Group,
}

#[derive(Debug)]
struct Call {
    caller: Caller,
    key: ShareKey,
    question: Question,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct ShareCalls {
    calls: Questions<Call>,
    /// Results that leaders have not received yet.
    told: Vec<ShareTold>,
    /// Answers that coordinators of groups have not received yet.
    for_groups: Vec<(ReplicaId, ShareKey, Ask, Answer)>,
    /// Answers that clients have not received yet.
    for_requests: Vec<(RequestKey, usize, Question, Answer)>,
    /// Deleted topics of which coordinators keep state.
    for_keepers: Vec<(ReplicaId, Uuid)>,
    is_timed: bool,
}

/// Result of a leader's call. After a write the state is durable; only the epochs of the answer are certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareTold {
    pub replica: ReplicaId,
    pub key: ShareKey,
    pub call: u64,
    pub answer: Result<Arc<ShareState>, ErrorCode>,
}

/// Callers.
impl Coordinators {
    /// Reads the state for a leader. The coordinator learns the leader's term, and refuses earlier leaders from now on.
    /// Returns the number of the call.
    pub(crate) fn read_share_state(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        key: ShareKey,
    ) -> u64 {
        let leader_epoch = core.partitions.get(&replica).map_or(0, |it| it.group.epoch());
        self.call_shares(core, Caller::Leader(replica), key, Ask::Read { leader_epoch })
    }

    /// Has the coordinator of a group begin the state of a partition that workers use. Returns the number of the call.
    pub(super) fn begin_share_state(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        key: ShareKey,
    ) -> u64 {
        self.call(core, Call { caller: Caller::Leader(replica), key, question: Question::Group })
    }

    /// Writes state for a leader. Returns the number of the call.
    pub(crate) fn write_share_state(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        key: ShareKey,
        write: ShareWrite,
    ) -> u64 {
        let leader_epoch = core.partitions.get(&replica).map_or(0, |it| it.group.epoch());
        self.call_shares(core, Caller::Leader(replica), key, Ask::Write { leader_epoch, write })
    }

    /// Returns the results of leaders' calls since the last time.
    pub(super) fn take_share_answers(&mut self) -> Vec<ShareTold> {
        std::mem::take(&mut self.share_calls.told)
    }

    /// Asks the coordinator of a key, on whichever node, until it answers, or for a while.
    pub(super) fn call_shares(
        &mut self,
        core: &mut Core,
        caller: Caller,
        key: ShareKey,
        ask: Ask,
    ) -> u64 {
        self.call(core, Call { caller, key, question: Question::Kept(ask) })
    }

    /// Reads the state for a client.
    pub(crate) fn look_at_share_state(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        part: usize,
        of: ShareKey,
    ) {
        self.call_shares(core, Caller::Request(key, part), of, Ask::Look);
    }

    /// Asks for the end of a partition for a client.
    pub(crate) fn look_at_end(
        &mut self,
        core: &mut Core,
        key: RequestKey,
        part: usize,
        of: ShareKey,
    ) {
        let caller = Caller::Request(key, part);
        self.call(core, Call { caller, key: of, question: Question::End });
    }

    /// Asks whether topics exist of which a coordinator keeps state. A topic that this node does not know may have been
    /// deleted while no node coordinated. Or the topic is new, and this node has not heard of it yet.
    pub(super) fn doubt_topics(
        &mut self,
        core: &mut Core,
        keeper: ReplicaId,
        topics: impl IntoIterator<Item = Uuid>,
    ) {
        for topic_id in topics {
            if core.controller.image.topic(topic_id).is_some() {
                continue;
            }
            let key = ShareKey { group: "".into(), topic_id, partition: 0 };
            let caller = Caller::Keeper(keeper);
            self.call(core, Call { caller, key, question: Question::Topic });
        }
    }

    fn call(&mut self, core: &mut Core, call: Call) -> u64 {
        let nonce = core.chance.next();
        let until_us = core.now.mono_us.saturating_add(SHARE_CALL_US_MAX);
        // The caller has more to do with the call, and the answer may be at hand: the call leaves with the turn.
        self.share_calls.calls.ask(nonce, call, until_us);
        self.time_share_calls(core);
        nonce
    }

    /// Sends the questions of this turn, and delivers the answers.
    pub(crate) fn send_share_calls(&mut self, core: &mut Core) -> bool {
        let unsent = self.share_calls.calls.take_unsent();
        for nonce in &unsent {
            self.send_share_call(core, *nonce);
        }
        let told = std::mem::take(&mut self.share_calls.for_groups);
        let is_any = !unsent.is_empty() || !told.is_empty();
        for (replica, key, ask, answer) in told {
            self.tell_groups_of_share(core, replica, (&key, &ask, &answer));
        }
        let told = std::mem::take(&mut self.share_calls.for_requests);
        let is_any = is_any || !told.is_empty();
        for (key, part, question, answer) in told {
            if question == Question::End {
                let end = answer.map(|it| it.map_or(0, |state| state.start));
                core.signals.push_back(Signal::ShareEnd { key, part, end });
            } else {
                core.signals.push_back(Signal::ShareLooked { key, part, answer });
            }
        }
        let gone = std::mem::take(&mut self.share_calls.for_keepers);
        let is_any = is_any || !gone.is_empty();
        for (keeper, topic_id) in gone {
            self.forget_kept(core, keeper, topic_id);
        }
        is_any
    }

    fn send_share_call(&mut self, core: &mut Core, nonce: u64) {
        let Some(call) = self.share_calls.calls.get(nonce) else { return };
        if matches!(call.caller, Caller::Group(_))
            && core.controller.image.topic_named(SHARES).is_none()
        {
            return core.make_or_want_topic(SHARES);
        }
        if call.question == Question::Group && core.controller.image.topic_named(GROUPS).is_none() {
            return core.make_or_want_topic(GROUPS);
        }
        let leader = match &call.question {
            Question::Kept(_) => core.coordinator_of(SHARES, &call.key.to_string()),
            Question::End => {
                let topic = core.controller.image.topic(call.key.topic_id);
                topic.and_then(|it| core.leader_of(it, call.key.partition)).map(|(id, _)| id)
            }
            Question::Topic => core.metadata_leader(),
            Question::Group => core.coordinator_of(GROUPS, &call.key.group),
        };
        let Some(leader) = leader else { return };
        let own = core.options.facts.broker_id;
        let (key, question) = (call.key.clone(), call.question.clone());
        // This node answers each of its own questions, so none is asked again.
        let pause_us = if leader == own { u64::MAX } else { SHARE_CALL_AGAIN_US };
        if !self.share_calls.calls.is_due(nonce, (leader, 0), core.now, pause_us) {
            return;
        }
        match question {
            Question::End if leader == own => {
                let end = core.end_of_shared(key.topic_id, key.partition);
                self.on_share_answer(core, nonce, end);
            }
            Question::End => {
                let ask = ShareAsk { kind: END, ..said(nonce, &key, Ask::Look) };
                core.peers.frame_to(leader).share_asks.push(ask);
            }
            Question::Topic if leader == own => {
                self.tell_of_topic(core, key.topic_id, Asker::Own { nonce });
            }
            Question::Topic => {
                let ask = ShareAsk { kind: TOPIC, ..said(nonce, &key, Ask::Look) };
                core.peers.frame_to(leader).share_asks.push(ask);
            }
            Question::Group if leader == own => {
                let answer = self.begin_for_workers(core, &key);
                self.on_share_answer(core, nonce, answer);
            }
            Question::Group => {
                let ask = ShareAsk { kind: GROUP, ..said(nonce, &key, Ask::Look) };
                core.peers.frame_to(leader).share_asks.push(ask);
            }
            Question::Kept(ask) if leader == own => {
                let asker = Asker::Own { nonce };
                if let Err(code) = self.coordinate_share(core, &key, asker, ask) {
                    self.on_share_answer(core, nonce, Err(code));
                }
            }
            Question::Kept(ask) => {
                core.peers.frame_to(leader).share_asks.push(said(nonce, &key, ask));
            }
        }
    }

    /// Takes the answer to a call.
    fn on_share_answer(&mut self, core: &mut Core, nonce: u64, answer: Answer) {
        let Some(call) = self.share_calls.calls.get(nonce) else { return };
        let is_elsewhere = matches!(
            answer,
            Err(ErrorCode::NotCoordinator
                | ErrorCode::CoordinatorLoadInProgress
                | ErrorCode::CoordinatorNotAvailable
                | ErrorCode::NotLeaderOrFollower
                | ErrorCode::LeaderNotAvailable
                | ErrorCode::NotController)
        );
        // The topic may be here before the coordinator hears of it.
        let is_known = answer == Err(ErrorCode::UnknownTopicOrPartition)
            && core.controller.image.has_partition(call.key.topic_id, call.key.partition);
        if is_elsewhere {
            self.share_calls.calls.ask_elsewhere(nonce);
        }
        if is_elsewhere || is_known {
            // The next look asks for it again.
            return;
        }
        let Some(call) = self.share_calls.calls.take(nonce) else { return };
        self.end_share_call(nonce, call, answer);
    }

    fn end_share_call(&mut self, nonce: u64, call: Call, answer: Answer) {
        match call.caller {
            Caller::Leader(replica) => {
                let answer = answer.and_then(|it| it.ok_or(ErrorCode::InvalidRequest));
                let told = ShareTold { replica, key: call.key, call: nonce, answer };
                self.share_calls.told.push(told);
            }
            Caller::Group(replica) => {
                if let Question::Kept(ask) = call.question {
                    self.share_calls.for_groups.push((replica, call.key, ask, answer));
                }
            }
            Caller::Request(key, part) => {
                self.share_calls.for_requests.push((key, part, call.question, answer));
            }
            Caller::Keeper(replica) => {
                if answer == Err(ErrorCode::UnknownTopicId) {
                    self.share_calls.for_keepers.push((replica, call.key.topic_id));
                }
            }
        }
    }

    /// Forgets the calls of a replica that leads no more, or is gone, because nobody waits for the answers.
    pub(super) fn forget_share_calls(&mut self, replica: ReplicaId) {
        let of_it = [Caller::Leader, Caller::Group, Caller::Keeper].map(|of| of(replica));
        self.share_calls.calls.retain(|call| !of_it.contains(&call.caller));
        self.share_calls.for_groups.retain(|(of, ..)| *of != replica);
        self.share_calls.for_keepers.retain(|(of, _)| *of != replica);
        self.share_calls.told.retain(|it| it.replica != replica);
    }

    /// Checks that a turn has sent all calls and delivered all answers.
    pub(crate) fn inspect_share_calls(&self) {
        let ShareCalls { calls, for_groups, for_requests, for_keepers, is_timed, .. } =
            &self.share_calls;
        assert!(calls.are_sent(), "calls leave with their turn");
        assert!(*is_timed || calls.is_empty(), "an open call is looked at again");
        assert!(for_groups.is_empty(), "coordinators of groups have their answers");
        assert!(for_requests.is_empty(), "clients have their answers");
        assert!(for_keepers.is_empty(), "deleted topics are forgotten");
    }

    /// Looks again in a while, as long as anything is open.
    fn time_share_calls(&mut self, core: &mut Core) {
        if !self.share_calls.calls.is_empty() && !self.share_calls.is_timed {
            self.share_calls.is_timed = true;
            let at = core.now.mono_us.saturating_add(SHARE_CALL_US);
            core.timers.insert((at, Timer::ShareCalls));
        }
    }

    /// Asks again what was not answered, and gives up what has waited too long.
    pub(crate) fn on_share_calls_timer(&mut self, core: &mut Core) {
        self.share_calls.is_timed = false;
        for nonce in self.share_calls.calls.nonces() {
            if let Some(call) = self.share_calls.calls.take_late(nonce, core.now) {
                self.end_share_call(nonce, call, Err(ErrorCode::CoordinatorNotAvailable));
            } else {
                self.send_share_call(core, nonce);
            }
        }
        self.time_share_calls(core);
    }
}

/// Coordinators.
impl Coordinators {
    /// Puts a question to the coordinator of a key, if it is here.
    pub(crate) fn coordinate_share(
        &mut self,
        core: &mut Core,
        key: &ShareKey,
        asker: Asker,
        ask: Ask,
    ) -> Result<(), ErrorCode> {
        let replica = self.shard_of(core, SHARES, &key.to_string())?;
        if !core.controller.image.has_partition(key.topic_id, key.partition) {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let now = core.now;
        self.with_shares(core, replica, |it| it.ask(key, asker, ask, now));
        Ok(())
    }

    pub(super) fn tell_share_asker(&mut self, core: &mut Core, asker: Asker, answer: Answer) {
        match asker {
            Asker::Own { nonce } => self.on_share_answer(core, nonce, answer),
            Asker::Node { broker_id, nonce } => {
                let answer = answered(nonce, answer);
                core.peers.frame_to(broker_id).share_answers.push(answer);
            }
            Asker::Request { key, part } => {
                core.signals.push_back(Signal::ShareState { key, part, answer });
            }
            Asker::Nobody => {}
        }
    }
}

/// Other nodes.
impl Core {
    /// Returns the end of a partition that is led here.
    fn end_of_shared(&self, topic_id: Uuid, partition: i32) -> Answer {
        let topic = self.controller.image.topic(topic_id);
        let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let start = self.serving(topic, partition)?.committed();
        let (state_epoch, leader_epoch, complete) = (0, 0, 0);
        let batches = Vec::new();
        Ok(Some(Arc::new(ShareState { state_epoch, leader_epoch, start, complete, batches })))
    }
}

impl Coordinators {
    /// Tells an asker whether a topic exists, after a leadership check of the metadata's leader.
    fn tell_of_topic(&mut self, core: &mut Core, topic_id: Uuid, asker: Asker) {
        let group = &core.controller.group;
        let (replica, leads) = (group.id(), group.is_serving());
        if !leads {
            return self.tell_share_asker(core, asker, Err(ErrorCode::NotController));
        }
        let is_there = core.controller.image.topic(topic_id).is_some();
        let answer = if is_there { Ok(None) } else { Err(ErrorCode::UnknownTopicId) };
        if let Some(then) = core.when_sure(replica, Then::ShareState(asker, answer)) {
            self.tell(core, then, true);
        }
    }

    pub(crate) fn on_share_frames(&mut self, core: &mut Core, frame: &Frame) {
        let broker_id = frame.broker_id;
        for said in &frame.share_asks {
            if said.kind == END {
                let end = core.end_of_shared(said.topic_id, said.partition);
                core.peers.frame_to(broker_id).share_answers.push(answered(said.nonce, end));
                continue;
            }
            let asker = Asker::Node { broker_id, nonce: said.nonce };
            if said.kind == TOPIC {
                self.tell_of_topic(core, said.topic_id, asker);
                continue;
            }
            if said.kind == GROUP {
                let key = key_of(said);
                let answer = self.begin_for_workers(core, &key);
                core.peers.frame_to(broker_id).share_answers.push(answered(said.nonce, answer));
                continue;
            }
            let Some((key, ask)) = understood(said) else { continue };
            if let Err(code) = self.coordinate_share(core, &key, asker, ask) {
                let answer = answered(said.nonce, Err(code));
                core.peers.frame_to(broker_id).share_answers.push(answer);
            }
        }
        for said in &frame.share_answers {
            self.on_share_answer(core, said.nonce, heard(said));
        }
    }
}

/// Coordinators of groups.
impl Coordinators {
    /// Has the coordinator of a group begin the state of a partition, if the coordinator is here.
    fn begin_for_workers(&mut self, core: &mut Core, key: &ShareKey) -> Answer {
        if !core.controller.image.has_partition(key.topic_id, key.partition) {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let (now, mut answer) = (core.now, Ok(()));
        self.coordinate_part(core, &key.group, |groups, sight| {
            answer = groups.begin_for_workers(key, sight.rules, sight.topics, now);
        })?;
        answer.map(|()| None)
    }
}

/// Kinds of [`ShareAsk`].
const READ: i8 = 0;
const WRITE: i8 = 1;
const BEGIN: i8 = 2;
const RESET: i8 = 3;
const LOOK: i8 = 4;
const DELETE: i8 = 5;
/// For the leader of the partition itself, whose answer has it as the start.
const END: i8 = 6;
/// For the leader of the metadata: whether the topic is there.
const TOPIC: i8 = 7;
/// For the coordinator of the group: it is to begin the state.
const GROUP: i8 = 8;

/// Returns a question as it is sent.
fn said(nonce: u64, key: &ShareKey, ask: Ask) -> ShareAsk {
    let mut said = ShareAsk {
        nonce,
        kind: LOOK,
        group_id: key.group.as_ref().to_owned(),
        topic_id: key.topic_id,
        partition: key.partition,
        state_epoch: -1,
        leader_epoch: -1,
        start: -1,
        complete: -1,
        batches: Vec::new(),
    };
    match ask {
        Ask::Look => {}
        // Clients ask where the coordinator is.
        Ask::Begin | Ask::Initialize { .. } => said.kind = BEGIN,
        Ask::Reset { of, start } => {
            (said.kind, said.state_epoch, said.start) = (RESET, of.unwrap_or(-1), start);
        }
        Ask::Read { leader_epoch } => (said.kind, said.leader_epoch) = (READ, leader_epoch),
        Ask::Write { leader_epoch, write } => {
            (said.kind, said.leader_epoch) = (WRITE, leader_epoch);
            (said.state_epoch, said.start) = (write.state_epoch, write.start);
            said.complete = write.complete;
            said.batches = to_said(&write.batches);
        }
        Ask::Delete { of } => (said.kind, said.state_epoch) = (DELETE, of.unwrap_or(-1)),
    }
    said
}

fn key_of(said: &ShareAsk) -> ShareKey {
    ShareKey {
        group: said.group_id.as_str().into(),
        topic_id: said.topic_id,
        partition: said.partition,
    }
}

/// Returns `None` if a later build asks a question that this one does not know.
fn understood(said: &ShareAsk) -> Option<(ShareKey, Ask)> {
    let key = key_of(said);
    let of = (said.state_epoch != -1).then_some(said.state_epoch);
    let ask = match said.kind {
        READ => Ask::Read { leader_epoch: said.leader_epoch },
        WRITE => {
            let write = ShareWrite {
                state_epoch: said.state_epoch,
                start: said.start,
                complete: said.complete,
                batches: from_said(&said.batches),
            };
            Ask::Write { leader_epoch: said.leader_epoch, write }
        }
        BEGIN => Ask::Begin,
        RESET => Ask::Reset { of, start: said.start },
        LOOK => Ask::Look,
        DELETE => Ask::Delete { of },
        _ => return None,
    };
    Some((key, ask))
}

fn answered(nonce: u64, answer: Answer) -> ShareAnswer {
    let mut said = ShareAnswer {
        nonce,
        error_code: ErrorCode::None.code(),
        state_epoch: -1,
        leader_epoch: -1,
        start: -1,
        complete: -1,
        batches: Vec::new(),
    };
    match answer {
        Err(code) => said.error_code = code.code(),
        Ok(None) => {}
        Ok(Some(state)) => {
            (said.state_epoch, said.leader_epoch) = (state.state_epoch, state.leader_epoch);
            (said.start, said.complete) = (state.start, state.complete);
            said.batches = to_said(&state.batches);
        }
    }
    said
}

fn heard(said: &ShareAnswer) -> Answer {
    let code = ErrorCode::from_code(said.error_code).unwrap_or(ErrorCode::UnknownServerError);
    if !code.is_none() {
        return Err(code);
    }
    let state = ShareState {
        state_epoch: said.state_epoch,
        leader_epoch: said.leader_epoch,
        start: said.start,
        complete: said.complete,
        batches: from_said(&said.batches),
    };
    Ok((said.state_epoch != -1).then(|| Arc::new(state)))
}

fn to_said(batches: &[StateBatch]) -> Vec<ShareBatch> {
    let one = |it: &StateBatch| ShareBatch {
        first: it.first,
        last: it.last,
        state: it.state,
        count: it.count,
    };
    batches.iter().map(one).collect()
}

fn from_said(batches: &[ShareBatch]) -> Vec<StateBatch> {
    let one = |it: &ShareBatch| StateBatch {
        first: it.first,
        last: it.last,
        state: it.state,
        count: it.count,
    };
    batches.iter().map(one).collect()
}
