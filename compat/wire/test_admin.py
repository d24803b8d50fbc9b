"""What administrators ask: topics page by page, more partitions, other settings."""

import time

import checks
import schema
from batch import batch
from calls import connect, describe_topic, fetched_values, new_topic, produce, wait_for_leaders
from checks import equal
from differences import check
from golden import ask_again

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, INVALID_REQUEST = 3, 17, 42
MESSAGE_TOO_LARGE, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG = 10, 37, 39, 40
NO_ID = "00000000-0000-0000-0000-000000000000"
# read, write, create, delete, alter, describe, and describe and alter the settings
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
NOT_ASKED = -(2**31)


def expect_reason(answer):
    """Kafka leaves the words out where they would only repeat the code."""
    told, refused = bool(answer["ErrorMessage"]), answer["ErrorCode"] != 0
    assert told == refused or (refused and checks.broker_kind() == "kafka"), f"a reason beside the code: {answer}"


# DescribeTopicPartitions.


def describe_page(connection, names, limit=2000, cursor=None):
    position = cursor and {"TopicName": cursor[0], "PartitionIndex": cursor[1]}
    body = {"Topics": [{"Name": name} for name in names], "ResponsePartitionLimit": limit, "Cursor": position}
    answer = connection.call("DescribeTopicPartitions", 0, body)
    following = answer["NextCursor"]
    return answer["Topics"], following and (following["TopicName"], following["PartitionIndex"])


def listed(topics):
    return [(topic["Name"], [partition["PartitionIndex"] for partition in topic["Partitions"]]) for topic in topics]


def test_topics_are_described_page_by_page_in_the_order_of_their_names():
    with connect() as connection:
        a, b, c = sorted(new_topic(connection, partitions=2) for _ in range(3))
        names = [c, a, b, a]
        for limit, cursor, partitions, following in [
            (3, None, [(a, [0, 1]), (b, [0])], (b, 1)),
            (1, (b, 1), [(b, [1])], (c, 0)),
            (0, (c, 0), [(c, [0])], (c, 1)),
            (-5, (c, 0), [(c, [0])], (c, 1)),
            (2000, (c, 1), [(c, [1])], None),
            (2000, (c, 2), [(c, [])], None),
            (2, (b, 0), [(b, [0, 1])], (c, 0)),
        ]:
            topics, cursor_after = describe_page(connection, names, limit, cursor)
            equal((listed(topics), cursor_after), (partitions, following), f"at most {limit} from {cursor}")
        [topic], _ = describe_page(connection, [a])
        described = describe_topic(connection, a)
        equal(
            (topic["ErrorCode"], topic["TopicId"], topic["IsInternal"], topic["TopicAuthorizedOperations"]),
            (0, described["TopicId"], False, TOPIC_OPERATIONS),
        )
        for ours, theirs in zip(topic["Partitions"], described["Partitions"]):
            for field in ("ErrorCode", "PartitionIndex", "LeaderId", "LeaderEpoch", "ReplicaNodes", "IsrNodes", "OfflineReplicas"):
                equal(ours[field], theirs[field], field)
            equal((ours["EligibleLeaderReplicas"], ours["LastKnownElr"]), ([], []))


def test_all_topics_are_described_if_none_is_named():
    with connect() as connection:
        wanted = {new_topic(connection), new_topic(connection, partitions=3)}
        found, cursor = [], None
        while True:
            topics, cursor = describe_page(connection, [], 1, cursor)
            equal([len(topic["Partitions"]) for topic in topics], [1])
            found += [topic["Name"] for topic in topics]
            if cursor is None:
                break
        assert wanted <= set(found), f"left out: {wanted - set(found)}"
        equal(found, sorted(found))


def test_missing_topics_take_no_room_on_a_page():
    with connect() as connection:
        topic = new_topic(connection)
        missing = checks.unique("a-missing")
        topics, cursor = describe_page(connection, [topic, missing, "a b"], 1)
        equal([(t["Name"], t["ErrorCode"]) for t in topics], [("a b", INVALID_TOPIC), (missing, UNKNOWN_TOPIC_OR_PARTITION), (topic, 0)])
        equal([(t["TopicId"], t["TopicAuthorizedOperations"]) for t in topics[:2]], [(NO_ID, TOPIC_OPERATIONS)] * 2)
        equal(cursor, None)
        later = checks.unique("z-missing")
        topics, cursor = describe_page(connection, [topic, later], 1)
        equal((listed(topics), cursor), ([(topic, [0])], (later, 0)))


