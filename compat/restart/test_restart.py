"""What must be there after `kill -9`, and after a stop, and a start on the same directory.

All scenarios share one broker that is killed once and stopped once. A scenario is a generator: it prepares, yields, and gets a
connection to the broker as it is after the kill; yields, and gets one after the stop.
"""

import os
import shutil
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

KIND = os.environ["BROKER_KIND"]

import pytest

import calls
import checks
from batch import batch, batches
from broker import free_port, start
from checks import equal
from members import Member, python_member
from test_transactional_log import visible, write
from transactional import Transactional, describe, settle, until_settled

# Kafka waits for the session of the broker that was killed; a shorter one makes it wait less.
SETTINGS = {"kafka": {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}, "duramen": {}}
COORDINATOR_NOT_AVAILABLE = 15
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED = 45, 47, 90
ENDS = ("kill", "stop")

scenarios = {}


def survives(function):
    scenarios[function.__name__] = function
    return function


def named(name, function, *more):
    """Makes a scenario of a function that takes more than a connection."""

    def run(connection):
        return function(connection, *more)

    run.__name__ = name
    return run


def java_member():
    classes, libs = (subprocess.check_output([COMPAT / script], text=True).strip() for script in ("java/compile.sh", "kafka/fetch.sh"))
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={COMPAT / 'java/log4j2.properties'}"]
    return ["java", *options, "-cp", f"{classes}:{libs}/*", "GroupMember"]


def answer(connection, topic, producer, sequence, value):
    """Of today: Kafka forgets at a start the producers whose newest record is older than a day."""
    producer_id, epoch = producer
    today = int(time.time() * 1000)
    said = calls.produce(connection, topic, batch([value], timestamp=today, producer_id=producer_id, epoch=epoch, sequence=sequence))
    return said["ErrorCode"], said["BaseOffset"]


@survives
def records_keep_their_bytes_and_offsets(connection):
    topic = calls.new_topic(connection, partitions=2)
    for number in range(20):
        calls.produce(connection, topic, batch([b"%d" % number * 1000]), number % 2)
    before = [calls.fetch(connection, topic, partition=p)["Records"] for p in (0, 1)]
    for _ in ENDS:
        connection = yield topic, 2
        for partition in (0, 1):
            found = calls.fetch(connection, topic, partition=partition)
            assert found["Records"] == before[partition], "the bytes differ"
            equal((found["HighWatermark"], found["LogStartOffset"]), (10, 0))
    equal(calls.produce(connection, topic, batch([b"next"]))["BaseOffset"], 10)


@survives
def repeated_idempotent_batches_are_still_known_and_a_gap_still_found(connection):
    # Kafka's snapshots keep the last batch of a producer only, and so does what it rebuilds after a kill.
    known = 1 if KIND == "kafka" else 5
    topic = calls.new_topic(connection)
    producer = calls.new_producer_id(connection)
    for number in range(7):
        equal(answer(connection, topic, producer, number, b"%d" % number), (0, number))
    for next_sequence, _ in enumerate(ENDS, start=7):
        connection = yield topic, 1
        for number in range(next_sequence - known, next_sequence):
            equal(answer(connection, topic, producer, number, b"%d" % number), (0, number), f"a repeat of one of the last {known}")
        equal(answer(connection, topic, producer, next_sequence + 1, b"gap"), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1))
        equal(answer(connection, topic, producer, next_sequence, b"%d" % next_sequence), (0, next_sequence))
    equal(calls.fetched_values(connection, topic), [b"%d" % number for number in range(9)])


@survives
def an_older_producer_epoch_stays_fenced(connection):
    topic = calls.new_topic(connection)
    producer_id, _ = calls.new_producer_id(connection)
    equal(answer(connection, topic, (producer_id, 3), 0, b"v"), (0, 0))
    for _ in ENDS:
        connection = yield topic, 1
        equal(answer(connection, topic, (producer_id, 2), 1, b"x"), (INVALID_PRODUCER_EPOCH, -1))


@survives
def producer_ids_are_never_given_twice(connection):
    topic = calls.new_topic(connection)
    given = [calls.new_producer_id(connection)[0] for _ in range(3)]
    for _ in ENDS:
        connection = yield topic, 1
        given += [calls.new_producer_id(connection)[0] for _ in range(3)]
    equal(len(set(given)), len(given), f"ids in {given}")


