//! # Room card: opening
//!
//! Purpose:    make a node over the replicas that storage recovered.
//! Owns:       [`NodeOptions`]; requests that come before the groups with this node as their only voter have a leader.
//! Interface:  [`Node::open`]; the node calls the rest.
//! Invariants: a request waits until the node is registered and leads the groups with no other voter, or the time for
//!             that is over. Then the node executes the waiting requests in their order.
//! Never:      recovery (see `duramen-storage`), elections of groups with several voters.
//! Tests:      `node/tests/restart.rs`.
//! Start at:   [`Node::open`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use duramen_storage::op::{RecoveredReplica, ReplicaId};
use duramen_storage::sabotage::{self, Bug};
use duramen_storage::storage::Facts;

use super::backpressure::Backpressure;
use super::certainty::Certainty;
use super::clocks::Clocks;
use super::coordinators::Coordinators;
use super::dead_letters::DeadLetterCopies;
use super::forwarding::Forwards;
use super::members::Members;
use super::metrics::Metrics;
use super::moves::Moves;
use super::pending::Pending;
use super::quiescence::Quiescence;
use super::quotas::Timed;
use super::repair::Repairs;
use super::share_calls::ShareCalls;
use super::shares::Shares;
use super::snapshot_feed::Feeds;
use super::sweep::Sweep;
use super::transactions::Calls;
use super::{Node, Peers, Signal, Timer, peers};
use crate::access::Access;
use crate::configs::{BrokerSettings, TopicSettings};
use crate::controller::{Controller, Founder, METADATA_REPLICA, is_metadata};
use crate::event::{Action, Now, RequestKey};
use crate::fetch_sessions::FetchSessions;
use crate::limits::{Memory, OPENING_US_MAX};
use crate::partition::Partition;
use crate::partition::retention::ClockWatch;
use crate::prng::Prng;
use crate::quotas::Meters;
use crate::session::{Prepared, RequestContext};

/// Options with which a node is opened.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Identity of the node, from the manifest.
    pub facts: Facts,
    /// The listener's name, for registration.
    pub listener: String,
    /// The host that clients are told to connect to.
    pub host: String,
    /// The port that clients are told to connect to.
    pub port: u16,
    /// Rack of the node, if it is known.
    pub rack: Option<String>,
    /// Its data directory, as clients are told of it.
    pub log_dir: String,
    /// Its configuration.
    pub settings: BrokerSettings,
    /// Seed of all randomness of the node; another one at each start.
    pub seed: u64,
    /// Bytes of record batches it may hold before their sync.
    pub bytes_in_flight_max: u64,
    /// The metadata log's batches after its image: [`crate::read_plan::metadata_tail`].
    pub metadata_tail: Vec<Bytes>,
    /// Address at which other nodes reach this one, if they can.
    pub node_address: Option<(String, u16)>,
    /// Founders of the cluster, the same on all nodes. Empty if the node is alone for ever.
    pub founders: Vec<Founder>,
    /// Nodes named at the start. This node speaks to them until it is registered, because all founders may have been
    /// replaced.
    pub introduced: Vec<i32>,
    /// True if the node asks for the place of the directory that is registered under its id. Otherwise that place is
    /// never given away.
    pub replaces: bool,
    /// Limits of the memory that groups keep for followers.
    pub memory: Memory,
    /// Ticks without anything to do after which groups of several voters sleep.
    pub quiet_ticks: u64,
}

impl NodeOptions {
    /// Lets the settings say what is so, where it was not given, or in other words: tools ask.
    fn settle(&mut self) {
        let id = self.facts.broker_id.to_string();
        let host = &self.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let advertised = format!("{}://{host}:{}", self.listener, self.port);
        self.settings.settle("node.id", id.clone());
        self.settings.settle("broker.id", id);
        self.settings.settle("advertised.listeners", advertised);
        self.settings.settle("queued.max.request.bytes", self.bytes_in_flight_max.to_string());
    }
}

/// While the groups found on disk elect themselves, requests are kept.
#[derive(Debug, Default)]
pub(super) struct Opening {
    pub held: VecDeque<(RequestKey, RequestContext, Box<Prepared>)>,
    pub awaited: BTreeSet<ReplicaId>,
}

