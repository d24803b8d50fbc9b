//! The way to a node's native API, for commands on logs and queues.

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

use super::bootstrap::Output;
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
    pub output: Output,
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
    pub(super) async fn connect(&self) -> anyhow::Result<Channel> {
        let at = &self.native;
        let endpoint = Endpoint::from_shared(format!("http://{at}"));
        endpoint.context("no address")?.connect().await.with_context(|| {
            format!(
                "no node serves the native API at {at}; start one with `duramen dev`, or name another with --native HOST:PORT"
            )
        })
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
