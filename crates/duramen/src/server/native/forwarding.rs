//! Calls that another node has to carry out: they go there once, over its native port.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duramen_broker::native::{Answer, Op, Place, Problem};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use super::calls::{Call, Calls, Origin};
use super::problems::{Fault, NO_LEADER};
use crate::proto::leases_client::LeasesClient;
use crate::proto::logs_client::LogsClient;
use crate::proto::queues_client::QueuesClient;

/// Header of a call that another node has passed on. Such a call is passed on no further.
pub(crate) const HOP: &str = "duramen-hop";

/// Longest time that a connection to another node may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Largest message of another node, in bytes: a page of a read, and what frames it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 33 << 20;

/// Connections to the other nodes' native ports, by address. Each is made when it is needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwarding {
    channels: Arc<Mutex<HashMap<String, Channel>>>,
}

impl Forwarding {
    /// Returns a client for logs of the node at a place.
    pub(crate) fn logs(&self, place: &Place) -> Result<LogsClient<Channel>, Fault> {
        Ok(LogsClient::new(self.channel(place)?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// Returns a client for queues of the node at a place.
    pub(crate) fn queues(&self, place: &Place) -> Result<QueuesClient<Channel>, Fault> {
        Ok(QueuesClient::new(self.channel(place)?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// Returns a client for leases of the node at a place.
    pub(crate) fn leases(&self, place: &Place) -> Result<LeasesClient<Channel>, Fault> {
        Ok(LeasesClient::new(self.channel(place)?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn channel(&self, place: &Place) -> Result<Channel, Fault> {
        let host =
            if place.host.contains(':') { format!("[{}]", place.host) } else { place.host.clone() };
        let address = format!("http://{host}:{}", place.port);
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = if let Some(channel) = channels.get(&address) {
            channel.clone()
        } else {
            let endpoint = Endpoint::from_shared(address.clone());
            let endpoint = endpoint.map_err(|error| {
                Fault::new(NO_LEADER, format!("the leader's address {address}: {error}"))
            })?;
            let channel = endpoint.connect_timeout(CONNECT_MAX).connect_lazy();
            channels.insert(address, channel.clone());
            channel
        };
        Ok(channel)
    }
}

/// Marks a request as passed on.
pub(crate) fn passed_on<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(HOP, "1".parse().expect("it is ASCII"));
    request
}

/// Answer of another node.
pub(crate) type Answered<T> = Result<Response<T>, Status>;

/// Carries an operation out here, or has the node carry it out that leads.
pub(crate) async fn carry<A>(
    calls: &Calls,
    origin: &Origin,
    op: Result<Op, Problem>,
    pass: impl AsyncFnOnce(Place) -> Answered<A>,
    finish: impl AsyncFnOnce(Call, Answer) -> Result<A, Fault>,
) -> Result<A, Fault> {
    let op = op?;
    let mut call = calls.begin(&origin.caller);
    match call.operate(op).await {
        Ok(answer) => finish(call, answer).await,
        Err(Problem::Elsewhere(_, Some(place))) if !origin.is_passed_on => {
            // A box: else each call that waits here has room for one that is passed on, too.
            let answer = Box::pin(pass(place)).await;
            answer.map(Response::into_inner).map_err(|it| Fault::of_status(&it))
        }
        Err(problem) => Err(problem.into()),
    }
}
