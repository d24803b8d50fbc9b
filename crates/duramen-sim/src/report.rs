//! Counts of a run of a cluster, its clients' among them.

use crate::trace::Trace;

/// Counts of a good run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: Trace,
    /// Machines.
    pub machines: usize,
    /// Successful starts.
    pub starts: u64,
    /// Frames sent.
    pub frames: u64,
    /// Requests sent.
    pub requests: u64,
    /// Batches acknowledged.
    pub acked: u64,
    /// Records read.
    pub shown: u64,
    /// Answers with records that a follower gave, by partition.
    pub of_followers: u64,
    /// Times that a replica began to lead.
    pub elections: u64,
    /// Times that a replica's log began anew.
    pub begun: u64,
    /// Entries that leaders made again from segments.
    pub rebuilt: u64,
    /// Disks that were lost.
    pub wiped: u64,
    /// Times that a replica became quiesced.
    pub slept: u64,
    /// Times that a quiesced replica lost the conditions for it, and woke.
    pub roused: u64,
    /// Times that a machine failed while all groups slept.
    pub nights: u64,
    /// Bits that flipped at rest, and segments that were repaired.
    pub flips: u64,
    /// See above.
    pub mended: u64,
    /// Times that a machine's wall clock leapt.
    pub leaps: u64,
    /// Operations of the native API that were done, and those that a guard refused.
    pub operated: u64,
    /// See above.
    pub objected: u64,
    /// Generations of a group whose members knew what they own, and commits of theirs that were refused.
    pub generations: u64,
    /// See above.
    pub fenced: u64,
    /// Transactions that their producers know to be committed, and to be aborted.
    pub transacted: (u64, u64),
    /// Assignments that members of the consumer protocol were told, and commits of theirs that were refused.
    pub assigned: (u64, u64),
    /// Number of times that a group became one of the consumer protocol, and one of the classic one.
    pub changed: (u64, u64),
    /// Records that were given to consumers of a share group, decisions that were answered, and dead letters.
    pub given: (u64, u64, u64),
    /// Leases that workers had, decisions on them that were taken, and dead letters.
    pub leased: (u64, u64, u64),
    /// Batches of transactions for the share group that were committed, and aborted.
    pub written: (u64, u64),
    /// Settings that were changed.
    pub altered: u64,
    /// Stretches of fast appends, and batches that were complete by the answers of members alone.
    pub fast: (u64, u64),
    /// Machines that were taken out, and that came back with an empty disk.
    pub left: u64,
    /// See above.
    pub returned: u64,
    /// Topics that were deleted.
    pub deleted: u64,
    /// Logs that were compacted in the end, pieces that were given of such, and times that a log began anew with them.
    pub compacted: u64,
    /// See above.
    pub fed: u64,
    /// Times that somebody filled a disk, and produces that were refused for it.
    pub filled: u64,
    /// See above.
    pub refused: u64,
}
