"""Duramen's own command line against one broker, Duramen or Apache Kafka.

What the commands print is the same for both. kcat (librdkafka) is the stock consumer that shares groups with ours.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest

import checks
import reach
from checks import equal, unique

BINARY = os.environ.get("DURAMEN_BIN", str(COMPAT.parent / "target/release/duramen"))
COMMAND_TIMEOUT_S = 30
# The shortest session that Kafka allows by default.
SHORT_SESSION = ["--session-seconds", "6"]


def duramen(*arguments, stdin=""):
    command = [BINARY, *arguments, "--bootstrap", checks.bootstrap()]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)


def ok(*arguments, **more):
    done = duramen(*arguments, **more)
    equal(done.returncode, 0, f"duramen {' '.join(arguments)}\n{done.stderr}\nexit code")
    return done.stdout


def ok_json(*arguments, **more):
    return json.loads(ok(*arguments, "--output", "json", **more))


def refused(*arguments):
    """What a command that must fail complains of."""
    done = duramen(*arguments)
    equal((done.returncode, done.stdout), (1, ""), f"duramen {' '.join(arguments)}\n{done.stderr}\nexit code and output")
    return done.stderr


def topic_of(partitions=1):
    topic = unique("cli")
    ok("topic", "create", topic, "--partitions", str(partitions))
    return topic


def fill(topic, partition, lines):
    ok("produce", topic, "--partition", str(partition), "--quiet", stdin="".join(f"{line}\n" for line in lines))


def read_as(group, topic, *arguments):
    return ok("consume", topic, "--group", group, "--quiet", *arguments).split()


def offsets(group):
    """Committed offset and lag by topic and partition."""
    [described] = ok_json("group", "describe", group)
    return {(row["topic"], row["partition"]): (row["committed"], row["lag"]) for row in described["partitions"]}


class Consumer:
    """A consumer in the background, ours or kcat, whose lines are collected as they come."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.notes = [], []
        self.threads = [
            threading.Thread(target=self._collect, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._collect, args=(self.process.stderr, self.notes)),
        ]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _collect(pipe, lines):
        for line in pipe:
            lines.append(line.rstrip("\n"))

    def end(self, number):
        """Sends a signal and answers the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(COMMAND_TIMEOUT_S)
        for thread in self.threads:
            thread.join()
        return code


@contextmanager
def member(group, topic, *arguments):
    command = [BINARY, "consume", topic, "--group", group, "--follow", "--bootstrap", checks.bootstrap()]
    consumer = Consumer([*command, *arguments])
    try:
        yield consumer
    finally:
        consumer.end(signal.SIGKILL)


@contextmanager
def kcat_member(group, topic, *arguments):
    settings = ["-X", "auto.offset.reset=earliest", "-X", "fetch.wait.max.ms=50", "-X", "heartbeat.interval.ms=500"]
    command = ["kcat", *reach.kcat(), "-u", "-f", "%p:%s\n", *settings, *arguments, "-G", group, topic]
    consumer = Consumer(command)
    try:
        yield consumer
    finally:
        consumer.end(signal.SIGKILL)


def eventually(what, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what()}"
        time.sleep(0.1)
    return found


def members(group):
    """Partitions by client id, once the group is stable with every partition in somebody's hands."""
    done = duramen("group", "describe", group, "--output", "json")
    if done.returncode != 0:
        return None
    [described] = json.loads(done.stdout)
    if described["state"] != "Stable":
        return None
    return [(each["client"], each["assigned"]) for each in described["members"]]


def shared(group, topic, counts, partitions):
    """Waits until the partitions are shared in these counts; answers the members."""

    def fits():
        found = members(group)
        if found is None:
            return None
        given = sorted(part for _, assigned in found for part in assigned.get(topic, []))
        each = sorted(len(assigned.get(topic, [])) for _, assigned in found)
        return found if given == list(range(partitions)) and each == sorted(counts) else None

    return eventually(lambda: members(group), fits)


# Topics


