//! The way to a node's native API, for commands on logs and queues.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use data_encoding::BASE64;
use duramen_client::{Tls, Wire};
use futures_util::future::BoxFuture;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
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

/// Means to enter nodes: the trust in them, and the user of each call.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    tls: Option<Tls>,
    shows: Shows,
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

impl Shows {
    /// Returns the header of a call, if its user shows one.
    fn header(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        match self {
            Self::Nobody => Ok(None),
            Self::Password(value) => Ok(Some(value.clone())),
            Self::Token(path) => {
                let read = std::fs::read_to_string(path).map_err(|error| error.to_string());
                let value = read.and_then(|token| header("Bearer", token.trim()));
                let about = |problem| format!("no token in {}: {problem}", path.display());
                value.map(Some).map_err(about)
            }
        }
    }
}

impl Interceptor for Shows {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = self.header().map_err(Status::unauthenticated)? {
            request.metadata_mut().insert("authorization", value);
        }
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

/// Reads the address of a node's native API.
pub(super) fn address(text: &str) -> Result<String, String> {
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
        Entry::of(&self.safety)?.connect(&self.native).await
    }
}

impl Entry {
    /// Reads certificates and the password, which the user may have to type.
    pub(super) fn of(safety: &Safety) -> anyhow::Result<Self> {
        let shows = match (&safety.user, &safety.token_file) {
            (None, None) => Shows::Nobody,
            (None, Some(path)) => Shows::Token(path.clone()),
            (Some(user), _) => {
                demand(!user.contains(':'), "a name with a colon cannot be shown by HTTP")?;
                let password = safety.password(user)?;
                let both = [user.as_bytes(), b":", &password].concat();
                let value = header("Basic", &BASE64.encode(&both));
                Shows::Password(value.map_err(anyhow::Error::msg)?)
            }
        };
        Ok(Self { tls: safety.tls()?, shows })
    }

    /// Connects to the node at `HOST:PORT`.
    pub(super) async fn connect(&self, at: &str) -> anyhow::Result<Way> {
        let channel = match self.dial(at) {
            None => endpoint("http", at).connect().await,
            Some(dial) => endpoint("https", at).connect_with_connector(service_fn(dial)).await,
        };
        let channel = channel.with_context(|| no_node(at))?;
        Ok(InterceptedService::new(channel, self.shows.clone()))
    }

    /// Returns a way to a node that connects when it is used, and again after a loss.
    pub(super) fn connect_lazily(&self, at: &str) -> Way {
        let channel = match self.dial(at) {
            None => endpoint("http", at).connect_lazy(),
            Some(dial) => endpoint("https", at).connect_with_connector_lazy(service_fn(dial)),
        };
        InterceptedService::new(channel, self.shows.clone())
    }

    /// Connects to a node for HTTP/1.1. Returns the lines of each request that name the node and the user, too.
    pub(super) async fn connect_http(&self, at: &str) -> anyhow::Result<(Wire, String)> {
        let connect = async || -> io::Result<Wire> {
            let stream = TcpStream::connect(at).await?;
            stream.set_nodelay(true)?;
            match &self.tls {
                None => Ok(Wire::Left(stream)),
                Some(tls) => Ok(Wire::Right(Box::new(tls.connect(at, stream).await?))),
            }
        };
        let wire = connect().await.with_context(|| no_node(at))?;
        let shown = match self.shows.header().map_err(anyhow::Error::msg)? {
            None => String::new(),
            Some(value) => format!("authorization: {}\r\n", value.to_str()?),
        };
        Ok((wire, format!("host: {at}\r\n{shown}")))
    }

    /// Returns the way by which a channel gets its connections, if they have TLS.
    fn dial(&self, at: &str) -> Option<impl Fn(Uri) -> Dialled + Clone + use<>> {
        let (at, tls) = (at.to_owned(), self.tls.clone()?);
        Some(move |_| -> Dialled {
            let (at, tls) = (at.clone(), tls.clone());
            Box::pin(async move {
                let stream = TcpStream::connect(&at).await?;
                stream.set_nodelay(true)?;
                Ok(TokioIo::new(tls.connect_http2(&at, stream).await?))
            })
        })
    }
}

/// A connection with TLS that comes to be.
type Dialled = BoxFuture<'static, io::Result<TokioIo<TlsStream<TcpStream>>>>;

fn endpoint(scheme: &str, at: &str) -> Endpoint {
    Endpoint::from_shared(format!("{scheme}://{at}")).expect("an address of a host and a port")
}

fn no_node(at: &str) -> String {
    format!(
        "no node serves the native API at {at}; start one with `duramen dev`, or name another with --native HOST:PORT"
    )
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
