//! # Room card: fast appends
//!
//! Purpose:    append batches to one partition in one round trip: to all members of its stretch at once.
//! Owns:       the batches that are not done, when each goes to the members, and when to the leader for the commit.
//! Interface:  [`FastAppender::push`], [`FastAppender::finish`], [`FastAppender::warning`].
//! Invariants: at most five batches are not done. A batch goes to the members of one stretch, once; afterwards only to
//!             the leader, for the commit. Only the leader's answer about the commit refuses a batch for good.
//! Never:      the rule by which answers count (`fast/tally.rs`), the search for a stretch (`fast/route.rs`).
//! Tests:      `tests/fast.rs`; `tests/fast.rs` of `duramen` against real nodes.
//! Start at:   [`FastAppender::push`].
//!
//! A client has two connections to a member. Answers leave a connection in order, so those that wait for a commit have
//! one, and those of members the other.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::append_fast::{AppendFastPartition, AppendFastTopic, AppendedFast};
use duramen_protocol::messages::{AppendFastRequest, AppendFastResponse};
use duramen_protocol::wire::Uuid;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::appender::{
    Acked, Acknowledgement, Producer, advance, append_to, claim, may_pass, produce, produced,
    records_of,
};
use crate::backoff::Backoff;
use crate::client::{Client, Leader};
use crate::error::Error;
use crate::node_id::NodeId;

mod pace;
mod route;
mod tally;

use pace::Pace;
use route::Route;
use tally::{Named, Resort, Said, Stretch, Tally, Told};

/// Batches that may be not done at once: as many as brokers remember of a producer.
const WINDOW_MAX: usize = 5;
/// Largest batch that members take.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Shortest time from one request for a stretch to the next.
const SEEK_EVERY: Duration = Duration::from_secs(1);
/// Usual shortest time after which members are late.
pub const LATE_AFTER: Duration = Duration::from_millis(5);
/// Shortest time from one wait for a clear way to the next.
const CLEAR_EVERY: Duration = Duration::from_millis(100);

/// Options of fast appends.
#[derive(Debug, Clone, Copy)]
pub struct FastOptions {
    /// Producer of the batches.
    pub producer: Producer,
    /// Batches in flight at once, at most 5.
    pub window: usize,
    /// Longest wait of the leader for its replicas, in milliseconds.
    pub timeout_ms: i32,
    /// Shortest time after which members are late, and the batch goes to the leader for its commit: [`LATE_AFTER`] for
    /// most. Where members take longer, their usual time counts.
    pub late_after: Duration,
}

/// Appends batches to one partition in one round trip, each exactly once and in order.
///
/// Where fast appends are not to be had at the moment, or not at all, batches go to the leader with `acks=all`.
pub struct FastAppender {
    client: Client,
    topic: String,
    partition: i32,
    options: FastOptions,
    next_sequence: i32,
    tally: Tally,
    /// One for each batch of the tally.
    pending: VecDeque<Pending>,
    answers: mpsc::UnboundedReceiver<Answer>,
    answered: mpsc::UnboundedSender<Answer>,
    way: Way,
    pace: Pace,
    /// Pauses since the last batch that was done.
    backoff: Option<Backoff>,
    /// End of the pause before the leader is asked again.
    paused_until: Option<Instant>,
    attempts: u64,
    /// Another broker may lead now.
    is_leader_doubtful: bool,
    warning: Option<String>,
}

/// The way to the members of a stretch.
struct Way {
    route: Option<Route>,
    is_sought: bool,
    /// Earliest time to ask for a stretch.
    ask_at: Instant,
    /// Earliest time to connect to members that an answer names.
    connect_at: Instant,
    /// Earliest time to wait for a clear way again.
    clear_at: Instant,
    /// Fast appends are not to be had here.
    is_plain: bool,
}

/// A batch that is not told yet.
struct Pending {
    batch: Bytes,
    ids: Ids,
    records: u32,
    sent: Instant,
    /// Time from which on members are late, if the batch was sent to them.
    late_at: Option<Instant>,
    commit: Commit,
    /// The leader does not know the names of the batch, or another one leads.
    is_whole: bool,
    /// Its request came to the leader before an earlier batch; the next one waits for that.
    follows: bool,
}

