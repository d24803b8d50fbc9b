"""Consumers of every client on a queue topic with deleted elements: they get all the others in order, and come to the end.

Of some batches a part is left, of some nothing, and at first nothing of the last five: there the answer is a batch that stands for
those that were passed over. A consumer that waits there must not ask for the same offset again and again. A record that is
appended later reaches it.
"""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

import checks
from broker import free_port, start
from checks import equal, eventually
from readers import Reader, programs

PATIENCE_S = 60
# Members of the classic protocol ask for a session of 3 s.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
# A consumer that waits at the end asks about twice a second; one that asks in a loop asks thousands of times.
LOOK_S, ASKED_MAX = 3, 300


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


class Queues:
    """A topic, and the values that are left in it, in order: each is its number."""

    def __init__(self, broker, name):
        self.broker, self.topic = broker, checks.unique(name)
        call(broker, "PUT", f"/v1/topics/{self.topic}", {"partitions": 1, "settings": {"queue.enable": "true"}})
        self.count = 0
        self.left = {}

    def enqueue(self, queue, count=1):
        """Appends a batch. Returns the positions of its records."""
        messages = [{"value": f"{number}"} for number in range(self.count, self.count + count)]
        told = call(self.broker, "POST", f"/v1/topics/{self.topic}/queues/{queue}/messages", {"messages": messages})
        self.count += count
        term, entry, _ = map(int, told["first"].split("."))
        for at, message in enumerate(messages):
            self.left[entry + at] = message["value"]
        return [f"{term}.{entry}.{entry + at}" for at in range(count)]

    def delete(self, queue, positions):
        told = call(self.broker, "POST", f"/v1/topics/{self.topic}/queues/{queue}/delete", {"positions": positions})
        equal(told["absent"], 0)
        for position in positions:
            del self.left[int(position.split(".")[2])]

    def fill(self):
        alice = self.enqueue("alice", 10)
        self.delete("alice", [alice[0], alice[1], alice[5]])
        self.delete("bob", self.enqueue("bob", 5))
        alice = [position for _ in range(5) for position in self.enqueue("alice")]
        self.delete("alice", [alice[2]])
        self.delete("carol", self.enqueue("carol", 300)[::2])
        self.delete("dave", [position for _ in range(5) for position in self.enqueue("dave")])

    def expected(self):
        return [(0, offset, value) for offset, value in sorted(self.left.items())]


@contextmanager
def reading(client, queues):
    directory = Path(tempfile.mkdtemp(prefix="duramen-queues-"))
    reader = Reader([*programs()[client](), queues.broker.bootstrap, queues.topic, f"{queues.topic}-readers"], directory, 0)
    try:
        yield reader
    except BaseException:
        reader.kill()
        print(f"of {len(queues.left)} records {len(reader.processed)} were processed: {reader.processed[-5:]}; {reader.errors()}")
        raise
    reader.leave()
    shutil.rmtree(directory)


@pytest.mark.parametrize("client", programs())
def test_a_consumer_passes_over_deleted_elements_to_the_end(broker, client):
    queues = Queues(broker, f"queues-{client}")
    queues.fill()
    with reading(client, queues) as reader:
        eventually("it has all that is left", lambda: len(reader.processed) >= len(queues.left), PATIENCE_S)
        equal(reader.processed, queues.expected(), client)
        before = asked(broker)
        time.sleep(LOOK_S)
        more = asked(broker) - before
        assert more < ASKED_MAX, f"{more} requests in {LOOK_S} s"
        queues.enqueue("erin", 2)
        eventually("it has the new ones", lambda: len(reader.processed) >= len(queues.left), PATIENCE_S)
        equal(reader.processed, queues.expected(), client)


def test_kcat_ends_at_the_end(broker):
    queues = Queues(broker, "queues-end")
    queues.fill()
    command = ["kcat", "-C", "-b", broker.bootstrap, "-t", queues.topic, "-o", "beginning", "-e", "-q", "-f", "%p %o %s\\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * checks.SLOWNESS)
    equal(done.returncode, 0, done.stderr)
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    equal([(int(partition), int(offset), value) for partition, offset, value in lines], queues.expected())
