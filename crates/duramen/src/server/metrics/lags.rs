//! # Room card: lags
//!
//! Purpose:    the lag of consumer groups, in records and in seconds.
//! Owns:       the history of high watermarks, by which a time is guessed; the rows of groups.
//! Interface:  [`Draft`], [`Lags`], [`defs`].
//! Invariants: the number of rows is bounded; those with the most lag stay. A time is no later than this process saw.
//! Never:      a read of a log.
//! Tests:      below.
//! Start at:   [`Lags::tables`].
//!
//! A lag in seconds is the age of the first record that the group has not committed. Nobody reads the log for that:
//! each census notes the high watermark. Between two censuses records are taken to have come at a steady pace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use duramen_broker::census::{GroupCounted, OffsetCounted};
use duramen_broker::limits::{METRIC_GROUPS_MAX, METRIC_OFFSETS_MAX};
use duramen_storage::op::ReplicaId;

use super::exposition::{Def, Kind, Labels, Table, Value, label};

/// Most readings of one partition's high watermark that are kept.
const READINGS_MAX: usize = 32;

/// The labels of a group's partition.
const OF_OFFSETS: &[&str] = &["group", "topic", "partition"];

static DEFS: [Def; 8] = [
    Def {
        name: "duramen_groups",
        kind: Kind::Gauge,
        labels: &["kind", "state"],
        help: "Groups whose coordinator is on this node, by type and state",
    },
    Def {
        name: "duramen_group_members",
        kind: Kind::Gauge,
        labels: &["group"],
        help: "Members of the group, from its coordinator",
    },
    Def {
        name: "duramen_group_offset",
        kind: Kind::Gauge,
        labels: OF_OFFSETS,
        help: "Offset that the group has committed, from its coordinator",
    },
    Def {
        name: "duramen_group_lag_records",
        kind: Kind::Gauge,
        labels: OF_OFFSETS,
        help: "Offsets between the group's committed one, or the log start, and the high watermark; none without a \
               replica of the partition on the coordinator's node",
    },
    Def {
        name: "duramen_group_lag_seconds",
        kind: Kind::Gauge,
        labels: OF_OFFSETS,
        help: "About the age of the first record that the group has not committed, in seconds; at most the time since \
               the first scrape",
    },
    Def {
        name: "duramen_group_topic_offsets",
        kind: Kind::Gauge,
        labels: &["group", "topic"],
        help: "Sum of the offsets that the group has committed in the topic",
    },
    Def {
        name: "duramen_group_topic_lag_records",
        kind: Kind::Gauge,
        labels: &["group", "topic"],
        help: "Sum of the group's known lags in the topic, in offsets",
    },
    Def {
        name: "duramen_group_offsets_without_row",
        kind: Kind::Gauge,
        labels: &[],
        help: "Committed offsets that have no rows of their own, because others have more lag",
    },
];

/// Returns the metrics of this room.
#[cfg(test)]
pub(crate) fn defs() -> impl Iterator<Item = &'static Def> {
    DEFS.iter()
}

/// The rows with the most lag, as many as there may be.
#[derive(Debug)]
struct Top<T> {
    rows: Vec<(u64, T)>,
    max: usize,
    /// Count of rows that did not stay.
    dropped: u64,
}

impl<T: Ord + Clone> Top<T> {
    fn new(max: usize) -> Self {
        Self { rows: Vec::new(), max, dropped: 0 }
    }

    fn push(&mut self, lag: u64, row: T) {
        self.rows.push((lag, row));
        if self.rows.len() >= 2 * self.max {
            self.cut();
        }
    }

    /// Drops the rows with the least lag above the bound; of equal ones the last by name.
    fn cut(&mut self) {
        if self.rows.len() <= self.max {
            return;
        }
        self.rows.sort_by(|one, other| {
            let lag = |it: &(u64, T)| Reverse(it.0);
            lag(one).cmp(&lag(other)).then_with(|| one.1.cmp(&other.1))
        });
        self.dropped += (self.rows.len() - self.max) as u64;
        self.rows.truncate(self.max);
    }
}

/// A group, a topic and a partition.
type Place = (Arc<str>, Arc<str>, i32);

/// A place, its committed offset, and the replica and lag where they are known.
type OffsetRow = (Place, i64, Option<(ReplicaId, u64)>);

/// A group and a topic, the sum of the committed offsets there, and that of the known lags.
type Sum = ((Arc<str>, Arc<str>), u64, Option<u64>);

/// Rows of groups in a census that is not done yet.
#[derive(Debug)]
pub(crate) struct Draft {
    groups: BTreeMap<(&'static str, &'static str), u64>,
    members: Vec<(Arc<str>, u64)>,
    offsets: Top<OffsetRow>,
    topics: Top<Sum>,
    /// The sum of the group and topic that the last row was of.
    open: Option<Sum>,
    /// High watermarks of the partitions that have offsets of groups.
    ends: HashMap<ReplicaId, i64>,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            members: Vec::new(),
            offsets: Top::new(METRIC_OFFSETS_MAX),
            topics: Top::new(METRIC_GROUPS_MAX),
            open: None,
            ends: HashMap::new(),
        }
    }
}

