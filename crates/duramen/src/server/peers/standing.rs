//! # Room card: standing
//!
//! Purpose:    say whether this node is a member of its cluster, and tell others that they are not.
//! Owns:       the cluster's directories, by the node's metadata; the notices of other nodes about this directory.
//! Interface:  [`Standing::follow`], [`Standing::judge`], [`Standing::hear`], [`Standing::until_member`].
//! Invariants: only a registered node judges others. A notice counts if it follows from newer metadata than this node
//!             has, so that nobody who is behind refuses one that is ahead.
//! Never:      who becomes a member: the leader of the metadata decides that (see the broker's `node/members.rs`).
//! Tests:      below; `tests/cluster.rs` with real processes.
//! Start at:   [`Standing::judge`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duramen_broker::event::Membership;
use tokio::sync::watch;

use super::greeting::Identity;
use super::notice::Notice;
use crate::server::health::Health;

/// See the room card.
#[derive(Debug)]
pub struct Standing {
    broker_id: i32,
    directory_id: [u8; 16],
    /// The operator asked for the place of the directory that is registered under this id.
    replaces: bool,
    state: Mutex<State>,
    /// Signal that [`Standing::until_member`] awaits.
    is_member: watch::Sender<bool>,
    health: Arc<Health>,
}

#[derive(Debug, Default)]
struct State {
    members: Membership,
    is_member: bool,
    /// Refusal of this directory by others, with the index of the metadata that it follows from.
    refusal: Option<(u64, String)>,
    /// The directory that came last under this node's id, as it was logged.
    rival: Option<[u8; 16]>,
}

impl Standing {
    pub(super) fn new(own: &Identity, replaces: bool, health: Arc<Health>) -> Self {
        let standing = Self {
            broker_id: own.broker_id,
            directory_id: own.directory_id,
            replaces,
            state: Mutex::default(),
            is_member: watch::Sender::new(false),
            health,
        };
        standing.tell(&standing.state());
        standing
    }

    /// Takes the members that the node's metadata has.
    pub(super) fn follow(&self, members: Membership) {
        let mut state = self.state();
        if members.retired.contains(&self.directory_id) {
            Self::refuse(&mut state, members.index, self.refusal(None, false));
        } else if members.is_registered
            && state.refusal.as_ref().is_none_or(|(index, _)| *index <= members.index)
        {
            state.refusal = None;
            if self.replaces && !state.is_member {
                tracing::warn!(
                    "this node started with --replace, and is registered now: leave --replace out from now on, or an empty \
                     directory under a missing mount takes this one's place"
                );
            }
        }
        state.is_member = members.is_registered && state.refusal.is_none();
        state.members = members;
        self.tell(&state);
    }

    /// Returns the notice for a node that has no place in the cluster with the directory that it has.
    pub(super) fn judge(
        &self,
        from: &Identity,
        address: SocketAddr,
        is_here: impl Fn(&[u8; 16]) -> bool,
    ) -> Option<Notice> {
        let state = self.state();
        let members = &state.members;
        let &Identity { broker_id, directory_id, .. } = from;
        if !state.is_member {
            return None;
        }
        let holder = members.directories.get(&broker_id).copied();
        let is_retired = members.retired.contains(&directory_id);
        if !is_retired && holder.is_none_or(|holder| holder == directory_id) {
            return None;
        }
        let holder = holder.filter(|_| !is_retired);
        Some(Notice {
            index: members.index,
            broker_id,
            holder,
            claimant: directory_id,
            address: address.to_string(),
            is_holder_here: holder.is_some_and(|holder| is_here(&holder)),
        })
    }

    /// Takes another node's notice about this directory, or about one that comes under this node's id.
    pub(super) fn hear(&self, notice: &Notice) {
        if notice.broker_id != self.broker_id {
            return;
        }
        let mut state = self.state();
        if notice.claimant == self.directory_id {
            if notice.index > state.members.index {
                let why = self.refusal(notice.holder, notice.is_holder_here);
                Self::refuse(&mut state, notice.index, why);
                state.is_member = false;
            }
        } else if notice.holder == Some(self.directory_id)
            && state.rival.replace(notice.claimant) != Some(notice.claimant)
        {
            tracing::warn!(
                directory = hex(&notice.claimant),
                address = notice.address,
                "another process has this node's node.id ({}) and another data directory: the cluster refuses that process \
                 unless it starts with --replace. Stop that process, or give it an id of its own",
                self.broker_id
            );
        }
        self.tell(&state);
    }

    /// Describes why this directory has no place, and the way out.
    fn refusal(&self, holder: Option<[u8; 16]>, is_holder_here: bool) -> String {
        let id = self.broker_id;
        let Some(holder) = holder else {
            return format!(
                "the cluster has removed the data directory of node {id}, or another one has taken its place: this one never \
                 belongs to it again. To join again, start the node with an empty data directory, and with --replace if another one has its place"
            );
        };
        let holder = hex(&holder);
        if self.replaces {
            return format!(
                "node {id} is registered with another data directory, {holder}. As --replace asks for it, this one takes its \
                 place once that one has not been heard for three seconds"
            );
        }
        let both = if is_holder_here {
            format!(
                "That one is connected now, so two processes have node.id {id}: stop this one, or give it an id of its own. "
            )
        } else {
            String::new()
        };
        format!(
            "node {id} is registered with another data directory, {holder}. {both}If this one was to be that directory (a mount \
             may be missing), stop the node, and start it with the right one. Only if that one is lost for ever, start this \
             node with --replace"
        )
    }

