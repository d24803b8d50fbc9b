//! Messages that consumers exchange as bytes inside `JoinGroup` and `SyncGroup`: no API of their own.
//!
//! A version stands before each message. Newer versions only add fields at the end. So we read bytes of an unknown
//! version as the newest known version, and skip the rest.

use bytes::Bytes;

use crate::messages::declare::declare;
use crate::wire::{DecodeError, Decoder, EncodeError, Encoder, Message};

declare! {
    /// Subscription of one member; its metadata in `JoinGroup`.
    pub struct ConsumerProtocolSubscription: versions 0..=3, flexible none {
        topics: Vec<String> [0..],
        user_data: Option<Bytes> [0.., nullable 0..],
        owned_partitions: Vec<TopicPartition> [1.., ignorable],
        generation_id: i32 [2.., ignorable] = -1,
        rack_id: Option<String> [3.., nullable 3.., ignorable],
    }

    /// Some partitions of a topic.
    pub struct TopicPartition {
        topic: String [0..],
        partitions: Vec<i32> [0..],
    }
}

declare! {
    /// Partitions assigned to one member; its assignment in `SyncGroup`.
    pub struct ConsumerProtocolAssignment: versions 0..=3, flexible none {
        assigned_partitions: Vec<TopicPartition> [0..],
        user_data: Option<Bytes> [0.., nullable 0..],
    }
}

/// Writes a version and the message in it.
pub fn encode<M: Message>(message: &M, version: i16) -> Result<Bytes, EncodeError> {
    let mut e = Encoder::new();
    e.i16(version);
    message.encode(&mut e, version)?;
    Ok(e.into_bytes().freeze())
}

/// Reads a version and the message in it. No bytes at all are an empty message: brokers send them for members without
/// an assignment.
pub fn decode<M: Message>(bytes: Bytes) -> Result<M, DecodeError> {
    if bytes.is_empty() {
        return Ok(M::default());
    }
    let mut d = Decoder::new(bytes);
    let version = d.i16()?;
    M::decode(&mut d, version.min(M::VERSIONS.last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> ConsumerProtocolAssignment {
        let part = TopicPartition { topic: "t".into(), partitions: vec![0, 2] };
        ConsumerProtocolAssignment { assigned_partitions: vec![part], user_data: None }
    }

    #[test]
    fn the_version_stands_in_front() {
        let bytes = encode(&assignment(), 0).unwrap();
        let expected = b"\0\0\0\0\0\x01\0\x01t\0\0\0\x02\0\0\0\0\0\0\0\x02\xff\xff\xff\xff";
        assert_eq!(&bytes[..], expected);
        assert_eq!(decode::<ConsumerProtocolAssignment>(bytes).unwrap(), assignment());
    }

    #[test]
    fn a_version_that_is_not_known_is_read_as_far_as_it_is() {
        let mut bytes = encode(&assignment(), 3).unwrap().to_vec();
        bytes[..2].copy_from_slice(&9i16.to_be_bytes());
        bytes.extend_from_slice(b"a field of the future");
        assert_eq!(decode::<ConsumerProtocolAssignment>(bytes.into()).unwrap(), assignment());
        assert!(decode::<ConsumerProtocolAssignment>(Bytes::from_static(b"\xff\xff")).is_err());
    }

    #[test]
    fn no_bytes_are_no_partitions() {
        let nothing = decode::<ConsumerProtocolAssignment>(Bytes::new()).unwrap();
        assert!(nothing.assigned_partitions.is_empty());
    }
}
