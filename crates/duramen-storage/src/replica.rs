//! # Room card: replica
//!
//! Purpose:    one replica's files and tickets while the node runs.
//! Owns:       the dirty files, the names that are not durable yet, and the writes that wait for each sync.
//! Interface:  [`Replica`].
//! Invariants: a segment with unsynced bytes stays open until a checkpoint has synced it. The kernel reports an error
//!             of write-back only to handles that were open at that time.
//! Never:      the journal.
//! Tests:      the storage tests.
//! Start at:   [`Replica::write`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use crate::catalog::{LogFiles, Segment, WrittenPart};
use crate::format::{segment_stem, stem_of_dir};
use crate::holds::Holds;
use crate::op::HardState;
use crate::replica_state::{ReplicaState, SegmentState};
use crate::sync::SyncStep;
use crate::{Disk, ReplicaId, SET_ASIDE};

/// Bytes of a segment whose write-back is started together. A checkpoint that finds megabytes to
/// write keeps the disk busy for milliseconds, and the journal's rounds wait behind it.
const WRITEBACK_BYTES: u64 = 512 * 1024;

/// A write that the node waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    /// The round that carries it; 0 if none has to.
    pub(crate) lsn: u64,
    /// Number up to which payload must be synced in segments: this write's payload, and all before.
    pub(crate) bulk: u64,
}

/// Counts files with unsynced bytes, by its clones: each of those files is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyCount(Arc<()>);

