//! Coordinators by scenario.

use super::*;

#[test]
fn an_offset_is_told_when_it_is_durable_and_a_fetch_waits_for_the_commits_before_it() {
    let mut play = Play::new();
    play.commit("g", &[("t", 0, 1)]);
    play.appends_at_once = false;
    let second = play.commit("g", &[("t", 0, 2), ("t", 1, 7)]);
    let asks = play.fetch_as("g", None);
    let third = play.commit("g", &[("t", 0, 3)]);
    let elsewhere = play.fetch_as("other", None);
    assert_eq!(play.told(elsewhere), [], "which waits for nothing");
    assert!(!play.replies.contains_key(&second) && !play.fetched.contains_key(&asks));
    play.land();
    play.settle();
    assert_eq!(play.committed(second), [ErrorCode::None, ErrorCode::None]);
    assert_eq!(play.told(asks), [offset("t", 0, 2), offset("t", 1, 7)], "and no longer");
    assert!(!play.replies.contains_key(&third));
    play.land_all();
    assert_eq!(play.offsets("g"), [offset("t", 0, 3), offset("t", 1, 7)]);
    play.check_log();
}

#[test]
fn a_commit_that_the_log_does_not_take_changes_nothing() {
    for (why, told) in [
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::RequestTimedOut, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::UnknownTopicOrPartition, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
    ] {
        let mut play = Play::new();
        play.commit("g", &[("t", 0, 1)]);
        play.appends_at_once = false;
        let asked = play.commit("g", &[("t", 0, 2), ("missing", 0, 2), ("t", 1, 2)]);
        let first = play.commit("fresh", &[("t", 0, 2)]);
        let waits = play.fetch_as("g", None);
        play.fail(why);
        play.fail(why);
        let missing = ErrorCode::UnknownTopicOrPartition;
        assert_eq!(play.committed(asked), [told, missing, told]);
        assert_eq!(play.committed(first), [told]);
        assert_eq!(play.told(waits), [offset("t", 0, 1)]);
        assert_eq!(play.states(&[], &[]).len(), 1, "nothing is left of the other");
    }
}

#[test]
fn an_assignment_that_the_log_does_not_take_is_asked_for_again() {
    for (found, told) in [
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::NotEnoughReplicas, ErrorCode::CoordinatorNotAvailable),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
    ] {
        let mut play = Play::new();
        let asked = play.join("g", "", "consumer", subscription(&["t"]));
        let id = play.joined(asked).member_id.clone();
        let joins = play.join("g", &id, "consumer", subscription(&["t"]));
        play.pass(0);
        let generation = play.joined(joins).generation_id;
        play.appends_at_once = false;
        let syncs = play.sync("g", &id, generation);
        play.fail(found);
        assert_eq!(code_of(play.synced(syncs).error_code), told);
        assert_eq!(play.beat("g", &id, generation), ErrorCode::RebalanceInProgress);
        play.appends_at_once = true;
        let joins = play.join("g", &id, "consumer", subscription(&["t"]));
        let generation = play.joined(joins).generation_id;
        let syncs = play.sync("g", &id, generation);
        assert_eq!(play.synced(syncs).assignment, Bytes::from_static(b"all"));
    }
}

#[test]
fn each_partition_of_a_commit_has_its_own_code() {
    let mut play = Play::new();
    let mut request = commit("g", &[("t", 0, 1), ("missing", 0, 1), ("t", 1, 1), ("t", 2, 1)]);
    let metadata = |text: &str| Some(text.to_owned());
    request.topics[0].partitions[0].committed_metadata = metadata("0123456789");
    request.topics[2].partitions[0].committed_metadata = metadata("0123456789a");
    // Ten units of UTF-16, and more bytes.
    request.topics[3].partitions[0].committed_metadata = metadata("äöüäöüäöüß");
    let asked = play.commit_as(request);
    let (missing, long) = (ErrorCode::UnknownTopicOrPartition, ErrorCode::OffsetMetadataTooLarge);
    assert_eq!(play.committed(asked), [ErrorCode::None, missing, long, ErrorCode::None]);
    assert_eq!(play.offsets("g"), [offset("t", 0, 1), offset("t", 2, 1)]);
    let asked = play.commit("only", &[("missing", 0, 1)]);
    assert_eq!(play.committed(asked), [missing]);
    assert_eq!(play.states(&[], &[]).len(), 1, "no group was made for nothing");
}

