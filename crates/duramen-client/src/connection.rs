//! One TCP connection to a broker: frames, negotiated versions, answers in order.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use duramen_protocol::api::Api;
use duramen_protocol::wire::{Message, Versions};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::either::Either;

use crate::call::Call;
use crate::error::Error;
use crate::options::Options;

mod entry;
mod framing;
mod login;

use entry::Entry;
pub use entry::Wire;
pub(crate) use entry::enter;
use framing::{common_version, decode, frame_of, read_frame};

/// Requests written ahead of the socket.
const QUEUED_REQUESTS: usize = 64;

/// An open connection. Requests may overlap; their answers come back in order.
///
/// Dropping a call does no harm: its request is sent whole or not at all, and its answer is discarded.
pub struct Connection {
    address: Arc<str>,
    options: Options,
    outgoing: mpsc::Sender<Outgoing>,
    ended: Arc<OnceLock<String>>,
    correlation: AtomicI32,
    versions: BTreeMap<i16, Versions>,
}

struct Outgoing {
    frame: Bytes,
    then: Then,
}

/// Outcome that the sender of a written request awaits.
enum Then {
    Answer(Waiting),
    /// No answer comes; the sender waits until the socket has taken the request.
    Written(oneshot::Sender<()>),
}

struct Waiting {
    correlation: i32,
    reply: oneshot::Sender<Bytes>,
}

/// A request that was sent and is not answered yet.
pub struct InFlight<R> {
    reply: oneshot::Receiver<Bytes>,
    ended: Arc<OnceLock<String>>,
    address: Arc<str>,
    timeout: Duration,
    api: &'static Api,
    version: i16,
    sent: Instant,
    response: PhantomData<fn() -> R>,
}

impl Connection {
    /// Connects to `HOST:PORT`, learns which versions the broker speaks, and shows who the client is. Must be called
    /// within a tokio runtime.
    ///
    /// Fails with [`Error::Unreachable`] if nobody listens there. Fails with [`Error::Refused`] if the broker does not
    /// take the client for its user.
    pub async fn open(address: &str, options: &Options) -> Result<Self, Error> {
        let Entry { wire, correlation, versions, .. } = Entry::make(address, options).await?;
        let (outgoing, queue) = mpsc::channel(QUEUED_REQUESTS);
        let (waiting, answers) = mpsc::unbounded_channel();
        let ended = Arc::new(OnceLock::new());
        match wire {
            Either::Left(plain) => {
                let (read, write) = plain.into_split();
                tokio::spawn(write_frames(write, queue, waiting, ended.clone()));
                tokio::spawn(read_frames(read, answers, ended.clone()));
            }
            Either::Right(sealed) => {
                let (read, write) = tokio::io::split(sealed);
                tokio::spawn(write_frames(write, queue, waiting, ended.clone()));
                tokio::spawn(read_frames(read, answers, ended.clone()));
            }
        }
        Ok(Self {
            address: address.into(),
            options: options.clone(),
            outgoing,
            ended,
            correlation: AtomicI32::new(correlation),
            versions,
        })
    }

    /// Returns the broker's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Tells whether the connection is open: false once it has ended.
    pub fn is_open(&self) -> bool {
        self.ended.get().is_none() && !self.outgoing.is_closed()
    }

    /// Returns the newest version in which both sides speak `C`, up to `version_max`. Fails with [`Error::Unsupported`]
    /// if there is none.
    pub fn version<C: Call>(&self, version_max: i16) -> Result<i16, Error> {
        common_version::<C>((&self.address, &self.versions), version_max)
    }

    /// Sends a request and waits for its response. An error code in the response is no error here.
    ///
    /// Fails with [`Error::Lost`], [`Error::TimedOut`], [`Error::Unsupported`], [`Error::Inexpressible`] or
    /// [`Error::Garbled`].
    pub async fn call<C: Call>(&self, request: &C) -> Result<C::Response, Error> {
        self.start(request).await?.answer().await
    }

    /// Sends a request. The caller may send more requests before it waits for the response. Waits itself while 64
    /// requests are queued.
    pub async fn start<C: Call>(&self, request: &C) -> Result<InFlight<C::Response>, Error> {
        let version = self.version::<C>(request.version_max())?;
        self.start_in(request, version).await
    }

