"""The smallest test runner that serves every Python suite here: tests are functions whose names are sentences.

    @test
    def a_parked_fetch_wakes_promptly_on_produce(): ...

    if __name__ == "__main__":
        main()          # arguments after the bootstrap address select tests by a part of their name
"""

import os
import signal
import sys
import time
import traceback

TEST_TIMEOUT_S = 60

_tests = []


class Skipped(Exception):
    """This machine cannot do what a test needs."""


class TimedOut(BaseException):
    """Not an Exception: a test that catches everything must not swallow its own timeout."""


def test(function):
    _tests.append(function)
    return function


def bootstrap():
    """The broker under test, as Kafka's defaults make it."""
    return sys.argv[1]


def strict_bootstrap():
    """A second broker of the same kind, with `auto.create.topics.enable=false` and `message.max.bytes` = 11 MiB."""
    return os.environ["STRICT_BOOTSTRAP"]


def broker_kind():
    return os.environ.get("BROKER_KIND", "duramen")


def unique(name):
    """A topic name that no earlier run on the same broker used."""
    return f"{name}-{time.time_ns() // 1000 % 10**10}"


def equal(actual, expected, what=""):
    assert actual == expected, f"{what}{': ' if what else ''}expected {expected!r}, got {actual!r}"


def main():
    wanted = sys.argv[2:]
    passed = failed = skipped = 0
    for function in _tests:
        if wanted and not any(part in function.__name__ for part in wanted):
            continue
        started = time.monotonic()
        try:
            _with_timeout(function)
            passed += 1
            outcome = "ok  "
        except Skipped as reason:
            skipped += 1
            outcome = f"SKIP ({reason})"
        except (Exception, TimedOut):
            failed += 1
            outcome = "FAIL"
            traceback.print_exc(file=sys.stdout)
        print(f"{outcome} {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    sys.exit(1 if failed or not passed else 0)


def _with_timeout(function):
    def on_alarm(*_):
        raise TimedOut(f"{function.__name__} took longer than {TEST_TIMEOUT_S} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(TEST_TIMEOUT_S)
    try:
        function()
    finally:
        signal.alarm(0)
