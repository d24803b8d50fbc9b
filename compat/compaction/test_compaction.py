"""Compacted topics on one broker, and on three while one of them is away.

A writer gives keys new values and deletes them, and knows at which offset the last word on each was acknowledged. Whatever
is gone meanwhile, that is still there, and nothing is where it was not.
"""

import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import checks
from broker import OUR_VARIABLES, free_port, start, start_cluster
from checks import eventually
from killing import PATIENCE_S, in_directory

KIND = os.environ["BROKER_KIND"]
pytestmark = pytest.mark.timeout(180 * checks.SLOWNESS)
# Logs are looked at all the time. Kafka waits for the session of a killed broker to end.
SETTINGS = {
    "duramen": {"log.cleaner.backoff.ms": "200"},
    "kafka": {"log.cleaner.backoff.ms": "200", "broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"},
}[KIND]
TOPIC = {
    "cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "86400000",
}  # fmt: skip
PARTITIONS = 2
KEYS = 60
VALUE = b"x" * 8000
DELETED_CHANCE = 0.1


class Writer:
    """Writes to a topic as long as it is told to, and remembers what was acknowledged."""

    def __init__(self, bootstrap, replicas):
        self.bootstrap = bootstrap
        self.topic = checks.unique("compacted")
        new = NewTopic(self.topic, num_partitions=PARTITIONS, replication_factor=replicas, config=TOPIC)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([new], request_timeout=PATIENCE_S)[self.topic].result(PATIENCE_S)
        self.chance = random.Random(7)
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": PATIENCE_S * 1000,
            "reconnect.backoff.max.ms": 300, "log_level": 0,
        })  # fmt: skip
        # Of each partition: what is where, and where the last word on a key is.
        self.written = [{} for _ in range(PARTITIONS)]
        self.last = [{} for _ in range(PARTITIONS)]
        self.failures = []
        self.number = 0

    def write(self, count):
        for _ in range(count):
            self.number += 1
            key = b"key %d" % self.chance.randrange(KEYS)
            value = None if self.chance.random() < DELETED_CHANCE else b"%d " % self.number + VALUE
            partition = int(key.split()[1]) % PARTITIONS
            self.producer.produce(self.topic, key=key, value=value, partition=partition, on_delivery=self.delivered)
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_S) == 0, "not all was acknowledged"
        assert not self.failures, self.failures

    def delivered(self, error, message):
        if error is not None:
            self.failures.append(error)
            return
        partition, offset = message.partition(), message.offset()
        self.written[partition][offset] = (message.key(), message.value())
        _, before = self.last[partition].get(message.key(), (None, -1))
        if offset > before:
            self.last[partition][message.key()] = (message.value(), offset)

    def read(self):
        """All that is there, by partition: offset to key and value. It is what was written, in order."""
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "assigned-only", "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "error", "fetch.wait.max.ms": 100, "reconnect.backoff.max.ms": 300, "log_level": 0,
        })  # fmt: skip
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
        found, ended = [{} for _ in range(PARTITIONS)], set()
        deadline = time.monotonic() + PATIENCE_S
        while len(ended) < PARTITIONS:
            for message in consumer.consume(500, timeout=0.2):
                partition, offset = message.partition(), message.offset()
                if message.error():
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    ended.add(partition)
                    continue
                assert offset > max(found[partition], default=-1), f"{offset} of {partition} comes after {max(found[partition])}"
                assert self.written[partition].get(offset) == (message.key(), message.value()), f"{offset} of {partition} is another one"
                found[partition][offset] = message.key()
            assert time.monotonic() < deadline, f"read to the end of {ended} only"
        consumer.close()
        return found

    def check(self):
        """The last word on each key is where it was acknowledged. How many records are there."""
        found = self.read()
        for partition in range(PARTITIONS):
            for key, (_, offset) in self.last[partition].items():
                assert offset in found[partition], f"the last word on {key}, at {offset} of {partition}, is gone"
        return sum(map(len, found))

    def is_in_sync(self):
        """Each broker is asked: only the one that leads knows who keeps up."""
        told = [AdminClient({"bootstrap.servers": one}).list_topics(self.topic, timeout=PATIENCE_S) for one in self.bootstrap.split(",")]
        partitions = [partition for one in told for partition in one.topics[self.topic].partitions.values()]
        return all(len(partition.isrs) == 3 for partition in partitions)

    def compacted(self):
        """Waits until far fewer records are there than were written. The last segments stay as they are."""
        eventually("most of it is gone", lambda: self.check() < self.number * 0.6, PATIENCE_S)


def verified(bootstrap, topic):
    """Duramen's own comparison of replicas says that they are alike."""
    if KIND != "duramen":
        return True
    binary = os.environ.get("DURAMEN_BIN", str(COMPAT.parent / "target/release/duramen"))
    command = [binary, "cluster", "verify", "--bootstrap", bootstrap, "--topic", topic, "--all", "--output", "json"]
    environment = {name: value for name, value in os.environ.items() if name not in OUR_VARIABLES}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert done.returncode == 0, done
    return [partition["state"] for partition in json.loads(done.stdout)["partitions"]] == ["identical"] * PARTITIONS


def test_the_last_record_of_each_key_stays_where_it_was_though_the_broker_is_killed():
    def work(directory):
        with start(KIND, free_port(), directory / "data", SETTINGS) as broker:
            writer = Writer(broker.bootstrap, 1)
            writer.write(1200)
            writer.compacted()
            for end in (broker.kill9, broker.stop):
                end()
                broker.restart()
                writer.check()
                writer.write(600)
                writer.compacted()

    in_directory(work)


def test_one_of_three_is_away_while_the_others_compact_and_has_what_is_left_afterwards():
    def work(directory):
        with start_cluster(KIND, directory, SETTINGS) as cluster:
            writer = Writer(cluster.bootstrap, 3)
            writer.write(600)
            for at, wiped in ((0, False), (1, True)):
                away = cluster.brokers[at]
                away.kill9()
                # Who is not there any more is not waited for, after a while.
                writer.write(1500)
                writer.compacted()
                if wiped:
                    away.wipe()
                writing = threading.Thread(target=writer.write, args=(300,))
                writing.start()
                away.restart()
                writing.join()
                assert not writer.failures, writer.failures
                writer.check()
                eventually("the replicas are alike", lambda: verified(cluster.bootstrap, writer.topic), PATIENCE_S)
                # One that is not counted yet does not help if another is gone.
                eventually("all three replicas count", writer.is_in_sync, PATIENCE_S)
                if KIND == "duramen":
                    assert "lacks the prefix that a compaction left" in away.log_path.read_text(), "it could catch up as any other"
            # All of it is there with any one of them gone, who may have led.
            for broker in cluster.brokers:
                broker.kill9()
                writer.check()
                broker.restart()
                writer.write(20)
                eventually("all three replicas count", writer.is_in_sync, PATIENCE_S)
            writer.check()

    in_directory(work)
