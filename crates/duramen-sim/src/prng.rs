//! # Room card: prng
//!
//! Purpose:    chance that can be repeated.
//! Owns:       the only random numbers of the simulator.
//! Interface:  [`Prng`].
//! Invariants: a stream is a pure function of the seed and of its name, so that drawing once more
//!             from one stream changes no other.
//! Never:      the operating system's randomness, a clock.
//! Tests:      below.
//! Start at:   [`Prng::new`].

/// One stream of numbers: xoshiro256**, seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Prng {
    /// Returns the stream `purpose` of the run `seed`.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut state = seed;
        for byte in purpose.bytes() {
            state = splitmix(&mut state) ^ u64::from(byte);
        }
        let mut words = [0; 4];
        for word in &mut words {
            *word = splitmix(&mut state);
        }
        Self { state: words }
    }

    /// Returns any number.
    pub fn draw(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= shifted;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "nothing is below 0");
        // The bias is below 2^-40 for the small ranges drawn here.
        self.draw() % end
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns an index into something of `len` elements, of which there must be one.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// Returns true `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns one of `of`, which must not be empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// Returns arbitrary bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.draw().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_repeats_and_streams_differ() {
        let draw = |seed, purpose| {
            let mut prng = Prng::new(seed, purpose);
            (0..8).map(|_| prng.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, "disk"), draw(1, "disk"));
        assert_ne!(draw(1, "disk"), draw(2, "disk"));
        assert_ne!(draw(1, "disk"), draw(1, "crash"));
    }

    #[test]
    fn every_value_of_a_range_is_drawn() {
        let mut prng = Prng::new(3, "range");
        let mut seen = [false; 6];
        for _ in 0..200 {
            seen[prng.index(6)] = true;
            assert!((5..=7).contains(&prng.between(5, 7)));
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
