//! # Room card: storage's turn
//!
//! Purpose:    write one journal round at a time for all replicas, and carry out its consequences.
//! Owns:       the order of writes and syncs; the moment at which an op counts as persisted.
//! Interface:  [`Storage`], [`SyncRequest`], [`Options`], [`Recovered`].
//! Invariants: at most one round is in flight: storage writes a round only after the sync of the one before it has
//!             returned. After an error storage writes nothing more.
//! Never:      threads: the driver runs the syncs, on any thread and in any order.
//! Tests:      the storage tests, and `duramen-sim`.
//! Start at:   [`Storage::begin_round`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::catalog::{Catalog, WrittenPart};
use crate::checkpoint::Checkpoints;
use crate::compaction::Made;
use crate::disk::is_full;
pub use crate::error::Error;
use crate::error::disk_error;
use crate::format::{JOURNAL_DIR, MANIFEST, ROUND_HEADER_BYTES};
use crate::journal::Journal;
use crate::manifest::Manifest;
use crate::op::{Done, HoldId, Op, OpKind, RecoveredReplica};
pub use crate::options::{Facts, Options, Voter};
use crate::record::Record;
use crate::replica::{DirtyCount, Replica};
use crate::replica_state::SegmentState;
use crate::reserve::Reserve;
use crate::sabotage::{self, Bug};
use crate::staging::Staged;
use crate::sync::Purpose;
pub use crate::sync::{SyncId, SyncKind, SyncRequest, SyncStep};
use crate::{Disk, Reader, ReplicaId, manifest, recovery};

mod checkpointing;
mod compacting;
mod feeds;
mod holding;
mod round;
mod syncing;

/// Result of [`Storage::open`].
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The facts in the manifest: those of [`Options`] if the directory was just formatted.
    pub facts: Facts,
    /// Voters with which the node has promised to form a cluster or, if it has a cluster id, has formed one. Empty
    /// for a node that is a cluster of its own.
    pub voters: Vec<Voter>,
    /// True if the directory was empty and has just been formatted.
    pub formatted: bool,
    /// All replicas, by id.
    pub replicas: Vec<RecoveredReplica>,
}

/// Tells whether an op gives a log a new beginning.
fn begins_anew(op: &Op) -> bool {
    matches!(op.kind, OpKind::Reset(_))
}

/// Files of the ring that a new directory begins with.
const EXTENTS_AT_FIRST: usize = 4;
/// Entries since the last snapshot after which storage asks for the next one, whatever the journal says. Memory and
/// every State hold those entries.
const ENTRIES_MAX: usize = 256;
/// Entries of one write that one round takes.
const ENTRIES_A_ROUND: usize = 4096;
/// Largest round buffer that is kept for reuse, in bytes. A round of 128 appends of 2 KiB takes half of that.
const BUFFER_BYTES_KEPT: usize = 1024 * 1024;
/// Largest snapshot that goes into the journal, in bytes; a larger one gets a file.
const INLINE_IMAGE_BYTES: usize = 256 * 1024;

/// Payload on its way into one segment.
#[derive(Debug)]
struct SegmentWrite {
    replica: ReplicaId,
    base_offset: i64,
    at: u64,
    payloads: Vec<Bytes>,
    batches: Vec<(i64, u64)>,
    part: WrittenPart,
    /// Not in the journal: to be synced under this number.
    bulk: Option<u64>,
}

/// Where a log was cut, before anything was appended again.
#[derive(Debug)]
struct Cut {
    replica: ReplicaId,
    /// The segments that stay.
    keep: BTreeSet<i64>,
    /// The last of them as it is after the cut, with the log's end offset.
    last: Option<(SegmentState, i64)>,
    /// The log begins anew with segments that were given: readers are shown them then.
    is_given: bool,
}

