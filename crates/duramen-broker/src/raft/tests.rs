//! Three groups that exchange messages, and disks that take their time.

use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_storage::op::{Compacted, Identity, LogEntry};

use super::*;
use crate::partition::stamp;

const VOTERS: [u64; 3] = [1, 2, 3];

struct Peer {
    group: Group,
    unsynced: VecDeque<u64>,
    log: Vec<LogEntry>,
    payloads: BTreeMap<i64, Bytes>,
    reads: Vec<PayloadRead>,
    applied: Vec<LogEntry>,
    /// Index and term of what it proposed, and of what it was told of others' entries.
    known: Vec<(u64, u64)>,
    /// The index before the first of these, and the image that came for it.
    begun: (u64, Bytes),
}

struct Cluster {
    peers: Vec<Peer>,
    wire: VecDeque<Outgoing>,
    /// Number of lost snapshots, if all are to be lost.
    lost: Option<usize>,
    chance: Prng,
}

fn identity() -> Identity {
    Identity { topic: "t".to_owned(), topic_id: [1; 16], partition: 0 }
}

fn batch(group: &Group, value: &str) -> (Descriptor, Bytes) {
    let mut builder = BatchBuilder::new();
    let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
    builder.push(&record).expect("a record");
    let bytes = builder.build_mut().expect("a batch");
    let bytes = stamp(bytes, group.end_offset(), group.epoch());
    (Descriptor::of_batch(&bytes, group.end_offset() == 0).expect("a batch"), bytes)
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let peer = |id: &u64| Peer {
            group: Group::create(ReplicaId(*id), identity(), &VOTERS, seed),
            unsynced: VecDeque::new(),
            log: Vec::new(),
            payloads: BTreeMap::new(),
            reads: Vec::new(),
            applied: Vec::new(),
            known: Vec::new(),
            begun: (BORN_INDEX, Bytes::new()),
        };
        Self {
            peers: VOTERS.iter().map(peer).collect(),
            wire: VecDeque::new(),
            lost: None,
            chance: Prng::stream(seed, 77),
        }
    }

    fn collect(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        let turn = peer.group.collect();
        for op in turn.ops {
            match op {
                OpKind::Create { ticket, .. } => peer.unsynced.push_back(ticket),
                OpKind::Write { ticket, appends, .. } => {
                    peer.unsynced.push_back(ticket);
                    for append in appends {
                        let entry = append.entry;
                        peer.log.retain(|held| held.index < entry.index);
                        if let Content::Batch(batch) = &entry.content {
                            assert!(batch.matches(&append.payload));
                            peer.payloads.insert(batch.base_offset, append.payload.clone());
                        }
                        peer.log.push(entry);
                    }
                }
                OpKind::Reset(_) => peer.log.clear(),
                OpKind::Conf { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if let Some(first) = turn.cut {
            peer.known.retain(|it| it.0 < first);
        }
        if let Some(beginning) = turn.begun {
            peer.known.clear();
            peer.applied.clear();
            peer.begun = (beginning.index, beginning.image);
        }
        for snapshot in turn.snapshots {
            self.wire.extend(peer.group.with_image(snapshot, Bytes::from_static(b"view"), 0));
        }
        peer.known.extend(turn.appended.iter().map(|entry| (entry.index, entry.term)));
        let log = peer.log.iter().map(|entry| (entry.index, entry.term));
        assert!(log.eq(peer.known.iter().copied()), "a turn tells which entries the log has");
        peer.applied.extend(turn.committed);
        peer.reads.extend(turn.reads);
        self.wire.extend(turn.messages);
    }

    /// One thing happens somewhere: a message arrives or is lost, or a sync returns.
    fn step(&mut self, loss: u64) -> bool {
        let at = usize::try_from(self.chance.below(3)).expect("small");
        if self.chance.below(2) == 0
            && let Some(ticket) = self.peers[at].unsynced.pop_front()
        {
            self.peers[at].group.on_persisted(ticket);
            self.collect(at);
            return true;
        }
        let Some(Outgoing { message, payloads, .. }) = self.wire.pop_front() else {
            return self.peers.iter().any(|peer| !peer.unsynced.is_empty());
        };
        if loss > 0 && self.chance.below(loss) == 0 {
            return true;
        }
        let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
        if let Some(lost) = self.lost.as_mut().filter(|_| is_snapshot) {
            *lost += 1;
            return true;
        }
        let to = usize::try_from(message.to - 1).expect("small");
        self.peers[to].group.on_message(message, payloads);
        self.collect(to);
        true
    }

    fn settle(&mut self) {
        while self.step(0) {}
    }

    /// Lets time pass for the first, and letters arrive.
    fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.peers[0].group.tick();
            self.collect(0);
            self.settle();
        }
    }

    /// Nobody hears this peer, nor is heard by it.
    fn settle_without(&mut self, id: u64) {
        loop {
            self.wire.retain(|it| it.message.to != id && it.message.from != id);
            if !self.step(0) {
                break;
            }
        }
    }

    fn elect(&mut self, at: usize) {
        self.peers[at].group.campaign();
        self.collect(at);
        self.settle();
        assert!(self.peers[at].group.is_serving());
    }

    fn propose(&mut self, at: usize, value: &str) {
        let (descriptor, payload) = batch(&self.peers[at].group, value);
        let index = self.peers[at].group.propose_batch(&descriptor, payload).expect("it leads");
        let term = self.peers[at].group.term();
        self.peers[at].known.push((index, term));
    }

    /// Logs agree where they are committed, and every index was applied once.
    fn check(&self) {
        for peer in &self.peers {
            assert_eq!(peer.group.failure(), None);
            for (expected, entry) in (peer.begun.0 + 1..).zip(&peer.applied) {
                assert_eq!(entry.index, expected);
            }
            for other in &self.peers {
                let from = peer.begun.0.max(other.begun.0);
                let one = peer.applied.iter().filter(|it| it.index > from);
                let two = other.applied.iter().filter(|it| it.index > from);
                one.zip(two).for_each(|(one, two)| assert_eq!(one, two));
            }
        }
    }
}

