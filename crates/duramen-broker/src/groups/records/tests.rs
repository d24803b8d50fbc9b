//! Group records against bytes that an Apache Kafka 4.3.1 wrote.

use bytes::BytesMut;

use super::*;

fn unhex(text: &str) -> Bytes {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hex digit");
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0]) * 16 + digit(pair[1])).expect("a byte");
    pairs.map(byte).collect::<BytesMut>().freeze()
}

fn decode(key: &str, value: Option<&str>) -> Result<GroupRecord, DecodeError> {
    GroupRecord::decode(unhex(key), value.map(unhex))
}

/// Kafka's record says this, and this is written as Kafka writes it.
fn check(key: &str, value: Option<&str>, record: &GroupRecord) {
    assert_eq!(decode(key, value).as_ref(), Ok(record));
    assert_eq!(record.encode(), Ok((unhex(key), value.map(unhex))));
}

fn offset_key(group: &str, topic: &str, partition: i32) -> OffsetCommitKey {
    OffsetCommitKey { group: group.into(), topic: topic.into(), partition }
}

/// The topic's id, as the broker gave it.
const TOPIC_ID: u128 = 0x498c_12af_dc7b_4946_bda3_0c3e_add6_e8ec;

#[test]
fn committed_offsets_are_as_kafka_writes_them() {
    let committed = OffsetCommitValue {
        offset: 1,
        metadata: "a note\0".into(), // The client's binding to C sent the end of its text, too.
        commit_timestamp: 1_795_282_238_717,
        topic_id: Uuid::from_u128(TOPIC_ID),
        ..OffsetCommitValue::default()
    };
    check(
        "00010005706c61696e0005666163747300000000",
        Some(
            "00040000000000000001ffffffff0861206e6f746500000001a1ff28fcfd0100\
             10498c12afdc7b4946bda30c3eadd6e8ec",
        ),
        &GroupRecord::Offset { key: offset_key("plain", "facts", 0), value: Some(committed) },
    );
    let with_epoch = OffsetCommitValue {
        offset: 9,
        leader_epoch: 4,
        metadata: "by id".into(),
        commit_timestamp: 1_795_282_239_156,
        topic_id: Uuid::from_u128(TOPIC_ID),
        ..OffsetCommitValue::default()
    };
    check(
        "000100036964730005666163747300000001",
        Some(
            "00040000000000000009000000040662792069640000\
             01a1ff28feb4010010498c12afdc7b4946bda30c3eadd6e8ec",
        ),
        &GroupRecord::Offset { key: offset_key("ids", "facts", 1), value: Some(with_epoch) },
    );
    // Asked for with a retention of an hour, by OffsetCommit of version 2.
    let with_end = OffsetCommitValue {
        offset: 5,
        metadata: "kept".into(),
        commit_timestamp: 1_795_282_238_919,
        expire_timestamp: 1_795_282_238_919 + 3_600_000,
        ..OffsetCommitValue::default()
    };
    check(
        "000100036f6c640005666163747300000002",
        Some("0001000000000000000500046b657074000001a1ff28fdc7000001a1ff5fec47"),
        &GroupRecord::Offset { key: offset_key("old", "facts", 2), value: Some(with_end) },
    );
    check(
        "000100036964730005666163747300000001",
        None,
        &GroupRecord::Offset { key: offset_key("ids", "facts", 1), value: None },
    );
}

#[test]
fn groups_are_as_kafka_writes_them() {
    let id = "one-eb99f17c-b991-447f-9a75-99b001e94179";
    let subscription = "000300000001000566616374730000000000000000ffffffff0000";
    let assignment = "000000000001000566616374730000000300000000000000010000000200000000";
    let member = MemberMetadata {
        member_id: id.to_owned(),
        group_instance_id: Some("one".to_owned()),
        client_id: "stat".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        rebalance_timeout: 77_000,
        session_timeout: 9_000,
        subscription: unhex(subscription),
        assignment: unhex(assignment),
    };
    let stable = GroupMetadataValue {
        protocol_type: "consumer".to_owned(),
        generation: 1,
        protocol: Some("cooperative-sticky".to_owned()),
        leader: Some(id.to_owned()),
        current_state_timestamp: 1_795_282_238_790,
        members: vec![member],
    };
    let group: Arc<str> = "static".into();
    let record = |value| GroupRecord::Group { group: group.clone(), value };
    check(
        "00020006737461746963",
        Some(
            "00030008636f6e73756d6572000000010012636f6f70657261746976652d737469636b7900286f6e\
             652d65623939663137632d623939312d343437662d396137352d39396230303165393431373900\
             0001a1ff28fd460000000100286f6e652d65623939663137632d623939312d343437662d396137\
             352d39396230303165393431373900036f6e65000473746174000a2f3132372e302e302e310001\
             2cc8000023280000001b000300000001000566616374730000000000000000ffffffff00000000\
             0021000000000001000566616374730000000300000000000000010000000200000000",
        ),
        &record(Some(Arc::new(stable))),
    );
    let empty = GroupMetadataValue {
        protocol_type: "consumer".to_owned(),
        generation: 2,
        current_state_timestamp: 1_795_282_247_908,
        ..GroupMetadataValue::default()
    };
    check(
        "00020006737461746963",
        Some("00030008636f6e73756d657200000002ffffffff000001a1ff2920e400000000"),
        &record(Some(Arc::new(empty))),
    );
    check("00020006737461746963", None, &record(None));
}

