//! Coordinators of transactional ids.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_storage::op::ReplicaId;

use super::Coordinators;
use super::view::{Effect, Expired, Sight, View};
use crate::core::{Core, Then};
use crate::event::Now;
use crate::internal_topics::TRANSACTIONS;
use crate::transactions::coordinator::{Coordinator, Output};
use crate::transactions::records::TransactionRecord;

impl View for Coordinator {
    fn replay(
        &mut self,
        offset: i64,
        key: Bytes,
        value: Option<Bytes>,
        producer: Option<i64>,
    ) -> Result<(), String> {
        if producer.is_some() {
            return Err("it is of a transaction".to_owned());
        }
        let record = TransactionRecord::decode(key, value).map_err(|error| error.to_string())?;
        self.apply(offset, record);
        Ok(())
    }

    fn loaded(&mut self, _sight: Sight<'_>, epoch: i32, now: Now) {
        self.loaded(epoch, now);
    }

    fn unload(&mut self) {
        self.unload();
    }

    fn deadline_us(&self) -> Option<u64> {
        self.deadline_us()
    }

    fn on_time(&mut self, now: Now) {
        self.on_time(now);
    }

    fn on_appended(&mut self, ticket: u64, result: Result<i64, ErrorCode>, now: Now) {
        self.on_appended(ticket, result, now);
    }

    fn take_effects(&mut self) -> Vec<Effect> {
        let effect = |output| match output {
            Output::Reply { key, response, is_written } => {
                Effect::Answer { then: Then::Reply { key, response }, is_written }
            }
            Output::Judged { asker, code, is_written } => {
                Effect::Answer { then: Then::Judged(asker, code), is_written }
            }
            Output::TooLate(key) => {
                let reason = "its producer has used a newer connection for its transactions";
                Effect::Close { key, reason }
            }
            Output::Append(ticket, records) => {
                let records = records.iter().map(TransactionRecord::encode).collect();
                Effect::Append { ticket, records, transactor: None }
            }
            Output::WantProducerId(name) => Effect::WantProducerId(name),
            Output::Mark(mark) => Effect::Mark(mark),
        };
        self.take_outputs().into_iter().map(effect).collect()
    }

    fn live_size(&self) -> (usize, usize) {
        self.live().size()
    }

    fn inspect(&self) {
        self.inspect();
    }

    fn first_live(&self) -> Option<i64> {
        self.live().first()
    }

    fn renew(&mut self, before: i64, bytes_max: usize) -> Option<u64> {
        self.renew(before, bytes_max)
    }

    fn expire(
        &mut self,
        sight: Sight<'_>,
        now: Now,
        after: Option<&Arc<str>>,
        max: usize,
    ) -> Expired {
        let seen = self.expire(sight.transactional_id_expiration_ms, now, after, max);
        Expired { seen, kept: BTreeSet::new() }
    }
}

impl Coordinators {
    /// Returns the coordinator of a transactional id, for callers that only read.
    pub(crate) fn transaction_coordinator(
        &self,
        core: &Core,
        id: &str,
    ) -> Result<&Coordinator, ErrorCode> {
        let replica = self.shard_of(core, TRANSACTIONS, id)?;
        self.view(replica).ok_or(ErrorCode::NotCoordinator)
    }

    /// Returns all coordinators of transactions here. An error while some of them load, because they could know more.
    pub(crate) fn transaction_coordinators(&self) -> Result<Vec<&Coordinator>, ErrorCode> {
        self.serving()
    }

    /// Lets the coordinator of a transactional id do something.
    pub(crate) fn coordinate_transaction(
        &mut self,
        core: &mut Core,
        id: &str,
        ask: impl FnOnce(&mut Coordinator),
    ) -> Result<(), ErrorCode> {
        let replica = self.shard_of(core, TRANSACTIONS, id)?;
        self.with_transactions(core, replica, ask);
        Ok(())
    }

    /// Lets a coordinator of transactions do something, if it is here still.
    pub(crate) fn with_transactions(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        ask: impl FnOnce(&mut Coordinator),
    ) {
        if let Some(transactions) = self.view_mut::<Coordinator>(replica) {
            ask(transactions);
            self.settle(core, replica);
        }
    }
}