#[test]
fn three_voters_agree_and_offsets_are_dense() {
    let mut cluster = Cluster::new(1);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    for n in 0..20 {
        cluster.propose(0, &n.to_string());
        cluster.collect(0);
        for _ in 0..3 {
            cluster.step(0);
        }
    }
    cluster.settle();
    cluster.check();
    assert!(cluster.peers.iter().all(|peer| peer.group.end_offset() == 20));
    assert_eq!(cluster.peers[0].applied.len(), 21, "a no-op and twenty batches");
}

#[test]
fn whoever_stands_for_the_first_election_asks_again_at_the_next_tick() {
    let mut cluster = Cluster::new(3);
    cluster.peers[0].group.campaign();
    cluster.collect(0);
    cluster.settle_without(1);
    assert!(!cluster.peers[0].group.is_serving(), "nobody heard it");
    (1..3).for_each(|at| cluster.collect(at));
    cluster.peers[0].group.tick();
    cluster.collect(0);
    cluster.settle();
    assert!(cluster.peers[0].group.is_serving());
}

#[test]
fn a_follower_does_not_acknowledge_what_it_has_not_synced() {
    let mut cluster = Cluster::new(2);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    cluster.propose(0, "a");
    cluster.collect(0);
    let appends: Vec<_> = cluster.wire.drain(..).collect();
    for message in appends {
        let Outgoing { message, payloads, .. } = message;
        let to = usize::try_from(message.to - 1).expect("small");
        // The same message twice: the second one has nothing new to sync.
        for _ in 0..2 {
            cluster.peers[to].group.on_message(message.clone(), payloads.clone());
            cluster.collect(to);
        }
    }
    assert!(cluster.wire.is_empty(), "nothing is said before the sync");
    let ticket = cluster.peers[1].unsynced.pop_front().expect("a write");
    cluster.peers[1].group.on_persisted(ticket);
    cluster.collect(1);
    assert_eq!(cluster.wire.len(), 2, "both answers leave with the sync");
    let again = cluster.wire.iter().filter(|it| it.can_wait).count();
    assert_eq!(again, 1, "one of them says nothing new");
}

