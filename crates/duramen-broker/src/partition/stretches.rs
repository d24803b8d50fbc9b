//! # Room card: stretches
//!
//! Purpose:    know in which times one set of replicas holds batches for clients, by the log alone.
//! Owns:       the last entry Open or Close that was applied, and those above it in this replica's log; their part of
//!             an image.
//! Interface:  [`Stretches::note`], [`Stretches::apply`], [`Stretches::cut`], [`Stretches::current`].
//! Invariants: a stretch begins with an Open entry, and ends with the next Open or Close of the log. An entry that an
//!             image holds already changes nothing.
//! Never:      the batches that are held; a decision to open or close.
//! Tests:      below; `raft/tests.rs` for the entries of others.
//! Start at:   [`Stretches::current`].

use bytes::{Buf, BufMut};
use duramen_storage::op::{Content, LogEntry, Stretch};

use super::internal::Internal;
use crate::raft::internal_of;

/// An entry that begins a stretch, or ends the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Its place, which is the id of the stretch that it begins.
    pub(crate) at: Stretch,
    /// Peers that hold batches from then on, the leader first; none after a Close.
    pub(crate) members: Vec<u64>,
}

impl Change {
    /// Returns the change that an entry of the log makes, if it makes one.
    fn of(entry: &LogEntry) -> Option<Self> {
        let Content::Internal(bytes) = &entry.content else { return None };
        let members = match Internal::decode(internal_of(bytes).ok()??)? {
            Internal::Open { members } => members,
            Internal::Close => Vec::new(),
            _ => return None,
        };
        let at = Stretch { term: entry.term, index: entry.index };
        Some(Self { at, members })
    }
}

/// All that a replica knows of its log's stretches.
#[derive(Debug, Default)]
pub(crate) struct Stretches {
    applied: Option<Change>,
    /// Those above it in the own log, oldest first.
    above: Vec<Change>,
}

impl Stretches {
    /// Notes an entry that was appended to the log, committed or not.
    pub(crate) fn note(&mut self, entry: &LogEntry) {
        let Some(change) = Change::of(entry) else { return };
        if self.holds(change.at.index) {
            return;
        }
        let last = self.above.last();
        assert!(
            last.is_none_or(|last| last.at.index < change.at.index),
            "stretches are in the order of the log"
        );
        self.above.push(change);
    }

    /// Notes an entry that this replica proposes.
    pub(crate) fn note_own(&mut self, at: Stretch, entry: &Internal) {
        let members = match entry {
            Internal::Open { members } => members.clone(),
            _ => Vec::new(),
        };
        self.above.push(Change { at, members });
    }

    /// Applies a committed entry, if it is an Open or a Close. True if it is.
    pub(crate) fn apply(&mut self, entry: &LogEntry) -> bool {
        let Some(change) = Change::of(entry) else { return false };
        if self.holds(change.at.index) {
            return false;
        }
        self.above.retain(|later| later.at.index > change.at.index);
        self.applied = Some(change);
        true
    }

    /// Returns the last change that was applied.
    pub(crate) fn applied(&self) -> Option<&Change> {
        self.applied.as_ref()
    }

    /// Returns the change whose stretch an entry is in. `None` before the first one.
    pub(crate) fn before(&self, index: u64) -> Option<&Change> {
        let above = self.above.iter().rev().find(|change| change.at.index < index);
        above.or_else(|| self.applied.as_ref().filter(|applied| applied.at.index < index))
    }

    /// Tells whether a replica leads a stretch whose entries may not all be committed.
    pub(crate) fn are_led_by(&self, peer: u64) -> bool {
        let all = self.above.iter().chain(&self.applied);
        all.into_iter().any(|change| change.members.first() == Some(&peer))
    }

    /// Tells whether the effect of an entry is in the applied state: a replica that began anew has its leader's.
    fn holds(&self, index: u64) -> bool {
        self.applied.as_ref().is_some_and(|applied| index <= applied.at.index)
    }

    /// Forgets the entries from an index on, because the log was cut there.
    pub(crate) fn cut(&mut self, first: u64) {
        self.above.retain(|change| change.at.index < first);
    }