    /// Sends a request that the broker does not answer (Produce with acks=0). Returns once the socket has taken it.
    pub async fn tell<C: Call>(&self, request: &C) -> Result<(), Error> {
        let version = self.version::<C>(request.version_max())?;
        let frame = frame_of(&self.options, request, version, self.next_correlation())?;
        let (sender, written) = oneshot::channel();
        let outgoing = Outgoing { frame, then: Then::Written(sender) };
        let lost = || lost(&self.address, &self.ended);
        self.outgoing.send(outgoing).await.map_err(|_| lost())?;
        written.await.map_err(|_| lost())
    }

    async fn start_in<C: Call>(
        &self,
        request: &C,
        version: i16,
    ) -> Result<InFlight<C::Response>, Error> {
        let correlation = self.next_correlation();
        let frame = frame_of(&self.options, request, version, correlation)?;
        let (sender, reply) = oneshot::channel();
        let then = Then::Answer(Waiting { correlation, reply: sender });
        let queued = self.outgoing.send(Outgoing { frame, then }).await;
        queued.map_err(|_| lost(&self.address, &self.ended))?;
        Ok(InFlight {
            reply,
            ended: self.ended.clone(),
            address: self.address.clone(),
            timeout: self.options.request_timeout,
            api: Api::of(C::API),
            version,
            sent: Instant::now(),
            response: PhantomData,
        })
    }

    fn next_correlation(&self) -> i32 {
        self.correlation.fetch_add(1, Ordering::Relaxed)
    }
}

impl<R: Message> InFlight<R> {
    /// Waits for the response. Without one within [`Options::request_timeout`] the connection ends.
    pub async fn answer(self) -> Result<R, Error> {
        let Self { reply, ended, address, timeout, api, version, sent, .. } = self;
        let frame = match timeout_at(sent + timeout, reply).await {
            Ok(Ok(frame)) => frame,
            Ok(Err(_)) => return Err(lost(&address, &ended)),
            Err(_) => {
                // Answers are in order: one that is late holds up all that follow.
                let _ = ended.set("an answer is overdue".into());
                return Err(Error::TimedOut {
                    address: address.to_string(),
                    api: api.name,
                    timeout,
                });
            }
        };
        decode(frame, api, version, &address)
    }
}

fn lost(address: &str, ended: &OnceLock<String>) -> Error {
    let reason = ended.get().cloned().unwrap_or_else(|| "it was closed".into());
    Error::Lost { address: address.to_owned(), reason }
}

async fn write_frames(
    mut socket: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Outgoing>,
    waiting: mpsc::UnboundedSender<Waiting>,
    ended: Arc<OnceLock<String>>,
) {
    while let Some(Outgoing { frame, then }) = queue.recv().await {
        let written = match then {
            Then::Written(written) => Some(written),
            Then::Answer(answer) => {
                // Registered before it is written, so that the answer cannot overtake it.
                if waiting.send(answer).is_err() {
                    return;
                }
                None
            }
        };
        if ended.get().is_some() {
            return;
        }
        // A stream with TLS keeps bytes back until it is flushed.
        let sent = async {
            socket.write_all(&frame).await?;
            socket.flush().await
        };
        if let Err(error) = sent.await {
            let _ = ended.set(error.to_string());
            return;
        }
        // Nobody waits any more: the call was dropped.
        let _ = written.map(|written| written.send(()));
    }
}

async fn read_frames(
    mut socket: impl AsyncRead + Unpin,
    mut answers: mpsc::UnboundedReceiver<Waiting>,
    ended: Arc<OnceLock<String>>,
) {
    let reason = loop {
        match read_frame(&mut socket).await {
            Ok(None) => break "the broker closed it".to_owned(),
            Err(error) => break error.to_string(),
            Ok(Some((correlation, body))) => {
                let Ok(waiting) = answers.try_recv() else {
                    break "it sent an answer that nobody asked for".to_owned();
                };
                if waiting.correlation != correlation {
                    break format!("answer {correlation} came for request {}", waiting.correlation);
                }
                // Nobody waits any more: the call was dropped.
                let _ = waiting.reply.send(body);
            }
        }
    };
    let _ = ended.set(reason);
}
