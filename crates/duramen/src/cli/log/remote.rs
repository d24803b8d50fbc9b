//! Commands on logs, by the native API: append, read, tail, truncate, fence.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use crate::cli::bootstrap::Output;
use crate::cli::native::{
    Appended, Guarded, MESSAGE_BYTES_MAX, Named, Node, Way, failure, fence_text,
};
use crate::cli::screen::{self, or_dash};
use crate::cli::usage::{demand, topic_name};
use crate::proto::logs_client::LogsClient;
use crate::proto::{
    AppendRequest, AppendResponse, Consistency, FenceRequest, Pointer, Position, ReadRecord,
    ReadRequest, Tail, TailRequest, TruncateRequest, read_request,
};

/// The log, and the way to it.
#[derive(Debug, Args)]
struct Target {
    /// The topic's name
    #[arg(value_parser = topic_name)]
    topic: String,
    /// The topic's partition, which is the log
    #[arg(long, short, value_name = "P", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    #[command(flatten)]
    node: Node,
}

impl Target {
    async fn connect(&self) -> anyhow::Result<LogsClient<Way>> {
        Ok(LogsClient::new(self.node.connect().await?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "All values are appended together, or none is. With --if-last only the writer that knows the
log's last record appends: a retry of an append that succeeded is refused with last-mismatch,
and names the position of what it had appended.

Examples:
  duramen log append orders first second
  duramen log append orders --if-last none first
  duramen log append orders --if-last 7.4711.4713 --fence writer-2 next
  duramen log append orders --if-last 7.4714.4714 --id order-4711 last    # may be repeated"
)]
pub(super) struct Append {
    #[command(flatten)]
    target: Target,
    /// Values of the records
    #[arg(required = true)]
    values: Vec<String>,
    /// Key of the records
    #[arg(long, short)]
    key: Option<String>,
    #[command(flatten)]
    guard: Guarded,
    #[command(flatten)]
    named: Named,
}

impl Append {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let guard = self.guard.message()?;
        let request = AppendRequest {
            topic: self.target.topic.clone(),
            partition: self.target.partition,
            records: self.named.records(self.key, self.values)?,
            guard,
            ..AppendRequest::default()
        };
        let mut node = self.target.connect().await?;
        let answer = node.append(request).await.map_err(failure)?.into_inner();
        let AppendResponse { first, last, duplicate } = answer;
        Appended::new(first, last, duplicate).print(self.target.node.output)
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command prints each record's position and value. Give the position of the last record that
you have to --after, and go on where you were.

Examples:
  duramen log read orders
  duramen log read orders --after 7.4711.4713 --count 10
  duramen log read orders --from end --follow --output json
  duramen log read orders --filter 'json.total > 100 && headers.country == \"fr\"'"
)]
pub(super) struct Read {
    #[command(flatten)]
    target: Target,
    /// Begin at an offset, or at the end
    #[arg(long, value_name = "OFFSET|begin|end", conflicts_with = "after")]
    from: Option<String>,
    /// Begin behind the record at this position
    #[arg(long, value_name = "POSITION")]
    after: Option<Position>,
    /// Stop after so many records
    #[arg(long, short, value_name = "N")]
    count: Option<u64>,
    /// Wait for more at the end
    #[arg(long, short)]
    follow: bool,
    /// Read what the asked node has, though it may lag behind
    #[arg(long)]
    any_replica: bool,
    /// Read only records of which an expression of CEL is true
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
}

#[derive(Debug, Serialize)]
struct Shown {
    position: String,
    key: Option<String>,
    value: Option<String>,
    timestamp_ms: i64,
}

impl Read {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let start = match (self.from.as_deref(), self.after) {
            (_, Some(position)) => Some(read_request::Start::After(position)),
            (None | Some("begin"), None) => None,
            (Some("end"), None) => Some(read_request::Start::End(true)),
            (Some(offset), None) => {
                let offset = offset.parse::<i64>().ok().filter(|offset| *offset >= 0);
                demand(offset.is_some(), "--from is begin, end, or an offset")?;
                offset.map(read_request::Start::From)
            }
        };
        let consistency =
            if self.any_replica { Consistency::AnyReplica } else { Consistency::Latest };
        let request = ReadRequest {
            topic: self.target.topic.clone(),
            partition: self.target.partition,
            start,
            limit: self.count.unwrap_or(0),
            follow: self.follow,
            consistency: consistency.into(),
            filter: self.filter.unwrap_or_default(),
            ..ReadRequest::default()
        };
        let mut node = self.target.connect().await?;
        let mut pages = node.read(request).await.map_err(failure)?.into_inner();
        while let Some(page) = pages.message().await.map_err(failure)? {
            for record in page.records {
                self.target.node.output.show(record)?;
            }
        }
        Ok(())
    }
}

