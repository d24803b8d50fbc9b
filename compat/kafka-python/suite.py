"""kafka-python (pure Python, its own protocol code) against one broker: suite.py BOOTSTRAP [PART OF A NAME]..."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import InvalidTopicError, MessageSizeTooLargeError, TopicAlreadyExistsError

import harness
from harness import equal, main, test


def new_topic(partitions=1, name=None, **configs):
    name = name or harness.unique("kafka-python")
    admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap())
    topic = NewTopic(name, partitions, 1, topic_configs={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([topic])
    admin.close()
    return name


def produce(topic, values, **settings):
    producer = KafkaProducer(bootstrap_servers=harness.bootstrap(), **settings)
    sent = [producer.send(topic, value=value, key=b"k", partition=0, headers=[("h", b"x")], timestamp_ms=1000 + n) for n, value in enumerate(values)]
    offsets = [future.get(30).offset for future in sent]
    producer.close()
    return offsets


def consume(topic, count, offset=0):
    consumer = KafkaConsumer(bootstrap_servers=harness.bootstrap(), enable_auto_commit=False, fetch_max_wait_ms=200)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), offset)
    found, deadline = [], time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += records
    consumer.close()
    equal(len(found), count, "records read")
    return found


@test
def records_come_back_as_they_went_with_the_codecs_that_need_no_extension():
    for codec in (None, "gzip"):
        topic = new_topic()
        values = [b"value %d" % number for number in range(500)]
        equal(produce(topic, values, compression_type=codec), list(range(500)), f"{codec}")
        for number, record in enumerate(consume(topic, 500)):
            equal((record.offset, record.key, record.value), (number, b"k", values[number]))
            equal((list(record.headers), record.timestamp), ([("h", b"x")], 1000 + number))


@test
def every_acks_setting_and_an_idempotent_producer_deliver():
    for settings in [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}]:
        topic = new_topic()
        values = [b"%d" % number for number in range(200)]
        if settings.get("acks") != "all" and "acks" in settings:
            settings["enable_idempotence"] = False
        produce(topic, values, **settings)
        equal([record.value for record in consume(topic, 200)], values, f"{settings}")


@test
def offsets_are_found_by_timestamp_and_at_both_ends():
    topic = new_topic()
    produce(topic, [b"v"] * 10)
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=harness.bootstrap())
    found = consumer.offsets_for_times({partition: 1005})[partition]
    equal((found.offset, found.timestamp), (5, 1005))
    equal(consumer.offsets_for_times({partition: 1010})[partition], None)
    equal((consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]), (0, 10))
    consumer.close()


@test
def refusals_arrive_as_their_errors():
    name = new_topic(max_message_bytes="1000")
    for error, call in [
        (TopicAlreadyExistsError, lambda: new_topic(name=name)),
        (InvalidTopicError, lambda: new_topic(name="bad name")),
        (MessageSizeTooLargeError, lambda: produce(name, [b"x" * 5000])),
    ]:
        try:
            call()
        except error:
            continue
        raise AssertionError(f"{error.__name__} expected")


main()
