"""MirrorMaker 2 copies to the broker from another one of its kind, and from Apache Kafka.

It is killed on the way. Records, with what they carry, settings and the positions of groups must arrive, each record once:
it writes by transactions.
"""

import subprocess
import tempfile
import time
from contextlib import nullcontext
from functools import cache
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

import checks
import reach
from broker import free_port, start
from checks import equal

TOPIC, GROUP = "orders", "readers"
PARTITIONS = 2
PATIENCE_S = 80
# The first group of a broker has its topic made, and a broker may have been killed; librdkafka leaves it to the application to ask again.
NO_COORDINATOR = (KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR)


class Cluster:
    """What is copied from."""

    def __init__(self, alias, bootstrap):
        self.alias, self.bootstrap = alias, bootstrap
        self.topic, self.group = checks.unique(TOPIC), checks.unique(GROUP)
        self.sent = {partition: [] for partition in range(PARTITIONS)}
        self.producer = Producer({**reach.librdkafka(bootstrap), "transactional.id": self.topic})
        self.producer.init_transactions(30)
        topic = NewTopic(self.topic, PARTITIONS, checks.brokers(), config={"retention.ms": "987654321"})
        admin(bootstrap).create_topics([topic])[self.topic].result(20)

    def write(self, count):
        """Some of it twice: once it is aborted."""
        for commits in (False, True):
            self.producer.begin_transaction()
            for partition, sent in self.sent.items():
                for number in range(len(sent), len(sent) + count):
                    record = (b"key %d" % number, b"value %d" % number, [("h", b"x")], 1_700_000_000_000 + number)
                    key, value, headers, timestamp = record
                    self.producer.produce(self.topic, value, key, partition, headers=headers, timestamp=timestamp)
                    if commits:
                        sent.append(record)
            if commits:
                self.producer.commit_transaction(20)
            else:
                self.producer.flush(20)
                self.producer.abort_transaction(20)

    def commit(self, offset):
        consumer = Consumer({**reach.librdkafka(self.bootstrap), "group.id": self.group})

        def is_committed():
            try:
                consumer.commit(offsets=[TopicPartition(self.topic, 0, offset)], asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in NO_COORDINATOR:
                    raise
                return False
            return True

        checks.eventually("the commit is taken", is_committed)
        consumer.close()

    @property
    def copy(self):
        return f"{self.alias}.{self.topic}"


@cache
def admin(bootstrap):
    """Cached, because a client that is collected cancels what it was asked for."""
    return AdminClient(reach.librdkafka(bootstrap))


class MirrorMaker:
    def __init__(self, clusters, directory):
        self.log = directory / "mirror.log"
        self.properties = directory / "mirror.properties"
        settings = {
            "clusters": ", ".join([*(cluster.alias for cluster in clusters), "here"]),
            "here.bootstrap.servers": checks.bootstrap(),
            **{f"here.{key}": value for key, value in reach.client_properties().items()},
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "here.exactly.once.source.support": "enabled",
            "replication.factor": checks.brokers(),
            "tasks.max": 2,
            "plugin.discovery": "service_load",
            **{f"{what}.storage.replication.factor": checks.brokers() for what in ("config", "offset", "status")},
            **{f"{what}.topic.replication.factor": checks.brokers() for what in ("heartbeats", "checkpoints", "offset-syncs")},
            **{f"{what}.interval.seconds": 1 for what in ("refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets")},
            "sync.group.offsets.enabled": "true",
            "sync.topic.acls.enabled": "false",
            "emit.heartbeats.enabled": "false",
            # Each position has one of its own on the other side.
            "offset.lag.max": 0,
        }
        for cluster in clusters:
            route = f"{cluster.alias}->here"
            settings |= {
                f"{cluster.alias}.bootstrap.servers": cluster.bootstrap,
                **{f"{cluster.alias}.{key}": value for key, value in reach.client_properties().items()},
                f"{cluster.alias}.consumer.isolation.level": "read_committed",
                f"{route}.enabled": "true",
                f"{route}.topics": cluster.topic,
                f"{route}.groups": cluster.group,
                f"here->{cluster.alias}.enabled": "false",
            }
        self.properties.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))

    def start(self):
        libs = subprocess.check_output([COMPAT / "kafka/fetch.sh"], text=True).strip()
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={COMPAT / 'kafka/log4j2.properties'}"]
        command = ["java", *options, "-cp", f"{libs}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(self.properties)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def until(self, what, holds):
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
                raise AssertionError(f"not within {PATIENCE_S} s: {what}\n{tail}")
            time.sleep(0.1)


class Copied:
    """What is committed in the copy of a topic so far."""

    def __init__(self, cluster):
        self.cluster = cluster
        settings = {**reach.librdkafka(), "group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
        self.consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 500})
        self.found = {partition: [] for partition in range(PARTITIONS)}
        self.is_assigned = False

    def is_whole(self):
        if not self.is_assigned:
            if self.cluster.copy not in self.consumer.list_topics(timeout=10).topics:
                return False
            self.consumer.assign([TopicPartition(self.cluster.copy, partition, 0) for partition in range(PARTITIONS)])
            self.is_assigned = True
        for message in self.consumer.consume(500, timeout=0.2):
            if not message.error():
                self.found[message.partition()].append((message.key(), message.value(), message.headers(), message.timestamp()[1]))
        return all(len(self.found[partition]) >= len(sent) for partition, sent in self.cluster.sent.items())

    def close(self):
        for _ in range(3):
            self.is_whole()
        self.consumer.close()


