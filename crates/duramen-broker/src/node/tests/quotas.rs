use duramen_protocol::messages::alter_client_quotas::{EntityData, EntryData, OpData};
use duramen_protocol::messages::describe_client_quotas::{self, ComponentData};
use duramen_protocol::messages::{
    AlterClientQuotasRequest, DescribeClientQuotasRequest, DescribeClientQuotasResponse,
    FetchResponse, ProduceResponse,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, batch, bytes_of, fetch_request, produce_request};

/// Sets a quota of the client that the harness is, or takes it back.
pub(super) fn set(it: &mut Harness, key: &str, value: Option<f64>) -> i16 {
    set_of(it, &[("client-id", Some("test"))], key, value)
}

fn set_of(it: &mut Harness, entity: &[(&str, Option<&str>)], key: &str, value: Option<f64>) -> i16 {
    let entity = entity.iter().map(|(kind, name)| EntityData {
        entity_type: (*kind).to_owned(),
        entity_name: name.map(str::to_owned),
    });
    let (remove, value) = (value.is_none(), value.unwrap_or(0.0));
    let ops = vec![OpData { key: key.to_owned(), value, remove }];
    let entries = vec![EntryData { entity: entity.collect(), ops }];
    let request = AlterClientQuotasRequest { entries, validate_only: false };
    let Response::AlterClientQuotas(response) = it.ask(request, 1) else { panic!("other") };
    response.entries[0].error_code
}

fn described(it: &mut Harness, components: Vec<ComponentData>) -> DescribeClientQuotasResponse {
    let request = DescribeClientQuotasRequest { components, strict: false };
    let Response::DescribeClientQuotas(response) = it.ask(request, 1) else { panic!("other") };
    response
}

fn all(it: &mut Harness) -> Vec<describe_client_quotas::EntryData> {
    described(it, Vec::new()).entries.expect("no error")
}

fn produce(it: &mut Harness) -> ProduceResponse {
    let request = produce_request("t", batch(&[&"x".repeat(1000)]), -1);
    let Response::Produce(response) = it.ask(request, 9) else { panic!("other") };
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    response
}

fn fetch(it: &mut Harness, session: (i32, i32)) -> FetchResponse {
    let mut request = fetch_request("t", 0);
    (request.session_id, request.session_epoch) = session;
    let Response::Fetch(response) = it.ask(request, 12) else { panic!("other") };
    response
}

#[test]
fn a_producer_above_its_quota_is_told_to_rest_and_its_records_are_taken() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    assert_eq!(produce(&mut it).throttle_time_ms, 0);
    assert_eq!(set(&mut it, "producer_byte_rate", Some(150.0)), 0);
    assert_eq!(produce(&mut it).throttle_time_ms, 0, "a window's worth at once is within it");
    let rest_ms = produce(&mut it).throttle_time_ms;
    assert!((1_000..10_000).contains(&rest_ms), "{rest_ms}");
    it.pass_ms(12_000);
    assert_eq!(produce(&mut it).throttle_time_ms, 0);
    assert_eq!(set(&mut it, "producer_byte_rate", None), 0);
    assert_eq!(produce(&mut it).throttle_time_ms, 0);
    assert_eq!(it.fetch("t", 4).high_watermark, 5);
}

#[test]
fn a_consumer_above_its_quota_rests_and_gets_nothing_that_counts() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    for _ in 0..3 {
        produce(&mut it);
    }
    assert_eq!(set(&mut it, "consumer_byte_rate", Some(400.0)), 0);
    let begun = fetch(&mut it, (0, 0));
    assert!(begun.session_id != 0);
    assert!(!bytes_of(&begun.responses[0].partitions[0]).is_empty());
    let throttled = fetch(&mut it, (0, 0));
    let rest_ms = throttled.throttle_time_ms;
    assert!(rest_ms > 0);
    assert_eq!((throttled.session_id, throttled.responses.len()), (0, 0), "as if it had not begun");
    let throttled = fetch(&mut it, (begun.session_id, 1));
    assert_eq!(throttled.throttle_time_ms, rest_ms, "what was not sent does not count");
    assert_eq!((throttled.session_id, throttled.responses.len()), (begun.session_id, 0));
    it.pass_ms(12_000);
    let served = fetch(&mut it, (begun.session_id, 2));
    assert_eq!(served.throttle_time_ms, 0);
    assert!(!bytes_of(&served.responses[0].partitions[0]).is_empty(), "nothing was lost meanwhile");
}

