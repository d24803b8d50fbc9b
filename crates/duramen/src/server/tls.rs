//! # Room card: tls
//!
//! Purpose:    TLS of the listeners for clients and for nodes: certificates from files, handshakes, sealed bytes.
//! Owns:       the checks of certificates and keys, the configuration that new connections take, its reload; names in
//!             certificates (`tls/names.rs`), texts in PEM (`tls/pem.rs`); streams for tokio's readers and writers
//!             (`tls/wire.rs`).
//! Interface:  [`Certificates::open`], [`Keeper::refresh`], [`accept`], [`Tls`]; [`Certificates::between_nodes`].
//! Invariants: a configuration with a mistake is never taken: the last good one stays. No session is resumed, so that
//!             each connection shows what it has. A handshake has a bound on its time.
//! Never:      who a client is (`duramen_broker::session`), bytes of files (`sending`).
//! Tests:      `tests/tls.rs` with the real binary; `compat` with clients of other languages.
//! Start at:   [`Certificates::open`].
//!
//! Estimate a fetch of 1 MiB: one copy from the page cache, one by the cipher, one to the socket; a `sendmsg` for each
//! [`SEALED_BYTES_MAX`]. Without TLS there is no copy in user space.

use std::fmt::Display;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::BufMut;
use bytes::buf::Limit;
use duramen_protocol::wire::Secret;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ConfigBuilder, InvalidMessage, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::metrics::Metrics;

mod names;
mod pem;
mod wire;

pub use names::NameRules;
use names::{Identity, identity_of, name_of};
pub use pem::Pem;
use pem::private_key;
pub(super) use wire::Wire;

/// Longest time of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Most bytes that wait, sealed, for room in the socket.
pub(super) const SEALED_BYTES_MAX: usize = 256 * 1024;
/// Time between two looks at whether the files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Settings of TLS for one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Name of the listener.
    pub listener: String,
    /// `ssl.keystore.location`, or `ssl.keystore.certificate.chain` and `ssl.keystore.key`: the certificate, those
    /// that vouch for it, and the key.
    pub keystore: Pem,
    /// `ssl.key.password`; empty for a key that is not encrypted.
    pub key_password: Secret,
    /// `ssl.enabled.protocols`: those of `TLSv1.2` and `TLSv1.3`.
    pub protocols: Vec<String>,
    /// `ssl.cipher.suites`, by Java's names. Empty for all.
    pub ciphers: Vec<String>,
    /// `ssl.client.auth`: whether clients show a certificate.
    pub clients: ClientAuth,
    /// `ssl.truststore.location`, or `ssl.truststore.certificates`: the authorities of clients' certificates, if
    /// clients show any.
    pub truststore: Pem,
    /// `ssl.crl.location`: a file in PEM with lists of certificates that count no more, or nothing.
    pub revoked: PathBuf,
    /// `ssl.principal.mapping.rules`.
    pub names: NameRules,
    /// `ssl.allow.dn.changes`: whether a new certificate may have another subject.
    pub may_rename: bool,
    /// `ssl.allow.san.changes`: whether a new certificate may lack alternative names.
    pub may_lack_names: bool,
    /// Peers of the listener.
    pub peers: Peers,
}

/// Peers of a listener with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Clients of Kafka's protocol.
    Clients,
    /// Clients that choose between HTTP/2 and HTTP/1.1 in the handshake (ALPN, RFC 7301).
    OfHttp,
    /// Nodes. This one shows the certificate also to those that it dials, and judges theirs by the same authorities.
    Nodes,
}

/// Configuration that a connection takes when it begins.
#[derive(Clone, Debug)]
pub struct Sealing {
    config: Arc<ServerConfig>,
    names: NameRules,
}

/// Rule about certificates of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients show none.
    None,
    /// Clients may show one. A client without one is `User:ANONYMOUS`.
    Requested,
    /// Clients must show one.
    Required,
}

impl TlsSettings {
    /// Reads the files. Returns the mistake where one is missing, has expired, or does not fit the other.
    pub fn load(&self) -> Result<(), String> {
        self.read().map(|_| ())
    }

