//! # Room card: core loop
//!
//! Purpose:    the one thread that steps the node.
//! Owns:       turns: the waiting input goes in, then one flush, then the actions go where they belong.
//! Interface:  [`start`], [`Clock`], [`Reads`].
//! Invariants: storage gets one batch a turn, before any reply is handed out; a reply goes only to the
//!             connection that asked; nothing here waits but for the next event or the deadline.
//! Never:      a decision.
//! Tests:      `tests/`; the node itself is judged by the simulator.
//! Start at:   [`CoreLoop::turn`].
//!
//! Estimate for a produce of 2 KiB at 128 in flight: its event costs one channel send. Its turn is shared
//! with all that arrived meanwhile. Its reply costs one channel send and at most one wake-up of its
//! connection's task. On another thread that is a call of the kernel.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen_broker::census::{Census, Counted};
use duramen_broker::event::{Look, ReadLog};
use duramen_broker::{Action, ConnectionId, Event, Node, Now, read_plan};
use duramen_storage::Reader;
use duramen_storage::op::Done;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::disk::RealDisk;
use super::ending;
use super::peers::Links;
use super::threads::{Chore, Common, Errand, Input, Routed, ToNode, Work};

/// Events in one turn at most: storage should not wait longer for the first of them.
const TURN_EVENTS_MAX: usize = 2048;

/// Shortest suspension in milliseconds; anything less is the time between two readings of one clock.
const SUSPENSION_MS_MIN: i64 = 1000;

/// Time between two copies of the node's figures while something happens. A copy walks over all partitions.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

/// Pause between two parts of a census. Other work has the thread for at least nine tenths of the time.
const CENSUS_PAUSE: Duration = Duration::from_millis(1);

/// The way of a census's rows to those who wait for them.
type Rows = UnboundedSender<Option<Vec<Counted>>>;

/// Both clocks, from one start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    opened: Instant,
    /// Time for which the machine was suspended since it was booted, as read last, in milliseconds.
    slept_ms: i64,
}

impl Clock {
    /// Starts at zero.
    pub fn start() -> Self {
        Self { opened: Instant::now(), slept_ms: slept_ms() }
    }

    /// Tells a suspension of the machine from a leap of the wall clock. Returns the milliseconds that the machine was
    /// suspended since the last call.
    fn take_suspension(&mut self) -> Option<i64> {
        let suspended_ms = slept_ms().saturating_sub(self.slept_ms);
        let is_one = suspended_ms >= SUSPENSION_MS_MIN;
        self.slept_ms += if is_one { suspended_ms } else { 0 };
        is_one.then_some(suspended_ms)
    }

    /// Reads both.
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono_us: u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX),
            wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// Converts a monotonic time to an instant.
    fn instant(&self, mono_us: u64) -> Option<Instant> {
        self.opened.checked_add(Duration::from_micros(mono_us))
    }
}

/// Returns the milliseconds that the machine was suspended since it was booted. The boot-time clock goes on then, and
/// the monotonic one does not.
fn slept_ms() -> i64 {
    let read_ms = |clock| {
        let read = clock_gettime(clock);
        read.tv_sec.saturating_mul(1000).saturating_add(read.tv_nsec / 1_000_000)
    };
    let monotonic_ms = read_ms(ClockId::Monotonic);
    read_ms(ClockId::Boottime).saturating_sub(monotonic_ms)
}

/// Starts the node's thread, which also runs all other tasks of `runtime`. `actions` are those of opening the node. The
/// handle ends after [`Input::Stop`].
pub fn start(
    (node, actions, clock): (Node, Vec<Action>, Clock),
    reads: Reads,
    links: Links,
    common: Common,
    (runtime, inputs): (Runtime, UnboundedReceiver<Input>),
) -> io::Result<JoinHandle<()>> {
    ending::spawn("duramen-node", move || {
        let core = CoreLoop {
            reads,
            links,
            node,
            clock,
            common,
            connections: HashMap::new(),
            census: None,
            actions,
            figures_at: Instant::now(),
            figures_due: true,
            is_ready: false,
            step_longest: Duration::ZERO,
            turn_longest: Duration::ZERO,
            busy: Duration::ZERO,
            stopping: false,
        };
        // A task among the others: what they have is taken in one turn, and woken without a call of the kernel.
        let task = runtime.spawn(core.run(inputs));
        runtime.block_on(task).expect("the node's task ends in good order");
        runtime.shutdown_background();
    })
}

