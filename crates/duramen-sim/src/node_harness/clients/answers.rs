//! Answers as nodes give them, and the rules for answers of every kind.

use bytes::Bytes;
use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::messages::{
    CreateTopicsResponse, FindCoordinatorResponse, LeaveGroupResponse, ShareFetchResponse,
};
use duramen_protocol::wire::RecordData;
use duramen_protocol::{ErrorCode, Response};

use crate::failure::{Failure, wrong};

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

/// Error codes that a member of a group may get by the classic protocol.
pub(super) const CLASSIC_CODES: [ErrorCode; 9] = [
    ErrorCode::None,
    ErrorCode::CoordinatorLoadInProgress,
    ErrorCode::CoordinatorNotAvailable,
    ErrorCode::NotCoordinator,
    ErrorCode::RebalanceInProgress,
    ErrorCode::IllegalGeneration,
    ErrorCode::UnknownMemberId,
    ErrorCode::FencedInstanceId,
    ErrorCode::MemberIdRequired,
];

/// Fails for an answer that is of another kind than its request.
pub(super) fn unexpected<T>(came: &Response) -> Result<T, Failure> {
    wrong(format!("a reply of another kind: {:?}", came.api_key()))
}

/// Checks the code of an answer. Answers may be late, or wait for a leader; a full disk refuses nothing but appends.
pub(super) fn expect_one_of(code: i16, codes: &[ErrorCode], api: &str) -> Result<(), Failure> {
    if codes.iter().any(|expected| expected.code() == code) {
        return Ok(());
    }
    wrong(format!("{api} is answered with {code}"))
}

pub(super) fn code_of(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError)
}

/// Tells whether a topic is there, as the answer to a client that makes it says.
pub(super) fn is_made(it: &CreateTopicsResponse) -> bool {
    let code = code_of(it.topics[0].error_code);
    matches!(code, ErrorCode::None | ErrorCode::TopicAlreadyExists)
}

/// Returns the node that coordinates, if the answer names it.
pub(super) fn found(it: &FindCoordinatorResponse) -> Option<i32> {
    let found = &it.coordinators[0];
    (found.error_code == 0).then_some(found.node_id)
}

/// Returns the records of a fetched partition.
pub(super) fn bytes_of(part: &PartitionData) -> Bytes {
    match &part.records {
        Some(RecordData::Bytes(bytes)) => bytes.clone(),
        _ => Bytes::new(),
    }
}

/// Tells whether a producer has lost its transaction, because it is fenced or was too slow.
pub(super) fn ends_transaction(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ProducerFenced
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::InvalidProducerIdMapping
            | ErrorCode::InvalidTxnState
            | ErrorCode::TransactionAbortable
    )
}

/// Judges the answer to a member that leaves.
pub(super) fn on_left(it: &LeaveGroupResponse) -> Result<(), Failure> {
    let of_member = it.members.first().map_or(0, |member| member.error_code);
    expect_one_of(it.error_code, &CLASSIC_CODES, "LeaveGroup")?;
    expect_one_of(of_member, &CLASSIC_CODES, "LeaveGroup, of its member,")
}
