//! Consumer groups by scenario, and by chance.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ApiKey;
use duramen_protocol::messages::join_group::JoinGroupRequestProtocol;
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;

use super::*;
use crate::event::ConnectionId;
use crate::groups::rules::{ConsumerRules, Migration, ShareRules};
use crate::prng::Prng;

const SECOND: u64 = 1_000_000;
const SESSION_MS: i32 = 10_000;
const REBALANCE_MS: i32 = 60_000;

/// A group, its clock, and all answers that it gave.
struct Play {
    group: Membership,
    rules: Rules,
    now_us: u64,
    asked: u64,
    version: i16,
    joins: BTreeMap<RequestKey, JoinGroupResponse>,
    syncs: BTreeMap<RequestKey, SyncGroupResponse>,
    stores: Vec<(Ticket, GroupMetadataValue)>,
    stores_at_once: bool,
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn request(id: &str, instance: Option<&str>, protocols: &[(&str, &str)]) -> JoinGroupRequest {
    let protocol = |(name, metadata): &(&str, &str)| JoinGroupRequestProtocol {
        name: (*name).to_owned(),
        metadata: bytes(metadata),
    };
    JoinGroupRequest {
        group_id: "g".to_owned(),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        member_id: id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
        protocol_type: "consumer".to_owned(),
        protocols: protocols.iter().map(protocol).collect(),
        ..JoinGroupRequest::default()
    }
}

fn range(id: &str, instance: Option<&str>) -> JoinGroupRequest {
    request(id, instance, &[("range", "t")])
}

fn identity(id: &str, instance: Option<&str>) -> MemberIdentity {
    MemberIdentity {
        member_id: id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
        ..MemberIdentity::default()
    }
}

fn consumer_rules() -> ConsumerRules {
    ConsumerRules {
        session_timeout_ms: 45_000,
        session_timeout_bounds_ms: 45_000..=60_000,
        heartbeat_interval_ms: 5_000,
        heartbeat_interval_bounds_ms: 5_000..=15_000,
        members_max: 100,
        assignors: Vec::new(),
        migration: Migration::Disabled,
        assignment_interval_ms: 0,
        assignment_interval_bounds_ms: 0..=15_000,
        regex_refresh_ms: 600_000,
    }
}

impl Play {
    fn new() -> Self {
        Self::of(Membership::default())
    }

    fn of(group: Membership) -> Self {
        let rules = Rules {
            initial_delay_ms: 3_000,
            session_timeout_ms: 6_000..=1_800_000,
            members_max: 100,
            metadata_max: 4096,
            retention_ms: 7 * 24 * 3600 * 1000,
            consumer: consumer_rules(),
            share: ShareRules {
                session_timeout_ms: 45_000,
                session_timeout_bounds_ms: 45_000..=60_000,
                heartbeat_interval_ms: 5_000,
                heartbeat_interval_bounds_ms: 5_000..=15_000,
                members_max: 200,
            },
        };
        Self {
            group,
            rules,
            now_us: SECOND,
            asked: 0,
            version: 9,
            joins: BTreeMap::new(),
            syncs: BTreeMap::new(),
            stores: Vec::new(),
            stores_at_once: true,
        }
    }

