//! A table of the queue index: `tests/fixtures/keys` is a replica's directory with one, read here by the document alone.
//!
//! Two memtables were flushed and merged; blocks have at most 256 bytes, so that there are several. The table is never
//! written again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crc32c::crc32c;
use duramen_protocol::BatchView;
use duramen_protocol::records::Records;
use duramen_storage::ReplicaId;
use duramen_storage::keys::{
    CUTS_AFTER_HEADER, Deleted, Expiry, FACT_HEADER, Fact, Left, Memtable, Merge, Merged, Posting,
    REPLACES_HEADER, Replaced, Said, Statement, Table, TableHeader, View, batch_of, flush,
};
use twox_hash::XxHash3_64;

use crate::disk::FsDisk;

const NAME: &str = "00000000000000001000-00000000000000003000.keys";
const DIR: &str = "orders-0";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keys")
}

fn header(from: i64, to: i64) -> TableHeader {
    let (topic_id, replica) = (*b"orders-topic-id!", ReplicaId(7));
    TableHeader { topic_id, partition: 3, replica, from, to, term: 5, erased: 0 }
}

/// Queues of a batch at an offset, with their records.
fn queues_at(base_offset: i64) -> BTreeMap<Vec<u8>, u32> {
    let numbers = (0..40).filter(|number| (base_offset / 10 + number) % 7 == 0);
    let name = |number| format!("user-{number:08}").into_bytes();
    let some = numbers.map(|number| (name(number), u32::try_from(number % 3 + 1).expect("small")));
    some.chain([(Vec::new(), 2), (vec![0xff; 200], 200)]).collect()
}

fn is_transactional(base_offset: i64) -> bool {
    base_offset % 30 == 0
}

fn fact(offset: i64) -> Fact {
    let kind = u8::try_from(offset % 5 + 1).expect("small");
    Fact { kind, offset, body: format!("fact at {offset}").into_bytes().into() }
}

/// Name of the queue that a fact at an offset is about; one of them has no records.
fn of_fact(offset: i64) -> &'static [u8] {
    if offset % 200 == 99 { b"user-00000003" } else { b"without records" }
}

/// Offsets that the fact at an offset masks: one below the table, and two neighbours.
fn masked_by(offset: i64) -> [i64; 3] {
    [offset - 999, offset - 50, offset - 49]
}

/// Expiry of the batch at an offset, if it expires. Not all are in order of time.
fn expiry(base_offset: i64) -> Option<Expiry> {
    let at_ms = 1_700_000_000_000 + base_offset * 7919 % 100_000;
    (base_offset % 70 == 0).then_some(Expiry { base_offset, at_ms })
}

/// All that the table says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Content {
    postings: BTreeMap<Vec<u8>, Vec<Posting>>,
    facts: BTreeMap<Vec<u8>, Vec<Fact>>,
    masks: BTreeSet<i64>,
    /// Base offset and time of each batch that expires.
    expiries: Vec<(i64, i64)>,
}

fn expected() -> Content {
    let mut content = Content::default();
    for base_offset in (1000..3000).step_by(10) {
        let is_transactional = is_transactional(base_offset);
        for (name, records) in queues_at(base_offset) {
            let posting = Posting { base_offset, is_transactional, records };
            content.postings.entry(name).or_default().push(posting);
        }
        content.expiries.extend(expiry(base_offset).map(|it| (it.base_offset, it.at_ms)));
        let offset = base_offset + 9;
        if offset % 100 == 99 {
            content.facts.entry(of_fact(offset).to_vec()).or_default().push(fact(offset));
            content.masks.extend(masked_by(offset));
        }
    }
    content
}

/// Writes the table.
fn script(disk: &FsDisk) {
    let mut tables = Vec::new();
    for (from, to) in [(1000, 2000), (2000, 3000)] {
        let mut memtable = Memtable::new(from);
        for base_offset in (from..to).step_by(10) {
            let queues = queues_at(base_offset);
            let names = queues.iter().map(|(name, records)| (&name[..], *records));
            let offset = base_offset + 9;
            memtable.insert((base_offset, offset), is_transactional(base_offset), names);
            if let Some(expiry) = expiry(base_offset) {
                memtable.expire(expiry);
            }
            if offset % 100 == 99 {
                memtable.note(of_fact(offset), fact(offset));
                for masked in masked_by(offset) {
                    memtable.mask(masked);
                }
            }
        }
        tables.push(flush(disk, DIR, header(from, to), &memtable, 256).expect("there is room"));
    }
    let old: Vec<_> = tables.iter().map(|table| table.path().to_owned()).collect();
    let mut merge = Merge::begin(DIR, tables, 0, 256).expect("there is room");
    while let Merged::More(more) = merge.step(1000).expect("there is room") {
        merge = *more;
    }
    for path in old {
        fs::remove_file(directory().join(path)).expect("it is there");
    }
}

