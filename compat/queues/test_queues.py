"""Consumers of every client on a queue topic whose elements were edited: they get what is left in order, and come to the end.

Elements are deleted and replaced, queues are rewritten, cut and deleted. Of some batches a part is left then, of some nothing. Each
partition ends in another way. Where nothing is left at the end, the answer is a batch that stands for those that were passed over.
A consumer that waits there must not ask for the same offset again and again. A record that is appended later reaches it.

kafka-python and aiokafka read as of committed records: then they look into every control batch for the end of a transaction.
So do a sink of Kafka Connect and a read of Spark, beside others that read all records.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

import checks
from broker import free_port, start
from checks import equal, eventually
from edits import CLIENTS, ENDS, PARTITIONS, PATIENCE_S, SETTINGS, Queues, asked, in_order, reading
from jvms import QUICK_COMMITTED, SPARK_TEST_S, Sinks, Spark, Table, restored_from

# A consumer that waits at the end asks about twice a second; one that asks in a loop asks thousands of times.
LOOK_S, ASKED_MAX = 3, 300


@pytest.fixture(scope="module")
def broker():
    directory = Path(tempfile.mkdtemp(prefix="duramen-queues-"))
    with start(checks.broker_kind(), free_port(), directory / "data", SETTINGS) as one:
        yield one
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
