//! Producer snapshots, in Apache Kafka's format: version, checksum, entries.

use std::fmt::Write as _;

use bytes::{Buf, TryGetError};
use serde::Serialize;

use super::{Dump, Printer};
use crate::cli::consume::date;

const VERSION: i16 = 1;
/// The checksum covers what follows version and checksum.
const CHECKSUMMED_FROM: usize = 6;

#[derive(Serialize)]
struct Producer {
    id: i64,
    epoch: i16,
    last_sequence: i32,
    last_offset: i64,
    offset_delta: i32,
    timestamp: i64,
    coordinator_epoch: i32,
    open_transaction_offset: i64,
}

impl Producer {
    fn read(bytes: &mut &[u8]) -> Result<Self, TryGetError> {
        Ok(Self {
            id: bytes.try_get_i64()?,
            epoch: bytes.try_get_i16()?,
            last_sequence: bytes.try_get_i32()?,
            last_offset: bytes.try_get_i64()?,
            offset_delta: bytes.try_get_i32()?,
            timestamp: bytes.try_get_i64()?,
            coordinator_epoch: bytes.try_get_i32()?,
            open_transaction_offset: bytes.try_get_i64()?,
        })
    }

    fn line(&self) -> String {
        let Self { id, epoch, last_sequence, last_offset, offset_delta, timestamp, .. } = self;
        let mut line = format!(
            "producer {id}  epoch {epoch}  last sequence {last_sequence}  last offset {last_offset}  \
             last batch of {} records  {}",
            offset_delta + 1,
            date(*timestamp)
        );
        if self.open_transaction_offset >= 0 {
            write!(line, "  in a transaction since offset {}", self.open_transaction_offset)
                .expect("a string takes all");
        }
        line
    }
}

/// Prints the producers of a snapshot.
pub(super) fn dump(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let bytes = std::fs::read(&dump.file)?;
    let mut left = bytes.as_slice();
    let (Ok(version), Ok(sum)) = (left.try_get_i16(), left.try_get_u32()) else {
        return printer.damage(0, "the file ends within its header");
    };
    if version != VERSION {
        return printer.damage(0, &format!("version {version} is not known here"));
    }
    if crc32c::crc32c(&bytes[CHECKSUMMED_FROM..]) != sum {
        printer.damage(2, "the checksum does not fit the entries")?;
    }
    let Ok(count) = left.try_get_i32() else {
        return printer.damage(CHECKSUMMED_FROM as u64, "the file ends before the entries");
    };
    for _ in 0..count {
        let position = (bytes.len() - left.len()) as u64;
        let Ok(producer) = Producer::read(&mut left) else {
            return printer.damage(position, "the file ends within an entry");
        };
        if dump.wants(producer.last_offset) && !printer.entry(&producer, || producer.line())? {
            return Ok(());
        }
    }
    Ok(())
}
