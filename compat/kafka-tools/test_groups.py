"""kafka-consumer-groups, kafka-groups, and the console consumer as a member of a group."""

import tempfile
import time

import checks
from console import NODES, contains, new_topic, plain, produce, same, start, tool
from test_records import segment_directory

COLUMNS = "GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID"
QUICK = [
    word
    for setting in ("auto.commit.interval.ms=100", "heartbeat.interval.ms=300", "client.id=console", "fetch.max.wait.ms=200")
    for word in ("--command-property", setting)
]


def groups(*arguments):
    return tool("kafka-consumer-groups", *arguments)


def told(*arguments):
    """All that the tool says; it may fail with exit code 0."""
    done = start("kafka-consumer-groups", *arguments).wait()
    return done.out + done.err


def describe(group, *arguments):
    return groups("--describe", "--group", group, *arguments)


def member(topic, group):
    return start("kafka-console-consumer", "--topic", topic, "--group", group, "--from-beginning", *QUICK)


def group_that_read(topic, lines):
    """An empty group that has committed the end of the topic."""
    group = checks.unique("tools-group")
    produce(topic, lines)
    reader = member(topic, group)
    reader.wait_for(f"{lines[-1]}\n").stop()
    wait_until_described(group, ["no active members"])
    return group


def wait_until_described(group, parts, *arguments):
    deadline = time.monotonic() + 20 * checks.SLOWNESS
    while True:
        said = plain(told("--describe", "--group", group, *arguments))
        if all(part in said for part in parts):
            return said
        assert time.monotonic() < deadline, f"{parts} never came: {said}"


