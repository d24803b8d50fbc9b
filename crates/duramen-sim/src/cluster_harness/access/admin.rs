//! # Room card: access administrator
//!
//! Purpose:    make and take away rules and users, all the time.
//! Owns:       the choice of changes; what the answers to them promise.
//! Interface:  [`Admin::ask`], [`Admin::on_response`].
//! Invariants: one change at a time is asked for; one without an answer may have been made, at any time.
//! Never:      which changes were made: the metadata log says so.
//! Tests:      scenario `access`.
//! Start at:   [`Admin::ask`].

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use duramen_broker::acls::{Acl, AclOperation, CLUSTER_NAME, Pattern, Permission, ResourceType};
use duramen_protocol::messages::alter_user_scram_credentials::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use duramen_protocol::messages::create_acls::AclCreation;
use duramen_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use duramen_protocol::messages::delete_acls::DeleteAclsFilter;
use duramen_protocol::messages::{
    AlterUserScramCredentialsRequest, CreateAclsRequest, CreateTopicsRequest, DeleteAclsRequest,
};
use duramen_protocol::sasl::scram::Hash;
use duramen_protocol::wire::{Secret, Uuid};
use duramen_protocol::{Request, Response};

use super::clients::{QUAY, TOPICS};
use super::oracle::Says;
use crate::failure::{Failure, wrong};
use crate::prng::Prng;

/// Users that come and go.
pub(super) const USERS: [&str; 3] = ["ada", "bob", "cleo"];
/// Addresses of clients.
pub(super) const HOSTS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
/// Mechanism of all passwords.
pub(super) const HASH: Hash = Hash::Sha256;
/// Kafka's number of the filter that fits all.
const ANY: i8 = 1;
/// Pause between two changes at most, in microseconds.
const PAUSES_US: [u64; 3] = [100_000, 700_000, 2_500_000];
/// Time after which no change comes late any more, in microseconds.
const LATE_US: u64 = 15_000_000;