def committed(group, topic):
    """Below zero: nothing, or nobody could say."""
    consumer = Consumer({**reach.librdkafka(), "group.id": group})
    try:
        [found] = consumer.committed([TopicPartition(topic, 0)], 20)
        return found.offset
    except KafkaException as error:
        if error.args[0].code() not in NO_COORDINATOR:
            raise
        return -1
    finally:
        consumer.close()


def key_at(topic, offset):
    """Of the first record from there on."""
    consumer = Consumer({**reach.librdkafka(), "group.id": "unused", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, offset)])

    def record():
        message = consumer.poll(0.2)
        return message if message and not message.error() else None

    key = checks.eventually(f"a record of {topic} from {offset} on", record, 20).key()
    consumer.close()
    return key


def test_topics_groups_and_settings_arrive_and_each_record_once_though_it_is_killed():
    with tempfile.TemporaryDirectory(prefix="duramen-mirror-") as directory:
        directory = Path(directory)
        # What it makes has as many replicas everywhere, and this Kafka is one broker, which knows no users.
        has_kafka = checks.broker_kind() != "kafka" and checks.brokers() == 1 and not reach.USER
        with start("kafka", free_port(), directory / "kafka") if has_kafka else nullcontext() as kafka:
            clusters = [Cluster("left", checks.strict_bootstrap())]
            clusters += [Cluster("kafka", kafka.bootstrap)] if has_kafka else []
            mirror = MirrorMaker(clusters, directory)
            try:
                copies = go_through(mirror, clusters)
            finally:
                mirror.kill()
    for cluster, copied in zip(clusters, copies):
        for partition, sent in cluster.sent.items():
            equal(copied.found[partition], sent, f"{cluster.copy}-{partition}")


def go_through(mirror, clusters):
    for cluster in clusters:
        cluster.write(200)
    copies = [Copied(cluster) for cluster in clusters]
    mirror.start()
    for copied in copies:
        mirror.until(f"the first records of {copied.cluster.copy}", copied.is_whole)
    for cluster in clusters:
        # In the middle of what it is doing then.
        cluster.write(300)
    mirror.kill()
    for cluster in clusters:
        cluster.write(100)
    mirror.start()
    for copied in copies:
        mirror.until(f"the last records of {copied.cluster.copy}", copied.is_whole)
    for cluster in clusters:
        cluster.write(10)
        # 200 aborted ones, the marker, and 50 more: of what is copied the fifty-first.
        cluster.commit(200 + 1 + 50)
        positions = [-1]
        mirror.until(f"the position of {cluster.group}", lambda: positions.append(committed(cluster.group, cluster.copy)) or positions[-1] > 0)
        # It may be behind, but never ahead: nobody who moves over there misses a record.
        key = key_at(cluster.copy, positions[-1])
        assert 0 < int(key.split()[1]) <= 50, f"{cluster.group} would go on at {key}"
        [settings] = admin(checks.bootstrap()).describe_configs([ConfigResource(ConfigResource.Type.TOPIC, cluster.copy)]).values()
        equal(settings.result(20)["retention.ms"].value, "987654321")
    for copied in copies:
        mirror.until(f"all of {copied.cluster.copy}", copied.is_whole)
        copied.close()
    return copies
