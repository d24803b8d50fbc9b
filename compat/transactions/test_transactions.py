"""Transactional loops of three clients while brokers are killed, and the loops too.

A loop is a process: PROGRAM BOOTSTRAP SOURCE TARGET GROUP ID. It reads the numbers in its source, a few at once, and by one
transaction writes each as `NUMBER ATTEMPT` into both partitions of its target, and commits its offset; every fifth attempt it
aborts, and goes back. It prints `committed ATTEMPT NEXT` or `aborted ATTEMPT` when it was told so, and ends when its input
ends. When it knows no more it ends with an error, and another one goes on from what is committed. SEED repeats the kills.
"""

import os
import sys
import threading
import time
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import checks
from broker import free_port, start, start_cluster
from checks import equal
from judge import judge
from killing import PATIENCE_S, Followed, in_directory, java, output, work_and_die

KIND = os.environ["BROKER_KIND"]
pytestmark = pytest.mark.timeout(120 * checks.SLOWNESS)
NUMBERS = 40_000
TARGET_PARTITIONS = 2
# Of kills on one node, and of one of three.
SECONDS = {"duramen": (12, 12), "kafka": (8, 8)}[KIND]
ALIVE_S = (0.3, 3.0)
LOOP_KILL_CHANCE = 0.3
# Kafka waits for the session of a killed broker to end, and makes fifty partitions of each internal topic.
SETTINGS = {
    "duramen": {},
    "kafka": {
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
        "transaction.state.log.num.partitions": "3",
        "offsets.topic.num.partitions": "3",
    },
}[KIND]


def programs():
    return {
        "java": [*java("-Xmx256m"), "TransactionalLoop"],
        "confluent-kafka": [sys.executable, str(COMPAT / "transactions/confluent_loop.py")],
        "franz-go": [output("franz-go/build.sh") + "loop"],
    }


class Loop(Followed):
    def __init__(self, client, command, bootstrap, directory):
        self.bootstrap = bootstrap
        self.source, self.target, self.group = (checks.unique(f"{client}-{what}") for what in ("source", "target", "group"))
        super().__init__(client, [*command, bootstrap, self.source, self.target, self.group, f"{self.group}-id"], directory)

    def told(self):
        # A killed process may have written half a line.
        lines = [line.split() for line in self.told_path.read_text().splitlines()]
        whole = [line for line in lines if line[0:1] == ["committed"] and len(line) == 3 or line[0:1] == ["aborted"] and len(line) == 2]
        return [(outcome, attempt, *map(int, after)) for outcome, attempt, *after in whole]

    def committed(self):
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        [committed] = consumer.committed([TopicPartition(self.source, 0)], PATIENCE_S)
        consumer.close()
        return max(committed.offset, 0)


class Reader:
    """Reads what is committed in both partitions of a target, as it comes."""

    def __init__(self, bootstrap, target):
        self.values = [[] for _ in range(TARGET_PARTITIONS)]
        self.positions = [0] * TARGET_PARTITIONS
        self.consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "assigned-only", "enable.auto.commit": False, "isolation.level": "read_committed",
            "auto.offset.reset": "error", "fetch.wait.max.ms": 100, "reconnect.backoff.max.ms": 300, "log_level": 0,
        })  # fmt: skip
        self.partitions = [TopicPartition(target, partition, 0) for partition in range(TARGET_PARTITIONS)]
        self.consumer.assign(self.partitions)

    def read(self):
        for message in self.consumer.consume(500, timeout=0.2):
            if not message.error():
                self.values[message.partition()].append(message.value().decode())

    def read_all(self):
        """Up to the last stable offsets of now."""
        ends = [self.consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)[1] for partition in self.partitions]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            positions = [position.offset for position in self.consumer.position(self.partitions)]
            # Markers at the end are passed over, but not counted until the next record.
            last = all(end - position <= 1 for position, end in zip(positions, ends))
            count = [len(values) for values in self.values]
            self.read()
            if last and count == [len(values) for values in self.values]:
                return self.values
            assert time.monotonic() < deadline, f"it was read up to {positions}, the last stable offsets are {ends}"


class Watcher(threading.Thread):
    """Reads along: what was once shown must stay."""

    def __init__(self, bootstrap, targets):
        super().__init__(daemon=True)
        self.readers = [Reader(bootstrap, target) for target in targets]
        self.is_stopped = threading.Event()
        self.start()

    def run(self):
        while not self.is_stopped.is_set():
            for reader in self.readers:
                reader.read()

    def stop(self):
        self.is_stopped.set()
        self.join()
        return [reader.values for reader in self.readers]


def prepare(bootstrap, loops, replicas):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(loop.source, 1, replicas) for loop in loops] + [NewTopic(loop.target, TARGET_PARTITIONS, replicas) for loop in loops]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": 4 * NUMBERS})
    for number in range(NUMBERS):
        for loop in loops:
            producer.produce(loop.source, value=str(number), partition=0)
    equal(producer.flush(PATIENCE_S), 0, "numbers not yet written")


def go_through(brokers, bootstrap, replicas, seconds, directory):
    loops = [Loop(client, command, bootstrap, directory) for client, command in programs().items()]
    prepare(bootstrap, loops, replicas)
    watcher = Watcher(bootstrap, [loop.target for loop in loops])
    work_and_die(brokers, loops, seconds, ALIVE_S, LOOP_KILL_CHANCE, more=3)
    codes = {loop.client: loop.finish() for loop in loops}
    shown = watcher.stop()
    wrong = [f"{client} ended with {code}" for client, code in codes.items() if code != 0]
    for loop, seen in zip(loops, shown):
        offset = loop.committed()
        told = loop.told()
        wrong += [f"{loop.client}: {sentence}" for sentence in judge(told, Reader(bootstrap, loop.target).read_all(), seen, offset)]
        aborted = sum(outcome == "aborted" for outcome, *_ in told)
        print(f"{loop.client}: {offset} numbers, {len(told) - aborted} transactions committed, {aborted} aborted, {loop.begun} processes")
    assert not wrong, "\n".join(wrong[:30])


def test_nothing_is_lost_torn_doubled_or_seen_though_aborted_while_a_broker_is_killed():
    def run(directory):
        with start(KIND, free_port(), directory / "data", SETTINGS) as broker:
            go_through([broker], broker.bootstrap, 1, SECONDS[0], directory)

    in_directory(run)


def test_nothing_is_lost_torn_doubled_or_seen_though_aborted_while_one_of_three_brokers_is_killed():
    def run(directory):
        with start_cluster(KIND, directory, SETTINGS) as cluster:
            go_through(cluster.brokers, cluster.bootstrap, 3, SECONDS[1], directory)

    in_directory(run)