#[test]
fn who_may_commit_depends_on_the_group() {
    let mut play = Play::new();
    let id = play.stable("g", "consumer", &["t"]);
    let as_member = |group: &str, id: &str, generation| OffsetCommitRequest {
        generation_id_or_member_epoch: generation,
        member_id: id.to_owned(),
        ..commit(group, &[("t", 0, 1)])
    };
    for (request, version, code) in [
        (as_member("g", &id, 1), 9, ErrorCode::None),
        (as_member("g", &id, 2), 9, ErrorCode::IllegalGeneration),
        (as_member("g", &id, -1), 9, ErrorCode::IllegalGeneration),
        (as_member("g", "who", 1), 9, ErrorCode::UnknownMemberId),
        (as_member("g", "", -1), 9, ErrorCode::UnknownMemberId),
        (as_member("none", &id, 1), 8, ErrorCode::IllegalGeneration),
        (as_member("none", &id, 1), 9, ErrorCode::GroupIdNotFound),
        (as_member("none", "", -1), 9, ErrorCode::None),
        (as_member("none", "", 0), 9, ErrorCode::UnknownMemberId),
        (as_member("", "", -1), 9, ErrorCode::None),
    ] {
        play.version = version;
        let asked = play.commit_as(request.clone());
        assert_eq!(play.committed(asked), [code], "{request:?}");
    }
}

#[test]
fn a_fetch_of_what_is_not_there_is_answered_with_minus_one_and_of_all_with_what_there_is() {
    let mut play = Play::new();
    let mut request = commit("g", &[("t", 0, 5), ("u", 3, 6)]);
    request.topics[0].topic_id = Uuid::from_u128(1);
    request.topics[0].partitions[0].committed_leader_epoch = 4;
    request.topics[0].partitions[0].committed_metadata = Some("note".to_owned());
    play.commit_as(request);
    let asked = play.fetch_as("g", Some(&[("t", 1, 0), ("t", 0, 1), ("t", 2, 0), ("u", 2, 3)]));
    let told = [offset("t", 0, 5), offset("t", 1, -1), offset("t", 0, -1), offset("u", 3, 6)];
    assert_eq!(play.told(asked), told, "the third asks for another topic of that name");
    let partitions: Vec<_> =
        play.fetched[&asked].topics.iter().map(|it| &it.partitions[0]).collect();
    assert_eq!(partitions[0].committed_leader_epoch, 4);
    assert_eq!(partitions[0].metadata.as_deref(), Some("note"));
    assert_eq!(partitions[1].committed_leader_epoch, -1);
    assert_eq!(partitions[1].metadata.as_deref(), Some(""));
    assert_eq!(play.offsets("g"), [offset("t", 0, 5), offset("u", 3, 6)]);
    let missing = play.fetch_as("none", Some(&[("t", 0, 0)]));
    assert_eq!(play.told(missing), [offset("t", 0, -1)]);
    assert_eq!(play.offsets("none"), []);
}

#[test]
fn members_survive_a_restart_and_must_be_heard_of_again() {
    let mut play = Play::new();
    let id = play.stable("g", "consumer", &["t"]);
    let mut request = commit("g", &[("t", 0, 1)]);
    (request.member_id, request.generation_id_or_member_epoch) = (id.clone(), 1);
    play.commit_as(request);
    let before = play.coordinator.describe(6, "g");
    let mut loaded = Play::of(play.reloaded());
    loaded.end = play.end;
    loaded.now.mono_us = 77 * SECOND;
    loaded.coordinator.loaded(&loaded.rules, loaded.now);
    assert_eq!(loaded.coordinator.describe(6, "g"), before);
    assert_eq!(before.members[0].member_assignment, Bytes::from_static(b"all"));
    loaded.pass(9 * SECOND);
    assert_eq!(loaded.beat("g", &id, 1), ErrorCode::None);
    loaded.pass(9 * SECOND);
    assert_eq!(loaded.beat("g", &id, 1), ErrorCode::None, "each sign of life counts anew");
    loaded.pass(11 * SECOND);
    assert_eq!(loaded.beat("g", &id, 1), ErrorCode::UnknownMemberId);
    assert_eq!(loaded.states(&[], &[])[0].2, "Empty");
    assert_eq!(loaded.offsets("g"), [offset("t", 0, 1)]);
    assert!(
        matches!(loaded.log.values().last(), Some(GroupRecord::Group { value: Some(value), .. })
        if value.members.is_empty() && value.generation == 2 && value.protocol_type == "consumer")
    );
}

