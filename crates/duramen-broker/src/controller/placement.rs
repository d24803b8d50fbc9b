//! Which nodes get the replicas of a new topic.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::CreatableReplicaAssignment;

use super::Error;
use crate::limits::TOPIC_PARTITIONS_MAX;

/// Spreads `partitions` over the nodes `brokers`, beginning at node `start`.
pub(super) fn spread(
    brokers: &[i32],
    partitions: i32,
    replication_factor: i16,
    start: usize,
) -> Result<Vec<Vec<i32>>, Error> {
    if !(1..=TOPIC_PARTITIONS_MAX).contains(&partitions) {
        let text = format!("a topic has between 1 and {TOPIC_PARTITIONS_MAX} partitions");
        return Err(Error::new(ErrorCode::InvalidPartitions, text));
    }
    let replicas = usize::try_from(replication_factor).unwrap_or(0);
    if replicas == 0 || replicas > brokers.len() {
        let text = format!(
            "the replication factor is {replication_factor}, but there are {} brokers",
            brokers.len()
        );
        return Err(Error::new(ErrorCode::InvalidReplicationFactor, text));
    }
    let first = |partition: i32| start + usize::try_from(partition).expect("it is positive");
    let place = |partition| {
        let from = first(partition);
        (0..replicas).map(|n| brokers[(from + n) % brokers.len()]).collect()
    };
    Ok((0..partitions).map(place).collect())
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

    #[test]
    fn replicas_are_spread_and_never_twice_on_a_node() {
        let placed = spread(&[1, 2, 3], 4, 2, 0).expect("enough brokers");
        assert_eq!(placed, [[1, 2], [2, 3], [3, 1], [1, 2]]);
        let code = |result: Result<_, Error>| result.expect_err("refused").code;
        assert_eq!(code(spread(&[1], 1, 2, 0)), ErrorCode::InvalidReplicationFactor);
        assert_eq!(code(spread(&[1], 0, 1, 0)), ErrorCode::InvalidPartitions);
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
