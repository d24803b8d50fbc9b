//! Place and time of each request: here or by another node; now or later. Later is after a leadership check, after a
//! decision on its topic, or when there is room for its batches.

use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::{ErrorCode, Request};

use crate::api;
use crate::controller;
use crate::event::RequestKey;
use crate::limits::BROKERS_AWAITED_US;
use crate::node::{Deferred, Node, Stalled, Timer};
use crate::session::{Prepared, RequestContext};

impl Node {
    /// Serves a request, unless another node is to serve it. A request about a topic that is being created or deleted
    /// waits, but not longer than its timeout. Before that it waits for a leadership check, if one is needed
    /// (`node/certainty.rs`).
    pub(super) fn judge(&mut self, key: RequestKey, context: RequestContext, request: Prepared) {
        let Prepared::Request(request) = request else {
            return api::dispatch(self, key, context, request);
        };
        if let Some((context, request)) = self.doubt(key, context, request) {
            self.judge_certain(key, context, request);
        }
    }

    pub(super) fn judge_certain(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Request,
    ) {
        if self.is_clustered()
            && !self.controller.group.is_serving()
            && (controller::decides(&request) || self.is_known_elsewhere(&request))
        {
            return self.forward(key, &context, &request);
        }
        if self.is_to_wait(&request) {
            let mut deadline_us = self.now.deadline_us(controller::timeout_ms(&request));
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
        controller::knows_best(request)
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
        self.pending.queue.push_back(deferred);
    }

    /// Serves the waiting requests whose topics or settings are decided now.
    pub(super) fn judge_again(&mut self) {
        for deferred in std::mem::take(&mut self.pending.queue) {
            if self.is_to_wait(&deferred.request) {
                self.pending.queue.push_back(deferred);
                continue;
            }
            let Deferred { key, context, request, deadline_us } = deferred;
            self.timers.remove(&(deadline_us, Timer::Request(key)));
            api::dispatch(self, key, context, Prepared::Request(request));
            // The next one may be about the same topic.
            self.resume();
        }
    }

    /// Ends the wait of a request whose time is over. False if there is none.
    fn end_undecided(&mut self, key: RequestKey) -> bool {
        let Some(at) = self.pending.queue.iter().position(|deferred| deferred.key == key) else {
            return false;
        };
        let Some(deferred) = self.pending.queue.remove(at) else { return false };
        let Deferred { context, request, deadline_us, .. } = deferred;
        self.timers.remove(&(deadline_us, Timer::Request(key)));
        if !self.controller.is_deciding_on(&request) {
            // The expected nodes did not come, and the answer says so.
            let request = Prepared::Request(request);
            api::dispatch(self, key, context, request);
        } else if let Some(response) =
            api::waiting::undecided_answer(&request, ErrorCode::RequestTimedOut)
        {
            self.reply(key, response);
        }
        true
    }

    /// Ends the wait of a request whose time is over, or whose awaited event will not come.
    pub(super) fn end_wait(&mut self, key: RequestKey) {
        if !self.end_undecided(key) {
            api::waiting::on_timeout(self, key);
        }
    }

    /// Lets the first waiting produce in, if there is room. False if nothing was done.
    pub(super) fn resume_stalled(&mut self) -> bool {
        let Some(first) = self.backpressure.queue.front() else { return false };
        if !self.has_room(first.request.bytes()) {
            return false;
        }
        let first = self.backpressure.queue.pop_front().expect("it was just looked at");
        self.backpressure.is_told &= self.has_stalled();
        let Stalled { key, context, request, deadline_us } = first;
        self.timers.remove(&(deadline_us, Timer::Request(key)));
        api::produce::append(self, key, &context, request, deadline_us);
        true
    }
}
