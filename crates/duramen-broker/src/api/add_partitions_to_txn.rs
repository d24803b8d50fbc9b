//! `AddPartitionsToTxn`: adds the partitions that a transaction will write to. Also serves `AddOffsetsToTxn`, which
//! adds the partition that holds a group.

use std::collections::BTreeMap;

use duramen_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
};
use duramen_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
};
use duramen_protocol::{ErrorCode, Response};

use super::checks::told;
use super::results::count_result;
use crate::access::{Operation, Resource};
use crate::core::{Parked, Place};
use crate::event::RequestKey;
use crate::internal_topics::{self, GROUPS, is_internal};
use crate::node::Node;
use crate::session::RequestContext;
use crate::transactions::coordinator::{Addition, Ask, Asker};
use crate::transactions::records::Partitions;

/// The first version that asks for several transactions at once; clients speak those before.
const FIRST_BATCHED: i16 = 4;
/// First version in which a client learns by its own error code that another producer has replaced it.
const FIRST_FENCED: i16 = 2;

/// One transaction of a request.
struct Part {
    id: String,
    addition: Addition,
    topics: Vec<AddPartitionsToTxnTopic>,
}

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: AddPartitionsToTxnRequest,
) {
    if context.version >= FIRST_BATCHED
        && !node.core.access.may(context, Operation::ClusterAction, Resource::Cluster)
    {
        let error_code = ErrorCode::ClusterAuthorizationFailed.code();
        return node.reply(key, AddPartitionsToTxnResponse { error_code, ..Default::default() });
    }
    let parts = parts_of(context, request);
    let mut results = Vec::with_capacity(parts.len());
    let mut asked = Vec::new();
    for (at, Part { id, mut addition, topics }) in parts.into_iter().enumerate() {
        let admitted = if context.version >= FIRST_BATCHED {
            admit_node(node, &id)
        } else {
            admit(node, context, &id)
        };
        let codes = judge(node, context, &topics);
        let is_whole = codes.values().all(|code| code.is_none());
        let told = |code: ErrorCode| match admitted {
            Err(refused) => refused,
            Ok(()) if !is_whole && code.is_none() => ErrorCode::OperationNotAttempted,
            Ok(()) => code,
        };
        let may_be_asked = admitted.is_ok() && is_whole && !codes.is_empty();
        for (topic, partition) in codes.keys().filter(|_| may_be_asked) {
            let place = ((*topic).to_owned(), *partition);
            if addition.verify_only {
                // The coordinator answers for each partition on its own.
                let partitions = [(place.0.clone(), [place.1].into())].into();
                let addition = Addition { partitions, ..addition.clone() };
                asked.push((Place { at, partition: Some(place) }, id.clone(), addition));
            } else {
                addition.partitions.entry(place.0).or_default().insert(place.1);
            }
        }
        if may_be_asked && !addition.verify_only {
            asked.push((Place { at, partition: None }, id.clone(), addition));
        }
        results.push(AddPartitionsToTxnResult {
            transactional_id: id,
            topic_results: in_order(&codes, told),
        });
    }
    let response = if context.version >= FIRST_BATCHED {
        AddPartitionsToTxnResponse { results_by_transaction: results, ..Default::default() }
    } else {
        let results_by_topic_v3_and_below = results.remove(0).topic_results;
        AddPartitionsToTxnResponse { results_by_topic_v3_and_below, ..Default::default() }
    };
    ask(node, key, context.version, response.into(), asked);
}

/// Returns the transactions of the request.
fn parts_of(context: &RequestContext, request: AddPartitionsToTxnRequest) -> Vec<Part> {
    let part = |id, producer_id, epoch, verify_only, topics| Part {
        id,
        addition: Addition {
            producer_id,
            epoch,
            partitions: Partitions::new(),
            verify_only,
            version: 1,
        },
        topics,
    };
    if context.version >= FIRST_BATCHED {
        let all = request.transactions.into_iter().map(|it| {
            part(it.transactional_id, it.producer_id, it.producer_epoch, it.verify_only, it.topics)
        });
        all.collect()
    } else {
        vec![part(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            false,
            request.v3_and_below_topics,
        )]
    }
}

/// Asks the coordinators here about all parts, and answers when they have.
fn ask(
    node: &mut Node,
    key: RequestKey,
    version: i16,
    response: Response,
    asked: Vec<(Place, String, Addition)>,
) {
    if asked.is_empty() {
        return node.reply(key, response);
    }
    let (response, outstanding) = (Box::new(response), asked.len());
    let places = asked.iter().map(|(place, ..)| place.clone()).collect();
    node.core.park(key, Parked::Addition { response, places, outstanding, version }, u64::MAX);
    for (part, (_, id, addition)) in asked.into_iter().enumerate() {
        let ask = Ask::Add { asker: Asker::Request { key, part }, addition };
        let now = node.core.now;
        let given = node.coordinators.coordinate_transaction(&mut node.core, &id, |it| {
            it.ask(&id, ask, now);
        });
        if let Err(code) = given {
            on_judged(node, key, part, code);
        }
    }
}

