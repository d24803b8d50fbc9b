//! # Room card: machine
//!
//! Purpose:    drive one node over one simulated disk: the process that lives between its start and its death.
//! Owns:       storage and the node of a process; reads, syncs and compactions under way; starts and deaths.
//! Interface:  [`Machine`]; [`storage_options`] and [`node_options`] for what harnesses share.
//! Invariants: ops go to storage in the turn that asks for them; storage's errors have a cause, or fail the run; it
//!             draws only from the chance that a harness gives.
//! Never:      clocks, the network, clients, the choice of the next piece of work: those are a harness's.
//! Tests:      scenarios `node` and `cluster`.
//! Start at:   [`Machine::start`].

mod working;

use std::io;

use bytes::Bytes;
use duramen_broker::configs::BrokerSettings;
use duramen_broker::event::{LogRead, Look, ReadLog};
use duramen_broker::limits::{GROUP_QUIET_TICKS, Memory};
use duramen_broker::native::{Answer, Answered, Position, Problem, Span};
use duramen_broker::read_plan::{QueueError, Taken, queue_page};
use duramen_broker::{
    Action, ClientListener, ConnectionId, Event, Node, NodeOptions, Now, Reply, Standing, read_plan,
};
use duramen_protocol::Response;
use duramen_storage::indexing::{Indexer, Limits, Step};
use duramen_storage::mending::Mended;
use duramen_storage::op::OpKind;
use duramen_storage::storage::{Error, Facts, Options, SyncId, SyncRequest};
use duramen_storage::{Done, Reader, ReplicaId, Storage};

use crate::compacting::Compactor;
use crate::disk::{Faults, SimDisk, SimFile};
use crate::failure::{Failure, wrong};
use crate::planted::NodeBug;
use crate::prng::Prng;
use crate::trace::tell;
use crate::waits::Waits;
pub(crate) use working::Worked;
use working::Working;

/// Batch bytes that a node may hold before their sync.
const IN_FLIGHT_MAX: u64 = 1024 * 1024;
/// Elements of a page of a queue.
const PAGE: usize = 3;
/// Size of storage's reserve file. A harness fills a disk only once that file is there.
pub(crate) const RESERVE_BYTES: u64 = 1024 * 1024;

/// A disk, and the process on it, if one runs.
pub(crate) struct Machine {
    pub(crate) disk: SimDisk,
    /// Options of storage, from the next start on.
    pub(crate) options: Options,
    /// Options of the node, from the next start on. Each start adds its number to the seed.
    pub(crate) node_options: NodeOptions,
    /// Faults of the disk while a process runs on it, from the next start on.
    pub(crate) faults: Faults,
    /// Successful starts.
    pub(crate) starts: u64,
    bug: Option<NodeBug>,
    life: Option<Life>,
}

/// Element of a page.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) position: Position,
    /// Offset of the record with its content.
    pub(crate) content: i64,
    pub(crate) value: Bytes,
}

/// An answer to a client, with all that had to be read.
pub(crate) enum Came {
    /// The client gets no response: it wanted none, or the process is dead.
    Silence,
    Response(Response),
    Native(Answered),
    /// Elements of a queue with their values, the last position that was looked at, and whether there is more.
    Page(Vec<Shown>, Option<Position>, bool),
    /// Answer to a worker.
    Work(Box<Worked>),
}

/// A living process.
struct Life {
    storage: Storage<SimDisk>,
    node: Node,
    segments_due: bool,
    /// Reads and looks that the node asked for, and that are not carried out yet.
    reads: Vec<ReadLog>,
    looks: Vec<Look>,
    compactor: Compactor,
    indexer: Indexer<SimDisk>,
    /// Replicas whose index a reader found to be of no use.
    lost: Vec<ReplicaId>,
    /// Syncs to run, and results to report; true for those of the journal.
    to_run: Vec<(SyncRequest<SimFile>, bool)>,
    ran: Vec<(SyncId, bool, io::Result<()>)>,
    /// Reports that a planted bug makes too early.
    early: Option<Vec<Done>>,
    waits: Waits,
    working: Working,
}

/// Reports of storage, or none if the process died of a fault of its disk.
pub(crate) type Reports = Result<Option<Vec<Done>>, Failure>;

