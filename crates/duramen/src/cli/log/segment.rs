//! Segments: record batches one after another.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use bytes::Bytes;
use duramen_protocol::batch::{BatchHeader, BatchView, HEADER_BYTES, TimestampType};
use duramen_protocol::compression::Codec;
use duramen_protocol::records::Records;
use serde::Serialize;

use super::dump::Dump;
use super::printer::Printer;
use crate::cli::consume::{date, fields};
use crate::cli::screen;

/// More than any batch that a broker accepts, decompressed.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 30;

#[derive(Serialize)]
struct Entry {
    base_offset: i64,
    last_offset: i64,
    records: i32,
    position: u64,
    bytes: usize,
    term: i32,
    codec: String,
    timestamps: &'static str,
    max_timestamp: i64,
    producer: Option<Producer>,
    transactional: bool,
    control: bool,
    crc: u32,
    crc_valid: bool,
}

#[derive(Serialize)]
struct Producer {
    id: i64,
    epoch: i16,
    base_sequence: i32,
}

impl Entry {
    fn new(batch: &BatchView, position: u64) -> Self {
        let header = batch.header();
        Self {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            records: header.record_count,
            position,
            bytes: header.batch_bytes(),
            term: header.partition_leader_epoch,
            codec: match header.attributes.codec() {
                Ok(codec) => codec.name().into(),
                Err(number) => format!("unknown codec {number}"),
            },
            timestamps: match header.attributes.timestamp_type() {
                TimestampType::CreateTime => "create",
                TimestampType::LogAppendTime => "append",
            },
            max_timestamp: header.max_timestamp,
            producer: header.has_producer().then_some(Producer {
                id: header.producer_id,
                epoch: header.producer_epoch,
                base_sequence: header.base_sequence,
            }),
            transactional: header.attributes.is_transactional(),
            control: header.attributes.is_control(),
            crc: header.crc,
            crc_valid: batch.crc_matches(),
        }
    }

    fn line(&self) -> String {
        let Self { base_offset, last_offset, records, position, bytes, term, timestamps, .. } =
            self;
        let time = date(self.max_timestamp);
        let mut line = format!(
            "offsets {base_offset}..{last_offset}  {}  position {position}  {}  \
             term {term}  {timestamps} time {time}",
            screen::count(*records, "record"),
            screen::count(*bytes, "byte")
        );
        if self.codec != Codec::None.name() {
            line.push_str("  ");
            line.push_str(&self.codec);
        }
        if let Some(Producer { id, epoch, base_sequence }) = self.producer {
            write!(line, "  producer {id} epoch {epoch} sequence {base_sequence}")
                .expect("a string takes all");
        }
        for (set, word) in [(self.transactional, "transactional"), (self.control, "control")] {
            if set {
                line.push_str("  ");
                line.push_str(word);
            }
        }
        line
    }
}

/// Prints the batches of a segment.
pub(super) fn dump(dump: &Dump, printer: &mut Printer) -> anyhow::Result<()> {
    let file = File::open(&dump.file)?;
    let size = file.metadata()?.len();
    let mut input = BufReader::with_capacity(1 << 20, file);
    let mut position = 0;
    while position < size {
        let left = size - position;
        let mut header = [0; HEADER_BYTES];
        let there = usize::try_from(left).unwrap_or(usize::MAX).min(HEADER_BYTES);
        input.read_exact(&mut header[..there])?;
        if header[..there].iter().all(|byte| *byte == 0) && is_zero(&mut input)? {
            return preallocated(printer, position, left);
        }
        let parsed = match BatchHeader::parse(&header[..there]) {
            Ok(parsed) if parsed.batch_bytes() as u64 <= left => parsed,
            Ok(parsed) => {
                let bytes = parsed.batch_bytes();
                let what = format!("a batch of {bytes} bytes begins, but only {left} are left");
                return printer.damage(position, &what);
            }
            Err(error) => {
                return printer.damage(position, &format!("{error}; {left} bytes are left"));
            }
        };
        let bytes = parsed.batch_bytes();
        if dump.wants(parsed.last_offset()) {
            let mut batch = vec![0; bytes];
            batch[..HEADER_BYTES].copy_from_slice(&header);
            input.read_exact(&mut batch[HEADER_BYTES..])?;
            let batch = BatchView::parse(&Bytes::from(batch))?;
            if !dump_batch(dump, printer, &batch, position)? {
                return Ok(());
            }
        } else {
            input.seek(SeekFrom::Current(i64::try_from(bytes - HEADER_BYTES)?))?;
        }
        position += bytes as u64;
    }
    Ok(())
}

/// Tells whether only zeroes follow, up to the end.
fn is_zero(input: &mut BufReader<File>) -> std::io::Result<bool> {
    let at = input.stream_position()?;
    loop {
        let read = input.fill_buf()?;
        let (len, is_zero) = (read.len(), read.iter().all(|byte| *byte == 0));
        if len == 0 || !is_zero {
            input.seek(SeekFrom::Start(at))?;
            return Ok(len == 0);
        }
        input.consume(len);
    }
}

/// Reports the zeroes at the end of a file. Apache Kafka preallocates a segment at full size where `log.preallocate` is
/// set.
fn preallocated(printer: &mut Printer, position: u64, bytes: u64) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Room {
        position: u64,
        preallocated_bytes: u64,
    }
    printer.detail(&Room { position, preallocated_bytes: bytes }, || {
        format!(
            "position {position}: {bytes} bytes of zeroes up to the end: room that was preallocated"
        )
    })
}

fn dump_batch(
    dump: &Dump,
    printer: &mut Printer,
    batch: &BatchView,
    position: u64,
) -> anyhow::Result<bool> {
    let entry = Entry::new(batch, position);
    let more = printer.entry(&entry, || entry.line())?;
    if !entry.crc_valid {
        printer.damage(position, "the checksum does not fit the batch")?;
    } else if dump.records {
        match Records::of(batch, DECOMPRESSED_BYTES_MAX) {
            Ok(records) => dump_records(dump, printer, &records, position)?,
            Err(error) => printer.damage(position, &error.to_string())?,
        }
    }
    Ok(more)
}

fn dump_records(
    dump: &Dump,
    printer: &mut Printer,
    records: &Records,
    position: u64,
) -> anyhow::Result<()> {
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => return printer.damage(position, &error.to_string()),
        };
        let (offset, timestamp) = (records.offset(&record), records.timestamp(&record));
        if !dump.wants(offset) {
            continue;
        }
        printer.detail(&fields(offset, timestamp, &record), || {
            let show = |bytes: Option<&[u8]>| bytes.map_or("-".into(), shortened);
            let (key, value) = (show(record.key), show(record.value));
            format!("  offset {offset}  {}  key {key}  value {value}", date(timestamp))
        })?;
    }
    Ok(())
}

/// Shortens bytes to a line, and escapes those that cannot be printed.
fn shortened(bytes: &[u8]) -> String {
    const SHOWN: usize = 80;
    let text = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    if bytes.len() > SHOWN {
        format!("{text}… ({})", screen::count(bytes.len(), "byte"))
    } else {
        text.to_string()
    }
}
