//! The index against a plain map, damaged tables, and planted bugs.

pub(super) mod disk;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::BatchHeader;
use proptest::prelude::*;

use super::block::{self, Block, Kind};
use super::*;
use crate::op::Compacted;
use crate::{Disk, ReplicaId};
use disk::MemoryDisk;

const DIR: &str = "orders-0";

fn header(from: i64, to: i64) -> TableHeader {
    TableHeader {
        topic_id: *b"sixteen bytes id",
        partition: 3,
        replica: ReplicaId(7),
        from,
        to,
        term: 5,
        erased: 0,
    }
}

/// Change of an index under test.
#[derive(Clone, Debug)]
enum Change {
    /// A batch: offsets that it skips before it, length, transactional or not, queues with their records.
    Batch(u8, u8, bool, Vec<(u8, u8)>),
    Fact(u8, u8),
    Flush,
    /// A merge: the first table, their number, the budget of a step, how far of the log the start moves.
    Merge(u8, u8, u8, u8),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let queues = prop::collection::vec((any::<u8>(), 1..9u8), 0..12);
    let batch = (0..3u8, 1..20u8, any::<bool>(), queues);
    let fact = (any::<u8>(), 0..40u8);
    let merge = (any::<u8>(), 2..5u8, 1..255u8, 0..20u8);
    let change = prop_oneof![
        8 => batch.prop_map(|(skip, length, is, queues)| Change::Batch(skip, length, is, queues)),
        2 => fact.prop_map(|(name, length)| Change::Fact(name, length)),
        1 => Just(Change::Flush),
        1 => merge.prop_map(|(at, count, budget, it)| Change::Merge(at, count, budget, it)),
    ];
    prop::collection::vec(change, 0..80)
}

/// Names of which some are prefixes of others; one is empty, and one is larger than a block.
fn name_of(number: u8) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        1 => vec![b'x'; 700],
        _ if number < 20 => vec![b'a'; usize::from(number)],
        _ => format!("user-{:05}", u32::from(number) * 7919).into_bytes(),
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Expected {
    postings: Vec<Posting>,
    facts: Vec<Fact>,
}

/// The index, and all that it should say.
struct Tested {
    disk: MemoryDisk,
    tables: Vec<Table<MemoryDisk>>,
    memtable: Memtable,
    expected: BTreeMap<Vec<u8>, Expected>,
    expiries: Vec<Expiry>,
    /// Offsets that facts mask, and that below which merges left masks out.
    masks: Masks,
    trimmed: i64,
}

impl Tested {
    fn new() -> Self {
        let expected = BTreeMap::new();
        Self {
            disk: MemoryDisk::default(),
            tables: Vec::new(),
            memtable: Memtable::new(40),
            expected,
            expiries: Vec::new(),
            masks: Masks::default(),
            trimmed: 0,
        }
    }

