//! # Room card: recovery
//!
//! Purpose:    restore every acknowledged write from the medium, before a replica opens.
//! Owns:       replay; the difference between a tear and damage; formatting of an empty directory.
//! Interface:  [`format`], [`recover`].
//! Invariants: recovery believes only bytes that it read from the medium. It syncs everything that it adopts before
//!             `recover` returns, and cuts bytes that no durable descriptor names. Recovery changes nothing before it
//!             has found every file that the journal implies, with its length. It sets whole batches aside that no
//!             record names, and never removes them; it ignores files that are not ours. A crash may interrupt recovery
//!             anywhere, and recovery then runs again.
//! Never:      a vote over damage, which recovery reports.
//! Tests:      `duramen-sim` crashes inside it.
//! Start at:   [`recover`].

mod leftovers;
mod ring;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalog::{Catalog, Segment};
use crate::disk::{Unsynced, is_full};
use crate::encoding::{ImageSource, image_fits};
use crate::error::{Error, disk_error};
use crate::format::{
    INDEX_ENTRY_BYTES, JOURNAL_DIR, MANIFEST, RESERVE, ROUND_HEADER_BYTES, TIME_ENTRY_BYTES,
    segment_stem,
};
use crate::holds::Holds;
use crate::journal::{Journal, Round, Scan, extent_path};
use crate::manifest::Manifest;
use crate::op::{Content, Hold, HoldId, LogEntry, RecoveredReplica};
use crate::options::Options;
use crate::record::{self, Record};
use crate::replica::Replica;
use crate::replica_state::{ReplicaState, SegmentState};
use crate::reserve::Reserve;
use crate::sabotage::{self, Bug};
use crate::set_aside::SetAside;
use crate::{Disk, ReplicaId, SET_ASIDE, manifest};

/// Payload is rewritten in pieces of about this size.
const REWRITE_BYTES: usize = 1 << 20;
/// Names that a data directory may hold before it is formatted.
const UNFORMATTED: [&str; 6] =
    [JOURNAL_DIR, SET_ASIDE, RESERVE, "manifest.new", "lock", "lost+found"];

/// A replica and what the node is told of it.
pub(crate) struct FoundReplica<D: Disk> {
    pub(crate) replica: Replica<D>,
    pub(crate) recovered: RecoveredReplica,
    /// True if the files match the state. If there was no room for that, the journal has the rest.
    pub(crate) is_restored: bool,
}

/// Results of recovery, and the work that it leaves to do.
pub(crate) struct Found<D: Disk> {
    pub(crate) replicas: Vec<FoundReplica<D>>,
    /// Records to make durable in the first rounds.
    pub(crate) records: Vec<Record>,
    /// Directories to remove.
    pub(crate) garbage: Vec<String>,
}

/// Formats an empty directory: the journal with its first round, the folder `set-aside`, and then the manifest.
pub(crate) fn format<D: Disk>(
    disk: &D,
    options: &Options,
    names: &[String],
    extents: usize,
) -> Result<(), Error> {
    let is_foreign = |name: &&String| match name.as_str() {
        SET_ASIDE => disk.list(SET_ASIDE).is_ok_and(|kept| !kept.is_empty()),
        name => !UNFORMATTED.contains(&name),
    };
    if let Some(name) = names.iter().find(is_foreign) {
        return Err(Error::Foreign(format!(
            "the data directory holds {name:?} but no {MANIFEST:?}: it is not duramen's; \
             choose an empty directory"
        )));
    }
    if names.iter().any(|name| name == JOURNAL_DIR) && ring::was_used(disk)? {
        let what =
            "it is missing, and the journal was written to: put the manifest back from a copy"
                .into();
        return Err(Error::Damaged { path: MANIFEST.into(), at: 0, what });
    }
    let prepare = || {
        if names.iter().any(|name| name == JOURNAL_DIR) {
            disk.remove_dir(JOURNAL_DIR)?; // formatting was interrupted
        }
        disk.create_dir(JOURNAL_DIR)?;
        // A start on a full disk may need the folder, and has no room to make it.
        disk.create_dir(SET_ASIDE)?;
        disk.sync_dir("")
    };
    prepare().map_err(|source| disk_error("creating", JOURNAL_DIR, source))?;
    let mut journal =
        Journal::format(disk, ring::directory_number(options), options.extent_bytes, extents)?;
    let (lsn, file) = journal.write_round(&mut vec![0; ROUND_HEADER_BYTES])?;
    assert_eq!(lsn, 1, "a journal with a later round was used");
    disk.sync(&file).map_err(|source| disk_error("syncing", JOURNAL_DIR, source))?;
    let (facts, extent_bytes) = (options.facts.clone(), options.extent_bytes);
    manifest::write(disk, &Manifest { facts, voters: Vec::new(), extent_bytes })
}

