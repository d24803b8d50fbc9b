//! # Room card: descriptor
//!
//! Purpose:    the data of a record batch that Raft and recovery need, without its payload.
//! Owns:       the versioned form that a batch takes in a Raft entry and in the journal.
//! Interface:  [`Descriptor::of_batch`], [`Descriptor::encode`], [`Descriptor::decode`].
//! Invariants: a descriptor is a pure function of the batch's bytes and of its place at the start of a segment or
//!             elsewhere. So a segment is enough to make it again.
//! Never:      payload.
//! Tests:      below.
//! Start at:   [`Descriptor::of_batch`].

/// Size of a v2 batch header, `baseOffset` to `recordCount`.
pub const BATCH_HEADER_BYTES: usize = 61;
/// The leading bytes that the batch's own CRC leaves out.
pub const UNCOVERED_BYTES: usize = 21;
/// Size of an encoded descriptor of version 1.
pub const ENCODED_BYTES: usize = 56;

const VERSION: u8 = 1;
const FLAG_STARTS_SEGMENT: u8 = 1;
const FLAG_TRANSACTIONAL: u8 = 2;
const FLAG_CONTROL: u8 = 4;
const FLAG_LOG_APPEND_TIME: u8 = 8;
const FLAG_COMMITS: u8 = 16;
const FLAGS: u8 = 31;

/// Size of a transaction marker's batch: its record is of one layout, see `docs/format.md`.
pub const MARKER_BATCH_BYTES: usize = BATCH_HEADER_BYTES + 17;

/// End of a transaction in a log: the content of a control batch's only record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndMarker {
    /// True if the transaction commits. If false, consumers never see its records under `read_committed`.
    pub commits: bool,
    /// Coordinator epoch: the term of the coordinator that decided the end.
    pub coordinator_epoch: i32,
}

impl EndMarker {
    /// Reads a whole control batch. `None` if its record says something else.
    fn of_batch(batch: &[u8]) -> Option<Self> {
        // Length, attributes and two differences; a key of version and kind; a value of version and epoch; no headers.
        let record: &[u8; 17] = batch.get(BATCH_HEADER_BYTES..)?.try_into().ok()?;
        let commits = match record[..9] {
            [32, 0, 0, 0, 8, 0, 0, 0, kind @ (0 | 1)] => kind == 1,
            _ => return None,
        };
        let is_whole = record[9..12] == [12, 0, 0] && record[16] == 0;
        is_whole.then(|| Self { commits, coordinator_epoch: be_i32(record, 12) })
    }
}

/// A record batch in brief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are the batch's own attribute bits")]
pub struct Descriptor {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Offsets taken: the batch's last offset delta plus one.
    pub count: u32,
    /// Bytes of the whole batch, header included.
    pub length: u32,
    /// The batch's own CRC32C, of everything after its first 21 bytes.
    pub batch_crc: u32,
    /// CRC32C of the 21 header bytes which that leaves out.
    pub header_crc: u32,
    /// Idempotent producer, or -1.
    pub producer_id: i64,
    /// Epoch of that producer, or -1.
    pub producer_epoch: i16,
    /// Sequence number of the first record, or -1.
    pub first_sequence: i32,
    /// The batch's maximum timestamp.
    pub max_timestamp: i64,
    /// The batch begins a new segment: the roll is decided by the leader, once for all replicas.
    pub starts_segment: bool,
    /// Part of a transaction.
    pub transactional: bool,
    /// A transaction marker.
    pub control: bool,
    /// Content of a transaction marker; known only when the whole batch was read.
    pub marker: Option<EndMarker>,
    /// `max_timestamp` is the time of append, and every record's time.
    pub log_append_time: bool,
}

/// Why bytes are not a descriptor, or not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Shorter than a batch header, or than the batch says it is.
    #[error("the batch is cut short")]
    Short,
    /// Not a v2 batch, or counts and lengths that cannot be.
    #[error("the batch header is malformed")]
    Malformed,
    /// A descriptor of a version this build does not know.
    #[error("unknown descriptor version {0}")]
    Version(u8),
}

