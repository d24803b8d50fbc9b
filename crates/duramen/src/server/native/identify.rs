//! The client of a call. Until there is authentication, every client is anonymous.

use std::net::SocketAddr;

use axum::http::Extensions;

use super::calls::Caller;
use crate::server::connection::host_of;

/// Address of the connection of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// Returns the client of a request.
pub(crate) fn caller_of(extensions: &Extensions, agent: Option<&str>) -> Caller {
    let host = match extensions.get::<Peer>() {
        Some(Peer(address)) => host_of(*address),
        None => "/unknown".into(),
    };
    Caller { principal: "User:ANONYMOUS".into(), host, client_id: agent.map(str::to_owned) }
}