impl Output {
    /// Prints a record, as a line of text or of JSON.
    fn show(self, it: ReadRecord) -> anyhow::Result<()> {
        let record = it.record.unwrap_or_default();
        let text = |bytes: Option<bytes::Bytes>| {
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let shown = Shown {
            position: or_dash(it.position),
            key: text(record.key),
            value: text(record.value),
            timestamp_ms: record.timestamp_ms,
        };
        let mut out = screen::stdout();
        match self {
            Self::Json => writeln!(out, "{}", serde_json::to_string(&shown)?)?,
            Self::Table => {
                writeln!(out, "{}  {}", shown.position, shown.value.as_deref().unwrap_or("-"))?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen log tail orders
  duramen log tail orders --partition 3 --output json")]
pub(super) struct TailOf {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Serialize)]
struct Ends {
    start: i64,
    stable: i64,
    end: i64,
    last: Option<String>,
    fence: Option<String>,
    pointer: Option<String>,
}

impl From<Tail> for Ends {
    fn from(tail: Tail) -> Self {
        Self {
            start: tail.start,
            stable: tail.stable,
            end: tail.end,
            last: tail.last.map(|position| position.to_string()),
            fence: fence_text(&tail.fence),
            pointer: tail.pointer.map(|pointer| pointer.uri),
        }
    }
}

impl Ends {
    fn text(&self) -> String {
        let Self { start, stable, end, last, fence, pointer } = self;
        let (last, fence, pointer) =
            (or_dash(last.as_ref()), or_dash(fence.as_ref()), or_dash(pointer.as_ref()));
        format!(
            "start    {start}\nstable   {stable}\nend      {end}\nlast     {last}\nfence    {fence}\npointer  {pointer}"
        )
    }
}

impl TailOf {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Target { topic, partition, .. } = &self.target;
        let request = TailRequest { topic: topic.clone(), partition: *partition };
        let mut node = self.target.connect().await?;
        let ends = Ends::from(node.tail(request).await.map_err(failure)?.into_inner());
        self.target.node.output.print(&ends, || ends.text())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing brings the records back. The pointer stays in the log, for whoever asks for them.

Examples:
  duramen log truncate orders --through 7.4711.4713 --pointer s3://snapshots/4713
  duramen log truncate orders --all"
)]
pub(super) struct TruncateLog {
    #[command(flatten)]
    target: Target,
    /// Position of the last record that goes
    #[arg(long, value_name = "POSITION", required_unless_present = "all")]
    through: Option<Position>,
    /// Remove all records that are committed
    #[arg(long, conflicts_with = "through")]
    all: bool,
    /// Place of the state that the records led to
    #[arg(long, value_name = "URI")]
    pointer: Option<String>,
    /// Token that has to be the log's fence
    #[arg(long, value_name = "TOKEN")]
    fence: Option<String>,
}

impl TruncateLog {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let request = TruncateRequest {
            topic: self.target.topic.clone(),
            partition: self.target.partition,
            through: self.through,
            pointer: self.pointer.map(|uri| Pointer {
                uri,
                position: self.through,
                ..Pointer::default()
            }),
            fence: self.fence.map(Into::into),
            ..TruncateRequest::default()
        };
        let mut node = self.target.connect().await?;
        let ends = Ends::from(node.truncate(request).await.map_err(failure)?.into_inner());
        self.target.node.output.print(&ends, || ends.text())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "An append that carries another token is refused; one that carries none is taken. In a topic of
queues the token is that of all queues of the partition that have none of their own, which
`duramen queue fence` sets. An empty token takes the fence away.

Examples:
  duramen log fence orders writer-2
  duramen log fence orders writer-3 --if-token writer-2 --partition 3
  duramen log fence orders ''"
)]
pub(super) struct FenceLog {
    #[command(flatten)]
    target: Target,
    /// The new token; empty for none
    token: String,
    /// Token that has to be the log's fence until now; empty for none
    #[arg(long, value_name = "TOKEN")]
    if_token: Option<String>,
}

impl FenceLog {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let request = FenceRequest {
            topic: self.target.topic.clone(),
            partition: self.target.partition,
            token: self.token.into(),
            if_token: self.if_token.map(Into::into),
            timeout_ms: 0,
        };
        let mut node = self.target.connect().await?;
        let ends = Ends::from(node.fence(request).await.map_err(failure)?.into_inner());
        self.target.node.output.print(&ends, || ends.text())
    }
}