/// Reads a node's settings, which are as they should be.
pub(crate) fn settings(pairs: &[(&str, &str)]) -> Result<BrokerSettings, Failure> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let pairs: Vec<_> = pairs.iter().map(own).collect();
    BrokerSettings::from_pairs(&pairs)
        .map_err(|errors| Failure::correctness(format!("settings: {errors:?}")))
}

/// Returns storage's options with small sizes. The harness draws the number of extents, and of replicas in one.
pub(crate) fn storage_options(
    seed: u64,
    facts: Facts,
    (extents_max, replicas_an_extent): (u64, usize),
    shape: &mut Prng,
) -> Options {
    Options {
        facts,
        extent_bytes: 64 * 1024,
        extents_max: u32::try_from(extents_max).expect("small"),
        replicas_an_extent,
        journal_payload_max: *shape.pick(&[500, 4096]),
        index_interval_bytes: 512,
        free_bytes_min: IN_FLIGHT_MAX + 256 * 1024,
        reserve_bytes: RESERVE_BYTES,
        open_files_max: *shape.pick(&[16, 1000]),
        recovered_at_once: *Prng::new(seed, "recovered at once").pick(&[1, 1, 1, 3]),
    }
}

/// Returns bounds of queue indexes that are soon reached.
fn index_limits(seed: u64) -> Limits {
    Limits {
        memtable_bytes: (2048, 4096),
        rest_bytes: 512,
        log_bytes: (16 * 1024, 64 * 1024),
        step_bytes: 2000,
        block_bytes: 256,
        merge_width: 3,
        class_bytes: 1024,
        merge_bytes: 300,
        free_bytes_min: IN_FLIGHT_MAX,
        touched: 2,
        seed,
    }
}

/// Returns the options of a node that is alone.
pub(crate) fn node_options(
    facts: Facts,
    host: String,
    settings: BrokerSettings,
    seed: u64,
) -> NodeOptions {
    NodeOptions {
        facts,
        listeners: vec![ClientListener { name: "PLAINTEXT".to_owned(), host, port: 9092 }],
        rack: None,
        log_dir: "/data".to_owned(),
        settings,
        seed,
        // With the kind the registrations of nodes are longer, and the histories of all kept seeds others.
        kinds: 0,
        secret: [7; 32],
        first_users: Vec::new(),
        bytes_in_flight_max: IN_FLIGHT_MAX,
        metadata_tail: Vec::new(),
        node_address: None,
        native_address: None,
        founders: Vec::new(),
        memory: Memory::default(),
        introduced: Vec::new(),
        replaces: false,
        quiet_ticks: GROUP_QUIET_TICKS,
    }
}

/// Returns a machine's name in traces.
fn name(options: &NodeOptions) -> &str {
    &options.listeners[0].host
}

impl Machine {
    pub(crate) fn new(
        disk: SimDisk,
        options: Options,
        node_options: NodeOptions,
        faults: Faults,
        bug: Option<NodeBug>,
    ) -> Self {
        Self { disk, options, node_options, faults, starts: 0, bug, life: None }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.life.is_some()
    }