    fn settle(&mut self) {
        loop {
            let effects = self.group.take_effects();
            self.group.inspect();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Joined(key, answer) => {
                        assert_eq!(self.joins.insert(key, answer), None, "{key:?} twice");
                    }
                    Effect::Synced(key, answer) => {
                        assert_eq!(self.syncs.insert(key, answer), None, "{key:?} twice");
                    }
                    Effect::Store(ticket, stored) => {
                        self.stores.push((ticket, stored));
                        if self.stores_at_once {
                            self.group.on_stored(ticket, Ok(()), self.now_us);
                        }
                    }
                }
            }
        }
    }

    fn key(&mut self) -> RequestKey {
        self.asked += 1;
        (ConnectionId(1), self.asked)
    }

    fn join(&mut self, request: &JoinGroupRequest) -> RequestKey {
        let key = self.key();
        let fresh = Uuid::from_u128(u128::from(self.asked));
        let (client_id, client_host) = ("client".to_owned(), "/127.0.0.1".to_owned());
        let context = RequestContext::sample(ApiKey::JoinGroup);
        let caller = Caller { key, context, client_id, client_host, fresh };
        self.group.join(&self.rules, self.version, caller, request, self.now_us);
        self.settle();
        key
    }

    /// A consumer's first two requests.
    fn enter(&mut self) -> (String, RequestKey) {
        let asked = self.join(&range("", None));
        let told = self.joined(asked);
        assert_eq!(told.error_code, ErrorCode::MemberIdRequired.code());
        let key = self.join(&range(&told.member_id, None));
        (told.member_id, key)
    }

    fn joined(&self, key: RequestKey) -> JoinGroupResponse {
        self.joins.get(&key).unwrap_or_else(|| panic!("{key:?} waits")).clone()
    }

    fn join_code(&self, key: RequestKey) -> ErrorCode {
        ErrorCode::from_code(self.joined(key).error_code).expect("a known code")
    }

    fn sync(&mut self, id: &str, generation: i32, given: &[(&str, &str)]) -> RequestKey {
        let assignment = |(id, assignment): &(&str, &str)| SyncGroupRequestAssignment {
            member_id: (*id).to_owned(),
            assignment: bytes(assignment),
        };
        let request = SyncGroupRequest {
            generation_id: generation,
            member_id: id.to_owned(),
            assignments: given.iter().map(assignment).collect(),
            ..SyncGroupRequest::default()
        };
        let key = self.key();
        self.group.sync(key, &request, self.now_us);
        self.settle();
        key
    }

    fn synced(&self, key: RequestKey) -> Result<&[u8], ErrorCode> {
        let answer = self.syncs.get(&key).unwrap_or_else(|| panic!("{key:?} waits"));
        match ErrorCode::from_code(answer.error_code).expect("a known code") {
            ErrorCode::None => Ok(&answer.assignment),
            code => Err(code),
        }
    }

    fn waits(&self, key: RequestKey) -> bool {
        !self.joins.contains_key(&key) && !self.syncs.contains_key(&key)
    }

    fn beat(&mut self, id: &str) -> Result<(), ErrorCode> {
        let result = self.group.heartbeat(id, None, self.group.generation(), self.now_us);
        self.settle();
        result
    }

    fn leave(&mut self, leaving: &[MemberIdentity]) -> Vec<Result<(), ErrorCode>> {
        let results = self.group.leave(leaving, self.now_us).expect("the group lives");
        self.settle();
        results
    }

    /// Lets time pass, from one deadline to the next.
    fn pass(&mut self, us: u64) {
        let until = self.now_us + us;
        while let Some(due) = self.group.deadline_us().filter(|due| *due <= until) {
            self.now_us = due.max(self.now_us);
            self.group.on_time(self.now_us);
            self.settle();
        }
        self.now_us = until;
    }

    /// A stable group of members with these static names, the first of which leads.
    fn stable(instances: &[Option<&str>]) -> (Self, Vec<String>) {
        let mut play = Self::new();
        play.version = 3;
        let keys: Vec<_> = instances.iter().map(|it| play.join(&range("", *it))).collect();
        play.version = 9;
        play.pass(6 * SECOND);
        let ids: Vec<_> = keys.iter().map(|key| play.joined(*key).member_id).collect();
        assert_eq!(play.joined(keys[0]).leader, ids[0]);
        play.share(&ids);
        (play, ids)
    }

    /// All members ask for their assignment, the leader last.
    fn share(&mut self, ids: &[String]) {
        let generation = self.group.generation();
        let given: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), id.as_str())).collect();
        let leader = self.group.roster.leader().cloned().expect("there are members");
        for id in ids.iter().filter(|id| **id != leader) {
            self.sync(id, generation, &[]);
        }
        self.sync(&leader, generation, &given);
        assert_eq!(self.group.state(), State::Stable);
    }
}

#[test]
fn a_new_member_must_say_its_id_from_version_four_on() {
    let mut play = Play::new();
    play.version = 3;
    let old = play.join(&range("", None));
    assert!(play.waits(old), "it is a member at once");
    play.version = 4;
    let first = play.join(&range("", None));
    assert_eq!(play.join_code(first), ErrorCode::MemberIdRequired);
    let id = play.joined(first).member_id;
    assert_eq!(id, "client-00000000-0000-0000-0000-000000000002");
    let second = play.join(&range(&id, None));
    play.pass(6 * SECOND);
    assert_eq!(play.joined(second).member_id, id);
    let made_up = play.join(&range("made up", None));
    assert_eq!(play.join_code(made_up), ErrorCode::UnknownMemberId);
}

