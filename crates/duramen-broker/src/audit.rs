//! # Room card: audit
//!
//! Purpose:    say in the log who made, altered and removed topics, settings, quotas, users and rules.
//! Owns:       the words for metadata records; the lines, target `duramen::audit`.
//! Interface:  [`Deeds::of`], [`Deeds::records`], [`Audit::note`], [`Audit::settle`].
//! Invariants: a line comes once its change is committed, at the node that decided it. A request has at most
//!             [`LINES_MAX`] lines, and one that counts the rest. No line has a secret.
//! Never:      the decision itself (`controller`); verdicts (`access/judged.rs`).
//! Tests:      below; `tests/server/security.rs` of `duramen` with the real binary.
//! Start at:   [`Deeds::of`].

use std::collections::BTreeMap;

use duramen_protocol::sasl::scram::Hash;
use duramen_protocol::wire::Uuid;

use crate::access::{AccessRecord, AccessRecords, Activity, RequestContext};
use crate::acls::Acl;
use crate::controller::image::Image;
use crate::event::RequestKey;
use crate::metadata_records::{
    ALL_BROKERS, CreateTopic, DeleteTopic, MetadataRecord, MovePartition, PlacePartition,
    QuotaEntity, RemoveAcl, RemoveScramCredential, SetAcl, SetBrokerConfig, SetClientQuota,
    SetGroupConfig, SetScramCredential, SetTopicConfig,
};

/// Most lines of one request.
const LINES_MAX: usize = 100;
/// Longest list of details in a line, in bytes.
const DETAIL_BYTES_MAX: usize = 1_000;

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Changes that are not committed yet.
    due: BTreeMap<RequestKey, Deeds>,
}

impl Audit {
    /// Keeps the deeds of a request until its records are committed.
    pub(crate) fn note(&mut self, key: RequestKey, deeds: Deeds) {
        self.due.insert(key, deeds);
    }

    /// Writes and returns what a request did, if that is committed.
    pub(crate) fn settle(&mut self, key: RequestKey, is_committed: bool) -> Option<Deeds> {
        let deeds = self.due.remove(&key).filter(|_| is_committed)?;
        deeds.say();
        Some(deeds)
    }
}

/// Changes that a client has asked for, in words.
#[derive(Clone, Debug)]
pub(crate) struct Deeds {
    context: RequestContext,
    /// By the deed and the name of what it was done to, in the order of the records.
    lines: Vec<(Deed, String)>,
}

/// A deed, and the name of what it was done to.
type Deed = (Act, String);

/// One kind of deed: its words, its activity, and the kind of what it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Act(&'static str, Activity, &'static str);

const TOPIC_MADE: Act = Act("topic made", Activity::Create, "Topic");
const TOPIC_SET: Act = Act("settings of a topic altered", Activity::Update, "Topic");
const PLACED: Act = Act("partitions added or placed", Activity::Update, "Topic");
const MOVED: Act = Act("partitions moved", Activity::Update, "Topic");
const TOPIC_DELETED: Act = Act("topic deleted", Activity::Delete, "Topic");
const NODES_SET: Act = Act("settings of nodes altered", Activity::Update, "Node");
const GROUP_SET: Act = Act("settings of a group altered", Activity::Update, "Group");
const QUOTA_SET: Act = Act("quota altered", Activity::Update, "Quota");
const PASSWORD_SET: Act = Act("password of a user set", Activity::Update, "User");
const PASSWORD_REMOVED: Act = Act("password of a user removed", Activity::Delete, "User");
const RULE_ADDED: Act = Act("rule added", Activity::Create, "Rule");
const RULE_REMOVED: Act = Act("rule removed", Activity::Delete, "Rule");

impl Deeds {
    /// Puts records into words, before they are applied.
    pub(crate) fn of(context: &RequestContext, records: &[MetadataRecord], image: &Image) -> Self {
        let mut made: BTreeMap<Uuid, &str> = BTreeMap::new();
        let mut lines: Vec<(Deed, String)> = Vec::new();
        let mut places: BTreeMap<Deed, usize> = BTreeMap::new();
        for record in records {
            if let MetadataRecord::CreateTopic(CreateTopic { topic_id, name }) = record {
                made.insert(*topic_id, name);
            }
            let Some((deed, detail)) = words(record, &made, image) else { continue };
            let place = *places.entry(deed.clone()).or_insert(lines.len());
            if place == lines.len() {
                lines.push((deed, String::new()));
            }
            add(&mut lines[place].1, &detail);
        }
        Self { context: context.clone(), lines }
    }

