"""Kafka's own tools against three brokers that are one cluster."""

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

import checks
from broker import start_cluster
from checks import equal
from console import contains, produce, tool

NODES = ["1", "2", "3"]
QUORUM = ["NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    kind = checks.broker_kind()
    directory = Path(tempfile.mkdtemp(prefix=f"duramen-cluster-tools-{kind}-"))
    print(f"the data and the brokers' logs are in {directory}")
    with start_cluster(kind, directory) as cluster:
        os.environ["BOOTSTRAP"] = cluster.bootstrap
        yield cluster
    shutil.rmtree(directory)


def topic_on(assignment):
    name = checks.unique("moved")
    tool("kafka-topics", "--create", "--topic", name, "--replica-assignment", assignment)
    return name


def plan(topic, *placements):
    """The file that says where the partitions of a topic are to be."""
    rows = [{"topic": topic, "partition": number, "replicas": nodes} for number, nodes in enumerate(placements)]
    path = Path(tempfile.gettempdir()) / f"{topic}.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return path


def reassign(*arguments):
    return tool("kafka-reassign-partitions", *arguments)


def placed(topic):
    described = tool("kafka-topics", "--describe", "--topic", topic)
    return re.findall(r"Replicas: (\S+)", described)


def consumed(topic, count):
    said = tool("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", count, "--timeout-ms", 20_000)
    return sorted(line for line in said.splitlines() if line.startswith("line "))


def test_kafka_reassign_partitions_moves_partitions_and_changes_their_replicas():
    topic = topic_on("1,2")
    lines = [f"line {number:03}" for number in range(200)]
    produce(topic, lines)
    there = plan(topic, [2, 3], [3, 1, 2])
    contains(reassign("--reassignment-json-file", there, "--execute"), "Successfully started partition reassignments for")
    verify = lambda: reassign("--reassignment-json-file", there, "--verify", "--preserve-throttles")  # noqa: E731
    checks.eventually("both have moved", lambda: verify().count("is completed.") == 2, timeout_s=40)
    equal(placed(topic), ["2,3", "3,1,2"])
    contains(reassign("--list"), "No partition reassignments found.")
    produce(topic, lines)
    equal(consumed(topic, 400), sorted(lines + lines))
    fewer = plan(topic, [3], [3])
    reassign("--reassignment-json-file", fewer, "--execute")
    checks.eventually("there are fewer replicas", lambda: placed(topic) == ["3", "3"], timeout_s=40)
    equal(consumed(topic, 400), sorted(lines + lines))


def test_kafka_reassign_partitions_proposes_a_placement_on_the_nodes_that_are_named():
    topic = topic_on("1,1,1,1")
    topics = plan(topic)
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    said = reassign("--topics-to-move-json-file", topics, "--broker-list", "2,3", "--generate")
    proposed = json.loads(said.splitlines()[-1])
    nodes = sorted(row["replicas"] for row in proposed["partitions"])
    equal(nodes, [[2], [2], [3], [3]])


def test_kafka_reassign_partitions_takes_back_what_is_not_under_way():
    topic = topic_on("1")
    contains(reassign("--reassignment-json-file", plan(topic, [2]), "--cancel", "--preserve-throttles"), "None of the specified partition reassignments are active.")


def test_kafka_metadata_quorum_tells_the_same_whichever_node_is_asked():
    leaders, epochs = set(), set()
    for address in checks.bootstrap().split(","):
        status = tool_at(address, "describe", "--status")
        told = dict(line.split(":", 1) for line in status.splitlines())
        leaders.add(told["LeaderId"].strip())
        epochs.add(told["LeaderEpoch"].strip())
        voters = told["CurrentVoters"]
        equal(sorted(set(re.findall(r'"id": (\d+)', voters)) or set(re.findall(r"\d+", voters))), NODES)
        header, *rows = (line.split() for line in tool_at(address, "describe", "--replication").splitlines())
        equal(header, QUORUM)
        equal(sorted(row[0] for row in rows), NODES)
        equal(sorted(row[-1] for row in rows), ["Follower", "Follower", "Leader"])
        assert all(int(row[2]) > 0 and 0 <= int(row[3]) < 1000 for row in rows), rows
    equal((len(leaders), len(epochs)), (1, 1), "one leader, one epoch")


def test_kafka_topics_tells_the_same_of_a_dead_broker_whichever_node_is_asked(cluster):
    topic = topic_on("1:2:3,2:3:1,3:1:2,1:3:2,2:1:3,3:2:1")
    produce(topic, ["line"])
    under_replicated = lambda address: sorted(told(address, "--under-replicated-partitions", topic))  # noqa: E731
    for broker in cluster.brokers:
        equal(under_replicated(broker.bootstrap), [])
    *alive, dead = cluster.brokers
    dead.kill9()
    try:
        expected = [(partition, "1,2") for partition in range(6)]
        for broker in alive:
            checks.eventually("all lack the dead one", lambda: under_replicated(broker.bootstrap) == expected, timeout_s=60)  # noqa: B023
            equal([leader for leader in leaders(broker.bootstrap, topic) if leader not in ("1", "2")], [])
    finally:
        dead.restart()
    for broker in cluster.brokers:
        checks.eventually("none lacks any", lambda: under_replicated(broker.bootstrap) == [], timeout_s=60)  # noqa: B023


def told(address, option, topic):
    """Partitions and which replicas are in sync, by one node's word."""
    said = run("kafka-topics", "--bootstrap-server", address, "--describe", option, "--topic", topic)
    rows = re.findall(r"Partition: (\d+)\s.*?Isr: ([\d,]*)", said)
    return [(int(partition), ",".join(sorted(in_sync.split(",")))) for partition, in_sync in rows]


def leaders(address, topic):
    return re.findall(r"Leader: (\S+)", run("kafka-topics", "--bootstrap-server", address, "--describe", "--topic", topic))


def tool_at(address, *arguments):
    return run("kafka-metadata-quorum", "--bootstrap-server", address, *arguments)


def run(name, *arguments):
    import tools

    done = tools.run(name, *arguments)
    assert done.code == 0, f"{done.what}: {done}"
    return done.out
