//! Requests and answers of workers.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::super::problems::Fault;
use super::records::{As, Record, either, record};
use crate::proto;

/// A wish of a worker in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Lease {
    /// Name of the worker; a lease is settled under the same name.
    #[schema(max_length = 36)]
    pub worker: String,
    /// Most records; 0 for 1.
    #[schema(maximum = 1_000)]
    pub limit: u32,
    /// Size of the answer, about, in bytes; 0 for 1 MiB.
    #[schema(maximum = 16_777_216)]
    pub bytes: u32,
    /// Longest wait for a record, in milliseconds.
    #[schema(maximum = 60_000)]
    pub wait_ms: u32,
    /// Only records of this partition.
    #[schema(minimum = 0)]
    pub partition: Option<i32>,
    /// Form of values.
    #[serde(rename = "as")]
    #[schema(inline)]
    pub how: As,
}

/// Leases that a worker has.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Leases {
    /// In the order in which the group gives them out.
    pub leases: Vec<Leased>,
    /// Time that the worker has for them, in milliseconds.
    pub lock_ms: u32,
}

/// A record that a worker has a lease of.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Leased {
    /// Name of the lease, for its settlement.
    pub lease: String,
    /// Name of the queue, or the record's key, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_base64: Option<String>,
    pub element: Record,
    /// Number of times that the record was leased, with this one.
    pub deliveries: u32,
    pub partition: i32,
}

/// Fate of a leased record.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Decision {
    /// The work is done: nobody gets the record again.
    #[default]
    Accept,
    /// Somebody else may have the record. After its last delivery it is rejected.
    Release,
    /// The record cannot be worked off. It goes to the dead-letter topic, if the group has one.
    Reject,
    /// The worker needs more time: the lease begins anew.
    Renew,
    /// The worker has not looked at the record: as if it had never been leased.
    Unseen,
}

/// Decision on a lease.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settlement {
    pub lease: String,
    #[serde(default)]
    pub decision: Decision,
    /// With `release`: the time for which nobody gets the record, in milliseconds.
    #[serde(default)]
    pub delay_ms: u64,
}

/// Decisions of a worker in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settle {
    /// As in the lease.
    #[schema(max_length = 36)]
    pub worker: String,
    #[schema(min_items = 1, max_items = 1_000)]
    pub settlements: Vec<Settlement>,
}

/// Result of a settlement.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Settled {
    /// The leases that were not settled.
    pub unsettled: Vec<Unsettled>,
}

/// Lease that was not settled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Unsettled {
    pub lease: String,
    /// Problem document.
    #[schema(value_type = Object)]
    pub problem: Value,
}

/// Wish for dead letters to go back, in a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Redrive {
    /// Only dead letters of this group; of all groups, if empty.
    pub group: String,
    /// Most dead letters; 0 for 1,000.
    #[schema(maximum = 10_000)]
    pub limit: u32,
    /// Topic to put them into, if it is not the one that they come from.
    pub to: String,
}

/// Dead letters that went back.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Redriven {
    /// Dead letters that were put back.
    pub moved: u32,
    /// Those that stay: of another group, of a topic that is gone, or no dead letters.
    pub left: u32,
    /// There may be more.
    pub more: bool,
}

impl Lease {
    pub(crate) fn message(self, topic: String, group: String) -> (proto::LeaseRequest, As) {
        let Self { worker, limit, bytes, wait_ms, partition, how } = self;
        (proto::LeaseRequest { topic, group, worker, limit, bytes, wait_ms, partition }, how)
    }
}

impl Leases {
    pub(crate) fn of(it: proto::LeaseResponse, how: As) -> Self {
        let leased = |it: proto::Leased| {
            let (queue, queue_base64) = either(it.queue, how);
            Leased {
                lease: it.lease,
                queue,
                queue_base64,
                element: record(it.element.unwrap_or_default(), how),
                deliveries: it.deliveries,
                partition: it.partition,
            }
        };
        Self { leases: it.leases.into_iter().map(leased).collect(), lock_ms: it.lock_ms }
    }
}

impl Settle {
    pub(crate) fn message(self, topic: String, group: String) -> proto::SettleRequest {
        let settlement = |it: Settlement| {
            let decision = match it.decision {
                Decision::Accept => proto::Decision::Accept,
                Decision::Release => proto::Decision::Release,
                Decision::Reject => proto::Decision::Reject,
                Decision::Renew => proto::Decision::Renew,
                Decision::Unseen => proto::Decision::Unseen,
            };
            let (lease, delay_ms) = (it.lease, it.delay_ms);
            proto::Settlement { lease, decision: decision.into(), delay_ms }
        };
        let settlements = self.settlements.into_iter().map(settlement).collect();
        proto::SettleRequest { topic, group, worker: self.worker, settlements }
    }
}

impl From<proto::SettleResponse> for Settled {
    fn from(it: proto::SettleResponse) -> Self {
        let unsettled = |it: proto::Unsettled| Unsettled {
            lease: it.lease,
            problem: Fault::from(it.problem.unwrap_or_default()).document(),
        };
        Self { unsettled: it.unsettled.into_iter().map(unsettled).collect() }
    }
}

impl Redrive {
    pub(crate) fn message(self, topic: String) -> proto::RedriveRequest {
        let Self { group, limit, to } = self;
        proto::RedriveRequest { topic, group, limit, to }
    }
}

impl From<proto::RedriveResponse> for Redriven {
    fn from(proto::RedriveResponse { moved, left, more }: proto::RedriveResponse) -> Self {
        Self { moved, left, more }
    }
}