#[test]
fn a_group_that_is_too_large_now_is_rebalanced_once_it_is_loaded() {
    let mut play = Play::new();
    let first = play.stable("g", "consumer", &["t"]);
    let asked = play.join("g", "", "consumer", subscription(&["t"]));
    let second = play.joined(asked).member_id.clone();
    play.join("g", &second, "consumer", subscription(&["t"]));
    play.join("g", &first, "consumer", subscription(&["t"]));
    play.sync("g", &first, 2);
    let mut loaded = Play::of(play.reloaded());
    (loaded.end, loaded.rules.members_max) = (play.end, 1);
    loaded.coordinator.loaded(&loaded.rules, loaded.now);
    assert_eq!(loaded.states(&[], &[])[0].2, "PreparingRebalance");
    assert_eq!(loaded.beat("g", &first, 2), ErrorCode::RebalanceInProgress);
    let mut request = commit("g", &[("t", 0, 1)]);
    (request.member_id, request.generation_id_or_member_epoch) = (second.clone(), 2);
    let commits = loaded.commit_as(request);
    assert_eq!(loaded.committed(commits), [ErrorCode::None], "it may still say how far it came");
    let stays = loaded.join("g", &first, "consumer", subscription(&["t"]));
    let goes = loaded.join("g", &second, "consumer", subscription(&["t"]));
    assert_eq!(code_of(loaded.joined(goes).error_code), ErrorCode::GroupMaxSizeReached);
    assert_eq!(loaded.joined(stays).members.len(), 1);
    assert_eq!(loaded.joined(stays).generation_id, 3);
}

#[test]
fn requests_to_a_group_that_is_not_there_are_told_so() {
    let mut play = Play::new();
    let joins = play.join("g", "made up", "consumer", Bytes::new());
    assert_eq!(code_of(play.joined(joins).error_code), ErrorCode::UnknownMemberId);
    let syncs = play.sync("g", "made up", 1);
    assert_eq!(code_of(play.synced(syncs).error_code), ErrorCode::UnknownMemberId);
    assert_eq!(play.beat("g", "made up", 1), ErrorCode::UnknownMemberId);
    let left = play.leave("g", "made up");
    assert_eq!(
        (left.error_code, left.members[0].error_code),
        (0, ErrorCode::UnknownMemberId.code())
    );
    play.version = 2;
    assert_eq!(play.leave("g", "made up").error_code, ErrorCode::UnknownMemberId.code());
    let deletes = play.delete("g");
    assert_eq!(play.deleted[&deletes], ErrorCode::GroupIdNotFound);
    let deletes = play.delete_offsets("g", "t", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::GroupIdNotFound);
    let described = play.coordinator.describe(6, "g");
    assert_eq!((&*described.group_state, described.error_code), ("Dead", 69));
    assert_eq!(described.error_message.as_deref(), Some("Group g not found."));
    let described = play.coordinator.describe(5, "g");
    assert_eq!(
        (&*described.group_state, described.error_code, described.error_message),
        ("Dead", 0, None)
    );
    // An empty name is none, where members are concerned.
    let joins = play.join("", "", "consumer", Bytes::new());
    assert_eq!(code_of(play.joined(joins).error_code), ErrorCode::InvalidGroupId);
    assert_eq!(play.beat("", "x", 1), ErrorCode::InvalidGroupId);
    assert_eq!(play.leave("", "x").error_code, ErrorCode::InvalidGroupId.code());
    let deletes = play.delete_offsets("", "t", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::InvalidGroupId);
    assert_eq!(play.states(&[], &[]), [], "and none was made");
}

#[test]
fn groups_are_listed_by_state_and_type() {
    let mut play = Play::new();
    play.stable("members", "consumer", &["t"]);
    play.commit("simple", &[("t", 0, 1)]);
    let group =
        |id: &str, kind: &str, state: &str| (id.to_owned(), kind.to_owned(), state.to_owned());
    let (stable, empty) = (group("members", "consumer", "Stable"), group("simple", "", "Empty"));
    assert_eq!(play.states(&[], &[]), [stable.clone(), empty.clone()]);
    assert_eq!(play.states(&[" stable"], &["CLASSIC"]), [stable]);
    assert_eq!(play.states(&["Empty", "Dead"], &[]), [empty]);
    assert_eq!(play.states(&["nonsense"], &[]), []);
    assert_eq!(play.states(&[], &["consumer"]), []);
}

