//! # Room card: configs
//!
//! Purpose:    every setting that has a name: of topics, and of the node and its process.
//! Owns:       the two tables (name, type, default, check, synonym, doc), typed settings.
//! Interface:  [`BrokerSettings::from_pairs`], [`TopicSettings::resolve`], [`check_topic`], [`check_topic_as_one`],
//!             [`check_dynamic`], [`ConfigKey::kept`], [`TOPIC_CONFIGS`], [`BROKER_CONFIGS`], [`UNITS`].
//! Invariants: a topic's value is its own, else the node's synonym, else the default. A node's value comes from the
//!             first layer that sets it: its own dynamic settings, those of all nodes, those of its start, the default.
//!             A check reports all mistakes at once. An unknown name is a mistake. A stored value has its type's
//!             canonical form, however it was written.
//! Never:      a setting without Kafka's name where Kafka has one.
//! Tests:      `configs/tests.rs`; `compat/wire/test_values.py` beside Kafka.
//! Start at:   [`ConfigKey`].

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use duramen_protocol::compression::{Codec, Compression};

use crate::recompression::Target;

mod tables;
use tables::LEADER_SELECTOR;
pub use tables::{AUTHORIZER, BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS};

/// The type of a value, as `DescribeConfigs` knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A word.
    String,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    /// A number with a fraction.
    Double,
    /// Words with commas between.
    List,
    /// Text that nobody is shown.
    Password,
}

/// Condition on a value, beside its type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    /// Nothing more.
    Any,
    /// A number of at least this.
    AtLeast(i64),
    /// A number between these, both included.
    Between(i64, i64),
    /// The same, but for 0.
    BetweenButZero(i64, i64),
    /// A fraction between 0 and 1.
    Ratio,
    /// One of these words, or for a list: at least one of them, and nothing else.
    OneOf(&'static [&'static str]),
    /// For a list: any number of these words, or none.
    AnyOf(&'static [&'static str]),
    /// One of these words: Kafka has more, and to take them and do nothing would be a lie.
    OnlyYet(&'static [&'static str]),
    /// See [`Beginning`].
    Beginning,
    /// For a list: PARTITION:NODE each, or one star for all.
    Replicas,
}

/// Extent to which this version carries out a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// All of it.
    Full,
    /// Some of it.
    Part,
    /// Nothing: it is there because tools ask for it or set it.
    None,
}

/// One row of a table.
#[derive(Clone, Copy, Debug)]
pub struct ConfigKey {
    /// Kafka's name.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// The value where nothing is set.
    pub default: &'static str,
    /// For a topic's setting: the node's setting that stands in for it; may be empty.
    pub synonym: &'static str,
    /// Condition on values.
    pub check: Check,
    /// Extent to which the setting has an effect.
    pub effect: Effect,
    /// For a node's setting: flag that an operator may change it while the node runs.
    pub dynamic: bool,
    /// For people.
    pub doc: &'static str,
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// Name as the operator wrote it.
    pub key: String,
    /// Description of the mistake.
    pub problem: String,
}

impl ConfigKey {
    /// Returns a description of the mistake in `value`, if it has one.
    pub fn problem(&self, value: &str) -> Option<String> {
        let value = value.trim();
        let number = match self.kind {
            Kind::Boolean if !is_boolean(value) => {
                return Some(format!("\"{value}\" is neither true nor false"));
            }
            Kind::Boolean => return self.word_problem(&value.to_ascii_lowercase()),
            Kind::String => return self.word_problem(value),
            Kind::Password => return None,
            Kind::List if value.is_empty() && matches!(self.check, Check::AnyOf(_)) => return None,
            Kind::List if value == "*" && self.check == Check::Replicas => return None,
            Kind::List => {
                return value.split(',').find_map(|word| self.word_problem(word.trim()));
            }
            Kind::Int => value.parse::<i32>().map(i64::from).ok(),
            Kind::Long => value.parse::<i64>().ok(),
            Kind::Double => {
                let inside = value.parse::<f64>().is_ok_and(|it| (0.0..=1.0).contains(&it));
                return (!inside).then(|| format!("\"{value}\" is not between 0 and 1"));
            }
        };
        let Some(number) = number else {
            return Some(format!("\"{value}\" is not a whole number of its size"));
        };
        match self.check {
            Check::AtLeast(least) if number < least => {
                Some(format!("{number} is less than {least}"))
            }
            Check::Between(least, most) | Check::BetweenButZero(least, most)
                if !(least..=most).contains(&number) =>
            {
                Some(format!("{number} is not between {least} and {most}"))
            }
            Check::BetweenButZero(..) if number == 0 => {
                Some("0 is not allowed; below it and above it is".to_owned())
            }
            Check::OnlyYet(_) => self.word_problem(&number.to_string()),
            _ => None,
        }
    }