    fn of(changes: &[Change]) -> Self {
        let mut tested = Self::new();
        for change in changes {
            tested.apply(change);
        }
        tested
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Batch(skip, length, is_transactional, queues) => {
                let base_offset = self.memtable.to() + i64::from(*skip);
                let queues: BTreeMap<_, _> =
                    queues.iter().map(|it| (name_of(it.0), u32::from(it.1))).collect();
                let names = queues.iter().map(|(name, records)| (&name[..], *records));
                let last = base_offset + i64::from(*length) - 1;
                self.memtable.insert((base_offset, last), *is_transactional, names);
                if length % 3 == 0 {
                    let at_ms = 1 + base_offset * 7919 % 1000;
                    self.memtable.expire(Expiry { base_offset, at_ms });
                    self.expiries.push(Expiry { base_offset, at_ms });
                }
                let is_transactional = *is_transactional;
                for (name, records) in queues {
                    let posting = Posting { base_offset, is_transactional, records };
                    self.expected.entry(name).or_default().postings.push(posting);
                }
            }
            Change::Fact(name, length) => {
                let name = name_of(*name);
                let offset = self.memtable.to();
                self.memtable.insert((offset, offset), false, []);
                let body = vec![*length; usize::from(*length)].into();
                let fact = Fact { kind: *length, offset, body };
                self.memtable.note(&name, fact.clone());
                // Of what is before the fact, perhaps in a table of earlier.
                for masked in [offset - 1, offset - 2, offset - i64::from(*length) % 40 - 1] {
                    self.memtable.mask(masked);
                    self.masks.insert(masked);
                }
                self.expected.entry(name).or_default().facts.push(fact);
            }
            Change::Flush => self.flush(),
            Change::Merge(at, count, budget, start) => self.merge(*at, *count, *budget, *start),
        }
    }

    fn flush(&mut self) {
        let (from, to) = (self.memtable.from(), self.memtable.to());
        if from == to {
            return;
        }
        let table = flush(&self.disk, DIR, header(from, to), &self.memtable, 256);
        self.tables.push(table.expect("the disk is good"));
        self.memtable = Memtable::new(to);
    }

    fn merge(&mut self, at: u8, count: u8, budget: u8, start: u8) {
        if self.tables.len() < 2 {
            return;
        }
        let from = usize::from(at) % (self.tables.len() - 1);
        let to = (from + usize::from(count)).min(self.tables.len());
        let first_batch = 40 + i64::from(start) * 8;
        let merged = self.tables[from..to].to_vec();
        let (begin, end) = (merged[0].header().from, merged[merged.len() - 1].header().to);
        let mut merge = Merge::begin(DIR, merged, first_batch, 256).expect("the disk is good");
        let table = loop {
            match merge.step(usize::from(budget)).expect("the disk is good") {
                Merged::More(more) => merge = *more,
                Merged::Done(table) => break table,
            }
        };
        let old: Vec<_> = self.tables.splice(from..to, [table]).collect();
        for old in old {
            self.disk.remove_file(old.path()).expect("it is there");
        }
        self.trimmed = self.trimmed.max(first_batch);
        let gone = begin..end.min(first_batch);
        self.expiries.retain(|it| !gone.contains(&it.base_offset));
        for expected in self.expected.values_mut() {
            expected.postings.retain(|posting| !gone.contains(&posting.base_offset));
        }
    }

    /// Compares all that the index can be asked. Damage is no difference, but an answer that is wrong is one.
    fn difference(&self) -> Option<String> {
        let view = View::new(&self.tables, &self.memtable);
        let nothing = Expected::default();
        let strangers = [&b"never"[..], b"user-", b"user-99999", b"zzz"].map(<[u8]>::to_vec);
        for name in (0..=u8::MAX).map(name_of).chain(strangers) {
            let expected = self.expected.get(&name).unwrap_or(&nothing);
            let wrong = |what: &str| Some(format!("{what} of {}", String::from_utf8_lossy(&name)));
            match view.postings(&name, 0, usize::MAX) {
                Ok(found) if found != expected.postings => return wrong("postings"),
                _ => {}
            }
            match view.facts(&name) {
                Ok(found) if !found.iter().rev().eq(&expected.facts) => return wrong("facts"),
                _ => {}
            }
        }
        for at_ms in [0, 1, 300, 1000] {
            let expired = self.expiries.iter().filter(|it| it.at_ms <= at_ms);
            let expired: Vec<i64> = expired.map(|it| it.base_offset).collect();
            match view.expired(at_ms) {
                Ok(found) if found != expired => {
                    return Some(format!("expired by {at_ms}"));
                }
                _ => {}
            }
            for start in [0, 40, 200] {
                let counts = |it: &&Expiry| {
                    it.base_offset >= start && (it.base_offset >= 100 || it.at_ms > at_ms)
                };
                let next = self.expiries.iter().filter(counts).map(|it| it.at_ms).min();
                match view.next_expiry(start, 100, at_ms) {
                    Ok(found) if found.map(|it| it.at_ms) != next => {
                        return Some(format!("what expires after {at_ms}, from {start} on"));
                    }
                    _ => {}
                }
            }
        }
        let mut masks = self.memtable.masks().clone();
        for table in &self.tables {
            masks.add(table.masks());
        }
        let mut expected = self.masks.clone();
        masks.trim(self.trimmed);
        expected.trim(self.trimmed);
        if masks != expected {
            return Some("masks".to_owned());
        }
        let listed = view.names(b"", None, (usize::MAX, Left::default())).ok()?;
        (listed != self.names(b"", None)).then(|| "names".to_owned())
    }

    fn names(&self, prefix: &[u8], after: Option<&[u8]>) -> Vec<NamedQueue> {
        let all = self.expected.iter().map(|(name, it)| NamedQueue {
            name: name.clone().into(),
            batches: it.postings.len() as u64,
            records: it.postings.iter().map(|it| u64::from(it.records)).sum(),
            facts: it.facts.len() as u64,
            withdrawn: 0,
        });
        let is_behind = |name: &[u8]| after.is_none_or(|after| name > after);
        all.filter(|it| it.name.starts_with(prefix) && is_behind(&it.name))
            .filter(|it| it.batches + it.facts > 0)
            .collect()
    }

    /// Checks that all reads succeed, and limits, places and prefixes beside.
    fn check_whole(&self) {
        assert_eq!(self.difference(), None);
        let view = View::new(&self.tables, &self.memtable);
        for (name, expected) in &self.expected {
            for at in [40, 77, 130, 222, 500] {
                let found = view.postings(name, at, usize::MAX).expect("it can be read");
                let later = |it: &&Posting| it.base_offset > at;
                let after: Vec<_> = expected.postings.iter().filter(later).copied().collect();
                assert!(found.ends_with(&after) && found.len() <= after.len() + 1, "{found:?}");
                // The batch before `at` may reach beyond it, if it is in the same part.
                let before = expected.postings.iter().rfind(|it| it.base_offset <= at);
                let part = self.tables.iter().find(|it| it.range().contains(&at));
                let begin = part.map_or(self.memtable.from(), |it| it.header().from);
                if before.is_some_and(|it| it.base_offset >= begin) {
                    assert_eq!(found.first(), before);
                }
                let few = view.postings(name, at, 3).expect("it can be read");
                assert_eq!(few, found[..found.len().min(3)]);
            }
        }
        for (prefix, after) in [
            (&b"user"[..], None),
            (b"a", Some(&b"aaaa"[..])),
            (b"user-1", Some(b"a")),
            (b"b", None),
        ] {
            let expected = self.names(prefix, after);
            assert_eq!(
                view.names(prefix, after, (usize::MAX, Left::default())).expect("it can be read"),
                expected
            );
            let few = view.names(prefix, after, (2, Left::default())).expect("it can be read");
            assert_eq!(few, expected[..expected.len().min(2)]);
        }
        for table in &self.tables {
            let name = table.path().strip_prefix("orders-0/").expect("it is there");
            let again = Table::open(&self.disk, DIR, name).expect("it can be opened");
            assert_eq!(again.header(), table.header());
            let range = table.range();
            let of_it = |it: &&Posting| range.contains(&it.base_offset);
            let postings = self.expected.values().flat_map(|it| it.postings.iter().filter(of_it));
            assert_eq!(again.elements(), postings.map(|it| u64::from(it.records)).sum::<u64>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_index_says_what_a_plain_map_says(changes in changes()) {
        Tested::of(&changes).check_whole();
    }

    #[test]
    fn any_bytes_are_a_block_or_an_error(mut bytes in prop::collection::vec(0..40u8, 0..200)) {
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        for kind in [Kind::Postings, Kind::Facts] {
            let Ok(block) = Block::decode(bytes.clone().into()) else { return Ok(()) };
            let Ok(mut walk) = block.walk_to(kind, b"\x01") else { continue };
            while let Ok(Some(body)) = walk.advance() {
                let _ = block::postings(body.clone(), &(0..1000), |_| {});
                let _ = block::facts(body, &(0..1000), |_| {});
            }
        }
    }
}

/// Enough of everything: many names, blocks, tables, merges, facts.
fn rich(seed: u8) -> Vec<Change> {
    let batch = |number: u8| {
        let queues = (0..12).map(|it| (number.wrapping_mul(31).wrapping_add(it * 5), 1 + it % 7));
        Change::Batch(number % 3, 20, number.is_multiple_of(2), queues.collect())
    };
    (0..60u8)
        .flat_map(|number| match number % 10 {
            7 => vec![Change::Flush],
            8 => vec![Change::Fact(number, number), Change::Fact(number / 2, 30)],
            9 => vec![Change::Merge(number, 3, 90, 0)],
            _ => vec![batch(number.wrapping_add(seed))],
        })
        .chain([Change::Flush, Change::Merge(0, 4, 200, 0)])
        .collect()
}

/// A small index of one table.
fn small() -> Tested {
    let mut tested = Tested::of(&rich(0)[..12]);
    tested.flush();
    tested.merge(0, 9, 255, 0);
    assert_eq!(tested.tables.len(), 1);
    tested.check_whole();
    tested
}

#[test]
fn a_table_without_names_can_be_read() {
    let mut tested = Tested::new();
    let bare = Change::Batch(0, 9, false, Vec::new());
    for change in [bare.clone(), Change::Flush, bare, Change::Flush, Change::Merge(0, 2, 1, 0)] {
        tested.apply(&change);
        tested.check_whole();
    }
    assert_eq!((tested.tables.len(), tested.tables[0].queues()), (1, 0));
}

#[test]
fn a_table_of_one_name_or_one_block_too_large_for_one_can_be_read() {
    for postings in [1, 2, 5000] {
        let mut tested = Tested::new();
        for _ in 0..postings {
            tested.apply(&Change::Batch(0, 1, true, vec![(30, 1)]));
        }
        tested.apply(&Change::Flush);
        tested.check_whole();
    }
}

#[test]
fn each_changed_byte_of_a_table_is_found_or_harmless() {
    let mut tested = small();
    let path = tested.tables[0].path().to_owned();
    let name = path.strip_prefix("orders-0/").expect("it is there").to_owned();
    let whole = tested.disk.bytes(&path);
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            tested.disk.change(&path, |bytes| bytes[at] ^= flip);
            // Opened before and after: a block rots under an open table too.
            assert_eq!(tested.difference(), None, "byte {at}");
            if let Ok(table) = Table::open(&tested.disk, DIR, &name) {
                let whole = std::mem::replace(&mut tested.tables[0], table);
                assert_eq!(tested.difference(), None, "byte {at}");
                tested.tables[0] = whole;
            }
            tested.disk.change(&path, |bytes| bytes[at] ^= flip);
        }
    }
}

