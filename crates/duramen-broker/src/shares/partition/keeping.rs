//! Storage of a share partition's decisions by the coordinator, and of dead letters in their topic.

use duramen_protocol::ErrorCode;
use duramen_storage::sabotage::{self, Bug};

use super::{Dying, Outcome, Phase, Range, Run, Saved, SharePartition, StateBatch, Write};

/// Writes to the coordinator, and dead letters.
impl SharePartition {
    /// Returns the next changes to make durable, if no write is under way.
    pub(crate) fn next_write(&mut self) -> Option<Write> {
        if self.sent.is_some() {
            return None;
        }
        let mut places = std::mem::take(&mut self.due);
        places.sort_unstable();
        let mut sent = Vec::new();
        let mut done = 0;
        let mut batches: Vec<StateBatch> = Vec::new();
        for place in places {
            let due: Vec<(Range, i8, i16)> = self
                .within(place)
                .filter(|(_, run)| run.saved == Saved::Due)
                .map(|(range, run)| match run.phase {
                    Phase::Settling { to, .. } => (range, to.code(), run.deliveries),
                    // The record was released, and acquired again since.
                    Phase::Acquired { .. } => {
                        (range, Outcome::Available.code(), run.deliveries - 1)
                    }
                    _ => (range, Outcome::Available.code(), run.deliveries),
                })
                .collect();
            for (range, state, count) in due {
                self.update(range, |run| run.saved = Saved::Sent);
                sent.push(range);
                if state != Outcome::Available.code() {
                    done += range.1 - range.0 + 1;
                }
                match batches.last_mut() {
                    Some(it) if (it.last + 1, it.state, it.count) == (range.0, state, count) => {
                        it.last = range.1;
                    }
                    _ => batches.push(StateBatch { first: range.0, last: range.1, state, count }),
                }
            }
        }
        let is_start_due = std::mem::take(&mut self.is_start_due);
        if sent.is_empty() && !is_start_due {
            return None;
        }
        let start = self.start_after_write();
        let left = self.unfinished - done;
        batches.retain_mut(|it| {
            it.first = it.first.max(start);
            it.first <= it.last
        });
        let complete = i32::try_from(self.end - start - left).unwrap_or(i32::MAX);
        assert!(left >= 0, "a write finishes {done} of {} records at most", self.unfinished);
        assert!(complete >= 0, "{complete} records after the start {start} are done with");
        debug_assert!(
            batches.is_sorted_by(|a, b| a.last < b.first),
            "the batches of a write are in order, and apart"
        );
        debug_assert!(
            batches.iter().all(|it| it.count >= 0 && it.last < self.end),
            "a write has records of the window, with their counts"
        );
        let write = Write { start, complete, batches };
        self.sent = Some((write.clone(), sent));
        self.inspect();
        Some(write)
    }

    /// Returns the start after the write under way becomes durable.
    fn start_after_write(&self) -> i64 {
        let is_passed = |run: &Run| match run.phase {
            Phase::Done => true,
            Phase::Settling { to, .. } => {
                let is_over = to != Outcome::Available || sabotage::is(Bug::StartPassesAvailable);
                is_over && run.saved == Saved::Sent
            }
            _ => false,
        };
        let first = self.runs.iter().find(|(_, run)| !is_passed(run));
        first.map_or(self.end, |(first, _)| *first)
    }

    /// Returns the write that is under way, to send it again.
    pub(crate) fn sent(&self) -> Option<&Write> {
        self.sent.as_ref().map(|(write, _)| write)
    }

    /// Takes the news that the write under way is durable.
    pub(crate) fn on_written(&mut self) {
        let Some((_, places)) = self.sent.take() else { return };
        for place in places {
            let settled: Vec<(Range, Outcome, Option<u64>)> = self
                .within(place)
                .filter(|(_, run)| run.saved == Saved::Sent)
                .filter_map(|(range, run)| match run.phase {
                    Phase::Settling { to, ticket } => Some((range, to, ticket)),
                    _ => None,
                })
                .collect();
            for (range, to, ticket) in settled {
                if to != Outcome::Available {
                    self.finish(range);
                    continue;
                }
                self.update(range, |run| run.phase = Phase::Available);
                self.scan_from = self.scan_from.min(range.0);
                self.begin_waits(range);
                self.count_down(ticket, range.1 - range.0 + 1);
            }
            self.update(place, |run| {
                if run.saved == Saved::Sent {
                    run.saved = Saved::Yes;
                }
            });
        }
        self.advance();
    }

    /// Returns the records that need dead letters, each one once.
    pub(crate) fn take_dying(&mut self) -> Vec<Dying> {
        if !std::mem::take(&mut self.is_dying) {
            return Vec::new();
        }
        let found: Vec<Dying> = self
            .runs
            .iter()
            .filter_map(|(&first, run)| match run.phase {
                Phase::Dying { reason, is_asked: false, .. } => {
                    Some(Dying { first, last: run.last, deliveries: run.deliveries, reason })
                }
                _ => None,
            })
            .collect();
        for it in &found {
            self.update((it.first, it.last), |run| {
                if let Phase::Dying { is_asked, .. } = &mut run.phase {
                    *is_asked = true;
                }
            });
        }
        found
    }

    /// Answers the requests that wait for dead letters with an error, because the dead letters cannot be stored yet.
    pub(crate) fn fail_dying(&mut self, code: ErrorCode) {
        let waiting = self.runs.values().filter_map(|run| match run.phase {
            Phase::Dying { ticket, .. } => ticket,
            _ => None,
        });
        let waiting: Vec<u64> = waiting.collect();
        let tickets = &mut self.tickets;
        let failed = waiting.into_iter().filter(|ticket| tickets.remove(ticket).is_some());
        self.answers.extend(failed.map(|ticket| (ticket, code)));
    }

    /// Takes the news that the dead letters of these offsets are durable.
    pub(crate) fn on_buried(&mut self, first: i64, last: i64) {
        let range = (first.max(self.start), last.min(self.end - 1));
        if range.0 > range.1 {
            return;
        }
        let dying: Vec<(Range, Option<u64>)> = self
            .within(range)
            .filter_map(|(range, run)| match run.phase {
                Phase::Dying { ticket, is_asked: true, .. } => Some((range, ticket)),
                _ => None,
            })
            .collect();
        for (range, ticket) in dying {
            self.settle(range, Outcome::Archived, ticket);
        }
        self.inspect();
    }
}
