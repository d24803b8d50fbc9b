//! Requests that ask what is the latest. Where there are followers, a leader that was cut off or stood still may have a
//! successor that it has not heard of, so it makes sure that it leads before it answers.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::{Request, messages::ListOffsetsRequest};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::Node;
use crate::api;
use crate::event::{Action, ConnectionId, Now, RequestKey};
use crate::group::Doubt;
use crate::session::{Prepared, RequestContext};

#[derive(Debug)]
struct Doubtful {
    context: RequestContext,
    request: Request,
    /// Replicas that are not sure yet.
    outstanding: usize,
}

#[derive(Debug, Default)]
pub(super) struct Doubts {
    requests: BTreeMap<RequestKey, Doubtful>,
    by_replica: BTreeMap<ReplicaId, Vec<(Doubt, RequestKey)>>,
}

impl Doubts {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl Node {
    /// Takes a request for whose answer replicas must lead for certain; hands any other back. It waits as long as they
    /// take to know: one that cannot reach its followers ceases to lead.
    pub(super) fn doubt(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Request,
    ) -> Option<(RequestContext, Request)> {
        let replicas = if self.is_clustered() && !sabotage::is(Bug::StaleLeaderAnswers) {
            self.asked_for_latest(&request)
        } else {
            BTreeSet::new()
        };
        let mut outstanding = 0;
        for replica in replicas {
            let Some(partition) = self.partitions.get_mut(&replica) else { continue };
            if partition.group.is_alone() || !partition.group.is_serving() {
                continue;
            }
            let doubt = partition.group.doubt();
            super::mark(&mut self.dirty, partition);
            self.doubts.by_replica.entry(replica).or_default().push((doubt, key));
            outstanding += 1;
        }
        if outstanding == 0 {
            return Some((context, request));
        }
        self.doubts.requests.insert(key, Doubtful { context, request, outstanding });
        None
    }

    fn asked_for_latest(&self, request: &Request) -> BTreeSet<ReplicaId> {
        let partition = |name: &str, index: i32| {
            let topic = self.controller.image.topic_named(name)?;
            self.local_replica(topic, index)
        };
        match request {
            Request::ListOffsets(ListOffsetsRequest { topics, .. }) => {
                let asked = topics.iter().flat_map(|topic| {
                    let indexes = topic.partitions.iter().map(|it| it.partition_index);
                    indexes.map(|index| (topic.name.as_str(), index))
                });
                asked.filter_map(|(name, index)| partition(name, index)).collect()
            }
            Request::OffsetForLeaderEpoch(request) => {
                let asked = request.topics.iter().flat_map(|topic| {
                    let indexes = topic.partitions.iter().map(|it| it.partition);
                    indexes.map(|index| (topic.topic.as_str(), index))
                });
                asked.filter_map(|(name, index)| partition(name, index)).collect()
            }
            Request::DeleteRecords(request) => {
                let asked = request
                    .topics
                    .iter()
                    .flat_map(|topic| topic.partitions.iter().map(|it| (topic.name.as_str(), it)));
                let refused = asked.filter_map(|(name, asked)| {
                    let replica = partition(name, asked.partition_index)?;
                    let is_ahead = asked.offset > self.partitions.get(&replica)?.committed();
                    is_ahead.then_some(replica)
                });
                refused.collect()
            }
            // A client that is told that its offset is not there begins anew somewhere else.
            Request::Fetch(request) => {
                let asked = request.topics.iter().flat_map(|topic| {
                    topic.partitions.iter().map(|it| (topic.topic.as_str(), topic.topic_id, it))
                });
                let refused = asked.filter_map(|(name, id, asked)| {
                    let image = &self.controller.image;
                    let topic =
                        if id.is_zero() { image.topic_named(name) } else { image.topic(id) };
                    let replica = self.local_replica(topic?, asked.partition)?;
                    let group = &self.partitions.get(&replica)?.group;
                    let is_ahead = asked.fetch_offset > group.end_offset()
                        || asked.last_fetched_epoch > group.epoch();
                    is_ahead.then_some(replica)
                });
                refused.collect()
            }
            Request::OffsetFetch(request) => {
                let asked = request.groups.iter().map(|group| group.group_id.as_str());
                let asked = asked.chain([request.group_id.as_str()]);
                asked.filter_map(|group| self.shard_of(group).ok()).collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// A replica may have become sure, or leads no more: then whoever waits is told so by the request's own handler.
    pub(super) fn settle_doubts(
        &mut self,
        now: Now,
        replica: ReplicaId,
        actions: &mut Vec<Action>,
    ) {
        let Some(waiting) = self.doubts.by_replica.get_mut(&replica) else { return };
        let group = self.partitions.get(&replica).map(|partition| &partition.group);
        let is_sure = |doubt: Doubt| group.is_none_or(|group| group.led_at(doubt).is_some());
        let settled: Vec<_> = waiting.extract_if(.., |(doubt, _)| is_sure(*doubt)).collect();
        if waiting.is_empty() {
            self.doubts.by_replica.remove(&replica);
        }
        for (_, key) in settled {
            let Some(doubtful) = self.doubts.requests.get_mut(&key) else { continue };
            doubtful.outstanding -= 1;
            if doubtful.outstanding > 0 {
                continue;
            }
            let doubtful = self.doubts.requests.remove(&key).expect("it was just looked at");
            let request = Prepared::Request(doubtful.request);
            api::dispatch(self, now, key, doubtful.context, request, actions);
        }
    }

    pub(super) fn forget_doubts(&mut self, connection: ConnectionId) {
        self.doubts.requests.retain(|key, _| key.0 != connection);
        self.doubts.by_replica.retain(|_, waiting| {
            waiting.retain(|(_, key)| key.0 != connection);
            !waiting.is_empty()
        });
    }
}