#[test]
fn a_table_that_is_cut_or_longer_is_damaged() {
    let tested = small();
    let path = tested.tables[0].path().to_owned();
    let name = path.strip_prefix("orders-0/").expect("it is there");
    let whole = tested.disk.bytes(&path);
    for length in (0..whole.len()).step_by(13) {
        tested.disk.change(&path, |bytes| bytes.truncate(length));
        let opened = Table::open(&tested.disk, DIR, name);
        assert!(matches!(opened, Err(IndexError::Damaged { .. })), "{opened:?}");
        tested.disk.change(&path, |bytes| *bytes = [&whole[..], &[0]].concat());
        let opened = Table::open(&tested.disk, DIR, name);
        assert!(matches!(opened, Err(IndexError::Damaged { .. })), "{opened:?}");
    }
}

#[test]
fn a_table_of_another_version_or_range_is_told_apart() {
    let tested = small();
    let path = tested.tables[0].path().to_owned();
    let name = path.strip_prefix("orders-0/").expect("it is there");
    let other = crate::format::table_name(1, 2, 0);
    tested.disk.rename(&path, &format!("{DIR}/{other}")).expect("it is there");
    let opened = Table::open(&tested.disk, DIR, &other);
    assert!(matches!(opened, Err(IndexError::Damaged { part: "header", .. })), "{opened:?}");
    tested.disk.rename(&format!("{DIR}/{other}"), &path).expect("it is there");
    tested.disk.change(&path, |bytes| bytes[5] = 1);
    let opened = Table::open(&tested.disk, DIR, name);
    assert!(matches!(opened, Err(IndexError::UnknownVersion { version: 1, .. })), "{opened:?}");
}

