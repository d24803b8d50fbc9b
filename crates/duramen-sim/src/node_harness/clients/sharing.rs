//! Clients that share partitions as members of one group, and the answers that they may get.
//!
//! The leader of a generation gives each partition to one member, by chance. A member that was told of a partition
//! owns it alone in that generation. Owners commit offsets, each with a larger number than all before. So do former
//! owners that do not know yet that they own nothing any more. As soon as anybody was told of its partitions in a
//! newer generation, those commits must be refused. The committed offset of a partition never goes back.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::messages::sync_group::SyncGroupRequestAssignment;
use duramen_protocol::messages::{
    FindCoordinatorResponse, JoinGroupResponse, OffsetCommitResponse, OffsetFetchResponse,
    SyncGroupResponse,
};
use duramen_protocol::{ErrorCode, Response};

use super::answers::{CLASSIC_CODES as CODES, expect_one_of, on_left, unexpected};
use super::committing::{Known, PARTITIONS, UNKNOWN, on_told};
use super::requests::{self, Asking, COMMITTED, Classic};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

const GROUP: &str = "wolves";
const MEMBERS: usize = 3;

/// Present or former identity of a member.
#[derive(Clone, Debug)]
struct Identity {
    id: String,
    generation: i32,
}

impl Identity {
    /// Anybody, as long as the group is empty.
    const NOBODY: Self = Self { id: String::new(), generation: -1 };
}

/// Stage of a member.
#[derive(Clone, Debug)]
enum Stage {
    Out,
    /// The member is in a generation; its leader knows all members.
    Joined {
        led: Vec<String>,
    },
    /// The member knows its partitions.
    In {
        owned: Vec<i32>,
    },
}

#[derive(Clone, Debug)]
struct Member {
    /// Its static name.
    instance: Option<&'static str>,
    session_timeout_ms: i32,
    rebalance_timeout_ms: i32,
    is: Identity,
    stage: Stage,
    /// Former identity of the member, with its partitions: it may not know that this identity is over.
    was: Option<(Identity, Vec<i32>)>,
    /// True if the member has to ask for the group's coordinator.
    seeks: bool,
    /// Number of turns for which the member still says nothing.
    silent: u64,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Find,
    Join,
    Sync,
    Heartbeat,
    Leave,
    Commit(Commit),
    Fetch,
}

/// A commit on its way.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    by: Identity,
    number: i64,
    partitions: Vec<i32>,
    /// True if the commit must be refused.
    void: bool,
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: Vec<Member>,
    known: BTreeMap<i32, Known>,
    number: i64,
    /// True once something was committed: from then on the group is never forgotten.
    is_founded: bool,
    /// Owner of each partition, in each generation of which anybody was told.
    owners: BTreeMap<(i32, i32), String>,
    /// Newest generation in which anybody was told of its partitions; below, the static members that were told in it.
    newest: i32,
    told: BTreeMap<&'static str, Identity>,
    refused: u64,
    /// Node to which a member wants to be connected.
    aims: Vec<(usize, i32)>,
    /// Members may ask for offsets; in the last phase one must.
    is_told: bool,
}