    fn read(&self) -> Result<Loaded, String> {
        let about = |problem: String| self.keystore.about(problem);
        let text = self.keystore.read()?;
        let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| about(format!("no certificate in PEM: {error}")))?;
        let first = chain.first().ok_or_else(|| about("there is no certificate".to_owned()))?;
        check_time(first).map_err(about)?;
        let identity = identity_of(first).map_err(about)?;
        let key = private_key(&text, &self.key_password).map_err(about)?;
        let provider = Arc::new(self.provider()?);
        let versions = self.versions()?;
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| format!("ssl.cipher.suites fit no protocol: {error}"))?;
        let config = if self.clients == ClientAuth::None {
            config.with_no_client_auth()
        } else {
            config.with_client_cert_verifier(self.verifier(Arc::clone(&provider))?)
        };
        let unfit = |error| about(format!("key and certificate do not fit: {error}"));
        let mut dialling = None;
        if self.peers == Peers::Nodes {
            let config = self.dialling(&provider, &versions)?;
            let config = config.with_client_auth_cert(chain.clone(), key.clone_key());
            let mut config = config.map_err(unfit)?;
            config.resumption = Resumption::disabled();
            dialling = Some(Arc::new(config));
        }
        let mut config = config.with_single_cert(chain, key).map_err(unfit)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        if self.peers == Peers::OfHttp {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        Ok(Loaded { accepting: Arc::new(config), dialling, identity })
    }

    /// Begins the configuration for nodes that this one dials.
    fn dialling(
        &self,
        provider: &Arc<CryptoProvider>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
        let (roots, provider) = (Arc::new(self.roots()?), Arc::clone(provider));
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let verifier = match self.lists()? {
            lists if lists.is_empty() => verifier,
            lists => verifier.with_crls(lists).only_check_end_entity_revocation(),
        };
        let verifier = verifier.build().map_err(|error| self.truststore.about(error))?;
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_protocol_versions(versions);
        let config =
            config.map_err(|error| format!("ssl.cipher.suites fit no protocol: {error}"))?;
        Ok(config.with_webpki_verifier(verifier))
    }

    /// Returns the check of clients' certificates.
    fn verifier(
        &self,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        if self.truststore.is_none() {
            return Err("ssl.client.auth needs ssl.truststore.location, a file in PEM with the \
                        authorities of clients' certificates"
                .to_owned());
        }
        let roots = Arc::new(self.roots()?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
        let verifier = match self.lists()? {
            lists if lists.is_empty() => verifier,
            // The list of the authority that signed a client's certificate must be there.
            lists => verifier.with_crls(lists).only_check_end_entity_revocation(),
        };
        let verifier = match self.clients {
            ClientAuth::Requested => verifier.allow_unauthenticated(),
            ClientAuth::None | ClientAuth::Required => verifier,
        };
        verifier.build().map_err(|error| self.truststore.about(error))
    }

    /// Reads the authorities of others' certificates.
    fn roots(&self) -> Result<RootCertStore, String> {
        let about = |error: &dyn Display| self.truststore.about(error);
        let text = self.truststore.read()?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| about(&error))?;
            roots.add(certificate).map_err(|error| about(&error))?;
        }
        Ok(roots)
    }

    /// Tells whether an authority vouches for the others of both.
    pub(super) fn shares_authority(&self, other: &Self) -> bool {
        let both = self.roots().and_then(|own| Ok((own, other.roots()?)));
        both.is_ok_and(|(own, others)| own.roots.iter().any(|it| others.roots.contains(it)))
    }

    /// Reads the lists of certificates that count no more.
    fn lists(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
        if self.revoked.as_os_str().is_empty() {
            return Ok(Vec::new());
        }
        let path = self.revoked.display();
        let text = std::fs::read(&self.revoked).map_err(|error| format!("{path}: {error}"))?;
        let lists = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<_, _>>();
        let lists: Vec<_> = lists.map_err(|error| format!("{path}: {error}"))?;
        if lists.is_empty() {
            return Err(format!("{path}: there is no list of revoked certificates in PEM"));
        }
        Ok(lists)
    }

    /// Refuses a certificate with other names than the one before, unless settings allow that (KIP-978).
    fn check_names(&self, before: &Identity, after: &Identity) -> Result<(), String> {
        let (from, to) = (&before.subject, &after.subject);
        if from != to && !self.may_rename {
            return Err(format!(
                "the new certificate is for {to}, and the one before was for {from}: set \
                 ssl.allow.dn.changes to true if that is meant"
            ));
        }
        let mut missing = before.alternatives.difference(&after.alternatives);
        match missing.next() {
            Some(name) if !self.may_lack_names => Err(format!(
                "the new certificate lacks the name {name}: set ssl.allow.san.changes to true if \
                 that is meant"
            )),
            _ => Ok(()),
        }
    }

    /// Returns when each of the files was changed.
    fn changed(&self) -> Changed {
        let lists = std::fs::metadata(&self.revoked).and_then(|it| it.modified()).ok();
        [self.keystore.changed(), self.truststore.changed(), lists]
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
        let version = |name: &String| match name.as_str() {
            "TLSv1.2" => Ok(&rustls::version::TLS12),
            "TLSv1.3" => Ok(&rustls::version::TLS13),
            other => Err(format!("ssl.enabled.protocols: {other} is neither TLSv1.2 nor TLSv1.3")),
        };
        let versions = self.protocols.iter().map(version).collect::<Result<Vec<_>, _>>()?;
        if versions.is_empty() {
            Err("ssl.enabled.protocols is empty".to_owned())
        } else {
            Ok(versions)
        }
    }

    fn provider(&self) -> Result<CryptoProvider, String> {
        let mut provider = ring::default_provider();
        if self.ciphers.is_empty() {
            return Ok(provider);
        }
        let all = provider.cipher_suites.clone();
        let names: Vec<String> =
            all.iter().map(|it| java_name(&format!("{:?}", it.suite()))).collect();
        if let Some(other) = self.ciphers.iter().find(|it| !names.contains(it)) {
            return Err(format!("ssl.cipher.suites: {other} is none of {}", names.join(", ")));
        }
        provider.cipher_suites = all
            .into_iter()
            .zip(names)
            .filter(|(_, name)| self.ciphers.contains(name))
            .map(|(suite, _)| suite)
            .collect();
        Ok(provider)
    }
}

