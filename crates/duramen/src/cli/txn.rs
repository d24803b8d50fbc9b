//! `duramen txn`: transactional ids and their transactions.

use clap::{Args, Subcommand};
use duramen_protocol::ErrorCode;
use jiff::{SignedDuration, SpanRound, Timestamp, Unit};

use super::bootstrap::run;
use super::explained;

mod abort;
mod describe;
mod list;

/// Transactional ids and their transactions.
#[derive(Debug, Args)]
#[command(
    after_help = "An open transaction holds up readers of committed records (isolation.level=read_committed) in all
its partitions, until it ends or times out.

Examples:
  duramen txn list --state ongoing
  duramen txn describe billing-1
  duramen txn abort billing-1"
)]
pub struct Txn {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List transactional ids with their states
    List(list::List),
    /// Show a transaction: its producer, its begin, and the partitions in which it holds up readers
    Describe(describe::Describe),
    /// Abort the open transaction of an id, and fence its producer
    Abort(abort::Abort),
}

impl Txn {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List(command) => run(command.run()),
            Action::Describe(command) => run(command.run()),
            Action::Abort(command) => run(command.run()),
        }
    }
}

fn no_such_id(id: &str) -> anyhow::Error {
    let text =
        format!("there is no transactional id {id}; see which there are with `duramen txn list`");
    explained(ErrorCode::TransactionalIdNotFound, text)
}

/// Writes the time since `then_ms` with its greatest two units.
fn ago(then_ms: i64, now: Timestamp) -> String {
    let Ok(then) = Timestamp::from_millisecond(then_ms) else { return "-".into() };
    let passed = now.duration_since(then).max(SignedDuration::ZERO);
    let smallest = if passed < SignedDuration::from_hours(1) { Unit::Second } else { Unit::Minute };
    let round = SpanRound::new().largest(Unit::Hour).smallest(smallest);
    let span = jiff::Span::try_from(passed).and_then(|span| span.round(round));
    span.map_or_else(|_| "-".into(), |span| format!("{span:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_well() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let ago = |seconds: i64| ago((1_000_000 - seconds) * 1000, now);
        assert_eq!(
            (ago(0), ago(75), ago(3_600 * 49 + 150)),
            ("0s".into(), "1m 15s".into(), "49h 3m".into())
        );
        assert_eq!(ago(-5), "0s", "another machine's clock is ahead");
    }
}
