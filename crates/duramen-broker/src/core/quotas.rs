//! Rates and times of clients, against their quotas.

use std::collections::BTreeMap;

use super::Core;
use crate::event::{ConnectionId, RequestKey};
use crate::quotas::{Quota, QuotaKey};
use crate::session::RequestContext;

/// Requests whose time counts.
#[derive(Debug, Default)]
pub(crate) struct Timed {
    /// Requests that are not answered yet.
    asked: BTreeMap<RequestKey, Quota>,
    /// Quota of the client whose request the node handles now.
    present: Option<Quota>,
}

impl Core {
    /// Returns the quota of a request's client.
    pub(crate) fn quota(&self, key: QuotaKey, context: &RequestContext) -> Option<Quota> {
        let user = context.principal.strip_prefix("User:").unwrap_or(&context.principal);
        let client_id = context.client_id.as_deref().unwrap_or("");
        self.controller.image.quotas.binding(key, user, client_id)
    }

    /// Counts bytes, and returns for how many milliseconds the client has to rest now.
    pub(crate) fn use_up(&mut self, quota: &Quota, bytes: u64) -> i32 {
        self.meters.use_up(quota, bytes as f64, self.now_ms())
    }

    /// Takes back what was counted and not used after all.
    pub(crate) fn give_back(&mut self, quota: &Quota, bytes: u64) {
        self.meters.give_back(quota, bytes as f64, self.now_ms());
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now.mono_us / 1000
    }

    /// Begins to count the time of a request.
    pub(crate) fn begin_time(&mut self, key: RequestKey, context: &RequestContext) {
        let Some(quota) = self.quota(QuotaKey::RequestPercentage, context) else { return };
        self.meters.take_time(&quota, context.spent_us, self.now_ms());
        self.timed.asked.insert(key, quota.clone());
        self.timed.present = Some(quota);
    }

    /// Counts the time of the last event, if the event was a request.
    pub(crate) fn count_time(&mut self, us: u64) {
        if let Some(quota) = self.timed.present.take() {
            self.meters.take_time(&quota, us, self.now_ms());
        }
    }

    /// Returns for how many milliseconds the client has to rest because of the time that its requests took.
    pub(crate) fn time_rest_ms(&self, key: RequestKey) -> i32 {
        let quota = self.timed.asked.get(&key);
        quota.map_or(0, |quota| self.meters.time_rest_ms(quota, self.now_ms()))
    }

    /// Forgets a request that is answered, or whose client is gone.
    pub(crate) fn end_time(&mut self, key: RequestKey) {
        self.timed.asked.remove(&key);
    }

    pub(crate) fn forget_times(&mut self, connection: ConnectionId) {
        let all = (connection, 0)..=(connection, u64::MAX);
        let keys: Vec<_> = self.timed.asked.range(all).map(|(key, _)| *key).collect();
        for key in keys {
            self.end_time(key);
        }
    }
}
