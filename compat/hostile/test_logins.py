"""Clients at listeners with TLS and passwords that never come in: handshakes, tokens and passwords, in masses and malformed."""

import random
import socket
import ssl
import struct
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import schema
from attacks import bombs
from batch import batch
from broker import HOST, duramen_binary, free_port
from calls import connect, new_topic, produce_body
from checks import equal
from connection import Connection, request_header
from logins import PASSWORD, USER, alter, authenticate, handshake, log_in, log_in_on, token
from scene import MIB, Peer, attackers, broker, eventually, frame, good_client, until
from test_bytes import client_hello, flipped
from test_connections import METADATA

ATTACK_S = 4
# Longest time of a handshake, and of a login.
SHUT_OUT_S = 10
TOKEN_MAX = 512 << 10
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
AUTHENTICATION_FAILED = 58
CHANGE_CIPHER_SPEC = bytes.fromhex("140303000101")


class Door(Peer):
    """A socket at one of the listeners."""

    def __init__(self, address, timeout_s=20, receive_buffer=None):
        self.port = int(address.rsplit(":", 1)[1])
        super().__init__(self, timeout_s, receive_buffer)


@contextmanager
def guarded(settings=None):
    """A broker that asks nobody at its first listener, where the good client is, and everybody at the others."""
    with TemporaryDirectory() as directory:
        command = [duramen_binary(), "tls", "init", "--node", f"localhost,{HOST}", "--client", "alice", "--out", directory]
        subprocess.run(command, check=True, capture_output=True)
        sealed, asking = (f"{HOST}:{free_port()}" for _ in range(2))
        own = {
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.keystore.location": f"{directory}/localhost.pem",
            "authorizer.class.name": "none",
            **(settings or {}),
        }
        with broker(own, listeners=f"SASL_SSL://{sealed},SASL_PLAINTEXT://{asking}") as target:
            target.sealed, target.asking, target.ca = sealed, asking, Path(directory) / "ca.pem"
            equal(alter(target, (USER, 2, 4096)), {USER: 0})
            equal(log_in(asking, "SCRAM-SHA-512"), 0)
            yield target


def sealed(target):
    """A socket whose handshake is done."""
    context = ssl.create_default_context(cafile=target.ca)
    plain = socket.create_connection((HOST, int(target.sealed.rsplit(":", 1)[1])), timeout=20)
    return context.wrap_socket(plain, server_hostname="localhost")


def grown(target, before):
    mib = target.memory_mib("VmHWM") - before
    print(f"     took {mib} MiB")
    return mib


def test_bytes_that_are_no_handshake_close_their_connection_with_one_line():
    hello = client_hello()
    plain = "the client does not speak TLS, and the listener speaks nothing else"
    cases = [
        (METADATA, plain),
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", plain),
        (b"\xff" * 100, plain),
        # A record that says it has more bytes than any has.
        (hello[:3] + b"\xff\xff" + bytes(1000), "no TLS handshake"),
        # A hello whose length says 16 MiB.
        (hello[:6] + b"\xff\xff\xff" + hello[9:], "no TLS handshake"),
        (hello[:20] + bytes(len(hello) - 20), "no TLS handshake"),
        (CHANGE_CIPHER_SPEC * 1000, "no TLS handshake"),
    ]
    with guarded() as target, good_client(target):
        failed = target.metric("tls_handshakes_failed_total")
        for sent, reason in cases:
            with Door(target.sealed) as peer:
                peer.send(sent)
                peer.end(socket.SHUT_WR)
                assert peer.is_closed(), sent[:20]
                said = lambda peer=peer: [line for named, line in target.lines("no TLS handshake") if named == peer.name]  # noqa: E731
                eventually(f"a line about {sent[:20]}", said)
                equal(len(said()), 1)
                assert reason in said()[0], f"{reason!r} is not in {said()[0]!r}"
        equal(target.metric("tls_handshakes_failed_total") - failed, len(cases))
        with Door(target.asking) as peer:
            peer.send(hello)
            assert peer.is_closed()
            target.expect_line(peer.name, "looks like a TLS handshake")


