//! # Room card: logins
//!
//! Purpose:    let clients in by the users of the metadata, and close the connections of users that change.
//! Owns:       which connection is of which user; questions about users that came too early; the users of the first
//!             start.
//! Interface:  [`Logins::on_who_is`], [`Logins::on_known`], [`Logins::follow`].
//! Invariants: each known connection's user has the credential by which it came; a connection that is to close is not
//!             served any more; a node that may have missed a change for too long lets nobody in.
//! Never:      the exchange with a client (`login`); the table of users (`users`).
//! Tests:      `node/tests/users.rs`.
//! Start at:   [`Logins::on_who_is`].

use std::collections::{BTreeMap, BTreeSet};

use duramen_storage::sabotage::{self, Bug};

use crate::controller::METADATA_GROUP;
use crate::core::Core;
use crate::event::{Action, ConnectionId};
use crate::limits::LOGIN_DOUBT_US;
use crate::login::{Known, WhoIs};
use crate::metadata_records::{MetadataRecord, USERS_KIND};
use crate::users::record_of;

/// See the room card.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    known: BTreeMap<ConnectionId, Known>,
    /// Connections whose user changed, until they are gone.
    shut: BTreeSet<ConnectionId>,
    waiting: BTreeMap<ConnectionId, WhoIs>,
    /// Last time at which this node heard the leader of the metadata, or as the leader a majority, in monotonic
    /// microseconds. None before the first word.
    certain_us: Option<u64>,
    /// Index of the proposal that makes the first users.
    begun: Option<u64>,
}

impl Logins {
    /// Answers with a user's credential, once the node is open and the first users are there.
    pub(crate) fn on_who_is(&mut self, core: &mut Core, connection: ConnectionId, asked: WhoIs) {
        if is_to_wait(core) {
            self.waiting.insert(connection, asked);
            return;
        }
        self.note_certainty(core);
        let now_us = core.now.mono_us;
        let is_certain =
            self.certain_us.is_some_and(|it| now_us.saturating_sub(it) <= LOGIN_DOUBT_US);
        if !is_certain && !sabotage::is(Bug::DoubtIgnored) {
            let reason = "this node has not heard the leader of the metadata for long, so it lets \
                          nobody in";
            return core.out.push(Action::Close { connection, reason: reason.to_owned() });
        }
        let users = &core.controller.image.users;
        let credential = users.credential(&asked.user, asked.wanted, &core.options.secret);
        core.out.push(Action::Credential { connection, credential });
    }

    /// Answers the questions that waited.
    pub(crate) fn answer_waiting(&mut self, core: &mut Core) {
        if !self.waiting.is_empty() && !is_to_wait(core) {
            for (connection, asked) in std::mem::take(&mut self.waiting) {
                self.on_who_is(core, connection, asked);
            }
        }
    }

    /// Notes when this node heard the leader of the metadata last.
    pub(crate) fn note_certainty(&mut self, core: &Core) {
        let own = core.options.facts.broker_id;
        let heard_us = match core.metadata_leader() {
            Some(leader) if leader == own => majority_heard_us(core),
            Some(leader) => core.peers.heard_us(leader),
            None => None,
        };
        self.certain_us = self.certain_us.max(heard_us);
    }

    /// Notes that the machine was suspended: the last word is older by that time.
    pub(crate) fn note_suspended(&mut self, us: u64) {
        self.certain_us = self.certain_us.and_then(|it| it.checked_sub(us));
    }

    /// Notes that a client has shown who it is. Its user may have changed meanwhile.
    pub(crate) fn on_known(&mut self, core: &mut Core, connection: ConnectionId, known: Known) {
        if self.is_shut(connection) {
            return;
        }
        if core.controller.image.users.still_has(&known.user, &known.credential) {
            self.known.insert(connection, known);
        } else {
            let reason = changed(&known.user);
            self.known.remove(&connection);
            self.shut.insert(connection);
            core.out.push(Action::Close { connection, reason });
        }
    }

    /// Tells whether the user of a connection has changed: its requests are not served, and get no answer.
    pub(crate) fn is_shut(&self, connection: ConnectionId) -> bool {
        self.shut.contains(&connection)
    }

    /// Closes the connections whose user has another credential now, or none.
    pub(crate) fn follow(&mut self, core: &mut Core) {
        let (users, out) = (&core.controller.image.users, &mut core.out);
        let Self { known, shut, .. } = self;
        known.retain(|&connection, it| {
            let stays =
                users.still_has(&it.user, &it.credential) || sabotage::is(Bug::RemovedUserStays);
            if !stays {
                shut.insert(connection);
                out.push(Action::Close { connection, reason: changed(&it.user) });
            }
            stays
        });
    }

    /// Forgets a connection.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.known.remove(&connection);
        self.shut.remove(&connection);
        self.waiting.remove(&connection);
    }

    /// Makes the users that were named at the start, if the cluster has none: without one nobody could come in to make
    /// the first.
    pub(crate) fn begin(&mut self, core: &mut Core) {
        let named = &core.options.first_users;
        let may = core.is_registered && core.controller.group.is_serving();
        if named.is_empty() || !may || !core.controller.image.users.is_empty() {
            return;
        }
        let is_open = self.begun.is_some_and(|index| index > core.controller.group.applied());
        if is_open || core.which_lacks(USERS_KIND).is_some() {
            return;
        }
        let secret = core.controller.image.users.first_secret(&core.options.secret);
        let made = named.iter().map(|(user, credential)| record_of(user.clone(), credential));
        let records: Vec<MetadataRecord> = secret.into_iter().chain(made).collect();
        let users = named.len();
        self.begun = core.propose(&records).ok();
        if self.begun.is_some() {
            tracing::info!(users, "the cluster gets the users of bootstrap.users.file");
        }
    }

    /// Checks the connections that are known.
    pub(crate) fn inspect(&self, core: &Core) {
        let users = &core.controller.image.users;
        debug_assert!(
            sabotage::is(Bug::RemovedUserStays)
                || self.known.values().all(|it| users.still_has(&it.user, &it.credential)),
            "a client's user has the credential by which the client came"
        );
        debug_assert!(
            self.shut.iter().all(|it| !self.known.contains_key(it)),
            "a connection that is to close is of no user"
        );
        debug_assert!(
            self.waiting.is_empty() || is_to_wait(core),
            "questions about users wait for the opening and the first users alone"
        );
    }
}

/// Tells whether the users are not known yet: the node opens, or the cluster is about to get its first ones.
fn is_to_wait(core: &Core) -> bool {
    let awaits_first = !core.options.first_users.is_empty();
    core.is_opening() || (awaits_first && core.controller.image.users.is_empty())
}

/// Returns the last time at which a majority of the voters on the metadata was there, as its leader knows. One that
/// stood still takes itself for the leader although there may be another.
fn majority_heard_us(core: &Core) -> Option<u64> {
    let (group, now_us) = (&core.controller.group, core.now.mono_us);
    if !core.is_clustered() {
        return Some(now_us);
    }
    let heard = |peer: &u64| {
        if *peer == group.id().0 {
            return Some(now_us);
        }
        core.peers.heard_us(core.placed(METADATA_GROUP, *peer)?.broker_id)
    };
    let mut heard: Vec<Option<u64>> = group.voter_ids().iter().map(heard).collect();
    heard.sort_unstable();
    let others = heard.len().checked_sub(1)? / 2;
    group.is_serving().then(|| heard[others]).flatten()
}

fn changed(user: &str) -> String {
    format!("the user {user} was removed, or has another password")
}