/// Returns Java's name of a cipher suite: that of the RFC, without the number of the version.
fn java_name(name: &str) -> String {
    name.strip_prefix("TLS13_").map_or_else(|| name.to_owned(), |rest| format!("TLS_{rest}"))
}

/// Refuses a certificate before and after its time.
fn check_time(certificate: &CertificateDer<'_>) -> Result<(), String> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let validity = parsed.validity();
    if validity.is_valid() {
        return Ok(());
    }
    let (from, to) = (validity.not_before, validity.not_after);
    Err(format!("the certificate is valid from {from} to {to} only"))
}

/// Times at which the files of a listener were changed.
type Changed = [Option<SystemTime>; 3];

/// Files of a listener, read.
#[derive(Debug)]
struct Loaded {
    accepting: Arc<ServerConfig>,
    /// None unless the listener's node dials with the same files.
    dialling: Option<Arc<ClientConfig>>,
    identity: Identity,
}

/// Files of a listener as they were read last.
#[derive(Debug)]
struct Current {
    loaded: Loaded,
    changed: Changed,
}

/// Certificates of a listener, which may change while the process runs.
#[derive(Debug)]
pub struct Certificates {
    settings: TlsSettings,
    current: RwLock<Current>,
}

impl Certificates {
    /// Reads the files.
    pub fn open(settings: TlsSettings) -> Result<Self, String> {
        let changed = settings.changed();
        let loaded = settings.read()?;
        Ok(Self { settings, current: RwLock::new(Current { loaded, changed }) })
    }

    /// Returns the name of the listener.
    fn listener(&self) -> &str {
        &self.settings.listener
    }

    /// Returns the configuration for a connection that begins now.
    pub fn current(&self) -> Sealing {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let config = Arc::clone(&current.loaded.accepting);
        Sealing { config, names: self.settings.names.clone() }
    }

    /// Returns the configurations for a node that dials now, and for one that is dialled.
    ///
    /// # Panics
    ///
    /// If the settings are not those of nodes.
    pub(super) fn between_nodes(&self) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let Loaded { accepting, dialling, .. } = &current.loaded;
        let dialling = dialling.as_ref().expect("nodes show their certificates both ways");
        (Arc::clone(accepting), Arc::clone(dialling))
    }

    /// Returns the name of the node that shows a certificate.
    pub(super) fn name_of_node(&self, certificate: &CertificateDer<'_>) -> io::Result<String> {
        names::ensure_of_node(certificate)?;
        principal_of(certificate, &self.settings.names)
    }

    /// Reads the files again, if they have changed since. True if new connections get another certificate from now on.
    /// After a mistake the last good one stays, and the mistake is told once.
    fn refresh(&self) -> Result<bool, String> {
        let changed = self.settings.changed();
        if self.current.read().unwrap_or_else(PoisonError::into_inner).changed == changed {
            return Ok(false);
        }
        let loaded = self.settings.read();
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.changed = changed;
        let loaded = loaded?;
        self.settings.check_names(&current.loaded.identity, &loaded.identity)?;
        current.loaded = loaded;
        Ok(true)
    }
}

