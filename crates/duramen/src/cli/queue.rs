//! `duramen queue`: messages of queues, by the native API. A queue is all records of one key.
//! `duramen queue verify` asks all nodes over Kafka's protocol.

use std::io::{BufRead, Write};

use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::bootstrap::{self, Output};
use super::native::{Appended, Guarded, MESSAGE_BYTES_MAX, Named, Node, Way, failure, fence_text};
use super::screen::{self, or_dash};
use super::usage::topic_name;
use crate::proto::queues_client::QueuesClient;
use crate::proto::{
    DeleteQueueRequest, DeleteRequest, EditResponse, EnqueueRequest, EnqueueResponse,
    FenceQueueRequest, GetQueueRequest, ListQueuesRequest, Pointer, Position, ReadRecord, Record,
    ReplaceRequest, RetrieveRequest, RewriteRequest, TrimQueueRequest, retrieve_request,
    rewrite_request,
};

mod erasure;
mod lease;
mod redrive;
mod schedule;
mod settle;
mod verify;
mod work;
mod workers;

use workers::{WAIT_MS, all_of_stdin};

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
  duramen queue edit mail alice 2.0.0 'hello again'
  duramen queue fence mail alice owner-7
  duramen queue rewrite mail alice --after 2.0.0 --fence owner-7 < lines
  duramen queue trim mail alice --through 2.0.0
  duramen queue delete mail alice 2.0.0
  duramen queue list mail --prefix al
  duramen queue show mail alice
  duramen queue lease mail --group senders
  duramen queue settle mail --group senders 0.4711.1
  duramen queue work mail --group senders -- ./send.sh
  duramen queue redrive dead-mail
  duramen queue verify mail
  duramen queue erasure mail")]
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
    /// Give a message another content
    Edit(Edit),
    /// Withdraw the last messages of a queue, and append others in their place
    Rewrite(Rewrite),
    /// Delete messages of a queue by position, or all of them
    Delete(Delete),
    /// Have readers of a queue begin behind a position, and keep a pointer to what came before
    Trim(Trim),
    /// Set the token that changes of a queue have to carry if they carry one
    Fence(Fence),
    /// List queues by name
    List(List),
    /// Show where a queue begins and ends, its fence and its pointer
    Show(Show),
    /// Lease messages to a worker
    Lease(lease::Lease),
    /// End leases, or prolong them
    Settle(settle::Settle),
    /// Run a command for each message, and settle by its exit code
    Work(work::Work),
    /// Put dead letters back where they come from
    Redrive(redrive::Redrive),
    /// Compare the queue index of each replica with its log, and the replicas with each other
    Verify(verify::Verify),
    /// Show what edits took away and is still on the disks
    Erasure(erasure::Erasure),
}

impl Queue {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Enqueue(enqueue) => bootstrap::run(enqueue.run()),
            Action::Retrieve(retrieve) => bootstrap::run(retrieve.run()),
            Action::Tail(tail) => bootstrap::run(tail.run()),
            Action::Edit(edit) => bootstrap::run(edit.run()),
            Action::Rewrite(rewrite) => bootstrap::run(rewrite.run()),
            Action::Delete(delete) => bootstrap::run(delete.run()),
            Action::Trim(trim) => bootstrap::run(trim.run()),
            Action::Fence(fence) => bootstrap::run(fence.run()),
            Action::List(list) => bootstrap::run(list.run()),
            Action::Show(show) => bootstrap::run(show.run()),
            Action::Lease(lease) => bootstrap::run(lease.run()),
            Action::Settle(settle) => bootstrap::run(settle.run()),
            Action::Work(work) => work.run(),
            Action::Redrive(redrive) => bootstrap::run(redrive.run()),
            Action::Verify(verify) => bootstrap::run(verify.run()),
            Action::Erasure(erasure) => bootstrap::run(erasure.run()),
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

async fn connect(node: &Node) -> anyhow::Result<QueuesClient<Way>> {
    Ok(QueuesClient::new(node.connect().await?)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

#[derive(Debug, Args)]
#[command(
    after_help = "All messages are appended together, or none is. Delays and priorities are for workers
(`duramen queue lease`): readers of the queue see the messages at once, and in their order. Nobody
sees a message whose time to live is over.

Examples:
  duramen queue enqueue mail alice hello
  duramen queue enqueue mail alice first second --output json
  duramen queue enqueue mail alice third --if-last 2.0.1
  duramen queue enqueue mail alice fourth --if-last 2.0.2 --id order-4711    # may be repeated
  duramen queue enqueue mail alice later --delay 10s --ttl 1h
  duramen queue enqueue mail alice urgent --priority 9 --deliver-at 2026-12-01T08:00:00Z"
)]
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
    #[command(flatten)]
    scheduled: schedule::Scheduled,
}

impl Enqueue {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let mut messages = self.named.records(None, self.messages)?;
        for message in &mut messages {
            message.schedule = self.scheduled.message();
        }
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
    version: Option<i64>,
    value: Option<String>,
    timestamp_ms: i64,
}

