//! `duramen queue work`: runs a command for each message that it leases, and settles by the command's exit code.
//!
//! Each message has a task, which renews its lease while the command runs. The first signal ends the leasing; running
//! commands go on to their end. A second signal ends them.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use tokio::task::{JoinSet, spawn_blocking};
use tonic::{Code, Status};

use super::settle::done;
use super::workers::{Crew, LEASES_MAX, connect, settlement, text_of, value_of};
use crate::cli::bootstrap::{Interrupt, Interrupted, Output};
use crate::cli::native::{Way, failure};
use crate::proto::leases_client::LeasesClient;
use crate::proto::{Decision, LeaseRequest, LeaseResponse, Leased, Problem, SettleRequest};

/// Longest wait of one request. A signal waits for its end, so that no lease gets lost on its way.
const WAIT_MS: u32 = 2_000;
/// Rest before a request is sent again.
const REST: Duration = Duration::from_secs(1);
/// Number of times that a settlement is sent if no node takes it.
const ATTEMPTS: u32 = 10;
/// Longest delay of a released message.
const DELAY_MAX: Duration = Duration::from_secs(300);
/// Exit code of a command that cannot use its input (`EX_DATAERR` of sysexits).
const DATA_ERROR: i32 = 65;

#[derive(Debug, Args)]
#[command(after_help = "The command gets the message on its stdin, and finds in its environment
  DURAMEN_QUEUE        name of the queue; absent without one, and for one with a zero byte
  DURAMEN_LEASE        name of the lease
  DURAMEN_DELIVERIES   number of times that the message was leased, with this one

Its exit code decides:
  0                    accepted: nobody gets the message again
  65                   rejected: the message goes to the group's dead-letter topic, if any
  any other, a signal  released: after 1 s somebody gets the message again, after 2 s the next time,
                       then 4 s, and so on up to 5 min. After its last delivery it is rejected

The lease is renewed while the command runs. Each message's outcome is told on stderr, as JSON lines
with --output json; stdout is the command's. After Ctrl-C running commands go on to their end,
and nothing else begins; a second Ctrl-C ends them, too.

Examples:
  duramen queue work mail --group senders -- ./send.sh
  duramen queue work mail --group senders --parallel 8 -- sh -c 'sendmail \"$DURAMEN_QUEUE\"'
  duramen queue work mail --group senders --once --output json -- ./send.sh

Exit codes: 0 nothing is left (--once), 1 failed, 2 wrongly called, 130 interrupted.")]
pub(super) struct Work {
    #[command(flatten)]
    crew: Crew,
    /// Most commands that run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(LEASES_MAX)))]
    parallel: u32,
    /// End when there is nothing to lease
    #[arg(long)]
    once: bool,
    /// Command to run for each message, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Work {
    /// Runs the command. It listens for signals itself.
    pub(super) fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the client's runtime")?;
        let outcome = runtime.block_on(self.work());
        runtime.shutdown_background();
        outcome
    }

    async fn work(self) -> anyhow::Result<()> {
        let mut interrupt = Interrupt::listen()?;
        let client = tokio::select! {
            client = connect(&self.crew.node) => client?,
            () = interrupt.comes() => return Err(Interrupted.into()),
        };
        let mut running = JoinSet::new();
        let worker = Arc::new(Worker { work: self, client });
        let outcome = worker.lease_and_run(&mut interrupt, &mut running).await;
        // Without a task left, all that was leased is settled.
        let ended = async {
            let mut ended = Ok(());
            while let Some(it) = running.join_next().await {
                ended = ended.and(it.map_err(anyhow::Error::from).flatten());
            }
            ended
        };
        tokio::select! {
            ended = ended => outcome.and(ended),
            () = interrupt.comes() => Err(Interrupted.into()),
        }
    }
}

/// The command line, and the way to a node.
struct Worker {
    work: Work,
    client: LeasesClient<Way>,
}

/// Tasks of messages. One fails if its command cannot be started.
type Running = JoinSet<anyhow::Result<()>>;

