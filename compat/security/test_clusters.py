"""Three nodes that ask clients who they are, and show each other certificates: users and rules are the same on all, within a second."""

import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

import calls
from authority import BINARY, certificates
from batch import batch
from broker import HOST, free_port, start_cluster
from checks import SLOWNESS, broker_kind, equal, eventually, unique
from connection import Closed, Connection
from logins import AUTHENTICATION_FAILED, MECHANISMS, PASSWORD, SCRAM_SHA_256, SCRAM_SHA_512, USER
from logins import Asking, alter, is_served, log_in, log_in_on, make_user
from rules import ADA, TOPIC_AUTHORIZATION_FAILED, allow, filter_of

if broker_kind() == "kafka":
    pytest.skip("of Duramen alone", allow_module_level=True)

CLIENTS = 100
# From an acknowledgement to when it counts on all nodes.
WITHIN_S = 1


class Guarding(Asking):
    """A node with rules, and with a listener that asks for certificates of an authority of clients."""

    access = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS"}

    def __init__(self, port, data_dir, settings, *others):
        super().__init__(port, data_dir, settings, *others)
        self.clients = data_dir.parent / "clients"
        if not self.clients.exists():
            certificates(self.clients)
        self.sealed_port = free_port()
        self.settings |= {
            "listeners": f"{self.settings['listeners']},SSL://{HOST}:{self.sealed_port}",
            "ssl.keystore.location": str(self.clients / "localhost.pem"),
            "ssl.truststore.location": str(self.clients / "ca.pem"),
            "ssl.client.auth": "required",
        }


@contextmanager
def logged_in(node, user):
    with Connection(node.asking) as connection:
        equal(log_in_on(connection, "SCRAM-SHA-256", user), 0)
        yield connection


