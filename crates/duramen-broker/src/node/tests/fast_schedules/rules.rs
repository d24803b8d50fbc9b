//! Rules that need a rare order of events: each has its own.

use bytes::Bytes;
use duramen_protocol::BatchHeader;
use duramen_protocol::batch::TimestampType;
use duramen_storage::op::Stretch;
#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::{Bug, plant};

use super::witness::Batch;
use super::{LONG_TICKS, Sent, World, bytes_of, bytes_with};
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

/// Returns the payload of a replica's log.
fn payload(world: &World, at: usize) -> Vec<Bytes> {
    world.replicas[at].ahead.replicas.values().next().expect("one").batches(0, i64::MAX)
}

#[test]
fn a_letter_leaves_out_what_its_receiver_holds() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, MEMBER, stretch, FIRST);
    hold(&mut world, 0, stretch, FIRST);
    assert!(world.carried.1 > 0, "a letter to the member is brief");
    let carried = world.carried;
    hear_leader(&mut world);
    assert_eq!(world.replicas[MEMBER].log(), [FIRST]);
    world.rest();
    assert_eq!(world.carried, carried, "nothing had to be sent again");
    assert_eq!(carried.0 as u64, carried.1, "the outsider has got a whole letter");
    assert_eq!(payload(&world, MEMBER), payload(&world, 0));
}

#[test]
fn a_letter_waits_for_the_copy_of_the_client() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, 0, stretch, FIRST);
    hold(&mut world, 0, stretch, SECOND);
    let carried = world.carried;
    hear_leader(&mut world);
    world.tick(MEMBER, 1);
    assert!(world.replicas[MEMBER].log().is_empty());
    hold(&mut world, MEMBER, stretch, FIRST);
    assert_eq!(world.replicas[MEMBER].log(), [FIRST]);
    hold(&mut world, MEMBER, stretch, SECOND);
    assert_eq!(world.replicas[MEMBER].log(), [FIRST, SECOND]);
    world.rest();
    assert_eq!(world.carried, carried, "nothing had to be sent again");
    assert_eq!(payload(&world, MEMBER), payload(&world, 0));
}

#[test]
fn a_batch_whose_copy_for_a_member_is_lost_comes_from_the_leader() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, 0, stretch, FIRST);
    for _ in 0..10 {
        hear_leader(&mut world);
        let sent = world.links.remove(&(2, 1)).unwrap_or_default();
        for letter in sent {
            world.deliver(letter);
        }
        world.tick(0, 1);
        world.tick(MEMBER, 1);
    }
    assert_eq!(world.replicas[MEMBER].log(), [FIRST]);
    assert_eq!(payload(&world, MEMBER), payload(&world, 0));
    let (_, left_out) = world.carried;
    hold(&mut world, 0, stretch, SECOND);
    assert_eq!(world.carried.1, left_out, "for a while the member gets whole letters");
}

#[test]
fn a_letter_that_comes_again_needs_nothing_that_is_no_longer_held() {
    let (mut world, stretch) = in_stretch();
    hold(&mut world, MEMBER, stretch, FIRST);
    hold(&mut world, 0, stretch, FIRST);
    let again = world.links[&(1, 2)].clone();
    world.rest();
    assert_eq!(world.replicas[MEMBER].partition.held_bytes(), 0);
    for letter in again {
        world.deliver(letter);
    }
    assert!(!world.replicas[MEMBER].partition.group.has_late(), "the log has the entry");
}

#[test]
fn a_member_that_holds_another_batch_gets_the_leaders() {
    let (mut world, stretch) = in_stretch();
    let other = bytes_with(FIRST, "8/0");
    assert_eq!(other.len(), bytes_of(FIRST).len());
    world.append_bytes(MEMBER, stretch, FIRST, other);
    world.sync(MEMBER, usize::MAX);
    hold(&mut world, 0, stretch, FIRST);
    hear_leader(&mut world);
    world.rest();
    assert_eq!(world.replicas[MEMBER].log(), [FIRST]);
    assert_eq!(payload(&world, MEMBER), payload(&world, 0));
}

#[test]
fn a_member_makes_the_time_of_append_from_its_entry() {
    let (mut world, stretch) = in_stretch();
    let mut settings = (*world.settings).clone();
    settings.log_append_time = true;
    let settings = std::sync::Arc::new(settings);
    for replica in &mut world.replicas {
        replica.partition.settings = std::sync::Arc::clone(&settings);
    }
    hold(&mut world, MEMBER, stretch, FIRST);
    hold(&mut world, 0, stretch, FIRST);
    let carried = world.carried;
    world.rest();
    assert_eq!(world.carried, carried, "nothing had to be sent again");
    assert_eq!(payload(&world, MEMBER), payload(&world, 0));
    let header = BatchHeader::parse(&payload(&world, MEMBER)[0]).expect("ours");
    assert_eq!(header.attributes.timestamp_type(), TimestampType::LogAppendTime);
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
        a_member_that_holds_another_batch_gets_the_leaders,
    ];
    plant(Some(bug));
    let found = tests.into_iter().any(|test| std::panic::catch_unwind(test).is_err());
    plant(None);
    found
}
