//! A connection between nodes that carries calls from now on.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;

use crate::server::tls::Wire;

/// Content of the message with which both sides agree: the protocol that follows, and its version.
pub(super) const PROTOCOL: &[u8; 8] = b"NATIVE-1";

/// A connection on which another node passes on calls.
pub(crate) struct CallsOfNode {
    /// The connection. It is watched by the runtime that heard the other node.
    pub wire: Wire,
    /// Address of the other node.
    pub address: SocketAddr,
    /// Place of the other node among those that are connected, until it is dropped.
    pub held: Box<dyn Any + Send>,
}

impl fmt::Debug for CallsOfNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallsOfNode").field("address", &self.address).finish_non_exhaustive()
    }
}
