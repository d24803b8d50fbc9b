//! Calls of the node: one operation or request, and its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duramen_broker::NATIVE;
use duramen_broker::access::{Api, RequestContext};
use duramen_broker::event::{ConnectionId, Event, Reply};
use duramen_broker::login::Known;
use duramen_broker::native::{Answer, LeasedPart, Name, Op, Position, Problem, Span};
use duramen_broker::read_plan::{self, QueueError};
use duramen_broker::recompression::{Target, Targets};
use duramen_broker::session::Prepared;
use duramen_protocol::messages::{FetchRequest, FetchResponse};
use duramen_protocol::records::{Record, Records};
use duramen_protocol::{Request, Response};
use duramen_storage::Reader;
use duramen_storage::reader::ReadError;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::problems::Fault;
use crate::server::checking::Checking;
use crate::server::disk::RealDisk;
use crate::server::metrics::Metrics;
use crate::server::plans::waiting;
use crate::server::threads::{Input, Routed, ToNode};

/// The first number of a call's connection. Clients of Kafka's protocol count from 1, and the node itself from 1 << 63.
const FIRST: u64 = 1 << 62;
/// Longest time by which an answer is late because its client exceeded a quota.
const REST_MAX: Duration = Duration::from_secs(1);
/// The same for a patient append: the window of a quota has passed by then.
const PATIENT_REST_MAX: Duration = Duration::from_secs(30);

/// The way to the node, for all clients of the native API.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    node: ToNode,
    reader: Reader<RealDisk>,
    /// Topics with a codec of their own, and where batches are put into it.
    codecs: (watch::Receiver<Arc<Targets>>, Arc<Checking>),
    numbers: Arc<AtomicU64>,
    /// Metrics of reads that wait for more, and of bytes that are read.
    metrics: Arc<Metrics>,
}

/// Client of a call.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Principal, such as `User:alice`.
    pub principal: Arc<str>,
    /// User and credential of a client that has shown a password: a call ends when they change.
    pub known: Option<Known>,
    /// Time at which the client's proof counts no more, if there is one.
    pub ends: Option<Instant>,
    /// Where the client is, as Kafka prints it: `/127.0.0.1`.
    pub host: Arc<str>,
    /// The client's name for itself.
    pub client_id: Option<String>,
}

/// Client of an operation, and whether another node has passed the call on.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub caller: Caller,
    pub is_passed_on: bool,
}

/// One connection to the node, for a stream or for one call. The node forgets what waits for it when it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Calls,
    caller: Caller,
    connection: ConnectionId,
    replies: UnboundedReceiver<Routed>,
    sequence: u64,
}

impl Calls {
    pub(crate) fn new(
        node: ToNode,
        reader: Reader<RealDisk>,
        codecs: (watch::Receiver<Arc<Targets>>, Arc<Checking>),
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { node, reader, codecs, numbers: Arc::new(AtomicU64::new(FIRST)), metrics }
    }

    /// Begins a call of this client.
    pub(crate) fn begin(&self, caller: &Caller) -> Call {
        let connection = ConnectionId(self.numbers.fetch_add(1, Ordering::Relaxed));
        let (to_call, replies) = unbounded_channel();
        self.node.push(Input::Connected(connection, to_call));
        if let Some(known) = caller.known.clone() {
            // The node hears of the client before its first request.
            self.node.push(Input::Event(Event::Known { connection, known }));
        }
        Call { calls: self.clone(), caller: caller.clone(), connection, replies, sequence: 0 }
    }
}

/// Reason for which a call ends before its answer.
const OVER: &str = "the time is over for which the client's token or password counts";