#[test]
fn a_promised_id_is_waited_for_and_then_forgotten() {
    let (mut play, ids) = Play::stable(&[None]);
    let asked = play.join(&range("", None));
    let promised = play.joined(asked).member_id;
    assert_eq!(play.beat(&ids[0]), Ok(()), "no rebalance yet");
    let again = play.join(&range(&ids[0], None));
    assert!(play.waits(again), "one more may come");
    play.pass(u64::from(SESSION_MS.unsigned_abs()) * 1000);
    assert_eq!(play.joined(again).members.len(), 1);
    let late = play.join(&range(&promised, None));
    assert_eq!(play.join_code(late), ErrorCode::UnknownMemberId);
}

#[test]
fn an_empty_group_waits_for_the_initial_delay_and_again_as_long_as_members_come() {
    let mut play = Play::new();
    let (_, first) = play.enter();
    play.pass(2 * SECOND);
    assert_eq!(play.group.state(), State::PreparingRebalance);
    let (_, second) = play.enter();
    play.pass(2 * SECOND);
    assert!(play.waits(first), "somebody came, so three more seconds");
    play.pass(2 * SECOND);
    assert_eq!((play.joined(first).generation_id, play.joined(second).generation_id), (1, 1));

    let mut play = Play::new();
    let (_, first) = play.enter();
    for _ in 0..30 {
        play.pass(2 * SECOND);
        if play.waits(first) {
            play.enter();
        }
    }
    assert!(!play.waits(first), "but not longer than the rebalance timeout");

    let mut play = Play::new();
    play.rules.initial_delay_ms = 0;
    let (_, first) = play.enter();
    play.pass(0);
    assert!(!play.waits(first));
}

#[test]
fn the_leader_assigns_and_members_learn_it_when_it_is_stored() {
    let mut play = Play::new();
    play.stores_at_once = false;
    let ((leader, first), (other, second)) = (play.enter(), play.enter());
    play.pass(6 * SECOND);
    let (first, second) = (play.joined(first), play.joined(second));
    assert_eq!((first.leader.as_str(), second.leader.as_str()), (&*leader, &*leader));
    assert_eq!((first.members.len(), second.members.len()), (2, 0));
    assert_eq!(first.protocol_name.as_deref(), Some("range"));
    let follows = play.sync(&other, 1, &[]);
    let leads = play.sync(&leader, 1, &[(&leader, "mine"), (&other, "yours")]);
    assert!(play.waits(follows) && play.waits(leads));
    let retried = play.sync(&leader, 1, &[(&leader, "all")]);
    assert_eq!(play.synced(leads), Err(ErrorCode::RebalanceInProgress), "it was given up");
    assert_eq!(play.stores.len(), 1, "a generation has one assignment");
    let (ticket, stored) = play.stores[0].clone();
    let assigned: Vec<_> =
        stored.members.iter().map(|it| (&*it.member_id, &*it.assignment)).collect();
    assert_eq!(assigned, [(&*leader, &b"mine"[..]), (&*other, &b"yours"[..])]);
    assert_eq!(play.group.state(), State::CompletingRebalance);
    play.group.on_stored(ticket, Ok(()), play.now_us);
    play.settle();
    assert_eq!(play.group.state(), State::Stable);
    assert_eq!((play.synced(retried), play.synced(follows)), (Ok(&b"mine"[..]), Ok(&b"yours"[..])));
    let asks_again = play.sync(&other, 1, &[]);
    assert_eq!(play.synced(asks_again), Ok(&b"yours"[..]));
}

#[test]
fn an_assignment_that_cannot_be_stored_is_told_to_nobody_and_the_group_tries_again() {
    let mut play = Play::new();
    play.stores_at_once = false;
    let (id, _) = play.enter();
    play.pass(3 * SECOND);
    let asked = play.sync(&id, 1, &[(&id, "all")]);
    let ticket = play.stores[0].0;
    play.group.on_stored(ticket, Err(ErrorCode::CoordinatorNotAvailable), play.now_us);
    play.settle();
    assert_eq!(play.synced(asked), Err(ErrorCode::CoordinatorNotAvailable));
    assert_eq!(play.group.state(), State::PreparingRebalance);
    let again = play.join(&range(&id, None));
    assert_eq!(play.joined(again).generation_id, 2);
}