def test_settings_of_a_topic_are_changed_and_given_back():
    topic = topic_of()
    out = ok("topic", "alter", topic, "--config", "retention.ms=86400000", "--config", "max.message.bytes=2000000", "--dry-run")
    assert out.startswith(f"would alter topic {topic}\n  retention.ms: 604800000 (default) -> 86400000\n"), out
    equal(ok_json("topic", "describe", topic)[0]["configs"], [])
    [plan] = ok_json("topic", "alter", topic, "--config", "retention.ms=86400000", "--config", "max.message.bytes=2000000")
    assert plan["altered"], plan
    configs = {each["name"]: each["value"] for each in ok_json("topic", "describe", topic)[0]["configs"]}
    equal(configs, {"max.message.bytes": "2000000", "retention.ms": "86400000"})
    out = ok("topic", "alter", topic, "--delete-config", "retention.ms", "--config", "max.message.bytes=2000000")
    expected = f"altered topic {topic}\n  max.message.bytes = 2000000  (as it was, set on the topic)\n"
    # Kafka does not tell its own value of a time while the topic has another.
    theirs = "the broker's own value" if checks.broker_kind() == "kafka" else "604800000  (the broker's)"
    equal(out, f"{expected}  retention.ms: 86400000 (set on the topic) -> {theirs}\n")
    configs = {each["name"]: each["value"] for each in ok_json("topic", "describe", topic)[0]["configs"]}
    equal(configs, {"max.message.bytes": "2000000"})


def test_a_topic_grows_and_does_not_shrink():
    topic = topic_of(2)
    out = ok("topic", "alter", topic, "--partitions", "5", "--dry-run")
    equal(out, f"would alter topic {topic}\n  partitions: 2 -> 5\n")
    equal(len(ok_json("topic", "describe", topic)[0]["partitions"]), 2)
    equal(ok("topic", "alter", topic, "--partitions", "5"), f"altered topic {topic}\n  partitions: 2 -> 5\n")
    fill(topic, 4, ["x"])
    equal(ok("topic", "alter", topic, "--partitions", "5"), f"nothing to alter in topic {topic}\n  partitions = 5  (as it was)\n")
    assert "has 5 partitions; they can become more, but not 3" in refused("topic", "alter", topic, "--partitions", "3")


def test_a_bad_setting_changes_nothing_in_any_topic():
    first, second = topic_of(), topic_of()
    errors = refused("topic", "alter", first, second, "--partitions", "2", "--config", "retention.ms=soon")
    assert "INVALID_CONFIG" in errors and "describe" in errors, errors
    errors = refused("topic", "alter", first, second, "--partitions", "2", "--config", "retentoin.ms=1")
    assert "did you mean retention.ms?" in errors, errors
    equal([len(each["partitions"]) for each in ok_json("topic", "describe", first, second)], [1, 1])


# Groups that nobody is in


def test_a_group_reads_each_record_once_and_goes_on_where_it_stopped():
    topic, group = topic_of(2), unique("group")
    fill(topic, 0, range(5))
    equal(read_as(group, topic), ["0", "1", "2", "3", "4"])
    equal(read_as(group, topic), [])
    fill(topic, 1, range(10, 20))
    equal(read_as(group, topic, "--count", "3"), ["10", "11", "12"])
    equal(offsets(group), {(topic, 0): (5, 0), (topic, 1): (3, 7)})
    equal(read_as(group, topic), [str(number) for number in range(13, 20)])
    equal(read_as(unique("group"), topic, "--from", "end"), [])


def test_groups_are_listed_and_described_with_their_lag():
    topic, group = topic_of(2), unique("group")
    fill(topic, 0, range(5))
    read_as(group, topic, "--count", "2")
    [listed] = [each for each in ok_json("group", "list") if each["group"] == group]
    equal((listed["state"], listed["type"].lower(), listed["protocol"]), ("Empty", "classic", "consumer"))
    assert group in [each["group"] for each in ok_json("group", "list", "--state", "empty,stable", "--type", "classic")]
    assert group not in [each["group"] for each in ok_json("group", "list", "--state", "stable")]
    assert group in ok("group", "list")
    text = ok("group", "describe", group)
    coordinators = [f"{id} ({address})" for id, address in enumerate(checks.bootstrap().split(","), 1)]
    first, second = text.splitlines()[:2]
    assert first in [f"group {group}: Empty, classic, coordinator {each}, lag 3" for each in coordinators], text
    equal(second, "no members")
    table = [line.split() for line in text.splitlines() if line.startswith(topic)]
    equal(table[0], [topic, "0", "2", "5", "3", "-"])
    equal([line.split()[0] for line in ok("group", "describe", group, "--behind").splitlines()[4:]], [topic])
    assert group in ok("group", "describe", "--all", "--summary")
    missing = f"there is no group {group}-x; see which there are with `duramen group list`"
    assert missing in refused("group", "describe", f"{group}-x")


