"""Consumes as a member of a share group until its standard input ends: confluent_share.py BOOTSTRAP TOPIC GROUP NAME. What it
does and prints is what test_shares.py says."""

import random
import sys
import threading
import time

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

PAUSE_S = 0.005
PATIENCE_S = 30


def main():
    bootstrap, topic, group, name = sys.argv[1:]
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    consumer = ShareConsumer({
        "bootstrap.servers": bootstrap, "group.id": group, "client.id": name, "share.acknowledgement.mode": "explicit",
        "reconnect.backoff.max.ms": 300, "fetch.wait.max.ms": 200, "max.poll.records": 20, "log_level": 0,
    })  # fmt: skip
    consumer.subscribe([topic])
    while not stopped.is_set():
        records = [record for record in consumer.poll(0.2) if record.error() is None]
        if not records:
            continue
        accepted = set()
        for record in records:
            print("delivered", record.partition(), record.offset(), flush=True)
            is_accepted = random.random() > 0.1
            consumer.acknowledge(record, AcknowledgeType.ACCEPT if is_accepted else AcknowledgeType.RELEASE)
            if is_accepted:
                accepted.add((record.partition(), record.offset()))
        try:
            good = {place.partition for place, problem in consumer.commit_sync(PATIENCE_S).items() if problem is None}
        except KafkaException as unknown:
            print(unknown, file=sys.stderr)
            good = set()
        for partition, offset in [(record.partition(), record.offset()) for record in records]:
            fate = "accepted" if partition in good else "unknown"
            print(fate if (partition, offset) in accepted else "released", partition, offset, flush=True)
        time.sleep(PAUSE_S)
    consumer.close()


main()
