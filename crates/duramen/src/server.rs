//! # Room card: server
//!
//! Purpose:    join the node to the machine.
//! Owns:       the order in which things start and stop, the threads, the sockets.
//! Interface:  [`start`], [`Server`].
//! Invariants: one thread steps the node, one writes, a few sync, the rest serve sockets. Nothing is
//!             served before recovery has returned. A stop answers what is in flight or says so.
//! Never:      protocol decisions.
//! Tests:      `tests/server.rs` starts the real binary.
//! Start at:   [`start`].
//!
//! A produce walks: listener, connection, core loop, storage worker, core loop, connection.

use std::io::IsTerminal;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use duramen_broker::limits::{GROUP_QUIET_TICKS, Memory};
use duramen_broker::{Action, ClientListener, Event, Founder, Node, NodeOptions, read_plan};
use duramen_protocol::sasl::scram::{Credential, ITERATIONS, SALT_BYTES};
use duramen_storage::storage::{Facts, Recovered, Voter};
use duramen_storage::{Reader, Storage};
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle as JoinTask;
use tokio::time::timeout;

use crate::config::{Config, HostPort};

pub mod budget;
mod chance;
pub mod checking;
pub mod complaints;
pub mod connection;
pub mod core_loop;
mod descriptors;
pub mod disk;
mod door;
pub mod ending;
pub(crate) mod figures;
pub mod framing;
pub mod freezing;
pub mod health;
pub(crate) mod home;
pub mod http;
pub mod inbox;
pub mod indexing;
pub mod listener;
mod metric_names;
pub mod metrics;
mod native;
mod opening;
pub mod peers;
pub mod plans;
pub mod reloading;
pub mod restoring;
pub mod scrubbing;
pub mod seats;
pub mod sending;
pub mod settings;
pub mod storage_worker;
mod stream;
pub mod surviving;
pub mod threads;
pub mod tls;
pub mod tokens;

use budget::Budget;
use chance::random;
use checking::Checking;
use connection::{Asking, Shared};
use core_loop::{Clock, Reads};
use descriptors::share_descriptors;
use disk::RealDisk;
use door::{Desk, Door};
use health::Health;
use inbox::Inbox;
use indexing::Indexing;
use listener::Listener;
use metrics::Metrics;
pub use native::fuzzing;
use native::{Calls, Native};
use opening::{cure, free_bytes_min, open_storage};
use peers::{Links, Peers, Place, Security, Standing, WAITING_SAID_EVERY};
use reloading::{Limits, Load, Reloading};
use scrubbing::Scrubbing;
use seats::Seats;
use settings::{ListenerSettings, NodeMode, SaslSettings, ServerSettings};
use threads::{Common, Errand, Input, Ready, ToNode};
use tls::Certificates;
use tokens::Tokens;

/// Longest time a stop waits for other nodes to lead the partitions that this node led.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Longest time that connections may take to get their last answers when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Clients that may wait to be accepted.
const BACKLOG: u32 = 4096;

/// Bytes of all answers of the port of metrics on their way.
const HTTP_BYTES_MAX: u64 = 64 << 20;

/// Threads that serve sockets where the machine's cores decide; more than a few only contend for the node's thread.
const SOCKET_THREADS_MAX: usize = 8;

/// Threads that serve other nodes, the native API and clients with much to read, where the node's thread serves others.
const FAR_THREADS: usize = 2;

/// Most cores with which the node's thread serves clients by default. With more, other threads take that work off it.
const NEAR_CORES_MAX: usize = 2;

/// Tasks that the node's thread runs between two looks at its sockets.
const NEAR_EVENT_INTERVAL: u32 = 512;

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    /// Address of the first listener for clients.
    pub address: SocketAddr,
    /// Listeners for clients, with the addresses that clients are told to connect to.
    pub advertised: Vec<ClientListener>,
    /// Address of the native API, if the server serves it.
    pub native: Option<SocketAddr>,
    /// Address of metrics and health, if the server serves them.
    pub http: Option<SocketAddr>,
    /// Identity of the node.
    pub facts: Facts,
    /// True if this start formatted the data directory.
    pub formatted: bool,
    /// Partitions that recovery found.
    pub recovered: usize,
    runtime: Runtime,
    stop: watch::Sender<bool>,
    listeners: Vec<tokio::task::JoinHandle<()>>,
    native_listener: Option<tokio::task::JoinHandle<()>>,
    node: ToNode,
    orders: Arc<Inbox<Errand>>,
    threads: Vec<JoinHandle<()>>,
    health: Arc<Health>,
    drained: Arc<Notify>,
    reloading: Reloading,
    hangups: Signal,
    stops: [Signal; 2],
}

