//! A socket with TLS or without, for tokio's readers and writers: between nodes, and of clients that speak HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::server::home::watched_here;

/// See above.
#[derive(Debug)]
pub(crate) enum Wire {
    /// Bytes go as they are.
    Plain(TcpStream),
    /// Bytes are sealed.
    Sealed(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// Tells whether bytes are sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed(_))
    }

    /// Lets the runtime of this thread watch the socket.
    pub(crate) fn move_here(&mut self) -> io::Result<()> {
        let tcp = match self {
            Self::Plain(tcp) => tcp,
            Self::Sealed(tls) => match &mut **tls {
                TlsStream::Client(it) => it.get_mut().0,
                TlsStream::Server(it) => it.get_mut().0,
            },
        };
        *tcp = watched_here(tcp)?;
        Ok(())
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(context, into),
            // A killed node says no goodbye. Messages have lengths, also in HTTP, so a cut one is noticed all the same.
            Self::Sealed(tls) => match Pin::new(tls).poll_read(context, into) {
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Ok(()))
                }
                read => read,
            },
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, bytes),
            Self::Sealed(tls) => Pin::new(tls).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, parts),
            Self::Sealed(tls) => Pin::new(tls).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Sealed(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Sealed(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}
