"""kcat (Debian's package, with the librdkafka it is linked to) against one broker."""

import json
import re
import signal
import subprocess
import tempfile
import threading
import time

import pytest

import checks
import reach
from calls import connect, connect_to_leader, delete_records, describe_topic, new_topic
from checks import equal

KCAT_TIMEOUT_S = 40 * checks.SLOWNESS


def kcat(*arguments, stdin=b"", bootstrap=None):
    """Returns (exit code, standard output, standard error)."""
    command = ["kcat", *reach.kcat(bootstrap), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=KCAT_TIMEOUT_S)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def ok(*arguments, **more):
    code, out, errors = kcat(*arguments, **more)
    equal(code, 0, f"kcat {' '.join(arguments)}\n{errors}\nexit code")
    return out


def produce(topic, data, *arguments):
    return ok("-P", "-t", topic, "-p", "0", *arguments, stdin=data)


def consume(topic, *arguments, partition=0):
    return ok("-C", "-q", "-e", "-X", "fetch.wait.max.ms=50", "-t", topic, "-p", str(partition), *(arguments or ["-o", "beginning"]))


def topic_of(partitions=1, **configs):
    with connect() as connection:
        return new_topic(connection, partitions, **configs)


@pytest.mark.short
def test_lines_come_back_as_they_went_with_every_codec():
    lines = b"".join(b"line %d of this file\n" % number for number in range(2000))
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = topic_of()
        produce(topic, lines, "-z", codec)
        assert consume(topic, "-o", "beginning", "-X", "check.crcs=true") == lines, codec


@pytest.mark.short
def test_keys_headers_and_timestamps_are_shown():
    topic = topic_of()
    before = int(time.time() * 1000)
    produce(topic, b"key:value\n", "-K", ":", "-H", "a=1", "-H", "b=two", "-H", "empty")
    [line] = consume(topic, "-J", "-o", "beginning").splitlines()
    message = json.loads(line)
    equal((message["offset"], message["key"], message["payload"]), (0, "key", "value"))
    equal(message["headers"], ["a", "1", "b", "two", "empty", None])
    equal(message["tstype"], "create")
    assert before <= message["ts"] <= int(time.time() * 1000)


@pytest.mark.short
def test_null_keys_and_values_stay_null():
    topic = topic_of()
    produce(topic, b":v\nk:\n", "-K", ":", "-Z")
    messages = [json.loads(line) for line in consume(topic, "-J", "-o", "beginning").splitlines()]
    equal([(message["key"], message["payload"]) for message in messages], [(None, "v"), ("k", None)])


def test_a_log_append_time_topic_is_shown_as_such():
    topic = topic_of(message_timestamp_type="LogAppendTime")
    produce(topic, b"v\n")
    equal(json.loads(consume(topic, "-J", "-o", "beginning"))["tstype"], "logappend")


@pytest.mark.short
def test_every_acks_setting_and_an_idempotent_producer_deliver():
    lines = b"".join(b"%d\n" % number for number in range(1000))
    for setting in ("acks=0", "acks=1", "acks=all", "enable.idempotence=true"):
        topic = topic_of()
        produce(topic, lines, "-X", setting)
        equal(consume(topic), lines, setting)


@pytest.mark.short
def test_reading_starts_where_it_is_told():
    topic = topic_of()
    produce(topic, b"".join(b"%d\n" % number for number in range(100)))
    equal(consume(topic, "-o", "97"), b"97\n98\n99\n")
    equal(consume(topic, "-o", "-2"), b"98\n99\n")
    equal(consume(topic, "-o", "end"), b"")
    equal(consume(topic, "-o", "10", "-c", "2"), b"10\n11\n")


