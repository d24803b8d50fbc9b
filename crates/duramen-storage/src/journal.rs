//! # Room card: journal
//!
//! Purpose:    an ordered redo log on a ring of recycled files.
//! Owns:       extents and rounds: their bytes, their order, the live ones among them; the mark, which names a place
//!             that the journal reached at least.
//! Interface:  [`Journal::write_round`], [`scan`], [`rounds_of`].
//! Invariants: one round is in flight at a time. So a round's header states that every earlier round was durable when
//!             this one was written: only the last round may be torn. The journal overwrites an extent only when a
//!             durable round states that replay does not need it. Every round names the number of files in the ring;
//!             the mark names a round that was durable. A journal that holds less than both say has lost a file, and
//!             recovery refuses it.
//! Never:      the meaning of records.
//! Tests:      below; fuzz target `journal`; `duramen-sim`.
//! Start at:   [`Journal::write_round`].

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, Bytes};

use crate::Disk;
use crate::disk::is_full;
use crate::error::{Error, disk_error};
use crate::format::{
    JOURNAL_DIR, JOURNAL_MARK, MARK_MAGIC, ROUND_ALIGN, ROUND_HEADER_BYTES, ROUND_MAGIC,
};
use crate::sabotage::{self, Bug};

const VERSION: u16 = 1;
/// Bound of all numbers in a header. No journal gets so far; a header with a greater number is not ours.
const NUMBER_MAX: u64 = 1 << 62;

/// Content of a round's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundHeader {
    /// The extent's sequence number: which use of the recycled file this is.
    pub extent: u64,
    /// The round's number. Dense; the rounds before it were durable when it was written.
    pub lsn: u64,
    /// The oldest extent that replay needs.
    pub tail: u64,
    /// Position of the round in the extent's file.
    pub position: u64,
    /// Bytes of records.
    pub body_bytes: u32,
    /// CRC32C of the records.
    pub body_crc: u32,
    /// Files of the ring when the round was written; 0 in rounds of an earlier build, which did not record it.
    pub extents: u32,
    /// Starts the directory id: a round from another directory is not ours.
    pub directory: u64,
}

impl RoundHeader {
    fn encode(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&ROUND_MAGIC.to_be_bytes());
        out[8..10].copy_from_slice(&VERSION.to_be_bytes());
        out[10..12].fill(0);
        out[12..16].copy_from_slice(&self.body_bytes.to_be_bytes());
        out[16..20].copy_from_slice(&self.body_crc.to_be_bytes());
        out[20..24].copy_from_slice(&self.extents.to_be_bytes());
        out[24..32].copy_from_slice(&self.extent.to_be_bytes());
        out[32..40].copy_from_slice(&self.lsn.to_be_bytes());
        out[40..48].copy_from_slice(&self.tail.to_be_bytes());
        out[48..56].copy_from_slice(&self.position.to_be_bytes());
        out[56..64].copy_from_slice(&self.directory.to_be_bytes());
        let crc = crc32c::crc32c(&out[8..ROUND_HEADER_BYTES]);
        out[4..8].copy_from_slice(&crc.to_be_bytes());
    }

    /// Reads a header; `None` if these bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut header = bytes.get(..ROUND_HEADER_BYTES)?;
        let covered = &header[8..];
        let crc = crc32c::crc32c(covered);
        if header.get_u32() != ROUND_MAGIC || header.get_u32() != crc {
            return None;
        }
        if header.get_u16() != VERSION {
            return None;
        }
        header.advance(2);
        let (body_bytes, body_crc) = (header.get_u32(), header.get_u32());
        let extents = header.get_u32();
        let header = Self {
            extent: header.get_u64(),
            lsn: header.get_u64(),
            tail: header.get_u64(),
            position: header.get_u64(),
            directory: header.get_u64(),
            body_bytes,
            body_crc,
            extents,
        };
        let possible = header.extent.max(header.lsn) <= NUMBER_MAX && header.tail <= header.extent;
        possible.then_some(header)
    }

    fn padded_bytes(&self) -> usize {
        (ROUND_HEADER_BYTES + self.body_bytes as usize).next_multiple_of(ROUND_ALIGN)
    }
}

