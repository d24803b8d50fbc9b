//! Digests of logs, by which replicas on different nodes are compared: over the bytes of batches as they lie in segments.

use bytes::Bytes;
use twox_hash::xxhash3_128::Hasher;

use super::{NOT_AS_INDEXED, ReadError, Reader, fault_of};
use crate::catalog::LogFiles;
use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor};
use crate::{Disk, ReplicaId};

/// Read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// What a part of a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The first offset of the first batch, which holds the offset that was asked for.
    pub first: i64,
    /// One past the last offset of the last batch.
    pub end: i64,
    /// Bytes of the batches.
    pub bytes: u64,
    /// XXH3 (128 bits) of them: against chance, not against whoever wants to be mistaken.
    pub hash: [u8; 16],
    /// The base offsets of the segments that begin with one of the batches.
    pub segments: Vec<i64>,
    /// The first that is wrong by itself, whatever other replicas have.
    pub damage: Option<Damage>,
}

/// A batch that is not what it says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The offset of the batch.
    pub offset: i64,
    /// What is wrong, and where.
    pub what: String,
}

/// Why no more is read.
enum Stop {
    /// It is enough.
    Enough,
    /// What follows cannot be told from what is damaged.
    Damaged(Damage),
    Failed(ReadError),
}

impl<D: Disk> Reader<D> {
    /// The digest of the batches that hold offsets from `from` on and below `to`: of the first, and of more as long as they
    /// have no more than `bytes_max` bytes together. All is read again, whatever was checked before. A batch that is damaged
    /// but can be told from the next is in the digest as it is.
    pub fn digest(
        &self,
        replica: ReplicaId,
        from: i64,
        to: i64,
        bytes_max: u64,
    ) -> Result<Digest, ReadError> {
        let files = self.catalog.get(replica)?;
        let digest = Digest {
            first: from,
            end: from,
            bytes: 0,
            hash: [0; 16],
            segments: Vec::new(),
            damage: None,
        };
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
        let is_dense = segment.is_dense();
        let (mut at, _) = found.unwrap_or((size, 0));
        let (mut chunk, mut chunk_at) = (Bytes::new(), at);
        let mut read = |at: u64, len: usize| {
            let skip = usize::try_from(at - chunk_at).unwrap_or(usize::MAX);
            if skip.saturating_add(len) > chunk.len() {
                let left = usize::try_from(size - at).unwrap_or(usize::MAX);
                let len = left.min(len.max(CHUNK_BYTES));
                (chunk, chunk_at) = (self.read_file(&path, &file, at, len)?, at);
            }
            let skip = usize::try_from(at - chunk_at).unwrap_or(usize::MAX);
            Ok(chunk.slice(skip..chunk.len().min(skip + len)))
        };
        while at < size && made.digest.end < made.to {
            let offset = made.digest.end;
            let mut read = |len| match read(at, len) {
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
            if made.digest.bytes > 0 && made.digest.bytes + u64::from(batch.length) > made.bytes_max
            {
                return Err(Stop::Enough);
            }
            let bytes = read(batch.length as usize)?;
            let wrong = fault_of(files, &batch, &bytes, (batch.base_offset, true));
            let belongs = self.belongs(&segment, at, &batch)?;
            let wrong = wrong.or((!belongs).then_some(NOT_AS_INDEXED));
            made.take(&batch, &bytes);
            if let Some(Stop::Damaged(damage)) =
                wrong.map(|what| damaged(batch.base_offset, at, what))
            {
                made.digest.damage.get_or_insert(damage);
            }
            at += u64::from(batch.length);
        }
        if at >= size && !is_dense {
            // What was behind the last batch was compacted away.
            made.digest.end = made.digest.end.max(written_end);
        }
        Ok(())
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
    /// Whether a batch is the one that is to come, as far as its predecessor tells.
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

    fn take(&mut self, batch: &Descriptor, bytes: &[u8]) {
        let digest = &mut self.digest;
        if digest.bytes == 0 {
            digest.first = batch.base_offset;
        }
        if batch.starts_segment {
            digest.segments.push(batch.base_offset);
        }
        digest.bytes += bytes.len() as u64;
        digest.end = batch.end_offset();
        self.hasher.write(bytes);
    }
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}
