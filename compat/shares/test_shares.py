"""Share groups (KIP-932) of three clients.

What one client sees of one broker is in Sharing.java. Here consumers of three clients are one group, while brokers are killed,
and the consumers too. A consumer is a process: PROGRAM BOOTSTRAP TOPIC GROUP NAME. It accepts nine records of ten and releases
the rest, and prints `delivered PARTITION OFFSET` of what it got, `accepted PARTITION OFFSET` when it was told that its decision
was taken, `unknown PARTITION OFFSET` if it does not know, and `released PARTITION OFFSET`. It ends when its input ends. SEED repeats the kills;
ONLY has parts of names of the tests of Sharing that are wanted.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

import checks
from broker import free_port, start, start_cluster
from checks import equal
from connection import Connection
from judge import judge
from killing import PATIENCE_S, Followed, in_directory, java, output, work_and_die

KIND = os.environ["BROKER_KIND"]
pytestmark = pytest.mark.timeout(120 * checks.SLOWNESS)
PARTITIONS = 2
# Of kills on one node, and of one of three.
SECONDS = {"duramen": (6, 6), "kafka": (4, 4)}[KIND]
ALIVE_S = (0.5, 2.5)
CONSUMER_KILL_CHANCE = 0.4
PACE_S = 0.01
GROUP = 32
# Between what two processes say.
MARK = "another one"
# Kafka waits for the session of a killed broker to end, and makes fifty partitions of each internal topic.
SETTINGS = {
    "duramen": {},
    "kafka": {
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
        "share.coordinator.state.topic.num.partitions": "3",
        "offsets.topic.num.partitions": "3",
    },
}[KIND]
# No record is given up, and a consumer that stands still loses what it holds.
GROUP_SETTINGS = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10", "share.record.lock.duration.ms": "2000"}


def programs():
    return {
        "java": [*java("-Xmx256m"), "ShareLoop"],
        "confluent-kafka": [sys.executable, str(COMPAT / "shares/confluent_share.py")],
        "franz-go": [output("franz-go/build.sh") + "share"],
    }


class Consumer(Followed):
    # What a killed one had begun to say is no part of what the next one says.
    mark = f"\n{MARK}\n"

    def told(self):
        """What was said, (what, place). Of what a process had when it was killed, nobody knows whether it was accepted."""
        told, open_places = [], set()
        for line in self.told_path.read_text().split("\n"):
            words = line.split()
            if line == MARK:
                told += [("unknown", place) for place in open_places]
                open_places.clear()
            elif len(words) == 3 and words[2].isdigit():
                what, place = words[0], (int(words[1]), int(words[2]))
                told.append((what, place))
                (open_places.add if what == "delivered" else open_places.discard)(place)
        return told


class Writer(threading.Thread):
    """Writes until it is stopped, and knows where each record is."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.topic, self.written, self.is_stopped = topic, [], threading.Event()
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "reconnect.backoff.max.ms": 300})
        self.start()

    def run(self):
        for number in range(1 << 30):
            if self.is_stopped.is_set():
                return
            for partition in range(PARTITIONS):
                for _ in range(5):
                    self.producer.produce(self.topic, value=str(number), partition=partition, on_delivery=self._on_delivery)
            self.producer.poll(0)
            time.sleep(PACE_S)

    def _on_delivery(self, error, record):
        assert error is None, error
        self.written.append((record.partition(), record.offset()))

    def stop(self):
        self.is_stopped.set()
        self.join()
        equal(self.producer.flush(PATIENCE_S), 0, "records not yet written")
        return self.written


def prepare(bootstrap, topic, group, replicas):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])[topic].result(PATIENCE_S)
    connection = Connection(bootstrap.split(",")[0])
    configs = [{"Name": name, "ConfigOperation": 0, "Value": value} for name, value in GROUP_SETTINGS.items()]
    resource = {"ResourceType": GROUP, "ResourceName": group, "Configs": configs}
    answer = connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource]})
    equal(answer["Responses"][0]["ErrorCode"], 0, "settings of the group")
    connection.close()


def what_is_left(bootstrap, topic, group):
    """What the group still gives out."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit", "fetch.wait.max.ms": 200}
    left, quiet_s = [], time.monotonic() + 3
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        while time.monotonic() < quiet_s:
            records = [record for record in consumer.poll(0.2) if record.error() is None]
            for record in records:
                left.append((record.partition(), record.offset()))
                consumer.acknowledge(record, AcknowledgeType.ACCEPT)
            if records:
                consumer.commit_sync(PATIENCE_S)
                quiet_s = time.monotonic() + 3
    return left


def go_through(brokers, bootstrap, replicas, seconds, directory):
    topic, group = checks.unique("shared"), checks.unique("group")
    prepare(bootstrap, topic, group, replicas)
    consumers = [Consumer(client, [*command, bootstrap, topic, group, client], directory) for client, command in programs().items()]
    writer = Writer(bootstrap, topic)
    work_and_die(brokers, consumers, seconds, ALIVE_S, CONSUMER_KILL_CHANCE, more=100)
    written = writer.stop()

    def is_done():
        decided = {place for consumer in consumers for what, place in consumer.told() if what != "delivered"}
        return decided.issuperset(written)

    checks.eventually("all is decided on", is_done, PATIENCE_S)
    codes = {consumer.client: consumer.finish() for consumer in consumers}
    left = what_is_left(bootstrap, topic, group)
    wrong = [f"{client} ended with {code}" for client, code in codes.items() if code != 0]
    wrong += judge(written, [line for consumer in consumers for line in consumer.told()], left)
    for consumer in consumers:
        counts = {what: sum(said == what for said, _ in consumer.told()) for what in ("delivered", "accepted", "unknown")}
        print(f"{consumer.client}: {counts}, {consumer.begun} processes")
    print(f"{len(written)} records, {len(left)} left")
    assert not wrong, "\n".join(wrong[:30])


def test_one_client_sees_what_it_should():
    def run(directory):
        with start(KIND, free_port(), directory / "data", SETTINGS) as broker:
            environment = {**os.environ, "BOOTSTRAP": broker.bootstrap}
            command = [COMPAT / "java/junit.sh", "Sharing", *os.environ.get("ONLY", "").split()]
            done = subprocess.run(command, env=environment)
            equal(done.returncode, 0, "how Sharing ended")

    in_directory(run)


def test_nothing_is_lost_or_accepted_twice_while_a_broker_is_killed():
    def run(directory):
        with start(KIND, free_port(), directory / "data", SETTINGS) as broker:
            go_through([broker], broker.bootstrap, 1, SECONDS[0], directory)

    in_directory(run)


def test_nothing_is_lost_or_accepted_twice_while_one_of_three_brokers_is_killed():
    def run(directory):
        with start_cluster(KIND, directory, SETTINGS) as cluster:
            go_through(cluster.brokers, cluster.bootstrap, 3, SECONDS[1], directory)

    in_directory(run)