    /// Returns the canonical form of a value, which the node stores and shows. Programs write booleans as `True`, and
    /// Kafka accepts them. A wrong value stays as it is, so that the error message quotes it.
    pub fn kept(&self, value: &str) -> String {
        let value = value.trim();
        let kept = match self.kind {
            Kind::Boolean => is_boolean(value).then(|| value.to_ascii_lowercase()),
            Kind::Int | Kind::Long => value.parse::<i64>().ok().map(|it| it.to_string()),
            Kind::Double => value.parse::<f64>().ok().map(|it| format!("{it:?}")),
            Kind::List => {
                let mut words: Vec<&str> = Vec::new();
                for word in value.split(',').map(str::trim) {
                    // Replicas may be named twice, and nothing between two commas is for the check.
                    let may_repeat = self.check == Check::Replicas || word.is_empty();
                    if may_repeat || !words.contains(&word) {
                        words.push(word);
                    }
                }
                Some(words.join(","))
            }
            Kind::String | Kind::Password => None,
        };
        kept.unwrap_or_else(|| value.to_owned())
    }

    fn word_problem(&self, word: &str) -> Option<String> {
        match self.check {
            Check::OneOf(words) | Check::AnyOf(words) if !words.contains(&word) => {
                Some(format!("\"{word}\" is not one of: {}", words.join(", ")))
            }
            Check::OnlyYet(words) if !words.contains(&word) => {
                Some(format!("\"{word}\" is not supported; only {} is, yet", words.join(", ")))
            }
            Check::Beginning if Beginning::of(word).is_none() => Some(format!(
                "\"{word}\" is not one of: earliest, latest, by_duration: and a duration such as PT1H30M"
            )),
            Check::Replicas if !word.is_empty() && !is_replica(word) => Some(format!(
                "\"{word}\" is not PARTITION:NODE; write 0:1,0:2 and so on, or * for all replicas"
            )),
            _ => None,
        }
    }
}

/// Tells whether a value is a boolean in any case of letters: Python's `str(True)` is `True`.
fn is_boolean(value: &str) -> bool {
    value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false")
}

/// Tells whether a word names a replica: `7:1` is the replica of partition 7 on node 1.
fn is_replica(word: &str) -> bool {
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(':').is_some_and(|(partition, node)| is_number(partition) && is_number(node))
}

