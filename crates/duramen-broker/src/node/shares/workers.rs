//! Workers of the native API in share groups: their decisions, and their waits for records.

use std::collections::BTreeSet;
use std::sync::Arc;

use duramen_protocol::ErrorCode;
use duramen_storage::op::ReplicaId;

use super::{Shares, Taker};
use crate::core::{Core, Parked, ShareRequest};
use crate::event::RequestKey;
use crate::limits::SHARE_LINGER_US;
use crate::native::{Decision, Problem, Settlement};
use crate::node::Coordinators;
use crate::shares::ShareKey;
use crate::shares::partition::{
    ACCEPT, Acknowledgement, GAP, Limits, Plan, REJECT, RELEASE, RENEW, Rules,
};
use crate::shares::sessions::Target;

/// Tells the workers among these requests that the group is one of consumers.
pub(super) fn refuse_workers(core: &mut Core, waiting: &BTreeSet<RequestKey>) {
    for key in waiting {
        if let Some(Parked::Share(request)) = core.parked_mut(*key)
            && let Some(worker) = &mut request.worker
        {
            worker.problem = Some(Problem::NotAShareGroup);
        }
    }
}

impl Shares {
    /// Takes a worker's decisions on its leases. Returns the offsets of those that the worker does not have. The
    /// request waits if there is something to wait for.
    pub(crate) fn settle_leases(
        &mut self,
        core: &mut Core,
        request_key: RequestKey,
        request: &mut ShareRequest,
        target: Target,
        said: &[Settlement],
    ) -> Result<Vec<i64>, ErrorCode> {
        let (group, worker) = &request.member;
        let (key, replica) = core.share_target(&request.context, group, target)?;
        let rules = core.share_rules(group);
        let log_start = core.partitions.get(&replica).map_or(0, |it| it.log_start());
        let all_lost = || Ok(said.iter().map(|it| it.offset).collect());
        let entry = self.entries.get_mut(&key).filter(|entry| entry.replica == replica);
        let Some(entry) = entry else { return all_lost() };
        entry.linger_us = core.now.mono_us.saturating_add(SHARE_LINGER_US);
        let Some(part) = entry.known() else { return all_lost() };
        part.trim(log_start);
        core.bring_up_to_date(part, &rules);
        let is_held = |it: &&Settlement| part.is_held(it.offset, worker, it.deliveries);
        let (held, lost): (Vec<&Settlement>, Vec<_>) = said.iter().partition(is_held);
        let (unseen, held): (Vec<&Settlement>, Vec<_>) =
            held.into_iter().partition(|it| it.decision == Decision::Unseen);
        for it in unseen {
            part.hand_back((it.offset, it.offset));
        }
        let code_of = |decision| match decision {
            Decision::Accept => ACCEPT,
            Decision::Release { .. } | Decision::Unseen => RELEASE,
            Decision::Reject => REJECT,
            Decision::Renew => RENEW,
            Decision::Gone => GAP,
        };
        let mut decided: Vec<Acknowledgement> = held
            .iter()
            .map(|it| Acknowledgement {
                first: it.offset,
                last: it.offset,
                types: vec![code_of(it.decision)],
            })
            .collect();
        decided.sort_by_key(|it| it.first);
        self.counted += 1;
        let ticket = self.counted;
        let waits = part.acknowledge(core.now.mono_us, worker, &decided, ticket, &rules)?;
        for it in &held {
            if let Decision::Release { delay_ms } = it.decision
                && delay_ms > 0
            {
                part.release_later(it.offset, core.now.wall_ms.saturating_add(delay_ms));
            }
        }
        self.dirty.insert(key);
        if waits {
            request.undecided += 1;
            self.tickets.insert(ticket, (request_key, target));
        }
        Ok(lost.into_iter().map(|it| it.offset).collect())
    }

    /// Tells whether a worker waits for nothing but share partitions that had nothing for others in this turn.
    pub(super) fn waits_in_vain(&self, request: &ShareRequest) -> bool {
        let Some(worker) = request.worker.as_ref().filter(|_| !request.is_over) else {
            return false;
        };
        let is_exhausted = |&(topic_id, partition): &Target| {
            let group = Arc::clone(&request.member.0);
            self.exhausted.contains_key(&ShareKey { group, topic_id, partition })
        };
        worker.problem.is_none()
            && !request.waits_on.is_empty()
            && worker.targets.iter().all(is_exhausted)
    }

    /// Returns the records that a worker would get now, as [`Self::plan_share`] does. A share partition that had
    /// nothing in this turn is not asked again.
    pub(super) fn pick_share(
        &mut self,
        core: &mut Core,
        coordinators: &mut Coordinators,
        (key, replica): (&ShareKey, ReplicaId),
        limits: &Limits,
        rules: &Rules,
    ) -> Option<Plan> {
        if let Some(is_known) = self.exhausted.get(key) {
            return is_known.then(Plan::default);
        }
        let place = (key, replica);
        let plan = self.plan_share(core, coordinators, place, Taker::Worker, limits, rules);
        if plan.as_ref().is_some_and(|it| !it.pieces.is_empty()) {
            return plan;
        }
        // Records that the index has not are not shown yet.
        let log = core.partitions.get(&replica);
        let is_shown = log.is_none_or(|log| log.shown() >= log.committed());
        let is_known = plan.is_some() && is_shown;
        self.exhausted.insert(key.clone(), is_known);
        is_known.then(Plan::default)
    }
}