/// Where an entry's payload belongs, and the payload if the journal has it.
#[derive(Debug)]
struct Place {
    segment: i64,
    at: u64,
    /// Bytes of the payload.
    length: u32,
    payload: Option<Bytes>,
}

impl Place {
    fn end(&self) -> u64 {
        self.at + u64::from(self.length)
    }
}

/// A replica while its records are replayed.
#[derive(Debug)]
struct Replaying {
    state: ReplicaState,
    /// By index, of entries above the checkpoint.
    places: BTreeMap<u64, Place>,
    /// Batches beside the log.
    holds: BTreeMap<HoldId, Bytes>,
    live_from: u64,
    first_since_capture: Option<u64>,
    deleted: bool,
}

/// Recovers all replicas from the medium.
pub(crate) fn recover<D: Disk>(
    disk: &D,
    options: &Options,
    catalog: &Catalog<D>,
    reserve: &mut Reserve,
) -> Result<(Journal<D>, Found<D>), Error> {
    let (journal, scan) = ring::read(disk, options)?;
    let rounds = decode_rounds(&scan)?;
    let replaying = replay(&rounds, options)?;
    drop(rounds);
    if options.facts.cluster_id == [0; 16] && !replaying.is_empty() {
        let what = format!(
            "it says that the node is in no cluster, and the journal has {} of its replicas: the file is an older copy",
            replaying.len()
        );
        return Err(Error::Damaged { path: MANIFEST.into(), at: 0, what });
    }
    let mut aside = SetAside::new(journal.next_lsn());
    let mut found = Found { replicas: Vec::new(), records: Vec::new(), garbage: Vec::new() };
    let mut owned = BTreeSet::new();
    let mut restoring = Vec::new();
    for (id, it) in replaying {
        if it.deleted {
            retire(disk, &it.state, reserve, &mut found)?;
            found.records.push(Record::Gone { replica: id });
            continue;
        }
        if !owned.insert(it.state.dir()) {
            let what = format!("two replicas have the directory {}", it.state.dir());
            return Err(journal_damaged(what));
        }
        restoring.push(restore(disk, it, reserve, &mut aside, &mut found.records)?);
        if restoring.len() >= options.recovered_at_once {
            settle(disk, &mut restoring, catalog, &mut found)?;
        }
    }
    settle(disk, &mut restoring, catalog, &mut found)?;
    assert_eq!(found.replicas.len(), owned.len(), "each replica that is left is taken in");
    leftovers::sort_out_strangers(disk, &owned, reserve, &mut aside, &mut found.garbage)?;
    debug_assert!(
        found.garbage.iter().all(|name| leftovers::is_garbage(name) && !owned.contains(name)),
        "the next start knows what this one removes, and no replica has its name"
    );
    aside.sync(disk).map_err(|source| disk_error("syncing", SET_ASIDE, source))?;
    disk.sync_dir("").map_err(|source| disk_error("syncing", ".", source))?;
    Ok((journal, found))
}

type Decoded = Vec<(u64, Vec<Record>)>;

fn journal_damaged(what: String) -> Error {
    Error::Damaged { path: JOURNAL_DIR.into(), at: 0, what }
}

fn decode_rounds(scan: &Scan) -> Result<Decoded, Error> {
    let decode = |round: &Round| {
        assert!(round.body.is_some(), "a live round is whole");
        let body = round.body.clone().unwrap_or_default();
        let records = record::decode_all(body).map_err(|malformed| Error::Damaged {
            path: extent_path(round.file),
            at: round.header.position,
            what: malformed.to_string(),
        })?;
        Ok((round.header.lsn, records))
    };
    scan.rounds.iter().map(decode).collect()
}

