"""One confluent-kafka consumer in a group: see ../members.py."""

import sys
import threading

from confluent_kafka import Consumer, KafkaException, TopicPartition

import reach

bootstrap, group, topic, *words = sys.argv[1:]
settings = dict(word.split("=", 1) for word in words)
owned = set()


def say(*words):
    print(*words, flush=True)


def on_assign(_, partitions):
    owned.update(partition.partition for partition in partitions)
    say("owns", *owned)


def on_revoke(_, partitions):
    owned.difference_update(partition.partition for partition in partitions)
    say("owns", *owned)


def read_and_commit(consumer):
    messages = consumer.consume(50, 0.1)
    for message in messages:
        assert not message.error(), message.error()
    ends = {message.partition(): message.offset() + 1 for message in messages}
    if not ends:
        return
    try:
        consumer.commit(offsets=[TopicPartition(topic, *end) for end in ends.items()], asynchronous=False)
        say("read", *(message.value().decode() for message in messages))
    except KafkaException:
        for message in reversed(messages):
            if message.partition() in owned:
                consumer.seek(TopicPartition(topic, message.partition(), message.offset()))


def main():
    static = {"group.instance.id": settings["instance"]} if "instance" in settings else {}
    # Of the newer protocol the broker says how often, and who is to have what.
    protocol = {"group.protocol": "consumer"}
    if settings.get("protocol") != "consumer":
        protocol = {
            "session.timeout.ms": int(settings["session_ms"]),
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": {"cooperative": "cooperative-sticky"}.get(settings.get("assignor"), "range"),
        }
    consumer = Consumer(
        {
            **reach.librdkafka(bootstrap),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **protocol,
            **static,
        }
    )
    consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
    leaving = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), leaving.set()), daemon=True).start()
    while not leaving.is_set():
        read_and_commit(consumer)
    consumer.close()


main()
