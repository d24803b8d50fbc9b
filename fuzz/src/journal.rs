//! Any bytes as journal extents and as the records of a round: sort them out, tell a tear from damage.

use bytes::Bytes;
use duramen_storage::fuzzing::decode_records;
use duramen_storage::journal::{Round, rounds_of, scan};

const PAGE: usize = 4096;
const HEADER: usize = 64;
/// Pages of one extent.
const PAGES: usize = 8;
const DIRECTORY: u64 = 7;

/// Scans journal extents and decodes the records of their rounds. Panics on a find.
pub fn run(data: &[u8]) {
    // As they come.
    let bytes = Bytes::copy_from_slice(data);
    decode_records(bytes.clone());
    let raw = rounds_of(0, &bytes);
    judge(raw);
    // As a few extents full of rounds with good checksums.
    let extents = compose(data);
    let rounds = extents.iter().enumerate().flat_map(|(file, extent)| rounds_of(file, extent));
    judge(rounds.collect());
}

/// What a scan calls live must be a row without gaps, from the beginning of the tail.
fn judge(rounds: Vec<Round>) {
    for round in &rounds {
        assert!(round.header.position.is_multiple_of(PAGE as u64));
    }
    let directory = rounds.first().map_or(DIRECTORY, |round| round.header.directory);
    let Ok(scan) = scan(rounds, directory) else { return };
    let last = scan.rounds.last().expect("a scan without rounds is an error").header;
    let first = scan.rounds[0].header;
    assert_eq!((first.extent, first.position), (last.tail, 0));
    for pair in scan.rounds.windows(2) {
        assert_eq!(pair[0].header.lsn + 1, pair[1].header.lsn);
    }
    for round in &scan.rounds {
        decode_records(round.body.clone().expect("live rounds are whole"));
    }
}

/// Twelve bytes a round: where it lies, what its header says, how it is spoilt, and its body.
fn compose(data: &[u8]) -> Vec<Bytes> {
    let mut extents = vec![vec![0u8; PAGES * PAGE]; 3];
    let mut rest = data;
    while let Some((spec, after)) = rest.split_first_chunk::<12>() {
        rest = after;
        let [file, page, lsn, extent, tail, spoil, far, shift, len, ..] = *spec;
        let page = usize::from(page) % PAGES;
        let room = (PAGES - page) * PAGE - HEADER;
        let body = &rest[..usize::from(len).min(rest.len()).min(room)];
        rest = &rest[body.len()..];
        // Mostly small numbers, sometimes one at the far end.
        let number = |value: u8, bit: u8| {
            let far = far & bit != 0;
            if far { u64::MAX - u64::from(value) } else { u64::from(value) }
        };
        let mut header = [0u8; HEADER];
        header[..4].copy_from_slice(b"DJR1");
        header[8..10].copy_from_slice(&1u16.to_be_bytes());
        let body_bytes = match spoil & 1 {
            0 => u32::try_from(body.len()).expect("small"),
            _ => u32::MAX >> (shift % 32),
        };
        header[12..16].copy_from_slice(&body_bytes.to_be_bytes());
        header[16..20].copy_from_slice(&crc32c::crc32c(body).to_be_bytes());
        header[24..32].copy_from_slice(&number(extent, 1).to_be_bytes());
        header[32..40].copy_from_slice(&number(lsn, 2).to_be_bytes());
        header[40..48].copy_from_slice(&number(tail, 4).to_be_bytes());
        let position = if spoil & 2 == 0 { page * PAGE } else { 0 };
        header[48..56].copy_from_slice(&(position as u64).to_be_bytes());
        header[56..64].copy_from_slice(&DIRECTORY.to_be_bytes());
        let crc = crc32c::crc32c(&header[8..]);
        header[4..8].copy_from_slice(&crc.to_be_bytes());
        let at = page * PAGE;
        let target = &mut extents[usize::from(file) % 3][at..];
        target[..HEADER].copy_from_slice(&header);
        target[HEADER..HEADER + body.len()].copy_from_slice(body);
        if spoil & 4 != 0 && !body.is_empty() {
            target[HEADER] ^= 1;
        }
    }
    extents.into_iter().map(Bytes::from).collect()
}
