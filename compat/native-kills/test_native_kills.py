"""Writers of the native API while one of three nodes is killed and comes back: each acknowledged record is there once, in order."""

import base64
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import checks
import drivers
from broker import free_port, start, start_cluster
from checks import equal

# Slugs after which the same request is sent again; one without a slug is of the transport.
PASSING = {"", "no-leader", "outcome-unknown", "not-enough-replicas", "busy"}
# Those of them after which nothing was appended.
NOTHING_DONE = {"no-leader", "not-enough-replicas", "busy"}
# Records that each writer has to bring through before the next thing happens.
STEP = 20
PATIENCE_S = 90


@pytest.fixture(scope="module")
def place():
    return drivers.built()


@contextmanager
def directory():
    """A directory that stays when the test fails."""
    path = Path(tempfile.mkdtemp(prefix="duramen-native-kills-"))
    print(f"the data and the brokers' logs are in {path}")
    yield path
    shutil.rmtree(path)


@contextmanager
def driver(name, place):
    one = drivers.Driver(name, place)
    try:
        yield one
    finally:
        one.end()


def call(one, addresses, method, request):
    """Calls at one node after the other until the answer is certain; also tells whether an earlier try may have been carried out."""
    deadline, in_doubt = time.monotonic() + PATIENCE_S * checks.SLOWNESS, False
    while True:
        for address in addresses():
            told = one.call(address, method, request)
            slug = told.get("problem", {}).get("slug")
            if slug not in PASSING:
                return told, in_doubt
            in_doubt |= slug not in NOTHING_DONE
            assert time.monotonic() < deadline, f"{one.name}: {method} got no answer but {told}"
        time.sleep(0.05)


def done(one, addresses, method, request):
    told, _ = call(one, addresses, method, request)
    assert "problem" not in told, f"{one.name}: {method} {request}: {told}"
    return told["answers"]


def value(number):
    return base64.b64encode(b"record %d" % number).decode()


class Writer(threading.Thread):
    """Appends one record after the other until it is stopped, each until it is acknowledged."""

    def __init__(self, one, addresses):
        super().__init__(daemon=True)
        self.one, self.addresses = one, addresses
        self.topic = checks.unique(f"native-kills-{one.name}")
        self.acknowledged = 0
        self.stopped, self.failure = False, None

    def run(self):
        try:
            self.prepare()
            while not self.stopped:
                self.append({"topic": self.topic, "records": [{"value": value(self.acknowledged)}], "timeoutMs": 5000})
                self.acknowledged += 1
        except BaseException as failure:
            self.failure = failure

    def prepare(self):
        told, _ = call(self.one, self.addresses, "Topics.CreateTopic", {"name": self.topic, "partitions": 1})
        assert "problem" not in told or told["problem"]["slug"] == "topic-exists", told
        checks.eventually("every node knows the topic", lambda: all(self.knows(address) for address in self.addresses()), PATIENCE_S)

    def knows(self, address):
        return "problem" not in self.one.call(address, "Logs.Tail", {"topic": self.topic})

    def has(self, count):
        if self.failure is not None:
            raise self.failure
        return self.acknowledged >= count

    def check(self):
        """Reads from each node what has to be there."""
        expected = [(number, value(number)) for number in range(self.acknowledged)]
        for address in self.addresses():
            answers = done(self.one, lambda: [address], "Logs.Read", {"topic": self.topic})  # noqa: B023
            records = drivers.one_page(answers)["records"]
            equal([(int(each["position"].get("offset", 0)), each["record"]["value"]) for each in records], expected, f"by {address}")


class SessionWriter(Writer):
    """By a session: an append that is sent again is taken once."""

    def prepare(self):
        super().prepare()
        [self.session] = done(self.one, self.addresses, "Logs.OpenSession", {})

    def append(self, request):
        session = {**self.session, "sequence": self.acknowledged}
        [answer] = done(self.one, self.addresses, "Logs.Append", {**request, "session": session})
        equal(int(answer["last"].get("offset", 0)), self.acknowledged)


class GuardWriter(Writer):
    """By the position of the log's last record, which tells what became of an append in doubt."""

    last = None

    def append(self, request):
        guard = {"at": self.last} if self.last else {"none": True}
        told, in_doubt = call(self.one, self.addresses, "Logs.Append", {**request, "guard": guard})
        if "problem" in told:
            assert in_doubt and told["problem"]["slug"] == "last-mismatch", told
            term, entry, offset = told["problem"]["metadata"]["last"].split(".")
            self.last = {"term": int(term), "entry": entry, "offset": offset}
        else:
            self.last = told["answers"][0]["last"]
        equal(int(self.last.get("offset", 0)), self.acknowledged)


def test_acknowledged_records_are_there_once_and_in_order_though_one_of_three_is_killed(place):
    with directory() as path, start_cluster("duramen", path) as cluster, driver("python", place) as python, driver("go", place) as go:
        addresses = lambda: [broker.native for broker in cluster.brokers]  # noqa: E731
        writers = [GuardWriter(python, addresses), SessionWriter(go, addresses)]
        for writer in writers:
            writer.start()

        def progress():
            for writer in writers:
                wanted = writer.acknowledged + STEP
                checks.eventually(f"{writer.one.name} appends", lambda: writer.has(wanted), PATIENCE_S)  # noqa: B023

        progress()
        for broker in cluster.brokers:
            broker.kill9()
            progress()
            broker.restart()
            progress()
        for writer in writers:
            writer.stopped = True
            writer.join()
            assert writer.failure is None, writer.failure
            writer.check()
        print("records:", [writer.acknowledged for writer in writers])


@pytest.mark.parametrize("name", drivers.NAMES)
def test_a_session_that_a_log_must_have_forgotten_is_expired(name, place, restarted):
    broker, topic = restarted
    with driver(name, place) as one:
        [session] = done(one, lambda: [broker.native], "Logs.OpenSession", {})
        request = {"topic": topic, "records": [{"value": value(0)}], "session": {**session, "sequence": 7}}
        told = one.call(broker.native, "Logs.Append", request)
        drivers.check_problem(name, told, "session-expired", {}, "an append in the middle of a session")


@pytest.fixture(scope="module")
def restarted(place):
    """A broker that was restarted, and a topic from before: after the restart come new sessions, which the topic has never had."""
    with directory() as path, start("duramen", free_port(), path / "data") as broker, driver("python", place) as one:
        topic = checks.unique("native-kills-sessions")
        done(one, lambda: [broker.native], "Topics.CreateTopic", {"name": topic, "partitions": 1})
        broker.kill9()
        broker.restart()
        yield broker, topic