#[test]
fn all_versions_that_kafka_ever_wrote_are_read() {
    // Versions 0, 2 and 3 of an offset; 3 with a leader epoch.
    let key = "00000001670001740000000a";
    let base = "000000000000000700016d0000000000000005";
    for (version, value) in [
        ("0000", base.to_owned()),
        ("0001", format!("{base}0000000000000009")),
        ("0002", base.to_owned()),
        ("0003", "00000000000000070000000300016d0000000000000005".to_owned()),
    ] {
        let record = decode(key, Some(&format!("{version}{value}"))).expect("it is whole");
        let expected = OffsetCommitValue {
            offset: 7,
            leader_epoch: if version == "0003" { 3 } else { -1 },
            metadata: "m".into(),
            commit_timestamp: 5,
            expire_timestamp: if version == "0001" { 9 } else { NEVER },
            topic_id: Uuid::ZERO,
        };
        let key = offset_key("g", "t", 10);
        assert_eq!(record, GroupRecord::Offset { key, value: Some(expected) });
    }
    // A group of one member, in all versions.
    let key = "0002000167";
    let member = MemberMetadata {
        member_id: "m".to_owned(),
        group_instance_id: Some("i".to_owned()),
        client_id: "c".to_owned(),
        client_host: "h".to_owned(),
        rebalance_timeout: 2,
        session_timeout: 1,
        subscription: unhex("05"),
        assignment: unhex("0607"),
    };
    let group = GroupMetadataValue {
        protocol_type: "consumer".to_owned(),
        generation: 3,
        protocol: Some("range".to_owned()),
        leader: Some("m".to_owned()),
        current_state_timestamp: 8,
        members: vec![member],
    };
    for version in 0..=4 {
        let value = versioned(&group, version).expect("it is ignorable");
        let record = GroupRecord::decode(unhex(key), Some(value)).expect("it is whole");
        let mut expected = group.clone();
        if version < 3 {
            expected.members[0].group_instance_id = None;
        }
        if version < 2 {
            expected.current_state_timestamp = NEVER;
        }
        if version < 1 {
            expected.members[0].rebalance_timeout = -1;
        }
        let value = Some(Arc::new(expected));
        assert_eq!(record, GroupRecord::Group { group: "g".into(), value });
    }
}

#[test]
fn what_is_not_known_or_not_whole_is_an_error() {
    let (key, value) = ("00000001670001740000000a", "0000000000000000000700016d0000000000000005");
    assert!(decode(key, Some(value)).is_ok());
    let group = "0002000167";
    assert!(decode(group, None).is_ok());
    for (key, value) in [
        // Kinds of keys that belong to other kinds of groups, and none.
        ("0009000167", None),
        ("0011000167", None),
        ("ffff000167", None),
        ("", None),
        ("00", None),
        // Keys cut short, with more behind, not UTF-8.
        ("000100016700", None),
        ("00000001670001740000000a00", None),
        ("00020001ff", None),
        ("000200016700", None),
        // Values of an unknown version, cut short, with more behind, or of the other kind.
        (key, Some("0005")),
        (key, Some("")),
        (key, Some("0000000000000000000700016d00000000000000")),
        (key, Some("0000000000000000000700016d000000000000000500")),
        (group, Some("0005")),
        (group, Some("00030008636f6e73756d657200000002ffffffff000001a1ff2920e47fffffff")),
        (group, Some(value)),
    ] {
        assert!(decode(key, value).is_err(), "{key} {value:?}");
    }
}

#[test]
fn what_does_not_fit_its_field_is_not_written() {
    let long = "x".repeat(1 << 15);
    let record = GroupRecord::Offset { key: offset_key(&long, "t", 0), value: None };
    assert!(record.encode().is_err());
    let value = GroupMetadataValue { protocol_type: long, ..GroupMetadataValue::default() };
    let record = GroupRecord::Group { group: "g".into(), value: Some(Arc::new(value)) };
    assert!(record.encode().is_err());
}

