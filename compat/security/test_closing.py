"""An open cluster that works is closed as docs/security.md says, node by node: what its clients write meanwhile is all there."""

import json
import os
import subprocess
import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from authority import BINARY
from broker import HOST, free_port, start_cluster
from checks import broker_kind, equal, eventually

if broker_kind() == "kafka":
    pytest.skip("of Duramen alone", allow_module_level=True)

TOPIC, PARTITIONS = "orders-1", 3


class Writer(threading.Thread):
    """Appends numbers, one after the other, by whatever way it is given, and notes what is acknowledged."""

    def __init__(self, way):
        super().__init__(daemon=True)
        self.way, self.is_over = way, False
        self.acknowledged, self.failures = [], []

    def run(self):
        way, producer, number = None, None, 0
        while not self.is_over:
            if way is not self.way:
                if producer:
                    producer.flush()
                way = self.way
                producer = Producer({**way, "linger.ms": 5, "enable.idempotence": True, "message.timeout.ms": 60_000, "log_level": 0})
            producer.produce(TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self.note)
            number += 1
            producer.poll(0.002)
        producer.flush()

    def note(self, error, message):
        if error:
            self.failures.append(str(error))
        else:
            self.acknowledged.append(message.value())

    def goes_on(self):
        """Returns once more has been acknowledged, and nothing has failed."""
        before = len(self.acknowledged)
        eventually("more is acknowledged", lambda: len(self.acknowledged) > before + 100, 60)
        equal(self.failures, [])


def run(*arguments, password=None):
    done = subprocess.run([BINARY, *map(str, arguments)], input=password, capture_output=True, text=True)
    equal(done.returncode, 0, done.stderr)
    return done.stdout


def plain_links(cluster):
    told = json.loads(run("cluster", "status", "--bootstrap", cluster.bootstrap, "--output", "json"))
    return [node["plain_to"] for node in told["nodes"]]


def restart_each(cluster, writer, settings):
    for number, broker in enumerate(cluster.brokers, 1):
        broker.stop()
        broker.settings |= settings(number, broker)
        broker.restart()
        writer.goes_on()
    eventually("all partitions are led and whole", lambda: is_healthy(cluster), 60)


def is_healthy(cluster):
    asked = [BINARY, "cluster", "status", "--bootstrap", cluster.bootstrap]
    return subprocess.run(asked, capture_output=True).returncode == 0


def test_an_open_cluster_is_closed_without_an_outage(tmp_path):
    nodes, clients, password = tmp_path / "nodes", tmp_path / "clients", tmp_path / "password"
    with start_cluster("duramen", tmp_path / "cluster") as cluster:
        open_way = {"bootstrap.servers": cluster.bootstrap}
        run("topic", "create", TOPIC, "--partitions", PARTITIONS, "--bootstrap", cluster.bootstrap)
        writer = Writer(open_way)
        writer.start()
        writer.goes_on()

        run("tls", "init", "--out", nodes, *(word for number in (1, 2, 3) for word in ("--node", f"node-{number},{HOST}")))
        for mode in ("accept", "tls"):
            restart_each(cluster, writer, lambda number, _, mode=mode: {
                "node.security": mode,
                "listener.name.nodes.ssl.keystore.location": str(nodes / f"node-{number}.pem"),
                "listener.name.nodes.ssl.truststore.location": str(nodes / "ca.pem"),
            })  # fmt: skip
            eventually("nodes use TLS", lambda: plain_links(cluster) == [[], [], []], 60)

        run("tls", "init", "--out", clients, "--node", f"broker,{HOST}")
        asking = {broker.port: free_port() for broker in cluster.brokers}
        restart_each(cluster, writer, lambda _, broker: {
            "listeners": f"PLAINTEXT://{broker.bootstrap},SASL_SSL://{HOST}:{asking[broker.port]}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "ssl.keystore.location": str(clients / "broker.pem"),
            "super.users": "User:admin;User:ANONYMOUS",
        })  # fmt: skip

        for user in ("admin", "alice"):
            created = ("user", "create", user, "--new-password-file", "-", "--bootstrap", cluster.bootstrap)
            run(*created, password=f"{user}-secret")
        rule = ("--principal", "User:alice", "--topic", "orders-*")
        run("acl", "allow", *rule, "--operation", "write", "--operation", "read", "--bootstrap", cluster.bootstrap)

        run("acl", "allow", "--principal", "User:alice", "--group", "readers", "--operation", "read", "--bootstrap", cluster.bootstrap)

        closed = ",".join(f"{HOST}:{port}" for port in asking.values())
        closed_way = {
            "bootstrap.servers": closed, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice", "sasl.password": "alice-secret", "ssl.ca.location": str(clients / "ca.pem"),
        }  # fmt: skip
        writer.way = closed_way
        writer.goes_on()

        for broker in cluster.brokers:
            broker.stop()
            broker.settings |= {"listeners": f"SASL_SSL://{HOST}:{asking[broker.port]}", "super.users": "User:admin"}
            broker.spawn()
            writer.goes_on()
        password.write_text("admin-secret")
        by_admin = ("--bootstrap", closed, "--tls-ca", clients / "ca.pem", "--user", "admin", "--password-file", password)
        eventually("all nodes are back", lambda: len(json.loads(run("topic", "describe", TOPIC, "--output", "json", *by_admin))) > 0)
        writer.goes_on()
        writer.is_over = True
        writer.join(60)
        equal(writer.failures, [])
        is_open = subprocess.run([BINARY, "topic", "list", "--bootstrap", cluster.bootstrap], capture_output=True, env=os.environ)
        assert is_open.returncode != 0
        read, acknowledged = Counter(read_all(closed_way, len(writer.acknowledged))), Counter(writer.acknowledged)
        equal((acknowledged - read, read - acknowledged), (Counter(), Counter()), "lost, and read too often")


def read_all(way, count):
    """All that is there, each once, and nothing else."""
    consumer = Consumer({**way, "group.id": "readers", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    values = []
    while len(values) < count:
        messages = consumer.consume(1000, 30)
        assert messages, f"{len(values)} of {count}"
        equal([str(message.error()) for message in messages if message.error()], [])
        values += [message.value() for message in messages]
    consumer.close()
    return values
