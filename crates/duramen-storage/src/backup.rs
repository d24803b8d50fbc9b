//! # Room card: backup
//!
//! Purpose:    the state of all replicas at one moment, while storage goes on; a new data directory made of it.
//! Owns:       [`Moment`], its bytes, the files that it names, the checks of a copy of each.
//! Interface:  [`Storage::moment`], [`Storage::has_files_of`], [`Moment`].
//! Invariants: a moment stands between two rounds, and ends each log at an entry that was committed. No append, cut,
//!             compaction or removal changes the named bytes later: a hard link to each file keeps them. A restored
//!             directory has no manifest before all else in it is durable.
//! Never:      the copying itself, and the identity of the restored directory.
//! Tests:      `tests/formats/moments.rs`; `duramen/tests/cli/backup.rs`.
//! Start at:   [`Storage::moment`].

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use bytes::{Buf, BufMut, Bytes};

use crate::encoding::{ImageSource, image_fits};
use crate::error::{Error, disk_error};
use crate::format::{JOURNAL_DIR, Malformed, ROUND_HEADER_BYTES, count, segment_stem, take};
use crate::journal::Journal;
use crate::manifest::{self, Manifest};
use crate::op::{Append, Hold, Op, OpKind, RecoveredReplica};
use crate::record::{self, Record};
use crate::replica_state::ReplicaState;
use crate::storage::{Facts, Storage, Voter};
use crate::{Disk, ReplicaId, SET_ASIDE};

mod files;

pub use files::{KeptFile, Role};

/// Begins an encoded moment: "DBK" and the version of its layout.
const MAGIC: u32 = u32::from_be_bytes(*b"DBK1");
/// Largest image, in bytes, that goes into a State; others have a file.
const INLINE_IMAGE_BYTES: usize = 256 * 1024;
/// Extents beside those with States: the next checkpoints go there.
const EXTENTS_BESIDE: usize = 3;

/// A replica at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    state: ReplicaState,
    /// Batches beside the log.
    holds: Vec<Hold>,
}

/// See the room card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Owner of the directory.
    pub facts: Facts,
    /// First voters of the owner's cluster; none if the owner is a cluster of its own.
    pub voters: Vec<Voter>,
    extent_bytes: u64,
    replicas: Vec<Kept>,
}

/// Answer of [`Storage::moment`].
#[derive(Debug)]
pub enum Taken {
    /// The state of all replicas.
    Moment(Box<Moment>),
    /// A round is under way, or ops wait: ask again after the next one.
    NotYet,
    /// A replica is already beyond the wanted entry, or goes away: ask again for a later moment.
    Missed,
}

/// Returns the owner of a data directory, from the content of its manifest.
pub fn owner(manifest: &[u8]) -> Result<Facts, Error> {
    Ok(manifest::parse(manifest)?.facts)
}

impl<D: Disk> Storage<D> {
    /// Returns the state of these replicas, each cut behind the entry with this index. All of the entries must be
    /// committed, and submitted before.
    pub fn moment(&self, commits: &BTreeMap<ReplicaId, u64>) -> Result<Taken, Error> {
        if !self.is_between_rounds() {
            return Ok(Taken::NotYet);
        }
        let mut replicas = Vec::with_capacity(commits.len());
        for (id, &commit) in commits {
            let Some(replica) = self.replicas.get(id) else { return Ok(Taken::NotYet) };
            if self.is_going(*id) {
                return Ok(Taken::Missed);
            }
            if replica.state.last_index() < commit {
                return Ok(Taken::NotYet);
            }
            let Some(state) = cut(&replica.state, commit) else { return Ok(Taken::Missed) };
            replicas.push(Kept { state, holds: replica.holds.iter().collect() });
        }
        let Manifest { facts, voters, extent_bytes } = manifest::read(&self.disk)?;
        Ok(Taken::Moment(Box::new(Moment { facts, voters, extent_bytes, replicas })))
    }

