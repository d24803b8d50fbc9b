//! Requests that waited: each goes on with the signal it waited for, or ends with its time.

use duramen_protocol::{ErrorCode, Request, Response};

use super::results::answer_now;
use super::{
    acls, add_partitions_to_txn, alter_client_quotas, alter_configs, alter_partition_reassignments,
    alter_user_scram_credentials, create_partitions, create_topics, delete_groups, delete_records,
    delete_topics, describe_quorum, elect_leaders, end_txn, fast, fetch, find_coordinator, guarded,
    incremental_alter_configs, init_producer_id, join_group, leases, metadata, native,
    offset_fetch, produce, queues, share_acknowledge, share_fetch, share_offsets, share_states,
    txn_offset_commit, unregister_broker, write_txn_markers,
};
use crate::core::{Parked, Signal};
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::Prepared;

/// Goes on with the request of a signal. The request may be gone.
pub(crate) fn resume(node: &mut Node, signal: Signal) {
    match signal {
        Signal::Undecided { key, request, code } => match undecided_answer(&request, code) {
            Some(response) => node.reply(key, response),
            None => unreachable!("{:?} is decided by any node", request.api_key()),
        },
        Signal::NotProposed { key, mut response, code } => {
            fail(&mut response, code);
            node.reply_boxed(key, response);
        }
        Signal::Ready(key) => answer_decided(node, key),
        Signal::TimedOut(key) => on_timeout(node, key),
        Signal::Finished { key, place, error, base_offset, log_start } => {
            finish(node, key, place, error, (base_offset, log_start));
        }
        Signal::Appended { slot, appended, log_start } => {
            produce::settle_part(node, slot, appended, log_start);
        }
        Signal::Refused { slot, code } => produce::refuse_part(node, slot, code),
        Signal::Grown { key, growth } => fetch::on_woken(node, key, growth),
        Signal::ProducerId { key, id } => {
            node.unpark(key);
            node.reply(key, init_producer_id::granted(id));
        }
        Signal::Departed { key, code } => {
            node.unpark(key);
            node.reply(key, unregister_broker::told(code));
        }
        Signal::Elected { key, outcomes } => elect_leaders::on_elected(node, key, &outcomes),
        Signal::GroupsMade(key) => add_partitions_to_txn::on_groups_made(node, key),
        Signal::OffsetsJudged { key, code } => txn_offset_commit::on_judged(node, key, code),
        Signal::Judged { key, part, code } => {
            add_partitions_to_txn::on_judged(node, key, part, code);
        }
        Signal::TransactionAnswered { key, response, is_certain } => {
            end_txn::on_answered(node, key, response, is_certain);
        }
        Signal::Marked { key, at, code } => write_txn_markers::on_marked(node, key, at, code),
        Signal::GroupAnswered { key, response } => join_group::on_answered(node, key, response),
        Signal::OffsetsFetched { key, part, group } => {
            offset_fetch::on_fetched(node, key, part, *group);
        }
        Signal::GroupDeleted { key, part, code } => {
            delete_groups::on_deleted(node, key, part, code);
        }
        Signal::ShareState { key, part, answer } => {
            share_states::on_answer(node, key, part, &answer);
        }
        Signal::ShareLooked { key, part, answer } => {
            share_offsets::on_looked(node, key, part, &answer);
        }
        Signal::ShareEnd { key, part, end } => share_offsets::on_end_known(node, key, part, end),
        Signal::Shared { key, request } => match request.wanted {
            _ if request.worker.is_some() => leases::answer(node, key, *request),
            Some(_) => share_fetch::answer(node, key, *request),
            None => share_acknowledge::answer(node, key, *request),
        },
        Signal::QueueReady(key) => queues::on_ready(node, key),
        Signal::QueueLost(key) => queues::on_lost(node, key),
        Signal::GuardReady(place) => guarded::on_ready(node, place),
        Signal::Judge { .. } | Signal::Certain { .. } => unreachable!("`turn` serves requests"),
    }
}

/// Records that a batch, a trim or another part of a request is done, or failed.
fn finish(
    node: &mut Node,
    key: RequestKey,
    place: (usize, usize),
    error: ErrorCode,
    (base_offset, log_start): (i64, i64),
) {
    match node.core.parked_mut(key) {
        Some(Parked::Produce { .. }) => {
            produce::on_finished(node, key, place, error, (base_offset, log_start));
        }
        Some(Parked::Fast { .. } | Parked::Opening { .. }) => {
            fast::on_finished(node, key, place, error, (base_offset, log_start));
        }
        Some(Parked::Trims { .. }) => {
            delete_records::on_finished(node, key, place, error, log_start);
        }
        Some(Parked::Native(_)) => native::on_finished(node, key, error, base_offset),
        Some(other) => unreachable!("{other:?} waits for no log"),
        None => {}
    }
}

