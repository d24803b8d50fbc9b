//! # Room card: search
//!
//! Purpose:    visit every state that a model can reach, the nearest first.
//! Owns:       [`search`], its result, the number that stands for a state.
//! Interface:  [`search`], [`Searched`].
//! Invariants: the same model is searched in the same order, so the way to a broken promise is a short one.
//! Never:      chance, threads, the crate `stateright`. That one keeps the whole way to each state in its queue, and
//!             brings an HTTP server and second versions of four crates.
//! Tests:      `main.rs`.
//! Start at:   [`search`].

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::iter;

use crate::model::Model;
use crate::properties::Broken;
use crate::state::State;

/// One state in so many is the beginning of fair runs.
const FAIR_EVERY: usize = 8;

/// The result of a search.
#[derive(Debug)]
pub(crate) struct Searched {
    pub(crate) states: usize,
    /// Actions from the first state to the farthest one.
    pub(crate) depth: usize,
    /// All states were visited.
    pub(crate) is_exhausted: bool,
    /// The first broken promise, and the way to it in words.
    pub(crate) broken: Option<(Broken, String)>,
}

impl fmt::Display for Searched {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, depth, is_exhausted, .. } = self;
        let end = if *is_exhausted { "all" } else { "not all" };
        write!(out, "{states} states, {end}, depth {depth}")?;
        match &self.broken {
            Some((broken, way)) => write!(out, ", {broken:?}:\n{way}"),
            None => Ok(()),
        }
    }
}

/// Visits the states of a model until a promise is broken, or about `states_max` states are known.
pub(crate) fn search<const N: usize>(model: &Model<N>, states_max: usize) -> Searched {
    let renamings = model.renamings();
    let mut first = State::new();
    model.make_canonical(&mut first, &renamings);
    let mut known = Known::default();
    let mut frontier = Vec::from_iter(known.add(&first, 0).map(|id| (id, first)));
    let mut successors = Vec::new();
    let mut depth = 0;
    let mut broken = None;
    'search: while !frontier.is_empty() {
        let mut next = Vec::new();
        for (id, state) in frontier {
            if id % FAIR_EVERY == 0
                && let Err(promise) = model.check_fair_runs(&state)
            {
                broken = Some((promise, id, "  and a fair run\n"));
                break 'search;
            }
            model.successors(&state, &mut successors);
            for (_, mut successor) in successors.drain(..) {
                model.make_canonical(&mut successor, &renamings);
                let Some(new) = known.add(&successor, id) else { continue };
                if let Err(promise) = model.check(&successor) {
                    broken = Some((promise, new, ""));
                    break 'search;
                }
                next.push((new, successor));
            }
            if known.visited.len() >= states_max {
                break 'search;
            }
        }
        depth += 1;
        frontier = next;
    }
    let states = known.visited.len();
    let is_exhausted = broken.is_none() && states < states_max;
    let broken = broken.map(|(promise, id, end)| (promise, known.way_to(id, model, first) + end));
    Searched { states, depth, is_exhausted, broken }
}

/// The states that were seen.
#[derive(Default)]
struct Known {
    numbers: HashSet<u64, BuildHasherDefault<Mixer>>,
    /// The number of each state, and the state that led to it first. Both are told by their places here.
    visited: Vec<(u64, u32)>,
}

impl Known {
    /// Returns the place of the state, if it is new.
    fn add<const N: usize>(&mut self, state: &State<N>, origin: usize) -> Option<usize> {
        let number = number_of(state);
        if !self.numbers.insert(number) {
            return None;
        }
        let origin = u32::try_from(origin).expect("memory ends before");
        self.visited.push((number, origin));
        Some(self.visited.len() - 1)
    }

    /// Goes the way to a state again, and tells it.
    fn way_to<const N: usize>(&self, id: usize, model: &Model<N>, first: State<N>) -> String {
        let origin = |id: &usize| (*id != 0).then(|| self.visited[*id].1 as usize);
        let mut way: Vec<_> = iter::successors(Some(id), origin).collect();
        way.pop();
        let renamings = model.renamings();
        let mut state = first;
        let mut told = Vec::new();
        let mut successors = Vec::new();
        for id in way.into_iter().rev() {
            model.successors(&state, &mut successors);
            for (_, to) in &mut successors {
                model.make_canonical(to, &renamings);
            }
            let is_next = |(_, to): &&(_, State<N>)| number_of(to) == self.visited[id].0;
            let (action, to) = successors.iter().find(is_next).expect("the search went this way");
            state = *to;
            told.push(format!("  {action:?}\n{state}"));
        }
        told.concat()
    }
}

/// Returns the number that stands for the state. A search of a million states takes two for one with a chance of one
/// in thirty million.
fn number_of<const N: usize>(state: &State<N>) -> u64 {
    let mut mixer = Mixer::default();
    state.hash(&mut mixer);
    mixer.finish()
}

/// A hash of 64 bits, quick for short writes. With `std`'s a search takes a sixth longer.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    /// Skips lengths: those of arrays are the same in all states.
    fn write_usize(&mut self, _: usize) {}

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.unsigned_abs() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        let mixed = self.0.wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
