//! Requests about topics or settings whose creation, change or deletion is being committed: their answers depend on the
//! result. Also requests for topics on nodes that are about to register.

use std::collections::VecDeque;

use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::{ErrorCode, Request};

use super::{Node, Timer};
use crate::api::{self, deadline_us};
use crate::event::{ConnectionId, RequestKey};
use crate::limits::BROKERS_AWAITED_US;
use crate::session::{Prepared, RequestContext};

#[derive(Debug)]
struct Deferred {
    key: RequestKey,
    context: RequestContext,
    request: Request,
    deadline_us: u64,
}

/// Waiting requests, in the order in which they came.
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
    /// Serves a request, unless another node is to serve it. A request about a topic that is being created or deleted
    /// waits, but not longer than its timeout. Before that it waits for a leadership check, if one is needed
    /// (`doubts`).
    pub(super) fn judge(&mut self, key: RequestKey, context: RequestContext, request: Prepared) {
        let Prepared::Request(request) = request else {
            return api::dispatch(self, key, context, request);
        };
        if let Some((context, request)) = self.doubt(key, context, request) {
            self.judge_undoubted(key, context, request);
        }
    }

    pub(super) fn judge_undoubted(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Request,
    ) {
        if self.is_clustered()
            && !self.controller.group.is_serving()
            && (api::is_decided_by_controller(&request) || self.is_known_elsewhere(&request))
        {
            return self.forward(key, &context, &request);
        }
        if self.is_to_wait(&request) {
            let mut deadline_us = deadline_us(self.now, api::timeout_ms(&request));
            if self.awaits_brokers(&request) {
                deadline_us = deadline_us.min(self.now.mono_us + BROKERS_AWAITED_US);
            }
            return self.defer(Deferred { key, context, request, deadline_us });
        }
        api::dispatch(self, key, context, Prepared::Request(request));
    }

    /// Tells whether another node leads the metadata and knows better.
    fn is_known_elsewhere(&self, request: &Request) -> bool {
        let leader = self.metadata_leader();
        api::is_best_known_to_controller(request)
            && leader.is_some_and(|id| id != self.options.facts.broker_id)
    }

    fn is_to_wait(&self, request: &Request) -> bool {
        self.controller.is_deciding_on(request) || self.awaits_brokers(request)
    }

    /// Tells whether topics are to be made on founders of the cluster that have not registered yet, because the cluster
    /// has just been started.
    fn awaits_brokers(&self, request: &Request) -> bool {
        let Request::CreateTopics(request) = request else { return false };
        let there = &self.controller.image.brokers;
        let missing = self.founding_brokers().filter(|id| !there.contains_key(id));
        let missing: Vec<i32> = missing.collect();
        let expected = there.len() + missing.len();
        let awaits = |topic: &CreatableTopic| {
            let asked = match topic.replication_factor {
                -1 => usize::try_from(self.options.settings.default_replication_factor),
                given => usize::try_from(given),
            };
            let mut assigned = topic.assignments.iter().flat_map(|it| &it.broker_ids);
            if topic.assignments.is_empty() {
                asked.is_ok_and(|asked| asked > there.len() && asked <= expected)
            } else {
                assigned.any(|id| missing.contains(id))
            }
        };
        !missing.is_empty() && request.topics.iter().any(awaits)
    }

    fn defer(&mut self, deferred: Deferred) {
        self.timers.insert((deferred.deadline_us, Timer::Request(deferred.key)));
        self.undecided.queue.push_back(deferred);
    }

    /// Serves the waiting requests whose topics or settings are decided now.
    pub(super) fn judge_again(&mut self) {
        for deferred in std::mem::take(&mut self.undecided.queue) {
            if self.is_to_wait(&deferred.request) {
                self.undecided.queue.push_back(deferred);
                continue;
            }
            let Deferred { key, context, request, deadline_us } = deferred;
            self.timers.remove(&(deadline_us, Timer::Request(key)));
            api::dispatch(self, key, context, Prepared::Request(request));
        }
    }

    /// Ends the wait of a request whose time is over. False if there is none.
    pub(crate) fn end_undecided(&mut self, key: RequestKey) -> bool {
        let Some(at) = self.undecided.queue.iter().position(|deferred| deferred.key == key) else {
            return false;
        };
        let Some(deferred) = self.undecided.queue.remove(at) else { return false };
        let Deferred { context, request, deadline_us, .. } = deferred;
        self.timers.remove(&(deadline_us, Timer::Request(key)));
        if !self.controller.is_deciding_on(&request) {
            // The expected nodes did not come, and the answer says so.
            let request = Prepared::Request(request);
            api::dispatch(self, key, context, request);
        } else if let Some(response) = api::undecided_answer(&request, ErrorCode::RequestTimedOut) {
            self.reply(key, response);
        }
        true
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