/// A round as found on disk.
#[derive(Clone, Debug)]
pub struct Round {
    /// Header of the round.
    pub header: RoundHeader,
    /// File of the ring that holds the round.
    pub file: usize,
    /// Records of the round; `None` if they do not match the header's CRC.
    pub body: Option<Bytes>,
}

impl Round {
    /// Tells whether this round stands right behind `before` in its extent, or begins the next extent.
    fn follows(&self, before: &Self) -> bool {
        let (this, that) = (&self.header, &before.header);
        let end = that.position + that.padded_bytes() as u64;
        let behind = self.file == before.file && this.extent == that.extent && this.position == end;
        behind || this.position == 0 && this.extent == that.extent + 1
    }
}

/// Returns all rounds that can be recognised in one extent's bytes, in order of position. After a round whose body
/// does not fit, the search goes on page by page, so that later rounds are seen.
pub fn rounds_of(file: usize, bytes: &Bytes) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut at = 0;
    while at + ROUND_HEADER_BYTES <= bytes.len() {
        let header = RoundHeader::decode(&bytes[at..]).filter(|it| it.position == at as u64);
        let Some(header) = header else {
            at += ROUND_ALIGN;
            continue;
        };
        let start = at + ROUND_HEADER_BYTES;
        let end = start + header.body_bytes as usize;
        let body = (end <= bytes.len())
            .then(|| bytes.slice(start..end))
            .filter(|body| crc32c::crc32c(body) == header.body_crc);
        at += if body.is_some() { header.padded_bytes() } else { ROUND_ALIGN };
        rounds.push(Round { header, file, body });
    }
    debug_assert!(
        rounds.is_sorted_by(|a, b| a.header.position < b.header.position),
        "rounds of an extent are in order of position"
    );
    rounds
}

/// Result of a scan of the whole ring.
#[derive(Debug)]
pub struct Scan {
    /// The rounds to replay, in order, all with good bodies.
    pub rounds: Vec<Round>,
    /// A last round was begun and not finished: nobody was told that it was durable.
    pub torn: bool,
    /// Files that the ring has at least; 0 if only earlier builds wrote to it.
    pub extents: u32,
}

/// Sorts out the live rounds, and tells a tear from damage. After the last good round there may be the remains of one
/// more. Anything missing before it was durable once, and is damage.
pub fn scan(mut rounds: Vec<Round>, directory: u64) -> Result<Scan, String> {
    rounds.retain(|round| round.header.directory == directory);
    let extents = rounds.iter().map(|round| round.header.extents).max().unwrap_or(0);
    if let Some((one, other)) = twice_used(&rounds) {
        return Err(format!(
            "{} and {} hold the same extent",
            extent_path(one),
            extent_path(other)
        ));
    }
    rounds.sort_by_key(|round| (round.header.lsn, round.body.is_none()));
    let Some(last) = rounds.iter().rfind(|round| round.body.is_some()).map(|it| it.header) else {
        return Err("no whole round is left in the journal".into());
    };
    let torn = rounds.iter().any(|round| round.body.is_none() && round.header.lsn > last.lsn);
    if let Some(beyond) = rounds.iter().find(|round| round.header.lsn > last.lsn + 1) {
        let missing = last.lsn + 1;
        return Err(format!("round {} follows, so round {missing} was durable", beyond.header.lsn));
    }
    let tail = if sabotage::is(Bug::OldGenerationReplayed) { 0 } else { last.tail };
    rounds.retain(|round| round.header.extent >= tail && round.body.is_some());
    assert!(!rounds.is_empty(), "the last whole round is live");
    let first = rounds.first().map_or(last, |round| round.header);
    if first.extent != last.tail || first.position != 0 {
        return Err(format!("the beginning of extent {} is lost", last.tail));
    }
    for (round, lsn) in rounds.iter().zip(first.lsn..) {
        if round.header.lsn != lsn {
            if sabotage::is(Bug::RotTakenForTear) {
                rounds.retain(|round| round.header.lsn < lsn);
                return Ok(Scan { rounds, torn: true, extents });
            }
            return Err(format!("round {lsn} is lost, though round {} follows", round.header.lsn));
        }
    }
    if let Some(pair) = rounds.windows(2).find(|pair| !pair[1].follows(&pair[0])) {
        return Err(format!("round {} is not where it should be", pair[1].header.lsn));
    }
    let end = rounds.last().map(|round| round.header.lsn);
    assert_eq!(end, Some(last.lsn), "a scan ends with the last whole round");
    Ok(Scan { rounds, torn, extents })
}

