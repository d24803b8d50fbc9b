//! Entries of ours, which remove or reshape data or control a log. The leader decides, and each replica executes from
//! the entry alone.

use bytes::Bytes;

use super::pointers::{put_pointer, take_pointer};
use crate::limits::FENCE_BYTES_MAX;
use crate::native::Pointer;

/// An internal entry. Kinds and versions are never reused; one that is unknown stops the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Internal {
    /// Offsets below are gone.
    Trim {
        /// The new log start.
        offset: i64,
    },
    /// The same, and the log keeps what its removed records would tell.
    Truncate {
        /// The new log start.
        offset: i64,
        /// Leader epoch of the record before it.
        term: i32,
        /// Pointer to what the removed records led to.
        pointer: Option<Pointer>,
    },
    /// The log has another fence.
    Fence {
        /// Token that appends have to carry if they carry one; empty for none.
        token: Bytes,
    },
    /// Producers whose last batch begins before this offset are forgotten. It takes the same few bytes however many
    /// they are: such entries are remembered for as long as the log.
    ExpireProducers {
        /// The first that stays.
        before: i64,
    },
    /// The log is compacted: below an offset one record of each key is left.
    Compact {
        /// Below this one: where a segment begins.
        below: i64,
        /// Below this one tombstones go, too, and markers of transactions.
        tombstones_below: i64,
        /// When it was decided, by its leader's clock.
        at_ms: i64,
    },
    /// Records of a log of queues that edits took away, or that are of no use any more, leave the disk.
    Erase {
        /// Below this offset, where a segment begins. Edits behind it do not count.
        below: i64,
        /// Below this one statements about them go, too.
        statements_below: i64,
        /// When it was decided, by its leader's clock.
        at_ms: i64,
        /// Time at which records that go by themselves were of no use; 0 for none: older logs have such entries.
        expired_by_ms: i64,
    },
    /// A stretch begins: from here on these replicas hold batches for clients.
    Open {
        /// Their peer ids, that of the leader first. A replica that replaces another has another id.
        members: Vec<u64>,
    },
    /// The stretch is over, and no other one begins.
    Close,
    /// These producers are forgotten: it is read from older logs, and not written any more.
    ExpireNamed {
        /// Ids of the producers.
        ids: Vec<i64>,
    },
}

/// Most members of a stretch: a majority of the most voters.
const MEMBERS_MAX: usize = 64;

const TRIM: [u8; 2] = [1, 1];
const TRUNCATE: [u8; 2] = [1, 2];
const EXPIRE_NAMED: [u8; 2] = [2, 1];
const EXPIRE_PRODUCERS: [u8; 2] = [2, 2];
const COMPACT: [u8; 2] = [3, 1];
const FENCE: [u8; 2] = [4, 1];
const ERASE_EDITED: [u8; 2] = [5, 1];
const ERASE: [u8; 2] = [5, 2];
const OPEN: [u8; 2] = [6, 1];
const CLOSE: [u8; 2] = [7, 1];

impl Internal {
    /// Encodes kind, version of the kind, and body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Trim { offset } => [&TRIM[..], &offset.to_be_bytes()[..]].concat(),
            Self::Truncate { offset, term, pointer } => {
                let (offset, term) = (offset.to_be_bytes(), term.to_be_bytes());
                let mut out = [&TRUNCATE[..], &offset, &term].concat();
                put_pointer(&mut out, pointer.as_ref());
                out
            }
            Self::Fence { token } => [&FENCE[..], token].concat(),
            Self::ExpireProducers { before } => {
                [&EXPIRE_PRODUCERS[..], &before.to_be_bytes()[..]].concat()
            }
            Self::Compact { below, tombstones_below, at_ms } => {
                let numbers = [below, tombstones_below, at_ms].map(|it| it.to_be_bytes());
                [&COMPACT[..], numbers.as_flattened()].concat()
            }
            Self::Erase { below, statements_below, at_ms, expired_by_ms } => {
                let numbers = [below, statements_below, at_ms, expired_by_ms];
                let numbers = numbers.map(|it| it.to_be_bytes());
                [&ERASE[..], numbers.as_flattened()].concat()
            }
            Self::Open { members } => {
                let mut out = OPEN.to_vec();
                put_members(&mut out, members);
                out
            }
            Self::Close => CLOSE.to_vec(),
            Self::ExpireNamed { ids } => {
                let mut out = EXPIRE_NAMED.to_vec();
                for id in ids {
                    out.extend_from_slice(&id.to_be_bytes());
                }
                out
            }
        }
    }

    /// Decodes an entry; `None` for a kind or version that this build does not know.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, body) = bytes.split_first_chunk::<2>()?;
        match *kind {
            TRIM => {
                let offset = i64::from_be_bytes(body.try_into().ok()?);
                (offset >= 0).then_some(Self::Trim { offset })
            }
            TRUNCATE => {
                let (offset, rest) = body.split_first_chunk::<8>()?;
                let (term, mut rest) = rest.split_first_chunk::<4>()?;
                let (offset, term) = (i64::from_be_bytes(*offset), i32::from_be_bytes(*term));
                let pointer = take_pointer(&mut rest)?;
                let is_sane = offset >= 0 && rest.is_empty();
                is_sane.then_some(Self::Truncate { offset, term, pointer })
            }
            FENCE => {
                let token = Bytes::copy_from_slice(body);
                (token.len() <= FENCE_BYTES_MAX).then_some(Self::Fence { token })
            }
            EXPIRE_PRODUCERS => {
                let before = i64::from_be_bytes(body.try_into().ok()?);
                Some(Self::ExpireProducers { before })
            }
            COMPACT => {
                let [below, tombstones_below, at_ms] = extent(body)?;
                Some(Self::Compact { below, tombstones_below, at_ms })
            }
            ERASE_EDITED => {
                let [below, statements_below, at_ms] = extent(body)?;
                Some(Self::Erase { below, statements_below, at_ms, expired_by_ms: 0 })
            }
            ERASE => {
                let (body, expired_by) = body.split_last_chunk::<8>()?;
                let [below, statements_below, at_ms] = extent(body)?;
                let expired_by_ms = i64::from_be_bytes(*expired_by);
                let erase = Self::Erase { below, statements_below, at_ms, expired_by_ms };
                (expired_by_ms >= 0).then_some(erase)
            }
            OPEN => Some(Self::Open { members: take_members(body)? }),
            CLOSE => body.is_empty().then_some(Self::Close),
            EXPIRE_NAMED => {
                let (ids, rest) = body.as_chunks::<8>();
                let ids = ids.iter().map(|id| i64::from_be_bytes(*id)).collect();
                rest.is_empty().then_some(Self::ExpireNamed { ids })
            }
            _ => None,
        }
    }
}

