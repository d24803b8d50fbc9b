//! The resources of rules, as flags name them.

use clap::Args;
use duramen_broker::acls::{CLUSTER_NAME, Pattern, ResourceType, WILDCARD};

/// Resources of rules.
#[derive(Debug, Args)]
pub(super) struct Resources {
    /// Topic; NAME* for all whose names begin so, '*' for all; may be repeated
    #[arg(long = "topic", value_name = "NAME")]
    topics: Vec<String>,

    /// Group, in the same way
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,

    /// Transactional id, in the same way
    #[arg(long = "transactional-id", value_name = "NAME")]
    transactional_ids: Vec<String>,

    /// The cluster itself
    #[arg(long)]
    cluster_itself: bool,
}

/// Resource of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    pub kind: ResourceType,
    pub name: String,
    pub pattern: Pattern,
}

impl Resource {
    /// Reads a name that may end with a star.
    fn read(kind: ResourceType, text: &str) -> Self {
        let (name, pattern) = match text.strip_suffix('*') {
            Some(prefix) if !prefix.is_empty() => (prefix, Pattern::Prefixed),
            Some(_) => (WILDCARD, Pattern::Literal),
            None => (text, Pattern::Literal),
        };
        Self { kind, name: name.to_owned(), pattern }
    }
}

impl Resources {
    /// Returns all that are named.
    pub(super) fn all(&self) -> Vec<Resource> {
        let of = |kind, names: &[String]| -> Vec<Resource> {
            names.iter().map(|name| Resource::read(kind, name)).collect()
        };
        let cluster = self.cluster_itself.then(|| CLUSTER_NAME.to_owned());
        [
            of(ResourceType::Topic, &self.topics),
            of(ResourceType::Group, &self.groups),
            of(ResourceType::TransactionalId, &self.transactional_ids),
            of(ResourceType::Cluster, cluster.as_slice()),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_is_a_beginning_and_alone_it_is_everything() {
        let read = |text: &str| {
            let it = Resource::read(ResourceType::Topic, text);
            (it.name, it.pattern)
        };
        assert_eq!(read("orders"), ("orders".to_owned(), Pattern::Literal));
        assert_eq!(read("orders-*"), ("orders-".to_owned(), Pattern::Prefixed));
        assert_eq!(read("*"), ("*".to_owned(), Pattern::Literal));
    }
}
