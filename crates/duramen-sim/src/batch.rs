//! # Room card: batch
//!
//! Purpose:    valid v2 record batches to feed the log with.
//! Owns:       [`Records`], and how they become bytes.
//! Interface:  [`Records::encode`].
//! Invariants: header and CRC are right; what it encodes it can name record by record.
//! Never:      malformed batches.
//! Tests:      below.
//! Start at:   [`Records::encode`].

use duramen_protocol::compression::{Codec, compress};

/// The records of one batch, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// Milliseconds, one per record.
    pub timestamps: Vec<i64>,
    /// The value of every record.
    pub value: Vec<u8>,
    /// Idempotent producer, its epoch and the first record's sequence; -1 for none.
    pub producer: (i64, i16, i32),
    /// The records' time is the batch's maximum: the log's, not the client's.
    pub log_append_time: bool,
    /// Compression of the records.
    pub codec: Codec,
}

impl Records {
    /// Returns the batch's bytes at `base_offset` in `term`.
    pub fn encode(&self, base_offset: i64, term: u64) -> Vec<u8> {
        let count = i32::try_from(self.timestamps.len()).expect("batches here are small");
        self.encode_as(base_offset, term, count)
    }

    /// Returns the batch's bytes with the offsets of `count` records, however many there are.
    pub fn encode_as(&self, base_offset: i64, term: u64, count: i32) -> Vec<u8> {
        let first = self.timestamps[0];
        let mut body = Vec::with_capacity(64 + self.timestamps.len() * (self.value.len() + 16));
        let attributes = self.codec.id() | if self.log_append_time { 8 } else { 0 };
        body.extend_from_slice(&attributes.to_be_bytes());
        body.extend_from_slice(&(count - 1).to_be_bytes());
        body.extend_from_slice(&first.to_be_bytes());
        body.extend_from_slice(&self.max_timestamp().to_be_bytes());
        body.extend_from_slice(&self.producer.0.to_be_bytes());
        body.extend_from_slice(&self.producer.1.to_be_bytes());
        body.extend_from_slice(&self.producer.2.to_be_bytes());
        body.extend_from_slice(&count.to_be_bytes());
        let (mut record, mut records) = (Vec::new(), Vec::new());
        for (delta, timestamp) in (0i64..).zip(&self.timestamps) {
            record.clear();
            record.push(0);
            put_varint(&mut record, timestamp - first);
            put_varint(&mut record, delta);
            put_varint(&mut record, -1);
            put_varint(&mut record, i64::try_from(self.value.len()).expect("small"));
            record.extend_from_slice(&self.value);
            put_varint(&mut record, 0);
            put_varint(&mut records, i64::try_from(record.len()).expect("small"));
            records.extend_from_slice(&record);
        }
        compress(self.codec, &records, &mut body);
        let length = i32::try_from(body.len() + 9).expect("batches here are small");
        let epoch = i32::try_from(term).expect("terms fit the leader epoch");
        let mut batch = Vec::with_capacity(body.len() + 21);
        batch.extend_from_slice(&base_offset.to_be_bytes());
        batch.extend_from_slice(&length.to_be_bytes());
        batch.extend_from_slice(&epoch.to_be_bytes());
        batch.push(2);
        batch.extend_from_slice(&crc32c::crc32c(&body).to_be_bytes());
        batch.extend_from_slice(&body);
        batch
    }

    /// Returns the largest timestamp.
    pub fn max_timestamp(&self) -> i64 {
        self.timestamps.iter().copied().max().unwrap_or(-1)
    }

    /// Returns the time that readers see on record `at`.
    pub fn time_of(&self, at: usize) -> i64 {
        if self.log_append_time { self.max_timestamp() } else { self.timestamps[at] }
    }
}

fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while zigzag >= 0x80 {
        out.push(u8::try_from(zigzag & 0x7F).expect("seven bits") | 0x80);
        zigzag >>= 7;
    }
    out.push(u8::try_from(zigzag).expect("seven bits"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_storage::Descriptor;

    #[test]
    fn a_batch_matches_its_descriptor() {
        let records = Records {
            timestamps: vec![1000, 990, 1010],
            value: vec![7; 300],
            producer: (5, 1, 42),
            log_append_time: false,
            codec: Codec::None,
        };
        let batch = records.encode(77, 3);
        let descriptor = Descriptor::of_batch(&batch, false).expect("it is a batch");
        assert!(descriptor.matches(&batch));
        assert_eq!((descriptor.base_offset, descriptor.end_offset()), (77, 80));
        assert_eq!((descriptor.producer_id, descriptor.first_sequence), (5, 42));
        assert_eq!(descriptor.max_timestamp, 1010);
    }
}
