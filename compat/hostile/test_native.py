"""Clients of the native port that mean harm, with a good client of Kafka's protocol beside them."""

import socket
import struct

import h2.config
import h2.connection
import h2.errors

from broker import HOST
from scene import Peer, broker, eventually, good_client, until

ATTACK_S = 4
RECORDS = "/v1/topics/hostile/partitions/0/records"
HEADERS = [(":method", "POST"), (":path", RECORDS), (":scheme", "http"), (":authority", "x")]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS_FRAME, CONTINUATION, SETTINGS = 1, 9, 4


class Native(Peer):
    """A socket at the native port."""

    def __init__(self, target, timeout_s=20):
        self.socket = socket.create_connection((HOST, int(target.native.rsplit(":", 1)[1])), timeout=timeout_s)


def http2(peer):
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, validate_outbound_headers=False))
    connection.initiate_connection()
    peer.send(connection.data_to_send())
    return connection


def frame(kind, payload, stream=1, flags=0):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def grown(target, before):
    mib = target.memory_mib("VmHWM") - before
    print(f"     took {mib} MiB")
    return mib


def test_streams_that_are_begun_and_reset_are_cut_off():
    with broker() as target:
        before = target.memory_mib()
        with good_client(target):
            for _ in until(ATTACK_S):
                with Native(target) as peer:
                    connection = http2(peer)
                    for stream in range(1, 4001, 2):
                        connection.send_headers(stream, HEADERS)
                        connection.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
                    peer.send(connection.data_to_send())
                    assert peer.is_closed(), "two thousand resets are taken"
        assert grown(target, before) <= 64


def test_many_streams_that_stand_still_hold_little():
    with broker() as target:
        before = target.memory_mib()
        with good_client(target):
            peers = [Native(target) for _ in range(10)]
            for peer in peers:
                connection = http2(peer)
                for stream in range(1, 1601, 2):
                    connection.send_headers(stream, HEADERS)
                peer.send(connection.data_to_send())
            for _ in until(ATTACK_S):
                assert target.open_connections() >= 0
            for peer in peers:
                peer.close()
        assert grown(target, before) <= 128


def test_a_hundred_thousand_headers_are_refused():
    lines = b"".join(b"x-%d: y\r\n" % number for number in range(100_000))
    with broker() as target:
        before = target.memory_mib()
        with good_client(target):
            for _ in until(ATTACK_S):
                with Native(target) as peer:
                    peer.send(b"POST %s HTTP/1.1\r\nhost: x\r\n" % RECORDS.encode() + lines)
                    assert peer.is_closed(), "a hundred thousand headers are taken"
        assert grown(target, before) <= 64


def test_headers_without_end_are_cut_off():
    with broker() as target:
        before = target.memory_mib()
        # A literal without a name of the table, again and again.
        literal = b"\x00\x01x" + b"\x7f\x80\x08" + bytes(1151)
        with good_client(target):
            for _ in until(ATTACK_S):
                with Native(target) as peer:
                    peer.send(PREFACE + frame(SETTINGS, b"", stream=0) + frame(HEADERS_FRAME, literal))
                    for _ in range(20_000):
                        if not peer.send(frame(CONTINUATION, literal)):
                            break
                    assert peer.is_closed(), "headers without end are taken"
        assert grown(target, before) <= 64


def test_bodies_that_come_slowly_hold_little():
    with broker() as target:
        before = target.memory_mib()
        with good_client(target):
            peers = [Native(target) for _ in range(500)]
            for peer in peers:
                peer.send(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 16000000\r\n\r\n" % RECORDS.encode())
            for _ in until(ATTACK_S):
                for peer in peers:
                    peer.send(b"x")
            for peer in peers:
                peer.close()
        assert grown(target, before) <= 64


def test_a_body_without_end_is_refused():
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with broker() as target:
        before = target.memory_mib()
        with good_client(target):
            for _ in until(ATTACK_S):
                with Native(target) as peer:
                    peer.send(b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % RECORDS.encode())
                    for _ in range(1000):
                        if not peer.send(chunk):
                            break
                    peer.end(socket.SHUT_WR)
                    assert peer.is_closed(), "a body without end is taken"
        eventually("all are forgotten", lambda: target.open_connections() <= 3)
        assert grown(target, before) <= 128
