"""Clients that each hold as much of the broker's memory as they may."""

import struct
import threading

import schema
from batch import batch
from calls import connect, new_topic, produce_body
from connection import request_header
from scene import MIB, Peer, broker, eventually, frame, good_client

BUDGET = 64 * MIB


def test_frames_that_never_become_whole_give_way_and_hold_up_no_small_request():
    """Eight clients with 20 MB of 90 each: together more than the broker's budget."""
    with broker({"queued.max.request.bytes": str(BUDGET)}) as target:
        before = target.memory_mib()
        with good_client(target):
            peers = [Peer(target) for _ in range(8)]
            senders = [threading.Thread(target=peer.send, args=(struct.pack(">i", 90 * MIB) + bytes(20 * MIB),)) for peer in peers]
            for sender in senders:
                sender.start()
            eventually("some are closed", lambda: target.lines("the node holds as many bytes"), timeout_s=30)
            print(f"     with half frames of 160 MiB sent: {target.memory_mib() - before} MiB more")
            grown = target.memory_mib("VmHWM") - before
            assert grown <= 3 * BUDGET // MIB, f"{grown} MiB"
            said = target.lines("the node holds as many bytes")
            assert all("in the middle of a frame" in line for _, line in said), said
            for peer in peers:
                peer.end()
            for sender in senders:
                sender.join()


def test_many_large_produces_at_a_time_all_get_through_a_small_budget():
    """Six producers with 20 requests of 900 KB on their way each, 108 MB together, through 8 MiB."""
    with broker({"queued.max.request.bytes": str(8 * MIB)}) as target, connect(target.bootstrap) as setup:
        topics = [new_topic(setup) for _ in range(6)]
        failures = []

        def load(topic):
            payload = schema.encode("ProduceRequest", 12, produce_body(topic, batch([bytes(900_000)])))
            try:
                with connect(target.bootstrap) as connection:
                    sending = threading.Thread(target=lambda: [connection.send_frame(request_header("Produce", 12, n) + payload) for n in range(20)])
                    sending.start()
                    for number in range(20):
                        answered, _ = connection.receive_frame(timeout_s=30)
                        assert answered == number
                    sending.join()
            except BaseException as failure:
                failures.append(repr(failure))

        with good_client(target):
            loads = [threading.Thread(target=load, args=(topic,)) for topic in topics]
            for each in loads:
                each.start()
            for each in loads:
                each.join()
        assert not failures, failures


def test_one_connection_cannot_take_the_whole_budget():
    """A thousand produces of 100 KB that nobody waits for the answers of."""
    with broker({"queued.max.request.bytes": str(BUDGET)}) as target, connect(target.bootstrap) as setup:
        topic = new_topic(setup)
        before = target.memory_mib()
        target.forget_peak()
        payload = schema.encode("ProduceRequest", 12, produce_body(topic, batch([bytes(100_000)])))
        with good_client(target), Peer(target, timeout_s=2, receive_buffer=4096) as greedy:
            one = frame(request_header("Produce", 12, 1) + payload)
            for _ in range(10):
                greedy.send(one * 100)
        grown = target.memory_mib("VmHWM") - before
        print(f"     took {grown} MiB")
        assert grown <= 2 * BUDGET // MIB, f"{grown} MiB"