    /// Tells whether each replica of a moment still has the files that the moment names. If so, nothing else had their
    /// names meanwhile.
    pub fn has_files_of(&self, moment: &Moment) -> bool {
        moment.replicas.iter().all(|kept| {
            let id = kept.state.replica;
            let here = self.replicas.get(&id).filter(|_| !self.is_going(id));
            here.is_some_and(|here| {
                let has = |file| files::names(&here.state).any(|name| name == file);
                let has_image = matches!(kept.state.image, ImageSource::Inline(_))
                    || here.state.prev_index == kept.state.prev_index;
                has_image && files::names(&kept.state).all(has)
            })
        })
    }
}

/// Returns the state of the log up to an entry. `None` if the replica has gone further than that in a way that cannot
/// be taken back.
fn cut(state: &ReplicaState, commit: u64) -> Option<ReplicaState> {
    if state.prev_index > commit || state.compacted.index > commit {
        return None;
    }
    let mut state = state.clone();
    if state.last_index() > commit {
        state.truncate(commit + 1);
    }
    state.hard_state.commit = commit;
    // A restore syncs all of it.
    state.synced_index = commit;
    (state.log_start <= state.end_offset).then_some(state)
}

impl Moment {
    /// Returns the files that hold what the states name, each with the number of bytes that count.
    pub fn files(&self) -> Vec<KeptFile> {
        let replicas = self.replicas.iter().enumerate();
        replicas.flat_map(|(at, kept)| files::of(at, &kept.state)).collect()
    }

    /// Copies the bytes of a file that count, and checks them: batches against their checksums, offsets, terms and
    /// descriptors, other content against its checksum. Returns the CRC-32C of all of them. Bytes that are not as
    /// they should be give an error of kind [`io::ErrorKind::InvalidData`].
    pub fn copy(
        &self,
        file: &KeptFile,
        from: &mut impl Read,
        to: &mut impl Write,
    ) -> io::Result<u32> {
        files::copy(&self.replicas[file.replica].state, file, from, to)
    }

    /// Returns what a start would find, with images that have files of their own read by `read`.
    pub fn recovered(
        &self,
        mut read: impl FnMut(&str) -> io::Result<Bytes>,
    ) -> io::Result<Vec<RecoveredReplica>> {
        let each = self.replicas.iter().map(|Kept { state, holds }| {
            let image = match &state.image {
                ImageSource::Inline(bytes) => bytes.clone(),
                ImageSource::File { .. } => read(&files::image_path(state))?,
            };
            if !image_fits(&state.image, &image) {
                return Err(files::damaged("an image does not match its checksum"));
            }
            Ok(RecoveredReplica { holds: holds.clone(), ..state.recovered(image, None) })
        });
        each.collect()
    }

    /// Encodes the moment: what a backup keeps beside the files.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(MAGIC);
        out.put_slice(&self.facts.cluster_id);
        out.put_i32(self.facts.broker_id);
        out.put_slice(&self.facts.directory_id);
        out.put_u64(self.extent_bytes);
        out.put_u32(u32::try_from(self.voters.len()).expect("a cluster has few voters"));
        for voter in &self.voters {
            out.put_u64(voter.peer_id);
            out.put_i32(voter.broker_id);
            out.put_slice(&voter.directory_id);
        }
        self.records(0).for_each(|record| record.encode(&mut out));
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// Decodes [`Self::encode`], or says what is wrong with it.
    pub fn decode(bytes: &Bytes) -> Result<Self, String> {
        let Some((body, crc)) = bytes.split_last_chunk::<4>() else {
            return Err("it is cut short".into());
        };
        if crc32c::crc32c(body) != u32::from_be_bytes(*crc) {
            return Err("its checksum does not match".into());
        }
        Self::parse(bytes.slice(..body.len())).map_err(|malformed| malformed.to_string())
    }

