//! The operations on logs, in the messages of the protocol: here, or once at the node that leads the log.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duramen_broker::native::{Answer, Op, Place, Problem};
use duramen_protocol::messages::{FindCoordinatorRequest, InitProducerIdRequest};
use duramen_protocol::{ErrorCode, Response as Kafka};
use futures_util::stream::{BoxStream, StreamExt, try_unfold};
use tokio::task::block_in_place;
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::calls::{Calls, Origin};
use super::forwarding::{Answered, Forwarding, carry};
use super::identify::passed_on;
use super::messages::{
    append_of, appended, content, fence_of, tail, tail_of, truncate_of, unhurried,
};
use super::problems::{Fault, NOT_AUTHORIZED};
use super::reading::Reading;
use super::selecting::Selection;
use crate::proto::logs_client::LogsClient;
use crate::proto::{
    AppendRequest, AppendResponse, FenceRequest, OpenSessionRequest, ReadRequest, ReadResponse,
    Session, Tail, TailRequest, TruncateRequest,
};

/// Length of the longest name of a session, in bytes.
const SESSION_NAME_BYTES_MAX: usize = 255;
/// Longest wait for the node that keeps names, and pause between two questions.
const SESSION_WAIT_MAX: Duration = Duration::from_secs(5);
const SESSION_PAUSE: Duration = Duration::from_millis(50);
/// Timeout of transactions, in milliseconds. A session has none, but the coordinator wants to know.
const SESSION_TRANSACTION_MS: i32 = 60_000;
/// Number of `FindCoordinator` for transactional ids (KIP-98).
const TRANSACTION_COORDINATOR: i8 = 1;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    pub calls: Calls,
    pub forwarding: Forwarding,
}

impl Logs {
    /// Carries an operation out here, or passes its message on to the node that leads.
    fn carry<M, A>(
        &self,
        origin: &Origin,
        op: Result<Op, Problem>,
        message: M,
        pass: impl AsyncFnOnce(LogsClient<Channel>, Request<M>) -> Answered<A>,
        write: impl FnOnce(Answer) -> A,
    ) -> impl Future<Output = Result<A, Fault>> {
        let pass = async move |to| pass(self.forwarding.logs(to), passed_on(origin, message)).await;
        carry(&self.calls, origin, op, pass, async |_, answer| Ok(write(answer)))
    }

