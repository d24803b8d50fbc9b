//! Fast appends by chance: replicas of one partition, journals that take their time, and clients that send anything to
//! anybody.
//!
//! A witness hears each answer at the moment a replica gives it. From then on a batch is complete if all members of a
//! stretch have answered, the leader with *appended*. Each leader that serves has to have all complete batches, each
//! once, in their producers' order, and behind those that were complete before they were sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{BatchHeader, ErrorCode};
use duramen_storage::op::{Content, Done, Identity, LogEntry, Op, OpKind, ReplicaId, Stretch};
#[cfg(feature = "sabotage")]
use duramen_storage::sabotage::{Bug, plant};

use self::witness::{Batch, Witness};
use super::harness::{Store, settings};
use crate::checked_batch::CheckedBatch;
use crate::configs::TopicSettings;
use crate::event::{Action, LogRead, Now, ReadLog};
use crate::partition::fast::{Fast, Outcome};
use crate::partition::fast_state::Said;
use crate::partition::{Acks, Appended, Effects, Partition, Slot, Verdict};
use crate::peer::Letter;
use crate::prng::Prng;
use crate::raft::{Doubt, Outgoing, PayloadRead, ReadFor, letter_of};
use crate::session::ConnectionId;

mod rules;
mod witness;

const PRODUCERS: i64 = 2;
const BATCHES: i32 = 40;
/// Producers whose one batch is refused for good have larger ids.
const REFUSED: i64 = 1_000;
const STEPS: usize = 1_000;
/// Ticks in which a replica that hears nothing stands for election.
const LONG_TICKS: usize = 12;

struct Replica {
    id: u64,
    partition: Partition,
    disk: Store,
    /// All that was given to storage, synced or not.
    ahead: Store,
    queue: VecDeque<Op>,
    reads: Vec<PayloadRead>,
    own_reads: Vec<ReadLog>,
    /// Requests that wait for a result: the batch, its stretch, and the result without an error. *Not now* stands for a
    /// refusal.
    waiting: BTreeMap<u64, (Batch, Stretch, Outcome)>,
    /// Questions for the end of the log, with the batches that were complete before.
    ends: Vec<(Doubt, BTreeSet<Batch>)>,
}

/// A message on its way.
#[derive(Clone)]
enum Sent {
    Letter(Box<Letter>),
    Said { from: u64, to: u64, said: Said },
    Request { to: u64, stretch: Stretch, batch: Batch },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Calm,
    /// Letters between replicas seldom arrive.
    Stalled,
    /// Replicas stand for election.
    Failover,
}

struct World {
    replicas: Vec<Replica>,
    /// Messages between replicas, by sender and receiver: each arrives once, in order, or not at all.
    links: BTreeMap<(u64, u64), VecDeque<Sent>>,
    /// Requests of clients, each of which may arrive late and twice.
    requests: Vec<Sent>,
    cut: Option<u64>,
    phase: Phase,
    witness: Witness,
    numbers: u64,
    chance: Prng,
    settings: Arc<TopicSettings>,
    seed: u64,
    starts: u64,
    steps: u64,
    /// Bytes of letters that came whole, and of those left out.
    carried: (usize, u64),
    /// True while the medium gives nothing back.
    is_damaged: bool,
}

fn bytes_of(batch: Batch) -> BytesMut {
    let value = format!("{}/{}", batch.producer, batch.sequence);
    bytes_with(batch, &value)
}

fn bytes_with(batch: Batch, value: &str) -> BytesMut {
    let mut builder = BatchBuilder::new().producer(batch.producer, 0, batch.sequence);
    let record = NewRecord { value: Some(value.as_bytes()), ..NewRecord::default() };
    builder.push(&record).expect("a record");
    builder.build_mut().expect("a batch")
}

fn batch_of(entry: &LogEntry) -> Option<Batch> {
    let Content::Batch(batch) = &entry.content else { return None };
    Some(Batch { producer: batch.producer_id, sequence: batch.first_sequence })
}

