"""Logins frame by frame, and what becomes of them when users change. What is asserted of Duramen is asserted of Kafka, but for the end."""

import re
import socket
import struct
import subprocess
from pathlib import Path

import pytest

import calls
from authority import BINARY
from checks import broker_kind, equal, eventually, unique
from connection import parse_response, request_header
from logins import AUTHENTICATION_FAILED, MECHANISMS, PASSWORD, SCRAM_SHA_256, SCRAM_SHA_512, STRANGERS, USER
from logins import alter, authenticate, handshake, is_served, log_in, log_in_on, new_topic, only_duramen, token

UNSUPPORTED_MECHANISM, ILLEGAL_SASL_STATE, UNSUPPORTED_VERSION = 33, 34, 35
RECEIVE_MAX_SIZE = 524_288

@pytest.mark.parametrize("api", ["Metadata", "DescribeCluster", "FindCoordinator"])
def test_a_request_before_the_login_closes_the_connection(target, api):
    with target.connect() as connection:
        equal(connection.call("ApiVersions", 0)["ErrorCode"], 0)
        connection.send(api, 0)
        assert connection.is_closed_by_broker()


def test_a_token_before_the_handshake_closes_the_connection(target):
    with target.connect() as connection:
        connection.send("SaslAuthenticate", 2, {"AuthBytes": token()})
        assert connection.is_closed_by_broker()


def test_an_unknown_mechanism_is_answered_with_those_that_are_there(target):
    for version in (0, 1):
        with target.connect() as connection:
            code, mechanisms = handshake(connection, "GSSAPI", version)
            equal((code, sorted(mechanisms)), (UNSUPPORTED_MECHANISM, MECHANISMS))


def test_a_version_that_is_not_there_is_told_before_the_login(target):
    with target.connect() as connection:
        connection.send_frame(struct.pack(">hhih", 18, 99, 7, -1) + b"\0")
        equal(parse_response("ApiVersions", 0, connection.receive_frame()[1])["ErrorCode"], UNSUPPORTED_VERSION)
        equal(connection.call("ApiVersions", 3, {"ClientSoftwareName": "wire", "ClientSoftwareVersion": "1"})["ErrorCode"], 0)
        equal(log_in_on(connection, "SCRAM-SHA-256"), 0)
        assert is_served(connection)


def test_a_second_handshake_closes_the_connection(target):
    with target.connect() as connection:
        equal(handshake(connection, "PLAIN")[0], 0)
        asked = connection.send("SaslHandshake", 1, {"Mechanism": "PLAIN"})
        # Kafka answers before it closes.
        if broker_kind() == "kafka":
            equal(connection.receive("SaslHandshake", 1, asked)["ErrorCode"], ILLEGAL_SASL_STATE)
        assert connection.is_closed_by_broker()


def test_a_login_and_a_request_may_come_at_once(target):
    with target.connect() as connection:
        asked = connection.send("SaslHandshake", 1, {"Mechanism": "PLAIN"})
        shown = connection.send("SaslAuthenticate", 2, {"AuthBytes": token()})
        listed = connection.send("Metadata", 12, {"Topics": None})
        equal(connection.receive("SaslHandshake", 1, asked)["ErrorCode"], 0)
        equal(connection.receive("SaslAuthenticate", 2, shown)["ErrorCode"], 0)
        assert connection.receive("Metadata", 12, listed)["Brokers"]


