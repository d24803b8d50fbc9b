//! Parts that the commands of queues share: the worker's flags, the way to leases, a lease as JSON, and stdin.

use std::io::{Read, stdin};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Map, Value};

use crate::cli::consume::put_bytes;
use crate::cli::native::{MESSAGE_BYTES_MAX, Node, Way};
use crate::cli::usage::topic_name;
use crate::proto::leases_client::LeasesClient;
use crate::proto::{Decision, Leased, Settlement};

/// Longest wait of one request, in milliseconds.
pub(super) const WAIT_MS: u32 = 60_000;
/// Most leases of one request.
pub(super) const LEASES_MAX: u32 = 1_000;

/// The topic, who works its messages off, and the way there.
#[derive(Debug, Clone, Args)]
pub(super) struct Crew {
    /// Topic of the messages
    #[arg(value_parser = topic_name)]
    pub topic: String,
    /// Share group of the workers; its first lease makes it
    #[arg(long, short, value_name = "GROUP", value_parser = NonEmptyStringValueParser::new())]
    pub group: String,
    /// Name of the worker, of at most 36 characters. Settle a lease under the name that leased it
    #[arg(long, value_name = "NAME", default_value = "")]
    pub worker: String,
    #[command(flatten)]
    pub node: Node,
}

/// Reads stdin on a thread of its own: the user may interrupt that.
pub(super) async fn all_of_stdin() -> anyhow::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(|| {
        let mut bytes = Vec::new();
        stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    });
    read.await?.context("cannot read stdin")
}

/// Connects to the leases of a node.
pub(super) async fn connect(node: &Node) -> anyhow::Result<LeasesClient<Way>> {
    Ok(LeasesClient::new(node.connect().await?)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

/// Makes the settlement of a lease.
pub(super) fn settlement(lease: &str, decision: Decision, delay: Duration) -> Settlement {
    let (lease, decision) = (lease.to_owned(), decision.into());
    Settlement { lease, decision, delay_ms: in_ms(delay) }
}

/// Returns a time in milliseconds.
pub(super) fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a lease as JSON. Fields whose bytes are no text end in `_base64`.
pub(super) fn json_of(it: &Leased, lock_ms: u32) -> Map<String, Value> {
    let element = it.element.clone().unwrap_or_default();
    let record = element.record.unwrap_or_default();
    let mut object = Map::new();
    object.insert("lease".into(), it.lease.clone().into());
    put_bytes(&mut object, "queue", it.queue.as_deref());
    object.insert("partition".into(), it.partition.into());
    object.insert("position".into(), element.position.map(|it| it.to_string()).into());
    object.insert("deliveries".into(), it.deliveries.into());
    object.insert("lock_ms".into(), lock_ms.into());
    object.insert("timestamp_ms".into(), record.timestamp_ms.into());
    put_bytes(&mut object, "value", record.value.as_deref());
    // A list, because a name may occur more than once.
    let headers = record.headers.iter().map(|header| {
        let mut entry = Map::new();
        entry.insert("name".into(), header.name.clone().into());
        put_bytes(&mut entry, "value", header.value.as_deref());
        Value::Object(entry)
    });
    object.insert("headers".into(), headers.collect::<Vec<Value>>().into());
    object
}

/// Returns the content of a leased message.
pub(super) fn value_of(it: &Leased) -> Option<Bytes> {
    it.element.as_ref()?.record.as_ref()?.value.clone()
}

/// Returns bytes as text for people, or a dash where there are none.
pub(super) fn text_of(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
}