#[test]
fn a_follower_that_keeps_its_end_answers_no_append_and_hears_it_again_later() {
    let mut cluster = Cluster::new(2);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    let before = cluster.peers[1].log.len();
    cluster.peers[1].group.keep_end(true);
    cluster.propose(0, "a");
    cluster.collect(0);
    // If it answered, the leader would send the append at once again, for ever.
    let steps = (0..200).take_while(|_| cluster.step(0)).count();
    assert!(steps < 200, "the two go on and on");
    assert_eq!(cluster.peers[1].log.len(), before, "it keeps its end");
    cluster.peers[1].group.keep_end(false);
    cluster.ticks(10);
    assert_eq!(cluster.peers[1].log.len(), before + 1, "the leader sent it again");
    cluster.check();
}

#[test]
fn a_leader_that_cannot_give_what_only_it_has_lets_another_lead() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    cluster.propose(0, "kept");
    cluster.collect(0);
    cluster.settle();
    cluster.peers[0].group.step_aside();
    assert!(cluster.peers[0].group.is_serving(), "all of it is committed");
    cluster.propose(0, "lost");
    cluster.collect(0);
    cluster.wire.clear();
    while let Some(ticket) = cluster.peers[0].unsynced.pop_front() {
        cluster.peers[0].group.on_persisted(ticket);
        cluster.collect(0);
        cluster.wire.clear();
    }
    cluster.peers[0].group.step_aside();
    for _ in 0..4 * ELECTION_TICKS {
        for at in 0..3 {
            cluster.peers[at].group.tick();
            cluster.collect(at);
        }
        cluster.settle();
        assert!(!cluster.peers[0].group.is_serving(), "it has more than the others, and would win");
    }
    let leads = (1..3).find(|at| cluster.peers[*at].group.is_serving()).expect("one of the others");
    cluster.propose(leads, "after");
    cluster.collect(leads);
    cluster.settle();
    cluster.check();
    assert!(cluster.peers.iter().all(|peer| peer.group.end_offset() == 2));
}

#[test]
fn a_new_leader_cuts_what_was_not_committed() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    cluster.propose(0, "kept");
    cluster.collect(0);
    cluster.settle();
    // The old leader's last batches reach nobody.
    cluster.propose(0, "lost");
    cluster.propose(0, "lost too");
    cluster.collect(0);
    cluster.wire.clear();
    while let Some(ticket) = cluster.peers[0].unsynced.pop_front() {
        cluster.peers[0].group.on_persisted(ticket);
        cluster.collect(0);
        cluster.wire.clear();
    }
    assert_eq!(cluster.peers[0].group.end_offset(), 3);
    // Followers believe in a leader they heard of lately, until its time is over.
    for _ in 0..2 * ELECTION_TICKS {
        cluster.peers[1].group.tick();
        cluster.peers[2].group.tick();
    }
    (1..3).for_each(|at| cluster.collect(at));
    cluster.wire.clear();
    cluster.elect(1);
    assert_eq!(cluster.peers[1].group.end_offset(), 1);
    cluster.propose(1, "after");
    cluster.collect(1);
    cluster.settle();
    cluster.check();
    assert!(cluster.peers.iter().all(|peer| peer.group.end_offset() == 2));
    let runs = cluster.peers[0].group.term_runs();
    assert!(runs.windows(2).all(|pair| pair[0].term < pair[1].term));
    assert_eq!(runs.last().expect("terms").start_offset, 1);
}

