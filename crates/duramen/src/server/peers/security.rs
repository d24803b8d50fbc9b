//! The way in which nodes know each other: with TLS both ends show a certificate, and check the other's.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::config::HostPort;
use crate::server::settings::{NodeMode, NodeSecurity};
use crate::server::tls::{Certificates, Wire};

/// Longest time of a handshake, and until the first byte.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// First byte of a TLS record of a handshake (RFC 8446, 5.1). A greeting begins with a length below 16 MiB: with 0.
const TLS_HANDSHAKE: u8 = 0x16;

/// See above.
#[derive(Debug)]
pub struct Security {
    mode: NodeMode,
    /// Certificate of this node, and the authorities of the others'. `None` only where nodes speak plain.
    certificates: Option<Arc<Certificates>>,
    /// Names that nodes may have. Empty for all that the authorities vouch for.
    principals: Vec<String>,
}

impl Security {
    /// Reads the files.
    pub fn open(settings: &NodeSecurity) -> Result<Self, String> {
        let NodeSecurity { mode, tls, principals } = settings.clone();
        let certificates = tls.map(Certificates::open).transpose()?.map(Arc::new);
        Ok(Self { mode, certificates, principals })
    }

    /// Returns the certificates, which may change while the process runs.
    pub fn certificates(&self) -> Option<Arc<Certificates>> {
        self.certificates.clone()
    }

    /// Begins a connection that another node opened.
    pub(super) async fn accept(&self, tcp: TcpStream) -> anyhow::Result<Wire> {
        let mut first = [0];
        let read = timeout(HANDSHAKE_MAX, tcp.peek(&mut first)).await;
        let is_sealed = read.context("it says nothing")?? == 1 && first[0] == TLS_HANDSHAKE;
        match (self.mode, is_sealed) {
            (NodeMode::Plain, true) => {
                bail!("it speaks TLS, and node.security is plain here: accept takes both")
            }
            (NodeMode::Tls, false) => {
                bail!("it does not speak TLS, and node.security is tls here: accept takes both")
            }
            (_, false) => return Ok(Wire::Plain(tcp)),
            (_, true) => {}
        }
        let certificates = self.own()?;
        let (config, _) = certificates.between_nodes();
        let handshake = timeout(HANDSHAKE_MAX, TlsAcceptor::from(config).accept(tcp)).await;
        let stream = handshake.context("the TLS handshake took too long")?;
        let stream = stream.context("the TLS handshake failed")?;
        self.check(certificates, stream.get_ref().1.peer_certificates())?;
        Ok(Wire::Sealed(Box::new(TlsStream::Server(stream))))
    }

    /// Begins a connection to another node. `connect` makes a socket, once more if the node must be asked without TLS.
    pub(super) async fn dial(
        &self,
        at: &HostPort,
        connect: impl AsyncFn(&HostPort) -> anyhow::Result<TcpStream>,
    ) -> anyhow::Result<Wire> {
        let tcp = connect(at).await?;
        if self.mode == NodeMode::Plain {
            return Ok(Wire::Plain(tcp));
        }
        match self.seal(at, tcp).await {
            Err(error) if self.mode == NodeMode::Accept && !is_late(&error) => {
                let tcp = connect(at).await?;
                tracing::warn!(
                    address = %at,
                    "a node is dialled without TLS, as node.security=accept allows; the reason: {error:#}"
                );
                Ok(Wire::Plain(tcp))
            }
            sealed => sealed,
        }
    }

    async fn seal(&self, at: &HostPort, tcp: TcpStream) -> anyhow::Result<Wire> {
        let certificates = self.own()?;
        let (_, config) = certificates.between_nodes();
        let name = ServerName::try_from(at.host.clone())
            .with_context(|| format!("no certificate can have the name {}", at.host))?;
        let handshake = TlsConnector::from(config).connect(name, tcp);
        let stream = timeout(HANDSHAKE_MAX, handshake).await.map_err(io::Error::from)?;
        let stream = stream.context("the TLS handshake failed")?;
        self.check(certificates, stream.get_ref().1.peer_certificates())?;
        Ok(Wire::Sealed(Box::new(TlsStream::Client(stream))))
    }

    fn own(&self) -> anyhow::Result<&Certificates> {
        self.certificates.as_deref().context("this node has no certificate")
    }

    /// Refuses a certificate that an authority made for somebody else than a node.
    fn check(
        &self,
        certificates: &Certificates,
        shown: Option<&[CertificateDer<'static>]>,
    ) -> anyhow::Result<()> {
        let shown =
            shown.and_then(<[_]>::first).ok_or_else(|| anyhow!("it shows no certificate"))?;
        let name = format!("User:{}", certificates.name_of_node(shown)?);
        ensure!(
            self.principals.is_empty() || self.principals.contains(&name),
            "{name} is not in node.principals"
        );
        Ok(())
    }
}

/// Tells whether a node gave no answer: it may be frozen, and would give none without TLS.
fn is_late(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|it| it.kind() == io::ErrorKind::TimedOut)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    use tempfile::TempDir;
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{Config, ServerArgs};
    use crate::server::settings::ServerSettings;

