//! # Room card: group records
//!
//! Purpose:    the records of the log of consumer groups (`__consumer_offsets`), one fact each, in Kafka's formats.
//! Owns:       the layouts of keys and values; which version is written.
//! Interface:  [`GroupRecord::encode`], [`GroupRecord::decode`].
//! Invariants: a record has the bytes that Apache Kafka 4.3 writes for the same fact; this code reads all versions that
//!             Kafka ever wrote. A key of another kind, an unknown version and bytes left over are errors. Only this
//!             coordinator writes the log, so every record in it must be readable.
//! Never:      the effects of records (see `coordinator`); batches.
//! Tests:      `records/tests.rs`, with bytes that an Apache Kafka wrote.
//! Start at:   [`GroupRecord`].

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError, Message, Uuid};

use crate::ledger::{Encoded, keyed, value_of, versioned, whole};

mod consumer;
mod share;
pub(crate) use consumer::{
    ClassicMember, ClassicProtocol, CurrentTopic, CurrentValue, EpochValue, Fact, FactValue,
    MemberValue, RegexValue, TargetEpochValue, TargetTopic, TargetValue,
};
pub(crate) use share::{
    DeletingTopic, ShareCurrentValue, ShareEpochValue, ShareFact, ShareMemberValue,
    ShareStatesValue, ShareValue, StateTopic,
};

duramen_protocol::message! {
    /// Group, topic and partition of a committed offset.
    #[derive(Eq)]
    pub(crate) struct OffsetCommitKey: versions 0..=1, flexible none {
        group: Arc<str> [0..],
        topic: Arc<str> [0..],
        partition: i32 [0..],
    }
    /// Committed offset. Only version 1 has a time of expiry; others follow the retention of their group.
    #[derive(Eq)]
    pub(crate) struct OffsetCommitValue: versions 0..=4, flexible 4.. {
        offset: i64 [0..],
        leader_epoch: i32 [3.., ignorable] = -1,
        metadata: Arc<str> [0..],
        commit_timestamp: i64 [0..],
        expire_timestamp: i64 [1..=1, ignorable] = NEVER,
        topic_id: Uuid [4.., tag 0 in 4.., ignorable],
    }
    /// Which group.
    #[derive(Eq)]
    pub(crate) struct GroupMetadataKey: versions 2..=2, flexible none {
        group: Arc<str> [2..],
    }
    /// A generation of a group of the classic protocol.
    #[derive(Eq)]
    pub(crate) struct GroupMetadataValue: versions 0..=4, flexible 4.. {
        protocol_type: String [0..],
        generation: i32 [0..],
        protocol: Option<String> [0.., nullable 0..],
        leader: Option<String> [0.., nullable 0..],
        current_state_timestamp: i64 [2.., ignorable] = NEVER,
        members: Vec<MemberMetadata> [0..],
    }
    /// Stands in [`GroupMetadataValue::members`].
    #[derive(Eq)]
    pub(crate) struct MemberMetadata {
        member_id: String [0..],
        group_instance_id: Option<String> [3.., nullable 3.., ignorable],
        client_id: String [0..],
        client_host: String [0..],
        rebalance_timeout: i32 [1.., ignorable] = -1,
        session_timeout: i32 [0..],
        subscription: Bytes [0..],
        assignment: Bytes [0..],
    }
}

/// Time that is unknown, or does not come.
pub(crate) const NEVER: i64 = -1;

/// The key's version, and thereby its kind.
const OFFSET_KEYS: std::ops::RangeInclusive<i16> = 0..=1;
const GROUP_KEY: i16 = 2;

/// One fact. Without a value: there is no such thing any more. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupRecord {
    /// A committed offset.
    Offset { key: OffsetCommitKey, value: Option<OffsetCommitValue> },
    /// A group and its members.
    Group { group: Arc<str>, value: Option<Arc<GroupMetadataValue>> },
    /// Fact about a group of the consumer protocol, or a share group.
    Consumer { group: Arc<str>, fact: Fact, value: Option<FactValue> },
}

/// Approximate size of a record beside its texts, in bytes: lengths, differences, versions.
const RECORD_BYTES: usize = 20;

/// The only version of the keys and values of facts.
const FACT_VERSION: i16 = 0;

