"""Brokers that ask clients who they are, and what each client's suite may do there: `run.py --secured`.

A suite comes by TLS and SCRAM, as a user of its own name, who is no super user and has the rights of one row of `RIGHTS`. What a
suite does by raw frames, to prepare, goes through a listener that asks nobody; only there are super users.

    shared, strict, authority = ...                                  # Secured brokers, and certificates(directory)
    environment = admit("kafka-go", shared, strict, authority)       # makes the user, and says how its clients come in
"""

import subprocess
import time

from broker import HOST, KINDS, duramen_binary, free_port

MECHANISM = "SCRAM-SHA-512"
PATIENCE_S = 60

# Suite by suite: `KIND NAME: OPERATION, ...`. A name that ends in * is that of all whose names begin so. A right to read, write,
# delete or alter is one to describe, too.
RIGHTS = {
    "kcat": ["topic wire*: read, write", "topic kcat*: create, read, write", "group kcat*: read"],
    "confluent-kafka": [
        "topic rdkafka*: create, delete, read, write, alter, describe-configs, alter-configs",
        "topic bad name: create",
        "topic nowhere*: delete",
        # librdkafka asks for the coordinator of a group that it does not join.
        "group assigned-only: describe",
        "group group*: read, delete, describe-configs",
        "group loop*: read",
        "group nobody*: describe",
        "group pending*: read",
        "transactional-id transactional*: write",
        "transactional-id loop*: write",
    ],
    "java": [
        "topic java*: create, delete, read, write, alter, describe-configs, alter-configs",
        "topic admin*: create, delete, alter, describe-configs",
        "topic pattern*: create, read, write, alter",
        "topic bad name: create",
        # These are not there.
        "topic nowhere*: read, delete",
        "topic t: read",
        # A pattern finds internal topics, too.
        "topic __consumer_offsets: read",
        "group group*: read, delete",
        "group admin-group*: read, delete, describe-configs, alter-configs",
        "group loop*: read",
        "group nobody*: read, delete",
        "group share*: read, delete",
        "group stale*: read",
        "group streams*: read, delete",
        "transactional-id feeder*: write",
        "transactional-id loop*: write",
        "transactional-id nobody*: describe",
        "transactional-id open*: write",
        "transactional-id t-*: write",
        # AdminCalls makes every call of the admin client, of users and quotas among them.
        "cluster itself: alter, alter-configs",
    ],
    "kafka-tools": [
        "topic tools*: create, delete, read, write, alter, describe-configs, alter-configs",
        "topic no good: create",
        # They are described, and formatters show what they have.
        "topic __consumer_offsets: read, describe-configs",
        "topic __transaction_state: read, describe-configs",
        "group tools*: read, delete, describe-configs, alter-configs",
        "group console-consumer-*: read",
        "group perf*: read",
        "group test-group-*: read",
        "group verifiable*: read",
        "transactional-id nobody: describe",
        "transactional-id perf*: write",
        # Some end transactions of others.
        "transactional-id open*: write",
        # Some look at the nodes, quotas and logs of the cluster, or change settings of nodes.
        "cluster itself: alter, alter-configs",
    ],
    "connect": [
        "topic connect*: create, read, write, describe-configs",
        "group connect*: read",
        "group unused: describe",
        "transactional-id connect*: write",
    ],
    "mirror": [
        "topic orders*: create, read, write, describe-configs",
        "topic left.*: create, read, write, describe-configs, alter-configs",
        "topic mm2*: create, read, write, describe-configs",
        "topic heartbeats: create, read, write, describe-configs",
        "group readers*: read",
        "group left-mm2*: read",
        "group unused: describe",
        "transactional-id orders*: write",
        "transactional-id connect-cluster-left-mm2*: write",
        "transactional-id left-mm2-*: write",
    ],
    "streams": [
        "topic streams*: create, read, write, delete",
        "group streams*: read",
        "group unused: describe",
        "transactional-id feeder*: write",
        "transactional-id streams*: write",
    ],
    "franz-go": [
        "topic franz*: create, delete, read, write",
        "topic bad name: create",
        "topic nowhere*: delete",
        "group franz*: read, delete",
        "group g-*: read",
        "group no-group*: read",
        # It deletes the group without a name, which no other rule is about.
        "group *: delete",
        "group loop*: read",
        "transactional-id transactional*: write",
        "transactional-id loop*: write",
    ],
    "sarama": [
        "topic sarama*: create, delete, read, write",
        "topic bad name: create",
        "topic nowhere*: delete",
        "group sarama*: read, delete",
        "group no-group*: read",
        "group loop*: read",
        "transactional-id transactional*: write",
        "transactional-id loop*: write",
    ],
    "kafka-go": ["topic kafka-go*: create, delete, read, write", "topic bad name: create", "topic nowhere*: delete", "group kafka-go*: read, delete"],
    "rskafka": ["topic rskafka*: create, delete, read, write", "topic bad name: create"],
    "kafka-python": [
        "topic kafka-python*: create, delete, read, write",
        "topic bad name: create",
        "group group*: read, delete",
        "group loop*: read",
        "transactional-id transactional*: write",
    ],
    "aiokafka": [
        "topic aiokafka*: create, delete, read, write, alter, describe-configs, alter-configs",
        "group group*: read",
        "group loop*: read",
        "transactional-id transactional*: write",
    ],
    "native": [
        "topic native*: create, delete, read, write, alter, describe-configs, alter-configs",
        "topic no-such-topic: read, write, delete, alter",
        "group native*: read, delete",
        "group g: read",
        "group duramen-redrive: read",
        "transactional-id w-native*: write",
    ],
    "kafkajs": [
        "topic kafkajs*: create, delete, read, write",
        "topic bad*: create",
        "group kafkajs*: read, delete",
        "transactional-id kafkajs*: write",
    ],
    "old-clients": [
        "topic old-*: create, delete, read, write, alter, describe-configs",
        "group old-*: read, delete",
        "transactional-id old-*: write",
    ],
    "cli": [
        "topic cli*: create, delete, read, write, alter, describe-configs, alter-configs",
        "group group*: read, delete",
        "group share*: read, delete",
        "group other*: read",
    ],
}


