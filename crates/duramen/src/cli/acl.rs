//! `duramen acl`: rules of access.

use anyhow::Context;
use clap::{Args, Subcommand};
use duramen_broker::acls::{Acl, AclOperation, Pattern, Permission, ResourceType};
use duramen_protocol::messages::create_acls::AclCreation;
use duramen_protocol::messages::delete_acls::DeleteAclsFilter;
use serde::Serialize;

use super::bootstrap::{Cluster, run};
use super::screen::Table;
use super::usage::demand;

mod explain;
mod resources;

use resources::{Resource, Resources};

/// Rules of access.
#[derive(Debug, Args)]
#[command(
    after_help = "Once a listener asks clients who they are, a client may do only what a rule allows, and nothing
that a rule denies. Super users (the setting super.users) may do everything.

Examples:
  duramen acl allow --principal User:ada --topic orders --operation read --operation write
  duramen acl allow --principal User:ada --group 'billing-*' --operation read
  duramen acl deny --principal 'User:*' --topic secrets --operation all --host 10.0.0.7
  duramen acl list --principal User:ada
  duramen acl explain --principal User:ada --operation write --topic orders
  duramen acl remove --principal User:ada --topic orders"
)]
pub struct AclCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List rules
    List(List),
    /// Allow clients to do something
    Allow(Make),
    /// Deny clients to do something, whatever else allows it
    Deny(Make),
    /// Take rules away
    Remove(Remove),
    /// Show whether a client may do something, and which rule decides
    Explain(explain::Explain),
}

/// List rules.
#[derive(Debug, Args)]
struct List {
    /// Only rules for this client
    #[arg(long, value_name = "TYPE:NAME", value_parser = principal)]
    principal: Option<String>,

    #[command(flatten)]
    resources: Resources,

    #[command(flatten)]
    cluster: Cluster,
}

/// Make rules.
#[derive(Debug, Args)]
struct Make {
    /// Client, as User:NAME; 'User:*' is everybody; may be repeated
    #[arg(long = "principal", value_name = "TYPE:NAME", required = true, value_parser = principal)]
    principals: Vec<String>,

    /// Address of the client, without a name [default: any]
    #[arg(long, value_name = "ADDRESS", default_value = "*", hide_default_value = true)]
    host: String,

    /// Operation: all, read, write, create, delete, alter, describe, …; may be repeated
    #[arg(long = "operation", value_name = "NAME", required = true, value_parser = operation)]
    operations: Vec<AclOperation>,

    #[command(flatten)]
    resources: Resources,

    #[command(flatten)]
    cluster: Cluster,
}

/// Take rules away.
#[derive(Debug, Args)]
struct Remove {
    /// Only rules for this client
    #[arg(long, value_name = "TYPE:NAME", value_parser = principal)]
    principal: Option<String>,

    /// Only rules of this operation
    #[arg(long, value_name = "NAME", value_parser = operation)]
    operation: Option<AclOperation>,

    #[command(flatten)]
    resources: Resources,

    /// Show the rules, and leave them
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    cluster: Cluster,
}

/// A rule, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Row {
    resource: &'static str,
    name: String,
    pattern: &'static str,
    permission: &'static str,
    principal: String,
    host: String,
    operation: &'static str,
}

impl From<&Acl> for Row {
    fn from(acl: &Acl) -> Self {
        Self {
            resource: acl.resource.name(),
            name: acl.name.clone(),
            pattern: acl.pattern.name(),
            permission: acl.permission.name(),
            principal: acl.principal.clone(),
            host: acl.host.clone(),
            operation: acl.operation.name(),
        }
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["RULE", "CLIENT", "HOST", "OPERATION", "RESOURCE", "NAME"]);
    for it in rows {
        let name = if it.pattern == Pattern::Prefixed.name() {
            format!("{}*", it.name)
        } else {
            it.name.clone()
        };
        table.row(&[&it.permission, &it.principal, &it.host, &it.operation, &it.resource, &name]);
    }
    table
}

/// Reads a client's name.
fn principal(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("a client is TYPE:NAME; write User:{text}")),
    }
}

/// Reads the name of an operation, as Kafka's tools or we write it.
fn operation(text: &str) -> Result<AclOperation, String> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
    let known = AclOperation::ALL.iter().copied().find(|it| plain(it.name()) == plain(text));
    known.ok_or_else(|| {
        let names: Vec<&str> = AclOperation::ALL.iter().map(|it| it.name()).collect();
        format!("give one of {}", names.join(", "))
    })
}

