"""Steps of one client, which end at the first that fails. As the Java program does, each program tells of each step."""

import sys
import time
import traceback

BOOTSTRAP = sys.argv[1]
BROKERS = len(BOOTSTRAP.split(","))
TOPIC = f"old-python-{time.time_ns()}"
VALUES = [b"%d" % n for n in range(10)]


def run(client, steps):
    for what, step in steps.items():
        try:
            step()
        except Exception:
            sys.exit(f"{traceback.format_exc()}FAIL {client} {what}")
        print(f"ok   {client} {what}")


def equal(actual, expected):
    assert actual == expected, f"expected {expected!r}, got {actual!r}"


def until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.05)
