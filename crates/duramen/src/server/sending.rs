//! # Room card: sending
//!
//! Purpose:    put response bytes and file ranges on a socket.
//! Owns:       vectored writes, `sendfile`, pieces of files to be sealed, when a range is read ahead first, when a
//!             reader is stuck.
//! Interface:  [`Sender::send`], [`Part`].
//! Invariants: a range that may not be in memory is read by a thread that may wait, never by one that
//!             serves other connections. Parts leave in order, whole, or the connection ends.
//! Never:      the choice of bytes, or their checks (`server::connection`, the broker).
//! Tests:      below; `tests/`, `compat/`.
//! Start at:   [`Sender::send`].
//!
//! Estimate a hot fetch of 1 MiB: one `sendmsg` for the header, five probes of a byte, `sendfile` calls as
//! the socket buffer takes them; no copy in user space. Cold: one hop to a blocking thread a
//! [`CHUNK`], which finds it read ahead after the first.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use duramen_protocol::wire::Few;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::disk::RealFile;
use super::metrics::Metrics;
use super::stream::Stream;
use super::tls::{SEALED_BYTES_MAX, Tls};

/// Bytes sent between two looks at whether the next ones are resident.
const CHUNK: u64 = 1024 * 1024;

/// Bytes read ahead for a sequential reader of cold data.
pub(crate) const READ_AHEAD: u64 = 8 * CHUNK;

/// A reader that takes nothing for so long is gone or stuck, and holds files open that may have
/// been removed.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(300);

/// Buffers of one `sendmsg`.
const SEND_BUFS_MAX: usize = 64;

/// Part of a response.
#[derive(Debug)]
pub enum Part {
    /// These bytes.
    Bytes(BytesMut),
    /// These bytes of a file.
    File(FilePart),
}

/// A range of a file.
#[derive(Debug)]
pub struct FilePart {
    /// The file.
    pub file: RealFile,
    /// Position of the first byte.
    pub at: u64,
    /// Bytes of the range.
    pub len: u64,
    /// True if the reader comes from just before this range: then it will come back for the bytes that follow.
    pub is_sequential: bool,
}

/// The writing half of a connection.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Metrics that the sender counts.
    pub metrics: Arc<Metrics>,
    /// Longest time a reader may take nothing.
    pub stall_max: Duration,
}

impl Sender {
    /// Sends all parts in order.
    pub(super) async fn send(&self, stream: &mut Stream, parts: &[Part]) -> io::Result<()> {
        match stream {
            Stream::Plain(tcp) => self.send_plain(tcp, parts).await,
            Stream::Tls(tls) => self.send_sealed(tls, parts).await,
        }
    }

    async fn send_plain(&self, stream: &TcpStream, parts: &[Part]) -> io::Result<()> {
        let mut rest = parts;
        while !rest.is_empty() {
            let run = rest.iter().take(SEND_BUFS_MAX);
            let run = run.take_while(|part| matches!(part, Part::Bytes(_))).count();
            let (bytes, after) = rest.split_at(run);
            if !bytes.is_empty() {
                // More follows at once: the kernel should not make a packet of the header alone.
                self.write_all(stream, bytes, !after.is_empty()).await?;
            }
            rest = after;
            if let Some((Part::File(file), after)) = rest.split_first() {
                self.send_file(stream, file).await?;
                rest = after;
            }
        }
        Ok(())
    }

    async fn send_file(&self, stream: &TcpStream, part: &FilePart) -> io::Result<()> {
        let end = part.at + part.len;
        let mut at = part.at;
        while at < end {
            let len = (end - at).min(CHUNK);
            self.load(part, at, len).await?;
            self.send_range(stream, &part.file, at, at + len).await?;
            at += len;
        }
        self.metrics.network.fetch_bytes.inc_by(part.len);
        Ok(())
    }

    /// Brings bytes of a file into memory, on a thread that may wait for the medium.
    async fn load(&self, part: &FilePart, at: u64, len: u64) -> io::Result<()> {
        if part.file.is_resident(at, len) {
            return Ok(());
        }
        let rest = part.at + part.len - at - len;
        let ahead = if part.is_sequential { READ_AHEAD } else { rest.min(READ_AHEAD) };
        let file = part.file.clone();
        let loaded = tokio::task::spawn_blocking(move || file.load(at, len, ahead));
        loaded.await.map_err(io::Error::other)??;
        self.metrics.network.fetch_cold_bytes.inc_by(len);
        Ok(())
    }