    /// Returns the node of the process that runs.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.life.as_ref().map(|life| &life.node)
    }

    /// Returns the statements of the node about its replicas: none if no process runs.
    pub(crate) fn standings(&self) -> Vec<Standing> {
        self.node().map_or_else(Vec::new, Node::standings)
    }

    /// Returns access to storage's files as the process that runs sees them.
    pub(crate) fn reader(&self) -> Option<Reader<SimDisk>> {
        self.life.as_ref().map(|life| life.storage.reader())
    }

    /// Starts a process. Returns the node's first actions, or none if the process died meanwhile.
    pub(crate) fn start(
        &mut self,
        now: Now,
        compactor: Compactor,
    ) -> Result<Option<Vec<Action>>, Failure> {
        self.disk.set_faults(Faults::default());
        let (storage, mut found) = match Storage::open(self.disk.clone(), self.options.clone()) {
            Ok(opened) => opened,
            Err(error) => {
                self.blame(&error)?;
                return Ok(None);
            }
        };
        let tail = read_plan::metadata_tail(&storage.reader(), &found.replicas);
        if self.disk.is_dead() {
            return Ok(None);
        }
        let metadata_tail =
            tail.map_err(|error| Failure::correctness(format!("the metadata log: {error}")))?;
        if let Some(damaged) = found.replicas.iter().find_map(|it| it.damage.as_ref()) {
            return wrong(format!("damage where there was none: {damaged}"));
        }
        self.disk.set_faults(self.faults);
        self.starts += 1;
        let replicas = found.replicas.len();
        tell(|| format!("{} STARTED with {replicas} replicas", name(&self.node_options)));
        if self.bug == Some(NodeBug::DedupLost) {
            let all = found.replicas.iter_mut();
            for replica in all.filter(|it| !it.identity.topic.starts_with("__")) {
                replica.image = Bytes::new();
            }
        }
        let node_options = self.node_options.clone();
        let seed = node_options.seed.wrapping_add(self.starts);
        let options = NodeOptions { facts: found.facts, seed, metadata_tail, ..node_options };
        let mut actions = Vec::new();
        let node = Node::open(options, found.replicas, now, &mut actions);
        let indexer = Indexer::new(storage.reader(), index_limits(node.queue_seed()));
        let waits = Waits::new(&node);
        let life = self.life.insert(Life {
            storage,
            node,
            segments_due: false,
            reads: Vec::new(),
            looks: Vec::new(),
            compactor,
            indexer,
            lost: Vec::new(),
            to_run: Vec::new(),
            ran: Vec::new(),
            early: (self.bug == Some(NodeBug::PersistedEarly)).then(Vec::new),
            waits,
            working: Working::new(now),
        });
        Ok(Some(life.keep(actions)))
    }

    /// Kills the process, or cuts the power.
    pub(crate) fn die(&mut self, power: bool) {
        let how = if power { "POWER LOSS" } else { "KILL" };
        tell(|| format!("{}: {how}", name(&self.node_options)));
        self.life = None;
        self.disk = if power { self.disk.power_loss() } else { self.disk.kill() };
    }

    /// Ends the faults of the disk.
    pub(crate) fn heal(&mut self) {
        self.faults = Faults::default();
        self.disk.set_faults(Faults::default());
        self.disk.crash_in(None);
    }

    /// Gives the node an event, if a process runs. Returns the actions that are a harness's.
    pub(crate) fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        if let Some(life) = &mut self.life {
            life.waits.on_event(now, &event, &self.disk);
            life.working.on_event(&life.node, now, &event);
        }
        self.turn(now, |node, actions| node.step(now, event, actions))
    }

    /// Gives the node the result of a piece of work, unless the process was killed while it did that.
    pub(crate) fn report(&mut self, now: Now, event: Event) -> Vec<Action> {
        if self.disk.is_dead() { Vec::new() } else { self.step(now, event) }
    }

    /// Ends a turn of the node: that is the group commit.
    pub(crate) fn flush(&mut self, now: Now) -> Vec<Action> {
        self.turn(now, |node, actions| node.flush(now, actions))
    }

    /// Gives the node its timers, if they are due, and ends its turn.
    pub(crate) fn tick(&mut self, now: Now) -> Vec<Action> {
        self.turn(now, |node, actions| {
            if node.deadline() <= now.mono_us {
                node.step(now, Event::Tick, actions);
            }
            node.flush(now, actions);
        })
    }

    fn turn(&mut self, now: Now, turn: impl FnOnce(&mut Node, &mut Vec<Action>)) -> Vec<Action> {
        let Some(life) = &mut self.life else { return Vec::new() };
        life.waits.now_us = now.mono_us;
        life.working.note(now);
        let mut actions = Vec::new();
        turn(&mut life.node, &mut actions);
        life.keep(actions)
    }

    /// Carries out the reads of a reply.
    pub(crate) fn answer(&mut self, to: (ConnectionId, u64), reply: Reply) -> Came {
        let Some(reader) = self.reader() else { return Came::Silence };
        if let (Reply::Native(it), Some(life)) = (&reply, &mut self.life)
            && let Some(worked) = life.working.answer((&life.node, &reader), to, &it.answer)
        {
            return Came::Work(Box::new(worked));
        }
        Came::Response(match reply {
            Reply::Nothing { .. } => return Came::Silence,
            Reply::Response(response) => *response,
            Reply::Fetch(plan) => read_plan::fetch_bytes(&reader, *plan, |_, _| ()).into(),
            Reply::ShareFetch(plan) => read_plan::share_bytes(&reader, *plan).into(),
            Reply::ListOffsets(plan) => read_plan::list_offsets(&reader, *plan).into(),
            Reply::LogDirs(response) => (*response).into(),
            Reply::Replicas(plan) => read_plan::digests(&reader, *plan).into(),
            Reply::Backup(_) => unreachable!("no client asks for a backup"),
            Reply::Native(answered) => match answered.answer {
                Ok(Answer::Span(span)) => return self.read_queue(&reader, &span),
                _ => return Came::Native(read_plan::native(&reader, *answered)),
            },
        })
    }

    fn read_queue(&mut self, reader: &Reader<SimDisk>, span: &Span) -> Came {
        let mut elements = Vec::new();
        let page = queue_page::<_, ()>(reader, span, |records, record, position| {
            let value = record.value.map(|value| records.keep(value)).unwrap_or_default();
            elements.push(Shown { position, content: records.offset(record), value });
            Ok(if elements.len() < PAGE { Taken::More } else { Taken::Last })
        });
        match page {
            Ok(end) => Came::Page(elements, end.next, end.more),
            Err(QueueError::Trimmed(first, pointer)) => {
                let answer = Err(Problem::Trimmed(first, pointer));
                Came::Native(Answered { answer, lacking: None, repeat: None, rest_ms: 0 })
            }
            Err(error) => {
                tell(|| format!("a queue is not read: {error:?}"));
                if let (QueueError::Index, Some(life)) = (error, &mut self.life) {
                    life.lost.push(span.replica);
                }
                let answer = Err(Problem::Busy("the index is made anew"));
                Came::Native(Answered { answer, lacking: None, repeat: None, rest_ms: 0 })
            }
        }
    }

    /// Carries out one of the reads that the node asked for, with a chance of so many in a thousand.
    pub(crate) fn read_log(&mut self, odds: u64, chance: &mut Prng) -> Option<(ReadLog, LogRead)> {
        let life = self.life.as_mut()?;
        let wanted = draw(&mut life.reads, odds, chance)?;
        let read = read_plan::log_slice(&life.storage.reader(), &wanted);
        tell(|| format!("read {wanted:?}: {:?}", read.batches.as_ref().map(Bytes::len)));
        Some((wanted, read))
    }

    /// Carries out one of the looks at a log that the node asked for, with a chance of so many in a thousand.
    pub(crate) fn look(&mut self, odds: u64, chance: &mut Prng) -> Option<Event> {
        let life = self.life.as_mut()?;
        let rests = life.looks.is_empty();
        let wanted = draw(&mut life.looks, odds, chance);
        // A process that was killed in the middle of something hears nothing more of it.
        if (rests || wanted.is_some()) && !self.disk.is_dead() {
            life.waits.on_look(&life.node, rests && life.lost.is_empty());
        }
        let wanted = wanted?;
        tell(|| format!("{}: {wanted:?}", name(&self.node_options)));
        Some(read_plan::look(&life.storage.reader(), &wanted))
    }

    /// Does a piece of the work on queue indexes, with a chance of so many in a thousand.
    pub(crate) fn index(&mut self, odds: u64, chance: &mut Prng) -> Option<Event> {
        let life = self.life.as_mut()?;
        if let Some(replica) = life.lost.pop() {
            return Some(Event::IndexLost(replica));
        }
        if !life.indexer.has_work() {
            life.waits.on_step();
            return None;
        }
        if !chance.chance(odds) {
            return None;
        }
        match life.indexer.step(true) {
            Step::Indexed(indexed) => {
                tell(|| format!("{}: {indexed:?}", name(&self.node_options)));
                life.waits.on_step();
                return Some(Event::Indexed(indexed));
            }
            Step::Idle | Step::Merged => life.waits.on_step(),
            Step::Wait => {}
        }
        None
    }

    /// Does a piece of the work on data at rest. Returns an answer for work that could not be done.
    pub(crate) fn compact(&mut self) -> Option<Done> {
        let life = self.life.as_mut()?;
        life.compactor.step(&mut life.storage)
    }

    /// Does one piece of storage's work, with the number `piece` of seven.
    pub(crate) fn work(&mut self, piece: u64, idle: bool, chance: &mut Prng) -> Reports {
        self.drive(|life, disk| match piece {
            0 | 1 => life.begin_round(),
            2 => life.write_segments(),
            3 | 4 => {
                life.run_sync(disk, chance);
                Ok(Vec::new())
            }
            5 => life.report_sync(disk, chance),
            _ => life.maintain(idle || chance.chance(100)),
        })
    }

    /// Lets a repaired copy take its segment's place.
    pub(crate) fn switch(&mut self, mended: &Mended<SimDisk>) -> Reports {
        self.drive(|life, _| life.storage.switch(mended).map(|()| life.take_done()))
    }

    fn drive(
        &mut self,
        work: impl FnOnce(&mut Life, &SimDisk) -> Result<Vec<Done>, Error>,
    ) -> Reports {
        let life = self.life.as_mut().expect("a process runs while storage works");
        if let Some(fault) = life.waits.fault() {
            return wrong(format!("{}: {fault}", name(&self.node_options)));
        }
        match work(life, &self.disk) {
            Ok(done) => Ok(Some(done)),
            Err(error) => {
                self.blame(&error)?;
                self.life = None;
                Ok(None)
            }
        }
    }

    /// Blames the disk's faults for an error of storage. Without such faults it is storage's own.
    fn blame(&self, error: &Error) -> Result<(), Failure> {
        tell(|| format!("{}: {error:?}", name(&self.node_options)));
        if self.disk.is_dead() || self.disk.is_doomed() {
            return Ok(());
        }
        wrong(format!("an error without a cause: {error:?}"))
    }
}

