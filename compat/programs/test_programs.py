"""Programs that bring old kafka-clients, each in a JVM of its own, one at a time.

Another client writes what they read, and reads and judges what they write.
"""

import json
import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import cache
from itertools import permutations
from pathlib import Path

HERE = Path(__file__).resolve().parent

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import CoordinatorNotAvailableError, NotCoordinatorError

import checks
from checks import equal, eventually

# A little less than a test may take.
PATIENCE_S = 110
KEYS = 20
JVM = ["-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
# What Flink and Spark reach for on Java 17, as their own scripts allow it.
OPENED = [
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
]  # fmt: skip


@cache
def class_paths():
    lines = subprocess.check_output([HERE / "install.sh"], text=True).splitlines()
    return dict(line.split(" ", 1) for line in lines)


class Program:
    """A JVM with the one class of a program's directory. Some run until their input ends, others end by themselves."""

    def __init__(self, name, *arguments):
        source = next((HERE / name).glob("*.java"))
        opens = [word for package in OPENED for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        command = ["java", *JVM, *opens, "-cp", class_paths()[name], source.stem, checks.bootstrap(), *map(str, arguments)]
        self.name = name
        self.said = tempfile.NamedTemporaryFile("ab")
        # Spark would take an address that others reach.
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.said, stderr=subprocess.STDOUT, env=environment)

    def output(self):
        return Path(self.said.name).read_text(errors="replace")

    def waits_for(self, what, holds):
        def holds_or_ended():
            return holds() or self.process.poll() is not None

        eventually(what, holds_or_ended, PATIENCE_S)
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode} before: {what}"

    def end(self):
        """Ends its input, and wants it to end without an error."""
        self.process.stdin.close()
        equal(self.process.wait(PATIENCE_S), 0, f"{self.name}'s exit code")

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextmanager
def running(name, *arguments):
    """Runs a program beside the block, ends it with the block, and prints its last lines if the block fails."""
    program = Program(name, *arguments)
    try:
        yield program
    except BaseException:
        print("\n".join(program.output().splitlines()[-60:]), flush=True)
        raise
    finally:
        program.kill()


def run(name, *arguments):
    """Runs a program to its end, and returns the lines that it printed."""
    with running(name, *arguments) as program:
        program.end()
        return program.output().splitlines()


@cache
def admin():
    return AdminClient({"bootstrap.servers": checks.bootstrap()})


def make_topic(name, partitions=2):
    topic = checks.unique(name)
    admin().create_topics([NewTopic(topic, partitions, checks.brokers())])[topic].result(20)
    return topic


def send(topic, records):
    """Sends values, or pairs of a key and a value."""
    producer = Producer({"bootstrap.servers": checks.bootstrap(), "linger.ms": 5})
    for record in records:
        key, value = record if isinstance(record, tuple) else (None, record)
        producer.produce(topic, str(value), key, headers=[("number", str(value))])
    equal(producer.flush(20), 0, "records that were not sent")


def keyed(numbers):
    return [(b"key %d" % (number % KEYS), number) for number in numbers]


def by_key(records):
    found = defaultdict(list)
    for key, value in records:
        found[key].append(value)
    return found


def equal_once(found, expected, what):
    """Compares without regard to order, and names what is missing and what is too much."""
    missing, more = (list((one - other).elements()) for one, other in permutations((Counter(expected), Counter(found))))
    assert not missing and not more, f"{what}: {len(missing)} missing {missing[:20]}, {len(more)} too many {more[:20]}"


class Reader:
    """Reads the committed records of a topic, each time from where it was."""

    def __init__(self, topic):
        settings = {"bootstrap.servers": checks.bootstrap(), "group.id": "unused", "enable.auto.commit": False}
        self.consumer = Consumer({**settings, "isolation.level": "read_committed"})
        # A broker may know of a topic a moment after it was made.
        partitions = eventually("the topic is known", lambda: self.consumer.list_topics(topic, 20).topics[topic].partitions)
        self.consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self.messages = []

    def read(self):
        while found := self.consumer.consume(1000, 0.05):
            for message in found:
                assert not message.error(), message.error()
            self.messages += found
        return self.messages

    def values(self):
        return [message.value().decode() for message in self.read()]

    def numbers(self):
        return map(int, self.values())

    def by_key(self):
        return by_key((message.key(), int(message.value())) for message in self.read())

    def has(self, count):
        return lambda: len(self.read()) >= count


