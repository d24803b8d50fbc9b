//! Clients beside those that every run has: members of a group, transactional clients, consumers of a share group.
//! Each crowd judges its own answers; its clients are numbered one crowd after the other.

use duramen_broker::ConnectionId;
use duramen_protocol::Response;
use duramen_protocol::wire::Uuid;

use super::answers::{Answered, Sight, unexpected};
use super::consumer_group::{self, ConsumerGroup};
use super::requests::Asking;
use super::share_group::{self, ShareGroup};
use super::sharing::{self, Members};
use super::transacting::{self, TRANSACTORS, Transactors};
use crate::failure::Failure;
use crate::prng::Prng;
use crate::report::Report;

/// A client of a crowd, by its number there.
enum Who {
    Member(usize),
    Transactor(usize),
    Sharer(usize),
    Otter(usize),
}

/// A request of a crowd on its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Member(sharing::Question),
    Transactor(transacting::Question),
    Sharer(share_group::Question),
    Otter(consumer_group::Question),
}

impl Question {
    fn of_sharer(&self) -> Option<&share_group::Question> {
        if let Self::Sharer(question) = self { Some(question) } else { None }
    }

    fn of_otter(&self) -> Option<&consumer_group::Question> {
        if let Self::Otter(question) = self { Some(question) } else { None }
    }
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Crowds {
    members: Option<Members>,
    transactors: Option<Transactors>,
    sharers: Option<ShareGroup>,
    otters: Option<ConsumerGroup>,
}

impl Crowds {
    /// Returns the crowds of a cluster.
    pub(super) fn of(seed: u64) -> Self {
        Self {
            members: Members::of(seed),
            transactors: Transactors::of(seed),
            sharers: ShareGroup::of(seed),
            otters: ConsumerGroup::of(seed),
        }
    }

    fn first_transactor(&self) -> usize {
        self.members.as_ref().map_or(0, Members::len)
    }

    fn first_sharer(&self) -> usize {
        self.first_transactor() + if self.transactors.is_some() { TRANSACTORS } else { 0 }
    }

    fn first_otter(&self) -> usize {
        self.first_sharer() + self.sharers.as_ref().map_or(0, ShareGroup::len)
    }

    /// Returns the number of clients.
    pub(super) fn len(&self) -> usize {
        self.first_otter() + self.otters.as_ref().map_or(0, ConsumerGroup::len)
    }

    fn who(&self, at: usize) -> Who {
        if let Some(at) = at.checked_sub(self.first_otter()) {
            return Who::Otter(at);
        }
        if let Some(at) = at.checked_sub(self.first_sharer()) {
            return Who::Sharer(at);
        }
        match at.checked_sub(self.first_transactor()) {
            Some(at) => Who::Transactor(at),
            None => Who::Member(at),
        }
    }

    /// Tells whether a coordinator may take a client for one that has gone on over another connection.
    pub(super) fn may_be_taken_for_another(&self, at: usize) -> bool {
        matches!(self.who(at), Who::Transactor(_))
            && self.transactors.as_ref().is_some_and(Transactors::have_one_id)
    }

    /// Adds the crowds' counts to the report.
    pub(super) fn tell_of(&self, report: &mut Report) {
        if let Some(members) = &self.members {
            (report.generations, report.fenced) = members.totals();
        }
        if let Some(transactors) = &self.transactors {
            report.transacted = transactors.totals();
        }
        if let Some(sharers) = &self.sharers {
            (report.given, report.written) = (sharers.totals(), sharers.written());
        }
        if let Some(otters) = &self.otters {
            (report.assigned, report.changed) = (otters.totals(), otters.changes());
        }
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.members.iter_mut().for_each(Members::begin_last_phase);
        self.transactors.iter_mut().for_each(Transactors::begin_last_phase);
        self.sharers.iter_mut().for_each(ShareGroup::begin_last_phase);
        self.otters.iter_mut().for_each(ConsumerGroup::begin_last_phase);
    }

    pub(super) fn is_done(&self) -> bool {
        self.members.as_ref().is_none_or(Members::is_done)
            && self.transactors.as_ref().is_none_or(Transactors::is_done)
            && self.sharers.as_ref().is_none_or(ShareGroup::is_done)
            && self.otters.as_ref().is_none_or(ConsumerGroup::is_done)
    }

    /// Describes in brief the clients that wait, and the answers they wait for.
    pub(super) fn told(&self) -> String {
        let sharers = self.sharers.as_ref().map(ShareGroup::told);
        let otters = self.otters.as_ref().map(ConsumerGroup::told);
        format!("{sharers:?} {otters:?} {:?}", self.members)
    }

