//! # Room card: compacting
//!
//! Purpose:    replace segments of a log with those that compaction made.
//! Owns:       the check that the new segments still fit, the record of the switch, the switch of readers, the removal
//!             of old files.
//! Interface:  [`Storage::install`].
//! Invariants: one record switches all segments. Storage shows the new segments to readers, and removes the old files,
//!             only when the record is durable. So a crash leaves all of the old files or all of the new ones. The
//!             journal does not need the replaced segments, and no Raft conflict reaches them. A snapshot behind them
//!             is durable, or becomes so in the same round.
//! Never:      I/O, but for the removal of new files that no longer fit.
//! Tests:      `duramen-sim/tests/promises/compaction.rs`.
//! Start at:   [`Storage::install`].

use std::sync::Arc;

use super::{Round, Storage};
use crate::Disk;
use crate::catalog::Segment;
use crate::compaction::Made;
use crate::op::{Compacted, Done};
use crate::record::Record;
use crate::replica_state::{Replacement, SegmentState};
use crate::sabotage::{self, Bug};

impl<D: Disk> Storage<D> {
    /// Takes the result of a compaction, and reports by [`Done::Compacted`].
    pub fn install(&mut self, made: Made<D>) {
        self.installing.push_back(made);
    }

    pub(super) fn take_installing(&mut self, round: &mut Round<D>, buffer: &mut Vec<u8>) {
        let most = self.journal.body_bytes_max() / 2;
        while buffer.len() < most {
            let Some(made) = self.installing.pop_front() else { break };
            let Some(replacement) = self.replacement_of(&made) else {
                self.decline(&made);
                continue;
            };
            let id = made.replica;
            let replica = self.replicas.get_mut(&id).expect("it was just found");
            let is_replaced = replica.state.replace(&replacement);
            assert!(is_replaced, "what was compacted was just seen to fit");
            for (old, _) in made.run.iter().filter(|(old, _)| !made.kept.contains(&old.base_offset))
            {
                replica.dirty.remove(&old.base_offset);
            }
            let replacement = Box::new(replacement);
            Record::Compacted { replica: id, replacement }.encode(buffer);
            self.touch(round, id);
            if sabotage::is(Bug::CompactedShownEarly) {
                self.finish_installs(vec![made]);
            } else {
                round.installs.push(made);
            }
        }
    }

    /// Returns the record's content, if the log is still the one that was compacted.
    fn replacement_of(&self, made: &Made<D>) -> Option<Replacement> {
        let replica = self.replicas.get(&made.replica).filter(|it| !it.deleting)?;
        let shown = replica.files.segments();
        let is_shown = |(at, (old, cuts)): (usize, &(Arc<Segment<D>>, u64))| {
            shown.get(at).is_some_and(|it| Arc::ptr_eq(it, old)) && old.cuts() == *cuts
        };
        let below = made.compacted.below;
        let known: Vec<&SegmentState> =
            replica.state.segments.iter().take_while(|it| it.base_offset < below).collect();
        let is_known = known.len() == made.run.len()
            && known.iter().zip(&made.run).all(|(known, (old, _))| {
                (known.base_offset, known.generation) == (old.base_offset, old.generation)
            });
        let is_news = made.compacted.index > replica.state.compacted.index;
        if !made.run.iter().enumerate().all(is_shown) || !is_known || !is_news {
            return None;
        }
        let last = replica.state.last_taken(&made.compacted)?;
        let mut segments = made.segments.clone();
        for segment in &mut segments {
            let known = known.iter().find(|it| it.base_offset == segment.base_offset)?;
            segment.first_index = known.first_index;
        }
        let kept = known.iter().filter(|it| made.kept.contains(&it.base_offset));
        segments.extend(kept.map(|it| (*it).clone()));
        segments.sort_by_key(|it| it.base_offset);
        Some(Replacement { compacted: made.compacted, last, segments })
    }

    /// Drops the result of a compaction that does not fit any more, and removes its files.
    fn decline(&mut self, made: &Made<D>) {
        for path in &made.paths {
            // Else the next start removes it.
            let _ = self.disk.remove_file(path);
        }
        self.done.push(Done::Compacted { replica: made.replica, done: None });
    }

    /// Shows readers the new segments, once the record that names them is durable.
    pub(super) fn finish_installs(&mut self, installs: Vec<Made<D>>) {
        for made in installs {
            let Some(replica) = self.replicas.get_mut(&made.replica).filter(|it| !it.deleting)
            else {
                continue; // its directory goes as a whole
            };
            let (id, dir) = (made.replica, replica.state.dir());
            let Compacted { index, below, .. } = made.compacted;
            let stays = |it: &Segment<D>| made.kept.contains(&it.base_offset);
            // Trimmed segments are not shown any more.
            let left: Vec<&SegmentState> =
                replica.state.segments.iter().filter(|it| it.base_offset < below).collect();
            let mut shown = Vec::with_capacity(left.len());
            for segment in &left {
                let same = made.run.iter().find(|(old, _)| old.base_offset == segment.base_offset);
                if let Some((same, _)) = same.filter(|(old, _)| stays(old)) {
                    shown.push(Arc::clone(same));
                    continue;
                }
                let later =
                    replica.state.segments.iter().find(|it| it.base_offset > segment.base_offset);
                let end = later.map_or(below, |next| next.base_offset);
                assert_eq!(segment.generation, index, "compaction made the segment");
                shown.push(Segment::recovered(&dir, id, segment, end, segment.size));
            }
            let metas = left.iter().map(|it| it.meta()).collect();
            replica.files.replace(shown, made.compacted);
            self.forget_staged(id, index);
            let replaced: Vec<_> = made.run.iter().filter(|(old, _)| !stays(old)).collect();
            for (old, _) in &replaced {
                self.catalog.note_damaged(id, old.base_offset, false);
            }
            let removed = replaced.iter().flat_map(|(old, _)| old.paths()).map(|path| (id, path));
            self.remove_in_background(removed.collect());
            self.done.push(Done::Compacted { replica: id, done: Some((made.compacted, metas)) });
        }
    }
}
