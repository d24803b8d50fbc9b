"""What a log must do, with kafka-python and assigned partitions."""

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import InvalidTopicError, MessageSizeTooLargeError, TopicAlreadyExistsError

import reach
from checks import equal
from client import consume, new_topic, produce


def test_records_come_back_as_they_went_with_the_codecs_that_need_no_extension():
    for codec in (None, "gzip"):
        topic = new_topic()
        values = [b"value %d" % number for number in range(500)]
        equal(produce(topic, values, compression_type=codec), list(range(500)), f"{codec}")
        for number, record in enumerate(consume(topic, 500)):
            equal((record.offset, record.key, record.value), (number, b"k", values[number]))
            equal((list(record.headers), record.timestamp), ([("h", b"x")], 1000 + number))


def test_every_acks_setting_and_an_idempotent_producer_deliver():
    for settings in [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}]:
        topic = new_topic()
        values = [b"%d" % number for number in range(200)]
        if settings.get("acks") != "all" and "acks" in settings:
            settings["enable_idempotence"] = False
        produce(topic, values, **settings)
        equal([record.value for record in consume(topic, 200)], values, f"{settings}")


def test_offsets_are_found_by_timestamp_and_at_both_ends():
    topic = new_topic()
    produce(topic, [b"v"] * 10)
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(**reach.kafka_python())
    found = consumer.offsets_for_times({partition: 1005})[partition]
    equal((found.offset, found.timestamp), (5, 1005))
    equal(consumer.offsets_for_times({partition: 1010})[partition], None)
    equal((consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]), (0, 10))
    consumer.close()


def test_refusals_arrive_as_their_errors():
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
