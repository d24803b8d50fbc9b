#!/usr/bin/env python3
"""Members of one consumer group, by librdkafka: group_members.py BOOTSTRAP TOPIC PROTOCOL PARTITIONS MEMBERS. Prints figures as JSON.

PROTOCOL is `classic` (all is revoked, and shared out anew by range) or `consumer` (KIP-848: who keeps a partition goes on with
it). Meanwhile each partition is written to five times a second, and what is told of a step is also how long a member that was
there before and after went without any record: the worst member, and the one in the middle.

Run with the Python environment that compat/setup.sh makes. One of the members is a process of its own, to be killed.
"""

import itertools
import json
import random
import statistics
import subprocess
import sys
import threading
import time

from confluent_kafka import Consumer, Producer

GROUP = "bench-group"
# The shortest that brokers allow by default.
SESSION_TIMEOUT_MS = 6000
LONGEST_S = 120
WRITES_PER_SECOND = 5
# How long members are watched after all have their share: who lost its position may only find it now.
AFTER_S = 2


class Member:
    """A consumer that is polled by a thread of its own."""

    def __init__(self, bootstrap, topic, protocol):
        self.share = frozenset()
        self.leaving = threading.Event()
        self.heard, self.longest_gap = time.monotonic(), 0
        settings = {"bootstrap.servers": bootstrap, "group.id": f"{GROUP}-{protocol}", "group.protocol": protocol}
        if protocol == "classic":
            settings |= {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 500, "partition.assignment.strategy": "range"}
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _assigned(self, _, partitions):
        self.share |= {it.partition for it in partitions}

    def _revoked(self, _, partitions):
        self.share -= {it.partition for it in partitions}

    def _run(self):
        while not self.leaving.is_set():
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - self.heard)
                self.heard = now
        self.consumer.close()

    def watch(self):
        """Forgets gaps of before."""
        self.longest_gap = 0

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


class Writer:
    """Writes to all partitions in turn, until it is ended."""

    def __init__(self, bootstrap, topic, partitions):
        self.ended = threading.Event()
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self.thread = threading.Thread(target=self._run, args=(topic, partitions), daemon=True)
        self.thread.start()

    def _run(self, topic, partitions):
        pause_s = 0.01
        # In no order, so that each member hears something every few milliseconds.
        in_turn = itertools.cycle(random.Random(1).sample(range(partitions), partitions))
        while not self.ended.wait(pause_s):
            for partition in itertools.islice(in_turn, int(partitions * WRITES_PER_SECOND * pause_s)):
                self.producer.produce(topic, b"x" * 100, partition=partition)
            self.producer.poll(0)

    def end(self):
        self.ended.set()
        self.thread.join()
        self.producer.flush(30)


def other_process(bootstrap, topic, protocol):
    """A member elsewhere. Its share is what the others lack."""
    return subprocess.Popen([sys.executable, __file__, bootstrap, topic, protocol])


def step(members, partitions, do, elsewhere=(0,)):
    """Does something to a group, and answers how long until all have their share, and how long members heard nothing."""
    for member in members:
        member.watch()
    do()
    took = until_shared(members, partitions, elsewhere)
    time.sleep(AFTER_S)
    gaps = [member.longest_gap for member in members]
    return {"shared_s": took, "worst_pause_s": round(max(gaps), 2), "median_pause_s": round(statistics.median(gaps), 2)}


def main():
    bootstrap, topic, protocol, *numbers = sys.argv[1:]
    if not numbers:
        Member(bootstrap, topic, protocol).thread.join()
        return
    partitions, count = map(int, numbers)
    members = [Member(bootstrap, topic, protocol) for _ in range(count - 1)]
    figures = {"partitions": partitions, "members": count, "start": {"shared_s": until_shared(members, partitions)}}
    writer = Writer(bootstrap, topic, partitions)
    time.sleep(AFTER_S)
    figures["nothing"] = step(members, partitions, lambda: None)
    # Each of n members gets an equal share, and some one more.
    others = []
    share = {partitions // count, -(-partitions // count)}
    figures["join"] = step(members, partitions, lambda: others.append(other_process(bootstrap, topic, protocol)), share)
    with others[0] as other:
        figures["kill"] = step(members, partitions, other.kill)
    last = members.pop()
    figures["leave"] = step(members, partitions, last.leave)
    writer.end()
    for member in members:
        member.leaving.set()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
