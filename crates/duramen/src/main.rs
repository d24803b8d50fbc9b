//! duramen binary
fn main() {}
