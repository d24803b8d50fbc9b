//! Changes by administrators of share groups without members: start offsets, deletion of a topic's state, and the end
//! of a group.
//!
//! A change takes four steps. The coordinator first reads the stored states, with the epoch of each. Then it appends
//! its intent, which proves that no other node coordinates the group by then. Then it changes the states, if they still
//! have the epochs that it read. Last it appends the result, or ends the group. So a coordinator that has a successor
//! without knowing it changes no state that began since.

use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::{AlterShareGroupOffsetsResponse, DeleteShareGroupOffsetsResponse};
use duramen_protocol::wire::Uuid;

use super::super::consumer::Asked;
use super::super::{Coordinator, Then};
use crate::event::{Now, RequestKey};
use crate::groups::consumer::{Refusal, Topics};
use crate::groups::records::GroupRecord;
use crate::groups::rules::Rules;
use crate::shares::ShareKey;
use crate::shares::coordinator::{Answer, Ask};

/// A topic and a partition.
type Place = (Uuid, i32);

/// Administrator's change of the stored state of a share group.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Start offsets for partitions. The response has all partitions, with the errors of some of them; topics have
    /// names.
    Start {
        starts: BTreeMap<Place, i64>,
        names: BTreeMap<Uuid, String>,
        response: AlterShareGroupOffsetsResponse,
    },
    /// Deletion of topics' stored state. The response has all topics, with the errors of some of them.
    Forget { response: DeleteShareGroupOffsetsResponse },
}

/// Act of a change.
#[derive(Debug)]
enum What {
    /// The group goes, for this part of a request.
    End(usize),
    Wish(Wish),
}

/// A share group that is being changed.
#[derive(Debug)]
pub(in crate::groups::coordinator) struct Changing {
    /// Request to answer.
    key: RequestKey,
    what: What,
    /// The partitions that an answer is awaited of.
    awaited: Vec<Place>,
    /// Epochs of the stored states.
    seen: BTreeMap<Place, i32>,
    problems: BTreeMap<Place, ErrorCode>,
    /// Flag that the intent is in the log, so this node is known to coordinate the group.
    is_acting: bool,
}

/// Returns a response that refuses the whole change.
pub(crate) fn refused_wish(wish: &Wish, refusal: Refusal) -> duramen_protocol::Response {
    let (error_code, error_message) = (refusal.code.code(), Some(refusal.message));
    match wish {
        Wish::Start { .. } => {
            AlterShareGroupOffsetsResponse { error_code, error_message, ..Default::default() }
                .into()
        }
        Wish::Forget { .. } => {
            DeleteShareGroupOffsetsResponse { error_code, error_message, ..Default::default() }
                .into()
        }
    }
}

/// Returns Kafka's error message for a code.
fn message_of(code: ErrorCode) -> String {
    match code {
        ErrorCode::UnknownTopicOrPartition => {
            "This server does not host this topic-partition.".to_owned()
        }
        code => code.name().to_owned(),
    }
}

impl Wish {
    /// Records the results of the places without an error so far.
    fn note(&mut self, problems: &BTreeMap<Place, ErrorCode>) {
        match self {
            Self::Start { response, .. } => {
                for topic in &mut response.responses {
                    for it in topic.partitions.iter_mut().filter(|it| it.error_code == 0) {
                        if let Some(code) = problems.get(&(topic.topic_id, it.partition_index)) {
                            (it.error_code, it.error_message) =
                                (code.code(), Some(message_of(*code)));
                        }
                    }
                }
            }
            Self::Forget { response } => {
                for topic in response.responses.iter_mut().filter(|it| it.error_code == 0) {
                    let of_it = |((id, _), _): &(&Place, _)| *id == topic.topic_id;
                    if let Some((_, code)) = problems.iter().find(of_it) {
                        (topic.error_code, topic.error_message) =
                            (code.code(), Some(message_of(*code)));
                    }
                }
            }
        }
    }

    fn response(self) -> duramen_protocol::Response {
        match self {
            Self::Start { response, .. } => response.into(),
            Self::Forget { response } => response.into(),
        }
    }
}