impl Replica {
    fn stored(store: &Store, id: u64) -> &[LogEntry] {
        store.replicas.get(&ReplicaId(id)).map_or(&[], |stored| &stored.entries)
    }

    fn log(&self) -> Vec<Batch> {
        Self::stored(&self.ahead, self.id).iter().filter_map(batch_of).collect()
    }
}

impl World {
    fn new(voters: u64, seed: u64) -> Self {
        let settings = settings(&[]);
        let mut settings = TopicSettings::resolve(&BTreeMap::new(), &settings);
        // Producers that may have been forgotten could begin in the middle.
        settings.newcomers = 0..i64::MAX;
        let settings = Arc::new(settings);
        let identity = Identity { topic: "t".to_owned(), topic_id: [1; 16], partition: 0 };
        let ids: Vec<u64> = (1..=voters).collect();
        let replica = |&id: &u64| Replica {
            id,
            partition: Partition::create(
                ReplicaId(id),
                identity.clone(),
                &ids,
                Arc::clone(&settings),
                seed,
            ),
            disk: Store::default(),
            ahead: Store::default(),
            queue: VecDeque::new(),
            reads: Vec::new(),
            own_reads: Vec::new(),
            waiting: BTreeMap::new(),
            ends: Vec::new(),
        };
        let mut world = Self {
            replicas: ids.iter().map(replica).collect(),
            links: BTreeMap::new(),
            requests: Vec::new(),
            cut: None,
            phase: Phase::Calm,
            witness: Witness::default(),
            numbers: 0,
            chance: Prng::stream(seed, 24),
            settings: Arc::clone(&settings),
            seed,
            starts: 0,
            steps: 0,
            carried: (0, 0),
            is_damaged: false,
        };
        (0..world.replicas.len()).for_each(|at| {
            world.turn(at);
            world.sync(at, usize::MAX);
        });
        world.replicas[0].partition.group.campaign();
        world.turn(0);
        world.rest();
        world
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.chance.below(bound as u64)).expect("small")
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.chance.below(odds) == 0
    }

    /// Gives a replica a turn, and carries out all that comes of it.
    fn turn(&mut self, at: usize) {
        let now = self.now();
        let replica = &mut self.replicas[at];
        loop {
            let (mut actions, mut effects) = (Vec::new(), Effects::default());
            replica.partition.turn(now, &mut actions, &mut effects);
            for action in actions {
                let Action::Storage(op) = action else { continue };
                trace(|| {
                    format!(
                        "{} in term {}: {}",
                        replica.id,
                        replica.partition.group.term(),
                        brief(&op)
                    )
                });
                replica.ahead.execute(op.clone());
                replica.queue.push_back(op);
            }
            for Outgoing { message, payloads, .. } in effects.messages {
                let way = (replica.id, message.to);
                self.carried.0 += payloads.iter().map(Bytes::len).sum::<usize>();
                let Some(letter) = letter_of(replica.partition.id, message, payloads) else {
                    continue;
                };
                let letter = Sent::Letter(Box::new(letter));
                self.links.entry(way).or_default().push_back(letter);
            }
            self.carried.1 += effects.fast.left_out;
            replica.reads.extend(effects.reads);
            replica.own_reads.extend(replica.partition.take_own_read());
            for said in replica.partition.take_said() {
                let to = said.receiver();
                let said = Sent::Said { from: replica.id, to, said };
                self.links.entry((replica.id, to)).or_default().push_back(said);
            }
            for finished in effects.finished {
                tell(replica, &mut self.witness, finished.slot, finished.error);
            }
            if !effects.goes_on {
                break;
            }
        }
        assert_eq!(replica.partition.group.failure(), None);
        if let Some(open) = replica.partition.open_here() {
            self.witness.stretches.insert(open.stretch, open.members);
        }
        let log = replica.log();
        let shown = usize::try_from(replica.partition.committed()).expect("small");
        let group = &replica.partition.group;
        let known = replica.ends.extract_if(.., |(doubt, _)| group.led_at(*doubt).is_some());
        for (doubt, before) in known {
            // Each batch has one offset.
            if group.led_at(doubt) == Some(true) {
                Witness::judge_end(&before, &log[..shown]);
            }
        }
        let term = replica.partition.group.term();
        // A former leader may not know yet that there is another one.
        if replica.partition.obstacle().is_none() && term >= self.witness.served {
            self.witness.served = term;
            self.witness.judge(&log);
        }
        let applied = replica.partition.group.applied();
        let entries = Replica::stored(&replica.ahead, replica.id);
        self.witness.compare(entries.iter().take_while(|entry| entry.index <= applied));
    }

    /// Lets some of a replica's ops reach the disk, the oldest first.
    fn sync(&mut self, at: usize, most: usize) {
        let replica = &mut self.replicas[at];
        let count = most.min(replica.queue.len());
        let ops: Vec<Op> = replica.queue.drain(..count).collect();
        for op in ops {
            match replica.disk.execute(op) {
                Some(Done::Persisted { ticket, .. }) => {
                    replica.partition.group.on_persisted(ticket);
                }
                Some(Done::Held { hold, .. }) => {
                    for finished in replica.partition.on_held(hold) {
                        tell(replica, &mut self.witness, finished.slot, finished.error);
                    }
                }
                _ => {}
            }
        }
        self.turn(at);
    }

    /// Power fails at a replica, and its node starts again.
    fn bounce(&mut self, at: usize) {
        trace(|| format!("{} bounces, {} ops lost", at + 1, self.replicas[at].queue.len()));
        self.starts += 1;
        let seed = self.seed + 1_000 * self.starts;
        let now = self.now();
        let replica = &mut self.replicas[at];
        replica.queue.clear();
        replica.ahead = replica.disk.clone();
        replica.reads.clear();
        replica.own_reads.clear();
        replica.waiting.clear();
        replica.ends.clear();
        let found = replica.disk.recover().remove(0);
        replica.partition = Partition::recover(&found, Arc::clone(&self.settings), now, seed);
        self.turn(at);
    }

    fn deliver(&mut self, sent: Sent) {
        let (to, from) = match &sent {
            Sent::Letter(letter) => (letter.to, Some(letter.from)),
            Sent::Said { from, to, .. } => (*to, Some(*from)),
            Sent::Request { to, .. } => (*to, None),
        };
        // Clients reach a replica that others do not.
        if from.is_some() && (self.cut == from || self.cut == Some(to)) {
            return;
        }
        let at = usize::try_from(to - 1).expect("small");
        let partition = &mut self.replicas[at].partition;
        match sent {
            Sent::Letter(letter) => partition.hear(*letter),
            Sent::Said { said: Said::Wanted { wanted, .. }, .. } => {
                partition.on_holds_wanted(wanted);
            }
            Sent::Said { from, said: Said::Given(given), .. } => {
                partition.on_holds_given(from, given);
            }
            Sent::Said { said: Said::Offered { stretch, batches, .. }, .. } => {
                partition.on_offer(stretch, batches);
            }
            Sent::Said { from, said: Said::Lacks { term, .. }, .. } => {
                partition.on_lack(from, term);
            }
            Sent::Request { stretch, batch, .. } => self.append(at, stretch, batch),
        }
        if !self.one_in(6) {
            self.turn(at);
        }
    }

    fn append(&mut self, at: usize, stretch: Stretch, batch: Batch) {
        self.append_bytes(at, stretch, batch, bytes_of(batch));
    }

    fn append_bytes(&mut self, at: usize, stretch: Stretch, batch: Batch, bytes: BytesMut) {
        self.numbers += 1;
        let number = self.numbers;
        let key = (ConnectionId(0), number);
        let slot = Slot::Request { key, topic: 0, partition: 0 };
        let checked = CheckedBatch::made(bytes, 0).expect("a batch");
        let now = self.now();
        let replica = &mut self.replicas[at];
        match replica.partition.append_fast(now, stretch, checked, slot) {
            Fast::Waits(outcome) => {
                replica.waiting.insert(number, (batch, stretch, outcome));
            }
            Fast::Committed { .. } => self.witness.hear_commit(batch),
            Fast::NotNow(_) => {}
        }
    }

    /// A client sends a batch to the leader alone, and waits for its commit.
    fn produce(&mut self, at: usize, batch: Batch) {
        self.numbers += 1;
        let number = self.numbers;
        let slot = Slot::Request { key: (ConnectionId(0), number), topic: 0, partition: 0 };
        let checked = CheckedBatch::made(bytes_of(batch), 0).expect("a batch");
        let now = self.now();
        let replica = &mut self.replicas[at];
        match replica.partition.produce(now, checked, Acks::All, slot) {
            Appended::Waits { .. } => {
                let waits = (batch, Stretch::default(), Outcome::Committed);
                replica.waiting.insert(number, waits);
            }
            Appended::Done { .. } => self.witness.hear_commit(batch),
            _ => {}
        }
        self.turn(at);
    }

    /// A client asks for the end of the log.
    fn ask_end(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let doubt = replica.partition.group.doubt();
        replica.ends.push((doubt, self.witness.complete.clone()));
        self.turn(at);
    }

    /// A client sends a batch of a new producer to some members, and the leader refuses it for good.
    fn refuse(&mut self, at: usize) {
        let Some(stretch) = self.witness.stretches.keys().last().copied() else { return };
        self.numbers += 1;
        let producer = REFUSED + i64::try_from(self.numbers).expect("small");
        let batch = Batch { producer, sequence: 0 };
        self.witness.send(batch);
        for to in self.witness.stretches[&stretch].clone() {
            if !self.one_in(3) {
                self.requests.push(Sent::Request { to, stretch, batch });
            }
        }
        for _ in 0..self.below(6) {
            self.take_request();
        }
        self.refuse_batch(at, stretch, batch);
        self.turn(at);
    }

    /// A leader refuses a batch for good, if it does not have it.
    fn refuse_batch(&mut self, at: usize, stretch: Stretch, batch: Batch) {
        self.numbers += 1;
        let number = self.numbers;
        let slot = Slot::Request { key: (ConnectionId(0), number), topic: 0, partition: 0 };
        let now = self.now();
        let partition = &mut self.replicas[at].partition;
        let verdict = partition.verdict(&BatchHeader::parse(&bytes_of(batch)).expect("ours"));
        if verdict != Verdict::Append || partition.obstacle().is_some() {
            return;
        }
        match partition.outlast_stretch(now, stretch, slot) {
            Ok(true) => {
                let waits = (batch, stretch, Outcome::NotNow);
                self.replicas[at].waiting.insert(number, waits);
            }
            Ok(false) => self.witness.refuse(batch),
            Err(_) => {}
        }
    }

    fn now(&self) -> Now {
        Now { mono_us: self.steps * 10_000, wall_ms: 1_000_000 }
    }

    fn read(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let id = ReplicaId(replica.id);
        let Some(stored) = replica.ahead.replicas.get(&id) else { return };
        if let Some(wanted) = replica.own_reads.pop() {
            let found = stored.batches(wanted.from, wanted.end).concat().into();
            let damage = self.is_damaged.then(|| "it is damaged".to_owned());
            let answer = wanted.answer(damage.map_or(Ok(found), Err));
            let read = LogRead { is_damaged: self.is_damaged, ..answer };
            replica.partition.on_own_read(&read);
        } else if let Some(wanted) = replica.reads.pop() {
            let batches = Ok(stored.batches(wanted.from, wanted.end).concat().into());
            let (peer, ticket, from) = (wanted.peer, wanted.ticket, wanted.from);
            let begins_segment = wanted.from == 0;
            let read = ReadFor { peer, ticket, from, begins_segment, batches };
            replica.partition.group.on_read(read);
        }
        self.turn(at);
    }

    fn tick(&mut self, at: usize, ticks: usize) {
        for _ in 0..ticks {
            let group = &mut self.replicas[at].partition.group;
            group.tick();
            group.count_late();
            self.turn(at);
        }
        self.replicas[at].partition.ask_members();
        self.replicas[at].partition.rescue_again();
        self.replicas[at].partition.offer_holds();
        self.turn(at);
    }

    fn serving(&self) -> Vec<usize> {
        let all = 0..self.replicas.len();
        all.filter(|at| self.replicas[*at].partition.obstacle().is_none()).collect()
    }

    /// Begins a stretch where none is open, and sometimes where one is.
    fn tend_stretch(&mut self) {
        let is_there =
            |it: &Replica| it.partition.open_here().is_some() || it.partition.is_changing_stretch();
        let is_open = self.replicas.iter().any(is_there);
        if !is_open || self.one_in(30) {
            self.change_stretch();
        }
    }

    /// A leader begins a stretch with members by chance, or ends one.
    fn change_stretch(&mut self) {
        let serving = self.serving();
        if serving.is_empty() {
            return;
        }
        let at = serving[self.below(serving.len())];
        if self.one_in(8) {
            self.replicas[at].partition.close_stretch();
        } else {
            let own = self.replicas[at].id;
            let mut others: Vec<u64> =
                self.replicas.iter().map(|it| it.id).filter(|id| *id != own).collect();
            let mut members = vec![own];
            while members.len() < self.replicas.len() / 2 + 1 {
                let other = self.below(others.len());
                members.push(others.swap_remove(other));
            }
            let stretch = self.replicas[at].partition.open_with(members.clone());
            if let Some(stretch) = stretch {
                self.witness.stretches.insert(stretch, members);
            }
        }
        self.turn(at);
    }

    fn some_batch(&mut self) -> Batch {
        let producer = i64::try_from(self.below(2)).expect("small") % PRODUCERS + 7;
        let (first, next) = self.witness.unresolved(producer);
        // The first one that is not complete, or one of those behind it, or one that is.
        let ahead = i32::try_from(self.below(6)).expect("small") - 2;
        Batch { producer, sequence: (first + ahead).min(next).clamp(0, BATCHES - 1) }
    }

    /// A client sends a batch to members of a stretch that it knows, or to anybody.
    fn send(&mut self) {
        let known: Vec<Stretch> = self.witness.stretches.keys().copied().collect();
        let Some(last) = known.last().copied() else { return };
        let stretch = if self.one_in(5) { known[self.below(known.len())] } else { last };
        let batch = self.some_batch();
        self.witness.send(batch);
        for to in 1..=self.replicas.len() as u64 {
            let is_member = self.witness.stretches[&stretch].contains(&to);
            if is_member && !self.one_in(4) || self.one_in(8) {
                self.requests.push(Sent::Request { to, stretch, batch });
            }
        }
    }

    /// Lets messages of a link arrive.
    fn hear(&mut self) {
        let links: Vec<(u64, u64)> =
            self.links.iter().filter(|(_, sent)| !sent.is_empty()).map(|(link, _)| *link).collect();
        if links.is_empty() || self.phase == Phase::Stalled && !self.one_in(20) {
            return;
        }
        let link = links[self.below(links.len())];
        for _ in 0..=self.below(5) {
            let Some(sent) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else { break };
            if !self.one_in(40) {
                self.deliver(sent);
            }
        }
    }

    /// Lets a client's request arrive.
    fn take_request(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let which = if self.one_in(3) { self.below(self.requests.len()) } else { 0 };
        let sent =
            if self.one_in(8) { self.requests[which].clone() } else { self.requests.remove(which) };
        if !self.one_in(20) {
            self.deliver(sent);
        }
    }

    /// Tells whether all members know the stretch that a leader has open.
    fn is_in_stretch(&self) -> bool {
        let open = self.replicas.iter().find_map(|it| it.partition.open_here());
        open.is_some_and(|open| {
            let knows = |it: &&Replica| {
                let log = Replica::stored(&it.ahead, it.id);
                let last = log.last().map_or(0, |entry| entry.index);
                it.partition.group.term() == open.stretch.term && last >= open.stretch.index
            };
            let members = self.replicas.iter().filter(|it| open.members.contains(&it.id));
            members.filter(knows).count() == open.members.len()
        })
    }

    /// Begins another phase: calm, then replication that stands still, then another leader.
    fn change_phase(&mut self) {
        self.phase = match self.phase {
            Phase::Calm => Phase::Stalled,
            Phase::Stalled => {
                let leader = self.serving().first().copied();
                let at = leader.unwrap_or_else(|| self.below(self.replicas.len()));
                match self.below(3) {
                    0 => self.bounce(at),
                    1 => self.cut = Some(at as u64 + 1),
                    _ => {}
                }
                Phase::Failover
            }
            Phase::Failover => {
                if self.one_in(2) {
                    self.cut = None;
                }
                Phase::Calm
            }
        };
    }

    fn step(&mut self) {
        self.steps += 1;
        let at = self.below(self.replicas.len());
        let is_ready = match self.phase {
            Phase::Calm => self.is_in_stretch(),
            Phase::Stalled => true,
            Phase::Failover => self.serving().iter().any(|at| self.cut != Some(*at as u64 + 1)),
        };
        if self.one_in(if is_ready { 30 } else { 300 }) {
            self.change_phase();
        }
        match self.below(100) {
            0..30 => self.hear(),
            30..45 => self.take_request(),
            45..66 => {
                let most = 1 + self.below(6);
                self.sync(at, most);
            }
            66..74 => self.send(),
            74..76 => {
                let serving = self.serving();
                if let Some(at) = serving.first().copied() {
                    match self.below(8) {
                        0 | 1 => self.ask_end(at),
                        2 => self.refuse(at),
                        _ => {
                            let batch = self.some_batch();
                            self.witness.send(batch);
                            self.produce(at, batch);
                        }
                    }
                }
            }
            76..84 => self.read(at),
            84..88 => self.tick(at, 1),
            88..93 if self.phase == Phase::Failover && self.cut != Some(at as u64 + 1) => {
                self.tick(at, LONG_TICKS);
            }
            88..97 if self.phase != Phase::Failover => self.tend_stretch(),
            97 if self.one_in(3) => self.bounce(at),
            98 if self.one_in(5) => self.cut = Some(at as u64 + 1),
            99 => self.cut = None,
            _ => {}
        }
    }

    /// All goes well for a while: one leader serves, and the logs are equal.
    fn rest(&mut self) {
        self.cut = None;
        for round in 0..4_000 {
            let sent = std::mem::take(&mut self.links).into_values().flatten();
            for sent in sent.chain(std::mem::take(&mut self.requests)) {
                self.deliver(sent);
            }
            for at in 0..self.replicas.len() {
                self.sync(at, usize::MAX);
                self.read(at);
                self.tick(at, 1);
            }
            let serving = self.serving();
            let is_still = self.replicas.iter().all(|it| {
                let group = &it.partition.group;
                group.applied() == self.replicas[0].partition.group.last_index()
                    && group.last_index() == group.applied()
            });
            if round > 20 && serving.len() == 1 && is_still {
                return;
            }
        }
        panic!("no leader serves");
    }
}

