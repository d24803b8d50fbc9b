//! Produce requests made in place: headers around records that were encoded once.

use std::cell::Cell;

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use duramen_protocol::batch::{
    Attributes, BatchHeader, CHECKSUMMED_FROM, HEADER_BYTES, LENGTH_OVERHEAD,
};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::fetch::{FetchPartition, FetchTopic};
use duramen_protocol::messages::{FetchRequest, ProduceResponse};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::wire::{Decoder, Encoder, Message};
use duramen_protocol::{ApiKey, RequestHeader, encode_request_of};
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Oldest flexible version of Produce, with topic names; every broker since 2.8 speaks it.
const PRODUCE_VERSION: i16 = 9;
const CLIENT_ID: &str = "duramen-bench";
const CORRELATION_AT: usize = 8;
/// Granularity of timestamps in milliseconds, so that a batch keeps its checksum for a while.
const TICK_MS: i64 = 100;
/// Most bytes of a response; one for 5,000 partitions is far shorter.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Records of one size, encoded once. The first `n` of them are the records of a batch, for any `n`.
pub(super) struct Records {
    encoded: Vec<u8>,
    /// End of the first `n` records, in bytes.
    ends: Vec<usize>,
    /// Last timestamp and its checksum, for batches of the first `n` records.
    sums: Vec<Cell<(i64, u32)>>,
}

impl Records {
    /// Makes `count` records with values of `size` bytes that do not compress.
    pub(super) fn new(count: usize, size: usize) -> anyhow::Result<Self> {
        let mut builder = BatchBuilder::new();
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        let mut value = vec![0; size];
        let mut ends = vec![0];
        for _ in 0..count {
            value.fill_with(|| noise.next());
            builder.push(&NewRecord { value: Some(&value), ..NewRecord::default() })?;
            ends.push(builder.plain_bytes() - HEADER_BYTES);
        }
        let encoded = builder.build()?.slice(HEADER_BYTES..).to_vec();
        let sums = ends.iter().map(|_| Cell::new((-1, 0))).collect();
        Ok(Self { encoded, ends, sums })
    }

    /// Bytes of a batch of the first `count` records.
    pub(super) fn batch_bytes(&self, count: usize) -> usize {
        HEADER_BYTES + self.ends[count]
    }

    /// Makes a batch of the first `count` records.
    pub(super) fn batch(&self, count: usize) -> BytesMut {
        let mut out = Vec::with_capacity(self.batch_bytes(count));
        let now_ms = Timestamp::now().as_millisecond();
        self.put_batch(&mut out, count, now_ms - now_ms % TICK_MS);
        BytesMut::from(Bytes::from(out))
    }

    /// Appends a batch of the first `count` records to `out`.
    fn put_batch(&self, out: &mut Vec<u8>, count: usize, timestamp: i64) {
        let records = &self.encoded[..self.ends[count]];
        let at = out.len();
        let signed = |number: usize| i32::try_from(number).expect("a batch is shorter than 2 GiB");
        let header = BatchHeader {
            base_offset: 0,
            batch_length: signed(HEADER_BYTES + records.len() - LENGTH_OVERHEAD),
            partition_leader_epoch: -1,
            crc: 0,
            attributes: Attributes::default(),
            last_offset_delta: signed(count) - 1,
            base_timestamp: timestamp,
            max_timestamp: timestamp,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: signed(count),
        };
        let header = header.to_bytes();
        let (known_at, known) = self.sums[count].get();
        let sum = if known_at == timestamp {
            known
        } else {
            crc32c::crc32c_append(crc32c::crc32c(&header[CHECKSUMMED_FROM..]), records)
        };
        self.sums[count].set((timestamp, sum));
        out.extend_from_slice(&header);
        out[at + 17..at + 21].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(records);
    }
}

/// Writes Produce requests to one topic.
pub(super) struct Requests {
    head: Vec<u8>,
    correlation: i32,
    timestamp: i64,
}

