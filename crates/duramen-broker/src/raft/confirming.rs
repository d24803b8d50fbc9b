//! Leadership check: a leader asks its followers whether it still leads. This is the `ReadIndex` of the Raft thesis,
//! section 6.4.
//!
//! One question is on its way at a time. Later requests share the next question, since the answer to an earlier one
//! says nothing of a later moment.

use raft::ReadState;

/// A question and its place in order: term and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    term: u64,
    number: u64,
    /// Index up to which a client may take entries for complete.
    end: u64,
}

/// Whatever waits for leadership checks of one replica, in the order in which it came.
#[derive(Debug)]
pub(crate) struct Unsure<T>(Vec<(Doubt, T)>);

impl<T> Default for Unsure<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Unsure<T> {
    pub(crate) fn push(&mut self, doubt: Doubt, it: T) {
        assert!(
            self.0
                .last()
                .is_none_or(|(last, _)| { last.number <= doubt.number && last.term <= doubt.term }),
            "leadership checks come in order"
        );
        self.0.push((doubt, it));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all that waits no more, each with whether the replica led for certain. `led` is the group's answer.
    pub(crate) fn settle(&mut self, led: impl Fn(Doubt) -> Option<bool>) -> Vec<(bool, T)> {
        let known = self.0.extract_if(.., |(doubt, _)| led(*doubt).is_some());
        known.map(|(doubt, it)| (led(doubt) == Some(true), it)).collect()
    }

    /// Takes all, whatever the checks will say.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.0.drain(..).map(|(_, it)| it)
    }
}

/// Numbers only grow, also from term to term.
#[derive(Debug, Default)]
pub(super) struct Confirming {
    /// In which the last question was asked.
    term: u64,
    asked: u64,
    sent: u64,
    confirmed: u64,
    /// The last answer, and the index that was committed when its question was asked.
    answer: Option<(u64, u64)>,
}

impl Confirming {
    pub(super) fn ask(&mut self, term: u64, end: u64) -> Doubt {
        if self.term != term {
            // The library has forgotten what another term's leader asked.
            self.term = term;
            self.confirmed = self.sent;
            self.answer = None;
        }
        if self.asked == self.sent {
            self.asked += 1;
        }
        assert!(self.confirmed <= self.sent && self.sent <= self.asked, "questions go in order");
        Doubt { term, number: self.asked, end }
    }

    /// Returns true once it is known that this replica led, and all that was complete then is applied. Returns false in
    /// another term, in which it may or may not have led in between.
    pub(super) fn answer(&self, doubt: Doubt, term: u64, applied: u64) -> Option<bool> {
        if doubt.term != term {
            return Some(false);
        }
        (self.confirmed >= doubt.number && applied >= doubt.end).then_some(true)
    }

    /// Returns the question for the followers, if one is due.
    pub(super) fn question(&mut self, term: u64) -> Option<Vec<u8>> {
        let is_due = self.term == term && self.asked > self.sent && self.confirmed == self.sent;
        is_due.then(|| {
            self.sent = self.asked;
            self.sent.to_be_bytes().to_vec()
        })
    }

    /// Returns the number of questions that were asked.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Tells whether no request waits for an answer in this term.
    pub(super) fn is_idle(&self, term: u64) -> bool {
        self.term != term || self.asked == self.confirmed
    }

    pub(super) fn on_answers(&mut self, answers: &[ReadState]) {
        for answer in answers {
            let number = answer.request_ctx.as_slice().try_into().map(u64::from_be_bytes);
            self.answer = number.ok().map(|number| (number, answer.index));
        }
    }

    /// Confirms a question once the entries that were committed when it was asked are applied.
    pub(super) fn on_applied(&mut self, applied: u64) {
        if let Some((number, _)) = self.answer.take_if(|(_, index)| *index <= applied) {
            self.confirmed = self.confirmed.max(number);
            assert!(self.confirmed <= self.sent, "only a question that was sent is answered");
        }
    }
}