fn show(output: Output, it: ReadRecord) -> anyhow::Result<()> {
    let (record, version) = (it.record.unwrap_or_default(), it.version);
    let value = record.value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (position, timestamp_ms) = (or_dash(it.position), record.timestamp_ms);
    let shown = Shown { position, version, value, timestamp_ms };
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
    after_help = "The message keeps its position and its place in the queue. Its new content is a new record, which
readers of the topic by Kafka get behind all others; they see the old one no more. The version of a
message changes with its content: `queue retrieve --output json` prints it.

Examples:
  duramen queue edit mail alice 2.0.0 'hello again'
  duramen queue edit mail alice 2.0.0 < letter.txt
  duramen queue edit mail alice 2.0.0 'and again' --if-version 3
  duramen queue edit mail alice 2.0.0 'and again' --id edit-4711    # may be repeated"
)]
struct Edit {
    #[command(flatten)]
    target: Target,
    /// Position of the message, as `retrieve` prints it
    position: Position,
    /// New content; all of stdin if absent
    message: Option<String>,
    /// Version that the message has to have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    if_version: Option<i64>,
    /// Token that has to be the queue's fence: its own, or else the log's
    #[arg(long, value_name = "TOKEN")]
    fence: Option<String>,
    /// Name of the new content; the same command may then be repeated, and edits once
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

#[derive(Debug, Serialize)]
struct Replaced {
    position: String,
    version: Option<i64>,
    duplicate: bool,
}

impl Edit {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let value = match self.message {
            Some(text) => text.into_bytes(),
            None => all_of_stdin().await?,
        };
        let message = Record { value: Some(value.into()), id: self.id, ..Record::default() };
        let request = ReplaceRequest {
            topic,
            queue: queue.into(),
            position: Some(self.position),
            message: Some(message),
            if_version: self.if_version,
            fence: self.fence.map(Into::into),
            timeout_ms: 0,
        };
        let answer = connect(&node).await?.replace(request).await.map_err(failure)?.into_inner();
        let (position, version) = (self.position.to_string(), answer.at.map(|it| it.offset));
        let replaced = Replaced { position, version, duplicate: answer.duplicate };
        node.output.print(&replaced, || {
            let (position, version) = (&replaced.position, or_dash(version));
            format!("{position} has version {version}{}", earlier(replaced.duplicate))
        })
    }
}

/// Tells people of a change that was done before.
fn earlier(is_duplicate: bool) -> &'static str {
    if is_duplicate { ", by an earlier attempt" } else { "" }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each line of stdin is a message. They take the place of all messages behind the position, in one
step. Without a line the queue is cut there. A rewrite names the queue's fence, so that has to be
set before.

Examples:
  duramen queue fence mail alice owner-7
  duramen queue rewrite mail alice --after 2.0.0 --fence owner-7 < lines
  duramen queue rewrite mail alice --after 2.0.0 --fence owner-7 --reason 'a bad import' < /dev/null
  duramen queue rewrite mail alice --after none --fence owner-7 < lines"
)]
struct Rewrite {
    #[command(flatten)]
    target: Target,
    /// Position of the last message that stays, or none
    #[arg(long, value_name = "POSITION|none", value_parser = keep)]
    after: rewrite_request::Keep,
    /// Token that has to be the queue's fence: its own, or else the log's
    #[arg(long, value_name = "TOKEN", value_parser = NonEmptyStringValueParser::new())]
    fence: String,
    /// Text for people, which the log keeps
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Name of a message, one for each; the same command may then be repeated, and rewrites once
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
}

fn keep(text: &str) -> Result<rewrite_request::Keep, String> {
    match text {
        "none" => Ok(rewrite_request::Keep::None(true)),
        text => text.parse().map(rewrite_request::Keep::After),
    }
}

/// Result of an edit.
#[derive(Debug, Serialize)]
struct Edited {
    at: Option<String>,
    last: Option<String>,
    absent: u32,
    withdrawn: u32,
    duplicate: bool,
}

impl From<EditResponse> for Edited {
    fn from(it: EditResponse) -> Self {
        let text = |position: Option<Position>| position.map(|it| it.to_string());
        let EditResponse { at, absent, last, withdrawn, duplicate } = it;
        Self { at: text(at), last: text(last), absent, withdrawn, duplicate }
    }
}