@survives
def topics_keep_their_ids_and_settings_and_the_cluster_its_id(connection):
    topic = calls.new_topic(connection, partitions=3, message_timestamp_type="LogAppendTime", max_message_bytes="2000")
    before, cluster_id = calls.topic_id(connection, topic), connection.call("Metadata", 12)["ClusterId"]
    for _ in ENDS:
        connection = yield topic, 3
        equal((calls.topic_id(connection, topic), connection.call("Metadata", 12)["ClusterId"]), (before, cluster_id))
        assert calls.produce(connection, topic, batch([b"v"]))["LogAppendTimeMs"] > 0
        equal(calls.produce(connection, topic, batch([b"x" * 3000]))["ErrorCode"], 10)


@survives
def a_deleted_topic_stays_deleted_and_its_successor_empty(connection):
    gone, again = calls.new_topic(connection), calls.new_topic(connection)
    for topic in (gone, again):
        calls.produce(connection, topic, batch([b"old"]))
        connection.call("DeleteTopics", 6, {"Topics": [{"Name": topic}], "TimeoutMs": 5000})
    while calls.create_topic(connection, again)["ErrorCode"] != 0:
        time.sleep(0.05)
    calls.wait_for_leaders(connection, again, 1)
    for _ in ENDS:
        connection = yield again, 1
        equal(calls.describe_topic(connection, gone)["ErrorCode"], 3)
        equal(calls.fetched_values(connection, again), [])
        equal(calls.list_offset(connection, again, calls.LATEST)["Offset"], 0)


@survives
def the_beginning_moved_by_delete_records_stays_moved(connection):
    topic = calls.new_topic(connection)
    for number in range(6):
        calls.produce(connection, topic, batch([b"%d" % number]))
    equal(calls.delete_records(connection, topic, 4)["LowWatermark"], 4)
    for end in ENDS:
        connection = yield topic, 1
        # Kafka writes the beginning down once a minute, and may forget it when it is killed.
        forgotten = [0] if KIND == "kafka" else []
        found = calls.list_offset(connection, topic, calls.EARLIEST)["Offset"]
        assert found in [4, *forgotten], f"the beginning after a {end} is {found}"
        equal(calls.list_offset(connection, topic, calls.LATEST)["Offset"], 6)


