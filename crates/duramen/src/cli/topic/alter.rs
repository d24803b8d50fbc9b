//! `duramen topic alter`: settings and partitions of topics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::ensure;
use clap::{ArgGroup, Args};
use duramen_broker::configs::nearest;
use duramen_client::{Client, Error, NodeId};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::describe_configs::DescribeConfigsResourceResult;
use serde::Serialize;

use super::source::{SOURCE_TOPIC, source};
use crate::cli::bootstrap::Cluster;
use crate::cli::cluster::overview::Overview;
use crate::cli::cluster::{Move, carry_out};
use crate::cli::failure::explained;
use crate::cli::missing::unknown_topic;
use crate::cli::screen;
use crate::cli::usage::{joined, key_value, misuse, once, settings, topic_name};

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("change").required(true).multiple(true),
    override_usage = "duramen topic alter [OPTIONS] <NAMES>... --config <KEY=VALUE>
       duramen topic alter [OPTIONS] <NAMES>... --delete-config <KEY>
       duramen topic alter [OPTIONS] <NAMES>... --partitions <N>
       duramen topic alter [OPTIONS] <NAMES>... --replication-factor <N>",
    after_help = "Settings that you do not name keep their values. The command checks every change of every topic
before it makes the first.

New partitions do not move records. Records with a key may go to another partition from then on. So
the order of one key's records holds only among those before the change, and among those after it.

The command places additional replicas on the racks, and then the nodes, with the fewest. It removes
replicas that share a rack, then those on the nodes with the most, and keeps the first replica, the
preferred leader. Producers and consumers go on. The command waits until every replica has a copy of
the log.

The command alters one topic after the other. If one fails, it alters the others nevertheless.

