"""Kafka Connect: a file goes through a topic into another file, by a worker on its own; and into a topic exactly once, by a
worker that keeps its offsets in the cluster and is killed.
"""

import json
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

from confluent_kafka import Consumer, TopicPartition

import checks
import reach
from broker import free_port
from checks import equal

PATIENCE_S = 40


class Worker:
    """A process, and the directory in which it remembers where it was."""

    def __init__(self, directory):
        self.directory, self.port = directory, free_port()
        self.topic = checks.unique("connect")
        self.source, self.sink = directory / "source.txt", directory / "sink.txt"
        strings = "org.apache.kafka.connect.storage.StringConverter"
        self.settings = {
            "bootstrap.servers": checks.bootstrap(),
            "key.converter": strings,
            "value.converter": strings,
            "offset.flush.interval.ms": 500,
            "listeners": f"HTTP://127.0.0.1:{self.port}",
            "plugin.discovery": "service_load",
            # The worker's own clients, and those of connectors.
            **{f"{of}{key}": value for of in ("", "admin.", "producer.", "consumer.") for key, value in reach.client_properties().items()},
        }

    def write(self, name, settings):
        (self.directory / f"{name}.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def run(self, main, *names):
        libs = subprocess.check_output([COMPAT / "kafka/fetch.sh"], text=True).strip()
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={COMPAT / 'kafka/log4j2.properties'}"]
        properties = [str(self.directory / f"{name}.properties") for name in names]
        with open(self.directory / "worker.log", "ab") as log:
            command = ["java", *options, "-cp", f"{libs}/*", f"org.apache.kafka.connect.cli.{main}", *properties]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(PATIENCE_S)

    def append(self, lines):
        with open(self.source, "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def arrived(self):
        return self.sink.read_text().splitlines() if self.sink.exists() else []

    def wait_for(self, last):
        deadline = time.monotonic() + PATIENCE_S
        while last not in self.arrived():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.directory / "worker.log").read_text(errors="replace").splitlines()[-40:]
                raise AssertionError(f"{last!r} never came; {len(self.arrived())} lines are there\n" + "\n".join(tail))
            time.sleep(0.05)

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)


class Alone(Worker):
    """A worker on its own, with a source and a sink, and its offsets in a file."""

    def __init__(self, directory):
        super().__init__(directory)
        self.write("worker", {**self.settings, "offset.storage.file.filename": directory / "offsets"})
        self.write("source", {"name": "source", "connector.class": "FileStreamSource", "file": self.source, "topic": self.topic})
        self.write("sink", {"name": "sink", "connector.class": "FileStreamSink", "file": self.sink, "topics": self.topic})

    def start(self):
        self.run("ConnectStandalone", "worker", "source", "sink")


class OfACluster(Worker):
    """A worker that could be one of many, with a source that writes records and offsets by the same transactions."""

    def __init__(self, directory):
        super().__init__(directory)
        names = {f"{what}.storage.topic": f"{self.topic}-{what}" for what in ("config", "offset", "status")}
        replicas = {f"{what}.storage.replication.factor": checks.brokers() for what in ("config", "offset", "status")}
        # Who is killed and comes back is another member of the group, which first waits for the one that was.
        waits = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000, "scheduled.rebalance.max.delay.ms": 0}
        # A worker that begins reads offsets up to the end of the log, by transactions that are over: one that a killed worker left
        # open there holds it up until its time is over, a minute by default, on every broker.
        eos = {"group.id": self.topic, "exactly.once.source.support": "enabled", "producer.transaction.timeout.ms": 15000}
        self.write("worker", {**self.settings, **names, **replicas, **waits, **eos})

    def start(self):
        self.run("ConnectDistributed", "worker")

    def add_source(self):
        config = {"connector.class": "FileStreamSource", "file": str(self.source), "topic": self.topic}
        config |= {"exactly.once.support": "required"}
        headers = {"Content-Type": "application/json"}
        address = f"http://127.0.0.1:{self.port}/connectors/source/config"
        request = urllib.request.Request(address, json.dumps(config).encode(), headers, method="PUT")

        def is_taken():
            try:
                return urllib.request.urlopen(request, timeout=10).status == 201
            except OSError:
                return False  # It does not listen yet, or has not joined its group.

        checks.eventually("the connector is made", is_taken, PATIENCE_S)

    def arrived(self):
        """What is committed in the topic."""
        settings = {**reach.librdkafka(), "group.id": "unused", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found = []
        while (message := consumer.poll(10)) and not message.error():
            found.append(message.value().decode())
        consumer.close()
        return found


def test_a_file_goes_through_a_topic_into_another_file_and_goes_on_after_a_restart():
    with tempfile.TemporaryDirectory(prefix="duramen-connect-") as directory:
        worker = Alone(Path(directory))
        worker.append(range(1000))
        worker.start()
        try:
            worker.wait_for("999")
            worker.append(range(1000, 1500))
            worker.wait_for("1499")
            for name in ("source", "sink"):
                status = worker.ask(f"/connectors/{name}/status")
                equal([status["connector"]["state"], *(task["state"] for task in status["tasks"])], ["RUNNING", "RUNNING"], name)
            worker.end(signal.SIGTERM)
            worker.append(range(1500, 2000))
            worker.start()
            worker.wait_for("1999")
            equal(worker.arrived(), [str(number) for number in range(2000)], "the lines of the sink's file")
        finally:
            worker.end(signal.SIGKILL)


def test_a_killed_worker_s_source_writes_each_line_once():
    with tempfile.TemporaryDirectory(prefix="duramen-connect-") as directory:
        worker = OfACluster(Path(directory))
        worker.append(range(1000))
        worker.start()
        try:
            worker.add_source()
            worker.wait_for("999")
            # A transaction for what it finds at once.
            for begin in range(1000, 3000, 50):
                worker.append(range(begin, begin + 50))
                time.sleep(0.01)
            worker.end(signal.SIGKILL)
            worker.append(range(3000, 3500))
            worker.start()
            worker.wait_for("3499")
            equal(worker.arrived(), [str(number) for number in range(3500)], "what is committed")
        finally:
            worker.end(signal.SIGKILL)
