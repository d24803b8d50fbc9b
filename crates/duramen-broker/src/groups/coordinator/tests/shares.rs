//! Share groups, by scenario and by chance, with a coordinator of what is kept for them that loses and repeats.

use duramen_protocol::messages::alter_share_group_offsets::{
    AlterShareGroupOffsetsResponsePartition, AlterShareGroupOffsetsResponseTopic,
};
use duramen_protocol::messages::delete_share_group_offsets::DeleteShareGroupOffsetsResponseTopic;
use duramen_protocol::messages::{
    AlterShareGroupOffsetsResponse, DeleteShareGroupOffsetsResponse, ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
};

use super::*;
use crate::prng::Prng;
use crate::shares::coordinator as states;
use crate::shares::{ShareState, ShareWrite};

/// Groups, and what is kept for them.
struct SharePlay {
    play: Play,
    states: states::Coordinator,
    end: i64,
    /// Questions that come once more some time.
    late: Vec<(ShareKey, Ask)>,
}

fn joining(id: &str, topics: &[&str]) -> ShareGroupHeartbeatRequest {
    ShareGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: id.to_owned(),
        subscribed_topic_names: Some(topics.iter().map(|it| (*it).to_owned()).collect()),
        ..ShareGroupHeartbeatRequest::default()
    }
}

fn staying(id: &str, member_epoch: i32) -> ShareGroupHeartbeatRequest {
    ShareGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: id.to_owned(),
        member_epoch,
        ..ShareGroupHeartbeatRequest::default()
    }
}

fn parts(answer: &ShareGroupHeartbeatResponse) -> Option<Vec<i32>> {
    let topics = &answer.assignment.as_ref()?.topic_partitions;
    Some(topics.iter().flat_map(|it| it.partitions.iter().copied()).collect())
}

impl SharePlay {
    fn new() -> Self {
        Self { play: Play::new(), states: states::Coordinator::new(4), end: 0, late: Vec::new() }
    }

    /// Asks for what is kept; all of it is durable at once.
    fn kept(&mut self, key: &ShareKey, ask: Ask) -> states::Answer {
        let asker = states::Asker::Own { nonce: 1 };
        self.states.ask(key, asker, ask, self.play.now);
        loop {
            for output in self.states.take_outputs() {
                match output {
                    states::Output::Answered { answer, .. } => return answer,
                    states::Output::Append(ticket, records) => {
                        let base = self.end;
                        self.end += i64::try_from(records.len()).expect("few");
                        self.states.on_appended(ticket, Ok(base), self.play.now);
                    }
                }
            }
        }
    }

    fn look(&mut self, topic_id: Uuid, partition: i32) -> Option<Arc<ShareState>> {
        let key = ShareKey { group: "g".into(), topic_id, partition };
        self.kept(&key, Ask::Look).expect("looking is never refused")
    }

    /// The oldest question of a group is answered.
    fn answer(&mut self) -> bool {
        let Some((key, ask)) = self.play.share_asks.pop_front() else { return false };
        let answer = self.kept(&key, ask.clone());
        self.play.coordinator.on_share_answer(&key, &ask, &answer);
        self.play.settle();
        true
    }

    fn send(&mut self, request: ShareGroupHeartbeatRequest) -> RequestKey {
        let it = &mut self.play;
        let key = it.key();
        let fresh = Uuid::from_u128(u128::from(it.asked));
        let (client_id, client_host) = ("client".to_owned(), "/127.0.0.1".to_owned());
        let context = RequestContext::sample(ApiKey::ShareGroupHeartbeat);
        let caller = Caller { key, context, client_id, client_host, fresh };
        let topics =
            Topics { access: &Access::default(), image: &it.image, version: it.topics_version };
        it.coordinator.share_group_heartbeat(&it.rules, topics, caller, request, it.now);
        it.settle();
        key
    }