impl Draft {
    pub(crate) fn take_group(&mut self, row: GroupCounted) {
        *self.groups.entry((row.kind, row.state)).or_default() += 1;
        if self.members.len() < METRIC_GROUPS_MAX {
            self.members.push((row.group, row.members as u64));
        }
    }

    /// Takes an offset. Those of one group and topic come one after the other.
    pub(crate) fn take_offset(&mut self, row: OffsetCounted) {
        let known = row.log.map(|(replica, start, end)| {
            // A follower's high watermark may be behind what the group has committed.
            (replica, u64::try_from(end - row.offset.max(start)).unwrap_or(0))
        });
        if let Some((replica, _, end)) = row.log
            && (self.ends.len() < METRIC_OFFSETS_MAX || self.ends.contains_key(&replica))
        {
            self.ends.insert(replica, end);
        }
        let topic = (Arc::clone(&row.group), Arc::clone(&row.topic));
        if self.open.as_ref().is_none_or(|open| open.0 != topic) {
            self.close();
            self.open = Some((topic, 0, None));
        }
        if let Some((_, offsets, lag)) = &mut self.open {
            *offsets += u64::try_from(row.offset).unwrap_or(0);
            *lag = known.map_or(*lag, |(_, more)| Some(lag.unwrap_or(0) + more));
        }
        let place = (row.group, row.topic, row.partition);
        self.offsets.push(known.map_or(0, |(_, lag)| lag), (place, row.offset, known));
    }

    /// Ends the sum of a group in a topic.
    fn close(&mut self) {
        if let Some(sum) = self.open.take() {
            self.topics.push(sum.2.unwrap_or(0), sum);
        }
    }
}

/// A high watermark, and when it was read first and last.
#[derive(Clone, Copy, Debug)]
struct Reading {
    end: i64,
    first: Instant,
    last: Instant,
}

/// Readings of one partition, oldest first.
#[derive(Debug, Default)]
struct History(VecDeque<Reading>);

impl History {
    fn note(&mut self, end: i64, now: Instant) {
        if self.0.back().is_some_and(|it| it.end > end) {
            self.0.clear(); // the log began anew
        }
        match self.0.back_mut() {
            Some(reading) if reading.end == end => reading.last = now,
            _ => self.0.push_back(Reading { end, first: now, last: now }),
        }
        if self.0.len() > READINGS_MAX {
            // Every second one of the older half goes: what is long ago is known less exactly.
            let mut at = 0;
            self.0.retain(|_| {
                at += 1;
                at > READINGS_MAX / 2 || at % 2 == 1
            });
        }
    }

    /// Returns about the time since the record at an offset was committed, in seconds.
    fn age(&self, offset: i64, now: Instant) -> f64 {
        let at = self.0.partition_point(|reading| reading.end <= offset);
        let Some(behind) = self.0.get(at) else { return 0.0 };
        let came = match at.checked_sub(1).map(|at| self.0[at]) {
            // The record was there before the first reading.
            None => behind.first,
            Some(before) => {
                let part = (offset - before.end) as f64 / (behind.end - before.end) as f64;
                before.last + (behind.first - before.last).mul_f64(part)
            }
        };
        now.saturating_duration_since(came).as_secs_f64()
    }
}

/// History of the partitions that groups read.
#[derive(Debug, Default)]
pub(crate) struct Lags(HashMap<ReplicaId, History>);

impl Lags {
    /// Notes the high watermarks of a census, and forgets partitions without offsets.
    pub(crate) fn follow(&mut self, draft: &Draft, now: Instant) {
        self.0.retain(|replica, _| draft.ends.contains_key(replica));
        for (replica, end) in &draft.ends {
            self.0.entry(*replica).or_default().note(*end, now);
        }
    }

