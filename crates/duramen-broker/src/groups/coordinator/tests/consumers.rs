//! Groups of the consumer protocol, by scenario.

use std::borrow::Cow;

use duramen_protocol::messages::consumer_group_describe::DescribedGroup;
use duramen_protocol::messages::consumer_group_heartbeat::TopicPartitions;
use duramen_protocol::messages::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use duramen_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};

use super::*;
use crate::configs::Settings;

/// Partitions as members speak of them.
pub(super) type Parts = Vec<(Uuid, Vec<i32>)>;

pub(super) fn topic_partitions(parts: &Parts) -> Vec<TopicPartitions> {
    let topic = |(topic_id, partitions): &(Uuid, Vec<i32>)| TopicPartitions {
        topic_id: *topic_id,
        partitions: partitions.clone(),
    };
    parts.iter().map(topic).collect()
}

/// Everything that a member says when it joins.
pub(super) fn joining(group: &str, id: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: group.to_owned(),
        member_id: id.to_owned(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(topics.iter().map(|it| (*it).to_owned()).collect()),
        topic_partitions: Some(Vec::new()),
        ..ConsumerGroupHeartbeatRequest::default()
    }
}

/// What a member says from time to time.
pub(super) fn staying(group: &str, id: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: group.to_owned(),
        member_id: id.to_owned(),
        member_epoch: epoch,
        ..ConsumerGroupHeartbeatRequest::default()
    }
}

/// What it says when it has given up something.
fn having(group: &str, id: &str, epoch: i32, parts: &Parts) -> ConsumerGroupHeartbeatRequest {
    let topic_partitions = Some(topic_partitions(parts));
    ConsumerGroupHeartbeatRequest { topic_partitions, ..staying(group, id, epoch) }
}

fn named(mut request: ConsumerGroupHeartbeatRequest, name: &str) -> ConsumerGroupHeartbeatRequest {
    request.instance_id = Some(name.to_owned());
    request
}

impl Play {
    pub(super) fn ask(&mut self, request: ConsumerGroupHeartbeatRequest) -> RequestKey {
        let key = self.key();
        let fresh = Uuid::from_u128(u128::from(self.asked));
        let (client_id, client_host) = ("client".to_owned(), "/127.0.0.1".to_owned());
        let context = RequestContext::sample(ApiKey::ConsumerGroupHeartbeat);
        let caller = Caller { key, context, client_id, client_host, fresh };
        let topics =
            Topics { access: &Access::default(), image: &self.image, version: self.topics_version };
        self.coordinator.consumer_group_heartbeat(
            &self.rules,
            topics,
            1,
            caller,
            request,
            self.now,
        );
        self.settle();
        key
    }