    fn heard(&mut self, key: RequestKey) -> Option<ShareGroupHeartbeatResponse> {
        match self.play.replies.remove(&key)? {
            Response::ShareGroupHeartbeat(answer) => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    /// Asks what is answered at once, and lets what follows happen.
    fn tell(&mut self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse {
        let key = self.send(request);
        let answer = self.heard(key).expect("it is answered at once");
        while self.answer() {}
        answer
    }

    fn delete(&mut self) -> RequestKey {
        let key = self.play.key();
        self.play.coordinator.delete_group(key, 0, "g");
        self.play.settle();
        key
    }

    fn deleted(&mut self) -> ErrorCode {
        let key = self.delete();
        while self.answer() {}
        self.play.deleted.remove(&key).expect("it is over")
    }

    /// A leader keeps how far it is.
    fn progress(&mut self, topic_id: Uuid, partition: i32) -> bool {
        let Some(state) = self.look(topic_id, partition) else { return false };
        let write =
            ShareWrite { state_epoch: state.state_epoch, start: 5, complete: 0, batches: vec![] };
        let key = ShareKey { group: "g".into(), topic_id, partition };
        self.kept(&key, Ask::Write { leader_epoch: 1, write }).is_ok()
    }

    fn crash(&mut self) {
        self.play.coordinator.unload();
        self.play.settle();
        self.play.waiting.clear();
        self.play.share_asks.clear();
        self.play.coordinator = self.play.reloaded();
        let rules = self.play.rules.clone();
        self.play.coordinator.loaded(&rules, self.play.now);
        self.play.settle();
    }
}

#[test]
fn what_cannot_be_stored_is_not_asked_for_over_and_over() {
    let mut it = SharePlay::new();
    it.play.make_topic("t", 2);
    let key = it.send(joining("a", &["t"]));
    let epoch = it.heard(key).expect("it is answered at once").member_epoch;
    it.play.appends_at_once = false;
    for _ in 0..20 {
        let asked = it.play.share_asks.len();
        assert_eq!(asked, 2, "of each partition once");
        while it.answer() {
            while !it.play.waiting.is_empty() {
                it.play.fail(ErrorCode::NotEnoughReplicas);
            }
        }
        // A member that is heard is a reason to try again, two are not two.
        it.send(staying("a", epoch));
        it.send(staying("a", epoch));
    }
    it.play.appends_at_once = true;
    while it.answer() {}
    let answer = it.tell(staying("a", epoch));
    assert_eq!(parts(&answer), Some(vec![0, 1]));
}

#[test]
fn members_share_partitions_of_which_something_is_kept() {
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 2);
    let joined = it.tell(joining("a", &["t"]));
    assert_eq!((joined.error_code, joined.member_epoch, parts(&joined)), (0, 1, Some(vec![])));
    assert!(it.look(topic, 1).is_some(), "it is kept now");
    let told = it.tell(staying("a", 1));
    assert_eq!((told.member_epoch, parts(&told)), (2, Some(vec![0, 1])));
    let told = it.tell(staying("a", 2));
    assert_eq!((told.member_epoch, parts(&told)), (2, None), "nothing has changed");
    assert_eq!(parts(&it.tell(joining("b", &["t"]))), Some(vec![1]));
    let more = it.tell(joining("c", &["t"]));
    assert_eq!(parts(&more), Some(vec![0]), "two have one partition");
    let full = it.tell(joining("d", &["t"]));
    assert_eq!(code_of(full.error_code), ErrorCode::GroupMaxSizeReached);
    assert_eq!(it.tell(staying("c", -1)).member_epoch, -1);
    it.play.pass(46 * SECOND);
    let gone = it.tell(staying("a", 2));
    assert_eq!(code_of(gone.error_code), ErrorCode::UnknownMemberId);
    it.play.check_log();
}

#[test]
fn epochs_that_are_not_known_are_fenced_and_the_last_one_is_not() {
    let mut it = SharePlay::new();
    it.play.make_topic("t", 1);
    it.tell(joining("a", &["t"]));
    it.tell(staying("a", 1));
    assert_eq!(it.tell(staying("a", 1)).member_epoch, 2, "it has not heard of it");
    it.tell(joining("b", &["t"]));
    assert_eq!(it.tell(staying("a", 2)).member_epoch, 3);
    for epoch in [1, 4] {
        let code = it.tell(staying("a", epoch)).error_code;
        assert_eq!(code_of(code), ErrorCode::FencedMemberEpoch);
    }
    let never = it.tell(staying("x", 3)).error_code;
    assert_eq!(code_of(never), ErrorCode::UnknownMemberId);
    let mut wrong = joining("x", &[]);
    assert_eq!(code_of(it.tell(wrong.clone()).error_code), ErrorCode::InvalidRequest);
    (wrong.group_id, wrong.member_epoch) = ("other".to_owned(), 3);
    assert_eq!(code_of(it.tell(wrong).error_code), ErrorCode::GroupIdNotFound);
}

#[test]
fn groups_are_of_one_kind() {
    let mut it = SharePlay::new();
    it.play.make_topic("t", 1);
    it.tell(joining("a", &["t"]));
    let committed = it.play.commit("g", &[("t", 0, 1)]);
    assert_eq!(it.play.committed(committed), [ErrorCode::GroupIdNotFound]);
    let key = it.play.ask(super::consumers::joining("g", "x", &["t"]));
    let heard = it.play.heard(key).expect("it is answered");
    assert_eq!(code_of(heard.error_code), ErrorCode::GroupIdNotFound);
    let listed =
        it.play.coordinator.list(&it.play.rules, &ListGroupsRequest::default(), it.play.now);
    assert_eq!(
        (listed[0].group_type.as_str(), listed[0].group_state.as_str()),
        ("share", "Stable")
    );
    let mut other = joining("a", &["t"]);
    other.group_id = "of-offsets".to_owned();
    it.play.commit("of-offsets", &[("t", 0, 1)]);
    assert_eq!(code_of(it.tell(other).error_code), ErrorCode::GroupIdNotFound);
    it.play.check_log();
}

#[test]
fn a_classic_group_whose_record_is_under_way_is_no_share_group() {
    let mut it = SharePlay::new();
    let asked = it.play.join("g", "", "consumer", subscription(&["t"]));
    let id = it.play.joined(asked).member_id.clone();
    let joins = it.play.join("g", &id, "consumer", subscription(&["t"]));
    it.play.pass(0);
    let generation = it.play.joined(joins).generation_id;
    it.play.appends_at_once = false;
    it.play.sync("g", &id, generation);
    it.play.leave("g", &id);
    let key = it.send(joining("a", &["t"]));
    let refused = it.heard(key).expect("it is refused at once");
    assert_eq!(code_of(refused.error_code), ErrorCode::GroupIdNotFound);
    it.play.land_all();
    it.play.check_log();
}

#[test]
fn a_group_that_is_deleted_takes_along_what_is_kept_for_it() {
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 2);
    it.tell(joining("a", &["t"]));
    assert_eq!(it.deleted(), ErrorCode::NonEmptyGroup);
    it.progress(topic, 0);
    it.tell(staying("a", -1));
    assert_eq!(it.deleted(), ErrorCode::None);
    assert_eq!((it.look(topic, 0), it.look(topic, 1)), (None, None));
    assert_eq!(it.deleted(), ErrorCode::GroupIdNotFound);
    it.play.check_log();
    assert_eq!(it.play.coordinator.live().size().0, 0, "nothing is left of it");
    assert_eq!(it.tell(joining("a", &["t"])).member_epoch, 1);
    assert_eq!(it.look(topic, 0).map(|it| it.start), Some(-1), "it begins anew");
}

fn starting_at(it: &SharePlay, topic_id: Uuid, starts: &[(i32, i64)]) -> Wish {
    let topic_name = it.play.image.topic(topic_id).map_or("", |it| &it.name).to_owned();
    let part = |(partition_index, _): &(i32, i64)| AlterShareGroupOffsetsResponsePartition {
        partition_index: *partition_index,
        ..AlterShareGroupOffsetsResponsePartition::default()
    };
    let names = BTreeMap::from([(topic_id, topic_name.clone())]);
    let partitions = starts.iter().map(part).collect();
    let topic = AlterShareGroupOffsetsResponseTopic { topic_name, topic_id, partitions };
    let response = AlterShareGroupOffsetsResponse { responses: vec![topic], ..Default::default() };
    let starts = starts.iter().map(|(partition, start)| ((topic_id, *partition), *start));
    Wish::Start { starts: starts.collect(), names, response }
}

fn forgetting(topics: &[Uuid]) -> Wish {
    let topic = |topic_id: &Uuid| DeleteShareGroupOffsetsResponseTopic {
        topic_id: *topic_id,
        ..DeleteShareGroupOffsetsResponseTopic::default()
    };
    let responses = topics.iter().map(topic).collect();
    Wish::Forget { response: DeleteShareGroupOffsetsResponse { responses, ..Default::default() } }
}

impl SharePlay {
    fn wish(&mut self, wish: Wish) -> RequestKey {
        let it = &mut self.play;
        let key = it.key();
        let topics =
            Topics { access: &Access::default(), image: &it.image, version: it.topics_version };
        it.coordinator.change_shares(&it.rules, topics, key, "g", wish, it.now);
        it.settle();
        key
    }