def test_a_stranger_cannot_tell_who_is_a_user(target):
    def challenge(user):
        with target.connect() as connection:
            equal(handshake(connection, "SCRAM-SHA-512")[0], 0)
            answer = authenticate(connection, f"n,,n={user},r=nonce".encode())
            return answer["ErrorCode"] or dict(part.split("=", 1) for part in answer["AuthBytes"].decode().split(","))

    # Kafka tells.
    if broker_kind() == "kafka":
        equal(challenge("nobody"), AUTHENTICATION_FAILED)
        return
    user = unique("heidi")
    command = [BINARY, "user", "create", user, "--new-password-file", "-", "--bootstrap", target.broker.bootstrap]
    subprocess.run(command, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
    equal(log_in(target.plain, "SCRAM-SHA-512", user), 0)
    known, unknown, again, another = (challenge(it) for it in (user, "nobody", "nobody", "somebody"))
    equal((unknown["i"], len(unknown["s"]), len(unknown["r"])), (known["i"], len(known["s"]), len(known["r"])))
    equal(unknown["s"], again["s"], "the salt stays")
    assert unknown["s"] != another["s"] and unknown["r"] != again["r"], (unknown, again, another)


WRONG_TOKENS = {
    "PLAIN": [b"", b"alice", b"alice\0alice-secret", b"\0alice\0", b"\0\0alice-secret", b"\0alice\0alice-secret\0", b"bob\0alice\0alice-secret"],
    "SCRAM-SHA-256": [b"", b"alice", b"n,,n=alice", b"n,,n=,r=nonce", b"n,,n=alice,r=", b"n,a=bob,n=alice,r=nonce", b"p=tls-unique,,n=alice,r=nonce"],
}


@pytest.mark.parametrize("mechanism", WRONG_TOKENS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_wrong_token_is_refused_and_closes_the_connection(target, mechanism, version):
    for data in WRONG_TOKENS[mechanism]:
        with target.connect() as connection:
            equal(handshake(connection, mechanism)[0], 0)
            equal(connection.call("SaslAuthenticate", version, {"AuthBytes": data})["ErrorCode"], AUTHENTICATION_FAILED, data)
            assert connection.is_closed_by_broker(), data


def test_a_login_is_over_when_it_is_done(target):
    with target.connect() as connection:
        equal(log_in_on(connection, "SCRAM-SHA-512"), 0)
        assert is_served(connection)
        equal(handshake(connection, "PLAIN")[0], ILLEGAL_SASL_STATE)
        equal(authenticate(connection, token())["ErrorCode"], ILLEGAL_SASL_STATE)
        assert is_served(connection)


def test_the_first_handshake_is_followed_by_a_token_without_a_header(target):
    with target.connect() as connection:
        equal(handshake(connection, "PLAIN", 0)[0], 0)
        connection.send_frame(token())
        equal(connection.socket.recv(4, socket.MSG_WAITALL), bytes(4))
        assert is_served(connection)
    with target.connect() as connection:
        equal(handshake(connection, "PLAIN", 0)[0], 0)
        connection.send_frame(token(password="another"))
        assert connection.is_closed_by_broker()


def test_a_wrong_password_and_an_unknown_user_are_told_alike_and_closed(target):
    answers = []
    for user, password in STRANGERS:
        with target.connect() as connection:
            equal(handshake(connection, "PLAIN")[0], 0)
            answers.append(authenticate(connection, token(user, password)))
            assert connection.is_closed_by_broker()
    equal(answers[0]["ErrorCode"], AUTHENTICATION_FAILED)
    equal(answers, [answers[0]] * len(STRANGERS))


def test_a_frame_above_the_limit_closes_the_connection_and_one_of_the_limit_is_answered(target):
    def begin():
        connection = target.connect()
        equal(handshake(connection, "PLAIN")[0], 0)
        return connection

    with begin() as connection:
        # Behind a header and the length of the data.
        data = bytes(RECEIVE_MAX_SIZE - len(request_header("SaslAuthenticate", 0, 1)) - 4)
        equal(connection.call("SaslAuthenticate", 0, {"AuthBytes": data})["ErrorCode"], AUTHENTICATION_FAILED)
    with begin() as connection:
        connection.send_bytes(struct.pack(">i", RECEIVE_MAX_SIZE + 1))
        assert connection.is_closed_by_broker()


# Changes of users.


def test_wrong_changes_are_refused_and_right_ones_beside_them_made(target):
    name, other = unique("erin"), unique("frank")
    for mechanism, iterations, code in ((SCRAM_SHA_256, 4095, 93), (SCRAM_SHA_512, 16_385, 93), (0, 4096, 33), (3, 4096, 33)):
        equal(alter(target.broker, (name, mechanism, iterations)), {name: code})
    equal(alter(target.broker, ("", SCRAM_SHA_256, 4096)), {"": 93})
    equal(alter(target.broker, (name, SCRAM_SHA_256)), {name: 91})
    equal(alter(target.broker, (name, SCRAM_SHA_256, 4096), (name, SCRAM_SHA_256, 8192)), {name: 92})
    equal(alter(target.broker, (name, 3, 4096), (other, SCRAM_SHA_256, 16_384)), {name: 33, other: 0})
    eventually("the right one is made", lambda: log_in(target.plain, "SCRAM-SHA-256", other) == 0)
    equal(log_in(target.plain, "SCRAM-SHA-256", name), AUTHENTICATION_FAILED)
    # Kafka takes no two changes of a user in a request, so that its tool cannot do what its documentation shows.
    both = alter(target.broker, (name, SCRAM_SHA_256, 4096), (name, SCRAM_SHA_512, 4096))
    equal(both, {name: 92 if broker_kind() == "kafka" else 0})


# In names that come by SCRAM, Kafka takes ASCII alone.
@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "a b", "User:x", pytest.param("\u00e9mil", marks=only_duramen)])
def test_names_and_passwords_are_taken_as_they_are(target, name):
    password = f"{name},=\u00fc "
    equal(alter(target.broker, (name, SCRAM_SHA_256, 4096, password)), {name: 0})
    eventually("the user is known", lambda: log_in(target.plain, "SCRAM-SHA-256", name, password) == 0)
    equal(log_in(target.plain, "SCRAM-SHA-256", name, password.strip()), AUTHENTICATION_FAILED)


