//! `DescribeAcls`, `CreateAcls` and `DeleteAcls`: rules of access.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_acls::{AclCreation, AclCreationResult};
use duramen_protocol::messages::delete_acls::{
    DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsMatchingAcl,
};
use duramen_protocol::messages::describe_acls::{AclDescription, DescribeAclsResource};
use duramen_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsRequest, DescribeAclsResponse,
};
use duramen_protocol::wire::Uuid;

use super::decisions::{answer_after_commit, why_undecided};
use crate::access::{Access, Operation, RequestContext, Resource};
use crate::acls::{
    Acl, AclOperation, CLUSTER_NAME, Filter, Pattern, Patterns, Permission, ResourceType,
};
use crate::controller::{DECISION_MS, Error};
use crate::event::RequestKey;
use crate::limits::{ACL_NAME_BYTES_MAX, ACLS_MAX};
use crate::metadata_records::{ACLS_KIND, MetadataRecord, RemoveAcl, SetAcl};
use crate::node::Node;

/// Kafka's number of the filter that fits all.
const ANY: i8 = 1;

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorCode::InvalidRequest, text))
}

/// Refuses a request about rules: its client may not ask, or there is no access control.
fn admit(access: &Access, context: &RequestContext, operation: Operation) -> Result<(), Error> {
    if !access.may(context, operation, Resource::Cluster) {
        let text = "not allowed to see or alter the rules";
        return Err(Error::new(ErrorCode::ClusterAuthorizationFailed, text));
    }
    if !access.is_on() {
        let text = "there is no access control: no listener asks clients who they are, and \
                    authorizer.class.name is not set";
        return Err(Error::new(ErrorCode::SecurityDisabled, text));
    }
    Ok(())
}

/// Refuses a change of rules as well while a node runs a build that does not know them.
fn admit_change(node: &Node, context: &RequestContext) -> Result<(), Error> {
    admit(&node.core.access, context, Operation::Alter)?;
    match node.core.which_lacks(ACLS_KIND) {
        None => Ok(()),
        Some(node) => Err(Error::new(
            ErrorCode::UnsupportedVersion,
            format!("node {node} runs an earlier release, which knows no rules: upgrade it first"),
        )),
    }
}

pub(crate) fn describe(
    node: &Node,
    context: &RequestContext,
    request: &DescribeAclsRequest,
) -> DescribeAclsResponse {
    let wanted = DeleteAclsFilter {
        resource_type_filter: request.resource_type_filter,
        resource_name_filter: request.resource_name_filter.clone(),
        pattern_type_filter: request.pattern_type_filter,
        principal_filter: request.principal_filter.clone(),
        host_filter: request.host_filter.clone(),
        operation: request.operation,
        permission_type: request.permission_type,
    };
    let admitted = admit(&node.core.access, context, Operation::Describe);
    let asked = admitted.and_then(|()| filter(&wanted));
    let filter = match asked {
        Ok(filter) => filter,
        Err(Error { code, message }) => {
            return DescribeAclsResponse {
                error_code: code.code(),
                error_message: Some(message),
                ..Default::default()
            };
        }
    };
    let mut resources: BTreeMap<_, Vec<AclDescription>> = BTreeMap::new();
    let acls = node.core.controller.image.acls.values();
    let found: BTreeSet<&Acl> = acls.filter(|acl| filter.matches(acl)).collect();
    for acl in found {
        let of = resources.entry((acl.resource, acl.name.as_str(), acl.pattern)).or_default();
        of.push(AclDescription {
            principal: acl.principal.clone(),
            host: acl.host.clone(),
            operation: acl.operation.code(),
            permission_type: acl.permission.code(),
        });
    }
    let resource = |((resource, name, pattern), acls): ((ResourceType, &str, Pattern), _)| {
        DescribeAclsResource {
            resource_type: resource.code(),
            resource_name: name.to_owned(),
            pattern_type: pattern.code(),
            acls,
        }
    };
    let resources = resources.into_iter().map(resource).collect();
    DescribeAclsResponse { resources, ..Default::default() }
}

pub(crate) fn create(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &CreateAclsRequest,
) {
    let admitted = admit_change(node, context);
    let (mut results, mut records, mut made) = (Vec::new(), Vec::new(), BTreeSet::new());
    for creation in &request.creations {
        let created = admitted.clone().and_then(|()| acl_of(creation)).and_then(|acl| {
            // A rule that is there already stays as it is.
            let is_new = !made.contains(&acl) && !node.core.access.has(&acl);
            if is_new && node.core.controller.image.acls.len() + made.len() >= ACLS_MAX {
                return invalid(format!("a cluster has at most {ACLS_MAX} rules"));
            }
            Ok(is_new.then_some(acl))
        });
        let error = created.as_ref().err();
        results.push(AclCreationResult {
            error_code: error.map_or(0, |error| error.code.code()),
            error_message: error.map(|error| error.message.clone()),
        });
        if let Ok(Some(acl)) = created {
            let id = node.core.fresh_id();
            records.push(MetadataRecord::SetAcl(SetAcl::of(id, &acl)));
            made.insert(acl);
        }
    }
    let response = CreateAclsResponse { results, ..Default::default() };
    answer_after_commit(node, (key, context), &records, response.into(), DECISION_MS);
}

