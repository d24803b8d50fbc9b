//! The listener of the native API: HTTP/1.1 and HTTP/2 on one port.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::middleware::AddExtension;
use axum::{Extension, Router, middleware};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tower_layer::Layer;

use super::calls::Calls;
use super::charging::{Account, charged};
use super::forwarding::Forwarding;
use super::identify::entered;
use super::leases::Leases;
use super::logs::Logs;
use super::observing::{Operations, observed};
use super::queues::Queues;
use super::topics::Topics;
use super::{grpc, http};
use crate::server::budget::Budget;
use crate::server::door::{Door, Visitor};
use crate::server::http::Sources;
use crate::server::peers::{CallsOfNode, Links};
use crate::server::reloading::Limits;
use crate::server::seats::Seats;
use crate::server::tls::Wire;

/// Longest time that a client may take for the headers of a request.
const HEADERS_MAX: Duration = Duration::from_secs(10);
/// Most headers of a request over HTTP/1.1, and their bytes over HTTP/2.
const HEADERS_COUNT_MAX: usize = 100;
const HEADERS_BYTES_MAX: u32 = 64 << 10;
/// Bytes that a client may send of one stream, and of one connection, before they are taken.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const STREAMS_MAX: u32 = 1_000;
const FRAME_BYTES: u32 = 64 << 10;
/// A client that has been silent for so long is asked whether it is there, and has the same time again to answer.
const SILENCE: Duration = Duration::from_secs(30);
/// Pause in accepting when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Parts of the native API's listener.
#[derive(Debug)]
pub(crate) struct Native {
    /// The bound socket.
    pub socket: TcpListener,
    /// All routes.
    pub router: Router,
    /// Means to tell who a client is.
    pub door: Arc<Door>,
    /// Connections on which other nodes pass on calls.
    pub passed_on: mpsc::Receiver<CallsOfNode>,
    /// Memory of all clients' requests and answers, those of Kafka's clients among them.
    pub budget: Arc<Budget>,
    /// Which connections there are, those of Kafka's clients among them.
    pub seats: Arc<Seats>,
    /// Limits of connections that begin now.
    pub limits: watch::Receiver<Limits>,
    /// Becomes true when the server stops.
    pub stop: watch::Receiver<bool>,
}

/// Returns all routes of the port.
pub(crate) fn router(
    calls: &Calls,
    links: Links,
    sources: Sources,
    heartbeat: Duration,
) -> anyhow::Result<Router> {
    let logs = Logs { calls: calls.clone(), forwarding: Forwarding::new(links) };
    let topics = Topics { calls: calls.clone() };
    let forwarding = logs.forwarding.clone();
    let queues = Queues { calls: calls.clone(), forwarding, topics: topics.clone(), heartbeat };
    let leases = Leases { logs: logs.clone(), queues: queues.clone() };
    let grpc = grpc::routes(logs.clone(), queues.clone(), leases.clone(), topics.clone())?;
    let (http, document) = http::routes(logs, queues, leases, topics)?;
    let operations = Arc::new(Operations::of(&document, Arc::clone(&sources.metrics))?);
    let metrics = crate::server::http::router(sources);
    let all = grpc.merge(http).merge(metrics);
    let all = all.fallback(http::unknown).method_not_allowed_fallback(http::wrong_method);
    let all = guarded(all).layer(middleware::from_fn(charged));
    Ok(all.layer(middleware::from_fn_with_state(operations, observed)))
}

/// Lets requests to these routes in only if their clients show who they are, where they have to.
pub(crate) fn guarded(routes: Router) -> Router {
    routes.layer(middleware::from_fn(entered))
}

/// All routes, with what they know of their connection.
type Service = TowerToHyperService<AddExtension<AddExtension<Router, Arc<Account>>, Arc<Visitor>>>;

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_MAX)
        .max_headers(HEADERS_COUNT_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE);
    builder
}

/// A client or another node that has come.
enum Came {
    Client(TcpStream, SocketAddr),
    Node(Box<CallsOfNode>),
}

impl Came {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Client(_, address) => *address,
            Self::Node(it) => it.address,
        }
    }

    /// Begins its connection. A node holds its place among the nodes for as long as that lasts.
    async fn enter(
        self,
        door: &Arc<Door>,
    ) -> io::Result<(Wire, Visitor, Option<Box<dyn Any + Send>>)> {
        match self {
            Self::Client(tcp, address) => {
                tcp.set_nodelay(true)?;
                let (wire, visitor) = door.enter(tcp, address).await?;
                Ok((wire, visitor, None))
            }
            Self::Node(it) => {
                let CallsOfNode { mut wire, address, held } = *it;
                wire.move_here()?;
                Ok((wire, Visitor::node(door, address), Some(held)))
            }
        }
    }
}

/// Serves requests until the server stops, and then lets the calls in flight end, for at most `grace`.
pub(crate) async fn listen(native: Native, grace: Duration) {
    let Native { socket, router, door, mut passed_on, budget, seats, limits, mut stop } = native;
    let mut tasks = JoinSet::new();
    while !*stop.borrow() {
        let came = tokio::select! {
            accepted = socket.accept() => accepted.map(|(tcp, address)| Came::Client(tcp, address)),
            Some(it) = passed_on.recv() => Ok(Came::Node(Box::new(it))),
            Some(_) = tasks.join_next() => continue,
            _ = stop.changed() => continue,
        };
        let came = match came {
            Ok(came) => came,
            Err(error) => {
                tracing::warn!(%error, port = door.name, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let peer = came.address();
        // Nodes have their own seats.
        let seat = match &came {
            Came::Client(..) => seats.take(peer.ip(), &limits.borrow().seats).map(Some),
            Came::Node(_) => Ok(None),
        };
        let seat = match seat {
            Ok(seat) => seat,
            Err(reason) => {
                tracing::warn!(%peer, %reason, port = door.name, "connection refused");
                continue;
            }
        };
        let account = Account::new(&budget);
        let (router, door, stop) = (router.clone(), Arc::clone(&door), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = serve(came, router, (door, Arc::clone(&account)), stop) => {}
                () = account.evicted() => {
                    tracing::warn!(%peer, "a native connection is closed: it stands still, and others need its memory");
                }
            }
            drop(seat);
        });
    }
    drop(socket);
    let finished = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        tracing::warn!(
            connections = tasks.len(),
            "native calls are cut off: the time to finish is over"
        );
        tasks.shutdown().await;
    }
}

async fn serve(
    came: Came,
    router: Router,
    (door, account): (Arc<Door>, Arc<Account>),
    mut stop: watch::Receiver<bool>,
) {
    let (peer, port) = (came.address(), door.name);
    let entered = came.enter(&door).await;
    let (wire, visitor, _held) = match entered {
        Ok(entered) => entered,
        Err(error) => {
            if door.desk.complaints.may_say() {
                tracing::info!(%peer, port, %error, "no connection");
            }
            return;
        }
    };
    // Around the routes as a whole: each connection would have a copy of every one of them.
    let service = Extension(Arc::new(visitor)).layer(Extension(account).layer(router));
    let service: Service = TowerToHyperService::new(service);
    let builder = builder();
    let connection = builder.serve_connection(TokioIo::new(wire), service);
    let mut connection = std::pin::pin!(connection);
    let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stopped => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, port, %error, "a connection ended");
    }
}
