"""Brokers with the listeners that librdkafka's tests want, and what shows its clients who is who."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from jwcrypto import jwk

from broker import COMPAT, HOST, JVM_OPTIONS, duramen_binary, free_port, start, start_cluster
from checks import broker_kind
from listeners import listening, make_user

RUNNER = Path(os.environ["RUNNER"])
USER, PASSWORD = "librdkafka", "librdkafka-secret"
KEY_PASSWORD = "12345678"
MODULE = "org.apache.kafka.common.security"
# Listeners beside PLAINTEXT: passwords, certificates that must or may be shown, tokens.
PROTOCOLS = {"SASL_SSL": "SASL_SSL", "REQUIRED": "SSL", "REQUESTED": "SSL", "TOKENS": "SASL_PLAINTEXT"}
REAUTHENTICATION_MS = 6000


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Certificates:
    """A certificate of brokers and one of a client, and the forms of the client's that librdkafka's tests read."""

    def __init__(self, directory):
        self.directory, unused = directory / "used", directory / "unused"
        for place in (self.directory, unused):
            command = [duramen_binary(), "tls", "init", "--node", f"localhost,{HOST}", "--client", "client", "--out", place]
            subprocess.run(command, check=True, capture_output=True)
        self.ca, self.broker = self.directory / "ca.pem", self.directory / "localhost.pem"
        client, password = self.directory / "client.pem", f"pass:{KEY_PASSWORD}"
        self.pem, self.key = self.directory / "pub.pem", self.directory / "priv.pem"
        self.forms = {form: self.directory / form for form in ("ca_der", "all_cas_pem", "pub_der", "priv_der", "pkcs")}
        openssl("x509", "-in", client, "-out", self.pem)
        openssl("x509", "-in", client, "-outform", "der", "-out", self.forms["pub_der"])
        openssl("x509", "-in", self.ca, "-outform", "der", "-out", self.forms["ca_der"])
        openssl("pkcs8", "-topk8", "-in", client, "-out", self.key, "-passout", password)
        openssl("pkcs8", "-topk8", "-nocrypt", "-in", client, "-outform", "der", "-out", self.forms["priv_der"])
        openssl("pkcs12", "-export", "-in", client, "-inkey", client, "-certfile", self.ca, "-out", self.forms["pkcs"], "-passout", password)
        self.forms["all_cas_pem"].write_text((unused / "ca.pem").read_text() + self.ca.read_text())

    def environment(self):
        forms = {f"SSL_{form}": str(path) for form, path in self.forms.items()}
        return {**forms, "SSL_pub_pem": str(self.pem), "SSL_priv_pem": str(self.key), "SSL_password": KEY_PASSWORD}

    def properties(self):
        return {
            "ssl.ca.location": self.ca, "ssl.certificate.location": self.pem, "ssl.key.location": self.key, "ssl.key.password": KEY_PASSWORD,
        }


class Provider:
    """Gives out tokens: the server that librdkafka's tests start, out of the archive beside them."""

    def __init__(self, directory):
        subprocess.run(["tar", "-xzf", *RUNNER.glob("trivup/trivup-*.tar.gz"), "-C", directory, "--strip-components=1"], check=True)
        key = jwk.JWK.generate(kty="RSA", size=2048, alg="RS256", use="sig", kid="client")
        self.public, self.private, self.encrypted, self.keys = (directory / it for it in ("public", "private", "encrypted", "keys.json"))
        self.public.write_text(key.export_public())
        self.private.write_bytes(key.export_to_pem(private_key=True, password=None))
        self.encrypted.write_bytes(key.export_to_pem(private_key=True, password=KEY_PASSWORD.encode()))
        port = free_port()
        self.at = f"http://localhost:{port}"
        command = [sys.executable, "-m", "trivup.apps.OauthbearerOIDCApp", "--port", port, "--client-public-key", self.public]
        self.process = subprocess.Popen([*map(str, command)], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        """Writes the keys of its tokens into a file: Duramen reads them over TLS, or so."""
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"{self.at}/keys", timeout=5) as answer:
                    self.keys.write_bytes(answer.read())
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "the server of tokens does not answer"
                time.sleep(0.05)

    def environment(self):
        return {
            "VALID_OIDC_URL": f"{self.at}/retrieve", "INVALID_OIDC_URL": f"{self.at}/retrieve/badformat",
            "EXPIRED_TOKEN_OIDC_URL": f"{self.at}/retrieve/expire", "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(self.private),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(self.encrypted), "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": KEY_PASSWORD,
        }


