"""Consumers of every client on a queue topic whose elements were edited: they get what is left in order, and come to the end.

Elements are deleted and replaced, queues are rewritten, cut and deleted. Of some batches a part is left then, of some nothing. Each
partition ends in another way. Where nothing is left at the end, the answer is a batch that stands for those that were passed over.
A consumer that waits there must not ask for the same offset again and again. A record that is appended later reaches it.

kafka-python and aiokafka read as of committed records: then they look into every control batch for the end of a transaction.
So do a sink of Kafka Connect and a read of Spark, beside others that read all records.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka.partitioner.default import murmur2

import checks
from broker import COMPAT, JVM_OPTIONS, free_port, start
from checks import equal, eventually
from killing import java, output
from readers import Reader, programs

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60
# Members of the classic protocol ask for a session of 3 s.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
# A consumer that waits at the end asks about twice a second; one that asks in a loop asks thousands of times.
LOOK_S, ASKED_MAX = 3, 300
# On a quiet machine none of Spark's reads takes more than ten seconds.
SPARK_PATIENCE_S = 120
# The first test of Spark may have to download it.
SPARK_TEST_S = 400
# Between the partitions of a topic Spark would wait for the end of a fetch.
QUICK_COMMITTED = ["kafka.isolation.level=read_committed", "kafka.fetch.max.wait.ms=20"]
LEVELS = ["read_uncommitted", "read_committed"]
CLIENTS = {
    **programs(),
    # `groups` has no members by these two.
    "kafka-python": lambda: [sys.executable, str(HERE / "kafka_python_reader.py")],
    "aiokafka": lambda: [sys.executable, str(HERE / "aiokafka_reader.py")],
}


def call(broker, method, path, body=None):
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{broker.native}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def asked(broker):
    """Returns how many requests the broker has got."""
    with urllib.request.urlopen(f"http://{broker.native}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("duramen_requests_total"))


@pytest.fixture(scope="module")
def broker():
    directory = Path(tempfile.mkdtemp(prefix="duramen-queues-"))
    with start(checks.broker_kind(), free_port(), directory / "data", SETTINGS) as one:
        yield one
    shutil.rmtree(directory)


def offset_of(position):
    return int(position.split(".")[2])


def positions_of(told, first, count):
    """The positions of the records of an entry."""
    term, entry, _ = map(int, told[first].split("."))
    return [f"{term}.{entry}.{entry + at}" for at in range(count)]


class Log:
    """A partition of a queue topic, and what its readers see: values, each of which is a number, and what headers tell of edits."""

    def __init__(self, broker, topic, partition):
        self.broker, self.topic, self.partition = broker, topic, partition
        self.numbers = itertools.count()
        self.shown = {}
        # The offset of the content of each element, by its queue and position.
        self.elements = defaultdict(dict)
        self.names = {}
        call(broker, "PUT", f"/v1/topics/{topic}/partitions/{partition}/fence", {"token": "owner"})

    def name(self, word):
        """A name of a queue in this partition."""
        if word not in self.names:
            names = (f"{word}-{number}" for number in itertools.count())
            self.names[word] = next(name for name in names if (murmur2(name.encode()) & 0x7FFFFFFF) % PARTITIONS == self.partition)
        return self.names[word]

    def call(self, method, queue, path="", body=None):
        return call(self.broker, method, f"/v1/topics/{self.topic}/queues/{self.name(queue)}{path}", body)

    def message(self):
        return {"value": f"{next(self.numbers)}"}

    def enqueue(self, queue, count=1):
        """Appends a batch. Returns the positions of its records."""
        messages = [self.message() for _ in range(count)]
        return self.appended(queue, messages, positions_of(self.call("POST", queue, "/messages", {"messages": messages}), "first", count))

    def appended(self, queue, messages, at):
        for message, position in zip(messages, at):
            self.elements[queue][position] = offset_of(position)
            self.shown[offset_of(position)] = (message["value"], {})
        return at

    def withdrawn(self, queue, positions, told):
        for position in positions:
            del self.shown[self.elements[queue].pop(position)]
        equal((told["withdrawn"], told["absent"]), (len(positions), 0), "records that were taken away")

    def delete(self, queue, positions):
        self.withdrawn(queue, positions, self.call("POST", queue, "/delete", {"positions": positions}))

    def replace(self, queue, position):
        message = self.message()
        told = self.call("PUT", queue, f"/messages/{position}", message)
        self.withdrawn(queue, [position], told)
        self.elements[queue][position] = told["version"]
        self.shown[told["version"]] = (message["value"], {"duramen-replaces": position})

    def rewrite(self, queue, after, count):
        """Puts some elements in the place of all behind a position, or of all. Returns their positions."""
        messages = [self.message() for _ in range(count)]
        told = self.call("POST", queue, "/rewrite", {**({"after": after} if after else {"none": True}), "fence": "owner", "messages": messages})
        self.withdrawn(queue, [it for it in self.elements[queue] if not after or offset_of(it) > offset_of(after)], told)
        if not count:
            return []
        appended = self.appended(queue, messages, positions_of(told, "at", count))
        self.shown[offset_of(appended[0])] = (messages[0]["value"], {"duramen-cuts-after": after or "none"})
        return appended

    def delete_queue(self, queue):
        self.withdrawn(queue, list(self.elements[queue]), self.call("DELETE", queue))

    def fill(self):
        alice = self.enqueue("alice", 10)
        self.delete("alice", [alice[0], alice[1], alice[5]])
        # One is replaced twice, and one is deleted afterwards.
        for position in (alice[2], alice[3], alice[3], alice[4]):
            self.replace("alice", position)
        self.delete("alice", [alice[4]])
        self.delete("bob", self.enqueue("bob", 5))
        alice = [position for _ in range(5) for position in self.enqueue("alice")]
        self.delete("alice", [alice[2]])
        self.replace("alice", alice[3])
        self.delete("carol", self.enqueue("carol", 300)[::2])
        # Of two that are replaced one is before the cut, though its content is behind it.
        dave = self.enqueue("dave", 6)
        for position in (dave[0], dave[4]):
            self.replace("dave", position)
        self.replace("dave", self.rewrite("dave", dave[1], 3)[1])
        self.rewrite("erin", self.enqueue("erin", 4)[0], 0)
        self.replace("frank", self.enqueue("frank", 4)[3])
        self.delete_queue("frank")
        self.enqueue("frank", 2)

    def ends_with_deleted_elements(self):
        self.delete("grace", [position for _ in range(5) for position in self.enqueue("grace")])

    def ends_with_a_replacement(self):
        self.replace("grace", self.enqueue("grace", 3)[2])

    def ends_with_a_replacement_that_is_deleted(self):
        [position] = self.enqueue("grace")
        self.replace("grace", position)
        self.delete("grace", [position])

    def ends_with_a_rewrite(self):
        self.rewrite("grace", self.enqueue("grace", 5)[1], 3)

    def ends_with_a_rewrite_that_is_cut(self):
        self.rewrite("grace", self.enqueue("grace", 5)[1], 3)
        self.rewrite("grace", None, 0)

    def ends_with_a_cut(self):
        self.rewrite("grace", [position for _ in range(5) for position in self.enqueue("grace")][1], 0)

    def ends_with_a_deleted_queue(self):
        for _ in range(5):
            self.enqueue("grace", 2)
        self.delete_queue("grace")


ENDS = [end for name, end in vars(Log).items() if name.startswith("ends_with")]
PARTITIONS = len(ENDS)


class Queues:
    """A topic, each of whose partitions ends in another way."""

    def __init__(self, broker, name):
        self.broker, self.topic = broker, checks.unique(name)
        call(broker, "PUT", f"/v1/topics/{self.topic}", {"partitions": PARTITIONS, "settings": {"queue.enable": "true"}})
        self.logs = [Log(broker, self.topic, partition) for partition in range(PARTITIONS)]
        for log, end in zip(self.logs, ENDS):
            log.fill()
            end(log)

    def left(self):
        """All that readers see, as partition, offset, value and what headers tell."""
        return [(log.partition, offset, *it) for log in self.logs for offset, it in sorted(log.shown.items())]

    def count(self):
        return len(self.left())

    def values(self):
        return [(partition, offset, value) for partition, offset, value, _ in self.left()]

    def ends(self):
        """The offsets behind the logs' last batches."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "unused"})
        found = [consumer.get_watermark_offsets(TopicPartition(self.topic, log.partition))[1] for log in self.logs]
        consumer.close()
        return found

    def table(self):
        """The values of each queue, as a table of Kafka Streams gets them."""
        made = defaultdict(list)
        for log in self.logs:
            for queue, elements in log.elements.items():
                for offset in sorted(elements.values()):
                    made[log.name(queue)].append(log.shown[offset][0])
        return dict(made)


