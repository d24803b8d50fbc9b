//! Decisions, by example and against a simple evaluator of the same rule.

use super::*;
use crate::prng::Prng;

fn acl(text: &str) -> Acl {
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [permission, principal, host, operation, resource, name] = parts[..] else {
        panic!("{text}")
    };
    let named = |all: &[&str], name: &str| all.iter().position(|it| *it == name);
    let find = |name: &str| AclOperation::ALL.iter().copied().find(|it| it.name() == name);
    let (name, pattern) = match name.strip_suffix('+') {
        Some(name) => (name, Pattern::Prefixed),
        None => (name, Pattern::Literal),
    };
    Acl {
        resource: ResourceType::ALL[named(&["topic", "group", "cluster"], resource).unwrap()],
        name: name.to_owned(),
        pattern,
        principal: format!("User:{principal}"),
        host: host.to_owned(),
        operation: find(operation).unwrap(),
        permission: if permission == "allow" { Permission::Allow } else { Permission::Deny },
    }
}

fn rules(texts: &[&str]) -> Acls {
    texts.iter().map(|text| acl(text)).collect()
}

fn decide(acls: &Acls, principal: &str, operation: AclOperation, name: &str) -> Verdict<Acl> {
    let resource = ResourceType::Topic;
    acls.explain(&Action { principal, host: "10.0.0.1", operation, resource, name })
}

#[test]
fn a_denial_beats_what_allows_and_no_rule_is_no_right() {
    use AclOperation::{Alter, AlterConfigs, Create, Describe, DescribeConfigs, Read, Write};
    let acls = rules(&[
        "allow ada * read topic t",
        "deny ada 10.0.0.1 read topic t-secret",
        "allow ada * all topic t-+",
        "allow * * write topic *",
        "deny eve * describe topic *",
        "allow eve * read topic t",
        "allow bob 10.0.0.2 read topic t",
        "allow con * alter-configs topic t",
    ]);
    let allowed = |text: &str| Verdict::Allowed(acl(text));
    let ada = |operation, name| decide(&acls, "User:ada", operation, name);
    assert_eq!(ada(Read, "t"), allowed("allow ada * read topic t"));
    assert_eq!(ada(Describe, "t"), allowed("allow ada * read topic t"), "sight is implied");
    assert_eq!(ada(Alter, "t"), Verdict::NoneFits);
    assert_eq!(ada(Alter, "t-x"), allowed("allow ada * all topic t-+"));
    let denied = Verdict::Denied(acl("deny ada 10.0.0.1 read topic t-secret"));
    assert_eq!(ada(Read, "t-secret"), denied);
    assert!(matches!(ada(Describe, "t-secret"), Verdict::Allowed(_)), "denials imply nothing");
    assert_eq!(ada(Write, "other"), allowed("allow * * write topic *"));
    let eve = |operation| decide(&acls, "User:eve", operation, "t");
    assert_eq!(eve(Describe), Verdict::Denied(acl("deny eve * describe topic *")));
    assert!(matches!(eve(Read), Verdict::Allowed(_)));
    assert_eq!(decide(&acls, "User:bob", Read, "t"), Verdict::NoneFits, "of another host");
    assert!(matches!(decide(&acls, "User:con", DescribeConfigs, "t"), Verdict::Allowed(_)));
    assert!(matches!(decide(&acls, "User:con", AlterConfigs, "t"), Verdict::Allowed(_)));
    assert_eq!(decide(&rules(&["allow a * read group t"]), "User:a", Read, "t"), Verdict::NoRule);
    assert_eq!(
        decide(&rules(&["allow a * read topic t+"]), "User:a", Create, "t"),
        Verdict::NoneFits
    );
    // The star of a prefix is a letter like others.
    assert_eq!(decide(&rules(&["allow a * read topic *+"]), "User:a", Read, "t"), Verdict::NoRule);
}

#[test]
fn any_resource_will_do_unless_a_denial_covers_the_name() {
    let any = |texts: &[&str]| {
        let who = ("User:a", "10.0.0.1");
        rules(texts).allows_on_any(who, AclOperation::Write, ResourceType::Topic)
    };
    assert!(!any(&[]));
    assert!(any(&["allow a * write topic t"]) && any(&["allow * * all topic t+"]));
    assert!(any(&["allow a * write topic *", "deny a * write topic t"]));
    assert!(!any(&["allow a * read topic t"]) && !any(&["allow b * write topic t"]));
    assert!(!any(&["allow a 10.0.0.2 write topic t"]) && !any(&["allow a * write group t"]));
    assert!(!any(&["allow a * write topic t", "deny a * write topic *"]));
    assert!(!any(&["allow a * write topic t", "deny * * all topic t"]));
    assert!(!any(&["allow a * write topic tea", "deny a * write topic te+"]));
    assert!(!any(&["allow a * write topic tea+", "deny a * write topic te+"]));
    assert!(any(&["allow a * write topic te+", "deny a * write topic tea+"]));
    assert!(any(&["allow a * write topic te+", "deny a * write topic te"]), "others begin so");
}

