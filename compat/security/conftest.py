"""The brokers of the tests of users and of rules."""

import pytest

from authority import certificates
from broker import HOST, free_port, start
from checks import broker_kind, eventually
from logins import MECHANISMS, PASSWORD, USER, Target, log_in, make_user
from rules import Guarded


def jaas(listener):
    """Kafka has no other place for users of PLAIN, and wants to be told that it has those of SCRAM in its metadata."""
    module = "org.apache.kafka.common.security"
    users = f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    scram = {f"listener.name.{listener}.scram-sha-{bits}.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;" for bits in (256, 512)}
    return {f"listener.name.{listener}.plain.sasl.jaas.config": users, **scram}


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    directory = tmp_path_factory.mktemp("users")
    authority = certificates(directory / "certificates")
    port, sealed, plain = (free_port() for _ in range(3))
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{port},SASL_SSL://{HOST}:{sealed},SASL_PLAINTEXT://{HOST}:{plain}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority / "localhost.pem"),
    }
    if broker_kind() == "kafka":
        settings |= jaas("sasl_ssl") | jaas("sasl_plaintext")
    else:
        # Kafka has no rules unless it is told so.
        settings["authorizer.class.name"] = "none"
    with start(broker_kind(), port, directory / "data", settings) as broker:
        made = Target(broker, (sealed, plain), authority / "ca.pem")
        make_user(broker, USER, PASSWORD)
        # Kafka answers before its listeners know the user.
        for mechanism in MECHANISMS:
            eventually(f"a login by {mechanism}", lambda: log_in(made.plain, mechanism) == 0)
        yield made


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rules")
    port, asking = free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{port},SASL_PLAINTEXT://{HOST}:{asking}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        # Longer than a slow machine takes from one rule to the next.
        "group.consumer.session.timeout.ms": "45000",
        "group.share.session.timeout.ms": "45000",
    }
    if broker_kind() == "kafka":
        settings |= jaas("sasl_plaintext")
    with start(broker_kind(), port, directory / "data", settings) as broker:
        yield Guarded(broker, asking)
