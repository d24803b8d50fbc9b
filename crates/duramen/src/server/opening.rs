//! # Room card: opening
//!
//! Purpose:    open the storage of a data directory, and refuse a directory that this node may not run on.
//! Owns:       the sizes of storage that are no setting; the advice with each refusal.
//! Interface:  [`open_storage`], [`free_bytes_min`], [`cure`].
//! Invariants: a refused directory is as recovery left it.
//! Never:      recovery itself (the storage crate's), and the node over the storage (see `server`).
//! Tests:      `tests/server.rs`, `tests/cluster.rs`.
//! Start at:   [`open_storage`].

use anyhow::{Context, bail};
use duramen_broker::METADATA_TOPIC;
use duramen_broker::limits::FRAME_BYTES_MAX;
use duramen_storage::op::RecoveredReplica;
use duramen_storage::storage::{Facts, Recovered};
use duramen_storage::{Options, Storage};

use super::chance::random;
use super::disk::RealDisk;
use super::freezing;
use super::settings::ServerSettings;
use crate::config::Config;

const JOURNAL_EXTENT_BYTES: u64 = 16 << 20;
const JOURNAL_EXTENTS_MAX: u32 = 32;
/// A checkpoint costs about what 64 KiB of appends cost; here it comes once in 128 KiB.
const REPLICAS_AN_EXTENT: usize = 128;
/// Largest payload, in bytes, for which one more copy in the journal costs less than one more sync.
const JOURNAL_PAYLOAD_MAX: u32 = 512 << 10;
/// Bytes kept free on the disk beside room for all payload in flight. A growing journal, the metadata log, indexes and
/// snapshots need them, and so does the space of files beyond their bytes.
const FREE_BYTES_BESIDE: u64 = 128 << 20;
const RESERVE_BYTES: u64 = 32 << 20;
/// Most replicas whose files are synced at once at the start.
const RECOVERED_AT_ONCE: usize = 512;

/// Returns the bytes that the node keeps free on the disk.
pub(super) fn free_bytes_min(settings: &ServerSettings) -> u64 {
    // A request that is larger than the limit of bytes in flight is taken in alone.
    let in_flight_bytes_max = settings.in_flight_bytes_max.max(FRAME_BYTES_MAX as u64);
    FREE_BYTES_BESIDE.saturating_add(in_flight_bytes_max)
}

/// Opens the storage of the configured data directory, or says why this node cannot run on it.
pub(super) fn open_storage(
    config: &Config,
    settings: &ServerSettings,
    broker: &duramen_broker::configs::BrokerSettings,
    open_files_max: usize,
    listens_for_nodes: bool,
) -> anyhow::Result<(Storage<RealDisk>, Recovered)> {
    let path = config.data_dir.as_path();
    let disk = RealDisk::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => anyhow::anyhow!(
            "the data directory {} is in use by another process: stop that one, or choose another \
             directory with --data-dir DIR",
            path.display()
        ),
        _ => anyhow::Error::new(error)
            .context(format!("cannot open the data directory {}", path.display())),
    })?;
    if let Err(error) = freezing::thaw(path) {
        tracing::warn!(%error, "cannot remove what a backup left in the folder backup of the data directory");
    }
    let is_alone = settings.nodes.is_empty();
    let facts = Facts {
        cluster_id: if is_alone { random()? } else { [0; 16] },
        broker_id: settings.node_id.unwrap_or(1),
        directory_id: random()?,
    };
    let options = Options {
        facts,
        extent_bytes: JOURNAL_EXTENT_BYTES,
        extents_max: JOURNAL_EXTENTS_MAX,
        replicas_an_extent: REPLICAS_AN_EXTENT,
        journal_payload_max: JOURNAL_PAYLOAD_MAX,
        index_interval_bytes: u32::try_from(broker.index_interval_bytes).unwrap_or(0),
        free_bytes_min: free_bytes_min(settings),
        reserve_bytes: RESERVE_BYTES,
        open_files_max,
        recovered_at_once: RECOVERED_AT_ONCE.min(open_files_max / 4),
    };
    let (storage, recovered) = Storage::open(disk, options)
        .with_context(|| format!("cannot open the data directory {}", path.display()))?;
    let facts = &recovered.facts;
    if let Some(wanted) = settings.node_id.filter(|wanted| *wanted != facts.broker_id) {
        bail!(
            "node.id is {wanted}, but the data directory {} belongs to node {}",
            path.display(),
            facts.broker_id
        );
    }
    let was_forming = recovered.facts.cluster_id == [0; 16];
    if is_alone && was_forming {
        bail!(
            "the data directory {} was to form a cluster with others: say where all its nodes are with the setting \
             controller.quorum.voters",
            path.display()
        );
    }
    let is_metadata = |it: &&RecoveredReplica| it.identity.topic == METADATA_TOPIC;
    let metadata = recovered.replicas.iter().find(is_metadata);
    if let Some(damage) = metadata.and_then(|it| it.damage.as_ref().filter(|_| !it.lacks_room)) {
        bail!("the metadata log is damaged: {damage}; {}", cure(&recovered.replicas));
    }
    let has_others = !recovered.voters.is_empty()
        || metadata.is_some_and(|it| it.conf.voters.len() + it.conf.learners.len() > 1);
    if has_others && !listens_for_nodes {
        bail!(
            "the data directory {} belongs to a node of a cluster: say where the other nodes reach it with --node-listen \
             HOST:PORT",
            path.display()
        );
    }
    Ok((storage, recovered))
}

/// Returns the advice for a damaged metadata log. Without that log nothing else can be found, so the node does not
/// start.
pub(super) fn cure(replicas: &[RecoveredReplica]) -> &'static str {
    let metadata = replicas.iter().find(|it| it.identity.topic == METADATA_TOPIC);
    if metadata.is_some_and(|it| it.conf.voters == [it.replica.0]) {
        "no other node has a vote on it: start with a backup of the data directory, or see docs/operations.md, \"A damaged \
         journal\", for what can be read without it"
    } else {
        "where most other nodes of the cluster are well, start this one with an empty data directory, the same node.id and \
         --replace: it takes the place of the lost one and gets from them what that had. Else see docs/operations.md, \"A \
         damaged journal\""
    }
}
