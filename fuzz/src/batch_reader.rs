//! Any bytes as record batches: walk, check, read, decompress, restamp.

use bytes::{Bytes, BytesMut};
use duramen_protocol::batch::{
    BatchView, CHECKSUMMED_FROM, HEADER_BYTES, TimestampType, batches, restamp_log_append_time,
};
use duramen_protocol::compression::{Codec, decompress};
use duramen_protocol::records::{
    Limits, Records, find_max_timestamp, find_timestamp, sole_batch, validate,
};

const LIMIT: usize = 1 << 20;

/// Reads, checks and restamps record batches. Panics on a find.
pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = sole_batch(Some(&bytes), 9);
    for batch in batches(bytes).flatten() {
        read(&batch);
        let mut mended = BytesMut::from(&batch.bytes()[..]);
        let crc = crc32c::crc32c(&mended[CHECKSUMMED_FROM..]);
        mended[17..21].copy_from_slice(&crc.to_be_bytes());
        let mut restamped = mended.clone();
        check(&BatchView::parse(&mended.freeze()).expect("only its checksum changed"));
        restamp_log_append_time(&mut restamped, 1 << 40);
        let restamped = BatchView::parse(&restamped.freeze()).expect("only its times changed");
        assert!(restamped.crc_matches());
    }
    let payload = data.get(HEADER_BYTES..).unwrap_or(data);
    let mut out = Vec::new();
    for codec in Codec::ALL {
        if decompress(codec, payload, LIMIT, &mut out).is_ok() {
            assert!(out.len() <= LIMIT);
        }
    }
}

fn check(batch: &BatchView) {
    let limits = Limits {
        batch_bytes_max: LIMIT,
        decompressed_bytes_max: LIMIT,
        keys_required: false,
        partition: 0,
    };
    let Ok(summary) = validate(batch, &limits) else { return };
    let records = Records::of(batch, LIMIT).expect("valid batches are readable");
    let read: Vec<_> = records.iter().map(|record| record.expect("valid")).collect();
    assert_eq!(i32::try_from(read.len()), Ok(summary.count));
    let latest = find_max_timestamp(batch, LIMIT).expect("valid").expect("not empty");
    // Records have times of their own beside the broker's; a producer's batch that claims to have the broker's is given
    // them when it is appended.
    let expected = match batch.header().attributes.timestamp_type() {
        TimestampType::CreateTime => summary.max_timestamp,
        TimestampType::LogAppendTime => batch.header().max_timestamp,
    };
    assert_eq!(latest.timestamp, expected);
    let found = find_timestamp(batch, latest.timestamp, 0, LIMIT).expect("valid");
    assert_eq!(found, Some(latest));
}

fn read(batch: &BatchView) {
    let Ok(records) = Records::of(batch, LIMIT) else { return };
    for record in records.iter().flatten() {
        let headers = record.headers.into_iter().count();
        assert_eq!(headers, record.headers.len());
        let _ = (records.offset(&record), records.timestamp(&record));
    }
}
