#!/usr/bin/env python3
"""Scrapes a node: live.py BINARY. Prometheus' own parser reads the scrape, and all that dashboards and rules name is there."""

import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
NAME = re.compile(r"\b(?:duramen_\w+|kafka_\w+|process_\w+)")
# Families that have no rows before another node or a client of the native API comes.
ABSENT = ("duramen_peer_", "duramen_native_")
PATIENCE = 60


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def wait_for(what, condition):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.1)
    sys.exit(f"monitoring: no {what} within {PATIENCE} s")


def scrape(http):
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=PATIENCE) as answer:
        return answer.read().decode()


def complete(text):
    """Returns a scrape that has the records. The node copies its own figures out about once a second."""
    rows = ['duramen_topic_in_records_total{topic="t"} 3\n', "\nduramen_opening 0\n"]
    return text if all(row in text for row in rows) else None


def stamped(text):
    """Gives each row a time, which promtool wants, and the scrape does not have."""
    now = time.time()
    for line in text.splitlines():
        yield line if line.startswith("#") else f"{line} {now:.3f}"


def named():
    """Returns the metrics that dashboards and rules name, with where."""
    texts = sorted((HERE / "dashboards").glob("*.json")) + [HERE / "rules.yml"]
    for path in texts:
        for name in set(NAME.findall(path.read_text())):
            yield path.name, name


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as directory:
        port, http = free_port(), free_port()
        log = open(Path(directory) / "log", "w+")
        options = ["--data-dir", f"{directory}/data", "--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http}"]
        node = subprocess.Popen([binary, "serve", *options], stderr=log)
        try:
            at = ["--bootstrap", f"127.0.0.1:{port}"]
            wait_for("node", lambda: urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=5))
            subprocess.run([binary, "topic", "create", "t", *at], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([binary, "produce", "t", *at], input=b"a\nb\nc\n", check=True, stdout=subprocess.DEVNULL)
            text = wait_for("records in the metrics", lambda: complete(scrape(http)))
        finally:
            node.terminate()
            node.wait(PATIENCE)
        families = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
        rows = set(re.findall(r"^([a-z_]+)[ {]", text, re.M))
        missing = [it for it in named() if it[1] not in rows | families and not it[1].startswith(ABSENT)]
        if missing:
            sys.exit(f"monitoring: a node has no such metrics: {missing}")
        (Path(directory) / "scrape").write_text("\n".join(stamped(text)) + "\n")
        blocks = [f"{directory}/scrape", f"{directory}/blocks"]
        subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", *blocks], check=True, stdout=subprocess.DEVNULL)
        # A database has a write-ahead log, although this one needs none.
        (Path(directory) / "blocks" / "wal").mkdir()
        dump = subprocess.run(["promtool", "tsdb", "dump", blocks[1]], check=True, capture_output=True, text=True).stdout
        read = len(dump.splitlines())
        wanted = sum(not line.startswith("#") for line in text.splitlines())
        if read != wanted:
            sys.exit(f"monitoring: Prometheus read {read} of {wanted} rows")
        print(f"Prometheus reads {read} rows of a node; {len(families)} metrics, {len(text)} bytes")


if __name__ == "__main__":
    main()
