//! Any bytes as the body of each request in JSON: it is refused, or the node's operation is made of it.

use duramen::server::fuzzing::json_requests;

/// Reads a body as each request. Panics on a find.
pub fn run(data: &[u8]) {
    json_requests(data);
}