def test_kafka_consumer_groups_describes_a_group_while_it_lives_and_afterwards():
    topic, group = new_topic(), checks.unique("tools-group")
    produce(topic, ["a", "b", "c"])
    reader = member(topic, group).wait_for("c\n")
    wait_until_described(group, [f"{group} {topic} 0 3 3 0 console-"])
    live = f"{COLUMNS}\nG T 0 3 3 0 console-UUID HOST console"
    same(describe(group), live, G=group, T=topic)
    same(
        describe(group, "--members", "--verbose"),
        """
        GROUP CONSUMER-ID HOST CLIENT-ID #PARTITIONS CURRENT-EPOCH CURRENT-ASSIGNMENT TARGET-EPOCH TARGET-ASSIGNMENT
        G console-UUID HOST console 1 - T:0 - -
        """,
        G=group,
        T=topic,
    )
    same(
        describe(group, "--state"),
        "GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE #MEMBERS\nG BROKER (ID) range Stable 1",
        G=group,
    )
    contains(groups("--list"), group)
    contains(plain(groups("--list", "--state"), G=group), "G Stable")
    contains(plain(groups("--list", "--type"), G=group), "G Classic")
    contains(told("--delete", "--group", group), "GroupNotEmptyException")
    said = told("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    contains(said, "inactive, but the current state is Stable")
    reader.stop()
    said = wait_until_described(group, ["no active members", " - - -"])
    contains(said.replace(group, "G").replace(topic, "T"), "Consumer group 'G' has no active members.")
    same(describe(group, "--state"), "GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE #MEMBERS\nG BROKER (ID) - Empty 0", G=group)


def test_a_console_consumer_goes_on_where_its_group_has_committed():
    topic = new_topic(partitions=2)
    group = group_that_read(topic, ["one", "two", "three"])
    produce(topic, ["four"])
    again = member(topic, group).wait_for("four\n").stop()
    assert again.out == "four\n", again.out


def test_offsets_are_reset_to_every_place_that_the_tool_knows():
    topic = new_topic()
    group = group_that_read(topic, [str(number) for number in range(10)])
    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    same(groups(*reset, "--to-earliest", "--dry-run"), "GROUP TOPIC PARTITION NEW-OFFSET\nG T 0 0", G=group, T=topic)
    contains(plain(describe(group), G=group, T=topic), "G T 0 10 10 0")
    for place, offset in [
        (("--to-earliest",), 0),
        (("--to-offset", 7), 7),
        (("--shift-by", -3), 4),
        (("--to-latest",), 10),
        (("--by-duration", "PT1H"), 0),
        (("--to-datetime", "2001-01-01T00:00:00.000"), 0),
        (("--to-offset", 99), 10),
        (("--to-current",), 10),
    ]:
        same(groups(*reset, *place, "--execute"), f"GROUP TOPIC PARTITION NEW-OFFSET\nG T 0 {offset}", G=group, T=topic)
        contains(plain(describe(group), G=group, T=topic), f"G T 0 {offset} 10 {10 - offset}")


def test_offsets_are_exported_and_set_from_a_file():
    topic = new_topic(partitions=2)
    group = group_that_read(topic, ["a", "b", "c"])
    # Its consumer may have come to its end before it had a position in the partition without records.
    groups("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute")
    exported = groups("--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--dry-run", "--export")
    same("\n".join(sorted(exported.splitlines())), "T,0,0\nT,1,0", T=topic)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as csv:
        csv.write(exported)
        csv.flush()
        groups("--reset-offsets", "--group", group, "--from-file", csv.name, "--execute")
    described = plain(describe(group), G=group, T=topic)
    contains(described, "G T 0 0 ")
    contains(described, "G T 1 0 ")


def test_offsets_and_groups_are_deleted():
    topic, other = new_topic(), new_topic()
    group = group_that_read(topic, ["a"])
    groups("--reset-offsets", "--group", group, "--topic", other, "--to-earliest", "--execute")
    same(groups("--delete-offsets", "--group", group, "--topic", other), deleted_offsets(0), G=group, T=other)
    assert other not in describe(group)
    contains(groups("--delete", "--group", group), f"Deletion of requested consumer groups ('{group}') was successful.")
    assert group not in groups("--list")
    contains(told("--describe", "--group", group), f"GroupIdNotFoundException: Group {group} not found.")
    contains(told("--delete", "--group", group), "GroupIdNotFoundException")


def deleted_offsets(partition):
    return f"Request succeeded for deleting offsets from group G.\nTOPIC PARTITION STATUS\nT {partition} Successful"


def test_kafka_groups_lists_groups_of_every_kind():
    topic = new_topic()
    group = group_that_read(topic, ["a"])
    contains(plain(tool("kafka-groups", "--list"), G=group), "G Classic consumer")
    contains(tool("kafka-groups", "--list", "--group-type", "classic"), group)
    assert group not in tool("kafka-groups", "--list", "--group-type", "share")


def test_kafka_dump_log_decodes_the_offsets_topic():
    topic = new_topic()
    group = group_that_read(topic, ["a", "b"])
    described = tool("kafka-topics", "--describe", "--topic", "__consumer_offsets")
    contains(plain(described), f"PartitionCount: 50 ReplicationFactor: {len(NODES)}")
    contains(described, "cleanup.policy=compact")
    logs = sorted(segment_directory("__consumer_offsets", partition_of(group)).glob("*.log"))
    dumped = tool("kafka-dump-log", "--files", ",".join(map(str, logs)), "--offsets-decoder")
    contains(dumped, f'"group":"{group}","topic":"{topic}","partition":0')
    contains(dumped, '"offset":2')
    contains(dumped, '"protocolType":"consumer"')


def test_the_console_consumer_reads_the_offsets_topic_with_kafka_s_formatters():
    topic = new_topic()
    group = group_that_read(topic, ["a", "b"])
    partition = partition_of(group)
    reading = ("--topic", "__consumer_offsets", "--partition", partition, "--offset", "earliest", "--timeout-ms", 1500)
    for formatter, part in [
        ("OffsetsMessageFormatter", f'"group":"{group}","topic":"{topic}","partition":0'),
        ("GroupMetadataMessageFormatter", f'"group":"{group}"'),
    ]:
        done = start("kafka-console-consumer", *reading, "--formatter", f"org.apache.kafka.tools.consumer.{formatter}").wait()
        contains(done.out + done.err, part)


def partition_of(group):
    """As Kafka chooses it: the absolute value of String.hashCode, modulo the partitions."""
    value = 0
    for character in group:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >= 1 << 31 else value) % 50
