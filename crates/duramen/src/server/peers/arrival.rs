//! Connections that other nodes opened, and the frames that they send.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use duramen_broker::limits::PEER_FRAME_BYTES_MAX;
use duramen_broker::peer::PeerFrame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use super::forming::judge;
use super::greeting::{Greeting, Identity};
use super::links::Links;
use super::message::Kind;
use super::notice::Notice;
use super::passing::{CallsOfNode, PROTOCOL};
use super::security::Security;
use super::standing::{Standing, hex};
use super::traffic::{PeerMetrics, Traffic};
use crate::server::complaints::Complaints;
use crate::server::framing::{self, FrameError};
use crate::server::home::{Home, Left, live};
use crate::server::threads::{Input, ToNode};
use crate::server::tls::Wire;

/// Connections that nodes may have here. A way that breaks leaves some behind for a while.
const CONNECTIONS_MAX: usize = 64;
/// Before it is known who speaks, and for every greeting.
const GREETING_BYTES_MAX: u32 = 64 << 10;
/// Nodes say something twice a second at least.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Frames of one connection that wait for the node's thread; above, the connection is not read.
const WAITING_KIB_MAX: u32 = 32 << 10;
/// Bytes read of a node at once, as far as they have arrived: most frames whole, with the batches in them.
const ROOM_MIN: usize = 48 << 10;
/// Time between two judgements of whether the speaker is a member: it may be removed meanwhile.
const JUDGED_EVERY: Duration = Duration::from_secs(1);
/// Complaint about a connection that begins with something else than a greeting.
const NOBODY: &str = "it does not say who it is";
/// Pause in accepting when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// State that all connections share.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    pub(super) identity: watch::Receiver<Identity>,
    pub(super) links: Links,
    pub(super) standing: Arc<Standing>,
    /// Number of connections that each directory has here.
    pub(super) here: Arc<Mutex<BTreeMap<[u8; 16], usize>>>,
    /// Inbox of greetings while the cluster forms; nobody takes them after that.
    pub(super) greetings: mpsc::Sender<Greeting>,
    pub(super) node: ToNode,
    pub(super) metrics: PeerMetrics,
    pub(super) complaints: Arc<Complaints>,
    pub(super) home: Home,
    pub(super) security: Arc<Security>,
}

impl Arrivals {
    /// Accepts until the process ends.
    pub(super) async fn run(self, socket: TcpListener) {
        let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let (stream, address) = match socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a node");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(seat) = Arc::clone(&seats).try_acquire_owned() else {
                self.complain(address, &anyhow!("too many connections of nodes"));
                continue;
            };
            tokio::spawn(self.clone().serve(stream, address, seat));
        }
    }

    async fn serve(self, tcp: TcpStream, address: SocketAddr, seat: OwnedSemaphorePermit) {
        let _ = tcp.set_nodelay(true);
        let messages = match self.security.accept(tcp).await {
            Ok(stream) => Messages::of(stream),
            Err(error) => return self.complain(address, &error),
        };
        let room = Arc::new(Semaphore::new(WAITING_KIB_MAX as usize));
        let hearing =
            Hearing { arrivals: self, address, messages, room, speaker: None, passes: false, seat };
        live(hearing, |it| &mut it.arrivals.home, Hearing::stay).await;
    }

    fn complain(&self, address: SocketAddr, why: &anyhow::Error) {
        if self.complaints.may_say() {
            tracing::warn!(%address, "a connection between nodes is closed: {why:#}");
        }
    }

    async fn greeted(&self, body: Bytes) -> anyhow::Result<Identity> {
        ensure!(body.len() <= GREETING_BYTES_MAX as usize, "a greeting of {} bytes", body.len());
        let greeting = Greeting::decode(body).map_err(anyhow::Error::msg)?;
        let own = self.identity.borrow().clone();
        judge(&own, &greeting).map_err(anyhow::Error::msg)?;
        self.links.hear_of(&greeting.nodes);
        let identity = greeting.from.clone();
        let _ = self.greetings.send(greeting).await;
        Ok(identity)
    }

    /// Tells a directory that has no place in the cluster, and the one that has the place that it came for.
    async fn tell(&self, speaker: &mut Speaker, messages: &mut Messages) -> anyhow::Result<()> {
        let is_here = |directory: &[u8; 16]| self.here().contains_key(directory);
        let notice = self.standing.judge(&speaker.identity, speaker.address, is_here);
        if notice == speaker.told {
            return Ok(());
        }
        speaker.told.clone_from(&notice);
        let Some(notice) = notice else { return Ok(()) };
        let (node, directory) = (notice.broker_id, hex(&notice.claimant));
        let body = notice.encode();
        if let Some(holder) = &notice.holder {
            let (holder, address) = (hex(holder), &notice.address);
            tracing::warn!(
                node,
                directory,
                address,
                holder,
                "a node connects with another data directory than the one registered for its node.id; the cluster refuses \
                 it unless it starts with --replace"
            );
            self.links.tell(node, notice);
        } else {
            tracing::warn!(
                node,
                directory,
                "a node connects with a data directory that was removed from the cluster"
            );
        }
        messages.send(Kind::Notice, &body).await
    }

    fn here(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], usize>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that another node opened.