/// Reads that the node asked for, on threads that may wait.
#[derive(Clone, Debug)]
pub struct Reads {
    /// Runtime whose blocking threads read.
    pub runtime: Handle,
    /// Reader of the segments.
    pub reader: Reader<RealDisk>,
}

impl Reads {
    fn start(&self, wanted: ReadLog, node: &ToNode) {
        let (reader, node) = (self.reader.clone(), node.clone());
        self.runtime.spawn_blocking(move || {
            let read = read_plan::log_slice(&reader, &wanted);
            node.push(Input::Event(Event::LogRead(read)));
        });
    }

    fn look(&self, wanted: Look, node: &ToNode) {
        let (reader, node) = (self.reader.clone(), node.clone());
        self.runtime.spawn_blocking(move || {
            node.push(Input::Event(read_plan::look(&reader, &wanted)));
        });
    }
}

struct CoreLoop {
    reads: Reads,
    links: Links,
    node: Node,
    clock: Clock,
    common: Common,
    connections: HashMap<ConnectionId, UnboundedSender<Routed>>,
    /// A census under way, who waits for it, and the time of its next part.
    census: Option<(Census, Rows, Instant)>,
    /// Kept from turn to turn for its memory.
    actions: Vec<Action>,
    figures_at: Instant,
    /// True if something happened since the figures were copied.
    figures_due: bool,
    /// True once the node has said that it can serve; until then each turn asks it.
    is_ready: bool,
    step_longest: Duration,
    turn_longest: Duration,
    /// Time of turns that the metrics do not have yet.
    busy: Duration,
    stopping: bool,
}

impl CoreLoop {
    async fn run(mut self, mut inputs: UnboundedReceiver<Input>) {
        let mut waiting = Vec::new();
        self.route();
        while !self.stopping || !inputs.is_empty() {
            self.common.health.end(&self.common.health.node);
            let coming = inputs.recv_many(&mut waiting, TURN_EVENTS_MAX);
            // With a deadline nothing may come.
            match self.wake_at() {
                None => _ = coming.await,
                Some(at) => _ = timeout_at(at.into(), coming).await,
            }
            self.common.health.begin(&self.common.health.node);
            self.turn(&mut waiting);
            // Replies go out, and what has arrived meanwhile is read, before the next turn.
            yield_now().await;
        }
        self.figures();
        self.common.work.push(Work::Stop);
    }

    fn wake_at(&self) -> Option<Instant> {
        let deadline = self.clock.instant(self.node.deadline());
        let figures = self.figures_due.then(|| self.figures_at + FIGURES_EVERY);
        let census = self.census.as_ref().map(|(.., at)| *at);
        [deadline, figures, census].into_iter().flatten().min()
    }

    fn turn(&mut self, waiting: &mut Vec<Input>) {
        let began = Instant::now();
        let suspended_ms = self.clock.take_suspension();
        let now = self.clock.now();
        if let Some(ms) = suspended_ms {
            tracing::info!(ms, "the machine was suspended");
            self.node.step(now, Event::Suspended { ms }, &mut self.actions);
        }
        let count = waiting.len();
        let mut lap = began;
        for input in waiting.drain(..) {
            self.accept(now, input);
            let after = Instant::now();
            self.node.took(u64::try_from((after - lap).as_micros()).unwrap_or(u64::MAX));
            self.step_longest = self.step_longest.max(after - lap);
            lap = after;
        }
        if self.node.deadline() <= now.mono_us {
            self.node.step(now, Event::Tick, &mut self.actions);
            // A node that hears nobody any more has something to tell, too.
            self.figures_due = true;
        }
        self.node.flush(now, &mut self.actions);
        self.step_longest = self.step_longest.max(lap.elapsed());
        self.route();
        self.count();
        if count > 0 {
            self.common.metrics.threads.turn_events.observe(count as f64);
            self.figures_due = true;
        }
        let spent = began.elapsed();
        self.busy += spent;
        self.turn_longest = self.turn_longest.max(spent);
        if !self.is_ready {
            self.is_ready = self.common.health.note(&self.node.readiness());
        }
        if self.figures_due && self.figures_at.elapsed() >= FIGURES_EVERY {
            self.figures();
        }
    }

