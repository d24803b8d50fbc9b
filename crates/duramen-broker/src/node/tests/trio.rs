//! Three nodes that are one cluster, as values. What they say to each other travels as bytes, in order, and arrives at
//! once; time passes for all of them alike.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::messages::create_topics::CreatableTopic;
use duramen_protocol::messages::produce::PartitionProduceResponse;
use duramen_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use duramen_protocol::{ErrorCode, Request, Response};
use duramen_storage::op::ReplicaId;
use duramen_storage::storage::Facts;

use super::harness::{Harness, Store, WALL_MS, new_topic, options, produce_request, settings};
use crate::controller::Founder;
use crate::event::{Event, Now};
use crate::node::NodeOptions;
use crate::peer::PeerFrame;
use crate::survivor::{Outcome, Survival};

/// A tick of groups, and then some.
pub(super) const TICK_MS: u64 = 50;

pub(super) struct Trio {
    pub nodes: Vec<Harness>,
    pub now: Now,
    /// Those that hear and say nothing.
    pub cut: BTreeSet<usize>,
    /// How far wall clocks are ahead of the others.
    pub ahead_ms: BTreeMap<usize, i64>,
    /// Of this one the other hears nothing.
    pub severed: Option<(usize, usize)>,
    cluster_id: [u8; 16],
    founders: Vec<Founder>,
}

/// A node's data directory; there is another one each time that it is wiped.
fn directory(at: usize, generation: u8) -> [u8; 16] {
    let mut id = [u8::try_from(at).expect("small") + 100; 16];
    id[1] += 50 * generation;
    id
}

fn broker(at: usize) -> i32 {
    i32::try_from(at).expect("small")
}

fn founder(at: usize) -> Founder {
    Founder { peer_id: at as u64 + 1, broker_id: broker(at), directory_id: directory(at, 0) }
}

fn member(
    at: usize,
    generation: u8,
    (cluster_id, founders): ([u8; 16], &[Founder]),
    pairs: &[(&str, &str)],
) -> NodeOptions {
    let directory_id = directory(at, generation);
    let facts = Facts { cluster_id, broker_id: broker(at), directory_id };
    let seed = u64::from(generation) * 100 + at as u64 + 1;
    NodeOptions {
        facts,
        founders: founders.to_vec(),
        rack: Some(format!("rack-{at}")),
        node_address: Some((format!("node-{at}"), 9093)),
        native_address: Some((format!("native-{at}"), 9080)),
        replaces: generation > 0,
        ..options(settings(pairs), seed, Vec::new())
    }
}

fn opened(store: Store, options: NodeOptions, now: Now) -> Harness {
    let mut node = Harness::opened(store, options, now);
    node.is_prompt = true;
    node.run();
    node
}

impl Trio {
    /// Three nodes that have registered with the one that leads the metadata.
    pub(super) fn new(pairs: &[(&str, &str)]) -> Self {
        let mut trio = Self::unregistered(pairs);
        for _ in 0..200 {
            if trio.nodes.iter().all(|it| it.node.core.controller.image.brokers.len() == 3) {
                return trio;
            }
            trio.pass_ms(TICK_MS);
        }
        panic!("they do not become a cluster")
    }

    /// Three nodes that were just started.
    pub(super) fn unregistered(pairs: &[(&str, &str)]) -> Self {
        Self::begun_by(3, pairs)
    }

    /// So many nodes that were just started, and begin a cluster.
    pub(super) fn begun_by(founders: usize, pairs: &[(&str, &str)]) -> Self {
        let now = Now { mono_us: 0, wall_ms: WALL_MS };
        let founders: Vec<_> = (0..founders).map(founder).collect();
        let cluster_id = [7; 16];
        let node =
            |at| opened(Store::default(), member(at, 0, (cluster_id, &founders), pairs), now);
        let nodes = (0..founders.len()).map(node).collect();
        let (cut, ahead_ms) = (BTreeSet::new(), BTreeMap::new());
        Self { nodes, now, cut, ahead_ms, severed: None, cluster_id, founders }
    }

    /// One more node is started, of an empty directory.
    pub(super) fn start_another(&mut self, pairs: &[(&str, &str)]) -> usize {
        let at = self.nodes.len();
        let options = member(at, 0, (self.cluster_id, &self.founders), pairs);
        self.nodes.push(opened(Store::default(), options, self.now));
        at
    }