/// Folds the records into states. A replica begins at its last State, or at its Create.
fn replay(rounds: &Decoded, options: &Options) -> Result<BTreeMap<ReplicaId, Replaying>, Error> {
    debug_assert!(rounds.is_sorted_by(|a, b| a.0 < b.0), "rounds are replayed in order");
    let mut replaying = BTreeMap::new();
    let mut gone = BTreeSet::new();
    // Base first: the last State or Create of each replica, and who is gone altogether.
    let mut as_of = BTreeMap::new();
    for (lsn, records) in rounds {
        for record in records {
            let id = record.replica();
            let (state, from) = match record {
                Record::Create { identity, conf, .. } => {
                    (ReplicaState::new(id, identity.clone(), conf.clone()), *lsn)
                }
                Record::State { as_of, state } => ((**state).clone(), *as_of),
                Record::Gone { .. } => {
                    gone.insert(id);
                    continue;
                }
                _ => continue,
            };
            as_of.insert(id, from);
            let it = Replaying {
                state,
                places: BTreeMap::new(),
                holds: BTreeMap::new(),
                live_from: *lsn,
                first_since_capture: None,
                deleted: false,
            };
            replaying.insert(id, it);
        }
    }
    assert_eq!(as_of.len(), replaying.len(), "each replica begins somewhere");
    for (lsn, records) in rounds {
        for record in records {
            let id = record.replica();
            if gone.contains(&id) {
                continue;
            }
            let Some(from) = as_of.get(&id) else {
                let what = format!("the beginning of replica {} is lost", id.0);
                return Err(journal_damaged(what));
            };
            let it = replaying.get_mut(&id).expect("as_of has the same keys");
            if let Record::Held { hold, .. } = record {
                take_hold(it, hold, *lsn, *from);
                continue;
            }
            if lsn < from || matches!(record, Record::State { .. } | Record::Create { .. }) {
                continue;
            }
            it.live_from = it.live_from.min(*lsn);
            it.first_since_capture.get_or_insert(*lsn);
            apply(it, record, options, *lsn)?;
        }
    }
    replaying.retain(|id, _| !gone.contains(id));
    Ok(replaying)
}

/// Takes a hold, whatever State stands behind it: a log that began anew since has kept its holds.
fn take_hold(it: &mut Replaying, hold: &Hold, lsn: u64, as_of: u64) {
    if sabotage::is(Bug::HeldNotReplayed) || lsn < as_of && sabotage::is(Bug::ResetForgetsHeld) {
        return;
    }
    it.holds.insert(hold.id, hold.payload.clone());
    it.live_from = it.live_from.min(lsn);
    if lsn >= as_of {
        it.first_since_capture.get_or_insert(lsn);
    }
}

fn append(
    it: &mut Replaying,
    entry: &LogEntry,
    payload: Option<Bytes>,
    (options, lsn): (&Options, u64),
) -> Result<(), Error> {
    let state = &mut it.state;
    if !state.accepts(entry) {
        return Err(journal_damaged(format!(
            "in round {lsn}, entry {} of replica {} does not follow entry {}",
            entry.index,
            state.replica.0,
            state.last_index()
        )));
    }
    let place = state.append(entry.clone(), options.index_interval_bytes);
    if let (Some((segment, at)), Content::Batch(batch)) = (place, &entry.content) {
        let length = batch.length;
        let is_whole = payload.as_ref().is_none_or(|it| it.len() == length as usize);
        assert!(is_whole, "a payload in the journal is the whole batch");
        it.places.insert(entry.index, Place { segment, at, length, payload });
    }
    Ok(())
}

