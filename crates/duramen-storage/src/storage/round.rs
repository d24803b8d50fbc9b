//! # Room card: round
//!
//! Purpose:    make one journal round of all waiting ops.
//! Owns:       the records of each op, and its effect on its replica's state.
//! Interface:  `Storage::take_urgent`, `take_queue`, `take_riders`.
//! Invariants: one step encodes a record and changes the state, as replay does.
//! Never:      I/O, but for images too large for the journal.
//! Tests:      the storage tests.
//! Start at:   `Storage::take_op`.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    Cut, ENTRIES_A_ROUND, ENTRIES_MAX, INLINE_IMAGE_BYTES, Round, SegmentWrite, Storage,
    begins_anew,
};
use crate::checkpoint::Stage;
use crate::descriptor::BATCH_HEADER_BYTES;
use crate::disk::{ignore_missing, is_full};
use crate::encoding::ImageSource;
use crate::error::{Error, disk_error};
use crate::op::{Append, Beginning, ConfState, Content, Done, HardState, Identity, Op, OpKind};
use crate::record::Record;
use crate::replica::{Replica, Ticket};
use crate::replica_state::{ReplicaState, SegmentState};
use crate::sabotage::{self, Bug};
use crate::sync::{Purpose, SyncStep};
use crate::{Disk, ReplicaId};

impl<D: Disk> Storage<D> {
    /// Takes our own records first: they free the journal.
    pub(super) fn take_urgent(&mut self, round: &mut Round<D>, buffer: &mut Vec<u8>) {
        let most = self.journal.body_bytes_max() / 2;
        let mut implied = false; // what an image implies goes into one round with it
        while buffer.len() < most || implied {
            let Some(record) = self.urgent.pop_front() else { break };
            implied = matches!(record, Record::Conf { .. } | Record::Trim { .. });
            match &record {
                Record::State { as_of, state } => {
                    let stage = self.checkpoints.running.get(&state.replica);
                    let is_synced = matches!(stage, Some(Stage::Writing));
                    assert!(is_synced, "what a State says is synced before the State is written");
                    assert!(*as_of <= round.lsn, "a State stands between two rounds");
                    round.states.push(state.replica);
                }
                Record::Gone { replica } => {
                    let here = self.replicas.get(replica);
                    let is_deleted = here.is_none_or(|it| it.delete_durable);
                    assert!(is_deleted, "a replica is gone after its deletion");
                    round.gone.push(*replica);
                }
                Record::Conf { replica: id, conf } => {
                    if let Some(replica) = self.replicas.get_mut(id) {
                        replica.state.set_conf(conf);
                    }
                    self.touch(round, *id);
                }
                Record::Trim { replica: id, log_start } => {
                    if let Some(replica) = self.replicas.get_mut(id) {
                        replica.state.trim(*log_start);
                    }
                    self.touch(round, *id);
                    self.remove_dead_segments(*id, round);
                }
                Record::Image { replica, index, image } => {
                    self.apply_image(*replica, *index, image.clone(), round);
                    self.touch(round, *replica);
                }
                Record::Emptied { replica } => {
                    if !self.empty(*replica, round) {
                        continue; // a batch has come since
                    }
                }
                _ => self.touch(round, record.replica()),
            }
            record.encode(buffer);
        }
        assert!(!implied, "what a snapshot implies is in one round with it");
    }

    /// Notes that the round holds a record of this replica that replay needs.
    pub(super) fn touch(&mut self, round: &mut Round<D>, replica: ReplicaId) {
        round.replicas.insert(replica);
        if let Some(replica) = self.replicas.get_mut(&replica) {
            replica.first_since_capture.get_or_insert(round.lsn);
        }
    }

    pub(super) fn take_queue(
        &mut self,
        round: &mut Round<D>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let most = self.journal.body_bytes_max() / 2;
        let files_max = self.options.dirty_files_max();
        while buffer.len() < most && self.dirty_files() + round.files < files_max {
            let Some(op) = self.queue.pop_front() else { break };
            if let Some(waiting) = self.deferred.get_mut(&op.replica) {
                if op.kind != OpKind::Delete || !begins_anew(&waiting[0]) {
                    waiting.push(op);
                    continue;
                }
                // Else what makes room would wait for room.
                self.deferred.remove(&op.replica);
            }
            if round.replicas.contains(&op.replica) && self.cuts(&op) {
                // A cut is the first thing a round does to a replica, so that it never has to
                // cut what the same round writes.
                self.queue.push_front(op);
                break;
            }
            self.take_op(op, round, buffer)?;
        }
        Ok(())
    }

