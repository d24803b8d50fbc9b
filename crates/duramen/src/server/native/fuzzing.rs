//! Access for fuzz targets, not an interface.

use std::collections::HashMap;
use std::thread;

use bytes::Bytes;
use duramen_broker::native::{Op, Problem};
use duramen_protocol::batch::BatchView;
use duramen_protocol::records::{BatchBuilder, NewRecord, Records};
use serde::de::DeserializeOwned;

use super::following::pages_of;
use super::messages::{
    append_of, check_many, enqueue_many_of, enqueue_of, fence_of, fence_queue_of, replace_of,
    retrieve_of, rewrite_of, trim_queue_of, truncate_of,
};
use super::problems::Fault;
use super::selecting::{RESULT_BYTES_MAX, Selected, Selection, Wanted};
use super::topics::create_of;
use super::{json, problems};
use crate::proto::{Position, ReplaceRequest};

/// Stack of the threads that evaluate expressions, in bytes.
const STACK_BYTES: usize = 2 << 20;
/// Value of the element that expressions are evaluated on.
const VALUE: &[u8] = br#"{"level":"error","n":7,"x":1.5,"tags":["a","b"],"of":{"it":null}}"#;

fn read<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

/// Makes the operation of an append, whose batch is hardly larger than its body.
fn judge(body: &[u8], made: Result<Op, Problem>) -> bool {
    match made {
        Ok(op) => {
            let batch = match op {
                Op::Append(it) => Some(it.batch),
                Op::Replace(it) => Some(it.batch),
                Op::Rewrite(it) => it.batch,
                _ => None,
            };
            let bytes = batch.map_or(0, |it| it.bytes.len());
            assert!(bytes <= 100 + 8 * body.len(), "a body of {} has {bytes} bytes", body.len());
            true
        }
        Err(problem) => {
            let fault = Fault::from(problem);
            assert!(fault.document().is_object());
            false
        }
    }
}

/// Reads a body as each request that JSON has, and makes the operation of it. Returns how many operations were made.
pub fn json_requests(body: &[u8]) -> usize {
    let topic = || "t".to_owned();
    let queue = || Bytes::from_static(b"alice");
    let mut made = Vec::new();
    if let Some(Ok(it)) = read::<json::Append>(body).map(|it| it.message(topic(), 0)) {
        made.push(judge(body, append_of(&it, 0)));
    }
    if let Some(Ok(it)) = read::<json::Enqueue>(body).map(|it| it.message(topic(), queue())) {
        made.push(judge(body, enqueue_of(&it, 0)));
    }
    if let Some(Ok(it)) = read::<json::EnqueueMany>(body).map(|it| it.message(topic())) {
        made.push(check_many(&it).is_ok() && judge(body, enqueue_many_of(&it, 0)));
    }
    if let Some(Ok((it, _))) = read::<json::Subscribe>(body).map(|it| it.message(topic())) {
        let pages = pages_of(&it).unwrap_or_default();
        made.extend(pages.iter().map(|it| judge(body, retrieve_of(it, 0))));
    }
    if let Some(Ok(message)) = read::<json::NewMessage>(body).map(json::NewMessage::message) {
        let (position, message) = (Some(Position::default()), Some(message));
        let (topic, queue) = (topic(), queue());
        let it = ReplaceRequest { topic, queue, position, message, ..ReplaceRequest::default() };
        made.push(judge(body, replace_of(&it, 0)));
    }
    if let Some(Ok(it)) = read::<json::Rewrite>(body).map(|it| it.message(topic(), queue())) {
        made.push(judge(body, rewrite_of(&it, 0)));
    }
    if let Some(Ok(it)) = read::<json::TrimQueue>(body).map(|it| it.message(topic(), queue())) {
        made.push(judge(body, trim_queue_of(&it)));
    }
    if let Some(Ok(it)) = read::<json::Truncate>(body).map(|it| it.message(topic(), 0)) {
        made.push(judge(body, truncate_of(&it)));
    }
    if let Some(it) = read::<json::Fence>(body) {
        made.push(judge(body, fence_of(&it.message(topic(), 0))));
    }
    if let Some(it) = read::<json::Fence>(body) {
        made.push(judge(body, fence_queue_of(&it.message_of_queue(topic(), queue()))));
    }
    if let Some(it) = read::<json::CreateTopic>(body) {
        made.push(create_of(it.message(topic())).is_ok());
    }
    made.into_iter().filter(|made| *made).count()
}

