//! A node driven by hand: every test is a sentence about what a client sees.

mod admin;
mod cluster;
mod fetch;
mod harness;
mod leaders;
mod metadata_log;
mod misc;
mod produce;
mod restart;
mod retention;
mod settings;
mod stalls;
mod topics;
mod versions;
