//! Rules by which the leader of a group assigns partitions to its members, as stock consumers do under the same names.

use std::collections::BTreeMap;

/// Partitions by topic.
pub type Partitions = BTreeMap<String, Vec<i32>>;

/// A member of a group, as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subscriber {
    /// Its id.
    pub(crate) member_id: String,
    /// The name that it keeps across restarts.
    pub(crate) instance_id: Option<String>,
    /// Topics that the member subscribes to.
    pub(crate) topics: Vec<String>,
}

/// A way to share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assignor {
    /// Each topic is cut into as many runs as there are members.
    Range,
    /// Partitions are dealt like cards.
    RoundRobin,
}

impl Assignor {
    /// Assignors that this client knows; the one it likes best stands first.
    pub(crate) const ALL: [Self; 2] = [Self::Range, Self::RoundRobin];

    /// Returns the name under which consumers agree on it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::RoundRobin => "roundrobin",
        }
    }

    /// Returns the assignor of that name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// Assigns partitions to each member, by its id. `counts` is the number of partitions of each topic that exists.
    pub(crate) fn share(
        self,
        mut members: Vec<Subscriber>,
        counts: &BTreeMap<String, i32>,
    ) -> BTreeMap<String, Partitions> {
        // Every client sorts in this order, so that it does not matter which of them leads.
        members.sort_by(|a, b| {
            let kept = |member: &Subscriber| member.instance_id.is_none();
            (kept(a), &a.instance_id, &a.member_id).cmp(&(kept(b), &b.instance_id, &b.member_id))
        });
        let mut shares: BTreeMap<String, Partitions> =
            members.iter().map(|member| (member.member_id.clone(), Partitions::new())).collect();
        let mut give = |member: &Subscriber, topic: &str, partition: i32| {
            let share = shares.get_mut(&member.member_id).expect("every member has a share");
            share.entry(topic.to_owned()).or_default().push(partition);
        };
        let mut turn = 0;
        for (topic, count) in counts {
            let wants = |member: &&Subscriber| member.topics.contains(topic);
            let readers: Vec<&Subscriber> = members.iter().filter(wants).collect();
            let Ok(reader_count) = i32::try_from(readers.len()) else { continue };
            if reader_count == 0 {
                continue;
            }
            match self {
                Self::Range => {
                    let (each, more) = (count / reader_count, count % reader_count);
                    let mut next = 0;
                    for (place, member) in (0..).zip(&readers) {
                        let end = next + each + i32::from(place < more);
                        while next < end {
                            give(member, topic, next);
                            next += 1;
                        }
                    }
                }
                Self::RoundRobin => {
                    for partition in 0..*count {
                        while !members[turn % members.len()].topics.contains(topic) {
                            turn += 1;
                        }
                        give(&members[turn % members.len()], topic, partition);
                        turn += 1;
                    }
                }
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, instance: Option<&str>, topics: &[&str]) -> Subscriber {
        Subscriber {
            member_id: id.into(),
            instance_id: instance.map(Into::into),
            topics: topics.iter().map(|topic| (*topic).into()).collect(),
        }
    }

    fn counts(counts: &[(&str, i32)]) -> BTreeMap<String, i32> {
        counts.iter().map(|(topic, count)| ((*topic).into(), *count)).collect()
    }

    fn shown(shares: &BTreeMap<String, Partitions>) -> String {
        let share = |(member, share): (&String, &Partitions)| format!("{member} {share:?}");
        shares.iter().map(share).collect::<Vec<_>>().join("; ")
    }

    /// The example in the documentation of Kafka's `RangeAssignor`.
    #[test]
    fn range_cuts_each_topic_into_runs() {
        let members = vec![member("C1", None, &["t0", "t1"]), member("C0", None, &["t0", "t1"])];
        let shares = Assignor::Range.share(members, &counts(&[("t0", 3), ("t1", 3)]));
        assert_eq!(shown(&shares), r#"C0 {"t0": [0, 1], "t1": [0, 1]}; C1 {"t0": [2], "t1": [2]}"#);
    }

    /// The examples in the documentation of Kafka's `RoundRobinAssignor`.
    #[test]
    fn round_robin_deals_partitions_to_those_who_want_them() {
        let members = vec![member("C0", None, &["t0", "t1"]), member("C1", None, &["t0", "t1"])];
        let shares = Assignor::RoundRobin.share(members, &counts(&[("t0", 3), ("t1", 3)]));
        assert_eq!(shown(&shares), r#"C0 {"t0": [0, 2], "t1": [1]}; C1 {"t0": [1], "t1": [0, 2]}"#);
        let members = vec![
            member("C0", None, &["t0"]),
            member("C1", None, &["t0", "t1"]),
            member("C2", None, &["t0", "t1", "t2"]),
        ];
        let three = counts(&[("t0", 1), ("t1", 2), ("t2", 3)]);
        let shares = Assignor::RoundRobin.share(members, &three);
        assert_eq!(
            shown(&shares),
            r#"C0 {"t0": [0]}; C1 {"t1": [0]}; C2 {"t1": [1], "t2": [0, 1, 2]}"#
        );
    }

    #[test]
    fn members_that_keep_their_names_come_first_in_the_order_of_these() {
        let members = vec![
            member("a", None, &["t"]),
            member("z", Some("i1"), &["t"]),
            member("b", Some("i2"), &["t"]),
        ];
        let shares = Assignor::Range.share(members, &counts(&[("t", 5)]));
        assert_eq!(shown(&shares), r#"a {"t": [4]}; b {"t": [2, 3]}; z {"t": [0, 1]}"#);
    }

    #[test]
    fn nobody_is_left_out_and_nothing_is_given_twice() {
        for assignor in Assignor::ALL {
            for (readers, count) in (1..6).flat_map(|readers| (0..13).map(move |n| (readers, n))) {
                let id = |n| member(&format!("m{n}"), None, &["t", "gone"]);
                let shares =
                    assignor.share((0..readers).map(id).collect(), &counts(&[("t", count)]));
                assert_eq!(shares.len(), readers, "a member without a share is told so");
                let mut given: Vec<_> =
                    shares.values().filter_map(|share| share.get("t")).flatten().collect();
                given.sort_unstable();
                assert!(given.into_iter().copied().eq(0..count), "{assignor:?} {readers} {count}");
            }
        }
    }
}