impl Members {
    /// Makes members in every second seed.
    pub(super) fn of(seed: u64) -> Option<Self> {
        let mut shape = Prng::new(seed, "members of groups");
        let names = ["one", "two", "three"];
        let mut member = |at: usize| Member {
            instance: shape.chance(300).then_some(names[at]),
            session_timeout_ms: *shape.pick(&[1_000, 3_000]),
            rebalance_timeout_ms: *shape.pick(&[500, 1_500]),
            is: Identity::NOBODY,
            stage: Stage::Out,
            was: None,
            seeks: true,
            silent: 0,
        };
        let all = (0..MEMBERS).map(&mut member).collect();
        shape.chance(500).then(|| Self { all, newest: -1, ..Self::default() })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn begin_last_phase(&mut self) {
        self.is_told = false;
    }

    /// Tells whether all members know their partitions in one generation, every partition has an owner, and the
    /// committed offsets were told.
    pub(super) fn is_done(&self) -> bool {
        let owned = |member: &Member| match &member.stage {
            Stage::In { owned } if member.is.generation == self.newest => Some(owned.len()),
            _ => None,
        };
        let owned: Option<usize> = self.all.iter().map(owned).sum();
        self.is_told && owned == usize::try_from(PARTITIONS).ok()
    }

    /// Generations of which anybody was told, and commits that were refused.
    pub(super) fn totals(&self) -> (u64, u64) {
        let generations: BTreeSet<i32> =
            self.owners.keys().map(|(generation, _)| *generation).collect();
        (generations.len() as u64, self.refused)
    }

    /// Takes the members that want another node, each with that node.
    pub(super) fn take_aims(&mut self) -> Vec<(usize, i32)> {
        std::mem::take(&mut self.aims)
    }

    pub(super) fn choose(
        &mut self,
        at: usize,
        work: &mut Prng,
        last_phase: bool,
    ) -> Option<Asking<Question>> {
        let member = &mut self.all[at];
        member.silent = if last_phase { 0 } else { member.silent.saturating_sub(1) };
        if member.silent > 0 || last_phase && self.is_done() {
            return None;
        }
        if self.all[at].seeks {
            return Some((Question::Find, requests::find(requests::GROUP_KEY, &[GROUP]), 4));
        }
        if !self.is_founded {
            let all = (0..PARTITIONS).collect();
            return (at == 0).then(|| self.commit(at, work, Identity::NOBODY, all));
        }
        let member = &mut self.all[at];
        if !last_phase {
            match work.below(100) {
                0 => {
                    member.silent = work.between(20, 150);
                    return None;
                }
                1 => member.forget(),
                2 => member.stage = Stage::Out,
                3 if !member.is.id.is_empty() => return Some(member.leave(work)),
                4..=8 => {
                    if let Some((who, partitions)) = member.was.clone() {
                        return Some(self.commit(at, work, who, partitions));
                    }
                }
                _ => {}
            }
        }
        let member = &self.all[at];
        Some(match &member.stage {
            Stage::Out => member.join(work),
            Stage::Joined { led } => member.sync(led, work),
            Stage::In { owned } if !owned.is_empty() && work.chance(400) => {
                let (who, owned) = (member.is.clone(), owned.clone());
                self.commit(at, work, who, owned)
            }
            Stage::In { .. } if !last_phase && work.chance(800) => member.heartbeat(work),
            Stage::In { .. } if self.is_told && work.chance(800) => member.heartbeat(work),
            Stage::In { .. } => {
                let request = requests::committed(&[GROUP], COMMITTED, PARTITIONS);
                (Question::Fetch, request.into(), *work.pick(&[8, 9]))
            }
        })
    }

    fn commit(
        &mut self,
        at: usize,
        work: &mut Prng,
        by: Identity,
        partitions: Vec<i32>,
    ) -> Asking<Question> {
        self.number += 1;
        let (number, instance) = (self.number, self.all[at].instance);
        let void = self.is_past(&by, instance);
        for partition in partitions.iter().filter(|_| !void) {
            self.known.entry(*partition).or_default().sent.push(number);
        }
        let mut request = requests::commit(GROUP, COMMITTED, number, &partitions, Some(""));
        request.generation_id_or_member_epoch = by.generation;
        request.member_id.clone_from(&by.id);
        request.group_instance_id = instance.filter(|_| by.generation >= 0).map(str::to_owned);
        let version = *work.pick(if instance.is_some() { &[7, 9] } else { &[2, 5, 9] });
        (Question::Commit(Commit { by, number, partitions, void }), request.into(), version)
    }

    /// Tells whether somebody was told of partitions that it could not own if this one were still a member.
    fn is_past(&self, who: &Identity, instance: Option<&'static str>) -> bool {
        let is_renamed = |now: &Identity| now.generation >= who.generation && now.id != who.id;
        who.generation < self.newest
            || instance.and_then(|name| self.told.get(name)).is_some_and(is_renamed)
    }

    pub(super) fn on_response(
        &mut self,
        at: usize,
        question: Question,
        came: &Response,
    ) -> Result<(), Failure> {
        match (question, came) {
            (Question::Find, Response::FindCoordinator(it)) => self.on_found(at, it),
            (Question::Join, Response::JoinGroup(it)) => {
                expect_one_of(it.error_code, &CODES, "JoinGroup")?;
                self.all[at].on_joined(it);
                Ok(())
            }
            (Question::Sync, Response::SyncGroup(it)) => self.on_synced(at, it),
            (Question::Heartbeat, Response::Heartbeat(it)) => {
                expect_one_of(it.error_code, &CODES, "Heartbeat")?;
                self.all[at].on_code(it.error_code);
                Ok(())
            }
            (Question::Leave, Response::LeaveGroup(it)) => on_left(it),
            (Question::Commit(commit), Response::OffsetCommit(it)) => {
                self.on_committed(at, &commit, it)
            }
            (Question::Fetch, Response::OffsetFetch(it)) => self.on_fetched(at, it),
            (_, came) => unexpected(came),
        }
    }

    fn on_found(&mut self, at: usize, it: &FindCoordinatorResponse) -> Result<(), Failure> {
        let found = &it.coordinators[0];
        let not_yet = [ErrorCode::None, ErrorCode::CoordinatorNotAvailable];
        expect_one_of(found.error_code, &not_yet, "FindCoordinator")?;
        if found.error_code == 0 {
            self.all[at].seeks = false;
            self.aims.push((at, found.node_id));
        }
        Ok(())
    }

    fn on_synced(&mut self, at: usize, it: &SyncGroupResponse) -> Result<(), Failure> {
        expect_one_of(it.error_code, &CODES, "SyncGroup")?;
        let member = &mut self.all[at];
        if it.error_code != 0 {
            member.on_code(it.error_code);
            return Ok(());
        }
        let now = member.is.clone();
        let text = String::from_utf8_lossy(&it.assignment).into_owned();
        tell(|| format!("  member {at} owns {text:?} in generation {}", now.generation));
        let Some((generation, owned)) = assigned(&text) else {
            return wrong(format!("member {at} is assigned {text:?}"));
        };
        if generation != now.generation {
            let what = "is told what it owned in generation";
            return wrong(format!("member {at} of {} {what} {generation}", now.generation));
        }
        let name = member.instance.map_or_else(|| now.id.clone(), str::to_owned);
        for partition in &owned {
            let first = self.owners.entry((generation, *partition)).or_insert_with(|| name.clone());
            if *first != name {
                let what = format!("{first} and {name} own {partition}");
                return wrong(format!("{what} in generation {generation}"));
            }
        }
        self.newest = self.newest.max(generation);
        if let Some(instance) = member.instance {
            self.told.insert(instance, now);
        }
        member.stage = Stage::In { owned };
        Ok(())
    }

    fn on_committed(
        &mut self,
        at: usize,
        commit: &Commit,
        it: &OffsetCommitResponse,
    ) -> Result<(), Failure> {
        let Commit { by, number, partitions, void } = commit;
        for (partition, answer) in partitions.iter().zip(&it.topics[0].partitions) {
            let code = answer.error_code;
            tell(|| format!("  member {at} committed {partition} {number}: {code}"));
            if code == UNKNOWN.code() {
                continue;
            }
            expect_one_of(code, &CODES, "OffsetCommit")?;
            self.refused += u64::from(*void);
            if code == 0 && *void {
                let (what, newest) = (format!("{number} of {by:?} is taken"), self.newest);
                return wrong(format!("commit {what}, though {newest} was told of or renamed"));
            }
            if code == 0 {
                self.is_founded = true;
                self.known.entry(*partition).or_default().on_acknowledged(*number);
            }
        }
        let code = it.topics[0].partitions[0].error_code;
        let member = &mut self.all[at];
        if by.id == member.is.id && by.generation == member.is.generation {
            member.on_code(code);
        }
        Ok(())
    }

    fn on_fetched(&mut self, at: usize, it: &OffsetFetchResponse) -> Result<(), Failure> {
        if on_told(GROUP, it, &CODES, &mut self.known)? {
            self.is_told = true;
        } else {
            self.all[at].on_code(it.groups[0].error_code);
        }
        Ok(())
    }
}

impl Member {
    /// Begins the member's process anew, which knows no id.
    fn forget(&mut self) {
        self.remember();
        self.is = Identity::NOBODY;
        self.stage = Stage::Out;
    }

