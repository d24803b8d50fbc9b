//! The files of a moment: their names, the bytes of each that count, and the check of a copy.

use std::io::{self, Read, Write};

use crate::descriptor::{BATCH_HEADER_BYTES, Descriptor, UNCOVERED_BYTES};
use crate::encoding::ImageSource;
use crate::format::{INDEX_ENTRY_BYTES, TIME_ENTRY_BYTES, segment_stem};
use crate::op::Content;
use crate::replica_state::{ReplicaState, SegmentState};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 * 1024;

/// A file of a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    /// Path, relative to the data directory.
    pub path: String,
    /// Bytes from its begin that count. What lies behind them came later.
    pub bytes: u64,
    /// Content.
    pub role: Role,
    pub(super) replica: usize,
}

/// Content of a [`KeptFile`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Batches, from one offset up to another. In a segment that compaction made, offsets have gaps.
    Segment {
        /// Offset of the first batch.
        base_offset: i64,
        /// Offset behind the last one.
        end_offset: i64,
        /// True if each batch follows its predecessor.
        is_dense: bool,
    },
    /// An offset or time index, with its CRC if the journal has that.
    Index(Option<u32>),
    /// Snapshot of a view, with its CRC.
    Image(u32),
}

/// Makes the error for bytes that are not what they should be.
pub(super) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub(super) fn image_path(state: &ReplicaState) -> String {
    format!("{}/image-{:020}", state.dir(), state.prev_index)
}

/// Returns the names of the segments of a replica.
pub(super) fn names(state: &ReplicaState) -> impl Iterator<Item = (i64, u64)> {
    state.segments.iter().map(|segment| (segment.base_offset, segment.generation))
}

/// Returns the files of one replica.
pub(super) fn of(replica: usize, state: &ReplicaState) -> Vec<KeptFile> {
    let mut files = Vec::new();
    let mut push = |path, bytes, role| files.push(KeptFile { path, bytes, role, replica });
    let ends = state.segments.iter().skip(1).map(|next| next.base_offset);
    for (segment, end_offset) in state.segments.iter().zip(ends.chain([state.end_offset])) {
        let SegmentState { base_offset, generation, index_flushed, times_flushed, .. } = *segment;
        let stem =
            format!("{}/{}", state.dir(), segment_stem(base_offset, state.replica, generation));
        let is_dense = generation == 0;
        let role = Role::Segment { base_offset, end_offset, is_dense };
        push(format!("{stem}.log"), segment.size, role);
        if index_flushed > 0 {
            let crc = (!is_dense).then_some(segment.index_crc);
            let bytes = u64::from(index_flushed) * INDEX_ENTRY_BYTES as u64;
            push(format!("{stem}.index"), bytes, Role::Index(crc));
        }
        if times_flushed > 0 {
            let bytes = u64::from(times_flushed) * TIME_ENTRY_BYTES as u64;
            push(format!("{stem}.timeindex"), bytes, Role::Index(None));
        }
    }
    if let ImageSource::File { length, crc } = state.image {
        push(image_path(state), u64::from(length), Role::Image(crc));
    }
    files
}

/// Copies the bytes of a file of a replica that count, and checks them. Returns their CRC-32C.
pub(super) fn copy(
    state: &ReplicaState,
    file: &KeptFile,
    from: &mut impl Read,
    to: &mut impl Write,
) -> io::Result<u32> {
    let mut copying = Copying { from, to, crc: 0, left: file.bytes, piece: Vec::new() };
    match file.role {
        Role::Segment { base_offset, end_offset, is_dense } => {
            batches(&mut copying, state, (base_offset, end_offset), is_dense)?;
        }
        Role::Index(expected) => {
            copying.pass(file.bytes)?;
            if expected.is_some_and(|crc| crc != copying.crc) {
                return Err(damaged("the index does not match its checksum"));
            }
        }
        Role::Image(expected) => {
            copying.pass(file.bytes)?;
            if expected != copying.crc {
                return Err(damaged("the image does not match its checksum"));
            }
        }
    }
    Ok(copying.crc)
}

