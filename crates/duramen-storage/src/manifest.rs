//! # Room card: manifest
//!
//! Purpose:    node-local facts that do not change while the directory lives.
//! Owns:       the file `manifest`.
//! Interface:  [`write`], [`read`], [`Manifest`].
//! Invariants: formatting writes the manifest after the journal's first round is durable: a directory with a manifest
//!             is complete. A node that forms a cluster with others replaces its manifest twice: after its promise to
//!             the other voters, and as a member. A promise or a membership changes in one case: most
//!             of the cluster is lost, and an operator lets the node begin another cluster alone.
//! Never:      topics, settings, or anything else that the metadata group holds.
//! Tests:      below.
//! Start at:   [`write`].

use std::fmt::Write as _;

use crate::Disk;
use crate::error::{Error, disk_error};
use crate::format::{DIRECTORY_VERSION, MANIFEST, ROUND_ALIGN};
use crate::options::{Facts, Voter};

/// Extents are read whole.
pub(crate) const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// The version that knows of other nodes. A directory that is a cluster of its own keeps the first one, which older
/// builds read.
const FORMING_VERSION: u32 = 2;
/// Voters there may be, far above any sense.
const VOTERS_MAX: usize = 1000;

/// All that it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// A cluster id of zeros is none yet.
    pub(crate) facts: Facts,
    /// Those who keep the metadata of a cluster of several nodes: promised, or, with a cluster id, settled.
    pub(crate) voters: Vec<Voter>,
    pub(crate) extent_bytes: u64,
}

impl Manifest {
    fn is_of_several(&self) -> bool {
        !self.voters.is_empty() || self.facts.cluster_id == [0; 16]
    }
}

/// Renders the manifest as a text file, for people: `key=value` lines and their CRC.
fn render(manifest: &Manifest) -> String {
    let Manifest { facts, voters, extent_bytes } = manifest;
    let version = if manifest.is_of_several() { FORMING_VERSION } else { DIRECTORY_VERSION };
    let mut text = format!(
        "version={version}\ncluster.id={}\nbroker.id={}\ndirectory.id={}\n\
         journal.extent.bytes={extent_bytes}\n",
        hex(&facts.cluster_id),
        facts.broker_id,
        hex(&facts.directory_id),
    );
    if version == FORMING_VERSION {
        let voter =
            |it: &Voter| format!("{}:{}:{}", it.peer_id, it.broker_id, hex(&it.directory_id));
        let voters: Vec<String> = voters.iter().map(voter).collect();
        writeln!(text, "voters={}", voters.join(",")).expect("writing to a string cannot fail");
    }
    let crc = crc32c::crc32c(text.as_bytes());
    writeln!(text, "crc32c={crc:08x}").expect("writing to a string cannot fail");
    text
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(out)
}

/// Writes the manifest and syncs it, so that it is there whole or not at all.
pub(crate) fn write<D: Disk>(disk: &D, manifest: &Manifest) -> Result<(), Error> {
    let temporary = "manifest.new";
    let write = || {
        let _ = disk.remove_file(temporary); // left by a crash, or not there
        let file = disk.create(temporary)?;
        disk.write_at(&file, &[render(manifest).as_bytes()], 0)?;
        disk.sync(&file)?;
        disk.rename(temporary, MANIFEST)?;
        disk.sync_dir("")
    };
    write().map_err(|source| disk_error("writing", MANIFEST, source))
}

/// Reads the manifest.
pub(crate) fn read<D: Disk>(disk: &D) -> Result<Manifest, Error> {
    let read = || {
        let file = disk.open(MANIFEST)?;
        let len = usize::try_from(disk.len(&file)?.min(65536)).unwrap_or(0);
        disk.read_medium(&file, 0, len)
    };
    let bytes = read().map_err(|source| disk_error("reading", MANIFEST, source))?;
    parse(&bytes)
}

/// Reads the text of a manifest.
pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest, Error> {
    let damaged = |what: &str| Error::Damaged { path: MANIFEST.into(), at: 0, what: what.into() };
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let (body, crc) = text.rsplit_once("crc32c=").ok_or_else(|| damaged("its CRC is missing"))?;
    if u32::from_str_radix(crc.trim_end(), 16) != Ok(crc32c::crc32c(body.as_bytes())) {
        return Err(damaged("its CRC does not match"));
    }
    let value = |key: &str| {
        body.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .ok_or_else(|| damaged("a line is missing"))
    };
    let version = value("version")?;
    let knows_others = version == FORMING_VERSION.to_string();
    if !knows_others && version != DIRECTORY_VERSION.to_string() {
        return Err(Error::Foreign(format!(
            "the data directory has format version {version}, and this build knows only \
             {DIRECTORY_VERSION} and {FORMING_VERSION}; use the version of duramen that wrote it",
        )));
    }
    let id = |key| unhex(value(key)?).ok_or_else(|| damaged("an id is malformed"));
    let facts = Facts {
        cluster_id: id("cluster.id")?,
        broker_id: value("broker.id")?.parse().map_err(|_| damaged("broker.id is no number"))?,
        directory_id: id("directory.id")?,
    };
    let extent_bytes = value("journal.extent.bytes")?
        .parse()
        .map_err(|_| damaged("journal.extent.bytes is no number"))?;
    if !(1..=EXTENT_BYTES_MAX).contains(&extent_bytes) || extent_bytes % ROUND_ALIGN as u64 != 0 {
        return Err(damaged("journal.extent.bytes is no size of an extent"));
    }
    let voters = if knows_others { value("voters")? } else { "" };
    let voters = parse_voters(voters).ok_or_else(|| damaged("voters is malformed"))?;
    let manifest = Manifest { facts, voters, extent_bytes };
    if knows_others && !is_consistent(&manifest) {
        return Err(damaged("it contradicts itself"));
    }
    Ok(manifest)
}

