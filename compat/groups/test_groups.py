"""Groups of every client while members join, leave and are killed, and brokers are killed.

A steady producer fills one topic for each client. Every client's group goes through the same: two members, a third joins,
one leaves, one is killed, another joins, the broker is killed and comes back, all leave, and one comes back. Of Duramen then
the same with three brokers that are one cluster, each of which is killed in turn: before it is back, records of every partition
are processed and committed with the other two. Each record must be processed at least once, as it was sent; committed positions
never go back, and a member that comes back begins exactly where the group left off.

A member is a process of the client's own: PROGRAM BOOTSTRAP TOPIC GROUP. It prints `PARTITION OFFSET VALUE` for each record
it processes, commits what it has processed, and leaves at SIGTERM.
"""

import shutil
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import cycle
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import calls
import checks
from broker import free_port, start, start_cluster
from connection import Closed
from judge import judge
from readers import Reader, programs

KIND = checks.broker_kind()
pytestmark = pytest.mark.timeout(400 * checks.SLOWNESS)
PARTITIONS = 4
PRODUCER = "the producer"
# Members of the classic protocol ask for a session of 3 s themselves.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
}
KAFKA_SETTINGS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
# Between two records to one topic.
PACE_S = 0.02
PATIENCE_S = 60

# How many brokers a cluster has. Kafka's may tell positions that are older than those it has told before (../FINDINGS.md).
COUNTS = {"duramen": (1, 3), "kafka": (1,)}
# Debian's kcat, whose librdkafka is an old one, takes a minute to leave now and then. Newer ones are beside it.
ONLY_ON_ONE = {"kcat"}
# kcat commits the record that it is handed while it ends, and does not print it.
LEAVES_IN_SILENCE = {"kcat"}
# kafka-go commits a record that it was handed before a rebalance as a member of the next generation (reader.go, version
# 0.4.51: `CommitMessages` goes to the generation at hand). The new owner of the partition may have committed more.
COMMITS_LATE = {"kafka-go"}


class Feed:
    """Produces one record after the other to every topic until it is paused."""

    def __init__(self, bootstrap, topics):
        self.sent = {topic: {} for topic in topics}
        self.count = dict.fromkeys(topics, 0)
        self.failures = []
        self.held = set()
        # Idempotent, so that what is sent again after a kill is there once, and where its acknowledgement says.
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "linger.ms": 0, "reconnect.backoff.max.ms": 200, "log_level": 0, "enable.idempotence": True,
        })  # fmt: skip
        self.running = threading.Event()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.running.set()
        self.thread.start()

    def _run(self):
        while not self.ended.is_set():
            for topic in self.sent:
                if self.running.is_set() and topic not in self.held:
                    self.send(topic)
            self.producer.poll(0)
            time.sleep(PACE_S)

    def send(self, topic):
        number = self.count[topic]
        self.count[topic] += 1
        value = f"{topic} {number}"

        def told(error, message):
            if error:
                self.failures.append(f"{value}: {error}")
            else:
                self.sent[topic][message.partition(), message.offset()] = value

        self.producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=told)

    def pause(self):
        self.running.clear()
        time.sleep(2 * PACE_S)
        assert self.producer.flush(PATIENCE_S) == 0, "the producer cannot deliver"

    @contextmanager
    def hold(self, topic):
        """Sends nothing to one topic meanwhile."""
        self.held.add(topic)
        time.sleep(2 * PACE_S)
        self.producer.flush(PATIENCE_S)
        try:
            yield
        finally:
            self.held.discard(topic)

    def end(self):
        self.ended.set()
        self.thread.join()


class Positions:
    """Looks at a group's committed positions again and again, also while brokers are away."""

    def __init__(self, bootstrap, group, topic):
        self.group, self.topic = group, topic
        # One after the other, until it is the one that knows.
        self.addresses = cycle(bootstrap.split(","))
        self.seen = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while not self.ended.is_set():
            try:
                with calls.connect(next(self.addresses)) as connection:
                    while self.look(connection) and not self.ended.wait(0.1):
                        pass
            except (OSError, Closed):
                pass
            self.ended.wait(0.1)

    def look(self, connection):
        wanted = [{"Name": self.topic, "PartitionIndexes": list(range(PARTITIONS))}]
        answer = connection.call("OffsetFetch", 5, {"GroupId": self.group, "Topics": wanted})
        # Loading, or no coordinator: a moment after a start, or it is another one.
        if answer["ErrorCode"] != 0:
            return False
        found = {each["PartitionIndex"]: each for each in answer["Topics"][0]["Partitions"]}
        if all(each["ErrorCode"] == 0 for each in found.values()):
            self.seen.append({index: each["CommittedOffset"] for index, each in found.items() if each["CommittedOffset"] >= 0})
        return True

    def end(self):
        self.ended.set()
        self.thread.join()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with calls.connect(next(self.addresses)) as connection:
                if self.look(connection):
                    return self.seen
            assert time.monotonic() < deadline, f"nobody knows the positions of {self.group}"
            time.sleep(0.1)