def test_a_cursor_names_one_of_the_topics_and_a_partition():
    with connect() as connection:
        topic = new_topic(connection)
        for names, cursor in [([topic], ("zzz", 0)), ([topic], (topic, -1)), ([], (topic, -1))]:
            topics, after = describe_page(connection, names, 5, cursor)
            told = [(t["Name"], t["ErrorCode"], t["TopicAuthorizedOperations"]) for t in topics]
            equal((told, after), ([(name, INVALID_REQUEST, NOT_ASKED) for name in names], None))


# CreatePartitions.


def grow(connection, topics, version=3, **fields):
    """`topics` are (name, count) or (name, count, the brokers of each new partition)."""
    asked = []
    for name, count, *assigned in topics:
        assignments = [{"BrokerIds": brokers} for brokers in assigned[0]] if assigned else None
        asked.append({"Name": name, "Count": count, "Assignments": assignments})
    body = {"Topics": asked, "TimeoutMs": 10_000, "ValidateOnly": False, **fields}
    results = connection.call("CreatePartitions", version, body)["Results"]
    for result in results:
        expect_reason(result)
    return {result["Name"]: result["ErrorCode"] for result in results}


def test_every_version_of_create_partitions_grows_a_topic():
    with connect() as connection:
        topic = new_topic(connection)
        equal(produce(connection, topic, batch([b"v"]))["ErrorCode"], 0)
        for count, version in enumerate(schema.valid_versions("CreatePartitions"), 2):
            equal(grow(connection, [(topic, count)], version), {topic: 0}, f"v{version}")
            wait_for_leaders(connection, topic, count)
            equal(produce(connection, topic, batch([b"v"]), partition=count - 1)["BaseOffset"], 0)
        equal(fetched_values(connection, topic), [b"v"])


def test_create_partitions_refuses_what_is_no_growth():
    with connect() as connection:
        topic, other, missing = new_topic(connection, partitions=3), new_topic(connection), checks.unique("missing")
        for count in (3, 2, 0, -1):
            equal(grow(connection, [(topic, count)]), {topic: INVALID_PARTITIONS}, f"{count} partitions of 3")
        asked = [(other, 9), (missing, 2), (topic, 4), (other, 9)]
        equal(grow(connection, asked), {other: INVALID_REQUEST, missing: UNKNOWN_TOPIC_OR_PARTITION, topic: 0})
        wait_for_leaders(connection, topic, 4)
        broker = describe_topic(connection, topic)["Partitions"][0]["LeaderId"]
        for assigned in ([], [[broker]], [[broker], [77]], [[broker], [broker, broker]], [[broker], []]):
            equal(grow(connection, [(other, 3, assigned)]), {other: INVALID_REPLICA_ASSIGNMENT}, f"{assigned}")
        equal(grow(connection, [(other, 3, [[broker], [broker]])], ValidateOnly=True), {other: 0})
        equal(len(describe_topic(connection, other)["Partitions"]), 1)
        equal(grow(connection, [(other, 3, [[broker], [broker]])]), {other: 0})
        wait_for_leaders(connection, other, 3)


# AlterConfigs and IncrementalAlterConfigs.

TOPIC, GROUP = 2, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def alter(connection, topic, changes, version=1, kind=TOPIC, **fields):
    """`changes` are (name, operation, value). Returns the error code."""
    configs = [{"Name": name, "ConfigOperation": operation, "Value": value} for name, operation, value in changes]
    return altered(connection, "IncrementalAlterConfigs", version, topic, configs, kind, fields)


def replace(connection, topic, configs, version=2, kind=TOPIC, **fields):
    configs = [{"Name": name, "Value": value} for name, value in configs]
    return altered(connection, "AlterConfigs", version, topic, configs, kind, fields)


def altered(connection, api, version, topic, configs, kind, fields):
    resource = {"ResourceType": kind, "ResourceName": topic, "Configs": configs}
    body = {"Resources": [resource], "ValidateOnly": False, **fields}
    [answer] = connection.call(api, version, body)["Responses"]
    equal((answer["ResourceType"], answer["ResourceName"]), (kind, topic))
    expect_reason(answer)
    return answer["ErrorCode"]


def own_settings(connection, topic):
    resource = {"ResourceType": TOPIC, "ResourceName": topic, "ConfigurationKeys": None}
    [answer] = connection.call("DescribeConfigs", 4, {"Resources": [resource]})["Results"]
    return {row["Name"]: row["Value"] for row in answer["Configs"] if row["ConfigSource"] == 1}


def wait_for_settings(connection, topic, expected):
    """Kafka's broker learns of a setting a moment after its controller has answered."""
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while (found := own_settings(connection, topic)) != expected:
        assert time.monotonic() < deadline, f"expected {expected}, got {found}"
        ask_again(0.02)