/// Requests.
impl Coordinator {
    /// Handles an `AlterShareGroupOffsets` or a `DeleteShareGroupOffsets`.
    pub(crate) fn change_shares(
        &mut self,
        rules: &Rules,
        topics: Topics<'_>,
        key: RequestKey,
        group_id: &str,
        wish: Wish,
        now: Now,
    ) {
        let name = match (self.groups.get_key_value(group_id), &wish) {
            (Some((name, _)), _) => name.clone(),
            (None, Wish::Start { .. }) => group_id.into(),
            (None, Wish::Forget { .. }) => {
                let message = format!("Group {group_id} not found.");
                let refusal = Refusal::new(ErrorCode::GroupIdNotFound, message);
                return self.reply(key, refused_wish(&wish, refusal));
            }
        };
        self.ask(&name, Asked::Wish(key, Box::new(wish)), rules, topics, now);
    }

    pub(in crate::groups::coordinator) fn begin_wish(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        topics: Topics<'_>,
        key: RequestKey,
        mut wish: Wish,
        now: Now,
    ) {
        if let Err(refusal) = self.admit_wish(name, rules, &wish, now) {
            return self.reply(key, refused_wish(&wish, refusal));
        }
        let share = self.group_mut(name).share.as_ref().expect("it was admitted");
        let awaited: Vec<Place> = match &mut wish {
            Wish::Start { starts, .. } => starts.keys().copied().collect(),
            Wish::Forget { response } => {
                let mut awaited = Vec::new();
                for topic in response.responses.iter_mut().filter(|it| it.error_code == 0) {
                    let kept = share.kept_of(topic.topic_id, topics);
                    if kept.is_empty() {
                        topic.error_code = ErrorCode::UnknownTopicOrPartition.code();
                        topic.error_message =
                            Some("There is no offset information to delete.".to_owned());
                        topic.topic_id = Uuid::ZERO;
                    }
                    awaited.extend(kept);
                }
                awaited
            }
        };
        if awaited.is_empty() {
            return self.reply(key, wish.response());
        }
        self.begin_change(name, key, What::Wish(wish), awaited);
    }

    /// Checks that the group is a share group without members. A request that sets start offsets may create the group.
    fn admit_wish(
        &mut self,
        name: &Arc<str>,
        rules: &Rules,
        wish: &Wish,
        now: Now,
    ) -> Result<(), Refusal> {
        let may_be_new = matches!(wish, Wish::Start { .. });
        self.begin_share_group(name, rules, may_be_new, now)?;
        match &self.group_mut(name).share {
            Some(share) if share.is_empty() => Ok(()),
            Some(_) => {
                Err(Refusal::new(ErrorCode::NonEmptyGroup, "The group is not empty.".to_owned()))
            }
            None => {
                let message = format!("Group {name} not found.");
                Err(Refusal::new(ErrorCode::GroupIdNotFound, message))
            }
        }
    }

    /// Deletes a share group without members, and all of its stored state.
    pub(in crate::groups::coordinator) fn delete_shares(
        &mut self,
        name: &Arc<str>,
        topics: Topics<'_>,
        key: RequestKey,
        part: usize,
    ) {
        let Some(share) = &self.group_mut(name).share else {
            return self.push_deleted(key, part, name, ErrorCode::GroupIdNotFound);
        };
        if !share.is_empty() {
            return self.push_deleted(key, part, name, ErrorCode::NonEmptyGroup);
        }
        let awaited = share.kept(topics);
        if awaited.is_empty() {
            return self.delete_empty(name, key, part);
        }
        self.begin_change(name, key, What::End(part), awaited);
    }
}

/// Step by step.
impl Coordinator {
    fn begin_change(&mut self, name: &Arc<str>, key: RequestKey, what: What, awaited: Vec<Place>) {
        assert!(!awaited.is_empty(), "a change of {name} begins with the states that are there");
        for place in &awaited {
            self.ask_share(name, *place, Ask::Look);
        }
        let (seen, problems) = (BTreeMap::new(), BTreeMap::new());
        let changing = Changing { key, what, awaited, seen, problems, is_acting: false };
        let before = self.group_mut(name).changing.replace(Box::new(changing));
        assert!(before.is_none(), "{name} is changed by one request at a time");
    }

