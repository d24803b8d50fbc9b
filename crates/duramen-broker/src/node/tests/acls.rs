//! Rules of access: made, found, taken away, and felt at once.

use duramen_protocol::messages::create_acls::AclCreation;
use duramen_protocol::messages::delete_acls::DeleteAclsFilter;
use duramen_protocol::messages::{
    CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest, MetadataRequest,
};
use duramen_protocol::wire::RecordData;
use duramen_protocol::{ErrorCode, Request, Response};
use duramen_storage::op::{Done, ReplicaId};

use super::harness::{Harness, batch, fetch_request, produce_request};
use super::trio::Trio;
use crate::configs::AUTHORIZER;
use crate::event::ConnectionId;
use crate::session::Session;

/// Rules decide, and the harness's own client may do everything.
const ON: [(&str, &str); 2] =
    [("authorizer.class.name", AUTHORIZER), ("super.users", "User:ANONYMOUS; User:root")];
const ADA: ConnectionId = ConnectionId(777);

const ANY: i8 = 1;
const TOPIC: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;
const READ: i8 = 3;
const WRITE: i8 = 4;
const DENY: i8 = 2;
const ALLOW: i8 = 3;

fn creation(name: &str, operation: i8, permission_type: i8) -> AclCreation {
    AclCreation {
        resource_type: TOPIC,
        resource_name: name.to_owned(),
        resource_pattern_type: LITERAL,
        principal: "User:ada".to_owned(),
        host: "*".to_owned(),
        operation,
        permission_type,
    }
}

fn create(creations: Vec<AclCreation>) -> CreateAclsRequest {
    CreateAclsRequest { creations }
}

fn codes(response: Response) -> Vec<i16> {
    match response {
        Response::CreateAcls(it) => it.results.iter().map(|it| it.error_code).collect(),
        Response::DeleteAcls(it) => it.filter_results.iter().map(|it| it.error_code).collect(),
        other => panic!("{other:?}"),
    }
}

/// Resources that have rules, with operation and permission of each rule.
fn told(it: &mut Harness, name: Option<&str>) -> Vec<(String, Vec<(i8, i8)>)> {
    let request = DescribeAclsRequest {
        resource_type_filter: ANY,
        resource_name_filter: name.map(str::to_owned),
        pattern_type_filter: if name.is_some() { 2 } else { ANY },
        operation: ANY,
        permission_type: ANY,
        ..Default::default()
    };
    let Response::DescribeAcls(answer) = it.ask(request, 3) else { panic!("other") };
    assert_eq!(answer.error_code, 0, "{answer:?}");
    let rows = answer.resources.into_iter();
    let rules = |it: &duramen_protocol::messages::describe_acls::AclDescription| {
        (it.operation, it.permission_type)
    };
    rows.map(|it| (it.resource_name, it.acls.iter().map(rules).collect())).collect()
}

fn filter(name: &str) -> DeleteAclsFilter {
    DeleteAclsFilter {
        resource_type_filter: TOPIC,
        resource_name_filter: Some(name.to_owned()),
        pattern_type_filter: LITERAL,
        operation: ANY,
        permission_type: ANY,
        ..Default::default()
    }
}

/// Makes the session of a client that is known.
fn comes_in(it: &mut Harness, connection: ConnectionId, user: &str) {
    let anybody = "User:ANONYMOUS".into();
    let mut session = Session::new(connection, anybody, "SASL".into(), "/10.0.0.1".into());
    session.be(user);
    it.sessions.insert(connection, session);
}

fn send(it: &mut Harness, request: impl Into<Request>, version: i16) -> i32 {
    let id = it.enqueue(ADA, &request.into(), version);
    it.run();
    id
}

fn ask(it: &mut Harness, request: impl Into<Request>, version: i16) -> Response {
    let id = send(it, request, version);
    it.response_on(ADA, id).expect("answered at once")
}

fn produced(it: &mut Harness) -> i16 {
    match ask(it, produce_request("t", batch(&["a"]), -1), 12) {
        Response::Produce(answer) => answer.responses[0].partition_responses[0].error_code,
        other => panic!("{other:?}"),
    }
}