/// Parts from which the node's thread and the storage thread start.
struct Opened {
    storage: Storage<RealDisk>,
    links: Links,
    node: Node,
    actions: Vec<Action>,
    clock: Clock,
    facts: Facts,
    formatted: bool,
    recovered: usize,
}

/// Parts that get threads of their own.
struct Running {
    node: Node,
    actions: Vec<Action>,
    clock: Clock,
    storage: Storage<RealDisk>,
    links: Links,
}

impl Running {
    /// Starts the threads. The node gets one with its inputs.
    fn start(
        self,
        settings: &ServerSettings,
        at_node: (Runtime, UnboundedReceiver<Input>),
        runtime: &Handle,
        parts: &Common,
    ) -> anyhow::Result<Vec<JoinHandle<()>>> {
        let Self { node, actions, clock, storage, links } = self;
        let (reader, made) = (storage.reader(), Arc::default());
        let reads = Reads { runtime: runtime.clone(), reader: reader.clone() };
        let threads = vec![
            start_indexing(settings, &node, reader.clone(), parts)?,
            core_loop::start((node, actions, clock), reads, links, parts.clone(), at_node)?,
            storage_worker::start(storage, Arc::clone(&made), parts.clone())?,
        ];
        start_scrubbing(settings, reader, made, parts.clone())?;
        Ok(threads)
    }
}

/// Starts a server and returns once it serves.
pub fn start(config: &Config) -> anyhow::Result<Server> {
    start_with(config, native::HEARTBEAT)
}

/// Starts a server whose streams of the native API show that they are there after `heartbeat` without an event. Tests
/// cannot wait as long as clients can.
pub fn start_with(config: &Config, heartbeat: Duration) -> anyhow::Result<Server> {
    let (settings, broker) = ServerSettings::split(config)?;
    let (connections_max, files_max) = share_descriptors();
    let (threads, is_near) = socket_threads(settings.network_threads);
    let runtime = runtime(threads)?;
    let hangups = hangups(&runtime)?;
    let early = end_when_stopped(&runtime)?;
    let Sockets { clients: sockets, listening, advertised, native, http, for_nodes } =
        bind_all(config, &settings, &runtime)?;
    let ((parts, inputs), given) = (Common::new(), broker.given().clone());
    let storage = open_storage(config, &settings, &broker, files_max, for_nodes.is_some())?;
    if for_nodes.is_some() {
        parts.health.set_stranger(Some("this node starts".to_owned()));
    }
    let sources = sources(&parts, &settings);
    let limits = Limits::of(&settings, connections_max);
    let doors = Doors::open(&settings, &parts, runtime.handle())?;
    let http_address = serve_http(http, &doors, (sources.clone(), limits.clone()), &runtime)?;
    let security = Security::open(&settings.node_security).map_err(anyhow::Error::msg)?;
    let others_certificates = doors.certificates().chain(security.certificates()).collect();
    let others = for_nodes.map(|(socket, at)| (socket, at, security, (runtime.handle(), &parts)));
    let native_address = native.as_ref().map(TcpListener::local_addr).transpose()?;
    let addresses = (advertised.clone(), native_at(config, native_address));
    let opened = open(config, &settings, broker, addresses, storage, others)?;
    let Opened { storage, links, node, actions, clock, facts, formatted, recovered } = opened;
    let (reader, near) = (storage.reader(), near_runtime()?);
    let (clients, far) = homes(is_near, &near, runtime.handle(), &links);
    let running = Running { node, actions, clock, storage, links: links.clone() };
    let threads = running.start(&settings, (near, inputs), runtime.handle(), &parts)?;
    let ((stop, stopped), (limits, current)) = (watch::channel(false), watch::channel(limits));
    let shared = share(&settings, &current, (&parts, &doors.desk), reader, (stopped, far));
    let Common { node, orders, health, drained, .. } = parts;
    let seats = Arc::new(Seats::default());
    let seating = (Arc::clone(&seats), current.clone());
    let api = NativeApi { sources, heartbeat, links: links.clone(), door: doors.native };
    let native = serve_native((native, seating), &shared, api, &runtime)?;
    let runtimes = (&clients, runtime.handle());
    let (listeners, certificates) = serve_clients(
        (sockets, &settings, others_certificates),
        runtimes,
        (seats, current),
        &shared,
    )?;
    let (config, inbox) = (config.clone(), node.clone());
    let reloading = Reloading { config, given, limits, connections_max, node: inbox, certificates };
    let stops = stops(&runtime)?;
    early.abort();
    announce(&links, &runtime, (listening.clone(), advertised.clone(), facts.broker_id));
    Ok(Server {
        address: listening[0],
        advertised,
        native: native_address,
        http: http_address,
        facts,
        formatted,
        recovered,
        runtime,
        stop,
        listeners,
        native_listener: native,
        node,
        orders,
        threads,
        health,
        drained,
        reloading,
        hangups,
        stops,
    })
}

