"""A read that fails is answered with an error, to the one who asked for it."""

from batch import batch, batches
from calls import connect, fetch, new_topic, produce
from checks import equal, eventually
from connection import Closed
from machine import Broker, failing, traced_results, workspace

KAFKA_STORAGE_ERROR = 56
VALUES = [b"%d" % number * 900_000 for number in range(3)]
BATCHES = [batch([value]) for value in VALUES]


def values_of(answer):
    equal(answer["ErrorCode"], 0)
    return [value for each in batches(answer["Records"]) for value in each.values()]


def stop_with_cold_data(broker):
    """Large batches, that a restart neither rewrites nor checks; and a second topic. Returns their names."""
    broker.start()
    with connect(broker.bootstrap) as connection:
        harmed, other = new_topic(connection), new_topic(connection)
        for topic in (harmed, other):
            for each in BATCHES:
                equal(produce(connection, topic, each)["ErrorCode"], 0)
    broker.stop()
    return harmed, other


def test_a_failed_read_is_a_storage_error_for_its_partition_and_for_nobody_else():
    with workspace() as directory, Broker(directory / "data") as broker:
        harmed, other = stop_with_cold_data(broker)
        segment = broker.data_dir / f"{harmed}-0/00000000000000000000.log"
        trace = directory / "trace"
        broker.start(failing("pread64", segment, trace, when="1+"))
        with connect(broker.bootstrap) as connection, connect(broker.bootstrap) as second:
            for _ in range(2):
                answer = fetch(connection, harmed)
                equal((answer["ErrorCode"], answer["Records"] or b""), (KAFKA_STORAGE_ERROR, b""))
                equal(values_of(fetch(connection, other)), VALUES, "another topic, same connection")
            equal(values_of(fetch(second, other)), VALUES, "another connection")
            equal(produce(second, harmed, batch([b"more"]))["BaseOffset"], len(VALUES), "an append to the same partition")
        assert "-1 EIO" in traced_results(trace, "pread64")
        assert broker.is_alive(), broker.log_tail()
        broker.kill9()
        broker.start()
        with connect(broker.bootstrap) as connection:
            equal(values_of(fetch(connection, harmed)), [*VALUES, b"more"], "without the fault")


def test_a_read_that_fails_in_mid_answer_ends_its_connection_and_no_other():
    with workspace() as directory, Broker(directory / "data") as broker:
        harmed, other = stop_with_cold_data(broker)
        segment = broker.data_dir / f"{harmed}-0/00000000000000000000.log"
        trace = directory / "trace"
        broker.start(failing("sendfile", segment, trace, when="1+"))
        with connect(broker.bootstrap) as connection, connect(broker.bootstrap) as second:
            try:
                answer = fetch(connection, harmed)
                raise AssertionError(f"answered with {answer['ErrorCode']} and {len(answer['Records'])} bytes")
            except Closed:
                pass
            equal(values_of(fetch(second, other)), VALUES)
            equal(produce(second, harmed, batch([b"more"]))["BaseOffset"], len(VALUES))
        assert "-1 EIO" in traced_results(trace, "sendfile")
        assert broker.is_alive(), broker.log_tail()
        assert "Input/output error" in broker.log(), "the log does not say why the connection ended"


def test_the_log_says_why_a_read_failed():
    with workspace() as directory, Broker(directory / "data") as broker:
        harmed, _ = stop_with_cold_data(broker)
        segment = f"{harmed}-0/00000000000000000000.log"
        broker.start(failing("pread64", broker.data_dir / segment, directory / "trace", when="1+"))
        with connect(broker.bootstrap) as connection:
            equal(fetch(connection, harmed)["ErrorCode"], KAFKA_STORAGE_ERROR)
        # Two threads speak: the one that answers, and the one that finds no other copy of what cannot be read.
        eventually(
            f"the log says why {segment} could not be read: {broker.log_tail()}",
            lambda: any(segment in line and "Input/output error" in line for line in broker.errors()),
        )
