"""A member of the consumer protocol (KIP-848), by librdkafka: consumer_member.py BOOTSTRAP TOPIC GROUP. See test_groups.py."""

import signal
import sys
import threading

from confluent_kafka import Consumer, KafkaException

bootstrap, topic, group = sys.argv[1:]
leaving = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leaving.set())
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "reconnect.backoff.max.ms": 300, "log_level": 0,
})  # fmt: skip
consumer.subscribe([topic])
while not leaving.is_set():
    message = consumer.poll(0.2)
    if message is None or message.error():
        continue
    print(message.partition(), message.offset(), message.value().decode(), flush=True)
    try:
        consumer.commit(message=message, asynchronous=False)
    except KafkaException:
        # It is another's by now, or the coordinator is away: whoever has it next begins where the last commit was.
        continue
consumer.close()