    /// Sends all parts in order, sealed. The next bytes are sealed only once the socket has taken the last ones.
    async fn send_sealed(&self, tls: &mut Tls, parts: &[Part]) -> io::Result<()> {
        for part in parts {
            match part {
                Part::Bytes(bytes) => self.seal(tls, bytes).await?,
                Part::File(part) => {
                    let (mut at, end) = (part.at, part.at + part.len);
                    while at < end {
                        let len = (end - at).min(SEALED_BYTES_MAX as u64);
                        self.load(part, at, len).await?;
                        let bytes = part.file.read_resident(at, len)?;
                        self.seal(tls, &bytes).await?;
                        at += len;
                    }
                    self.metrics.network.fetch_bytes.inc_by(part.len);
                }
            }
        }
        self.flush(tls).await
    }

    async fn seal(&self, tls: &mut Tls, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = tls.seal(rest)?;
            rest = &rest[taken..];
            if !rest.is_empty() {
                self.flush(tls).await?;
            }
        }
        Ok(())
    }

    async fn flush(&self, tls: &mut Tls) -> io::Result<()> {
        while tls.has_sealed() {
            match tls.write_sealed() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.until_writable(tls.tcp()).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => _ = written?,
            }
        }
        Ok(())
    }

    async fn write_all(&self, stream: &TcpStream, parts: &[Part], more: bool) -> io::Result<()> {
        let mut slices: Few<IoSlice<'_>> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Bytes(bytes) if !bytes.is_empty() => Some(IoSlice::new(bytes)),
                _ => None,
            })
            .collect();
        let mut rest = slices.as_mut_slice();
        let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
        while !rest.is_empty() {
            let n = self
                .when_writable(stream, || {
                    rustix::net::sendmsg(stream, rest, &mut SendAncillaryBuffer::default(), flags)
                })
                .await?;
            IoSlice::advance_slices(&mut rest, n);
        }
        Ok(())
    }

    async fn send_range(
        &self,
        stream: &TcpStream,
        file: &RealFile,
        at: u64,
        end: u64,
    ) -> io::Result<()> {
        let mut position = at;
        while position < end {
            let len = usize::try_from(end - position).unwrap_or(usize::MAX);
            let n = self
                .when_writable(stream, || {
                    let mut from = position;
                    rustix::fs::sendfile(stream, file, Some(&mut from), len)
                })
                .await?;
            if n == 0 {
                // The length is on its way already, so the frame cannot be completed.
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "a segment is shorter than its index says",
                ));
            }
            position += n as u64;
        }
        Ok(())
    }

    /// Tries `write` until it takes something, waiting for room in the socket, but not for ever.
    async fn when_writable(
        &self,
        stream: &TcpStream,
        mut write: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let tried = stream.try_io(Interest::WRITABLE, || match write() {
                Err(Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
                result => Ok(result?),
            });
            match tried {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.until_writable(stream).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Sender {
    /// Waits for room in the socket, but not for ever. The timer is made only where a reader makes us wait.
    async fn until_writable(&self, stream: &TcpStream) -> io::Result<()> {
        match tokio::time::timeout(self.stall_max, stream.writable()).await {
            Ok(ready) => ready,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client stopped reading its response",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use duramen_storage::Disk;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::super::disk::RealDisk;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn parts_arrive_in_order_and_whole() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(directory.path()).unwrap();
        let file = disk.create("a").unwrap();
        let content: Vec<u8> = (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect();
        disk.write_at(&file, &[&content], 0).unwrap();
        disk.sync(&file).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let part = |at: usize, len: usize, is_sequential| {
            let (at, len) = (at as u64, len as u64);
            Part::File(FilePart { file: file.clone(), at, len, is_sequential })
        };
        let mut parts: Vec<Part> = (0..100_u8).map(|i| Part::Bytes([i][..].into())).collect();
        parts.push(part(3, 7_000_000, false));
        parts.push(part(7_000_003, 12_999_997, true));
        parts.push(Part::Bytes(b"end"[..].into()));
        let metrics = Arc::new(Metrics::new());
        let sender = Sender { metrics, stall_max: STALL_MAX };
        let sending = tokio::spawn(async move {
            sender.send(&mut Stream::Plain(server), &parts).await.unwrap();
            sender.metrics.network.fetch_cold_bytes.get()
        });
        let mut received = Vec::new();
        let mut client = client;
        client.read_to_end(&mut received).await.unwrap();
        assert!(sending.await.unwrap() > 0);
        assert_eq!(received.len(), 100 + 19_999_997 + 3);
        assert!(received[..100].iter().copied().eq(0..100));
        assert_eq!(&received[100..100 + 19_999_997], &content[3..]);
        assert_eq!(&received[received.len() - 3..], b"end");
    }
}
