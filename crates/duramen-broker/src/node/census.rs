//! # Room card: census
//!
//! Purpose:    figures of every partition and group of this node, for metrics.
//! Owns:       [`Census`], which says how far one has come; [`Counted`], its rows.
//! Interface:  [`Node::count`].
//! Invariants: a part is bounded, and parts change nothing. Replicas and groups that come or go between two parts may
//!             be missed; no row comes twice.
//! Never:      names of metrics; sums that a reader of the rows can make.
//! Tests:      `node/tests/census.rs`.
//! Start at:   [`Node::count`].
//!
//! Estimate: a row costs about a microsecond, so a part of 128 rows holds the node up for about 0.1 ms.

use std::sync::Arc;

use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::Node;
use crate::controller::image::Topic;
use crate::core::Core;
use crate::groups::coordinator::census::{GroupPlace, GroupRow};
use crate::limits::CENSUS_SLICE;
use crate::metadata_records::PlacedReplica;
use crate::partition::Partition;
pub use crate::partition::traffic::Traffic;
use crate::raft::GroupId;

/// Progress of a census. A new one begins with the default.
#[derive(Clone, Debug, Default)]
pub struct Census(Stage);

#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    Node,
    /// Partitions of the cluster, behind this one; only the leader of the metadata counts them.
    Topics(Option<(Uuid, i32)>),
    /// Replicas of this node, behind this one.
    Replicas(Option<ReplicaId>),
    /// Groups whose coordinators are here, behind this place of this coordinator.
    Groups(Option<(ReplicaId, Option<GroupPlace>)>),
    Done,
}

/// Row of a census.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The node and what it knows of the cluster; one row.
    Node(NodeCounted),
    /// Some partitions of a topic of the cluster. Only the leader of the metadata has these rows.
    Topic(TopicCounted),
    /// A replica of this node.
    Replica(ReplicaCounted),
    /// A group whose coordinator is on this node.
    Group(GroupCounted),
    /// A committed offset of such a group.
    Offset(OffsetCounted),
}

/// The node and what it knows of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCounted {
    /// Its id.
    pub broker_id: i32,
    /// True if it leads the metadata.
    pub leads_metadata: bool,
    /// The node that leads the metadata, as far as this one knows.
    pub metadata_leader: Option<i32>,
    /// Term of the metadata.
    pub metadata_term: u64,
    /// One past the last committed offset of the metadata.
    pub metadata_end: i64,
    /// Registered nodes: id, address for clients, and whether this node heard them lately.
    pub brokers: Vec<(i32, String, bool)>,
}

/// Some partitions of one topic of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCounted {
    /// The topic.
    pub topic: String,
    /// Count of the partitions.
    pub partitions: u64,
    /// Count of those without a leader.
    pub leaderless: u64,
    /// Count of those with another leader than the preferred one.
    pub not_preferred: u64,
}

/// A replica of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaCounted {
    /// Its id.
    pub replica: ReplicaId,
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Log start offset.
    pub log_start: i64,
    /// High watermark, as far as the replica knows.
    pub high_watermark: i64,
    /// Size of its segments, in bytes.
    pub bytes: u64,
    /// Number of its segments.
    pub segments: usize,
    /// Traffic of clients.
    pub traffic: Traffic,
    /// True if the replica has failed.
    pub is_failed: bool,
    /// Facts that the leader knows; `None` if the replica does not lead.
    pub led: Option<Led>,
}

/// Facts of a partition that its leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// Count of replicas.
    pub replicas: usize,
    /// Count of replicas in sync.
    pub in_sync: usize,
    /// Replicas that have to be in sync for an append with acks=all.
    pub in_sync_min: usize,
    /// True if this replica is the preferred leader.
    pub is_preferred: bool,
}

/// A group whose coordinator is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCounted {
    /// Its name.
    pub group: Arc<str>,
    /// Its type: `classic`, `consumer` or `share`.
    pub kind: &'static str,
    /// Its state, as in `ListGroups`.
    pub state: &'static str,
    /// Count of its members.
    pub members: usize,
}