/// Finds two files with whole rounds of one extent. Each use of a file has a number of its own. So one of the two is
/// a copy, and has replaced another file.
fn twice_used(rounds: &[Round]) -> Option<(usize, usize)> {
    let mut files = BTreeMap::new();
    rounds.iter().filter(|round| round.body.is_some()).find_map(|round| {
        let file = *files.entry(round.header.extent).or_insert(round.file);
        (file != round.file).then_some((file, round.file))
    })
}

/// Size of one of the mark's two slots, which are written in turn: one is whole whenever the other is torn.
const MARK_SLOT_BYTES: usize = ROUND_ALIGN;
/// Bytes of a slot that say something.
const MARK_BYTES: usize = 24;

const _: () = assert!(MARK_BYTES <= MARK_SLOT_BYTES, "a mark fits into its slot");

/// Encodes the mark of a durable round.
fn encode_mark(directory: u64, lsn: u64) -> Vec<u8> {
    let mut slot = vec![0; MARK_SLOT_BYTES];
    slot[..4].copy_from_slice(&MARK_MAGIC.to_be_bytes());
    slot[8..16].copy_from_slice(&directory.to_be_bytes());
    slot[16..24].copy_from_slice(&lsn.to_be_bytes());
    let crc = crc32c::crc32c(&slot[8..MARK_BYTES]);
    slot[4..8].copy_from_slice(&crc.to_be_bytes());
    slot
}

/// Reads a slot; `None` if it is torn, or of another directory.
fn decode_mark(slot: &[u8], directory: u64) -> Option<u64> {
    let mut slot = slot.get(..MARK_BYTES)?;
    let crc = crc32c::crc32c(&slot[8..]);
    let fits = slot.get_u32() == MARK_MAGIC && slot.get_u32() == crc;
    (fits && slot.get_u64() == directory).then(|| slot.get_u64())
}

/// The file in which the journal says, off the path of rounds, how far it reached.
#[derive(Clone, Debug)]
pub(crate) struct Mark<F> {
    /// `None` until it is made: earlier builds had none.
    file: Option<F>,
    /// True if the directory must be synced for the file's name to last.
    is_new: bool,
    /// The slot to be written next.
    slot: usize,
    /// The newest durable round that it names; 0 for none.
    pub(crate) lsn: u64,
}

impl<F> Mark<F> {
    /// Reads the mark from the medium. One that is not there says nothing.
    pub(crate) fn read<D: Disk<File = F>>(disk: &D, directory: u64) -> io::Result<Self> {
        let file = match disk.open(JOURNAL_MARK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { file: None, is_new: false, slot: 0, lsn: 0 });
            }
            opened => opened?,
        };
        let bytes = disk.read_medium(&file, 0, 2 * MARK_SLOT_BYTES)?;
        let slots = bytes.chunks(MARK_SLOT_BYTES).enumerate();
        let marks = slots.filter_map(|(at, slot)| Some((decode_mark(slot, directory)?, at)));
        let (lsn, newest) = marks.max().unwrap_or((0, 1));
        assert!(newest < 2, "the mark has two slots");
        Ok(Self { file: Some(file), is_new: false, slot: 1 - newest, lsn })
    }
}

