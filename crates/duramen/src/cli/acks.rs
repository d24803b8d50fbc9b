//! The option `--acks` of commands that append.

use clap::ValueEnum;
use duramen_client::Acknowledgement;

/// Acknowledgement that an append waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Acks {
    /// Enough replicas have the record on disk
    All,
    /// The leader has the record
    #[value(name = "1")]
    Leader,
    /// The client does not wait
    #[value(name = "0")]
    None,
}

impl From<Acks> for Acknowledgement {
    fn from(acks: Acks) -> Self {
        match acks {
            Acks::All => Self::All,
            Acks::Leader => Self::Leader,
            Acks::None => Self::None,
        }
    }
}