    fn refuse(state: &mut State, index: u64, why: String) {
        if state.refusal.as_ref().is_none_or(|(_, before)| *before != why) {
            tracing::error!(why, "this node is not a member of its cluster, and waits");
        }
        state.refusal = Some((index, why));
    }

    /// Says why this node is not a member, if it is not.
    pub(crate) fn problem(&self) -> Option<String> {
        Self::problem_in(&self.state())
    }

    fn problem_in(state: &State) -> Option<String> {
        if state.is_member {
            return None;
        }
        let refusal = state.refusal.as_ref().map(|(_, why)| why.clone());
        Some(refusal.unwrap_or_else(|| {
            "this node is not registered with its cluster yet: most of those who keep the metadata must be heard".to_owned()
        }))
    }

    fn tell(&self, state: &State) {
        self.health.set_stranger(Self::problem_in(state));
        self.is_member.send_replace(state.is_member);
    }

    /// Waits until this node is a member.
    pub(crate) async fn until_member(&self) {
        let mut is_member = self.is_member.subscribe();
        let _ = is_member.wait_for(|is_member| *is_member).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a directory's id, as its manifest has it.
pub(super) fn hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; 16] = [2; 16];
    const NEW: [u8; 16] = [3; 16];

    fn identity(broker_id: i32, directory_id: [u8; 16]) -> Identity {
        Identity { broker_id, directory_id, cluster_id: Some([9; 16]), voters: Vec::new() }
    }

    fn standing(broker_id: i32, directory_id: [u8; 16]) -> Standing {
        Standing::new(&identity(broker_id, directory_id), false, Arc::default())
    }

    fn members(index: u64, of_two: [u8; 16], retired: &[[u8; 16]]) -> Membership {
        let directories = [(1, [1; 16]), (2, of_two)].into();
        let retired = retired.iter().copied().collect();
        Membership { index, directories, retired, is_registered: true }
    }

    fn judged(by: &Standing, directory_id: [u8; 16]) -> Option<Notice> {
        let address = "10.0.0.2:1234".parse().expect("an address");
        let notice = by.judge(&identity(2, directory_id), address, |_| false)?;
        Some(Notice::decode(&notice.encode()).expect("it reads back"))
    }

    #[test]
    fn a_directory_is_told_that_its_id_is_registered_with_another_one() {
        let one = standing(1, [1; 16]);
        assert_eq!(judged(&one, NEW), None, "one that is no member itself judges nobody");
        one.follow(members(7, OLD, &[]));
        assert_eq!(judged(&one, OLD), None);
        let notice = judged(&one, NEW).expect("it is another one");
        let fresh = standing(2, NEW);
        fresh.hear(&notice);
        assert!(fresh.problem().is_some_and(|it| it.contains("--replace")));
        assert_eq!(fresh.health.stranger(), fresh.problem());
        assert_eq!(fresh.health.not_ready().first().cloned(), fresh.problem());
        // The one that has the place is told of it, and is well.
        let held = standing(2, OLD);
        held.follow(members(7, OLD, &[]));
        held.hear(&notice);
        assert_eq!(held.problem(), None);
        assert_eq!(held.state().rival, Some(NEW));
    }

    #[test]
    fn one_that_was_removed_knows_it_of_itself_or_by_others() {
        let one = standing(1, [1; 16]);
        one.follow(members(9, NEW, &[OLD]));
        let of_itself = standing(2, OLD);
        of_itself.follow(members(6, OLD, &[]));
        assert_eq!(of_itself.problem(), None);
        of_itself.follow(members(9, NEW, &[OLD]));
        let by_others = standing(2, OLD);
        by_others.follow(members(6, OLD, &[]));
        by_others.hear(&judged(&one, OLD).expect("it was retired"));
        for it in [of_itself, by_others] {
            assert!(it.problem().is_some_and(|it| it.contains("has removed the data directory")));
            assert!(judged(&it, NEW).is_none(), "it judges nobody any more");
        }
    }

    #[test]
    fn whoever_is_behind_refuses_nobody() {
        let behind = standing(1, [1; 16]);
        behind.follow(members(7, OLD, &[]));
        let follows = standing(2, NEW);
        follows.follow(members(9, NEW, &[OLD]));
        follows.hear(&judged(&behind, NEW).expect("it knows of the other one"));
        assert_eq!(follows.problem(), None);
    }

    #[test]
    fn what_was_said_before_a_node_was_registered_is_over_then() {
        let one = standing(1, [1; 16]);
        one.follow(members(7, OLD, &[]));
        let follows = Standing { replaces: true, ..standing(2, NEW) };
        follows.hear(&judged(&one, NEW).expect("it is another one"));
        assert!(follows.problem().is_some_and(|it| it.contains("As --replace asks")));
        follows.follow(members(9, NEW, &[OLD]));
        assert_eq!(follows.problem(), None);
        assert_eq!(follows.health.stranger(), None);
    }
}