/// A committed offset of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCounted {
    /// The group.
    pub group: Arc<str>,
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The replica of that partition on this node, with its log start offset and high watermark, if there is one.
    pub log: Option<(ReplicaId, i64, i64)>,
}

impl Node {
    /// Returns the next rows of a census; `None` after the last ones.
    pub fn count(&self, census: &mut Census) -> Option<Vec<Counted>> {
        match std::mem::replace(&mut census.0, Stage::Done) {
            Stage::Node => {
                let leads = self.core.controller.group.is_serving();
                census.0 = if leads { Stage::Topics(None) } else { Stage::Replicas(None) };
                Some(vec![Counted::Node(self.core.count_node())])
            }
            Stage::Topics(after) => {
                let (rows, at) = self.core.count_topics(after);
                census.0 = at.map_or(Stage::Replicas(None), |at| Stage::Topics(Some(at)));
                Some(rows)
            }
            Stage::Replicas(after) => {
                let (rows, at) = self.core.count_replicas(after);
                census.0 = at.map_or(Stage::Groups(None), |at| Stage::Replicas(Some(at)));
                Some(rows)
            }
            Stage::Groups(after) => {
                let (rows, at) = self.count_groups(after);
                census.0 = at.map_or(Stage::Done, |at| Stage::Groups(Some(at)));
                Some(rows)
            }
            Stage::Done => None,
        }
    }

    fn count_groups(
        &self,
        after: Option<(ReplicaId, Option<GroupPlace>)>,
    ) -> (Vec<Counted>, Option<(ReplicaId, Option<GroupPlace>)>) {
        let Some((replica, rows)) = self.coordinators.rows_after(after, self.core.now) else {
            return (Vec::new(), None);
        };
        let place = rows.last().filter(|_| rows.len() >= CENSUS_SLICE).map(|(at, _)| at.clone());
        let next = match place {
            Some(place) => Some((replica, Some(place))),
            None => Some((ReplicaId(replica.0 + 1), None)),
        };
        let row = |((group, _), row): (GroupPlace, GroupRow)| match row {
            GroupRow::Group(group, kind, state, members) => {
                Counted::Group(GroupCounted { group, kind, state, members })
            }
            GroupRow::Offset(topic, id, partition, offset) => {
                let log = self.core.log_of(&topic, id, partition);
                Counted::Offset(OffsetCounted { group, topic, partition, offset, log })
            }
        };
        (rows.into_iter().map(row).collect(), next)
    }
}

impl Core {
    fn count_node(&self) -> NodeCounted {
        let image = &self.controller.image;
        let brokers = image.brokers.iter().map(|(&id, broker)| {
            let endpoint = broker.endpoints.first();
            let address =
                endpoint.map_or_else(String::new, |it| format!("{}:{}", it.host, it.port));
            (id, address, !self.peers.is_silent(id))
        });
        NodeCounted {
            broker_id: self.options.facts.broker_id,
            leads_metadata: self.controller.group.is_serving(),
            metadata_leader: self.metadata_leader(),
            metadata_term: self.controller.group.term(),
            metadata_end: self.controller.end(),
            brokers: brokers.collect(),
        }
    }

    /// Counts partitions of topics behind one. Returns the last one, unless that is all.
    fn count_topics(&self, after: Option<(Uuid, i32)>) -> (Vec<Counted>, Option<(Uuid, i32)>) {
        let image = &self.controller.image;
        let begun = after.and_then(|(id, partition)| Some((image.topic(id)?, partition + 1)));
        let others = image.topics_after(after.map(|(id, _)| id), CENSUS_SLICE);
        let others = others.into_iter().filter_map(|id| Some((image.topic(id)?, 0)));
        let (mut rows, mut room) = (Vec::new(), CENSUS_SLICE);
        for (topic, from) in begun.into_iter().chain(others) {
            if room == 0 {
                // The next part begins with a topic of which nothing was counted.
                return (rows, Some((topic.id, from - 1)));
            }
            let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
            let end = count.min(from.saturating_add(i32::try_from(room).unwrap_or(i32::MAX)));
            if from < end {
                rows.push(Counted::Topic(self.count_topic(topic, from..end)));
            }
            room -= usize::try_from(end - from).unwrap_or(0);
            if end < count {
                return (rows, Some((topic.id, end - 1)));
            }
            // A topic without partitions is some work, too.
            room -= usize::from(room > 0 && from == end);
            if room == 0 {
                return (rows, Some((topic.id, end - 1)));
            }
        }
        (rows, None)
    }