fn apply(it: &mut Replaying, record: &Record, options: &Options, lsn: u64) -> Result<(), Error> {
    let state = &mut it.state;
    match record {
        Record::Append { entry, payload, .. } => {
            append(it, entry, payload.clone(), (options, lsn))?;
        }
        Record::AppendHeld { entry, id, header, .. } => {
            let held = it.holds.get(id).filter(|it| it.len() >= header.len());
            let keeps_own = sabotage::is(Bug::HeldHeaderKept);
            let header_of =
                |held: &Bytes| if keeps_own { held.slice(..header.len()) } else { header.clone() };
            let whole =
                held.map(|it| Bytes::from([&header_of(it)[..], &it[header.len()..]].concat()));
            let fits = |whole: &Bytes| match &entry.content {
                Content::Batch(batch) => batch.matches(whole),
                Content::Internal(_) => false,
            };
            let Some(payload) = whole.filter(fits) else {
                return Err(journal_damaged(format!(
                    "in round {lsn}, entry {} of replica {} names a batch that is not there",
                    entry.index, state.replica.0
                )));
            };
            append(it, entry, Some(payload), (options, lsn))?;
        }
        Record::Truncate { from, .. } => {
            if *from > state.prev_index && !sabotage::is(Bug::TruncateNotReplayed) {
                state.truncate(*from);
                assert!(state.last_index() < *from, "nothing is left from entry {from} on");
            }
            it.places.split_off(from);
        }
        Record::HardState { .. } if sabotage::is(Bug::HardStateNotReplayed) => {}
        Record::Image { .. } if sabotage::is(Bug::ImageDropped) => {}
        Record::Trim { log_start, .. } => state.trim(*log_start),
        Record::HardState { hard_state, .. } => {
            state.hard_state = *hard_state;
            state.hard_state.commit = hard_state.commit.clamp(state.prev_index, state.last_index());
        }
        Record::Conf { conf, .. } => state.set_conf(conf),
        Record::Image { index, image, .. } => state.set_image(*index, image.clone()),
        Record::Synced { index, .. } => state.synced_index = state.synced_index.max(*index),
        Record::Compacted { replacement, .. } => {
            if !state.replace(replacement) {
                let (index, id) = (replacement.compacted.index, state.replica.0);
                return Err(journal_damaged(format!(
                    "in round {lsn}, what entry {index} of replica {id} compacted does not fit"
                )));
            }
            // Entries that were replayed into the replaced segments have no place any more.
            it.places.retain(|_, place| place.segment >= replacement.compacted.below);
        }
        Record::Delete { .. } => it.deleted = true,
        Record::Emptied { .. } => {
            if state.empty().is_some() {
                it.places.clear();
            }
        }
        Record::Create { .. }
        | Record::State { .. }
        | Record::Gone { .. }
        | Record::Held { .. } => {}
    }
    for dead in it.state.remove_dead_segments() {
        it.places.retain(|_, place| place.segment != dead.base_offset);
    }
    let last = it.places.last_key_value().map_or(0, |(index, _)| *index);
    assert!(last <= it.state.last_index(), "payload is of entries that the log has");
    Ok(())
}

/// Renames the directory of a deleted replica, if it still has its name. No other replica of that name has made a
/// file yet: that waits for the record that we are about to write.
fn retire<D: Disk>(
    disk: &D,
    state: &ReplicaState,
    reserve: &mut Reserve,
    found: &mut Found<D>,
) -> Result<(), Error> {
    let from = state.dir();
    let to = state.deleted_dir();
    match reserve.when_full(disk, || disk.rename(&from, &to)) {
        Ok(()) => found.garbage.push(to),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(disk_error("renaming", &from, source)),
    }
    Ok(())
}

/// A replica whose files say what its state says, and are yet to be synced.
struct Restoring<D: Disk> {
    it: Replaying,
    image: Bytes,
    /// True if the replica's directory was there.
    is_present: bool,
    damage: Option<String>,
    /// Segments that others have.
    to_mend: Vec<i64>,
    /// Nothing where the disk is full.
    unsynced: Option<Unsynced<D::File>>,
}

