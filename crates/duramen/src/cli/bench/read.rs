//! `bench read`: one log from start to end by the native API, in whole batches; or streams that nobody reads.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tonic::Streaming;

use super::report::{bandwidth, cpu_time, milliseconds, print, round};
use super::target::seconds;
use crate::cli::bootstrap::Output;
use crate::cli::native::{MESSAGE_BYTES_MAX, Node, failure};
use crate::cli::screen;
use crate::cli::usage::topic_name;
use crate::proto::logs_client::LogsClient;
use crate::proto::{ReadRequest, ReadResponse};

/// Read a partition by the native API, as fast as the node sends.
#[derive(Debug, Args)]
#[command(
    after_help = "The node sends whole batches, as they lie in the log. With --stalled the command opens streams, each
over a connection of its own, and reads nothing: what others notice of that is measured beside it.

Examples:
  duramen bench read --topic duramen-bench
  duramen bench read --topic duramen-bench --stalled 64 --seconds 20"
)]
pub(super) struct Read {
    /// Topic to read
    #[arg(long, short, default_value = "duramen-bench", value_name = "NAME", value_parser = topic_name)]
    topic: String,
    /// Partition to read
    #[arg(long, short, default_value_t = 0, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: i32,
    /// Number of streams to open and not to read
    #[arg(long, value_name = "N", requires = "seconds")]
    stalled: Option<u32>,
    /// Time for which those streams are held
    #[arg(long, value_name = "S", requires = "stalled", value_parser = seconds)]
    seconds: Option<Duration>,
    #[command(flatten)]
    node: Node,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    stalled: u32,
    bytes: u64,
    responses: u64,
    seconds: f64,
    megabytes_per_second: f64,
    client_cpu_seconds: f64,
}

impl Read {
    /// Runs the command.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (cpu, begun) = (cpu_time(), Instant::now());
        let (mut bytes, mut responses) = (0, 0);
        if let Some(time) = self.seconds {
            let mut held = Vec::new();
            for _ in 0..self.stalled.unwrap_or_default() {
                held.push(self.stream().await?);
            }
            tokio::time::sleep(time).await;
        } else {
            let mut stream = self.stream().await?;
            while let Some(response) = stream.message().await.map_err(failure)? {
                bytes += response.batches.len() as u64;
                responses += 1;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let report = Report {
            benchmark: "read",
            stalled: self.stalled.unwrap_or_default(),
            bytes,
            responses,
            seconds: milliseconds(seconds),
            megabytes_per_second: round(bytes as f64 / seconds / 1e6),
            client_cpu_seconds: milliseconds(cpu_time().saturating_sub(cpu).as_secs_f64()),
        };
        let lines = [
            format!("{} in {} s", screen::bytes(bytes as f64), report.seconds),
            format!(
                "{}  {}",
                bandwidth(bytes as f64, report.seconds),
                screen::count(responses, "response")
            ),
            format!("client CPU {} s", report.client_cpu_seconds),
        ];
        print(self.node.output == Output::Json, &report, &lines)
    }

    async fn stream(&self) -> anyhow::Result<Streaming<ReadResponse>> {
        let mut logs = LogsClient::new(self.node.connect().await?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (topic, partition) = (self.topic.clone(), self.partition);
        let request = ReadRequest { topic, partition, raw: true, ..ReadRequest::default() };
        Ok(logs.read(request).await.map_err(failure)?.into_inner())
    }
}
