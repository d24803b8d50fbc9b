"""Clients that people have, where a broker asks for a name and a password. What is asserted of Duramen is asserted of Kafka."""

import asyncio
import subprocess

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

import tools
from broker import COMPAT
from checks import equal, eventually, unique
from logins import MECHANISMS, PASSWORD, STRANGERS, USER, log_in, make_user, new_topic
from readers import built

# librdkafka, and Python.


def kcat(target, at, *arguments, mechanism="PLAIN", user=USER, password=PASSWORD, **options):
    settings = librdkafka(target, at, mechanism, user, password)
    words = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    return subprocess.run(["kcat", *words, *arguments], capture_output=True, text=True, timeout=100, **options)


def librdkafka(target, at, mechanism, user=USER, password=PASSWORD):
    return {
        "bootstrap.servers": at,
        "security.protocol": "SASL_SSL" if at == target.sealed else "SASL_PLAINTEXT",
        "ssl.ca.location": str(target.ca),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def by_confluent(target, mechanism, topic, value, listener="sealed"):
    secure = librdkafka(target, getattr(target, listener), mechanism)
    producer = Producer(secure)
    producer.produce(topic, value)
    equal(producer.flush(30), 0)
    consumer = Consumer({**secure, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = consumer.poll(30)
    consumer.close()
    return read and read.value()


def kafka_pythons(target, mechanism):
    return {
        "bootstrap_servers": target.sealed,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }


def by_kafka_python(target, mechanism, topic, value):
    secure = kafka_pythons(target, mechanism) | {"ssl_cafile": str(target.ca)}
    producer = KafkaProducer(**secure)
    producer.send(topic, value).get(30)
    producer.close()
    consumer = KafkaConsumer(topic, **secure, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    read = next(consumer).value
    consumer.close()
    return read


def by_aiokafka(target, mechanism, topic, value):
    async def both():
        secure = kafka_pythons(target, mechanism) | {"ssl_context": create_ssl_context(cafile=target.ca)}
        async with AIOKafkaProducer(**secure) as producer:
            await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(topic, **secure, auto_offset_reset="earliest") as consumer:
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    return asyncio.run(both())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [by_confluent, by_kafka_python, by_aiokafka])
def test_a_client_in_python_reads_what_it_wrote(target, client, mechanism):
    equal(client(target, mechanism, new_topic(target), b"value"), b"value")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_without_tls_is_as_good(target, mechanism):
    equal(by_confluent(target, mechanism, new_topic(target), b"value", "plain"), b"value")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user, password", STRANGERS)
def test_who_is_not_a_user_is_refused(target, mechanism, user, password):
    errors = []
    producer = Producer({**librdkafka(target, target.sealed, mechanism, user, password), "error_cb": errors.append, "log_level": 0})
    eventually("an error", lambda: [producer.poll(0.1)] and errors)
    equal(errors[0].code(), KafkaError._AUTHENTICATION, errors)
    assert "Authentication failed" in errors[0].str(), errors


@pytest.mark.parametrize("listener", ["sealed", "plain"])
def test_kcat_reads_what_it_wrote(target, listener):
    topic, at = new_topic(target), getattr(target, listener)
    text = "".join(f"{number}\n" for number in range(1000))
    written = kcat(target, at, "-P", "-t", topic, input=text)
    equal(written.returncode, 0, written.stderr)
    read = kcat(target, at, "-C", "-t", topic, "-e", "-q")
    equal((read.returncode, read.stdout), (0, text), read.stderr)


@pytest.mark.parametrize("user, password", STRANGERS)
def test_kcat_is_refused_with_what_is_not_a_users(target, user, password):
    listed = kcat(target, target.sealed, "-L", "-m", "1", user=user, password=password)
    assert listed.returncode != 0 and "SASL authentication error: Authentication failed" in listed.stderr, listed


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_scram_of_an_old_librdkafka_is_refused(target, mechanism):
    """Before 2.6.1 its last message has another nonce than the broker's, which Kafka 4 refuses (../FINDINGS.md)."""
    listed = kcat(target, target.sealed, "-L", "-m", "1", mechanism=mechanism)
    assert listed.returncode != 0 and "SASL authentication error: Authentication failed" in listed.stderr, listed


# Go and Node: each has one program, which logs in by SCRAM-SHA-512.

PROGRAMS = {
    "franz-go": built("franz-go/build.sh", "login"),
    "sarama": built("sarama/build.sh", "login"),
    "kafka-go": built("kafka-go/build.sh", "login"),
    "kafkajs": lambda: [str(COMPAT / "kafkajs/login.sh")],
}


@pytest.mark.parametrize("client", PROGRAMS)
def test_a_client_in_go_or_node_reads_what_it_wrote_and_is_refused_with_another_password(target, client):
    topic, program = new_topic(target), PROGRAMS[client]()

    def run(password, value):
        return subprocess.run([*program, target.sealed, target.ca, USER, password, topic, value], capture_output=True, text=True, timeout=100)

    refused = run("another", "refused")
    assert refused.returncode != 0 and "auth" in refused.stderr.lower(), refused
    done = run(PASSWORD, "value")
    equal((done.returncode, done.stdout), (0, "value\n"), done.stderr)


# Kafka's own tools.


def test_kafkas_tools_come_by_a_password_and_take_credentials_away(target, tmp_path):
    make_user(target.broker, "bob", "bob-secret")
    of_bob = ("--entity-type", "users", "--entity-name", "bob")
    removal = ("--alter", "--delete-config", "SCRAM-SHA-256", *of_bob)

    def run(name, *arguments, mechanism="SCRAM-SHA-512", password="bob-secret"):
        login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="bob" password="{password}";'
        config = tmp_path / f"{mechanism}.properties"
        config.write_text(
            f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={target.ca}\n"
            f"sasl.mechanism={mechanism}\nsasl.jaas.config={login}\n"
        )
        return tools.run(name, "--bootstrap-server", target.sealed, "--command-config", config, *arguments)

    def told(name, *arguments):
        done = run(name, *arguments)
        equal(done.code, 0, str(done))
        return done.out

    def refused(what, name, *arguments, **login):
        done = run(name, *arguments, **login)
        assert done.code != 0 and what in done.out + done.err, str(done)

    def logs_in(mechanism):
        return log_in(target.plain, mechanism, "bob", "bob-secret") == 0

    eventually("the user is known", lambda: logs_in("SCRAM-SHA-256") and logs_in("SCRAM-SHA-512"))
    topic = unique("by-java")
    told("kafka-topics", "--create", "--topic", topic)
    eventually("the topic is listed", lambda: topic in told("kafka-topics", "--list").split())
    refused("SaslAuthenticationException", "kafka-topics", "--list", password="another")
    described = told("kafka-configs", "--describe", *of_bob)
    assert "SCRAM-SHA-256=iterations=4096" in described and "SCRAM-SHA-512=iterations=4096" in described, described
    told("kafka-configs", *removal)
    eventually("the credential is gone", lambda: not logs_in("SCRAM-SHA-256"))
    refused("SaslAuthenticationException", "kafka-topics", "--list", mechanism="SCRAM-SHA-256")
    described = told("kafka-configs", "--describe", *of_bob)
    assert "SCRAM-SHA-256" not in described and "SCRAM-SHA-512=iterations=4096" in described, described
    refused("ResourceNotFoundException", "kafka-configs", *removal)
