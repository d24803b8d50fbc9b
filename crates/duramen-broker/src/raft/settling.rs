//! Gates of a group whose log has stretches: when its leader serves, and when a letter may cut its log.
//!
//! The partition decides (`partition/settling.rs`, `partition/rescue.rs`); the group keeps to it.

use duramen_storage::op::LogEntry;
use duramen_storage::sabotage::{self, Bug};
use raft::eraftpb::{Message, MessageType};

use super::Group;

impl Group {
    /// Lets this leader serve from an entry on, and not before it is applied.
    pub(crate) fn serve_from(&mut self, index: u64) {
        self.gates.serves_from = index;
    }

    /// Lets the partition append although this leader does not serve yet, or ends that.
    pub(crate) fn let_settle(&mut self, settles: bool) {
        self.gates.settles = settles;
    }

    /// Keeps the end of the log, or lets a newer leader's entries replace it again.
    pub(crate) fn keep_end(&mut self, keeps: bool) {
        self.gates.keeps_end = keeps;
    }

    /// Notes that clients may take entries of this leader for complete before they are committed.
    pub(crate) fn begin_counting(&mut self) {
        self.gates.counted = self.term();
    }

    /// Tells whether this leader has done so in its term.
    pub(crate) fn counts(&self) -> bool {
        self.gates.counted == self.term() && !sabotage::is(Bug::TailForgotten)
    }

    /// Returns the term that is on this replica's disk.
    pub(crate) fn persisted_term(&self) -> u64 {
        self.persisted_term
    }

    /// Follows the leader of a term that speaks otherwise than by letters.
    pub(crate) fn follow(&mut self, leader: u64, term: u64) {
        if !self.is_elected() || self.term() < term {
            self.on_message(self.beat_of(leader, term), Vec::new());
        }
    }

    /// Returns a heartbeat of a leader, which tells of no commit.
    pub(super) fn beat_of(&self, leader: u64, term: u64) -> Message {
        let mut beat = Message::default();
        beat.set_msg_type(MessageType::MsgHeartbeat);
        (beat.from, beat.to, beat.term) = (leader, self.id.0, term);
        beat
    }

    /// Tells whether a letter could take entries away that are kept. Then this replica hears only who leads, and
    /// does not answer. The leader sends the entries again after a later heartbeat.
    pub(super) fn may_cut(&self, message: &Message) -> bool {
        let is_cut = [MessageType::MsgAppend, MessageType::MsgSnapshot];
        self.gates.keeps_end
            && is_cut.contains(&message.get_msg_type())
            && message.term >= self.term()
    }

    /// Returns the entries on this disk that are not known to be committed, in order.
    pub(crate) fn uncommitted_entries(&self) -> impl Iterator<Item = &LogEntry> {
        let log = &self.raw.raft.raft_log;
        (log.committed + 1..=log.persisted).filter_map(|index| self.raw.store().get(index))
    }

    /// Estimates the bytes of batches that are not known to be committed.
    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        let log = self.raw.store();
        let committed = log.offset_after(self.raw.raft.raft_log.committed);
        let stored = committed.and_then(|from| log.bytes_between(from, log.end_offset()));
        stored.unwrap_or(0) + self.bytes_in_flight
    }

    /// Tells whether a change of members waits to be applied, or to be completed.
    pub(crate) fn is_reshaping(&self) -> bool {
        self.is_joint() || self.raw.raft.has_pending_conf()
    }
}
