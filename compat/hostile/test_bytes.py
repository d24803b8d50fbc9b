"""Bytes that are no requests: other protocols, lengths that lie, frames cut, flipped and made up."""

import random
import socket
import ssl
import struct

import schema
from batch import batch
from calls import connect, fetch_body, fetched_values, new_topic, produce_body
from checks import equal
from connection import Connection, request_header
from scene import Peer, broker, eventually, frame, good_client

METADATA = request_header("Metadata", 1, 1) + schema.encode("MetadataRequest", 1, {"Topics": []})


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="broker")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def test_another_protocol_is_named_in_the_one_log_line_of_its_connection():
    cases = {
        b"GET / HTTP/1.1\r\nHost: broker:9092\r\n\r\n": "looks like HTTP",
        b"POST /topics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": "looks like HTTP",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "looks like HTTP",
        client_hello(): "looks like a TLS handshake",
        b"SSH-2.0-OpenSSH_9.6\r\n": "above socket.request.max.bytes",
        b"*1\r\n$4\r\nPING\r\n": "above socket.request.max.bytes",
        b"\r\n\r\n\r\n": "above socket.request.max.bytes",
    }
    with broker() as target, good_client(target):
        for sent, reason in cases.items():
            with Peer(target) as peer:
                peer.send(sent)
                assert peer.is_closed(), sent
                target.expect_line(peer.name, reason)


def test_a_length_that_lies_closes_its_connection_with_one_line():
    with broker({"socket.request.max.bytes": "1048576"}) as target, good_client(target):
        cases = [
            (struct.pack(">i", -1), "a frame of -1 bytes is no request"),
            (struct.pack(">i", -(2**31)), "a frame of -2147483648 bytes is no request"),
            (struct.pack(">i", 0), "a frame of 0 bytes is no request"),
            (struct.pack(">i", 7), "a frame of 7 bytes is no request"),
            (struct.pack(">i", 2**31 - 1), "above socket.request.max.bytes=1048576"),
            (struct.pack(">i", (1 << 20) + 1), "above socket.request.max.bytes=1048576"),
            # The rest of the request is taken for the next one's length.
            (struct.pack(">i", 10) + METADATA, "malformed"),
        ]
        for sent, reason in cases:
            with Peer(target) as peer:
                peer.send(sent)
                assert peer.is_closed(), sent
                target.expect_line(peer.name, reason)


def test_a_client_that_goes_in_the_middle_of_a_frame_leaves_one_line():
    with broker() as target, good_client(target):
        for size, reason in [(2, "in the middle of a frame's length"), (9, f"in the middle of a frame, 9 of {len(METADATA) + 4} bytes")]:
            with Peer(target) as peer:
                peer.send(frame(METADATA)[:size])
            target.expect_line(peer.name, f"the client went {reason}")
        with Peer(target) as peer:
            peer.send(frame(METADATA))
            peer.socket.recv(4)
        with Peer(target) as quiet:
            pass
        eventually("all are gone", lambda: target.open_connections() <= 3)
        equal(target.lines_about(peer.name) + target.lines_about(quiet.name), [], "who goes between requests leaves no line")


def test_flipped_and_random_frames_harm_only_their_own_connection():
    chance = random.Random(20)
    sound = [request_header(name, version, 1) + body for name, version, body in samples()]
    with broker({"auto.create.topics.enable": "false"}) as target, good_client(target):
        closed = 0
        for round_number in range(400):
            with Peer(target) as peer:
                for _ in range(chance.randrange(1, 6)):
                    if chance.random() < 0.3:
                        payload = chance.randbytes(chance.randrange(8, 300))
                        if chance.random() < 0.8:
                            payload = struct.pack(">hh", chance.randrange(0, 80), chance.randrange(0, 14)) + payload
                    else:
                        payload = flipped(chance, chance.choice(sound))
                    if not peer.send(frame(payload)):
                        break
                peer.end(socket.SHUT_WR)
                closed += peer.is_closed()
            assert len(target.lines_about(peer.name)) <= 1
        equal(closed, 400)
        with connect(target.bootstrap) as connection:
            assert connection.call("Metadata", 12)["Brokers"]


def samples():
    """A request of every API, in its oldest and its newest version."""
    for name in schema.requests().values():
        versions = schema.valid_versions(name)
        for version in {versions[0], versions[-1]}:
            yield name, version, schema.encode(name + "Request", version, {})
    some = batch([b"value"], keys=[b"key"])
    yield "Produce", 9, schema.encode("ProduceRequest", 9, produce_body("topic", some))
    yield "Fetch", 12, schema.encode("FetchRequest", 12, fetch_body([("topic", 0, 0)], max_wait_ms=1))


def flipped(chance, payload):
    payload = bytearray(payload)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(payload))
        payload[at] ^= 1 << chance.randrange(8)
    return bytes(payload[: chance.randrange(8, len(payload) + 1)] if chance.random() < 0.2 else payload)


def test_responses_keep_the_order_of_requests_however_they_are_mixed_and_cut():
    chance = random.Random(7)
    with broker() as target, good_client(target), connect(target.bootstrap) as setup:
        topic = new_topic(setup)
        apis = {
            "Produce": lambda: (12, produce_body(topic, batch([b"x"]))),
            "Fetch": lambda: (12, fetch_body([(topic, 0, 10**6 if chance.random() < 0.5 else 0)], max_wait_ms=chance.randrange(30))),
            "Metadata": lambda: (12, {"Topics": [{"Name": topic}]}),
            "ListOffsets": lambda: (7, {"ReplicaId": -1, "Topics": []}),
            "ApiVersions": lambda: (0, {}),
        }
        with Connection(target.bootstrap) as connection:
            stream, produced = b"", 0
            for correlation_id in range(300):
                api = chance.choice(list(apis))
                version, body = apis[api]()
                produced += api == "Produce"
                stream += frame(request_header(api, version, correlation_id) + schema.encode(api + "Request", version, body))
            while stream:
                size = chance.choice([1, 3, 10, 100, 2000])
                connection.send_bytes(stream[:size])
                stream = stream[size:]
            for correlation_id in range(300):
                equal(connection.receive_frame()[0], correlation_id)
        equal(len(fetched_values(setup, topic)), produced)


def test_an_unknown_api_or_version_closes_its_connection_with_one_line():
    with broker() as target, good_client(target):
        for key, version, reason in [(999, 0, "unknown api key 999"), (3, 99, "api 3 version 99"), (4, 0, "api 4 version 0")]:
            with Peer(target) as peer:
                peer.send(frame(struct.pack(">hhih", key, version, 1, -1) + bytes(8)))
                assert peer.is_closed()
                target.expect_line(peer.name, reason)


def test_a_burst_of_bad_connections_makes_a_bounded_number_of_lines():
    burst = 300
    with broker() as target, good_client(target):
        before = target.metric("frames_malformed_total")
        peers = [Peer(target) for _ in range(burst)]
        for peer in peers:
            peer.send(b"GET / HTTP/1.1\r\n\r\n")
        for peer in peers:
            assert peer.is_closed()
            peer.close()
        equal(target.metric("frames_malformed_total") - before, burst, "every one is counted")
        said = lambda: len(target.lines("looks like HTTP"))  # noqa: E731
        unsaid = lambda: sum(int(line.rsplit("unsaid=", 1)[1]) for _, line in target.lines("than are logged"))  # noqa: E731
        eventually("a line counts those that have none of their own", lambda: said() + unsaid() == burst)
        assert said() <= burst // 3, f"{said()} lines"