/// First and last sequence of a batch.
#[derive(Clone, Copy)]
struct Ids {
    first: i32,
    last: i32,
}

/// State of the request for a batch's commit.
enum Commit {
    Unasked,
    Asked {
        attempt: u64,
        /// All earlier batches were done when it was sent.
        is_oldest: bool,
        by_ids: bool,
    },
    /// The answer is an error for good.
    Refused(Error),
}

/// Something that a task of this appender heard.
enum Answer {
    Member { batch: u64, from: NodeId, under: Stretch, result: Result<AppendedFast, Error> },
    Leader { batch: u64, attempt: u64, result: Result<Standing, Error> },
    Sought(Result<Option<Route>, Error>),
}

/// Answer of the leader about a commit.
struct Standing {
    /// Offset of the batch; `None` if the leader does not know the batch.
    offset: Option<i64>,
    named: Option<Named>,
}

impl FastAppender {
    /// Returns an appender to a partition that exists. Must be called within a tokio runtime.
    pub fn new(client: Client, topic: &str, partition: i32, options: FastOptions) -> Self {
        let (answered, answers) = mpsc::unbounded_channel();
        let now = Instant::now();
        Self {
            client,
            topic: topic.into(),
            partition,
            options,
            next_sequence: 0,
            tally: Tally::default(),
            pending: VecDeque::new(),
            answers,
            answered,
            way: Way {
                route: None,
                is_sought: false,
                ask_at: now,
                connect_at: now,
                clear_at: now,
                is_plain: false,
            },
            pace: Pace::default(),
            backoff: None,
            paused_until: None,
            attempts: 0,
            is_leader_doubtful: false,
            warning: None,
        }
    }

    /// Takes an encoded batch, and sends it as soon as the window allows. Returns the batches that are done meanwhile,
    /// the oldest first; their offset is -1 unless they are known to be committed. Writes the producer and its sequence
    /// into the batch.
    ///
    /// Fails as [`Appender::push`](crate::Appender::push) does.
    ///
    /// # Panics
    ///
    /// Panics on bytes that are shorter than the header of a batch.
    pub async fn push(&mut self, mut batch: BytesMut) -> Result<Vec<Acked>, Error> {
        let records = records_of(&batch);
        let first = self.next_sequence;
        self.next_sequence = advance(first, records);
        let last = advance(first, records.saturating_sub(1));
        claim(&mut batch, self.options.producer, first);
        let mut acked = Vec::new();
        self.hear_all();
        self.take_done(&mut acked)?;
        let window = self.options.window.clamp(1, WINDOW_MAX);
        while self.pending.len() >= window {
            self.step().await;
            self.take_done(&mut acked)?;
        }
        if self.should_clear_way(batch.len()) {
            while self.way.route.is_some() && self.tally.has_resorted() {
                self.step().await;
                self.take_done(&mut acked)?;
            }
        }
        self.pending.push_back(Pending {
            batch: batch.freeze(),
            ids: Ids { first, last },
            records,
            sent: Instant::now(),
            late_at: None,
            commit: Commit::Unasked,
            is_whole: false,
            follows: false,
        });
        let number = self.tally.push();
        self.send(number).await;
        Ok(acked)
    }

    /// Waits until every batch is done. Returns those that [`push`](Self::push) has not returned, the oldest first.
    /// Fails as `push` does.
    pub async fn finish(&mut self) -> Result<Vec<Acked>, Error> {
        let mut acked = Vec::new();
        self.hear_all();
        self.take_done(&mut acked)?;
        while !self.pending.is_empty() {
            self.step().await;
            self.take_done(&mut acked)?;
        }
        Ok(acked)
    }

    /// Waits until fast appends are to be had, or never will be, for `time` at most. An appender takes batches without
    /// that too.
    pub async fn prepare(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while self.way.route.is_none() && !self.way.is_plain && Instant::now() < end {
            self.seek_stretch().await;
            let until = if self.way.is_sought { end } else { end.min(self.way.ask_at) };
            if let Ok(Some(answer)) = timeout_at(until, self.answers.recv()).await {
                self.hear(answer);
            }
        }
    }

