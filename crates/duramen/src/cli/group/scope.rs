//! Topics and partitions to which a change of a group is limited.

use anyhow::ensure;
use duramen_client::{Client, Partitions};
use duramen_protocol::error_code::ErrorCode;

use crate::cli::failure::explained;
use crate::cli::missing::{has_not, unknown};
use crate::cli::usage::topic_name;

/// `TOPIC` or `TOPIC:P,P,…`. Without partitions, all of them are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) topic: String,
    pub(super) partitions: Vec<i32>,
}

/// Reads a [`Scope`].
pub(super) fn scope(text: &str) -> Result<Scope, String> {
    let (topic, listed) = text.split_once(':').unwrap_or((text, ""));
    if topic.is_empty() || text.ends_with(':') {
        return Err(format!("`{text}` is not TOPIC or TOPIC:PARTITION,..."));
    }
    let topic = topic_name(topic)?;
    let number = |part: &str| part.trim().parse::<i32>().ok().filter(|part| *part >= 0);
    let partitions = match listed {
        "" => Some(Vec::new()),
        _ => listed.split(',').map(number).collect(),
    };
    let partitions = partitions.ok_or_else(|| format!("`{listed}` is not a list of partitions"))?;
    Ok(Scope { topic, partitions })
}

/// Finds the partitions that these scopes name, or all of a topic where a scope names none.
pub(super) async fn partitions_of(client: &Client, scopes: &[Scope]) -> anyhow::Result<Partitions> {
    let mut found = Partitions::new();
    for scope in scopes {
        let there = partitions_there(client, &scope.topic).await?;
        let Some(there) = there else {
            let text = format!("there is no topic {}", scope.topic);
            return Err(explained(ErrorCode::UnknownTopicOrPartition, text));
        };
        for partition in &scope.partitions {
            ensure!(there.contains(partition), has_not(&scope.topic, &there, *partition));
        }
        let named = if scope.partitions.is_empty() { &there } else { &scope.partitions };
        let partitions = found.entry(scope.topic.clone()).or_default();
        partitions.extend(named);
        partitions.sort_unstable();
        partitions.dedup();
    }
    Ok(found)
}

/// Finds the partitions of a topic. Returns `None` for a missing topic.
pub(super) async fn partitions_there(
    client: &Client,
    topic: &str,
) -> anyhow::Result<Option<Vec<i32>>> {
    match client.topic(topic, false).await {
        Ok(found) => {
            let mut there: Vec<i32> =
                found.partitions.iter().map(|part| part.partition_index).collect();
            there.sort_unstable();
            Ok(Some(there))
        }
        Err(error) if unknown(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_topics_with_or_without_partitions() {
        let is = |topic: &str, partitions: &[i32]| {
            Ok(Scope { topic: topic.into(), partitions: partitions.into() })
        };
        assert_eq!(scope("orders"), is("orders", &[]));
        assert_eq!(scope("orders:0"), is("orders", &[0]));
        assert_eq!(scope("orders:0,2, 7"), is("orders", &[0, 2, 7]));
        for text in ["", ":0", "orders:", "orders:a", "orders:-1", "orders:1,"] {
            assert!(scope(text).is_err(), "{text}");
        }
    }
}
