#!/usr/bin/env python3
"""Starts, kills and restarts a broker on this machine: Duramen, or the real Apache Kafka, through one interface.

    broker = start("kafka", free_port(), "/tmp/k", {"flush.messages": "1"})   # formats, starts, waits until it answers
    broker.kill9(); broker.restart(); broker.stop()

From a shell, around one command (BOOTSTRAP, NATIVE and BROKER_KIND are in its environment, the broker ends with it):

    compat/broker.py --kind duramen --data-dir /tmp/d [--port N] [--set KEY=VALUE]... -- COMMAND...
"""

import argparse
import ctypes
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPAT = Path(__file__).resolve().parent
HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1

# Duramen refuses variables of its own prefix that it does not know.
OUR_VARIABLES = {"DURAMEN_BIN", "DURAMEN_SLOW_SYNCS_BIN", "DURAMEN_CACHE"}

# A laptop-sized heap for everything; compile quickly, because these JVMs live for seconds. A benchmark passes its own.
JVM_OPTIONS = ["-Xmx1g", "-Xms256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]

# The first member of a group need not wait for others. Everything else stays as it comes.
QUICK_GROUPS = {
    "group.initial.rebalance.delay.ms": "0",
    # Of the consumer protocol the broker sets the times, and Kafka wants them to be no shorter than these minima.
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    # The same of share groups.
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.record.lock.duration.ms": "1000",
}

# Retention would take the records that tests have stamped with the time of years ago, whenever it looks: after five minutes, and in
# Kafka after the first 30 s, too.
OLD_RECORDS_STAY = {"log.retention.check.interval.ms": "3600000"}
KAFKA_OLD_RECORDS_STAY = {**OLD_RECORDS_STAY, "log.initial.task.delay.ms": "3600000"}

# What Kafka needs to be one node. Everything else stays as it comes, so that both brokers run with Kafka's defaults.
KAFKA_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # Not every ten seconds, which several tests would wait for.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

# A test may have listeners of its own.
KAFKA_LISTENER_PROTOCOLS = ",".join(f"{it}:{it}" for it in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")) + ",CONTROLLER:PLAINTEXT"

# What makes three of them one cluster, and how both kinds are set up to be durable on a majority.
THREE = 3
REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
KAFKA_REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}

# Duramen takes topic settings under their broker names too; Kafka has other names for some of them.
KAFKA_BROKER_NAMES = {"flush.messages": "log.flush.interval.messages"}


class BrokerFailed(Exception):
    """The broker ended, or did not answer in time; the message carries the end of its log."""


# The locks of this process's ports.
_ports = []


def free_port():
    """A port below the ephemeral range: no outgoing connection takes it while a killed broker is down. Until this process
    ends it gives the port to no other broker, and neither does another process that asks here."""
    locks = Path(tempfile.gettempdir()) / f"duramen-ports-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    while True:
        port = random.randrange(20_000, 32_000)
        lock = open(locks / str(port), "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _ports.append(lock)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


def duramen_binary():
    return os.environ.get("DURAMEN_BIN", str(COMPAT.parent / "target/release/duramen"))


def start(kind, port, data_dir, settings=None, wrapper=(), jvm_options=JVM_OPTIONS, kinds=None):
    """Starts a broker on 127.0.0.1:`port` and returns it once it answers.

    `wrapper` is a command put in front of the broker's (strace); it must keep the broker's own pid (`strace -D`).
    """
    broker = (kinds or KINDS)[kind](port, Path(data_dir), dict(settings or {}), list(wrapper), list(jvm_options))
    broker.restart()
    return broker


def start_cluster(kind, directory, settings=None, jvm_options=JVM_OPTIONS, kinds=None, wrappers=((),) * THREE):
    """Starts three brokers that are one cluster, with three replicas of everything, and returns it once all know all.

    `wrappers` has a command to put in front of each broker, as `start` takes one. Nodes of Duramen whose listeners ask clients who
    they are show each other certificates, in `directory`/nodes: of each as `node-N.pem`, of their authority as `ca.pem`.
    """
    ports, node_ports = ([free_port() for _ in range(THREE)] for _ in range(2))
    voters = ",".join(f"{node}@{HOST}:{port}" for node, port in enumerate(node_ports, 1))
    brokers = []
    for node, (port, node_port, wrapper) in enumerate(zip(ports, node_ports, wrappers), 1):
        own = {**REPLICATED, **(settings or {}), "node.id": str(node), "controller.quorum.voters": voters}
        if kind == "kafka":
            own |= {**KAFKA_REPLICATED, "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{node_port}"}
        make = (kinds or KINDS)[kind]
        brokers.append(make(port, Path(directory) / f"node-{node}", own, list(wrapper), list(jvm_options)))
        brokers[-1].brokers_known = THREE
        brokers[-1].node_port = node_port
    if kind == "duramen" and any(_asks_clients(broker.settings) for broker in brokers):
        _certify_nodes(brokers, Path(directory) / "nodes")
    cluster = Cluster(brokers)
    cluster.restart()
    return cluster


def _asks_clients(settings):
    asks = any(name.endswith("ssl.client.auth") and value != "none" for name, value in settings.items())
    return asks or "SASL_" in settings.get("listeners", "")


def _certify_nodes(brokers, directory):
    names = [f"node-{node}" for node, _ in enumerate(brokers, 1)]
    asked = [word for name in names for word in ("--node", f"{name},{HOST}")]
    subprocess.run([duramen_binary(), "tls", "init", "--out", directory, *asked], check=True, capture_output=True)
    for name, broker in zip(names, brokers):
        broker.settings |= {
            "listener.name.nodes.ssl.keystore.location": str(directory / f"{name}.pem"),
            "listener.name.nodes.ssl.truststore.location": str(directory / "ca.pem"),
        }


class Cluster:
    """Brokers that are one cluster. `bootstrap` names them all."""

    def __init__(self, brokers):
        self.brokers = brokers
        self.kind = brokers[0].kind
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers)

    def restart(self):
        """Starts all at once, and waits until all know all."""
        for broker in self.brokers:
            broker.spawn()
        for broker in self.brokers:
            broker.wait_until_ready()

    def kill9(self):
        """All at once: Kafka's last broker would wait for a majority that is gone before it ends."""
        for broker in self.brokers:
            if broker.process is not None and broker.process.poll() is None:
                broker.kill9()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill9()


class Broker:
    READY_TIMEOUT_S = 60
    # How many brokers it must know to be ready.
    brokers_known = 1
    # Where it listens for others of its cluster.
    node_port = None
    # Its disk was lost: the next starts ask for the place of the one before.
    replaces = False

    def __init__(self, port, data_dir, settings, wrapper, jvm_options):
        self.port = port
        self.bootstrap = f"{HOST}:{port}"
        self.data_dir = data_dir
        self.settings = settings
        self.wrapper = wrapper
        self.jvm_options = jvm_options
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.process = None
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)

    @property
    def brokers(self):
        """As a cluster's."""
        return [self]

    @property
    def pid(self):
        return self.process.pid

    def restart(self):
        """Starts the broker on its directory, whatever state a stop or a kill left it in, and waits until it answers."""
        self.spawn()
        self.wait_until_ready()

    def spawn(self):
        """Starts the process and does not wait, so that it can be killed while it recovers."""
        assert self.process is None or self.process.poll() is not None, "the broker is still running"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.wrapper + self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in os.environ.items() if name not in OUR_VARIABLES},
                preexec_fn=_die_with_parent,
            )

    def kill9(self):
        """The process ends at this instant; the page cache survives."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s=60):
        """Asks the broker to end, and insists when it does not."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise BrokerFailed(f"{self.kind} did not end within {timeout_s} s of SIGTERM\n{self.log_tail()}") from None

    def wipe(self):
        """Its disk is replaced by an empty one, while it is stopped."""
        shutil.rmtree(self.data_dir)
        self.replaces = True

    def log_tail(self, lines=30):
        text = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join([f"--- end of {self.log_path}", *text[-lines:]])

    def wait_until_ready(self):
        deadline = time.monotonic() + self.READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise BrokerFailed(f"{self.kind} ended with {self.process.returncode}\n{self.log_tail()}")
            if _brokers_listed(self.port) >= self.brokers_known:
                return
            time.sleep(0.05)
        self.kill9()
        raise BrokerFailed(f"{self.kind} did not answer within {self.READY_TIMEOUT_S} s\n{self.log_tail()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Duramen(Broker):
    kind = "duramen"

    def command(self):
        sets = [word for name, value in {**OLD_RECORDS_STAY, **QUICK_GROUPS, **self.settings}.items() for word in ("--set", f"{name}={value}")]
        command = "serve" if "controller.quorum.voters" in self.settings else "dev"
        # Any free port: brokers of other suites start and stop meanwhile.
        native = ["--native", f"{HOST}:0"]
        replace = ["--replace"] if self.replaces and command == "serve" else []
        listen = [] if "listeners" in self.settings else ["--listen", self.bootstrap]
        return [duramen_binary(), command, "--data-dir", str(self.data_dir), *listen, *native, *replace, *sets]

    @property
    def native(self):
        """Address of the native API, as the broker's log tells it; another one after each start."""
        return re.findall(r"serving the native API.* address=(\S+)", self.log_path.read_text(errors="replace"))[-1]


class Kafka(Broker):
    kind = "kafka"
    # It has none.
    native = ""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.libs = subprocess.check_output([str(COMPAT / "kafka/fetch.sh")], text=True).strip()
        self.properties = self.data_dir / "server.properties"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._write_properties()
        if not (self.data_dir / "log").exists():
            self._format()

    def wipe(self):
        shutil.rmtree(self.data_dir / "log")
        self._format()

    def command(self):
        return self._java(*self.jvm_options, "kafka.Kafka", str(self.properties))

    def _java(self, *arguments):
        log4j = f"-Dlog4j2.configurationFile={COMPAT / 'kafka/log4j2.properties'}"
        return ["java", "-cp", f"{self.libs}/*", log4j, *arguments]

    def _write_properties(self):
        controller_port = free_port()
        settings = {
            **KAFKA_SINGLE_NODE,
            **KAFKA_OLD_RECORDS_STAY,
            **QUICK_GROUPS,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "log.dirs": str(self.data_dir / "log"),
            **{KAFKA_BROKER_NAMES.get(name, name): value for name, value in self.settings.items()},
        }
        if "CONTROLLER:" not in settings["listeners"]:
            own = settings["listeners"]
            settings |= {"listeners": f"{own},CONTROLLER://{HOST}:{controller_port}", "advertised.listeners": own}
            settings["listener.security.protocol.map"] = KAFKA_LISTENER_PROTOCOLS
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _format(self):
        cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"
        storage_tool = self._java(
            "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.properties)
        )
        done = subprocess.run(storage_tool, capture_output=True, text=True)
        if done.returncode != 0:
            raise BrokerFailed(f"kafka's storage formatter failed:\n{done.stdout}{done.stderr}")


KINDS = {"duramen": Duramen, "kafka": Kafka}


def _die_with_parent():
    """A broker never outlives the run that started it, however that run ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _brokers_listed(port):
    """Sends Metadata v1 for no topics: ready means that the broker lists itself, and those of its cluster, as clients need it to."""
    header = struct.pack(">hhih", 3, 1, 1, -1)
    body = struct.pack(">i", 0)
    request = header + body
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.settimeout(5)
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(12)
            return struct.unpack(">i", answer[8:])[0] if len(answer) == 12 else 0
    except OSError:
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["duramen", "kafka"], required=True)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in options.set)
    with start(options.kind, options.port or free_port(), options.data_dir, settings) as broker:
        environment = {**os.environ, "BOOTSTRAP": broker.bootstrap, "BROKER_KIND": broker.kind, "NATIVE": broker.native}
        sys.exit(subprocess.run(options.command, env=environment).returncode)


if __name__ == "__main__":
    main()
