//! Records against an independent codec, against batches of the Java client, and against the rules for producers.

use bytes::{Bytes, BytesMut};
use kafka_protocol::indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records as oracle;
use proptest::prelude::*;

use super::golden;
use super::{
    BatchBuilder, Found, Limits, NewRecord, RecordError, Records, Retained, find_max_timestamp,
    find_timestamp, recompress, retain, sole_batch, summarize, validate,
};
use crate::batch::{
    BatchHeader, BatchView, CHECKSUMMED_FROM, HEADER_BYTES, batches, restamp_log_append_time,
};
use crate::compression::{self, Codec};
use crate::error_code::ErrorCode;

const LIMIT: usize = 1 << 20;
const LIMITS: Limits = Limits {
    batch_bytes_max: LIMIT,
    decompressed_bytes_max: LIMIT,
    keys_required: false,
    partition: 0,
};

/// An owned record, to compare what different readers saw.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owned {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

fn owned() -> impl Strategy<Value = Owned> {
    let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..200));
    let headers = prop::collection::btree_map("[a-z]{1,8}", bytes(), 0..4);
    (0i64..1 << 42, bytes(), bytes(), headers).prop_map(|(timestamp, key, value, headers)| Owned {
        timestamp,
        key,
        value,
        headers: headers.into_iter().collect(),
    })
}

fn some_owned() -> impl Strategy<Value = Vec<Owned>> {
    prop::collection::vec(owned(), 1..30)
}

fn build(codec: Codec, records: &[Owned]) -> Bytes {
    let mut builder = BatchBuilder::new().codec(codec).producer(4001, 3, 17);
    for record in records {
        let headers: Vec<_> =
            record.headers.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
        let record = NewRecord {
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
        };
        builder.push(&record).expect("small");
    }
    let built = builder.build().expect("small");
    assert_eq!(builder.finish().expect("small"), built, "in its own memory it is the same");
    built
}

fn read(batch: &BatchView) -> Vec<Owned> {
    let records = Records::of(batch, LIMIT).expect("readable");
    let own = |bytes: &[u8]| bytes.to_vec();
    let read = records.iter().map(|record| {
        let record = record.expect("well-formed");
        let header = |h: super::Header<'_>| {
            (String::from_utf8(own(h.key)).expect("UTF-8"), h.value.map(own))
        };
        Owned {
            timestamp: records.timestamp(&record),
            key: record.key.map(own),
            value: record.value.map(own),
            headers: record.headers.into_iter().map(header).collect(),
        }
    });
    read.collect()
}

/// Codecs that the oracle is built with. Its zstd would switch on more of that C library in everything that is built
/// beside these tests. The Java client's batches below and the clients in `compat/` stand in for it.
const ORACLE_CODECS: [(Codec, oracle::Compression); 4] = [
    (Codec::None, oracle::Compression::None),
    (Codec::Gzip, oracle::Compression::Gzip),
    (Codec::Snappy, oracle::Compression::Snappy),
    (Codec::Lz4, oracle::Compression::Lz4),
];

fn to_oracle(record: &Owned, index: i32) -> oracle::Record {
    let headers = record
        .headers
        .iter()
        .map(|(key, value)| (StrBytes::from_string(key.clone()), value.clone().map(Bytes::from)));
    oracle::Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: 4001,
        producer_epoch: 3,
        timestamp_type: oracle::TimestampType::Creation,
        offset: i64::from(index),
        sequence: 17 + index,
        timestamp: record.timestamp,
        key: record.key.clone().map(Bytes::from),
        value: record.value.clone().map(Bytes::from),
        headers: headers.collect::<IndexMap<_, _>>(),
    }
}

