//! # Room card: connection
//!
//! Purpose:    one client's socket, from its first byte to its last.
//! Owns:       the task of a connection: reading frames, handing them on, sending replies in order; before that the
//!             client's login (`connection/login.rs`).
//! Interface:  [`Connection::run`], [`Shared`].
//! Invariants: a connection's trouble is its own: bad bytes, a slow reader or a panic end it with one
//!             log line, and nobody else notices. Its session and the node's budget bound its memory.
//!             Whatever way it ends, the node is told. While it waits for room to
//!             read, it still answers. On the node's thread it reads no file, and checks nothing that takes long:
//!             before that it moves, for good.
//! Never:      protocol decisions (`duramen_broker::session`), waiting for the disk on a thread that
//!             serves other connections.
//! Tests:      `tests/server.rs`; `compat/hostile`.
//! Start at:   [`Connection::run`].
//!
//! Estimate a produce of 2 KiB: one `recv` for as many frames as have arrived, one `sendmsg` for as many
//! replies as are ready. On the node's thread no other thread is woken, and elsewhere two are: the node's by the
//! event, this task's by the reply. Copies: kernel to buffer; buffer to an owned batch (small batches only).

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use duramen_broker::access::Api;
use duramen_broker::event::{ConnectionId, Event, Reply};
use duramen_broker::recompression::Targets;
use duramen_broker::session::{Heavy, Outgoing, Session, SessionStep};
use duramen_protocol::ApiKey;
use duramen_protocol::wire::Few;
use duramen_storage::Reader;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::budget::{self, Budget, Charge};
use super::checking::{Checking, LARGE_FRAME};
use super::complaints::Complaints;
use super::disk::RealDisk;
use super::framing;
use super::home::Left;
use super::inbox::Inbox;
use super::metrics::Metrics;
use super::plans::{self, Resolved};
use super::sending::{Part, STALL_MAX, Sender};
use super::stream::Stream;
use super::threads::{Input, Routed, ToNode, Work};
use super::tls::{self, Sealing};
pub use login::Asking;
use login::LastLogin;

mod login;

/// Bytes that are read behind a request that has to be answered first.
const AHEAD: usize = 8 * 1024;

/// Longest silence of a connection where no limit is set.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// State that all connections share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The way into the node's thread.
    pub node: ToNode,
    /// Runtime to which a connection moves that would hold up the thread that serves it; `None` where none would.
    pub far: Option<Handle>,
    /// Reader for fetches and lookups by time.
    pub reader: Reader<RealDisk>,
    /// Inbox of the storage thread, for backups.
    pub work: Arc<Inbox<Work>>,
    /// Metrics that connections count.
    pub metrics: Arc<Metrics>,
    /// The bytes they may hold together.
    pub budget: Arc<Budget>,
    /// Checks of frames.
    pub checking: Arc<Checking>,
    /// Topics with a codec of their own; each connection has a receiver of its own.
    pub targets: watch::Receiver<Arc<Targets>>,
    /// Limit on the log lines about ended connections.
    pub complaints: Arc<Complaints>,
    /// The largest frame.
    pub frame_bytes_max: u32,
    /// Longest silence of one connection; `None` for no limit.
    pub idle_max: Option<Duration>,
    /// Signal that becomes true when the server stops.
    pub stop: watch::Receiver<bool>,
}

/// One client.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    shared: Shared,
    sender: Sender,
    session: Session,
    replies: UnboundedReceiver<Routed>,
    buf: BytesMut,
    charge: Charge,
    /// Time when an incomplete frame began to arrive.
    part_since: Option<Instant>,
    /// Time until which the node does not read the connection.
    rests_until: Option<Instant>,
    /// File parts that fill the holes of responses that wait for their turn.
    resolved: HashMap<u64, Resolved>,
    /// Requests without an answer, oldest first: number, API and arrival of each.
    asked: VecDeque<(u64, ApiKey, Instant)>,
    trail: plans::Trail,
    /// Time of the last request or answer.
    active_at: Instant,
    /// Work that has to wait for the move to other threads, if the connection has to move.
    moving: Option<Moving>,
    /// Means to ask the client who it is, where the listener does so by SASL.
    asking: Option<Asking>,
    login: Option<LastLogin>,
    /// True if the next frame begins a login, which waits for the answers to all earlier requests.
    is_to_log_in: bool,
}

