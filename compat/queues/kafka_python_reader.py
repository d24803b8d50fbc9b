"""A consumer by kafka-python: kafka_python_reader.py BOOTSTRAP TOPIC GROUP. See ../readers.py."""

import signal
import sys
import threading

from kafka import KafkaConsumer

bootstrap, topic, group = sys.argv[1:]
leaving = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leaving.set())
# A reader of committed records looks into control batches for the ends of transactions.
consumer = KafkaConsumer(
    topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, isolation_level="read_committed"
)
while not leaving.is_set():
    found = consumer.poll(timeout_ms=200)
    for records in found.values():
        for record in records:
            print(record.partition, record.offset, record.value.decode(), flush=True)
    # How far it has come, also where nothing is left behind the last record.
    if consumer.assignment():
        consumer.commit()
consumer.close()
