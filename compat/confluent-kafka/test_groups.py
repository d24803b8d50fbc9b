"""Consumer groups with librdkafka, and what its admin client asks of groups."""

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import (
    OFFSET_INVALID, ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError, TopicPartition,
)  # fmt: skip
from confluent_kafka.admin import ConfigResource, NewPartitions

import checks
from checks import equal
from client import admin, consume, consumer, error_code, new_topic, produce
from members import Scenarios


def scenarios():
    def send(topic, partition, values):
        produce(topic, [{"value": value} for value in values], partition).offsets()

    return Scenarios(Path(__file__).parent, new_topic, send)


@pytest.mark.short
@pytest.mark.waits
def test_members_that_join_and_leave_share_partitions_anew():
    scenarios().partitions_are_shared_anew_when_members_join_and_leave(assignor="range")


@pytest.mark.waits
def test_cooperative_members_keep_what_no_one_else_gets():
    scenarios().cooperative_members_keep_what_no_one_else_gets()


@pytest.mark.waits
def test_a_killed_member_is_replaced_when_its_session_is_over():
    scenarios().a_dead_member_is_replaced()


@pytest.mark.short
@pytest.mark.waits
def test_members_of_the_newer_protocol_share_partitions_anew():
    scenarios().partitions_are_shared_anew_when_members_join_and_leave(protocol="consumer")


@pytest.mark.waits
def test_a_killed_member_of_the_newer_protocol_is_replaced_when_its_session_is_over():
    scenarios().a_dead_member_is_replaced(protocol="consumer")


@pytest.mark.waits
def test_members_of_both_protocols_share_while_the_group_changes_its_kind():
    scenarios().members_of_both_protocols_share_while_the_group_changes_its_kind()


@pytest.mark.waits
def test_a_static_member_that_comes_back_causes_no_rebalance():
    scenarios().a_static_member_that_comes_back_causes_no_rebalance()


def member(topic, group, **settings):
    """A consumer that has its share."""
    reader = consumer(group_id=group, auto_offset_reset="earliest", session_timeout_ms=6000, heartbeat_interval_ms=200, **settings)
    assigned = threading.Event()
    reader.subscribe([topic], on_assign=lambda *_: assigned.set())
    deadline = time.monotonic() + 30 * checks.SLOWNESS
    while not assigned.is_set():
        assert time.monotonic() < deadline, "no share within 30 s"
        # Nothing is there yet, or what is there is read again from the committed offset.
        reader.poll(0.05)
    return reader


def test_commits_keep_offset_and_metadata_whether_they_wait_or_not():
    topic, group = new_topic(partitions=2), checks.unique("group")
    reader = member(topic, group)
    [before] = reader.committed([TopicPartition(topic, 0)], timeout=10)
    equal((before.error, before.offset), (None, OFFSET_INVALID), "nothing is committed yet")
    [done] = reader.commit(offsets=[TopicPartition(topic, 0, 4, "up to here, äöü")], asynchronous=False)
    equal((done.error, done.offset), (None, 4))
    told = []
    reader.close()
    reader = member(topic, group, on_commit=lambda error, offsets: told.append((error, [each.offset for each in offsets])))
    reader.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=True)
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while not told and time.monotonic() < deadline:
        reader.poll(0.05)
    equal(told, [(None, [7])])
    zero, one = reader.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
    equal((zero.offset, zero.metadata, one.offset, one.metadata), (4, "up to here, äöü", 7, None))
    reader.close()


@pytest.mark.short
def test_automatic_commits_let_the_next_member_go_on():
    topic, group = new_topic(), checks.unique("group")
    produce(topic, [{"value": b"%d" % number} for number in range(10)]).offsets()
    seen = []
    for expected in (list(range(10)), [10, 11]):
        reader = consumer(group_id=group, auto_offset_reset="earliest", enable_auto_commit=True)
        reader.subscribe([topic])
        seen, deadline = [], time.monotonic() + 30 * checks.SLOWNESS
        while len(seen) < len(expected) and time.monotonic() < deadline:
            seen += [int(message.value()) for message in reader.consume(100, 0.2)]
        equal(seen, expected)
        reader.close()
        produce(topic, [{"value": b"10"}, {"value": b"11"}]).offsets()