#[test]
fn offsets_of_topics_that_members_are_subscribed_to_cannot_be_deleted() {
    let mut play = Play::new();
    let id = play.stable("g", "consumer", &["t"]);
    let mut request = commit("g", &[("t", 0, 1), ("u", 0, 1)]);
    (request.member_id, request.generation_id_or_member_epoch) = (id.clone(), 1);
    play.commit_as(request);
    let deletes = play.delete_offsets("g", "t", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::GroupSubscribedToTopic);
    let deletes = play.delete_offsets("g", "missing", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::UnknownTopicOrPartition);
    let deletes = play.delete_offsets("g", "u", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::None);
    let nothing = play.delete_offsets("g", "u", 0);
    assert_eq!(play.deleted_offset(nothing), ErrorCode::None);
    assert_eq!(play.offsets("g"), [offset("t", 0, 1)]);
    play.leave("g", &id);
    let deletes = play.delete_offsets("g", "t", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::None);
    assert_eq!(play.offsets("g"), []);
    play.stable("workers", "connect", &[]);
    let deletes = play.delete_offsets("workers", "t", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::NonEmptyGroup);
    // Members whose metadata cannot be read may be subscribed to anything.
    let asked = play.join("odd", "", "consumer", Bytes::from_static(b"?"));
    let id = play.joined(asked).member_id.clone();
    play.join("odd", &id, "consumer", Bytes::from_static(b"?"));
    play.pass(0);
    let deletes = play.delete_offsets("odd", "t", 0);
    assert_eq!(play.deleted_offset(deletes), ErrorCode::GroupSubscribedToTopic);
    play.check_log();
}

#[test]
fn a_deletion_removes_what_was_committed_before_it_and_nothing_that_comes_after() {
    let mut play = Play::new();
    play.commit("g", &[("t", 0, 1)]);
    play.appends_at_once = false;
    let before = play.commit("g", &[("t", 1, 1)]);
    let deletes = play.delete_offsets("g", "t", 1);
    let group = play.delete("g");
    let twice = play.delete("g");
    assert_eq!(play.deleted[&twice], ErrorCode::GroupIdNotFound, "it is as good as gone");
    let after = play.commit("g", &[("t", 2, 1)]);
    assert!(!play.deleted.contains_key(&group));
    play.land_all();
    assert_eq!(
        (play.committed(before), play.committed(after)),
        (vec![ErrorCode::None], vec![ErrorCode::None])
    );
    assert_eq!(play.deleted_offset(deletes), ErrorCode::None);
    assert_eq!(play.deleted[&group], ErrorCode::None);
    assert_eq!(play.offsets("g"), [offset("t", 2, 1)]);
    play.check_log();
    let group = play.delete("g");
    play.land_all();
    assert_eq!(play.deleted[&group], ErrorCode::None);
    assert_eq!(play.states(&[], &[]), []);
    assert!(play.coordinator.live().first().is_none() && play.coordinator.groups.is_empty());
    play.check_log();
}

#[test]
fn a_group_whose_deletion_fails_is_what_it_was() {
    let mut play = Play::new();
    let id = play.stable("g", "consumer", &["t"]);
    let mut request = commit("g", &[("t", 0, 1)]);
    (request.member_id, request.generation_id_or_member_epoch) = (id.clone(), 1);
    play.commit_as(request);
    let member = play.delete("g");
    assert_eq!(play.deleted[&member], ErrorCode::NonEmptyGroup);
    play.leave("g", &id);
    let before = play.coordinator.describe(6, "g");
    play.appends_at_once = false;
    let asked = play.delete("g");
    assert_eq!(play.beat("g", &id, 2), ErrorCode::UnknownMemberId);
    play.fail(ErrorCode::NotEnoughReplicas);
    assert_eq!(play.deleted[&asked], ErrorCode::CoordinatorNotAvailable);
    assert_eq!(play.coordinator.describe(6, "g"), before);
    assert_eq!(before.protocol_type, "consumer");
    play.appends_at_once = true;
    play.stable("g", "consumer", &["t"]);
    assert_eq!(play.coordinator.groups["g"].members.generation(), 3, "it goes on counting");
    assert_eq!(play.offsets("g"), [offset("t", 0, 1)]);
    play.check_log();
}

