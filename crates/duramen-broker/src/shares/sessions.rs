//! # Room card: share sessions
//!
//! Purpose:    the partitions that each consumer of a share group fetches from this node, so that it need not name them
//!             every time (KIP-932).
//! Owns:       the sessions, their epochs, their bounded number, the connection of each.
//! Interface:  [`ShareSessions::begin`], [`ShareSessions::acknowledge`], [`ShareSessions::end`].
//! Invariants: a session's epoch counts its requests; the counts of sessions and of partitions in them are bounded.
//! Never:      records, and their holders (see `partition`).
//! Tests:      below and `node/tests/shares.rs`.
//! Start at:   [`ShareSessions::begin`].

use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;

use crate::event::ConnectionId;
use crate::limits::{INSPECTED_MAX, SHARE_SESSION_PARTITIONS_MAX};

/// Asks for a new session.
pub(crate) const FIRST_EPOCH: i32 = 0;
/// Ends the session.
pub(crate) const FINAL_EPOCH: i32 = -1;

/// A consumer of a share group.
pub(crate) type Member = (Arc<str>, Arc<str>);

/// A partition by its topic's id.
pub(crate) type Target = (Uuid, i32);

#[derive(Debug)]
struct Session {
    epoch: i32,
    /// Partitions, each with its turn: a partition that was served goes to the end.
    targets: BTreeMap<Target, u64>,
    turns: u64,
    connection: ConnectionId,
}

/// Partitions that a request added to a session or removed from it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub added: Vec<Target>,
    pub removed: Vec<Target>,
}

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct ShareSessions {
    /// Highest count of sessions.
    most: usize,
    sessions: BTreeMap<Member, Session>,
    by_connection: BTreeMap<ConnectionId, Vec<Member>>,
    partitions: usize,
}

impl ShareSessions {
    /// Builds an empty set of sessions, with a highest count.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Returns the count of sessions.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Tells whether a consumer has a session.
    pub(crate) fn has(&self, member: &Member) -> bool {
        self.sessions.contains_key(member)
    }

    /// Begins a session, or continues one. A new session replaces the member's old one only after the caller has ended
    /// the old one.
    pub(crate) fn begin(
        &mut self,
        member: &Member,
        epoch: i32,
        connection: ConnectionId,
        asked: &[Target],
        forgotten: &[Target],
    ) -> Result<Changed, ErrorCode> {
        if epoch == FIRST_EPOCH {
            if self.sessions.len() >= self.most {
                return Err(ErrorCode::ShareSessionLimitReached);
            }
            let session =
                Session { epoch: FIRST_EPOCH, targets: BTreeMap::new(), turns: 0, connection };
            let before = self.sessions.insert(member.clone(), session);
            assert!(before.is_none(), "{member:?} has no session any more");
            self.by_connection.entry(connection).or_default().push(member.clone());
        }
        let session = self.sessions.get_mut(member).ok_or(ErrorCode::ShareSessionNotFound)?;
        if session.epoch != epoch {
            return Err(ErrorCode::InvalidShareSessionEpoch);
        }
        session.epoch = epoch.checked_add(1).unwrap_or(1);
        if session.connection != connection {
            let before = std::mem::replace(&mut session.connection, connection);
            if let Some(members) = self.by_connection.get_mut(&before) {
                members.retain(|other| other != member);
                if members.is_empty() {
                    self.by_connection.remove(&before);
                }
            }
            self.by_connection.entry(connection).or_default().push(member.clone());
        }
        let mut changed = Changed::default();
        for target in asked {
            if self.partitions < SHARE_SESSION_PARTITIONS_MAX
                && !session.targets.contains_key(target)
            {
                session.turns += 1;
                session.targets.insert(*target, session.turns);
                self.partitions += 1;
                changed.added.push(*target);
            }
        }
        for target in forgotten {
            if session.targets.remove(target).is_some() {
                self.partitions -= 1;
                changed.removed.push(*target);
            }
        }
        self.inspect();
        Ok(changed)
    }

    /// Counts a request that only acknowledges. Its epoch may be the final one.
    pub(crate) fn acknowledge(&mut self, member: &Member, epoch: i32) -> Result<(), ErrorCode> {
        if epoch == FIRST_EPOCH {
            return Err(ErrorCode::InvalidShareSessionEpoch);
        }
        let session = self.sessions.get_mut(member).ok_or(ErrorCode::ShareSessionNotFound)?;
        if epoch == FINAL_EPOCH {
            return Ok(());
        }
        if session.epoch != epoch {
            return Err(ErrorCode::InvalidShareSessionEpoch);
        }
        session.epoch = epoch.checked_add(1).unwrap_or(1);
        Ok(())
    }

    /// Ends a session, and returns its partitions.
    pub(crate) fn end(&mut self, member: &Member) -> Option<Vec<Target>> {
        let session = self.sessions.remove(member)?;
        self.partitions -= session.targets.len();
        if let Some(members) = self.by_connection.get_mut(&session.connection) {
            members.retain(|other| other != member);
            if members.is_empty() {
                self.by_connection.remove(&session.connection);
            }
        }
        self.inspect();
        Some(session.targets.into_keys().collect())
    }

