//! Bytes of the parts that several journal records share: entries, memberships, names, snapshots.

use bytes::{Buf, BufMut, Bytes};

use crate::Descriptor;
use crate::descriptor;
use crate::format::{Malformed, count, take};
use crate::op::{ConfState, Content, HardState, Identity, LogEntry};

const CONF_AUTO_LEAVE: u8 = 1;
const CONF_MOVED: u8 = 2;

const INTERNAL: u8 = 0;
const BATCH: u8 = 1;
const INLINE: u8 = 0;
const FILE: u8 = 1;

/// Place of a view's snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageSource {
    /// In the record itself.
    Inline(Bytes),
    /// In the file `image-<index>` of the replica's directory.
    File { length: u32, crc: u32 },
}

impl ImageSource {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Inline(bytes) => {
                out.put_u8(INLINE);
                put_bytes(out, bytes);
            }
            Self::File { length, crc } => {
                out.put_u8(FILE);
                out.put_u32(*length);
                out.put_u32(*crc);
            }
        }
    }

    pub(crate) fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        match from.try_get_u8()? {
            INLINE => Ok(Self::Inline(get_bytes(from)?)),
            FILE => Ok(Self::File { length: from.try_get_u32()?, crc: from.try_get_u32()? }),
            _ => Err(Malformed("an image is of an unknown kind")),
        }
    }
}

pub(crate) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.put_u32(u32::try_from(count).expect("counts in a round fit 32 bits"));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.put_slice(bytes);
}

fn get_bytes(from: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = count(from, 1)?;
    take(from, length)
}

pub(crate) fn put_entry(out: &mut Vec<u8>, entry: &LogEntry) {
    out.put_u64(entry.index);
    out.put_u64(entry.term);
    match &entry.content {
        Content::Internal(bytes) => {
            out.put_u8(INTERNAL);
            put_bytes(out, bytes);
        }
        Content::Batch(batch) => {
            out.put_u8(BATCH);
            out.put_slice(&batch.encode());
        }
    }
}

pub(crate) fn get_entry(from: &mut Bytes) -> Result<LogEntry, Malformed> {
    let (index, term) = (from.try_get_u64()?, from.try_get_u64()?);
    let content = match from.try_get_u8()? {
        INTERNAL => Content::Internal(get_bytes(from)?),
        BATCH => {
            let bytes = take(from, descriptor::ENCODED_BYTES)?;
            let batch = Descriptor::decode(&bytes);
            Content::Batch(batch.map_err(|_| Malformed("a descriptor cannot be read"))?)
        }
        _ => return Err(Malformed("an entry is of an unknown kind")),
    };
    Ok(LogEntry { index, term, content })
}

pub(crate) fn put_identity(out: &mut Vec<u8>, identity: &Identity) {
    put_bytes(out, identity.topic.as_bytes());
    out.put_slice(&identity.topic_id);
    out.put_i32(identity.partition);
}

pub(crate) fn get_identity(from: &mut Bytes) -> Result<Identity, Malformed> {
    let topic = get_bytes(from)?;
    let topic = String::from_utf8(topic.to_vec()).map_err(|_| Malformed("a name is not UTF-8"))?;
    // The name is part of a directory's name, and must not lead to another directory.
    if topic.contains(['/', '\0']) {
        return Err(Malformed("a name of a topic cannot be one of a directory"));
    }
    let topic_id: [u8; 16] =
        take(from, 16)?[..].try_into().map_err(|_| Malformed("a topic id is cut short"))?;
    Ok(Identity { topic, topic_id, partition: from.try_get_i32()? })
}

pub(crate) fn put_hard_state(out: &mut Vec<u8>, hard_state: HardState) {
    out.put_u64(hard_state.term);
    out.put_u64(hard_state.vote);
    out.put_u64(hard_state.commit);
}

pub(crate) fn get_hard_state(from: &mut Bytes) -> Result<HardState, Malformed> {
    let (term, vote) = (from.try_get_u64()?, from.try_get_u64()?);
    Ok(HardState { term, vote, commit: from.try_get_u64()? })
}

pub(crate) fn put_conf(out: &mut Vec<u8>, conf: &ConfState) {
    out.put_u64(conf.applied);
    for peers in [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next] {
        put_count(out, peers.len());
        for peer in peers {
            out.put_u64(*peer);
        }
    }
    // The number is there only where there is one: nearly nowhere, and logs of before it read the same.
    let is_moved = conf.move_number != 0;
    let auto_leave = if conf.auto_leave { CONF_AUTO_LEAVE } else { 0 };
    out.put_u8(auto_leave | if is_moved { CONF_MOVED } else { 0 });
    if is_moved {
        out.put_u64(conf.move_number);
    }
}

pub(crate) fn get_conf(from: &mut Bytes) -> Result<ConfState, Malformed> {
    let applied = from.try_get_u64()?;
    let mut peers = || -> Result<Vec<u64>, Malformed> {
        (0..count(from, 8)?).map(|_| Ok(from.try_get_u64()?)).collect()
    };
    let (voters, learners, voters_outgoing, learners_next) =
        (peers()?, peers()?, peers()?, peers()?);
    let flags = from.try_get_u8()?;
    let auto_leave = flags & CONF_AUTO_LEAVE != 0;
    let move_number = if flags & CONF_MOVED != 0 { from.try_get_u64()? } else { 0 };
    Ok(ConfState {
        applied,
        voters,
        learners,
        voters_outgoing,
        learners_next,
        auto_leave,
        move_number,
    })
}

/// Checks the snapshot's bytes against the length and CRC in the journal.
pub(crate) fn image_fits(source: &ImageSource, bytes: &[u8]) -> bool {
    match source {
        ImageSource::Inline(inline) => inline == bytes,
        ImageSource::File { length, crc } => {
            bytes.len() as u64 == u64::from(*length) && crc32c::crc32c(bytes) == *crc
        }
    }
}