#[test]
fn one_that_missed_two_elections_gives_up_what_ends_elsewhere() {
    let mut cluster = Cluster::new(8);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    // Nobody but the old leader has this.
    cluster.propose(0, "lost");
    cluster.collect(0);
    cluster.settle_without(1);
    // Where that was the others have that one led, and then that another one did.
    for (next, other) in [(1, 2), (2, 1)] {
        (0..3 * ELECTION_TICKS).for_each(|_| _ = cluster.peers[other].group.tick());
        cluster.collect(other);
        cluster.wire.clear();
        cluster.peers[next].group.campaign();
        cluster.collect(next);
        cluster.settle_without(1);
        assert!(cluster.peers[next].group.is_serving());
    }
    cluster.propose(2, "after");
    cluster.collect(2);
    cluster.settle_without(1);
    for _ in 0..2 * ELECTION_TICKS {
        cluster.peers[2].group.tick();
        cluster.collect(2);
        cluster.settle();
    }
    cluster.check();
    let applied = |at: usize| cluster.peers[at].group.applied();
    assert_eq!([applied(0), applied(1)], [applied(2); 2]);
}

#[test]
fn an_entry_of_an_earlier_term_replaces_one_of_a_later_term() {
    let mut cluster = Cluster::new(11);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    cluster.propose(0, "kept");
    cluster.collect(0);
    cluster.settle_without(1);
    // The next leader hears votes, and nobody hears its first entry.
    (0..3 * ELECTION_TICKS).for_each(|_| _ = cluster.peers[2].group.tick());
    cluster.collect(2);
    cluster.wire.clear();
    cluster.peers[1].group.campaign();
    cluster.collect(1);
    loop {
        let is_vote = |it: &Outgoing| it.message.get_msg_type() != MessageType::MsgAppend;
        cluster.wire.retain(|it| is_vote(it) && ![it.message.from, it.message.to].contains(&1));
        if !cluster.step(0) {
            break;
        }
    }
    assert!(cluster.peers[1].group.is_elected());
    // The first leader learns of that term, and then leads a later one.
    for at in [0, 2] {
        (0..3 * ELECTION_TICKS).for_each(|_| _ = cluster.peers[at].group.tick());
        cluster.collect(at);
    }
    for _ in 0..2 {
        cluster.peers[0].group.campaign();
        cluster.collect(0);
        cluster.settle_without(2);
    }
    assert!(cluster.peers[0].group.is_serving());
    let last = |at: usize| cluster.peers[at].log.last().expect("entries").term;
    let held = cluster.peers[0].log.iter().find(|it| matches!(it.content, Content::Batch(_)));
    assert!(held.expect("the batch is kept").term < last(1) && last(1) < last(0));
    for _ in 0..2 * ELECTION_TICKS {
        cluster.peers[0].group.tick();
        cluster.collect(0);
        cluster.settle();
    }
    cluster.check();
    assert!(cluster.peers.iter().all(|peer| peer.group.end_offset() == 1));
}

#[test]
fn what_was_proposed_in_the_turn_in_which_it_was_cut_is_told_of() {
    let mut cluster = Cluster::new(7);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    cluster.propose(0, "kept");
    cluster.collect(0);
    cluster.settle();
    // The leader stands still, and the others elect another one.
    for _ in 0..2 * ELECTION_TICKS {
        cluster.peers[1].group.tick();
        cluster.peers[2].group.tick();
    }
    (1..3).for_each(|at| cluster.collect(at));
    cluster.wire.clear();
    let mut to_the_old = Vec::new();
    cluster.peers[1].group.campaign();
    cluster.collect(1);
    for _ in 0..100 {
        let (old, others): (Vec<_>, Vec<_>) =
            cluster.wire.drain(..).partition(|it| it.message.to == 1);
        to_the_old.extend(old);
        cluster.wire = others.into();
        cluster.step(0);
    }
    assert!(cluster.peers[1].group.is_serving());
    // When it goes on, a client is first, then all that it has missed.
    assert!(cluster.peers[0].group.is_serving());
    let (descriptor, payload) = batch(&cluster.peers[0].group, "lost");
    let peer = &mut cluster.peers[0];
    let index = peer.group.propose_batch(&descriptor, payload).expect("it leads");
    peer.known.push((index, peer.group.term()));
    for Outgoing { message, payloads, .. } in to_the_old {
        cluster.peers[0].group.on_message(message, payloads);
    }
    let turn = cluster.peers[0].group.collect();
    assert_eq!((turn.cut, turn.removed.len()), (Some(index), 0), "storage never had it");
    assert_eq!(cluster.peers[0].group.end_offset(), 1);
}

