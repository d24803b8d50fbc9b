//! The facts about a group of the consumer protocol, each under a key of its own. Layouts are those of the
//! `ConsumerGroup…Key` and `…Value` schemas that Apache Kafka 4.3's group coordinator carries.

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError, Uuid};

use super::share::{ShareFact, ShareValue};
use super::{FACT_VERSION, GroupKey, PartKey, shared};
use crate::ledger::{value_of, versioned, whole};

duramen_protocol::message! {
    /// Group epoch, the count of changes of members or topics, and the hash of the topics at that epoch.
    #[derive(Eq)]
    pub(crate) struct EpochValue: versions 0..=0, flexible 0.. {
        epoch: i32 [0..],
        metadata_hash: i64 [0.., tag 0 in 0..],
    }
    /// The topics of a group, which Kafka 4.0 wrote; later versions write it no more.
    #[derive(Eq)]
    pub(crate) struct PartitionMetadataValue: versions 0..=0, flexible 0.. {
        topics: Vec<TopicMetadata> [0..],
    }
    /// Stands in [`PartitionMetadataValue::topics`].
    #[derive(Eq)]
    pub(crate) struct TopicMetadata {
        topic_id: Uuid [0..],
        topic_name: String [0..],
        partitions: i32 [0..],
        racks: Vec<PartitionRacks> [0..],
    }
    /// Stands in [`TopicMetadata::racks`].
    #[derive(Eq)]
    pub(crate) struct PartitionRacks {
        partition: i32 [0..],
        racks: Vec<String> [0..],
    }
    /// Description of a member.
    #[derive(Eq)]
    pub(crate) struct MemberValue: versions 0..=0, flexible 0.. {
        instance_id: Option<Arc<str>> [0.., nullable 0..],
        rack_id: Option<String> [0.., nullable 0..],
        client_id: String [0..],
        client_host: String [0..],
        subscribed_topic_names: Vec<String> [0..],
        subscribed_topic_regex: Option<Arc<str>> [0.., nullable 0..],
        rebalance_timeout_ms: i32 [0..] = -1,
        server_assignor: Option<String> [0.., nullable 0..],
        classic: Option<ClassicMember> [0.., nullable 0.., tag 0 in 0..],
    }
    /// Stands in [`MemberValue::classic`]: the member speaks the classic protocol.
    #[derive(Eq)]
    pub(crate) struct ClassicMember {
        session_timeout_ms: i32 [0..],
        protocols: Vec<ClassicProtocol> [0..],
    }
    /// Stands in [`ClassicMember::protocols`].
    #[derive(Eq)]
    pub(crate) struct ClassicProtocol {
        name: String [0..],
        metadata: Bytes [0..],
    }
    /// Group epoch of the target assignments, and the time of that decision.
    #[derive(Eq)]
    pub(crate) struct TargetEpochValue: versions 0..=0, flexible 0.. {
        epoch: i32 [0..],
        timestamp: i64 [0.., tag 0 in 0.., ignorable],
    }
    /// Target assignment of a member.
    #[derive(Eq)]
    pub(crate) struct TargetValue: versions 0..=0, flexible 0.. {
        topics: Vec<TargetTopic> [0..],
    }
    /// Stands in [`TargetValue::topics`].
    #[derive(Eq)]
    pub(crate) struct TargetTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
    }
    /// Assignment that a member has.
    #[derive(Eq)]
    pub(crate) struct CurrentValue: versions 0..=0, flexible 0.. {
        member_epoch: i32 [0..],
        previous_member_epoch: i32 [0..],
        state: i8 [0..],
        assigned: Vec<CurrentTopic> [0..],
        revoking: Vec<CurrentTopic> [0..],
    }
    /// Stands in [`CurrentValue::assigned`] and [`CurrentValue::revoking`].
    #[derive(Eq)]
    pub(crate) struct CurrentTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
        /// None, and as good as none in records of earlier versions, which have none.
        assignment_epochs: Option<Vec<i32>> [0.., nullable 0.., tag 0 in 0..] = Some(Vec::new()),
    }
    /// Which topics a regular expression stands for, as of when.
    #[derive(Eq)]
    pub(crate) struct RegexValue: versions 0..=0, flexible 0.. {
        topics: Vec<Arc<str>> [0..],
        version: i64 [0..],
        timestamp: i64 [0..],
    }
}

/// Fact about a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    Epoch,
    PartitionMetadata,
    Member(Arc<str>),
    TargetEpoch,
    Target(Arc<str>),
    Current(Arc<str>),
    Regex(Arc<str>),
    /// Fact about a share group, which has no facts of other kinds.
    Share(ShareFact),
}

/// The value of a [`Fact`]; always of its kind. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FactValue {
    Epoch(EpochValue),
    PartitionMetadata(Arc<PartitionMetadataValue>),
    Member(Arc<MemberValue>),
    TargetEpoch(TargetEpochValue),
    Target(Arc<TargetValue>),
    Current(Arc<CurrentValue>),
    Regex(Arc<RegexValue>),
    Share(ShareValue),
}

