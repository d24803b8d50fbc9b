//! `AlterClientQuotas`: sets and removes quotas.

use std::collections::{BTreeMap, BTreeSet};

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::alter_client_quotas::{EntityData, EntryData, EntryResult, OpData};
use duramen_protocol::messages::{AlterClientQuotasRequest, AlterClientQuotasResponse};

use super::decisions::{answer_after_commit, why_undecided};
use crate::access::{Operation, Resource};
use crate::controller::{DECISION_MS, Error};
use crate::event::RequestKey;
use crate::metadata_records::{MetadataRecord, QuotaEntity, SetClientQuota};
use crate::node::Node;
use crate::quotas::{Entity, EntityType, QuotaKey};
use crate::session::RequestContext;

/// Quotas that Kafka has and this node does not enforce. The node refuses them, because a quota that is accepted must
/// have an effect.
const NOT_YET: [&str; 2] = ["controller_mutation_rate", "connection_creation_rate"];

pub(crate) fn handle(
    node: &mut Node,
    key: RequestKey,
    context: &RequestContext,
    request: &AlterClientQuotasRequest,
) {
    let admitted = node.core.access.admit(context, Operation::AlterConfigs, Resource::Cluster);
    let admitted = admitted.map_err(|code| Error::new(code, "not allowed to change quotas"));
    let mut seen = BTreeSet::new();
    let mut response = AlterClientQuotasResponse::default();
    let mut records = Vec::new();
    for entry in &request.entries {
        let altered = admitted.clone().and_then(|()| alter(entry, &mut seen));
        response.entries.push(EntryResult {
            error_code: altered.as_ref().err().map_or(0, |error| error.code.code()),
            error_message: altered.as_ref().err().map(|error| error.message.clone()),
            entity: entry.entity.clone(),
        });
        records.extend(altered.unwrap_or_default());
    }
    if request.validate_only {
        records.clear();
    }
    answer_after_commit(node, (key, context), &records, response.into(), DECISION_MS);
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorCode::InvalidRequest, text))
}

fn alter(entry: &EntryData, seen: &mut BTreeSet<Entity>) -> Result<Vec<MetadataRecord>, Error> {
    let entity = entity_of(&entry.entity)?;
    if !seen.insert(entity.clone()) {
        return invalid("the entity is named twice in the request");
    }
    let mut quotas = BTreeMap::new();
    for op in &entry.ops {
        if quotas.insert(op.key.as_str(), value_of(op)?).is_some() {
            return invalid(format!("{} is named twice for the entity", op.key));
        }
    }
    let name = |(kind, name): (&EntityType, &Option<String>)| QuotaEntity {
        entity_type: kind.name().to_owned(),
        entity_name: name.clone(),
    };
    let entity: Vec<QuotaEntity> = entity.iter().map(name).collect();
    let record = |(key, value): (&str, Option<f64>)| {
        let key = QuotaKey::from_name(key)?.name().to_owned();
        let (entity, is_removed, value) = (entity.clone(), value.is_none(), value.unwrap_or(0.0));
        Some(MetadataRecord::SetClientQuota(SetClientQuota { entity, key, value, is_removed }))
    };
    Ok(quotas.into_iter().filter_map(record).collect())
}

fn entity_of(named: &[EntityData]) -> Result<Entity, Error> {
    if named.is_empty() {
        return invalid("the entity is empty");
    }
    let mut entity = Entity::new();
    for EntityData { entity_type, entity_name } in named {
        let Some(kind) = EntityType::from_name(entity_type) else {
            return invalid(match entity_type.as_str() {
                "ip" => {
                    "quotas of addresses are not enforced yet, so they cannot be set".to_owned()
                }
                other => format!("there is no entity type {other}"),
            });
        };
        if entity_name.as_ref().is_some_and(String::is_empty) {
            return invalid(format!("the name of a {entity_type} is empty"));
        }
        entity.insert(kind, entity_name.clone());
    }
    Ok(entity)
}

/// Returns the value to set, or `None` to remove the quota. A client may remove a quota that it cannot set, as in
/// Kafka.
fn value_of(op: &OpData) -> Result<Option<f64>, Error> {
    let OpData { key, value, remove } = op;
    if *remove {
        return Ok(None);
    }
    if NOT_YET.contains(&key.as_str()) {
        return invalid(format!("{key} is not enforced yet, so it cannot be set"));
    }
    let Some(kind) = QuotaKey::from_name(key) else {
        return invalid(format!("there is no quota {key}"));
    };
    // Not a number is not greater, either.
    if !(*value > 0.0 && *value <= i64::MAX as f64) {
        return invalid(format!("{key} must be greater than 0 and fit into 64 bits"));
    }
    if kind.is_of_bytes() && value.fract() != 0.0 {
        return invalid(format!("{key} cannot be a fraction"));
    }
    Ok(Some(*value))
}

/// Returns the answer about quotas on which no controller decided.
pub(crate) fn undecided(
    request: &AlterClientQuotasRequest,
    code: ErrorCode,
) -> AlterClientQuotasResponse {
    let row = |entry: &EntryData| EntryResult {
        error_code: code.code(),
        error_message: Some(why_undecided(code).to_owned()),
        entity: entry.entity.clone(),
    };
    let entries = request.entries.iter().map(row).collect();
    AlterClientQuotasResponse { entries, ..Default::default() }
}