/// Records a coordinator's answer for one part.
pub(crate) fn on_judged(node: &mut Node, key: RequestKey, part: usize, code: ErrorCode) {
    let Some(Parked::Addition { response, places, outstanding, version }) =
        node.core.parked_mut(key)
    else {
        return;
    };
    let code = told(code.code(), *version, FIRST_FENCED);
    assert!(*outstanding <= places.len(), "each part of a request is asked for once");
    let Place { at, partition } = &places[part];
    match &mut **response {
        Response::AddOffsetsToTxn(answer) => answer.error_code = code,
        Response::AddPartitionsToTxn(answer) => {
            let topics = match answer.results_by_transaction.get_mut(*at) {
                Some(result) => &mut result.topic_results,
                None => &mut answer.results_by_topic_v3_and_below,
            };
            for topic in topics {
                let is_it = |index: i32| {
                    partition.as_ref().is_none_or(|it| it.0 == topic.name && it.1 == index)
                };
                let results = topic.results_by_partition.iter_mut();
                for it in results.filter(|it| is_it(it.partition_index)) {
                    it.partition_error_code = code;
                }
            }
        }
        _ => {}
    }
    count_result(node, key);
}

/// Tells whether the principal may use the transactional id, and whether this node coordinates it.
pub(super) fn admit(node: &Node, context: &RequestContext, id: &str) -> Result<(), ErrorCode> {
    if id.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    node.core.access.admit(context, Operation::Write, Resource::TransactionalId(id))?;
    node.coordinators.coordinates(&node.core, id)
}

/// Tells whether this node coordinates the transactional id that another node asks about.
fn admit_node(node: &Node, id: &str) -> Result<(), ErrorCode> {
    if id.is_empty() {
        Err(ErrorCode::InvalidRequest)
    } else {
        node.coordinators.coordinates(&node.core, id)
    }
}

type Codes<'a> = BTreeMap<(&'a str, i32), ErrorCode>;

/// Returns a code for each partition, by the client's right to write to it.
fn judge<'a>(
    node: &Node,
    context: &RequestContext,
    topics: &'a [AddPartitionsToTxnTopic],
) -> Codes<'a> {
    let mut codes = Codes::new();
    for topic in topics {
        let name = topic.name.as_str();
        let may = context.version >= FIRST_BATCHED
            || node.core.access.may(context, Operation::Write, Resource::Topic(name));
        let known = node.core.controller.image.topic_named(name);
        for &partition in &topic.partitions {
            let is_there = known.is_some_and(|it| it.replicas(partition).is_some());
            let code = match () {
                () if !may || is_internal(name) => ErrorCode::TopicAuthorizationFailed,
                () if !is_there => ErrorCode::UnknownTopicOrPartition,
                () => ErrorCode::None,
            };
            codes.insert((name, partition), code);
        }
    }
    codes
}

/// Orders the results: those that fail come first, as from Kafka.
fn in_order(
    codes: &Codes<'_>,
    told: impl Fn(ErrorCode) -> ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut all: Vec<_> = codes.iter().collect();
    all.sort_by_key(|(_, code)| code.is_none());
    let mut topics: Vec<AddPartitionsToTxnTopicResult> = Vec::new();
    for (&(name, partition_index), &code) in all {
        let partition_error_code = told(code).code();
        let result = AddPartitionsToTxnPartitionResult { partition_index, partition_error_code };
        match topics.iter_mut().find(|topic| topic.name == name) {
            Some(topic) => topic.results_by_partition.push(result),
            None => topics.push(AddPartitionsToTxnTopicResult {
                name: name.to_owned(),
                results_by_partition: vec![result],
            }),
        }
    }
    topics
}

/// Handles `AddOffsetsToTxn`. Clients send it before they look for the group's coordinator, so it may be the first use
/// of `__consumer_offsets`. The request waits until that topic is created.
pub(crate) fn handle_offsets(
    node: &mut Node,
    key: RequestKey,
    context: RequestContext,
    request: AddOffsetsToTxnRequest,
) {
    let id = request.transactional_id.clone();
    let admitted = admit(node, &context, &id).and_then(|()| {
        let group = Resource::Group(&request.group_id);
        node.core.access.admit(&context, Operation::Read, group)
    });
    if let Err(code) = admitted {
        return node.reply(key, offsets_refused(code, &context));
    }
    let Some(topic) = node.core.controller.image.topic_named(GROUPS) else {
        return node.coordinators.await_groups(&mut node.core, key, context, request);
    };
    let partition = internal_topics::partition_of(&request.group_id, topic.partitions.len());
    let addition = Addition {
        producer_id: request.producer_id,
        epoch: request.producer_epoch,
        partitions: [(GROUPS.to_owned(), [partition].into())].into(),
        verify_only: false,
        version: 1,
    };
    let asked = vec![(Place { at: 0, partition: None }, id, addition)];
    ask(node, key, context.version, AddOffsetsToTxnResponse::default().into(), asked);
}

/// Goes on with a request that waited for `__consumer_offsets`.
pub(crate) fn on_groups_made(node: &mut Node, key: RequestKey) {
    // The client may be gone.
    let Some(Parked::AddOffsets { .. }) = node.core.parked_mut(key) else { return };
    if let Some(Parked::AddOffsets { request, context }) = node.unpark(key) {
        handle_offsets(node, key, context, request);
    }
}

/// Returns the answer to a client whose offsets cannot be part of its transaction.
pub(crate) fn offsets_refused(
    code: ErrorCode,
    context: &RequestContext,
) -> AddOffsetsToTxnResponse {
    let error_code = told(code.code(), context.version, FIRST_FENCED);
    AddOffsetsToTxnResponse { error_code, ..Default::default() }
}
