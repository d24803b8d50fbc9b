"""Metadata, the cluster, and the creation and deletion of topics and records."""

import time

import checks
import schema
from batch import batch
from calls import (
    EARLIEST, LATEST, connect, create_topic, delete_records, describe_topic, fetched_values, list_offset, new_topic, produce, topic_id,
    wait_for_leaders,
)  # fmt: skip
from checks import equal
from golden import ask_again

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, INVALID_TOPIC = 1, 3, 5, 17
TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG = 36, 37, 38, 39, 40
INVALID_REQUEST, UNKNOWN_TOPIC_ID = 42, 100
BAD_NAMES = ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\0b", "a:b"]
NOWHERE = "12345678-1234-1234-1234-123456789abc"
NOT_ASKED = -(2**31)
# Resources and sources of DescribeConfigs.
BROKER, STATIC, DEFAULT = 4, 4, 5


def strict():
    return connect(checks.strict_bootstrap())


def test_every_version_of_metadata_describes_a_topic():
    with connect() as connection:
        topic = new_topic(connection, partitions=3)
        by_id = topic_id(connection, topic)
        for version in schema.valid_versions("Metadata"):
            answer = connection.call("Metadata", version, {"Topics": [{"Name": topic}]})
            [described] = answer["Topics"]
            equal((described["ErrorCode"], described["Name"]), (0, topic), f"v{version}")
            equal(sorted(p["PartitionIndex"] for p in described["Partitions"]), [0, 1, 2])
            brokers = [broker["NodeId"] for broker in answer["Brokers"]]
            for partition in described["Partitions"]:
                equal((partition["ErrorCode"], [partition["LeaderId"]]), (0, brokers))
                equal((partition["ReplicaNodes"], partition["IsrNodes"]), (brokers, brokers))
                if version >= 5:
                    equal(partition["OfflineReplicas"], [])
                if version >= 7:
                    assert partition["LeaderEpoch"] >= 0, "a leader epoch that clients can fence with"
            if version >= 1:
                equal((described["IsInternal"], answer["ControllerId"]), (False, brokers[0]))
            if version >= 2:
                assert answer["ClusterId"], "a cluster id"
            if version >= 10:
                equal(described["TopicId"], by_id)
            equal([(b["Host"], b["Port"]) for b in answer["Brokers"]], [address(checks.bootstrap())], "the advertised listener")


def address(bootstrap):
    host, port = bootstrap.split(":")
    return host, int(port)


def test_metadata_lists_all_topics_for_null_and_none_for_empty_and_all_for_empty_in_version_0():
    with connect() as connection:
        topics = {new_topic(connection), new_topic(connection)}
        for version, asked in [(0, []), (1, None), (12, None), (13, None)]:
            listed = {t["Name"] for t in connection.call("Metadata", version, {"Topics": asked})["Topics"]}
            assert topics <= listed, f"v{version} leaves out {topics - listed}"
        for version in (1, 9, 13):
            equal(connection.call("Metadata", version, {"Topics": []})["Topics"], [], f"v{version}")


def test_metadata_finds_topics_by_id():
    with connect() as connection:
        topic = new_topic(connection)
        by_id = topic_id(connection, topic)
        for version in (12, 13):
            [described] = connection.call("Metadata", version, {"Topics": [{"TopicId": by_id, "Name": None}]})["Topics"]
            equal((described["ErrorCode"], described["Name"], described["TopicId"]), (0, topic, by_id))
            [unknown] = connection.call("Metadata", version, {"Topics": [{"TopicId": NOWHERE, "Name": None}]})["Topics"]
            equal((unknown["ErrorCode"], unknown["Name"], unknown["TopicId"]), (UNKNOWN_TOPIC_ID, None, NOWHERE))


