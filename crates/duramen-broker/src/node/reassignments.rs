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
        for ((topic_id, partition), target) in all {
            let Some(topic) = self.controller.image.topic(topic_id) else { continue };
            let Some(replica) = self.local_replica(topic, partition) else { continue };
            let Some(there) = self.partitions.get_mut(&replica) else { continue };
            if there.group.approach(&target, &[]) {
                let voters = there.group.voter_ids().to_vec();
                self.tell_reassigned(now, Reassigned { topic_id, partition, voters });
            } else {
                self.mark_dirty(replica);
            }
        }
    }

    fn tell_reassigned(&mut self, now: Now, reassigned: Reassigned) {
        if self.controller.group.is_serving() {
            self.finish_reassignment(now, &reassigned);
        } else if let Some(leader) = self.metadata_leader() {
            self.peers.frame_to(leader).reassigned.push(reassigned);
        }
    }

    /// A partition is where it was to be, as its leader says.
    pub(super) fn finish_reassignment(&mut self, now: Now, reassigned: &Reassigned) {
        let Reassigned { topic_id, partition, voters } = reassigned;
        let record = self.controller.finish_move(*topic_id, *partition, voters);
        record.map(|record| self.propose_for_peer(now, &[record]));
    }
}
