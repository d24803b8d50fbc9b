//! A machine that is taken out of the cluster. It runs on for a while, is stopped for good, or comes back with an
//! empty disk.

use crate::node_harness::clients::Clients;
use crate::prng::Prng;

/// See above.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Which machine, if one leaves in this run.
    pub(super) at: Option<usize>,
    /// Time when the machine that has left is stopped, in microseconds.
    pub(super) stops_us: Option<u64>,
    pub(super) comes_back: bool,
    /// Machines that left, and that came back.
    pub(super) left: u64,
    pub(super) returned: u64,
    pub(super) chance: Prng,
}

impl Leaving {
    /// Draws the founder that leaves, where enough others are.
    pub(super) fn new(seed: u64, founders: usize, machines: usize) -> Self {
        let mut chance = Prng::new(seed, "cluster leaving");
        let leaves = machines > 3 && chance.chance(500);
        let at = leaves.then(|| chance.index(founders));
        let comes_back = chance.chance(400);
        Self { at, stops_us: None, comes_back, left: 0, returned: 0, chance }
    }

    /// Makes a client take the machine out.
    pub(super) fn begin(&mut self, clients: &mut Clients, broker_id: impl Fn(usize) -> i32) {
        if let Some(at) = self.at {
            clients.take_out(broker_id(at), self.chance.below(60));
        }
    }

    /// Tells whether this machine leaves, or has left.
    pub(super) fn concerns(&self, at: usize) -> bool {
        self.at == Some(at)
    }
}
