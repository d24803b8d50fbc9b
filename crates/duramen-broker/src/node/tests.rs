//! A node driven by hand: every test is a sentence about what a client sees.

mod admin;
mod cluster;
mod coordinators;
mod fetch;
mod followers;
mod forwarding;
mod groups;
mod harness;
mod internal_topics;
mod leaders;
mod members;
mod metadata_log;
mod misc;
mod moves;
mod peers;
mod produce;
mod quotas;
mod restart;
mod retention;
mod settings;
mod stalls;
mod topics;
mod trio;
mod versions;