const DENIED: i16 = ErrorCode::TopicAuthorizationFailed.code();

#[test]
fn a_client_may_do_only_what_rules_allow() {
    let mut it = Harness::new(&ON);
    it.create("t", &[]);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(produced(&mut it), DENIED, "no rule is no right");
    let made = create(vec![creation("t", WRITE, ALLOW), creation("t", WRITE, ALLOW)]);
    assert_eq!(codes(it.ask(made.clone(), 3)), [0, 0]);
    assert_eq!(told(&mut it, None), [("t".to_owned(), vec![(WRITE, ALLOW)])], "twice is once");
    assert_eq!(codes(it.ask(made, 3)), [0, 0]);
    assert_eq!(told(&mut it, None)[0].1.len(), 1);
    assert_eq!(produced(&mut it), 0);
    let prefixed = AclCreation { resource_pattern_type: PREFIXED, ..creation("t", WRITE, DENY) };
    assert_eq!(codes(it.ask(create(vec![prefixed]), 3)), [0]);
    assert_eq!(produced(&mut it), DENIED, "a denial beats what allows");
    assert_eq!(told(&mut it, Some("tea")), [("t".to_owned(), vec![(WRITE, DENY)])]);
    // The rules outlive the process, also in the image of the metadata.
    it.restart(&ON, 2);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(produced(&mut it), DENIED);
    it.storage(Done::WantImage { replica: ReplicaId(1) });
    it.run();
    it.restart(&ON, 3);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(produced(&mut it), DENIED);
    let gone = DeleteAclsFilter { pattern_type_filter: PREFIXED, ..filter("t") };
    let Response::DeleteAcls(answer) = it.ask(DeleteAclsRequest { filters: vec![gone] }, 3) else {
        panic!("other")
    };
    let row = &answer.filter_results[0].matching_acls[0];
    assert_eq!(
        (row.pattern_type, row.operation, row.principal.as_str()),
        (PREFIXED, WRITE, "User:ada")
    );
    assert_eq!(produced(&mut it), 0);
    comes_in(&mut it, ADA, "root");
    let all = DeleteAclsRequest { filters: vec![filter("t"), filter("none")] };
    assert_eq!(codes(ask(&mut it, all, 3)), [0, 0], "a super user needs no rule");
    assert_eq!(told(&mut it, None), []);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(produced(&mut it), DENIED);
    assert_eq!(codes(ask(&mut it, create(vec![creation("t", WRITE, ALLOW)]), 3)), [31]);
}

#[test]
fn rules_are_decided_by_kafkas_settings() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(produced(&mut it), 0, "no access control: everybody may do everything");
    let disabled = ErrorCode::SecurityDisabled.code();
    assert_eq!(codes(it.ask(create(vec![creation("t", READ, ALLOW)]), 3)), [disabled]);
    it.restart(&[&ON[..], &[("allow.everyone.if.no.acl.found", "true")]].concat(), 2);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(produced(&mut it), 0, "the topic has no rule");
    assert_eq!(codes(it.ask(create(vec![creation("t", READ, ALLOW)]), 3)), [0]);
    assert_eq!(produced(&mut it), DENIED, "now it has one");
}