#[test]
fn a_filter_finds_rules_as_kafkas_does() {
    let all = [
        "allow a * read topic t",
        "deny a * read topic t+",
        "allow b h write topic *",
        "allow a * read group t",
    ];
    let found = |filter: &Filter| -> Vec<usize> {
        (0..all.len()).filter(|at| filter.matches(&acl(all[*at]))).collect()
    };
    assert_eq!(found(&Filter::default()), [0, 1, 2, 3]);
    let topic = Filter { resource: Some(ResourceType::Topic), ..Filter::default() };
    assert_eq!(found(&topic), [0, 1, 2]);
    let named =
        |name: &str, pattern| Filter { name: Some(name.to_owned()), pattern, ..topic.clone() };
    assert_eq!(found(&named("t", Patterns::Any)), [0, 1]);
    assert_eq!(found(&named("t", Patterns::Only(Pattern::Literal))), [0]);
    assert_eq!(found(&named("t", Patterns::Match)), [0, 1, 2]);
    assert_eq!(found(&named("tea", Patterns::Match)), [1, 2]);
    assert_eq!(found(&named("tea", Patterns::Any)), [0_usize; 0]);
    let of =
        |principal: &str| Filter { principal: Some(principal.to_owned()), ..Filter::default() };
    assert_eq!(found(&of("User:b")), [2]);
    assert_eq!(found(&Filter { host: Some("h".to_owned()), ..Filter::default() }), [2]);
    assert_eq!(found(&Filter { operation: Some(AclOperation::Write), ..Filter::default() }), [2]);
    assert_eq!(found(&Filter { permission: Some(Permission::Deny), ..Filter::default() }), [1]);
}

/// The rule itself, without any arrangement of rules.
fn simply(all: &[Acl], action: &Action<'_>) -> (Option<bool>, bool) {
    let named = |acl: &&Acl| {
        acl.resource == action.resource
            && match acl.pattern {
                Pattern::Literal => acl.name == WILDCARD || acl.name == action.name,
                Pattern::Prefixed => action.name.starts_with(&acl.name),
            }
    };
    let fits = |acl: &&&Acl| {
        let implied = match action.operation {
            AclOperation::Describe => "read write delete alter",
            AclOperation::DescribeConfigs => "alter-configs",
            _ => "",
        };
        let is_implied = acl.permission == Permission::Allow
            && implied.split(' ').any(|it| it == acl.operation.name());
        (acl.principal == EVERYBODY || acl.principal == action.principal)
            && (acl.host == WILDCARD || acl.host == action.host)
            && (acl.operation == AclOperation::All
                || acl.operation == action.operation
                || is_implied)
    };
    let of_resource: Vec<&Acl> = all.iter().filter(named).collect();
    let fitting: Vec<&&Acl> = of_resource.iter().filter(fits).collect();
    let is_denied = fitting.iter().any(|it| it.permission == Permission::Deny);
    let decided = if is_denied { Some(false) } else { (!fitting.is_empty()).then_some(true) };
    (decided, !of_resource.is_empty())
}

/// CVE-2024-27309 was a table that forgot rules when another one of the resource went.
#[test]
fn whatever_comes_and_goes_the_decision_is_that_of_the_simple_rule() {
    let names = ["a", "ab", "abc", "b", "aä", "aäb", "*", "bcd"];
    let mut chance = Prng::stream(2024, 27309);
    for _ in 0..60 {
        let (mut acls, mut all): (Acls, Vec<Acl>) = (Acls::default(), Vec::new());
        for _ in 0..60 {
            if !all.is_empty() && chance.below(3) == 0 {
                let at = usize::try_from(chance.below(all.len() as u64)).unwrap();
                acls.remove(&all.swap_remove(at));
            } else {
                let mut pick = |of: &[&str]| {
                    of[usize::try_from(chance.below(of.len() as u64)).unwrap()].to_owned()
                };
                let new = Acl {
                    name: pick(&names),
                    principal: pick(&["User:a", "User:b", EVERYBODY]),
                    host: pick(&["h", "*"]),
                    resource: ResourceType::ALL[usize::from(pick(&["t", "g"]) == "g")],
                    pattern: Pattern::ALL[usize::from(pick(&["l", "p"]) == "p")],
                    permission: Permission::ALL[usize::from(pick(&["d", "a", "a"]) == "a")],
                    operation: AclOperation::ALL
                        [usize::try_from(chance.below(AclOperation::ALL.len() as u64)).unwrap()],
                };
                if !all.contains(&new) {
                    acls.add(new.clone());
                    all.push(new);
                }
            }
            for name in ["a", "ab", "abcd", "b", "aäbc", "z"] {
                for (principal, host) in [("User:a", "h"), ("User:b", "i"), ("User:c", "h")] {
                    for operation in
                        [AclOperation::Describe, AclOperation::Read, AclOperation::DescribeConfigs]
                    {
                        let resource = ResourceType::Topic;
                        let action = Action { principal, host, operation, resource, name };
                        let told = match acls.explain(&action) {
                            Verdict::Denied(acl) => {
                                assert!(all.contains(&acl));
                                (Some(false), true)
                            }
                            Verdict::Allowed(acl) => {
                                assert!(all.contains(&acl));
                                (Some(true), true)
                            }
                            Verdict::NoneFits => (None, true),
                            Verdict::NoRule => (None, false),
                        };
                        assert_eq!(told, simply(&all, &action), "{action:?} of {all:#?}");
                    }
                }
            }
        }
        for acl in &all {
            acls.remove(acl);
        }
        assert_eq!(
            acls.by_type.values().map(|it| it.literal.len() + it.prefixed.len()).sum::<usize>(),
            0
        );
    }
}
