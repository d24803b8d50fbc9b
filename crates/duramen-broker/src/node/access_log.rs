//! # Room card: access log
//!
//! Purpose:    keep in a topic what clients tried and did (`access.log.topic.enable`).
//! Owns:       records that wait, and the batch that is on its way; how many there may be.
//! Interface:  [`AccessLog::take`]; the node calls the rest on events.
//! Invariants: at most one batch is on its way. It is sent again until it is committed: a record may be in the topic
//!             twice. Records beyond the bounds are left out, and the next record counts them.
//! Never:      the shape of a record (`access/record.rs`); the way to a partition's leader (`core/deliveries.rs`).
//! Tests:      `node/tests/access_log.rs`.
//! Start at:   [`AccessLog::take`], then [`AccessLog::on_timer`].

use std::collections::VecDeque;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::records::{BatchBuilder, NewRecord};

use crate::access::{ACCESS_LOG, AccessRecords};
use crate::core::{Core, Timer};
use crate::limits::{
    ACCESS_LOG_AGAIN_US, ACCESS_LOG_BATCH_BYTES, ACCESS_LOG_RECORDS_MAX, ACCESS_LOG_US,
    ACCESS_LOG_WAITING_BYTES_MAX,
};

const SECOND_US: u64 = 1_000_000;

/// Records of one append.
#[derive(Debug)]
struct Sent {
    nonce: u64,
    batch: Bytes,
    /// Time of the latest try, in monotonic microseconds.
    at_us: u64,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    /// Time of a record in milliseconds since 1970, and its JSON.
    waiting: VecDeque<(i64, Vec<u8>)>,
    bytes: usize,
    sent: Option<Sent>,
    /// Records that were left out since the last one that counts them.
    unsaid: u64,
    /// Second of the latest record, and the records of that second.
    second: u64,
    taken: u64,
    is_timed: bool,
    is_complained_of: bool,
}

impl AccessLog {
    /// Takes records, as far as the bounds allow.
    pub(crate) fn take(&mut self, core: &mut Core, made: &AccessRecords) {
        if made.records.is_empty() {
            return;
        }
        self.unsaid += made.left_out;
        let second = core.now.mono_us / SECOND_US;
        if second != self.second {
            (self.second, self.taken) = (second, 0);
        }
        for record in &made.records {
            // A reader of the topic would cause records for ever.
            if matches!(record.verdict, Some((_, true))) && record.resource.1 == ACCESS_LOG {
                continue;
            }
            if self.taken >= ACCESS_LOG_RECORDS_MAX || self.bytes >= ACCESS_LOG_WAITING_BYTES_MAX {
                self.unsaid += 1;
                continue;
            }
            self.taken += 1;
            let unsaid = std::mem::take(&mut self.unsaid);
            let time_ms = core.now.wall_ms;
            let json = record.to_json(core.options.facts.broker_id, time_ms, unsaid);
            self.bytes += json.len();
            self.waiting.push_back((time_ms, json));
        }
        self.time(core);
    }

    fn time(&mut self, core: &mut Core) {
        let is_idle = self.waiting.is_empty() && self.sent.is_none();
        if !is_idle && !std::mem::replace(&mut self.is_timed, true) {
            core.timers.insert((core.now.mono_us.saturating_add(ACCESS_LOG_US), Timer::AccessLog));
        }
    }

    pub(crate) fn on_timer(&mut self, core: &mut Core) {
        self.is_timed = false;
        if !core.access.keeps_records() {
            *self = Self::default();
            return;
        }
        let now_us = core.now.mono_us;
        if self.sent.is_none() {
            let batch = self.next_batch();
            self.sent = batch.map(|batch| {
                let nonce = core.chance.next();
                Sent { nonce, batch, at_us: now_us }
            });
            self.send(core);
        } else if self.sent.as_ref().is_some_and(|it| it.at_us + ACCESS_LOG_AGAIN_US <= now_us) {
            self.send(core);
        }
        self.time(core);
    }

    /// Makes a batch of the first records that wait.
    fn next_batch(&mut self) -> Option<Bytes> {
        let mut builder = BatchBuilder::new();
        while let Some((timestamp, json)) = self.waiting.front() {
            if builder.count() > 0 && builder.plain_bytes() + json.len() > ACCESS_LOG_BATCH_BYTES {
                break;
            }
            let (timestamp, value) = (*timestamp, Some(&json[..]));
            let record = NewRecord { timestamp, value, ..NewRecord::default() };
            builder.push(&record).expect("a batch of this size has room for a record");
            self.bytes -= json.len();
            self.waiting.pop_front();
        }
        (builder.count() > 0).then(|| builder.build().expect("records that were pushed"))
    }

    /// Gives the batch to the leader of the partition that this node writes to.
    fn send(&mut self, core: &mut Core) {
        let Some(sent) = &mut self.sent else { return };
        sent.at_us = core.now.mono_us;
        let Some(topic) = core.controller.image.topic_named(ACCESS_LOG) else {
            return core.make_or_want_topic(ACCESS_LOG);
        };
        let partitions = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX).max(1);
        let place = (topic.id, core.options.facts.broker_id.rem_euclid(partitions));
        let (nonce, batch) = (sent.nonce, sent.batch.clone());
        if let Err(code) = core.deliver(place, nonce, &batch) {
            self.on_delivered(core, nonce, code);
        }
    }

    /// Takes the result of a delivery. False if it was not one of this log.
    pub(crate) fn on_delivered(&mut self, core: &Core, nonce: u64, code: ErrorCode) -> bool {
        let Some(sent) = self.sent.as_mut().filter(|it| it.nonce == nonce) else { return false };
        if code.is_none() {
            (self.sent, self.is_complained_of) = (None, false);
            return true;
        }
        sent.at_us = core.now.mono_us;
        if !std::mem::replace(&mut self.is_complained_of, true) {
            let problem = code.name();
            tracing::warn!(
                problem,
                "records of {ACCESS_LOG} cannot be appended yet; this node tries again"
            );
        }
        true
    }

    /// Checks that records that wait have their turn.
    pub(crate) fn inspect(&self) {
        let is_idle = self.waiting.is_empty() && self.sent.is_none();
        assert!(self.is_timed || is_idle, "a record of the access log that waits has its turn");
    }
}