def new_user(nodes, name):
    """On all nodes."""
    equal(alter(nodes[0], (name, SCRAM_SHA_256, 4096)), {name: 0})
    for node in nodes:
        eventually("the user is known", lambda: log_in(node.asking, "SCRAM-SHA-256", name) == 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with start_cluster("duramen", tmp_path_factory.mktemp("cluster"), kinds={"duramen": Guarding}) as made:
        new_user(made.brokers, ADA)
        yield made


@pytest.fixture
def adas(cluster):
    """A connection of ada's to each node."""
    with ExitStack() as stack:
        yield [stack.enter_context(logged_in(node, ADA)) for node in cluster.brokers]


# Users.


def test_a_user_who_is_deleted_is_out_on_every_node(tmp_path):
    with start_cluster("duramen", tmp_path, kinds={"duramen": Asking}) as cluster:
        first = cluster.brokers[0]
        for user in (USER, "bob"):
            make_user(first, user, PASSWORD)
            for node in cluster.brokers:
                eventually("the user is known", lambda: log_in(node.asking, "SCRAM-SHA-512", user) == 0)
        with ExitStack() as stack:
            goes = [stack.enter_context(logged_in(node, USER)) for node in cluster.brokers]
            stays = [stack.enter_context(logged_in(node, "bob")) for node in cluster.brokers]
            equal(alter(first, (USER, SCRAM_SHA_256), (USER, SCRAM_SHA_512)), {USER: 0})
            for connection in goes:
                assert connection.is_closed_by_broker(30)
            for connection in stays:
                assert is_served(connection)
        for node in cluster.brokers:
            for mechanism in MECHANISMS:
                equal(log_in(node.asking, mechanism), AUTHENTICATION_FAILED)


class Worker(threading.Thread):
    """Appends to a partition at the node that leads it, until the node closes the connection."""

    def __init__(self, node, user, topic, partition):
        super().__init__(daemon=True)
        self.node, self.user, self.topic, self.partition = node, user, topic, partition
        self.appended, self.last, self.ended_by = 0, 0, None

    def run(self):
        try:
            with logged_in(self.node, self.user) as connection:
                while True:
                    equal(calls.produce(connection, self.topic, batch([b"value"]), self.partition)["ErrorCode"], 0)
                    self.appended, self.last = self.appended + 1, time.monotonic()
        except (Closed, AssertionError) as reason:
            self.ended_by = reason


def test_within_a_second_of_its_end_no_client_of_a_user_works_on_any_node(cluster):
    nodes, user, topic = cluster.brokers, unique("eve"), unique("worked")
    new_user(nodes, user)
    with Connection(nodes[0].bootstrap) as admin:
        assigned = [{"PartitionIndex": index, "BrokerIds": [index + 1, *(it for it in (1, 2, 3) if it != index + 1)]} for index in range(3)]
        told = calls.create_topic(admin, topic, -1, ReplicationFactor=-1, Assignments=assigned)
        equal(told["ErrorCode"], 0, told)
        calls.wait_for_leaders(admin, topic, 3)
        created(admin, allow("Topic", "Write", topic, user=user))
        leaders = {it["PartitionIndex"]: it["LeaderId"] for it in calls.describe_topic(admin, topic)["Partitions"]}
    equal(sorted(leaders.values()), [1, 2, 3], "leaders")
    workers = [Worker(nodes[leaders[number % 3] - 1], user, topic, number % 3) for number in range(CLIENTS)]
    for worker in workers:
        worker.start()
    eventually("all work", lambda: all(worker.appended > 1 for worker in workers), 60)
    equal(alter(nodes[0], (user, SCRAM_SHA_256)), {user: 0})
    acknowledged = time.monotonic()
    for worker in workers:
        worker.join(30 * SLOWNESS)
        assert isinstance(worker.ended_by, Closed), worker.ended_by
    late_s = max(worker.last for worker in workers) - acknowledged
    assert late_s <= WITHIN_S * SLOWNESS, f"an append was acknowledged {late_s:.2f} s after its user was deleted"
    for node in nodes:
        equal(log_in(node.asking, "SCRAM-SHA-256", user), AUTHENTICATION_FAILED)


# Rules.


def created(connection, *rules):
    equal([it["ErrorCode"] for it in connection.call("CreateAcls", 3, {"Creations": rules})["Results"]], [0] * len(rules))


def removed(connection, user):
    equal([it["ErrorCode"] for it in connection.call("DeleteAcls", 3, {"Filters": [filter_of(f"User:{user}")]})["FilterResults"]], [0])


@pytest.mark.parametrize("made_at", range(3))
def test_a_rule_counts_on_every_node_within_a_second_and_a_removed_one_on_none(cluster, adas, made_at):
    with Connection(cluster.brokers[made_at].bootstrap) as admin:
        topic = calls.new_topic(admin)

        def who_may():
            codes = [calls.describe_topic(ada, topic)["ErrorCode"] for ada in adas]
            assert set(codes) <= {0, TOPIC_AUTHORIZATION_FAILED}, codes
            return [code == 0 for code in codes]

        equal(who_may(), [False] * 3)
        for _ in range(5):
            created(admin, allow("Topic", "Describe", topic))
            eventually("it counts on every node", lambda: who_may() == [True] * 3, WITHIN_S)
            removed(admin, ADA)
            eventually("it counts on no node", lambda: who_may() == [False] * 3, WITHIN_S)


def test_a_request_that_another_node_decides_is_judged_by_who_sent_it(cluster, adas):
    """Two of the three nodes pass it on to the one that leads the metadata, and that one knows them as nodes."""
    with Connection(cluster.brokers[0].bootstrap) as admin:
        for ada in adas:
            topic = unique("made")

            def create():
                return calls.create_topic(ada, topic, ReplicationFactor=-1)["ErrorCode"]

            equal(create(), TOPIC_AUTHORIZATION_FAILED)
            equal(calls.describe_topic(admin, topic)["ErrorCode"], 3, "it is not there")
            created(admin, allow("Topic", "Create", topic))
            eventually("she may create it", lambda: create() == 0)
            removed(admin, ADA)


# The port for nodes.


def shakes_hands(port, authority, certificate=None):
    """Whether a handshake comes to its end. With TLS 1.2 the other side's word is the last one, so it has looked at the certificate."""
    context = ssl.create_default_context(cafile=authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        context.load_cert_chain(certificate)
    with socket.create_connection((HOST, port), timeout=20) as tcp:
        try:
            with context.wrap_socket(tcp, server_hostname=HOST):
                return True
        except (ssl.SSLError, ConnectionResetError):
            return False


def test_only_a_nodes_certificate_opens_the_port_for_nodes(cluster):
    for node in cluster.brokers:
        nodes, clients = node.data_dir.parent / "nodes", node.clients
        assert shakes_hands(node.sealed_port, clients / "ca.pem", clients / "alice.pem"), "a client at the listener for clients"
        assert not shakes_hands(node.node_port, nodes / "ca.pem", clients / "alice.pem"), "a client"
        assert not shakes_hands(node.node_port, nodes / "ca.pem", clients / "localhost.pem"), "the certificate that clients are shown"
        assert not shakes_hands(node.node_port, nodes / "ca.pem"), "nobody"
        for other in cluster.brokers:
            assert shakes_hands(node.node_port, nodes / "ca.pem", nodes / f"{other.data_dir.name}.pem"), "a node"
        assert not shakes_hands(node.sealed_port, clients / "ca.pem", nodes / "node-1.pem"), "a node at the listener for clients"


def test_a_client_of_the_nodes_own_authority_is_no_node(cluster):
    node = cluster.brokers[0]
    nodes = node.data_dir.parent / "nodes"
    subprocess.run([BINARY, "tls", "init", "--client", "spy", "--out", nodes], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=nodes / "ca.pem")
    context.load_cert_chain(nodes / "spy.pem")
    with socket.create_connection((HOST, node.node_port), timeout=20) as tcp:
        with context.wrap_socket(tcp, server_hostname=HOST) as sealed:
            equal(sealed.recv(1), b"")
    eventually("the log says why", lambda: "CN=spy is for clients alone" in node.log_path.read_text())


def test_a_node_without_tls_is_not_heard(cluster):
    node = cluster.brokers[0]
    with Connection(f"{HOST}:{node.node_port}") as plain:
        # The length of a greeting.
        plain.send_bytes(bytes([0, 0, 1, 0]))
        assert plain.is_closed_by_broker()
    eventually("the log says why", lambda: "it does not speak TLS" in node.log_path.read_text())
