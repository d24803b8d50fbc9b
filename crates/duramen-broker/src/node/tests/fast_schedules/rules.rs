//! Rules that need a rare order of events: each has its own.

use duramen_storage::op::Stretch;
#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::{Bug, plant};

use super::witness::Batch;
use super::{Sent, World};
use crate::partition::fast_state::{Said, Wanted};

const FIRST: Batch = Batch { producer: 7, sequence: 0 };
const SECOND: Batch = Batch { producer: 7, sequence: 1 };
/// Place of the follower that is a member.
const MEMBER: usize = 1;

/// Replica 1 leads, and has a stretch with replica 2.
fn in_stretch() -> (World, Stretch) {
    let mut world = World::new(3, 1);
    let stretch = open(&mut world);
    world.rest();
    (world, stretch)
}

fn open(world: &mut World) -> Stretch {
    let stretch = world.replicas[0].partition.open_with(vec![1, 2]).expect("replica 1 leads");
    world.turn(0);
    stretch
}

/// Sends a batch to a replica. Returns the bytes that the replica holds then.
fn hold(world: &mut World, at: usize, stretch: Stretch, batch: Batch) -> usize {
    world.witness.send(batch);
    world.append(at, stretch, batch);
    world.sync(at, usize::MAX);
    world.replicas[at].partition.held_bytes()
}

/// Lets the member hear its leader, which hears nothing.
fn hear_leader(world: &mut World) {
    world.sync(0, usize::MAX);
    let sent = world.links.remove(&(1, 2)).unwrap_or_default();
    for letter in sent {
        world.deliver(letter);
    }
    world.sync(MEMBER, usize::MAX);
}

#[test]
fn a_hold_stays_while_its_entry_is_not_committed() {
    let (mut world, stretch) = in_stretch();
    let held = hold(&mut world, MEMBER, stretch, FIRST);
    assert_eq!(hold(&mut world, 0, stretch, FIRST), 0, "the leader holds nothing");
    hear_leader(&mut world);
    assert_eq!(world.replicas[MEMBER].log(), [FIRST]);
    assert_eq!(world.replicas[MEMBER].partition.held_bytes(), held);
    world.rest();
    assert_eq!(world.replicas[MEMBER].partition.held_bytes(), 0);
}

#[test]
fn a_hold_stays_while_the_next_stretch_is_not_committed() {
    let (mut world, stretch) = in_stretch();
    let held = hold(&mut world, MEMBER, stretch, FIRST);
    open(&mut world);
    hear_leader(&mut world);
    assert_eq!(world.replicas[MEMBER].partition.held_bytes(), held);
    world.rest();
    assert_eq!(world.replicas[MEMBER].partition.held_bytes(), 0);
}

#[test]
fn each_stretch_has_holds_of_its_own() {
    let (mut world, stretch) = in_stretch();
    let held = hold(&mut world, MEMBER, stretch, FIRST);
    let next = open(&mut world);
    hear_leader(&mut world);
    assert_eq!(hold(&mut world, MEMBER, next, SECOND), held, "the batch before it is not there");
    assert_eq!(hold(&mut world, MEMBER, next, FIRST), 2 * held);
    assert_eq!(hold(&mut world, MEMBER, next, SECOND), 3 * held);
    assert_eq!(hold(&mut world, MEMBER, stretch, SECOND), 3 * held, "a stretch that is over");
}

#[test]
fn a_member_that_gives_its_list_holds_nothing_more_and_has_the_term_on_its_disk() {
    let (mut world, stretch) = in_stretch();
    let held = hold(&mut world, MEMBER, stretch, FIRST);
    let term = stretch.term + 1;
    let wanted = Wanted { leader: 3, term, stretch, after: 0 };
    world.replicas[MEMBER].partition.on_holds_wanted(wanted);
    world.turn(MEMBER);
    let has_given = |world: &World| {
        let sent = world.links.get(&(2, 3)).into_iter().flatten();
        let is_given = |sent: &Sent| matches!(sent, Sent::Said { said: Said::Given(_), .. });
        sent.into_iter().any(is_given)
    };
    assert!(!has_given(&world), "its disk does not have the term");
    assert_eq!(hold(&mut world, MEMBER, stretch, SECOND), held);
    assert!(has_given(&world));
}

/// Tells whether a test fails with a planted bug.
#[cfg(feature = "sabotage")]
pub(super) fn find(bug: Bug) -> bool {
    let tests = [
        a_hold_stays_while_its_entry_is_not_committed,
        a_hold_stays_while_the_next_stretch_is_not_committed,
        each_stretch_has_holds_of_its_own,
        a_member_that_gives_its_list_holds_nothing_more_and_has_the_term_on_its_disk,
    ];
    plant(Some(bug));
    let found = tests.into_iter().any(|test| std::panic::catch_unwind(test).is_err());
    plant(None);
    found
}
