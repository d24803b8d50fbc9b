//! Payload that goes to peers: from memory while it is fresh, from the segments later.
//!
//! The library orders descriptors and never holds payload. A message waits here until its payload is read, and later
//! messages to the same peer wait behind it. If the payload cannot be read, the peer counts as unreachable: the library
//! then asks the peer for its state, and begins again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_storage::Descriptor;
use duramen_storage::op::Content;
use raft::eraftpb::{Message, MessageType};

use super::exchange::{Outgoing, PayloadRead, ReadFor};
use super::log::{self, GroupLog};
use super::shared::Shared;
use crate::limits::GROUP_UNSENT_MAX;

/// Messages for one peer; the first one's payload is being read.
#[derive(Debug)]
struct Waiting {
    first: Message,
    ticket: u64,
    /// Payload of its batches, in order, as far as it is read: one read ends where a segment does.
    have: Vec<Bytes>,
    rest: VecDeque<Message>,
}

#[derive(Debug, Default)]
pub(super) struct Shipping {
    /// Payload that storage was given lately, by (index, term).
    recent: BTreeMap<(u64, u64), Bytes>,
    recent_bytes: usize,
    /// Batches that letters leave out.
    pub(super) shared: Shared,
    /// Waiting messages, by peer.
    waiting: BTreeMap<u64, Waiting>,
    /// Messages that may leave in the next turn.
    pub(super) ready: Vec<Outgoing>,
    pub(super) reads: Vec<PayloadRead>,
    tickets: u64,
    /// Bytes of payload that are kept.
    pub(super) bytes_max: usize,
    /// Peers that were not sent a message that waited for them.
    pub(super) unreachable: Vec<u64>,
    /// Peers that lack what cannot be read: it was trimmed, most likely.
    pub(super) starved: BTreeSet<u64>,
}

fn descriptors(message: &Message) -> impl Iterator<Item = (u64, u64, Descriptor)> {
    message.get_entries().iter().filter_map(|entry| match log::content_of(entry) {
        Some(Content::Batch(batch)) => Some((entry.index, entry.term, batch)),
        _ => None,
    })
}

/// Returns the read for a message's payload, after its first `have` batches.
fn read_of(message: &Message, have: usize, ticket: u64) -> Option<PayloadRead> {
    let mut read: Option<PayloadRead> = None;
    for (_, _, batch) in descriptors(message).skip(have) {
        let (from, end) = (batch.base_offset, batch.end_offset());
        let none = PayloadRead { peer: message.to, from, pass: 0, end, bytes: 0, ticket };
        let read = read.get_or_insert(none);
        read.end = end;
        read.bytes = read.bytes.saturating_add(batch.length);
    }
    read
}

impl Shipping {
    /// Keeps payload for a while, because peers will be sent it.
    pub(super) fn keep(&mut self, index: u64, term: u64, payload: Bytes) {
        self.recent_bytes += payload.len();
        if let Some(before) = self.recent.insert((index, term), payload) {
            self.recent_bytes -= before.len();
        }
        while self.recent_bytes > self.bytes_max {
            let Some((_, oldest)) = self.recent.pop_first() else { break };
            self.recent_bytes -= oldest.len();
        }
        assert!(self.recent_bytes <= self.bytes_max, "payload in memory is bounded");
    }

    /// Forgets payload up to `index`, because no peer will need it soon.
    pub(super) fn forget(&mut self, index: u64) {
        self.shared.forget(index);
        let later = self.recent.split_off(&(index + 1, 0));
        let gone = std::mem::replace(&mut self.recent, later);
        self.recent_bytes -= gone.values().map(Bytes::len).sum::<usize>();
    }

    /// Returns the payload of a message, without what its receiver has from clients. `None` if some is not in memory.
    fn payloads_of(&mut self, message: &Message, log: &GroupLog) -> Option<Vec<Bytes>> {
        let mut payloads = Vec::new();
        for (index, term, batch) in descriptors(message) {
            if self.shared.is_left_out(message.to, index, term) {
                self.shared.count(batch.length);
                payloads.push(Bytes::new());
                continue;
            }
            let recent = self.recent.get(&(index, term));
            payloads.push(recent.or_else(|| log.rebuilt_payload(index, term))?.clone());
        }
        Some(payloads)
    }