def test_metadata_of_a_bad_name_is_an_invalid_topic():
    with connect() as connection:
        for name in BAD_NAMES:
            for creation in (False, True):
                [described] = connection.call("Metadata", 12, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": creation})["Topics"]
                equal(described["ErrorCode"], INVALID_TOPIC, f"{name[:9]!r}")


def test_authorized_operations_are_left_out_unless_asked_for():
    with connect() as connection:
        topic = new_topic(connection)
        [left_out] = connection.call("Metadata", 12, {"Topics": [{"Name": topic}]})["Topics"]
        equal(left_out["TopicAuthorizedOperations"], NOT_ASKED)
        [asked] = connection.call("Metadata", 12, {"Topics": [{"Name": topic}], "IncludeTopicAuthorizedOperations": True})["Topics"]
        assert asked["TopicAuthorizedOperations"] not in (NOT_ASKED, 0), asked


def test_every_version_of_describe_cluster_names_the_broker():
    with connect() as connection:
        cluster_id = connection.call("Metadata", 12)["ClusterId"]
        for version in schema.valid_versions("DescribeCluster"):
            answer = connection.call("DescribeCluster", version)
            equal((answer["ErrorCode"], answer["ClusterId"]), (0, cluster_id), f"v{version}")
            equal([(b["Host"], b["Port"]) for b in answer["Brokers"]], [address(checks.bootstrap())])
            equal(answer["ControllerId"], answer["Brokers"][0]["BrokerId"])
            equal(answer["ClusterAuthorizedOperations"], NOT_ASKED)


def test_describe_cluster_of_the_controllers_is_refused_by_a_broker():
    with connect() as connection:
        for endpoint_type, error in [(2, 114), (9, 115)]:
            answer = connection.call("DescribeCluster", 1, {"EndpointType": endpoint_type})
            equal((answer["ErrorCode"], answer["Brokers"]), (error, []), f"endpoint type {endpoint_type}")


# Auto-creation: only when the request and the broker both allow it.


def test_metadata_creates_a_topic_when_request_and_broker_allow_it():
    with connect() as connection:
        name = checks.unique("auto")
        [first] = connection.call("Metadata", 12, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True})["Topics"]
        assert first["ErrorCode"] in (0, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE), first
        wait_for_leaders(connection, name, partitions=1)
        equal(produce(connection, name, batch([b"v"]))["BaseOffset"], 0)


def test_old_metadata_versions_without_the_flag_create_topics():
    with connect() as connection:
        for version in (0, 1, 3):
            name = checks.unique("auto-old")
            connection.call("Metadata", version, {"Topics": [{"Name": name}]})
            wait_for_leaders(connection, name, partitions=1)