impl AclCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List(it) => run(list(it)),
            Action::Allow(it) => run(make(it, Permission::Allow)),
            Action::Deny(it) => run(make(it, Permission::Deny)),
            Action::Remove(it) => run(remove(it)),
            Action::Explain(it) => run(it.run()),
        }
    }
}

/// Kafka's number for any kind, pattern, operation or effect in a filter.
const ANY: i8 = 1;
/// Kafka's number for all patterns that are for a name.
const MATCH: i8 = 2;

/// Returns the filters that find rules of a client for these resources; one without resources finds those of all.
fn filters(
    principal: Option<&String>,
    operation: Option<AclOperation>,
    named: &[Resource],
    pattern: impl Fn(&Resource) -> i8,
) -> Vec<DeleteAclsFilter> {
    let all = DeleteAclsFilter {
        resource_type_filter: ANY,
        pattern_type_filter: ANY,
        principal_filter: principal.cloned(),
        operation: operation.map_or(ANY, AclOperation::code),
        permission_type: ANY,
        ..DeleteAclsFilter::default()
    };
    if named.is_empty() {
        return vec![all];
    }
    let of = |it: &Resource| DeleteAclsFilter {
        resource_type_filter: it.kind.code(),
        resource_name_filter: Some(it.name.clone()),
        pattern_type_filter: pattern(it),
        ..all.clone()
    };
    named.iter().map(of).collect()
}