/// Returns the row of `name`.
pub fn find(table: &'static [ConfigKey], name: &str) -> Option<&'static ConfigKey> {
    table.iter().find(|key| key.name == name)
}

/// Tells whether nobody may see the value of a node's setting, which may be one listener's.
pub fn is_secret(name: &str) -> bool {
    let secrets = BROKER_CONFIGS.iter().filter(|row| row.kind == Kind::Password);
    let mut rests = secrets.filter_map(|row| name.strip_suffix(row.name));
    rests.any(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns the beginning of the names of settings that are one listener's: Kafka's form.
pub fn listener_prefix(listener: &str) -> String {
    format!("listener.name.{}.", listener.to_ascii_lowercase())
}

/// Returns the setting that a name with a listener's prefix is for: those of TLS and SASL may be each listener's own.
fn of_listener(name: &str) -> Option<&'static ConfigKey> {
    let own = name.strip_prefix("listener.name.")?;
    let is_own = |it: &&ConfigKey| {
        let kinds = ["ssl.", "sasl.", "connections.max.reauth.ms"];
        kinds.iter().any(|kind| it.name.starts_with(kind))
            && own.strip_suffix(it.name).is_some_and(|before| before.ends_with('.'))
    };
    BROKER_CONFIGS.iter().find(is_own)
}

/// Where a value comes from, as `DescribeConfigs` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The topic's own.
    Topic,
    /// The group's own.
    Group,
    /// Set for this node, while it ran.
    NodeDynamic,
    /// Set for all nodes, while they ran.
    ClusterDynamic,
    /// The node's configuration.
    Broker,
    /// The table.
    Default,
}

impl Source {
    /// Returns the number on the wire.
    pub fn code(self) -> i8 {
        match self {
            Self::Topic => 1,
            Self::Group => 8,
            Self::NodeDynamic => 2,
            Self::ClusterDynamic => 3,
            Self::Broker => 4,
            Self::Default => 5,
        }
    }
}

/// Kinds of resources that have settings, by the numbers of requests.
pub(crate) mod resource_kind {
    pub(crate) const TOPIC: i8 = 2;
    pub(crate) const BROKER: i8 = 4;
    pub(crate) const BROKER_LOGGER: i8 = 8;
    pub(crate) const CLIENT_METRICS: i8 = 16;
    pub(crate) const GROUP: i8 = 32;
}

/// Settings in other units than ours: name, our name, factor.
pub const UNITS: &[(&str, &str, i64)] = &[
    ("log.retention.minutes", "log.retention.ms", 60_000),
    ("log.retention.hours", "log.retention.ms", 3_600_000),
    ("log.roll.hours", "log.roll.ms", 3_600_000),
];

/// Settings of nodes and topics that limit the copies of replicas which are not in sync.
pub(crate) const FOLLOWER_RATE: &str = "follower.replication.throttled.rate";
pub(crate) const FOLLOWER_REPLICAS: &str = "follower.replication.throttled.replicas";
pub(crate) const LEADER_REPLICAS: &str = "leader.replication.throttled.replicas";

/// Kafka's word for batches without a codec.
const UNCOMPRESSED: &str = "uncompressed";
/// Setting that makes each key of a topic a queue.
pub(crate) const QUEUE_ENABLE: &str = "queue.enable";
/// `segment.bytes` of such a topic, unless it is given.
const QUEUE_SEGMENT_BYTES: &str = "67108864";

/// Settings that two others bound: [`bound`] returns their names.
const BOUNDED: [&str; 8] = [
    "group.consumer.assignment.interval.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.share.heartbeat.interval.ms",
    "group.share.session.timeout.ms",
    "group.share.delivery.count.limit",
    "group.share.partition.max.record.locks",
    "group.share.record.lock.duration.ms",
];

/// Returns the name of a setting's bound, such as `group.share.min.session.timeout.ms`.
fn bound(name: &str, which: &str) -> String {
    let at = name.match_indices('.').nth(1).map_or(0, |(at, _)| at);
    format!("{}.{which}{}", &name[..at], &name[at..])
}

/// Values by name.
pub type Settings = BTreeMap<String, String>;

/// Settings by the layer that set them: each layer hides the ones after it.
#[derive(Clone, Debug, Default)]
struct Layers {
    own: Settings,
    shared: Settings,
    given: Settings,
}

impl Layers {
    fn values(&self, name: &str) -> impl Iterator<Item = (&str, Source)> {
        let layers = [
            (&self.own, Source::NodeDynamic),
            (&self.shared, Source::ClusterDynamic),
            (&self.given, Source::Broker),
        ];
        layers.into_iter().filter_map(move |(layer, source)| {
            layer.get(name).map(|value| (value.as_str(), source))
        })
    }
}

/// Settings of the node: the values set in each layer, and the values that the node itself uses.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    layers: Layers,
    /// `num.partitions`.
    pub num_partitions: i32,
    /// `default.replication.factor`.
    pub default_replication_factor: i32,
    /// `auto.create.topics.enable`.
    pub auto_create_topics_enable: bool,
    /// `leader.imbalance.check.interval.seconds`, with `auto.leader.rebalance.enable`.
    pub leader_imbalance_check_interval_seconds: Option<i64>,
    /// `leader.replication.throttled.rate`.
    pub leader_throttled_rate: i64,
    /// `replica.selector.class` is the one that knows no replica but the leader.
    pub leaders_only: bool,
    /// `delete.topic.enable`.
    pub delete_topic_enable: bool,
    /// `log.cleaner.backoff.ms`.
    pub cleaner_backoff_ms: i64,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval_ms: i64,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_id_expiration_check_interval_ms: i64,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: i32,
    /// `log.index.interval.bytes`, for storage.
    pub index_interval_bytes: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.min.session.timeout.ms`.
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub group_max_session_timeout_ms: i32,
    /// `group.max.size`.
    pub group_max_size: i32,
    /// `group.consumer.session.timeout.ms`.
    pub group_consumer_session_timeout_ms: i32,
    /// `group.consumer.heartbeat.interval.ms`.
    pub group_consumer_heartbeat_interval_ms: i32,
    /// `group.consumer.max.size`.
    pub group_consumer_max_size: i32,
    /// `group.consumer.assignors`.
    pub group_consumer_assignors: String,
    /// `group.consumer.migration.policy`.
    pub group_consumer_migration_policy: String,
    /// `group.consumer.assignment.interval.ms`.
    pub group_consumer_assignment_interval_ms: i32,
    /// `group.consumer.regex.refresh.interval.ms`.
    pub group_consumer_regex_refresh_interval_ms: i32,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: i32,
    /// `offsets.retention.minutes`.
    pub offsets_retention_minutes: i32,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: i64,
    /// `metadata.log.max.record.bytes.between.snapshots`.
    pub metadata_log_bytes: i64,
    /// `offsets.topic.num.partitions`.
    pub offsets_topic_num_partitions: i32,
    /// `offsets.topic.replication.factor`.
    pub offsets_topic_replication_factor: i32,
    /// `offsets.topic.segment.bytes`.
    pub offsets_topic_segment_bytes: i32,
    /// `group.share.session.timeout.ms`.
    pub group_share_session_timeout_ms: i32,
    /// `group.share.heartbeat.interval.ms`.
    pub group_share_heartbeat_interval_ms: i32,
    /// `group.share.max.size`.
    pub group_share_max_size: i32,
    /// `group.share.max.share.sessions`.
    pub group_share_max_share_sessions: i32,
    /// `share.coordinator.snapshot.update.records.per.snapshot`.
    pub share_updates_per_snapshot: i32,
    /// `share.coordinator.state.topic.num.partitions`.
    pub share_state_num_partitions: i32,
    /// `share.coordinator.state.topic.replication.factor`.
    pub share_state_replication_factor: i32,
    /// `share.coordinator.state.topic.segment.bytes`.
    pub share_state_segment_bytes: i32,
    /// `transaction.max.timeout.ms`.
    pub transaction_max_timeout_ms: i32,
    /// `transaction.state.log.num.partitions`.
    pub transaction_log_num_partitions: i32,
    /// `transaction.state.log.replication.factor`.
    pub transaction_log_replication_factor: i32,
    /// `transaction.state.log.segment.bytes`.
    pub transaction_log_segment_bytes: i32,
    /// `transactional.id.expiration.ms`.
    pub transactional_id_expiration_ms: i32,
}

impl BrokerSettings {
    /// Reads settings by Kafka's names; a later pair of the same name wins. All mistakes come
    /// back at once.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut given = BTreeMap::new();
        // Coarser units come first, so that a finer unit in the same file wins, as in Kafka.
        for &(name, ours, factor) in UNITS.iter().rev() {
            for (key, value) in pairs.iter().filter(|(key, _)| key == name) {
                match value.trim().parse::<i64>().ok().and_then(|it| it.checked_mul(factor)) {
                    Some(number) => {
                        let number = if number < 0 { -1 } else { number }.to_string();
                        match find(BROKER_CONFIGS, ours).and_then(|row| row.problem(&number)) {
                            Some(problem) => {
                                let problem = format!("as {ours}: {problem}");
                                errors.push(ConfigError { key: key.clone(), problem });
                            }
                            None => {
                                given.insert(ours.to_owned(), number);
                            }
                        }
                    }
                    None => errors.push(ConfigError {
                        key: key.clone(),
                        problem: format!("\"{value}\" is not a whole number"),
                    }),
                }
            }
        }
        for (key, value) in pairs {
            if UNITS.iter().any(|(name, ..)| name == key) {
                continue;
            }
            let row = find(BROKER_CONFIGS, key).or_else(|| of_listener(key));
            let problem = match row {
                None => Some(unknown(BROKER_CONFIGS, key)),
                Some(row) => row.problem(value),
            };
            if let Some(problem) = problem {
                errors.push(ConfigError { key: key.clone(), problem });
            } else {
                given.extend(row.map(|row| (key.clone(), row.kept(value))));
            }
        }
        let value = |name: &str| -> i64 {
            let default = find(BROKER_CONFIGS, name).map_or("", |row| row.default);
            given.get(name).map_or(default, String::as_str).parse().unwrap_or(0)
        };
        for name in BOUNDED {
            let (least, most) = (bound(name, "min"), bound(name, "max"));
            let (is, least_is, most_is) = (value(name), value(&least), value(&most));
            if errors.is_empty() && !(least_is..=most_is).contains(&is) {
                let problem = format!(
                    "{is} is not between {least}, which is {least_is}, and {most}, which is {most_is}"
                );
                errors.push(ConfigError { key: name.to_owned(), problem });
            }
        }
        let layers = Layers { given, ..Layers::default() };
        if errors.is_empty() { Ok(Self::typed(layers)) } else { Err(errors) }
    }

    fn typed(layers: Layers) -> Self {
        let value = |name: &str| {
            let default = || find(BROKER_CONFIGS, name).map_or("", |row| row.default);
            layers.values(name).next().map_or_else(default, |(value, _)| value)
        };
        let int = |name: &str| value(name).parse::<i32>().expect("checked, or a default");
        let long = |name: &str| value(name).parse::<i64>().expect("checked, or a default");
        Self {
            num_partitions: int("num.partitions"),
            default_replication_factor: int("default.replication.factor"),
            auto_create_topics_enable: value("auto.create.topics.enable") == "true",
            leader_imbalance_check_interval_seconds: (value("auto.leader.rebalance.enable")
                == "true")
                .then(|| long("leader.imbalance.check.interval.seconds")),
            leader_throttled_rate: long("leader.replication.throttled.rate"),
            leaders_only: value("replica.selector.class") == LEADER_SELECTOR,
            delete_topic_enable: value("delete.topic.enable") == "true",
            cleaner_backoff_ms: long("log.cleaner.backoff.ms"),
            retention_check_interval_ms: long("log.retention.check.interval.ms"),
            producer_id_expiration_ms: long("producer.id.expiration.ms"),
            producer_id_expiration_check_interval_ms: long(
                "producer.id.expiration.check.interval.ms",
            ),
            fetch_max_bytes: int("fetch.max.bytes"),
            index_interval_bytes: int("log.index.interval.bytes"),
            group_initial_rebalance_delay_ms: int("group.initial.rebalance.delay.ms"),
            group_min_session_timeout_ms: int("group.min.session.timeout.ms"),
            group_max_session_timeout_ms: int("group.max.session.timeout.ms"),
            group_max_size: int("group.max.size"),
            group_consumer_session_timeout_ms: int("group.consumer.session.timeout.ms"),
            group_consumer_heartbeat_interval_ms: int("group.consumer.heartbeat.interval.ms"),
            group_consumer_max_size: int("group.consumer.max.size"),
            group_consumer_assignors: value("group.consumer.assignors").to_owned(),
            group_consumer_migration_policy: value("group.consumer.migration.policy").to_owned(),
            group_consumer_assignment_interval_ms: int("group.consumer.assignment.interval.ms"),
            group_consumer_regex_refresh_interval_ms: int(
                "group.consumer.regex.refresh.interval.ms",
            ),
            offset_metadata_max_bytes: int("offset.metadata.max.bytes"),
            offsets_retention_minutes: int("offsets.retention.minutes"),
            offsets_retention_check_interval_ms: long("offsets.retention.check.interval.ms"),
            metadata_log_bytes: long("metadata.log.max.record.bytes.between.snapshots"),
            offsets_topic_num_partitions: int("offsets.topic.num.partitions"),
            offsets_topic_replication_factor: int("offsets.topic.replication.factor"),
            offsets_topic_segment_bytes: int("offsets.topic.segment.bytes"),
            group_share_session_timeout_ms: int("group.share.session.timeout.ms"),
            group_share_heartbeat_interval_ms: int("group.share.heartbeat.interval.ms"),
            group_share_max_size: int("group.share.max.size"),
            group_share_max_share_sessions: int("group.share.max.share.sessions"),
            share_updates_per_snapshot: int(
                "share.coordinator.snapshot.update.records.per.snapshot",
            ),
            share_state_num_partitions: int("share.coordinator.state.topic.num.partitions"),
            share_state_replication_factor: int("share.coordinator.state.topic.replication.factor"),
            share_state_segment_bytes: int("share.coordinator.state.topic.segment.bytes"),
            transaction_max_timeout_ms: int("transaction.max.timeout.ms"),
            transaction_log_num_partitions: int("transaction.state.log.num.partitions"),
            transaction_log_replication_factor: int("transaction.state.log.replication.factor"),
            transaction_log_segment_bytes: int("transaction.state.log.segment.bytes"),
            transactional_id_expiration_ms: int("transactional.id.expiration.ms"),
            layers,
        }
    }

    /// Sets the dynamic settings: the node's own, and those of all nodes. The caller has checked them.
    pub(crate) fn set_dynamic(&mut self, own: Settings, shared: Settings) {
        let given = std::mem::take(&mut self.layers.given);
        *self = Self::typed(Layers { own, shared, given });
    }

    /// Changes the settings of the start while the node runs. The caller has checked them.
    pub(crate) fn give(&mut self, changes: Vec<(String, Option<String>)>) {
        let mut layers = std::mem::take(&mut self.layers);
        for (name, value) in changes {
            match value {
                Some(value) => layers.given.insert(name, value),
                None => layers.given.remove(&name),
            };
        }
        *self = Self::typed(layers);
    }

    /// Returns the settings that the node was started with.
    pub fn given(&self) -> &Settings {
        &self.layers.given
    }

    /// Replaces a setting of the start by the value that the node found at its start.
    pub(crate) fn settle(&mut self, name: &str, value: String) {
        assert!(find(BROKER_CONFIGS, name).is_some(), "{name} is no setting");
        if self.get(name).is_none_or(|(known, _)| known != value) {
            self.layers.given.insert(name.to_owned(), value);
        }
    }

    /// Returns a setting's value and its source, or `None` for a name that does not exist.
    pub fn get(&self, name: &str) -> Option<(&str, Source)> {
        self.values(name).next()
    }

    /// Returns all values of a setting. Each of them would hold but for the ones before it.
    pub fn values(&self, name: &str) -> impl Iterator<Item = (&str, Source)> {
        let default = find(BROKER_CONFIGS, name).map(|row| (row.default, Source::Default));
        self.layers.values(name).chain(default)
    }
}

/// A topic's settings, resolved.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
pub struct TopicSettings {
    /// `max.message.bytes`.
    pub max_message_bytes: i32,
    /// `compression.type` with its level, unless it is `producer`.
    pub compression: Option<Compression>,
    /// `cleanup.policy` has `compact`.
    pub compact: bool,
    /// `cleanup.policy` has `delete`.
    pub delete: bool,
    /// `min.cleanable.dirty.ratio`.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `retention.ms`.
    pub retention_ms: i64,
    /// `retention.bytes`.
    pub retention_bytes: i64,
    /// `segment.bytes`.
    pub segment_bytes: i32,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `message.timestamp.type` is `LogAppendTime`.
    pub log_append_time: bool,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `min.insync.replicas`.
    pub min_insync_replicas: i32,
    /// `fast.append.enable`.
    pub fast_append: bool,
    /// `queue.enable`.
    pub queue: bool,
    /// `queue.erase.lag.ms`.
    pub queue_erase_lag_ms: i64,
    /// Count of the topic's partitions; not a setting.
    pub partitions: i32,
    /// Producer ids that the cluster first gave out after the topic was created; not a setting.
    pub newcomers: Range<i64>,
}

impl TopicSettings {
    /// Returns the codec of the topic's own, if it has one, with the bound on its batches.
    pub(crate) fn target(&self) -> Option<Target> {
        let batch_bytes_max = usize::try_from(self.max_message_bytes).unwrap_or(0);
        self.compression.map(|compression| Target { compression, batch_bytes_max })
    }

    /// Returns the greatest age of a segment before the next one begins, in milliseconds. Compaction leaves out the
    /// last segment, so records that are due for it must not be there.
    pub(crate) fn roll_ms(&self) -> i64 {
        if self.compact { self.segment_ms.min(self.max_compaction_lag_ms) } else { self.segment_ms }
    }

    /// Tells whether these settings keep less of a log than `other`, so that some of it may go at once.
    pub(crate) fn keep_less_than(&self, other: &Self) -> bool {
        let limit = |value: i64| if value < 0 { i64::MAX } else { value };
        let is_shorter = limit(self.retention_ms) < limit(other.retention_ms)
            || limit(self.retention_bytes) < limit(other.retention_bytes);
        self.delete && (is_shorter || !other.delete)
    }

    /// Resolves the settings of a topic from its own values, which the caller has checked.
    pub fn resolve(own: &BTreeMap<String, String>, broker: &BrokerSettings) -> Self {
        let value = |name: &str| effective(name, own, broker).map_or("", |(value, _)| value);
        let int = |name: &str| value(name).trim().parse::<i32>().expect("checked, or a default");
        let long = |name: &str| value(name).trim().parse::<i64>().expect("checked, or a default");
        let policy: Vec<_> = value("cleanup.policy").split(',').map(str::trim).collect();
        let codec = value("compression.type").trim();
        let level = match codec {
            // Kafka's number for the default of the codec.
            "gzip" => Some(int("compression.gzip.level")).filter(|level| *level != -1),
            "zstd" => Some(int("compression.zstd.level")),
            _ => None,
        };
        let codec = if codec == UNCOMPRESSED { Some(Codec::None) } else { Codec::from_name(codec) };
        let compression = codec.map(|codec| Compression { codec, level });
        Self {
            max_message_bytes: int("max.message.bytes"),
            compression,
            compact: policy.contains(&"compact"),
            delete: policy.contains(&"delete"),
            min_cleanable_dirty_ratio: value("min.cleanable.dirty.ratio")
                .trim()
                .parse()
                .expect("checked, or a default"),
            min_compaction_lag_ms: long("min.compaction.lag.ms"),
            max_compaction_lag_ms: long("max.compaction.lag.ms"),
            delete_retention_ms: long("delete.retention.ms"),
            retention_ms: long("retention.ms"),
            retention_bytes: long("retention.bytes"),
            segment_bytes: int("segment.bytes"),
            segment_ms: long("segment.ms"),
            log_append_time: value("message.timestamp.type") == "LogAppendTime",
            timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            min_insync_replicas: int("min.insync.replicas"),
            // Members hold a fast append as its client sent it, and it has to be the same bytes on all of them.
            fast_append: value("fast.append.enable") == "true" && compression.is_none(),
            queue: value("queue.enable") == "true",
            queue_erase_lag_ms: long("queue.erase.lag.ms"),
            partitions: 1,
            newcomers: 0..0,
        }
    }
}

/// Where a share group begins in a partition that is new to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// With the first record there is.
    Earliest,
    /// Records written from then on.
    Latest,
    /// With the first record that is no older than so many milliseconds.
    Ago(i64),
}

impl Beginning {
    fn of(word: &str) -> Option<Self> {
        match word {
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
            _ => duration_ms(word.strip_prefix("by_duration:")?).map(Self::Ago),
        }
    }
}

/// Returns the milliseconds of a duration of ISO 8601 without years and months, such as `P1DT2H3M4.5S`.
fn duration_ms(text: &str) -> Option<i64> {
    const DAYS: &[(char, i64)] = &[('D', 86_400_000)];
    const TIMES: &[(char, i64)] = &[('H', 3_600_000), ('M', 60_000), ('S', 1000)];
    let text = text.to_ascii_uppercase();
    let text = text.strip_prefix('P')?;
    let (days, times) = match text.split_once('T') {
        Some((_, "")) => return None,
        Some((days, times)) => (days, times),
        None if text.is_empty() => return None,
        None => (text, ""),
    };
    amounts_ms(days, DAYS)?.checked_add(amounts_ms(times, TIMES)?)
}

/// Parses numbers that have the letters of their units behind them, each unit at most once and in this order. Only
/// seconds have a fraction.
fn amounts_ms(mut text: &str, mut units: &[(char, i64)]) -> Option<i64> {
    let mut sum = 0i64;
    while !text.is_empty() {
        let at = text.find(|it: char| it.is_ascii_alphabetic())?;
        let unit = text[at..].chars().next()?;
        let place = units.iter().position(|(letter, _)| *letter == unit)?;
        let (number, fraction) = match text[..at].split_once('.') {
            Some((number, fraction)) if unit == 'S' && fraction.len() <= 9 => (number, fraction),
            Some(_) => return None,
            None => (&text[..at], ""),
        };
        let is_digits = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
        if number.is_empty() || !is_digits(number) || !is_digits(fraction) {
            return None;
        }
        let fraction_ms = format!("{fraction:0<3}")[..3].parse::<i64>().ok()?;
        let ms = number.parse::<i64>().ok()?.checked_mul(units[place].1)?;
        sum = sum.checked_add(ms)?.checked_add(fraction_ms)?;
        (text, units) = (&text[at + 1..], &units[place + 1..]);
    }
    Some(sum)
}

/// A share group's settings, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct GroupSettings {
    /// `share.record.lock.duration.ms`.
    pub record_lock_duration_ms: i32,
    /// `share.delivery.count.limit`.
    pub delivery_count_limit: i16,
    /// `share.partition.max.record.locks`.
    pub partition_max_record_locks: i32,
    /// `share.isolation.level` is `read_committed`.
    pub is_read_committed: bool,
    /// `share.auto.offset.reset`.
    pub beginning: Beginning,
    /// `share.renew.acknowledge.enable`.
    pub may_renew: bool,
    /// `share.record.order` is `key`.
    pub by_key: bool,
    /// `errors.deadletterqueue.copy.record.enable`.
    pub copies_dead_letters: bool,
}

impl GroupSettings {
    /// Resolves the settings of a group from its own values, which the caller has checked.
    pub fn resolve(own: &Settings, broker: &BrokerSettings) -> Self {
        let value = |name: &str| effective_of_group(name, own, broker).map_or("", |it| it.0);
        // A node may bound it otherwise than when it was set.
        let int = |name: &str| {
            let number = value(name).parse::<i32>().expect("checked, or a default");
            let bounds = bounds_of_group(name, broker);
            number.min(*bounds.end()).max(*bounds.start())
        };
        Self {
            record_lock_duration_ms: int("share.record.lock.duration.ms"),
            delivery_count_limit: i16::try_from(int("share.delivery.count.limit"))
                .expect("checked, or a default"),
            partition_max_record_locks: int("share.partition.max.record.locks"),
            is_read_committed: value("share.isolation.level") == "read_committed",
            beginning: Beginning::of(value("share.auto.offset.reset"))
                .expect("checked, or a default"),
            may_renew: value("share.renew.acknowledge.enable") == "true",
            by_key: value("share.record.order") == "key",
            copies_dead_letters: value("errors.deadletterqueue.copy.record.enable") == "true",
        }
    }
}

/// Returns a group setting's value and its source, or `None` for a name that does not exist.
pub fn effective_of_group<'a>(
    name: &str,
    own: &'a Settings,
    broker: &'a BrokerSettings,
) -> Option<(&'a str, Source)> {
    let row = find(GROUP_CONFIGS, name)?;
    if let Some(value) = own.get(name) {
        return Some((value, Source::Group));
    }
    broker.get(row.synonym).or(Some((row.default, Source::Default)))
}

/// Returns the bounds of a group's setting on this node.
pub fn bounds_of_group(name: &str, broker: &BrokerSettings) -> RangeInclusive<i32> {
    let synonym = find(GROUP_CONFIGS, name).map_or("", |row| row.synonym);
    let int = |name: &str| broker.get(name).and_then(|(value, _)| value.parse().ok());
    let ends = ["min", "max"].map(|which| int(&bound(synonym, which)));
    match ends {
        [Some(least), Some(most)] if BOUNDED.contains(&synonym) => least..=most,
        _ => i32::MIN..=i32::MAX,
    }
}

/// Returns the number that a group has set for itself, moved into these bounds. The node's bounds may have changed
/// since the group set it.
pub(crate) fn own_within(name: &str, own: &Settings, bounds: &RangeInclusive<i32>) -> Option<i32> {
    let number = own.get(name)?.trim().parse::<i32>().ok()?;
    Some(number.min(*bounds.end()).max(*bounds.start()))
}

/// Checks one setting of a group.
pub fn check_group(name: &str, value: &str, broker: &BrokerSettings) -> Result<(), ConfigError> {
    let problem = match find(GROUP_CONFIGS, name) {
        None => Some(unknown(GROUP_CONFIGS, name)),
        Some(row) => row.problem(value),
    };
    let problem = problem.or_else(|| {
        let bounds = bounds_of_group(name, broker);
        let number = value.trim().parse::<i32>().ok()?;
        let (least, most) = (bounds.start(), bounds.end());
        (!bounds.contains(&number)).then(|| format!("{number} is not between {least} and {most}"))
    });
    problem.map_or(Ok(()), |problem| Err(ConfigError { key: name.to_owned(), problem }))
}

/// Checks all settings that a group is to have, together.
pub fn check_group_as_one(own: &Settings, broker: &BrokerSettings) -> Result<(), ConfigError> {
    let int = |name: &str| effective_of_group(name, own, broker)?.0.trim().parse::<i32>().ok();
    let both = [
        ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
        ("share.session.timeout.ms", "share.heartbeat.interval.ms"),
    ];
    for (session, heartbeat) in both {
        if int(session) <= int(heartbeat) {
            let problem = format!("it must be greater than {heartbeat}");
            return Err(ConfigError { key: session.to_owned(), problem });
        }
    }
    Ok(())
}

/// Returns a topic setting's value and its source, or `None` for a name that does not exist.
pub fn effective<'a>(
    name: &str,
    own: &'a BTreeMap<String, String>,
    broker: &'a BrokerSettings,
) -> Option<(&'a str, Source)> {
    let row = find(TOPIC_CONFIGS, name)?;
    if let Some(value) = own.get(name) {
        return Some((value, Source::Topic));
    }
    // One erased record costs a segment that is written anew.
    if name == "segment.bytes" && is_queue_topic(own) {
        return Some((QUEUE_SEGMENT_BYTES, Source::Default));
    }
    broker.get(row.synonym).or(Some((row.default, Source::Default)))
}

/// Tells whether a topic's own settings make each of its keys a queue.
pub fn is_queue_topic(own: &Settings) -> bool {
    own.get(QUEUE_ENABLE).is_some_and(|value| value == "true")
}

/// Checks one setting of a topic.
pub fn check_topic(name: &str, value: &str) -> Result<(), ConfigError> {
    let problem = match find(TOPIC_CONFIGS, name) {
        None => Some(unknown(TOPIC_CONFIGS, name)),
        Some(row) => row.problem(value),
    };
    problem.map_or(Ok(()), |problem| Err(ConfigError { key: name.to_owned(), problem }))
}

/// Checks all settings that a topic is to have, together.
pub fn check_topic_as_one(own: &Settings, broker: &BrokerSettings) -> Result<(), ConfigError> {
    let [least, most] = ["min.compaction.lag.ms", "max.compaction.lag.ms"].map(|name| {
        let long = effective(name, own, broker).and_then(|(value, _)| value.parse::<i64>().ok());
        (name, long)
    });
    if least.1 > most.1 {
        let problem = format!(
            "{} is more than {}, which is {}",
            least.1.unwrap_or_default(),
            most.0,
            most.1.unwrap_or_default()
        );
        return Err(ConfigError { key: least.0.to_owned(), problem });
    }
    let policy = effective("cleanup.policy", own, broker).map_or("", |(value, _)| value);
    if is_queue_topic(own) && policy.split(',').any(|word| word.trim() == "compact") {
        let problem = "a queue keeps all records of its key, so cleanup.policy is without compact";
        return Err(ConfigError { key: QUEUE_ENABLE.to_owned(), problem: problem.to_owned() });
    }
    Ok(())
}

/// Checks one setting of a node that is to change while it runs.
pub fn check_dynamic(name: &str, value: &str) -> Result<(), ConfigError> {
    let problem = match find(BROKER_CONFIGS, name) {
        None => Some(unknown(BROKER_CONFIGS, name)),
        Some(row) if !row.dynamic => Some("the setting is changed by a restart only".to_owned()),
        Some(row) => row.problem(value),
    };
    problem.map_or(Ok(()), |problem| Err(ConfigError { key: name.to_owned(), problem }))
}

fn unknown(table: &'static [ConfigKey], name: &str) -> String {
    match nearest(name, table.iter().map(|key| key.name)) {
        Some(near) => format!("there is no such setting; did you mean {near}?"),
        None => "there is no such setting".to_owned(),
    }
}

/// Returns the known name that differs least, if it is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|known| (distance(name, known), known)).min()?;
    (near.0 <= 1 + name.len() / 5).then_some(near.1)
}

/// Letters to insert, drop or change to turn one name into the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let change = diagonal + usize::from(!a.eq_ignore_ascii_case(&b));
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests;