/// Returns the answer to a request for the controller on which no controller decided. Returns `None` for any other
/// request.
pub(crate) fn undecided_answer(request: &Request, code: ErrorCode) -> Option<Response> {
    Some(match request {
        Request::AlterClientQuotas(it) => alter_client_quotas::undecided(it, code).into(),
        Request::AlterConfigs(it) => alter_configs::undecided(it, code).into(),
        Request::CreateAcls(it) => acls::uncreated(it, code).into(),
        Request::DeleteAcls(it) => acls::undeleted(it, code).into(),
        Request::AlterUserScramCredentials(it) => {
            alter_user_scram_credentials::undecided(it, code).into()
        }
        Request::IncrementalAlterConfigs(it) => {
            incremental_alter_configs::undecided(it, code).into()
        }
        Request::AlterPartitionReassignments(it) => {
            alter_partition_reassignments::undecided(it, code).into()
        }
        Request::CreatePartitions(it) => create_partitions::undecided(it, code).into(),
        Request::CreateTopics(it) => create_topics::undecided(it, code).into(),
        Request::DeleteTopics(it) => delete_topics::undecided(it, code).into(),
        Request::DescribeQuorum(_) => describe_quorum::undecided(code).into(),
        Request::UnregisterBroker(_) => unregister_broker::told(code).into(),
        _ => return None,
    })
}

/// Answers a request whose metadata is committed, and whose partitions have leaders.
pub(crate) fn answer_decided(node: &mut Node, key: RequestKey) {
    match node.unpark(key) {
        Some(Parked::Commit { response, .. }) => node.reply_boxed(key, response),
        Some(Parked::Metadata { request, context, .. }) => {
            let response = metadata::answer(node, &context, &request);
            node.reply(key, response);
        }
        Some(Parked::FindCoordinator { request, context, .. }) => {
            let response = find_coordinator::answer(node, &context, &request);
            node.reply(key, response);
        }
        _ => {}
    }
}

/// Replaces the answer to a decision that was not committed, or is not known to be committed.
fn fail(response: &mut Response, code: ErrorCode) {
    let codes: Vec<&mut i16> = match response {
        Response::AlterClientQuotas(it) => {
            it.entries.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::CreateAcls(it) => it.results.iter_mut().map(|it| &mut it.error_code).collect(),
        Response::DeleteAcls(it) => {
            it.filter_results.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::AlterUserScramCredentials(it) => {
            it.results.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::AlterConfigs(it) => {
            it.responses.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::IncrementalAlterConfigs(it) => {
            it.responses.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::CreatePartitions(it) => {
            it.results.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::DeleteTopics(it) => {
            it.responses.iter_mut().map(|it| &mut it.error_code).collect()
        }
        Response::AlterPartitionReassignments(it) => {
            return alter_partition_reassignments::fail(it, code);
        }
        Response::CreateTopics(it) => return create_topics::fail(it, code),
        other => unreachable!("{:?} waits for no commit", other.api_key()),
    };
    for it in codes.into_iter().filter(|it| **it == 0) {
        *it = code.code();
    }
}

/// Answers a request that timed out, or that waits for something that will not come.
pub(crate) fn on_timeout(node: &mut Node, key: RequestKey) {
    let code = ErrorCode::RequestTimedOut;
    let Some(parked) = node.core.parked_mut(key) else { return };
    match parked {
        Parked::Stalled { .. } => match node.core.take_back_stalled(key) {
            Some((_, Prepared::Produce(it))) => produce::on_stalled_too_long(node, key, it),
            Some((context, Prepared::Fast(it))) => {
                fast::on_stalled_too_long(node, key, &context, it);
            }
            Some((_, Prepared::Native(_))) => native::on_stalled_too_long(node, key),
            Some((_, Prepared::Request(_))) | None => unreachable!("only appends are stalled"),
        },
        Parked::Fetch(_) => fetch::answer_parked(node, key),
        Parked::Share(_) => share_fetch::on_timeout(node, key),
        Parked::Metadata { .. } | Parked::FindCoordinator { .. } => answer_decided(node, key),
        Parked::Produce { response, .. } => {
            produce::time_out(response);
            answer_now(node, key);
        }
        Parked::Fast { .. } | Parked::Opening { .. } => fast::on_timeout(node, key),
        Parked::Trims { response, .. } => {
            delete_records::time_out(response);
            answer_now(node, key);
        }
        Parked::Commit { response, .. } => {
            fail(response, code);
            answer_decided(node, key);
        }
        Parked::Native(_) => native::on_timeout(node, key),
        Parked::Queue(_) => queues::on_timeout(node, key),
        Parked::Departure { .. } => {
            node.unpark(key);
            node.reply(key, unregister_broker::told(code));
        }
        Parked::Forwarded { nonce } => {
            let nonce = *nonce;
            node.forwards.end_forward(&mut node.core, nonce, code);
        }
        Parked::Election { .. } => node.moves.settle_elections(&mut node.core, key, true),
        Parked::ProducerId => {
            node.unpark(key);
            node.reply(key, init_producer_id::refused(code));
        }
        Parked::AddOffsets { .. } => {
            if let Some(Parked::AddOffsets { context, .. }) = node.unpark(key) {
                let code = ErrorCode::CoordinatorNotAvailable;
                let refused = add_partitions_to_txn::offsets_refused(code, &context);
                node.reply(key, refused);
            }
        }
        // The coordinators of these requests know their deadlines. The first three have none, or `turn` ends their
        // wait.
        Parked::Held { .. }
        | Parked::Doubtful { .. }
        | Parked::Deferred { .. }
        | Parked::Group { .. }
        | Parked::OffsetFetch { .. }
        | Parked::DeleteGroups { .. }
        | Parked::Transaction { .. }
        | Parked::Addition { .. }
        | Parked::TxnOffsets { .. }
        | Parked::Markers { .. }
        | Parked::ShareStates { .. }
        | Parked::ShareOffsets(_) => {}
    }
}
