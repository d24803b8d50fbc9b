//! Requests that waited: each goes on with the signal it waited for, or ends with its time.

use duramen_protocol::{ErrorCode, Request, Response};

use super::{
    add_partitions_to_txn, alter_client_quotas, alter_configs, alter_partition_reassignments,
    create_partitions, create_topics, delete_groups, delete_records, delete_topics,
    describe_quorum, elect_leaders, end_txn, fetch, find_coordinator, incremental_alter_configs,
    init_producer_id, join_group, metadata, offset_fetch, produce, share_acknowledge, share_fetch,
    share_offsets, share_states, txn_offset_commit, unregister_broker, write_txn_markers,
};
use crate::core::{Parked, Signal};
use crate::event::RequestKey;
use crate::node::Node;

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
            Some(_) => share_fetch::answer(node, key, *request),
            None => share_acknowledge::answer(node, key, *request),
        },
        Signal::Judge { .. } | Signal::Certain { .. } => unreachable!("`turn` serves requests"),
    }
}

/// Records that a batch or trim of a request is committed, or failed.
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
        Some(Parked::Trims { .. }) => {
            delete_records::on_finished(node, key, place, error, log_start);
        }
        Some(other) => unreachable!("{other:?} waits for no log"),
        None => {}
    }
}

/// Returns the answer to a request for the controller on which no controller decided. Returns `None` for any other
/// request.
pub(crate) fn undecided_answer(request: &Request, code: ErrorCode) -> Option<Response> {
    Some(match request {
        Request::AlterClientQuotas(request) => alter_client_quotas::undecided(request, code).into(),
        Request::AlterConfigs(request) => alter_configs::undecided(request, code).into(),
        Request::IncrementalAlterConfigs(request) => {
            incremental_alter_configs::undecided(request, code).into()
        }
        Request::AlterPartitionReassignments(request) => {
            alter_partition_reassignments::undecided(request, code).into()
        }
        Request::CreatePartitions(request) => create_partitions::undecided(request, code).into(),
        Request::CreateTopics(request) => create_topics::undecided(request, code).into(),
        Request::DeleteTopics(request) => delete_topics::undecided(request, code).into(),
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
    match response {
        Response::AlterClientQuotas(response) => alter_client_quotas::fail(response, code),
        Response::AlterConfigs(response) => alter_configs::fail(response, code),
        Response::IncrementalAlterConfigs(response) => {
            incremental_alter_configs::fail(response, code);
        }
        Response::AlterPartitionReassignments(response) => {
            alter_partition_reassignments::fail(response, code);
        }
        Response::CreatePartitions(response) => create_partitions::fail(response, code),
        Response::CreateTopics(response) => create_topics::fail(response, code),
        Response::DeleteTopics(response) => delete_topics::fail(response, code),
        other => unreachable!("{:?} waits for no commit", other.api_key()),
    }
}

/// Answers a request that timed out, or that waits for something that will not come.
pub(crate) fn on_timeout(node: &mut Node, key: RequestKey) {
    let code = ErrorCode::RequestTimedOut;
    let Some(parked) = node.core.parked_mut(key) else { return };
    match parked {
        Parked::Stalled { .. } => produce::on_stalled_too_long(node, key),
        Parked::Fetch(_) => fetch::answer_parked(node, key),
        Parked::Share(_) => share_fetch::on_timeout(node, key),
        Parked::Metadata { .. } | Parked::FindCoordinator { .. } => answer_decided(node, key),
        Parked::Produce { .. } => {
            if let Some(Parked::Produce { mut response, version, .. }) = node.unpark(key) {
                produce::time_out(&mut response);
                produce::answer(node, key, response, version);
            }
        }
        Parked::Trims { .. } => {
            if let Some(Parked::Trims { mut response, .. }) = node.unpark(key) {
                delete_records::time_out(&mut response);
                node.reply(key, response);
            }
        }
        Parked::Commit { .. } => {
            if let Some(Parked::Commit { mut response, .. }) = node.unpark(key) {
                fail(&mut response, code);
                node.reply(key, *response);
            }
        }
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
