//! A bare durable server and a load client: what a broker's small requests are measured against.
//!
//! The server does as little as a durable broker can do for a produce: it is a limit, and no broker. The client loads
//! several servers in turn, in short slices, so that the machine's moods hit all of them alike. Its own cost is small
//! and the same for each. `bench/run.sh --only small_requests` runs both.

mod frames;
mod load;
mod serve;
mod usage;

use clap::Parser;

#[derive(Parser)]
#[command(about = "A bare durable server, and a load client for it and for brokers")]
enum Command {
    /// Stores what clients produce, and answers once it is on disk; it serves nothing else
    Serve(serve::Options),
    /// Loads servers in turn, in short slices, and prints figures as JSON
    Load(load::Options),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Serve(options) => serve::run(&options),
        Command::Load(options) => load::run(&options),
    }
}