/// The round in flight.
#[derive(Debug)]
struct Round<D: Disk> {
    lsn: u64,
    tail: u64,
    replicas: BTreeSet<ReplicaId>,
    /// Payload that is not in the segments yet.
    writes: VecDeque<SegmentWrite>,
    /// Logs that were cut: their segments are cut, and written, only when the round is durable.
    cuts: Vec<Cut>,
    states: Vec<ReplicaId>,
    deleted: Vec<ReplicaId>,
    gone: Vec<ReplicaId>,
    removals: Vec<(ReplicaId, String)>,
    /// Files that it makes dirty.
    files: usize,
    /// Compactions whose segments readers see once the round is durable.
    installs: Vec<Made<D>>,
    /// Holds to be reported once the round is durable.
    held: Vec<(ReplicaId, HoldId)>,
    /// True once the round is synced.
    durable: bool,
    has_content: bool,
    closing: bool,
}

impl<D: Disk> Round<D> {
    fn new(lsn: u64) -> Self {
        Self {
            lsn,
            tail: 0,
            replicas: BTreeSet::new(),
            writes: VecDeque::new(),
            cuts: Vec::new(),
            states: Vec::new(),
            deleted: Vec::new(),
            gone: Vec::new(),
            removals: Vec::new(),
            files: 0,
            installs: Vec::new(),
            held: Vec::new(),
            durable: false,
            has_content: false,
            closing: false,
        }
    }
}

/// All replicas of one node on one disk.
#[derive(Debug)]
pub struct Storage<D: Disk> {
    pub(crate) disk: D,
    pub(crate) options: Options,
    pub(crate) journal: Journal<D>,
    pub(crate) replicas: BTreeMap<ReplicaId, Replica<D>>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) metrics: Metrics,
    catalog: Arc<Catalog<D>>,
    pub(crate) reserve: Reserve,
    /// True if a write waits for room on the disk; [`Storage::maintain`] tries again.
    lacks_room: bool,
    /// Replicas that recovery found no room to restore: the journal keeps what it holds of them.
    pub(crate) unrestored: BTreeSet<ReplicaId>,
    /// Deleted replicas whose directory could not be renamed for want of room.
    renames: BTreeSet<ReplicaId>,
    dirty_count: DirtyCount,
    queue: VecDeque<Op>,
    /// Replicas whose deletion is queued: the node has forgotten them, and gives no snapshot of them. The queue may
    /// be waiting for their checkpoints.
    doomed: BTreeSet<ReplicaId>,
    images: VecDeque<(ReplicaId, u64, Bytes)>,
    /// Replicas with dead segments that stay until there is a snapshot behind them.
    lingering: BTreeSet<ReplicaId>,
    /// Ops that wait: for the name of a directory under removal, or for room for the snapshot of a log that begins
    /// anew.
    deferred: BTreeMap<ReplicaId, Vec<Op>>,
    /// Records of our own for the next round.
    urgent: VecDeque<Record>,
    /// Replicas with hard state, or a synced mark, that may ride with the next round.
    riders: BTreeSet<ReplicaId>,
    round: Option<Round<D>>,
    /// Results of compactions, for the next round.
    installing: VecDeque<Made<D>>,
    /// Complete feeds of compacted logs, which wait until the logs begin anew.
    pub(crate) staged: BTreeMap<ReplicaId, Staged>,
    /// The last round's bytes, for their memory.
    buffer: Vec<u8>,
    syncs: BTreeMap<SyncId, Purpose>,
    requests: Vec<SyncRequest<D::File>>,
    next_sync: u64,
    pub(crate) done: Vec<Done>,
    /// The extent with the last round of ops; behind it are States and holds that checkpoints wrote.
    ops_extent: u64,
    /// Rounds with content came since the last closing round.
    unclosed: bool,
    closing: bool,
    durable_lsn: u64,
}