    /// Returns the reason why fast appends are not to be had here, for a person. Returns each reason once.
    pub fn warning(&mut self) -> Option<String> {
        self.warning.take()
    }

    /// Tells the batches that are done, or fails with the error of the oldest one.
    fn take_done(&mut self, acked: &mut Vec<Acked>) -> Result<(), Error> {
        while let Some(Told { offset: base_offset, is_fast }) = self.tally.take() {
            let done = self.pending.pop_front().expect("one for each batch of the tally");
            let (records, bytes) = (done.records, done.batch.len());
            acked.push(Acked { base_offset, records, bytes, is_fast });
            self.backoff = None;
        }
        match self.pending.front_mut() {
            Some(Pending { commit: commit @ Commit::Refused(_), .. }) => {
                match std::mem::replace(commit, Commit::Unasked) {
                    Commit::Refused(error) => Err(error),
                    _ => unreachable!("just seen"),
                }
            }
            _ => Ok(()),
        }
    }

    /// Tells whether a new batch should wait until those before it are done. A follower takes a batch only behind the
    /// one before it. So a batch behind one that went to the leader alone would have to go there too.
    fn should_clear_way(&mut self, bytes: usize) -> bool {
        let now = Instant::now();
        let is_fast = bytes <= BATCH_BYTES_MAX && self.way.route.is_some();
        let is_due = is_fast && self.tally.has_resorted() && now >= self.way.clear_at;
        if is_due {
            self.way.clear_at = now + CLEAR_EVERY;
        }
        is_due
    }

    /// Sends a new batch: to all members if there is a way, else to the leader.
    async fn send(&mut self, number: u64) {
        self.seek_stretch().await;
        let bytes = self.pending.back().map_or(0, |it| it.batch.len());
        let is_behind = self.tally.has_resorted();
        let route = self.way.route.clone().filter(|_| bytes <= BATCH_BYTES_MAX && !is_behind);
        match route {
            Some(route) if route.is_open() => self.send_to_members(number, &route).await,
            Some(_) => {
                self.lose_way();
                self.tally.resort(number);
            }
            None => self.tally.resort(number),
        }
        self.ask_leader().await;
    }

    async fn send_to_members(&mut self, number: u64, route: &Route) {
        let Ok(topic) = self.client.topic(&self.topic, false).await else {
            self.tally.resort(number);
            return;
        };
        let at = self.tally.at(number).expect("it is new");
        let late_after = self.late_after();
        let records = self.pending[at].batch.clone();
        let request = self.request(0, topic.topic_id, &route.named.stretch, Some(records), at);
        let now = Instant::now();
        self.pending[at].sent = now;
        self.pending[at].late_at = Some(now + late_after);
        self.tally.send(number, &route.named);
        let under = route.named.stretch;
        for (from, connection) in &route.connections {
            // A member that takes nothing from its socket holds up no other.
            let started = timeout(late_after, connection.start(&request)).await;
            let Ok(Ok(in_flight)) = started else {
                self.tally.resort(number);
                self.lose_way();
                continue;
            };
            let (from, answered) = (*from, self.answered.clone());
            let to = (self.topic.clone(), self.partition);
            tokio::spawn(async move {
                let result = in_flight.answer().await.and_then(|it| row(it, (&to.0, to.1)));
                // Nobody hears it if the appender is gone.
                let _ = answered.send(Answer::Member { batch: number, from, under, result });
            });
        }
    }

    /// Sends requests for the commits that are needed, the oldest batch first.
    async fn ask_leader(&mut self) {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.paused_until = None;
        if std::mem::take(&mut self.is_leader_doubtful) {
            self.client.forget(&self.topic).await;
        }
        self.tally.resort_in_order();
        for at in 0..self.pending.len() {
            let number = self.tally.number(at);
            let it = &self.pending[at];
            let Some(resort) = self.tally.wanted(number) else { continue };
            let waits = it.follows && at > 0;
            if waits || !matches!(it.commit, Commit::Unasked) {
                continue;
            }
            let by_ids = resort == Resort::ByIds && !it.is_whole;
            if let Err(error) = self.ask_for(number, at, by_ids).await {
                self.refuse(at, error);
                return;
            }
        }
    }