/// Parses voters as `peer:broker:directory`, with commas between.
fn parse_voters(text: &str) -> Option<Vec<Voter>> {
    let parts: Vec<&str> = text.split(',').filter(|part| !part.is_empty()).collect();
    let voter = |part: &&str| {
        let mut fields = part.split(':');
        let voter = Voter {
            peer_id: fields.next()?.parse().ok()?,
            broker_id: fields.next()?.parse().ok()?,
            directory_id: unhex(fields.next()?)?,
        };
        fields.next().is_none().then_some(voter)
    };
    if parts.len() > VOTERS_MAX { None } else { parts.iter().map(voter).collect() }
}

/// Tells whether the manifest's parts fit each other. A member knows the first voters of its cluster, and need not be
/// one of them. A node that only promised must be one of the voters.
fn is_consistent(manifest: &Manifest) -> bool {
    let Manifest { facts, voters, .. } = manifest;
    let is_own = |it: &Voter| {
        (it.broker_id, it.directory_id) == (facts.broker_id, facts.directory_id) && it.peer_id > 0
    };
    let is_member = facts.cluster_id != [0; 16];
    if voters.is_empty() { !is_member } else { is_member || voters.iter().any(is_own) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> Manifest {
        let facts = Facts { cluster_id: [1; 16], broker_id: 3, directory_id: [0xab; 16] };
        Manifest { facts, voters: Vec::new(), extent_bytes: 4096 }
    }

    /// Of a node that forms a cluster: before it has promised, when it has, and as a member.
    fn forming() -> [Manifest; 3] {
        let voter =
            |peer_id, broker_id, byte| Voter { peer_id, broker_id, directory_id: [byte; 16] };
        let mut fresh = alone();
        fresh.facts.cluster_id = [0; 16];
        let voters = vec![voter(1, 3, 0xab), voter(2, 5, 7), voter(3, 8, 9)];
        let promised = Manifest { voters: voters.clone(), ..fresh.clone() };
        [fresh, promised, Manifest { voters, ..alone() }]
    }

    #[test]
    fn a_manifest_reads_back() {
        for manifest in forming().into_iter().chain([alone()]) {
            let text = render(&manifest);
            assert_eq!(parse(text.as_bytes()).expect("it is good"), manifest);
        }
    }

    #[test]
    fn a_node_alone_writes_what_older_builds_read() {
        let text = render(&alone());
        assert!(text.starts_with("version=1\n") && !text.contains("voters"), "{text}");
        assert!(forming().iter().all(|it| render(it).starts_with("version=2\n")));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for manifest in forming().into_iter().chain([alone()]) {
            let text = render(&manifest).into_bytes();
            for bit in 0..text.len() * 8 {
                let mut bad = text.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let same_number = parse(&bad).is_ok_and(|got| got == manifest);
                assert!(parse(&bad).is_err() || same_number, "bit {bit} changed a fact");
            }
        }
    }

    fn signed(text: &str) -> String {
        let body = &text[..text.find("crc32c").expect("it has one")];
        format!("{body}crc32c={:08x}\n", crc32c::crc32c(body.as_bytes()))
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let text = signed(&render(&alone()).replace("version=1", "version=3"));
        assert!(matches!(parse(text.as_bytes()), Err(Error::Foreign(_))));
    }

    #[test]
    fn what_contradicts_itself_is_damage() {
        let [_, promised, member] = forming();
        let cases = [
            (&promised, "broker.id=3", "broker.id=4"),
            (&promised, "1:3:ab", "1:3:ac"),
            (&promised, "1:3:ab", "0:3:ab"),
            (&member, ",2:5:", ",2:5:0:"),
            (&member, ",2:5:07", ",2:5:7"),
        ];
        for (manifest, from, to) in cases {
            let text = signed(&render(manifest).replace(from, to));
            assert!(matches!(parse(text.as_bytes()), Err(Error::Damaged { .. })), "{from} {to}");
        }
        let joined = signed(&render(&member).replace("broker.id=3", "broker.id=4"));
        assert!(parse(joined.as_bytes()).is_ok(), "it joined a cluster that others began");
        let text = render(&member);
        let voters = text.lines().find(|line| line.starts_with("voters=")).expect("it has them");
        let text = signed(&text.replace(voters, "voters="));
        assert!(matches!(parse(text.as_bytes()), Err(Error::Damaged { .. })), "nobody's member");
    }
}
