"""Processes of clients that are killed at random moments, beside the brokers that they use, and what comes after them."""

import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import checks
from broker import COMPAT, JVM_OPTIONS

PATIENCE_S = 60


def output(script):
    return subprocess.check_output([str(COMPAT / script)], text=True).strip()


def java(*options):
    """A JVM that has our classes and Kafka's; the name of one follows."""
    log4j = f"-Dlog4j2.configurationFile={COMPAT / 'java/log4j2.properties'}"
    classes = f"{output('java/compile.sh')}:{output('kafka/fetch.sh')}/*"
    return ["java", *options, *JVM_OPTIONS[2:], log4j, "-cp", classes]


class Followed:
    """A process that is followed by another one, with the same names, whenever it has ended. It ends when its input ends."""

    # What stands between what two of them say.
    mark = ""

    def __init__(self, client, command, directory):
        self.client, self.command = client, command
        self.told_path, self.errors_path = directory / f"{client}.told", directory / f"{client}.errors"
        self.begun = 0
        self.process = None

    def begin(self):
        self.begun += 1
        with open(self.told_path, "ab") as told, open(self.errors_path, "ab") as errors:
            told.write(self.mark.encode())
            told.flush()
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=told, stderr=errors)

    def go_on(self):
        if self.process.poll() is not None:
            self.begin()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def finish(self):
        """How it ended, or who came after it: the last one may know no more, too, as when a coordinator moves under it."""
        code = self._end()
        for _ in range(2):
            if code in (0, None):
                break
            self.begin()
            code = self._end()
        return "it did not end" if code is None else code

    def _end(self):
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


def work_and_die(brokers, followed, seconds, alive_s, kill_chance, more):
    """Begins the processes, kills brokers and processes for some time, and returns once each has told `more` than before.

    Each broker is back before the next one is killed. SEED repeats the kills.
    """
    seed = int(os.environ.get("SEED", random.randrange(10**9)))
    print(f"SEED={seed}", flush=True)
    for each in followed:
        each.begin()
    for each in followed:
        checks.eventually(f"{each.client} works", lambda: each.go_on() or each.told(), PATIENCE_S)
    _kill_at_random(brokers, followed, random.Random(seed), seconds, alive_s, kill_chance)
    before = [len(each.told()) for each in followed]
    for each, count in zip(followed, before):
        checks.eventually(f"{each.client} works again", lambda: each.go_on() or len(each.told()) > count + more, PATIENCE_S)


def _kill_at_random(brokers, followed, chance, seconds, alive_s, kill_chance):
    kills, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = chance.uniform(*alive_s)
        time.sleep(alive)
        for each in followed:
            if chance.random() < kill_chance:
                each.kill()
            each.go_on()
        broker = chance.choice(brokers)
        broker.kill9()
        started = time.monotonic()
        broker.restart()
        kills += 1
        print(f"kill {kills} after {alive:.2f} s, answers again after {time.monotonic() - started:.2f} s", flush=True)


def in_directory(function):
    """Calls it with a directory, which is kept when something is wrong."""
    directory = Path(tempfile.mkdtemp(prefix="duramen-killing-"))
    print(f"in {directory}", flush=True)
    function(directory)
    shutil.rmtree(directory)