    /// A node ends and is started again, of an empty directory, with others to speak to.
    pub(super) fn start_introduced(&mut self, at: usize, introduced: Vec<i32>) {
        let options = member(at, 0, (self.cluster_id, &self.founders), &[]);
        let options = NodeOptions { introduced, ..options };
        self.nodes[at] = opened(Store::default(), options, self.now);
    }

    /// A node ends and is started again, of an empty directory.
    pub(super) fn wipe(&mut self, at: usize, generation: u8, pairs: &[(&str, &str)]) {
        let options = member(at, generation, (self.cluster_id, &self.founders), pairs);
        self.nodes[at] = opened(Store::default(), options, self.now);
    }

    /// A node's process is started over an empty directory, and nobody asks for the place of the one before it.
    pub(super) fn lose_mount(&mut self, at: usize, generation: u8) {
        let options = member(at, generation, (self.cluster_id, &self.founders), &[]);
        let options = NodeOptions { replaces: false, ..options };
        self.nodes[at] = opened(Store::default(), options, self.now);
    }

    /// A node ends for ever, and what it had is begun anew by it alone, as another cluster; the others are no more.
    pub(super) fn survive(&mut self, at: usize) -> Outcome {
        let facts = self.nodes[at].node.core.options.facts.clone();
        let mut store = std::mem::take(&mut self.nodes[at].store);
        let found = store.recover();
        let plan = Survival::plan(&facts, &found, store.metadata_tail(), self.now.wall_ms);
        let Survival { outcome, founder, ops } = plan.expect("it is a member");
        for op in ops {
            store.execute(op);
        }
        self.founders = vec![Founder {
            peer_id: founder.peer_id,
            broker_id: founder.broker_id,
            directory_id: founder.directory_id,
        }];
        self.cluster_id = [8; 16];
        let options = NodeOptions {
            metadata_tail: store.metadata_tail(),
            ..member(at, 0, (self.cluster_id, &self.founders), &[])
        };
        self.nodes[at] = opened(store, options, self.now);
        self.cut.extend((0..self.nodes.len()).filter(|other| *other != at));
        outcome
    }

    /// A node dies, and is started again with what is stored now.
    pub(super) fn restart(&mut self, at: usize, store: Store, pairs: &[(&str, &str)]) {
        let options = member(at, 0, (self.cluster_id, &self.founders), pairs);
        let seed = options.seed + 1000;
        let options = NodeOptions { seed, metadata_tail: store.metadata_tail(), ..options };
        self.nodes[at] = opened(store, options, self.now_of(at));
    }

    /// What was said is heard, until nobody has more to say.
    pub(super) fn talk(&mut self) {
        for _ in 0..10_000 {
            let mut said = Vec::new();
            for (from, node) in self.nodes.iter_mut().enumerate() {
                said.extend(node.sent.drain(..).map(|(to, frame)| (from, to, frame)));
            }
            if said.is_empty() {
                return;
            }
            for (from, to, frame) in said {
                let to = usize::try_from(to).expect("one of them");
                let is_severed = self.severed == Some((from, to));
                if to >= self.nodes.len() || self.cut.contains(&from) || self.cut.contains(&to) {
                    continue;
                }
                if is_severed {
                    continue;
                }
                let frame = PeerFrame::decode(&frame.encode()).expect("a frame");
                self.nodes[to].step(Event::Peer(Box::new(frame)));
            }
        }
        panic!("they never fall silent");
    }

    /// What one node has said so far is heard.
    pub(super) fn deliver_from(&mut self, from: usize) {
        let said = std::mem::take(&mut self.nodes[from].sent);
        for (to, frame) in said {
            let to = usize::try_from(to).expect("one of three");
            self.nodes[to].step(Event::Peer(Box::new(frame)));
        }
    }

