//! Nodes, queues, and calls by gRPC or HTTP, for all benchmarks of the native API.

use anyhow::{Context, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use clap::{Args, ValueEnum};
use duramen_client::Wire;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Status};

use crate::cli::bootstrap::Safety;
use crate::cli::native::{Entry, MESSAGE_BYTES_MAX, Way, address, failure};
use crate::cli::usage::topic_name;
use crate::proto::queues_client::QueuesClient;
use crate::proto::retrieve_request::Start;
use crate::proto::topics_client::TopicsClient;
use crate::proto::{CreateTopicRequest, Position, RetrieveRequest, RetrieveResponse};

/// Fraction of the queues by which a benchmark steps from one queue to the next: neighbours in time are none by name.
const STRIDE: f64 = 0.618;
/// Most bytes of the head of an HTTP answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
const PROTOBUF: &str = "application/x-protobuf";

/// Way to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Via {
    /// gRPC, a call for each request
    Grpc,
    /// gRPC, all requests of a connection in one stream
    Stream,
    /// HTTP/1.1 with protobuf bodies; a connection has one call at a time
    Http,
    /// Kafka's Produce with the queue's name as key
    Kafka,
}

/// Nodes, topic and queues of a benchmark.
#[derive(Debug, Clone, Args)]
pub(super) struct Place {
    /// Addresses of nodes' native APIs; several separated by commas
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9080", value_parser = address, value_delimiter = ',', help_heading = "Cluster")]
    pub(super) native: Vec<String>,
    /// Topic of the queues; created if missing
    #[arg(long, short, default_value = "duramen-bench-queues", value_name = "NAME", value_parser = topic_name)]
    pub(super) topic: String,
    /// Partitions of the topic
    #[arg(long, short, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) partitions: i32,
    /// Number of queues
    #[arg(long, short, default_value_t = 6, value_name = "Q", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) queues: u64,
}

/// Nodes of a benchmark, and the way into them.
pub(super) struct Nodes {
    addresses: Vec<String>,
    entry: Entry,
}

impl Place {
    /// Returns the nodes, and the way into them.
    pub(super) fn nodes(&self, safety: &Safety) -> anyhow::Result<Nodes> {
        Ok(Nodes { addresses: self.native.clone(), entry: Entry::of(safety)? })
    }

    /// Creates the topic if it is missing.
    pub(super) async fn prepare(&self, nodes: &Nodes) -> anyhow::Result<()> {
        let request = CreateTopicRequest {
            name: self.topic.clone(),
            partitions: self.partitions,
            settings: [("queue.enable".to_owned(), "true".to_owned())].into(),
            ..CreateTopicRequest::default()
        };
        let way = nodes.entry.connect(nodes.at(0)).await?;
        match TopicsClient::new(way).create_topic(request).await {
            Err(status) if status.code() != Code::AlreadyExists => Err(failure(status)),
            _ => Ok(()),
        }
    }

    /// Returns the queue that comes at this place of an endless round through all of them.
    pub(super) fn nth(&self, number: u64) -> u64 {
        let count = self.queues;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction of a count"
        )]
        let mut stride = (count as f64 * STRIDE) as u64;
        while common_divisor(stride, count) != 1 {
            stride += 1;
        }
        let product = u128::from(number % count) * u128::from(stride) % u128::from(count);
        u64::try_from(product).expect("a remainder of 64 bits")
    }
}

impl Nodes {
    /// Returns the address for a connection: they take the nodes in turn.
    fn at(&self, connection: usize) -> &str {
        &self.addresses[connection % self.addresses.len()]
    }

    /// Connects to a node.
    pub(super) async fn grpc(&self, connection: usize) -> anyhow::Result<QueuesClient<Way>> {
        Ok(client(self.entry.connect(self.at(connection)).await?))
    }

    /// Connects readers: those of gRPC share connections, those of HTTP have one each.
    pub(super) async fn readers(
        &self,
        via: Via,
        count: u32,
        connections: u32,
    ) -> anyhow::Result<Vec<Reader>> {
        let mut readers = Vec::new();
        if via == Via::Http {
            for number in 0..count as usize {
                readers.push(Reader::Http(self.http(number).await?));
            }
            return Ok(readers);
        }
        let mut shared = Vec::new();
        for connection in 0..connections.min(count) as usize {
            shared.push(self.grpc(connection).await?);
        }
        let client = |number: usize| Reader::Grpc(shared[number % shared.len()].clone());
        Ok((0..count as usize).map(client).collect())
    }

    /// Makes clients of all nodes, which connect when they are used, and again after a loss.
    pub(super) fn lazy(&self) -> Vec<QueuesClient<Way>> {
        self.addresses.iter().map(|at| client(self.entry.connect_lazily(at))).collect()
    }

    /// Connects to a node by HTTP/1.1.
    pub(super) async fn http(&self, connection: usize) -> anyhow::Result<Http> {
        let (wire, lines) = self.entry.connect_http(self.at(connection)).await?;
        Ok(Http { wire, lines, input: BytesMut::with_capacity(4 << 10) })
    }
}

fn client(way: Way) -> QueuesClient<Way> {
    QueuesClient::new(way)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if a == 0 { b } else { common_divisor(b % a, a) }
}

/// Name of a queue, which is the key of its records.
pub(super) fn name(queue: u64) -> Bytes {
    format!("queue-{queue:08}").into()
}

/// Returns the reason of a refusal, if the same request may succeed later; otherwise the failure of the benchmark.
pub(super) fn retriable(status: Status) -> anyhow::Result<String> {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
            Ok(format!("{}: {}", status.code(), status.message()))
        }
        _ => Err(failure(status)),
    }
}

