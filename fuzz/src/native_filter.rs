//! Any text as a filter and as a projection: it is refused, or evaluated within its bounds.

use duramen::server::fuzzing::filter;

/// Evaluates a text on a fixed element. Panics on a find.
pub fn run(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        filter(text);
    }
}
