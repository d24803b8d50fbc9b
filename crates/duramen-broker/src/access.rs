//! # Room card: access
//!
//! Purpose:    who may do what: the one place that handlers ask before they act, look up, or tell.
//! Owns:       the client of a request, operations and resources, [`QUESTIONS`], [`NATIVE_QUESTIONS`], and from them
//!             `docs/access.md`; super users, and whether there is access control at all; the
//!             log of denials and of what was allowed (`access/judged.rs`), as lines and as records
//!             (`access/record.rs`).
//! Interface:  [`Access::may`], [`Access::admit`], [`Access::may_on_any`], [`Access::operations`].
//! Invariants: each served API has a row in a table; a handler asks only questions of its API's rows.
//! Never:      look-ups; the answer to a client that may not; the rules themselves (`acls`).
//! Tests:      `node/tests/access.rs`, `node/tests/acls.rs`; `DURAMEN_WRITE_DOCS=1 cargo test -p duramen-broker
//!             --test access` writes the document.
//! Start at:   [`Access::may`], then `access/questions.rs`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use duramen_protocol::{ApiKey, ErrorCode};
use duramen_storage::sabotage::{self, Bug};
use smol_str::SmolStr;

use crate::acls::{Acl, AclOperation, Acls, Action, CLUSTER_NAME, ResourceType, Verdict};
#[cfg(test)]
use crate::acls::{EVERYBODY, Pattern, Permission, WILDCARD};
use crate::configs::{AUTHORIZER, BrokerSettings};
use crate::native::Name;

mod judged;
mod questions;
mod record;

use judged::Judged;

pub use questions::{Asked, NATIVE_QUESTIONS, NativeQuestion, QUESTIONS, Question, Refusal};
pub(crate) use record::{ACCESS_LOG, AccessRecord, AccessRecords, Activity};

/// Principal, client, listener, API and version of a request.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Principal of the client; `User:ANONYMOUS` where nobody is asked.
    pub principal: Arc<str>,
    /// The client's name for itself.
    pub client_id: Option<SmolStr>,
    /// The listener's name.
    pub listener: Arc<str>,
    /// Where the client is, as Kafka prints it: `/127.0.0.1`.
    pub client_host: Arc<str>,
    /// The API of the request.
    pub api: Api,
    /// The version of the request; 0 for an operation of the native API.
    pub version: i16,
    /// Time spent on decoding and checking the request, in microseconds; 0 if it was not measured.
    pub spent_us: u64,
    /// True for a request that another node forwarded, if that node has access control.
    pub is_ruled: bool,
}

impl RequestContext {
    /// Returns the client's address, as rules name it.
    pub(crate) fn host(&self) -> &str {
        self.client_host.strip_prefix('/').unwrap_or(&self.client_host)
    }
}

/// API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// One of Kafka's, or of the few that Duramen adds to them.
    Kafka(ApiKey),
    /// An operation of the native API.
    Native(Name),
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kafka(api) => write!(f, "{api}"),
            Self::Native(op) => write!(f, "{op:?}"),
        }
    }
}

#[cfg(test)]
impl RequestContext {
    /// Makes the context of a request that no session has read.
    pub(crate) fn sample(api: ApiKey) -> Self {
        Self {
            principal: "User:ANONYMOUS".into(),
            client_id: None,
            listener: "PLAINTEXT".into(),
            client_host: "/127.0.0.1".into(),
            api: Api::Kafka(api),
            version: 0,
            spent_us: 0,
            is_ruled: false,
        }
    }
}

/// Operation that a client asks to perform on a resource, by Kafka's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// Reading of records; a member's part in a group.
    Read = 3,
    /// Writing of records; use of a transactional id.
    Write = 4,
    /// Creation of a topic.
    Create = 5,
    /// Deletion of a topic, of its records, or of a group.
    Delete = 6,
    /// Change of a topic or of the cluster.
    Alter = 7,
    /// Sight of the resource: its existence and its state.
    Describe = 8,
    /// Acts of a node of the cluster.
    ClusterAction = 9,
    /// Sight of settings.
    DescribeConfigs = 10,
    /// Change of settings.
    AlterConfigs = 11,
    /// Writing with a producer id, outside of transactions.
    IdempotentWrite = 12,
}

impl Operation {
    /// Returns the operation of a rule.
    const fn of_rule(self) -> AclOperation {
        match self {
            Self::Read => AclOperation::Read,
            Self::Write => AclOperation::Write,
            Self::Create => AclOperation::Create,
            Self::Delete => AclOperation::Delete,
            Self::Alter => AclOperation::Alter,
            Self::Describe => AclOperation::Describe,
            Self::ClusterAction => AclOperation::ClusterAction,
            Self::DescribeConfigs => AclOperation::DescribeConfigs,
            Self::AlterConfigs => AclOperation::AlterConfigs,
            Self::IdempotentWrite => AclOperation::IdempotentWrite,
        }
    }

