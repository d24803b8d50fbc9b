//! # Room card: storage checks
//!
//! Purpose:    compare the readable bytes with those that the models hold.
//! Owns:       the checks of reads, of lookups by time, of index files, of tidiness.
//! Interface:  [`World::check_reads`], [`World::check_tidy`].
//! Invariants: a check never changes storage.
//! Never:      excuses: damage is accepted only where the run has planted rot.
//! Tests:      with the harness.
//! Start at:   [`World::check_log`].

use std::sync::Arc;

use duramen_storage::op::Content;
use duramen_storage::reader::ReadError;
use duramen_storage::{Descriptor, Disk, Reader, SET_ASIDE};

use super::World;
use crate::disk::SimDisk;
use crate::failure::Failure;
use crate::model::{ModelEntry, ReplicaModel};
use crate::prng::Prng;

/// Finding of a check that may be excused.
enum Finding {
    /// Reported damage.
    Damaged(String),
    /// The disk did not read, as it was told to.
    Unread,
    Wrong(String),
}

type Checked = Result<(), Finding>;

impl From<ReadError> for Finding {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged { .. } => Self::Damaged(super::chain(&error)),
            ReadError::Disk { .. } => Self::Unread,
            other => Self::Wrong(super::chain(&other)),
        }
    }
}

/// A batch of the model, with its place in the log.
struct Batch<'a> {
    descriptor: Descriptor,
    entry: &'a Arc<ModelEntry>,
}

fn batches(model: &ReplicaModel, end: i64) -> Vec<Batch<'_>> {
    let all = model.base.batches().filter_map(|entry| match &entry.entry.content {
        Content::Batch(descriptor) => Some(Batch { descriptor: *descriptor, entry }),
        Content::Internal(_) => None,
    });
    all.take_while(|batch| batch.descriptor.end_offset() <= end).collect()
}

impl World {
    /// Reads all that was persisted and is not deleted; `indexes` too, when all is at rest.
    pub(super) fn check_reads(&mut self, indexes: bool) -> Result<(), Failure> {
        let reader = self.storage().reader();
        let shown = |model: &&ReplicaModel| {
            model.created && !model.deleted && !self.unrestored.contains(&model.id)
        };
        for model in self.replicas.iter().filter(shown) {
            let end = model.base.end_offset_at(model.safe_index());
            let mut outcome = check_log(&reader, model, end, &mut self.chance)
                .and_then(|()| check_times(&reader, model, end, &mut self.chance));
            if indexes && outcome.is_ok() {
                outcome = check_indexes(&self.disk, model);
            }
            self.judge(model, outcome, false)?;
        }
        Ok(())
    }

    /// Does as [`World::check_reads`], but damage may be reported. `places` says which reads are certain.
    pub(super) fn check_rotten_reads(&mut self, places: &Places) -> Result<(), Failure> {
        let reader = self.storage().reader();
        for model in &self.replicas {
            let end = model.base.end_offset();
            let outcome = check_log(&reader, model, end, &mut self.chance);
            let is_sound = outcome.is_ok();
            let is_in = |directories: &[String]| directories.contains(&directory(model));
            let may_differ =
                is_in(&places.alike) || is_in(&places.foreign) && is_damaged(&reader, model, end);
            if may_differ && !is_sound {
                continue;
            }
            self.judge(model, outcome, true)?;
            if places.timely && is_sound {
                let outcome = check_times(&reader, model, end, &mut self.chance);
                self.judge(model, outcome, true)?;
            }
        }
        Ok(())
    }

    fn judge(&self, model: &ReplicaModel, checked: Checked, rotten: bool) -> Result<(), Failure> {
        let id = model.id.0;
        let what = match checked {
            Ok(()) => return Ok(()),
            Err(Finding::Unread) if self.profile.faults.read_fails > 0 => return Ok(()),
            Err(Finding::Unread | Finding::Damaged(_)) if rotten || self.disk.is_dead() => {
                return Ok(());
            }
            Err(Finding::Unread) => format!("replica {id}: a read failed"),
            Err(Finding::Damaged(what)) => format!("replica {id}: nothing rotted, but {what}"),
            Err(Finding::Wrong(what)) => format!("replica {id}: {what}"),
        };
        Err(Failure::correctness(what))
    }

