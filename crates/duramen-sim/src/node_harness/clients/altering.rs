//! An operator who changes settings of topics and groups while all goes on, and in the end sets all as it was.
//!
//! Records that settings allow to be deleted may be gone as soon as a client has asked for the setting. The oracle
//! learns the narrowest such setting. All else is as without such a client. Sessions of groups may be longer than
//! those the oracles go by, never shorter.
//!
//! When the faults have ended, each setting must become the value that was acknowledged last, or one that was asked
//! for and never answered well. Once all was set back, it must become its first value.

use std::collections::BTreeMap;

use duramen_protocol::messages::DescribeConfigsRequest;
use duramen_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult,
};
use duramen_protocol::{ErrorCode, Request, Response};

use super::answers::{expect_one_of, unexpected};
use super::keyed::CONFIGS_OF_MANY;
use super::requests::{self, Asking, OF_GROUP};
use super::{Asked, Clients, TOPICS};
use crate::failure::Failure;
use crate::node_harness::oracle::Oracle;
use crate::prng::Prng;
use crate::trace::tell;

const OF_TOPIC: i8 = 2;
/// Config sources of a value that is a topic's own, or a group's.
const OWN: [i8; 2] = [1, 8];

const RETENTION_MS: &str = "retention.ms";
const RETENTION_BYTES: &str = "retention.bytes";

/// Setting, with the values that it may get.
type Choice = (&'static str, &'static [&'static str]);

const OF_ALL: [Choice; 4] = [
    ("min.insync.replicas", &["1", "2", "3"]),
    ("segment.bytes", &["4096", "16384"]),
    ("segment.ms", &["40", "604800000"]),
    ("max.message.bytes", &["20000", "1048588"]),
];
/// Settings of topics that are not compacted. Where clocks leap, nobody knows which records are old.
const OF_DELETED: [Choice; 2] =
    [(RETENTION_BYTES, &["-1", "6000", "30000"]), (RETENTION_MS, &["-1", "1000", "3000"])];
const OF_COMPACTED: [Choice; 5] = [
    ("cleanup.policy", &["compact", "delete", "compact,delete"]),
    // Never above the other: that is refused.
    ("min.compaction.lag.ms", &["0", "150"]),
    ("max.compaction.lag.ms", &["200", "9223372036854775807"]),
    ("delete.retention.ms", &["0", "400", "5000"]),
    ("min.cleanable.dirty.ratio", &["0.01", "0.9"]),
];
const OF_GROUPS: [(&str, Choice); 4] = [
    ("bears", ("share.session.timeout.ms", &["2000", "4000"])),
    ("bears", ("share.heartbeat.interval.ms", &["200", "500"])),
    ("newts", ("consumer.session.timeout.ms", &["1500", "4000"])),
    ("otters", ("consumer.heartbeat.interval.ms", &["200", "500"])),
];

const CODES: [ErrorCode; 4] = [
    ErrorCode::None,
    ErrorCode::NotController,
    ErrorCode::RequestTimedOut,
    ErrorCode::UnknownTopicOrPartition,
];

/// A topic or a group: which of the two, and its name.
type Whose = (i8, String);

/// On its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Set { whose: Whose, setting: &'static str, value: &'static str },
    SetBack { whose: Whose },
    Look { whose: Whose },
}

/// Progress of a changed setting on its way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Changed,
    /// The value of the changed setting was seen.
    Seen,
    SetBack,
}

/// Values that a setting may have.
#[derive(Debug, Default)]
struct Wish {
    /// Value that was acknowledged last.
    last: Option<&'static str>,
    /// Values that may have come to be, or may come.
    open: Vec<&'static str>,
}

#[derive(Debug, Default)]
struct Altered {
    stage: Stage,
    wishes: BTreeMap<&'static str, Wish>,
}

/// See above.
#[derive(Debug)]
pub(super) struct Operator {
    chance: Prng,
    altered: BTreeMap<Whose, Altered>,
    /// Changes that were made.
    pub(super) made: u64,
}

impl Operator {
    /// Makes an operator in every nineteenth seed.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let chance = Prng::new(seed, "settings");
        (seed % 19 == 9).then(|| Self { chance, altered: BTreeMap::new(), made: 0 })
    }

    /// Tells whether all is as it was.
    pub(super) fn is_done(&self) -> bool {
        self.altered.is_empty()
    }

    pub(super) fn told(&self) -> String {
        format!("{:?}", self.altered)
    }
}

/// Returns the value of a setting at first, if it was set at all.
fn made_with(oracle: &Oracle, (kind, name): &Whose, setting: &str) -> Option<&'static str> {
    let is_keyed = *kind == OF_TOPIC && oracle.is_keyed(name);
    let mut made_with = CONFIGS_OF_MANY.iter().filter(|(it, _)| is_keyed && *it == setting);
    made_with.next().map(|(_, value)| *value)
}

fn look(whose: &Whose) -> Request {
    let (resource_type, resource_name) = whose.clone();
    let resource =
        DescribeConfigsResource { resource_type, resource_name, configuration_keys: None };
    DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() }.into()
}