impl Life {
    /// Gives storage what the node wants stored, and keeps what it wants read. Returns the rest.
    fn keep(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut rest = Vec::new();
        for action in actions {
            self.waits.on_action(&action);
            match action {
                Action::Storage(op) => {
                    if let OpKind::Write { ticket, .. } | OpKind::Create { ticket, .. } = &op.kind
                        && let Some(early) = &mut self.early
                    {
                        early.push(Done::Persisted { replica: op.replica, ticket: *ticket });
                    }
                    self.storage.submit(op);
                }
                Action::ReadLog(wanted) => self.reads.push(wanted),
                Action::Look(wanted) => self.looks.push(wanted),
                Action::Index(order) => self.indexer.order(order),
                Action::Compact(order) => self.compactor.push(order),
                Action::Stage(stage) => self.compactor.stage(stage),
                other => rest.push(other),
            }
        }
        rest
    }

    fn begin_round(&mut self) -> Result<Vec<Done>, Error> {
        if self.segments_due {
            return self.write_segments();
        }
        if let Some(request) = self.storage.begin_round()? {
            self.segments_due = true;
            self.to_run.push((request, true));
        }
        Ok(Vec::new())
    }

    fn write_segments(&mut self) -> Result<Vec<Done>, Error> {
        if std::mem::take(&mut self.segments_due) {
            let requests = self.storage.write_segments()?;
            self.to_run.extend(requests.into_iter().map(|request| (request, false)));
        }
        Ok(Vec::new())
    }

