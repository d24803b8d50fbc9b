"""Kafka Streams with exactly-once semantics, killed while its input goes on.

StreamsApp counts by window, joins a stream with a table and a stream with a stream; what it writes, as readers of committed
records see it, must be what its input makes: each record of it once, however often the application was killed.
"""

import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import checks
import reach
from checks import equal, eventually

PARTITIONS = 3
USERS = 7
# Of event time, between two clicks: a window has 50 of them.
STEP_MS, WINDOW_MS = 100, 5_000
BEGIN_MS = int(time.time() * 1000) // WINDOW_MS * WINDOW_MS - 3_000_000
PACE_S = 0.005
PATIENCE_S = 50


class App:
    """The application as a process. Whoever has the same directory is taken for the same one, come back."""

    def __init__(self, name, directory, instance):
        classes, libs = (subprocess.check_output([COMPAT / script], text=True).strip() for script in ("java/compile.sh", "kafka/fetch.sh"))
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={COMPAT / 'java/log4j2.properties'}"]
        arguments = [checks.bootstrap(), name, str(directory), instance]
        command = ["java", *options, "-cp", f"{classes}:{libs}/*", "StreamsApp", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line)

    def is_alive(self):
        assert self.process.poll() is None, "the application ended:\n" + "".join(self.said[-60:])
        return True

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def transactional():
    # As Java's clients, so that all topics are partitioned alike.
    settings = {**reach.librdkafka(), "transactional.id": checks.unique("feeder"), "partitioner": "murmur2_random", "linger.ms": 2}
    producer = Producer(settings)
    producer.init_transactions(30)
    return producer


class Feeder:
    """Writes clicks and views until told to stop, every fifth transaction of them twice: once it is aborted."""

    def __init__(self, name):
        self.name = name
        self.sent = 0
        self.is_stopped = threading.Event()
        self.producer = transactional()
        self.thread = threading.Thread(target=self._feed, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def stop(self):
        self.is_stopped.set()
        self.thread.join()
        return self.sent

    def _feed(self):
        for turn in range(1 << 30):
            if self.is_stopped.is_set():
                return
            numbers = range(self.sent, self.sent + 10)
            if turn % 5 == 0:
                self._write(numbers)
                self.producer.flush(20)
                self.producer.abort_transaction(20)
            self._write(numbers)
            self.producer.commit_transaction(20)
            self.sent = numbers.stop
            time.sleep(10 * PACE_S)

    def _write(self, numbers):
        self.producer.begin_transaction()
        for number in numbers:
            at = BEGIN_MS + number * STEP_MS
            self.producer.produce(f"{self.name}-clicks", key=user(number), value=str(number), timestamp=at)
            self.producer.produce(f"{self.name}-views", key=str(number), value=f"view {number}", timestamp=at)


def user(number):
    return f"user-{number % USERS}"


class Output:
    """Everything committed in a topic so far, by key and in order."""

    def __init__(self, topic):
        settings = {**reach.librdkafka(), "group.id": "unused", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self.consumer = Consumer(settings)
        self.consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self.count = 0
        self.values = defaultdict(list)

    def has(self, count):
        for message in self.consumer.consume(1000, timeout=0.1):
            assert not message.error(), message.error()
            self.values[message.key().decode()].append(message.value().decode())
            self.count += 1
        return self.count >= count

    def close(self):
        # Whatever comes after what was expected.
        for _ in range(3):
            self.has(0)
        self.consumer.close()


def create(name):
    admin = AdminClient(reach.librdkafka())
    topics = [f"{name}-{topic}" for topic in ("clicks", "users", "views", "counts", "named", "viewed")]
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, checks.brokers()) for topic in topics]).values():
        future.result(20)


def write_users(name):
    producer = transactional()
    producer.begin_transaction()
    for number in range(USERS):
        producer.produce(f"{name}-users", key=user(number), value=f"name of {number}", timestamp=BEGIN_MS - 1)
    producer.commit_transaction(20)


def test_every_record_is_counted_and_joined_once_through_kills():
    name = checks.unique("streams")
    create(name)
    write_users(name)
    outputs = {topic: Output(f"{name}-{topic}") for topic in ("counts", "named", "viewed")}
    with tempfile.TemporaryDirectory(prefix="duramen-streams-") as directory:
        app = App(name, Path(directory) / "first", "one")
        try:
            feeder = Feeder(name).start()

            def goes_on(what):
                """Some more than now comes out of each, which is while the application is in the middle of its work."""
                wanted = {topic: output.count + 200 for topic, output in outputs.items()}
                for topic, output in outputs.items():
                    eventually(f"{topic} {what}", lambda: app.is_alive() and output.has(wanted[topic]), PATIENCE_S)

            goes_on("come out")
            app.kill()
            app = App(name, Path(directory) / "first", "one")
            goes_on("come out after the same one came back")
            app.kill()
            # It knows nothing of the first one's transactions, which must be waited out, or aborted.
            app = App(name, Path(directory) / "second", "one")
            goes_on("come out of its successor")
            sent = feeder.stop()
            for topic, output in outputs.items():
                eventually(f"all {topic}", lambda: app.is_alive() and output.has(sent), PATIENCE_S)
            app.stop()
        finally:
            app.kill()
    for output in outputs.values():
        output.close()
    windows = defaultdict(int)
    for number in range(sent):
        begin = (BEGIN_MS + number * STEP_MS) // WINDOW_MS * WINDOW_MS
        windows[f"{user(number)}@{begin}"] += 1
    equal(outputs["counts"].values, {key: [str(count + 1) for count in range(count)] for key, count in windows.items()}, "counts")
    named = {user(first): [f"{n}:name of {first}" for n in range(first, sent, USERS)] for first in range(USERS)}
    equal(outputs["named"].values, named, "a stream with a table")
    equal(outputs["viewed"].values, {str(n): [f"{user(n)}:view {n}"] for n in range(sent)}, "a stream with a stream")