    /// Lets a message leave, now or when its payload was read.
    pub(super) fn send(&mut self, message: Message, log: &GroupLog) {
        let peer = message.to;
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        if let Some(waiting) = self.waiting.get_mut(&peer).filter(|_| is_append) {
            if waiting.rest.len() < GROUP_UNSENT_MAX {
                waiting.rest.push_back(message);
            } else {
                self.unreachable.push(peer);
            }
            return;
        }
        match self.payloads_of(&message, log) {
            Some(payloads) => self.ready.push(Outgoing { message, payloads, can_wait: false }),
            None => self.wait(message, VecDeque::new()),
        }
    }

    fn wait(&mut self, first: Message, rest: VecDeque<Message>) {
        let ticket = self.next_ticket();
        let read = read_of(&first, 0, ticket);
        assert!(read.is_some(), "a message waits only for payload");
        self.reads.extend(read);
        let before =
            self.waiting.insert(first.to, Waiting { first, ticket, have: Vec::new(), rest });
        assert!(before.is_none(), "later messages to a peer wait behind the first");
    }

    /// Numbers a read.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Tells whether messages for a peer wait here.
    pub(super) fn has_waiting(&self, peer: u64) -> bool {
        self.waiting.contains_key(&peer)
    }

    /// Takes the result of a read from [`Shipping::reads`]. Messages of a former term are dropped.
    pub(super) fn on_read(&mut self, term: u64, read: ReadFor, log: &GroupLog) {
        let peer = read.peer;
        let is_this = |waiting: &Waiting| waiting.ticket == read.ticket;
        if !self.waiting.get(&peer).is_some_and(is_this) {
            return;
        }
        let Some(mut waiting) = self.waiting.remove(&peer) else { return };
        let before = waiting.have.len();
        waiting.have.extend(fitting(&waiting.first, before, read.batches.unwrap_or_default()));
        if waiting.first.term != term || waiting.have.len() == before {
            self.starved.extend((waiting.first.term == term).then_some(peer));
            self.unreachable.push(peer);
            return;
        }
        self.starved.remove(&peer);
        waiting.ticket = self.next_ticket();
        if let Some(more) = read_of(&waiting.first, waiting.have.len(), waiting.ticket) {
            self.reads.push(more);
            self.waiting.insert(peer, waiting);
            return;
        }
        let Waiting { first, have, mut rest, ticket: _ } = waiting;
        debug_assert_eq!(descriptors(&first).count(), have.len(), "a message has all its payload");
        self.ready.push(Outgoing { message: first, payloads: have, can_wait: false });
        while let Some(next) = rest.pop_front() {
            let Some(payloads) = self.payloads_of(&next, log) else { return self.wait(next, rest) };
            self.ready.push(Outgoing { message: next, payloads, can_wait: false });
        }
    }

    /// Checks the sums and the messages that wait, at the end of a turn.
    pub(super) fn inspect(&self) {
        let Self { recent, recent_bytes, waiting, ready, reads, tickets, unreachable, .. } = self;
        assert!(ready.is_empty() && reads.is_empty(), "a turn lets out all that is ready");
        assert!(unreachable.is_empty(), "the library knows of every peer that was not reached");
        debug_assert_eq!(
            *recent_bytes,
            recent.values().map(Bytes::len).sum::<usize>(),
            "bytes in memory are those of the payload"
        );
        debug_assert!(
            waiting.iter().all(|(peer, it)| *peer == it.first.to && it.ticket <= *tickets),
            "a message waits for its peer's read"
        );
        debug_assert!(
            waiting.values().all(|it| it.rest.len() <= GROUP_UNSENT_MAX),
            "few messages wait for a peer"
        );
    }

    /// Forgets everything, because the group is not used any more.
    pub(super) fn clear(&mut self) {
        *self = Self { tickets: self.tickets, bytes_max: self.bytes_max, ..Self::default() };
    }
}

/// Returns the payload of a message's batches after the first `have`, as far as the read has it. Batches that do not
/// fit belong to other entries: the log may have been cut meanwhile.
fn fitting(message: &Message, have: usize, bytes: Bytes) -> Vec<Bytes> {
    let read = batches(bytes).map_while(Result::ok).map(|batch| batch.bytes().clone());
    let wanted = descriptors(message).skip(have).map(|(_, _, batch)| batch);
    wanted.zip(read).take_while(|(batch, bytes)| batch.matches(bytes)).map(|it| it.1).collect()
}