/// Returns the state that the view from outside shows.
fn sources(parts: &Common, settings: &ServerSettings) -> http::Sources {
    parts.metrics.set_kafka_names(settings.has_kafka_names);
    let (metrics, health) = (Arc::clone(&parts.metrics), Arc::clone(&parts.health));
    http::Sources { metrics, health, node: parts.node.clone() }
}

/// Returns the state that connections share.
fn share(
    settings: &ServerSettings,
    limits: &watch::Receiver<Limits>,
    (parts, desk): (&Common, &Desk),
    reader: Reader<RealDisk>,
    (stop, far): (watch::Receiver<bool>, Option<Handle>),
) -> Shared {
    let limits = limits.borrow();
    let gauge = parts.metrics.network.in_flight_bytes.clone();
    parts.metrics.set_disk(reader.disk().clone());
    Shared {
        node: parts.node.clone(),
        far,
        reader,
        work: Arc::clone(&parts.work),
        budget: Budget::new(settings.in_flight_bytes_max, gauge),
        metrics: Arc::clone(&parts.metrics),
        checking: Arc::clone(&desk.checking),
        targets: parts.targets(),
        complaints: Arc::clone(&desk.complaints),
        frame_bytes_max: limits.frame_bytes_max,
        idle_max: limits.idle_max,
        stop,
    }
}

/// Serves metrics and health from now on, until the process ends; returns where. Bytes and seats are their own: nobody
/// else can use them up.
fn serve_http(
    socket: Option<TcpListener>,
    doors: &Doors,
    (sources, limits): (http::Sources, Limits),
    runtime: &Runtime,
) -> std::io::Result<Option<SocketAddr>> {
    let (Some(socket), Some(door)) = (socket, doors.http.clone()) else { return Ok(None) };
    let address = socket.local_addr()?;
    let router = native::guarded(http::router(sources));
    let budget = Budget::new(HTTP_BYTES_MAX, Gauge::default());
    let (seats, (_, passed_on)) = (Arc::default(), mpsc::channel(1));
    let ((_, limits), (never, stop)) = (watch::channel(limits), watch::channel(false));
    let native = Native { socket, router, door, passed_on, budget, seats, limits, stop };
    runtime.spawn(async move {
        native::listen(native, STOP_GRACE).await;
        drop(never);
    });
    Ok(Some(address))
}

/// Ports of HTTP.
struct Doors {
    desk: Desk,
    native: Option<Arc<Door>>,
    http: Option<Arc<Door>>,
}

impl Doors {
    /// Reads their files. The keys of tokens are read from now on.
    fn open(settings: &ServerSettings, parts: &Common, runtime: &Handle) -> anyhow::Result<Self> {
        let Common { node, metrics, .. } = parts;
        let checking = Arc::new(Checking::new(cores()));
        let desk = Desk::new(node.clone(), checking, Arc::clone(metrics), Arc::default());
        let open = |name: &'static str, it: &Option<ListenerSettings>| {
            let Some(it) = it else { return Ok(None) };
            let certificates = it.tls.clone().map(Certificates::open).transpose()?.map(Arc::new);
            let asking = it.sasl.clone().map(|it| ask(it, metrics, runtime)).transpose()?;
            let (knows_clients, desk) = (it.knows_clients(), desk.clone());
            Ok(Some(Arc::new(Door { name, certificates, asking, knows_clients, desk })))
        };
        let open = |name, it| open(name, it).map_err(|problem: String| anyhow::anyhow!(problem));
        let (native, http) = (open("native", &settings.native)?, open("http", &settings.http)?);
        Ok(Self { desk, native, http })
    }

    /// Returns the certificates of all ports.
    fn certificates(&self) -> impl Iterator<Item = Arc<Certificates>> {
        let all = self.native.iter().chain(&self.http);
        all.filter_map(|it| it.certificates.clone())
    }
}

