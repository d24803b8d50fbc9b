//! Answers as nodes give them, and the rules for answers of every kind.

use duramen_protocol::messages::ShareFetchResponse;
use duramen_protocol::{ErrorCode, Response};

use crate::failure::Failure;

/// Facts of a partition when a leader answers: the leader's term, and the largest offset that any replica knows to be
/// committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) term: u64,
    pub(crate) committed: i64,
    /// Time when it was first seen to lead, in microseconds.
    pub(crate) since_us: u64,
}

/// An answer as its node gave it.
pub(crate) struct Answered<'a> {
    pub(crate) response: &'a Response,
    /// Records given out by the answer, though they may not be read any more.
    pub(crate) given: Option<&'a ShareFetchResponse>,
    pub(crate) now_us: u64,
}

/// Fails for an answer that is of another kind than its request.
pub(super) fn unexpected<T>(came: &Response) -> Result<T, Failure> {
    Err(Failure::correctness(format!("a reply of another kind: {:?}", came.api_key())))
}

/// Checks the code of an answer. Answers may be late, or wait for a leader; a full disk refuses nothing but appends.
pub(super) fn expect_one_of(code: i16, codes: &[ErrorCode], api: &str) -> Result<(), Failure> {
    if codes.iter().any(|expected| expected.code() == code) {
        return Ok(());
    }
    Err(Failure::correctness(format!("{api} is answered with {code}")))
}