/// Requests of the operator.
impl Clients {
    /// Returns the next change, if there is to be one.
    pub(super) fn alter(&mut self) -> Option<Asking<Asked>> {
        let operator = self.operator.as_mut()?;
        if self.last_phase {
            return self.set_back();
        }
        let chance = &mut operator.chance;
        if !chance.chance(250) {
            return None;
        }
        let (kind, name, (setting, values)) = if chance.chance(200) {
            let (name, choice) = *chance.pick(&OF_GROUPS);
            (OF_GROUP, name, choice)
        } else {
            let name = *chance.pick(&TOPICS);
            let others = match (self.oracle.is_keyed(name), self.leaps) {
                (true, _) => &OF_COMPACTED[..],
                (false, true) => &OF_DELETED[..1],
                (false, false) => &OF_DELETED,
            };
            let choices = if chance.chance(500) { &OF_ALL[..] } else { others };
            (OF_TOPIC, name, *chance.pick(choices))
        };
        let (whose, value) = ((kind, name.to_owned()), *chance.pick(values));
        tell(|| format!("{setting} of {name} is to be {value}"));
        let number: Option<i64> = value.parse().ok().filter(|it| *it >= 0);
        match (setting, number) {
            (RETENTION_MS, Some(ms)) => self.oracle.limit(name, Some(ms), None),
            (RETENTION_BYTES, Some(bytes)) => self.oracle.limit(name, None, Some(bytes)),
            _ => {}
        }
        let wishes = &mut operator.altered.entry(whose.clone()).or_default().wishes;
        let at_first = Wish { last: made_with(&self.oracle, &whose, setting), open: Vec::new() };
        wishes.entry(setting).or_insert(at_first).open.push(value);
        let request = requests::alter((kind, name), [(setting, Some(value))].into_iter());
        Some((Asked::Alter(Question::Set { whose, setting, value }), request, 1))
    }

    /// Looks at a changed setting, sets it back, and looks at it again.
    fn set_back(&mut self) -> Option<Asking<Asked>> {
        let (whose, altered) = self.operator.as_ref()?.altered.first_key_value()?;
        let whose = whose.clone();
        if altered.stage != Stage::Seen {
            let request = look(&whose);
            return Some((Asked::Alter(Question::Look { whose }), request, 4));
        }
        let settings = altered.wishes.keys();
        let settings = settings.map(|it| (*it, made_with(&self.oracle, &whose, it)));
        let request = requests::alter((whose.0, &whose.1), settings);
        Some((Asked::Alter(Question::SetBack { whose }), request, 1))
    }
}

/// Answers to the operator.
impl Clients {
    pub(super) fn on_altered(&mut self, asked: Question, came: &Response) -> Result<(), Failure> {
        match (asked, came) {
            (Question::Look { whose }, Response::DescribeConfigs(it)) => {
                let result = &it.results[0];
                expect_one_of(result.error_code, &CODES, "DescribeConfigs")?;
                if result.error_code == 0 {
                    self.on_seen(&whose, &result.configs);
                }
                Ok(())
            }
            (Question::Set { whose, setting, value }, Response::IncrementalAlterConfigs(it)) => {
                let code = it.responses[0].error_code;
                tell(|| format!("  set {setting} of {}: {code}", whose.1));
                expect_one_of(code, &CODES, "IncrementalAlterConfigs")?;
                let operator = self.operator.as_mut().expect("it asked");
                let altered = operator.altered.get_mut(&whose);
                let wish = altered.and_then(|it| it.wishes.get_mut(setting)).filter(|_| code == 0);
                if let Some(wish) = wish {
                    operator.made += 1;
                    wish.last = Some(value);
                    let at = wish.open.iter().rposition(|it| *it == value);
                    wish.open.remove(at.expect("it was asked for"));
                }
                Ok(())
            }
            (Question::SetBack { whose }, Response::IncrementalAlterConfigs(it)) => {
                let code = it.responses[0].error_code;
                tell(|| format!("  set back what {} was: {code}", whose.1));
                expect_one_of(code, &CODES, "IncrementalAlterConfigs")?;
                let operator = self.operator.as_mut().expect("it asked");
                if code == 0 {
                    operator.altered.get_mut(&whose).expect("it is there still").stage =
                        Stage::SetBack;
                }
                Ok(())
            }
            (_, came) => unexpected(came),
        }
    }

    /// Takes a node's answer about a setting. A node that is behind may give another value for a while.
    fn on_seen(&mut self, whose: &Whose, rows: &[DescribeConfigsResourceResult]) {
        // A topic that was made again has no settings of the one before, but for those that came late.
        let is_another = whose.0 == OF_TOPIC && !self.oracle.is_live(&whose.1, 0);
        let oracle = &self.oracle;
        let altered = &mut self.operator.as_mut().expect("it asked").altered;
        let Some(it) = altered.get_mut(whose) else { return };
        let own = |setting: &str| {
            let row = rows.iter().find(|row| row.name == setting);
            row.filter(|row| OWN.contains(&row.config_source)).and_then(|row| row.value.as_deref())
        };
        let is_as_told = |(setting, wish): (&&'static str, &Wish)| {
            let open = wish.open.iter().copied().map(Some);
            open.chain([wish.last]).any(|value| value == own(setting))
        };
        let mut settings = it.wishes.keys();
        match it.stage {
            Stage::Changed if is_another || it.wishes.iter().all(is_as_told) => {
                it.stage = Stage::Seen;
            }
            Stage::SetBack if settings.all(|it| own(it) == made_with(oracle, whose, it)) => {
                altered.remove(whose);
            }
            _ => {}
        }
    }
}