/// Lets clients in by all listeners from now on. The threads of sockets serve those with TLS or SASL: a cipher or a
/// password would hold up the node's thread.
fn serve_clients(
    (sockets, settings, mut certificates): (
        Vec<TcpListener>,
        &ServerSettings,
        Vec<Arc<Certificates>>,
    ),
    (near, far): (&Handle, &Handle),
    (seats, limits): (Arc<Seats>, watch::Receiver<Limits>),
    shared: &Shared,
) -> anyhow::Result<(Vec<tokio::task::JoinHandle<()>>, Arc<tls::Keeper>)> {
    let (numbers, send_buffer_bytes) = (Arc::default(), settings.send_buffer_bytes);
    let mut tasks = Vec::new();
    for (socket, it) in sockets.into_iter().zip(&settings.listeners) {
        let opened = it.tls.clone().map(|tls| Certificates::open(tls).map(Arc::new));
        let tls = opened.transpose().map_err(anyhow::Error::msg)?;
        certificates.extend(tls.clone());
        let (runtime, shared) = if tls.is_some() || it.sasl.is_some() {
            (far, Shared { far: None, ..shared.clone() })
        } else {
            (near, shared.clone())
        };
        let socket = on_runtime(socket, runtime)?;
        let (name, numbers) = (Arc::from(it.name.as_str()), Arc::clone(&numbers));
        let (seats, limits, stop) = (Arc::clone(&seats), limits.clone(), shared.stop.clone());
        let asking = it.sasl.clone().map(|settings| ask(settings, &shared.metrics, far));
        let asking = asking.transpose().map_err(anyhow::Error::msg)?;
        let it = Listener {
            socket,
            name,
            tls,
            asking,
            numbers,
            seats,
            limits,
            send_buffer_bytes,
            shared,
        };
        tasks.push(runtime.spawn(it.run(stop, STOP_GRACE)));
    }
    let keeper = Arc::new(tls::Keeper::new(certificates, Arc::clone(&shared.metrics)));
    far.spawn(Arc::clone(&keeper).watch());
    Ok((tasks, keeper))
}

/// Returns the means to ask a listener's clients who they are. The keys of tokens are read from now on.
fn ask(
    settings: Arc<SaslSettings>,
    metrics: &Arc<Metrics>,
    runtime: &Handle,
) -> Result<Asking, String> {
    let tokens = settings.tokens.clone().map(Tokens::open).transpose()?.map(Arc::new);
    if let Some(tokens) = &tokens {
        runtime.spawn(Arc::clone(tokens).keep(Arc::clone(metrics)));
    }
    Ok(Asking { settings, tokens })
}

/// Parts of the native API that are its own.
struct NativeApi {
    sources: http::Sources,
    heartbeat: Duration,
    links: Links,
    door: Option<Arc<Door>>,
}

/// Serves the native API from now on, if it has a socket.
fn serve_native(
    (socket, (seats, limits)): (Option<TcpListener>, (Arc<Seats>, watch::Receiver<Limits>)),
    shared: &Shared,
    api: NativeApi,
    runtime: &Runtime,
) -> anyhow::Result<Option<tokio::task::JoinHandle<()>>> {
    let NativeApi { sources, heartbeat, links, door } = api;
    let (Some(socket), Some(door)) = (socket, door) else { return Ok(None) };
    let address = socket.local_addr()?;
    let codecs = (shared.targets.clone(), Arc::clone(&shared.checking));
    let metrics = Arc::clone(&shared.metrics);
    let calls = Calls::new(shared.node.clone(), shared.reader.clone(), codecs, metrics);
    let passed_on = links.calls_of_nodes();
    let router = native::router(&calls, links, sources, heartbeat)?;
    tracing::info!(%address, "serving the native API");
    let (budget, stop) = (Arc::clone(&shared.budget), shared.stop.clone());
    let native = Native { socket, router, door, passed_on, budget, seats, limits, stop };
    Ok(Some(runtime.spawn(native::listen(native, STOP_GRACE))))
}

