"""Clients with a token (OAUTHBEARER), and sessions that end (KIP-368). What is asserted of Duramen is asserted of Kafka."""

import asyncio
import json
import subprocess
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonProvider

import tools
from broker import COMPAT, HOST, JVM_OPTIONS, free_port, start
from checks import broker_kind, equal, eventually, unique
from connection import Closed, Connection
from logins import AUTHENTICATION_FAILED, PASSWORD, USER, authenticate, handshake, is_served, make_user, token
from tokens import AUDIENCE, ISSUER, Provider, message

ILLEGAL_SASL_STATE = 34
LIFETIME_MS = 6000
MODULE = "org.apache.kafka.common.security"


class Target:
    def __init__(self, broker, provider, port):
        self.broker, self.provider, self.at = broker, provider, f"{HOST}:{port}"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    provider = Provider(directory)
    port, asking = free_port(), free_port()
    url = provider.keys.as_uri()
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{port},SASL_PLAINTEXT://{HOST}:{asking}",
        "sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": url,
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": str(LIFETIME_MS),
    }
    options = list(JVM_OPTIONS)
    if broker_kind() == "kafka":
        options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}")
        settings |= {
            "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
            "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": f"{MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        }
    else:
        settings["authorizer.class.name"] = "none"
    with start(broker_kind(), port, directory / "data", settings, jvm_options=options) as broker:
        made = Target(broker, provider, asking)
        if broker_kind() != "kafka":
            make_user(broker, USER, PASSWORD)
        eventually("a login with a token", lambda: logged_in(made, provider.token()) is not None)
        yield made


def logged_in(target, text, authorization=""):
    """The answer to a token that counts."""
    with Connection(target.at) as connection:
        equal(handshake(connection, "OAUTHBEARER")[0], 0)
        answer = authenticate(connection, message(text, authorization))
        return answer if not answer["ErrorCode"] and not answer["AuthBytes"] and is_served(connection) else None


def test_the_session_of_a_token_ends_with_it(target):
    lifetime = logged_in(target, target.provider.token(lifetime=600))["SessionLifetimeMs"]
    # Kafka allows for no difference of clocks here.
    assert 500_000 < lifetime <= 630_000, lifetime
    assert logged_in(target, target.provider.token(), authorization="alice")


@pytest.mark.parametrize(
    "claims",
    [{"aud": "others"}, {"aud": None}, {"iss": "https://id.example.org"}, {"iss": None}, {"lifetime": -100}, {"exp": None}, {"user": ""},
     {"user": None}, {"kid": "two"}, {"algorithm": "RS384"}, {"algorithm": "none"}, {"algorithm": "HS256"}],
    ids=str,
)  # fmt: skip
def test_a_token_that_does_not_count_is_told_so_and_refused(target, claims):
    with Connection(target.at) as connection:
        equal(handshake(connection, "OAUTHBEARER")[0], 0)
        answer = authenticate(connection, message(target.provider.token(**claims)))
        equal((answer["ErrorCode"], json.loads(answer["AuthBytes"])["status"]), (0, "invalid_token"))
        equal(authenticate(connection, b"\1")["ErrorCode"], AUTHENTICATION_FAILED)
        assert connection.is_closed_by_broker()


def test_another_s_signature_or_name_is_refused(target, tmp_path):
    forged = Provider(tmp_path).token()
    with Connection(target.at) as connection:
        equal(handshake(connection, "OAUTHBEARER")[0], 0)
        assert authenticate(connection, message(forged))["AuthBytes"]
    for data in [message(target.provider.token(), "bob"), b"", b"n,,", b"n,,\1auth=Basic x\1\1", b"n,,\1host=x\1\1"]:
        with Connection(target.at) as connection:
            equal(handshake(connection, "OAUTHBEARER")[0], 0)
            try:
                equal(authenticate(connection, data)["ErrorCode"], AUTHENTICATION_FAILED, data)
            except Closed:
                # Kafka has no answer to a message without its parts.
                assert broker_kind() == "kafka" and b"bob" not in data, data
            assert connection.is_closed_by_broker(), data


def again(connection, mechanism="PLAIN"):
    """Begins a login again, as soon as the broker takes it."""
    while (code := handshake(connection, mechanism)[0]) == ILLEGAL_SASL_STATE:
        pass
    return code


def test_a_client_that_shows_again_who_it_is_goes_on_and_another_is_closed(target):
    with Connection(target.at) as connection, Connection(target.at) as silent:
        for it in (connection, silent):
            equal(handshake(it, "PLAIN")[0], 0)
            answer = authenticate(it, token())
            equal((answer["ErrorCode"], answer["SessionLifetimeMs"]), (0, LIFETIME_MS))
        # Kafka, too, takes it after a second.
        for _ in range(3):
            equal(again(connection), 0)
            equal(authenticate(connection, token())["ErrorCode"], 0)
            assert is_served(connection)
        equal(again(connection), 0)
        equal(authenticate(connection, token("bob"))["ErrorCode"], AUTHENTICATION_FAILED)
        assert connection.is_closed_by_broker()

        def is_out():
            try:
                return not is_served(silent)
            except (OSError, Closed):
                return True

        eventually("the end of the session", is_out)


def given(kind, text, is_async):
    """A provider that has this token, as kafka-python and aiokafka want it."""

    async def later(_):
        return text

    return type("Given", (kind,), {"token": later if is_async else lambda _: text})()


def test_confluent_kafka_writes_with_a_token(target):
    provider, failures = target.provider, []
    asked = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    producer = Producer({
        "bootstrap.servers": target.at, **asked, "oauth_cb": lambda _: (provider.token(), time.time() + 600),
        "error_cb": failures.append,
    })  # fmt: skip
    delivered = []
    producer.produce(unique("tokens"), b"v", on_delivery=lambda error, _: delivered.append(error))
    equal(producer.flush(30), 0, failures)
    equal(delivered, [None])


def test_kafka_python_writes_with_a_token(target):
    producer = KafkaProducer(
        bootstrap_servers=target.at, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=given(KafkaPythonProvider, target.provider.token(), False),
    )  # fmt: skip
    equal(producer.send(unique("tokens"), b"v").get(30).offset, 0)
    producer.close()


def test_aiokafka_writes_with_a_token(target):
    async def write():
        producer = AIOKafkaProducer(
            bootstrap_servers=target.at, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=given(AbstractTokenProvider, target.provider.token(), True),
        )  # fmt: skip
        await producer.start()
        try:
            return await producer.send_and_wait(unique("tokens"), b"v")
        finally:
            await producer.stop()

    equal(asyncio.run(write()).offset, 0)


def test_kafka_s_tools_list_with_a_token(target, tmp_path):
    text = tmp_path / "token"
    text.write_text(target.provider.token())
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={text.as_uri()}\n"
        f"sasl.login.callback.handler.class={MODULE}.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        f"sasl.jaas.config={MODULE}.oauthbearer.OAuthBearerLoginModule required;\n"
    )
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={text.as_uri()}"
    # The tools' JVM has been told no such property.
    libs = subprocess.check_output([COMPAT / "kafka/fetch.sh"], text=True).strip()
    command = ["java", *JVM_OPTIONS, allowed, "-cp", f"{libs}/*", tools.MAINS["kafka-topics"]]
    command += ["--bootstrap-server", target.at, "--command-config", str(properties), "--list"]
    done = subprocess.run(command, capture_output=True, text=True)
    equal(done.returncode, 0, done.stdout + done.stderr)