    /// Tells whether the op cuts the log: it conflicts with stored entries, or begins the log anew.
    fn cuts(&self, op: &Op) -> bool {
        let OpKind::Write { appends, .. } = &op.kind else {
            return begins_anew(op);
        };
        let (Some(first), Some(replica)) = (appends.first(), self.replicas.get(&op.replica)) else {
            return false;
        };
        first.entry.index <= replica.state.last_index()
    }

    fn take_op(&mut self, op: Op, round: &mut Round<D>, buffer: &mut Vec<u8>) -> Result<(), Error> {
        let id = op.replica;
        if let OpKind::Create { ticket, identity, conf } = op.kind {
            return self.take_create(id, ticket, identity, conf, (round, buffer));
        }
        if let OpKind::Reset(beginning) = op.kind {
            return self.take_reset(id, *beginning, (round, buffer));
        }
        let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else {
            return Ok(()); // deleted meanwhile: nobody waits for it
        };
        let record = match op.kind {
            OpKind::Create { .. } | OpKind::Reset(_) => unreachable!("they are taken above"),
            OpKind::Image { .. } | OpKind::Settle | OpKind::LetGo(_) => {
                unreachable!("they never queue")
            }
            OpKind::Hold(hold) => {
                self.take_hold(id, hold, (round, buffer));
                return Ok(());
            }
            OpKind::Write { ticket, appends, hard_state, must_sync } => {
                if appends.is_empty() && !must_sync {
                    if let Some(hard_state) = hard_state {
                        replica.rider = Some(hard_state);
                        self.riders.insert(id);
                    }
                    replica.pending.push_back(Ticket { number: ticket, lsn: 0, bulk: 0 });
                    self.release(id);
                    return Ok(());
                }
                let (appends, rest) = self.part_of(appends);
                self.take_write(id, appends, hard_state, (round, buffer));
                if rest.is_empty() {
                    // The ticket waits for all payload of the replica that is in flight now.
                    let replica = self.replicas.get_mut(&id).expect("it was just found");
                    let bulk = replica.last_bulk();
                    let last = replica.pending.back();
                    let is_next = last.is_none_or(|it| it.lsn <= round.lsn && it.bulk <= bulk);
                    assert!(is_next, "tickets are in the order of their rounds");
                    replica.pending.push_back(Ticket { number: ticket, lsn: round.lsn, bulk });
                } else {
                    let (appends, hard_state) = (rest, None);
                    let kind = OpKind::Write { ticket, appends, hard_state, must_sync };
                    self.queue.push_front(Op { replica: id, kind });
                }
                return Ok(());
            }
            OpKind::Conf { conf } => {
                replica.state.set_conf(&conf);
                Record::Conf { replica: id, conf }
            }
            OpKind::Trim { log_start } => {
                replica.state.trim(log_start);
                Record::Trim { replica: id, log_start }
            }
            OpKind::Delete => {
                self.doomed.remove(&id);
                replica.deleting = true;
                round.deleted.push(id);
                self.catalog.remove(id);
                Record::Delete { replica: id }
            }
        };
        record.encode(buffer);
        self.touch(round, id);
        self.remove_dead_segments(id, round);
        Ok(())
    }

    /// Splits off the appends that do not fit into one round. A write stays within its round and within the limit of
    /// open files. The first part may become durable alone, as any prefix of a write.
    fn part_of(&self, mut appends: Vec<Append>) -> (Vec<Append>, Vec<Append>) {
        let rolls_max = (self.options.dirty_files_max() / 4).max(1);
        let is_roll = |append: &Append| match &append.entry.content {
            Content::Batch(batch) => batch.starts_segment,
            Content::Internal(_) => false,
        };
        let rolls = (1..appends.len()).filter(|at| is_roll(&appends[*at]));
        let at = rolls.clone().nth(rolls_max - 1).unwrap_or(appends.len()).min(ENTRIES_A_ROUND);
        let rest = appends.split_off(at.min(appends.len()));
        assert!(!appends.is_empty() || rest.is_empty(), "a round takes a part of each write");
        (appends, rest)
    }

