//! Addresses, name, password and time limits of a client.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use duramen_protocol::sasl::Mechanism;

use crate::tls::Tls;

/// Means of a client to show who it is.
#[derive(Clone)]
pub enum Login {
    /// A name and a password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Bytes,
        /// The mechanism, which is one of passwords.
        mechanism: Mechanism,
    },
    /// A file with a token of OAUTHBEARER. Each connection reads it, so that somebody else may renew it.
    Token(PathBuf),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, mechanism, .. } => write!(f, "Login({user}, {mechanism})"),
            Self::Token(path) => write!(f, "Login({})", path.display()),
        }
    }
}

/// Bootstrap brokers, name and time limits of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// `HOST:PORT` of one or more brokers. The client learns the others from them.
    pub bootstrap: Vec<String>,
    /// Name under which brokers log this client.
    pub client_id: String,
    /// Longest time until the first connection is open; zero means one try.
    pub connect_for: Duration,
    /// Longest wait of one request for its answer.
    pub request_timeout: Duration,
    /// Longest time a request is retried while the answers say that a retry may help.
    pub retry_for: Duration,
    /// Trust in brokers whose listeners have TLS.
    pub tls: Option<Tls>,
    /// Name and password, for brokers whose listeners ask for them.
    pub login: Option<Login>,
}

impl Options {
    /// Returns limits for someone who waits in front of a terminal: one try to connect, then 30 seconds for each
    /// request and for its retries.
    pub fn new(bootstrap: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            client_id: "duramen-cli".into(),
            connect_for: Duration::ZERO,
            request_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(30),
            tls: None,
            login: None,
        }
    }
}