def test_the_commit_of_a_stale_generation_is_refused():
    topic, group = new_topic(), checks.unique("group")
    first = member(topic, group, group_instance_id="same")
    second = member(topic, group, group_instance_id="same")
    code = error_code(lambda: first.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False))
    # Its heartbeat may have told it before: then it says so of everything (_FATAL).
    refusals = KafkaError._FENCED, KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION
    assert code in refusals, code
    second.close()
    first.close()


def test_the_admin_client_describes_and_lists_groups():
    topic, group = new_topic(partitions=3), checks.unique("group")
    reader = member(topic, group, client_id="me", group_instance_id="instance")
    [answer] = admin().describe_consumer_groups([group], include_authorized_operations=True).values()
    described = answer.result(10)
    equal((described.state, described.type, described.partition_assignor), (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC, "range"))
    assert described.coordinator.id in range(1, checks.brokers() + 1), described.coordinator
    equal(described.is_simple_consumer_group, False)
    assert {operation.name for operation in described.authorized_operations} >= {"READ", "DELETE", "DESCRIBE"}, described.authorized_operations
    [one] = described.members
    equal((one.client_id, one.host, one.group_instance_id), ("me", "/127.0.0.1", "instance"))
    equal(sorted(partition.partition for partition in one.assignment.topic_partitions), [0, 1, 2])
    for states, is_listed in [({ConsumerGroupState.STABLE}, True), ({ConsumerGroupState.EMPTY}, False), (None, True)]:
        listed = admin().list_consumer_groups(**({"states": states} if states else {})).result(10)
        equal(listed.errors, [])
        equal(group in [each.group_id for each in listed.valid], is_listed, f"among those in {states}")
    reader.close()
    nobody = checks.unique("nobody")
    [answer] = admin().describe_consumer_groups([nobody]).values()
    equal(answer.result(10).state, ConsumerGroupState.DEAD, "librdkafka asks in a version without GROUP_ID_NOT_FOUND")


def test_the_admin_client_alters_lists_and_deletes_offsets_and_groups():
    topic, group = new_topic(partitions=2), checks.unique("group")
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3, "three"), TopicPartition(topic, 1, 4)])
    [answer] = admin().alter_consumer_group_offsets([wanted]).values()
    equal([each.error for each in answer.result(10).topic_partitions], [None, None])
    [answer] = admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    found = sorted((each.partition, each.offset, each.metadata) for each in answer.result(10).topic_partitions)
    equal([each[:2] for each in found], [(0, 3), (1, 4)])
    equal(found[0][2], "three")
    [answer] = admin().delete_consumer_groups([group]).values()
    equal(answer.result(10), None)
    [answer] = admin().delete_consumer_groups([group]).values()
    equal(error_code(lambda: answer.result(10)), KafkaError.GROUP_ID_NOT_FOUND)
    reader = member(topic, group)
    [answer] = admin().delete_consumer_groups([group]).values()
    equal(error_code(lambda: answer.result(10)), KafkaError.NON_EMPTY_GROUP)
    [answer] = admin().alter_consumer_group_offsets([wanted]).values()
    equal([each.error.code() for each in answer.result(10).topic_partitions], [KafkaError.UNKNOWN_MEMBER_ID] * 2)
    reader.close()


def test_topics_are_widened_and_reconfigured():
    topic = new_topic()
    admin().create_partitions([NewPartitions(topic, 3)])[topic].result(10)
    # A broker may learn of the new partitions a moment later, and a client that asks it takes them for missing.
    checks.eventually("a new partition takes a record", lambda: not produce(topic, [{"value": b"v"}], partition=2).errors, 30)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    [answer] = admin().describe_configs([resource]).values()
    equal(answer.result(10)["max.message.bytes"].value, "1048588")


def test_a_client_that_knows_only_old_versions_is_served():
    """As librdkafka speaks to Kafka 0.11, when it is told not to ask for versions; older brokers used requests that Kafka 4 refuses."""
    topic, group = new_topic(), checks.unique("group")
    old = {"api_version_request": False, "broker_version_fallback": "0.11.0.0"}
    equal(produce(topic, [{"value": b"old"}], **old).offsets(), [0])
    equal([message.value() for message in consume(topic, 1, **old)], [b"old"])
    reader = member(topic, group, **old)
    [done] = reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    equal((done.error, done.offset), (None, 1))
    reader.close()