/// Reason of a move.
#[derive(Debug)]
enum Moving {
    /// A large frame begins, or a large response was sent: the client may ask for more of them.
    Large,
    /// A request whose records take long to check.
    Heavy(Box<Heavy>),
    /// A reply that reads files.
    Reply(u64, Reply),
}

/// Wait for room to read.
type Room = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Event that wakes a connection.
enum Woken {
    /// A reply; `None` once the node has let the connection go.
    Reply(Option<Routed>),
    /// Bytes.
    Readable(io::Result<()>),
    /// There is no room, and the connection holds a part of a frame.
    Squeezed,
    /// The server stops.
    Stop,
    /// The client has rested.
    Rested,
    /// The client may have been silent for too long.
    Idle,
}

/// Reason that a connection ends.
enum End {
    /// The client closed it, or the network did; nothing to say.
    Gone,
    /// The node closes the connection, for this reason.
    Closed(String),
    /// The client is not who it says.
    Refused(String),
    /// The client sent bytes that are no request.
    Malformed(String),
}

/// Listener by which a client came.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// Its name.
    pub name: Arc<str>,
    /// Its configuration of TLS, if it has TLS.
    pub tls: Option<Sealing>,
    /// Means to ask clients who they are, if it asks them by SASL.
    pub asking: Option<Asking>,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => Self::Gone,
            _ => Self::Closed(error.to_string()),
        }
    }
}

/// Tells the node when the task ends, by whatever way.
struct Farewell {
    connection: ConnectionId,
    shared: Shared,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.shared.metrics.network.connections.dec();
        self.shared.node.push(Input::Event(Event::Disconnected(self.connection)));
    }
}

/// Serves one client, which has come by a listener, until it goes or has to.
pub async fn serve(
    (stream, peer): (TcpStream, SocketAddr),
    connection: ConnectionId,
    Entrance { name: listener, tls, asking }: Entrance,
    shared: Shared,
) {
    let stream = match tls {
        None => Stream::Plain(stream),
        Some(config) => match tls::accept(stream, config).await {
            Ok(tls) => Stream::Tls(Box::new(tls)),
            Err(error) => {
                shared.metrics.network.tls_handshakes_failed.inc();
                if shared.complaints.may_say() {
                    tracing::info!(%peer, listener = &*listener, %error, "no TLS handshake");
                }
                return;
            }
        },
    };
    shared.metrics.network.connections.inc();
    let name = if let Stream::Tls(tls) = &stream { tls.name() } else { None };
    let principal = name.map_or_else(|| "User:ANONYMOUS".into(), |it| format!("User:{it}").into());
    let (to_connection, replies) = tokio::sync::mpsc::unbounded_channel();
    shared.node.push(Input::Connected(connection, to_connection));
    let _farewell = Farewell { connection, shared: shared.clone() };
    let metrics = Arc::clone(&shared.metrics);
    let session = Session::new(connection, principal, listener, host_of(peer));
    let mut connection = Connection { asking, ..Connection::new(stream, session, replies, shared) };
    let mut end = connection.begin().await;
    if let Ok(Left::Moves) = &end {
        (connection, end) = connection.go_on_far().await;
    }
    if let Err(End::Malformed(_)) = &end {
        metrics.network.frames_malformed.inc();
    }
    connection.stream.say_goodbye();
    match connection.explain(end) {
        Ok(_) | Err(End::Gone) => tracing::debug!(%peer, "connection ended"),
        Err(_) if !connection.shared.complaints.may_say() => {}
        Err(End::Closed(reason)) => tracing::info!(%peer, reason, "connection closed"),
        Err(End::Refused(reason)) => tracing::info!(%peer, reason, "login refused"),
        Err(End::Malformed(reason)) => {
            tracing::warn!(%peer, reason, "connection closed: not a request");
        }
    }
}

