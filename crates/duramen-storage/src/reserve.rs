//! # Room card: reserve
//!
//! Purpose:    a full disk refuses appends early, and never stops the node from starting again.
//! Owns:       the file `reserve`, and the decision to refuse appends.
//! Interface:  [`Reserve::when_full`], [`Reserve::check`].
//! Invariants: the storage thread looks at the disk after it writes payload and before its tickets come back. So,
//!             when the node accepts a byte, `free_bytes_min` were free at the last look. All bytes written since are
//!             still in flight. If at most `free_bytes_min` may be in flight, the disk has room for all accepted
//!             payload. If another process took that room, storage gives up the reserve. Without a reserve, a write
//!             waits for room.
//! Never:      the choice of requests to refuse, which the node makes.
//! Tests:      `duramen-sim`: space ends at any write; `compat/faults`.
//! Start at:   [`Reserve::look`].

use std::io;

use crate::Disk;
use crate::disk::is_full;
use crate::error::{Error, disk_error};
use crate::format::RESERVE;
use crate::op::{Done, Shortage};
use crate::options::Options;

const SLICES_AT_ONCE: u32 = 8;
static SLICE: [u8; 1 << 18] = [0; 1 << 18];

#[derive(Debug)]
pub(crate) struct Reserve {
    bytes: u64,
    free_bytes_min: u64,
    /// Bytes of the reserve file written so far.
    held: u64,
    full: bool,
    /// Bytes that were free at the last look.
    available: u64,
    reported: Option<Shortage>,
}

/// Part of the needed bytes by which figures must differ before storage reports them again.
const TOLD_PARTS: u64 = 16;

impl Reserve {
    pub(crate) fn open<D: Disk>(disk: &D, options: &Options) -> Result<Self, Error> {
        let held = match disk.open(RESERVE) {
            Ok(file) => disk.len(&file).map_err(|source| disk_error("reading", RESERVE, source))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(source) => return Err(disk_error("opening", RESERVE, source)),
        };
        let (bytes, free_bytes_min) = (options.reserve_bytes, options.free_bytes_min);
        Ok(Self { bytes, free_bytes_min, held, full: false, available: 0, reported: None })
    }

    /// Runs `write`; if the disk is full, gives up the reserve and runs it once more.
    pub(crate) fn when_full<D: Disk, T>(
        &mut self,
        disk: &D,
        mut write: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        match write() {
            Err(error) if is_full(&error) => {
                if !std::mem::replace(&mut self.full, true) || self.held > 0 {
                    tracing::error!(
                        "the disk is full: appends are refused until space is freed; delete \
                         topics, lower their retention, or remove other files from this disk"
                    );
                }
                if self.held == 0 {
                    return Err(error);
                }
                self.held = 0;
                disk.remove_file(RESERVE)?;
                write()
            }
            other => other,
        }
    }

    /// Looks whether appends must be refused from now on. Called when payload was written, before
    /// its tickets come back. One system call.
    pub(crate) fn look<D: Disk>(&mut self, disk: &D) -> Result<(), Error> {
        let available =
            disk.available().map_err(|source| disk_error("measuring", RESERVE, source))?;
        self.full |= available < self.free_bytes_min;
        self.available = available;
        Ok(())
    }

    /// Looks at the free space; makes the reserve, slice by slice. Appends are accepted again when
    /// it is whole, if nothing else stands against it (`may_end`).
    pub(crate) fn check<D: Disk>(&mut self, disk: &D, may_end: bool) -> Result<(), Error> {
        let failed = |source| disk_error("writing", RESERVE, source);
        let available = disk.available().map_err(failed)?;
        self.available = available;
        let missing = self.missing();
        if available < self.free_bytes_min {
            self.full = true;
        } else if available >= self.free_bytes_min + missing {
            // Some slices a look: the file is whole soon, and no look takes long.
            match (0..SLICES_AT_ONCE).try_for_each(|_| self.grow(disk)) {
                Err(error) if !is_full(&error) => return Err(failed(error)),
                grown => self.full &= grown.is_err() || self.held < self.bytes || !may_end,
            }
        }
        Ok(())
    }

    fn grow<D: Disk>(&mut self, disk: &D) -> io::Result<()> {
        if self.held >= self.bytes {
            return Ok(());
        }
        let file = if self.held == 0 { disk.create(RESERVE) } else { disk.open(RESERVE) };
        let file = file.or_else(|_| disk.open(RESERVE))?;
        let left = usize::try_from(self.bytes - self.held).unwrap_or(usize::MAX);
        let slice = &SLICE[..left.min(SLICE.len())];
        disk.write_at(&file, &[slice], self.held)?;
        self.held += slice.len() as u64;
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Returns the number of bytes that the reserve file lacks.
    fn missing(&self) -> u64 {
        self.bytes - self.held.min(self.bytes)
    }

    /// Tells whether appends must be refused, and what is lacking, if that changed.
    pub(crate) fn take_change(&mut self) -> Option<Done> {
        let needed_bytes = self.free_bytes_min + self.missing();
        let shortage = self.full.then_some(Shortage { free_bytes: self.available, needed_bytes });
        let is_told = match (self.reported, shortage) {
            (Some(told), Some(now)) => {
                told.free_bytes.abs_diff(now.free_bytes) <= needed_bytes / TOLD_PARTS
            }
            (told, now) => told == now,
        };
        if is_told {
            return None;
        }
        self.reported = shortage;
        Some(Done::DiskFull(shortage))
    }
}
