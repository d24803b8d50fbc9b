//! The facts about a share group. Their layouts are the `ShareGroup…Key` and `…Value` schemas of Apache Kafka 4.3's
//! group coordinator.

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError, Encoder, Message, Uuid};

use super::consumer::TargetValue;
use super::{value_of, versioned, whole};

duramen_protocol::message! {
    struct GroupKey: versions 0..=0, flexible none {
        group: Arc<str> [0..],
    }
    struct MemberKey: versions 0..=0, flexible none {
        group: Arc<str> [0..],
        member: Arc<str> [0..],
    }
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
    /// Group epoch of the target assignments, and the time of that decision.
    #[derive(Eq)]
    pub(crate) struct ShareTargetEpochValue: versions 0..=0, flexible 0.. {
        epoch: i32 [0..],
        timestamp: i64 [0.., tag 0 in 0.., ignorable],
    }
    /// Assignment that a member has.
    #[derive(Eq)]
    pub(crate) struct ShareCurrentValue: versions 0..=0, flexible 0.. {
        member_epoch: i32 [0..],
        previous_member_epoch: i32 [0..],
        state: i8 [0..],
        assigned: Vec<ShareTopic> [0..],
    }
    /// Stands in [`ShareCurrentValue::assigned`].
    #[derive(Eq)]
    pub(crate) struct ShareTopic {
        topic_id: Uuid [0..],
        partitions: Vec<i32> [0..],
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
    TargetEpoch(ShareTargetEpochValue),
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

/// The only version of keys and values of all these kinds.
const VERSION: i16 = 0;

/// Tells whether a key of this kind belongs to a share group.
pub(super) fn is_known(kind: i16) -> bool {
    (MEMBER..=STATES).contains(&kind)
}

impl ShareFact {
    pub(super) fn named(&self) -> Option<&Arc<str>> {
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

    pub(super) fn encode_key(&self, group: &Arc<str>) -> Result<Bytes, EncodeError> {
        let mut e = Encoder::with_capacity(64);
        e.i16(match self {
            Self::Epoch => EPOCH,
            Self::Member(_) => MEMBER,
            Self::TargetEpoch => TARGET_EPOCH,
            Self::Target(_) => TARGET,
            Self::Current(_) => CURRENT,
            Self::States => STATES,
        });
        let group = group.clone();
        match self.named() {
            None => GroupKey { group }.encode(&mut e, VERSION)?,
            Some(member) => MemberKey { group, member: member.clone() }.encode(&mut e, VERSION)?,
        }
        Ok(e.into_bytes().freeze())
    }
}

/// Decodes the rest of a record whose key is of this kind.
pub(super) fn decode(
    kind: i16,
    key: Decoder,
    value: Option<Bytes>,
) -> Result<(Arc<str>, ShareFact, Option<ShareValue>), DecodeError> {
    if matches!(kind, EPOCH | TARGET_EPOCH | STATES) {
        let GroupKey { group } = whole(key, VERSION)?;
        let (fact, value) = match kind {
            EPOCH => (ShareFact::Epoch, value_of(value)?.map(ShareValue::Epoch)),
            TARGET_EPOCH => (ShareFact::TargetEpoch, value_of(value)?.map(ShareValue::TargetEpoch)),
            _ => {
                let value = value_of(value)?.map(Arc::new);
                (ShareFact::States, value.map(ShareValue::States))
            }
        };
        return Ok((group, fact, value));
    }
    let MemberKey { group, member } = whole(key, VERSION)?;
    let (fact, value) = match kind {
        MEMBER => {
            let value = value_of(value)?.map(Arc::new);
            (ShareFact::Member(member), value.map(ShareValue::Member))
        }
        TARGET => {
            let value = value_of(value)?.map(Arc::new);
            (ShareFact::Target(member), value.map(ShareValue::Target))
        }
        _ => {
            let value = value_of(value)?.map(Arc::new);
            (ShareFact::Current(member), value.map(ShareValue::Current))
        }
    };
    Ok((group, fact, value))
}

impl ShareValue {
    pub(super) fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::Epoch(value) => versioned(value, VERSION),
            Self::Member(value) => versioned(value.as_ref(), VERSION),
            Self::TargetEpoch(value) => versioned(value, VERSION),
            Self::Target(value) => versioned(value.as_ref(), VERSION),
            Self::Current(value) => versioned(value.as_ref(), VERSION),
            Self::States(value) => versioned(value.as_ref(), VERSION),
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