/// Certificates of all listeners, and what became of their changes.
#[derive(Debug)]
pub struct Keeper {
    certificates: Vec<Arc<Certificates>>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Begins with these certificates.
    pub fn new(certificates: Vec<Arc<Certificates>>, metrics: Arc<Metrics>) -> Self {
        Self { certificates, metrics }
    }

    /// Looks for changed files, and says what came of each change.
    pub fn refresh(&self) {
        for it in &self.certificates {
            let listener = it.listener();
            match it.refresh() {
                Ok(false) => {}
                Ok(true) => tracing::info!(listener, "new connections get the new certificate"),
                Err(error) => {
                    self.metrics.network.tls_reload_failed.inc();
                    tracing::error!(listener, error, "the last good certificate stays");
                }
            }
        }
    }

    /// Looks again and again.
    pub async fn watch(self: Arc<Self>) {
        while !self.certificates.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
            let keeper = Arc::clone(&self);
            // The files' disk may be slow.
            let _ = tokio::task::spawn_blocking(move || keeper.refresh()).await;
        }
    }
}

/// A connection with TLS.
#[derive(Debug)]
pub struct Tls {
    tcp: TcpStream,
    session: ServerConnection,
    /// True while opened bytes wait that the last read had no room for.
    has_more: bool,
    /// Name in the client's certificate, if it has shown one.
    name: Option<String>,
}