    fn remember(&mut self) {
        if let Stage::In { owned } = &self.stage
            && !owned.is_empty()
        {
            self.was = Some((self.is.clone(), owned.clone()));
        }
    }

    /// Names itself to the coordinator.
    fn named(&self) -> Classic<'_> {
        let (id, generation) = (&self.is.id, self.is.generation);
        Classic { group: GROUP, id, generation, instance: self.instance }
    }

    fn join(&self, work: &mut Prng) -> Asking<Question> {
        let metadata = Bytes::from(*work.pick(&["one", "other"]));
        let limits = (self.session_timeout_ms, self.rebalance_timeout_ms);
        let version = *work.pick(if self.instance.is_some() { &[5, 9] } else { &[2, 4, 9] });
        (Question::Join, self.named().join(limits, metadata), version)
    }

    /// Assigns each partition to a member, as the leader does.
    fn sync(&self, led: &[String], work: &mut Prng) -> Asking<Question> {
        let mut given: Vec<(&String, Vec<i32>)> = led.iter().map(|id| (id, Vec::new())).collect();
        for partition in (0..PARTITIONS).filter(|_| !led.is_empty()) {
            let to = work.index(given.len());
            given[to].1.push(partition);
        }
        let assignment = |(id, owned): &(&String, Vec<i32>)| SyncGroupRequestAssignment {
            member_id: (*id).clone(),
            assignment: Bytes::from(assignment(self.is.generation, owned)),
        };
        let request = self.named().sync(given.iter().map(assignment).collect());
        let version = *work.pick(if self.instance.is_some() { &[3, 5] } else { &[1, 3, 5] });
        (Question::Sync, request, version)
    }