/// Brings a replica's files to what its state says.
fn restore<D: Disk>(
    disk: &D,
    mut it: Replaying,
    reserve: &mut Reserve,
    aside: &mut SetAside,
    records: &mut Vec<Record>,
) -> Result<Restoring<D>, Error> {
    let dir = it.state.dir();
    let id = it.state.replica;
    let mut damage = None;
    let disk_failed = |source| disk_error("recovering", &dir, source);
    let image = read_image(disk, &it.state, &mut damage)?;
    let present = match disk.list(&dir) {
        Ok(names) => Some(names),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(disk_failed(source)),
    };
    if let Some(from) = find_tear(disk, &it, &mut damage)? {
        assert!(from > it.state.prev_index, "entries of the image were synced");
        it.state.truncate(from);
        it.places.split_off(&from);
        assert!(it.state.last_index() < from, "the log ends before the torn entry {from}");
        records.push(Record::Truncate { replica: id, from });
        let hard_state = it.state.hard_state;
        records.push(Record::HardState { replica: id, hard_state });
    }
    debug_assert!(
        it.places.values().all(|place| {
            it.state.segments.iter().any(|segment| segment.base_offset == place.segment)
        }),
        "what was replayed lies in segments of the log"
    );
    let names = present.as_deref().unwrap_or_default();
    let mut found = (damage, Vec::new());
    let restored =
        leftovers::drop(disk, &it.state, names, reserve, aside).map_err(disk_failed).and_then(
            |()| restore_segments(disk, &it, present.as_deref(), (reserve, aside), &mut found),
        );
    let unsynced = match restored {
        Err(Error::Disk { source, .. }) if is_full(&source) => None,
        restored => Some(restored?),
    };
    let (damage, to_mend) = found;
    Ok(Restoring { it, image, is_present: present.is_some(), damage, to_mend, unsynced })
}

/// Syncs what was restored, and takes it in.
fn settle<D: Disk>(
    disk: &D,
    restoring: &mut Vec<Restoring<D>>,
    catalog: &Catalog<D>,
    found: &mut Found<D>,
) -> Result<(), Error> {
    let unsynced: Vec<_> = restoring.iter_mut().map(|each| each.unsynced.take()).collect();
    let wanted: Vec<Unsynced<D::File>> = unsynced.iter().flatten().cloned().collect();
    let mut synced = disk.sync_each(&wanted).into_iter();
    assert_eq!(synced.len(), wanted.len(), "each sync has a result");
    for (each, unsynced) in restoring.drain(..).zip(unsynced) {
        let result = if unsynced.is_some() { synced.next().expect("one for each") } else { Ok(()) };
        let is_restored = match result {
            Err(error) if is_full(&error) => false,
            Err(source) => return Err(disk_error("recovering", &each.it.state.dir(), source)),
            Ok(()) => unsynced.is_some(),
        };
        let replica = take_in(disk, each, is_restored, catalog, &mut found.records);
        found.replicas.push(replica);
    }
    assert!(synced.next().is_none(), "each result was looked at");
    Ok(())
}

/// Takes in a replica as it was found; `is_restored` if its files are as they should be, and durable.
fn take_in<D: Disk>(
    disk: &D,
    restoring: Restoring<D>,
    is_restored: bool,
    catalog: &Catalog<D>,
    records: &mut Vec<Record>,
) -> FoundReplica<D> {
    let Restoring { mut it, image, is_present, mut damage, to_mend, .. } = restoring;
    let (dir, id, mark) = (it.state.dir(), it.state.replica, it.state.synced_index);
    let is_whole = is_restored && damage.is_none();
    if is_whole && it.places.iter().any(|(index, it)| it.payload.is_none() && *index > mark) {
        // The payload was found whole, and is synced now: from here on its absence is damage.
        it.state.synced_index = it.state.last_index();
        records.push(Record::Synced { replica: id, index: it.state.synced_index });
    }
    let lacks_room = !is_restored && damage.is_none();
    if lacks_room {
        damage = Some(
            "the disk is full, and the journal holds what is to be written to it: free some space, \
             and start the node again"
                .to_owned(),
        );
    }
    let files = catalog.insert(id);
    for base_offset in to_mend {
        tracing::error!(
            replica = id.0,
            dir,
            segment = base_offset,
            "a segment is missing or cut short: this node fetches it from another replica"
        );
        catalog.suspect(id, base_offset);
    }
    files.set_terms(&it.state.term_runs);
    for (at, segment) in it.state.segments.iter().enumerate() {
        let next = it.state.segments.get(at + 1);
        let end = next.map_or(it.state.end_offset, |next| next.base_offset);
        assert!(segment.base_offset < end, "a segment has offsets");
        let good_from = good_from(&it, segment, mark);
        assert!(good_from <= segment.size, "what was rewritten or checked lies in the segment");
        files.push(Segment::recovered(&dir, id, segment, end, good_from));
    }
    files.set_compacted(it.state.compacted);
    if let Some(damage) = &damage {
        tracing::error!(replica = id.0, dir, damage, "durable data is damaged");
    }
    let mut holds = Holds::default();
    for (id, payload) in it.holds {
        holds.insert(Hold { id, payload });
    }
    let found = holds.iter().collect();
    let recovered =
        RecoveredReplica { holds: found, lacks_room, ..it.state.recovered(image, damage) };
    let mut replica = Replica::new(it.state, Arc::clone(&files), it.live_from);
    replica.dir_made = is_present
        || (!replica.state.segments.is_empty() && (is_restored || disk.list(&dir).is_ok()));
    let is_needed = it.first_since_capture.is_none_or(|first| it.live_from <= first);
    assert!(is_needed, "replay needs all records since the checkpoint");
    replica.first_since_capture = it.first_since_capture;
    replica.holds = holds;
    FoundReplica { replica, recovered, is_restored }
}

