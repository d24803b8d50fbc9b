//! # Room card: door
//!
//! Purpose:    tell who is behind a request by HTTP, on the port of the native API and on that of metrics.
//! Owns:       the handshakes there, the header `Authorization` (RFC 7617, RFC 6750), the questions to the node.
//! Interface:  [`Door::enter`], [`Visitor::know`], [`Visitor::may_observe`].
//! Invariants: where clients are asked, each request shows who its client is, and the node says each time that this
//!             still counts. A connection tries one password at a time, and a wrong one costs it a pause.
//! Never:      rights but that to see metrics (`duramen_broker::access`); the form of a refusal (`native/identify.rs`).
//! Tests:      below; `tests/native/doors.rs` with the real binary.
//! Start at:   [`Visitor::know`].
//!
//! A password is stretched once a connection. For later requests with the same header the credential by which the first
//! one came is compared with that of now.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use data_encoding::BASE64;
use duramen_broker::NATIVE;
use duramen_broker::access::RequestContext;
use duramen_broker::event::{ConnectionId, Event, Reply};
use duramen_broker::login::{Known, WhoIs};
use duramen_broker::session::Prepared;
use duramen_protocol::messages::DescribeClusterRequest;
use duramen_protocol::sasl::Mechanism;
use duramen_protocol::sasl::scram::{Credential, Hash};
use duramen_protocol::{Request, Response};
use ring::digest::{SHA256, digest};
use tokio::net::TcpStream;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, timeout};

use super::checking::Checking;
use super::complaints::Complaints;
use super::connection::{Asking, host_of};
use super::metrics::Metrics;
use super::threads::{Input, Routed, ToNode};
use super::tls::{Certificates, Wire, accept_http};

/// Longest wait for the node's answer to a question.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// First number of a question's connection to the node, behind those of calls of the native API.
const FIRST: u64 = (1 << 62) | (1 << 61);
/// Bit of the operation Describe in a resource's operations (KIP-430).
const DESCRIBE: u32 = 1 << 8;
/// Version of `DescribeCluster` that tells the operations.
const CLUSTER_VERSION: i16 = 1;
const ANONYMOUS: &str = "User:ANONYMOUS";

/// Means of doors to ask the node.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    /// The way into the node's thread.
    pub node: ToNode,
    /// Bound on passwords that are stretched at the same time.
    pub checking: Arc<Checking>,
    /// Metrics of logins.
    pub metrics: Arc<Metrics>,
    /// Limit on log lines.
    pub complaints: Arc<Complaints>,
    numbers: Arc<AtomicU64>,
}

/// A port of HTTP.
#[derive(Debug)]
pub(crate) struct Door {
    /// Name among the listeners.
    pub name: &'static str,
    /// Certificates, if the port has TLS.
    pub certificates: Option<Arc<Certificates>>,
    /// Means to ask clients who they are, if the port asks by passwords or tokens.
    pub asking: Option<Asking>,
    /// True if the port knows the names of some clients.
    pub knows_clients: bool,
    /// Means to ask the node.
    pub desk: Desk,
}

/// Client of a request.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Principal, such as `User:alice`.
    pub principal: Arc<str>,
    /// User and credential of a client that has shown a password.
    pub known: Option<Known>,
    /// Time at which the proof counts no more, if there is one.
    pub ends: Option<Instant>,
}

/// Reason for which a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The client does not show who it is, or is somebody else.
    Unknown(String),
    /// The node cannot tell now: the client may try again.
    NotNow(String),
}

/// A connection that came by a door.
#[derive(Debug)]
pub(crate) struct Visitor {
    door: Arc<Door>,
    /// Where the client is, as Kafka prints it.
    pub host: Arc<str>,
    /// Name in the client's certificate, if it has shown one.
    name: Option<String>,
    /// True for another node, which passes on calls of its clients.
    pub is_node: bool,
    /// Last proof that counted.
    last: Mutex<Option<Proof>>,
    /// Turn of the next proof.
    turn: tokio::sync::Mutex<()>,
}

/// A header that counted.
#[derive(Clone, Debug)]
struct Proof {
    digest: [u8; 32],
    user: String,
    /// Credential that the password fits. None for a token.
    credential: Option<Arc<Credential>>,
    ends: Option<Instant>,
}