    pub(super) fn heard(&self, key: RequestKey) -> Option<&ConsumerGroupHeartbeatResponse> {
        match self.replies.get(&key)? {
            Response::ConsumerGroupHeartbeat(answer) => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    fn tell(&mut self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse {
        let key = self.ask(request);
        self.heard(key).expect("it is answered at once").clone()
    }

    fn refusal(&mut self, request: ConsumerGroupHeartbeatRequest) -> ErrorCode {
        code_of(self.tell(request).error_code)
    }

    fn joins(&mut self, group: &str, id: &str, topics: &[&str]) -> (i32, Parts) {
        epoch_and_parts(&self.tell(joining(group, id, topics)))
    }

    /// A heartbeat: the epoch, and the assignment if it is told one.
    fn stays(&mut self, group: &str, id: &str, epoch: i32) -> (i32, Option<Parts>) {
        let answer = self.tell(staying(group, id, epoch));
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
        (answer.member_epoch, answer.assignment.as_ref().map(|_| epoch_and_parts(&answer).1))
    }

    fn has(&mut self, group: &str, id: &str, epoch: i32, parts: &Parts) -> (i32, Option<Parts>) {
        let answer = self.tell(having(group, id, epoch, parts));
        assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
        (answer.member_epoch, answer.assignment.as_ref().map(|_| epoch_and_parts(&answer).1))
    }

    pub(super) fn describe_consumers(&self, group: &str) -> DescribedGroup {
        let topics =
            Topics { access: &Access::default(), image: &self.image, version: self.topics_version };
        self.coordinator.describe_consumers(&self.rules, topics, group, self.now)
    }

    /// State, epoch and the epoch of the targets.
    fn epochs(&self, group: &str) -> (String, i32, i32) {
        let group = self.describe_consumers(group);
        (group.group_state, group.group_epoch, group.assignment_epoch)
    }

    fn appended(&self) -> i64 {
        self.end
    }

    fn commit_at(&mut self, group: &str, id: &str, epoch: i32, partition: i32) -> ErrorCode {
        let topic = self.image.topic_named("t").expect("it is there").id;
        let mut request = commit(group, &[("t", partition, 7)]);
        request.topics[0].topic_id = topic;
        (request.member_id, request.generation_id_or_member_epoch) = (id.to_owned(), epoch);
        let key = self.commit_as(request);
        self.committed(key)[0]
    }

    /// The coordinator ends, and another begins with what the log says.
    fn reload(&mut self) {
        self.coordinator = self.reloaded();
        self.coordinator.loaded(&self.rules, self.now);
        self.settle();
    }
}

fn epoch_and_parts(answer: &ConsumerGroupHeartbeatResponse) -> (i32, Parts) {
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
    let parts = answer.assignment.iter().flat_map(|it| &it.topic_partitions);
    let parts = parts.map(|it| (it.topic_id, it.partitions.clone())).collect();
    (answer.member_epoch, parts)
}

fn with_topic(partitions: i32) -> (Play, Uuid) {
    let mut play = Play::new();
    let topic = play.make_topic("t", partitions);
    (play, topic)
}

/// Two members that share four partitions: `a` at epoch 2 has the first two, `b` the others.
fn with_two() -> (Play, Uuid) {
    let (mut play, t) = with_topic(4);
    play.joins("g", "a", &["t"]);
    play.joins("g", "b", &["t"]);
    play.stays("g", "a", 1);
    let kept = vec![(t, vec![0, 1])];
    assert_eq!(play.has("g", "a", 1, &kept), (2, None));
    assert_eq!(play.stays("g", "b", 2), (2, Some(vec![(t, vec![2, 3])])));
    (play, t)
}

#[test]
fn a_partition_is_given_only_after_it_was_given_up() {
    let (mut play, t) = with_topic(4);
    assert_eq!(play.joins("g", "a", &["t"]), (1, vec![(t, vec![0, 1, 2, 3])]));
    assert_eq!(play.epochs("g"), ("Stable".to_owned(), 1, 1));
    assert_eq!(play.joins("g", "b", &["t"]), (2, vec![]), "it waits for what a has");
    assert_eq!(play.epochs("g"), ("Reconciling".to_owned(), 2, 2));
    let kept = vec![(t, vec![0, 1])];
    assert_eq!(play.stays("g", "a", 1), (1, Some(kept.clone())), "it keeps its epoch");
    assert_eq!(play.stays("g", "b", 2), (2, None), "a may still have them");
    assert_eq!(play.has("g", "a", 1, &vec![(t, vec![0, 1, 2])]), (1, None), "it has not done");
    assert_eq!(play.stays("g", "b", 2), (2, None));
    assert_eq!(play.has("g", "a", 1, &kept), (2, None));
    assert_eq!(play.stays("g", "b", 2), (2, Some(vec![(t, vec![2, 3])])));
    assert_eq!(play.epochs("g"), ("Stable".to_owned(), 2, 2));
}

#[test]
fn a_heartbeat_that_changes_nothing_appends_nothing() {
    let (mut play, _) = with_two();
    let before = play.appended();
    for _ in 0..10 {
        assert_eq!(play.stays("g", "a", 2), (2, None));
        assert_eq!(play.stays("g", "b", 2), (2, None));
    }
    assert_eq!(play.appended(), before);
}

#[test]
fn nobody_is_told_what_is_not_durable() {
    let (mut play, t) = with_topic(2);
    play.appends_at_once = false;
    let joins = play.ask(joining("g", "a", &["t"]));
    let waits = play.ask(joining("g", "b", &["t"]));
    assert_eq!((play.heard(joins), play.heard(waits)), (None, None));
    assert_eq!(play.describe_consumers("g").members, []);
    play.land();
    play.settle();
    let (_, parts) = epoch_and_parts(play.heard(joins).expect("it is durable"));
    assert_eq!((parts, play.heard(waits)), (vec![(t, vec![0, 1])], None));
    play.land_all();
    assert_eq!(epoch_and_parts(play.heard(waits).expect("it is durable")), (2, vec![]));
    play.check_log();
}

#[test]
fn what_could_not_be_appended_was_never_so() {
    let (mut play, t) = with_topic(2);
    play.appends_at_once = false;
    let joins = play.ask(joining("g", "a", &["t"]));
    let waits = play.ask(joining("g", "b", &["t"]));
    play.fail(ErrorCode::NotEnoughReplicas);
    let code = |it: &Play, key| code_of(it.heard(key).expect("it is told").error_code);
    assert_eq!(code(&play, joins), ErrorCode::CoordinatorNotAvailable);
    play.land_all();
    assert_eq!(
        epoch_and_parts(play.heard(waits).expect("it is durable")),
        (1, vec![(t, vec![0, 1])])
    );
    play.appends_at_once = true;
    assert_eq!(play.refusal(staying("g", "a", 1)), ErrorCode::UnknownMemberId);
    play.check_log();
}

#[test]
fn members_say_who_they_are_and_in_which_epoch() {
    let (mut play, t) = with_two();
    assert_eq!(play.refusal(staying("none", "a", 1)), ErrorCode::GroupIdNotFound);
    assert_eq!(play.refusal(staying("none", "a", -1)), ErrorCode::GroupIdNotFound);
    assert_eq!(play.refusal(staying("g", "c", 1)), ErrorCode::UnknownMemberId);
    assert_eq!(play.refusal(staying("g", "c", -1)), ErrorCode::UnknownMemberId);
    assert_eq!(play.refusal(staying("g", "a", 3)), ErrorCode::FencedMemberEpoch);
    assert_eq!(play.refusal(staying("g", "a", 1)), ErrorCode::FencedMemberEpoch);
    let kept = vec![(t, vec![0, 1])];
    assert_eq!(play.has("g", "a", 1, &kept), (2, None), "it did not hear of its epoch");
    let more = having("g", "a", 1, &vec![(t, vec![0, 1, 2])]);
    assert_eq!(play.refusal(more), ErrorCode::FencedMemberEpoch);
    assert_eq!(play.joins("g", "a", &["t"]), (2, kept), "it begins anew with what it has");
}

#[test]
fn a_request_is_good_by_itself_first() {
    let (mut play, _) = with_topic(1);
    let join = || joining("g", "a", &["t"]);
    let wrong = [
        ConsumerGroupHeartbeatRequest { member_id: String::new(), ..join() },
        ConsumerGroupHeartbeatRequest { group_id: " ".to_owned(), ..join() },
        ConsumerGroupHeartbeatRequest { instance_id: Some(String::new()), ..join() },
        ConsumerGroupHeartbeatRequest { rack_id: Some(String::new()), ..join() },
        ConsumerGroupHeartbeatRequest { rebalance_timeout_ms: -1, ..join() },
        ConsumerGroupHeartbeatRequest { topic_partitions: None, ..join() },
        ConsumerGroupHeartbeatRequest { subscribed_topic_names: None, ..join() },
        staying("g", "a", -2),
        staying("g", "a", -3),
    ];
    for request in wrong {
        assert_eq!(play.refusal(request), ErrorCode::InvalidRequest);
    }
    let server_assignor = Some("sticky".to_owned());
    let request = ConsumerGroupHeartbeatRequest { server_assignor, ..join() };
    assert_eq!(play.refusal(request), ErrorCode::UnsupportedAssignor);
    assert!(play.coordinator.groups.is_empty(), "nothing is left of it");
}

#[test]
fn a_group_takes_no_more_members_than_it_may() {
    let (mut play, _) = with_topic(1);
    play.rules.consumer.members_max = 1;
    play.joins("g", "a", &["t"]);
    assert_eq!(play.refusal(joining("g", "b", &["t"])), ErrorCode::GroupMaxSizeReached);
    play.joins("g", "a", &["t"]);
}

#[test]
fn who_leaves_frees_what_it_had() {
    let (mut play, t) = with_two();
    let answer = play.tell(staying("g", "b", -1));
    assert_eq!((answer.error_code, answer.member_epoch), (0, -1));
    assert_eq!(play.stays("g", "a", 2), (3, Some(vec![(t, vec![0, 1, 2, 3])])));
    play.tell(staying("g", "a", -1));
    assert_eq!(play.epochs("g").0, "Empty");
}

#[test]
fn who_is_silent_is_out() {
    let (mut play, t) = with_two();
    play.pass(40 * SECOND);
    play.stays("g", "a", 2);
    play.pass(10 * SECOND);
    assert_eq!(play.refusal(staying("g", "b", 2)), ErrorCode::UnknownMemberId);
    assert_eq!(play.stays("g", "a", 2), (3, Some(vec![(t, vec![0, 1, 2, 3])])));
    play.reload();
    play.pass(40 * SECOND);
    assert_eq!(play.stays("g", "a", 3), (3, None), "sessions began anew");
}

#[test]
fn who_does_not_give_up_in_time_is_out() {
    let (mut play, t) = with_topic(2);
    play.joins("g", "a", &["t"]);
    play.joins("g", "b", &["t"]);
    for _ in 0..2 {
        play.stays("g", "a", 1);
        play.stays("g", "b", 2);
        play.pass(25 * SECOND);
    }
    play.stays("g", "a", 1);
    play.stays("g", "b", 2);
    play.pass(15 * SECOND);
    assert_eq!(play.refusal(staying("g", "a", 1)), ErrorCode::UnknownMemberId);
    assert_eq!(play.stays("g", "b", 2), (3, Some(vec![(t, vec![0, 1])])));
}

#[test]
fn a_static_member_comes_back_to_what_it_had() {
    let (mut play, t) = with_topic(4);
    play.tell(named(joining("g", "a", &["t"]), "x"));
    play.tell(named(joining("g", "b", &["t"]), "y"));
    play.stays("g", "a", 1);
    let kept = vec![(t, vec![0, 1])];
    play.has("g", "a", 1, &kept);
    play.stays("g", "b", 2);
    let before = play.epochs("g");
    let other = named(joining("g", "c", &["t"]), "x");
    assert_eq!(play.refusal(other.clone()), ErrorCode::UnreleasedInstanceId);
    let stranger = named(staying("g", "c", 2), "x");
    assert_eq!(play.refusal(stranger), ErrorCode::FencedInstanceId);
    assert_eq!(play.refusal(named(staying("g", "c", 2), "z")), ErrorCode::UnknownMemberId);
    play.tell(named(joining("g", "a", &["t"]), "x"));
    assert_eq!(play.tell(named(staying("g", "a", -2), "x")).member_epoch, -2);
    assert_eq!(play.stays("g", "b", 2), (2, None), "nobody gets what it had");
    assert_eq!(play.refusal(staying("g", "a", 2)), ErrorCode::FencedMemberEpoch);
    play.reload();
    assert_eq!(epoch_and_parts(&play.tell(other)), (2, kept));
    assert_eq!(play.epochs("g"), before, "nothing was to be decided");
    assert_eq!(play.refusal(named(staying("g", "a", 2), "x")), ErrorCode::FencedInstanceId);
    play.check_log();
}

#[test]
fn a_static_name_that_its_member_gave_up_is_free() {
    let (mut play, _) = with_topic(2);
    play.tell(named(joining("g", "a", &["t"]), "x"));
    play.tell(named(joining("g", "a", &["t"]), "z"));
    let other = named(joining("g", "b", &["t"]), "x");
    assert_eq!(play.refusal(other), ErrorCode::None);
    play.check_log();
}

#[test]
fn a_static_member_that_does_not_come_back_is_out() {
    let (mut play, t) = with_topic(2);
    play.tell(named(joining("g", "a", &["t"]), "x"));
    play.joins("g", "b", &["t"]);
    play.tell(named(staying("g", "a", -2), "x"));
    play.pass(30 * SECOND);
    assert_eq!(play.stays("g", "b", 2), (2, None));
    play.pass(20 * SECOND);
    assert_eq!(play.stays("g", "b", 2), (3, Some(vec![(t, vec![0, 1])])));
}

#[test]
fn topics_that_grow_appear_and_go_are_followed() {
    let (mut play, t) = with_topic(1);
    assert_eq!(play.joins("g", "a", &["t", "u"]), (1, vec![(t, vec![0])]));
    play.make_topic("other", 1);
    assert_eq!(play.stays("g", "a", 1), (1, None));
    play.make_topic("t", 3);
    assert_eq!(play.stays("g", "a", 1), (2, Some(vec![(t, vec![0, 1, 2])])));
    let u = play.make_topic("u", 1);
    assert_eq!(play.stays("g", "a", 2), (3, Some(vec![(t, vec![0, 1, 2]), (u, vec![0])])));
    play.delete_topic("t");
    assert_eq!(play.stays("g", "a", 3), (3, Some(vec![(u, vec![0])])));
    assert_eq!(play.has("g", "a", 3, &vec![(u, vec![0])]), (4, None));
    play.check_log();
}

#[test]
fn a_member_subscribes_to_something_else() {
    let (mut play, t) = with_topic(2);
    let u = play.make_topic("u", 1);
    assert_eq!(play.joins("g", "a", &["t"]), (1, vec![(t, vec![0, 1])]));
    let mut request = having("g", "a", 1, &vec![(t, vec![0, 1])]);
    request.subscribed_topic_names = Some(vec!["u".to_owned()]);
    let answer = play.tell(request);
    assert_eq!(epoch_and_parts(&answer), (1, vec![]), "first it gives up what it had");
    assert_eq!(play.has("g", "a", 1, &vec![]), (2, Some(vec![(u, vec![0])])));
}

#[test]
fn regular_expressions_stand_for_topics_that_come_and_go() {
    let (mut play, _) = with_topic(1);
    let eu = play.make_topic("orders.eu", 1);
    for number in 0..9 {
        play.make_topic(&format!("many{number}"), 1);
    }
    let mut request = joining("g", "a", &[]);
    request.subscribed_topic_names = None;
    request.subscribed_topic_regex = Some("orders\\..*".to_owned());
    assert_eq!(epoch_and_parts(&play.tell(request)), (1, vec![]), "it is looked for");
    play.pass(0);
    let (epoch, parts) = play.stays("g", "a", 1);
    assert_eq!((epoch, parts), (2, Some(vec![(eu, vec![0])])));
    let us = play.make_topic("orders.us", 1);
    assert_eq!(play.stays("g", "a", 2), (2, None), "not too often");
    play.pass(11 * SECOND);
    play.stays("g", "a", 2);
    play.pass(0);
    assert_eq!(play.stays("g", "a", 2), (3, Some(vec![(eu, vec![0]), (us, vec![0])])));
    assert_eq!(
        play.describe_consumers("g").members[0].subscribed_topic_regex.as_deref(),
        Some("orders\\..*")
    );
    play.delete_topic("orders.eu");
    play.stays("g", "a", 3);
    assert_eq!(play.has("g", "a", 3, &vec![(us, vec![0])]).0, 4);
    play.reload();
    assert_eq!(play.stays("g", "a", 4).0, 4, "it is remembered what they stand for");
    let mut wrong = staying("g", "a", 4);
    wrong.subscribed_topic_regex = Some("[".to_owned());
    assert_eq!(play.refusal(wrong), ErrorCode::InvalidRegularExpression);
    play.tell(staying("g", "a", -1));
    play.check_log();
}

#[test]
fn members_choose_how_partitions_are_shared_out() {
    let (mut play, t) = with_topic(3);
    let u = play.make_topic("u", 3);
    let mut request = joining("g", "a", &["t", "u"]);
    request.server_assignor = Some("range".to_owned());
    play.tell(request);
    assert_eq!(play.describe_consumers("g").assignor_name, "range");
    play.joins("g", "b", &["t", "u"]);
    play.stays("g", "a", 1);
    play.has("g", "a", 1, &vec![(t, vec![0, 1]), (u, vec![0, 1])]);
    assert_eq!(play.stays("g", "b", 2), (2, Some(vec![(t, vec![2]), (u, vec![2])])));
    play.tell(staying("g", "a", -1));
    assert_eq!(play.describe_consumers("g").assignor_name, "uniform");
}

#[test]
fn targets_are_not_decided_too_often() {
    let (mut play, t) = with_topic(2);
    play.rules.consumer.assignment_interval_ms = 1_000;
    assert_eq!(play.joins("g", "a", &["t"]), (1, vec![(t, vec![0, 1])]));
    assert_eq!(play.joins("g", "b", &["t"]), (1, vec![]));
    assert_eq!(play.epochs("g"), ("Assigning".to_owned(), 2, 1));
    assert_eq!(play.stays("g", "a", 1), (1, None));
    play.pass(SECOND);
    assert_eq!(play.stays("g", "a", 1), (1, Some(vec![(t, vec![0])])));
}

#[test]
fn times_are_the_groups_own_within_what_the_node_allows() {
    let rules = Play::new().rules.consumer;
    let own = |pairs: &[(&str, &str)]| -> Settings {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert!(matches!(rules.with(&own(&[("share.session.timeout.ms", "50000")])), Cow::Borrowed(_)));
    let all = own(&[
        ("consumer.session.timeout.ms", "50000"),
        ("consumer.heartbeat.interval.ms", "1"),
        ("consumer.assignment.interval.ms", "99999"),
    ]);
    let with = rules.with(&all);
    let times = (with.session_timeout_ms, with.heartbeat_interval_ms, with.assignment_interval_ms);
    assert_eq!(times, (50_000, 5_000, 15_000));
    assert_eq!(with.members_max, rules.members_max);
}

#[test]
fn offsets_are_committed_by_who_has_the_partition() {
    let (mut play, t) = with_two();
    assert_eq!(play.commit_at("g", "a", 2, 0), ErrorCode::None);
    assert_eq!(play.commit_at("g", "c", 2, 0), ErrorCode::UnknownMemberId);
    assert_eq!(play.commit_at("g", "", -1, 0), ErrorCode::UnknownMemberId);
    assert_eq!(play.commit_at("g", "a", 3, 0), ErrorCode::StaleMemberEpoch);
    assert_eq!(play.commit_at("g", "a", 1, 0), ErrorCode::None, "it had it then, and has it still");
    assert_eq!(play.commit_at("g", "a", 1, 2), ErrorCode::StaleMemberEpoch, "it is b's");
    assert_eq!(play.commit_at("g", "b", 1, 2), ErrorCode::StaleMemberEpoch, "it had it not yet");
    play.version = 8;
    assert_eq!(play.commit_at("g", "a", 2, 0), ErrorCode::UnsupportedVersion);
    play.version = 9;
    play.make_topic("t", 6);
    play.stays("g", "b", 2);
    let _ = t;
    assert_eq!(play.commit_at("g", "b", 2, 3), ErrorCode::None, "its epoch has risen since");
    for id in ["a", "b"] {
        play.tell(staying("g", id, -1));
    }
    assert_eq!(play.commit_at("g", "", -1, 0), ErrorCode::None, "nobody is in it");
    assert_eq!(play.commit_at("none", "a", 1, 0), ErrorCode::GroupIdNotFound);
}

#[test]
fn offsets_are_fetched_by_members_of_this_epoch() {
    let (mut play, _) = with_two();
    play.commit_at("g", "a", 2, 0);
    let mut fetch = |id: Option<&str>, member_epoch| {
        let key = play.key();
        let request = OffsetFetchRequestGroup {
            group_id: "g".to_owned(),
            member_id: id.map(ToOwned::to_owned),
            member_epoch,
            ..OffsetFetchRequestGroup::default()
        };
        play.coordinator.offset_fetch(key, 0, request, false);
        play.settle();
        code_of(play.fetched[&key].error_code)
    };
    assert_eq!(fetch(None, -1), ErrorCode::None);
    assert_eq!(fetch(Some("a"), 2), ErrorCode::None);
    assert_eq!(fetch(Some("a"), 1), ErrorCode::StaleMemberEpoch);
    assert_eq!(fetch(Some("c"), 2), ErrorCode::UnknownMemberId);
}

#[test]
fn groups_are_listed_described_and_deleted() {
    let (mut play, _) = with_two();
    let listed =
        |kind: &str, state: &str| vec![("g".to_owned(), kind.to_owned(), state.to_owned())];
    assert_eq!(play.states(&[], &["consumer"]), listed("consumer", "Stable"));
    assert_eq!(play.states(&[], &["classic"]), []);
    assert_eq!(play.states(&["empty"], &[]), []);
    let described = play.describe_consumers("g");
    assert_eq!((described.error_code, described.members.len()), (0, 2));
    let member = &described.members[0];
    assert_eq!((member.member_epoch, member.member_type), (2, 1));
    assert_eq!(member.assignment, member.target_assignment);
    assert_eq!(member.assignment.topic_partitions[0].topic_name, "t");
    assert_eq!(code_of(play.describe_consumers("none").error_code), ErrorCode::GroupIdNotFound);
    let classic = play.coordinator.describe(6, "g");
    assert_eq!(
        (code_of(classic.error_code), classic.group_state.as_str()),
        (ErrorCode::GroupIdNotFound, "Dead")
    );
    play.commit_at("g", "a", 2, 0);
    let refused = play.delete("g");
    assert_eq!(play.deleted[&refused], ErrorCode::NonEmptyGroup);
    for id in ["a", "b"] {
        play.tell(staying("g", id, -1));
    }
    assert_eq!(play.states(&["empty"], &[]), listed("consumer", "Empty"));
    let deleted = play.delete("g");
    assert_eq!(play.deleted[&deleted], ErrorCode::None);
    assert!(play.coordinator.groups.is_empty());
    assert_eq!(play.coordinator.live().size(), (0, 0));
    play.check_log();
}

#[test]
fn offsets_that_nobody_uses_expire_and_so_does_the_group() {
    let (mut play, _) = with_two();
    play.commit_at("g", "a", 2, 0);
    play.tell(staying("g", "b", -1));
    for _ in 0..200 {
        play.pass(40 * SECOND);
        play.tell(joining("g", "a", &["t"]));
    }
    play.now.wall_ms += 25 * HOUR_MS;
    play.expire();
    assert_eq!(play.offsets("g"), [offset("t", 0, 7)], "somebody is subscribed");
    play.pass(60 * SECOND);
    play.expire();
    assert!(play.coordinator.groups.is_empty());
    assert_eq!(play.coordinator.live().size(), (0, 0));
}

#[test]
fn a_group_that_is_being_deleted_is_joined_afterwards() {
    let (mut play, t) = with_topic(1);
    play.joins("g", "a", &["t"]);
    play.tell(staying("g", "a", -1));
    play.appends_at_once = false;
    let deletes = play.delete("g");
    let joins = play.ask(joining("g", "b", &["t"]));
    assert_eq!(play.heard(joins), None);
    play.land_all();
    assert_eq!(play.deleted[&deletes], ErrorCode::None);
    assert_eq!(epoch_and_parts(play.heard(joins).expect("it is in")), (1, vec![(t, vec![0])]));
    play.check_log();
}

#[test]
fn a_commit_does_not_bring_back_a_group_that_is_being_deleted() {
    let (mut play, t) = with_topic(1);
    play.joins("g", "a", &["t"]);
    play.tell(staying("g", "a", -1));
    play.appends_at_once = false;
    let deletes = play.delete("g");
    play.commit("g", &[("t", 0, 5)]);
    let joins = play.ask(joining("g", "b", &["t"]));
    play.land_all();
    assert_eq!(play.deleted[&deletes], ErrorCode::None);
    assert_eq!(epoch_and_parts(play.heard(joins).expect("it is in")), (1, vec![(t, vec![0])]));
    play.check_log();
}

#[test]
fn the_log_of_a_group_is_written_anew() {
    let (mut play, _) = with_two();
    while play.coordinator.renew(play.end, 100).is_some() {
        play.settle();
        if play.coordinator.live().first().is_none_or(|first| first > 40) {
            break;
        }
    }
    play.trim();
    play.check_log();
    play.reload();
    assert_eq!(play.stays("g", "a", 2), (2, None));
    assert_eq!(play.stays("g", "b", 2), (2, None));
}

/// What a classic consumer says about itself: what it wants, and what it has.
fn classic_metadata(topics: &[&str], owned: &[i32]) -> Bytes {
    let part = TopicPartition { topic: "t".to_owned(), partitions: owned.to_vec() };
    let subscription = ConsumerProtocolSubscription {
        topics: topics.iter().map(|it| (*it).to_owned()).collect(),
        owned_partitions: vec![part],
        ..ConsumerProtocolSubscription::default()
    };
    consumer_protocol::encode(&subscription, 3).expect("all fits")
}

/// What whoever leads a classic group gives to a member.
fn classic_assignment(id: &str, partitions: &[i32]) -> SyncGroupRequestAssignment {
    let part = TopicPartition { topic: "t".to_owned(), partitions: partitions.to_vec() };
    let share = ConsumerProtocolAssignment { assigned_partitions: vec![part], user_data: None };
    let assignment = consumer_protocol::encode(&share, 3).expect("all fits");
    SyncGroupRequestAssignment { member_id: id.to_owned(), assignment }
}

fn classic_share(bytes: &Bytes) -> Vec<i32> {
    let share: ConsumerProtocolAssignment =
        consumer_protocol::decode(bytes.clone()).expect("an assignment");
    share.assigned_partitions.into_iter().flat_map(|it| it.partitions).collect()
}

impl Play {
    /// A classic consumer joins a group: its id and generation.
    fn joins_classic(&mut self, group: &str, id: &str, owned: &[i32]) -> (String, i32) {
        let asked = self.join(group, id, "consumer", classic_metadata(&["t"], owned));
        let answer = self.joined(asked);
        if code_of(answer.error_code) == ErrorCode::MemberIdRequired {
            let id = answer.member_id.clone();
            return self.joins_classic(group, &id, owned);
        }
        assert_eq!(answer.error_code, 0);
        (answer.member_id.clone(), answer.generation_id)
    }

    fn syncs_classic(&mut self, group: &str, id: &str, generation: i32) -> Vec<i32> {
        let asked = self.sync(group, id, generation);
        let answer = self.synced(asked);
        assert_eq!(answer.error_code, 0);
        classic_share(&answer.assignment)
    }
}

/// A classic group of one member with all of two partitions: its id and generation.
fn with_classic() -> (Play, Uuid, String, i32) {
    let (mut play, t) = with_topic(2);
    let asked = play.join("g", "", "consumer", classic_metadata(&["t"], &[]));
    let id = play.joined(asked).member_id.clone();
    let joins = play.join("g", &id, "consumer", classic_metadata(&["t"], &[]));
    play.pass(0);
    let generation = play.joined(joins).generation_id;
    play.sync_as("g", &id, generation, vec![classic_assignment(&id, &[0, 1])]);
    (play, t, id, generation)
}

#[test]
fn a_classic_group_is_upgraded_and_downgraded_with_its_members() {
    let (mut play, t, id, generation) = with_classic();
    assert_eq!(play.joins("g", "b", &["t"]), (generation + 1, vec![]), "it waits for the other");
    assert_eq!(play.states(&[], &[])[0].2, "Reconciling");
    assert_eq!(play.describe_consumers("g").members.len(), 2);
    play.check_log();
    assert_eq!(play.beat("g", &id, generation), ErrorCode::RebalanceInProgress);
    let (same, before) = play.joins_classic("g", &id, &[0, 1]);
    assert_eq!((same.as_str(), before), (id.as_str(), generation), "it has to give up first");
    assert_eq!(play.syncs_classic("g", &id, generation), [0]);
    assert_eq!(play.beat("g", &id, generation), ErrorCode::RebalanceInProgress);
    let (_, after) = play.joins_classic("g", &id, &[0]);
    assert_eq!(after, generation + 1);
    assert_eq!(play.syncs_classic("g", &id, after), [0]);
    assert_eq!(play.beat("g", &id, after), ErrorCode::None);
    assert_eq!(play.stays("g", "b", after), (after, Some(vec![(t, vec![1])])));
    assert_eq!(play.commit_at("g", &id, after, 0), ErrorCode::None);
    assert_eq!(play.commit_at("g", &id, after + 1, 0), ErrorCode::IllegalGeneration);
    play.reload();
    assert_eq!(play.beat("g", &id, after), ErrorCode::None);
    play.tell(staying("g", "b", -1));
    assert_eq!(play.states(&[], &["classic"])[0].2, "PreparingRebalance");
    play.check_log();
    assert_eq!(play.beat("g", &id, after + 1), ErrorCode::RebalanceInProgress);
    let joins = play.join("g", &id, "consumer", classic_metadata(&["t"], &[0]));
    play.pass(0);
    assert_eq!(play.joined(joins).generation_id, after + 2);
    assert_eq!(play.joined(joins).leader, id);
}

#[test]
fn a_classic_member_that_joins_again_is_out_unless_it_asks_for_its_share_in_time() {
    let (mut play, _, id, generation) = with_classic();
    play.rebalance_timeout_ms = 5_000;
    play.joins("g", "b", &["t"]);
    play.joins_classic("g", &id, &[0, 1]);
    play.syncs_classic("g", &id, generation);
    let (_, after) = play.joins_classic("g", &id, &[0]);
    play.syncs_classic("g", &id, after);
    for seconds in [6, 4] {
        play.pass(seconds * SECOND);
        assert_eq!(play.beat("g", &id, after), ErrorCode::None);
    }
    play.joins_classic("g", &id, &[0]);
    play.pass(4 * SECOND);
    assert_eq!(play.beat("g", &id, after), ErrorCode::None);
    play.pass(SECOND * 3 / 2);
    assert_eq!(play.beat("g", &id, after), ErrorCode::UnknownMemberId);
}

#[test]
fn after_a_decision_that_failed_every_members_deadline_counts() {
    let (mut play, _, _, generation) = with_classic();
    play.joins("g", "b", &["t"]);
    play.appends_at_once = false;
    play.ask(joining("g", "d", &["t"]));
    let waits = play.ask(staying("g", "b", generation + 1));
    play.fail(ErrorCode::NotEnoughReplicas);
    assert_eq!(play.heard(waits).expect("it is answered").error_code, 0);
    let session_us = u64::try_from(SESSION_MS).expect("short") * 1000;
    let due_us = play.coordinator.deadline_us();
    assert_eq!(due_us, Some(play.now.mono_us + session_us), "that of the classic member");
}

/// A classic member goes on using what it had while its group agrees anew, and nobody can say that it does not.
#[test]
fn what_classic_members_have_is_theirs_though_a_generation_came_to_nothing() {
    let (mut play, _, id, generation) = with_classic();
    let (_, next) = play.joins_classic("g", &id, &[0, 1]);
    assert_eq!(next, generation + 1);
    let asked = play.join("g", "", "consumer", classic_metadata(&["t"], &[]));
    let other = play.joined(asked).member_id.clone();
    play.join("g", &other, "consumer", classic_metadata(&["t"], &[]));
    assert_eq!(play.states(&[], &["classic"])[0].2, "PreparingRebalance");
    assert_eq!(play.joins("g", "b", &["t"]), (next + 1, vec![]), "the first has both");
    play.check_log();
}

/// Groups that rebalance cooperatively take something away first, and agree anew when it was given up.
#[test]
fn what_a_classic_member_is_about_to_give_up_is_nobody_elses_until_it_joins_again() {
    let (mut play, t, id, _) = with_classic();
    let (_, next) = play.joins_classic("g", &id, &[0, 1]);
    let asked = play.sync_as("g", &id, next, vec![classic_assignment(&id, &[0])]);
    assert_eq!(classic_share(&play.synced(asked).assignment), [0]);
    let (epoch, has) = play.joins("g", "b", &["t"]);
    assert_eq!((epoch, has), (next + 1, vec![]), "the other one has it still");
    assert_eq!(play.stays("g", "b", epoch), (epoch, None));
    play.reload();
    assert_eq!(play.stays("g", "b", epoch), (epoch, None));
    assert_eq!(play.beat("g", &id, next), ErrorCode::RebalanceInProgress);
    assert_eq!(play.joins_classic("g", &id, &[0]), (id.clone(), epoch));
    assert_eq!(play.syncs_classic("g", &id, epoch), [0]);
    assert_eq!(play.stays("g", "b", epoch), (epoch, Some(vec![(t, vec![1])])));
    play.check_log();
}

#[test]
fn whom_the_leader_leaves_out_has_nothing_any_more() {
    let (mut play, _, id, _) = with_classic();
    let (_, next) = play.joins_classic("g", &id, &[0, 1]);
    let asked = play.sync_as("g", &id, next, Vec::new());
    assert_eq!(classic_share(&play.synced(asked).assignment), [0; 0]);
    play.reload();
    assert_eq!(play.syncs_classic("g", &id, next), [0; 0]);
}

#[test]
fn a_group_is_not_upgraded_where_that_is_not_wanted_or_cannot_be() {
    let (mut play, ..) = with_classic();
    play.rules.consumer.migration = Migration::Downgrade;
    assert_eq!(play.refusal(joining("g", "b", &["t"])), ErrorCode::GroupIdNotFound);
    play.rules.consumer.migration = Migration::Bidirectional;
    play.stable("connect", "connect", &["t"]);
    assert_eq!(play.refusal(joining("connect", "b", &["t"])), ErrorCode::GroupIdNotFound);
    play.rules.consumer.members_max = 0;
    assert_eq!(play.refusal(joining("g", "b", &["t"])), ErrorCode::GroupIdNotFound);
}

#[test]
fn an_upgrade_that_cannot_be_appended_did_not_happen() {
    let (mut play, _, id, generation) = with_classic();
    play.appends_at_once = false;
    let joins = play.ask(joining("g", "b", &["t"]));
    play.fail(ErrorCode::NotEnoughReplicas);
    assert_ne!(play.heard(joins).expect("it is told").error_code, 0);
    play.appends_at_once = true;
    assert_eq!(play.states(&[], &["classic"]).len(), 1);
    assert_eq!(play.beat("g", &id, generation), ErrorCode::RebalanceInProgress);
    play.check_log();
}

#[test]
fn a_classic_member_joins_a_group_of_the_consumer_protocol() {
    let (mut play, t) = with_topic(2);
    play.joins("g", "a", &["t"]);
    let (id, epoch) = play.joins_classic("g", "", &[]);
    assert_eq!((epoch, play.syncs_classic("g", &id, 2)), (2, vec![]));
    assert_eq!(play.beat("g", &id, 2), ErrorCode::None, "what it waits for is not there yet");
    play.stays("g", "a", 1);
    play.has("g", "a", 1, &vec![(t, vec![0])]);
    assert_eq!(play.beat("g", &id, 2), ErrorCode::RebalanceInProgress);
    let (_, epoch) = play.joins_classic("g", &id, &[]);
    assert_eq!((epoch, play.syncs_classic("g", &id, 2)), (2, vec![1]));
    assert_eq!(play.beat("g", "a", 2), ErrorCode::UnknownMemberId, "it speaks the other protocol");
    play.rules.consumer.migration = Migration::Disabled;
    let refused = play.join("g", "", "consumer", classic_metadata(&["t"], &[]));
    assert_eq!(code_of(play.joined(refused).error_code), ErrorCode::InconsistentGroupProtocol);
    play.rules.consumer.migration = Migration::Bidirectional;
    let refused = play.join("g", "", "connect", classic_metadata(&["t"], &[]));
    assert_eq!(code_of(play.joined(refused).error_code), ErrorCode::InconsistentGroupProtocol);
}

#[test]
fn a_classic_member_that_does_not_join_again_is_out() {
    let (mut play, _, id, generation) = with_classic();
    play.joins("g", "b", &["t"]);
    for _ in 0..8 {
        play.beat("g", &id, generation);
        play.stays("g", "b", generation + 1);
        play.pass(9 * SECOND);
    }
    assert_eq!(play.beat("g", &id, generation), ErrorCode::UnknownMemberId);
}

#[test]
fn a_classic_member_that_was_out_lets_go_before_it_joins_again() {
    let (mut play, t, id, _) = with_classic();
    let (mut epoch, _) = play.joins("g", "b", &["t"]);
    for _ in 0..8 {
        (epoch, _) = play.stays("g", "b", epoch);
        play.pass(9 * SECOND);
    }
    play.has("g", "b", epoch, &vec![(t, vec![0, 1])]);
    let joins = play.join("g", &id, "consumer", classic_metadata(&["t"], &[0, 1]));
    assert_eq!(code_of(play.joined(joins).error_code), ErrorCode::UnknownMemberId);
    assert_eq!(play.stays("g", "b", epoch), (epoch, None), "nobody has joined");
    assert_eq!(play.joins_classic("g", &id, &[]), (id, epoch + 1));
}

#[test]
fn an_empty_group_becomes_one_of_the_other_kind() {
    let (mut play, _) = with_topic(2);
    play.joins("g", "a", &["t"]);
    play.tell(staying("g", "a", -1));
    let joins = play.join("g", "", "consumer", classic_metadata(&["t"], &[]));
    assert_eq!(code_of(play.joined(joins).error_code), ErrorCode::MemberIdRequired);
    let id = play.joined(joins).member_id.clone();
    let joins = play.join("g", &id, "consumer", classic_metadata(&["t"], &[]));
    play.pass(0);
    assert_eq!(play.joined(joins).generation_id, 1);
    play.check_log();
    play.leave("g", &id);
    assert_eq!(play.joins("g", "b", &["t"]).0, 1);
    assert_eq!(play.states(&[], &["consumer"]).len(), 1);
    play.check_log();
}

#[test]
fn an_operator_takes_members_out() {
    let (mut play, t) = with_two();
    let left = play.leave("g", "b");
    assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    let left = play.leave("g", "b");
    assert_eq!(code_of(left.members[0].error_code), ErrorCode::UnknownMemberId);
    assert_eq!(play.stays("g", "a", 2), (3, Some(vec![(t, vec![0, 1, 2, 3])])));
}
