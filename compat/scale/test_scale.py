"""Many partitions on one node, and topics that come and go."""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

KIND = os.environ["BROKER_KIND"]

import calls
from batch import batch
from broker import free_port, start
from checks import equal, eventually
from transactional import Transactional, until_settled

# Retention looks all the time, so that it is at work beside all that is done here.
SETTINGS = {"log.retention.check.interval.ms": "200", "transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
TOPICS, PARTITIONS = 10, 1000
ROUNDS, PARTITIONS_OF_A_ROUND = 20, 50
# What the journal and the logs of coordinators may still grow by.
SLACK_BYTES = 16 << 20


class Node:
    """A broker of its own, whose directory is gone afterwards."""

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="duramen-scale-"))
        self.broker = start(KIND, free_port(), self.directory / "data", SETTINGS)
        return self

    def __exit__(self, failure, *_):
        self.broker.stop()
        if failure is None:
            shutil.rmtree(self.directory)

    def connect(self):
        return calls.connect(self.broker.bootstrap)

    def directories_of(self, prefix):
        return [name for _, directories, _ in os.walk(self.broker.data_dir) for name in directories if name.startswith(prefix)]

    def open_files(self):
        return len(os.listdir(f"/proc/{self.broker.pid}/fd"))

    def resident_mib(self):
        pages = int(Path(f"/proc/{self.broker.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20

    def bytes_on_disk(self):
        blocks = 0
        for folder, _, names in os.walk(self.broker.data_dir):
            for name in names:
                with suppress(FileNotFoundError):  # Removed meanwhile.
                    blocks += os.stat(os.path.join(folder, name)).st_blocks
        return blocks * 512


def create(connection, topic, partitions, **configs):
    equal(calls.create_topic(connection, topic, partitions, configs)["ErrorCode"], 0, f"creating {topic}")


def produce_to_each(connection, topic, partitions, values):
    """One request with a batch for each partition."""
    records = batch(values, timestamp=int(time.time() * 1000))
    entries = [{"Index": index, "Records": records} for index in range(partitions)]
    body = {"TransactionalId": None, "Acks": -1, "TimeoutMs": 60_000, "TopicData": [{"Name": topic, "PartitionData": entries}]}
    [answer] = connection.call("Produce", calls.PRODUCE_BY_NAME, body)["Responses"]
    equal({part["ErrorCode"] for part in answer["PartitionResponses"]}, {0}, f"producing to {topic}")


def delete(connection, topic):
    body = {"Topics": [{"Name": topic}], "TimeoutMs": 60_000}
    equal(connection.call("DeleteTopics", 6, body)["Responses"][0]["ErrorCode"], 0, f"deleting {topic}")


def keep_for(connection, topic, milliseconds):
    config = {"Name": "retention.ms", "ConfigOperation": 0, "Value": str(milliseconds)}
    body = {"Resources": [{"ResourceType": 2, "ResourceName": topic, "Configs": [config]}], "ValidateOnly": False}
    equal(connection.call("IncrementalAlterConfigs", 1, body)["Responses"][0]["ErrorCode"], 0, f"settings of {topic}")


def commit(connection, group, topic):
    """Keeps a position of a group in each partition."""
    partitions = [{"PartitionIndex": index, "CommittedOffset": 3, "CommittedMetadata": ""} for index in range(PARTITIONS_OF_A_ROUND)]
    body = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [{"Name": topic, "Partitions": partitions}]}
    answer = until_settled(lambda: connection.call("OffsetCommit", 9, body)["Topics"][0]["Partitions"][0])
    equal(answer["ErrorCode"], 0, f"positions of {group}")


def committed(connection, group):
    """Topics in which a group has positions."""
    body = {"Groups": [{"GroupId": group, "MemberId": None, "MemberEpoch": -1, "Topics": None}], "RequireStable": False}
    return [topic["Name"] for topic in connection.call("OffsetFetch", 9, body)["Groups"][0]["Topics"]]


def offsets(connection, topic, partitions, timestamp):
    """The offsets that all partitions have; an error shows as itself."""
    entries = [{"PartitionIndex": index, "Timestamp": timestamp} for index in range(partitions)]
    [answer] = connection.call("ListOffsets", 11, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": entries}]})["Topics"]
    return {(part["ErrorCode"], part["Offset"]) for part in answer["Partitions"]}


def test_ten_thousand_partitions_are_written_trimmed_by_age_and_there_after_a_kill():
    topics = [f"many-{number}" for number in range(TOPICS)]
    with Node() as node:
        with node.connect() as connection:
            for topic in topics:
                create(connection, topic, PARTITIONS, retention_ms="600000")
            for topic in topics:
                produce_to_each(connection, topic, PARTITIONS, [b"first", b"second"])
            for topic in topics:
                keep_for(connection, topic, 1)
            for topic in topics:
                eventually(f"all of {topic} is too old", lambda: offsets(connection, topic, PARTITIONS, calls.EARLIEST) == {(0, 2)}, 60)
                keep_for(connection, topic, 600_000)
            for topic in topics:
                produce_to_each(connection, topic, PARTITIONS, [b"third"])
        print(f"# {node.resident_mib()} MiB, {node.open_files()} open files")
        node.broker.kill9()
        node.broker.restart()
        with node.connect() as connection:
            for topic in topics:
                equal(offsets(connection, topic, PARTITIONS, calls.EARLIEST), {(0, 2)}, topic)
                equal(offsets(connection, topic, PARTITIONS, calls.LATEST), {(0, 3)}, topic)
                equal(calls.fetched_values(connection, topic, offset=2, partition=PARTITIONS - 1), [b"third"], topic)
            for topic in topics:
                produce_to_each(connection, topic, PARTITIONS, [b"fourth"])
            for topic in topics:
                delete(connection, topic)
        eventually("directories are gone", lambda: not node.directories_of("many-"), 60)


def go_round(node, connection, number):
    """A topic is made, filled in every way that leaves something somewhere, and deleted."""
    topic, group = f"passing-{number}", f"group-{number}"
    create(connection, topic, PARTITIONS_OF_A_ROUND)
    for _ in range(3):
        produce_to_each(connection, topic, PARTITIONS_OF_A_ROUND, [bytes(1000)] * 20)
    producer = Transactional(connection).init()
    for commits in (True, False):
        producer.send(topic, [b"in a transaction"])
        producer.finish(commits)
    commit(connection, group, topic)
    delete(connection, topic)
    eventually("its directories are gone", lambda: not node.directories_of(topic), 20)


def test_topics_that_are_made_filled_and_deleted_leave_nothing_behind():
    with Node() as node:
        with node.connect() as connection:
            for kind in (0, 1):
                find = {"KeyType": kind, "CoordinatorKeys": ["any"]}
                equal(until_settled(lambda: connection.call("FindCoordinator", 6, find)["Coordinators"][0])["ErrorCode"], 0)
            for number in range(3):
                go_round(node, connection, number)
            files, size, memory = node.open_files(), node.bytes_on_disk(), node.resident_mib()
            for number in range(3, 3 + ROUNDS):
                go_round(node, connection, number)
            written = ROUNDS * PARTITIONS_OF_A_ROUND * 3 * 20_000
            print(f"# files {files} -> {node.open_files()}, bytes {size} -> {node.bytes_on_disk()}, MiB {memory} -> {node.resident_mib()}")
            assert written > 2 * SLACK_BYTES, "what stayed behind would not be seen"
            eventually("open files are closed", lambda: node.open_files() <= files + 2)
            assert node.bytes_on_disk() - size < SLACK_BYTES
            assert node.resident_mib() < memory + 32
            equal(committed(connection, "group-3"), [], "positions in a topic that is gone")
        node.broker.kill9()
        node.broker.restart()
        with node.connect() as connection:
            topics = [topic["Name"] for topic in connection.call("Metadata", 12, {"Topics": None})["Topics"]]
            equal([name for name in topics if not name.startswith("__")], [])
        equal(node.directories_of("passing-"), [])
