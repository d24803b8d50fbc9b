"""Clients on queue topics whose segments were erased: they get what is left, with its offsets and in order, and come to the end.

The first batch of each log goes whole, of others a part goes, and segments are written anew. Logs end in what an erasure left there,
or in masks: edits that no erasure has taken from the disks. Producers of Kafka compress their batches, number them, and write in
transactions: these lose records, too. Some readers begin in a gap, where their groups have committed an offset that was erased.
"""

import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import checks
from broker import COMPAT, free_port, start, start_cluster
from checks import equal, eventually
from edits import CLIENTS, PATIENCE_S, SETTINGS, Log, Queues, asked, in_order, reading
from jvms import QUICK_COMMITTED, SPARK_TEST_S, Sinks, Spark, Table, restored_from

BINARY = os.environ.get("DURAMEN_BIN", str(COMPAT.parent / "target/release/duramen"))
# Erasures write segments anew one after the other, on all nodes.
ERASURE_PATIENCE_S = 120
LAG = "queue.erase.lag.ms"
HOUR_MS = "3600000"
# A value has so many digits, so that a log has several segments.
WIDTH = 40
# These leave nothing behind the last records that are left.
MASKED_ENDS = [Log.ends_with_deleted_elements, Log.ends_with_a_replacement_that_is_deleted, Log.ends_with_a_cut]
# Consumers that wait at the end ask some ten times a second; one that asks in a loop asks thousands of times.
LOOK_S, ASKED_MAX = 1, 300
# These commit how far they have come, also behind the last record. Others commit what follows the last record.
COMMIT_POSITIONS = ["consumer-java", "kafka-python", "aiokafka"]
# As our programs set them up: the others read what was aborted, too.
READ_COMMITTED = ["kafkajs", "rust-rdkafka", "kcat", "consumer-librdkafka", "kafka-python", "aiokafka"]
# How far the times of records are ahead of those of control batches.
AHEAD_MS = 30 * 60_000
# They have the other codecs by extensions alone.
GZIP_ALONE = ["kafkajs", "kafka-python", "aiokafka"]
# It stands still behind a compressed batch that has lost its last record (../FINDINGS.md).
WITHOUT_CODECS = ["kafka-go"]


@pytest.fixture(scope="module", params=["one", "three"])
def site(request):
    """One broker, or three that are one cluster."""
    directory = Path(tempfile.mkdtemp(prefix="duramen-erased-"))
    settings = {**SETTINGS, "log.cleaner.backoff.ms": "100"}
    if request.param == "one":
        brokers = start(checks.broker_kind(), free_port(), directory / "data", settings)
    else:
        brokers = start_cluster(checks.broker_kind(), directory, settings)
        # Any node takes a request, and passes it on to the one that leads.
        brokers.native = brokers.brokers[0].native
    with brokers:
        yield brokers
    shutil.rmtree(directory)


one_broker = pytest.mark.parametrize("site", ["one"], indirect=True)


@pytest.fixture(scope="module")
def erased(site):
    return Erased(site)


@pytest.fixture(scope="module")
def packed(site):
    return Packed(site, "erased-packed", ["snappy", "lz4", "zstd"])


@pytest.fixture(scope="module")
def gzipped(site):
    return Packed(site, "erased-gzip", ["gzip"])


@pytest.fixture(scope="module")
def plain(site):
    return Packed(site, "erased-plain", ["none"])


def await_erasure(queues):
    """Waits until no replica has anything that edits took away."""

    def report():
        command = [BINARY, "queue", "erasure", queues.topic, "--output", "json", "--bootstrap", queues.broker.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * checks.SLOWNESS)
        told.append(done.stdout + done.stderr)
        if done.returncode != 0:
            return False
        rows = json.loads(done.stdout)["replicas"]
        equal(len(rows), len(queues.logs) * len(queues.broker.brokers), "replicas")
        return all(row["state"] == "erased" for row in rows)

    told = []
    try:
        eventually("the erasure of every replica", report, ERASURE_PATIENCE_S)
    except AssertionError:
        print(told[-1])
        raise
    for log in queues.logs:
        for broker in queues.broker.brokers:
            directory = broker.data_dir / f"{queues.topic}-{log.partition}"
            eventually(
                f"nothing in {directory} of what edits took away", lambda log=log, directory=directory: has_nothing_of(directory, log), PATIENCE_S
            )
            # An erasure gives the segment a name with its entry.
            rewritten = list(directory.glob("*-*.log"))
            assert len(rewritten) >= queues.REWRITTEN_MIN, f"only {rewritten} were written anew"