    /// What became of it: of the whole, and of its parts.
    fn wished(&mut self, key: RequestKey) -> Option<(ErrorCode, Vec<ErrorCode>)> {
        Some(match self.play.replies.remove(&key)? {
            Response::AlterShareGroupOffsets(it) => {
                let parts = it.responses.iter().flat_map(|it| &it.partitions);
                let parts = parts.map(|it| code_of(it.error_code)).collect();
                (code_of(it.error_code), parts)
            }
            Response::DeleteShareGroupOffsets(it) => {
                let parts = it.responses.iter().map(|it| code_of(it.error_code)).collect();
                (code_of(it.error_code), parts)
            }
            other => panic!("{other:?}"),
        })
    }

    fn done(&mut self, wish: Wish) -> (ErrorCode, Vec<ErrorCode>) {
        let key = self.wish(wish);
        while self.answer() {}
        self.wished(key).expect("it is over")
    }

    fn starts(&mut self, topic: Uuid) -> Vec<Option<i64>> {
        (0..2).map(|partition| self.look(topic, partition).map(|it| it.start)).collect()
    }
}

#[test]
fn a_group_in_which_nobody_is_starts_where_it_is_told_to() {
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 2);
    let good = (ErrorCode::None, vec![ErrorCode::None]);
    let wish = starting_at(&it, topic, &[(0, 7)]);
    assert_eq!(it.done(wish), good, "a group that was not there");
    assert_eq!(it.starts(topic), [Some(7), None]);
    it.play.check_log();
    it.tell(joining("a", &["t"]));
    assert_eq!(it.starts(topic), [Some(7), Some(-1)], "it goes on there");
    let wish = starting_at(&it, topic, &[(0, 3)]);
    assert_eq!(it.done(wish), (ErrorCode::NonEmptyGroup, vec![]));
    it.tell(staying("a", -1));
    it.progress(topic, 1);
    let before = it.look(topic, 1).expect("it is kept").state_epoch;
    let wish = starting_at(&it, topic, &[(0, 3), (1, -1)]);
    assert_eq!(it.done(wish), (ErrorCode::None, vec![ErrorCode::None; 2]));
    assert_eq!(it.starts(topic), [Some(3), Some(-1)]);
    assert!(it.look(topic, 1).expect("it is kept").state_epoch > before, "it begins anew");
    it.play.check_log();
    let other = joining_other(&mut it);
    assert_eq!(other, ErrorCode::GroupIdNotFound);
}

