//! `TxnOffsetCommit`: stores the offsets of a group, which count once a transaction commits.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic, TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
};
use duramen_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use super::checks::{admit_to_group, admit_to_offset};
use crate::access::{Operation, Resource};
use crate::core::Parked;
use crate::event::RequestKey;
use crate::internal_topics::GROUPS;
use crate::node::Node;
use crate::session::RequestContext;

/// First version in which a client learns that it can only abort its transaction.
const FIRST_ABORTABLE: i16 = 4;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: TxnOffsetCommitRequest,
) {
    let id = request.transactional_id.as_str();
    let admitted = node
        .core
        .access
        .admit(context, Operation::Write, Resource::TransactionalId(id))
        .and_then(|()| admit_to_group(node, context, Operation::Read, &request.group_id));
    let found =
        admitted.and_then(|()| node.coordinators.group_partition(&node.core, &request.group_id));
    let (replica, partition) = match found {
        Ok(found) => found,
        Err(code) => return node.reply(key, refused(&request, code)),
    };
    let (access, image) = (&node.core.access, &node.core.controller.image);
    let topics = request.topics.iter();
    let mut all = topics.flat_map(|it| it.partitions.iter().map(|at| (&it.name, at)));
    let is_any = all.any(|(topic, at)| {
        admit_to_offset(access, image, context, topic, at.partition_index).is_ok()
    });
    if !is_any {
        // Nothing would be committed, so the transaction need not know.
        let answer =
            answer(&request, |topic, it| admit_to_offset(access, image, context, topic, it).err());
        return node.reply(key, answer);
    }
    match node.core.check_transactor(replica, request.producer_id, request.producer_epoch) {
        Err(code) => node.reply(key, refused(&request, code)),
        Ok(true) => commit(node, key, context, request),
        Ok(false) => {
            let place = (GROUPS, partition);
            node.coordinators.judge_offsets(&mut node.core, key, context, request, place);
        }
    }
}

/// Takes the answer of the transaction's coordinator, which knows whether the group's partition is in the transaction.
pub(crate) fn on_judged(node: &mut Node, key: RequestKey, code: ErrorCode) {
    // The client may have gone.
    let Some(Parked::TxnOffsets { .. }) = node.core.parked_mut(key) else { return };
    let Some(Parked::TxnOffsets { request, context }) = node.unpark(key) else { return };
    if code.is_none() {
        return commit(node, key, &context, *request);
    }
    let code = match code {
        ErrorCode::TransactionAbortable if context.version < FIRST_ABORTABLE => {
            ErrorCode::InvalidTxnState
        }
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        // Old clients do not expect this code, and ask again in either case.
        ErrorCode::ConcurrentTransactions if context.version < 5 => {
            ErrorCode::CoordinatorLoadInProgress
        }
        code => code,
    };
    node.reply(key, refused(&request, code));
}

fn commit(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: TxnOffsetCommitRequest,
) {
    let group = request.group_id.clone();
    let mut request = Some(request);
    let now = node.core.now;
    let asked =
        node.coordinators.coordinate(&mut node.core, key, context.version, &group, |it, sight| {
            let access = sight.topics.access;
            let judge = |topic: &str, partition| {
                admit_to_offset(access, sight.image, context, topic, partition)
            };
            let request = request.take().expect("it is asked once");
            it.txn_offset_commit(sight.rules, key, request, judge, now);
        });
    if let (Err(code), Some(request)) = (asked, request) {
        node.reply(key, refused(&request, code));
    }
}

fn refused(request: &TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse {
    answer(request, |_, _| Some(code))
}

fn answer(
    request: &TxnOffsetCommitRequest,
    code: impl Fn(&str, i32) -> Option<ErrorCode>,
) -> TxnOffsetCommitResponse {
    let topic = |topic: &TxnOffsetCommitRequestTopic| {
        let partition = |it: &TxnOffsetCommitRequestPartition| TxnOffsetCommitResponsePartition {
            partition_index: it.partition_index,
            error_code: code(&topic.name, it.partition_index).unwrap_or(ErrorCode::None).code(),
        };
        TxnOffsetCommitResponseTopic {
            name: topic.name.clone(),
            partitions: topic.partitions.iter().map(partition).collect(),
        }
    };
    let topics = request.topics.iter().map(topic).collect();
    TxnOffsetCommitResponse { topics, ..Default::default() }
}
