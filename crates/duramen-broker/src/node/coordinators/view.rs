//! # Room card: views
//!
//! Purpose:    the common shape of all coordinators: each is a view of one log, appends to it, and keeps it small.
//! Owns:       [`View`], its [`Effect`]s, and the table of views.
//! Interface:  [`View`]; [`Kind::of`] a topic; [`replay`].
//! Invariants: a view is pure: a log, requests and time go in, effects come out.
//! Never:      Raft, storage, other nodes.
//! Tests:      `node/tests/coordinators.rs`; each view has its own.
//! Start at:   [`View`], then [`VIEWS`]: another view is one row there and one file beside this one.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::batches;
use duramen_protocol::records::Records;
use duramen_protocol::wire::{EncodeError, Uuid};
use duramen_storage::Descriptor;

use crate::configs::{BrokerSettings, bounds_of_group};
use crate::controller::image::Image;
use crate::core::{Core, Signal, Then};
use crate::event::{Now, RequestKey};
use crate::groups::consumer::Topics;
use crate::groups::coordinator::{self as groups, Transactor};
use crate::groups::{Assignor, ConsumerRules, Migration, Rules, ShareRules};
use crate::internal_topics::{GROUPS, SHARES, TRANSACTIONS, is_coordinated};
use crate::ledger::Encoded;
use crate::limits::DECOMPRESSED_BYTES_MAX;
use crate::shares::ShareKey;
use crate::shares::coordinator::{self as shares, Ask};
use crate::transactions::coordinator::{self as transactions, Mark};

/// One kind of view.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Topic whose partitions the views are of.
    pub(crate) topic: &'static str,
    pub(super) new: fn(&Settings) -> Box<dyn View>,
}

static VIEWS: [Kind; 3] = [
    Kind { topic: GROUPS, new: |_| Box::new(groups::Coordinator::new()) },
    Kind { topic: TRANSACTIONS, new: |_| Box::new(transactions::Coordinator::default()) },
    Kind { topic: SHARES, new: |it| Box::new(shares::Coordinator::new(it.share_updates_max)) },
];

impl Kind {
    /// Returns the kind of a topic's coordinators, if it has any.
    pub(crate) fn of(topic: &str) -> Option<&'static Self> {
        let kind = VIEWS.iter().find(|kind| kind.topic == topic);
        assert_eq!(
            kind.is_some(),
            is_coordinated(topic),
            "{topic}: topics of coordinators have a kind"
        );
        kind
    }
}

/// A coordinator, as the node runs it.
pub(super) trait View: Any + Debug + Send {
    /// Applies a record of the log; `producer` is the one whose transaction it is part of.
    fn replay(
        &mut self,
        offset: i64,
        key: Bytes,
        value: Option<Bytes>,
        producer: Option<i64>,
    ) -> Result<(), String>;

    /// Tells whether such a log has transactions. If not, a marker in it is damage.
    fn has_transactions(&self) -> bool {
        false
    }

    /// Applies the end of a transaction in the log.
    fn replay_marker(&mut self, _producer_id: i64, _commits: bool) {}

    /// Begins to serve, once the log was read to its end, in the term `epoch`.
    fn loaded(&mut self, _sight: Sight<'_>, _epoch: i32, _now: Now) {}

    /// Refuses all that waits, because another node coordinates now.
    fn unload(&mut self);

    /// Returns the time at which [`View::on_time`] is due if nothing happens before, in monotonic microseconds.
    fn deadline_us(&self) -> Option<u64> {
        None
    }

    fn on_time(&mut self, _now: Now) {}

    /// Takes the result of an append: its offset, or the reason why it is not in the log.
    fn on_appended(&mut self, ticket: u64, result: Result<i64, ErrorCode>, now: Now);

    /// Goes on with work that needs a sight of the cluster.
    fn go_on(&mut self, _sight: Sight<'_>, _now: Now) {}

    /// Takes the effects since the last call, in their order.
    fn take_effects(&mut self) -> Vec<Effect>;

    /// Returns the number of live records, and their approximate size in bytes.
    fn live_size(&self) -> (usize, usize);

    /// Returns the offset of the first live record: those below may go.
    fn first_live(&self) -> Option<i64>;

    /// Appends live records below an offset again, about `bytes_max` of them. Returns the ticket, if there are any.
    fn renew(&mut self, before: i64, bytes_max: usize) -> Option<u64>;

    /// Forgets what is unused for too long, over about `max` names after one.
    fn expire(
        &mut self,
        sight: Sight<'_>,
        now: Now,
        after: Option<&Arc<str>>,
        max: usize,
    ) -> Expired;

    /// Forgets its state of a topic that was deleted.
    fn forget_topic(&mut self, _name: &str, _id: Uuid, _now: Now) {}

    /// Checks the view's invariants, after its effects were carried out.
    fn inspect(&self) {}

    /// Forgets the state that [`Expired::kept`] named, of a topic that is certainly gone.
    fn forget_kept(&mut self, _topic_id: Uuid, _now: Now) {}
}

/// Result of one slice of an expiry.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// Last name of the slice, if others follow.
    pub seen: Option<Arc<str>>,
    /// Topics of which there is state for the slice's names.
    pub kept: BTreeSet<Uuid>,
}

/// Effect of a view on the rest of the node.
#[derive(Debug)]
pub(super) enum Effect {
    /// A request goes on.
    Signal(Signal),
    /// An answer. If no record was written for it, a leadership check comes first.
    Answer { then: Then, is_written: bool },
    /// Records to append as one batch, as part of a producer's transaction if there is a transactor. The view gets the
    /// result.
    Append {
        ticket: u64,
        records: Result<Vec<Encoded>, EncodeError>,
        transactor: Option<Transactor>,
    },
    /// A question for the coordinator of a share group's stored state.
    AskShares(ShareKey, Ask),
    /// A transactional id needs a producer id.
    WantProducerId(Arc<str>),
    /// A marker for a partition.
    Mark(Mark),
    /// A request is void, and its connection is closed.
    Close { key: RequestKey, reason: &'static str },
}

/// Settings of all views.
#[derive(Debug)]
pub(super) struct Settings {
    pub rules: Rules,
    /// Time for which an unused transactional id is kept, in milliseconds.
    transactional_id_expiration_ms: i64,
    /// Updates of a share group's state between two snapshots.
    share_updates_max: u32,
}

/// State of the node that a view sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    /// Settings of all groups.
    pub rules: &'a Rules,
    /// The cluster's metadata, with its topics.
    pub image: &'a Image,
    /// The same, for groups that follow them.
    pub topics: Topics<'a>,
    /// Time for which an unused transactional id is kept, in milliseconds.
    pub transactional_id_expiration_ms: i64,
}

impl Settings {
    pub(super) fn of(settings: &BrokerSettings) -> Self {
        let (min, max) =
            (settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms);
        let rules = Rules {
            initial_delay_ms: settings.group_initial_rebalance_delay_ms,
            session_timeout_ms: min..=max,
            members_max: usize::try_from(settings.group_max_size).unwrap_or(usize::MAX),
            metadata_max: usize::try_from(settings.offset_metadata_max_bytes).unwrap_or(0),
            retention_ms: i64::from(settings.offsets_retention_minutes) * 60_000,
            consumer: consumer_rules(settings),
            share: ShareRules {
                session_timeout_ms: settings.group_share_session_timeout_ms,
                session_timeout_bounds_ms: bounds_of_group("share.session.timeout.ms", settings),
                heartbeat_interval_ms: settings.group_share_heartbeat_interval_ms,
                heartbeat_interval_bounds_ms: bounds_of_group(
                    "share.heartbeat.interval.ms",
                    settings,
                ),
                members_max: usize::try_from(settings.group_share_max_size).unwrap_or(usize::MAX),
            },
        };
        Self {
            rules,
            transactional_id_expiration_ms: i64::from(settings.transactional_id_expiration_ms),
            share_updates_max: u32::try_from(settings.share_updates_per_snapshot).unwrap_or(0),
        }
    }