/// Returns a client's address as Java prints it: Kafka describes members of groups so.
pub(crate) fn host_of(peer: SocketAddr) -> Arc<str> {
    match peer.ip().to_canonical() {
        IpAddr::V4(ip) => format!("/{ip}").into(),
        IpAddr::V6(ip) => {
            let parts = ip.segments().map(|part| format!("{part:x}"));
            format!("/{}", parts.join(":")).into()
        }
    }
}

impl Connection {
    fn new(
        stream: Stream,
        session: Session,
        replies: UnboundedReceiver<Routed>,
        shared: Shared,
    ) -> Self {
        Self {
            stream,
            sender: Sender {
                metrics: Arc::clone(&shared.metrics),
                stall_max: shared.idle_max.map_or(STALL_MAX, |idle| idle.min(STALL_MAX)),
            },
            session,
            replies,
            buf: BytesMut::new(),
            charge: Charge::new(&shared.budget),
            part_since: None,
            rests_until: None,
            resolved: HashMap::new(),
            asked: VecDeque::new(),
            trail: plans::Trail::default(),
            active_at: Instant::now(),
            moving: None,
            asking: None,
            login: None,
            is_to_log_in: false,
            shared,
        }
    }

    /// Tells whether the node's thread serves the connection, which must not be held up.
    fn is_near(&self) -> bool {
        self.shared.far.is_some()
    }

