"""Queue topics whose elements were edited, what is left of them, and consumers of every client that read them."""

import itertools
import json
import shutil
import sys
import tempfile
import urllib.request
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from kafka.partitioner.default import murmur2

import checks
from checks import equal
from readers import Reader, programs

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60
# Members of the classic protocol ask for a session of 3 s.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
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


def offset_of(position):
    return int(position.split(".")[2])


def positions_of(told, first, count):
    """The positions of the records of an entry."""
    term, entry, _ = map(int, told[first].split("."))
    return [f"{term}.{entry}.{entry + at}" for at in range(count)]


class Log:
    """A partition of a queue topic, and what its readers see: values, each of which is a number, and what headers tell of edits."""

    def __init__(self, broker, topic, partition, partitions, width=0):
        self.broker, self.topic, self.partition, self.partitions, self.width = broker, topic, partition, partitions, width
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
            self.names[word] = next(name for name in names if (murmur2(name.encode()) & 0x7FFFFFFF) % self.partitions == self.partition)
        return self.names[word]

    def call(self, method, queue, path="", body=None):
        return call(self.broker, method, f"/v1/topics/{self.topic}/queues/{self.name(queue)}{path}", body)

    def message(self):
        return {"value": f"{next(self.numbers):0{self.width}}"}

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

    LOG = Log

    def __init__(self, broker, name, settings=None, width=0):
        self.broker, self.topic = broker, checks.unique(name)
        self.create(PARTITIONS, settings or {})
        self.logs = [self.LOG(broker, self.topic, partition, PARTITIONS, width) for partition in range(PARTITIONS)]
        for log, end in zip(self.logs, ENDS):
            self.filled(log, end)

    def create(self, partitions, settings):
        call(self.broker, "PUT", f"/v1/topics/{self.topic}", {"partitions": partitions, "settings": {"queue.enable": "true", **settings}})

    def filled(self, log, end):
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
def reading(client, queues, group="readers"):
    directory = Path(tempfile.mkdtemp(prefix="duramen-queues-"))
    reader = Reader([*CLIENTS[client](), queues.broker.bootstrap, queues.topic, f"{queues.topic}-{group}"], directory, 0)
    try:
        yield reader
    except BaseException:
        reader.kill()
        print(f"of {queues.count()} records {len(reader.processed)} were processed: {reader.processed[-5:]}; {reader.errors()}")
        raise
    reader.leave()
    shutil.rmtree(directory)