/// xorshift generator, which chooses queues.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Makes bytes that no codec shortens.
    pub(super) fn bytes(&mut self, count: usize) -> Bytes {
        (0..count).map(|_| self.next().to_be_bytes()[3]).collect::<Vec<u8>>().into()
    }
}

/// One way to read a queue: a call of gRPC, or one of HTTP.
pub(super) enum Reader {
    Grpc(QueuesClient<Way>),
    Http(Http),
}

impl Reader {
    /// Reads a page of a queue; returns it, or the reason of a refusal that may be none later.
    pub(super) async fn read(
        &mut self,
        request: &RetrieveRequest,
    ) -> anyhow::Result<Result<RetrieveResponse, String>> {
        match self {
            Self::Http(client) => client.retrieve(request).await,
            Self::Grpc(client) => match client.retrieve(request.clone()).await {
                Ok(page) => Ok(Ok(page.into_inner())),
                Err(status) => retriable(status).map(Err),
            },
        }
    }
}

/// Connection by HTTP/1.1, with one call at a time.
pub(super) struct Http {
    wire: Wire,
    /// Lines of each request that name the node and the user.
    lines: String,
    input: BytesMut,
}

impl Http {
    /// Posts a message; returns the answer, or the reason of a refusal that may be none later.
    pub(super) async fn post<T: Message + Default>(
        &mut self,
        path: &str,
        body: &impl Message,
    ) -> anyhow::Result<Result<T, String>> {
        let length = body.encoded_len();
        let mut request = Vec::with_capacity(length + 256);
        let head = format!(
            "POST {path} HTTP/1.1\r\n{}content-type: {PROTOBUF}\r\naccept: {PROTOBUF}\r\ncontent-length: {length}\r\n\r\n",
            self.lines
        );
        request.extend_from_slice(head.as_bytes());
        body.encode(&mut request)?;
        self.call(&request).await
    }

    /// Reads elements of a queue.
    pub(super) async fn retrieve(
        &mut self,
        asked: &RetrieveRequest,
    ) -> anyhow::Result<Result<RetrieveResponse, String>> {
        let RetrieveRequest { topic, queue, limit, wait_ms, start, .. } = asked;
        let queue = String::from_utf8_lossy(queue);
        let after = match start {
            None => String::new(),
            Some(Start::End(_)) => "&after=end".to_owned(),
            Some(Start::After(position)) => format!("&after={position}"),
        };
        let wait = if *wait_ms == 0 { String::new() } else { format!("&wait={}s", wait_ms / 1000) };
        let request = format!(
            "GET /v1/topics/{topic}/queues/{queue}/messages?limit={limit}{after}{wait} HTTP/1.1\r\n{}accept: {PROTOBUF}\r\n\r\n",
            self.lines
        );
        self.call(request.as_bytes()).await
    }

    async fn call<T: Message + Default>(
        &mut self,
        request: &[u8],
    ) -> anyhow::Result<Result<T, String>> {
        let sent = async {
            self.wire.write_all(request).await?;
            // A stream with TLS keeps bytes back until it is flushed.
            self.wire.flush().await
        };
        sent.await.context("the node closed the connection")?;
        let (status, length) = loop {
            if let Some(at) = self.input.windows(4).position(|it| it == b"\r\n\r\n") {
                let head = self.input.split_to(at + 4);
                break read_head(std::str::from_utf8(&head)?)?;
            }
            ensure!(self.input.len() < HEAD_BYTES_MAX, "the answer has too long a head");
            self.more().await?;
        };
        while self.input.len() < length {
            self.more().await?;
        }
        let mut body = self.input.split_to(length).freeze();
        match status {
            200 => Ok(Ok(T::decode(body.copy_to_bytes(length))?)),
            503 | 504 => Ok(Err(String::from_utf8_lossy(&body).into_owned())),
            _ => bail!("the node answered {status}: {}", String::from_utf8_lossy(&body)),
        }
    }

    async fn more(&mut self) -> anyhow::Result<()> {
        let count = self.wire.read_buf(&mut self.input).await;
        ensure!(
            count.context("the node closed the connection")? > 0,
            "the node closed the connection"
        );
        Ok(())
    }
}

/// Reads status and length of an answer.
fn read_head(head: &str) -> anyhow::Result<(u16, usize)> {
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.and_then(|it| it.parse().ok()).context("the answer is no HTTP")?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    Ok((status, length.context("the answer has no length")?))
}

/// Reads `PARTITION=POSITION`.
pub(super) fn after(text: &str) -> Result<(i32, Position), String> {
    let (partition, position) = text.split_once('=').ok_or("it is PARTITION=POSITION")?;
    let partition = partition.parse().map_err(|_| "the partition is no number")?;
    Ok((partition, position.parse()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_round_has_every_queue_once() {
        for queues in [1, 2, 6, 60, 1000, 9_973, 100_000] {
            let (native, topic) = (Vec::new(), String::new());
            let place = Place { native, topic, partitions: 1, queues };
            for from in [0, queues, 7 * queues] {
                let seen: BTreeSet<u64> = (from..from + queues).map(|it| place.nth(it)).collect();
                assert_eq!(seen, (0..queues).collect());
            }
        }
    }

    #[test]
    fn heads_of_answers_are_read_in_any_case() {
        let head = "HTTP/1.1 503 Busy\r\nServer: x\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(read_head(head).expect("well formed"), (503, 12));
        assert!(read_head("HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