/// Puts right all CRCs of a table that was changed, as far as its parts are where they were.
fn reseal(bytes: &mut [u8], blocks: &[(usize, usize)], ends: [usize; 4]) {
    let mut seal = |from: usize, to: usize| {
        let crc = crc32c::crc32c(&bytes[from..to - 4]);
        bytes[to - 4..to].copy_from_slice(&crc.to_be_bytes());
    };
    for (from, to) in blocks {
        seal(*from, *to);
    }
    let [facts_end, filter_end, index_end, masks_end] = ends;
    seal(facts_end, filter_end);
    seal(filter_end, index_end);
    seal(index_end, masks_end);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..72]), &bytes[masks_end + 8..]);
    bytes[masks_end + 4..masks_end + 8].copy_from_slice(&crc.to_be_bytes());
}

#[test]
fn changed_bytes_under_good_checksums_are_no_panic() {
    let mut tested = small();
    let path = tested.tables[0].path().to_owned();
    let name = path.strip_prefix("orders-0/").expect("it is there").to_owned();
    let whole = tested.disk.bytes(&path);
    let number = |at: usize, bytes: usize| {
        whole[at..at + bytes].iter().fold(0, |sum, it| sum << 8 | usize::from(*it))
    };
    let footer = whole.len() - 72;
    let facts_end = number(footer + 32, 8);
    let filter_end = facts_end + number(footer + 40, 4);
    let ends = [facts_end, filter_end, filter_end + number(footer + 44, 4), footer];
    let all = table::places(
        Bytes::copy_from_slice(&whole[ends[1]..ends[2] - 4]),
        number(footer + 24, 8) as u64,
        facts_end as u64,
    );
    let all = all.expect("the block index is good");
    let blocks = all.iter().flatten().map(|place| {
        let from = usize::try_from(place.position).expect("small");
        (from, from + place.length as usize)
    });
    let blocks: Vec<_> = blocks.collect();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            tested.disk.change(&path, |bytes| {
                bytes[at] = value;
                reseal(bytes, &blocks, ends);
            });
            if let Ok(table) = Table::open(&tested.disk, DIR, &name) {
                let whole = std::mem::replace(&mut tested.tables[0], table);
                // Wrong answers are to be had for bytes that say so.
                let _ = tested.difference();
                tested.tables[0] = whole;
            }
            tested.disk.change(&path, |bytes| bytes.copy_from_slice(&whole));
        }
    }
}