#[test]
fn whoever_doubts_that_it_leads_knows_only_from_its_followers() {
    let mut cluster = Cluster::new(8);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    let doubt = cluster.peers[0].group.doubt();
    cluster.collect(0);
    assert_eq!(cluster.peers[0].group.led_at(doubt), None, "nobody was asked yet");
    let late = cluster.peers[0].group.doubt();
    assert_ne!(late, doubt, "the question on its way was asked before");
    cluster.settle();
    assert_eq!(cluster.peers[0].group.led_at(doubt), Some(true));
    assert_eq!(cluster.peers[0].group.led_at(late), Some(true), "the second question followed");
    let cut_off = cluster.peers[0].group.doubt();
    for _ in 0..2 * ELECTION_TICKS {
        cluster.collect(0);
        cluster.wire.clear();
        let known = (!cluster.peers[0].group.is_serving()).then_some(false);
        assert_eq!(cluster.peers[0].group.led_at(cut_off), known);
        cluster.peers[0].group.tick();
    }
    assert_eq!(cluster.peers[0].group.led_at(cut_off), Some(false), "nobody answers");
}

impl Cluster {
    /// Lets a leader take the steps of this move. True if the leader reports that the move is over.
    fn approach(&mut self, at: usize, target: &[u64], move_number: u64) -> bool {
        for _ in 0..10 {
            if self.peers[at].group.approach(target, &[], move_number) == Approach::There {
                return true;
            }
            self.collect(at);
            self.settle();
        }
        false
    }
}

#[test]
fn a_leader_that_knows_only_of_an_earlier_move_changes_nothing() {
    let mut cluster = Cluster::new(8);
    cluster.collect(0);
    cluster.collect(1);
    cluster.collect(2);
    cluster.settle();
    cluster.elect(0);
    assert!(cluster.approach(0, &[1, 2], 5));
    assert_eq!(cluster.peers[1].group.voter_ids(), [1, 2]);
    // One that learns of it afterwards only has to say that it was taken back: nobody is to be let in or taken out.
    assert!(cluster.approach(0, &[1, 2], 7));
    assert!(cluster.peers[0].group.hand_over(2, false));
    cluster.collect(0);
    cluster.settle();
    assert!(!cluster.approach(1, &[1, 2, 3], 6));
    let group = &cluster.peers[1].group;
    assert_eq!((group.voter_ids(), group.learners()), (&[1, 2][..], Vec::new()));
    assert!(cluster.approach(1, &[1, 2], 7), "it is over still");
    assert!(cluster.approach(1, &[2, 1, 3], 8));
    assert_eq!(cluster.peers[1].group.voter_ids(), [1, 2, 3]);
}

#[test]
fn random_losses_and_slow_disks_never_make_logs_disagree() {
    for seed in 0..30 {
        let mut cluster = Cluster::new(seed);
        (0..3).for_each(|at| cluster.collect(at));
        for _ in 0..600 {
            let at = usize::try_from(cluster.chance.below(3)).expect("small");
            match cluster.chance.below(8) {
                0 => {
                    cluster.peers[at].group.tick();
                    cluster.collect(at);
                }
                1 if cluster.peers[at].group.is_serving() => {
                    cluster.propose(at, "x");
                    cluster.collect(at);
                }
                _ => {
                    cluster.step(10);
                }
            }
            cluster.check();
        }
    }
}