/// Compiles a text as a filter and as a projection, and evaluates them on one element. Returns true if the text is an
/// expression.
pub fn filter(text: &str) -> bool {
    let mut batch = BatchBuilder::new();
    let headers = &[("kind", Some(&b"order"[..])), ("none", None)];
    let record = NewRecord { key: Some(b"alice"), value: Some(VALUE), headers, timestamp: 1 };
    batch.push(&record).expect("it is small");
    let bytes = batch.build().expect("it is small");
    let view = BatchView::parse(&bytes).expect("it was just built");
    let records = Records::of(&view, 1 << 20).expect("it was just built");
    let fields = HashMap::from([("it".to_owned(), text.to_owned())]);
    let none = HashMap::new();
    let mut is_expression = false;
    for (filter, fields) in [(text, &none), ("", &fields)] {
        let selection =
            match Selection::of(Wanted { filter, fields, skips_failed: false, hidden: &[] }) {
                Ok(Some(selection)) => selection,
                Ok(None) => continue,
                Err(fault) => {
                    assert_eq!(fault.kind, problems::FILTER_INVALID);
                    continue;
                }
            };
        is_expression = true;
        let record = records.into_iter().next().expect("it has one").expect("it was just built");
        let at = Position { term: 1, entry: 0, offset: 0 };
        let selected = thread::scope(|scope| {
            let evaluating = thread::Builder::new().stack_size(STACK_BYTES);
            let select = || selection.select(&records, &record, at);
            let selected = evaluating.spawn_scoped(scope, select).expect("there is a thread");
            selected.join().expect("nothing panics")
        });
        match selected {
            Ok(Selected::Fields(_, bytes)) => assert!(bytes <= RESULT_BYTES_MAX),
            Ok(Selected::Whole | Selected::Nothing) => {}
            Err(fault) => assert_eq!(fault.kind, problems::FILTER_FAILED),
        }
    }
    is_expression
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_in_json_becomes_an_operation() {
        for (body, count) in [
            (r#"{"records":[{"value":"a"}]}"#, 1),
            (r#"{"messages":[{"value":"a"}]}"#, 1),
            (r#"{"messages":[{"queue":"bob","message":{"value":"a"}}]}"#, 1),
            (r#"{"cursors":[{"queue":"alice"},{"queue":"bob","after":"end"}]}"#, 2),
            (r#"{"value":"a","id":"one"}"#, 1),
            (r#"{"after":"1.0.0","fence":"t","messages":[{"value":"a"}]}"#, 1),
            (r#"{"none":true,"fence":"t"}"#, 1),
            (r#"{"none":true,"after":"1.0.0","fence":"t"}"#, 0),
            (r#"{"through":"1.0.0","pointer":{"uri":"u"}}"#, 2),
            (r#"{"token":"t"}"#, 2),
            (r#"{"partitions":3}"#, 1),
            (r#"{"records":[]}"#, 0),
            (r#"{"unknown":1}"#, 0),
            ("", 0),
        ] {
            assert_eq!(json_requests(body.as_bytes()), count, "{body}");
        }
    }

    #[test]
    fn an_expression_is_evaluated_and_no_other_text_is() {
        assert!(filter("json.n == 7") && filter("[json, text]"));
        assert!(!filter("") && !filter("json.") && !filter("text.matches('a')"));
    }
}