def wait_for_answer(connection, topic, expected):
    """Kafka's logs learn of a setting a moment after it is described."""
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while (error := produce(connection, topic, batch([b"x" * 4000]))["ErrorCode"]) != expected:
        assert checks.broker_kind() == "kafka" and time.monotonic() < deadline, f"expected {expected}, got {error}"
        ask_again(0.02)


def test_every_version_alters_settings_and_they_hold():
    with connect() as connection:
        topic = new_topic(connection, retention_ms="5000", segment_ms="7000")
        for version in schema.valid_versions("IncrementalAlterConfigs"):
            equal(alter(connection, topic, [("retention.ms", SET, f"9{version}"), ("segment.ms", DELETE, None)], version), 0)
            wait_for_settings(connection, topic, {"retention.ms": f"9{version}"})
        for version in schema.valid_versions("AlterConfigs"):
            equal(replace(connection, topic, [("max.message.bytes", f"{version + 1}000")], version), 0)
            wait_for_settings(connection, topic, {"max.message.bytes": f"{version + 1}000"})
        wait_for_answer(connection, topic, MESSAGE_TOO_LARGE)
        equal(replace(connection, topic, []), 0)
        wait_for_settings(connection, topic, {})
        wait_for_answer(connection, topic, 0)


def test_lists_of_a_setting_get_and_lose_words():
    with connect() as connection:
        topic = new_topic(connection)
        for operation, words, left in [
            (APPEND, "compact", "delete,compact"),
            (APPEND, "delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ]:
            equal(alter(connection, topic, [("cleanup.policy", operation, words)]), 0)
            wait_for_settings(connection, topic, {"cleanup.policy": left})
        equal(alter(connection, topic, [("retention.ms", APPEND, "9")]), INVALID_CONFIG)
        equal(alter(connection, topic, [("retention.ms", SUBTRACT, "9")]), INVALID_CONFIG)


def test_a_bad_setting_is_refused_with_the_reason_and_alters_nothing():
    with connect() as connection:
        topic, missing = new_topic(connection, retention_ms="5000"), checks.unique("missing")
        good = ("segment.ms", SET, "7000")
        for change, error in [
            (("retention.ms", SET, "soon"), INVALID_CONFIG),
            (("retention.ms", SET, None), INVALID_REQUEST),
            (("no.such.setting", SET, "1"), INVALID_CONFIG),
            (("cleanup.policy", SET, "burn"), INVALID_CONFIG),
            (("segment.ms", DELETE, None), INVALID_REQUEST),
        ]:
            equal((change, alter(connection, topic, [good, change])), (change, error))
        check(alter(connection, topic, [("retention.ms", 9, "1")]), "unknown operation on a setting")
        for change, error in [
            (("retention.ms", "soon"), INVALID_CONFIG),
            (("retention.ms", None), INVALID_REQUEST),
            (("no.such.setting", "1"), INVALID_CONFIG),
            (("segment.ms", "1000"), INVALID_REQUEST),
        ]:
            equal((change, replace(connection, topic, [("segment.ms", "7000"), change])), (change, error))
        for kind, name, error in [
            (TOPIC, missing, UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "a b", INVALID_TOPIC),
            (TOPIC, "", INVALID_REQUEST),
            (9, topic, INVALID_REQUEST),
        ]:
            equal((kind, name, alter(connection, name, [good], kind=kind)), (kind, name, error))
            equal((kind, name, replace(connection, name, [("segment.ms", "7000")], kind=kind)), (kind, name, error))
        equal(alter(connection, topic, [good], ValidateOnly=True), 0)
        equal(replace(connection, topic, [], ValidateOnly=True), 0)
        equal(alter(connection, topic, [("no.such.setting", DELETE, None)]), 0)
        equal(own_settings(connection, topic), {"retention.ms": "5000"})


def test_a_topic_that_is_named_twice_is_altered_by_neither():
    with connect() as connection:
        topic, other = new_topic(connection), new_topic(connection)
        config = {"Name": "retention.ms", "ConfigOperation": SET, "Value": "1"}
        named = [{"ResourceType": TOPIC, "ResourceName": name, "Configs": [config]} for name in (topic, other, topic)]
        answers = connection.call("IncrementalAlterConfigs", 1, {"Resources": named, "ValidateOnly": False})["Responses"]
        equal({answer["ResourceName"]: answer["ErrorCode"] for answer in answers}, {topic: INVALID_REQUEST, other: 0})
        wait_for_settings(connection, other, {"retention.ms": "1"})
        equal(own_settings(connection, topic), {})
