"""The smallest test runner that serves every Python suite here: tests are functions whose names are sentences.

    @test
    def a_parked_fetch_wakes_promptly_on_produce(): ...

    if __name__ == "__main__":
        main()          # arguments after the bootstrap address select tests by a part of their name

A test marked `@test_that_waits` runs at the same time as the others so marked, each in a thread, after all other tests.
"""

import itertools
import os
import signal
import sys
import threading
import time
import traceback

# How many times as long as a quiet machine this one takes; `run.py` measures it. Bounds that end a test are scaled by it.
SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
TEST_TIMEOUT_S = int(120 * SLOWNESS)

_tests = []
_tests_that_wait = []


class Skipped(Exception):
    """This machine cannot do what a test needs."""


class TimedOut(BaseException):
    """Not an Exception: a test that catches everything must not swallow its own timeout."""


def test(function):
    _tests.append(function)
    return function


def test_that_waits(function):
    _tests_that_wait.append(function)
    return function


def bootstrap():
    """The broker under test, as Kafka's defaults make it."""
    return sys.argv[1]


def brokers():
    """How many brokers are under test: what tests make has as many replicas."""
    return len(bootstrap().split(","))


def strict_bootstrap():
    """A second broker of the same kind, with `auto.create.topics.enable=false`, `message.max.bytes` = 11 MiB, and groups of two."""
    return os.environ["STRICT_BOOTSTRAP"]


def broker_kind():
    return os.environ.get("BROKER_KIND", "duramen")


# Counted from there on: two names of one microsecond would be one.
numbers = itertools.count(time.time_ns() // 1000 % 10**10)


def unique(name):
    """A name that neither this run nor an earlier one on the same broker used."""
    return f"{name}-{next(numbers)}"


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


def main():
    counts = {"ok  ": 0, "FAIL": 0, "SKIP": 0}
    for function in filter(_is_wanted, _tests):
        counts[_run(function, lambda: _with_alarm(function))] += 1
    outcomes = []
    waiting = [_Waiting(function, outcomes) for function in filter(_is_wanted, _tests_that_wait)]
    deadline = time.monotonic() + TEST_TIMEOUT_S
    for each in waiting:
        each.thread.join(max(0, deadline - time.monotonic()))
        if each.thread.is_alive():
            print(f"FAIL {each.function.__name__} took longer than {TEST_TIMEOUT_S} s", flush=True)
            counts["FAIL"] += 1
    for outcome in outcomes:
        counts[outcome] += 1
    passed, failed, skipped = counts.values()
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    if any(each.thread.is_alive() for each in waiting):
        os._exit(1)  # A client that hangs would keep the process.
    sys.exit(1 if failed or not passed else 0)


def _is_wanted(function):
    wanted = sys.argv[2:]
    return not wanted or any(part in function.__name__ for part in wanted)


class _Waiting:
    def __init__(self, function, outcomes):
        self.function = function
        self.thread = threading.Thread(target=lambda: outcomes.append(_run(function, function)), daemon=True)
        self.thread.start()


def _run(function, call):
    """Runs one test, prints how it ended and returns that."""
    started = time.monotonic()
    outcome, reason, trace = "ok  ", "", ""
    try:
        call()
    except Skipped as skipped:
        outcome, reason = "SKIP", f" ({skipped})"
    except (Exception, TimedOut):
        outcome, trace = "FAIL", traceback.format_exc()
    # One write, so that tests at the same time do not print into each other.
    print(f"{trace}{outcome}{reason} {function.__name__} ({time.monotonic() - started:.1f} s)\n", end="", flush=True)
    return outcome


def _with_alarm(function):
    def on_alarm(*_):
        raise TimedOut(f"{function.__name__} took longer than {TEST_TIMEOUT_S} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(TEST_TIMEOUT_S)
    try:
        function()
    finally:
        signal.alarm(0)
