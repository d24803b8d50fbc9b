"""What the tests of packages share: places, commands, a record that goes in and comes out."""

import os
import re
import resource
import subprocess
import time
from pathlib import Path

PACKAGING = Path(__file__).resolve().parent.parent
ROOT = PACKAGING.parent
OUT = ROOT / "target" / "packages"
CACHE = Path(os.environ.get("DURAMEN_CACHE", Path.home() / ".cache" / "duramen"))
VERSION = re.search(r'^\[workspace.package\]\nversion = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
# Longest wait for something that a test expects, in seconds.
PATIENCE = 90
USER = 65532


def run(*command, **options):
    """Runs a command that must succeed; its output is in the error otherwise."""
    options = {"capture_output": True, "text": True, "check": False, "timeout": 600, **options}
    done = subprocess.run([str(it) for it in command], **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def until(what, condition):
    """Waits until a condition holds, and returns its value; fails with the last error after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while True:
        error = None
        try:
            value = condition()
            if value:
                return value
        except (AssertionError, OSError, subprocess.SubprocessError) as caught:
            error = caught
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}: {error}"
        time.sleep(0.1)


def round_trip(run_duramen, topic="packaged", *options):
    """Appends a record and reads it, by the commands of the binary under test: run_duramen(*arguments, input=…)."""
    until("a topic is created", lambda: run_duramen("topic", "create", topic, "--if-not-exists", *options))
    run_duramen("produce", topic, input="hello, package\n")
    assert "hello, package" in read(run_duramen, topic)


def read(run_duramen, topic="packaged"):
    """The records of a topic."""
    return run_duramen("consume", topic, "--quiet").stdout.splitlines()


def podman(*arguments, **options):
    """Runs podman with runc: crun of Debian 12 refuses machines that have both versions of cgroups."""
    return run("podman", "--runtime", "runc", *arguments, **options)


def ulimits():
    """Options of `podman run` that ask for limits below its own defaults, which are above what many machines may give."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=4096:4096"]
