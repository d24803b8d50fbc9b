"""How each Python client reaches the broker under test, and who it says it is: nobody, unless `run.py --secured` has made a user.

The argument is the address of another broker, or of one that a test has started.
"""

import os
import ssl
from base64 import b64encode

import checks

USER, PASSWORD, CA = (os.environ.get(name) for name in ("SASL_USERNAME", "SASL_PASSWORD", "SSL_CA"))
MECHANISM = "SCRAM-SHA-512"


def librdkafka(bootstrap=None, mechanism=MECHANISM):
    address = {"bootstrap.servers": bootstrap or checks.bootstrap()}
    if not USER:
        return address
    login = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return {**address, "security.protocol": "SASL_SSL", "ssl.ca.location": CA, **login}


def kcat(bootstrap=None):
    """By PLAIN: the SCRAM of Debian's librdkafka is refused by both brokers (FINDINGS.md)."""
    return [word for name, value in librdkafka(bootstrap, "PLAIN").items() for word in ("-X", f"{name}={value}")]


def _by_kafka_pythons_names(bootstrap, mechanism=MECHANISM):
    address = {"bootstrap_servers": bootstrap or checks.bootstrap()}
    login = {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    return {**address, **({"security_protocol": "SASL_SSL", **login} if USER else {})}


def kafka_python(bootstrap=None, mechanism=MECHANISM):
    return {**_by_kafka_pythons_names(bootstrap, mechanism), **({"ssl_cafile": CA} if USER else {})}


def aiokafka(bootstrap=None):
    if not USER:
        return _by_kafka_pythons_names(bootstrap)
    # Only this client needs it.
    from aiokafka.helpers import create_ssl_context

    return {**_by_kafka_pythons_names(bootstrap), "ssl_context": create_ssl_context(cafile=CA)}


def http_scheme():
    """Of the native API."""
    return "https" if USER else "http"


def basic():
    """What a request of the native API says of its user (RFC 7617), or nothing."""
    return f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}" if USER else ""


def trust():
    """For Python's own HTTP client."""
    return ssl.create_default_context(cafile=CA) if USER else None


def command_config():
    """Options of Kafka's command-line tools."""
    return ("--command-config", os.environ["CLIENT_PROPERTIES"]) if USER else ()


def client_properties():
    """Settings of Kafka's own clients, but for the address."""
    if not USER:
        return {}
    with open(os.environ["CLIENT_PROPERTIES"]) as file:
        return dict(line.rstrip("\n").split("=", 1) for line in file)
