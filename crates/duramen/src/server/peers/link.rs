//! Link to one other node: the frames that wait, and the task that dials, greets and sends.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use duramen_broker::peer::PeerFrame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, interval, sleep, timeout};

use super::greeting::{Greeting, Identity};
use super::links::Links;
use super::message::Kind;
use super::notice::Notice;
use super::security::Security;
use super::traffic::Traffic;
use crate::config::HostPort;
use crate::server::framing;
use crate::server::home::{Home, Left, live};
use crate::server::tls::Wire;

/// Time between two greetings of a node that is no member yet.
const GREET_AGAIN: Duration = Duration::from_millis(500);
/// Limits of the frames that wait for one node. Frames beyond are dropped: Raft sends them again, and nobody else
/// waits for them.
const QUEUE_BYTES_MAX: usize = 16 << 20;
const QUEUE_FRAMES_MAX: usize = 1024;

/// Shortest time between two attempts to connect; it doubles up to the next constant.
const REDIAL_MIN: Duration = Duration::from_millis(50);
const REDIAL_MAX: Duration = Duration::from_millis(800);
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Longest time that sent bytes may stay unanswered or unsent before the connection is given up. The other node's
/// machine or the way to it may be gone, or the node takes nothing.
const STALL_MAX: Duration = Duration::from_secs(5);

/// A notice comes back on a connection, and nothing else does.
const ANSWER_BYTES_MAX: u32 = 1 << 10;

/// Queue of frames for one node.
#[derive(Debug)]
pub(super) struct Link {
    queue: Mutex<Queue>,
    filled: Notify,
    traffic: Traffic,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<PeerFrame>,
    bytes: usize,
    /// Last notice; each node that connects gets it.
    notice: Option<Notice>,
    is_connected: bool,
}

impl Link {
    pub(super) fn new(traffic: Traffic) -> Self {
        Self { queue: Mutex::default(), filled: Notify::new(), traffic }
    }

    /// Queues a frame, or drops it. It never waits.
    pub(super) fn push(&self, frame: PeerFrame) {
        let weight = frame.weight();
        let mut queue = self.lock();
        let is_full = queue.frames.len() >= QUEUE_FRAMES_MAX
            || !queue.frames.is_empty() && queue.bytes + weight > QUEUE_BYTES_MAX;
        if !queue.is_connected || is_full {
            drop(queue);
            self.traffic.dropped.inc();
            return;
        }
        queue.bytes += weight;
        queue.frames.push_back(frame);
        drop(queue);
        self.filled.notify_one();
    }

    /// Queues a notice, if somebody is connected.
    pub(super) fn tell(&self, notice: Notice) {
        let mut queue = self.lock();
        queue.notice = Some(notice).filter(|_| queue.is_connected);
        drop(queue);
        self.filled.notify_one();
    }

    /// Returns all that waits, after waiting for something.
    async fn take(&self) -> (VecDeque<PeerFrame>, Option<Notice>) {
        loop {
            let (frames, notice) = {
                let mut queue = self.lock();
                queue.bytes = 0;
                (std::mem::take(&mut queue.frames), queue.notice.take())
            };
            if !frames.is_empty() || notice.is_some() {
                return (frames, notice);
            }
            self.filled.notified().await;
        }
    }