def asking(certificates, provider):
    """Brokers that listen in all these ways."""
    tokens = "listener.name.tokens.oauthbearer.sasl"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{tokens}.oauthbearer.jwks.endpoint.url": provider.keys.as_uri(),
        f"{tokens}.oauthbearer.expected.audience": "api://default",
        f"{tokens}.oauthbearer.expected.issuer": "issuer",
        "connections.max.reauth.ms": str(REAUTHENTICATION_MS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "listener.name.required.ssl.client.auth": "required",
        "listener.name.requested.ssl.client.auth": "requested",
    }
    login = f'{MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    of_kafka = {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
        **{f"listener.name.sasl_ssl.scram-sha-{bits}.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;" for bits in (256, 512)},
        f"{tokens}.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required;",
        f"{tokens}.server.callback.handler.class": f"{MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler",
    }
    return listening(PROTOCOLS, settings, of_kafka)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def provider(tmp_path_factory):
    it = Provider(tmp_path_factory.mktemp("provider"))
    try:
        it.wait()
        yield it
    finally:
        it.process.kill()
        it.process.wait()


@pytest.fixture(scope="session")
def cluster(certificates, provider, tmp_path_factory):
    """Three brokers, since some tests make topics of three replicas."""
    directory = tmp_path_factory.mktemp("cluster")
    options = [*JVM_OPTIONS, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys.as_uri()}"]
    with start_cluster(broker_kind(), directory, jvm_options=options, kinds=asking(certificates, provider)) as brokers:
        make_user(brokers, USER, PASSWORD, directory, ("SCRAM-SHA-256", "SCRAM-SHA-512"))
        yield brokers


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """A broker that has rules, and asks nobody who they are: everybody may do what no rule names."""
    directory = tmp_path_factory.mktemp("guarded")
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with start(broker_kind(), free_port(), directory / "data", settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def tools(tmp_path_factory):
    """A folder like that of Kafka's distribution, with the command that tests call."""
    directory = tmp_path_factory.mktemp("kafka")
    libs = subprocess.check_output([COMPAT / "kafka/fetch.sh"], text=True).strip()
    script = directory / "bin" / "kafka-acls.sh"
    script.parent.mkdir()
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={COMPAT / 'kafka/log4j2.properties'}"
    script.write_text(f"#!/bin/sh\nexec java {options} -cp '{libs}/*' org.apache.kafka.tools.AclCommand \"$@\"\n")
    script.chmod(0o755)
    return directory


class Failed(AssertionError):
    def __init__(self, what, said):
        super().__init__(what)
        self.said = said


@pytest.fixture
def upstream(tmp_path):
    """Runs one of librdkafka's tests, or a part of it, and returns what it said."""

    def run(test, properties, environment=(), part=None):
        conf, report = tmp_path / "test.conf", tmp_path / "report.json"
        # As librdkafka's makers run them.
        given = {"broker.address.family": "v4", "test.timeout.multiplier": 2, **properties}
        conf.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        own = {
            "TESTS": test, "RDKAFKA_TEST_CONF": str(conf), "TEST_REPORT": str(report), "TEST_KAFKA_VERSION": "4.0.0",
            "LD_LIBRARY_PATH": f"{RUNNER.parent}/src:{RUNNER.parent}/src-cpp", **dict(environment), **({"SUBTESTS": part} if part else {}),
        }
        others = {name: value for name, value in os.environ.items() if name != "CI"}
        done = subprocess.run([RUNNER / "test-runner", "-p1", "-E"], cwd=RUNNER, env={**others, **own}, capture_output=True, text=True)
        said = done.stdout + done.stderr
        print(said)
        ran = json.loads(report.read_text())["tests"].get(test)
        assert ran, f"the runner ended with {done.returncode}, and without a word about {test}"
        if ran["state"] != "PASSED" or done.returncode != 0:
            raise Failed(f"{test} {ran['state']}, and the runner ended with {done.returncode}", said)
        return said

    return run
