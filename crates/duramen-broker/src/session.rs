//! # Room card: session
//!
//! Purpose:    one connection's protocol state: frames in, checked requests out, replies in order.
//! Owns:       decoding, the checks that do not need the node, the order of replies, bytes in flight; both requests
//!             with batches (`session/appending.rs`).
//! Interface:  [`Session::on_frame`], [`Session::on_reply`], [`Session::wants_more`], [`Session::follow`].
//! Invariants: replies leave in the order of their requests, and an `acks=0` produce has none. The node gets only whole
//!             requests with right checksums and well-formed records.
//! Never:      sockets, timers, the node's state.
//! Tests:      `session/tests.rs`; `node/tests`; `fuzz/`.
//! Start at:   [`Session::on_frame`].

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::compression::{Codec, CompressionError};
use duramen_protocol::records::{self, RecordError, RecordSummary};
use duramen_protocol::wire::{Few, Uuid};
use duramen_protocol::{
    ApiKey, BatchHeader, DecodeError, EncodedFrame, ErrorCode, Request, RequestHeader, Response,
    decode_request_counted, encode_response,
};
use duramen_storage::op::Stretch;
use smol_str::SmolStr;

use crate::access::Api;
pub use crate::access::RequestContext;
use crate::api_versions;
use crate::checked_batch::{BatchIds, CheckedBatch};
use crate::guard::Guard;
use crate::limits::{
    DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_QUICK, DECOMPRESSED_RATIO_MAX,
    DECOMPRESSED_RATIO_QUICK, ELEMENT_BYTES, RECOMPRESSED_BYTES_MAX, SESSION_BYTES_MAX,
    SESSION_REQUESTS_MAX,
};
use crate::native::Op;
use crate::recompression::{Made, Targets};

mod appending;

use appending::{Appending, Asked};

/// One client connection, numbered by the listener and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request as the node wants it.
#[derive(Debug)]
pub enum Prepared {
    /// A Produce, its batches checked.
    Produce(PreparedProduce),
    /// An `AppendFast`, its batches checked.
    Fast(PreparedFast),
    /// Any other.
    Request(Request),
    /// An operation of the native API, which no session reads.
    Native(Box<Op>),
}

impl Prepared {
    /// Returns the API of the request.
    pub fn api(&self) -> Api {
        match self {
            Self::Produce(_) => Api::Kafka(ApiKey::Produce),
            Self::Fast(_) => Api::Kafka(ApiKey::AppendFast),
            Self::Request(request) => Api::Kafka(request.api_key()),
            Self::Native(op) => Api::Native(op.name()),
        }
    }

    /// Returns the size of all batches, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Produce(request) => request.bytes(),
            Self::Fast(request) => request.bytes(),
            Self::Request(_) => 0,
            Self::Native(op) => op.bytes(),
        }
    }
}

/// A Produce whose batches are checked.
#[derive(Debug)]
pub struct PreparedProduce {
    /// As in the request.
    pub acks: i16,
    /// As in the request.
    pub timeout_ms: i32,
    /// As in the request.
    pub transactional_id: Option<String>,
    /// True if a batch is marked as part of a transaction.
    pub is_transactional: bool,
    /// By topic, in the order of the request.
    pub topics: Few<PreparedTopic>,
}

impl PreparedProduce {
    /// Returns the size of all batches, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let partitions = self.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.filter_map(|it| it.batch.as_ref().ok()).map(|it| it.bytes.len() as u64).sum()
    }
}

/// One topic of a [`PreparedProduce`].
#[derive(Debug)]
pub struct PreparedTopic {
    /// Its name; empty from version 13 on.
    pub name: SmolStr,
    /// Its id, from version 13 on.
    pub id: Uuid,
    /// Its partitions, in the order of the request.
    pub partitions: Few<PreparedPartition>,
}

/// One partition of a [`PreparedTopic`].
#[derive(Debug)]
pub struct PreparedPartition {
    /// Its number.
    pub index: i32,
    /// The batch, or what is wrong with it.
    pub batch: Result<CheckedBatch, Rejection>,
}

