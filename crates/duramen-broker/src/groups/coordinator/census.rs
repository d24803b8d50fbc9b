//! The groups of a coordinator and their committed offsets, in parts, for metrics.

use std::ops::Bound;
use std::sync::Arc;

use duramen_protocol::wire::Uuid;

use super::{Coordinator, Group};
use crate::event::Now;
use crate::groups::consumer::ConsumerGroup;
use crate::groups::rules::Rules;
use crate::groups::share::ShareGroup;

/// Row of a census.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupRow {
    /// A group: type, state, count of members.
    Group(Arc<str>, &'static str, &'static str, usize),
    /// A durable offset of the group before: topic, its id or zero, partition, offset.
    Offset(Arc<str>, Uuid, i32, i64),
}

/// The last row of a part: its group, and the topic and partition if it is an offset.
pub(crate) type GroupPlace = (Arc<str>, Option<(Arc<str>, i32)>);

impl Coordinator {
    /// Returns at most `limit` rows behind a place, with the place of each. With fewer rows, that is all.
    pub(crate) fn rows_after(
        &self,
        rules: &Rules,
        now: Now,
        after: Option<&GroupPlace>,
        limit: usize,
    ) -> Vec<(GroupPlace, GroupRow)> {
        let mut rows = Vec::new();
        let from = after.map_or(Bound::Unbounded, |(name, _)| Bound::Included(&**name));
        for (name, group) in self.groups.range::<str, _>((from, Bound::Unbounded)) {
            let begun = after.filter(|(at, _)| at == name);
            if begun.is_none() {
                rows.push(((Arc::clone(name), None), group.row(name, rules, now)));
            }
            let behind = begun.and_then(|(_, offset)| offset.as_ref());
            let behind = behind.map(|(topic, partition)| (&**topic, *partition));
            let room = limit.saturating_sub(rows.len());
            for (topic, partition, value) in group.offsets.committed_after(behind).take(room) {
                let place = (Arc::clone(name), Some((Arc::clone(topic), partition)));
                let row =
                    GroupRow::Offset(Arc::clone(topic), value.topic_id, partition, value.offset);
                rows.push((place, row));
            }
            if rows.len() >= limit {
                break;
            }
        }
        rows
    }
}

impl Group {
    fn row(&self, name: &Arc<str>, rules: &Rules, now: Now) -> GroupRow {
        let (kind, state, members) = if self.is_of_consumers() {
            let shown = |it: &ConsumerGroup| (it.state(), it.members_len());
            let (state, members) = self.shown(&rules.consumer, now, shown);
            ("consumer", state, members)
        } else if self.is_of_shares() {
            let shown = |it: &ShareGroup| (it.state(), it.members_len());
            let (state, members) = self.shown_share(&rules.share, now, shown);
            ("share", state, members)
        } else {
            ("classic", self.members.state().name(), self.members.len())
        };
        GroupRow::Group(Arc::clone(name), kind, state, members)
    }
}
