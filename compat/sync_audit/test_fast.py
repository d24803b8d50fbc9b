"""Audits the fast appends of a cluster of three, each node under an strace of its own.

A client that is written here sends each batch to both members of a stretch. So of every node there are batches that it holds,
and batches that it appended as their leader. `duramen produce --fast` appends to three replicas beside it. Then all nodes
end, and the same goes on with what they left. The syncs of one node are taken away there: the audit must find fault with every
fast answer of that node, and with nothing of the others.
"""

import collections
import json
import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from trace import events, strace, wait_for_end

import pytest

import calls
import checks
from audit import APPENDED, CELL, COMMITTED, HELD, LAYOUTS, UNCOUNTED, Audit, cells
from batch import batch
from broker import COMPAT, THREE, start_cluster
from checks import equal, eventually

pytestmark = pytest.mark.skipif(checks.broker_kind() == "kafka", reason="only Duramen has fast appends")

BINARY = os.environ.get("DURAMEN_BIN", str(COMPAT.parent / "target/release/duramen"))
# Two replicas each: both are members. Each node is the first of two, and the second of two.
PARTITIONS = 6
# How many batches of how many bytes a partition gets; a leader writes the last kind to a segment alone.
BATCHES = [(20, 200), (10, 3_000), (5, 40_000), (2, 800_000)]
# Batches under way to each member.
WINDOW = 4
LINES = [(200, 200), (40, 3_000), (10, 40_000)]
SOFTWARE = {"ClientSoftwareName": "duramen-audit", "ClientSoftwareVersion": "1"}
PATIENCE_S = 60


@dataclass
class Told:
    """What nodes said of batches, by node and outcome: how many answers, and of which messages."""

    answers: collections.Counter = field(default_factory=collections.Counter)
    messages: set = field(default_factory=set)


class FastProducer:
    """Sends batches to all members of a partition's stretch, and goes by the leader where one does not take a batch."""

    def __init__(self, addresses, topic, partition, told):
        self.addresses, self.topic, self.partition, self.told = addresses, topic, partition, told
        self.connections = {}
        self.sequence = 0
        with calls.connect(addresses[1]) as connection:
            self.topic_id = calls.topic_id(connection, topic)
            self.ids = calls.new_producer_id(connection)

    def connection(self, node):
        if node not in self.connections:
            self.connections[node] = calls.connect(self.addresses[node])
            answer = self.connections[node].call("ApiVersions", 4, SOFTWARE)
            listed = {it["ApiKey"] for it in answer["ApiKeys"]}
            assert {10001, 10002} <= listed, f"a client of ours is not told of fast appends: {listed}"
        return self.connections[node]

    def open(self):
        """Finds the stretch and its members, the leader first."""
        eventually("a stretch opens", self._has_opened, PATIENCE_S)

    def _has_opened(self):
        for node in self.addresses:
            topics = [{"TopicId": self.topic_id, "Partitions": [self.partition]}]
            answer = self.connection(node).call("DescribeFast", 0, {"Open": True, "Topics": topics})
            [said] = answer["Topics"][0]["Partitions"]
            if said["ErrorCode"] == 0 and len(said["Members"]) > 1:
                self.stretch = said["StretchTerm"], said["StretchIndex"]
                self.members = said["Members"]
                return True
        return False

    def send_all(self, first_id):
        """Sends every kind of batch; returns the id after the last message."""
        self.open()
        message_id = first_id
        for count, size in BATCHES:
            # Until so many were taken by both members.
            while count > 0:
                ids = range(message_id, message_id + min(count, WINDOW))
                message_id = ids.stop
                count -= self.send([(each, self.next_batch(each, size)) for each in ids])
        return message_id

    def next_batch(self, message_id, size):
        records = batch([cells(message_id, size)], producer_id=self.ids[0], epoch=self.ids[1], sequence=self.sequence)
        self.sequence += 1
        return self.sequence - 1, records

    def send(self, batches):
        """Sends these at once, and returns how many both members have taken. All are in the log then."""
        asked = [(node, message_id, sent, self.ask(node, sent)) for node in self.members for message_id, sent in batches]
        outcomes = collections.defaultdict(list)
        for node, message_id, (sequence, _), correlation_id in asked:
            outcomes[sequence].append(self.hear(node, message_id, correlation_id))
        taken = [outcomes[sequence] == [APPENDED] + [HELD] * (len(self.members) - 1) for _, (sequence, _) in batches]
        for (message_id, sent), was_taken in zip(batches, taken):
            self.commit(message_id, sent, by_ids=was_taken and message_id % 2 == 0)
        if not all(taken):
            self.open()
        return sum(taken)

    def ask(self, node, sent, wait=0):
        sequence, records = sent
        (producer_id, epoch), (term, index) = self.ids, self.stretch
        part = {
            "Index": self.partition,
            "StretchTerm": term,
            "StretchIndex": index,
            "ProducerId": producer_id,
            "ProducerEpoch": epoch,
            "FirstSequence": sequence,
            "LastSequence": sequence,
            "Records": records,
        }
        body = {"Wait": wait, "TimeoutMs": 10_000, "Topics": [{"TopicId": self.topic_id, "Partitions": [part]}]}
        return self.connection(node).send("AppendFast", 0, body)

    def hear(self, node, message_id, correlation_id):
        answer = self.connection(node).receive("AppendFast", 0, correlation_id, PATIENCE_S * checks.SLOWNESS)
        [said] = answer["Topics"][0]["Partitions"]
        if said["Outcome"]:
            self.told.answers[node, said["Outcome"]] += 1
            self.told.messages.add(message_id)
        return said["Outcome"]

    def commit(self, message_id, sent, by_ids=False):
        """Asks the leader for the commit until it is told, whoever leads."""
        if by_ids and self._is_told(self.members[0], message_id, (sent[0], None), 1):
            return
        eventually("a batch is committed", lambda: self._is_committed(message_id, sent), PATIENCE_S)

    def _is_committed(self, message_id, sent):
        if self._is_told(self.members[0], message_id, sent, 1):
            return True
        # Another may lead now.
        self._has_opened()
        return False

    def see_committed(self, message_id, sent):
        """Sends a batch that is committed to each member again, until each knows it."""
        for node in self.members:
            eventually(f"node {node} knows a commit", lambda node=node: self._is_told(node, message_id, sent, 0), PATIENCE_S)

    def _is_told(self, node, message_id, sent, wait):
        return self.hear(node, message_id, self.ask(node, sent, wait)) == COMMITTED

    def close(self):
        for connection in self.connections.values():
            connection.close()