/// Says that the node serves, as soon as it has a place in its cluster.
fn announce(
    links: &Links,
    runtime: &Runtime,
    (listening, advertised, broker_id): (Vec<SocketAddr>, Vec<ClientListener>, i32),
) {
    let say = move || {
        for (address, listener) in listening.iter().zip(advertised) {
            let ClientListener { name: listener, host, port } = listener;
            let advertised = HostPort { host, port };
            tracing::info!(%address, %advertised, broker_id, listener, "serving");
        }
    };
    match links.standing().cloned() {
        Some(standing) => _ = runtime.spawn(say_when_member(standing, say)),
        None => say(),
    }
}

/// Waits until the node has a place in its cluster, and then calls `say`; without one it does not serve.
async fn say_when_member(standing: Arc<Standing>, say: impl FnOnce()) {
    while timeout(WAITING_SAID_EVERY, standing.until_member()).await.is_err() {
        if let Some(why) = standing.problem() {
            tracing::warn!(why, "not serving yet");
        }
    }
    say();
}

impl Server {
    /// Waits for SIGINT or SIGTERM, then stops in good order. A second signal ends the process at
    /// once. On SIGHUP the configuration is read again, if there is a way to.
    pub fn run(mut self, load: Option<&Load>) -> anyhow::Result<()> {
        let reloading = &mut self.reloading;
        let signals = (&mut self.hangups, &mut self.stops);
        let signal = self.runtime.block_on(stopped_by(signals, || {
            if let Some(load) = load {
                reloading.reload(load);
            } else {
                tracing::info!(
                    "SIGHUP changes nothing: there is no configuration file to read again"
                );
            }
        }));
        tracing::info!(
            signal,
            "stopping: answering the requests in flight; a second signal ends the process at once"
        );
        let (mut ignored, mut again) = (hangups(&self.runtime)?, stops(&self.runtime)?);
        self.runtime.spawn(async move {
            let _ = stopped_by((&mut ignored, &mut again), || ()).await;
            std::process::exit(ending::EXIT_FATAL);
        });
        self.stop()
    }

    /// Stops the server. Other nodes get a few seconds to lead the partitions that this node leads, and requests in
    /// flight get a few seconds to be answered. Then the node writes its state and closes the journal.
    pub fn stop(self) -> anyhow::Result<()> {
        self.health.stopping.store(true, Ordering::Relaxed);
        self.node.push(Input::Event(Event::Drain));
        let drained = async { timeout(DRAIN_GRACE, self.drained.notified()).await };
        if self.runtime.block_on(drained).is_err() {
            tracing::warn!("this node still leads partitions, and ends nevertheless");
        }
        self.stop.send_replace(true);
        for listener in self.listeners {
            self.runtime.block_on(listener)?;
        }
        if let Some(native) = self.native_listener {
            self.runtime.block_on(native)?;
        }
        self.node.push(Input::Stop);
        self.orders.push(Errand::Stop);
        for thread in self.threads {
            if thread.join().is_err() {
                bail!("a thread of the server panicked");
            }
        }
        self.runtime.shutdown_background();
        tracing::info!("stopped");
        Ok(())
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Returns the number of threads that serve sockets, and whether clients begin on the node's thread.
fn socket_threads(given: Option<usize>) -> (usize, bool) {
    match given {
        None if cores() <= NEAR_CORES_MAX => (FAR_THREADS, true),
        None => (cores().min(SOCKET_THREADS_MAX), false),
        Some(0) => (FAR_THREADS, true),
        Some(threads) => (threads, false),
    }
}

fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("duramen-socket")
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("cannot start the threads that serve sockets")
}

/// Makes the runtime of the node's thread. All tasks that are ready run before it looks at sockets again, so that one
/// turn of the node serves all that has arrived.
fn near_runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .event_interval(NEAR_EVENT_INTERVAL)
        .enable_all()
        .build()
        .context("cannot start the node's thread")
}

/// Returns the runtime of clients, and the one to which they move, if there is one. Where clients are on the node's
/// thread, links move there, too.
fn homes(is_near: bool, near: &Runtime, far: &Handle, links: &Links) -> (Handle, Option<Handle>) {
    if !is_near {
        return (far.clone(), None);
    }
    links.go_to(near.handle());
    (near.handle().clone(), Some(far.clone()))
}

/// Hands a socket to another runtime.
fn on_runtime(socket: TcpListener, runtime: &Handle) -> std::io::Result<TcpListener> {
    let socket = socket.into_std()?;
    let _entered = runtime.enter();
    TcpListener::from_std(socket)
}