def test_a_group_is_sent_to_any_place():
    topic, group = topic_of(2), unique("group")
    for partition in (0, 1):
        fill(topic, partition, range(10))
    between = int(time.time() * 1000) + 1
    time.sleep(0.01)
    for partition in (0, 1):
        fill(topic, partition, range(10, 14))
    read_as(group, topic)

    def reset(*arguments):
        plan = ok_json("group", "reset", group, *arguments, "--execute")
        assert plan["executed"], plan
        found = offsets(group)
        equal({(row["topic"], row["partition"]): row["committed"] for row in plan["partitions"]}.items() <= {
            place: committed for place, (committed, _) in found.items()}.items(), True, f"{plan} and {found}")
        return [found[topic, 0][0], found[topic, 1][0]]

    equal(reset("--to", "beginning"), [0, 0])
    equal(reset("--to", "end", "--topic", f"{topic}:1"), [0, 14])
    equal(reset("--to", "7"), [7, 7])
    equal(reset("--to", "-4"), [10, 10])
    equal(reset("--shift", "3"), [13, 13])
    equal(reset("--shift", "-5", "--topic", f"{topic}:0"), [8, 13])
    equal(reset("--to", f"@{between}"), [10, 10])
    equal(reset("--to", "1h ago"), [0, 0])
    equal(reset("--shift", "1000"), [14, 14])
    other = unique("other")
    ok("group", "reset", other, "--topic", f"{topic}:0", "--to", "3", "--execute")
    equal(reset("--to-group", other), [3, 14])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as kept:
        kept.write(ok("group", "describe", group, "--output", "json"))
        kept.flush()
        equal(reset("--to", "end"), [14, 14])
        equal(reset("--to-file", kept.name), [3, 14])
    equal(read_as(group, topic), [str(number) for number in range(3, 14)])
    errors = refused("group", "reset", group, "--to", "99")
    assert f"offset 99 is not in partition 0 of {topic}, which holds offsets 0 to 13" in errors, errors


def test_a_reset_without_execute_is_a_plan():
    topic, group = topic_of(), unique("group")
    fill(topic, 0, range(5))
    read_as(group, topic)
    done = duramen("group", "reset", group, "--to", "beginning")
    equal(done.stderr, "nothing was changed; do it with --execute\n")
    equal(done.stdout.splitlines()[1].split(), [topic, "0", "5", "0", "-5", "5"])
    equal(offsets(group), {(topic, 0): (5, 0)})
    errors = refused("group", "reset", f"{group}-x", "--to", "beginning")
    assert "name topics with --topic" in errors, errors


def test_groups_and_offsets_are_deleted():
    first, second, group = topic_of(2), topic_of(), unique("group")
    for topic in (first, second):
        fill(topic, 0, range(5))
        read_as(group, topic)
    equal(ok("group", "delete", group, "--topic", f"{first}:0"), f"deleted the offsets of group {group} in {first}:0\n")
    equal(list(offsets(group)), [(second, 0)])
    assert "has no offsets there" in refused("group", "delete", group, "--topic", f"{first}:0,1")
    equal(ok("group", "delete", group), f"deleted group {group}\n")
    assert "there is no group" in refused("group", "delete", group)
    equal(ok("group", "delete", group, "--if-exists"), f"there is no group {group}\n")


