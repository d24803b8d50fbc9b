//! Connections between nodes that carry calls of the native API, which one node passes on to another.
//!
//! On the port for nodes both know each other, so the one believes the other who a client is.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::greeting::Greeting;
use super::link::{Parts, connect};
use super::links::Links;
use super::message::Kind;
use super::passing::{CallsOfNode, PROTOCOL};
use crate::server::tls::Wire;

/// Longest wait for the other node's answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Bytes of the answer: a length, a kind and the protocol.
const ANSWER_BYTES: usize = 4 + 1 + PROTOCOL.len();
/// Connections that wait for the native API to take them.
const WAITING_MAX: usize = 16;

impl Links {
    /// Returns the connections on which other nodes pass on calls from now on.
    ///
    /// # Panics
    ///
    /// If somebody has them already.
    pub(crate) fn calls_of_nodes(&self) -> mpsc::Receiver<CallsOfNode> {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        self.callers().set(sender).expect("one native API takes them");
        receiver
    }

    pub(super) async fn pass(&self, calls: CallsOfNode) -> anyhow::Result<()> {
        let Some(sender) = self.callers().get() else {
            bail!("it passes on calls of the native API, which this node does not serve")
        };
        sender.send(calls).await.ok().context("the native API of this node ends")
    }

    /// Opens a connection to a node, for calls that this one passes on.
    pub(crate) async fn open_calls(&self, to: i32) -> anyhow::Result<Wire> {
        let (security, identity) = self.means().context("this node has no others")?;
        let at = self.address_of(to).with_context(|| format!("node {to} is not known"))?;
        let mut stream = security.dial(&at, connect).await?;
        let greeting = Greeting { to, from: identity, nodes: self.nodes() };
        let wish = || vec![Bytes::from_static(PROTOCOL)];
        let messages = [(Kind::Greeting, vec![greeting.encode()]), (Kind::Calls, wish())];
        let mut parts = Parts::of(messages);
        let mut answer = [0; ANSWER_BYTES];
        let agreed = async {
            stream.write_all_buf(&mut parts).await?;
            stream.flush().await?;
            stream.read_exact(&mut answer).await
        };
        let agreed = timeout(ANSWER_MAX, agreed).await.context("it does not answer")?;
        agreed.context("it takes no calls; a node of an earlier release does not")?;
        let mut wanted = Parts::of([(Kind::Calls, wish())]);
        ensure!(answer[..] == wanted.copy_to_bytes(ANSWER_BYTES), "it refuses this node");
        Ok(stream)
    }
}
