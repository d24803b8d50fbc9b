//! # Room card: sets
//!
//! Purpose:    sets and lists of small numbers, in two bytes each.
//! Owns:       [`Set`], [`Batches`].
//! Interface:  [`Set`], [`Batches`], [`small`].
//! Invariants: no number is above 15 in a [`Set`], and no batch above 3 in a list.
//! Never:      allocations: a search copies millions of states.
//! Tests:      every search.
//! Start at:   [`Set`].

use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter;

/// Returns the number in a byte.
pub(crate) fn small(number: usize) -> u8 {
    u8::try_from(number).expect("no number of this model is above 255")
}

/// A set of numbers below 16.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Set(u16);

impl Set {
    pub(crate) fn contains(self, member: usize) -> bool {
        self.0 >> member & 1 == 1
    }

    pub(crate) fn insert(&mut self, member: usize) {
        self.0 |= 1 << member;
    }

    pub(crate) fn remove(&mut self, member: usize) {
        self.0 &= !(1 << member);
    }

    /// Removes all members that the other set has.
    pub(crate) fn subtract(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        iter::from_fn(move || {
            let member = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(member)
        })
    }

    /// Returns all sets of `len` numbers below `end`.
    pub(crate) fn all(len: usize, end: usize) -> impl Iterator<Item = Self> {
        (0..1 << end).map(Self).filter(move |set| set.len() == len)
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.iter()).finish()
    }
}

impl Hash for Set {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.hash(hasher);
    }

    fn hash_slice<H: Hasher>(sets: &[Self], hasher: &mut H) {
        sets.chunks(4).for_each(|four| hash_four(four.iter().map(|set| set.0), hasher));
    }
}

impl FromIterator<usize> for Set {
    fn from_iter<I: IntoIterator<Item = usize>>(members: I) -> Self {
        let mut set = Self::default();
        members.into_iter().for_each(|member| set.insert(member));
        set
    }
}

/// Batches in their order, each once: four bits a batch, its number plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Batches(u16);

impl Batches {
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.len()).map(move |at| usize::from(self.0 >> (4 * at) & 15) - 1)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        (u16::BITS - self.0.leading_zeros()).div_ceil(4) as usize
    }

    pub(crate) fn contains(self, batch: usize) -> bool {
        self.iter().any(|other| other == batch)
    }

    /// Adds a batch at the end, if it is not there.
    pub(crate) fn push(&mut self, batch: usize) {
        if !self.contains(batch) {
            self.0 |= u16::from(small(batch) + 1) << (4 * self.len());
        }
    }

    pub(crate) fn remove(&mut self, batch: usize) {
        if self.contains(batch) {
            *self = self.iter().filter(|other| *other != batch).collect();
        }
    }
}

impl Hash for Batches {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.hash(hasher);
    }

    fn hash_slice<H: Hasher>(lists: &[Self], hasher: &mut H) {
        lists.chunks(4).for_each(|four| hash_four(four.iter().map(|list| list.0), hasher));
    }
}

/// Hashes at most four numbers as one, which takes a third of the time.
fn hash_four<H: Hasher>(numbers: impl Iterator<Item = u16>, hasher: &mut H) {
    hasher.write_u64(numbers.fold(0, |word, number| word << 16 | u64::from(number)));
}

impl FromIterator<usize> for Batches {
    fn from_iter<I: IntoIterator<Item = usize>>(batches: I) -> Self {
        let mut list = Self::default();
        batches.into_iter().for_each(|batch| list.push(batch));
        list
    }
}
