//! # Room card: api
//!
//! Purpose:    requests, one file each: Kafka's, whose versions matter only here, and the native API's.
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
pub(crate) mod alter_user_scram_credentials;
pub(crate) mod begin_backup;
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
pub(crate) mod fast;
pub(crate) mod fetch;
pub(crate) mod find_coordinator;
pub(crate) mod guarded;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
mod leaders;
mod leases;
pub(crate) mod leave_group;
pub(crate) mod list_config_resources;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod list_partition_reassignments;
pub(crate) mod metadata;
pub(crate) mod native;
pub(crate) mod offset_commit;
pub(crate) mod offset_delete;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod queues;
mod results;
mod sasl;
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
        Prepared::Produce(request) => return produce::handle(node, key, context, request),
        Prepared::Fast(request) => return fast::handle(node, key, context, request),
        Prepared::Request(request) => request,
        Prepared::Native(op) => return native::handle(node, key, context, *op),
    };
    match request {
        Request::FindCoordinator(it) => find_coordinator::handle(node, key, context, it),
        Request::Metadata(it) => metadata::handle(node, key, context, it),
        Request::Fetch(it) => fetch::handle(node, key, context, &it),
        Request::DescribeLogDirs(it) => describe_log_dirs::handle(node, key, &context, &it),
        Request::DescribeReplicas(it) => describe_replicas::handle(node, key, &context, &it),
        Request::DescribeFast(it) => fast::describe(node, key, context, it),
        Request::BeginBackup(it) => begin_backup::handle(node, key, &context, &it),
        Request::ListOffsets(it) => list_offsets::handle(node, key, &context, &it),
        Request::DeleteRecords(it) => delete_records::handle(node, key, &context, it),
        Request::AlterClientQuotas(it) => alter_client_quotas::handle(node, key, &context, &it),
        Request::AlterConfigs(it) => alter_configs::handle(node, key, &context, &it),
        Request::CreateAcls(it) => acls::create(node, key, &context, &it),
        Request::DeleteAcls(it) => acls::delete(node, key, &context, &it),
        Request::AlterUserScramCredentials(it) => {
            alter_user_scram_credentials::handle(node, key, &context, &it);
        }
        Request::IncrementalAlterConfigs(it) => {
            incremental_alter_configs::handle(node, key, &context, &it);
        }
        Request::AlterPartitionReassignments(it) => {
            alter_partition_reassignments::handle(node, key, &context, &it);
        }
        Request::CreatePartitions(it) => create_partitions::handle(node, key, &context, &it),
        Request::CreateTopics(it) => create_topics::handle(node, key, &context, &it),
        Request::DeleteTopics(it) => delete_topics::handle(node, key, &context, &it),
        Request::UnregisterBroker(it) => unregister_broker::handle(node, key, &context, &it),
        Request::ElectLeaders(it) => elect_leaders::handle(node, key, &context, &it),
        Request::InitProducerId(it) => init_producer_id::handle(node, key, &context, &it),
        Request::AddPartitionsToTxn(it) => add_partitions_to_txn::handle(node, key, &context, it),
        Request::AddOffsetsToTxn(it) => {
            add_partitions_to_txn::handle_offsets(node, key, context, it);
        }
        Request::EndTxn(it) => end_txn::handle(node, key, &context, &it),
        Request::TxnOffsetCommit(it) => txn_offset_commit::handle(node, key, &context, it),
        Request::WriteTxnMarkers(it) => write_txn_markers::handle(node, key, &context, it),
        Request::InitializeShareGroupState(it) => share_states::initialize(node, key, &context, it),
        Request::ReadShareGroupState(it) => share_states::read(node, key, &context, it),
        Request::WriteShareGroupState(it) => share_states::write(node, key, &context, it),
        Request::DeleteShareGroupState(it) => share_states::delete(node, key, &context, it),
        Request::ReadShareGroupStateSummary(it) => share_states::summarize(node, key, &context, it),
        Request::ShareFetch(it) => share_fetch::handle(node, key, &context, &it),
        Request::ShareAcknowledge(it) => share_acknowledge::handle(node, key, &context, &it),
        Request::DescribeShareGroupOffsets(it) => share_offsets::describe(node, key, &context, &it),
        Request::AlterShareGroupOffsets(it) => share_offsets::alter(node, key, &context, &it),
        Request::DeleteShareGroupOffsets(it) => share_offsets::delete(node, key, &context, &it),
        other => dispatch_to_groups(node, key, &context, other),
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
        Request::ConsumerGroupHeartbeat(it) => {
            consumer_group_heartbeat::handle(node, key, context, it);
        }
        Request::ShareGroupHeartbeat(it) => share_group_heartbeat::handle(node, key, context, it),
        Request::JoinGroup(it) => join_group::handle(node, key, context, &it),
        Request::SyncGroup(it) => sync_group::handle(node, key, context, &it),
        Request::Heartbeat(it) => heartbeat::handle(node, key, context, &it),
        Request::LeaveGroup(it) => leave_group::handle(node, key, context, &it),
        Request::OffsetCommit(it) => offset_commit::handle(node, key, context, it),
        Request::OffsetFetch(it) => offset_fetch::handle(node, key, context, it),
        Request::OffsetDelete(it) => offset_delete::handle(node, key, context, it),
        Request::DeleteGroups(it) => delete_groups::handle(node, key, context, it),
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
        Request::AlterReplicaLogDirs(it) => {
            alter_replica_log_dirs::answer(node, context, &it).into()
        }
        Request::ApiVersions(it) => crate::api_versions::answer(&it, context.version).into(),
        Request::ConsumerGroupDescribe(it) => {
            consumer_group_describe::answer(node, context, &it).into()
        }
        Request::CreateDelegationToken(_) => delegation_tokens::create(context).into(),
        Request::DescribeAcls(it) => acls::describe(node, context, &it).into(),
        Request::DescribeClientQuotas(it) => {
            describe_client_quotas::answer(node, context, &it).into()
        }
        Request::DescribeCluster(it) => describe_cluster::answer(node, context, &it).into(),
        Request::DescribeConfigs(it) => describe_configs::answer(node, context, it).into(),
        Request::DescribeDelegationToken(_) => delegation_tokens::describe(context).into(),
        Request::DescribeGroups(it) => describe_groups::answer(node, context, &it).into(),
        Request::DescribeProducers(it) => describe_producers::answer(node, context, &it).into(),
        Request::DescribeQuorum(it) => describe_quorum::answer(node, context, &it).into(),
        Request::DescribeTopicPartitions(it) => {
            describe_topic_partitions::answer(node, context, &it).into()
        }
        Request::DescribeTransactions(it) => {
            describe_transactions::answer(node, context, &it).into()
        }
        Request::ListTransactions(it) => describe_transactions::list(node, context, &it).into(),
        Request::DescribeUserScramCredentials(it) => {
            describe_user_scram_credentials::answer(node, context, &it).into()
        }
        Request::ExpireDelegationToken(_) => delegation_tokens::expire(context).into(),
        Request::ListConfigResources(it) => {
            list_config_resources::answer(node, context, &it).into()
        }
        Request::ListGroups(it) => list_groups::answer(node, context, &it).into(),
        Request::ListPartitionReassignments(it) => {
            list_partition_reassignments::answer(node, context, &it).into()
        }
        Request::OffsetForLeaderEpoch(it) => {
            offset_for_leader_epoch::answer(node, context, it).into()
        }
        Request::SaslAuthenticate(_) => sasl::authenticate().into(),
        Request::SaslHandshake(_) => sasl::handshake().into(),
        Request::RenewDelegationToken(_) => delegation_tokens::renew(context).into(),
        Request::ShareGroupDescribe(it) => share_group_describe::answer(node, context, &it).into(),
        Request::UpdateFeatures(it) => update_features::answer(node, context, &it).into(),
        _ => return None,
    })
}
