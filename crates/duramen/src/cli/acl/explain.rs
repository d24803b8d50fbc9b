//! `duramen acl explain`: which rule decides.

use clap::Args;
use duramen_broker::acls::{Acl, AclOperation, Acls, Action, Pattern, Permission, Verdict};
use duramen_broker::configs::AUTHORIZER;
use serde::Serialize;

use super::resources::{Resource, Resources};
use super::{Row, filters, found, operation, principal, sentence};
use crate::cli::bootstrap::Cluster;
use crate::cli::usage::demand;

/// Show whether a client may do something, and which rule decides.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Client, as User:NAME
    #[arg(long, value_name = "TYPE:NAME", value_parser = principal)]
    principal: String,

    /// Operation: read, write, create, delete, alter, describe, …
    #[arg(long, value_name = "NAME", value_parser = operation)]
    operation: AclOperation,

    /// Address of the client [default: one that no rule names]
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    host: String,

    #[command(flatten)]
    resources: Resources,

    #[command(flatten)]
    cluster: Cluster,
}

/// Answer, as it is printed.
#[derive(Debug, Serialize)]
struct Answer {
    allowed: bool,
    reason: &'static str,
    rule: Option<Row>,
    #[serde(skip)]
    text: String,
}

/// Settings of a node that decide beside rules.
#[derive(Debug)]
struct Settings {
    is_on: bool,
    is_super: bool,
    lets_everyone: bool,
}

impl Explain {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let named = self.resources.all();
        let [resource] = &named[..] else {
            let text =
                "name one resource: --topic, --group, --transactional-id or --cluster-itself";
            return demand(false, text);
        };
        demand(
            resource.pattern == Pattern::Literal && resource.name != "*",
            "name one resource, without a star: rules are explained for a resource that may be there",
        )?;
        demand(self.operation != AclOperation::All, "name one operation: nobody does all at once")?;
        let client = self.cluster.connect().await?;
        let nodes = client.nodes().await?.nodes;
        let names = ["authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"];
        let first = nodes.first().map_or(0, |node| node.broker_id);
        let settings = client.broker_configs(first, &names).await?;
        let value = |name: &str| settings.get(name).map_or("", String::as_str);
        let settings = Settings {
            is_on: value(names[0]) == AUTHORIZER,
            is_super: value(names[1]).split(';').any(|it| it.trim() == self.principal),
            lets_everyone: value(names[2]) == "true",
        };
        let acls = if settings.is_on {
            found(&client, &filters(None, None, &[], |_| 0)).await?
        } else {
            Vec::new()
        };
        let answer = self.answer(resource, &settings, acls);
        self.cluster.output.print(&answer, || answer.text.clone())
    }

    fn answer(&self, resource: &Resource, settings: &Settings, acls: Vec<Acl>) -> Answer {
        let asked = |permission| {
            let Resource { kind, name, pattern } = resource.clone();
            let host = if self.host.is_empty() { "*".to_owned() } else { self.host.clone() };
            let (principal, operation) = (self.principal.clone(), self.operation);
            sentence(&Acl { resource: kind, name, pattern, principal, host, operation, permission })
        };
        let answer = |allowed, reason, rule: Option<&Acl>, why: String| {
            let said = asked(if allowed { Permission::Allow } else { Permission::Deny });
            let said = said.split(", and describe").next().unwrap_or_default().to_owned();
            Answer { allowed, reason, rule: rule.map(Row::from), text: format!("{said}: {why}") }
        };
        if !settings.is_on {
            return answer(
                true,
                "no-access-control",
                None,
                "there is no access control".to_owned(),
            );
        }
        if settings.is_super {
            return answer(true, "super-user", None, "it is a super user".to_owned());
        }
        let rules: Acls = acls.into_iter().collect();
        let verdict = rules.explain(&Action {
            principal: &self.principal,
            host: &self.host,
            operation: self.operation,
            resource: resource.kind,
            name: &resource.name,
        });
        match verdict {
            Verdict::Denied(acl) => {
                answer(false, "rule", Some(&acl), format!("a rule says that {}", sentence(&acl)))
            }
            Verdict::Allowed(acl) => {
                answer(true, "rule", Some(&acl), format!("a rule says that {}", sentence(&acl)))
            }
            Verdict::NoneFits => {
                let why = "the resource has rules, and none of them allows it".to_owned();
                answer(false, "no-rule-fits", None, why)
            }
            Verdict::NoRule if settings.lets_everyone => {
                let why = "the resource has no rule, and allow.everyone.if.no.acl.found is true";
                answer(true, "no-rule", None, why.to_owned())
            }
            Verdict::NoRule => {
                answer(false, "no-rule", None, "the resource has no rule".to_owned())
            }
        }
    }
}
