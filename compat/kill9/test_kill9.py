"""Real producers against a broker that is killed at random moments; at the end everything is read and judged.

BROKER_KIND is duramen or kafka, KILL9_SECONDS how long it is killed, and SEED repeats the kills.
"""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

import calls
import checks
from broker import JVM_OPTIONS, free_port, start
from judge import Ack, Found, judge

PARTITIONS = 2
KIND = checks.broker_kind()
SECONDS = float(os.environ.get("KILL9_SECONDS", "60"))
SEED = int(os.environ.get("SEED") or random.randrange(10**9))
# The broker runs this long between kills, counted from its first answer; some kills hit the recovery itself.
ALIVE_S = (0.1, 4.0)
RECOVERY_KILL_CHANCE, RECOVERY_KILL_S = 0.25, (0.005, 0.4)
# Kafka syncs before it answers only when told to; and it waits for the session of the killed broker to end.
KAFKA_SETTINGS = {"flush.messages": "1", "broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
PRODUCERS_BEGIN_S, PRODUCERS_END_S = 20, 120
READ_ALL_S = 120


class EndlessProducer:
    """A producer process; what it was told is in a file, line by line."""

    def __init__(self, name, partition, command, idempotent, directory):
        self.name, self.partition, self.command, self.idempotent = name, partition, command, idempotent
        self.told_path = directory / f"{name}.told"

    def start(self, bootstrap, topic):
        with open(self.told_path, "wb") as told, open(self.told_path.with_suffix(".errors"), "wb") as errors:
            command = [*self.command, bootstrap, topic, str(self.partition), self.name]
            if self.command[-1].endswith(".py"):
                command.append("idempotent" if self.idempotent else "plain")
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=told, stderr=errors)

    def wait_until_told(self):
        deadline = time.monotonic() + PRODUCERS_BEGIN_S
        while not self.told_path.stat().st_size and time.monotonic() < deadline:
            time.sleep(0.05)

    def finish(self):
        """Asks for the end, waits for the last answers, and returns (acknowledgements, what went wrong)."""
        self.process.stdin.close()
        try:
            self.process.wait(PRODUCERS_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        acks, wrong, ended = [], [], False
        for line in self.told_path.read_text().splitlines():
            kind, *words = line.split(" ", 3)
            if kind == "ack":
                acks.append(Ack(int(words[0]), self.partition, int(words[1]), words[2]))
            elif kind == "fail":
                wrong.append(f"{self.name} was told of a failure: {line}")
            elif kind == "end":
                ended = True
                if words[1] != "0" or int(words[0]) != len(acks):
                    wrong.append(f"{self.name} sent {words[0]}, {len(acks)} were acknowledged, {words[1]} never answered")
        if not ended:
            wrong.append(f"{self.name} did not end: {self.told_path.with_suffix('.errors').read_text()[-500:]}")
        return acks, wrong


def producers(directory):
    confluent = [sys.executable, str(COMPAT / "kill9/confluent_producer.py")]
    libs = _output(COMPAT / "kafka/fetch.sh")
    classes = _output(COMPAT / "java/compile.sh")
    log4j = f"-Dlog4j2.configurationFile={COMPAT / 'java/log4j2.properties'}"
    java = ["java", "-Xmx256m", *JVM_OPTIONS[2:], log4j, "-cp", f"{classes}:{libs}/*", "EndlessProducer"]
    franz_go = [_output(COMPAT / "franz-go/build.sh") + "endless"]
    return [
        EndlessProducer("confluent-idempotent", 0, confluent, True, directory),
        EndlessProducer("confluent-plain", 0, confluent, False, directory),
        EndlessProducer("java", 1, java, True, directory),
        EndlessProducer("franz-go", 1, franz_go, True, directory),
    ]


def _output(script):
    return subprocess.check_output([str(script)], text=True).strip()


class Watcher:
    """Reads along while the broker is killed: what was once shown must stay."""

    def __init__(self, bootstrap, topic):
        self.shown = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, args=(bootstrap, topic), daemon=True)
        self.thread.start()

    def _watch(self, bootstrap, topic):
        consumer = _consumer(bootstrap)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while not self.stop.is_set():
            for message in consumer.consume(500, timeout=0.2):
                if not message.error():
                    self.shown.append(_found(message))
        consumer.close()

    def finish(self):
        self.stop.set()
        self.thread.join()
        return self.shown


