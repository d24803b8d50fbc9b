//! # Room card: acls
//!
//! Purpose:    the rules of access, and the decision that follows from them: that of Kafka's `StandardAuthorizer`.
//! Owns:       [`Acl`], the filter by which clients find rules, and [`Acls`], in which a decision finds its rules.
//! Interface:  [`Acls::decide`], [`Acls::explain`], [`Acls::allows_on_any`], [`Filter::matches`].
//! Invariants: a denial beats what allows; the order of rules means nothing; a decision looks only at the rules of
//!             resources that have the name, and of these only at the client's and at everybody's.
//! Never:      super users and settings (`access`), who the client is, records.
//! Tests:      `acls/tests.rs`, against a simple evaluator; `compat/wire/test_acls.py`, against Apache Kafka.
//! Start at:   [`Acls::decide`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;

use duramen_storage::sabotage::{self, Bug};

/// Name that stands for all resources of a kind.
pub const WILDCARD: &str = "*";
/// Principal that stands for every client.
pub const EVERYBODY: &str = "User:*";
/// The only name of a resource of the kind Cluster.
pub const CLUSTER_NAME: &str = "kafka-cluster";

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $($(#[$variant_doc:meta])* $code:literal $variant:ident $text:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(i8)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $code,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns Kafka's number.
            pub const fn code(self) -> i8 {
                self as i8
            }

            /// Returns the one of Kafka's number.
            pub fn from_code(code: i8) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.code() == code)
            }

            /// Returns the name, as Kafka's tools print it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

numbered! {
    /// Kind of the resource of a rule.
    ResourceType:
    /// A topic.
    2 Topic "topic",
    /// A group, of whichever protocol.
    3 Group "group",
    /// The cluster.
    4 Cluster "cluster",
    /// A transactional id.
    5 TransactionalId "transactional-id",
    /// A delegation token.
    6 DelegationToken "delegation-token",
    /// A user, as the subject of delegation tokens.
    7 User "user",
}

numbered! {
    /// Pattern of the name in a rule.
    Pattern:
    /// The rule is for the resource of this name, or for all with the name `*`.
    3 Literal "literal",
    /// The rule is for all resources whose names begin so.
    4 Prefixed "prefixed",
}

numbered! {
    /// Operation of a rule.
    AclOperation:
    /// All operations.
    2 All "all",
    /// Reading.
    3 Read "read",
    /// Writing.
    4 Write "write",
    /// Creation.
    5 Create "create",
    /// Deletion.
    6 Delete "delete",
    /// Change.
    7 Alter "alter",
    /// Sight.
    8 Describe "describe",
    /// Acts of a node of the cluster.
    9 ClusterAction "cluster-action",
    /// Sight of settings.
    10 DescribeConfigs "describe-configs",
    /// Change of settings.
    11 AlterConfigs "alter-configs",
    /// Writing with a producer id, outside of transactions.
    12 IdempotentWrite "idempotent-write",
    /// Creation of delegation tokens.
    13 CreateTokens "create-tokens",
    /// Sight of delegation tokens.
    14 DescribeTokens "describe-tokens",
    /// Transactions of two phases (KIP-939).
    15 TwoPhaseCommit "two-phase-commit",
}

numbered! {
    /// Effect of a rule.
    Permission:
    /// The rule denies.
    2 Deny "deny",
    /// The rule allows.
    3 Allow "allow",
}

/// A rule. Kafka calls it a binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// Kind of the resource.
    pub resource: ResourceType,
    /// Name of the resource, or its beginning, or `*`.
    pub name: String,
    /// Pattern of the name.
    pub pattern: Pattern,
    /// The client, as `User:name`, or `User:*`.
    pub principal: String,
    /// The client's address, or `*`.
    pub host: String,
    /// The operation.
    pub operation: AclOperation,
    /// The effect.
    pub permission: Permission,
}

