//! Offsets whose records readers do not see any more.

use std::ops::Range;

use bytes::{Buf, Bytes};
use rangemap::RangeSet;

use crate::format::{Malformed, put_varint, varint};

/// Set of offsets that an edit of a queue took away. Their records stay in the log until they are erased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masks(RangeSet<i64>);

impl Masks {
    /// Tells whether all records are shown.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of masked offsets.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|span| span.end.abs_diff(span.start)).sum()
    }

    /// Masks an offset.
    pub fn insert(&mut self, offset: i64) {
        assert!((0..i64::MAX).contains(&offset), "a record has an offset");
        self.0.insert(offset..offset + 1);
    }

    /// Tells whether the record at an offset is masked.
    pub fn hides(&self, offset: i64) -> bool {
        self.0.contains(&offset)
    }

    /// Returns the first masked offset in a range.
    pub fn first_in(&self, range: Range<i64>) -> Option<i64> {
        let from = range.start;
        let overlapping = (!range.is_empty()).then(|| self.0.overlapping(range).next()).flatten();
        overlapping.map(|span| span.start.max(from))
    }

    /// Adds all of another set.
    pub(crate) fn add(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Forgets offsets below the log start.
    pub(crate) fn trim(&mut self, start: i64) {
        if self.0.first().is_some_and(|span| span.start < start) {
            self.0.remove(0..start);
        }
    }

    /// Encodes the set: of each span the distance from the end of the one before, and its length less one.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (mut out, mut end) = (Vec::new(), 0);
        for span in self.0.iter() {
            put_varint(&mut out, span.start.abs_diff(end));
            put_varint(&mut out, span.end.abs_diff(span.start) - 1);
            end = span.end;
        }
        out
    }

    /// Reads a set whose offsets are below `to`.
    pub(crate) fn decode(mut bytes: Bytes, to: i64) -> Result<Self, Malformed> {
        let (mut masks, mut end) = (Self::default(), 0_i64);
        while bytes.has_remaining() {
            let start = end.checked_add_unsigned(varint(&mut bytes)?);
            let behind = varint(&mut bytes)?.checked_add(1);
            let span =
                start.zip(start.zip(behind).and_then(|(at, it)| at.checked_add_unsigned(it)));
            let is_next =
                |(start, behind): &(i64, i64)| *behind <= to && (*start > end || end == 0);
            let (start, behind) =
                span.filter(is_next).ok_or(Malformed("a span is out of order"))?;
            masks.0.insert(start..behind);
            end = behind;
        }
        Ok(masks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(offsets: &[i64]) -> Masks {
        let mut masks = Masks::default();
        for offset in offsets {
            masks.insert(*offset);
        }
        masks
    }

    #[test]
    fn masks_survive_their_encoding() {
        for offsets in [&[][..], &[0], &[5], &[0, 1, 2, 9, 11, 10, 500], &[7, 7]] {
            let masks = of(offsets);
            assert_eq!(Masks::decode(masks.encode().into(), 501).ok(), Some(masks));
        }
        assert!(Masks::decode(of(&[501]).encode().into(), 501).is_err(), "it is behind the table");
        for wrong in [&[1][..], &[1, 0, 0, 0], &[0xff; 20]] {
            assert!(Masks::decode(Bytes::copy_from_slice(wrong), 501).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_range_meets_the_first_mask_in_it() {
        let mut masks = of(&[3, 4, 5, 9]);
        let first = [(0, 3), (0, 4), (4, 5), (6, 9), (6, 10), (10, 20), (4, 4)];
        let found = first.map(|(from, to)| masks.first_in(from..to));
        assert_eq!(found, [None, Some(3), Some(4), None, Some(9), None, None]);
        assert_eq!((masks.count(), masks.hides(5), masks.hides(6)), (4, true, false));
        masks.trim(5);
        assert_eq!(masks, of(&[5, 9]));
        masks.add(&of(&[4, 10]));
        assert_eq!(masks, of(&[4, 5, 9, 10]));
    }
}
