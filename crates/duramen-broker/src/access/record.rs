//! Records of the access log: a client's try, or its deed. Each is JSON of class 6003, API Activity, of the Open
//! Cybersecurity Schema Framework (OCSF) 1.1.0, with all that the schema requires.

use std::borrow::Cow;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{Api, Operation, RequestContext};

/// Topic of the records, which only nodes write.
pub(crate) const ACCESS_LOG: &str = "__access_log";

/// Longest text that a client has chosen, in characters. The rest is cut off.
const TEXT_MAX: usize = 1_000;

/// Kind of an activity, by the schema's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub(crate) enum Activity {
    Create = 1,
    Read = 2,
    Update = 3,
    Delete = 4,
    Other = 99,
}

impl Activity {
    /// Returns the activity that an operation is.
    pub(crate) const fn of(operation: Operation) -> Self {
        match operation {
            Operation::Create => Self::Create,
            Operation::Read | Operation::Describe | Operation::DescribeConfigs => Self::Read,
            Operation::Write
            | Operation::Alter
            | Operation::AlterConfigs
            | Operation::IdempotentWrite => Self::Update,
            Operation::Delete => Self::Delete,
            Operation::ClusterAction => Self::Other,
        }
    }
}

/// Record of a verdict, or of a change.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    pub context: RequestContext,
    pub activity: Activity,
    /// The words of the log's line.
    pub message: &'static str,
    /// More words; empty if there are none.
    pub detail: String,
    /// Kind of the resource, and its name.
    pub resource: (&'static str, String),
    /// The judged operation, and whether rules allow it. `None` for a change that is committed.
    pub verdict: Option<(Operation, bool)>,
}

/// Records of one turn.
#[derive(Debug, Default)]
pub(crate) struct AccessRecords {
    pub records: Vec<AccessRecord>,
    /// Count of further records, which nobody has kept.
    pub left_out: u64,
}

impl AccessRecord {
    /// Returns the record of a node. `unsaid` records before it were left out.
    pub(crate) fn to_json(&self, node_id: i32, time_ms: i64, unsaid: u64) -> Vec<u8> {
        let Self { context, activity, message, detail, resource: (kind, name), verdict } = self;
        let service = match context.api {
            Api::Kafka(_) => "kafka",
            Api::Native(_) => "native",
        };
        let is_denied = matches!(verdict, Some((_, false)));
        let principal = &*context.principal;
        let user = principal.strip_prefix("User:").unwrap_or(principal);
        let mut actor = json!({ "user": { "name": cut(user), "uid": cut(principal) } });
        let mut unmapped = Map::new();
        if let Some((operation, is_allowed)) = verdict {
            let decision = if *is_allowed { "allowed" } else { "denied" };
            actor["authorizations"] = json!([{ "decision": decision }]);
            unmapped.insert("access_operation".to_owned(), json!(format!("{operation:?}")));
        }
        if let Some(client) = &context.client_id {
            unmapped.insert("client_id".to_owned(), json!(cut(client)));
        }
        if unsaid > 0 {
            unmapped.insert("records_left_out".to_owned(), json!(unsaid));
        }
        let source = match context.host().parse::<IpAddr>() {
            Ok(ip) => json!({ "ip": ip }),
            Err(_) => json!({ "hostname": context.host() }),
        };
        let mut record = json!({
            "metadata": {
                "version": "1.1.0",
                "log_name": ACCESS_LOG,
                "product": {
                    "name": "Duramen",
                    "vendor_name": "Duramen",
                    "version": env!("CARGO_PKG_VERSION"),
                    "uid": node_id.to_string(),
                },
            },
            "category_uid": 6,
            "class_uid": 6003,
            "activity_id": *activity as i32,
            "type_uid": 600_300 + *activity as i32,
            "severity_id": if is_denied { 2 } else { 1 },
            "status_id": if is_denied { 2 } else { 1 },
            "time": time_ms,
            "message": message,
            "actor": actor,
            "api": { "operation": context.api.to_string(), "service": { "name": service } },
            "resources": [{ "type": kind, "name": cut(name) }],
            "src_endpoint": source,
            "dst_endpoint": { "svc_name": &*context.listener },
            "unmapped": Value::Object(unmapped),
        });
        if !detail.is_empty() {
            record["status_detail"] = json!(cut(detail));
        }
        record.to_string().into_bytes()
    }
}

/// Returns a text without what would make a record large.
fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use duramen_protocol::ApiKey;

    use super::*;

    #[test]
    fn a_denial_is_a_failed_activity() {
        let record = AccessRecord {
            context: RequestContext {
                client_id: Some("app\"1".into()),
                ..RequestContext::sample(ApiKey::Produce)
            },
            activity: Activity::of(Operation::Write),
            message: "denied",
            detail: String::new(),
            resource: ("Topic", "orders".to_owned()),
            verdict: Some((Operation::Write, false)),
        };
        let record: Value = serde_json::from_slice(&record.to_json(3, 1_700, 4)).expect("JSON");
        let version = env!("CARGO_PKG_VERSION");
        let expected = json!({
            "metadata": {
                "version": "1.1.0",
                "log_name": "__access_log",
                "product": {
                    "name": "Duramen", "vendor_name": "Duramen", "version": version, "uid": "3",
                },
            },
            "category_uid": 6,
            "class_uid": 6003,
            "activity_id": 3,
            "type_uid": 600_303,
            "severity_id": 2,
            "status_id": 2,
            "time": 1_700,
            "message": "denied",
            "actor": {
                "user": { "name": "ANONYMOUS", "uid": "User:ANONYMOUS" },
                "authorizations": [{ "decision": "denied" }],
            },
            "api": { "operation": "Produce", "service": { "name": "kafka" } },
            "resources": [{ "type": "Topic", "name": "orders" }],
            "src_endpoint": { "ip": "127.0.0.1" },
            "dst_endpoint": { "svc_name": "PLAINTEXT" },
            "unmapped": {
                "access_operation": "Write", "client_id": "app\"1", "records_left_out": 4,
            },
        });
        assert_eq!(record, expected);
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(cut(&"é".repeat(TEXT_MAX)), "é".repeat(TEXT_MAX));
        assert_eq!(cut(&"é".repeat(TEXT_MAX + 1)), format!("{}…", "é".repeat(TEXT_MAX)));
    }

    #[test]
    fn a_change_is_an_activity_without_a_verdict() {
        let record = AccessRecord {
            context: RequestContext::sample(ApiKey::CreateTopics),
            activity: Activity::Create,
            message: "topic made",
            detail: "retention.ms=5".to_owned(),
            resource: ("Topic", "orders".to_owned()),
            verdict: None,
        };
        let record: Value = serde_json::from_slice(&record.to_json(0, 1, 0)).expect("JSON");
        assert_eq!(record["type_uid"], 600_301);
        assert_eq!((&record["status_id"], &record["severity_id"]), (&json!(1), &json!(1)));
        assert_eq!(record["status_detail"], "retention.ms=5");
        assert_eq!(record["actor"].get("authorizations"), None);
        assert_eq!(record["unmapped"], json!({}));
    }
}