    /// Makes the rows of groups.
    pub(crate) fn tables(&self, mut draft: Draft, now: Instant) -> Vec<Table> {
        draft.close();
        draft.offsets.cut();
        draft.topics.cut();
        let mut all: Vec<_> = DEFS.iter().map(Table::of).collect();
        let [groups, members, offsets, lags, ages, sums, lag_sums, dropped] = &mut all[..] else {
            unreachable!("each metric has a name here")
        };
        for ((kind, state), count) in draft.groups {
            groups.push(&[kind.into(), state.into()].into(), Value::Whole(count));
        }
        for (group, count) in draft.members {
            members.push(&[label(&group)].into(), Value::Whole(count));
        }
        for (_, ((group, topic, partition), offset, known)) in draft.offsets.rows {
            let labels: Labels =
                [label(&group), label(&topic), partition.to_string().into()].into();
            offsets.push(&labels, Value::Whole(u64::try_from(offset).unwrap_or(0)));
            let Some((replica, lag)) = known else { continue };
            lags.push(&labels, Value::Whole(lag));
            let age = || self.0.get(&replica).map_or(0.0, |it| it.age(offset, now));
            ages.push(&labels, Value::Real(if lag == 0 { 0.0 } else { age() }));
        }
        for (_, ((group, topic), offset, lag)) in draft.topics.rows {
            let labels: Labels = [label(&group), label(&topic)].into();
            sums.push(&labels, Value::Whole(offset));
            if let Some(lag) = lag {
                lag_sums.push(&labels, Value::Whole(lag));
            }
        }
        dropped.push(&Labels::default(), Value::Whole(draft.offsets.dropped));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_records_age_is_guessed_between_two_readings() {
        let start = Instant::now();
        let mut history = History::default();
        history.note(100, at(start, 0));
        history.note(100, at(start, 500));
        history.note(200, at(start, 600));
        history.note(300, at(start, 700));
        let age = |offset| history.age(offset, start + NOW);
        let is_near = |one: f64, other: f64| (one - other).abs() < 1e-6;
        assert!(is_near(age(150), 450.0), "{} after half of 500 to 600", age(150));
        assert!(is_near(age(100), 500.0), "it came after the last reading without it");
        assert!(is_near(age(250), 350.0), "{}", age(250));
        assert!(is_near(age(300), 0.0), "nothing is behind the end");
        assert!(is_near(age(5), 1000.0), "it was there before anybody looked: at least so old");
    }

    #[test]
    fn a_history_is_bounded_and_a_log_that_begins_anew_has_a_new_one() {
        let start = Instant::now();
        let mut history = History::default();
        for second in 0..1000 {
            let end = i64::try_from(second).unwrap();
            history.note(end, at(start, second));
        }
        assert!(history.0.len() <= READINGS_MAX);
        for offset in 0..999 {
            let wanted = 999.0 - (offset as f64 + 1.0);
            let age = history.age(offset, at(start, 999));
            // The record came with the reading after its offset; a guess is between two readings that were kept.
            assert!((age - wanted).abs() <= 0.5 * wanted + 2.0, "{offset}: {age}, not {wanted}");
        }
        history.note(3, at(start, 1001));
        assert_eq!(history.0.len(), 1);
    }

    fn offset(group: &str, partition: i32, offset: i64, end: i64) -> OffsetCounted {
        let replica = ReplicaId(u64::try_from(partition).unwrap() + 1);
        let log = (end >= 0).then_some((replica, 2, end));
        OffsetCounted { group: group.into(), topic: "t".into(), partition, offset, log }
    }

    fn rows(tables: &[Table], name: &str) -> Vec<(String, Value)> {
        let table = tables.iter().find(|it| it.name == name).unwrap();
        let row = |(labels, value): &(Labels, Value)| (labels.join("/"), value.clone());
        table.rows.iter().map(row).collect()
    }

    #[test]
    fn the_rows_with_the_most_lag_stay_and_sums_have_all() {
        let mut draft = Draft::default();
        let many = i32::try_from(3 * METRIC_OFFSETS_MAX).unwrap();
        for partition in 0..many {
            draft.take_offset(offset("g", partition, 10, i64::from(partition) + 10));
        }
        let mut lags = Lags::default();
        lags.follow(&draft, Instant::now());
        let tables = lags.tables(draft, Instant::now());
        let shown = rows(&tables, "duramen_group_lag_records");
        assert_eq!(shown.len(), METRIC_OFFSETS_MAX);
        let largest = u64::try_from(many - 1).unwrap();
        assert_eq!(shown[0], (format!("g/t/{largest}"), Value::Whole(largest)));
        let dropped = rows(&tables, "duramen_group_offsets_without_row");
        assert_eq!(dropped[0].1, Value::Whole(2 * METRIC_OFFSETS_MAX as u64));
        let sum = (0..=largest).sum();
        assert_eq!(
            rows(&tables, "duramen_group_topic_lag_records"),
            [("g/t".to_owned(), Value::Whole(sum))]
        );
    }

    #[test]
    fn a_lag_counts_only_records_that_are_there_and_is_not_made_up() {
        let mut draft = Draft::default();
        draft.take_offset(offset("a", 0, 0, 10));
        draft.take_offset(offset("a", 1, 12, 10));
        draft.take_offset(offset("b", 0, 5, -1));
        let tables = Lags::default().tables(draft, Instant::now());
        let lag = |place: &str, lag| (place.to_owned(), Value::Whole(lag));
        assert_eq!(rows(&tables, "duramen_group_lag_records"), [lag("a/t/0", 8), lag("a/t/1", 0)]);
        assert_eq!(rows(&tables, "duramen_group_topic_lag_records"), [lag("a/t", 8)]);
        assert_eq!(rows(&tables, "duramen_group_topic_offsets"), [lag("a/t", 12), lag("b/t", 5)]);
        assert_eq!(rows(&tables, "duramen_group_offset").len(), 3);
    }
}
