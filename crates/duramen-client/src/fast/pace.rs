//! # Room card: pace
//!
//! Purpose:    tell when members are late.
//! Owns:       the time that members took lately, and when each of them answered last.
//! Interface:  [`Pace::note`], [`Pace::hear`], [`Pace::usual`], [`Pace::late_at`].
//! Invariants: a batch is not late for ever: see [`LATE_TIMES`].
//! Never:      batches, and who is a member.
//! Tests:      below.
//! Start at:   [`Pace::late_at`].

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::node_id::NodeId;

/// Times of being late after which a batch is late, whoever answers.
const LATE_TIMES: u32 = 4;

/// See the room card.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Mean time, and mean difference from it, as in RFC 6298.
    recent: Option<(Duration, Duration)>,
    /// Time of each member's last answer.
    heard: BTreeMap<NodeId, Instant>,
}

impl Pace {
    /// Notes how long the members of a batch took.
    pub(super) fn note(&mut self, took: Duration) {
        let (mean, spread) = self.recent.unwrap_or((took, took / 2));
        let spread = (spread * 3 + took.abs_diff(mean)) / 4;
        self.recent = Some(((mean * 7 + took) / 8, spread));
    }

    /// Notes that a member answers.
    pub(super) fn hear(&mut self, member: NodeId) {
        self.heard.insert(member, Instant::now());
    }

    /// Returns the time within which members usually answer: the mean, and four times the usual difference from it.
    pub(super) fn usual(&self) -> Duration {
        self.recent.map_or(Duration::ZERO, |(mean, spread)| mean + spread * 4)
    }

    /// Returns the time at which a batch is late that these members have not answered. A member that has just answered
    /// others may have this batch in its queue, so its answer counts from then on. `None` if nobody is missing.
    pub(super) fn late_at(
        &self,
        sent: Instant,
        late_after: Duration,
        missing: impl Iterator<Item = NodeId>,
    ) -> Option<Instant> {
        let heard = |member| self.heard.get(&member).map_or(sent, |at| sent.max(*at));
        let late = missing.map(heard).min()? + late_after;
        Some(late.min(sent + late_after * LATE_TIMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn members_are_late_by_their_usual_time_and_its_spread() {
        let mut pace = Pace::default();
        assert_eq!(pace.usual(), Duration::ZERO);
        for _ in 0..200 {
            pace.note(10 * MS);
        }
        assert!(pace.usual() < 11 * MS, "{:?}", pace.usual());
        for took in [8, 12].repeat(100) {
            pace.note(took * MS);
        }
        assert!((15 * MS..20 * MS).contains(&pace.usual()), "{:?}", pace.usual());
    }

    #[test]
    fn a_member_that_answers_others_has_more_time_and_not_for_ever() {
        let sent = Instant::now();
        let mut pace = Pace::default();
        let late = |pace: &Pace, missing: &[NodeId]| {
            let late = pace.late_at(sent, 5 * MS, missing.iter().copied());
            late.map(|at| at - sent)
        };
        assert_eq!(late(&pace, &[7, 8]), Some(5 * MS));
        pace.heard.insert(7, sent + 4 * MS);
        assert_eq!(late(&pace, &[7]), Some(9 * MS));
        assert_eq!(late(&pace, &[7, 8]), Some(5 * MS), "nothing is heard of the other one");
        pace.heard.insert(7, sent + 90 * MS);
        assert_eq!(late(&pace, &[7]), Some(20 * MS));
        assert_eq!(late(&pace, &[]), None);
    }
}
