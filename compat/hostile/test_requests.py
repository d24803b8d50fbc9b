"""Requests that are sound, and ask for very much."""

import struct
import time

import attacks
import schema
from batch import batch
from calls import connect, fetch_body, fetched_values, new_topic, produce, produce_body
from checks import equal
from connection import request_header
from scene import MIB, Peer, attackers, broker, frame, good_client

ELEMENTS_MAX = 1 << 18
MESSAGE_TOO_LARGE, CORRUPT, INVALID_RECORD = 10, 2, 87


def metadata_of(topics):
    """Metadata v9 for so many topics with an empty name, three bytes each."""
    return request_header("Metadata", 9, 1) + uvarint(topics + 1) + b"\2a\0" * topics + b"\0\0\0\0"


def uvarint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_arrays_of_more_elements_than_a_request_may_have_close_the_connection_with_a_line():
    with broker() as target, good_client(target):
        for topics in (ELEMENTS_MAX + 1, 10_000_000):
            with Peer(target) as peer:
                peer.send(frame(metadata_of(topics)))
                assert peer.is_closed()
                target.expect_line(peer.name, f"its arrays have more than {ELEMENTS_MAX} elements")


def test_requests_for_hundreds_of_thousands_of_things_are_answered_and_take_bounded_memory():
    with broker({"auto.create.topics.enable": "false"}) as target:
        before = target.memory_mib()
        target.forget_peak()
        with good_client(target), attackers(2, target, "name_many_topics", 200_000):
            time.sleep(3)
        grown = target.memory_mib("VmHWM") - before
        print(f"     took {grown} MiB")
        assert grown <= 512, f"{grown} MiB"


def test_a_partition_named_hundreds_of_thousands_of_times_is_answered_at_once():
    count = 250_000
    with broker() as target, good_client(target), connect(target.bootstrap) as connection:
        topic = new_topic(connection)
        # Of a partition that is named more than once the last batch counts.
        body = produce_body(topic, batch([b"last"]))
        [entry] = body["TopicData"][0]["PartitionData"]
        body["TopicData"][0]["PartitionData"] = [{"Index": 0, "Records": None}] * count + [entry]
        began = time.monotonic()
        payload = schema.encode("ProduceRequest", 12, body)
        began = time.monotonic()
        connection.send_frame(request_header("Produce", 12, 1) + payload)
        connection.receive_frame()
        took = time.monotonic() - began
        assert took < 2, f"{took:.1f} s"
        equal(fetched_values(connection, topic), [b"last"])


def test_many_tagged_fields_and_deep_claims_are_passed_over_or_refused():
    with broker() as target, good_client(target):
        tags = b"".join(uvarint(tag) + b"\0" for tag in range(100_000))
        with connect(target.bootstrap) as connection:
            connection.send_frame(struct.pack(">hhih", 3, 12, 9, -1) + uvarint(100_000) + tags + b"\1\0\0\0\0")
            equal(connection.receive_frame()[0], 9)
        with Peer(target) as peer:
            # Arrays in arrays, each of which claims to be as long as the frame.
            peer.send(frame(request_header("Fetch", 4, 1) + bytes(17) + struct.pack(">ih", 1000, 0) * 500))
            assert peer.is_closed()
            target.expect_line(peer.name, "malformed")


def test_decompression_bombs_are_refused_and_take_bounded_memory():
    with broker() as target, connect(target.bootstrap) as connection:
        topic = new_topic(connection)
        for codec, bomb in attacks.bombs(300 * MIB).items():
            error = produce(connection, topic, bomb)["ErrorCode"]
            assert error in (MESSAGE_TOO_LARGE, CORRUPT, INVALID_RECORD), f"{codec}: {error}"
        before = target.memory_mib()
        target.forget_peak()
        with good_client(target), attackers(3, target, "produce_bombs", 200):
            time.sleep(3)
        grown = target.memory_mib("VmHWM") - before
        print(f"     took {grown} MiB")
        assert grown <= 600, f"{grown} MiB"
        equal(fetched_values(connection, topic), [])


def test_sessions_of_a_hundred_thousand_partitions_and_very_many_sessions_are_bounded():
    with broker() as target, connect(target.bootstrap) as connection:
        topic = new_topic(connection)
        before = target.memory_mib()
        with good_client(target):
            given = [session_id(connection, [(topic, 0, 0)]) for _ in range(1100)]
            equal(sum(id != 0 for id in given), 1000, "sessions given, and none beyond")
        with good_client(target), attackers(2, target, "fetch_everything", 100_000):
            time.sleep(3)
        grown = target.memory_mib() - before
        print(f"     took {grown} MiB")
        assert grown <= 400, f"{grown} MiB"


def session_id(connection, partitions):
    return connection.call("Fetch", 12, fetch_body(partitions, SessionId=0, SessionEpoch=0))["SessionId"]
