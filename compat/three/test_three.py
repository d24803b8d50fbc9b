"""What is built on Kafka, against three brokers that are killed and started again in turn.

The suites `streams`, `connect` and `mirror` kill their applications; here a broker of the cluster that they use is away most of
the time as well, and what they promise of records is the same. SEED repeats the kills.
"""

import os
import random
import subprocess
import threading
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import pytest

import checks
from broker import start_cluster
from killing import in_directory

KIND = os.environ["BROKER_KIND"]
pytestmark = pytest.mark.timeout(240 * checks.SLOWNESS)
ALIVE_S, AWAY_S = (1.5, 4.0), (0.2, 1.5)
# Kafka does not wait long for a broker that was killed.
SETTINGS = {"duramen": {}, "kafka": {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}}[KIND]


class Killer(threading.Thread):
    """Kills one broker of a cluster after the other, and starts it again."""

    def __init__(self, brokers, seed):
        super().__init__(daemon=True)
        self.brokers, self.chance = brokers, random.Random(seed)
        self.ended, self.kills, self.failure = threading.Event(), 0, None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()

    def run(self):
        try:
            while not self.ended.wait(self.chance.uniform(*ALIVE_S)):
                broker = self.chance.choice(self.brokers)
                broker.kill9()
                self.kills += 1
                self.ended.wait(self.chance.uniform(*AWAY_S))
                broker.restart()
        except Exception as failure:
            self.failure = failure


def passes_on_three(suite):
    def work(directory):
        seed = int(os.environ.get("SEED", random.randrange(10**9)))
        print(f"SEED={seed}", flush=True)
        with (
            start_cluster(KIND, directory / "here", SETTINGS) as here,
            start_cluster(KIND, directory / "there", SETTINGS) as there,
            Killer(here.brokers, seed) as killer,
        ):
            # Its results are part of this test's.
            environment = {name: value for name, value in os.environ.items() if name != "JUNIT_DIR"}
            environment |= {"BROKER_KIND": KIND, "STRICT_BOOTSTRAP": there.bootstrap}
            done = subprocess.run([COMPAT / suite / "run.sh", here.bootstrap], env=environment, capture_output=True, text=True)
        print(f"{killer.kills} kills of brokers", flush=True)
        assert killer.failure is None, killer.failure
        assert done.returncode == 0, done.stdout + done.stderr
        # A quick run takes 13 s, in which the second kill is always.
        assert killer.kills >= 2, "hardly anything was disturbed"

    in_directory(work)


def test_kafka_streams_counts_and_joins_every_record_once():
    passes_on_three("streams")


def test_kafka_connect_brings_each_line_of_a_file_once():
    passes_on_three("connect")


def test_mirror_maker_copies_each_record_once():
    passes_on_three("mirror")