/// Returns the position from which this recovery has rewritten or checked the segment. `mark` is the synced mark as
/// it was found; recovery does not check payload outside the journal below it.
fn good_from(it: &Replaying, segment: &SegmentState, mark: u64) -> u64 {
    let places = it.places.iter().rev().filter(|(_, place)| place.segment == segment.base_offset);
    places
        .take_while(|(index, place)| place.payload.is_some() || **index > mark)
        .last()
        .map_or(segment.size, |(_, place)| place.at)
}

fn read_image<D: Disk>(
    disk: &D,
    state: &ReplicaState,
    damage: &mut Option<String>,
) -> Result<Bytes, Error> {
    let ImageSource::File { length, .. } = &state.image else {
        let ImageSource::Inline(bytes) = &state.image else { return Ok(Bytes::new()) };
        return Ok(bytes.clone());
    };
    let path = format!("{}/image-{:020}", state.dir(), state.prev_index);
    let read = || {
        let file = disk.open(&path)?;
        if disk.len(&file)? < u64::from(*length) {
            return Ok(Vec::new());
        }
        disk.read_medium(&file, 0, *length as usize)
    };
    match read() {
        Ok(bytes) if image_fits(&state.image, &bytes) => Ok(Bytes::from(bytes)),
        Ok(_) => {
            *damage = Some(format!("{path} does not match its checksum"));
            Ok(Bytes::new())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            *damage = Some(format!("{path} is missing"));
            Ok(Bytes::new())
        }
        Err(source) => Err(disk_error("reading", &path, source)),
    }
}