impl Desk {
    pub(crate) fn new(
        node: ToNode,
        checking: Arc<Checking>,
        metrics: Arc<Metrics>,
        complaints: Arc<Complaints>,
    ) -> Self {
        Self { node, checking, metrics, complaints, numbers: Arc::new(AtomicU64::new(FIRST)) }
    }

    /// Asks the node one question, on a connection of its own.
    async fn ask(&self, event: impl FnOnce(ConnectionId) -> Event) -> Result<Routed, Refusal> {
        let connection = ConnectionId(self.numbers.fetch_add(1, Ordering::Relaxed));
        let (to_desk, mut replies) = unbounded_channel();
        self.node.push(Input::Connected(connection, to_desk));
        let _farewell = Farewell(&self.node, connection);
        self.node.push(Input::Event(event(connection)));
        match timeout(ANSWER_MAX, replies.recv()).await {
            Ok(Some(Routed::Close(reason))) => Err(Refusal::NotNow(reason)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Refusal::NotNow("the node stops".to_owned())),
            Err(_) => Err(Refusal::NotNow("the node does not answer".to_owned())),
        }
    }

    /// Returns the credential by which a user is known now, or the reason for which the node lets nobody in.
    async fn who_is(
        &self,
        user: &str,
        wanted: &'static [Hash],
    ) -> Result<Arc<Credential>, Refusal> {
        let asked = WhoIs { user: user.to_owned(), wanted };
        match self.ask(|connection| Event::WhoIs { connection, asked }).await? {
            Routed::Credential(credential) => Ok(credential),
            other => unreachable!("{other:?} answers no question about a user"),
        }
    }
}

/// Has the node forget a question, however it ends.
struct Farewell<'a>(&'a ToNode, ConnectionId);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.0.push(Input::Event(Event::Disconnected(self.1)));
    }
}

impl Door {
    /// Makes the handshake of a client, if there is one to make.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        tcp: TcpStream,
        peer: SocketAddr,
    ) -> io::Result<(Wire, Visitor)> {
        let (wire, name) = match &self.certificates {
            None => (Wire::Plain(tcp), None),
            Some(certificates) => {
                let made = accept_http(tcp, certificates.current()).await;
                made.inspect_err(|_| _ = self.desk.metrics.network.tls_handshakes_failed.inc())?
            }
        };
        Ok((wire, Visitor { name, ..Visitor::new(self, peer) }))
    }
}

