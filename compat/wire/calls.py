"""The requests that most tests need, in one line each."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import checks
import golden
from batch import batches
from connection import Connection

NOT_LEADER_OR_FOLLOWER = 6
COORDINATOR_LOAD_IN_PROGRESS = 14
# A kind of resources that have settings.
GROUP = 32
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3

# The newest versions that name topics instead of giving their ids.
PRODUCE_BY_NAME, FETCH_BY_NAME = 12, 12

def connect(bootstrap=None):
    """To a broker; where several are one cluster, to the first of them."""
    return Connection(bootstrap or checks.open_bootstrap().split(",")[0])


def connect_to_leader(topic, partition=0):
    with connect() as connection:
        answer = connection.call("Metadata", 12, {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False})
    [leader] = [it["LeaderId"] for it in answer["Topics"][0]["Partitions"] if it["PartitionIndex"] == partition]
    [address] = [f"{it['Host']}:{it['Port']}" for it in answer["Brokers"] if it["NodeId"] == leader]
    return connect(address)


def new_topic(connection, partitions=1, **configs):
    """Creates a topic, waits until the broker serves it, and returns its name."""
    name = checks.unique("wire")
    equal = checks.equal
    with golden.unrecorded():
        equal(create_topic(connection, name, partitions, configs, ReplicationFactor=-1)["ErrorCode"], 0, f"creating {name}")
        wait_for_leaders(connection, name, partitions)
    return name


def new_topic_for_groups(connection, partitions=1):
    """As above; and who coordinates groups knows it, too. In Kafka nothing tells when that has heard of it, which is a little later."""
    name = new_topic(connection, partitions)
    time.sleep(0.3 if checks.broker_kind() == "kafka" else 0)
    return name


def create_topic(connection, name, partitions=1, configs=None, version=7, **fields):
    topic = {
        "Name": name,
        "NumPartitions": partitions,
        "ReplicationFactor": 1,
        "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in (configs or {}).items()],
        **fields,
    }
    return connection.call("CreateTopics", version, {"Topics": [topic], "timeoutMs": 10_000})["Topics"][0]


def configure_group(connection, group, **configs):
    """What a group has for itself; the underscores of names stand for dots."""
    entries = [{"Name": name.replace("_", "."), "ConfigOperation": 0, "Value": value} for name, value in configs.items()]
    resource = {"ResourceType": GROUP, "ResourceName": group, "Configs": entries}
    return connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource]})["Responses"][0]


def wait_for_leaders(connection, name, partitions):
    """Kafka's broker learns of a topic a moment after its controller has answered the creation."""
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    with golden.unrecorded():
        while time.monotonic() < deadline:
            metadata = metadata_of(connection, name)
            [topic] = metadata["Topics"]
            if len(topic["Partitions"]) == partitions and all(p["LeaderId"] >= 0 for p in topic["Partitions"]):
                # A partition that is listed may still be opening its log. Others of a cluster are not asked.
                served = (0, NOT_LEADER_OR_FOLLOWER) if len(metadata["Brokers"]) > 1 else (0,)
                if all(list_offset(connection, name, LATEST, p)["ErrorCode"] in served for p in range(partitions)):
                    return
            time.sleep(0.02)
    raise AssertionError(f"{name} has no leaders after 10 s: {topic}")


def metadata_of(connection, name, version=12):
    return connection.call("Metadata", version, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": False})


def describe_topic(connection, name, version=12):
    return metadata_of(connection, name, version)["Topics"][0]


def topic_id(connection, name):
    return describe_topic(connection, name)["TopicId"]


def produce_body(topic, records, partition=0, acks=-1, transactional_id=None):
    """`topic` is a name, or a topic id for version 13."""
    return {
        "TransactionalId": transactional_id,
        "Acks": acks,
        "TimeoutMs": 10_000,
        "TopicData": [{**_named(topic, "Name"), "PartitionData": [{"Index": partition, "Records": records}]}],
    }


def produce(connection, topic, records, partition=0, version=None, **fields):
    version = version or (13 if _is_id(topic) else PRODUCE_BY_NAME)
    response = connection.call("Produce", version, produce_body(topic, records, partition, **fields))
    return response["Responses"][0]["PartitionResponses"][0]


def fetch_body(partitions, max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, partition_max_bytes=10 << 20, **fields):
    """`partitions` are (topic, partition, offset), or with a fourth element of more fields."""
    topics = {}
    for topic, partition, offset, *more in partitions:
        entry = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": partition_max_bytes}
        topics.setdefault(topic, []).append({**entry, **(more[0] if more else {})})
    return {
        "MaxWaitMs": max_wait_ms,
        "MinBytes": min_bytes,
        "MaxBytes": max_bytes,
        "Topics": [{**_named(topic, "Topic"), "Partitions": entries} for topic, entries in topics.items()],
        **fields,
    }


def fetch(connection, topic, offset=0, partition=0, version=None, **fields):
    """Fetches one partition outside any session."""
    version = version or (18 if _is_id(topic) else FETCH_BY_NAME)
    response = connection.call("Fetch", version, fetch_body([(topic, partition, offset)], **fields))
    return response["Responses"][0]["Partitions"][0]


def fetched_values(connection, topic, offset=0, partition=0):
    answer = fetch(connection, topic, offset, partition)
    checks.equal(answer["ErrorCode"], 0, "fetching")
    return [value for batch in batches(answer["Records"]) for value in batch.values()]


def list_offset(connection, topic, timestamp, partition=0, version=11, **fields):
    entry = {"PartitionIndex": partition, "Timestamp": timestamp, **fields}
    body = {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": [entry]}]}
    return connection.call("ListOffsets", version, body)["Topics"][0]["Partitions"][0]


def delete_records(connection, topic, offset, partition=0, version=2):
    entry = {"PartitionIndex": partition, "Offset": offset}
    body = {"Topics": [{"Name": topic, "Partitions": [entry]}], "TimeoutMs": 10_000}
    return connection.call("DeleteRecords", version, body)["Topics"][0]["Partitions"][0]


def init_producer_id(connection, version=5, **fields):
    """Kafka answers COORDINATOR_LOAD_IN_PROGRESS while it fetches its first block of ids; clients try again, so do we."""
    body = {"TransactionalId": None, "TransactionTimeoutMs": 60_000, **fields}
    for _ in range(100):
        answer = connection.call("InitProducerId", version, body)
        if answer["ErrorCode"] != COORDINATOR_LOAD_IN_PROGRESS:
            break
        golden.ask_again(0.05)
    return answer


def new_producer_id(connection):
    answer = init_producer_id(connection)
    checks.equal(answer["ErrorCode"], 0, "InitProducerId")
    return answer["ProducerId"], answer["ProducerEpoch"]


def _is_id(topic):
    return len(topic) == 36 and topic.count("-") == 4


def _named(topic, field):
    return {"TopicId": topic} if _is_id(topic) else {field: topic}
