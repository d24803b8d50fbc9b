"""Connections that stay, come in masses, stand still or vanish."""

import socket
import subprocess
import sys
import time

import pytest

import schema
from calls import connect, fetch_body, new_topic
from checks import equal
from connection import request_header
from scene import HERE, Peer, broker, eventually, frame, good_client

IDLE_MS = 1500
METADATA = frame(request_header("Metadata", 12, 1) + schema.encode("MetadataRequest", 12, {"Topics": None}))


def fetch_frame(topic, **fields):
    return frame(request_header("Fetch", 12, 1) + schema.encode("FetchRequest", 12, fetch_body([(topic, 0, 0)], **fields)))


def test_silent_and_slow_connections_are_closed_after_connections_max_idle_ms_with_a_line_each():
    with broker({"connections.max.idle.ms": str(IDLE_MS)}) as target, good_client(target):
        with connect(target.bootstrap) as setup:
            topic = new_topic(setup)
        silent, half, waiting, dripping = (Peer(target) for _ in range(4))
        half.send(METADATA[:20])
        waiting.send(fetch_frame(topic, max_wait_ms=2**31 - 1))
        # A frame a byte at a time, told from a slow network only by the time it takes.
        for byte in METADATA:
            dripping.send(bytes([byte]))
            time.sleep(0.1)
        for peer, reason in [
            (silent, "silent for"),
            (half, f"in the middle of a frame, 20 of {len(METADATA)} bytes for"),
            (waiting, "waiting for an answer for"),
            (dripping, "in the middle of a frame"),
        ]:
            assert peer.is_closed(), reason
            target.expect_line(peer.name, reason)
            target.expect_line(peer.name, "connections.max.idle.ms")
            peer.close()


def test_readers_that_never_read_are_closed_and_hold_little():
    count = 50
    with broker({"connections.max.idle.ms": str(IDLE_MS), "num.partitions": "1000"}) as target, good_client(target):
        with connect(target.bootstrap) as setup:
            new_topic(setup, partitions=1000)
        before = target.memory_mib()
        target.forget_peak()
        # A thousand questions each, of some bytes, whose answers have 30 KB: more than all the sockets between take.
        peers = [Peer(target, timeout_s=1, receive_buffer=4096) for _ in range(count)]
        for peer in peers:
            peer.send(METADATA * 1000)
        eventually("all are closed", lambda: target.open_connections() <= 3)
        grown = target.memory_mib("VmHWM") - before
        print(f"     {count} readers that do not read took {grown} MiB")
        assert grown <= 64, f"{grown} MiB for {count} readers"
        for peer in peers:
            assert peer.is_closed()
            peer.close()
        said = target.lines("stopped reading its response")
        assert said and len({peer for peer, _ in said}) == len(said)


def test_thousands_of_idle_connections_cost_little_and_disturb_nobody():
    count = 4000
    with broker() as target, good_client(target):
        before = target.memory_mib()
        peers = [Peer(target) for _ in range(count)]
        for peer in peers:
            peer.send(METADATA)
        for peer in peers:
            assert peer.socket.recv(4), "not answered"
        kib = (target.memory_mib() - before) * 1024 / count
        print(f"     an idle connection takes {kib:.0f} KiB")
        assert target.open_connections() >= count
        assert kib <= 40, f"{kib:.0f} KiB each"
        time.sleep(1)
        for peer in peers:
            peer.close()
        eventually("all are forgotten", lambda: target.open_connections() <= 3)
        equal([line for line in target.lines() if "reset" not in line[1]], [])


def test_connections_opened_and_closed_in_a_loop_leave_nothing_behind():
    with broker() as target, good_client(target):
        for number in range(5000):
            with Peer(target) as peer:
                if number % 3 == 1:
                    peer.send(METADATA)
                elif number % 3 == 2:
                    # A reset instead of an end.
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if number == 1000:
                before = target.memory_mib()
        eventually("all are forgotten", lambda: target.open_connections() <= 3)
        grown = target.memory_mib() - before
        assert grown <= 16, f"{grown} MiB after 4,000 connections"


def test_connections_above_max_connections_per_ip_are_refused_with_a_line_and_the_others_go_on():
    settings = {"max.connections.per.ip": "1", "max.connections.per.ip.overrides": "127.0.0.1:10,10.0.0.1:1"}
    with broker(settings) as target:
        with good_client(target):
            peers = [Peer(target) for _ in range(20)]
            refused = [peer for peer in peers if peer.is_closed(timeout_s=0.3)]
            equal(len(refused), 12, "the good client has two")
            for peer in refused[:3]:
                target.expect_line(peer.name, "10 connections of this address are open, as many as max.connections.per.ip allows")
            for peer in peers:
                peer.close()
        eventually("their places are free", lambda: target.open_connections() == 0)


def test_more_connections_in_a_second_than_max_connection_creation_rate_wait():
    with broker({"max.connection.creation.rate": "20"}) as target:
        began = time.monotonic()
        for _ in range(60):
            with Peer(target) as peer:
                peer.send(METADATA)
                assert peer.socket.recv(4)
        took = time.monotonic() - began
        assert 1.5 <= took <= 5, f"60 connections at 20 a second took {took:.1f} s"


def test_peers_that_vanish_are_noticed_and_closed_with_a_line_each():
    """In a network namespace of its own, whose only network goes down: no end, no reset, nothing comes any more."""
    for flags in (["--net"], ["--net", "--map-root-user"]):
        if subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode == 0:
            done = subprocess.run(["unshare", *flags, sys.executable, str(HERE / "half_open.py")], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            return
    pytest.skip("it takes root, or user namespaces")