/// One file of the ring.
#[derive(Clone, Debug)]
struct Extent<F> {
    file: F,
    path: String,
    /// Which use of the file; 0 if it was never used.
    sequence: u64,
    last_lsn: u64,
}

/// The ring, at its head.
#[derive(Debug)]
pub(crate) struct Journal<D: Disk> {
    disk: D,
    directory: u64,
    extent_bytes: u64,
    extents: Vec<Extent<D::File>>,
    head: usize,
    position: u64,
    next_lsn: u64,
    /// The oldest extent that a *durable* round calls needed: those before it may be reused.
    durable_tail: u64,
    /// The oldest extent that the next round will call needed.
    tail: u64,
    /// A file that is being made: bytes zeroed so far.
    growing: Option<(D::File, String, u64)>,
    mark: Mark<D::File>,
    /// The extent in which the round is that the mark names.
    marked_extent: u64,
}

pub(crate) fn extent_path(file: usize) -> String {
    format!("{JOURNAL_DIR}/{file:04}")
}

static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

impl<D: Disk> Journal<D> {
    /// Makes a ring of `count` new files, all synced.
    pub(crate) fn format(
        disk: &D,
        directory: u64,
        extent_bytes: u64,
        count: usize,
    ) -> Result<Self, Error> {
        assert!(count >= 2, "a ring has a file to go on to");
        let is_paged = extent_bytes > 0 && extent_bytes.is_multiple_of(ROUND_ALIGN as u64);
        assert!(is_paged, "an extent is a whole number of pages");
        let mut journal = Self {
            disk: disk.clone(),
            directory,
            extent_bytes,
            extents: Vec::new(),
            head: 0,
            position: 0,
            next_lsn: 1,
            durable_tail: 1,
            tail: 1,
            growing: None,
            mark: Mark { file: None, is_new: false, slot: 0, lsn: 0 },
            marked_extent: 0,
        };
        for _ in 0..count {
            journal.start_growing()?;
            while journal.growing.is_some() && !journal.grow_slice()? {}
            let Some((file, path)) = journal.growing() else {
                let full = std::io::ErrorKind::StorageFull.into();
                return Err(disk_error("making the journal in", JOURNAL_DIR, full));
            };
            disk.sync(&file).map_err(|source| disk_error("syncing", &path, source))?;
            journal.grown();
        }
        disk.sync_dir(JOURNAL_DIR).map_err(|source| disk_error("syncing", JOURNAL_DIR, source))?;
        journal.extents[0].sequence = 1;
        Ok(journal)
    }

    /// Takes up the ring as a scan found it. The next round goes right behind the last good one.
    pub(crate) fn resume(
        disk: &D,
        directory: u64,
        extent_bytes: u64,
        files: Vec<D::File>,
        scan: &Scan,
        mark: Mark<D::File>,
    ) -> Self {
        let last = scan.rounds.last().expect("a scan without rounds is an error");
        debug_assert!(scan.rounds.iter().all(|it| it.body.is_some()), "live rounds are whole");
        let position = last.header.position + last.header.padded_bytes() as u64;
        assert!(position <= extent_bytes, "a round ends within its extent");
        let mut extents: Vec<_> = files
            .into_iter()
            .enumerate()
            .map(|(at, file)| Extent { file, path: extent_path(at), sequence: 0, last_lsn: 0 })
            .collect();
        for round in &scan.rounds {
            let extent = &mut extents[round.file];
            extent.sequence = round.header.extent;
            assert!(extent.last_lsn <= round.header.lsn, "rounds are taken up in order");
            extent.last_lsn = round.header.lsn;
        }
        assert_eq!(
            extents[last.file].sequence, last.header.extent,
            "the last round is at the head"
        );
        Self {
            disk: disk.clone(),
            directory,
            extent_bytes,
            extents,
            head: last.file,
            position,
            next_lsn: last.header.lsn + 1,
            durable_tail: last.header.tail,
            tail: last.header.tail,
            growing: None,
            mark,
            marked_extent: 0,
        }
    }