/// Reads a rule. Errors are those of Kafka's controller.
fn acl_of(creation: &AclCreation) -> Result<Acl, Error> {
    let AclCreation { resource_name: name, principal, host, .. } = creation;
    let Some(resource) = ResourceType::from_code(creation.resource_type) else {
        return invalid(format!("there is no resource type {}", creation.resource_type));
    };
    let Some(pattern) = Pattern::from_code(creation.resource_pattern_type) else {
        return invalid(format!("a rule has no pattern type {}", creation.resource_pattern_type));
    };
    let Some(operation) = AclOperation::from_code(creation.operation) else {
        return invalid(format!("there is no operation {}", creation.operation));
    };
    let Some(permission) = Permission::from_code(creation.permission_type) else {
        return invalid(format!("there is no permission type {}", creation.permission_type));
    };
    if name.is_empty() || host.is_empty() {
        return invalid("a rule names a resource and a host, or * for all");
    }
    if [name, principal, host].iter().any(|text| text.len() > ACL_NAME_BYTES_MAX) {
        return invalid(format!("a name in a rule has at most {ACL_NAME_BYTES_MAX} bytes"));
    }
    if resource == ResourceType::Cluster && name != CLUSTER_NAME {
        return invalid(format!("the only resource of the type cluster is {CLUSTER_NAME}"));
    }
    if principal.split_once(':').is_none_or(|(kind, name)| kind.is_empty() || name.is_empty()) {
        return invalid(format!("\"{principal}\" is not TYPE:NAME, as User:ada is"));
    }
    let (name, principal, host) = (name.clone(), principal.clone(), host.clone());
    Ok(Acl { resource, name, pattern, principal, host, operation, permission })
}

/// Reads a filter, which has the same fields in both requests.
fn filter(asked: &DeleteAclsFilter) -> Result<Filter, Error> {
    fn known<T>(code: i8, of: impl Fn(i8) -> Option<T>, kind: &str) -> Result<Option<T>, Error> {
        match of(code) {
            None if code == ANY => Ok(None),
            None => invalid(format!("there is no {kind} {code}")),
            found => Ok(found),
        }
    }
    let Some(pattern) = Patterns::from_code(asked.pattern_type_filter) else {
        return invalid(format!("there is no pattern type {}", asked.pattern_type_filter));
    };
    Ok(Filter {
        resource: known(asked.resource_type_filter, ResourceType::from_code, "resource type")?,
        name: asked.resource_name_filter.clone(),
        pattern,
        principal: asked.principal_filter.clone(),
        host: asked.host_filter.clone(),
        operation: known(asked.operation, AclOperation::from_code, "operation")?,
        permission: known(asked.permission_type, Permission::from_code, "permission type")?,
    })
}

pub(crate) fn delete(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &DeleteAclsRequest,
) {
    let admitted = admit_change(node, context);
    let acls = &node.core.controller.image.acls;
    let mut gone: BTreeSet<Uuid> = BTreeSet::new();
    let mut result = |asked: &DeleteAclsFilter| {
        let filter = admitted.clone().and_then(|()| filter(asked));
        let filter = match filter {
            Ok(filter) => filter,
            Err(Error { code, message }) => {
                let (error_code, error_message) = (code.code(), Some(message));
                return DeleteAclsFilterResult { error_code, error_message, ..Default::default() };
            }
        };
        let found: Vec<_> = acls.iter().filter(|(_, acl)| filter.matches(acl)).collect();
        gone.extend(found.iter().map(|(id, _)| **id));
        let matching = found.into_iter().map(|(_, acl)| matching(acl)).collect();
        DeleteAclsFilterResult { matching_acls: matching, ..Default::default() }
    };
    let filter_results = request.filters.iter().map(&mut result).collect();
    let records: Vec<_> =
        gone.into_iter().map(|id| MetadataRecord::RemoveAcl(RemoveAcl { id })).collect();
    let response = DeleteAclsResponse { filter_results, ..Default::default() };
    answer_after_commit(node, (key, context), &records, response.into(), DECISION_MS);
}

fn matching(acl: &Acl) -> DeleteAclsMatchingAcl {
    let Acl { resource, name, pattern, principal, host, operation, permission } = acl.clone();
    DeleteAclsMatchingAcl {
        resource_type: resource.code(),
        resource_name: name,
        pattern_type: pattern.code(),
        principal,
        host,
        operation: operation.code(),
        permission_type: permission.code(),
        ..Default::default()
    }
}

/// Answers a request to make rules that the controller did not decide.
pub(crate) fn uncreated(request: &CreateAclsRequest, code: ErrorCode) -> CreateAclsResponse {
    let error_message = Some(why_undecided(code).to_owned());
    let refused = AclCreationResult { error_code: code.code(), error_message };
    CreateAclsResponse { results: vec![refused; request.creations.len()], ..Default::default() }
}

/// Answers a request to take rules away that the controller did not decide.
pub(crate) fn undeleted(request: &DeleteAclsRequest, code: ErrorCode) -> DeleteAclsResponse {
    let refused = DeleteAclsFilterResult {
        error_code: code.code(),
        error_message: Some(why_undecided(code).to_owned()),
        ..Default::default()
    };
    let filter_results = vec![refused; request.filters.len()];
    DeleteAclsResponse { filter_results, ..Default::default() }
}