def committed(group, topic):
    """Returns what a group has committed in a topic: the sum of the offsets, and the metadata of those that have some."""
    # By kafka-python, because librdkafka 2.16 reads beyond the end of an offset's metadata.
    client = KafkaAdminClient(bootstrap_servers=checks.bootstrap())
    try:
        offsets = client.list_group_offsets(group)[group]
    except (CoordinatorNotAvailableError, NotCoordinatorError):
        return 0, []
    finally:
        client.close()
    there = [offset for partition, offset in offsets.items() if partition.topic == topic and offset.offset >= 0]
    return sum(offset.offset for offset in there), [offset.metadata for offset in there if offset.metadata]


def newest_checkpoint(directory):
    complete = [metadata.parent for metadata in directory.glob("*/chk-*/_metadata")]
    return max(complete, key=lambda checkpoint: int(checkpoint.name.removeprefix("chk-")))


def test_flink_writes_each_record_once_though_the_job_fails_and_is_killed():
    source, sink = make_topic("flink-in"), make_topic("flink-out")
    reader = Reader(sink)
    with tempfile.TemporaryDirectory(prefix="duramen-flink-") as directory:
        directory = Path(directory)
        send(source, range(1000))
        with running("flink", source, sink, directory, 1500) as job:
            job.waits_for("the first checkpoint's records", reader.has(1000))
            send(source, range(1000, 2000))
            job.waits_for("all records after the failure", reader.has(2000))
            assert "the failure that is wanted" in job.output(), "it did not fail"
            send(source, range(2000, 2500))
            job.waits_for("some records of another checkpoint", reader.has(2001))
            send(source, range(2500, 3000))
            job.kill()
        checkpoint = newest_checkpoint(directory)
        with running("flink", source, sink, directory, "never", checkpoint) as job:
            send(source, range(3000, 3500))
            job.waits_for("all records after the kill", reader.has(3500))
            # It commits when it fetches again, so the last ones may be ten seconds late.
            job.waits_for("some of the source's offsets", lambda: committed(source, source)[0] > 0)
    equal_once(reader.numbers(), range(3500), "what is committed")


def test_spark_goes_on_where_its_query_stopped():
    source, sink = make_topic("spark-in", 3), make_topic("spark-out")
    reader = Reader(sink)
    with tempfile.TemporaryDirectory(prefix="duramen-spark-") as directory:
        for begin, end in ((0, 1000), (1000, 1500)):
            send(source, ((b"key %d" % number, number) for number in range(begin, end)))
            run("spark", "stream", source, sink, directory)
            equal_once(reader.numbers(), range(end), "what it wrote")
    for message in reader.messages:
        number = message.value()
        equal((message.key(), message.headers()), (b"key " + number, [("number", number)]), "what came with a value")


def test_spark_reads_ranges_of_offsets():
    source, sink = make_topic("spark-in", 1), make_topic("spark-out")
    send(source, range(1000))
    begin, end = (json.dumps({source: {"0": offset}}) for offset in (100, 900))
    run("spark", "batch", source, sink, f"startingOffsets={begin}", f"endingOffsets={end}", "minPartitions=4")
    equal_once(Reader(sink).numbers(), range(100, 900), "what it wrote")


def test_spring_s_listener_sends_what_it_refuses_to_a_topic_of_dead_letters():
    source, sink = make_topic("spring-in"), make_topic("spring-out")
    dead = f"{source}.DLT"
    admin().create_topics([NewTopic(dead, 2, checks.brokers())])[dead].result(20)
    good, bad = [f"good {number}" for number in range(500)], [f"bad {number}" for number in range(5)]
    send(source, [*good[:250], *bad, *good[250:]])
    reader, letters = Reader(sink), Reader(dead)
    with running("spring-kafka", "dead-letters", source, sink) as listeners:
        listeners.waits_for("all good records and three tries of each bad one", reader.has(len(good) + 3 * len(bad)))
        listeners.waits_for("the dead letters", letters.has(len(bad)))
        listeners.end()
    equal_once(reader.values(), good + 3 * bad, "what was heard")
    equal_once(letters.values(), bad, "the dead letters")
    for message in letters.messages:
        headers = dict(message.headers())
        equal(headers["kafka_dlt-original-topic"], source.encode(), "the topic that is named")
        equal(int.from_bytes(headers["kafka_dlt-original-partition"]), message.partition(), "the partition that is named")
    equal(committed(source, source)[0], len(good) + len(bad), "what is committed")


