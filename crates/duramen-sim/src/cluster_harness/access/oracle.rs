//! # Room card: access oracle
//!
//! Purpose:    judge what nodes let clients do, by the history of rules and users in the metadata log.
//! Owns:       that history, read from the log itself; a naive evaluator; statements that wait for their judgement.
//! Interface:  [`Oracle::note_committed`], [`Oracle::read`], [`Oracle::state`], [`Oracle::judge`].
//! Invariants: the evaluator is a loop over all rules, and shares nothing with the nodes' one. A statement is judged
//!             by the states that the node had between two moments: one of them has to bear the statement out.
//! Never:      the nodes' tables of rules and users; clients.
//! Tests:      scenario `access`.
//! Start at:   [`Oracle::judge`].

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use duramen_broker::acls::{Acl, AclOperation, Pattern, Permission, ResourceType};
use duramen_broker::describe::{self, Right};

use crate::failure::{Failure, wrong};

/// Range of states of the metadata, each named by the offset behind its last change.
pub(super) type Span = (i64, i64);

/// Client, as rules name it.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) principal: String,
    pub(super) host: &'static str,
}

/// Act that a client needs a right to.
#[derive(Clone, Debug)]
pub(super) struct Act {
    pub(super) operation: AclOperation,
    pub(super) resource: ResourceType,
    pub(super) name: String,
}

impl Act {
    pub(super) fn on_topic(operation: AclOperation, name: &str) -> Self {
        Self { operation, resource: ResourceType::Topic, name: name.to_owned() }
    }
}

/// Statement that an answer makes about the metadata.
#[derive(Clone, Debug)]
pub(super) enum Says {
    /// The client may do one of these.
    May(Who, Vec<Act>),
    /// The client may do none of these.
    MayNot(Who, Vec<Act>),
    /// The user has the password of this salt.
    IsUser(String, Bytes),
    /// The user has it no more.
    IsNoUser(String, Bytes),
    /// There is no such rule.
    NoRule(Acl),
    /// There is such a rule.
    Rule(Acl),
}

/// Statement that is not judged yet.
struct Claim {
    says: Says,
    span: Span,
    /// Machine, time and request, for people.
    told: String,
}

/// State of rules and users at one moment.
#[derive(Default)]
pub(super) struct State<'a> {
    rules: BTreeMap<[u8; 16], &'a Acl>,
    users: BTreeMap<&'a str, &'a Bytes>,
}

impl State<'_> {
    fn has(&self, user: &str, salt: &Bytes) -> bool {
        self.users.get(user) == Some(&salt)
    }

    fn bears_out(&self, says: &Says) -> bool {
        match says {
            Says::May(who, acts) => acts.iter().any(|act| self.allows(who, act)),
            Says::MayNot(who, acts) => !acts.iter().any(|act| self.allows(who, act)),
            Says::IsUser(user, salt) => self.has(user, salt),
            Says::IsNoUser(user, salt) => !self.has(user, salt),
            Says::NoRule(acl) => !self.rules.values().any(|it| *it == acl),
            Says::Rule(acl) => self.rules.values().any(|it| *it == acl),
        }
    }

    /// Decides as Kafka's authorizer is documented to: one rule that denies is enough, and then one that allows.
    fn allows(&self, who: &Who, act: &Act) -> bool {
        let mut is_allowed = false;
        for rule in self.rules.values() {
            let is_named = match rule.pattern {
                Pattern::Literal => rule.name == "*" || rule.name == act.name,
                Pattern::Prefixed => act.name.starts_with(rule.name.as_str()),
            };
            let is_theirs = rule.principal == "User:*" || rule.principal == who.principal;
            let is_there = rule.host == "*" || rule.host == who.host;
            let denies = rule.permission == Permission::Deny;
            let is_it = rule.operation == AclOperation::All || rule.operation == act.operation;
            let fits = is_it || !denies && implies(rule.operation, act.operation);
            if rule.resource != act.resource || !is_named || !is_theirs || !is_there || !fits {
                continue;
            }
            if denies {
                return false;
            }
            is_allowed = true;
        }
        is_allowed
    }
}