/// Change that the administrator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Topics,
    Rules(Vec<Acl>),
    /// This rule goes.
    NoRule(Acl),
    /// All rules of the principal go.
    NoRulesOf(String),
    User(&'static str, Bytes),
    NoUser(&'static str),
}

/// See the room card.
pub(super) struct Admin {
    /// Changes that come first, and are asked for until they are made.
    todo: VecDeque<Change>,
    /// Change that was asked for.
    pub(super) asked: Option<Change>,
    /// Rules that there may be.
    rules: Vec<Acl>,
    /// Salts of each user's passwords, the last one last.
    salts: BTreeMap<&'static str, Vec<Bytes>>,
    pub(super) ids: [Uuid; TOPICS.len()],
    /// Time of the next change, in microseconds.
    pub(super) next_us: u64,
    chance: Prng,
    is_last: bool,
}

impl Admin {
    pub(super) fn new(seed: u64) -> Self {
        let mut admin = Self {
            todo: VecDeque::from([Change::Topics]),
            asked: None,
            rules: Vec::new(),
            salts: BTreeMap::new(),
            ids: [Uuid::ZERO; TOPICS.len()],
            next_us: 0,
            chance: Prng::new(seed, "access administrator"),
            is_last: false,
        };
        let rules: Vec<Acl> = (0..6).map(|_| admin.rule()).collect();
        admin.rules.clone_from(&rules);
        admin.todo.push_back(Change::Rules(rules));
        for user in USERS {
            let user = admin.password(user);
            admin.todo.push_back(user);
        }
        admin
    }

    /// Tells whether all that comes first is made.
    pub(super) fn is_ready(&self) -> bool {
        self.todo.is_empty() && self.asked.is_none()
    }

    /// Has all users come back, and nothing else change.
    pub(super) fn begin_last_phase(&mut self, now_us: u64) {
        self.is_last = true;
        self.bring_back(now_us);
    }

    /// Gives all users passwords, and again after a while: an earlier change without an answer may come late.
    fn bring_back(&mut self, now_us: u64) {
        self.next_us = now_us + LATE_US;
        for user in USERS {
            let user = self.password(user);
            self.todo.push_back(user);
        }
    }

    /// Tells whether a client of a user may know the password of this salt.
    pub(super) fn knows(&self, user: &str, salt: &Bytes) -> bool {
        self.salts.get(user).is_some_and(|own| own.contains(salt))
    }

    /// Returns the next change and its request, if it is time for one.
    pub(super) fn ask(&mut self, now_us: u64) -> Option<(Request, i16)> {
        if self.asked.is_some() || now_us < self.next_us && self.todo.is_empty() {
            return None;
        }
        if self.is_last && self.todo.is_empty() {
            self.bring_back(now_us);
        }
        let change = if let Some(first) = self.todo.front() {
            first.clone()
        } else {
            let pause_us = *self.chance.pick(&PAUSES_US);
            self.next_us = now_us + self.chance.below(pause_us);
            self.change()
        };
        let request = request(&change);
        self.asked = Some(change);
        Some(request)
    }

    fn change(&mut self) -> Change {
        let kind = self.chance.below(100);
        match kind {
            0..50 => {
                let count = self.chance.between(1, 4);
                let rules: Vec<Acl> = (0..count).map(|_| self.rule()).collect();
                self.rules.extend(rules.clone());
                Change::Rules(rules)
            }
            50..78 if !self.rules.is_empty() => {
                let at = self.chance.index(self.rules.len());
                Change::NoRule(self.rules.swap_remove(at))
            }
            78..84 => Change::NoRulesOf(self.principal()),
            84..92 => {
                let user = *self.chance.pick(&USERS);
                Change::NoUser(user)
            }
            _ => {
                let user = *self.chance.pick(&USERS);
                self.password(user)
            }
        }
    }

    fn password(&mut self, user: &'static str) -> Change {
        let salt = Bytes::from(self.chance.bytes(12));
        self.salts.entry(user).or_default().push(salt.clone());
        Change::User(user, salt)
    }

    fn principal(&mut self) -> String {
        let user = *self.chance.pick(&["ada", "bob", "cleo", "*"]);
        format!("User:{user}")
    }

    /// Draws a rule. Several of them are about one resource, and for one client.
    fn rule(&mut self) -> Acl {
        use AclOperation::{All, Alter, Create, Describe, Read, Write};
        let principal = self.principal();
        let host = (*self.chance.pick(&["*", "*", "*", HOSTS[0], HOSTS[1]])).to_owned();
        let permission = if self.chance.chance(250) { Permission::Deny } else { Permission::Allow };
        if self.chance.chance(80) {
            let (name, pattern) = (CLUSTER_NAME.to_owned(), Pattern::Literal);
            let operation = *self.chance.pick(&[Create, Create, Alter]);
            let resource = ResourceType::Cluster;
            return Acl { resource, name, pattern, principal, host, operation, permission };
        }
        let names = ["tea", "tea", "tea-green", "tin", "oak", QUAY, "*"];
        let beginnings = ["t", "te", "tea", "tea-", "oak", "qu"];
        let (name, pattern) = if self.chance.chance(650) {
            (*self.chance.pick(&names), Pattern::Literal)
        } else {
            (*self.chance.pick(&beginnings), Pattern::Prefixed)
        };
        let operation = *self.chance.pick(&[Read, Read, Read, Write, Write, All, Describe, Create]);
        let (resource, name) = (ResourceType::Topic, name.to_owned());
        Acl { resource, name, pattern, principal, host, operation, permission }
    }

    /// Takes an answer. Returns what it says about rules and users, and whether the change was made.
    pub(super) fn on_response(&mut self, response: &Response) -> Result<Vec<Says>, Failure> {
        let Some(asked) = self.asked.take() else { return wrong("an answer to nothing") };
        let (is_made, says) = match (&asked, response) {
            (Change::Topics, Response::CreateTopics(it)) => {
                for (id, topic) in self.ids.iter_mut().zip(&it.topics) {
                    *id = topic.topic_id;
                }
                (it.topics.iter().all(|it| it.error_code == 0), Vec::new())
            }
            (Change::Rules(rules), Response::CreateAcls(it)) => {
                let results = it.results.iter().zip(rules);
                let made = results.filter(|(it, _)| it.error_code == 0);
                let says: Vec<Says> = made.map(|(_, acl)| Says::Rule(acl.clone())).collect();
                (says.len() == rules.len(), says)
            }
            (Change::NoRule(acl), Response::DeleteAcls(it)) => {
                let is_made = it.filter_results[0].error_code == 0;
                (is_made, is_made.then(|| Says::NoRule(acl.clone())).into_iter().collect())
            }
            (Change::NoRulesOf(_), Response::DeleteAcls(it)) => {
                (it.filter_results[0].error_code == 0, Vec::new())
            }
            (Change::User(user, salt), Response::AlterUserScramCredentials(it)) => {
                let is_made = it.results[0].error_code == 0;
                let says = is_made.then(|| Says::IsUser((*user).to_owned(), salt.clone()));
                (is_made, says.into_iter().collect())
            }
            (Change::NoUser(_), Response::AlterUserScramCredentials(it)) => {
                (it.results[0].error_code == 0, Vec::new())
            }
            (asked, other) => return wrong(format!("{other:?} to {asked:?}")),
        };
        if is_made && self.todo.front() == Some(&asked) {
            self.todo.pop_front();
        }
        Ok(says)
    }
}

fn request(change: &Change) -> (Request, i16) {
    match change {
        Change::Topics => (topics(), 7),
        Change::Rules(rules) => {
            let creations = rules.iter().map(creation).collect();
            (CreateAclsRequest { creations }.into(), 3)
        }
        Change::NoRule(acl) => {
            let AclCreation { resource_type, resource_pattern_type, operation, .. } = creation(acl);
            let filter = DeleteAclsFilter {
                resource_type_filter: resource_type,
                resource_name_filter: Some(acl.name.clone()),
                pattern_type_filter: resource_pattern_type,
                principal_filter: Some(acl.principal.clone()),
                host_filter: Some(acl.host.clone()),
                operation,
                permission_type: acl.permission.code(),
            };
            (DeleteAclsRequest { filters: vec![filter] }.into(), 3)
        }
        Change::NoRulesOf(principal) => {
            let filter = DeleteAclsFilter {
                resource_type_filter: ANY,
                resource_name_filter: None,
                pattern_type_filter: ANY,
                principal_filter: Some(principal.clone()),
                host_filter: None,
                operation: ANY,
                permission_type: ANY,
            };
            (DeleteAclsRequest { filters: vec![filter] }.into(), 3)
        }
        Change::User(user, salt) => {
            // The same password each time that the change is asked for: the oracle knows it by its salt.
            let salted_password = salt.iter().copied().cycle().take(HASH.key_bytes()).collect();
            let set = ScramCredentialUpsertion {
                name: (*user).to_owned(),
                mechanism: HASH.code(),
                iterations: 4096,
                salt: salt.clone(),
                salted_password: Secret(salted_password),
            };
            (alter(Vec::new(), vec![set]), 0)
        }
        Change::NoUser(user) => {
            let gone = ScramCredentialDeletion { name: (*user).to_owned(), mechanism: HASH.code() };
            (alter(vec![gone], Vec::new()), 0)
        }
    }
}

fn alter(
    deletions: Vec<ScramCredentialDeletion>,
    upsertions: Vec<ScramCredentialUpsertion>,
) -> Request {
    AlterUserScramCredentialsRequest { deletions, upsertions }.into()
}

fn creation(acl: &Acl) -> AclCreation {
    AclCreation {
        resource_type: acl.resource.code(),
        resource_name: acl.name.clone(),
        resource_pattern_type: acl.pattern.code(),
        principal: acl.principal.clone(),
        host: acl.host.clone(),
        operation: acl.operation.code(),
        permission_type: acl.permission.code(),
    }
}

fn topics() -> Request {
    let topic = |name: &str, configs: Vec<CreatableTopicConfig>| CreatableTopic {
        name: name.to_owned(),
        num_partitions: 1,
        replication_factor: 3,
        configs,
        ..CreatableTopic::default()
    };
    let of_queues =
        CreatableTopicConfig { name: "queue.enable".to_owned(), value: Some("true".to_owned()) };
    let plain = TOPICS.into_iter().map(|name| topic(name, Vec::new()));
    let topics = plain.chain([topic(QUAY, vec![of_queues])]).collect();
    CreateTopicsRequest { topics, timeout_ms: 20_000, ..Default::default() }.into()
}