    /// Takes the answer to a question of this change.
    pub(super) fn on_change_answer(
        &mut self,
        name: &Arc<str>,
        key: &ShareKey,
        ask: &Ask,
        answer: &Answer,
    ) {
        let place = (key.topic_id, key.partition);
        let Some(changing) = &mut self.group_mut(name).changing else { return };
        let Some(at) = changing.awaited.iter().position(|it| *it == place) else { return };
        let is_gone = *answer == Err(ErrorCode::UnknownTopicOrPartition);
        let is_fenced = *answer == Err(ErrorCode::FencedStateEpoch);
        match (ask, answer) {
            (Ask::Look, Ok(Some(state))) if !changing.is_acting => {
                changing.seen.insert(place, state.state_epoch);
            }
            (Ask::Look, Ok(None)) if !changing.is_acting => {}
            // An earlier answer may have been lost, and this is the second request.
            (Ask::Reset { .. }, _) if is_fenced => return self.ask_share(name, place, Ask::Look),
            (Ask::Look, Ok(state))
                if state.as_ref().map(|it| it.start) != changing.start_of(&place) =>
            {
                changing.problems.insert(place, ErrorCode::FencedStateEpoch);
            }
            (Ask::Delete { .. } | Ask::Look, _) if is_gone && !changing.is_start() => {}
            (_, Err(code)) => {
                changing.problems.insert(place, *code);
            }
            _ => {}
        }
        changing.awaited.swap_remove(at);
        if !changing.awaited.is_empty() {
            return;
        }
        let problem = changing.problems.values().next().copied();
        match (&changing.what, problem) {
            (What::End(_), Some(code)) => self.fail_change(name, code),
            (What::End(part), None) if changing.is_acting => {
                let (key, part) = (changing.key, *part);
                self.group_mut(name).changing = None;
                self.delete_empty(name, key, part);
            }
            (What::Wish(_), _) if changing.is_acting => self.end_wish(name),
            _ => self.declare_change(name),
        }
    }

    /// Takes the answer to a request to begin stored state of a partition, and tells whether a change was waiting for
    /// it.
    pub(super) fn on_begun_for_change(
        &mut self,
        name: &Arc<str>,
        key: &ShareKey,
        answer: &Answer,
    ) -> bool {
        let place = (key.topic_id, key.partition);
        let Some(changing) = &mut self.group_mut(name).changing else { return false };
        let is_awaited = changing.is_acting && changing.awaited.contains(&place);
        let Some(start) = changing.start_of(&place).filter(|_| is_awaited) else { return false };
        if changing.seen.contains_key(&place) {
            return false;
        }
        match answer {
            Ok(Some(state)) => {
                let of = Some(state.state_epoch);
                changing.seen.insert(place, state.state_epoch);
                self.ask_share(name, place, Ask::Reset { of, start });
            }
            _ => self.on_change_answer(name, key, &Ask::Begin, answer),
        }
        true
    }

    /// Appends the intent of a change, because all stored states were read.
    fn declare_change(&mut self, name: &Arc<str>) {
        let group = self.group_mut(name);
        let (Some(changing), Some(share)) = (&mut group.changing, &mut group.share) else {
            return self.fail_change(name, ErrorCode::NotCoordinator);
        };
        assert!(!changing.is_acting, "the intent of a change of {name} is declared once");
        assert!(changing.awaited.is_empty(), "all states of {name} were read before");
        changing.is_acting = true;
        match &changing.what {
            What::End(_) => share.give_up_states(),
            What::Wish(Wish::Start { starts, names, .. }) => {
                let good = starts.keys().filter(|place| !changing.problems.contains_key(place));
                share.begin_states(good.copied(), names);
            }
            What::Wish(Wish::Forget { response }) => {
                let good = response.responses.iter().filter(|it| it.error_code == 0);
                for topic in good.filter(|it| !changing.has_problem_in(it.topic_id)) {
                    share.give_up_states_of(topic.topic_id);
                }
            }
        }
        let (facts, answers) = share.take();
        assert!(answers.is_empty(), "{name} has answered all requests before it is changed");
        let record = |(fact, value)| GroupRecord::Consumer { group: name.clone(), fact, value };
        let records: Vec<GroupRecord> = facts.into_iter().map(record).collect();
        // Every place has a problem, so there is no intent: a batch without records would be refused.
        if records.is_empty() {
            return self.on_declared(name, Ok(()));
        }
        self.append(Some(name), records, Then::Declared);
    }