impl Fact {
    /// Returns the kind of the fact's key.
    pub(super) fn kind(&self) -> i16 {
        match self {
            Self::Epoch => EPOCH,
            Self::PartitionMetadata => PARTITION_METADATA,
            Self::Member(_) => MEMBER,
            Self::TargetEpoch => TARGET_EPOCH,
            Self::Target(_) => TARGET,
            Self::Current(_) => CURRENT,
            Self::Regex(_) => REGEX,
            Self::Share(fact) => fact.kind(),
        }
    }

    /// Returns the member or the regular expression of the fact.
    pub(super) fn part(&self) -> Option<&Arc<str>> {
        match self {
            Self::Epoch | Self::PartitionMetadata | Self::TargetEpoch => None,
            Self::Member(part) | Self::Target(part) | Self::Current(part) | Self::Regex(part) => {
                Some(part)
            }
            Self::Share(fact) => fact.part(),
        }
    }

    /// Tells whether a value is of the fact's kind.
    pub(super) fn takes(&self, value: &FactValue) -> bool {
        match (self, value) {
            (Self::Epoch, FactValue::Epoch(_))
            | (Self::PartitionMetadata, FactValue::PartitionMetadata(_))
            | (Self::Member(_), FactValue::Member(_))
            | (Self::TargetEpoch, FactValue::TargetEpoch(_))
            | (Self::Target(_), FactValue::Target(_))
            | (Self::Current(_), FactValue::Current(_))
            | (Self::Regex(_), FactValue::Regex(_)) => true,
            (Self::Share(fact), FactValue::Share(value)) => fact.takes(value),
            _ => false,
        }
    }
}

/// The kinds of keys.
const EPOCH: i16 = 3;
const PARTITION_METADATA: i16 = 4;
const MEMBER: i16 = 5;
const TARGET_EPOCH: i16 = 6;
const TARGET: i16 = 7;
const CURRENT: i16 = 8;
const REGEX: i16 = 16;

/// Tells whether a key of this kind belongs to a group of the consumer protocol.
pub(super) fn is_known(kind: i16) -> bool {
    matches!(kind, EPOCH..=CURRENT | REGEX)
}

/// Decodes the rest of a record whose key is of this kind.
pub(super) fn decode(
    kind: i16,
    key: Decoder,
    value: Option<Bytes>,
) -> Result<(Arc<str>, Fact, Option<FactValue>), DecodeError> {
    if matches!(kind, EPOCH | PARTITION_METADATA | TARGET_EPOCH) {
        let GroupKey { group } = whole(key, FACT_VERSION)?;
        let (fact, value) = match kind {
            EPOCH => (Fact::Epoch, value_of(value)?.map(FactValue::Epoch)),
            TARGET_EPOCH => (Fact::TargetEpoch, value_of(value)?.map(FactValue::TargetEpoch)),
            _ => (Fact::PartitionMetadata, shared(value)?.map(FactValue::PartitionMetadata)),
        };
        return Ok((group, fact, value));
    }
    let PartKey { group, part } = whole(key, FACT_VERSION)?;
    let (fact, value) = match kind {
        MEMBER => (Fact::Member(part), shared(value)?.map(FactValue::Member)),
        TARGET => (Fact::Target(part), shared(value)?.map(FactValue::Target)),
        CURRENT => (Fact::Current(part), shared(value)?.map(FactValue::Current)),
        _ => (Fact::Regex(part), shared(value)?.map(FactValue::Regex)),
    };
    Ok((group, fact, value))
}

impl FactValue {
    pub(super) fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::Epoch(value) => versioned(value, FACT_VERSION),
            Self::PartitionMetadata(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::Member(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::TargetEpoch(value) => versioned(value, FACT_VERSION),
            Self::Target(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::Current(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::Regex(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::Share(value) => value.encode(),
        }
    }

    /// Returns the approximate size in a batch, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: Option<&str>| text.map_or(0, str::len) + 2;
        match self {
            Self::Epoch(_) | Self::TargetEpoch(_) => 20,
            Self::PartitionMetadata(value) => {
                value.topics.iter().map(|it| it.topic_name.len() + 32 + 16 * it.racks.len()).sum()
            }
            Self::Member(value) => {
                let names = value.subscribed_topic_names.iter().map(|it| it.len() + 2);
                let classic = value.classic.iter().flat_map(|it| &it.protocols);
                let protocols = classic.map(|it| it.name.len() + it.metadata.len() + 8);
                let own = value.client_id.len() + value.client_host.len() + 24;
                let optional = text(value.instance_id.as_deref())
                    + text(value.rack_id.as_deref())
                    + text(value.subscribed_topic_regex.as_deref())
                    + text(value.server_assignor.as_deref());
                own + optional + names.sum::<usize>() + protocols.sum::<usize>()
            }
            Self::Target(value) => {
                value.topics.iter().map(|it| 24 + 4 * it.partitions.len()).sum::<usize>() + 4
            }
            Self::Current(value) => {
                let topics = value.assigned.iter().chain(&value.revoking);
                topics.map(|it| 32 + 8 * it.partitions.len()).sum::<usize>() + 16
            }
            Self::Regex(value) => value.topics.iter().map(|it| it.len() + 2).sum::<usize>() + 20,
            Self::Share(value) => value.bytes(),
        }
    }
}