def in_order(records):
    """Puts those of one partition behind those of another, and leaves each in its order."""
    return sorted(records, key=lambda record: record[0])


@contextmanager
def reading(client, queues):
    directory = Path(tempfile.mkdtemp(prefix="duramen-queues-"))
    reader = Reader([*CLIENTS[client](), queues.broker.bootstrap, queues.topic, f"{queues.topic}-readers"], directory, 0)
    try:
        yield reader
    except BaseException:
        reader.kill()
        print(f"of {queues.count()} records {len(reader.processed)} were processed: {reader.processed[-5:]}; {reader.errors()}")
        raise
    reader.leave()
    shutil.rmtree(directory)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_consumer_passes_over_edits_to_the_end(broker, client):
    queues = Queues(broker, f"queues-{client}")
    with reading(client, queues) as reader:
        eventually("it has all that is left", lambda: len(reader.processed) >= queues.count(), PATIENCE_S)
        equal(in_order(reader.processed), queues.values(), client)
        before = asked(broker)
        time.sleep(LOOK_S)
        more = asked(broker) - before
        assert more < ASKED_MAX, f"{more} requests in {LOOK_S} s"
        for log in queues.logs:
            log.enqueue("heidi", 2)
        eventually("it has the new ones", lambda: len(reader.processed) >= queues.count(), PATIENCE_S)
        equal(in_order(reader.processed), queues.values(), client)


