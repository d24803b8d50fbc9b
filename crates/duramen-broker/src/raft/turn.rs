//! # Room card: a group's turn
//!
//! Purpose:    outputs of a group: the one file that handles the library's `Ready`.
//! Owns:       [`Turn`]; tickets, the messages that wait for a sync, the applied entries.
//! Interface:  [`Group::collect`] once a turn, [`Group::on_persisted`].
//! Invariants: a `Ready` counts as persisted only when its ticket and all before it came back; `must_sync == false`
//!             only means that it causes no sync. Messages leave when the `Ready` is persisted that they came with.
//! Never:      the meaning of entries; offsets in responses.
//! Tests:      `raft/tests.rs`.
//! Start at:   [`Group::collect`], then `take_ready`.

use bytes::Bytes;
use duramen_storage::op::{Append, Beginning, Content, HardState, LogEntry, OpKind};
use duramen_storage::sabotage::{self, Bug};
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{RawNode, Ready, StateRole};

use super::exchange::{Outgoing, PayloadRead};
use super::{CREATE_TICKET, Group, log, membership};
use crate::limits::{GROUP_APPLIED_KEPT, GROUP_APPLIED_MAX};

/// Output of a turn of the group.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// For storage, in order.
    pub ops: Vec<OpKind>,
    /// Newly committed entries, in order.
    pub committed: Vec<LogEntry>,
    /// Entries of other leaders that are in the log now, in order.
    pub appended: Vec<LogEntry>,
    /// From this index on a newer leader's entries took the place of others, or will.
    pub cut: Option<u64>,
    /// Those of the others that storage had, oldest first.
    pub removed: Vec<LogEntry>,
    /// For peers.
    pub messages: Vec<Outgoing>,
    /// To be read, for [`Group::on_read`].
    pub reads: Vec<PayloadRead>,
    /// For peers, once [`Group::with_image`] has completed them.
    pub snapshots: Vec<Message>,
    /// The log begins anew here: the view is what the image says.
    pub begun: Option<Beginning>,
}

/// A `Ready` between its collection and its persistence.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) ticket: u64,
    /// Nothing was given to storage: persisted as soon as everything before it is.
    pub(super) silent: bool,
    pub(super) payload_bytes: u64,
    /// Term that its write takes to the disk.
    term: Option<u64>,
    messages: Vec<Message>,
}

impl Group {
    /// Takes in that storage has everything up to `ticket`.
    pub(crate) fn on_persisted(&mut self, ticket: u64) {
        if ticket == CREATE_TICKET && !self.created {
            self.created = true;
            return;
        }
        assert!(self.created, "storage has the replica before anything in it");
        assert!(ticket > CREATE_TICKET, "storage makes a replica once");
        let mut number = 0;
        while let Some(front) = self.in_flight.front() {
            if front.ticket > ticket && !front.silent {
                break;
            }
            // A silent `Ready` behind `ticket` is done as well, but only if nothing that storage
            // still holds lies between.
            let front = self.in_flight.pop_front().expect("it was just looked at");
            assert!(front.ticket > number, "tickets come back in order");
            number = front.ticket;
            self.bytes_in_flight -= front.payload_bytes.min(self.bytes_in_flight);
            self.persisted_term = front.term.unwrap_or(self.persisted_term);
            self.released.extend(front.messages);
        }
        assert!(number >= ticket, "storage reports each ticket once, in order");
        assert!(
            self.in_flight.front().is_none_or(|next| next.ticket > number),
            "later writes are still in flight"
        );
        if self.failed.is_none() {
            self.guarded(|raw| raw.on_persist_ready(number));
            self.note_begun();
        }
    }

    /// Drops what was not handed to storage yet, for a group that will never use it.
    fn abandon(&mut self) {
        self.payloads.clear();
        self.released.clear();
        self.shipping.clear();
        self.drop_late();
        self.bytes_in_flight = 0;
    }

