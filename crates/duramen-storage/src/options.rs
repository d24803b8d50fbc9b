//! # Room card: options
//!
//! Purpose:    options for opening storage.
//! Owns:       [`Options`], and the identity of a directory's node.
//! Interface:  the types.
//! Never:      a default: the binary and the simulator choose their own.
//! Start at:   [`Options`].

/// Sizes and facts that storage is opened with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Node-local facts, written when the directory is formatted and compared when it is opened.
    pub facts: Facts,
    /// Size of one journal extent, in bytes; a multiple of 4,096.
    pub extent_bytes: u64,
    /// Most extents the journal may grow to, but where it would stand still; at least 4.
    pub extents_max: u32,
    /// With more replicas than this for each extent that may fill before checkpoints begin, the journal
    /// grows, as far as it may; at least 1.
    pub replicas_an_extent: usize,
    /// A replica's payload of up to this many bytes a round goes into the journal; more is synced
    /// in its segment instead.
    pub journal_payload_max: u32,
    /// One `.index` entry at most every so many bytes of batches.
    pub index_interval_bytes: u32,
    /// Free disk space below which the node refuses appends, in bytes. The amount covers all payload in flight, and
    /// the needs of the journal, indexes, snapshots and the metadata log.
    pub free_bytes_min: u64,
    /// Size of the reserve file that is given up when the disk is full all the same.
    pub reserve_bytes: u64,
    /// Segments' files to keep open, about; at least 16. Half of them for unsynced bytes.
    pub open_files_max: usize,
    /// Replicas whose files are synced at once when the node starts; at least 1. Each has a file or a few open then.
    pub recovered_at_once: usize,
}

impl Options {
    /// Files with unsynced bytes above which rounds wait for checkpoints. One round may add a
    /// quarter of it.
    pub(crate) fn dirty_files_max(&self) -> usize {
        self.open_files_max / 2
    }
}

/// Owner of a data directory. `None` on opening accepts the owner that the directory names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The cluster's id, 16 bytes; zeros as long as the node is in none.
    pub cluster_id: [u8; 16],
    /// The node's id, from 0.
    pub broker_id: i32,
    /// Made when the directory was formatted; a wiped directory has another.
    pub directory_id: [u8; 16],
}

/// One of the voters of a cluster of several nodes, which keep the cluster's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voter {
    /// Id of the voter in the metadata group, from 1.
    pub peer_id: u64,
    /// Broker id of the voter.
    pub broker_id: i32,
    /// Directory id of the voter: no other directory is the voter.
    pub directory_id: [u8; 16],
}
