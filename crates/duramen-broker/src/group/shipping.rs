//! Payload that goes to peers: from memory while it is fresh, from the segments later.
//!
//! The library orders descriptors and never holds payload. What it wants to send waits here until its payload was read,
//! and what follows to the same peer waits behind it. If it cannot be had, the peer counts as unreachable: the library
//! then asks it where it stands, and begins again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_storage::Descriptor;
use duramen_storage::op::Content;
use raft::eraftpb::{Message, MessageType};

use super::{Outgoing, PayloadRead, log};
use crate::limits::{GROUP_PAYLOAD_KEPT_BYTES, GROUP_UNSENT_MAX};

/// Messages for one peer; the first one's payload is being read.
#[derive(Debug)]
struct Waiting {
    first: Message,
    /// Of its batches, in order, as far as they were read: one read ends where a segment does.
    have: Vec<Bytes>,
    rest: VecDeque<Message>,
}

#[derive(Debug, Default)]
pub(super) struct Shipping {
    /// Payload that storage was given lately, by (index, term).
    recent: BTreeMap<(u64, u64), Bytes>,
    recent_bytes: usize,
    /// By peer.
    waiting: BTreeMap<u64, Waiting>,
    /// What may leave in the next turn.
    pub(super) ready: Vec<Outgoing>,
    pub(super) reads: Vec<PayloadRead>,
    /// Peers to whom something was not sent.
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

/// What is to be read for a message, after so many of its batches.
fn read_of(message: &Message, have: usize) -> Option<PayloadRead> {
    let mut read: Option<PayloadRead> = None;
    for (_, _, batch) in descriptors(message).skip(have) {
        let (from, end) = (batch.base_offset, batch.end_offset());
        let read = read.get_or_insert(PayloadRead { peer: message.to, from, end, bytes: 0 });
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
        while self.recent_bytes > GROUP_PAYLOAD_KEPT_BYTES {
            let Some((_, oldest)) = self.recent.pop_first() else { break };
            self.recent_bytes -= oldest.len();
        }
    }

    /// Nobody will need payload up to `index` soon.
    pub(super) fn forget(&mut self, index: u64) {
        let later = self.recent.split_off(&(index + 1, 0));
        let gone = std::mem::replace(&mut self.recent, later);
        self.recent_bytes -= gone.values().map(Bytes::len).sum::<usize>();
    }

    fn payloads_of(&self, message: &Message) -> Option<Vec<Bytes>> {
        let held =
            |(index, term, _): (u64, u64, Descriptor)| self.recent.get(&(index, term)).cloned();
        descriptors(message).map(held).collect()
    }

    /// Lets a message leave, now or when its payload was read.
    pub(super) fn send(&mut self, message: Message) {
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
        match self.payloads_of(&message) {
            Some(payloads) => self.ready.push(Outgoing { message, payloads }),
            None => self.wait(message, VecDeque::new()),
        }
    }

    fn wait(&mut self, first: Message, rest: VecDeque<Message>) {
        self.reads.extend(read_of(&first, 0));
        self.waiting.insert(first.to, Waiting { first, have: Vec::new(), rest });
    }

    /// What was asked for with [`Shipping::reads`] came, or cannot be had. What a former term wanted to say is not said.
    pub(super) fn on_read(&mut self, peer: u64, term: u64, came: Result<Bytes, String>) {
        let Some(mut waiting) = self.waiting.remove(&peer) else { return };
        let before = waiting.have.len();
        waiting.have.extend(fitting(&waiting.first, before, came.unwrap_or_default()));
        if waiting.first.term != term || waiting.have.len() == before {
            self.starved.extend((waiting.first.term == term).then_some(peer));
            self.unreachable.push(peer);
            return;
        }
        self.starved.remove(&peer);
        if let Some(more) = read_of(&waiting.first, waiting.have.len()) {
            self.reads.push(more);
            self.waiting.insert(peer, waiting);
            return;
        }
        let Waiting { first, have, mut rest } = waiting;
        self.ready.push(Outgoing { message: first, payloads: have });
        while let Some(next) = rest.pop_front() {
            let Some(payloads) = self.payloads_of(&next) else { return self.wait(next, rest) };
            self.ready.push(Outgoing { message: next, payloads });
        }
    }

    /// The group is not used any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The payload of a message's batches after so many, as far as it is in what was read. What does not fit is another
/// one's: the log may have been cut meanwhile.
fn fitting(message: &Message, have: usize, bytes: Bytes) -> Vec<Bytes> {
    let read = batches(bytes).map_while(Result::ok).map(|batch| batch.bytes().clone());
    let wanted = descriptors(message).skip(have).map(|(_, _, batch)| batch);
    wanted.zip(read).take_while(|(batch, bytes)| batch.matches(bytes)).map(|it| it.1).collect()
}