impl Requests {
    /// Makes requests to `topic` with these acks.
    pub(super) fn new(topic: &str, acks: i16) -> anyhow::Result<Self> {
        let mut head = vec![0; 4];
        head.extend_from_slice(&0i16.to_be_bytes());
        head.extend_from_slice(&PRODUCE_VERSION.to_be_bytes());
        head.extend_from_slice(&[0; 4]);
        head.extend_from_slice(&i16::try_from(CLIENT_ID.len())?.to_be_bytes());
        head.extend_from_slice(CLIENT_ID.as_bytes());
        // No tags in the header; no transactional id.
        head.extend_from_slice(&[0, 0]);
        head.extend_from_slice(&acks.to_be_bytes());
        head.extend_from_slice(&30_000i32.to_be_bytes());
        put_varint(&mut head, 2);
        put_varint(&mut head, u32::try_from(topic.len())? + 1);
        head.extend_from_slice(topic.as_bytes());
        Ok(Self { head, correlation: 0, timestamp: 0 })
    }

    /// Replaces `out` by a request with batches for `parts`: pairs of a partition and a number of records.
    pub(super) fn put(&mut self, out: &mut Vec<u8>, records: &Records, parts: &[(i32, usize)]) {
        self.begin(out, parts.len());
        self.timestamp = (now_ms() / TICK_MS * TICK_MS).max(self.timestamp);
        for (partition, count) in parts {
            out.extend_from_slice(&partition.to_be_bytes());
            put_varint(out, short(records.batch_bytes(*count)) + 1);
            records.put_batch(out, *count, self.timestamp);
            out.push(0);
        }
        end(out);
    }

    /// Replaces `out` by a request with these batches of partitions.
    pub(super) fn put_batches(&mut self, out: &mut Vec<u8>, batches: &[(i32, Bytes)]) {
        self.begin(out, batches.len());
        for (partition, batch) in batches {
            out.extend_from_slice(&partition.to_be_bytes());
            put_varint(out, short(batch.len()) + 1);
            out.extend_from_slice(batch);
            out.push(0);
        }
        end(out);
    }

    fn begin(&mut self, out: &mut Vec<u8>, parts: usize) {
        out.clear();
        out.extend_from_slice(&self.head);
        self.correlation = self.correlation.wrapping_add(1);
        out[CORRELATION_AT..CORRELATION_AT + 4].copy_from_slice(&self.correlation.to_be_bytes());
        put_varint(out, short(parts) + 1);
    }
}

fn end(out: &mut Vec<u8>) {
    // No tags in the topic, none in the request.
    out.extend_from_slice(&[0, 0]);
    let length = short(out.len() - 4);
    out[..4].copy_from_slice(&length.to_be_bytes());
}

fn short(number: usize) -> u32 {
    u32::try_from(number).expect("a request is shorter than 2 GiB")
}

/// Newest version of Fetch with topic names; every broker since 2.7 speaks it.
pub(super) const FETCH_VERSION: i16 = 12;

/// Makes the frame of a request for records of one partition, in one response of at most so many bytes.
pub(super) fn fetch(
    topic: &str,
    (partition, fetch_offset): (i32, i64),
    max_wait_ms: i32,
    max_bytes: i32,
) -> anyhow::Result<BytesMut> {
    let partition = FetchPartition {
        partition,
        fetch_offset,
        partition_max_bytes: max_bytes,
        ..FetchPartition::default()
    };
    let topic = FetchTopic {
        topic: topic.to_owned(),
        partitions: vec![partition],
        ..FetchTopic::default()
    };
    let request = FetchRequest {
        max_wait_ms,
        min_bytes: 1,
        max_bytes,
        session_epoch: -1,
        topics: vec![topic],
        ..FetchRequest::default()
    };
    let header = RequestHeader {
        api_key: ApiKey::Fetch.code(),
        api_version: FETCH_VERSION,
        correlation_id: 0,
        client_id: Some(CLIENT_ID.into()),
    };
    Ok(encode_request_of(&header, ApiKey::Fetch, &request)?.bytes)
}

/// Batch that the broker refused with a retriable error. The benchmark loses its records.
pub(super) struct Refused {
    pub(super) partition: i32,
    pub(super) why: String,
}

