//! Complete feeds of compacted logs, which wait until their logs begin anew.

use super::Storage;
use crate::op::Done;
use crate::staging::Staged;
use crate::{Disk, ReplicaId};

impl<D: Disk> Storage<D> {
    /// Takes what another replica gave, until the log begins anew with it, and tells of it by [`Done::Staged`].
    pub fn stage(&mut self, staged: Staged) {
        let (replica, number) = (staged.replica, staged.number);
        let here = self.replicas.get(&replica).filter(|it| !it.deleting);
        if here.is_none_or(|it| it.state.compacted.index >= staged.compacted.index) {
            return self.remove_staged(&staged, &[]);
        }
        assert!(!staged.segments.is_empty(), "a feed has a segment");
        let segments = staged.metas();
        if let Some(before) = self.staged.remove(&replica) {
            self.remove_staged(&before, &staged.paths);
        }
        self.staged.insert(replica, staged);
        self.done.push(Done::Staged { replica, number, segments });
    }

    /// Drops the feed of a log that this replica has compacted as far by itself.
    pub(super) fn forget_staged(&mut self, replica: ReplicaId, compaction: u64) {
        let is_old = |staged: &Staged| staged.compacted.index <= compaction;
        if self.staged.get(&replica).is_some_and(is_old)
            && let Some(staged) = self.staged.remove(&replica)
        {
            self.remove_staged(&staged, &[]);
        }
    }

    fn remove_staged(&mut self, staged: &Staged, but: &[String]) {
        for path in staged.paths.iter().filter(|path| !but.contains(path)) {
            // Else the next start removes it.
            let _ = self.disk.remove_file(path);
        }
    }
}