    /// Tells whether the mark should name a later round: the journal has gone on to another file since.
    pub(crate) fn wants_mark(&self) -> bool {
        self.marked_extent < self.head_sequence()
    }

    /// Lets the mark name a durable round. Returns the file to sync, and true if the file is new, so that its
    /// directory must be synced. A disk without room leaves the mark as it is, and the mark stays true.
    pub(crate) fn write_mark(&mut self, lsn: u64) -> Result<Option<(D::File, bool)>, Error> {
        assert!(lsn < self.next_lsn, "the mark names a round that was written");
        let failed = |source| disk_error("writing", JOURNAL_MARK, source);
        let file = match &self.mark.file {
            Some(file) => file.clone(),
            None => match self.disk.create(JOURNAL_MARK) {
                Err(error) if is_full(&error) => return Ok(None),
                made => {
                    self.mark.is_new = true;
                    self.mark.file.insert(made.map_err(failed)?).clone()
                }
            },
        };
        let slot = encode_mark(self.directory, lsn);
        let at = (self.mark.slot * MARK_SLOT_BYTES) as u64;
        match self.disk.write_at(&file, &[&slot], at) {
            Err(error) if is_full(&error) => return Ok(None),
            written => written.map_err(failed)?,
        }
        self.mark.slot = 1 - self.mark.slot;
        self.mark.lsn = lsn;
        self.marked_extent = self.head_sequence();
        Ok(Some((file, std::mem::take(&mut self.mark.is_new))))
    }

    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Returns the number of the last round written.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    pub(crate) fn head_sequence(&self) -> u64 {
        self.extents[self.head].sequence
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Tells whether a round must still publish that the tail has moved.
    pub(crate) fn tail_unpublished(&self) -> bool {
        self.tail > self.durable_tail
    }

    pub(crate) fn extent_count(&self) -> usize {
        self.extents.len()
    }

    /// Returns the number of extents from the tail to the head.
    pub(crate) fn live_extents(&self) -> u64 {
        assert!(self.tail <= self.head_sequence(), "the tail is not past the head");
        self.head_sequence() + 1 - self.tail
    }

    /// Returns the number of extents that can be taken when the head is full.
    pub(crate) fn free_extents(&self) -> usize {
        self.extents.iter().filter(|extent| extent.sequence < self.durable_tail).count()
    }

    /// Returns the most bytes of records that one round may hold.
    pub(crate) fn body_bytes_max(&self) -> usize {
        usize::try_from(self.extent_bytes).map_or(usize::MAX, |extent| {
            (extent / 2).min(4 << 20).saturating_sub(ROUND_HEADER_BYTES)
        })
    }

    /// Tells whether a round of so many bytes of records needs a fresh extent.
    pub(crate) fn needs_extent(&self, body_bytes: usize) -> bool {
        let bytes = (ROUND_HEADER_BYTES + body_bytes).next_multiple_of(ROUND_ALIGN) as u64;
        self.position + bytes > self.extent_bytes
    }

    /// Returns the extent that holds this round, if it is live.
    pub(crate) fn extent_of(&self, lsn: u64) -> u64 {
        assert!(lsn <= self.next_lsn, "a needed round was written, or is the next");
        self.extents
            .iter()
            .filter(|extent| extent.sequence >= self.tail && extent.last_lsn >= lsn)
            .map(|extent| extent.sequence)
            .min()
            .unwrap_or_else(|| self.head_sequence())
    }

    /// Frees the extents before this one: replay needs nothing in them any more.
    pub(crate) fn advance_tail(&mut self, tail: u64) {
        self.tail = self.tail.max(tail.min(self.head_sequence()));
    }

    /// Writes one round. `buffer` is [`ROUND_HEADER_BYTES`] of room and then the records; it is
    /// padded in place. Returns the round's number and the file to sync. The caller has made sure
    /// that an extent is free if one is needed.
    pub(crate) fn write_round(&mut self, buffer: &mut Vec<u8>) -> Result<(u64, D::File), Error> {
        assert!(buffer.len() >= ROUND_HEADER_BYTES, "a round's buffer has room for its header");
        let body_bytes = buffer.len() - ROUND_HEADER_BYTES;
        if self.needs_extent(body_bytes) {
            self.take_extent();
        }
        assert!(!self.needs_extent(body_bytes), "a round fits into an extent");
        assert!(self.position.is_multiple_of(ROUND_ALIGN as u64), "rounds begin at whole pages");
        assert!(
            self.tail <= self.head_sequence(),
            "a round is not older than what it calls needed"
        );
        let header = RoundHeader {
            extent: self.head_sequence(),
            lsn: self.next_lsn,
            tail: self.tail,
            position: self.position,
            body_bytes: u32::try_from(body_bytes).expect("rounds are bounded"),
            body_crc: crc32c::crc32c(&buffer[ROUND_HEADER_BYTES..]),
            extents: u32::try_from(self.extents.len()).expect("a ring has few files"),
            directory: self.directory,
        };
        buffer.resize(header.padded_bytes(), 0);
        header.encode(buffer);
        let extent = &mut self.extents[self.head];
        self.disk
            .write_at(&extent.file, &[buffer], self.position)
            .map_err(|source| disk_error("writing", &extent.path, source))?;
        assert!(extent.last_lsn < self.next_lsn, "rounds of an extent are in order");
        extent.last_lsn = self.next_lsn;
        self.position += buffer.len() as u64;
        self.next_lsn += 1;
        Ok((header.lsn, extent.file.clone()))
    }

    fn take_extent(&mut self) {
        let sequence = self.head_sequence() + 1;
        let free = self
            .extents
            .iter()
            .position(|extent| extent.sequence < self.durable_tail)
            .expect("the caller made sure that an extent is free");
        assert!(free != self.head, "the head is live");
        debug_assert!(
            self.extents.iter().all(|extent| extent.sequence < sequence),
            "each use of a file has a number of its own"
        );
        self.head = free;
        self.position = 0;
        self.extents[free].sequence = sequence;
        self.extents[free].last_lsn = 0;
    }

    /// Notes that the round that carried `tail` is durable.
    pub(crate) fn on_durable(&mut self, tail: u64) {
        assert!(tail <= self.tail, "a tail is durable after it was set");
        self.durable_tail = self.durable_tail.max(tail);
    }

    /// Begins to make one more file for the ring.
    pub(crate) fn start_growing(&mut self) -> Result<(), Error> {
        assert!(self.growing.is_none(), "one file is made at a time");
        let path = extent_path(self.extents.len());
        match self.disk.create(&path) {
            Ok(file) => self.growing = Some((file, path, 0)),
            Err(error) if is_full(&error) => {}
            Err(source) => return Err(disk_error("creating", &path, source)),
        }
        Ok(())
    }

    /// Writes some more zeros to it, so that later writes change no metadata; true when it is
    /// long enough and only has to be synced.
    pub(crate) fn grow_slice(&mut self) -> Result<bool, Error> {
        let Some((file, path, written)) = &mut self.growing else { return Ok(false) };
        assert!(*written < self.extent_bytes, "a file that grows is not whole yet");
        let left = usize::try_from(self.extent_bytes - *written).unwrap_or(usize::MAX);
        let slice = &ZEROS[..left.min(ZEROS.len())];
        match self.disk.write_at(file, &[slice], *written) {
            Ok(()) => {
                *written += slice.len() as u64;
                Ok(*written == self.extent_bytes)
            }
            Err(error) if is_full(&error) => {
                // Checkpoints must do: the ring stays as long as it is.
                let path = std::mem::take(path);
                self.growing = None;
                let removed = self.disk.remove_file(&path);
                removed.map_err(|source| disk_error("removing", &path, source))?;
                Ok(false)
            }
            Err(source) => Err(disk_error("writing", path, source)),
        }
    }

    /// Returns the file being made.
    pub(crate) fn growing(&self) -> Option<(D::File, String)> {
        self.growing.as_ref().map(|(file, path, _)| (file.clone(), path.clone()))
    }

    /// Takes the new file, which is synced now, into the ring.
    pub(crate) fn grown(&mut self) {
        if let Some((file, path, written)) = self.growing.take() {
            assert_eq!(written, self.extent_bytes, "a file joins the ring when it is whole");
            debug_assert_eq!(path, extent_path(self.extents.len()), "files have dense numbers");
            self.extents.push(Extent { file, path, sequence: 0, last_lsn: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(extent: u64, lsn: u64, tail: u64, position: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; ROUND_HEADER_BYTES];
        bytes.extend_from_slice(body);
        let header = RoundHeader {
            extent,
            lsn,
            tail,
            position,
            body_bytes: u32::try_from(body.len()).expect("small"),
            body_crc: crc32c::crc32c(body),
            extents: 4,
            directory: 7,
        };
        bytes.resize(header.padded_bytes(), 0);
        header.encode(&mut bytes);
        bytes
    }

    /// Three rounds in one extent, each of one page.
    fn extent() -> Vec<u8> {
        (0..3).flat_map(|at| round(5, 10 + at, 5, at * 4096, &[1, 2, 3])).collect()
    }

    fn scan_one(bytes: Vec<u8>) -> Result<Vec<u64>, String> {
        scan(rounds_of(0, &Bytes::from(bytes)), 7)
            .map(|scan| scan.rounds.iter().map(|round| round.header.lsn).collect())
    }

    #[test]
    fn all_good_rounds_are_live() {
        assert_eq!(scan_one(extent()), Ok(vec![10, 11, 12]));
    }

    #[test]
    fn a_torn_last_round_is_cut() {
        let mut bytes = extent();
        bytes[2 * 4096 + 65] ^= 1;
        assert_eq!(scan_one(bytes), Ok(vec![10, 11]));
    }

    #[test]
    fn rot_in_the_middle_is_damage_and_not_a_tear() {
        for at in [4096, 4096 + 40, 4096 + 65, 0, 66] {
            let mut bytes = extent();
            bytes[at] ^= 1;
            assert!(scan_one(bytes).is_err(), "rot at {at} went unnoticed");
        }
    }

    #[test]
    fn an_older_use_of_the_file_is_not_replayed() {
        let mut bytes = round(6, 20, 6, 0, &[9]);
        bytes.extend(round(3, 5, 3, 4096, &[1]));
        assert_eq!(scan_one(bytes), Ok(vec![20]));
    }

    #[test]
    fn a_copied_extent_is_damage() {
        let rounds = |file| rounds_of(file, &Bytes::from(extent()));
        let both = rounds(0).into_iter().chain(rounds(1)).collect();
        assert!(scan(both, 7).is_err_and(|what| what.contains("journal/0001")));
        let older = (0..2).map(|file| rounds_of(file, &Bytes::from(round(3, 5, 3, 0, &[1]))));
        let all = older.flatten().chain(rounds(2)).collect();
        assert!(scan(all, 7).is_err(), "of an extent that is not live any more");
    }

    #[test]
    fn a_scan_says_how_many_files_there_must_be() {
        let scanned = scan(rounds_of(0, &Bytes::from(extent())), 7).expect("it is good");
        assert_eq!(scanned.extents, 4);
    }

    #[test]
    fn a_mark_reads_back_and_a_torn_one_says_nothing() {
        let slot = encode_mark(7, 1234);
        assert_eq!(decode_mark(&slot, 7), Some(1234));
        assert_eq!(decode_mark(&slot, 8), None, "of another directory");
        for bit in 0..MARK_BYTES * 8 {
            let mut torn = slot.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_mark(&torn, 7), None, "bit {bit}");
        }
        assert_eq!(decode_mark(&slot[..MARK_BYTES - 1], 7), None);
    }

    #[test]
    fn another_directory_s_rounds_are_not_ours() {
        assert!(scan(rounds_of(0, &Bytes::from(extent())), 8).is_err());
    }
}