/// Bytes that are read from their beginning.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: u64) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(usize::try_from(length).expect("small"));
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: u64) -> u64 {
        self.take(bytes).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn offset(&mut self) -> i64 {
        i64::try_from(self.number(8)).expect("small")
    }

    fn varint(&mut self) -> u64 {
        let byte = self.number(1);
        if byte < 0x80 { byte } else { byte - 0x80 + (self.varint() << 7) }
    }

    /// Cuts a CRC off the end, and compares it.
    fn check_crc(&mut self) {
        let (body, crc) = self.0.split_at(self.0.len() - 4);
        assert_eq!(Bytes(crc).number(4), u64::from(crc32c(body)));
        self.0 = body;
    }
}

/// The parts of a table, by its footer.
struct Parts<'a> {
    blocks: &'a [u8],
    postings_end: u64,
    filter: Bytes<'a>,
    index: Bytes<'a>,
    masks: Bytes<'a>,
    expiries: Bytes<'a>,
    earliest_ms: i64,
    queues: u64,
    elements: u64,
    seed: u64,
}

fn parts(file: &[u8]) -> Parts<'_> {
    let mut header = Bytes(&file[..72]);
    assert_eq!(header.take(4), b"DQK1");
    assert_eq!((header.number(2), header.number(2)), (5, 0), "version");
    assert_eq!(header.take(16), b"orders-topic-id!");
    assert_eq!((header.number(4), header.number(4)), (3, 0), "partition");
    assert_eq!((header.offset(), header.offset()), (1000, 3000), "from and to");
    assert_eq!((header.number(8), header.number(8)), (5, 7), "term and replica");
    assert_eq!(header.number(8), 0, "the Erase entry");
    let mut footer = Bytes(&file[file.len() - 72..]);
    assert_eq!(footer.take(4), b"DQKF");
    let covered = [&file[..72], &file[file.len() - 64..]].concat();
    assert_eq!(footer.number(4), u64::from(crc32c(&covered)));
    let (queues, elements) = (footer.number(8), footer.number(8));
    let (postings_end, facts_end) = (footer.number(8), footer.number(8));
    let (filter_bytes, index_bytes) = (footer.number(4), footer.number(4));
    let (seed, masks_bytes) = (footer.number(8), footer.number(4));
    let (expiries_bytes, earliest_ms) = (footer.number(4), footer.offset());
    let mut rest = Bytes(&file[..file.len() - 72]);
    let blocks = rest.take(facts_end);
    let (mut filter, mut index) = (Bytes(rest.take(filter_bytes)), Bytes(rest.take(index_bytes)));
    let mut masks = Bytes(rest.take(masks_bytes));
    let mut expiries = Bytes(rest.take(expiries_bytes));
    assert!(rest.0.is_empty(), "the parts are the file");
    expiries.check_crc();
    masks.check_crc();
    filter.check_crc();
    index.check_crc();
    Parts {
        blocks,
        postings_end,
        filter,
        index,
        masks,
        expiries,
        earliest_ms,
        queues,
        elements,
        seed,
    }
}

/// Reads a block, and calls back with each name and the bytes from its body on. Returns the last name.
fn walk(mut block: Bytes<'_>, mut entry: impl FnMut(&[u8], &mut Bytes<'_>)) -> Vec<u8> {
    block.check_crc();
    let (rest, count) = block.0.split_at(block.0.len() - 2);
    let (entries, restarts) = rest.split_at(rest.len() - 2 * usize::from(count[1]));
    assert_eq!(count[0], 0);
    let mut restarts = Bytes(restarts);
    let (mut rest, mut name) = (Bytes(entries), Vec::new());
    for number in 0.. {
        if rest.0.is_empty() {
            break;
        }
        let is_restart = number % 16 == 0;
        if is_restart {
            assert_eq!(restarts.number(2), (entries.len() - rest.0.len()) as u64);
        }
        let (shared, own) = (rest.varint(), rest.varint());
        assert!(!is_restart || shared == 0, "a name at a restart point is whole");
        name.truncate(usize::try_from(shared).expect("small"));
        name.extend_from_slice(rest.take(own));
        entry(&name, &mut rest);
    }
    assert!(restarts.0.is_empty(), "each restart point has an entry");
    name
}

