"""A broker under attack, the good client beside it, and what is asked of both."""

import json
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import checks
from broker import HOST, Duramen, free_port
from calls import connect, new_topic

eventually = partial(checks.eventually, timeout_s=15)

HERE = Path(__file__).resolve().parent

# What the good client may notice of any attack here: on two cores that it shares with the attackers and the broker. A call
# of its takes about 1 ms alone. The broker that gave way to an attack would take seconds, or hang up.
P99_MAX_MS = 250
CALL_MAX_MS = 3000

MIB = 1 << 20

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Broker(Duramen):
    """Duramen with /metrics, whose log and memory are looked at."""

    def __init__(self, data_dir, settings):
        super().__init__(free_port(), data_dir, settings, [], [])
        self.http = f"{HOST}:{free_port()}"

    def command(self):
        return [*super().command(), "--http", self.http]

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            return int(re.search(rf"^duramen_{name} (\d+)$", answer.read().decode(), re.MULTILINE)[1])

    def memory_mib(self, field="VmRSS"):
        """Resident memory now, or with "VmHWM" the most since `forget_peak`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1]) // 1024

    def forget_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def lines(self, part="connection closed"):
        """Log lines with `part`, each as (peer, line)."""
        text = self.log_path.read_text(errors="replace")
        found = [line for line in text.splitlines() if part in line]
        return [((re.search(r"peer=(\S+)", line) or [None, None])[1], line) for line in found]

    def lines_about(self, peer):
        return [line for named, line in self.lines("connection ") if named == peer]

    def expect_line(self, peer, reason):
        """Exactly one line says why the connection of `peer` was closed."""
        eventually(f"a log line about {peer} with {reason!r}", lambda: self.lines_about(peer))
        [line] = self.lines_about(peer)
        assert reason in line, f"{reason!r} is not in {line!r}"

    def open_connections(self):
        return self.metric("connections")


@contextmanager
def broker(settings=None, listeners=None):
    """A broker of the test's own, whose directory stays when the test fails. `listeners` come after the one that asks nobody."""
    directory = Path(tempfile.mkdtemp(prefix="duramen-hostile-"))
    one = Broker(directory / "data", settings or {})
    if listeners:
        one.settings["listeners"] = f"PLAINTEXT://{one.bootstrap},{listeners}"
    try:
        one.restart()
        yield one
        assert one.process.poll() is None, f"the broker ended\n{one.log_tail()}"
        panics = [line for _, line in one.lines("panicked")]
        assert not panics, panics
    except BaseException:
        print(f"kept: {directory}")
        raise
    finally:
        if one.process is not None and one.process.poll() is None:
            one.kill9()
    shutil.rmtree(directory)


class Peer:
    """A socket that sends what it likes."""

    def __init__(self, target, timeout_s=20, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect((HOST, target.port))
        self.name = "%s:%d" % self.socket.getsockname()

    def send(self, data):
        """What the broker takes of it: it may hang up at any time."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def is_closed(self, timeout_s=20):
        """Waits for the end, passing over what comes before it."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def end(self, how=socket.SHUT_RDWR):
        """Ends it for a thread that is sending, too."""
        try:
            self.socket.shutdown(how)
        except OSError:
            pass

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def frame(payload):
    return struct.pack(">i", len(payload)) + payload


@contextmanager
def good_client(target, p99_max_ms=P99_MAX_MS, call_max_ms=CALL_MAX_MS):
    """Produces and fetches in a process of its own while the block runs, and must not notice what happens there."""
    with connect(target.bootstrap) as connection:
        topic = new_topic(connection)
    command = [sys.executable, str(HERE / "good_client.py"), target.bootstrap, topic]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "ready\n", "the good client did not start"
        yield
        told, _ = client.communicate(timeout=30)
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    assert client.returncode == 0, f"the good client failed: {told}"
    seen = json.loads(told)
    print(f"     the good client: {seen}", flush=True)
    assert seen["p99_ms"] <= p99_max_ms and seen["max_ms"] <= call_max_ms, f"the good client noticed: {seen}"


def until(seconds):
    """Yields numbers until the time is over."""
    deadline, number = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        yield number
        number += 1


@contextmanager
def attackers(count, target, *arguments):
    """Runs `attacker.py` so many times, in processes of their own, until the block ends."""
    command = [sys.executable, str(HERE / "attacker.py"), target.bootstrap, *map(str, arguments)]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
        for process in processes:
            assert process.poll() is None, "an attacker ended by itself"
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
