//! A client's socket, with TLS or without.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use bytes::buf::Limit;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::home::watched_here;
use super::tls::Tls;

/// See above.
#[derive(Debug)]
pub(super) enum Stream {
    /// Bytes go as they are.
    Plain(TcpStream),
    /// Bytes are sealed.
    Tls(Box<Tls>),
}

impl Stream {
    /// Waits until there may be something to read.
    pub(super) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => tcp.poll_read_ready(context),
            Self::Tls(tls) => tls.poll_read_ready(context),
        }
    }

    /// Reads what has arrived, as far as there is room.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        space: &mut Limit<&mut BytesMut>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => pin!(tcp.read_buf(space)).poll(context),
            Self::Tls(tls) => tls.poll_read(context, space),
        }
    }

    /// Lets the runtime of this thread watch the socket. Only a plain one moves: connections with TLS begin where they
    /// stay.
    pub(super) fn move_here(&mut self) -> io::Result<()> {
        if let Self::Plain(tcp) = self {
            *tcp = watched_here(tcp)?;
        }
        Ok(())
    }

    /// Says that nothing follows, where TLS has a word for that.
    pub(super) fn say_goodbye(&mut self) {
        if let Self::Tls(tls) = self {
            tls.say_goodbye();
        }
    }
}
