//! Partitions whose replicas become others: whoever leads one brings its group there, a step at a time, and says so when it
//! is there.

use super::Node;
use crate::event::Now;
use crate::peer::Reassigned;

impl Node {
    /// What is led here and is to be elsewhere comes nearer to it.
    pub(super) fn go_on_reassigning(&mut self, now: Now) {
        let all = self.controller.image.reassignments.iter();
        let all: Vec<_> = all.map(|(place, it)| (*place, it.target.clone())).collect();
        let mut reassigned = Vec::new();
        for ((topic_id, partition), target) in all {
            let Some(topic) = self.controller.image.topic(topic_id) else { continue };
            let Some(replica) = self.local_replica(topic, partition) else { continue };
            let Some(there) = self.partitions.get_mut(&replica) else { continue };
            if there.group.approach(&target, &[]) {
                let voters = there.group.voter_ids().to_vec();
                reassigned.push(Reassigned { topic_id, partition, voters });
            } else {
                self.mark_dirty(replica);
            }
        }
        if self.controller.group.is_serving() {
            self.finish_reassignments(now, &reassigned);
        } else if let Some(leader) = self.metadata_leader() {
            self.peers.frame_to(leader).reassigned.extend(reassigned);
        }
    }

    /// Partitions are where they were to be, as their leader says. All at once: one topic is decided on at a time.
    pub(super) fn finish_reassignments(&mut self, now: Now, reassigned: &[Reassigned]) {
        let finish =
            |it: &Reassigned| self.controller.finish_move(it.topic_id, it.partition, &it.voters);
        let records: Vec<_> = reassigned.iter().filter_map(finish).collect();
        if !records.is_empty() {
            self.propose_for_peer(now, &records);
        }
    }
}