    /// What two nodes have said so far to each other is heard.
    pub(super) fn deliver_between(&mut self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let said = std::mem::take(&mut self.nodes[from].sent);
            for (receiver, frame) in said {
                if receiver == broker(to) {
                    self.nodes[to].step(Event::Peer(Box::new(frame)));
                } else {
                    self.nodes[from].sent.push((receiver, frame));
                }
            }
        }
    }

    /// The time of a node.
    fn now_of(&self, at: usize) -> Now {
        let ahead_ms = self.ahead_ms.get(&at).copied().unwrap_or(0);
        Now { wall_ms: self.now.wall_ms + ahead_ms, ..self.now }
    }

    /// Time passes, on all clocks.
    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.talk();
        let end = self.now.mono_us + ms * 1000;
        loop {
            let due = self.nodes.iter().map(|it| it.node.deadline()).min().expect("three");
            let at = due.clamp(self.now.mono_us, end);
            self.now.wall_ms = WALL_MS + i64::try_from(at / 1000).expect("small");
            self.now.mono_us = at;
            for at_node in 0..self.nodes.len() {
                let now = self.now_of(at_node);
                let node = &mut self.nodes[at_node];
                node.now = now;
                if node.node.deadline() <= at {
                    node.step(Event::Tick);
                }
            }
            self.talk();
            if due > end {
                return;
            }
        }
    }

    /// The node that leads the metadata.
    pub(super) fn controller(&self) -> usize {
        let serves = |at: &usize| self.nodes[*at].node.core.controller.group.is_serving();
        (0..self.nodes.len()).filter(|at| !self.cut.contains(at)).find(serves).expect("one leads")
    }

    /// The node that serves a partition.
    pub(super) fn leader(&self, topic: &str, partition: i32) -> Option<usize> {
        let serves = |at: &usize| {
            let node = &self.nodes[*at].node;
            let topic = node.core.controller.image.topic_named(topic);
            topic.is_some_and(|topic| node.core.serving(topic, partition).is_ok())
        };
        (0..self.nodes.len()).filter(|at| !self.cut.contains(at)).find(serves)
    }

    /// Where the first replica of a partition is.
    pub(super) fn preferred(&self, topic: &str, partition: usize) -> usize {
        let image = &self.nodes[self.controller()].node.core.controller.image;
        let placed = &image.topic_named(topic).expect("it is there").partitions[partition][0];
        usize::try_from(placed.broker_id).expect("one of three")
    }

    /// A node's replica of a partition.
    pub(super) fn replica(&self, at: usize, topic: &str, partition: i32) -> ReplicaId {
        let node = &self.nodes[at].node;
        let topic = node.core.controller.image.topic_named(topic).expect("it is there");
        node.core.local_replica(topic, partition).expect("each has one")
    }

    /// Sends a request, and what it leads to at once happens.
    pub(super) fn send(&mut self, at: usize, request: impl Into<Request>, version: i16) -> i32 {
        let id = self.nodes[at].send(request, version);
        self.talk();
        id
    }

    pub(super) fn response(&mut self, at: usize, id: i32) -> Option<Response> {
        self.nodes[at].response(id)
    }

    /// Sends a request and waits for its answer.
    pub(super) fn ask(&mut self, at: usize, request: impl Into<Request>, version: i16) -> Response {
        let id = self.send(at, request, version);
        for _ in 0..1200 {
            if let Some(response) = self.response(at, id) {
                return response;
            }
            self.pass_ms(TICK_MS);
        }
        panic!("not answered within a minute")
    }

    pub(super) fn try_create(&mut self, at: usize, topic: CreatableTopic) -> CreateTopicsResponse {
        let request =
            CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        match self.ask(at, request, 7) {
            Response::CreateTopics(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// A topic with three replicas of each partition, led by the first ones.
    pub(super) fn create(&mut self, name: &str, partitions: i32) {
        self.create_with(name, partitions, &[]);
    }

    /// A topic as `create` makes it, with these settings.
    pub(super) fn create_with(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let topic = new_topic(name, partitions, configs);
        let topic = CreatableTopic { replication_factor: 3, ..topic };
        let row = self.try_create(self.controller(), topic).topics.remove(0);
        assert_eq!(row.error_code, 0, "{:?}", row.error_message);
        self.pass_ms(3000);
    }

    /// Produces to partition 0.
    pub(super) fn produce(
        &mut self,
        at: usize,
        topic: &str,
        batch: bytes::Bytes,
    ) -> PartitionProduceResponse {
        match self.ask(at, produce_request(topic, batch, -1), 9) {
            Response::Produce(mut response) => {
                response.responses.remove(0).partition_responses.remove(0)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn three_nodes_keep_what_is_produced() {
    let mut trio = Trio::new(&[]);
    trio.create("t", 3);
    for partition in 0..3 {
        let at = usize::try_from(partition).expect("small");
        assert_eq!(trio.leader("t", partition), Some(trio.preferred("t", at)));
    }
    let leader = trio.leader("t", 0).expect("led");
    let part = trio.produce(leader, "t", super::harness::batch(&["a"]));
    assert_eq!((part.error_code, part.base_offset), (0, 0));
    let other = (leader + 1) % 3;
    let part = trio.produce(other, "t", super::harness::batch(&["b"]));
    assert_eq!(part.error_code, ErrorCode::NotLeaderOrFollower.code());
}
