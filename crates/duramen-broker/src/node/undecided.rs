//! Requests about topics, or settings, whose creation, change or deletion is being committed: what they are told depends on that.

use std::collections::VecDeque;

use duramen_protocol::{ErrorCode, Request};

use super::{Node, Timer};
use crate::api::{self, deadline_us};
use crate::event::{Action, ConnectionId, Now, RequestKey};
use crate::session::{Prepared, RequestContext};

#[derive(Debug)]
struct Deferred {
    key: RequestKey,
    context: RequestContext,
    request: Request,
    deadline_us: u64,
}

/// In the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    queue: VecDeque<Deferred>,
}

impl Undecided {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}

impl Node {
    /// Serves a request, unless it is about a topic whose fate is being decided: then it waits, but not longer than it
    /// says.
    pub(super) fn judge(
        &mut self,
        now: Now,
        key: RequestKey,
        context: RequestContext,
        request: Prepared,
        actions: &mut Vec<Action>,
    ) {
        if let Prepared::Request(request) = &request
            && self.is_clustered()
            && !self.controller.group.is_serving()
            && let Some(answer) = api::undecided_answer(request, ErrorCode::NotController)
        {
            return self.reply(key, answer, actions);
        }
        match request {
            Prepared::Request(request) if self.controller.is_deciding_on(&request) => {
                let timeout_ms = match &request {
                    Request::AlterConfigs(_) | Request::IncrementalAlterConfigs(_) => {
                        api::settings::TIMEOUT_MS
                    }
                    Request::CreatePartitions(request) => request.timeout_ms,
                    Request::CreateTopics(request) => request.timeout_ms,
                    Request::DeleteTopics(request) => request.timeout_ms,
                    other => unreachable!("{:?} decides on no topic", other.api_key()),
                };
                let deadline_us = deadline_us(now, timeout_ms);
                self.defer(Deferred { key, context, request, deadline_us });
            }
            Prepared::Request(request) => {
                if let Some((context, request)) = self.doubt(key, context, request) {
                    let request = Prepared::Request(request);
                    api::dispatch(self, now, key, context, request, actions);
                }
            }
            produce @ Prepared::Produce(_) => {
                api::dispatch(self, now, key, context, produce, actions);
            }
        }
    }

    fn defer(&mut self, deferred: Deferred) {
        self.timers.insert((deferred.deadline_us, Timer::Request(deferred.key)));
        self.undecided.queue.push_back(deferred);
    }

    /// Something was decided.
    pub(super) fn judge_again(&mut self, now: Now, actions: &mut Vec<Action>) {
        for deferred in std::mem::take(&mut self.undecided.queue) {
            if self.controller.is_deciding_on(&deferred.request) {
                self.undecided.queue.push_back(deferred);
                continue;
            }
            let Deferred { key, context, request, deadline_us } = deferred;
            self.timers.remove(&(deadline_us, Timer::Request(key)));
            api::dispatch(self, now, key, context, Prepared::Request(request), actions);
        }
    }

    /// Takes one back whose time is over.
    pub(crate) fn take_undecided(&mut self, key: RequestKey) -> Option<Request> {
        let at = self.undecided.queue.iter().position(|deferred| deferred.key == key)?;
        let deferred = self.undecided.queue.remove(at)?;
        self.timers.remove(&(deferred.deadline_us, Timer::Request(key)));
        Some(deferred.request)
    }

    pub(super) fn forget_undecided(&mut self, connection: ConnectionId) {
        let timers = &mut self.timers;
        self.undecided.queue.retain(|deferred| {
            let stays = deferred.key.0 != connection;
            if !stays {
                timers.remove(&(deferred.deadline_us, Timer::Request(deferred.key)));
            }
            stays
        });
    }
}
