//! Operator's settings for groups.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use crate::configs::{Settings, own_within};

/// Converts milliseconds to microseconds. A negative time counts as none.
pub(super) fn us(ms: i32) -> u64 {
    u64::try_from(ms).unwrap_or(0) * 1000
}

/// Operator's settings for all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Time that an empty group waits for more members after the first one joins, in milliseconds.
    pub initial_delay_ms: i32,
    /// The session timeouts that members may ask for.
    pub session_timeout_ms: RangeInclusive<i32>,
    /// Highest count of members of a group.
    pub members_max: usize,
    /// Greatest length of the metadata of a committed offset, in bytes.
    pub metadata_max: usize,
    /// Time for which the coordinator keeps offsets that no consumer uses, in milliseconds.
    pub retention_ms: i64,
    /// Settings for groups of the consumer protocol.
    pub consumer: ConsumerRules,
    /// Settings for share groups.
    pub share: ShareRules,
}

/// A way to assign partitions to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assignor {
    /// Equal counts of partitions for all members; a partition stays with its member if it can.
    Uniform,
    /// A range of each topic's partitions.
    Range,
}

impl Assignor {
    /// Both, the default first.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Range];

    /// Returns Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// Returns the assignor of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// Changes of protocol that a group with members may make, when a member of the other protocol joins or the last of one
/// leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// To the consumer protocol and back.
    Bidirectional,
    /// To the consumer protocol.
    Upgrade,
    /// To the classic protocol.
    Downgrade,
    /// Neither.
    Disabled,
}

impl Migration {
    /// Returns the policy of Kafka's name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bidirectional" => Self::Bidirectional,
            "upgrade" => Self::Upgrade,
            "downgrade" => Self::Downgrade,
            "disabled" => Self::Disabled,
            _ => return None,
        })
    }
}

/// Operator's settings for all groups of the consumer protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRules {
    /// Longest silence of a member, in milliseconds.
    pub session_timeout_ms: i32,
    /// Bounds of a group's own session timeout, in milliseconds.
    pub session_timeout_bounds_ms: RangeInclusive<i32>,
    /// Time between two heartbeats of a member, in milliseconds.
    pub heartbeat_interval_ms: i32,
    /// Bounds of a group's own heartbeat interval, in milliseconds.
    pub heartbeat_interval_bounds_ms: RangeInclusive<i32>,
    /// Highest count of members of a group.
    pub members_max: usize,
    /// Assignors that members may choose from. The first one is the default.
    pub assignors: Vec<Assignor>,
    /// Changes of protocol that groups may make.
    pub migration: Migration,
    /// Shortest time between two assignments, in milliseconds.
    pub assignment_interval_ms: i32,
    /// Bounds of a group's own assignment interval, in milliseconds.
    pub assignment_interval_bounds_ms: RangeInclusive<i32>,
    /// Longest time for which the topics found for regular expressions count as current, in milliseconds.
    pub regex_refresh_ms: i32,
}

impl ConsumerRules {
    /// Returns the same settings for a group with settings of its own.
    pub(crate) fn with(&self, own: &Settings) -> Cow<'_, Self> {
        let mut rules = Cow::Borrowed(self);
        let mut take = |name: &str, bounds: &RangeInclusive<i32>, of: fn(&mut Self) -> &mut i32| {
            if let Some(it) = own_within(name, own, bounds) {
                *of(rules.to_mut()) = it;
            }
        };
        take("consumer.session.timeout.ms", &self.session_timeout_bounds_ms, |it| {
            &mut it.session_timeout_ms
        });
        take("consumer.heartbeat.interval.ms", &self.heartbeat_interval_bounds_ms, |it| {
            &mut it.heartbeat_interval_ms
        });
        take("consumer.assignment.interval.ms", &self.assignment_interval_bounds_ms, |it| {
            &mut it.assignment_interval_ms
        });
        rules
    }
}

/// Operator's settings for all share groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRules {
    /// Longest silence of a member, in milliseconds.
    pub session_timeout_ms: i32,
    /// Bounds of a group's own session timeout, in milliseconds.
    pub session_timeout_bounds_ms: RangeInclusive<i32>,
    /// Time between two heartbeats of a member, in milliseconds.
    pub heartbeat_interval_ms: i32,
    /// Bounds of a group's own heartbeat interval, in milliseconds.
    pub heartbeat_interval_bounds_ms: RangeInclusive<i32>,
    /// Highest count of members of a group.
    pub members_max: usize,
}

impl ShareRules {
    /// Returns the same settings for a group with settings of its own.
    pub(crate) fn with(&self, own: &Settings) -> Self {
        let mut rules = self.clone();
        let (session, heartbeat) =
            (&mut rules.session_timeout_ms, &mut rules.heartbeat_interval_ms);
        for (name, ms, bounds) in [
            ("share.session.timeout.ms", session, &self.session_timeout_bounds_ms),
            ("share.heartbeat.interval.ms", heartbeat, &self.heartbeat_interval_bounds_ms),
        ] {
            *ms = own_within(name, own, bounds).unwrap_or(*ms);
        }
        rules
    }
}
