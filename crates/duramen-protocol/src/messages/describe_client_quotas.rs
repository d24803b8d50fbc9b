//! `DescribeClientQuotas` (key 48): the quotas of users and client ids.

use crate::messages::declare::declare;

declare! {
    /// Request of `DescribeClientQuotas`.
    pub struct DescribeClientQuotasRequest: versions 0..=1, flexible 1.. {
        components: Vec<ComponentData> [0..],
        strict: bool [0..],
    }

    /// Stands in [`DescribeClientQuotasRequest::components`].
    pub struct ComponentData {
        entity_type: String [0..],
        match_type: i8 [0..],
        match_name: Option<String> [0.., nullable 0..],
    }

    /// Response of `DescribeClientQuotas`.
    pub struct DescribeClientQuotasResponse: versions 0..=1, flexible 1.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        entries: Option<Vec<EntryData>> [0.., nullable 0..],
    }

    /// Stands in [`DescribeClientQuotasResponse::entries`].
    pub struct EntryData {
        entity: Vec<EntityData> [0..],
        values: Vec<ValueData> [0..],
    }

    /// Stands in [`EntryData::entity`].
    pub struct EntityData {
        entity_type: String [0..],
        entity_name: Option<String> [0.., nullable 0..],
    }

    /// Stands in [`EntryData::values`].
    pub struct ValueData {
        key: String [0..],
        value: f64 [0..],
    }
}
