//! Digests of logs, by which nodes compare their replicas.
//!
//! A digest covers the bytes of batches as they lie in segments. Compacted batches may have been compressed anew, by
//! another build on another node, and their segments begin elsewhere. For them the digest covers the headers of
//! batches and their decompressed records. An erasure leaves segments as they are that lose nothing, but another
//! replica may have been fed them. So this goes for all batches below the end of a compaction or erasure.

use bytes::Bytes;
use duramen_protocol::batch::BatchView;
use duramen_protocol::records::Records;
use twox_hash::xxhash3_128::Hasher;

use super::{Damage, Digest, NOT_AS_INDEXED, Reader, fault_of};
use crate::catalog::{LogFiles, ReadError};
use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor};
use crate::{Disk, ReplicaId};

/// Bytes per read.
const CHUNK_BYTES: usize = 1 << 20;
/// Most bytes that the records of one batch may take when decompressed. The limit for appends is lower.
const RECORD_BYTES_MAX: usize = 1 << 30;
/// Attribute bits that name a batch's codec.
const CODEC_BITS: u16 = 7;

/// Why no more is read.
enum Stop {
    /// The digest covers enough.
    Enough,
    /// Behind a damaged batch the next one cannot be found.
    Damaged(Damage),
    Failed(ReadError),
}

impl<D: Disk> Reader<D> {
    /// Returns the digest of the batches that hold offsets from `from` on and below `to`. The digest covers the first
    /// batch, and further ones up to `bytes_max` bytes together. Reads all bytes again, even verified ones. Includes
    /// a damaged batch as it is, if the next batch can be found behind it.
    pub fn digest(
        &self,
        replica: ReplicaId,
        from: i64,
        to: i64,
        bytes_max: u64,
    ) -> Result<Digest, ReadError> {
        let files = self.catalog.get(replica)?;
        let compaction = files.compaction();
        let digest = Digest { first: from, end: from, compaction, ..Digest::default() };
        let mut made = Making { digest, hasher: Hasher::new(), to, bytes_max };
        while made.digest.end < to {
            match self.digest_segment(&files, &mut made) {
                Ok(()) => {}
                Err(Stop::Enough) => break,
                Err(Stop::Damaged(damage)) => {
                    made.digest.damage.get_or_insert(damage);
                    break;
                }
                Err(Stop::Failed(error)) => return self.suspect_of(replica, Err(error)),
            }
        }
        if files.compaction() != made.digest.compaction {
            return Err(ReadError::Removed); // it is of no one state of the log
        }
        let damage = made.digest.damage.as_ref();
        if let Some(segment) = damage.and_then(|damage| files.segment_of(damage.offset)) {
            self.catalog.suspect(replica, segment.base_offset);
        }
        let Making { mut digest, hasher, .. } = made;
        digest.hash = hasher.finish_128().to_be_bytes();
        Ok(digest)
    }

    /// Goes on to the end of a segment, or of what is wanted.
    fn digest_segment(&self, files: &LogFiles<D>, made: &mut Making) -> Result<(), Stop> {
        let offset = made.digest.end;
        let segment = files.segment_of(offset).ok_or(ReadError::OutOfRange)?;
        let (size, written_end) = segment.written();
        if offset >= written_end {
            return Err(ReadError::OutOfRange.into());
        }
        let file = self.file(&segment)?;
        let path = segment.path();
        let damaged = |offset: i64, at: u64, what: &'static str| {
            let error = ReadError::Damaged { path: path.clone(), at, what };
            Stop::Damaged(Damage { offset, what: error.to_string() })
        };
        let found = match self.position_of(&segment, &file, offset) {
            Err(ReadError::Damaged { at, what, .. }) => return Err(damaged(offset, at, what)),
            found => found?,
        };
        let (is_dense, compacted_below) = (segment.is_dense(), files.compacted().below);
        let (mut at, _) = found.unwrap_or((size, 0));
        let mut chunk = Chunk { bytes: Bytes::new(), at };
        while at < size && made.digest.end < made.to {
            let offset = made.digest.end;
            let mut read = |len| match chunk
                .read(at, len, size, |at, len| self.read_file(&path, &file, at, len))
            {
                Err(ReadError::Damaged { at, what, .. }) => Err(damaged(offset, at, what)),
                bytes => bytes.map_err(Stop::Failed),
            };
            let header = Descriptor::of_batch(&read(BATCH_HEADER_BYTES)?, at == 0);
            let batch = header.map_err(|_| damaged(offset, at, "there is no batch header"))?;
            if u64::from(batch.length) > size - at {
                return Err(damaged(offset, at, "a batch reaches past the end"));
            }
            if !is_dense && batch.base_offset >= made.to {
                made.digest.end = made.to;
                return Ok(());
            }
            if !made.is_next(&batch, is_dense) {
                let what = "a batch's base offset does not follow its predecessor's";
                return Err(damaged(offset, at, what));
            }
            let whole = read(batch.length as usize)?;
            if !is_dense {
                // Where a gap ends is the same wherever segments begin.
                made.digest.end = made.digest.end.max(batch.base_offset);
            }
            let is_plain = batch.base_offset >= compacted_below;
            let bytes = if is_plain {
                whole.clone()
            } else {
                records_of(&whole)
                    .ok_or_else(|| damaged(offset, at, "its records cannot be read"))?
            };
            if made.digest.bytes > 0 && made.digest.bytes + bytes.len() as u64 > made.bytes_max {
                return Err(Stop::Enough);
            }
            let wrong = fault_of(files, &batch, &whole, (batch.base_offset, true));
            let belongs = self.belongs(&segment, at, &batch)?;
            let wrong = wrong.or((!belongs).then_some(NOT_AS_INDEXED));
            made.take(&batch, &bytes, is_plain);
            if let Some(Stop::Damaged(damage)) =
                wrong.map(|what| damaged(batch.base_offset, at, what))
            {
                made.digest.damage.get_or_insert(damage);
            }
            at += u64::from(batch.length);
        }
        if at >= size && !is_dense {
            // Compaction removed the batches behind the last one.
            made.digest.end = made.digest.end.max(written_end);
        }
        Ok(())
    }
}