def append_by_hand(cluster, topic, first_id):
    """Returns what the nodes said."""
    told = Told()
    addresses = {node: broker.bootstrap for node, broker in enumerate(cluster.brokers, 1)}
    message_id = first_id
    for partition in range(PARTITIONS):
        producer = FastProducer(addresses, topic, partition, told)
        message_id = producer.send_all(message_id)
        last = producer.next_batch(message_id, 400)
        producer.commit(message_id, last)
        producer.see_committed(message_id, last)
        producer.close()
        message_id += 1
    return told


def append_by_command(cluster, topic, first_id):
    """Returns the ids of the messages; each is a batch. On a busy machine members may be late for all of them: then once more."""
    message_id, fast = first_id, 0
    while not fast:
        sizes = [size for count, size in LINES for _ in range(count)]
        random.Random(message_id).shuffle(sizes)
        lines = [cells(each, size) for each, size in enumerate(sizes, message_id)]
        message_id += len(lines)
        command = [BINARY, "produce", topic, "--fast", "--each", "--batch-bytes", "1", "--quiet", "--bootstrap", cluster.bootstrap]
        done = subprocess.run(command, input=b"\n".join(lines) + b"\n", capture_output=True, timeout=PATIENCE_S * 2 * checks.SLOWNESS)
        equal(done.returncode, 0, done.stderr.decode())
        told = [json.loads(line) for line in done.stdout.splitlines()]
        equal([line["records"] for line in told], [1] * len(lines), "records that were acknowledged")
        fast = sum(line["offset"] is None for line in told)
        print(f"{fast} of {len(told)} batches of the command were done in one round trip")
    return set(range(first_id, message_id))


def new_topic(cluster, replicas):
    with calls.connect(cluster.bootstrap.split(",")[0]) as connection:
        name = checks.unique("fast")
        configs = {"fast.append.enable": "true", "min.insync.replicas": "2"}
        created = calls.create_topic(connection, name, PARTITIONS, configs, ReplicationFactor=replicas)
        equal(created["ErrorCode"], 0, f"creating {name}")
        calls.wait_for_leaders(connection, name, PARTITIONS)
    return name


def append(cluster, first_id):
    """Appends in both ways; returns what the nodes said to the client here, and the messages of the command."""
    told = append_by_hand(cluster, new_topic(cluster, 2), first_id)
    return told, append_by_command(cluster, new_topic(cluster, THREE), first_id + 500_000)