/// An `AppendFast` whose batches are checked.
#[derive(Debug)]
pub struct PreparedFast {
    /// As in the request.
    pub wait: i8,
    /// As in the request.
    pub timeout_ms: i32,
    /// By topic, in the order of the request.
    pub topics: Few<PreparedFastTopic>,
}

impl PreparedFast {
    /// Returns the size of all batches, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let partitions = self.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(PreparedFastPartition::bytes).sum()
    }
}

/// One topic of a [`PreparedFast`].
#[derive(Debug)]
pub struct PreparedFastTopic {
    /// Its id.
    pub id: Uuid,
    /// Its partitions, in the order of the request.
    pub partitions: Few<PreparedFastPartition>,
}

/// One partition of a [`PreparedFastTopic`].
#[derive(Debug)]
pub struct PreparedFastPartition {
    /// Its number.
    pub index: i32,
    /// The stretch that the client knows, if it knows one.
    pub stretch: Option<Stretch>,
    /// Name of the batch that the client asks after, if it sends none.
    pub ids: BatchIds,
    /// The batch, or what is wrong with it.
    pub batch: Option<Result<CheckedBatch, Rejection>>,
}

impl PreparedFastPartition {
    /// Returns the size of the batch, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let batch = self.batch.as_ref().and_then(|batch| batch.as_ref().ok());
        batch.map_or(0, |batch| batch.bytes.len() as u64)
    }
}

/// Why a batch is refused before the node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// For the client.
    pub code: ErrorCode,
    /// For the person behind it.
    pub message: String,
}

impl From<RecordError> for Rejection {
    fn from(error: RecordError) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

/// Result of a frame.
#[derive(Debug)]
pub enum SessionStep {
    /// Give it to the node as [`crate::Event::Request`].
    Request {
        /// The request's number in this session.
        sequence: u64,
        /// Principal, client, listener and version of the request.
        context: RequestContext,
        /// The request itself.
        request: Box<Prepared>,
    },
    /// A request whose records take long to check: go on with [`Session::on_heavy`], where no other client waits.
    Heavy(Box<Heavy>),
    /// The session answered by itself; send these, if any are next in order.
    Reply(Few<Outgoing>),
    /// Close the connection, after a log line with this reason.
    Close(String),
}

/// A request with batches; one whose few bytes become very many when they are decompressed waits as this, and one with
/// a batch that is to be made anew.
#[derive(Debug)]
pub struct Heavy {
    expands: bool,
    header: RequestHeader,
    request: Appending,
    frame_bytes: usize,
    bytes: usize,
}

impl Heavy {
    /// Tells whether few bytes of the request become very many when they are decompressed.
    pub fn expands(&self) -> bool {
        self.expands
    }
}

/// A finished reply.
#[derive(Debug)]
pub struct Outgoing {
    /// The request's number.
    pub sequence: u64,
    /// The bytes, with holes where records come from files.
    pub frame: EncodedFrame,
}

#[derive(Debug)]
enum Slot {
    Waiting { api: ApiKey, correlation_id: i32, version: i16, bytes: usize },
    Done(EncodedFrame),
    Nothing,
}

/// One connection's state.
#[derive(Debug)]
pub struct Session {
    connection: ConnectionId,
    principal: Arc<str>,
    listener: Arc<str>,
    client_host: Arc<str>,
    /// Requests whose replies have not left, oldest first; the first is number `first`.
    slots: VecDeque<Slot>,
    first: u64,
    bytes: usize,
    /// Requests without an answer that carry no batches: at most one is taken in.
    others: usize,
    scratch: Vec<u8>,
    /// Topics whose batches are stored in a codec of their own.
    targets: Arc<Targets>,
}

/// Above this, the buffer for decompression is given back after use.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;
/// First version of `Produce` whose clients leave it to partitions to add themselves to the transaction (KIP-890).
pub(crate) const FIRST_THAT_ADDS: i16 = 12;

impl Session {
    /// Makes the session of a new connection.
    pub fn new(
        connection: ConnectionId,
        principal: Arc<str>,
        listener: Arc<str>,
        client_host: Arc<str>,
    ) -> Self {
        Self {
            connection,
            principal,
            listener,
            client_host,
            slots: VecDeque::new(),
            first: 0,
            bytes: 0,
            others: 0,
            scratch: Vec::new(),
            targets: Arc::default(),
        }
    }

