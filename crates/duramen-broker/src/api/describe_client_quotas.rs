//! `DescribeClientQuotas`: the quotas of those users and client ids that a filter names.

use std::collections::BTreeMap;

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::describe_client_quotas::{
    ComponentData, EntityData, EntryData, ValueData,
};
use duramen_protocol::messages::{DescribeClientQuotasRequest, DescribeClientQuotasResponse};

use crate::access::{Operation, Resource};
use crate::controller::Error;
use crate::node::Node;
use crate::quotas::{Entity, EntityType, QuotaKey};
use crate::session::RequestContext;

const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const SPECIFIED: i8 = 2;

/// IP addresses have no quotas here, but a client may ask for these.
const ADDRESS: &str = "ip";

/// Condition of a filter on one type of entity.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    /// This name, or the default.
    Name(Option<String>),
    /// Any.
    Any,
}

pub(crate) fn answer(
    node: &Node,
    context: &RequestContext,
    request: &DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    let admitted = node.core.access.admit(context, Operation::DescribeConfigs, Resource::Cluster);
    let admitted = admitted.map_err(|code| Error::new(code, "not allowed to see the quotas"));
    match admitted.and_then(|()| find(node, request)) {
        Ok(entries) => {
            DescribeClientQuotasResponse { entries: Some(entries), ..Default::default() }
        }
        Err(error) => DescribeClientQuotasResponse {
            error_code: error.code.code(),
            error_message: Some(error.message),
            ..Default::default()
        },
    }
}

fn find(node: &Node, request: &DescribeClientQuotasRequest) -> Result<Vec<EntryData>, Error> {
    let mut filter = BTreeMap::new();
    for component in &request.components {
        let name = component.entity_type.as_str();
        if filter.insert(name, wanted(component)?).is_some() {
            let text = format!("entity type {name} appears more than once in the filter");
            return Err(Error::new(ErrorCode::InvalidRequest, text));
        }
    }
    if filter.contains_key(ADDRESS) {
        if filter.len() > 1 {
            let text = "addresses have no users and no client ids";
            return Err(Error::new(ErrorCode::InvalidRequest, text));
        }
        return Ok(Vec::new());
    }
    let is_wanted = |entity: &Entity| {
        let has = |(name, wanted): (&&str, &Wanted)| {
            let own = EntityType::from_name(name).and_then(|kind| entity.get(&kind));
            own.is_some_and(|own| *wanted == Wanted::Any || *wanted == Wanted::Name(own.clone()))
        };
        filter.iter().all(has) && (!request.strict || entity.len() == filter.len())
    };
    let all = node.core.controller.image.quotas.all();
    Ok(all
        .filter(|(entity, _)| is_wanted(entity))
        .map(|(entity, quotas)| entry(entity, quotas))
        .collect())
}

fn wanted(component: &ComponentData) -> Result<Wanted, Error> {
    let ComponentData { entity_type, match_type, match_name } = component;
    let invalid = |text: String| Err(Error::new(ErrorCode::InvalidRequest, text));
    if entity_type.is_empty() {
        return invalid("an entity type is empty".to_owned());
    }
    if entity_type != ADDRESS && EntityType::from_name(entity_type).is_none() {
        let text = format!("there is no entity type {entity_type}");
        return Err(Error::new(ErrorCode::UnsupportedVersion, text));
    }
    match (*match_type, match_name) {
        (EXACT, Some(name)) => Ok(Wanted::Name(Some(name.clone()))),
        (EXACT, None) => invalid("an exact match needs a name".to_owned()),
        (DEFAULT, None) => Ok(Wanted::Name(None)),
        (SPECIFIED, None) => Ok(Wanted::Any),
        (DEFAULT | SPECIFIED, Some(_)) => invalid("only an exact match has a name".to_owned()),
        (other, _) => invalid(format!("there is no match type {other}")),
    }
}

fn entry(entity: &Entity, quotas: &BTreeMap<QuotaKey, f64>) -> EntryData {
    let entity = entity.iter().map(|(kind, name)| EntityData {
        entity_type: kind.name().to_owned(),
        entity_name: name.clone(),
    });
    let value = |(key, &value): (&QuotaKey, &f64)| ValueData { key: key.name().to_owned(), value };
    EntryData { entity: entity.collect(), values: quotas.iter().map(value).collect() }
}
