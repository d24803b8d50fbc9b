//! # Room card: internal topics
//!
//! Purpose:    the topics that nodes alone write: state of coordinators, and the access log.
//! Owns:       their names, their creation at the first use, the partition that a group belongs to.
//! Interface:  [`is_internal`], [`to_make`], [`replicas`], [`partition_of`].
//! Invariants: a group's partition is the one that Apache Kafka finds for it: tools compute it, too.
//! Never:      the records in these topics.
//! Tests:      below; `node/tests/groups.rs`.
//! Start at:   [`to_make`].

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};

use crate::access::ACCESS_LOG;
use crate::configs::BrokerSettings;

/// Topic of the consumer groups.
pub(crate) const GROUPS: &str = "__consumer_offsets";
/// Topic of the transactional ids.
pub(crate) const TRANSACTIONS: &str = "__transaction_state";
/// Topic of the stored states of share groups.
pub(crate) const SHARES: &str = "__share_group_state";
/// Topics whose partitions have coordinators.
pub(crate) const COORDINATED: [&str; 3] = [GROUPS, TRANSACTIONS, SHARES];

/// Tells whether a topic is internal: clients may only read it, and patterns do not match it.
pub(crate) fn is_internal(name: &str) -> bool {
    is_coordinated(name) || name == ACCESS_LOG
}

/// Tells whether the partitions of a topic have coordinators, which alone decide what is kept.
pub(crate) fn is_coordinated(name: &str) -> bool {
    COORDINATED.contains(&name)
}

/// Returns the count of replicas of an internal topic, once the cluster has as many nodes. Returns `None` for other
/// topics, which keep the count of their creation.
pub(crate) fn replicas(name: &str, settings: &BrokerSettings) -> Option<usize> {
    let replicas = match name {
        GROUPS | ACCESS_LOG => settings.offsets_topic_replication_factor,
        TRANSACTIONS => settings.transaction_log_replication_factor,
        SHARES => settings.share_state_replication_factor,
        _ => return None,
    };
    Some(usize::try_from(replicas).unwrap_or(1))
}

/// Returns the topic to create without an administrator's request, or `None` if it must wait. The count of nodes that
/// are `there` bounds its replicas. While fewer nodes than `expected` are there, a topic that would get too few
/// replicas waits for them.
pub(crate) fn to_make(
    name: &str,
    settings: &BrokerSettings,
    there: usize,
    expected: usize,
) -> Option<CreatableTopic> {
    let mut topic = CreatableTopic {
        name: name.to_owned(),
        num_partitions: -1,
        replication_factor: -1,
        ..CreatableTopic::default()
    };
    if is_internal(name) {
        let wanted = replicas(name, settings)?;
        let replicas = wanted.min(expected.max(there));
        if replicas > there {
            return None;
        }
        topic.replication_factor = i16::try_from(replicas).unwrap_or(i16::MAX);
    }
    if is_coordinated(name) {
        let (partitions, segment_bytes) = match name {
            GROUPS => (settings.offsets_topic_num_partitions, settings.offsets_topic_segment_bytes),
            SHARES => (settings.share_state_num_partitions, settings.share_state_segment_bytes),
            _ => (settings.transaction_log_num_partitions, settings.transaction_log_segment_bytes),
        };
        // A snapshot and the updates after it have several keys, so compaction would not keep them together.
        let policy = if name == SHARES { "delete" } else { "compact" };
        topic.num_partitions = partitions;
        let segment_bytes = segment_bytes.to_string();
        let configs = [
            ("cleanup.policy", policy),
            ("compression.type", "producer"),
            ("segment.bytes", &segment_bytes),
        ];
        topic.configs.extend(configs.map(|(name, value)| CreatableTopicConfig {
            name: name.to_owned(),
            value: Some(value.to_owned()),
        }));
        if name == SHARES {
            topic.configs.push(CreatableTopicConfig {
                name: "retention.ms".to_owned(),
                value: Some("-1".to_owned()),
            });
        }
    }
    Some(topic)
}

/// Returns the error code for a client whose record the log did not take, as in Kafka.
pub(crate) fn told(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::UnknownTopicOrPartition
        | ErrorCode::NotEnoughReplicas
        | ErrorCode::RequestTimedOut => ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError => ErrorCode::NotCoordinator,
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => ErrorCode::UnknownServerError,
        code => code,
    }
}

/// Returns the partition of an internal topic for a name. The name is a group for [`GROUPS`], a transactional id for
/// [`TRANSACTIONS`], or a group with one of its partitions for [`SHARES`]. The hash is that of Java's `String`, made
/// positive as Kafka does.
pub(crate) fn partition_of(name: &str, partitions: usize) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    let hash = name.encode_utf16().fold(0, add).checked_abs().unwrap_or(0);
    let partition = hash % i32::try_from(partitions.max(1)).unwrap_or(i32::MAX);
    assert!(partition >= 0, "the hash {hash} of a name is not negative");
    partition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_groups_waits_for_the_nodes_that_are_to_keep_it() {
        let settings = BrokerSettings::from_pairs(&[]).expect("none are wrong");
        let replicas = |there, expected| {
            to_make(GROUPS, &settings, there, expected).map(|topic| topic.replication_factor)
        };
        assert_eq!(replicas(1, 0), Some(1), "alone");
        assert_eq!(replicas(2, 3), None, "one is not there yet");
        assert_eq!(replicas(3, 3), Some(3));
        assert_eq!(replicas(3, 5), Some(3), "no more are wanted");
        let shares = to_make(SHARES, &settings, 3, 3).expect("it is needed");
        assert_eq!((shares.num_partitions, shares.replication_factor), (50, 3));
        let transactions = to_make(TRANSACTIONS, &settings, 1, 0).expect("it is needed");
        assert_eq!(transactions.num_partitions, 50);
        assert!(to_make("any", &settings, 1, 3).is_some(), "others are made by their settings");
    }

    #[test]
    fn a_group_is_where_java_finds_it() {
        // Math.abs of "".hashCode(), "a", "polygenelubricants" (the smallest int), "my-group", and UTF-16 pairs.
        let all = i32::MAX as usize;
        assert_eq!(partition_of("", all), 0);
        assert_eq!(partition_of("a", all), 97);
        assert_eq!(partition_of("polygenelubricants", all), 0);
        assert_eq!(partition_of("console-consumer-1", 50), 24);
        assert_eq!(partition_of("\u{1F600}", all), 1_772_899);
    }
}
