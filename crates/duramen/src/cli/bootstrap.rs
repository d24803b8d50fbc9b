//! Flags of every client command: the cluster's address and the form of results.

use std::future::Future;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use duramen_client::{Client, Error, Login, Options, Tls};
use duramen_protocol::sasl::Mechanism;
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::password;
use super::screen::{self, Table};
use crate::config::HostPort;

/// Form of printed results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// JSON, for programs.
    Json,
}

/// The flag by which every command names the form of its results.
#[derive(Args)]
struct Flag {
    /// Print for people (table) or for programs (json)
    #[arg(
        long,
        short,
        value_enum,
        default_value_t,
        value_name = "FORM",
        hide_possible_values = true,
        help_heading = "Cluster"
    )]
    output: Output,
}

impl FromArgMatches for Output {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Flag::from_arg_matches(matches).map(|flag| flag.output)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Output {
    fn augment_args(command: Command) -> Command {
        Flag::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flag::augment_args_for_update(command)
    }
}

impl Output {
    /// Prints what came out: as JSON if the user asked for JSON, and else as text.
    pub fn print(
        self,
        outcome: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        match self {
            Self::Json => screen::print_json(outcome),
            Self::Table => Ok(screen::print_line(text().trim_end())?),
        }
    }

    /// Prints a list: as JSON if the user asked for JSON, and else as a table, or as these words if it is empty.
    pub fn print_list<T: Serialize>(
        self,
        list: &[T],
        empty: &str,
        table: impl FnOnce(&[T]) -> Table,
    ) -> anyhow::Result<()> {
        let text = || if list.is_empty() { empty.to_owned() } else { table(list).render() };
        self.print(&list, text)
    }
}

/// Flags of TLS, and of the user.
#[derive(Debug, Clone, Args)]
pub struct Safety {
    /// Connect with TLS, and trust brokers whose certificates descend from those in this file in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "DURAMEN_TLS_CA",
        hide_env_values = true,
        help_heading = "Cluster"
    )]
    pub tls_ca: Option<PathBuf>,

    /// Certificate to show, in PEM, where a broker asks for one
    #[arg(
        long,
        value_name = "FILE",
        env = "DURAMEN_TLS_CERT",
        hide_env_values = true,
        requires = "tls_ca",
        help_heading = "Cluster"
    )]
    pub tls_cert: Option<PathBuf>,

    /// Its key, in PEM and not encrypted [default: in the same file]
    #[arg(
        long,
        value_name = "FILE",
        env = "DURAMEN_TLS_KEY",
        hide_env_values = true,
        requires = "tls_cert",
        help_heading = "Cluster"
    )]
    pub tls_key: Option<PathBuf>,

    /// Name to log in with, where a broker asks for one
    #[arg(
        long,
        value_name = "NAME",
        env = "DURAMEN_USER",
        hide_env_values = true,
        help_heading = "Cluster"
    )]
    pub user: Option<String>,

    /// File with its password; - for stdin [default: typed at the terminal]
    #[arg(
        long,
        value_name = "FILE",
        env = "DURAMEN_PASSWORD_FILE",
        hide_env_values = true,
        requires = "user",
        help_heading = "Cluster"
    )]
    pub password_file: Option<PathBuf>,

    /// File with a token to log in with (OAUTHBEARER), in place of a name and a password
    #[arg(
        long,
        value_name = "FILE",
        env = "DURAMEN_TOKEN_FILE",
        hide_env_values = true,
        conflicts_with = "user",
        help_heading = "Cluster"
    )]
    pub token_file: Option<PathBuf>,
}

impl Safety {
    /// Returns the trust in brokers, if the user asked for TLS.
    pub(super) fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let own = self.tls_cert.as_deref();
        let own = own.map(|path| (path, self.tls_key.as_deref().unwrap_or(path)));
        let trusting = |path: &PathBuf| Tls::trusting(path, own);
        self.tls_ca.as_ref().map(trusting).transpose().context("cannot connect with TLS")
    }

    /// Returns the password of a user.
    pub(super) fn password(&self, user: &str) -> anyhow::Result<Bytes> {
        password::read(self.password_file.as_deref(), ("--password-file", user), false)
    }
}

/// Flags of the cluster and of the form of results.
#[derive(Debug, Clone, Args)]
pub struct Cluster {
    /// Broker to ask first, which names the others; several separated by commas. The default port is 9092
    #[arg(
        long,
        short,
        value_name = "HOST[:PORT]",
        value_parser = address,
        env = "DURAMEN_BOOTSTRAP",
        hide_env_values = true,
        default_value = "127.0.0.1:9092",
        value_delimiter = ',',
        help_heading = "Cluster"
    )]
    pub bootstrap: Vec<String>,

    /// Means to connect safely, and to show who the user is.
    #[command(flatten)]
    pub safety: Safety,

    /// Way to show the password: SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN [default: SCRAM-SHA-512]
    #[arg(
        long,
        value_name = "NAME",
        env = "DURAMEN_MECHANISM",
        hide_env_values = true,
        requires = "user",
        value_parser = mechanism,
        help_heading = "Cluster"
    )]
    pub mechanism: Option<Mechanism>,

    /// Form of the results.
    #[command(flatten)]
    pub output: Output,
}

