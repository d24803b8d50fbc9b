//! Calls that another node has to carry out: they go there once, over its port for nodes, in the name of their client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duramen_broker::native::{Answer, Op, Place, Problem};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tower::service_fn;

use super::calls::{Call, Calls, Origin};
use super::problems::Fault;
use crate::proto::leases_client::LeasesClient;
use crate::proto::logs_client::LogsClient;
use crate::proto::queues_client::QueuesClient;
use crate::server::peers::Links;

/// Longest time that a connection to another node may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Largest message of another node, in bytes: a page of a read, and what frames it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 33 << 20;

/// Connections to the other nodes, by their ids. Each is made when it is needed, where the node is then.
#[derive(Clone, Debug)]
pub(crate) struct Forwarding {
    links: Links,
    channels: Arc<Mutex<HashMap<i32, Channel>>>,
}

impl Forwarding {
    pub(crate) fn new(links: Links) -> Self {
        Self { links, channels: Arc::default() }
    }

    /// Tells whether a node is another one, to which there is a way.
    pub(crate) fn leads_to(&self, Place(node): Place) -> bool {
        self.links.address_of(node).is_some()
    }

    /// Returns a client for logs of a node.
    pub(crate) fn logs(&self, to: Place) -> LogsClient<Channel> {
        LogsClient::new(self.channel(to))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns a client for queues of a node.
    pub(crate) fn queues(&self, to: Place) -> QueuesClient<Channel> {
        QueuesClient::new(self.channel(to))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Returns a client for leases of a node.
    pub(crate) fn leases(&self, to: Place) -> LeasesClient<Channel> {
        LeasesClient::new(self.channel(to))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn channel(&self, Place(node): Place) -> Channel {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let dial = || {
            let links = self.links.clone();
            let connector = service_fn(move |_| {
                let links = links.clone();
                async move {
                    let opened = links.open_calls(node).await;
                    opened.map(TokioIo::new).map_err(|error| {
                        tracing::debug!(node, "cannot pass on calls to another node: {error:#}");
                        std::io::Error::other(format!("{error:#}"))
                    })
                }
            });
            // The name is never looked up.
            let endpoint = Endpoint::from_static("http://node").connect_timeout(CONNECT_MAX);
            endpoint.connect_with_connector_lazy(connector)
        };
        channels.entry(node).or_insert_with(dial).clone()
    }
}

/// Answer of another node.
pub(crate) type Answered<T> = Result<Response<T>, Status>;

/// Carries an operation out here, or has the node carry it out that leads.
///
/// The operation is in a box before the future begins, which would keep it otherwise, and so would each around it.
pub(crate) fn carry<A>(
    calls: &Calls,
    origin: &Origin,
    op: Result<Op, Problem>,
    pass: impl AsyncFnOnce(Place) -> Answered<A>,
    finish: impl AsyncFnOnce(Call, Answer) -> Result<A, Fault>,
) -> impl Future<Output = Result<A, Fault>> {
    carry_boxed(calls, origin, op.map(Box::new), pass, finish)
}

async fn carry_boxed<A>(
    calls: &Calls,
    origin: &Origin,
    op: Result<Box<Op>, Problem>,
    pass: impl AsyncFnOnce(Place) -> Answered<A>,
    finish: impl AsyncFnOnce(Call, Answer) -> Result<A, Fault>,
) -> Result<A, Fault> {
    let op = op?;
    let mut call = calls.begin(&origin.caller);
    match call.operate(op).await {
        Ok(answer) => finish(call, answer).await,
        Err(Problem::Elsewhere(_, Some(place))) if !origin.is_passed_on => {
            // A box: else each call that waits here has room for one that is passed on, too.
            let answer = call.elsewhere(Box::pin(pass(place))).await?;
            answer.map(Response::into_inner).map_err(|it| Fault::of_status(&it))
        }
        Err(problem) => Err(problem.into()),
    }
}
