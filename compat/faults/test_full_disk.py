"""A disk that is full, by our own doing and by somebody else's."""

import threading
import time
from contextlib import ExitStack, contextmanager

import calls
import schema
from batch import batch
from calls import connect, fetch, new_topic, produce
from checks import SLOWNESS, equal, eventually
from confluent_kafka import Producer
from connection import Closed, request_header
from load import QUICK, Load, assert_nothing_lost
from machine import Broker, OtherFile, failing, free_bytes, slow, small_disk, workspace

KAFKA_STORAGE_ERROR = 56
MIB = 1 << 20
# The journal at first (64 MiB), the reserve (32) and what is always kept free (384) leave about 100 MiB for data.
DISK_MB = 596
RESERVE_BYTES = 32 * MIB


@contextmanager
def broker_on_small_disk(megabytes=DISK_MB):
    """Yields the broker and its disk's root; the log is on another disk."""
    with workspace() as directory, small_disk(directory, megabytes) as root, Broker(root / "data", directory / "log") as broker:
        broker.start()
        yield broker, root


def fill(broker, topic):
    """Produces until the broker refuses; every answer comes in time, and no refusal is anything but a full disk's."""
    answers = []
    producer = Producer({
        "bootstrap.servers": broker.bootstrap, "acks": "all", "message.send.max.retries": 0, "message.timeout.ms": 15_000,
        "queue.buffering.max.kbytes": 16_384, "linger.ms": 0, **QUICK,
    })  # fmt: skip
    deadline = time.monotonic() + 30 * SLOWNESS
    while not any(answers):
        assert time.monotonic() < deadline, f"not full after {len(answers)} messages"
        try:
            producer.produce(topic, b"b" * 900_000, on_delivery=lambda error, _: answers.append(error and error.code()))
        except BufferError:
            producer.poll(0.2)
        producer.poll(0)
    equal(producer.flush(15), 0, "without an answer")
    equal(set(answers), {None, KAFKA_STORAGE_ERROR}, "answers")


def is_refused(connection, topic, partition=0):
    return produce(connection, topic, batch([b"x"]), partition)["ErrorCode"] == KAFKA_STORAGE_ERROR


def delete_topic(connection, topic):
    answer = connection.call("DeleteTopics", 6, {"Topics": [{"Name": topic}], "TimeoutMs": 5000})
    equal(answer["Responses"][0]["ErrorCode"], 0, "deleting")


def loaded(broker, topic, messages=100):
    """Some messages that are there from now on."""
    load = Load(broker, topic)
    load.wait_for_acks(messages)
    load.finish()
    return load


def wait_until_refused(broker, topic):
    with connect(broker.bootstrap) as connection:
        eventually("appends are refused", lambda: is_refused(connection, topic))


def wait_for_reserve(root, size=RESERVE_BYTES):
    reserve = root / "data/reserve"
    eventually("the reserve is made", lambda: reserve.exists() and reserve.stat().st_size >= size)


def assert_serves_but_refuses(broker, ballast, kept, before):
    """Everything but appends goes on."""
    status, said = broker.health()
    assert status == 503 and "the disk is full" in said and "deleted" in said, (status, said)
    with connect(broker.bootstrap) as connection:
        assert is_refused(connection, ballast)
        equal(calls.describe_topic(connection, ballast)["ErrorCode"], 0, "Metadata")
        made = new_topic(connection, 3)
        assert is_refused(connection, made)
        equal(calls.list_offset(connection, made, calls.LATEST)["Offset"], 0)
        delete_topic(connection, made)
    assert_nothing_lost(broker, kept, [before])


def test_a_disk_that_the_log_has_filled_refuses_appends_serves_everything_else_and_recovers():
    with broker_on_small_disk() as (broker, root):
        with connect(broker.bootstrap) as connection:
            kept, ballast, more = (new_topic(connection) for _ in range(3))
        before, patient = loaded(broker, kept), Load(broker, more)
        patient.wait_for_acks()
        fill(broker, ballast)
        assert "is full: " in broker.log() and "MiB are free, and appends are taken from" in broker.log(), broker.log_tail()
        assert_serves_but_refuses(broker, ballast, kept, before)

        broker.kill9()
        broker.restart()
        wait_until_refused(broker, ballast)
        assert_serves_but_refuses(broker, ballast, kept, before)

        with connect(broker.bootstrap) as connection:
            delete_topic(connection, ballast)
        patient.wait_for_acks()
        patient.finish()
        equal(eventually("healthy again", lambda: broker.health()[0] == 200 and broker.health())[1], "ok\n")
        assert "the disk has room again" in broker.log(), broker.log_tail()
        assert_nothing_lost(broker, kept, [before])
        assert_nothing_lost(broker, more, [patient])


