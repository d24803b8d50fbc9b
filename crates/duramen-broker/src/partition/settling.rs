//! # Room card: settling
//!
//! Purpose:    let a new leader take over what was held in the last stretch of its log, before it serves.
//! Owns:       the lists of members that it asks for, its place among them, the answer that this replica owes another.
//! Interface:  [`Partition::settle`], [`Partition::on_holds_wanted`], [`Partition::on_holds_given`].
//! Invariants: a leader serves once its Close is applied, and that comes behind all that was held. One complete list is
//!             enough, of a member only. A member answers once its disk has the leader's term: then it holds nothing
//!             in the stretch any more.
//! Never:      frames between nodes (`node/settling.rs`).
//! Tests:      `node/tests/fast.rs`; `duramen-sim`.
//! Start at:   [`Partition::settle`].

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use duramen_protocol::BatchHeader;
use duramen_protocol::batch::batches;
use duramen_storage::op::Stretch;
use duramen_storage::sabotage::{self, Bug};

use super::fast_state::{Given, List, Said, Settling, Wanted};
use super::internal::Internal;
use super::{Appended, Partition, Verdict};
use crate::event::Now;
use crate::limits::FAST_LIST_BYTES_MAX;

impl Partition {
    /// Begins to settle, where a new leader's log is in a stretch. Else the leader serves at once.
    pub(super) fn follow_role(&mut self) {
        let led = self.group.is_elected().then(|| self.group.term());
        if self.fast.led != led {
            let has_led = std::mem::replace(&mut self.fast.led, led).is_some();
            self.fast.end_term();
            self.group.share_with(Vec::new());
            if has_led {
                self.fast.rescue.begin();
            }
            assert!(!self.group.has_begun_term(), "a term begins with its first turn");
            let last = self.stretches.current().filter(|it| !it.members.is_empty());
            self.group.serve_from(if last.is_some() { u64::MAX } else { 0 });
            if let Some(last) = last.filter(|_| led.is_some()) {
                let (stretch, members) = (last.at, last.members.clone());
                self.begin_settling(stretch, &members);
            }
        }
    }

    fn begin_settling(&mut self, stretch: Stretch, members: &[u64]) {
        let own = self.group.id().0;
        let has_own = members.contains(&own) || sabotage::is(Bug::AskedAnyone);
        let asked = members.iter().filter(|peer| !has_own && **peer != own);
        let lists = asked.map(|peer| (*peer, List::default())).collect();
        let (queue, full_at) = (None, None);
        self.fast.settling = Some(Settling { stretch, lists, has_own, queue, full_at });
        self.ask_members();
    }

    /// Asks the members that have not given all they hold, at first or again.
    pub(crate) fn ask_members(&mut self) {
        let Some(settling) = &self.fast.settling else { return };
        let (leader, term) = self.group.lead();
        let missing = settling.lists.iter().filter(|(_, list)| !list.is_complete);
        self.fast.said.extend(missing.map(|(&member, list)| {
            let (stretch, after) = (settling.stretch, list.next);
            Said::Wanted { member, wanted: Wanted { leader, term, stretch, after } }
        }));
    }

    /// Tells whether this leader has to take over what was held, before it serves.
    pub(crate) fn is_settling(&self) -> bool {
        self.fast.settling.is_some()
    }

    /// Tells whether this leader waits for lists of members.
    pub(crate) fn is_asking(&self) -> bool {
        self.fast.settling.as_ref().is_some_and(|it| !it.lists.is_empty())
    }

    /// Takes a part of a member's list.
    pub(crate) fn on_holds_given(&mut self, member: u64, given: Given) {
        let lead = self.group.lead();
        let Some(settling) = &mut self.fast.settling else { return };
        let Wanted { leader, term, stretch, after } = given.wanted;
        let Some(list) = settling.lists.get_mut(&member) else { return };
        let is_next = after == list.next && !list.is_complete && settling.stretch == stretch;
        if (leader, term) != lead || !is_next {
            return;
        }
        let views = batches(given.batches).map_while(Result::ok);
        list.batches.extend(views.map(|view| view.bytes().clone()));
        (list.next, list.is_complete) = (given.next, given.is_last);
        if !list.is_complete {
            let wanted = Wanted { after: list.next, ..given.wanted };
            self.fast.said.push(Said::Wanted { member, wanted });
        }
    }

    /// Tells whether another turn brings a settling leader on.
    pub(super) fn can_settle(&self) -> bool {
        let Some(settling) = &self.fast.settling else { return false };
        let has_list = settling.lists.values().any(|list| list.is_complete);
        let applied = self.group.applied();
        self.group.has_begun_term()
            && (settling.has_own
                || has_list
                || settling.queue.is_some()
                || self.lacks_members(settling.stretch))
            && settling.full_at != Some(applied)
    }