    /// Returns the operation's bit in a set of authorised operations.
    const fn bit(self) -> i32 {
        1 << self as u8
    }
}

/// Kind of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The whole cluster.
    Cluster,
    /// One topic.
    Topic,
    /// One group, of whichever protocol.
    Group,
    /// One transactional id.
    TransactionalId,
}

impl Kind {
    /// Returns the operations that exist on such a resource, as far as a client may ask for the set of them.
    pub const fn operations(self) -> &'static [Operation] {
        use Operation::{
            Alter, AlterConfigs, ClusterAction, Create, Delete, Describe, DescribeConfigs,
            IdempotentWrite, Read, Write,
        };
        match self {
            Self::Cluster => &[
                Create,
                Alter,
                Describe,
                ClusterAction,
                DescribeConfigs,
                AlterConfigs,
                IdempotentWrite,
            ],
            Self::Topic => {
                &[Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs]
            }
            Self::Group => &[Read, Delete, Describe, DescribeConfigs, AlterConfigs],
            Self::TransactionalId => &[Write, Describe],
        }
    }

    /// Returns the name of the kind, as rules have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Topic => "Topic",
            Self::Group => "Group",
            Self::TransactionalId => "TransactionalId",
        }
    }

    /// Returns the kind of resource of a rule.
    const fn of_rule(self) -> ResourceType {
        match self {
            Self::Cluster => ResourceType::Cluster,
            Self::Topic => ResourceType::Topic,
            Self::Group => ResourceType::Group,
            Self::TransactionalId => ResourceType::TransactionalId,
        }
    }

    /// Returns the error code of an answer that refuses an operation on such a resource.
    pub const fn refusal(self) -> ErrorCode {
        match self {
            Self::Cluster => ErrorCode::ClusterAuthorizationFailed,
            Self::Topic => ErrorCode::TopicAuthorizationFailed,
            Self::Group => ErrorCode::GroupAuthorizationFailed,
            Self::TransactionalId => ErrorCode::TransactionalIdAuthorizationFailed,
        }
    }
}

/// Resource of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    Cluster,
    Topic(&'a str),
    Group(&'a str),
    TransactionalId(&'a str),
}

impl Resource<'_> {
    /// Returns the name of the resource, as rules name it.
    const fn name(&self) -> &str {
        match self {
            Self::Cluster => CLUSTER_NAME,
            Self::Topic(name) | Self::Group(name) | Self::TransactionalId(name) => name,
        }
    }

    /// Returns the kind of the resource.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::Cluster => Kind::Cluster,
            Self::Topic(_) => Kind::Topic,
            Self::Group(_) => Kind::Group,
            Self::TransactionalId(_) => Kind::TransactionalId,
        }
    }
}

/// Verdicts that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Logged {
    #[default]
    None,
    Denials,
    All,
}

/// Judge of what clients may do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// True if rules decide (`authorizer.class.name`); else every client may do everything.
    is_on: bool,
    /// Principals that may do everything (`super.users`).
    super_users: BTreeSet<String>,
    /// True if clients may do everything with a resource that has no rule (`allow.everyone.if.no.acl.found`).
    lets_everyone: bool,
    acls: Acls,
    /// Verdicts that are logged (`access.log`).
    logged: Logged,
    /// True if verdicts and changes are kept in a topic (`access.log.topic.enable`).
    keeps_records: bool,
    /// Denials that this room has noted; those who ask have no right to change it.
    denials: RefCell<Judged>,
    /// The other verdicts, if they are logged.
    allowed: RefCell<Judged>,
}

/// Rules and settings.
impl Access {
    /// Takes the settings that there are now.
    pub(crate) fn reconfigure(&mut self, settings: &BrokerSettings) {
        let value = |name: &str| settings.get(name).map_or("", |(value, _)| value);
        self.is_on = value("authorizer.class.name") == AUTHORIZER;
        self.lets_everyone = value("allow.everyone.if.no.acl.found") == "true";
        self.logged = match value("access.log") {
            "off" => Logged::None,
            "all" => Logged::All,
            _ => Logged::Denials,
        };
        self.keeps_records = value("access.log.topic.enable") == "true";
        let super_users = value("super.users").split(';').map(str::trim);
        self.super_users = super_users.filter(|it| !it.is_empty()).map(str::to_owned).collect();
    }