#[test]
fn a_client_whose_requests_take_too_much_time_rests_after_any_answer() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    produce(&mut it);
    assert_eq!(set(&mut it, "request_percentage", Some(0.5)), 0);
    assert_eq!(it.metadata(&[]).throttle_time_ms, 0);
    it.node.took(50_000);
    assert_eq!(it.metadata(&[]).throttle_time_ms, 0, "a twentieth of a second in ten is allowed");
    it.node.took(1_000);
    it.node.took(1_000_000);
    assert_eq!(it.metadata(&[]).throttle_time_ms, 200, "a request is counted once");
    it.node.took(100_000);
    assert_eq!(produce(&mut it).throttle_time_ms, 1000, "no rest is longer");
    let throttled = fetch(&mut it, (0, 0));
    assert_eq!((throttled.throttle_time_ms, throttled.responses.len()), (1000, 0));
    it.pass_ms(12_000);
    assert_eq!(it.metadata(&[]).throttle_time_ms, 0);
    assert!(!bytes_of(&fetch(&mut it, (0, 0)).responses[0].partitions[0]).is_empty());
}

#[test]
fn quotas_are_described_and_outlive_a_restart_and_an_image() {
    let mut it = Harness::new(&[]);
    assert_eq!(set_of(&mut it, &[("user", None)], "consumer_byte_rate", Some(5.0)), 0);
    let both = [("user", Some("u")), ("client-id", Some("c"))];
    assert_eq!(set_of(&mut it, &both, "producer_byte_rate", Some(7.0)), 0);
    let before = all(&mut it);
    assert_eq!(before.len(), 2);
    it.restart(&[], 2);
    assert_eq!(all(&mut it), before);
    let user = |match_type, match_name: Option<&str>| {
        let match_name = match_name.map(str::to_owned);
        vec![ComponentData { entity_type: "user".to_owned(), match_type, match_name }]
    };
    for (match_type, name, count) in
        [(0, Some("u"), 1), (0, Some("v"), 0), (1, None, 1), (2, None, 2)]
    {
        let entries = described(&mut it, user(match_type, name)).entries.expect("no error");
        assert_eq!(entries.len(), count, "{match_type} {name:?}");
    }
    let wrong = described(&mut it, user(0, None));
    assert_eq!(wrong.error_code, ErrorCode::InvalidRequest.code());
    assert_eq!(set_of(&mut it, &both, "producer_byte_rate", None), 0);
    assert_eq!(all(&mut it).len(), 1);
}

#[test]
fn what_is_no_quota_or_not_enforced_is_refused() {
    let mut it = Harness::new(&[]);
    let invalid = ErrorCode::InvalidRequest.code();
    for (key, value) in [
        ("producer_byte_rate", 0.0),
        ("producer_byte_rate", -1.0),
        ("producer_byte_rate", 1.5),
        ("producer_byte_rate", f64::NAN),
        ("producer_byte_rate", 1e30),
        ("request_percentage", 0.0),
        ("controller_mutation_rate", 5.0),
        ("no_such_quota", 5.0),
    ] {
        assert_eq!(set(&mut it, key, Some(value)), invalid, "{key} {value}");
    }
    assert_eq!(set(&mut it, "controller_mutation_rate", None), 0, "there is nothing to take back");
    for entity in [&[][..], &[("ip", Some("10.0.0.1"))], &[("user", Some(""))], &[("group", None)]]
    {
        let code = set_of(&mut it, entity, "producer_byte_rate", Some(5.0));
        assert_eq!(code, invalid, "{entity:?}");
    }
    assert_eq!(all(&mut it), []);
}
