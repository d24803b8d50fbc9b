"""Clusters that are far apart: each connection to a node, of a client or of another node, goes by bench/relay.

The kernels that this ran on have no netem, which would delay packets. So delays come from a process: a relay reads
what a socket sends, and writes it so much later. To connect takes no time, which takes a round trip on a real network.

Kafka's nodes reach each other by the addresses that they advertise, so a node has one relay for all others. Its
controllers speak to each other directly: no append waits for them.
"""

import functools
import os
import subprocess
from pathlib import Path

import brokers
from brokers import BENCH, KAFKA_JVM, SHARED_DISK, MeasuredDuramen, launcher, slow_binary

HOST = launcher.HOST
# What a sync takes on a data directory in memory, so that each node seems to have a disk of its own.
SYNC_US = 400
VARIANTS = {**brokers.VARIANTS, SHARED_DISK: brokers.VARIANTS["duramen"]}


class FarDuramen(MeasuredDuramen):
    """A node that others reach at a port of its own, and clients by a relay."""

    is_slow = True

    def command(self):
        binary, *arguments = super().command()
        return [str(slow_binary()) if self.is_slow else binary, *arguments, "--node-listen", f"{HOST}:{self.node_port}"]


class Relay:
    """Links of a network, by number, and the process that delays them."""

    def __init__(self, links):
        command = [_relay_binary(), *links]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear("ready")

    def delay(self, number, milliseconds):
        self._say(f"{number} {round(milliseconds * 1000)}")

    def rate(self, bytes_per_second):
        self._say(f"rate {bytes_per_second}")

    def _say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self._hear("done")

    def _hear(self, wanted):
        said = self.process.stdout.readline().strip()
        if said != wanted:
            raise RuntimeError(f"the relay said {said!r}, not {wanted!r}")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@functools.cache
def _relay_binary():
    path = Path(os.environ.get("DURAMEN_CACHE", os.path.expanduser("~/.cache/duramen"))) / "relay"
    subprocess.run(["go", "build", "-o", path, "."], cwd=BENCH / "relay", check=True)
    return str(path)


class Network:
    """The ways of a cluster: of clients to each node, and of each node to each other."""

    def __init__(self, kind, nodes):
        self.nodes = range(1, nodes + 1)
        # Where nodes listen: for clients, for each other, and Kafka's controllers.
        self.ports, self.node_ports, self.controllers = ({node: launcher.free_port() for node in self.nodes} for _ in range(3))
        # By the two ends of each: None is a client, or in Kafka any other node.
        self.clients = {(None, node): launcher.free_port() for node in self.nodes}
        diallers = self.nodes if kind == "duramen" else ["any"]
        ways = [(dialler, node) for node in self.nodes for dialler in diallers if dialler != node]
        self.between = {way: launcher.free_port() for way in ways}
        links = [f"{HOST}:{port}={HOST}:{self.ports[node]},0,metered" for (_, node), port in self.clients.items()]
        links += [f"{HOST}:{port}={HOST}:{self.node_ports[node]},0" for (_, node), port in self.between.items()]
        self.relay = Relay(links)

    @property
    def bootstrap(self):
        return ",".join(f"{HOST}:{port}" for port in self.clients.values())

    def set_wire(self, bytes_per_second):
        """What all connections of clients carry together, to the nodes; 0 is any number."""
        self.relay.rate(bytes_per_second)

    def set(self, client_ms, node_ms, client_of=None, slower=None, by_ms=0):
        """One-way delays: of clients, but for the nodes that `client_of` names, and between nodes. All ways of the
        node `slower` take so much longer."""
        client_of = client_of or {}
        ways = [(ends, client_of.get(ends[1], client_ms)) for ends in self.clients]
        ways += [(ends, node_ms) for ends in self.between]
        for number, (ends, delay) in enumerate(ways):
            self.relay.delay(number, delay + (by_ms if slower in ends and slower is not None else 0))


class FarCluster(launcher.Cluster):
    """Nodes and their network; clients know the relays alone."""

    def __init__(self, brokers, network):
        super().__init__(brokers)
        self.network = network
        self.bootstrap = network.bootstrap

    def __exit__(self, *_):
        self.kill9()
        self.network.relay.close()


def start(variant, directory, nodes):
    """A cluster of so many nodes, with as many replicas of everything, without any delay yet."""
    kind, settings = VARIANTS[variant]
    network = Network(kind, nodes)
    make = _duramen if kind == "duramen" else _kafka
    settings = {**settings, "default.replication.factor": str(nodes), "min.insync.replicas": str(nodes // 2 + 1)}
    made = [make(variant, Path(directory) / f"node-{node}", node, network, settings) for node in network.nodes]
    cluster = FarCluster(made, network)
    try:
        for broker in made:
            broker.brokers_known = nodes
            broker.spawn()
        for broker in made:
            broker.wait_until_ready()
    except BaseException:
        cluster.__exit__()
        raise
    return cluster


def _duramen(variant, directory, node, network, settings):
    ways = {it: network.between.get((node, it), network.node_ports[it]) for it in network.nodes}
    own = {
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{it}@{HOST}:{port}" for it, port in ways.items()),
        "advertised.listeners": f"PLAINTEXT://{HOST}:{network.clients[None, node]}",
    }
    wrapper = [] if variant == SHARED_DISK else ["env", f"DURAMEN_SLOW_SYNC_US={SYNC_US}"]
    broker = FarDuramen(network.ports[node], directory, {**settings, **own}, wrapper, [])
    broker.is_slow = variant != SHARED_DISK
    broker.node_port = network.node_ports[node]
    return broker


def _kafka(_variant, directory, node, network, settings):
    own = {
        **{name: settings["default.replication.factor"] for name in launcher.KAFKA_REPLICATED if name.endswith("factor")},
        **{name: settings["min.insync.replicas"] for name in launcher.KAFKA_REPLICATED if name.endswith("isr")},
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{it}@{HOST}:{port}" for it, port in network.controllers.items()),
        "listeners": _listeners(PLAINTEXT=network.ports[node], NODES=network.node_ports[node], CONTROLLER=network.controllers[node]),
        "advertised.listeners": _listeners(PLAINTEXT=network.clients[None, node], NODES=network.between["any", node]),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NODES:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "NODES",
    }
    return launcher.Kafka(network.ports[node], directory, {**settings, **own}, [], KAFKA_JVM)


def _listeners(**ports):
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
