//! Choice of the nodes that get the replicas of a new topic.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::CreatableReplicaAssignment;

use super::Error;
use crate::limits::TOPIC_PARTITIONS_MAX;

/// A node, and where it stands.
pub(super) type Site<'a> = (i32, Option<&'a str>);

/// Orders the nodes so that neighbours stand in different racks, as far as possible. All nodes without a rack count as
/// one rack.
fn alternated<'a>(sites: &[Site<'a>]) -> Vec<Site<'a>> {
    let mut racks: BTreeMap<Option<&str>, VecDeque<i32>> = BTreeMap::new();
    for (id, rack) in sites {
        racks.entry(*rack).or_default().push_back(*id);
    }
    let mut order = Vec::with_capacity(sites.len());
    while order.len() < sites.len() {
        for (rack, ids) in &mut racks {
            order.extend(ids.pop_front().map(|id| (id, *rack)));
        }
    }
    assert_eq!(order.len(), sites.len(), "each node has its place in the order");
    order
}

/// Spreads `partitions` over nodes, beginning at node `start`. The first replicas go around all nodes, and the other
/// replicas of one node's partitions spread over several next nodes. Each rack has one replica before any rack has two.
pub(super) fn spread(
    sites: &[Site<'_>],
    partitions: i32,
    replication_factor: i16,
    start: usize,
) -> Result<Vec<Vec<i32>>, Error> {
    if !(1..=TOPIC_PARTITIONS_MAX).contains(&partitions) {
        let text = format!("a topic has between 1 and {TOPIC_PARTITIONS_MAX} partitions");
        return Err(Error::new(ErrorCode::InvalidPartitions, text));
    }
    let replicas = usize::try_from(replication_factor).unwrap_or(0);
    if replicas == 0 || replicas > sites.len() {
        let text = format!(
            "the replication factor is {replication_factor}, but there are {} brokers",
            sites.len()
        );
        return Err(Error::new(ErrorCode::InvalidReplicationFactor, text));
    }
    let sites = alternated(sites);
    let racks: BTreeSet<_> = sites.iter().map(|(_, rack)| *rack).collect();
    let place = |partition: i32| {
        let at = start + usize::try_from(partition).expect("it is positive");
        let (first, round) = (at % sites.len(), at / sites.len());
        let others = sites.len() - 1;
        let other = |n: usize| sites[(first + 1 + (round + n) % others) % sites.len()];
        let mut left: Vec<Site<'_>> = (0..others).map(other).collect();
        let mut placed = vec![sites[first].0];
        let mut used = BTreeSet::from([sites[first].1]);
        while placed.len() < replicas {
            let is_new = |site: &Site<'_>| !used.contains(&site.1);
            let next = left.iter().position(is_new).unwrap_or(0);
            let (id, rack) = left.remove(next);
            placed.push(id);
            used.insert(rack);
            if used.len() == racks.len() {
                used.clear();
            }
        }
        debug_assert!(
            (1..placed.len()).all(|at| !placed[..at].contains(&placed[at])),
            "a node has one replica of a partition"
        );
        placed
    };
    Ok((0..partitions).map(place).collect())
}

/// Lets the first replica of each partition be on none of these nodes, where it has another one.
pub(super) fn led_elsewhere(mut placed: Vec<Vec<i32>>, full: &BTreeSet<i32>) -> Vec<Vec<i32>> {
    for replicas in &mut placed {
        let first = replicas.iter().position(|id| !full.contains(id)).unwrap_or(0);
        replicas[..=first].rotate_right(1);
    }
    placed
}

/// Takes an assignment that the client wrote by hand.
pub(super) fn manual(
    brokers: &[i32],
    assignments: &[CreatableReplicaAssignment],
) -> Result<Vec<Vec<i32>>, Error> {
    let refuse = |text: String| Err(Error::new(ErrorCode::InvalidReplicaAssignment, text));
    let mut sorted: Vec<_> = assignments.iter().collect();
    sorted.sort_by_key(|assignment| assignment.partition_index);
    let mut placed = Vec::with_capacity(sorted.len());
    for (expected, assignment) in (0..).zip(sorted) {
        let ids = &assignment.broker_ids;
        if assignment.partition_index != expected {
            return refuse("partitions must be numbered from 0 without gaps".to_owned());
        }
        if ids.is_empty() || ids.len() != assignments[0].broker_ids.len() {
            return refuse("all partitions need the same number of replicas".to_owned());
        }
        if let Some(unknown) = ids.iter().find(|id| !brokers.contains(id)) {
            return refuse(format!("there is no broker {unknown}"));
        }
        if (1..ids.len()).any(|at| ids[..at].contains(&ids[at])) {
            return refuse("a broker is named twice for one partition".to_owned());
        }
        placed.push(ids.clone());
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites<'a>(racks: &[Option<&'a str>]) -> Vec<Site<'a>> {
        (1..).zip(racks.iter().copied()).collect()
    }

    #[test]
    fn replicas_are_spread_and_never_twice_on_a_node() {
        let placed = spread(&sites(&[None; 3]), 4, 2, 0).expect("enough brokers");
        assert_eq!(placed, [[1, 2], [2, 3], [3, 1], [1, 3]]);
        let code = |result: Result<_, Error>| result.expect_err("refused").code;
        assert_eq!(code(spread(&sites(&[None]), 1, 2, 0)), ErrorCode::InvalidReplicationFactor);
        assert_eq!(code(spread(&sites(&[None]), 0, 1, 0)), ErrorCode::InvalidPartitions);
        assert_eq!(spread(&sites(&[None]), 2, 1, 5).expect("enough brokers"), [[1], [1]]);
    }

    #[test]
    fn each_rack_has_a_replica_before_any_has_two() {
        let racks = [Some("a"), Some("a"), Some("b"), Some("b"), Some("c"), None];
        let of = |id: &i32| racks[usize::try_from(*id).expect("small") - 1];
        for (nodes, factor) in [(6, 4), (6, 3), (6, 6), (5, 3), (4, 2), (2, 2)] {
            let sites = sites(&racks[..nodes]);
            let there: BTreeSet<_> = sites.iter().map(|site| site.1).collect();
            let mut led = BTreeMap::new();
            for start in 0..60 {
                let placed = spread(&sites, 60, factor, start).expect("enough brokers");
                for replicas in &placed {
                    let nodes: BTreeSet<_> = replicas.iter().collect();
                    assert_eq!(nodes.len(), replicas.len(), "{replicas:?}");
                    let racks: BTreeSet<_> = replicas.iter().map(of).collect();
                    assert_eq!(racks.len(), there.len().min(replicas.len()), "{replicas:?}");
                    *led.entry(replicas[0]).or_insert(0) += 1;
                }
            }
            let (least, most) = (led.values().min(), led.values().max());
            assert_eq!(least, most, "each is the first as often as any other: {led:?}");
        }
    }

    #[test]
    fn a_manual_assignment_is_dense_and_names_known_brokers() {
        let row = |partition_index, ids: &[i32]| CreatableReplicaAssignment {
            partition_index,
            broker_ids: ids.to_vec(),
        };
        let good = [row(1, &[2, 1]), row(0, &[1, 2])];
        assert_eq!(manual(&[1, 2], &good).expect("good"), [[1, 2], [2, 1]]);
        for bad in [
            vec![row(0, &[1]), row(2, &[1])],
            vec![row(0, &[3])],
            vec![row(0, &[1, 1])],
            vec![row(0, &[1]), row(1, &[1, 2])],
            vec![row(0, &[])],
        ] {
            assert!(manual(&[1, 2], &bad).is_err());
        }
    }
}
