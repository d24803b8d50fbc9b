//! # Room card: listener
//!
//! Purpose:    let clients in, as many as there may be.
//! Owns:       the accepting loop, how fast it goes, socket options.
//! Interface:  [`Listener::run`].
//! Invariants: no more tasks than seats; running out of descriptors stops accepting, not serving.
//! Never:      reading a client's bytes.
//! Tests:      `tests/server.rs`.
//! Start at:   [`Listener::run`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duramen_broker::event::ConnectionId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection::{self, Asking, Entrance, Shared};
use super::reloading::Limits;
use super::seats::Seats;
use super::tls::Certificates;

/// A silent peer is probed after this, so that a machine that vanished is noticed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// Pause in accepting when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

const SECOND: Duration = Duration::from_secs(1);

/// Accepts clients.
#[derive(Debug)]
pub struct Listener {
    /// The bound socket.
    pub socket: TcpListener,
    /// The listener's name.
    pub name: Arc<str>,
    /// Its certificates, if it has TLS.
    pub tls: Option<Arc<Certificates>>,
    /// Means to ask clients who they are, if it asks them by SASL.
    pub asking: Option<Asking>,
    /// Numbers of the connections of all listeners.
    pub numbers: Arc<AtomicU64>,
    /// Which connections there are.
    pub seats: Arc<Seats>,
    /// Limits of connections that begin now.
    pub limits: watch::Receiver<Limits>,
    /// Send buffer of each socket in bytes; `None` lets the kernel choose. With the megabytes that it chose on
    /// loopback, a byte of a fetch cost twice the CPU that it does with 100 KiB.
    pub send_buffer_bytes: Option<usize>,
    /// State that connections share.
    pub shared: Shared,
}

impl Listener {
    /// Accepts until the server stops; then waits for the connections to finish, at most
    /// `grace`.
    pub async fn run(self, mut stop: watch::Receiver<bool>, grace: Duration) {
        let mut tasks = JoinSet::new();
        let mut pace = Pace::new();
        while !*stop.borrow() {
            pace.max = self.limits.borrow().rate_max;
            let accepted = tokio::select! {
                accepted = pace.accept(&self.socket) => accepted,
                // Finished tasks are taken away as they end.
                Some(_) = tasks.join_next() => continue,
                _ = stop.changed() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.pause_after(&error).await;
                    continue;
                }
            };
            let limits = self.limits.borrow().clone();
            let seat = match self.seats.take(peer.ip(), &limits.seats) {
                Ok(seat) => seat,
                Err(reason) => {
                    self.shared.metrics.network.connections_refused.inc();
                    if self.shared.complaints.may_say() {
                        tracing::warn!(%peer, %reason, "connection refused");
                    }
                    continue;
                }
            };
            self.shared.metrics.network.connections_accepted.inc();
            if let Err(error) = set_options(&stream, self.send_buffer_bytes) {
                tracing::debug!(%peer, %error, "cannot set the options of a connection");
                continue;
            }
            let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
            let tls = self.tls.as_ref().map(|it| it.current());
            let (name, asking) = (Arc::clone(&self.name), self.asking.clone());
            let entrance = Entrance { name, tls, asking };
            let Limits { idle_max, frame_bytes_max, .. } = limits;
            let shared = Shared { frame_bytes_max, idle_max, ..self.shared.clone() };
            tasks.spawn(async move {
                connection::serve((stream, peer), ConnectionId(number), entrance, shared).await;
                drop(seat);
            });
        }
        drop(self.socket);
        let finished = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, finished).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "connections close with unanswered requests: the time to finish is over"
            );
            tasks.shutdown().await;
        }
    }

    async fn pause_after(&self, error: &io::Error) {
        match error.kind() {
            // The client was gone before we got to it.
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {}
            _ => {
                if self.shared.complaints.may_say() {
                    tracing::error!(%error, "cannot accept connections; the open ones are served");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Accepts so many in a second, and lets the others wait in the socket's queue.
#[derive(Debug)]
struct Pace {
    max: u32,
    accepted: u32,
    began: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { max: 1, accepted: 0, began: Instant::now() }
    }

    async fn accept(&mut self, socket: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        if self.accepted >= self.max {
            tokio::time::sleep(SECOND.saturating_sub(self.began.elapsed())).await;
        }
        if self.accepted >= self.max || self.began.elapsed() >= SECOND {
            (self.began, self.accepted) = (Instant::now(), 0);
        }
        let accepted = socket.accept().await?;
        self.accepted += 1;
        Ok(accepted)
    }
}

fn set_options(stream: &TcpStream, send_buffer_bytes: Option<usize>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if let Some(bytes) = send_buffer_bytes {
        rustix::net::sockopt::set_socket_send_buffer_size(stream, bytes)?;
    }
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    rustix::net::sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    rustix::net::sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}