/// A group of another kind is to start somewhere.
fn joining_other(it: &mut SharePlay) -> ErrorCode {
    it.play.commit("of-offsets", &[("t", 0, 1)]);
    let key = it.play.key();
    let topic = it.play.image.topic_named("t").expect("it is there").id;
    let wish = starting_at(it, topic, &[(0, 1)]);
    let play = &mut it.play;
    let topics =
        Topics { access: &Access::default(), image: &play.image, version: play.topics_version };
    play.coordinator.change_shares(&play.rules, topics, key, "of-offsets", wish, play.now);
    play.settle();
    it.wished(key).expect("at once").0
}

#[test]
fn what_is_kept_of_a_topic_can_be_forgotten() {
    let mut it = SharePlay::new();
    let (t, u) = (it.play.make_topic("t", 2), it.play.make_topic("u", 1));
    assert_eq!(it.done(forgetting(&[t])).0, ErrorCode::GroupIdNotFound);
    it.tell(joining("a", &["t"]));
    assert_eq!(it.done(forgetting(&[t])).0, ErrorCode::NonEmptyGroup);
    it.tell(staying("a", -1));
    it.progress(t, 0);
    let told = (ErrorCode::None, vec![ErrorCode::None, ErrorCode::UnknownTopicOrPartition]);
    assert_eq!(it.done(forgetting(&[t, u])), told);
    assert_eq!(it.starts(t), [None, None]);
    it.play.check_log();
    it.tell(joining("a", &["t", "u"]));
    assert_eq!(it.starts(t), [Some(-1), Some(-1)], "it begins anew");
}

