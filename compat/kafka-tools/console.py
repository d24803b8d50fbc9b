"""What the tests of the tools are made of: topics, tools that must succeed or be refused, output made comparable."""

import re
from functools import wraps

import pytest

import checks
import reach
import tools
from checks import equal

UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
TOPIC_ID = re.compile(r"TopicId: \S{22}\b")
PLACED = re.compile(r"Leader: (\d+)\s+Replicas: ([\d,]+)\s+Isr: ([\d,]+)")
GENERATED_LOG_LINE = re.compile(r"^\[\d{4}-\d\d-\d\d .*\n", re.MULTILINE)

# The brokers' addresses by their ids, and how each test's topics are to be replicated: see broker.REPLICATED.
NODES = dict(enumerate(checks.bootstrap().split(","), 1))
IDS = list(NODES)
# The same where they ask nobody who they are, for what is prepared by raw frames.
OPEN_NODES = dict(enumerate(checks.open_bootstrap().split(","), 1))
MIN_INSYNC = 1 if len(NODES) == 1 else 2


def tool(name, *arguments, stdin=""):
    """Runs a tool that must succeed; returns what it printed."""
    done = tools.run(name, *to_the_broker(name, arguments), stdin=stdin)
    assert done.code == 0, f"{done.what}: {done}"
    return done.out


def refused(name, *arguments):
    """Runs a tool that must fail; returns both of its outputs."""
    done = tools.run(name, *to_the_broker(name, arguments))
    assert done.code not in (0, None), f"{done.what}: a failure was expected; {done}"
    return done.out + done.err


def start(name, *arguments):
    return tools.start(name, *to_the_broker(name, arguments))


def to_the_broker(name, arguments):
    address = () if name == "kafka-dump-log" else ("--bootstrap-server", checks.bootstrap(), *reach.command_config())
    # Its options belong to its subcommands.
    return (*arguments, *address) if name == "kafka-cluster" else (*address, *arguments)


def new_topic(partitions=1, **configs):
    name = checks.unique("tools")
    settings = [word for key, value in configs.items() for word in ("--config", f"{key.replace('_', '.')}={value}")]
    tool("kafka-topics", "--create", "--topic", name, "--partitions", partitions, *settings)
    return name


def produce(topic, lines, *arguments):
    tool("kafka-console-producer", "--topic", topic, *arguments, stdin="".join(f"{line}\n" for line in lines))


def plain(text, **names):
    """Output without what differs from run to run: ids, addresses, which broker has a part, and how wide the columns are."""
    text = GENERATED_LOG_LINE.sub("", text)
    text = TOPIC_ID.sub("TopicId: ID", UUID.sub("UUID", text))
    text = PLACED.sub(placed, text)
    for node, address in NODES.items():
        text = re.sub(rf"{address}\s+\({node}\)", "BROKER (ID)", text).replace(address, "BROKER")
    text = text.replace("/127.0.0.1", "HOST")
    for name, value in names.items():
        text = text.replace(value, name)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line)


def placed(match):
    """One broker leads, and all have replicas that are in sync. Else it stays as it is, and shows."""
    replicas, in_sync = (sorted(map(int, listed.split(","))) for listed in match.groups()[1:])
    as_it_should_be = int(match[1]) in IDS and replicas == IDS and in_sync == IDS
    return "Leader: ONE Replicas: ALL Isr: ALL" if as_it_should_be else match[0]


def same(actual, expected, **names):
    equal(plain(actual, **names).splitlines(), [" ".join(line.split()) for line in expected.strip().splitlines()])


def contains(text, part):
    assert part in text, f"{part!r} is not in: {text}"


def not_yet(what, refusal="UnsupportedVersionException"):
    """Marks a test of what Duramen may not serve yet: it passes, or is refused with this text and says so."""

    def mark(function):
        @wraps(function)
        def marked():
            try:
                function()
            except AssertionError as failure:
                if checks.broker_kind() == "kafka" or refusal not in str(failure):
                    raise
                pytest.skip(f"not yet: {what}")

        return marked

    return mark
