//! # Room card: access
//!
//! Purpose:    who may do what: the one place that handlers ask before they act, look up, or tell.
//! Owns:       the client of a request, operations and resources, [`QUESTIONS`], [`NATIVE_QUESTIONS`], and from them
//!             `docs/access.md`.
//! Interface:  [`Access::may`], [`Access::admit`], [`Access::may_on_any`], [`Access::operations`].
//! Invariants: each served API has a row in a table; a handler asks only questions of its API's rows.
//! Never:      look-ups; the answer to a client that may not.
//! Tests:      `node/tests/access.rs`; `DURAMEN_WRITE_DOCS=1 cargo test -p duramen-broker --test access` writes the
//!             document.
//! Start at:   [`Access::may`], then `access/questions.rs`.

use std::sync::Arc;

use duramen_protocol::{ApiKey, ErrorCode};
use smol_str::SmolStr;

use crate::native::Name;

mod questions;

pub use questions::{Asked, NATIVE_QUESTIONS, NativeQuestion, QUESTIONS, Question, Refusal};

/// Principal, client, listener, API and version of a request.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Principal of the client; `User:ANONYMOUS` until there is authentication.
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
}

/// API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// One of Kafka's, or of the few that Duramen adds to them.
    Kafka(ApiKey),
    /// An operation of the native API.
    Native(Name),
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

/// Judge of what clients may do. Every client may do everything until access control is built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// Operations that a test denies: on all resources of a kind, or on the one of this name.
    #[cfg(test)]
    denied: Vec<(Operation, Kind, Option<String>)>,
}

impl Access {
    /// Tells whether the client may perform the operation on the resource.
    pub(crate) fn may(
        &self,
        context: &RequestContext,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        check(context.api, Asked::Operation(operation, resource.kind()));
        self.allows(operation, resource)
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
        self.allows_on_any(operation, kind)
    }

    /// Returns the set of operations that the client may perform on the resource, as Kafka's bits.
    pub(crate) fn operations(&self, context: &RequestContext, resource: Resource<'_>) -> i32 {
        check(context.api, Asked::Each(resource.kind()));
        let all = resource.kind().operations().iter();
        let allowed = all.filter(|operation| self.allows(**operation, resource));
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

#[cfg(not(test))]
impl Access {
    #[expect(clippy::unused_self, reason = "access control will keep its rules here")]
    fn allows(&self, _operation: Operation, _resource: Resource<'_>) -> bool {
        true
    }

    #[expect(clippy::unused_self, reason = "access control will keep its rules here")]
    fn allows_on_any(&self, _operation: Operation, _kind: Kind) -> bool {
        true
    }
}

#[cfg(test)]
impl Access {
    fn allows(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let named = match resource {
            Resource::Cluster => "",
            Resource::Topic(name) | Resource::Group(name) | Resource::TransactionalId(name) => name,
        };
        let kind = resource.kind();
        !self.denied.iter().any(|(denied, of, name)| {
            (*denied, *of) == (operation, kind) && name.as_ref().is_none_or(|name| name == named)
        })
    }

    fn allows_on_any(&self, operation: Operation, kind: Kind) -> bool {
        !self.denied.contains(&(operation, kind, None))
    }

    /// Denies an operation on all resources of a kind.
    pub(crate) fn deny(&mut self, operation: Operation, kind: Kind) {
        self.denied.push((operation, kind, None));
    }

    /// Denies an operation on one topic.
    pub(crate) fn deny_on_topic(&mut self, operation: Operation, name: &str) {
        self.denied.push((operation, Kind::Topic, Some(name.to_owned())));
    }

    /// Allows everything again.
    pub(crate) fn allow_all(&mut self) {
        self.denied.clear();
    }
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
