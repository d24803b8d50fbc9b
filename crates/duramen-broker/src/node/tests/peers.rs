//! What a node of three makes of frames: its own cluster's are heard, all others passed over.

use duramen_protocol::wire::Uuid;
use duramen_storage::storage::Facts;

use super::harness::{WALL_MS, settings};
use crate::controller::{Founder, METADATA_GROUP};
use crate::core::ClientListener;
use crate::event::{Action, Event, Now};
use crate::limits::{ELECTION_TICKS, GROUP_QUIET_TICKS, Memory, PEER_SILENT_TICKS, TICK_US};
use crate::metadata_records::RegisterBroker;
use crate::node::{Node, NodeOptions};
use crate::peer::{Frame, Letter, PeerFrame};

const CLUSTER: [u8; 16] = [7; 16];
const REQUEST_PRE_VOTE: i8 = 17;

fn directory(broker_id: i32) -> [u8; 16] {
    [u8::try_from(broker_id).expect("small") + 100; 16]
}

fn open(broker_id: i32, directory_id: [u8; 16]) -> (Node, Vec<Action>) {
    let voter = |peer_id: u64| {
        let broker_id = i32::try_from(peer_id).expect("small") + 10;
        Founder { peer_id, broker_id, directory_id: directory(broker_id) }
    };
    let options = NodeOptions {
        facts: Facts { cluster_id: CLUSTER, broker_id, directory_id },
        listeners: vec![ClientListener {
            name: "PLAINTEXT".to_owned(),
            host: "node.example".to_owned(),
            port: 9092,
        }],
        rack: None,
        log_dir: "/data".to_owned(),
        settings: settings(&[]),
        seed: 5,
        kinds: crate::KINDS,
        secret: [5; 32],
        first_users: Vec::new(),
        bytes_in_flight_max: 1 << 20,
        metadata_tail: Vec::new(),
        node_address: None,
        native_address: None,
        founders: (1..=3).map(voter).collect(),
        memory: Memory::default(),
        introduced: Vec::new(),
        replaces: false,
        quiet_ticks: GROUP_QUIET_TICKS,
    };
    let mut actions = Vec::new();
    let node = Node::open(options, Vec::new(), now(0), &mut actions);
    (node, actions)
}

fn now(mono_us: u64) -> Now {
    Now { mono_us, wall_ms: WALL_MS }
}

/// Peer 2, which is node 12, asks peer 1, which is node 11, whether it would vote for it.
fn question() -> Frame {
    let letter = Letter {
        topic_id: Uuid(METADATA_GROUP.topic_id),
        kind: REQUEST_PRE_VOTE,
        from: 2,
        to: 1,
        term: 2,
        log_term: 1,
        index: 1,
        ..Letter::default()
    };
    Frame {
        cluster_id: Uuid(CLUSTER),
        broker_id: 12,
        directory_id: Uuid(directory(12)),
        incarnation: 8,
        number: 1,
        letters: vec![letter],
        ..Frame::default()
    }
}

/// What node 11 answers to a frame.
fn answers(frame: Frame) -> (Vec<Letter>, u64) {
    let (mut node, _) = open(11, directory(11));
    let mut actions = Vec::new();
    node.step(now(1), Event::Peer(Box::new(PeerFrame(frame))), &mut actions);
    node.flush(now(1), &mut actions);
    let frames = actions.into_iter().filter_map(|action| match action {
        Action::Send { to: 12, frame } => Some(frame.0),
        _ => None,
    });
    let letters = frames.flat_map(|frame| frame.letters).collect();
    (letters, node.metrics().foreign_frames + node.metrics().foreign_letters)
}

#[test]
fn a_voter_is_answered() {
    let (letters, foreign) = answers(question());
    assert_eq!((letters.len(), foreign), (1, 0));
    assert_eq!((letters[0].from, letters[0].to, letters[0].reject), (1, 2, false));
}

#[test]
fn nobody_votes_in_the_name_of_a_directory_that_was_wiped() {
    let frame = Frame { directory_id: Uuid([1; 16]), ..question() };
    assert_eq!(answers(frame), (Vec::new(), 2), "neither the frame nor the letter is the node's");
}

