"""Programs in a JVM that read queue topics: Kafka Streams, Kafka Connect and Spark."""

import os
import re
import signal
import subprocess
import threading
from collections import defaultdict
from contextlib import suppress

from confluent_kafka import Consumer, TopicPartition

import checks
from broker import COMPAT, JVM_OPTIONS, free_port
from checks import equal, eventually
from edits import PATIENCE_S, in_order
from killing import java, output

# On a quiet machine none of Spark's reads takes more than ten seconds.
SPARK_PATIENCE_S = 120
# The first test of Spark may have to download it.
SPARK_TEST_S = 400
# Between the partitions of a topic Spark would wait for the end of a fetch.
QUICK_COMMITTED = ["kafka.isolation.level=read_committed", "kafka.fetch.max.wait.ms=20"]
LEVELS = ["read_uncommitted", "read_committed"]


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
        try:
            code = self.process.wait(PATIENCE_S * checks.SLOWNESS)
        except subprocess.TimeoutExpired:
            # All threads say where they stand.
            self.process.send_signal(signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
            self.process.kill()
            self.listener.join()
            print("\n".join(" ".join(words) for words in self.said[-2000:]))
            raise
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
