//! Coordinators of share groups' stored states.

use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::Coordinators;
use super::view::{Effect, Expired, Sight, View};
use crate::core::{Core, Then};
use crate::event::Now;
use crate::shares::coordinator::{Coordinator, Output};
use crate::shares::records::ShareRecord;

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
        let record = ShareRecord::decode(key, value).map_err(|error| error.to_string())?;
        self.apply(offset, record);
        Ok(())
    }

    fn unload(&mut self) {
        self.unload();
    }

    fn on_appended(&mut self, ticket: u64, result: Result<i64, ErrorCode>, now: Now) {
        self.on_appended(ticket, result, now);
    }

    fn take_effects(&mut self) -> Vec<Effect> {
        let effect = |output| match output {
            Output::Answered { asker, answer, is_written } => {
                Effect::Answer { then: Then::ShareState(asker, answer), is_written }
            }
            Output::Append(ticket, records) => {
                let records = records.iter().map(ShareRecord::encode).collect();
                Effect::Append { ticket, records, transactor: None }
            }
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
        _sight: Sight<'_>,
        _now: Now,
        after: Option<&Arc<str>>,
        max: usize,
    ) -> Expired {
        let (kept, seen) = self.topics_kept(after, max);
        Expired { seen, kept }
    }

    fn forget_topic(&mut self, _name: &str, id: Uuid, now: Now) {
        self.forget_topic(id, now);
    }

    fn forget_kept(&mut self, topic_id: Uuid, now: Now) {
        self.forget_topic(topic_id, now);
    }
}

impl Coordinators {
    /// Lets a coordinator of share groups' states do something, if it is here still.
    pub(crate) fn with_shares(
        &mut self,
        core: &mut Core,
        replica: ReplicaId,
        ask: impl FnOnce(&mut Coordinator),
    ) {
        if let Some(shares) = self.view_mut::<Coordinator>(replica) {
            ask(shares);
            self.settle(core, replica);
        }
    }
}