    /// Checks the counts, and that connections lead to all sessions.
    fn inspect(&self) {
        assert!(self.partitions <= SHARE_SESSION_PARTITIONS_MAX, "partitions are bounded");
        assert!(self.sessions.len() <= self.most, "there are {} sessions at most", self.most);
        if !cfg!(debug_assertions) || self.sessions.len() > INSPECTED_MAX {
            return;
        }
        let partitions = self.sessions.values().map(|it| it.targets.len());
        assert_eq!(
            self.partitions,
            partitions.sum::<usize>(),
            "the partitions of sessions are counted"
        );
        for (member, Session { targets, turns, connection, epoch }) in &self.sessions {
            assert!(*epoch > FIRST_EPOCH, "the next request of {member:?} continues its session");
            assert!(targets.values().all(|it| it <= turns), "{member:?} has turns that were given");
            let of_it = self.by_connection.get(connection);
            let is_there = of_it.is_some_and(|it| it.contains(member));
            assert!(is_there, "the connection of {member:?} leads to its session");
        }
        assert!(self.by_connection.values().all(|it| !it.is_empty()), "connections have sessions");
        let count: usize = self.by_connection.values().map(Vec::len).sum();
        assert_eq!(count, self.sessions.len(), "a session has one connection");
    }

    /// Returns the members whose last request came by a connection.
    pub(crate) fn of(&self, connection: ConnectionId) -> Vec<Member> {
        self.by_connection.get(&connection).cloned().unwrap_or_default()
    }

    /// Returns the partitions of a session, the one that waits longest first.
    pub(crate) fn targets(&self, member: &Member) -> Vec<Target> {
        let Some(session) = self.sessions.get(member) else { return Vec::new() };
        let mut targets: Vec<_> = session.targets.iter().map(|(it, turn)| (*turn, *it)).collect();
        targets.sort_unstable();
        targets.into_iter().map(|(_, target)| target).collect()
    }

    /// Moves a served partition behind the others, which come first next time.
    pub(crate) fn served(&mut self, member: &Member, target: &Target) {
        let Some(session) = self.sessions.get_mut(member) else { return };
        if let Some(turn) = session.targets.get_mut(target) {
            session.turns += 1;
            *turn = session.turns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> Member {
        ("g".into(), name.into())
    }

    fn target(partition: i32) -> Target {
        (Uuid::from_u128(7), partition)
    }

    const HERE: ConnectionId = ConnectionId(1);

    #[test]
    fn a_session_remembers_what_it_fetches_and_all_get_their_turn() {
        let mut sessions = ShareSessions::new(1);
        let (a, all) = (who("a"), [target(0), target(1), target(2)]);
        let changed = sessions.begin(&a, 0, HERE, &all, &[]).expect("a new session");
        assert_eq!(changed.added, all);
        let changed = sessions.begin(&a, 1, HERE, &[target(5)], &[target(1)]).expect("the next");
        assert_eq!((changed.added, changed.removed), (vec![target(5)], vec![target(1)]));
        assert_eq!(sessions.targets(&a), [target(0), target(2), target(5)]);
        sessions.served(&a, &target(0));
        assert_eq!(sessions.targets(&a), [target(2), target(5), target(0)]);
        assert_eq!(sessions.end(&a).expect("it was there").len(), 3);
        assert_eq!((sessions.partitions, sessions.by_connection.len()), (0, 0));
    }

    #[test]
    fn epochs_are_counted_and_sessions_found_by_their_connection() {
        let mut sessions = ShareSessions::new(1);
        let (a, there) = (who("a"), ConnectionId(2));
        let code = |it: Result<Changed, ErrorCode>| it.expect_err("refused");
        let unknown = sessions.begin(&a, 4, HERE, &[], &[]);
        assert_eq!(code(unknown), ErrorCode::ShareSessionNotFound);
        assert_eq!(sessions.acknowledge(&a, 1), Err(ErrorCode::ShareSessionNotFound));
        sessions.begin(&a, 0, HERE, &[target(0)], &[]).expect("new");
        assert_eq!(sessions.acknowledge(&a, 0), Err(ErrorCode::InvalidShareSessionEpoch));
        assert_eq!(sessions.acknowledge(&a, 1), Ok(()));
        let stale = sessions.begin(&a, 1, HERE, &[], &[]);
        assert_eq!(code(stale), ErrorCode::InvalidShareSessionEpoch);
        sessions.begin(&a, 2, there, &[], &[]).expect("by another connection");
        assert_eq!((sessions.of(HERE), sessions.of(there)), (vec![], vec![a.clone()]));
        assert_eq!(sessions.by_connection.len(), 1, "the connection before is forgotten");
        assert_eq!(sessions.acknowledge(&a, FINAL_EPOCH), Ok(()));
    }

    #[test]
    fn there_are_so_many_and_not_one_more() {
        let mut sessions = ShareSessions::new(5);
        for n in 0..5 {
            sessions.begin(&who(&n.to_string()), 0, HERE, &[], &[]).expect("room");
        }
        let full = sessions.begin(&who("more"), 0, HERE, &[], &[]);
        assert_eq!(full.expect_err("none is left"), ErrorCode::ShareSessionLimitReached);
        sessions.end(&who("3")).expect("it was there");
        sessions.begin(&who("more"), 0, HERE, &[], &[]).expect("room again");
    }
}