    fn parse(mut from: Bytes) -> Result<Self, Malformed> {
        if from.try_get_u32()? != MAGIC {
            return Err(Malformed("it is of a version that this build does not know"));
        }
        let id = |from: &mut Bytes| {
            let bytes = take(from, 16)?;
            <[u8; 16]>::try_from(&bytes[..]).map_err(|_| Malformed("an id is cut short"))
        };
        let cluster_id = id(&mut from)?;
        let broker_id = from.try_get_i32()?;
        let facts = Facts { cluster_id, broker_id, directory_id: id(&mut from)? };
        let extent_bytes = from.try_get_u64()?;
        let is_sized = (1..=manifest::EXTENT_BYTES_MAX).contains(&extent_bytes);
        if !is_sized || !extent_bytes.is_multiple_of(crate::format::ROUND_ALIGN as u64) {
            return Err(Malformed("its extents have no size"));
        }
        let mut voters = Vec::new();
        for _ in 0..count(&mut from, 28)? {
            let (peer_id, broker_id) = (from.try_get_u64()?, from.try_get_i32()?);
            voters.push(Voter { peer_id, broker_id, directory_id: id(&mut from)? });
        }
        let mut replicas: Vec<Kept> = Vec::new();
        for record in record::decode_all(from)? {
            match record {
                Record::State { state, .. } => {
                    let is_next = replicas.last().is_none_or(|it| it.state.replica < state.replica);
                    if !is_next {
                        return Err(Malformed("its replicas are not in order"));
                    }
                    replicas.push(Kept { state: *state, holds: Vec::new() });
                }
                Record::Held { replica, hold } => {
                    let last = replicas.last_mut().filter(|it| it.state.replica == replica);
                    let last = last.ok_or(Malformed("a held batch belongs to no replica"))?;
                    last.holds.push(hold);
                }
                _ => return Err(Malformed("it has a record that does not belong there")),
            }
        }
        Ok(Self { facts, voters, extent_bytes, replicas })
    }

    /// Returns the records that state all of it: a State for each replica, and behind it what lies beside its log.
    fn records(&self, as_of: u64) -> impl Iterator<Item = Record> {
        self.replicas.iter().flat_map(move |Kept { state, holds }| {
            let replica = state.replica;
            let held = holds.iter().map(move |hold| Record::Held { replica, hold: hold.clone() });
            let state = Record::State { as_of, state: Box::new(state.clone()) };
            std::iter::once(state).chain(held)
        })
    }
}

/// Restoring.
impl Moment {
    /// Makes the directory of `disk` a data directory with these replicas, of another owner. Their files are there
    /// already, synced. `ops` change the replicas before: each can be a write that cuts nothing, a membership or an
    /// image.
    pub fn restore<D: Disk>(
        mut self,
        disk: &D,
        ops: Vec<Op>,
        (facts, voters): (Facts, Vec<Voter>),
    ) -> Result<(), Error> {
        for op in ops {
            self.carry_out(disk, op)?;
        }
        let failed = |source| disk_error("creating", JOURNAL_DIR, source);
        disk.create_dir(JOURNAL_DIR).map_err(failed)?;
        disk.create_dir(SET_ASIDE).map_err(failed)?;
        disk.sync_dir("").map_err(failed)?;
        self.write_journal(disk, &facts)?;
        manifest::write(disk, &Manifest { facts, voters, extent_bytes: self.extent_bytes })
    }

    fn carry_out<D: Disk>(&mut self, disk: &D, op: Op) -> Result<(), Error> {
        let kept = self.replicas.iter_mut().find(|it| it.state.replica == op.replica);
        let state = &mut kept.expect("an op is for a replica of the moment").state;
        match op.kind {
            OpKind::Write { appends, hard_state, .. } => {
                for append in appends {
                    write_append(disk, state, append)?;
                }
                state.hard_state = hard_state.unwrap_or(state.hard_state);
                state.synced_index = state.last_index();
            }
            OpKind::Conf { conf } => state.set_conf(&conf),
            OpKind::Image { index, image } => {
                let source = if image.len() <= INLINE_IMAGE_BYTES {
                    ImageSource::Inline(image)
                } else {
                    let length = u32::try_from(image.len()).expect("an image fits its length");
                    let path = format!("{}/image-{index:020}", state.dir());
                    write_file(disk, &state.dir(), &path, &image)?;
                    ImageSource::File { length, crc: crc32c::crc32c(&image) }
                };
                state.set_image(index, source);
            }
            other => unreachable!("{other:?} is no change before a restore"),
        }
        Ok(())
    }