def test_share_groups_are_told_where_to_start_and_are_described_and_deleted():
    topic, group = topic_of(2), unique("share")
    fill(topic, 0, range(5))
    plan = ok_json("group", "reset", group, "--share", "--topic", topic, "--to", "beginning", "--execute")
    equal((plan["executed"], [row["before"] for row in plan["partitions"]]), (True, [None, None]))
    equal(offsets(group), {(topic, 0): (0, 5), (topic, 1): (0, 0)})
    [listed] = [each for each in ok_json("group", "list", "--type", "share") if each["group"] == group]
    equal((listed["state"], listed["type"].lower(), listed["protocol"]), ("Empty", "share", "share"))
    assert ok("group", "describe", group).startswith(f"group {group}: Empty, share, ")
    assert group in ok("group", "describe", "--all", "--summary")
    ok("group", "reset", group, "--topic", f"{topic}:0", "--shift", "3", "--execute")
    equal(offsets(group), {(topic, 0): (3, 2), (topic, 1): (0, 0)})
    assert "forgets whole topics" in refused("group", "delete", group, "--topic", f"{topic}:0")
    equal(ok("group", "delete", group, "--topic", topic), f"deleted the offsets of group {group} in {topic}:0,1\n")
    assert "has no offsets there" in refused("group", "delete", group, "--topic", topic)
    equal(ok("group", "delete", group), f"deleted group {group}\n")
    assert "there is no group" in refused("group", "describe", group)


# Groups with members


@pytest.mark.waits
def test_members_share_the_partitions_and_whoever_leaves_is_replaced():
    topic, group = topic_of(4), unique("group")
    with member(group, topic, "--format", "%p:%v\\n") as first:
        shared(group, topic, [4], 4)
        with member(group, topic, "--format", "%p:%v\\n") as second:
            shared(group, topic, [2, 2], 4)
            for partition in range(4):
                fill(topic, partition, ["both"])
            eventually(lambda: (first.lines, second.lines), lambda: len(first.lines + second.lines) == 4)
            equal((len(first.lines), len(second.lines)), (2, 2))
            equal(second.end(signal.SIGTERM), 130)
        shared(group, topic, [4], 4)
        for partition in range(4):
            fill(topic, partition, ["one"])
        eventually(lambda: first.lines, lambda: len(first.lines) == 6)
        equal(sorted(first.lines + second.lines), sorted(f"{p}:{word}" for p in range(4) for word in ("both", "one")))
        assert any(f"reading {topic}:0-3" in note for note in first.notes), first.notes
        equal(first.end(signal.SIGINT), 130)
    [described] = ok_json("group", "describe", group)
    equal((described["state"], described["lag"], described["members"]), ("Empty", 0, []))


def test_a_group_that_reads_is_neither_reset_nor_deleted():
    topic, group = topic_of(), unique("group")
    fill(topic, 0, ["x"])
    with member(group, topic) as reader:
        eventually(lambda: reader.notes, lambda: reader.lines)
        shared(group, topic, [1], 1)
        errors = refused("group", "reset", group, "--topic", topic, "--to", "beginning", "--execute")
        assert f"group {group} has 1 active member: duramen-cli at 127.0.0.1; stop them" in errors, errors
        plan = duramen("group", "reset", group, "--topic", topic, "--to", "beginning")
        assert plan.returncode == 0 and "1 active member" in plan.stderr, plan
        assert "has active members; stop them" in refused("group", "delete", group)
        eventually(lambda: offsets(group), lambda: offsets(group).get((topic, 0)) == (1, 0))
        errors = refused("group", "delete", group, "--topic", topic)
        assert f"members of group {group} read this topic" in errors, errors


@pytest.mark.waits
def test_a_stock_consumer_shares_a_group_with_ours_whoever_leads():
    for ours_first in (True, False):
        topic, group = topic_of(5), unique("group")
        ours = lambda: member(group, topic, "--format", "%p:%v\\n")
        theirs = lambda: kcat_member(group, topic)
        with (ours if ours_first else theirs)() as first:
            shared(group, topic, [5], 5)
            with (theirs if ours_first else ours)() as second:
                # Both are in the group; whoever came first leads it.
                found = shared(group, topic, [2, 3], 5)
                equal(sorted(client for client, _ in found), ["duramen-cli", "rdkafka"])
                for partition in range(5):
                    fill(topic, partition, [f"r{partition}"])
                eventually(lambda: (first.lines, second.lines), lambda: len(first.lines + second.lines) == 5)
                equal(sorted(first.lines + second.lines), [f"{partition}:r{partition}" for partition in range(5)])
                equal(first.end(signal.SIGTERM), 130 if ours_first else 0, "exit code of the first")
                shared(group, topic, [5], 5)
                equal(second.end(signal.SIGTERM), 0 if ours_first else 130, "exit code of the second")
        # What kcat committed and what ours did is one and the same.
        equal(read_as(group, topic), [])


