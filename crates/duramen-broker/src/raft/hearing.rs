//! Checks of a peer's message before the library hears it.

use duramen_storage::Descriptor;
use duramen_storage::op::Content;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::log::{self, TAG_BATCH};
use super::membership::change_of;
use super::{Group, TERM_MAX};

impl Group {
    /// Tells whether the library may hear a message: no message that it would treat as a fatal error, or would believe
    /// without a check.
    pub(super) fn is_acceptable(&self, message: &Message) -> bool {
        // The node decides which peers may speak: this replica may be the last to hear of a change of membership.
        let is_for_us = message.from != self.id.0 && message.to == self.id.0;
        let kind = message.get_msg_type();
        let is_foreign = matches!(kind, MessageType::MsgPropose | MessageType::MsgReadIndex);
        let is_vote = matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        // A replica that does not know how its log begins has no vote.
        let is_fit = !is_vote || self.raw.store().last() > 0;
        is_for_us && is_fit && !is_foreign && message.term <= TERM_MAX && self.is_chain(message)
    }

    /// Tells whether a message's entries follow each other, by index, term and offset, and follow this log.
    fn is_chain(&self, message: &Message) -> bool {
        let (mut index, mut term) = (message.index, message.log_term);
        let mut end_offset = self.offset_after(index, term);
        for entry in message.get_entries() {
            let follows = entry.index == index + 1 && (term..=message.term).contains(&entry.term);
            let Some(content) = log::content_of(entry).filter(|_| follows) else { return false };
            // The library parses it, and panics over what it cannot read.
            if entry.get_entry_type() != EntryType::EntryNormal && change_of(entry).is_none() {
                return false;
            }
            (index, term) = (entry.index, entry.term);
            let Content::Batch(batch) = content else {
                end_offset = end_offset.or_else(|| self.offset_after(index, term));
                continue;
            };
            if end_offset.is_some_and(|end| end != batch.base_offset) || batch.count == 0 {
                return false;
            }
            end_offset = Some(batch.end_offset());
        }
        true
    }

    /// Returns the log's end offset after an entry. `None` if the offset is no longer known, not known yet, or the log
    /// has another entry there. An entry that is to be replaced says nothing about its successors.
    fn offset_after(&self, index: u64, term: u64) -> Option<i64> {
        if !self.raw.raft.raft_log.match_term(index, term) {
            return None;
        }
        let unstable = self.raw.raft.raft_log.unstable_entries();
        let Some(first) = unstable.first().filter(|first| first.index <= index) else {
            return self.raw.store().offset_after(index);
        };
        let is_batch = |entry: &&Entry| entry.data.first() == Some(&TAG_BATCH);
        let batches = unstable.iter().take_while(|entry| entry.index <= index).filter(is_batch);
        let last = batches.last().and_then(|entry| Descriptor::decode(&entry.data[1..]).ok());
        last.map(|batch| batch.end_offset())
            .or_else(|| self.raw.store().offset_after(first.index - 1))
    }

    /// Returns the reason why a message proves that this replica has lost entries, if it does.
    pub(super) fn damage_shown_by(&self, message: &Message) -> Option<String> {
        let log = &self.raw.raft.raft_log;
        if message.term < self.term() {
            return None;
        }
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if message.commit > log.last_index() => {
                Some(format!("index {} is committed and not in this log", message.commit))
            }
            MessageType::MsgAppend => {
                let entries = message.get_entries().iter();
                let known = entries.take_while(|entry| entry.index <= log.committed);
                let mut conflicts = known.filter(|entry| {
                    log.term(entry.index).is_ok_and(|term| term != 0 && term != entry.term)
                });
                let conflict = conflicts.next()?;
                Some(format!("entry {} is committed and another one came", conflict.index))
            }
            _ => None,
        }
    }
}
