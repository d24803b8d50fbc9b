//! Rules that need a rare order of events: each has its own.

use duramen_storage::op::Stretch;
#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::{Bug, plant};

use super::witness::Batch;
use super::{LONG_TICKS, Sent, World};
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

/// Elects replica 3, which is no member, while replica 1 is cut off.
fn elect_outsider(world: &mut World) {
    world.links.clear();
    world.cut = Some(1);
    // The member grants a vote once it has not heard its leader for long.
    world.tick(MEMBER, LONG_TICKS);
    for _ in 0..60 {
        world.tick(2, 1);
        let sent: Vec<Sent> = std::mem::take(&mut world.links).into_values().flatten().collect();
        for sent in sent {
            world.deliver(sent);
        }
        for at in 0..3 {
            world.sync(at, usize::MAX);
            world.read(at);
        }
    }
    assert!(world.replicas[2].partition.obstacle().is_none(), "replica 3 serves");
}

#[test]
fn a_batch_of_a_forgotten_producer_does_not_come_back() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, MEMBER, stretch, FIRST);
    hold(&mut world, 0, stretch, FIRST);
    // Replica 3 has all entries, and the member none of them.
    let commit = |world: &mut World| {
        for _ in 0..20 {
            world.links.remove(&(1, 2));
            for link in [(1, 3), (3, 1)] {
                let sent = world.links.remove(&link).unwrap_or_default();
                for sent in sent {
                    world.deliver(sent);
                }
            }
            world.sync(0, usize::MAX);
            world.sync(2, usize::MAX);
            world.tick(0, 2);
        }
    };
    commit(&mut world);
    assert_eq!(world.replicas[0].partition.committed(), 1);
    let now = world.now();
    assert!(world.replicas[0].partition.expire_producers(now, u64::MAX));
    world.turn(0);
    commit(&mut world);
    assert_eq!(world.replicas[0].partition.producers_len(), 0, "the producer is forgotten");
    elect_outsider(&mut world);
    world.rest();
}

#[test]
fn a_former_leader_whose_batch_is_damaged_follows_the_next_one() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, 0, stretch, FIRST);
    hold(&mut world, 0, stretch, SECOND);
    elect_outsider(&mut world);
    world.is_damaged = true;
    world.rest();
    let logs = [0, 1, 2].map(|at| world.replicas[at].log());
    assert!(logs.iter().all(Vec::is_empty), "nobody else had them, and they were not complete");
}

#[test]
fn an_offer_that_comes_late_brings_no_refused_batch() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, MEMBER, stretch, FIRST);
    world.replicas[MEMBER].partition.offer_holds();
    assert!(world.replicas[MEMBER].partition.offer_holds(), "the batch was held at the last look");
    let offers = world.replicas[MEMBER].partition.take_said();
    world.refuse_batch(0, stretch, FIRST);
    world.turn(0);
    world.rest();
    for said in offers {
        world.deliver(Sent::Said { from: 2, to: 1, said });
    }
    world.turn(0);
    world.rest();
}

#[test]
fn a_batch_that_only_a_follower_has_comes_to_the_log() {
    let (mut world, stretch) = in_stretch();
    let held = hold(&mut world, MEMBER, stretch, FIRST);
    assert!(held > 0);
    world.rest();
    assert_eq!(world.replicas[0].log(), [FIRST]);
    assert_eq!(world.replicas[MEMBER].partition.held_bytes(), 0, "at rest no hold is left");
}

/// Tells whether a test fails with a planted bug.
#[cfg(feature = "sabotage")]
pub(super) fn find(bug: Bug) -> bool {
    let tests = [
        a_hold_stays_while_its_entry_is_not_committed,
        a_hold_stays_while_the_next_stretch_is_not_committed,
        each_stretch_has_holds_of_its_own,
        a_member_that_gives_its_list_holds_nothing_more_and_has_the_term_on_its_disk,
        a_batch_of_a_forgotten_producer_does_not_come_back,
        an_offer_that_comes_late_brings_no_refused_batch,
    ];
    plant(Some(bug));
    let found = tests.into_iter().any(|test| std::panic::catch_unwind(test).is_err());
    plant(None);
    found
}
