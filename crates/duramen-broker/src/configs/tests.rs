use super::*;

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_default_passes_its_own_check() {
    for row in TOPIC_CONFIGS.iter().chain(BROKER_CONFIGS).chain(GROUP_CONFIGS) {
        assert_eq!(row.problem(row.default), None, "{}", row.name);
        assert_eq!(row.kept(row.default), row.default, "{}", row.name);
        assert!(!row.doc.is_empty());
    }
    let all = TOPIC_CONFIGS.iter().chain(GROUP_CONFIGS);
    for row in all.filter(|row| !row.synonym.is_empty()) {
        let synonym = find(BROKER_CONFIGS, row.synonym).expect(row.synonym);
        assert_eq!((synonym.default, synonym.kind), (row.default, row.kind), "{}", row.name);
    }
}

#[test]
fn what_others_bound_is_between_them() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let short = pair("group.consumer.session.timeout.ms", "6000");
    let errors = BrokerSettings::from_pairs(std::slice::from_ref(&short)).expect_err("too short");
    assert_eq!(errors[0].key, short.0);
    let lower = pair("group.consumer.min.session.timeout.ms", "6000");
    let settings = BrokerSettings::from_pairs(&[short, lower]).expect("it may be so short now");
    assert_eq!(settings.group_consumer_session_timeout_ms, 6000);
}

#[test]
fn settings_of_groups_are_bounded_by_the_node() {
    let lock = "share.record.lock.duration.ms";
    let usual = BrokerSettings::from_pairs(&[]).expect("no mistakes");
    let few = pairs(&[("group.share.min.record.lock.duration.ms", "1000")]);
    let lower = BrokerSettings::from_pairs(&few).expect("no mistakes");
    let said = check_group(lock, "2000", &usual).expect_err("too short").to_string();
    assert_eq!(said, format!("{lock}: 2000 is not between 15000 and 60000"));
    assert!(check_group(lock, "2000", &lower).is_ok());
    // It was allowed when it was set.
    let own = Settings::from([(lock.to_owned(), "2000".to_owned())]);
    assert_eq!(GroupSettings::resolve(&own, &lower).record_lock_duration_ms, 2000);
    assert_eq!(GroupSettings::resolve(&own, &usual).record_lock_duration_ms, 15_000);
    let silent = Settings::from([("share.session.timeout.ms".to_owned(), "5000".to_owned())]);
    assert!(check_group_as_one(&silent, &usual).is_err(), "no longer than between heartbeats");
    assert!(check_group_as_one(&own, &usual).is_ok());
    let silent = Settings::from([("consumer.session.timeout.ms".to_owned(), "5".to_owned())]);
    assert!(check_group_as_one(&silent, &usual).is_err(), "nor of the consumer protocol");
}

#[test]
fn durations_are_read_as_iso_8601_has_them() {
    let check = |text: &str, ms: Option<i64>| assert_eq!(duration_ms(text), ms, "{text}");
    check("PT1H", Some(3_600_000));
    check("P2D", Some(172_800_000));
    check("p1dt2h3m4.5s", Some(93_784_500));
    check("PT0S", Some(0));
    check("PT0.0019S", Some(1));
    let wrong = ["", "P", "PT", "P1DT", "1H", "PT1", "PT-1H", "-PT1H", "P1H", "PT1D", "PT1S1H"];
    for text in
        wrong.into_iter().chain(["PT1.5H", "PT1.S5", "P1Y", "PTXS", "P999999999999D", "PT1é"])
    {
        check(text, None);
    }
    assert!(
        check_group(
            "share.auto.offset.reset",
            "by_duration:PT1H",
            &BrokerSettings::from_pairs(&[]).expect("good")
        )
        .is_ok()
    );
    assert!(
        check_group(
            "share.auto.offset.reset",
            "by_duration",
            &BrokerSettings::from_pairs(&[]).expect("good")
        )
        .is_err()
    );
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let given = pairs(&[
        ("num.partitons", "3"),
        ("num.partitions", "none"),
        ("auto.create.topics.enable", "yes"),
        ("log.segment.bytes", "1"),
        ("log.roll.hours", "0"),
    ]);
    let errors = BrokerSettings::from_pairs(&given).expect_err("five mistakes");
    assert_eq!(errors.len(), 5);
    assert_eq!(errors[0].to_string(), "log.roll.hours: as log.roll.ms: 0 is less than 1");
    assert!(errors[1].problem.contains("did you mean num.partitions?"), "{}", errors[1]);
}