    /// Takes the clients that want another node, each with that node, because they were told so.
    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        let (first, second) = (self.first_transactor(), self.first_sharer());
        let third = self.first_otter();
        let members = self.members.as_mut().map(Members::take_aims).unwrap_or_default();
        let transactors = self.transactors.as_mut().map(Transactors::take_aims).unwrap_or_default();
        let sharers = self.sharers.as_mut().map(ShareGroup::take_aims).unwrap_or_default();
        let transactors = transactors.into_iter().map(|(at, node)| (first + at, node));
        let sharers = sharers.into_iter().map(|(at, node)| (second + at, node));
        let otters = self.otters.as_mut().map(ConsumerGroup::take_aims).unwrap_or_default();
        let otters = otters.into_iter().map(|(at, node)| (third + at, node));
        members.into_iter().chain(transactors).chain(sharers).chain(otters).collect()
    }

    /// Returns the number of clients that may ask in a moment.
    pub(super) fn haste(&self) -> usize {
        match (&self.sharers, &self.otters) {
            (Some(_), _) => 4,
            (None, Some(otters)) => otters.haste(),
            (None, None) => 1,
        }
    }

    /// Tells whether a client has reason to stay where it is.
    pub(super) fn is_settled(&self, at: usize) -> bool {
        match (self.who(at), &self.sharers) {
            (Who::Sharer(at), Some(sharers)) => sharers.is_settled(at),
            _ => false,
        }
    }

    /// Notes that a client lost its connection, or went elsewhere, with something asked or not.
    pub(super) fn on_moved(&mut self, at: usize, before: ConnectionId, asked: Option<&Question>) {
        match self.who(at) {
            Who::Member(_) => {}
            Who::Transactor(at) => {
                self.transactors.iter_mut().for_each(|it| it.on_moved(at, asked.is_some()));
            }
            Who::Sharer(at) => {
                let asked = asked.and_then(Question::of_sharer);
                self.sharers.iter_mut().for_each(|it| it.on_moved(at, before, asked));
            }
            Who::Otter(at) => {
                let asked = asked.and_then(Question::of_otter);
                self.otters.iter_mut().for_each(|it| it.on_moved(at, before, asked));
            }
        }
    }

    /// Notes that a client is connected to the node that it wanted.
    pub(super) fn on_arrived(&mut self, at: usize, node: i32) {
        match self.who(at) {
            Who::Member(_) => {}
            Who::Transactor(at) => {
                self.transactors.iter_mut().for_each(|it| it.on_arrived(at, node));
            }
            Who::Sharer(at) => self.sharers.iter_mut().for_each(|it| it.on_arrived(at, node)),
            Who::Otter(at) => self.otters.iter_mut().for_each(|it| it.on_arrived(at, node)),
        }
    }

    pub(super) fn choose(
        &mut self,
        at: usize,
        work: &mut Prng,
        (last_phase, now_us): (bool, u64),
    ) -> Option<Asking<Question>> {
        match self.who(at) {
            Who::Member(at) => {
                let (it, request, version) = self.members.as_mut()?.choose(at, work, last_phase)?;
                Some((Question::Member(it), request, version))
            }
            Who::Transactor(at) => {
                let (it, request, version) = self.transactors.as_mut()?.choose(at, work)?;
                Some((Question::Transactor(it), request, version))
            }
            Who::Sharer(at) => {
                let (it, request, version) = self.sharers.as_mut()?.choose(at, work, now_us)?;
                Some((Question::Sharer(it), request, version))
            }
            Who::Otter(at) => {
                let (it, request, version) = self.otters.as_mut()?.choose(at, work, now_us)?;
                Some((Question::Otter(it), request, version))
            }
        }
    }

    pub(super) fn on_response(
        &mut self,
        at: usize,
        asked: Question,
        came: &Response,
    ) -> Result<(), Failure> {
        match (self.who(at), asked) {
            (Who::Member(at), Question::Member(question)) => {
                let members = self.members.as_mut().expect("one of them asked");
                members.on_response(at, question, came)
            }
            (Who::Transactor(at), Question::Transactor(question)) => {
                let transactors = self.transactors.as_mut().expect("one of them asked");
                transactors.on_response(at, &question, came)
            }
            (Who::Sharer(at), Question::Sharer(question)) => {
                let sharers = self.sharers.as_mut().expect("one of them asked");
                sharers.on_response(at, question, came)
            }
            (Who::Otter(at), Question::Otter(question)) => {
                let otters = self.otters.as_mut().expect("one of them asked");
                otters.on_response(at, question, came)
            }
            _ => unexpected(came),
        }
    }

    /// Judges an answer that leaves a node, even if nobody hears it.
    pub(super) fn witness(
        &mut self,
        asked: Option<&Question>,
        connection: ConnectionId,
        answered: &Answered<'_>,
        sight: impl Fn(Uuid, i32) -> Option<Sight>,
    ) -> Result<(), Failure> {
        if let Some(sharers) = &mut self.sharers {
            let asked = asked.and_then(Question::of_sharer);
            sharers.witness(asked, connection, answered, &sight)?;
        }
        match &mut self.otters {
            Some(otters) => {
                let asked = asked.and_then(Question::of_otter);
                otters.witness(asked, connection, answered, &sight)
            }
            None => Ok(()),
        }
    }
}
