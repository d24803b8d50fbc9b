//! `duramen queue settle`.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::workers::{Crew, LEASES_MAX, all_of_stdin, connect, settlement};
use crate::cli::bootstrap::Output;
use crate::cli::failure::refused;
use crate::cli::native::failure;
use crate::cli::screen;
use crate::cli::usage::{demand, joined, misuse, once, time};
use crate::proto::{Decision, Problem, SettleRequest, Unsettled};

#[derive(Debug, Args)]
#[command(after_help = "The decision is the same for all named leases: one of
  --accept     the work is done: nobody gets the message again. This is the default
  --release    somebody else may have the message, after --delay if there is one
  --reject     the message cannot be worked off: it goes to the group's dead-letter topic, if any
  --renew      the worker needs more time: the lease begins anew
  --unseen     the worker has not looked at the message: this delivery does not count

Without a LEASE each line of stdin names one. The decisions are durable when the command ends. A
lease that the worker does not have (its time was over, or it is settled) is told with its reason,
and the exit code is 1. Somebody else may have such a message: do not settle it again.

Examples:
  duramen queue settle mail --group senders 0.4711.1
  duramen queue settle mail --group senders 0.4711.1 0.4712.3 --release --delay 10s
  duramen queue settle mail --group senders --worker host-7 0.4711.1 --reject
  jq -r .lease leases.json | duramen queue settle mail --group senders --unseen

Exit codes: 0 done, 1 failed, or a lease is not settled, 2 wrongly called, 130 interrupted.")]
pub(super) struct Settle {
    #[command(flatten)]
    crew: Crew,
    /// Names of leases, as `lease` prints them; the lines of stdin if absent
    #[arg(value_name = "LEASE", value_parser = lease)]
    leases: Vec<String>,
    #[command(flatten)]
    choice: Choice,
    /// Time for which nobody gets the released messages, such as 10s or 5m
    #[arg(long, value_name = "TIME", value_parser = time, requires = "release", allow_hyphen_values = true)]
    delay: Option<Duration>,
}

/// Decision on the messages.
#[derive(Debug, Args)]
#[group(multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Choice {
    /// The work is done [default]
    #[arg(long)]
    accept: bool,
    /// Somebody else may have the messages
    #[arg(long)]
    release: bool,
    /// The messages cannot be worked off
    #[arg(long)]
    reject: bool,
    /// The leases begin anew
    #[arg(long)]
    renew: bool,
    /// The worker has not looked at the messages
    #[arg(long)]
    unseen: bool,
}

impl Choice {
    fn decision(&self) -> Decision {
        match self {
            Self { release: true, .. } => Decision::Release,
            Self { reject: true, .. } => Decision::Reject,
            Self { renew: true, .. } => Decision::Renew,
            Self { unseen: true, .. } => Decision::Unseen,
            _ => Decision::Accept,
        }
    }
}

/// Returns a decision as people and programs read it, once the node has taken it.
pub(super) fn done(decision: Decision) -> &'static str {
    match decision {
        Decision::Accept => "accepted",
        Decision::Release => "released",
        Decision::Reject => "rejected",
        Decision::Renew => "renewed",
        Decision::Unseen => "unseen",
    }
}

/// Reads the name of a lease.
fn lease(text: &str) -> Result<String, String> {
    if !text.is_empty() && !text.contains(char::is_whitespace) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is more than the name of a lease; \
         `duramen queue lease --output json | jq -r .lease` prints the names alone"
    ))
}

/// Outcome of a lease.
#[derive(Debug, Serialize)]
struct Row<'a> {
    lease: &'a str,
    settled: bool,
    decision: &'static str,
    problem: Option<&'a str>,
    reason: Option<&'a str>,
}

impl Settle {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let named = if self.leases.is_empty() { leases_of_stdin().await? } else { self.leases };
        let names = once(&named);
        let (decision, delay) = (self.choice.decision(), self.delay.unwrap_or_default());
        let mut client = connect(&self.crew.node).await?;
        let mut failures = Vec::new();
        for some in names.chunks(LEASES_MAX as usize) {
            let settlements = some.iter().map(|it| settlement(it, decision, delay));
            let request = SettleRequest {
                topic: self.crew.topic.clone(),
                group: self.crew.group.clone(),
                worker: self.crew.worker.clone(),
                settlements: settlements.collect(),
            };
            let answer = client.settle(request).await.map_err(failure)?.into_inner();
            tell(self.crew.node.output, some, decision, answer.unsettled, &mut failures)?;
        }
        joined(names.len(), failures)
    }
}

/// Prints the outcomes of some leases, and adds an error for each that was not settled.
fn tell(
    output: Output,
    named: &[&String],
    decision: Decision,
    unsettled: Vec<Unsettled>,
    failures: &mut Vec<anyhow::Error>,
) -> anyhow::Result<()> {
    let unsettled = unsettled.into_iter().map(|it| (it.lease, it.problem.unwrap_or_default()));
    let unsettled: BTreeMap<String, Problem> = unsettled.collect();
    let mut out = screen::stdout();
    for lease in named {
        let problem = unsettled.get(*lease);
        let row = Row {
            lease,
            settled: problem.is_none(),
            decision: done(decision),
            problem: problem.map(|it| it.reason.as_str()),
            reason: problem.map(|it| it.detail.as_str()),
        };
        match (output, problem) {
            (Output::Json, _) => writeln!(out, "{}", serde_json::to_string(&row)?)?,
            (Output::Table, None) => writeln!(out, "{lease}  {}", row.decision)?,
            (Output::Table, Some(_)) => {}
        }
        if let Some(Problem { reason, detail, .. }) = problem {
            let text = format!("lease {lease} is not settled: {detail} ({reason})");
            failures.push(refused(Some(reason.clone()), text));
        }
    }
    Ok(out.flush()?)
}

async fn leases_of_stdin() -> anyhow::Result<Vec<String>> {
    let bytes = all_of_stdin().await?;
    let lines: Result<Vec<String>, _> = bytes.lines().collect();
    let lines = lines.context("a line is no text")?;
    let named: Result<Vec<String>, String> = lines.iter().map(|it| lease(it)).collect();
    let named = named.map_err(misuse)?;
    demand(!named.is_empty(), "there is no lease on stdin; name leases, one a line")?;
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_one_word() {
        assert_eq!(lease("0.4711.1").as_deref(), Ok("0.4711.1"));
        for wrong in ["", " ", "0.4711.1  alice  1  hello", "0.4711.1\n0.4712.1"] {
            assert!(lease(wrong).is_err(), "{wrong}");
        }
    }
}