    fn take_create(
        &mut self,
        id: ReplicaId,
        ticket: u64,
        identity: Identity,
        conf: ConfState,
        (round, buffer): (&mut Round<D>, &mut Vec<u8>),
    ) -> Result<(), Error> {
        let state = ReplicaState::new(id, identity.clone(), conf.clone());
        let dir = state.dir();
        if self.replicas.values().any(|other| other.deleting && other.state.dir() == dir) {
            let kind = OpKind::Create { ticket, identity, conf };
            let waiting = self.deferred.insert(id, vec![Op { replica: id, kind }]);
            assert!(waiting.is_none(), "ops that wait are not lost");
            return Ok(());
        }
        if self.replicas.contains_key(&id) {
            return Err(Error::Foreign(format!("replica {} is created a second time", id.0)));
        }
        assert!(
            self.replicas.values().all(|other| other.state.dir() != dir),
            "a directory is one replica's"
        );
        let mut replica = Replica::new(state, self.catalog.insert(id), round.lsn);
        replica.pending.push_back(Ticket { number: ticket, lsn: round.lsn, bulk: 0 });
        self.replicas.insert(id, replica);
        self.checkpoints.set_live_from(id, round.lsn);
        Record::Create { replica: id, identity, conf }.encode(buffer);
        self.touch(round, id);
        Ok(())
    }

    /// Begins the log anew: a State says so, in front of later records. The old files go when the round is durable.
    fn take_reset(
        &mut self,
        id: ReplicaId,
        beginning: Beginning,
        (round, buffer): (&mut Round<D>, &mut Vec<u8>),
    ) -> Result<(), Error> {
        if self.replicas.get(&id).is_none_or(|it| it.deleting) {
            return Ok(());
        }
        assert!(
            !round.replicas.contains(&id),
            "a cut is the first thing a round does to a replica"
        );
        let inline_max = INLINE_IMAGE_BYTES.min(self.journal.body_bytes_max() / 4);
        let image = if beginning.image.len() <= inline_max {
            ImageSource::Inline(beginning.image.clone())
        } else {
            let Some(image) = self.store_image_file(id, beginning.index, &beginning.image)? else {
                // Storage tries again when there is room. Later ops of the replica wait behind this one, and other
                // replicas go on.
                let kind = OpKind::Reset(Box::new(beginning));
                let waiting = self.deferred.insert(id, vec![Op { replica: id, kind }]);
                assert!(waiting.is_none(), "ops that wait are not lost");
                return Ok(());
            };
            image
        };
        let replica = self.replicas.get_mut(&id).expect("it was just found");
        if let ImageSource::File { .. } = replica.state.image
            && replica.state.prev_index != beginning.index
        {
            round.removals.push((id, replica.image_path(replica.state.prev_index)));
        }
        let mut state = replica.state.reset(&beginning, image);
        let is_given = beginning.given.is_some() && !sabotage::is(Bug::GivenForgotten);
        if let Some(given) = beginning.given.as_ref().filter(|_| is_given) {
            let staged = self.staged.remove(&id).filter(|it| it.number == given.number);
            let staged = staged.expect("a log begins anew only with what was said to be staged");
            assert_eq!(staged.compacted, given.compacted, "what is given is of one compaction");
            state.take_given(given, staged.segments);
            replica.dir_made = true;
        }
        replica.state = state.clone();
        replica.image_index = state.prev_index;
        replica.synced_index = state.synced_index;
        replica.rider = None;
        replica.cut_bulk(state.synced_index + 1);
        self.unsettle(id, -1);
        self.checkpoints.void(id);
        Record::State { as_of: round.lsn, state: Box::new(state) }.encode(buffer);
        round.cuts.push(Cut { replica: id, keep: BTreeSet::new(), last: None, is_given });
        self.touch(round, id);
        Ok(())
    }

    /// Prepares for a cut of the replica's segments at an offset.
    fn unsettle(&mut self, replica: ReplicaId, end_offset: i64) {
        let changed = self.reader().catalog().unsettle(replica, end_offset);
        self.done.extend(changed.into_iter().map(|segment| Done::Cut { replica, segment }));
    }

