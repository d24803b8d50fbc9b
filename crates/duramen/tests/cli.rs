//! The client commands of the real binary, against the real binary's server.
#![expect(clippy::unwrap_used, reason = "a test's own failure is a failure")]

#[path = "cli/backup.rs"]
mod backup;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/cluster.rs"]
mod cluster;
#[path = "cli/consume.rs"]
mod consume;
#[path = "cli/every_command.rs"]
mod every_command;
#[path = "cli/group.rs"]
mod group;
#[path = "cli/help.rs"]
mod help;
#[path = "cli/log.rs"]
mod log;
#[path = "cli/node.rs"]
mod node;
#[path = "cli/produce.rs"]
mod produce;
#[path = "cli/share.rs"]
mod share;
#[path = "cli/topic.rs"]
mod topic;
#[path = "cli/txn.rs"]
mod txn;