#[test]
fn what_cannot_be_asked_for_ends_what_was_wanted() {
    let away = Err(ErrorCode::CoordinatorNotAvailable);
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 1);
    it.tell(joining("a", &["t"]));
    it.tell(staying("a", -1));
    it.progress(topic, 0);
    for answered in 0..2 {
        let deletion = it.delete();
        for _ in 0..answered {
            it.answer();
        }
        let (key, ask) = it.play.share_asks.pop_front().expect("it asks");
        it.play.coordinator.on_share_answer(&key, &ask, &away);
        it.play.settle();
        let code = it.play.deleted.remove(&deletion);
        assert_eq!(code, Some(ErrorCode::CoordinatorNotAvailable), "after {answered}");
    }
    let wish = it.wish(forgetting(&[topic]));
    let (key, ask) = it.play.share_asks.pop_front().expect("it asks");
    it.play.coordinator.on_share_answer(&key, &ask, &away);
    it.play.settle();
    let told = (ErrorCode::None, vec![ErrorCode::CoordinatorNotAvailable]);
    assert_eq!(it.wished(wish), Some(told));
    assert_eq!(it.look(topic, 0).map(|it| it.start), Some(5), "it is as it was");
    assert_eq!(it.deleted(), ErrorCode::None, "it can be tried again");
    it.play.check_log();
}

#[test]
fn what_was_asked_twice_is_done_once() {
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 1);
    let wish = starting_at(&it, topic, &[(0, 7)]);
    let wish = it.wish(wish);
    it.answer();
    it.answer();
    let (key, ask) = it.play.share_asks.front().cloned().expect("it asks");
    assert_eq!(ask, Ask::Reset { of: Some(1), start: 7 });
    // Its answer is lost.
    assert!(it.kept(&key, ask).is_ok());
    while it.answer() {}
    assert_eq!(it.wished(wish), Some((ErrorCode::None, vec![ErrorCode::None])));
    it.play.check_log();
}

#[test]
fn what_an_administrators_change_has_begun_can_be_begun_again() {
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 1);
    it.send(joining("a", &["t"]));
    it.send(staying("a", -1));
    let wish = starting_at(&it, topic, &[(0, 7)]);
    let wish = it.wish(wish);
    // The member's question is answered after it is known that the change is wanted, and the change's own is late.
    it.play.share_asks.rotate_left(1);
    it.answer();
    let asks: Vec<Ask> = it.play.share_asks.iter().map(|(_, ask)| ask.clone()).collect();
    assert_eq!(asks, [Ask::Begin, Ask::Begin]);
    it.play.share_asks.pop_back();
    while it.answer() {}
    assert_eq!(it.wished(wish), Some((ErrorCode::None, vec![ErrorCode::None])));
    assert_eq!(it.starts(topic), [Some(7), None]);
    assert_eq!(it.done(forgetting(&[topic])).0, ErrorCode::None);
    it.tell(joining("a", &["t"]));
    assert_eq!(it.starts(topic), [Some(-1), None], "it is asked for again");
    it.play.check_log();
}

#[test]
fn topics_that_grow_are_shared_and_those_that_go_are_forgotten() {
    let mut it = SharePlay::new();
    it.play.make_topic("t", 1);
    it.tell(joining("a", &["t", "u"]));
    it.tell(staying("a", 1));
    it.play.make_topic("t", 2);
    it.play.make_topic("u", 1);
    let epoch = it.tell(staying("a", 2)).member_epoch;
    assert_eq!(parts(&it.tell(staying("a", epoch))), Some(vec![0, 1, 0]));
    it.play.delete_topic("t");
    let told = it.tell(staying("a", epoch + 1));
    assert_eq!(parts(&told), Some(vec![0]));
    it.play.check_log();
}

#[test]
fn whoever_takes_over_goes_on_with_what_was_begun() {
    let mut it = SharePlay::new();
    let topic = it.play.make_topic("t", 1);
    let key = it.send(joining("a", &["t"]));
    assert_eq!(it.heard(key).map(|it| it.member_epoch), Some(1));
    it.crash();
    assert_eq!(it.look(topic, 0), None, "what was asked is lost");
    while it.answer() {}
    assert!(it.look(topic, 0).is_some());
    assert_eq!(parts(&it.tell(staying("a", 1))), Some(vec![0]));
}

/// Members, an administrator, and what they were told.
struct Crowd {
    it: SharePlay,
    topic: Uuid,
    epochs: BTreeMap<&'static str, i32>,
    asked: BTreeMap<RequestKey, &'static str>,
    deleting: Option<RequestKey>,
    /// It is to start at 5 everywhere.
    starting: Option<RequestKey>,
    /// A deletion has failed, and may take effect yet.
    is_uncertain: bool,
    /// Partitions in which a leader has kept how far it is, since which nobody wanted that to go.
    reached: BTreeSet<i32>,
}