def test_flipped_and_cut_handshakes_harm_only_their_own_connection():
    chance, hello = random.Random(26), client_hello()
    with guarded() as target, good_client(target):
        for _ in range(400):
            with Door(target.sealed) as peer:
                peer.send(flipped(chance, hello))
                peer.end(socket.SHUT_WR)
                assert peer.is_closed()
        with sealed(target) as good:
            good.sendall(frame(request_header("ApiVersions", 0, 1)))
            assert good.recv(4)


def test_half_handshakes_hold_little_and_end_within_their_time():
    count, hello = 1000, client_hello()
    with guarded() as target, good_client(target):
        before = target.memory_mib()
        target.forget_peak()
        peers = [Door(target.sealed) for _ in range(count)]
        for peer in peers:
            peer.send(hello[:-1])
        with sealed(target) as good:
            good.sendall(frame(request_header("ApiVersions", 0, 1)))
            assert good.recv(4), "others come in meanwhile"
        for peer in peers:
            assert peer.is_closed(timeout_s=SHUT_OUT_S + 20), "a handshake does not stand still for ever"
            peer.close()
        assert grown(target, before) <= 64


def test_connections_that_never_log_in_hold_little_and_end_within_their_time():
    count = 1000
    with guarded() as target, good_client(target):
        before = target.memory_mib()
        target.forget_peak()
        peers = [Door(target.asking) for _ in range(count)]
        for peer in peers:
            peer.send(frame(request_header("ApiVersions", 0, 1)))
        equal(log_in(target.asking, "SCRAM-SHA-512"), 0, "others come in meanwhile")
        for peer in peers:
            assert peer.is_closed(timeout_s=SHUT_OUT_S + 20)
            peer.close()
        said = target.lines("did not say who it is")
        assert said and len({peer for peer, _ in said}) == len(said)
        assert grown(target, before) <= 64


def test_frames_before_a_login_are_small_and_hold_little():
    with guarded({"queued.max.request.bytes": str(64 * MIB)}) as target, good_client(target):
        for size in (TOKEN_MAX + 1, 2**31 - 1, -1):
            with Door(target.asking) as peer:
                peer.send(struct.pack(">i", size))
                assert peer.is_closed(), size
                assert target.lines_about(peer.name) or size < 0, size
        before = target.memory_mib()
        target.forget_peak()
        # As much as each may send, and a byte less than it says: 200 MiB together. Each waits with a part that leaves room
        # for more, so that all see that room at once.
        peers = [Door(target.asking) for _ in range(400)]
        part = struct.pack(">i", TOKEN_MAX) + bytes(100 << 10)
        for peer in peers:
            peer.send(part)
        held = len(peers) * len(part)
        eventually("the node holds their parts", lambda: target.metric("in_flight_bytes") >= held)
        rest = bytes(TOKEN_MAX + 4 - len(part) - 1)
        senders = [threading.Thread(target=peer.send, args=(rest,)) for peer in peers]
        for sender in senders:
            sender.start()
        for peer in peers:
            assert peer.is_closed(timeout_s=SHUT_OUT_S + 30)
        for sender in senders:
            sender.join()
        for peer in peers:
            peer.close()
        assert grown(target, before) <= 2 * 64


def test_nothing_is_served_or_unpacked_before_a_login():
    """Bombs that would become 512 MiB each, and requests of every kind."""
    bodies = [produce_body("nowhere", each) for each in bombs(512 * MIB).values()]
    with guarded() as target, good_client(target):
        before = target.memory_mib()
        target.forget_peak()
        requests = [request_header("Produce", 9, 1) + schema.encode("ProduceRequest", 9, body) for body in bodies]
        for name in schema.requests().values():
            if name not in ("ApiVersions", "SaslHandshake"):
                version = schema.valid_versions(name)[-1]
                requests.append(request_header(name, version, 1) + schema.encode(name + "Request", version, {}))
        for sent in requests:
            with Door(target.asking) as peer:
                peer.send(frame(sent)[: 4 + TOKEN_MAX])
                assert peer.is_closed()
        assert grown(target, before) <= 32
        with connect(target.bootstrap) as connection:
            topics = {topic["Name"] for topic in connection.call("Metadata", 12)["Topics"]}
        assert "nowhere" not in topics