impl Worker {
    /// Leases messages as long as there is a place for a command, and begins their tasks.
    async fn lease_and_run(
        self: &Arc<Self>,
        interrupt: &mut Interrupt,
        running: &mut Running,
    ) -> anyhow::Result<()> {
        let is_once = self.work.once;
        loop {
            while let Some(ended) = running.try_join_next() {
                ended??;
            }
            let taken = u32::try_from(running.len()).unwrap_or(u32::MAX);
            let free = self.work.parallel.saturating_sub(taken);
            if free == 0 {
                self.one_ends(interrupt, running).await?;
                continue;
            }
            let answer = match self.lease(interrupt, free).await? {
                Ok(answer) => answer,
                Err(status) if is_once || !may_pass(&status) => return Err(failure(status)),
                Err(status) => {
                    eprintln!("{:#}; trying again", failure(status));
                    tokio::select! {
                        () = tokio::time::sleep(REST) => continue,
                        () = interrupt.comes() => return Err(Interrupted.into()),
                    }
                }
            };
            if answer.leases.is_empty() && is_once {
                if running.is_empty() {
                    return Ok(());
                }
                // A message that its command does not accept may be there again.
                self.one_ends(interrupt, running).await?;
            }
            let lock = Duration::from_millis(answer.lock_ms.into());
            for leased in answer.leases {
                running.spawn(Arc::clone(self).run_for(leased, lock));
            }
        }
    }

    async fn one_ends(
        &self,
        interrupt: &mut Interrupt,
        running: &mut Running,
    ) -> anyhow::Result<()> {
        tokio::select! {
            Some(ended) = running.join_next() => ended?,
            () = interrupt.comes() => Err(Interrupted.into()),
        }
    }

    /// Leases messages. After a signal it hands back what comes.
    async fn lease(
        &self,
        interrupt: &mut Interrupt,
        limit: u32,
    ) -> anyhow::Result<Result<LeaseResponse, Status>> {
        let Crew { topic, group, worker, .. } = self.work.crew.clone();
        let wait_ms = if self.work.once { 0 } else { WAIT_MS };
        let request =
            LeaseRequest { topic, group, worker, limit, wait_ms, ..LeaseRequest::default() };
        let mut client = self.client.clone();
        let call = client.lease(request);
        tokio::pin!(call);
        tokio::select! {
            answer = &mut call => return Ok(answer.map(tonic::Response::into_inner)),
            () = interrupt.comes() => {}
        }
        let answer = tokio::select! {
            answer = &mut call => answer.map(tonic::Response::into_inner).unwrap_or_default(),
            () = interrupt.comes() => LeaseResponse::default(),
        };
        for it in answer.leases {
            self.settle_and_tell(&it, Decision::Unseen, Duration::ZERO, None).await;
        }
        Err(Interrupted.into())
    }

    /// Runs the command for a message, and settles the lease by its exit code.
    async fn run_for(self: Arc<Self>, leased: Leased, lock: Duration) -> anyhow::Result<()> {
        let child = match self.start(&leased) {
            Ok(child) => child,
            Err(error) => {
                self.settle_and_tell(&leased, Decision::Unseen, Duration::ZERO, None).await;
                let name = self.work.command[0].display();
                return Err(anyhow!("cannot run {name}: {error}"));
            }
        };
        let mut guard = Guard(Pid::from_child(&child).into());
        let value = value_of(&leased).unwrap_or_default();
        let mut ends = spawn_blocking(move || feed(child, &value));
        let mut is_lost = false;
        let status = loop {
            tokio::select! {
                status = &mut ends => break status?,
                () = tokio::time::sleep(lock / 2), if !is_lost => {
                    let problem = self.settle(&leased, Decision::Renew, Duration::ZERO).await;
                    if let Err(problem) = problem {
                        is_lost = problem.reason == "lease-lost";
                        self.tell(&leased, Decision::Renew, Duration::ZERO, None, Some(problem));
                    }
                }
            }
        };
        guard.0 = None;
        let status = status.context("cannot wait for the command")?;
        let (decision, delay) = decision_of(status, leased.deliveries);
        if !is_lost {
            self.settle_and_tell(&leased, decision, delay, Some(status)).await;
        }
        Ok(())
    }