    pub(crate) async fn append(
        &self,
        origin: &Origin,
        request: AppendRequest,
    ) -> Result<AppendResponse, Fault> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        // A finished batch may be small and hold very much, compressed, and its check would hold up other clients.
        let op = if request.batch.is_empty() {
            unhurried(content(request.records.iter()), || append_of(&request, now_ms))
        } else {
            block_in_place(|| append_of(&request, now_ms))
        };
        let pass = async |mut node: LogsClient<Channel>, it| node.append(it).await;
        self.carry(origin, op, request, pass, appended).await
    }

    pub(crate) async fn tail(&self, origin: &Origin, request: TailRequest) -> Result<Tail, Fault> {
        let op = tail_of(&request);
        let pass = async |mut node: LogsClient<Channel>, it| node.tail(it).await;
        self.carry(origin, op, request, pass, tail).await.map_err(Fault::of_a_read)
    }

    pub(crate) async fn truncate(
        &self,
        origin: &Origin,
        request: TruncateRequest,
    ) -> Result<Tail, Fault> {
        let op = truncate_of(&request);
        let pass = async |mut node: LogsClient<Channel>, it| node.truncate(it).await;
        self.carry(origin, op, request, pass, tail).await
    }

    pub(crate) async fn fence(
        &self,
        origin: &Origin,
        request: FenceRequest,
    ) -> Result<Tail, Fault> {
        let op = fence_of(&request);
        let pass = async |mut node: LogsClient<Channel>, it| node.fence(it).await;
        self.carry(origin, op, request, pass, tail).await
    }

    /// Begins to read a log. The stream makes its next page when the one before was taken.
    pub(crate) async fn read(
        &self,
        origin: &Origin,
        request: ReadRequest,
    ) -> Result<BoxStream<'static, Result<ReadResponse, Fault>>, Fault> {
        let selection = Selection::of(&request)?;
        if request.raw && selection.is_some() {
            let reason = "whole batches cannot be filtered".to_owned();
            return Err(Fault::bad_request(&[("raw", reason)]));
        }
        let call = self.calls.begin(&origin.caller);
        match Reading::begin(call, request.clone(), selection).await {
            Ok(reading) => {
                let pages = try_unfold(reading, async |mut reading| {
                    let page = reading.page().await.map_err(Fault::of_a_read)?;
                    Ok(page.map(|page| (page, reading)))
                });
                Ok(pages.boxed())
            }
            Err(Problem::Elsewhere(_, Some(place))) if !origin.is_passed_on => {
                let mut call = self.calls.begin(&origin.caller);
                let fault_of = |it: Status| Fault::of_status(&it).of_a_read();
                let mut node = self.forwarding.logs(place);
                let answer = call.elsewhere(node.read(passed_on(origin, request))).await?;
                let pages = answer.map_err(fault_of)?.into_inner();
                let pages = try_unfold((call, pages), async |(mut call, mut pages)| {
                    let page = call.elsewhere(pages.message()).await.map_err(Fault::of_a_read)?;
                    let page = page.map_err(|it| Fault::of_status(&it).of_a_read())?;
                    Ok(page.map(|page| (page, (call, pages))))
                });
                Ok(pages.boxed())
            }
            Err(problem) => Err(Fault::from(problem).of_a_read()),
        }
    }

    pub(crate) async fn open_session(
        &self,
        origin: &Origin,
        request: OpenSessionRequest,
    ) -> Result<Session, Fault> {
        if request.name.len() > SESSION_NAME_BYTES_MAX {
            let reason = format!("it has at most {SESSION_NAME_BYTES_MAX} bytes");
            return Err(Fault::bad_request(&[("name", reason)]));
        }
        let until = Instant::now() + SESSION_WAIT_MAX;
        loop {
            match self.init_producer(origin, &request.name).await? {
                Ok(session) => return Ok(session),
                Err(ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable)
                    if !origin.is_passed_on =>
                {
                    let place = self.coordinator(origin, &request.name).await?;
                    if let Some(place) = place.filter(|it| self.forwarding.leads_to(*it)) {
                        let mut node = self.forwarding.logs(place);
                        let answer = node.open_session(passed_on(origin, request)).await;
                        return answer
                            .map(Response::into_inner)
                            .map_err(|it| Fault::of_status(&it));
                    }
                }
                // The topic that keeps the names is new, or the transaction of an earlier holder ends.
                Err(
                    ErrorCode::CoordinatorNotAvailable
                    | ErrorCode::CoordinatorLoadInProgress
                    | ErrorCode::ConcurrentTransactions,
                ) => {}
                Err(
                    ErrorCode::ClusterAuthorizationFailed
                    | ErrorCode::TransactionalIdAuthorizationFailed,
                ) => return Err(Fault::new(NOT_AUTHORIZED, "the client lacks the right to write")),
                Err(_) => return Err(Problem::NoLeader.into()),
            }
            if Instant::now() > until {
                return Err(Problem::NoLeader.into());
            }
            sleep(SESSION_PAUSE).await;
        }
    }

    /// Has this node give out a producer id, or the next epoch of a name's.
    async fn init_producer(
        &self,
        origin: &Origin,
        name: &str,
    ) -> Result<Result<Session, ErrorCode>, Fault> {
        let request = InitProducerIdRequest {
            transactional_id: (!name.is_empty()).then(|| name.to_owned()),
            transaction_timeout_ms: SESSION_TRANSACTION_MS,
            producer_id: -1,
            producer_epoch: -1,
            ..InitProducerIdRequest::default()
        };
        let Kafka::InitProducerId(response) =
            self.calls.begin(&origin.caller).request(request, 4).await?
        else {
            unreachable!("a response is of its request's API")
        };
        let (id, epoch) = (response.producer_id, response.producer_epoch.into());
        Ok(match ErrorCode::from_code(response.error_code) {
            Some(ErrorCode::None) => Ok(Session { id, epoch, sequence: 0 }),
            code => Err(code.unwrap_or(ErrorCode::UnknownServerError)),
        })
    }

    /// Returns the place of the node that keeps a session's name, if it is known.
    async fn coordinator(&self, origin: &Origin, name: &str) -> Result<Option<Place>, Fault> {
        let key_type = TRANSACTION_COORDINATOR;
        let request =
            FindCoordinatorRequest { key: name.to_owned(), key_type, ..Default::default() };
        let Kafka::FindCoordinator(response) =
            self.calls.begin(&origin.caller).request(request, 3).await?
        else {
            unreachable!("a response is of its request's API")
        };
        Ok((response.error_code == 0).then_some(Place(response.node_id)))
    }
}