def test_tokens_that_are_none_are_refused_and_harm_nobody():
    chance = random.Random(7)
    sound = [token(USER, "another"), b"n,,n=alice,r=nonce", b"n,a=bob,n=alice,r=nonce", b"y,,n=alice,r=nonce", b"p=tls-unique,,n=alice,r=nonce"]
    sound += [b"n,,n=alice,r=" + b"n" * 5000, b"n,,n=" + b"a" * 100_000 + b",r=nonce", b"\0" * 1000, b""]
    settings = {"connection.failed.authentication.delay.ms": "0"}
    with guarded(settings) as target, good_client(target):
        for number in range(300):
            with Connection(target.asking) as connection:
                equal(handshake(connection, MECHANISMS[number % 3])[0], 0)
                data = chance.choice(sound)
                if chance.random() < 0.7 and len(data) > 8:
                    data = flipped(chance, data)
                answer = attempt(connection, data)
                if answer == 0:
                    # A challenge of SCRAM, answered with anything but its proof.
                    answer = attempt(connection, chance.choice([b"c=biws,r=nonce,p=AAAA", b"", b"c=biws", chance.randbytes(60)]))
                assert answer in (AUTHENTICATION_FAILED, None), (data[:50], answer)
        equal(log_in(target.asking, "SCRAM-SHA-512"), 0)


def attempt(connection, data):
    """The error, or None if the broker hung up."""
    try:
        return authenticate(connection, data)["ErrorCode"]
    except (ConnectionError, EOFError):
        return None


def test_masses_of_wrong_passwords_disturb_nobody():
    with guarded({"connection.failed.authentication.delay.ms": "0"}) as target:
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            with good_client(target), attackers(4, target, "guess_passwords", mechanism, target.asking):
                for _ in until(ATTACK_S):
                    equal(log_in(target.asking, mechanism), 0, "a right password is right meanwhile")
            print(f"     {mechanism}: {target.metric('logins_failed_total')} wrong passwords")


def test_readers_by_tls_that_never_read_hold_little():
    count = 50
    with guarded({"connections.max.idle.ms": "1500", "num.partitions": "1000"}) as target, good_client(target):
        with connect(target.bootstrap) as setup:
            new_topic(setup, partitions=1000)
        before = target.memory_mib()
        target.forget_peak()
        peers = [sealed(target) for _ in range(count)]
        for peer in peers:
            peer.settimeout(1)
            log_in_by(peer)
            try:
                peer.sendall(METADATA * 1000)
            except (TimeoutError, OSError):
                pass
        eventually("all are closed", lambda: target.open_connections() <= 3)
        for peer in peers:
            peer.close()
        assert grown(target, before) <= 96, "256 KiB a connection wait sealed, and its answers"


def log_in_by(peer):
    """By PLAIN, over a socket whose handshake is done."""
    for body in (
        request_header("SaslHandshake", 1, 1) + schema.encode("SaslHandshakeRequest", 1, {"Mechanism": "PLAIN"}),
        request_header("SaslAuthenticate", 2, 2) + schema.encode("SaslAuthenticateRequest", 2, {"AuthBytes": token(USER, PASSWORD)}),
    ):
        peer.sendall(frame(body))
        length = struct.unpack(">i", peer.recv(4))[0]
        while length:
            length -= len(peer.recv(length))


def test_idle_connections_by_tls_cost_little():
    count = 1000
    with guarded() as target, good_client(target):
        before = target.memory_mib()
        peers = [sealed(target) for _ in range(count)]
        kib = (target.memory_mib() - before) * 1024 / count
        print(f"     a connection by TLS takes {kib:.0f} KiB")
        for peer in peers:
            peer.close()
        assert kib <= 128, kib


def test_a_known_client_is_bound_like_any_other():
    """A batch in a frame above what a client may send before it is known."""
    with guarded() as target, good_client(target), Connection(target.asking) as connection:
        equal(log_in_on(connection, "SCRAM-SHA-512"), 0)
        with connect(target.bootstrap) as setup:
            topic = new_topic(setup)
        answer = connection.call("Produce", 9, produce_body(topic, batch([bytes(900_000)])))
        equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0)
