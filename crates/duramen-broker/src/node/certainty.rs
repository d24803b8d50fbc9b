//! Requests that ask for the latest state, or are refused because of it. Where there are followers, a leader that was
//! cut off or stood still may have a successor unknown to it. So it makes a leadership check before it answers.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::{Request, messages::ListOffsetsRequest};
use duramen_storage::op::ReplicaId;
use duramen_storage::sabotage::{self, Bug};

use super::coordinators::Kind;
use super::{Node, Signal};
use crate::controller;
use crate::event::{ConnectionId, RequestKey};
use crate::raft::Doubt;
use crate::session::RequestContext;

#[derive(Debug)]
struct Doubtful {
    context: RequestContext,
    request: Request,
    /// Replicas whose leadership check is still open.
    outstanding: usize,
}

#[derive(Debug, Default)]
pub(super) struct Certainty {
    requests: BTreeMap<RequestKey, Doubtful>,
    by_replica: BTreeMap<ReplicaId, Vec<(Doubt, RequestKey)>>,
}

impl Certainty {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl Node {
    /// Takes a request whose answer needs a leadership check; hands any other back. The request waits until the check
    /// is done: a leader that cannot reach its followers ceases to lead.
    pub(crate) fn doubt(
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
            let Some(doubt) = self.doubt_that_leads(replica) else { continue };
            self.certainty.by_replica.entry(replica).or_default().push((doubt, key));
            outstanding += 1;
        }
        if outstanding == 0 {
            return Some((context, request));
        }
        self.certainty.requests.insert(key, Doubtful { context, request, outstanding });
        None
    }

    /// Starts a leadership check at a replica, if it seems to lead followers.
    pub(super) fn doubt_that_leads(&mut self, replica: ReplicaId) -> Option<Doubt> {
        let group = self.group(replica)?;
        if group.is_alone() || !group.is_serving() {
            return None;
        }
        if replica == self.controller.group.id() {
            self.is_controller_dirty = true;
            return Some(self.controller.group.doubt());
        }
        let partition = self.partitions.get_mut(&replica)?;
        super::mark(&mut self.dirty, partition);
        Some(partition.group.doubt())
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
            // A client that learns that its offset is out of range begins anew somewhere else.
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
                asked.filter_map(|group| self.shard_of(Kind::Groups, group).ok()).collect()
            }
            // The leader may refuse the request at once, because of a newer producer epoch. So it must lead for
            // certain.
            Request::TxnOffsetCommit(request) => {
                let replica = self.shard_of(Kind::Groups, &request.group_id).ok();
                let partition = |id: &ReplicaId| self.partitions.get(id);
                let is_refused = |id: &ReplicaId| {
                    let (producer, epoch) = (request.producer_id, request.producer_epoch);
                    partition(id).is_some_and(|it| it.producer_epoch(producer) > Some(epoch))
                };
                replica.into_iter().filter(is_refused).collect()
            }
            // The controller may refuse the request at once, because of its metadata. So it must lead for certain.
            decided if controller::decides(decided) => BTreeSet::from([self.controller.group.id()]),
            _ => BTreeSet::new(),
        }
    }

    /// Serves the requests that waited for a replica's leadership check, once the check is done or the replica leads no
    /// more. Then the request's own handler answers, or another node does.
    pub(crate) fn settle_doubts(&mut self, replica: ReplicaId) {
        self.settle_doubted_answers(replica);
        self.settle_doubted_shares(replica);
        let Some(mut waiting) = self.certainty.by_replica.remove(&replica) else { return };
        let group = self.group(replica);
        let is_sure = |doubt: Doubt| group.is_none_or(|group| group.led_at(doubt).is_some());
        let settled: Vec<_> = waiting.extract_if(.., |(doubt, _)| is_sure(*doubt)).collect();
        if !waiting.is_empty() {
            self.certainty.by_replica.insert(replica, waiting);
        }
        for (_, key) in settled {
            let Some(doubtful) = self.certainty.requests.get_mut(&key) else { continue };
            doubtful.outstanding -= 1;
            if doubtful.outstanding > 0 {
                continue;
            }
            let doubtful = self.certainty.requests.remove(&key).expect("it was just looked at");
            let Doubtful { context, request, .. } = doubtful;
            self.signals.push_back(Signal::Certain { key, context, request: Box::new(request) });
        }
    }

    pub(super) fn forget_doubts(&mut self, connection: ConnectionId) {
        self.certainty.requests.retain(|key, _| key.0 != connection);
        self.certainty.by_replica.retain(|_, waiting| {
            waiting.retain(|(_, key)| key.0 != connection);
            !waiting.is_empty()
        });
    }
}
