//! # Room card: server
pub mod disk;
pub mod framing;
pub mod inbox;