def has_nothing_of(directory, log):
    """Whether no segment has a value that edits took away, as far as it is not compressed."""
    try:
        found = b"".join(segment.read_bytes() for segment in directory.glob("*.log"))
    except FileNotFoundError:
        # What an erasure has replaced goes a little later.
        return False
    return not any(value.encode() in found for value in log.gone())


class ErasedLog(Log):
    """A partition that keeps what was written to it, also what was taken away."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.written = []
        # By offset: the values of aborted transactions, and the times that a producer gave.
        self.aborted, self.times = {}, {}

    def message(self):
        message = super().message()
        self.written.append(message["value"])
        return message

    def gone(self):
        left = {value for value, _ in self.shown.values()} | set(self.aborted.values())
        return [value for value in self.written if value not in left]

    def in_gap(self):
        """An offset in the middle of the longest stretch, before a record, of which nothing is left."""
        before, after = max(itertools.pairwise([-1, *sorted(self.shown)]), key=lambda pair: pair[1] - pair[0])
        return (before + after) // 2


class Erased(Queues):
    """A topic, each of whose partitions was erased: every other one up to its end, and of the rest later edits follow."""

    REWRITTEN_MIN = 3
    LOG = ErasedLog

    def __init__(self, site):
        super().__init__(site, "erased", {"segment.bytes": "4096"}, WIDTH)
        self.set_lag("0")
        await_erasure(self)
        self.set_lag(HOUR_MS)
        for log, end in zip(self.masked_at_the_end(), MASKED_ENDS):
            end(log)

    def filled(self, log, end):
        # The log begins with a gap.
        log.delete("zoe", log.enqueue("zoe", 5))
        log.fill()
        log.fill()
        end(log)

    def masked_at_the_end(self):
        return self.logs[1::2]

    def set_lag(self, lag_ms):
        entry = ConfigEntry(LAG, lag_ms, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(PATIENCE_S)


class Packed(Queues):
    """A topic of which each partition has batches of a codec: numbered ones, those of a transaction, and those of an aborted one."""

    REWRITTEN_MIN = 2

    def __init__(self, site, name, codecs):
        self.broker, self.topic = site, checks.unique(name)
        # Later than the control batches among the records, which have times, too, and no later than brokers allow.
        self.base_ms = int(time.time() * 1000) + AHEAD_MS
        self.create(len(codecs), {"segment.bytes": "4096", LAG: "0", "delete.retention.ms": "0"})
        self.logs = [ErasedLog(site, self.topic, partition, len(codecs), WIDTH) for partition in range(len(codecs))]
        for log, codec in zip(self.logs, codecs):
            log.enqueue("vanishing", 3)
            eventually("files that name a queue", lambda log=log: all(self.named(log, "vanishing")), PATIENCE_S)
            log.delete_queue("vanishing")
            self.write(log, codec)
        await_erasure(self)
        # The statements of the deletions before go with this erasure.
        for log in self.logs:
            log.delete("alice", [list(log.elements["alice"])[3]])
        await_erasure(self)
        for log in self.logs:
            eventually("files without a deleted queue's name", lambda log=log: not any(self.named(log, "vanishing")), PATIENCE_S)

    def named(self, log, word):
        """The files of each replica that name a queue: segments, and tables of the index."""
        name = log.name(word).encode()

        def holds(path):
            try:
                return name in path.read_bytes()
            except FileNotFoundError:
                # What an erasure has replaced goes a little later.
                return False

        directories = [broker.data_dir / f"{self.topic}-{log.partition}" for broker in self.broker.brokers]
        return [[path for path in directory.iterdir() if path.suffix in (".log", ".keys") and holds(path)] for directory in directories]

    def write(self, log, codec):
        common = {"bootstrap.servers": self.broker.bootstrap, "compression.type": codec, "linger.ms": 50}
        numbered = Producer({**common, "enable.idempotence": True})
        transactional = Producer({**common, "transactional.id": f"{self.topic}-{log.partition}"})
        transactional.init_transactions(PATIENCE_S)
        batches = []
        for transaction in range(3):
            for _ in range(2):
                batches.append(self.produced(log, "alice", numbered, 30))
            transactional.begin_transaction()
            word = "carol" if transaction == 1 else "bob"
            records = self.produced(log, word, transactional, 20)
            if word == "carol":
                transactional.abort_transaction(PATIENCE_S)
                log.aborted |= records
            else:
                transactional.commit_transaction(PATIENCE_S)
                batches.append(records)
        for queue, count in (("alice", 180), ("bob", 40)):
            found = self.elements(log, queue, count)
            log.appended(queue, [{"value": value} for _, value in found], [position for position, _ in found])
        alice, bob = list(log.elements["alice"]), list(log.elements["bob"])
        equal(sorted(log.shown), sorted(offset for batch in batches for offset in batch), "offsets")
        # The first batch goes whole, as does the first transaction. Others lose each second record, their ends, all but one.
        log.delete("alice", [*alice[:30], *alice[30:60:2], alice[60], alice[89], *alice[90:104], *alice[105:120], *alice[170:]])
        log.delete("bob", [*bob[:20], *bob[21:30]])

    def produced(self, log, word, producer, count):
        """Sends a batch, and returns the value of each offset."""
        sent = {}
        refused = []

        def delivered(error, message):
            if error:
                refused.append(error)
            else:
                sent[message.offset()] = message.value().decode()

        for _ in range(count):
            # Digits that hardly compress: a log has several segments.
            value = f"{random.getrandbits(256):080}"
            log.written.append(value)
            time_ms = self.base_ms + 1000 * len(log.written)
            producer.produce(self.topic, value, log.name(word), log.partition, on_delivery=delivered, timestamp=time_ms)
        equal(producer.flush(PATIENCE_S), 0, "batches that nobody has taken")
        equal(refused, [])
        for at, offset in enumerate(sorted(sent)):
            log.times[offset] = self.base_ms + 1000 * (len(log.written) - count + 1 + at)
        return sent

    def elements(self, log, queue, count):
        """Waits for the elements of a queue, and returns their positions and values."""

        def found():
            told = log.call("GET", queue, "/messages?limit=1000")["elements"]
            return len(told) == count and [(it["position"], it["value"]) for it in told]

        return eventually(f"{count} elements of {queue}", found, PATIENCE_S)

    def values_of(self, *, committed):
        """What readers of committed records see, or of all."""
        found = []
        for log in self.logs:
            seen = {offset: value for offset, (value, _) in log.shown.items()}
            seen |= {} if committed else log.aborted
            found += [(log.partition, *it) for it in sorted(seen.items())]
        return found


def consumer_of(queues, **settings):
    common = {"bootstrap.servers": queues.broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    return Consumer({**common, "enable.partition.eof": True, **settings})


def commit_in_gaps(queues, group):
    """Has a group begin where records were erased. Returns what it is to read."""
    begins = [log.in_gap() for log in queues.logs]
    consumer = consumer_of(queues, **{"group.id": f"{queues.topic}-{group}"})
    offsets = [TopicPartition(queues.topic, log.partition, offset) for log, offset in zip(queues.logs, begins)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return lambda: [record for record in queues.values() if record[1] >= begins[record[0]]]


def committed(queues, group):
    consumer = consumer_of(queues, **{"group.id": f"{queues.topic}-{group}"})
    partitions = [TopicPartition(queues.topic, log.partition) for log in queues.logs]
    found = [it.offset for it in consumer.committed(partitions, PATIENCE_S)]
    consumer.close()
    return found


def asked_of_all(site):
    return sum(asked(broker) for broker in site.brokers)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_consumer_reads_what_erasures_left(erased, packed, gzipped, plain, client):
    site = erased.broker
    produced = plain if client in WITHOUT_CODECS else gzipped if client in GZIP_ALONE else packed
    group, in_gaps = f"{client}-readers", f"{client}-in-gaps"
    left = commit_in_gaps(erased, in_gaps)
    with ExitStack() as readers:
        readings = [
            (readers.enter_context(reading(client, erased, group)), erased.values),
            (readers.enter_context(reading(client, erased, in_gaps)), left),
            (readers.enter_context(reading(client, produced, group)), lambda: produced.values_of(committed=client in READ_COMMITTED)),
        ]

        def all_have_all():
            return all(len(reader.processed) >= len(expected()) for reader, expected in readings)

        def compare():
            eventually("all have all that is left", all_have_all, PATIENCE_S)
            for (reader, expected), name in zip(readings, ("from the beginning", "from a gap", "of producers")):
                equal(in_order(reader.processed), expected(), f"{client} {name}")

        compare()
        if client in COMMIT_POSITIONS:
            ends = erased.ends()
            for each in (group, in_gaps):
                eventually(f"{each} commits {ends}", lambda each=each: committed(erased, each) == ends, PATIENCE_S)
        before = asked_of_all(site)
        time.sleep(LOOK_S)
        more = asked_of_all(site) - before
        assert more < ASKED_MAX, f"{more} requests in {LOOK_S} s"
        grown = [(log, log.enqueue("heidi", 2)) for log in erased.masked_at_the_end()]
        compare()
    # The next client is to find masks at the end again.
    for log, positions in grown:
        log.delete("heidi", positions)


def test_kcat_ends_at_the_end_of_an_erased_log(erased):
    command = ["kcat", "-C", "-b", erased.broker.bootstrap, "-t", erased.topic, "-o", "beginning", "-e", "-q", "-f", "%p %o %s\\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * checks.SLOWNESS)
    equal(done.returncode, 0, done.stderr)
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    equal(in_order((int(partition), int(offset), value) for partition, offset, value in lines), erased.values())


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_consumer_in_a_gap_comes_to_the_end(erased, packed, gzipped, plain, level):
    for queues in (erased, packed, gzipped, plain):
        consumer = consumer_of(queues, **{"isolation.level": level})
        begins = [log.in_gap() for log in queues.logs]
        consumer.assign([TopicPartition(queues.topic, log.partition, begin) for log, begin in zip(queues.logs, begins)])
        found, ended = [], {}

        def all_ended(consumer=consumer, queues=queues, found=found, ended=ended):
            for message in consumer.consume(1000, timeout=0.1):
                if message.error():
                    equal(message.error().code(), KafkaError._PARTITION_EOF)
                    ended[message.partition()] = message.offset()
                else:
                    found.append((message.partition(), message.offset(), message.value().decode()))
            return len(ended) == len(queues.logs)

        eventually("the ends of all partitions", all_ended, PATIENCE_S)
        consumer.close()
        equal([ended[log.partition] for log in queues.logs], queues.ends(), "where it came to the end")
        values = queues.values_of(committed=level == "read_committed") if isinstance(queues, Packed) else queues.values()
        equal(in_order(found), [record for record in values if record[1] >= begins[record[0]]], level)


def test_times_of_erased_records_lead_to_the_next_ones(packed, gzipped, plain):
    for queues in (packed, gzipped, plain):
        consumer = consumer_of(queues)
        for log in queues.logs:
            left = sorted({**log.shown, **log.aborted})
            for offset, time_ms in sorted(log.times.items()):
                [told] = consumer.offsets_for_times([TopicPartition(queues.topic, log.partition, time_ms)], PATIENCE_S)
                expected = next((it for it in left if it >= offset), OFFSET_END)
                equal(told.offset, expected, f"{queues.topic}, partition {log.partition}, the time of {offset}")
        consumer.close()


@one_broker
def test_kafka_streams_restores_tables_from_an_erased_log(erased, tmp_path):
    with Table(erased, "global", tmp_path / "global") as table:
        restored_from(erased, table)
    with Table(erased, "table", tmp_path / "first") as table:
        eventually("it has all that is left", lambda: table.has_got(erased), PATIENCE_S)
        equal(table.told("got"), {name: values for name, values in erased.table().items() if values})
    # What it has committed is restored from the topic.
    with Table(erased, "table", tmp_path / "second") as table:
        restored_from(erased, table)
        equal(table.told("got"), {})


@one_broker
def test_kafka_connect_brings_what_erasures_left_into_files(erased, tmp_path):
    with Sinks(erased, tmp_path) as sinks:
        sinks.brings_all()
        sinks.commits([max(log.shown) + 1 for log in erased.logs])


@one_broker
@pytest.mark.timeout(SPARK_TEST_S * checks.SLOWNESS)
def test_spark_reads_what_erasures_left(erased, packed, tmp_path):
    with Spark(erased.broker, tmp_path) as spark:
        equal(spark.read("batch", erased.topic), (erased.values(), 0))
        # Many ranges begin and end where records were erased.
        equal(spark.read("batch", erased.topic, "minPartitions=60", *QUICK_COMMITTED), (erased.values(), 0))
        equal(spark.read("batch", packed.topic), (packed.values_of(committed=False), 0))
        equal(spark.read("batch", packed.topic, *QUICK_COMMITTED), (packed.values_of(committed=True), 0))
        found, batches = spark.read("stream", erased.topic, tmp_path / "parts", "maxOffsetsPerTrigger=400", *QUICK_COMMITTED)
        equal(found, erased.values())
        assert batches > 5, f"only {batches} batches"