#[test]
fn messages_that_would_be_fatal_fail_the_group_and_those_for_others_are_ignored() {
    let mut cluster = Cluster::new(4);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    let term = cluster.peers[1].group.term();
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgHeartbeat);
    (message.from, message.to, message.term, message.commit) = (1, 3, term, 1000);
    cluster.peers[1].group.on_message(message.clone(), Vec::new());
    assert_eq!(cluster.peers[1].group.failure(), None, "it is for another one");
    message.to = 2;
    message.term = TERM_MAX + 1;
    cluster.peers[1].group.on_message(message.clone(), Vec::new());
    assert_eq!(cluster.peers[1].group.failure(), None, "no such term");
    message.term = term;
    cluster.peers[1].group.on_message(message, Vec::new());
    assert!(cluster.peers[1].group.failure().is_some());
    let (descriptor, payload) = batch(&cluster.peers[1].group, "a");
    let refused = cluster.peers[1].group.propose_batch(&descriptor, payload);
    assert_eq!(refused, Err(Refused::Failed));
}

#[test]
fn only_a_leader_proposes() {
    let mut cluster = Cluster::new(5);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    assert_eq!(cluster.peers[1].group.propose_internal(b"x"), Err(Refused::NotLeader));
}

#[test]
fn entries_that_do_not_follow_each_other_are_not_there_at_all() {
    let mut cluster = Cluster::new(6);
    (0..3).for_each(|at| cluster.collect(at));
    cluster.elect(0);
    cluster.propose(0, "a");
    cluster.propose(0, "b");
    cluster.collect(0);
    let is_for_two = |it: &&Outgoing| it.message.to == 2 && it.message.get_entries().len() == 2;
    let good = cluster.wire.iter().find(is_for_two).expect("one message, two batches");
    let (message, payloads) = (good.message.clone(), good.payloads.clone());
    let mut bad = Vec::new();
    let mut gap = message.clone();
    gap.mut_entries()[1].index += 1;
    bad.push((gap, payloads.clone()));
    let mut old = message.clone();
    old.mut_entries()[1].term -= 1;
    bad.push((old, payloads.clone()));
    // The second batch without the first, so that its offset is one too high.
    let mut jump = message.clone();
    jump.mut_entries().remove(0);
    jump.mut_entries()[0].index -= 1;
    bad.push((jump, payloads[1..].to_vec()));
    bad.push((message.clone(), payloads[..1].to_vec()));
    bad.push((message.clone(), payloads.iter().rev().cloned().collect()));
    for (message, payloads) in bad {
        cluster.peers[1].group.on_message(message, payloads);
        cluster.collect(1);
        assert!(cluster.peers[1].unsynced.is_empty());
        assert_eq!(cluster.peers[1].group.bytes_in_flight(), 0);
    }
    cluster.peers[1].group.on_message(message, payloads);
    assert!(cluster.peers[1].group.bytes_in_flight() > 0);
    cluster.collect(1);
    assert_eq!(cluster.peers[1].unsynced.len(), 1);
    assert_eq!(cluster.peers[1].group.end_offset(), 2);
}

const LITTLE: Memory = Memory { entries: 2, payload_bytes: 150, read_bytes: 200 };

impl Cluster {
    /// A log of forty entries that only the first two have; internal ones are among them.
    fn with_one_behind(seed: u64) -> Self {
        let mut cluster = Self::new(seed);
        for at in 0..3 {
            cluster.peers[at].group.keep_in_memory(LITTLE);
            cluster.collect(at);
        }
        cluster.elect(0);
        for n in 0..40 {
            if n % 7 == 3 {
                let entry = format!("entry {n}");
                let peer = &mut cluster.peers[0];
                let index = peer.group.propose_internal(entry.as_bytes()).expect("it leads");
                peer.known.push((index, peer.group.term()));
            } else {
                cluster.propose(0, &n.to_string());
            }
            cluster.collect(0);
            while !cluster.wire.is_empty()
                || cluster.peers[0].unsynced.len() + cluster.peers[1].unsynced.len() > 0
            {
                cluster.wire.retain(|outgoing| outgoing.message.to != 3);
                if cluster.wire.is_empty() {
                    (0..2).for_each(|at| cluster.sync(at));
                } else {
                    cluster.step(0);
                }
            }
        }
        cluster
    }