/// Reads the name of a mechanism.
fn mechanism(text: &str) -> Result<Mechanism, String> {
    let known = Mechanism::from_name(&text.to_ascii_uppercase());
    let known = known.filter(|it| Mechanism::OF_PASSWORDS.contains(it));
    known.ok_or_else(|| {
        format!("give one of {}", Mechanism::OF_PASSWORDS.map(Mechanism::name).join(", "))
    })
}

/// Port of a broker whose address has none, as in other tools.
const PORT_DEFAULT: u16 = 9092;

/// Completes an address to `HOST:PORT`. Users write a host alone, or an IPv6 address with or without brackets.
fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.trim_end_matches('/');
        return Err(format!("a broker is HOST:PORT without {scheme}://; write {rest}"));
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<Ipv6Addr>().is_ok() {
        return Ok(HostPort { host: bare.to_owned(), port: PORT_DEFAULT }.to_string());
    }
    if !text.is_empty() && !text.contains(':') {
        return Ok(HostPort { host: text.to_owned(), port: PORT_DEFAULT }.to_string());
    }
    match HostPort::parse(text)? {
        HostPort { port: 0, .. } => Err(format!("{text} has no port to connect to")),
        address => Ok(address.to_string()),
    }
}

/// The user pressed Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Ctrl-C, or a request to end.
pub(super) struct Interrupt {
    signals: [Signal; 2],
}

impl Interrupt {
    /// Begins to listen: from then on the signals do not end the process.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { signals: [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?] })
    }

    /// Waits for the next signal.
    pub(super) async fn comes(&mut self) {
        let [interrupt, terminate] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

impl Cluster {
    /// Connects a client to this cluster.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        self.connect_with(self.options()?).await
    }

    /// Connects a client that tries again for so long.
    pub async fn connect_trying(&self, retry_for: Duration) -> anyhow::Result<Client> {
        self.connect_with(Options { retry_for, ..self.options()? }).await
    }

    /// Connects a client that waits for no node longer than this, because nodes may be frozen.
    pub async fn connect_within(&self, request_timeout: Duration) -> anyhow::Result<Client> {
        self.connect_with(Options { request_timeout, ..self.options()? }).await
    }

    /// Returns the options of every client of this cluster.
    pub fn options(&self) -> anyhow::Result<Options> {
        let tls = self.safety.tls()?;
        let login = match (&self.safety.user, &self.safety.token_file) {
            (Some(user), _) => Some(self.login(user)?),
            (None, Some(file)) => Some(Login::Token(file.clone())),
            (None, None) => None,
        };
        Ok(Options { tls, login, ..Options::new(&self.bootstrap) })
    }

    fn login(&self, user: &str) -> anyhow::Result<Login> {
        let password = self.safety.password(user)?;
        let mechanism = self.mechanism.unwrap_or(Mechanism::OF_PASSWORDS[0]);
        Ok(Login::Password { user: user.to_owned(), password, mechanism })
    }

    async fn connect_with(&self, options: Options) -> anyhow::Result<Client> {
        let client = Client::connect(options).await;
        client.map_err(|error| match &error {
            Error::Unreachable { source, .. } => anyhow::anyhow!(
                "no broker answers at {} ({source}); start one with `duramen dev`, \
                 or name another with --bootstrap HOST:PORT",
                self.bootstrap.join(" or ")
            ),
            _ => anyhow::Error::new(error),
        })
    }

    /// True if the user asked for JSON.
    pub fn json(&self) -> bool {
        self.output == Output::Json
    }
}

/// Runs a command's future on a runtime of its own, until it ends or the user interrupts it.
pub fn run(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the client's runtime")?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = command => outcome,
            pressed = tokio::signal::ctrl_c() => {
                pressed.context("cannot listen for Ctrl-C")?;
                Err(Interrupted.into())
            }
        }
    });
    // A thread that waits for a name server or for stdin must not keep the process.
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_without_a_port_is_at_kafkas() {
        for (text, expected) in [
            ("broker", Some("broker:9092")),
            ("broker:19092", Some("broker:19092")),
            (" 10.0.0.1 ", Some("10.0.0.1:9092")),
            ("::1", Some("[::1]:9092")),
            ("[::1]", Some("[::1]:9092")),
            ("[::1]:7", Some("[::1]:7")),
            ("", None),
            ("broker:", None),
            (":9092", None),
            ("broker:0", None),
            ("broker:99999", None),
            ("http://broker:9092", None),
        ] {
            assert_eq!(address(text).ok().as_deref(), expected, "{text}");
        }
        let error = "a broker is HOST:PORT without http://; write broker:9092";
        assert_eq!(address("http://broker:9092/"), Err(error.into()));
    }
}