def _consumer(bootstrap):
    return Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "assigned-only",
        "enable.auto.commit": False,
        "check.crcs": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 300,
        "log_level": 0,
    })  # fmt: skip


def _found(message):
    return Found(message.partition(), message.offset(), message.key().decode(), hashlib.sha256(message.value()).hexdigest())


def read_all(bootstrap, topic):
    """Every message from 0 to the end of each partition, and what went wrong with that."""
    found, wrong = [], []
    for partition in range(PARTITIONS):
        consumer = _consumer(bootstrap)
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
        if low != 0:
            wrong.append(f"partition {partition} begins at {low}")
        consumer.assign([TopicPartition(topic, partition, 0)])
        at, deadline = 0, time.monotonic() + READ_ALL_S
        while at < high and time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=1):
                if message.error():
                    raise KafkaException(message.error())
                found.append(_found(message))
                at = message.offset() + 1
        consumer.close()
        if at != high:
            wrong.append(f"partition {partition} was read up to {at}, it should end at {high}")
    return found, wrong


def kill_at_random(broker, chance, seconds):
    """Kills and restarts until the time is over; returns the number of kills."""
    kills, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive_s = chance.uniform(*ALIVE_S)
        time.sleep(alive_s)
        broker.kill9()
        kills += 1
        while chance.random() < RECOVERY_KILL_CHANCE:
            broker.spawn()
            time.sleep(chance.uniform(*RECOVERY_KILL_S))
            broker.kill9()
            kills += 1
        started = time.monotonic()
        broker.restart()
        print(f"kill {kills} after {alive_s:.2f} s, answers again after {time.monotonic() - started:.2f} s", flush=True)
    return kills


def run(kind, seconds, seed, directory):
    chance = random.Random(seed)
    broker = start(kind, free_port(), directory / "data", KAFKA_SETTINGS if kind == "kafka" else {})
    with broker:
        with calls.connect(broker.bootstrap) as connection:
            topic = calls.new_topic(connection, PARTITIONS)
        senders = producers(directory)
        for sender in senders:
            sender.start(broker.bootstrap, topic)
        # librdkafka keeps messages of a topic that it has not seen yet apart. If the broker dies meanwhile, a plain producer
        # may send later ones first: the client's order, not the broker's.
        for sender in senders:
            sender.wait_until_told()
        watcher = Watcher(broker.bootstrap, topic)
        kills = kill_at_random(broker, chance, seconds)
        acks, wrong = {}, []
        for sender in senders:
            acks[sender.name], went_wrong = sender.finish()
            wrong += went_wrong
        broker.kill9()
        broker.restart()
        with calls.connect(broker.bootstrap) as connection:
            calls.wait_for_leaders(connection, topic, PARTITIONS)
        shown = watcher.finish()
        found, went_wrong = read_all(broker.bootstrap, topic)
        wrong += went_wrong
    wrong += judge(acks, found, shown, [sender.name for sender in senders if sender.idempotent])
    for name, told in acks.items():
        print(f"{name}: {len(told)} acknowledged")
        if not told:
            wrong.append(f"{name} was never acknowledged, so nothing was tested")
    print(f"{kills + 1} kills, {len(found)} messages found, {len(shown)} shown meanwhile")
    return wrong


@pytest.mark.timeout((SECONDS + 300) * checks.SLOWNESS)
def test_acknowledged_records_survive_kills():
    directory = Path(tempfile.mkdtemp(prefix="duramen-kill9-"))
    print(f"seed {SEED}, {SECONDS:.0f} s, {directory}", flush=True)
    wrong = run(KIND, SECONDS, SEED, directory)
    again = f"{len(wrong)} things are wrong; kept: {directory}; again: kill9/run.sh {KIND} {SECONDS:.0f} {SEED}"
    assert not wrong, "\n".join([*wrong[:50], again])
    shutil.rmtree(directory)