impl Descriptor {
    /// Describes a batch from its header. The payload's CRC comes from the header and is not checked.
    pub fn of_batch(batch: &[u8], starts_segment: bool) -> Result<Self, Error> {
        if batch.len() < BATCH_HEADER_BYTES {
            return Err(Error::Short);
        }
        let length = u32::try_from(be_i32(batch, 8)).map_err(|_| Error::Malformed)?;
        let length = length.checked_add(12).ok_or(Error::Malformed)?;
        let last_delta = u32::try_from(be_i32(batch, 23)).map_err(|_| Error::Malformed)?;
        let count = last_delta.checked_add(1).ok_or(Error::Malformed)?;
        let base_offset = be_i64(batch, 0);
        let fits = base_offset >= 0 && base_offset.checked_add(i64::from(count)).is_some();
        if batch[16] != 2 || (length as usize) < BATCH_HEADER_BYTES || !fits {
            return Err(Error::Malformed);
        }
        let attributes = u16::from_be_bytes([batch[21], batch[22]]);
        let control = attributes & 0x20 != 0;
        Ok(Self {
            base_offset,
            count,
            length,
            batch_crc: be_i32(batch, 17).cast_unsigned(),
            header_crc: crc32c::crc32c(&batch[..UNCOVERED_BYTES]),
            producer_id: be_i64(batch, 43),
            producer_epoch: i16::from_be_bytes([batch[51], batch[52]]),
            first_sequence: be_i32(batch, 53),
            max_timestamp: be_i64(batch, 35),
            starts_segment,
            transactional: attributes & 0x10 != 0,
            control,
            marker: batch.get(..length as usize).filter(|_| control).and_then(EndMarker::of_batch),
            log_append_time: attributes & 0x08 != 0,
        })
    }

    /// Returns one past the last offset.
    pub fn end_offset(&self) -> i64 {
        self.base_offset + i64::from(self.count)
    }

    /// Tells whether `batch` is, byte for byte, the batch described; the function computes both CRCs. A descriptor
    /// made from a header alone holds no marker content, so any content matches it.
    pub fn matches(&self, batch: &[u8]) -> bool {
        let is_alike = |of: Self| of == Self { marker: self.marker.or(of.marker), ..*self };
        batch.len() == self.length as usize
            && Self::of_batch(batch, self.starts_segment).is_ok_and(is_alike)
            && crc32c::crc32c(&batch[UNCOVERED_BYTES..]) == self.batch_crc
    }

    /// Returns the versioned form; see `docs/format.md`.
    pub fn encode(&self) -> [u8; ENCODED_BYTES] {
        let mut flags = 0;
        for (set, flag) in [
            (self.starts_segment, FLAG_STARTS_SEGMENT),
            (self.transactional, FLAG_TRANSACTIONAL),
            (self.control, FLAG_CONTROL),
            (self.log_append_time, FLAG_LOG_APPEND_TIME),
            (self.marker.is_some_and(|it| it.commits), FLAG_COMMITS),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let mut out = [0; ENCODED_BYTES];
        out[0] = VERSION;
        out[1] = flags;
        out[2..4].copy_from_slice(&self.producer_epoch.to_be_bytes());
        out[4..12].copy_from_slice(&self.base_offset.to_be_bytes());
        out[12..16].copy_from_slice(&self.count.to_be_bytes());
        out[16..20].copy_from_slice(&self.length.to_be_bytes());
        out[20..24].copy_from_slice(&self.batch_crc.to_be_bytes());
        out[24..28].copy_from_slice(&self.header_crc.to_be_bytes());
        out[28..36].copy_from_slice(&self.producer_id.to_be_bytes());
        out[36..40].copy_from_slice(&self.first_sequence.to_be_bytes());
        out[40..48].copy_from_slice(&self.max_timestamp.to_be_bytes());
        if let Some(marker) = self.marker {
            out[48..52].copy_from_slice(&marker.coordinator_epoch.to_be_bytes());
            out[52] = 1;
        }
        out
    }

    /// Reads the versioned form.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let version = *bytes.first().ok_or(Error::Short)?;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        if bytes.len() != ENCODED_BYTES {
            return Err(Error::Short);
        }
        let flags = bytes[1];
        let marker = (bytes[52] == 1).then(|| EndMarker {
            commits: flags & FLAG_COMMITS != 0,
            coordinator_epoch: be_i32(bytes, 48),
        });
        let unused = if marker.is_some() { &bytes[53..] } else { &bytes[48..] };
        let is_control = flags & FLAG_CONTROL != 0;
        if flags & !FLAGS != 0
            || unused.iter().any(|byte| *byte != 0)
            || marker.is_some() && !is_control
            || marker.is_none() && flags & FLAG_COMMITS != 0
        {
            return Err(Error::Malformed);
        }
        let (base_offset, count) = (be_i64(bytes, 4), be_i32(bytes, 12).cast_unsigned());
        let length = be_i32(bytes, 16).cast_unsigned();
        let fits = base_offset >= 0 && base_offset.checked_add(i64::from(count)).is_some();
        if !fits || count == 0 || (length as usize) < BATCH_HEADER_BYTES {
            return Err(Error::Malformed);
        }
        Ok(Self {
            base_offset,
            count,
            length,
            batch_crc: be_i32(bytes, 20).cast_unsigned(),
            header_crc: be_i32(bytes, 24).cast_unsigned(),
            producer_id: be_i64(bytes, 28),
            producer_epoch: i16::from_be_bytes([bytes[2], bytes[3]]),
            first_sequence: be_i32(bytes, 36),
            max_timestamp: be_i64(bytes, 40),
            starts_segment: flags & FLAG_STARTS_SEGMENT != 0,
            transactional: flags & FLAG_TRANSACTIONAL != 0,
            control: is_control,
            marker,
            log_append_time: flags & FLAG_LOG_APPEND_TIME != 0,
        })
    }
}