def password(user):
    return f"{user}-secret"


def certificates(directory):
    """Returns the directory with a certificate for brokers, and that of the authority who made it."""
    subprocess.run([duramen_binary(), "tls", "init", "--node", f"localhost,{HOST}", "--out", directory], check=True, capture_output=True)
    return directory


def _jaas():
    """Kafka has no other place for users of PLAIN, by which Debian's kcat comes, and wants to hear that others are in its metadata."""
    module = "org.apache.kafka.common.security"
    users = " ".join(f'user_{user}="{password(user)}"' for user in RIGHTS)
    return {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {users};",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }


def kinds(authority):
    """Returns brokers as `broker.KINDS` has them, which have a second listener, and rules."""

    def secured(kind):
        class Secured(KINDS[kind]):
            def __init__(self, port, data_dir, settings, *others):
                self.secured = f"{HOST}:{free_port()}"
                own = {
                    "listeners": f"PLAINTEXT://{HOST}:{port},SASL_SSL://{self.secured}",
                    "sasl.enabled.mechanisms": f"{MECHANISM},PLAIN",
                    "ssl.keystore.type": "PEM",
                    "ssl.keystore.location": str(authority / "localhost.pem"),
                    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                    "super.users": "User:ANONYMOUS",
                    **(_jaas() if kind == "kafka" else {"listener.security.protocol.map": "NATIVE:SASL_SSL"}),
                }
                super().__init__(port, data_dir, {**settings, **own}, *others)

        return Secured

    return {kind: secured(kind) for kind in KINDS}


def admit(suite, shared, strict, authority):
    """Makes the suite's user, and returns the environment that its clients come in by, with the address as `BOOTSTRAP`."""
    secret = authority / f"{suite}.password"
    secret.write_text(password(suite))
    for brokers in (shared, strict):
        # Rules first: metadata take effect in their order, so who knows the user knows what it may do.
        for right in RIGHTS[suite]:
            _administer(brokers, "acl", "allow", "--principal", f"User:{suite}", *_words(right))
        _administer(brokers, "user", "create", suite, "--for", MECHANISM, "--new-password-file", secret)
        for broker in brokers.brokers:
            _wait_for_user(broker, suite, secret, authority)
    properties = authority / f"{suite}.properties"
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{suite}" password="{password(suite)}";'
    properties.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority / 'ca.pem'}\n"
        f"sasl.mechanism={MECHANISM}\nsasl.jaas.config={login}\n"
    )
    return {
        "BOOTSTRAP": _addresses(shared),
        "STRICT_BOOTSTRAP": _addresses(strict),
        "OPEN_BOOTSTRAP": shared.bootstrap,
        "OPEN_STRICT_BOOTSTRAP": strict.bootstrap,
        "SASL_USERNAME": suite,
        "SASL_PASSWORD": password(suite),
        "SSL_CA": str(authority / "ca.pem"),
        # The same for Kafka's own clients and tools, and for ours.
        "CLIENT_PROPERTIES": str(properties),
        "DURAMEN_TLS_CA": str(authority / "ca.pem"),
        "DURAMEN_USER": suite,
        "DURAMEN_PASSWORD_FILE": str(secret),
    }


def _addresses(brokers):
    return ",".join(broker.secured for broker in brokers.brokers)


def _words(right):
    place, operations = right.split(": ")
    kind, name = place.split(" ", 1)
    resource = ["--cluster-itself"] if kind == "cluster" else [f"--{kind}", name]
    return [*resource, *(word for operation in operations.split(", ") for word in ("--operation", operation))]


def _administer(brokers, *arguments):
    command = [duramen_binary(), *map(str, arguments), "--bootstrap", brokers.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _wait_for_user(broker, user, secret, authority):
    """Kafka answers before its listeners know a user."""
    login = ["--tls-ca", authority / "ca.pem", "--user", user, "--password-file", secret]
    command = [duramen_binary(), "topic", "list", "--bootstrap", broker.secured, *login]
    deadline = time.monotonic() + PATIENCE_S
    while (done := subprocess.run(command, capture_output=True, text=True)).returncode != 0:
        assert time.monotonic() < deadline, f"{user} is no user: {done.stderr}"
        time.sleep(0.05)
