//! The bytes of `docs/format.md`, written down a second time, without a line of the crate's own
//! code: what these tests compare the crate with.

use crc32c::crc32c;

/// Big-endian fields, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(crate) Vec<u8>);

impl Fields {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn i64(self, value: i64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A length of 32 bits, then the bytes.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.u32(u32::try_from(bytes.len()).expect("small")).raw(bytes)
    }
}

/// A journal record: kind, length, replica, body.
pub(crate) fn record(kind: u8, replica: u64, body: &Fields) -> Vec<u8> {
    let length = u32::try_from(8 + body.0.len()).expect("small");
    Fields::new().u8(kind).u32(length).u64(replica).raw(&body.0).0
}

/// What a round's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) extent: u64,
    pub(crate) round: u64,
    pub(crate) tail: u64,
    pub(crate) position: u64,
    pub(crate) extents: u32,
    pub(crate) directory: u64,
}

/// A whole round, padded to pages.
pub(crate) fn round(header: Header, body: &[u8]) -> Vec<u8> {
    let covered = Fields::new()
        .u16(1)
        .u16(0)
        .u32(u32::try_from(body.len()).expect("small"))
        .u32(crc32c(body))
        .u32(header.extents)
        .u64(header.extent)
        .u64(header.round)
        .u64(header.tail)
        .u64(header.position)
        .u64(header.directory)
        .0;
    let mut bytes = Fields::new().raw(b"DJR1").u32(crc32c(&covered)).raw(&covered).raw(body).0;
    assert_eq!(bytes.len(), 64 + body.len());
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

fn be(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A record as it is found: kind, replica and body.
pub(crate) type Found = (u8, u64, Vec<u8>);

/// The good rounds in an extent's bytes.
pub(crate) fn rounds_of(extent: &[u8]) -> Vec<(Header, Vec<Found>)> {
    let mut rounds = Vec::new();
    let mut at = 0;
    while at < extent.len() {
        let bytes = &extent[at..];
        let step = (&bytes[..4] == b"DJR1")
            .then(|| 64 + usize::try_from(be(bytes, 12, 4)).expect("64 bits"));
        let Some(end) = step.filter(|end| *end <= bytes.len()) else {
            at += 4096;
            continue;
        };
        let header = Header {
            extent: be(bytes, 24, 8),
            round: be(bytes, 32, 8),
            tail: be(bytes, 40, 8),
            position: be(bytes, 48, 8),
            extents: u32::try_from(be(bytes, 20, 4)).expect("four bytes"),
            directory: be(bytes, 56, 8),
        };
        assert_eq!(be(bytes, 4, 4), u64::from(crc32c(&bytes[8..64])), "of the header");
        assert_eq!(be(bytes, 16, 4), u64::from(crc32c(&bytes[64..end])), "of the body");
        let mut records = Vec::new();
        let mut body = &bytes[64..end];
        while !body.is_empty() {
            let length = usize::try_from(be(body, 1, 4)).expect("64 bits");
            records.push((body[0], be(body, 5, 8), body[13..5 + length].to_vec()));
            body = &body[5 + length..];
        }
        rounds.push((header, records));
        at += end.next_multiple_of(4096);
    }
    rounds
}

fn varint(value: i64) -> Vec<u8> {
    let mut rest = (value << 1 ^ value >> 63).cast_unsigned();
    let mut out = Vec::new();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).expect("seven bits"));
    out
}

/// An idempotent producer: id, epoch, first sequence.
pub(crate) type Producer = (i64, i16, i32);

/// A record batch of format 2 with `count` records of `size` bytes each.
pub(crate) fn batch(
    base_offset: i64,
    epoch: i32,
    timestamp: i64,
    producer: Producer,
    count: i32,
    size: usize,
) -> Vec<u8> {
    keyed_batch(base_offset, epoch, timestamp, producer, count, size, None)
}

/// The same; all records have this key.
pub(crate) fn keyed_batch(
    base_offset: i64,
    epoch: i32,
    timestamp: i64,
    (id, producer_epoch, sequence): Producer,
    count: i32,
    size: usize,
    key: Option<&[u8]>,
) -> Vec<u8> {
    let mut records = Vec::new();
    for delta in 0..count {
        let value: Vec<u8> =
            (0..size).map(|at| u8::try_from((at + size) % 251).expect("below")).collect();
        let record = [
            &[0u8][..],
            &varint(0),
            &varint(i64::from(delta)),
            &varint(key.map_or(-1, |key| i64::try_from(key.len()).expect("small"))),
            key.unwrap_or_default(),
            &varint(i64::try_from(size).expect("small")),
            &value,
            &varint(0),
        ]
        .concat();
        records.extend(varint(i64::try_from(record.len()).expect("small")));
        records.extend(record);
    }
    let covered = Fields::new()
        .u16(0)
        .i32(count - 1)
        .i64(timestamp)
        .i64(timestamp)
        .i64(id)
        .raw(&producer_epoch.to_be_bytes())
        .i32(sequence)
        .i32(count)
        .raw(&records)
        .0;
    Fields::new()
        .i64(base_offset)
        .i32(i32::try_from(covered.len() + 9).expect("small"))
        .i32(epoch)
        .u8(2)
        .u32(crc32c(&covered))
        .raw(&covered)
        .0
}

/// The descriptor of such a batch.
pub(crate) fn descriptor(batch: &[u8], starts_segment: bool) -> Vec<u8> {
    let count = u32::try_from(be(batch, 23, 4)).expect("32 bits") + 1;
    Fields::new()
        .u8(1)
        .u8(u8::from(starts_segment))
        .raw(&batch[51..53])
        .raw(&batch[0..8])
        .u32(count)
        .u32(u32::try_from(batch.len()).expect("small"))
        .raw(&batch[17..21])
        .u32(crc32c(&batch[..21]))
        .raw(&batch[43..51])
        .raw(&batch[53..57])
        .raw(&batch[35..43])
        .u64(0)
        .0
}
