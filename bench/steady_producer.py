"""Appends a record every few milliseconds until its standard input ends; tells the longest time without an ack.

steady_producer.py BOOTSTRAP TOPIC: librdkafka with its defaults, but for idempotence and linger.
"""

import json
import sys
import threading
import time

from confluent_kafka import Producer

PAUSE_S = 0.005


def main():
    bootstrap, topic = sys.argv[1:]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    acknowledged, failed = [], 0

    def told(error, _):
        nonlocal failed
        if error:
            failed += 1
        else:
            acknowledged.append(time.monotonic())

    while not stop.wait(PAUSE_S):
        producer.produce(topic, b"x" * 100, partition=0, on_delivery=told)
        producer.poll(0)
    left = producer.flush(30)
    gaps = [later - earlier for earlier, later in zip(acknowledged, acknowledged[1:])]
    print(json.dumps({"longest_gap_s": round(max(gaps), 3), "acknowledged": len(acknowledged), "failed": failed + left}))


main()
