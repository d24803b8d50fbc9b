//! # Room card: api
//!
//! Purpose:    Kafka's requests, one file each: the only place where Kafka's versions matter.
//! Owns:       dispatch, the answers to requests that waited, the answers to clients that may not.
//! Interface:  [`dispatch`], [`waiting::resume`], [`waiting::on_timeout`].
//! Invariants: a handler asks [`Access::may`] before any look-up that could tell a stranger something; every served API
//!             of the table has an arm.
//! Never:      state of its own; storage; who may do what.
//! Tests:      `node/tests`, `node/tests/access.rs` for refusals; the compatibility suites.
//! Start at:   [`dispatch`].
//!
//! [`Access::may`]: crate::access::Access::may

use duramen_protocol::{Request, Response};

use crate::event::{Action, RequestKey};
use crate::node::Node;
use crate::session::{Prepared, RequestContext};

pub(crate) mod acls;
pub(crate) mod add_partitions_to_txn;
pub(crate) mod alter_client_quotas;
pub(crate) mod alter_configs;
pub(crate) mod alter_partition_reassignments;
pub(crate) mod alter_replica_log_dirs;
mod checks;
pub(crate) mod consumer_group_describe;
pub(crate) mod consumer_group_heartbeat;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
mod decisions;
pub(crate) mod delegation_tokens;
pub(crate) mod delete_groups;
pub(crate) mod delete_records;
pub(crate) mod delete_topics;
pub(crate) mod describe_client_quotas;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod describe_groups;
pub(crate) mod describe_log_dirs;
pub(crate) mod describe_producers;
pub(crate) mod describe_quorum;
pub(crate) mod describe_replicas;
pub(crate) mod describe_topic_partitions;
pub(crate) mod describe_transactions;
pub(crate) mod describe_user_scram_credentials;
pub(crate) mod elect_leaders;
pub(crate) mod end_txn;
pub(crate) mod fetch;
pub(crate) mod find_coordinator;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
mod leaders;
pub(crate) mod leave_group;
pub(crate) mod list_config_resources;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod list_partition_reassignments;
pub(crate) mod metadata;
pub(crate) mod offset_commit;
pub(crate) mod offset_delete;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod settings;
pub(crate) mod share_acknowledge;
pub(crate) mod share_fetch;
pub(crate) mod share_group_describe;
pub(crate) mod share_group_heartbeat;
pub(crate) mod share_offsets;
pub(crate) mod share_states;
pub(crate) mod sync_group;
pub(crate) mod txn_offset_commit;
pub(crate) mod unregister_broker;
pub(crate) mod update_features;
pub(crate) mod waiting;
pub(crate) mod write_txn_markers;

/// Tells whether the node can answer a request while it is still opening.
pub(crate) fn needs_no_state(request: &Prepared) -> bool {
    matches!(request, Prepared::Request(Request::ApiVersions(_)))
}

/// Serves one request, now or later.
pub(crate) fn dispatch(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: Prepared,
) {
    let request = match request {
        Prepared::Produce(request) => {
            return produce::handle(node, key, context, request);
        }
        Prepared::Request(request) => request,
    };
    match request {
        Request::FindCoordinator(request) => {
            find_coordinator::handle(node, key, context, request);
        }
        Request::Metadata(request) => metadata::handle(node, key, context, request),
        Request::Fetch(request) => fetch::handle(node, key, context, &request),
        Request::DescribeLogDirs(request) => {
            describe_log_dirs::handle(node, key, &context, &request);
        }
        Request::DescribeReplicas(request) => {
            describe_replicas::handle(node, key, &context, &request);
        }
        Request::ListOffsets(request) => {
            list_offsets::handle(node, key, &context, &request);
        }
        Request::DeleteRecords(request) => {
            delete_records::handle(node, key, &context, request);
        }
        Request::AlterClientQuotas(request) => {
            alter_client_quotas::handle(node, key, &context, &request);
        }
        Request::AlterConfigs(request) => {
            alter_configs::handle(node, key, &context, &request);
        }
        Request::IncrementalAlterConfigs(request) => {
            incremental_alter_configs::handle(node, key, &context, &request);
        }
        Request::AlterPartitionReassignments(request) => {
            alter_partition_reassignments::handle(node, key, &context, &request);
        }
        Request::CreatePartitions(request) => {
            create_partitions::handle(node, key, &context, &request);
        }
        Request::CreateTopics(request) => {
            create_topics::handle(node, key, &context, &request);
        }
        Request::DeleteTopics(request) => {
            delete_topics::handle(node, key, &context, &request);
        }
        Request::UnregisterBroker(request) => {
            unregister_broker::handle(node, key, &context, &request);
        }
        Request::ElectLeaders(request) => {
            elect_leaders::handle(node, key, &context, &request);
        }
        Request::InitProducerId(request) => {
            init_producer_id::handle(node, key, &context, &request);
        }
        other => dispatch_to_coordinators(node, key, &context, other),
    }
}