    /// Collects everything that is ready: ops for storage, committed entries, messages. Call it once a turn, after all
    /// events of the turn.
    pub(crate) fn collect(&mut self) -> Turn {
        let mut turn = Turn::default();
        assert!(
            self.create.is_none() || self.in_flight.is_empty(),
            "a replica's creation is its first write"
        );
        turn.ops.extend(self.create.take());
        loop {
            self.confirm();
            self.move_on();
            if self.failed.is_some() || !self.raw.has_ready() {
                break;
            }
            let Some(ready) = self.guarded(RawNode::ready) else { break };
            self.take_ready(ready, &mut turn);
        }
        self.note_lost(&mut turn);
        // One that the library did not take belongs to a message it refused.
        self.arriving = None;
        if self.failed.is_some() {
            self.abandon();
            turn.committed.clear();
        }
        // Payload of entries that the library did not take belongs to a message it refused.
        let refused: u64 = self.payloads.values().map(|payload| payload.len() as u64).sum();
        self.payloads.clear();
        self.bytes_in_flight -= refused.min(self.bytes_in_flight);
        self.speak(&mut turn);
        self.inspect();
        turn
    }

    /// Finds proposed entries that storage never gets, because a newer leader's entry replaced them in the same turn.
    fn note_lost(&mut self, turn: &mut Turn) {
        let log = self.raw.store();
        let is_lost = |(index, term): &(u64, u64)| {
            *index >= log.first_held() && log.get(*index).is_none_or(|held| held.term != *term)
        };
        debug_assert!(
            self.proposed.is_sorted_by(|a, b| a.1 < b.1 || a.1 == b.1 && a.0 < b.0),
            "proposals of a term follow each other"
        );
        let lost = self.proposed.drain(..).find(is_lost).map(|(index, _)| index);
        if !sabotage::is(Bug::UnstoredForgotten) {
            turn.cut = turn.cut.into_iter().chain(lost).min();
        }
    }

    fn confirm(&mut self) {
        self.confirming.on_applied(self.applied.0);
        if self.is_serving()
            && let Some(question) = self.confirming.question(self.raw.raft.term)
        {
            self.guarded(|raw| raw.read_index(question));
        }
    }

    /// Lets messages leave whose time has come, in the order of their receivers.
    fn speak(&mut self, turn: &mut Turn) {
        let mut messages = std::mem::take(&mut self.released);
        messages.sort_by_key(|message| message.to);
        for message in messages {
            assert_eq!(message.from, self.id.0, "a replica speaks for itself");
            assert_ne!(message.to, self.id.0, "a replica sends nothing to itself");
            let is_append = message.get_msg_type() == MessageType::MsgAppend;
            if is_append && message.term > self.led {
                self.fail(format!(
                    "it would send entries in term {}, which it does not lead",
                    message.term
                ));
                return;
            }
            let without_data = message.entries.iter().filter(|it| it.data.is_empty());
            for entry in without_data.filter(|_| is_append) {
                let is_batch = self.raw.store().is_batch(entry.index);
                assert!(!is_batch, "the batch at {} leaves with its descriptor", entry.index);
            }
            if message.get_msg_type() == MessageType::MsgSnapshot {
                turn.snapshots.push(message);
                continue;
            }
            if self.is_said_again(&message) {
                let payloads = Vec::new();
                turn.messages.push(Outgoing { message, payloads, can_wait: true });
                continue;
            }
            self.shipping.send(message, self.raw.store());
        }
        self.bring_up();
        turn.messages.append(&mut self.shipping.ready);
        turn.reads.append(&mut self.shipping.reads);
        for peer in std::mem::take(&mut self.shipping.unreachable) {
            self.on_unreachable(peer);
        }
    }

