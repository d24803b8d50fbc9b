//! `AlterClientQuotas` (key 49): set quotas of users and client ids, or take them back.

pub use super::describe_client_quotas::EntityData;
use crate::messages::declare::declare;

declare! {
    /// Request of `AlterClientQuotas`.
    pub struct AlterClientQuotasRequest: versions 0..=1, flexible 1.. {
        entries: Vec<EntryData> [0..],
        validate_only: bool [0..],
    }

    /// Stands in [`AlterClientQuotasRequest::entries`].
    pub struct EntryData {
        entity: Vec<EntityData> [0..],
        ops: Vec<OpData> [0..],
    }

    /// Stands in [`EntryData::ops`].
    pub struct OpData {
        key: String [0..],
        value: f64 [0..],
        remove: bool [0..],
    }

    /// Response of `AlterClientQuotas`.
    pub struct AlterClientQuotasResponse: versions 0..=1, flexible 1.. {
        throttle_time_ms: i32 [0..],
        entries: Vec<EntryResult> [0..],
    }

    /// Stands in [`AlterClientQuotasResponse::entries`].
    pub struct EntryResult {
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        entity: Vec<EntityData> [0..],
    }
}
