"""The brokers under test, as the environment names them, and the checks that every Python suite makes."""

import itertools
import os
import time

# How many times as long as a quiet machine this one takes; `run.py` measures it. Bounds that end a test are scaled by it.
SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
# The process among those that run one suite's tests at the same time; empty where there is one.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def bootstrap():
    """Returns the address of the broker under test, as Kafka's defaults make it; a suite may start its broker itself."""
    return os.environ.get("BOOTSTRAP", "")


def brokers():
    """Returns how many brokers are under test: topics that tests make have as many replicas."""
    return len(bootstrap().split(","))


def strict_bootstrap():
    """Returns the address of a second broker of the same kind, with `run.py`'s STRICT_SETTINGS."""
    return os.environ["STRICT_BOOTSTRAP"]


def open_bootstrap():
    """Returns the address of the broker under test where it asks nobody who they are; see `secured.py`."""
    return os.environ.get("OPEN_BOOTSTRAP", bootstrap())


def open_strict_bootstrap():
    return os.environ.get("OPEN_STRICT_BOOTSTRAP", strict_bootstrap())


def broker_kind():
    return os.environ.get("BROKER_KIND", "duramen")


# Counted from there on: two names of one microsecond would be one. All have eleven digits.
numbers = itertools.count(10**10 + time.time_ns() // 1000 % 10**10)
# The numbers of the names that the running test has made; a record of its answers has other names.
made = []


def unique(name):
    """Makes a name that neither this run nor an earlier one on the same broker used."""
    made.append(f"{WORKER}{next(numbers)}")
    return f"{name}-{made[-1]}"


def equal(actual, expected, what=""):
    assert actual == expected, f"{what}{': ' if what else ''}expected {expected!r}, got {actual!r}"


def eventually(what, holds, timeout_s=10):
    """Waits until `holds()` is true, and returns what it returned."""
    deadline = time.monotonic() + timeout_s * SLOWNESS
    while True:
        result = holds()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