duramen_protocol::message! {
    /// A group that has one fact of a kind.
    struct GroupKey: versions 0..=0, flexible none {
        group: Arc<str> [0..],
    }
    /// A group that has a fact of a kind for each member or regular expression.
    struct PartKey: versions 0..=0, flexible none {
        group: Arc<str> [0..],
        part: Arc<str> [0..],
    }
}

fn fact_key(group: &Arc<str>, fact: &Fact) -> Result<Bytes, EncodeError> {
    let (kind, group) = (fact.kind(), group.clone());
    match fact.part() {
        None => keyed(kind, &GroupKey { group }, FACT_VERSION),
        Some(part) => keyed(kind, &PartKey { group, part: part.clone() }, FACT_VERSION),
    }
}

fn shared<T: Message>(value: Option<Bytes>) -> Result<Option<Arc<T>>, DecodeError> {
    Ok(value_of(value)?.map(Arc::new))
}

impl GroupRecord {
    /// Encodes key and value, in the versions that Kafka 4.3 writes. Fails if a length does not fit its field.
    pub(crate) fn encode(&self) -> Result<Encoded, EncodeError> {
        match self {
            Self::Offset { key, value } => {
                let version =
                    |value: &OffsetCommitValue| if value.expire_timestamp == NEVER { 4 } else { 1 };
                let value = value.as_ref().map(|value| versioned(value, version(value)));
                Ok((versioned(key, 1)?, value.transpose()?))
            }
            Self::Group { group, value } => {
                let key = GroupMetadataKey { group: group.clone() };
                let value = value.as_deref().map(|value| versioned(value, 3));
                Ok((versioned(&key, GROUP_KEY)?, value.transpose()?))
            }
            Self::Consumer { group, fact, value } => {
                let is_its = value.as_ref().is_none_or(|value| fact.takes(value));
                assert!(is_its, "a value of {fact:?} is of its kind");
                let value = value.as_ref().map(FactValue::encode);
                Ok((fact_key(group, fact)?, value.transpose()?))
            }
        }
    }

    /// Returns the group of the record.
    pub(crate) fn group(&self) -> &Arc<str> {
        match self {
            Self::Offset { key, .. } => &key.group,
            Self::Group { group, .. } | Self::Consumer { group, .. } => group,
        }
    }

    /// Tells whether the record has a value, and so is no tombstone.
    pub(crate) fn has_value(&self) -> bool {
        match self {
            Self::Offset { value, .. } => value.is_some(),
            Self::Group { value, .. } => value.is_some(),
            Self::Consumer { value, .. } => value.is_some(),
        }
    }

    /// Returns the approximate size in a batch, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let value = match self {
            Self::Offset { key, value } => {
                key.topic.len() + value.as_ref().map_or(0, |it| it.metadata.len() + 48)
            }
            Self::Group { value, .. } => value.as_ref().map_or(0, |it| it.bytes()),
            Self::Consumer { fact, value, .. } => {
                fact.part().map_or(0, |it| it.len()) + value.as_ref().map_or(0, FactValue::bytes)
            }
        };
        RECORD_BYTES + self.group().len() + value
    }

    /// Reads a record of any version.
    pub(crate) fn decode(key: Bytes, value: Option<Bytes>) -> Result<Self, DecodeError> {
        let mut d = Decoder::new(key);
        let kind = d.i16()?;
        if OFFSET_KEYS.contains(&kind) {
            return Ok(Self::Offset { key: whole(d, kind)?, value: value_of(value)? });
        }
        if consumer::is_known(kind) {
            let (group, fact, value) = consumer::decode(kind, d, value)?;
            return Ok(Self::Consumer { group, fact, value });
        }
        if share::is_known(kind) {
            let (group, fact, value) = share::decode(kind, d, value)?;
            let (fact, value) = (Fact::Share(fact), value.map(FactValue::Share));
            return Ok(Self::Consumer { group, fact, value });
        }
        let GroupMetadataKey { group } = whole(d, kind)?;
        Ok(Self::Group { group, value: shared(value)? })
    }
}

impl GroupMetadataValue {
    fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let member = |it: &MemberMetadata| {
            let names = it.member_id.len() + it.client_id.len() + it.client_host.len();
            names + text(&it.group_instance_id) + it.subscription.len() + it.assignment.len() + 24
        };
        let members = self.members.iter().map(member).sum::<usize>();
        24 + self.protocol_type.len() + text(&self.protocol) + text(&self.leader) + members
    }
}

#[cfg(test)]
mod tests;
