//! `duramen consume --group`: a member of a consumer group that prints the records of its partitions.
//!
//! The member commits offsets of records that it printed and flushed: about once a second, before it revokes
//! partitions, and at the end. The next owner of a partition may therefore repeat records, and skips none.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, anyhow};
use duramen_client::{
    ByPartition, Client, Error, FetchOptions, Fetcher, Member, MemberOptions, Partitions, Standing,
};
use duramen_protocol::error_code::ErrorCode;
use tokio::time::{Instant, timeout};

use super::{Consume, Printer};
use crate::cli::bootstrap::{Interrupt, Interrupted};
use crate::cli::missing::unknown_topic;
use crate::cli::place::Bounds;
use crate::cli::screen;

/// Time between two commits. After a crash, the records of this time may be printed twice.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// Longest time of the last commit.
const LAST_COMMIT_TIME: Duration = Duration::from_secs(10);
/// Bytes of a partition in one response, fewer than for a lone reader: the group waits until the member has printed a
/// response.
const PARTITION_BYTES: i32 = 1 << 20;

/// Runs the command. The heartbeat needs a thread of its own, because a slow reader of the output blocks printing.
pub(super) fn run(command: &Consume, group: &str) -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the client's runtime")?;
    let outcome = runtime.block_on(consume(command, group));
    runtime.shutdown_background();
    outcome
}

async fn consume(command: &Consume, group: &str) -> anyhow::Result<()> {
    let mut interrupt = Interrupt::listen()?;
    let client = tokio::select! {
        client = command.cluster.connect() => client?,
        () = interrupt.comes() => return Err(Interrupted.into()),
    };
    let mut options = MemberOptions::new(group, [command.topic.clone()]);
    options.instance_id.clone_from(&command.instance_id);
    options.session_timeout = Duration::from_secs(command.session_seconds);
    let mut membership = Membership {
        command,
        group,
        member: Member::new(&client, options),
        client,
        printer: command.printer(),
        ends: BTreeMap::new(),
        printed: BTreeMap::new(),
        committed: Instant::now(),
    };
    let outcome = tokio::select! {
        outcome = membership.read() => outcome,
        () = interrupt.comes() => Err(Interrupted.into()),
    };
    membership.printer.bar.finish_and_clear();
    tokio::select! {
        ended = membership.end() => match (outcome, ended) {
            (Err(outcome), Err(ended)) => {
                eprintln!("{ended:#}");
                Err(outcome)
            }
            (outcome, ended) => outcome.and(ended),
        },
        // A second signal ends the command at once.
        () = interrupt.comes() => Err(Interrupted.into()),
    }
}

struct Membership<'a> {
    command: &'a Consume,
    group: &'a str,
    client: Client,
    member: Member,
    printer: Printer,
    /// Offsets at which to stop without `--follow`, by partition: its end when this member first got it.
    ends: BTreeMap<i32, i64>,
    /// Offset after the last printed record, by partition, until it is committed.
    printed: BTreeMap<i32, i64>,
    committed: Instant,
}