def test_a_start_on_a_full_disk_refuses_the_first_append_already():
    # Less than is always kept free, from the beginning.
    with broker_on_small_disk(200) as (broker, root):
        assert free_bytes(root) < 120 * MIB, free_bytes(root)
        with connect(broker.bootstrap) as connection:
            topic = new_topic(connection)
        time.sleep(0.5)
        wait_until_refused(broker, topic)
        for _ in range(3):
            broker.kill9()
            broker.restart()
            # Whatever is accepted before a look at the disk may be what takes the last byte.
            with connect(broker.bootstrap) as connection:
                assert is_refused(connection, topic), "the first append after a start was accepted on the full disk"


def test_a_disk_that_somebody_else_has_filled_to_the_last_byte_is_survived_on_the_reserve():
    with broker_on_small_disk() as (broker, root):
        with connect(broker.bootstrap) as connection:
            kept, ballast, more = (new_topic(connection) for _ in range(3))
            large = batch([b"b" * 1_000_000])
            for _ in range(40):
                equal(produce(connection, ballast, large)["ErrorCode"], 0)
        before = loaded(broker, kept)
        wait_for_reserve(root)
        patient = Load(broker, more)
        patient.wait_for_acks()
        with OtherFile(root) as other:
            other.take_all()
            wait_until_refused(broker, ballast)
            # The node says so when it looks at free space; storage does as well if a write fails first.
            assert " is full" in broker.log(), broker.log_tail()
            assert_serves_but_refuses(broker, ballast, kept, before)

            broker.kill9()
            broker.restart()
            wait_until_refused(broker, ballast)
            with connect(broker.bootstrap) as connection:
                delete_topic(connection, ballast)
            eventually("the topic's space is free", lambda: free_bytes(root) > 30 * MIB)
        patient.wait_for_acks()
        patient.finish()
        assert_nothing_lost(broker, kept, [before])
        assert_nothing_lost(broker, more, [patient])


def test_a_disk_without_a_byte_left_even_of_the_reserve_loses_nothing_that_was_acknowledged():
    with broker_on_small_disk() as (broker, root):
        with connect(broker.bootstrap) as connection:
            topic = new_topic(connection, 2, segment_bytes=str(MIB))
        loads = [Load(broker, topic, partition, f"load-{partition}") for partition in (0, 1)]
        for load in loads:
            load.wait_for_acks(50)
        with OtherFile(root) as other:
            # Recovery may have to write to a segment: a partition for which there is no room then cannot be read either.
            for seconds, readable in ((2, {0}), (1, {0, KAFKA_STORAGE_ERROR})):
                # Whatever the broker gives up, or removes, is taken as well.
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    other.take_all()
                    time.sleep(0.01)
                assert broker.is_alive(), f"ended with {broker.process.returncode}\n{broker.log_tail()}"
                assert "the disk is full" in broker.health()[1], broker.health()
                with connect(broker.bootstrap) as connection:
                    for partition, load in enumerate(loads):
                        assert is_refused(connection, topic, partition)
                        code = fetch(connection, topic, load.acks[0].offset, partition=partition)["ErrorCode"]
                        assert code in readable, code
                broker.kill9()
                broker.restart()
        # A partition that found no room at the start is there again after the next.
        broker.kill9()
        broker.restart()
        for load in loads:
            load.wait_for_acks()
            load.finish()
        assert_nothing_lost(broker, topic, loads, partitions=2)


def test_large_requests_that_are_under_way_when_the_disk_becomes_full_are_answered():
    # As much as a node takes on at once, and more than was free beside what is always kept free.
    producers, value_bytes = 24, 10_000_000
    with broker_on_small_disk(DISK_MB - 40) as (broker, root), ExitStack() as connections:
        wait_for_reserve(root)
        broker.stop()
        # While the disk takes its time, all of them are taken on.
        broker.start(slow("fdatasync", broker.data_dir / "journal/0000", broker.log_path.with_name("trace"), 300))
        with connect(broker.bootstrap) as connection:
            topic = new_topic(connection, producers, max_message_bytes=str(2 * value_bytes))
            large = batch([b"v" * value_bytes])
            senders = [connections.enter_context(connect(broker.bootstrap)) for _ in range(producers)]
            answers = together(senders, [calls.produce_body(topic, large, partition) for partition in range(producers)])
            equal(set(answers) - {0, KAFKA_STORAGE_ERROR}, set(), f"answers other than yes and full: {answers}\n{broker.log_tail(3)}\n")
            assert broker.is_alive() and 0 in answers, answers
            for partition in range(producers):
                end = calls.list_offset(connection, topic, calls.LATEST, partition)["Offset"]
                equal(end, int(answers[partition] == 0), f"the end of partition {partition}")
                if end:
                    equal(len(fetch(connection, topic, partition=partition, partition_max_bytes=2 * value_bytes)["Records"]), len(large))


