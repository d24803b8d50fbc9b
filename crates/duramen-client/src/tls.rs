//! TLS towards brokers.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Trust in brokers, by the authorities of their certificates.
#[derive(Clone)]
pub struct Tls(TlsConnector);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Reads the certificates of a file, at least one.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read(path).map_err(|error| about(path, error))?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match all.map_err(|error| about(path, error))? {
        none if none.is_empty() => Err(about(path, "there is no certificate in PEM")),
        all => Ok(all),
    }
}

fn about(path: &Path, problem: impl fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {problem}", path.display()))
}

impl Tls {
    /// Trusts brokers whose certificates descend from one of those in a file in PEM, and have the host in the broker's
    /// address among their names. `own` are the files of the client's certificate and of its key, both in PEM; they may
    /// be one.
    pub fn trusting(authorities: &Path, own: Option<(&Path, &Path)>) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities)? {
            roots.add(certificate).map_err(|error| about(authorities, error))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some((path, key_path)) => {
                let key = PrivateKeyDer::from_pem_file(key_path);
                let key = key.map_err(|error| about(key_path, error))?;
                let config = config.with_client_auth_cert(certificates(path)?, key);
                config.map_err(|error| about(path, error))?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Makes the handshake with the broker, or the port of HTTP/1.1, at `HOST:PORT`.
    pub async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        Self::shake(&self.0, address, stream).await
    }

    /// Makes the handshake with a port of HTTP/2 at `HOST:PORT` (ALPN, RFC 7301).
    pub async fn connect_http2(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::clone(self.0.config());
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self::shake(&TlsConnector::from(Arc::new(config)), address, stream).await
    }

    async fn shake(
        connector: &TlsConnector,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        connector.connect(name, stream).await
    }
}
