//! Common parts of all coordinators: each is made from a log, appends to it, and keeps it small.

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::batch::batches;
use duramen_protocol::records::Records;
use duramen_protocol::wire::DecodeError;
use duramen_storage::Descriptor;

use crate::event::Now;
use crate::groups::coordinator::Coordinator;
use crate::groups::records::GroupRecord;
use crate::internal_topics::{GROUPS, SHARES, TRANSACTIONS};
use crate::limits::{DECOMPRESSED_BYTES_MAX, GROUP_LOG_SLICE_BYTES};
use crate::shares::coordinator as shares;
use crate::shares::records::ShareRecord;
use crate::transactions::coordinator as transactions;
use crate::transactions::records::TransactionRecord;

/// Kind of coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Groups,
    Transactions,
    Shares,
}

impl Kind {
    /// Returns the kind of a topic's coordinators, if it has any.
    pub(crate) fn of(topic: &str) -> Option<Self> {
        match topic {
            GROUPS => Some(Self::Groups),
            TRANSACTIONS => Some(Self::Transactions),
            SHARES => Some(Self::Shares),
            _ => None,
        }
    }

    pub(super) fn topic(self) -> &'static str {
        match self {
            Self::Groups => GROUPS,
            Self::Transactions => TRANSACTIONS,
            Self::Shares => SHARES,
        }
    }
}

/// A coordinator, as far as its log goes.
#[derive(Debug)]
pub(super) enum View {
    Groups(Coordinator),
    Transactions(transactions::Coordinator),
    Shares(shares::Coordinator),
}

impl View {
    pub(super) fn new(kind: Kind, share_updates_max: u32) -> Self {
        match kind {
            Kind::Groups => Self::Groups(Coordinator::new()),
            Kind::Transactions => Self::Transactions(transactions::Coordinator::default()),
            Kind::Shares => Self::Shares(shares::Coordinator::new(share_updates_max)),
        }
    }

    pub(super) fn unload(&mut self) {
        match self {
            Self::Groups(it) => it.unload(),
            Self::Transactions(it) => it.unload(),
            Self::Shares(it) => it.unload(),
        }
    }

    pub(super) fn deadline_us(&self) -> Option<u64> {
        match self {
            Self::Groups(it) => it.deadline_us(),
            Self::Transactions(it) => it.deadline_us(),
            Self::Shares(_) => None,
        }
    }

    pub(super) fn on_time(&mut self, now: Now) {
        match self {
            Self::Groups(it) => it.on_time(now),
            Self::Transactions(it) => it.on_time(now),
            Self::Shares(_) => {}
        }
    }

    pub(super) fn on_appended(&mut self, now: Now, ticket: u64, result: Result<i64, ErrorCode>) {
        match self {
            Self::Groups(it) => it.on_appended(ticket, result, now),
            Self::Transactions(it) => it.on_appended(ticket, result, now),
            Self::Shares(it) => it.on_appended(ticket, result, now),
        }
    }

    pub(super) fn live_size(&self) -> (usize, usize) {
        match self {
            Self::Groups(it) => it.live_size(),
            Self::Transactions(it) => it.live_size(),
            Self::Shares(it) => it.live_size(),
        }
    }

    pub(super) fn first_live(&self) -> Option<i64> {
        match self {
            Self::Groups(it) => it.first_live(),
            Self::Transactions(it) => it.first_live(),
            Self::Shares(it) => it.first_live(),
        }
    }

    /// Writes anew what lies before an offset. Returns the ticket of that, if there was anything to be written.
    pub(super) fn renew(&mut self, before: i64) -> Option<u64> {
        match self {
            Self::Groups(it) => it.renew(before, GROUP_LOG_SLICE_BYTES),
            Self::Transactions(it) => it.renew(before, GROUP_LOG_SLICE_BYTES),
            Self::Shares(it) => it.renew(before, GROUP_LOG_SLICE_BYTES),
        }
    }

    pub(super) fn groups(&mut self) -> Option<&mut Coordinator> {
        match self {
            Self::Groups(it) => Some(it),
            Self::Transactions(_) | Self::Shares(_) => None,
        }
    }

    pub(super) fn transactions(&mut self) -> Option<&mut transactions::Coordinator> {
        match self {
            Self::Groups(_) | Self::Shares(_) => None,
            Self::Transactions(it) => Some(it),
        }
    }

    pub(super) fn shares(&mut self) -> Option<&mut shares::Coordinator> {
        match self {
            Self::Groups(_) | Self::Transactions(_) => None,
            Self::Shares(it) => Some(it),
        }
    }
}

/// Gives a coordinator the records of whole batches from offset `at` on, but below `end`. Returns the offset after
/// them.
pub(super) fn replay(view: &mut View, bytes: Bytes, at: i64, end: i64) -> Result<i64, String> {
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
            let marker = described.marker.filter(|_| producer.is_some());
            let (View::Groups(groups), Some(marker)) = (&mut *view, marker) else {
                return Err(format!("the control batch at {} is none of ours", header.base_offset));
            };
            if header.base_offset >= at && header.end_offset() <= end {
                groups.on_marker(described.producer_id, marker.commits);
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
            let wrong = |error: DecodeError| format!("the record at {offset}: {error}");
            match (&mut *view, producer) {
                (View::Groups(groups), None) => {
                    groups.replay(offset, GroupRecord::decode(key, value).map_err(wrong)?);
                }
                (View::Groups(groups), Some(producer)) => {
                    let record = GroupRecord::decode(key, value).map_err(wrong)?;
                    groups.replay_in_transaction(offset, record, producer);
                }
                (View::Transactions(transactions), None) => {
                    let record = TransactionRecord::decode(key, value).map_err(wrong)?;
                    transactions.replay(offset, record);
                }
                (View::Shares(shares), None) => {
                    shares.replay(offset, ShareRecord::decode(key, value).map_err(wrong)?);
                }
                (View::Transactions(_) | View::Shares(_), Some(_)) => {
                    return Err(format!("the record at {offset} is of a transaction"));
                }
            }
        }
        next = header.end_offset();
    }
    if next <= at { Err(format!("there is no batch at offset {at}")) } else { Ok(next) }
}