def together(connections, bodies):
    """Sends all at once; returns each one's error code, or what happened instead."""
    version = calls.PRODUCE_BY_NAME
    frames = [request_header("Produce", version, 1) + schema.encode("ProduceRequest", version, body) for body in bodies]
    answers = [None] * len(bodies)
    start = threading.Barrier(len(bodies))

    def send(number):
        start.wait()
        try:
            connections[number].send_frame(frames[number])
            answer = connections[number].receive("Produce", version, 1)
            answers[number] = answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
        except (Closed, TimeoutError) as failure:
            answers[number] = repr(failure)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(bodies))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return answers


def test_a_checkpoint_that_finds_the_disk_full_uses_the_reserve():
    topic = "rolls"
    with workspace() as directory, Broker(directory / "data") as broker:
        index = broker.data_dir / f"{topic}-0/00000000000000000000.index"
        # The index of the first segment is looked for, and then made: the disk is full at that moment.
        broker.start(failing("openat", index, directory / "trace", when=2, error="ENOSPC"))
        wait_for_reserve(directory, MIB)
        with connect(broker.bootstrap) as connection:
            configs = {"segment_bytes": "20000", "index_interval_bytes": "100"}
            equal(calls.create_topic(connection, topic, configs=configs)["ErrorCode"], 0)
            calls.wait_for_leaders(connection, topic, 1)
        # A segment of one batch has no index: what waited while the producer connected would be one.
        load = Load(broker, topic, large_every=1_000_000, batch_num_messages=5)
        load.wait_for_acks(200)
        deadline = time.monotonic() + 40 * SLOWNESS
        while "ENOSPC" not in (directory / "trace").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        load.finish()
        assert "ENOSPC" in (directory / "trace").read_text(), "the disk was not full at that moment"
        assert_nothing_lost(broker, topic, [load])


def test_a_disk_that_becomes_full_is_noticed_while_producers_are_busy():
    with broker_on_small_disk() as (broker, root):
        with connect(broker.bootstrap) as connection:
            topic, probe = new_topic(connection), new_topic(connection)
        load = Load(broker, topic, large_every=1_000_000)
        load.wait_for_acks()
        with OtherFile(root) as other:
            other.take(free_bytes(root) - 64 * MIB)
            wait_until_refused(broker, probe)
        load.finish()
        assert_nothing_lost(broker, topic, [load])


def test_the_reserve_is_made_while_producers_are_busy():
    with workspace() as directory, Broker(directory / "data") as broker:
        broker.start()
        with connect(broker.bootstrap) as connection:
            load = Load(broker, new_topic(connection), large_every=1_000_000)
        load.wait_for_acks()
        wait_for_reserve(directory)
        load.finish()


def segments_that_were_read(broker):
    """A topic of ten segments, written by an earlier start and read in this one."""
    broker.start()
    with connect(broker.bootstrap) as connection:
        topic = new_topic(connection, segment_bytes="20000")
        for _ in range(10):
            equal(produce(connection, topic, batch([b"v" * 15_000]))["ErrorCode"], 0)
    broker.stop()
    broker.start()
    with connect(broker.bootstrap) as connection:
        for offset in range(10):
            equal(fetch(connection, topic, offset)["ErrorCode"], 0)
    return topic


def assert_removed_files_are_closed(broker):
    deadline = time.monotonic() + 2 * SLOWNESS
    while broker.removed_files_open() and time.monotonic() < deadline:
        time.sleep(0.05)
    equal(broker.removed_files_open(), [], "removed, and still open, so that their space is not free")


def test_a_deleted_topic_that_was_read_gives_its_space_back():
    with workspace() as directory, Broker(directory / "data") as broker:
        topic = segments_that_were_read(broker)
        with connect(broker.bootstrap) as connection:
            delete_topic(connection, topic)
        eventually("its files are removed", lambda: not list(broker.data_dir.glob(f"{topic}*")))
        assert_removed_files_are_closed(broker)


def test_deleted_records_give_their_space_back_although_nothing_more_is_appended():
    with workspace() as directory, Broker(directory / "data") as broker:
        topic = segments_that_were_read(broker)
        with connect(broker.bootstrap) as connection:
            equal(calls.delete_records(connection, topic, 9)["LowWatermark"], 9)
        segments = broker.data_dir / f"{topic}-0"
        eventually("all segments but the last are removed", lambda: len(list(segments.glob("*.log"))) == 1, 5)
        assert_removed_files_are_closed(broker)