def test_spring_s_listener_sends_and_commits_by_one_transaction():
    source, sink = make_topic("spring-in"), make_topic("spring-out")
    send(source, range(200))
    reader = Reader(sink)
    with running("spring-kafka", "transactions", source, sink) as listeners:
        listeners.waits_for("two records for each", reader.has(2 + 2 * 200))
        listeners.waits_for("the offsets", lambda: committed(source, source)[0] >= 200)
        listeners.end()
        assert "the failure that is wanted" in listeners.output(), "no transaction was aborted"
    expected = ["first", "second", *(f"{number} {which}" for number in range(200) for which in ("first", "second"))]
    equal_once(reader.values(), expected, "what is committed")


def test_debezium_goes_on_where_its_topic_of_offsets_says():
    sink, offsets = make_topic("debezium-out"), checks.unique("debezium-offsets")
    reader = Reader(sink)
    for batches in (20, 50):
        with running("debezium", "records", sink, offsets, checks.brokers(), batches) as engine:
            engine.waits_for("the records", reader.has(10 * batches))
            engine.end()
        ids = (json.loads(message.key())["id"] for message in reader.read())
        equal_once(ids, range(1, 10 * batches + 1), "the ids of what was sent")
        kept = {message.key(): json.loads(message.value()) for message in Reader(offsets).read()}
        equal(kept, {b'["engine",{"source":"simple"}]': {"id": 10 * batches}}, "the offsets that are kept")
    resource = ConfigResource(ConfigResource.Type.TOPIC, offsets)
    settings = admin().describe_configs([resource])[resource].result(20)
    equal(settings["cleanup.policy"].value, "compact", "how the topic of offsets is cleaned")


def test_debezium_recovers_its_history_of_schemas():
    topic = checks.unique("debezium-history")
    assert "true" in run("debezium", "record", topic, 51), "the history does not exist"
    partitions = admin().list_topics(topic, 20).topics[topic].partitions
    equal([len(partition.replicas) for partition in partitions.values()], [checks.brokers()], "the replicas of its partitions")
    for changes in (51, 21):
        # Each third change drops what the one before it made.
        expected = (f"shop.orders-{number} DECIMAL" for number in range(1, changes, 3))
        tables = (line for line in run("debezium", "recover", topic, changes) if line.startswith("shop."))
        equal_once(tables, expected, f"tables after {changes} changes")


def test_parallel_consumer_remembers_beyond_its_offset_what_it_has_processed():
    source, sink = make_topic("parallel-in"), make_topic("parallel-out")
    reader = Reader(sink)
    send(source, keyed(range(2000)))
    # The last one of its key: nothing waits for it but the offset.
    refused = 2000 - KEYS
    arguments = ("PERIODIC_CONSUMER_SYNC", source, sink)
    with running("parallel-consumer", *arguments, refused) as processors:
        processors.waits_for("all but what is refused", reader.has(1999))
        processors.end()
    offset, metadata = committed(source, source)
    assert offset < 2000 and metadata, f"committed: {offset}, with {metadata}"
    with running("parallel-consumer", *arguments) as processors:
        processors.waits_for("what was refused", reader.has(2000))
        processors.waits_for("all offsets", lambda: committed(source, source) == (2000, []))
        processors.end()
    equal(reader.by_key(), by_key(keyed(range(2000))), "what was processed of each key")


def test_parallel_consumer_sends_and_commits_by_one_transaction_though_it_is_killed():
    source, sink = make_topic("parallel-in"), make_topic("parallel-out")
    reader = Reader(sink)
    send(source, keyed(range(2000)))
    arguments = ("PERIODIC_TRANSACTIONAL_PRODUCER", source, sink)
    with running("parallel-consumer", *arguments) as processors:
        processors.waits_for("the first transactions", reader.has(1))
        send(source, keyed(range(2000, 6000)))
        processors.kill()
    with running("parallel-consumer", *arguments) as processors:
        processors.waits_for("all records", reader.has(6000))
        processors.waits_for("all offsets", lambda: committed(source, source) == (6000, []))
        processors.end()
    equal(reader.by_key(), by_key(keyed(range(6000))), "what is committed of each key")


# Not within a test: it may have to download.
class_paths()
