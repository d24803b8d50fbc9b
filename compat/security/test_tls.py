"""Listeners with TLS, and the clients that people have: librdkafka, Kafka's own tools, openssl."""

import re
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from authority import certificates
from broker import COMPAT, HOST, free_port, start
from checks import broker_kind, equal

if broker_kind() == "kafka":
    pytest.skip("of Duramen alone", allow_module_level=True)

PROTOCOLS = ["TLSv1.2", "TLSv1.3"]
TOPIC = "sealed"
# More than sockets and buffers take at once, each way.
LINES = 60_000


class Target:
    """A broker with a listener for each version of TLS, and the authority that vouches for it."""

    def __init__(self, broker, ports, certificates):
        self.broker = broker
        self.at = {protocol: f"{HOST}:{port}" for protocol, port in ports.items()}
        self.certificates = certificates
        self.ca = certificates / "ca.pem"


@contextmanager
def target(directory, names=f"localhost,{HOST}"):
    keystore = certificates(directory / "certificates", names) / f"{names.split(',')[0]}.pem"
    port, ports = free_port(), {protocol: free_port() for protocol in PROTOCOLS}
    name = {protocol: protocol.replace("v1.", "").upper() for protocol in PROTOCOLS}
    settings = {
        "listeners": ",".join([f"PLAINTEXT://{HOST}:{port}", *(f"{name[it]}://{HOST}:{ports[it]}" for it in PROTOCOLS)]),
        "listener.security.protocol.map": ",".join(f"{it}:SSL" for it in name.values()),
        "ssl.keystore.location": str(keystore),
        **{f"listener.name.{name[it].lower()}.ssl.enabled.protocols": it for it in PROTOCOLS},
    }
    with start("duramen", port, directory / "data", settings) as broker:
        yield Target(broker, ports, keystore.parent)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    with target(tmp_path_factory.mktemp("tls")) as made:
        yield made


def kcat(at, ca, *arguments, **options):
    secure = ["-X", "security.protocol=ssl", "-X", f"ssl.ca.location={ca}"]
    return subprocess.run(["kcat", "-b", at, *secure, *arguments], capture_output=True, timeout=100, **options)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_librdkafka_reads_what_it_wrote(tls, protocol):
    topic, at = f"{TOPIC}-{protocol}", tls.at[protocol]
    text = b"".join(b"%d %s\n" % (number, b"x" * 500) for number in range(LINES))
    written = kcat(at, tls.ca, "-P", "-t", topic, input=text)
    equal(written.returncode, 0, written.stderr)
    read = kcat(at, tls.ca, "-C", "-t", topic, "-e", "-q")
    equal(read.returncode, 0, read.stderr)
    assert read.stdout == text, f"{len(read.stdout)} of {len(text)} bytes"


def test_an_authority_that_is_not_the_nodes_is_refused(tls, tmp_path):
    listed = kcat(tls.at["TLSv1.3"], certificates(tmp_path / "other") / "ca.pem", "-L", "-m", "5")
    assert listed.returncode != 0 and b"certificate" in listed.stderr, listed.stderr


def test_a_certificate_for_another_host_is_refused(tmp_path):
    with target(tmp_path, "other.example") as other:
        listed = kcat(other.at["TLSv1.3"], other.ca, "-L", "-m", "5")
        assert listed.returncode != 0, listed.stdout


def test_kafkas_tools_come_by_the_same_door(tls, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={tls.ca}\n")
    libs = subprocess.check_output([COMPAT / "kafka/fetch.sh"], text=True).strip()

    def tool(name, *arguments):
        command = ["java", "-cp", f"{libs}/*", f"org.apache.kafka.tools.{name}", "--bootstrap-server", tls.at["TLSv1.3"]]
        done = subprocess.run([*command, "--command-config", config, *arguments], capture_output=True, text=True, timeout=100)
        equal(done.returncode, 0, done.stderr)
        return done.stdout

    tool("TopicCommand", "--create", "--topic", "by-java", "--partitions", "3")
    assert "by-java" in tool("TopicCommand", "--list").split()


def test_handshakes_that_never_end_hold_little_and_are_closed(tls):
    count = 500
    host, port = tls.at["TLSv1.3"].split(":")

    def resident_mib():
        return int(re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{tls.broker.pid}/status").read_text(), re.MULTILINE)[1]) // 1024

    before = resident_mib()
    peers = [socket.create_connection((host, int(port))) for _ in range(count)]
    for peer in peers:
        # The head of a ClientHello of 512 bytes, and some of it.
        peer.sendall(bytes.fromhex("1603010200010001fc0303") + bytes(100))
    equal(kcat(tls.at["TLSv1.3"], tls.ca, "-L").returncode, 0)
    grown = resident_mib() - before
    assert grown <= 32, f"{grown} MiB for {count} handshakes"
    for peer in peers:
        peer.settimeout(60)
        equal(peer.recv(1), b"")
        peer.close()


def test_a_listener_that_asks_for_certificates_lets_in_who_has_one(tmp_path):
    mine, theirs = certificates(tmp_path / "mine"), certificates(tmp_path / "theirs")
    port, sealed = free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{port},SSL://{HOST}:{sealed}",
        "ssl.keystore.location": str(mine / "localhost.pem"),
        "ssl.truststore.location": str(mine / "ca.pem"),
        "ssl.client.auth": "required",
    }

    def listed(*own):
        return kcat(f"{HOST}:{sealed}", mine / "ca.pem", "-L", "-m", "5", *own).returncode == 0

    def showing(directory):
        file = directory / "alice.pem"
        return "-X", f"ssl.certificate.location={file}", "-X", f"ssl.key.location={file}"

    with start("duramen", port, tmp_path / "data", settings):
        assert listed(*showing(mine))
        assert not listed()
        assert not listed(*showing(theirs))


@pytest.mark.parametrize("asked", ["-tls1_1", "-tls1_2", "-tls1_3"])
def test_only_the_enabled_versions_are_spoken(tls, asked):
    client = ["openssl", "s_client", "-connect", tls.at["TLSv1.3"], asked, "-CAfile", tls.ca, "-verify_return_error", "-verify_hostname", "localhost"]
    done = subprocess.run(client, input=b"", capture_output=True, timeout=100)
    equal(done.returncode == 0, asked == "-tls1_3", done.stderr)


def test_a_client_without_tls_is_closed_and_named_in_the_log(tls):
    listed = subprocess.run(["kcat", "-b", tls.at["TLSv1.3"], "-L", "-m", "5"], capture_output=True, timeout=100)
    assert listed.returncode != 0
    assert "no TLS handshake" in tls.broker.log_path.read_text()
