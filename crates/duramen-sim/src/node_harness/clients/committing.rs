//! A client that commits offsets for groups and asks for them again; and the answers that it may get.
//!
//! The client is the only one that commits, one request at a time, and each commit has a larger number than all
//! before. So the answer for a key is never less than any number acknowledged or told before. The number was always
//! sent.

use std::collections::BTreeMap;

use duramen_protocol::messages::{OffsetCommitResponse, OffsetFetchResponse};
use duramen_protocol::{ErrorCode, Response};

use super::answers::{expect_one_of, unexpected};
use super::requests::{self, Asking, COMMITTED};
use crate::failure::{Failure, wrong};
use crate::prng::Prng;
use crate::trace::tell;

const GROUPS: [&str; 5] = ["ants", "bees", "crows", "deer", "eels"];
pub(super) const PARTITIONS: i32 = 2;
const CODES: [ErrorCode; 4] = [
    ErrorCode::None,
    ErrorCode::CoordinatorLoadInProgress,
    ErrorCode::CoordinatorNotAvailable,
    ErrorCode::NotCoordinator,
];
/// Error code of a topic that is not there yet.
pub(super) const UNKNOWN: ErrorCode = ErrorCode::UnknownTopicOrPartition;

/// A group and a partition.
type Key = (&'static str, i32);

/// Facts about a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) sent: Vec<i64>,
    /// Largest number that was acknowledged or told; no smaller one may be told from now on.
    least: Option<i64>,
}

impl Known {
    pub(super) fn on_acknowledged(&mut self, number: i64) {
        self.least = self.least.max(Some(number));
    }

    pub(super) fn on_told(&mut self, (group, partition): Key, told: i64) -> Result<(), Failure> {
        tell(|| format!("  told {group} {partition}: {told}"));
        let told = Some(told).filter(|told| *told >= 0);
        if told < self.least {
            let least = self.least;
            return wrong(format!("offset {told:?} of {group} {partition} was {least:?} before"));
        }
        if told.is_some_and(|told| !self.sent.contains(&told)) {
            return wrong(format!("offset {told:?} of {group} {partition} was never sent"));
        }
        self.least = self.least.max(told);
        Ok(())
    }
}

/// Judges the offsets that a group is told of, by partition. Returns false for an answer without offsets.
pub(super) fn on_told(
    group: &'static str,
    it: &OffsetFetchResponse,
    codes: &[ErrorCode],
    known: &mut BTreeMap<i32, Known>,
) -> Result<bool, Failure> {
    let answer = &it.groups[0];
    expect_one_of(answer.error_code, codes, "OffsetFetch")?;
    if answer.error_code != 0 {
        return Ok(false);
    }
    for part in &answer.topics[0].partitions {
        let (at, told) = (part.partition_index, part.committed_offset);
        known.entry(at).or_default().on_told((group, at), told)?;
    }
    Ok(true)
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(super) enum Question {
    Find,
    Commit { group: &'static str, number: i64, partitions: Vec<i32> },
    Fetch { groups: Vec<&'static str> },
}

/// See above.
#[derive(Debug, Default)]
pub(super) struct Committer {
    known: BTreeMap<Key, Known>,
    number: i64,
    is_found: bool,
    /// Groups that were told of in the last phase.
    told: Vec<&'static str>,
}

impl Committer {
    pub(super) fn begin_last_phase(&mut self) {
        self.told.clear();
    }

    /// Tells whether all groups were told of in the last phase.
    pub(super) fn is_done(&self) -> bool {
        self.told.len() == GROUPS.len()
    }

    pub(super) fn choose(&mut self, work: &mut Prng, last_phase: bool) -> Asking<Question> {
        if !self.is_found || work.chance(20) {
            (Question::Find, requests::find(requests::GROUP_KEY, &GROUPS), 4)
        } else if last_phase || work.chance(300) {
            Self::fetch(work)
        } else {
            self.commit(work)
        }
    }

    fn commit(&mut self, work: &mut Prng) -> Asking<Question> {
        self.number += 1;
        let (number, group) = (self.number, *work.pick(&GROUPS));
        let mut partitions: Vec<i32> = (0..PARTITIONS).filter(|_| work.chance(700)).collect();
        if partitions.is_empty() {
            partitions.push(0);
        }
        for partition in &partitions {
            self.known.entry((group, *partition)).or_default().sent.push(number);
        }
        let metadata = "x".repeat(usize::try_from(work.between(0, 400)).expect("small"));
        let request = requests::commit(group, COMMITTED, number, &partitions, Some(&metadata));
        let version = *work.pick(&[2, 5, 8, 9]);
        (Question::Commit { group, number, partitions }, request.into(), version)
    }

    fn fetch(work: &mut Prng) -> Asking<Question> {
        let mut groups: Vec<_> = GROUPS.into_iter().filter(|_| work.chance(500)).collect();
        if groups.is_empty() {
            groups.push(GROUPS[0]);
        }
        let request = requests::committed(&groups, COMMITTED, PARTITIONS);
        (Question::Fetch { groups }, request.into(), *work.pick(&[8, 9]))
    }

    pub(super) fn on_response(
        &mut self,
        question: Question,
        came: &Response,
    ) -> Result<(), Failure> {
        match (question, came) {
            (Question::Find, Response::FindCoordinator(it)) => {
                self.is_found = it.coordinators.iter().all(|it| it.error_code == 0);
                let not_yet = [ErrorCode::None, ErrorCode::CoordinatorNotAvailable];
                let mut codes = it.coordinators.iter().map(|it| it.error_code);
                codes.try_for_each(|code| expect_one_of(code, &not_yet, "FindCoordinator"))
            }
            (Question::Commit { group, number, partitions }, Response::OffsetCommit(it)) => {
                self.on_committed(group, number, &partitions, it)
            }
            (Question::Fetch { groups }, Response::OffsetFetch(it)) => self.on_fetched(&groups, it),
            (_, came) => unexpected(came),
        }
    }

    fn on_committed(
        &mut self,
        group: &'static str,
        number: i64,
        partitions: &[i32],
        it: &OffsetCommitResponse,
    ) -> Result<(), Failure> {
        for (partition, answer) in partitions.iter().zip(&it.topics[0].partitions) {
            let code = answer.error_code;
            tell(|| format!("  committed {group} {partition} {number}: {code}"));
            if code == UNKNOWN.code() {
                self.is_found = false;
                continue;
            }
            expect_one_of(code, &CODES, "OffsetCommit")?;
            if code == 0 {
                let known = self.known.get_mut(&(group, *partition)).expect("it was sent");
                known.on_acknowledged(number);
            }
        }
        Ok(())
    }

    fn on_fetched(
        &mut self,
        groups: &[&'static str],
        it: &OffsetFetchResponse,
    ) -> Result<(), Failure> {
        for (group, answer) in groups.iter().zip(&it.groups) {
            expect_one_of(answer.error_code, &CODES, "OffsetFetch")?;
            if answer.error_code != 0 {
                continue;
            }
            for partition in &answer.topics[0].partitions {
                let (at, told) = (partition.partition_index, partition.committed_offset);
                self.known.entry((*group, at)).or_default().on_told((*group, at), told)?;
            }
            if !self.told.contains(group) {
                self.told.push(group);
            }
        }
        Ok(())
    }
}