    /// Tells whether a message only repeats an acknowledgement to the leader. A follower answers each news of a commit
    /// index with one. The first may be lost, so the message is sent all the same.
    fn is_said_again(&mut self, message: &Message) -> bool {
        if message.get_msg_type() != MessageType::MsgAppendResponse || message.reject {
            return false;
        }
        let (to, term, index) = self.acknowledged;
        if (to, term) == (message.to, message.term) && message.index <= index {
            return true;
        }
        self.acknowledged = (message.to, message.term, message.index);
        false
    }

    fn take_ready(&mut self, mut ready: Ready, turn: &mut Turn) {
        let ticket = ready.number();
        if !ready.snapshot().is_empty() {
            self.begin_anew(ready.snapshot(), turn);
            if self.failed.is_some() {
                return;
            }
        }
        let mut appends = Vec::with_capacity(ready.entries().len());
        let mut payload_bytes = 0;
        for entry in ready.take_entries() {
            let Some(append) = self.store_entry(&entry, turn) else { return };
            payload_bytes += append.payload.len() as u64;
            appends.push(append);
        }
        if let Some(hs) = ready.hs() {
            let hard_state = HardState { term: hs.term, vote: hs.vote, commit: hs.commit };
            let before = self.raw.store().hard_state;
            assert!(hard_state.term >= before.term, "terms never fall");
            assert!(hard_state.commit >= before.commit, "the commit index never falls");
            assert!(
                hard_state.commit <= self.raw.store().last(),
                "a commit index that is stored is of an entry in the log"
            );
            let is_kept = hard_state.term > before.term || before.vote == 0;
            assert!(is_kept || hard_state.vote == before.vote, "a replica votes once in a term");
            self.raw.mut_store().hard_state = hard_state;
            self.unsaved = Some(hard_state);
        }
        self.confirming.on_answers(ready.read_states());
        let mut messages = ready.take_persisted_messages();
        if sabotage::is(Bug::SpokenBeforeSync) {
            self.released.append(&mut messages);
        }
        let silent = !ready.must_sync();
        assert!(!silent || appends.is_empty(), "every entry is synced");
        assert!(self.in_flight.back().is_none_or(|before| before.ticket < ticket), "tickets rise");
        let mut term = None;
        if !silent {
            let hard_state = self.unsaved.take();
            term = hard_state.map(|it| it.term);
            turn.ops.push(OpKind::Write { ticket, appends, hard_state, must_sync: true });
        }
        self.released.extend(ready.take_messages());
        let committed = ready.take_committed_entries();
        self.in_flight.push_back(InFlight { ticket, silent, payload_bytes, term, messages });
        self.guarded(|raw| raw.advance_append_async(ready));
        self.apply(&committed, turn);
        // With nothing before it in flight, a `Ready` that asked for no sync is persisted now.
        if self.in_flight.iter().all(|ready| ready.silent) {
            self.release_silent();
        }
    }

    fn release_silent(&mut self) {
        let Some(last) = self.in_flight.back().map(|ready| ready.ticket) else { return };
        for ready in std::mem::take(&mut self.in_flight) {
            self.released.extend(ready.messages);
        }
        self.guarded(|raw| raw.on_persist_ready(last));
    }