/// Comes at a time, if there is one.
async fn over(ends: Option<Instant>) {
    match ends {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A read that may wait, in the number of those.
struct Waiting(Gauge);

impl Waiting {
    fn of(waiting: &Gauge) -> Self {
        waiting.inc();
        Self(waiting.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Call {
    fn context(&self, version: i16, api: Api) -> RequestContext {
        RequestContext {
            principal: Arc::clone(&self.caller.principal),
            client_id: self.caller.client_id.as_deref().map(Into::into),
            listener: NATIVE.into(),
            client_host: Arc::clone(&self.caller.host),
            api,
            version,
            spent_us: 0,
            is_ruled: false,
        }
    }

    /// Counts bytes that the client read of a queue against its quota.
    pub(crate) fn consumed(&self, bytes: u64) {
        let context = self.context(0, Api::Native(Name::Retrieve));
        self.calls.node.push(Input::Event(Event::Consumed { context, bytes }));
    }

    /// Asks the node. The answer has no room for the question: the node has that by then.
    fn ask(
        &mut self,
        version: i16,
        request: Prepared,
    ) -> impl Future<Output = Result<Reply, Fault>> {
        let context = self.context(version, request.api());
        let (connection, sequence) = (self.connection, self.sequence);
        self.sequence += 1;
        let request = Box::new(request);
        let event = Event::Request { connection, sequence, context, request };
        self.calls.node.push(Input::Event(event));
        self.answer()
    }

    async fn answer(&mut self) -> Result<Reply, Fault> {
        let ends = self.caller.ends;
        tokio::select! {
            biased;
            reply = self.replies.recv() => match reply {
                Some(Routed::Reply(_, reply)) => Ok(reply),
                Some(Routed::Credential(_)) => unreachable!("a call asks for no user"),
                Some(Routed::Close(reason)) => Err(Fault::outcome_unknown(reason)),
                None => Err(Fault::outcome_unknown("the node stops")),
            },
            () = over(ends) => Err(Fault::outcome_unknown(OVER)),
        }
    }

    /// Waits for another node that carries the call out, for as long as the client is who it was.
    pub(crate) async fn elsewhere<T>(
        &mut self,
        answer: impl Future<Output = T>,
    ) -> Result<T, Fault> {
        let ends = self.caller.ends;
        tokio::select! {
            answer = answer => Ok(answer),
            reply = self.replies.recv() => match reply {
                Some(Routed::Close(reason)) => Err(Fault::outcome_unknown(reason)),
                Some(other) => unreachable!("{other:?} answers no question"),
                None => Err(Fault::outcome_unknown("the node stops")),
            },
            () = over(ends) => Err(Fault::outcome_unknown(OVER)),
        }
    }

    /// Returns the codec into which the batch of an append is to be put.
    fn codec_of(&self, op: &Op) -> Option<Target> {
        let Op::Append(append) = op else { return None };
        let target = self.calls.codecs.0.borrow().of_name(append.target.topic()).copied();
        target.filter(|it| it.is_due(&append.batch.header))
    }

    /// Puts the batch of an append into the codec of its topic.
    async fn in_codec(&self, op: Op, target: Target) -> Result<Box<Op>, Problem> {
        let Op::Append(mut append) = op else { return Ok(Box::new(op)) };
        let batch = self.calls.codecs.1.in_codec(append.batch, &target).await;
        append.batch = batch.map_err(|error| Problem::BadRequest("records", error))?;
        Ok(Box::new(Op::Append(append)))
    }

    /// Carries out an operation. A client that exceeded its quota gets the answer later.
    pub(crate) async fn operate(&mut self, mut op: Box<Op>) -> Result<Answer, Problem> {
        let may_wait = match &*op {
            Op::Retrieve(it) => it.wait_ms > 0,
            Op::Lease(it) => it.wait_ms > 0,
            _ => false,
        };
        let rest_max = match &*op {
            Op::Append(it) if it.is_patient => PATIENT_REST_MAX,
            _ => REST_MAX,
        };
        if let Some(target) = self.codec_of(&op) {
            // A box: else each call would have room for it.
            op = Box::pin(self.in_codec(*op, target)).await?;
        }
        let wait = may_wait.then(|| Waiting::of(&self.calls.metrics.native.reads_waiting));
        let answered = match self.ask(0, Prepared::Native(op)).await {
            Ok(Reply::Native(answered)) => answered,
            Ok(other) => unreachable!("{other:?} answers no operation"),
            Err(_) => return Err(Problem::OutcomeUnknown),
        };
        drop(wait);
        if answered.rest_ms > 0 {
            let rest = Duration::from_millis(answered.rest_ms.unsigned_abs().into());
            tokio::time::sleep(rest.min(rest_max)).await;
        }
        if !answered.is_lacking() {
            return answered.answer;
        }
        let reader = self.calls.reader.clone();
        waiting(move || read_plan::native(&reader, *answered)).await.answer
    }

    /// Reads queues by their index, on a thread that may wait for the disk. An index that lacks what was asked for is
    /// made anew meanwhile.
    pub(crate) async fn read_queues<T: Send + 'static, E: Into<Fault> + Send + 'static>(
        &self,
        span: Span,
        read: impl FnOnce(&Reader<RealDisk>, &Span) -> Result<T, QueueError<E>> + Send + 'static,
    ) -> Result<T, Fault> {
        let reader = self.calls.reader.clone();
        let replica = span.replica;
        let done = waiting(move || read(&reader, &span)).await;
        done.map_err(|error| match error {
            QueueError::Taker(fault) => fault.into(),
            QueueError::Index => {
                self.calls.node.push(Input::Event(Event::IndexLost(replica)));
                Problem::Busy("the index of the queues is made anew").into()
            }
            QueueError::Log(
                ReadError::UnknownReplica | ReadError::Removed | ReadError::OutOfRange,
            ) => Problem::NoLeader.into(),
            QueueError::Log(error) => {
                tracing::error!(replica = replica.0, %error, "a queue cannot be read");
                Problem::Damaged.into()
            }
            QueueError::Unreadable(offset) => {
                tracing::error!(replica = replica.0, offset, "a batch of a queue cannot be read");
                Problem::Damaged.into()
            }
            QueueError::Trimmed(first, pointer) => Problem::Trimmed(first, pointer).into(),
        })
    }

    /// Reads records that a worker has leases of, on a thread that may wait for the disk.
    pub(crate) async fn read_leased<T: Send + 'static>(
        &self,
        part: LeasedPart,
        make: impl FnMut(&Records, &Record<'_>, Position) -> T + Send + 'static,
    ) -> Result<Vec<Option<T>>, Fault> {
        let (reader, replica) = (self.calls.reader.clone(), part.replica);
        let done = waiting(move || read_plan::leased(&reader, &part, make)).await;
        done.map_err(|error| match error {
            QueueError::Log(
                ReadError::UnknownReplica | ReadError::Removed | ReadError::OutOfRange,
            ) => Problem::NoLeader.into(),
            error => {
                tracing::error!(replica = replica.0, ?error, "leased records cannot be read");
                Problem::Damaged.into()
            }
        })
    }

    /// Sends one of Kafka's requests whose answer the node makes by itself.
    pub(crate) async fn request(
        &mut self,
        request: impl Into<Request>,
        version: i16,
    ) -> Result<Response, Fault> {
        match self.ask(version, Prepared::Request(request.into())).await? {
            Reply::Response(response) => Ok(*response),
            other => unreachable!("{other:?} is no finished response"),
        }
    }

    /// Sends a Fetch, and reads its records into memory, on a thread that may wait for the disk.
    pub(crate) async fn fetch(
        &mut self,
        request: FetchRequest,
        version: i16,
    ) -> Result<FetchResponse, Fault> {
        let wait = (request.max_wait_ms > 0)
            .then(|| Waiting::of(&self.calls.metrics.native.reads_waiting));
        let reply = self.ask(version, Prepared::Request(request.into())).await?;
        drop(wait);
        match reply {
            Reply::Response(response) => match *response {
                Response::Fetch(response) => Ok(response),
                other => unreachable!("{other:?} answers no fetch"),
            },
            Reply::Fetch(plan) => {
                let (reader, metrics) =
                    (self.calls.reader.clone(), Arc::clone(&self.calls.metrics));
                let note = move |replica, len| metrics.tallies.note_sent(replica, len as u64);
                Ok(waiting(move || read_plan::fetch_bytes(&reader, *plan, note)).await)
            }
            other => unreachable!("{other:?} answers no fetch"),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.node.push(Input::Event(Event::Disconnected(self.connection)));
    }
}