/// Tells whether the right to one operation is one to the other.
fn implies(allowed: AclOperation, asked: AclOperation) -> bool {
    use AclOperation::{Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};
    match asked {
        Describe => [Read, Write, Delete, Alter].contains(&allowed),
        DescribeConfigs => allowed == AlterConfigs,
        _ => false,
    }
}

impl fmt::Display for State<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Acl { resource, name, pattern, principal, host, operation, permission } in
            self.rules.values()
        {
            writeln!(
                f,
                "  {permission} {principal} {host} {operation} {pattern} {resource} {name}"
            )?;
        }
        writeln!(f, "  users: {:?}", self.users)
    }
}

/// See the room card.
#[derive(Default)]
pub(super) struct Oracle {
    /// Changes by the offset of their batch.
    changes: BTreeMap<i64, Vec<Right>>,
    /// Offset to which the log was read.
    known: i64,
    /// Ends of what was committed, with the time at which the first machine knew, in microseconds.
    commits: Vec<(u64, i64)>,
    claims: Vec<Claim>,
    pub(super) judged: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

impl Oracle {
    /// Returns the offset to which the log was read.
    pub(super) fn known(&self) -> i64 {
        self.known
    }

    /// Returns the number of changes so far.
    pub(super) fn changes(&self) -> usize {
        self.changes.values().map(Vec::len).sum()
    }

    /// Notes how far a machine knows the log to be committed.
    pub(super) fn note_committed(&mut self, now_us: u64, end: i64) {
        if self.commits.last().is_none_or(|last| last.1 < end) {
            self.commits.push((now_us, end));
        }
    }

    /// Returns the end of what was committed at a time.
    pub(super) fn committed_at(&self, us: u64) -> i64 {
        let until = self.commits.partition_point(|it| it.0 <= us);
        until.checked_sub(1).map_or(0, |last| self.commits[last].1)
    }

    /// Takes batches of the log, from the known end on.
    pub(super) fn read(&mut self, bytes: Bytes, end: i64) -> Result<(), Failure> {
        let Some(rights) = describe::rights(bytes) else {
            return wrong("a batch of the metadata log cannot be read");
        };
        for (offset, right) in rights.into_iter().filter(|it| it.0 >= self.known && it.0 < end) {
            self.changes.entry(offset).or_default().push(right);
        }
        self.known = end;
        Ok(())
    }

    /// Returns the rules and users after all changes below an offset.
    pub(super) fn state(&self, end: i64) -> State<'_> {
        let mut state = State::default();
        for right in self.changes.range(..end).flat_map(|it| it.1) {
            match right {
                Right::Rule(id, acl) => drop(state.rules.insert(*id, acl)),
                Right::RuleGone(id) => drop(state.rules.remove(id)),
                Right::User(user, _, salt) => drop(state.users.insert(user, salt)),
                Right::UserGone(user, _) => drop(state.users.remove(user.as_str())),
            }
        }
        state
    }

    /// Takes a statement. It is judged once the log is known so far.
    pub(super) fn claim(&mut self, says: Says, span: Span, told: String) {
        self.claims.push(Claim { says, span, told });
    }

    /// Judges the statements about states that are known.
    pub(super) fn judge(&mut self) -> Result<(), Failure> {
        let known = self.known;
        let due: Vec<Claim> = self.claims.extract_if(.., |it| it.span.1 <= known).collect();
        for claim in &due {
            self.judged += 1;
            match claim.says {
                Says::May(..) => self.allowed += 1,
                Says::MayNot(..) => self.denied += 1,
                _ => {}
            }
            let (from, to) = claim.span;
            assert!(from <= to, "states have an order: {}", claim.told);
            let later = self.changes.range(from..to).map(|it| it.0 + 1);
            let mut states = std::iter::once(from).chain(later).map(|end| self.state(end));
            if !states.any(|state| state.bears_out(&claim.says)) {
                let Claim { says, told, .. } = claim;
                let last = self.state(to);
                return wrong(format!("{told}: {says:?} in {from}..{to} is not so, but\n{last}"));
            }
        }
        Ok(())
    }

    /// Returns the number of statements that are not judged.
    pub(super) fn open(&self) -> usize {
        self.claims.len()
    }
}