def test_kcat_ends_at_the_end(broker):
    queues = Queues(broker, "queues-end")
    command = ["kcat", "-C", "-b", broker.bootstrap, "-t", queues.topic, "-o", "beginning", "-e", "-q", "-f", "%p %o %s\\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * checks.SLOWNESS)
    equal(done.returncode, 0, done.stderr)
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    equal(in_order((int(partition), int(offset), value) for partition, offset, value in lines), queues.values())


def test_headers_tell_of_edits(broker):
    queues = Queues(broker, "queues-headers")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(queues.topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = [], set()

    def all_ended():
        for message in consumer.consume(1000, timeout=0.1):
            if message.error():
                equal(message.error().code(), KafkaError._PARTITION_EOF)
                ended.add(message.partition())
                continue
            headers = dict(message.headers() or [])
            # Its value is for replicas.
            equal("duramen-fact" in headers, len(headers) > 0, f"headers {headers}")
            headers.pop("duramen-fact", None)
            headers = {name: value.decode() for name, value in headers.items()}
            found.append((message.partition(), message.offset(), message.value().decode(), headers))
        return len(ended) == PARTITIONS

    eventually("the ends of all partitions", all_ended, PATIENCE_S)
    consumer.close()
    equal(in_order(found), queues.left())


class Jvm:
    """A process, and the words of each line that it says."""

    # How it ends when it is asked to.
    CODE = 0

    def __init__(self, command, **options):
        self.said = []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, **pipes, **options)
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line.split())

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if failure is None:
            self.ask_to_end()
        else:
            self.process.kill()
        code = self.process.wait(PATIENCE_S * checks.SLOWNESS)
        self.listener.join()
        if failure is not None:
            print("\n".join(" ".join(words) for words in self.said[-100:]))
        else:
            equal(code, self.CODE, f"how it ended, after {self.said[-20:]}")

    def ask_to_end(self):
        self.process.send_signal(signal.SIGTERM)

    def is_alive(self):
        assert self.process.poll() is None, f"it ended: {self.said[-60:]}"
        return True