    /// Goes on in another runtime, and returns when it ends there. It ends with this task, too.
    async fn go_on_far(mut self) -> (Self, Result<Left, End>) {
        let far = self.shared.far.take().expect("only a connection that is near moves");
        let mut task = JoinSet::new();
        task.spawn_on(
            async move {
                let end = match self.stream.move_here() {
                    Ok(()) => self.run().await,
                    Err(error) => Err(error.into()),
                };
                (self, end)
            },
            &far,
        );
        let ended = task.join_next().await.expect("there is one task");
        ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// Serves a client, which first has to show who it is where the listener asks.
    async fn begin(&mut self) -> Result<Left, End> {
        if let Some(asking) = self.asking.clone() {
            self.log_in(&asking).await?;
        }
        self.run().await
    }

    /// Takes frames, and a login among them once all requests before it have been answered.
    async fn go_on(&mut self) -> Result<(), End> {
        self.take_frames().await?;
        while self.is_to_log_in && !self.session.is_waiting() {
            self.is_to_log_in = false;
            let asking = self.asking.clone().expect("a client that logged in was asked");
            self.log_in(&asking).await?;
            self.take_frames().await?;
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<Left, End> {
        let mut stop = self.shared.stop.clone();
        let budget = Arc::clone(&self.shared.budget);
        // These stay registered from one wait to the next, and are looked at last.
        let mut stopped = pin!(stop.wait_for(|stop| *stop));
        let idle_max = Instant::now() + self.shared.idle_max.unwrap_or(FOREVER);
        let first_look = self.login_ends().map_or(idle_max, |ends| ends.min(idle_max));
        let mut idle = pin!(tokio::time::sleep_until(first_look));
        let mut squeezed = pin!(budget.squeezed());
        let mut rested = pin!(tokio::time::sleep(FOREVER));
        let mut room = None;
        let mut stopping = false;
        self.go_on_after_move().await?;
        loop {
            self.go_on().await?;
            if self.moving.is_some() {
                return Ok(Left::Moves);
            }
            if stopping && !self.session.is_waiting() {
                return Ok(Left::Done);
            }
            // Bytes after a request that has to be answered first stay here unread, so that the connection notices
            // when the client goes.
            let is_reading = !stopping && (self.wants_more() || self.buf.len() < AHEAD);
            let has_part = self.part_since.is_some();
            if let Some(until) = self.rests_until
                && rested.deadline() != until
            {
                rested.as_mut().reset(until);
            }
            let woken = poll_fn(|context| {
                if let Poll::Ready(routed) = self.replies.poll_recv(context) {
                    return Poll::Ready(Woken::Reply(routed));
                }
                if is_reading
                    && let Poll::Ready(ready) = self.poll_readable(has_part, &mut room, context)
                {
                    return Poll::Ready(Woken::Readable(ready));
                }
                if !stopping && stopped.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Woken::Stop);
                }
                if has_part && squeezed.as_mut().poll(context).is_ready() {
                    squeezed.set(budget.squeezed());
                    return Poll::Ready(Woken::Squeezed);
                }
                if self.rests_until.is_some() && rested.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Woken::Rested);
                }
                idle.as_mut().poll(context).map(|()| Woken::Idle)
            });
            match woken.await {
                Woken::Reply(routed) => self.take_replies(routed.ok_or(End::Gone)?).await?,
                Woken::Readable(ready) => {
                    ready?;
                    self.read().await?;
                }
                Woken::Squeezed => self.give_way()?,
                Woken::Rested => self.rests_until = None,
                Woken::Stop => stopping = true,
                Woken::Idle => idle.as_mut().reset(self.idle_at()?),
            }
        }
    }

    /// Returns the time when the connection may be idle next, unless it is now. Kafka, too, does not care whether the
    /// client waits for an answer.
    fn idle_at(&self) -> Result<Instant, End> {
        let (due, now) = (self.active_at + self.shared.idle_max.unwrap_or(FOREVER), Instant::now());
        if due <= now {
            return Err(End::Closed(format!("{} for connections.max.idle.ms", self.silence())));
        }
        let ends = self.login_ends();
        if ends.is_some_and(|ends| ends <= now) && !self.session.is_waiting() {
            return Err(self.expired());
        }
        Ok(due.min(ends.unwrap_or(due)).max(now + Duration::from_secs(1)))
    }

    /// Stops reading for a while from a client that was faster than its quota.
    fn rest(&mut self, ms: u32) {
        if ms > 0 {
            let until = Instant::now() + Duration::from_millis(ms.into());
            self.rests_until = self.rests_until.max(Some(until));
        }
    }

    fn wants_more(&self) -> bool {
        let bytes_max = self.shared.budget.connection_max();
        self.rests_until.is_none()
            && self.session.wants_more()
            && self.session.bytes() as u64 <= bytes_max
    }

    /// Describes the state of an idle client.
    fn silence(&self) -> String {
        match self.part_since {
            Some(_) => self.part(),
            None if self.session.is_waiting() => "waiting for an answer".to_owned(),
            None => "silent".to_owned(),
        }
    }

    /// Describes the progress of the incomplete frame.
    fn part(&self) -> String {
        match framing::whole(&self.buf) {
            None => "in the middle of a frame's length".to_owned(),
            Some(whole) => format!("in the middle of a frame, {} of {whole} bytes", self.buf.len()),
        }
    }

    /// Gives up a frame that has not become whole in all this time, since there is no room and others wait.
    fn give_way(&self) -> Result<(), End> {
        let is_overdue = self.part_since.is_some_and(|since| since.elapsed() >= budget::OVERDUE);
        if is_overdue && self.charge.must_go() {
            return Err(End::Closed(format!(
                "the node holds as many bytes of requests as it may, and this client is {}",
                self.part()
            )));
        }
        Ok(())
    }

    /// Logs a client that goes in the middle of a frame.
    fn explain(&self, end: Result<Left, End>) -> Result<Left, End> {
        match end {
            Err(End::Gone) if self.part_since.is_some() => {
                Err(End::Closed(format!("the client went {}", self.part())))
            }
            end => end,
        }
    }

    /// Comes when there are bytes to read, and room for them. While a client sends nothing others take the room, so
    /// each poll asks anew.
    fn poll_readable(
        &mut self,
        has_part: bool,
        room: &mut Option<Room>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.charge.has_room(has_part) {
            let wait = || Box::pin(Arc::clone(&self.shared.budget).wait()) as Room;
            let freed = room.get_or_insert_with(wait).as_mut().poll(context);
            // Room that was given back before this registration would wake nobody.
            if freed.is_pending() && !self.charge.has_room(has_part) {
                return Poll::Pending;
            }
            *room = None;
        }
        *room = None;
        self.stream.poll_read_ready(context)
    }

    /// Takes the bytes that have arrived. A short read has emptied the socket, and tokio then forgets that it was
    /// readable, by its knowledge from before the read. So no second read is needed to learn that nothing is left, and
    /// no bytes that arrive meanwhile are missed.
    async fn read(&mut self) -> Result<(), End> {
        let room =
            framing::make_room(&mut self.buf, self.shared.frame_bytes_max, framing::ROOM_MIN);
        let mut space = (&mut self.buf).limit(room);
        let stream = &mut self.stream;
        match poll_fn(|context| Poll::Ready(stream.poll_read(context, &mut space))).await {
            Poll::Ready(Ok(0)) => return Err(End::Gone),
            Poll::Ready(Err(error)) => return Err(error.into()),
            Poll::Ready(Ok(_)) | Poll::Pending => {}
        }
        self.recharge();
        Ok(())
    }

    /// Hands the frames that have arrived to the session, and what comes of them to the node, with
    /// one wake-up.
    async fn take_frames(&mut self) -> Result<(), End> {
        let mut events = Few::new();
        let mut answers = Few::new();
        let result = self.frames(&mut events, &mut answers).await;
        self.hand_on(events);
        self.send(answers).await?;
        result
    }

    fn hand_on(&mut self, events: Few<Input>) {
        if events.is_empty() {
            return;
        }
        self.shared.metrics.network.requests.inc_by(events.len() as u64);
        for event in events {
            self.shared.node.push(event);
        }
        self.recharge();
    }

    async fn frames(
        &mut self,
        events: &mut Few<Input>,
        answers: &mut Few<Outgoing>,
    ) -> Result<(), End> {
        while self.wants_more() && self.moving.is_none() && !self.is_to_log_in {
            if self.begins_login()? {
                self.is_to_log_in = true;
                break;
            }
            let is_large = framing::whole(&self.buf).is_some_and(|it| it > LARGE_FRAME);
            if is_large && self.is_near() {
                self.moving = Some(Moving::Large);
                break;
            }
            let frame = framing::next_frame(&mut self.buf, self.shared.frame_bytes_max)
                .map_err(|error| End::Malformed(error.to_string()))?;
            let Some(frame) = frame else {
                if self.buf.is_empty() {
                    self.part_since = None;
                } else if self.part_since.is_none() {
                    self.part_since = Some(Instant::now());
                }
                break;
            };
            self.part_since = None;
            self.charge.end_frame();
            self.active_at = Instant::now();
            self.shared.metrics.network.received_bytes.inc_by(frame.len() as u64);
            let mut waited = Duration::ZERO;
            self.follow_targets();
            let step = if self.is_near() {
                self.session.on_frame(frame)
            } else {
                self.shared.checking.on_frame(&mut self.session, frame, &mut waited).await
            };
            self.take_step(step, waited, events, answers)?;
        }
        Ok(())
    }

    /// Gives the session the topics with a codec of their own, if others have one now. It costs the load of a number.
    fn follow_targets(&mut self) {
        let targets = &mut self.shared.targets;
        // The node has ended if nobody can tell.
        if targets.has_changed().unwrap_or(false) {
            self.session.follow(Arc::clone(&targets.borrow_and_update()));
        }
    }

    fn take_step(
        &mut self,
        step: SessionStep,
        waited: Duration,
        events: &mut Few<Input>,
        answers: &mut Few<Outgoing>,
    ) -> Result<(), End> {
        match step {
            SessionStep::Request { sequence, mut context, request } => {
                let spent = self.active_at.elapsed().saturating_sub(waited);
                context.spent_us = u64::try_from(spent.as_micros()).unwrap_or(u64::MAX);
                if let Api::Kafka(api) = context.api {
                    self.asked.push_back((sequence, api, self.active_at));
                }
                let connection = self.session.connection();
                let event = Event::Request { connection, sequence, context, request };
                events.push(Input::Event(event));
            }
            SessionStep::Reply(outgoing) => answers.extend(outgoing),
            SessionStep::Heavy(heavy) => {
                assert!(self.is_near(), "elsewhere it is checked at length");
                self.moving = Some(Moving::Heavy(heavy));
            }
            SessionStep::Close(reason) => return Err(End::Malformed(reason)),
        }
        Ok(())
    }

    /// Does the work for which the connection has moved here.
    async fn go_on_after_move(&mut self) -> Result<(), End> {
        match self.moving.take() {
            None | Some(Moving::Large) => Ok(()),
            Some(Moving::Heavy(heavy)) => {
                let (mut events, mut answers, mut waited) =
                    (Few::new(), Few::new(), Duration::ZERO);
                let checking = Arc::clone(&self.shared.checking);
                let step = checking.on_heavy(&mut self.session, heavy, &mut waited).await;
                self.take_step(step, waited, &mut events, &mut answers)?;
                self.hand_on(events);
                self.send(answers).await
            }
            Some(Moving::Reply(sequence, reply)) => {
                self.take_replies(Routed::Reply(sequence, reply)).await
            }
        }
    }

    /// Encodes the replies that are ready, and sends those whose turn it is in one go.
    async fn take_replies(&mut self, first: Routed) -> Result<(), End> {
        let mut outgoing = Few::new();
        let mut closing = None;
        let mut next = Some(first);
        while let Some(routed) = next {
            match routed {
                Routed::Reply(sequence, mut reply) => {
                    let reads = !matches!(reply, Reply::Nothing { .. } | Reply::Response(_));
                    if reads && self.is_near() {
                        self.moving = Some(Moving::Reply(sequence, reply));
                        break;
                    }
                    self.rest(reply.rest_ms());
                    if matches!(reply, Reply::Nothing { .. }) {
                        self.note_unanswered(sequence);
                    }
                    // A ready response does not wait for one that may have to be read.
                    if reads {
                        self.send(std::mem::take(&mut outgoing)).await?;
                    }
                    let disk = (&self.shared.reader, &*self.shared.work);
                    let (metrics, trail) = (&self.shared.metrics, &mut self.trail);
                    let mut resolved = plans::resolve(disk, metrics, reply, trail).await;
                    let response = resolved.response.take();
                    if !resolved.files.is_empty() {
                        self.resolved.insert(sequence, resolved);
                    }
                    let ready = self.session.on_reply(sequence, response);
                    outgoing.extend(ready.map_err(End::Closed)?);
                }
                Routed::Credential(_) => {
                    let reason = "a credential came that nobody asked for";
                    return Err(End::Closed(reason.to_owned()));
                }
                Routed::Close(reason) => closing = Some(reason),
            }
            next = self.replies.try_recv().ok();
        }
        let is_large = outgoing.iter().any(|it| it.frame.bytes.len() > LARGE_FRAME);
        if is_large && self.is_near() && self.moving.is_none() {
            self.moving = Some(Moving::Large);
        }
        self.send(outgoing).await?;
        self.active_at = Instant::now();
        self.recharge();
        closing.map_or(Ok(()), |reason| Err(End::Closed(reason)))
    }

    async fn send(&mut self, outgoing: Few<Outgoing>) -> Result<(), End> {
        if outgoing.is_empty() {
            return Ok(());
        }
        let mut parts = Few::with_capacity(outgoing.len());
        let last = outgoing.iter().map(|it| it.sequence).max();
        for Outgoing { sequence, frame } in outgoing {
            let resolved =
                if frame.holes.is_empty() { None } else { self.resolved.remove(&sequence) };
            cut(frame, resolved, &mut parts);
        }
        self.send_parts(&parts).await?;
        self.note_answered(last.unwrap_or_default());
        Ok(())
    }

    /// Counts the time of the requests up to this one, whose answers were sent.
    fn note_answered(&mut self, last: u64) {
        let now = Instant::now();
        while let Some(&(_, api, since)) = self.asked.front().filter(|(it, ..)| *it <= last) {
            self.shared.metrics.latencies.note(api, now - since);
            self.asked.pop_front();
        }
    }

    /// Counts the time of a request whose client reads no answer.
    fn note_unanswered(&mut self, sequence: u64) {
        let at = self.asked.iter().position(|(it, ..)| *it == sequence);
        if let Some((_, api, since)) = at.and_then(|at| self.asked.remove(at)) {
            self.shared.metrics.latencies.note(api, since.elapsed());
        }
    }

    /// Sends, and counts bytes that the client does not read yet like bytes that it sends.
    async fn send_parts(&mut self, parts: &[Part]) -> Result<(), End> {
        let mut sending = pin!(self.sender.send(&mut self.stream, parts));
        let sent = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
        if let Poll::Ready(sent) = sent {
            return Ok(sent?);
        }
        let bytes = |part: &Part| if let Part::Bytes(bytes) = part { bytes.len() } else { 0 };
        let unsent: usize = parts.iter().map(bytes).sum();
        self.charge.set((self.buf.len() + self.session.bytes() + unsent) as u64);
        let since = Instant::now();
        loop {
            tokio::select! {
                sent = &mut sending => return Ok(sent?),
                () = self.shared.budget.squeezed() => {
                    if since.elapsed() >= budget::OVERDUE && self.charge.must_go() {
                        return Err(End::Closed(
                            "the node holds as many bytes as it may, and this client does not read its answers".into(),
                        ));
                    }
                }
            }
        }
    }

    fn recharge(&mut self) {
        self.charge.set((self.buf.len() + self.session.bytes()) as u64);
    }
}

