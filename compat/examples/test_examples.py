"""The programs of examples/ do what their pages say, and keep it under a stream of writes, takeovers and kills.

Each program runs as a user runs it: a process with arguments, lines in and lines out. The queue itself, read over HTTP,
and a consumer of Kafka's protocol tell what the programs should have shown.
"""

import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

import checks
from broker import COMPAT, HOST, Duramen, free_port
from checks import equal, eventually

EXAMPLES = COMPAT.parent / "examples"
FIREHOSE = EXAMPLES / "firehose/firehose.py"
STORE, DEMO = EXAMPLES / "replication-log/store.py", EXAMPLES / "replication-log/demo.py"
PATIENCE_S = 60
PARTITIONS = 3
FENCED = "refused: fenced: the token is not the fence of the log or queue"
# How often a primary begins, in turn.
TENURES = 8


class SameAddress(Duramen):
    """A broker that serves the native API at the same address after each start: the programs know no other."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.native_port = free_port()

    def command(self):
        return [f"{HOST}:{self.native_port}" if word == f"{HOST}:0" else word for word in super().command()]


@pytest.fixture(scope="module")
def broker():
    directory = Path(tempfile.mkdtemp(prefix="duramen-examples-"))
    with SameAddress(free_port(), directory / "data", {"num.partitions": str(PARTITIONS)}, [], []) as one:
        one.restart()
        yield one
    shutil.rmtree(directory)


@pytest.fixture
def directory():
    made = Path(tempfile.mkdtemp(prefix="duramen-examples-"))
    yield made
    shutil.rmtree(made)


def run(program, *arguments, code=0):
    """Runs a program to its end, and returns what it printed; of one that failed, what it said of that."""
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * checks.SLOWNESS)
    equal(done.returncode, code, done.stdout + done.stderr)
    return (done.stderr if code else done.stdout).strip()


class Process:
    """A program that runs beside the test: lines go in, lines come out."""

    def __init__(self, program, *arguments):
        command = [sys.executable, str(program), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self):
        """Returns its next line, or nothing once it has ended."""
        return self.process.stdout.readline().rstrip("\n")

    def obey(self, command):
        try:
            print(command, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return ""
        return self.line()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class Lines:
    """The lines that a program has printed until now."""

    def __init__(self, process):
        self.process, self.printed = process, []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.process.stdout:
            self.printed.append(line.rstrip("\n"))

    def wait_for(self, part):
        eventually(f"a line with '{part}'", lambda: any(part in f"{line} " for line in self.printed), PATIENCE_S)


def call(broker, path):
    with urllib.request.urlopen(f"http://{broker.native}{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def elements(broker, topic, queue):
    """All elements of a queue, in order."""
    found, after, more = [], "begin", True
    while more:
        page = call(broker, f"/v1/topics/{topic}/queues/{queue}/messages?after={after}&limit=1000")
        found += page["elements"]
        after, more = page["next"] or after, page["more"]
    return found


def consumed(broker, topic):
    """Key and value of all that a consumer of Kafka's protocol reads, one partition behind the other."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = [], set()

    def all_ended():
        for message in consumer.consume(1000, timeout=0.1):
            if message.error():
                equal(message.error().code(), KafkaError._PARTITION_EOF)
                ended.add(message.partition())
            else:
                found.append((message.partition(), message.key().decode(), message.value().decode()))
        return len(ended) == PARTITIONS

    eventually("the ends of all partitions", all_ended, PATIENCE_S)
    consumer.close()
    return [(key, value) for _, key, value in sorted(found, key=lambda record: record[0])]


def without_chance(text):
    """Text in which positions, versions and tokens are the same in each run."""
    text = re.sub(r"\b\d+\.\d+\.\d+\b", "POSITION", text)
    return re.sub(r"-[0-9a-f]{8};", "-TOKEN;", re.sub(r"\bversion is \d+\b", "VERSION", text))