    /// Logs the verdicts of a turn. Returns their records, if the node keeps these.
    pub(crate) fn say_verdicts(&mut self, now_us: u64) -> AccessRecords {
        let (denials, allowed) = (self.denials.get_mut(), self.allowed.get_mut());
        if self.logged == Logged::None {
            denials.pass_over();
            allowed.pass_over();
            return AccessRecords::default();
        }
        let mut kept = denials.say(false, now_us, self.keeps_records);
        if self.logged == Logged::All {
            let more = allowed.say(true, now_us, self.keeps_records);
            kept.records.extend(more.records);
            kept.left_out += more.left_out;
        } else {
            allowed.pass_over();
        }
        kept
    }

    /// Tells whether the node keeps records of verdicts and changes (`access.log.topic.enable`).
    pub(crate) fn keeps_records(&self) -> bool {
        self.keeps_records
    }

    /// Notes a verdict of rules, as far as the log wants it.
    fn note(&self, may: bool, context: &RequestContext, what: (Operation, Kind, &str)) {
        if !may {
            self.denials.borrow_mut().note(context, what);
        } else if self.logged == Logged::All && (self.is_on || context.is_ruled) {
            self.allowed.borrow_mut().note(context, what);
        }
    }

    /// Returns the number of denials since the start.
    pub(crate) fn denials(&self) -> u64 {
        self.denials.borrow().count()
    }

    /// Tells whether rules decide.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Takes these rules in place of all others.
    pub(crate) fn begin_anew<'a>(&mut self, acls: impl Iterator<Item = &'a Acl>) {
        self.acls = acls.cloned().collect();
    }

    /// Tells whether there is such a rule.
    pub(crate) fn has(&self, acl: &Acl) -> bool {
        self.acls.contains(acl)
    }

    /// Takes a new rule.
    pub(crate) fn add(&mut self, acl: Acl) {
        self.acls.add(acl);
    }

    /// Forgets a rule.
    pub(crate) fn remove(&mut self, acl: &Acl) {
        self.acls.remove(acl);
    }

    /// Tells whether a client may do everything, by whatever reason but a rule.
    fn is_free(&self, context: &RequestContext) -> bool {
        let is_trusted = context.is_ruled && sabotage::is(Bug::ForwardedNotJudged);
        !(self.is_on || context.is_ruled)
            || self.super_users.contains(&*context.principal)
            || is_trusted
    }

    /// Tells whether the rules let a client perform the operation on the resource.
    fn rules_allow(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        if self.is_free(context) {
            return true;
        }
        let verdict = self.acls.decide(&Action {
            principal: &context.principal,
            host: context.host(),
            operation: operation.of_rule(),
            resource: resource.kind().of_rule(),
            name: resource.name(),
        });
        match verdict {
            Verdict::Allowed(()) => true,
            Verdict::Denied(()) | Verdict::NoneFits => false,
            Verdict::NoRule => self.lets_everyone,
        }
    }

    /// Tells whether the rules let a client perform the operation on any resource of the kind. Kafka asks about a name
    /// that it made up first, so that a client gets in that may do everything where no rule is.
    fn rules_allow_on_any(
        &self,
        context: &RequestContext,
        operation: Operation,
        kind: Kind,
    ) -> bool {
        let made_up = match kind {
            Kind::Cluster => Resource::Cluster,
            Kind::Topic => Resource::Topic(MADE_UP),
            Kind::Group => Resource::Group(MADE_UP),
            Kind::TransactionalId => Resource::TransactionalId(MADE_UP),
        };
        let who = (&*context.principal, context.host());
        self.rules_allow(context, operation, made_up)
            || self.acls.allows_on_any(who, operation.of_rule(), kind.of_rule())
    }
}

/// Name of Kafka's for a resource that may or may not be there.
const MADE_UP: &str = "hardcode";

impl Access {
    /// Tells whether the client may perform the operation on the resource.
    pub(crate) fn may(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        let asked = Asked::Operation(operation, resource.kind());
        check(context.api, asked);
        let may = self.rules_allow(context, operation, resource);
        if may || is_told(context.api, asked) {
            self.note(may, context, (operation, resource.kind(), resource.name()));
        }
        may
    }

    /// Tells whether an answer about all resources names this one to the client. One that is left out is no denial that
    /// the client hears of.
    pub(crate) fn is_shown(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        check(context.api, Asked::Operation(operation, resource.kind()));
        self.rules_allow(context, operation, resource)
    }