impl Crowd {
    fn new() -> Self {
        let mut it = SharePlay::new();
        let topic = it.play.make_topic("t", 2);
        it.play.appends_at_once = false;
        Self {
            it,
            topic,
            epochs: BTreeMap::new(),
            asked: BTreeMap::new(),
            deleting: None,
            starting: None,
            is_uncertain: false,
            reached: BTreeSet::new(),
        }
    }

    fn step(&mut self, chance: &mut Prng) {
        let id = ["a", "b", "c"][usize::try_from(chance.below(3)).expect("small")];
        let epoch = self.epochs.get(id).copied().unwrap_or(0);
        let it = &mut self.it;
        match chance.below(15) {
            0..4 if self.deleting.is_none() => {
                let request = if epoch == 0 { joining(id, &["t"]) } else { staying(id, epoch) };
                self.asked.insert(it.send(request), id);
            }
            4 => {
                self.asked.insert(it.send(staying(id, -1)), id);
            }
            12 if self.deleting.is_none() && self.starting.is_none() => {
                let wish = starting_at(it, self.topic, &[(0, 5), (1, 5)]);
                self.starting = Some(it.wish(wish));
            }
            5 if self.deleting.is_none() && self.starting.is_none() => {
                self.reached.clear();
                self.deleting = Some(it.delete());
            }
            6 | 7 => {
                let first = it.play.share_asks.front().cloned();
                it.late.extend(first.filter(|_| chance.below(3) == 0));
                it.answer();
            }
            8 if !it.late.is_empty() => {
                let (key, ask) = it.late.remove(0);
                let _ = it.kept(&key, ask);
            }
            9 => it.crash(),
            10 if !it.play.waiting.is_empty() => it.play.fail(ErrorCode::NotEnoughReplicas),
            11 if self.deleting.is_none() => {
                let partition = i32::try_from(chance.below(2)).expect("small");
                if it.progress(self.topic, partition) {
                    self.reached.insert(partition);
                }
            }
            _ => {
                it.play.land();
                it.play.settle();
            }
        }
    }

    fn hear(&mut self) {
        let it = &mut self.it;
        for (key, id) in self.asked.clone() {
            let Some(answer) = it.heard(key) else { continue };
            self.asked.remove(&key);
            let parts = parts(&answer).unwrap_or_default();
            assert!(parts.iter().all(|part| it.look(self.topic, *part).is_some()), "it is kept");
            if answer.error_code == 0 && answer.member_epoch > 0 {
                self.epochs.insert(id, answer.member_epoch);
            } else {
                self.epochs.remove(id);
            }
        }
        if let Some(code) = self.deleting.and_then(|key| it.play.deleted.remove(&key)) {
            self.deleting = None;
            self.is_uncertain = !code.is_none();
            for partition in (0..2).filter(|_| code.is_none()) {
                let left = it.look(self.topic, partition).map(|it| it.start);
                assert!(left.is_none_or(|start| start == -1), "{partition} was deleted");
            }
        }
        if let Some((code, parts)) = self.starting.and_then(|key| it.wished(key)) {
            self.starting = None;
            for (partition, part) in (0..2).zip(parts) {
                if (code, part) == (ErrorCode::None, ErrorCode::None) {
                    self.reached.insert(partition);
                }
            }
        }
        for partition in self.reached.iter().filter(|_| !self.is_uncertain) {
            let kept = it.look(self.topic, *partition).map(|it| it.start);
            assert_eq!(kept, Some(5), "nobody wanted it to go");
        }
    }
}

#[test]
fn by_chance_a_group_loses_nothing_but_when_it_is_deleted_and_then_all() {
    for seed in 0..150 {
        let mut chance = Prng::stream(seed, 0);
        let mut crowd = Crowd::new();
        for _ in 0..250 {
            crowd.step(&mut chance);
            crowd.hear();
        }
        let it = &mut crowd.it;
        it.play.appends_at_once = true;
        it.crash();
        while it.answer() {}
        it.play.check_log();
        it.play.pass(60 * SECOND);
        let epoch = it.tell(joining("z", &["t"])).member_epoch;
        let told = it.tell(staying("z", epoch));
        assert!(told.error_code == 0 && told.member_epoch >= epoch, "seed {seed}");
        assert_eq!(parts(&it.tell(joining("z", &["t"]))), Some(vec![0, 1]), "seed {seed}");
    }
}