class Group:
    """One client's group on its way."""

    def __init__(self, name, command, bootstrap, topic, feed, directory):
        self.name, self.topic, self.feed = name, topic, feed
        self.directory = directory / name
        self.directory.mkdir()
        self.command = [*command, bootstrap, topic, f"group-{name}"]
        self.positions = Positions(bootstrap, f"group-{name}", topic)
        self.members = []

    def join(self, count=1):
        """Starts members, and returns when each of them has processed something."""
        joining = [Reader(self.command, self.directory, len(self.members) + number) for number in range(count)]
        self.members += joining
        self.until(lambda: all(member.processed for member in joining), "every new member has its share")
        return joining

    def until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            errors = "\n".join(f"{number}: {member.errors()}" for number, member in enumerate(self.members))
            assert time.monotonic() < deadline, f"never happened: {what}\n{errors}"
            time.sleep(0.05)

    def all_processed(self):
        """Waits until everything that was sent up to now is processed."""
        sent = set(self.feed.sent[self.topic])
        self.until(lambda: sent <= {one[:2] for member in self.members for one in list(member.processed)}, "all is processed")

    def churn(self):
        leaves, dies = self.join(2)
        [self.stays] = self.join()
        with self.feed.hold(self.topic) if self.name in LEAVES_IN_SILENCE else nullcontext():
            self.all_processed()
            leaves.leave()
        self.all_processed()
        dies.kill()
        [self.joins_last] = self.join()
        self.all_processed()

    def after_the_kill(self):
        """The members that stayed find the broker again, or who has its part, and go on everywhere; the feed still runs."""
        before = self.ends()
        self.until(lambda: _is_past(before, self.ends()), "records in every partition since then")
        self.all_processed()
        self.until(lambda: _is_past(before, self.positions.seen[-1]), "commits in every partition since then")

    def ends(self):
        ends = {}
        for partition, offset in set(self.feed.sent[self.topic]):
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def all_leave(self):
        self.all_processed()
        self.stays.leave()
        self.joins_last.leave()

    def comes_back(self):
        """The feed is paused, and nobody is in the group."""
        before = set(self.feed.sent[self.topic])
        for _ in range(5 * PARTITIONS):
            self.feed.send(self.topic)
        self.feed.producer.flush(PATIENCE_S)
        [back] = self.join()
        self.all_processed()
        back.leave()
        again = [one for one in back.processed if one[:2] in before]
        assert not again, f"processed again, although all had left and committed: {again}"

    def verdict(self):
        processed = [one for member in self.members for one in member.processed]
        sent = self.feed.sent[self.topic]
        repeated = len(processed) - len({one[:2] for one in processed})
        looks = len(self.positions.seen)
        print(f"     {self.name}: {len(sent)} sent, {repeated} processed again, {looks} looks at the positions\n", end="")
        wrong = judge(sent, processed, self.positions.end(), moves_back=self.name in COMMITS_LATE)
        assert not wrong, "\n".join(wrong[:20])

    def end(self):
        self.positions.ended.set()
        for member in self.members:
            if member.process.poll() is None:
                member.kill()


def _is_past(before, now):
    """By more than the one that may have been acknowledged, and not heard of yet."""
    return all(now.get(partition, 0) > offset + 1 for partition, offset in before.items())


def step(groups, failed, where, what):
    """One step of all groups at the same time; who fails is out."""
    began, ended = time.monotonic(), []

    def attempt(group):
        try:
            what(group)
        except Exception:
            failed[group.name] = traceback.format_exc()
        ended.append(group.name)

    going = [group for group in groups if group.name not in failed]
    threads = [threading.Thread(target=attempt, args=(group,)) for group in going]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{where}: {what.__name__} {time.monotonic() - began:.1f} s, the last was {ended[-1] if ended else 'nobody'}", flush=True)


def run(kind, commands, directory, count):
    """Runs the groups of these clients on one broker, or on a cluster of three. Returns who failed, and why."""
    where = f"on {count}"
    settings = {**SETTINGS, **(KAFKA_SETTINGS if kind == "kafka" else {})}
    failed = {}
    alone = count == 1
    with start(kind, free_port(), directory / "data", settings) if alone else start_cluster(kind, directory, settings) as under_test:
        brokers = [under_test] if alone else under_test.brokers
        topics = {name: checks.unique(name) for name in commands}
        admin = AdminClient({"bootstrap.servers": under_test.bootstrap})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, count) for topic in topics.values()]).values():
            made.result(PATIENCE_S)
        feed = Feed(under_test.bootstrap, topics.values())
        groups = [Group(name, commands[name], under_test.bootstrap, topics[name], feed, directory) for name in commands]
        try:
            step(groups, failed, where, Group.churn)
            for broker in brokers:
                broker.kill9()
                if not alone:
                    step(groups, failed, where, Group.after_the_kill)
                broker.restart()
            step(groups, failed, where, Group.after_the_kill)
            feed.pause()
            step(groups, failed, where, Group.all_leave)
            step(groups, failed, where, Group.comes_back)
            step(groups, failed, where, Group.verdict)
        finally:
            feed.end()
            for group in groups:
                group.end()
        if feed.failures:
            failed[PRODUCER] = "\n".join(feed.failures[:20])
    return failed


@pytest.fixture(scope="module")
def churned(request):
    """Returns who failed and why, by the number of brokers; the groups of all selected clients go through it together."""
    directory = Path(tempfile.mkdtemp(prefix="duramen-groups-"))
    selected = defaultdict(list)
    for item in request.session.items:
        if client := getattr(item, "callspec", None) and item.callspec.params.get("client"):
            selected[item.callspec.params["count"]].append(client)
    commands = programs()

    @cache
    def failures(count):
        (directory / str(count)).mkdir()
        return run(KIND, {client: commands[client]() for client in selected[count]}, directory / str(count), count)

    yield failures
    if request.session.testsfailed:
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)


@pytest.mark.parametrize(("count", "client"), [(count, client) for count in COUNTS[KIND] for client in programs() if count == 1 or client not in ONLY_ON_ONE])
def test_a_group_processes_every_record(churned, count, client):
    if client in churned(count):
        pytest.fail(churned(count)[client], pytrace=False)


@pytest.mark.parametrize("count", COUNTS[KIND])
def test_every_record_is_acknowledged(churned, count):
    if PRODUCER in churned(count):
        pytest.fail(churned(count)[PRODUCER], pytrace=False)