/// Cuts a frame at its holes and puts the files' parts there.
fn cut(frame: duramen_protocol::EncodedFrame, resolved: Option<Resolved>, parts: &mut Few<Part>) {
    let mut bytes = frame.bytes;
    let mut taken = 0;
    let mut files: Vec<_> =
        resolved.map(|it| it.files).unwrap_or_default().into_iter().map(Some).collect();
    for hole in frame.holes {
        let head = bytes.split_to(hole.at - taken);
        taken = hole.at;
        if !head.is_empty() {
            parts.push(Part::Bytes(head));
        }
        let file = files.get_mut(hole.id as usize).and_then(Option::take);
        let file = file.expect("every hole is named after its range");
        assert_eq!(file.len, u64::from(hole.len), "a hole is as long as its range");
        parts.push(Part::File(file));
    }
    if !bytes.is_empty() {
        parts.push(Part::Bytes(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_as_java_tells_them() {
        let told = |address: &str| host_of(address.parse().unwrap()).to_string();
        assert_eq!(told("127.0.0.1:9092"), "/127.0.0.1");
        assert_eq!(told("[::ffff:10.0.0.7]:9092"), "/10.0.0.7");
        assert_eq!(told("[fe80::1:0]:9092"), "/fe80:0:0:0:0:0:1:0");
    }
}