    /// Sends the request for the commit of one batch.
    async fn ask_for(&mut self, number: u64, at: usize, by_ids: bool) -> Result<(), Error> {
        let leader = self.client.leader(&self.topic, self.partition).await?;
        self.attempts += 1;
        let attempt = self.attempts;
        let answered = self.answered.clone();
        let tell = move |result| {
            let _ = answered.send(Answer::Leader { batch: number, attempt, result });
        };
        let to = (self.topic.clone(), self.partition);
        let is_known = leader.connection.version::<AppendFastRequest>(i16::MAX).is_ok();
        let under = self.tally.stretch_of(number);
        let is_large = self.pending[at].batch.len() > BATCH_BYTES_MAX;
        if !is_known || (self.way.is_plain || is_large) && under.is_none() {
            let request = self.produce(&leader, at);
            let in_flight = leader.connection.start(&request).await?;
            tokio::spawn(async move {
                let offset = in_flight.answer().await.and_then(|it| produced(it, (&to.0, to.1)));
                tell(offset.map(|offset| Standing { offset: Some(offset), named: None }));
            });
        } else {
            let records = (!by_ids).then(|| self.pending[at].batch.clone());
            // Before the leader refuses a batch for good that members may hold, it ends their stretch.
            let under = under.unwrap_or(Stretch { term: -1, index: -1 });
            let request = self.request(1, leader.topic_id, &under, records, at);
            let in_flight = leader.connection.start(&request).await?;
            tokio::spawn(async move {
                let part = in_flight.answer().await.and_then(|it| row(it, (&to.0, to.1)));
                tell(part.and_then(|part| standing(part, (&to.0, to.1))));
            });
        }
        self.pending[at].commit = Commit::Asked { attempt, is_oldest: at == 0, by_ids };
        Ok(())
    }

    fn produce(&self, leader: &Leader, at: usize) -> duramen_protocol::messages::ProduceRequest {
        let batch = self.pending[at].batch.clone();
        let acks = (Acknowledgement::All, self.options.timeout_ms);
        produce((&self.topic, self.partition), leader, batch, acks)
    }

    fn request(
        &self,
        wait: i8,
        topic_id: Uuid,
        stretch: &Stretch,
        records: Option<Bytes>,
        at: usize,
    ) -> AppendFastRequest {
        let Ids { first, last } = self.pending[at].ids;
        let partition = AppendFastPartition {
            index: self.partition,
            stretch_term: stretch.term,
            stretch_index: stretch.index,
            producer_id: self.options.producer.id,
            producer_epoch: self.options.producer.epoch,
            first_sequence: first,
            last_sequence: last,
            records,
        };
        let topics = [AppendFastTopic { topic_id, partitions: [partition].into() }].into();
        AppendFastRequest { wait, timeout_ms: self.options.timeout_ms, topics }
    }

    /// Does what is due, and waits for the next answer or the next thing that is due.
    async fn step(&mut self) {
        self.seek_stretch().await;
        self.note_late();
        self.ask_leader().await;
        if self.pending.front().is_some_and(|it| matches!(it.commit, Commit::Refused(_))) {
            return;
        }
        let answer = match self.next_due() {
            Some(due) => timeout_at(due, self.answers.recv()).await.unwrap_or(None),
            None => self.answers.recv().await,
        };
        if let Some(answer) = answer {
            self.hear(answer);
            self.hear_all();
        }
        self.note_late();
        self.ask_leader().await;
    }

    /// Returns the time of the next thing that is due without an answer.
    fn next_due(&self) -> Option<Instant> {
        let late = self.pending.iter().filter_map(|it| it.late_at).min();
        let is_seeking = self.way.route.is_some() || self.way.is_sought || self.way.is_plain;
        let seek = (!is_seeking).then_some(self.way.ask_at);
        [late, self.paused_until, seek].into_iter().flatten().min()
    }