#[test]
fn what_a_deleted_group_wanted_stored_is_no_news_to_the_next_of_its_name() {
    let mut play = Play::new();
    play.appends_at_once = false;
    play.version = 3;
    play.join("g", "", "consumer", subscription(&["t"]));
    let id = play.coordinator.describe(6, "g").members[0].member_id.clone();
    play.leave("g", &id);
    play.pass(0);
    assert_eq!(play.waiting.len(), 1, "the empty generation, the first thing it wants stored");
    play.delete("g");
    play.version = 9;
    let joins = play.join("g", "", "consumer", subscription(&["t"]));
    let id = play.joined(joins).member_id.clone();
    let joins = play.join("g", &id, "consumer", subscription(&["t"]));
    play.pass(0);
    assert_eq!(play.joined(joins).generation_id, 1, "another group");
    let syncs = play.sync("g", &id, 1);
    assert_eq!(play.waiting.len(), 3);
    play.land();
    play.land();
    play.settle();
    assert!(!play.replies.contains_key(&syncs), "its own is not stored yet");
    play.land_all();
    assert_eq!(play.synced(syncs).error_code, 0);
    assert_eq!(play.states(&[], &[])[0].2, "Stable");
    play.check_log();
}

#[test]
fn a_large_group_is_deleted_in_parts_and_fails_if_a_part_fails() {
    let mut play = Play::new();
    let many: Vec<_> = (0..40).map(|it| ("topic", it, 1)).collect();
    play.commit("g", &many);
    play.appends_at_once = false;
    let asked = play.delete("g");
    assert!(play.waiting.len() > 2);
    play.fail(ErrorCode::NotEnoughReplicas);
    play.land_all();
    assert_eq!(play.deleted[&asked], ErrorCode::CoordinatorNotAvailable);
    assert!(!play.offsets("g").is_empty());
    play.check_log();
    let asked = play.delete("g");
    play.land_all();
    assert_eq!(play.deleted[&asked], ErrorCode::None);
    assert_eq!(play.offsets("g"), []);
    play.check_log();
}

#[test]
fn offsets_expire_when_nobody_can_be_using_them() {
    let mut play = Play::new();
    let day = 24 * 3600 * SECOND;
    // A simple group: from the commit.
    play.commit("simple", &[("t", 0, 1)]);
    play.pass(day / 2);
    play.commit("simple", &[("t", 1, 1)]);
    play.pass(day / 2);
    play.expire();
    assert_eq!(play.offsets("simple"), [offset("t", 1, 1)]);
    play.pass(day / 2);
    play.expire();
    assert_eq!(play.states(&[], &[]), [], "nothing is left of it");

    // A group that was used: since nobody is in it.
    let id = play.stable("g", "consumer", &["t"]);
    let mut request = commit("g", &[("t", 0, 1), ("u", 0, 1)]);
    (request.member_id, request.generation_id_or_member_epoch) = (id.clone(), 1);
    play.commit_as(request);
    for _ in 0..day / (5 * SECOND) {
        play.pass(5 * SECOND);
        assert_eq!(play.beat("g", &id, 1), ErrorCode::None);
    }
    play.expire();
    assert_eq!(play.offsets("g"), [offset("t", 0, 1)], "nobody is subscribed to the other");
    play.leave("g", &id);
    play.pass(day - SECOND);
    play.expire();
    assert_eq!(play.offsets("g").len(), 1);
    let mut loaded = Play::of(play.reloaded());
    (loaded.now, loaded.log, loaded.end) = (play.now, play.log.clone(), play.end);
    loaded.coordinator.loaded(&loaded.rules, loaded.now);
    loaded.pass(SECOND);
    loaded.expire();
    assert_eq!(loaded.states(&[], &[]), [], "a restart does not make it younger");
    loaded.check_log();
    play.pass(SECOND);
    play.expire();
    assert_eq!(play.states(&[], &[]), []);
    play.check_log();
}