    /// Tells whether no member of a stretch votes. Voters change only once a stretch is over, but a node that goes on
    /// alone without all others has no such choice.
    fn lacks_members(&self, stretch: Stretch) -> bool {
        let change = self.stretches.current().filter(|it| it.at == stretch);
        let votes = |peer: &u64| self.group.voter_ids().contains(peer);
        change.is_some_and(|it| !it.members.iter().any(votes))
    }

    /// Appends what was held, each batch as its producer's retry, and then ends the stretch.
    pub(super) fn settle(&mut self, now: Now) {
        if !self.can_settle() || self.group.failure().is_some() {
            return;
        }
        let Some(mut settling) = self.fast.settling.take() else { return };
        let mut queue = settling.queue.take().unwrap_or_else(|| {
            self.active = self.last_segment(now);
            self.list_to_append(&mut settling)
        });
        self.group.let_settle(true);
        while let Some(payload) = queue.pop_front() {
            if !self.append_held(now, &payload) {
                queue.push_front(payload);
                break;
            }
        }
        if queue.is_empty()
            && let Ok(index) = self.propose_change(&Internal::Close)
        {
            self.group.serve_from(index);
        } else {
            let full_at = Some(self.group.applied());
            self.fast.settling = Some(Settling { queue: Some(queue), full_at, ..settling });
        }
        self.group.let_settle(false);
    }

    fn list_to_append(&self, settling: &mut Settling) -> VecDeque<Bytes> {
        let own = self.fast.holds.in_stretch(settling.stretch).map(|(_, payload)| payload.clone());
        if self.lacks_members(settling.stretch) {
            let partition = self.id.partition;
            tracing::warn!(
                partition,
                "the last fast appends may be lost: no member of their stretch is left"
            );
        }
        let mut lists = std::mem::take(&mut settling.lists).into_values();
        let mut queue: VecDeque<Bytes> = match lists.find(|list| list.is_complete) {
            _ if settling.has_own => own.collect(),
            Some(list) => list.batches.into(),
            None => VecDeque::new(),
        };
        if sabotage::is(Bug::RecoveredReversed) {
            queue.make_contiguous().reverse();
        }
        queue
    }

    /// Appends a batch that was held, unless the log has it, or its producer went on without it. False if it has to
    /// wait.
    fn append_held(&mut self, now: Now, payload: &Bytes) -> bool {
        let Ok(header) = BatchHeader::parse(payload) else { return true };
        let verdict = self.verdict(&header);
        let is_twice =
            sabotage::is(Bug::RecoveredTwice) && matches!(verdict, Verdict::Duplicate { .. });
        let is_next = verdict == Verdict::Append && !self.producers.is_open(header.producer_id);
        if !is_next && !is_twice {
            return true;
        }
        let bytes = BytesMut::from(&payload[..]);
        let appended = self.propose_bytes(now, bytes, &header, header.max_timestamp);
        self.fast.counts.taken_over += u64::from(appended.is_ok());
        !matches!(appended, Err(Appended::Busy(_)))
    }

    /// Takes the question of a new leader.
    pub(crate) fn on_holds_wanted(&mut self, wanted: Wanted) {
        if self.group.failure().is_some()
            || self.group.is_beginning()
            || wanted.term < self.group.term()
        {
            return;
        }
        if !sabotage::is(Bug::SealForgotten) {
            self.group.follow(wanted.leader, wanted.term);
        }
        self.fast.asked = Some(wanted);
    }

    /// Answers a new leader, once this replica's disk has its term.
    pub(super) fn answer_leader(&mut self) {
        let Some(wanted) = self.fast.asked else { return };
        let is_of_now = self.group.term() == wanted.term && !self.group.is_elected();
        if self.group.term() > wanted.term || self.group.failure().is_some() {
            self.fast.asked = None;
            return;
        }
        let is_durable = self.group.persisted_term() >= wanted.term;
        let is_sealed = is_of_now && (is_durable || sabotage::is(Bug::SealBeforeSync));
        if !is_sealed && !sabotage::is(Bug::SealForgotten) || self.fast.rescue.is_due() {
            return;
        }
        self.fast.asked = None;
        let given = self.list_for(wanted);
        self.fast.said.push(Said::Given(given));
    }

    fn list_for(&self, wanted: Wanted) -> Given {
        let (mut next, mut is_last, mut bytes) = (wanted.after, true, BytesMut::new());
        let held = self.fast.holds.in_stretch(wanted.stretch);
        for (id, payload) in held.filter(|(id, _)| id.number > wanted.after) {
            if !bytes.is_empty() && bytes.len() + payload.len() > FAST_LIST_BYTES_MAX {
                is_last = false;
                break;
            }
            next = id.number;
            bytes.extend_from_slice(payload);
        }
        Given { wanted, next, is_last, batches: bytes.freeze() }
    }

    /// Takes the messages for replicas on other nodes.
    pub(crate) fn take_said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.fast.said)
    }
}