struct Hearing {
    arrivals: Arrivals,
    address: SocketAddr,
    messages: Messages,
    /// Room for frames that wait for the node's thread.
    room: Arc<Semaphore>,
    speaker: Option<Speaker>,
    /// True if calls follow.
    passes: bool,
    seat: OwnedSemaphorePermit,
}

impl Hearing {
    async fn stay(mut self) -> Option<Self> {
        match self.hear().await {
            Ok(Left::Moves) => return Some(self),
            Ok(Left::Done) if self.passes => self.pass().await,
            Ok(Left::Done) => {}
            Err(error) => self.arrivals.complain(self.address, &error),
        }
        None
    }

    /// Reads until the other side closes, which is no mistake, or makes one. Judges meanwhile whether it is a member.
    async fn hear(&mut self) -> anyhow::Result<Left> {
        self.messages.stream.move_here()?;
        let mut judged = interval(JUDGED_EVERY);
        loop {
            let Self { arrivals, messages, speaker, .. } = self;
            let message = tokio::select! {
                message = messages.next() => message?,
                () = arrivals.home.changed() => return Ok(Left::Moves),
                _ = judged.tick() => {
                    if let Some(speaker) = speaker {
                        arrivals.tell(speaker, messages).await?;
                    }
                    continue;
                }
            };
            let Some((kind, body)) = message else { return Ok(Left::Done) };
            match kind {
                Kind::Greeting => self.take_greeting(body).await?,
                Kind::Notice => {
                    ensure!(self.speaker.is_some(), NOBODY);
                    let notice = Notice::decode(&body).map_err(anyhow::Error::msg)?;
                    self.arrivals.standing.hear(&notice);
                }
                Kind::Frame => self.take_frame(&body).await?,
                Kind::Calls => {
                    ensure!(self.speaker.is_some(), NOBODY);
                    ensure!(body[..] == PROTOCOL[..], "it speaks an unknown protocol");
                    ensure!(self.messages.buf.is_empty(), "it speaks before it has an answer");
                    self.messages.send(Kind::Calls, &body).await?;
                    self.passes = true;
                    return Ok(Left::Done);
                }
            }
        }
    }

    /// Hands the connection to the native API.
    async fn pass(self) {
        let Self { arrivals, address, messages, speaker, seat, .. } = self;
        let calls = CallsOfNode { wire: messages.stream, address, held: Box::new((speaker, seat)) };
        if let Err(error) = arrivals.links.pass(calls).await {
            arrivals.complain(address, &error);
        }
    }

    async fn take_greeting(&mut self, body: Bytes) -> anyhow::Result<()> {
        let Self { arrivals, address, messages, speaker, .. } = self;
        let identity = arrivals.greeted(body).await?;
        messages.bytes_max = PEER_FRAME_BYTES_MAX;
        let told = speaker.take().and_then(|it| it.told);
        let here = Here::of(arrivals, identity.directory_id);
        let traffic = arrivals.metrics.of(identity.broker_id);
        let new = Speaker { identity, address: *address, traffic, told, _here: here };
        arrivals.tell(speaker.insert(new), messages).await?;
        messages.since = Instant::now();
        Ok(())
    }