    fn sync(&mut self, at: usize) {
        while let Some(ticket) = self.peers[at].unsynced.pop_front() {
            self.peers[at].group.on_persisted(ticket);
            self.collect(at);
        }
    }

    /// Returns the result of a read, as storage would.
    fn read(&self, at: usize, wanted: &PayloadRead) -> ReadFor {
        let peer = &self.peers[at];
        let range = peer.payloads.range(wanted.from..wanted.end);
        let mut left = range.skip(usize::try_from(wanted.pass).expect("small"));
        let (from, first) = left.next().expect("there is a batch");
        let mut bytes = first.to_vec();
        for (_, payload) in left {
            if bytes.len() + payload.len() > wanted.bytes as usize {
                break;
            }
            bytes.extend_from_slice(payload);
        }
        let (peer, ticket, from) = (wanted.peer, wanted.ticket, *from);
        ReadFor { peer, ticket, from, begins_segment: from == 0, batches: Ok(bytes.into()) }
    }

    /// The leader is heard, and what it asks for is read.
    fn bring_up(&mut self, at: usize) -> usize {
        let mut reads = 0;
        for _ in 0..100 {
            (0..2).for_each(|_| _ = self.peers[at].group.tick());
            self.collect(at);
            self.settle();
            for wanted in std::mem::take(&mut self.peers[at].reads) {
                reads += 1;
                let read = self.read(at, &wanted);
                self.peers[at].group.on_read(read);
                self.collect(at);
                self.settle();
            }
        }
        reads
    }
}

#[test]
fn a_follower_far_behind_is_brought_up_by_entries_made_again() {
    let mut cluster = Cluster::with_one_behind(7);
    assert_eq!(cluster.peers[2].group.end_offset(), 0);
    let reads = cluster.bring_up(0);
    cluster.check();
    assert!(reads > 5, "a piece at a time");
    assert_eq!(cluster.peers[2].log, cluster.peers[0].log, "all of it, internal entries too");
    assert_eq!(cluster.peers[2].applied.len(), 41);
    assert!(cluster.peers[0].group.rebuilt() >= 25);
    assert_eq!(cluster.peers[0].group.left_behind(), 0);
    assert!(cluster.peers[0].group.raw.store().pieces.is_empty(), "nothing is kept of it");
}

impl Cluster {
    /// What the first leads, and is trimmed to: only one batch began a segment, so one begins in the middle.
    fn trim(&mut self) -> (u64, i64) {
        let log = self.peers[0].group.raw.mut_store();
        let past = log.history.internal_before(30).expect("there are some");
        let past = log.history.internal_before(past.entry.index).expect("there are some");
        let (index, offset) = (past.entry.index + 1, past.end_offset);
        log.segments.insert(index, offset);
        self.peers[0].group.trim(offset);
        (index - 1, offset)
    }
}

#[test]
fn one_behind_the_start_of_the_log_begins_anew_where_its_leader_does() {
    let mut cluster = Cluster::with_one_behind(8);
    let (index, offset) = cluster.trim();
    let reads = cluster.bring_up(0);
    assert!(reads > 0, "what is kept comes from segments");
    assert_eq!(cluster.peers[2].begun, (index, Bytes::from_static(b"view")));
    let end = cluster.peers[0].group.end_offset();
    assert_eq!(cluster.peers[2].group.end_offset(), end);
    assert_eq!(cluster.peers[0].group.left_behind(), 0);
    cluster.propose(0, "after");
    cluster.collect(0);
    cluster.settle();
    cluster.check();
    assert!(cluster.peers.iter().all(|peer| peer.group.end_offset() == end + 1));
    let first = cluster.peers[2].log.first().expect("it has what came after");
    assert_eq!((first.index, offset > 0), (index + 1, true));
    // The replica has all that it needs to lead.
    for _ in 0..2 * ELECTION_TICKS {
        cluster.peers.iter_mut().for_each(|peer| _ = peer.group.tick());
    }
    (0..3).for_each(|at| cluster.collect(at));
    cluster.wire.clear();
    cluster.elect(2);
    cluster.propose(2, "led");
    cluster.collect(2);
    cluster.settle();
    cluster.check();
}

