//! Stretches of fast appends, for `duramen cluster status`.

use std::fmt::Write as _;

use duramen_client::NodeId;
use duramen_protocol::messages::describe_replicas::DescribedStretch;
use serde::Serialize;

use super::overview::Partition;
use crate::cli::screen::{self, Table};

/// Most stretches that the command lists one by one.
const LISTED_MAX: usize = 20;

/// Stretch that the leader of a partition has open.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Stretch {
    topic: String,
    partition: i32,
    /// Term and index of the entry that opened it.
    term: i64,
    index: i64,
    /// Nodes that hold batches for clients, the leader first.
    members: Vec<NodeId>,
}

/// Names the topics of stretches, and puts them in order.
pub(super) fn named(found: &[DescribedStretch], partitions: &[Partition]) -> Vec<Stretch> {
    let name = |it: &DescribedStretch| {
        let is_it = |partition: &&Partition| {
            (partition.topic_id, partition.index) == (it.topic_id, it.partition_index)
        };
        partitions.iter().find(is_it).map(|partition| partition.topic.clone())
    };
    let of = |it: &DescribedStretch| Stretch {
        topic: name(it).unwrap_or_else(|| it.topic_id.to_string()),
        partition: it.partition_index,
        term: it.stretch_term,
        index: it.stretch_index,
        members: it.members.clone(),
    };
    let mut all: Vec<Stretch> = found.iter().map(of).collect();
    all.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    all
}

/// Describes stretches for people; nothing where none is open.
pub(super) fn text(stretches: &[Stretch]) -> String {
    let mut text = String::new();
    if stretches.is_empty() {
        return text;
    }
    let count = screen::count(stretches.len(), "partition");
    writeln!(text, "\n{count} with fast appends, on the leader and members:\n")
        .expect("a string takes all");
    let mut table = Table::new(&["TOPIC", "PARTITION", "TERM", "ENTRY", "MEMBERS"]);
    for it in stretches.iter().take(LISTED_MAX) {
        let members = screen::list(&it.members);
        table.row(&[&it.topic, &it.partition, &it.term, &it.index, &members]);
    }
    text.push_str(&table.render());
    if let Some(more) = stretches.len().checked_sub(LISTED_MAX + 1) {
        writeln!(text, "and {} more; --output json lists all", more + 1)
            .expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_listed_by_topic_and_partition() {
        let stretch = |partition_index, members: &[NodeId]| DescribedStretch {
            partition_index,
            stretch_term: 3,
            stretch_index: 17,
            members: members.to_vec(),
            ..DescribedStretch::default()
        };
        let partition = |index| Partition {
            topic: "orders".to_owned(),
            topic_id: DescribedStretch::default().topic_id,
            index,
            leader: Some(1),
            replicas: vec![1, 2, 3],
            in_sync: vec![1, 2, 3],
            is_confirmed: true,
        };
        let found = [stretch(4, &[2, 3]), stretch(0, &[1, 2])];
        let all = named(&found, &[partition(0), partition(4)]);
        let expected = "\n2 partitions with fast appends, on the leader and members:\n\n\
            TOPIC   PARTITION  TERM  ENTRY  MEMBERS\n\
            orders          0     3     17  1,2\n\
            orders          4     3     17  2,3\n";
        assert_eq!(text(&all), expected);
        assert_eq!(text(&[]), "");
    }
}