struct Copying<'a, R, W> {
    from: &'a mut R,
    to: &'a mut W,
    /// CRC of all that was copied.
    crc: u32,
    /// Bytes that are still to come.
    left: u64,
    piece: Vec<u8>,
}

impl<R: Read, W: Write> Copying<'_, R, W> {
    /// Copies so many bytes. Returns the CRC of these alone.
    fn pass(&mut self, bytes: u64) -> io::Result<u32> {
        if bytes > self.left {
            return Err(damaged("a batch reaches past the end"));
        }
        let (mut own, mut left) = (0, bytes);
        while left > 0 {
            let piece = usize::try_from(left).map_or(PIECE_BYTES, |it| it.min(PIECE_BYTES));
            self.piece.resize(piece, 0);
            self.from.read_exact(&mut self.piece).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged("the file is too short"),
                _ => error,
            })?;
            own = crc32c::crc32c_append(own, &self.piece);
            self.crc = crc32c::crc32c_append(self.crc, &self.piece);
            self.to.write_all(&self.piece)?;
            left -= piece as u64;
        }
        self.left -= bytes;
        Ok(own)
    }
}

/// Copies all batches of a segment.
fn batches(
    copying: &mut Copying<'_, impl Read, impl Write>,
    state: &ReplicaState,
    (mut next, end): (i64, i64),
    is_dense: bool,
) -> io::Result<()> {
    let mut known = descriptors_from(state, next).peekable();
    while copying.left > 0 {
        copying.pass(copying.left.min(BATCH_HEADER_BYTES as u64))?;
        let Ok(header) = <[u8; BATCH_HEADER_BYTES]>::try_from(&copying.piece[..]) else {
            return Err(damaged("the last batch is cut short"));
        };
        let batch =
            Descriptor::of_batch(&header, false).map_err(|error| damaged(&error.to_string()))?;
        let is_next = batch.base_offset == next || !is_dense && batch.base_offset > next;
        if !is_next || batch.end_offset() > end {
            return Err(damaged("a batch's base offset does not follow its predecessor's"));
        }
        if term_at(state, batch.base_offset) != Some(u64::from(term_of(&header))) {
            return Err(damaged("a batch's leader epoch is not the term it was appended in"));
        }
        let rest = batch.length as usize - BATCH_HEADER_BYTES;
        let of_rest = copying.pass(rest as u64)?;
        let covered = crc32c::crc32c(&header[UNCOVERED_BYTES..]);
        if crc32c::crc32c_combine(covered, of_rest, rest) != batch.batch_crc {
            return Err(damaged("a batch's CRC does not match"));
        }
        let brief = |it: &Descriptor| (it.base_offset, it.length, it.batch_crc, it.header_crc);
        let described = known.next_if(|it| it.base_offset <= batch.base_offset);
        if described.is_some_and(|it| brief(it) != brief(&batch)) {
            return Err(damaged("a batch is not the one that the journal describes"));
        }
        next = batch.end_offset();
    }
    if is_dense && next != end {
        return Err(damaged("the last batches of the segment are missing"));
    }
    Ok(())
}

fn term_of(header: &[u8]) -> u32 {
    u32::from_be_bytes(header[12..16].try_into().expect("four bytes"))
}

/// Returns the term of the entry that has an offset.
fn term_at(state: &ReplicaState, offset: i64) -> Option<u64> {
    let run = state.term_runs.iter().rev().find(|run| run.start_offset <= offset);
    run.map(|run| run.term)
}

/// Returns the descriptors that the journal has of batches from an offset on.
fn descriptors_from(state: &ReplicaState, offset: i64) -> impl Iterator<Item = &Descriptor> {
    let batches = state.entries.iter().filter_map(|entry| match &entry.content {
        Content::Batch(batch) => Some(batch),
        Content::Internal(_) => None,
    });
    batches.skip_while(move |batch| batch.base_offset < offset)
}