    fn store_entry(&mut self, entry: &Entry, turn: &mut Turn) -> Option<Append> {
        let Some(content) = log::content_of(entry) else {
            self.fail(format!("entry {} cannot be read by this version", entry.index));
            return None;
        };
        let payload = match content {
            Content::Batch(_) => self.payloads.remove(&(entry.index, entry.term)),
            Content::Internal(_) => Some(Bytes::new()),
        };
        let Some(payload) = payload else {
            self.fail(format!("entry {} has no payload", entry.index));
            return None;
        };
        if self.raw.raft.state == StateRole::Leader && !self.is_alone() && !payload.is_empty() {
            self.shipping.keep(entry.index, entry.term, payload.clone());
        }
        assert!(entry.index > self.applied.0, "applied entries are never replaced");
        let term = self.raw.raft.term;
        assert!(entry.term <= term, "no entry is of a later term");
        let log = self.raw.mut_store();
        let removed = log.cut(entry.index);
        // The new entry may be of an earlier term: the old one's leader was cut off, and the next leader had not voted
        // for it.
        let is_other = |gone: &LogEntry| gone.index > entry.index || gone.term != entry.term;
        assert!(
            removed.iter().all(|gone| is_other(gone) && gone.term <= term),
            "the leader of this term replaces other entries"
        );
        turn.cut = turn.cut.into_iter().chain(removed.first().map(|first| first.index)).min();
        turn.removed.extend(removed);
        let entry = LogEntry { index: entry.index, term: entry.term, content };
        log.append(entry.clone());
        while turn.appended.last().is_some_and(|it| it.index >= entry.index) {
            turn.appended.pop();
        }
        let place = (entry.term, entry.index);
        // Those of its own are known since they were proposed.
        if self.proposed.binary_search_by_key(&place, |it| (it.1, it.0)).is_err() {
            turn.appended.push(entry.clone());
        }
        Some(Append { entry, payload })
    }

    fn apply(&mut self, committed: &[Entry], turn: &mut Turn) {
        for entry in committed {
            if entry.get_entry_type() != EntryType::EntryNormal && !self.reshape(entry, turn) {
                return;
            }
            let held = self.raw.store().get(entry.index);
            let held = held.expect("entries above the applied index stay in memory").clone();
            assert_eq!(held.index, self.applied.0 + 1, "entries are applied one after the other");
            assert_eq!(held.term, entry.term, "the entry in memory is the committed one");
            assert!(
                held.index <= self.raw.store().hard_state.commit,
                "storage is told what is committed no later than it is applied"
            );
            assert!(held.index <= self.persisted(), "only entries on this disk are applied");
            self.applied = (held.index, held.term);
            turn.committed.push(held);
        }
        if let Some(last) = committed.last().map(|entry| entry.index) {
            self.guarded(|raw| raw.advance_apply_to(last));
            self.forget_applied(last);
        }
    }

    /// Executes a change of membership, unless what is known of it is later. False if that failed the group.
    fn reshape(&mut self, entry: &Entry, turn: &mut Turn) -> bool {
        if entry.index <= self.raw.store().conf.applied {
            return true;
        }
        let change = membership::change_of(entry);
        let number = change.as_ref().map_or(0, membership::move_number);
        let done = change.and_then(|it| self.guarded(|raw| raw.apply_conf_change(&it))?.ok());
        let Some(conf) = done else {
            self.fail(format!("entry {} changes the membership to what cannot be", entry.index));
            return false;
        };
        let number = number.max(self.raw.store().conf.move_number);
        let conf = log::conf_of(&conf, entry.index, number);
        assert!(!conf.voters.is_empty(), "a group has a voter");
        assert!(conf.applied == entry.index, "a membership is of the entry that made it");
        self.raw.mut_store().conf = conf.clone();
        let is_voter =
            conf.voters.contains(&self.id.0) || conf.voters_outgoing.contains(&self.id.0);
        if !is_voter && self.raw.raft.state == StateRole::Leader {
            // The replica was elected before this was applied. The library would let it lead, and append nothing.
            self.guarded(|raw| raw.raft.become_follower(raw.raft.term, raft::INVALID_ID));
        }
        turn.ops.push(OpKind::Conf { conf });
        true
    }

    /// Descriptors of applied entries go, but for the newest: a peer that needs older ones gets them from segments.
    fn forget_applied(&mut self, applied: u64) {
        if self.is_alone() {
            return self.raw.mut_store().forget(applied, GROUP_APPLIED_KEPT, GROUP_APPLIED_MAX);
        }
        let kept = self.memory.entries;
        self.raw.mut_store().forget(applied, kept, 2 * kept);
    }
}