fn postings_of(body: &mut Bytes<'_>) -> Vec<Posting> {
    let (batches, records, length) = (body.varint(), body.varint(), body.varint());
    let (mut list, mut base_offset, mut postings) = (Bytes(body.take(length)), 1000, Vec::new());
    for _ in 0..batches {
        let place = list.varint();
        base_offset += i64::try_from(place / 4).expect("small");
        assert_eq!(place % 2, 0, "unused");
        let records = u32::try_from(list.varint() + 1).expect("small");
        postings.push(Posting { base_offset, is_transactional: place % 4 == 2, records });
    }
    assert!(list.0.is_empty());
    assert_eq!(postings.iter().map(|it| u64::from(it.records)).sum::<u64>(), records);
    postings
}

fn facts_of(body: &mut Bytes<'_>) -> Vec<Fact> {
    let count = body.varint();
    let one = |_| {
        let kind = u8::try_from(body.number(1)).expect("a byte");
        let offset = 1000 + i64::try_from(body.varint()).expect("small");
        let length = body.varint();
        Fact { kind, offset, body: body.take(length).to_vec().into() }
    };
    (0..count).map(one).collect()
}

/// Tells whether the filter has a name.
fn has(filter: &[u8], seed: u64, name: &[u8]) -> bool {
    let (head, fingerprints) = filter.split_at(20);
    let number = |at: usize, bytes: usize| {
        head[at..at + bytes].iter().rev().fold(0, |sum, it| sum << 8 | u64::from(*it))
    };
    let (segment, mask, length) = (number(8, 4), number(12, 4), number(16, 4));
    let mut hash = XxHash3_64::oneshot_with_seed(seed, name).wrapping_add(number(0, 8));
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    hash ^= hash >> 33;
    let first = u64::try_from((u128::from(hash) * u128::from(length)) >> 64).expect("less than it");
    let second = (first + segment) ^ (hash >> 18 & mask);
    let third = (first + 2 * segment) ^ (hash & mask);
    let at = |place: u64| fingerprints[usize::try_from(place).expect("small")];
    let fingerprint = (hash ^ hash >> 32).to_le_bytes()[0];
    at(first) ^ at(second) ^ at(third) == fingerprint
}

#[test]
fn a_table_has_the_bytes_of_the_document() {
    let path = directory().join(DIR).join(NAME);
    if std::env::var_os("DURAMEN_WRITE_FIXTURES").is_some() && !path.exists() {
        fs::create_dir_all(directory().join(DIR)).expect("it can be made");
        script(&FsDisk::new(&directory()));
    }
    let file = fs::read(path).expect("it is kept");
    let Parts { blocks, postings_end, filter, mut index, queues, elements, seed, .. } =
        parts(&file);
    let Parts { mut masks, mut expiries, earliest_ms, .. } = parts(&file);
    let (mut content, mut position) = (Content::default(), 72);
    while !index.0.is_empty() {
        let (kind, length) = (index.number(1), index.varint());
        let last = index.take(length);
        let last_first = (kind == 0).then(|| index.offset());
        assert_eq!(index.number(8), position, "blocks adjoin");
        let length = index.number(4);
        let block = Bytes(&blocks[usize::try_from(position).expect("small")..]).take(length);
        assert_eq!(kind == 0, position < postings_end);
        let (mut entries, mut first) = (0, None);
        let name = walk(Bytes(block), |name, body| {
            entries += 1;
            let name = name.to_vec();
            if kind == 0 {
                let (all, more) = (content.postings.entry(name).or_default(), postings_of(body));
                first = Some(more[0].base_offset);
                let is_behind =
                    all.last().is_none_or(|last| last.base_offset < more[0].base_offset);
                assert!(is_behind, "entries of a name are in order");
                all.extend(more);
            } else {
                let before = content.facts.insert(name, facts_of(body));
                assert!(before.is_none(), "a name has one entry of facts");
            }
        });
        assert_eq!((&name[..], first), (last, last_first));
        assert!(length <= 256 || entries == 1);
        position += length;
    }
    assert_eq!(position, blocks.len() as u64);
    let mut end = 0;
    while !masks.0.is_empty() {
        let start = end + i64::try_from(masks.varint()).expect("small");
        end = start + i64::try_from(masks.varint()).expect("small") + 1;
        content.masks.extend(start..end);
    }
    let (mut base_offset, mut at_ms) = (1000, 0);
    while !expiries.0.is_empty() {
        base_offset += i64::try_from(expiries.varint()).expect("small");
        let zigzag = i64::try_from(expiries.varint()).expect("small");
        at_ms += if zigzag % 2 == 0 { zigzag / 2 } else { -(zigzag + 1) / 2 };
        content.expiries.push((base_offset, at_ms));
    }
    assert_eq!(content.expiries.iter().map(|it| it.1).min(), Some(earliest_ms));
    assert_eq!(content, expected());
    let names: BTreeSet<_> = content.postings.keys().chain(content.facts.keys()).collect();
    assert_eq!(names.len() as u64, queues);
    let records = content.postings.values().flatten().map(|it| u64::from(it.records));
    assert_eq!(records.sum::<u64>(), elements);
    assert!(names.iter().all(|name| has(filter.0, seed, name)));
    let strangers = (0..1000).filter(|it| has(filter.0, seed, format!("other-{it}").as_bytes()));
    assert!(strangers.count() < 20, "about one in 256");
}

