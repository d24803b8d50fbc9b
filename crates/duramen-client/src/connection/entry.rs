//! The way in, one request at a time: a socket, TLS, the broker's versions, the login.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use duramen_protocol::api::{Api, OWN_SOFTWARE};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::ApiVersionsRequest;
use duramen_protocol::wire::Versions;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::framing::{common_version, decode, frame_of, read_frame};
use crate::call::Call;
use crate::error::Error;
use crate::options::Options;

/// `ApiVersions` 3 is the first whose answer a broker of any age gives in a form that is understood.
const FIRST_API_VERSIONS: i16 = 3;

/// Socket of a client, without TLS or with it.
pub type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection on which nobody else sends yet.
pub(super) struct Entry<'a> {
    pub(super) wire: Wire,
    pub(super) address: &'a str,
    options: &'a Options,
    pub(super) correlation: i32,
    pub(super) versions: BTreeMap<i16, Versions>,
}

impl<'a> Entry<'a> {
    /// Connects to `HOST:PORT`, learns which versions the broker speaks, and shows who the client is.
    pub(super) async fn make(address: &'a str, options: &'a Options) -> Result<Self, Error> {
        let unreachable = |source| Error::Unreachable { address: address.to_owned(), source };
        let until = Instant::now() + options.request_timeout;
        let late = |_| unreachable(io::ErrorKind::TimedOut.into());
        let stream = timeout_at(until, TcpStream::connect(address)).await;
        let stream = stream.map_err(late)?.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let wire = match &options.tls {
            None => Either::Left(stream),
            Some(tls) => {
                let stream = timeout_at(until, tls.connect(address, stream)).await;
                let untrusted = |source| Error::NoTls { address: address.to_owned(), source };
                Either::Right(Box::new(stream.map_err(late)?.map_err(untrusted)?))
            }
        };
        let mut entry = Self { wire, address, options, correlation: 0, versions: BTreeMap::new() };
        entry.negotiate().await?;
        if let Some(login) = &options.login {
            entry.log_in(login).await?;
        }
        Ok(entry)
    }

    /// Sends a request and waits for its response.
    pub(super) async fn call<C: Call>(&mut self, request: &C) -> Result<C::Response, Error> {
        let version = common_version::<C>((self.address, &self.versions), request.version_max())?;
        self.call_in(request, version).await
    }

    async fn call_in<C: Call>(&mut self, request: &C, version: i16) -> Result<C::Response, Error> {
        let (address, api) = (self.address, Api::of(C::API));
        let correlation = self.correlation;
        self.correlation += 1;
        let frame = frame_of(self.options, request, version, correlation)?;
        let wire = &mut self.wire;
        let exchange = async {
            wire.write_all(&frame).await?;
            // A stream with TLS keeps bytes back until it is flushed.
            wire.flush().await?;
            read_frame(wire).await
        };
        let timeout: Duration = self.options.request_timeout;
        let Ok(answer) = timeout_at(Instant::now() + timeout, exchange).await else {
            return Err(Error::TimedOut { address: address.to_owned(), api: api.name, timeout });
        };
        let lost = |reason| Error::Lost { address: address.to_owned(), reason };
        match answer.map_err(|error| lost(error.to_string()))? {
            None => Err(lost("the broker closed it".to_owned())),
            Some((number, _)) if number != correlation => {
                Err(lost(format!("answer {number} came for request {correlation}")))
            }
            Some((_, body)) => decode(body, api, version, address),
        }
    }

    async fn negotiate(&mut self) -> Result<(), Error> {
        let request = ApiVersionsRequest {
            client_software_name: OWN_SOFTWARE.into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
        };
        let mut response = self.call_in(&request, FIRST_API_VERSIONS).await?;
        if response.error_code == ErrorCode::UnsupportedVersion.code() {
            // Older than Apache Kafka 2.4.
            response = self.call_in(&request, 0).await?;
        }
        Error::check(|| format!("versions of {}", self.address), response.error_code, None)?;
        for row in response.api_keys {
            self.versions.insert(row.api_key, Versions::between(row.min_version, row.max_version));
        }
        Ok(())
    }
}

/// Connects to `HOST:PORT` and shows who the client is, for frames that the caller makes itself.
pub(crate) async fn enter(address: &str, options: &Options) -> Result<Wire, Error> {
    Ok(Entry::make(address, options).await?.wire)
}