    async fn take_frame(&mut self, body: &Bytes) -> anyhow::Result<()> {
        let Self { arrivals, messages, room, speaker, .. } = self;
        let Speaker { traffic, .. } = speaker.as_ref().context(NOBODY)?;
        traffic.received_frames.inc();
        traffic.received_bytes.inc_by(body.len() as u64);
        let kib = u32::try_from(body.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let frame = PeerFrame::decode(body)?;
        if arrivals.identity.borrow().cluster_id.is_none() {
            return Ok(()); // there is no node yet to take it
        }
        let waits = Arc::clone(room).acquire_many_owned(kib.clamp(1, WAITING_KIB_MAX)).await?;
        arrivals.node.push(Input::Peer(Box::new(frame), waits));
        messages.since = Instant::now();
        Ok(())
    }
}

/// Node that speaks on a connection.
struct Speaker {
    identity: Identity,
    address: SocketAddr,
    traffic: Traffic,
    /// Last notice sent to the speaker.
    told: Option<Notice>,
    _here: Here,
}

/// Counts a connection of a directory, until it ends.
struct Here {
    arrivals: Arrivals,
    directory_id: [u8; 16],
}

impl Here {
    fn of(arrivals: &Arrivals, directory_id: [u8; 16]) -> Self {
        *arrivals.here().entry(directory_id).or_default() += 1;
        Self { arrivals: arrivals.clone(), directory_id }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let mut here = self.arrivals.here();
        let count = here.get(&self.directory_id).copied().unwrap_or_default();
        if count > 1 {
            here.insert(self.directory_id, count - 1);
        } else {
            here.remove(&self.directory_id);
        }
    }
}

/// A stream, cut into messages.
struct Messages {
    stream: Wire,
    buf: BytesMut,
    bytes_max: u32,
    /// Time when the other side last sent bytes, or was not read any more.
    since: Instant,
}

impl Messages {
    fn of(stream: Wire) -> Self {
        Self { stream, buf: BytesMut::new(), bytes_max: GREETING_BYTES_MAX, since: Instant::now() }
    }

    async fn next(&mut self) -> anyhow::Result<Option<(Kind, Bytes)>> {
        loop {
            let message = framing::next_frame(&mut self.buf, self.bytes_max);
            if let Some(mut message) = message.map_err(|error| anyhow!(words(&error)))? {
                let kind = Kind::of(message[0]).context("a message of an unknown kind")?;
                message.advance(1);
                return Ok(Some((kind, message)));
            }
            let room = framing::make_room(&mut self.buf, self.bytes_max, ROOM_MIN);
            let mut into = (&mut self.buf).limit(room);
            let read = timeout_at(self.since + SILENCE_MAX, self.stream.read_buf(&mut into)).await;
            if read.context("it says nothing")?? == 0 {
                ensure!(self.buf.is_empty(), "it ended in the middle of a message");
                return Ok(None);
            }
            self.since = Instant::now();
        }
    }

    async fn send(&mut self, kind: Kind, body: &Bytes) -> anyhow::Result<()> {
        let mut message = BytesMut::with_capacity(5 + body.len());
        message.put_u32(u32::try_from(1 + body.len()).context("it is short")?);
        message.put_u8(kind as u8);
        message.put_slice(body);
        let sent = async {
            self.stream.write_all(&message).await?;
            self.stream.flush().await
        };
        timeout(SILENCE_MAX, sent).await.context("it takes nothing")??;
        Ok(())
    }
}

/// Describes a bad frame to a node's operator; [`FrameError`] itself describes it to clients.
fn words(error: &FrameError) -> String {
    match error {
        FrameError::TooLong { len, max } => format!("a message of {len} bytes, above {max}"),
        _ => "whoever connected is no node of Duramen".to_owned(),
    }
}
