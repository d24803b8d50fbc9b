//! Who is to have what: by examples, and by what must be so whatever was asked.

use super::*;
use crate::prng::Prng;

fn topic(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// A group: who is subscribed to what, and what was decided last.
struct Group {
    members: BTreeMap<String, Vec<Uuid>>,
    sizes: Sizes,
    targets: BTreeMap<String, Shares>,
}

impl Group {
    fn new(sizes: &[i32]) -> Self {
        let sizes = (1..).map(topic).zip(sizes.iter().copied()).collect();
        Self { members: BTreeMap::new(), sizes, targets: BTreeMap::new() }
    }

    /// A member that is subscribed to topics by their numbers.
    fn with(mut self, id: &str, topics: &[u128]) -> Self {
        self.members.insert(id.to_owned(), topics.iter().map(|it| topic(*it)).collect());
        self
    }

    fn assign(&mut self, assignor: Assignor) {
        let none = Shares::new();
        let applicant = |(id, topics): (&'_ String, &Vec<Uuid>)| (id.clone(), topics.clone());
        let them: Vec<_> = self.members.iter().map(applicant).collect();
        let applicants: Vec<_> = them
            .iter()
            .map(|(id, topics)| Applicant {
                id,
                instance: None,
                topics,
                target: self.targets.get(id).unwrap_or(&none),
            })
            .collect();
        let shares = assignor.assign(&applicants, |topic| self.sizes[&topic]);
        let targets = them.iter().map(|(id, _)| id.clone()).zip(shares).collect();
        self.targets = targets;
        self.check();
    }

    /// Every partition that somebody wants has one owner, who wants it.
    fn check(&self) {
        let mut owned = BTreeSet::new();
        for (id, shares) in &self.targets {
            for (topic, partitions) in shares {
                assert!(self.members[id].contains(topic), "{id} does not want {topic}");
                assert!(!partitions.is_empty() && partitions.is_sorted(), "{partitions:?}");
                for part in partitions {
                    assert!(*part < self.sizes[topic], "there is no {topic}-{part}");
                    assert!(owned.insert((*topic, *part)), "{topic}-{part} has two owners");
                }
            }
        }
        let wanted: BTreeSet<&Uuid> = self.members.values().flatten().collect();
        let there: i32 = wanted.iter().map(|topic| self.sizes[*topic]).sum();
        assert_eq!(owned.len(), usize::try_from(there).expect("small"), "some have no owner");
    }

    fn load(&self, id: &str) -> usize {
        self.targets[id].values().map(Vec::len).sum()
    }

    fn loads(&self) -> Vec<usize> {
        self.members.keys().map(|id| self.load(id)).collect()
    }

    /// How many partitions have the owner that they had before.
    fn stayed(&self, before: &BTreeMap<String, Shares>) -> usize {
        let mut stayed = 0;
        for (id, shares) in &self.targets {
            for (topic, partitions) in shares {
                let had = before.get(id).and_then(|it| it.get(topic));
                stayed +=
                    partitions.iter().filter(|it| had.is_some_and(|had| had.contains(it))).count();
            }
        }
        stayed
    }

    /// No one move of a partition would make it more even.
    fn check_level(&self) {
        for (id, shares) in &self.targets {
            for topic in shares.keys() {
                for other in self.members.keys().filter(|it| self.members[*it].contains(topic)) {
                    assert!(
                        self.load(id) <= self.load(other) + 1,
                        "{id} could give {other} some of {topic}"
                    );
                }
            }
        }
    }
}

#[test]
fn uniform_gives_everybody_as_much() {
    let mut group = Group::new(&[7]).with("a", &[1]).with("b", &[1]).with("c", &[1]);
    group.assign(Assignor::Uniform);
    assert_eq!(group.loads(), [3, 2, 2]);
}

#[test]
fn uniform_spreads_every_topic() {
    let mut group = Group::new(&[2, 2]).with("a", &[1, 2]).with("b", &[1, 2]);
    group.assign(Assignor::Uniform);
    assert_eq!(group.targets["a"], Shares::from([(topic(1), vec![0]), (topic(2), vec![0])]));
}

#[test]
fn uniform_moves_no_more_than_it_must() {
    let mut group = Group::new(&[6, 6]).with("a", &[1, 2]).with("b", &[1, 2]);
    group.assign(Assignor::Uniform);
    let before = group.targets.clone();
    group = group.with("c", &[1, 2]);
    group.assign(Assignor::Uniform);
    assert_eq!((group.loads(), group.stayed(&before)), (vec![4, 4, 4], 8));
    let before = group.targets.clone();
    group.members.remove("b");
    group.assign(Assignor::Uniform);
    assert_eq!((group.loads(), group.stayed(&before)), (vec![6, 6], 8));
    let before = group.targets.clone();
    group.assign(Assignor::Uniform);
    assert_eq!(group.targets, before, "nothing has changed");
}

#[test]
fn uniform_follows_topics_that_grow_and_go() {
    let mut group = Group::new(&[4, 4]).with("a", &[1, 2]).with("b", &[1, 2]);
    group.assign(Assignor::Uniform);
    let before = group.targets.clone();
    group.sizes.insert(topic(1), 6);
    group.assign(Assignor::Uniform);
    assert_eq!((group.loads(), group.stayed(&before)), (vec![5, 5], 8));
    group.members.values_mut().for_each(|topics| *topics = vec![topic(2)]);
    group.assign(Assignor::Uniform);
    assert_eq!(group.loads(), [2, 2]);
}

#[test]
fn uniform_is_fair_to_those_who_want_other_topics() {
    let mut group = Group::new(&[2, 4]).with("a", &[1]).with("b", &[1, 2]).with("c", &[2]);
    group.assign(Assignor::Uniform);
    assert_eq!(group.loads(), [2, 2, 2]);
    group.check_level();
}

#[test]
fn range_gives_everybody_a_piece_of_each_topic() {
    let mut group = Group::new(&[3, 2]).with("a", &[1, 2]).with("b", &[1, 2]);
    group.assign(Assignor::Range);
    assert_eq!(group.targets["a"], Shares::from([(topic(1), vec![0, 1]), (topic(2), vec![0])]));
    assert_eq!(group.targets["b"], Shares::from([(topic(1), vec![2]), (topic(2), vec![1])]));
}

#[test]
fn range_puts_static_names_first() {
    let none = Shares::new();
    let topics = [topic(1)];
    let applicant = |id, instance| Applicant { id, instance, topics: &topics, target: &none };
    let them = [applicant("a", None), applicant("b", Some("y")), applicant("c", Some("x"))];
    let shares = Assignor::Range.assign(&them, |_| 3);
    let first = |it: &Shares| it[&topic(1)][0];
    assert_eq!(shares.iter().map(first).collect::<Vec<_>>(), [2, 1, 0]);
}

#[test]
fn nobody_is_given_nothing() {
    assert!(Assignor::Uniform.assign(&[], |_| 1).is_empty());
    let mut group = Group::new(&[0]).with("a", &[1]).with("b", &[]);
    for assignor in Assignor::ALL {
        group.assign(assignor);
        assert_eq!(group.loads(), [0, 0]);
    }
}

#[test]
fn whatever_is_asked_partitions_have_one_owner_who_wants_them() {
    for seed in 0..300 {
        let mut chance = Prng::stream(seed, 1);
        let mut below = |bound: u64| i32::try_from(chance.below(bound)).expect("small");
        let sizes: Vec<i32> = (0..=below(6)).map(|_| below(9)).collect();
        let mut group = Group::new(&sizes);
        let is_mixed = below(2) == 0;
        for _ in 0..12 {
            let id = format!("m{}", below(8));
            if below(3) == 0 {
                group.members.remove(&id);
            } else {
                let all = group.sizes.keys().copied();
                let topics = all.filter(|_| !is_mixed || below(2) == 0).collect();
                group.members.insert(id, topics);
            }
            if below(4) == 0 {
                let grown = topic(1);
                *group.sizes.get_mut(&grown).expect("there is one") += 1;
            }
            let assignor = if below(5) == 0 { Assignor::Range } else { Assignor::Uniform };
            group.assign(assignor);
            if assignor == Assignor::Uniform {
                group.check_level();
                let before = group.targets.clone();
                group.assign(assignor);
                assert_eq!(group.targets, before, "seed {seed}: asked again");
            }
        }
    }
}