#[test]
fn a_topic_takes_its_own_value_then_the_nodes_then_the_default() {
    let given = pairs(&[("log.retention.hours", "2"), ("log.segment.bytes", "2000000")]);
    let broker = BrokerSettings::from_pairs(&given).expect("no mistakes");
    let own = BTreeMap::from([("segment.bytes".to_owned(), "3000000".to_owned())]);
    let settings = TopicSettings::resolve(&own, &broker);
    assert_eq!(settings.retention_ms, 7_200_000);
    assert_eq!(settings.segment_bytes, 3_000_000);
    assert_eq!(settings.max_message_bytes, 1_048_588);
    let found = effective("retention.ms", &own, &broker);
    assert_eq!(found, Some(("7200000", Source::Broker)));
}

#[test]
fn what_is_set_while_the_node_runs_hides_what_was_given() {
    let mut broker =
        BrokerSettings::from_pairs(&pairs(&[("log.retention.ms", "1")])).expect("good");
    let set = |value: &str| Settings::from([("log.retention.ms".to_owned(), value.to_owned())]);
    broker.set_dynamic(set("3"), set("2"));
    let values: Vec<_> = broker.values("log.retention.ms").collect();
    let default = ("604800000", Source::Default);
    let layers = [("3", Source::NodeDynamic), ("2", Source::ClusterDynamic), ("1", Source::Broker)];
    assert_eq!(values, [&layers[..], &[default]].concat());
    assert_eq!(TopicSettings::resolve(&Settings::new(), &broker).retention_ms, 3);
    broker.set_dynamic(Settings::new(), set("2"));
    assert_eq!(TopicSettings::resolve(&Settings::new(), &broker).retention_ms, 2);
    broker.set_dynamic(Settings::new(), Settings::new());
    assert_eq!(TopicSettings::resolve(&Settings::new(), &broker).retention_ms, 1);
    assert!(check_dynamic("log.retention.ms", "5").is_ok());
    assert!(check_dynamic("log.retention.ms", "soon").is_err());
    assert!(check_dynamic("num.partitions", "5").is_err());
    assert!(check_dynamic("no.such.thing", "5").is_err());
}

#[test]
fn values_are_read_as_kafka_reads_them_and_kept_in_one_form() {
    let kept = |name: &str, value: &str| {
        let row = find(TOPIC_CONFIGS, name).expect(name);
        row.problem(value).is_none().then(|| row.kept(value))
    };
    for (name, value, expected) in [
        ("preallocate", "True", Some("true")),
        ("preallocate", " FALSE ", Some("false")),
        ("preallocate", "yes", None),
        ("preallocate", "", None),
        ("remote.storage.enable", "False", Some("false")),
        ("remote.storage.enable", "True", None),
        ("retention.ms", " +5000 ", Some("5000")),
        ("retention.ms", "-0", Some("0")),
        ("retention.ms", "-2", None),
        ("retention.bytes", "-77", Some("-77")),
        ("min.cleanable.dirty.ratio", ".5", Some("0.5")),
        ("min.cleanable.dirty.ratio", "1", Some("1.0")),
        ("min.cleanable.dirty.ratio", "NaN", None),
        ("compression.gzip.level", "0", None),
        ("compression.gzip.level", "-1", Some("-1")),
        ("compression.gzip.level", "9", Some("9")),
        ("compression.gzip.level", "10", None),
        ("cleanup.policy", "", Some("")),
        ("cleanup.policy", " compact , delete ", Some("compact,delete")),
        ("cleanup.policy", "compact,compact", Some("compact")),
        ("cleanup.policy", "compact,", None),
        ("cleanup.policy", ",", None),
        ("message.timestamp.type", " CreateTime ", Some("CreateTime")),
        ("message.timestamp.type", "createtime", None),
        ("leader.replication.throttled.replicas", "", Some("")),
        ("leader.replication.throttled.replicas", "*", Some("*")),
        ("leader.replication.throttled.replicas", "0:1, 1:2,", Some("0:1,1:2,")),
        ("leader.replication.throttled.replicas", "0:1,0:1", Some("0:1,0:1")),
        ("leader.replication.throttled.replicas", "*,0:1", None),
        ("leader.replication.throttled.replicas", "0", None),
        ("leader.replication.throttled.replicas", "0:-1", None),
        ("leader.replication.throttled.replicas", "0: 1", None),
        ("leader.replication.throttled.replicas", "1:2:3", None),
    ] {
        assert_eq!(kept(name, value).as_deref(), expected, "{name}={value}");
    }
    let none = find(BROKER_CONFIGS, "group.consumer.assignors").expect("it is there");
    assert!(none.problem("").is_some(), "an assignor is needed");
    let of_node = |value: &str| check_dynamic("log.retention.ms", value).is_ok();
    assert_eq!((of_node("-5"), of_node("0"), of_node("1")), (true, false, true));
    let given = pairs(&[("auto.create.topics.enable", "FALSE"), ("delete.topic.enable", "True")]);
    let broker = BrokerSettings::from_pairs(&given).expect("no mistakes");
    assert!(!broker.auto_create_topics_enable && broker.delete_topic_enable);
    assert_eq!(broker.get("delete.topic.enable"), Some(("true", Source::Broker)));
}

