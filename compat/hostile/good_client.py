"""A client that behaves, and measures: good_client.py BOOTSTRAP TOPIC

One record a produce, acks=all, each fetched again by another connection's long poll. Ends when its standard input does;
then it has read everything back, and says in JSON what it saw. A connection that is closed or an answer that is wrong ends it
with 1.
"""

import json
import math
import select
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / part) for part in ("", "wire")]

from batch import batch, batches
from calls import fetch_body, produce
from connection import Connection


def main():
    bootstrap, topic = sys.argv[1:]
    producer, consumer = Connection(bootstrap), Connection(bootstrap)
    producing, fetching = [], []
    sent = []
    print("ready", flush=True)
    # Long enough to have seen something, however short the attack.
    while len(sent) < 50 or not select.select([sys.stdin], [], [], 0.002)[0]:
        value = b"record %d" % len(sent)
        began = time.monotonic()
        answer = produce(producer, topic, batch([value]))
        producing.append(time.monotonic() - began)
        assert (answer["ErrorCode"], answer["BaseOffset"]) == (0, len(sent)), answer
        sent.append(value)
        began = time.monotonic()
        found = fetch(consumer, topic, len(sent) - 1)
        fetching.append(time.monotonic() - began)
        assert found == [value], f"{found} is not {value}"
        if len(sent) % 20 == 0:
            assert consumer.call("Metadata", 12, {"Topics": [{"Name": topic}]})["Topics"][0]["ErrorCode"] == 0
    read = []
    while len(read) < len(sent):
        read += fetch(consumer, topic, len(read))
    assert read == sent, "what was acknowledged is not what is there"
    calls = sorted(producing + fetching)
    # The smallest that so large a part of them does not exceed: of a hundred calls the 99th, not the slowest.
    ms = lambda part: round(calls[math.ceil(len(calls) * part) - 1] * 1000, 1)  # noqa: E731
    print(json.dumps({"calls": len(calls), "p50_ms": ms(0.5), "p99_ms": ms(0.99), "max_ms": ms(1)}))


def fetch(connection, topic, offset):
    answer = connection.call("Fetch", 12, fetch_body([(topic, 0, offset)], max_wait_ms=1000))
    partition = answer["Responses"][0]["Partitions"][0]
    assert partition["ErrorCode"] == 0, partition
    return [value for each in batches(partition["Records"]) for value in each.values()]


main()
