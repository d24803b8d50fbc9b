//! `duramen queue`: messages of queues, by the native API. A queue is all records of one key.

use std::io::Write;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde::Serialize;
use tonic::transport::Channel;

use super::bootstrap::{self, Output};
use super::native::{Appended, Guarded, MESSAGE_BYTES_MAX, Named, Node, failure};
use super::screen::{self, or_dash};
use super::usage::topic_name;
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    DeleteRequest, EnqueueRequest, EnqueueResponse, GetQueueRequest, ListQueuesRequest, Position,
    ReadRecord, RetrieveRequest, retrieve_request,
};

/// Longest wait of one request, in milliseconds.
const WAIT_MS: u32 = 60_000;
/// Most messages of one request.
const PAGE: u64 = 1_000;

/// Queues by the native API: one for each key of a topic.
#[derive(Debug, Args)]
#[command(after_help = "A topic has queues if it was created so:
  duramen topic create mail --partitions 8 --config queue.enable=true

Examples:
  duramen queue enqueue mail alice hello
  duramen queue retrieve mail alice
  duramen queue tail mail alice
  duramen queue delete mail alice 2.0.0
  duramen queue list mail --prefix al
  duramen queue show mail alice")]
pub struct Queue {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Append messages to a queue
    Enqueue(Enqueue),
    /// Read messages of a queue by position
    Retrieve(Retrieve),
    /// Follow a queue: print what comes
    Tail(Tail),
    /// Delete messages of a queue by position
    Delete(Delete),
    /// List queues by name
    List(List),
    /// Show where a queue begins and ends
    Show(Show),
}

impl Queue {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Enqueue(enqueue) => bootstrap::run(enqueue.run()),
            Action::Retrieve(retrieve) => bootstrap::run(retrieve.run()),
            Action::Tail(tail) => bootstrap::run(tail.run()),
            Action::Delete(delete) => bootstrap::run(delete.run()),
            Action::List(list) => bootstrap::run(list.run()),
            Action::Show(show) => bootstrap::run(show.run()),
        }
    }
}

/// The queue, and the way to it.
#[derive(Debug, Args)]
struct Target {
    /// The topic's name
    #[arg(value_parser = topic_name)]
    topic: String,
    /// The queue's name, which is the key of its records
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    queue: String,
    #[command(flatten)]
    node: Node,
}

async fn connect(node: &Node) -> anyhow::Result<QueuesClient<Channel>> {
    Ok(QueuesClient::new(node.connect().await?)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

#[derive(Debug, Args)]
#[command(after_help = "All messages are appended together, or none is.

Examples:
  duramen queue enqueue mail alice hello
  duramen queue enqueue mail alice first second --output json
  duramen queue enqueue mail alice third --if-last 2.0.1
  duramen queue enqueue mail alice fourth --if-last 2.0.2 --id order-4711    # may be repeated")]
struct Enqueue {
    #[command(flatten)]
    target: Target,
    /// Messages
    #[arg(required = true)]
    messages: Vec<String>,
    #[command(flatten)]
    guard: Guarded,
    #[command(flatten)]
    named: Named,
}

impl Enqueue {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let messages = self.named.records(None, self.messages)?;
        let (queue, guard) = (queue.into(), self.guard.message()?);
        let request = EnqueueRequest { topic, queue, messages, guard, ..EnqueueRequest::default() };
        let answer = connect(&node).await?.enqueue(request).await.map_err(failure)?.into_inner();
        let EnqueueResponse { first, last, duplicate } = answer;
        Appended::new(first, last, duplicate).print(node.output)
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command prints each message's position and text. Give the position of the last message
that you have to --after, and go on where you were.

Examples:
  duramen queue retrieve mail alice
  duramen queue retrieve mail alice --after 2.0.0 --count 10
  duramen queue retrieve mail alice --wait 30
  duramen queue retrieve mail alice --filter 'json.total > 100'"
)]
struct Retrieve {
    #[command(flatten)]
    target: Target,
    /// Begin behind the message at this position
    #[arg(long, value_name = "POSITION")]
    after: Option<Position>,
    /// Stop after so many messages
    #[arg(long, short, value_name = "N")]
    count: Option<u64>,
    /// Wait so many seconds for a message if there is none
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=60))]
    wait: Option<u32>,
    /// Read only messages of which an expression of CEL is true
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
}

#[derive(Debug, Serialize)]
struct Shown {
    position: String,
    value: Option<String>,
    timestamp_ms: i64,
}

fn show(output: Output, it: ReadRecord) -> anyhow::Result<()> {
    let record = it.record.unwrap_or_default();
    let value = record.value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (position, timestamp_ms) = (or_dash(it.position), record.timestamp_ms);
    let shown = Shown { position, value, timestamp_ms };
    let mut out = screen::stdout();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string(&shown)?)?,
        Output::Table => {
            writeln!(out, "{}  {}", shown.position, shown.value.as_deref().unwrap_or("-"))?;
        }
    }
    out.flush()?;
    Ok(())
}