impl<D: Disk> Storage<D> {
    /// Opens a data directory, formatting an empty one; recovers every replica from the medium
    /// and returns only after all of it is synced.
    pub fn open(disk: D, mut options: Options) -> Result<(Self, Recovered), Error> {
        let names = disk.list("").map_err(|source| disk_error("listing", ".", source))?;
        let formatted = !names.iter().any(|name| name == MANIFEST);
        if formatted {
            recovery::format(&disk, &options, &names, EXTENTS_AT_FIRST)?;
        }
        let Manifest { facts, voters, extent_bytes } = manifest::read(&disk)?;
        options.facts = facts.clone();
        options.extent_bytes = extent_bytes;
        let catalog = Arc::new(Catalog::new(options.open_files_max));
        let mut reserve = Reserve::open(&disk, &options)?;
        let (journal, found) = recovery::recover(&disk, &options, &catalog, &mut reserve)?;
        let ops_extent = journal.head_sequence();
        let mut storage = Self {
            ops_extent,
            reserve,
            lacks_room: false,
            unrestored: BTreeSet::new(),
            renames: BTreeSet::new(),
            dirty_count: DirtyCount::default(),
            disk,
            options,
            journal,
            replicas: BTreeMap::new(),
            checkpoints: Checkpoints::default(),
            metrics: Metrics::default(),
            catalog,
            queue: VecDeque::new(),
            doomed: BTreeSet::new(),
            images: VecDeque::new(),
            lingering: BTreeSet::new(),
            deferred: BTreeMap::new(),
            urgent: VecDeque::new(),
            riders: BTreeSet::new(),
            round: None,
            installing: VecDeque::new(),
            staged: BTreeMap::new(),
            buffer: Vec::new(),
            syncs: BTreeMap::new(),
            requests: Vec::new(),
            next_sync: 1,
            done: Vec::new(),
            // The last round that recovery adopted may be the last of all: rot in it must not pass
            // for a tear at the next start.
            unclosed: true,
            closing: false,
            durable_lsn: 0,
        };
        let replicas = storage.adopt(found)?;
        Ok((storage, Recovered { facts, voters, formatted, replicas }))
    }

    /// Writes the voters with which the node forms a cluster: first as a promise, without a cluster id, then as a
    /// fact. Durable when the function returns. Only for a directory that was formatted with a cluster id of zeros.
    pub fn join(&mut self, cluster_id: Option<[u8; 16]>, voters: &[Voter]) -> Result<(), Error> {
        assert_eq!(self.options.facts.cluster_id, [0; 16], "who is in a cluster stays there");
        self.belong(cluster_id.unwrap_or_default(), voters.to_vec())
    }

    /// Moves the directory to another cluster, which this node begins alone: the voters of the old cluster are
    /// strangers from then on. Durable when the function returns.
    pub fn secede(&mut self, cluster_id: [u8; 16], founder: Voter) -> Result<(), Error> {
        self.belong(cluster_id, vec![founder])
    }

    fn belong(&mut self, cluster_id: [u8; 16], voters: Vec<Voter>) -> Result<(), Error> {
        let facts = Facts { cluster_id, ..self.options.facts.clone() };
        let extent_bytes = self.options.extent_bytes;
        let manifest = Manifest { facts: facts.clone(), voters, extent_bytes };
        manifest::write(&self.disk, &manifest)?;
        self.options.facts = facts;
        Ok(())
    }

    /// Takes over what recovery found, and makes its cuts durable before anyone sees them.
    fn adopt(&mut self, found: recovery::Found<D>) -> Result<Vec<RecoveredReplica>, Error> {
        let mut recovered = Vec::new();
        for replica in found.replicas {
            recovered.push(replica.recovered);
            if !replica.is_restored {
                self.unrestored.insert(replica.replica.id());
            }
            self.checkpoints.set_live_from(replica.replica.id(), replica.replica.live_from);
            let known = self.replicas.insert(replica.replica.id(), replica.replica);
            assert!(known.is_none(), "recovery finds a replica once");
        }
        self.urgent = found.records.into();
        while !self.urgent.is_empty() {
            let Some(request) = self.begin_round()? else { break };
            self.write_segments()?;
            let result = request.run(&self.disk);
            self.on_sync(request.id, result)?;
            assert!(self.round.is_none(), "a round of recovery ends with its sync");
        }
        for path in found.garbage {
            self.remove_dir_in_background(path);
        }
        self.resume_trims(&recovered);
        // The last round may not have told yet how far the tail had come; and if the journal is full,
        // only a round that does lets the next one begin.
        self.advance_tail();
        // Before anything is appended, and after recovery wrote what it had to.
        self.reserve.look(&self.disk)?;
        self.report_full();
        Ok(recovered)
    }