@pytest.mark.waits
def test_a_member_that_dies_is_replaced_and_nothing_is_skipped():
    """It dies while its output stands still: it has fetched far more than it printed."""
    topic, group = topic_of(1), unique("group")
    fill(topic, 0, (f"{number:0>1000}" for number in range(3000)))
    command = [BINARY, "consume", topic, "--group", group, "--follow", "--bootstrap", checks.bootstrap(), *SHORT_SESSION]
    dying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    shared(group, topic, [1], 1)
    time.sleep(2)
    committed = offsets(group)[topic, 0][0] or 0
    dying.kill()
    printed = [int(line) for line in dying.communicate()[0].split("\n")[:-1]]
    assert 0 < len(printed) < 1000, f"{len(printed)} lines, where a full pipe was expected"
    assert committed <= len(printed), f"{committed} committed, {len(printed)} printed"
    rest = [int(line) for line in read_as(group, topic, *SHORT_SESSION)]
    equal(sorted(set(printed + rest)), list(range(3000)))


@pytest.mark.waits
def test_a_static_member_comes_back_unnoticed():
    topic, group = topic_of(2), unique("group")
    with member(group, topic, "--instance-id", "one", *SHORT_SESSION) as first:
        shared(group, topic, [2], 2)
        with member(group, topic, "--instance-id", "two", *SHORT_SESSION) as second:
            before = shared(group, topic, [1, 1], 2)
            equal(second.end(signal.SIGTERM), 130)
            notes = list(first.notes)
            with member(group, topic, "--instance-id", "two", *SHORT_SESSION) as second:
                eventually(lambda: second.notes, lambda: second.notes)
                equal(shared(group, topic, [1, 1], 2), before)
                fill(topic, 0, ["x"])
                fill(topic, 1, ["x"])
                eventually(lambda: (first.lines, second.lines), lambda: first.lines == second.lines == ["x"])
                equal(first.notes, notes, "what the other member noticed")
                # A third that takes the name takes the place.
                with member(group, topic, "--instance-id", "two", *SHORT_SESSION) as third:
                    eventually(lambda: third.notes, lambda: third.notes)
                    equal(second.process.wait(COMMAND_TIMEOUT_S), 1)
                    second.end(0)
                    assert any("took over the place of --instance-id two" in note for note in second.notes), second.notes


@pytest.mark.waits
def test_a_topic_that_grows_is_shared_with_its_new_partitions():
    topic, group = topic_of(1), unique("group")
    with member(group, topic):
        shared(group, topic, [1], 1)
        ok("topic", "alter", topic, "--partitions", "3")
        with member(group, topic):
            shared(group, topic, [1, 2], 3)


@pytest.mark.waits
def test_a_slow_reader_of_our_output_keeps_its_place():
    """While the pipe is full nothing is printed, and the heartbeat goes on: longer than the session."""
    topic, group = topic_of(1), unique("group")
    fill(topic, 0, (f"{number:0>1000}" for number in range(5000)))
    command = [BINARY, "consume", topic, "--group", group, "--bootstrap", checks.bootstrap(), *SHORT_SESSION]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shared(group, topic, [1], 1)
    time.sleep(9)
    shared(group, topic, [1], 1)
    out, notes = reader.communicate(timeout=COMMAND_TIMEOUT_S)
    equal(reader.returncode, 0, notes)
    equal([int(line) for line in out.split()], list(range(5000)))
    equal(notes.count("generation"), 1, notes)
    equal(offsets(group)[topic, 0], (5000, 0))
