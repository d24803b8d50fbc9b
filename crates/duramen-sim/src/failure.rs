//! # Room card: failure
//!
//! Purpose:    the findings of a run, and the end of the process that ran it.
//! Owns:       [`Failure`] and its exit codes.
//! Interface:  all of it.
//! Invariants: 127 crash, 128 liveness, 129 correctness.
//! Never:      a failure without a reason.
//! Tests:      with the harnesses.
//! Start at:   [`Failure`].

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Kind of a run's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The code under test panicked.
    Crash,
    /// The code under test stopped making progress.
    Liveness,
    /// The code under test broke a promise.
    Correctness,
}

/// Reason that a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the failure.
    pub kind: Kind,
    /// Reason, for people.
    pub what: String,
}

impl Failure {
    /// Returns a broken promise.
    pub fn correctness(what: impl Into<String>) -> Self {
        Self { kind: Kind::Correctness, what: what.into() }
    }

    /// Returns a lack of progress.
    pub fn liveness(what: impl Into<String>) -> Self {
        Self { kind: Kind::Liveness, what: what.into() }
    }

    /// Returns the exit code of `duramen-sim`.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Crash => 127,
            Kind::Liveness => 128,
            Kind::Correctness => 129,
        }
    }
}

/// Fails a run for a broken promise.
pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::correctness(what))
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::correctness(what)
    }
}

/// Runs `run`; a panic in it becomes a failure.
pub fn catching<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let what = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Err(Failure { kind: Kind::Crash, what: format!("panicked: {what}") })
    })
}