    /// Returns the sight of the cluster, at a version of its topics.
    pub(super) fn sight<'a>(&'a self, core: &'a Core, version: u64) -> Sight<'a> {
        let image = &core.controller.image;
        Sight {
            rules: &self.rules,
            image,
            topics: Topics { access: &core.access, image, version },
            transactional_id_expiration_ms: self.transactional_id_expiration_ms,
        }
    }
}

fn consumer_rules(settings: &BrokerSettings) -> ConsumerRules {
    let assignors = settings.group_consumer_assignors.split(',').map(str::trim);
    ConsumerRules {
        session_timeout_ms: settings.group_consumer_session_timeout_ms,
        session_timeout_bounds_ms: bounds_of_group("consumer.session.timeout.ms", settings),
        heartbeat_interval_ms: settings.group_consumer_heartbeat_interval_ms,
        heartbeat_interval_bounds_ms: bounds_of_group("consumer.heartbeat.interval.ms", settings),
        members_max: usize::try_from(settings.group_consumer_max_size).unwrap_or(usize::MAX),
        assignors: assignors.filter_map(Assignor::named).collect(),
        migration: Migration::named(&settings.group_consumer_migration_policy)
            .unwrap_or(Migration::Disabled),
        assignment_interval_ms: settings.group_consumer_assignment_interval_ms,
        assignment_interval_bounds_ms: bounds_of_group("consumer.assignment.interval.ms", settings),
        regex_refresh_ms: settings.group_consumer_regex_refresh_interval_ms,
    }
}

/// Gives a coordinator the records of whole batches from offset `at` on, but below `end`. Returns the offset after
/// them.
pub(super) fn replay(view: &mut dyn View, bytes: Bytes, at: i64, end: i64) -> Result<i64, String> {
    let mut next = at;
    for batch in batches(bytes) {
        let batch = batch.map_err(|error| error.to_string())?;
        let header = batch.header();
        if header.base_offset > next {
            return Err(format!("offset {next} is missing"));
        }
        let described = Descriptor::of_batch(batch.bytes(), false).map_err(|it| it.to_string())?;
        let producer = described.transactional.then_some(described.producer_id);
        if described.control {
            let is_ours = producer.is_some() && view.has_transactions();
            let Some(marker) = described.marker.filter(|_| is_ours) else {
                return Err(format!("the control batch at {} is none of ours", header.base_offset));
            };
            if header.base_offset >= at && header.end_offset() <= end {
                view.replay_marker(described.producer_id, marker.commits);
            }
            next = header.end_offset();
            continue;
        }
        let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).map_err(|it| it.to_string())?;
        for record in &records {
            let record = record.map_err(|error| error.to_string())?;
            let offset = records.offset(&record);
            if !(at..end).contains(&offset) {
                continue;
            }
            // Copied, so that what is kept of a record does not keep all that was read with it.
            let copy = |part: Option<&[u8]>| part.map(Bytes::copy_from_slice);
            let key =
                copy(record.key).ok_or_else(|| format!("the record at {offset} has no key"))?;
            let value = copy(record.value);
            let replayed = view.replay(offset, key, value, producer);
            replayed.map_err(|problem| format!("the record at {offset}: {problem}"))?;
        }
        next = header.end_offset();
    }
    if next <= at { Err(format!("there is no batch at offset {at}")) } else { Ok(next) }
}
