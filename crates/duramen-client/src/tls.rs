//! TLS towards brokers.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
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

impl Tls {
    /// Trusts brokers whose certificates descend from one of those in a file in PEM, and have the host in the broker's
    /// address among their names.
    pub fn trusting(path: &Path) -> io::Result<Self> {
        let about = |problem: String| io::Error::other(format!("{}: {problem}", path.display()));
        let mut roots = RootCertStore::empty();
        let text = std::fs::read(path).map_err(|error| about(error.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| about(error.to_string()))?;
            roots.add(certificate).map_err(|error| about(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(about("there is no certificate in PEM".to_owned()));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Makes the handshake with the broker at `HOST:PORT`.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}