/// Returns the addresses of a name.
fn resolved(address: &HostPort, purpose: &str) -> anyhow::Result<std::vec::IntoIter<SocketAddr>> {
    (address.host.as_str(), address.port)
        .to_socket_addrs()
        .with_context(|| format!("cannot {purpose} on {address}: the name does not resolve"))
}

/// Binds an address; must be called within the runtime.
fn bind(address: &HostPort, purpose: &str, flag: &str) -> anyhow::Result<TcpListener> {
    let mut last = None;
    for candidate in resolved(address, purpose)? {
        match listen_on(candidate) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    let Some(error) = last else { bail!("cannot {purpose} on {address}: it has no address") };
    if error.kind() == std::io::ErrorKind::AddrInUse {
        let next = address.port.checked_add(1).unwrap_or(0);
        let host = HostPort { host: address.host.clone(), port: next };
        bail!(
            "cannot {purpose} on {address}: another process does already. Stop it, or choose \
             another port with {flag} {host}"
        );
    }
    Err(error).with_context(|| format!("cannot {purpose} on {address}"))
}

fn listen_on(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without it a restart would have to wait for the old connections to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns the addresses that clients are told to connect to: the configured one of each listener, else its own. Where
/// a listener has all addresses, it is the machine's name.
fn advertised(
    settings: &ServerSettings,
    sockets: &[TcpListener],
) -> std::io::Result<Vec<ClientListener>> {
    let one = |(it, socket): (&ListenerSettings, &TcpListener)| {
        let ListenerSettings { name, address, advertised, .. } = it.clone();
        let HostPort { host, port } = match advertised {
            Some(advertised) => advertised,
            None if !address.is_unspecified() => {
                HostPort { port: socket.local_addr()?.port(), ..address }
            }
            None => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                tracing::warn!(
                    host,
                    listener = name,
                    "the node advertises this machine's name, because it listens on all addresses; if \
                     clients cannot resolve the name, give another with --advertise HOST:PORT, or with \
                     advertised.listeners where there are several listeners"
                );
                HostPort { host, port: socket.local_addr()?.port() }
            }
        };
        Ok(ClientListener { name, host, port })
    };
    settings.listeners.iter().zip(sockets).map(one).collect()
}

/// Returns the address of the native API, as other nodes reach it.
fn native_at(config: &Config, address: Option<SocketAddr>) -> Option<(String, u16)> {
    let host = match config.native.as_ref()? {
        unspecified if unspecified.is_unspecified() => {
            rustix::system::uname().nodename().to_string_lossy().into_owned()
        }
        given => given.host.clone(),
    };
    Some((host, address?.port()))
}

/// Sockets on which a server listens.
struct Sockets {
    /// One for each listener of clients, in their order, with its address and the one that clients are told.
    clients: Vec<TcpListener>,
    listening: Vec<SocketAddr>,
    advertised: Vec<ClientListener>,
    native: Option<TcpListener>,
    http: Option<TcpListener>,
    for_nodes: Option<(TcpListener, HostPort)>,
}

fn bind_all(
    config: &Config,
    settings: &ServerSettings,
    runtime: &Runtime,
) -> anyhow::Result<Sockets> {
    let _inside = runtime.enter();
    // Nobody changes anything there, so that it may be read from other machines.
    let http = settings.http.as_ref().map(|it| {
        ensure_unread(config, it)?;
        bind(&it.address, "serve metrics", "--http")
    });
    let native = settings.native.as_ref().map(|it| {
        ensure_asked(config, it)?;
        bind(&it.address, "serve the native API", "--native")
    });
    let listen = |it: &ListenerSettings| {
        ensure_asked(config, it)?;
        let flag = if config.listen.is_some() { "--listen" } else { "the setting listeners:" };
        bind(&it.address, "listen", flag)
    };
    let clients = settings.listeners.iter().map(listen).collect::<anyhow::Result<Vec<_>>>()?;
    let listening = clients.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    let advertised = advertised(settings, &clients)?;
    let for_nodes = listen_for_nodes(config, settings)?;
    let (native, http) = (native.transpose()?, http.transpose()?);
    Ok(Sockets { clients, listening, advertised, native, http, for_nodes })
}

/// Refuses a listener that other machines reach and that does not ask each client who it is, unless that is meant.
fn ensure_asked(config: &Config, listener: &ListenerSettings) -> anyhow::Result<()> {
    if listener.asks_clients() {
        ensure_unread(config, listener)
    } else {
        ensure_closed(config, &listener.address)
    }
}

/// Refuses an address that other machines reach, where nobody is asked who they are, unless that is meant.
fn ensure_closed(config: &Config, address: &HostPort) -> anyhow::Result<()> {
    let is_open = |it: SocketAddr| !it.ip().to_canonical().is_loopback();
    ensure!(
        config.open || !resolved(address, "listen")?.any(is_open),
        "{address} can be reached from other machines, and nobody would be asked who they are. Say --open if that is \
         meant, or listen on 127.0.0.1"
    );
    Ok(())
}

/// Refuses an address that other machines reach, where passwords would travel as they are, unless that is meant.
fn ensure_unread(config: &Config, listener: &ListenerSettings) -> anyhow::Result<()> {
    let ListenerSettings { name, address, .. } = listener;
    ensure!(
        !listener.shows_passwords() || ensure_closed(config, address).is_ok(),
        "{address} can be reached from other machines, and everybody on the way could read the passwords of clients. Give \
         {name} TLS (SASL_SSL), enable only SCRAM-SHA-512 for a listener of Kafka's clients, or say --open if that is meant"
    );
    Ok(())
}

/// Returns the listener for other nodes, if there may be any, and where they reach it.
fn listen_for_nodes(
    config: &Config,
    settings: &ServerSettings,
) -> anyhow::Result<Option<(TcpListener, HostPort)>> {
    let listed = settings.node_id.and_then(|id| settings.nodes.get(&id));
    let Some(wanted) = config.node_listen.as_ref().or(listed) else {
        ensure!(
            !config.replaces,
            "--replace is for a node of a cluster, and no other node can reach this one: leave it out, or say where they reach \
             it with --node-listen HOST:PORT"
        );
        ensure!(
            settings.nodes.is_empty(),
            "node.id is not among the nodes of controller.quorum.voters, so it is to join their cluster: say where they reach \
             it with --node-listen HOST:PORT"
        );
        return Ok(None);
    };
    if settings.node_security.mode != NodeMode::Tls {
        ensure_closed(config, wanted)?;
    }
    let socket = bind(wanted, "listen for other nodes", "--node-listen")?;
    let port = socket.local_addr()?.port();
    let address = listed.cloned().unwrap_or(HostPort { host: wanted.host.clone(), port });
    ensure!(
        !address.is_unspecified(),
        "other nodes cannot connect to {address}: give --node-listen an address of this machine"
    );
    Ok(Some((socket, address)))
}

fn start_indexing(
    settings: &ServerSettings,
    node: &Node,
    reader: Reader<RealDisk>,
    common: &Common,
) -> std::io::Result<JoinHandle<()>> {
    let limits =
        duramen_storage::indexing::Limits::new(node.queue_seed(), free_bytes_min(settings));
    let (orders, node) = (Arc::clone(&common.orders), common.node.clone());
    indexing::start(Indexing { reader, limits, orders, node })
}

fn start_scrubbing(
    settings: &ServerSettings,
    reader: Reader<RealDisk>,
    ready: Arc<Inbox<Ready<RealDisk>>>,
    common: Common,
) -> std::io::Result<()> {
    let (interval, free_bytes_min) = (settings.scrub_interval, free_bytes_min(settings));
    let random: [u8; 16] = random().map_err(std::io::Error::other)?;
    let (one, other) = random.split_at(8);
    let number = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of sixteen"));
    let hash_key = (number(one), number(other));
    scrubbing::start(Scrubbing { reader, interval, hash_key, free_bytes_min, ready, common })?;
    Ok(())
}

/// Opens the node over its storage; one of several first becomes a member of their cluster.
fn open(
    config: &Config,
    settings: &ServerSettings,
    broker: duramen_broker::configs::BrokerSettings,
    (listeners, native_address): (Vec<ClientListener>, Option<(String, u16)>),
    (mut storage, recovered): (Storage<RealDisk>, Recovered),
    others: Option<(TcpListener, HostPort, Security, (&Handle, &Common))>,
) -> anyhow::Result<Opened> {
    let path = config.data_dir.as_path();
    let Recovered { mut facts, voters, formatted, replicas } = recovered;
    let (mut links, mut founders, mut node_address) = (Links::default(), Vec::new(), None);
    let mut introduced = Vec::new();
    if let Some((socket, address, security, (runtime, common))) = others {
        node_address = Some((address.host.clone(), address.port));
        let nodes = settings.nodes.clone();
        let voters = founders_of(&facts, voters);
        let replaces = config.replaces;
        let place =
            Place { socket, address, nodes, facts: facts.clone(), voters, replaces, security };
        let mut peers = Peers::start(place, runtime, common);
        (facts.cluster_id, founders) = peers.form(&mut storage, runtime)?;
        links = peers.links;
        let nodes = links.nodes().into_iter().map(|node| node.broker_id);
        introduced = nodes.filter(|id| *id != facts.broker_id).collect();
    }
    let founder = |it: Voter| Founder {
        peer_id: it.peer_id,
        broker_id: it.broker_id,
        directory_id: it.directory_id,
    };
    let found = replicas.len();
    let clock = Clock::start();
    let mut actions = Vec::new();
    let log_dir = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let options = NodeOptions {
        facts: facts.clone(),
        listeners,
        rack: broker
            .get("broker.rack")
            .map(|(rack, _)| rack.to_owned())
            .filter(|it| !it.is_empty()),
        log_dir: log_dir.display().to_string(),
        settings: broker,
        seed: u64::from_le_bytes(random()?),
        kinds: duramen_broker::KINDS,
        secret: random()?,
        first_users: first_users(settings)?,
        bytes_in_flight_max: settings.in_flight_bytes_max,
        metadata_tail: read_plan::metadata_tail(&storage.reader(), &replicas)
            .with_context(|| format!("the metadata log cannot be read; {}", cure(&replicas)))?,
        node_address,
        native_address,
        founders: founders.into_iter().map(founder).collect(),
        memory: Memory::default(),
        introduced,
        replaces: config.replaces,
        quiet_ticks: GROUP_QUIET_TICKS,
    };
    let node = Node::open(options, replicas, clock.now(), &mut actions);
    Ok(Opened { storage, links, node, actions, clock, facts, formatted, recovered: found })
}

/// Makes the credentials of the users that a new cluster gets.
fn first_users(settings: &ServerSettings) -> anyhow::Result<Vec<(String, Credential)>> {
    let made = settings.first_users.iter().map(|it| {
        let salt: [u8; SALT_BYTES] = random()?;
        let salt = Bytes::copy_from_slice(&salt);
        let credential = Credential::of_password(it.hash, &it.password.0, salt, ITERATIONS);
        Ok((it.name.clone(), credential))
    });
    made.collect()
}

/// Returns the founders of a directory's cluster: one that was a cluster of its own from the start began it alone.
fn founders_of(facts: &Facts, voters: Vec<Voter>) -> Vec<Voter> {
    if facts.cluster_id == [0; 16] || !voters.is_empty() {
        return voters;
    }
    let Facts { broker_id, directory_id, .. } = *facts;
    vec![Voter { peer_id: 1, broker_id, directory_id }]
}

/// Catches SIGHUPs from now on, so that none ends the process: one that comes before it can be answered waits.
fn hangups(runtime: &Runtime) -> std::io::Result<Signal> {
    let _inside = runtime.enter();
    signal(SignalKind::hangup())
}

/// Ends the process at once at a SIGINT or SIGTERM: there is nobody to answer before a node serves. The kernel does so
/// by itself, but not for a container's first process.
fn end_when_stopped(runtime: &Runtime) -> std::io::Result<JoinTask<()>> {
    let [mut interrupt, mut terminate] = stops(runtime)?;
    Ok(runtime.spawn(async move {
        let signal = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        tracing::info!(signal, "stopped before it served");
        std::process::exit(0);
    }))
}

/// Catches SIGINT and SIGTERM from now on: one that comes before it can be answered waits.
fn stops(runtime: &Runtime) -> std::io::Result<[Signal; 2]> {
    let _inside = runtime.enter();
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?])
}

/// Waits for SIGINT or SIGTERM, and calls `on_hangup` at each SIGHUP. A SIGHUP that comes because the terminal has
/// gone ends the process, too: nobody could stop it there any more.
pub(crate) async fn stopped_by(
    (hangups, [interrupt, terminate]): (&mut Signal, &mut [Signal; 2]),
    mut on_hangup: impl FnMut(),
) -> &'static str {
    let had_terminal = std::io::stderr().is_terminal();
    loop {
        tokio::select! {
            _ = interrupt.recv() => return "SIGINT",
            _ = terminate.recv() => return "SIGTERM",
            _ = hangups.recv() => {
                if had_terminal && !std::io::stderr().is_terminal() {
                    return "SIGHUP";
                }
                on_hangup();
            }
        }
    }
}
