//! Traffic of clients at one replica, counted for metrics.

use super::Partition;

/// Traffic of clients at one replica since the node was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Batches that clients gave to the replica, refused ones among them.
    pub appends: u64,
    /// Batches that the replica refused. One whose condition does not hold is not among them.
    pub appends_refused: u64,
    /// Bytes of appended batches.
    pub appended_bytes: u64,
    /// Records of appended batches.
    pub appended_records: u64,
    /// Looks of a Fetch at the replica. A Fetch that waits for records looks twice.
    pub reads: u64,
    /// Looks that ended with an error.
    pub reads_refused: u64,
}

impl Partition {
    /// Counts a batch of a client: its records, the bytes of it that were appended, and its refusal.
    pub(crate) fn note_append(&mut self, records: u64, bytes: u64, is_refused: bool) {
        let traffic = self.traffic.get_mut();
        traffic.appends += 1;
        traffic.appends_refused += u64::from(is_refused);
        // A batch that is in the log already adds nothing.
        if bytes > 0 {
            traffic.appended_bytes += bytes;
            traffic.appended_records += records;
        }
    }

    /// Counts a look of a Fetch. A look changes nothing else, so it has no mutable replica.
    pub(crate) fn note_read(&self, is_refused: bool) {
        let mut traffic = self.traffic.get();
        traffic.reads += 1;
        traffic.reads_refused += u64::from(is_refused);
        self.traffic.set(traffic);
    }

    /// Returns the traffic since the node was opened.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.get()
    }
}