/// Sends a request.
pub(super) async fn send(
    socket: &mut (impl AsyncWrite + Unpin),
    frame: &[u8],
) -> anyhow::Result<()> {
    // A stream with TLS keeps bytes back until it is flushed.
    let sent = async {
        socket.write_all(frame).await?;
        socket.flush().await
    };
    sent.await.context("the broker closed the connection")
}

/// Reads one response without decoding it.
pub(super) async fn read_answer(
    socket: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
) -> anyhow::Result<Bytes> {
    let length = loop {
        if let Some(prefix) = input.first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*prefix))?;
            if length > ANSWER_BYTES_MAX {
                bail!("the broker answered with {length} bytes; is it a Kafka listener?");
            }
            if input.len() >= 4 + length {
                break length;
            }
        }
        if socket.read_buf(input).await.context("the broker closed the connection")? == 0 {
            bail!("the broker closed the connection");
        }
    };
    input.advance(4);
    Ok(input.split_to(length).freeze())
}

/// Reads the response to one Produce. Fails if the broker refused a batch for good, and returns the batches that it
/// refused with a retriable error.
pub(super) async fn answer(
    socket: &mut (impl AsyncRead + Unpin),
    input: &mut BytesMut,
) -> anyhow::Result<Vec<Refused>> {
    let mut d = Decoder::new(read_answer(socket, input).await?);
    d.i32()?;
    d.skip_tagged_fields()?;
    let response = ProduceResponse::decode(&mut d, PRODUCE_VERSION)?;
    let mut refused = Vec::new();
    for part in response.responses.iter().flat_map(|topic| &topic.partition_responses) {
        let code = ErrorCode::from_code(part.error_code);
        if code == Some(ErrorCode::None) {
            continue;
        }
        let name = code.map_or("an unknown error", ErrorCode::name);
        let words = part.error_message.as_deref().unwrap_or("no reason given");
        let why = format!("partition {}: {name} ({words})", part.index);
        if !code.is_some_and(ErrorCode::is_retriable) {
            bail!("the broker refused a batch for {why}");
        }
        refused.push(Refused { partition: part.index, why });
    }
    Ok(refused)
}

fn put_varint(out: &mut Vec<u8>, value: u32) {
    let mut e = Encoder::new();
    e.unsigned_varint(value);
    out.extend_from_slice(&e.into_bytes());
}

pub(super) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// xorshift generator of bytes that no codec shortens.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_be_bytes()[3]
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::ProduceRequest;
    use duramen_protocol::records;

    use super::*;

    #[test]
    fn requests_made_in_place_are_what_the_codec_reads() {
        let made = Records::new(40, 500).expect("records");
        let mut requests = Requests::new("some-topic", -1).expect("head");
        let mut frame = Vec::new();
        // The second time, with checksums that are known.
        for _ in 0..2 {
            requests.put(&mut frame, &made, &[(3, 1), (7, 40), (9, 2)]);
        }
        let length = u32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
        assert_eq!(length as usize, frame.len() - 4);
        let head = 4 + 2 + 2 + 4 + 2 + CLIENT_ID.len() + 1;
        let mut d = Decoder::new(Bytes::copy_from_slice(&frame[head..]));
        let request = ProduceRequest::decode(&mut d, PRODUCE_VERSION).expect("well formed");
        d.finish().expect("nothing left");
        assert_eq!(request.topic_data[0].name, "some-topic");
        let parts = &request.topic_data[0].partition_data;
        assert_eq!(parts.len(), 3);
        for (part, (index, count)) in parts.iter().zip([(3, 1), (7, 40), (9, 2)]) {
            let batch = records::sole_batch(part.records.as_ref(), PRODUCE_VERSION).expect("one");
            assert!(batch.crc_matches());
            assert_eq!((part.index, batch.header().record_count), (index, count));
            let walked = records::Records::of(&batch, 1 << 20).expect("plain");
            assert!(
                walked.iter().all(|record| record.expect("valid").value.expect("set").len() == 500)
            );
        }
    }
}
