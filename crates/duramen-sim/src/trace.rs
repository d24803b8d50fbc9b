//! # Room card: trace
//!
//! Purpose:    tell two runs apart in eight bytes.
//! Owns:       the trace hash.
//! Interface:  [`Trace`].
//! Invariants: it depends on everything mixed in, and on the order.
//! Never:      addresses, times, hash-map order.
//! Tests:      `tests/promises/determinism.rs`.
//! Start at:   [`Trace::mix`].

use std::sync::atomic::{AtomicBool, Ordering};

static LOUD: AtomicBool = AtomicBool::new(false);

/// Prints every event of the runs that follow: for looking into one seed.
pub fn be_loud() {
    LOUD.store(true, Ordering::Relaxed);
}

/// Prints an event, if that is wanted. It changes nothing in the run.
pub(crate) fn tell(event: impl FnOnce() -> String) {
    if LOUD.load(Ordering::Relaxed) {
        eprintln!("{}", event());
    }
}

/// A running hash of all that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    hash: u64,
    events: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self { hash: 0xCBF2_9CE4_8422_2325, events: 0 }
    }
}

impl Trace {
    /// Mixes in one number.
    pub fn mix(&mut self, value: u64) {
        self.events += 1;
        self.hash = (self.hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    /// Mixes in bytes, by their checksum and length.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(u64::from(crc32c::crc32c(bytes)) << 32 | (bytes.len() as u64 & 0xFFFF_FFFF));
    }

    /// Returns the hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of values that were mixed in.
    pub fn events(&self) -> u64 {
        self.events
    }
}