    /// Resumes trims that had not removed all their segments when the process ended.
    fn resume_trims(&mut self, recovered: &[RecoveredReplica]) {
        for id in recovered.iter().filter(|it| it.damage.is_none()).map(|it| it.replica) {
            let Some(replica) = self.replicas.get(&id) else { continue };
            if replica.state.is_spent() {
                self.urgent.push_back(Record::Emptied { replica: id });
            } else if replica.state.removal_waits_for_image() {
                self.lingering.insert(id);
            }
        }
    }

    /// Returns a reader, for use from any thread.
    pub fn reader(&self) -> Reader<D> {
        Reader::new(self.disk.clone(), Arc::clone(&self.catalog))
    }

    /// Queues an op for the next round.
    pub fn submit(&mut self, op: Op) {
        if let OpKind::Image { index, image } = op.kind {
            // A snapshot may pass the queue, since its entries were persisted long ago. It must, since the queue may
            // wait for the checkpoint that waits for the snapshot.
            self.images.push_back((op.replica, index, image));
            return;
        }
        if let OpKind::Settle = op.kind {
            self.checkpoints.force(op.replica);
            return;
        }
        if let OpKind::LetGo(holds) = op.kind {
            self.let_go_of(op.replica, &holds);
            return;
        }
        if let OpKind::Delete = op.kind {
            self.doomed.insert(op.replica);
            if let Some(replica) = self.replicas.get_mut(&op.replica) {
                replica.image_wanted = false;
            }
        }
        self.queue.push_back(op);
    }

    /// Writes all that is queued as one journal round, if no round is in flight, and returns the sync that makes it
    /// durable. Run the sync elsewhere, and meanwhile call [`Storage::write_segments`].
    pub fn begin_round(&mut self) -> Result<Option<SyncRequest<D::File>>, Error> {
        self.take_images()?;
        let wanted = !self.queue.is_empty()
            || !self.urgent.is_empty()
            || !self.installing.is_empty()
            || self.closing
            || self.journal.tail_unpublished();
        if self.round.is_some() || !wanted {
            return Ok(None);
        }
        let full = self.journal.needs_extent(self.journal.body_bytes_max());
        let free = self.journal.free_extents();
        if full && free == 0 {
            return Ok(None); // even a checkpoint must wait until a file has been made
        }
        let mut round = Round::new(self.journal.next_lsn());
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.resize(ROUND_HEADER_BYTES, 0);
        self.take_urgent(&mut round, &mut buffer);
        let own_bytes = buffer.len();
        if (!full || free > 1) && self.dirty_files() < self.options.dirty_files_max() {
            self.take_installing(&mut round, &mut buffer);
            self.take_queue(&mut round, &mut buffer)?;
        } else if buffer.len() == ROUND_HEADER_BYTES && !self.journal.tail_unpublished() {
            return Ok(None); // checkpoints come first: they free the journal, and close files
        }
        let has_ops = buffer.len() > own_bytes;
        self.take_riders(&mut round, &mut buffer);
        // Records of the riders are hints: a closing round that carries only them closes.
        round.has_content = !(round.replicas.is_empty()
            && round.states.is_empty()
            && round.gone.is_empty()
            && round.deleted.is_empty());
        round.closing = std::mem::take(&mut self.closing) && !round.has_content;
        round.tail = self.journal.tail();
        self.assert_last_round_durable();
        let fits = buffer.len() as u64 <= self.options.extent_bytes;
        assert!(fits, "a round of {} bytes would overrun its extent", buffer.len());
        let (lsn, file) = self.journal.write_round(&mut buffer)?;
        assert!(lsn == round.lsn, "the journal numbers rounds as we do");
        if has_ops {
            self.ops_extent = self.journal.head_sequence();
        }
        self.metrics.rounds += 1;
        self.metrics.journal_bytes += buffer.len() as u64;
        if buffer.capacity() <= BUFFER_BYTES_KEPT {
            self.buffer = buffer;
        }
        assert!(self.round.is_none(), "one round is in flight at a time");
        self.round = Some(round);
        let id = self.request(Purpose::Round, vec![SyncStep::File(file)]);
        let request = self.requests.pop().filter(|request| request.id == id);
        assert!(request.is_some(), "the sync of a round is not lost");
        Ok(request)
    }