fn parse(bytes: &Bytes) -> BatchView {
    BatchView::parse(bytes).expect("a whole batch")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_built_is_valid_and_reads_back(records in some_owned()) {
        for codec in Codec::ALL {
            let batch = parse(&build(codec, &records));
            let summary = validate(&batch, &LIMITS).expect("what we build is valid");
            let again = summarize(&batch, &LIMITS);
            prop_assert_eq!(again.as_ref(), Ok(&summary));
            prop_assert_eq!(usize::try_from(summary.count), Ok(records.len()));
            let keyless = (0..).zip(&records).filter(|(_, record)| record.key.is_none());
            let keyless: Vec<i32> = keyless.map(|(place, _)| place).take(8).collect();
            prop_assert_eq!(summary.keyless.as_slice(), keyless);
            let times = records.iter().map(|record| record.timestamp).filter(|it| *it != -1);
            prop_assert_eq!(summary.min_timestamp, times.clone().min().unwrap_or(i64::MAX));
            let earliest = usize::try_from(summary.min_timestamp_delta).expect("a place");
            let named = Some(records[earliest].timestamp);
            prop_assert!(times.clone().next().is_none() || times.min() == named);
            let latest = records.iter().map(|r| r.timestamp).max().expect("not empty");
            prop_assert_eq!(summary.max_timestamp, latest);
            prop_assert_eq!(batch.header().max_timestamp, latest);
            prop_assert_eq!(read(&batch), records.clone());
            let walked = Records::of(&batch, LIMIT).expect("readable");
            let keys: Vec<_> = walked.keys().map(|key| key.expect("well-formed")).collect();
            let keyed = |it: &Owned| (it.key.clone(), !it.headers.is_empty());
            let wanted: Vec<_> = records.iter().map(keyed).collect();
            let found = keys.iter().map(|it| (it.key.map(Into::into), it.has_headers));
            prop_assert_eq!(found.collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn an_independent_reader_sees_the_records_we_wrote(records in some_owned()) {
        for (codec, _) in ORACLE_CODECS {
            let mut bytes = build(codec, &records);
            let sets = oracle::RecordBatchDecoder::decode_all(&mut bytes).expect("readable");
            let theirs: Vec<_> = sets.into_iter().flat_map(|set| set.records).collect();
            let ours: Vec<_> = (0..).zip(&records).map(|(i, r)| to_oracle(r, i)).collect();
            prop_assert_eq!(&theirs, &ours);
        }
    }

    #[test]
    fn we_see_and_accept_the_records_an_independent_writer_wrote(records in some_owned()) {
        let theirs: Vec<_> = (0..).zip(&records).map(|(i, r)| to_oracle(r, i)).collect();
        for (_, compression) in ORACLE_CODECS {
            let options = oracle::RecordEncodeOptions { version: 2, compression };
            let mut bytes = BytesMut::new();
            oracle::RecordBatchEncoder::encode(&mut bytes, &theirs, &options).expect("writable");
            let read: Vec<_> = batches(bytes.freeze())
                .flat_map(|batch| {
                    let batch = batch.expect("well-formed");
                    validate(&batch, &LIMITS).expect("valid");
                    read(&batch)
                })
                .collect();
            prop_assert_eq!(read, records.clone());
        }
    }

    #[test]
    fn no_bytes_make_reading_or_validation_panic(
        records in some_owned(),
        place in any::<prop::sample::Index>(),
        byte in 1u8..,
        mend in any::<bool>(),
    ) {
        for codec in Codec::ALL {
            let mut bytes = BytesMut::from(build(codec, &records));
            let place = place.index(bytes.len());
            bytes[place] ^= byte;
            if mend {
                // With the checksum made right again the mutation reaches the record reader.
                let crc = crc32c::crc32c(&bytes[CHECKSUMMED_FROM..]);
                bytes[17..21].copy_from_slice(&crc.to_be_bytes());
            }
            let Ok(batch) = BatchView::parse(&bytes.freeze()) else { continue };
            let verdict = validate(&batch, &LIMITS);
            if place >= CHECKSUMMED_FROM && !mend {
                prop_assert_eq!(verdict, Err(RecordError::Checksum));
            }
            let seen = Records::of(&batch, LIMIT)
                .map(|records| records.iter().count().max(records.keys().count()));
            prop_assert!(seen.unwrap_or(0) <= LIMIT);
        }
    }

    #[test]
    fn what_is_retained_keeps_its_place_time_and_bytes(
        records in some_owned(),
        kept in prop::collection::vec(any::<bool>(), 30),
        is_restamped in any::<bool>(),
    ) {
        for codec in Codec::ALL {
            let mut bytes = BytesMut::from(build(codec, &records));
            if is_restamped {
                restamp_log_append_time(&mut bytes, 77);
            }
            let batch = parse(&bytes.freeze());
            let seen = |batch: &BatchView| {
                let all = Records::of(batch, LIMIT).expect("readable");
                let offsets: Vec<i64> =
                    all.iter().map(|it| all.offset(&it.expect("well-formed"))).collect();
                offsets.into_iter().zip(read(batch)).collect::<Vec<_>>()
            };
            let is_kept = |offset: i64| kept[usize::try_from(offset).expect("small")];
            let expected: Vec<_> =
                seen(&batch).into_iter().filter(|(offset, _)| is_kept(*offset)).collect();
            match retain(&batch, LIMIT, |offset, _| is_kept(offset)).expect("readable") {
                Retained::All => prop_assert_eq!(expected.len(), records.len()),
                Retained::Nothing => prop_assert!(expected.is_empty()),
                Retained::Part(bytes) => {
                    let part = parse(&bytes);
                    prop_assert!(part.crc_matches() && part.bytes().len() == bytes.len());
                    prop_assert_eq!(seen(&part), expected.clone());
                    let (old, new) = (*batch.header(), *part.header());
                    let latest = expected.iter().map(|(_, record)| record.timestamp).max();
                    prop_assert_eq!(Some(new.max_timestamp), latest);
                    let same = crate::batch::BatchHeader {
                        batch_length: old.batch_length,
                        crc: old.crc,
                        max_timestamp: old.max_timestamp,
                        record_count: old.record_count,
                        ..new
                    };
                    prop_assert_eq!(same, old);
                    // Once more changes nothing.
                    let again = retain(&part, LIMIT, |offset, _| is_kept(offset));
                    prop_assert_eq!(again, Ok(Retained::All));
                }
            }
        }
    }

    #[test]
    fn a_batch_in_another_codec_keeps_its_records_and_all_else_of_its_header(
        records in some_owned(),
        is_transactional in any::<bool>(),
        is_restamped in any::<bool>(),
    ) {
        for (codec, other) in Codec::ALL.iter().flat_map(|it| Codec::ALL.map(|other| (*it, other))) {
            let mut bytes = BytesMut::from(build(codec, &records));
            if is_restamped {
                restamp_log_append_time(&mut bytes, 77);
            }
            if is_transactional {
                let mut header = BatchHeader::parse(&bytes).expect("a batch");
                header.attributes = header.attributes.with_transactional(true);
                bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
            }
            let batch = parse(&bytes.freeze());
            let mut plain = Vec::new();
            compression::decompress(codec, batch.payload(), LIMIT, &mut plain).expect("small");
            let anew = parse(&recompress(&batch, &plain, other.into()).expect("small"));
            prop_assert!(anew.crc_matches());
            prop_assert_eq!(anew.header().attributes.codec(), Ok(other));
            prop_assert_eq!(read(&anew), read(&batch));
            let (old, new) = (*batch.header(), *anew.header());
            let same = BatchHeader {
                batch_length: old.batch_length,
                crc: old.crc,
                attributes: new.attributes.with_codec(codec),
                ..new
            };
            prop_assert_eq!(same, old);
        }
    }

    #[test]
    fn timestamps_are_found_at_the_first_record_that_reaches_them(
        records in some_owned(),
        target in 0i64..1 << 42,
        offset_min in 0i64..30,
    ) {
        let batch = parse(&build(Codec::Lz4, &records));
        let expected = (0..).zip(&records)
            .find(|(offset, record)| *offset >= offset_min && record.timestamp >= target)
            .map(|(offset, record)| Found { offset, timestamp: record.timestamp });
        prop_assert_eq!(find_timestamp(&batch, target, offset_min, LIMIT), Ok(expected));
        let summary = validate(&batch, &LIMITS).expect("valid");
        let best = Found {
            offset: i64::from(summary.max_timestamp_delta),
            timestamp: summary.max_timestamp,
        };
        prop_assert_eq!(find_max_timestamp(&batch, LIMIT), Ok(Some(best)));
    }
}

fn unhex(hex: &str) -> Bytes {
    let digit = |c: char| u8::try_from(c.to_digit(16).expect("hexadecimal")).expect("small");
    let digits: Vec<u8> = hex.chars().map(digit).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<u8>>().into()
}

fn java_records() -> Vec<Owned> {
    let some = |text: &str| Some(text.as_bytes().to_vec());
    let headers = vec![(String::from("h"), some("v")), (String::from("null"), None)];
    let value = some("first first first first");
    vec![
        Owned { timestamp: 1000, key: some("k"), value, headers },
        Owned { timestamp: 1500, key: None, value: some("second"), headers: vec![] },
        Owned { timestamp: 1200, key: some("gone"), value: None, headers: vec![] },
    ]
}

#[test]
fn batches_of_the_java_client_are_valid_and_read_alike_in_every_codec() {
    for (codec, hex) in golden::JAVA_BATCHES {
        let batch = sole_batch(Some(&unhex(hex)), 7).expect("one batch");
        assert_eq!(batch.header().attributes.codec(), Ok(codec));
        let summary = validate(&batch, &LIMITS).expect("valid");
        assert_eq!((summary.count, summary.max_timestamp_delta), (3, 1));
        assert!(!summary.keyless.is_empty());
        assert_eq!(read(&batch), java_records(), "{codec:?}");
    }
}

#[test]
fn our_uncompressed_batch_equals_the_java_clients_byte_by_byte() {
    let (codec, hex) = golden::JAVA_BATCHES[0];
    assert_eq!(codec, Codec::None);
    assert_eq!(build(Codec::None, &java_records()), unhex(hex));
}

fn plain() -> BytesMut {
    BytesMut::from(build(Codec::None, &java_records()))
}

/// Writes `bytes` at `at`, mends the checksum, and says what a producer would be told.
fn verdict_with(at: usize, bytes: &[u8]) -> Result<(), ErrorCode> {
    let mut batch = plain();
    batch[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c::crc32c(&batch[CHECKSUMMED_FROM..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    let checked = sole_batch(Some(&batch.freeze()), 9).and_then(|b| validate(&b, &LIMITS));
    checked.map(|_| ()).map_err(|error| error.code())
}

/// A case: the fault, its position, its bytes, and the answer to the producer.
type Case = (&'static str, usize, &'static [u8], Result<(), ErrorCode>);

#[test]
fn each_rule_for_producers_has_the_error_kafka_gives() {
    let cases: [Case; 15] = [
        ("nothing changed", 0, &[0], Ok(())),
        ("base offset is not 0", 7, &[1], Err(ErrorCode::InvalidRecord)),
        ("length below the header's", 8, &[0, 0, 0, 20], Err(ErrorCode::CorruptMessage)),
        ("length beyond the bytes", 8, &[0, 0, 9, 0], Err(ErrorCode::InvalidRecord)),
        ("format 1", 16, &[1], Err(ErrorCode::InvalidRecord)),
        ("format 3", 16, &[3], Err(ErrorCode::CorruptMessage)),
        ("codec 7", 22, &[7], Err(ErrorCode::UnsupportedCompressionType)),
        ("gzip that is none", 22, &[1], Err(ErrorCode::CorruptMessage)),
        ("control bit", 22, &[32], Err(ErrorCode::InvalidRecord)),
        ("delete horizon", 22, &[64], Err(ErrorCode::InvalidRecord)),
        ("last offset delta too great", 23, &[0, 0, 0, 3], Err(ErrorCode::InvalidRecord)),
        ("negative sequence", 53, &[0xff], Err(ErrorCode::InvalidRecord)),
        ("count too small", 57, &[0, 0, 0, 2], Err(ErrorCode::InvalidRecord)),
        ("first record longer than it is", HEADER_BYTES, &[0xfe], Err(ErrorCode::InvalidRecord)),
        // The first record: length, attributes, timestamp delta, offset delta.
        ("offset delta not 0", HEADER_BYTES + 3, &[2], Err(ErrorCode::InvalidRecord)),
    ];
    for (what, at, bytes, expected) in cases {
        assert_eq!(verdict_with(at, bytes), expected, "{what}");
    }
}

#[test]
fn a_count_and_delta_that_agree_but_are_not_the_records_are_refused() {
    for count in [0u8, 2, 4] {
        let mut batch = plain();
        batch[23..27].copy_from_slice(&(i32::from(count) - 1).to_be_bytes());
        batch[57..61].copy_from_slice(&i32::from(count).to_be_bytes());
        let crc = crc32c::crc32c(&batch[CHECKSUMMED_FROM..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        let verdict = validate(&parse(&batch.freeze()), &LIMITS);
        assert!(matches!(verdict, Err(RecordError::Invalid(_))), "{count}: {verdict:?}");
    }
}

#[test]
fn a_produce_carries_exactly_one_whole_batch() {
    let one = plain().freeze();
    let code = |bytes: &[u8], version: i16| {
        let bytes = Bytes::copy_from_slice(bytes);
        sole_batch(Some(&bytes), version).map(|_| ()).map_err(|error| error.code())
    };
    assert_eq!(code(&one, 3), Ok(()));
    assert_eq!(sole_batch(None, 3), Err(RecordError::NoBatch));
    assert_eq!(code(b"", 3), Err(ErrorCode::InvalidRecord));
    assert_eq!(code(&[&one[..], &one[..]].concat(), 3), Err(ErrorCode::InvalidRecord));
    assert_eq!(code(&one[..one.len() - 1], 3), Err(ErrorCode::InvalidRecord));
    assert_eq!(code(&one[..10], 3), Err(ErrorCode::InvalidRecord));
    assert_eq!(code(&[&one[..], &[0; 5]].concat(), 3), Err(ErrorCode::InvalidRecord));
    let zstd = build(Codec::Zstd, &java_records());
    assert_eq!(code(&zstd, 6), Err(ErrorCode::UnsupportedCompressionType));
    assert_eq!(code(&zstd, 7), Ok(()));
}

#[test]
fn limits_of_the_topic_are_kept() {
    let batch = parse(&plain().freeze());
    let bytes = batch.bytes().len();
    let limits = |batch_bytes_max| Limits { batch_bytes_max, ..LIMITS };
    assert!(validate(&batch, &limits(bytes)).is_ok());
    let too_large = validate(&batch, &limits(bytes - 1)).expect_err("one byte too long");
    assert_eq!(too_large, RecordError::TooLarge { bytes, limit: bytes - 1 });
    assert_eq!(too_large.code(), ErrorCode::MessageTooLarge);
    let keyless = validate(&batch, &Limits { keys_required: true, ..LIMITS });
    assert_eq!(keyless, Err(RecordError::Keyless { index: 1 }));
    let squeezed = parse(&build(Codec::Zstd, &java_records()));
    let bomb = validate(&squeezed, &Limits { decompressed_bytes_max: 10, ..LIMITS });
    assert_eq!(bomb.expect_err("longer than ten bytes").code(), ErrorCode::MessageTooLarge);
}

#[test]
fn with_log_append_time_all_records_have_the_batchs_timestamp() {
    let mut bytes = plain();
    restamp_log_append_time(&mut bytes, 9_999);
    let batch = parse(&bytes.freeze());
    assert!(batch.crc_matches());
    assert!(read(&batch).iter().all(|record| record.timestamp == 9_999));
    let found = find_timestamp(&batch, 9_999, 0, LIMIT);
    assert_eq!(found, Ok(Some(Found { offset: 0, timestamp: 9_999 })));
    assert_eq!(find_timestamp(&batch, 10_000, 0, LIMIT), Ok(None));
}

#[test]
fn a_good_part_of_a_batch_shares_its_memory_and_a_small_one_does_not() {
    let large = [b'x'; 1000];
    let mut batch = BatchBuilder::new();
    for value in [&large[..], b"small"] {
        batch.push(&NewRecord { value: Some(value), ..NewRecord::default() }).expect("a record");
    }
    let bytes = batch.build().expect("a batch");
    let records = Records::of(&parse(&bytes), LIMIT).expect("readable");
    for (record, is_shared) in records.iter().zip([true, false]) {
        let value = record.expect("well-formed").value.expect("present");
        let kept = records.keep(value);
        assert_eq!(bytes.as_ptr_range().contains(&kept.as_ptr()), is_shared);
        assert_eq!(kept, value);
    }
}

#[test]
fn records_have_offsets_and_headers() {
    let bytes = plain().freeze();
    let records = Records::of(&parse(&bytes), LIMIT).expect("readable");
    let first = records.iter().next().expect("three").expect("well-formed");
    assert_eq!(records.offset(&first), 0);
    assert_eq!((first.headers.len(), first.headers.is_empty()), (2, false));
}

#[test]
fn control_records_are_never_put_into_another_codec() {
    let mut builder = BatchBuilder::new().control();
    builder.push(&NewRecord { timestamp: 1, ..NewRecord::default() }).expect("small");
    let batch = parse(&builder.build().expect("small"));
    let refused = recompress(&batch, batch.payload(), Codec::Zstd.into());
    assert_eq!(refused, Err(RecordError::Invalid("control records are not compressed")));
}
