//! What other nodes send: connections that they opened.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use duramen_broker::limits::PEER_FRAME_BYTES_MAX;
use duramen_broker::peer::PeerFrame;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::forming::judge;
use super::greeting::{Greeting, Identity};
use super::{Kind, Links, PeerMetrics, Traffic};
use crate::server::complaints::Complaints;
use crate::server::core_loop::Input;
use crate::server::framing::{self, FrameError};
use crate::server::inbox::Inbox;

/// Connections that nodes may have here. A way that breaks leaves some behind for a while.
const CONNECTIONS_MAX: usize = 64;
/// Before it is known who speaks, and for every greeting.
const GREETING_BYTES_MAX: u32 = 64 << 10;
/// Nodes say something twice a second at least.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Frames of one connection that wait for the node's thread; above, the connection is not read.
const WAITING_KIB_MAX: u32 = 32 << 10;
/// What is read of a node at once, as far as it is there: most frames whole, with the batches in them.
const ROOM_MIN: usize = 48 << 10;
/// When the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    pub(super) identity: watch::Receiver<Identity>,
    pub(super) links: Links,
    /// Whoever forms the cluster; nobody listens after that.
    pub(super) greetings: mpsc::Sender<Greeting>,
    pub(super) node: Arc<Inbox<Input>>,
    pub(super) metrics: PeerMetrics,
    pub(super) complaints: Arc<Complaints>,
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
            let arrivals = self.clone();
            tokio::spawn(async move {
                if let Err(error) = arrivals.serve(stream).await {
                    arrivals.complain(address, &error);
                }
                drop(seat);
            });
        }
    }

    fn complain(&self, address: SocketAddr, why: &anyhow::Error) {
        if self.complaints.may_say() {
            tracing::warn!(%address, "a connection between nodes is closed: {why:#}");
        }
    }

    /// Reads until the other side closes, which is no mistake, or makes one.
    async fn serve(&self, stream: TcpStream) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let mut messages = Messages { stream, buf: BytesMut::new(), bytes_max: GREETING_BYTES_MAX };
        let room = Arc::new(Semaphore::new(WAITING_KIB_MAX as usize));
        let mut traffic: Option<Traffic> = None;
        while let Some((kind, body)) = messages.next().await? {
            if kind == Kind::Greeting {
                let from = self.greeted(body).await?;
                traffic = Some(self.metrics.of(from));
                messages.bytes_max = PEER_FRAME_BYTES_MAX;
                continue;
            }
            let Some(traffic) = &traffic else { bail!("it does not say who it is") };
            traffic.received_frames.inc();
            traffic.received_bytes.inc_by(body.len() as u64);
            let kib = u32::try_from(body.len().div_ceil(1024)).unwrap_or(u32::MAX);
            let frame = PeerFrame::decode(&body)?;
            if self.identity.borrow().cluster_id.is_none() {
                continue; // there is no node yet to take it
            }
            let waits = Arc::clone(&room).acquire_many_owned(kib.clamp(1, WAITING_KIB_MAX)).await?;
            self.node.push(Input::Peer(Box::new(frame), waits));
        }
        Ok(())
    }

    async fn greeted(&self, body: Bytes) -> anyhow::Result<i32> {
        ensure!(body.len() <= GREETING_BYTES_MAX as usize, "a greeting of {} bytes", body.len());
        let greeting = Greeting::decode(body).map_err(anyhow::Error::msg)?;
        let own = self.identity.borrow().clone();
        judge(&own, &greeting).map_err(anyhow::Error::msg)?;
        self.links.hear_of(&greeting.nodes);
        let from = greeting.from.broker_id;
        let _ = self.greetings.send(greeting).await;
        Ok(from)
    }
}

/// A stream, cut into messages.
struct Messages {
    stream: TcpStream,
    buf: BytesMut,
    bytes_max: u32,
}

impl Messages {
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
            let read = timeout(SILENCE_MAX, self.stream.read_buf(&mut into)).await;
            if read.context("it says nothing")?? == 0 {
                ensure!(self.buf.is_empty(), "it ended in the middle of a message");
                return Ok(None);
            }
        }
    }
}

/// [`FrameError`] tells clients what is wrong; this tells nodes.
fn words(error: &FrameError) -> String {
    match error {
        FrameError::TooLong { len, max } => format!("a message of {len} bytes, above {max}"),
        _ => "whoever connected is no node of Duramen".to_owned(),
    }
}
