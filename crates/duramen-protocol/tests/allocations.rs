//! What decoding allocates, counted by the allocator itself: bounded by the bytes received, and little on the paths
//! that every record batch takes.

#![expect(unsafe_code, reason = "counting needs a global allocator, and its trait is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::{BufMut, Bytes, BytesMut};
use duramen_protocol::api::{API_TABLE, OWN_TABLE};
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::records::{BatchBuilder, Limits, NewRecord, sole_batch, validate};
use duramen_protocol::wire::{ALLOCATION_FACTOR, Decoder};
use duramen_protocol::{ApiKey, Request, RequestHeader, Response, decode_request, encode_request};

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on unchanged; only counters of the calling thread are touched.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.with(|bytes| bytes.set(bytes.get() + layout.size()));
        CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes and calls that `work` allocates, freed or not.
fn allocated<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let (bytes, calls) = (BYTES.get(), CALLS.get());
    let value = work();
    (value, BYTES.get() - bytes, CALLS.get() - calls)
}

/// Lengths of arrays as frames of 4096 bytes could claim them, as i32 and as compact lengths.
const CLAIMS: [&[u8]; 6] = [
    &[0x7f, 0xff, 0xff, 0xff],
    &[0, 0, 0x0f, 0xc0],
    &[0, 0, 0x05, 0x20],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0xc0, 0x1f],
    &[0xa0, 0x0a],
];

/// Frames that claim much with few bytes: the same byte over and over, a claim at every place, small elements after it.
fn greedy_bodies() -> Vec<Bytes> {
    let mut bodies: Vec<Bytes> = Vec::new();
    for byte in [0u8, 1, 2, 3, 0x0f, 0x7f, 0x80, 0xff] {
        bodies.push(vec![byte; 4096].into());
    }
    // Elements that are empty or null, of up to four bytes, in both encodings.
    let elements: [&[u8]; 6] = [&[0], &[1], &[1, 0], &[1, 1, 0], &[1, 1, 1, 0], &[1, 0, 1, 0]];
    for at in 0..64 {
        for claim in CLAIMS {
            for element in elements {
                for filler in [0u8, 1] {
                    let mut body = vec![filler; at];
                    body.extend(claim);
                    body.extend(element.iter().cycle().take(4096 - body.len()));
                    bodies.push(body.into());
                }
            }
        }
    }
    bodies
}

#[test]
fn decoding_allocates_at_most_a_fixed_multiple_of_the_bytes_received() {
    let bodies = greedy_bodies();
    let mut worst = (0, String::new());
    for api in API_TABLE.iter().chain(OWN_TABLE) {
        for version in api.accepted.first..=api.accepted.last {
            for body in &bodies {
                let mut d = Decoder::new(body.clone());
                let (_, request, _) = allocated(|| Request::decode(&mut d, api.key, version));
                let mut d = Decoder::new(body.clone());
                let (_, response, _) = allocated(|| Response::decode(&mut d, api.key, version));
                let most = request.max(response);
                assert!(
                    most <= ALLOCATION_FACTOR * body.len(),
                    "{} v{version} allocated {most} for {} bytes starting {:?}",
                    api.name,
                    body.len(),
                    &body[..70],
                );
                if most > worst.0 {
                    worst = (most, format!("{} v{version}", api.name));
                }
            }
        }
    }
    // If nothing came near the bound, the bodies would not be greedy and the test would prove nothing.
    assert!(worst.0 > 32 * 4096, "{worst:?}");
    println!("worst: {} bytes for 4096 in {}", worst.0, worst.1);
}

fn batch() -> Bytes {
    let mut builder = BatchBuilder::new();
    for timestamp in 0..100 {
        let record =
            NewRecord { timestamp, key: Some(b"key"), value: Some(&[7; 100]), headers: &[] };
        builder.push(&record).expect("small");
    }
    builder.build().expect("small")
}

#[test]
fn a_produce_of_one_partition_costs_a_handful_of_allocations_and_no_copy() {
    let partition_data = [PartitionProduceData { index: 0, records: Some(batch()) }].into();
    let topic = TopicProduceData { name: "topic".into(), partition_data, ..Default::default() };
    let produce = ProduceRequest { acks: -1, topic_data: [topic].into(), ..Default::default() };
    let header = RequestHeader {
        api_key: ApiKey::Produce.code(),
        api_version: 9,
        correlation_id: 1,
        client_id: Some("client".into()),
    };
    let frame = encode_request(&header, &Request::Produce(produce)).expect("expressible");
    let mut body = BytesMut::with_capacity(frame.bytes.len());
    body.put_slice(&frame.bytes[4..]);
    let body = body.freeze();
    let (decoded, bytes, calls) = allocated(|| decode_request(body).expect("reads"));
    assert!(calls <= 5, "{calls} allocations for {decoded:?}");
    assert!(bytes < 1000, "{bytes} bytes, though the records alone are {}", batch().len());
}

#[test]
fn validating_an_uncompressed_batch_allocates_nothing() {
    let records = batch();
    // The first clone of a buffer makes its reference count; a frame's buffer has one already.
    let _shared = records.clone();
    let limits = Limits {
        batch_bytes_max: 1 << 20,
        decompressed_bytes_max: 1 << 20,
        keys_required: true,
        partition: 0,
    };
    let (summary, bytes, _) = allocated(|| {
        let batch = sole_batch(Some(&records), 9).expect("one batch");
        validate(&batch, &limits).expect("valid")
    });
    assert_eq!((summary.count, bytes), (100, 0));
}