    /// Drops the queued frames. Those that waited for a connection that is gone are old when the next one is there.
    fn set_connected(&self, is_connected: bool) {
        let mut queue = self.lock();
        let dropped = queue.frames.len();
        *queue = Queue { is_connected, ..Queue::default() };
        drop(queue);
        self.traffic.dropped.inc_by(dropped as u64);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one link.
#[derive(Debug)]
pub(super) struct Dialler {
    pub(super) link: Arc<Link>,
    pub(super) broker_id: i32,
    /// Address of the node; a later one may replace it.
    pub(super) address: watch::Receiver<HostPort>,
    pub(super) links: Links,
    pub(super) identity: watch::Receiver<Identity>,
    pub(super) home: Home,
    pub(super) security: Arc<Security>,
    /// Connection that goes on in another runtime.
    pub(super) talking: Option<Talking>,
}

/// A connection, and the bytes of an answer that is not whole.
#[derive(Debug)]
pub(super) struct Talking {
    stream: Wire,
    answer: BytesMut,
}

impl Dialler {
    /// Connects, and again whenever the connection ends, until the process does.
    pub(super) async fn run(self) {
        live(self, |it| &mut it.home, Self::stay).await;
    }

    /// Does so at one home. Returns itself where it has to move.
    async fn stay(mut self) -> Option<Self> {
        let peer = self.broker_id;
        let mut pause = REDIAL_MIN;
        let mut is_told = false;
        loop {
            let address = self.address.borrow().to_string();
            match self.open().await {
                Ok(mut talking) => {
                    let began = Instant::now();
                    let ended = self.talk(&mut talking).await;
                    if let Ok(Left::Moves) = ended {
                        self.talking = Some(talking);
                        return Some(self);
                    }
                    self.link.set_connected(false);
                    let why = ended
                        .err()
                        .map_or_else(|| "it closed it".to_owned(), |error| format!("{error:#}"));
                    tracing::info!(peer, address, why, "the connection to another node ended");
                    is_told = false;
                    if began.elapsed() > REDIAL_MAX {
                        pause = REDIAL_MIN;
                    }
                }
                Err(error) if !is_told => {
                    tracing::warn!(
                        peer,
                        address,
                        "cannot connect to another node; this node tries again: {error:#}"
                    );
                    is_told = true;
                }
                Err(_) => {}
            }
            // Not all at the same moment: half of it, and up to as much again.
            sleep(pause / 2 + pause.mul_f64(chance())).await;
            pause = (pause * 2).min(REDIAL_MAX);
        }
    }

    /// Goes on with the connection that there is, or connects.
    async fn open(&mut self) -> anyhow::Result<Talking> {
        if let Some(mut talking) = self.talking.take() {
            talking.stream.move_here()?;
            return Ok(talking);
        }
        let at = self.address.borrow_and_update().clone();
        let stream = self.security.dial(&at, connect).await?;
        let tls = stream.is_sealed();
        tracing::info!(peer = self.broker_id, address = %at, tls, "connected to another node");
        self.links.note_tls(self.broker_id, tls);
        self.link.traffic.connects.inc();
        self.link.set_connected(true);
        Ok(Talking { stream, answer: BytesMut::new() })
    }

    async fn talk(&mut self, talking: &mut Talking) -> anyhow::Result<Left> {
        let Talking { stream, answer } = talking;
        self.greet(stream).await?;
        let mut again = interval(GREET_AGAIN);
        loop {
            tokio::select! {
                (frames, notice) = self.link.take() => {
                    let count = frames.len() as u64;
                    let frames = frames.into_iter().map(|it| (Kind::Frame, it.into_parts()));
                    let notice = notice.map(|it| (Kind::Notice, vec![it.encode()]));
                    let messages = notice.into_iter().chain(frames);
                    self.send(stream, Parts::of(messages)).await?;
                    self.link.traffic.sent_frames.inc_by(count);
                }
                // Nobody changes it any more once it is a member.
                Ok(()) = self.identity.changed() => {
                    self.greet(stream).await?;
                }
                () = self.home.changed() => return Ok(Left::Moves),
                Ok(()) = self.address.changed() => bail!("the node is elsewhere now"),
                _ = again.tick() => {
                    // Until it is a member, what it has to say may have been said too early.
                    if self.identity.borrow().cluster_id.is_none() {
                        self.greet(stream).await?;
                    }
                }
                read = stream.read_buf(answer) => match read? {
                    0 => return Ok(Left::Done),
                    _ => self.take_answers(answer)?,
                },
            }
        }
    }

    /// Takes the notice that this node has no place in the cluster.
    fn take_answers(&self, answer: &mut BytesMut) -> anyhow::Result<()> {
        let stranger = "something else than a node of Duramen answers";
        while let Some(mut message) =
            framing::next_frame(answer, ANSWER_BYTES_MAX).map_err(|_| anyhow!(stranger))?
        {
            ensure!(Kind::of(message[0]) == Some(Kind::Notice), stranger);
            message.advance(1);
            let notice = Notice::decode(&message).map_err(anyhow::Error::msg)?;
            if let Some(standing) = self.links.standing() {
                standing.hear(&notice);
            }
        }
        Ok(())
    }

    async fn greet(&mut self, stream: &mut Wire) -> anyhow::Result<()> {
        let from = self.identity.borrow_and_update().clone();
        let greeting = Greeting { to: self.broker_id, from, nodes: self.links.nodes() };
        self.send(stream, Parts::of([(Kind::Greeting, vec![greeting.encode()])])).await
    }

    async fn send(&self, stream: &mut Wire, mut parts: Parts) -> anyhow::Result<()> {
        while parts.has_remaining() {
            let before = parts.remaining();
            let written = timeout(STALL_MAX, stream.write_buf(&mut parts)).await;
            written.context("it takes nothing")??;
            self.link.traffic.sent_bytes.inc_by((before - parts.remaining()) as u64);
        }
        // Bytes that were taken may wait, sealed.
        timeout(STALL_MAX, stream.flush()).await.context("it takes nothing")??;
        Ok(())
    }
}

/// Makes a socket to a node.
pub(super) async fn connect(at: &HostPort) -> anyhow::Result<TcpStream> {
    let address = (at.host.as_str(), at.port);
    let connected = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
    let stream = connected.context("no answer")??;
    stream.set_nodelay(true)?;
    let stall = u32::try_from(STALL_MAX.as_millis()).expect("some seconds");
    rustix::net::sockopt::set_tcp_user_timeout(&stream, stall)?;
    Ok(stream)
}

/// Returns a random number from 0 to 1.
fn chance() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

/// Messages in pieces, which are written together and never copied into one.
pub(super) struct Parts {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Parts {
    pub(super) fn of(messages: impl IntoIterator<Item = (Kind, Vec<Bytes>)>) -> Self {
        let mut all = Self { pieces: VecDeque::new(), bytes: 0 };
        for (kind, parts) in messages {
            let bytes = 1 + parts.iter().map(Bytes::len).sum::<usize>();
            let mut head = BytesMut::with_capacity(5);
            head.put_u32(u32::try_from(bytes).expect("the node bounds what it sends in one turn"));
            head.put_u8(kind as u8);
            all.bytes += head.len() - 1 + bytes;
            all.pieces.push_back(head.freeze());
            all.pieces.extend(parts.into_iter().filter(|part| !part.is_empty()));
        }
        all
    }
}

impl Buf for Parts {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |part| part)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let slices = into.iter_mut().zip(&self.pieces);
        slices.map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while count > 0 {
            let front = self.pieces.front_mut().expect("not past the end");
            let step = count.min(front.len());
            front.advance(step);
            count -= step;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_parts_are_their_bytes_however_they_are_written() {
        let parts = vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defgh")];
        let messages = [(Kind::Frame, parts), (Kind::Greeting, vec![Bytes::from_static(b"i")])];
        let whole = b"\0\0\0\x09\x02abcdefgh\0\0\0\x02\x01i";
        for step in 1..=whole.len() {
            let mut message = Parts::of(messages.clone());
            assert_eq!(message.remaining(), whole.len());
            let mut written = Vec::new();
            while message.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let count = message.chunks_vectored(&mut slices);
                let gathered: Vec<u8> = slices[..count].iter().flat_map(|it| it.to_vec()).collect();
                let taken = step.min(gathered.len());
                written.extend_from_slice(&gathered[..taken]);
                message.advance(taken);
            }
            assert_eq!(written, whole, "{step} bytes at a time");
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let link = Link::new(Traffic::default());
        link.push(PeerFrame::default());
        assert_eq!(link.traffic.dropped.get(), 1, "nobody is connected");
        link.set_connected(true);
        (0..QUEUE_FRAMES_MAX + 5).for_each(|_| link.push(PeerFrame::default()));
        assert_eq!(link.traffic.dropped.get(), 6);
        link.set_connected(false);
        assert_eq!(link.traffic.dropped.get(), 6 + QUEUE_FRAMES_MAX as u64);
    }
}