#[test]
fn frames_of_other_clusters_and_other_replicas_are_passed_over() {
    let frame = Frame { cluster_id: Uuid([8; 16]), ..question() };
    assert_eq!(answers(frame), (Vec::new(), 1), "another cluster");
    let letter = |change: fn(&mut Letter)| {
        let mut frame = question();
        change(&mut frame.letters[0]);
        answers(frame).0.is_empty()
    };
    assert!(letter(|letter| letter.to = 3), "for another replica");
    assert!(letter(|letter| letter.from = 3), "of a replica that is elsewhere");
    assert!(letter(|letter| letter.partition = 1), "of a group that is not there");
    assert!(letter(|letter| letter.kind = 2), "a proposal does not travel");
    assert!(letter(|letter| letter.kind = 7), "nor does a snapshot, yet");
    let frame = Frame { broker_id: 99, ..question() };
    assert!(answers(frame).0.is_empty(), "of a node that nobody knows");
}

/// To whom a node has something to say about groups, if nobody says anything to it; and who is asked to register it.
fn said_in_silence(broker_id: i32, directory_id: [u8; 16]) -> (Vec<i32>, Vec<i32>) {
    let (mut node, actions) = open(broker_id, directory_id);
    assert!(!actions.iter().any(|action| matches!(action, Action::Fatal(_))));
    let (mut letters, mut registrations) = (Vec::new(), Vec::new());
    for tick in 1..=2 * ELECTION_TICKS as u64 {
        let at = now(tick * TICK_US);
        assert!(node.deadline() <= at.mono_us, "it wants to be woken");
        let mut actions = Vec::new();
        node.step(at, Event::Tick, &mut actions);
        node.flush(at, &mut actions);
        for action in actions {
            let Action::Send { to, frame } = action else { continue };
            letters.extend((!frame.0.letters.is_empty()).then_some(to));
            registrations.extend((!frame.0.registrations.is_empty()).then_some(to));
        }
    }
    (letters, registrations)
}

#[test]
fn a_silent_cluster_is_asked_for_votes_in_time() {
    let (asked, _) = said_in_silence(11, directory(11));
    assert!(asked.contains(&12) && asked.contains(&13), "{asked:?}");
}

#[test]
fn whoever_is_no_founder_asks_to_be_registered_and_never_for_votes() {
    for (broker_id, directory_id, others) in
        [(11, [3; 16], vec![12, 13]), (99, directory(99), vec![11, 12, 13])]
    {
        let (asked, registrars) = said_in_silence(broker_id, directory_id);
        assert!(asked.is_empty(), "{asked:?}");
        assert!(others.iter().all(|it| registrars.contains(it)), "{registrars:?}");
    }
}

#[test]
fn who_hears_no_majority_calls_nobody_gone() {
    let told = |hears: &[i32]| {
        let (mut node, mut actions) = open(11, directory(11));
        for broker_id in 11..=13 {
            let directory_id = Uuid(directory(broker_id));
            let broker = RegisterBroker { broker_id, directory_id, ..RegisterBroker::default() };
            node.core.controller.image.brokers.insert(broker_id, broker);
        }
        for tick in 1..=2 * PEER_SILENT_TICKS {
            for &broker_id in hears {
                let directory_id = Uuid(directory(broker_id));
                let frame = Frame {
                    broker_id,
                    directory_id,
                    number: tick,
                    letters: Vec::new(),
                    ..question()
                };
                let heard = Event::Peer(Box::new(PeerFrame(frame)));
                node.step(now(tick * TICK_US), heard, &mut actions);
            }
            node.step(now(tick * TICK_US), Event::Tick, &mut actions);
            node.flush(now(tick * TICK_US), &mut actions);
        }
        node.core.live_brokers().map(|(id, _)| id).collect::<Vec<i32>>()
    };
    assert_eq!(told(&[12, 13]), [11, 12, 13]);
    assert_eq!(told(&[12]), [11, 12], "13 is gone");
    assert_eq!(told(&[]), [11, 12, 13], "11 is cut off");
}