def test_another_password_ends_the_old_one(target):
    name, topic = unique("grace"), new_topic(target)
    equal(alter(target.broker, (name, SCRAM_SHA_256, 4096)), {name: 0})
    eventually("the user is known", lambda: log_in(target.plain, "SCRAM-SHA-256", name) == 0)
    with target.connect() as idle, target.connect() as waiting, target.connect() as other:
        equal([log_in_on(connection, "SCRAM-SHA-256", name) for connection in (idle, waiting)], [0, 0])
        equal(log_in_on(other, "SCRAM-SHA-256"), 0)
        waiting.send("Fetch", 12, calls.fetch_body([(topic, 0, 0)], max_wait_ms=60_000))
        equal(alter(target.broker, (name, SCRAM_SHA_256, 4096, "another")), {name: 0})
        eventually("the new password is known", lambda: log_in(target.plain, "SCRAM-SHA-256", name, "another") == 0)
        equal(log_in(target.plain, "SCRAM-SHA-256", name), AUTHENTICATION_FAILED)
        # In Kafka who is in stays in.
        if broker_kind() == "kafka":
            assert is_served(idle)
        else:
            assert idle.is_closed_by_broker() and waiting.is_closed_by_broker()
        assert is_served(other)


# What Kafka does not promise.


@only_duramen
def test_logins_that_never_end_hold_little_and_are_closed(target):
    count = 500

    def resident_mib():
        return int(re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{target.broker.pid}/status").read_text(), re.MULTILINE)[1]) // 1024

    before = resident_mib()
    peers = [target.connect() for _ in range(count)]
    for peer in peers:
        equal(handshake(peer, "SCRAM-SHA-512")[0], 0)
        equal(authenticate(peer, f"n,,n={USER},r=nonce".encode())["ErrorCode"], 0)
    grown = resident_mib() - before
    equal(log_in(target.plain, "SCRAM-SHA-512"), 0)
    assert grown <= 32, f"{grown} MiB for {count} logins"
    for peer in peers:
        assert peer.is_closed_by_broker(60)
        peer.close()
