//! `IncrementalAlterConfigs`: sets and removes single settings, and changes words of lists.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse,
};
use duramen_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use duramen_storage::sabotage::{self, Bug};

use super::decisions::{answer_after_commit, why_undecided};
use super::settings::{Asked, Change, decide};
use crate::controller::{DECISION_MS, Error};
use crate::event::RequestKey;
use crate::node::Node;
use crate::session::RequestContext;

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &IncrementalAlterConfigsRequest,
) {
    let asked: Vec<Asked<'_>> = request.resources.iter().map(asked).collect();
    let mut response = IncrementalAlterConfigsResponse::default();
    let mut records = Vec::new();
    for (resource, decided) in request.resources.iter().zip(decide(node, context, &asked)) {
        response.responses.push(row(resource, decided.as_ref().err()));
        records.extend(decided.unwrap_or_default());
    }
    if request.validate_only {
        records.clear();
    }
    if sabotage::is(Bug::AlteredBeforeKept) && node.core.propose(&records).is_ok() {
        return node.reply(key, response);
    }
    answer_after_commit(node, (key, context), &records, response.into(), DECISION_MS);
}

fn asked(resource: &AlterConfigsResource) -> Asked<'_> {
    let changes = resource.configs.iter().map(|config| Change {
        name: &config.name,
        operation: config.config_operation,
        value: config.value.as_deref(),
    });
    Asked {
        kind: resource.resource_type,
        name: &resource.resource_name,
        replaces: false,
        changes: changes.collect(),
    }
}

fn row(resource: &AlterConfigsResource, error: Option<&Error>) -> AlterConfigsResourceResponse {
    AlterConfigsResourceResponse {
        error_code: error.map_or(0, |error| error.code.code()),
        error_message: error.map(|error| error.message.clone()),
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.clone(),
    }
}

/// Returns the answer about resources that were still undecided when the request timed out.
pub(crate) fn undecided(
    request: &IncrementalAlterConfigsRequest,
    code: ErrorCode,
) -> IncrementalAlterConfigsResponse {
    let error = Error::new(code, why_undecided(code));
    let responses = request.resources.iter().map(|resource| row(resource, Some(&error))).collect();
    IncrementalAlterConfigsResponse { responses, ..Default::default() }
}
