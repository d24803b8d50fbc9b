//! `AppendFast` (key 10002, ours): a batch that a client sends to each member of a partition's stretch at once. A
//! member is the leader or one of a few followers, and each answers once its disk has the batch. No leader need have
//! ordered it before.
//!
//! An append is done once the leader said *appended* and each other member *held*, all under the same stretch. One
//! *committed* is enough by itself. The stretch comes from `DescribeFast`, or from an answer of the leader.
//!
//! Batches are those of Produce, one a partition. Each has a producer id and a sequence, is part of no transaction,
//! carries no guard, and is of at most 1 MiB. Of a partition that is named twice, the last batch counts.
//!
//! `outcome` is a statement about the batch:
//!
//! | Outcome | From | Meaning |
//! |---|---|---|
//! | 0, not now | anyone | nothing is promised; the batch may be in the log nevertheless |
//! | 1, held | a follower | the batch is on its disk, for the stretch |
//! | 2, appended | the leader | the batch is in its log, on its disk, and counts in the stretch |
//! | 3, committed | anyone | the batch is in the log for good; `base_offset` says where |
//! | 4, uncounted | the leader | as 2, but it counts in no stretch |
//!
//! Outcomes 1 and 2 count in the stretch that the request named, whichever stretch the answer names.
//!
//! A request with `wait=0` goes to every member, and is never refused for good. `error_code` is always 0. With outcome
//! 0, `error_message` says why, in words or by the name of an error.
//!
//! A request with `wait=1` goes to the leader, and waits for the commit as Produce with `acks=all` does. An error comes
//! with outcome 0, and is one of Produce's. Without `records` it asks after the batch of the named ids: outcome 3, or 0
//! without an error if the leader does not know it. Ids that no batch has, and another `wait`, are `INVALID_REQUEST`.
//!
//! Where the topic's `fast.append.enable` is false, each request with `wait=0` gets outcome 0.

use bytes::Bytes;

use crate::messages::declare::declare;
use crate::wire::{Few, Uuid};

declare! {
    /// Request of `AppendFast`. `wait` is 0 or 1. `timeout_ms` bounds the wait, as in Produce; 0 stands for a second.
    pub struct AppendFastRequest: versions 0..=0, flexible 0.. {
        wait: i8 [0..],
        timeout_ms: i32 [0..],
        topics: Few<AppendFastTopic> [0..],
    }

    /// Stands in [`AppendFastRequest::topics`].
    pub struct AppendFastTopic {
        topic_id: Uuid [0..],
        partitions: Few<AppendFastPartition> [0..],
    }

    /// Stands in [`AppendFastTopic::partitions`]. The stretch is -1, -1 where the client knows none. The producer's id
    /// and epoch and the first and last sequence matter only if `records` is null: they name the batch that is asked
    /// after.
    pub struct AppendFastPartition {
        index: i32 [0..],
        stretch_term: i64 [0..] = -1,
        stretch_index: i64 [0..] = -1,
        producer_id: i64 [0..] = -1,
        producer_epoch: i16 [0..] = -1,
        first_sequence: i32 [0..] = -1,
        last_sequence: i32 [0..] = -1,
        records: Option<Bytes> [0.., nullable 0..],
    }

    /// Response of `AppendFast`.
    pub struct AppendFastResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        topics: Few<AppendedFastTopic> [0..],
    }

    /// Stands in [`AppendFastResponse::topics`].
    pub struct AppendedFastTopic {
        topic_id: Uuid [0..],
        partitions: Few<AppendedFast> [0..],
    }

    /// Stands in [`AppendedFastTopic::partitions`]. The stretch is the one that the leader has open now: -1, -1 and no
    /// members from a follower, or if none is. Members are broker ids, the leader first. The leader is the one that the
    /// node knows, or -1.
    pub struct AppendedFast {
        index: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        outcome: i8 [0..],
        stretch_term: i64 [0..] = -1,
        stretch_index: i64 [0..] = -1,
        leader_id: i32 [0..] = -1,
        leader_epoch: i32 [0..] = -1,
        members: Vec<i32> [0..],
        base_offset: i64 [0..] = -1,
        log_start_offset: i64 [0..] = -1,
    }
}