#[test]
fn a_commit_may_say_itself_when_it_expires() {
    let mut play = Play::new();
    let mut request = commit("g", &[("t", 0, 1)]);
    request.retention_time_ms = HOUR_MS;
    play.version = 4;
    play.commit_as(request);
    play.commit("g", &[("t", 1, 1)]);
    play.pass(3599 * SECOND);
    play.expire();
    assert_eq!(play.offsets("g").len(), 2);
    play.pass(SECOND);
    play.expire();
    assert_eq!(play.offsets("g"), [offset("t", 1, 1)]);
    play.check_log();
}

#[test]
fn an_offset_that_is_being_committed_does_not_expire() {
    let mut play = Play::new();
    play.commit("g", &[("t", 0, 1), ("t", 1, 1)]);
    play.pass(24 * 3600 * SECOND);
    play.appends_at_once = false;
    play.commit("g", &[("t", 0, 2)]);
    play.expire();
    play.land_all();
    assert_eq!(play.offsets("g"), [offset("t", 0, 2)]);
    assert_eq!(play.states(&[], &[]).len(), 1);
}

#[test]
fn a_group_without_offsets_ends_when_nobody_is_in_it() {
    let mut play = Play::new();
    let id = play.stable("g", "consumer", &["t"]);
    play.expire();
    assert_eq!(play.states(&[], &[])[0].2, "Stable");
    play.leave("g", &id);
    let joins = play.join("g", "", "consumer", subscription(&["t"]));
    let promised = play.joined(joins).member_id.clone();
    play.expire();
    assert_eq!(play.states(&[], &[])[0].2, "Empty", "somebody is about to join");
    play.leave("g", &promised);
    play.appends_at_once = false;
    play.expire();
    play.expire();
    assert_eq!(play.waiting.len(), 1, "once is enough");
    play.land_all();
    assert_eq!(play.states(&[], &[]), []);
    assert_eq!(play.coordinator.live().first(), None);
    play.check_log();
}

