//! duramen-protocol