/// Reads, from the medium, payload that the journal does not hold and that no mark calls synced. Returns the index of
/// the first that is missing: its write was torn, and the node never acknowledged it.
fn find_tear<D: Disk>(
    disk: &D,
    it: &Replaying,
    damage: &mut Option<String>,
) -> Result<Option<u64>, Error> {
    let state = &it.state;
    let mut open: Option<(i64, D::File)> = None;
    for (index, place) in &it.places {
        let marked = *index <= state.synced_index && !sabotage::is(Bug::SyncedMarkIgnored);
        if place.payload.is_some() || marked {
            continue;
        }
        let Some(entry) = state.entries.get(entry_position(state, *index)) else { continue };
        assert_eq!(entry.index, *index, "entries are dense behind the snapshot");
        let Content::Batch(batch) = &entry.content else { continue };
        assert_eq!(batch.length, place.length, "a place is that of its entry's batch");
        // Nothing is appended to a segment that compaction made.
        let stem = segment_stem(place.segment, state.replica, 0);
        let path = format!("{}/{stem}.log", state.dir());
        if open.as_ref().is_none_or(|(base, _)| *base != place.segment) {
            open = match disk.open(&path) {
                Ok(file) => Some((place.segment, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(source) => return Err(disk_error("opening", &path, source)),
            };
        }
        let whole = match &open {
            Some((_, file)) => {
                let failed = |source| disk_error("reading", &path, source);
                disk.len(file).map_err(failed)? >= place.end()
                    && batch.matches(
                        &disk.read_medium(file, place.at, batch.length as usize).map_err(failed)?,
                    )
            }
            None => false,
        };
        if !whole {
            // The only voter commits nothing that it has not on disk. One that only learns may hear of it before.
            let alone =
                state.conf.voters == [state.replica.0] && state.conf.voters_outgoing.is_empty();
            if alone && state.hard_state.commit >= *index {
                *damage = Some(format!("{path} at {}: a committed batch is not whole", place.at));
                return Ok(None);
            }
            return Ok(Some(*index));
        }
    }
    Ok(None)
}

/// Returns the place of an index in `entries`; past the end for one that the snapshot holds.
fn entry_position(state: &ReplicaState, index: u64) -> usize {
    let position = index.checked_sub(state.prev_index + 1);
    position.and_then(|it| usize::try_from(it).ok()).unwrap_or(usize::MAX)
}

/// Rewrites what the journal holds, cuts what nobody names, and says what is to be synced. `present` are the names in
/// the replica's directory, if that is there. Finds damage, and segments that need not fail the replica.
fn restore_segments<D: Disk>(
    disk: &D,
    it: &Replaying,
    present: Option<&[String]>,
    (reserve, aside): (&mut Reserve, &mut SetAside),
    (damage, to_mend): &mut (Option<String>, Vec<i64>),
) -> Result<Unsynced<D::File>, Error> {
    let mut unsynced = Unsynced { files: Vec::new(), dir: None };
    let dir = it.state.dir();
    let names = present.unwrap_or_default();
    if present.is_none() {
        if it.state.segments.is_empty() {
            return Ok(unsynced);
        }
        let made = reserve.when_full(disk, || disk.create_dir(&dir));
        made.map_err(|source| disk_error("recovering", &dir, source))?;
    }
    for segment in &it.state.segments {
        let name = format!("{}.log", leftovers::stem_of(&it.state, segment));
        let path = format!("{dir}/{name}");
        let failed = |source| disk_error("recovering", &path, source);
        let places = places_in(it, segment);
        let exists = names.contains(&name);
        let may_be_mended = may_be_mended(&it.state, segment) && places.is_empty();
        let whole_replayed = places.first().is_some_and(|(_, place)| place.at == 0);
        if !exists && may_be_mended {
            to_mend.push(segment.base_offset);
            continue;
        }
        if !exists && !whole_replayed {
            *damage = Some(format!("{path} is missing"));
            continue;
        }
        let file =
            if exists { disk.open(&path) } else { reserve.when_full(disk, || disk.create(&path)) };
        let file = file.map_err(failed)?;
        let len = disk.len(&file).map_err(failed)?;
        let replayed_from = places.first().map_or(segment.size, |(_, place)| place.at);
        if len < segment.size && may_be_mended {
            to_mend.push(segment.base_offset);
            continue;
        }
        let synced = synced_bytes(&it.state, segment, &places);
        assert!(synced <= segment.size, "no more was synced than was appended");
        if len < synced {
            // Left as it is: what is written behind the hole would hide it from the next start.
            *damage = Some(format!("{path} is {len} bytes long, and {synced} were synced"));
            continue;
        }
        if len > segment.size {
            let seam = leftovers::is_seam_sound(disk, &file, &it.state, segment, replayed_from);
            if !seam.map_err(failed)? {
                *damage = Some(format!(
                    "{path} is {len} bytes long, {} were appended, and it does not hold them: it is another file",
                    segment.size
                ));
                continue;
            }
            leftovers::keep_tail(disk, &file, (&dir, segment.size, len), (reserve, aside))
                .map_err(failed)?;
        }
        rewrite(disk, &file, &places, reserve).map_err(failed)?;
        if len > segment.size {
            let len = if sabotage::is(Bug::TailNotCut) { len } else { segment.size };
            disk.set_len(&file, len).map_err(failed)?;
        }
        cut_indexes(disk, &dir, &it.state, segment, names).map_err(failed)?;
        if !places.is_empty() || len > segment.size {
            unsynced.files.push(file);
        }
    }
    unsynced.dir = Some(dir);
    Ok(unsynced)
}

/// Returns what was replayed into a segment, by index.
fn places_in<'a>(it: &'a Replaying, segment: &SegmentState) -> Vec<(u64, &'a Place)> {
    let places = it.places.iter().map(|(index, place)| (*index, place));
    let places: Vec<(u64, &Place)> =
        places.filter(|(_, place)| place.segment == segment.base_offset).collect();
    debug_assert!(
        places.is_sorted_by(|(_, a), (_, b)| a.end() <= b.at),
        "payloads of a segment follow each other"
    );
    let replayed_to = places.last().map_or(0, |(_, place)| place.end());
    assert!(replayed_to <= segment.size, "what was replayed lies in the segment");
    places
}

/// Bytes of a segment that the medium must have: all that is not in the journal, but for what no mark calls synced.
fn synced_bytes(state: &ReplicaState, segment: &SegmentState, places: &[(u64, &Place)]) -> u64 {
    let replayed_from = places.first().map_or(segment.size, |(_, place)| place.at);
    let is_synced =
        |(index, place): &&(u64, &Place)| place.payload.is_none() && *index <= state.synced_index;
    let ends = places.iter().filter(is_synced).map(|(_, it)| it.end());
    ends.chain([replayed_from.min(segment.size)]).max().unwrap_or(0)
}

/// Tells whether other replicas have the content of a segment, so that a repair can restore it. A checkpoint has
/// synced the whole segment, no append reaches it any more, and the log goes on behind it.
fn may_be_mended(state: &ReplicaState, segment: &SegmentState) -> bool {
    let is_last = state.segments.last().is_some_and(|it| it.base_offset == segment.base_offset);
    let ends_before_image = state
        .segments
        .iter()
        .find(|it| it.base_offset > segment.base_offset)
        .is_some_and(|next| next.base_offset <= state.prev_end_offset);
    let others = state.conf.voters.iter().filter(|voter| **voter != state.replica.0);
    !is_last && ends_before_image && others.count() > 0
}

/// Cuts index entries that a checkpoint had begun to write when the process died. The State still holds those
/// entries, and of the bytes in the file only the length may be durable.
fn cut_indexes<D: Disk>(
    disk: &D,
    dir: &str,
    state: &ReplicaState,
    segment: &SegmentState,
    names: &[String],
) -> io::Result<()> {
    let index_bytes = u64::from(segment.index_flushed) * INDEX_ENTRY_BYTES as u64;
    let times_bytes = u64::from(segment.times_flushed) * TIME_ENTRY_BYTES as u64;
    let files = [
        ("index", index_bytes, segment.index_tail.is_empty()),
        ("timeindex", times_bytes, segment.times_tail.is_empty()),
    ];
    for (extension, bytes, is_whole) in files {
        let name = format!("{}.{extension}", leftovers::stem_of(state, segment));
        if is_whole || bytes == 0 || !names.contains(&name) {
            continue;
        }
        let file = disk.open(&format!("{dir}/{name}"))?;
        if disk.len(&file)? > bytes {
            disk.set_len(&file, bytes)?;
        }
    }
    Ok(())
}

/// Writes payload from the journal where it belongs, whether or not it looks right there.
fn rewrite<D: Disk>(
    disk: &D,
    file: &D::File,
    places: &[(u64, &Place)],
    reserve: &mut Reserve,
) -> io::Result<()> {
    let mut piece: Vec<&[u8]> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (_, place) in places {
        let Some(payload) = &place.payload else { continue };
        assert!(place.at >= end, "payload is rewritten from front to back");
        assert_eq!(payload.len(), place.length as usize, "payload fills its place");
        if sabotage::is(Bug::PayloadNotRewritten) {
            continue;
        }
        let follows = place.at == end && end - start < REWRITE_BYTES as u64;
        if !follows {
            reserve.when_full(disk, || write_piece(disk, file, &piece, start))?;
            piece.clear();
            start = place.at;
        }
        piece.push(payload);
        end = place.at + payload.len() as u64;
    }
    reserve.when_full(disk, || write_piece(disk, file, &piece, start))
}

fn write_piece<D: Disk>(disk: &D, file: &D::File, piece: &[&[u8]], at: u64) -> io::Result<()> {
    if piece.is_empty() { Ok(()) } else { disk.write_at(file, piece, at) }
}