/// Bytes of a file that were read last.
struct Chunk {
    bytes: Bytes,
    at: u64,
}

impl Chunk {
    /// Reads a part of a file of that size. The file is read in larger parts, from front to back.
    fn read(
        &mut self,
        at: u64,
        len: usize,
        size: u64,
        from_file: impl Fn(u64, usize) -> Result<Bytes, ReadError>,
    ) -> Result<Bytes, ReadError> {
        let skip = |from: u64| usize::try_from(at - from).unwrap_or(usize::MAX);
        if skip(self.at).saturating_add(len) > self.bytes.len() {
            let left = usize::try_from(size - at).unwrap_or(usize::MAX);
            self.bytes = from_file(at, left.min(len.max(CHUNK_BYTES)))?;
            self.at = at;
        }
        let skip = skip(self.at);
        Ok(self.bytes.slice(skip..self.bytes.len().min(skip + len)))
    }
}

/// A digest that is not finished.
struct Making {
    digest: Digest,
    hasher: Hasher,
    to: i64,
    bytes_max: u64,
}

impl Making {
    /// Tells whether a batch is the next one, as far as its predecessor tells.
    fn is_next(&self, batch: &Descriptor, is_dense: bool) -> bool {
        let offset = self.digest.end;
        if !is_dense {
            return batch.end_offset() > offset;
        }
        if self.digest.bytes == 0 {
            return (batch.base_offset..batch.end_offset()).contains(&offset);
        }
        batch.base_offset == offset
    }

    fn take(&mut self, batch: &Descriptor, bytes: &[u8], is_plain: bool) {
        let digest = &mut self.digest;
        if digest.bytes == 0 {
            digest.first = batch.base_offset;
        }
        if batch.starts_segment && is_plain {
            digest.segments.push(batch.base_offset);
        }
        digest.bytes += bytes.len() as u64;
        digest.end = batch.end_offset();
        self.hasher.write(bytes);
    }
}

/// Returns a compacted batch in a form that does not depend on its compression: header fields of the whole batch, and
/// the decompressed records.
fn records_of(bytes: &Bytes) -> Option<Bytes> {
    let view = BatchView::parse(bytes).ok()?;
    let records = Records::of(&view, RECORD_BYTES_MAX).ok()?;
    // Offset, term; then from the timestamps to the count, but not how it is compressed.
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(&bytes[..8]);
    out.extend_from_slice(&bytes[12..16]);
    let attributes = u16::from_be_bytes([bytes[21], bytes[22]]) & !CODEC_BITS;
    out.extend_from_slice(&attributes.to_be_bytes());
    out.extend_from_slice(&bytes[23..61]);
    for record in &records {
        let record = record.ok()?;
        out.extend_from_slice(&records.offset(&record).to_be_bytes());
        out.extend_from_slice(&records.timestamp(&record).to_be_bytes());
        put(&mut out, record.key);
        put(&mut out, record.value);
        for header in record.headers {
            put(&mut out, Some(header.key));
            put(&mut out, header.value);
        }
    }
    Some(out.into())
}

fn put(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let length = bytes.map_or(-1, |it| i64::try_from(it.len()).unwrap_or(i64::MAX));
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes.unwrap_or_default());
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}