#[test]
fn a_store_of_an_older_generation_changes_nothing() {
    let mut play = Play::new();
    play.stores_at_once = false;
    let (id, _) = play.enter();
    play.pass(3 * SECOND);
    let asked = play.sync(&id, 1, &[(&id, "old")]);
    let again = play.join(&request(&id, None, &[("range", "other")]));
    assert_eq!(play.synced(asked), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(play.joined(again).generation_id, 2);
    play.group.on_stored(play.stores[0].0, Ok(()), play.now_us);
    play.settle();
    assert_eq!(play.group.state(), State::CompletingRebalance);
}

#[test]
fn one_who_joins_makes_the_others_join_again_and_older_generations_are_refused() {
    let (mut play, ids) = Play::stable(&[None]);
    let (newcomer, waiting) = play.enter();
    assert_eq!(play.beat(&ids[0]), Err(ErrorCode::RebalanceInProgress));
    let early = play.sync(&ids[0], 1, &[]);
    assert_eq!(play.synced(early), Err(ErrorCode::RebalanceInProgress));
    assert!(play.waits(waiting));
    let again = play.join(&range(&ids[0], None));
    assert_eq!((play.joined(waiting).generation_id, play.joined(again).generation_id), (2, 2));
    let stale = play.sync(&ids[0], 1, &[]);
    assert_eq!(play.synced(stale), Err(ErrorCode::IllegalGeneration));
    let now_us = play.now_us;
    let stale = play.group.heartbeat(&ids[0], None, 1, now_us);
    assert_eq!(stale, Err(ErrorCode::IllegalGeneration));
    let stale = play.group.check_commit(&ids[0], None, 1, false, now_us);
    assert_eq!(stale, Err(ErrorCode::IllegalGeneration));
    let stranger = play.group.heartbeat("nobody", None, 2, now_us);
    assert_eq!(stranger, Err(ErrorCode::UnknownMemberId));
    play.share(&[ids[0].clone(), newcomer]);
}

#[test]
fn a_cooperative_follower_keeps_its_generation_unless_what_it_says_changes() {
    let (mut play, ids) = Play::stable(&[None, None]);
    let (leader, follower) = (play.group.roster.leader().cloned().expect("one"), &ids[1]);
    assert_eq!(leader, ids[0]);
    let same = play.join(&range(follower, None));
    assert_eq!((play.joined(same).generation_id, play.joined(same).members.len()), (1, 0));
    assert_eq!(play.group.state(), State::Stable);
    // It gave up partitions, which it tells by its metadata; all others join again while they go on consuming.
    let revoked = play.join(&request(follower, None, &[("range", "owns less")]));
    assert!(play.waits(revoked));
    assert_eq!(play.beat(&leader), Err(ErrorCode::RebalanceInProgress));
    let now_us = play.now_us;
    assert_eq!(
        play.group.check_commit(&leader, None, 1, false, now_us),
        Ok(()),
        "it may still commit"
    );
    let again = play.join(&range(&leader, None));
    assert_eq!(play.joined(again).members[1].metadata, bytes("owns less"));
    play.share(&ids);
    let wanted = play.join(&range(&leader, None));
    assert!(play.waits(wanted), "a leader that joins wants a rebalance");
}

#[test]
fn a_lost_answer_is_given_again_and_a_waiting_request_gives_way_to_its_repetition() {
    let mut play = Play::new();
    let (id, first) = play.enter();
    let second = play.join(&range(&id, None));
    assert_eq!(play.join_code(first), ErrorCode::RebalanceInProgress);
    play.pass(6 * SECOND);
    let answer = play.joined(second);
    let third = play.join(&range(&id, None));
    assert_eq!(play.joined(third), answer);
    assert_eq!(play.group.generation(), 1);
}

#[test]
fn a_silent_member_is_dropped_and_the_last_one_leaves_an_empty_generation() {
    let (mut play, ids) = Play::stable(&[None, None]);
    for _ in 0..4 {
        play.pass(5 * SECOND);
        let _ = play.beat(&ids[1]);
    }
    assert_eq!(play.group.state(), State::PreparingRebalance);
    let again = play.join(&range(&ids[1], None));
    assert_eq!((play.joined(again).generation_id, &play.joined(again).leader), (2, &ids[1]));
    assert_eq!(play.beat(&ids[0]), Err(ErrorCode::UnknownMemberId));
    play.share(&ids[1..]);
    play.pass(11 * SECOND);
    assert_eq!((play.group.state(), play.group.generation()), (State::Empty, 3));
    let (_, last) = play.stores.last().expect("it is stored");
    assert_eq!((last.generation, last.members.len(), &last.protocol), (3, 0, &None));
    assert_eq!(play.group.deadline_us(), None, "nothing is left to wait for");
}

#[test]
fn whoever_has_not_joined_again_in_time_is_out_but_static_members_stay() {
    let (mut play, ids) = Play::stable(&[None, None, Some("static")]);
    let again = play.join(&request(&ids[0], None, &[("range", "new")]));
    for _ in 0..13 {
        play.pass(5 * SECOND);
        let now_us = play.now_us;
        let _ = play.beat(&ids[1]);
        let _ = play.group.heartbeat(&ids[2], Some("static"), 1, now_us);
    }
    let members: Vec<_> = play.joined(again).members.into_iter().map(|it| it.member_id).collect();
    assert_eq!(members.len(), 2);
    assert!(members.contains(&ids[0]) && members.contains(&ids[2]));
}

#[test]
fn whoever_does_not_ask_for_its_assignment_in_time_is_out() {
    let mut play = Play::new();
    let ((leader, _), (other, _)) = (play.enter(), play.enter());
    play.pass(6 * SECOND);
    play.sync(&leader, 1, &[(&leader, "a"), (&other, "b")]);
    assert_eq!(play.group.state(), State::Stable);
    for _ in 0..13 {
        play.pass(5 * SECOND);
        let _ = (play.beat(&leader), play.beat(&other));
    }
    assert_eq!(play.beat(&other), Err(ErrorCode::UnknownMemberId));
    assert_eq!(play.group.state(), State::PreparingRebalance);
}

#[test]
fn a_static_member_comes_back_without_a_rebalance_and_fences_its_former_self() {
    for version in [8, 9] {
        let (mut play, ids) = Play::stable(&[Some("a"), Some("b")]);
        play.version = version;
        let back = play.join(&range("", Some("a")));
        let answer = play.joined(back);
        assert_eq!((play.group.state(), answer.generation_id), (State::Stable, 1));
        assert!(answer.member_id.starts_with("a-") && answer.member_id != ids[0]);
        // From version 9 on it learns that it leads and need not assign; before, it must not know.
        assert_eq!(answer.skip_assignment, version == 9);
        assert_eq!(answer.members.len(), if version == 9 { 2 } else { 0 });
        assert_eq!(answer.leader == answer.member_id, version == 9);
        let asked = play.sync(&answer.member_id, 1, &[]);
        assert_eq!(play.synced(asked), Ok(ids[0].as_bytes()), "what it had before");
        let now_us = play.now_us;
        let former = play.group.heartbeat(&ids[0], Some("a"), 1, now_us);
        assert_eq!(former, Err(ErrorCode::FencedInstanceId));
        let former = play.group.check_commit(&ids[0], Some("a"), 1, false, now_us);
        assert_eq!(former, Err(ErrorCode::FencedInstanceId));
        let former = play.join(&range(&ids[0], Some("a")));
        assert_eq!(play.join_code(former), ErrorCode::FencedInstanceId);
        let (_, stored) = play.stores.last().expect("the new id is stored");
        assert!(stored.members.iter().any(|it| it.member_id == answer.member_id));
    }
}

#[test]
fn a_static_member_that_waits_is_told_when_another_takes_its_name() {
    let mut play = Play::new();
    let former = play.join(&range("", Some("a")));
    let next = play.join(&range("", Some("a")));
    assert_eq!(play.join_code(former), ErrorCode::FencedInstanceId);
    play.pass(3 * SECOND);
    assert_eq!(play.joined(next).members.len(), 1);
    let (mut play, ids) = Play::stable(&[Some("a"), Some("b")]);
    let b = play.join(&request(&ids[1], Some("b"), &[("range", "new")]));
    play.join(&range(&ids[0], Some("a")));
    assert_eq!(play.joined(b).generation_id, 2);
    let former = play.sync(&ids[1], 2, &[]);
    play.join(&range("", Some("b")));
    assert_eq!(play.synced(former), Err(ErrorCode::FencedInstanceId));
}

#[test]
fn a_static_member_whose_new_id_cannot_be_stored_has_its_old_one() {
    let (mut play, ids) = Play::stable(&[Some("a")]);
    play.stores_at_once = false;
    let back = play.join(&range("", Some("a")));
    assert!(play.waits(back));
    let ticket = play.stores.last().expect("the new id").0;
    play.group.on_stored(ticket, Err(ErrorCode::NotCoordinator), play.now_us);
    play.settle();
    assert_eq!(play.join_code(back), ErrorCode::NotCoordinator);
    let now_us = play.now_us;
    assert_eq!(play.group.heartbeat(&ids[0], Some("a"), 1, now_us), Ok(()));
    assert!(play.group.roster.is_leader(&ids[0]));
}

#[test]
fn a_static_member_that_comes_back_changed_or_during_a_rebalance_causes_one() {
    let (mut play, ids) = Play::stable(&[Some("a"), Some("b")]);
    let both = [("range", "t"), ("sticky", "t")];
    let now_us = play.now_us;
    let b = play.join(&request(&ids[1], Some("b"), &both));
    assert_eq!(
        play.group.heartbeat(&ids[0], Some("a"), 1, now_us),
        Err(ErrorCode::RebalanceInProgress)
    );
    let a = play.join(&request("", Some("a"), &[("sticky", "t"), ("range", "t")]));
    let a_id = play.joined(a).member_id;
    assert_eq!((play.joined(a).generation_id, play.joined(b).generation_id), (2, 2));
    let waiting = play.sync(&ids[1], 2, &[]);
    let back = play.join(&request("", Some("a"), &both));
    assert_eq!(play.synced(waiting), Err(ErrorCode::RebalanceInProgress));
    assert!(play.waits(back));
    let b = play.join(&request(&ids[1], Some("b"), &both));
    let b_generation = play.joined(b).generation_id;
    assert_eq!((play.joined(back).generation_id, b_generation), (3, 3));
    assert_ne!(play.joined(back).member_id, a_id);
    let ids = [play.joined(back).member_id, ids[1].clone()];
    play.share(&ids);
    // The chosen protocol is gone, so the next generation needs another.
    let back = play.join(&request("", Some("a"), &[("sticky", "t")]));
    assert!(play.waits(back));
    assert_eq!(play.group.state(), State::PreparingRebalance);
}

#[test]
fn members_leave_by_id_or_by_static_name() {
    let (mut play, ids) = Play::stable(&[None, None, Some("a"), Some("b")]);
    let results = play.leave(&[
        identity(&ids[1], None),
        identity("", Some("a")),
        identity("wrong", Some("b")),
        identity("", Some("c")),
        identity("nobody", None),
        identity("", None),
    ]);
    let (fenced, unknown) = (ErrorCode::FencedInstanceId, ErrorCode::UnknownMemberId);
    let expected = [Ok(()), Ok(()), Err(fenced), Err(unknown), Err(unknown), Err(unknown)];
    assert_eq!(results, expected);
    assert_eq!(play.group.state(), State::PreparingRebalance);
    let waiting = play.join(&range(&ids[0], None));
    assert!(play.waits(waiting), "for b");
    assert_eq!(play.leave(&[identity(&ids[3], Some("b"))]), [Ok(())]);
    assert_eq!(play.joined(waiting).members.len(), 1);
    let again = play.join(&request(&ids[0], None, &[("range", "new")]));
    assert_eq!(play.joined(again).generation_id, 3);
    assert_eq!(play.leave(&[identity(&ids[0], None)]), [Ok(())]);
    assert_eq!((play.group.state(), play.group.generation()), (State::Empty, 4));
}

#[test]
fn one_who_leaves_while_it_waits_is_answered_and_a_promised_id_can_be_given_back() {
    let (mut play, ids) = Play::stable(&[None]);
    let (newcomer, waiting) = play.enter();
    play.leave(&[identity(&newcomer, None)]);
    assert_eq!(play.join_code(waiting), ErrorCode::UnknownMemberId);
    let asked = play.join(&range("", None));
    let promised = play.joined(asked).member_id;
    let again = play.join(&range(&ids[0], None));
    assert!(play.waits(again));
    assert_eq!(play.leave(&[identity(&promised, None)]), [Ok(())]);
    assert_eq!(play.joined(again).generation_id, 2);
    play.share(&ids);
    let asked = play.join(&range("", None));
    let promised = play.joined(asked).member_id;
    play.leave(&[identity(&promised, None)]);
    assert_eq!(play.group.state(), State::Stable, "it was nobody's member");
}

#[test]
fn members_need_a_protocol_in_common_and_choose_it_by_votes() {
    let mut play = Play::new();
    play.version = 3;
    let none = play.join(&request("", None, &[]));
    assert_eq!(play.join_code(none), ErrorCode::InconsistentGroupProtocol);
    let first = play.join(&request("", None, &[("range", "1"), ("sticky", "1"), ("odd", "1")]));
    let strange = play.join(&request("", None, &[("other", "1")]));
    assert_eq!(play.join_code(strange), ErrorCode::InconsistentGroupProtocol);
    let mut connect = range("", None);
    connect.protocol_type = "connect".to_owned();
    let connect = play.join(&connect);
    assert_eq!(play.join_code(connect), ErrorCode::InconsistentGroupProtocol);
    for _ in 0..2 {
        play.join(&request("", None, &[("sticky", "2"), ("range", "2")]));
    }
    play.pass(6 * SECOND);
    let answer = play.joined(first);
    assert_eq!(answer.protocol_name.as_deref(), Some("sticky"));
    assert_eq!(answer.members.iter().filter(|it| it.metadata == bytes("2")).count(), 2);
    let wrong = SyncGroupRequest {
        generation_id: 1,
        member_id: answer.member_id,
        protocol_name: Some("range".to_owned()),
        ..SyncGroupRequest::default()
    };
    let key = play.key();
    play.group.sync(key, &wrong, play.now_us);
    play.settle();
    assert_eq!(play.synced(key), Err(ErrorCode::InconsistentGroupProtocol));
}

#[test]
fn a_full_group_and_wrong_timeouts_are_refused() {
    let (mut play, _) = Play::stable(&[None, None]);
    play.rules.members_max = 2;
    let third = play.join(&range("", None));
    assert_eq!(play.join_code(third), ErrorCode::GroupMaxSizeReached);
    assert_eq!(play.group.state(), State::Stable);
    let mut hasty = range("", None);
    hasty.session_timeout_ms = 5_999;
    let hasty = play.join(&hasty);
    assert_eq!(play.join_code(hasty), ErrorCode::InvalidSessionTimeout);
}

#[test]
fn offsets_are_committed_by_members_of_the_generation_or_if_there_are_none_by_anybody() {
    let mut play = Play::new();
    assert_eq!(play.group.check_commit("", None, -1, false, 0), Ok(()));
    assert_eq!(play.group.check_commit("x", None, 1, false, 0), Err(ErrorCode::UnknownMemberId));
    let (id, _) = play.enter();
    play.pass(3 * SECOND);
    let now_us = play.now_us;
    let completing = play.group.check_commit(&id, None, 1, false, now_us);
    assert_eq!(completing, Err(ErrorCode::RebalanceInProgress));
    play.share(std::slice::from_ref(&id));
    assert_eq!(
        play.group.check_commit("", None, -1, false, now_us),
        Err(ErrorCode::UnknownMemberId)
    );
    for _ in 0..4 {
        play.pass(5 * SECOND);
        let now_us = play.now_us;
        assert_eq!(
            play.group.check_commit(&id, None, 1, false, now_us),
            Ok(()),
            "a sign of life, too"
        );
    }
}

#[test]
fn the_end_of_a_group_answers_all_that_wait() {
    let (mut play, ids) = Play::stable(&[None, None]);
    let waiting = play.join(&request(&ids[0], None, &[("range", "new")]));
    play.group.end(ErrorCode::NotCoordinator);
    play.settle();
    assert_eq!(play.join_code(waiting), ErrorCode::NotCoordinator);
    assert_eq!(play.group.state(), State::Dead);
    assert_eq!(play.beat(&ids[0]), Err(ErrorCode::CoordinatorNotAvailable));
    let late = play.join(&range("", None));
    assert_eq!(play.join_code(late), ErrorCode::CoordinatorNotAvailable);
    assert_eq!(play.group.deadline_us(), None);
}

#[test]
fn a_loaded_group_goes_on_where_it_was_stored() {
    let (play, ids) = Play::stable(&[None, Some("a")]);
    let (_, stored) = play.stores.last().expect("the assignments").clone();
    let mut loaded = Play::of(Membership::load(&stored, 7 * SECOND));
    loaded.now_us = 7 * SECOND;
    let described = play.group.describe("g");
    assert!(described.members.iter().all(|it| !it.member_assignment.is_empty()));
    assert_eq!(loaded.group.describe("g"), described);
    let asked = loaded.sync(&ids[1], 1, &[]);
    assert_eq!(loaded.synced(asked), Ok(ids[1].as_bytes()));
    assert_eq!(loaded.group.roster.leader(), Some(&ids[0]));
    loaded.pass(11 * SECOND);
    assert_eq!((loaded.group.state(), loaded.group.generation()), (State::Empty, 2));
}

#[test]
fn metadata_is_described_of_a_stable_group_only() {
    let (mut play, ids) = Play::stable(&[None]);
    let stable = play.group.describe("g");
    assert_eq!((&*stable.group_state, &*stable.protocol_data), ("Stable", "range"));
    assert_eq!(stable.members[0].member_assignment, bytes(&ids[0]));
    play.enter();
    let preparing = play.group.describe("g");
    assert_eq!((&*preparing.group_state, &*preparing.protocol_data), ("PreparingRebalance", ""));
    assert_eq!((preparing.members.len(), preparing.members[0].member_metadata.len()), (2, 0));
    assert_eq!(preparing.members[0].member_assignment, bytes(&ids[0]), "what it had last");
}

/// Members, by chance: they join, sync, beat, leave, fall silent; stores succeed late or fail.
struct Chaos {
    play: Play,
    chance: Prng,
    ids: Vec<String>,
    asked: BTreeSet<RequestKey>,
    generation: i32,
    leaders: BTreeMap<i32, String>,
}

impl Chaos {
    fn step(&mut self) {
        let Self { play, chance, ids, asked, .. } = self;
        let id = ids[usize::try_from(chance.below(ids.len() as u64)).expect("small")].clone();
        let instance = id.starts_with("i-").then_some("i");
        match chance.below(9) {
            0 => {
                play.version = if chance.below(2) == 0 { 3 } else { 9 };
                let instance = (chance.below(3) == 0).then_some("i");
                asked.insert(play.join(&range("", instance)));
            }
            1 | 2 => {
                let metadata = ["t", "u"][usize::from(chance.below(3) == 0)];
                asked.insert(play.join(&request(&id, instance, &[("range", metadata)])));
            }
            3 | 4 => {
                let generation = play.group.generation();
                asked.insert(play.sync(&id, generation, &[(&id, &id)]));
            }
            5 => {
                let _ = play.beat(&id);
            }
            6 if chance.below(4) == 0 => {
                play.leave(&[identity(&id, instance)]);
            }
            7 => play.pass(chance.below(8) * SECOND),
            _ => {
                let failed = chance.below(5) == 0;
                let result = if failed { Err(ErrorCode::NotCoordinator) } else { Ok(()) };
                self.store(result);
            }
        }
        let told = self.play.joins.values().map(|it| it.member_id.clone());
        self.ids.extend(told);
        self.ids.sort();
        self.ids.dedup();
    }

    fn store(&mut self, result: Result<(), ErrorCode>) {
        for (ticket, _) in mem::take(&mut self.play.stores) {
            self.play.group.on_stored(ticket, result, self.play.now_us);
        }
        self.play.settle();
    }

    fn check(&mut self) {
        let group = &self.play.group;
        assert!(group.generation() >= self.generation, "generations only grow");
        self.generation = group.generation();
        match group.state() {
            State::Empty => assert!(group.roster.is_empty()),
            State::PreparingRebalance => assert!(group.join_due_us.is_some(), "it ends some day"),
            _ => assert!(!group.roster.is_empty()),
        }
        let leads = |it: &&JoinGroupResponse| it.error_code == 0 && !it.members.is_empty();
        for answer in self.play.joins.values().filter(leads) {
            let leader = self.leaders.entry(answer.generation_id);
            let leader = leader.or_insert_with(|| answer.leader.clone());
            let is_static = leader.starts_with("i-") && answer.leader.starts_with("i-");
            assert!(*leader == answer.leader || is_static, "one leader a generation");
        }
    }

    fn run(seed: u64) {
        let mut chaos = Self {
            play: Play::new(),
            chance: Prng::stream(seed, 1),
            ids: vec![String::new()],
            asked: BTreeSet::new(),
            generation: 0,
            leaders: BTreeMap::new(),
        };
        chaos.play.stores_at_once = false;
        for _ in 0..400 {
            chaos.step();
            chaos.check();
        }
        chaos.store(Ok(()));
        chaos.play.stores_at_once = true;
        chaos.play.pass(1_000 * SECOND);
        for key in &chaos.asked {
            assert!(!chaos.play.waits(*key), "seed {seed}: {key:?} was never answered");
        }
        assert_eq!(chaos.play.group.state(), State::Empty, "seed {seed}: all are silent");
    }
}

#[test]
fn whatever_members_do_every_request_is_answered_once() {
    for seed in 0..300 {
        Chaos::run(seed);
    }
}