#[test]
fn mistakes_in_rules_are_refused_one_by_one() {
    let mut it = Harness::new(&ON);
    let good = || creation("t", READ, ALLOW);
    let cluster = AclCreation { resource_type: 4, ..good() };
    let wrong = [
        AclCreation { resource_type: 0, ..good() },
        AclCreation { resource_type: ANY, ..good() },
        AclCreation { resource_name: String::new(), ..good() },
        AclCreation { resource_name: "n".repeat(4097), ..good() },
        AclCreation { resource_pattern_type: ANY, ..good() },
        AclCreation { resource_pattern_type: 2, ..good() },
        AclCreation { principal: "ada".to_owned(), ..good() },
        AclCreation { principal: "User:".to_owned(), ..good() },
        AclCreation { host: String::new(), ..good() },
        AclCreation { operation: ANY, ..good() },
        AclCreation { operation: 99, ..good() },
        AclCreation { permission_type: ANY, ..good() },
        cluster,
    ];
    let count = wrong.len();
    let creations = wrong.into_iter().chain([good()]).collect();
    let invalid = ErrorCode::InvalidRequest.code();
    let mut expected = vec![invalid; count];
    expected.push(0);
    assert_eq!(codes(it.ask(create(creations), 3)), expected);
    assert_eq!(told(&mut it, None).len(), 1);
    let filters = vec![
        DeleteAclsFilter { pattern_type_filter: 0, ..filter("t") },
        DeleteAclsFilter { operation: 0, ..filter("t") },
        DeleteAclsFilter { resource_type_filter: 99, ..filter("t") },
        filter("t"),
    ];
    let deleted = codes(it.ask(DeleteAclsRequest { filters }, 3));
    assert_eq!(deleted, [invalid, invalid, invalid, 0]);
    assert_eq!(told(&mut it, None), []);
    let request = DescribeAclsRequest { operation: ANY, ..Default::default() };
    let Response::DescribeAcls(answer) = it.ask(request, 3) else { panic!("other") };
    assert_eq!(answer.error_code, invalid);
}

/// A fetch that waits has its records looked at again when it is answered.
#[test]
fn rights_that_are_taken_away_count_for_requests_that_wait() {
    let mut it = Harness::new(&ON);
    it.create("t", &[]);
    comes_in(&mut it, ADA, "ada");
    assert_eq!(codes(it.ask(create(vec![creation("t", READ, ALLOW)]), 3)), [0]);
    let mut fetch = fetch_request("t", 0);
    (fetch.max_wait_ms, fetch.min_bytes) = (10_000, 1);
    let waits = send(&mut it, fetch, 12);
    assert!(it.response_on(ADA, waits).is_none());
    assert_eq!(codes(it.ask(DeleteAclsRequest { filters: vec![filter("t")] }, 3)), [0]);
    assert_eq!(it.produce("t", batch(&["secret"])).error_code, 0);
    let Some(Response::Fetch(answer)) = it.response_on(ADA, waits) else { panic!("no answer") };
    let partition = &answer.responses[0].partitions[0];
    assert_eq!(partition.error_code, DENIED);
    assert!(partition.records.as_ref().is_none_or(RecordData::is_empty), "{partition:?}");
}

#[test]
fn a_client_sees_the_topics_that_it_may_describe() {
    let mut it = Harness::new(&ON);
    for name in ["t", "u"] {
        it.create(name, &[]);
    }
    comes_in(&mut it, ADA, "ada");
    assert_eq!(codes(it.ask(create(vec![creation("u", WRITE, ALLOW)]), 3)), [0]);
    let all = MetadataRequest {
        topics: None,
        include_topic_authorized_operations: true,
        ..Default::default()
    };
    let Response::Metadata(answer) = ask(&mut it, all, 12) else { panic!("other") };
    let told: Vec<_> = answer
        .topics
        .iter()
        .map(|it| (it.name.as_deref(), it.topic_authorized_operations))
        .collect();
    assert_eq!(told, [(Some("u"), 1 << WRITE | 1 << 8)], "writing implies sight");
}

#[test]
fn a_rule_made_at_one_node_holds_at_all_and_a_forwarded_request_is_judged_by_rules() {
    let mut trio = Trio::new(&ON);
    trio.create("t", 1);
    let leader = trio.controller();
    let other = (leader + 1) % 3;
    assert_eq!(codes(trio.ask(other, create(vec![creation("t", WRITE, ALLOW)]), 3)), [0]);
    trio.pass_ms(1000);
    for node in &mut trio.nodes {
        assert_eq!(told(node, None).len(), 1);
    }
    // The node that decides has no access control by its own settings.
    trio.nodes[leader].node.core.access = crate::access::Access::default();
    comes_in(&mut trio.nodes[other], ADA, "ada");
    let request = create(vec![creation("t", READ, ALLOW)]).into();
    let id = trio.nodes[other].enqueue(ADA, &request, 3);
    trio.nodes[other].run();
    trio.pass_ms(1000);
    let answer = trio.nodes[other].response_on(ADA, id).expect("answered");
    assert_eq!(codes(answer), [ErrorCode::ClusterAuthorizationFailed.code()]);
}