/// Rules that a client looks for; `None` fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Kind of the resource.
    pub resource: Option<ResourceType>,
    /// Name of the resource.
    pub name: Option<String>,
    /// Pattern of the name.
    pub pattern: Patterns,
    /// The client.
    pub principal: Option<String>,
    /// Its address.
    pub host: Option<String>,
    /// The operation.
    pub operation: Option<AclOperation>,
    /// The effect.
    pub permission: Option<Permission>,
}

/// Patterns that a [`Filter`] looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patterns {
    /// Any pattern with exactly this name: Kafka's ANY, number 1.
    #[default]
    Any,
    /// Rules that are for a resource of this name, by whatever pattern: Kafka's MATCH, number 2.
    Match,
    /// This pattern with exactly this name.
    Only(Pattern),
}

impl Patterns {
    /// Returns the patterns of Kafka's number.
    pub fn from_code(code: i8) -> Option<Self> {
        match code {
            1 => Some(Self::Any),
            2 => Some(Self::Match),
            code => Pattern::from_code(code).map(Self::Only),
        }
    }
}

impl Filter {
    /// Tells whether a rule is one of those.
    pub fn matches(&self, acl: &Acl) -> bool {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|it| it == is);
        self.resource.is_none_or(|it| it == acl.resource)
            && self.names(acl)
            && fits(&self.principal, &acl.principal)
            && fits(&self.host, &acl.host)
            && self.operation.is_none_or(|it| it == acl.operation)
            && self.permission.is_none_or(|it| it == acl.permission)
    }

    fn names(&self, acl: &Acl) -> bool {
        if let Patterns::Only(pattern) = self.pattern
            && pattern != acl.pattern
        {
            return false;
        }
        let Some(name) = self.name.as_deref() else { return true };
        match (self.pattern, acl.pattern) {
            (Patterns::Match, Pattern::Prefixed) => name.starts_with(&acl.name),
            (Patterns::Match, Pattern::Literal) => acl.name == name || acl.name == WILDCARD,
            _ => acl.name == name,
        }
    }
}

/// Question to the rules.
#[derive(Clone, Copy, Debug)]
pub struct Action<'a> {
    /// The client.
    pub principal: &'a str,
    /// Its address.
    pub host: &'a str,
    /// The operation.
    pub operation: AclOperation,
    /// Kind of the resource.
    pub resource: ResourceType,
    /// Name of the resource.
    pub name: &'a str,
}

/// Result of the rules, with the rule that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// This rule denies.
    Denied(T),
    /// This rule allows, and none denies.
    Allowed(T),
    /// The resource has rules, and none of them is for this.
    NoneFits,
    /// The resource has no rule.
    NoRule,
}

/// Content of a rule, apart from its resource and its principal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    host: String,
    operation: AclOperation,
    permission: Permission,
}

impl Rule {
    /// Tells whether the rule says the same as another of its resource and principal.
    fn is(&self, acl: &Acl) -> bool {
        let Acl { host, operation, permission, .. } = acl;
        (&self.host, self.operation, self.permission) == (host, *operation, *permission)
    }

    /// Tells whether the rule is for an action. What allows reading, writing, deletion or change also allows sight, and
    /// what allows the change of settings their sight. A denial is for its own operation alone.
    fn is_for(&self, host: &str, operation: AclOperation) -> bool {
        use AclOperation::{
            All, Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write,
        };
        if self.host != WILDCARD && self.host != host {
            return false;
        }
        let implies = match operation {
            Describe => matches!(self.operation, Read | Write | Delete | Alter),
            DescribeConfigs => self.operation == AlterConfigs,
            _ => false,
        };
        let is_same = self.operation == All || self.operation == operation;
        is_same || (implies && self.permission == Permission::Allow)
    }
}

/// A rule where it was found.
#[derive(Clone, Copy)]
struct Found<'a> {
    name: &'a str,
    pattern: Pattern,
    principal: &'a str,
    rule: &'a Rule,
}

/// Rules of one resource, by principal.
type OfResource = BTreeMap<String, Vec<Rule>>;

/// Rules of one kind of resource, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfType {
    literal: BTreeMap<String, OfResource>,
    prefixed: BTreeMap<String, OfResource>,
}