/// Returns the rules that filters find, each once, in order.
async fn found(
    client: &duramen_client::Client,
    filters: &[DeleteAclsFilter],
) -> anyhow::Result<Vec<Acl>> {
    let mut all = Vec::new();
    for filter in filters {
        for of in client.acls(filter).await? {
            for it in of.acls {
                let known = || {
                    Some(Acl {
                        resource: ResourceType::from_code(of.resource_type)?,
                        name: of.resource_name.clone(),
                        pattern: Pattern::from_code(of.pattern_type)?,
                        principal: it.principal.clone(),
                        host: it.host.clone(),
                        operation: AclOperation::from_code(it.operation)?,
                        permission: Permission::from_code(it.permission_type)?,
                    })
                };
                all.push(known().context("the broker has a rule that this release does not know")?);
            }
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

async fn list(it: List) -> anyhow::Result<()> {
    let client = it.cluster.connect().await?;
    let named = it.resources.all();
    let filters = filters(it.principal.as_ref(), None, &named, |it| match it.pattern {
        // All rules that are for the resource.
        Pattern::Literal => MATCH,
        Pattern::Prefixed => Pattern::Prefixed.code(),
    });
    let rows: Vec<Row> = found(&client, &filters).await?.iter().map(Row::from).collect();
    it.cluster.output.print_list(&rows, "no rules; duramen acl allow makes them", table)
}

async fn make(it: Make, permission: Permission) -> anyhow::Result<()> {
    let named = it.resources.all();
    let text = "name a resource: --topic, --group, --transactional-id or --cluster-itself";
    demand(!named.is_empty(), text)?;
    let mut acls = Vec::new();
    for principal in &it.principals {
        for resource in &named {
            for operation in &it.operations {
                acls.push(Acl {
                    resource: resource.kind,
                    name: resource.name.clone(),
                    pattern: resource.pattern,
                    principal: principal.clone(),
                    host: it.host.clone(),
                    operation: *operation,
                    permission,
                });
            }
        }
    }
    let creation = |acl: &Acl| AclCreation {
        resource_type: acl.resource.code(),
        resource_name: acl.name.clone(),
        resource_pattern_type: acl.pattern.code(),
        principal: acl.principal.clone(),
        host: acl.host.clone(),
        operation: acl.operation.code(),
        permission_type: acl.permission.code(),
    };
    let client = it.cluster.connect().await?;
    client.create_acls(acls.iter().map(creation).collect()).await?;
    let rows: Vec<Row> = acls.iter().map(Row::from).collect();
    it.cluster.output.print(&rows, || {
        let lines: Vec<String> = acls.iter().map(sentence).collect();
        lines.join("\n")
    })
}

/// Says what a rule means.
fn sentence(acl: &Acl) -> String {
    let who = match acl.principal.as_str() {
        "User:*" => "every client",
        one => one,
    };
    let from = match acl.host.as_str() {
        "*" => String::new(),
        host => format!(" from {host}"),
    };
    let may = match acl.permission {
        Permission::Allow => "may",
        Permission::Deny => "may not",
    };
    let verb = match acl.operation {
        AclOperation::All => "do everything with".to_owned(),
        AclOperation::Read
        | AclOperation::Write
        | AclOperation::Create
        | AclOperation::Delete
        | AclOperation::Alter
        | AclOperation::Describe => acl.operation.name().to_owned(),
        other => format!("do {other} with"),
    };
    let implied = match (acl.permission, acl.operation) {
        (
            Permission::Allow,
            AclOperation::Read | AclOperation::Write | AclOperation::Delete | AclOperation::Alter,
        ) => ", and describe it",
        (Permission::Allow, AclOperation::AlterConfigs) => ", and describe-configs",
        _ => "",
    };
    let what = match (acl.resource, acl.pattern, acl.name.as_str()) {
        (ResourceType::Cluster, ..) => "the cluster".to_owned(),
        (kind, Pattern::Literal, "*") => format!("each {kind}"),
        (kind, Pattern::Literal, name) => format!("{kind} {name}"),
        (kind, Pattern::Prefixed, name) => format!("each {kind} whose name begins with {name}"),
    };
    format!("{who}{from} {may} {verb} {what}{implied}")
}

async fn remove(it: Remove) -> anyhow::Result<()> {
    let named = it.resources.all();
    let text =
        "say which rules: --principal, --topic, --group, --transactional-id or --cluster-itself";
    demand(!named.is_empty() || it.principal.is_some(), text)?;
    let client = it.cluster.connect().await?;
    let exactly = |it: &Resource| it.pattern.code();
    let filters = filters(it.principal.as_ref(), it.operation, &named, exactly);
    let acls = found(&client, &filters).await?;
    if !it.dry_run {
        for filter in &filters {
            client.delete_acls(filter).await?;
        }
    }
    let rows: Vec<Row> = acls.iter().map(Row::from).collect();
    it.cluster.output.print(&rows, || {
        let end = if it.dry_run { "would be removed" } else { "removed" };
        match rows.len() {
            0 => "no such rules".to_owned(),
            count => {
                let rules = if count == 1 { "rule" } else { "rules" };
                format!("{}{count} {rules} {end}", table(&rows).render())
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_told_in_a_sentence() {
        let acl = Acl {
            resource: ResourceType::Topic,
            name: "orders".to_owned(),
            pattern: Pattern::Literal,
            principal: "User:ada".to_owned(),
            host: "*".to_owned(),
            operation: AclOperation::Read,
            permission: Permission::Allow,
        };
        assert_eq!(sentence(&acl), "User:ada may read topic orders, and describe it");
        let denied = Acl {
            pattern: Pattern::Prefixed,
            principal: "User:*".to_owned(),
            host: "10.0.0.7".to_owned(),
            operation: AclOperation::All,
            permission: Permission::Deny,
            ..acl.clone()
        };
        let text = "every client from 10.0.0.7 may not do everything with each topic whose name begins with orders";
        assert_eq!(sentence(&denied), text);
        let cluster = Acl {
            resource: ResourceType::Cluster,
            operation: AclOperation::IdempotentWrite,
            ..acl.clone()
        };
        assert_eq!(sentence(&cluster), "User:ada may do idempotent-write with the cluster");
        let all = Acl { name: "*".to_owned(), operation: AclOperation::Describe, ..acl };
        assert_eq!(sentence(&all), "User:ada may describe each topic");
    }

    #[test]
    fn operations_and_clients_are_read_as_kafkas_tools_write_them() {
        assert_eq!(operation("DescribeConfigs"), Ok(AclOperation::DescribeConfigs));
        assert_eq!(operation("describe_configs"), Ok(AclOperation::DescribeConfigs));
        assert_eq!(operation("READ"), Ok(AclOperation::Read));
        assert!(operation("fly").unwrap_err().contains("idempotent-write"));
        assert_eq!(principal("User:a"), Ok("User:a".to_owned()));
        assert!(principal("ada").unwrap_err().contains("write User:ada"));
    }
}
