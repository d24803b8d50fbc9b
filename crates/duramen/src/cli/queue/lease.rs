//! `duramen queue lease`.

use std::io::Write;
use std::time::Duration;

use clap::Args;

use super::workers::{Crew, LEASES_MAX, WAIT_MS, connect, in_ms, json_of, text_of, value_of};
use crate::cli::bootstrap::Output;
use crate::cli::native::failure;
use crate::cli::screen;
use crate::cli::usage::time;
use crate::proto::{LeaseRequest, LeaseResponse};

#[derive(Debug, Args)]
#[command(
    after_help = "A lease gives a message to one worker of the group, for a while: 30 seconds, unless the group has
another share.record.lock.duration.ms. Settle it in that time (`duramen queue settle`): a message
that nobody settles is leased again, up to the group's limit of deliveries.

The command prints each lease's name, its queue, the number of its deliveries with this one, and
the message's text. With --output json it prints one object a line. To run a program for each
message, use `duramen queue work`: that leases, renews and settles by itself.

Examples:
  duramen queue lease mail --group senders
  duramen queue lease mail --group senders --limit 10 --wait 30s
  duramen queue lease mail --group senders --worker host-7 --output json | jq .value
  duramen queue settle mail --group senders 0.4711.1"
)]
pub(super) struct Lease {
    #[command(flatten)]
    crew: Crew,
    /// Most messages to lease
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(LEASES_MAX)))]
    limit: u32,
    /// Wait so long for the first message if there is none, such as 30s or 5m
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    wait: Option<Duration>,
    /// Lease only messages of this partition
    #[arg(long, short, value_name = "P", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
}

impl Lease {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut client = connect(&self.crew.node).await?;
        let mut left = self.wait.unwrap_or_default();
        loop {
            let wait = left.min(Duration::from_millis(WAIT_MS.into()));
            let request = LeaseRequest {
                topic: self.crew.topic.clone(),
                group: self.crew.group.clone(),
                worker: self.crew.worker.clone(),
                limit: self.limit,
                wait_ms: u32::try_from(in_ms(wait)).unwrap_or(WAIT_MS),
                partition: self.partition,
                ..LeaseRequest::default()
            };
            let answer = client.lease(request).await.map_err(failure)?.into_inner();
            left = left.saturating_sub(wait);
            if !answer.leases.is_empty() || left.is_zero() {
                return self.tell(&answer);
            }
        }
    }

    fn tell(&self, answer: &LeaseResponse) -> anyhow::Result<()> {
        let mut out = screen::stdout();
        if self.crew.node.output == Output::Json {
            for it in &answer.leases {
                writeln!(out, "{}", serde_json::to_string(&json_of(it, answer.lock_ms))?)?;
            }
            return Ok(out.flush()?);
        }
        for it in &answer.leases {
            let (queue, value) = (text_of(it.queue.as_deref()), text_of(value_of(it).as_deref()));
            writeln!(out, "{}  {queue}  {}  {value}", it.lease, it.deliveries)?;
        }
        out.flush()?;
        let Crew { topic, group, worker, .. } = &self.crew;
        if answer.leases.is_empty() {
            eprintln!("nothing to lease");
            return Ok(());
        }
        let names: Vec<&str> = answer.leases.iter().map(|it| it.lease.as_str()).collect();
        let worker = if worker.is_empty() { String::new() } else { format!(" --worker {worker}") };
        eprintln!(
            "settle within {} s: duramen queue settle {topic} --group {group}{worker} {}",
            answer.lock_ms / 1_000,
            names.join(" ")
        );
        Ok(())
    }
}