impl OfType {
    fn of(&self, pattern: Pattern) -> &BTreeMap<String, OfResource> {
        match pattern {
            Pattern::Literal => &self.literal,
            Pattern::Prefixed => &self.prefixed,
        }
    }

    fn of_mut(&mut self, pattern: Pattern) -> &mut BTreeMap<String, OfResource> {
        match pattern {
            Pattern::Literal => &mut self.literal,
            Pattern::Prefixed => &mut self.prefixed,
        }
    }

    /// Calls `look` with the rules of each resource that has this name, by whatever pattern, until it wants no more.
    fn each_of<'a>(
        &'a self,
        name: &str,
        look: &mut dyn FnMut(Pattern, &'a str, &'a OfResource) -> bool,
    ) {
        for literal in [name, WILDCARD] {
            if let Some((key, found)) = self.literal.get_key_value(literal)
                && !look(Pattern::Literal, key, found)
            {
                return;
            }
        }
        // The greatest key up to the name is either a beginning of it, or shares a shorter one with it.
        let mut probe = Some(name);
        while let Some(text) = probe {
            let up_to = (Bound::Unbounded, Bound::Included(text));
            let Some((key, found)) = self.prefixed.range::<str, _>(up_to).next_back() else {
                return;
            };
            let shared = shared_beginning(name, key);
            if shared == key.len() && !look(Pattern::Prefixed, key, found) {
                return;
            }
            // Keys above the shorter beginning cannot begin the name; the key itself was looked at.
            probe = shorter(name, shared.min(text.len() - 1));
        }
    }
}

/// Returns the length of the longest common beginning, in whole characters.
fn shared_beginning(name: &str, key: &str) -> usize {
    let same = name.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same).rev().find(|at| name.is_char_boundary(*at) && key.is_char_boundary(*at)).unwrap_or(0)
}

/// Returns the beginning of a name of at most so many bytes, unless it is empty.
fn shorter(name: &str, bytes_max: usize) -> Option<&str> {
    let at = (0..=bytes_max).rev().find(|at| name.is_char_boundary(*at))?;
    Some(&name[..at]).filter(|it| !it.is_empty())
}

/// Rules, arranged for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acls {
    by_type: BTreeMap<ResourceType, OfType>,
}

impl FromIterator<Acl> for Acls {
    fn from_iter<T: IntoIterator<Item = Acl>>(all: T) -> Self {
        let mut acls = Self::default();
        for acl in all {
            acls.add(acl);
        }
        acls
    }
}

impl Acls {
    /// Adds a rule.
    pub fn add(&mut self, acl: Acl) {
        let Acl { resource, name, pattern, principal, host, operation, permission } = acl;
        let of_type = self.by_type.entry(resource).or_default();
        let of_resource = of_type.of_mut(pattern).entry(name).or_default();
        of_resource.entry(principal).or_default().push(Rule { host, operation, permission });
    }

    /// Takes a rule away.
    pub fn remove(&mut self, acl: &Acl) {
        let Some(of_type) = self.by_type.get_mut(&acl.resource) else { return };
        let by_name = of_type.of_mut(acl.pattern);
        let Some(of_resource) = by_name.get_mut(&acl.name) else { return };
        let Some(rules) = of_resource.get_mut(&acl.principal) else { return };
        if let Some(at) = rules.iter().position(|rule| rule.is(acl)) {
            rules.swap_remove(at);
        }
        if sabotage::is(Bug::RemovalForgetsOthers) {
            rules.clear();
        }
        if rules.is_empty() {
            of_resource.remove(&acl.principal);
        }
        if of_resource.is_empty() {
            by_name.remove(&acl.name);
        }
    }

    /// Tells whether there is such a rule.
    pub fn contains(&self, acl: &Acl) -> bool {
        let of_type = self.by_type.get(&acl.resource).map(|it| it.of(acl.pattern));
        let rules = of_type.and_then(|it| it.get(&acl.name)?.get(&acl.principal));
        rules.into_iter().flatten().any(|rule| rule.is(acl))
    }

