//! Invariants of a group, checked at the end of each turn.

use super::Group;
use super::log::GroupLog;

impl Group {
    pub(super) fn inspect(&self) {
        if self.failed.is_some() {
            return;
        }
        self.inspect_log();
        self.inspect_writes();
        self.inspect_role();
        self.inspect_peers();
        self.shipping.inspect();
        self.raw.store().inspect();
    }

    /// Checks the order of the indexes: applied, on the disk, committed, in the log.
    fn inspect_log(&self) {
        let (log, store) = (&self.raw.raft.raft_log, self.raw.store());
        assert!(self.applied.0 <= log.committed, "only committed entries are applied");
        assert!(log.committed <= log.last_index(), "the log has all that is committed");
        assert!(log.persisted <= log.last_index(), "the disk has no entry that the log lacks");
        assert!(
            self.applied.0 <= log.persisted || self.is_beginning(),
            "only entries on this disk are applied, except those of a snapshot"
        );
        assert_eq!(log.last_index(), store.last(), "a turn stores all of the log");
        assert!(store.history.index <= store.last(), "the log does not end before its history");
        assert_eq!(
            store.term_of(self.applied.0),
            Some(self.applied.1),
            "the term of the last applied entry is known"
        );
        assert!(
            self.pace.commits.1 <= self.pace.commits.0 && self.pace.commits.0 <= log.committed,
            "samples of the commit index rise"
        );
    }

    /// Checks what was given to storage against what is still to be given to it.
    fn inspect_writes(&self) {
        let log = &self.raw.raft.raft_log;
        assert!(self.payloads.is_empty(), "every payload is in the log or was refused");
        assert!(self.released.is_empty(), "a turn sends all that may be sent");
        assert!(self.create.is_none(), "a turn stores the replica before anything in it");
        assert!(self.proposed.is_empty(), "a turn looks at all that was proposed");
        assert!(self.arriving.is_none(), "a snapshot is taken or refused in the turn it comes");
        assert!(self.fed.is_none(), "a prefix is only of the letter that is being heard");
        let hard_state = self.raw.store().hard_state;
        assert!(
            hard_state.commit <= log.committed,
            "the stored commit index is known to be committed"
        );
        assert!(hard_state.term <= self.raw.raft.term, "the stored term is not ahead");
        assert!(
            self.unsaved.is_none_or(|unsaved| unsaved == hard_state),
            "the next write takes the latest hard state along"
        );
        assert!(
            self.in_flight.front().is_none_or(|first| !first.silent),
            "only a write that storage has holds up others"
        );
        debug_assert!(
            self.in_flight.iter().is_sorted_by(|a, b| a.ticket < b.ticket),
            "tickets rise"
        );
        debug_assert_eq!(
            self.bytes_in_flight,
            self.in_flight.iter().map(|it| it.payload_bytes).sum::<u64>() + self.late.bytes,
            "bytes in flight are those of writes that storage has, and of letters that wait"
        );
    }

    /// Checks that the replica does what its role allows.
    fn inspect_role(&self) {
        assert!(self.led <= self.raw.raft.term, "no later term was led");
        assert!(self.acknowledged.1 <= self.raw.raft.term, "no later term's leader was answered");
        assert!(
            !self.is_asleep() || self.has_nothing_under_way(),
            "a group that sleeps has nothing under way"
        );
        if !self.is_elected() {
            assert!(!self.is_moving(), "only a leader hands leadership over");
            assert!(self.raw.store().pieces.is_empty(), "only a leader brings followers up");
            return;
        }
        assert_eq!(self.led, self.raw.raft.term, "the term that is led counts as led");
        assert_eq!(self.leader(), Some(self.id.0), "a leader knows itself as leader");
        let conf = &self.raw.store().conf;
        let is_of = |voters: &[u64]| voters.contains(&self.id.0);
        assert!(is_of(&conf.voters) || is_of(&conf.voters_outgoing), "a leader votes");
        assert!(!self.is_beginning(), "a leader's log does not begin anew");
    }

    /// Checks what is known of the peers.
    fn inspect_peers(&self) {
        let ticks = self.pace.ticks;
        debug_assert!(
            self.pace.heard.values().chain(self.pace.snapshots.values()).all(|at| *at <= ticks),
            "no peer was heard in a tick to come"
        );
        debug_assert!(
            !self.pace.heard.contains_key(&self.id.0),
            "a replica hears nothing from itself"
        );
        let conf = &self.raw.store().conf;
        debug_assert!(conf.voters.is_sorted_by(|a, b| a < b), "a peer votes once");
        debug_assert!(
            !conf.voters.iter().any(|voter| conf.learners.contains(voter)),
            "no voter is a learner"
        );
    }
}

impl GroupLog {
    /// Checks that terms and segments are in the order of the entries, as binary searches expect.
    fn inspect(&self) {
        debug_assert!(
            self.runs.is_sorted_by(|a, b| a.term < b.term
                && a.first_index < b.first_index
                && a.start_offset <= b.start_offset),
            "terms follow each other"
        );
        debug_assert!(
            self.segments.values().is_sorted_by(|a, b| a < b),
            "segments are in the order of their offsets"
        );
        let last = self.segments.last_key_value();
        assert!(
            last.is_none_or(|(index, base)| *index <= self.last() && *base < self.end_offset()),
            "a segment begins with a batch of the log"
        );
        assert!(
            self.history.end_offset <= self.end_offset(),
            "the history ends within the log's offsets"
        );
    }
}