impl DirtyCount {
    pub(crate) fn get(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// Payload that is being synced in segments.
#[derive(Clone, Copy, Debug)]
struct Bulk {
    /// First and last index.
    first: u64,
    last: u64,
    /// Segments that have yet to be synced.
    segments: u32,
}

/// A segment with unsynced bytes.
#[derive(Debug)]
pub(crate) struct Dirty<F> {
    pub(crate) file: F,
    /// Write-back was started for the bytes before this position.
    started: u64,
    counted: DirtyCount,
}

/// Written extent of a segment at the last checkpoint.
#[derive(Debug)]
struct Captured<D: Disk> {
    segment: Arc<Segment<D>>,
    written: (u64, i64),
    cuts: u64,
}

/// A replica at work.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "four independent facts")]
pub(crate) struct Replica<D: Disk> {
    /// State as of the last round written.
    pub(crate) state: ReplicaState,
    pub(crate) files: Arc<LogFiles<D>>,
    pub(crate) pending: VecDeque<Ticket>,
    /// Batches beside the log, by their places.
    pub(crate) holds: Holds,
    /// Segments with unsynced bytes.
    pub(crate) dirty: BTreeMap<i64, Dirty<D::File>>,
    /// The round in which the first of them became dirty.
    pub(crate) dirty_since: Option<u64>,
    /// Those that a checkpoint is syncing.
    checkpointing: Vec<DirtyCount>,
    /// Written extent of each segment when the last checkpoint was taken, and its number of cuts.
    captured: Vec<Captured<D>>,
    pub(crate) dir_made: bool,
    /// Number of names made in the directory; `names_synced` counts those that are durable.
    pub(crate) names: u64,
    pub(crate) names_synced: u64,
    /// The first round that replay needs for it.
    pub(crate) live_from: u64,
    /// The first round with a record of it since its last checkpoint was taken.
    pub(crate) first_since_capture: Option<u64>,
    pub(crate) image_wanted: bool,
    /// Index of the newest snapshot that is durable or on its way.
    pub(crate) image_index: u64,
    /// Hard state that may ride with any round.
    pub(crate) rider: Option<HardState>,
    /// Payload up to this index is synced in segments, or was in the journal.
    pub(crate) synced_index: u64,
    bulk_next: u64,
    /// Payload syncs in flight, by number.
    bulk: BTreeMap<u64, Bulk>,
    /// Payload to be synced in segments: its number, the segment, its file.
    pub(crate) payload_due: Vec<(u64, i64, D::File)>,
    /// A checkpoint's syncs, and the names they cover.
    pub(crate) checkpoint_due: Option<(Vec<SyncStep<D::File>>, u64)>,
    /// True if a payload sync or a checkpoint's sync is in flight.
    pub(crate) syncing: bool,
    /// Syncs in flight that use its paths.
    pub(crate) in_flight: u32,
    pub(crate) deleting: bool,
    pub(crate) delete_durable: bool,
}

impl<D: Disk> Replica<D> {
    pub(crate) fn new(state: ReplicaState, files: Arc<LogFiles<D>>, live_from: u64) -> Self {
        Self {
            synced_index: state.synced_index,
            image_index: state.prev_index,
            state,
            files,
            pending: VecDeque::new(),
            holds: Holds::default(),
            dirty: BTreeMap::new(),
            dirty_since: None,
            checkpointing: Vec::new(),
            captured: Vec::new(),
            dir_made: false,
            names: 0,
            names_synced: 0,
            live_from,
            first_since_capture: None,
            image_wanted: false,
            rider: None,
            bulk_next: 1,
            bulk: BTreeMap::new(),
            payload_due: Vec::new(),
            checkpoint_due: None,
            syncing: false,
            in_flight: 0,
            deleting: false,
            delete_durable: false,
        }
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.state.replica
    }

    pub(crate) fn image_path(&self, index: u64) -> String {
        format!("{}/image-{index:020}", self.state.dir())
    }

    /// Returns the path without extension that a segment's files share.
    pub(crate) fn stem_of(&self, segment: &SegmentState) -> String {
        let SegmentState { base_offset, generation, .. } = *segment;
        format!("{}/{}", self.state.dir(), segment_stem(base_offset, self.id(), generation))
    }

    pub(crate) fn segment_paths(&self, segment: &SegmentState) -> impl Iterator<Item = String> {
        let stem = self.stem_of(segment);
        ["log", "index", "timeindex"].into_iter().map(move |it| format!("{stem}.{it}"))
    }

    pub(crate) fn make_dir(&mut self, disk: &D) -> io::Result<()> {
        if !self.dir_made {
            let dir = self.state.dir();
            // Another program's files must not be taken for this replica's. Files of a feed, which wait until the log
            // begins anew, are the replica's own.
            let is_own = |name: &String| name.contains(&format!(".{:x}-", self.id().0));
            if disk.list(&dir).is_ok_and(|names| !names.iter().all(is_own)) {
                let to = format!("{SET_ASIDE}/{}.replica-{}", stem_of_dir(&dir), self.id().0);
                disk.create_dir(SET_ASIDE)?;
                disk.rename(&dir, &to)?;
                tracing::warn!(
                    dir,
                    to,
                    "a new partition needs the name of a directory that is not duramen's: storage sets that directory aside"
                );
            }
            disk.create_dir(&dir)?;
            self.dir_made = true;
            self.names += 1;
        }
        Ok(())
    }

    /// Returns the segment of this base offset. Makes it if it is new.
    pub(crate) fn segment(&mut self, disk: &D, base_offset: i64) -> io::Result<Arc<Segment<D>>> {
        if let Some(last) = self.files.last().filter(|last| last.base_offset == base_offset) {
            return Ok(last);
        }
        self.make_dir(disk)?;
        let dir = self.state.dir();
        let path = format!("{dir}/{}.log", segment_stem(base_offset, self.id(), 0));
        let file = disk.create(&path)?;
        self.names += 1;
        if let Some(sealed) = self.files.last()
            && let Some(time) = self.sealed_time(sealed.base_offset)
        {
            sealed.show_sealed_time(time);
        }
        let segment = Segment::new(&dir, base_offset, file);
        self.files.push(Arc::clone(&segment));
        Ok(segment)
    }

    /// Returns the closing entry of a sealed segment's time index, if readers have not seen it yet.
    fn sealed_time(&self, base_offset: i64) -> Option<crate::replica_state::TimeEntry> {
        let state = self.state.segments.iter().find(|it| it.base_offset == base_offset)?;
        let shown = self.files.last()?.times_shown();
        let all = state.times_flushed as usize + state.times_tail.len();
        (all > shown).then(|| state.times_tail.last().copied()).flatten()
    }

    pub(crate) fn write(
        &mut self,
        disk: &D,
        segment: &Arc<Segment<D>>,
        payloads: &[&[u8]],
        at: u64,
        count: &DirtyCount,
    ) -> io::Result<D::File> {
        let dirty = match self.dirty.entry(segment.base_offset) {
            Entry::Occupied(dirty) => dirty.into_mut(),
            Entry::Vacant(clean) => {
                let (file, counted) = (segment.open(disk)?, count.clone());
                clean.insert(Dirty { file, started: at, counted })
            }
        };
        disk.write_at(&dirty.file, payloads, at)?;
        let end = at + payloads.iter().map(|payload| payload.len() as u64).sum::<u64>();
        if end >= dirty.started + WRITEBACK_BYTES {
            disk.start_writeback(&dirty.file, dirty.started, end - dirty.started)?;
            dirty.started = end;
        }
        Ok(dirty.file.clone())
    }

    /// Hands the dirty files over to a checkpoint. The files count as dirty until it has synced them.
    pub(crate) fn take_dirty(&mut self) -> Vec<D::File> {
        let dirty = std::mem::take(&mut self.dirty).into_values();
        let (files, counted) = dirty.map(|dirty| (dirty.file, dirty.counted)).unzip();
        self.checkpointing = counted;
        let segments = self.files.segments().into_iter();
        let unsettled = segments.filter(|segment| segment.settled() != segment.written());
        let captured = unsettled.map(|segment| {
            let (written, cuts) = (segment.written(), segment.cuts());
            Captured { segment, written, cuts }
        });
        self.captured = captured.collect();
        files
    }

    /// Settles the captured segments, whose checkpoint is durable: their synced bytes are on the medium, and stay as
    /// they are.
    pub(crate) fn settle(&mut self) {
        for Captured { segment, written, cuts } in self.captured.drain(..) {
            segment.settle(written, cuts);
        }
    }

    /// Closes the segments that have nothing unsynced, once a checkpoint has synced them. With very many partitions
    /// only the files that are being written stay open.
    pub(crate) fn close_clean(&mut self) {
        for segment in self.files.segments() {
            if !self.dirty.contains_key(&segment.base_offset) {
                segment.close();
            }
        }
        self.checkpointing.clear();
    }

    /// Takes the file that replaced a segment's; it holds all bytes of the old one, synced.
    pub(crate) fn take_file(&mut self, segment: &Segment<D>, file: &D::File) {
        if let Some(dirty) = self.dirty.get_mut(&segment.base_offset) {
            dirty.file = file.clone();
        }
        for (_, base_offset, due) in &mut self.payload_due {
            if *base_offset == segment.base_offset {
                *due = file.clone();
            }
        }
        let end = segment.written().0;
        segment.replace(file.clone());
        segment.unverify(0, end);
    }

    /// Returns the syncs that make all due payload durable, and the payload's numbers.
    pub(crate) fn take_payload_due(&mut self) -> (Vec<u64>, Vec<SyncStep<D::File>>) {
        let due = std::mem::take(&mut self.payload_due);
        let numbers = due.iter().map(|(number, ..)| *number).collect();
        let files: BTreeMap<i64, D::File> =
            due.into_iter().map(|(_, base_offset, file)| (base_offset, file)).collect();
        let mut steps: Vec<_> = files.into_values().map(SyncStep::File).collect();
        steps.extend(self.name_steps());
        (numbers, steps)
    }

    pub(crate) fn name_steps(&self) -> Vec<SyncStep<D::File>> {
        assert!(self.names_synced <= self.names, "names are made before they are synced");
        if self.names == self.names_synced {
            return Vec::new();
        }
        vec![SyncStep::Dir(self.state.dir()), SyncStep::Dir(String::new())]
    }

    /// Numbers payload that will be synced in segments.
    pub(crate) fn begin_bulk(&mut self, first: u64, last: u64) -> u64 {
        assert!(0 < first && first <= last, "payload is of entries");
        let number = self.bulk_next;
        self.bulk_next += 1;
        self.bulk.insert(number, Bulk { first, last, segments: 0 });
        number
    }

    /// Counts one more segment to sync for the payload of a number.
    pub(crate) fn expect_bulk(&mut self, number: u64) {
        if let Some(bulk) = self.bulk.get_mut(&number) {
            bulk.segments += 1;
        }
    }

    /// Notes that one segment of the payload is synced.
    pub(crate) fn end_bulk(&mut self, number: u64) {
        let Some(bulk) = self.bulk.get_mut(&number) else { return };
        assert!(bulk.segments > 0, "a sync of payload that returns was expected");
        bulk.segments -= 1;
        if bulk.segments > 0 {
            return;
        }
        let last = bulk.last;
        self.bulk.remove(&number);
        let open = self.bulk.values().map(|bulk| bulk.first).min();
        let synced = open.map_or(last, |open| last.min(open - 1));
        self.synced_index = self.synced_index.max(synced);
    }

    /// Forgets syncs of entries that a cut removed: those syncs say nothing of the entries that take their indexes.
    pub(crate) fn cut_bulk(&mut self, from: u64) {
        assert!(from > 0, "the beginning of a log is never cut");
        self.synced_index = self.synced_index.min(from - 1);
        for bulk in self.bulk.values_mut() {
            bulk.first = bulk.first.min(from);
            bulk.last = bulk.last.min(from - 1);
        }
    }

    /// Returns the last number given to such payload.
    pub(crate) fn last_bulk(&self) -> u64 {
        self.bulk_next - 1
    }

    /// Tells whether this payload, or any with a lower number, is still being synced.
    pub(crate) fn in_bulk(&self, number: u64) -> bool {
        self.bulk.first_key_value().is_some_and(|(first, _)| *first <= number)
    }

    /// Returns the number of index entries that the last segment has in memory, before an append.
    pub(crate) fn tail_lengths(&self) -> (Option<i64>, usize, usize) {
        match self.state.segments.last() {
            Some(last) => (Some(last.base_offset), last.index_tail.len(), last.times_tail.len()),
            None => (None, 0, 0),
        }
    }

    /// Returns the addition of the append since then to the last segment.
    pub(crate) fn written_part(
        &self,
        base_offset: i64,
        before: (Option<i64>, usize, usize),
    ) -> WrittenPart {
        let segment = self.state.segments.last().expect("an append makes sure of one");
        assert_eq!(segment.base_offset, base_offset, "an append goes into the last segment");
        let (index, times) =
            if before.0 == Some(base_offset) { (before.1, before.2) } else { (0, 0) };
        WrittenPart {
            size: segment.size,
            end_offset: self.state.end_offset,
            max_timestamp: segment.max_timestamp,
            index: segment.index_tail[index..].to_vec(),
            times: segment.times_tail[times..].to_vec(),
        }
    }

    /// Shows the segments of a feed in the place of all others, once the log begins anew. Returns the files of the
    /// others: nothing needs them any more.
    pub(crate) fn show_given(&mut self) -> Vec<String> {
        let (dir, id) = (self.state.dir(), self.id());
        let compacted = self.state.compacted;
        let below = compacted.below;
        let given = self.state.segments.iter().filter(|it| it.base_offset < below);
        let mut shown = Vec::new();
        for segment in given {
            let mut later = self.state.segments.iter().map(|it| it.base_offset);
            let end = later.find(|base| *base > segment.base_offset).unwrap_or(below);
            shown.push(Segment::recovered(&dir, id, segment, end, segment.size));
        }
        self.dirty.clear();
        let removed = self.files.segments();
        self.files.begin_anew(shown, compacted, &self.state.term_runs);
        removed.iter().flat_map(|segment| segment.paths()).collect()
    }

    /// Cuts the files behind what was kept of the log.
    pub(crate) fn cut_files(
        &mut self,
        disk: &D,
        keep: &BTreeSet<i64>,
        last: Option<&(SegmentState, i64)>,
        count: &DirtyCount,
    ) -> io::Result<()> {
        for segment in self.files.segments() {
            if !keep.contains(&segment.base_offset) {
                self.dirty.remove(&segment.base_offset);
                for path in segment.paths() {
                    match disk.remove_file(&path) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
            }
        }
        self.files.retain(|base| keep.contains(&base));
        if let (Some((state, end_offset)), Some(segment)) = (last, self.files.last()) {
            assert_eq!(
                segment.base_offset, state.base_offset,
                "readers and log end in one segment"
            );
            let file = self.write(disk, &segment, &[], state.size, count)?;
            disk.set_len(&file, state.size)?;
            segment.cut(state, *end_offset);
        }
        Ok(())
    }
}
