//! Requests and answers about topics.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::records::to_hex;
use crate::proto;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CreateTopic {
    /// 0 for the cluster's default.
    #[schema(minimum = 0)]
    pub partitions: i32,
    /// 0 for the cluster's default.
    #[schema(minimum = 0)]
    pub replication_factor: i32,
    /// Kafka's settings of topics, by name.
    pub settings: HashMap<String, String>,
}

impl CreateTopic {
    pub(crate) fn message(self, name: String) -> proto::CreateTopicRequest {
        let Self { partitions, replication_factor, settings } = self;
        proto::CreateTopicRequest { name, partitions, replication_factor, settings }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Topic {
    pub name: String,
    pub id: String,
    pub partitions: i32,
    pub replication_factor: i32,
    pub settings: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Topics {
    pub topics: Vec<Topic>,
    pub more: bool,
}

impl From<proto::Topic> for Topic {
    fn from(it: proto::Topic) -> Self {
        Self {
            name: it.name,
            id: to_hex(&it.id),
            partitions: it.partitions,
            replication_factor: it.replication_factor,
            settings: it.settings.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_shows_its_id_in_hexadecimal_digits() {
        let topic = proto::Topic { id: vec![0xab; 16].into(), ..proto::Topic::default() };
        assert_eq!(Topic::from(topic).id, "ab".repeat(16));
        let misspelt = serde_json::from_str::<CreateTopic>(r#"{"partition":3}"#);
        assert!(misspelt.is_err_and(|error| error.to_string().contains("partition")));
    }
}
