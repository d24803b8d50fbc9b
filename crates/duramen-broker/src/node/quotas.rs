//! How fast clients are, against what their quotas allow.

use super::Node;
use crate::quotas::{Quota, QuotaKey};
use crate::session::RequestContext;

impl Node {
    /// What binds whoever sent a request.
    pub(crate) fn quota(&self, key: QuotaKey, context: &RequestContext) -> Option<Quota> {
        let user = context.principal.strip_prefix("User:").unwrap_or(&context.principal);
        let client_id = context.client_id.as_deref().unwrap_or("");
        self.controller.image.quotas.binding(key, user, client_id)
    }

    /// Counts bytes, and says for how many milliseconds the client has to rest now.
    pub(crate) fn use_up(&mut self, quota: &Quota, bytes: u64) -> i32 {
        self.meters.use_up(quota, bytes as f64, self.now.mono_us / 1000)
    }

    /// Takes back what was counted and not used after all.
    pub(crate) fn give_back(&mut self, quota: &Quota, bytes: u64) {
        self.meters.give_back(quota, bytes as f64, self.now.mono_us / 1000);
    }
}