    /// Takes the result of the append of the change's intent.
    pub(in crate::groups::coordinator) fn on_declared(
        &mut self,
        name: &Arc<str>,
        result: Result<(), ErrorCode>,
    ) {
        let group = self.group_mut(name);
        if let Err(code) = result {
            group.share = None;
            return self.fail_change(name, code);
        }
        let Some(changing) = &mut group.changing else { return };
        let ask = |place: &Place| {
            let of = changing.seen.get(place).copied();
            match &changing.what {
                What::Wish(Wish::Start { starts, .. }) => {
                    let is_good = !changing.problems.contains_key(place);
                    // The request may arrive late, so it names the epoch of the state that it is to change.
                    let ask = of
                        .map_or(Ask::Begin, |of| Ask::Reset { of: Some(of), start: starts[place] });
                    is_good.then_some(ask)
                }
                _ if changing.has_problem_in(place.0) => None,
                _ => of.map(|of| Ask::Delete { of: Some(of) }),
            }
        };
        let places: Vec<Place> = match &changing.what {
            What::Wish(Wish::Start { starts, .. }) => starts.keys().copied().collect(),
            _ => changing.seen.keys().copied().collect(),
        };
        let asks: Vec<(Place, Ask)> =
            places.into_iter().filter_map(|place| Some((place, ask(&place)?))).collect();
        changing.awaited = asks.iter().map(|(place, _)| *place).collect();
        if asks.is_empty() {
            let (key, what) = (changing.key, &changing.what);
            if let What::End(part) = *what {
                group.changing = None;
                return self.delete_empty(name, key, part);
            }
            return self.end_wish(name);
        }
        for (place, ask) in asks {
            self.ask_share(name, place, ask);
        }
    }

    /// Appends the result of the change as far as it got, and then answers.
    fn end_wish(&mut self, name: &Arc<str>) {
        let group = self.group_mut(name);
        let Some(changing) = group.changing.take() else { return };
        assert!(changing.is_acting, "a change of {name} ends after its intent was declared");
        let Changing { key, what: What::Wish(mut wish), problems, .. } = *changing else { return };
        wish.note(&problems);
        if let Some(share) = &mut group.share {
            match &wish {
                Wish::Start { starts, .. } => {
                    for (topic, partition) in starts.keys() {
                        let is_there = !problems.contains_key(&(*topic, *partition));
                        share.on_begun(*topic, *partition, is_there);
                    }
                }
                Wish::Forget { response } => {
                    for topic in response.responses.iter().filter(|it| it.error_code == 0) {
                        share.forget_topic(topic.topic_id);
                    }
                }
            }
            share.answer(key, wish.response());
        }
        self.ready.insert(name.clone());
    }

    fn fail_change(&mut self, name: &Arc<str>, code: ErrorCode) {
        if let Some(changing) = self.group_mut(name).changing.take() {
            self.refuse_change(name, *changing, code);
        }
        self.ready.insert(name.clone());
    }

    /// Tells that it is not known to be done.
    pub(in crate::groups::coordinator) fn refuse_change(
        &mut self,
        name: &str,
        changing: Changing,
        code: ErrorCode,
    ) {
        match changing.what {
            What::End(part) => self.push_deleted(changing.key, part, name, code),
            What::Wish(wish) => {
                let refusal = Refusal::new(code, code.name().to_owned());
                self.reply(changing.key, refused_wish(&wish, refusal));
            }
        }
    }
}

impl Changing {
    /// Tells whether the change waits for stored states.
    pub(in crate::groups::coordinator) fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    fn has_problem_in(&self, topic: Uuid) -> bool {
        self.problems.keys().any(|(id, _)| *id == topic)
    }

    fn is_start(&self) -> bool {
        matches!(self.what, What::Wish(Wish::Start { .. }))
    }

    /// Returns the start offset that the group is to have in a partition.
    fn start_of(&self, place: &Place) -> Option<i64> {
        match &self.what {
            What::Wish(Wish::Start { starts, .. }) => starts.get(place).copied(),
            _ => None,
        }
    }
}
