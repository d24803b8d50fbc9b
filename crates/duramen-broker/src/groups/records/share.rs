//! The facts about a share group. Their layouts are the `ShareGroup…Key` and `…Value` schemas of Apache Kafka 4.3's
//! group coordinator.

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError, Uuid};

use super::consumer::{TargetEpochValue, TargetTopic, TargetValue};
use super::{FACT_VERSION, GroupKey, PartKey, shared};
use crate::ledger::{value_of, versioned, whole};

duramen_protocol::message! {
    /// Group epoch, the count of changes of members or topics, and the hash of the topics at that epoch.
    #[derive(Eq)]
    pub(crate) struct ShareEpochValue: versions 0..=0, flexible 0.. {
        epoch: i32 [0..],
        metadata_hash: i64 [0..],
    }
    /// Description of a member.
    #[derive(Eq)]
    pub(crate) struct ShareMemberValue: versions 0..=0, flexible 0.. {
        rack_id: Option<String> [0.., nullable 0..],
        client_id: String [0..],
        client_host: String [0..],
        subscribed_topic_names: Vec<String> [0..],
    }
    /// Assignment that a member has.
    #[derive(Eq)]
    pub(crate) struct ShareCurrentValue: versions 0..=0, flexible 0.. {
        member_epoch: i32 [0..],
        previous_member_epoch: i32 [0..],
        state: i8 [0..],
        assigned: Vec<TargetTopic> [0..],
    }
    /// Partitions that have stored state for the group, or are about to have it.
    #[derive(Eq)]
    pub(crate) struct ShareStatesValue: versions 0..=0, flexible 0.. {
        initializing: Vec<StateTopic> [0..],
        initialized: Vec<StateTopic> [0..],
        deleting: Vec<DeletingTopic> [0..],
    }
    /// Stands in [`ShareStatesValue::initializing`] and [`ShareStatesValue::initialized`].
    #[derive(Eq)]
    pub(crate) struct StateTopic {
        topic_id: Uuid [0..],
        topic_name: String [0..],
        partitions: Vec<i32> [0..],
    }
    /// Stands in [`ShareStatesValue::deleting`].
    #[derive(Eq)]
    pub(crate) struct DeletingTopic {
        topic_id: Uuid [0..],
        topic_name: String [0..],
    }
}

/// Fact about a share group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShareFact {
    Epoch,
    Member(Arc<str>),
    TargetEpoch,
    Target(Arc<str>),
    Current(Arc<str>),
    States,
}

/// The value of a [`ShareFact`]; always of its kind. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShareValue {
    Epoch(ShareEpochValue),
    Member(Arc<ShareMemberValue>),
    TargetEpoch(TargetEpochValue),
    Target(Arc<TargetValue>),
    Current(Arc<ShareCurrentValue>),
    States(Arc<ShareStatesValue>),
}

const MEMBER: i16 = 10;
const EPOCH: i16 = 11;
const TARGET_EPOCH: i16 = 12;
const TARGET: i16 = 13;
const CURRENT: i16 = 14;
const STATES: i16 = 15;

/// Tells whether a key of this kind belongs to a share group.
pub(super) fn is_known(kind: i16) -> bool {
    (MEMBER..=STATES).contains(&kind)
}

impl ShareFact {
    pub(super) fn kind(&self) -> i16 {
        match self {
            Self::Epoch => EPOCH,
            Self::Member(_) => MEMBER,
            Self::TargetEpoch => TARGET_EPOCH,
            Self::Target(_) => TARGET,
            Self::Current(_) => CURRENT,
            Self::States => STATES,
        }
    }

    pub(super) fn part(&self) -> Option<&Arc<str>> {
        match self {
            Self::Epoch | Self::TargetEpoch | Self::States => None,
            Self::Member(id) | Self::Target(id) | Self::Current(id) => Some(id),
        }
    }

    /// Tells whether a value is of the fact's kind.
    pub(super) fn takes(&self, value: &ShareValue) -> bool {
        matches!(
            (self, value),
            (Self::Epoch, ShareValue::Epoch(_))
                | (Self::Member(_), ShareValue::Member(_))
                | (Self::TargetEpoch, ShareValue::TargetEpoch(_))
                | (Self::Target(_), ShareValue::Target(_))
                | (Self::Current(_), ShareValue::Current(_))
                | (Self::States, ShareValue::States(_))
        )
    }
}

/// Decodes the rest of a record whose key is of this kind.
pub(super) fn decode(
    kind: i16,
    key: Decoder,
    value: Option<Bytes>,
) -> Result<(Arc<str>, ShareFact, Option<ShareValue>), DecodeError> {
    if matches!(kind, EPOCH | TARGET_EPOCH | STATES) {
        let GroupKey { group } = whole(key, FACT_VERSION)?;
        let (fact, value) = match kind {
            EPOCH => (ShareFact::Epoch, value_of(value)?.map(ShareValue::Epoch)),
            TARGET_EPOCH => (ShareFact::TargetEpoch, value_of(value)?.map(ShareValue::TargetEpoch)),
            _ => (ShareFact::States, shared(value)?.map(ShareValue::States)),
        };
        return Ok((group, fact, value));
    }
    let PartKey { group, part } = whole(key, FACT_VERSION)?;
    let (fact, value) = match kind {
        MEMBER => (ShareFact::Member(part), shared(value)?.map(ShareValue::Member)),
        TARGET => (ShareFact::Target(part), shared(value)?.map(ShareValue::Target)),
        _ => (ShareFact::Current(part), shared(value)?.map(ShareValue::Current)),
    };
    Ok((group, fact, value))
}

impl ShareValue {
    pub(super) fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::Epoch(value) => versioned(value, FACT_VERSION),
            Self::Member(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::TargetEpoch(value) => versioned(value, FACT_VERSION),
            Self::Target(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::Current(value) => versioned(value.as_ref(), FACT_VERSION),
            Self::States(value) => versioned(value.as_ref(), FACT_VERSION),
        }
    }

    /// Returns the approximate size in a batch, in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Epoch(_) | Self::TargetEpoch(_) => 24,
            Self::Member(value) => {
                let names = value.subscribed_topic_names.iter().map(|it| it.len() + 2);
                let rack = value.rack_id.as_ref().map_or(0, String::len);
                value.client_id.len() + value.client_host.len() + rack + names.sum::<usize>() + 16
            }
            Self::Target(value) => {
                value.topics.iter().map(|it| 24 + 4 * it.partitions.len()).sum::<usize>() + 4
            }
            Self::Current(value) => {
                value.assigned.iter().map(|it| 24 + 4 * it.partitions.len()).sum::<usize>() + 16
            }
            Self::States(value) => {
                let topics = value.initializing.iter().chain(&value.initialized);
                let topics = topics.map(|it| 24 + it.topic_name.len() + 4 * it.partitions.len());
                let deleting = value.deleting.iter().map(|it| 24 + it.topic_name.len());
                topics.chain(deleting).sum::<usize>() + 8
            }
        }
    }
}