#[test]
fn a_table_is_synced_before_it_has_its_name() {
    let mut tested = Tested::new();
    tested.apply(&Change::Batch(0, 9, false, vec![(30, 1)]));
    tested.apply(&Change::Flush);
    let calls = tested.disk.calls();
    assert_eq!(calls[calls.len() - 3..], ["sync", "rename", "sync_dir"], "{calls:?}");
}

#[test]
fn a_merge_that_does_not_end_leaves_no_file() {
    let tested = Tested::of(&rich(1)[..19]);
    let before = tested.disk.list(DIR).expect("it can be listed");
    assert!(tested.tables.len() > 1, "there is something to merge");
    let merge = Merge::begin(DIR, tested.tables.clone(), 0, 256).expect("the disk is good");
    let more = merge.step(1).expect("the disk is good");
    assert!(matches!(more, Merged::More(_)), "it takes more than one step");
    drop(more);
    assert_eq!(tested.disk.list(DIR).expect("it can be listed"), before);
}

#[test]
#[should_panic(expected = "a batch begins at the cursor or behind it")]
fn batches_come_in_order() {
    let mut memtable = Memtable::new(10);
    memtable.insert((10, 19), false, [(&b"a"[..], 1)]);
    memtable.insert((15, 25), false, [(&b"a"[..], 1)]);
}