    /// Sends batches to the leader whose members are late.
    fn note_late(&mut self) {
        let (now, late_after) = (Instant::now(), self.late_after());
        for at in 0..self.pending.len() {
            if self.pending[at].late_at.is_none_or(|late| late > now) {
                continue;
            }
            let number = self.tally.number(at);
            let again =
                self.pace.late_at(self.pending[at].sent, late_after, self.tally.missing(number));
            self.pending[at].late_at = again.filter(|late| *late > now);
            if self.pending[at].late_at.is_none() {
                self.tally.resort(number);
            }
        }
    }

    fn late_after(&self) -> Duration {
        self.pace.usual().max(self.options.late_after)
    }

    /// Asks the leader for a stretch, if none is known and it is time.
    async fn seek_stretch(&mut self) {
        let now = Instant::now();
        let way = &mut self.way;
        if way.is_plain || way.is_sought || way.route.is_some() || now < way.ask_at {
            return;
        }
        way.ask_at = now + SEEK_EVERY;
        let Ok(leader) = self.client.leader(&self.topic, self.partition).await else { return };
        self.way.is_sought = true;
        let place = (leader.connection.address().to_owned(), leader.topic_id, self.partition);
        let (client, answered) = (self.client.clone(), self.answered.clone());
        tokio::spawn(async move {
            let _ = answered.send(Answer::Sought(route::ask(client, place).await));
        });
    }

    fn lose_way(&mut self) {
        self.way.route = None;
    }

    fn hear_all(&mut self) {
        while let Ok(answer) = self.answers.try_recv() {
            self.hear(answer);
        }
    }

    fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Member { batch, from, under, result } => {
                self.hear_member(batch, from, under, result);
            }
            Answer::Leader { batch, attempt, result } => self.hear_leader(batch, attempt, result),
            Answer::Sought(result) => self.hear_sought(result),
        }
    }

    fn hear_member(
        &mut self,
        batch: u64,
        from: NodeId,
        under: Stretch,
        result: Result<AppendedFast, Error>,
    ) {
        let Ok(part) = result else {
            self.tally.resort(batch);
            self.lose_stretch(under);
            return;
        };
        self.pace.hear(from);
        let said = Said::of(part.outcome, part.base_offset);
        if self.tally.hear(batch, from, under, said)
            && let Some(at) = self.tally.at(batch)
        {
            self.pace.note(self.pending[at].sent.elapsed());
        }
        if let Some(at) = self.tally.at(batch)
            && self.tally.is_complete(batch)
        {
            self.pending[at].late_at = None;
        }
        let named = Named::of((part.stretch_term, part.stretch_index), part.members);
        let leads = self.way.leads(from, under);
        match named {
            Some(named) if named.stretch != under => {
                self.tally.resort(batch);
                self.lose_stretch(under);
                self.follow(named);
            }
            // A follower names none. A leader that names none has ended the stretch.
            None if leads => {
                self.tally.resort(batch);
                self.lose_stretch(under);
            }
            _ => {}
        }
    }

    fn hear_leader(&mut self, batch: u64, attempt: u64, result: Result<Standing, Error>) {
        let Some(at) = self.tally.at(batch) else { return };
        // Of an earlier attempt only a commit says anything.
        let asked = match self.pending[at].commit {
            Commit::Asked { attempt: last, is_oldest, by_ids } if last == attempt => {
                Some((is_oldest, by_ids))
            }
            _ => None,
        };
        match result {
            Ok(Standing { offset: Some(offset), named }) => {
                self.tally.commit(batch, offset);
                self.pending[at].late_at = None;
                self.paused_until = None;
                if let Some(named) = named {
                    self.follow(named);
                }
            }
            Ok(Standing { offset: None, .. }) => match asked {
                Some((_, true)) => {
                    self.pending[at].is_whole = true;
                    self.pending[at].commit = Commit::Unasked;
                }
                Some((_, false)) => {
                    let to = append_to((&self.topic, self.partition));
                    let code = ErrorCode::RequestTimedOut.code();
                    self.refuse(at, Error::refused(to, code, None));
                }
                None => {}
            },
            Err(error) => {
                let Some((is_oldest, _)) = asked else { return };
                let is_early = error.code() == Some(ErrorCode::OutOfOrderSequenceNumber);
                if is_early && !is_oldest {
                    // An earlier batch was on its way by another connection.
                    self.pending[at].follows = true;
                    self.pending[at].commit = Commit::Unasked;
                } else {
                    self.refuse(at, error);
                }
            }
        }
    }

    /// Takes in that a request for a commit failed: it is sent again after a pause, or the batch is refused for good.
    fn refuse(&mut self, at: usize, error: Error) {
        self.pending[at].is_whole = true;
        self.pending[at].commit = Commit::Unasked;
        if !may_pass(&error) {
            self.pending[at].commit = Commit::Refused(error);
            return;
        }
        self.is_leader_doubtful = true;
        // Batches that fail together share a pause.
        if self.paused_until.is_some() {
            return;
        }
        let patience = self.client.options().retry_for;
        match self.backoff.get_or_insert_with(|| Backoff::new(patience)).step() {
            Some(pause) => self.paused_until = Some(Instant::now() + pause),
            None => self.pending[at].commit = Commit::Refused(error),
        }
    }

    fn hear_sought(&mut self, result: Result<Option<Route>, Error>) {
        self.way.is_sought = false;
        match result {
            Ok(route) => self.way.route = route,
            Err(Error::Unsupported { .. }) => {
                self.give_up("the cluster does not know fast appends");
            }
            Err(error) if error.code() == Some(ErrorCode::PolicyViolation) => {
                self.give_up("the topic does not allow fast appends (fast.append.enable is false)");
            }
            // Asked again later; the appends themselves tell what is wrong.
            Err(error) => {
                self.way.connect_at = Instant::now() + SEEK_EVERY;
                let code = error.code();
                self.is_leader_doubtful |= code == Some(ErrorCode::NotLeaderOrFollower);
            }
        }
    }

    fn give_up(&mut self, why: &str) {
        self.way.is_plain = true;
        self.warning = Some(format!("{why}; its records are appended with acks=all"));
    }

    /// Goes over to a stretch that an answer has named.
    fn follow(&mut self, named: Named) {
        let way = &mut self.way;
        let is_new = way.route.as_ref().is_none_or(|it| it.named.stretch < named.stretch);
        if way.is_plain || way.is_sought || !is_new || Instant::now() < way.connect_at {
            return;
        }
        (way.route, way.is_sought) = (None, true);
        let (client, answered) = (self.client.clone(), self.answered.clone());
        tokio::spawn(async move {
            let _ = answered.send(Answer::Sought(route::connect(client, named).await));
        });
    }

    /// Sends no more under a stretch.
    fn lose_stretch(&mut self, under: Stretch) {
        if self.way.route.as_ref().is_some_and(|it| it.named.stretch == under) {
            self.lose_way();
        }
    }
}

impl Way {
    /// Tells whether a broker leads the stretch that batches go to now.
    fn leads(&self, node: NodeId, under: Stretch) -> bool {
        let named = self.route.as_ref().map(|route| &route.named);
        named.is_some_and(|it| it.stretch == under && it.members[0] == node)
    }
}

/// Returns the one row of an answer.
fn row(response: AppendFastResponse, to: (&str, i32)) -> Result<AppendedFast, Error> {
    let rows = response.topics.into_iter().flat_map(|topic| topic.partitions);
    Error::first(rows, || append_to(to))
}

/// Reads an answer of the leader about a commit.
fn standing(part: AppendedFast, to: (&str, i32)) -> Result<Standing, Error> {
    let named = Named::of((part.stretch_term, part.stretch_index), part.members);
    if part.error_code == ErrorCode::DuplicateSequenceNumber.code() {
        // The batch is there; the broker only forgot its offset.
        return Ok(Standing { offset: Some(-1), named });
    }
    Error::check(|| append_to(to), part.error_code, part.error_message.as_deref())?;
    let offset = match Said::of(part.outcome, part.base_offset) {
        Said::Committed(offset) => Some(offset),
        _ => None,
    };
    Ok(Standing { offset, named })
}
