#!/usr/bin/env python3
"""Members of one consumer group, by librdkafka: group_members.py BOOTSTRAP TOPIC PARTITIONS MEMBERS. Prints figures as JSON.

Run with the Python environment that compat/setup.sh makes. One of the members is a process of its own, to be killed.
"""

import json
import subprocess
import sys
import threading
import time

from confluent_kafka import Consumer

GROUP = "bench-group"
# The shortest that brokers allow by default.
SESSION_TIMEOUT_MS = 6000
LONGEST_S = 120


class Member:
    """A consumer that is polled by a thread of its own."""

    def __init__(self, bootstrap, topic):
        self.share = frozenset()
        self.leaving = threading.Event()
        self.consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": GROUP, "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 500, "auto.offset.reset": "earliest", "partition.assignment.strategy": "range",
        })  # fmt: skip
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _assigned(self, _, partitions):
        self.share = frozenset(it.partition for it in partitions)

    def _revoked(self, *_):
        self.share = frozenset()

    def _run(self):
        while not self.leaving.is_set():
            self.consumer.poll(0.05)
        self.consumer.close()

    def leave(self):
        self.leaving.set()
        self.thread.join()


def until_shared(members, partitions, elsewhere=(0,)):
    """Waits until every partition has one owner; answers how long that took. Another process may have a share, one of
    `elsewhere`."""
    begun = time.monotonic()
    while time.monotonic() - begun < LONGEST_S:
        shares = [member.share for member in members]
        total = sum(map(len, shares))
        if all(shares) and total == len(frozenset().union(*shares)) and partitions - total in elsewhere:
            return round(time.monotonic() - begun, 2)
        time.sleep(0.005)
    raise TimeoutError(f"not stable after {LONGEST_S} s: {sorted(len(member.share) for member in members)}")


def other_process(bootstrap, topic):
    """A member elsewhere. Its share is what the others lack."""
    return subprocess.Popen([sys.executable, __file__, bootstrap, topic])


def main():
    bootstrap, topic, *numbers = sys.argv[1:]
    if not numbers:
        Member(bootstrap, topic).thread.join()
        return
    partitions, count = map(int, numbers)
    members = [Member(bootstrap, topic) for _ in range(count - 1)]
    figures = {"partitions": partitions, "members": count, "start_s": until_shared(members, partitions)}
    # Range gives each of n members an equal share, and one more to the first ones.
    with other_process(bootstrap, topic) as other:
        figures["join_s"] = until_shared(members, partitions, {partitions // count, -(-partitions // count)})
        other.kill()
        figures["kill_s"] = until_shared(members, partitions)
    members.pop().leave()
    figures["leave_s"] = until_shared(members, partitions)
    for member in members:
        member.leaving.set()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