    /// Writes the payload of the round in flight into the segments (page cache), and returns the
    /// syncs of payload that is not in the journal. Must be called before the journal's sync is
    /// reported.
    pub fn write_segments(&mut self) -> Result<Vec<SyncRequest<D::File>>, Error> {
        // A cut overwrites what an earlier round made durable: only once it is durable itself.
        if self.round.as_ref().is_some_and(|round| round.cuts.is_empty()) {
            self.perform_writes()?;
        }
        Ok(std::mem::take(&mut self.requests))
    }

    /// Writes the round's payload into the segments, up to where there is no room: the rest waits,
    /// and no round begins until it is written.
    fn perform_writes(&mut self) -> Result<(), Error> {
        let Some(round) = &mut self.round else { return Ok(()) };
        assert!(round.cuts.is_empty(), "a log is cut before anything is written behind the cut");
        let mut writes = std::mem::take(&mut round.writes);
        if writes.is_empty() {
            return Ok(());
        }
        while let Some(write) = writes.front() {
            if !self.perform_write(write)? {
                self.lacks_room = true;
                break;
            }
            writes.pop_front();
        }
        if let Some(round) = &mut self.round {
            assert!(round.writes.is_empty(), "a round gets no more writes once it is written");
            round.writes = writes;
        }
        self.reserve.look(&self.disk)?;
        self.report_full();
        Ok(())
    }

    /// Performs one write. Returns false if there is no room for it.
    fn perform_write(&mut self, write: &SegmentWrite) -> Result<bool, Error> {
        assert_eq!(write.payloads.len(), write.batches.len(), "each payload is of a batch");
        assert!(write.at < write.part.size, "a write adds to its segment");
        let Some(replica) = self.replicas.get_mut(&write.replica).filter(|it| !it.deleting) else {
            return Ok(true);
        };
        let payloads: Vec<&[u8]> = write.payloads.iter().map(|payload| &payload[..]).collect();
        let (disk, count) = (&self.disk, &self.dirty_count);
        let written = self.reserve.when_full(disk, || {
            let segment = replica.segment(disk, write.base_offset)?;
            let file = replica.write(disk, &segment, &payloads, write.at, count)?;
            Ok((segment, file))
        });
        self.note_dirty(write.replica);
        let (segment, file) = match written {
            Err(error) if is_full(&error) => return Ok(false),
            written => written
                .map_err(|source| disk_error("writing", &self.dir_of(write.replica), source))?,
        };
        segment.extend(&write.part, &write.batches);
        if let (Some(bulk), Some(replica)) = (write.bulk, self.replicas.get_mut(&write.replica)) {
            replica.payload_due.push((bulk, write.base_offset, file));
            self.sync_next(write.replica);
        }
        Ok(true)
    }

    /// Returns the number of files with unsynced bytes.
    pub(crate) fn dirty_files(&self) -> usize {
        self.dirty_count.get()
    }

    fn note_dirty(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if replica.dirty_since.is_none() && !replica.dirty.is_empty() {
            let since = self.journal.next_lsn();
            replica.dirty_since = Some(since);
            self.checkpoints.set_dirty(id, since);
        }
    }

    fn dir_of(&self, id: ReplicaId) -> String {
        self.replicas.get(&id).map_or_else(|| ".".to_owned(), |it| it.state.dir())
    }

    fn report_full(&mut self) {
        self.done.extend(self.reserve.take_change());
    }

