//! `duramen bench`: load generators for any broker, which use little CPU themselves.

mod append;
mod consume;
mod enqueue;
mod fast;
mod frames;
mod produce;
mod queues;
mod read;
mod report;
mod retrieve;
mod tail;
mod takeover;
mod target;
mod wait;

use clap::{Args, Subcommand};

use super::bootstrap::run;

/// Measure a broker: appends that wait for their acknowledgement, bulk produce, bulk read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  duramen bench append --appenders 128 --connections 16 --size 2048 --seconds 10
  duramen bench produce --messages 5000000 --size 200 --batch 500
  duramen bench consume --topic duramen-bench --check

They speak plain Kafka protocol (Produce 9, Fetch 12), so they measure any broker since 2.8. Those
of queues speak the native API.
`bench/run.sh` in the source tree runs them side by side with Apache Kafka.")]
pub struct Bench {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Closed loop: appenders that each wait for their own acknowledgement, over shared connections
    Append(append::Append),
    /// Open pipeline: batches of records, as fast as the broker acknowledges them
    Produce(produce::Produce),
    /// Sequential read of a partition
    Consume(consume::Consume),
    /// Consumers at the end of a partition to which a producer writes at a steady rate
    Tail(tail::Tail),
    /// Closed loop: callers that append to many queues, by the native API or by Produce
    Enqueue(enqueue::Enqueue),
    /// Sequential read of a partition by the native API, or streams that nobody reads
    Read(read::Read),
    /// Callers that read random queues
    Retrieve(retrieve::Retrieve),
    /// Readers that wait, each for a queue of its own, and a writer at a steady rate
    Wait(wait::Wait),
    /// A guarded append to each queue and a read of it, before and after something happens to the nodes
    Takeover(takeover::Takeover),
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.kind {
            Kind::Append(command) => run(command.run()),
            Kind::Produce(command) => run(command.run()),
            Kind::Consume(command) => run(command.run()),
            Kind::Tail(command) => run(command.run()),
            Kind::Enqueue(command) => run(command.run()),
            Kind::Read(command) => run(command.run()),
            Kind::Retrieve(command) => run(command.run()),
            Kind::Wait(command) => run(command.run()),
            Kind::Takeover(command) => run(command.run()),
        }
    }
}
