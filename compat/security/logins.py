"""A broker that asks for passwords: its users, and logins frame by frame."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

import calls
import tools
from broker import HOST, Duramen, free_port
from checks import broker_kind, equal
from connection import Connection

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
SCRAM_SHA_256, SCRAM_SHA_512 = 1, 2
USER, PASSWORD = "alice", "alice-secret"
AUTHENTICATION_FAILED = 58
STRANGERS = [(USER, "another"), (USER.upper(), PASSWORD), ("nobody", PASSWORD)]
only_duramen = pytest.mark.skipif(broker_kind() == "kafka", reason="of Duramen alone")


class Target:
    """A broker, the addresses where it asks for passwords, and the authority that vouches for it."""

    def __init__(self, broker, ports, ca):
        self.broker = broker
        self.sealed, self.plain = (f"{HOST}:{port}" for port in ports)
        self.ca = ca

    def connect(self):
        return Connection(self.plain)


class Asking(Duramen):
    """A node of a cluster that asks for passwords on one of its listeners."""

    access = {"authorizer.class.name": "none"}

    def __init__(self, port, data_dir, settings, *others):
        self.asking = f"{HOST}:{free_port()}"
        own = {
            "listeners": f"PLAINTEXT://{HOST}:{port},SASL_PLAINTEXT://{self.asking}",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        }
        super().__init__(port, data_dir, {**settings, **own, **self.access}, *others)


# Administration, over the listener that asks nobody.


def users(broker, *arguments):
    return tools.run("kafka-configs", "--bootstrap-server", broker.bootstrap, *arguments, "--entity-type", "users")


def make_user(broker, name, password):
    # One at a time: Kafka takes one change of a user in a request.
    for mechanism in MECHANISMS[1:]:
        done = users(broker, "--alter", "--add-config", f"{mechanism}=[iterations=4096,password={password}]", "--entity-name", name)
        equal(done.code, 0, str(done))


def alter(broker, *changes):
    """By this very broker, whichever leads. A change without iterations is a deletion; returns the errors by name."""
    deletions = [{"Name": name, "Mechanism": mechanism} for name, mechanism, *more in changes if not more]
    upsertions = [credential(*change) for change in changes if len(change) > 2]
    with Connection(broker.bootstrap) as connection:
        answer = connection.call("AlterUserScramCredentials", 0, {"Deletions": deletions, "Upsertions": upsertions})
    return {result["User"]: result["ErrorCode"] for result in answer["Results"]}


def credential(name, mechanism, iterations, password=PASSWORD):
    salted = hashlib.pbkdf2_hmac("sha512" if mechanism == SCRAM_SHA_512 else "sha256", password.encode(), b"salt", iterations)
    return {"Name": name, "Mechanism": mechanism, "Iterations": iterations, "Salt": b"salt", "SaltedPassword": salted}


def new_topic(target):
    with Connection(target.broker.bootstrap) as connection:
        return calls.new_topic(connection)


# Logins.


def handshake(connection, mechanism, version=1):
    answer = connection.call("SaslHandshake", version, {"Mechanism": mechanism})
    return answer["ErrorCode"], answer["Mechanisms"]


def token(user=USER, password=PASSWORD):
    return f"\0{user}\0{password}".encode()


def authenticate(connection, data):
    return connection.call("SaslAuthenticate", 2, {"AuthBytes": data})


def log_in(at, mechanism, user=USER, password=PASSWORD):
    """Returns the error."""
    with Connection(at) as connection:
        return log_in_on(connection, mechanism, user, password)


def log_in_on(connection, mechanism, user=USER, password=PASSWORD):
    equal(handshake(connection, mechanism)[0], 0)
    if mechanism == "PLAIN":
        return authenticate(connection, token(user, password))["ErrorCode"]
    digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=nonce"
    answer = authenticate(connection, f"n,,{first}".encode())
    if answer["ErrorCode"]:
        return answer["ErrorCode"]
    challenge = answer["AuthBytes"].decode()
    told = dict(part.split("=", 1) for part in challenge.split(","))
    last = f"c=biws,r={told['r']}"
    signed = f"{first},{challenge},{last}".encode()
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b64decode(told["s"]), int(told["i"]))
    key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature))).decode()
    answer = authenticate(connection, f"{last},p={proof}".encode())
    if not answer["ErrorCode"]:
        servers = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        equal(answer["AuthBytes"], b"v=" + b64encode(servers))
    return answer["ErrorCode"]


def is_served(connection):
    return bool(connection.call("Metadata", 12, {"Topics": None})["Brokers"])
