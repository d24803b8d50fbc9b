//! The client of a call. Each request shows who it is, where the port asks. A node that passes a call on says whose it
//! is; the port for nodes is the only one on which that is believed.

use std::sync::Arc;

use axum::Extension;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use super::calls::{Caller, Origin};
use super::problems::{BUSY, Fault, NOT_AUTHORIZED, UNAUTHENTICATED};
use crate::server::door::{Identity, Refusal, Visitor};

/// Header of a call that is to be passed on no further.
const HOP: &str = "duramen-hop";
/// Metadata of a call that a node passes on: the principal, the address and the name of its client.
const PRINCIPAL: &str = "duramen-principal-bin";
const HOST: &str = "duramen-host-bin";
const CLIENT: &str = "duramen-client-bin";
/// Paths for everybody: supervisors and balancers have no password.
const FOR_ALL: [&str; 3] = ["/livez", "/readyz", "/grpc.health.v1.Health/Check"];
/// Paths for those that may see the cluster.
const OBSERVED: [&str; 2] = ["/metrics", "/healthz"];

/// Lets a request in, if its client shows who it is where it has to.
pub(crate) async fn entered(
    Extension(visitor): Extension<Arc<Visitor>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if visitor.is_asked() && FOR_ALL.contains(&path) {
        return next.run(request).await;
    }
    let is_observed = OBSERVED.contains(&path);
    // Questions to the node are in boxes: else each call would have room for them, for as long as it takes.
    let known = match visitor.unasked() {
        Some(identity) => Ok(identity),
        None => Box::pin(visitor.know(request.headers())).await,
    };
    let identity = match known {
        Ok(identity) => identity,
        Err(refusal) => return refused(&visitor, request.headers(), refusal),
    };
    if is_observed {
        match Box::pin(visitor.may_observe(&identity)).await {
            Ok(true) => {}
            Ok(false) => {
                let text = "the client lacks Describe on the cluster";
                return Fault::new(NOT_AUTHORIZED, text).into_response();
            }
            Err(refusal) => return refused(&visitor, request.headers(), refusal),
        }
    }
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(identity);
    next.run(request).await
}

/// Asks a client who it is, or has it try again.
fn refused(visitor: &Visitor, headers: &HeaderMap, refusal: Refusal) -> Response {
    let fault = match refusal {
        Refusal::Unknown(reason) => Fault::new(UNAUTHENTICATED, reason),
        Refusal::NotNow(why) => Fault::new(BUSY, why.clone()).with("why", why),
    };
    let is_asked = fault.kind == UNAUTHENTICATED;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    if kind.is_some_and(|kind| kind.starts_with("application/grpc")) {
        return Status::from(fault).into_http::<axum::body::Body>();
    }
    let mut response = fault.into_response();
    for challenge in visitor.challenges().into_iter().filter(|_| is_asked) {
        response.headers_mut().append(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Returns the client of a request, and whether the call has been passed on.
pub(crate) fn origin_of(extensions: &axum::http::Extensions, headers: &HeaderMap) -> Origin {
    let visitor = extensions.get::<Arc<Visitor>>().expect("the listener gives each connection one");
    let identity = extensions.get::<Identity>().expect("the client of each request is known");
    let Identity { principal, known, ends } = identity.clone();
    let agent = headers.get(header::USER_AGENT).and_then(|it| it.to_str().ok());
    let (host, client_id) = (Arc::clone(&visitor.host), agent.map(str::to_owned));
    let own = Caller { principal, known, ends, host, client_id };
    if !visitor.is_node {
        return Origin { caller: own, is_passed_on: headers.contains_key(HOP) };
    }
    let metadata = MetadataMap::from_headers(headers.clone());
    let text = |name: &str| {
        let bytes = metadata.get_bin(name)?.to_bytes().ok()?;
        String::from_utf8(bytes.to_vec()).ok()
    };
    let caller = Caller {
        principal: text(PRINCIPAL).map_or(own.principal, Into::into),
        host: text(HOST).map_or(own.host, Into::into),
        client_id: text(CLIENT),
        ..own
    };
    Origin { caller, is_passed_on: true }
}

/// Makes a request that is passed on to another node, in the name of its client.
pub(crate) fn passed_on<T>(origin: &Origin, message: T) -> tonic::Request<T> {
    let Caller { principal, host, client_id, .. } = &origin.caller;
    let mut request = tonic::Request::new(message);
    let all =
        [(PRINCIPAL, Some(&**principal)), (HOST, Some(&**host)), (CLIENT, client_id.as_deref())];
    for (name, text) in all {
        if let Some(text) = text {
            let value = MetadataValue::from_bytes(text.as_bytes());
            request.metadata_mut().insert_bin(name, value);
        }
    }
    request
}
