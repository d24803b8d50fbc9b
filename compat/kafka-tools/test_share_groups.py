"""kafka-share-groups, and the console share consumer."""

import re
import time

import checks
from console import contains, new_topic, plain, produce, same, start, tool

OFFSETS = "GROUP TOPIC PARTITION START-OFFSET LAG"


def groups(*arguments):
    return tool("kafka-share-groups", *arguments)


def told(*arguments):
    """All that the tool says; it may fail with exit code 0."""
    done = start("kafka-share-groups", *arguments).wait()
    return done.out + done.err


def new_group():
    """A group that begins with the first record."""
    group = checks.unique("tools-share")
    tool("kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", group, "--add-config", "share.auto.offset.reset=earliest")
    return group


def member(topic, group):
    return start("kafka-console-share-consumer", "--topic", topic, "--group", group, "--command-property", "client.id=console")


def wait_until(what, pattern):
    deadline = time.monotonic() + 20 * checks.SLOWNESS
    while True:
        said = plain(told(*what))
        if re.search(pattern, said):
            return said
        assert time.monotonic() < deadline, f"{pattern} never came: {said}"


def group_that_read(topic, lines):
    """An empty group that is done with all of the topic."""
    group = new_group()
    produce(topic, lines)
    member(topic, group).wait_for(f"{lines[-1]}\n").stop()
    # Kafka keeps what is done with for a while before the start passes it.
    wait_until(("--describe", "--group", group), r" 0 \d+ 0$")
    wait_until(("--describe", "--group", group, "--state"), "Empty")
    return group


def test_kafka_share_groups_describes_a_group_while_it_lives_and_afterwards():
    topic, group = new_topic(), new_group()
    produce(topic, ["a", "b", "c"])
    reader = member(topic, group).wait_for("c\n")
    said = wait_until(("--describe", "--group", group), r" 0 \d+ 0$")
    same(re.sub(r"\d+ 0$", "START 0", said), f"{OFFSETS}\nG T 0 START 0", G=group, T=topic)
    described = plain(groups("--describe", "--group", group, "--members"), G=group, T=topic)
    same(re.sub(r"G \S{22} ", "G ID ", described), "GROUP CONSUMER-ID HOST CLIENT-ID #PARTITIONS ASSIGNMENT\nG ID HOST console 1 T:0")
    same(groups("--describe", "--group", group, "--state"), "GROUP COORDINATOR (ID) STATE #MEMBERS\nG BROKER (ID) Stable 1", G=group)
    contains(groups("--list"), group)
    contains(plain(groups("--list", "--state"), G=group), "G Stable")
    contains(tool("kafka-groups", "--list", "--group-type", "share"), group)
    contains(told("--delete", "--group", group), "not EMPTY")
    reader.stop()
    wait_until(("--describe", "--group", group, "--state"), "Empty")
    contains(told("--describe", "--group", group, "--members"), f"Share group '{group}' has no active members.")


def test_where_a_share_group_starts_is_reset_and_deleted():
    topic = new_topic()
    group = group_that_read(topic, [str(number) for number in range(10)])
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    for place, offset in [(("--to-earliest",), 0), (("--to-latest",), 10), (("--to-datetime", "2001-01-01T00:00:00.000"), 0)]:
        same(groups(*reset, *place, "--dry-run"), f"GROUP TOPIC PARTITION NEW-OFFSET\nG T 0 {offset}", G=group, T=topic)
        same(groups(*reset, *place, "--execute"), f"GROUP TOPIC PARTITION NEW-OFFSET\nG T 0 {offset}", G=group, T=topic)
        contains(plain(told("--describe", "--group", group), G=group, T=topic), f"G T 0 {offset} {10 - offset}")
    groups(*reset, "--to-earliest", "--execute")
    member(topic, group).wait_for("9\n").stop()
    wait_until(("--describe", "--group", group, "--state"), "Empty")
    same(groups("--delete-offsets", "--group", group, "--topic", topic), "TOPIC STATUS\nT Successful", G=group, T=topic)
    assert topic not in told("--describe", "--group", group)
    contains(groups("--delete", "--group", group), f"Deletion of requested share groups ('{group}') was successful.")
    assert group not in groups("--list")
    contains(told("--describe", "--group", group), f"Group {group} not found.")