    fn run_sync(&mut self, disk: &SimDisk, chance: &mut Prng) {
        if !self.to_run.is_empty() {
            let at = chance.index(self.to_run.len());
            let (request, journal) = self.to_run.swap_remove(at);
            let result = request.run(disk);
            self.ran.push((request.id, journal, result));
        }
    }

    fn report_sync(&mut self, disk: &SimDisk, chance: &mut Prng) -> Result<Vec<Done>, Error> {
        if self.ran.is_empty() {
            return Ok(Vec::new());
        }
        let at = chance.index(self.ran.len());
        if self.ran[at].1 && self.segments_due {
            return self.write_segments();
        }
        let (id, _, result) = self.ran.swap_remove(at);
        if result.is_err() {
            disk.doom();
        }
        self.storage.on_sync(id, result)?;
        Ok(self.take_done())
    }

    fn maintain(&mut self, idle: bool) -> Result<Vec<Done>, Error> {
        let requests = self.storage.maintain(idle)?;
        self.to_run.extend(requests.into_iter().map(|request| (request, false)));
        Ok(self.take_done())
    }

    fn take_done(&mut self) -> Vec<Done> {
        let mut done = self.storage.take_done();
        if let Some(early) = &mut self.early {
            done.retain(|done| !matches!(done, Done::Persisted { .. }));
            done.append(early);
        }
        done
    }
}

/// Takes one of those that wait, with a chance of so many in a thousand.
fn draw<T>(waiting: &mut Vec<T>, odds: u64, chance: &mut Prng) -> Option<T> {
    if waiting.is_empty() || !chance.chance(odds) {
        return None;
    }
    Some(waiting.swap_remove(chance.index(waiting.len())))
}
