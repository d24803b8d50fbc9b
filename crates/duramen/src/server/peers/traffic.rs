//! Traffic between nodes, counted.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::server::metric_names::Names;

/// A label of a metric.
type Labels = Vec<(&'static str, String)>;

/// Traffic to and from other nodes, by node.
#[derive(Clone, Debug)]
pub struct PeerMetrics {
    sent_frames: Family<Labels, Counter>,
    sent_bytes: Family<Labels, Counter>,
    dropped: Family<Labels, Counter>,
    connects: Family<Labels, Counter>,
    received_frames: Family<Labels, Counter>,
    received_bytes: Family<Labels, Counter>,
}

/// Traffic to and from one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(super) sent_frames: Counter,
    pub(super) sent_bytes: Counter,
    pub(super) dropped: Counter,
    pub(super) connects: Counter,
    pub(super) received_frames: Counter,
    pub(super) received_bytes: Counter,
}

impl PeerMetrics {
    /// Returns all, at zero.
    pub(crate) fn new(of: &mut Names) -> Self {
        Self {
            sent_frames: of.make("peer_sent_frames", "Frames that the node sent to another node"),
            sent_bytes: of.make("peer_sent_bytes", "Bytes that the node sent to another node"),
            dropped: of.make(
                "peer_dropped_frames",
                "Frames for another node that the node dropped: not connected, or too slow",
            ),
            connects: of.make("peer_connects", "Connections that the node opened to another node"),
            received_frames: of.make("peer_received_frames", "Frames that another node sent"),
            received_bytes: of
                .make("peer_received_bytes", "Bytes of frames that another node sent"),
        }
    }

    /// Returns the counters of one node.
    pub(crate) fn of(&self, broker_id: i32) -> Traffic {
        let labels = vec![("peer", broker_id.to_string())];
        let of = |family: &Family<Labels, Counter>| family.get_or_create(&labels).clone();
        Traffic {
            sent_frames: of(&self.sent_frames),
            sent_bytes: of(&self.sent_bytes),
            dropped: of(&self.dropped),
            connects: of(&self.connects),
            received_frames: of(&self.received_frames),
            received_bytes: of(&self.received_bytes),
        }
    }
}