def expected_output(page):
    """The block of a page that follows the words `It prints`."""
    lines = page.read_text().split("It prints", 1)[1].splitlines()[1:]
    block = itertools.takewhile(lambda line: not line or line.startswith("    "), lines)
    return "\n".join(line[4:] for line in block).strip()


def test_the_firehose_prints_what_its_page_says(broker):
    options = ["--server", broker.native, "--topic", checks.unique("posts")]
    page = without_chance(expected_output(FIREHOSE.with_name("README.md")))
    for _ in range(2):
        equal(without_chance(run(FIREHOSE, *options, "demo")), page)


def test_the_replication_log_prints_what_its_page_says(broker):
    printed = run(DEMO, "--server", broker.native, "--topic", checks.unique("databases"))
    equal(without_chance(printed), without_chance(expected_output(DEMO.with_name("README.md"))))


class Firehose:
    def __init__(self, broker):
        self.broker, self.topic = broker, checks.unique("posts")
        self.options = ["--server", broker.native, "--topic", self.topic]

    def run(self, *words, code=0):
        return run(FIREHOSE, *self.options, *words, code=code)

    def timeline(self, author):
        return self.run("timeline", author).splitlines()


def test_authors_edit_and_delete_their_posts(broker):
    firehose = Firehose(broker)
    # An author's name is any text, also in a path.
    author = "é/x ?y"
    first, second = firehose.run("post", author, "one"), firehose.run("post", author, "two")
    firehose.run("post", "bob", "other")
    equal(firehose.timeline(author), [f"{first} {author}: one", f"{second} {author}: two"])
    # No version is that of the present text.
    version = int(firehose.run("edit", author, first, "one, better").split()[1])
    firehose.run("edit", author, first, "one, best", "--version", str(version))
    said = firehose.run("edit", author, first, "one, worse", "--version", str(version), code=1)
    assert re.fullmatch(r"refused: version-mismatch: the element's version is \d+", said), said
    equal(firehose.timeline(author), [f"{first} {author}: one, best (edited)", f"{second} {author}: two"])
    equal(firehose.run("delete", author, second), "deleted")
    equal(firehose.run("delete", author, second), "there is no such post")
    said = firehose.run("edit", author, second, "two, again", code=1)
    equal(said, "refused: unknown-element: the queue has no element at the position")
    equal(firehose.timeline(author), [f"{first} {author}: one, best (edited)"])
    equal(consumed_sorted(firehose), sorted([("bob", "other"), (author, "one, best")]))
    equal(firehose.run("leave", author), "1 posts deleted")
    equal(firehose.timeline(author), [])
    equal(consumed_sorted(firehose), [("bob", "other")])


def consumed_sorted(firehose):
    return sorted(consumed(firehose.broker, firehose.topic))


def test_a_mistake_is_told_in_a_line(broker):
    firehose = Firehose(broker)
    said = firehose.run("edit", "alice", "first", "text", code=1)
    assert said.startswith("refused: bad-request: position: "), said
    said = run(FIREHOSE, "--server", f"127.0.0.1:{free_port()}", "timeline", "alice", code=1)
    assert said.startswith("no answer from 127.0.0.1:") and len(said.splitlines()) == 1, said
    said = run(FIREHOSE, "--server", broker.native, "--topic", "no topic", "timeline", "alice", code=1)
    assert said.startswith("refused: bad-request: ") and len(said.splitlines()) == 1, said