    /// Returns the last change in the own log, committed or not: the stretch that it began may be over elsewhere.
    pub(crate) fn current(&self) -> Option<&Change> {
        self.above.last().or(self.applied.as_ref())
    }

    /// Tells whether a log with this end has all changes that are not applied. A log that began anew has its leader's
    /// view, which may be ahead of it.
    pub(super) fn is_within(&self, last_index: u64) -> bool {
        self.above.last().is_none_or(|last| last.at.index <= last_index)
    }

    /// Tells whether no stretch was ever opened.
    pub(super) fn is_empty(&self) -> bool {
        self.applied.is_none()
    }

    /// Encodes the last change that was applied.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let Some(Change { at, members }) = &self.applied else { return };
        out.put_u64(at.term);
        out.put_u64(at.index);
        out.put_u8(u8::try_from(members.len()).expect("an entry was checked"));
        for member in members {
            out.put_u64(*member);
        }
    }

    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let at = Stretch { term: bytes.try_get_u64().ok()?, index: bytes.try_get_u64().ok()? };
        let count = bytes.try_get_u8().ok()?;
        let members = (0..count).map(|_| bytes.try_get_u64().ok()).collect::<Option<Vec<_>>>()?;
        let applied = Some(Change { at, members });
        Some(Self { applied, above: Vec::new() })
    }

    /// Describes the last change for people.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.applied.iter().map(|Change { at, members }| match &members[..] {
            [] => format!("stretch closed  entry {} of term {}", at.index, at.term),
            members => {
                format!("stretch open  entry {} of term {}  members {members:?}", at.index, at.term)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(term: u64, index: u64, change: &Internal) -> LogEntry {
        let content = Content::Internal([&[1, 0, 2][..], &change.encode()].concat().into());
        LogEntry { index, term, content }
    }

    fn open(term: u64, index: u64) -> LogEntry {
        entry(term, index, &Internal::Open { members: vec![3, 1] })
    }

    fn place(stretches: &Stretches) -> Option<(u64, u64)> {
        stretches.current().map(|change| (change.at.term, change.at.index))
    }

    #[test]
    fn the_last_open_or_close_of_the_log_counts_and_a_cut_takes_it_back() {
        let mut stretches = Stretches::default();
        stretches.note(&open(1, 5));
        assert_eq!(place(&stretches), Some((1, 5)));
        assert!(stretches.is_empty(), "nothing is applied");
        stretches.apply(&open(1, 5));
        stretches.note(&entry(1, 7, &Internal::Close));
        stretches.note(&open(2, 9));
        assert_eq!(place(&stretches), Some((2, 9)));
        stretches.cut(9);
        let closed = stretches.current().expect("there was one");
        assert_eq!((closed.at.index, &closed.members[..]), (7, &[][..]));
        stretches.cut(6);
        assert_eq!(place(&stretches), Some((1, 5)), "an applied entry is never cut");
        stretches.note(&entry(3, 6, &Internal::Trim { offset: 4 }));
        assert_eq!(place(&stretches), Some((1, 5)));
    }

    #[test]
    fn entries_that_an_image_holds_change_nothing() {
        let mut stretches = Stretches::default();
        stretches.apply(&entry(2, 9, &Internal::Close));
        stretches.note(&open(1, 5));
        stretches.apply(&open(1, 5));
        assert_eq!(place(&stretches), Some((2, 9)));
    }

    #[test]
    fn an_image_has_the_last_change_that_was_applied() {
        for last in [open(4, 8), entry(4, 8, &Internal::Close)] {
            let mut stretches = Stretches::default();
            stretches.apply(&last);
            stretches.note(&open(4, 12));
            let mut image = Vec::new();
            stretches.encode(&mut image);
            let copy = Stretches::decode(&mut &image[..]).expect("our own bytes");
            assert_eq!(copy.current(), Change::of(&last).as_ref());
            assert!(Stretches::decode(&mut &image[..image.len() - 1]).is_none());
        }
    }
}