#[test]
fn a_statement_has_the_bytes_of_the_document() {
    let said = Said::Deleted(Deleted { withdrawn: vec![5, 6, 300], elements: vec![5, 6, 298] });
    let statement = Statement { queue: "alice".into(), principal: "User:bob".to_owned(), said };
    let batch = batch_of(1_700_000_000_000, &[statement]).freeze();
    let batch = BatchView::parse(&batch).expect("a batch");
    let header = batch.header();
    assert!(header.attributes.is_control() && !header.attributes.is_transactional());
    assert_eq!((header.producer_id, header.record_count), (-1, 1));
    let records = Records::of(&batch, 1000).expect("records");
    let record = records.iter().next().expect("one").expect("a record");
    assert_eq!(record.key, Some(&[0, 0, 0x44, 0x55][..]));
    let mut value = Bytes(record.value.expect("it has one"));
    assert_eq!((value.varint(), value.number(1)), (1, 1), "one statement, of kind 1");
    for part in [&b"alice"[..], b"User:bob"] {
        let length = value.varint();
        assert_eq!(value.take(length), part);
    }
    assert_eq!(value.varint(), value.0.len() as u64);
    let numbers: Vec<_> =
        std::iter::from_fn(|| (!value.0.is_empty()).then(|| value.varint())).collect();
    assert_eq!(numbers, [3, 5, 1, 294, 0, 0, 2], "their number, and the distances");
}

#[test]
fn facts_of_each_kind_have_the_bytes_of_the_document() {
    let replaced = Replaced { term: 7, entry: 98, offset: 100, withdrawn: 300 };
    let cut = Said::Cut { after: 100, reason: "why".to_owned(), withdrawn: vec![5, 300] };
    let text = [101, 3, u64::from(b'w'), u64::from(b'h'), u64::from(b'y')];
    let wanted: [(Said, u8, Vec<u64>); 2] = [
        (Said::Replaced(replaced), 5, vec![7, 99, 100, 200]),
        (cut, 2, [&text[..], &[2, 5, 295]].concat()),
    ];
    for (said, kind, wanted) in wanted {
        assert_eq!(said.kind(), kind);
        let body = said.body();
        let mut rest = Bytes(&body);
        let numbers = std::iter::from_fn(|| (!rest.0.is_empty()).then(|| rest.varint()));
        assert_eq!(numbers.collect::<Vec<_>>(), wanted);
        let statement = Statement { queue: "alice".into(), principal: String::new(), said };
        let batch = batch_of(0, std::slice::from_ref(&statement)).freeze();
        let batch = BatchView::parse(&batch).expect("a batch");
        let records = Records::of(&batch, 1000).expect("records");
        let record = records.iter().next().expect("one").expect("a record");
        assert_eq!(record.value, Some(&statement.header()[..]), "the header has the same bytes");
    }
    let names = [FACT_HEADER, REPLACES_HEADER, CUTS_AFTER_HEADER];
    assert_eq!(names, ["duramen-fact", "duramen-replaces", "duramen-cuts-after"]);
}

#[test]
fn a_kept_table_opens_with_everything_in_it() {
    let disk = FsDisk::new(&directory());
    let table = Table::open(&disk, DIR, NAME).expect("it is good");
    assert_eq!(*table.header(), header(1000, 3000));
    let view_masks = table.masks().clone();
    let (tables, memtable) = ([table], Memtable::new(3000));
    let view = View::new(&tables, &memtable);
    let Content { postings, facts, masks, .. } = expected();
    assert!((0..3000).all(|it| view_masks.hides(it) == masks.contains(&it)));
    for (name, postings) in &postings {
        assert_eq!(view.postings(name, 0, usize::MAX).expect("it is good"), *postings);
    }
    for (name, facts) in &facts {
        assert!(view.facts(name).expect("it is good").iter().rev().eq(facts));
    }
    assert_eq!(view.postings(b"without records", 0, 9).expect("it is good"), []);
    let names: BTreeSet<_> = postings.keys().chain(facts.keys()).collect();
    let listed = view.names(b"", None, (usize::MAX, Left::default())).expect("it is good");
    assert!(listed.iter().map(|it| &it.name[..]).eq(names.iter().map(|it| &it[..])));
}
