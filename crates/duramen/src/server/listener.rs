//! # Room card: listener
//!
//! Purpose:    let clients in, as many as there may be.
//! Owns:       the accepting loop, the connection limit, socket options.
//! Interface:  [`Listener::run`].
//! Invariants: no more tasks than permits; running out of descriptors stops accepting, not serving.
//! Never:      reading a client's bytes.
//! Tests:      `tests/server.rs`.
//! Start at:   [`Listener::run`].

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duramen_broker::event::ConnectionId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::connection::{self, Shared};

/// A silent peer is probed after this, so that a machine that vanished is noticed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// How long to stop accepting when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// A refused connection is logged at most this often.
const REFUSED_LOG_EVERY: Duration = Duration::from_secs(1);

/// Accepts clients.
#[derive(Debug)]
pub struct Listener {
    /// The bound socket.
    pub socket: TcpListener,
    /// How many connections there may be.
    pub connections_max: usize,
    /// The send buffer of each socket, if it is not the kernel's to choose: with the megabytes that it
    /// chose on loopback, a byte of a fetch cost twice the CPU that it does with 100 KiB.
    pub send_buffer_bytes: Option<usize>,
    /// For them.
    pub shared: Shared,
}

impl Listener {
    /// Accepts until the server stops; then waits for the connections to finish, at most
    /// `grace`.
    pub async fn run(self, mut stop: watch::Receiver<bool>, grace: Duration) {
        let permits = Arc::new(Semaphore::new(self.connections_max.min(Semaphore::MAX_PERMITS)));
        let mut tasks = JoinSet::new();
        let mut number = 0;
        let mut refused_log = None;
        while !*stop.borrow() {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                // Finished tasks are taken away as they end.
                Some(_) = tasks.join_next() => continue,
                _ = stop.changed() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                self.shared.metrics.connections_refused.inc();
                if refused_log.is_none_or(|at: Instant| at.elapsed() > REFUSED_LOG_EVERY) {
                    refused_log = Some(Instant::now());
                    tracing::warn!(%peer, max = self.connections_max, "connection refused: as many are open as max.connections allows");
                }
                continue;
            };
            self.shared.metrics.connections_accepted.inc();
            if let Err(error) = set_options(&stream, self.send_buffer_bytes) {
                tracing::debug!(%peer, %error, "the connection ended before it began");
                continue;
            }
            number += 1;
            let shared = self.shared.clone();
            tasks.spawn(async move {
                connection::serve(stream, peer, ConnectionId(number), shared).await;
                drop(permit);
            });
        }
        drop(self.socket);
        let finished = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, finished).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "closed with requests unanswered: the time to finish is over"
            );
            tasks.shutdown().await;
        }
    }
}

async fn pause_after(error: &io::Error) {
    match error.kind() {
        // The client was gone before we got to it.
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {}
        _ => {
            tracing::error!(%error, "cannot accept connections; the open ones are served");
            tokio::time::sleep(PAUSE).await;
        }
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