impl Rewrite {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let text = all_of_stdin().await?;
        let lines: Result<Vec<String>, _> = text.lines().collect();
        let messages =
            Named { ids: self.ids }.records(None, lines.context("a line is no text")?)?;
        let count = messages.len();
        let request = RewriteRequest {
            topic,
            queue: queue.into(),
            keep: Some(self.after),
            messages,
            fence: self.fence.into(),
            reason: self.reason,
            timeout_ms: 0,
        };
        let answer = connect(&node).await?.rewrite(request).await.map_err(failure)?.into_inner();
        let edited = Edited::from(answer);
        node.output.print(&edited, || {
            let withdrawn = edited.withdrawn;
            let (first, last) = (or_dash(edited.at.as_ref()), or_dash(edited.last.as_ref()));
            match count {
                0 => format!("withdrawn {withdrawn}"),
                _ => format!(
                    "withdrawn {withdrawn}; appended from {first} to {last}{}",
                    earlier(edited.duplicate)
                ),
            }
        })
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "From then on readers see the messages no more, those of Kafka included. Their bytes stay
in the log's files until retention removes them. A position that names no message is passed over.
After --all the queue is as one that never had a message.

Examples:
  duramen queue delete mail alice 2.0.0
  duramen queue delete mail alice 2.0.0 2.4.5 --fence owner-7
  duramen queue delete mail alice --all"
)]
struct Delete {
    #[command(flatten)]
    target: Target,
    /// Positions of the messages, as `retrieve` prints them
    #[arg(required_unless_present = "all", value_name = "POSITION")]
    positions: Vec<Position>,
    /// Delete all messages of the queue
    #[arg(long, conflicts_with = "positions")]
    all: bool,
    /// Token that has to be the queue's fence: its own, or else the log's
    #[arg(long, value_name = "TOKEN")]
    fence: Option<String>,
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let (queue, fence, timeout_ms) = (queue.into(), self.fence.map(Into::into), 0);
        let mut client = connect(&node).await?;
        let answer = if self.all {
            let request = DeleteQueueRequest { topic, queue, fence, timeout_ms };
            client.delete_queue(request).await
        } else {
            let positions = self.positions;
            client.delete(DeleteRequest { topic, queue, positions, fence, timeout_ms }).await
        };
        let edited = Edited::from(answer.map_err(failure)?.into_inner());
        node.output.print(&edited, || {
            let (deleted, absent) = (edited.withdrawn, edited.absent);
            match absent {
                0 => format!("deleted {deleted}"),
                _ => format!("deleted {deleted}; {absent} named no message of the queue"),
            }
        })
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Readers of the queue begin behind the position from then on. The log keeps the messages: consumers
of Kafka, and `log read`, get them until retention removes them. The pointer stays with the queue,
for whoever asks for what was before.

Examples:
  duramen queue trim mail alice --through 2.4.5
  duramen queue trim mail alice --through 2.4.5 --pointer s3://snapshots/alice-5 --fence owner-7"
)]
struct Trim {
    #[command(flatten)]
    target: Target,
    /// Position of the last message that goes
    #[arg(long, value_name = "POSITION")]
    through: Position,
    /// Place of the state that the messages led to
    #[arg(long, value_name = "URI")]
    pointer: Option<String>,
    /// Token that has to be the queue's fence: its own, or else the log's
    #[arg(long, value_name = "TOKEN")]
    fence: Option<String>,
}

impl Trim {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let through = self.through;
        let pointer = |uri| Pointer { uri, position: Some(through), ..Pointer::default() };
        let request = TrimQueueRequest {
            topic,
            queue: queue.into(),
            through: Some(through),
            pointer: self.pointer.map(pointer),
            fence: self.fence.map(Into::into),
            timeout_ms: 0,
        };
        let answer = connect(&node).await?.trim_queue(request).await.map_err(failure)?.into_inner();
        let edited = Edited::from(answer);
        node.output.print(&edited, || match edited.at {
            Some(_) => format!("trimmed through {through}"),
            None => format!("trimmed through {through} or further before"),
        })
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "A change of the queue that carries another token is refused; one that carries none is taken, but
for a rewrite. An empty token takes the fence away: then the queue has that of its log, which
`duramen log fence` sets.

Examples:
  duramen queue fence mail alice owner-7
  duramen queue fence mail alice owner-8 --if-token owner-7
  duramen queue fence mail alice owner-1 --if-token ''    # only if the queue has none of its own
  duramen queue fence mail alice ''"
)]
struct Fence {
    #[command(flatten)]
    target: Target,
    /// The new token; empty for none
    token: String,
    /// Token that has to be the queue's own fence until now; empty for none
    #[arg(long, value_name = "TOKEN")]
    if_token: Option<String>,
}

impl Fence {
    async fn run(self) -> anyhow::Result<()> {
        let Target { topic, queue, node } = self.target;
        let token = self.token;
        let request = FenceQueueRequest {
            topic,
            queue: queue.into(),
            token: token.clone().into(),
            if_token: self.if_token.map(Into::into),
            timeout_ms: 0,
        };
        let answer =
            connect(&node).await?.fence_queue(request).await.map_err(failure)?.into_inner();
        node.output.print(&Edited::from(answer), || match token.as_str() {
            "" => "the queue has no fence of its own".to_owned(),
            token => format!("the queue's fence is {token}"),
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
    fence: Option<String>,
    pointer: Option<String>,
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
            fence: fence_text(&answer.fence),
            pointer: answer.pointer.map(|pointer| pointer.uri),
        };
        node.output.print(&extent, || {
            format!(
                "partition  {}\nfirst      {}\nlast       {}\nelements   {}\nfence      {}\npointer    {}",
                extent.partition,
                or_dash(extent.first.as_ref()),
                or_dash(extent.last.as_ref()),
                extent.about_elements,
                or_dash(extent.fence.as_ref()),
                or_dash(extent.pointer.as_ref()),
            )
        })
    }
}