    /// Tries again the writes that found no room.
    fn retry_for_room(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.lacks_room) {
            return Ok(());
        }
        for id in std::mem::take(&mut self.renames) {
            self.rename_if_deleted(id)?;
        }
        let beginning = self.deferred.iter().filter(|(_, ops)| begins_anew(&ops[0]));
        let beginning: Vec<ReplicaId> = beginning.map(|(id, _)| *id).collect();
        for id in beginning {
            self.take_up_deferred(id);
        }
        match &self.round {
            Some(round) if round.durable => self.end_round(),
            Some(round) if round.cuts.is_empty() => self.perform_writes(),
            _ => Ok(()),
        }
    }

    /// Tells whether a write waits for room on the disk: until there is some, storage writes nothing more.
    pub fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// Starts the replica's next sync, if none is in flight. Never two at once of one file: the
    /// kernel reports a failed write-back once, and then calls the pages clean; a second sync
    /// that runs meanwhile would succeed, and vouch for bytes that were lost.
    pub(crate) fn sync_next(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.syncing) else { return };
        let names = replica.names;
        let (purpose, steps) = if !replica.payload_due.is_empty() {
            let (bulks, steps) = replica.take_payload_due();
            (Purpose::Payload { replica: id, bulks, names }, steps)
        } else if let Some((steps, names)) = replica.checkpoint_due.take() {
            (Purpose::Checkpoint { replica: id, names }, steps)
        } else {
            return;
        };
        replica.syncing = true;
        replica.in_flight += 1;
        self.request(purpose, steps);
    }

    /// Cuts files as their logs were cut, now that this is durable.
    fn perform_cuts(&mut self, cuts: Vec<Cut>) -> Result<(), Error> {
        for cut in cuts {
            let Some(replica) = self.replicas.get_mut(&cut.replica) else { continue };
            let dir = replica.state.dir();
            if cut.is_given {
                let removed = replica.show_given().into_iter().map(|path| (cut.replica, path));
                let removed = removed.collect();
                self.remove_in_background(removed);
                continue;
            }
            replica
                .cut_files(&self.disk, &cut.keep, cut.last.as_ref(), &self.dirty_count)
                .map_err(|source| disk_error("cutting", &dir, source))?;
            self.note_dirty(cut.replica);
        }
        Ok(())
    }

    /// Does one slice of background work, a millisecond or so: checkpoints, removal of old segments, the closing
    /// round of a journal that fell quiet (`idle`). Returns syncs to run. Call it after each round, and about every
    /// 100 ms when nothing happens.
    pub fn maintain(&mut self, idle: bool) -> Result<Vec<SyncRequest<D::File>>, Error> {
        self.retry_for_room()?;
        self.take_images()?;
        let quiet = self.round.is_none() && self.queue.is_empty() && self.urgent.is_empty();
        self.closing = quiet && idle && (self.unclosed || !self.riders.is_empty());
        if idle {
            self.ask_for_lingering();
        }
        self.grow_journal()?;
        self.mark_journal()?;
        self.run_checkpoints()?;
        self.reserve.check(&self.disk, !self.lacks_room && self.unrestored.is_empty())?;
        self.report_full();
        Ok(std::mem::take(&mut self.requests))
    }

    /// Lets the mark follow the journal, whenever that has gone on to another file: one small sync for a whole extent.
    fn mark_journal(&mut self) -> Result<(), Error> {
        let is_marking = self.syncs.values().any(|purpose| matches!(purpose, Purpose::Mark));
        if is_marking || self.round.is_some() || !self.journal.wants_mark() {
            return Ok(());
        }
        self.assert_last_round_durable();
        if let Some((file, is_new)) = self.journal.write_mark(self.journal.last_lsn())? {
            let mut steps = vec![SyncStep::File(file)];
            steps.extend(is_new.then(|| SyncStep::Dir(JOURNAL_DIR.to_owned())));
            self.request(Purpose::Mark, steps);
        }
        Ok(())
    }

    /// Ends in good order: the journal's mark names the last round, so that the next start can verify all of it. Only
    /// when no round is in flight.
    pub fn close(&mut self) -> Result<(), Error> {
        assert!(self.round.is_none(), "the last round is durable when storage is closed");
        self.assert_last_round_durable();
        if let Some((file, is_new)) = self.journal.write_mark(self.journal.last_lsn())? {
            let failed = |source| disk_error("syncing", JOURNAL_DIR, source);
            self.disk.sync(&file).map_err(failed)?;
            if is_new {
                self.disk.sync_dir(JOURNAL_DIR).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// A round in the journal is durable before the next one, or the mark, says so. Of the round before the start,
    /// recovery has made sure.
    fn assert_last_round_durable(&self) {
        let is_first = self.durable_lsn == 0;
        let is_durable = is_first || self.durable_lsn == self.journal.last_lsn();
        assert!(is_durable, "the last round is durable");
    }

    fn grow_journal(&mut self) -> Result<(), Error> {
        if self.journal.growing().is_some() {
            if !self.syncs.values().any(|purpose| matches!(purpose, Purpose::Extent))
                && self.journal.grow_slice()?
                && let Some((file, _)) = self.journal.growing()
            {
                // Whole: it only has to be synced.
                let dir = JOURNAL_DIR.to_owned();
                self.request(Purpose::Extent, vec![SyncStep::File(file), SyncStep::Dir(dir)]);
            }
            return Ok(());
        }
        let free = self.journal.free_extents();
        let (has, wanted) = (self.journal.extent_count(), self.extents_wanted());
        let may_grow = has < self.options.extents_max as usize && !self.reserve.is_full();
        let short = free <= 1 && may_grow && (self.checkpoints.busy() || has < wanted);
        // The States that would free an extent did not fit into the last free one: nothing would be
        // written ever again.
        let stands_still = free == 0 && self.journal.needs_extent(self.journal.body_bytes_max());
        if short || stands_still {
            self.journal.start_growing()?;
        }
        Ok(())
    }

    /// Asks for the replica's snapshot, unless the replica is being deleted.
    pub(crate) fn want_image(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if !replica.image_wanted && !self.doomed.contains(&id) {
            replica.image_wanted = true;
            self.done.push(Done::WantImage { replica: id });
        }
    }

    pub(crate) fn push_state(&mut self, record: Record) {
        self.urgent.push_back(record);
    }

    /// Tells whether every write submitted so far is in its segment.
    pub(crate) fn segments_written(&self) -> bool {
        self.round.as_ref().is_none_or(|round| round.writes.is_empty() && round.cuts.is_empty())
    }

    /// Tells whether no round is under way: the segments hold all payload of the states, and nothing else.
    pub(crate) fn is_between_rounds(&self) -> bool {
        self.round.is_none()
    }

    /// Tells whether the replica is to be removed, or its files lack what the journal has.
    pub(crate) fn is_going(&self, id: ReplicaId) -> bool {
        let is_deleting = self.replicas.get(&id).is_none_or(|replica| replica.deleting);
        is_deleting || self.doomed.contains(&id) || self.unrestored.contains(&id)
    }

    /// Counts one sync fewer in flight for the replica. Renames a deleted replica's directory when none is left,
    /// since a sync must not lose its path.
    fn on_replica_idle(&mut self, id: ReplicaId) -> Result<(), Error> {
        if let Some(replica) = self.replicas.get_mut(&id) {
            assert!(replica.in_flight > 0, "a sync that returns was in flight");
            replica.in_flight -= 1;
        }
        self.rename_if_deleted(id)
    }

    fn rename_if_deleted(&mut self, id: ReplicaId) -> Result<(), Error> {
        let Some(replica) = self.replicas.get(&id) else { return Ok(()) };
        if !replica.delete_durable || replica.in_flight > 0 {
            return Ok(());
        }
        assert!(replica.deleting, "only a deleted replica loses its directory");
        assert!(!replica.syncing, "no sync needs the path of a directory that is renamed");
        if !replica.dir_made || sabotage::is(Bug::DeletedNotRenamed) {
            self.urgent.push_back(Record::Gone { replica: id });
            return Ok(());
        }
        let (from, to) = (replica.state.dir(), replica.state.deleted_dir());
        let disk = &self.disk;
        match self.reserve.when_full(disk, || disk.rename(&from, &to)) {
            Err(error) if is_full(&error) => {
                self.lacks_room = true;
                self.renames.insert(id);
                return Ok(());
            }
            renamed => renamed.map_err(|source| disk_error("renaming", &from, source))?,
        }
        self.request(Purpose::Renamed { replica: id }, vec![SyncStep::Dir(String::new())]);
        Ok(())
    }

    /// Ends a durable round: reports it once all of its payload is in the segments.
    fn end_round(&mut self) -> Result<(), Error> {
        let Some(round) = &mut self.round else { return Ok(()) };
        assert!(round.durable, "only a durable round ends");
        assert_eq!(round.lsn, self.journal.last_lsn(), "the round that ends was written last");
        let installs = std::mem::take(&mut round.installs);
        let cuts = std::mem::take(&mut round.cuts);
        let held = std::mem::take(&mut round.held);
        self.report_held(held);
        self.finish_installs(installs);
        self.perform_cuts(cuts)?;
        self.perform_writes()?;
        let Some(round) = self.round.take_if(|round| round.writes.is_empty()) else {
            return Ok(());
        };
        assert!(self.durable_lsn < round.lsn, "rounds become durable in order");
        self.durable_lsn = round.lsn;
        self.journal.on_durable(round.tail);
        self.unclosed = round.has_content || (self.unclosed && !round.closing);
        for id in round.states {
            self.on_state_durable(id, round.lsn);
        }
        for id in round.replicas {
            self.release(id);
        }
        // Before a directory loses its name.
        if !round.removals.is_empty() {
            self.remove_in_background(round.removals);
        }
        for id in round.deleted {
            if let Some(replica) = self.replicas.get_mut(&id) {
                replica.delete_durable = true;
            }
            self.rename_if_deleted(id)?;
        }
        for id in round.gone {
            self.forget(id);
        }
        self.advance_tail();
        Ok(())
    }

    /// Forgets a replica that is gone for good: its name is free.
    fn forget(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.remove(&id) else { return };
        assert!(replica.delete_durable, "only a deleted replica is forgotten");
        assert_eq!(replica.in_flight, 0, "no sync needs a directory that is gone");
        self.checkpoints.forget(id);
        self.staged.remove(&id);
        if let Some(since) = replica.dirty_since {
            self.checkpoints.set_clean(id, since);
        }
        self.unrestored.remove(&id);
        if replica.dir_made {
            self.remove_dir_in_background(replica.state.deleted_dir());
        }
        let dir = replica.state.dir();
        let freed = self.deferred.iter().find_map(|(id, ops)| match &ops[0].kind {
            OpKind::Create { identity, .. } if identity.dir() == dir => Some(*id),
            _ => None,
        });
        if let Some(id) = freed {
            self.take_up_deferred(id);
        }
    }

    fn take_up_deferred(&mut self, id: ReplicaId) {
        let ops = self.deferred.remove(&id).unwrap_or_default();
        // In front: later ops of the same replica, or name, may be queued already.
        ops.into_iter().rev().for_each(|op| self.queue.push_front(op));
    }

    /// Reports the replica's tickets that are persisted, in order.
    fn release(&mut self, id: ReplicaId) {
        let durable_lsn = self.durable_lsn;
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        while let Some(ticket) = replica.pending.front() {
            let awaits = !sabotage::is(Bug::PayloadSyncNotAwaited);
            let in_bulk = replica.in_bulk(ticket.bulk);
            if ticket.lsn > durable_lsn || (in_bulk && awaits) {
                break;
            }
            let ticket = ticket.number;
            replica.pending.pop_front();
            self.done.push(Done::Persisted { replica: id, ticket });
        }
    }

    /// Returns the reports for the node since the last call.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    /// Tells whether nothing is queued, in flight, or waiting for the closing round.
    pub fn is_quiet(&self) -> bool {
        self.round.is_none()
            && self.queue.is_empty()
            && self.images.is_empty()
            && self.urgent.is_empty()
            && self.installing.is_empty()
            && self.riders.is_empty()
            && self.syncs.is_empty()
            && self.requests.is_empty()
            && !self.unclosed
            && !self.journal.tail_unpublished()
    }

    /// Returns counters and gauges since storage was opened.
    pub fn metrics(&self) -> Metrics {
        let extent = self.options.extent_bytes;
        Metrics {
            journal_live_bytes: self.journal.live_extents() * extent,
            journal_size_bytes: self.journal.extent_count() as u64 * extent,
            replicas: self.replicas.len() as u64,
            ..self.metrics
        }
    }
}

/// Storage's counters and gauges.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics {
    /// Journal rounds written.
    pub rounds: u64,
    /// Batches they carried.
    pub batches: u64,
    /// Bytes written to the journal, padding included.
    pub journal_bytes: u64,
    /// Bytes of batches written to segments.
    pub segment_bytes: u64,
    /// Bytes of the journal that hold what is not checkpointed yet.
    pub journal_live_bytes: u64,
    /// The journal's size now.
    pub journal_size_bytes: u64,
    /// Replica checkpoints completed.
    pub checkpoints: u64,
    /// Replicas on this node.
    pub replicas: u64,
}