    fn heartbeat(&self, work: &mut Prng) -> Asking<Question> {
        let version = *work.pick(if self.instance.is_some() { &[3, 4] } else { &[1, 3, 4] });
        (Question::Heartbeat, self.named().heartbeat(), version)
    }

    /// Makes the member leave; the member does not wait for the answer.
    fn leave(&mut self, work: &mut Prng) -> Asking<Question> {
        let version = *work.pick(if self.instance.is_some() { &[3, 5] } else { &[1, 3, 5] });
        let request = self.named().leave(version);
        self.forget();
        (Question::Leave, request, version)
    }

    fn on_joined(&mut self, it: &JoinGroupResponse) {
        match ErrorCode::from_code(it.error_code) {
            Some(ErrorCode::None) => {
                let led = it.members.iter().filter(|_| !it.skip_assignment);
                self.remember();
                self.is = Identity { id: it.member_id.clone(), generation: it.generation_id };
                self.stage = Stage::Joined { led: led.map(|one| one.member_id.clone()).collect() };
                tell(|| format!("  joined: {:?}", self.is));
            }
            Some(ErrorCode::MemberIdRequired) => self.is.id.clone_from(&it.member_id),
            _ => self.on_code(it.error_code),
        }
    }

    /// Makes the member react to an error code.
    fn on_code(&mut self, code: i16) {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::None | ErrorCode::CoordinatorLoadInProgress) => {}
            Some(ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator) => {
                self.seeks = true;
            }
            Some(ErrorCode::UnknownMemberId | ErrorCode::FencedInstanceId) => self.forget(),
            _ => {
                self.remember();
                self.stage = Stage::Out;
            }
        }
    }
}

/// Encodes an assignment as text: `3: 0 1`.
fn assignment(generation: i32, owned: &[i32]) -> String {
    let owned: Vec<_> = owned.iter().map(i32::to_string).collect();
    format!("{generation}: {}", owned.join(" "))
}

fn assigned(text: &str) -> Option<(i32, Vec<i32>)> {
    let (generation, owned) = text.split_once(':')?;
    let owned: Result<Vec<i32>, _> = owned.split_whitespace().map(str::parse).collect();
    Some((generation.parse().ok()?, owned.ok()?))
}