fn be_i32(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn be_i64(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Vec<u8> {
        let mut batch = vec![0u8; 80];
        batch[..8].copy_from_slice(&7i64.to_be_bytes());
        batch[8..12].copy_from_slice(&68i32.to_be_bytes());
        batch[16] = 2;
        batch[22] = 0x18;
        batch[23..27].copy_from_slice(&4i32.to_be_bytes());
        batch[35..43].copy_from_slice(&99i64.to_be_bytes());
        batch[43..51].copy_from_slice(&1234i64.to_be_bytes());
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        batch
    }

    #[test]
    fn a_descriptor_survives_its_encoding() {
        let descriptor = Descriptor::of_batch(&batch(), true).expect("a good batch");
        assert_eq!(descriptor.end_offset(), 12);
        assert!(descriptor.transactional && descriptor.log_append_time && !descriptor.control);
        assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
    }

    #[test]
    fn a_marker_says_how_its_transaction_ended() {
        let mut bytes = batch();
        bytes.truncate(BATCH_HEADER_BYTES);
        bytes[8..12].copy_from_slice(&66i32.to_be_bytes());
        bytes[22] = 0x30;
        bytes[23..27].copy_from_slice(&0i32.to_be_bytes());
        for (kind, epoch) in [(0, 7i32), (1, 0), (1, -1)] {
            bytes.truncate(BATCH_HEADER_BYTES);
            let head = Descriptor::of_batch(&bytes, false).expect("a good header");
            assert_eq!((head.control, head.marker), (true, None), "its record is not there");
            bytes.extend([32, 0, 0, 0, 8, 0, 0, 0, kind, 12, 0, 0]);
            bytes.extend(epoch.to_be_bytes());
            bytes.push(0);
            assert_eq!(bytes.len(), MARKER_BATCH_BYTES);
            let descriptor = Descriptor::of_batch(&bytes, false).expect("a good batch");
            let marker = EndMarker { commits: kind == 1, coordinator_epoch: epoch };
            assert_eq!(descriptor.marker, Some(marker));
            let crc = crc32c::crc32c(&bytes[UNCOVERED_BYTES..]);
            let whole = |of: Descriptor| Descriptor { batch_crc: crc, ..of };
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
            let (whole, head) = (whole(descriptor), whole(head));
            let header_crc = crc32c::crc32c(&bytes[..UNCOVERED_BYTES]);
            assert!(Descriptor { header_crc, ..whole }.matches(&bytes));
            assert!(Descriptor { header_crc, ..head }.matches(&bytes), "of the header alone");
            let other = EndMarker { commits: kind != 1, ..marker };
            assert!(!Descriptor { header_crc, marker: Some(other), ..whole }.matches(&bytes));
            assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
            let mut claims = descriptor.encode();
            claims[1] &= !FLAG_CONTROL;
            assert_eq!(Descriptor::decode(&claims), Err(Error::Malformed), "of no control batch");
        }
        bytes[BATCH_HEADER_BYTES + 8] = 2;
        let other = Descriptor::of_batch(&bytes, false).expect("a good batch");
        assert_eq!((other.control, other.marker), (true, None), "another kind of control record");
    }

    #[test]
    fn every_flipped_bit_of_the_batch_is_noticed() {
        let good = batch();
        let descriptor = Descriptor::of_batch(&good, false).expect("a good batch");
        assert!(descriptor.matches(&good));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!descriptor.matches(&bad), "bit {bit} went unnoticed");
        }
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let mut bytes = Descriptor::of_batch(&batch(), false).expect("a good batch").encode();
        bytes[0] = 2;
        assert_eq!(Descriptor::decode(&bytes), Err(Error::Version(2)));
    }
}