    /// Returns the deeds as records, as many as there are lines.
    pub(crate) fn records(self) -> AccessRecords {
        let Self { context, lines } = self;
        let left_out = lines.len().saturating_sub(LINES_MAX) as u64;
        let record = |((Act(message, activity, kind), name), detail)| AccessRecord {
            context: context.clone(),
            activity,
            message,
            detail,
            resource: (kind, name),
            verdict: None,
        };
        AccessRecords { records: lines.into_iter().take(LINES_MAX).map(record).collect(), left_out }
    }

    fn say(&self) {
        let Self { context, lines } = self;
        let unsaid = lines.len().saturating_sub(LINES_MAX);
        let api = context.api.to_string();
        let (principal, listener) = (&*context.principal, &*context.listener);
        let (host, client) = (context.host(), context.client_id.as_deref().unwrap_or(""));
        for ((Act(deed, ..), name), detail) in lines.iter().take(LINES_MAX) {
            tracing::info!(
                target: "duramen::audit",
                principal, host, listener, client, api, name, detail, "{deed}"
            );
        }
        if unsaid > 0 {
            tracing::info!(target: "duramen::audit", principal, host, api, unsaid, "more was changed");
        }
    }
}

/// Adds a detail, as far as there is room.
fn add(detail: &mut String, more: &str) {
    if more.is_empty() || detail.ends_with('…') {
        return;
    }
    if !detail.is_empty() {
        detail.push_str(", ");
    }
    if detail.len() + more.len() > DETAIL_BYTES_MAX {
        detail.push('…');
    } else {
        detail.push_str(more);
    }
}

/// Returns a setting with its value, or without one if it is taken back.
fn setting(name: &str, value: Option<&str>) -> String {
    value.map_or_else(|| format!("{name} taken back"), |value| format!("{name}={value}"))
}

fn words(
    record: &MetadataRecord,
    made: &BTreeMap<Uuid, &str>,
    image: &Image,
) -> Option<(Deed, String)> {
    let topic = |id: &Uuid| match made.get(id) {
        Some(name) => (*name).to_owned(),
        None => image.topic(*id).map_or_else(|| id.to_string(), |it| it.name.clone()),
    };
    // All that is said of a new topic is part of its making.
    let of_topic =
        |deed: Act, id: &Uuid| (if made.contains_key(id) { TOPIC_MADE } else { deed }, topic(id));
    let mechanism = |code: i8| Hash::from_code(code).map_or("?", Hash::name).to_owned();
    let words = match record {
        MetadataRecord::CreateTopic(CreateTopic { topic_id, .. }) => {
            (of_topic(TOPIC_MADE, topic_id), String::new())
        }
        MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, name, value }) => {
            (of_topic(TOPIC_SET, topic_id), setting(name, value.as_deref()))
        }
        MetadataRecord::PlacePartition(PlacePartition { topic_id, partition, replicas }) => {
            let nodes: Vec<i32> = replicas.iter().map(|it| it.broker_id).collect();
            let placed = format!("partition {partition} on {nodes:?}");
            (of_topic(PLACED, topic_id), placed)
        }
        MetadataRecord::MovePartition(MovePartition {
            topic_id,
            partition,
            target,
            replicas,
            ..
        }) => {
            let goes = |peer: &u64| replicas.iter().find(|it| it.peer_id == *peer);
            let nodes: Vec<i32> = target.iter().filter_map(goes).map(|it| it.broker_id).collect();
            ((MOVED, topic(topic_id)), format!("partition {partition} to {nodes:?}"))
        }
        MetadataRecord::DeleteTopic(DeleteTopic { topic_id }) => {
            ((TOPIC_DELETED, topic(topic_id)), String::new())
        }
        MetadataRecord::SetBrokerConfig(SetBrokerConfig { broker_id, name, value }) => {
            let whose =
                if *broker_id == ALL_BROKERS { "all".to_owned() } else { broker_id.to_string() };
            ((NODES_SET, whose), setting(name, value.as_deref()))
        }
        MetadataRecord::SetGroupConfig(SetGroupConfig { group, name, value }) => {
            ((GROUP_SET, group.clone()), setting(name, value.as_deref()))
        }
        MetadataRecord::SetClientQuota(SetClientQuota { entity, key, value, is_removed }) => {
            let part = |QuotaEntity { entity_type, entity_name }: &QuotaEntity| {
                format!("{entity_type} {}", entity_name.as_deref().unwrap_or("<default>"))
            };
            let whose = entity.iter().map(part).collect::<Vec<_>>().join(", ");
            let value = (!is_removed).then(|| value.to_string());
            ((QUOTA_SET, whose), setting(key, value.as_deref()))
        }
        MetadataRecord::SetScramCredential(SetScramCredential {
            user, mechanism: code, ..
        }) => ((PASSWORD_SET, user.clone()), mechanism(*code)),
        MetadataRecord::RemoveScramCredential(RemoveScramCredential { user, mechanism: code }) => {
            ((PASSWORD_REMOVED, user.clone()), mechanism(*code))
        }
        MetadataRecord::SetAcl(set) => {
            ((RULE_ADDED, set.principal.clone()), SetAcl::acl(set.clone()).map(rule)?)
        }
        MetadataRecord::RemoveAcl(RemoveAcl { id }) => {
            let acl = image.acls.get(id)?.clone();
            ((RULE_REMOVED, acl.principal.clone()), rule(acl))
        }
        _ => return None,
    };
    Some(words)
}

