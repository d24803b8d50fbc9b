//! # Room card: chance
//!
//! Purpose:    all the chance of a node, from one seed.
//! Owns:       [`Prng`].
//! Interface:  [`Prng::stream`], [`Prng::next`], [`Prng::below`].
//! Invariants: the same seed gives the same numbers; a draw from one stream changes no other.
//! Never:      secrets: this is not cryptography.
//! Tests:      below.
//! Start at:   [`Prng::next`].

/// A `SplitMix64` generator.
#[derive(Clone, Debug)]
pub(crate) struct Prng {
    state: u64,
}

impl Prng {
    /// Returns the stream for one purpose, named by `salt`.
    pub(crate) fn stream(seed: u64, salt: u64) -> Self {
        let mut mixer = Self { state: seed ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93) };
        let state = mixer.next();
        Self { state }
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is not 0. The bias is below 2^-32 for the small bounds used.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draw = |salt| Prng::stream(7, salt).next();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut prng = Prng::stream(7, 3);
        assert!((0..1000).all(|_| prng.below(10) < 10));
    }
}