impl Visitor {
    fn new(door: &Arc<Door>, peer: SocketAddr) -> Self {
        Self {
            door: Arc::clone(door),
            host: host_of(peer),
            name: None,
            is_node: false,
            last: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Returns another node, which has shown elsewhere that it is one.
    pub(crate) fn node(door: &Arc<Door>, peer: SocketAddr) -> Self {
        Self { is_node: true, ..Self::new(door, peer) }
    }

    /// Tells whether each request has to show who its client is.
    pub(crate) fn is_asked(&self) -> bool {
        !self.is_node && self.door.asking.is_some()
    }

    /// Returns the ways in which a client may show who it is, as values of `WWW-Authenticate`.
    pub(crate) fn challenges(&self) -> Vec<HeaderValue> {
        let mechanisms = self.door.asking.iter().flat_map(|it| it.settings.mechanisms.iter());
        let is_token = |it: &Mechanism| *it == Mechanism::OAuthBearer;
        let basic = mechanisms.clone().any(|it| !is_token(it));
        let basic = basic.then_some("Basic realm=\"duramen\", charset=\"UTF-8\"");
        let bearer = mechanisms.clone().any(is_token).then_some("Bearer realm=\"duramen\"");
        basic.into_iter().chain(bearer).map(HeaderValue::from_static).collect()
    }

    /// Returns the client of each request of a connection on which they need not show who it is.
    pub(crate) fn unasked(&self) -> Option<Identity> {
        (!self.is_asked()).then(|| {
            let principal = self.name.as_ref().map(|name| format!("User:{name}"));
            let principal = principal.as_deref().unwrap_or(ANONYMOUS).into();
            Identity { principal, known: None, ends: None }
        })
    }

    /// Returns the client of a request, or the reason for which it is not who it says.
    pub(crate) async fn know(&self, headers: &HeaderMap) -> Result<Identity, Refusal> {
        if let Some(identity) = self.unasked() {
            return Ok(identity);
        }
        let asking = self.door.asking.as_ref().expect("a port that asks has means to");
        let Some(shown) = headers.get(header::AUTHORIZATION) else {
            let reason = "the request does not say who its client is".to_owned();
            return Err(Refusal::Unknown(reason));
        };
        let seen = digest(&SHA256, shown.as_bytes()).as_ref().try_into().expect("256 bits");
        if let Some(proof) = self.last(&seen)
            && self.still_counts(&proof).await?
        {
            return Ok(proof.into());
        }
        let _turn = self.turn.lock().await;
        let proof = match self.prove(asking, shown).await {
            Ok((user, credential, lifetime)) => {
                let ends = lifetime.map(|it| Instant::now() + it);
                Proof { digest: seen, user, credential, ends }
            }
            Err(Refusal::NotNow(reason)) => return Err(Refusal::NotNow(reason)),
            Err(Refusal::Unknown(reason)) => {
                self.door.desk.metrics.network.logins_failed.inc();
                if self.door.desk.complaints.may_say() {
                    let (host, port) = (&self.host, self.door.name);
                    tracing::info!(host = &**host, port, reason, "login refused");
                }
                tokio::time::sleep(asking.settings.failure_delay).await;
                // A stranger would learn whose names are right.
                return Err(Refusal::Unknown("Authentication failed".to_owned()));
            }
        };
        self.door.desk.metrics.network.logins.inc();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(proof.clone());
        Ok(proof.into())
    }

    /// Returns the last proof, if it was this header and its time is not over.
    fn last(&self, seen: &[u8; 32]) -> Option<Proof> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_over = |it: &Proof| it.ends.is_some_and(|ends| ends <= Instant::now());
        last.filter(|it| it.digest == *seen && !is_over(it))
    }

    /// Tells whether the user of a proof still has the credential by which it counted.
    async fn still_counts(&self, proof: &Proof) -> Result<bool, Refusal> {
        let wanted: &[Hash] = if proof.credential.is_some() { &Hash::ALL } else { &[] };
        let now = self.door.desk.who_is(&proof.user, wanted).await?;
        Ok(proof.credential.as_ref().is_none_or(|before| *before == now))
    }

    /// Checks a header. Returns the user, the credential that its password fits, and the time for which that counts.
    async fn prove(
        &self,
        asking: &Asking,
        shown: &HeaderValue,
    ) -> Result<(String, Option<Arc<Credential>>, Option<Duration>), Refusal> {
        let text = shown.to_str().map_err(|_| "the header is no text")?;
        let (scheme, rest) = text.split_once(' ').ok_or("the header has no scheme")?;
        let mechanisms = &asking.settings.mechanisms;
        let lifetime = |wanted: fn(&Mechanism) -> bool| {
            let lifetimes = asking.settings.lifetimes.iter();
            lifetimes.filter(|(it, _)| wanted(it)).map(|(_, it)| *it).min()
        };
        let is_token = |it: &Mechanism| *it == Mechanism::OAuthBearer;
        match scheme.to_ascii_lowercase().as_str() {
            "basic" if mechanisms.iter().any(|it| !is_token(it)) => {
                let (user, password) = basic(rest).ok_or("it is no name and password")?;
                let credential = self.door.desk.who_is(&user, &Hash::ALL).await?;
                let checking = &self.door.desk.checking;
                if !checking.on_password(|| credential.fits(&password)).await {
                    return Err("the password is wrong, or there is no such user".into());
                }
                let lifetime = lifetime(|it| *it != Mechanism::OAuthBearer);
                Ok((user, Some(credential), lifetime))
            }
            "bearer" if mechanisms.iter().any(is_token) => {
                let tokens = asking.tokens.as_ref().ok_or("there are no keys")?;
                let bearer = tokens.check(rest.trim())?;
                self.door.desk.who_is(&bearer.user, &[]).await?;
                let own = lifetime(|it| *it == Mechanism::OAuthBearer);
                let lifetime = own.into_iter().chain([bearer.lifetime]).min();
                Ok((bearer.user, None, lifetime))
            }
            _ => Err(format!("nobody shows here who it is by {scheme:?}").into()),
        }
    }

    /// Tells whether a client may see metrics and health: with rules, it needs Describe on the cluster.
    pub(crate) async fn may_observe(&self, identity: &Identity) -> Result<bool, Refusal> {
        if self.is_node || !self.door.knows_clients {
            return Ok(true);
        }
        let request = DescribeClusterRequest {
            include_cluster_authorized_operations: true,
            endpoint_type: 1,
            ..Default::default()
        };
        let request = Prepared::Request(Request::from(request));
        let context = RequestContext {
            principal: Arc::clone(&identity.principal),
            client_id: None,
            listener: NATIVE.into(),
            client_host: Arc::clone(&self.host),
            api: request.api(),
            version: CLUSTER_VERSION,
            spent_us: 0,
            is_ruled: false,
        };
        let request = Box::new(request);
        let event = |connection| Event::Request { connection, sequence: 0, context, request };
        match self.door.desk.ask(event).await? {
            Routed::Reply(_, Reply::Response(response)) => match *response {
                Response::DescribeCluster(it) => {
                    Ok(it.cluster_authorized_operations.cast_unsigned() & DESCRIBE != 0)
                }
                other => unreachable!("{other:?} describes no cluster"),
            },
            other => unreachable!("{other:?} is no response"),
        }
    }
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(reason: T) -> Self {
        Self::Unknown(reason.into())
    }
}

impl From<Proof> for Identity {
    fn from(Proof { user, credential, ends, .. }: Proof) -> Self {
        let principal = format!("User:{user}").into();
        let known = credential.map(|credential| Known { user, credential });
        Self { principal, known, ends }
    }
}

/// Reads the name and the password of a client (RFC 7617, 2).
fn basic(text: &str) -> Option<(String, Vec<u8>)> {
    let both = BASE64.decode(text.trim().as_bytes()).ok()?;
    let colon = both.iter().position(|it| *it == b':')?;
    let user = std::str::from_utf8(&both[..colon]).ok().filter(|it| !it.is_empty())?;
    Some((user.to_owned(), both[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::settings::SaslSettings;

    /// A node that cannot tell lets nobody in, and does not call a right password wrong.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_cannot_tell_has_the_client_try_again() {
        let (node, mut inputs) = ToNode::open();
        let checking = Arc::new(Checking::new(1));
        let desk = Desk::new(node, checking, Arc::default(), Arc::default());
        let settings = SaslSettings {
            mechanisms: [Mechanism::Plain].into(),
            token_bytes_max: 0,
            failure_delay: Duration::ZERO,
            lifetimes: [].into(),
            tokens: None,
        };
        let asking = Some(Asking { settings: Arc::new(settings), tokens: None });
        let door = Door { name: "native", certificates: None, asking, knows_clients: true, desk };
        let visitor = Visitor::new(&Arc::new(door), ([127, 0, 0, 1], 1).into());
        tokio::spawn(async move {
            while let Some(input) = inputs.recv().await {
                if let Input::Connected(_, to_desk) = input {
                    to_desk.send(Routed::Close("not heard".to_owned())).unwrap();
                }
            }
        });
        let shown = format!("Basic {}", BASE64.encode(b"ada:x"));
        let headers = [(header::AUTHORIZATION, HeaderValue::from_str(&shown).unwrap())];
        let refused = visitor.know(&headers.into_iter().collect()).await.unwrap_err();
        assert_eq!(refused, Refusal::NotNow("not heard".to_owned()));
        let refused = visitor.know(&HeaderMap::new()).await.unwrap_err();
        assert!(matches!(refused, Refusal::Unknown(_)));
    }

    #[test]
    fn a_name_ends_with_the_first_colon_and_a_password_is_any_bytes() {
        let of = |text: &[u8]| basic(&BASE64.encode(text));
        assert_eq!(of(b"ada:a:b"), Some(("ada".to_owned(), b"a:b".to_vec())));
        assert_eq!(of(b"ada:\xff"), Some(("ada".to_owned(), b"\xff".to_vec())));
        assert_eq!(of(b"ada:"), Some(("ada".to_owned(), Vec::new())));
        for wrong in [&b"ada"[..], b":x", b"\xff:x", b""] {
            assert_eq!(of(wrong), None);
        }
        assert_eq!(basic("ada:x"), None, "it is not encoded");
    }
}
