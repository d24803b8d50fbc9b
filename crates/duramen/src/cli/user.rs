//! `duramen user`: users and their passwords.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use duramen_client::User;
use duramen_protocol::ErrorCode;
use duramen_protocol::sasl::scram::Hash;
use serde::Serialize;

use super::bootstrap::{Cluster, run};
use super::failure::explained;
use super::password;
use super::screen::Table;

/// Users of a cluster and their passwords.
#[derive(Debug, Args)]
#[command(
    after_help = "A user logs in with SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, as the listener allows. Nodes keep no
password, but keys by which they check one.

Examples:
  duramen user create ada
  duramen user create ada --new-password-file ada.password
  duramen user list
  duramen user delete ada
  duramen topic list --user ada --password-file ada.password"
)]
pub struct UserCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a user with a password, which is typed or read from a file
    Create(Create),
    /// List users with the mechanisms of their passwords
    List(List),
    /// Give a user another password; its connections end
    Password(Password),
    /// Remove a user; its connections end
    Delete(Delete),
}

#[derive(Debug, Args)]
struct NewPassword {
    /// Name of the user
    name: String,

    /// Mechanism that the password is for, repeatable [default: SCRAM-SHA-512 and SCRAM-SHA-256]
    #[arg(long = "for", value_name = "MECHANISM", value_parser = hash)]
    mechanisms: Vec<Hash>,

    /// File with the new password; - for stdin [default: typed at the terminal]
    #[arg(long = "new-password-file", value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Make a user with a password.
#[derive(Debug, Args)]
struct Create {
    #[command(flatten)]
    new: NewPassword,

    #[command(flatten)]
    cluster: Cluster,
}

/// Give a user another password.
#[derive(Debug, Args)]
struct Password {
    #[command(flatten)]
    new: NewPassword,

    #[command(flatten)]
    cluster: Cluster,
}

/// List users.
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    cluster: Cluster,
}

/// Remove users.
#[derive(Debug, Args)]
struct Delete {
    /// Name of the user
    name: String,

    /// Mechanism whose password goes, repeatable [default: all of the user's]
    #[arg(long = "for", value_name = "MECHANISM", value_parser = hash)]
    mechanisms: Vec<Hash>,

    #[command(flatten)]
    cluster: Cluster,
}

/// A user, as it is printed.
#[derive(Debug, Serialize)]
struct Row {
    user: String,
    credentials: Vec<Credential>,
}

#[derive(Debug, Serialize)]
struct Credential {
    mechanism: &'static str,
    iterations: i32,
}

/// A change, as it is printed.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    user: &'a str,
    mechanisms: Vec<&'static str>,
}

fn hash(text: &str) -> Result<Hash, String> {
    let names = || Hash::ALL.map(Hash::name).join(" or ");
    let known = Hash::ALL.into_iter().find(|it| it.name().eq_ignore_ascii_case(text));
    known.ok_or_else(|| format!("give {}; a password of either serves PLAIN, too", names()))
}

impl UserCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Create(it) => run(set(it.new, it.cluster, true)),
            Action::List(it) => run(list(it.cluster)),
            Action::Password(it) => run(set(it.new, it.cluster, false)),
            Action::Delete(it) => run(delete(it)),
        }
    }
}

fn names(mechanisms: &[Hash]) -> Vec<&'static str> {
    mechanisms.iter().map(|it| it.name()).collect()
}

/// Returns the mechanisms of a user's passwords.
fn own(user: &User) -> Vec<Hash> {
    user.credentials.iter().map(|(hash, _)| *hash).collect()
}

fn nobody(name: &str) -> anyhow::Error {
    let text = format!("there is no user {name}; duramen user list shows the users");
    explained(ErrorCode::ResourceNotFound, text)
}

async fn set(new: NewPassword, cluster: Cluster, is_new: bool) -> anyhow::Result<()> {
    let NewPassword { name, mechanisms, file } = new;
    let client = cluster.connect().await?;
    let there = client.users().await?.into_iter().find(|it| it.name == name);
    let mut mechanisms = if mechanisms.is_empty() { Hash::ALL.to_vec() } else { mechanisms };
    mechanisms.sort();
    mechanisms.dedup();
    match there {
        Some(there) if is_new && own(&there).iter().any(|it| mechanisms.contains(it)) => {
            let text = format!(
                "there is a user {name} already; duramen user password {name} changes its password"
            );
            return Err(explained(ErrorCode::DuplicateResource, text));
        }
        None if !is_new => return Err(nobody(&name)),
        _ => {}
    }
    let password = password::read(file.as_deref(), ("--new-password-file", &name), true)?;
    client.set_password(&name, &mechanisms, &password).await?;
    let changed = Changed { user: &name, mechanisms: names(&mechanisms) };
    let verb = if is_new { "has" } else { "has the new" };
    cluster.output.print(&changed, || {
        format!("{name} {verb} password for {}", names(&mechanisms).join(" and "))
            .replace("has password", "has a password")
    })
}

async fn list(cluster: Cluster) -> anyhow::Result<()> {
    let users = cluster.connect().await?.users().await?;
    let row = |user: User| {
        let credential =
            |(hash, iterations): (Hash, i32)| Credential { mechanism: hash.name(), iterations };
        Row { user: user.name, credentials: user.credentials.into_iter().map(credential).collect() }
    };
    let rows: Vec<Row> = users.into_iter().map(row).collect();
    cluster.output.print_list(&rows, "no users; duramen user create NAME makes one", |rows| {
        let mut table = Table::new(&["USER", "MECHANISM", "ITERATIONS"]);
        for row in rows {
            for it in &row.credentials {
                table.row(&[&row.user, &it.mechanism, &it.iterations]);
            }
        }
        table
    })
}

async fn delete(it: Delete) -> anyhow::Result<()> {
    let Delete { name, mechanisms, cluster } = it;
    let client = cluster.connect().await?;
    let there = client.users().await?.into_iter().find(|it| it.name == name);
    let there = there.ok_or_else(|| nobody(&name))?;
    let mechanisms = if mechanisms.is_empty() { own(&there) } else { mechanisms };
    let removed = client.remove_credentials(&name, &mechanisms).await;
    removed.with_context(|| format!("cannot remove {name}"))?;
    let is_gone = own(&there).iter().all(|it| mechanisms.contains(it));
    let changed = Changed { user: &name, mechanisms: names(&mechanisms) };
    cluster.output.print(&changed, || {
        if is_gone {
            format!("{name} is removed")
        } else {
            format!("{name} has no password for {} any more", names(&mechanisms).join(" and "))
        }
    })
}