/// One fact about group `g`, as Kafka's own classes write it.
fn check_fact(key: &str, value: &str, fact: Fact, of: FactValue) {
    check(key, Some(value), &GroupRecord::Consumer { group: "g".into(), fact, value: Some(of) });
}

#[test]
fn groups_of_the_consumer_protocol_are_as_kafka_writes_them() {
    let topic_id = Uuid::from_u128(TOPIC_ID);
    let epoch = EpochValue { epoch: 7, metadata_hash: 0x1122_3344_5566_7788 };
    let bytes = "0000000000070100081122334455667788";
    check_fact("0003000167", bytes, Fact::Epoch, FactValue::Epoch(epoch));
    let epoch = EpochValue { epoch: 7, metadata_hash: 0 };
    check_fact("0003000167", "00000000000700", Fact::Epoch, FactValue::Epoch(epoch));
    let target = TargetEpochValue { epoch: 7, timestamp: 1_795_282_238_717 };
    let bytes = "000000000007010008000001a1ff28fcfd";
    check_fact("0006000167", bytes, Fact::TargetEpoch, FactValue::TargetEpoch(target));
    let share = TargetTopic { topic_id, partitions: vec![0, 3] };
    check_fact(
        "000700016700016d",
        "000002498c12afdc7b4946bda30c3eadd6e8ec0300000000000000030000",
        Fact::Target("m".into()),
        FactValue::Target(Arc::new(TargetValue { topics: vec![share] })),
    );
    let has =
        CurrentTopic { topic_id, partitions: vec![0, 3], assignment_epochs: Some(vec![5, 7]) };
    let gives_up = CurrentTopic { topic_id, partitions: vec![1], assignment_epochs: None };
    let current = CurrentValue {
        member_epoch: 7,
        previous_member_epoch: 6,
        state: 1,
        assigned: vec![has],
        revoking: vec![gives_up],
    };
    check_fact(
        "000800016700016d",
        "000000000007000000060102498c12afdc7b4946bda30c3eadd6e8ec03000000000000000301000903000000\
         050000000702498c12afdc7b4946bda30c3eadd6e8ec02000000010100010000",
        Fact::Current("m".into()),
        FactValue::Current(Arc::new(current)),
    );
    let regex = RegexValue {
        topics: vec!["xa".into(), "xb".into()],
        version: 9,
        timestamp: 1_795_282_238_717,
    };
    check_fact(
        "00100001670003782e2a",
        "0000030378610378620000000000000009000001a1ff28fcfd00",
        Fact::Regex("x.*".into()),
        FactValue::Regex(Arc::new(regex)),
    );
}

#[test]
fn members_of_the_consumer_protocol_are_as_kafka_writes_them() {
    let member = MemberValue {
        instance_id: Some("i".into()),
        client_id: "c".to_owned(),
        client_host: "/h".to_owned(),
        subscribed_topic_names: vec!["a".to_owned(), "b".to_owned()],
        subscribed_topic_regex: Some("x.*".into()),
        rebalance_timeout_ms: 300_000,
        server_assignor: Some("range".to_owned()),
        ..MemberValue::default()
    };
    check_fact(
        "000500016700016d",
        "00000269000263032f68030261026204782e2a000493e00672616e676500",
        Fact::Member("m".into()),
        FactValue::Member(Arc::new(member)),
    );
    let range =
        ClassicProtocol { name: "range".to_owned(), metadata: Bytes::from_static(b"\0\x01") };
    let member = MemberValue {
        rack_id: Some("r".to_owned()),
        client_id: "c".to_owned(),
        client_host: "/h".to_owned(),
        subscribed_topic_names: vec!["a".to_owned()],
        subscribed_topic_regex: Some("".into()),
        rebalance_timeout_ms: 300_000,
        classic: Some(ClassicMember { session_timeout_ms: 10_000, protocols: vec![range] }),
        ..MemberValue::default()
    };
    check_fact(
        "000500016700016d",
        "00000002720263032f6802026101000493e0000100110100002710020672616e67650300010000",
        Fact::Member("m".into()),
        FactValue::Member(Arc::new(member)),
    );
}

#[test]
fn the_topics_of_a_group_that_kafka_4_0_wrote_can_be_read() {
    let bytes = "000002498c12afdc7b4946bda30c3eadd6e8ec06666163747300000002010000";
    let Ok(GroupRecord::Consumer { fact, value, .. }) = decode("0004000167", Some(bytes)) else {
        panic!("another record")
    };
    assert_eq!(fact, Fact::PartitionMetadata);
    let Some(FactValue::PartitionMetadata(value)) = value else { panic!("{value:?}") };
    assert_eq!((value.topics[0].topic_name.as_str(), value.topics[0].partitions), ("facts", 2));
}
