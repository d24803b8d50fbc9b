//! Batches with records that are of no use from a time on.

use std::ops::Range;

use bytes::{Buf, Bytes};

use crate::format::{Malformed, put_varint, varint};

/// Batch with records that expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Base offset of the batch.
    pub base_offset: i64,
    /// Time from which the first of its records is of no use, in milliseconds since 1970.
    pub at_ms: i64,
}

/// Expiries of a range of offsets in their encoding, in order of offsets.
#[derive(Debug)]
pub(crate) struct ExpiriesWriter {
    bytes: Vec<u8>,
    last: Expiry,
    earliest_ms: i64,
}

impl ExpiriesWriter {
    /// Begins those of a range that starts at an offset.
    pub(crate) fn new(from: i64) -> Self {
        let last = Expiry { base_offset: from, at_ms: 0 };
        Self { bytes: Vec::new(), last, earliest_ms: i64::MAX }
    }

    pub(crate) fn push(&mut self, expiry: Expiry) {
        let distance = expiry.base_offset.checked_sub(self.last.base_offset);
        let is_next = distance.is_some_and(|it| it > 0 || it == 0 && self.bytes.is_empty());
        assert!(is_next, "batches come in order");
        assert!(expiry.at_ms > 0, "a time is behind 1970");
        put_varint(&mut self.bytes, expiry.base_offset.abs_diff(self.last.base_offset));
        let later_ms = expiry.at_ms - self.last.at_ms;
        put_varint(&mut self.bytes, ((later_ms << 1) ^ (later_ms >> 63)).cast_unsigned());
        self.last = expiry;
        self.earliest_ms = self.earliest_ms.min(expiry.at_ms);
    }

    /// Returns the encoding, and the earliest time, which is `i64::MAX` if there is none.
    pub(crate) fn end(self) -> (Vec<u8>, i64) {
        (self.bytes, self.earliest_ms)
    }
}

/// Walk over the expiries of a table.
#[derive(Clone, Debug)]
pub(crate) struct Expiries {
    left: Bytes,
    last: Expiry,
}

impl Expiries {
    /// Takes the encoding of a range's expiries, of which this is the earliest time.
    pub(crate) fn decode(
        bytes: Bytes,
        range: &Range<i64>,
        earliest_ms: i64,
    ) -> Result<Self, Malformed> {
        let all = Self { left: bytes, last: Expiry { base_offset: range.start, at_ms: 0 } };
        let (mut walk, mut found_ms) = (all.clone(), i64::MAX);
        while walk.left.has_remaining() {
            let is_first = walk.left.len() == all.left.len();
            let before = walk.last.base_offset;
            let Expiry { base_offset, at_ms } = walk.step()?;
            if !range.contains(&base_offset) || base_offset == before && !is_first || at_ms <= 0 {
                return Err(Malformed("a batch is out of order"));
            }
            found_ms = found_ms.min(at_ms);
        }
        if found_ms == earliest_ms {
            Ok(all)
        } else {
            Err(Malformed("its earliest time is not the footer's"))
        }
    }

    fn step(&mut self) -> Result<Expiry, Malformed> {
        const BEYOND: Malformed = Malformed("a batch is beyond all offsets or times");
        let distance = varint(&mut self.left)?;
        let later = varint(&mut self.left)?;
        let later_ms = (later >> 1).cast_signed() ^ -(later & 1).cast_signed();
        let base_offset = self.last.base_offset.checked_add_unsigned(distance).ok_or(BEYOND)?;
        let at_ms = self.last.at_ms.checked_add(later_ms).ok_or(BEYOND)?;
        self.last = Expiry { base_offset, at_ms };
        Ok(self.last)
    }
}

impl Iterator for Expiries {
    type Item = Expiry;

    fn next(&mut self) -> Option<Expiry> {
        let is_more = self.left.has_remaining();
        is_more.then(|| self.step().unwrap_or_else(|why| unreachable!("read before: {}", why.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(from: i64, all: &[(i64, i64)]) -> (Bytes, i64) {
        let mut writer = ExpiriesWriter::new(from);
        for &(base_offset, at_ms) in all {
            writer.push(Expiry { base_offset, at_ms });
        }
        let (bytes, earliest_ms) = writer.end();
        (bytes.into(), earliest_ms)
    }

    #[test]
    fn expiries_survive_their_encoding() {
        let all = [(5, 1_000), (6, 900), (90, i64::MAX), (91, 1), (1 << 40, 1_700_000_000_000)];
        for from in [0, 5] {
            let (bytes, earliest_ms) = encoded(from, &all);
            assert_eq!(earliest_ms, 1);
            let read = Expiries::decode(bytes, &(from..1 << 41), 1).expect("it is right");
            let read: Vec<_> = read.map(|it| (it.base_offset, it.at_ms)).collect();
            assert_eq!(read, all);
        }
        let none = Expiries::decode(Bytes::new(), &(0..9), i64::MAX);
        assert_eq!(none.expect("there is none").count(), 0);
    }

    #[test]
    fn wrong_bytes_are_told() {
        let (bytes, _) = encoded(0, &[(5, 10), (8, 7)]);
        let right =
            |bytes: Bytes, to, earliest| Expiries::decode(bytes, &(0..to), earliest).is_ok();
        assert!(right(bytes.clone(), 9, 7));
        assert!(!right(bytes.clone(), 8, 7), "a batch behind the table");
        assert!(!right(bytes.clone(), 9, 10), "another earliest time");
        assert!(!right(bytes.slice(..bytes.len() - 1), 9, 7), "cut");
        assert!(!right(Bytes::from_static(&[5, 20, 0, 2]), 9, 10), "a batch twice");
        assert!(!right(Bytes::from_static(&[5, 0]), 9, 0), "no time");
        assert!(!right(Bytes::from_static(&[0xff; 30]), 9, 7), "no varint");
    }
}
