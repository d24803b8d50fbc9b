//! # Room card: canonical
//!
//! Purpose:    states that go on alike become one, so that the search visits it once.
//! Owns:       which history no longer matters; the order of nodes and the names of batches.
//! Interface:  [`Model::make_canonical`].
//! Invariants: no promise and no action depends on what is forgotten here.
//! Never:      a change of what nodes know.
//! Tests:      every search.
//! Start at:   [`Model::make_canonical`].

use crate::model::Model;
use crate::sets::{Batches, Set};
use crate::state::{COMMITTED, Leader, State, TERMS};

impl<const N: usize> Model<N> {
    /// Makes the state the one that stands for all that are like it. `renamings` are [`Model::renamings`].
    pub(crate) fn make_canonical(&self, state: &mut State<N>, renamings: &[Vec<usize>]) {
        self.forget(state);
        state.nodes.sort_unstable();
        let original = *state;
        for names in renamings {
            let mut other = renamed(&original, names);
            other.nodes.sort_unstable();
            if other < *state {
                *state = other;
            }
        }
    }

    /// Drops history that no action and no promise asks for any more.
    fn forget(&self, state: &mut State<N>) {
        let committed: Set = state.committed.batches().collect();
        if !committed.is_empty() {
            let answers = state.nodes.iter_mut().flat_map(|node| &mut node.answered);
            answers.chain(&mut state.counted).for_each(|batches| batches.subtract(committed));
            committed.iter().for_each(|batch| state.complete_in[batch] = COMMITTED);
        }
        for term in 1..TERMS {
            if state.leaders[term].log.is_empty() {
                continue;
            }
            let is_led = state.leader(term).is_some();
            let is_past = !is_led && state.nodes.iter().all(|node| node.term() > term);
            for node in state.nodes.iter_mut().filter(|node| !is_led && node.term() > term) {
                node.replicated[term] = 0;
            }
            if is_past {
                state.leaders[term] = Leader::default();
            }
            for stretch in [2 * term, 2 * term + 1] {
                self.forget_answers(state, stretch, is_led);
            }
        }
    }

    /// Drops answers that complete nothing: the batch is complete, or its leader counts no more. An answer stays until
    /// its node knows that the stretch is over.
    fn forget_answers(&self, state: &mut State<N>, stretch: usize, is_led: bool) {
        if state.nodes.iter().all(|node| node.answered[stretch].is_empty()) {
            return;
        }
        let is_decided = |batch: &usize| {
            let may_count = is_led || state.counted[stretch].contains(*batch);
            state.complete.contains(*batch) || !may_count
        };
        let decided: Set = (0..self.batches()).filter(is_decided).collect();
        for node in &mut state.nodes {
            let answered = &mut node.answered[stretch];
            if !answered.is_empty() && node.log.stretch_within(node.committed.into()).0 > stretch {
                answered.subtract(decided);
            }
        }
    }
}

/// Returns the state with other names of batches.
fn renamed<const N: usize>(state: &State<N>, names: &[usize]) -> State<N> {
    let list = |batches: &mut Batches| {
        if !batches.is_empty() {
            *batches = batches.iter().map(|batch| names[batch]).collect();
        }
    };
    let set = |batches: &mut Set| {
        if !batches.is_empty() {
            *batches = batches.iter().map(|batch| names[batch]).collect();
        }
    };
    let mut other = *state;
    for node in &mut other.nodes {
        node.log.rename(names);
        node.holds.iter_mut().for_each(list);
        node.given.iter_mut().for_each(list);
        node.answered.iter_mut().for_each(set);
    }
    other.leaders.iter_mut().for_each(|leader| leader.log.rename(names));
    other.counted.iter_mut().for_each(set);
    other.committed.rename(names);
    set(&mut other.sent);
    set(&mut other.complete);
    for (batch, name) in names.iter().enumerate() {
        other.complete_before[*name] = state.complete_before[batch];
        other.complete_in[*name] = state.complete_in[batch];
        other.refused_in[*name] = state.refused_in[batch];
    }
    other.complete_before.iter_mut().for_each(set);
    other
}
