//! The way to a node's native API, for commands on logs and queues.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use data_encoding::BASE64;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt;
use tower::service_fn;

use super::bootstrap::{Output, Safety};
use super::failure::refused;
use super::screen::or_dash;
use super::usage::demand;
use crate::config::HostPort;
use crate::proto::{Guard, Position, Record, guard};

/// Largest message, in bytes: a page of a read, and what frames it.
pub(super) const MESSAGE_BYTES_MAX: usize = 33 << 20;

/// Address of a node, and the form of results.
#[derive(Debug, Clone, Args)]
pub(super) struct Node {
    /// Address of any node's native API
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9080", value_parser = address, help_heading = "Cluster")]
    native: String,
    #[command(flatten)]
    safety: Safety,
    #[command(flatten)]
    pub output: Output,
}

/// The way of calls to a node.
pub(super) type Way = InterceptedService<Channel, Shows>;

/// The user of each call.
#[derive(Debug, Clone)]
pub(super) enum Shows {
    Nobody,
    /// A name and a password, as the header has them.
    Password(MetadataValue<Ascii>),
    /// A file with a token. A long command reads the next token there when the first is over.
    Token(PathBuf),
}

impl Interceptor for Shows {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let value = match self {
            Self::Nobody => return Ok(request),
            Self::Password(value) => value.clone(),
            Self::Token(path) => {
                let read = std::fs::read_to_string(&*path).map_err(|error| error.to_string());
                let value = read.and_then(|token| header("Bearer", token.trim()));
                let about = |problem| format!("no token in {}: {problem}", path.display());
                value.map_err(|problem| Status::unauthenticated(about(problem)))?
            }
        };
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

/// Returns the value of a header that nothing prints.
fn header(scheme: &str, proof: &str) -> Result<MetadataValue<Ascii>, String> {
    let value = format!("{scheme} {proof}").parse::<MetadataValue<Ascii>>();
    let mut value = value.map_err(|_| "it is no text of one line".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn address(text: &str) -> Result<String, String> {
    match HostPort::parse(text.trim())? {
        HostPort { port: 0, .. } => Err(format!("{text} has no port to connect to")),
        address => Ok(address.to_string()),
    }
}

/// Conditions of an append.
#[derive(Debug, Args)]
pub(super) struct Guarded {
    /// Position of the record that has to be the last one of the log or queue, or none for one that has to be empty
    #[arg(long, value_name = "POSITION")]
    if_last: Option<String>,
    /// Token that has to be the fence of the log or queue
    #[arg(long, value_name = "TOKEN")]
    fence: Option<String>,
}

impl Guarded {
    pub(super) fn message(self) -> anyhow::Result<Option<Guard>> {
        let last = match self.if_last.as_deref() {
            None => None,
            Some("none") => Some(guard::Last::None(true)),
            Some(text) => {
                let position = text.parse::<Position>();
                demand(position.is_ok(), "--if-last is none, or a position such as 7.4711.4713")?;
                position.ok().map(guard::Last::At)
            }
        };
        let fence = self.fence.map(Into::into);
        Ok((last.is_some() || fence.is_some()).then_some(Guard { last, fence }))
    }
}

/// Ids of records.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Name of a record, one for each; with --if-last the same command may be repeated, and appends once
    #[arg(long = "id", value_name = "ID")]
    pub ids: Vec<String>,
}

impl Named {
    /// Makes a record of each value.
    pub(super) fn records(
        self,
        key: Option<String>,
        values: Vec<String>,
    ) -> anyhow::Result<Vec<Record>> {
        let (ids, key) = (self.ids, key.map(bytes::Bytes::from));
        let (names, count) = (ids.len(), values.len());
        let mistake =
            format!("--id comes {names} times for {count} values; give one for each, or none");
        demand(names == 0 || names == count, &mistake)?;
        let ids = ids.into_iter().map(Some).chain(std::iter::repeat(None));
        let record = |(value, id): (String, Option<String>)| Record {
            key: key.clone(),
            value: Some(value.into()),
            id,
            ..Record::default()
        };
        Ok(values.into_iter().zip(ids).map(record).collect())
    }
}

/// Places of the records of an append.
#[derive(Debug, Serialize)]
pub(super) struct Appended {
    first: String,
    last: String,
    duplicate: bool,
}

impl Appended {
    pub(super) fn new(first: Option<Position>, last: Option<Position>, duplicate: bool) -> Self {
        Self { first: or_dash(first), last: or_dash(last), duplicate }
    }

    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        output.print(self, || {
            let Self { first, last, duplicate } = self;
            let earlier = if *duplicate { ", by an earlier attempt" } else { "" };
            format!("appended from {first} to {last}{earlier}")
        })
    }
}

impl Node {
    pub(super) async fn connect(&self) -> anyhow::Result<Way> {
        let (at, tls) = (self.native.clone(), self.safety.tls()?);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{at}")).context("no address")?;
        let channel = match tls {
            None => endpoint.connect().await,
            Some(tls) => {
                let dial = move |_| {
                    let (at, tls) = (at.clone(), tls.clone());
                    async move {
                        let stream = TcpStream::connect(&at).await?;
                        stream.set_nodelay(true)?;
                        Ok::<_, io::Error>(TokioIo::new(tls.connect_http2(&at, stream).await?))
                    }
                };
                endpoint.connect_with_connector(service_fn(dial)).await
            }
        };
        let channel = channel.with_context(|| {
            format!(
                "no node serves the native API at {}; start one with `duramen dev`, or name another with --native HOST:PORT",
                self.native
            )
        })?;
        Ok(InterceptedService::new(channel, self.shows()?))
    }

    fn shows(&self) -> anyhow::Result<Shows> {
        let Safety { user, token_file, .. } = &self.safety;
        match (user, token_file) {
            (None, None) => Ok(Shows::Nobody),
            (None, Some(path)) => Ok(Shows::Token(path.clone())),
            (Some(user), _) => {
                demand(!user.contains(':'), "a name with a colon cannot be shown by HTTP")?;
                let password = self.safety.password(user)?;
                let both = [user.as_bytes(), b":", &password].concat();
                let value = header("Basic", &BASE64.encode(&both));
                Ok(Shows::Password(value.map_err(anyhow::Error::msg)?))
            }
        }
    }
}

/// Makes an error of a refusal, with the name of its kind for programs.
#[expect(clippy::needless_pass_by_value, reason = "it stands where an error is mapped")]
pub(super) fn failure(status: Status) -> anyhow::Error {
    let kind = status.get_details_error_info().map(|info| info.reason);
    refused(kind, status.message().to_owned())
}

/// Returns a fence as text; none for an empty one.
pub(super) fn fence_text(token: &[u8]) -> Option<String> {
    (!token.is_empty()).then(|| String::from_utf8_lossy(token).into_owned())
}
