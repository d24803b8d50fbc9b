"""The topic `__access_log`, read as its readers read it: by a consumer, as JSON of the Open Cybersecurity Schema Framework 1.1.0."""

import json

import pytest
from confluent_kafka import Consumer, TopicPartition

import calls
import tools
from batch import batch
from checks import equal, eventually, unique
from logins import only_duramen
from rules import ADA, TOPIC_AUTHORIZATION_FAILED, allow

pytestmark = only_duramen

TOPIC = "__access_log"
INVALID_TOPIC = 17

# What the schema requires of the class and of the objects in it, and the types of what Duramen adds.
REQUIRED = {
    "activity_id": int,
    "category_uid": int,
    "class_uid": int,
    "type_uid": int,
    "severity_id": int,
    "time": int,
    "metadata": {"version": str, "product": {"vendor_name": str, "name": str, "version": str}},
    "actor": {"user": {"name": str, "uid": str}},
    "api": {"operation": str, "service": {"name": str}},
    "src_endpoint": {"ip": str},
    "status_id": int,
    "resources": list,
}


def check(shape, value, path="record"):
    if not isinstance(shape, dict):
        assert type(value) is shape, f"{path} is {value!r}"
        return
    for name, inner in shape.items():
        assert name in value, f"{path} has no {name}: {value}"
        check(inner, value[name], f"{path}.{name}")


def read(broker):
    """All records that are there."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": unique("reader"), "enable.auto.commit": False})
    try:
        partition = TopicPartition(TOPIC, 0, 0)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition, timeout=10)
        records = []
        while len(records) < end:
            message = consumer.poll(10)
            assert message is not None and message.error() is None, message and message.error()
            records.append(json.loads(message.value()))
        return records
    finally:
        consumer.close()


@pytest.fixture
def kept(guarded):
    """A broker that keeps the topic, and no more afterwards."""
    def turn(*change):
        where = ["--bootstrap-server", guarded.broker.bootstrap, "--entity-type", "brokers", "--entity-default"]
        done = tools.run("kafka-configs", *where, "--alter", *change)
        equal(done.code, 0, str(done))

    turn("--add-config", "access.log.topic.enable=true")
    yield guarded
    turn("--delete-config", "access.log.topic.enable")


def test_denials_and_changes_are_records_of_a_topic(kept):
    secret = kept.new_topic()
    kept.rule()
    equal(calls.produce(kept.ada, secret, batch([b"value"]))["ErrorCode"], TOPIC_AUTHORIZATION_FAILED)

    def found():
        if calls.describe_topic(kept.admin, TOPIC)["ErrorCode"] != 0:
            return []
        return [it for it in read(kept.broker) if it["resources"][0]["name"] == secret]

    eventually("both are there", lambda: len(found()) >= 2)
    for record in read(kept.broker):
        check(REQUIRED, record)
        equal(record["class_uid"], 6003)
        equal(record["type_uid"], 600300 + record["activity_id"])
    made, denied = found()[0], found()[-1]
    equal((made["message"], made["actor"]["user"]["name"], made["activity_id"]), ("topic made", "ANONYMOUS", 1))
    equal((denied["message"], denied["actor"]["user"]["name"]), ("denied", ADA))
    equal((denied["api"]["operation"], denied["unmapped"]["access_operation"]), ("Produce", "Write"))
    equal((denied["activity_id"], denied["status_id"]), (3, 2))
    equal(denied["actor"]["authorizations"], [{"decision": "denied"}])


def test_only_nodes_write_the_topic(kept):
    kept.new_topic()
    eventually("the topic is there", lambda: calls.describe_topic(kept.admin, TOPIC)["ErrorCode"] == 0)
    equal(calls.produce(kept.admin, TOPIC, batch([b"forged"]))["ErrorCode"], INVALID_TOPIC)
    kept.rule(allow("Topic", "All", TOPIC))
    equal(calls.produce(kept.ada, TOPIC, batch([b"forged"]))["ErrorCode"], INVALID_TOPIC)
    assert all(it["metadata"]["product"]["name"] == "Duramen" for it in read(kept.broker))