    /// Takes the table of [`crate::Action::Targets`] for the frames that follow.
    pub fn follow(&mut self, targets: Arc<Targets>) {
        self.targets = targets;
    }

    /// Takes a client for a user from now on.
    pub fn be(&mut self, user: &str) {
        self.principal = format!("User:{user}").into();
    }

    /// Returns the connection.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Tells whether another frame may be read: a client that sends faster than the node answers waits. While other
    /// requests wait, the session takes only appends, because their answers are small. A few bytes can ask for
    /// megabytes, so a thousand such requests of one client could exceed the memory.
    pub fn wants_more(&self) -> bool {
        self.others == 0
            && self.slots.len() < SESSION_REQUESTS_MAX
            && self.bytes < SESSION_BYTES_MAX
    }

    /// Tells whether a request waits for its answer.
    pub fn is_waiting(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Estimates the memory of the waiting requests, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes one frame, without its length.
    pub fn on_frame(&mut self, frame: Bytes) -> SessionStep {
        let bytes = frame.len();
        match decode_request_counted(frame) {
            Ok((header, Request::Produce(request), elements)) => {
                self.on_appending(header, Appending::Produce(request), (bytes, elements))
            }
            Ok((header, Request::AppendFast(request), elements)) => {
                self.on_appending(header, Appending::Fast(request), (bytes, elements))
            }
            Ok((header, request, elements)) => {
                let bytes = bytes + elements * ELEMENT_BYTES;
                let sequence =
                    self.take_slot(request.api_key(), &header, header.api_version, bytes);
                self.ask(sequence, header, Prepared::Request(request))
            }
            Err(DecodeError::UnsupportedVersion { header })
                if header.api() == Some(ApiKey::ApiVersions) =>
            {
                // The client is newer than we are. It learns what we speak, in the version that
                // everyone can read, and tries again.
                let sequence = self.take_slot(ApiKey::ApiVersions, &header, 0, bytes);
                let response = api_versions::unsupported_version();
                match self.on_reply(sequence, Some(Response::ApiVersions(response))) {
                    Ok(outgoing) => SessionStep::Reply(outgoing),
                    Err(reason) => SessionStep::Close(reason),
                }
            }
            Err(error) => SessionStep::Close(error.to_string()),
        }
    }

    fn on_appending(
        &mut self,
        header: RequestHeader,
        mut request: Appending,
        (frame_bytes, elements): (usize, usize),
    ) -> SessionStep {
        request.drop_repeated();
        let bytes = frame_bytes + elements * ELEMENT_BYTES;
        let appending = Heavy { expands: false, header, request, frame_bytes, bytes };
        let is_slow = !self.targets.is_empty()
            && appending.request.batches(&self.targets).any(|it| it.is_to_be_made_anew());
        if is_slow {
            return SessionStep::Heavy(Box::new(appending));
        }
        self.check_quickly(appending)
    }

    /// Checks a request whose records do not expand to much.
    fn check_quickly(&mut self, mut appending: Heavy) -> SessionStep {
        let ratio = appending.frame_bytes.saturating_mul(DECOMPRESSED_RATIO_QUICK);
        let checked = self.check_batches(&appending, ratio.max(DECOMPRESSED_BYTES_QUICK));
        if checked.is_too_large {
            appending.expands = true;
            return SessionStep::Heavy(Box::new(appending));
        }
        self.on_checked(appending, checked)
    }

    /// Goes on with [`SessionStep::Heavy`]; no other frame may have been given in between. One that does not expand to
    /// much, as far as the session knows, may turn out to: then the same comes again.
    pub fn on_heavy(&mut self, appending: Heavy) -> SessionStep {
        if !appending.expands {
            return self.check_quickly(appending);
        }
        let ratio = appending.frame_bytes.saturating_mul(DECOMPRESSED_RATIO_MAX);
        let checked = self.check_batches(&appending, ratio.max(DECOMPRESSED_BYTES_MAX));
        self.on_checked(appending, checked)
    }

    fn on_checked(&mut self, appending: Heavy, checked: Checked) -> SessionStep {
        let Heavy { header, request, bytes, .. } = appending;
        let bytes = bytes + checked.anew_bytes;
        let sequence = self.take_slot(request.api(), &header, header.api_version, bytes);
        let prepared = request.prepare(header.api_version, checked);
        self.ask(sequence, header, prepared)
    }

    fn ask(&self, sequence: u64, header: RequestHeader, request: Prepared) -> SessionStep {
        let context = RequestContext {
            api: request.api(),
            principal: Arc::clone(&self.principal),
            client_id: header.client_id,
            listener: Arc::clone(&self.listener),
            client_host: Arc::clone(&self.client_host),
            version: header.api_version,
            spent_us: 0,
            is_ruled: false,
        };
        SessionStep::Request { sequence, context, request: Box::new(request) }
    }

    fn take_slot(
        &mut self,
        api: ApiKey,
        header: &RequestHeader,
        version: i16,
        bytes: usize,
    ) -> u64 {
        let correlation_id = header.correlation_id;
        self.slots.push_back(Slot::Waiting { api, correlation_id, version, bytes });
        self.bytes += bytes;
        self.others += usize::from(!appending::is_pipelined(api));
        self.first + self.slots.len() as u64 - 1
    }

    /// Looks at every batch; `bytes_max` bounds what their records take together, decompressed.
    fn check_batches(&mut self, appending: &Heavy, bytes_max: usize) -> Checked {
        let Heavy { header, request, .. } = appending;
        let version = request.batches_version(header.api_version);
        let mut checked = Checked::default();
        let mut left = bytes_max;
        let targets = Arc::clone(&self.targets);
        for asked in request.batches(&targets) {
            let partition = asked.partition;
            let limits = records::Limits {
                // The topic's own limits are checked by the node, which knows them.
                batch_bytes_max: usize::MAX,
                decompressed_bytes_max: left.min(DECOMPRESSED_BYTES_MAX),
                keys_required: false,
                partition,
            };
            let batch = self.check_batch(&asked, version, &limits, &mut checked);
            left = match &batch {
                Ok((expanded_bytes, _)) => left - expanded_bytes,
                // Decompression in vain was work, too.
                Err(error) if is_too_large(error) => left.saturating_sub(DECOMPRESSED_BYTES_MAX),
                Err(_) => left,
            };
            checked.batches.push(batch.map_err(Rejection::from).and_then(|(_, found)| found));
        }
        if self.scratch.capacity() > SCRATCH_BYTES_KEPT {
            self.scratch = Vec::new();
        }
        checked
    }

    /// Checks one batch, and makes it anew if its topic has another codec. Returns the bytes of its decompressed
    /// records, if it came compressed.
    fn check_batch(
        &mut self,
        asked: &Asked<'_>,
        version: i16,
        limits: &records::Limits,
        checked: &mut Checked,
    ) -> Result<(usize, Result<Finding, Rejection>), RecordError> {
        let view = records::sole_batch(asked.records, version)?;
        let header = *view.header();
        // The whole request is refused for it, whatever else is wrong with the batch.
        checked.is_transactional |= header.attributes.is_transactional();
        let summary = records::validate_with(&view, limits, &mut self.scratch);
        checked.is_too_large |= summary.as_ref().is_err_and(is_too_large);
        let summary = summary?;
        let is_plain = header.attributes.codec() == Ok(Codec::None);
        let expanded_bytes = if is_plain { 0 } else { summary.record_bytes };
        let guard = match Guard::of_headers(&view, &summary.keys) {
            Ok(guard) => guard,
            Err(message) => {
                let rejection = Rejection { code: ErrorCode::InvalidRecord, message };
                return Ok((expanded_bytes, Err(rejection)));
            }
        };
        let mut finding = Finding { header, summary, guard, anew: None, greatest_bytes: 0 };
        let target = asked.target.filter(|target| target.is_due(&header));
        // A request that goes to where it may take longer is checked there from its beginning.
        if let Some(target) = target.filter(|_| !checked.is_too_large) {
            let plain = if is_plain { view.payload() } else { &self.scratch[..] };
            let put = target.make(&view, plain).and_then(|made| finding.put(made, checked));
            if let Err(error) = put {
                return Ok((expanded_bytes, Err(error.into())));
            }
        }
        Ok((expanded_bytes, Ok(finding)))
    }

    /// Takes the node's answer to request `sequence`, or `None` if there is nothing to send. Returns the replies that
    /// may leave now, in order; an error closes the connection.
    pub fn on_reply(
        &mut self,
        sequence: u64,
        response: Option<Response>,
    ) -> Result<Few<Outgoing>, String> {
        let at = sequence.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let slot = at.and_then(|at| self.slots.get_mut(at));
        let Some(slot) = slot else { return Err(format!("no request {sequence} is waiting")) };
        let Slot::Waiting { api, correlation_id, version, bytes } = *slot else {
            return Err(format!("request {sequence} was answered already"));
        };
        *slot = match response {
            None => Slot::Nothing,
            Some(response) => {
                assert_eq!(response.api_key(), api, "a response is of its request's API");
                let frame = encode_response(correlation_id, &response, version);
                Slot::Done(frame.map_err(|error| format!("{api} version {version}: {error}"))?)
            }
        };
        self.bytes -= bytes;
        self.others -= usize::from(!appending::is_pipelined(api));
        let mut outgoing = Few::new();
        while let Some(Slot::Done(_) | Slot::Nothing) = self.slots.front() {
            if let Some(Slot::Done(frame)) = self.slots.pop_front() {
                outgoing.push(Outgoing { sequence: self.first, frame });
            }
            self.first += 1;
        }
        assert!(
            !self.slots.is_empty() || (self.bytes, self.others) == (0, 0),
            "a session without requests counts none"
        );
        Ok(outgoing)
    }
}

/// Result of the checks of a batch that is all right.
struct Finding {
    /// That of the bytes that are stored.
    header: BatchHeader,
    summary: RecordSummary,
    guard: Guard,
    /// The batch in its topic's codec, if it came in another.
    anew: Option<Bytes>,
    /// See [`CheckedBatch::greatest_bytes`].
    greatest_bytes: usize,
}

impl Finding {
    /// Takes the batch in its topic's codec. The node refuses one that is too large for the topic.
    fn put(&mut self, made: Made, checked: &mut Checked) -> Result<(), RecordError> {
        match made {
            Made::TooLarge(bytes) => self.greatest_bytes = bytes,
            Made::Anew(anew) => {
                let (before, limit) = (checked.anew_bytes, RECOMPRESSED_BYTES_MAX);
                checked.anew_bytes += anew.len();
                if before > 0 && checked.anew_bytes > limit {
                    checked.anew_bytes = before;
                    return Err(RecordError::TooLarge { bytes: before + anew.len(), limit });
                }
                self.greatest_bytes = anew.len().max(self.header.batch_bytes());
                self.header = BatchHeader::parse(&anew)?;
                self.anew = Some(anew);
            }
        }
        Ok(())
    }
}

/// Results of the checks of a request's batches, in their order.
#[derive(Default)]
struct Checked {
    batches: Few<Result<Finding, Rejection>>,
    is_transactional: bool,
    /// Records of some batch take more than they may, all together.
    is_too_large: bool,
    /// Bytes of all batches that were made anew.
    anew_bytes: usize,
}

fn is_too_large(error: &RecordError) -> bool {
    matches!(error, RecordError::Compression(CompressionError::LimitExceeded { .. }))
}

#[cfg(test)]
mod tests;