#[test]
fn the_shortest_compaction_lag_is_no_longer_than_the_longest() {
    let own = |least: &str, most: &str| {
        let least = ("min.compaction.lag.ms".to_owned(), least.to_owned());
        Settings::from([least, ("max.compaction.lag.ms".to_owned(), most.to_owned())])
    };
    let usual = BrokerSettings::from_pairs(&[]).expect("no mistakes");
    assert!(check_topic_as_one(&own("5", "5"), &usual).is_ok());
    let said = check_topic_as_one(&own("10", "5"), &usual).expect_err("more").to_string();
    assert_eq!(said, "min.compaction.lag.ms: 10 is more than max.compaction.lag.ms, which is 5");
    let given = pairs(&[("log.cleaner.max.compaction.lag.ms", "50")]);
    let short = BrokerSettings::from_pairs(&given).expect("no mistakes");
    let mut least = own("60", "");
    least.remove("max.compaction.lag.ms");
    assert!(check_topic_as_one(&least, &usual).is_ok());
    assert!(check_topic_as_one(&least, &short).is_err(), "the node's counts");
}

#[test]
fn bad_topic_settings_are_named() {
    assert!(check_topic("cleanup.policy", "compact,delete").is_ok());
    assert!(check_topic("cleanup.policy", "compact,shrink").is_err());
    assert!(check_topic("min.insync.replicas", "0").is_err());
    assert!(check_topic("no.such.thing", "1").is_err());
    assert!(check_topic("min.cleanable.dirty.ratio", "1.5").is_err());
    assert!(check_topic("preallocate", "maybe").is_err());
}

#[test]
fn what_would_do_nothing_and_matters_is_refused() {
    assert!(check_topic("compression.lz4.level", "9").is_ok());
    let refused = check_topic("compression.lz4.level", "12").expect_err("not there").to_string();
    assert_eq!(refused, "compression.lz4.level: \"12\" is not supported; only 9 is, yet");
    assert!(BrokerSettings::from_pairs(&pairs(&[("compression.lz4.level", "1")])).is_err());
    assert!(check_topic("remote.storage.enable", "false").is_ok());
    assert!(check_topic("remote.storage.enable", "true").is_err());
}

#[test]
fn a_topic_may_have_a_codec_of_its_own_with_the_level_of_that_codec() {
    let given = [("compression.type", "gzip"), ("compression.zstd.level", "-7")];
    let broker = BrokerSettings::from_pairs(&pairs(&given)).expect("no mistakes");
    let resolve = |own: &[(&str, &str)]| {
        let own = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let own = [("fast.append.enable".to_owned(), "true".to_owned())].into_iter().chain(own);
        let settings = TopicSettings::resolve(&own.collect(), &broker);
        assert_ne!(settings.fast_append, settings.compression.is_some());
        settings.compression.map(|it| (it.codec, it.level))
    };
    let of = |codec: &str| resolve(&[("compression.type", codec)]);
    assert_eq!(resolve(&[]), Some((Codec::Gzip, None)), "the node's");
    assert_eq!(resolve(&[("compression.gzip.level", "9")]), Some((Codec::Gzip, Some(9))));
    assert_eq!(of("producer"), None);
    assert_eq!(of("uncompressed"), Some((Codec::None, None)));
    assert_eq!(of("snappy"), Some((Codec::Snappy, None)));
    assert_eq!(of("lz4"), Some((Codec::Lz4, None)));
    assert_eq!(of("zstd"), Some((Codec::Zstd, Some(-7))));
    for wrong in ["none", "GZIP", "Producer", ""] {
        assert!(check_topic("compression.type", wrong).is_err(), "{wrong}");
    }
}