#[test]
fn a_table_of_many_names_is_small() {
    const NAMES: usize = 10_000;
    let mut memtable = Memtable::new(0);
    let names: Vec<_> = (0..NAMES).map(|it| format!("user-{it:08}")).collect();
    for round in 0..10 {
        for (at, names) in names.chunks(100).enumerate() {
            let base = (round * 100 + i64::try_from(at).expect("small")) * 100;
            let names = names.iter().map(|name| (name.as_bytes(), 1));
            memtable.insert((base, base + 99), false, names);
        }
    }
    let disk = MemoryDisk::default();
    let table = flush(&disk, DIR, header(0, memtable.to()), &memtable, BLOCK_BYTES_MAX);
    let table = table.expect("the disk is good");
    // Ten postings have four bytes each at most; a name has a few of its own, and nine bits of the filter.
    let bytes = disk.bytes(table.path()).len();
    assert!(bytes < NAMES * 50, "{bytes} bytes for {NAMES} names");
    let (tables, memtable) = ([table], Memtable::new(memtable.to()));
    let view = View::new(&tables, &memtable);
    for name in &names {
        assert_eq!(view.postings(name.as_bytes(), 0, 100).expect("it is good").len(), 10);
    }
}

#[test]
fn a_place_in_a_long_queue_takes_few_blocks() {
    const LENGTH: i64 = 100_000;
    let (disk, mut tables) = (MemoryDisk::default(), Vec::new());
    for from in [0, LENGTH / 2] {
        let mut memtable = Memtable::new(from);
        for at in from..from + LENGTH / 2 {
            memtable.insert((at, at), false, [(&b"long"[..], 1), (&at.to_be_bytes()[..], 1)]);
        }
        let header = header(from, memtable.to());
        tables.push(flush(&disk, DIR, header, &memtable, BLOCK_BYTES_MAX).expect("it is good"));
    }
    let mut merge = Merge::begin(DIR, tables, 0, BLOCK_BYTES_MAX).expect("the disk is good");
    let mut steps = 0;
    let table = loop {
        match merge.step(10_000).expect("the disk is good") {
            Merged::More(more) => merge = *more,
            Merged::Done(table) => break table,
        }
        steps += 1;
    };
    assert!(steps > 20, "a long queue takes as many steps as it has bytes: {steps}");
    let (tables, memtable) = ([table], Memtable::new(LENGTH));
    let view = View::new(&tables, &memtable);
    let places = [0, 1, LENGTH / 2 - 1, LENGTH / 2, LENGTH - 101, LENGTH - 1];
    for at in places.into_iter().chain((0..LENGTH).step_by(777)) {
        let before = disk.read_bytes();
        let found = view.postings(b"long", at, 100).expect("it is good");
        assert!(found.iter().map(|it| it.base_offset).eq((at..LENGTH).take(100)), "behind {at}");
        let last = view.last_before(b"long", at).expect("it is good");
        assert_eq!(last.map(|it| it.base_offset), (at > 0).then_some(at - 1));
        let read = disk.read_bytes() - before;
        assert!(read <= 6 * BLOCK_BYTES_MAX, "{read} bytes for two places");
    }
}

