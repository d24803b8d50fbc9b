//! Requests that wait for a partition's log: each completes once.

use duramen_protocol::ErrorCode;

use super::{Acks, Appended, Effects, Finished, Growth, Partition, Waiting};

impl Partition {
    pub(super) fn wait(
        &mut self,
        index: u64,
        acks: Acks,
        waiting: Waiting,
        append_time_ms: i64,
    ) -> Appended {
        assert!(
            index > self.group.applied() || acks == Acks::Own,
            "an applied entry is not awaited"
        );
        assert_ne!(acks, Acks::None, "an append without acknowledgement is not awaited");
        self.waited += 1;
        let queue = match acks {
            Acks::Own => &mut self.waiting_persist,
            _ => &mut self.waiting_commit,
        };
        queue.insert((index, self.waited), waiting);
        Appended::Waits { append_time_ms }
    }

    pub(super) fn finish(&mut self, effects: &mut Effects) {
        self.end_kept(effects);
        let ends = [self.group.applied(), self.group.persisted()];
        let log_start = self.log_start;
        let queues = [&mut self.waiting_commit, &mut self.waiting_persist];
        for (queue, end) in queues.into_iter().zip(ends) {
            while let Some(first) = queue.first_entry() {
                if first.key().0 > end {
                    break;
                }
                let Waiting { slot, base_offset } = first.remove();
                assert!(
                    base_offset < self.group.end_offset(),
                    "offset {base_offset} is in the log when its append completes"
                );
                let error = ErrorCode::None;
                effects.finished.push(Finished { slot, error, base_offset, log_start });
            }
        }
    }

    pub(super) fn refuse_for_certain(&mut self, effects: &mut Effects) {
        if self.doubted.is_empty() {
            return;
        }
        let other = self.obstacle().unwrap_or(ErrorCode::NotLeaderOrFollower);
        let log_start = self.log_start;
        let known = self.doubted.settle(|doubt| self.group.led_at(doubt)).into_iter();
        effects.finished.extend(known.map(|(led, (slot, code))| {
            let error = if led { code } else { other };
            Finished { slot, error, base_offset: -1, log_start }
        }));
    }

    pub(super) fn fail_waiting(&mut self, from: u64, error: ErrorCode, effects: &mut Effects) {
        let log_start = self.log_start;
        let finished = |slot| Finished { slot, error, base_offset: -1, log_start };
        for queue in [&mut self.waiting_commit, &mut self.waiting_persist] {
            let failed = queue.split_off(&(from, 0)).into_values();
            effects.finished.extend(failed.map(|waiting| finished(waiting.slot)));
        }
    }

    /// Ends all waits: the replica is being deleted.
    pub(crate) fn close(&mut self, effects: &mut Effects) {
        let error = ErrorCode::UnknownTopicOrPartition;
        self.fail_waiting(0, error, effects);
        self.drop_kept(error);
        self.end_kept(effects);
        self.end_holding(error, effects);
        let log_start = self.log_start;
        let finished = |(slot, _)| Finished { slot, error, base_offset: -1, log_start };
        effects.finished.extend(self.doubted.drain().map(finished));
        assert!(self.doubted.is_empty(), "no request waits for a replica that is deleted");
        assert!(
            self.waiting_commit.is_empty() && self.waiting_persist.is_empty(),
            "no append waits for a replica that is deleted"
        );
        effects.served.append(&mut self.creators);
        effects.woken.extend(self.fetches.iter().map(|key| (*key, Growth::default())));
        effects.touched.extend(self.watchers.iter().map(|watcher| (*watcher, Growth::default())));
    }
}