/// Prints an event, if `DURAMEN_TRACE` is set.
fn trace(text: impl FnOnce() -> String) {
    if std::env::var_os("DURAMEN_TRACE").is_some() {
        eprintln!("{}", text());
    }
}

fn brief(op: &Op) -> String {
    match &op.kind {
        OpKind::Write { appends, hard_state, .. } => {
            let entries: Vec<_> = appends
                .iter()
                .map(|it| {
                    (
                        it.entry.index,
                        it.entry.term,
                        batch_of(&it.entry).map(|it| (it.producer, it.sequence)),
                    )
                })
                .collect();
            format!("write {entries:?} {hard_state:?}")
        }
        OpKind::Hold(hold) => {
            let header = BatchHeader::parse(&hold.payload).expect("ours");
            format!("hold {:?} {} {}", hold.id, header.producer_id, header.base_sequence)
        }
        other => format!("{other:?}"),
    }
}

/// Hands the result of a request to the witness.
fn tell(replica: &mut Replica, witness: &mut Witness, slot: Slot, error: ErrorCode) {
    let Slot::Request { key: (_, number), .. } = slot else { return };
    let Some((batch, stretch, outcome)) = replica.waiting.remove(&number) else { return };
    trace(|| format!("{} says {batch:?} {stretch:?} {outcome:?} {error}", replica.id));
    if error.is_none() && outcome == Outcome::NotNow {
        witness.refuse(batch);
    } else if error.is_none() {
        witness.hear(replica.id, stretch, batch, outcome);
    }
}

