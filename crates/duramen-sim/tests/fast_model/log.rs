//! # Room card: log
//!
//! Purpose:    the log of a node, a byte an entry.
//! Owns:       [`Log`], [`Entry`], the stretches that a log opens.
//! Interface:  [`Log`], [`Entry`], [`Content`].
//! Invariants: a log begins with the Open of the first term, unless it is empty. Bytes behind its end are 0.
//! Never:      offsets, payload.
//! Tests:      every search.
//! Start at:   [`Log`].

use std::fmt;

use crate::sets::small;

/// Most entries of a log.
const LOG_MAX: usize = 12;

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The first Open of its term: settling ends with it.
    Open,
    /// The second Open of its term: another fast set, or a refusal.
    SecondOpen,
    /// Raft's first entry of a term.
    NoOp,
    /// A batch.
    Batch(usize),
}

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) term: usize,
    pub(crate) content: Content,
}

const SECOND_OPEN: u8 = 14;
const NO_OP: u8 = 15;

impl Entry {
    /// Four bits of the term, four of the content: 0 for an Open, the number plus one for a batch.
    fn encoded(self) -> u8 {
        let content = match self.content {
            Content::Open => 0,
            Content::SecondOpen => SECOND_OPEN,
            Content::NoOp => NO_OP,
            Content::Batch(batch) => small(batch) + 1,
        };
        small(self.term) << 4 | content
    }

    fn decoded(byte: u8) -> Self {
        let content = match byte & 15 {
            0 => Content::Open,
            SECOND_OPEN => Content::SecondOpen,
            NO_OP => Content::NoOp,
            batch => Content::Batch(usize::from(batch) - 1),
        };
        Self { term: usize::from(byte >> 4), content }
    }

    /// The stretch that the entry opens.
    fn opens(self) -> Option<usize> {
        match self.content {
            Content::Open => Some(2 * self.term),
            Content::SecondOpen => Some(2 * self.term + 1),
            Content::NoOp | Content::Batch(_) => None,
        }
    }
}

/// A log from its beginning. All begin with the Open of the first term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Log {
    len: u8,
    entries: [u8; LOG_MAX],
}

impl Log {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, at: usize) -> Entry {
        Entry::decoded(self.bytes(self.len())[at])
    }

    pub(crate) fn push(&mut self, term: usize, content: Content) {
        let place = self.entries.get_mut(usize::from(self.len)).expect("room in the log");
        *place = Entry { term, content }.encoded();
        self.len += 1;
    }

    /// Cuts off all but the first `len` entries.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.entries[len..].fill(0);
        self.len = small(len);
    }

    /// Returns the first entries.
    pub(crate) fn prefix(&self, len: usize) -> Self {
        let mut log = *self;
        log.truncate(len);
        log
    }

    pub(crate) fn starts_with(&self, other: &Self) -> bool {
        self.len >= other.len && self.bytes(other.len()) == other.bytes(other.len())
    }

    /// Returns the number of entries with which both logs begin.
    pub(crate) fn common(&self, other: &Self) -> usize {
        let both = self.bytes(self.len()).iter().zip(other.bytes(other.len()));
        both.take_while(|(mine, others)| mine == others).count()
    }

    /// Returns Raft's measure of a candidate: the term of the last entry, then the length.
    pub(crate) fn measure(&self) -> (usize, usize) {
        (self.get(self.len() - 1).term, self.len())
    }

    pub(crate) fn position_of(&self, batch: usize) -> Option<usize> {
        let sought = small(batch) + 1;
        self.bytes(self.len()).iter().position(|byte| byte & 15 == sought)
    }

    pub(crate) fn has(&self, batch: usize) -> bool {
        self.position_of(batch).is_some()
    }

    /// Tells whether the batch is among the first `len` entries.
    pub(crate) fn has_within(&self, len: usize, batch: usize) -> bool {
        self.position_of(batch).is_some_and(|at| at < len)
    }

    pub(crate) fn has_twice(&self, batch: usize) -> bool {
        let sought = small(batch) + 1;
        self.bytes(self.len()).iter().filter(|byte| *byte & 15 == sought).count() > 1
    }

    /// Returns the last stretch that the first `len` entries open, and the place of its Open.
    pub(crate) fn stretch_within(&self, len: usize) -> (usize, usize) {
        let opens = (0..len).rev().find_map(|at| Some((self.get(at).opens()?, at)));
        opens.expect("a log begins with an Open")
    }

    /// Returns the last stretch of the log, and the place of its Open.
    pub(crate) fn stretch(&self) -> (usize, usize) {
        self.stretch_within(self.len())
    }

    /// Returns the stretch in which the leader of its term appended the entry. Before the term's Open there is none.
    pub(crate) fn stretch_of(&self, at: usize) -> Option<usize> {
        let term = self.get(at).term;
        let before = (0..at).rev().map(|at| self.get(at));
        before.take_while(|entry| entry.term == term).find_map(Entry::opens)
    }

    pub(crate) fn batches(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter_map(|at| match self.get(at).content {
            Content::Batch(batch) => Some(batch),
            _ => None,
        })
    }

    /// Puts other batches in place of the batches.
    pub(crate) fn rename(&mut self, names: &[usize]) {
        for at in 0..self.len() {
            let entry = self.get(at);
            if let Content::Batch(batch) = entry.content {
                let content = Content::Batch(names[batch]);
                self.entries[at] = Entry { content, ..entry }.encoded();
            }
        }
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.entries[..len]
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.content {
            Content::Open => write!(out, "open@{}", self.term),
            Content::SecondOpen => write!(out, "open-again@{}", self.term),
            Content::NoOp => write!(out, "no-op@{}", self.term),
            Content::Batch(batch) => write!(out, "{batch}@{}", self.term),
        }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.len()).try_for_each(|at| write!(out, " {}", self.get(at)))
    }
}
