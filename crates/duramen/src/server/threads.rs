//! # Room card: threads
//!
//! Purpose:    say what the threads of a server hand to each other, and what they share.
//! Owns:       the messages of each queue; [`Common`].
//! Interface:  [`Input`], [`ToNode`], [`Routed`], [`Work`], [`Chore`], [`Ready`], [`Common`].
//! Invariants: each queue has one kind of message, and each kind one reader.
//! Never:      the work of a thread, or the queue itself (see `inbox`).
//! Tests:      those of the threads.
//! Start at:   [`Common`].

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use duramen_broker::census::Counted;
use duramen_broker::peer::PeerFrame;
use duramen_broker::recompression::Targets;
use duramen_broker::{ConnectionId, Event, Reply};
use duramen_protocol::sasl::scram::Credential;
use duramen_storage::backup::Moment;
use duramen_storage::compaction::{Made, Order};
use duramen_storage::indexing;
use duramen_storage::mending::{Mend, Mended};
use duramen_storage::op::{Done, Op};
use duramen_storage::staging::{Stage, Staged};
use duramen_storage::storage::SyncId;
use duramen_storage::{Disk, ReplicaId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot, watch};

use super::health::Health;
use super::inbox::Inbox;
use super::metrics::Metrics;

/// Message to the indexing thread.
#[derive(Debug)]
pub enum Errand {
    /// Index a log.
    Index(indexing::Order),
    /// Write tables of what is in memory, and end.
    Stop,
}

/// The way into the node's thread. The bytes in flight of each connection and of the node bound the inputs where they
/// enter the process (see `server::budget`).
#[derive(Clone, Debug)]
pub struct ToNode(UnboundedSender<Input>);

impl ToNode {
    /// Makes the way, and its end in the node's thread.
    pub fn open() -> (Self, UnboundedReceiver<Input>) {
        let (sender, inputs) = unbounded_channel();
        (Self(sender), inputs)
    }

    /// Adds one input. A node that has ended takes none.
    pub fn push(&self, input: Input) {
        let _ = self.0.send(input);
    }
}

/// State that the threads share.
#[derive(Clone, Debug)]
pub struct Common {
    /// The way into the node's thread.
    pub node: ToNode,
    /// Inbox of the storage thread.
    pub work: Arc<Inbox<Work>>,
    /// Inbox of the scrubbing thread, which works on data at rest.
    pub chores: Arc<Inbox<Chore>>,
    /// Inbox of the indexing thread.
    pub orders: Arc<Inbox<Errand>>,
    /// Metrics that all threads count.
    pub metrics: Arc<Metrics>,
    /// Health that the threads report.
    pub health: Arc<Health>,
    /// Topics with a codec of their own, as the node said last.
    pub targets: watch::Sender<Arc<Targets>>,
    /// Signal that the node leads nothing any more that others could lead.
    pub drained: Arc<Notify>,
}

impl Common {
    /// Makes the state of a new process, and the end of the way into its node's thread.
    pub fn new() -> (Self, UnboundedReceiver<Input>) {
        let (node, inputs) = ToNode::open();
        let common = Self {
            node,
            work: Arc::default(),
            chores: Arc::default(),
            orders: Arc::default(),
            metrics: Arc::default(),
            health: Arc::default(),
            targets: watch::Sender::default(),
            drained: Arc::default(),
        };
        (common, inputs)
    }

    /// Returns the topics with a codec of their own. The node may have said them before anybody listened, so they count
    /// as new.
    pub fn targets(&self) -> watch::Receiver<Arc<Targets>> {
        let mut targets = self.targets.subscribe();
        targets.mark_changed();
        targets
    }
}

/// Input of the node's thread.
#[derive(Debug)]
pub enum Input {
    /// A connection, and the channel for its replies. The requests that its session lets wait bound the replies that
    /// wait there.
    Connected(ConnectionId, UnboundedSender<Routed>),
    /// Event for the node.
    Event(Event),
    /// Frame of another node. Room for its next frame is there again when the permit is gone.
    Peer(Box<PeerFrame>, OwnedSemaphorePermit),
    /// Storage reports.
    Storage(Vec<Done>),
    /// Count partitions and groups for metrics, part by part; `None` comes after the last part.
    Census(UnboundedSender<Option<Vec<Counted>>>),
    /// Take the waiting input, give storage the last batch, end.
    Stop,
}

/// Message to a connection.
#[derive(Debug)]
pub enum Routed {
    /// The answer to a request.
    Reply(u64, Reply),
    /// The credential by which a client shows that it is a user.
    Credential(Arc<Credential>),
    /// Close, after a log line with this reason.
    Close(String),
}

/// Input of the storage thread.
#[derive(Debug)]
pub enum Work {
    /// One turn's ops, in order.
    Ops(Vec<Op>),
    /// A sync thread is done.
    Synced(SyncId, io::Result<()>),
    /// Segments are ready to take others' place.
    Ready,
    /// Answer with the state of these replicas, each up to a committed entry. `None` if the moment has passed.
    Moment(Arc<BTreeMap<ReplicaId, u64>>, oneshot::Sender<Option<Box<Moment>>>),
    /// Answer whether the replicas still have the files of a moment.
    HasFiles(Arc<Moment>, oneshot::Sender<bool>),
    /// Finish the submitted work, close the journal, end.
    Stop,
}

/// Job for the scrubbing thread.
#[derive(Debug)]
pub enum Chore {
    /// Copy a segment and fill its damaged ranges.
    Mend(Mend),
    /// Compact a log.
    Compact(Order),
    /// Keep the pieces of a compacted log that another replica gives.
    Stage(Stage),
}

/// Product of the scrubbing thread, for storage.
#[derive(Debug)]
pub enum Ready<D: Disk> {
    /// A copy of a segment.
    Mended(Mended<D>),
    /// Segments of a compacted log.
    Compacted(Box<Made<D>>),
    /// All that another replica gave of a compacted log.
    Staged(Box<Staged>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_from_before_a_connection_is_new_to_it() {
        let (common, _inputs) = Common::new();
        common.targets.send_replace(Arc::default());
        let mut first = common.targets();
        assert!(first.clone().has_changed().unwrap(), "also to one that comes later");
        first.borrow_and_update();
        assert!(!first.has_changed().unwrap());
    }
}