fn play(voters: u64, seed: u64) -> usize {
    let mut world = World::new(voters, seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.rest();
    for replica in &world.replicas {
        world.witness.judge(&replica.log());
    }
    world.witness.fast
}

/// Plays schedules. Returns the number of batches that were complete by the answers of members alone.
fn play_all(voters: u64, seeds: std::ops::Range<u64>) -> usize {
    let mut fast = 0;
    for seed in seeds {
        match std::panic::catch_unwind(|| play(voters, seed)) {
            Ok(complete) => fast += complete,
            Err(panic) => {
                eprintln!(
                    "{voters} voters, seed {seed}: DURAMEN_TRACE=1 DURAMEN_FIRST={seed} DURAMEN_SEEDS=1 cargo test \
                     -p duramen-broker --lib many_schedules -- --ignored --nocapture"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    fast
}

#[test]
fn what_is_complete_is_in_every_later_leaders_log_once_and_in_order() {
    let fast = [play_all(3, 0..300), play_all(5, 0..100)];
    println!("{fast:?}");
    assert!(fast[0] > 300 && fast[1] > 60, "{fast:?}");
}

/// Bugs that schedules find, and those that need a rare order of events.
#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_of_fast_appends_are_found() {
    let by_chance = [
        Bug::CutForgetsHeld,
        Bug::HeldWithGap,
        Bug::OpensTooEarly,
        Bug::NoBarrier,
        Bug::OldStretchCounts,
        Bug::AskedAnyone,
        Bug::RecoveredTwice,
        Bug::RecoveredReversed,
        Bug::ExLeaderHolds,
        Bug::TailForgotten,
        Bug::RefusedTooEarly,
    ];
    let by_rule = [
        Bug::SealBeforeSync,
        Bug::SealForgotten,
        Bug::HeldInPlace,
        Bug::HeldGoneAtAppend,
        Bug::SweptAtAppend,
        Bug::GapAcrossStretches,
        Bug::ForgottenInStretch,
        Bug::AdoptedLate,
        Bug::RebuiltUnchecked,
    ];
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let seed_of = |bug| {
        plant(Some(bug));
        let fails = |seed: &u64| std::panic::catch_unwind(|| play(3, *seed)).is_err();
        let found = (0..2_000).find(fails);
        plant(None);
        found
    };
    let seeds = by_chance.map(|bug| (bug, seed_of(bug)));
    let missed: Vec<Bug> = by_rule.into_iter().filter(|bug| !rules::find(*bug)).collect();
    std::panic::set_hook(hook);
    println!("{seeds:?}");
    assert!(seeds.iter().all(|(_, seed)| seed.is_some()), "{seeds:?}");
    assert_eq!(missed, []);
}

/// Plays `DURAMEN_SEEDS` schedules from `DURAMEN_FIRST` on.
#[test]
#[ignore = "100 schedules a second and a core"]
fn many_schedules() {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let (first, seeds) =
        (number("DURAMEN_FIRST").unwrap_or(0), number("DURAMEN_SEEDS").unwrap_or(10_000));
    play_all(3, first..first + seeds);
    play_all(5, first..first + seeds / 3);
}