    fn take_write(
        &mut self,
        id: ReplicaId,
        appends: Vec<Append>,
        hard_state: Option<HardState>,
        (round, buffer): (&mut Round<D>, &mut Vec<u8>),
    ) {
        let replica = self.replicas.get_mut(&id).expect("the caller found it");
        if let Some(first) = appends.first().map(|append| append.entry.index)
            && first <= replica.state.last_index()
        {
            let is_first = !round.replicas.contains(&id);
            assert!(is_first, "a cut is the first thing a round does to a replica");
            replica.state.truncate(first);
            replica.cut_bulk(first);
            Record::Truncate { replica: id, from: first }.encode(buffer);
            round.cuts.push(Cut {
                replica: id,
                keep: replica.state.segments.iter().map(|segment| segment.base_offset).collect(),
                last: replica
                    .state
                    .segments
                    .last()
                    .cloned()
                    .map(|it| (it, replica.state.end_offset)),
                is_given: false,
            });
            let end_offset = replica.state.end_offset;
            self.unsettle(id, end_offset);
        }
        let replica = self.replicas.get_mut(&id).expect("the caller found it");
        let payload_bytes: usize = appends.iter().map(|append| append.payload.len()).sum();
        let bulk = payload_bytes > self.options.journal_payload_max as usize;
        let bulk = bulk.then(|| {
            let index = |append: Option<&Append>| append.map_or(0, |it| it.entry.index);
            replica.begin_bulk(index(appends.first()), index(appends.last()))
        });
        for append in appends {
            self.take_append(id, append, bulk, round, buffer);
        }
        let replica = self.replicas.get_mut(&id).expect("the caller found it");
        if let Some(hard_state) = hard_state {
            replica.state.hard_state = hard_state;
            replica.rider = None;
            Record::HardState { replica: id, hard_state }.encode(buffer);
        }
        self.want_image_if_long(id);
        self.touch(round, id);
        self.remove_dead_segments(id, round);
    }

    /// Takes one entry: writes its record, and sends its payload on its way into a segment. With the number `bulk`,
    /// the payload is synced there instead of going into the journal.
    fn take_append(
        &mut self,
        id: ReplicaId,
        Append { entry, payload }: Append,
        bulk: Option<u64>,
        round: &mut Round<D>,
        buffer: &mut Vec<u8>,
    ) {
        let replica = self.replicas.get_mut(&id).expect("the caller found it");
        let is_journaled = bulk.is_none() && !payload.is_empty();
        let held = is_journaled.then(|| replica.holds.record_of(&payload)).flatten();
        let record = if let Some(hold) = held {
            let header = payload.slice(..BATCH_HEADER_BYTES);
            Record::AppendHeld { replica: id, entry: entry.clone(), id: hold, header }
        } else {
            let payload = is_journaled.then(|| payload.clone());
            Record::Append { replica: id, entry: entry.clone(), payload }
        };
        record.encode(buffer);
        let descriptor = match &entry.content {
            Content::Batch(descriptor) => Some(*descriptor),
            Content::Internal(_) => None,
        };
        let before = replica.tail_lengths();
        let place = replica.state.append(entry, self.options.index_interval_bytes);
        replica.files.set_terms(&replica.state.term_runs);
        assert!(descriptor.is_some() || payload.is_empty(), "an internal entry has no payload");
        let (Some((base_offset, at)), Some(batch)) = (place, descriptor) else { return };
        assert!(payload.len() == batch.length as usize, "payload and descriptor differ");
        self.metrics.batches += 1;
        self.metrics.segment_bytes += u64::from(batch.length);
        let part = replica.written_part(base_offset, before);
        let same = |write: &&mut SegmentWrite| {
            write.replica == id && write.base_offset == base_offset && write.bulk == bulk
        };
        if let Some(write) = round.writes.back_mut().filter(same) {
            assert_eq!(write.part.size, at, "payloads of one write follow each other");
            write.payloads.push(payload);
            write.batches.push((batch.base_offset, at));
            write.part.merge(part);
        } else {
            if let Some(bulk) = bulk {
                replica.expect_bulk(bulk);
            }
            round.files += usize::from(!replica.dirty.contains_key(&base_offset));
            let (payloads, batches) = (vec![payload], vec![(batch.base_offset, at)]);
            let write =
                SegmentWrite { replica: id, base_offset, at, payloads, batches, part, bulk };
            round.writes.push_back(write);
        }
        if batch.starts_segment && at == 0 && base_offset > replica.state.log_start {
            self.checkpoints.force(id); // writes the sealed segment's indexes
        }
    }

