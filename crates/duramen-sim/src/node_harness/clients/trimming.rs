//! A client that deletes the records before an offset.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::DeleteRecordsResponse;

use super::super::oracle::Place;
use super::answers::expect_one_of;
use super::requests::Asking;
use super::{Asked, Clients, requests};
use crate::failure::Failure;

const TRIM_CODES: [ErrorCode; 5] = [
    ErrorCode::None,
    ErrorCode::UnknownTopicOrPartition,
    ErrorCode::NotLeaderOrFollower,
    ErrorCode::RequestTimedOut,
    ErrorCode::OffsetOutOfRange,
];

impl Clients {
    /// Asks for a random start, up to the end that was seen.
    pub(super) fn trim(&mut self, place: Place) -> Asking<Asked> {
        let life = self.life(&place);
        let known = self.oracle.known(&place);
        let end = known.end_seen;
        let span = u64::try_from(end - known.trim_max.min(end)).expect("it is positive");
        let offset = known.trim_max.min(end) + i64::try_from(self.work.below(span + 1)).expect("");
        self.oracle.on_trim_sent(&place, offset);
        let request = requests::trim(&place, offset);
        (Asked::Trim { place, life, offset }, request, 2)
    }

    /// Judges the answer.
    pub(super) fn on_trimmed(
        &mut self,
        place: &Place,
        life: u32,
        offset: i64,
        answer: &DeleteRecordsResponse,
    ) -> Result<(), Failure> {
        let part = &answer.topics[0].partitions[0];
        // Where somebody changes settings, a topic may be compacted and nothing else.
        let is_refused = part.error_code == ErrorCode::PolicyViolation.code();
        if !is_refused || self.operator.is_none() || !self.oracle.is_keyed(&place.0) {
            expect_one_of(part.error_code, &TRIM_CODES, "DeleteRecords")?;
        }
        self.oracle.on_trim_answered(place, offset);
        if part.error_code == 0 && self.oracle.is_live(&place.0, life) {
            self.oracle.on_trimmed(place, offset, part.low_watermark)?;
        }
        Ok(())
    }
}
