//! A node driven by hand: every test is a sentence about what a client sees.

mod fetch;
mod harness;
mod misc;
mod produce;
mod restart;
mod retention;
mod topics;
mod versions;
