"""Produces until its standard input ends, and prints what it was told: confluent_producer.py BOOTSTRAP TOPIC PARTITION NAME MODE

MODE is `idempotent` or `plain`, both with acks=all. One line for each message: `ack NUMBER OFFSET SHA256` or `fail NUMBER REASON`.
"""

import hashlib
import os
import random
import sys
import threading

from confluent_kafka import Producer

PER_SECOND = 600


def value_of(number):
    """Mostly small; now and then larger than what a journal takes inline."""
    size = random.randrange(100_000, 300_000) if number % 100 == 99 else random.randrange(10, 2000)
    return os.urandom(size)


def main():
    bootstrap, topic, partition, name, mode = sys.argv[1:]
    random.seed(name)
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": mode == "idempotent",
        # A plain producer keeps its order through retries only like this.
        "max.in.flight.requests.per.connection": 5 if mode == "idempotent" else 1,
        "message.timeout.ms": 0,
        "linger.ms": 5,
        "retry.backoff.ms": 20,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 300,
        "socket.timeout.ms": 10_000,
        "log_level": 0,
    }
    producer = Producer(settings)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    number = 0
    while not stop.wait(1 / PER_SECOND):
        value = value_of(number)
        digest = hashlib.sha256(value).hexdigest()

        def told(error, message, number=number, digest=digest):
            print(f"fail {number} {error}" if error else f"ack {number} {message.offset()} {digest}", flush=True)

        try:
            producer.produce(topic, value, key=f"{name}:{number}", partition=int(partition), on_delivery=told)
            number += 1
        except BufferError:
            producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    print(f"end {number} {left}")


main()