/// Makes the handshake of a client. One whose certificate has no name that can be read is refused: it is somebody, and
/// must not pass for anybody.
pub(super) async fn accept(tcp: TcpStream, sealing: Sealing) -> io::Result<Tls> {
    let Sealing { config, names } = sealing;
    let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
    session.set_buffer_limit(Some(SEALED_BYTES_MAX));
    let mut tls = Tls { tcp, session, has_more: false, name: None };
    let handshake = async {
        while tls.session.is_handshaking() || tls.session.wants_write() {
            if tls.session.wants_write() {
                tls.tcp.writable().await?;
                ignore_wait(tls.write_sealed())?;
            } else {
                tls.tcp.readable().await?;
                if ignore_wait(tls.read_sealed())? == Some(0) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        let shown = tls.session.peer_certificates().and_then(<[_]>::first);
        tls.name = shown.map(|it| principal_of(it, &names)).transpose()?;
        Ok(())
    };
    match tokio::time::timeout(HANDSHAKE_MAX, handshake).await {
        Ok(done) => done.map(|()| tls).map_err(named),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
    }
}

/// Makes the handshake of a client that speaks HTTP. Returns the name in its certificate, too, if it has shown one.
pub(super) async fn accept_http(
    tcp: TcpStream,
    Sealing { config, names }: Sealing,
) -> io::Result<(Wire, Option<String>)> {
    let handshake = TlsAcceptor::from(config).accept(tcp);
    let stream = tokio::time::timeout(HANDSHAKE_MAX, handshake).await;
    let stream = stream.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it took too long"))?;
    let stream = stream.map_err(named)?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let name = shown.map(|it| principal_of(it, &names)).transpose()?;
    Ok((Wire::Sealed(Box::new(TlsStream::Server(stream))), name))
}

/// Names the mistake of a client that sends something else than TLS.
fn named(error: io::Error) -> io::Error {
    let reason = error.get_ref().and_then(|it| it.downcast_ref::<rustls::Error>());
    match reason {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => io::Error::new(
            error.kind(),
            "the client does not speak TLS, and the listener speaks nothing else",
        ),
        _ => error,
    }
}

/// Returns the name that rules make of that in a client's certificate.
fn principal_of(certificate: &CertificateDer<'_>, rules: &NameRules) -> io::Result<String> {
    let name = name_of(certificate)?;
    rules.name(&name).ok_or_else(|| {
        let text = format!("no rule of ssl.principal.mapping.rules fits the name {name}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

fn ignore_wait<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        result => result.map(Some),
    }
}

impl Tls {
    /// Returns the client's name, if it has shown a certificate. Rules make it of the name there, in RFC 2253 as
    /// Java writes it.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the socket.
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Waits until there may be something to read.
    pub(super) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_more { Poll::Ready(Ok(())) } else { self.tcp.poll_read_ready(context) }
    }

    /// Reads opened bytes as far as there is room. 0 is the end, with the client's word or without.
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        space: &mut Limit<&mut bytes::BytesMut>,
    ) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        loop {
            match self.session.reader().fill_buf() {
                Ok([]) => return Poll::Ready(Ok(taken)),
                Ok(opened) => {
                    let count = opened.len().min(space.remaining_mut());
                    space.put_slice(&opened[..count]);
                    self.has_more = count < opened.len();
                    self.session.reader().consume(count);
                    taken += count;
                    if self.has_more || space.remaining_mut() == 0 {
                        self.has_more = true;
                        return Poll::Ready(Ok(taken));
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.has_more = false,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Ok(taken));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            match ignore_wait(self.read_sealed()) {
                Ok(None) if taken > 0 => return Poll::Ready(Ok(taken)),
                Ok(None) => {
                    ready!(self.tcp.poll_read_ready(context))?;
                }
                // The next look at the opened bytes says what the end means.
                Ok(Some(_)) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Takes sealed bytes from the socket, opens them, and answers what TLS itself asks for. Returns the number of
    /// bytes.
    fn read_sealed(&mut self) -> io::Result<usize> {
        let count = self.session.read_tls(&mut Socket(&self.tcp))?;
        let opened = self.session.process_new_packets();
        // An alert, or the answer to a change of keys: a few bytes, which the socket takes or the next write does.
        if self.session.wants_write() {
            ignore_wait(self.write_sealed())?;
        }
        opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(count)
    }

    /// Seals bytes, as many as may wait for room in the socket. Returns the number of bytes taken.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session.writer().write(bytes)
    }

    /// Tells whether sealed bytes wait for room in the socket.
    pub(super) fn has_sealed(&self) -> bool {
        self.session.wants_write()
    }

    /// Gives sealed bytes to the socket. Returns the number of bytes that it took.
    pub(super) fn write_sealed(&mut self) -> io::Result<usize> {
        self.session.write_tls(&mut Socket(&self.tcp))
    }

    /// Says that nothing follows, if the socket takes that.
    pub(super) fn say_goodbye(&mut self) {
        self.session.send_close_notify();
        let _ = self.write_sealed();
    }
}

/// A socket that gives and takes what it can without waiting.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_io(Interest::WRITABLE, || {
            let mut control = SendAncillaryBuffer::default();
            Ok(rustix::net::sendmsg(self.0, bufs, &mut control, SendFlags::NOSIGNAL)?)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate that is valid until a year, and a key.
    fn made(year: i32) -> (String, KeyPair) {
        let mut wanted = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (wanted.not_before, wanted.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
        let key = KeyPair::generate().unwrap();
        (wanted.self_signed(&key).unwrap().pem(), key)
    }

    fn settings(path: &Path) -> TlsSettings {
        TlsSettings {
            listener: "SSL".to_owned(),
            keystore: Pem::File(path.to_owned()),
            key_password: Secret::default(),
            protocols: vec!["TLSv1.3".to_owned()],
            ciphers: Vec::new(),
            clients: ClientAuth::None,
            truststore: Pem::File(PathBuf::new()),
            revoked: PathBuf::new(),
            names: NameRules::read("DEFAULT").unwrap(),
            may_rename: false,
            may_lack_names: false,
            peers: Peers::Clients,
        }
    }

    #[test]
    fn files_and_settings_that_are_wrong_are_refused_by_what_is_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (good, key) = made(3000);
        let (old, old_key) = made(2021);
        let load = |text: &str, change: fn(&mut TlsSettings)| {
            std::fs::write(file.path(), text).unwrap();
            let mut settings = settings(file.path());
            change(&mut settings);
            settings.load()
        };
        let both = good.clone() + &key.serialize_pem();
        assert_eq!(load(&both, |_| ()), Ok(()));
        let ciphers = |it: &mut TlsSettings| it.ciphers = vec!["TLS_AES_128_GCM_SHA256".into()];
        assert_eq!(load(&both, ciphers), Ok(()));
        // Made by `openssl pkcs8 -topk8` of OpenSSL 3 of a key for nobody, with the password "secret".
        let encrypted = good.clone() + include_str!("tls/encrypted.pem");
        let wrong_password: fn(&mut TlsSettings) = |it| it.key_password = Secret("x".into());
        let old_version: fn(&mut TlsSettings) = |it| it.protocols = vec!["TLSv1.1".into()];
        let unknown: fn(&mut TlsSettings) = |it| it.ciphers = vec!["TLS_NULL".into()];
        let unfit: fn(&mut TlsSettings) = |it| {
            it.ciphers = vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".into()];
        };
        let untrusting: fn(&mut TlsSettings) = |it| it.clients = ClientAuth::Required;
        let gone: fn(&mut TlsSettings) = |it| it.keystore = Pem::File("/none.pem".into());
        let nothing: fn(&mut TlsSettings) = |_| ();
        for (text, change, problem) in [
            (both.as_str(), gone, "No such file"),
            ("", nothing, "there is no certificate"),
            (&good, nothing, "there is no private key"),
            (&encrypted, nothing, "ssl.key.password has its password"),
            (&encrypted, wrong_password, "does not open the private key"),
            (&(good.clone() + &old_key.serialize_pem()), nothing, "do not fit"),
            (&(old + &old_key.serialize_pem()), nothing, "is valid from"),
            (&both, untrusting, "needs ssl.truststore.location"),
            (&both, old_version, "TLSv1.1 is neither"),
            (&both, unknown, "TLS_NULL is none of"),
            (&both, unfit, "fit no protocol"),
        ] {
            let error = load(text, change).unwrap_err();
            assert!(error.contains(problem), "{problem}: {error}");
        }
    }

    #[test]
    fn a_password_opens_an_encrypted_key_and_settings_may_be_the_text() {
        let encrypted = include_str!("tls/encrypted.pem");
        let key = private_key(encrypted.as_bytes(), &Secret("secret".into())).unwrap();
        let key = KeyPair::from_der_and_sign_algo(&key, &rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let wanted = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let text = wanted.self_signed(&key).unwrap().pem() + encrypted;
        let settings = TlsSettings {
            keystore: Pem::Text("ssl.keystore.certificate.chain", Secret(text.into())),
            key_password: Secret("secret".into()),
            ..settings(Path::new(""))
        };
        assert_eq!(settings.load(), Ok(()));
        assert!(!format!("{settings:?}").contains("BEGIN"), "nobody is shown a key");
    }

    #[test]
    fn after_a_mistake_the_last_good_certificate_stays() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str, at: u64| {
            std::fs::write(file.path(), text).unwrap();
            let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            std::fs::File::open(file.path()).unwrap().set_modified(changed).unwrap();
        };
        let text = || {
            let (certificate, key) = made(3000);
            certificate + &key.serialize_pem()
        };
        write(&text(), 1);
        let it = Certificates::open(settings(file.path())).unwrap();
        let first = it.current();
        assert_eq!(it.refresh(), Ok(false));
        write("half", 2);
        assert!(it.refresh().is_err());
        assert_eq!(it.refresh(), Ok(false), "a mistake is told once");
        assert!(Arc::ptr_eq(&first.config, &it.current().config));
        write(&text(), 3);
        assert_eq!(it.refresh(), Ok(true));
        assert!(!Arc::ptr_eq(&first.config, &it.current().config));
    }

    #[test]
    fn a_new_certificate_has_the_names_of_the_one_before_unless_others_are_meant() {
        let identity = |subject: &str, alternatives: &[&str]| Identity {
            subject: subject.to_owned(),
            alternatives: alternatives.iter().map(|it| (*it).to_owned()).collect(),
        };
        let before = identity("CN=a", &["x", "y"]);
        let strict = settings(Path::new(""));
        assert_eq!(strict.check_names(&before, &identity("CN=a", &["x", "y", "z"])), Ok(()));
        let (renamed, lacking) = (identity("CN=b", &["x", "y"]), identity("CN=a", &["x"]));
        assert!(
            strict.check_names(&before, &renamed).unwrap_err().contains("ssl.allow.dn.changes")
        );
        assert!(strict.check_names(&before, &lacking).unwrap_err().contains("lacks the name y"));
        let lax = TlsSettings { may_rename: true, may_lack_names: true, ..strict };
        assert_eq!(lax.check_names(&before, &renamed), Ok(()));
        assert_eq!(lax.check_names(&before, &lacking), Ok(()));
        let (certificate, _) = made(3000);
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let identity = identity_of(&certificate).unwrap();
        assert_eq!(identity.subject, "CN=rcgen self signed cert");
        assert_eq!(identity.alternatives.len(), 1, "{identity:?}");
    }
}