    fn count_topic(&self, topic: &Topic, partitions: std::ops::Range<i32>) -> TopicCounted {
        let mut counted = TopicCounted {
            topic: topic.name.clone(),
            partitions: 0,
            leaderless: 0,
            not_preferred: 0,
        };
        for partition in partitions {
            let led = self.leader_of(topic, partition).filter(|(id, _)| self.may_lead(*id));
            let preferred = topic.replicas(partition).and_then(<[_]>::first);
            counted.partitions += 1;
            counted.leaderless += u64::from(led.is_none());
            let is_other = led.zip(preferred).is_some_and(|(led, it)| led.0 != it.broker_id);
            counted.not_preferred += u64::from(is_other);
        }
        counted
    }

    /// Counts replicas behind one. Returns the last one, unless that is all.
    fn count_replicas(&self, after: Option<ReplicaId>) -> (Vec<Counted>, Option<ReplicaId>) {
        let from = after.map_or(ReplicaId(0), |at| ReplicaId(at.0 + 1));
        let slice = || self.partitions.range(from..).take(CENSUS_SLICE);
        let rows = slice().filter_map(|(id, partition)| self.count_replica(*id, partition));
        let last = slice().last().map(|(id, _)| *id);
        let at = last.filter(|_| slice().count() == CENSUS_SLICE);
        (rows.map(Counted::Replica).collect(), at)
    }

    /// Counts a replica, unless its topic is gone.
    fn count_replica(&self, replica: ReplicaId, partition: &Partition) -> Option<ReplicaCounted> {
        let GroupId { topic_id, partition: index } = partition.id;
        let topic = self.controller.image.topic(Uuid(topic_id))?;
        let placed = topic.replicas(index)?;
        let leads = partition.group.is_serving();
        Some(ReplicaCounted {
            replica,
            topic: topic.name.clone(),
            partition: index,
            log_start: partition.log_start(),
            high_watermark: partition.committed(),
            bytes: partition.bytes(),
            segments: partition.segments_len(),
            traffic: partition.traffic(),
            is_failed: partition.group.failure().is_some(),
            led: leads.then(|| self.count_led(replica, partition, placed)),
        })
    }

    fn count_led(
        &self,
        replica: ReplicaId,
        partition: &Partition,
        placed: &[PlacedReplica],
    ) -> Led {
        let own = self.options.facts.broker_id;
        let wanted = usize::try_from(partition.settings.min_insync_replicas).unwrap_or(usize::MAX);
        Led {
            replicas: placed.len(),
            in_sync: self.in_sync(partition.id, own, placed).len(),
            in_sync_min: wanted.clamp(1, placed.len().max(1)),
            is_preferred: placed.first().is_some_and(|it| it.peer_id == replica.0),
        }
    }

    /// Returns the replica here of a partition for which an offset was committed, with its start and high watermark.
    /// An offset for an older topic of the same name is for no log.
    fn log_of(&self, topic: &str, id: Uuid, partition: i32) -> Option<(ReplicaId, i64, i64)> {
        let topic = self.controller.image.topic_named(topic)?;
        let is_its = id.is_zero() || id == topic.id;
        let replica = self.local_replica(topic, partition).filter(|_| is_its)?;
        let partition = self.partitions.get(&replica)?;
        Some((replica, partition.log_start(), partition.committed()))
    }
}