class Table(Jvm):
    """Kafka Streams that keeps a topic as a table: see QueueTable.java."""

    def __init__(self, queues, kind, directory):
        names = [queues.broker.bootstrap, f"{queues.topic}-{kind}", str(directory), queues.topic, kind]
        super().__init__([*java("-Xmx256m"), "QueueTable", *names])

    def is_ready(self):
        return self.is_alive() and ["ready"] in self.said

    def told(self, what):
        made = defaultdict(list)
        for word, *rest in list(self.said):
            if word == what:
                made[rest[0]].append(rest[1])
        return dict(made)

    def has_got(self, queues):
        return self.is_alive() and sum(map(len, self.told("got").values())) >= queues.count()


def restored_from(queues, table):
    """Waits for a table, and checks that it was made of all that is left in a topic."""
    eventually("the table is there", table.is_ready, PATIENCE_S)
    equal(table.told("has"), {name: values[-1:] for name, values in queues.table().items() if values})
    equal(table.told("restored"), {f"{log.partition}": [f"{len(log.shown)}"] for log in queues.logs})


def test_kafka_streams_restores_a_global_table(broker, tmp_path):
    queues = Queues(broker, "queues-global")
    with Table(queues, "global", tmp_path) as table:
        restored_from(queues, table)


def test_kafka_streams_restores_a_table(broker, tmp_path):
    queues = Queues(broker, "queues-table")
    with Table(queues, "table", tmp_path / "first") as table:
        eventually("it has all that is left", lambda: table.has_got(queues), PATIENCE_S)
        equal(table.told("got"), {name: values for name, values in queues.table().items() if values})
    # What it has committed is restored from the topic.
    with Table(queues, "table", tmp_path / "second") as table:
        restored_from(queues, table)
        equal(table.told("got"), {})