/// Returns a rule in words.
fn rule(acl: Acl) -> String {
    let Acl { resource, name, pattern, host, operation, permission, .. } = acl;
    format!("{permission} {operation} on {resource} {name} ({pattern}) from {host}")
}

#[cfg(test)]
mod tests {
    use duramen_protocol::ApiKey;

    use super::*;

    fn deeds(records: &[MetadataRecord]) -> Vec<String> {
        let context = RequestContext::sample(ApiKey::CreateTopics);
        let deeds = Deeds::of(&context, records, &Image::default());
        deeds
            .lines
            .iter()
            .map(|((Act(deed, ..), name), detail)| format!("{deed} {name}: {detail}"))
            .collect()
    }

    #[test]
    fn records_of_one_deed_are_one_line() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let set = |topic_id, name: &str, value: Option<&str>| {
            let (name, value) = (name.to_owned(), value.map(str::to_owned));
            MetadataRecord::SetTopicConfig(SetTopicConfig { topic_id, name, value })
        };
        let create = CreateTopic { topic_id: one, name: "t".to_owned() };
        let remove = RemoveScramCredential { user: "ada".to_owned(), mechanism: 1 };
        let records = [
            MetadataRecord::CreateTopic(create),
            set(one, "a", Some("1")),
            set(one, "b", None),
            set(other, "c", Some("2")),
            MetadataRecord::RemoveScramCredential(remove),
        ];
        assert_eq!(
            deeds(&records),
            [
                "topic made t: a=1, b taken back".to_owned(),
                format!("settings of a topic altered {other}: c=2"),
                "password of a user removed ada: SCRAM-SHA-256".to_owned(),
            ]
        );
    }

    #[test]
    fn a_line_has_no_secret_and_an_end() {
        let secret = || duramen_protocol::wire::Secret(b"hidden".to_vec().into());
        let credential = MetadataRecord::SetScramCredential(SetScramCredential {
            user: "ada".to_owned(),
            mechanism: 2,
            iterations: 4096,
            salt: secret(),
            stored_key: secret(),
            server_key: secret(),
        });
        assert_eq!(deeds(&[credential]), ["password of a user set ada: SCRAM-SHA-512"]);
        let create = CreateTopic { topic_id: Uuid::from_u128(1), name: "t".to_owned() };
        let mut records = vec![MetadataRecord::CreateTopic(create)];
        records.extend((0..1000).map(|partition| {
            let (topic_id, replicas) = (Uuid::from_u128(1), Vec::new());
            MetadataRecord::PlacePartition(PlacePartition { topic_id, partition, replicas })
        }));
        let told = deeds(&records);
        assert!(told.len() == 1 && told[0].len() < 1_100 && told[0].ends_with('…'), "{told:?}");
    }
}
