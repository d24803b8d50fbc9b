//! Kafka's settings that limit the copies of moves, as `kafka-reassign-partitions --throttle` sets them.

use std::collections::{BTreeMap, BTreeSet};

use duramen_client::{Client, NodeId};

use crate::cli::cluster::Move;

/// Limits of what a node sends and receives for throttled replicas, in bytes a second.
const RATES: [&str; 2] =
    ["leader.replication.throttled.rate", "follower.replication.throttled.rate"];
/// Replicas that send and receive within these limits.
const LISTS: [&str; 2] =
    ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"];
/// Letters of a list above which it becomes a star, which stands for all replicas.
const LETTERS_MAX: usize = 8_000;

/// Throttles the copies of these moves: the rate holds for each node.
pub(super) async fn begin(
    client: &Client,
    rate: u64,
    nodes: &[NodeId],
    moves: &[Move],
) -> anyhow::Result<()> {
    for id in nodes {
        let changes = RATES.map(|name| (name.to_owned(), Some(rate.to_string()))).into();
        client.alter_broker_configs(*id, &changes).await?;
    }
    for (topic, lists) in lists(moves) {
        let changes = LISTS.into_iter().map(str::to_owned).zip(lists.map(Some)).collect();
        client.alter_topic_configs(topic, &changes, false).await?;
    }
    Ok(())
}

/// Removes the settings, also those that an earlier run left behind.
pub(super) async fn end(
    client: &Client,
    nodes: &[NodeId],
    topics: &BTreeSet<&str>,
) -> anyhow::Result<()> {
    let topics: Vec<&str> = topics.iter().copied().collect();
    for topic in client.settings_of_topics(&topics, &LISTS).await?.keys() {
        let changes = LISTS.map(|name| (name.to_owned(), None)).into();
        client.alter_topic_configs(topic, &changes, false).await?;
    }
    for id in nodes {
        let changes = RATES.map(|name| (name.to_owned(), None)).into();
        client.alter_broker_configs(*id, &changes).await?;
    }
    Ok(())
}

/// Lists the replicas that send and those that receive, by topic.
fn lists(moves: &[Move]) -> BTreeMap<&str, [String; 2]> {
    let mut by_topic: BTreeMap<&str, [Vec<String>; 2]> = BTreeMap::new();
    for it in moves {
        let new: Vec<NodeId> =
            it.after.iter().filter(|id| !it.before.contains(id)).copied().collect();
        if new.is_empty() {
            continue;
        }
        let word = |id: &NodeId| format!("{}:{id}", it.partition);
        let [senders, receivers] = by_topic.entry(&it.topic).or_default();
        senders.extend(it.before.iter().map(word));
        receivers.extend(new.iter().map(word));
    }
    let text = |words: Vec<String>| {
        let text = words.join(",");
        if text.len() > LETTERS_MAX { "*".to_owned() } else { text }
    };
    by_topic.into_iter().map(|(topic, both)| (topic, both.map(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_and_receivers_are_listed_and_very_many_become_a_star() {
        let one = |topic: &str, partition, before: &[NodeId], after: &[NodeId]| Move {
            topic: topic.to_owned(),
            partition,
            before: before.to_vec(),
            after: after.to_vec(),
            done: false,
        };
        let mut moves = vec![
            one("a", 0, &[1, 2], &[2, 4]),
            one("a", 3, &[2, 3], &[4, 3]),
            one("b", 0, &[1, 2], &[2, 1]),
        ];
        let expected = ["0:1,0:2,3:2,3:3", "0:4,3:4"].map(str::to_owned);
        assert_eq!(lists(&moves), BTreeMap::from([("a", expected)]), "an order copies nothing");
        moves.extend((4..2000).map(|partition| one("a", partition, &[1], &[4])));
        assert_eq!(lists(&moves)["a"], ["*", "*"]);
    }
}