def test_a_follower_gets_posts_of_its_authors_as_they_come(broker):
    firehose = Firehose(broker)
    wanted = [f"{firehose.run('post', 'alice', 'before')} alice: before"]
    with Process(FIREHOSE, *firehose.options, "follow", "alice", "bob") as follower:
        follower = Lines(follower)
        follower.wait_for("-- these are all posts")
        for number in range(5):
            for author in ("alice", "bob", "carol"):
                position = firehose.run("post", author, f"number {number}")
                if author != "carol":
                    wanted.append(f"{position} {author}: number {number}")
        eventually("it has the new ones", lambda: len(follower.printed) > len(wanted), PATIENCE_S)
    # Those of one author come in order.
    for author in ("alice", "bob"):
        shown = [line for line in follower.printed if f" {author}: " in line]
        equal(shown, [line for line in wanted if f" {author}: " in line])
    equal(len(follower.printed), len(wanted) + 1)


def test_no_consumer_of_kafka_gets_a_post_after_its_deletion(broker):
    """Authors post, edit and delete. Consumers begin meanwhile: none gets what was deleted before it began."""
    firehose = Firehose(broker)
    gone, failures = [], []

    def write(author):
        try:
            for number in range(8):
                position = firehose.run("post", author, f"{author} {number}")
                if number % 2:
                    firehose.run("edit", author, position, f"{author} {number} edited")
                    gone.append((author, f"{author} {number}"))
                if number % 3:
                    equal(firehose.run("delete", author, position), "deleted")
                    gone.extend([(author, f"{author} {number}"), (author, f"{author} {number} edited")])
        except BaseException as failure:
            failures.append(failure)
            raise

    firehose.run("timeline", "nobody")
    writers = [threading.Thread(target=write, args=(author,)) for author in ("alice", "bob")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        before = set(gone)
        equal(before & set(consumed(broker, firehose.topic)), set())
    for writer in writers:
        writer.join()
    equal(failures, [])
    left = [(author, f"{author} {left}") for author in ("alice", "bob") for left in ("0", "3 edited", "6")]
    equal(consumed_sorted(firehose), left)


class Database:
    """A database, whose nodes are processes of store.py."""

    def __init__(self, broker, directory):
        self.broker, self.topic = broker, checks.unique("databases")
        self.options = ["--server", broker.native, "--topic", self.topic, "--checkpoints", str(directory)]

    @contextmanager
    def node(self, name):
        with Process(STORE, name, *self.options) as node:
            assert node.line().startswith(f"{name} is a replica, "), name
            yield node

    def follower(self, name):
        return Process(STORE, name, *self.options, "--follow")

    def elements(self):
        return elements(self.broker, self.topic, "shop")

    def replayed(self, state=None):
        """The state that the operations of the queue lead to."""
        state = dict(state or {})
        for element in self.elements():
            operation = json.loads(element["value"])
            if "key" in operation:
                state.pop(operation["key"], None)
            if "value" in operation:
                state[operation["key"]] = operation["value"]
        return state


def state_of(node):
    return json.loads(node.obey("dump"))


def promote(node):
    """Makes it the primary. Returns how many operations were withdrawn."""
    said = node.obey("promote")
    told = re.fullmatch(r"\w+ is the primary with fence \S+; (\d+) operations withdrawn", said)
    assert told, said
    return int(told[1])


def synced(node):
    """Returns how many operations were undone and applied."""
    said = node.obey("sync")
    told = re.fullmatch(r"(\d+) operations undone, (\d+) applied; at \S+", said)
    assert told, said
    return int(told[1]), int(told[2])


class Writer:
    """A primary that writes without a pause, until it is refused or has ended."""

    def __init__(self, node, tenure):
        self.node, self.tenure = node, tenure
        # Values that were acknowledged, and what came at last: nothing of a process that was killed.
        self.acknowledged, self.ending = [], None
        self.stopped = False
        self.thread = threading.Thread(target=self.write)
        self.thread.start()

    def write(self):
        number = 0
        while not self.stopped:
            value = f"{self.tenure}.{number}"
            said = self.node.obey(f"set key-{number % 7} {value}")
            if not said.startswith("written at "):
                break
            self.acknowledged.append(value)
            if number % 5 == 0:
                said = self.node.obey(f"del key-{(number + 3) % 7}")
                if not said.startswith("written at "):
                    break
            number += 1
        self.ending = said

    def wait_for(self, more):
        count = len(self.acknowledged) + more
        ended = lambda: not self.thread.is_alive()  # noqa: E731
        eventually(f"tenure {self.tenure} goes on", lambda: len(self.acknowledged) >= count or ended(), PATIENCE_S)
        assert len(self.acknowledged) >= count, self.ending

    def join(self):
        self.thread.join(PATIENCE_S * checks.SLOWNESS)
        assert not self.thread.is_alive(), "the primary still writes"
        return self.ending


class Chain:
    """What a follower has applied, as its lines tell: it undoes only its last operation."""

    def __init__(self, lines):
        self.positions, self.state, self.undone, self.checkpoints = [], {}, 0, 0
        for line in lines:
            kind, position, *words = line.split(" ", 2)
            if kind == "apply":
                self.positions.append(position)
            elif kind == "undo":
                equal(self.positions.pop(), position, "the operation that is undone")
                self.undone += 1
            else:
                equal(kind, "checkpoint")
                self.positions, self.checkpoints = [], self.checkpoints + 1


def surviving(database, tenure):
    values = [json.loads(element["value"]).get("value") for element in database.elements()]
    return [value for value in values if value and value.startswith(f"{tenure}.")]


def take_over(nodes, follower, kill):
    """Two nodes take over from each other under a stream of writes. Returns the writers of all tenures."""
    writers = []
    primary, replica = nodes
    promote(primary[0])
    for tenure in range(TENURES):
        writers.append(Writer(primary[0], tenure))
        writers[-1].wait_for(20)
        if tenure == TENURES - 1:
            break
        # The replica sees a part, and then is late.
        synced(replica[0])
        writers[-1].wait_for(20)
        # The follower reads what will be withdrawn.
        value = writers[-1].acknowledged[-1]
        follower.wait_for(f" {value} ")
        if kill and tenure % 2 == 0:
            primary[0].kill()
            equal(writers[-1].join(), "")
        withdrawn = promote(replica[0])
        # Twenty, at the least, were acknowledged since the replica has read.
        assert withdrawn >= 20, withdrawn
        if kill and tenure % 2 == 0:
            primary[0] = primary[1]()
        else:
            ending = writers[-1].join()
            assert re.fullmatch(rf"{FENCED}; [ab] is a replica", ending), ending
        primary, replica = replica, primary
    writers[-1].stopped = True
    assert writers[-1].join().startswith("written at "), writers[-1].ending
    return writers


def test_a_late_node_passes_pages_of_withdrawn_operations(broker, directory):
    database = Database(broker, directory)
    with database.node("a") as first, database.node("b") as second, database.node("c") as late:
        promote(first)
        # More than a page looks at.
        for number in range(300):
            assert first.obey(f"set key {number}").startswith("written at ")
        equal(promote(second), 301)
        equal(synced(late), (0, 1))
        equal(state_of(late), database.replayed())


@pytest.mark.parametrize("kill", [False, True], ids=["refused", "killed"])
def test_two_primaries_take_over_from_each_other_under_writes(broker, directory, kill):
    database = Database(broker, directory)
    with ExitStack() as stack, database.follower("f") as follower:
        follower = Lines(follower)
        nodes = []
        for name in ("a", "b"):
            begin = lambda name=name: stack.enter_context(database.node(name))  # noqa: E731
            nodes.append([begin(), begin])
        writers = take_over(nodes, follower, kill)
        # Of each tenure the end is lost, and nothing else; of the last one nothing.
        for writer in writers:
            left = surviving(database, writer.tenure)
            equal(left, writer.acknowledged[: len(left)], f"tenure {writer.tenure}")
        equal(left, writers[-1].acknowledged)
        for [node, _] in nodes:
            synced(node)
            equal(state_of(node), database.replayed())
        # One that begins now has the same without an undo.
        with database.node("c") as late:
            equal(synced(late), (0, len(database.elements())))
            equal(state_of(late), database.replayed())
        positions = [element["position"] for element in database.elements()]
        follower.wait_for(f"apply {positions[-1]} ")
        chain = Chain(follower.printed)
        equal(chain.positions, positions)
        assert chain.undone >= 20 * (TENURES - 1), chain.undone
        # A consumer of Kafka's protocol has the same operations.
        equal(consumed(broker, database.topic), [("shop", element["value"]) for element in database.elements()])
        assert sum(len(writer.acknowledged) for writer in writers) >= 300


def test_a_checkpoint_is_where_new_and_late_nodes_begin(broker, directory):
    database = Database(broker, directory)
    with database.node("a") as a, database.node("late") as late, database.follower("f") as follower:
        follower = Lines(follower)
        promote(a)
        a.obey("set x 1")
        synced(late)
        for number in range(10):
            a.obey(f"set y {number}")
        checkpoint = a.obey("checkpoint").removeprefix("checkpoint at ")
        # All is trimmed: the checkpoint alone has the state.
        equal(database.elements(), [])
        with database.node("new") as new:
            equal(new.obey("dump"), '{"x": "1", "y": "9"}')
            equal(new.obey("sync"), f"0 operations undone, 0 applied; at {checkpoint}")
            last = a.obey("set z 1").removeprefix("written at ")
            equal(synced(new), (0, 1))
            equal(state_of(new), database.replayed({"x": "1", "y": "9"}))
        # Its position is trimmed, and it goes on at the checkpoint.
        equal(synced(late), (0, 1))
        equal(state_of(late), state_of(a))
        follower.wait_for(f"apply {last} ")


def test_a_node_behind_the_checkpoint_withdraws_nothing_of_it(broker, directory):
    database = Database(broker, directory)
    with database.node("a") as a, database.node("b") as b:
        promote(a)
        a.obey("set x 1")
        synced(b)
        a.obey("set x 2")
        a.obey("checkpoint")
        a.obey("set y 1")
        equal(promote(b), 0)
        equal(state_of(b), {"x": "2", "y": "1"})
        # The fence keeps the old primary from the log, and from the checkpoint.
        equal(a.obey("checkpoint"), f"{FENCED}; a is a replica")
        synced(a)
        equal(state_of(a), state_of(b))


def test_a_node_whose_operations_were_withdrawn_does_not_bring_them_back(broker, directory):
    database = Database(broker, directory)
    with database.node("a") as a, database.node("b") as b:
        promote(a)
        a.obey("set x 1")
        synced(b)
        a.obey("set x 2")
        promote(b)
        b.obey("set y 1")
        # What `a` has applied last is not in the log any more. It reads what is there before it writes.
        equal(promote(a), 0)
        equal(state_of(a), {"x": "1", "y": "1"})
        equal(b.obey("set x 3"), f"{FENCED}; b is a replica")
        equal(b.obey("set x 3"), "refused: b is a replica")
        a.obey("del y")
        synced(b)
        equal(state_of(b), {"x": "1"})
        equal(state_of(b), database.replayed())


def test_a_primary_writes_each_operation_once_though_the_broker_is_killed(broker, directory):
    database = Database(broker, directory)
    with database.node("a") as a, database.follower("f") as follower:
        follower = Lines(follower)
        promote(a)
        writer = Writer(a, 0)
        for _ in range(3):
            writer.wait_for(10)
            broker.kill9()
            broker.restart()
        writer.wait_for(10)
        writer.stopped = True
        assert writer.join().startswith("written at "), writer.ending
        equal(surviving(database, 0), writer.acknowledged)
        equal(state_of(a), database.replayed())
        follower.wait_for(f"apply {database.elements()[-1]['position']} ")
        equal(Chain(follower.printed).positions, [element["position"] for element in database.elements()])