/// Encodes the members of a stretch for an entry.
fn put_members(out: &mut Vec<u8>, members: &[u64]) {
    assert!((2..=MEMBERS_MAX).contains(&members.len()), "a stretch has a leader and a follower");
    for member in members {
        out.extend_from_slice(&member.to_be_bytes());
    }
}

/// Decodes the members of a stretch: different peers, of which there are two or more.
fn take_members(bytes: &[u8]) -> Option<Vec<u64>> {
    let (members, rest) = bytes.as_chunks::<8>();
    let members: Vec<u64> = members.iter().map(|id| u64::from_be_bytes(*id)).collect();
    let is_twice = |at: usize| members[..at].contains(&members[at]);
    let is_sane = rest.is_empty()
        && (2..=MEMBERS_MAX).contains(&members.len())
        && !members.contains(&0)
        && !(0..members.len()).any(is_twice);
    is_sane.then_some(members)
}

/// Reads two offsets, of which the second is not beyond the first, and a time.
fn extent(body: &[u8]) -> Option<[i64; 3]> {
    let body: &[u8; 24] = body.try_into().ok()?;
    let (numbers, _) = body.as_chunks::<8>();
    let [below, other, at_ms] = [0, 1, 2].map(|at: usize| i64::from_be_bytes(numbers[at]));
    (below > 0 && (0..=below).contains(&other)).then_some([below, other, at_ms])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_encoding_and_unknown_kinds_do_not_decode() {
        let named = Internal::ExpireNamed { ids: vec![1, -5, i64::MAX] };
        let expire = Internal::ExpireProducers { before: 9 };
        let compact = Internal::Compact { below: 9, tombstones_below: 3, at_ms: -1 };
        let pointer = Pointer { uri: "u".to_owned(), note: "n".to_owned(), ..Pointer::default() };
        let truncate = Internal::Truncate { offset: 7, term: 3, pointer: Some(pointer) };
        let without = Internal::Truncate { offset: 7, term: -1, pointer: None };
        let fence = Internal::Fence { token: Bytes::from_static(b"token") };
        let no_fence = Internal::Fence { token: Bytes::new() };
        let trim = Internal::Trim { offset: 77 };
        let (below, statements_below, at_ms) = (9, 9, 5);
        let erase = Internal::Erase { below, statements_below, at_ms, expired_by_ms: 4 };
        let edited = Internal::Erase { below, statements_below, at_ms, expired_by_ms: 0 };
        let older =
            [&ERASE_EDITED[..], [9_i64, 9, 5].map(i64::to_be_bytes).as_flattened()].concat();
        assert_eq!(Internal::decode(&older), Some(edited));
        let open = Internal::Open { members: vec![9, 2, u64::MAX] };
        let all = [trim, truncate, without, fence, no_fence, named, expire, compact, erase, open];
        for entry in all.into_iter().chain([Internal::Close]) {
            assert_eq!(Internal::decode(&entry.encode()), Some(entry));
        }
        assert_eq!(Internal::decode(&[3, 1]), None);
        assert_eq!(Internal::decode(&[5, 1]), None);
        assert_eq!(Internal::decode(&[&ERASE[..], &older[2..]].concat()), None);
        assert_eq!(Internal::decode(&[5, 3]), None);
        assert_eq!(Internal::decode(&[6, 1]), None);
        assert_eq!(Internal::decode(&[7, 1, 0]), None);
        assert_eq!(Internal::decode(&[7, 2]), None);
        assert_eq!(Internal::decode(&[8, 1]), None);
        assert_eq!(Internal::decode(&[&FENCE[..], &[0; 65]].concat()), None);
        assert_eq!(Internal::decode(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        let odd = Internal::Compact { below: 9, tombstones_below: 10, at_ms: 0 };
        assert_eq!(Internal::decode(&odd.encode()), None);
        assert_eq!(Internal::decode(&[1]), None);
    }

    #[test]
    fn members_are_different_peers_and_more_than_one() {
        let bytes =
            |members: &[u64]| members.iter().flat_map(|it| it.to_be_bytes()).collect::<Vec<u8>>();
        assert_eq!(take_members(&bytes(&[7, 2])), Some(vec![7, 2]));
        for wrong in [&[][..], &[7], &[7, 7], &[7, 0], &[1; 65]] {
            assert_eq!(take_members(&bytes(wrong)), None, "{wrong:?}");
        }
        assert_eq!(take_members(&bytes(&[7, 2])[1..]), None);
    }
}