#[test]
fn a_snapshot_that_is_lost_is_sent_again() {
    // A follower of a compacted log may speak while the leader feeds it the prefix.
    for (is_compacted, expected) in [(false, 30..=50), (true, 3..=6)] {
        let mut cluster = Cluster::with_one_behind(8);
        let (index, below) = cluster.trim();
        cluster.lost = Some(0);
        if is_compacted {
            cluster.peers[0].group.raw.mut_store().compacted =
                Compacted { index: index + 1, below, tombstones_below: 0 };
        }
        cluster.ticks(500);
        let lost = cluster.lost.take().expect("they were counted");
        assert!(expected.contains(&lost), "{lost} of them, compacted: {is_compacted}");
        cluster.peers[0].group.raw.mut_store().compacted = Compacted::default();
        cluster.bring_up(0);
        cluster.check();
        assert_eq!(cluster.peers[2].group.end_offset(), cluster.peers[0].group.end_offset());
    }
}

#[test]
fn a_snapshot_is_not_waited_for_by_one_that_has_its_entries() {
    let mut cluster = Cluster::with_one_behind(8);
    cluster.bring_up(0);
    cluster.propose(0, "after");
    cluster.collect(0);
    cluster.settle();
    let (index, _) = cluster.trim();
    // The leader has not heard the last acknowledgements.
    let progress = cluster.peers[0].group.raw.raft.mut_prs().get_mut(3).expect("a peer");
    progress.become_probe();
    (progress.matched, progress.next_idx) = (index - 1, index);
    cluster.lost = Some(0);
    cluster.ticks(4);
    let progress = cluster.peers[0].group.raw.raft.prs().get(3).expect("a peer");
    assert_eq!((cluster.lost, progress.next_idx), (Some(1), index + 1), "it has the trimmed ones");
    cluster.bring_up(0);
    cluster.check();
    let raft = &cluster.peers[0].group.raw.raft;
    let matched = raft.prs().get(3).expect("a peer").matched;
    assert_eq!((cluster.lost, matched), (Some(1), raft.raft_log.last_index()));
}

#[test]
fn one_that_lacks_what_is_kept_and_cannot_be_given_stays_behind_and_harms_nobody() {
    let mut cluster = Cluster::with_one_behind(8);
    // The history begins in the middle of a segment: it had more internal entries than it may remember.
    let log = cluster.peers[0].group.raw.mut_store();
    let past = log.history.internal_before(30).expect("there are some").clone();
    log.history.begin_after(past.entry.index, past.entry.term, past.end_offset);
    let reads = cluster.bring_up(0);
    assert_eq!((reads, cluster.peers[2].group.end_offset()), (0, 0));
    assert_eq!(cluster.peers[0].group.left_behind(), 1);
    cluster.propose(0, "after");
    cluster.collect(0);
    cluster.settle();
    cluster.check();
    assert_eq!(cluster.peers[1].applied.len(), 42, "the others go on");
}

#[test]
fn what_was_read_for_a_leader_that_leads_no_more_is_not_sent() {
    let mut cluster = Cluster::with_one_behind(9);
    cluster.ticks(20);
    let wanted = cluster.peers[0].reads.pop().expect("it wants to bring up the third");
    for _ in 0..2 * ELECTION_TICKS {
        (1..3).for_each(|at| _ = cluster.peers[at].group.tick());
    }
    (1..3).for_each(|at| cluster.collect(at));
    cluster.wire.clear();
    cluster.elect(1);
    let read = cluster.read(0, &wanted);
    cluster.peers[0].group.on_read(read);
    cluster.collect(0);
    assert!(cluster.wire.iter().all(|outgoing| outgoing.message.from != 1), "it leads no more");
    assert!(cluster.peers[0].group.raw.store().pieces.is_empty());
    cluster.bring_up(1);
    cluster.check();
    assert_eq!(cluster.peers[2].log, cluster.peers[1].log, "the new one does it instead");
}
