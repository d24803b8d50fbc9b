//! The one request that both ends know: a Produce of version 12 with one batch for one partition.

use std::ops::Range;

use anyhow::{Context, ensure};
use bytes::Bytes;
use duramen_protocol::BatchHeader;
use duramen_protocol::batch::CHECKSUMMED_FROM;
use duramen_protocol::messages::ProduceRequest;
use duramen_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use duramen_protocol::records::{BatchBuilder, NewRecord};
use duramen_protocol::{Request, RequestHeader, encode_request};

pub(crate) const VERSION: i16 = 12;
/// Bytes of the length in front of a frame.
pub(crate) const PREFIX: usize = 4;
/// Place of the correlation id in a request, behind the prefix.
pub(crate) const CORRELATION: Range<usize> = 4..8;
/// Place of the base offset in a batch.
pub(crate) const BASE_OFFSET: Range<usize> = 0..8;
/// Most bytes of a topic's name: its length, plus one, is a byte in the answer.
const NAME_BYTES_MAX: usize = 126;

pub(crate) fn int32(bytes: &[u8], at: Range<usize>) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at)?.try_into().ok()?))
}

/// Makes a request of so many records, with its prefix. Returns the place of the partition's number, too.
pub(crate) fn produce(topic: &str, records: usize, size: usize) -> anyhow::Result<(Bytes, usize)> {
    let value = vec![b'v'; size];
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        let record = NewRecord { value: Some(&value), ..NewRecord::default() };
        builder.push(&record)?;
    }
    let batch = builder.build()?;
    let partition_data = [PartitionProduceData { index: 0, records: Some(batch) }].into();
    let name = topic.into();
    let topic_data = [TopicProduceData { name, partition_data, ..Default::default() }].into();
    let request: Request =
        ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data, ..Default::default() }.into();
    let header = RequestHeader {
        api_key: request.api_key().code(),
        api_version: VERSION,
        correlation_id: 0,
        client_id: Some("bare".into()),
    };
    let frame = encode_request(&header, &request)?.bytes.freeze();
    let name_at = frame.windows(topic.len()).position(|it| it == topic.as_bytes());
    // The number of partitions, plus one, stands between the name and the first partition.
    Ok((frame, name_at.context("the topic's name is not in its request")? + topic.len() + 1))
}

/// Parts of a request, as places in its frame.
pub(crate) struct Produce {
    pub(crate) correlation_id: i32,
    pub(crate) name: Range<usize>,
    pub(crate) partition: i32,
    pub(crate) batch: Range<usize>,
    /// Number of offsets that the batch takes.
    pub(crate) count: i64,
}

impl Produce {
    /// Finds the parts, and compares the checksum.
    pub(crate) fn parse(frame: &[u8]) -> anyhow::Result<Self> {
        let short = || "the request ends too early";
        ensure!(frame.get(..4) == Some(&[0, 0, 0, 12]), "this is no Produce of version {VERSION}");
        let correlation_id = int32(frame, CORRELATION).with_context(short)?;
        let client_id = frame.get(8..10).with_context(short)?;
        let client_id = i16::from_be_bytes([client_id[0], client_id[1]]).max(0);
        // Its tags follow, the transactional id, which is null, acks and the timeout.
        let mut at = 10 + usize::try_from(client_id)? + 1 + 1 + 2 + 4;
        ensure!(varint(frame, &mut at)? == 2, "one topic is served at a time");
        let len = varint(frame, &mut at)? - 1;
        ensure!(len <= NAME_BYTES_MAX, "a topic's name has at most {NAME_BYTES_MAX} bytes here");
        let name = at..at + len;
        at += len;
        ensure!(varint(frame, &mut at)? == 2, "one partition is served at a time");
        let partition = int32(frame, at..at + 4).with_context(short)?;
        at += 4;
        let len = varint(frame, &mut at)? - 1;
        let batch = at..at + len;
        let bytes = frame.get(batch.clone()).with_context(short)?;
        let header = BatchHeader::parse(bytes)?;
        ensure!(header.crc == crc32c::crc32c(&bytes[CHECKSUMMED_FROM..]), "the batch is damaged");
        let count = i64::from(header.last_offset_delta) + 1;
        Ok(Self { correlation_id, name, partition, batch, count })
    }
}