    /// Writes a journal whose replay gives the replicas.
    fn write_journal<D: Disk>(&self, disk: &D, facts: &Facts) -> Result<(), Error> {
        let rounds = self.rounds()?;
        let directory = u64::from_be_bytes(*facts.directory_id.first_chunk().expect("16 bytes"));
        let extents = extents_of(&rounds, self.extent_bytes) + EXTENTS_BESIDE;
        let mut journal = Journal::format(disk, directory, self.extent_bytes, extents)?;
        for mut round in rounds {
            let (_, file) = journal.write_round(&mut round)?;
            // A round says that all before it are durable.
            disk.sync(&file).map_err(|source| disk_error("syncing", JOURNAL_DIR, source))?;
        }
        Ok(())
    }

    /// Returns the rounds of such a journal, each with room for its header. The last one is empty: it says that the
    /// one before it is durable.
    fn rounds(&self) -> Result<Vec<Vec<u8>>, Error> {
        let most = usize::try_from(self.extent_bytes / 2).map_or(usize::MAX, |it| it.min(2 << 20));
        let mut rounds = vec![vec![0; ROUND_HEADER_BYTES]];
        let mut as_of = 1;
        for record in self.records(0) {
            let last = rounds.last().expect("there is one");
            if last.len() >= most {
                rounds.push(vec![0; ROUND_HEADER_BYTES]);
                as_of += 1;
            }
            let record = match record {
                Record::State { state, .. } => Record::State { as_of, state },
                other => other,
            };
            record.encode(rounds.last_mut().expect("there is one"));
        }
        if rounds.iter().any(|round| round.len() as u64 > self.extent_bytes) {
            let what = "a replica's state does not fit into an extent of the journal".into();
            return Err(Error::Damaged { path: JOURNAL_DIR.into(), at: 0, what });
        }
        rounds.push(vec![0; ROUND_HEADER_BYTES]);
        Ok(rounds)
    }
}

/// Returns the number of extents that rounds take, one after the other.
fn extents_of(rounds: &[Vec<u8>], extent_bytes: u64) -> usize {
    let (mut extents, mut position) = (1, 0);
    for round in rounds {
        let bytes = round.len().next_multiple_of(crate::format::ROUND_ALIGN) as u64;
        if position + bytes > extent_bytes {
            (extents, position) = (extents + 1, 0);
        }
        position += bytes;
    }
    extents
}

/// Appends an entry whose batch begins a segment, or follows one of this restore.
fn write_append<D: Disk>(
    disk: &D,
    state: &mut ReplicaState,
    Append { entry, payload }: Append,
) -> Result<(), Error> {
    let Some((segment, at)) = state.append(entry, u32::MAX) else { return Ok(()) };
    let dir = state.dir();
    let path = format!("{dir}/{}.log", segment_stem(segment, state.replica, 0));
    if at == 0 {
        return write_file(disk, &dir, &path, &payload);
    }
    let write = || {
        let file = disk.open(&path)?;
        disk.write_at(&file, &[&payload], at)?;
        disk.sync(&file)
    };
    write().map_err(|source| disk_error("writing", &path, source))
}

/// Writes a file that is not there yet, durable when the function returns.
fn write_file<D: Disk>(disk: &D, dir: &str, path: &str, bytes: &Bytes) -> Result<(), Error> {
    let write = || {
        disk.create_dir(dir)?;
        let file = disk.create(path)?;
        disk.write_at(&file, &[bytes], 0)?;
        disk.sync(&file)?;
        disk.sync_dir(dir)?;
        disk.sync_dir("")
    };
    write().map_err(|source| disk_error("writing", path, source))
}