    /// Decides about an action.
    pub fn decide(&self, action: &Action<'_>) -> Verdict<()> {
        match self.find(action) {
            Verdict::Denied(_) => Verdict::Denied(()),
            Verdict::Allowed(_) => Verdict::Allowed(()),
            Verdict::NoneFits => Verdict::NoneFits,
            Verdict::NoRule => Verdict::NoRule,
        }
    }

    /// Decides about an action, and names the rule that does.
    pub fn explain(&self, action: &Action<'_>) -> Verdict<Acl> {
        let acl = |found: Found<'_>| {
            let Rule { host, operation, permission } = found.rule.clone();
            let (name, principal) = (found.name.to_owned(), found.principal.to_owned());
            let (resource, pattern) = (action.resource, found.pattern);
            Acl { resource, name, pattern, principal, host, operation, permission }
        };
        match self.find(action) {
            Verdict::Denied(found) => Verdict::Denied(acl(found)),
            Verdict::Allowed(found) => Verdict::Allowed(acl(found)),
            Verdict::NoneFits => Verdict::NoneFits,
            Verdict::NoRule => Verdict::NoRule,
        }
    }

    fn find(&self, action: &Action<'_>) -> Verdict<Found<'_>> {
        let Some(of_type) = self.by_type.get(&action.resource) else { return Verdict::NoRule };
        let mut verdict = Verdict::NoRule;
        of_type.each_of(action.name, &mut |pattern, name, of_resource| {
            if let Verdict::NoRule = verdict {
                verdict = Verdict::NoneFits;
            }
            for wanted in [action.principal, EVERYBODY] {
                let Some((principal, rules)) = of_resource.get_key_value(wanted) else { continue };
                for rule in rules.iter().filter(|it| it.is_for(action.host, action.operation)) {
                    let found = Found { name, pattern, principal, rule };
                    let is_longer = |it: Found<'_>| it.name.len() > name.len();
                    if sabotage::is(Bug::LongerNameWins)
                        && matches!(verdict, Verdict::Allowed(it) if is_longer(it))
                    {
                        continue;
                    }
                    if rule.permission == Permission::Deny {
                        verdict = Verdict::Denied(found);
                        return false;
                    }
                    if let Verdict::NoneFits = verdict {
                        verdict = Verdict::Allowed(found);
                    }
                }
            }
            true
        });
        verdict
    }

    /// Tells whether rules allow an operation on any resource of a kind, whichever it is. A rule for a name counts only
    /// if no denial covers the name as a whole (KIP-679). `Describe` follows from nothing else here, as in Kafka.
    pub fn allows_on_any(
        &self,
        (principal, host): (&str, &str),
        operation: AclOperation,
        resource: ResourceType,
    ) -> bool {
        let Some(of_type) = self.by_type.get(&resource) else { return false };
        let names = |pattern: Pattern, permission: Permission| {
            let is_for = move |rule: &Rule| {
                let is_operation = [AclOperation::All, operation].contains(&rule.operation);
                let is_host = rule.host == WILDCARD || rule.host == host;
                is_operation && is_host && rule.permission == permission
            };
            let by_name = of_type.of(pattern).iter();
            let fitting = by_name.filter(move |(_, of_resource)| {
                let own = [principal, EVERYBODY].into_iter().filter_map(|it| of_resource.get(it));
                own.flatten().any(is_for)
            });
            fitting.map(|(name, _)| name.as_str())
        };
        let denied: BTreeSet<&str> = names(Pattern::Literal, Permission::Deny).collect();
        if denied.contains(WILDCARD) {
            return false;
        }
        let denied_prefixes: BTreeSet<&str> = names(Pattern::Prefixed, Permission::Deny).collect();
        let is_free = |name: &str| {
            let ends = name.char_indices().map(|(at, letter)| at + letter.len_utf8());
            !ends.into_iter().any(|end| denied_prefixes.contains(&name[..end]))
        };
        names(Pattern::Literal, Permission::Allow)
            .any(|name| name == WILDCARD || (!denied.contains(name) && is_free(name)))
            || names(Pattern::Prefixed, Permission::Allow).any(is_free)
    }
}

#[cfg(test)]
mod tests;