    fn want_image_if_long(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get(&id) else { return };
        let entries = replica.state.entries.len();
        let image_bytes = match &replica.state.image {
            ImageSource::Inline(image) => image.len(),
            ImageSource::File { length, .. } => *length as usize,
        };
        if entries >= ENTRIES_MAX.max(image_bytes / 64) {
            self.want_image(id);
        }
    }

    pub(super) fn take_images(&mut self) -> Result<(), Error> {
        let inline_max = INLINE_IMAGE_BYTES.min(self.journal.body_bytes_max() / 4);
        let mut waiting = VecDeque::new();
        while let Some((id, index, image)) = self.images.pop_front() {
            let begins_anew = self.is_to_begin_anew(id);
            let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else {
                continue;
            };
            if begins_anew {
                // The snapshot may belong to the new log, and says nothing of the present one.
                replica.image_wanted = false;
                continue;
            }
            if index <= replica.image_index {
                // Not newer than what we have or are writing: what was asked for is answered.
                replica.image_wanted &= replica.state.prev_index < replica.image_index;
                continue;
            }
            let before = std::mem::replace(&mut replica.image_index, index);
            let implied = self.implied(id);
            if image.len() <= inline_max {
                let image = ImageSource::Inline(image);
                self.urgent.extend(implied);
                self.urgent.push_back(Record::Image { replica: id, index, image });
            } else if !self.write_image_file(id, index, &image, implied)? {
                self.replicas.get_mut(&id).expect("it was just found").image_index = before;
                waiting.push_back((id, index, image));
            }
        }
        self.images = waiting;
        Ok(())
    }

    fn is_to_begin_anew(&self, id: ReplicaId) -> bool {
        self.deferred.get(&id).is_some_and(|ops| begins_anew(&ops[0]))
            || self.queue.iter().any(|op| op.replica == id && begins_anew(op))
    }

    /// Returns the queued membership and log start of a replica as records. A snapshot passes the queue, and recovery
    /// starts behind it. So the effects of entries below it must become durable with it, and not only when their turn
    /// in the queue comes.
    fn implied(&self, id: ReplicaId) -> Vec<Record> {
        let of = |op: &Op| match &op.kind {
            OpKind::Conf { conf } => Some(Record::Conf { replica: id, conf: conf.clone() }),
            OpKind::Trim { log_start } => Some(Record::Trim { replica: id, log_start: *log_start }),
            _ => None,
        };
        self.queue.iter().filter(|op| op.replica == id).filter_map(of).collect()
    }

