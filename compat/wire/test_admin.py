"""What administrators ask: topics page by page, more partitions."""

import harness
import schema
from batch import batch
from calls import connect, describe_topic, fetched_values, new_topic, produce, wait_for_leaders
from harness import equal, test

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, INVALID_REQUEST = 3, 17, 42
INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT = 37, 39
NO_ID = "00000000-0000-0000-0000-000000000000"
# read, write, create, delete, alter, describe, and describe and alter the settings
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
NOT_ASKED = -(2**31)


def expect_reason(answer):
    """Kafka leaves the words out where they would only repeat the code."""
    told, refused = bool(answer["ErrorMessage"]), answer["ErrorCode"] != 0
    assert told == refused or (refused and harness.broker_kind() == "kafka"), f"a reason beside the code: {answer}"


# DescribeTopicPartitions.


def describe_page(connection, names, limit=2000, cursor=None):
    position = cursor and {"TopicName": cursor[0], "PartitionIndex": cursor[1]}
    body = {"Topics": [{"Name": name} for name in names], "ResponsePartitionLimit": limit, "Cursor": position}
    answer = connection.call("DescribeTopicPartitions", 0, body)
    following = answer["NextCursor"]
    return answer["Topics"], following and (following["TopicName"], following["PartitionIndex"])


def listed(topics):
    return [(topic["Name"], [partition["PartitionIndex"] for partition in topic["Partitions"]]) for topic in topics]


@test
def topics_are_described_page_by_page_in_the_order_of_their_names():
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


@test
def all_topics_are_described_if_none_is_named():
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


@test
def missing_topics_take_no_room_on_a_page():
    with connect() as connection:
        topic = new_topic(connection)
        missing = harness.unique("a-missing")
        topics, cursor = describe_page(connection, [topic, missing, "a b"], 1)
        equal([(t["Name"], t["ErrorCode"]) for t in topics], [("a b", INVALID_TOPIC), (missing, UNKNOWN_TOPIC_OR_PARTITION), (topic, 0)])
        equal([(t["TopicId"], t["TopicAuthorizedOperations"]) for t in topics[:2]], [(NO_ID, TOPIC_OPERATIONS)] * 2)
        equal(cursor, None)
        later = harness.unique("z-missing")
        topics, cursor = describe_page(connection, [topic, later], 1)
        equal((listed(topics), cursor), ([(topic, [0])], (later, 0)))


@test
def a_cursor_names_one_of_the_topics_and_a_partition():
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


@test
def every_version_of_create_partitions_grows_a_topic():
    with connect() as connection:
        topic = new_topic(connection)
        equal(produce(connection, topic, batch([b"v"]))["ErrorCode"], 0)
        for count, version in enumerate(schema.valid_versions("CreatePartitions"), 2):
            equal(grow(connection, [(topic, count)], version), {topic: 0}, f"v{version}")
            wait_for_leaders(connection, topic, count)
            equal(produce(connection, topic, batch([b"v"]), partition=count - 1)["BaseOffset"], 0)
        equal(fetched_values(connection, topic), [b"v"])


@test
def create_partitions_refuses_what_is_no_growth():
    with connect() as connection:
        topic, other, missing = new_topic(connection, partitions=3), new_topic(connection), harness.unique("missing")
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