#[test]
fn expiry_goes_through_the_groups_in_slices() {
    let mut play = Play::new();
    for name in ["a", "b", "c", "d", "e"] {
        play.commit(name, &[("t", 0, 1)]);
    }
    play.pass(48 * 3600 * SECOND);
    let (mut after, mut slices) = (None, 0);
    loop {
        after = play.coordinator.expire(&play.rules, play.now, after.as_ref(), 2);
        play.settle();
        slices += 1;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(slices, 3);
    assert_eq!(play.states(&[], &[]), []);
}

#[test]
fn offsets_of_a_deleted_topic_go_and_those_of_the_next_of_its_name_stay() {
    let mut play = Play::new();
    let mut request = commit("g", &[("t", 0, 1), ("t", 1, 1), ("u", 0, 1)]);
    request.topics[0].topic_id = Uuid::from_u128(1);
    request.topics[1].topic_id = Uuid::from_u128(2);
    play.commit_as(request);
    play.commit("by name", &[("t", 0, 1)]);
    play.coordinator.forget_topic("t", Uuid::from_u128(1));
    play.settle();
    assert_eq!(play.offsets("g"), [offset("t", 1, 1), offset("u", 0, 1)]);
    assert_eq!(play.offsets("by name"), []);
    play.check_log();
}

#[test]
fn the_log_may_be_trimmed_when_what_still_counts_was_written_anew() {
    let mut play = Play::new();
    play.stable("g", "consumer", &["t"]);
    for it in 0..100 {
        play.commit("simple", &[("t", it % 3, i64::from(it))]);
    }
    let (keys, _) = play.coordinator.live().size();
    assert_eq!(keys, 4);
    assert!(play.log.len() > 100);
    let end = play.end;
    let before = play.offsets("simple");
    let mut slices = 0;
    while play.coordinator.renew(end, 50).is_some() {
        play.settle();
        slices += 1;
    }
    assert!(slices > 1, "in slices of few bytes");
    assert_eq!(play.coordinator.live().first(), Some(end));
    play.trim();
    assert_eq!(play.log.len(), 4);
    assert_eq!(play.offsets("simple"), before);
    play.check_log();
    // Again and again: nothing is left where only tombstones were written.
    play.delete("simple");
    play.trim();
    play.check_log();
}

#[test]
fn what_is_written_anew_never_undoes_a_newer_value() {
    let mut play = Play::new();
    play.commit("g", &[("t", 0, 1), ("t", 1, 1), ("t", 2, 1)]);
    play.appends_at_once = false;
    // Under way before: left out.
    play.commit("g", &[("t", 0, 2)]);
    play.delete_offsets("g", "t", 1);
    assert!(play.coordinator.renew(play.end, 1000).is_some());
    assert!(play.coordinator.renew(play.end, 1000).is_none(), "once is enough");
    play.settle();
    // Comes after: lands after.
    play.commit("g", &[("t", 2, 2)]);
    play.land_all();
    assert_eq!(play.offsets("g"), [offset("t", 0, 2), offset("t", 2, 2)]);
    play.check_log();
    // What could not be written anew is tried again, and holds the trim up until then.
    let first = play.coordinator.live().first();
    assert!(play.coordinator.renew(play.end, 1000).is_some());
    play.settle();
    play.fail(ErrorCode::NotEnoughReplicas);
    assert_eq!(play.coordinator.live().first(), first);
    assert!(play.coordinator.renew(play.end, 1000).is_some());
}

#[test]
fn all_that_waits_is_answered_when_groups_are_coordinated_elsewhere() {
    let mut play = Play::new();
    play.appends_at_once = false;
    let commits = play.commit("g", &[("t", 0, 1), ("missing", 0, 1)]);
    let fetches = play.fetch_as("g", Some(&[("t", 0, 0)]));
    let deletes = play.delete_offsets("g", "t", 0);
    let group = play.delete("g");
    let asked = play.join("members", "", "consumer", subscription(&["t"]));
    let id = play.joined(asked).member_id.clone();
    let joins = play.join("members", &id, "consumer", subscription(&["t"]));
    play.coordinator.unload();
    play.settle();
    let gone = ErrorCode::NotCoordinator;
    assert_eq!(play.committed(commits), [gone, ErrorCode::UnknownTopicOrPartition]);
    let told = &play.fetched[&fetches];
    assert_eq!(code_of(told.error_code), gone);
    assert_eq!(code_of(told.topics[0].partitions[0].error_code), gone, "older clients look here");
    assert_eq!(play.deleted_offset(deletes), gone);
    assert_eq!(play.deleted[&group], gone);
    assert_eq!(code_of(play.joined(joins).error_code), gone);
    assert_eq!(play.coordinator.deadline_us(), None);
    // What becomes of the appends is no news any more, even if the log is read again.
    play.commit("g", &[("t", 0, 9)]);
    let (ticket, ..) = play.waiting.pop_front().expect("an old one");
    play.coordinator.on_appended(ticket, Ok(0), play.now);
    play.settle();
    assert_eq!(play.coordinator.live().size().0, 0);
}

#[test]
fn deadlines_are_those_of_the_members_whoever_is_heard_of() {
    let mut play = Play::new();
    let ids: Vec<String> =
        (0..20).map(|it| play.stable(&format!("g{it}"), "consumer", &["t"])).collect();
    assert_eq!(play.coordinator.due.len(), 20);
    play.pass(5 * SECOND);
    for (it, id) in ids.iter().enumerate() {
        if it % 2 == 0 {
            assert_eq!(play.beat(&format!("g{it}"), id, 1), ErrorCode::None);
        }
    }
    play.pass(6 * SECOND);
    assert_eq!(play.states(&["Stable"], &[]).len(), 10);
    assert_eq!(play.coordinator.due.len(), 10);
    play.pass(6 * SECOND);
    assert_eq!(play.states(&["Stable"], &[]).len(), 0);
    assert_eq!(play.coordinator.deadline_us(), None);
}

#[test]
fn a_group_that_never_came_to_be_is_forgotten() {
    let mut play = Play::new();
    let mut ids = Vec::new();
    for it in 0..10 {
        let joins = play.join(&format!("g{it}"), "", "consumer", subscription(&["t"]));
        ids.push(play.joined(joins).member_id.clone());
    }
    assert_eq!(play.coordinator.groups.len(), 10);
    play.pass(11 * SECOND);
    assert_eq!(play.coordinator.groups.len(), 0, "nobody came back with the promised ids");
    let joins = play.join("g", "", "", subscription(&["t"]));
    assert_eq!(code_of(play.joined(joins).error_code), ErrorCode::InconsistentGroupProtocol);
    assert_eq!(play.coordinator.groups.len(), 0);
    assert!(play.log.is_empty() && play.coordinator.due.len() == 0);
}