    pub(super) fn apply_image(
        &mut self,
        id: ReplicaId,
        index: u64,
        image: ImageSource,
        round: &mut Round<D>,
    ) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if let ImageSource::File { .. } = replica.state.image
            && index > replica.state.prev_index
        {
            let old = replica.image_path(replica.state.prev_index);
            round.removals.push((id, old));
        }
        replica.state.set_image(index, image);
        replica.image_wanted = false;
        self.remove_dead_segments(id, round);
    }

    /// Writes a large snapshot into its own file, durable before the journal names it. Returns false if there is no
    /// room for it.
    fn write_image_file(
        &mut self,
        id: ReplicaId,
        index: u64,
        image: &Bytes,
        implied: Vec<Record>,
    ) -> Result<bool, Error> {
        let Some((file, source)) = self.image_file(id, index, image)? else { return Ok(false) };
        let Some(replica) = self.replicas.get_mut(&id) else { return Ok(true) };
        replica.in_flight += 1;
        let dir = replica.state.dir();
        let steps = vec![SyncStep::File(file), SyncStep::Dir(dir), SyncStep::Dir(String::new())];
        let image = Record::Image { replica: id, index, image: source };
        self.request(Purpose::Image { image, implied }, steps);
        Ok(true)
    }

    /// Does the same for a log that begins anew, which is rare: the storage thread waits for the sync.
    fn store_image_file(
        &mut self,
        id: ReplicaId,
        index: u64,
        image: &Bytes,
    ) -> Result<Option<ImageSource>, Error> {
        let Some((file, source)) = self.image_file(id, index, image)? else { return Ok(None) };
        let dir = self.dir_of(id);
        let disk = &self.disk;
        disk.sync(&file)
            .and_then(|()| disk.sync_dir(&dir))
            .and_then(|()| disk.sync_dir(""))
            .map_err(|source| disk_error("syncing an image in", &dir, source))?;
        Ok(Some(source))
    }

    /// Writes a large snapshot into its own file. Returns `None` if there is no room for it.
    fn image_file(
        &mut self,
        id: ReplicaId,
        index: u64,
        image: &Bytes,
    ) -> Result<Option<(D::File, ImageSource)>, Error> {
        let replica = self.replicas.get_mut(&id).expect("the caller found it");
        assert!(!replica.deleting, "a deleted replica gets no snapshot");
        let path = replica.image_path(index);
        let (disk, reserve) = (&self.disk, &mut self.reserve);
        let written = reserve.when_full(disk, || {
            replica.make_dir(disk)?;
            ignore_missing(disk.remove_file(&path))?;
            let file = disk.create(&path)?;
            disk.write_at(&file, &[image], 0)?;
            Ok(file)
        });
        let file = match written {
            Err(error) if is_full(&error) => {
                self.lacks_room = true;
                return Ok(None);
            }
            written => written.map_err(|source| disk_error("writing", &path, source))?,
        };
        let source = ImageSource::File {
            length: u32::try_from(image.len()).expect("images stay below 4 GiB"),
            crc: crc32c::crc32c(image),
        };
        Ok(Some((file, source)))
    }

    /// Takes the riders into the round: commit indexes and synced marks.
    pub(super) fn take_riders(&mut self, round: &mut Round<D>, buffer: &mut Vec<u8>) {
        let most = self.journal.body_bytes_max() * 3 / 4;
        while buffer.len() < most {
            let Some(id) = self.riders.pop_first() else { break };
            let Some(replica) = self.replicas.get_mut(&id).filter(|it| !it.deleting) else {
                continue;
            };
            if let Some(hard_state) = replica.rider.take() {
                replica.state.hard_state = hard_state;
                Record::HardState { replica: id, hard_state }.encode(buffer);
            }
            if replica.synced_index > replica.state.synced_index {
                let index = replica.synced_index.min(replica.state.last_index());
                replica.state.synced_index = index;
                Record::Synced { replica: id, index }.encode(buffer);
            }
            replica.first_since_capture.get_or_insert(round.lsn);
        }
    }

    pub(super) fn remove_dead_segments(&mut self, id: ReplicaId, round: &mut Round<D>) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let dead = replica.state.remove_dead_segments();
        if replica.state.is_spent() {
            self.urgent.push_back(Record::Emptied { replica: id });
        } else if replica.state.removal_waits_for_image() {
            self.lingering.insert(id);
            self.want_image(id);
        }
        self.let_go(id, &dead, round);
    }

    /// Takes the last segment out of a log whose offsets are all gone. Returns false if that is not so any more.
    fn empty(&mut self, id: ReplicaId, round: &mut Round<D>) -> bool {
        let replica = self.replicas.get_mut(&id).filter(|it| !it.deleting);
        let Some(spent) = replica.and_then(|it| it.state.empty()) else { return false };
        self.let_go(id, &[spent], round);
        self.touch(round, id);
        true
    }

    /// Lets the files of segments go when the round is durable.
    fn let_go(&mut self, id: ReplicaId, dead: &[SegmentState], round: &mut Round<D>) {
        let Some(replica) = self.replicas.get_mut(&id).filter(|_| !dead.is_empty()) else { return };
        for segment in dead {
            replica.dirty.remove(&segment.base_offset);
            let paths = replica.segment_paths(segment);
            round.removals.extend(paths.map(|path| (id, path)));
        }
        replica.files.retain(|base| dead.iter().all(|segment| segment.base_offset != base));
    }

    /// Asks again for snapshots behind which dead segments can go. The first snapshots may have covered too little,
    /// and a log without new entries gives no other occasion.
    pub(super) fn ask_for_lingering(&mut self) {
        for id in std::mem::take(&mut self.lingering) {
            let Some(replica) = self.replicas.get(&id).filter(|it| !it.deleting) else { continue };
            if !replica.state.removal_waits_for_image() {
                continue;
            }
            self.lingering.insert(id);
            if replica.state.may_be_imaged() {
                self.want_image(id);
            }
        }
    }
}
