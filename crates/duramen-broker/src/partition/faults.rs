//! # Room card: faults
//!
//! Purpose:    find the records of a batch that a topic refuses, with the reason.
//! Owns:       the rules that a topic's settings add to those of the format.
//! Interface:  [`of`], [`Faults`].
//! Invariants: the summary of a batch alone decides, so the cost does not depend on its size. A refusal names at least
//!             one record, and not all of them if there are many. It names none if a key is of another partition.
//! Never:      a look at the records: the node's thread must not decompress.
//! Tests:      below; `node/tests`.
//! Start at:   [`of`].

use duramen_protocol::ErrorCode;
use duramen_protocol::records::RecordSummary;

use crate::configs::TopicSettings;
use crate::limits::QUEUE_NAME_BYTES_MAX;

/// Why a batch is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Faults {
    /// For the client.
    pub code: ErrorCode,
    /// For the person behind it.
    pub message: String,
    /// Records, by their place in the batch, ascending.
    pub records: Vec<(i32, String)>,
}

/// Returns the faults of a batch of these records, if there are any.
pub(crate) fn of(
    settings: &TopicSettings,
    wall_ms: i64,
    summary: &RecordSummary,
) -> Option<Faults> {
    let mut records = Vec::new();
    if settings.compact {
        let text = "a compacted topic takes no record without a key";
        records.extend(summary.keyless.as_slice().iter().map(|at| (*at, text.to_owned())));
    }
    if settings.queue {
        let text = "a queue is the key of its records, so each needs one";
        records.extend(summary.keyless.as_slice().iter().map(|at| (*at, text.to_owned())));
        let keys = &summary.keys;
        let text = "a queue's name has at least one byte";
        records.extend(keys.empty.as_slice().iter().map(|at| (*at, text.to_owned())));
        if keys.longest.0 > QUEUE_NAME_BYTES_MAX {
            let text = format!("a queue's name has at most {QUEUE_NAME_BYTES_MAX} bytes");
            records.push((keys.longest.1, text));
        }
        let text = "headers that begin with duramen- are the broker's";
        records.extend(keys.reserved.as_slice().iter().map(|at| (*at, text.to_owned())));
        let text = "duramen-deliver-at and duramen-expires are milliseconds since 1970, and duramen-priority is 0 to 9, \
                    in decimal digits";
        records.extend(keys.misscheduled.as_slice().iter().map(|at| (*at, text.to_owned())));
        records.sort_by_key(|(at, _)| *at);
        records.dedup_by_key(|(at, _)| *at);
        if records.is_empty() && !keys.belong(settings.partitions) {
            let message = "a key belongs into another partition of this queue topic: producers must place keys by murmur2, \
                           as Java clients do (librdkafka: partitioner=murmur2_random)";
            let (code, message) = (ErrorCode::InvalidRecord, message.to_owned());
            return Some(Faults { code, message, records });
        }
    }
    let keyless = records.len();
    if !settings.log_append_time {
        let least = wall_ms.saturating_sub(settings.timestamp_before_max_ms);
        let most = wall_ms.saturating_add(settings.timestamp_after_max_ms);
        let (earliest, latest) = (summary.min_timestamp, summary.max_timestamp);
        let ends = [
            (summary.min_timestamp_delta, earliest, earliest < least),
            (summary.max_timestamp_delta, latest, latest > most),
        ];
        for (at, timestamp, is_wrong) in ends {
            if is_wrong && !records.iter().any(|(named, _)| *named == at) {
                let text = format!("timestamp {timestamp} is not between {least} and {most}");
                records.push((at, text));
            }
        }
    }
    if records.is_empty() {
        return None;
    }
    let (code, message) = if records.len() > keyless {
        (ErrorCode::InvalidTimestamp, "a timestamp is too far from the time of the node")
    } else {
        (
            ErrorCode::InvalidRecord,
            if settings.queue {
                records[0].1.as_str()
            } else {
                "a compacted topic takes no records without a key"
            },
        )
    };
    let message = message.to_owned();
    records.sort_by_key(|(at, _)| *at);
    debug_assert!(records.is_sorted_by(|a, b| a.0 < b.0), "a record is named once");
    Some(Faults { code, message, records })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use duramen_protocol::records::{BatchBuilder, Limits, NewRecord, sole_batch, validate};

    use super::*;
    use crate::configs::BrokerSettings;

    const WALL_MS: i64 = 1_700_000_000_000;
    const HOUR_MS: i64 = 3_600_000;

    fn judge(configs: &[(&str, &str)], records: &[(Option<&str>, i64)]) -> Option<Faults> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let configs: BTreeMap<_, _> = configs.iter().map(own).collect();
        let broker = BrokerSettings::from_pairs(&[]).expect("no mistakes");
        let mut batch = BatchBuilder::new();
        for (key, timestamp) in records {
            let key = key.map(str::as_bytes);
            let record = NewRecord { key, timestamp: *timestamp, ..NewRecord::default() };
            batch.push(&record).expect("a record");
        }
        let bytes = batch.build().expect("a batch");
        let limits = Limits {
            batch_bytes_max: usize::MAX,
            decompressed_bytes_max: usize::MAX,
            keys_required: false,
            partition: 0,
        };
        let view = sole_batch(Some(&bytes), 9).expect("one");
        let summary = validate(&view, &limits).expect("well-formed");
        of(&TopicSettings::resolve(&configs, &broker), WALL_MS, &summary)
    }

    fn named(faults: Option<Faults>) -> (ErrorCode, Vec<i32>) {
        let faults = faults.expect("refused");
        (faults.code, faults.records.iter().map(|(at, _)| *at).collect())
    }

    #[test]
    fn records_without_a_key_are_named_up_to_a_bound() {
        let compact = [("cleanup.policy", "compact")];
        let now = WALL_MS;
        let mixed = [(Some("k"), now), (None, now), (None, now)];
        assert_eq!(named(judge(&compact, &mixed)), (ErrorCode::InvalidRecord, vec![1, 2]));
        let many = [(None, now); 40];
        assert_eq!(named(judge(&compact, &many)).1.len(), 8);
        assert_eq!(judge(&[], &mixed), None);
    }

    #[test]
    fn the_record_that_is_furthest_ahead_or_behind_is_named() {
        let late = (Some("k"), WALL_MS + 2 * HOUR_MS);
        let now = (Some("k"), WALL_MS);
        assert_eq!(named(judge(&[], &[now, late])), (ErrorCode::InvalidTimestamp, vec![1]));
        let strict = [("message.timestamp.before.max.ms", "1000")];
        let old = (Some("k"), WALL_MS - HOUR_MS);
        assert_eq!(named(judge(&strict, &[now, late, old])).1, [1, 2]);
        assert_eq!(judge(&[], &[now, old, (None, 0)]), None);
        assert_eq!(judge(&[("message.timestamp.type", "LogAppendTime")], &[late]), None);
    }

    #[test]
    fn a_timestamp_weighs_more_than_a_key_unless_it_is_the_same_record() {
        let compact = [("cleanup.policy", "compact")];
        let late = WALL_MS + 2 * HOUR_MS;
        let apart = [(None, WALL_MS), (Some("k"), late)];
        assert_eq!(named(judge(&compact, &apart)), (ErrorCode::InvalidTimestamp, vec![0, 1]));
        assert_eq!(named(judge(&compact, &[(None, late)])).0, ErrorCode::InvalidRecord);
    }

    #[test]
    fn records_without_a_time_are_taken() {
        let strict = [("message.timestamp.before.max.ms", "1000")];
        assert_eq!(judge(&strict, &[(Some("k"), -1)]), None);
        assert_eq!(judge(&strict, &[(Some("k"), WALL_MS), (Some("k"), -1)]), None);
        // One that is behind them is named all the same.
        let mixed = [(Some("k"), -1), (Some("k"), 0), (Some("k"), WALL_MS)];
        assert_eq!(named(judge(&strict, &mixed)), (ErrorCode::InvalidTimestamp, vec![1]));
    }

    #[test]
    fn records_from_before_1970_are_as_old_as_they_say() {
        let old = |timestamp| [(Some("k"), timestamp)];
        let strict = [("message.timestamp.before.max.ms", "1000")];
        for timestamp in [-2, -5, -86_400_000, i64::MIN] {
            assert_eq!(named(judge(&strict, &old(timestamp))).0, ErrorCode::InvalidTimestamp);
        }
        assert_eq!(judge(&[], &old(-86_400_000)), None);
        // As in Kafka, whose difference overflows there.
        assert_eq!(named(judge(&[], &old(i64::MIN))).0, ErrorCode::InvalidTimestamp);
        assert_eq!(judge(&[], &old(WALL_MS - i64::MAX)), None);
        assert_eq!(named(judge(&[], &old(i64::MAX))).0, ErrorCode::InvalidTimestamp);
        assert_eq!(
            judge(&[("message.timestamp.after.max.ms", &i64::MAX.to_string())], &old(i64::MAX)),
            None
        );
    }
}