    fn accept(&mut self, now: Now, input: Input) {
        match input {
            Input::Connected(connection, replies) => {
                self.connections.insert(connection, replies);
            }
            Input::Event(event) => {
                if let Event::Disconnected(connection) = &event {
                    self.connections.remove(connection);
                }
                self.node.step(now, event, &mut self.actions);
            }
            Input::Peer(frame, _room) => {
                self.node.step(now, Event::Peer(frame), &mut self.actions);
            }
            Input::Storage(done) => {
                for done in done {
                    if let Done::DiskFull(shortage) = done {
                        let is_full = shortage.is_some();
                        self.common.health.disk_full.store(is_full, Ordering::Relaxed);
                    }
                    self.node.step(now, Event::Storage(done), &mut self.actions);
                }
            }
            Input::Census(rows) => self.census = Some((Census::default(), rows, Instant::now())),
            Input::Stop => self.stopping = true,
        }
    }

    /// Hands out the turn's actions: storage first, because the disk is what everyone waits for.
    fn route(&mut self) {
        let mut ops = Vec::new();
        let mut replies = Vec::new();
        let mut frames = Vec::new();
        for action in self.actions.drain(..) {
            match action {
                Action::Storage(op) => ops.push(op),
                Action::ReadLog(wanted) => self.reads.start(wanted, &self.common.node),
                Action::Look(wanted) => self.reads.look(wanted, &self.common.node),
                Action::Mend(mend) => self.common.chores.push(Chore::Mend(mend)),
                Action::Index(order) => self.common.orders.push(Errand::Index(order)),
                Action::Compact(order) => self.common.chores.push(Chore::Compact(order)),
                Action::Stage(stage) => self.common.chores.push(Chore::Stage(stage)),
                Action::Reply { connection, sequence, reply } => {
                    replies.push((connection, Routed::Reply(sequence, reply)));
                }
                Action::Credential { connection, credential } => {
                    replies.push((connection, Routed::Credential(credential)));
                }
                Action::Close { connection, reason } => {
                    replies.push((connection, Routed::Close(reason)));
                }
                Action::Fatal(reason) => ending::on_fatal(&reason),
                Action::Drained => self.common.drained.notify_one(),
                Action::Send { to, frame } => frames.push((to, frame)),
                Action::Targets(targets) => _ = self.common.targets.send_replace(targets),
                Action::Nodes(nodes) => self.links.place(&nodes),
                Action::Members(members) => self.links.follow(members),
            }
        }
        if !ops.is_empty() {
            self.common.work.push(Work::Ops(ops));
        }
        for (to, frame) in frames {
            self.links.send(to, *frame);
        }
        for (connection, routed) in replies {
            // The connection may be gone; then nobody waits for the answer.
            if let Some(replies) = self.connections.get(&connection) {
                let _ = replies.send(routed);
            }
        }
    }

    /// Gives the next part of a census, if one is due, and unless nobody waits for it any more.
    fn count(&mut self) {
        let is_due = |(.., at): &mut (Census, Rows, Instant)| *at <= Instant::now();
        let Some((mut census, rows, _)) = self.census.take_if(is_due) else { return };
        let part = self.node.count(&mut census);
        let is_last = part.is_none();
        if rows.send(part).is_ok() && !is_last {
            self.census = Some((census, rows, Instant::now() + CENSUS_PAUSE));
        }
    }

    fn figures(&mut self) {
        let us = |longest: Duration| i64::try_from(longest.as_micros()).unwrap_or(i64::MAX);
        self.common.metrics.threads.step_longest_us.set(us(self.step_longest));
        self.common.metrics.threads.turn_longest_us.set(us(self.turn_longest));
        let busy = std::mem::take(&mut self.busy).as_secs_f64();
        self.common.metrics.threads.node_busy_seconds.inc_by(busy);
        self.figures_at = Instant::now();
        self.figures_due = false;
        self.is_ready = self.common.health.note(&self.node.readiness());
        let metrics = self.node.metrics();
        let failed = metrics.partitions_failed + metrics.coordinators_failed;
        self.common.health.groups_failed.store(failed, Ordering::Relaxed);
        self.common.health.disk_full.store(metrics.is_disk_full, Ordering::Relaxed);
        self.common.metrics.set_node(super::figures::of(&metrics));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_awake_was_not_suspended_and_each_suspension_is_told_once() {
        let mut clock = Clock::start();
        assert_eq!(clock.take_suspension(), None);
        clock.slept_ms -= 5000;
        assert!(clock.take_suspension().is_some_and(|ms| (4990..5010).contains(&ms)));
        assert_eq!(clock.take_suspension(), None);
    }
}
