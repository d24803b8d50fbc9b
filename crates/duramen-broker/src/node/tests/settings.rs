//! Settings while the node runs: of nodes, and where a value comes from.

use duramen_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResult,
};
use duramen_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use duramen_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest, alter_configs,
};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, batch, new_topic};
use crate::configs::GROUP_CONFIGS;

pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;

pub(super) type Change<'a> = (&'a str, i8, Option<&'a str>);

pub(super) fn alter(
    kind: i8,
    name: &str,
    changes: &[Change<'_>],
) -> IncrementalAlterConfigsRequest {
    let change = |(name, operation, value): &Change<'_>| AlterableConfig {
        name: (*name).to_owned(),
        config_operation: *operation,
        value: value.map(str::to_owned),
    };
    let resource = AlterConfigsResource {
        resource_type: kind,
        resource_name: name.to_owned(),
        configs: changes.iter().map(change).collect(),
    };
    IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false }
}

fn code_of(response: Option<Response>) -> i16 {
    let (code, text) = match response {
        Some(Response::IncrementalAlterConfigs(mut response)) => {
            let told = response.responses.remove(0);
            (told.error_code, told.error_message)
        }
        Some(Response::AlterConfigs(mut response)) => {
            let told = response.responses.remove(0);
            (told.error_code, told.error_message)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(code != 0, text.is_some(), "a reason beside the code");
    code
}

fn try_alter(it: &mut Harness, kind: i8, name: &str, changes: &[Change<'_>]) -> i16 {
    let response = it.ask(alter(kind, name, changes), 1);
    code_of(Some(response))
}

/// Sets and deletes settings.
pub(super) fn set(it: &mut Harness, kind: i8, name: &str, values: &[(&str, Option<&str>)]) {
    let changes: Vec<Change<'_>> = values
        .iter()
        .map(|(key, value)| (*key, if value.is_some() { SET } else { DELETE }, *value))
        .collect();
    assert_eq!(try_alter(it, kind, name, &changes), 0);
}

fn replace(it: &mut Harness, name: &str, configs: &[(&str, &str)]) -> i16 {
    let config = |(name, value): &(&str, &str)| alter_configs::AlterableConfig {
        name: (*name).to_owned(),
        value: Some((*value).to_owned()),
    };
    let resource = alter_configs::AlterConfigsResource {
        resource_type: BROKER,
        resource_name: name.to_owned(),
        configs: configs.iter().map(config).collect(),
    };
    let request = AlterConfigsRequest { resources: vec![resource], validate_only: false };
    let response = it.ask(request, 2);
    code_of(Some(response))
}

fn describe(it: &mut Harness, kind: i8, name: &str, keys: &[&str]) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.to_owned(),
        configuration_keys: Some(keys.iter().map(|key| (*key).to_owned()).collect()),
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: false,
    };
    match it.ask(request, 4) {
        Response::DescribeConfigs(mut response) => response.results.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Value and source of one setting, and of all that stand behind it.
fn layers(it: &mut Harness, kind: i8, name: &str, key: &str) -> Vec<(String, i8)> {
    let mut result = describe(it, kind, name, &[key]);
    let row = result.configs.remove(0);
    let synonyms = row.synonyms.iter().map(|it| (it.value.clone().expect("told"), it.source));
    let layers: Vec<_> = synonyms.collect();
    assert_eq!(layers.first(), Some(&(row.value.expect("told"), row.config_source)));
    layers
}

fn told(layers: &[(&str, i8)]) -> Vec<(String, i8)> {
    layers.iter().map(|(value, source)| ((*value).to_owned(), *source)).collect()
}

#[test]
fn settings_of_a_running_node_hold_at_once_and_outlive_a_restart() {
    let given = [("message.max.bytes", "3000")];
    let mut it = Harness::new(&given);
    it.create("t", &[]);
    it.create("own", &[("max.message.bytes", "5000")]);
    let large = "x".repeat(2000);
    assert_eq!(it.produce("t", batch(&[&large])).error_code, 0);
    let changed = ("message.max.bytes", SET, Some(" 1000 "));
    assert_eq!(try_alter(&mut it, BROKER, "", &[changed]), 0);
    let too_large = ErrorCode::MessageTooLarge.code();
    assert_eq!(it.produce("t", batch(&[&large])).error_code, too_large);
    assert_eq!(it.produce("own", batch(&[&large])).error_code, 0, "the topic has its own");
    it.restart(&given, 2);
    assert_eq!(it.produce("t", batch(&[&large])).error_code, too_large);
    it.create("later", &[]);
    assert_eq!(it.produce("later", batch(&[&large])).error_code, too_large);
    assert_eq!(try_alter(&mut it, BROKER, "0", &[("message.max.bytes", SET, Some("2500"))]), 0);
    assert_eq!(it.produce("t", batch(&[&large])).error_code, 0, "the node's own comes first");
    let all = told(&[("2500", 2), ("1000", 3), ("3000", 4), ("1048588", 5)]);
    assert_eq!(layers(&mut it, BROKER, "0", "message.max.bytes"), all);
    assert_eq!(layers(&mut it, TOPIC, "t", "max.message.bytes"), all);
    let own = [told(&[("5000", 1)]), all].concat();
    assert_eq!(layers(&mut it, TOPIC, "own", "max.message.bytes"), own);
    assert_eq!(layers(&mut it, BROKER, "", "message.max.bytes"), told(&[("1000", 3)]));
    assert_eq!(describe(&mut it, BROKER, "", &[]).configs.len(), 1, "only what is set for all");
    assert_eq!(replace(&mut it, "", &[]), 0);
    assert_eq!(replace(&mut it, "0", &[("log.retention.ms", "7")]), 0);
    let left = told(&[("3000", 4), ("1048588", 5)]);
    assert_eq!(layers(&mut it, BROKER, "0", "message.max.bytes"), left);
    assert_eq!(layers(&mut it, TOPIC, "t", "retention.ms"), told(&[("7", 2), ("604800000", 5)]));
    assert_eq!(it.node.core.controller.image.broker_configs(-1).len(), 0);
}

#[test]
fn every_topic_learns_of_other_settings_though_few_do_in_one_turn() {
    let mut it = Harness::new(&[]);
    for n in 0..600 {
        it.try_create(new_topic(&format!("t{n}"), 1, &[]));
    }
    assert_eq!(try_alter(&mut it, BROKER, "", &[("log.retention.ms", SET, Some("7"))]), 0);
    let changed = |it: &Harness, to: i64| {
        it.node.core.partitions.values().filter(|it| it.settings.retention_ms == to).count()
    };
    assert_eq!(changed(&it, 7), 256);
    // A change that comes meanwhile begins anew, and nothing is left out.
    assert_eq!(try_alter(&mut it, BROKER, "0", &[("log.retention.ms", SET, Some("9"))]), 0);
    it.pass_ms(10);
    assert_eq!(changed(&it, 9), 600);
    assert_eq!(try_alter(&mut it, BROKER, "0", &[("log.retention.ms", DELETE, None)]), 0);
    it.pass_ms(10);
    assert_eq!(changed(&it, 7), 600);
    assert_eq!(try_alter(&mut it, BROKER, "", &[("log.retention.ms", DELETE, None)]), 0);
    it.pass_ms(10);
    assert_eq!(changed(&it, 7), 0);
}

#[test]
fn what_a_node_does_not_change_while_it_runs_is_refused_with_the_reason() {
    let mut it = Harness::new(&[]);
    let (request, config) = (ErrorCode::InvalidRequest, ErrorCode::InvalidConfig);
    for name in ["0", ""] {
        for (change, code) in [
            (("num.partitions", SET, Some("4")), request),
            (("node.id", SET, Some("4")), request),
            (("log.retention.ms", SET, Some("soon")), request),
            (("log.retention.ms", SET, None), request),
            (("log.retention.ms", 9, Some("1")), request),
            (("log.retention.ms", APPEND, Some("1")), config),
            (("log.cleanup.policy", SET, Some("burn")), request),
            (("no.such.thing", SET, Some("1")), request),
        ] {
            let good = ("message.max.bytes", SET, Some("5"));
            let refused = try_alter(&mut it, BROKER, name, &[good, change]);
            assert_eq!(refused, code.code(), "{change:?} of {name:?}");
        }
        assert_eq!(replace(&mut it, name, &[("num.partitions", "4")]), request.code());
        assert_eq!(try_alter(&mut it, BROKER, name, &[("no.such.thing", DELETE, None)]), 0);
        let added = ("log.cleanup.policy", APPEND, Some("compact"));
        assert_eq!(try_alter(&mut it, BROKER, name, &[added]), 0);
    }
    let safety = [("min.insync.replicas", SET, Some("2"))];
    assert_eq!(try_alter(&mut it, BROKER, "0", &safety), config.code());
    assert_eq!(try_alter(&mut it, BROKER, "", &safety), 0);
    let any = [("message.max.bytes", SET, Some("5"))];
    for (kind, name, code) in [
        (BROKER, "7", request),
        (BROKER, "x", request),
        (8, "0", config),
        (8, "", request),
        (16, "s", request),
        (32, "g", config),
        (32, "", request),
        (9, "t", request),
    ] {
        assert_eq!(try_alter(&mut it, kind, name, &any), code.code(), "{kind} {name:?}");
    }
    let image = &it.node.core.controller.image;
    let names: Vec<_> = image.broker_configs(0).keys().collect();
    assert_eq!(names, ["log.cleanup.policy"]);
    let names: Vec<_> = image.broker_configs(-1).keys().collect();
    assert_eq!(names, ["log.cleanup.policy", "min.insync.replicas"]);
}

#[test]
fn changes_of_nodes_are_judged_one_after_the_other() {
    let mut it = Harness::new(&[]);
    it.is_prompt = false;
    let words =
        |operation, words| alter(BROKER, "", &[("log.cleanup.policy", operation, Some(words))]);
    let first = it.send(words(APPEND, "compact"), 1);
    let second = it.send(words(3, "delete"), 1);
    assert!(it.response(first).is_none() && it.response(second).is_none());
    it.is_prompt = true;
    it.persist();
    it.run();
    assert_eq!((code_of(it.response(first)), code_of(it.response(second))), (0, 0));
    let policy = layers(&mut it, BROKER, "", "log.cleanup.policy");
    assert_eq!(policy, told(&[("compact", 3)]));
}

#[test]
fn other_resources_are_described_or_refused() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    for (kind, name, code, rows) in [
        (TOPIC, "", ErrorCode::InvalidTopicException, 0),
        (BROKER, "x", ErrorCode::InvalidRequest, 0),
        (8, "", ErrorCode::InvalidRequest, 0),
        (8, "7", ErrorCode::InvalidRequest, 0),
        (8, "0", ErrorCode::None, 0),
        (16, "", ErrorCode::InvalidRequest, 0),
        (16, "s", ErrorCode::None, 3),
        (32, "", ErrorCode::InvalidRequest, 0),
        (32, "g", ErrorCode::None, GROUP_CONFIGS.len()),
        (9, "t", ErrorCode::InvalidRequest, 0),
    ] {
        let result = describe(&mut it, kind, name, &[]);
        let told = (result.error_code, result.configs.len());
        assert_eq!(told, (code.code(), rows), "{kind} {name:?}");
        assert_eq!(result.error_message.is_some_and(|text| !text.is_empty()), told.0 != 0);
    }
    let result = describe(&mut it, TOPIC, "t", &["retention.ms", "no.such.thing"]);
    let names: Vec<_> = result.configs.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["retention.ms"]);
    let read_only = describe(&mut it, BROKER, "0", &["num.partitions", "message.max.bytes"]);
    let flags: Vec<_> =
        read_only.configs.iter().map(|row| (&row.name[..], row.read_only)).collect();
    assert_eq!(flags, [("message.max.bytes", false), ("num.partitions", true)]);
}

#[test]
fn nobody_is_shown_a_password() {
    let mut it = Harness::new(&[("ssl.key.password", "hunter2")]);
    let described = describe(&mut it, BROKER, "0", &["ssl.key.password"]);
    let told = &described.configs[0];
    assert!(told.is_sensitive && told.value.is_none(), "{told:?}");
    assert!(!format!("{described:?}").contains("hunter2"));
}
