"""A sync that fails ends the process, is not tried again, and nobody was told that its bytes are safe."""

import time

import calls
from batch import batch
from calls import connect, new_topic, produce
from checks import equal
from connection import Closed
from load import Load, assert_nothing_lost, read_all
from machine import EXIT_DISK, Broker, failing, traced_results, workspace

# The journal takes what is small; a large batch is synced in its segment.
SMALL, LARGE = 500, 900_000
TOPIC = "t"
SEGMENT = f"{TOPIC}-0/00000000000000000000.log"


def assert_ends_at_once(broker, since):
    equal(broker.process.wait(2), EXIT_DISK, "the exit code")
    assert time.monotonic() - since < 2, f"it took {time.monotonic() - since:.1f} s"
    [line] = broker.errors()
    assert "the disk failed at syncing" in line and "Input/output error" in line, line
    return line


def fail_while_producing(call, path, size, when):
    """One request at a time until the broker ends; then a start without the fault.

    Returns what was acknowledged, and the line in the log.
    """
    with workspace() as directory, Broker(directory / "data") as broker:
        trace = directory / "trace"
        broker.start(failing(call, broker.data_dir / path, trace, when))
        acknowledged = []
        with connect(broker.bootstrap) as connection:
            equal(calls.create_topic(connection, TOPIC)["ErrorCode"], 0)
            producer_id, epoch = calls.new_producer_id(connection)

            def send(connection, number):
                # The number is its content.
                value = (b"%d " % number).ljust(size, b"%x" % (number % 16))
                return produce(connection, TOPIC, batch([value], keys=[b"p:%d" % number], producer_id=producer_id, epoch=epoch, sequence=number))

            try:
                for number in range(100):
                    since = time.monotonic()
                    answer = send(connection, number)
                    equal((answer["ErrorCode"], answer["BaseOffset"]), (0, number))
                    acknowledged.append(number)
                raise AssertionError("no sync failed within 100 requests")
            except Closed:
                pass
        line = assert_ends_at_once(broker, since)
        # The last answer that this path's syncs gave: nothing came after it.
        results = traced_results(trace, call)
        equal(results.index("-1 EIO"), len(results) - 1, f"what came after the failed sync: {results}")
        broker.start()
        with connect(broker.bootstrap) as connection:
            calls.wait_for_leaders(connection, TOPIC, 1)
            for number in (len(acknowledged), len(acknowledged) + 1):
                answer = send(connection, number)
                equal((answer["ErrorCode"], answer["BaseOffset"]), (0, number), "the repeat, and the next")
            # And once more, now that its answer is known.
            equal(send(connection, len(acknowledged))["BaseOffset"], len(acknowledged))
        equal([(each.offset, each.key) for each in read_all(broker, TOPIC)], [(n, f"p:{n}") for n in range(len(acknowledged) + 2)])
        return acknowledged, line


def test_a_failed_sync_of_the_journal_ends_the_process_before_it_answers():
    acknowledged, _ = fail_while_producing("fdatasync", "journal/0000", SMALL, when=20)
    assert len(acknowledged) >= 5, acknowledged


def test_a_failed_sync_of_a_large_batch_in_its_segment_ends_the_process_before_it_answers():
    acknowledged, _ = fail_while_producing("fdatasync", SEGMENT, LARGE, when=2)
    assert acknowledged


def test_a_failed_sync_of_the_directory_of_a_new_segment_ends_the_process_before_it_answers():
    acknowledged, _ = fail_while_producing("fsync", f"{TOPIC}-0", LARGE, when=1)
    equal(acknowledged, [])


def test_the_log_names_what_could_not_be_synced():
    for path, size, when in (("journal/0000", SMALL, 20), (SEGMENT, LARGE, 2)):
        _, line = fail_while_producing("fdatasync", path, size, when)
        assert path.split("/")[0] in line, line


def test_a_failed_write_to_the_journal_ends_the_process_before_it_answers():
    with workspace() as directory, Broker(directory / "data") as broker:
        broker.start().stop()  # the journal's files are made
        broker.start(failing("pwritev", broker.data_dir / "journal/0000", directory / "trace", when=25))
        with connect(broker.bootstrap) as connection:
            topic, acknowledged = new_topic(connection), 0
            try:
                while acknowledged < 100:
                    equal(produce(connection, topic, batch([b"v"], keys=[b"p:%d" % acknowledged]))["BaseOffset"], acknowledged)
                    acknowledged += 1
            except Closed:
                pass
        equal(broker.process.wait(2), EXIT_DISK, "the exit code")
        [line] = broker.errors()
        assert "the disk failed at writing journal/0000" in line, line
        broker.start()
        equal([each.key for each in read_all(broker, topic)], [f"p:{number}" for number in range(acknowledged)])


def test_a_client_that_retries_through_a_failed_sync_lands_everything_once():
    with workspace() as directory, Broker(directory / "data") as broker:
        broker.start(failing("fdatasync", broker.data_dir / "journal/0000", directory / "trace", when=400))
        with connect(broker.bootstrap) as connection:
            topic = new_topic(connection, partitions=2)
        loads = [Load(broker, topic, partition, f"load-{partition}", large_every=25) for partition in (0, 1)]
        equal(broker.process.wait(20), EXIT_DISK, "the exit code")
        before = [len(load.acks) for load in loads]
        broker.start()
        for load in loads:
            load.wait_for_acks()
            load.finish()
        assert all(before), f"acknowledged before the failure: {before}"
        assert_nothing_lost(broker, topic, loads, partitions=2)