    /// Returns the error code for a client that may not perform the operation on the resource.
    pub(crate) fn admit(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Result<(), ErrorCode> {
        if self.may(context, operation, resource) { Ok(()) } else { Err(resource.kind().refusal()) }
    }

    /// Tells whether the client may perform the operation on any resource of the kind (KIP-679).
    pub(crate) fn may_on_any(
        &self,
        context: &RequestContext,
        operation: Operation,
        kind: Kind,
    ) -> bool {
        check(context.api, Asked::OnAny(operation, kind));
        let may = self.rules_allow_on_any(context, operation, kind);
        self.note(may, context, (operation, kind, "any"));
        may
    }

    /// Returns the set of operations that the client may perform on the resource, as Kafka's bits.
    pub(crate) fn operations(&self, context: &RequestContext, resource: Resource<'_>) -> i32 {
        check(context.api, Asked::Each(resource.kind()));
        let all = resource.kind().operations().iter();
        let allowed = all.filter(|operation| self.rules_allow(context, **operation, resource));
        allowed.fold(0, |set, operation| set | operation.bit())
    }

    /// Returns the set of operations that the client may perform on the cluster. The set is empty for a client that may
    /// not even see the cluster.
    pub(crate) fn cluster_operations(&self, context: &RequestContext) -> i32 {
        if self.may(context, Operation::Describe, Resource::Cluster) {
            self.operations(context, Resource::Cluster)
        } else {
            0
        }
    }
}

#[cfg(test)]
impl Access {
    /// Adds a rule for everybody, beside one that allows everything.
    fn rule(&mut self, operation: AclOperation, kind: Kind, name: &str, permission: Permission) {
        self.is_on = true;
        let name = if kind == Kind::Cluster { CLUSTER_NAME } else { name }.to_owned();
        let (resource, pattern) = (kind.of_rule(), Pattern::Literal);
        let (principal, host) = (EVERYBODY.to_owned(), WILDCARD.to_owned());
        self.acls.add(Acl { resource, name, pattern, principal, host, operation, permission });
    }

    fn allow_beside(&mut self) {
        for kind in [Kind::Cluster, Kind::Topic, Kind::Group, Kind::TransactionalId] {
            self.rule(AclOperation::All, kind, WILDCARD, Permission::Allow);
        }
    }

    /// Denies an operation on all resources of a kind.
    pub(crate) fn deny(&mut self, operation: Operation, kind: Kind) {
        self.allow_beside();
        self.rule(operation.of_rule(), kind, WILDCARD, Permission::Deny);
    }

    /// Denies an operation on one topic.
    pub(crate) fn deny_on_topic(&mut self, operation: Operation, name: &str) {
        self.allow_beside();
        self.rule(operation.of_rule(), Kind::Topic, name, Permission::Deny);
    }

    /// Allows everything again.
    pub(crate) fn allow_all(&mut self) {
        self.acls = Acls::default();
        self.allow_beside();
    }
}

/// Tells whether a client learns of a denial. Some only leave something out of an answer, or leave the decision to
/// another question.
fn is_told(api: Api, asked: Asked) -> bool {
    let Api::Kafka(api) = api else { return true };
    let row = QUESTIONS.iter().find(|row| row.api == api && row.asked == asked);
    row.is_none_or(|row| matches!(row.refusal, Refusal::Code(_)))
}

/// Checks that a table has a row for the question.
fn check(api: Api, asked: Asked) {
    let is_listed = || match api {
        Api::Kafka(api) => QUESTIONS.iter().any(|row| row.api == api && row.asked == asked),
        Api::Native(op) => {
            let listed = |row: &NativeQuestion| Asked::Operation(row.operation, row.kind);
            NATIVE_QUESTIONS.iter().any(|row| row.op == op && listed(row) == asked)
        }
    };
    debug_assert!(is_listed(), "{api:?} asks {asked:?}, which its table lacks");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_noted_as_far_as_the_log_wants_them() {
        let context = RequestContext::sample(ApiKey::Produce);
        for (log, allowed) in [("off", 0), ("denied", 0), ("all", 1)] {
            let settings = [("access.log", log), ("authorizer.class.name", AUTHORIZER)];
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let mut access = Access::default();
            access.reconfigure(&BrokerSettings::from_pairs(&settings).expect("right settings"));
            access.rule(AclOperation::Write, Kind::Topic, "t", Permission::Allow);
            assert!(access.may(&context, Operation::Write, Resource::Topic("t")));
            assert!(!access.may(&context, Operation::Write, Resource::Topic("u")));
            assert_eq!((access.denials(), access.allowed.borrow().count()), (1, allowed), "{log}");
        }
    }
}