/// Reads an unsigned number of at most 32 bits, in groups of seven.
fn varint(frame: &[u8], at: &mut usize) -> anyhow::Result<usize> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = usize::from(*frame.get(*at).context("the request ends too early")?);
        *at += 1;
        value |= (byte & 0x7f) << shift;
        if byte < 0x80 {
            ensure!(value > 0, "a part is missing");
            return Ok(value);
        }
    }
    anyhow::bail!("a length has more than 32 bits")
}

/// Writes an answer without an error, with its prefix.
pub(crate) fn answer(
    out: &mut Vec<u8>,
    correlation_id: i32,
    (name, partition): (&[u8], i32),
    base_offset: i64,
) {
    out.clear();
    out.extend([0; PREFIX]);
    out.extend(correlation_id.to_be_bytes());
    // No tags; one topic.
    out.extend([0, 2]);
    out.push(u8::try_from(name.len() + 1).expect("a name is as short as its request's was"));
    out.extend_from_slice(name);
    out.push(2);
    out.extend(partition.to_be_bytes());
    out.extend([0; 2]);
    out.extend(base_offset.to_be_bytes());
    // The time of append and the log's start.
    out.extend((-1_i64).to_be_bytes());
    out.extend([0; 8]);
    // No errors of records, no message, no tags twice; no throttling, no tags.
    out.extend([1, 0, 0, 0]);
    out.extend([0; 5]);
    let len = u32::try_from(out.len() - PREFIX).expect("an answer is short");
    out[..PREFIX].copy_from_slice(&len.to_be_bytes());
}

/// Returns the error code of the only partition of an answer, behind its prefix.
pub(crate) fn error_of(answer: &[u8]) -> anyhow::Result<i16> {
    // The correlation id, and tags.
    let mut at = 4 + 1;
    ensure!(varint(answer, &mut at)? == 2, "one topic is asked for at a time");
    at += varint(answer, &mut at)? - 1;
    ensure!(varint(answer, &mut at)? == 2, "one partition is asked for at a time");
    let code = answer.get(at + 4..at + 6).context("the answer ends too early")?;
    Ok(i16::from_be_bytes([code[0], code[1]]))
}

#[cfg(test)]
mod tests {
    use duramen_protocol::{ApiKey, Response, decode_response};

    use super::*;

    #[test]
    fn a_request_has_the_parts_that_were_put_in() {
        let (frame, partition_at) = produce("topic", 3, 100).unwrap();
        assert_eq!(int32(&frame, partition_at..partition_at + 4), Some(0));
        let parts = Produce::parse(&frame[PREFIX..]).unwrap();
        assert_eq!((parts.correlation_id, parts.partition, parts.count), (0, 0, 3));
        assert_eq!(&frame[PREFIX..][parts.name], b"topic");
        let mut harmed = frame.to_vec();
        *harmed.iter_mut().rev().nth(20).unwrap() ^= 1;
        assert!(Produce::parse(&harmed[PREFIX..]).is_err());
        for len in 0..frame.len() - PREFIX - 3 {
            assert!(Produce::parse(&frame[PREFIX..][..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn an_answer_is_one_of_kafka() {
        let mut out = Vec::new();
        answer(&mut out, 7, (b"topic", 3), 42);
        assert_eq!(error_of(&out[PREFIX..]).unwrap(), 0);
        let frame = Bytes::from(out).slice(PREFIX..);
        let (id, response) = decode_response(frame, ApiKey::Produce, VERSION).unwrap();
        let Response::Produce(response) = response else { panic!("{response:?}") };
        let part = &response.responses[0].partition_responses[0];
        assert_eq!((id, part.index, part.error_code, part.base_offset), (7, 3, 0, 42));
    }
}