def read(broker, trace, existing):
    wait_for_end(trace)
    with open(trace) as lines:
        return Audit(events(lines), broker.data_dir, broker.port, LAYOUTS["duramen"], existing)


def below(directory):
    return {str(path) for path in [directory, *directory.rglob("*")]} if directory.exists() else set()


def messages_of(acks, outcomes):
    """The messages of the answers with such an outcome; 0 stands for those of Produce."""
    chosen = [ack for ack in acks if ack.is_batch and ack.outcome in outcomes]
    return {int(CELL.match(needle)[1], 16) for ack in chosen for needle in ack.needles}


def audited(cluster, traces, existing, told, commanded):
    """Ends the nodes. Returns of each the acknowledgements, and what is wrong with them."""
    # In good order: so strace sees the end of each send.
    for broker in cluster.brokers:
        broker.stop(PATIENCE_S * checks.SLOWNESS)
    audits = [read(*each) for each in zip(cluster.brokers, traces, existing)]
    batches = {ids: batch for audit in audits for ids, batch in audit.fast_batches().items()}
    acks = [audit.acks(batches) for audit in audits]
    wrong = [audit.violations(of_node) for audit, of_node in zip(audits, acks)]
    counts = collections.Counter((node, ack.outcome) for node, of_node in enumerate(acks, 1) for ack in of_node if ack.outcome)
    openings = [sum(ack.is_opening for ack in of_node) for of_node in acks]
    large = [sum(audit.is_in_bulk_only(ack) for ack in of_node if ack.outcome == APPENDED) for audit, of_node in zip(audits, acks)]
    sizes = [f"{trace.stat().st_size / 1e6:.0f}" for trace in traces]
    print(f"answers by node and outcome: {dict(counts)}, stretches named: {openings}, appended to segments alone: {large}, traces of {sizes} MB")
    # What the audit did not see it cannot find fault with.
    for key, count in told.answers.items():
        assert counts[key] >= count, f"node {key[0]} gave {count} answers with outcome {key[1]}, the audit saw {counts[key]}"
    for node in range(1, THREE + 1):
        for outcome in (HELD, APPENDED, COMMITTED):
            assert told.answers[node, outcome], f"node {node} gave no answer with outcome {outcome}"
        assert openings[node - 1], f"node {node} named no stretch"
        assert large[node - 1], f"node {node} appended nothing to a segment alone"
    together = [ack for of_node in acks for ack in of_node]
    assert told.messages <= messages_of(together, {HELD, APPENDED, COMMITTED, UNCOUNTED})
    fast = messages_of(together, {HELD}) & messages_of(together, {APPENDED})
    done = fast | messages_of(together, {0, COMMITTED})
    assert commanded <= done, f"{len(commanded - done)} batches of the command were acknowledged, and no answers make it so"
    assert commanded & fast, "no batch of the command was done in one round trip"
    return acks, wrong


@pytest.mark.timeout(400 * checks.SLOWNESS)
def test_every_fast_append_was_synced_by_the_node_that_says_so():
    directory = Path(tempfile.mkdtemp(prefix="duramen-audit-"))
    traces = [[directory / f"trace-{phase}-{node}" for node in range(1, THREE + 1)] for phase in (1, 2)]
    nodes = [directory / f"node-{node}" for node in range(1, THREE + 1)]
    existing = [below(node) for node in nodes]
    with start_cluster("duramen", directory, wrappers=[strace(trace) for trace in traces[0]]) as cluster:
        _, wrong = audited(cluster, traces[0], existing, *append(cluster, 1_000_000))
        equal(wrong, [[], [], []], f"the traces are kept in {directory}")
        # The same again, and one node is told of syncs that do not happen.
        existing = [below(node) for node in nodes]
        liar = random.randrange(THREE)
        for at, (broker, trace) in enumerate(zip(cluster.brokers, traces[1])):
            broker.wrapper = strace(trace, syncs_taken_away=at == liar)
        cluster.restart()
        acks, wrong = audited(cluster, traces[1], existing, *append(cluster, 2_000_000))
    judged = [ack for ack in acks[liar] if ack.outcome or ack.is_opening]
    found = [problem for problem in wrong[liar] if any(problem.startswith(ack.what) for ack in judged)]
    print(f"node {liar + 1} does not sync: {len(found)} of {len(judged)} answers are wrong, such as: {found[0] if found else None}")
    equal(len(found), len(judged), f"fast answers of a node that does not sync (traces in {directory})")
    equal([problems for at, problems in enumerate(wrong) if at != liar], [[], []], f"the traces are kept in {directory}")
    shutil.rmtree(directory)