    const BOTH: [ExtendedKeyUsagePurpose; 2] =
        [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

    /// Writes an authority `NAME-ca.pem`, and certificates that it signs: (file, host, usages).
    fn write(dir: &Path, name: &str, certificates: &[(&str, &str, &[ExtendedKeyUsagePurpose])]) {
        let mut wanted = CertificateParams::default();
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        wanted.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let made = wanted.self_signed(&key).unwrap();
        std::fs::write(dir.join(format!("{name}-ca.pem")), made.pem()).unwrap();
        let authority = Issuer::new(wanted, key);
        for (file, host, usages) in certificates {
            let mut wanted = CertificateParams::new([(*host).to_owned()]).unwrap();
            wanted.distinguished_name.push(DnType::CommonName, *file);
            wanted.extended_key_usages = usages.to_vec();
            let key = KeyPair::generate().unwrap();
            let made = wanted.signed_by(&key, &authority).unwrap();
            let text = made.pem() + &key.serialize_pem();
            std::fs::write(dir.join(format!("{file}.pem")), text).unwrap();
        }
    }

    /// Makes certificates: those of nodes one, two and elsewhere, of a client, and of a stranger.
    pub(in super::super) fn files() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let here = "127.0.0.1";
        let client = [ExtendedKeyUsagePurpose::ClientAuth];
        let ours: [(&str, &str, &[_]); 4] = [
            ("one", here, &BOTH),
            ("two", here, &BOTH),
            ("elsewhere", "10.0.0.1", &BOTH),
            ("client", here, &client),
        ];
        write(dir.path(), "ours", &ours);
        write(dir.path(), "theirs", &[("stranger", here, &BOTH)]);
        dir
    }

    /// Returns the security of a node with a mode, a certificate and names that nodes may have.
    pub(in super::super) fn security(
        dir: &Path,
        mode: &str,
        certificate: &str,
        principals: &str,
    ) -> Security {
        let path = |name: &str| dir.join(name).display().to_string();
        let own = "listener.name.nodes.ssl";
        let settings = vec![
            "node.id=1".to_owned(),
            "controller.quorum.voters=1@127.0.0.1:1,2@127.0.0.1:2".to_owned(),
            format!("node.security={mode}"),
            format!("node.principals={principals}"),
            format!("{own}.keystore.location={}", path(&format!("{certificate}.pem"))),
            format!("{own}.truststore.location={}", path("ours-ca.pem")),
        ];
        let args = ServerArgs { settings, ..ServerArgs::default() };
        let config = Config::load(None, &args, []).unwrap();
        let (settings, _) = ServerSettings::split(&config).unwrap();
        Security::open(&settings.node_security).unwrap()
    }

    /// Connects one to the other. Returns how: each end says "TLS", "plain", or what it complains of.
    async fn meet(here: Security, there: Security) -> (String, String) {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let told = |ended: anyhow::Result<Wire>| match ended {
            Ok(stream) if stream.is_sealed() => "TLS".to_owned(),
            Ok(_) => "plain".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        let hearing = tokio::spawn(async move {
            loop {
                let accepted = here.accept(socket.accept().await.unwrap().0).await;
                let is_asked_again = accepted
                    .as_ref()
                    .is_err_and(|error| error.to_string().contains("is plain here"));
                if !is_asked_again {
                    return told(accepted);
                }
            }
        });
        let at = HostPort { host: "127.0.0.1".to_owned(), port };
        let mut dialled = there
            .dial(&at, async |at: &HostPort| {
                Ok(TcpStream::connect((at.host.as_str(), at.port)).await?)
            })
            .await;
        if let Ok(Wire::Plain(tcp)) = &mut dialled {
            tcp.writable().await.unwrap();
            tcp.try_write(&[0, 0]).unwrap();
        }
        let dialled_told = match &dialled {
            Err(error) if error.to_string().contains("handshake") => {
                hearing.abort();
                return (String::new(), format!("{error:#}"));
            }
            _ => told(dialled),
        };
        (hearing.await.unwrap(), dialled_told)
    }

    #[tokio::test]
    async fn nodes_of_each_mode_meet_or_say_why_not() {
        let dir = files();
        let (plain, tls) = (("plain", "plain"), ("TLS", "TLS"));
        for (here, there, (heard, dialled)) in [
            ("plain", "plain", plain),
            ("plain", "accept", plain),
            ("plain", "tls", ("", "handshake")),
            ("accept", "plain", plain),
            ("accept", "accept", tls),
            ("accept", "tls", tls),
            ("tls", "plain", ("it does not speak TLS", "plain")),
            ("tls", "accept", tls),
            ("tls", "tls", tls),
        ] {
            let of = |mode, file| security(dir.path(), mode, file, "");
            let met = meet(of(here, "one"), of(there, "two")).await;
            let as_expected = met.0.contains(heard) && met.1.contains(dialled);
            assert!(as_expected, "{there} dials {here}: {met:?}");
        }
    }

    #[tokio::test]
    async fn nobody_but_a_node_is_heard_or_dialled() {
        let dir = files();
        let of = |file, principals| security(dir.path(), "tls", file, principals);
        for (here, there, complaint) in [
            (of("one", ""), of("stranger", ""), "handshake failed"),
            (of("stranger", ""), of("one", ""), "handshake failed"),
            (of("one", ""), of("client", ""), "CN=client is for clients alone"),
            (of("elsewhere", ""), of("one", ""), "not valid for name"),
            (of("one", "User:CN=one"), of("two", ""), "User:CN=two is not in node.principals"),
            (of("two", ""), of("one", "User:CN=one"), "User:CN=two is not in node.principals"),
        ] {
            let (heard, dialled) = meet(here, there).await;
            assert!(
                (heard.clone() + &dialled).contains(complaint),
                "{complaint}: {heard} {dialled}"
            );
        }
        let names = "User:CN=one;User:CN=two";
        let met = meet(of("one", names), of("two", names)).await;
        assert_eq!(met, ("TLS".to_owned(), "TLS".to_owned()));
    }
}