@survives
def leader_epochs_never_fall(connection):
    topic = calls.new_topic(connection)
    epochs = [calls.describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"]]
    for _ in ENDS:
        connection = yield topic, 1
        calls.produce(connection, topic, batch([b"v"]))
        epochs.append(calls.describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"])
        written = batches(calls.fetch(connection, topic)["Records"])[-1].leader_epoch
        equal(written, epochs[-1], "the epoch in the batch")
    equal(epochs, sorted(epochs))


@survives
def timestamps_are_found_as_before(connection):
    topic = calls.new_topic(connection)
    for number in range(50):
        calls.produce(connection, topic, batch([b"v" * 500], timestamp=1000 + 10 * number))
    for _ in ENDS:
        connection = yield topic, 1
        for asked, offset in [(0, 0), (1001, 1), (1255, 26), (1490, 49), (1491, -1)]:
            equal(calls.list_offset(connection, topic, asked)["Offset"], offset, f"timestamp {asked}")
        equal(calls.list_offset(connection, topic, calls.MAX_TIMESTAMP)["Offset"], 49)


CLIENTS = {
    "confluent-kafka": python_member(COMPAT / "confluent-kafka"),
    "kafka-python": python_member(COMPAT / "kafka-python"),
    "aiokafka": python_member(COMPAT / "aiokafka"),
    "java": java_member(),
}


def members_stay(connection, client):
    """A member whose broker goes and comes back reads everything once: it goes on at what it has committed."""
    topic, group = calls.new_topic(connection, partitions=2), checks.unique("group")
    member = Member(CLIENTS[client], connection.bootstrap, group, topic)
    sent = 0
    for end in (*ENDS, None):
        for number in range(sent, sent + 50):
            equal(calls.produce(connection, topic, batch([b"%d" % number]), number % 2)["ErrorCode"], 0)
        sent += 50
        deadline = time.monotonic() + 30 * checks.SLOWNESS
        while len(member.read) < sent:
            assert time.monotonic() < deadline, f"read {len(member.read)} of {sent}; it said {''.join(member.errors[-20:])}"
            time.sleep(0.02)
        equal(sorted(member.read), list(range(sent)))
        equal(sum(committed(connection, group, topic, partition)[0] for partition in (0, 1)), sent, "committed")
        if end:
            connection = yield topic, 2
    member.leave()


for client in CLIENTS:
    survives(named(f"a_{client}_member_goes_on_where_it_has_committed", members_stay, client))


@survives
def committed_offsets_keep_their_metadata(connection):
    topic, group = calls.new_topic(connection, partitions=2), checks.unique("group")
    offsets = [{"PartitionIndex": p, "CommittedOffset": 5 + p, "CommittedLeaderEpoch": 0, "CommittedMetadata": "äöü" * p} for p in (0, 1)]
    body = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [{"Name": topic, "Partitions": offsets}]}
    # Kafka makes the topic of offsets when someone asks for a coordinator.
    connection.call("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [group]})
    deadline, answers = time.monotonic() + 10, [COORDINATOR_NOT_AVAILABLE]
    while any(answers):
        assert time.monotonic() < deadline, answers
        time.sleep(0.05)
        answers = [each["ErrorCode"] for each in connection.call("OffsetCommit", 9, body)["Topics"][0]["Partitions"]]
    for _ in ENDS:
        connection = yield topic, 2
        equal([committed(connection, group, topic, partition) for partition in (0, 1)], [(5, 0, ""), (6, 0, "äöü")])


def committed(connection, group, topic, partition):
    """A coordinator that is loading says so; clients ask again."""
    body = {"Groups": [{"GroupId": group, "Topics": [{"Name": topic, "PartitionIndexes": [partition]}]}], "RequireStable": True}
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while (answer := connection.call("OffsetFetch", 9, body)["Groups"][0])["ErrorCode"] in (14, 15, 16):
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    equal(answer["ErrorCode"], 0)
    [found] = answer["Topics"][0]["Partitions"]
    return found["CommittedOffset"], found["CommittedLeaderEpoch"], found["Metadata"]


BOTH_PROTOCOLS = (1, 2)


def transactional(connection, version, id=None):
    """A transactional producer by hand, whose coordinator is there."""
    until_settled(lambda: connection.call("FindCoordinator", 6, {"KeyType": 1, "CoordinatorKeys": ["any"]})["Coordinators"][0])
    return Transactional(connection, version, id).init()


@survives
def an_open_transaction_stays_open_goes_on_and_is_committed_whole(connection):
    topic = calls.new_topic(connection, partitions=2)
    producers = [transactional(connection, version) for version in BOTH_PROTOCOLS]
    for partition, producer in enumerate(producers):
        write(producer, topic, b"begun", partition=partition)
    for end in ENDS:
        connection = yield topic, 2
        for partition, producer in enumerate(producers):
            producer.connection = connection
            found = calls.fetch(connection, topic, partition=partition, IsolationLevel=1)
            equal((found["LastStableOffset"], found["Records"]), (0, b""), f"after a {end}")
            equal(describe(producer)["TransactionState"], "Ongoing")
            write(producer, topic, end.encode(), partition=partition)
    for partition, producer in enumerate(producers):
        producer.commit()
        settle(producer)
        equal(visible(connection, topic, partition=partition), [b"begun", b"kill", b"stop"])


@survives
def what_was_committed_or_aborted_stays_so(connection):
    topic = calls.new_topic(connection)
    kept = []
    producers = [transactional(connection, version) for version in BOTH_PROTOCOLS]
    for number in range(10):
        producer = producers[number % 2]
        write(producer, topic, b"%d" % number)
        producer.finish(number % 3 != 1)
        kept += [b"%d" % number] if number % 3 != 1 else []
    for each in producers:
        settle(each)
    named = calls.fetch(connection, topic, IsolationLevel=1)["AbortedTransactions"]
    for end in ENDS:
        connection = yield topic, 1
        equal(visible(connection, topic), kept, f"after a {end}")
        equal(calls.fetch(connection, topic, IsolationLevel=1)["AbortedTransactions"], named, f"after a {end}")


@survives
def an_end_that_was_answered_stays_the_end_with_all_its_markers(connection):
    topic = calls.new_topic(connection, partitions=8)
    producers = {(version, commits): transactional(connection, version) for version in BOTH_PROTOCOLS for commits in (True, False)}
    answers = {}
    for (version, commits), producer in producers.items():
        for partition in range(8):
            write(producer, topic, b"%d %d" % (version, commits), partition=partition)
        # Its markers may or may not be written when the broker is killed.
        answers[producer] = producer.end(commits)
        equal(answers[producer]["ErrorCode"], 0)
    for _ in ENDS:
        connection = yield topic, 8
        for (_, commits), producer in producers.items():
            producer.connection = connection
            equal(settle(producer), "CompleteCommit" if commits else "CompleteAbort")
            equal(producer.end(commits), answers[producer], "asked again, it is told the same")
        for partition in range(8):
            equal(visible(connection, topic, partition=partition), [b"1 1", b"2 1"])


@survives
def pending_offsets_stay_pending_until_their_transaction_ends(connection):
    topic = calls.new_topic(connection)
    groups = {version: checks.unique("group") for version in BOTH_PROTOCOLS}
    connection.call("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": list(groups.values())})
    producers = {version: transactional(connection, version) for version in BOTH_PROTOCOLS}
    for version, producer in producers.items():
        producer.send_offset(groups[version], topic, 7)
    for end in ENDS:
        connection = yield topic, 1
        for version, producer in producers.items():
            producer.connection = connection
            equal(committed(connection, groups[version], topic, 0)[0], -1, f"after a {end}")
            equal(describe(producer)["TransactionState"], "Ongoing")
    for version, producer in producers.items():
        producer.commit()
        settle(producer)
        checks.eventually("it is committed", lambda: committed(connection, groups[version], topic, 0)[0] == 7)


@survives
def a_fenced_producer_stays_fenced_and_its_successors_have_later_epochs(connection):
    topic = calls.new_topic(connection)
    firsts = [transactional(connection, version) for version in BOTH_PROTOCOLS]
    lasts = [transactional(connection, first.version, first.id) for first in firsts]
    for _ in ENDS:
        connection = yield topic, 1
        for first, last in zip(firsts, lasts):
            first.connection = last.connection = connection
            equal(until_settled(lambda: first.add(topic)), [PRODUCER_FENCED])
            before = last.epoch
            last.init()
            equal(last.epoch, before + 1)
            write(last, topic, b"goes on")
            last.commit()
            settle(last)


class Run:
    """One scenario on its way; it has failed when `failure` is set."""

    def __init__(self, function, connection):
        self.name, self.failure, self.ended = function.__name__, None, False
        self.steps = function(connection)
        self.advance(lambda: next(self.steps))

    def go_on(self, connection):
        if self.ended:
            return

        def step():
            calls.wait_for_leaders(connection, *self.served)
            return self.steps.send(connection)

        self.advance(step)

    def advance(self, step):
        try:
            self.served = step()
        except StopIteration:
            self.ended = True
        except Exception:
            self.failure, self.ended = traceback.format_exc(), True


@pytest.fixture(scope="module")
def runs():
    directory = Path(tempfile.mkdtemp(prefix="duramen-restart-"))
    with start(KIND, free_port(), directory / "data", SETTINGS[KIND]) as broker:
        with calls.connect(broker.bootstrap) as connection:
            runs = [Run(function, connection) for function in scenarios.values()]
        for end in ENDS:
            broker.kill9() if end == "kill" else broker.stop()
            broker.restart()
            with calls.connect(broker.bootstrap) as connection:
                for run in runs:
                    run.go_on(connection)
    if any(run.failure for run in runs):
        print(f"kept: {directory}")
    else:
        shutil.rmtree(directory)
    return {run.name: run for run in runs}


@pytest.mark.timeout(400 * checks.SLOWNESS)
@pytest.mark.parametrize("scenario", scenarios)
def test_it_survives_a_kill_and_a_stop(runs, scenario):
    run = runs[scenario]
    if run.failure:
        pytest.fail(run.failure, pytrace=False)
    assert run.ended, f"{scenario} yields too often"