#[test]
fn names_whose_records_were_all_taken_away_are_not_listed() {
    let disk = MemoryDisk::default();
    let deleted = |offset, withdrawn: Vec<i64>| {
        let said = Said::Deleted(Deleted::of(&withdrawn));
        Fact { kind: said.kind(), offset, body: said.body() }
    };
    let mut older = Memtable::new(0);
    for (at, name) in [(0, "a"), (1, "b"), (2, "a"), (3, "c")] {
        older.insert((at, at), false, [(name.as_bytes(), 1)]);
    }
    let table = flush(&disk, DIR, header(0, 4), &older, 256).expect("it is good");
    let mut newer = Memtable::new(4);
    newer.insert((4, 4), false, []);
    newer.note(b"a", deleted(4, vec![0, 2]));
    newer.insert((5, 5), false, [(&b"d"[..], 1)]);
    newer.insert((6, 6), false, []);
    newer.note(b"d", deleted(6, vec![5]));
    newer.insert((7, 7), false, [(&b"d"[..], 1)]);
    let listed_of = |prefix: &str, limit, left| {
        let copied = newer.of_names(prefix.as_bytes(), left, limit + 1);
        let tables = [table.clone()];
        let view = View::new(&tables, &copied);
        let names = view.names(prefix.as_bytes(), None, (limit, left)).expect("it is good");
        let name = |it: &NamedQueue| String::from_utf8_lossy(&it.name).into_owned();
        names.iter().map(|it| (name(it), it.records - it.withdrawn)).collect::<Vec<_>>()
    };
    let listed = |prefix, limit, from| listed_of(prefix, limit, Left { from, erased: 0 });
    let pair = |name: &str, elements| (name.to_owned(), elements);
    assert_eq!(listed("", 9, 0), [pair("b", 1), pair("c", 1), pair("d", 1)]);
    assert_eq!(listed("", 3, 0), [pair("b", 1), pair("c", 1), pair("d", 1)]);
    assert_eq!(listed("", 1, 0), [pair("b", 1)]);
    assert_eq!(listed("a", 9, 0), []);
    // Below the log start it says too much, and of erased records until its tables are made anew.
    assert_eq!(listed("a", 9, 1), [pair("a", 1)]);
    assert_eq!(listed_of("a", 9, Left { from: 0, erased: 5 }), [pair("a", 2)]);
}

/// Makes an index of tables that adjoin, of a log that was erased so far.
fn index_of(tables: Vec<Table<MemoryDisk>>, erased: Compacted) -> Index<MemoryDisk> {
    let cursor = tables.last().map_or(0, |last| last.header().to);
    Index::new(([1; 16], 0), ReplicaId(7), DIR.to_owned(), (tables, cursor), (0, erased))
}

/// Has an index take in a batch at an offset that says something of the queue `a`.
fn say(index: &Index<MemoryDisk>, offset: i64, said: Said) {
    let statement = Statement { queue: "a".into(), principal: String::new(), said };
    let mut header =
        BatchHeader::parse(&batch_of(0, std::slice::from_ref(&statement))).expect("a batch");
    header.base_offset = offset;
    let names = std::iter::empty::<(&[u8], u32)>();
    let batch = Batch { header: &header, names, said: &[statement], expires_ms: None };
    index.insert([batch].into_iter(), 1);
}

#[test]
fn statements_below_an_erasure_mask_nothing() {
    let erased = Compacted { index: 7, below: 10, tombstones_below: 0 };
    let index = index_of(Vec::new(), erased);
    for (offset, element) in [(5, 1), (12, 2), (14, 3)] {
        say(&index, offset, Said::Deleted(Deleted::of(&[element])));
    }
    let masks = index.masks();
    assert_eq!((masks.hides(1), masks.hides(2), masks.count()), (false, true, 2));
    let (found, cursor) = index.erasable(10).expect("no table is damaged");
    let both = Erasable { first: 12, last: 14, records: 2 };
    assert_eq!((found, cursor), (Some(both), 15));
    let expired = Erasable { first: 3, last: 3, records: 1 };
    assert_eq!(both.with(expired), Erasable { first: 3, last: 14, records: 3 });
}

