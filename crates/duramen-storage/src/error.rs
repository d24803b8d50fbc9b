//! # Room card: error
//!
//! Purpose:    the reasons for which storage stops.
//! Owns:       [`Error`].
//! Interface:  the type, and [`disk_error`] to make one.
//! Never:      errors of reads, which do not stop storage (see `reader`).
//! Start at:   [`Error`].

use std::io;

/// Why storage stopped. The process must end: only the next start may trust the disk again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read, write, sync, create, rename or remove failed.
    #[error("the disk failed at {doing} {path}")]
    Disk {
        /// Name of the operation that failed.
        doing: &'static str,
        /// Path of the operation, relative to the data directory.
        path: String,
        /// The disk's answer.
        #[source]
        source: io::Error,
    },
    /// The directory is not ours, or of a version this build does not know.
    #[error("{0}")]
    Foreign(String),
    /// Bytes that were durable are gone or changed, and replay cannot go on without them.
    #[error(
        "{path} is damaged at byte {at}: {what}; nothing was changed. In a cluster whose other nodes are well, start this one with an empty data directory and --replace: it gets what it had from them. Else see docs/operations.md, \"A damaged journal\""
    )]
    Damaged {
        /// The file, relative to the data directory.
        path: String,
        /// Position of the damage.
        at: u64,
        /// Description of the damage.
        what: String,
    },
}

/// Makes the error of a failed disk operation.
pub(crate) fn disk_error(doing: &'static str, path: &str, source: io::Error) -> Error {
    Error::Disk { doing, path: path.to_owned(), source }
}