/// Serves a request about transactions, stored states of share groups, or groups, now or later.
fn dispatch_to_coordinators(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: Request,
) {
    match request {
        Request::AddPartitionsToTxn(request) => {
            add_partitions_to_txn::handle(node, key, context, request);
        }
        Request::AddOffsetsToTxn(request) => {
            let context = context.clone();
            add_partitions_to_txn::handle_offsets(node, key, context, request);
        }
        Request::EndTxn(request) => end_txn::handle(node, key, context, &request),
        Request::TxnOffsetCommit(request) => {
            txn_offset_commit::handle(node, key, context, request);
        }
        Request::WriteTxnMarkers(request) => {
            write_txn_markers::handle(node, key, context, request);
        }
        Request::InitializeShareGroupState(request) => {
            share_states::initialize(node, key, context, request);
        }
        Request::ReadShareGroupState(request) => {
            share_states::read(node, key, context, request);
        }
        Request::WriteShareGroupState(request) => {
            share_states::write(node, key, context, request);
        }
        Request::DeleteShareGroupState(request) => {
            share_states::delete(node, key, context, request);
        }
        Request::ReadShareGroupStateSummary(request) => {
            share_states::summarize(node, key, context, request);
        }
        Request::ShareFetch(request) => {
            share_fetch::handle(node, key, context, &request);
        }
        Request::ShareAcknowledge(request) => {
            share_acknowledge::handle(node, key, context, &request);
        }
        Request::DescribeShareGroupOffsets(request) => {
            share_offsets::describe(node, key, context, &request);
        }
        Request::AlterShareGroupOffsets(request) => {
            share_offsets::alter(node, key, context, &request);
        }
        Request::DeleteShareGroupOffsets(request) => {
            share_offsets::delete(node, key, context, &request);
        }
        other => dispatch_to_groups(node, key, context, other),
    }
}

/// Serves a request about groups, now or later.
fn dispatch_to_groups(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: Request,
) {
    match request {
        Request::ListGroups(request) => {
            node.reply(key, list_groups::answer(node, context, &request));
        }
        Request::ConsumerGroupHeartbeat(request) => {
            consumer_group_heartbeat::handle(node, key, context, request);
        }
        Request::ConsumerGroupDescribe(request) => {
            let answer = consumer_group_describe::answer(node, context, &request);
            node.reply(key, answer);
        }
        Request::ShareGroupHeartbeat(request) => {
            share_group_heartbeat::handle(node, key, context, request);
        }
        Request::ShareGroupDescribe(request) => {
            let answer = share_group_describe::answer(node, context, &request);
            node.reply(key, answer);
        }
        Request::DescribeGroups(request) => {
            node.reply(key, describe_groups::answer(node, context, &request));
        }
        Request::JoinGroup(request) => {
            join_group::handle(node, key, context, &request);
        }
        Request::SyncGroup(request) => {
            sync_group::handle(node, key, context, &request);
        }
        Request::Heartbeat(request) => {
            heartbeat::handle(node, key, context, &request);
        }
        Request::LeaveGroup(request) => {
            leave_group::handle(node, key, context, &request);
        }
        Request::OffsetCommit(request) => {
            offset_commit::handle(node, key, context, request);
        }
        Request::OffsetFetch(request) => {
            offset_fetch::handle(node, key, context, request);
        }
        Request::OffsetDelete(request) => {
            offset_delete::handle(node, key, context, request);
        }
        Request::DeleteGroups(request) => {
            delete_groups::handle(node, key, context, request);
        }
        other => {
            let api = other.api_key();
            if let Some(response) = answer(node, context, other) {
                return node.reply(key, response);
            }
            // The session decodes only served APIs, and each of those has an arm.
            let reason = format!("{api} is not served");
            node.core.out.push(Action::Close { connection: key.0, reason });
        }
    }
}

/// Answers a request that waits for nothing.
fn answer(node: &Node, context: &RequestContext, request: Request) -> Option<Response> {
    Some(match request {
        Request::AlterReplicaLogDirs(request) => {
            alter_replica_log_dirs::answer(node, context, &request).into()
        }
        Request::ApiVersions(request) => {
            crate::api_versions::answer(&request, context.version).into()
        }
        Request::CreateAcls(request) => acls::create(&node.core.access, context, &request).into(),
        Request::CreateDelegationToken(_) => delegation_tokens::create(context).into(),
        Request::DeleteAcls(request) => acls::delete(&node.core.access, context, &request).into(),
        Request::DescribeAcls(_) => acls::describe(&node.core.access, context).into(),
        Request::DescribeClientQuotas(request) => {
            describe_client_quotas::answer(node, context, &request).into()
        }
        Request::DescribeCluster(request) => {
            describe_cluster::answer(node, context, &request).into()
        }
        Request::DescribeConfigs(request) => {
            describe_configs::answer(node, context, request).into()
        }
        Request::DescribeDelegationToken(_) => delegation_tokens::describe().into(),
        Request::DescribeProducers(request) => {
            describe_producers::answer(node, context, &request).into()
        }
        Request::DescribeQuorum(request) => describe_quorum::answer(node, context, &request).into(),
        Request::DescribeTopicPartitions(request) => {
            describe_topic_partitions::answer(node, context, &request).into()
        }
        Request::DescribeTransactions(request) => {
            describe_transactions::answer(node, context, &request).into()
        }
        Request::ListTransactions(request) => {
            describe_transactions::list(node, context, &request).into()
        }
        Request::DescribeUserScramCredentials(request) => {
            describe_user_scram_credentials::answer(node, context, &request).into()
        }
        Request::ExpireDelegationToken(_) => delegation_tokens::expire().into(),
        Request::ListConfigResources(request) => {
            list_config_resources::answer(node, context, &request).into()
        }
        Request::ListPartitionReassignments(request) => {
            list_partition_reassignments::answer(node, context, &request).into()
        }
        Request::OffsetForLeaderEpoch(request) => {
            offset_for_leader_epoch::answer(node, context, request).into()
        }
        Request::RenewDelegationToken(_) => delegation_tokens::renew().into(),
        Request::UpdateFeatures(request) => update_features::answer(node, context, &request).into(),
        _ => return None,
    })
}
