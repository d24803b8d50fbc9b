"""Time stops for the broker, or for a reader."""

import signal
import socket
import time

from batch import batch
from calls import connect, fetch_body, new_topic, produce
from checks import equal
from load import Load, assert_nothing_lost
from machine import Broker, workspace

PAUSE_S = 3


def test_a_broker_that_stood_still_goes_on_and_nothing_is_lost():
    with workspace() as directory, Broker(directory / "data").start() as broker:
        with connect(broker.bootstrap) as connection:
            topic = new_topic(connection, partitions=2)
        # One waits; the other gives up its connection, and repeats what it sent, into the same full sockets.
        patient, hasty = Load(broker, topic, 0, "patient"), Load(broker, topic, 1, "hasty", socket_timeout_ms=1500)
        for load in (patient, hasty):
            load.wait_for_acks(50)
        broker.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            broker.process.send_signal(signal.SIGCONT)
        for load in (patient, hasty):
            load.wait_for_acks(50)
            load.finish()
        assert_nothing_lost(broker, topic, [patient, hasty], partitions=2)
        assert broker.is_alive() and not broker.errors(), broker.log_tail()


def test_readers_that_stop_reading_hold_up_no_producer():
    readers, value_bytes, count = 32, 1_000_000, 20
    with workspace() as directory, Broker(directory / "data").start() as broker:
        with connect(broker.bootstrap) as connection:
            topic, small = new_topic(connection), new_topic(connection)
            large = batch([b"v" * value_bytes])
            for _ in range(count):
                equal(produce(connection, topic, large)["ErrorCode"], 0)
            undisturbed = median_and_worst(connection, small)
            stalled = []
            for _ in range(readers):
                reader = connect(broker.bootstrap)
                reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                asked = reader.send("Fetch", 12, fetch_body([(topic, 0, 0)], partition_max_bytes=50 << 20))
                stalled.append((reader, asked))
            time.sleep(0.5)
            median, worst = median_and_worst(connection, small)
            print(f"an append takes {undisturbed[0] * 1e3:.1f} ms, with {readers} stalled readers {median * 1e3:.1f}, at worst {worst * 1e3:.1f}")
            assert median < 5 * undisturbed[0] + 0.01 and worst < 1, f"{undisturbed}, then {median}, {worst}"
            # They take it up again, and get all of it.
            for reader, asked in stalled[:4]:
                answered, frame = reader.receive_frame()
                equal(answered, asked)
                assert len(frame) > count * value_bytes, f"{len(frame)} bytes"
            for reader, _ in stalled:
                reader.close()


def median_and_worst(connection, topic, count=100):
    took = []
    for _ in range(count):
        began = time.monotonic()
        equal(produce(connection, topic, batch([b"v"]))["ErrorCode"], 0)
        took.append(time.monotonic() - began)
    return sorted(took)[count // 2], max(took)
