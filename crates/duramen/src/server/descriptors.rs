//! Descriptors of the process: their limit, and who gets how many.

use rustix::process::Resource;

/// Descriptors that are neither a connection's nor a segment's: the journal's, and some more.
const OTHER_FILES: u64 = 64;

/// Returns the largest number of connections and the largest number of partitions' files, by the limit of descriptors.
/// Connections always get a third, because a reload may raise their limit.
pub(super) fn share_descriptors() -> (usize, usize) {
    let all = raise_file_limit().saturating_sub(OTHER_FILES);
    let all = usize::try_from(all).unwrap_or(usize::MAX);
    (all / 3, all - all / 3)
}

/// Raises the limit of open files as far as the system allows, and returns the new limit. Each partition written to
/// since its last checkpoint keeps a segment open.
pub(super) fn raise_file_limit() -> u64 {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    let before = limit.current;
    limit.current = limit.maximum;
    match rustix::process::setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files (ulimit -n)");
            before.unwrap_or(u64::MAX)
        }
    }
}