def test_offsets_are_queried_by_timestamp():
    topic = topic_of()
    for number in range(3):
        produce(topic, b"%d\n" % number)
        time.sleep(0.01)
    stamps = [json.loads(line)["ts"] for line in consume(topic, "-J", "-o", "beginning").splitlines()]
    for asked, offset in [(0, 0), (stamps[1], 1), (stamps[1] + 1, 2), (stamps[2] + 1, -1), (-2, 0), (-1, 3)]:
        answer = ok("-Q", "-t", f"{topic}:0:{asked}").decode().split()
        equal(int(answer[-1]), offset, f"timestamp {asked}")
    equal(consume(topic, "-o", f"s@{stamps[1]}", "-o", f"e@{stamps[2]}"), b"1\n")


def test_a_file_of_11_mb_goes_through_when_the_topic_allows_it():
    topic = topic_of(max_message_bytes=str(11 << 20))
    size = (11 << 20) - 1000
    data = bytes(range(256)) * (size // 256)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        ok("-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=12000000", file.name)
    got = consume(topic, "-o", "beginning", "-f", "%s", "-X", "fetch.message.max.bytes=16000000", "-X", "receive.message.max.bytes=64000000")
    assert got == data, f"the content differs: {len(got)} of {len(data)} bytes"


@pytest.mark.short
def test_an_oversize_message_is_refused():
    topic = topic_of(max_message_bytes="1000")
    code, _, errors = kcat("-P", "-t", topic, "-p", "0", stdin=b"x" * 5000 + b"\n")
    assert code != 0 and "too large" in errors, errors


def test_a_message_without_a_key_is_refused_by_a_compacted_topic():
    topic = topic_of(cleanup_policy="compact")
    code, _, errors = kcat("-P", "-t", topic, "-p", "0", stdin=b"v\n")
    assert code != 0 and "failed to validate record" in errors, errors


def test_metadata_lists_brokers_topics_and_partitions():
    topic = topic_of(partitions=3)
    listed = json.loads(ok("-L", "-J", "-t", topic))
    equal(sorted(broker["name"] for broker in listed["brokers"]), sorted(checks.bootstrap().split(",")))
    equal([partition["partition"] for partition in listed["topics"][0]["partitions"]], [0, 1, 2])
    everything = json.loads(ok("-L", "-J"))
    assert topic in [entry["topic"] for entry in everything["topics"]]


@pytest.mark.short
def test_many_partitions_are_read_at_once():
    topic = topic_of(partitions=30)
    for partition in range(30):
        ok("-P", "-t", topic, "-p", str(partition), stdin=b"to %d\n" % partition)
    lines = ok("-C", "-q", "-e", "-t", topic, "-o", "beginning", "-f", "%p %s\n").splitlines()
    equal(sorted(lines), sorted(b"%d to %d" % (partition, partition) for partition in range(30)))


def test_an_unknown_topic_is_created_only_where_the_broker_allows_that():
    topic = checks.unique("kcat-auto")
    produce(topic, b"v\n")
    equal(consume(topic), b"v\n")
    topic = checks.unique("kcat-refused")
    quickly = ["-X", "message.timeout.ms=2000", "-X", "topic.metadata.propagation.max.ms=0"]
    code, _, errors = kcat("-P", "-t", topic, "-p", "0", *quickly, stdin=b"v\n", bootstrap=checks.strict_bootstrap())
    assert code != 0 and "Unknown topic" in errors, errors
    with connect(checks.open_strict_bootstrap()) as connection:
        equal(describe_topic(connection, topic)["ErrorCode"], 3)


@pytest.mark.short
def test_deleted_records_are_out_of_range_and_the_reset_goes_to_the_beginning():
    topic = topic_of()
    for number in range(5):
        produce(topic, b"%d\n" % number)
    with connect_to_leader(topic) as connection:
        equal(delete_records(connection, topic, 3)["LowWatermark"], 3)
    equal(consume(topic), b"3\n4\n")
    equal(consume(topic, "-o", "1", "-X", "auto.offset.reset=earliest"), b"3\n4\n")
    code, _, errors = kcat("-C", "-e", "-t", topic, "-p", "0", "-o", "1", "-X", "auto.offset.reset=error")
    assert code != 0 and "out of range" in errors.lower(), errors


class Balanced:
    """kcat -G: a member of a group that prints what it reads, and on its error output what it is assigned."""

    def __init__(self, group, topic, *arguments):
        settings = [word for pair in QUICK_GROUP for word in ("-X", pair)]
        command = ["kcat", *reach.kcat(), "-G", group, "-u", *settings, *arguments, topic]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.told, self.assigned = [], [], set()
        self.readers = [threading.Thread(target=follow, daemon=True) for follow in (self._read, self._watch)]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def _watch(self):
        for line in self.process.stderr:
            self.told.append(line)
            if " rebalanced" in line:
                # What is added, or what is taken away.
                partitions = {int(number) for number in re.findall(r"\[(\d+)\]", line)}
                self.assigned = self.assigned - partitions if "revo" in line else self.assigned | partitions

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        equal(self.process.wait(KCAT_TIMEOUT_S), 0, f"{self.told}: exit code")
        for reader in self.readers:
            reader.join()


QUICK_GROUP = [
    "auto.offset.reset=earliest", "auto.commit.interval.ms=100", "heartbeat.interval.ms=100", "fetch.wait.max.ms=100",
    "session.timeout.ms=6000",
]  # fmt: skip


def until(what, condition, *members):
    deadline = time.monotonic() + KCAT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"never came to be: {what}; {[member.told for member in members]}"
        time.sleep(0.02)


def shared(*members):
    """Waits until the members have the four partitions between them, each as many."""
    each = 4 // len(members)

    def is_shared():
        assigned = [member.assigned for member in members]
        return all(len(mine) == each for mine in assigned) and set.union(*assigned) == {0, 1, 2, 3}

    until("all is shared", is_shared, *members)


def spread(topic, numbers):
    for partition in range(4):
        lines = b"".join(b"%d\n" % number for number in numbers if number % 4 == partition)
        ok("-P", "-t", topic, "-p", str(partition), stdin=lines)


def rebalances(member):
    return [line for line in member.told if " rebalanced" in line]


def all_read(numbers, *members):
    until("all is read", lambda: sum(len(member.lines) for member in members) >= len(numbers), *members)
    equal(sorted(int(line) for member in members for line in member.lines), list(numbers))


def test_members_of_a_group_share_partitions_as_they_join_and_leave():
    for assignor in ("range", "roundrobin", "cooperative-sticky"):
        topic, group = topic_of(partitions=4), checks.unique("kcat-group")
        strategy = ["-X", f"partition.assignment.strategy={assignor}"]
        first = Balanced(group, topic, *strategy)
        shared(first)
        second = Balanced(group, topic, *strategy)
        shared(first, second)
        spread(topic, range(40))
        all_read(range(40), first, second)
        equal(len(second.lines), 20, assignor)
        first.leave()
        shared(second)
        spread(topic, range(40, 80))
        all_read(range(80), first, second)
        second.leave()


@pytest.mark.short
def test_a_group_goes_on_where_it_left_off():
    topic, group = topic_of(partitions=4), checks.unique("kcat-group")
    for numbers in (range(40), range(40, 48)):
        spread(topic, numbers)
        member = Balanced(group, topic)
        all_read(numbers, member)
        member.leave()
    until_the_end = Balanced(group, topic, "-e")
    equal(until_the_end.process.wait(KCAT_TIMEOUT_S), 0)
    equal(until_the_end.lines, [])


def test_a_static_member_finds_its_partitions_again():
    topic, group = topic_of(partitions=4), checks.unique("kcat-group")
    stays = Balanced(group, topic, "-X", "group.instance.id=one")
    shared(stays)
    goes = Balanced(group, topic, "-X", "group.instance.id=two")
    shared(stays, goes)
    had, told = set(goes.assigned), rebalances(stays)
    goes.process.kill()
    goes.process.wait()
    back = Balanced(group, topic, "-X", "group.instance.id=two")
    until("its partitions again", lambda: back.assigned == had, stays, back)
    spread(topic, range(40))
    all_read(range(40), stays, back)
    equal(rebalances(stays), told, "rebalances of the one that stayed")
    stays.leave()
    back.leave()