impl Membership<'_> {
    /// Joins again and again, and prints in between.
    async fn read(&mut self) -> anyhow::Result<()> {
        let topic = &self.command.topic;
        self.client.topic(topic, false).await.map_err(unknown_topic(topic))?;
        loop {
            let assigned = self.member.join().await.map_err(|error| self.explain(error))?;
            let partitions = assigned.get(topic).cloned().unwrap_or_default();
            self.tell(&partitions);
            if self.read_assigned(&partitions).await? {
                return Ok(());
            }
        }
    }

    /// Prints records of the assigned partitions. Returns false on a rebalance, and true when all is done.
    async fn read_assigned(&mut self, partitions: &[i32]) -> anyhow::Result<bool> {
        let command = self.command;
        let mut out = screen::stdout();
        let positions = self.positions(partitions).await?;
        let options =
            FetchOptions { partition_max_bytes: PARTITION_BYTES, ..command.fetch_options() };
        let mut fetcher = Fetcher::new(self.client.clone(), &command.topic, positions, options);
        loop {
            let reading = !fetcher.positions().is_empty();
            if self.printer.left == 0 || (!reading && !command.follow) {
                return Ok(true);
            }
            let asked = fetcher.positions().clone();
            let polled = tokio::select! {
                standing = self.member.disturbed() => {
                    self.give_up(standing).await?;
                    return Ok(false);
                }
                polled = fetcher.poll(), if reading => polled,
            };
            let parts = match polled {
                Ok(parts) => parts,
                Err(error) if error.code() == Some(ErrorCode::OffsetOutOfRange) => {
                    // Retention was faster, or the topic was created again: find the positions again.
                    self.commit().await?;
                    let positions = self.positions(partitions).await?;
                    fetcher = Fetcher::new(self.client.clone(), &command.topic, positions, options);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut printed = BTreeMap::new();
            for part in parts {
                let first = asked.get(&part.partition).copied().unwrap_or(0);
                let end = self.ends.get(&part.partition).copied();
                let next = self.printer.print(&mut out, &part, first, end)?;
                if next > first {
                    printed.insert(part.partition, next);
                }
                if end.is_some_and(|end| part.next_offset >= end) {
                    fetcher.stop(part.partition);
                }
            }
            out.flush()?;
            self.printed.extend(printed);
            if self.committed.elapsed() >= COMMIT_EVERY {
                match self.commit().await {
                    Ok(()) => {}
                    // The heartbeat gets the same error, and the loop then handles it.
                    Err(error) if is_disturbance(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Finds the next offset to read in these partitions. Without `--follow`, leaves out those read to the end.
    async fn positions(&mut self, partitions: &[i32]) -> anyhow::Result<BTreeMap<i32, i64>> {
        let topic = &self.command.topic;
        if partitions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let of = Partitions::from([(topic.clone(), partitions.to_vec())]);
        let committed = self.member.committed(&of).await?.remove(topic).unwrap_or_default();
        let bounds = Bounds::find(&self.client, topic, partitions).await?;
        let without = bounds.iter().filter(|(partition, _)| !committed.contains_key(partition));
        let without: BTreeMap<i32, Bounds> = without.map(|(key, held)| (*key, *held)).collect();
        let mut positions = self.command.from.find(&self.client, topic, &without).await?;
        for (partition, committed) in committed {
            let Some(held) = bounds.get(&partition) else { continue };
            let position = held.clamp(committed.offset);
            if position != committed.offset {
                let offset = committed.offset;
                self.say(&format!(
                    "offset {offset} is gone from partition {partition}, which {held}; going on at {position}"
                ));
            }
            positions.insert(partition, position);
        }
        if !self.command.follow {
            for (partition, end) in self.command.ends(&self.client, &bounds).await? {
                self.ends.entry(partition).or_insert(end);
            }
            positions.retain(|partition, position| *position < self.ends[partition]);
        }
        Ok(positions)
    }

    /// Commits the printed offsets while the member still may.
    async fn give_up(&mut self, standing: Standing) -> anyhow::Result<()> {
        if standing == Standing::Gathering {
            match self.commit().await {
                Ok(()) => return Ok(()),
                Err(error) if is_disturbance(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !self.printed.is_empty() {
            self.say("the group went on without this member; its last records are read again");
            self.printed.clear();
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), Error> {
        if !self.printed.is_empty() {
            let topic = self.command.topic.clone();
            let offsets = ByPartition::from([(topic, self.printed.clone())]);
            self.member.commit(&offsets).await?;
            self.printed.clear();
        }
        self.committed = Instant::now();
        Ok(())
    }

    /// Commits and leaves.
    async fn end(mut self) -> anyhow::Result<()> {
        let committed = timeout(LAST_COMMIT_TIME, self.commit()).await;
        self.member.leave().await;
        let why = "cannot commit the last printed records, which will be read again";
        match committed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(anyhow::Error::new(error).context(why)),
            Err(_) => Err(anyhow!("{why}: the group's coordinator does not answer")),
        }
    }

    fn tell(&self, partitions: &[i32]) {
        let generation = self.member.generation();
        let (group, topic) = (self.group, &self.command.topic);
        let mut sorted = partitions.to_vec();
        sorted.sort_unstable();
        let read = match screen::runs(&sorted) {
            none if none.is_empty() => "nothing: others read all partitions".to_owned(),
            runs => format!("{topic}:{runs}"),
        };
        self.say(&format!("group {group}, generation {generation}: reading {read}"));
    }

    fn say(&self, line: &str) {
        if !self.command.quiet {
            self.printer.bar.suspend(|| eprintln!("{line}"));
        }
    }

    fn explain(&self, error: Error) -> anyhow::Error {
        let group = self.group;
        let advice = match error.code() {
            Some(ErrorCode::InconsistentGroupProtocol) => format!(
                "the other members of group {group} use assignment strategies that this one does not support; it \
                 supports range and roundrobin (partition.assignment.strategy of the others)"
            ),
            Some(ErrorCode::FencedInstanceId) => {
                let id = self.command.instance_id.as_deref().unwrap_or_default();
                format!("another process took over the place of --instance-id {id}")
            }
            Some(ErrorCode::InvalidSessionTimeout) => {
                "the broker's group.min.session.timeout.ms and group.max.session.timeout.ms bound --session-seconds"
                    .into()
            }
            Some(ErrorCode::GroupMaxSizeReached) => format!("group {group} is full"),
            _ => return error.into(),
        };
        anyhow::Error::new(error).context(advice)
    }
}

/// True for an error that tells of a rebalance, or that the group continues without this member.
fn is_disturbance(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(
            ErrorCode::RebalanceInProgress
                | ErrorCode::IllegalGeneration
                | ErrorCode::UnknownMemberId
                | ErrorCode::FencedInstanceId
        )
    )
}