impl Retrieve {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let mut request = RetrieveRequest {
            topic,
            queue: queue.into(),
            start: self.after.map(retrieve_request::Start::After),
            wait_ms: self.wait.unwrap_or(0).saturating_mul(1000),
            filter: self.filter.unwrap_or_default(),
            ..RetrieveRequest::default()
        };
        let mut client = connect(&node).await?;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            request.limit = u32::try_from(left.min(PAGE)).unwrap_or(0);
            let page = client.retrieve(request.clone()).await.map_err(failure)?.into_inner();
            let more = page.more;
            for element in page.elements {
                show(node.output, element)?;
                left -= 1;
            }
            let Some(next) = page.next.filter(|_| more) else { break };
            request.start = Some(retrieve_request::Start::After(next));
            request.wait_ms = 0;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen queue tail mail alice
  duramen queue tail mail alice --from-begin --output json")]
struct Tail {
    #[command(flatten)]
    target: Target,
    /// Print what is there already, too
    #[arg(long)]
    from_begin: bool,
}

impl Tail {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let mut request = RetrieveRequest {
            topic,
            queue: queue.into(),
            start: (!self.from_begin).then_some(retrieve_request::Start::End(true)),
            wait_ms: WAIT_MS,
            skip_trimmed: true,
            ..RetrieveRequest::default()
        };
        let mut client = connect(&node).await?;
        loop {
            let page = client.retrieve(request.clone()).await.map_err(failure)?.into_inner();
            for element in page.elements {
                show(node.output, element)?;
            }
            // A log without a position has nothing: its end is its beginning.
            request.start = page.next.map(retrieve_request::Start::After);
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "From then on readers see the messages no more, those of Kafka included. Their bytes stay
in the log's files until retention removes them. A position that names no message is passed over.

Examples:
  duramen queue delete mail alice 2.0.0
  duramen queue delete mail alice 2.0.0 2.4.5 --fence owner-7"
)]
struct Delete {
    #[command(flatten)]
    target: Target,
    /// Positions of the messages, as `retrieve` prints them
    #[arg(required = true, value_name = "POSITION")]
    positions: Vec<Position>,
    /// Token that has to be the log's fence
    #[arg(long, value_name = "TOKEN")]
    fence: Option<String>,
}

#[derive(Debug, Serialize)]
struct Edited {
    at: Option<String>,
    absent: u32,
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let asked = self.positions.len();
        let request = DeleteRequest {
            topic,
            queue: queue.into(),
            positions: self.positions,
            fence: self.fence.map(Into::into),
            timeout_ms: 0,
        };
        let answer = connect(&node).await?.delete(request).await.map_err(failure)?.into_inner();
        let absent = answer.absent;
        let edited = Edited { at: answer.at.map(|it| it.to_string()), absent };
        node.output.print(&edited, || {
            let deleted = asked - usize::try_from(absent).unwrap_or(asked);
            match absent {
                0 => format!("deleted {deleted}"),
                _ => format!("deleted {deleted}; {absent} named no message of the queue"),
            }
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen queue list mail
  duramen queue list mail --prefix al --output json")]
struct List {
    /// The topic's name
    #[arg(value_parser = topic_name)]
    topic: String,
    /// Beginning of the names
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    #[command(flatten)]
    node: Node,
}

#[derive(Debug, Serialize)]
struct Listed {
    queue: String,
    partition: i32,
    about_elements: u64,
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = connect(&self.node).await?;
        let mut request = ListQueuesRequest {
            topic: self.topic,
            prefix: self.prefix.into(),
            ..ListQueuesRequest::default()
        };
        let mut listed = Vec::new();
        loop {
            let page = client.list_queues(request.clone()).await.map_err(failure)?.into_inner();
            let last = page.queues.last().map(|it| it.name.clone());
            listed.extend(page.queues.into_iter().map(|it| Listed {
                queue: String::from_utf8_lossy(&it.name).into_owned(),
                partition: it.partition,
                about_elements: it.about_elements,
            }));
            match last.filter(|_| page.more) {
                Some(last) => request.after = last,
                None => break,
            }
        }
        self.node.output.print(&listed, || {
            let rows = listed.iter().map(|it| format!("{:<40} {:>9}", it.queue, it.about_elements));
            let head = format!("{:<40} {:>9}", "QUEUE", "ELEMENTS");
            std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen queue show mail alice")]
struct Show {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Serialize)]
struct Extent {
    partition: i32,
    first: Option<String>,
    last: Option<String>,
    about_elements: u64,
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let request = GetQueueRequest { topic, queue: queue.into() };
        let answer = connect(&node).await?.get_queue(request).await.map_err(failure)?.into_inner();
        let text = |position: Option<Position>| position.map(|it| it.to_string());
        let extent = Extent {
            partition: answer.partition,
            first: text(answer.first),
            last: text(answer.last),
            about_elements: answer.about_elements,
        };
        node.output.print(&extent, || {
            format!(
                "partition  {}\nfirst      {}\nlast       {}\nelements   {}",
                extent.partition,
                or_dash(extent.first.as_ref()),
                or_dash(extent.last.as_ref()),
                extent.about_elements
            )
        })
    }
}