def test_metadata_creates_nothing_when_the_request_does_not_allow_it():
    with connect() as connection:
        name = checks.unique("auto-refused")
        for version in (4, 12, 13):
            body = {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False}
            for _ in range(2):
                equal(connection.call("Metadata", version, body)["Topics"][0]["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION, f"v{version}")
        time.sleep(0.2)
        assert name not in {t["Name"] for t in connection.call("Metadata", 12, {"Topics": None})["Topics"]}


def test_metadata_creates_nothing_when_the_broker_does_not_allow_it():
    with strict() as connection:
        name = checks.unique("auto-refused")
        for version in (0, 4, 12):
            asked = {"Topics": [{"Name": name}]}
            equal(connection.call("Metadata", version, asked)["Topics"][0]["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION, f"v{version}")
        time.sleep(0.2)
        equal(describe_topic(connection, name)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


def test_produce_and_fetch_never_create_a_topic():
    with connect() as connection:
        name = checks.unique("not-by-produce")
        equal(produce(connection, name, batch([b"v"]))["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        time.sleep(0.2)
        equal(describe_topic(connection, name)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


# DescribeConfigs.


def describe_broker(connection, version, **fields):
    resource = {"ResourceType": BROKER, "ResourceName": "1", "ConfigurationKeys": None, **fields}
    [answer] = connection.call("DescribeConfigs", version, {"Resources": [resource], "IncludeSynonyms": True})["Results"]
    equal((answer["ErrorCode"], answer["ResourceName"]), (0, "1"))
    return answer["Configs"]


def test_every_version_of_describe_configs_says_what_the_broker_is_set_to():
    with connect() as connection:
        for version in schema.valid_versions("DescribeConfigs"):
            rows = describe_broker(connection, version)
            configs = {row["Name"]: row for row in rows}
            equal(len(configs), len(rows), "no name twice")
            for name, value, source in [
                ("node.id", "1", STATIC),
                ("broker.id", "1", STATIC),
                ("advertised.listeners", f"PLAINTEXT://{checks.bootstrap()}", STATIC),
                ("connections.max.idle.ms", "600000", DEFAULT),
                ("socket.request.max.bytes", "104857600", DEFAULT),
                ("socket.send.buffer.bytes", "102400", DEFAULT),
                ("max.connections", "2147483647", DEFAULT),
                ("message.max.bytes", "1048588", DEFAULT),
            ]:
                equal((configs[name]["Value"], configs[name]["ConfigSource"]), (value, source), f"v{version} {name}")
    with strict() as connection:
        [row] = describe_broker(connection, 4, ConfigurationKeys=["message.max.bytes"])
        synonyms = [(synonym["Value"], synonym["Source"]) for synonym in row["Synonyms"]]
        equal((row["Value"], row["ConfigSource"]), (str(11 << 20), STATIC))
        equal(synonyms, [(str(11 << 20), STATIC), ("1048588", DEFAULT)])


# CreateTopics and DeleteTopics.


def test_every_version_of_create_topics_and_delete_topics_works():
    with connect() as connection:
        for create_version in schema.valid_versions("CreateTopics"):
            name = checks.unique(f"created-{create_version}")
            answer = create_topic(connection, name, partitions=2, version=create_version)
            equal((answer["ErrorCode"], answer["Name"]), (0, name), f"create v{create_version}")
            if create_version >= 5:
                equal((answer["NumPartitions"], answer["ReplicationFactor"]), (2, 1))
                configs = {config["Name"]: config["Value"] for config in answer["Configs"]}
                equal(configs["cleanup.policy"], "delete")
            wait_for_leaders(connection, name, 2)
            if create_version >= 7:
                equal(answer["TopicId"], topic_id(connection, name))
        for delete_version in schema.valid_versions("DeleteTopics"):
            name = new_topic(connection)
            body = {"Topics": [{"Name": name}]} if delete_version >= 6 else {"TopicNames": [name]}
            [answer] = connection.call("DeleteTopics", delete_version, {**body, "TimeoutMs": 5000})["Responses"]
            equal((answer["ErrorCode"], answer["Name"]), (0, name), f"delete v{delete_version}")
            wait_until_gone(connection, name)


def wait_until_gone(connection, name):
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while describe_topic(connection, name)["ErrorCode"] != UNKNOWN_TOPIC_OR_PARTITION:
        assert time.monotonic() < deadline, f"{name} is still there"
        ask_again(0.02)


def test_create_topics_says_what_is_wrong_by_code_and_in_words():
    with connect() as connection:
        existing = new_topic(connection)
        fresh = checks.unique("refused")
        cases = [
            ("a name that exists", existing, {}, TOPIC_ALREADY_EXISTS),
            *[(f"the name {name[:9]!r}", name, {}, INVALID_TOPIC) for name in BAD_NAMES],
            ("no partitions", fresh, {"NumPartitions": 0}, INVALID_PARTITIONS),
            ("-2 partitions", fresh, {"NumPartitions": -2}, INVALID_PARTITIONS),
            ("more replicas than brokers", fresh, {"ReplicationFactor": 3}, INVALID_REPLICATION_FACTOR),
            ("no replicas", fresh, {"ReplicationFactor": 0}, INVALID_REPLICATION_FACTOR),
            ("-2 replicas", fresh, {"ReplicationFactor": -2}, INVALID_REPLICATION_FACTOR),
            ("an unknown setting", fresh, {"Configs": [{"Name": "no.such.setting", "Value": "1"}]}, INVALID_CONFIG),
            ("a value that is no number", fresh, {"Configs": [{"Name": "retention.ms", "Value": "soon"}]}, INVALID_CONFIG),
            ("a value out of its range", fresh, {"Configs": [{"Name": "segment.bytes", "Value": "-5"}]}, INVALID_CONFIG),
            ("an unknown policy", fresh, {"Configs": [{"Name": "cleanup.policy", "Value": "burn"}]}, INVALID_CONFIG),
            ("an unknown timestamp type", fresh, {"Configs": [{"Name": "message.timestamp.type", "Value": "Now"}]}, INVALID_CONFIG),
            ("an unknown codec", fresh, {"Configs": [{"Name": "compression.type", "Value": "rar"}]}, INVALID_CONFIG),
            ("a null value", fresh, {"Configs": [{"Name": "retention.ms", "Value": None}]}, INVALID_CONFIG),
            ("an assignment to an unknown broker", fresh, assignment({0: [77]}), INVALID_REPLICA_ASSIGNMENT),
            ("an assignment with a gap", fresh, assignment({1: [node_id(connection)]}), INVALID_REPLICA_ASSIGNMENT),
            ("an assignment and a partition count", fresh, {**assignment({0: [node_id(connection)]}), "NumPartitions": 1}, INVALID_REQUEST),
        ]
        for what, name, fields, error in cases:
            answer = create_topic(connection, name, **fields)
            equal((what, answer["ErrorCode"]), (what, error))
            assert answer["ErrorMessage"], f"{what}: an error message for people"
        equal(describe_topic(connection, fresh)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


def test_a_topic_may_have_a_codec_of_its_own():
    with connect() as connection:
        equal(create_topic(connection, checks.unique("as-they-come"), configs={"compression.type": "producer"})["ErrorCode"], 0)
        equal(create_topic(connection, checks.unique("zstd"), configs={"compression.type": "zstd"})["ErrorCode"], 0)


def node_id(connection):
    return connection.call("Metadata", 12)["Brokers"][0]["NodeId"]


def assignment(replicas):
    return {
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "Assignments": [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in replicas.items()],
    }


def test_a_topic_may_be_created_by_assignment_or_with_the_defaults():
    with connect() as connection:
        name = checks.unique("assigned")
        equal(create_topic(connection, name, **assignment({0: [node_id(connection)], 1: [node_id(connection)]}))["ErrorCode"], 0)
        wait_for_leaders(connection, name, 2)
        name = checks.unique("defaults")
        answer = create_topic(connection, name, NumPartitions=-1, ReplicationFactor=-1)
        equal((answer["ErrorCode"], answer["NumPartitions"], answer["ReplicationFactor"]), (0, 1, 1))


def test_names_that_differ_only_in_dots_and_underscores_collide():
    with connect() as connection:
        name = checks.unique("a.b").replace("-", "_")
        equal(create_topic(connection, name)["ErrorCode"], 0)
        equal(create_topic(connection, name.replace(".", "_"))["ErrorCode"], INVALID_TOPIC)


def test_a_creation_that_is_only_validated_creates_nothing():
    with connect() as connection:
        name = checks.unique("validated")
        body = {"Topics": [{"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 5000, "validateOnly": True}
        [answer] = connection.call("CreateTopics", 7, body)["Topics"]
        equal((answer["ErrorCode"], answer["NumPartitions"]), (0, 1))
        equal(describe_topic(connection, name)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


def test_the_same_name_twice_in_one_creation_is_an_invalid_request():
    with connect() as connection:
        name, other = checks.unique("twice"), checks.unique("once")
        topics = [{"Name": n, "NumPartitions": 1, "ReplicationFactor": 1} for n in (name, other, name)]
        answers = connection.call("CreateTopics", 7, {"Topics": topics, "timeoutMs": 5000})["Topics"]
        equal({a["Name"]: a["ErrorCode"] for a in answers}, {name: INVALID_REQUEST, other: 0})


def test_deletion_says_what_is_unknown():
    with connect() as connection:

        def error_of(**topic):
            [answer] = connection.call("DeleteTopics", 6, {"Topics": [topic], "TimeoutMs": 5000})["Responses"]
            return answer["ErrorCode"]

        equal(error_of(Name=checks.unique("nowhere")), UNKNOWN_TOPIC_OR_PARTITION)
        equal(error_of(Name=None, TopicId=NOWHERE), UNKNOWN_TOPIC_ID)
        equal(error_of(Name=None), INVALID_REQUEST, "neither name nor id")
        topic = new_topic(connection)
        by_id = topic_id(connection, topic)
        equal(error_of(Name=topic, TopicId=by_id), INVALID_REQUEST, "both name and id")
        equal(error_of(Name=None, TopicId=by_id), 0)
        wait_until_gone(connection, topic)


def test_a_deleted_topic_is_gone_everywhere_and_its_successor_is_another():
    with connect() as connection:
        topic = new_topic(connection)
        seen_ids = {topic_id(connection, topic)}
        for round_number in range(3):
            produce(connection, topic, batch([b"old %d" % round_number]))
            connection.call("DeleteTopics", 6, {"Topics": [{"Name": topic}], "TimeoutMs": 5000})
            wait_until_gone(connection, topic)
            deadline = time.monotonic() + 10 * checks.SLOWNESS
            while create_topic(connection, topic)["ErrorCode"] != 0:
                assert time.monotonic() < deadline
                ask_again(0.05)
            wait_for_leaders(connection, topic, 1)
            by_id = topic_id(connection, topic)
            assert by_id not in seen_ids, "a new topic has a new id"
            seen_ids.add(by_id)
            equal((list_offset(connection, topic, EARLIEST)["Offset"], list_offset(connection, topic, LATEST)["Offset"]), (0, 0))
            equal(fetched_values(connection, topic), [])


# DeleteRecords.


def test_every_version_of_delete_records_moves_the_beginning():
    with connect() as connection:
        topic = new_topic(connection)
        for number in range(10):
            produce(connection, topic, batch([b"%d" % number]))
        for offset, version in [(2, 0), (4, 1), (6, 2)]:
            answer = delete_records(connection, topic, offset, version=version)
            equal((answer["ErrorCode"], answer["LowWatermark"]), (0, offset), f"v{version}")
            equal(list_offset(connection, topic, EARLIEST)["Offset"], offset)
        equal(fetched_values(connection, topic, 6), [b"6", b"7", b"8", b"9"])


def test_delete_records_inside_a_batch_hides_its_first_records_only():
    with connect() as connection:
        topic = new_topic(connection)
        produce(connection, topic, batch([b"a", b"b", b"c", b"d"]))
        equal(delete_records(connection, topic, 2)["LowWatermark"], 2)
        equal(fetched_values(connection, topic, 2), [b"a", b"b", b"c", b"d"], "the batch comes whole, the client skips")
        equal(list_offset(connection, topic, EARLIEST)["Offset"], 2)


def test_delete_records_of_everything_and_of_what_is_not_there():
    with connect() as connection:
        topic = new_topic(connection)
        equal(delete_records(connection, topic, -1)["LowWatermark"], 0, "an empty log")
        for number in range(4):
            produce(connection, topic, batch([b"%d" % number]))
        beyond = delete_records(connection, topic, 5)
        equal((beyond["ErrorCode"], beyond["LowWatermark"]), (OFFSET_OUT_OF_RANGE, -1))
        equal(delete_records(connection, topic, -2)["ErrorCode"], OFFSET_OUT_OF_RANGE)
        equal(delete_records(connection, topic, 3)["LowWatermark"], 3)
        again = delete_records(connection, topic, 1)
        equal((again["ErrorCode"], again["LowWatermark"]), (0, 3), "below the beginning nothing happens")
        equal(delete_records(connection, topic, -1)["LowWatermark"], 4, "-1 means everything")
        equal(list_offset(connection, topic, EARLIEST)["Offset"], 4)
        equal(produce(connection, topic, batch([b"next"]))["BaseOffset"], 4)


def test_delete_records_of_an_unknown_partition_is_said_by_code():
    with connect() as connection:
        topic = new_topic(connection)
        equal(delete_records(connection, topic, 0, partition=3)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        equal(delete_records(connection, checks.unique("nowhere"), 0)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


def test_delete_records_of_a_compacted_topic_is_refused():
    with connect() as connection:
        topic = new_topic(connection, cleanup_policy="compact")
        equal(delete_records(connection, topic, 0)["ErrorCode"], 44)
        topic = new_topic(connection, cleanup_policy="compact,delete")
        equal(delete_records(connection, topic, 0)["ErrorCode"], 0)


# Settings.


def test_a_larger_message_max_bytes_of_the_broker_holds_for_its_topics():
    with strict() as connection:
        topic = new_topic(connection)
        equal(produce(connection, topic, batch([b"x" * 2_000_000]))["ErrorCode"], 0)
        equal(len(fetched_values(connection, topic)[0]), 2_000_000)