impl Node {
    /// Opens a node over the state that storage recovered. Requests are kept until its groups lead.
    pub fn open(
        mut options: NodeOptions,
        recovered: Vec<RecoveredReplica>,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Self {
        let seed = options.seed;
        options.settle();
        let tail = std::mem::take(&mut options.metadata_tail);
        let metadata = recovered.iter().find(|found| is_metadata(&found.identity));
        let controller =
            Self::open_controller(&options, metadata, tail).unwrap_or_else(|problem| {
                actions.push(Action::Fatal(problem));
                Controller::create(METADATA_REPLICA, &[METADATA_REPLICA.0], seed)
            });
        let mut node = Self {
            access: Access::default(),
            controller,
            partitions: BTreeMap::new(),
            sessions: FetchSessions::new(Prng::stream(seed, 0x6665_7463_6800)),
            counters: Metrics::default(),
            parked: BTreeMap::new(),
            timers: BTreeSet::new(),
            dirty: VecDeque::new(),
            is_controller_dirty: true,
            opening: Some(Opening::default()),
            registration: None,
            is_registered: false,
            backpressure: Backpressure::default(),
            pending: Pending::default(),
            certainty: Certainty::default(),
            bytes_in_flight: 0,
            disk_shortage: None,
            producer_ids: (0, 0),
            allocating: None,
            peers: Peers::new(std::mem::take(&mut options.founders)),
            members: Members::default(),
            useless: BTreeSet::new(),
            quiescence: Quiescence::new(options.quiet_ticks),
            moves: Moves::new(&options.settings),
            forwards: Forwards::default(),
            repairs: Repairs::default(),
            feeds: Feeds::default(),
            clock: ClockWatch::new(now),
            clocks: Clocks::default(),
            retention: Sweep::default(),
            cleaning: Sweep::default(),
            producers: Sweep::default(),
            reconfigured: None,
            coordinators: Coordinators::new(&options.settings),
            calls: Calls::default(),
            share_calls: ShareCalls::default(),
            shares: Shares::new(&options.settings),
            dead_letters: DeadLetterCopies::default(),
            chance: Prng::stream(seed, 0x006d_656d_6265_7273),
            meters: Meters::default(),
            timed: Timed::default(),
            now,
            out: std::mem::take(actions),
            signals: VecDeque::new(),
            options,
        };
        node.controller.group.keep_in_memory(node.options.memory);
        node.take_dynamic_settings();
        if node.controller.group.is_alone() {
            node.controller.group.campaign();
        }
        let logs = recovered.into_iter().filter(|found| !is_metadata(&found.identity));
        logs.for_each(|found| node.adopt(&found));
        node.tell_nodes();
        node.schedule_ticks();
        node.timers.insert((now.mono_us + OPENING_US_MAX, Timer::Opened));
        node.schedule_sweeps();
        *actions = std::mem::take(&mut node.out);
        node.flush(now, actions);
        node
    }

    fn open_controller(
        options: &NodeOptions,
        found: Option<&RecoveredReplica>,
        tail: Vec<Bytes>,
    ) -> Result<Controller, String> {
        let (mut replica, voters) = peers::metadata_replica(options)?;
        if sabotage::is(Bug::WipedVotes) {
            let mut founders = options.founders.iter();
            let named = founders.find(|it| it.broker_id == options.facts.broker_id);
            replica = named.map_or(replica, |named| ReplicaId(named.peer_id));
        }
        let Some(found) = found else {
            return Ok(if voters.contains(&replica.0) {
                Controller::create(replica, &voters, options.seed)
            } else {
                Controller::await_birth(replica, options.seed)
            });
        };
        if found.replica != replica {
            return Err("the data directory holds the metadata of another cluster".to_owned());
        }
        Controller::recover(found, tail, options.seed)
    }

    fn adopt(&mut self, found: &RecoveredReplica) {
        // The topic's own settings come with the metadata, before anything is appended.
        let settings = TopicSettings::resolve(&BTreeMap::new(), &self.options.settings);
        let seed = self.options.seed;
        let mut partition = Partition::recover(found, Arc::new(settings), self.now, seed);
        partition.group.keep_in_memory(self.options.memory);
        if found.damage.is_some() && !found.lacks_room {
            self.useless.insert(found.replica);
        }
        // A group of several voters may elect its leader later; no request waits for that here.
        if partition.group.is_alone() {
            partition.group.campaign();
            if let Some(opening) = &mut self.opening {
                opening.awaited.insert(found.replica);
            }
        }
        self.peers.tick(found.replica);
        self.quiescence.begin(found.replica);
        self.partitions.insert(found.replica, partition);
        self.mark_dirty(found.replica);
    }

    /// Keeps a request while the node opens; hands it back once the node is open.
    pub(crate) fn hold(
        &mut self,
        key: RequestKey,
        context: RequestContext,
        request: Box<Prepared>,
    ) -> Option<(RequestContext, Box<Prepared>)> {
        let Some(opening) = &mut self.opening else { return Some((context, request)) };
        opening.held.push_back((key, context, request));
        None
    }

    pub(crate) fn note_opened(&mut self, replica: ReplicaId) {
        let Some(opening) = &mut self.opening else { return };
        opening.awaited.remove(&replica);
        if self.is_registered && opening.awaited.is_empty() {
            self.finish_opening();
        }
    }

    pub(crate) fn finish_opening(&mut self) {
        let Some(opening) = self.opening.take() else { return };
        self.timers.retain(|(_, timer)| *timer != Timer::Opened);
        for (key, context, request) in opening.held {
            self.signals.push_back(Signal::Judge { key, context, request });
        }
    }
}