class Sinks(Jvm):
    """Kafka Connect, which brings a topic into files: one for each level of isolation."""

    CODE = 128 + signal.SIGTERM

    def __init__(self, queues, directory):
        self.queues, self.directory = queues, directory
        strings = "org.apache.kafka.connect.storage.StringConverter"
        changes = "org.apache.kafka.connect.transforms"
        worker = {
            "bootstrap.servers": queues.broker.bootstrap,
            "key.converter": strings,
            "value.converter": strings,
            "listeners": f"HTTP://127.0.0.1:{free_port()}",
            "plugin.discovery": "service_load",
            "offset.storage.file.filename": directory / "unused",
            "offset.flush.interval.ms": 500,
        }
        # A line of a file is to say where its record came from.
        sink = {
            "connector.class": "FileStreamSink",
            "topics": queues.topic,
            "transforms": "hoist,insert",
            "transforms.hoist.type": f"{changes}.HoistField$Value",
            "transforms.hoist.field": "value",
            "transforms.insert.type": f"{changes}.InsertField$Value",
            "transforms.insert.partition.field": "partition",
            "transforms.insert.offset.field": "offset",
        }
        files = [self.written("worker", worker)]
        for level in LEVELS:
            own = {"name": f"{queues.topic}-{level}", "file": directory / level, "consumer.override.isolation.level": level}
            files.append(self.written(f"{level}.properties", {**sink, **own}))
        super().__init__([*java("-Xmx256m"), "org.apache.kafka.connect.cli.ConnectStandalone", *files])

    def written(self, name, settings):
        (self.directory / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(self.directory / name)

    def arrived(self, level):
        file = self.directory / level
        # The last line may not be there to its end.
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        found = [re.fullmatch(r"Struct{value=(\d+),partition=(\d+),offset=(\d+)}", line).groups() for line in lines]
        return [(int(partition), int(offset), value) for value, partition, offset in found]

    def brings_all(self):
        """Waits until both files have all that is left."""
        for level in LEVELS:

            def has_all():
                return self.is_alive() and len(self.arrived(level)) >= self.queues.count()

            eventually(f"{level} has all that is left", has_all, PATIENCE_S)
            equal(in_order(self.arrived(level)), self.queues.values(), level)

    def commits(self, expected):
        """Waits until both groups have committed what is expected, an offset of each partition."""
        partitions = [TopicPartition(self.queues.topic, log.partition) for log in self.queues.logs]
        for level in LEVELS:
            group = f"connect-{self.queues.topic}-{level}"
            consumer = Consumer({"bootstrap.servers": self.queues.broker.bootstrap, "group.id": group})

            def committed():
                return [partition.offset for partition in consumer.committed(partitions)]

            eventually(f"{level} commits {expected}", lambda: self.is_alive() and committed() == expected, PATIENCE_S)
            consumer.close()


def test_kafka_connect_brings_what_is_left_into_files(broker, tmp_path):
    queues = Queues(broker, "queues-connect")
    with Sinks(queues, tmp_path) as sinks:
        sinks.brings_all()
        # Connect commits what follows the last record. A lag stays where edits follow, as where a transaction ends.
        committed = [max(log.shown) + 1 for log in queues.logs]
        sinks.commits(committed)
        without_lag = [kind.__name__ for kind, at, end in zip(ENDS, committed, queues.ends()) if at == end]
        equal(without_lag, ["ends_with_a_replacement", "ends_with_a_rewrite"])
        for log in queues.logs:
            log.enqueue("heidi", 2)
        sinks.brings_all()
        sinks.commits(queues.ends())
    for log in queues.logs:
        log.delete("ivan", log.enqueue("ivan", 5))
        log.enqueue("heidi", 2)
    # Its successor begins where records were taken away.
    with Sinks(queues, tmp_path) as sinks:
        sinks.brings_all()
        sinks.commits(queues.ends())


class Spark(Jvm):
    """Spark, which reads topics when it is asked to: see spark/SparkReads.java."""

    # What Spark reaches for on Java 17, as its own scripts allow it.
    OPENED = [
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
        "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
    ]  # fmt: skip

    def __init__(self, broker, directory):
        opens = [word for package in self.OPENED for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        log4j = f"-Dlog4j2.configurationFile={COMPAT / 'java/log4j2.properties'}"
        command = ["java", "-Xmx512m", *JVM_OPTIONS[2:], log4j, *opens, "-cp", output("queues/spark/install.sh")]
        # Else it would take an address that others reach.
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        super().__init__([*command, "SparkReads", broker.bootstrap], cwd=directory, env=environment)

    def ask_to_end(self):
        self.process.stdin.close()

    def read(self, *words):
        """Returns what a read brought, and of how many batches it was if it was a stream."""
        before = len(self.said)
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

        def ends():
            return [int(line[1]) for line in self.said[before:] if line[:1] == ["end"]]

        [batches] = eventually(f"the end of {words}", lambda: self.is_alive() and ends(), SPARK_PATIENCE_S)
        found = [line[1:] for line in self.said[before:] if line[:1] == ["got"]]
        return in_order((int(partition), int(offset), value) for partition, offset, value in found), batches


@pytest.mark.timeout(SPARK_TEST_S * checks.SLOWNESS)
def test_spark_reads_batches_to_the_end(broker, tmp_path):
    queues = Queues(broker, "queues-spark-batch")
    with Spark(broker, tmp_path) as spark:
        # By default it fails where it finds that records were lost.
        equal(spark.read("batch", queues.topic), (queues.values(), 0))
        # Many ranges begin and end where records were taken away.
        equal(spark.read("batch", queues.topic, "minPartitions=60", *QUICK_COMMITTED), (queues.values(), 0))


@pytest.mark.timeout(SPARK_TEST_S * checks.SLOWNESS)
def test_spark_streams_to_the_end_and_goes_on(broker, tmp_path):
    queues = Queues(broker, "queues-spark-stream")
    at_once = ["stream", queues.topic, tmp_path / "at-once"]
    by_parts = ["stream", queues.topic, tmp_path / "by-parts", "maxOffsetsPerTrigger=200", *QUICK_COMMITTED]
    with Spark(broker, tmp_path) as spark:
        equal(spark.read(*at_once), (queues.values(), 1))
        found, batches = spark.read(*by_parts)
        equal(found, queues.values())
        assert batches > 10, f"only {batches} batches"
        for log in queues.logs:
            log.delete("ivan", log.enqueue("ivan", 5))
        for stream in (at_once, by_parts):
            equal(spark.read(*stream), ([], 1), "a stretch of which nothing is left")
        old = set(queues.values())
        for log in queues.logs:
            log.enqueue("heidi", 2)
        new = [record for record in queues.values() if record not in old]
        for stream in (at_once, by_parts):
            equal(spark.read(*stream), (new, 1), "what was appended later")