    /// Reads something in the middle of things.
    pub(super) fn read_something(&mut self) -> Result<(), Failure> {
        if self.replicas.is_empty() {
            return Ok(());
        }
        let reader = self.storage().reader();
        let model = self.work.pick(&self.replicas);
        if !model.created || model.deleted || self.unrestored.contains(&model.id) {
            return Ok(());
        }
        let end = model.base.end_offset_at(model.safe_index());
        let all = batches(model, end);
        let outcome = if model.tip.log_start < end {
            let span = u64::try_from(end - model.tip.log_start).expect("it is positive");
            let offset =
                model.tip.log_start + i64::try_from(self.chance.below(span)).expect("small");
            check_range(&reader, model, &all, offset, end, &mut self.chance).map(|_| ())
        } else {
            Ok(())
        };
        let timed = check_times(&reader, model, end, &mut self.chance);
        self.judge(model, outcome, false)?;
        self.judge(model, timed, false)
    }

    /// Checks that nothing of the dead is left when all is at rest, and nothing below the log's start.
    pub(super) fn check_tidy(&self) -> Result<(), Failure> {
        for (path, len) in self.disk.files() {
            let Some((dir, name)) = path.split_once('/') else { continue };
            if dir == "journal" || dir == SET_ASIDE {
                continue;
            }
            let owner =
                self.replicas.iter().find(|model| !model.deleted && dir == directory(model));
            let Some(owner) = owner else {
                return Err(Failure::correctness(format!("{path} is left behind")));
            };
            let base = name.split_once('.').and_then(|(base, _)| base.parse::<i64>().ok());
            let segments = owner.base.segments();
            // A cut can leave a log without any segment: the next one begins wherever it stands. Nobody is told when
            // a new start of the log is durable, but at rest it is.
            let begins = |base| {
                segments.iter().any(|it| it.base_offset == base)
                    || (base <= owner.tip.log_start
                        && owner.base.batches().any(|batch| batch.base_offset() == base))
            };
            let last = segments.last().filter(|last| base == Some(last.base_offset));
            if name.rsplit('.').next() == Some("log") && last.is_some_and(|last| last.size != len) {
                return Err(Failure::correctness(format!("{path} has a tail that is no batch")));
            }
            if base.is_some_and(|base| !begins(base)) {
                return Err(Failure::correctness(format!("{path} belongs to no segment")));
            }
        }
        Ok(())
    }
}

/// Reads that are certain after a harm, and directories in which others are not.
pub(super) struct Places {
    /// Lookups by time find the right place.
    pub(super) timely: bool,
    /// Where a segment may be another log's. Such a file begins with sound batches, and only its last one shows the
    /// damage. Reads that end earlier may be of the wrong log, until the file is repaired.
    pub(super) foreign: Vec<String>,
    /// Where such a segment has a batch that ends at the right one's last byte and offset: nothing shows the damage.
    pub(super) alike: Vec<String>,
}

/// Returns the name of a replica's directory.
fn directory(model: &ReplicaModel) -> String {
    format!("{}-{}", model.identity.topic, model.identity.partition)
}

/// Tells whether reading all of the log shows damage.
fn is_damaged(reader: &Reader<SimDisk>, model: &ReplicaModel, end: i64) -> bool {
    let digest = reader.digest(model.id, model.tip.log_start, end, u64::MAX);
    digest.is_ok_and(|it| it.damage.is_some())
}

/// Reads the whole log in pieces of random size.
fn check_log(
    reader: &Reader<SimDisk>,
    model: &ReplicaModel,
    end: i64,
    chance: &mut Prng,
) -> Checked {
    let all = batches(model, end);
    let mut offset = model.tip.log_start;
    while offset < end {
        offset = check_range(reader, model, &all, offset, end, chance)?;
    }
    match reader.locate(model.id, end, end, 1000, true)? {
        None => Ok(()),
        Some(_) => Err(Finding::Wrong("there is something to read at the end".into())),
    }
}

