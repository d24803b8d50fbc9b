//! # Room card: reconcile
//!
//! Purpose:    the next step of one member on its way from its assignment to its target.
//! Owns:       the rule: first the member revokes partitions, then its epoch rises, then it gets the partitions that no
//!             other member has.
//! Interface:  [`step`].
//! Invariants: no member gets a partition that another member has, or has not yet reported as revoked.
//! Never:      records, time, other members' targets.
//! Tests:      `coordinator/tests/consumers.rs`, by scenario and by chance.
//! Start at:   [`step`].

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_protocol::messages::consumer_group_heartbeat::TopicPartitions;
use duramen_protocol::wire::Uuid;
use duramen_storage::sabotage::{self, Bug};

use super::view::{Current, Owned, Stage, View};

/// State of the group at a heartbeat of a member.
pub(super) struct Step<'a> {
    pub view: &'a View,
    pub id: &'a Arc<str>,
    /// The topics that it is subscribed to.
    pub subscribed: &'a BTreeSet<Uuid>,
    /// Flag that the subscribed topics have changed with this heartbeat.
    pub has_changed: bool,
    /// Partitions that the member names; `None` if it named none.
    pub owned: Option<&'a [TopicPartitions]>,
}

/// Returns the member's new assignment, if it changes.
pub(super) fn step(it: &Step<'_>) -> Option<Current> {
    let member = &it.view.members[it.id];
    let before = &member.current;
    let next = match before.stage {
        Stage::Stable if before.epoch != it.view.target_epoch => advance(it, before.epoch),
        Stage::Stable if it.has_changed => shed(it, before),
        Stage::Stable => return None,
        Stage::Revoking if still_has(it.owned, &before.revoking) => {
            if !it.has_changed {
                return None;
            }
            shed(it, before)
        }
        Stage::Revoking | Stage::Waiting => advance(it, before.epoch),
        Stage::Unknown => advance(it, it.view.target_epoch),
    };
    // An epoch that does not rise is no reason to write.
    let is_same = (next.epoch, next.stage) == (before.epoch, before.stage)
        && next.assigned == before.assigned
        && next.revoking == before.revoking;
    assert!(next.epoch >= before.epoch, "{}: {} follows {}", it.id, next.epoch, before.epoch);
    let is_told = next.revoking.is_empty() || next.stage == Stage::Revoking;
    assert!(is_told, "{} has yet to revoke partitions, in {:?}", it.id, next.stage);
    debug_assert!(
        next.assigned.iter().all(|(topic, parts)| {
            let revoking = next.revoking.get(topic);
            revoking.is_none_or(|it| parts.keys().all(|part| !it.contains_key(part)))
        }),
        "a partition that {} revokes is not assigned to it",
        it.id
    );
    (!is_same).then_some(next)
}

/// Tells whether a member still reports one of these partitions as its own. A heartbeat without a report counts as yes.
fn still_has(owned: Option<&[TopicPartitions]>, revoking: &Owned) -> bool {
    let Some(owned) = owned else { return true };
    owned.iter().any(|topic| {
        let revoking = revoking.get(&topic.topic_id);
        revoking.is_some_and(|it| topic.partitions.iter().any(|part| it.contains_key(part)))
    })
}

/// Takes away the partitions of topics that the member is no longer subscribed to, and leaves all else as it is.
fn shed(it: &Step<'_>, before: &Current) -> Current {
    let mut next = before.clone();
    for (topic, partitions) in &before.assigned {
        if !it.subscribed.contains(topic) {
            next.assigned.remove(topic);
            next.revoking.entry(*topic).or_default().extend(partitions);
        }
    }
    if next.assigned == before.assigned {
        return next;
    }
    if still_has(it.owned, &next.revoking) {
        (next.previous, next.stage) = (next.epoch, Stage::Revoking);
    } else {
        next.revoking.clone_from(&before.revoking);
        next.previous = next.epoch;
    }
    next
}

/// Returns the assignment one step nearer to the target.
fn advance(it: &Step<'_>, epoch: i32) -> Current {
    let member = &it.view.members[it.id];
    let before = &member.current;
    let wanted = |topic: &Uuid| member.target.get(topic).filter(|_| it.subscribed.contains(topic));
    let (mut assigned, mut revoking) = (Owned::new(), Owned::new());
    for (topic, partitions) in &before.assigned {
        let target = wanted(topic);
        for (part, since) in partitions {
            let stays = target.is_some_and(|target| target.binary_search(part).is_ok());
            let to = if stays { &mut assigned } else { &mut revoking };
            to.entry(*topic).or_default().insert(*part, *since);
        }
    }
    if !revoking.is_empty() && still_has(it.owned, &revoking) {
        let stage = Stage::Revoking;
        return Current { epoch, previous: before.epoch, stage, assigned, revoking };
    }
    let target_epoch = it.view.target_epoch;
    let mut stage = Stage::Stable;
    for (topic, partitions) in member.target.iter().filter(|(topic, _)| wanted(topic).is_some()) {
        let had = before.assigned.get(topic);
        for part in partitions {
            if had.is_some_and(|had| had.contains_key(part)) {
                continue;
            }
            // A partition that the member itself was to revoke is still its own: no other member can have it.
            let is_free = it.view.owner(*topic, *part).is_none_or(|owner| owner == it.id);
            if is_free || sabotage::is(Bug::GivenBeforeFreed) {
                assigned.entry(*topic).or_default().insert(*part, target_epoch);
            } else {
                stage = Stage::Waiting;
            }
        }
    }
    let revoking = Owned::new();
    Current { epoch: target_epoch, previous: before.epoch, stage, assigned, revoking }
}