Examples:
  duramen topic alter orders --config retention.ms=86400000
  duramen topic alter orders --delete-config retention.ms --dry-run
  duramen topic alter orders audit --partitions 12
  duramen topic alter orders --replication-factor 3"
)]
pub(super) struct Alter {
    /// The topics' names
    #[arg(required = true, value_parser = topic_name)]
    names: Vec<String>,
    /// Setting and its new value; may be repeated
    #[arg(
        long = "config",
        short,
        value_name = "KEY=VALUE",
        value_parser = key_value,
        group = "change"
    )]
    configs: Vec<(String, String)>,
    /// Setting that gets the broker's value again; may be repeated
    #[arg(
        id = "deleted",
        long = "delete-config",
        short = 'd',
        value_name = "KEY",
        group = "change"
    )]
    deleted: Vec<String>,
    /// New number of partitions, at least the present one
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..), group = "change")]
    partitions: Option<i32>,
    /// New number of replicas of each partition
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), group = "change")]
    replication_factor: Option<u16>,
    /// Only check, and show the changes
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Changes of one topic.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Plan {
    topic: String,
    /// False after a mere check, or without a change.
    altered: bool,
    configs: Vec<ConfigChange>,
    /// Absent, as the field below, if the user did not ask for it.
    partitions: Option<PartitionChange>,
    replication_factor: Option<FactorChange>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ConfigChange {
    name: String,
    before: Option<String>,
    before_source: &'static str,
    /// Absent where the broker does not return its own value.
    after: Option<String>,
    /// True if the change removes the topic's own value.
    deleted: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct PartitionChange {
    before: i32,
    after: i32,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct FactorChange {
    /// Replicas of the partition that has the most.
    before: usize,
    after: usize,
    moves: Vec<Move>,
}

/// Most partitions whose replicas the command adds or removes at once.
const MOVES_AT_ONCE: usize = 50;

impl Alter {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let set = settings(&self.configs)?;
        if let Some(name) = set.keys().find(|name| self.deleted.contains(name)) {
            return Err(misuse(format!("{name} is both set and deleted; choose one")));
        }
        let client = self.cluster.connect().await?;
        let names = once(&self.names);
        let mut plans = Vec::new();
        for name in &names {
            plans.push(self.plan(&client, name).await?);
        }
        for plan in &mut plans {
            plan.execute(&client, true).await?;
        }
        let mut failures = Vec::new();
        if !self.dry_run {
            plans = carried_out(&client, plans, &mut failures).await;
        }
        // Print the altered topics, although another failed.
        if failures.is_empty() || !plans.is_empty() {
            self.cluster.output.print(&plans, || plans.iter().map(Plan::text).collect())?;
        }
        joined(names.len(), failures)
    }

    async fn plan(&self, client: &Client, name: &str) -> anyhow::Result<Plan> {
        let topic = client.topic(name, false).await.map_err(unknown_topic(name))?;
        let known = client.topic_configs(name).await?;
        let set = once(&self.configs).into_iter().map(|(key, value)| (key, Some(value)));
        let asked = set.chain(once(&self.deleted).into_iter().map(|key| (key, None)));
        let configs = asked.map(|(key, value)| change(&known, key, value.cloned()));
        let configs = configs.collect::<anyhow::Result<_>>()?;
        let before = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        let partitions = self.partitions.map(|after| PartitionChange { before, after });
        if let Some(PartitionChange { before, after }) = &partitions {
            ensure!(
                before <= after,
                "topic {name} has {}; they can become more, but not {after}: records would be lost",
                screen::count(*before, "partition")
            );
        }
        let replication_factor = match self.replication_factor {
            Some(factor) => Some(FactorChange::plan(client, name, factor.into()).await?),
            None => None,
        };
        Ok(Plan { topic: name.into(), altered: false, configs, partitions, replication_factor })
    }
}

/// Alters one topic after the other. Returns the executed plans.
async fn carried_out(
    client: &Client,
    plans: Vec<Plan>,
    failures: &mut Vec<anyhow::Error>,
) -> Vec<Plan> {
    let mut done = Vec::new();
    for mut plan in plans {
        match plan.execute(client, false).await {
            Ok(()) => {
                plan.altered = plan.changes();
                done.push(plan);
            }
            Err(error) => {
                failures
                    .push(error.context(format!("not all of topic {} was altered", plan.topic)));
            }
        }
    }
    done
}

impl FactorChange {
    async fn plan(client: &Client, name: &str, factor: usize) -> anyhow::Result<Self> {
        let overview = Overview::gather(client).await?;
        let up = overview.nodes.iter().filter(|(_, node)| node.answers || node.is_live);
        let up: BTreeSet<NodeId> = up.map(|(id, _)| *id).collect();
        let mut load = overview.load();
        let mut change = Self { before: 0, after: factor, moves: Vec::new() };
        for it in overview.partitions.iter().filter(|it| it.topic == name) {
            let before = overview.placement(it);
            change.before = change.before.max(before.len());
            if before.len() == factor {
                continue;
            }
            // A node that is down keeps its replicas, but gets no new one.
            let allowed = up.iter().chain(&before).copied().collect();
            let after = load.fit(&before, &allowed, factor)?;
            let (topic, partition) = (name.to_owned(), it.index);
            change.moves.push(Move { topic, partition, before, after, done: false });
        }
        Ok(change)
    }
}

/// Compares a setting with its new value.
fn change(
    known: &[DescribeConfigsResourceResult],
    key: &str,
    value: Option<String>,
) -> anyhow::Result<ConfigChange> {
    let found = known.iter().find(|config| config.name == key);
    // A broker may accept a setting that it does not describe, but it describes the right name of a mistyped one.
    let near = nearest(key, known.iter().map(|config| config.name.as_str()));
    if let (None, Some(near)) = (found, near) {
        anyhow::bail!("topics have no setting {key}; did you mean {near}?");
    }
    let inherited = found.and_then(|config| {
        let mut others = config.synonyms.iter().filter(|synonym| synonym.source != SOURCE_TOPIC);
        // Kafka has up to three names for one setting, and lists names without a value, too.
        others.find_map(|it| in_unit_of(key, &it.name, it.value.as_deref()?))
    });
    let deleted = value.is_none();
    ensure!(
        found.is_some() || !deleted,
        "topics have no setting {key}; see all with `duramen topic describe TOPIC --all-configs`"
    );
    Ok(ConfigChange {
        name: key.into(),
        before: found.and_then(|config| config.value.clone()),
        before_source: found.map_or("unknown", |config| source(config.config_source)),
        after: if deleted { inherited } else { value },
        deleted,
    })
}

/// Converts a broker's value to the topic's unit. Kafka has some times in hours for brokers and in milliseconds for
/// topics.
fn in_unit_of(key: &str, synonym: &str, value: &str) -> Option<String> {
    let unit = |name: &str| name.rsplit('.').next().map(ToOwned::to_owned);
    let factor = match (unit(key)?.as_str(), unit(synonym)?.as_str()) {
        ("ms", "hours") => 3_600_000,
        ("ms", "minutes") => 60_000,
        _ => return Some(value.to_owned()),
    };
    let value = value.parse::<i64>().ok()?;
    // Negative numbers are not times.
    Some(if value < 0 { value } else { value.checked_mul(factor)? }.to_string())
}

impl ConfigChange {
    fn changes(&self) -> bool {
        let own = self.before_source == source(SOURCE_TOPIC);
        if self.deleted { own } else { !own || self.before != self.after }
    }

    fn text(&self) -> String {
        let before = self.before.as_deref().unwrap_or("(hidden)");
        let Self { name, before_source, .. } = self;
        if !self.changes() {
            return format!("  {name} = {before}  (as it was, {before_source})");
        }
        let origin = if self.deleted && self.after.is_some() { "  (the broker's)" } else { "" };
        let after = self.after.as_deref().unwrap_or("the broker's own value");
        format!("  {name}: {before} ({before_source}) -> {after}{origin}")
    }
}

impl Plan {
    async fn execute(&mut self, client: &Client, validate_only: bool) -> anyhow::Result<()> {
        let changes: BTreeMap<_, _> = self
            .configs
            .iter()
            .filter(|change| change.changes())
            .map(|change| (change.name.clone(), change.after.clone().filter(|_| !change.deleted)))
            .collect();
        if !changes.is_empty() {
            let outcome = client.alter_topic_configs(&self.topic, &changes, validate_only).await;
            outcome.map_err(|error| self.explain(error))?;
        }
        let grows = self.partitions.as_ref().filter(|change| change.after > change.before);
        if let Some(PartitionChange { after, .. }) = grows {
            let outcome = client.create_partitions(&self.topic, *after, validate_only).await;
            outcome.map_err(|error| self.explain(error))?;
        }
        let grows = grows.is_some();
        if let Some(change) = self.replication_factor.as_mut().filter(|_| !validate_only) {
            if grows {
                // New partitions get the number of replicas that the topic had.
                *change = FactorChange::plan(client, &self.topic, change.after).await?;
            }
            carry_out(client, &mut change.moves, MOVES_AT_ONCE).await?;
        }
        Ok(())
    }

    fn explain(&self, error: Error) -> anyhow::Error {
        let topic = &self.topic;
        let (code, advice) = match error.code() {
            Some(code @ ErrorCode::InvalidConfig) => {
                let see = "see the settings with";
                (code, format!("{see} `duramen topic describe {topic} --all-configs`"))
            }
            Some(code @ ErrorCode::UnknownTopicOrPartition) => {
                (code, "the topic was deleted meanwhile".to_owned())
            }
            _ => return error.into(),
        };
        explained(code, format!("{error}; {advice}"))
    }

    fn changes(&self) -> bool {
        self.configs.iter().any(ConfigChange::changes)
            || self.partitions.as_ref().is_some_and(|change| change.after > change.before)
            || self.replication_factor.as_ref().is_some_and(|change| !change.moves.is_empty())
    }

    fn text(&self) -> String {
        let verb = if self.altered { "altered" } else { "would alter" };
        let verb = if self.changes() { verb } else { "nothing to alter in" };
        let mut text = format!("{verb} topic {}\n", self.topic);
        for change in &self.configs {
            text.push_str(&change.text());
            text.push('\n');
        }
        if let Some(PartitionChange { before, after }) = &self.partitions {
            let line = if before == after {
                writeln!(text, "  partitions = {before}  (as it was)")
            } else {
                writeln!(text, "  partitions: {before} -> {after}")
            };
            line.expect("a string takes all");
        }
        if let Some(FactorChange { before, after, moves }) = &self.replication_factor {
            let line = if moves.is_empty() {
                writeln!(text, "  replicas of each partition = {after}  (as it was)")
            } else {
                writeln!(text, "  replicas of each partition: {before} -> {after}")
            };
            line.expect("a string takes all");
            let ids = |ids: &[NodeId]| screen::list(ids);
            for it in moves {
                let Move { partition, before, after, .. } = it;
                writeln!(
                    text,
                    "    partition {partition}: nodes {} -> {}",
                    ids(before),
                    ids(after)
                )
                .expect("a string takes all");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::messages::describe_configs::DescribeConfigsSynonym;

    use super::*;

    fn known(
        name: &str,
        value: &str,
        config_source: i8,
        default: &str,
    ) -> DescribeConfigsResourceResult {
        let synonym = |value: &str, source| DescribeConfigsSynonym {
            name: name.into(),
            value: Some(value.into()),
            source,
        };
        DescribeConfigsResourceResult {
            name: name.into(),
            value: Some(value.into()),
            config_source,
            synonyms: vec![synonym(value, config_source), synonym(default, 5)],
            ..DescribeConfigsResourceResult::default()
        }
    }

    #[test]
    fn a_plan_shows_what_was_and_what_will_be() {
        let known = [
            known("retention.ms", "604800000", 5, "604800000"),
            known("segment.bytes", "1000000", 1, "1073741824"),
            known("cleanup.policy", "delete", 1, "delete"),
        ];
        let changes = [
            ("retention.ms", Some("-1")),
            ("segment.bytes", None),
            ("cleanup.policy", Some("delete")),
        ];
        let change =
            |(key, value): (&str, Option<&str>)| change(&known, key, value.map(Into::into));
        let mut plan = Plan {
            topic: "t".into(),
            altered: false,
            configs: changes.map(change).into_iter().collect::<Result<_, _>>().unwrap(),
            partitions: Some(PartitionChange { before: 3, after: 12 }),
            replication_factor: None,
        };
        let body = "  retention.ms: 604800000 (default) -> -1\n  \
             segment.bytes: 1000000 (set on the topic) -> 1073741824  (the broker's)\n  \
             cleanup.policy = delete  (as it was, set on the topic)\n  \
             partitions: 3 -> 12\n";
        assert_eq!(plan.text(), format!("would alter topic t\n{body}"));
        plan.altered = true;
        assert_eq!(plan.text(), format!("altered topic t\n{body}"));
        plan.configs.drain(..2);
        plan.partitions = Some(PartitionChange { before: 12, after: 12 });
        let body = "  cleanup.policy = delete  (as it was, set on the topic)\n  partitions = 12  (as it was)\n";
        assert_eq!(plan.text(), format!("nothing to alter in topic t\n{body}"));
    }

    #[test]
    fn more_replicas_are_shown_with_their_nodes() {
        let it = Move {
            topic: "t".into(),
            partition: 0,
            before: vec![1],
            after: vec![1, 2, 3],
            done: false,
        };
        let change = FactorChange { before: 1, after: 3, moves: vec![it] };
        let mut plan = Plan {
            topic: "t".into(),
            altered: true,
            configs: Vec::new(),
            partitions: None,
            replication_factor: Some(change),
        };
        let expected = "altered topic t\n  replicas of each partition: 1 -> 3\n    \
             partition 0: nodes 1 -> 1,2,3\n";
        assert_eq!(plan.text(), expected);
        plan.replication_factor = Some(FactorChange { before: 3, after: 3, moves: Vec::new() });
        let expected =
            "nothing to alter in topic t\n  replicas of each partition = 3  (as it was)\n";
        assert_eq!(plan.text(), expected);
    }

    #[test]
    fn a_default_that_is_set_explicitly_is_a_change() {
        let known = [known("retention.ms", "1", 5, "1")];
        assert!(change(&known, "retention.ms", Some("1".into())).unwrap().changes());
        assert!(!change(&known, "retention.ms", None).unwrap().changes());
    }

    #[test]
    fn what_the_broker_counts_in_hours_is_shown_in_the_topics_unit() {
        let is = |value: &str| Some(value.to_owned());
        assert_eq!(in_unit_of("retention.ms", "log.retention.hours", "168"), is("604800000"));
        assert_eq!(in_unit_of("retention.ms", "log.retention.minutes", "-1"), is("-1"));
        assert_eq!(in_unit_of("retention.ms", "log.retention.ms", "5"), is("5"));
        assert_eq!(in_unit_of("max.message.bytes", "message.max.bytes", "5"), is("5"));
    }

    #[test]
    fn a_mistyped_setting_is_told_its_name() {
        let known = [known("retention.ms", "1", 5, "1")];
        let error = change(&known, "retentoin.ms", None).unwrap_err().to_string();
        assert_eq!(error, "topics have no setting retentoin.ms; did you mean retention.ms?");
        let set = change(&known, "something.else", Some("1".into()));
        assert!(set.is_ok(), "the broker decides");
        let error = change(&known, "something.else", None).unwrap_err().to_string();
        assert!(error.starts_with("topics have no setting something.else; see all"), "{error}");
    }
}