/// Reads once at `offset`; returns the end of the last whole batch that came.
fn check_range(
    reader: &Reader<SimDisk>,
    model: &ReplicaModel,
    all: &[Batch<'_>],
    offset: i64,
    end: i64,
    chance: &mut Prng,
) -> Result<i64, Finding> {
    let wrong = |what: &str| Err(Finding::Wrong(format!("at offset {offset} of {end}: {what}")));
    let max = u32::try_from(chance.between(1, 12_000)).expect("small");
    let whole = chance.chance(800);
    let first = all.partition_point(|batch| batch.descriptor.end_offset() <= offset);
    let Some(expected) = all.get(first) else { return wrong("the model is short") };
    let Some(range) = reader.locate(model.id, offset, end, max, whole)? else {
        if !whole && expected.descriptor.length > max {
            return Ok(expected.descriptor.end_offset());
        }
        return wrong("nothing is found");
    };
    let bytes = reader.read(model.id, &range)?;
    let mut cached = vec![0; bytes.len()];
    reader.disk().read_at(&range.file, &mut cached, range.at).map_err(|_| Finding::Unread)?;
    if bytes.len() != range.len as usize || cached != bytes {
        return wrong("the range and what is read of it differ");
    }
    if range.len > max.max(expected.descriptor.length) {
        return wrong("more is given than was asked for");
    }
    let (mut at, mut next) = (0, offset);
    for batch in &all[first..] {
        if at == bytes.len() {
            break;
        }
        let part = batch.entry.payload.len().min(bytes.len() - at);
        if bytes[at..at + part] != batch.entry.payload[..part] {
            let same = bytes[at..].iter().zip(&batch.entry.payload).take_while(|(a, b)| a == b);
            let (same, base) = (same.count(), batch.descriptor.base_offset);
            let position = range.at + at as u64;
            let found = &bytes[at + same..(at + same + 16).min(bytes.len())];
            return wrong(&format!(
                "batch {base} at {position} of segment {}, of {} bytes, is not what was \
                 appended from its byte {same} on: {found:?}",
                range.segment, batch.descriptor.length
            ));
        }
        at += part;
        if part == batch.entry.payload.len() {
            next = batch.descriptor.end_offset();
        }
    }
    if at < bytes.len() {
        return wrong("the range goes past the end");
    }
    if next == offset {
        return wrong("not one whole batch is given");
    }
    Ok(next)
}

/// Looks up some timestamps, and the largest.
fn check_times(
    reader: &Reader<SimDisk>,
    model: &ReplicaModel,
    end: i64,
    chance: &mut Prng,
) -> Checked {
    let start = model.tip.log_start;
    let mut times = Vec::new();
    for batch in batches(model, end) {
        let records = batch.entry.records.as_ref().expect("a batch has records");
        for at in 0..records.timestamps.len() {
            let offset = batch.descriptor.base_offset + i64::try_from(at).expect("small");
            if offset >= start {
                times.push((offset, records.time_of(at)));
            }
        }
    }
    if times.is_empty() {
        return Ok(());
    }
    for _ in 0..3 {
        let base = times[chance.index(times.len())].1;
        let asked = base - 100 + i64::try_from(chance.below(200)).expect("small");
        let found = reader.find_time(model.id, asked, start, end)?;
        let expected = times.iter().find(|(_, time)| *time >= asked).copied();
        if found != expected {
            let what = format!("time {asked}: found {found:?} instead of {expected:?}");
            return Err(Finding::Wrong(what));
        }
    }
    let found = reader.find_max_time(model.id, start, end)?;
    let largest = times.iter().map(|(_, time)| *time).max();
    match found {
        Some(found) if Some(found.1) == largest && times.contains(&found) => Ok(()),
        _ => Err(Finding::Wrong(format!("largest time: {found:?} instead of {largest:?}"))),
    }
}

/// Compares every index file with a linear scan of the model's batches.
fn check_indexes(disk: &SimDisk, model: &ReplicaModel) -> Checked {
    let dir = format!("{}-{}", model.identity.topic, model.identity.partition);
    for segment in model.base.segments() {
        let mut position = 0u64;
        let mut places = Vec::new();
        let batches = batches(model, i64::MAX).into_iter();
        let inside = batches.skip_while(|it| it.descriptor.base_offset < segment.base_offset);
        for batch in inside {
            if position == segment.size {
                break;
            }
            let descriptor = batch.descriptor;
            places.push((descriptor.end_offset() - 1 - segment.base_offset, position, descriptor));
            position += u64::from(descriptor.length);
        }
        let base = format!("{dir}/{:020}", segment.base_offset);
        let index = disk.contents(&format!("{base}.index")).unwrap_or_default();
        for entry in index.chunks(8) {
            let delta = i64::from(u32::from_be_bytes(entry[..4].try_into().expect("four bytes")));
            let at = u64::from(u32::from_be_bytes(entry[4..].try_into().expect("four bytes")));
            if !places.iter().any(|(last, position, _)| (*last, *position) == (delta, at)) {
                let what = format!("{base}.index has {delta} at {at}, where no batch ends so");
                return Err(Finding::Wrong(what));
            }
        }
        let times = disk.contents(&format!("{base}.timeindex")).unwrap_or_default();
        let mut before = i64::MIN;
        for entry in times.chunks(12) {
            let time = i64::from_be_bytes(entry[..8].try_into().expect("eight bytes"));
            let delta = i64::from(u32::from_be_bytes(entry[8..].try_into().expect("four bytes")));
            let upto = places.iter().filter(|(last, ..)| *last <= delta);
            let largest = upto.map(|(.., descriptor)| descriptor.max_timestamp).max();
            if largest != Some(time) || time <= before {
                let what = format!("{base}.timeindex says {time} at {delta}, not {largest:?}");
                return Err(Finding::Wrong(what));
            }
            before = time;
        }
    }
    Ok(())
}