/// Asks an index for what is said of a queue while the element at 0 is replaced by the record at 5, and once more.
/// Tells of each answer whether it has the fact, and whether it masks the old content.
fn looks_during_a_replacement() -> [(bool, bool); 2] {
    let disk = MemoryDisk::default();
    let mut older = Memtable::new(0);
    older.insert((0, 3), false, [(&b"a"[..], 4)]);
    older.insert((4, 4), false, []);
    let fence = Said::Fenced { token: "token".into(), first_said: -1 };
    older.note(b"a", Fact { kind: fence.kind(), offset: 4, body: fence.body() });
    let table = flush(&disk, DIR, header(0, 5), &older, 256).expect("the disk is good");
    let index = Arc::new(index_of(vec![table], Compacted::default()));
    let other = Arc::clone(&index);
    disk.on_read(move || {
        let replaced = Replaced { term: 1, entry: 0, offset: 0, withdrawn: 0 };
        say(&other, 5, Said::Replaced(replaced));
    });
    let look = || {
        let (facts, masks, cursor) = index.facts(b"a").expect("no table is damaged");
        let has_fact = facts.iter().any(|it| it.offset == 5);
        assert_eq!((has_fact, facts.len()), (cursor > 5, 1 + usize::from(has_fact)));
        (has_fact, masks.hides(0))
    };
    let looks = [look(), look()];
    assert_eq!(index.cursor(), 6, "the first look read a block");
    looks
}

/// A reader leaves a masked content out and shows the new one in its place, or the old one alone.
#[test]
fn facts_and_masks_are_of_one_moment() {
    assert_eq!(looks_during_a_replacement(), [(false, false), (true, true)]);
}

#[cfg(feature = "sabotage")]
mod planted {
    use super::*;
    use crate::sabotage::{Bug, plant};

    /// Plants a bug for one look.
    fn with<T>(bug: Bug, look: impl FnOnce() -> T) -> T {
        plant(Some(bug));
        let seen = look();
        plant(None);
        seen
    }

    #[test]
    fn planted_bugs_are_found_by_the_model() {
        for bug in [
            Bug::TableFilterHalf,
            Bug::MergeDropsPosting,
            Bug::MergeDropsFacts,
            Bug::MergeDropsMasks,
        ] {
            let found = with(bug, || Tested::of(&rich(2)).difference());
            assert!(found.is_some(), "{bug:?}");
        }
        assert_eq!(Tested::of(&rich(2)).difference(), None);
    }

    #[test]
    fn masks_of_a_later_moment_are_seen() {
        let looks = with(Bug::EditsBeforeMasks, looks_during_a_replacement);
        assert_eq!(looks[0], (false, true), "the element is in neither place");
    }

    #[test]
    fn an_unchecked_block_gives_a_wrong_answer() {
        let tested = small();
        let path = tested.tables[0].path();
        let is_wrong = |at: usize| {
            tested.disk.change(path, |bytes| bytes[at] ^= 1);
            let found = with(Bug::TableBlockUnchecked, || tested.difference());
            tested.disk.change(path, |bytes| bytes[at] ^= 1);
            found.is_some()
        };
        assert!((64..300).any(is_wrong), "no changed byte is found");
    }

    #[test]
    fn a_late_sync_is_seen_at_the_disk() {
        let calls = with(Bug::TableNotSynced, || {
            let tested = Tested::of(&rich(3));
            tested.disk.calls()
        });
        let renamed = calls.iter().position(|call| *call == "rename").expect("a table was made");
        assert_ne!(calls[renamed - 1], "sync");
    }
}