    fn start(&self, leased: &Leased) -> std::io::Result<Child> {
        let Some((name, arguments)) = self.work.command.split_first() else {
            return Err(ErrorKind::NotFound.into());
        };
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::piped());
        command.env("DURAMEN_LEASE", &leased.lease);
        command.env("DURAMEN_DELIVERIES", leased.deliveries.to_string());
        // No variable has a zero byte.
        match leased.queue.as_ref().filter(|it| !it.contains(&0)) {
            Some(queue) => command.env("DURAMEN_QUEUE", OsStr::from_bytes(queue)),
            None => command.env_remove("DURAMEN_QUEUE"),
        };
        // A terminal's Ctrl-C does not reach another process group.
        command.process_group(0).spawn()
    }

    async fn settle_and_tell(
        &self,
        leased: &Leased,
        decision: Decision,
        delay: Duration,
        status: Option<ExitStatus>,
    ) {
        let problem = self.settle(leased, decision, delay).await.err();
        self.tell(leased, decision, delay, status, problem);
    }

    /// Settles a lease. A refusal that may pass is no reason to give up at once: the work is done.
    async fn settle(
        &self,
        leased: &Leased,
        decision: Decision,
        delay: Duration,
    ) -> Result<(), Problem> {
        let Crew { topic, group, worker, .. } = &self.work.crew;
        let request = SettleRequest {
            topic: topic.clone(),
            group: group.clone(),
            worker: worker.clone(),
            settlements: vec![settlement(&leased.lease, decision, delay)],
        };
        let mut attempt = 1;
        loop {
            match self.client.clone().settle(request.clone()).await {
                Ok(answer) => {
                    let unsettled = answer.into_inner().unsettled.into_iter().next();
                    return unsettled.map_or(Ok(()), |it| Err(it.problem.unwrap_or_default()));
                }
                Err(status) if attempt < ATTEMPTS && may_pass(&status) => {
                    attempt += 1;
                    tokio::time::sleep(REST).await;
                }
                Err(status) => {
                    let (reason, detail) = (status.code().to_string(), failure(status).to_string());
                    return Err(Problem { reason, detail, ..Problem::default() });
                }
            }
        }
    }

    /// Tells the outcome of a message.
    fn tell(
        &self,
        leased: &Leased,
        decision: Decision,
        delay: Duration,
        status: Option<ExitStatus>,
        problem: Option<Problem>,
    ) {
        let outcome = Outcome {
            lease: &leased.lease,
            queue: text_of(leased.queue.as_deref()),
            deliveries: leased.deliveries,
            decision: done(decision),
            delay_ms: super::workers::in_ms(delay),
            exit: status.map(|it| it.to_string()),
            problem: problem.map(|it| it.detail),
        };
        let text = match self.work.crew.node.output {
            Output::Json => serde_json::to_string(&outcome).expect("text and numbers"),
            Output::Table => outcome.text(),
        };
        eprintln!("{text}");
    }
}

/// Outcome of a message.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    lease: &'a str,
    queue: String,
    deliveries: u32,
    decision: &'static str,
    delay_ms: u64,
    /// End of the command.
    exit: Option<String>,
    /// Reason why the node did not take the decision.
    problem: Option<String>,
}

impl Outcome<'_> {
    fn text(&self) -> String {
        let Self { lease, queue, decision, .. } = self;
        let not = if self.problem.is_some() { "not " } else { "" };
        let mut text = format!("{lease}  {queue}  {not}{decision}");
        if self.delay_ms > 0 {
            write!(text, " for {} s", self.delay_ms / 1_000).expect("a string takes all");
        }
        for why in self.exit.iter().chain(&self.problem) {
            write!(text, "; {why}").expect("a string takes all");
        }
        text
    }
}

/// A running command, which ends when the task does.
struct Guard(Option<Pid>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }
}

/// Gives a command its input, and waits for its end. One need not read what it gets.
fn feed(mut child: Child, value: &[u8]) -> std::io::Result<ExitStatus> {
    let fed = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(value));
    let status = child.wait()?;
    match fed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(status),
    }
}

/// Returns what becomes of a message, by the end of its command.
fn decision_of(status: ExitStatus, deliveries: u32) -> (Decision, Duration) {
    match status.code() {
        Some(0) => (Decision::Accept, Duration::ZERO),
        Some(DATA_ERROR) => (Decision::Reject, Duration::ZERO),
        _ => (Decision::Release, delay_after(deliveries)),
    }
}

/// Returns the delay of a message that was released: twice as long after each delivery.
fn delay_after(deliveries: u32) -> Duration {
    let doubled = 1_u64.checked_shl(deliveries.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(doubled).min(DELAY_MAX)
}

/// Tells whether the same request may succeed later: no node leads the log, or the connection broke.
fn may_pass(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::DeadlineExceeded)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_exit_code_decides() {
        let after = |code: i32| decision_of(ExitStatus::from_raw(code << 8), 3);
        assert_eq!(after(0), (Decision::Accept, Duration::ZERO));
        assert_eq!(after(65), (Decision::Reject, Duration::ZERO));
        assert_eq!(after(1), (Decision::Release, Duration::from_secs(4)));
        let killed = decision_of(ExitStatus::from_raw(9), 1);
        assert_eq!(killed, (Decision::Release, Duration::from_secs(1)));
    }

    #[test]
    fn delays_double_up_to_five_minutes() {
        for (deliveries, seconds) in [(0, 1), (1, 1), (2, 2), (9, 256), (10, 300), (1_000, 300)] {
            assert_eq!(delay_after(deliveries), Duration::from_secs(seconds), "{deliveries}");
        }
    }
}
