//! A topic that is compacted: its records have keys, some delete theirs, and of most nothing is left in the end.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_protocol::compression::Codec;
use duramen_protocol::records::{BatchBuilder, NewRecord, Record};

/// Which topic it is, in runs that have one.
pub(crate) const KEYED: &str = "plums";
const NUMBER: &str = "number";
/// Settings with which the topic is made, beside the time for which tombstones stay.
pub(super) const CONFIGS: [(&str, &str); 4] = [
    ("cleanup.policy", "compact,delete"),
    ("segment.bytes", "4096"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("delete.retention.ms", "400"),
];

/// Settings with which the topic is made in a cluster, where fewer records come to a partition.
pub(super) const CONFIGS_OF_MANY: [(&str, &str); 5] =
    [CONFIGS[0], CONFIGS[1], CONFIGS[2], CONFIGS[3], ("segment.ms", "40")];

/// And in some clusters: then logs are compacted to their ends, wherever nobody appends for a moment.
pub(super) const CONFIGS_TO_THE_END: [(&str, &str); 6] = [
    CONFIGS[0],
    CONFIGS[1],
    CONFIGS[2],
    CONFIGS[3],
    ("segment.ms", "1000"),
    ("max.compaction.lag.ms", "300"),
];

/// Tells whether a cluster has the topic.
pub(super) fn is_in(seed: u64) -> bool {
    seed % 7 == 5 || seed % 38 == 28
}

/// A batch's number, and a record's place in it.
pub(crate) type Numbered = (u64, i64);

pub(crate) fn key_of((number, within): Numbered) -> u64 {
    number.wrapping_mul(7).wrapping_add(within.unsigned_abs()) % 11
}

fn is_tombstone((number, within): Numbered) -> bool {
    number.wrapping_add(within.unsigned_abs()).is_multiple_of(4)
}

/// Returns the batch as its producer sends it.
pub(super) fn encode(
    number: u64,
    timestamps: &[i64],
    value: &[u8],
    (id, epoch, sequence): (i64, i16, i32),
    codec: Codec,
) -> Bytes {
    let mut batch = BatchBuilder::new().codec(codec);
    if id >= 0 {
        batch = batch.producer(id, epoch, sequence);
    }
    let bytes = number.to_be_bytes();
    let headers = [(NUMBER, Some(&bytes[..]))];
    for (within, timestamp) in (0..).zip(timestamps) {
        let key = key_of((number, within)).to_be_bytes();
        let value = (!is_tombstone((number, within))).then_some(value);
        let (key, timestamp) = (Some(&key[..]), *timestamp);
        batch.push(&NewRecord { timestamp, key, value, headers: &headers }).expect("small");
    }
    batch.build().expect("small")
}

/// Returns the number that a record carries; `None` if the record is not as it was sent.
pub(super) fn number_of(record: &Record<'_>) -> Option<u64> {
    let mut headers = record.headers.into_iter();
    let header = headers.find(|it| it.key == NUMBER.as_bytes())?;
    let number = u64::from_be_bytes(header.value?.try_into().ok()?);
    let numbered = (number, i64::from(record.offset_delta));
    let is_it = record.key == Some(&key_of(numbered).to_be_bytes()[..])
        && record.value.is_none() == is_tombstone(numbered);
    is_it.then_some(number)
}

/// Returns the fault in the records read of a log, if there is one. `known` are records that were there for certain.
/// `unknown` are those of which nobody knows whether they ever were.
pub(crate) fn fault(
    read: &BTreeMap<i64, Numbered>,
    known: &BTreeMap<i64, Numbered>,
    unknown: &[Numbered],
) -> Option<String> {
    for (offset, numbered) in known {
        match read.get(offset) {
            Some(there) if there == numbered => continue,
            Some(other) => return Some(format!("{offset} was {numbered:?}, and is {other:?}")),
            None => {}
        }
        let key = key_of(*numbered);
        let is_later = |(at, it): (&i64, &Numbered)| at > offset && key_of(*it) == key;
        let is_deleted = is_tombstone(*numbered)
            || known.iter().any(|it| is_later(it) && is_tombstone(*it.1))
            || unknown.iter().any(|it| key_of(*it) == key && is_tombstone(*it));
        if !is_deleted && !read.iter().any(is_later) {
            return Some(format!("{offset} is gone, and it was the last of its key"));
        }
        let older = read.range(..offset).find(|it| key_of(*it.1) == key);
        if let Some((at, _)) = older {
            return Some(format!("{offset} is gone, and {at}, which is older, is there"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compaction_must_not_do_is_a_fault() {
        // Of one key: a value, a value, a tombstone.
        let of = |tombstone: bool| {
            let mut numbers = (1..).map(|number| (number, 0));
            numbers.find(|it| key_of(*it) == 3 && is_tombstone(*it) == tombstone).expect("some")
        };
        let (value, tombstone) = (of(false), of(true));
        let all = BTreeMap::from([(1, value), (5, value), (9, tombstone)]);
        let left = |offsets: &[i64]| {
            let read = all.iter().filter(|(at, _)| offsets.contains(at));
            fault(&read.map(|(at, it)| (*at, *it)).collect(), &all, &[])
        };
        for good in [&[1, 5, 9][..], &[5, 9], &[9], &[]] {
            assert_eq!(left(good), None, "{good:?}");
        }
        for bad in [&[1, 9][..], &[1, 5], &[5], &[1]] {
            assert!(left(bad).is_some(), "{bad:?}");
        }
        let values = BTreeMap::from([(1, value), (5, value)]);
        assert!(fault(&BTreeMap::new(), &values, &[]).is_some());
        assert_eq!(fault(&BTreeMap::new(), &values, &[tombstone]), None);
    }
}
